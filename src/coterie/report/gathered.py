"""A run prepared for display: its records, its groups followed over the rounds, and its clients ordered by group.

Pages and printed figures both start from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.records.record import Line, Record
from coterie.records.shown import ClientId
from coterie.settings import UserError

PlacedNotes = Sequence[tuple[int, int, Mapping[str, Any]]]
"""(round, node, note) of each note of a run; node is the group that the note is about, or -1."""


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
        places: Per round, the ids of its groups in their order.
        notes: The notes.
    """

    folder: Path
    description: Mapping[str, Any]
    lines: Sequence[Line]
    nodes: Sequence[TreeNode]
    clients: Sequence[ClientId]
    members: Sequence[Sequence[int]]
    places: Sequence[Sequence[int]]
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


def true_groups(facts: Mapping[str, Any]) -> dict[ClientId, int]:
    """Return client -> number of its true group, from the world's table of ``run.toml``; empty if not known."""
    return {client: i for i, group in enumerate(facts.get("true_groups") or ()) for client in group}


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
    nodes, places = follow(lines)
    known = sorted({client for line in lines for group in line["groups"] for client in group})
    members = memberships(lines, places, known)
    order = ordered(known, members, nodes, true_groups(description["world"]))
    return Gathered(
        folder,
        description,
        lines,
        nodes,
        [known[i] for i in order],
        [members[i] for i in order],
        places,
        notes(lines, places),
    )


def notes(lines: Sequence[Line], places: Sequence[Sequence[int]]) -> PlacedNotes:
    """Return every note with its group; a note is about the groups as they were before it.

    Args:
        lines: The completed rounds.
        places: Per round, the ids of its groups in their order.
    """
    out = []
    before: dict[ClientId, int] = {}
    for line, row in zip(lines, places, strict=True):
        now = {
            client: id for id, group in zip(row, line["groups"], strict=True) for client in group
        }
        out += [
            (line["round"], mostly(note["clients"], {**now, **before}), note)
            for note in line["notes"]
        ]
        before = now
    return out


def mostly(clients: Sequence[ClientId], at: Mapping[ClientId, int]) -> int:
    """Return the group that contains more than half of these clients and consists of them by more than half, or -1.

    Args:
        clients: The clients.
        at: client -> its group.
    """
    inside = Counter(at[client] for client in clients if client in at)
    id, count = inside.most_common(1)[0] if inside else (-1, 0)
    return id if 2 * count > max(len(clients), sum(other == id for other in at.values())) else -1


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
    models_alone = note["effect"] in ("info", "limits", "serves")
    return not models_alone or bool(note["criteria"]) or bool(note["parts"])


FEW = 40
"""Up to this many groups are ordered by the tree of groups."""


