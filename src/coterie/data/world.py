"""Who is there when: clients that join late, go away and come back, and clients that do not answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from coterie.core import Client, Groups, Training
from coterie.models.nets import described
from coterie.randomness import Purpose, generator, numpy_generator
from coterie.settings import SettingError, check, setting


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """The comings and goings of a federation; rounds count from 1.

    joins: client -> the round in which it is there for the first time; the others are there from the first. away:
    client -> the spells ``(from, to)``, both included, in which it is not there. silent: probability with which a client
    that is asked does not answer, drawn for each client and exchange. patience: rounds in a row without an answer after
    which a client counts as away: it is served no more, and admitted anew on return.
    """

    joins: Mapping[Client, int] = field(default_factory=dict)
    away: Mapping[Client, Sequence[tuple[int, int]]] = field(default_factory=dict)
    silent: float = 0.0
    patience: int = 10

    def there(self, client: Client, round: int) -> bool:
        """Whether ``client`` can be asked in ``round``."""
        return self.joins.get(client, 1) <= round and not any(a <= round <= b for a, b in self.away.get(client, ()))

    def founders(self, clients: Iterable[Client]) -> tuple[Client, ...]:
        """Those of ``clients`` that are in the federation from its first round, sorted."""
        return tuple(sorted(c for c in clients if self.joins.get(c, 1) <= 1))

    def answers(self, client: Client, exchange: int, seed: int) -> bool:
        """Whether ``client`` answers when asked in ``exchange``; of other clients' draws it knows nothing."""
        return not self.silent or bool(numpy_generator(seed, Purpose.SILENCE, exchange, client).random() >= self.silent)


def drawn(
    clients: Sequence[Client],
    seed: int,
    *,
    silent: float = 0.0,
    patience: int = 10,
    newcomers: int = 0,
    join_round: int = 1,
    leavers: int = 0,
    leave: Sequence[int] = (),
) -> Attendance:
    """Attendance with so many ``newcomers`` from ``join_round`` on and so many ``leavers`` away from round ``leave[0]`` to
    ``leave[1]``, all of them different clients at random."""
    if newcomers + leavers >= len(clients):
        raise SettingError(
            f"Scenario.newcomers {newcomers} and leavers {leavers} must leave at least one of the {len(clients)} clients"
        )
    if leavers and (len(leave) != 2 or leave[0] > leave[1]):
        raise SettingError(f"Scenario.leave must be the first and the last round of absence, got {list(leave)}")
    order = [int(c) for c in numpy_generator(seed, Purpose.ATTENDANCE).permutation(sorted(clients))]
    spell = [(leave[0], leave[1])] if leavers else []
    return Attendance(
        joins=dict.fromkeys(sorted(order[:newcomers]), join_round),
        away=dict.fromkeys(sorted(order[newcomers : newcomers + leavers]), spell),
        silent=silent,
        patience=patience,
    )


# ----------------------------------------------------------------------------------------------------
# Hostile clients: what they do to their data or to what they send.


USUAL: Mapping[str, float] = {
    "label-flip": 1.0, "sign-flip": 1.0, "scale": 10.0, "random": 1.0, "huge": 1e17, "examples": 1e6,
    "little-is-enough": 1.5, "inner-product": 1.0,
}  # fmt: skip
"""Attack -> its scale where none is given."""

