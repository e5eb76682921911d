"""Standardization: inputs minus a mean and divided by a deviation, by constants that are the same at all clients.

The settings ``standardize`` and ``standardize_target`` of a scenario, :func:`coterie.from_frame` and
:func:`coterie.from_lists` end in :func:`standardized` and :func:`with_standardized_targets`. Refused
are tokens, classes and labels, constants of other features, and deviations that are not positive.
"""

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
from coterie.data.world import ClientData, Split, World
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
        # Constants without the choice "given" would have no effect.
        needs_constants = self.standardize == "given"
        if needs_constants != bool(self.means) or needs_constants != bool(self.deviations):
            raise SettingError("Scenario.means and deviations go together with standardize = given")
        needs_constants = self.standardize_target == "given"
        has_means = bool(self.target_means)
        has_deviations = bool(self.target_deviations)
        if needs_constants != has_means or needs_constants != has_deviations:
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
    if not _is_pooled_or_pair(how):
        raise SettingError(
            f"standardize must be none, pooled, or the means and the deviations, got {how!r:.60}"
        )

    # Clients may share splits, and time steps of drift may share clients: each is changed once.
    data_by_id = {id(data): data for step in world.steps for data in step.values()}
    splits: list[Split] = []
    for client_data in data_by_id.values():
        splits += [client_data.train, client_data.validation, client_data.test]
    inputs = splits[0].inputs
    _check_can_be_scaled(inputs)
    means, deviations = _input_constants(world, how, inputs)

    # The inputs of each pool, in float32: there is no copy of all data in float64.
    wide_shape = (1, -1) if inputs.ndim == 2 else (1, -1, 1, 1)
    wide_means = means.view(wide_shape).float()
    wide_deviations = deviations.view(wide_shape).float()
    scaled_inputs: dict[int, torch.Tensor] = {}
    for split in splits:
        if id(split.inputs) not in scaled_inputs:
            centred = numbers(split.inputs).float() - wide_means
            scaled_inputs[id(split.inputs)] = centred.div_(wide_deviations)

    def scaled(split: Split) -> Split:
        return replace(split, inputs=scaled_inputs[id(split.inputs)])

    # Each client says in its schema by which constants its inputs are scaled.
    scaled_data: dict[int, ClientData] = {}
    for data_id, client_data in data_by_id.items():
        client_schema = replace(
            client_data.schema or Schema(),
            scaling=SHARED_SCALING,
            means=tuple(means.tolist()),
            deviations=tuple(deviations.tolist()),
        )
        scaled_data[data_id] = replace(
            client_data,
            train=scaled(client_data.train),
            validation=scaled(client_data.validation),
            test=scaled(client_data.test),
            schema=client_schema,
        )
    # The time steps of drift refer to the same clients again.
    scaled_steps = []
    for clients_of_step in world.steps:
        scaled_steps.append(
            {client: scaled_data[id(data)] for client, data in clients_of_step.items()}
        )
    about = {**world.about, "means": means.tolist(), "deviations": deviations.tolist()}
    scaled_drift = None if world.drift is None else replace(world.drift, data=scaled_steps)
    return replace(world, clients=scaled_steps[0], drift=scaled_drift, about=about)


def _check_can_be_scaled(inputs: Any) -> None:
    """Raise :class:`~coterie.settings.UserError` for inputs that are neither features nor images."""
    if not isinstance(inputs, torch.Tensor):
        raise UserError(
            "standardize needs one tensor of features or images per client, and the inputs are of another form"
        )
    are_pixels = inputs.dtype == torch.uint8 and inputs.ndim == 4
    if not (inputs.is_floating_point() or are_pixels) or inputs.ndim not in (2, 4):
        raise UserError(
            "standardize needs features or images, and the inputs are tokens or of another shape"
        )


