"""The suites: worlds with their seeds and rounds, frozen under a version.

A change of anything here that changes a world, or of code that changes its data, needs a new
:data:`VERSION`: rows of different versions are not compared. Each row has a digest of its world's
data, so that this is checked and not only promised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from coterie.contrib.bench import silos
from coterie.contrib.bench.kinds import WORLD_KINDS, needs_files, scenario, sizes
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.settings import UserError, known_list, nearest

VERSION = 1
"""Of the worlds, their seeds, rounds and scores."""

SEEDS = (0, 1, 2)
SEEDS_OF_FILES = (0,)
"""Data in files have one seed: a run takes minutes."""

ROUNDS = 40
ROUNDS_OF_SILOS = 25
LOW_PARTICIPATION = 0.3
"""The probability that a client answers in worlds of dropouts."""

FROZEN_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The number of models must be given, and most worlds with groups have four.
        "ifca": {"models": 4},
        "flsc": {"models": 4},
        "cfl-gp": {"models": 4},
        "clove": {"models": 4},
        # FL+HC's first experiments cluster after ten rounds.
        "flhc": {"warmup": 10},
    }
)
"""Method -> the settings of its recorded rows, the same in all worlds; of other methods the defaults."""


@dataclass(frozen=True)
class BenchWorld:
    """A world of a suite.

    Attributes:
        name: Its name, the same in all suites.
        family: ``digits``, ``dropouts``, ``files``, ``silos`` or ``drift``.
        build: Function of a seed and a folder of data files that makes the clients.
        seeds: The seeds with which a method is run.
        rounds: Communication rounds.
        period: Rounds of a time step, if data change: scores are then means over the tests after
            the first step. None: the score is that after the last round.
    """

    name: str
    family: str
    build: Callable[[int, str | None], World]
    seeds: tuple[int, ...] = SEEDS
    rounds: int = ROUNDS
    period: int | None = None

    @property
    def tested_every(self) -> int:
        """Rounds between tests."""
        return self.rounds if self.period is None else max(1, self.period // 4)


def _of_kind(kind: str, size: str, participation: float = 1.0) -> BenchWorld:
    """A world of digits or of data in files."""
    family = "files" if needs_files(kind) else "digits"
    if participation < 1:
        family = "dropouts"
    return BenchWorld(
        name=f"{family}/{kind}/{size}",
        family=family,
        build=scenario(kind, size, participation).build,
        seeds=SEEDS_OF_FILES if needs_files(kind) else SEEDS,
    )


FIRST_DRAW = 1000
"""The number of the first draw of sites: settings of methods were chosen on the draws before."""


def _of_silos(kind: str) -> BenchWorld:
    """A world of few unequal sites; each seed draws other sites."""

    def build(kind: str, seed: int, folder: str | None) -> World:
        return silos.draw(kind, seed).world

    return BenchWorld(
        name=f"silos/{kind}",
        family="silos",
        build=partial(build, kind),
        seeds=tuple(FIRST_DRAW + seed for seed in SEEDS),
        rounds=ROUNDS_OF_SILOS,
    )


def _of_drift(name: str, rounds: int) -> BenchWorld:
    """A world whose data change: a scenario by its name, with ten clients."""
    drifting = replace(SCENARIOS[f"{name}/drift"], clients=10)
    return BenchWorld(
        name=f"drift/{name}",
        family="drift",
        build=drifting.build,
        rounds=rounds,
        period=drifting.drift.period,
    )


QUICK_DIGITS = (
    ("iid", "many"),
    ("quantity", "many"),
    ("permutations-4", "many"),
    ("swaps-4", "many"),
    ("rotations-4", "many"),
    ("classes-5", "few"),
    ("dirichlet-0.1", "many"),
    ("dirichlet-0.5", "few"),
)
QUICK_DROPOUTS = (("permutations-4", "many"), ("dirichlet-0.5", "many"))
QUICK_SILOS = ("alike", "invert", "degrees")
LABELLED_SILOS = tuple(kind for kind in silos.SILO_KINDS if kind != silos.REGRESSION_KIND)

QUICK = (
    *(_of_kind(kind, size) for kind, size in QUICK_DIGITS),
    *(_of_kind(kind, size, LOW_PARTICIPATION) for kind, size in QUICK_DROPOUTS),
    *map(_of_silos, QUICK_SILOS),
    _of_drift("digits", 60),
    _of_drift("sine", 100),
)
"""Worlds without files, a few of each family."""

_DIGITS = [(kind, size) for kind in WORLD_KINDS if not needs_files(kind) for size in sizes(kind)]
_FILES = [(kind, size) for kind in WORLD_KINDS if needs_files(kind) for size in sizes(kind)]

_ALL_WITHOUT_FILES = (
    *QUICK,
    *(_of_kind(kind, size) for kind, size in _DIGITS),
    *(_of_kind(kind, size, LOW_PARTICIPATION) for kind, size in _DIGITS),
    *map(_of_silos, LABELLED_SILOS),
)
STANDARD = tuple({world.name: world for world in _ALL_WITHOUT_FILES}.values())
"""All worlds without files."""

FULL = (*STANDARD, *(_of_kind(kind, size) for kind, size in _FILES))
"""All worlds, with those of data in files."""

SUITES: Mapping[str, tuple[BenchWorld, ...]] = MappingProxyType(
    {"quick": QUICK, "standard": STANDARD, "full": FULL}
)

WORLDS: Mapping[str, BenchWorld] = MappingProxyType({world.name: world for world in FULL})
"""Name -> world, of all suites."""


def suite_of(name: str) -> tuple[BenchWorld, ...]:
    """The worlds of a suite.

    Raises:
        UserError: There is no such suite.
    """
    if name not in SUITES:
        raise UserError(f"there is no suite {name!r}{nearest(name, SUITES)}{known_list(SUITES)}")
    return SUITES[name]
