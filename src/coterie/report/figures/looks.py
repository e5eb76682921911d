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
        number_of_node: Node of a current group -> its number, from the top.
        colour_of_truth: Number of a true group -> colour.
        has_many_groups: Whether the run has more than :data:`MAX_GREY_GROUPS` groups.
    """

    def __init__(self, run: Gathered) -> None:
        # Groups are numbered in the order of the clients, which is that of the page.
        last_nodes = (nodes[-1] for nodes in run.members)
        current_nodes = dict.fromkeys(node for node in last_nodes if node >= 0)
        self.number_of_node = {
            node: group_number for group_number, node in enumerate(current_nodes)
        }
        self.has_many_groups = len(run.nodes) > MAX_GREY_GROUPS
        self.colour_of_truth = self._choose_colours(run)

    def _choose_colours(self, run: Gathered) -> dict[int, str]:
        """Give each true group the colour of the group with most of its members: larger shares first, each colour once."""
        truth = run.truth
        # Number of a true group -> number of a current group -> how many clients are in both.
        common_clients: dict[int, Counter[int]] = {}
        for true_group in truth.values():
            common_clients[true_group] = Counter()
        for client, nodes in zip(run.clients, run.members, strict=True):
            if client in truth and nodes[-1] in self.number_of_node:
                common_clients[truth[client]][self.number_of_node[nodes[-1]]] += 1

        def largest_share_first(number: int) -> tuple[int, int]:
            return -max(common_clients[number].values(), default=0), number

        colours: dict[int, str] = {}
        for true_group in sorted(common_clients, key=largest_share_first):
            # The colours of the groups with most of its members, then the others.
            most_common_groups = [
                group_number for group_number, _ in common_clients[true_group].most_common()
            ]
            preferred = [
                COLOURS[group_number]
                for group_number in most_common_groups
                if group_number < len(COLOURS)
            ]
            used = set(colours.values())
            unused = [colour for colour in [*preferred, *COLOURS] if colour not in used]
            colours[true_group] = unused[0] if unused else COLOURS[true_group % len(COLOURS)]
        return colours

    def area(self, node: int) -> str:
        """Return the colour of a group's block."""
        if node not in self.number_of_node and not self.has_many_groups:
            return ENDED
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
            "linestyle": DASHES[group_number // len(COLOURS) % len(DASHES)],
        }
