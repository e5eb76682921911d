"""Tiny worlds of arithmetic for testing methods, see :mod:`coterie.testing`."""

from coterie.testing import THREE as THREE
from coterie.testing import TRUTH as TRUTH
from coterie.testing import Played as Played
from coterie.testing import Pull as Pull
from coterie.testing import grouped as grouped
from coterie.testing import last as last
from coterie.testing import never as never
from coterie.testing import play as play
