"""A run prepared for display: its records, its groups followed over the rounds, and its clients ordered by group.

Pages and printed figures both start from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from coterie.records.record import Record
from coterie.records.shown import ClientId, Line
from coterie.settings import UserError


class PlacedNote(NamedTuple):
    """A note with its place in a run.

    Attributes:
        round: Its round.
        node: The group that it is about, or -1.
        note: The note.
    """

    round: int
    node: int
    note: Mapping[str, Any]


PlacedNotes = Sequence[PlacedNote]


@dataclass(frozen=True)
class Gathered:
    """A run prepared for display.

    Attributes:
        folder: The run directory.
        description: The content of ``run.toml``.
        lines: The completed rounds.
        nodes: The groups, by id.
        clients: The client ids, in the order of :func:`~coterie.report.gathered.ordered`.
        members: Per client, in this order, the id of its node in each round, or -1.
        node_ids_by_round: Per round, the ids of its groups in their order.
        notes: The notes.
    """

    folder: Path
    description: Mapping[str, Any]
    lines: Sequence[Line]
    nodes: Sequence[TreeNode]
    clients: Sequence[ClientId]
    members: Sequence[Sequence[int]]
    node_ids_by_round: Sequence[Sequence[int]]
    notes: PlacedNotes

    @property
    def facts(self) -> Mapping[str, Any]:
        """The world's table of ``run.toml``."""
        facts: Mapping[str, Any] = self.description["world"]
        return facts

    @property
    def truth(self) -> dict[ClientId, int]:
        """The number of each client's true group, if the true groups are known."""
        return true_groups(self.facts)

    def group_name(self, node: int) -> str:
        """Return what pages and figures call a group: "all" if it has all clients, else G and its id."""
        return "all" if node in self._groups_of_all else f"G{node}"

    @cached_property
    def _groups_of_all(self) -> set[int]:
        """The groups that were the only one in each of their rounds."""
        only_group: set[int] = set()
        one_of_several: set[int] = set()
        for node_ids in self.node_ids_by_round:
            (only_group if len(node_ids) == 1 else one_of_several).update(node_ids)
        return only_group - one_of_several


def true_groups(facts: Mapping[str, Any]) -> dict[ClientId, int]:
    """Return client -> number of its true group, from the world's table of ``run.toml``; empty if not known."""
    group_of_client: dict[ClientId, int] = {}
    for number, members in enumerate(facts.get("true_groups") or ()):
        group_of_client.update(dict.fromkeys(members, number))
    return group_of_client


def gather(folder: Path) -> Gathered:
    """Read the run in ``folder``.

    Args:
        folder: The run directory.

    Raises:
        UserError: If there is no run, or it has no completed round.
    """
    record = Record(folder)
    description, lines = record.shown()
    if not lines:
        raise UserError(f"{folder} has no completed round yet")
    return gathered(folder, description, lines)


def gathered(folder: Path, description: Mapping[str, Any], lines: Sequence[Line]) -> Gathered:
    """Prepare a run, as :func:`gather` does, from records that have been read.

    Args:
        folder: The run directory.
        description: The content of ``run.toml``.
        lines: The completed rounds.
    """
    nodes, node_ids_by_round = follow(lines)
    # All clients that were ever in a group, also those that have left.
    all_clients: set[ClientId] = set()
    for line in lines:
        all_clients.update(*line["groups"])
    clients = sorted(all_clients)
    members = memberships(lines, node_ids_by_round, clients)
    order = ordered(clients, members, nodes, true_groups(description["world"]))
    return Gathered(
        folder=folder,
        description=description,
        lines=lines,
        nodes=nodes,
        clients=[clients[client_index] for client_index in order],
        members=[members[client_index] for client_index in order],
        node_ids_by_round=node_ids_by_round,
        notes=place_notes(lines, node_ids_by_round),
    )


def place_notes(lines: Sequence[Line], node_ids_by_round: Sequence[Sequence[int]]) -> PlacedNotes:
    """Return every note with its group; a note is about the groups as they were before it.

    Args:
        lines: The completed rounds.
        node_ids_by_round: Per round, the ids of its groups in their order.
    """
    placed_notes = []
    node_before: dict[ClientId, int] = {}
    for line, round_node_ids in zip(lines, node_ids_by_round, strict=True):
        node_after = _node_of_client(line, round_node_ids)
        # A client that arrives in this round was in no group before it.
        node_of_client = {**node_after, **node_before}
        for note in line["notes"]:
            node = majority_node(note["clients"], node_of_client)
            placed_notes.append(PlacedNote(line["round"], node, note))
        node_before = node_after
    return placed_notes


def _node_of_client(line: Line, round_node_ids: Sequence[int]) -> dict[ClientId, int]:
    """Return client -> id of its group in a round.

    Args:
        line: The record of the round.
        round_node_ids: The ids of its groups in their order.
    """
    node_of_client: dict[ClientId, int] = {}
    for node, members in zip(round_node_ids, line["groups"], strict=True):
        node_of_client.update(dict.fromkeys(members, node))
    return node_of_client


