"""What an engine is asked for: a client's training, its task, and the plan of an exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch

from coterie.core.clients import Client
from coterie.extensions import entry_points, provided
from coterie.settings import SettingError, check, setting
from coterie.settings.calls import public
from coterie.settings.optimizers import (
    OWN_OPTIMIZERS,
    as_options,
    check_named,
    is_own,
    rate_of_round,
)

Weighting = Literal["data", "uniform"]
"""The weights of a mean: by training examples, or equal."""

Statistic = Literal["label-counts", "feature-mean"]
"""What a client can tell about its training data: how many examples each class has, or the mean of
the features, which are the inputs of the model's last layer."""

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""All statistics."""

Need = Literal["mean", "gram", "rows", "sums"]
"""What a plan asks of an engine: ``"mean"``, ``"gram"``, ``"rows"`` or ``"sums"``."""

WITH_NEIGHBOURS = 2
"""Added to the number of a model of which a client reports held-out losses: the model together with
the client's nearest training examples."""


@public
@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of local training. Exactly one of ``epochs`` and ``steps`` applies: ``steps`` if it is given."""

    lr: float = setting(0.1, "learning rate in the first round (η)", gt=0, lt=1e9)
    lr_decay: float = setting(1.0, "factor on the learning rate per communication round", gt=0)
    schedule: str | None = setting(
        None,
        "learning rates over the rounds, times lr_decay's: a class of torch.optim.lr_scheduler, such as "
        "torch.optim.lr_scheduler:CosineAnnealingLR",
    )
    schedule_options: tuple[str, ...] = setting(
        (), "arguments of the schedule: a table, or name=value each"
    )
    epochs: int = setting(
        1,
        "passes over the client's training data per exchange (E); 0: measure only",
        ge=0,
        only_with={"steps": (None,)},
    )
    steps: int | None = setting(None, "mini-batch steps per exchange, instead of epochs", ge=1)
    batch: int = setting(
        32, "examples per mini-batch (B); a smaller last batch is kept; 0: all examples", ge=0
    )
    optimizer: str = setting(
        "sgd",
        "sgd, adam, a class of torch.optim, such as torch.optim:AdamW, package.module:Name of your own, or of an extension, "
        "such as dp-sgd",
    )
    optimizer_options: tuple[str, ...] = setting(
        (), "arguments of the optimizer, unless it is sgd or adam: a table, or name=value each"
    )
    keep_optimizer: bool = setting(
        False,
        "whether a client's optimizer keeps its state, such as momenta; otherwise each exchange begins with a new one",
    )
    momentum: float = setting(0.0, "momentum of SGD", ge=0, lt=1, only_with={"optimizer": ("sgd",)})
    weight_decay: float = setting(0.0, "L2 penalty added to the gradient", ge=0)
    clip: float | None = setting(
        None, "maximum L2 norm of a gradient; larger gradients are scaled down", gt=0
    )
    proximal: float = setting(0.0, "weight of FedProx's proximal term (μ)", ge=0)
    augment: str | None = setting(
        None,
        "augmentation of training batches: crop-flip or flip for images, or package.module:function of your own",
    )

    def __post_init__(self) -> None:
        for name in ("optimizer_options", "schedule_options"):
            options = as_options(f"Training.{name}", getattr(self, name))
            object.__setattr__(self, name, options)
        check(self)
        if self.own_optimizer is None:
            check_named(
                self.optimizer, self.optimizer_options, self.schedule, self.schedule_options
            )
        else:
            self.own_optimizer.check_options(self.optimizer_options)
            check_named("sgd", (), self.schedule, self.schedule_options)
        if self.optimizer not in OWN_OPTIMIZERS and (self.momentum or self.weight_decay):
            name = "momentum" if self.momentum else "weight_decay"
            raise SettingError(
                f"Training.{name} is for sgd and adam, got {getattr(self, name):g} with {self.optimizer}: write "
                f"Training.optimizer_options.{name}"
            )
        if self.keep_optimizer and self.own_optimizer is not None:
            raise SettingError(
                f"Training.keep_optimizer must be false with {self.optimizer}, whose state ends with each exchange"
            )
        if self.keep_optimizer and self.optimizer == "sgd" and not self.momentum:
            raise SettingError(
                "Training.keep_optimizer needs an optimizer with a state, got sgd without momentum: set Training.momentum, "
                "or Training.optimizer"
            )

    @property
    def own_code(self) -> dict[str, str]:
        """What it is -> its name ``package.module:Name``, of code of the user's own that training calls."""
        names = {"optimizer": self.optimizer if is_own(self.optimizer) else None}
        names["augmentation"] = self.augment if ":" in (self.augment or "") else None
        return {kind: name for kind, name in names.items() if name is not None}

    @property
    def own_optimizer(self) -> Any | None:
        """The optimizer of an extension that trains in place of Coterie's own steps; None for sgd, adam and torch's."""
        if self.optimizer not in entry_points("coterie.optimizers"):
            return None
        return provided("coterie.optimizers", self.optimizer)

    def rate(self, round: int) -> float:
        """Return the learning rate of a round, from 0."""
        rate = self.lr
        if self.schedule is not None:
            rate = rate_of_round(self.lr, self.schedule, self.schedule_options, round)
        return rate * self.lr_decay**round


