"""The source of all random numbers: a function of integers such as (seed, purpose, exchange, client).

A draw depends only on its key. So it does not matter which process makes it, in which order, after which resume, or which
other clients were silent. Nothing else in Coterie seeds or advances a global generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, unique

import numpy as np
import torch


@unique
class Purpose(IntEnum):
    """Keeps draws for different purposes separate, even with equal seeds and clients."""

    DATA = 1
    PARTITION = 2
    SHIFT = 3
    INIT = 4
    SAMPLE = 5
    TRAIN = 6
    SILENCE = 7
    ATTENDANCE = 8
    SKETCH = 9
    BOUNDARY = 10
    NOISE = 11
    CHOICE = 12
    ADVERSARY = 13
    ATTACK = 14
    HOLDOUT = 15


def numpy_generator(*key: int) -> np.random.Generator:
    """Make a NumPy generator that depends only on the key.

    Args:
        *key: Non-negative integers.

    Returns:
        The generator.

    Example:
        >>> float(numpy_generator(0, 1).random()) == float(numpy_generator(0, 1).random())
        True
    """
    return np.random.default_rng(_sequence(key))


def _sequence(key: tuple[int, ...]) -> np.random.SeedSequence:
    # The length comes first, because NumPy treats (7, 1) and (7, 1, 0) as the same seed.
    return np.random.SeedSequence((len(key), *key))


def _word(key: tuple[int, ...]) -> int:
    return int(_sequence(key).generate_state(1, np.uint64)[0]) >> 1


def generator(*key: int) -> torch.Generator:
    """Make a torch generator on the CPU that depends only on the non-negative integers of ``key``."""
    return torch.Generator().manual_seed(_word(key))


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Fork torch's global generators and seed them, for code that takes no generator: dropout, default initialisers.

    These are the CPU's generator and, if CUDA is in use, that of the current GPU. The global state of the caller is
    unchanged afterwards.

    Args:
        *key: Non-negative integers.

    Yields:
        Nothing; the generators are seeded within the context.
    """
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        torch.random.default_generator.manual_seed(_word(key))
        if gpus:
            torch.cuda.manual_seed(_word(key))
        yield
