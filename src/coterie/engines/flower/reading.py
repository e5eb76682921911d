"""Replies as a method sees them: read with suspicion, refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from coterie.boundary import Wire
from coterie.clustering import sketch
from coterie.core import Client, Plan, Replies, Task
from coterie.engines.flower import likeness, messages
from coterie.engines.flower.messages import ARRAYS, KEPT, METRICS, UPDATE, UPDATES, Unfit
from coterie.engines.gather import needed
from coterie.engines.halves import products


@dataclass(frozen=True)
class Heard:
    """One client's reply, read: see :class:`~coterie.core.Replies`. updates: none, one, or those of both halves. kept: the
    exchange after which it kept the layers that it trained from, -1 for none."""

    updates: tuple[Tensor, ...]
    examples: int
    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    kept: int


def read(reply: Message, plan: Plan, task: Task, wire: Wire, secret: str | None) -> Heard:
    """A reply to a task. Raises :class:`Unfit`."""
    if reply.has_error():
        raise Unfit(f"its app failed: {reply.error.reason or reply.error.code}")
    content = reply.content
    if task.trains and (why := likeness.unlike(content, wire.boundary, secret)):
        raise Unfit(why)
    metrics = messages.only(content.metric_records, METRICS, "metric records")
    examples = messages.whole(metrics.get("num-examples"))
    if not examples:
        raise Unfit("its reply tells no number of examples (num-examples)")
    places = _places(metrics, task)
    losses, accuracies = _measured(metrics, task)
    updates = _updates(content, plan, task, places, wire) if task.trains else ()
    kept = messages.whole(metrics.get(KEPT))
    chosen = tuple(task.offered[place] for place in places)
    return Heard(updates, wire.examples(examples), chosen, losses, accuracies, -1 if kept is None else kept)


def _places(metrics: Any, task: Task) -> list[int]:
    """Which of the models offered it chose."""
    told = messages.numbers(metrics, "chosen")
    places = [place for value in told if (place := messages.whole(value)) is not None] if told else list(range(task.choose))
    right = len(places) == len(set(places)) == task.choose and len(told) in (0, task.choose)
    if not right or max(places) >= len(task.offered):
        raise Unfit(f"it chose {list(told)} of {len(task.offered)} models")
    return places


def _measured(metrics: Any, task: Task) -> tuple[tuple[float, ...], tuple[float, ...]]:
    losses, accuracies = (messages.numbers(metrics, name) for name in ("losses", "accuracies"))
    if not task.measure:
        return (), ()
    if len(losses) != len(task.offered) or len(accuracies) != len(task.offered):
        raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
    if not np.isfinite(losses + accuracies).all():
        raise Unfit(f"the losses or accuracies it measured on its {task.measure} data are not all finite; it may have none")
    return losses, accuracies


def _updates(content: Any, plan: Plan, task: Task, places: Sequence[int], wire: Wire) -> tuple[Tensor, ...]:
    stay = wire.layout.mask(task.keep) if task.keep else None
    arrays = content.array_records
    names = UPDATES[: 2 if task.halves and UPDATES[1] in arrays else 1]  # of too few examples there are no halves
    if wire.boundary.compress != "none":
        rows = [_decompressed(arrays, name, wire, stay) for name in names]
    elif UPDATE in arrays:
        rows = [messages.unpacked(arrays[name], wire.layout, may_lack=stay) for name in names]
    else:
        trained = messages.unpacked(messages.only(arrays, ARRAYS, "array records"), wire.layout)
        rows = [trained - plan.models[[task.offered[place] for place in places]].mean(0)]
    rows = [row if stay is None else row.masked_fill(stay, 0.0) for row in rows]
    if not all(torch.isfinite(row.dot(row)) for row in _seen(rows, plan)):
        raise Unfit("its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)")
    return tuple(rows)


def _seen(rows: Sequence[Tensor], plan: Plan) -> list[Tensor]:
    """The rows, and what else a Gram matrix may be taken of."""
    if plan.sketch is None:
        return list(rows)
    return [*rows, *sketch(torch.stack(tuple(rows))[:, plan.columns or slice(None)], plan.sketch)]


def _decompressed(arrays: Any, name: str, wire: Wire, stay: Tensor | None) -> Tensor:
    record = arrays.get(name, {})
    sent = {key: torch.from_numpy(messages.array_of(record, key).copy()) for key in record}
    try:
        return wire.unpack(sent, stay)
    except ValueError as error:
        raise Unfit(f"its update is not compressed by {wire.boundary.compress}: {error}") from None


def gathered(plan: Plan, heard: Mapping[Client, Heard], refused: Mapping[Client, str], wire: Wire) -> Replies:
    """What the plan says a step must see, from every reply that can be used."""
    taken, size = sorted(heard), wire.layout.size
    trained = any(heard[c].updates for c in taken)
    updates = torch.stack([_mean(heard[c].updates, size) for c in taken]) if trained else None
    told = Replies(
        clients=tuple(taken),
        examples=np.array([heard[c].examples for c in taken], dtype=np.int64),
        chosen=tuple(heard[c].chosen for c in taken),
        losses=tuple(heard[c].losses for c in taken),
        accuracies=tuple(heard[c].accuracies for c in taken),
        refused=refused,
        updates=updates,
        halves=products(plan, {c: heard[c].updates for c in taken if plan.tasks[c].halves}, taken),
    )
    return needed(plan, told if taken else replace(told, updates=torch.empty(0, size)))


def _mean(updates: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(size)


def common_secret(replies: Iterable[Message], wire: Wire) -> str | None:
    """The digest that most replies tell under the strategy's boundary; None where no reply does."""
    return likeness.most((reply.content for reply in replies if reply.has_content()), wire.boundary)
