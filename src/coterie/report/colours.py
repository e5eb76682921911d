"""The colours of a run's groups: the same on pages and in figures, and for the same groups in every run.

Colours are numbers in :data:`PALETTE`. Present groups are numbered by their first client, so two
methods that find the same groups show them in the same colours, in whatever order. A group of all
clients has a colour of its own, :data:`SLATE`. A true group has the colour of the group with most of
its members.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coterie.records.shown import ClientId
from coterie.report.gathered import Gathered

# M. Okabe, K. Ito, "Color Universal Design", 2008; orange, sky and yellow darker, to be seen on white.
BLUE = "#0072B2"
ORANGE = "#D98C00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
RED = "#D55E00"
SKY = "#3BA0D8"
OLIVE = "#A39600"
VIOLET = "#5B3FA0"
SLATE = "#4A5A70"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, OLIVE, VIOLET)
"""The colours of groups; page.css has the same, and lighter ones for a dark ground."""


@dataclass(frozen=True)
class GroupColours:
    """The numbers of the colours of a run's groups.

    Attributes:
        of_node: Id of a present group -> its number.
        of_truth: Number of a true group -> the number of its colour.
    """

    of_node: dict[int, int]
    of_truth: dict[int, int]


def group_colours(run: Gathered) -> GroupColours:
    """Return the numbers of the colours of a run's present groups and of its true groups."""
    # Clients are visited in the order of their ids, so a group counts by its first client.
    last_nodes = dict(zip(run.clients, (nodes[-1] for nodes in run.members), strict=True))
    number_of_node: dict[int, int] = {}
    for client in sorted(last_nodes):
        node = last_nodes[client]
        if node >= 0:
            number_of_node.setdefault(node, len(number_of_node))
    return GroupColours(number_of_node, _truth_numbers(run, last_nodes, number_of_node))


def _truth_numbers(
    run: Gathered, last_nodes: dict[ClientId, int], number_of_node: dict[int, int]
) -> dict[int, int]:
    """Give each true group the colour of the group with most of its members: larger shares first, each colour once."""
    # Number of a true group -> number of a present group -> how many clients are in both.
    common_clients: dict[int, Counter[int]] = {}
    for client, true_group in run.truth.items():
        counts = common_clients.setdefault(true_group, Counter())
        node = last_nodes.get(client, -1)
        if node in number_of_node:
            counts[number_of_node[node]] += 1

    def largest_share_first(true_group: int) -> tuple[int, int]:
        return -max(common_clients[true_group].values(), default=0), true_group

    colours: dict[int, int] = {}
    for true_group in sorted(common_clients, key=largest_share_first):
        # The colours of the groups with most of its members, then the others.
        preferred = []
        for group_number, _ in common_clients[true_group].most_common():
            if group_number < len(PALETTE):
                preferred.append(group_number)
        used = set(colours.values())
        unused = [number for number in [*preferred, *range(len(PALETTE))] if number not in used]
        colours[true_group] = unused[0] if unused else true_group % len(PALETTE)
    return colours
