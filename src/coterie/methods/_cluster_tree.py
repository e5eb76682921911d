"""The parameter tree: who was together, with which model, until when, and how newcomers find their place in it.

CFL, arXiv 1910.01991, section III-D and figure 4: "every node keeps its clients and its stationary solution", every edge
the updates that its clients sent just before the split. Algorithm 4 sends a newcomer from the root to a leaf: at each node
it trains from that node's model, and follows the edge that holds the update most like its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.clustering import closeness, sketch
from coterie.core import Assignment, Client, Groups, Note, Replies, Task, as_groups, state, without

Closeness = Callable[[Tensor, Tensor], Tensor]
"""(update ``(d,)``, stored updates ``(m, d)``) -> how close each is, ``(m,)``; greater is closer."""


@state("tree.node")
class Node:
    """A group of the tree; what is on its edge never changes.

    id: its place in ``Tree.nodes``. parent: the id it came from, or None at the root. clients: those who have come here
    and are still in the federation. model ``(d,)``: the model its clients were offered in the exchange that split it (θ*),
    None in a leaf. round: completed when it was split. losses: each member's validation loss of that model, where it was
    measured. heard, updates ``(m, p)``: on the edge into it, the parameters of these clients' updates from the parent's
    model, or their sketches.
    """

    id: int
    parent: int | None
    clients: tuple[Client, ...]
    model: Tensor | None = None
    round: int | None = None
    losses: Mapping[Client, float] = field(default_factory=dict)
    heard: tuple[Client, ...] = ()
    updates: Tensor | None = None


@state("tree")
class Tree:
    """Nodes by id; the root is node 0. parameters: how many columns of an update similarity sees (p). sketch: numbers
    kept of each update on an edge, None for all."""

    nodes: tuple[Node, ...]
    parameters: int | None = None
    sketch: int | None = None

    def split(
        self,
        id: int,
        parts: Iterable[tuple[Client, ...]],
        model: Tensor,
        losses: Mapping[Client, float] | None = None,
        replies: Replies | None = None,
        round: int | None = None,
    ) -> tuple[Tree, tuple[int, ...]]:
        """The tree in which node ``id`` has become ``parts``, and their ids.

        replies: of its clients, whose updates the edges keep. Clients in no part are at node ``id`` still, and may walk on.
        ValueError if a part is empty, or a client is in two of them or not of this node.
        """
        parent, parts = self.nodes[id], tuple(parts)
        if parent.model is not None:
            raise ValueError(f"node {id} is split already")
        members = [c for part in parts for c in part]
        if not all(parts) or len(set(members)) < len(members) or not set(members) <= set(parent.clients):
            raise ValueError(f"the parts of node {id} must be its clients, none empty and none twice")
        nodes = list(self.nodes)
        nodes[id] = replace(parent, model=model, round=round, losses=dict(losses or {}))
        for part in parts:
            heard, updates = self._edge(part, replies)
            nodes.append(Node(id=len(nodes), parent=id, clients=tuple(sorted(part)), heard=heard, updates=updates))
        return replace(self, nodes=tuple(nodes)), tuple(range(len(self.nodes), len(nodes)))

    def _edge(self, part: tuple[Client, ...], replies: Replies | None) -> tuple[tuple[Client, ...], Tensor | None]:
        own = replies.of(part) if replies is not None else None
        if own is None or not own.clients or own.updates is None:
            return (), None
        return own.clients, self.short(own.updates)

    def short(self, updates: Tensor) -> Tensor:
        """What is kept of updates ``(n, d)`` on an edge: a copy of their parameters ``(n, p)``, or sketches of these."""
        rows = updates[:, : self.parameters]
        made = sketch(rows, self.sketch) if self.sketch is not None else rows
        return made.clone() if made is rows else made

    def children(self, id: int) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.parent == id)

    def is_leaf(self, id: int) -> bool:
        return self.nodes[id].model is None

    def path(self, id: int) -> tuple[Node, ...]:
        """The nodes from the root down to ``id``."""
        nodes = [self.nodes[id]]
        while nodes[-1].parent is not None:
            nodes.append(self.nodes[nodes[-1].parent])
        return tuple(reversed(nodes))

    def nearest(self, id: int, update: Tensor, closeness: Closeness) -> tuple[int, dict[int, float]]:
        """Algorithm 4's step at node ``id``: the child whose edge holds the update closest to ``update`` ``(d,)``.

        Also, per child, how close its closest is. Of equals the last child is taken, as in the paper.
        """
        own = self.short(update[None])[0]
        close = {
            child.id: float(closeness(own, child.updates).max()) for child in self.children(id) if child.updates is not None
        }
        return max(close, key=lambda child: (close[child], child)), close

    def place(self, client: Client, id: int) -> Tree:
        """The tree in which ``client`` has come as far as node ``id``, and is nowhere else."""
        path = {node.id for node in self.path(id)}
        nodes = list(self.nodes)
        for node in nodes:
            if (client in node.clients) != (node.id in path):
                clients = {client, *node.clients} if node.id in path else set(node.clients) - {client}
                nodes[node.id] = replace(node, clients=tuple(sorted(clients)))
        return replace(self, nodes=tuple(nodes))

    def remove(self, clients: Iterable[Client]) -> Tree:
        """The tree without these clients; their updates stay on the edges."""
        gone = set(clients)
        return replace(
            self,
            nodes=tuple(replace(n, clients=without(n.clients, gone)) if gone & set(n.clients) else n for n in self.nodes),
        )

    def grow(self, id: int, client: Client, update: Tensor) -> tuple[Tree, int]:
        """The tree in which ``client``, alone, is a further child of node ``id``, and the child's id."""
        child = Node(id=len(self.nodes), parent=id, clients=(), heard=(client,), updates=self.short(update[None]))
        return replace(self, nodes=(*self.nodes, child)).place(client, child.id), child.id


