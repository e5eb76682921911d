"""The worlds of the study: handwritten digits, dealt to clients who are alike, or who differ in one of many ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.scenario import SCENARIOS, Scenario

CLIENTS = 20

KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "iid": ("digits/iid", {}),
    "quantity": ("digits/quantity", {"alpha": 2.0, "least": 20}),
    "permutations-2": ("digits/label-permutation", {"groups": 2}),
    "permutations-4": ("digits/label-permutation", {}),
    "permutations-8": ("digits/label-permutation", {"groups": 8}),
    "swaps-4": ("digits/label-swap", {}),
    "rotations-4": ("digits/rotation", {}),
    "classes-5": ("digits/class-groups", {"groups": 5}),
    "unequal-4": ("digits/label-permutation", {"partition": "quantity", "alpha": 2.0, "least": 30}),
    "adversaries": ("digits/label-permutation", {"adversaries": 0.1, "attack": "sign-flip"}),
    "dirichlet": ("digits/dirichlet", {}),
}
"""Name -> scenario and what is changed of it. Of ``iid`` and ``quantity`` all clients are one group; ``dirichlet`` has none."""

SIZES = {"many": None, "few": 45}
"""Examples of a client, of which nine in ten are trained on: all there are (80), or 40."""


def scenario(kind: str, size: str, participation: float = 1.0) -> Scenario:
    """A world's scenario; clients answer with probability ``participation``."""
    name, changes = KINDS[kind]
    how: dict[str, Any] = {"clients": CLIENTS, "train": 0.9, "validation": 0.0, "silent": 1 - participation, **changes}
    if how.get("partition", SCENARIOS[name].partition) in ("iid",):
        how["samples"] = SIZES[size]
    return replace(SCENARIOS[name], **how)
