"""The score of a model that has learned nothing: the same prediction for every example, whatever the inputs.

Always predicting the commonest class has a high accuracy where one class is common. Only a model
that is better has learned something from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from coterie.core import Client
from coterie.data.objective import (
    Metric,
    counted,
    mean_label_probability,
    mean_output,
    mean_probability,
)
from coterie.data.world import World
from coterie.pooling import ErrorSums

Kind = Literal["classes", "labels", "numbers"]
"""What is predicted: one class of several, labels of 0 and 1, or numbers."""

MAX_OUTPUTS_IN_MEMORY = 1 << 24
"""Most outputs that are held in memory at a time. A metric that needs a whole test set with more of
them is not computed."""

METRICS_OF_LABELS = ("accuracy", "AUROC", "AveragePrecision", "ExactMatch", "F1Score")
"""Metrics of labels of 0 and 1, which may be floats."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The scores of constant predictions.

    Attributes:
        predicts: The prediction in words, such as ``the class 'on time'``.
        values: Client -> its main metric if the prediction is that of the training data of all
            clients. NaN if it cannot be computed.
        own: Client -> the same for the prediction of its own training data. NaN if its test part
            has one class only, of which every model that says so has all examples right.
        sums: Client -> the sums of ``values``, if the main metric is pooled over clients; empty if
            it is averaged.
    """

    predicts: str
    values: Mapping[Client, float]
    own: Mapping[Client, float]
    sums: Mapping[Client, ErrorSums]


def constant(world: World) -> Constant | None:
    """Compute what constant predictions score on the test part of each client.

    For classes it is their frequency in the training data, so the predicted class is the commonest
    one; for several labels, the frequency of each; for numbers, their mean. Hostile clients'
    training data do not count.

    Args:
        world: The clients and their data.

    Returns:
        The scores; None if targets are not in memory, are of different shapes, or change over
        rounds.
    """
    targets = []
    for data in world.clients.values():
        targets += [data.train.targets, data.test.targets]
    if world.drift is not None or not all(isinstance(part, torch.Tensor) for part in targets):
        return None
    kind = target_kind(world)
    # Labels and numbers need one column for each output; sequences of classes may differ in length.
    if kind != "classes" and len({part.shape[1:] for part in targets}) > 1:
        return None
    class_count = 0
    if kind == "classes":
        class_count = 1 + max((int(part.max()) for part in targets if part.numel()), default=0)

    # One prediction for all clients, from the training data of all that are not hostile.
    honest_targets = [
        data.train.targets
        for client, data in sorted(world.clients.items())
        if client not in world.attacks
    ]
    common_prediction = _prediction(kind, honest_targets, class_count)
    metric = world.objective.named[world.objective.main]
    common_scores: dict[Client, float] = {}
    own_scores: dict[Client, float] = {}
    # Clients may share a test part, which is then scored once.
    score_of_test: dict[int, float] = {}
    for client, data in world.clients.items():
        test_targets = data.test.targets
        if id(test_targets) not in score_of_test:
            score_of_test[id(test_targets)] = _score(kind, metric, common_prediction, test_targets)
        common_scores[client] = score_of_test[id(test_targets)]

        # A test of one class says nothing of a prediction that is made for this client.
        if kind == "classes" and len(test_targets[counted(test_targets)].unique()) < 2:
            own_scores[client] = math.nan
        else:
            own_prediction = _prediction(kind, [data.train.targets], class_count)
            own_scores[client] = _score(kind, metric, own_prediction, test_targets)

    # Errors that are pooled over clients are added up from their sums.
    words = _words(kind, common_prediction, world.about.get("classes"))
    sums: dict[Client, ErrorSums] = {}
    if kind == "numbers":
        for client, data in world.clients.items():
            outputs = common_prediction.expand((len(data.test), *common_prediction.shape))
            client_sums = metric.error_sums(outputs, data.test.targets)
            if client_sums:
                sums[client] = client_sums
    return Constant(predicts=words, values=common_scores, own=own_scores, sums=sums)


def class_shares(world: World) -> dict[int, float]:
    """Return the share of each class in the clients' test parts together, of the classes that occur in any data.

    Args:
        world: The clients and their data.

    Returns:
        Class -> share; empty if the clients have no single class label per example in memory, or no
        test examples.
    """
    train_targets = [data.train.targets for data in world.clients.values()]
    test_targets = [data.test.targets for data in world.clients.values()]
    for targets in (*train_targets, *test_targets):
        if not isinstance(targets, torch.Tensor) or targets.ndim != 1:
            return {}
    if target_kind(world) != "classes":
        return {}
    tested = torch.cat(test_targets)
    tested = tested[counted(tested)].long()
    trained = torch.cat(train_targets)
    trained = trained[counted(trained)].long()
    if not len(tested):
        return {}
    # A class of training examples alone has the share 0.
    classes = torch.cat([tested, trained]).unique().tolist()
    counts = torch.bincount(tested, minlength=max(classes) + 1)
    return {label: int(counts[label]) / len(tested) for label in classes}


def class_name(label: int, names: Any) -> str:
    """Return a class in words.

    Args:
        label: Its number.
        names: The names of all classes, if they are known.

    Example:
        >>> class_name(1, ["late", "on time"]), class_name(1, None)
        ("the class 'on time'", 'class 1')
    """
    has_name = isinstance(names, Sequence) and not isinstance(names, str) and label < len(names)
    return f"the class '{names[label]}'" if has_name else f"class {label}"


def target_kind(world: World) -> Kind:
    """Return what clients predict, from how an ensemble's outputs are combined; otherwise from the type of their targets."""
    combine = world.objective.combine
    if combine is mean_output:
        return "numbers"
    if combine is mean_label_probability:
        return "labels"
    if combine is not mean_probability:
        return "classes"

    # The usual way to combine says nothing where the loss is the user's own: then floats as targets
    # are labels or numbers, and the main metric says which.
    for data in world.clients.values():
        targets = data.train.targets
        if isinstance(targets, torch.Tensor) and targets.is_floating_point():
            return "labels" if world.objective.main in METRICS_OF_LABELS else "numbers"
    return "classes"


