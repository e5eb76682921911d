"""Examples that occur in both training and test parts, of one client or of two: a model may know their targets by heart.

``own`` looks for them in the world of every door for a user's own data; they are a hint, and nothing
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from coterie.data.batches import Items, digests, rows, tensors
from coterie.data.world import ClientData, Split

MAX_COMPARED_NUMBERS = 20_000_000
"""Numbers of a client's inputs above which examples are not compared."""

MIN_DUPLICATE_SHARE = 0.05
"""Share of a client's test examples from which on duplicates are reported."""

VARIED_SHARE = 0.5
"""Distinct values of some input, per distinct example, from which on equal examples are no chance.
"""

MAX_EXAMINED_COLUMNS = 200
"""Most columns of an input whose distinct values are counted."""


def duplicate_hints(clients: Iterable[ClientData]) -> list[str]:
    """Return a hint if test examples are also training examples, with the same inputs and targets.

    Rows of a few categories may be equal by chance, so only examples with an input of many values
    count.

    Args:
        clients: The data of the clients.

    Returns:
        One sentence, or none.
    """
    # Only clients with duplicates count, also in the number of test examples.
    duplicate_count = 0
    test_count = 0
    first_name = ""
    for data in clients:
        client_duplicates = repeated(data)
        if client_duplicates:
            duplicate_count += client_duplicates
            test_count += len(data.test)
            first_name = first_name or data.name
    if not duplicate_count:
        return []
    example = f", for example at client {first_name}" if first_name else ""
    return [
        f"{duplicate_count:,} of {test_count:,} test examples are also training examples, with the same inputs and targets"
        f"{example}: a model may know them by heart; remove duplicates, or give rows of one origin a subject"
    ]


def foreign_hints(clients: Iterable[ClientData]) -> list[str]:
    """Return a hint if test examples of a client are training examples of another one, as when two clients are the same.

    Args:
        clients: The data of the clients.

    Returns:
        One sentence, or none.
    """
    compared_clients = []
    compared_numbers = 0
    for data in clients:
        if isinstance(data.train.inputs, Items) or not len(data.test):
            continue
        numbers_per_example = sum(tensor[:1].numel() for tensor in tensors(data.train.inputs))
        compared_numbers += numbers_per_example * (len(data.train) + len(data.test))
        compared_clients.append(data)
    if compared_numbers > MAX_COMPARED_NUMBERS:
        return []
    # Which clients train on an example.
    trainers: dict[bytes, set[int]] = {}
    for number, data in enumerate(compared_clients):
        for digest in set(_example_digests(data.train)):
            trainers.setdefault(digest, set()).add(number)
    # Only clients with so many duplicates that they are no chance count.
    duplicate_count = 0
    test_count = 0
    example = ""
    for number, data in enumerate(compared_clients):
        test_digests = _example_digests(data.test)
        other_trainers = [trainers.get(digest, set()) - {number} for digest in test_digests]
        foreign_count = sum(map(bool, other_trainers))
        is_chance = foreign_count < max(2.0, MIN_DUPLICATE_SHARE * len(test_digests))
        if is_chance or not _varied(data.train, len(set(_example_digests(data.train)))):
            continue
        duplicate_count += foreign_count
        test_count += len(data.test)
        if not example:
            first_trainer = min(next(filter(None, other_trainers)))
            names = [
                compared_clients[position].name or str(position)
                for position in (number, first_trainer)
            ]
            example = f", for example those of client {names[0]} at client {names[1]}"
    if not duplicate_count:
        return []
    return [
        f"{duplicate_count:,} of {test_count:,} test examples are training examples of another client, with the same inputs "
        f"and targets{example}: a shared model may know them by heart; remove duplicates, or give each client its own rows"
    ]


def repeated(data: ClientData) -> int:
    """Return how many test examples of a client are also training examples; 0 if they are few or may be equal by chance."""
    if isinstance(data.train.inputs, Items) or not len(data.test):
        return 0
    numbers_per_example = sum(tensor[:1].numel() for tensor in tensors(data.train.inputs))
    if numbers_per_example * (len(data.train) + len(data.test)) > MAX_COMPARED_NUMBERS:
        return 0
    # Examples are equal if their hashes are.
    train_digests = set(_example_digests(data.train))
    test_digests = _example_digests(data.test)
    duplicate_count = sum(digest in train_digests for digest in test_digests)

    # A single duplicate, or few of many, may be chance; so may rows of a few categories.
    if duplicate_count < max(2.0, MIN_DUPLICATE_SHARE * len(test_digests)):
        return 0
    return duplicate_count if _varied(data.train, len(train_digests)) else 0


def _example_digests(split: Split) -> list[bytes]:
    """A hash of the inputs and targets of each example."""
    inputs = tensors(rows(split.inputs, split.index))
    return digests([*inputs, *tensors(split.targets)])


def _varied(split: Split, distinct_examples: int) -> bool:
    """Whether some input has so many values that ``distinct_examples`` cannot be equal by chance."""
    for tensor in tensors(split.inputs):
        columns = tensor[split.index].reshape(len(split), -1)
        for column in columns[:, :MAX_EXAMINED_COLUMNS].T:
            if len(column.unique()) >= VARIED_SHARE * distinct_examples:
                return distinct_examples > 1
    return False
