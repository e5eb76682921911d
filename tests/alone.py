"""Ray's simulations in tests: one at a time, and with their share of a busy machine.

Ray starts its processes nicer than all others (niceness 15), so that beside busy ones they hardly
run at all.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone() -> Iterator[None]:
    # One per user: nobody may write to another's.
    with open(Path(tempfile.gettempdir()) / f"coterie-tests-ray-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.environ.update(RAY_worker_niceness="0")  # a process of its own reads it
        yield
