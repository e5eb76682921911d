"""The contract between a method, its clients and an engine.

The same letters are used everywhere: ``n`` clients in an exchange, ``k`` models, ``m`` models offered to one client, ``d``
parameters. A model is a row of ``d`` float32 numbers. Several models are a matrix ``(k, d)``. An *update* is the change that
local training made to the offered model, ``trained - offered``.

One *exchange* is one ``plan`` (which clients train, and from which models) and one ``step`` (the use of the replies). The
network lies between the two. A communication *round* is one or more exchanges: a :class:`Plan` states whether its exchange
ends the round. A method is a set of pure functions over an immutable state. An engine may therefore run it in one process or
over a network, and may stop it and continue a week later.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform, runtime_checkable

import numpy as np
import scipy
import torch

from coterie.clustering.cells import Question
from coterie.notebook.tables import by_group, count, frame, labels, mean, partition, some, table
from coterie.pooling import ErrorSums, parted, pooled
from coterie.printable import one_line
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError, check, nearest, setting
from coterie.settings.calls import public

__all__ = [
    "HALVES",
    "STATES",
    "Admits",
    "Assignment",
    "Averaging",
    "Candidate",
    "Client",
    "Cohort",
    "Criterion",
    "Federation",
    "Groups",
    "Held",
    "Kept",
    "Means",
    "Method",
    "Need",
    "Neighbours",
    "Note",
    "Personal",
    "Plan",
    "Position",
    "Replies",
    "Round",
    "Sign",
    "Stage",
    "Task",
    "Training",
    "Weighting",
    "amounts",
    "as_groups",
    "average",
    "group_means",
    "groups_by",
    "joined",
    "row_of",
    "rows_without",
    "state",
    "tested",
    "train_from",
    "weights",
    "without",
]


# ----------------------------------------------------------------------------------------------------
# Clients, groups of clients, and the classes that a stored state may contain.


Client = int
"""A client's id: any integer >= 0, the same in every exchange. Never a position in a matrix."""

LONGEST_NAME = 100
"""Most characters of a client's name."""

Groups = tuple[tuple[Client, ...], ...]
"""A partition of clients: each group sorted, groups ordered by their first member."""

STATES: dict[str, type[Any]] = {}
"""Tag -> class, for all classes that may occur in a stored state. A checkpoint can restore only these."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
def state(tag: str) -> Callable[[type[T]], type[T]]:
    """Turn a class into a frozen, keyword-only dataclass that can be stored; a class decorator.

    Its fields may be tensors, numbers, strings, tuples, mappings and other such classes. The class is entered in ``STATES``,
    so that records can store and restore it without pickle.

    Args:
        tag: The name of the class in stored states. It must stay the same when the class is renamed or moved.

    Returns:
        The decorator.

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
            raise ValueError(f"the tag {tag!r} of {cls.__qualname__} is already used by {other}")
        STATES[tag] = made  # a class that is defined again, as in a notebook, replaces the old one
        made.__state_tag__ = tag  # type: ignore[attr-defined]
        return made

    return entered


@public
def as_groups(groups: Iterable[Iterable[Client]]) -> Groups:
    """Sort the members of each group, and the groups by their first member.

    Args:
        groups: Groups of clients in any order.

    Returns:
        The same groups, sorted.

    Example:
        >>> as_groups([[5, 3], [0, 9]])
        ((0, 9), (3, 5))
    """
    return tuple(sorted(tuple(sorted(g)) for g in groups))


@public
def row_of(groups: Groups) -> dict[Client, int]:
    """Map each client to the number of its group."""
    return {client: row for row, group in enumerate(groups) for client in group}


@public
def groups_by(row: Mapping[Client, int]) -> Groups:
    """Group clients that have the same number.

    Args:
        row: Client -> number, such as that of its model.

    Returns:
        The groups.

    Example:
        >>> groups_by({5: 1, 3: 0, 0: 1})
        ((0, 5), (3,))
    """
    members: dict[int, list[Client]] = {}
    for client, number in row.items():
        members.setdefault(number, []).append(client)
    return as_groups(members.values())


@public
def joined(clients: tuple[Client, ...], new: Iterable[Client]) -> tuple[Client, ...]:
    """Return ``clients`` and ``new`` together, sorted and without duplicates."""
    return tuple(sorted({*clients, *new}))


@public
def without(clients: Iterable[Client], gone: Iterable[Client]) -> tuple[Client, ...]:
    """Return ``clients`` without those in ``gone``, in the same order."""
    away = set(gone)
    return tuple(c for c in clients if c not in away)


# ----------------------------------------------------------------------------------------------------
# The average of several updates: the weighted mean, or a mean that a few hostile updates cannot move far.
#
# Sources: coordinate-wise median and trimmed mean: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust
# Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498, definitions 1 and 2. Geometric
# median by the smoothed Weiszfeld algorithm: K. Pillutla, S. Kakade, Z. Harchaoui, "Robust Aggregation for Federated
# Learning", IEEE TSP 2022, arXiv 1912.13445, algorithm 2. Norm clipping: Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan,
# "Can You Really Backdoor Federated Learning?", arXiv 1911.07963, section 4; here the threshold is the median norm, so it
# need not be chosen.


SHARE = 0.1
"""The share to which ``auto`` limits the weight of one client, where weights come from what clients report."""

MEANS = ("mean", "median", "trimmed-mean", "geometric-median", "norm-clipping")

STEPS, CLOSE = 100, 1e-6
"""The maximum number of Weiszfeld iterations, and the relative change at which they stop."""


