"""What tests of masks over Flower need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def flower_run() -> Iterator[None]:
    """This process is set up as that of a ServerApp, and waits by a clock that costs no time."""
    with pytest.importorskip("flowered", reason="Flower is not installed").a_run():
        yield
