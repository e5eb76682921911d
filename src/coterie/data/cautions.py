"""What a world's data say before the first round: scales that hinder training, and classes so rare that accuracy hides them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.data.constant import class_name, class_shares
from coterie.data.number_cautions import of_few_rows, of_targets
from coterie.data.world import World
from coterie.randomness import seeded

LARGE = 30.0
"""Typical sizes of a feature above this make gradients so large that usual learning rates diverge,
or learn a constant."""

WILD = 1000.0
"""Features whose typical sizes differ by more than this factor cannot be learned with one learning
rate."""

RARE = 0.4
"""A class is rare below this share of an equal share of all classes: below a fifth of the examples
for two classes."""

ENOUGH = 3.0
"""Least expected number of test examples of a class that is just not rare; chance alone leaves out
3 in 5 % of draws."""


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
    if sizes[most] > LARGE:
        what = _feature(most, len(sizes), names)
        typical = f"{what} is typically {float(sizes[most]):.3g}"
        return f"the inputs are not scaled: {typical}, and training may fail or learn a constant; {remedy}"
    used = sizes[sizes > 0]
    if len(used) and float(used.max() / used.min()) > WILD:
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
    if shares[rarest] >= RARE / len(shares) or tests * RARE / len(shares) < ENOUGH:
        return ""
    names = world.about.get("classes")
    better = "AUROC" if len(shares) == 2 else "BalancedAccuracy"
    return (
        f"{class_name(rarest, names)} has {shares[rarest]:.1%} of the test examples, and always predicting "
        f"{class_name(commonest, names)} has accuracy {shares[commonest]:.3f}: {better} as the main metric would show whether "
        f'the rare class is found (metrics = ["{better}", "accuracy"])'
    )
