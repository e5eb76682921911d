"""Who is which colour: groups of now by colour and marker, groups that ended in grey, true groups like the group that has
most of their members; the same rule as on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.report.figures.style import COLOURS, DASHES, GREY, MARKERS
from coterie.report.gathered import Gathered

ENDED = "#BDBDBD"
"""Areas of groups that ended; their lines are darker."""

MANY = 40
"""Of more groups than this those that ended get colours too, so that one can be told from the next."""


@dataclass(frozen=True)
class Looks:
    """now: node of a group that is there -> its number, from the top. truth: number of a true group -> colour."""

    now: Mapping[int, int]
    truth: Mapping[int, str]
    many: bool

    def area(self, node: int) -> str:
        """The colour of a block."""
        if node in self.now:
            return COLOURS[self.now[node] % len(COLOURS)]
        return COLOURS[node % len(COLOURS)] if self.many else ENDED

    def line(self, node: int | None, other: int = 0) -> dict[str, Any]:
        """The colour and marker of a group's line; a line of no group is the ``other``-th of its figure."""
        if node is None:
            return {"color": COLOURS[other % len(COLOURS)], "marker": MARKERS[other % len(MARKERS)]}
        number = self.now.get(node, node)
        colour = COLOURS[number % len(COLOURS)] if node in self.now else GREY
        return {"color": colour, "marker": MARKERS[number % len(MARKERS)]}

    def dash(self, node: int) -> str:
        """Solid for the first groups, dashed for more than there are colours, and for those that ended."""
        return DASHES[self.now[node] // len(COLOURS) % len(DASHES)] if node in self.now else "--"


def looks(run: Gathered) -> Looks:
    now: dict[int, int] = {}
    for row in run.members:
        if row[-1] >= 0:
            now.setdefault(row[-1], len(now))
    return Looks(now, _truths(run, now), len(run.nodes) > MANY)


def letter(number: int) -> str:
    """The name of a true group.

    >>> letter(1), letter(30)
    ('B', 'T30')
    """
    return chr(ord("A") + number) if number < 26 else f"T{number}"


def _truths(run: Gathered, now: Mapping[int, int]) -> dict[int, str]:
    """A true group takes the colour of the group that has most of its members, larger shares first, each colour once."""
    truth = run.truth
    shares: dict[int, Counter[int]] = {number: Counter() for number in set(truth.values())}
    for client, row in zip(run.clients, run.members, strict=True):
        if client in truth and row[-1] in now:
            shares[truth[client]][now[row[-1]]] += 1
    out: dict[int, str] = {}
    for number in sorted(shares, key=lambda i: (-max(shares[i].values(), default=0), i)):
        wanted = [COLOURS[group] for group, _ in shares[number].most_common() if group < len(COLOURS)]
        free = [colour for colour in [*wanted, *COLOURS] if colour not in out.values()]
        out[number] = free[0] if free else COLOURS[number % len(COLOURS)]
    return out
