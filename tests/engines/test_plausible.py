"""Losses that a client cannot have measured are refused, in every engine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coterie.data.objective import METRICS, MULTILABEL, REGRESSION, Objective, cross_entropy
from coterie.engines import rounds
from coterie.engines.plausible import Plausible
from coterie.methods import IFCA
from coterie.training.learner import Learner
from small import world


@pytest.mark.parametrize(
    ("objective", "nonnegative", "share"),
    [
        (Objective(), True, True),
        (REGRESSION, True, False),
        (MULTILABEL, True, True),
        (Objective(loss=nn.functional.mse_loss, metrics=["RootMeanSquaredError"]), True, False),
        (Objective(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 99.0]))), True, True),
        (Objective(loss=nn.GaussianNLLLoss()), False, True),
        (Objective(loss=lambda outputs, targets: outputs.mean()), False, True),
        (Objective(metrics={"accuracy": lambda outputs, targets: 7.0}), True, False),
        (Objective(metrics=["perplexity"]), True, False),
    ],
    ids=[
        "classes",
        "numbers",
        "labels",
        "torch's function",
        "a module",
        "may be negative",
        "own",
        "own metric",
        "perplexity",
    ],
)
def test_what_an_objective_says_about_its_numbers(
    objective: Objective, nonnegative: bool, share: bool
) -> None:
    assert Plausible.of_objective(objective) == Plausible(nonnegative=nonnegative, share=share)


def test_rounding_and_what_is_no_number_is_no_negative_loss() -> None:
    known = Plausible(nonnegative=True, share=True)
    assert known.flaw([0.0, -1e-8, math.nan, 1e30], [0.0, 1.0, 1.0 + 1e-9], "train") is None
    assert known.flaw([0.5, -1e-3], [], "train") is not None
    assert Plausible().flaw([-1e30], [7.0], "train") is None
    assert METRICS["accuracy"].share


@pytest.mark.parametrize(
    ("loss", "refused"),
    [(cross_entropy, {2}), (lambda o, t: cross_entropy(o, t) - 5.0, set())],
    ids=["", "own"],
)
def test_in_one_process_as_over_flower(
    loss: Any, refused: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = world(objective=Objective(loss=loss))
    target, usual = tried.clients[2].train.inputs, Learner.sums

    def hostile(self: Learner, models: Any, parts: Any) -> Any:
        found = usual(self, models, parts)
        for i, (inputs, _, _) in enumerate(parts):
            if inputs is target:
                found[i] = [{**sums, "loss": (-1e30, 1)} for sums in found[i]]
        return found

    monkeypatch.setattr(Learner, "sums", hostile)
    (done,) = rounds.rounds(IFCA(models=2), replace(tried), rounds=1, workers=1)
    assert set(done.refused) == refused
    if refused:
        assert (
            done.refused[2]
            == "it measured a loss of -1e+30 on its train data, and the objective's loss is never negative"
        )
