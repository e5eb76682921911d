"""Metrics over a client's whole test set, by torchmetrics' names: each from its definition or another library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from torch import Tensor, nn

import coterie
from coterie.data.objective import (
    IGNORED,
    METRICS,
    MULTILABEL,
    REGRESSION,
    Metric,
    Objective,
    Tally,
    f1,
    squared_error,
)
from coterie.randomness import seeded
from coterie.records.shown import Shown, spread
from coterie.settings import SettingError
from small import CLASSES, FEATURES, linear, world


def of(name: str, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """A metric of a test set that arrives in three batches."""
    tally = Tally(Objective(metrics=[name], loss=lambda o, y: torch.zeros(())))
    for part in torch.arange(len(targets)).tensor_split(3):
        tally.add(outputs[part], targets[part])
    return {
        key: value for key, value in tally.objective.scores(tally.result()).items() if key != "loss"
    }


def drawn(count: int, classes: int, share: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    outputs = torch.from_numpy(rng.normal(size=(count, classes)).astype(np.float32))
    labels = (
        rng.integers(0, classes, count)
        if classes > 2
        else (rng.random(count) < share).astype(np.int64)
    )
    return outputs, torch.from_numpy(labels)


@pytest.mark.parametrize("share", [0.5, 0.005], ids=["half", "one in 200"])
@pytest.mark.parametrize("form", ["two outputs", "one output", "flat"])
def test_auroc_is_scikit_learns_also_of_rare_labels(share: float, form: str) -> None:
    outputs, labels = drawn(4000, 2, share)
    logits = outputs[:, 1] - outputs[:, 0]
    given = {"two outputs": outputs, "one output": logits[:, None], "flat": logits}[form]
    expected = sklearn.metrics.roc_auc_score(labels.numpy(), logits.numpy().astype(np.float64))
    assert of("AUROC", given, labels)["AUROC"] == pytest.approx(expected, abs=1e-6)
    precision = sklearn.metrics.average_precision_score(
        labels.numpy(), logits.numpy().astype(np.float64)
    )
    assert of("AveragePrecision", given, labels)["AveragePrecision"] == pytest.approx(
        precision, abs=1e-6
    )


def test_auroc_by_its_definition_with_ties() -> None:
    """The share of pairs of a positive and a negative in which the positive scores higher; ties count half."""
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 5, 40).astype(np.float32), rng.integers(0, 2, 40)
    pairs = [np.sign(a - b) / 2 + 0.5 for a in scores[labels == 1] for b in scores[labels == 0]]
    found = of("AUROC", torch.from_numpy(scores), torch.from_numpy(labels))["AUROC"]
    assert found == pytest.approx(np.mean(pairs), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 4, 7])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_ties_of_several_classes_by_the_definition(classes: int, shift: float) -> None:
    """Logits of few values, and examples that differ by a constant: chances are equal, but not to the last bit."""
    rng = np.random.default_rng(3)
    levels, labels = rng.integers(0, 3, (90, classes)), rng.integers(0, classes, 90)
    outputs = 1.1 * levels + rng.random((90, 1)) + shift * rng.integers(0, 2, (90, 1))
    against = (
        np.exp(1.1 * (levels[:, None, :] - levels[:, :, None])).sum(axis=2).round(9)
    )  # 1 / chance, without the constant
    areas = []
    for c in range(classes) if classes > 2 else [1]:
        pairs = [
            np.sign(b - a) / 2 + 0.5
            for a in against[labels == c, c]
            for b in against[labels != c, c]
        ]
        areas.append(np.mean(pairs))
    found = of("AUROC", torch.from_numpy(outputs), torch.from_numpy(labels))["AUROC"]
    assert found == pytest.approx(np.mean(areas), abs=1e-12)


def test_chances_that_are_all_but_one_are_still_ordered() -> None:
    outputs = torch.tensor([[60.0, 0.0, 0.0], [50.0, 0.0, 0.0], [55.0, 0.0, 0.0], [45.0, 0.0, 0.0]])
    assert of("AUROC", outputs, torch.tensor([0, 1, 0, 2]))["AUROC"] == pytest.approx(
        np.mean([1.0, 2 / 3, 1.0])
    )


def test_several_classes_and_labels_are_means_over_those_that_occur() -> None:
    outputs, labels = drawn(300, 4)
    labels[labels == 3] = 0  # class 3 never occurs
    chances = outputs.double().softmax(1).numpy()
    each = [sklearn.metrics.roc_auc_score(labels.numpy() == c, chances[:, c]) for c in range(3)]
    assert of("AUROC", outputs, labels)["AUROC"] == pytest.approx(np.mean(each), abs=1e-6)
    several = (torch.from_numpy(np.random.default_rng(2).random((300, 3))) < 0.3).long()
    several[:, 1] = 1  # always there
    each = [
        sklearn.metrics.average_precision_score(several[:, i], outputs[:, i].double())
        for i in (0, 2)
    ]
    found = of("AveragePrecision", outputs[:, :3], several)["AveragePrecision"]
    assert found == pytest.approx(np.mean(each), abs=1e-6)
    assert math.isnan(of("AUROC", outputs, torch.zeros(300, dtype=torch.int64))["AUROC"])


def test_f1_of_a_single_label_is_that_of_two_classes() -> None:
    outputs, labels = (
        torch.tensor([[2.0], [-1.0], [-1.0], [-1.0]]),
        torch.tensor([[1], [1], [0], [0]]),
    )
    assert f1(outputs, labels) == f1(outputs[:, 0], labels[:, 0]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("classes", [2, 3])
def test_f1_and_recalls_are_scikit_learns(classes: int) -> None:
    outputs, labels = drawn(200, classes)
    guessed, average = outputs.argmax(1), "binary" if classes == 2 else "macro"
    expected = sklearn.metrics.f1_score(labels, guessed, average=average)
    assert of("F1Score", outputs, labels)["F1Score"] == pytest.approx(expected)
    recalls = sklearn.metrics.recall_score(labels, guessed, average=None)
    assert of("Recall", outputs, labels) == pytest.approx(
        {f"Recall/{c}": recalls[c] for c in range(classes)}
    )


def test_errors_of_numbers_are_scikit_learns() -> None:
    rng = np.random.default_rng(3)
    outputs, targets = (
        torch.from_numpy(rng.normal(size=(50, 2)).astype(np.float32)) for _ in range(2)
    )
    both = targets.numpy(), outputs.numpy()
    expected = {
        "MeanAbsoluteError": sklearn.metrics.mean_absolute_error(*both),
        "MeanSquaredError": sklearn.metrics.mean_squared_error(*both),
        "RootMeanSquaredError": sklearn.metrics.mean_squared_error(*both) ** 0.5,
        "R2Score": sklearn.metrics.r2_score(*both),
    }
    for name, value in expected.items():
        assert of(name, outputs, targets)[name] == pytest.approx(value, rel=1e-5)
    assert math.isnan(METRICS["R2Score"].of(outputs[:1], targets[:1])[""])


def test_padding_counts_in_no_metric() -> None:
    outputs = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = outputs.argmax(-1)
    targets[0, 1:], targets[1] = IGNORED, IGNORED
    targets[2, 0] = (targets[2, 0] + 1) % 5  # one mistake among 1 + 3 + 3 predictions
    assert of("accuracy", outputs, targets)["accuracy"] == pytest.approx(6 / 7)
    assert of("ExactMatch", outputs, targets)["ExactMatch"] == pytest.approx(3 / 4)
    loss = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    assert of("perplexity", outputs, targets)["perplexity"] == pytest.approx(
        math.exp(loss), rel=1e-5
    )
    tally = Tally(Objective())
    tally.add(outputs[:2], targets[:2])
    tally.add(outputs[2:], targets[2:])
    assert tally.objective.scores(tally.result())["loss"] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.slow
def test_metrics_of_ones_own_stand_beside_named_ones() -> None:
    objective = Objective(metrics={"accuracy": "accuracy", "mine": lambda outputs, targets: 0.5})
    assert objective.named["accuracy"] is METRICS["accuracy"]
    assert (objective.main, list(objective.named)) == ("accuracy", ["accuracy", "mine"])


def test_torchmetrics_objects_and_functions_are_metrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    outputs, labels = drawn(500, 3)
    given = {
        "theirs": torchmetrics.AUROC(task="multiclass", num_classes=3),
        "error": torchmetrics.HammingDistance(task="multiclass", num_classes=3),
        "each": torchmetrics.Recall(task="multiclass", num_classes=3, average=None),
        "share of 0": lambda outputs, targets: (outputs.argmax(1) == 0).float(),
    }
    objective = Objective(metrics=given, main="error")
    assert (objective.better, objective.named["theirs"].better) == ("smaller", "greater")
    tally = Tally(objective)
    tally.add(outputs[:100], labels[:100])
    tally.add(outputs[100:], labels[100:])
    scores = objective.scores(tally.result())
    assert scores["theirs"] == pytest.approx(of("AUROC", outputs, labels)["AUROC"], abs=1e-6)
    assert scores["error"] == pytest.approx(
        1 - of("accuracy", outputs, labels)["accuracy"], abs=1e-6
    )
    assert {name for name in scores if name.startswith("each")} == {"each/0", "each/1", "each/2"}
    assert scores["share of 0"] == pytest.approx(float((outputs.argmax(1) == 0).float().mean()))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"metrics": ["AUROCC"]}, "there is no metric 'AUROCC'; did you mean AUROC"),
        ({"metrics": {"mine": "AUROCC"}}, "there is no metric 'AUROCC'; did you mean AUROC"),
        ({"metrics": []}, "at least one metric besides the loss"),
        ({"metrics": {"loss": METRICS["AUROC"]}}, "a metric cannot have the name 'loss'"),
        (
            {"metrics": {"client": METRICS["AUROC"]}},
            "a metric cannot have the name 'client', which tables and records use",
        ),
        ({"metrics": ["auroc"]}, "there is no metric 'auroc'; did you mean AUROC"),
        (
            {"metrics": {"mine": nn.Linear}},
            "metric 'mine' must be an object or a function, got the class Linear: call it",
        ),
        (
            {"metrics": {"mine": 3}},
            "metric 'mine' must be a function of .outputs, targets., a torchmetrics object, a coterie.Metric or its name",
        ),
        ({"main": "AUROC"}, "the main metric must be one of accuracy, got 'AUROC'"),
    ],
)
def test_mistakes_are_one_sentence(settings: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        Objective(**settings)
    with pytest.raises(SettingError, match='better must be "greater" or "smaller"'):
        Metric(len, "less")  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_reports_what_a_whole_test_set_gives(workers: int) -> None:
    tried = world(model=linear, objective=Objective(metrics=["AUROC", "accuracy"]))
    (done,) = coterie.run("fedavg", tried, rounds=1, workers=workers)
    with seeded(0):
        net = linear()
    net.load_state_dict({"weight": done.assignment.models[0][: FEATURES * CLASSES].view(CLASSES, FEATURES),
                         "bias": done.assignment.models[0][FEATURES * CLASSES :]})  # fmt: skip
    for client, data in tried.clients.items():
        outputs = net(data.test.inputs).detach()
        assert done.scores is not None
        expected = METRICS["AUROC"].of(outputs, data.test.targets)[""]
        assert done.scores[client]["AUROC"] == pytest.approx(expected, abs=1e-6)


def test_objectives_of_numbers_and_labels() -> None:
    assert (REGRESSION.main, REGRESSION.better, MULTILABEL.main) == (
        "MeanAbsoluteError",
        "smaller",
        "AveragePrecision",
    )
    outputs, targets = torch.zeros(4, 1), torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert float(squared_error(outputs, targets)) == 1.0


@pytest.mark.parametrize(
    "loss",
    [squared_error, nn.functional.mse_loss, nn.functional.huber_loss, nn.L1Loss(), nn.MSELoss()],
)
def test_an_ensemble_for_numbers_has_the_mean_of_outputs(loss: Any) -> None:
    two = torch.tensor([[[1.0]], [[5.0]]])
    assert float(Objective(loss=loss, metrics=["R2Score"]).combine(two)) == 3.0
    labels = Objective(loss=MULTILABEL.loss, metrics=["AUROC"]).combine(two)
    torch.testing.assert_close(labels.sigmoid(), two.sigmoid().mean(0))
    torch.testing.assert_close(
        Objective().combine(two.expand(2, 1, 3)).exp(), torch.full((1, 3), 1 / 3)
    )


def test_a_diverged_model_has_no_accuracy() -> None:
    tally = Tally(Objective(metrics=["accuracy", "ExactMatch", "AUROC", "Recall"]))
    tally.add(torch.full((6, 3), math.nan), torch.tensor([0, 0, 0, 1, 1, 2]))
    assert all(math.isnan(value) for value in tally.objective.scores(tally.result()).values())


@pytest.mark.parametrize(
    ("metric", "worst"),
    [("AUROC", 0.2), ("accuracy", 0.2), ("loss", 0.9), ("perplexity", 0.9), ("mine", 0.2)],
)
def test_the_worst_client_is_that_of_each_metrics_own_direction(metric: str, worst: float) -> None:
    clients = {str(i): {"group": 0, metric: value} for i, value in enumerate((0.2, 0.9, 0.5))}
    line = Shown(main="AUROC").line({"clients": clients})
    assert spread(line, metric)["worst"] == worst
