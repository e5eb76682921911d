"""The numbers of test examples on which the noise of a metric of a whole test set depends.

The noise of an accuracy follows from the number of test examples. The area under the ROC curve
compares examples of one label with examples of the other, so the rarer label decides its noise: 24
rows with 5 positives say little. The same holds for the balanced accuracy, in which the rarest
class counts as much as the commonest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from coterie.core import Client
from coterie.data.batches import rows, tensors
from coterie.data.objective import auroc, balanced_accuracy, binary_cross_entropy, counted
from coterie.data.world import Split, World

DecidingTests = list[float]
"""Of the area under the ROC curve: the numbers of test examples with a label and without it. Of the
balanced accuracy: the number of test examples of which a share would be as noisy. Empty for a client
of which the metric is not defined."""


def deciding_tests(world: World) -> dict[Client, DecidingTests] | None:
    """Count the test examples that decide the noise of the main metric.

    Where examples belong to subjects, such as patients, the subjects are counted.

    Args:
        world: The clients and their data, with drift those of the first time step.

    Returns:
        Client -> the numbers; None for any other main metric, and for targets that are not in
        memory or are sequences.
    """
    main_metric = world.objective.named[world.objective.main]
    count = _COUNTS.get(main_metric.function)
    if count is None:
        return None
    has_labels = world.objective.loss is binary_cross_entropy
    numbers_of_client: dict[Client, DecidingTests] = {}
    # Clients may share a test part, which is then counted once.
    numbers_of_targets: dict[int, DecidingTests] = {}
    for client, data in world.clients.items():
        targets = data.test.targets
        if not isinstance(targets, torch.Tensor):
            return None
        if id(targets) not in numbers_of_targets:
            labelled = _labelled(data.test, targets, has_labels)
            if labelled is None:
                return None
            numbers_of_targets[id(targets)] = count(labelled)
        numbers_of_client[client] = numbers_of_targets[id(targets)]
    return numbers_of_client


@dataclass(frozen=True)
class _Labelled:
    """The test examples of a client that count.

    Attributes:
        has_label: Whether each example has each label that occurs, ``(b, labels)``.
        are_classes: Whether each example has one of the labels.
        subjects: The subject of each example; None if each has its own.
    """

    has_label: torch.Tensor
    are_classes: bool
    subjects: torch.Tensor | None

    def independent(self, is_chosen: torch.Tensor) -> int:
        """The number of chosen examples, or of the subjects that have one."""
        if self.subjects is None:
            return int(is_chosen.sum())
        return len(self.subjects[is_chosen].unique())


def _labelled(split: Split, targets: torch.Tensor, has_labels: bool) -> _Labelled | None:
    """The examples of a test part with their labels; None for sequences."""
    is_single = targets.dim() == 1 or (targets.dim() == 2 and targets.shape[1] == 1)
    is_label = targets.is_floating_point() or has_labels
    # Several labels of 0 and 1 for each example.
    if is_label and targets.dim() == 2 and not is_single:
        return _Labelled(targets > 0.5, False, split.subjects)
    if not is_single:
        return None
    # Classes, or one label, whose values are two classes.
    classes = (targets.flatten() > 0.5).long() if is_label else targets.flatten()
    is_counted = counted(classes)
    counted_classes = classes[is_counted]
    subjects = None if split.subjects is None else split.subjects[is_counted]
    has_label = counted_classes[:, None] == counted_classes.unique()[None, :]
    return _Labelled(has_label, True, subjects)


def _tests_of_auroc(tests: _Labelled) -> DecidingTests:
    """The numbers of examples with a label and without it, the harmonic means over the labels.

    The variance of the area of one label is nearly a sum of two parts, of which each is inverse to
    one of the numbers. The variance of a mean over labels is at most the mean of theirs.
    """
    columns = list(tests.has_label.T)
    # Of two classes, the area is that of the second one.
    if tests.are_classes and len(columns) == 2:
        columns = columns[1:]
    inverses = []
    for column in columns:
        with_label = tests.independent(column)
        without_label = tests.independent(~column)
        # The area of a label that no example has, or each, is not defined.
        if with_label and without_label:
            inverses.append((1 / with_label, 1 / without_label))
    return [len(inverses) / sum(numbers) for numbers in zip(*inverses, strict=True)]


def _tests_of_balanced_accuracy(tests: _Labelled) -> DecidingTests:
    """The number of examples of which a share is at least as noisy as a mean of the shares of k classes.

    In the worst case all errors are in the rarest class, which has m examples and counts 1 / k:
    then the variance is that of a share of ``k m`` examples.
    """
    class_sizes = [tests.independent(column) for column in tests.has_label.T]
    if not tests.are_classes or not class_sizes:
        return []
    return [float(len(class_sizes) * min(class_sizes))]


_COUNTS: Mapping[Callable[..., Any], Callable[[_Labelled], DecidingTests]] = {
    auroc: _tests_of_auroc,
    balanced_accuracy: _tests_of_balanced_accuracy,
}
"""Function of a metric -> the count of the tests that decide its noise."""


def digest_of_tests(world: World) -> str:
    """A hash of which rows all clients are tested on: seeds with equal digests repeat a test.

    It covers rows and targets. Inputs may be standardized by constants of other training rows, and
    the rows are the same nevertheless.
    """
    test_hash = hashlib.blake2b(digest_size=16)
    for client in sorted(world.clients):
        test = world.clients[client].test
        order = test.index.argsort()
        test_hash.update(test.index[order].contiguous().numpy().tobytes())
        # Examples that are read item by item have no targets here.
        if test.targets is not None:
            for tensor in tensors(rows(test.targets, order)):
                test_hash.update(tensor.contiguous().numpy())
    return test_hash.hexdigest()
