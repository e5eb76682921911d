"""Splits by time: no example of an earlier part is later than, or shares a value with, one of a later part."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from coterie import from_frame, from_lists
from coterie import training as local
from coterie.cli import main
from coterie.data.scenario import SCENARIOS
from coterie.data.time_order import in_time, latest, spans
from coterie.data.times import Times
from coterie.data.windows import overlap
from coterie.data.world import ClientData, whole
from coterie.records.record import Record
from coterie.report.contest import Contest
from coterie.report.explain import words as explained
from coterie.report.ranking import contests
from coterie.report.trials import read
from coterie.report.verdict import verdict
from coterie.report.words import by_time
from coterie.runs.facts import digest
from coterie.settings import SettingError, UserError

PARTS = ("train", "validation", "test")


def panel(clients: int = 3, times: int = 40, seed: int = 0) -> dict[str, Any]:
    """A row per client and year, in random order; ``a`` is the year as well."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(clients * times)
    return {
        "site": [f"site {one}" for one in order // times],
        "year": 1900 + order % times,
        "a": (order % times).astype(float),
        "y": rng.normal(size=len(order)),
    }


def values_of(data: ClientData, column: int = 0) -> list[list[float]]:
    """A column of the inputs of each part, sorted."""
    return [
        sorted(part.inputs[part.index, column].tolist())
        for part in (data.train, data.validation, data.test)
    ]


def brute_force(ends: list[int], starts: list[int], parts: list[list[int]]) -> None:
    """Every example of an earlier part ends before every example of a later one begins, and no example is in two."""
    for early in range(3):
        for late in range(early + 1, 3):
            assert all(ends[i] < starts[j] for i in parts[early] for j in parts[late])
            assert not set(parts[early]) & set(parts[late])


@pytest.mark.parametrize("seed", range(3))
def test_later_rows_test(seed: int) -> None:
    world = from_frame(panel(), client="site", target="y", order="year", seed=seed)
    assert world.about["features"] == ["a"]
    assert world.about["order"] == {"by": "year", "test": 0.1, "left_out": 0}
    for data in world.clients.values():
        assert values_of(data) == [list(range(32)), list(range(32, 36)), list(range(36, 40))]


def test_rows_are_divided_at_random_without_an_order() -> None:
    """The leak that an order mends: training rows are later than test rows."""
    data = from_frame({**panel(), "year": panel()["a"]}, client="site", target="y").clients[0]
    assert max(values_of(data)[0]) > min(values_of(data)[2])


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 12), min_size=5, max_size=40),
    st.integers(0, 4),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 5),
)
def test_parts_by_brute_force(
    times: list[int], gap: int, shared: int, tested: bool, subjects: int
) -> None:
    made = spans(Times(np.array(times), False), gap, shared)
    both = torch.stack([made["starts"], made["ends"]], 1).numpy()
    people = np.arange(len(times)) % subjects if subjects else None
    try:
        parts = [part.tolist() for part in in_time(both, (2, 3 * tested), people, "site 0")]
    except UserError:
        return
    brute_force(both[:, 1].tolist(), both[:, 0].tolist(), parts)
    train, validation, test = parts
    assert train
    assert validation
    assert bool(test) == tested
    later = test or validation
    assert all(times[i] < times[j] - gap for i in train for j in later)
    distinct = sorted(set(times))
    assert all(
        distinct.index(times[j]) - distinct.index(times[i]) > shared for i in train for j in later
    )
    if people is not None:
        known = [set(people[part]) for part in parts]
        assert len(set.union(*known)) == sum(map(len, known))


def test_an_even_series_is_cut_as_shares_say() -> None:
    """A gap of more than two years leaves out two rows at each cut, from the earlier part."""
    world = from_frame(panel(times=100), client="site", target="y", order="year", gap=2)
    assert world.about["order"] == {
        "by": "year",
        "gap": "2",
        "test": round(10 / 96, 3),
        "left_out": 3 * 4,
    }
    for data in world.clients.values():
        assert values_of(data) == [list(range(76)), list(range(78, 88)), list(range(90, 100))]


def test_rows_of_one_time_are_in_one_part() -> None:
    rows = {
        "site": ["a"] * 60,
        "year": np.arange(60) // 6,
        "x": np.arange(60.0) // 6,
        "y": np.arange(60.0) / 7,
    }
    parts = values_of(from_frame(rows, client="site", target="y", order="year").clients[0])
    assert parts == [sorted([*range(8)] * 6), [8] * 6, [9] * 6]


