"""Flower's simulation on Ray, from the library and from the command line; each start takes some ten seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("ray", reason="Ray is not installed")

import coterie
from alone import alone
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.contrib.private import SplitHalfSums
from coterie.core import Training
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines import rounds
from coterie.engines.flower import simulation
from coterie.engines.workers import EngineError
from coterie.methods import CFL, METHODS, FedPer, Race, SplitHalf, Tuned
from coterie.runs.experiment import make
from coterie.settings import SettingError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    with alone():
        yield


def small(clients: int, lr: float) -> World:
    """A world that every process makes for itself."""
    made = replace(SCENARIOS["digits/label-permutation"], clients=clients, silent=0.2).build(0)
    return replace(made, training=Training(lr=lr))


def test_a_simulation_is_the_run_of_one_process_and_goes_on_from_any_round() -> None:
    maker, boundary = partial(small, 6, 0.1), Boundary(clip=0.5)
    expected = list(rounds.rounds(CFL(), maker(), rounds=4, boundary=boundary))
    with closing(simulation.rounds(CFL(), maker, rounds=4, boundary=boundary)) as running:  # type: ignore[type-var]
        found = [next(running), next(running)]  # and it is left early
    found += simulation.rounds(CFL(), maker, rounds=4, start=found[-1].position, boundary=boundary)
    for one, other in zip(found, expected, strict=True):
        assert (one.asked, one.answered, one.bytes_up) == (
            other.asked,
            other.answered,
            other.bytes_up,
        )
        assert one.assignment.groups == other.assignment.groups
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-6
        )


def named(seed: int) -> World:
    made = small(4, 0.1)
    return replace(
        made,
        clients={id: replace(data, name=f"hospital {9 - id}") for id, data in made.clients.items()},
    )


def test_clients_of_a_simulation_have_the_names_of_the_world(tmp_path: Path) -> None:
    (run,) = coterie.begin(named, tmp_path / "run", "fedavg", rounds=2, engine="flower")
    found = list(run.rounds())
    assert [done.names for done in found] == [{id: f"hospital {9 - id}" for id in range(4)}] * 2
    assert found[-1].groups == (("hospital 6", "hospital 7", "hospital 8", "hospital 9"),)
    assert coterie.summary(tmp_path / "run")["groups"] == [list(found[-1].groups[0])]


@pytest.mark.parametrize("name", ["ifca", "fedper", "maxfl", "acfl", "split-half"])
def test_on_ray_a_method_finds_what_it_finds_in_one_process(name: str) -> None:
    """Several models, layers that stay, losses, a start-up of its own, halves: all that a message may ask for."""
    maker, method = partial(small, 5, 0.1), METHODS[name]()
    found = simulation.rounds(method, maker, rounds=2)
    for one, other in zip(found, rounds.rounds(method, maker(), rounds=2, workers=1), strict=True):
        assert one.assignment.groups == other.assignment.groups
        assert (one.asked, one.answered, one.exchanges) == (
            other.asked,
            other.answered,
            other.exchanges,
        )
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-6
        )


def failing() -> World:
    return replace(small(4, 0.1), clients={})


def test_a_simulation_that_fails_says_so() -> None:
    with pytest.raises(
        EngineError,
        match="Flower's simulation failed: ValueError: a world needs at least one client",
    ):
        next(simulation.rounds(CFL(), failing, rounds=1))


def test_layers_that_ended_with_a_simulation_are_not_gone_on_with() -> None:
    maker = partial(small, 4, 0.1)
    position = next(rounds.rounds(FedPer(), maker(), rounds=2)).position
    with pytest.raises(SettingError, match="fedper keeps layers at the clients"):
        next(simulation.rounds(FedPer(), maker, rounds=2, start=position))


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (SplitHalfSums(level=0.9, probe_every=1, review_every=3, smallest=3, sketch=8), "sketches"),
        (
            Tuned(method=SplitHalf(level=0.9, probe_every=1, review_every=1), epochs=1),
            "personal models",
        ),
        (Race(methods=("split-half", "fedper"), patience=9), "layers"),
    ],
    ids=["sketches", "personal models", "layers of an arm"],
)
def test_what_ended_with_a_simulation_is_not_gone_on_with_in_any_round(
    method: Any, what: str
) -> None:
    """Also where the next exchange, a review for example, uses nothing of it."""
    maker = partial(small, 8, 0.1)
    for done in rounds.rounds(method, maker(), rounds=5):
        with pytest.raises(SettingError, match=f"{method.name} keeps {what} at the clients"):
            next(simulation.rounds(method, maker, rounds=7, start=done.position))


def test_the_command_line_runs_a_scenario_under_flower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["run", "--method", "cfl", "--set", "scenario.clients=4", "--rounds", "2", "--json"]
    results: list[Any] = []
    for engine in ("inprocess", "flower"):
        assert main([*call, "--engine", engine, "--out", str(tmp_path / engine)]) == 0
        results += json.loads(capsys.readouterr().out)
    assert results[0]["groups"] == results[1]["groups"]
    assert results[0]["accuracy"]["mean"] == pytest.approx(results[1]["accuracy"]["mean"], abs=0.02)
    assert results[0]["bytes_up"] == results[1]["bytes_up"]


def test_what_a_simulation_has_no_use_for_is_refused() -> None:
    with pytest.raises(
        SettingError,
        match=r"Experiment.precision needs engine inprocess, got bf16 with engine flower",
    ):
        make({"engine": "flower", "precision": "bf16"})
    with pytest.raises(
        SettingError, match=r"Experiment.engine must be one of inprocess, flower, ray"
    ):
        make({"engine": "dask"})
