"""Replies as a method sees them: read with suspicion, refused with a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from coterie.engines.flower.messages import ARRAYS, KEPT, LARGEST, METRICS, UPDATE, UPDATES, Unfit
from coterie.engines.gather import needed
from coterie.engines.halves import products
from coterie.robust import Robust, lengths


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
    """A reply to a task. Raises :class:`Unfit`, and nothing else, whatever the reply holds."""
    try:
        return _read(reply, plan, task, wire, secret)
    except Unfit:
        raise
    except Exception as error:  # one client must not stop the others by what nobody has thought of
        raise Unfit(f"its reply cannot be read: {type(error).__name__} {error}") from error


def _read(reply: Message, plan: Plan, task: Task, wire: Wire, secret: str | None) -> Heard:
    if reply.has_error():
        raise Unfit(f"its app failed: {reply.error.reason or reply.error.code}")
    if not reply.has_content():
        raise Unfit("its reply is empty")
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
    """Which of the models offered it chose; an app that has no choice need not say so."""
    told, count = messages.numbers(metrics, "chosen"), len(task.offered)
    if not told and task.choose == count:
        return list(range(count))
    places = {place for value in told[:count] if (place := messages.whole(value)) is not None and place < count}
    if not len(told) == len(places) == task.choose:
        raise Unfit(f"it chose {list(told[:9])} of {count} models")
    return [int(value) for value in told]


def _measured(metrics: Any, task: Task) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not task.measure:
        return (), ()
    losses, accuracies = (messages.numbers(metrics, name) for name in ("losses", "accuracies"))
    if len(losses) != len(task.offered) or len(accuracies) != len(task.offered):
        raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
    if not all(abs(value) <= LARGEST for value in losses + accuracies):
        told = f"the losses or accuracies it measured on its {task.measure} data are not all finite numbers of single precision"
        raise Unfit(f"{told}; it may have none")
    return tuple(map(float, losses)), tuple(map(float, accuracies))


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
    for row in rows:
        if why := wire.unclipped(row, task):
            raise Unfit(why)
    return tuple(rows)


def _seen(rows: Sequence[Tensor], plan: Plan) -> list[Tensor]:
    """The rows, and what else a Gram matrix may be taken of."""
    if plan.sketch is None:
        return list(rows)
    return [*rows, *sketch(torch.stack(tuple(rows))[:, plan.columns or slice(None)], plan.sketch)]


def _decompressed(arrays: Any, name: str, wire: Wire, stay: Tensor | None) -> Tensor:
    record = arrays.get(name, {})
    try:
        return wire.unpack({key: torch.from_numpy(messages.array_of(record, key)) for key in record}, stay)
    except Unfit:
        raise
    except (ValueError, TypeError) as error:  # TypeError: of a type that PyTorch has not
        raise Unfit(f"its update is not compressed by {wire.boundary.compress}: {error}") from None


def gathered(plan: Plan, heard: Mapping[Client, Heard], refused: Mapping[Client, str], wire: Wire, robust: Robust) -> Replies:
    """What the plan says a step must see, from every reply that can be used and is plausible beside the others."""
    trained = {c: one for c, one in heard.items() if one.updates}
    updates, chosen = {c: one.updates for c, one in trained.items()}, {c: one.chosen for c, one in trained.items()}
    claims = {c: heard[c].examples for c in sorted(heard)}
    limited = robust.limited(lengths(plan, updates, chosen, wire), claims)
    counted = robust.counted(claims)
    taken, size = [c for c in claims if c not in limited.refused], wire.layout.size
    rows = {c: tuple(row * limited.scaled.get(c, 1.0) for row in heard[c].updates) for c in taken}
    told = Replies(
        clients=tuple(taken),
        examples=np.array([counted[c] for c in taken], dtype=np.int64),
        averaging=robust,
        claimed={c: claims[c] for c in taken if claims[c] > counted[c]},
        scaled=limited.scaled,
        chosen=tuple(heard[c].chosen for c in taken),
        losses=tuple(heard[c].losses for c in taken),
        accuracies=tuple(heard[c].accuracies for c in taken),
        refused={**refused, **limited.refused},
        updates=torch.stack([_mean(rows[c], size) for c in taken]) if any(rows.values()) else None,
        halves=products(plan, {c: rows[c] for c in taken if plan.tasks[c].halves}, taken),
    )
    return needed(plan, told if taken else replace(told, updates=torch.empty(0, size)))


def _mean(updates: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(size)