@public
@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of local training in which only some layers change.

    Attributes:
        layers: The layers that are trained; the parameters of the others keep their values. Running
            statistics (BatchNorm) follow the examples in every stage.
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
        start: The model from which its training starts. ``"trained"``: the one that the task has
            just trained. ``"offered"``:
            the offered one. ``"own"``: the client's personal model, at first the offered one.
        epochs: Replaces the epochs or steps of the task's training settings, if given; 0 only
            copies the start.
        layers: The layers that are trained; none for all.
        pull: Weight λ of the term ``λ/2 ||v - w||²`` that pulls the personal model v to the offered
            model w (Ditto).
        mixture: If given, the personal model is a mixture ``α v + (1 - α) w`` of the client's
            values v with the model w that serves it (APFL). v is trained so that the mixture with
            the task's trained model has a low loss. α starts at this number, and is stored as the
            last entry of the client's values.
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
            raise ValueError(
                f"Personal.pull and Personal.epochs must be >= 0, got {self.pull} and {self.epochs}"
            )
        # APFL's mixture continues from the client's own values, and has no other way of training.
        if self.mixture is not None and (self.start != "own" or not 0 <= self.mixture <= 1):
            raise ValueError("Personal.mixture must be 0 to 1, of the client's own model")
        if self.mixture is not None and (self.pull or self.layers or self.epochs is not None):
            raise ValueError(
                "Personal.mixture trains both models together, without epochs, layers or a pull of its own"
            )
        if self.adapt and self.mixture is None:
            raise ValueError("Personal.adapt needs Personal.mixture, got None")


