"""Nodes that keep silent, by a clock that nobody waits for: who is waited for, and for how long."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from attack.flower_waiting import FIRST, Trial, method_of, silent_in, trial
from coterie.engines.flower import MethodStrategy
from coterie.methods import CFL, FedAvg
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.settings import SettingError
from small import mlp
from timed import Clock


def play(
    made: Trial,
    count: int,
    mute: Any = (),
    *,
    kinds: Any = ("train", "evaluate"),
    stop: float = math.inf,
    **how: Any,
) -> None:
    state = {"round": 0}
    for i in mute:
        made.grid.nodes[FIRST + i].delay = silent_in(state, kinds, 1, stop, made.paces[i])
    made.play(how.pop("method", FedAvg()), count, lambda number: state.update(round=number), **how)


def test_one_mute_of_twenty_costs_two_graces_and_then_nothing(clock: Clock) -> None:
    made = trial([10.0] * 20, clock)
    play(made, 6, [3])
    assert made.seconds[0] == pytest.approx(30, abs=3)  # who is who, a task and a test
    assert made.seconds[1] == pytest.approx(140, abs=4)  # 60 seconds of grace for each
    assert made.seconds[2] == pytest.approx(140, abs=4)
    assert made.seconds[3:] == pytest.approx([20.0] * 3, abs=2)
    assert [done.silent for done in made.rounds] == [(), *[(3,)] * 5]
    notes = [
        (done.number, note.clients, note.text)
        for done in made.rounds
        for note in done.notes
        if note.kind == "node"
    ]
    texts = "client 3 did not answer 2 {} in a row; the server no longer waits for it"
    assert notes == [(3, (3,), texts.format("tasks")), (3, (3,), texts.format("tests"))]


def test_the_grace_time_and_the_share_are_settings(clock: Clock) -> None:
    made = trial([100.0] * 9 + [390.0], clock)
    play(made, 1, grace=3.0)
    assert made.rounds[0].silent == ()
    made = trial([100.0] * 9 + [390.0], clock)
    play(made, 1, grace=1.0)
    assert made.rounds[0].silent == (9,)
    made = trial([100.0] * 9 + [3500.0], clock)
    play(made, 1, min_replies=1.0)
    assert made.rounds[0].silent == ()
    made = trial([100.0] * 5 + [390.0] * 5, clock)
    play(made, 1, min_replies=0.5)
    assert made.rounds[0].silent == (5, 6, 7, 8, 9)


def test_of_a_few_clients_the_last_one_has_the_grace_time_after_what_it_usually_takes(
    clock: Clock,
) -> None:
    made = trial([20.0, 200.0], clock)
    play(made, 3)
    assert [done.silent for done in made.rounds] == [
        ()
    ] * 3  # ten times as slow, and never left out
    play(made := trial([20.0, 200.0], clock), 4, [1])
    assert [done.silent for done in made.rounds] == [(), (1,), (1,), (1,)]
    assert made.seconds[1:3] == pytest.approx(
        [1200.0] * 2, abs=5
    )  # for a task and for a test, of the timeout of an hour
    assert made.seconds[3] == pytest.approx(40.0, abs=3)


def test_who_wakes_up_is_waited_for_again_and_the_records_tell_so(clock: Clock) -> None:
    made = trial([10.0] * 8, clock)
    play(made, 9, [2], stop=4)
    assert made.rounds[-1].silent == ()
    texts = [note.text for done in made.rounds for note in done.notes if note.kind == "node"]
    assert "client 2 answers tasks again; the server waits for it" in texts


def test_a_silent_client_is_no_member_again_because_it_is_connected(clock: Clock) -> None:
    made = trial([10.0] * 6, clock)
    play(made, 12, [2], kinds=("train", "evaluate", "query"), stop=9, patience=2, method=CFL())
    members = [2 in done.position.members for done in made.rounds]
    assert members[:9] == [True, True, *[False] * 7]
    assert members[-1]
    assert made.rounds[-1].silent == ()
    joined = [
        done.number
        for done in made.rounds
        for note in done.notes
        if note.kind == "arrive" and note.clients == (2,)
    ]
    assert len(joined) == 1


def test_if_all_the_others_sleep_everyone_counts_as_there(clock: Clock) -> None:
    """A round without anybody to ask would pass in no time, and all rounds with it."""
    made = trial([10.0] * 3, clock)
    play(made, 6, range(3), kinds=("train", "evaluate", "query"), patience=2, timeout=100.0)
    assert min(made.seconds[1:]) > 190


@seeded(0)
def test_flowers_own_loop_waits_as_it_does(clock: Clock) -> None:
    made = trial([10.0] * 5, clock)
    strategy = MethodStrategy(FedAvg(), mlp, nodes=5)
    Strategy.start(strategy, made.grid, ArrayRecord(mlp().state_dict()), num_rounds=2)
    assert strategy.last is not None
    assert (strategy.last.number, strategy.last.answered) == (2, 5)


def test_the_records_tell_who_was_silent(clock: Clock, tmp_path: Path) -> None:
    made, state = trial([5.0] * 6, clock), {"round": 0}
    made.grid.nodes[FIRST + 4].delay = silent_in(state, ("train", "evaluate"), 0, math.inf, 5.0)
    strategy = MethodStrategy(method_of("fedavg"), mlp, nodes=6, out=tmp_path / "run")
    strategy.start(made.grid, num_rounds=4)
    lines = Record(tmp_path / "run").lines()
    assert [line["answered"] for line in lines] == [5] * 4
    assert all(line["clients"]["4"].get("silent") or line.get("silent") == [4] for line in lines)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"min_replies": 0.0}, r"Waiting\.min_replies must be > 0 and <= 1, got 0\.0"),
        ({"min_replies": 1.5}, r"Waiting\.min_replies must be > 0 and <= 1, got 1\.5"),
        ({"min_replies": math.nan}, r"Waiting\.min_replies must be > 0 and <= 1, got nan"),
        ({"min_replies": "most"}, r"Waiting\.min_replies must be a number, got 'most'"),
        ({"grace": -1.0}, r"Waiting\.grace must be >= 0 and < 1e\+09, got -1\.0"),
        ({"timeout": 0}, r"Waiting\.timeout must be > 0 and < 1e\+09, got 0"),
    ],
    ids=str,
)
def test_wrong_settings_are_told(how: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        MethodStrategy(FedAvg(), mlp, **how)


def test_a_run_config_has_them_too() -> None:
    terms = MethodStrategy.from_config(
        {"method": "fedavg", "min-replies": 0.5, "grace": 4, "timeout": 60}, mlp
    ).settings
    assert (terms.waiting.min_replies, terms.waiting.grace, terms.waiting.timeout) == (
        0.5,
        4.0,
        60.0,
    )
