"""What an engine trains and tests: every client's data, the model, the objective, and the truth where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from coterie.attack import Attack
from coterie.attendance import Attendance
from coterie.core import Client, Groups, Training
from coterie.settings import SettingError


@dataclass(frozen=True, eq=False)
class Split:
    """Some examples of a pool: ``inputs[index]`` with their own ``targets``.

    inputs: the pool ``(N, ...)``, shared by many splits and never copied or written. index ``(s,)`` int64: rows of the
    pool. targets ``(s, ...)``: what this client calls them (its labels may be permuted). Two splits with the same
    ``inputs`` and ``index`` objects are known to hold the same examples, so a model's outputs for them are computed once.
    """

    inputs: Tensor
    index: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.index) != len(self.targets):
            raise ValueError(f"{len(self.index)} examples but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the examples at ``positions`` of this split."""
        return self.inputs[self.index[positions]], self.targets[positions]


def whole(inputs: Tensor, targets: Tensor) -> Split:
    """A split that owns all of its pool."""
    return Split(inputs, torch.arange(len(inputs)), targets)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientData:
    """One client's data, all of its own distribution. Test data never reach a method; validation may be empty."""

    train: Split
    validation: Split
    test: Split
    name: str = ""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats; outputs ``(b, classes)`` or ``(b, t, classes)``, targets ``(b,)`` or ``(b, t)``."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1.0 where the greatest output is the target, else 0.0, one per prediction."""
    return (outputs.argmax(-1) == targets).float().flatten()


def mean_probability(outputs: Tensor) -> Tensor:
    """Of several models' outputs ``(m, b, classes)``: the logarithm of their mean class probabilities ``(b, classes)``."""
    return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """loss: (outputs, targets) -> the batch's mean loss. metrics: name -> (outputs, targets) -> one value per prediction.

    Metrics are averaged over a client's predictions. ``accuracy`` is the one reports and choices look at; objectives
    without classes put their own measure (greater is better) under that name. combine: the outputs ``(m, b, ...)`` of an
    ensemble's m models -> the ensemble's.
    """

    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=lambda: {"accuracy": accuracy})
    combine: Callable[[Tensor], Tensor] = mean_probability
    perplexity: bool = False
    """Also report exp(mean loss)."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a test reports."""
        return ("loss", *self.metrics, *(("perplexity",) if self.perplexity else ()))

    def scores(self, totals: Mapping[str, tuple[float, int]]) -> dict[str, float]:
        """The means of (sum, count) of the loss and each metric; NaN of what is not there."""
        nothing = (math.nan, 1)
        score = {name: value / count for name in ("loss", *self.metrics) for value, count in [totals.get(name, nothing)]}
        if self.perplexity:
            score["perplexity"] = math.exp(min(score["loss"], 700.0))
        return score


@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """Clients by id, the model they train, how, and the true groups where they are known.

    model: makes a module with fresh parameters from torch's global generator (engines call it in a seeded scope).
    augment: (inputs, generator) -> inputs, applied to training batches only. attendance: who is there when. attacks: what
    hostile clients do to their updates; flipped labels are in their data already.
    """

    clients: Mapping[Client, ClientData]
    model: Callable[[], nn.Module]
    training: Training = field(default_factory=Training)
    objective: Objective = field(default_factory=Objective)
    truth: Groups | None = None
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    attendance: Attendance = field(default_factory=Attendance)
    attacks: Mapping[Client, Attack] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("a world needs at least one client")
        if not (self.training.steps or self.training.epochs):
            raise SettingError("training.epochs must be >= 1 (or training.steps be set) for clients to train, got 0")
        if not self.attendance.founders(self.clients):
            raise ValueError("a world needs at least one client in its first round")
        if strangers := sorted(set(self.attacks) - set(self.clients)):
            raise ValueError(f"World.attacks names client {strangers[0]}, who is not there")
        for client, data in self.clients.items():
            if not isinstance(client, int) or client < 0:
                raise ValueError(f"a client's id must be a whole number >= 0, got {client!r}")
            if not len(data.train):
                raise ValueError(f"client {client} has no training data")
