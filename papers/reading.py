"""The scales of a study, from its TOML file in ``settings/``.

A file has a table per scale, and in it ``about``, ``seconds``, ``seeds``, ``needs``, ``as_printed``
and a list of ``cells``. Where ``as_printed`` is missing, ``small`` has nothing as in the paper,
``data`` its data, and ``paper`` its data and size::

    [small]
    about = "scikit-learn's digits"
    seconds = 60
    seeds = 5

    [[small.cells]]
    rounds = 50
    seeds = 1                            # at most, where the scale's own number takes too long
    each.examples = [10, 20, 40]         # a cell per value
    scenario.name = "digits/label-swap"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from coterie.settings import UserError, nearest
from papers.study import SCALES, Scale

AS_PRINTED: Mapping[str, tuple[str, ...]] = {
    "small": (),
    "data": ("data",),
    "paper": ("data", "size"),
}

FOLDER = Path(__file__).parent / "settings"


@cache
def scales(stem: str) -> Mapping[str, Scale]:
    """Name -> scale, in the order of :data:`SCALES`, of the study whose files are called ``stem``."""
    tables = tomllib.loads((FOLDER / f"{stem}.toml").read_text(encoding="utf-8"))
    return {
        name: Scale(
            name=name,
            about=table["about"],
            seconds=table["seconds"],
            seeds=table["seeds"],
            needs=tuple(table.get("needs", ())),
            as_printed=tuple(table.get("as_printed", AS_PRINTED[name])),
            exact=table.get("exact", False),
            tables=tuple(table["cells"]),
        )
        for name in SCALES
        if (table := tables.get(name))
    }


def find(study: str, stem: str, scale: str) -> Scale:
    """The scale called ``scale``; raises :class:`UserError`, saying which the study has."""
    known = scales(stem)
    if scale not in known:
        hint = "" if scale in SCALES else nearest(scale, SCALES)
        raise UserError(f"{study} has no scale {scale!r}{hint} (it has: {', '.join(known)})")
    return known[scale]