def test_a_client_at_too_few_times_is_refused() -> None:
    rows = {
        "site": ["a"] * 60,
        "year": np.arange(60) // 30,
        "x": np.zeros(60),
        "y": np.arange(60.0) / 7,
    }
    with pytest.raises(
        UserError, match="a has 60 examples at 2 different times, too few for 3 parts"
    ):
        from_frame(rows, client="site", target="y", order="year")
    with pytest.raises(UserError, match="use a smaller gap"):
        from_frame(panel(), client="site", target="y", order="year", gap=30)


DAYS = pd.date_range("2024-01-01", periods=40)


@pytest.mark.parametrize(
    "column",
    [
        DAYS,
        DAYS.tz_localize("Europe/Oslo"),
        [str(day.date()) for day in DAYS],
        [f"{day.date()}T12:00:00+02:00" for day in DAYS],
        [day.date() for day in DAYS],
        [day.to_pydatetime() for day in DAYS],
        DAYS.to_period("D"),
        DAYS.to_numpy().astype("datetime64[D]"),
    ],
    ids=["pandas", "zone", "text", "text with zone", "date", "datetime", "period", "numpy"],
)
def test_dates_of_all_kinds(column: Any) -> None:
    rows = {"site": ["a"] * 40, "day": column, "x": np.arange(40.0), "y": np.arange(40.0) / 7}
    for frame in (rows, pd.DataFrame(rows)):
        parts = values_of(
            from_frame(frame, client="site", target="y", order="day", gap="1D").clients[0]
        )
        assert parts == [list(range(30)), list(range(31, 35)), list(range(36, 40))]


def test_a_frame_of_polars() -> None:
    days = [dt.date(2024, 1, 1) + dt.timedelta(day) for day in range(40)]
    frame = pl.DataFrame(
        {"site": ["a"] * 40, "day": days, "x": np.arange(40.0), "y": np.arange(40.0) / 7}
    )
    parts = values_of(from_frame(frame, client="site", target="y", order="day").clients[0])
    assert parts == [list(range(32)), list(range(32, 36)), list(range(36, 40))]


def test_an_array_orders_a_frame() -> None:
    rows = panel()
    years = rows.pop("year")
    one, two = (
        from_frame(panel(), client="site", target="y", order="year"),
        from_frame(rows, client="site", target="y", order=years),
    )
    assert digest(one) == digest(two)
    assert two.about["order"]["by"] == "time"
    with pytest.raises(UserError, match="order must have a time for each of 120 rows, got 3"):
        from_frame(rows, client="site", target="y", order=years[:3])


def test_the_order_can_be_a_feature() -> None:
    world = from_frame(panel(), client="site", target="y", order="year", features=["a", "year"])
    assert world.about["features"] == ["a", "year"]
    assert world.about["order"]["by"] == "year"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"order": "yaer"}, "has no column 'yaer'.*did you mean year"),
        ({"order": "site"}, "the order 'site' is the client, a target or the subject"),
        ({"order": "y"}, "the order 'y' is the client, a target or the subject"),
        ({"gap": 3}, "gap 3 needs order"),
        ({"order": "year", "gap": -1}, "gap must be >= 0, got -1"),
        ({"order": "year", "gap": "7D"}, "gap must be a number, as the order holds, got '7D'"),
        (
            {"order": "year", "gap": "soon"},
            "gap must be a number, or for dates a duration such as 7D",
        ),
        ({"order": "year", "gap": "2M"}, "months and years differ in length: use days"),
        ({"order": "year", "gap": True}, "gap must be a number"),
        ({"order": "year", "gap": float("nan")}, "gap must be >= 0"),
    ],
)
def test_a_wrong_order_or_gap_is_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        from_frame(panel(), client="site", target="y", **settings)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (["spring"] * 120, "cannot be ordered in time: 'spring' in row 1"),
        (["31/12/2024"] * 120, "write dates as 2024-03-31"),
        ([True] * 120, "must hold numbers or dates to be the order, got true and false"),
        ([1.0, np.nan] * 60, "60 missing values, the first in row 2"),
        (["2024-01-01", None] * 60, "60 missing values, the first in row 2"),
        ([np.inf, 1.0] * 60, "must hold finite times, got inf"),
        ([dt.date(2024, 1, 1), 3] * 60, "mixes numbers and dates"),
        (
            ["2024-01-01", "2024-01-01T00:00+00:00"] * 60,
            "mixes dates with a time zone and dates without",
        ),
    ],
)
def test_a_column_that_has_no_order_is_one_sentence(column: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=f"the column when.*{words}"):
        from_frame(
            {**panel(), "when": column}, client="site", target="y", features=["a"], order="when"
        )


