"""What constant predictions score, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.data.constant import class_shares, constant
from coterie.data.objective import Objective
from coterie.data.world import ClientData, World, whole


def world(clients: dict[str, tuple[Any, Any]], outputs: int = 2, **more: Any) -> World:
    """Clients with these targets for training and tests, and inputs that do not matter."""

    def split(targets: Any) -> Any:
        made = torch.as_tensor(targets)
        return whole(torch.zeros(len(made), 3), made)

    data = {
        name: ClientData(train=split(train), validation=split([0] * 0), test=split(test))
        for name, (train, test) in clients.items()
    }
    return World(clients=data, model=lambda: torch.nn.Linear(3, outputs), **more)


def test_the_commonest_class_of_all_and_of_each_client() -> None:
    made = world(
        {"a": ([0, 0, 0, 1], [0, 0, 1, 1]), "b": ([0, 1, 1], [1, 1, 1, 0])},
        about={"classes": ["on time", "late"]},
    )
    found = constant(made)
    assert found
    assert found.predicts == "the class 'on time'"
    assert found.values == {0: 0.5, 1: 0.25}
    assert found.own == {0: 0.5, 1: 0.75}


def test_a_test_part_of_one_class_has_no_floor_of_its_own() -> None:
    found = constant(world({"a": ([0, 1, 1], [1, 1]), "b": ([0, 0, 0, 0], [0, 1])}))
    assert found
    assert math.isnan(found.own[0])
    assert found.values == {0: 0.0, 1: 0.5}


@pytest.mark.parametrize(
    ("metric", "value"),
    [("AUROC", 0.5), ("BalancedAccuracy", 0.5), ("accuracy", 0.75), ("ExactMatch", 0.75)],
)
def test_other_metrics_of_two_classes(metric: str, value: float) -> None:
    found = constant(world({"a": ([0, 0, 1], [0, 0, 0, 1])}, objective=Objective(metrics=[metric])))
    assert found
    assert found.values[0] == pytest.approx(value)


def test_auroc_and_balanced_accuracy_of_three_classes() -> None:
    for metric, value in (("AUROC", 0.5), ("BalancedAccuracy", 1 / 3)):
        found = constant(
            world({"a": ([0, 1, 1, 2], [0, 1, 1, 2, 2])}, 3, objective=Objective(metrics=[metric]))
        )
        assert found
        assert found.values[0] == pytest.approx(value)


def test_the_mean_of_the_training_targets() -> None:
    targets = {
        "a": (np.array([1.0, 3.0]), np.array([2.0, 4.0])),
        "b": (np.array([8.0, 8.0]), np.array([6.0, 10.0])),
    }
    for metric, values, own in (
        ("MeanAbsoluteError", [2.0, 3.0], [1.0, 2.0]),  # the mean of all is 5
        ("RootMeanSquaredError", [math.sqrt(5), math.sqrt(13)], [math.sqrt(2), 2.0]),
        ("R2Score", [-4.0, 1 - 26 / 8], [-1.0, 0.0]),
    ):
        made = world(
            targets,
            1,
            objective=Objective(
                loss=coterie.REGRESSION.loss, metrics=[metric], combine=coterie.REGRESSION.combine
            ),
        )
        found = constant(made)
        assert found
        assert found.predicts == "the mean of the training targets, 5"
        assert list(found.values.values()) == pytest.approx(values)
        assert list(found.own.values()) == pytest.approx(own)


def test_several_labels() -> None:
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    for metric, value in (("ExactMatch", 0.5), ("AUROC", 0.5), ("AveragePrecision", 0.5)):
        objective = Objective(
            loss=coterie.MULTILABEL.loss, metrics=[metric], combine=coterie.MULTILABEL.combine
        )
        found = constant(world({"a": (targets, targets)}, objective=objective))
        assert found
        assert found.values[0] == pytest.approx(value)


def test_perplexity_of_class_frequencies() -> None:
    found = constant(
        world(
            {"a": ([0] * 99_999 + [1] * 99_999, [0, 1, 1])},
            objective=Objective(metrics=["perplexity"]),
        )
    )
    assert found
    assert found.values[0] == pytest.approx(2.0)


def test_hostile_training_data_do_not_count() -> None:
    attack = {1: coterie.data.world.Attack(kind="sign-flip")}
    found = constant(world({"a": ([0, 0, 1], [0, 1]), "b": ([1] * 9, [0, 0])}, attacks=attack))
    assert found
    assert found.predicts == "class 0"


def test_a_metric_that_fails_is_not_known() -> None:
    def fails(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        raise RuntimeError("never")

    found = constant(
        world({"a": ([0, 0, 1], [0, 1])}, objective=Objective(metrics={"mine": fails}))
    )
    assert found
    assert math.isnan(found.values[0])


def test_class_shares_are_those_of_the_test_examples() -> None:
    assert class_shares(world({"a": ([0, 2], [0, 0, 1]), "b": ([0], [1])})) == {
        0: 0.5,
        1: 0.5,
        2: 0.0,
    }
    assert (
        class_shares(
            world({"a": (np.array([0.5]), np.array([0.5]))}, 1, objective=coterie.REGRESSION)
        )
        == {}
    )


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import balanced_accuracy_score

    generator = torch.Generator().manual_seed(0)
    outputs, targets = (
        torch.randn(200, 4, generator=generator),
        torch.randint(0, 3, (200,), generator=generator),
    )
    found = coterie.METRICS["BalancedAccuracy"].of(outputs, targets)[""]
    with pytest.warns(UserWarning, match="y_pred contains classes"):
        assert found == pytest.approx(balanced_accuracy_score(targets, outputs.argmax(1)))
