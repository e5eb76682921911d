"""Groups followed through the rounds of a run: from when to when each was there, what it came from, and why.

:mod:`coterie.report.history` draws the same as a tree of who was together until when; here a group that keeps most of its
members stays itself, so that methods which make their groups anew in every round can be followed too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.record import Line

KEEPS = ("keep", "hold", "ask", "gradients", "join", "wait", "walk", "leave", "node")
"""Notes of these kinds tell of no new group, but for that of a newcomer on its own."""


@dataclass
class Node:
    """A group from the round ``first``, after which it was there, to the round ``last``.

    parents: the groups that its members came from, who gave most of them first; none of the first groups. clients: its
    members in its last round. kind, why, numbers: the note that it came with, if there was one.
    """

    id: int
    first: int
    last: int
    clients: tuple[int, ...]
    parents: tuple[int, ...] = ()
    kind: str = ""
    why: str = ""
    numbers: Mapping[str, float | None] | None = None


def follow(lines: Sequence[Line]) -> tuple[list[Node], list[list[int]]]:
    """The groups of a run by id, and per round the ids of ``line["groups"]`` in their order.

    A group goes on where it has more than half of the members of a group of the round before, who are more than half of its
    own members that were there, unless a note says that this group was divided.
    """
    nodes: list[Node] = []
    places: list[list[int]] = []
    before: dict[int, int] = {}  # client -> id of its node in the round before
    for line in lines:
        notes = line["notes"]
        sizes = Counter(before.values())
        divided = {_node_of(note["clients"], before, sizes) for note in notes if len(note["parts"]) > 1}
        row = []
        for group in line["groups"]:
            came = Counter(before[client] for client in group if client in before)
            source, count = came.most_common(1)[0] if came else (None, 0)
            goes_on = source is not None and source not in divided and 2 * count > max(sizes[source], came.total())
            if source is not None and goes_on:
                node = nodes[source]
                node.last, node.clients = line["round"], tuple(group)
            else:
                node = _new(len(nodes), line["round"], group, came, notes if before else ())
                nodes.append(node)
            row.append(node.id)
        places.append(row)
        before = {client: id for id, group in zip(row, line["groups"], strict=True) for client in group}
    return nodes, places


def _node_of(clients: Sequence[int], before: Mapping[int, int], sizes: Mapping[int, int]) -> int | None:
    """The node that has just these clients; some of them may not have been there."""
    ids = {before[client] for client in clients if client in before}
    here = sum(client in before for client in clients)
    return ids.pop() if len(ids) == 1 and sizes[next(iter(ids))] == here else None


def _new(id: int, round: int, group: Sequence[int], came: Counter[int], notes: Sequence[Mapping[str, Any]]) -> Node:
    note = _reason(group, notes)
    parents = tuple(source for source, _ in came.most_common())
    if note is None:
        return Node(id, round, round, tuple(group), parents)
    return Node(id, round, round, tuple(group), parents, note["kind"], note["text"], note["numbers"])


def _reason(group: Sequence[int], notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The note that this group came with: one that has it as a part, else one about all of its clients."""
    for note in notes:
        if any(set(part) <= set(group) and 2 * len(part) > len(group) for part in note["parts"]):
            return note
    about = [note for note in notes if note["kind"] not in KEEPS or list(note["clients"]) == list(group)]
    return next((note for note in about if set(group) <= set(note["clients"])), None)


def memberships(lines: Sequence[Line], places: Sequence[Sequence[int]], clients: Sequence[int]) -> list[list[int]]:
    """Per client, the id of its node in each round; -1 where it was not there."""
    out = [[-1] * len(lines) for _ in clients]
    at = {client: i for i, client in enumerate(clients)}
    for column, (line, row) in enumerate(zip(lines, places, strict=True)):
        for id, group in zip(row, line["groups"], strict=True):
            for client in group:
                out[at[client]][column] = id
    return out


def ordered(clients: Sequence[int], members: Sequence[Sequence[int]]) -> list[int]:
    """The positions of clients such that those who are together now are side by side, and among them those who were
    together longest."""
    return sorted(range(len(clients)), key=lambda i: ([-1 if id < 0 else id for id in reversed(members[i])], clients[i]))
