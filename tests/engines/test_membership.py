"""Clients that come, go, come back and fall silent, through the engine: who is asked, who is served, what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

import small
from coterie.core import Assignment, Cohort, Federation, Plan, Replies, Round, train_from
from coterie.data.attendance import Attendance, AttendanceSettings
from coterie.engines.rounds import rounds
from coterie.methods import CFL, FedAvg
from coterie.records.round_line import line_of_round
from coterie.settings import SettingError


def drawn(clients: Iterable[int], seed: int, ids: Mapping[str, int] = {}, **how: Any) -> Attendance:
    return AttendanceSettings(**how).draw(list(clients), seed, ids)


def play(method: Any, attendance: Attendance, count: int, **how: Any) -> list[Round]:
    how = {"workers": 1, **how}
    return list(rounds(method, small.world(attendance=attendance), rounds=count, **how))


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A method that admits nobody."""

    name: ClassVar[str] = "closed"

    def init(self, federation: Federation) -> Any:
        return (federation.clients, federation.draw(0))

    def plan(self, state: Any, cohort: Cohort) -> Plan:
        return train_from(state[1][None], dict.fromkeys(cohort.present, 0), need="mean")

    def step(self, state: Any, replies: Replies) -> Any:
        return state

    def assignment(self, state: Any) -> Assignment:
        return Assignment(models=state[1][None], row=dict.fromkeys(state[0], 0), groups=(state[0],))

    def explain(self, state: Any) -> Any:
        return ()


def test_a_newcomer_is_not_there_before_its_round() -> None:
    done = play(FedAvg(), Attendance(joins={7: 3}), 4)
    assert [one.asked for one in done] == [3, 3, 4, 4]
    assert [sorted(one.scores or {}) for one in done] == [[2, 3, 11]] * 2 + [[2, 3, 7, 11]] * 2
    assert [[n.kind for n in one.notes] for one in done] == [[], [], ["arrive"], []]
    # Until then the run is that of the other three.
    three = small.world()
    alone = replace(three, clients={c: d for c, d in three.clients.items() if c != 7})
    others = list(rounds(FedAvg(), alone, rounds=2, workers=1))
    assert torch.equal(done[1].assignment.models, others[1].assignment.models)


def test_who_is_away_is_not_asked_and_keeps_its_place() -> None:
    done = play(FedAvg(), Attendance(away={7: [(2, 3)]}), 4)
    assert [one.asked for one in done] == [4, 3, 3, 4]
    assert all(one.assignment.groups == ((2, 3, 7, 11),) for one in done)
    assert [one.position.missed for one in done] == [{}, {7: 1}, {7: 2}, {}]
    assert [one.absent for one in done] == [{}, {7: 2}, {7: 2}, {}]
    assert ["absent" in line_of_round(one) for one in done] == [False, True, True, False]


@pytest.mark.parametrize("patience", [1, 4])
def test_who_is_away_for_long_is_retired_and_admitted_on_return(patience: int) -> None:
    back = 2 + patience + 3
    done = play(FedAvg(), Attendance(away={7: [(2, back - 1)]}, patience=patience), back + 1)
    there = [7 in one.assignment.row for one in done]
    assert there == [True] * patience + [False] * 4 + [True] * 2
    rounds_missed = "4 rounds" if patience == 4 else "1 round"
    assert [(n.kind, n.text) for one in done for n in one.notes] == [
        ("leave", f"client 7 counts as away: no answer in {rounds_missed}"),
        ("arrive", f"client 7 joined in round {back}"),
    ]
    assert done[-1].position.missed == {}


def test_silent_clients_cost_the_way_down_alone() -> None:
    (loud,) = play(FedAvg(), Attendance(), 1)
    quiet = play(FedAvg(), Attendance(silent=0.5), 8)
    assert {one.asked for one in quiet} == {4}
    assert 0 < sum(one.answered for one in quiet) < 32
    for one in quiet:
        assert one.bytes_down == loud.bytes_down
        assert one.bytes_up == loud.bytes_up * one.answered // 4


def test_silence_depends_on_the_client_and_the_exchange_alone() -> None:
    attendance = Attendance(silent=0.3)
    draws = [attendance.answers(c, e, 5) for c in range(50) for e in range(100)]
    assert 0.68 < sum(draws) / len(draws) < 0.72
    assert draws == [attendance.answers(c, e, 5) for c in range(50) for e in range(100)]
    assert draws != [attendance.answers(c, e, 6) for c in range(50) for e in range(100)]


