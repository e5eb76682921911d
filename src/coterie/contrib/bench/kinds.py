"""Kinds of worlds of pictures and texts: clients who are identically distributed, or who differ in one of many ways.

Digits of scikit-learn (8 x 8) need no files; MNIST with its relatives, CIFAR-100 and AG News do. In
all of them a client holds out 15 % of its examples as validation data, whatever the method does with
them, and is tested on other examples, see :mod:`coterie.contrib.bench.held_out`. The size of a world
says how many examples a client has: ``many`` is 80 of digits and of writers, and 160 of the other
data in files; ``few`` is 40, ``tiny`` 26 and ``large`` 600. Of 80 examples 68 are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.contrib.bench.held_out import HeldOut
from coterie.core import Training
from coterie.data.datasets import DATASETS
from coterie.data.scenario import SCENARIOS, Scenario

CLIENTS = 20

# 160 examples to train and 18 to test. A run of 40 rounds with the net of CFL takes fourteen
# seconds of one core, so where clients are three times as many, or have four times as much, they
# train the small dense net.
_SHARES: Mapping[str, Any] = {"samples": 178, "test": "share"}
_CNN_OF_SHARES: Mapping[str, Any] = {
    **_SHARES,
    "model": "cfl-cnn",
    "training": Training(lr=0.1, batch=20, epochs=1),
}
_MLP_OF_SHARES: Mapping[str, Any] = {
    **_SHARES,
    "model": "mlp",
    "training": Training(lr=0.1, batch=20, epochs=2),
}

GROUPS_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
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
    "mnist-iid": ("mnist/iid", _CNN_OF_SHARES),
    "mnist-permutations-4": ("mnist/label-permutation", _CNN_OF_SHARES),
    "mnist-swaps-4": ("mnist/label-swap", _CNN_OF_SHARES),
    "mnist-rotations-2": ("mnist/rotation", {**_CNN_OF_SHARES, "groups": 2}),
    "mnist-unequal-swaps-4": (
        "mnist/label-swap",
        {**_CNN_OF_SHARES, "partition": "quantity", "samples": None, "sizes": (59, 356)},
    ),
    "domains-4": ("digit_domains/domains", _CNN_OF_SHARES),
    "mnist-permutations-4-60": ("mnist/label-permutation", {**_MLP_OF_SHARES, "clients": 60}),
    "mnist-swaps-4-60": ("mnist/label-swap", {**_MLP_OF_SHARES, "clients": 60}),
    "populations-2": ("mnist/populations", _MLP_OF_SHARES),
    "populations-2-large": ("mnist/populations", {**_MLP_OF_SHARES, "samples": 667}),
}
"""Kinds in which groups are right, or one model. Name -> scenario and what is changed of it. A number
in a name is that of its groups, 60 that of its clients. Of ``iid`` and ``quantity`` all clients are
one group; ``dirichlet`` has none. Sizes of ``mnist-unequal-swaps-4`` are a third to double the
others'."""

_ALIKE: Mapping[str, Any] = {"alike": True}
_CNN: Mapping[str, Any] = {"model": "cfl-cnn", "training": Training(lr=0.1, batch=20, epochs=1)}
_MLP: Mapping[str, Any] = {"model": "mlp", "training": Training(lr=0.1, batch=20, epochs=2)}
_PICTURES: Mapping[str, Any] = {
    "model": "mlp",
    "training": Training(lr=0.03, batch=20, epochs=3),
}  # 0.1 learns nothing
_NEWS: Mapping[str, Any] = {
    "bags": True,
    "vocabulary": 1000,
    "model": "mlp",
    "training": Training(lr=0.3, batch=20, epochs=1),
}

