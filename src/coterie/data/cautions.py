"""Warnings about a world's data before the first round.

Scales of inputs and targets that hinder training, classes so rare that accuracy hides them, and
tests of few rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from coterie.data.constant import class_name, class_shares
from coterie.data.objective import binary_cross_entropy, cross_entropy
from coterie.data.scaling import numbers, pooled_scale
from coterie.data.target_scale import LARGE_TARGET
from coterie.data.world import World
from coterie.pooling import FEW_ROWS
from coterie.randomness import seeded

LARGE_FEATURE = 30.0
"""Typical sizes of a feature above this make gradients so large that usual learning rates diverge,
or learn a constant."""

MAX_SCALE_RATIO = 1000.0
"""Features whose typical sizes differ by more than this factor cannot be learned with one learning
rate."""

RARE_CLASS_SHARE = 0.4
"""A class is rare below this share of an equal share of all classes: below a fifth of the examples
for two classes."""

MIN_EXPECTED_TESTS = 3.0
"""Least expected number of test examples of a class that is just not rare; chance alone leaves out
3 in 5 % of draws."""

SMALL_TARGET = 0.01
"""Standard deviation of targets below which the first outputs of a net, which are around 1, are all
error."""

NEAR_TARGET_DEVIATIONS = 3.0
"""A net whose first outputs are within so many standard deviations of the targets knows their unit,
as with a last layer that scales."""


def cautions(world: World) -> list[str]:
    """Return sentences about data with which a run would look better, or train worse, than its clients could.

    They begin with the world's own ``hints``.

    Args:
        world: The clients and their data.

    Returns:
        The sentences; empty if there is nothing to say.
    """
    found = (
        *world.hints,
        _of_scales(world),
        of_targets(world),
        _of_rare_classes(world),
        of_few_rows(world),
    )
    return [text for text in found if text]


def _of_scales(world: World) -> str:
    """A sentence if features are large, or of very different sizes, and nothing makes them equal."""
    inputs = next(iter(world.clients.values())).train.inputs
    if (
        not isinstance(inputs, torch.Tensor)
        or not inputs.is_floating_point()
        or "deviations" in world.about
    ):
        return ""
    if _normalizes_inputs(world):
        return ""
    sizes = typical_sizes(world)
    names = world.about.get("features")
    remedy = 'standardize them by constants that all clients share (standardize = "pooled")'
    if not len(sizes):
        return ""
    most = int(sizes.argmax())
    if sizes[most] > LARGE_FEATURE:
        what = _feature(most, len(sizes), names)
        typical = f"{what} is typically {float(sizes[most]):.3g}"
        return f"the inputs are not scaled: {typical}, and training may fail or learn a constant; {remedy}"
    used = sizes[sizes > 0]
    if len(used) and float(used.max() / used.min()) > MAX_SCALE_RATIO:
        least = int(torch.where(sizes > 0, sizes, torch.inf).argmin())
        large, small = (_feature(one, len(sizes), names) for one in (most, least))
        return (
            f"the inputs are not scaled: {large} is typically {float(sizes[most]):.3g} and {small} {float(sizes[least]):.3g}, "
            f"so that training hardly uses the latter; {remedy}"
        )
    return ""


def typical_sizes(world: World) -> torch.Tensor:
    """Return the root mean square of each feature's values that are not zero, over the training data of all clients.

    Args:
        world: The clients and their data, whose inputs are one tensor of floats each.

    Returns:
        Sizes ``(d,)`` of the d features of a table; of other inputs, such as images and sequences,
        one size ``(1,)``.
    """
    squares: torch.Tensor | None = None
    counts = torch.zeros(())
    for data in world.clients.values():
        values = data.train.inputs[data.train.index]
        flat = (values if values.ndim == 2 else values.reshape(-1, 1)).double()
        if squares is not None and len(squares) != flat.shape[1]:
            return torch.zeros(0)  # clients with other numbers of features are refused elsewhere
        squares = flat.square().sum(0) + (0 if squares is None else squares)
        counts = counts + (flat != 0).sum(0)
    assert squares is not None  # a world has a client
    return (squares / counts.clamp(min=1)).sqrt()


def _normalizes_inputs(world: World) -> bool:
    """Whether the first layer of the model with tensors of its own is a normalization."""
    with seeded(0):
        module = world.model()
    first = next(
        (one for one in module.modules() if next(one.parameters(recurse=False), None) is not None),
        None,
    )
    return isinstance(
        first, (torch.nn.modules.batchnorm._NormBase, torch.nn.LayerNorm, torch.nn.GroupNorm)
    )


def _feature(number: int, count: int, names: object) -> str:
    if isinstance(names, Sequence) and not isinstance(names, str) and len(names) == count:
        return f"feature '{names[number]}'"
    return "a value" if count == 1 else f"feature {number}"


def _of_rare_classes(world: World) -> str:
    """A sentence if accuracy is the main metric and a class is so rare that a model may ignore it."""
    shares = class_shares(world) if world.objective.main == "accuracy" else {}
    if len(shares) < 2:
        return ""
    rarest = min(shares, key=lambda label: (shares[label], label))
    commonest = max(shares, key=lambda label: (shares[label], -label))
    tests = sum(len(data.test) for data in world.clients.values())
    if (
        shares[rarest] >= RARE_CLASS_SHARE / len(shares)
        or tests * RARE_CLASS_SHARE / len(shares) < MIN_EXPECTED_TESTS
    ):
        return ""
    names = world.about.get("classes")
    better = "AUROC" if len(shares) == 2 else "BalancedAccuracy"
    return (
        f"{class_name(rarest, names)} has {shares[rarest]:.1%} of the test examples, and always predicting "
        f"{class_name(commonest, names)} has accuracy {shares[commonest]:.3f}: {better} as the main metric would show whether "
        f'the rare class is found (metrics = ["{better}", "accuracy"])'
    )


def of_few_rows(world: World) -> str:
    """A sentence if clients have few test rows and a metric is not a mean over rows; empty otherwise."""
    few = [client for client, data in world.clients.items() if 0 < len(data.test) < FEW_ROWS]
    pooled, other = [], []
    for name, metric in world.objective.named.items():
        if metric.sums is not None or metric.final is math.sqrt:
            pooled.append(name)
        elif metric.whole and name == world.objective.main:
            other.append(name)
    if not few or not (pooled or other):
        return ""
    who = f"{len(few):,} of {len(world.clients):,} clients {'has' if len(few) == 1 else 'have'}"
    metrics = [*pooled, *other]
    says = "says" if len(metrics) == 1 else "say"
    text = f"{who} fewer than {FEW_ROWS} test rows, for which {' and '.join(metrics)} of a single client {says} little"
    if pooled:
        verb = "is that" if len(pooled) == 1 else "are those"
        text += f"; over several clients, {' and '.join(pooled)} {verb} of all their rows together"
    return f"{text}; nor does its mean over clients" if other else text


def of_targets(world: World) -> str:
    """A sentence if the numbers to predict are far from what a net starts with, and are not standardized."""
    objective, splits = world.objective, [data.train for data in world.clients.values()]
    if objective.loss in (cross_entropy, binary_cross_entropy):
        return ""
    if not all(
        isinstance(split.targets, torch.Tensor) and split.targets.is_floating_point()
        for split in splits
    ):
        return ""
    if len({split.targets.shape[1:] for split in splits}) > 1:
        return ""  # of several lengths, such as sequences
    if constant := _constant_target(world):
        return constant
    if objective.target_scale is not None:
        return ""
    scale = pooled_scale(splits)
    sizes = [
        max(abs(mean), deviation)
        for mean, deviation in zip(scale.means, scale.deviations, strict=True)
    ]
    most, least = (
        max(range(len(sizes)), key=sizes.__getitem__),
        min(range(len(sizes)), key=sizes.__getitem__),
    )
    wrong = most if sizes[most] > LARGE_TARGET else least
    if SMALL_TARGET <= sizes[wrong] <= LARGE_TARGET or _starts_near(
        world, scale.means[wrong], scale.deviations[wrong], wrong
    ):
        return ""
    mean, deviation = scale.means[wrong], scale.deviations[wrong]
    return (
        f"{_called(world, wrong, len(sizes))} is around {mean:.3g} (standard deviation {deviation:.3g}), and a net starts with "
        'outputs around 1, so training may fail or learn little: standardize_target = "pooled", which metrics and predictions '
        "undo"
    )


def _constant_target(world: World) -> str:
    """A sentence if a number to predict is the same in all training rows; empty otherwise."""
    values = torch.cat([data.train.targets for data in world.clients.values()])
    columns = values.flatten(1) if values.dim() > 1 else values[:, None]
    same = (columns.amin(0) == columns.amax(0)).nonzero().flatten().tolist()
    if not same:
        return ""
    name, value = _called(world, same[0], columns.shape[1]), float(columns[0, same[0]])
    return f"{name} is {value:.6g} in every training row: nothing can be learned, and R2 is not defined"


def _called(world: World, output: int, outputs: int) -> str:
    """A target's name, if it is known."""
    names = world.about.get("targets")
    return (
        f"the target {names[output]!r}"
        if isinstance(names, list) and len(names) == outputs
        else "the target"
    )


def _starts_near(world: World, mean: float, deviation: float, output: int) -> bool:
    """Whether the first outputs of the user's net are near the targets."""
    split = next(iter(world.clients.values())).train
    if not isinstance(split.inputs, torch.Tensor):
        return False
    try:
        with seeded(0), torch.no_grad():
            outputs = world.model().eval()(numbers(split.inputs[split.index[:32]]))
            first = outputs.double().flatten(1)[:, output]
    except (
        Exception
    ):  # the user's code can raise anything, which the check before the first round reports
        return False
    return (
        abs(float(first.mean()) - mean) <= NEAR_TARGET_DEVIATIONS * deviation
        and float(first.std(correction=0)) >= deviation / 100
    )
