"""The parameter tree: who was together, with which model, until when, and how newcomers find their place in it.

CFL, arXiv 1910.01991, section III-D and figure 4: "every node keeps its clients and its stationary solution", every edge
the updates that its clients sent just before the split. Algorithm 4 sends a newcomer from the root to a leaf: at each node
it trains from that node's model, and follows the edge that holds the update most like its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace

from torch import Tensor

from coterie.clustering import sketch
from coterie.core import Client, Replies, state, without

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
            child.id: float(closeness(own, child.updates).max())
            for child in self.children(id)
            if child.updates is not None
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
            nodes=tuple(
                replace(n, clients=without(n.clients, gone)) if gone & set(n.clients) else n
                for n in self.nodes
            ),
        )

    def grow(self, id: int, client: Client, update: Tensor) -> tuple[Tree, int]:
        """The tree in which ``client``, alone, is a further child of node ``id``, and the child's id."""
        child = Node(id=len(self.nodes), parent=id, clients=(), heard=(client,), updates=self.short(update[None]))
        return replace(self, nodes=(*self.nodes, child)).place(client, child.id), child.id


def root(clients: tuple[Client, ...], parameters: int | None = None, sketch: int | None = None) -> Tree:
    """A tree of one node."""
    return Tree(nodes=(Node(id=0, parent=None, clients=clients),), parameters=parameters, sketch=sketch)
