"""Drift: who has which concept when, and streams of examples whose labels depend on the concept.

A *schedule* is a table: a row for each time step, a column for each client, and in it the number of
the client's concept.

Sources
- FedDrift's schedules: E. Jothimurugesan, K. Hsieh, J. Wang, G. Joshi, P. B. Gibbons, "Federated
  Learning under Distributed Concept Drift", AISTATS 2023, arXiv 2206.00799, and the files
  ``data/changepoints/*.cp`` of its published code.
- ``sudden``, ``incremental`` and ``recurring``: as in the code of FedCCFA, "Classifier Clustering
  and Feature Alignment for Federated Learning under Distributed Concept Drift", NeurIPS 2024, arXiv
  2410.18478.
- SINE and CIRCLE as in FedDrift's published code. SEA: W. N. Street, Y. Kim, "A streaming ensemble
  algorithm (SEA) for large-scale classification", KDD 2001. In the files of SEA that come with
  FedDrift's code, the concepts 1 and 3 have the same threshold, 9; here there are four, as in
  Street and Kim's paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from coterie.data.examples import Dataset, Pool, pool
from coterie.files import available_memory
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError

# ----------------------------------------------------------------------------------------------------
# Schedules.


Schedule = tuple[tuple[int, ...], ...]
"""For each time step, the concept of each client."""

FEDDRIFT: Mapping[str, str] = MappingProxyType(
    {
        "a": "0000000000 0100000000 0100000100 0111010100 0111010110 1011011010 1001001010 1000101011 1000101001 1000101001",
        "b": "0000000000 1110000000 1112220000 2212222100 2221222130 2321233130 3321133210 3033133213 0033313223 0003311322",
        "c": "0000000000 1112220000 1112220030 2211222130 2221232130 2321133130 3323133210 3033313213 0033313223 0003311322",
        "d": "1112220033 1112220033 2211222032 2221232002 2321133002 3323133202 3033313201 0033313221 0003311321 0003311321",
        "e": "0000000000 1113330000 1113330020 3311333120 3331323120 3231122120 2232122310 2022212312 0022212332 0002211233",
        "f": "0000000000 0000000000 1112220000 1112220030 2211222130 2221232130 2321133133 3323133213 3033313213 0033312223",
        "w": "0000000000 0000000000 0100000100 0100000100 0111010100 0111010110 1111011110 1111011110 1111111111 1111111111",
        "x": "0000000000 0100000000 0100000000 0100000100 0111010100 0111010110 1111011110 1111011110 1111111111 1111111111",
        "y": "0000000000 0000000000 0000000000 0100000100 0111010100 0111010110 1111011110 1111011110 1111111111 1111111111",
    }
)
"""FedDrift's schedules of 10 time steps for 10 clients, a digit per client; Z is Y with concept 2
in place of 1."""

DRIFTS = (
    "none",
    "still",
    "sudden",
    "incremental",
    "recurring",
    *(f"feddrift-{name}" for name in FEDDRIFT),
    "given",
)


def schedule(
    drift: str, clients: int, concepts: int, calm: int, given: Sequence[Sequence[int]] = ()
) -> Schedule:
    """Return who has which concept when.

    - ``still``: ``calm`` time steps of concept 0.
    - ``sudden``: concept 0, then each client has one of the other concepts, in equal parts. Of two
      concepts, half of the clients keep concept 0.
    - ``incremental``: the same, but one concept's clients change after the other, a time step
      apart.
    - ``recurring``: as sudden, back to concept 0 after a time step, and both once more.
    - ``feddrift-a`` to ``feddrift-y``: FedDrift's. Client c has column c mod 10.

    Args:
        drift: One of :data:`DRIFTS`.
        clients: Number of clients.
        concepts: Number of concepts.
        calm: Time steps before the first change, for the schedules that are not a table.
        given: The table, for ``given``.

    Returns:
        The schedule, at least one row.

    Raises:
        SettingError: There are too few concepts or clients, or the table has no row or another
            number of clients.

    Example:
        >>> schedule("recurring", clients=4, concepts=2, calm=1)
        ((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0))
    """
    if drift == "given":
        rows = tuple(tuple(row) for row in given)
    elif drift.startswith("feddrift-"):
        table = FEDDRIFT[drift.removeprefix("feddrift-")].split()
        rows = tuple(tuple(int(row[c % len(row)]) for c in range(clients)) for row in table)
    else:
        rows = _made(drift, clients, concepts, calm)
    if not rows or any(len(row) != clients for row in rows):
        sizes = sorted({len(row) for row in rows}) or "none"
        raise SettingError(
            f"Scenario.schedule needs rows of one concept for each of the {clients} clients, got {sizes}"
        )
    highest = max(map(max, rows))
    if min(map(min, rows)) < 0 or highest >= concepts:
        raise SettingError(
            f"drift {drift} needs the concepts 0 to {highest}, and Scenario.groups allows {concepts}"
        )
    return rows


def _made(drift: str, clients: int, concepts: int, calm: int) -> Schedule:
    before = ((0,) * clients,) * calm
    if drift == "still":
        return before
    if concepts < 2 or clients < 2:
        raise SettingError(
            f"drift {drift} needs at least 2 concepts and 2 clients, got {concepts} and {clients}"
        )
    new = [0, 1] if concepts == 2 else list(range(1, concepts))
    last = len(new) - 1
    after = tuple(new[last - (clients - 1 - c) * len(new) // clients] for c in range(clients))
    if drift == "incremental":
        return (
            *before,
            *(
                tuple(concept if concept <= most else 0 for concept in after)
                for most in new
                if most
            ),
        )
    return (*before, after) if drift == "sudden" else (*before, after, before[0], after, before[0])


# ----------------------------------------------------------------------------------------------------
# Streams: pools of inputs, each with its label under every concept.


CONCEPT = "concept "
"""What the names of a pool's columns begin with that have the labels under one concept."""

