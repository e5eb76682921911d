"""Classic models of tables: the same predictions as direct calls of scikit-learn, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, r2_score, roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch import nn

import coterie
from coterie.cli import main
from coterie.core import Groups
from coterie.data.constant import target_kind
from coterie.data.objective import MULTILABEL, REGRESSION
from coterie.pooling import pooled
from coterie.randomness import Purpose
from coterie.runs import classic
from coterie.runs.classic import ClassicScores, classic_scores
from coterie.runs.experiment import make
from coterie.settings import UserError
from coterie.training.splits import taken_out

GROUPS: Groups = ((0, 1), (2,))


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "MOST_TREES", 12)


Table = tuple[np.ndarray, np.ndarray]


def a_world(
    targets: str = "classes", rows: int = 60, main_metric: str = "accuracy"
) -> coterie.World:
    """Three clients with a rule of four numbers; the last has the other rule."""
    draws = np.random.default_rng(0)
    clients = {}
    for client in range(3):
        inputs = draws.normal(size=(rows, 4)).astype(np.float32)
        signal = inputs[:, 0] * inputs[:, 1] + inputs[:, 2]
        signal = (signal if client < 2 else -signal) + draws.normal(size=rows) / 4
        if targets == "numbers":
            values = torch.from_numpy(signal.astype(np.float32))
        elif targets == "labels":
            values = torch.from_numpy(np.stack([signal > 0, signal > 1], axis=1).astype(np.float32))
        else:
            values = torch.from_numpy(np.digitize(signal, [-0.5, 0.5]))
        pool = coterie.whole(inputs, values)
        clients[client] = coterie.ClientData(
            train=pool.at(slice(0, rows // 2)),
            validation=pool.at(slice(rows // 2, rows // 2 + 6)),
            test=pool.at(slice(rows // 2 + 6, rows)),
        )
    objectives = {"numbers": REGRESSION, "labels": MULTILABEL}
    objective = objectives.get(targets, coterie.Objective(metrics=[main_metric]))
    if targets == "numbers":
        objective = coterie.Objective(loss=REGRESSION.loss, metrics=[main_metric])
    outputs = {"numbers": 1, "labels": 2}.get(targets, 3)
    return coterie.World(
        clients=clients,
        model=lambda: nn.Linear(4, outputs),
        training=coterie.Training(lr=0.1, batch=10),
        objective=objective,
    )


def rows_of(world: coterie.World, clients: Sequence[int], seed: int) -> tuple[Table, Table, Table]:
    """All training rows of some clients, those to train on while settings are chosen, and those to choose on."""
    parts: list[list[coterie.Split]] = [[], [], []]
    for client in clients:
        train = world.clients[client].train
        division = taken_out(train, 0.2, (seed, Purpose.HOLDOUT, client))
        assert division is not None
        for part, split in zip(parts, (train, division.remaining, division.held_out), strict=True):
            part.append(split)
    tables = []
    for part in parts:
        batches = [split.batch(torch.arange(len(split))) for split in part]
        inputs = np.concatenate([inputs.double().numpy() for inputs, _ in batches])
        targets = np.concatenate([targets.numpy() for _, targets in batches])
        tables.append((inputs, targets))
    whole, remaining, taken = tables
    assert len(whole[0]) == len(remaining[0]) + len(taken[0])
    return whole, remaining, taken


def rows_to_test(world: coterie.World, client: int) -> Table:
    inputs, targets = world.clients[client].test.batch(
        torch.arange(len(world.clients[client].test))
    )
    return inputs.double().numpy(), targets.numpy()


def of(results: Sequence[ClassicScores], model: str, scope: str) -> ClassicScores:
    (found,) = (each for each in results if (each.model, each.scope) == (model, scope))
    return found


@pytest.mark.parametrize(
    ("scope", "parts"),
    [("client", [[0], [1], [2]]), ("group", [[0, 1], [2]]), ("all", [[0, 1, 2]])],
)
def test_logistic_regression_is_that_of_scikit_learn(scope: str, parts: list[list[int]]) -> None:
    world = a_world()
    found = of(classic_scores(world, GROUPS, 3), "logistic regression", scope)
    for part in parts:
        whole, remaining, taken = rows_of(world, part, 3)
        losses = {}
        for penalty in classic.PENALTIES:
            scaler = StandardScaler().fit(remaining[0])
            model = LogisticRegression(C=1 / penalty, max_iter=1000)
            model.fit(scaler.transform(remaining[0]), remaining[1])
            chances = model.predict_proba(scaler.transform(taken[0]))
            losses[penalty] = log_loss(taken[1], chances, labels=[0, 1, 2])
        best = min(losses, key=lambda penalty: losses[penalty])
        scaler = StandardScaler().fit(whole[0])
        model = LogisticRegression(C=1 / best, max_iter=1000).fit(
            scaler.transform(whole[0]), whole[1]
        )
        for client in part:
            inputs, targets = rows_to_test(world, client)
            expected = accuracy_score(targets, model.predict(scaler.transform(inputs)))
            assert found.scores[client] == pytest.approx(expected)


@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_gradient_boosting_is_that_of_scikit_learn(targets: str) -> None:
    has_classes = targets == "classes"
    world = a_world(targets, main_metric="accuracy" if has_classes else "MeanSquaredError")
    found = of(classic_scores(world, GROUPS, 0), "gradient boosting", "all")
    whole, remaining, taken = rows_of(world, [0, 1, 2], 0)
    make = HistGradientBoostingClassifier if has_classes else HistGradientBoostingRegressor
    losses = {}
    for min_leaf in classic.MIN_LEAVES:
        for trees in range(1, 13):
            model = make(
                max_iter=trees, min_samples_leaf=min_leaf, early_stopping=False, random_state=0
            )
            model.fit(*remaining)
            if has_classes:
                losses[min_leaf, trees] = log_loss(taken[1], model.predict_proba(taken[0]))
            else:
                losses[min_leaf, trees] = mean_squared_error(taken[1], model.predict(taken[0]))
    min_leaf, trees = min(losses, key=lambda setting: losses[setting])
    model = make(max_iter=trees, min_samples_leaf=min_leaf, early_stopping=False, random_state=0)
    model.fit(*whole)
    for client in range(3):
        inputs, expected = rows_to_test(world, client)
        score = accuracy_score if has_classes else mean_squared_error
        assert found.scores[client] == pytest.approx(
            score(expected, model.predict(inputs)), rel=1e-5
        )


def test_ridge_regression_has_the_sums_of_a_pooled_metric() -> None:
    world = a_world("numbers", main_metric="R2Score")
    found = of(classic_scores(world, GROUPS, 0), "ridge regression", "client")
    predictions = []
    targets = []
    for client in range(3):
        whole, remaining, taken = rows_of(world, [client], 0)
        losses = {}
        for penalty in classic.PENALTIES:
            scaler = StandardScaler().fit(remaining[0])
            model = Ridge(alpha=penalty).fit(scaler.transform(remaining[0]), remaining[1])
            losses[penalty] = mean_squared_error(
                taken[1], model.predict(scaler.transform(taken[0]))
            )
        scaler = StandardScaler().fit(whole[0])
        best = min(losses, key=lambda penalty: losses[penalty])
        model = Ridge(alpha=best).fit(scaler.transform(whole[0]), whole[1])
        inputs, client_targets = rows_to_test(world, client)
        predictions.append(model.predict(scaler.transform(inputs)))
        targets.append(client_targets)
        assert found.scores[client] == pytest.approx(
            r2_score(targets[-1], predictions[-1]), rel=1e-4
        )
    together = pooled(found.sums.values())
    assert together == pytest.approx(
        r2_score(np.concatenate(targets), np.concatenate(predictions)), rel=1e-4
    )


def test_labels_and_areas_under_the_curve() -> None:
    world = a_world("labels")
    assert target_kind(world) == "labels"
    found = of(classic_scores(world, GROUPS, 0), "logistic regression", "client")
    assert set(found.scores) == {0, 1, 2}
    assert all(0 < score <= 1 for score in found.scores.values())
    area = a_world(main_metric="AUROC", rows=120)
    areas = of(classic_scores(area, GROUPS, 0), "logistic regression", "all").scores
    whole, *_ = rows_of(area, [0, 1, 2], 0)
    scaler = StandardScaler().fit(whole[0])
    # All penalties give nearly the same order.
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(whole[0]), whole[1])
    inputs, targets = rows_to_test(area, 0)
    expected = roc_auc_score(
        targets, model.predict_proba(scaler.transform(inputs)), multi_class="ovr"
    )
    assert areas[0] == pytest.approx(expected, abs=0.03)


def test_test_rows_and_validation_parts_choose_nothing() -> None:
    world = a_world()

    def with_other_targets(split: coterie.Split) -> coterie.Split:
        return coterie.Split(split.inputs, split.index, 2 - split.targets)

    # All validation parts have other targets, and the tests of client 0.
    clients = {}
    for client, data in world.clients.items():
        clients[client] = coterie.ClientData(
            train=data.train,
            validation=with_other_targets(data.validation),
            test=with_other_targets(data.test) if client == 0 else data.test,
        )
    other = replace(world, clients=clients)
    results = classic_scores(world, GROUPS, 0)
    for before, after in zip(results, classic_scores(other, GROUPS, 0), strict=True):
        assert before.scores[0] != after.scores[0]
        assert [before.scores[client] for client in (1, 2)] == [
            after.scores[client] for client in (1, 2)
        ]


def test_a_client_of_one_class_predicts_it_and_groups_of_one_are_clients() -> None:
    world = a_world()
    data = world.clients[0]
    one_class = coterie.Split(data.train.inputs, data.train.index, torch.ones(len(data.train), dtype=torch.int64))  # fmt: skip
    clients = {**world.clients, 0: coterie.ClientData(train=one_class, validation=data.validation, test=data.test)}  # fmt: skip
    changed = replace(world, clients=clients)
    results = classic_scores(changed, ((0,), (1,), (2,)), 0)
    assert {result.scope for result in results} == {"client", "all"}
    share = float((data.test.targets == 1).double().mean())
    for model in ("gradient boosting", "logistic regression"):
        assert of(results, model, "client").scores[0] == pytest.approx(share)


def test_only_tables_have_classic_models() -> None:
    pictures = coterie.SCENARIOS["digits/iid"].build(0)
    with pytest.raises(UserError, match=r"need a table: .*; these inputs are of shape \(1, 8, 8\)"):
        classic_scores(pictures, (tuple(pictures.clients),), 0)


# ----------------------------------------------------------------------------------------------------
# Beside the methods.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs over a table whose rule no linear net learns: y is the sign of a product."""
    to = tmp_path_factory.mktemp("classic")
    draws = np.random.default_rng(0)
    lines = ["site,a,b,finding"]
    for site in "ABC":
        for a, b in draws.normal(size=(200, 2)):
            lines.append(f"{site},{a:.3f},{b:.3f},{'yes' if a * b > 0 else 'no'}")
    (to / "records.csv").write_text("\n".join(lines))
    scenario = {
        "name": "table/clients", "client": "site", "target": "finding", "standardize": "pooled", "model": "linear",
        "train": 0.6,
    }  # fmt: skip
    spec = {
        "scenario": scenario, "data": str(to / "records.csv"), "methods": ["fedavg", "independent"], "rounds": 2,
        "workers": 1, "eval_every": 2,
    }  # fmt: skip
    coterie.begin(make(spec), to / "runs").finish(workers=1)
    return to / "runs"


