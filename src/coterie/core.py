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

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from coterie.randomness import Purpose, numpy_generator
from coterie.settings import check, setting

# ----------------------------------------------------------------------------------------------------
# Clients, groups of them, and what a stored state may be made of.


Client = int
"""A client's id: any whole number >= 0, the same in every exchange. Never a position in a matrix."""

Groups = tuple[tuple[Client, ...], ...]
"""A partition of clients: each group sorted, groups ordered by their first member."""

STATES: dict[str, type[Any]] = {}
"""Tag -> the class of all that may occur in a stored state: what a checkpoint may bring back to life, and nothing else."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
def state(tag: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: a frozen, keyword-only dataclass of tensors, numbers, strings, tuples, mappings and such classes.

    It is entered in ``STATES``, so that records can store and restore it without pickle.

    Args:
        tag: what stored states call the class. It must stay the same when the class is renamed or moved.

    Raises:
        ValueError: Another class has the tag.

    Example:
        >>> @state("doc.counter")
        ... class Counter:
        ...     count: int = 0
        >>> Counter(count=3).count
        3
    """

    def entered(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, kw_only=True, eq=False)(cls)
        known = STATES.setdefault(tag, made)
        ours = known.__module__.startswith("coterie.") and known.__module__ != cls.__module__
        if ours or known.__qualname__ != cls.__qualname__:
            other = f"{known.__module__}.{known.__qualname__}"
            raise ValueError(f"the tag {tag!r} of {cls.__qualname__} is that of {other} already")
        STATES[tag] = made  # a class that is defined again, as in a notebook, replaces the old one
        made.__state_tag__ = tag  # type: ignore[attr-defined]
        return made

    return entered


def as_groups(groups: Iterable[Iterable[Client]]) -> Groups:
    """Sorted members, groups ordered by their first.

    >>> as_groups([[5, 3], [0, 9]])
    ((0, 9), (3, 5))
    """
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def row_of(groups: Groups) -> dict[Client, int]:
    """client -> the number of its group."""
    return {client: row for row, group in enumerate(groups) for client in group}


def joined(clients: tuple[Client, ...], new: Iterable[Client]) -> tuple[Client, ...]:
    """``clients`` and ``new``, sorted, nobody twice."""
    return tuple(sorted({*clients, *new}))


def without(clients: Iterable[Client], gone: Iterable[Client]) -> tuple[Client, ...]:
    """``clients`` less those of ``gone``, in their order."""
    away = set(gone)
    return tuple(c for c in clients if c not in away)


# ----------------------------------------------------------------------------------------------------
# How several updates become one: the weighted mean, or a mean that a few hostile updates cannot move far.
#
# Sources: coordinate-wise median and trimmed mean: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust
# Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498, definitions 1 and 2. Geometric median
# by the smoothed Weiszfeld algorithm: K. Pillutla, S. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE
# TSP 2022, arXiv 1912.13445, algorithm 2. Norm clipping: Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really
# Backdoor Federated Learning?", arXiv 1911.07963, section 4; our threshold is the median norm, so there is no number to
# choose.


MEANS = ("mean", "median", "trimmed-mean", "geometric-median", "norm-clipping")