def test_dates_need_a_duration() -> None:
    rows = {"site": ["a"] * 40, "day": DAYS, "x": np.arange(40.0), "y": np.arange(40.0) / 7}
    with pytest.raises(SettingError, match="gap must be a duration such as 7D"):
        from_frame(rows, client="site", target="y", order="day", gap=7)
    worlds = [
        from_frame(rows, client="site", target="y", order="day", gap=gap)
        for gap in (
            "2D",
            "48h",
            "2 D",
            "2880min",
            dt.timedelta(2),
            np.timedelta64(2, "D"),
            pd.Timedelta("2D"),
        )
    ]
    assert len({digest(world) for world in worlds}) == 1


# ----------------------------------------------------------------------------------------------------
# Windows of a series.


def windows(
    values: np.ndarray, past: int, future: int, step: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    cut = torch.from_numpy(values.astype("f")).unfold(0, past + future, step)
    return cut[:, :past].clone(), cut[:, past:].clone()


def walk(length: int = 400, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=length).cumsum()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10, 11, 12, 13])
@pytest.mark.parametrize("form", ["plain", "channel last", "channel first", "newest first"])
def test_overlapping_windows_are_recognised(step: int, form: str) -> None:
    """By brute force: how many of the next windows have a step of the series in common, inputs and targets together."""
    x, y = windows(walk(), 10, 2, step)
    x = {
        "plain": x,
        "channel last": x[..., None],
        "channel first": x[:, None],
        "newest first": x.flip(1),
    }[form]
    expected = sum(
        1 for other in range(1, 20) if set(range(12)) & set(range(other * step, other * step + 12))
    )
    visible = step < 10 or (
        form == "plain" and step < 12
    )  # otherwise inputs share nothing: their form does not show time
    assert overlap(x, y) == (expected if visible else 0)


def test_other_examples_are_no_windows() -> None:
    rng = np.random.default_rng(0)
    images = torch.zeros(50, 1, 12, 12)
    images[:, :, 4:8, 4:8] = torch.from_numpy(rng.random((50, 1, 4, 4)).astype("f"))
    tables = torch.from_numpy(rng.normal(size=(50, 6)).astype("f"))
    codes = torch.from_numpy(rng.integers(0, 2, (50, 5)))
    labels = torch.zeros(50, dtype=torch.int64)
    for inputs in (images, tables, codes, torch.zeros(50, 4), {"a": tables, "b": (codes,)}):
        assert overlap(inputs, labels) == 0


@pytest.mark.parametrize("form", ["list", "mapping", "one array", "keys", "starts and ends"])
def test_windows_over_a_cut_are_left_out(form: str) -> None:
    """No value of the series is on both sides of a cut."""
    x, y = windows(walk(), 10, 2)
    order = np.arange(len(x))
    clients: Any = {"a": (x, y), "b": (x + 1, y + 1)}
    settings: dict[str, Any] = {
        "list": {"order": [order, order]},
        "mapping": {"order": {"b": order, "a": order}},
        "one array": {"order": order},
        "keys": {},
        "starts and ends": {"order": np.stack([order, order + 11], 1)},
    }[form]
    if form == "keys":
        clients = {
            name: {"x": one, "y": two, "order": order} for name, (one, two) in clients.items()
        }
    world = from_lists(clients, model=lambda: torch.nn.Linear(10, 2), **settings)
    for data in world.clients.values():
        seen = []
        for part in (data.train, data.validation, data.test):
            inputs, targets = part.batch(slice(None))  # type: ignore[arg-type]
            seen.append(set(inputs.flatten().tolist()) | set(targets.flatten().tolist()))
        assert len(set.union(*seen)) == sum(map(len, seen))
        assert [len(getattr(data, part)) for part in PARTS] == [len(x) - 2 * 39 - 2 * 11, 39, 39]
    assert world.about["order"]["left_out"] == 2 * 2 * 11


