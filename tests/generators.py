"""A plugin of pytest: no test draws from a global generator outside a seeded scope, be it torch's, NumPy's or Python's.

Every test starts with the global generators in states that nobody chose, so whatever depends on
them shows as chance. Each phase of a test (its fixtures, the test itself, its end) and the import
of its file must leave them as they were: whoever draws within ``coterie.randomness.seeded`` does,
and so does Hypothesis, which seeds Python's and NumPy's around each example. Other processes and a
GPU's generators are not watched.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import rich.style  # noqa: F401  it numbers its styles from Python's generator, as it is imported
import torch

_OUTSIDE = pytest.StashKey[dict[str, Any]]()
_NOTES = pytest.StashKey[list[str]]()


def states() -> dict[str, Any]:
    """The state of each global generator, by its name; equal states will draw equal numbers."""
    legacy: Any = np.random.get_state()  # noqa: NPY002
    kind, words, *rest = legacy
    return {
        "torch's": torch.get_rng_state().numpy().tobytes(),
        "NumPy's": (kind, words.tobytes(), *rest),
        "Python's": random.getstate(),
    }


def _scatter() -> None:
    """Put every global generator in a state that no earlier test, and nobody else, knows."""
    seed = int.from_bytes(os.urandom(4), "little")
    torch.random.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def _put_back(found: dict[str, Any]) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(found["torch's"]), dtype=torch.uint8))
    kind, words, *rest = found["NumPy's"]
    np.random.set_state((kind, np.frombuffer(words, np.uint32), *rest))  # noqa: NPY002
    random.setstate(found["Python's"])


def drawn(before: dict[str, Any]) -> str | None:
    """What to say of the global generators that are in another state than before; None if there is none."""
    which = [name for name, state in states().items() if state != before[name]]
    if not which:
        return None
    return (
        f"{' and '.join(which)} global generator was used outside a seeded scope; "
        "pass a generator of coterie.randomness, or draw within coterie.randomness.seeded"
    )


@contextmanager
def _noted(item: pytest.Item, where: str) -> Iterator[None]:
    """Keep what there is to say of a phase for the test's end: a test that is skipped or expected to fail could hide it."""
    before = states()
    try:
        yield
    finally:
        if complaint := drawn(before):
            item.stash[_NOTES].append(f"{where}: {complaint}")


def _watched(inner: Callable[..., Any]) -> Callable[..., None]:
    """A property that is watched in each example: Hypothesis puts the states back before anybody else could see them."""

    @functools.wraps(inner)
    def once(*args: Any, **kwargs: Any) -> None:
        before = states()
        inner(*args, **kwargs)
        if complaint := drawn(before):
            pytest.fail(f"an example of Hypothesis: {complaint}", pytrace=False)

    once.watched = True  # type: ignore[attr-defined]
    return once


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[_OUTSIDE], item.stash[_NOTES] = states(), []
    _scatter()
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is not None and not hasattr(handle.inner_test, "watched"):
        handle.inner_test = _watched(handle.inner_test)
    with _noted(item, "the fixtures"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with _noted(item, "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        with _noted(item, "the end of the fixtures"):
            return (yield)
    finally:
        _put_back(item.stash[_OUTSIDE])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" and item.stash[_NOTES] and report.passed:
        report.outcome, report.longrepr = "failed", "\n".join(item.stash[_NOTES])
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    before = states()
    report = yield
    complaint = drawn(before)
    _put_back(before)
    if complaint and report.passed:
        report.outcome, report.longrepr = "failed", f"the import of this file: {complaint}"
    return report
