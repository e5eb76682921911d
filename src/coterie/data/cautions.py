"""Warnings about a world's data before the first round.

Scales of inputs and targets that hinder training, classes so rare that accuracy hides them, and
tests of few rows. ``runs.run`` shows them for a world from any door; nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from coterie.data.constant import class_name, class_shares
from coterie.data.deciding_tests import deciding_tests
from coterie.data.net_cautions import FirstNet, of_examples, of_loss
from coterie.data.objective import binary_cross_entropy, cross_entropy
from coterie.data.scaling import numbers, pooled_scale
from coterie.data.target_scale import LARGE_TARGET
from coterie.data.world import World
from coterie.pooling import FEW_ROWS

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

PROBED_ROWS = 32
"""Rows of the first client on which the outputs of a new net are looked at."""

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
    world = world.examined
    first_net = FirstNet(world)
    sentences = (
        *world.hints,
        _of_no_tests(world),
        _of_scales(world, first_net),
        _of_probabilities(world, first_net),
        of_examples(world, first_net),
        of_loss(world, first_net),
        of_targets(world, first_net),
        _of_rare_classes(world),
        of_few_rows(world),
        of_few_of_a_class(world),
    )
    return [sentence for sentence in sentences if sentence]


def _of_no_tests(world: World) -> str:
    """A sentence if no client has test examples."""
    if any(len(data.test) for data in world.clients.values()):
        return ""
    return "no client has test examples, so there are no scores: give some (x, y, x_test, y_test)"


def _of_probabilities(world: World, first_net: FirstNet) -> str:
    """A sentence if a net gives probabilities to a loss that takes logits."""
    split = next(iter(world.clients.values())).train
    if not isinstance(split.inputs, torch.Tensor) or not isinstance(split.targets, torch.Tensor):
        return ""
    is_of_classes = world.objective.takes_classes(split.targets)
    if not is_of_classes and world.objective.loss is not binary_cross_entropy:
        return ""
    # The user's code can raise anything, which the check before the first round reports.
    try:
        inputs = numbers(split.inputs[split.index[:PROBED_ROWS]])
        outputs = first_net.outputs(inputs).double()
    except Exception:
        return ""
    remedy = "takes logits: training is slow, and probabilities are wrong; leave it out"
    if is_of_classes:
        sums_to_one = outputs.dim() > 1 and outputs.shape[-1] > 1 and len(outputs) > 1
        sums_to_one = sums_to_one and bool((outputs >= 0).all())
        if sums_to_one and torch.allclose(outputs.sum(-1), torch.ones(()).double(), atol=1e-4):
            return f"the model ends in a softmax (its outputs sum to 1), and the cross entropy {remedy}"
        return ""
    last_layer = list(first_net.module.modules())[-1]
    if isinstance(last_layer, torch.nn.Sigmoid):
        return f"the model ends in a sigmoid, and the binary cross entropy {remedy}"
    return ""


def _of_scales(world: World, first_net: FirstNet) -> str:
    """A sentence if features are large, or of very different sizes, and nothing makes them equal."""
    inputs = next(iter(world.clients.values())).train.inputs
    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
        return ""
    if "deviations" in world.about or _normalizes_inputs(first_net.module):
        return ""
    sizes = typical_sizes(world)
    if not len(sizes):
        return ""
    names = world.about.get("features")
    remedy = 'standardize them by constants that all clients share (standardize = "pooled")'

    # First the largest feature by itself, then its ratio to the smallest one that is not all zeros.
    largest = int(sizes.argmax())
    large_feature = _feature(largest, len(sizes), names)
    if sizes[largest] > LARGE_FEATURE:
        typical = f"{large_feature} is typically {float(sizes[largest]):.3g}"
        return f"the inputs are not scaled: {typical}, and training may fail or learn a constant; {remedy}"
    used_sizes = sizes[sizes > 0]
    if len(used_sizes) and float(used_sizes.max() / used_sizes.min()) > MAX_SCALE_RATIO:
        smallest = int(torch.where(sizes > 0, sizes, torch.inf).argmin())
        small_feature = _feature(smallest, len(sizes), names)
        return (
            f"the inputs are not scaled: {large_feature} is typically {float(sizes[largest]):.3g} "
            f"and {small_feature} {float(sizes[smallest]):.3g}, "
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
        # A table has columns; of anything else all values are one column.
        columns = (values if values.ndim == 2 else values.reshape(-1, 1)).double()
        # Clients with other numbers of features are refused elsewhere.
        if squares is not None and len(squares) != columns.shape[1]:
            return torch.zeros(0)
        squares = columns.square().sum(0) + (0 if squares is None else squares)
        counts = counts + (columns != 0).sum(0)
    # A world has a client.
    assert squares is not None
    return (squares / counts.clamp(min=1)).sqrt()


def _normalizes_inputs(network: torch.nn.Module) -> bool:
    """Whether the first layer of a net with tensors of its own is a normalization."""
    # Layers without tensors, such as a flattening, do not change the scale.
    for layer in network.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            return isinstance(
                layer,
                (torch.nn.modules.batchnorm._NormBase, torch.nn.LayerNorm, torch.nn.GroupNorm),
            )
    return False


def _feature(number: int, count: int, names: object) -> str:
    """A feature in a sentence."""
    if isinstance(names, Sequence) and not isinstance(names, str) and len(names) == count:
        return f"feature '{names[number]}'"
    return "a value" if count == 1 else f"feature {number}"


def _of_rare_classes(world: World) -> str:
    """A sentence if accuracy is the main metric and a class is so rare that a model may ignore it."""
    shares = class_shares(world) if world.objective.main == "accuracy" else {}
    if len(shares) < 2:
        return ""
    # Of equally frequent classes, the one with the smaller number.
    rarest = min(shares, key=lambda label: (shares[label], label))
    commonest = max(shares, key=lambda label: (shares[label], -label))
    test_count = sum(len(data.test) for data in world.clients.values())
    # A class is rare below a part of an equal share. With few test examples it may be so by chance.
    if shares[rarest] >= RARE_CLASS_SHARE / len(shares):
        return ""
    if test_count * RARE_CLASS_SHARE / len(shares) < MIN_EXPECTED_TESTS:
        return ""
    names = world.about.get("classes")
    better_metric = "AUROC" if len(shares) == 2 else "BalancedAccuracy"
    return (
        f"{class_name(rarest, names)} has {shares[rarest]:.1%} of the test examples, and always predicting "
        f"{class_name(commonest, names)} has accuracy {shares[commonest]:.3f}: {better_metric} as the main metric would show "
        f'whether the rare class is found (metrics = ["{better_metric}", "accuracy"])'
    )


def of_few_of_a_class(world: World) -> str:
    """A sentence if the main metric needs both labels and clients have few test examples of one; empty otherwise."""
    numbers_of_client = deciding_tests(world)
    if numbers_of_client is None or world.objective.main != "AUROC":
        return ""
    num_of_rarer = {}
    for client, counts in numbers_of_client.items():
        # Clients of one label have no AUROC. Of few rows another sentence speaks.
        if counts and min(counts) < FEW_ROWS and len(world.clients[client].test) >= FEW_ROWS:
            num_of_rarer[client] = min(counts)
    if not num_of_rarer:
        return ""
    fewest = min(num_of_rarer, key=lambda client: (num_of_rarer[client], client))
    has = "has" if len(num_of_rarer) == 1 else "have"
    name = world.client_names.get(fewest, str(fewest))
    return (
        f"{len(num_of_rarer):,} of {len(world.clients):,} clients {has} fewer than {FEW_ROWS} test examples of the rarer "
        f"class, for which AUROC of a single client says little (client {name}: {num_of_rarer[fewest]:.3g} of "
        f"{len(world.clients[fewest].test):,})"
    )


def of_few_rows(world: World) -> str:
    """A sentence if clients have few test rows and a metric is not a mean over rows; empty otherwise."""
    few_row_clients = [
        client for client, data in world.clients.items() if 0 < len(data.test) < FEW_ROWS
    ]
    # Metrics that are pooled over clients, and a main metric that is averaged over clients although
    # it is no mean over rows.
    pooled_metrics = []
    averaged_metrics = []
    for name, metric in world.objective.named.items():
        if metric.sums is not None or metric.final is math.sqrt:
            pooled_metrics.append(name)
        elif metric.whole and name == world.objective.main:
            averaged_metrics.append(name)
    metrics = [*pooled_metrics, *averaged_metrics]
    if not few_row_clients or not metrics:
        return ""

    has = "has" if len(few_row_clients) == 1 else "have"
    says = "says" if len(metrics) == 1 else "say"
    sentence = (
        f"{len(few_row_clients):,} of {len(world.clients):,} clients {has} fewer than {FEW_ROWS} test rows, "
        f"for which {' and '.join(metrics)} of a single client {says} little"
    )
    if pooled_metrics:
        verb = "is that" if len(pooled_metrics) == 1 else "are those"
        sentence += (
            f"; over several clients, {' and '.join(pooled_metrics)} {verb} "
            "of all their rows together"
        )
    return f"{sentence}; nor does its mean over clients" if averaged_metrics else sentence


def of_targets(world: World, first_net: FirstNet | None = None) -> str:
    """A sentence if the numbers to predict are far from what a net starts with, and are not standardized.

    Args:
        world: The clients and their data.
        first_net: A new net of the world; None makes one.
    """
    objective = world.objective
    if objective.loss in (cross_entropy, binary_cross_entropy):
        return ""
    splits = [data.train for data in world.clients.values()]
    for split in splits:
        if not isinstance(split.targets, torch.Tensor) or not split.targets.is_floating_point():
            return ""
    # Targets of several lengths, such as sequences, have no columns.
    if len({split.targets.shape[1:] for split in splits}) > 1:
        return ""
    if constant := _constant_target(world):
        return constant
    if objective.target_scale is not None:
        return ""

    # The size of a target is its mean or its deviation, whichever is larger. The largest target
    # counts if it is too large, otherwise the smallest.
    scale = pooled_scale(splits)
    sizes = []
    for mean, deviation in zip(scale.means, scale.deviations, strict=True):
        sizes.append(max(abs(mean), deviation))
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    smallest = min(range(len(sizes)), key=sizes.__getitem__)
    output = largest if sizes[largest] > LARGE_TARGET else smallest
    mean = scale.means[output]
    deviation = scale.deviations[output]
    if SMALL_TARGET <= sizes[output] <= LARGE_TARGET:
        return ""
    first_net = first_net or FirstNet(world)
    if _starts_near(world, first_net, mean, deviation, output):
        return ""
    return (
        f"{_called(world, output, len(sizes))} is around {mean:.3g} (standard deviation {deviation:.3g}), "
        "and a net starts with "
        'outputs around 1, so training may fail or learn little: standardize_target = "pooled", which metrics and predictions '
        "undo"
    )


def _constant_target(world: World) -> str:
    """A sentence if a number to predict is the same in all training rows; empty otherwise."""
    values = torch.cat([data.train.targets for data in world.clients.values()])
    columns = values.flatten(1) if values.dim() > 1 else values[:, None]
    # The first constant target is named.
    is_constant = columns.amin(0) == columns.amax(0)
    if not is_constant.any():
        return ""
    output = int(is_constant.nonzero()[0])
    name = _called(world, output, columns.shape[1])
    value = float(columns[0, output])
    return f"{name} is {value:.6g} in every training row: nothing can be learned, and R2 is not defined"


def _called(world: World, output: int, outputs: int) -> str:
    """A target's name, if it is known."""
    names = world.about.get("targets")
    if isinstance(names, list) and len(names) == outputs:
        return f"the target {names[output]!r}"
    return "the target"


def _starts_near(
    world: World, first_net: FirstNet, mean: float, deviation: float, output: int
) -> bool:
    """Whether the first outputs of the user's net are near the targets."""
    split = next(iter(world.clients.values())).train
    if not isinstance(split.inputs, torch.Tensor):
        return False
    # The user's code can raise anything, which the check before the first round reports.
    try:
        outputs = first_net.outputs(numbers(split.inputs[split.index[:PROBED_ROWS]]))
        first_outputs = outputs.double().flatten(1)[:, output]
    except Exception:
        return False
    # A net that gives one number for all rows has not the unit, but a bias.
    is_near = abs(float(first_outputs.mean()) - mean) <= NEAR_TARGET_DEVIATIONS * deviation
    return is_near and float(first_outputs.std(correction=0)) >= deviation / 100
