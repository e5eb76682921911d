"""The experiments that are committed, and what the demonstration must show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie import SCENARIOS, run
from coterie.cli.arguments import parse
from coterie.cli.running import options
from coterie.clustering import adjusted_rand, labels_of
from coterie.core import Groups
from coterie.runs.experiment import make, read

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_committed_experiment_reads(path: Path) -> None:
    experiment = make(read(path))
    assert experiment.methods
    assert make(experiment.spec()) == experiment


@pytest.mark.parametrize("name", ["cfl-mnist", "flhc-mnist"])
def test_the_same_file_runs_in_the_iid_world(name: str) -> None:
    path = next(p for p in FILES if p.stem == name)
    split = make(read(path))
    whole = make(
        options(
            parse(["run", str(path), "--scenario", "mnist/iid", "--method", name[:4].strip("-")]),
            read(path),
        )
    )
    assert (whole.scenario, whole.setup.shift.kind) == ("mnist/iid", "none")
    assert replace(whole.setup, shift=split.setup.shift, about=split.setup.about) == split.setup
    assert whole.training == split.training
    assert whole.methods[0] in split.methods


@pytest.mark.parametrize("name", ["cfl-mnist", "flhc-mnist", "flhc-pathological", "flhc-writers"])
def test_their_worlds_can_be_built(name: str, data_folder: Path) -> None:
    experiment = replace(
        make(read(next(p for p in FILES if p.stem == name))), data=str(data_folder)
    )
    world = experiment.world(seed=0)
    assert len(world.clients) == experiment.setup.clients
    if name in ("cfl-mnist", "flhc-mnist"):
        assert world.truth is not None
        assert [len(group) for group in world.truth] == [experiment.setup.clients // 4] * 4


def _end(method: str, scenario: str, seed: int, rounds: int) -> tuple[float, float, int]:
    """(mean accuracy, adjusted Rand index, groups) at the end of a run."""
    *_, done = run(method, scenario, rounds=rounds, seed=seed, eval_every=rounds)
    world = SCENARIOS[scenario].build(seed)
    assert world.truth is not None
    assert done.scores is not None
    accuracy = sum(score["accuracy"] for score in done.scores.values()) / len(done.scores)
    return accuracy, _agreement(done.assignment.groups, world.truth), len(done.assignment.groups)


def _agreement(groups: Groups, truth: Groups) -> float:
    return adjusted_rand(labels_of(groups), labels_of(truth))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_cfl_finds_the_groups_of_the_demonstration(seed: int) -> None:
    accuracy, agreement, groups = _end("cfl", "digits/label-permutation", seed, 40)
    fedavg, _, _ = _end("fedavg", "digits/label-permutation", seed, 40)
    assert (agreement, groups) == (1.0, 4)
    assert accuracy >= fedavg + 0.30


@pytest.mark.slow
def test_cfl_leaves_clients_that_are_alike_together() -> None:
    assert _end("cfl", "digits/iid", 0, 60)[2] == 1


@pytest.mark.slow
def test_flhc_finds_the_groups_of_the_demonstration() -> None:
    for seed in (0, 1):
        *_, done = run("flhc", "digits/label-permutation", rounds=12, seed=seed, eval_every=12)
        truth = SCENARIOS["digits/label-permutation"].build(seed).truth
        assert done.assignment.groups == truth
