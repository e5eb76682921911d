"""Every method in a few rounds of four clients; and what tests of Flower need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from method_examples import EVERY_METHOD, IN_FEW_ROUNDS, of_each_kind


@pytest.fixture(params=of_each_kind(EVERY_METHOD), name="method")
def _method(request: pytest.FixtureRequest) -> Any:
    """Every method; the quick tests have one of each kind."""
    return IN_FEW_ROUNDS[request.param]  # a KeyError here: a new method needs an example


@pytest.fixture
def flower_run() -> Iterator[None]:
    """This process is set up as that of a ServerApp, and waits by a clock that costs no time."""
    with pytest.importorskip("flowered", reason="Flower is not installed").a_run():
        yield


@pytest.fixture
def clock() -> Iterator[Any]:
    """As ``flower_run``, for nodes that take their time by this clock."""
    with pytest.importorskip("timed", reason="Flower is not installed").timed() as made:
        yield made