ATTACKS = tuple(USUAL)
COLLUDING = ("little-is-enough", "inner-product")
"""Attacks by clients that know the updates of the others."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an adversary does. label-flip is done to its data before the first round; the others to each of its updates Δ.

    - sign-flip sends ``-scale Δ``, scale sends ``scale Δ``, and random sends Gaussian noise of norm ``scale ‖Δ‖``.
    - huge sends ``scale`` or ``-scale`` in every entry, at random.
    - examples sends ``-Δ`` and claims ``scale`` times the examples that it has.
    - little-is-enough sends ``μ - scale σ``, where μ and σ are mean and standard deviation of each entry over the honest
      updates (G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough", NeurIPS 2019, arXiv 1902.06156, algorithm 3, with
      their experiments' z of 1.5).
    - inner-product sends ``-scale μ`` (C. Xie, O. Koyejo, I. Gupta, "Fall of Empires", UAI 2019, arXiv 1903.03936, section 4).
    """

    kind: str = setting("sign-flip", "what the adversary does", choices=ATTACKS)
    scale: float = setting(1.0, "factor on the update it would have sent", gt=0, lt=1e18)

    def __post_init__(self) -> None:
        check(self)

    def tampered(self, row: Tensor, sent: Tensor, seed: int, exchange: int, client: int) -> Tensor:
        """What is sent in place of an update (or gradient) ``row`` ``(d,)``.

        sent: mask ``(d,)`` of the parameters that travel. The others, layers that stay at the client and running statistics,
        are as they were: no server could go on with a negative variance.
        """
        if self.kind == "label-flip" or self.colluding:
            return row
        if self.kind == "huge":
            coins = torch.rand(len(row), generator=generator(seed, Purpose.ATTACK, exchange, client))
            return torch.where(sent, self.scale * (coins - 0.5).sign(), row)
        if self.kind == "examples":
            return torch.where(sent, -row, row)
        if self.kind == "random":
            noise = torch.randn(len(row), generator=generator(seed, Purpose.ATTACK, exchange, client))
            length = noise[sent].norm()
            wrong = noise * (row[sent].norm() / length if length else 0.0)
        else:
            wrong = -row if self.kind == "sign-flip" else row
        return torch.where(sent, self.scale * wrong, row)

    @property
    def colluding(self) -> bool:
        """Whether it takes the updates of others to make what is sent."""
        return self.kind in COLLUDING

    def claimed(self, examples: int) -> int:
        """How many examples it says that it has."""
        return max(1, int(self.scale * examples)) if self.kind == "examples" else examples

    def fabricated(self, honest: Tensor) -> Tensor:
        """What a colluding adversary sends, ``(d,)``, given the updates ``(m, d)`` of honest clients, m >= 1."""
        mean = honest.mean(0)
        return mean - self.scale * honest.std(0, correction=0) if self.kind == "little-is-enough" else -self.scale * mean


def flipped(targets: Tensor, classes: int) -> Tensor:
    """Labels ``(s,)`` read backwards.

    >>> flipped(torch.tensor([0, 1, 9]), 10)
    tensor([9, 8, 0])
    """
    return classes - 1 - targets


# ----------------------------------------------------------------------------------------------------
# What an engine trains and tests: every client's data, the model, the objective, and the truth where there is one.


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


# ----------------------------------------------------------------------------------------------------
# Worlds in which some clients are hostile.


def among(world: World, seed: int, share: float, attack: str, scale: float | None) -> World:
    """``world`` in which ``share`` of its clients, at random, carry out ``attack``; test data are left as they are.

    scale: of the attack, None for the usual one. Raises :class:`SettingError` where nobody would be honest.
    """
    if not share:
        return world
    clients = sorted(world.clients)
    count = max(round(share * len(clients)), 1)
    if count == len(clients):
        raise SettingError(f"Scenario.adversaries must leave an honest one of the {len(clients)} clients, got {share:g}")
    drawn = numpy_generator(seed, Purpose.ADVERSARY).choice(clients, size=count, replace=False)
    chosen = Attack(kind=attack, scale=USUAL[attack] if scale is None else scale)
    attacks = dict.fromkeys(sorted(int(c) for c in drawn), chosen)
    return replace(world, attacks=attacks, clients=_clients(world, attacks) if attack == "label-flip" else world.clients)


def check_attack(share: float, attack: str) -> None:
    """Raises :class:`SettingError` for adversaries who do nothing."""
    if share and attack == "none":
        raise SettingError(f"Scenario.adversaries {share:g} needs Scenario.attack, one of {', '.join(ATTACKS)}, got none")


def _clients(world: World, attacks: dict[Client, Attack]) -> dict[Client, ClientData]:
    """All clients, of whom the adversaries' labels for training and validation are flipped."""
    about = described(world.model)
    if about is None or any(data.train.targets.ndim > 1 for data in world.clients.values()):
        raise SettingError("Scenario.attack label-flip needs class labels, and this scenario predicts words")
    return {c: _flipped(data, about["classes"]) if c in attacks else data for c, data in world.clients.items()}


def _flipped(data: ClientData, classes: int) -> ClientData:
    flip = lambda split: Split(split.inputs, split.index, flipped(split.targets, classes))  # noqa: E731
    return replace(data, train=flip(data.train), validation=flip(data.validation))
