"""Which test examples several clients have: each of them says once, not once for each client, how good a model is."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping

import torch

from coterie.core import Client
from coterie.data.batches import Items, digests, rows, tensors
from coterie.data.world import Split, World


def times_tested(world: World) -> dict[Client, float]:
    """Count how many clients test each example.

    The variance of a mean over clients whose test parts differ is the sum of the clients'
    variances. Where m clients test an example, its part of the sum is ``(x_1 + ... + x_m)² <= m
    (x_1² + ... + x_m²)``. So with the variance of each client times the mean of m over its
    examples, the sum is an upper bound. It is exact where clients with equal variances share all of
    their examples, or none.

    Two examples are the same if they are the same row of the same pool, or if they have the same
    inputs. In a client whose inputs repeat, equal inputs may be those of several examples; then
    only a whole test part that equals another counts.

    Args:
        world: The clients and their data, with drift those of the first time step. Hostile clients
            do not count.

    Returns:
        Client -> the mean over its test examples of the number of clients that test them; 1 if it
        shares none.
    """
    tests: dict[Client, Split] = {}
    for client, data in sorted(world.clients.items()):
        if client not in world.attacks:
            tests[client] = data.test
    # Rows of one pool have their numbers as names. Different pools may hold the same examples.
    names_of_client = {client: _row_names(split) for client, split in tests.items()}
    if len({_pool(split) for split in tests.values()}) > 1:
        names_of_client = _names_by_content(tests, names_of_client)

    # How many clients test each example, then the mean of this over each client's examples.
    client_counts: Counter[Hashable] = Counter()
    for example_names in names_of_client.values():
        client_counts.update(example_names)
    mean_counts: dict[Client, float] = {}
    for client, example_names in names_of_client.items():
        total_count = sum(client_counts[name] for name in example_names)
        mean_counts[client] = total_count / len(example_names) if example_names else 1.0
    return mean_counts


def _row_names(split: Split) -> list[Hashable]:
    """A name of each example: its pool, and its row there."""
    pool = _pool(split)
    return [(pool, row) for row in split.index.tolist()]


def _names_by_content(
    tests: Mapping[Client, Split], row_names: Mapping[Client, list[Hashable]]
) -> dict[Client, list[Hashable]]:
    """The names of the examples, of which those with the same inputs have the same."""
    digests_of_client = {client: _digests(split) for client, split in tests.items()}

    # Inputs that occur twice in one client are no name: they may be those of several examples.
    repeated_digests: set[bytes] = set()
    for client_digests in digests_of_client.values():
        for digest, occurrences in Counter(client_digests).items():
            if occurrences > 1:
                repeated_digests.add(digest)

    # Whole test parts that are equal have the same examples, repeated or not.
    digest_of_test: dict[Client, bytes] = {}
    for client, client_digests in digests_of_client.items():
        digest_of_test[client] = hashlib.blake2b(b"".join(client_digests)).digest()
    clients_of_test = Counter(digest_of_test.values())

    names_of_client: dict[Client, list[Hashable]] = {}
    for client, client_digests in digests_of_client.items():
        test_digest = digest_of_test[client]
        # No inputs in memory: by pool and row. An equal whole test part: by its place in it.
        # Otherwise by the inputs, unless these are repeated.
        if not client_digests:
            names_of_client[client] = row_names[client]
        elif len(client_digests) > 1 and clients_of_test[test_digest] > 1:
            names_of_client[client] = [(test_digest, place) for place in range(len(client_digests))]
        else:
            example_names: list[Hashable] = []
            for row_name, digest in zip(row_names[client], client_digests, strict=True):
                example_names.append(row_name if digest in repeated_digests else digest)
            names_of_client[client] = example_names
    return names_of_client


def _pool(split: Split) -> int:
    return id(split.inputs.dataset) if isinstance(split.inputs, Items) else id(split.inputs)


def _digests(split: Split) -> list[bytes]:
    """A hash of the inputs of each example; empty if these are read item by item."""
    if isinstance(split.inputs, Items):
        return []
    input_tensors = tensors(rows(split.inputs, split.index))
    return digests([tensor for tensor in input_tensors if isinstance(tensor, torch.Tensor)])
