"""Secure aggregation: a server that learns the sum of its clients' numbers, and nothing else about them.

Each client adds to its numbers masks that cancel in the sum (K. Bonawitz et al., "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017), modulo 2³².
:mod:`~coterie.masks.protocol` has the messages of one sum, without any transport;
:mod:`~coterie.masks.fixed` turns real numbers into integers, :mod:`~coterie.masks.shamir` shares
secrets among clients, :mod:`~coterie.masks.streams` makes masks, and :mod:`~coterie.masks.graph`
says which clients have common masks.
"""

from coterie.masks.fixed import FixedPoint as FixedPoint
from coterie.masks.graph import Graph as Graph
from coterie.masks.protocol import MaskedSum as MaskedSum
from coterie.masks.protocol import Masker as Masker
from coterie.masks.protocol import ProtocolError as ProtocolError