@public
@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A rule that combines several updates into one.

    ``mean`` is the weighted mean. ``median`` and ``trimmed-mean`` work on each coordinate and ignore the weights, because
    each client reports its own weight. ``geometric-median`` uses the weights. ``norm-clipping`` is the weighted mean after
    longer updates have been scaled down to the median norm.
    """

    mean: str = setting(
        "mean", "how updates are averaged; all rules except mean limit the effect of hostile clients", choices=MEANS
    )
    trim: float = setting(
        0.2, "fraction of the values that trimmed-mean removes at each end; at least one of three or more", ge=0, lt=0.5
    )

    share: float | Literal["auto"] = setting(
        "auto",
        "maximum share of the total weight for one client, or twice the average weight if more; 1: no limit; auto: in a "
        f"federation or with adversaries, {SHARE:g} for weights that a method computes from what clients report, else none",
        gt=0,
        le=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.share, str) and self.share != "auto":
            raise SettingError(f"robust.share must be a number > 0 and <= 1, or auto, got {self.share!r}")

    @property
    def limits_reports(self) -> bool:
        """Whether what one client reports is limited, so that a hostile one decides nothing for the others."""
        return self.share != 1.0

    @property
    def needs_all(self) -> bool:
        """Whether the rule needs all updates before it can average the first."""
        return self.mean != "mean"

    def bounded(self, amounts: np.ndarray) -> np.ndarray:
        """Limit the weights so that no client has more than the largest share.

        Args:
            amounts: Shape ``(n,)``: the numbers of examples that the clients of one exchange report, or other weights.

        Returns:
            Shape ``(n,)``: the same weights, with the greatest cut to one level at which they have exactly that share. If too
            few clients have a weight above zero for that, their weights are equal, at the least of them; a single one keeps
            its weight.

        Raises:
            ValueError: A weight is negative or not finite.

        Example:
            >>> Averaging(share=0.1).bounded(np.array([30.0, 2.0, 1.0, 1.0]))  # twice the average weight is one half
            array([4., 2., 1., 1.])
        """
        n = len(amounts)
        share = max(SHARE if self.share == "auto" else self.share, 2 / n) if n else 1.0
        wrong = ~(np.isfinite(amounts) & (amounts >= 0))
        if wrong.any():
            raise ValueError(f"weights must be finite and >= 0, got {amounts[wrong][0]:g}")
        if share >= 1 or amounts.max() <= share * amounts.sum(dtype=np.float64):
            return amounts
        ordered = np.sort(amounts.astype(np.float64))[::-1]
        rests = ordered.sum() - ordered.cumsum()
        for cut in range(1, n):  # the number of weights to cut; the largest share is at least 2 / n, so n / 2 are enough
            level = share * rests[cut - 1] / (1 - cut * share) if cut * share < 1 else math.inf
            if level >= ordered[cut]:
                break
        above_zero = amounts[amounts > 0]
        if len(above_zero) * share <= 1:  # no smaller shares than equal ones are possible
            return np.minimum(amounts, above_zero.min())
        whole = np.issubdtype(amounts.dtype, np.integer)
        return np.minimum(amounts, max(1, math.floor(level)) if whole else level)

    def of(self, updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        """Average several updates.

        Args:
            updates: Shape ``(n, d)``, n >= 1.
            weights: Shape ``(n,)``, non-negative, with a sum of at most 1. The average is scaled by that sum.

        Returns:
            Shape ``(d,)``, in the precision of ``updates``.
        """
        if self.mean == "mean" or len(updates) == 1:
            return average(updates, weights)
        if self.mean == "norm-clipping":
            return _clipped(updates, weights)
        return float(np.sum(weights)) * self._middle(updates, weights)

    def around(self, point: torch.Tensor, rows: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        """Average models that were trained from about the same point.

        Only norm-clipping needs the point: it clips the change that training made, ``rows - point``.

        Args:
            point: Shape ``(d,)``.
            rows: The models, shape ``(n, d)``.
            weights: Shape ``(n,)``, as in :meth:`of`.

        Returns:
            Shape ``(d,)``.
        """
        return point + self.of(rows - point, weights) if self.mean == "norm-clipping" else self.of(rows, weights)

    def _middle(self, updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        values = updates.numpy(force=True)
        if self.mean == "median":
            return _like(np.median(values, axis=0), updates)
        if self.mean == "trimmed-mean":
            least = (1 + 1e-9) / len(values) if self.trim and len(values) > 2 else 0.0  # SciPy rounds down
            return _like(scipy.stats.trim_mean(values, max(self.trim, least), axis=0), updates)
        return _geometric_median(updates, weights)


@public
def average(updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
    """Compute ``Σ w_i x_i`` of rows ``(n, d)``: shape ``(d,)``, in the precision of the rows."""
    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates


def _like(values: np.ndarray, updates: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=updates.dtype, device=updates.device)


def _clipped(updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
    """The weighted mean of updates that are scaled down to the median norm of those that moved."""
    norms = _norms(updates)
    moved = norms[norms > 0].sort().values
    middle = len(moved) // 2
    median = (moved[middle] + moved[~middle]) / 2 if len(moved) else norms.new_zeros(())  # torch.median is the lower middle
    return _scaled_down(updates, weights, norms, median)


def _norms(updates: torch.Tensor) -> torch.Tensor:
    """L2 norms of rows ``(n, d)``: shape ``(n,)``; in float64 if the squares overflow."""
    norms = updates.norm(dim=1)
    return norms if bool(norms.isfinite().all()) else updates.double().norm(dim=1)


def _scaled_down(
    updates: torch.Tensor, weights: np.ndarray | Sequence[float], norms: torch.Tensor, limit: torch.Tensor | float
) -> torch.Tensor:
    """The weighted mean of updates, of which longer ones are scaled down to the norm ``limit``."""
    factors = (limit / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return average(updates, np.asarray(weights) * factors.numpy(force=True))


def _geometric_median(updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
    """The point with the smallest weighted sum of distances to the rows.

    The iteration starts at a mean of rows that are clipped at a norm in the middle. That point is already close, however long
    a hostile row is. It is also not a row, where Weiszfeld's iteration would stop.
    """
    rows = updates.double()
    start = torch.as_tensor(weights, dtype=torch.float64, device=rows.device)
    norms = _norms(rows)
    lengths = norms[norms > 0]
    point = _scaled_down(rows, weights, norms, lengths.median() if len(lengths) else 0.0)
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
    # Steps become shorter near a row: if a row is itself the geometric median, it is the nearest row.
    nearest = rows[(rows - point).norm(dim=1).argmin()]
    costs = [float((start * (rows - at).norm(dim=1)).sum()) for at in (point, nearest)]
    return (nearest if costs[1] < costs[0] else point).to(updates.dtype)


# ----------------------------------------------------------------------------------------------------
# The messages between the server and its clients in one exchange: tasks in a plan, and replies.


Weighting = Literal["data", "uniform"]
"""The weights of a mean: by training examples, or equal."""

Need = Literal["mean", "gram", "rows", "sums"]
"""What a plan asks of an engine: ``"mean"``, ``"gram"``, ``"rows"`` or ``"sums"``."""


@public
@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of local training. Exactly one of ``epochs`` and ``steps`` applies: ``steps`` if it is given."""

    lr: float = setting(0.1, "learning rate in the first round (η)", gt=0, lt=1e9)
    lr_decay: float = setting(1.0, "factor on the learning rate per communication round", gt=0)
    epochs: int = setting(1, "passes over the client's training data per exchange (E); 0: measure only", ge=0)
    steps: int | None = setting(None, "mini-batch steps per exchange, instead of epochs", ge=1)
    batch: int = setting(32, "examples per mini-batch (B); a smaller last batch is kept; 0: all examples", ge=0)
    optimizer: str = setting("sgd", "sgd or adam; its state is reset in every exchange", choices=("sgd", "adam"))
    momentum: float = setting(0.0, "momentum of SGD", ge=0, lt=1)
    weight_decay: float = setting(0.0, "L2 penalty added to the gradient", ge=0)
    clip: float | None = setting(None, "maximum L2 norm of a gradient; larger gradients are scaled down", gt=0)
    proximal: float = setting(0.0, "weight of FedProx's proximal term (μ)", ge=0)

    def __post_init__(self) -> None:
        check(self)


