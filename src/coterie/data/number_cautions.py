"""What a world's data say before the first round about numbers to predict, and about tests of few rows."""

from __future__ import annotations

import math

import torch

from coterie.data.objective import binary_cross_entropy, cross_entropy
from coterie.data.scaling import numbers, pooled_scale
from coterie.data.target_scale import LARGE_TARGET
from coterie.data.world import World
from coterie.pooling import FEW_ROWS
from coterie.randomness import seeded

SMALL_TARGET = 0.01
"""Standard deviation of targets below which the first outputs of a net, which are around 1, are all
error."""

NEAR = 3.0
"""A net whose first outputs are within so many standard deviations of the targets knows their unit,
as with a last layer that scales."""


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
        abs(float(first.mean()) - mean) <= NEAR * deviation
        and float(first.std(correction=0)) >= deviation / 100
    )
