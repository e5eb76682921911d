"""Decisions about a group that several methods make. A note describes them afterwards and steers nothing."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core import Groups


@dataclass(frozen=True)
class SplitGroup:
    """The group is divided.

    Attributes:
        parts: the new groups.
    """

    parts: Groups


@dataclass(frozen=True)
class KeepWhole:
    """The group trains on as it is."""
