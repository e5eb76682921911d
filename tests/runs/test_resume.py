"""A run that is killed at any moment and resumed ends as if it had never been: models and groups bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coterie
from coterie.records import record, store
from coterie.records.checksum import sealed_json
from coterie.records.record import Record
from coterie.records.shown import Line
from coterie.records.text_files import to_json
from coterie.runs.experiment import Experiment, make
from coterie.runs.facts import world_facts
from coterie.runs.folders import begin, reopen
from coterie.runs.run import Run
from coterie.settings import UserError

ROUNDS = 4
SPEC: dict[str, Any] = {
    "scenario": {"name": "digits/label-permutation", "clients": 4, "groups": 2},
    "methods": [{"name": "cfl", "split_rounds": [2], "fallback": True}],
    "training": {"epochs": 1},
    "rounds": ROUNDS,
    "workers": 1,
}


def experiment(**changes: Any) -> Experiment:
    return make({**SPEC, **changes})


def finish(run: Run) -> None:
    for _ in run.rounds():
        pass


def outcome(folder: Path) -> tuple[Any, Any, list[str], dict[str, bytes]]:
    """The last checkpoint (which names its blobs by content), the records but for the seconds, the blobs, the matrices.

    Checksums are over the seconds too; that they fit is asked of ``coterie.check``."""
    assert not coterie.check(folder).damaged
    kept = Record(folder)
    lines = [
        {key: value for key, value in line.items() if key != "seconds"} for line in kept.lines()
    ]
    state = folder / "state"
    last = json.loads((state / f"{kept.checkpoints.rounds()[-1]:06d}.json").read_bytes())["value"]
    matrices = {path.name: path.read_bytes() for path in (folder / "similarity").iterdir()}
    return last, lines, sorted(path.name for path in (state / "blobs").iterdir()), matrices


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    (run,) = begin(experiment(), tmp_path_factory.mktemp("whole") / "run")
    finish(run)
    assert len(Record(run.folder).lines()[-1]["groups"]) == 2  # there is a split to lose
    return outcome(run.folder)


def killed(run: Run, prepare: Callable[[], None]) -> None:
    """Run in a forked process, which ``prepare`` has arranged to kill itself at some moment."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # 3.12: this process has threads; the child uses none
        child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        prepare()
        finish(run)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, *places: tuple[Any, str]) -> Callable[[], None]:
    """Arranges to die at the start of the ``number``-th call, counted over all of these functions."""
    calls = 0

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                die()
            return original(*args, **named)

        setattr(owner, name, counted)

    return lambda: [wrap(*place) for place in places] and None


SYSTEM_CALLS = ((os, "fsync"), (os, "replace"), (os, "open"), (Path, "unlink"))


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(1, 90), second=st.integers(1, 40))
def test_killed_at_any_two_moments_and_resumed(
    tmp_path_factory: pytest.TempPathFactory, uninterrupted: Any, first: int, second: int
) -> None:
    folder = tmp_path_factory.mktemp("killed") / "run"
    begin(experiment(), folder)
    for moment in (first, second):
        (run,) = reopen(folder)
        killed(run, at_call(moment, *SYSTEM_CALLS))
    (run,) = reopen(folder)
    finish(run)
    assert outcome(folder) == uninterrupted
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("round", range(1, ROUNDS + 1))
def test_killed_between_record_and_checkpoint(
    tmp_path: Path, uninterrupted: Any, round: int
) -> None:
    (run,) = begin(experiment(), tmp_path / "run")
    killed(run, at_call(round, (store.Checkpoints, "save")))
    assert len(run.record.lines()) == round
    assert run.record.checkpoints.rounds()[-1:] == ([round - 1] if round > 1 else [])
    assert not run.finished()
    finish(run)
    assert outcome(run.folder) == uninterrupted


