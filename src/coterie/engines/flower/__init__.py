"""The Flower engine: the same methods over a Flower federation. Install with ``pip install coterie[flower]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.extensions import lazily

if TYPE_CHECKING:
    from coterie.engines.flower.client import Participant as Participant
    from coterie.engines.flower.client import client_app as client_app
    from coterie.engines.flower.mods import boundary_mod as boundary_mod
    from coterie.engines.flower.strategy import MethodStrategy as MethodStrategy

_PUBLIC = {
    "MethodStrategy": "strategy",
    "Participant": "client",
    "boundary_mod": "mods",
    "client_app": "client",
}
"""Public name -> module. A module is imported when it is first used, because a node starts a
process for every message."""

__all__ = list(_PUBLIC)

__getattr__ = lazily(__name__, _PUBLIC)