def majority_node(clients: Sequence[ClientId], node_of_client: Mapping[ClientId, int]) -> int:
    """Return the group that contains more than half of these clients, who are more than half of its members, or -1.

    Args:
        clients: The clients.
        node_of_client: Client -> its group.
    """
    clients_in_node = Counter(
        node_of_client[client] for client in clients if client in node_of_client
    )
    if not clients_in_node:
        return -1
    node, num_common = clients_in_node.most_common(1)[0]
    node_size = sum(other_node == node for other_node in node_of_client.values())
    return node if 2 * num_common > max(len(clients), node_size) else -1


# ----------------------------------------------------------------------------------------------------
# Groups followed over the rounds of a run: first and last round, parent groups and reason of each.
#
# :mod:`coterie.report.terminal` draws the same as a tree of splits. Here a group that keeps most of
# its members remains the same group, so methods that make new groups in every round can be followed
# too.


def makes_groups(note: Mapping[str, Any]) -> bool:
    """Whether a note can explain a new group of several clients."""
    return note["effect"] in ("divides", "regroups", "merges", "moves") or bool(note["parts"])


def examines_groups(note: Mapping[str, Any]) -> bool:
    """Whether a note is about the groups of the clients, whether they changed or not."""
    is_about_models = note["effect"] in ("info", "limits", "serves")
    return not is_about_models or bool(note["criteria"]) or bool(note["parts"])


MAX_GROUPS_BY_TREE = 40
"""Up to this many groups are ordered by the tree of groups."""


WAIT_NOTE: Mapping[str, Any] = {
    "kind": "wait",
    "effect": "waits",
    "text": "in none of the parts; placed after its next answer",
    "numbers": {},
}
"""The reason for clients that did not answer when their group was divided."""


@dataclass
class TreeNode:
    """A group that exists after each round from ``first`` to ``last``.

    Attributes:
        id: Its id.
        first: Its first round.
        last: Its last round.
        clients: Its members in its last round.
        parents: The groups that its members came from, the one with the most of them first; empty
            for the first groups.
        kind: The kind of the note that created it, or empty.
        why: The text of that note.
        numbers: The numbers of that note.
    """

    id: int
    first: int
    last: int
    clients: tuple[ClientId, ...]
    parents: tuple[int, ...] = ()
    kind: str = ""
    why: str = ""
    numbers: Mapping[str, float | None] | None = None


def follow(lines: Sequence[Line]) -> tuple[list[TreeNode], list[list[int]]]:
    """Follow the groups of a run over the rounds.

    A group remains the same in the next round if one new group contains more than half of its
    members, and these are more than half of the new group's members that were present before. It
    does not if a note records that it was divided.

    Args:
        lines: The completed rounds.

    Returns:
        The groups by id, and per round the ids of ``line["groups"]`` in their order.
    """
    nodes: list[TreeNode] = []
    node_ids_by_round: list[list[int]] = []
    node_before: dict[ClientId, int] = {}  # client -> its node in the round before
    for line in lines:
        notes = line["notes"]
        sizes_before = Counter(node_before.values())
        # 1. The groups that notes of this round divided do not go on, whoever stays together.
        divided_nodes = set()
        for note in notes:
            if len(note["parts"]) > 1:
                divided_nodes.add(_node_with(note["clients"], node_before, sizes_before))
        # 2. Each group of this round continues a group or is a new one.
        # The first groups have no reason.
        reasons = Reasons(notes) if node_before else None
        round_node_ids = []
        for group in line["groups"]:
            # The groups that its clients come from; new clients come from none.
            sources = Counter(node_before[client] for client in group if client in node_before)
            source = _continued_node(sources, sizes_before)
            if source is not None and source not in divided_nodes:
                node = nodes[source]
                node.last = line["round"]
                node.clients = tuple(group)
            else:
                node = _new_node(len(nodes), line["round"], group, sources, reasons)
                nodes.append(node)
            round_node_ids.append(node.id)
        node_ids_by_round.append(round_node_ids)
        node_before = _node_of_client(line, round_node_ids)
    return nodes, node_ids_by_round


def _continued_node(sources: Counter[int], sizes_before: Mapping[int, int]) -> int | None:
    """Return the node that goes on as a new group, or None: their common clients are more than half of each.

    Args:
        sources: Node -> how many of its members are in the new group.
        sizes_before: Node -> number of its members before.
    """
    if not sources:
        return None
    source, num_common = sources.most_common(1)[0]
    return source if 2 * num_common > max(sizes_before[source], sources.total()) else None


def _node_with(
    clients: Sequence[ClientId],
    node_before: Mapping[ClientId, int],
    sizes_before: Mapping[int, int],
) -> int | None:
    """Return the node with exactly these clients, apart from those that were not present."""
    present = [client for client in clients if client in node_before]
    nodes = {node_before[client] for client in present}
    if len(nodes) != 1:
        return None
    node = nodes.pop()
    return node if sizes_before[node] == len(present) else None


