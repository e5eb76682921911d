"""What is said about numbers to predict: few test rows, targets far from a net's outputs, classes that may be numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import coterie
from coterie.data.cautions import of_few_of_a_class, of_few_rows, of_targets
from coterie.data.objective import CLASSIFICATION, MULTILABEL, Objective
from coterie.runs.run import Caution


def frame(y: Any, clients: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "site": np.arange(len(y)) % clients,
        "a": rng.normal(size=len(y)),
        "b": rng.normal(size=len(y)),
        "y": np.asarray(y),
    }


def world(y: Any, clients: int = 4, **settings: Any) -> coterie.World:
    return coterie.from_frame(frame(y, clients), "site", "y", **settings)


def normal(rows: int = 160, mean: float = 0.0, deviation: float = 1.0) -> np.ndarray:
    return mean + deviation * np.random.default_rng(1).normal(size=rows)


@pytest.mark.parametrize(("rows", "few"), [(160, 4), (400, 0), (360, 4), (391, 1)])
def test_clients_with_few_test_rows_are_counted(rows: int, few: int) -> None:
    said = of_few_rows(world(normal(rows)))
    tested = [len(data.test) for data in world(normal(rows)).clients.values()]
    assert sum(size < 10 for size in tested) == few
    assert (
        f"{few} of 4 clients {'has' if few == 1 else 'have'} fewer than 10 test rows" in said
    ) == bool(few)
    assert not few or said.endswith(
        "RootMeanSquaredError and R2Score are those of all their rows together"
    )


def test_metrics_that_are_means_over_rows_need_no_warning() -> None:
    classes = np.arange(160) % 3
    assert not of_few_rows(world(classes))
    assert not of_few_rows(world(classes, objective=Objective(metrics=["accuracy", "AUROC"])))
    said = of_few_rows(world(classes, objective=Objective(metrics=["AUROC", "accuracy"])))
    assert said.endswith("AUROC of a single client says little; nor does its mean over clients")


@pytest.mark.parametrize(
    ("mean", "deviation", "says"),
    [
        (120, 9, True),
        (0, 1, False),
        (3, 4, False),
        (0, 1e4, True),
        (1e9, 1e6, True),
        (0, 1e-4, True),
        (5, 0.001, False),
    ],
)
def test_targets_far_from_the_first_outputs_are_named(
    mean: float, deviation: float, says: bool
) -> None:
    said = of_targets(world(normal(160, mean, deviation)))
    assert bool(said) == says
    assert not says or (
        "the target 'y' is around" in said and 'standardize_target = "pooled"' in said
    )
    assert not of_targets(world(normal(160, mean, deviation), standardize_target="pooled"))


def test_a_net_that_knows_the_unit_is_left_alone() -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 120 + 9 * super().forward(x)

    assert not of_targets(world(normal(160, 120, 9), model=lambda: Scaled(nn.Linear(2, 1))))
    assert of_targets(world(normal(160, 120, 9), model=lambda: nn.Linear(2, 1)))


def test_the_target_of_another_unit_is_named_among_several() -> None:
    columns = {**frame(normal()), "weight": normal(160, 70, 9)}
    made = coterie.from_frame(columns, "site", ["y", "weight"])
    assert "the target 'weight' is around 69" in of_targets(made)


def test_classes_and_labels_have_no_scale() -> None:
    assert not of_targets(world(np.arange(160) % 100, objective=CLASSIFICATION))
    labels = {**frame(np.arange(160) % 2), "z": np.arange(160) % 2}
    assert not of_targets(coterie.from_frame(labels, "site", ["y", "z"], objective=MULTILABEL))


# ----------------------------------------------------------------------------------------------------
# Classes that may be numbers, and numbers that may be classes.


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (
            np.arange(324) % 162,
            "target 'y' holds whole numbers: 162 classes; task = \"regression\" predicts a number",
        ),
        (np.arange(63) % 7, "target 'y' holds whole numbers: 7 classes; task"),
        (np.arange(700) % 7, ""),
        (np.arange(160) % 2, ""),
        (
            np.arange(160) % 3 * 1.0,
            "target 'y' holds floats that are whole numbers, 3 different ones, as numbers to predict",
        ),
        (np.arange(324) % 162 * 1.0, ""),
        (normal(), ""),
        (np.array(["a", "b"] * 80), ""),
        (np.array([True, False] * 80), ""),
    ],
)
def test_a_target_whose_type_decided_is_named_if_its_values_suggest_another_task(
    y: np.ndarray, says: str
) -> None:
    hints = " ".join(world(y).hints)
    assert says in hints
    assert bool(says) == bool(hints)


def test_a_task_that_was_asked_for_has_no_hint() -> None:
    assert not world(np.arange(324) % 162, task="classification").hints
    assert not world(np.arange(324) % 162, task="regression").hints
    assert not world(np.arange(160) % 3 * 1.0, task="regression").hints


def test_a_hint_of_time_stays_beside_it() -> None:
    columns = pd.DataFrame(
        {**frame(np.arange(324) % 162), "day": pd.date_range("2020-01-01", periods=324)}
    )
    hints = coterie.from_frame(columns, "site", "y", features=["a", "b"]).hints
    assert len(hints) == 2


def test_arrays_have_the_same_hints() -> None:
    rng = np.random.default_rng(0)

    def of(y: np.ndarray, x: np.ndarray | None = None) -> str:
        x = rng.normal(size=(len(y), 3)).astype("f") if x is None else x
        return " ".join(coterie.from_lists([(x[i::4], y[i::4]) for i in range(4)]).hints)

    ages = np.arange(324) % 162
    assert (
        of(ages)
        == "the target holds whole numbers: 162 classes; objective=coterie.REGRESSION predicts a number"
    )
    assert "3 different ones, as numbers to predict; class numbers must be integers" in of(
        np.arange(160) % 3 * 1.0
    )
    assert not of(ages % 3)
    assert not of(normal())
    images = rng.random((324, 1, 8, 8)).astype("f")
    assert not of(ages, images)


def test_what_is_said_is_warned_of_recorded_and_in_the_verdict(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 60, 400)
    columns = {**frame(y), "a": y + rng.normal(size=400)}
    made = coterie.from_frame(columns, "site", "y", standardize="pooled")
    with pytest.warns(Caution) as said:
        runs = coterie.begin(made, tmp_path / "run", ["fedavg"], rounds=1, workers=1)
    assert any("target 'y' holds whole numbers: 60 classes" in str(one.message) for one in said)
    (run,) = runs.finish()
    assert "60 classes" in run.record.description()["world"]["cautions"][0]
    tall = coterie.from_frame(
        frame(normal(160, 30, 1)), "site", "y", training=coterie.Training(lr=0.001)
    )
    with pytest.warns(Caution) as said:
        next(coterie.run("fedavg", tall, rounds=1, workers=1))
    texts = [str(one.message) for one in said]
    assert any("the target 'y' is around" in text for text in texts)
    assert any("4 of 4 clients have fewer than 10 test rows" in text for text in texts)


@pytest.mark.parametrize("settings", [{}, {"standardize_target": "pooled"}])
def test_a_target_that_never_changes_is_named(settings: dict[str, Any]) -> None:
    said = of_targets(world(np.full(160, 0.1), **settings))
    assert (
        said
        == "the target 'y' is 0.1 in every training row: nothing can be learned, and R2 is not defined"
    )


def test_few_positives_are_told_though_there_are_many_rows() -> None:
    inputs = torch.zeros(100, 2)
    rare = torch.arange(100) % 25 == 0
    often = torch.arange(100) % 2
    objective = Objective(metrics=["AUROC"])
    made = coterie.from_lists(
        {
            "port": (inputs, rare.long(), inputs[:50], rare[:50].long()),
            "west": (inputs, often, inputs[:50], often[:50]),
        },
        model="linear",
        objective=objective,
    )
    assert of_few_of_a_class(made) == (
        "1 of 2 clients has fewer than 10 test examples of the rarer class, for which AUROC of a single client "
        "says little (client port: 2 of 50)"
    )
    assert not of_few_of_a_class(dataclasses.replace(made, objective=Objective()))