MIXTURE_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "dirichlet-0.1": ("digits/dirichlet", {**_ALIKE, "alpha": 0.1}),
    "dirichlet-0.5": ("digits/dirichlet", {**_ALIKE, "alpha": 0.5}),
    "dirichlet-5": ("digits/dirichlet", {**_ALIKE, "alpha": 5.0}),
    "shards": ("digits/dirichlet", {"partition": "shards"}),
    "mnist-dirichlet-0.1": ("mnist/dirichlet", {**_CNN, **_ALIKE, "alpha": 0.1}),
    "mnist-shards": ("mnist/pathological", _CNN),
    "writers": ("mnist/writers", {**_CNN, "test": "share", "least": 110}),
    "news-dirichlet-0.5": (
        "ag_news/topics",
        {**_NEWS, **_ALIKE, "partition": "dirichlet", "alpha": 0.5},
    ),
    "news-classes-2": ("ag_news/topics", {**_NEWS, "partition": "classes", "groups": 2}),
    "cifar100-classes-4": ("cifar100/class-groups", {**_PICTURES, "sizes": ()}),
}
"""More kinds, in which one model or personal models are right, in the same form. A number at the end is
that of the groups, or of Dirichlet's concentration, where clients are of one size, unlike those of
``dirichlet``. Of shards each client has two, of one class each."""

WORLD_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {**GROUPS_KINDS, **MIXTURE_KINDS}
"""All kinds."""

SIZES = ("large", "many", "few", "tiny")

HELD_OUT_SHARE = 0.15
"""The share of a client's examples that it holds out."""


def in_files(scenario: Scenario) -> bool:
    """Whether the data of a scenario are read from a folder."""
    return DATASETS[scenario.dataset.name].files is not None


def needs_files(kind: str) -> bool:
    """Whether its data are read from a folder."""
    return in_files(SCENARIOS[WORLD_KINDS[kind][0]])


def sizes(kind: str) -> tuple[str, ...]:
    """The sizes that a world comes in."""
    if kind.endswith("-large"):
        return ("large",)
    return ("tiny",) if clients(kind) > CLIENTS and not needs_files(kind) else ("many", "few")


def clients(kind: str) -> int:
    """How many clients a world has."""
    return int(WORLD_KINDS[kind][1].get("clients", CLIENTS))


def examples(kind: str, size: str) -> int:
    """Examples of a client, those for validation included, on average."""
    small = not needs_files(kind) or kind == "writers"
    return {"large": 600, "many": 80 if small else 160, "few": 40, "tiny": 26}[size]


def scenario(kind: str, size: str, participation: float = 1.0) -> HeldOut:
    """A world's scenario.

    Args:
        kind: One of :data:`WORLD_KINDS`.
        size: One of its :func:`sizes`.
        participation: The probability that a client answers. None is taken to have gone.
    """
    scenario_name, changes = WORLD_KINDS[kind]
    examples_of_client = examples(kind, size)
    settings = {
        **_settings_of(SCENARIOS[scenario_name]),
        "clients": CLIENTS,
        **changes,
        "silent": 1 - participation,
        "patience": 10_000,
    }
    settings |= {
        "train": 1 - HELD_OUT_SHARE,
        "validation": HELD_OUT_SHARE,
        "samples": examples_of_client,
        "test": "whole",
    }
    if not needs_files(kind):
        settings["dealt"] = examples_of_client * settings["clients"]
    if changes.get("test") == "share" and kind in MIXTURE_KINDS:
        # The test is what is left of a client's own examples.
        share = examples_of_client / settings["least"]
        settings |= {
            "samples": settings["least"],
            "train": (1 - HELD_OUT_SHARE) * share,
            "validation": HELD_OUT_SHARE * share,
            "test": "share",
        }
    elif settings["partition"] == "quantity" or kind == "dirichlet":
        settings |= _unequal(settings, examples_of_client)
    elif settings["partition"] == "dirichlet":
        settings["least"] = examples_of_client
    return HeldOut(**settings)


def _settings_of(base: Scenario) -> dict[str, Any]:
    """The settings of a scenario, with those that :class:`HeldOut` has besides."""
    return {"alike": False, "bags": False, **base.flat()}


def _unequal(settings: Mapping[str, Any], mean_examples: int) -> dict[str, Any]:
    """Sizes around a mean: from a third to double where the scenario has a range, otherwise at least a third."""
    if settings["sizes"]:
        return {"samples": None, "sizes": (mean_examples // 3, 2 * mean_examples)}
    return {"samples": None, "least": min(settings["least"], mean_examples // 3)}
