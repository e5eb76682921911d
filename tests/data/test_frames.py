"""Clients from the rows of a data frame: who they are, what they predict, and what is refused in one sentence."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import coterie
from coterie import from_frame
from coterie.data.objective import REGRESSION
from coterie.data.own import from_lists
from coterie.data.tasks import PredictionTask, encoded, in_order, objective_for
from coterie.data.world import Objective
from coterie.randomness import seeded
from coterie.settings import UserError
from refusals import refuses

ROWS = 60


def columns(**more: Any) -> dict[str, Any]:
    """Three sites of 20 rows each, in turn; ``a`` is the number of the row, and ``y`` is 0 or 1."""
    made = {
        "site": ["x", "y", "z"] * 20,
        "a": np.arange(60.0),
        "b": np.arange(60) % 7,
        "y": np.arange(60) % 2,
    }
    return {**made, **more}


def made(frame: Any, target: Any = "y", **settings: Any) -> coterie.World:
    return from_frame(frame, client="site", target=target, **settings)


def outputs(world: coterie.World) -> int:
    """The number of outputs of a fresh model."""
    with seeded(0):
        return world.model()(torch.ones(1, len(world.about["features"]))).shape[1]


def rows_of(world: coterie.World, client: int) -> dict[float, Any]:
    """The first feature of each example -> its target, in all splits of a client."""
    data = world.clients[client]
    return {
        float(split.inputs[row][0]): target.tolist()
        for split in (data.train, data.validation, data.test)
        for row, target in zip(split.index, split.targets, strict=True)
    }


FRAMES = {
    "mapping": columns(),
    "pandas": pd.DataFrame(columns()),
    "pandas types": pd.DataFrame(columns()).convert_dtypes(),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_each_value_of_the_column_is_a_client_with_its_rows(kind: str) -> None:
    check_clients(made(FRAMES[kind]))


def test_a_frame_of_polars() -> None:
    polars = pytest.importorskip("polars")
    check_clients(made(polars.DataFrame(columns())))
    check_clients(
        made(polars.DataFrame(columns()).with_columns(polars.col("site").cast(polars.Categorical)))
    )
    with pytest.raises(UserError, match=r"the data frame is lazy: pass frame\.collect\(\)"):
        made(polars.DataFrame(columns()).lazy())
    with pytest.raises(UserError, match="the column b has a missing value, in row 2"):
        made(polars.DataFrame(columns(b=[1, None, *range(58)])))


def check_clients(world: coterie.World) -> None:
    assert {client: data.name for client, data in world.clients.items()} == {0: "x", 1: "y", 2: "z"}
    for client in range(3):
        assert rows_of(world, client) == {float(row): row % 2 for row in range(client, 60, 3)}
        data = world.clients[client]
        assert [len(split) for split in (data.train, data.validation, data.test)] == [16, 2, 2]
        assert data.train.inputs.dtype == torch.float32
    assert world.about == {
        "features": ["a", "b"],
        "targets": ["y"],
        "task": "classification",
        "classes": ["0", "1"],
    }
    assert outputs(world) == 2


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ([10, 9, -1], ["-1", "9", "10"]), ([10.0, 9.0, 2.0], ["2", "9", "10"]), (["10", "9", "007"], ["007", "9", "10"]),
        (["b10", "b9", "A"], ["A", "b10", "b9"]), ([True, False, True], ["False", "True"]),
    ],
    ids=str,
)  # fmt: skip
def test_the_order_of_clients_is_that_of_their_names(names: list[Any], order: list[str]) -> None:
    world = made(pd.DataFrame(columns(site=names * 20)))
    assert [data.name for data in world.clients.values()] == order
    assert rows_of(world, 0).keys() == {
        row for row in range(60) if str(names[row % 3]).removesuffix(".0") == order[0]
    }


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([7, 3, 10], ["3", "7", "10"]), ([True, False], ["False", "True"]), (["no", "yes", "maybe"], ["maybe", "no", "yes"]),
        (["10", "9"], ["9", "10"]), (pd.Categorical(["ill", "well"]), ["ill", "well"]),
    ],
    ids=str,
)  # fmt: skip
def test_the_classes_are_the_sorted_values_of_the_target(values: Any, classes: list[str]) -> None:
    repeated = [values[row % len(values)] for row in range(ROWS)]
    world = made(pd.DataFrame(columns(y=repeated)))
    assert world.about["classes"] == classes
    for client in range(3):
        assert all(
            classes[target] == str(repeated[int(row)])
            for row, target in rows_of(world, client).items()
        )
    assert outputs(world) == len(classes)


@pytest.mark.parametrize(
    "values", [np.arange(60) / 7, [Decimal(row) / 8 for row in range(60)]], ids=["float", "decimal"]
)
def test_a_target_of_floats_is_predicted_as_a_number(values: Any) -> None:
    world = made(pd.DataFrame(columns(y=values)), model="linear")
    assert world.about == {"features": ["a", "b"], "targets": ["y"], "task": "regression"}
    assert all(
        target == [np.float32(values[int(row)])] for row, target in rows_of(world, 1).items()
    )
    assert world.objective.loss(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [2.0]])) == 5.0
    assert outputs(world) == 1


def test_whole_numbers_can_be_predicted_and_floats_can_be_classes() -> None:
    counted = made(columns(y=np.arange(60)), task="regression")
    assert counted.about["task"] == "regression"
    with_gaps = made(
        columns(y=np.arange(60) % 2 * 1.0), task="classification"
    )  # floats, as pandas makes of gaps
    assert with_gaps.about["classes"] == ["0", "1"]


def test_several_targets_are_labels_or_numbers() -> None:
    labels = made(columns(z=np.arange(60) % 3 == 0), ["y", "z"])
    assert labels.about["task"] == "multi-label"
    assert rows_of(labels, 0) == {float(row): [row % 2, row % 3 == 0] for row in range(0, 60, 3)}
    assert outputs(labels) == 2
    numbers = made(columns(y=np.arange(60) / 2, z=np.arange(60) / 4), ["y", "z"])
    assert numbers.about["task"] == "regression"
    assert rows_of(numbers, 2) == {float(row): [row / 2, row / 4] for row in range(2, 60, 3)}


def test_the_objectives_of_the_tasks_by_their_definitions() -> None:
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(5, 3)), rng.integers(0, 2, (5, 3))
    objective = objective_for(PredictionTask("multi-label", 3))
    p = 1 / (1 + np.exp(-outputs))
    both = torch.from_numpy(outputs), torch.from_numpy(labels).double()
    assert float(objective.loss(*both)) == pytest.approx(
        -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))
    )
    right = ((p > 0.5) == labels).all(1)
    assert objective.named["ExactMatch"].of(*both)[""] == pytest.approx(right.mean())
    two = torch.from_numpy(rng.normal(size=(2, 5, 3)))
    assert torch.allclose(objective.combine(two).sigmoid(), two.sigmoid().mean(0))
    regression = objective_for(PredictionTask("regression", 3))
    assert torch.allclose(regression.combine(two), two.mean(0))
    assert regression.named["MeanAbsoluteError"].of(*both)[""] == pytest.approx(
        np.abs(outputs - labels).mean()
    )


def test_arguments_in_place_of_the_usual_ones() -> None:
    objective = Objective(loss=nn.functional.l1_loss)
    training = coterie.Training(lr=0.3)
    world = made(
        columns(),
        features=["b"],
        model=lambda: nn.Linear(1, 2),
        objective=objective,
        training=training,
        train=0.5,
        seed=3,
    )
    assert world.objective is objective
    assert world.training.lr == 0.3
    assert [len(world.clients[0].train), len(world.clients[0].test)] == [10, 8]
    assert outputs(world) == 2
    assert world.about["features"] == ["b"]
    again = [made(columns(), seed=seed).clients[0].train.index.tolist() for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


def test_a_world_of_a_frame_trains() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 2))
    site = np.repeat(np.arange(4), 60)
    y = (x.sum(1) * np.where(site < 2, 1, -1)).astype(np.float32)
    frame = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "site": site, "y": y})
    world = made(frame, model="linear", training=coterie.Training(lr=0.1, batch=10, epochs=2))
    last = list(coterie.run("split-half", world, rounds=8, workers=1))[-1]
    assert last.assignment.groups == ((0, 1), (2, 3))
    assert last.scores is not None
    assert all(scores["loss"] < 0.01 for scores in last.scores.values())


DAY = datetime.datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("changes", "settings", "parts"),
    [
        ({}, {"target": "z"}, ["'z'", "site, a, b, y"]),
        ({}, {"target": "aa"}, ["'aa'", "did you mean a?"]),
        ({}, {"target": "site"}, ["'site'", "two uses"]),
        ({}, {"target": ["y", "y"]}, ["'y'", "two uses"]),
        ({}, {"features": ["a", "y"]}, ["features", "'y'", "target"]),
        ({}, {"features": []}, ["feature", "none", "at least one"]),
        ({}, {"features": "a"}, ["features", "'a'", "list"]),
        ({}, {"features": 3}, ["features", "3", "list"]),
        ({}, {"target": []}, ["target", "none", "several"]),
        ({}, {"task": "regress"}, ["task", "'regress'", "auto, classification, regression"]),
        ({}, {"train": 1.0}, ["train", "validation", "test data"]),
        ({"a": [1.0, np.nan, *range(58)]}, {}, ["column a", "a missing value", "row 2", "remove"]),
        ({"a": [*range(58), None, None]}, {}, ["column a", "2 missing values", "row 59"]),
        ({"y": pd.array([1, None] * 30, dtype="Int64")}, {}, ["column y", "30 missing values", "row 2"]),
        ({"site": ["x", "", "z"] * 20}, {}, ["column site", "20 missing values", "row 2"]),
        ({"a": pd.Series([DAY, pd.NaT] * 30, dtype=object)}, {}, ["column a", "30 missing values"]),
        ({"a": ["low", "high"] * 30}, {}, ["column a", "'low' in row 1", "list the columns"]),
        ({"a": ["1.5", "1,5"] * 30}, {}, ["column a", "'1,5' in row 2", "decimal point"]),
        ({"a": ["1.5", "-inf"] * 30}, {}, ["column a", "'-inf' in row 2", "finite"]),
        ({"a": ["1.5", "NA"] * 30}, {}, ["column a", "'NA' in row 2", "empty field"]),
        ({"y": [0.0, 1.0] * 30}, {}, ["target y", "floats", "task = classification", "regression"]),
        ({"site": pd.Series([True, 1, 2] * 20, dtype=object)}, {}, ["column site", "booleans and other values"]),
        ({"site": ["x", "x "] * 30}, {}, ["two clients", "'x' and 'x '"]),
        ({"a": [DAY] * 60}, {}, ["column a", "dates or times", "list the columns"]),
        ({"a": [DAY.date()] * 60}, {}, ["column a", "date", "64 bits, booleans or text"]),
        ({"a": [1, "x"] * 30}, {}, ["column a", "int, str", "one kind"]),
        ({"a": pd.Series([2**70, 1] * 30, dtype=object)}, {}, ["column a", "64 bits"]),
        ({"a": [np.inf] * 60}, {}, ["column a", "finite", "float32"]),
        ({"a": [1e300] * 60}, {}, ["column a", "finite", "float32"]),
        ({"y": [1e300] * 60}, {}, ["targets y", "finite", "float32"]),
        ({"y": [3] * 60}, {}, ["target y", "'3'", "at least two classes"]),
        ({"y": np.arange(60) / 2}, {"task": "classification"}, ["y", "whole numbers", "task = regression"]),
        ({"y": ["ill", "well"] * 30}, {"task": "regression"}, ["target y", "'ill'", "class"]),
        ({"z": np.arange(60)}, {"target": ["y", "z"]}, ["targets", "z", "0 and 1, or floats"]),
        ({"z": ["ill"] * 60}, {"target": ["y", "z"]}, ["target z", "'ill'", "of its own"]),
        ({"site": np.arange(60) / 2}, {}, ["column site", "fractions"]),
        ({"site": ["x\x1b[2J", "y"] * 30}, {}, ["names", "'x", "control characters"]),
        ({"y": pd.Series(["\ud800", "y"] * 30, dtype=object)}, {}, ["column y", "names", "100 characters"]),
        ({"site": np.arange(60)}, {}, ["0 has 1 example", "needs 3", "leave it out"]),
    ],
    ids=range(39),
)  # fmt: skip
def test_a_mistake_is_told_with_its_column_and_value(
    changes: dict[str, Any], settings: dict[str, Any], parts: list[str]
) -> None:
    with refuses(*parts):
        made(pd.DataFrame(columns(**changes)), **settings)


def test_ids_are_not_taken_for_classes() -> None:
    frame = {"site": [0, 1] * 100, "a": np.arange(200.0), "y": np.arange(200)}
    with pytest.raises(
        UserError, match="has 200 different values in 200 rows, too many to be classes; is it an id"
    ):
        made(frame)


@pytest.mark.parametrize("frame", [[1, 2], "records.csv", None], ids=str)
def test_what_is_no_frame(frame: Any) -> None:
    with pytest.raises(
        UserError,
        match="must be a data frame of pandas, polars or pyarrow, or a mapping from names to arrays, got",
    ):
        made(frame)


def test_a_large_offset_that_float32_cannot_hold_is_refused() -> None:
    times = np.random.default_rng(0).normal(0, 30, 60)
    for offset, fine in ((1e6, True), (1.7e9, False)):
        changed = {**columns(), "a": times + offset}
        if fine:
            assert made(pd.DataFrame(changed)).clients
        else:
            with pytest.raises(
                UserError,
                match=r"the column a has values near 1.7e\+09 that differ by .*subtract a constant",
            ):
                made(pd.DataFrame(changed))
            with pytest.raises(UserError, match=r"client 0: input 1 has values near"):
                from_lists([(np.stack([times, changed["a"]], 1), np.arange(60) % 2)])
    rounding = 0.1 + 1e-17 * np.arange(60)
    assert made(pd.DataFrame({**columns(), "a": rounding})).clients


INDISTINCT = {
    "whole numbers beyond float64": 2**53 + np.arange(60),
    "unsigned": np.uint64(2**63) + np.arange(60, dtype=np.uint64),
    "32 bits": (2_000_000_000 + np.arange(60)).astype(np.int32),
    "whole numbers as floats": 1e15 + np.arange(60.0),
    "fractions": 1e9 + np.arange(60) / 1000,
    "pandas integers": pd.array([(2**53) + i for i in range(60)], dtype="Int64"),
    "seconds": 1.7e9 + np.arange(60),
}
"""Columns whose differences float32 loses."""


@pytest.mark.parametrize("kind", INDISTINCT)
def test_columns_are_checked_before_they_lose_their_differences(kind: str) -> None:
    """240 whole numbers from 2**53 once became 48 values, and then one: the check saw what was left of them."""
    column = INDISTINCT[kind]
    with pytest.raises(UserError, match=r"the column a has values near .*subtract a constant"):
        made(pd.DataFrame({**columns(), "a": column}))
    with pytest.raises(UserError, match=r"the target y has values near .*subtract a constant"):
        made(pd.DataFrame({**columns(), "y": column}), task="regression")


@pytest.mark.parametrize(
    "kind", [kind for kind in INDISTINCT if kind not in ("pandas integers", "unsigned")]
)
@pytest.mark.parametrize("form", ["array", "tensor", "regression", "series"])
def test_arrays_and_tensors_are_checked_as_columns_are(kind: str, form: str) -> None:
    column = np.asarray(INDISTINCT[kind])
    x, y = np.stack([np.arange(60).astype(column.dtype), column], axis=1), np.arange(60) % 2
    more: dict[str, Any] = {"model": "mlp"}
    if form == "tensor":
        given = (torch.from_numpy(x), torch.from_numpy(y))
    elif form == "regression":
        given, more = (
            (np.ones((60, 2)), column.astype(np.float64)[:, None]),
            {"objective": REGRESSION, "model": "mlp"},
        )
    elif form == "series":
        given = (np.stack([x, x], axis=1).astype(np.float64), y)
    else:
        given = (x, y)
    with pytest.raises(
        UserError, match=r"client 0: (input|target) [01] has values near .*subtract a constant"
    ):
        from_lists([given, given], **more)


def test_unsigned_numbers_of_64_bits_do_not_become_negative() -> None:
    with pytest.raises(UserError, match="whole numbers of at most 63 bits"):
        from_lists([(np.full((4, 2), 2**63, np.uint64), np.arange(4) % 2)])


@pytest.mark.parametrize(
    "column",
    [
        np.full(60, 2**53),
        np.full(60, 1.7e9),
        2**53 + 2**40 * np.arange(60),
        np.arange(60) * 10**6,
        1.0 + 1e-16 * np.arange(60),
        np.arange(60, dtype=np.int16) + np.int16(30_000),
        np.array([-(2**63), 2**63 - 1] * 30),
    ],
)
def test_columns_that_keep_their_differences_or_have_none(column: np.ndarray) -> None:
    assert made(pd.DataFrame({**columns(), "a": column})).clients


@pytest.mark.parametrize("longer", ["site", "a", "y"])
def test_columns_of_unequal_length_are_refused(longer: str) -> None:
    frame = {
        name: [*values, values[0]] if name == longer else [*values]
        for name, values in columns().items()
    }
    with pytest.raises(
        UserError, match=r"the column . has 6[01] rows, and the column site has 6[01]"
    ):
        made(frame)


def test_two_columns_of_one_name() -> None:
    frame = pd.DataFrame(np.ones((4, 4)), columns=["site", "a", "a", "y"])
    with pytest.raises(UserError, match="has 2 columns with the name 'a'"):
        made(frame)


def test_values_are_numbered_in_the_order_of_their_names() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.integers(-20, 20, 50), rng.integers(-20, 20, 50).astype(str).astype(object)):
        codes, names = encoded(values)
        assert names == in_order(names) == sorted({str(value) for value in values}, key=int)
        assert [names[code] for code in codes] == [str(value) for value in values]
