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

CELLS = 1 << 24
"""Most outputs that are held in memory at a time. A metric that needs a whole test set with more of
them is not computed."""


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
    honest = [data for client, data in sorted(world.clients.items()) if client not in world.attacks]
    targets = [
        split.targets for data in world.clients.values() for split in (data.train, data.test)
    ]
    if world.drift is not None or not all(isinstance(one, torch.Tensor) for one in targets):
        return None
    kind = _kind(world)
    if kind != "classes" and len({one.shape[1:] for one in targets}) > 1:
        return None
    classes = (
        1 + max((int(one.max()) for one in targets if one.numel()), default=0)
        if kind == "classes"
        else 0
    )
    common = _prediction(kind, [data.train.targets for data in honest], classes)
    metric = world.objective.named[world.objective.main]
    values: dict[Client, float] = {}
    own: dict[Client, float] = {}
    known: dict[int, float] = {}  # clients may share a test part
    for client, data in world.clients.items():
        test = data.test.targets
        if id(test) not in known:
            known[id(test)] = _score(kind, metric, common, test)
        values[client] = known[id(test)]
        one_class = kind == "classes" and len(test[counted(test)].unique()) < 2
        own[client] = (
            math.nan
            if one_class
            else _score(kind, metric, _prediction(kind, [data.train.targets], classes), test)
        )
    words = _words(kind, common, world.about.get("classes"))
    sums = (
        {client: _sums(metric, common, data.test.targets) for client, data in world.clients.items()}
        if kind == "numbers"
        else {}
    )
    return Constant(
        predicts=words,
        values=values,
        own=own,
        sums={client: each for client, each in sums.items() if each},
    )


def class_shares(world: World) -> dict[int, float]:
    """Return the share of each class in the clients' test parts together, of the classes that occur in any data.

    Args:
        world: The clients and their data.

    Returns:
        Class -> share; empty if the clients have no single class label per example in memory, or no
        test examples.
    """
    splits = [split for data in world.clients.values() for split in (data.train, data.test)]
    plain = all(isinstance(one.targets, torch.Tensor) and one.targets.ndim == 1 for one in splits)
    if not plain or _kind(world) != "classes":
        return {}
    tested = torch.cat([data.test.targets for data in world.clients.values()])
    trained = torch.cat([data.train.targets for data in world.clients.values()])
    tested, trained = tested[counted(tested)].long(), trained[counted(trained)].long()
    if not len(tested):
        return {}
    found = torch.cat([tested, trained]).unique().tolist()
    counts = torch.bincount(tested, minlength=max(found) + 1)
    return {label: int(counts[label]) / len(tested) for label in found}


def class_name(label: int, names: Any) -> str:
    """Return a class in words.

    Args:
        label: Its number.
        names: The names of all classes, if they are known.

    Example:
        >>> class_name(1, ["late", "on time"]), class_name(1, None)
        ("the class 'on time'", 'class 1')
    """
    named = isinstance(names, Sequence) and not isinstance(names, str) and label < len(names)
    return f"the class '{names[label]}'" if named else f"class {label}"


def _kind(world: World) -> Kind:
    """What the clients predict, from how an ensemble's outputs are combined; otherwise from the type of their targets."""
    combine = world.objective.combine
    if combine is mean_output:
        return "numbers"
    if combine is mean_label_probability:
        return "labels"
    targets = [data.train.targets for data in world.clients.values()]
    if combine is mean_probability and any(
        isinstance(one, torch.Tensor) and one.is_floating_point() for one in targets
    ):
        of_labels = world.objective.main in (
            "accuracy",
            "AUROC",
            "AveragePrecision",
            "ExactMatch",
            "F1Score",
        )
        return (
            "labels" if of_labels else "numbers"
        )  # a loss of the user's own, and the usual way to combine
    return "classes"


def _prediction(kind: Kind, targets: Sequence[torch.Tensor], classes: int) -> torch.Tensor:
    """The outputs for any example: log frequencies of classes ``(classes,)``, logits of labels ``(m,)`` or means ``(m,)``."""
    if kind == "classes":
        counts = torch.zeros(max(classes, 2), dtype=torch.float64)
        for one in targets:
            counts += torch.bincount(one[counted(one)].flatten().long(), minlength=len(counts))
        return (
            ((counts + 1) / (counts + 1).sum()).log().float()
        )  # a class of no training example is possible, too
    total = torch.stack([one.double().sum(0) for one in targets]).sum(0)
    means = (total / sum(len(one) for one in targets)).reshape(targets[0].shape[1:] or (1,))
    return (torch.logit(means, eps=1e-7) if kind == "labels" else means).float()


def _score(kind: Kind, metric: Metric, row: torch.Tensor, targets: torch.Tensor) -> float:
    """A metric of the outputs ``row`` for each example; NaN if there is none, or if the user's function fails."""
    cells = row.numel() * (targets[:1].numel() if kind == "classes" else 1)
    if not len(targets) or (metric.whole and cells * len(targets) > CELLS):
        return math.nan
    shape = (
        (lambda part: (*part.shape, len(row)))
        if kind == "classes"
        else (lambda part: (len(part), *row.shape))
    )
    try:
        if metric.whole:
            return metric.of(row.expand(shape(targets)), targets).get("", math.nan)
        total, count = 0.0, 0
        for part in targets.split(max(1, CELLS // max(cells, 1))):
            values = metric.function(row.expand(shape(part)), part)
            total, count = total + float(values.sum(dtype=torch.float64)), count + values.numel()
        return metric.final(total / count) if count else math.nan
    except Exception:  # the user's code can raise anything, and the comparison is only left out
        return math.nan


def _sums(metric: Metric, row: torch.Tensor, targets: torch.Tensor) -> ErrorSums:
    """The sums of a metric that is pooled over clients, if it is; for numbers."""
    outputs = row.expand((len(targets), *row.shape))
    if not len(targets):
        return {}
    if metric.sums is not None:
        return metric.sums(outputs, targets)
    if metric.final is not math.sqrt:
        return {}
    errors = metric.function(outputs, targets)
    return {"rows": [errors.numel()], "errors": [float(errors.sum(dtype=torch.float64))]}


def _words(kind: Kind, row: torch.Tensor, names: Any) -> str:
    if kind == "classes":
        return class_name(int(row.argmax()), names)
    if kind == "labels":
        return "the frequency of each label"
    mean = f", {float(row[0]):.3g}" if row.numel() == 1 else ""
    return f"the mean of the training targets{mean}"
