"""Warnings about a net before the first round: outputs that depend on other examples, on chance, or that have no label."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from coterie.data.losses import torch_loss
from coterie.data.objective import binary_cross_entropy, cross_entropy, squared_error
from coterie.data.scaling import numbers
from coterie.data.world import Split, World
from coterie.randomness import seeded

NUM_PROBED_ROWS = 8
"""Rows of the first client of which a net's outputs are compared: as one batch, and as its halves."""

MAX_OUTPUT_DIFFERENCE = 1e-3
"""Outputs of the same row may differ by this share of the largest output: batches of other sizes are
summed in another order."""

BUILT_IN_LOSSES = (cross_entropy, binary_cross_entropy, squared_error)
"""Losses of Coterie's own, which are means over examples."""


class FirstNet:
    """A new net of a world, made once for all warnings: a large one takes seconds.

    Args:
        world: The clients and their model.
    """

    def __init__(self, world: World) -> None:
        self._make = world.model

    @cached_property
    def module(self) -> torch.nn.Module:
        """The net with its first weights, in eval mode. The user's code can raise anything."""
        with seeded(0):
            return self._make().eval()

    def outputs(self, inputs: torch.Tensor, seed: int = 0) -> Any:
        """What the net returns for inputs ``(n, ...)``, with random numbers of this seed. It can raise anything."""
        network = self.module
        with seeded(seed), torch.no_grad():
            return network(inputs)


def of_examples(world: World, first_net: FirstNet) -> str:
    """A sentence if a net's output for an example is not a function of this example alone; empty otherwise."""
    inputs = _probed_inputs(next(iter(world.clients.values())).train)
    if inputs is None:
        return ""
    # The user's code can raise anything, which the check before the first round reports.
    try:
        whole = first_net.outputs(inputs).double()
        if not torch.equal(whole, first_net.outputs(inputs, seed=1).double()):
            return (
                "the model's outputs are random in eval mode, so scores are noisy: let a dropout ask self.training, as "
                "nn.Dropout and F.dropout(x, training=self.training) do"
            )
        half = len(inputs) // 2
        halves = torch.cat(
            [first_net.outputs(part).double() for part in (inputs[:half], inputs[half:])]
        )
        if whole.shape != halves.shape or not whole.isfinite().all():
            return ""
        tolerance = MAX_OUTPUT_DIFFERENCE * float(whole.abs().max())
        if torch.allclose(whole, halves, rtol=0.0, atol=tolerance):
            return ""
    except Exception:
        return ""
    return (
        "the model's output for an example depends on the other examples of its batch, also in eval mode, so scores depend "
        "on how tests are divided into batches: normalize over features, or with BatchNorm and its running statistics"
    )


def of_unused_outputs(world: World, num_classes: int) -> str:
    """A sentence if a net of the user's own has more outputs than there are classes; empty otherwise.

    Args:
        world: The clients and their data.
        num_classes: The number of classes that was given; 0 if none was.
    """
    inputs = _probed_inputs(next(iter(world.clients.values())).train)
    if inputs is None:
        return ""
    # The greatest label of any client counts, and names of classes that no row has.
    for data in world.clients.values():
        for split in (data.train, data.test):
            targets = split.targets
            is_of_classes = isinstance(targets, torch.Tensor) and targets.dim() == 1
            if not is_of_classes or not world.objective.takes_classes(targets):
                return ""
            if len(targets):
                num_classes = max(num_classes, int(targets.max()) + 1)
    named_classes = world.about.get("classes")
    if isinstance(named_classes, list):
        num_classes = max(num_classes, len(named_classes))
    try:
        outputs = FirstNet(world).outputs(inputs)
    except Exception:
        return ""
    if (
        not isinstance(outputs, torch.Tensor)
        or outputs.dim() != 2
        or outputs.shape[1] <= num_classes
    ):
        return ""
    return (
        f"the model has {outputs.shape[1]} outputs, and the labels of all clients are 0 to {num_classes - 1}: its last layer "
        "may be too wide; if some classes have no examples here, classes= says how many there are"
    )


def of_loss(world: World, first_net: FirstNet) -> str:
    """A sentence if a loss takes other outputs than the net's, or is no mean over the examples of a batch; empty otherwise."""
    split = next(iter(world.clients.values())).train
    inputs = _probed_inputs(split)
    targets = split.targets
    if inputs is None or not isinstance(targets, torch.Tensor):
        return ""
    loss = world.objective.loss
    if loss in BUILT_IN_LOSSES:
        return ""
    targets = targets[: len(inputs)]
    try:
        with seeded(0), torch.no_grad():
            outputs = first_net.outputs(inputs)
            known_loss = torch_loss(loss, outputs, targets)
            if known_loss is not None:
                if known_loss.function.__name__ != "nll_loss":
                    return ""
                # Exponentials of logarithms of probabilities sum to one.
                sums = known_loss.outputs.double().exp().sum(1)
                if torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
                    return ""
                return (
                    "the loss is torch's nll_loss, which takes logarithms of probabilities, and the model's outputs are none: "
                    "end it with LogSoftmax, or take the cross entropy"
                )
            of_batch = float(loss(outputs, targets))
            of_rows = []
            for row in range(len(inputs)):
                of_rows.append(float(loss(outputs[row : row + 1], targets[row : row + 1])))
    except Exception:
        return ""
    mean_of_rows = sum(of_rows) / len(of_rows)
    scale = max(abs(of_batch), abs(mean_of_rows))
    if not math.isfinite(scale) or abs(of_batch - mean_of_rows) <= MAX_OUTPUT_DIFFERENCE * scale:
        return ""
    return (
        f"the loss of {len(inputs)} examples is {of_batch:.4g}, and the mean of their single losses {mean_of_rows:.4g}: "
        "losses that are reported and compared depend on the size of batches unless the loss is a mean over examples"
    )


def _probed_inputs(split: Split) -> torch.Tensor | None:
    """The first inputs of a client; None if they are no tensor, or too few for two halves."""
    if not isinstance(split.inputs, torch.Tensor) or len(split) < 4:
        return None
    return numbers(split.inputs[split.index[:NUM_PROBED_ROWS]])
