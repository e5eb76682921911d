"""Worker processes: results in order, failures in a sentence, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.engines import workers as engine
from coterie.engines.workers import EngineError, Workers, default_workers, shared_matrix

SRC = Path(__file__).parents[2] / "src"


@contextmanager
def workers(work: Callable[[Any], Any], count: int) -> Iterator[Workers]:
    made = Workers(work, count)
    try:
        yield made
    finally:
        made.close()
        assert not multiprocessing.active_children()


def gone(pid: int, within: float = 10.0) -> bool:
    """Whether a process ends in time; one that waits to be reaped has ended."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_the_jobs(count: int) -> None:
    def slow_first(job: int) -> int:
        time.sleep(0.05 if job == 0 else 0)
        return job * job

    with workers(slow_first, count) as crew:
        assert crew.run(range(7)) == [0, 1, 4, 9, 16, 25, 36]
        assert crew.run([]) == []
        assert crew.run([3]) == [9]


def test_every_worker_takes_part_and_has_one_thread() -> None:
    def who(job: int) -> tuple[int, int]:
        time.sleep(0.1)
        return os.getpid(), torch.get_num_threads()

    with workers(who, 2) as crew:
        found = crew.run(range(6))
    assert len({pid for pid, _ in found} - {os.getpid()}) == 2
    assert {threads for _, threads in found} == {1}


def test_one_worker_is_this_process_with_one_thread_for_the_while() -> None:
    before = torch.get_num_threads()
    with workers(lambda job: (os.getpid(), torch.get_num_threads()), 1) as crew:
        assert crew.run([0]) == [(os.getpid(), 1)]
    assert torch.get_num_threads() == before


def test_shared_matrices_are_seen_by_both_sides() -> None:
    matrix = shared_matrix(4, 3)
    matrix[:] = 0

    def write(job: int) -> float:
        matrix[job] = job + matrix[3, 0]
        return float(matrix[3, 0])

    with workers(write, 2) as crew:
        matrix[3] = 10.0  # after the fork
        assert crew.run([0, 1, 2]) == [10.0, 10.0, 10.0]
    assert matrix[:3, 0].tolist() == [10.0, 11.0, 12.0]
    assert shared_matrix(0, 3).shape == (0, 3)


# -- failures
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_failure_is_a_sentence_with_the_details_aside(count: int) -> None:
    def divide(job: int) -> float:
        if job == 3:
            raise KeyError("colour")
        return job / 2

    with workers(divide, count) as crew:
        with pytest.raises(EngineError, match=r"^KeyError: 'colour'$") as caught:
            crew.run(range(6))
        assert 'raise KeyError("colour")' in caught.value.details
        assert crew.run([0, 1]) == [0.0, 0.5]  # the processes are still of use


def test_after_a_failure_the_others_stop() -> None:
    def first_fails(job: int) -> None:
        if job == 0:
            raise ValueError("no")
        time.sleep(0.2)

    with workers(first_fails, 2) as crew:
        began = time.monotonic()
        with pytest.raises(EngineError):
            crew.run(range(200))
        assert time.monotonic() - began < 10  # of 200 * 0.2 s


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)])
def test_a_worker_that_dies_at_work_is_an_error_at_once(end: Callable[[], None]) -> None:
    def die(job: int) -> None:
        if job == 1:
            end()
        time.sleep(30 if job == 0 else 0)

    with workers(die, 2) as crew:
        began = time.monotonic()
        with pytest.raises(
            EngineError, match=r"a worker process ended with exit code (-9 \(killed; was there|3)"
        ):
            crew.run(range(2))
        assert time.monotonic() - began < 15  # the other one, busy for 30 s, is not waited for


def test_a_worker_that_died_between_two_runs_is_an_error() -> None:
    with workers(lambda job: job, 2) as crew:
        assert crew.run([1, 2]) == [1, 2]
        process = crew.processes[1]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with pytest.raises(EngineError, match="exit code -9"):
            crew.run([1, 2])


# -- the end
# ----------------------------------------------------------------------------------------------------------


def test_idle_workers_end_by_themselves_even_if_a_later_crew_holds_copies_of_the_pipes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        engine, "IDLE_GRACE_SECONDS", 60.0
    )  # a busy machine is no failure; a killed process has another exit code
    first, second = Workers(abs, 3), Workers(abs, 2)
    try:
        processes = list(first.processes)
        first.close()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        assert second.run([-1]) == [1]
    finally:
        second.close()
    first.close()  # once more does nothing


def test_a_copy_in_another_process_does_not_end_the_workers() -> None:
    inner = Workers(abs, 2)
    try:
        outer = Workers(lambda job: inner.close(), 2)
        outer.run([0, 1])
        outer.close()
        assert inner.run([-2]) == [2]
    finally:
        inner.close()


PARENT = """
import sys, time
from coterie.engines.workers import Workers
busy = sys.argv[1] == "busy"

def work(job):
    if busy and job == 4:
        print("ready", flush=True)
    time.sleep(0.2 if busy else 0)

crew = Workers(work, 2)
print(*(p.pid for p in crew.processes), flush=True)
crew.run(range(1000 if busy else 2))
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_end_when_their_parent_is_killed(state: str) -> None:
    script = [sys.executable, "-c", PARENT, state]
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert all(gone(pid) for pid in pids)
        assert parent.stderr is not None
        assert parent.stderr.read() == ""  # and quietly


def test_default_workers_are_the_cores_but_one_within_a_worker() -> None:
    expected = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    assert default_workers() == expected
    with workers(lambda job: default_workers(), 2) as crew:
        assert set(crew.run(range(4))) == {1}


def test_a_matrix_larger_than_memory_lies_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "available_memory", lambda: 100.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matrix = shared_matrix(4, 5)
    assert list(tmp_path.iterdir()) == []  # it has no name, and goes with the matrix

    def write(job: int) -> None:
        matrix[job] = float(job)

    run = Workers(write, 2)
    run.run([0, 1, 2, 3])
    run.close()
    assert matrix.sum() == 5 * (1 + 2 + 3)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_script_that_stops_early_ends_without_a_word(workers: int) -> None:
    """Where Python ended before the generator of rounds, it printed a traceback about ``NoneType``."""
    script = f"""
import coterie
from dataclasses import replace

if __name__ == "__main__":
    small = replace(coterie.SCENARIOS["synthetic/iid"], clients=2, samples=20)
    rounds = coterie.run("fedavg", small, rounds=3, workers={workers})
    print(next(rounds).number)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
