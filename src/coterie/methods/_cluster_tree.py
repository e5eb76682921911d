"""The parameter tree: which clients were one group, with which model, until when; where newcomers belong.

CFL, arXiv 1910.01991, section III-D and figure 4: "every node keeps its clients and its stationary
solution". Every edge keeps the updates that its clients sent just before the split. Algorithm 4
moves a newcomer from the root to a leaf: at each node it trains from that node's model, then
follows the edge that holds the update most similar to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

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
        parent = self.nodes[id]
        parts = tuple(parts)
        if parent.model is not None:
            raise ValueError(f"node {id} is split already")
        members = [client for part in parts for client in part]
        is_in_two_parts = len(set(members)) < len(members)
        if not all(parts) or is_in_two_parts or not set(members) <= set(parent.clients):
            raise ValueError(
                f"the parts of node {id} must be its clients, none empty and none twice"
            )
        nodes = list(self.nodes)
        nodes[id] = replace(parent, model=model, round=round, losses=dict(losses or {}))
        for part in parts:
            senders, updates = self._edge(part, replies)
            child = Node(
                id=len(nodes),
                parent=id,
                clients=tuple(sorted(part)),
                heard=senders,
                updates=updates,
            )
            nodes.append(child)
        return replace(self, nodes=tuple(nodes)), tuple(range(len(self.nodes), len(nodes)))

    def _edge(
        self, part: tuple[Client, ...], replies: Replies | None
    ) -> tuple[tuple[Client, ...], torch.Tensor | None]:
        """The clients of a part that sent updates, and these updates as the edge into the part keeps them."""
        if replies is None:
            return (), None
        part_replies = replies.of(part)
        if not part_replies.clients or part_replies.updates is None:
            return (), None
        return part_replies.clients, self.short(part_replies.updates)

    def short(self, updates: torch.Tensor) -> torch.Tensor:
        """Return the form of updates ``(n, d)`` that an edge keeps: a copy of their parameters ``(n, p)``, or sketches."""
        parameters = updates[:, : self.parameters]
        if self.sketch is None:
            return parameters.clone()  # the engine reuses the memory of updates
        sketches = sketch(parameters, self.sketch)
        return sketches.clone() if sketches is parameters else sketches

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
        compared_update = self.short(update[None])[0]
        closest = {
            child.id: float(closeness(compared_update, child.updates).max())
            for child in self.children(id)
            if child.updates is not None
        }
        return max(closest, key=lambda child: (closest[child], child)), closest

    def place(self, node_of_client: Mapping[Client, int]) -> Tree:
        """Return the tree in which each client is at its node: on the path from the root to it, and in no other node.

        Args:
            node_of_client: client -> id of its node.
        """
        placed_clients: dict[int, set[Client]] = {}  # node -> the clients whose path goes through
        for id, clients in clients_by_node(node_of_client).items():
            for node in self.path(id):
                placed_clients.setdefault(node.id, set()).update(clients)
        nodes = []
        for node in self.nodes:
            stay = set(node.clients) - node_of_client.keys()
            members = stay | placed_clients.get(node.id, set())
            if members != set(node.clients):
                node = replace(node, clients=tuple(sorted(members)))
            nodes.append(node)
        return replace(self, nodes=tuple(nodes))

    def remove(self, clients: Iterable[Client]) -> Tree:
        """Return the tree without these clients; their updates stay on the edges."""
        removed = set(clients)
        nodes = []
        for node in self.nodes:
            if removed & set(node.clients):
                node = replace(node, clients=without(node.clients, removed))
            nodes.append(node)
        return replace(self, nodes=tuple(nodes))

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


def clients_by_node(node_of_client: Mapping[Client, int]) -> dict[int, set[Client]]:
    """Return node -> the clients that are at it."""
    clients: dict[int, set[Client]] = {}
    for client, node in node_of_client.items():
        clients.setdefault(node, set()).add(client)
    return clients


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
    present_clients = set(present)
    asked_walkers = {client: id for client, id in walkers.items() if client in present_clients}
    node_ids = sorted(set(asked_walkers.values()))
    models = [tree.model(id) for id in node_ids]
    row_of_node = {id: first + i for i, id in enumerate(node_ids)}
    walker_tasks = {}
    for client, id in sorted(asked_walkers.items()):
        # Updates are comparable only with the learning rate of the round in which the node split.
        walker_tasks[client] = Task(
            offered=(row_of_node[id],), lr_round=tree.nodes[id].round, **task
        )
    return models, walker_tasks


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
    remaining_walkers = dict(walkers)
    arrived: dict[Client, int] = {}
    notes = []
    walker_replies = replies.of(walkers)
    for i, client in enumerate(walker_replies.clients):
        start = walkers[client]
        update = walker_replies.all_updates[i]
        # Algorithm 4: the child whose edge holds the most similar update.
        child, closest = tree.nearest(start, update, partial(closeness, metric=metric))
        criteria: tuple[Criterion, ...] = ()
        if threshold is not None:
            distance = 1 - closest[child] if metric == "cosine" else -closest[child]
            criteria = (_near(distance, threshold),)
        if all(criterion.held for criterion in criteria):
            tree = tree.place({client: child})
        else:
            tree, child = tree.grow(start, client, update)
        if tree.is_leaf(child):
            arrived[client] = child
            del remaining_walkers[client]
        else:
            remaining_walkers[client] = child
        notes.append(_step_note(tree, client, start, child, closest, metric, criteria))
    return Walked(tree, remaining_walkers, arrived, tuple(notes))


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


def _step_note(
    tree: Tree,
    client: Client,
    start: int,
    child: int,
    closest: Mapping[int, float],
    metric: str,
    criteria: tuple[Criterion, ...],
) -> Note:
    """Describe one walker's step from node ``start``, to a new leaf if the criteria did not hold."""
    if metric == "cosine":
        measure = "greatest cosine"
        measured = dict(closest)
    else:  # a closeness is a negative distance
        measure = f"least {metric} distance"
        measured = {id: -value for id, value in closest.items()}
    compared = ", ".join(f"{value:.3g} to node {id}" for id, value in sorted(measured.items()))
    is_at_leaf = tree.is_leaf(child)
    is_new_leaf = child not in closest
    text = f"client {client} at node {start}: {measure} {compared}; "
    text += f"{'joins' if is_at_leaf else 'continues from'} node {child}"
    if is_new_leaf:
        text += ", a new group: it is far from all"
    return Note(
        kind="join" if is_at_leaf else "walk",
        effect="joins" if is_at_leaf else "waits",
        clients=(client,),
        text=text,
        criteria=criteria,
        otherwise=f"it would have {'joined a group' if is_new_leaf else 'started a new group'}",
        numbers={f"node_{id}": value for id, value in measured.items()},
        labels={"at": start, "node": child},
    )


