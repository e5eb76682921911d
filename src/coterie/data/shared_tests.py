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
    tests = {
        client: data.test
        for client, data in sorted(world.clients.items())
        if client not in world.attacks
    }
    names = {client: _examples(split) for client, split in tests.items()}
    if len({_pool(split) for split in tests.values()}) > 1:
        names = _by_content(tests, names)
    times = Counter(name for of_client in names.values() for name in of_client)
    return {
        client: sum(times[name] for name in one) / len(one) if one else 1.0
        for client, one in names.items()
    }


def _pool(split: Split) -> int:
    return id(split.inputs.dataset) if isinstance(split.inputs, Items) else id(split.inputs)


def _examples(split: Split) -> list[Hashable]:
    """A name of each example: its pool, and its row there."""
    pool = _pool(split)
    return [(pool, row) for row in split.index.tolist()]


def _by_content(
    tests: Mapping[Client, Split], names: Mapping[Client, list[Hashable]]
) -> dict[Client, list[Hashable]]:
    """The names of the examples, of which those with the same inputs have the same."""
    contents = {client: _digests(split) for client, split in tests.items()}
    repeated = {
        digest for one in contents.values() for digest, times in Counter(one).items() if times > 1
    }
    wholes = {client: hashlib.blake2b(b"".join(one)).digest() for client, one in contents.items()}
    alike = Counter(wholes.values())
    out: dict[Client, list[Hashable]] = {}
    for client, hashes in contents.items():
        if not hashes:
            out[client] = names[client]
        elif len(hashes) > 1 and alike[wholes[client]] > 1:
            out[client] = [(wholes[client], place) for place in range(len(hashes))]
        else:
            both = zip(names[client], hashes, strict=True)
            out[client] = [name if digest in repeated else digest for name, digest in both]
    return out


def _digests(split: Split) -> list[bytes]:
    """A hash of the inputs of each example; empty if these are read item by item."""
    if isinstance(split.inputs, Items):
        return []
    parts = [
        one for one in tensors(rows(split.inputs, split.index)) if isinstance(one, torch.Tensor)
    ]
    return digests(parts)
