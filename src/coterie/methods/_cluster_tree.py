"""The parameter tree: who was together, with which model, until when, and how newcomers find their place in it.

CFL, arXiv 1910.01991, section III-D and figure 4: "every node keeps its clients and its stationary
solution". Every edge keeps the updates that its clients sent just before the split. Algorithm 4
moves a newcomer from the root to a leaf: at each node it trains from that node's model, then
follows the edge that holds the update most similar to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from coterie.clustering import closeness, sketch
from coterie.core import (
    Assignment,
    Client,
    Criterion,
    Groups,
    Note,
    Replies,
    Task,
    Training,
    as_groups,
    groups_by,
    state,
    without,
)

Closeness = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""(update ``(d,)``, stored updates ``(m, d)``) -> closeness of each, ``(m,)``; a greater value is
closer."""


@state("tree.node")
class Node:
    """A group of the tree. The data on its edge never changes.

    Attributes:
        id: position in ``Tree.nodes``.
        parent: id of the parent node; None at the root.
        clients: clients that have reached this node and are still in the federation.
        model: ``(d,)``, the model that its clients were offered in the exchange that split the node
            (θ*); None in a leaf.
        round: number of rounds completed when the node was split.
        losses: each member's validation loss with ``model``, where it was measured.
        heard: clients whose updates are on the edge into the node.
        updates: ``(m, p)``, the parameters of these clients' updates from the parent's model, or
            sketches of them.
    """

    id: int
    parent: int | None
    clients: tuple[Client, ...]
    model: torch.Tensor | None = None
    round: int | None = None
    losses: Mapping[Client, float] = field(default_factory=dict)
    heard: tuple[Client, ...] = ()
    updates: torch.Tensor | None = None