def with_losses(tree: Tree, walkers: Walkers, replies: Replies) -> Tree:
    """Return the tree with the validation losses that ``walkers`` measured at the nodes where they were."""
    nodes = list(tree.nodes)
    walker_replies = replies.of(walkers)
    for client, losses in zip(walker_replies.clients, walker_replies.losses, strict=True):
        node = nodes[walkers[client]]
        nodes[node.id] = replace(node, losses={**node.losses, client: losses[0]})
    return replace(tree, nodes=tuple(nodes))


def waiting(walkers: Walkers) -> Groups:
    """Group walkers by node; until they reach a leaf, that node's model serves them."""
    return groups_by(walkers)


# ----------------------------------------------------------------------------------------------------
# The current groups: the leaves of the tree.


@state("cfl.leaf")
class Leaf:
    """A current group.

    Attributes:
        node: id of its node in the tree.
        clients: its members.
        model: ``(d,)``, its model.
        peak: of CFL; greatest norm of a client's update so far, on the path from the root.
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


class HasLeaves(Protocol):
    """A state whose groups are the leaves of a tree."""

    @property
    def leaves(self) -> tuple[Leaf, ...]: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def walkers(self) -> Walkers: ...


S = TypeVar("S", bound=HasLeaves)


def ordered(leaves: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """Sort leaves by their clients, with empty leaves last."""
    return tuple(sorted(leaves, key=lambda leaf: (not leaf.clients, leaf.clients, leaf.node)))


def split(
    tree: Tree,
    leaf: Leaf,
    child_updates: Mapping[tuple[Client, ...], torch.Tensor],
    replies: Replies,
    round: int,
) -> tuple[Tree, list[Leaf]]:
    """Split a leaf.

    Silent members are in no part. They stay at the split node and walk down from there.

    Args:
        tree: the parameter tree.
        leaf: the leaf to split.
        child_updates: part -> update ``(d,)`` that the child applies to the leaf's model.
        replies: replies of the exchange; the edges keep their updates.
        round: number of rounds completed.

    Returns:
        The new tree, and the children, which inherit the leaf's peak.
    """
    tree, ids = tree.split(leaf.node, tuple(child_updates), leaf.model, leaf.losses, replies, round)
    children = []
    for id, (part, update) in zip(ids, child_updates.items(), strict=True):
        child = Leaf(node=id, clients=part, model=leaf.model + update, peak=leaf.peak)
        children.append(child)
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
    newcomers = clients_by_node(arrived)
    joined_leaves = []
    for leaf in leaves:
        if leaf.node in newcomers:
            members = sorted((*leaf.clients, *newcomers[leaf.node]))
            leaf = replace(leaf, clients=tuple(members))
        joined_leaves.append(leaf)
    return joined_leaves


def served(
    state: HasLeaves,
    better_node: Mapping[Client, int] = MappingProxyType({}),
    ensemble: bool = False,
) -> Assignment:
    """Assign models to clients: the leaf's model to a member, the model of its node to a walker.

    Args:
        state: the state.
        better_node: client -> node whose model it uses instead.
        ensemble: value of ``Assignment.ensemble``.
    """
    inner_models = {node.id: node.model for node in state.tree.nodes if node.model is not None}
    nodes = [*(leaf.node for leaf in state.leaves), *inner_models]
    row_of_node = {node: row for row, node in enumerate(nodes)}
    node_of_client = {client: leaf.node for leaf in state.leaves for client in leaf.clients}
    node_of_client |= state.walkers
    used_node = {**node_of_client, **better_node}
    groups = [leaf.clients for leaf in state.leaves if leaf.clients]
    path = {}
    for client, node in node_of_client.items():
        path[client] = tuple(row_of_node[ancestor.id] for ancestor in state.tree.path(node))
    return Assignment(
        models=torch.stack([*(leaf.model for leaf in state.leaves), *inner_models.values()]),
        row={client: row_of_node[node] for client, node in sorted(used_node.items())},
        groups=as_groups([*groups, *waiting(state.walkers)]),
        path=path,
        ensemble=ensemble,
    )


def admitted(state: S, clients: tuple[Client, ...], node: int = 0) -> S:
    """Put new and returning clients at a node of a state's tree, the root; if it is still a leaf, they are members at once."""
    newcomers = dict.fromkeys(clients, node)
    tree = state.tree.place(newcomers)
    if tree.is_leaf(node):
        return changed(state, tree=tree, leaves=ordered(join(state.leaves, newcomers)))
    return changed(state, tree=tree, walkers={**state.walkers, **newcomers})


def retired(state: S, clients: tuple[Client, ...]) -> S:
    """Return the state without these clients."""
    removed = set(clients)
    leaves = [replace(leaf, clients=without(leaf.clients, removed)) for leaf in state.leaves]
    walkers = {client: node for client, node in state.walkers.items() if client not in removed}
    return changed(state, leaves=ordered(leaves), tree=state.tree.remove(clients), walkers=walkers)


def changed(state: S, **fields: Any) -> S:
    """Return a state, which is a dataclass, with other values of some fields."""
    new_state: S = replace(state, **fields)  # type: ignore[type-var]
    return new_state
