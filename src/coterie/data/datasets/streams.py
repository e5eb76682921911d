"""Streams for concept drift: inputs, each with its label under every concept.

Sources
- SINE and CIRCLE: the published code of FedDrift (E. Jothimurugesan, K. Hsieh, J. Wang, G. Joshi,
  P. B. Gibbons, "Federated Learning under Distributed Concept Drift", AISTATS 2023, arXiv
  2206.00799).
- SEA: W. N. Street, Y. Kim, "A streaming ensemble algorithm (SEA) for large-scale classification",
  KDD 2001. In the files of SEA that come with FedDrift's code, the concepts 1 and 3 have the same
  threshold, 9; here there are four, as in Street and Kim's paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from coterie.data.datasets.source import DatasetSettings, Paths, Source, check_memory, register
from coterie.data.examples import CONCEPT, Dataset, Pool, pool
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import setting


# There are no files: examples are drawn, uniformly from the unit square or cube. A concept is a
# rule that gives each input its label, so every example has one label under each concept. The
# columns ``concept 0``, ``concept 1``, ... of the pool's meta hold them.
#
# From the stream to clients: examples are divided at random. The shift ``concept`` lets group g see
# the labels of concept g, and with a drift the schedule says which client has which concept when.
@dataclass(frozen=True, kw_only=True)
class StreamSettings(DatasetSettings):
    """The length of a stream and its label noise."""

    examples: int = setting(2000, "number of examples", ge=1, le=1_000_000_000)
    mislabelled: float = setting(
        0.0, "probability that an example has the wrong label", ge=0, le=0.5
    )


@dataclass(frozen=True)
class Stream:
    """A stream.

    Attributes:
        about: A short description.
        features: Number of features.
        concepts: Number of concepts.
        rule: Function of inputs ``(N, features)`` in [0, 1] that returns their labels ``(N,)``
            under each concept.
    """

    about: str
    features: int
    concepts: int
    rule: Callable[[np.ndarray], list[np.ndarray]]


def _sine(inputs: np.ndarray) -> list[np.ndarray]:
    # The second concept has every label of the first reversed.
    is_below = inputs[:, 1] <= np.sin(inputs[:, 0])
    return [is_below, ~is_below]


_CIRCLES = ((0.2, 0.5, 0.15), (0.6, 0.5, 0.25))
"""Centre and radius of each concept's circle."""


def _circle(inputs: np.ndarray) -> list[np.ndarray]:
    labels = []
    for centre_x, centre_y, radius in _CIRCLES:
        squared_distance = (inputs[:, 0] - centre_x) ** 2 + (inputs[:, 1] - centre_y) ** 2
        labels.append(squared_distance > radius**2)
    return labels


_SEA_THRESHOLDS = (8.0, 9.0, 7.0, 9.5)
"""Threshold of each concept for the sum of two features, which are from 0 to 10."""


def _sea(inputs: np.ndarray) -> list[np.ndarray]:
    return [10 * (inputs[:, 0] + inputs[:, 1]) <= threshold for threshold in _SEA_THRESHOLDS]


STREAMS = {
    "sine": Stream(
        "points above and below a sine; two concepts, of opposite labels (FedDrift's SINE)",
        2,
        2,
        _sine,
    ),
    "circle": Stream(
        "points inside and outside a circle; two concepts, two circles (FedDrift's CIRCLE)",
        2,
        2,
        _circle,
    ),
    "sea": Stream(
        "sums of two of three features, above and below a threshold; four concepts (SEA)",
        3,
        4,
        _sea,
    ),
}


def draw(paths: Paths, options: StreamSettings, seed: int, stream: Stream) -> Dataset:
    """Draw inputs uniformly from the unit cube, and their labels under every concept.

    Args:
        paths: Not used.
        options: The length and the label noise, which is the same under all concepts.
        seed: Seed of all draws.
        stream: The stream.

    Returns:
        The data set, all of it in the training pool. Its meta ``concept 0``, ``concept 1``, ... are
        the labels under each concept; its targets are those under concept 0.

    Raises:
        SettingError: The data would take more than half of the free memory.
    """
    del paths
    examples = options.examples
    name = options.name
    # In bytes: the inputs as float64 and float32, and each concept's labels with their copies.
    check_memory(
        8 * examples * (2 * stream.features + 3 * stream.concepts),
        f"Scenario.examples {examples:,} of {name}",
    )
    # A wrong label is wrong under every concept.
    data_rng = numpy_generator(seed, Purpose.DATA)
    inputs = data_rng.random((examples, stream.features))
    is_mislabelled = data_rng.random(examples) < options.mislabelled
    labels = [(true_label ^ is_mislabelled).astype(np.int64) for true_label in stream.rule(inputs)]
    # The targets are the labels under concept 0; a shift or a drift chooses another column.
    checked_pool = pool(inputs.astype(np.float32), labels[0], name, 2)
    meta = {
        f"{CONCEPT}{number}": torch.from_numpy(concept_labels)
        for number, concept_labels in enumerate(labels)
    }
    train = Pool(checked_pool.inputs, checked_pool.targets, meta)
    return Dataset(name=name, train=train, test=None, classes=2)


for _name, _stream in STREAMS.items():
    register(
        _name,
        Source(
            _stream.about,
            partial(draw, stream=_stream),
            options=StreamSettings,
            random=True,
        ),
    )