@state("tree")
class Tree:
    """The parameter tree.

    Attributes:
        nodes: nodes by id; the root is node 0.
        parameters: number of columns of an update that similarities use (p); None for all.
        sketch: number of values kept of each update on an edge; None for all.
    """

    nodes: tuple[Node, ...]
    parameters: int | None = None
    sketch: int | None = None

    def split(
        self,
        id: int,
        parts: Iterable[tuple[Client, ...]],
        model: torch.Tensor,
        losses: Mapping[Client, float] | None = None,
        replies: Replies | None = None,
        round: int | None = None,
    ) -> tuple[Tree, tuple[int, ...]]:
        """Split a leaf into parts.

        Clients that are in no part stay at node ``id`` and may walk down from there.

        Args:
            id: the leaf to split.
            parts: clients of each child.
            model: ``(d,)``, the model that the clients were offered.
            losses: validation losses with ``model``, by client.
            replies: replies of the node's clients; the edges keep their updates.
            round: number of rounds completed.

        Returns:
            The new tree, and the ids of the children.

        Raises:
            ValueError: the node is already split, a part is empty, or a client is in two parts or
                not of this node.
        """
        parent, parts = self.nodes[id], tuple(parts)
        if parent.model is not None:
            raise ValueError(f"node {id} is split already")
        members = [c for part in parts for c in part]
        if (
            not all(parts)
            or len(set(members)) < len(members)
            or not set(members) <= set(parent.clients)
        ):
            raise ValueError(
                f"the parts of node {id} must be its clients, none empty and none twice"
            )
        nodes = list(self.nodes)
        nodes[id] = replace(parent, model=model, round=round, losses=dict(losses or {}))
        for part in parts:
            heard, updates = self._edge(part, replies)
            nodes.append(
                Node(
                    id=len(nodes),
                    parent=id,
                    clients=tuple(sorted(part)),
                    heard=heard,
                    updates=updates,
                )
            )
        return replace(self, nodes=tuple(nodes)), tuple(range(len(self.nodes), len(nodes)))

    def _edge(
        self, part: tuple[Client, ...], replies: Replies | None
    ) -> tuple[tuple[Client, ...], torch.Tensor | None]:
        own = replies.of(part) if replies is not None else None
        if own is None or not own.clients or own.updates is None:
            return (), None
        return own.clients, self.short(own.updates)

    def short(self, updates: torch.Tensor) -> torch.Tensor:
        """Return the form of updates ``(n, d)`` that an edge keeps: a copy of their parameters ``(n, p)``, or sketches."""
        rows = updates[:, : self.parameters]
        made = sketch(rows, self.sketch) if self.sketch is not None else rows
        return made.clone() if made is rows else made

    def children(self, id: int) -> tuple[Node, ...]:
        """Return the children of node ``id``."""
        return tuple(node for node in self.nodes if node.parent == id)

    def model(self, id: int) -> torch.Tensor:
        """Return the model ``(d,)`` that the clients of inner node ``id`` were offered when it was split."""
        model = self.nodes[id].model
        if model is None:
            raise ValueError(f"node {id} has not been split")
        return model

    def is_leaf(self, id: int) -> bool:
        """Return whether node ``id`` has not been split."""
        return self.nodes[id].model is None

    def path(self, id: int) -> tuple[Node, ...]:
        """Return the nodes from the root down to ``id``."""
        nodes = [self.nodes[id]]
        while nodes[-1].parent is not None:
            nodes.append(self.nodes[nodes[-1].parent])
        return tuple(reversed(nodes))

    def nearest(
        self, id: int, update: torch.Tensor, closeness: Closeness
    ) -> tuple[int, dict[int, float]]:
        """Find the child whose edge holds the update closest to a given one (one step of Algorithm 4).

        Args:
            id: the inner node.
            update: ``(d,)``, the given update.
            closeness: closeness of two updates; a greater value is closer.

        Returns:
            The child's id (of equally close children the last, as in the paper), and the closeness
            of the closest update of each child.
        """
        own = self.short(update[None])[0]
        close = {
            child.id: float(closeness(own, child.updates).max())
            for child in self.children(id)
            if child.updates is not None
        }
        return max(close, key=lambda child: (close[child], child)), close

    def place(self, goes: Mapping[Client, int]) -> Tree:
        """Return the tree in which each client is at its node: on the path from the root to it, and in no other node.

        Args:
            goes: client -> id of its node.
        """
        onto: dict[int, set[Client]] = {}
        for id in set(goes.values()):
            there = {client for client, at in goes.items() if at == id}
            for node in self.path(id):
                onto.setdefault(node.id, set()).update(there)
        clients = [
            (set(node.clients) - goes.keys()) | onto.get(node.id, set()) for node in self.nodes
        ]
        nodes = [
            node if set(node.clients) == new else replace(node, clients=tuple(sorted(new)))
            for node, new in zip(self.nodes, clients, strict=True)
        ]
        return replace(self, nodes=tuple(nodes))

    def remove(self, clients: Iterable[Client]) -> Tree:
        """Return the tree without these clients; their updates stay on the edges."""
        gone = set(clients)
        return replace(
            self,
            nodes=tuple(
                replace(n, clients=without(n.clients, gone)) if gone & set(n.clients) else n
                for n in self.nodes
            ),
        )

    def grow(self, id: int, client: Client, update: torch.Tensor) -> tuple[Tree, int]:
        """Add to node ``id`` a child that holds ``client`` alone; return the new tree and the child's id."""
        child = Node(
            id=len(self.nodes),
            parent=id,
            clients=(),
            heard=(client,),
            updates=self.short(update[None]),
        )
        return replace(self, nodes=(*self.nodes, child)).place({client: child.id}), child.id

    def plant(self) -> Tree:
        """Return the tree with a further leaf, of the next id and without a parent, so that no walker reaches it."""
        return replace(self, nodes=(*self.nodes, Node(id=len(self.nodes), parent=None, clients=())))


def root(
    clients: tuple[Client, ...], parameters: int | None = None, sketch: int | None = None
) -> Tree:
    """Return a tree of one node."""
    return Tree(
        nodes=(Node(id=0, parent=None, clients=clients),), parameters=parameters, sketch=sketch
    )


