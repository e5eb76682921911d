"""The contract between a method, its clients and an engine.

The same letters everywhere: ``n`` clients in an exchange, ``k`` models, ``m`` models offered to one client, ``d``
parameters. A model is a row of ``d`` float32 numbers, several models are a matrix ``(k, d)``; an *update* is what local
training added to the offered model, ``trained - offered``.

One *exchange* is one ``plan`` (who trains, from which models) and one ``step`` (what to do with the replies); between
them lies the network. A communication *round* is one or more exchanges: a :class:`Plan` says whether its exchange ends
the round. A method is pure functions over an immutable state, so an engine may run it in one process, over a network,
or stop it and go on a week later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from coterie.randomness import Purpose, numpy_generator
from coterie.settings import check, setting

Client = int
"""A client's id: any whole number >= 0, the same in every exchange. Never a position in a matrix."""

Groups = tuple[tuple[Client, ...], ...]
"""A partition of clients: each group sorted, groups ordered by their first member."""

Need = Literal["mean", "gram", "rows"]

STATES: dict[str, type[Any]] = {}
"""Every class that may occur in a stored state, by name: what a checkpoint may bring back to life, and nothing else."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
def state(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only dataclass of tensors, numbers, strings, tuples, mappings and such classes.

    It is entered in :data:`STATES`, so that records can store and restore it without pickle.
    """
    made = dataclass(frozen=True, kw_only=True, eq=False)(cls)
    STATES[f"{cls.__module__}.{cls.__qualname__}"] = made
    return made


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
class Federation:
    """What a method is told once.

    clients: their ids, sorted. draw: ``draw(i)`` is the i-th fresh model ``(d,)``, the same at every call. columns: layer
    name -> ``(start, stop)`` of its parameters in a row; parameters come first, float buffers (BatchNorm's) after them.
    """

    clients: tuple[Client, ...]
    draw: Callable[[int], Tensor]
    columns: Mapping[str, tuple[int, int]]

    @property
    def parameters(self) -> slice:
        """The columns that similarity sees: every trainable parameter, no buffer."""
        return slice(0, max(stop for _, stop in self.columns.values()))


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Who can be asked in this exchange, and the randomness to choose among them."""

    present: tuple[Client, ...]
    exchange: int
    seed: int

    def sample(self, members: Iterable[Client], fraction: float) -> tuple[Client, ...]:
        """``max(round(fraction * |members|), 1)`` of the members at random, of those present; sorted.

        Depends on the seed, the exchange and the members alone (FL+HC §II: at least one client per group).
        """
        members = sorted(members)
        count = max(round(fraction * len(members)), 1)
        if count < len(members):
            rng = numpy_generator(self.seed, Purpose.SAMPLE, self.exchange, members[0])
            members = sorted(int(c) for c in rng.choice(members, size=count, replace=False))
        present = set(self.present)
        return tuple(c for c in members if c in present)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which model serves which client: models ``(k, d)``; row: client -> position in ``models``; groups: the clusters."""

    models: Tensor
    row: Mapping[Client, int]
    groups: Groups


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client is asked: take the ``choose`` offered models of lowest loss, train from their mean, reply.

    offered: rows of the plan's models, m >= 1. training: replaces the experiment's, where given; ``epochs=0`` only
    measures. measure: which of its data the client takes losses and accuracies of the offered models on, before it
    trains; ``None`` skips that where m == choose. gradient: reply with the full-batch gradient of the mean training loss
    at the offered model in place of an update. keep: layers that stay at the client, which trains and is tested with its
    own values of them; their columns of an update are zero, and they cost no bytes (all layers: nothing travels).
    """

    offered: tuple[int, ...]
    choose: int = 1
    training: Training | None = None
    measure: Literal["train", "validation"] | None = None
    gradient: bool = False
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.choose <= len(self.offered):
            raise ValueError(f"Task.choose must be 1 to the {len(self.offered)} models offered, got {self.choose}")
        if self.measure not in (None, "train", "validation"):
            raise ValueError(f"Task.measure must be train, validation or None, got {self.measure!r}; test data are for tests")
        if self.choose < len(self.offered) and self.measure is None:
            object.__setattr__(self, "measure", "train")  # choosing takes losses

    @property
    def trains(self) -> bool:
        return self.gradient or self.training is None or bool(self.training.steps or self.training.epochs)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One exchange: models ``(k, d)`` and client -> task; clients not named rest.

    need: what ``step`` must see. ``"mean"``: the weighted mean update of those who trained from each row; ``"gram"``:
    that and the Gram matrix of the updates over ``columns``; ``"rows"``: every update. weighting: of the means.
    ends_round: False where another exchange of the same communication round follows.
    """

    models: Tensor
    tasks: Mapping[Client, Task]
    need: Need = "rows"
    columns: slice | None = None
    weighting: Literal["data", "uniform"] = "data"
    ends_round: bool = True


