"""What became of the groups of a run: from its records, the tree of who was together until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.record import Line

Members = tuple[int, ...]


@dataclass
class Group:
    """A group as it once was: its members, and what became of it (when, why, which parts), if anything did."""

    clients: Members
    round: int | None = None
    why: str = ""
    parts: list[Group] = field(default_factory=list)

    def leaves(self) -> list[Group]:
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


def history(lines: Sequence[Line]) -> Group:
    """The groups of the last round as the leaves of what was together before, by the notes of each round.

    Where the notes do not lead to these groups, they hang directly below all clients.
    """
    groups = sorted(tuple(group) for group in lines[-1]["groups"])
    root = Group(clients=tuple(sorted(c for group in lines[0]["groups"] for c in group)))
    for line in lines:
        for note in line["notes"]:
            parts = sorted(tuple(part) for part in note["parts"])
            if parts:
                _divide(root, tuple(sorted(note["clients"])), parts, line["round"], note["text"])
            elif root.clients == tuple(note["clients"]) and not root.parts:
                root.why = note["text"]
        _follow(root, [tuple(group) for group in line["groups"]])
    if sorted(leaf.clients for leaf in root.leaves()) != groups:
        everyone = tuple(sorted(c for group in groups for c in group))
        root = Group(clients=everyone, round=lines[-1]["round"], parts=[Group(clients=group) for group in groups])
    return root


def _follow(root: Group, groups: Sequence[Members]) -> None:
    """Let the leaves be ``groups``, where only clients came, went or moved; groups of newcomers hang below the root."""
    leaves, homes = root.leaves(), []
    for group in groups:
        shared = [len(set(leaf.clients) & set(group)) for leaf in leaves]
        homes.append(shared.index(max(shared)) if max(shared) else None)
    known = [home for home in homes if home is not None]
    if sorted(leaf.clients for leaf in leaves) == sorted(groups) or len(set(known)) < len(known):
        return
    for leaf in leaves:
        leaf.clients = ()
    for group, home in zip(groups, homes, strict=True):
        if home is not None:
            leaves[home].clients = group
        elif root.parts:
            root.parts.append(Group(clients=group))
    _gather(root)


def _gather(group: Group) -> None:
    """Members of an inner group are those of its parts; empty parts go."""
    if group.parts:
        for part in group.parts:
            _gather(part)
        group.parts = [part for part in group.parts if part.clients]
        group.clients = tuple(sorted(c for part in group.parts for c in part.clients))


def _divide(group: Group, clients: Members, parts: list[Members], round: int, why: str) -> None:
    """Hang ``parts`` below the group that has just these ``clients``."""
    if group.clients != clients:
        for part in group.parts:
            _divide(part, clients, parts, round, why)
    elif len(parts) == 1:
        group.parts, group.round, group.why = [], None, why
    elif sorted(part.clients for part in group.parts) != parts:  # made anew, not merely confirmed
        group.parts = [Group(clients=part) for part in parts]
        group.round, group.why = round, why
