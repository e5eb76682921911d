"""Small data sets on disk, and a machine without any."""

from pathlib import Path

import pytest
from upstream import write_mnist, write_writers


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder with MNIST and QMNIST in torchvision's layout."""
    write_mnist(tmp_path / "MNIST" / "raw")
    write_writers(tmp_path / "MNIST" / "raw")
    return tmp_path


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where COTERIE_DATA is not set."""
    monkeypatch.delenv("COTERIE_DATA", raising=False)
