"""FLUX's clients without labels: each rule serves the model that it says, and tables have means over three shifts."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.data.examples import Dataset, Pool

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import flux  # noqa: E402
import flux_tables  # noqa: E402
import flux_unlabeled  # noqa: E402


def bright_rows(num_images: int) -> Pool:
    """Grey images of 12 by 12, of which each has a bright row: that of its class."""
    rng = torch.Generator().manual_seed(num_images)
    images = 0.1 * torch.rand(num_images, 1, 12, 12, generator=rng)
    classes = torch.arange(num_images) % 10
    images[torch.arange(num_images), 0, classes + 1] = 1
    return Pool(images, classes)


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts few and small images in the place of the data."""
    data = Dataset(name="rows", train=bright_rows(600), test=bright_rows(300), classes=10)
    monkeypatch.setattr(flux.datasets, "load", lambda name, folder: data)
    monkeypatch.setattr(flux, "DATASETS", dict.fromkeys(flux.DATASETS, len(data.train)))


@pytest.mark.usefixtures("small_data")
def test_each_rule_serves_the_model_that_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flux, "ROUNDS", 3)
    cell = ("mnist", "paper", "px", 5, 0)
    made = flux.world(*cell)
    row = flux_unlabeled.measured(cell, "ifca", made, tmp_path)
    (run,) = coterie.reopen(tmp_path / "mnist-paper-px-5-0-ifca", world=made)
    export = coterie.save(run, tmp_path / "models")
    document = json.loads((export / "models.json").read_text())
    groups = document["groups"]
    assert row["groups"] == len(groups) > 1
    num_differing = 0
    for client, data in made.clients.items():
        inputs, labels = data.test.batch(torch.arange(len(data.test)))
        accuracies = []
        entropies = []
        for group in range(len(groups)):
            with torch.no_grad():
                probabilities = coterie.load(export, group=group)(inputs).double().softmax(1)
            accuracies.append(float((probabilities.argmax(1) == labels).double().mean()))
            entropies.append(float(-(probabilities * probabilities.log()).sum(1).mean()))
        num_differing += len(set(accuracies)) > 1
        # Only the images are in the file: the label and the client are not.
        np.savez(tmp_path / "site.npz", x=inputs.numpy())
        placement = coterie.place(export, tmp_path / "site.npz")
        default_group = document["default"]["group"]
        expected = {
            "own": next(number for number, group in enumerate(groups) if client in group),
            "place": default_group if placement.group_to_use is None else placement.group_to_use,
            "confident": int(np.argmin(entropies)),
            "default": max(range(len(groups)), key=lambda number: len(groups[number])),
        }
        assert set(expected) == set(flux_unlabeled.RULES)
        for rule, group in expected.items():
            assert row["accuracies"][rule][client] == pytest.approx(accuracies[group], abs=1e-4)
        assert row["own_group"][client] == expected["own"]
        assert row["placed"][client] == placement.group_to_use
    # Where all models were right equally often, no rule would have been tested.
    assert num_differing > 0


@pytest.mark.usefixtures("small_data")
def test_runs_are_kept_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flux, "ROUNDS", 1)
    results = tmp_path / "rows.jsonl"
    monkeypatch.setattr(flux_unlabeled, "RESULTS", results)
    call = ["--datasets=mnist", "--shifts=py", "--levels=2", "--scale=small"]
    call += ["--methods=fedavg", f"--runs={tmp_path / 'runs'}"]
    assert flux_unlabeled.main([*call, "--minutes=-1"]) == 0
    assert not results.exists()
    for _ in range(2):
        assert flux_unlabeled.main(call) == 0
    (row,) = flux_unlabeled.known()
    assert len(results.read_text().splitlines()) == 1
    # A complete run is measured again with the same result, without training.
    results.unlink()
    assert flux_unlabeled.main(call) == 0
    assert flux_unlabeled.known() == [row]
    # One model for all serves everyone by each rule.
    assert len({tuple(values) for values in row["accuracies"].values()}) == 1
    assert flux_unlabeled.main(["--table"]) == 0
    assert "| mnist | small | 2 | fedavg | own |" in capsys.readouterr().out


def test_the_entropy_is_that_of_its_definition() -> None:
    outputs = torch.tensor([[0.0, 0.0, 0.0, 0.0], [math.log(3), 0.0, -1e4, -1e4]])
    expected = (math.log(4) - 0.75 * math.log(0.75) - 0.25 * math.log(0.25)) / 2
    assert flux_unlabeled.mean_entropy(outputs) == pytest.approx(expected)


PUBLISHED = {
    "mnist": {"flux": 0.940, "cfl": 0.861, "fedavg": 0.856, "ifca": 0.782},
    "fashion_mnist": {"flux": 0.812, "cfl": 0.694, "fedavg": 0.688, "ifca": 0.635},
    "cifar10": {"flux": 0.386, "ifca": 0.365, "cfl": 0.332, "fedavg": 0.319},
}


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_printed_numbers_have_the_published_means(dataset: str) -> None:
    assert set(flux_unlabeled.PRINTED[dataset]) == set(PUBLISHED[dataset])
    for method, mean in PUBLISHED[dataset].items():
        levels = flux_unlabeled.PRINTED[dataset][method]
        assert len(levels) == 8
        assert np.mean(levels) == pytest.approx(mean, abs=0.0011)


def row(method: str, shift: str, accuracy: float, fold: int = 0) -> dict[str, Any]:
    """A line of the results, with the same accuracy by each rule but ``own``."""
    accuracies = {rule: [accuracy] * 10 for rule in flux_unlabeled.RULES}
    accuracies["own"] = [accuracy + 0.1] * 10
    cell = ("mnist", "small", shift, 8, fold)
    return {**dict(zip(flux.KEY, (*cell, method), strict=True)), "accuracies": accuracies}


def test_means_are_over_three_shifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flux_unlabeled, "RESULTS", tmp_path / "rows.jsonl")
    assert "Not measured yet" in flux_tables.unlabeled("small")
    assert "Not measured yet" in flux_tables.unlabeled_shifts("mnist", "small")
    rows = [
        row("split-half", "px", 0.5),
        row("split-half", "px", 0.7, fold=1),
        row("split-half", "py", 0.75),
        row("split-half", "px-y", 0.9),
        # Permuted labels are no part of the mean.
        row("split-half", "py-x", 0.1),
        row("ifca", "px", 0.25),
    ]
    flux_unlabeled.RESULTS.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    found = flux_unlabeled.means("mnist", "small")
    assert found["split-half", "place", 8, "mean"] == pytest.approx((0.6 + 0.75 + 0.9) / 3)
    assert found["split-half", "own", 8, "mean"] == pytest.approx((0.6 + 0.75 + 0.9) / 3 + 0.1)
    assert ("ifca", "place", 8, "mean") not in found
    # Here, and the printed FedAvg, CFL, IFCA and FLUX.
    assert (
        "| MNIST | 8 | – | – | – | 0.750 | 0.850 | 0.794 | 0.795 | 0.642 | 0.923 |"
        in flux_tables.unlabeled("small")
    )
    shifts = flux_tables.unlabeled_shifts("mnist", "small")
    assert r"| level | model | P(X) | P(Y) | P(X\|Y) | mean | P(Y\|X) |" in shifts
    assert "| 8 | `split-half`, placed | 0.600 | 0.750 | 0.900 | 0.750 | 0.100 |" in shifts
    assert "| 8 | IFCA, placed | 0.250 | – | – | – | – |" in shifts
