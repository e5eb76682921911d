"""The parameter tree: who was together, with which model, until when (CFL, arXiv 1910.01991, section III and figure 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from torch import Tensor

from coterie.core import Client, state


@state
class Node:
    """A group of the tree, immutable once it has children.

    id: its place in ``Tree.nodes``. parent: the id it came from, or None at the root. clients: its members. model ``(d,)``:
    the model they were offered in the exchange that split them (θ*), None in a leaf. losses: each member's validation loss
    of that model, where it was measured.
    """

    id: int
    parent: int | None
    clients: tuple[Client, ...]
    model: Tensor | None = None
    losses: Mapping[Client, float] = field(default_factory=dict)


@state
class Tree:
    """Nodes by id; the root is node 0."""

    nodes: tuple[Node, ...]

    def split(
        self, id: int, parts: tuple[tuple[Client, ...], ...], model: Tensor, losses: Mapping[Client, float]
    ) -> tuple[Tree, tuple[int, ...]]:
        """The tree in which node ``id`` has become ``parts``, and their ids. ValueError if they are no partition of it."""
        parent = self.nodes[id]
        if parent.model is not None:
            raise ValueError(f"node {id} is split already")
        if not all(parts) or sorted(c for part in parts for c in part) != sorted(parent.clients):
            raise ValueError(f"the parts of node {id} must hold each of its clients once")
        closed = replace(parent, model=model, losses=dict(losses))
        first = len(self.nodes)
        children = tuple(Node(id=first + i, parent=id, clients=part) for i, part in enumerate(parts))
        nodes = (*self.nodes[:id], closed, *self.nodes[id + 1 :], *children)
        return Tree(nodes=nodes), tuple(child.id for child in children)

    def path(self, id: int) -> tuple[Node, ...]:
        """The nodes from the root down to ``id``."""
        nodes = [self.nodes[id]]
        while nodes[0].parent is not None:
            nodes.insert(0, self.nodes[nodes[0].parent])
        return tuple(nodes)


def root(clients: tuple[Client, ...]) -> Tree:
    """A tree of one node."""
    return Tree(nodes=(Node(id=0, parent=None, clients=clients),))
