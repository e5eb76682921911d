"""Estimates compared with runs: the exchanges and tasks, the files that are written, the memory that is allocated."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.cli import main, running
from coterie.engines import rounds as inprocess
from coterie.engines.pool import ClientPool
from coterie.records.record import Record
from coterie.runs.estimate import Estimate, _Costs, _data_bytes, _FirstRounds, estimate
from coterie.runs.experiment import Experiment, make
from coterie.settings import UserError
from method_examples import slow

FOREVER = float("inf")
SMALL = {"name": "digits/label-swap", "clients": 12, "groups": 2, "swaps": [[1, 7], [3, 5]]}


def experiment(*methods: str | dict[str, Any], rounds: int = 6, **more: Any) -> Experiment:
    return make(
        {"scenario": SMALL, "methods": list(methods), "rounds": rounds, "workers": 1, **more}
    )


def recorded(one: Experiment, folder: Path) -> list[dict[str, Any]]:
    (run,) = coterie.begin(one, folder)
    for _ in run.rounds():
        pass
    return run.record.lines()


COUNTED = [
    "fedavg", "ifca", "maxfl", "fedfa", {"name": "flhc", "warmup": 3, "groups": 2, "threshold": "none"},
    {"name": "cfl", "fraction": 0.5, "warmup": 9}, {"name": "acfl", "fraction": 0.25, "groups": 2, "threshold": "none"},
    *slow("independent", {"name": "flsc", "overlap": 2}, "hcct"),
]  # fmt: skip


@pytest.mark.parametrize("method", COUNTED, ids=lambda m: m if isinstance(m, str) else m["name"])
def test_exchanges_and_tasks_are_those_of_the_run(
    method: str | dict[str, Any], tmp_path: Path
) -> None:
    one = experiment(method, training={"epochs": 1})
    (found,) = estimate(one, max_seconds=FOREVER)
    lines = recorded(one, tmp_path / "run")
    assert found.exchanges == sum(line["exchanges"] for line in lines)
    assert found.asked == sum(line["asked"] for line in lines)
    if (
        method != "maxfl"
    ):  # the number of clients that find the global model appealing is not known before
        assert found.evaluations == sum(line["evaluations"] for line in lines)


def test_rounds_that_are_not_made_count_like_the_first_ones() -> None:
    one = experiment("ifca", rounds=400)
    (short,) = estimate(one, max_seconds=0)
    assert short.exchanges == pytest.approx(400, rel=0.3)
    assert short.evaluations == pytest.approx(400 * 12 * 4, rel=0.3)


def test_some_clients_represent_all(monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment("ifca", "fedper", {"name": "cfl", "split_rounds": [2]})
    exact = estimate(one, max_seconds=FOREVER)
    monkeypatch.setattr("coterie.runs.estimate.MIN_CLIENTS", 6)
    monkeypatch.setattr("coterie.runs.estimate.MAX_UPDATE_NUMBERS", 0)
    for few, whole in zip(estimate(one, max_seconds=FOREVER), exact, strict=True):
        assert few.asked == pytest.approx(whole.asked)
        assert few.evaluations == pytest.approx(whole.evaluations)
        assert few.disk == pytest.approx(whole.disk, rel=0.4)
        assert few.memory == pytest.approx(whole.memory, rel=0.1)


def timed(method: str | dict[str, Any] = "fedavg", **settings: Any) -> float:
    """The estimated seconds of a method if each example takes one second, in training and in tests, and nothing else counts."""
    one = experiment(method, rounds=4, **settings)
    costs = _Costs(
        task=0.0,
        trained_example=1.0,
        tested_example=1.0,
        block_width=settings.get("width") or 1,
    )
    return _FirstRounds(one, one.methods[0], one.world(0), costs, FOREVER).estimate().seconds


def test_training_and_tests_are_shared_among_workers() -> None:
    world = experiment("fedavg").world(0)
    training = 4 * world.training.epochs * sum(len(data.train) for data in world.clients.values())
    tests = {id(data.test.index): len(data.test) for data in world.clients.values()}
    alone = timed()
    assert alone == pytest.approx(training + 4 * sum(tests.values()), abs=1.0)
    assert timed(workers=3) == pytest.approx(alone / 3, abs=1.0)
    assert timed(workers=3, width=12) > training  # one block is trained by one worker
    assert timed(eval_every=4) == pytest.approx(training + sum(tests.values()), abs=1.0)
    steps = timed(training={"steps": 3, "batch": 5}, eval_every=4)
    assert steps == pytest.approx(4 * len(world.clients) * 15 + sum(tests.values()), abs=1.0)


@pytest.mark.parametrize(
    ("method", "epochs"),
    [
        ({"name": "fedrep", "head_epochs": 7}, 7 + 3),  # the scenario trains for 3 epochs
        ({"name": "fedrep", "head_epochs": 7, "body_epochs": 2}, 9),
        ({"name": "fedbabu", "tune_epochs": 4}, 3 + 4),
        ({"name": "ditto"}, 3 + 3),
        ({"name": "ditto", "epochs": 1}, 3 + 1),
        ({"name": "apfl"}, 3 + 3),
    ],
)
def test_stages_and_personal_models_take_time(method: dict[str, Any], epochs: int) -> None:
    world = experiment("fedavg").world(0)
    assert world.training.epochs == 3
    examples, tests = (
        sum(len(data.train) for data in world.clients.values()),
        sum(len(d.test) for d in world.clients.values()),
    )
    assert timed(method, eval_every=4) == pytest.approx(4 * epochs * examples + tests, abs=1.0)


def test_neighbours_take_the_features_of_all_examples() -> None:
    clients = experiment("fedavg").world(0).clients.values()
    train, validation, test = (
        sum(len(getattr(data, part)) for data in clients)
        for part in ("train", "validation", "test")
    )
    found = timed("knn-per", eval_every=4)
    assert found == pytest.approx(4 * 3 * train + train + validation + test, abs=1.0)


@pytest.mark.parametrize(
    "method",
    ["fedavg", "independent", {"name": "cfl", "split_rounds": [2]}, *slow("ifca", "hcct", "acfl")],
)
def test_the_disk_is_what_a_run_writes_within_a_factor_of_two(
    method: str | dict[str, Any], tmp_path: Path
) -> None:
    one = experiment(method, training={"epochs": 1})
    (found,) = estimate(one, max_seconds=FOREVER)
    recorded(one, tmp_path / "run")
    written = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert written / 2 < found.disk < written * 2


def test_more_checkpoints_take_more() -> None:
    few, many = (
        estimate(experiment("fedavg", checkpoints_kept=kept), max_seconds=FOREVER)[0].disk
        for kept in (1, 5)
    )
    assert many > 1.5 * few


@pytest.mark.parametrize("method", ["fedavg", "ifca", "independent", "hcct-p"])
def test_shared_matrices_are_as_large_as_estimated(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, taken = experiment(method, rounds=3), [0]
    played = _FirstRounds(one, one.methods[0], one.world(0), _Costs(0.0, 0.0, 0.0, 1), FOREVER)
    reserve = ClientPool._reserve

    def watched(self: ClientPool, *rows: int) -> None:
        reserve(self, *rows)
        taken[0] = max(taken[0], self.worker.models.nbytes + self.worker.replies.nbytes)

    monkeypatch.setattr(ClientPool, "_reserve", watched)
    for _ in inprocess.rounds(one.methods[0], one.world(0), rounds=3, workers=1):
        pass
    assert 4 * played.held_numbers == pytest.approx(taken[0], rel=0.25)


def test_data_that_clients_share_are_counted_once() -> None:
    world = experiment("fedavg").world(0)
    pool = next(iter(world.clients.values())).train.inputs
    assert pool.nbytes <= _data_bytes(world) < 2 * pool.nbytes


def test_it_changes_no_result_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = experiment("split-half", rounds=3)
    before = recorded(one, tmp_path / "before")
    drawn = torch.get_rng_state()
    estimate(one)
    assert torch.equal(drawn, torch.get_rng_state())
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
    after = recorded(one, tmp_path / "after")
    assert [{**line, "seconds": 0} for line in after] == [{**line, "seconds": 0} for line in before]


# -- on the command line
# --------------------------------------------------------------------------------------------------

ASK = (
    "run",
    "--estimate",
    "--rounds",
    "3",
    "--workers",
    "1",
    "--scenario",
    "synthetic/groups",
    "--method",
)


def test_the_command_says_it_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*ASK, "cfl", "--method", "maxfl", "--seeds", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == [
        "method",
        "time",
        "memory",
        "disk",
        "exchanges",
        "tasks",
        "evaluations",
    ]
    assert [row.split()[0] for row in rows[1:4]] == ["cfl", "maxfl", "all"]
    assert rows[3].startswith("all 4 runs")
    assert rows[2].split()[-3] == "6"  # two exchanges a round
    assert main([*ASK, "cfl", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["methods"][0]["exchanges"], told["methods"][0]["asked"]) == (
        1,
        3,
        60,
    )
    assert not list(tmp_path.iterdir())


def test_a_long_run_is_announced_to_who_looks_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "coterie.runs.estimate.estimate", lambda _: (whole(seconds=360.0), whole(seconds=360.0))
    )
    one = experiment("fedavg", "cfl")
    running.announce(one, tmp_path)
    assert capsys.readouterr().err == ""  # nobody does
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    running.announce(one, tmp_path)
    assert capsys.readouterr().err == "coterie: about 12 min, 1.2 GB of memory, 40.0 MB on disk\n"
    monkeypatch.setattr("coterie.runs.estimate.estimate", lambda _: (whole(seconds=10.0),))
    running.announce(one, tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "error", [ValueError("signal cannot be split"), MemoryError(), UserError("no such data")]
)
def test_an_estimate_that_fails_does_not_stop_a_run(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(_: Experiment) -> None:
        raise error

    monkeypatch.setattr("coterie.runs.estimate.estimate", fails)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    out = tmp_path / "run"
    call = [
        "--scenario",
        "synthetic/groups",
        "--method",
        "cfl",
        "--rounds",
        "2",
        "--workers",
        "1",
        "--out",
        str(out),
    ]
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
    monkeypatch.setattr(running, "MAX_ESTIMATE_SECONDS", 0.2)
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
    return Estimate(
        **{  # type: ignore[arg-type]
            "method": "all",
            "seconds": 1.0,
            "memory": 1.2e9,
            "disk": 20e6,
            "exchanges": 1,
            "asked": 1,
            "evaluations": 1,
            **numbers,
        }
    )
