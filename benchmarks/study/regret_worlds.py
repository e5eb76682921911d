"""The worlds of the study of regret: those of :mod:`study.worlds`, and more in which one model or personal models are right.

In all of them a client holds out 15 % of its examples as validation data, whatever the method does
with them. ``many`` is 80 examples of digits and of writers, and 160 of the other data in files;
``few`` is 40, ``tiny`` 26 and ``large`` 600. Of 80 examples 68 are trained on. Tests are of other
examples, see :mod:`study.held_out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core import Training
from coterie.data.scenario import SCENARIOS, Scenario
from study import worlds
from study.held_out import HeldOut
from study.worlds import CLIENTS, in_files

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

MORE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
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
"""Name -> scenario and what is changed of it. A number at the end is that of the groups, or of
Dirichlet's concentration, where clients are of one size; of ``dirichlet`` of the other study they
are not. Of shards each client has two, of one class each."""

KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {**worlds.KINDS, **MORE}
"""All worlds, in the same form."""

SIZES = worlds.SIZES

VALIDATION = 0.15
"""The share of a client's examples that it holds out."""


def needs_files(kind: str) -> bool:
    """Whether its data are read from a folder."""
    return in_files(SCENARIOS[KINDS[kind][0]])


def sizes(kind: str) -> tuple[str, ...]:
    """The sizes that a world comes in."""
    if kind.endswith("-large"):
        return ("large",)
    return ("tiny",) if clients(kind) > CLIENTS and not needs_files(kind) else ("many", "few")


def clients(kind: str) -> int:
    """How many clients a world has."""
    return int(KINDS[kind][1].get("clients", CLIENTS))


def examples(kind: str, size: str) -> int:
    """Examples of a client, those for validation included, on average."""
    small = not needs_files(kind) or kind == "writers"
    return {"large": 600, "many": 80 if small else 160, "few": 40, "tiny": 26}[size]


def scenario(kind: str, size: str, participation: float = 1.0) -> HeldOut:
    """A world's scenario; clients answer with probability ``participation``, and are never taken to have gone."""
    name, changes = KINDS[kind]
    each, base = examples(kind, size), SCENARIOS[name]
    how = {
        **_settings_of(base),
        "clients": CLIENTS,
        **changes,
        "silent": 1 - participation,
        "patience": 10_000,
    }
    how |= {"train": 1 - VALIDATION, "validation": VALIDATION, "samples": each, "test": "whole"}
    if not needs_files(kind):
        how["dealt"] = each * how["clients"]
    if changes.get("test") == "share" and kind in MORE:  # what is left of a client's own
        share = each / how["least"]
        how |= {
            "samples": how["least"],
            "train": (1 - VALIDATION) * share,
            "validation": VALIDATION * share,
            "test": "share",
        }
    elif how["partition"] == "quantity" or kind == "dirichlet":
        how |= _unequal(how, each)
    elif how["partition"] == "dirichlet":
        how["least"] = each
    return HeldOut(**how)


def _settings_of(base: Scenario) -> dict[str, Any]:
    return {
        "alike": False,
        "bags": False,
        **base.flat(),
    }


def _unequal(how: Mapping[str, Any], each: int) -> dict[str, Any]:
    """Sizes around a mean: no more than half of it lacks, or from a third to double where they are of a range."""
    if how["sizes"]:
        return {"samples": None, "sizes": (each // 3, 2 * each)}
    return {"samples": None, "least": min(how["least"], each // 3)}
