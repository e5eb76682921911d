"""What a study is: one experiment of a paper, at several scales, with what the paper says of it beside what comes out here.

A *cell* is one thing to run: settings and a seed, plain values that say everything its numbers
depend on. It becomes one *row*: ``{"cell": ..., "found": ..., "seconds": ...}``, and ``"device"``
if that was a GPU. Tables, figures and verdicts are functions of rows, so they can be made anew
without running anything.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.engines.workers import Hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coterie.core import Round

Cell = Mapping[str, Any]
Row = Mapping[str, Any]

EACH = "each"
"""Of a table of cells: lists; there is a cell for every combination of their values."""

SEEDS = "seeds"
"""Of a table of cells: the greatest number of seeds, if it is less than that of the scale."""

SCALES = ("small", "data", "paper")
"""small: without files, in minutes. data: the papers' data, cut down to what two cores can do.
paper: as printed."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a cell may use. data: folder of the data sets' files. hardware: processes and a device. progress: called with each
    round of a method and the planned number of rounds."""

    data: str | None = None
    hardware: Hardware = field(default_factory=Hardware)
    progress: Callable[[Round, int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One size of a study. about: what is run, and what of the paper is not. seconds: about how long, on two cores.

    seeds: how many of each cell. needs: data sets that are read from files. as_printed: what is as
    in the paper, of ``data`` and ``size`` (clients, examples and rounds, where it prints them).
    exact: whether nothing is drawn, so that all seeds give the same. tables: cells without a seed,
    lists of values under ``each``, and under ``seeds`` how many of these cells at most, where they
    are too long for as many as the others.
    """

    name: str
    about: str
    seconds: float
    seeds: int
    needs: tuple[str, ...] = ()
    as_printed: tuple[str, ...] = ()
    exact: bool = False
    tables: tuple[Mapping[str, Any], ...]

    def cells(self, seeds: int | None = None) -> list[Cell]:
        """Every cell, all of one seed before any of the next; ``seeds`` in place of the scale's own number."""
        return [
            {**same, **dict(zip(each, values, strict=True)), "seed": seed}
            for seed in range(self.seeds if seeds is None else seeds)
            for table in self.tables
            if seed < table.get(SEEDS, seed + 1)
            for same, each in [
                (
                    {name: table[name] for name in table if name not in (EACH, SEEDS)},
                    table.get(EACH, {}),
                )
            ]
            for values in itertools.product(*each.values())
        ]


def key(cell: Cell) -> str:
    """What a cell is known by: all of it.

    >>> key({"b": 1, "a": [0.5]}) == key({"a": [0.5], "b": 1})
    True
    """
    return json.dumps(cell, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that a paper says of an experiment, and what came out here.

    what: it is about. printed: the paper's number, or its words. ours: the same, of the rows. rule:
    when the two agree, in words. holds: whether they do; None where the rows cannot tell. aside:
    why it does not count in the verdict, such as a rule that any run passes, or that was chosen
    after a look at the result, or a method that is not the paper's; empty if it does.
    """

    what: str
    printed: str
    ours: str
    rule: str
    holds: bool | None
    aside: str = ""


@dataclass(frozen=True)
class Table:
    """Cells of text under a head; ``align`` has an ``r`` for each column that is flushed right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment of a paper.

    name: paper/place. where: figure or table, in words. what: one sentence. measure: ``(resources,
    **cell)`` -> what was found, as JSON. claims: what the paper says beside what all rows of a
    scale say; what matters most is first. figure: draws the rows. table: all numbers, where claims
    are not enough. rows_of: another study, whose settings and rows these claims are about too;
    None: its own.
    """

    name: str
    where: str
    what: str
    measure: Callable[..., Mapping[str, Any]]
    claims: Callable[[Sequence[Row]], tuple[Claim, ...]]
    figure: Callable[[Sequence[Row]], Figure]
    table: Callable[[Sequence[Row]], Table] | None = None
    rows_of: str | None = None

    @property
    def paper(self) -> str:
        """Short name of the paper."""
        return self.name.partition("/")[0]

    @property
    def stem(self) -> str:
        """Its name in names of files: its page and figures."""
        return self.name.replace("/", "-")

    @property
    def source(self) -> str:
        """In names of files: the study whose settings and rows it takes."""
        return (self.rows_of or self.name).replace("/", "-")


MANY = 3
"""Seeds from which a result is no accident of one of them."""


def strength(scale: Scale, seeds: int) -> str:
    """How much a verdict at this scale says of the paper: strong, medium or weak.

    strong: the paper's data and size, three seeds or more (one where nothing is drawn). medium: its
    data in another size with as many seeds, or its data and size with fewer. weak: all else.

    >>> scale = Scale(name="data", about="", seconds=1, seeds=3, as_printed=("data",), tables=())
    >>> strength(scale, 3), strength(scale, 2)
    ('medium', 'weak')
    """
    same = {of: of in scale.as_printed for of in ("data", "size")}
    return ("weak", "weak", "medium", "strong")[
        same["data"] * (1 + same["size"] + (scale.exact or seeds >= MANY))
    ]


def verdict(claims: Sequence[Claim]) -> str:
    """In words, and what does not hold.

    >>> claim = Claim(what="accuracy", printed="0.9", ours="0.8", rule="within 0.05", holds=True)
    >>> from dataclasses import replace
    >>> verdict([claim, replace(claim, what="gap", holds=False), replace(claim, aside="any run passes")])
    'reproduced in part, 1 of 2: not gap'
    """
    known = [claim for claim in claims if claim.holds is not None and not claim.aside]
    right = sum(bool(claim.holds) for claim in known)
    if not known:
        return "undecided"
    if right == len(known):
        return f"reproduced, {right} of {len(known)}"
    wrong = "; ".join(claim.what for claim in known if not claim.holds)
    return f"{'reproduced in part' if right else 'not reproduced'}, {right} of {len(known)}: not {wrong}"