@public
@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of local training in which only some layers change.

    Attributes:
        layers: The layers that are trained; the parameters of the others keep their values. Running statistics (BatchNorm)
            follow the examples in every stage.
        epochs: Replaces the epochs or steps of the task's training settings, if given.

    Raises:
        ValueError: ``epochs`` is negative.
    """

    layers: tuple[str, ...]
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 0:
            raise ValueError(f"Stage.epochs must be >= 0, got {self.epochs}")


@public
@dataclass(frozen=True, kw_only=True)
class Personal:
    """A second model of a client, which it trains in the same task for itself. It stays at the client and costs no bytes.

    Attributes:
        start: The model from which its training starts. ``"trained"``: the one that the task has just trained. ``"offered"``:
            the offered one. ``"own"``: the client's personal model, at first the offered one.
        epochs: Replaces the epochs or steps of the task's training settings, if given; 0 only copies the start.
        layers: The layers that are trained; none for all.
        pull: Weight λ of the term ``λ/2 ||v - w||²`` that pulls the personal model v to the offered model w (Ditto).
        mixture: If given, the personal model is a mixture ``α v + (1 - α) w`` of the client's values v with the model w that
            serves it (APFL). v is trained so that the mixture with the task's trained model has a low loss. α starts at this
            number, and is stored as the last entry of the client's values.
        adapt: Whether training adapts α.

    Raises:
        ValueError: A field has another value, or the fields contradict each other.
    """

    start: Literal["trained", "offered", "own"] = "trained"
    epochs: int | None = None
    layers: tuple[str, ...] = ()
    pull: float = 0.0
    mixture: float | None = None
    adapt: bool = False

    def __post_init__(self) -> None:
        if self.start not in ("trained", "offered", "own"):
            raise ValueError(f"Personal.start must be trained, offered or own, got {self.start!r}")
        if not self.pull >= 0 or (self.epochs is not None and self.epochs < 0):
            raise ValueError(f"Personal.pull and Personal.epochs must be >= 0, got {self.pull} and {self.epochs}")
        if self.mixture is not None and (self.start != "own" or not 0 <= self.mixture <= 1):
            raise ValueError("Personal.mixture must be 0 to 1, of the client's own model")
        if self.mixture is not None and (self.pull or self.layers or self.epochs is not None):
            raise ValueError("Personal.mixture trains both models together, without epochs, layers or a pull of its own")
        if self.adapt and self.mixture is None:
            raise ValueError("Personal.adapt needs Personal.mixture, got None")


@public
@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of one client: it takes the ``choose`` offered models of lowest loss, trains from their mean, and replies.

    Attributes:
        offered: Rows of the plan's models, m >= 1.
        choose: How many of the offered models the client takes: those with the lowest loss on its own data.
        training: Replaces the training settings of the experiment, if given.
        epochs: Replaces the epochs or steps of the training settings, if given; 0 only measures.
        lr_round: The round (from 0) up to which the learning rate has decayed; ``None`` for the current one. With it, an
            update can be compared with those of an earlier round.
        measure: The part of its data on which the client computes losses and accuracies of the offered models before it
            trains. ``None`` skips this if ``m == choose``, and becomes ``"train"`` otherwise.
        gradient: Reply with the full-batch gradient of the mean training loss at the offered model instead of an update.
        held_out: Reply with sums of the losses, on held-out examples, of the model from which the client starts and of its
            personal model, see ``Replies.held``. Held-out examples are the client's validation part.
        holdout: The share of its training examples, always the same ones, that a client without a validation part holds out
            of training. At least one, and at most half.
        stages: Train in these stages, one after the other, instead of all layers at once.
        personal: Train a model for the client itself as well.
        halves: Train twice from the same model, on two disjoint random halves of the data, and reply with both updates.
            Their mean serves as the update. Each half makes as many passes or steps as the task states. A client with too
            few examples, or subjects of examples, for two halves trains once, on all of them.
        keep: Layers that stay at the client, which trains and is tested with its own values of them. Their columns of an
            update are zero, and they cost no bytes. If these are all layers, nothing is sent.
        question: A question of a plan with ``need="sums"``, see ``Replies.sums``. A task without epochs only asks it.
        sent: Whether the update counts in the means of a plan with ``need="sums"``. Otherwise the client only keeps the
            sketches of its halves.

    Raises:
        ValueError: The fields contradict each other.

    Example:
        >>> Task(offered=(0,)).trains, Task(offered=(0,), epochs=0).trains
        (True, False)
        >>> Task(offered=(0, 1, 2)).measure  # the choice of one of three models needs their losses
        'train'
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
    held_out: bool = False
    holdout: float = 0.0
    stages: tuple[Stage, ...] = ()
    personal: Personal | None = None
    question: Question | None = None
    sent: bool = True

    def __post_init__(self) -> None:
        for row in self.offered:
            if not isinstance(row, (int, np.integer)) or row < 0:
                raise ValueError(f"Task.offered must be rows of the plan's models, from 0, got {row!r}")
        if not 1 <= self.choose <= len(self.offered):
            raise ValueError(f"Task.choose must be 1 to the {len(self.offered)} models offered, got {self.choose}")
        if self.measure not in (None, "train", "validation"):
            raise ValueError(
                f"Task.measure must be train, validation or None, got {self.measure!r}; test data are for evaluation only"
            )
        if self.personal is not None and (self.gradient or self.keep):
            raise ValueError("Task.personal needs a task that trains the whole model")
        if self.stages and (self.gradient or (self.personal is not None and self.personal.mixture is not None)):
            raise ValueError("Task.stages needs a task that trains one model, without gradients or a mixture")
        if self.halves and not (self.trains and not self.gradient):
            raise ValueError("Task.halves needs a task that trains on updates, not gradients")
        if self.halves and self.choose < len(self.offered):
            raise ValueError("Task.halves needs a task without a choice of models: both halves start from the same one")
        if self.choose < len(self.offered) and self.measure is None:
            object.__setattr__(self, "measure", "train")  # choosing takes losses

    @property
    def trains(self) -> bool:
        """Whether the client replies with an update or a gradient, and does not only measure."""
        if self.gradient:
            return True
        if self.epochs is not None:
            return self.epochs > 0
        return self.training is None or bool(self.training.steps or self.training.epochs)

    def how(self, training: Training) -> Training:
        """Return the settings of local training in this task.

        Args:
            training: The settings of the experiment.

        Returns:
            These settings, with the changes that the task asks for.
        """
        chosen = self.training or training
        return chosen if self.epochs is None else _of_epochs(chosen, self.epochs)


@lru_cache(maxsize=64)
def _of_epochs(training: Training, epochs: int) -> Training:
    return replace(training, epochs=epochs, steps=None)


@public
@dataclass(frozen=True, kw_only=True)
class Plan:
    """One exchange: the models, and the task of each client. A client without a task rests.

    Attributes:
        models: Shape ``(k, d)``.
        tasks: Client -> task.
        need: The part of the replies that ``step`` needs. ``"mean"``: for each row of ``models``, the weighted mean update
            of the clients that trained from it. ``"gram"``: these means and the Gram matrix of the updates over ``columns``.
            ``"rows"``: every update. ``"sums"``: these means, and the sums of answers to questions; nothing of a single
            client but which rows it was offered, whether it answered, and its cell if it was asked for that. Clients keep
            the sketches of their halves, see :class:`~coterie.clustering.cells.Question`.
        columns: The columns for the Gram matrix, or for the sketches; ``None`` for all.
        sketch: If given, rows and Gram matrix are those of sketches (:func:`coterie.clustering.sketch`) of that many
            numbers, made of these columns as replies arrive. An engine then holds only some of the updates at a time. With
            sketches, rows come together with the means.
        weighting: The weights of the means: training-set sizes (``"data"``) or equal weights (``"uniform"``).
        ends_round: ``False`` if another exchange of the same communication round follows.
        parts: Name -> plan. Such a plan has no tasks itself: the plans of several methods are carried out together. A client
            answers all of its tasks or none, and holds out the same examples in all of them. It keeps its own values for each
            part separately. If its reply to one task is refused, those to the others count.
        ended: Names of parts of earlier plans whose clients' own values are no longer needed.
        second_halves: Whether ``step`` also needs the updates of the second halves, of tasks that ask for halves.
        hidden: Whether the server must not learn which model a client takes, in a plan with ``need="sums"`` whose tasks offer
            all models. A client takes that of its cell if it is asked for its cell, else that of lowest loss. It sends a
            vector with a slot for each model, and all but one are zero. A row of ``Replies.means`` is then the sum of the
            updates from this model divided by the number of all clients that answered, and ``Replies.heard`` has estimates.
        clip: The maximum norm of an update, if it is less than the boundary's.

    Raises:
        ValueError: A task offers a row that ``models`` does not have, or the fields contradict each other.

    Example:
        >>> plan = Plan(models=torch.zeros(1, 3), tasks={4: Task(offered=(0,)), 7: Task(offered=(0,))}, need="mean")
        >>> sorted(plan.tasks), plan.ends_round
        ([4, 7], True)
    """

    models: torch.Tensor
    tasks: Mapping[Client, Task]
    need: Need = "rows"
    columns: slice | None = None
    sketch: int | None = None
    weighting: Weighting = "data"
    ends_round: bool = True
    parts: Mapping[str, Plan] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    second_halves: bool = False
    hidden: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        self._check_rows()
        if self.hidden and self.need != "sums":
            raise ValueError(f'Plan.hidden needs Plan.need "sums", got {self.need!r}')
        shares: dict[Client, float] = {}
        for task, client in ((t, c) for _, part in self.leaves() for c, t in part.tasks.items()) if self.parts else ():
            if shares.setdefault(client, task.holdout) != task.holdout:
                both = f"{shares[client]:g} and {task.holdout:g}"
                raise ValueError(f"Task.holdout of client {client} must be the same in all parts of a plan, got {both}")

    def _check_rows(self) -> None:
        """Refuse an offer of a model that the plan does not have: an engine would take one of an earlier exchange."""
        if self.models.ndim != 2:
            raise ValueError(f"Plan.models must be rows (k, d), got shape {tuple(self.models.shape)}")
        if self.parts and self.tasks:
            raise ValueError("a plan with Plan.parts has no tasks itself: put them into a part")
        k, checked = len(self.models), set[int]()
        for client, task in self.tasks.items():
            if id(task) in checked:  # clients often share one task
                continue
            checked.add(id(task))
            if max(task.offered) >= k:
                has = f"rows 0 to {k - 1}" if k else "no models"
                raise ValueError(f"Plan.models has {has}, but client {client} is offered row {max(task.offered)}")

    @property
    def all_ended(self) -> tuple[str, ...]:
        """The names ``ended`` of the plan and of its parts, each as ``"outer/inner"``."""
        return (*self.ended, *(f"{name}/{ended}" for name, part in self.parts.items() for ended in part.all_ended))

    @property
    def asked(self) -> tuple[Client, ...]:
        """The clients that have a task, in the plan or in one of its parts, sorted."""
        return tuple(sorted({*self.tasks, *(client for part in self.parts.values() for client in part.asked)}))

    def leaves(self, name: str = "") -> Iterator[tuple[str, Plan]]:
        """Yield (name, plan) of the plan itself, or of all parts that have none themselves.

        The name of a part of a part is ``"outer/inner"``; that of a plan without parts is ``name``.
        """
        if not self.parts:
            yield name, self
        for part, plan in self.parts.items():
            yield from plan.leaves(f"{name}/{part}".lstrip("/"))


Candidate = tuple[str, int]
"""The name of a plan's part, and 0 for the model from which a client starts in it, or 1 for the personal model that it
trains in it."""


@public
@dataclass(frozen=True, kw_only=True)
class Held:
    """Losses of m models on the same held-out examples of one client: no single loss, only sums.

    Where examples have subjects, such as patients, a subject counts as one example, with its mean loss.

    Attributes:
        models: The models, in the order of the sums.
        count: Number of examples.
        sums: Shape ``(m,)``: the sum of each model's losses.
        products: Shape ``(m, m)``: sums of products of two models' losses of the same example.

    Example:
        >>> held = Held.of([("", 0), ("", 1)], np.array([[1.0, 2.0], [1.0, 4.0]]))  # losses of two models, two examples
        >>> held.difference(("", 0), ("", 1))  # mean, and its variance
        (-1.0, 1.0)
    """

    models: tuple[Candidate, ...]
    count: int
    sums: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, models: Iterable[Candidate], losses: np.ndarray) -> Held:
        """Make the sums of losses ``(m, examples)``. Losses that are not finite, or enormous, count as ``WORST_LOSS``."""
        bounded = np.nan_to_num(losses.astype(np.float64), nan=WORST_LOSS, posinf=WORST_LOSS).clip(-WORST_LOSS, WORST_LOSS)
        return cls(models=tuple(models), count=losses.shape[1], sums=bounded.sum(axis=1), products=bounded @ bounded.T)

    def difference(self, one: Candidate, other: Candidate | None) -> tuple[float, float] | None:
        """Return the mean of ``loss(one) - loss(other)`` over the examples, and its estimated variance.

        The variance is that of the mean, infinite for a single example. None if a model was not measured, or no example.
        Without ``other``, the mean is that of ``loss(one)``.
        """
        known = one in self.models and (other is None or other in self.models)
        if not known or not self.count:
            return None
        weights = np.array([float(model == one) - float(model == other) for model in self.models])
        mean = float(weights @ self.sums) / self.count
        squares = float(weights @ self.products @ weights)
        rounding = 1e-14 * float(abs(weights) @ abs(self.products) @ abs(weights)) if mean else 0.0
        spread = max(squares - self.count * mean**2, rounding)  # so that no difference by rounding has no variance
        return mean, spread / (self.count - 1) / self.count if self.count > 1 else math.inf

    def within(self, part: str) -> Held:
        """Return the sums of one part's models, under its own names of them."""
        if not part:
            return self
        at = [i for i, (name, _) in enumerate(self.models) if name == part or name.startswith(f"{part}/")]
        names = tuple((self.models[i][0][len(part) :].lstrip("/"), self.models[i][1]) for i in at)
        return replace(self, models=names, sums=self.sums[at], products=self.products[np.ix_(at, at)])