WAITS: Mapping[str, Any] = {
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
    places: list[list[int]] = []
    before: dict[ClientId, int] = {}  # client -> id of its node in the round before
    for line in lines:
        notes = line["notes"]
        sizes = Counter(before.values())
        divided = {
            _node_of(note["clients"], before, sizes) for note in notes if len(note["parts"]) > 1
        }
        reasons = Reasons(notes) if before else None  # the first groups have no reason
        row = []
        for group in line["groups"]:
            came = Counter(before[client] for client in group if client in before)
            source, count = came.most_common(1)[0] if came else (None, 0)
            goes_on = (
                source is not None
                and source not in divided
                and 2 * count > max(sizes[source], came.total())
            )
            if source is not None and goes_on:
                node = nodes[source]
                node.last, node.clients = line["round"], tuple(group)
            else:
                node = _new(len(nodes), line["round"], group, came, reasons)
                nodes.append(node)
            row.append(node.id)
        places.append(row)
        before = {
            client: id for id, group in zip(row, line["groups"], strict=True) for client in group
        }
    return nodes, places


def _node_of(
    clients: Sequence[ClientId], before: Mapping[ClientId, int], sizes: Mapping[int, int]
) -> int | None:
    """Return the node with exactly these clients, apart from those that were not present."""
    ids = {before[client] for client in clients if client in before}
    here = sum(client in before for client in clients)
    return ids.pop() if len(ids) == 1 and sizes[next(iter(ids))] == here else None


class Reasons:
    """The notes of a round, to find the one that explains a new group.

    Args:
        notes: The notes of the round.
    """

    def __init__(self, notes: Sequence[Mapping[str, Any]]) -> None:
        self.notes = [note for note in notes if makes_groups(note) or len(note["clients"]) == 1]
        self.about = [frozenset(note["clients"]) for note in self.notes]
        parts = [(note, part) for note in notes for part in note["parts"]]
        self.parts = [(note, len(part)) for note, part in parts]
        self.of: dict[ClientId, list[int]] = {}
        for i, (_, part) in enumerate(parts):
            for client in part:
                self.of.setdefault(client, []).append(i)

    def why(self, group: Sequence[ClientId]) -> Mapping[str, Any] | None:
        """Return the note that explains a group.

        Args:
            group: The clients of the group.

        Returns:
            The note that has most of this group as a part, else one about all of its clients, else
            None. If the latter note divided its clients, :data:`WAITS` replaces it.
        """
        inside = Counter(i for client in group for i in self.of.get(client, ()))
        for i, count in sorted(inside.items()):
            note, size = self.parts[i]
            if count == size and 2 * size > len(group):
                return note
        members = frozenset(group)
        about = next((i for i, clients in enumerate(self.about) if members <= clients), None)
        if about is None:
            return None
        return WAITS if len(self.notes[about]["parts"]) > 1 else self.notes[about]


def _new(
    id: int, round: int, group: Sequence[ClientId], came: Counter[int], reasons: Reasons | None
) -> TreeNode:
    note = reasons.why(group) if reasons else None
    parents = tuple(source for source, _ in came.most_common())
    if note is None:
        return TreeNode(id, round, round, tuple(group), parents)
    return TreeNode(
        id, round, round, tuple(group), parents, note["kind"], note["text"], note["numbers"]
    )


def memberships(
    lines: Sequence[Line], places: Sequence[Sequence[int]], clients: Sequence[ClientId]
) -> list[list[int]]:
    """Return, per client, the id of its node in each round, or -1 if it was not present.

    Args:
        lines: The completed rounds.
        places: Per round, the ids of its groups in their order.
        clients: The client ids.
    """
    out = [[-1] * len(lines) for _ in clients]
    at = {client: i for i, client in enumerate(clients)}
    for column, (line, row) in enumerate(zip(lines, places, strict=True)):
        for id, group in zip(row, line["groups"], strict=True):
            for client in group:
                out[at[client]][column] = id
    return out


def ordered(
    clients: Sequence[ClientId],
    members: Sequence[Sequence[int]],
    nodes: Sequence[TreeNode],
    truth: Mapping[ClientId, int] | None = None,
) -> list[int]:
    """Return the positions of clients in an order that puts the members of each present group side by side.

    The present groups follow the tree of groups. If there are more than :data:`FEW`, those with the
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
    last = [row[-1] for row in members]
    sizes = Counter(last)
    most: dict[int, Counter[int]] = {}
    for client, node in zip(clients, last, strict=True):
        most.setdefault(node, Counter())[truth.get(client, -1)] += 1
    key: dict[int, tuple[Any, ...]] = {
        node: (most[node].most_common(1)[0][0], -sizes[node], node)
        if len(sizes) > FEW
        else _chain(node, nodes)
        for node in sizes
    }
    return sorted(
        range(len(clients)), key=lambda i: (key[last[i]], truth.get(clients[i], -1), clients[i])
    )


def _chain(node: int, nodes: Sequence[TreeNode]) -> tuple[int, ...]:
    """Return the groups from the first one down to this one, each the parent that gave the most members."""
    chain = [node]
    while chain[-1] >= 0 and nodes[chain[-1]].parents:
        chain.append(nodes[chain[-1]].parents[0])
    return tuple(reversed(chain))
