"""Gaussian classes of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.data.datasets.source import DatasetSettings, Paths, Source, check_memory, register
from coterie.data.examples import Dataset, pool
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import setting


# There are no files: examples are drawn. A class is a Gaussian cloud around its own random mean,
# and ``spread`` says how much the clouds overlap. All examples are one pool, which a scenario
# divides among clients; each client holds out its own test examples.
@dataclass(frozen=True, kw_only=True)
class SyntheticSettings(DatasetSettings):
    """The size of Gaussian classes."""

    examples: int = setting(2000, "number of examples", ge=1, le=1_000_000_000)
    features: int = setting(20, "number of features", ge=1, le=10_000_000)
    classes: int = setting(4, "number of classes", ge=2, le=1_000_000)
    spread: float = setting(
        1.0, "standard deviation within a class, where class means have 1", gt=0
    )


def draw(paths: Paths, options: SyntheticSettings, seed: int) -> Dataset:
    """Draw Gaussian classes of equal sizes, up to one example; all are in the training pool.

    The class means are drawn from ``N(0, 1)`` in each feature; examples are drawn around them.

    Args:
        paths: Not used.
        options: The sizes.
        seed: Seed of all draws.

    Returns:
        The data set.

    Raises:
        SettingError: The data would take more than half of the free memory.
    """
    del paths
    examples = options.examples
    features = options.features
    classes = options.classes
    # In bytes: the class means, the inputs and the labels, all of 8 bytes.
    check_memory(
        8 * (classes * features + examples * (features + 1)),
        f"Scenario.examples {examples:,}, features {features:,} and classes {classes:,}",
    )
    data_rng = numpy_generator(seed, Purpose.DATA)
    # Draw the mean of each class, deal the classes out evenly in random order, and draw each
    # example's deviation from its class mean.
    class_means = data_rng.standard_normal((classes, features))
    labels = data_rng.permutation(np.arange(examples) % classes)
    inputs = data_rng.standard_normal((examples, features))
    # In place, because the check above leaves memory for one copy.
    inputs *= options.spread
    inputs += class_means[labels]
    train = pool(inputs, labels, "synthetic", classes)
    return Dataset(name="synthetic", train=train, test=None, classes=classes)


register(
    "synthetic",
    Source("Gaussian classes of any size", draw, options=SyntheticSettings, random=True),
)