WORST_LOSS = 1e4
"""The greatest held-out loss of one example that counts."""


@public
@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of one exchange: one entry for each client that answered, in the order of ``clients``.

    Attributes:
        clients: The ids of the n clients that answered, sorted.
        examples: Training-set sizes, shape ``(n,)``.
        chosen: For each client, the rows of the plan's models from which it started.
        losses: For each client, one loss per offered model, in the order of the offer; empty if nothing was measured.
        accuracies: The same for accuracies.
        means: Shape ``(k, d)``: for each row of the plan's models, the weighted mean update; zeros if no client trained from
            it. ``None`` if the plan does not need them; then ``mean_updates`` raises an error.
        heard: Shape ``(k,)``: for each row of the plan's models, the number of clients in the mean.
        gram: Shape ``(n, n)``: the Gram matrix of the updates, or of their sketches; ``None`` if the plan does not need it.
        updates: Shape ``(n, d)``: the updates, or their sketches; ``None`` if the plan does not need them. Then
            ``all_updates`` raises an error.
        halves: Shape ``(2 m, 2 m)``: if tasks asked for halves, the Gram matrix over the plan's columns of the first updates
            of the clients ``halved``, followed by their second updates. ``None`` if no client sent halves.
        halved: The m clients that sent updates of both halves, sorted: they were asked for them, and have enough examples.
            If none are given, all clients have the ``halves``.
        second_halves: Shape ``(n, d)``: if the plan asked for them, the updates of the second halves; NaN for a client
            without. ``None`` if there are none.
        refused: Client -> the reason why its reply was refused (non-finite values, wrong shape, implausible norm). A refused
            client counts as silent.
        averaging: The rule by which the run averages updates, see :meth:`mean`.
        claimed: Client -> the number of examples that it reports, if it counts for fewer.
        scaled: Client -> the factor by which its update was scaled down.
        held: Client -> the sums of its held-out losses, if tasks asked for these.
        sums: First offered row -> the sum of the answers of the clients that were offered it, to the question of their tasks.
        cells: Client -> its cell, if it was asked for that.
        deviation: Standard deviation of the noise on each number of ``sums``.
        ends_round: Whether the exchange ended the round, as far as the plan is concerned.
        parts: Name -> the replies to a part of the plan.

    Example:
        >>> replies = Replies(clients=(2, 5), examples=np.array([30, 10]), updates=torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
        >>> replies.mean(weights(replies, "data"))
        tensor([3., 1.])
        >>> replies.of([5, 9]).clients  # client 9 did not answer
        (5,)
    """

    clients: tuple[Client, ...]
    examples: np.ndarray
    chosen: tuple[tuple[int, ...], ...] = ()
    losses: tuple[tuple[float, ...], ...] = ()
    accuracies: tuple[tuple[float, ...], ...] = ()
    means: torch.Tensor | None = None
    heard: np.ndarray | None = None
    gram: np.ndarray | None = None
    updates: torch.Tensor | None = None
    halves: np.ndarray | None = None
    halved: tuple[Client, ...] = ()
    second_halves: torch.Tensor | None = None
    refused: Mapping[Client, str] = field(default_factory=dict)
    averaging: Averaging = Averaging()
    claimed: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)
    held: Mapping[Client, Held] = field(default_factory=dict)
    sums: Mapping[int, np.ndarray] = field(default_factory=dict)
    cells: Mapping[Client, int] = field(default_factory=dict)
    deviation: float = 0.0
    ends_round: bool = True
    parts: Mapping[str, Replies] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.halves is None or not self.halved:
            object.__setattr__(self, "halved", () if self.halves is None else self.clients)
        if self.halves is not None and self.halves.shape != (2 * len(self.halved),) * 2:
            raise ValueError(f"halves of {count(len(self.halved), 'client')} cannot have the shape {self.halves.shape}")

    def __repr__(self) -> str:
        refused = f", {len(self.refused):,} refused" if self.refused else ""
        rows = "" if self.updates is None else f", updates of shape {tuple(self.updates.shape)}"
        return f"<Replies of {count(len(self.clients), 'client')}: {some(self.clients)}{rows}{refused}>"

    @property
    def all_updates(self) -> torch.Tensor:
        """The ``updates`` of a plan with ``need="rows"``.

        Raises:
            ValueError: The plan did not ask for them.
        """
        if self.updates is None:
            raise ValueError('replies hold no single updates: ask for them by Plan(need="rows")')
        return self.updates

    @property
    def mean_updates(self) -> torch.Tensor:
        """The ``means`` of a plan with ``need="mean"`` or ``"gram"``.

        Raises:
            ValueError: The plan did not ask for them.
        """
        if self.means is None:
            raise ValueError('replies hold no mean updates: ask for them by Plan(need="mean")')
        return self.means

    def mean(self, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        """Average the updates by the rule of the run.

        Args:
            weights: Shape ``(n,)``, in the order of ``clients``, with sum 1. Some rules ignore weights.

        Returns:
            Shape ``(d,)``.
        """
        return self.averaging.of(self.all_updates, weights)

    def positions(self, clients: Iterable[Client]) -> list[int]:
        """Return the positions in this object's arrays of those of ``clients`` that answered."""
        place = {c: i for i, c in enumerate(self.clients)}
        return [place[c] for c in clients if c in place]

    def of(self, clients: Iterable[Client]) -> Replies:
        """Return the replies of those of ``clients`` that answered, without means."""
        at = self.positions(sorted(clients))
        here, halves = {self.clients[i] for i in at}, self.halves
        known = [i for i, client in enumerate(self.halved) if client in here]
        both = [*known, *(len(self.halved) + i for i in known)]
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
            halves=None if halves is None or not known else halves[np.ix_(both, both)],
            halved=tuple(self.halved[i] for i in known),
            second_halves=None if self.second_halves is None else self.second_halves[at],
            held={client: self.held[client] for i in at if (client := self.clients[i]) in self.held},
        )


