"""Newcomers on their way down the parameter tree: CFL's Algorithm 4, one level per exchange, for every method with a tree.

A walker stands at an inner node. It trains from that node's model, with the learning rate of the round in which the node
was split, and goes on to the child whose edge holds the update closest to its own. At a leaf it has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from coterie.clustering import closeness
from coterie.core import Client, Groups, Note, Replies, Task, as_groups
from coterie.tree import Tree

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
