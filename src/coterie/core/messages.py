"""What passes between the server and its clients in one exchange: tasks in a plan, and replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.averaging import Averaging
from coterie.core.state import Client
from coterie.settings import check, setting

Need = Literal["mean", "gram", "rows"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Local training, as one value. Exactly one of ``epochs`` and ``steps`` counts: ``steps`` where it is given."""

    lr: float = setting(0.1, "learning rate in the first round (η)", gt=0, lt=1e9)
    lr_decay: float = setting(1.0, "factor on the learning rate per communication round", gt=0)
    epochs: int = setting(1, "passes over the client's training data per exchange (E); 0 only measures", ge=0)
    steps: int | None = setting(None, "mini-batch steps per exchange, in place of epochs", ge=1)
    batch: int = setting(32, "examples per mini-batch (B); the last, short one is kept; 0 takes all", ge=0)
    optimizer: str = setting("sgd", "sgd or adam; its state is fresh in every exchange", choices=("sgd", "adam"))
    momentum: float = setting(0.0, "momentum of SGD", ge=0, lt=1)
    weight_decay: float = setting(0.0, "L2 penalty added to the gradient", ge=0)
    clip: float | None = setting(None, "greatest L2 norm of a gradient; larger ones are scaled down", gt=0)
    proximal: float = setting(0.0, "FedProx's pull towards the offered model (μ)", ge=0)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client is asked: take the ``choose`` offered models of lowest loss, train from their mean, reply.

    offered: rows of the plan's models, m >= 1. training: replaces the experiment's, where given. epochs: replaces its
    epochs or steps, where given; 0 only measures. lr_round: the round (from 0) by which the learning rate has decayed,
    None for now; so that an update can be compared with those of an earlier round. measure: which of its data the client
    takes losses and accuracies of the offered models on, before it trains; ``None`` skips that where m == choose.
    gradient: reply with the full-batch gradient of the mean training loss at the offered model in place of an update.
    halves: train twice from the start, on two disjoint random halves of the data, and reply with both updates; their mean
    serves as the update. Each half makes as many passes or steps as the task says. Who has too few examples for two halves
    trains once, on all of them.
    keep: layers that stay at the client, which trains and is tested with its own values of them; their columns of an
    update are zero, and they cost no bytes (all layers: nothing travels).
    """

    offered: tuple[int, ...]
    choose: int = 1
    training: Training | None = None
    epochs: int | None = None
    lr_round: int | None = None
    measure: Literal["train", "validation"] | None = None
    gradient: bool = False
    halves: bool = False
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.choose <= len(self.offered):
            raise ValueError(f"Task.choose must be 1 to the {len(self.offered)} models offered, got {self.choose}")
        if self.measure not in (None, "train", "validation"):
            raise ValueError(f"Task.measure must be train, validation or None, got {self.measure!r}; test data are for tests")
        if self.halves and not (self.trains and not self.gradient):
            raise ValueError("Task.halves are of training, and the task is none")
        if self.halves and self.choose < len(self.offered):
            raise ValueError("Task.halves begin with the same model, and the task leaves a choice")
        if self.choose < len(self.offered) and self.measure is None:
            object.__setattr__(self, "measure", "train")  # choosing takes losses

    @property
    def trains(self) -> bool:
        if self.gradient:
            return True
        if self.epochs is not None:
            return self.epochs > 0
        return self.training is None or bool(self.training.steps or self.training.epochs)

    def how(self, training: Training) -> Training:
        """Local training in this task, where the experiment's is ``training``."""
        chosen = self.training or training
        return chosen if self.epochs is None else replace(chosen, epochs=self.epochs, steps=None)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One exchange: models ``(k, d)`` and client -> task; clients not named rest.

    need: what ``step`` must see. ``"mean"``: the weighted mean update of those who trained from each row; ``"gram"``:
    that and the Gram matrix of the updates over ``columns``; ``"rows"``: every update. sketch: rows and Gram matrix are of
    sketches (:func:`coterie.clustering.sketch`) of so many numbers of these columns, made as replies arrive, so that an
    engine holds but some of the updates at a time; rows come with the means then. weighting: of the means. ends_round:
    False where another exchange of the same communication round follows.
    """

    models: Tensor
    tasks: Mapping[Client, Task]
    need: Need = "rows"
    columns: slice | None = None
    sketch: int | None = None
    weighting: Literal["data", "uniform"] = "data"
    ends_round: bool = True


@dataclass(frozen=True, kw_only=True)
class Replies:
    """What came back: one entry per client that answered, in the order of ``clients`` (sorted ids).

    examples ``(n,)``: training-set sizes. chosen: the rows of the plan's models each client started from. losses,
    accuracies: per client, one per model offered, in the order offered; empty where nothing was measured. means
    ``(k, d)`` and heard ``(k,)``: weighted mean update and number of clients per row of the plan's models (zeros where
    nobody trained from it). gram ``(n, n)``, updates ``(n, d)`` or sketches of them: as needed, else None. halves
    ``(2 n, 2 n)``: where tasks asked for halves, the Gram matrix over the plan's columns of everybody's first update and,
    behind them, everybody's second; NaN for who was not asked for them, or has too few examples; None where nobody sent any.
    refused: client -> why its reply was turned away (non-finite, wrong shape, implausible norm); a refused client counts as
    silent. averaging: how the run averages updates, see :meth:`mean`. claimed: client -> the examples that it says it
    has, where it counts for fewer. scaled: client -> the factor by which its update was scaled down.
    """

    clients: tuple[Client, ...]
    examples: np.ndarray
    chosen: tuple[tuple[int, ...], ...] = ()
    losses: tuple[tuple[float, ...], ...] = ()
    accuracies: tuple[tuple[float, ...], ...] = ()
    means: Tensor | None = None
    heard: np.ndarray | None = None
    gram: np.ndarray | None = None
    updates: Tensor | None = None
    halves: np.ndarray | None = None
    refused: Mapping[Client, str] = field(default_factory=dict)
    averaging: Averaging = Averaging()  # noqa: RUF009  (frozen)
    claimed: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)

    @property
    def halved(self) -> tuple[Client, ...]:
        """Those whose ``halves`` are known."""
        if self.halves is None:
            return ()
        own = self.halves.diagonal()[: len(self.clients)]
        return tuple(client for client, square in zip(self.clients, own, strict=True) if not np.isnan(square))

    def mean(self, weights: np.ndarray | Sequence[float]) -> Tensor:
        """The average of the updates by the run's rule.

        Args:
            weights: shape ``(n,)``, in the order of ``clients``, with sum 1; rules that ignore weights do so.

        Returns:
            Shape ``(d,)``.
        """
        assert self.updates is not None
        return self.averaging.of(self.updates, weights)

    def positions(self, clients: Iterable[Client]) -> list[int]:
        """Where those of ``clients`` that answered stand in this object's arrays."""
        place = {c: i for i, c in enumerate(self.clients)}
        return [place[c] for c in clients if c in place]

    def of(self, clients: Iterable[Client]) -> Replies:
        """The replies of those of ``clients`` that answered; means are left behind."""
        at = self.positions(sorted(clients))
        both = [*at, *(len(self.clients) + i for i in at)]
        pick = lambda rows: tuple(rows[i] for i in at) if rows else ()  # noqa: E731
        return replace(
            self,
            clients=tuple(self.clients[i] for i in at),
            examples=self.examples[at],
            chosen=pick(self.chosen),
            losses=pick(self.losses),
            accuracies=pick(self.accuracies),
            means=None,
            heard=None,
            gram=None if self.gram is None else self.gram[np.ix_(at, at)],
            updates=None if self.updates is None else self.updates[at],
            halves=None if self.halves is None else self.halves[np.ix_(both, both)],
        )


