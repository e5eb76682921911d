"""A run read for showing: its records, its groups followed over the rounds, its clients in an order that keeps groups together.

What a page and printed figures both start from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.record import Line, Record
from coterie.report.nodes import Node, follow, memberships, ordered
from coterie.settings import UserError

Told = Sequence[tuple[int, int, Mapping[str, Any]]]
"""(round, node, note) of each note of a run; the node is the group it was about, -1 where it was about none."""


@dataclass(frozen=True)
class Gathered:
    """description: ``run.toml``. lines: the rounds. nodes: groups by id. clients: ids, in the order of
    :func:`~coterie.report.nodes.ordered`. members: per client, in this order, the id of its node in each round, or -1.
    places: per round, the ids of its groups in their order. told: the notes."""

    folder: Path
    description: Mapping[str, Any]
    lines: Sequence[Line]
    nodes: Sequence[Node]
    clients: Sequence[int]
    members: Sequence[Sequence[int]]
    places: Sequence[Sequence[int]]
    told: Told

    @property
    def facts(self) -> Mapping[str, Any]:
        """The world's table of ``run.toml``."""
        facts: Mapping[str, Any] = self.description["world"]
        return facts

    @property
    def truth(self) -> dict[int, int]:
        """client -> number of its true group, where these are known."""
        return true_groups(self.facts)


def true_groups(facts: Mapping[str, Any]) -> dict[int, int]:
    return {client: i for i, group in enumerate(facts.get("true_groups") or ()) for client in group}


def gather(folder: Path) -> Gathered:
    """Read the run in ``folder``. Raises :class:`~coterie.settings.UserError` if there is none, or no completed round."""
    record = Record(folder)
    description, lines = record.description(), record.lines()
    if not lines:
        raise UserError(f"{folder} has no completed round yet")
    return gathered(folder, description, lines)


def gathered(folder: Path, description: Mapping[str, Any], lines: Sequence[Line]) -> Gathered:
    """:func:`gather` of a run whose records have been read."""
    nodes, places = follow(lines)
    known = sorted({client for line in lines for group in line["groups"] for client in group})
    members = memberships(lines, places, known)
    order = ordered(known, members, nodes, true_groups(description["world"]))
    return Gathered(
        folder, description, lines, nodes, [known[i] for i in order], [members[i] for i in order], places,
        notes(lines, places),
    )  # fmt: skip


def notes(lines: Sequence[Line], places: Sequence[Sequence[int]]) -> Told:
    """Every note; one is about groups as they were before it."""
    out = []
    before: dict[int, int] = {}
    for line, row in zip(lines, places, strict=True):
        now = {client: id for id, group in zip(row, line["groups"], strict=True) for client in group}
        out += [(line["round"], mostly(note["clients"], {**now, **before}), note) for note in line["notes"]]
        before = now
    return out


def mostly(clients: Sequence[int], at: Mapping[int, int]) -> int:
    """The group that has more than half of these clients, and they are more than half of it; -1 where none is."""
    inside = Counter(at[client] for client in clients if client in at)
    id, count = inside.most_common(1)[0] if inside else (-1, 0)
    return id if 2 * count > max(len(clients), sum(other == id for other in at.values())) else -1
