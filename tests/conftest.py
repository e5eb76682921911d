"""What all tests share: Hypothesis without a clock, and the folder of real data sets."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("coterie", deadline=None)  # a busy machine is no failure
settings.load_profile("coterie")

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
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as wide as where nobody looks at it; runners of tests may say otherwise."""
    monkeypatch.delenv("COLUMNS", raising=False)
