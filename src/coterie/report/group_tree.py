"""The history of a run's groups: the tree of groups and their splits, computed from the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.records.shown import ClientId, Line
from coterie.report.gathered import examines_groups
from coterie.report.words import readable

Members = tuple[ClientId, ...]


@dataclass
class Group:
    """A group at one time, and its split, if it was divided later.

    Attributes:
        clients: The ids of its members.
        round: The round in which it was divided, or None.
        why: The reason, in the words of the note.
        parts: The groups that it was divided into.
    """

    clients: Members
    round: int | None = None
    why: str = ""
    parts: list[Group] = field(default_factory=list)

    def leaves(self) -> list[Group]:
        """Return the groups at the leaves of the tree below this group."""
        if not self.parts:
            return [self]
        leaves = []
        for part in self.parts:
            leaves += part.leaves()
        return leaves


def history(lines: Sequence[Line]) -> Group:
    """Return the tree of groups whose leaves are the groups of the last round, built from the notes of each round.

    If the notes do not lead to these groups, they are placed directly below a group of all clients.

    Args:
        lines: The completed rounds.

    Returns:
        The root of the tree.
    """
    root = Group(clients=_all_clients(lines[0]))
    for line in lines:
        # 1. The splits and mergers of this round.
        for note in line["notes"]:
            parts = sorted(map(tuple, note["parts"]))
            is_about_all = root.clients == tuple(note["clients"])
            if parts:
                clients = tuple(sorted(note["clients"]))
                _divide(root, clients, parts, line["round"], readable(note["text"]))
            elif is_about_all and not root.parts and examines_groups(note):
                root.why = readable(note["text"])
        # 2. Clients that came, left or moved.
        _follow(root, list(map(tuple, line["groups"])))
    last_line = lines[-1]
    last_groups = sorted(map(tuple, last_line["groups"]))
    if _leaf_members(root) == last_groups:
        return root
    return Group(
        clients=_all_clients(last_line),
        round=last_line["round"],
        parts=list(map(Group, last_groups)),
    )


def _all_clients(line: Line) -> Members:
    """Return the clients of all groups of a round, sorted."""
    clients: list[ClientId] = []
    for group in line["groups"]:
        clients += group
    return tuple(sorted(clients))


def _leaf_members(root: Group) -> list[Members]:
    """Return the members of each leaf of a tree, sorted."""
    return sorted(leaf.clients for leaf in root.leaves())


def _divide(group: Group, clients: Members, parts: list[Members], round: int, why: str) -> None:
    """Add ``parts`` below the group whose members are exactly ``clients``."""
    if group.clients != clients:
        for part in group.parts:
            _divide(part, clients, parts, round, why)
        return
    if len(parts) == 1:
        # All groups below were merged.
        group.parts = []
        group.round = None
        group.why = why
    elif sorted(part.clients for part in group.parts) != parts:
        # A note with the present parts only confirms them.
        group.parts = list(map(Group, parts))
        group.round = round
        group.why = why


def _follow(root: Group, groups: Sequence[Members]) -> None:
    """Set the leaves to ``groups`` if clients only came, left or moved; groups of new clients are added below the root."""
    if _leaf_members(root) == sorted(groups):
        return
    # Each group continues the leaf with which it shares most clients, if no other group does.
    leaves = root.leaves()
    continued_leaves = [_leaf_with_most(leaves, group) for group in groups]
    indices = [index for index in continued_leaves if index is not None]
    if len(set(indices)) < len(indices):
        return
    # A leaf that no group continues becomes empty, and is removed at the end.
    for leaf in leaves:
        leaf.clients = ()
    for group, index in zip(groups, continued_leaves, strict=True):
        if index is not None:
            leaves[index].clients = group
        elif root.parts:
            root.parts.append(Group(clients=group))
    _set_members_from_parts(root)


def _leaf_with_most(leaves: Sequence[Group], group: Members) -> int | None:
    """Return the index of the leaf that shares most clients with a group; None if none shares any."""
    num_shared = [len(set(leaf.clients) & set(group)) for leaf in leaves]
    return num_shared.index(max(num_shared)) if max(num_shared) else None


def _set_members_from_parts(group: Group) -> None:
    """Set the members of an inner group to those of its parts, and remove empty parts."""
    if not group.parts:
        return
    for part in group.parts:
        _set_members_from_parts(part)
    group.parts = [part for part in group.parts if part.clients]
    clients: list[ClientId] = []
    for part in group.parts:
        clients += part.clients
    group.clients = tuple(sorted(clients))
