"""What a method needs from an engine, declared before the first round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from coterie.core.tasks import Plan, Task, Training
from coterie.settings import SettingError
from coterie.settings.calls import public

Feature = Literal[
    "several-tasks",
    "model-choice",
    "correction",
    "losses",
    "held-out-losses",
    "holdout",
    "neighbours",
    "gradients",
    "local-layers",
    "halves",
    "questions",
    "stages",
    "mixture",
    "pull",
    "personal-model",
    "training",
    "label-counts",
    "feature-mean",
]
"""What tasks can ask besides training one model as the experiment states, and its update."""

FEATURES: tuple[Feature, ...] = get_args(Feature)
"""Everything that a method can declare that it asks of a client."""

IN_WORDS: dict[Feature, str] = {
    "several-tasks": "to do several tasks at once",
    "model-choice": "to choose among several models",
    "correction": "to correct its gradients",
    "losses": "for the loss of a model",
    "held-out-losses": "for the losses of single held-out examples",
    "holdout": "to hold examples out of training",
    "neighbours": "to compare its model with its nearest training examples",
    "gradients": "for a gradient instead of an update",
    "local-layers": "to keep some layers",
    "halves": "for updates of both halves of its data",
    "questions": "to answer questions about its update",
    "stages": "to train its layers in stages",
    "mixture": "to mix a personal model with the shared one",
    "pull": "to pull a personal model to the shared one",
    "personal-model": "to train a personal model",
    "training": "to train differently in some rounds",
    "label-counts": "for the counts of its labels",
    "feature-mean": "for the mean of its features",
}
"""Feature -> what a client is asked, as it follows "asks a client"."""

Invariance = Literal["rotation", "signed-permutation", "nothing"]
"""The largest group of orthonormal maps of updates that does not change a method's results."""