STEPS, CLOSE = 100, 1e-6
"""Weiszfeld's iterations at most, and the relative change at which they end."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A rule that makes one update of several.

    ``mean`` is the weighted mean. ``median`` and ``trimmed-mean`` work on each coordinate and ignore the weights, as a weight
    is a client's own claim. ``geometric-median`` is the weighted one. ``norm-clipping`` is the weighted mean after longer
    updates have been scaled down to the median norm.
    """

    mean: str = setting("mean", "how updates are averaged; every rule but mean limits what a hostile client can do",
                        choices=MEANS)  # fmt: skip
    trim: float = setting(
        0.2, "share of the values that trimmed-mean leaves out at either end; of three or more, one at least", ge=0, lt=0.5
    )

    share: float = setting(
        0.1, "largest share of all weight for one client, or twice the average weight if that is more; 1 sets no limit",
        gt=0, le=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs_all(self) -> bool:
        """Whether all updates must be known before the first is averaged."""
        return self.mean != "mean"

    def bounded(self, amounts: np.ndarray) -> np.ndarray:
        """What each client counts for, so that none has more than its share.

        Args:
            amounts: shape ``(n,)``, non-negative: the examples that the clients of one exchange claim, or other weights.

        Returns:
            Shape ``(n,)``: the same, but that the greatest are cut down to one level at which they have just the share.
        """
        n = len(amounts)
        share = max(self.share, 2 / n) if n else 1.0
        if share >= 1 or amounts.max() <= share * amounts.sum():
            return amounts
        ordered = np.sort(amounts.astype(np.float64))[::-1]
        rests = ordered.sum() - ordered.cumsum()
        for cut in range(1, n):  # so many are cut; the largest share is at least 2 / n, so n / 2 are enough
            level = share * rests[cut - 1] / (1 - cut * share) if cut * share < 1 else math.inf
            if level >= ordered[cut]:
                break
        whole = np.issubdtype(amounts.dtype, np.integer)
        return np.minimum(amounts, max(1, math.floor(level)) if whole else level)

    def of(self, updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
        """The average of several updates.

        Args:
            updates: shape ``(n, d)``, n >= 1.
            weights: shape ``(n,)``, non-negative, with a sum of at most 1; the average is scaled by that sum.

        Returns:
            Shape ``(d,)``, in the precision of ``updates``.
        """
        if self.mean == "mean" or len(updates) == 1:
            return average(updates, weights)
        if self.mean == "norm-clipping":
            return _clipped(updates, weights)
        return float(np.sum(weights)) * self._middle(updates, weights)

    def around(self, point: Tensor, rows: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
        """The average of models ``(n, d)`` that were trained from about ``point`` ``(d,)``.

        Only norm-clipping needs the point: it clips what training added, ``rows - point``.
        """
        return point + self.of(rows - point, weights) if self.mean == "norm-clipping" else self.of(rows, weights)

    def _middle(self, updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
        values = updates.numpy(force=True)
        if self.mean == "median":
            return _like(np.median(values, axis=0), updates)
        if self.mean == "trimmed-mean":
            from scipy.stats import trim_mean  # a third of a second, at every start of any run

            least = (1 + 1e-9) / len(values) if self.trim and len(values) > 2 else 0.0  # SciPy rounds down
            return _like(trim_mean(values, max(self.trim, least), axis=0), updates)
        return _geometric_median(updates, weights)


def average(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    """``Σ w_i x_i`` of rows ``(n, d)`` -> ``(d,)``, in the rows' precision."""
    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates


def _like(values: np.ndarray, updates: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=updates.dtype, device=updates.device)


def _clipped(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    norms = updates.norm(dim=1)
    moved = norms[norms > 0]
    limit = moved.median() if len(moved) else 0.0
    factors = (limit / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return average(updates, np.asarray(weights) * factors.numpy(force=True))


def _geometric_median(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    """The point of least weighted sum of distances to the rows.

    It begins at the norm-clipped mean: near already, however long a hostile row is, and not at a row, where Weiszfeld's steps
    would end.
    """
    rows = updates.double()
    start = torch.as_tensor(weights, dtype=torch.float64, device=rows.device)
    point = _clipped(rows, weights)
    for _ in range(STEPS):
        distances = (rows - point).norm(dim=1)
        smoothing = CLOSE * float(distances.median())
        if not smoothing:  # half of the rows are at the point
            break
        pull = start / distances.clamp(min=smoothing)
        new = (pull / pull.sum()) @ rows
        moved = float((new - point).norm())
        point = new
        if moved <= CLOSE * float(point.norm()):
            break
    # Steps shorten towards a row: where one is the geometric median itself, it is the nearest.
    nearest = rows[(rows - point).norm(dim=1).argmin()]
    costs = [float((start * (rows - at).norm(dim=1)).sum()) for at in (point, nearest)]
    return (nearest if costs[1] < costs[0] else point).to(updates.dtype)


# ----------------------------------------------------------------------------------------------------
# What passes between the server and its clients in one exchange: tasks in a plan, and replies.


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
    averaging: Averaging = Averaging()
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


def rows_without(clients: tuple[Client, ...], rows: Tensor, gone: Iterable[Client]) -> tuple[tuple[Client, ...], Tensor]:
    """Clients and their rows ``(m, d)`` less those of ``gone``; a copy."""
    away = set(gone)
    stay = [i for i, client in enumerate(clients) if client not in away]
    return tuple(clients[i] for i in stay), rows[stay]


def train_from(models: Tensor, row: Mapping[Client, int], **plan: Any) -> Plan:
    """Every client of ``row`` trains from its one model: the plan of all methods that offer one (m = 1)."""
    tasks = {row_: Task(offered=(row_,)) for row_ in set(row.values())}
    return Plan(models=models, tasks={client: tasks[r] for client, r in sorted(row.items())}, **plan)


# ----------------------------------------------------------------------------------------------------
# What a method is: five pure functions, what it is told, and what it tells.


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a method is told once.

    clients: their ids, sorted. draw: ``draw(i)`` is the i-th fresh model ``(d,)``, the same at every call. columns: layer
    name -> ``(start, stop)`` of its parameters in a row; parameters come first, float buffers (BatchNorm's) after them.
    tensors: the same for each trainable tensor, a layer's weight and bias apart. dense: the names of the fully-connected
    layers. Layers are in the order of the forward pass as far as the module tells, so the last is the classifier.
    training: how clients train where a task says nothing else.
    """

    clients: tuple[Client, ...]
    draw: Callable[[int], Tensor]
    columns: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    training: Training = field(default_factory=Training)

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
    """Which model serves which client: models ``(k, d)``; row: client -> position in ``models``; groups: the clusters.

    path: client -> positions of every model on its path through the parameter tree, the root's first; for those who have
    one. ensemble: serve those clients by the mean of the outputs of all models on their paths, in place of ``row``.
    """

    models: Tensor
    row: Mapping[Client, int]
    groups: Groups
    path: Mapping[Client, tuple[int, ...]] = field(default_factory=dict)
    ensemble: bool = False


@dataclass(frozen=True, kw_only=True)
class Note:
    """Why a method did or did not act, for people and for records.

    kind: ``"split"``, ``"cluster"``, ``"join"``, ``"keep"``, ... clients: the group it is about. parts: the groups it
    became. text: one sentence with the numbers compared; numbers: the same, by name. values: numbers of each client, by
    name. similarity: matrices ``(n, n)`` that the decision rests on, by layer or ``all``; their rows are the clients
    ``heard``, in that order, which are ``clients`` where nothing is said. ValueError where they are not as many.
    """

    kind: str
    clients: tuple[Client, ...]
    text: str
    parts: Groups = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Mapping[Client, float]] = field(default_factory=dict)
    similarity: Mapping[str, Tensor] = field(default_factory=dict)
    heard: tuple[Client, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.order)
        for name, matrix in self.similarity.items():
            if tuple(matrix.shape) != (rows, rows):
                raise ValueError(f"Note.similarity {name!r} is {tuple(matrix.shape)}, and {rows} clients were heard")

    @property
    def order(self) -> tuple[Client, ...]:
        """The clients in the order of the rows of ``similarity``."""
        return self.heard or self.clients


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


@runtime_checkable
class Admits(Protocol[S]):
    """A method whose clients may come and go between rounds.

    ``admit``: clients the state does not know join, new ones or such as were away. They are served by some model from
    now on, and find their group as the method says. ``retire``: clients that are gone for long are no longer served, and
    belong to no group; what others learned from them stays. ``assignment`` speaks of those who are there.
    """

    def admit(self, state: S, clients: tuple[Client, ...]) -> S: ...
    def retire(self, state: S, clients: tuple[Client, ...]) -> S: ...


# ----------------------------------------------------------------------------------------------------
# Weighted means of updates, row by row of a plan's models, taken as the updates come in.


CHUNK = 64
"""Updates averaged together. What is averaged in which order does not depend on how many came at a time, as long as that
is a multiple of this; where some were refused, sums are taken in another order, which is rounding."""


class Means:
    """Running weighted means ``(k, d)`` of k groups; ``heard`` ``(k,)`` counts their updates. Zeros where there are none.

    A robust rule of averaging looks at all updates of a group at once: with one, :meth:`add` is called once.
    """

    def __init__(self, k: int, d: int, averaging: Averaging | None = None) -> None:
        self.averaging = averaging or Averaging()
        self.means, self.heard, self.weight = torch.zeros(k, d), np.zeros(k, dtype=np.int64), np.zeros(k)

    def add(self, updates: Tensor, amounts: np.ndarray, groups: Sequence[Iterable[int]]) -> None:
        """updates ``(m, d)``; amounts ``(m,)``: what each weighs; groups: per update, those it counts in, if any."""
        chunk = len(updates) if self.averaging.needs_all else CHUNK
        for start in range(0, len(updates), max(chunk, 1)):
            members: dict[int, list[int]] = {}
            for i in range(start, min(start + chunk, len(updates))):
                for group in groups[i]:
                    members.setdefault(group, []).append(i)
            for group, at in members.items():
                together = at == list(range(at[0], at[-1] + 1))  # then the rows need no copy
                self._join(group, updates[at[0] : at[-1] + 1] if together else updates[at], amounts[at])

    def _join(self, group: int, updates: Tensor, amounts: np.ndarray) -> None:
        part, before = float(amounts.sum()), float(self.weight[group])
        mean = self.averaging.of(updates, amounts / part)
        if before:
            share = part / (before + part)
            mean = self.means[group].mul(1 - share).add_(mean, alpha=share)
        self.means[group] = mean
        self.weight[group] += part
        self.heard[group] += len(updates)


def group_means(replies: Replies, groups: Sequence[Iterable[Client]], weighting: str = "data") -> tuple[Tensor, np.ndarray]:
    """The weighted mean update of each of k groups, ``(k, d)`` in float32, and how many of it answered, ``(k,)``; zeros where
    nobody."""
    assert replies.updates is not None
    place = {client: i for i, client in enumerate(replies.clients)}
    within: list[list[int]] = [[] for _ in place]
    for group, members in enumerate(groups):
        for client in members:
            if client in place:
                within[place[client]].append(group)
    means = Means(len(groups), replies.updates.shape[1], replies.averaging)
    means.add(replies.updates, amounts(replies.examples, weighting), within)
    return means.means, means.heard


# ----------------------------------------------------------------------------------------------------
# Where a run stands, and what happened in a round.


@state("position")
class Position:
    """Where a run stands: with the method, the world and the seed, all it takes to go on.

    round, exchange: how many are completed. state: the method's. kept: client -> its own values ``(d,)`` of layers that
    stay with it (NaN in the other columns). members: who takes part. missed: rounds in a row without an answer.
    """

    round: int
    exchange: int
    state: Any
    kept: Mapping[Client, Tensor] = field(default_factory=dict)
    members: tuple[Client, ...] = ()
    missed: Mapping[Client, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.round, self.exchange) < 0:  # of a file that was forged
            raise ValueError(f"rounds and exchanges are counted from 0, got {self.round} and {self.exchange}")


@dataclass(frozen=True, kw_only=True)
class Round:
    """One communication round: its number (from 1), the position after it, and what happened.

    assignment: who is served by which model now. notes: of all its exchanges. asked, answered: tasks sent and replies
    taken. refused: client -> why its reply was turned away. claimed: client -> the examples that it says it has, where it
    counted for fewer. scaled: client -> the factor by which its update was scaled down. released: client -> updates it sent
    that noise has to cover. scores: client -> test loss and metrics, or None where this round was not evaluated. bytes: of
    this round, both ways. evaluations: of a model on one client's data that the plans asked for, tests not counted. seconds:
    ``train``, ``server``, ``evaluate``. adversaries: clients that are hostile. silent: clients asked in this round of whom no
    reply was taken.
    """

    number: int
    position: Position
    assignment: Assignment
    notes: tuple[Note, ...]
    exchanges: int
    asked: int
    answered: int
    refused: Mapping[Client, str]
    released: Mapping[Client, int]
    scores: Mapping[Client, Mapping[str, float]] | None
    bytes_up: int
    bytes_down: int
    evaluations: int
    seconds: Mapping[str, float]
    adversaries: tuple[Client, ...] = ()
    silent: tuple[Client, ...] = ()
    claimed: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)