def test_windows_in_random_order_are_recognised() -> None:
    x, y = windows(walk(), 10, 2)
    mixed = np.random.default_rng(0).permutation(len(x))
    data = from_lists(
        [(x[mixed], y[mixed])], order=[mixed], model=lambda: torch.nn.Linear(10, 2)
    ).clients[0]
    assert len(data.train) == len(x) - 2 * 39 - 2 * 11


def test_windows_without_an_order_get_a_hint() -> None:
    x, y = windows(walk(), 10, 2)
    (hint,) = from_lists([(x, y)], model=lambda: torch.nn.Linear(10, 2)).hints
    assert "overlapping windows, each shares values with the next 11" in hint
    assert not from_lists([(x, y, x + 99, y)], model=lambda: torch.nn.Linear(10, 2)).hints
    assert not from_lists(
        [(x, y)], order=np.arange(len(x)), model=lambda: torch.nn.Linear(10, 2)
    ).hints


# ----------------------------------------------------------------------------------------------------
# Other ways in.


def test_a_table_in_a_file(tmp_path: Path) -> None:
    rows = pd.DataFrame({**panel(), "day": [DAYS[int(one)] for one in panel()["a"]]}).drop(
        columns="year"
    )
    rows.to_csv(tmp_path / "t.csv", index=False)
    rows.to_parquet(tmp_path / "t.parquet")
    scenario = replace(SCENARIOS["table/clients"], client="site", target="y", order="day", gap="1D")
    for name in ("t.csv", "t.parquet"):
        world = scenario.build(0, tmp_path / name)
        assert world.about["order"] == {
            "by": "day",
            "gap": "1D",
            "test": round(4 / 38, 3),
            "left_out": 6,
        }
        assert world.about["features"] == ["a"]
        for data in world.clients.values():
            assert values_of(data) == [list(range(30)), list(range(31, 35)), list(range(36, 40))]
        listed = replace(SCENARIOS["table/clients"], client="site", target="y", columns=("a",))
        assert listed.build(0, tmp_path / name).hints == (HINT.format("day"),)
        with pytest.raises(
            UserError, match=r"the column day.*order='day' would test on later rows"
        ):
            replace(listed, columns=()).build(0, tmp_path / name)


def test_files_of_arrays(tmp_path: Path) -> None:
    x = np.arange(40, dtype="f")[:, None]
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2, order=DAYS.to_numpy())
    scenario = replace(SCENARIOS["folder/clients"], gap="1D")
    data = scenario.build(0, tmp_path).clients[0]
    assert values_of(data) == [list(range(30)), list(range(31, 35)), list(range(36, 40))]
    np.savez(tmp_path / "b.npz", x=x, y=np.arange(40) % 2)
    with pytest.raises(UserError, match="client b has no order, and other clients have one"):
        scenario.build(0, tmp_path)
    (tmp_path / "a.npz").unlink()
    with pytest.raises(UserError, match="gap '1D' needs an order: no file"):
        scenario.build(0, tmp_path)


def test_a_data_set_that_is_read_item_by_item() -> None:
    items = TensorDataset(torch.arange(40.0)[:, None], torch.arange(40) % 2)
    for given_items in ({"order": [np.arange(40)]}, {}):
        client: Any = items if given_items else {"train": items, "order": np.arange(40)}
        data = from_lists([client], model=lambda: torch.nn.Linear(1, 2), **given_items).clients[0]
        assert [getattr(data, part).index.tolist() for part in PARTS] == [
            [*range(32)],
            [*range(32, 36)],
            [*range(36, 40)],
        ]


def test_settings_of_other_scenarios() -> None:
    for name, settings, words in (
        ("digits/iid", {"order": "year"}, r"Scenario\.order is for the data set table"),
        ("digits/iid", {"gap": 3}, r"Scenario\.gap is for the data sets folder and table"),
        ("table/clients", {"gap": 3}, r"Scenario\.gap 3\.0 needs Scenario\.order"),
        (
            "table/clients",
            {"order": "year", "gap": "soon"},
            "gap must be a number, or for dates a duration",
        ),
    ):
        with pytest.raises(SettingError, match=words):
            replace(SCENARIOS[name], **settings)


