"""k-means++ among clients: k first models, each trained by one client that the models so far serve badly.

After D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, with a client's training loss
in place of the squared distance; ours. All models of a start are trained from the same draw, so that they differ by their
clients' data alone. Two kinds of exchange take turns:

- one client trains the next model;
- the clients asked measure the models that they have not measured yet.

The next client is drawn with probability proportional to its least loss less the smallest such loss: what is left of a
loss that every client has costs no model. The first is drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np
from torch import Tensor

from coterie.core import Client, Cohort, Plan, Replies, Task, state
from coterie.randomness import Purpose, numpy_generator

MOST_CENTRES = 50
"""An engine ends a round that has too many exchanges."""

ATTEMPTS = 5
"""Drawn clients silent in a row after which a model stays untrained: a federation that is silent must not wait for ever."""


@state("model-choice.centres")
class Centres:
    """k-means++ under way. made: models trained so far. measuring: what the next exchange does. losses: client -> its
    training losses of the first models, in their order, as many as it has measured. missed: silent in a row."""

    made: int = 0
    measuring: bool = False
    losses: Mapping[Client, tuple[float, ...]] = field(default_factory=dict)
    missed: int = 0


def plan_centre(
    centres: Centres, models: Tensor, clients: tuple[Client, ...], asked: tuple[Client, ...], cohort: Cohort, epochs: int
) -> Plan:
    """The next exchange. models ``(k, d)``: those made, and the draw in the rows that are left. clients: among whom the
    next is drawn; asked: those who measure."""
    if centres.measuring:
        tasks = {c: _measure(len(centres.losses.get(c, ())), centres.made) for c in asked}
    else:
        drawn = _draw(centres, [c for c in clients if c in cohort.present], cohort)
        tasks = {c: Task(offered=(centres.made,), epochs=epochs, lr_round=0) for c in drawn}
    return Plan(models=models, tasks=tasks, need="mean", ends_round=False)


def _measure(first: int, stop: int) -> Task:
    return Task(offered=tuple(range(first, stop)), epochs=0, measure="train")


def _draw(centres: Centres, present: list[Client], cohort: Cohort) -> tuple[Client, ...]:
    """The client that trains next, of those who have measured every model; anyone where nobody has."""
    rng = numpy_generator(cohort.seed, Purpose.CHOICE, cohort.exchange)
    known = [c for c in present if centres.made and len(centres.losses.get(c, ())) == centres.made]
    if not known:
        return (int(rng.choice(present)),) if present else ()
    least = np.array([min(centres.losses[c]) for c in known])
    excess = capped(least - least.min())
    return (int(rng.choice(known, p=excess / excess.sum() if excess.any() else None)),)


def capped(values: np.ndarray) -> np.ndarray:
    """Numbers >= 0 that n clients report, ``(n, ...)``, none above twice the second greatest: no client decides alone.

    >>> capped(np.array([1.0, 2.0, 3e38]))
    array([1., 2., 4.])
    """
    return values if len(values) < 3 else np.minimum(values, 2 * np.partition(values, -2, axis=0)[-2])


def step_centre(centres: Centres, models: Tensor, replies: Replies) -> tuple[Centres | None, Tensor]:
    """What stands after the exchange: None for the first where all k models are made, and the models ``(k, d)``."""
    if centres.measuring:
        measured = zip(replies.clients, replies.losses, strict=True)
        new = {c: (*centres.losses.get(c, ()), *losses) for c, losses in measured if np.isfinite(losses).all()}
        return replace(centres, measuring=False, losses={**centres.losses, **new}), models
    missed = 0 if replies.clients else centres.missed + 1
    if replies.clients:
        assert replies.means is not None
        models = models + replies.means  # zero but in the row that was trained
    elif missed < ATTEMPTS:
        return replace(centres, missed=missed), models
    made = centres.made + 1
    return None if made == len(models) else replace(centres, made=made, measuring=True, missed=missed), models