class Reasons:
    """The notes of a round, to find the one that explains a new group.

    Args:
        notes: The notes of the round.
    """

    def __init__(self, notes: Sequence[Mapping[str, Any]]) -> None:
        self.notes = [note for note in notes if makes_groups(note) or len(note["clients"]) == 1]
        self.clients_of_notes = [frozenset(note["clients"]) for note in self.notes]
        self.parts: list[tuple[Mapping[str, Any], int]] = []  # (note, size) of each part
        self.parts_with_client: dict[ClientId, list[int]] = {}
        for note in notes:
            for part in note["parts"]:
                for client in part:
                    self.parts_with_client.setdefault(client, []).append(len(self.parts))
                self.parts.append((note, len(part)))

    def why(self, group: Sequence[ClientId]) -> Mapping[str, Any] | None:
        """Return the note that explains a group.

        Args:
            group: The clients of the group.

        Returns:
            The note that has most of this group as a part, else one about all of its clients, else
            None. If the latter note divided its clients, :data:`WAIT_NOTE` replaces it.
        """
        # 1. A part of a note that is in the group as a whole, and is most of it.
        clients_in_part: Counter[int] = Counter()
        for client in group:
            clients_in_part.update(self.parts_with_client.get(client, ()))
        for part_index, num_clients in sorted(clients_in_part.items()):
            note, part_size = self.parts[part_index]
            if num_clients == part_size and 2 * part_size > len(group):
                return note
        # 2. A note about all clients of the group.
        members = frozenset(group)
        for note, clients in zip(self.notes, self.clients_of_notes, strict=True):
            if members <= clients:
                return WAIT_NOTE if len(note["parts"]) > 1 else note
        return None


def _new_node(
    node_id: int,
    first_round: int,
    group: Sequence[ClientId],
    sources: Counter[int],
    reasons: Reasons | None,
) -> TreeNode:
    """Return a node that begins with a group.

    Args:
        node_id: The id of the node.
        first_round: Its first round.
        group: Its clients.
        sources: Node -> how many of the clients came from it.
        reasons: What can explain it; None for the first groups.
    """
    parents = tuple(source for source, _ in sources.most_common())
    node = TreeNode(node_id, first_round, first_round, tuple(group), parents)
    note = reasons.why(group) if reasons else None
    if note is not None:
        node.kind = note["kind"]
        node.why = note["text"]
        node.numbers = note["numbers"]
    return node


def memberships(
    lines: Sequence[Line], node_ids_by_round: Sequence[Sequence[int]], clients: Sequence[ClientId]
) -> list[list[int]]:
    """Return, per client, the id of its node in each round, or -1 if it was not present.

    Args:
        lines: The completed rounds.
        node_ids_by_round: Per round, the ids of its groups in their order.
        clients: The client ids.
    """
    members = [[-1] * len(lines) for _ in clients]
    row_of_client = {client: client_index for client_index, client in enumerate(clients)}
    for column, (line, round_node_ids) in enumerate(zip(lines, node_ids_by_round, strict=True)):
        # A client that is in no group in this round keeps its -1.
        for client, node in _node_of_client(line, round_node_ids).items():
            members[row_of_client[client]][column] = node
    return members


def ordered(
    clients: Sequence[ClientId],
    members: Sequence[Sequence[int]],
    nodes: Sequence[TreeNode],
    truth: Mapping[ClientId, int] | None = None,
) -> list[int]:
    """Return the positions of clients in an order that puts the members of each present group side by side.

    The present groups follow the tree of groups. If there are more than :data:`MAX_GROUPS_BY_TREE`, those with the
    same true group are side by side, the largest first. In a group, clients of one true group are
    side by side.

    Args:
        clients: The client ids.
        members: Per client, the id of its node in each round, or -1.
        nodes: The groups, by id.
        truth: client -> number of its true group.

    Returns:
        Positions in ``clients``.
    """
    truth = truth or {}
    last_nodes = [nodes_of_client[-1] for nodes_of_client in members]
    node_sizes = Counter(last_nodes)
    # How many clients of each true group are in each present group.
    sizes_of_truths: dict[int, Counter[int]] = {}
    for client, node in zip(clients, last_nodes, strict=True):
        sizes_of_truths.setdefault(node, Counter())[truth.get(client, -1)] += 1
    # Where each present group is, as a tuple to sort by.
    place_of_node: dict[int, tuple[int, ...]] = {}
    for node in node_sizes:
        if len(node_sizes) > MAX_GROUPS_BY_TREE:
            main_truth = sizes_of_truths[node].most_common(1)[0][0]
            place_of_node[node] = (main_truth, -node_sizes[node], node)
        else:
            place_of_node[node] = _chain(node, nodes)

    def place(client_index: int) -> tuple[Any, ...]:
        return (
            place_of_node[last_nodes[client_index]],
            truth.get(clients[client_index], -1),
            clients[client_index],
        )

    return sorted(range(len(clients)), key=place)


def _chain(node: int, nodes: Sequence[TreeNode]) -> tuple[int, ...]:
    """Return the groups from the first one down to this one, each the parent that gave the most members."""
    # Node -1 stands for clients in no group, and has no parents.
    chain = [node]
    while chain[-1] >= 0 and nodes[chain[-1]].parents:
        chain.append(nodes[chain[-1]].parents[0])
    return tuple(reversed(chain))
