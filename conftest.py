"""What all tests share, the examples in ``src`` too; how they draw is in ``tests/generators.py``."""

import os
from pathlib import Path

import pytest
import torch

pytest_plugins = ["generators", "shuffled", "pytester"]
collect_ignore_glob = [
    "tests/*/conftest.py"
]  # they hold no examples, and as modules they would all have one name

# Tests run side by side, and their tensors are small: threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets; tests that need it are skipped where there is none."""
    folder = os.environ.get("COTERIE_DATA")
    if not folder:
        pytest.skip("COTERIE_DATA is not set: it names the folder of real data sets")
    return Path(folder)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as where nobody looks at it, whatever the environment says of a terminal."""
    for name in (
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")  # of "dumb" ones Rich writes nothing anew