# ----------------------------------------------------------------------------------------------------
# Placement of newcomers in the parameter tree: CFL's Algorithm 4, one level per exchange, for every
# method with a tree.
#
# A walker is a client at an inner node. It trains from that node's model, with the learning rate of
# the round in which the node was split, and moves to the child whose edge holds the update closest
# to its own. It is placed when it reaches a leaf.


Walkers = Mapping[Client, int]
"""Client -> the inner node where it is."""


@dataclass(frozen=True)
class Walked:
    """Result of a step of the walkers.

    Attributes:
        tree: the new tree.
        walkers: clients that have not reached a leaf, and their nodes.
        arrived: clients that have reached a leaf, and their leaves.
        notes: reasons.
    """

    tree: Tree
    walkers: dict[Client, int]
    arrived: dict[Client, int]
    notes: tuple[Note, ...]


def tasks(
    tree: Tree, walkers: Walkers, present: tuple[Client, ...], first: int, **task: Any
) -> tuple[list[torch.Tensor], dict[Client, Task]]:
    """Plan the training of the walkers.

    Args:
        tree: the parameter tree.
        walkers: clients at inner nodes.
        present: clients that are present.
        first: row of the plan's models at which the returned models begin.
        **task: further fields of the tasks.

    Returns:
        The models that walkers train from, for rows ``first``, ``first + 1``, ... of a plan, and
        the tasks.
    """
    asked = {c: id for c, id in walkers.items() if c in set(present)}
    ids = sorted(set(asked.values()))
    models = [tree.model(id) for id in ids]
    row = {id: first + i for i, id in enumerate(ids)}
    return models, {
        c: Task(offered=(row[id],), lr_round=tree.nodes[id].round, **task)
        for c, id in sorted(asked.items())
    }


def step(
    tree: Tree, walkers: Walkers, replies: Replies, metric: str, threshold: float | None = None
) -> Walked:
    """Move every walker that answered down one level.

    Args:
        tree: the parameter tree.
        walkers: clients at inner nodes.
        replies: replies of the exchange.
        metric: metric of :func:`coterie.clustering.closeness`.
        threshold: a walker whose distance from every client is at least this becomes a new leaf;
            None: no walker does.

    Returns:
        The new tree, the walkers that remain, the clients that arrived, and the reasons.
    """
    still, arrived, notes = dict(walkers), {}, []
    own = replies.of(walkers)
    for i, client in enumerate(own.clients):
        at, update = walkers[client], own.all_updates[i]
        child, close = tree.nearest(at, update, partial(closeness, metric=metric))
        criteria = (
            ()
            if threshold is None
            else (_near(1 - close[child] if metric == "cosine" else -close[child], threshold),)
        )
        if all(one.held for one in criteria):
            tree = tree.place({client: child})
        else:
            tree, child = tree.grow(at, client, update)
        if tree.is_leaf(child):
            arrived[client] = child
            del still[client]
        else:
            still[client] = child
        notes.append(_note(tree, client, at, child, close, metric, criteria))
    return Walked(tree, still, arrived, tuple(notes))


def _near(distance: float, threshold: float) -> Criterion:
    return Criterion(
        "distance of the nearest client",
        distance,
        "<",
        threshold,
        "threshold",
        unmet="far from all clients",
        key="nearest_distance",
    )


def _note(
    tree: Tree,
    client: Client,
    at: int,
    child: int,
    close: Mapping[int, float],
    metric: str,
    criteria: tuple[Criterion, ...],
) -> Note:
    """Describe one walker's step, which led to a new leaf if the criteria did not hold."""
    sign, measure = (
        (1, "greatest cosine") if metric == "cosine" else (-1, f"least {metric} distance")
    )
    compared = ", ".join(f"{sign * value:.3g} to node {id}" for id, value in sorted(close.items()))
    where = "joins" if tree.is_leaf(child) else "continues from"
    alone = "" if child in close else ", a new group: it is far from all"
    return Note(
        kind="join" if tree.is_leaf(child) else "walk",
        effect="joins" if tree.is_leaf(child) else "waits",
        clients=(client,),
        text=f"client {client} at node {at}: {measure} {compared}; {where} node {child}{alone}",
        criteria=criteria,
        otherwise=f"it would have {'started a new group' if child in close else 'joined a group'}",
        numbers={f"node_{id}": sign * value for id, value in close.items()},
        labels={"at": at, "node": child},
    )


