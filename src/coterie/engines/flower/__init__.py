"""The same methods over a Flower federation; ``pip install coterie[flower]``."""

from __future__ import annotations

from coterie.engines.flower.client import Participant as Participant
from coterie.engines.flower.client import client_app as client_app
from coterie.engines.flower.mods import boundary_mod as boundary_mod
from coterie.engines.flower.strategy import MethodStrategy as MethodStrategy
