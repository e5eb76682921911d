"""A run played through with made-up replies: the method's own plans tell who is asked for what, and what is kept.

Nobody trains. Each group of clients has an optimum of its own, and every reply is a step towards it, so that methods find the
groups and hold as many models as they would. Where replies are large, some of the clients stand for all, and a small model
for a large one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.clustering import gram, sketch
from coterie.core import Client, Method, Plan, Replies, Task, amounts
from coterie.engines import inprocess
from coterie.engines.clock import Clock
from coterie.engines.gather import window
from coterie.engines.inprocess import Position
from coterie.estimate.counting import Counts, Sizes, Work
from coterie.estimate.shrinking import layout_of, lengths, shrunk
from coterie.randomness import Purpose, generator, numpy_generator
from coterie.world import World

NUMBERS = 1 << 24
"""In all made-up replies of an exchange, at most; and so many clients:"""
CLIENTS = 200

RATE, NOISE = 0.5, 0.1
"""Share of the way to its optimum that a client goes; variance of its updates, as a share of their mean square."""

DIRECTIONS = 512
"""That the noise of updates has."""


@dataclass(frozen=True)
class Played:
    """work: of each round played. kept: bytes of the newest checkpoints; state: of one of them. size: numbers of a row (d)."""

    work: tuple[Work, ...]
    kept: float
    state: float
    size: int

    def total(self, name: str, rounds: int) -> float:
        """Of a number of :class:`Work`, over so many rounds: those not played are as the later half of the others."""
        values = [getattr(work, name) for work in self.work]
        later = values[len(values) // 2 :]
        return float(sum(values) + (rounds - len(values)) * sum(later) / len(later))

    def most(self, name: str) -> float:
        """The greatest in any round."""
        return float(max(getattr(work, name) for work in self.work))


def some(world: World, d: int) -> World:
    """The world with as many of its clients as play."""
    ids, groups = sorted(world.clients), len(world.truth or ((),))
    count = max(5 * groups, min(CLIENTS, NUMBERS // d))
    if count >= len(ids):
        return world
    founders = world.attendance.founders(ids)
    taken = {*ids[:: -(-len(ids) // count)], founders[0]}
    attacks = {client: attack for client, attack in world.attacks.items() if client in taken}
    return replace(world, clients={client: world.clients[client] for client in sorted(taken)}, attacks=attacks)


def play(
    method: Method[Any], world: World, seed: int, boundary: Boundary, *, rounds: int, eval_every: int = 1, kept: int = 2,
    patience: float = float("inf"),
) -> Played:  # fmt: skip
    """Play a run's rounds, as many as ``patience`` seconds allow, at least one. kept: checkpoints."""
    layout = layout_of(world)
    played = shrunk(world) if boundary.rotation == "none" else world  # a map's blocks are of the model's own size
    played = some(played, layout_of(played).size)
    share = len(world.clients) / len(played.clients)
    wire, federation = inprocess.meeting(method, played, seed, boundary)
    clients = Clients(played, wire, federation.draw(0), layout.size)
    position = Position(round=0, exchange=0, state=method.init(federation), members=federation.clients)
    work: list[Work] = []
    newest: list[Position] = []
    end = time.perf_counter() + patience
    while position.round < rounds and (not work or time.perf_counter() < end):
        clock, counts = Clock(), Counts(played, share, left_out=layout.size - wire.layout.size)
        steps = inprocess.communicate(method, played, wire, position, seed, clock)
        done = inprocess.carry(steps, partial(clients.answer, counts=counts))
        position = done.position
        newest = [*newest, position][-kept:]
        work.append(counts.work(done, done.number % eval_every == 0 or done.number == rounds))
    held = len(done.assignment.models)
    models = held if held < len(played.clients) else 1  # or one for each client
    longer = lengths(wire.layout, layout)
    kept_bytes, state = (Sizes(len(played.clients), models, share, longer).of(value) for value in (tuple(newest), position))
    return Played(tuple(work), kept_bytes, state, layout.size)


