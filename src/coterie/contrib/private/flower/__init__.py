"""Sums over clients in Flower's processes: what the entry point ``flower-sums`` in ``coterie.exchanges`` names.

:mod:`.server` is the server's side of an exchange, :mod:`.node` a client's, and :mod:`.mod` that of
the client's mod, which alone knows of masks. :mod:`.sum_layout` says what a client's masked numbers
are, :mod:`.steps` how the messages of :mod:`~coterie.contrib.private.masks.protocol` are written,
and :mod:`.questions` how questions are. :mod:`.vector_sums` is for sums outside of plans.
"""

from coterie.contrib.private.flower.mod import masked_reply as masked_reply
from coterie.contrib.private.flower.mod import pop_config as pop_config
from coterie.contrib.private.flower.mod import reply_to_step as reply_to_step
from coterie.contrib.private.flower.node import client_result as client_result
from coterie.contrib.private.flower.node import task_as_taken as task_as_taken
from coterie.contrib.private.flower.questions import question_from_json as question_from_json
from coterie.contrib.private.flower.questions import question_to_json as question_to_json
from coterie.contrib.private.flower.server import MaskedGridExchange
from coterie.contrib.private.flower.server import added_up as added_up
from coterie.contrib.private.flower.server import read_answer as read_answer
from coterie.contrib.private.flower.vector_sums import masked_vector as masked_vector
from coterie.contrib.private.flower.vector_sums import sum_of_vectors as sum_of_vectors

masked_exchange = MaskedGridExchange