def with_losses(tree: Tree, walkers: Walkers, replies: Replies) -> Tree:
    """Return the tree with the validation losses that ``walkers`` measured at the nodes where they were."""
    nodes = list(tree.nodes)
    own = replies.of(walkers)
    for client, losses in zip(own.clients, own.losses, strict=True):
        node = nodes[walkers[client]]
        nodes[node.id] = replace(node, losses={**node.losses, client: losses[0]})
    return replace(tree, nodes=tuple(nodes))


def waiting(walkers: Walkers) -> Groups:
    """Group walkers by node; until they reach a leaf, that node's model serves them."""
    return groups_by(walkers)


# ----------------------------------------------------------------------------------------------------
# CFL's current groups: the leaves of its parameter tree.


S = TypeVar("S")


@state("cfl.leaf")
class Leaf:
    """A current group.

    Attributes:
        node: id of its node in the tree.
        clients: its members.
        model: ``(d,)``, its model.
        peak: greatest norm of a client's update so far, on the path from the root.
        ask_all: ask all members in the next exchange.
        gradients: ask for gradients in the next exchange.
        held: number of rounds in a row in which the group met the criteria for a split.
        losses: each client's validation loss with the model that it was last offered.
    """

    node: int
    clients: tuple[Client, ...]
    model: torch.Tensor
    peak: float = 0.0
    ask_all: bool = False
    gradients: bool = False
    held: int = 0
    losses: Mapping[Client, float] = field(default_factory=dict)


@state("cfl")
class CFLState:
    """State of CFL.

    Attributes:
        round: number of rounds completed.
        leaves: the groups; an empty group is kept for clients that come back.
        tree: the parameter tree.
        walkers: client -> the inner node where it is, on its way to a leaf.
        notes: notes of the last exchange.
        training: the experiment's training settings.
    """

    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    training: Training = field(default_factory=Training)


