"""One exchange carried out: replies taken in as the plan needs them, and no more kept of them than that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import gram, sketch
from coterie.core import Client, Means, Plan, Replies, amounts, group_means
from coterie.core.means import CHUNK
from coterie.engines.clock import Clock
from coterie.engines.fleet import Answer, Fleet
from coterie.engines.halves import Halves

if TYPE_CHECKING:
    from coterie.engines.inprocess import Position

WINDOW_BYTES = 1 << 28
"""Of replies held at a time where only their means are needed."""


def exchange(
    fleet: Fleet, plan: Plan, position: Position, seed: int, clock: Clock
) -> tuple[Replies, Mapping[Client, Tensor]]:
    """Carry out a plan: the replies as ``step`` must see them, and what the clients keep afterwards."""
    clients, size = sorted(plan.tasks), window(plan, fleet.layout.size)
    halves = Halves(fleet, plan)
    kept = dict(position.kept)
    taken: dict[Client, Answer] = {}
    refused: dict[Client, str] = {}
    streams = plan.sketch is not None or size < len(clients)
    means = Means(len(plan.models), fleet.layout.size) if streams else None
    sketches = []
    for start in range(0, len(clients), size):
        wave = clients[start : start + size]
        with clock("train"):
            answers = fleet.train(plan, wave, position.kept, (seed, position.exchange, position.round))
            new = {c: a for c, a in answers.items() if a.refused is None}
        with clock("server"):
            halves.take(new)
            for client, answer in new.items():
                _keep(fleet, plan, client, answer, kept)
        refused.update((c, a.refused) for c, a in answers.items() if a.refused is not None)
        taken.update(new)
        if means is not None:
            with clock("server"):
                _average(fleet, plan, new, means)
        if plan.sketch is not None:
            sketches.append(fleet.sketches([a.slot for a in new.values()]))
    replies = Replies(
        clients=tuple(taken),
        examples=np.array([_examples(fleet, c) for c in taken], dtype=np.int64),
        chosen=tuple(a.chosen for a in taken.values()),
        losses=tuple(a.losses for a in taken.values()),
        accuracies=tuple(a.accuracies for a in taken.values()),
        refused=refused,
        halves=halves.gram(tuple(taken)),
    )
    trained = not taken or any(a.update is not None for a in taken.values())
    with clock("server"):
        if means is None:
            updates = fleet.updates([a.slot for a in taken.values()]) if trained else None
            return needed(plan, replace(replies, updates=updates)), kept
        if not trained:
            return replies, kept
        replies = replace(replies, means=means.means, heard=means.heard)
        return (_short(plan, replies, torch.cat(sketches)) if sketches else replies), kept


def window(plan: Plan, d: int) -> int:
    """How many replies are held at a time: all, or a multiple of what is averaged together."""
    whole = plan.need != "mean" or any(task.halves for task in plan.tasks.values())
    if whole and plan.sketch is None:
        return max(1, len(plan.tasks))
    return max(1, WINDOW_BYTES // (4 * d * CHUNK)) * CHUNK


def _examples(fleet: Fleet, client: Client) -> int:
    return fleet.wire.examples(len(fleet.world.clients[client].train))


def _keep(fleet: Fleet, plan: Plan, client: Client, answer: Answer, kept: dict[Client, Tensor]) -> None:
    """What stays with a client goes from its update into ``kept``."""
    task = plan.tasks[client]
    if not task.keep or answer.update is None:
        return
    mask, before = fleet.mask(task.keep), kept.get(client)
    if not task.gradient:
        start = fleet.start_row(plan, task, before, answer.chosen)
        kept[client] = torch.where(mask, start + answer.update, torch.nan if before is None else before)
    answer.update[mask] = 0.0


def _average(fleet: Fleet, plan: Plan, answers: Mapping[Client, Answer], means: Means) -> None:
    groups = [answer.chosen if plan.tasks[client].trains else () for client, answer in answers.items()]
    weigh = amounts(np.array([_examples(fleet, client) for client in answers]), plan.weighting)
    means.add(fleet.updates([answer.slot for answer in answers.values()]), weigh, groups)


def needed(plan: Plan, replies: Replies) -> Replies:
    """What the plan says ``step`` must see, from every update: means, sketches and Gram matrix, and rows if asked for."""
    if replies.updates is None or (plan.need == "rows" and plan.sketch is None):
        return replies
    trained = [(c, chosen) for c, chosen in zip(replies.clients, replies.chosen, strict=True) if plan.tasks[c].trains]
    groups = [[c for c, chosen in trained if row in chosen] for row in range(len(plan.models))]
    means, heard = group_means(replies, groups, plan.weighting)
    rows = replies.updates
    replies = replace(replies, means=means, heard=heard, updates=None)
    if plan.sketch is not None:
        return _short(plan, replies, sketch(rows[:, plan.columns or slice(None)], plan.sketch))
    matrix = gram(rows, columns=plan.columns) if plan.need == "gram" and len(replies.clients) else None
    return replace(replies, gram=matrix)


def _short(plan: Plan, replies: Replies, sketches: Tensor) -> Replies:
    """Replies with the sketches ``(n, k)`` of their updates, or the Gram matrix of these, as the plan needs."""
    if plan.need == "rows":
        return replace(replies, updates=sketches)
    return replace(replies, gram=gram(sketches) if plan.need == "gram" and len(sketches) else None)
