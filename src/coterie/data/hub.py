"""Data sets of the Hugging Face hub, through flwr-datasets (``pip install 'coterie[hub]'``)."""

from __future__ import annotations

from pathlib import Path

from coterie.data.pool import Dataset
from coterie.settings import UserError


def read(paths: tuple[Path, ...], name: str, inputs: str | None = None, labels: str | None = None) -> Dataset:
    raise UserError(f"{name}: not yet")
