"""Whether bf16 is faster than fp32 for a net on this device: measured, because it depends on both.

On processors with matrix units for bf16 (Intel's AMX) large products take a fraction of their time
in fp32. On others, and for small nets, rounding the weights costs more than it gains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from coterie.data.world import Split, World
from coterie.randomness import Purpose, generator, seeded
from coterie.training.learner import Learner

MAX_RATIO = 0.9
"""bf16 is chosen if training takes at most this share of its time in fp32: its rounding has a price, too."""

REPETITIONS = 3
"""Measurements of each number format, in turn; the fastest counts."""

MIN_SECONDS = 0.05
"""Each measurement lasts at least so long."""

MAX_STEPS = 64
"""Most steps of one measurement."""


@dataclass(frozen=True)
class MeasuredPrecision:
    """A number format, and why.

    Attributes:
        precision: ``"bf16"`` or ``"fp32"``.
        ratio: The time of a training step in bf16 over that in fp32; 1 if a format cannot be used.
    """

    precision: str
    ratio: float

    def __str__(self) -> str:
        return f"precision {self.precision}: a training step in bf16 takes {self.ratio:.2f} of its time in fp32 here"


def faster_precision(world: World, seed: int = 0, device: str = "cpu") -> MeasuredPrecision:
    """Measure training steps of a world's net in both number formats, on examples of its largest client.

    Args:
        world: The clients, their data and their model.
        seed: Seed of the first model.
        device: The device that trains.

    Returns:
        The faster format: bf16 only if it is clearly faster.
    """
    examples = max((data.train for data in world.examined.clients.values()), key=len)
    steps_of_format: dict[str, Callable[[int], float]] = {}
    for precision in ("fp32", "bf16"):
        with seeded(seed, Purpose.INIT, 0):
            module = world.model()
        try:
            learner = Learner(
                module, world.objective, world.augment, device=device, precision=precision
            )
            steps_of_format[precision] = _timer(learner, world, examples, seed)
            # The first steps also make what later ones use again.
            steps_of_format[precision](2)
        except RuntimeError:
            # An operation of the net does not exist in this format.
            return MeasuredPrecision("fp32", 1.0)
    # As many steps as last long enough in fp32, for both.
    step_count = 2
    while steps_of_format["fp32"](step_count) < MIN_SECONDS and step_count < MAX_STEPS:
        step_count *= 2
    seconds: dict[str, list[float]] = {precision: [] for precision in steps_of_format}
    for _ in range(REPETITIONS):
        for precision, timed_steps in steps_of_format.items():
            seconds[precision].append(timed_steps(step_count))
    ratio = min(seconds["bf16"]) / max(min(seconds["fp32"]), 1e-9)
    return MeasuredPrecision("bf16" if ratio <= MAX_RATIO else "fp32", ratio)


def _timer(learner: Learner, world: World, examples: Split, seed: int) -> Callable[[int], float]:
    """A function that makes some training steps and returns their seconds."""
    model_row = learner.layout.row(learner.module).clone()

    def timed_steps(step_count: int) -> float:
        training = replace(world.training, steps=step_count)
        with learner.scope((seed,), examples):
            began = time.perf_counter()
            learner.train(model_row, examples, training, training.lr, generator(seed))
            if learner.device.type == "cuda":
                torch.cuda.synchronize(learner.device)
            return time.perf_counter() - began

    return timed_steps