X = np.arange(40, dtype="f")[:, None]
GIVEN = {
    "x": X,
    "y": np.arange(40) % 2,
    "x_test": X[:5] + 50,
    "y_test": np.arange(5) % 2,
    "order": np.arange(40),
}


def test_given_test_parts_must_be_later() -> None:
    build = lambda **more: from_lists([{**GIVEN, **more}], gap=2)  # noqa: E731
    (hint,) = build().hints
    assert (
        hint
        == "client client 0 has test examples without order_test: whether they are later is not known"
        or "client 0" in hint
    )
    data = build(order_test=np.arange(42, 47)).clients[0]
    assert values_of(data)[:2] == [list(range(34)), list(range(36, 40))]
    assert not build(order_test=np.arange(42, 47)).hints
    with pytest.raises(
        UserError,
        match="1 example of order_test are not later by more than the gap 2 than all of order",
    ) as error:
        build(order_test=np.arange(41, 46))
    assert "which ends at 39, while order_test begins at 41" in str(error.value)
    with pytest.raises(
        UserError, match="order_test must hold a time for each of 5 examples, got 4"
    ):
        build(order_test=np.arange(50, 54))
    with pytest.raises(UserError, match="must both hold dates, or both numbers"):
        from_lists([{**GIVEN, "order_test": DAYS[:5]}])


