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
from itertools import chain
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
    SharedValues,
    Task,
    Training,
    among,
    as_groups,
    groups_by,
    state,
    without,
)
from coterie.methods._leavers import entries_without

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
        node_id: int,
        parts: Iterable[tuple[Client, ...]],
        model: torch.Tensor,
        losses: Mapping[Client, float] | None = None,
        replies: Replies | None = None,
        round: int | None = None,
    ) -> tuple[Tree, tuple[int, ...]]:
        """Split a leaf into parts.

        Clients that are in no part stay at node ``node_id`` and may walk down from there.

        Args:
            node_id: the leaf to split.
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
        split_node = self.nodes[node_id]
        parts = tuple(parts)
        if split_node.model is not None:
            raise ValueError(f"node {node_id} is split already")
        members = list(chain.from_iterable(parts))
        is_in_two_parts = len(set(members)) < len(members)
        if not all(parts) or is_in_two_parts or not set(members) <= set(split_node.clients):
            raise ValueError(
                f"the parts of node {node_id} must be its clients, none empty and none twice"
            )
        # The node becomes an inner node, with the model of the split.
        all_nodes = list(self.nodes)
        all_nodes[node_id] = replace(
            split_node, model=model, round=round, losses=dict(losses or {})
        )
        # The edge into each child keeps the updates of its clients, for Algorithm 4.
        for part in parts:
            senders, updates = self._edge(part, replies)
            child = Node(
                id=len(all_nodes),
                parent=node_id,
                clients=tuple(sorted(part)),
                heard=senders,
                updates=updates,
            )
            all_nodes.append(child)
        return replace(self, nodes=tuple(all_nodes)), tuple(range(len(self.nodes), len(all_nodes)))

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
            # The engine reuses the memory of updates.
            return parameters.clone()
        sketches = sketch(parameters, self.sketch)
        return sketches.clone() if sketches is parameters else sketches

    def children(self, node_id: int) -> tuple[Node, ...]:
        """Return the children of node ``node_id``."""
        return tuple(node for node in self.nodes if node.parent == node_id)

    def model(self, node_id: int) -> torch.Tensor:
        """Return the model ``(d,)`` that the clients of an inner node were offered when it was split."""
        model = self.nodes[node_id].model
        if model is None:
            raise ValueError(f"node {node_id} has not been split")
        return model

    def is_leaf(self, node_id: int) -> bool:
        """Return whether node ``node_id`` has not been split."""
        return self.nodes[node_id].model is None

    def path(self, node_id: int) -> tuple[Node, ...]:
        """Return the nodes from the root down to ``node_id``."""
        nodes_upwards = [self.nodes[node_id]]
        while nodes_upwards[-1].parent is not None:
            nodes_upwards.append(self.nodes[nodes_upwards[-1].parent])
        return tuple(reversed(nodes_upwards))

    def nearest(
        self, node_id: int, update: torch.Tensor, closeness: Closeness
    ) -> tuple[int, dict[int, float]]:
        """Find the child whose edge holds the update closest to a given one (one step of Algorithm 4).

        Args:
            node_id: the inner node.
            update: ``(d,)``, the given update.
            closeness: closeness of two updates; a greater value is closer.

        Returns:
            The child's id (of equally close children the last, as in the paper), and the closeness
            of the closest update of each child.
        """
        # A child counts by the most similar of the updates on its edge.
        compared_update = self.short(update[None])[0]
        closest = {}
        for child in self.children(node_id):
            if child.updates is not None:
                closest[child.id] = float(closeness(compared_update, child.updates).max())
        return max(closest, key=lambda child_id: (closest[child_id], child_id)), closest

    def place(self, node_of_client: Mapping[Client, int]) -> Tree:
        """Return the tree in which each client is at its node: on the path from the root to it, and in no other node.

        Args:
            node_of_client: client -> id of its node.
        """
        # Node -> the clients whose path goes through it.
        passing_clients: dict[int, set[Client]] = {}
        for node_id, clients in clients_by_node(node_of_client).items():
            for node in self.path(node_id):
                passing_clients.setdefault(node.id, set()).update(clients)
        placed_nodes = []
        for node in self.nodes:
            passing = passing_clients.get(node.id, set())
            # Clients of the node that are placed elsewhere, and clients that come to it. Of many
            # members, only those that are placed are looked up.
            members_before = set(among(node_of_client, node.clients))
            if members_before != passing:
                staying = without(node.clients, members_before - passing)
                coming = passing - members_before
                node = replace(node, clients=tuple(sorted((*staying, *coming))))
            placed_nodes.append(node)
        return replace(self, nodes=tuple(placed_nodes))

    def remove(self, clients: Iterable[Client]) -> Tree:
        """Return the tree without these clients; their updates stay on the edges."""
        # The edges stay as they are, for the walkers to come.
        removed = set(clients)
        remaining_nodes = []
        for node in self.nodes:
            if removed & set(node.clients):
                node = replace(node, clients=without(node.clients, removed))
            remaining_nodes.append(node)
        return replace(self, nodes=tuple(remaining_nodes))

    def grow(self, node_id: int, client: Client, update: torch.Tensor) -> tuple[Tree, int]:
        """Add to node ``node_id`` a child that holds ``client`` alone; return the new tree and the child's id."""
        child = Node(
            id=len(self.nodes),
            parent=node_id,
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
    clients_at: dict[int, set[Client]] = {}
    for client, node_id in node_of_client.items():
        clients_at.setdefault(node_id, set()).add(client)
    return clients_at


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
    tree: Tree,
    walkers: Walkers,
    present: tuple[Client, ...],
    first_row: int,
    training_of_node: Callable[[int], Training | None] = lambda node_id: None,
    **task_fields: Any,
) -> tuple[list[torch.Tensor], dict[Client, Task]]:
    """Plan the training of the walkers.

    Args:
        tree: the parameter tree.
        walkers: clients at inner nodes.
        present: clients that are present.
        first_row: row of the plan's models at which the returned models begin.
        training_of_node: the settings of local training of a node's walkers; None for the run's.
        **task_fields: further fields of the tasks.

    Returns:
        The models that walkers train from, for rows ``first_row``, ``first_row + 1``, ... of a
        plan, and the tasks.
    """
    models: list[torch.Tensor] = []
    task_of_node: dict[int, Task] = {}
    asked_walkers = sorted(client for client in set(present) if client in walkers)
    # Each node with a walker has one row, in the order of the nodes, and one task for all of them.
    for node_id in sorted({walkers[client] for client in asked_walkers}):
        task_of_node[node_id] = Task(
            offered=(first_row + len(models),),
            # Updates are comparable only with the learning rate of the round in which the node split.
            lr_round=tree.nodes[node_id].round,
            training=training_of_node(node_id),
            **task_fields,
        )
        models.append(tree.model(node_id))
    return models, {client: task_of_node[walkers[client]] for client in asked_walkers}


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
    for reply_number, client in enumerate(walker_replies.clients):
        start_node = walkers[client]
        update = walker_replies.all_updates[reply_number]
        # Algorithm 4: the child whose edge holds the most similar update.
        child_id, closest = tree.nearest(start_node, update, partial(closeness, metric=metric))
        criteria: tuple[Criterion, ...] = ()
        # A closeness is a cosine, or a negative distance.
        if threshold is not None:
            distance = 1 - closest[child_id] if metric == "cosine" else -closest[child_id]
            criteria = (_near(distance, threshold),)
        # A walker that is far from all clients becomes a new leaf below its node.
        if all(criterion.held for criterion in criteria):
            tree = tree.place({client: child_id})
        else:
            tree, child_id = tree.grow(start_node, client, update)
        if tree.is_leaf(child_id):
            arrived[client] = child_id
            del remaining_walkers[client]
        else:
            remaining_walkers[client] = child_id
        notes.append(_step_note(tree, client, start_node, child_id, closest, metric, criteria))
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
    start_node: int,
    child_id: int,
    closest: Mapping[int, float],
    metric: str,
    criteria: tuple[Criterion, ...],
) -> Note:
    """Describe one walker's step from a node, to a new leaf if the criteria did not hold."""
    if metric == "cosine":
        measure = "greatest cosine"
        shown_values = dict(closest)
    else:
        # A closeness is a negative distance.
        measure = f"least {metric} distance"
        shown_values = {node_id: -closest_value for node_id, closest_value in closest.items()}
    compared = [
        f"{closest_value:.3g} to node {node_id}"
        for node_id, closest_value in sorted(shown_values.items())
    ]
    return walk_note(
        tree,
        client,
        start_node,
        child_id,
        comparison=f"{measure} {', '.join(compared)}",
        new_group_reason=None if child_id in closest else "it is far from all",
        joined="joined a group",
        criteria=criteria,
        numbers={
            f"node_{node_id}": closest_value for node_id, closest_value in shown_values.items()
        },
    )


