"""What is recorded is not run again, whatever stopped the run before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.engines.workers import Hardware
from coterie.methods import FedAvg
from coterie.records.codec import DamagedError
from coterie.settings import UserError
from papers.numbers import found, picked, spread, stays_above, values
from papers.running import (
    carry_out,
    check_data,
    complete_seeds,
    outcome,
    rounds_of,
    world_of,
)
from papers.store import Rows
from papers.study import Claim, Resources, Row, Scale, Study, key, verdict

SCALE = Scale(
    name="small", about="", seconds=1.0, seeds=2,
    tables=({"rounds": 3, "each": {"a": [1, 2], "b": [0.5]}}, {"rounds": 4, "a": 9, "b": 0.1}),
)  # fmt: skip


class Counting:
    """A measure that counts its calls, and stops before one of them as Ctrl-C would."""

    def __init__(self, stop: int | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.stop = stop

    def __call__(self, on: Resources, **cell: Any) -> dict[str, Any]:
        if len(self.calls) == self.stop:
            raise KeyboardInterrupt
        self.calls.append(cell)
        return {"sum": cell["a"] + cell["b"] + cell["seed"], "nan": float("nan")}


def study(measure: Counting) -> Study:
    def claims(rows: Any) -> tuple[Claim, ...]:
        return (
            Claim(
                what="rows", printed="6", ours=str(len(rows)), rule="equal", holds=len(rows) == 6
            ),
        )

    return Study(
        name="cfl/none", where="", what="", measure=measure, claims=claims, figure=lambda rows: None
    )  # type: ignore


def test_cells_are_every_combination_seed_by_seed() -> None:
    one = [
        {"rounds": 3, "a": 1, "b": 0.5},
        {"rounds": 3, "a": 2, "b": 0.5},
        {"rounds": 4, "a": 9, "b": 0.1},
    ]
    assert SCALE.cells() == [{**cell, "seed": seed} for seed in (0, 1) for cell in one]
    assert SCALE.cells(1) == [{**cell, "seed": 0} for cell in one]


def test_a_table_of_cells_may_have_fewer_seeds_than_its_scale(tmp_path: Path) -> None:
    long, rows = {"rounds": 9, "a": 1, "b": 0.5}, Rows(tmp_path / "rows.jsonl")
    scale = replace(SCALE, tables=(*SCALE.tables, {**long, "seeds": 1}))
    assert scale.cells(1) == [*SCALE.cells(1), {**long, "seed": 0}]
    assert scale.cells() == [*scale.cells(1), *SCALE.cells()[3:]]
    assert complete_seeds(scale, rows) == 0
    list(carry_out(study(Counting()), scale, rows, Resources()))
    assert complete_seeds(scale, rows) == 2
    assert complete_seeds(replace(scale, tables=scale.tables[-1:]), rows) == 1


def test_what_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    rows, first, second, third = (
        Rows(tmp_path / "deep" / "rows.jsonl"),
        Counting(stop=2),
        Counting(),
        Counting(),
    )
    with pytest.raises(KeyboardInterrupt):
        list(carry_out(study(first), SCALE, rows, Resources()))
    assert outcome(study(first), SCALE, rows) is None
    assert len(list(carry_out(study(second), SCALE, rows, Resources()))) == 4
    assert first.calls + second.calls == SCALE.cells()
    assert not list(carry_out(study(third), SCALE, rows, Resources()))
    # More seeds, or another value of a setting, are more cells; the others stay.
    assert len(list(carry_out(study(third), SCALE, rows, Resources(), seeds=3))) == 3
    longer = replace(SCALE, tables=({"rounds": 5, "a": 1, "b": 0.5}, SCALE.tables[1]))
    assert [
        row["cell"]["rounds"] for row in carry_out(study(third), longer, rows, Resources())
    ] == [5, 5]
    said = outcome(study(third), SCALE, rows)
    assert said is not None
    assert (said.verdict, said.seeds) == ("reproduced, 1 of 1", 2)
    assert [row["found"]["sum"] for row in said.rows] == [1.5, 2.5, 9.1, 2.5, 3.5, 10.1]
    assert said.rows[0]["found"]["nan"] is None


@pytest.mark.parametrize("torn", [b'{"cell": {"a"', b'{"cell": {}, "found": {}, "seconds": 0}'])
def test_a_row_that_was_cut_short_is_measured_again(tmp_path: Path, torn: bytes) -> None:
    rows = Rows(tmp_path / "rows.jsonl")
    list(carry_out(study(Counting()), SCALE, rows, Resources(), seeds=1))
    whole = rows.path.read_bytes()
    rows.path.write_bytes(whole + torn)
    assert len(rows.known()) == 3
    rows.append({"cell": {"a": 7}, "found": {"b": 1}, "seconds": 0.1})
    assert (
        rows.path.read_bytes() == whole + b'{"cell": {"a": 7}, "found": {"b": 1}, "seconds": 0.1}\n'
    )


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"cell": {}}\n', b"[1]\n"])
def test_a_damaged_row_is_an_error(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b'{"cell": {}, "found": {}, "seconds": 0}\n')
    with pytest.raises(DamagedError, match=r"line 1 of .*rows\.jsonl is not a row of a study"):
        Rows(path).known()


def test_the_data_set_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mnist"):
        check_data(replace(SCALE, needs=("digits", "mnist")), str(tmp_path))


def test_progress_is_reported_each_round() -> None:
    said: list[tuple[int, int]] = []
    on = Resources(
        hardware=Hardware(workers=1),
        progress=lambda last, rounds: said.append((last.number, rounds)),
    )
    world = world_of(on, {"name": "synthetic/groups"}, {"epochs": 1}, 0)
    assert [done.number for done in rounds_of(FedAvg(), world, on, 3, 0)] == [1, 2, 3]
    assert said == [(1, 3), (2, 3), (3, 3)]


def test_verdicts_name_what_does_not_hold() -> None:
    claim = Claim(what="a", printed="1", ours="1", rule="equal", holds=True)
    wrong, unknown = replace(claim, what="b", holds=False), replace(claim, what="c", holds=None)
    assert verdict([claim, unknown]) == "reproduced, 1 of 1"
    assert (
        verdict([wrong, claim, replace(wrong, what="d")]) == "reproduced in part, 1 of 3: not b; d"
    )
    assert verdict([wrong]) == "not reproduced, 0 of 1: not b"
    assert verdict([unknown]) == "undecided"


def test_numbers_of_rows() -> None:
    rows: list[Row] = [
        {
            "cell": {"size": size, "seed": seed},
            "found": {"gap": {"mean": size + seed}, "curve": [seed, 1]},
        }
        for size in (10, 20)
        for seed in (0, 1, 2)
    ]
    assert values(rows, "size") == [10, 20]
    assert [row["cell"]["seed"] for row in picked(rows, size=20)] == [0, 1, 2]
    assert found(picked(rows, seed=0), "curve").tolist() == [[0.0, 1.0], [0.0, 1.0]]
    # 10, 11 and 12: the mean is 11, the standard deviation 1, and half of the interval 4.3027 /
    # sqrt(3) = 2.48.
    assert spread(picked(rows, size=10), "gap", "mean") == "11.00 ± 2.48"
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1}) != key({"a": 1, "b": 2.5})
    assert [stays_above(points) for points in ([1, 1], [0, 1], [1, 0], [1, 0, 2], [])] == [
        0,
        1,
        None,
        2,
        None,
    ]
    assert stays_above(np.array([0.2, 0.4]), level=0.3) == 1


def test_rows_in_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match="is not a regular file"):
        Rows(tmp_path / "rows.jsonl").known()