class Clients:
    """Everybody's replies. Of those of a group that started from the same models they are equal. size: numbers of a row (d)
    of the model that is run, which may be larger than the one that is played with."""

    def __init__(self, world: World, wire: Wire, first: Tensor, size: int) -> None:
        self.world, self.wire, self.size = world, wire, size
        groups = world.truth or (tuple(world.clients),)
        self.group = {client: number for number, group in enumerate(groups) for client in group}
        apart = torch.randn(len(groups), len(first), generator=generator(0, Purpose.INIT))
        self.optima = first + apart / len(first) ** 0.5 * (10 + first.norm())

    def answer(self, plan: Plan, position: Position, *, counts: Counts) -> tuple[Replies, Mapping[Client, Tensor]]:
        """The replies to ``plan``, and what the clients keep."""
        clients = tuple(sorted(plan.tasks))
        counts.add(plan, window(plan, self.size), position.kept)
        losses = tuple(self._losses(plan, client) for client in clients)
        pairs = zip(clients, losses, strict=True)
        chosen = tuple(self._chosen(plan.tasks[client], own) for client, own in pairs)
        replies = Replies(
            clients=clients,
            examples=np.array([self.wire.examples(len(self.world.clients[c].train)) for c in clients], dtype=np.int64),
            chosen=chosen,
            losses=losses,
            accuracies=tuple(tuple(1 / (1 + loss) for loss in own) for own in losses),
        )
        kept = dict(position.kept)
        if clients and not any(plan.tasks[client].trains for client in clients):
            return replies, kept
        rows, at = self._rows(plan, clients, chosen)
        for client, place in zip(clients, at, strict=True):
            if task_keeps := plan.tasks[client].keep:
                mask = self.wire.layout.mask(task_keeps)
                kept[client] = torch.where(mask, rows[place] + client, torch.nan)  # no two alike
        return self._needed(plan, replies, rows, at, position.exchange), kept

    def _losses(self, plan: Plan, client: Client) -> tuple[float, ...]:
        task, optimum = plan.tasks[client], self.optima[self.group[client]]
        if not task.measure:
            return ()
        return tuple(float((plan.models[row] - optimum).square().sum()) for row in task.offered)

    def _chosen(self, task: Task, losses: Sequence[float]) -> tuple[int, ...]:
        if task.choose == len(task.offered):
            return task.offered
        best = sorted(range(len(task.offered)), key=lambda i: losses[i])[: task.choose]
        return tuple(task.offered[i] for i in best)

    def _rows(
        self, plan: Plan, clients: Sequence[Client], chosen: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """The distinct updates ``(p, d)``, and which of them each client sends."""
        place: dict[tuple[tuple[int, ...], int, bool], int] = {}
        keys = [(rows, self.group[c], plan.tasks[c].gradient) for c, rows in zip(clients, chosen, strict=True)]
        at = [place.setdefault(key, len(place)) for key in keys]
        out = torch.empty(len(place), self.wire.layout.size)
        for (rows, group, gradient), row in place.items():
            torch.sub(self.optima[group], plan.models[list(rows)].mean(0), out=out[row])
            out[row] *= -RATE if gradient else RATE
        return out, at

    def _needed(self, plan: Plan, replies: Replies, rows: Tensor, at: Sequence[int], exchange: int) -> Replies:
        """What the plan says a method must see."""
        halves = any(plan.tasks[client].halves for client in replies.clients)
        shown = rows[:, plan.columns or slice(None)]
        shown = shown if plan.sketch is None else sketch(shown, plan.sketch)
        products = gram(shown)[np.ix_(at, at)] if len(at) and (plan.need == "gram" or halves) else None
        if halves and products is not None:
            rng = numpy_generator(0, Purpose.NOISE, exchange)
            replies = replace(replies, halves=noisy(np.tile(products, (2, 2)), NOISE * products.diagonal().mean(), rng))
        if plan.need == "rows" and plan.sketch is None:
            return replace(replies, updates=rows[at])
        weigh = np.zeros((len(plan.models), len(rows)))
        heard = np.zeros(len(plan.models), dtype=np.int64)
        each = amounts(replies.examples, plan.weighting)
        for client, chosen, own, weight in zip(replies.clients, replies.chosen, at, each, strict=True):
            if plan.tasks[client].trains:
                weigh[list(chosen), own] += weight
                heard[list(chosen)] += 1
        weigh /= np.maximum(weigh.sum(1, keepdims=True), 1e-12)
        means = torch.as_tensor(weigh, dtype=torch.float32) @ rows
        updates = shown[at] if plan.need == "rows" else None
        return replace(replies, means=means, heard=heard, updates=updates, gram=products if plan.need == "gram" else None)


def noisy(products: np.ndarray, variance: float, rng: np.random.Generator) -> np.ndarray:
    """A Gram matrix ``(n, n)`` of vectors, each with Gaussian noise of its own added, whose mean square is ``variance``.

    Drawn, and not only added to the diagonal: tests of whether vectors differ by more than noise go by its fluctuations.
    """
    values, vectors = np.linalg.eigh(products)
    exact = vectors * np.sqrt(np.maximum(values, 0.0))  # vectors with these products
    n = len(products)
    size = max(n, DIRECTIONS)
    drawn = rng.standard_normal((n, size)) * (variance / size) ** 0.5
    drawn[:, :n] += exact
    return drawn @ drawn.T
