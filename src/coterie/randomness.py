"""The source of all random numbers: a function of integers such as (seed, purpose, exchange, client).

A draw depends only on its key. So it does not matter which process makes it, in which order, after
which resume, or which other clients were silent. Nothing else in Coterie seeds or advances a global
generator.

Code of the user's own, such as a data set, a model, a loss or an augmentation, takes no generator
from Coterie. It runs in a scope in which the global generators of torch, NumPy and Python are
seeded: :class:`seeded`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum, unique
from functools import lru_cache
from typing import Any

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
    OWN_CODE = 16
    VALIDATION = 17
    TESTED = 18


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


@lru_cache(maxsize=256)
def _word(key: tuple[int, ...]) -> int:
    """The seed of 63 bits that a key gives."""
    return int(_sequence(key).generate_state(1, np.uint64)[0]) >> 1


def generator(*key: int) -> torch.Generator:
    """Make a torch generator on the CPU that depends only on the non-negative integers of ``key``."""
    return torch.Generator().manual_seed(_word(key))


class Scope:
    """The global generators in a :func:`seeded` scope."""

    def __init__(self, word: int, gpu: bool, own_code: bool) -> None:
        self.word = word
        self.gpu = gpu
        self.own_code = own_code

    @property
    def moved(self) -> bool:
        """Whether a global generator has been drawn from since it was seeded."""
        # PyTorch's generators are compared with fresh ones of the same seed.
        unmoved = torch.Generator().manual_seed(self.word).get_state()
        if not torch.equal(torch.get_rng_state(), unmoved):
            return True
        if self.gpu:
            unmoved = torch.Generator("cuda").manual_seed(self.word).get_state()
            if not torch.equal(torch.cuda.get_rng_state(), unmoved):
                return True
        if not self.own_code:
            return False
        # Both modules use a Mersenne twister, and keep the second of two Gaussian numbers.
        _, python_words, python_gauss = random.getstate()
        if python_gauss is not None or not _just_seeded(python_words[-1], python_words[0]):
            return True
        numpy_state = _numpy_state()
        numpy_words = numpy_state["state"]
        return bool(numpy_state["has_gauss"]) or not _just_seeded(
            numpy_words["pos"], numpy_words["key"][0]
        )


_TWISTER_WORDS = 624


def _just_seeded(position: int, word: int) -> bool:
    """Whether a Mersenne twister has not drawn since it was seeded, from its position and the first word of its state."""
    # Every seed leaves these two; the first draw changes both.
    return position == _TWISTER_WORDS and word == 0x80000000


@contextmanager
def seeded(*key: int, own_code: bool = True) -> Iterator[Scope]:
    """Fork the global generators and seed them, for code that takes no generator: dropout, initialisers, a user's own code.

    These are torch's generator on the CPU and, if CUDA is in use, that of the current GPU; and
    those of the modules ``random`` and ``numpy.random``. The global state of the caller is
    unchanged afterwards. A generator that the user's code made itself is not reached, see
    :mod:`coterie.training.own_code`.

    Args:
        *key: Non-negative integers.
        own_code: Whether code of the user's own may run. If not, torch's generators are enough, in
            a fifteenth of the time.

    Yields:
        The scope, which knows whether something has been drawn.

    Example:
        >>> with seeded(0):
        ...     first = random.random()
        >>> with seeded(0):
        ...     random.random() == first
        True
    """
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    word = _word(key)
    with torch.random.fork_rng(devices=gpus), _own_code_seeded(word) if own_code else nullcontext():
        torch.random.default_generator.manual_seed(word)
        if gpus:
            torch.cuda.manual_seed(word)
        yield Scope(word, bool(gpus), own_code)


@contextmanager
def _own_code_seeded(word: int) -> Iterator[None]:
    """Fork and seed the global generators of ``random`` and ``numpy.random``."""
    python_state = random.getstate()
    with _numpy_seeded(word):
        try:
            random.seed(word)
            yield
        finally:
            random.setstate(python_state)


@contextmanager
def _numpy_seeded(word: int) -> Iterator[None]:
    """Fork and seed the global generator of ``numpy.random``."""
    saved_state = _numpy_state()
    # A user may have set another generator; only a Mersenne twister can be seeded in place.
    replaced = None
    if saved_state["bit_generator"] != "MT19937":
        replaced = np.random.get_bit_generator()  # type: ignore[attr-defined]
        np.random.set_bit_generator(np.random.MT19937())  # type: ignore[attr-defined]
    try:
        np.random.seed(_halves(word))  # noqa: NPY002  (the global generator is what is seeded)
        yield
    finally:
        if replaced is not None:
            np.random.set_bit_generator(replaced)  # type: ignore[attr-defined]
        np.random.set_state(saved_state)  # noqa: NPY002


def _halves(word: int) -> list[int]:
    """A seed of 64 bits as the two of 32 bits that NumPy's global generator takes."""
    return [word & 0xFFFFFFFF, word >> 32]


def _numpy_state() -> dict[str, Any]:
    state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    return state


class GlobalStates:
    """The states that the global generators have when this object is made, for code that must not draw.

    This is faster than a :func:`seeded` scope in which code runs that usually draws nothing.
    """

    def __init__(self) -> None:
        self.torch_states = _torch_states()
        self.python_state = random.getstate()
        self.numpy_state = _numpy_state()

    @property
    def moved(self) -> bool:
        """Whether a global generator has another state now."""
        return (
            not all(map(torch.equal, self.torch_states, _torch_states()))
            or random.getstate() != self.python_state
            or not _is_same_state(_numpy_state(), self.numpy_state)
        )

    def restore(self) -> None:
        """Set the generators back to these states."""
        cpu_state, *gpu_states = self.torch_states
        torch.set_rng_state(cpu_state)
        for gpu_state in gpu_states:
            torch.cuda.set_rng_state(gpu_state)
        random.setstate(self.python_state)
        np.random.set_state(self.numpy_state)  # noqa: NPY002


def _torch_states() -> list[torch.Tensor]:
    """The states of torch's generators: on the CPU and, if CUDA is in use, on the current GPU."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def _is_same_state(left: Any, right: Any) -> bool:
    """Whether two states of NumPy's generators, or the same part of two, are equal."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            _is_same_state(value, right[name]) for name, value in left.items()
        )
    return bool(np.all(left == right))


# ----------------------------------------------------------------------------------------------------
# Generators that code of the user's own made itself, which no scope reaches.


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator of torch, NumPy or Python, and none of the global ones."""
    kinds = np.random.Generator | np.random.RandomState | random.Random | torch.Generator
    global_generators = (random._inst, np.random.mtrand._rand, torch.random.default_generator)
    return isinstance(value, kinds) and not any(value is shared for shared in global_generators)


def state_of(generator: Any) -> str:
    """The state of a generator as text, which changes with every draw."""
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().tolist())
    if isinstance(generator, random.Random):
        return str(generator.getstate())
    is_legacy = isinstance(generator, np.random.RandomState)
    state = generator.get_state(legacy=False) if is_legacy else generator.bit_generator.state
    with np.printoptions(threshold=10_000):
        # So that no word of the state is left out.
        return str(state)
