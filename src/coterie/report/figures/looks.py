"""Colours, markers and dashes of the lines and groups of a run.

Current groups have a colour and a marker, groups that ended are grey, and a true group has the
colour of the group that has most of its members. The page follows the same rule.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coterie.report.figures.style import COLOURS, DASHES, GREY, MARKERS
from coterie.report.gathered import Gathered

ENDED = "#BDBDBD"
"""The colour of areas of groups that ended; their lines are darker."""

MAX_GREY_GROUPS = 40
"""With more groups than this, groups that ended have colours too, so that adjacent ones can be
distinguished."""


def numbered(number: int) -> dict[str, Any]:
    """Return the colour, marker and dash of the line with this number in a figure."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
    }


class Looks:
    """The colours, markers and dashes of the groups of a run.

    Args:
        run: The run.

    Attributes:
        now: Node of a current group -> its number, from the top.
        truth: Number of a true group -> colour.
        has_many_groups: Whether the run has more than :data:`MAX_GREY_GROUPS` groups.
    """

    def __init__(self, run: Gathered) -> None:
        present = dict.fromkeys(places[-1] for places in run.members if places[-1] >= 0)
        self.now = {node: number for number, node in enumerate(present)}
        self.has_many_groups = len(run.nodes) > MAX_GREY_GROUPS
        self.truth = self._truths(run)

    def _truths(self, run: Gathered) -> dict[int, str]:
        """Give each true group the colour of the group with most of its members: larger shares first, each colour once."""
        truth = run.truth
        shares: dict[int, Counter[int]] = {number: Counter() for number in set(truth.values())}
        for client, places in zip(run.clients, run.members, strict=True):
            if client in truth and places[-1] in self.now:
                shares[truth[client]][self.now[places[-1]]] += 1
        colours: dict[int, str] = {}
        for number in sorted(shares, key=lambda i: (-max(shares[i].values(), default=0), i)):
            preferred = [
                COLOURS[group] for group, _ in shares[number].most_common() if group < len(COLOURS)
            ]
            used = set(colours.values())
            free = [colour for colour in [*preferred, *COLOURS] if colour not in used]
            colours[number] = free[0] if free else COLOURS[number % len(COLOURS)]
        return colours

    def area(self, node: int) -> str:
        """Return the colour of a group's block."""
        if node not in self.now and not self.has_many_groups:
            return ENDED
        return COLOURS[self.now.get(node, node) % len(COLOURS)]

    def line(self, node: int) -> dict[str, Any]:
        """Return the colour, marker and dash of a group's line.

        It is solid for the first groups. It is dashed for further groups once all colours are used,
        and for groups that ended.

        Args:
            node: The group.
        """
        if node not in self.now:
            return {**numbered(node), "color": GREY, "linestyle": "--"}
        number = self.now[node]
        return {**numbered(number), "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
