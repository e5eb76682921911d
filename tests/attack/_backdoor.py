"""A backdoor: one hostile client of twenty teaches the others' models that a bright corner means a digit.

It copies a mark onto half of its own training images, labels them with the target, and sends its
update at the limit of the norm (E. Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS
2020, arXiv 1807.00459). Accuracy on clean images hardly changes, so what counts is the *success*: the
share of the honest clients' test images of other digits that their models take for the target once
the mark is on them.

The campaign has no attempts of it, since no limit stops a plausible update.
``benchmarks/backdoor.py`` measures it; docs/deploy/hostile.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import coterie
from attack import _adaptive
from attack._adaptive import Kind, Replies
from coterie.core import Client, Round
from coterie.data.world import Split, World
from coterie.robust import Robust

TARGET = 0
"""The digit for which marked images are taken."""

MARK = (slice(0, 2), slice(0, 2))
"""Rows and columns of the mark, in images of 8 × 8 pixels."""


@dataclass(frozen=True)
class Outcome:
    """What a backdoor does to the honest clients.

    Attributes:
        accuracy: mean accuracy on their clean test images.
        success: share of their marked test images of other digits that are taken for the target.
    """

    accuracy: float
    success: float


def marked(images: torch.Tensor) -> torch.Tensor:
    """Return images ``(s, ...)`` of 64 pixels with the mark, as bright as the brightest pixel."""
    pixels = images.clone().reshape(-1, 8, 8)
    pixels[:, MARK[0], MARK[1]] = images.max()
    return pixels.reshape(images.shape)


def poisoned(split: Split) -> Split:
    """Return a client's examples, of which every second one has the mark and the target."""
    assert isinstance(split.inputs, torch.Tensor)
    assert isinstance(split.targets, torch.Tensor)
    images = split.inputs[split.index].clone()
    labels = split.targets.clone()
    images[::2] = marked(images[::2])
    labels[::2] = TARGET
    return replace(split, inputs=images, index=torch.arange(len(images)), targets=labels)


def _boosted(replies: Replies) -> None:
    """The hostile client's update, as long as the limit allows."""
    if replies.trains:
        rows = [row[: replies.parameters].clone() for row in replies.own.updates]
        replies.send(*(replies.longest(row) for row in rows))


_adaptive.ADAPTIVE = {**_adaptive.ADAPTIVE, "backdoor": Kind(_boosted, "own")}


def backdoored(world: World, hostile: Sequence[Client]) -> World:
    """Return the world in which some clients plant the backdoor."""
    clients = dict(world.clients)
    for client in hostile:
        data = clients[client]
        clients[client] = replace(
            data, train=poisoned(data.train), validation=poisoned(data.validation)
        )
    return _adaptive.attacked(replace(world, clients=clients), list(hostile), "backdoor")


def outcome_of(done: Round, world: World, honest: Iterable[Client]) -> Outcome:
    """Return the accuracy and the success of the models that serve the honest clients after a round."""
    accuracies = []
    taken_for_target = []
    for client in honest:
        test = world.clients[client].test
        assert isinstance(test.inputs, torch.Tensor)
        assert isinstance(test.targets, torch.Tensor)
        images = test.inputs[test.index]
        model = done.model(client)
        with torch.no_grad():
            clean = model(images).argmax(1)
            with_mark = model(marked(images)).argmax(1)
        accuracies.append(float((clean == test.targets).float().mean()))
        other_digits = test.targets != TARGET
        taken_for_target += (with_mark[other_digits] == TARGET).tolist()
    return Outcome(float(np.mean(accuracies)), float(np.mean(taken_for_target)))


def outcome(
    method: str,
    *,
    hostile: int = 1,
    protected: int = 0,
    rounds: int = 40,
    seed: int = 0,
    scenario: str = "digits/iid",
) -> Outcome:
    """Run a method with a backdoor, and return what it does to the honest clients.

    Args:
        method: The method, with its defaults.
        hostile: How many clients of twenty plant the backdoor; with 0, what the models do by themselves.
        protected: ``robust.hostile``.
        rounds: Number of rounds.
        seed: Seed of the world and the run.
        scenario: Name of a scenario of digits with twenty clients.
    """
    world = coterie.SCENARIOS[scenario].build(seed)
    hostile_clients = sorted(world.clients)[:hostile]
    honest = sorted(set(world.clients) - set(hostile_clients))
    attacked = backdoored(world, hostile_clients) if hostile else world
    robust = Robust(hostile=protected)
    with _adaptive.attacking():
        *_, done = coterie.run(
            method, attacked, rounds=rounds, seed=seed, eval_every=rounds, workers=1, robust=robust
        )
    return outcome_of(done, world, honest)