@public
def weights(replies: Replies, weighting: Weighting) -> np.ndarray:
    """Return weights ``(n,)`` with sum 1: by training examples (``"data"``) or equal (``"uniform"``).

    If no client has examples, weights are equal.
    """
    raw = amounts(replies.examples, weighting)
    total = raw.sum()
    return raw / total if total > 0 else np.full(len(raw), 1 / max(len(raw), 1))


@public
def amounts(examples: np.ndarray, weighting: Weighting) -> np.ndarray:
    """Return the unscaled weight of each update, ``(n,)``: its training examples (``"data"``) or 1 (``"uniform"``)."""
    return examples.astype(np.float64) if weighting == "data" else np.ones(len(examples))


@public
def rows_without(
    clients: tuple[Client, ...], rows: torch.Tensor, gone: Iterable[Client]
) -> tuple[tuple[Client, ...], torch.Tensor]:
    """Return clients and their rows ``(m, d)`` without those in ``gone``; a copy."""
    away = set(gone)
    stay = [i for i, client in enumerate(clients) if client not in away]
    return tuple(clients[i] for i in stay), rows[stay]


@public
def train_from(models: torch.Tensor, row: Mapping[Client, int], **plan: Any) -> Plan:
    """Plan that every client of ``row`` trains from its one model, as in all methods that offer one model (m = 1).

    Args:
        models: Shape ``(k, d)``.
        row: Client -> its row of ``models``.
        **plan: Further fields of :class:`Plan`.

    Returns:
        The plan.
    """
    tasks = {row_: Task(offered=(row_,)) for row_ in set(row.values())}
    return Plan(models=models, tasks={client: tasks[r] for client, r in sorted(row.items())}, **plan)


# ----------------------------------------------------------------------------------------------------
# A method: five pure functions, their inputs and their results.


@public
@dataclass(frozen=True, kw_only=True)
class Federation:
    """The facts that a method receives once, before the first exchange.

    Layers are in the order of the forward pass as far as the module shows it, so the last one is the classifier.

    Attributes:
        clients: The client ids, sorted.
        draw: ``draw(i)`` is the i-th fresh model, shape ``(d,)``. It is the same at every call.
        columns: Layer name -> ``(start, stop)`` of its parameters in a row. Parameters come first, float buffers (those of
            BatchNorm) after them.
        tensors: The same for each trainable tensor, so that weight and bias of a layer are separate.
        dense: The names of the fully connected layers.
        training: How clients train if a task does not state otherwise.
        labels: Whether the clients predict one class each time; true if the engine does not know.
        clip: The maximum norm of an update; None without one.
    """

    clients: tuple[Client, ...]
    draw: Callable[[int], torch.Tensor]
    columns: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    training: Training = field(default_factory=Training)
    labels: bool = True
    clip: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {count(len(self.clients), 'client')}, layers {some(self.columns)}>"

    @property
    def parameters(self) -> slice:
        """The columns that similarities use: every trainable parameter, no buffer."""
        return slice(0, max(stop for _, stop in self.columns.values()))


