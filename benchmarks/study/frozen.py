"""The settings that were frozen before the study was run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def frozen(settings: Mapping[str, Any], kind: str, method: str) -> dict[str, Any]:
    """Of a method in a world: those of every world, but for what a paper prints for this one.

    settings: what ``settings.toml`` holds.
    """
    own = settings.get("frozen-by-world", {}).get(kind, {}).get(method, {})
    return {**settings["frozen"][method], **own}
