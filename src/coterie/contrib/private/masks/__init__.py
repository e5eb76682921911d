"""Secure aggregation: a server that learns the sum of its clients' numbers, and nothing else about them.

Each client adds to its numbers masks that cancel in the sum (K. Bonawitz et al., "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017), modulo 2³². :mod:`.protocol` has
the messages of one sum, without any transport; :mod:`.fixed` turns real numbers into integers,
:mod:`.shamir` shares secrets among clients, :mod:`.streams` makes masks, and :mod:`.graph` says
which clients have common masks.
"""

from coterie.contrib.private.masks.fixed import FixedPoint as FixedPoint
from coterie.contrib.private.masks.graph import Graph as Graph
from coterie.contrib.private.masks.protocol import MaskedSum as MaskedSum
from coterie.contrib.private.masks.protocol import Masker as Masker
from coterie.contrib.private.masks.protocol import ProtocolError as ProtocolError