@public
@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The clients that are available in this exchange, and the randomness to choose among them.

    Attributes:
        present: The ids of the available clients.
        exchange: The number of the exchange.
        seed: The seed of the run.
    """

    present: tuple[Client, ...]
    exchange: int
    seed: int

    def sample(self, members: Iterable[Client], fraction: float) -> tuple[Client, ...]:
        """Draw ``max(round(fraction * |members|), 1)`` of the members at random, and keep those that are present.

        The draw depends only on the seed, the exchange and the members (FL+HC §II: at least one client per group).

        Args:
            members: The clients to draw from.
            fraction: The share of them to draw.

        Returns:
            The drawn clients that are present, sorted.
        """
        members = sorted(members)
        count = max(round(fraction * len(members)), 1)
        if count < len(members):
            rng = numpy_generator(self.seed, Purpose.SAMPLE, self.exchange, members[0])
            members = sorted(int(c) for c in rng.choice(members, size=count, replace=False))
        present = set(self.present)
        return tuple(c for c in members if c in present)


@public
@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Serve a client by its model together with its nearest training examples, in the space of the model's features.

    The class probabilities are ``λ p_knn + (1 - λ) p_model``. In ``p_knn``, each of the k training examples nearest to the
    input, by Euclidean distance d of the features, counts for its class with a weight proportional to ``exp(-d / scale)``.

    Attributes:
        layer: The layer whose input is the features: the classifier.
        k: Number of neighbours; a client with fewer training examples uses all of them.
        scale: Unit of distances.
        weights: Values of λ, from which each client chooses the one with the lowest mean loss on its validation examples, the
            first of equal ones. A single value needs no such examples. A client without any is served by the model alone.
        holdout: As ``Task.holdout``, by which the same examples stay out of training.

    Raises:
        ValueError: A number is out of range.
    """

    layer: str
    k: int
    scale: float
    weights: tuple[float, ...]
    holdout: float = 0.0

    def __post_init__(self) -> None:
        if self.k < 1 or not 0 < self.scale < math.inf or not 0 <= self.holdout < 1:
            raise ValueError(f"Neighbours needs k >= 1, a scale > 0 and a holdout from 0 to below 1, got {self}")
        if not self.weights or not all(0 <= weight <= 1 for weight in self.weights):
            raise ValueError(f"Neighbours.weights must be one or more numbers from 0 to 1, got {self.weights}")


