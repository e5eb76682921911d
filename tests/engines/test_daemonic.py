"""Runs in a process of a multiprocessing.Pool, which can start no processes: one worker, the same result, and a warning."""

from __future__ import annotations

import multiprocessing
import warnings

import pytest

import coterie
from coterie.engines.workers import Hardware
from coterie.settings import SettingError


def scores(workers: int) -> tuple[list[object], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rounds = list(coterie.run("fedavg", "digits/iid", rounds=1, workers=workers))
    return [one.scores for one in rounds], [str(one.message) for one in caught]


def test_a_process_of_a_pool_runs_with_one_worker_and_says_so() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found, said = pool.apply(scores, (2,))
    assert found == scores(1)[0]
    assert [
        text
        for text in said
        if "workers is 2, and a process of a multiprocessing.Pool can start none" in text
    ]


def processes_there() -> int:
    return Hardware().processes(100)


def flower_there() -> str:
    from coterie.data.scenario import SCENARIOS
    from coterie.engines.flower import simulation
    from coterie.methods import FedAvg

    try:
        next(simulation.rounds(FedAvg(), SCENARIOS["digits/iid"].build, rounds=1, seed=0))
    except SettingError as error:
        return str(error)
    return ""


def test_nothing_is_said_where_nothing_was_asked_for() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(processes_there) == 1


def test_flower_cannot_start_there_and_says_so() -> None:
    pytest.importorskip("flwr")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "a process of a multiprocessing.Pool cannot: use engine inprocess" in pool.apply(
            flower_there
        )
