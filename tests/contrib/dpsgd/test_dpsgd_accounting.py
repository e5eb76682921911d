"""ε of single rows against dp-accounting's own calls, and against the passes that clients made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import Boundary, Training, begin, from_function
from coterie.contrib.dpsgd.accounting import noise_for_rows, spent_by_rows
from coterie.engines.rounds import wire_of
from coterie.records.record import Record
from coterie.report.summary import summary
from coterie.runs.experiment import make

dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

SMALL: dict[str, Any] = {
    "scenario": {"name": "synthetic/groups", "clients": 6},
    "methods": [{"name": "fedavg"}],
    "rounds": 2,
    "workers": 1,
}


def by_library(rate: float, noise: float, steps: int) -> float:
    ledger = dp.rdp.RdpAccountant()
    ledger.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)
    return float(ledger.get_epsilon(1e-5))


@pytest.mark.parametrize(
    ("rows", "batch", "noise", "passes"), [(1000, 250, 1.0, 2), (200, 32, 2.0, 1)]
)
def test_poisson_batches_are_sampled_gaussians(
    rows: int, batch: int, noise: float, passes: int
) -> None:
    epsilon = spent_by_rows(rows, passes, batch=batch, noise=noise)
    expected = by_library(batch / rows, noise, passes * math.ceil(rows / batch))
    # The library also tries orders that are no whole numbers.
    assert expected <= epsilon * (1 + 1e-9)
    assert epsilon <= expected * 1.05


def test_privacy_loss_distributions_are_tighter() -> None:
    settings: dict[str, Any] = {"rows": 1000, "passes": 5, "batch": 100, "noise": 1.0}
    assert spent_by_rows(**settings, accountant="pld") < spent_by_rows(**settings)


def test_a_pass_of_shuffled_batches_is_one_gaussian() -> None:
    ledger = dp.pld.PLDAccountant()
    ledger.compose(dp.GaussianDpEvent(2.0), 7)
    expected = ledger.get_epsilon(1e-5)
    for batch in (1, 10, 0):
        epsilon = spent_by_rows(500, 7, batch=batch, noise=2.0, sampling="shuffled")
        assert epsilon == pytest.approx(expected, rel=1e-3)


def test_shuffled_batches_get_no_amplification() -> None:
    settings: dict[str, Any] = {"rows": 1000, "passes": 5, "batch": 10, "noise": 1.0}
    assert spent_by_rows(**settings, sampling="shuffled") > 2 * spent_by_rows(**settings)


def test_all_rows_in_a_batch_need_no_sampling() -> None:
    # Rényi divergences of a Gaussian bound the exact ε.
    exact = spent_by_rows(100, 3, batch=0, noise=2.0, sampling="shuffled")
    assert exact <= spent_by_rows(100, 3, batch=0, noise=2.0) < 1.25 * exact


def test_extremes() -> None:
    assert spent_by_rows(100, 0) == 0
    assert spent_by_rows(100, 1, noise=0) == math.inf
    assert spent_by_rows(100, 1, noise=0, sampling="shuffled") == math.inf


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_noise_for_an_epsilon(sampling: str) -> None:
    settings: dict[str, Any] = {"rows": 500, "passes": 10, "batch": 25, "sampling": sampling}
    noise = noise_for_rows(2.0, **settings)
    assert spent_by_rows(**settings, noise=noise) <= 2.0
    assert spent_by_rows(**settings, noise=noise / 1.01) > 2.0


def run_of(folder: Path, **changes: Any) -> Path:
    training = {"optimizer": "dp-sgd", "batch": 20, "epochs": 1, **changes.pop("training", {})}
    spec = {**SMALL, **changes, "training": training}
    for one in begin(make(spec), folder):
        list(one.rounds())
    return folder


def amounts_of(folder: Path) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for line in Record(folder).lines():
        for client, amount in line.get("released", {}).items():
            amounts[client] = amounts.get(client, 0) + amount
    return amounts


def test_each_client_has_the_epsilon_of_its_own_rows_and_rounds(tmp_path: Path) -> None:
    folder = run_of(
        tmp_path / "run",
        methods=[{"name": "fedavg", "fraction": 0.5}],
        rounds=5,
        training={"epochs": 2},
    )
    world = Record(folder).description()["world"]
    amounts = amounts_of(folder)
    assert len(set(amounts.values())) > 1
    privacy = summary(folder)["privacy"]
    for client, rows in zip(world["clients"], world["examples"], strict=True):
        amount = amounts.get(str(client), 0)
        steps_of_round = 2 * math.ceil(rows / 20)
        assert amount % steps_of_round == 0
        expected = spent_by_rows(rows, 2 * amount // steps_of_round, batch=20)
        assert privacy["of_client"][str(client)] == pytest.approx(expected)
    assert privacy["epsilon"] == max(privacy["of_client"].values())
    assert privacy["least"] <= privacy["median"] <= privacy["epsilon"]


def test_steps_are_counted_as_steps(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", training={"steps": 7})
    assert set(amounts_of(folder).values()) == {14}
    rows = Record(folder).description()["world"]["examples"][0]
    epsilon = summary(folder)["privacy"]["of_client"]["0"]
    assert epsilon >= by_library(20 / rows, 1.0, 14) * (1 - 1e-9)


def test_stages_and_layers_of_a_client_are_counted(tmp_path: Path) -> None:
    method = {"name": "fedrep", "head_epochs": 3}
    folder = run_of(
        tmp_path / "run",
        scenario={"name": "digits/label-permutation", "clients": 4},
        methods=[method],
        training={"epochs": 1, "optimizer_options": {"sampling": "shuffled"}},
    )
    # In each round, three passes train the head, and one trains the body.
    assert set(amounts_of(folder).values()) == {2 * (3 + 1)}


def test_steps_on_shuffled_batches_count_each_pass_that_they_begin(tmp_path: Path) -> None:
    folder = run_of(
        tmp_path / "run",
        training={"steps": 7, "batch": 8, "optimizer_options": {"sampling": "shuffled"}},
    )
    world = Record(folder).description()["world"]
    for client, rows in zip(world["clients"], world["examples"], strict=True):
        passes = math.ceil(7 / math.ceil(rows / 8))
        assert amounts_of(folder)[str(client)] == 2 * passes


def test_rows_of_clients_made_on_demand_are_counted_when_they_train() -> None:
    made: list[int] = []

    def example_data(client: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
        made.append(client)
        inputs = generator.normal(size=(client % 5 + 3, 2)).astype("f")
        return inputs[1:], np.arange(len(inputs) - 1) % 2, inputs[:1], np.array([0])

    world = from_function(
        example_data,
        1000,
        model="linear",
        classes=2,
        training=Training(optimizer="dp-sgd", lr=0.1),
    )
    wire = wire_of(world, 0, Boundary())
    assert len(set(made)) <= 101, "checks look at some clients"
    assert [len(wire.training_data[client]) for client in (3, 4, 505)] == [5, 6, 2]  # type: ignore[attr-defined]
