"""The test examples that decide the noise of a metric of a whole test set."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coterie
from coterie.data.deciding_tests import deciding_tests, digest_of_tests
from coterie.data.objective import binary_cross_entropy
from coterie.data.world import ClientData, Split, World


def world(*targets: Any, objective: Any, subjects: Any = None) -> World:
    """Clients with these test targets, whose training data are the same rows."""
    clients = {}
    for client, client_targets in enumerate(targets):
        values = torch.as_tensor(client_targets)
        whole = Split(torch.zeros(len(values), 3), torch.arange(len(values)), values)
        test = Split(whole.inputs, whole.index, values, subjects)
        clients[client] = ClientData(train=whole, validation=whole, test=test)
    return World(clients=clients, model=lambda: torch.nn.Linear(3, 3), objective=objective)


AREA = coterie.Objective(metrics=["AUROC", "accuracy"])


def test_the_rarer_of_two_classes_decides() -> None:
    counts = deciding_tests(world([1] * 5 + [0] * 19, [0, 0, 1], [0, 0, 0], objective=AREA))
    assert counts == {0: pytest.approx([5, 19]), 1: pytest.approx([1, 2]), 2: []}


def test_of_several_classes_it_is_the_harmonic_mean_over_them() -> None:
    counts = deciding_tests(world([0] * 6 + [1] * 3 + [2] * 3, objective=AREA))
    assert counts
    assert counts[0] == pytest.approx([3 / (1 / 6 + 2 / 3), 3 / (1 / 6 + 2 / 9)])
    # A class that is left out, as padding is, counts as none.
    assert deciding_tests(world([0] * 6 + [1] * 2 + [-100] * 9, objective=AREA)) == {
        0: pytest.approx([2, 6])
    }


def test_labels_and_subjects_are_counted() -> None:
    objective = coterie.Objective(loss=binary_cross_entropy, metrics=["AUROC"])
    labels = [[1.0, 0.0]] * 2 + [[0.0, 0.0]] * 2 + [[0.0, 1.0]] * 4
    counts = deciding_tests(world(labels, objective=objective))
    assert counts
    assert counts[0] == pytest.approx([2 / (1 / 2 + 1 / 4), 2 / (1 / 6 + 1 / 4)])
    # Four rows of one patient are one test.
    patients = torch.tensor([0, 0, 0, 0, 1, 2])
    counts = deciding_tests(world([1, 1, 1, 0, 0, 0], objective=AREA, subjects=patients))
    assert counts == {0: pytest.approx([1, 3])}


def test_the_rarest_class_counts_as_much_in_the_balanced_accuracy() -> None:
    objective = coterie.Objective(metrics=["BalancedAccuracy"])
    counts = deciding_tests(world([0] * 6 + [1] * 2, [0] * 7, objective=objective))
    assert counts == {0: [4.0], 1: [7.0]}


@pytest.mark.parametrize("name", ["F1Score", "accuracy", "AveragePrecision"])
def test_other_metrics_have_none(name: str) -> None:
    assert deciding_tests(world([0, 1], objective=coterie.Objective(metrics=[name]))) is None
    sequences = world([[0, 1], [1, 0]], objective=AREA)
    assert deciding_tests(sequences) is None


def test_a_digest_tells_other_rows_and_targets() -> None:
    first = world([0, 1, 0], objective=AREA)
    again = world([0, 1, 0], objective=coterie.Objective())
    other = world([0, 1, 1], objective=AREA)
    assert digest_of_tests(first) == digest_of_tests(again) != digest_of_tests(other)
