"""Examples that occur in both the training and the test part of a client: a model may know their targets by heart."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.data.batches import Items, digests, rows, tensors
from coterie.data.world import ClientData, Split

MOST = 20_000_000
"""Numbers of a client's inputs above which examples are not compared."""

MANY = 0.05
"""Share of a client's test examples from which on duplicates are said."""

VARIED = 0.5
"""Distinct values of some input, per distinct example, from which on equal examples are no chance.
"""


def duplicate_hints(clients: Iterable[ClientData]) -> list[str]:
    """Return a hint if test examples are also training examples, with the same inputs and targets.

    Rows of a few categories may be equal by chance, so only examples with an input of many values
    count.

    Args:
        clients: The data of the clients.

    Returns:
        One sentence, or none.
    """
    same = tests = 0
    first = ""
    for data in clients:
        if not (of_client := repeated(data)):
            continue
        same, tests, first = same + of_client, tests + len(data.test), first or data.name
    if not same:
        return []
    where = f", for example at client {first}" if first else ""
    return [
        f"{same:,} of {tests:,} test examples are also training examples, with the same inputs and targets{where}: a model may "
        "know them by heart; remove duplicates, or give rows of one origin a subject"
    ]


def repeated(data: ClientData) -> int:
    """Return how many test examples of a client are also training examples; 0 if they are few or may be equal by chance."""
    parts = data.train, data.test
    inputs = data.train.inputs
    if isinstance(inputs, Items) or not len(data.test):
        return 0
    if sum(one[:1].numel() for one in tensors(inputs)) * sum(map(len, parts)) > MOST:
        return 0
    known, tested = (
        digests([*tensors(rows(part.inputs, part.index)), *tensors(part.targets)]) for part in parts
    )
    there = set(known)
    same = sum(one in there for one in tested)
    return same if same >= max(2.0, MANY * len(tested)) and _varied(data.train, len(there)) else 0


def _varied(split: Split, distinct: int) -> bool:
    """Whether some input has so many values that ``distinct`` examples cannot be equal by chance."""
    for one in tensors(split.inputs):
        columns = one[split.index].reshape(len(split), -1)
        if any(len(column.unique()) >= VARIED * distinct for column in columns[:, :200].T):
            return distinct > 1
    return False
