"""The result of a strategy: one model, as other strategies have it, and what it says about the others."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, MetricRecord

from coterie.boundary import Boundary
from coterie.engines.flower import boundary_mod
from coterie.methods import ACFL, CFL, IFCA, FedAvg, FedPer
from coterie.randomness import seeded
from coterie.settings import UserError
from flowered import Here, app_of, strategy_of
from small import world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3, 4, 5)
SPLIT = CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1)
"""It splits in the first round."""


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr.coterie")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@seeded(0)
def test_one_model_for_all_needs_no_words(caplog: pytest.LogCaptureFixture) -> None:
    tried = world(IDS)
    strategy = strategy_of(FedAvg(), tried)
    result = strategy.start(Here(app_of(tried), 6), num_rounds=2)
    assert result.groups == (IDS,)
    assert warnings_of(caplog) == result.cautions() == []
    assert repr(result).startswith("Global Arrays:")
    net = tried.model()
    net.load_state_dict(result.arrays.to_torch_state_dict())  # as in Flower's quickstart
    assert strategy.last is not None
    assert torch.equal(strategy.settings.layout.row(net), strategy.last.assignment.models[0])


def test_of_several_groups_the_result_says_whose_model_it_has(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tried, seen = world(IDS), []

    def tested(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(arrays)
        return MetricRecord({"round": number})

    grid, strategy = Here(app_of(tried), 6), strategy_of(SPLIT, tried, out=tmp_path / "run")
    result = strategy.start(grid, num_rounds=2, evaluate_fn=tested)
    served = strategy.assignment
    assert served is not None
    assert len(result.groups) > 1
    assert sorted(result.groups) == list(served.groups)
    assert [len(group) for group in result.groups] == sorted(
        (len(group) for group in served.groups), reverse=True
    )
    layout = strategy.settings.layout
    for client in IDS:
        assert torch.equal(
            layout.row(result.arrays_of(client).to_torch_state_dict()),
            served.models[served.row[client]],
        )
    first = result.groups[0]
    assert result.arrays is result.arrays_of(first[-1])
    assert seen[-1] is result.arrays
    (said,) = warnings_of(caplog)
    models = len(set(served.row.values()))
    assert said == (
        f"the clients are in {len(result.groups)} groups and have {models} models: result.arrays is that of {len(first)} "
        f"clients ({', '.join(map(str, first))}); result.groups lists the groups, and result.arrays_of(client) returns the "
        "model of a client"
    )
    assert repr(result).startswith(f"Note: {said}.\nGlobal Arrays:")
    again = strategy_of(SPLIT, tried, out=tmp_path / "run").start(
        grid, num_rounds=2
    )  # it has all its rounds
    assert again.groups == result.groups
    assert again.cautions() == [said]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            FedPer(),
            r"^layers stay at the clients \(2\); the result has the values of the first model there$",
        ),
        (ACFL(pretrain_epochs=1), "have 6 models: result.arrays is that of client 0 alone; "),
        (
            replace(SPLIT, ensemble=True),
            "^clients are served by several models together; .* have only the last$",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_the_arrays_are_not_is_said(method: Any, says: str) -> None:
    tried = world(IDS)
    result = strategy_of(method, tried).start(Here(app_of(tried), 6), num_rounds=3)
    assert any(re.search(says, said) for said in result.cautions()), result.cautions()


def test_sealed_models_are_said_to_be_sealed() -> None:
    tried, boundary = world(IDS), Boundary(rotation="permute", secret=2**127 + 1)
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 6)
    result = strategy_of(FedAvg(), tried, boundary=replace(boundary, secret=None)).start(
        grid, num_rounds=1
    )
    assert result.cautions() == [
        "the models are sealed by the boundary's rotation; only the clients can open them"
    ]


def test_a_client_that_the_run_does_not_have_is_one_sentence() -> None:
    tried = world(IDS)
    result = strategy_of(IFCA(models=2), tried).start(Here(app_of(tried), 6), num_rounds=1)
    with pytest.raises(
        UserError, match=r"^the result has no client 9; its clients are 0, 1, 2, 3, 4, 5$"
    ):
        result.arrays_of(9)
