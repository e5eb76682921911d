"""The worlds of the study: clients who are alike, or who differ in one of many ways.

They are kinds of :mod:`coterie.contrib.bench.kinds`: handwritten digits of 8 x 8, which need no files,
and MNIST with its relatives, which do. Of a world all clients train on about as many examples, which
its size tells: ``large`` (600), ``many`` (80 of digits, 160 of MNIST), ``few`` (40) or ``tiny`` (26).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.contrib.bench.kinds import CLIENTS, in_files
from coterie.contrib.bench.kinds import GROUPS_KINDS as KINDS
from coterie.data.scenario import SCENARIOS, Scenario

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