@public
@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Serve a client by its model together with its nearest training examples, in the space of the model's features.

    The class probabilities are ``λ p_knn + (1 - λ) p_model``. In ``p_knn``, each of the k training
    examples nearest to the input, by Euclidean distance d of the features, counts for its class
    with a weight proportional to ``exp(-d / scale)``.

    Attributes:
        layer: The layer whose input is the features: the classifier.
        k: Number of neighbours; a client with fewer training examples uses all of them.
        scale: Unit of distances.
        weights: Values of λ, from which each client chooses the one with the lowest mean loss on
            its validation examples, the first of equal ones. A single value needs no such examples.
            A client without any is served by the model alone.
        holdout: As ``Holdout.share``: so many training examples are not remembered.

    Raises:
        ValueError: A number is out of range.
    """

    layer: str
    k: int
    scale: float
    weights: tuple[float, ...]
    holdout: float = 0.0

    def __post_init__(self) -> None:
        # The settings of a method may come from a file, so they are checked here.
        if self.k < 1 or not 0 < self.scale < math.inf or not 0 <= self.holdout < 1:
            raise ValueError(
                f"Neighbours needs k >= 1, a scale > 0 and a holdout from 0 to below 1, got {self}"
            )
        if not self.weights or not all(0 <= model_share <= 1 for model_share in self.weights):
            raise ValueError(
                f"Neighbours.weights must be one or more numbers from 0 to 1, got {self.weights}"
            )


@public
@dataclass(frozen=True, kw_only=True)
class Holdout:
    """The training examples that a client keeps out of training, and whether it reports its losses on held-out examples.

    Attributes:
        share: The share of its training examples, always the same ones, that a client without a
            validation part holds out of training. At least one, and at most half.
        report_losses: Reply with sums of the losses, on held-out examples, of the model from which
            the client starts and of its personal model, see ``Replies.held_out_losses``. Held-out
            examples are the client's validation part.
        neighbours: If given, report also the losses of these models together with the client's
            nearest training examples, with the first of ``weights``. A client whose model has no
            features for each prediction repeats the losses of the models alone.

    Raises:
        ValueError: ``share`` is not a number from 0 to below 1, or ``report_losses`` not a boolean.
    """

    share: float = 0.0
    report_losses: bool = False
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        # In Python, a boolean is a number too.
        is_number = isinstance(self.share, (int, float)) and not isinstance(self.share, bool)
        if not is_number or not 0 <= self.share < 1:
            raise ValueError(
                f"Holdout.share must be a number from 0 to below 1, got {self.share!r}"
            )
        if not isinstance(self.report_losses, bool):
            raise ValueError(
                f"Holdout.report_losses must be true or false, got {self.report_losses!r}"
            )


@runtime_checkable
class Question(Protocol):
    """A question to a client whose answer is only added up: no server reads a single answer.

    An extension defines the questions; :mod:`coterie.contrib.private` has those of its methods.
    """

    @property
    def cost(self) -> int:
        """The number of updates as which the answer counts for differential privacy."""
        ...

    @property
    def asks_cell(self) -> bool:
        """Whether the client names its cell. It adds no numbers to a sum."""
        ...

    @property
    def is_bounded(self) -> bool:
        """Whether an answer has norm 1 at most, so that noise on the sum covers it."""
        ...

    @property
    def sent(self) -> int:
        """How many numbers a client receives with the question."""
        ...

    def length(self, k: int) -> int:
        """Return how many numbers a client answers that has sketches of k numbers."""
        ...

    def cell(self, halves: np.ndarray) -> int:
        """Return the cell of a client with these sketches ``(2, k)`` of its halves."""
        ...

    def answer(
        self, halves: np.ndarray | None, norm: float | None = None, examples: int = 0
    ) -> np.ndarray | None:
        """Return a client's answer; None if the client does not know what is asked for.

        Args:
            halves: Shape ``(2, k)``, the sketches of its halves; None if it has none.
            norm: The norm of its update; None if it has none.
            examples: Its number of training examples.
        """
        ...


@public
@dataclass(frozen=True, kw_only=True)
class PrivateTask:
    """What a task has besides if its plan needs only sums over clients (``need="sums"``).

    Attributes:
        question: A question about the sketches of the client's halves, or about its update; the
            sum of the clients' answers is in ``Replies.sums``. A task without epochs only asks it.
        sends_update: Whether the update counts in the means. Otherwise the client only keeps the
            sketches of its halves.
    """

    question: Question | None = None
    sends_update: bool = True


@public
@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of one client: it takes the ``choose`` offered models of lowest loss, trains from their mean, and replies.

    Attributes:
        offered: Rows of the plan's models, m >= 1.
        choose: How many of the offered models the client takes: those with the lowest loss on its
            own data.
        corrected: Whether the last offered row is no model, but is added to every gradient in local
            training (SCAFFOLD).
        training: Replaces the training settings of the experiment, if given.
        epochs: Replaces the epochs or steps of the training settings, if given; 0 only measures.
        lr_round: The round (from 0) up to which the learning rate has decayed; ``None`` for the
            current one. With it, an update can be compared with those of an earlier round.
        measure: The part of its data on which the client computes losses and accuracies of the
            offered models before it trains. ``None`` skips this if ``m == choose``, and becomes
            ``"train"`` otherwise.
        gradient: Reply with the full-batch gradient of the mean training loss at the offered model
            instead of an update.
        holdout: The examples held out of training, and whether the client reports its losses on
            them.
        stages: Train in these stages, one after the other, instead of all layers at once.
        personal: Train a model for the client itself as well.
        halves: Train twice from the same model, on two disjoint random halves of the data, and
            reply with both updates. Their mean serves as the update. Each half makes as many passes
            or steps as the task states. A client with too few examples, or subjects of examples,
            for two halves trains once, on all of them.
        local_layers: Layers that stay at the client, which trains and is tested with its own values of
            them. Their columns of an update are zero, and they cost no bytes. If these are all
            layers, nothing is sent.
        private: What the task has besides if its plan has ``need="sums"``.
        statistics: What the client tells about its training data, see ``Replies.statistics``.
            Features are those of the model from which the client starts, before it trains.

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
    corrected: bool = False
    training: Training | None = None
    epochs: int | None = None
    lr_round: int | None = None
    measure: Literal["train", "validation"] | None = None
    gradient: bool = False
    halves: bool = False
    local_layers: tuple[str, ...] = ()
    holdout: Holdout = Holdout()
    stages: tuple[Stage, ...] = ()
    personal: Personal | None = None
    private: PrivateTask = PrivateTask()
    statistics: tuple[Statistic, ...] = ()

    def __post_init__(self) -> None:
        # What the client tells.
        for statistic in self.statistics:
            if statistic not in STATISTICS or self.statistics.count(statistic) > 1:
                raise ValueError(
                    f"Task.statistics must be some of {', '.join(STATISTICS)}, each once, got {self.statistics!r}"
                )
        if self.statistics and self.halves:
            raise ValueError("Task.statistics needs a task without halves, which divide the data")
        # What the client chooses from, and on which data.
        for offered_row in self.offered:
            if not isinstance(offered_row, (int, np.integer)) or offered_row < 0:
                raise ValueError(
                    f"Task.offered must be rows of the plan's models, from 0, got {offered_row!r}"
                )
        if self.corrected and (self.gradient or self.halves or self.local_layers or self.stages):
            raise ValueError(
                "Task.corrected needs a task that trains the whole model on all data of the client"
            )
        if self.corrected and self.personal is not None and self.personal.mixture is not None:
            raise ValueError("Task.corrected needs a task that trains no mixture")
        if self.corrected and (len(self.offered) != 2 or self.measure or not self.trains):
            raise ValueError(
                f"Task.corrected needs a model to train and a row that is added to gradients, got {self.offered}"
            )
        if not 1 <= self.choose <= len(self.offered):
            raise ValueError(
                f"Task.choose must be 1 to the {len(self.offered)} models offered, got {self.choose}"
            )
        if self.measure not in (None, "train", "validation"):
            raise ValueError(
                f"Task.measure must be train, validation or None, got {self.measure!r}; test data are for evaluation only"
            )
        # What the client trains: some kinds of training exclude each other.
        if self.personal is not None and (self.gradient or self.local_layers):
            raise ValueError("Task.personal needs a task that trains the whole model")
        if self.stages and (
            self.gradient or (self.personal is not None and self.personal.mixture is not None)
        ):
            raise ValueError(
                "Task.stages needs a task that trains one model, without gradients or a mixture"
            )
        if self.halves and not (self.trains and not self.gradient):
            raise ValueError("Task.halves needs a task that trains on updates, not gradients")
        if self.halves and self.choose < len(self.offered):
            raise ValueError(
                "Task.halves needs a task without a choice of models: both halves start from the same one"
            )
        # Choosing takes losses, so the client must measure. The dataclass is frozen, therefore
        # ``object.__setattr__``.
        if self.chooses and self.measure is None:
            object.__setattr__(self, "measure", "train")

    @property
    def models_offered(self) -> int:
        """The number of models that are offered."""
        return len(self.offered) - self.corrected

    @property
    def chooses(self) -> bool:
        """Whether the client chooses among several models."""
        return self.choose < self.models_offered

    @property
    def measured_models(self) -> tuple[int, ...]:
        """The numbers of the models whose held-out losses the client reports, as in :class:`~coterie.core.HeldOutLosses`.

        0 is the model from which it starts, and 1 its personal model. 2 and 3 are the same together
        with its nearest training examples.
        """
        if not self.holdout.report_losses:
            return ()
        models = (0,) if self.personal is None else (0, 1)
        if self.holdout.neighbours is None:
            return models
        return (*models, *(WITH_NEIGHBOURS + model for model in models))

    @property
    def trains(self) -> bool:
        """Whether the client replies with an update or a gradient, and does not only measure."""
        if self.gradient:
            return True
        # The task's own epochs come before its training settings.
        if self.epochs is not None:
            return self.epochs > 0
        # Without training settings in the task, the client trains as the experiment states.
        return self.training is None or bool(self.training.steps or self.training.epochs)

    def how(self, experiment_training: Training) -> Training:
        """Return the settings of local training in this task.

        Args:
            experiment_training: The settings of the experiment.

        Returns:
            These settings, with the changes that the task asks for.
        """
        # The task's own settings replace the experiment's, and its epochs replace those of either.
        task_training = self.training or experiment_training
        if self.epochs is None:
            return task_training
        return _of_epochs(task_training, self.epochs)


@lru_cache(maxsize=64)
def _of_epochs(training: Training, epoch_count: int) -> Training:
    # Only one of epochs and steps applies, and steps come first: so they are removed.
    return replace(training, epochs=epoch_count, steps=None)


@public
@dataclass(frozen=True, kw_only=True)
class PrivatePlan:
    """What a plan has besides if it needs only sums over clients (``need="sums"``).

    Attributes:
        hides_choices: Whether the server must not learn which model a client takes; all tasks then
            offer all models. A client takes that of its cell if it is asked for its cell, else that
            of lowest loss. It sends a vector with a slot for each model, and all but one are zero.
            A row of ``Replies.means`` is then the sum of the updates from this model divided by the
            number of all clients that answered, and ``Replies.mean_counts`` has estimates.
        clip: The maximum norm of an update, if it is less than the boundary's.
    """

    hides_choices: bool = False
    clip: float | None = None


@public
@dataclass(frozen=True, kw_only=True)
class Plan:
    """One exchange: the models, and the task of each client. A client without a task rests.

    Attributes:
        models: Shape ``(k, d)``.
        tasks: Client -> task.
        need: The part of the replies that ``step`` needs. ``"mean"``: for each row of ``models``,
            the weighted mean update of the clients that trained from it. ``"gram"``: these means
            and the Gram matrix of the updates over ``columns``. ``"rows"``: every update.
            ``"sums"``: these means, and the sums of answers to questions; nothing of a single
            client but which rows it was offered, whether it answered, and its cell if it was asked
            for that. Clients keep the sketches of their halves, see :class:`Question`.
        columns: The columns for the Gram matrix, or for the sketches; ``None`` for all.
        sketch: If given, rows and Gram matrix are those of sketches
            (:func:`coterie.clustering.sketch`) of that many numbers, made of these columns as
            replies arrive. An engine then holds only some of the updates at a time. With sketches,
            rows come together with the means.
        weighting: The weights of the means: training-set sizes (``"data"``) or equal weights
            (``"uniform"``).
        ends_round: ``False`` if another exchange of the same communication round follows.
        parts: Name -> plan. Such a plan has no tasks itself: the plans of several methods are
            carried out together. A client answers all of its tasks or none, and holds out the same
            examples in all of them. It keeps its own values for each part separately. If its reply
            to one task is refused, those to the others count.
        ended_parts: Names of parts of earlier plans whose clients' own values are no longer needed.
        second_halves: Whether ``step`` also needs the updates of the second halves, of tasks that
            ask for halves.
        private: What the plan has besides with ``need="sums"``.

    Raises:
        ValueError: A task offers a row that ``models`` does not have, or the fields contradict each
            other.

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
    ended_parts: tuple[str, ...] = ()
    second_halves: bool = False
    private: PrivatePlan = PrivatePlan()

    def __post_init__(self) -> None:
        # Fields that contradict each other are an error of the method, not of a client.
        self._check_rows()
        if self.private != PrivatePlan() and self.need != "sums":
            raise ValueError(f'Plan.private needs Plan.need "sums", got {self.need!r}')
        if self.need == "sums" and any(task.statistics for task in self.tasks.values()):
            raise ValueError('Task.statistics are of single clients, and Plan.need is "sums"')
        if self.parts:
            self._check_holdout_shares()

    def _check_holdout_shares(self) -> None:
        """Refuse parts that disagree on what a client holds out: one part would train on another's held-out examples."""
        share_of_client: dict[Client, float] = {}
        for _, part in self.leaves():
            for client, task in part.tasks.items():
                holdout_share = task.holdout.share
                first_share = share_of_client.setdefault(client, holdout_share)
                if holdout_share != first_share:
                    raise ValueError(
                        f"Holdout.share of client {client} must be the same in all parts of a plan, "
                        f"got {first_share:g} and {holdout_share:g}"
                    )

    def _check_rows(self) -> None:
        """Refuse an offer of a model that the plan does not have: an engine would take one of an earlier exchange."""
        if self.models.ndim != 2:
            raise ValueError(
                f"Plan.models must be rows (k, d), got shape {tuple(self.models.shape)}"
            )
        if self.parts and self.tasks:
            raise ValueError("a plan with Plan.parts has no tasks itself: put them into a part")
        # Each task may offer only rows that the plan has.
        model_count = len(self.models)
        checked_ids: set[int] = set()
        for client, task in self.tasks.items():
            # Clients often share one task, which is checked once.
            if id(task) in checked_ids:
                continue
            checked_ids.add(id(task))
            if max(task.offered) >= model_count:
                description = f"rows 0 to {model_count - 1}" if model_count else "no models"
                raise ValueError(
                    f"Plan.models has {description}, but client {client} is offered row {max(task.offered)}"
                )

    @property
    def all_ended_parts(self) -> tuple[str, ...]:
        """The names ``ended_parts`` of the plan and of its parts, each as ``"outer/inner"``."""
        # Inside a part, the names are relative to it.
        ended_parts = list(self.ended_parts)
        for part_name, part in self.parts.items():
            ended_parts.extend(f"{part_name}/{ended_part}" for ended_part in part.all_ended_parts)
        return tuple(ended_parts)

    @property
    def asked(self) -> tuple[Client, ...]:
        """The clients that have a task, in the plan or in one of its parts, sorted."""
        asked_clients = set(self.tasks)
        for part in self.parts.values():
            asked_clients.update(part.asked)
        return tuple(sorted(asked_clients))

    def leaves(self, outer_name: str = "") -> Iterator[tuple[str, Plan]]:
        """Yield (name, plan) of the plan itself, or of all parts that have none themselves.

        The name of a part of a part is ``"outer/inner"``; that of a plan without parts is ``name``.
        """
        if not self.parts:
            yield outer_name, self
        # The outermost plan has the empty name, whose slash is removed.
        for part_name, part in self.parts.items():
            yield from part.leaves(f"{outer_name}/{part_name}".lstrip("/"))


@public
def train_from(models: torch.Tensor, row_of_client: Mapping[Client, int], **plan: Any) -> Plan:
    """Plan that every client trains from its one model, as in all methods that offer one model (m = 1).

    Args:
        models: Shape ``(k, d)``.
        row_of_client: Client -> its row of ``models``.
        **plan: Further fields of :class:`Plan`.

    Returns:
        The plan.
    """
    # Clients of one model share one task.
    task_of_row = {
        row_number: Task(offered=(row_number,)) for row_number in set(row_of_client.values())
    }
    return Plan(
        models=models,
        tasks={
            client: task_of_row[row_number] for client, row_number in sorted(row_of_client.items())
        },
        **plan,
    )
