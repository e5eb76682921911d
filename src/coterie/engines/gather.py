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
from coterie.robust import Usual, lengths

if TYPE_CHECKING:
    from coterie.engines.inprocess import Position

WINDOW_BYTES = 1 << 28
"""Of replies held at a time where only their means are needed."""


def exchange(
    fleet: Fleet, plan: Plan, position: Position, seed: int, clock: Clock
) -> tuple[Replies, Mapping[Client, Tensor]]:
    """Carry out a plan: the replies as ``step`` must see them, and what the clients keep afterwards."""
    clients, size = sorted(plan.tasks), window(plan, fleet.layout.size, fleet.robust.needs_all)
    halves = Halves(fleet, plan)
    claims, kept = {c: _claimed(fleet, c) for c in clients}, dict(position.kept)
    counted = fleet.robust.counted(claims)
    taken: dict[Client, Answer] = {}
    refused: dict[Client, str] = {}
    scaled: dict[Client, float] = {}
    usual = Usual()
    streams = plan.sketch is not None or size < len(clients)
    means = Means(len(plan.models), fleet.layout.size, fleet.robust) if streams else None
    sketches = []
    for start in range(0, len(clients), size):
        wave = clients[start : start + size]
        with clock("train"):
            answers = fleet.train(plan, wave, position.kept, (seed, position.exchange, position.round))
        with clock("server"):
            _collude(fleet, plan, answers)
            answers = _screened(fleet, plan, answers, claims, usual, scaled)
            new = {c: a for c, a in answers.items() if a.refused is None}
            halves.take(new)
            for client, answer in new.items():
                _keep(fleet, plan, client, answer, kept)
        refused.update((c, a.refused) for c, a in answers.items() if a.refused is not None)
        taken.update(new)
        if means is not None:
            with clock("server"):
                _average(fleet, plan, new, counted, means)
        if plan.sketch is not None:
            sketches.append(fleet.sketches([a.slot for a in new.values()]))
    replies = Replies(
        clients=tuple(taken),
        examples=np.array([counted[c] for c in taken], dtype=np.int64),
        chosen=tuple(a.chosen for a in taken.values()),
        losses=tuple(a.losses for a in taken.values()),
        accuracies=tuple(a.accuracies for a in taken.values()),
        refused=refused,
        halves=halves.gram(tuple(taken)),
        averaging=fleet.robust,
        claimed={c: claims[c] for c in taken if claims[c] > counted[c]},
        scaled=scaled,
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


def window(plan: Plan, d: int, robust: bool = False) -> int:
    """How many replies are held at a time: all, as robust means need them, or a multiple of what is averaged together."""
    whole = robust or plan.need != "mean" or any(task.halves for task in plan.tasks.values())
    if robust or (whole and plan.sketch is None):
        return max(1, len(plan.tasks))
    return max(1, WINDOW_BYTES // (4 * d * CHUNK)) * CHUNK


def _claimed(fleet: Fleet, client: Client) -> int:
    """How many examples a client says that it has."""
    count, attack = len(fleet.world.clients[client].train), fleet.world.attacks.get(client)
    return fleet.wire.examples(count if attack is None else attack.claimed(count))


def _slots(answer: Answer) -> list[int]:
    """Where a client's update lies, or those of both halves."""
    return [slot for slot in (answer.slot, answer.second) if slot is not None]


def _rows(fleet: Fleet, answer: Answer) -> list[Tensor]:
    return [fleet.hand.replies[slot] for slot in _slots(answer)]


def _screened(
    fleet: Fleet, plan: Plan, answers: Mapping[Client, Answer], claims: Mapping[Client, int], usual: Usual,
    scaled: dict[Client, float],
) -> dict[Client, Answer]:
    """The answers of a wave, limited to what is plausible beside those of this wave and the ``usual`` of earlier ones."""
    trained = {c: answer for c, answer in answers.items() if answer.update is not None and answer.refused is None}
    updates, chosen = {c: _rows(fleet, a) for c, a in trained.items()}, {c: a.chosen for c, a in trained.items()}
    claims = {c: claims[c] for c in answers}
    limited = fleet.robust.limited(lengths(plan, updates, chosen, fleet.wire), claims, usual)
    for client, factor in limited.scaled.items():
        keep = plan.tasks[client].keep
        for slot in _slots(answers[client]):
            row = fleet.hand.replies[slot]
            row *= torch.where(fleet.mask(keep), 1.0, factor) if keep else factor
            if plan.sketch is not None:
                fleet.hand.sketches[slot] *= factor
    scaled.update(limited.scaled)
    return {c: replace(answer, refused=answer.refused or limited.refused.get(c)) for c, answer in answers.items()}


def _collude(fleet: Fleet, plan: Plan, answers: Mapping[Client, Answer]) -> None:
    """Write what adversaries send that know the updates of the honest clients, of those that began with the same models if
    there are two or more."""
    attacks = {c: attack for c, attack in fleet.world.attacks.items() if c in answers and attack.colluding}
    honest = {c: a for c, a in answers.items() if c not in fleet.world.attacks and a.update is not None and a.refused is None}
    for client, attack in attacks.items():
        own, task = answers[client], plan.tasks[client]
        alike = [a for c, a in honest.items() if plan.tasks[c].gradient == task.gradient]
        near = [a for a in alike if a.chosen == own.chosen]
        seen = near if len(near) > 1 else alike
        if own.update is None or not seen:
            continue
        for half, row in enumerate(_rows(fleet, own)):
            wrong = attack.fabricated(torch.stack([_rows(fleet, a)[half if a.second is not None else 0] for a in seen]))
            stays = torch.arange(len(row)) >= fleet.layout.trainable
            stays = stays | fleet.mask(task.keep) if task.keep else stays
            row[~stays] = wrong[~stays]
            if plan.sketch is not None:
                shown = row.masked_fill(stays, 0.0)[None, plan.columns or slice(None)]
                fleet.hand.sketches[own.second if half else own.slot] = sketch(shown, plan.sketch)[0]


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


def _average(
    fleet: Fleet, plan: Plan, answers: Mapping[Client, Answer], counted: Mapping[Client, int], means: Means
) -> None:
    groups = [answer.chosen if plan.tasks[client].trains else () for client, answer in answers.items()]
    weigh = amounts(np.array([counted[client] for client in answers]), plan.weighting)
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
