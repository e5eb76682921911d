"""Groups by cross-losses: distances and ensembles from their definitions, and whole federations of tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from coterie.cli import main
from coterie.contrib.trees import TreeFederation, federate
from coterie.contrib.trees.grouping import (
    Candidate,
    HeldOutPredictions,
    candidates,
    chosen,
    distances_of,
    ensemble,
    losses_of,
)
from coterie.contrib.trees.models import model_of
from coterie.data.world import World
from coterie.runs.experiment import make
from coterie.settings import SettingError, UserError
from coterie.training.trial import _fresh_module

SPEC: dict[str, Any] = {
    "scenario": {"name": "synthetic/groups", "clients": 6},
    "methods": [{"name": "fedavg"}],
}


@pytest.fixture(scope="module")
def world() -> World:
    return make(SPEC).world(0)


@pytest.fixture(scope="module")
def federation(world: World) -> TreeFederation:
    return federate(world, "linear")


def random_held_out(n: int, seed: int = 0) -> HeldOutPredictions:
    """Random probabilities of three classes for 5 held-out rows of each client."""
    rng = np.random.default_rng(seed)
    predictions = [[rng.dirichlet(np.ones(3), size=5) for _ in range(n)] for _ in range(n)]
    targets = [rng.integers(3, size=5).astype(float) for _ in range(n)]
    return HeldOutPredictions("classes", predictions, targets, rng.uniform(1, 9, n))


def test_cross_losses_are_the_mean_cross_entropies_of_all_models_at_all_clients() -> None:
    held_out = random_held_out(4)
    losses = held_out.cross_losses()
    for model in range(4):
        for client in range(4):
            total = 0.0
            for row, target in enumerate(held_out.targets[client]):
                total -= np.log(held_out.predictions[model][client][row, int(target)])
            assert losses[model, client] == pytest.approx(total / 5)


def test_the_distance_of_two_clients_is_what_they_lose_by_each_others_model() -> None:
    losses = random_held_out(5).cross_losses()
    distances = distances_of(losses)
    for one in range(5):
        for other in range(5):
            lost_at_other = losses[one, other] - losses[other, other]
            lost_at_one = losses[other, one] - losses[one, one]
            expected = max((lost_at_other + lost_at_one) / 2, 0)
            assert distances[one, other] == pytest.approx(0 if one == other else expected)


def test_a_client_with_hard_rows_is_not_far() -> None:
    # All models lose 5 at client 2.
    losses = np.array([[0.1, 0.1, 5.0], [0.1, 0.1, 5.0], [0.1, 0.1, 5.0]])
    assert distances_of(losses).max() == 0


def test_an_ensemble_weighs_models_by_their_rows() -> None:
    held_out = random_held_out(3)
    labels = np.array([0, 1, 0])
    losses = held_out.losses_of_groups(labels)
    weights = held_out.weights
    for client in (0, 2):
        mean = (
            weights[0] * held_out.predictions[0][client]
            + weights[2] * held_out.predictions[2][client]
        ) / (weights[0] + weights[2])
        expected = losses_of("classes", mean, held_out.targets[client])
        np.testing.assert_allclose(losses[client], expected)
    alone = losses_of("classes", held_out.predictions[1][1], held_out.targets[1])
    np.testing.assert_allclose(losses[1], alone)


def test_losses_of_labels_and_numbers() -> None:
    probabilities = np.array([[0.9, 0.2], [0.5, 0.6]])
    labels = np.array([[1.0, 0.0], [0.0, 1.0]])
    expected = [-(np.log(0.9) + np.log(0.8)) / 2, -(np.log(0.5) + np.log(0.6)) / 2]
    np.testing.assert_allclose(losses_of("labels", probabilities, labels), expected)
    numbers = np.array([[1.0], [4.0]])
    np.testing.assert_allclose(losses_of("numbers", numbers, np.array([[3.0], [4.0]])), [4, 0])


def test_as_few_groups_as_are_not_worse_by_a_standard_error() -> None:
    labels = [np.zeros(3, int), np.array([0, 0, 1]), np.array([0, 1, 2])]
    found = [
        Candidate(labels[0], 0.9, 0.5, 0.1),
        Candidate(labels[1], 0.45, 0.05, 0.06),
        Candidate(labels[2], 0.4, 0.0, 0.0),
    ]
    assert chosen(found).num_groups == 2


def test_candidates_are_all_cuts_and_the_best_is_behind_by_nothing() -> None:
    held_out = random_held_out(5, seed=3)
    found = candidates(held_out, held_out.cross_losses())
    assert [candidate.num_groups for candidate in found] == [1, 2, 3, 4, 5]
    assert min(candidate.behind for candidate in found) == 0
    for candidate in found:
        losses = held_out.losses_of_groups(candidate.labels)
        assert candidate.loss == pytest.approx(np.mean([row.mean() for row in losses]))


def test_a_mean_of_predictions() -> None:
    mean = ensemble([np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])], np.array([3.0, 1.0]))
    np.testing.assert_allclose(mean, [[0.75, 0.25]])


def test_the_true_groups_are_found(world: World, federation: TreeFederation) -> None:
    assert world.truth is not None
    assert sorted(map(sorted, federation.groups)) == sorted(map(sorted, world.truth))
    scores = federation.scores
    assert scores["groups"].mean() > scores["all"].mean() + 0.3
    assert "better than with one ensemble for all" in federation.verdict()
    # A client that is alone in its group has its own model.
    for members in federation.groups:
        if len(members) == 1:
            position = federation.clients.index(members[0])
            assert scores["groups"][position] == scores["alone"][position]


def test_each_client_is_placed_in_its_group_by_its_test_rows(
    world: World, federation: TreeFederation
) -> None:
    for group, members in enumerate(federation.groups):
        for member in members:
            test = world.clients[member].test
            inputs, targets = test.batch(torch.arange(len(test)))
            placement = federation.place(inputs.numpy(), targets.numpy())
            assert placement.best == group
            assert placement.losses[group] == min(placement.losses)
            assert f"group {group}" in str(placement)
    with pytest.raises(UserError, match="placed by labelled rows"):
        federation.place(np.zeros((3, 20)), [1])


def test_a_given_number_of_groups(world: World) -> None:
    assert len(federate(world, "linear", groups=2).groups) == 2
    with pytest.raises(SettingError, match="groups must be 1 to the 6 clients, got 7"):
        federate(world, "linear", groups=7)


@pytest.mark.parametrize("family", ["random forest", "xgboost"])
def test_models_of_other_families(family: str) -> None:
    if family == "xgboost":
        pytest.importorskip("xgboost", reason="XGBoost is not installed")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(120, 3))
    # Class 1 has no example.
    targets = np.where(inputs[:, 0] > 0, 2.0, 0.0)
    model = model_of(family)
    setting = model.choose((inputs[:80], targets[:80]), (inputs[80:], targets[80:]), 3)
    probabilities = model.fit(setting, (inputs, targets), 3)(inputs)
    assert probabilities.shape == (120, 3)
    assert (probabilities.argmax(axis=1) == targets).mean() > 0.95
    assert probabilities[:, 1].max() < 1e-6
    numbers = model.fit(setting, (inputs, inputs[:, 0]), 0)(inputs)
    assert np.corrcoef(numbers, inputs[:, 0])[0, 1] > 0.9


def test_mistakes_are_one_sentence(world: World) -> None:
    with pytest.raises(UserError, match="random forest"):
        federate(world, "forest")
    pictures = make({**SPEC, "scenario": {"name": "digits/iid", "clients": 3}}).world(0)
    with pytest.raises(UserError, match="need a table"):
        federate(pictures, "linear")


def test_methods_refuse_models_without_updates(world: World) -> None:
    from dataclasses import replace

    with pytest.raises(UserError, match="coterie trees groups clients with such models"):
        _fresh_module(replace(world, model=LogisticRegression))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(
        'methods = ["fedavg"]\n[scenario]\nname = "synthetic/groups"\nclients = 4\n',
        encoding="utf-8",
    )
    assert main(["trees", str(file), "--family", "linear", "--matrix"]) == 0
    printed = capsys.readouterr().out
    assert "the ensemble of each group" in printed
    assert "on held-out rows" in printed
    assert main(["trees", str(file), "--family", "linear", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert np.array(result["cross_losses"]).shape == (4, 4)
    assert [entry["client"] for entry in result["clients"]] == [0, 1, 2, 3]
    assert main(["trees", str(file), "--family", "boosting"]) == 2
    assert "gradient boosting" in capsys.readouterr().err