def walk_note(
    tree: Tree,
    client: Client,
    start_node: int,
    child_id: int,
    *,
    comparison: str,
    new_group_reason: str | None,
    joined: str,
    criteria: tuple[Criterion, ...],
    numbers: Mapping[str, float],
) -> Note:
    """Describe one walker's step, for every method with a tree.

    Args:
        tree: the tree after the step.
        client: the walker.
        start_node: the inner node from which it came.
        child_id: the node to which it went.
        comparison: what was measured, with the values.
        new_group_reason: why it became a new leaf; None if it did not.
        joined: what a walker does that becomes no new leaf, in the past tense.
        criteria: the comparisons that decided.
        numbers: the note's numbers.
    """
    # A walker is placed at a leaf, and goes on from an inner node.
    is_at_leaf = tree.is_leaf(child_id)
    verb = "joins" if is_at_leaf else "continues from"
    description = f"client {client} at node {start_node}: {comparison}; {verb} node {child_id}"
    alternative = "started a new group"
    if new_group_reason is not None:
        description += f", a new group: {new_group_reason}"
        alternative = joined
    return Note(
        kind="join" if is_at_leaf else "walk",
        effect="joins" if is_at_leaf else "waits",
        clients=(client,),
        text=description,
        criteria=criteria,
        otherwise=f"it would have {alternative}",
        numbers=numbers,
        labels={"at": start_node, "node": child_id},
    )


