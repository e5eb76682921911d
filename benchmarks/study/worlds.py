"""The worlds of the study: clients who are alike, or who differ in one of many ways.

Handwritten digits of 8 x 8, which need no files, and MNIST with its relatives, which do. Of a world
all clients train on about as many examples, which its size tells: ``large`` (600), ``many`` (80 of
digits, 160 of MNIST), ``few`` (40) or ``tiny`` (26).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.core import Training
from coterie.data.datasets import DATASETS
from coterie.data.scenario import SCENARIOS, Scenario

CLIENTS = 20

# 160 examples to train and 18 to test. A run of 40 rounds with the net of CFL takes fourteen
# seconds of one core, so where clients are three times as many, or have four times as much, they
# train the small dense net.
_OWN: Mapping[str, Any] = {"samples": 178, "test": "share"}
_CNN: Mapping[str, Any] = {
    **_OWN,
    "model": "cfl-cnn",
    "training": Training(lr=0.1, batch=20, epochs=1),
}
_MLP: Mapping[str, Any] = {**_OWN, "model": "mlp", "training": Training(lr=0.1, batch=20, epochs=2)}

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
    "iid-60": ("digits/iid", {"clients": 60}),
    "permutations-4-60": ("digits/label-permutation", {"clients": 60}),
    "classes-5-60": ("digits/class-groups", {"groups": 5, "clients": 60}),
    "mnist-iid": ("mnist/iid", _CNN),
    "mnist-permutations-4": ("mnist/label-permutation", _CNN),
    "mnist-swaps-4": ("mnist/label-swap", _CNN),
    "mnist-rotations-2": ("mnist/rotation", {**_CNN, "groups": 2}),
    "mnist-unequal-swaps-4": (
        "mnist/label-swap",
        {**_CNN, "partition": "quantity", "samples": None, "sizes": (59, 356)},
    ),
    "domains-4": ("digit_domains/domains", _CNN),
    "mnist-permutations-4-60": ("mnist/label-permutation", {**_MLP, "clients": 60}),
    "mnist-swaps-4-60": ("mnist/label-swap", {**_MLP, "clients": 60}),
    "populations-2": ("mnist/populations", _MLP),
    "populations-2-large": ("mnist/populations", {**_MLP, "samples": 667}),
}
"""Name -> scenario and what is changed of it. A number in a name is that of its groups, 60 that of
its clients. Of ``iid`` and ``quantity`` all clients are one group; ``dirichlet`` has none. Sizes of
``mnist-unequal-swaps-4`` are a third to double the others'."""

SIZES = ("large", "many", "few", "tiny")

_FEW = 45
"""Examples of a client of ``few``, of which nine in ten are trained on."""


def sizes(kind: str) -> tuple[str, ...]:
    """The sizes that a world comes in."""
    if kind.endswith("-large"):
        return ("large",)
    if needs_files(kind):
        return ("many",)
    how = _settings(kind)
    if how["clients"] > CLIENTS:  # who share the 1,797 digits
        return ("tiny",)
    return ("many", "few") if how["partition"] == "iid" else ("many",)


def needs_files(kind: str) -> bool:
    """Whether its data are read from a folder."""
    return in_files(SCENARIOS[KINDS[kind][0]])


def in_files(scenario: Scenario) -> bool:
    """Whether its data are read from a folder."""
    return DATASETS[scenario.dataset.name].files is not None


def scenario(kind: str, size: str, participation: float = 1.0) -> Scenario:
    """A world's scenario; clients answer with probability ``participation``, and are never taken to have gone."""
    how = {**_settings(kind), "silent": 1 - participation, "patience": 10_000}
    return replace(SCENARIOS[KINDS[kind][0]], **how | ({"samples": _FEW} if size == "few" else {}))


def _settings(kind: str) -> dict[str, Any]:
    """What is changed of its scenario, and how its clients are dealt examples."""
    name, changes = KINDS[kind]
    usual = {
        "clients": CLIENTS,
        "train": 0.9,
        "validation": 0.0,
        "partition": SCENARIOS[name].partition.kind,
    }
    return {**usual, **changes}
