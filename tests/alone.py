"""One at a time: two of Ray's simulations on one machine disturb each other, so tests in other processes wait."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone() -> Iterator[None]:
    with open(Path(tempfile.gettempdir()) / "coterie-tests-ray.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
