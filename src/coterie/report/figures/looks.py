"""Colours, markers and dashes of the lines and groups of a run.

Current groups have a colour and a marker, and groups that ended are grey. Colours are those of the
page, see :mod:`coterie.report.colours`.
"""

from __future__ import annotations

from typing import Any

from coterie.report.colours import SLATE, group_colours
from coterie.report.figures.style import COLOURS, DASHES, GREY, MARKERS
from coterie.report.gathered import Gathered

ENDED = "#BDBDBD"
"""The colour of areas of groups that ended; their lines are darker."""

MAX_GREY_GROUPS = 40
"""With more groups than this, groups that ended have colours too, so that adjacent ones can be
distinguished."""


def numbered(line_number: int) -> dict[str, Any]:
    """Return the colour, marker and dash of the line with this number in a figure."""
    return {
        "color": COLOURS[line_number % len(COLOURS)],
        "marker": MARKERS[line_number % len(MARKERS)],
        "linestyle": DASHES[line_number % len(DASHES)],
    }


class Looks:
    """The colours, markers and dashes of the groups of a run.

    Args:
        run: The run.

    Attributes:
        number_of_node: Node of a current group -> its number, by its first client.
        colour_of_truth: Number of a true group -> colour.
        has_many_groups: Whether the run has more than :data:`MAX_GREY_GROUPS` groups.
    """

    def __init__(self, run: Gathered) -> None:
        colours = group_colours(run)
        self.number_of_node = colours.of_node
        self.has_many_groups = len(run.nodes) > MAX_GREY_GROUPS
        self._groups_of_all = {node for node in colours.of_node if run.group_name(node) == "all"}
        self.colour_of_truth = {
            true_group: COLOURS[number] for true_group, number in colours.of_truth.items()
        }

    def area(self, node: int) -> str:
        """Return the colour of a group's block."""
        if node not in self.number_of_node and not self.has_many_groups:
            return ENDED
        if node in self._groups_of_all:
            return SLATE
        return COLOURS[self.number_of_node.get(node, node) % len(COLOURS)]

    def line(self, node: int) -> dict[str, Any]:
        """Return the colour, marker and dash of a group's line.

        It is solid for the first groups. It is dashed for further groups once all colours are used,
        and for groups that ended.

        Args:
            node: The group.
        """
        if node not in self.number_of_node:
            return {**numbered(node), "color": GREY, "linestyle": "--"}
        # The dash changes when all colours are used.
        group_number = self.number_of_node[node]
        return {
            **numbered(group_number),
            "color": self.area(node),
            "linestyle": DASHES[group_number // len(COLOURS) % len(DASHES)],
        }