def weights(replies: Replies, weighting: str) -> np.ndarray:
    """``(n,)`` weights that sum to one: by training examples (``"data"``) or equal (``"uniform"``)."""
    raw = amounts(replies.examples, weighting)
    return raw / raw.sum()


def amounts(examples: np.ndarray, weighting: str) -> np.ndarray:
    """``(n,)``: what each client's update weighs, by its training examples (``"data"``) or one each (``"uniform"``)."""
    return examples.astype(np.float64) if weighting == "data" else np.ones(len(examples))


def rows_without(
    clients: tuple[Client, ...], rows: Tensor, gone: Iterable[Client]
) -> tuple[tuple[Client, ...], Tensor]:
    """Clients and their rows ``(m, d)`` less those of ``gone``; a copy."""
    away = set(gone)
    stay = [i for i, client in enumerate(clients) if client not in away]
    return tuple(clients[i] for i in stay), rows[stay]


def train_from(models: Tensor, row: Mapping[Client, int], **plan: Any) -> Plan:
    """Every client of ``row`` trains from its one model: the plan of all methods that offer one (m = 1)."""
    tasks = {row_: Task(offered=(row_,)) for row_ in set(row.values())}
    return Plan(models=models, tasks={client: tasks[r] for client, r in sorted(row.items())}, **plan)