@public
@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a method needs from an engine and from the clients, in any round of a run.

    Engines and the boundary read this before the first round, and know nothing else of a method. A
    plan that asks for a feature which is not declared is refused. The defaults are those of a
    method of which nothing is known: with masks, or with a map of updates, it is refused.

    Attributes:
        features: What tasks ask for, sooner or later, in every run. An app that cannot do it, or a
            boundary that does not protect it, is refused before the first round.
        occasional: What tasks ask for only if something happens, such as a client that joins late
            and must choose its group. It is refused only in a round that asks for it.
        sums_only: Whether sums over clients are enough in all rounds: plans need ``"mean"`` or
            ``"sums"``. Secure aggregation (``boundary.masks``) needs this.
        unchanged_by: Which maps of updates (``boundary.rotation``) do not change the results:
            ``"rotation"``, any orthonormal map, as for inner products and means;
            ``"signed-permutation"``, one that moves and flips entries, as for L1 distances; or
            ``"nothing"``.
        fraction: The share of the clients that train in a round.
        inner: The methods that this one runs.

    Raises:
        ValueError: A feature or an invariance does not exist.

    Example:
        >>> import torch
        >>> needs = Needs(features=("halves",), unchanged_by="rotation")
        >>> needs.undeclared(Plan(models=torch.zeros(1, 2), tasks={3: Task(offered=(0,), gradient=True)}))
        ('gradients',)
    """

    features: tuple[Feature, ...] = ()
    occasional: tuple[Feature, ...] = ()
    sums_only: bool = False
    unchanged_by: Invariance = "nothing"
    fraction: float = 1.0
    inner: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for feature in (*self.features, *self.occasional):
            if feature not in FEATURES:
                raise ValueError(
                    f"there is no feature {feature!r} of a task (known: {', '.join(FEATURES)})"
                )
        if self.unchanged_by not in get_args(Invariance):
            known = ", ".join(get_args(Invariance))
            raise ValueError(
                f"Needs.unchanged_by must be one of {known}, got {self.unchanged_by!r}"
            )

    @property
    def declared(self) -> frozenset[Feature]:
        """All features that plans may ask for."""
        return frozenset((*self.features, *self.occasional))

    def undeclared(self, plan: Plan) -> tuple[Feature, ...]:
        """Return the features that a plan asks for and that are not declared."""
        asked = features_of_plan(plan)
        return tuple(
            feature for feature in FEATURES if feature in asked and feature not in self.declared
        )

    def with_inner(self, features: Iterable[Feature], *methods: Any) -> Needs:
        """Return these needs with those of the methods that this one runs.

        Args:
            features: What this method asks for in every run, besides what the others ask for.
            *methods: The methods that it runs.
        """
        # A feature of one inner method is a feature of the whole.
        constant_features = set(features)
        occasional_features = set(self.occasional)
        for method in methods:
            inner_needs = needs_of(method)
            constant_features.update(inner_needs.features)
            occasional_features.update(inner_needs.occasional)
        # What one method always asks for is not occasional, even if another asks for it at times.
        occasional_features -= constant_features
        return replace(
            self,
            features=tuple(feature for feature in FEATURES if feature in constant_features),
            occasional=tuple(feature for feature in FEATURES if feature in occasional_features),
            inner=methods,
        )


@public
def needs_of(method: Any) -> Needs:
    """Return what a method declares as its ``needs``; the defaults of :class:`Needs` if it declares nothing."""
    # A method of a user need not declare anything.
    declared_needs = getattr(method, "needs", None)
    return declared_needs if isinstance(declared_needs, Needs) else Needs()


def features_of(task: Task) -> frozenset[Feature]:
    """Return what a task asks besides training one model as the experiment states, and its update."""
    # One line for each feature: whether the task asks for it.
    personal = task.personal
    is_asked: dict[Feature, bool] = {
        "model-choice": task.models_offered > 1,
        "correction": task.corrected,
        "losses": task.measure is not None,
        "held-out-losses": task.holdout.report_losses,
        "holdout": task.holdout.share > 0,
        "neighbours": task.holdout.neighbours is not None,
        "gradients": task.gradient,
        "local-layers": bool(task.local_layers),
        "halves": task.halves,
        "questions": task.private.question is not None,
        "stages": bool(task.stages),
        "mixture": personal is not None and personal.mixture is not None,
        "pull": personal is not None and personal.pull > 0,
        "personal-model": personal is not None,
        "training": task.training is not None or task.epochs is not None,
        "label-counts": "label-counts" in task.statistics,
        "feature-mean": "feature-mean" in task.statistics,
    }
    return frozenset(feature for feature in is_asked if is_asked[feature])


def features_of_plan(plan: Plan) -> frozenset[Feature]:
    """Return what the tasks of a plan and its parts ask for."""
    features: set[Feature] = set()
    clients_of_earlier_parts: set[int] = set()
    for _, part in plan.leaves():
        # A client with tasks in two parts does several tasks at once.
        if not clients_of_earlier_parts.isdisjoint(part.tasks):
            features.add("several-tasks")
        clients_of_earlier_parts.update(part.tasks)
        # Clients often share one task, whose features are read once.
        distinct_tasks = {id(task): task for task in part.tasks.values()}
        for task in distinct_tasks.values():
            features |= features_of(task)
    return frozenset(features)


@public
def check_declared(method: Any, plan: Plan) -> None:
    """Refuse a plan that asks for more than its method's :class:`Needs` declare.

    Args:
        method: The method.
        plan: Its plan.

    Raises:
        SettingError: The plan asks for something else.
    """
    declared_needs = needs_of(method)
    # What the tasks ask of clients.
    for feature in declared_needs.undeclared(plan):
        raise SettingError(
            f"{method.name} asks a client {IN_WORDS[feature]}, which its needs do not declare: add {feature!r} to "
            "Needs.features, or to Needs.occasional if it does not happen in every run"
        )
    # What the server sees: with sums_only, neither single updates nor their inner products.
    if declared_needs.sums_only:
        for _, part in plan.leaves():
            if part.need in ("gram", "rows"):
                raise SettingError(
                    f"{method.name} needs {part.need!r} of a plan, which its needs do not declare: set Needs.sums_only to false"
                )


NOT_WITH_KEPT_OPTIMIZER: tuple[Feature, ...] = ("halves", "stages", "mixture", "personal-model")
"""What takes several trainings in one task, each of which would need an optimizer of its own."""


@public
def check_training(method: Any, training: Training) -> None:
    """Refuse settings of local training that a method's tasks cannot follow.

    Args:
        method: The method.
        training: The settings.

    Raises:
        SettingError: The optimizer is to keep its state, and clients train several models in one task.
    """
    if not training.keep_optimizer:
        return
    declared = needs_of(method).declared
    for feature in NOT_WITH_KEPT_OPTIMIZER:
        if feature in declared:
            raise SettingError(
                f"Training.keep_optimizer must be false with {method.name}, which asks a client {IN_WORDS[feature]}: "
                "one task has several trainings, and no optimizer goes on from one to the next"
            )


def all_methods(method: Any) -> Iterator[Any]:
    """Yield a method and all methods that it runs, at any depth."""
    yield method
    for inner_method in needs_of(method).inner:
        yield from all_methods(inner_method)