def _input_constants(
    world: World, how: str | Constants, inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The means and deviations: of the first time step's training data, or those that the user gives."""
    if isinstance(how, str):
        means, deviations = pooled(data.train for data in world.steps[0].values())
    else:
        # Constants with names are put in the order of the features.
        features = world.about.get("features")
        given_means, given_deviations = how
        ordered_means = in_order_of(features, "means", given_means)
        ordered_deviations = in_order_of(features, "deviations", given_deviations)
        means = _constants("means", ordered_means, inputs)
        deviations = _constants("deviations", ordered_deviations, inputs)
    if not bool((deviations > 0).all()):
        raise SettingError(f"deviations must be > 0, got {float(deviations.min()):g}")
    return means, deviations


def _is_pooled_or_pair(constants: Any) -> bool:
    """Whether constants are to be pooled, or are a pair of means and deviations."""
    if isinstance(constants, str):
        return constants == "pooled"
    return hasattr(constants, "__len__") and len(constants) == 2


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
    # First the means, from sums and counts; then the squared differences from them.
    # In float64, because sums over many examples lose digits.
    example_count = torch.zeros((), dtype=torch.float64)
    value_sum = torch.zeros((), dtype=torch.float64)
    for split in splits:
        split_values = _by_feature(split)
        example_count = example_count + split_values.shape[1]
        value_sum = value_sum + split_values.sum(1)
    means = value_sum / example_count
    square_sum = torch.zeros((), dtype=torch.float64)
    for split in splits:
        square_sum = square_sum + (_by_feature(split) - means[:, None]).square().sum(1)
    deviations = (square_sum / example_count).sqrt()
    return means, torch.where(deviations > 0, deviations, 1.0)


def _by_feature(split: Split) -> torch.Tensor:
    """The values ``(features, n)`` of a split, or ``(channels, n)`` of all pixels."""
    return numbers(split.inputs[split.index]).double().transpose(0, 1).flatten(1)


def in_order_of(features: Sequence[str] | None, setting: str, constants: Any) -> Any:
    """Return constants that have names in the order of the features; others as they are.

    Args:
        features: The names of the features; None if they have none.
        setting: What is given: means or deviations.
        constants: Numbers, or numbers by name: a mapping, a column of pandas, or a frame of one row.

    Returns:
        The numbers.

    Raises:
        SettingError: The names are not those of the features.
    """
    # Names come from a mapping, a frame of one row, or a column of pandas. Pandas numbers values
    # that have no names.
    is_numbered = False
    if is_table(constants):
        columns = {str(name): np.asarray(constants[name]) for name in column_names(constants)}
        constant_of_name = {name: column[0] for name, column in columns.items() if len(column) == 1}
    elif isinstance(constants, Mapping):
        constant_of_name = {str(name): value for name, value in constants.items()}
    elif hasattr(getattr(constants, "index", None), "equals"):
        names = constants.index.tolist()
        constant_of_name = {str(name): value for name, value in zip(names, constants, strict=True)}
        is_numbered = names == list(range(len(names)))
    else:
        return constants
    # Values with the numbers 0, 1, ... are in the order of the features.
    if is_numbered and set(constant_of_name) != set(features or ()):
        return constants
    if features is None:
        raise SettingError(
            f"{setting} has names ({listed(list(constant_of_name))}), and the features have none: give a list of numbers"
        )

    differences = []
    missing_names = [name for name in features if name not in constant_of_name]
    if missing_names:
        differences.append(f"lacks {listed(missing_names)}")
    unknown_names = [name for name in constant_of_name if name not in features]
    if unknown_names:
        differences.append(f"also has {listed(unknown_names)}")
    if differences:
        raise SettingError(
            f"{setting} must have each feature by its name, {listed(features)}: it {' and '.join(differences)}"
        )
    return [constant_of_name[name] for name in features]


def _constants(name: str, values: Any, inputs: torch.Tensor) -> torch.Tensor:
    """The constants of the features ``(d,)``, or of the channels of images, from as many numbers or from one."""
    feature_count = inputs.shape[1]
    noun = "feature" if inputs.ndim == 2 else "channel"
    return _checked_numbers(name, values, noun, feature_count).expand(feature_count)


def _checked_numbers(name: str, values: Any, noun: str, count: int) -> torch.Tensor:
    """Finite numbers in float64, one or ``count`` of them; raises SettingError if they are something else."""
    try:
        constants = torch.as_tensor(values, dtype=torch.float64).flatten()
    except (TypeError, ValueError, RuntimeError):
        raise SettingError(f"{name} must be numbers, got {values!r:.60}") from None
    if len(constants) not in (1, count) or not bool(torch.isfinite(constants).all()):
        raise SettingError(
            f"{name} must be one finite number, or one per {noun}, {count}, got {len(constants)}"
        )
    return constants


# ----------------------------------------------------------------------------------------------------
# Targets of regression.


TARGET_SETTING = "standardize_target"
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
    if not _is_pooled_or_pair(how):
        allowed = ", ".join(STANDARDIZE[:-1])
        raise SettingError(
            f"{TARGET_SETTING} must be {allowed}, or the means and the deviations, got {how!r:.60}"
        )

    # Classes and labels have no unit, and another loss may need whole numbers as they are.
    splits = [data.train for data in world.steps[0].values()]
    targets = splits[0].targets
    loss = world.objective.loss
    if not isinstance(targets, torch.Tensor) or loss in (cross_entropy, binary_cross_entropy):
        form = "classes or labels" if isinstance(targets, torch.Tensor) else "of another form"
        raise UserError(
            f"{TARGET_SETTING} needs numbers to predict (task = regression), and the targets are {form}"
        )
    if not targets.is_floating_point() and loss is not squared_error:
        raise UserError(
            f"{TARGET_SETTING} needs numbers to predict, and the targets are whole numbers, which this loss may need"
        )

    outputs = math.prod(targets.shape[1:])
    # Clients that are added later learn the scale that the model has learned.
    earlier_scale = None if after is None else after.objective.target_scale
    if isinstance(how, str):
        scale = pooled_scale(splits) if earlier_scale is None else earlier_scale
    else:
        means, deviations = how
        scale = TargetScale(
            _target_constants(f"{TARGET_SETTING}: means", means, outputs),
            _target_constants(f"{TARGET_SETTING}: deviations", deviations, outputs),
        )
    if min(scale.deviations) <= 0:
        raise SettingError(
            f"{TARGET_SETTING}: deviations must be > 0, got {min(scale.deviations):g}"
        )
    objective = replace(world.objective, loss=LossOfStandardized(loss, scale))
    return replace(world, objective=objective)


def pooled_scale(splits: Iterable[Split]) -> TargetScale:
    """The mean and the standard deviation of each output's targets, over all examples of some splits."""
    # A target of one output is a column, as each of several ones.
    columns = []
    for split in splits:
        targets = split.targets.double()
        columns.append(targets.flatten(1) if targets.dim() > 1 else targets[:, None])
    values = torch.cat(columns)
    # The rounded mean of equal targets may be another number, and their deviation then is not 0.
    are_equal = values.amin(0) == values.amax(0)
    means = torch.where(are_equal, values[0], values.mean(0))
    deviations = torch.where(are_equal, 1.0, values.std(0, correction=0))
    return TargetScale(tuple(means.tolist()), tuple(deviations.tolist()))


def _target_constants(name: str, values: Any, outputs: int) -> tuple[float, ...]:
    """The constants of the targets, one for each output or one for all."""
    return tuple(_checked_numbers(name, values, "target", outputs).tolist())