def test_it_is_said_plainly_that_a_classic_model_beats_every_method(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references = coterie.compare(folder).classic()
    assert [entry["is_reference"] for entry in references] == [False, False, True, True, True, True]
    boosting = references[2]
    assert (boosting["name"], boosting["trained_on"]) == ("gradient boosting", "each client alone")
    assert (boosting["sign"], set(boosting["per_client"])) == (1, {"A", "B", "C"})
    assert boosting["mean"] == pytest.approx(np.mean(list(boosting["per_client"].values())))
    verdict = boosting["verdict"]
    assert verdict.startswith(
        "A classic model beats every method: gradient boosting of each client alone"
    )
    assert "By these tests, federating is not worth it." in verdict
    assert "With rows in one place, a classic model beats every method" in verdict
    # The command prints the same.
    assert main(["compare", str(folder), "--classic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[2]["mean"] == pytest.approx(boosting["mean"])
    assert main(["compare", str(folder), "--classic"]) == 0
    printed = capsys.readouterr().out
    assert "gradient boosting (reference)" in printed
    assert "federating is not worth it" in " ".join(printed.split())


def test_a_world_given_in_python_is_given_again(tmp_path: Path) -> None:
    world = a_world()
    runs = coterie.begin(world, tmp_path / "run", ["fedavg"], rounds=1).finish(workers=1)
    results = coterie.compare(runs)
    with pytest.raises(UserError, match=r"classic\(world=\.\.\.\) takes it"):
        results.classic()
    assert len(results.classic(world=world)) == 5
    with pytest.raises(UserError, match="has other data"):
        results.classic(world=a_world(rows=62))


def test_runs_without_a_table_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [
        "run",
        "--scenario",
        "digits/iid",
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--workers",
        "1",
    ]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "run"), "--classic"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "classic models need a table" in sentence
    assert main(["compare", str(tmp_path / "run"), "--classic", "--metric", "loss"]) == 2