@dataclass(frozen=True, kw_only=True)
class Replies:
    """What came back: one entry per client that answered, in the order of ``clients`` (sorted ids).

    examples ``(n,)``: training-set sizes. chosen: the rows of the plan's models each client started from. losses,
    accuracies: per client, one per model offered, in the order offered; empty where nothing was measured. means
    ``(k, d)`` and heard ``(k,)``: weighted mean update and number of clients per row of the plan's models (zeros where
    nobody trained from it). gram ``(n, n)``, updates ``(n, d)``: as needed, else None. refused: client -> why its reply
    was turned away (non-finite, wrong shape); a refused client counts as silent.
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
    refused: Mapping[Client, str] = field(default_factory=dict)

    def positions(self, clients: Iterable[Client]) -> list[int]:
        """Where those of ``clients`` that answered stand in this object's arrays."""
        place = {c: i for i, c in enumerate(self.clients)}
        return [place[c] for c in clients if c in place]

    def of(self, clients: Iterable[Client]) -> Replies:
        """The replies of those of ``clients`` that answered; means are left behind."""
        at = self.positions(sorted(clients))
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
        )


@dataclass(frozen=True, kw_only=True)
class Note:
    """Why a method did or did not act, for people and for records.

    kind: ``"split"``, ``"cluster"``, ``"keep"``, ... clients: the group it is about. parts: the groups it became. text: one
    sentence with the numbers compared; numbers: the same, by name.
    """

    kind: str
    clients: tuple[Client, ...]
    text: str
    parts: Groups = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


S = TypeVar("S")


@runtime_checkable
class Method(Protocol[S]):
    """A method of clustered federated learning: settings as fields, five pure functions.

    ``name`` is what the command line calls it. ``init`` makes the state before the first exchange; ``plan`` asks;
    ``step`` digests the replies, which may be fewer than asked, or none; ``assignment`` tells who is served by which
    model, of every client of the federation; ``explain`` gives the reasons of the last step, if it had any.
    """

    name: ClassVar[str]

    def init(self, federation: Federation) -> S: ...
    def plan(self, state: S, cohort: Cohort) -> Plan: ...
    def step(self, state: S, replies: Replies) -> S: ...
    def assignment(self, state: S) -> Assignment: ...
    def explain(self, state: S) -> tuple[Note, ...]: ...


def as_groups(groups: Iterable[Iterable[Client]]) -> Groups:
    """Sorted members, groups ordered by their first.

    >>> as_groups([[5, 3], [0, 9]])
    ((0, 9), (3, 5))
    """
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def row_of(groups: Groups) -> dict[Client, int]:
    """client -> the number of its group."""
    return {client: row for row, group in enumerate(groups) for client in group}


def weights(replies: Replies, weighting: str) -> np.ndarray:
    """``(n,)`` weights that sum to one: by training examples (``"data"``) or equal (``"uniform"``)."""
    raw = replies.examples.astype(np.float64) if weighting == "data" else np.ones(len(replies.clients))
    return raw / raw.sum()


def average(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    """``Σ w_i x_i`` of rows ``(n, d)`` -> ``(d,)``, in the rows' precision."""
    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates


def train_from(models: Tensor, row: Mapping[Client, int], **plan: Any) -> Plan:
    """Every client of ``row`` trains from its one model: the plan of all methods that offer one (m = 1)."""
    tasks = {row_: Task(offered=(row_,)) for row_ in set(row.values())}
    return Plan(models=models, tasks={client: tasks[r] for client, r in sorted(row.items())}, **plan)
