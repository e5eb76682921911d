"""CFL's groups of now: the leaves of its parameter tree, how they split, grow and go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core import Assignment, Client, Note, Replies, as_groups, state, without
from coterie.methods import walking
from coterie.tree import Tree

S = TypeVar("S")


@state("cfl.leaf")
class Leaf:
    """A group of now. node: its place in the tree. model ``(d,)``. peak: the greatest norm of a client's update so far, on
    the path from the root. ask_all: hear everyone next time. gradients: ask for gradients next time. held: for how
    many rounds in a row it was about to split. losses: each client's validation loss of the model it was last offered."""

    node: int
    clients: tuple[Client, ...]
    model: Tensor
    peak: float = 0.0
    ask_all: bool = False
    gradients: bool = False
    held: int = 0
    losses: Mapping[Client, float] = field(default_factory=dict)


@state("cfl")
class CFLState:
    """round: completed. leaves: the groups, by their places in the tree; one that all clients have left is kept for those
    who come back. walkers: client -> the inner node where it stands, on its way to a leaf. notes: of the last exchange."""

    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def ordered(leaves: Iterable[Leaf]) -> tuple[Leaf, ...]:
    return tuple(sorted(leaves, key=lambda leaf: (not leaf.clients, leaf.clients, leaf.node)))


def stays(leaf: Leaf, mean: Tensor, verdict: str) -> Leaf:
    """A leaf that does not split: its model moved, and what to ask of it next."""
    return replace(
        leaf, model=leaf.model + mean, ask_all=verdict in ("ask", "hold"), gradients=verdict == "gradients",
        held=leaf.held + 1 if verdict == "hold" else 0,
    )  # fmt: skip


def split(
    tree: Tree, leaf: Leaf, means: Mapping[tuple[Client, ...], Tensor], replies: Replies, round: int
) -> tuple[Tree, list[Leaf]]:
    """The tree with a split leaf, and its children: part -> what it adds to the leaf's model. Peaks are inherited.

    Members that were silent are in no part: they stand at the split node, and walk from there.
    """
    tree, ids = tree.split(leaf.node, tuple(means), leaf.model, leaf.losses, replies, round)
    children = [
        replace(leaf, node=id, clients=part, model=leaf.model + mean, ask_all=False, gradients=False, held=0, losses={})
        for id, (part, mean) in zip(ids, means.items(), strict=True)
    ]
    return tree, children


def placed(note: Note, leaf: Leaf, children: Iterable[Leaf]) -> Note:
    """The note of a split, with the numbers of the nodes in the tree: that which was split, and its first part's; the other
    parts' follow."""
    return replace(note, numbers={**note.numbers, "node": float(leaf.node), "first_part": float(min(c.node for c in children))})


def join(leaves: Iterable[Leaf], arrived: Mapping[Client, int]) -> list[Leaf]:
    """The leaves with newcomers in them: client -> the leaf's node."""
    new: dict[int, list[Client]] = {}
    for client, node in arrived.items():
        new.setdefault(node, []).append(client)
    return [
        replace(leaf, clients=tuple(sorted((*leaf.clients, *new[leaf.node])))) if leaf.node in new else leaf
        for leaf in leaves
    ]


def served(state: Any, best: Mapping[Client, int] = MappingProxyType({}), ensemble: bool = False) -> Assignment:
    """Who is served by which model of a state with ``leaves``, a ``tree`` and ``walkers``: a member by its leaf's, a walker by
    that of the node where it stands. best: client -> node whose model serves it in their place."""
    inner = [(node.id, node.model) for node in state.tree.nodes if node.model is not None]
    place = {leaf.node: i for i, leaf in enumerate(state.leaves)}
    place |= {id: len(state.leaves) + i for i, (id, _) in enumerate(inner)}
    at = {client: leaf.node for leaf in state.leaves for client in leaf.clients} | dict(state.walkers)
    return Assignment(
        models=torch.stack([*(leaf.model for leaf in state.leaves), *(model for _, model in inner)]),
        row={client: place[id] for client, id in sorted({**at, **best}.items())},
        groups=as_groups([*(leaf.clients for leaf in state.leaves if leaf.clients), *walking.waiting(state.walkers)]),
        path={client: tuple(place[node.id] for node in state.tree.path(id)) for client, id in at.items()},
        ensemble=ensemble,
    )


def admitted(state: S, clients: tuple[Client, ...]) -> S:
    """The same with newcomers, and those who come back, at the root; where it is a leaf yet, they are members at once."""
    known: Any = state
    tree = known.tree
    for client in clients:
        tree = tree.place(client, 0)
    new = dict.fromkeys(clients, 0)
    if tree.is_leaf(0):
        return replace(known, tree=tree, leaves=ordered(join(known.leaves, new)))
    return replace(known, tree=tree, walkers={**known.walkers, **new})


def retired(state: S, clients: tuple[Client, ...]) -> S:
    """The same without these clients."""
    known: Any = state
    gone = set(clients)
    leaves = [replace(leaf, clients=without(leaf.clients, gone)) for leaf in known.leaves]
    walkers = {client: id for client, id in known.walkers.items() if client not in gone}
    made = replace(known, leaves=ordered(leaves), tree=known.tree.remove(clients), walkers=walkers)
    return made


def best_on_path(state: CFLState) -> Iterator[tuple[Client, int]]:
    """(client, node) of each client that an ancestor's model served better than the model it was last offered, by its
    validation losses.

    The losses come with the replies; a leaf's is of the model it had one round ago.
    """
    for leaf in state.leaves:
        for client in leaf.clients:
            past = [(n.losses[client], n.id) for n in state.tree.path(leaf.node)[:-1] if client in n.losses]
            if past and client in leaf.losses and min(past)[0] < leaf.losses[client]:
                yield client, min(past)[1]
    for client, at in state.walkers.items():
        past = [(n.losses[client], n.id) for n in state.tree.path(at) if client in n.losses]
        if past:
            yield client, min(past)[1]
