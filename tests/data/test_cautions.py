"""What the data say before the first round: scales, and rare classes."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import coterie
from coterie.cli import main
from coterie.data.cautions import cautions
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.runs.run import Caution

RNG = np.random.default_rng(0)


def airlines(rare: float = 0.08, **columns: np.ndarray) -> pd.DataFrame:
    """Flights of 15 airlines, of which a few are late; features in miles and minutes."""
    rows = 15 * 40
    features = columns or {
        "distance": RNG.uniform(100, 2500, rows),
        "minute": RNG.uniform(0, 1439, rows),
    }
    late = np.where(np.arange(rows) % 40 < 40 * rare, "late", "on time")
    return pd.DataFrame({"airline": [f"A{i // 40}" for i in range(rows)], **features, "late": late})


def world(frame: pd.DataFrame, **more: Any) -> coterie.World:
    return coterie.from_frame(frame, client="airline", target="late", **more)


def small(rows: int = 600) -> dict[str, np.ndarray]:
    return {"a": RNG.normal(size=rows), "b": RNG.normal(size=rows)}


def test_features_that_are_not_scaled_name_the_remedy() -> None:
    (scale,) = cautions(world(airlines(0.5)))
    assert scale.startswith("the inputs are not scaled: feature 'distance' is typically 1")
    assert scale.endswith(
        'standardize them by constants that all clients share (standardize = "pooled")'
    )
    assert cautions(world(airlines(0.5), standardize="pooled")) == []
    assert cautions(world(airlines(0.5, **small()))) == []


def test_features_of_very_different_sizes() -> None:
    features = small() | {"share": RNG.uniform(0, 1e-4, 600)}
    (scale,) = cautions(world(airlines(0.5, **features)))
    assert "and feature 'share' 5" in scale
    binary = {
        "rarely": (np.arange(600) % 300 == 0) * 1.0
    }  # its typical size where it is not 0 is 1
    assert cautions(world(airlines(0.5, **small(), **binary))) == []


def test_a_model_that_normalizes_its_inputs_needs_no_scale() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    assert cautions(world(airlines(0.5), model=Net)) == []


def test_a_rare_class_proposes_another_metric() -> None:
    (rare,) = cautions(world(airlines(0.08, **small())))
    assert rare.startswith("the class 'late' has ")
    assert "and always predicting the class 'on time' has accuracy 0.9" in rare
    assert rare.endswith(
        'AUROC as the main metric would show whether the rare class is found (metrics = ["AUROC", "accuracy"])'
    )
    auroc = coterie.Objective(metrics=["AUROC", "accuracy"])
    (few,) = cautions(world(airlines(0.08, **small()), objective=auroc))
    assert "fewer than 10 test rows" in few


@pytest.mark.parametrize(
    ("classes", "rare", "said"), [(10, 0.1, False), (3, 0.05, True), (3, 0.3, False)]
)
def test_of_several_classes_the_rarest_is_compared_with_an_equal_share(
    classes: int, rare: float, said: bool
) -> None:
    rows = 2000
    labels = [0] * int(rare * rows)
    labels += [1 + i % (classes - 1) for i in range(rows - len(labels))]
    made = coterie.from_lists([(RNG.normal(size=(rows, 2)), np.array(labels))] * 2)
    assert any("BalancedAccuracy" in text for text in cautions(made)) == said


def test_a_class_that_a_few_test_examples_miss_is_not_rare() -> None:
    tiny = [(RNG.normal(size=(10, 2)), np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])) for _ in range(3)]
    assert cautions(coterie.from_lists(tiny)) == []


def test_pixels_and_tokens_have_no_scale_to_warn_of() -> None:
    pixels = (RNG.integers(0, 256, (40, 1, 8, 8)).astype(np.uint8), np.arange(40) % 2)
    other_pixels = (255 - pixels[0], pixels[1])
    assert cautions(coterie.from_lists([pixels, other_pixels])) == []


def test_python_warns_and_the_record_keeps_it(tmp_path: Path) -> None:
    with pytest.warns(Caution, match="the inputs are not scaled"):
        runs = coterie.begin(
            world(airlines(0.5)), tmp_path / "run", ["fedavg"], rounds=1, workers=1
        )
    assert (
        Record(runs[0].folder)
        .description()["world"]["cautions"][0]
        .startswith("the inputs are not scaled")
    )
    with pytest.warns(Caution, match="the inputs are not scaled"):
        next(iter(coterie.run("fedavg", world(airlines(0.5)), rounds=1, workers=1)))


def test_the_command_says_it_before_training_and_again_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    airlines().to_csv(tmp_path / "flights.csv", index=False)
    options = [
        "--scenario=table/clients",
        f"--data={tmp_path / 'flights.csv'}",
        "--method=fedavg",
        "--rounds=2",
        "--workers=1",
    ]
    sets = [f"--set={one}" for one in ("client=airline", "target=late", "model=linear")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", Caution)  # it is printed, not shown as Python's warning
        assert main(["run", *options, *sets, f"--out={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("coterie: the inputs are not scaled: feature 'distance'")
    assert "coterie: the class 'late' has " in said.err
    assert "Always predicting the class 'on time' has a mean accuracy of" in said.out
    assert "The inputs are not scaled" in said.out
    assert "is no better than always predicting the class 'on time'" in said.out.replace("\n", " ")


def arrays(clients: int = 3, rows: int = 60) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients with two features and two classes."""
    generator = np.random.default_rng(1)
    inputs = [generator.normal(size=(rows, 2)).astype("f") for _ in range(clients)]
    return [(values, (values[:, 0] > 0).astype(int)) for values in inputs]


@seeded(0)
def test_probabilities_in_place_of_logits() -> None:
    def of(*layers: nn.Module, **more: Any) -> list[str]:
        return cautions(coterie.from_lists(arrays(), model=lambda: nn.Sequential(*layers), **more))

    (softmax,) = of(nn.Linear(2, 2), nn.Softmax(1))
    assert softmax.startswith("the model ends in a softmax (its outputs sum to 1)")
    assert (
        len(of(nn.Linear(2, 2), nn.Softmax(1), objective=coterie.Objective(loss=F.cross_entropy)))
        == 1
    )
    assert of(nn.Linear(2, 2), nn.LogSoftmax(1)) == []
    assert of(nn.Linear(2, 2)) == []


def test_two_clients_that_are_the_same() -> None:
    first, second, third = arrays()
    model = partial(nn.Linear, 2, 2)
    (same,) = cautions(coterie.from_lists({"a": first, "b": first, "c": third}, model=model))
    assert "test examples are training examples of another client" in same
    assert "for example those of client a at client b" in same
    assert cautions(coterie.from_lists([first, second, third], model=model)) == []
    # Rows of a few categories are equal by chance.
    categories = [(np.round(inputs), np.zeros(len(inputs), int)) for inputs, _ in (first, second)]
    assert not any(
        "another client" in text for text in cautions(coterie.from_lists(categories, model=model))
    )
