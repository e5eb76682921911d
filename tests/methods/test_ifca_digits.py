"""IFCA and FLSC on handwritten digits: the committed settings find the groups, by training loss alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.core import Round
from coterie.data.world import World
from coterie.engines.rounds import rounds
from coterie.runs.experiment import make, read

COMMITTED = make(read(Path(__file__).parents[2] / "experiments" / "ifca-digits.toml"))
METHODS: dict[str, Any] = {method.name: method for method in COMMITTED.methods}


def ended(
    method: Any, seed: int, silent: float = 0.0, count: int = COMMITTED.rounds
) -> tuple[World, Round]:
    world = replace(COMMITTED.setup, silent=silent).build(seed)
    *_, done = rounds(method, world, rounds=count, seed=seed, workers=1, eval_every=count)
    return world, done


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_committed_settings_find_the_groups(name: str) -> None:
    world, done = ended(METHODS[name], seed=0, count=14)
    assert done.assignment.groups == world.truth


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "least"), [(0.0, 10), (0.3, 9)])
@pytest.mark.parametrize("name", METHODS)
def test_of_ten_seeds(name: str, silent: float, least: int) -> None:
    ends = [ended(METHODS[name], seed, silent) for seed in COMMITTED.seeds]
    assert len(ends) == 10
    assert sum(done.assignment.groups == world.truth for world, done in ends) >= least


def test_one_draw_for_all_models_is_one_group() -> None:
    """What the code published with HCCT makes of IFCA."""
    world, done = ended(replace(METHODS["ifca"], initial="same", restarts=1), seed=0, count=3)
    assert done.assignment.groups == (tuple(world.clients),)