def with_losses(tree: Tree, walkers: Walkers, replies: Replies) -> Tree:
    """Return the tree with the validation losses that ``walkers`` measured at the nodes where they were."""
    all_nodes = list(tree.nodes)
    walker_replies = replies.of(walkers)
    for client, losses in zip(walker_replies.clients, walker_replies.losses, strict=True):
        node = all_nodes[walkers[client]]
        all_nodes[node.id] = replace(node, losses={**node.losses, client: losses[0]})
    return replace(tree, nodes=tuple(all_nodes))


def waiting(walkers: Walkers) -> Groups:
    """Group walkers by node; until they reach a leaf, that node's model serves them."""
    # Often all are at one node.
    nodes = set(walkers.values())
    if len(nodes) == 1:
        return (tuple(sorted(walkers)),)
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


def nodes_of_clients(leaves: Iterable[Leaf]) -> dict[Client, int]:
    """Return client -> node of the leaf that it is a member of."""
    node_of_client: dict[Client, int] = {}
    for leaf in leaves:
        node_of_client.update(dict.fromkeys(leaf.clients, leaf.node))
    return node_of_client


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
    # Each child starts from the leaf's model, and applies its own update.
    tree, child_ids = tree.split(
        leaf.node, tuple(child_updates), leaf.model, leaf.losses, replies, round
    )
    children = []
    for child_id, (part, update) in zip(child_ids, child_updates.items(), strict=True):
        child = Leaf(node=child_id, clients=part, model=leaf.model + update, peak=leaf.peak)
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
    # One row for each model: those of the leaves, then those of the inner nodes.
    models: list[torch.Tensor] = []
    row_of_node = {}
    for leaf in state.leaves:
        row_of_node[leaf.node] = len(models)
        models.append(leaf.model)
    for node in state.tree.nodes:
        if node.model is not None:
            row_of_node[node.id] = len(models)
            models.append(node.model)
    # A member is at its leaf, and a walker at the inner node that it has reached.
    placed_clients = [(leaf.clients, leaf.node) for leaf in state.leaves if leaf.clients]
    for clients in waiting(state.walkers):
        placed_clients.append((clients, state.walkers[clients[0]]))
    path_rows = []
    rows = []
    for clients, node_id in placed_clients:
        path = tuple(row_of_node[node.id] for node in state.tree.path(node_id))
        path_rows.append((clients, path))
        rows.append((clients, row_of_node[node_id]))
    # A client uses the model of its node, unless another one on its path is better.
    row_of_client: Mapping[Client, int] = SharedValues(rows)
    if better_node:
        better_rows = {client: row_of_node[node_id] for client, node_id in better_node.items()}
        row_of_client = dict(sorted({**row_of_client, **better_rows}.items()))
    return Assignment(
        models=torch.stack(models),
        row=row_of_client,
        groups=as_groups(clients for clients, _ in placed_clients),
        path=SharedValues(path_rows),
        ensemble=ensemble,
    )


def admitted(state: S, clients: tuple[Client, ...], node: int = 0) -> S:
    """Put new and returning clients at a node of a state's tree, the root; if it is still a leaf, they are members at once."""
    # A client that comes back leaves the node where it was before.
    newcomers = dict.fromkeys(clients, node)
    tree = state.tree.place(newcomers)
    if tree.is_leaf(node):
        return changed(state, tree=tree, leaves=ordered(join(state.leaves, newcomers)))
    return changed(state, tree=tree, walkers={**state.walkers, **newcomers})


def retired(state: S, clients: tuple[Client, ...]) -> S:
    """Return the state without these clients."""
    leavers = set(clients)
    leaves = [replace(leaf, clients=without(leaf.clients, leavers)) for leaf in state.leaves]
    walkers = entries_without(state.walkers, leavers)
    return changed(state, leaves=ordered(leaves), tree=state.tree.remove(clients), walkers=walkers)


def changed(state: S, **fields: Any) -> S:
    """Return a state, which is a dataclass, with other values of some fields."""
    new_state: S = replace(state, **fields)  # type: ignore[type-var]
    return new_state
