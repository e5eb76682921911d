"""Standardization: inputs minus a mean and divided by a deviation, by constants that are the same at all clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.data.columns import listed
from coterie.data.matching import column_names, is_table
from coterie.data.objective import binary_cross_entropy, cross_entropy, squared_error
from coterie.data.parts import ScenarioPart
from coterie.data.schema import SHARED_SCALING, Schema
from coterie.data.target_scale import LossOfStandardized, TargetScale
from coterie.data.world import Split, World
from coterie.settings import SettingError, UserError, setting
from coterie.settings.calls import public

STANDARDIZE = ("none", "pooled", "given")
"""none: inputs stay as they are; pooled: by the training data of all clients together; given: by
constants of the user."""

Constants = tuple[Any, Any]
"""Means and deviations: numbers, one per feature (per channel of images), or one for all; or such
numbers by the names of the features, as a mapping or a column of pandas (``frame.mean()``)."""


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(ScenarioPart):
    """How the inputs and targets of a scenario's clients are standardized."""

    part: ClassVar[str] = "scaling"

    standardize: str = setting(
        "none",
        "inputs minus means, over deviations. pooled: of all clients' training data",
        choices=STANDARDIZE,
    )
    means: tuple[float, ...] = setting(
        (), "one per feature or channel, or one for all (standardize=given)"
    )
    deviations: tuple[float, ...] = setting(
        (), "one per feature or channel, or one for all (standardize=given)", gt=0
    )
    standardize_target: str = setting(
        "none",
        "the loss takes targets minus a mean, over a deviation; metrics and models keep their "
        "unit. pooled: of all training data (table)",
        choices=STANDARDIZE,
    )
    target_means: tuple[float, ...] = setting(
        (), "one per target, or one for all (standardize_target=given)"
    )
    target_deviations: tuple[float, ...] = setting(
        (), "one per target, or one for all (standardize_target=given)", gt=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.standardize == "given"
        if given != bool(self.means) or given != bool(self.deviations):
            raise SettingError("Scenario.means and deviations go together with standardize = given")
        given = self.standardize_target == "given"
        if given != bool(self.target_means) or given != bool(self.target_deviations):
            raise SettingError(
                "Scenario.target_means and target_deviations go together with "
                "standardize_target = given"
            )

    @property
    def of_inputs(self) -> str | Constants:
        """The constants of the inputs, or how they are found."""
        return (self.means, self.deviations) if self.means else self.standardize

    @property
    def of_targets(self) -> str | Constants:
        """The constants of the targets, or how they are found."""
        if self.target_means:
            return self.target_means, self.target_deviations
        return self.standardize_target


def numbers(inputs: torch.Tensor) -> torch.Tensor:
    """Pixels of 0 to 255 as numbers from 0 to 1; other inputs as they are."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs


@public
def standardized(world: World, how: str | Constants = "none") -> World:
    """Standardize the inputs of all clients by the same constants, and note these in ``world.about``.

    Args:
        world: The world. Its inputs are features ``(N, d)`` or images ``(N, channels, height,
            width)``; pixels of 0 to 255 count as numbers from 0 to 1.
        how: ``"none"``; ``"pooled"``, for the means and standard deviations over the training data
            of all clients together, with drift those of the first time step; or the means and the
            deviations, as numbers in the order of the features or by the names of these. A feature
            that never changes has the deviation 1.

    Returns:
        The world with the standardized inputs.

    Raises:
        UserError: The inputs are tokens, or the constants do not fit them.
    """
    if isinstance(how, str) and how == "none":
        return world
    fits = how == "pooled" if isinstance(how, str) else hasattr(how, "__len__") and len(how) == 2
    if not fits:
        raise SettingError(
            f"standardize must be none, pooled, or the means and the deviations, got {how!r:.60}"
        )
    data = {id(one): one for step in world.steps for one in step.values()}
    splits = [split for one in data.values() for split in (one.train, one.validation, one.test)]
    inputs = splits[0].inputs
    if not isinstance(inputs, torch.Tensor):
        raise UserError(
            "standardize needs one tensor of features or images per client, and the inputs are of another form"
        )
    pixels = inputs.dtype == torch.uint8 and inputs.ndim == 4
    if not (inputs.is_floating_point() or pixels) or inputs.ndim not in (2, 4):
        raise UserError(
            "standardize needs features or images, and the inputs are tokens or of another shape"
        )
    if isinstance(how, str):
        means, deviations = pooled(one.train for one in world.steps[0].values())
    else:
        features = world.about.get("features")
        given = (
            in_order_of(features, name, one)
            for name, one in zip(("means", "deviations"), how, strict=True)
        )
        means, deviations = (
            _constants(name, one, inputs)
            for name, one in zip(("means", "deviations"), given, strict=True)
        )
    if not bool((deviations > 0).all()):
        raise SettingError(f"deviations must be > 0, got {float(deviations.min()):g}")
    wide = (1, -1) if inputs.ndim == 2 else (1, -1, 1, 1)
    low, width = (
        means.view(wide).float(),
        deviations.view(wide).float(),
    )  # no copy of all data in float64
    made = {id(pool): (numbers(pool).float() - low).div_(width) for pool in _pools(splits)}
    new = lambda split: replace(split, inputs=made[id(split.inputs)])  # noqa: E731
    lists = tuple(means.tolist()), tuple(deviations.tolist())
    scaled = {
        key: replace(
            d,
            train=new(d.train),
            validation=new(d.validation),
            test=new(d.test),
            schema=replace(
                d.schema or Schema(), scaling=SHARED_SCALING, means=lists[0], deviations=lists[1]
            ),
        )
        for key, d in data.items()
    }
    steps = [{client: scaled[id(d)] for client, d in step.items()} for step in world.steps]
    about = {**world.about, "means": means.tolist(), "deviations": deviations.tolist()}
    drift = None if world.drift is None else replace(world.drift, data=steps)
    return replace(world, clients=steps[0], drift=drift, about=about)


def pooled(splits: Iterable[Split]) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and standard deviations of each feature, or each channel of images, over all examples.

    Only counts, sums and sums of squared differences are added up over the splits: what clients of
    a federation would send.

    Args:
        splits: The examples.

    Returns:
        Means and deviations, float64; the deviation of a feature that never changes is 1.
    """
    splits = list(splits)
    count = torch.zeros((), dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for split in splits:
        values = _by_feature(split)
        count, total = count + values.shape[1], total + values.sum(1)
    means, squares = total / count, torch.zeros((), dtype=torch.float64)
    for split in splits:
        squares = squares + (_by_feature(split) - means[:, None]).square().sum(1)
    deviations = (squares / count).sqrt()
    return means, torch.where(deviations > 0, deviations, 1.0)


def _by_feature(split: Split) -> torch.Tensor:
    """The values ``(features, n)`` of a split, or ``(channels, n)`` of all pixels."""
    return numbers(split.inputs[split.index]).double().transpose(0, 1).flatten(1)


def _pools(splits: Sequence[Split]) -> Iterable[torch.Tensor]:
    return {id(split.inputs): split.inputs for split in splits}.values()


def in_order_of(features: Sequence[str] | None, setting: str, given: Any) -> Any:
    """Return constants that have names in the order of the features; others as they are.

    Args:
        features: The names of the features; None if they have none.
        setting: What is given: means or deviations.
        given: Numbers, or numbers by name: a mapping, a column of pandas, or a frame of one row.

    Returns:
        The numbers.

    Raises:
        SettingError: The names are not those of the features.
    """
    numbered = False
    if is_table(given):
        columns = {str(name): np.asarray(given[name]) for name in column_names(given)}
        by_name = {name: column[0] for name, column in columns.items() if len(column) == 1}
    elif isinstance(given, Mapping):
        by_name = {str(name): value for name, value in given.items()}
    elif hasattr(getattr(given, "index", None), "equals"):
        names = given.index.tolist()
        by_name = {str(name): value for name, value in zip(names, given, strict=True)}
        numbered = names == list(range(len(names)))  # pandas numbers values that have no names
    else:
        return given
    if numbered and set(by_name) != set(features or ()):
        return given
    if features is None:
        raise SettingError(
            f"{setting} has names ({listed(list(by_name))}), and the features have none: give a list of numbers"
        )
    lacking, unknown = (
        [name for name in features if name not in by_name],
        [name for name in by_name if name not in features],
    )
    if lacking or unknown:
        parts = [
            f"{word} {listed(some)}"
            for word, some in (("lacks", lacking), ("also has", unknown))
            if some
        ]
        raise SettingError(
            f"{setting} must have each feature by its name, {listed(features)}: it {' and '.join(parts)}"
        )
    return [by_name[name] for name in features]


def _constants(name: str, given: Sequence[float], inputs: torch.Tensor) -> torch.Tensor:
    features = inputs.shape[1]
    try:
        constants = torch.as_tensor(given, dtype=torch.float64).flatten()
    except (TypeError, ValueError, RuntimeError):
        raise SettingError(f"{name} must be numbers, got {given!r:.60}") from None
    if len(constants) not in (1, features) or not bool(torch.isfinite(constants).all()):
        each = "feature" if inputs.ndim == 2 else "channel"
        raise SettingError(
            f"{name} must be one finite number, or one per {each}, {features}, got {len(constants)}"
        )
    return constants.expand(features)


# ----------------------------------------------------------------------------------------------------
# Targets of regression.


TARGET = "standardize_target"
"""The name of the setting, for messages."""


def with_standardized_targets(
    world: World, how: str | bool | Constants, after: World | None = None
) -> World:
    """Standardize the targets of all clients for the loss, by the same constants.

    Args:
        world: The world. Its targets are numbers to predict, ``(N,)`` or ``(N, m)``.
        how: ``"none"`` or False; ``"pooled"`` or True, for the mean and the standard deviation of
            each output's targets over the **training** data of all clients together, with drift
            those of the first time step; or the means and the deviations. The deviation of a target
            that never changes is 1.
        after: An earlier world, whose pooled constants are used again.

    Returns:
        The world.

    Raises:
        UserError: The targets are classes, labels or of another form, or the constants do not fit
            them.
    """
    if isinstance(how, bool):
        how = "pooled" if how else "none"
    if isinstance(how, str) and how == "none":
        return world
    if not (how == "pooled" if isinstance(how, str) else hasattr(how, "__len__") and len(how) == 2):
        known = ", ".join(STANDARDIZE[:-1])
        raise SettingError(
            f"{TARGET} must be {known}, or the means and the deviations, got {how!r:.60}"
        )
    splits = [data.train for data in world.steps[0].values()]
    targets, loss = splits[0].targets, world.objective.loss
    if not isinstance(targets, torch.Tensor) or loss in (cross_entropy, binary_cross_entropy):
        what = "of another form" if not isinstance(targets, torch.Tensor) else "classes or labels"
        raise UserError(
            f"{TARGET} needs numbers to predict (task = regression), and the targets are {what}"
        )
    if not targets.is_floating_point() and loss is not squared_error:
        raise UserError(
            f"{TARGET} needs numbers to predict, and the targets are whole numbers, which this loss may need"
        )
    outputs = math.prod(targets.shape[1:])
    earlier = None if after is None else after.objective.target_scale
    if isinstance(how, str):
        scale = pooled_scale(splits) if earlier is None else earlier
    else:
        means, deviations = (
            _target_constants(f"{TARGET}: {name}", given, outputs)
            for name, given in zip(("means", "deviations"), how, strict=True)
        )
        scale = TargetScale(means, deviations)
    if min(scale.deviations) <= 0:
        raise SettingError(f"{TARGET}: deviations must be > 0, got {min(scale.deviations):g}")
    return replace(world, objective=replace(world.objective, loss=LossOfStandardized(loss, scale)))


def pooled_scale(splits: Iterable[Split]) -> TargetScale:
    """The mean and the standard deviation of each output's targets, over all examples of some splits."""
    values = torch.cat([split.targets.double().flatten(1) if split.targets.dim() > 1 else split.targets.double()[:, None]
                        for split in splits])  # fmt: skip
    # The rounded mean of equal targets may be another number, and their deviation then is not 0.
    equal = values.amin(0) == values.amax(0)
    means = torch.where(equal, values[0], values.mean(0))
    deviations = torch.where(equal, 1.0, values.std(0, correction=0))
    return TargetScale(tuple(means.tolist()), tuple(deviations.tolist()))


def _target_constants(name: str, given: Any, outputs: int) -> tuple[float, ...]:
    try:
        constants = torch.as_tensor(given, dtype=torch.float64).flatten()
    except (TypeError, ValueError, RuntimeError):
        raise SettingError(f"{name} must be numbers, got {given!r:.60}") from None
    if len(constants) not in (1, outputs) or not bool(torch.isfinite(constants).all()):
        raise SettingError(
            f"{name} must be one finite number, or one per target, {outputs}, got {len(constants)}"
        )
    return tuple(constants.tolist())