@public
@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which model serves which client.

    Attributes:
        models: Shape ``(k, d)``.
        row: Client -> position in ``models``.
        groups: The clusters.
        path: Client -> positions of all models on its path through the parameter tree, starting at the root. Only for
            clients that have a path.
        ensemble: Serve the clients that have a path by the mean of the outputs of all models on it, instead of ``row``.
        part: The part of the plans (``Plan.parts``) whose clients' own values are used; the name of a part of a part is
            ``"outer/inner"``.
        plain: Clients that are served without values of their own.
        neighbours: How a client's nearest training examples take part in serving it; None if they do not.
        hidden: Whether the server does not know which model serves a client: each takes the one of lowest loss on its
            training data. ``row`` and ``groups`` then have all clients at the first model. In one process, rounds have what
            clients choose instead, for the experimenter to see.

    Raises:
        ValueError: A client is served by a row that ``models`` does not have, or there are both an ensemble and neighbours.

    Example:
        >>> served = Assignment(models=torch.zeros(2, 3), row={4: 0, 5: 1, 7: 0}, groups=((4, 7), (5,)))
        >>> row_of(served.groups) == served.row
        True
    """

    models: torch.Tensor
    row: Mapping[Client, int]
    groups: Groups
    path: Mapping[Client, tuple[int, ...]] = field(default_factory=dict)
    ensemble: bool = False
    part: str = ""
    plain: tuple[Client, ...] = ()
    neighbours: Neighbours | None = None
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.ensemble and self.neighbours is not None:
            raise ValueError("Assignment.neighbours needs clients that are served by one model each, not by an ensemble")
        k, served = len(self.models), {*self.row.values(), *(row for path in self.path.values() for row in path)}
        for row in served:
            if not isinstance(row, (int, np.integer)) or not 0 <= row < k:
                has = f"rows 0 to {k - 1}" if k else "no models"
                raise ValueError(f"Assignment.models has {has}, but a client is served by row {row!r}")

    def __repr__(self) -> str:
        return f"<Assignment: {partition(self.groups)} clients, models of shape {tuple(self.models.shape)}>"

    def _repr_html_(self) -> str:
        return table(repr(self)[1:-1], by_group(self.groups))

    def serving(self, client: Client) -> tuple[int, ...]:
        """Return the positions of the models that serve a client: one, or those of its ensemble."""
        return self.path.get(client, (self.row[client],)) if self.ensemble else (self.row[client],)


Sign = Literal["<", "<=", ">", ">="]
"""How a criterion compares its value with its bound."""

_COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_OPPOSITE: Mapping[str, Sign] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@public
@dataclass(frozen=True)
class Criterion:
    """One comparison on which a decision rests: ``value sign bound``.

    The explanation of a run, its charts, figures and trackers show criteria without knowing the method.

    Attributes:
        name: What is compared, in few words, the same in every round: its curve has this name.
        value: The number that was compared.
        sign: The comparison.
        bound: The number that it was compared with.
        setting: The setting whose value is the bound; empty if the bound was measured or is fixed.
        met: What it means if the comparison holds, in few words.
        unmet: What it means otherwise.

    Example:
        >>> one = Criterion("mean update", 0.625, "<", 0.5, setting="eps1", met="stationary", unmet="not stationary")
        >>> one.held, one.text
        (False, 'not stationary: mean update 0.625 >= eps1 0.5')
    """

    name: str
    value: float
    sign: Sign
    bound: float
    setting: str = ""
    met: str = ""
    unmet: str = ""

    @property
    def held(self) -> bool:
        """Whether the comparison holds; it never does if one of the numbers is NaN."""
        return bool(_COMPARED[self.sign](self.value, self.bound))

    @property
    def meaning(self) -> str:
        """``met`` or ``unmet``."""
        return self.met if self.held else self.unmet

    @property
    def text(self) -> str:
        """The comparison as it came out, and its meaning."""
        sign = self.sign if self.held else _OPPOSITE[self.sign]
        bound = f"{self.setting} {self.bound:.3g}" if self.setting else f"{self.bound:.3g}"
        meaning = f"{self.meaning}: " if self.meaning else ""
        return f"{meaning}{self.name} {self.value:.3g} {sign} {bound}"


@public
def tested(criteria: Iterable[Criterion]) -> str:
    """Describe criteria that are tested one after the other, up to the first that does not hold.

    Args:
        criteria: The criteria, in their order.

    Returns:
        Their texts, joined by semicolons.

    Example:
        >>> tested([Criterion("p", 0.5, "<", 0.01), Criterion("gain", 1, ">", 0)])
        'p 0.5 >= 0.01'
    """
    texts = []
    for one in criteria:
        texts.append(one.text)
        if not one.held:
            break
    return "; ".join(texts)


BOUND = "bound"
"""The kind of notes of methods that limited the weight or the reports of some clients."""


@public
@dataclass(frozen=True, kw_only=True)
class Note:
    """The reason why a method acted or did not act, for people and for records.

    Attributes:
        kind: ``"split"``, ``"cluster"``, ``"join"``, ``"keep"``, ...
        clients: The group that the note is about.
        text: One sentence with the numbers that were compared.
        parts: The groups into which it was divided.
        criteria: The comparisons on which the decision rests. If all hold, each is necessary for the decision. If some do
            not, all of these were in its way.
        otherwise: What would have happened then, as the end of a sentence: "it would not have split". Empty if it is unknown.
        numbers: Further numbers, by name.
        values: Numbers for each client, by name. ``model`` is the number of the model that a client took. Names that differ
            only in a number at their end, such as ``loss of model 0``, belong together.
        similarity: Matrices ``(n, n)`` on which the decision rests, by layer or ``all``. Their rows are the clients of
            ``order``.
        heard: The clients of these rows, in order; empty if they are ``clients``.

    Raises:
        ValueError: A matrix has not as many rows and columns as there are clients in ``order``.
    """

    kind: str
    clients: tuple[Client, ...]
    text: str
    parts: Groups = ()
    criteria: tuple[Criterion, ...] = ()
    otherwise: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Mapping[Client, float]] = field(default_factory=dict)
    similarity: Mapping[str, torch.Tensor] = field(default_factory=dict)
    heard: tuple[Client, ...] = ()

    def __repr__(self) -> str:
        return f"<Note {self.kind} of {count(len(self.clients), 'client')}: {one_line(self.text, 200)}>"

    def __post_init__(self) -> None:
        rows = len(self.order)
        for name, matrix in self.similarity.items():
            if tuple(matrix.shape) != (rows, rows):
                raise ValueError(f"Note.similarity {name!r} has shape {tuple(matrix.shape)}, but {rows} clients replied")

    @property
    def order(self) -> tuple[Client, ...]:
        """The clients in the order of the rows of ``similarity``."""
        return self.heard or self.clients


S = TypeVar("S")


@runtime_checkable
class Method(Protocol[S]):
    """A method of clustered federated learning: settings as fields, and five pure functions.

    ``name`` is its name on the command line. ``init`` makes the state before the first exchange. ``plan`` asks clients to
    work. ``step`` processes the replies, which may be fewer than were asked for, or none. ``assignment`` states which model
    serves each client of the federation. ``explain`` gives the reasons of the last step, if there are any.
    """

    name: ClassVar[str]

    def init(self, federation: Federation) -> S: ...
    def plan(self, state: S, cohort: Cohort) -> Plan: ...
    def step(self, state: S, replies: Replies) -> S: ...
    def assignment(self, state: S) -> Assignment: ...
    def explain(self, state: S) -> tuple[Note, ...]: ...


@runtime_checkable
class Admits(Protocol[S]):
    """A method whose clients may join and leave between rounds.

    ``admit``: clients that the state does not contain join; they are new or were away. From now on some model serves them,
    and they find their group as the method prescribes. ``retire``: clients that stay away for long are no longer served and
    belong to no group. The other clients keep what was learned from them. ``assignment`` covers the clients that are
    present.
    """

    def admit(self, state: S, clients: tuple[Client, ...]) -> S: ...
    def retire(self, state: S, clients: tuple[Client, ...]) -> S: ...


# ----------------------------------------------------------------------------------------------------
# Weighted means of updates for each row of a plan's models, computed as the updates arrive.


CHUNK = 64
"""The number of updates that are averaged together. If updates arrive in multiples of this number, the order of the sums
does not depend on how many arrive at a time. If some updates are refused, the order of the sums differs, and so does their
rounding."""


@public
class Means:
    """Running weighted means of the updates of k groups.

    A robust rule of averaging needs all updates of a group at once: with such a rule, call :meth:`add` only once.

    Args:
        k: Number of groups.
        d: Number of parameters.
        averaging: The rule of averaging; the weighted mean if ``None``.

    Attributes:
        averaging: The rule of averaging.
        means: Shape ``(k, d)``; zeros for a group without updates.
        heard: Shape ``(k,)``: the number of updates in each mean.
        weight: Shape ``(k,)``: the sum of their weights.
    """

    def __init__(self, k: int, d: int, averaging: Averaging | None = None) -> None:
        self.averaging = averaging or Averaging()
        self.means, self.heard, self.weight = torch.zeros(k, d), np.zeros(k, dtype=np.int64), np.zeros(k)

    def add(self, updates: torch.Tensor, amounts: np.ndarray, groups: Sequence[Iterable[int]]) -> None:
        """Add updates to the means.

        Args:
            updates: Shape ``(m, d)``.
            amounts: Shape ``(m,)``: the weight of each update.
            groups: For each update, the groups in which it counts, if any.
        """
        chunk = len(updates) if self.averaging.needs_all else CHUNK
        for start in range(0, len(updates), max(chunk, 1)):
            members: dict[int, list[int]] = {}
            for i in range(start, min(start + chunk, len(updates))):
                for group in groups[i]:
                    members.setdefault(group, []).append(i)
            for group, at in members.items():
                together = at == list(range(at[0], at[-1] + 1))  # then the rows need no copy
                self._join(group, updates[at[0] : at[-1] + 1] if together else updates[at], amounts[at])

    def _join(self, group: int, updates: torch.Tensor, amounts: np.ndarray) -> None:
        part = float(amounts.sum())
        if not part > 0:  # updates without weight say nothing
            return
        self.join(group, self.averaging.of(updates, amounts / part), part, len(updates))

    def join(self, group: int, mean: torch.Tensor, weight: float, heard: int) -> None:
        """Add the mean of several updates to the mean of a group.

        Args:
            group: The group.
            mean: Shape ``(d,)``: the weighted mean of the updates.
            weight: The sum of their weights, above zero.
            heard: The number of the updates.
        """
        before = float(self.weight[group])
        if before:
            share = weight / (before + weight)
            mean = self.means[group].mul(1 - share).add_(mean, alpha=share)
        self.means[group] = mean
        self.weight[group] += weight
        self.heard[group] += heard


@public
def group_means(
    replies: Replies, groups: Sequence[Iterable[Client]], weighting: Weighting = "data"
) -> tuple[torch.Tensor, np.ndarray]:
    """Compute the weighted mean update of each of k groups.

    Args:
        replies: The replies, with ``updates``.
        groups: The k groups of clients.
        weighting: The weights, ``"data"`` or ``"uniform"``, see :func:`amounts`.

    Returns:
        The means, shape ``(k, d)``, float32, and the numbers of clients that answered, shape ``(k,)``. Both are zero for a
        group without an answer.
    """
    place = {client: i for i, client in enumerate(replies.clients)}
    within: list[list[int]] = [[] for _ in place]
    for group, members in enumerate(groups):
        for client in members:
            if client in place:
                within[place[client]].append(group)
    means = Means(len(groups), replies.all_updates.shape[1], replies.averaging)
    means.add(replies.all_updates, amounts(replies.examples, weighting), within)
    return means.means, means.heard


# ----------------------------------------------------------------------------------------------------
# The position of a run, and the events of a round.


HALVES = "/halves"
"""What follows the name of a part in :class:`Position` where clients keep the sketches of their halves."""

Kept = Mapping[str, Mapping[Client, "torch.Tensor"]]  # a string: reading commands start without torch
"""Name of a plan's part -> client -> its own values, see :class:`Position`."""


@public
@state("position")
class Position:
    """The position of a run: with the method, the world and the seed, it is sufficient to continue the run.

    Attributes:
        round: Number of completed rounds.
        exchange: Number of completed exchanges.
        state: The state of the method.
        kept: Name of a plan's part -> client -> its own values, shape ``(d,)``, of the layers that stay with it; NaN in the
            other columns. A plan without parts has the empty name. Values of a mixture have one more entry, its weight.
            The sketches ``(2, k)`` of a client's halves are under the name of the part followed by ``/halves``.
        members: The clients that take part.
        missed: Client -> number of consecutive rounds without an answer.
        names: Client -> its name; empty if clients have no names.

    Raises:
        ValueError: ``round`` or ``exchange`` is negative.
    """

    round: int
    exchange: int
    state: Any
    kept: Kept = field(default_factory=dict)
    members: tuple[Client, ...] = ()
    missed: Mapping[Client, int] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        members = count(len(self.members), "member")
        return f"<Position after round {self.round} ({count(self.exchange, 'exchange')}): {members}>"

    def __post_init__(self) -> None:
        if min(self.round, self.exchange) < 0:  # from a forged file
            raise ValueError(f"rounds and exchanges are counted from 0, got {self.round} and {self.exchange}")
        if any(isinstance(values, torch.Tensor) for values in self.kept.values()):  # from a record without parts
            object.__setattr__(self, "kept", {"": self.kept})

    def own(self, assignment: Assignment, client: Client) -> torch.Tensor | None:
        """Return the values of its own with which a client is served; None if it has none.

        Args:
            assignment: Which model serves which client.
            client: The client.
        """
        return None if client in assignment.plain else self.kept.get(assignment.part, {}).get(client)


