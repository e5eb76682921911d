"""The contract between a method, its clients and an engine.

The same letters everywhere: ``n`` clients in an exchange, ``k`` models, ``m`` models offered to one client, ``d``
parameters. A model is a row of ``d`` float32 numbers, several models are a matrix ``(k, d)``; an *update* is what local
training added to the offered model, ``trained - offered``.

One *exchange* is one ``plan`` (who trains, from which models) and one ``step`` (what to do with the replies); between
them lies the network. A communication *round* is one or more exchanges: a :class:`Plan` says whether its exchange ends
the round. A method is pure functions over an immutable state, so an engine may run it in one process, over a network,
or stop it and go on a week later.
"""

from __future__ import annotations

from coterie.core.averaging import Averaging as Averaging
from coterie.core.averaging import average as average
from coterie.core.means import Means as Means
from coterie.core.means import group_means as group_means
from coterie.core.messages import Need as Need
from coterie.core.messages import Plan as Plan
from coterie.core.messages import Replies as Replies
from coterie.core.messages import Task as Task
from coterie.core.messages import Training as Training
from coterie.core.messages import amounts as amounts
from coterie.core.messages import rows_without as rows_without
from coterie.core.messages import train_from as train_from
from coterie.core.messages import weights as weights
from coterie.core.method import Admits as Admits
from coterie.core.method import Assignment as Assignment
from coterie.core.method import Cohort as Cohort
from coterie.core.method import Federation as Federation
from coterie.core.method import Method as Method
from coterie.core.method import Note as Note
from coterie.core.state import STATES as STATES
from coterie.core.state import Client as Client
from coterie.core.state import Groups as Groups
from coterie.core.state import as_groups as as_groups
from coterie.core.state import joined as joined
from coterie.core.state import row_of as row_of
from coterie.core.state import state as state
from coterie.core.state import without as without