def ordered(leaves: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """Sort leaves by their clients, with empty leaves last."""
    return tuple(sorted(leaves, key=lambda leaf: (not leaf.clients, leaf.clients, leaf.node)))


def stays(leaf: Leaf, mean: torch.Tensor, verdict: str) -> Leaf:
    """Apply an update to a leaf that does not split, and set the request for its next exchange.

    Args:
        leaf: the leaf.
        mean: ``(d,)``, the update of its model.
        verdict: kind of the leaf's note: ``keep``, ``ask``, ``hold`` or ``gradients``.
    """
    return replace(
        leaf,
        model=leaf.model + mean,
        ask_all=verdict in ("ask", "hold"),
        gradients=verdict == "gradients",
        held=leaf.held + 1 if verdict == "hold" else 0,
    )


def split(
    tree: Tree,
    leaf: Leaf,
    means: Mapping[tuple[Client, ...], torch.Tensor],
    replies: Replies,
    round: int,
) -> tuple[Tree, list[Leaf]]:
    """Split a leaf.

    Silent members are in no part. They stay at the split node and walk down from there.

    Args:
        tree: the parameter tree.
        leaf: the leaf to split.
        means: part -> update ``(d,)`` that the child applies to the leaf's model.
        replies: replies of the exchange; the edges keep their updates.
        round: number of rounds completed.

    Returns:
        The new tree, and the children, which inherit the leaf's peak.
    """
    tree, ids = tree.split(leaf.node, tuple(means), leaf.model, leaf.losses, replies, round)
    children = [
        replace(
            leaf,
            node=id,
            clients=part,
            model=leaf.model + mean,
            ask_all=False,
            gradients=False,
            held=0,
            losses={},
        )
        for id, (part, mean) in zip(ids, means.items(), strict=True)
    ]
    return tree, children


def placed(note: Note, leaf: Leaf, children: Iterable[Leaf]) -> Note:
    """Add the ids of the split node and of its first child to the note of a split; the ids of the other children follow."""
    return replace(
        note,
        labels={
            **note.labels,
            "node": leaf.node,
            "first_part": min(child.node for child in children),
        },
    )


def join(leaves: Iterable[Leaf], arrived: Mapping[Client, int]) -> list[Leaf]:
    """Add clients to leaves.

    Args:
        leaves: the leaves.
        arrived: client -> node of the leaf that it joins.
    """
    new: dict[int, list[Client]] = {}
    for client, node in arrived.items():
        new.setdefault(node, []).append(client)
    return [
        replace(leaf, clients=tuple(sorted((*leaf.clients, *new[leaf.node]))))
        if leaf.node in new
        else leaf
        for leaf in leaves
    ]


def served(
    state: Any, best: Mapping[Client, int] = MappingProxyType({}), ensemble: bool = False
) -> Assignment:
    """Assign models to clients: the leaf's model to a member, the model of its node to a walker.

    Args:
        state: a state with ``leaves``, a ``tree`` and ``walkers``.
        best: client -> node whose model serves it instead.
        ensemble: value of ``Assignment.ensemble``.
    """
    inner = [(node.id, node.model) for node in state.tree.nodes if node.model is not None]
    place = {leaf.node: i for i, leaf in enumerate(state.leaves)}
    place |= {id: len(state.leaves) + i for i, (id, _) in enumerate(inner)}
    at = {client: leaf.node for leaf in state.leaves for client in leaf.clients} | dict(
        state.walkers
    )
    return Assignment(
        models=torch.stack(
            [*(leaf.model for leaf in state.leaves), *(model for _, model in inner)]
        ),
        row={client: place[id] for client, id in sorted({**at, **best}.items())},
        groups=as_groups(
            [*(leaf.clients for leaf in state.leaves if leaf.clients), *waiting(state.walkers)]
        ),
        path={
            client: tuple(place[node.id] for node in state.tree.path(id))
            for client, id in at.items()
        },
        ensemble=ensemble,
    )


def admitted(state: S, clients: tuple[Client, ...], at: int = 0) -> S:
    """Put new and returning clients at a node of a state's tree, the root; if it is still a leaf, they are members at once."""
    known: Any = state
    new = dict.fromkeys(clients, at)
    tree = known.tree.place(new)
    if tree.is_leaf(at):
        return replace(known, tree=tree, leaves=ordered(join(known.leaves, new)))
    return replace(known, tree=tree, walkers={**known.walkers, **new})


def retired(state: S, clients: tuple[Client, ...]) -> S:
    """Return the state without these clients."""
    known: Any = state
    gone = set(clients)
    leaves = [replace(leaf, clients=without(leaf.clients, gone)) for leaf in known.leaves]
    walkers = {client: id for client, id in known.walkers.items() if client not in gone}
    return replace(known, leaves=ordered(leaves), tree=known.tree.remove(clients), walkers=walkers)


def best_on_path(state: CFLState) -> Iterator[tuple[Client, int]]:
    """Find the clients that an ancestor's model serves better than the model they were last offered.

    The comparison uses the validation losses in the replies. A leaf's loss is that of its model one
    round ago.

    Args:
        state: the state of CFL.

    Yields:
        (client, node) of each such client and of the ancestor with the smallest loss.
    """
    for leaf in state.leaves:
        for client in leaf.clients:
            past = [
                (n.losses[client], n.id)
                for n in state.tree.path(leaf.node)[:-1]
                if client in n.losses
            ]
            if past and client in leaf.losses and min(past)[0] < leaf.losses[client]:
                yield client, min(past)[1]
    for client, at in state.walkers.items():
        past = [(n.losses[client], n.id) for n in state.tree.path(at) if client in n.losses]
        if past:
            yield client, min(past)[1]