def root(clients: tuple[Client, ...], parameters: int | None = None, sketch: int | None = None) -> Tree:
    """A tree of one node."""
    return Tree(nodes=(Node(id=0, parent=None, clients=clients),), parameters=parameters, sketch=sketch)


# ----------------------------------------------------------------------------------------------------
# Newcomers on their way down the parameter tree: CFL's Algorithm 4, one level per exchange, for every method with a tree.
#
# A walker stands at an inner node. It trains from that node's model, with the learning rate of the round in which the node
# was split, and goes on to the child whose edge holds the update closest to its own. At a leaf it has arrived.


Walkers = Mapping[Client, int]
"""Client -> the inner node where it stands."""


@dataclass(frozen=True)
class Walked:
    """After a step: the tree, who is still under way, who has arrived at which leaf, and why."""

    tree: Tree
    walkers: dict[Client, int]
    arrived: dict[Client, int]
    notes: tuple[Note, ...]


def tasks(
    tree: Tree, walkers: Walkers, present: tuple[Client, ...], first: int, **task: Any
) -> tuple[list[Tensor], dict[Client, Task]]:
    """The models that walkers train from, to be rows ``first``, ``first + 1``, ... of a plan, and their tasks."""
    asked = {c: id for c, id in walkers.items() if c in set(present)}
    ids = sorted(set(asked.values()))
    models = [model for id in ids if (model := tree.nodes[id].model) is not None]
    row = {id: first + i for i, id in enumerate(ids)}
    return models, {c: Task(offered=(row[id],), lr_round=tree.nodes[id].round, **task) for c, id in sorted(asked.items())}


def step(tree: Tree, walkers: Walkers, replies: Replies, metric: str, least: float | None = None) -> Walked:
    """Every walker that was heard goes down one level.

    metric: of :func:`coterie.clustering.closeness`. least: a walker that is no closer than this to anybody becomes a
    leaf of its own; None: nobody does.
    """
    still, arrived, notes = dict(walkers), {}, []
    own = replies.of(walkers)
    for i, client in enumerate(own.clients):
        assert own.updates is not None
        at, update = walkers[client], own.updates[i]
        child, close = tree.nearest(at, update, partial(closeness, metric=metric))
        if least is not None and close[child] <= least:
            tree, child = tree.grow(at, client, update)
        else:
            tree = tree.place(client, child)
        if tree.is_leaf(child):
            arrived[client] = child
            del still[client]
        else:
            still[client] = child
        notes.append(_note(tree, client, at, child, close, metric))
    return Walked(tree, still, arrived, tuple(notes))


def _note(tree: Tree, client: Client, at: int, child: int, close: Mapping[int, float], metric: str) -> Note:
    """A step in words."""
    sign, measure = (1, "greatest cosine") if metric == "cosine" else (-1, f"least {metric} distance")
    compared = ", ".join(f"{sign * value:.3g} to node {id}" for id, value in sorted(close.items()))
    where = "joins" if tree.is_leaf(child) else "goes on from"
    alone = "" if child in close else ", far from all: on its own"
    return Note(
        kind="join" if tree.is_leaf(child) else "walk", clients=(client,),
        text=f"client {client} at node {at}: {measure} {compared}; {where} node {child}{alone}",
        numbers={"at": float(at), "node": float(child), **{f"node_{id}": sign * value for id, value in close.items()}},
    )  # fmt: skip


def with_losses(tree: Tree, walkers: Walkers, replies: Replies) -> Tree:
    """The tree with the validation losses that ``walkers`` had at the nodes where they stood."""
    nodes = list(tree.nodes)
    own = replies.of(walkers)
    for client, losses in zip(own.clients, own.losses, strict=True):
        node = nodes[walkers[client]]
        nodes[node.id] = replace(node, losses={**node.losses, client: losses[0]})
    return replace(tree, nodes=tuple(nodes))


def waiting(walkers: Walkers) -> Groups:
    """Walkers as groups: those who stand at the same node, whose model serves them meanwhile."""
    return as_groups([c for c, at in walkers.items() if at == id] for id in set(walkers.values()))


# ----------------------------------------------------------------------------------------------------
# CFL's groups of now: the leaves of its parameter tree, how they split, grow and go on.


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
        replace(leaf, clients=tuple(sorted((*leaf.clients, *new[leaf.node])))) if leaf.node in new else leaf for leaf in leaves
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
        groups=as_groups([*(leaf.clients for leaf in state.leaves if leaf.clients), *waiting(state.walkers)]),
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