@pytest.mark.parametrize(
    ("client", "settings", "words"),
    [
        ({"x": X, "y": X[:, 0] % 2}, {"order": "year"}, "from_frame takes a column's name"),
        (
            {"x": X, "y": X[:, 0] % 2},
            {"order": [np.arange(40)] * 2},
            "one array for each of 1 client, got 2",
        ),
        (
            {"x": X, "y": X[:, 0] % 2},
            {"order": np.arange(39)},
            "order must hold a time for each of 40 examples, got 39",
        ),
        ({"x": X, "y": X[:, 0] % 2}, {"order": {"b": np.arange(40)}}, "is not in both"),
        ({"x": X, "y": X[:, 0] % 2}, {"gap": 1}, "gap 1 needs an order"),
        ({"x": X, "y": X[:, 0] % 2, "order": X[:, 0]}, {"order": np.arange(40)}, "give it once"),
        ({"x": X, "y": X[:, 0] % 2, "order_test": X[:, 0]}, {}, "has order_test and no order"),
        (
            {"x": X, "y": X[:, 0] % 2, "order": X[:, 0], "order_test": X[:, 0]},
            {},
            "examples that it does not have",
        ),
    ],
)
def test_a_wrong_order_of_arrays_is_one_sentence(
    client: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        from_lists({"a": client}, **settings)


# ----------------------------------------------------------------------------------------------------
# Subjects, and examples that a method holds out.


def test_rows_of_a_subject_that_comes_again_are_left_out() -> None:
    """Each patient comes in five successive weeks, so those who come around a cut are in the later part alone."""
    week = np.arange(200)
    rows = {
        "site": ["a"] * 200,
        "week": week,
        "patient": week // 5,
        "x": week.astype(float),
        "y": np.arange(200) / 7,
    }
    data = from_frame(
        rows,
        client="site",
        target="y",
        order="week",
        subject="patient",
        train=0.78,
        validation=0.11,
    ).clients[0]
    assert values_of(data) == [list(range(150)), list(range(153, 175)), list(range(178, 200))]


def test_subjects_who_are_always_there_are_refused() -> None:
    rows = {
        "site": ["a"] * 200,
        "week": np.arange(200),
        "patient": np.arange(200) % 9,
        "x": np.zeros(200),
        "y": np.ones(200) / 3,
    }
    with pytest.raises(
        UserError, match="leave out subject: rows of a subject that a later part has are left out"
    ):
        from_frame(rows, client="site", target="y", order="week", subject="patient")


@given(
    st.lists(st.integers(0, 20), max_size=40),
    st.floats(0.01, 1),
    st.integers(0, 5),
    st.integers(0, 4),
)
def test_held_out_examples_are_the_latest(
    times: list[int], share: float, gap: int, subjects: int
) -> None:
    """Race, tuned and auto hold out examples of the training part; a gap applies to these too."""
    made = spans(Times(np.array(times, np.int64), False), gap) if times else {}
    both = (
        torch.stack([made["starts"], made["ends"]], 1)
        if times
        else torch.zeros(0, 2, dtype=torch.int64)
    )
    people = torch.arange(len(times)) % subjects if subjects else None
    empty = whole(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    train = whole(
        torch.zeros(len(times), 1), torch.zeros(len(times), dtype=torch.int64), people, both
    )
    data = ClientData(train=train, validation=empty, test=empty)
    held = local.held_out(data, share, 0, 3)
    if held is data:
        return
    late, early = held.validation.index.tolist(), held.train.index.tolist()
    assert 0 < len(late) <= len(times) / 2
    assert early
    assert all(times[i] < times[j] - gap for i in early for j in late)
    assert max(times) in [times[j] for j in late]
    if people is not None:
        assert not set(people[late].tolist()) & set(people[early].tolist())
    assert torch.equal(held.train.spans, both[early])  # type: ignore[arg-type]


def test_a_series_holds_out_its_last_part() -> None:
    made = spans(Times(np.arange(100), False), 3)
    found = latest(torch.stack([made["starts"], made["ends"]], 1).numpy(), 50, 10, None)
    assert found is not None
    assert [part.tolist() for part in found] == [list(range(90, 100)), list(range(87))]


def test_another_order_is_another_world() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("f"), np.arange(40) % 2
    parts = {"x": x, "y": y, "x_validation": x, "y_validation": y, "x_test": x, "y_test": y}
    known = {
        digest(from_lists([{**parts, **more}]))
        for more in ({}, {"order": np.arange(40)}, {"order": np.arange(40) // 2})
    }
    assert len(known) == 3


def test_other_clients_change_no_split() -> None:
    rows = panel()
    before = from_frame(rows, client="site", target="y", order="year")
    more = {
        "site": ["site 9"] * 40,
        "year": 1000 + np.arange(40),
        "a": np.zeros(40),
        "y": np.ones(40),
    }
    both = {name: np.concatenate([rows[name], more[name]]) for name in rows}
    after = from_frame(both, client="site", target="y", order="year", after=before)
    for client, data in before.clients.items():
        for part in PARTS:
            one, two = getattr(data, part), getattr(after.clients[client], part)
            assert torch.equal(one.inputs[one.index], two.inputs[two.index])
            assert torch.equal(one.spans, two.spans)


def test_constants_are_those_of_earlier_rows() -> None:
    """Test and validation rows, and those that are left out, change no mean."""
    rows = panel(times=100)
    world = from_frame(rows, client="site", target="y", order="year", gap=2, standardize="pooled")
    assert world.about["means"] == pytest.approx([np.arange(76).mean()])
    assert world.about["deviations"] == pytest.approx([np.arange(76).std()])


# ----------------------------------------------------------------------------------------------------
# Hints, and what the leak hides.


HINT = (
    "column '{0}' looks like time: order='{0}' tests on later rows; now rows are divided at random, so models may learn from "
    "the future"
)


def sorted_panel(**more: Any) -> pd.DataFrame:
    return (
        pd.DataFrame({**panel(), **more}).sort_values(["site", "a"]).rename(columns={"year": "x"})
    )


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("when", pd.date_range("2024-01-01", periods=120), True),
        ("when", [f"2024-{1 + one % 12:02}-11" for one in range(120)], True),
        ("when", ["2024-01-01", *["later"] * 119], False),
        ("fiscal_year", np.repeat(np.arange(40), 3), True),
        ("fiscal_year", np.random.default_rng(0).permutation(120), False),
        ("Month", np.arange(120), True),
        ("dose", np.arange(120), False),
        ("year", np.zeros(120, int), False),
        # Other names and forms of time, which went unnoticed.
        ("Jahr", np.arange(120), True),
        ("created", 1_580_000_000 + 86_400 * np.arange(120), True),
        ("created", 1_580_000_000_000 + 86_400_000 * np.arange(120), True),
        ("created", 1_580_000_000 + np.random.default_rng(0).permutation(120), False),
        ("id", 3_000_000_000 + np.arange(120), False),
        # Numbers of patients and telephones are as large, and other columns have words of time, too.
        ("patient", 1_000_000_001 + np.arange(120), False),
        (
            "npi",
            np.sort(np.random.default_rng(0).integers(1_000_000_000, 2_000_000_000, 120)),
            False,
        ),
        ("hours_per_week", np.arange(120), False),
        ("year_of_birth", np.arange(120), False),
        ("survival_time", np.arange(120), False),
    ],
)
def test_a_column_that_looks_like_time_gets_a_hint(name: str, values: Any, found: bool) -> None:
    frame = sorted_panel()
    frame[name] = values
    world = from_frame(frame, client="site", target="y", features=["a"])
    assert world.hints == ((HINT.format(name),) if found else ())
    if found:
        assert not from_frame(frame, client="site", target="y", features=["a"], order=name).hints


@pytest.mark.parametrize(
    "written",
    ["%d.%m.%Y", "%d/%m/%y %H:%M", "%m-%d-%Y", "%Y/%m/%d", "%b %Y", "%d %B %Y", "quarter"],
)
def test_dates_that_are_not_isos_get_a_hint_that_says_so(written: str, tmp_path: Path) -> None:
    days = pd.date_range("2021-01-01", periods=120)
    texts = (
        list(days.to_period("Q").astype(str)) if written == "quarter" else days.strftime(written)
    )
    frame = sorted_panel(seen=texts)
    expected = HINT.format("seen").replace(
        "looks like time:",
        "has dates in another form than 2024-03-31: converted by pandas.to_datetime,",
    )
    world = from_frame(frame, client="site", target="y", features=["a"])
    assert world.hints == (expected,)
    # In a file, the hint is the same.
    frame.to_csv(tmp_path / "t.csv", index=False)
    scenario = replace(
        SCENARIOS["table/clients"], **{"client": "site", "target": "y", "columns": ("a",)}
    )
    assert expected in scenario.build(0, str(tmp_path / "t.csv")).hints


@pytest.mark.parametrize(
    "text",
    [
        *("1.5.2", "12-34", "may", "march", "A1/B2", "1/2", "10.1.0.1"),
        *("Market 12", "Mark 42", "Augusta 55", "dec-1042", "20-45-17", "1.4.12", "21-15-18"),
    ],
)
def test_other_texts_are_no_dates(text: str) -> None:
    frame = sorted_panel(seen=[text] * 120)
    assert from_frame(frame, client="site", target="y", features=["a"]).hints == ()


@pytest.mark.parametrize(
    ("kind", "order"), [("D", "frame.index"), ("period", "frame.index.to_timestamp()")]
)
def test_an_index_of_times_gets_a_hint(kind: str, order: str) -> None:
    """It is dropped with the names of the rows, and was never mentioned."""
    frame = sorted_panel()
    days = pd.date_range("2021-01-01", periods=120)
    frame.index = days.to_period("D") if kind == "period" else days
    (hint,) = from_frame(frame, client="site", target="y", features=["a"]).hints
    assert hint.startswith(
        f"the index of the data frame holds times: order={order} tests on later rows; now "
    )
    # What it says can be done.
    times = eval(order, {"frame": frame})
    ordered = from_frame(frame, client="site", target="y", features=["a"], order=times)
    assert ordered.hints == ()
    assert ordered.about["order"]


def test_times_in_the_tables_of_clients_get_a_hint() -> None:
    """Clients that are data frames were divided at random without a word."""
    generator = np.random.default_rng(0)

    def clients(**columns: Any) -> dict[str, Any]:
        made = {}
        for site in ("a", "b"):
            table = pd.DataFrame({"dose": generator.normal(size=40), **columns})
            made[site] = (table, (table["dose"] > 0).to_numpy().astype(int))
        return made

    with_year = clients(year=np.arange(1980, 2020))
    (hint,) = from_lists(with_year).hints
    assert hint.startswith(
        "the column 'year' of the clients' tables looks like time: with order, for each "
    )
    assert from_lists(with_year, order=[np.arange(40)] * 2).hints == ()
    with_index = clients()
    for table, _ in with_index.values():
        table.index = pd.date_range("2021-01-01", periods=40)
    (hint,) = from_lists(with_index).hints
    assert hint.startswith("the index of the clients' tables looks like time")
    # Tests of their own, or a column that falls at one client, are no reason.
    of_own = {site: (table, labels, table, labels) for site, (table, labels) in with_year.items()}
    assert not [hint for hint in from_lists(of_own).hints if "time" in hint]
    with_year["b"][0]["year"] = with_year["b"][0]["year"].to_numpy()[::-1]
    assert from_lists(with_year).hints == ()


def test_a_feature_that_looks_like_time_gets_a_hint() -> None:
    assert from_frame(
        sorted_panel().rename(columns={"a": "year"}), client="site", target="y"
    ).hints == (HINT.format("year"),)


def test_tests_at_random_places_of_random_walks_are_too_good() -> None:
    """A forecast of where a walk is at a time: places between training rows are easy, and later ones are not."""
    errors = {}
    for name in ("random", "order"):
        clients = {}
        for client in range(4):
            values = walk(200, client)
            clients[f"walk {client}"] = (
                np.arange(200, dtype="f")[:, None],
                values.astype("f")[:, None],
            )
        settings = {"order": np.arange(200)} if name == "order" else {}
        world = from_lists(clients, model=lambda: torch.nn.Linear(1, 1), **settings)
        mae = []
        for data in world.clients.values():  # the nearest training row is the forecast
            (x, y), (x_test, y_test) = data.train.batch(slice(None)), data.test.batch(slice(None))  # type: ignore[arg-type]
            mae.append(float((y[torch.cdist(x_test, x).argmin(1)] - y_test).abs().mean()))
        errors[name] = np.mean(mae)
    assert errors["random"] < 1.2
    assert errors["order"] > 2 * errors["random"]


# ----------------------------------------------------------------------------------------------------
# What records and reports say.


def test_records_and_reports_say_how_tests_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sorted_panel(day=DAYS[panel()["a"].astype(int)]).to_csv("t.csv", index=False)
    command = [
        "run",
        "--scenario",
        "table/clients",
        "--data",
        "t.csv",
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--workers",
        "1",
    ]
    columns = [
        word
        for one in ("client=site", "target=y", "columns=['a']", "standardize=pooled")
        for word in ("--set", one)
    ]
    assert main([*command, *columns, "--set", "order=day", "--set", "gap=1D", "--out", "run"]) == 0
    said = "Tested on the last 10% of each client's examples by day, with a gap of 1D; 6 examples before the cuts are left out."
    told = capsys.readouterr()
    assert said in told.out
    assert "looks like time" not in told.out + told.err
    assert Record(tmp_path / "run").description()["scenario"]["dataset"]["gap"] == "1D"
    assert said in explained(tmp_path / "run", width=1000)
    assert said in verdict(ranked_alone(tmp_path / "run"))["by_time"]
    assert main([*command, *columns, "--out", "random"]) == 0
    told = capsys.readouterr()
    assert told.err.count(HINT.format("day")) == 1
    assert (
        Record(tmp_path / "random").description()["world"]["cautions"].count(HINT.format("day"))
        == 1
    )
    assert main([*command, *columns, "--set", "order=dya", "--out", "no"]) == 2
    assert "did you mean day?" in capsys.readouterr().err
    assert not Path("no").exists()


def ranked_alone(run: Path) -> Contest:
    (contest,) = contests([read(run)])
    return contest


@pytest.mark.parametrize(
    "about", [{}, {"about": "x"}, {"about": {"order": 3}}, {"about": {"order": {"test": "many"}}}]
)
def test_records_of_others_say_nothing(about: dict[str, Any]) -> None:
    assert by_time(about) == ""


# ----------------------------------------------------------------------------------------------------
# Test examples that are training examples too.


def test_test_examples_that_are_training_examples_get_a_hint() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("f"), np.arange(40) % 2
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    (hint,) = from_lists({"a": twice, "b": (x + 9, y)}).hints
    tests = from_lists({"a": twice}).clients[0]
    known = {tuple(row.tolist()) for row in tests.train.inputs[tests.train.index]}
    same = sum(tuple(row.tolist()) in known for row in tests.test.inputs[tests.test.index])
    assert hint.startswith(
        f"{same} of 8 test examples are also training examples, with the same inputs and targets"
    )
    assert "for example at client a" in hint
    assert from_lists([(x, y, x[:9], y[:9])]).hints[0].startswith("9 of 9 test examples")


def test_rows_that_are_equal_by_chance_are_no_duplicates() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (200, 4)).astype("f")
    x, y = rng.normal(size=(200, 4)).astype("f"), rng.integers(0, 2, 200)
    assert not from_lists([(codes, y)]).hints
    assert not from_lists([(x, y)]).hints
    assert not from_lists([(x, y, x[:9], 1 - y[:9])]).hints