def test_the_last_client_is_waited_for() -> None:
    spell: Mapping[int, Any] = {c: [(2, 40)] for c in (2, 3, 7, 11)}
    done = play(FedAvg(), Attendance(away=spell), Attendance().patience + 3)
    assert done[-1].assignment.groups == ((2, 3, 7, 11),)
    assert done[-1].asked == 0


def test_a_method_without_admit_takes_no_newcomers_and_waits_for_those_away() -> None:
    with pytest.raises(
        SettingError, match="closed cannot take newcomers: it has no methods admit and retire"
    ):
        play(Closed(), Attendance(joins={7: 2}), 1)
    done = play(Closed(), Attendance(away={7: [(2, 30)]}), Attendance().patience + 3)
    assert 7 in done[-1].assignment.row


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_with_comings_and_goings_may_stop_anywhere(workers: int) -> None:
    attendance = Attendance(joins={11: 4}, away={3: [(2, 14)]}, silent=0.3)
    method = CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1)
    whole = play(method, attendance, 18)
    for stop in (1, 3, 6, 12, 15):
        rest = play(method, attendance, 18, start=whole[stop - 1].position, workers=workers)
        assert torch.equal(rest[-1].assignment.models, whole[-1].assignment.models)
        assert rest[-1].assignment.groups == whole[-1].assignment.groups
        assert rest[-1].position.missed == whole[-1].position.missed


def test_attendance_is_drawn_by_seed_and_holds_different_clients() -> None:
    made = drawn(range(20), 0, newcomers=3, join_round=5, leavers=2, leave=(7, 9))
    assert made == drawn(range(20), 0, newcomers=3, join_round=5, leavers=2, leave=(7, 9))
    assert made != drawn(range(20), 1, newcomers=3, join_round=5, leavers=2, leave=(7, 9))
    assert (len(made.joins), len(made.away)) == (3, 2)
    assert not set(made.joins) & set(made.away)
    assert len(made.founders(range(20))) == 17


def test_newcomers_and_leavers_by_name_and_the_others_by_number() -> None:
    ids = {name: i for i, name in enumerate("ABCDEF")}
    how: dict[str, Any] = {"join_round": 5, "leave": (7, 9), "ids": ids}
    made = drawn(range(6), 0, newcomers=("C", "A"), leavers=("A",), **how)
    assert (made.joins, made.away) == ({0: 5, 2: 5}, {0: [(7, 9)]})
    for seed in range(20):
        made = drawn(range(6), seed, newcomers=("B", "E"), leavers=3, **how)
        assert list(made.joins) == [1, 4]
        assert len(made.away) == 3
        assert not {1, 4} & set(made.away)
        made = drawn(range(6), seed, newcomers=3, leavers=("B", "E"), **how)
        assert len(made.joins) == 3
        assert not {1, 4} & set(made.joins)
    with pytest.raises(
        SettingError,
        match=r"Scenario\.leavers has client 'a', which does not exist; did you mean A\?$",
    ):
        drawn(range(6), 0, leavers=("a",), **how)
    with pytest.raises(SettingError, match=r"'North', which does not exist; did you mean Nord\?"):
        drawn(range(1), 0, newcomers=("North",), ids={"Nord": 0})
    with pytest.raises(
        SettingError, match=r"'A', which does not exist: the clients of this data set have no names"
    ):
        drawn(range(6), 0, newcomers=("A",))
    with pytest.raises(
        SettingError, match=r"newcomers \('A', 'B', 'C'\) and leavers 3 must leave at least one"
    ):
        drawn(range(6), 0, newcomers=("A", "B", "C"), leavers=3, **how)


@pytest.mark.parametrize(
    ("how", "says"),
    [({"newcomers": 15, "leavers": 5}, "Scenario.newcomers 15 and leavers 5 must leave at least one of the 20 clients"),
     ({"leavers": 2, "leave": (9, 7)}, r"Scenario.leave must be the first and the last round of absence, got \[9, 7\]"),
     ({"leavers": 2, "leave": (9,)}, r"Scenario.leave must be the first and the last round of absence, got \[9\]")],
)  # fmt: skip
def test_impossible_attendance_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        drawn(range(20), 0, **how)