def test_killed_within_a_record(
    tmp_path: Path, uninterrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line reaches the disk."""
    (run,) = begin(experiment(), tmp_path / "run")

    def half(self: Record, line: Line) -> None:
        with open(self.folder / record.ROUNDS_FILE, "ab") as file:
            text = sealed_json(to_json(line).encode(), self._own_identity())
            file.write(text if line["round"] < 3 else text[: len(text) // 2])
            file.write(b"\n" if line["round"] < 3 else b"")
        if line["round"] == 3:
            die()

    killed(run, lambda: setattr(Record, "append", half))
    assert len(run.record.lines()) == 2
    finish(run)
    assert outcome(run.folder) == uninterrupted


def test_left_in_the_middle_and_resumed_with_sparse_checkpoints(
    tmp_path: Path, uninterrupted: Any
) -> None:
    (run,) = begin(experiment(checkpoint_every=3), tmp_path / "run")
    for done in run.rounds():
        if done.number == 2:  # a break in the caller's loop, before any checkpoint
            break
    assert run.record.checkpoints.rounds() == []
    finish(run)
    assert run.record.checkpoints.rounds() == [3, 4]
    assert outcome(run.folder) == uninterrupted


def test_the_number_of_workers_changes_nothing(tmp_path: Path, uninterrupted: Any) -> None:
    (run,) = begin(experiment(workers=2), tmp_path / "run")
    finish(run)
    assert outcome(run.folder) == uninterrupted


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    (run,) = begin(experiment(rounds=1), tmp_path / "run")
    finish(run)
    before = {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.folder.rglob("*")
    }
    finish(run)
    assert run.finished()
    assert {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.folder.rglob("*")
    } == before


def test_other_data_are_refused(tmp_path: Path) -> None:
    (run,) = begin(experiment(), tmp_path / "run")
    other = replace(
        run,
        experiment=experiment(
            scenario={"name": "digits/label-permutation", "clients": 5, "groups": 2}
        ),
    )
    with pytest.raises(UserError, match="clients or data have changed"):
        finish(other)


def test_relabelled_data_of_the_same_sizes_are_refused() -> None:
    world = experiment().world(0)
    facts = world_facts(world)
    assert facts == world_facts(experiment().world(0))
    first = world.clients[0]
    split = replace(first.train, targets=first.train.targets.flip(0))
    other = replace(world, clients={**world.clients, 0: replace(first, train=split)})
    assert world_facts(other)["data"] != facts["data"]
    assert {k: v for k, v in world_facts(other).items() if k != "data"} == {
        k: v for k, v in facts.items() if k != "data"
    }


def test_a_checkpoint_of_something_else_is_damaged(tmp_path: Path) -> None:
    (run,) = begin(experiment(), tmp_path / "run")
    run.record.store(0, "no position")
    with pytest.raises(UserError, match="holds no position of a run; it is damaged"):
        finish(run)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    (run,) = begin(experiment(), tmp_path / "run")
    for _ in run.rounds():
        with pytest.raises(store.BusyError):
            finish(run)
        break


def test_a_whole_experiment_is_resumed_run_by_run(tmp_path: Path) -> None:
    several = experiment(methods=["fedavg", "cfl"], seeds=[0, 3], rounds=1)
    first, *rest = begin(several, tmp_path / "all")
    finish(first)
    again = reopen(tmp_path / "all")
    assert again == (first, *rest)
    assert [run.finished() for run in again] == [True, False, False, False]
    assert [run.folder.name for run in again] == [
        "fedavg-seed0",
        "fedavg-seed3",
        "cfl-seed0",
        "cfl-seed3",
    ]
    for run in again:
        finish(run)
    assert all(run.finished() for run in reopen(tmp_path / "all"))


@pytest.mark.slow
def test_the_command_line_killed_with_its_workers_at_work(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "coterie"]
    options = [
        "run",
        "--method",
        "cfl",
        "--rounds",
        "10",
        "--workers",
        "2",
        "--set",
        "split_rounds=[3, 5]",
    ]
    subprocess.run(
        [*call, *options, "--out", str(tmp_path / "whole")], check=True, capture_output=True
    )
    with subprocess.Popen([*call, *options, "--out", str(tmp_path / "killed")]) as process:
        while not (tmp_path / "killed" / "rounds.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.7)
        process.kill()
    resumed = subprocess.run(
        [*call, "resume", str(tmp_path / "killed"), "--json"], check=True, capture_output=True
    )
    assert [one["rounds"] for one in json.loads(resumed.stdout)] == [10]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