def _prediction(
    kind: Kind, client_targets: Sequence[torch.Tensor], class_count: int
) -> torch.Tensor:
    """The outputs for any example: log frequencies of classes ``(classes,)``, logits of labels ``(m,)`` or means ``(m,)``."""
    if kind == "classes":
        counts = torch.zeros(max(class_count, 2), dtype=torch.float64)
        for targets in client_targets:
            labels = targets[counted(targets)].flatten().long()
            counts += torch.bincount(labels, minlength=len(counts))
        # A class of no training example is possible, too: each class counts once more.
        return ((counts + 1) / (counts + 1).sum()).log().float()
    total = torch.stack([targets.double().sum(0) for targets in client_targets]).sum(0)
    rows = sum(len(targets) for targets in client_targets)
    means = (total / rows).reshape(client_targets[0].shape[1:] or (1,))
    return (torch.logit(means, eps=1e-7) if kind == "labels" else means).float()


def _score(kind: Kind, metric: Metric, prediction: torch.Tensor, targets: torch.Tensor) -> float:
    """A metric of the same outputs for each example; NaN if there is none, or if the user's function fails."""
    predictions_per_example = targets[:1].numel() if kind == "classes" else 1
    outputs_per_example = prediction.numel() * predictions_per_example
    if not len(targets):
        return math.nan
    if metric.whole and outputs_per_example * len(targets) > MAX_OUTPUTS_IN_MEMORY:
        return math.nan

    def outputs_for(part: torch.Tensor) -> torch.Tensor:
        # Each prediction of a sequence has outputs of its own.
        if kind == "classes":
            return prediction.expand((*part.shape, len(prediction)))
        return prediction.expand((len(part), *prediction.shape))

    # The user's code can raise anything, and the comparison is only left out.
    try:
        if metric.whole:
            return metric.of(outputs_for(targets), targets).get("", math.nan)
        total = 0.0
        count = 0
        for part in targets.split(max(1, MAX_OUTPUTS_IN_MEMORY // max(outputs_per_example, 1))):
            values = metric.function(outputs_for(part), part)
            total += float(values.sum(dtype=torch.float64))
            count += values.numel()
        return metric.final(total / count) if count else math.nan
    except Exception:
        return math.nan


def _words(kind: Kind, prediction: torch.Tensor, class_names: Any) -> str:
    """The prediction in words."""
    if kind == "classes":
        return class_name(int(prediction.argmax()), class_names)
    if kind == "labels":
        return "the frequency of each label"
    mean = f", {float(prediction[0]):.3g}" if prediction.numel() == 1 else ""
    return f"the mean of the training targets{mean}"