_CIRCLES = ((0.2, 0.5, 0.15), (0.6, 0.5, 0.25))
_SEA = (8.0, 9.0, 7.0, 9.5)

Rule = Callable[[np.ndarray], list[np.ndarray]]
"""Function of inputs ``(N, d)`` in [0, 1] that returns their labels ``(N,)`` under each concept."""


def _sine(x: np.ndarray) -> list[np.ndarray]:
    below = x[:, 1] <= np.sin(x[:, 0])
    return [below, ~below]


def _circle(x: np.ndarray) -> list[np.ndarray]:
    return [(x[:, 0] - a) ** 2 + (x[:, 1] - b) ** 2 > r**2 for a, b, r in _CIRCLES]


def _sea(x: np.ndarray) -> list[np.ndarray]:
    return [10 * (x[:, 0] + x[:, 1]) <= threshold for threshold in _SEA]


STREAMS: Mapping[str, tuple[str, int, int, Rule]] = MappingProxyType(
    {
        "sine": (
            "points above and below a sine; two concepts, of opposite labels (FedDrift's SINE)",
            2,
            2,
            _sine,
        ),
        "circle": (
            "points inside and outside a circle; two concepts, two circles (FedDrift's CIRCLE)",
            2,
            2,
            _circle,
        ),
        "sea": (
            "sums of two of three features, above and below a threshold; four concepts (SEA)",
            3,
            4,
            _sea,
        ),
    }
)
"""Name -> a description, the number of features, the number of concepts, and the rule."""


def drawn(
    paths: object, name: str = "sine", examples: int = 2000, mislabelled: float = 0.0, seed: int = 0
) -> Dataset:
    """Draw inputs uniformly from the unit cube, and their labels under every concept.

    Args:
        paths: Not used.
        name: One of :data:`STREAMS`.
        examples: Number of examples.
        mislabelled: Probability that an example has the wrong label, under all concepts.
        seed: Seed of all draws.

    Returns:
        The data set, all of it in the training pool. Its meta ``concept 0``, ``concept 1``, ... are
        the labels under each concept; its targets are those under concept 0.

    Raises:
        SettingError: The data would take more than half of the free memory.
    """
    del paths
    _, features, concepts, rule = STREAMS[name]
    if 8 * examples * (2 * features + 3 * concepts) > available_memory() / 2:
        raise SettingError(
            f"Scenario.examples {examples:,} of {name} take more than half of the free memory; take fewer"
        )
    rng = numpy_generator(seed, Purpose.DATA)
    inputs = rng.random((examples, features))
    wrong = rng.random(examples) < mislabelled
    labels = [(each ^ wrong).astype(np.int64) for each in rule(inputs)]
    made = pool(inputs.astype(np.float32), labels[0], name, 2)
    meta = {f"{CONCEPT}{number}": torch.from_numpy(each) for number, each in enumerate(labels)}
    return Dataset(name=name, train=Pool(made.inputs, made.targets, meta), test=None, classes=2)