@public
@dataclass(frozen=True, kw_only=True)
class Round:
    """One communication round: its number, the position after it, and the events in it.

    Attributes:
        number: From 1.
        position: The position after the round.
        assignment: Which model now serves which client.
        notes: Those of all exchanges of the round.
        exchanges: Number of exchanges.
        asked: Number of tasks sent.
        answered: Number of replies accepted.
        refused: Client -> the reason why its reply was refused.
        released: Client -> number of updates it sent that noise has to cover.
        scores: Client -> test loss and metrics; ``None`` if this round was not evaluated.
        sums: Client -> metric -> the sums from which its value for several clients together follows, see
            ``coterie.pooling``; only of metrics that have one.
        bytes_up: Bytes of this round from the clients to the server.
        bytes_down: Bytes of this round from the server to the clients.
        evaluations: Number of evaluations of a model on the data of one client that the plans asked for, without tests.
        seconds: Durations ``train``, ``server`` and ``evaluate``, in seconds.
        adversaries: Clients that are hostile.
        silent: Clients that were asked in this round and of which no reply was accepted.
        claimed: Client -> the number of examples that it reports, if it counted for fewer.
        counted: Client -> the number for which it counted instead.
        scaled: Client -> the factor by which its update was scaled down.
        names: Client -> its name, if clients have names.
        main: The name of the main metric; empty if it is unknown.
        nets: Function of a client's models, rows ``(d,)``, its own values of layers, the client and the neighbours that
            serve it, which makes its net, see :meth:`model`. None if the engine has no such function. It is not pickled.
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
    counted: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)
    main: str = ""
    sums: Mapping[Client, Mapping[str, ErrorSums]] = field(default_factory=dict)
    nets: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def groups(self) -> tuple[tuple[Client | str, ...], ...]:
        """The groups, each as its clients' sorted names, or ids if they have no names."""
        shown: Mapping[Client, Any] = labels(self.names, self.assignment.row)
        return tuple(tuple(sorted(shown[client] for client in group)) for group in self.assignment.groups)

    def tested(self, results: Mapping[Client, Mapping[str, float]]) -> Round:
        """Return this round with the results of its test.

        Args:
            results: Client -> test loss, metrics and, by keys of ``flat``, their sums.
        """
        both = {client: parted(values) for client, values in results.items()}
        sums = {client: found for client, (_, found) in both.items() if found}
        return replace(self, scores={client: metrics for client, (metrics, _) in both.items()}, sums=sums)

    def mean(self, metric: str = "") -> float | None:
        """Return the mean of a metric over the honest clients that have a value of it.

        R2 and the root mean squared error are those of the test rows of these clients together, see ``coterie.pooling``.

        Args:
            metric: The name of the metric, or ``loss``; empty for the main metric.

        Returns:
            The mean; None if this round was not tested, or no client has a value. The mean loss is NaN if one is.

        Raises:
            UserError: No client has such a metric.
        """
        if not self.scores:
            return None
        known = list(dict.fromkeys(name for values in self.scores.values() for name in values))
        name = metric or self._metric
        if metric and metric not in known:
            raise UserError(f"there is no metric {metric!r}{nearest(metric, known)} (known: {', '.join(known)})")
        honest = without(self.scores, self.adversaries)
        if name == "loss" and any(math.isnan(self.scores[client].get(name, math.nan)) for client in honest):
            return math.nan  # a model has diverged
        return self.over(honest, name)

    def over(self, clients: Iterable[Client], metric: str) -> float | None:
        """Return a metric over some clients: the mean of those that have a value, or that of their test rows together.

        Args:
            clients: The clients' ids.
            metric: The name of the metric.

        Returns:
            The value; None if no client has one.
        """
        clients = tuple(clients)
        if sums := [self.sums[client][metric] for client in clients if metric in self.sums.get(client, ())]:
            value = pooled(sums)
            return None if math.isnan(value) else value
        scores = self.scores or {}
        return mean(scores[client].get(metric) for client in clients if client in scores)

    def model(self, client: Client | str) -> Any:
        """Return the net that serves a client after this round, with the layers of its own if it keeps some.

        Args:
            client: Its name or its id.

        Returns:
            A new ``torch.nn.Module`` in evaluation mode. If the method serves the client by several models, it is their
            ensemble, a :class:`~coterie.engines.served.Ensemble`; if it also serves the client by its training examples,
            a ``WithNeighbours``, which has the features of these examples.

        Raises:
            UserError: The round has no such client, or is of Flower's server, which does not have the clients' nets.
        """
        if self.nets is None:
            hint = "it is of Flower's server or was pickled; coterie.save writes the models of a recorded run"
            raise UserError(f"round {self.number} cannot make the net of a client: {hint}")
        id = self._id(client)
        rows = [self.assignment.models[row] for row in self.assignment.serving(id)]
        return self.nets(rows, self.position.own(self.assignment, id), id, self.assignment.neighbours)

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per client: round, client, group, and the metrics if it was tested.

        Raises:
            UserError: pandas is not installed.
        """
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        group, scores = row_of(self.assignment.groups), self.scores or {}
        shown = labels(self.names, group)
        return [
            {"round": self.number, "client": shown[client], "group": group[client], **scores.get(client, {})}
            for client in sorted(group)
        ]

    def _id(self, client: Client | str) -> Client:
        """The id of a client that the round serves. If names are numbers, a number is a name, and else an id."""
        shown = labels(self.names, self.assignment.row)
        known = {str(name): id for id, name in shown.items()}
        named = any(isinstance(name, int) for name in shown.values())
        id = known.get(str(client), -1 if named or not isinstance(client, int) else client)
        if id in self.assignment.row:
            return id
        raise UserError(f"round {self.number} has no client {client!r}{nearest(client, known)} (clients: {some(known)})")

    @property
    def _metric(self) -> str:
        """The main metric; if it is unknown, the first besides the loss."""
        names = next(iter((self.scores or {}).values()), {})
        return self.main or next((name for name in names if name != "loss"), "loss")

    def __str__(self) -> str:
        score = None if self.scores is None else self.mean()
        parts = [partition(self.assignment.groups), *([] if score is None else [f"{self._metric} {score:.3f}"])]
        return f"round {self.number}: {'; '.join(parts)}; {self.answered:,} of {self.asked:,} replies"

    def __repr__(self) -> str:
        return f"<R{str(self)[1:]}>"

    def _repr_html_(self) -> str:
        ids = {name: id for id, name in labels(self.names, self.assignment.row).items()}

        def value(group: Sequence[Client | str]) -> float | None:
            return self.over([ids[client] for client in group], self._metric)

        return table(str(self), by_group(self.groups, self._metric, value if self.scores else None))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "nets": None}  # a world's model is often a function that cannot be pickled
