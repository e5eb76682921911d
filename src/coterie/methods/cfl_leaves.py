"""CFL's groups of now: the leaves of its parameter tree, how they split, grow and go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from torch import Tensor

from coterie.core import Client, Note, Replies, state
from coterie.tree import Tree


@state
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


@state
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


def join(leaves: Iterable[Leaf], arrived: Mapping[Client, int]) -> list[Leaf]:
    """The leaves with newcomers in them: client -> the leaf's node."""
    new: dict[int, list[Client]] = {}
    for client, node in arrived.items():
        new.setdefault(node, []).append(client)
    return [
        replace(leaf, clients=tuple(sorted((*leaf.clients, *new[leaf.node])))) if leaf.node in new else leaf
        for leaf in leaves
    ]


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
