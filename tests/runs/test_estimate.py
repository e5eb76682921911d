"""What a run will take, held against runs: counts are the method's own, files and matrices what is written and allocated."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.cli import main, running
from coterie.core import Task, Training
from coterie.engines import rounds as inprocess
from coterie.engines.pool import ClientPool
from coterie.records.record import Record
from coterie.runs.estimate import (
    Costs,
    Estimate,
    SimulatedClients,
    data_bytes,
    estimate,
    layout_of,
    noisy,
    passes,
    play,
    rows_bytes,
    shrunk,
)
from coterie.runs.estimate import seconds as time_of
from coterie.runs.experiment import Experiment, make
from coterie.settings import UserError

FOREVER = float("inf")
SMALL = {"name": "digits/label-swap", "clients": 12, "groups": 2, "swaps": [[1, 7], [3, 5]]}


def experiment(*methods: str | dict[str, Any], rounds: int = 6, **more: Any) -> Experiment:
    return make({"scenario": SMALL, "methods": list(methods), "rounds": rounds, "workers": 1, **more})


def recorded(one: Experiment, folder: Path) -> list[dict[str, Any]]:
    (run,) = coterie.begin(one, folder)
    for _ in run.rounds():
        pass
    return run.record.lines()


COUNTED = [
    "fedavg", "independent", "ifca", "maxfl", "fedfa", {"name": "flhc", "warmup": 3, "groups": 2, "threshold": "none"},
    {"name": "cfl", "fraction": 0.5, "warmup": 9}, {"name": "flsc", "overlap": 2}, "hcct",
    {"name": "acfl", "fraction": 0.25, "groups": 2, "threshold": "none"},
]  # fmt: skip


@pytest.mark.parametrize("method", COUNTED, ids=lambda m: m if isinstance(m, str) else m["name"])
def test_exchanges_and_clients_asked_are_those_of_the_run(method: str | dict[str, Any], tmp_path: Path) -> None:
    one = experiment(method)
    (told,) = estimate(one, patience=FOREVER)
    lines = recorded(one, tmp_path / "run")
    assert told.exchanges == sum(line["exchanges"] for line in lines)
    assert told.asked == sum(line["asked"] for line in lines)
    if method not in ("maxfl",):  # who finds the global model appealing is not known before
        assert told.evaluations == sum(line["evaluations"] for line in lines)


def test_the_rounds_that_are_not_played_are_as_those_before() -> None:
    one = experiment("ifca", rounds=400)
    (short,) = estimate(one, patience=0)
    assert short.exchanges == pytest.approx(400, rel=0.3)
    assert short.evaluations == pytest.approx(400 * 12 * 4, rel=0.3)


def test_examples_that_are_trained_on() -> None:
    fast, whole = Training(epochs=2, batch=10), Training(steps=7, batch=0)
    assert passes(Task(offered=(0,)), fast, 45) == 90
    assert passes(Task(offered=(0,)), whole, 45) == 7 * 45
    assert passes(Task(offered=(0,), halves=True), fast, 45) == 2 * 2 * 22
    assert passes(Task(offered=(0,), gradient=True), fast, 45) == 45
    assert passes(Task(offered=(0, 1), epochs=0, measure="train", choose=2), fast, 45) == 0


def test_time_is_shared_among_workers_but_for_the_server() -> None:
    one = experiment("fedavg", rounds=4)
    played = play(one.methods[0], one.world(0), 0, one.boundary, rounds=4)
    costs = Costs(task=0.0, trained=1.0, tried=0.0, product=0.0, width=1)
    server = played.total("server", 4)
    alone = time_of(played, costs, 4, workers=1) - server
    world = one.world(0)
    assert alone == 4 * world.training.epochs * sum(len(data.train) for data in world.clients.values())
    assert time_of(played, costs, 4, workers=3) - server == pytest.approx(alone / 3)
    wide = Costs(task=0.0, trained=1.0, tried=0.0, product=0.0, width=12)
    assert time_of(played, wide, 4, workers=3) - server == pytest.approx(alone)  # one block is not shared


@pytest.mark.parametrize("method", ["fedavg", "independent", "ifca", "hcct", {"name": "cfl", "split_rounds": [2]}, "acfl"])
def test_the_disk_is_what_a_run_writes_within_a_factor_of_two(method: str | dict[str, Any], tmp_path: Path) -> None:
    one = experiment(method)
    (told,) = estimate(one, patience=FOREVER)
    recorded(one, tmp_path / "run")
    written = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert written / 2 < told.disk < written * 2


def test_a_longer_shelf_of_checkpoints_takes_more() -> None:
    few, many = (estimate(experiment("fedavg", checkpoints_kept=kept), patience=FOREVER)[0].disk for kept in (1, 5))
    assert many > 1.5 * few


@pytest.mark.parametrize("method", ["fedavg", "ifca", "independent", "hcct-p"])
def test_shared_matrices_are_as_large_as_told(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, taken = experiment(method, rounds=3), [0]
    played = play(one.methods[0], one.world(0), 0, one.boundary, rounds=3)
    reserve = ClientPool._reserve

    def watched(self: ClientPool, *rows: int) -> None:
        reserve(self, *rows)
        taken[0] = max(taken[0], self.hand.models.nbytes + self.hand.replies.nbytes)

    monkeypatch.setattr(ClientPool, "_reserve", watched)
    for _ in inprocess.rounds(one.methods[0], one.world(0), rounds=3, workers=1):
        pass
    assert rows_bytes(played) == pytest.approx(taken[0], rel=0.25)


@pytest.mark.parametrize(("clients", "groups"), [(40, 2), (30, 2), (60, 3), (90, 1), (600, 3)])
def test_split_half_is_played_with_noise_and_finds_the_groups(clients: int, groups: int) -> None:
    scenario = {"name": "synthetic/groups", "clients": clients, "groups": groups}
    one = make({"scenario": scenario, "methods": ["split-half"], "rounds": 12, "workers": 1})
    played = play(one.methods[0], one.world(0), 0, one.boundary, rounds=12)
    assert len(played.work) == 12
    models = min(work.rows for work in played.work[-5:]) - clients  # in a round that neither probes nor reviews
    assert 1 <= models <= groups + 1  # of equal clients, who differ by noise alone, no group falls apart


def test_the_noise_of_halves_is_drawn_anew_and_as_large_as_said() -> None:
    same = np.full((40, 40), 9.0)
    first, second = (noisy(same, 2.0, np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.allclose(first, second)
    assert first.diagonal().mean() == pytest.approx(11.0, rel=0.1)
    off = first[~np.eye(40, dtype=bool)]
    assert off.mean() == pytest.approx(9.0, rel=0.1)
    assert off.std() > 0.1


def test_data_that_clients_share_are_counted_once() -> None:
    world = experiment("fedavg").world(0)
    pool = next(iter(world.clients.values())).train.inputs
    assert pool.nbytes <= data_bytes(world) < 2 * pool.nbytes


def test_some_clients_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment("ifca", {"name": "cfl", "split_rounds": [2]})
    exact = estimate(one, patience=FOREVER)
    monkeypatch.setattr("coterie.runs.estimate.CLIENTS", 6)
    for few, all_ in zip(estimate(one, patience=FOREVER), exact, strict=True):
        assert few.asked == pytest.approx(all_.asked, rel=0.2)
        assert few.evaluations == pytest.approx(all_.evaluations, rel=0.2)
        assert few.disk == pytest.approx(all_.disk, rel=0.4)


SHRUNK = ["fedavg", "ifca", "hcct-p", {"name": "cfl", "split_rounds": [2]}, "acfl", "split-half", "fedfa"]


@pytest.mark.parametrize("method", SHRUNK, ids=lambda m: m if isinstance(m, str) else m["name"])
def test_a_small_model_stands_for_a_large_one(method: str | dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment(method)
    (exact,) = estimate(one, patience=FOREVER)
    monkeypatch.setattr("coterie.runs.estimate.LARGE", 500)
    assert layout_of(shrunk(one.world(0), 500)).size < 600 < layout_of(one.world(0)).size / 3
    (small,) = estimate(one, patience=FOREVER)
    assert (small.exchanges, small.asked, small.evaluations) == (exact.exchanges, exact.asked, exact.evaluations)
    assert small.disk == pytest.approx(exact.disk, rel=0.1)
    assert small.memory == pytest.approx(exact.memory, rel=0.1)


def test_a_large_model_is_played_without_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment("fedavg", rounds=2)
    world = one.world(0)
    large = dataclasses.replace(world, model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 50_000)))
    seen, first = [], SimulatedClients._rows

    def watched(self: SimulatedClients, *arguments: Any) -> Any:
        rows, at = first(self, *arguments)
        seen.append(rows.shape[1])
        return rows, at

    monkeypatch.setattr(SimulatedClients, "_rows", watched)
    played = play(one.methods[0], large, 0, one.boundary, rounds=2)
    assert len(seen) == 2
    assert max(seen) < 20_000
    assert played.size == 65 * 50_000
    assert played.state > 4 * played.size  # the checkpoint has the model whole


def test_a_model_that_shares_tensors_and_counts_batches_is_made_smaller() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.one, self.other = torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)
            self.other.weight = self.one.weight

    world = dataclasses.replace(experiment("fedavg").world(0), model=Tied)
    whole, small = layout_of(world), layout_of(shrunk(world, 100))
    assert [piece.name for piece in small.pieces] == [piece.name for piece in whole.pieces]
    assert (small.dense, list(small.columns)) == (whole.dense, list(whole.columns))
    assert small.size < 120
    assert shrunk(world, 10_000) is world


def test_it_changes_no_result_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = experiment("split-half", rounds=3)
    before = recorded(one, tmp_path / "before")
    drawn = torch.get_rng_state()
    estimate(one)
    assert torch.equal(drawn, torch.get_rng_state())
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
    after = recorded(one, tmp_path / "after")
    assert [{**line, "seconds": 0} for line in after] == [{**line, "seconds": 0} for line in before]


# -- on the command line --------------------------------------------------------------------------------------------------

ASK = ("run", "--estimate", "--rounds", "3", "--workers", "1", "--scenario", "synthetic/groups", "--method")


def test_the_command_says_it_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*ASK, "cfl", "--method", "maxfl", "--seeds", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["method", "time", "memory", "disk", "exchanges", "tasks", "evaluations"]
    assert [row.split()[0] for row in rows[1:4]] == ["cfl", "maxfl", "all"]
    assert rows[3].startswith("all 4 runs")
    assert rows[2].split()[-3] == "6"  # two exchanges a round
    assert main([*ASK, "cfl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["methods"][0]["exchanges"], told["methods"][0]["asked"]) == (1, 3, 60)
    assert not list(tmp_path.iterdir())


def test_a_long_run_is_announced_to_who_looks_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coterie.runs.estimate.estimate", lambda _: (whole(seconds=360.0), whole(seconds=360.0)))
    one = experiment("fedavg", "cfl")
    running.announce(one, tmp_path)
    assert capsys.readouterr().err == ""  # nobody does
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    running.announce(one, tmp_path)
    assert capsys.readouterr().err == "coterie: about 12 min, 1.2 GB of memory, 40.0 MB on disk\n"
    monkeypatch.setattr("coterie.runs.estimate.estimate", lambda _: (whole(seconds=10.0),))
    running.announce(one, tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [ValueError("signal cannot be split"), MemoryError(), UserError("no such data")])
def test_an_estimate_that_fails_does_not_stop_a_run(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Experiment) -> None:
        raise error

    monkeypatch.setattr("coterie.runs.estimate.estimate", fails)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    out = tmp_path / "run"
    call = ["--scenario", "synthetic/groups", "--method", "cfl", "--rounds", "2", "--workers", "1", "--out", str(out)]
    assert main(["run", *call]) == 0
    assert len(Record(out).lines()) == 2
    assert capsys.readouterr().err == ""


def test_nobody_waits_for_an_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forever(_: Experiment) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with suppress(Exception):
                time.sleep(0.01)

    monkeypatch.setattr("coterie.runs.estimate.estimate", forever)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(running, "AT_MOST", 0.2)
    before, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    running.announce(experiment("fedavg"), tmp_path)
    assert time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGALRM) is before
    assert capsys.readouterr().err == ""


def test_too_little_of_the_disk_or_the_memory_is_told(tmp_path: Path) -> None:
    assert not running.shortages(whole(memory=1.0, disk=1.0), tmp_path / "not" / "there")
    (disk,) = running.shortages(whole(memory=1.0, disk=1e18), tmp_path / "not" / "there")
    assert disk.startswith(f"{tmp_path} has ")
    assert "may take 1000000.0 TB" in disk
    (memory,) = running.shortages(whole(memory=1e18, disk=1.0), tmp_path)
    assert "use fewer --workers" in memory


def whole(**numbers: float) -> Estimate:
    return Estimate(**{  # type: ignore[arg-type]
        "method": "all", "seconds": 1.0, "memory": 1.2e9, "disk": 20e6, "exchanges": 1, "asked": 1, "evaluations": 1, **numbers
    })  # fmt: skip
