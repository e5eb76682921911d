"""A scenario whose clients hold out validation data, and are tested on examples that nobody trains on.

The test parts of the named scenarios are small where a data set is: of scikit-learn's 1,797 digits,
20 clients of 80 examples leave 197 to test, which are ten for each. Here all of them test every
client, each as its group sees them, and where clients differ in their classes, in the proportions
of the client's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from coterie.core import Client
from coterie.data.examples import Dataset, Pool
from coterie.data.objective import Objective
from coterie.data.partition import Parts
from coterie.data.scenario import Scenario
from coterie.data.shift import Shift
from coterie.data.world import ClientData, Split, World
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import setting

SKEWED = ("dirichlet", "classes", "shards")
"""Partitions by which clients differ in their classes."""

MAX_TEST_EXAMPLES = 1000
"""Most test examples of a client."""

TOPICS, NO_WORDS = 4, 2
"""Topics of AG News, and tokens that are no words: the first ones, for unknown words and for the
end of an article."""


@dataclass(frozen=True, kw_only=True, init=False)
class HeldOut(Scenario):
    """A scenario that deals a part of the pool, and tests on the others or on upstream's test pool."""

    dealt: int | None = setting(
        None, "examples that all clients share to train on; none: all that upstream trains on", ge=1
    )
    alike: bool = setting(
        False, "all clients have the same number of examples, see same_sizes (dirichlet)"
    )
    bags: bool = setting(
        False, "tell the topic from how often each word occurs, instead of the next word (ag_news)"
    )

    @property
    def _vocabulary(self) -> int:
        """The number of words, which only data sets of texts have."""
        return int(getattr(self.dataset, "vocabulary"))  # noqa: B009

    def _honest(self, seed: int, folder: Path | str | None) -> World:
        world = super()._honest(seed, folder)
        if not self.bags:
            return world
        model = nets.factory(self.model, (self._vocabulary,), TOPICS)
        return replace(world, model=model, objective=Objective(metrics=("accuracy",)))

    def _parts(
        self, pool: Pool, rng: np.random.Generator, n: int
    ) -> tuple[Parts, np.ndarray | None]:
        dealt_rows = self._dealt(pool.labels, rng)
        dealt_pool = pool if dealt_rows is None else _pool_of_rows(pool, dealt_rows)
        kinds = None
        if self.alike:
            examples_of_client = self.holdout.samples or 1
            alpha = self.partition.alpha
            parts = same_sizes(dealt_pool.labels, n, examples_of_client, alpha, rng)
        else:
            parts, kinds = super()._parts(dealt_pool, rng, n)
        # Positions in the pool, not among the examples that were dealt.
        if dealt_rows is not None:
            parts = [dealt_rows[part] for part in parts]
        return parts, kinds

    def _dealt(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        """The rows that clients share; None if all. Of shards, as many of each class as are whole shards."""
        if self.partition.kind != "shards":
            return None if self.dealt is None else rng.permutation(len(labels))[: self.dealt]
        classes, counts = np.unique(labels, return_counts=True)
        examples_of_class = counts.min()
        if self.dealt is not None:
            examples_of_class = min(examples_of_class, self.dealt // len(classes))
        shards_of_class = self.clients * self.partition.shards // len(classes)
        examples_of_class -= examples_of_class % shards_of_class
        dealt_rows = []
        for label in classes:
            rows_of_class = rng.permutation(np.flatnonzero(labels == label))
            dealt_rows.append(rows_of_class[:examples_of_class])
        return np.concatenate(dealt_rows)

    def _clients(
        self,
        data: Dataset,
        parts: Parts,
        kinds: np.ndarray | None,
        shifts: list[Shift],
        rows: Sequence[np.ndarray],
        seed: int,
    ) -> list[dict[Client, ClientData]]:
        if self.bags:
            test = None if data.test is None else _bags(data.test, self._vocabulary)
            data = replace(data, train=_bags(data.train, self._vocabulary), test=test, words=())
        if self.holdout.test == "share":
            return super()._clients(data, parts, kinds, shifts, rows, seed)
        rng = numpy_generator(seed, Purpose.DATA, 2)
        if data.test is None:
            undealt_rows = np.setdiff1d(np.arange(len(data.train)), np.concatenate(parts))
            data = replace(data, test=_pool_of_rows(data.train, undealt_rows))
        if self.partition.kind in SKEWED:
            steps = super()._clients(data, parts, kinds, shifts, rows, seed)
            proportional_steps = []
            for clients in steps:
                proportional_steps.append(
                    {client: _in_proportion(own_data, rng) for client, own_data in clients.items()}
                )
            return proportional_steps
        assert data.test is not None
        data = replace(
            data, test=_pool_of_rows(data.test, _capped_rows(data.test, self.partition.kind, rng))
        )
        return super()._clients(data, parts, kinds, shifts, rows, seed)


def _pool_of_rows(pool: Pool, rows: np.ndarray) -> Pool:
    index = torch.from_numpy(rows)
    return Pool(
        pool.inputs[index],
        pool.targets[index],
        {name: values[index] for name, values in pool.meta.items()},
    )


def _bags(pool: Pool, vocabulary: int) -> Pool:
    """The counts ``(N, vocabulary)`` of each word in a sequence, and its topic as the target; what is no word counts 0."""
    counts = torch.zeros(len(pool), vocabulary).scatter_add_(
        1, pool.inputs, torch.ones(pool.inputs.shape)
    )
    counts[:, :NO_WORDS] = 0
    return Pool(counts, pool.meta["topic"], pool.meta)


def _capped_rows(pool: Pool, kind: str, rng: np.random.Generator) -> np.ndarray:
    """At most :data:`MAX_TEST_EXAMPLES` rows of each kind, such as the domain."""
    kind_of_row = pool.meta[kind].numpy() if kind in pool.meta else np.zeros(len(pool), int)
    chosen_rows = []
    for value in np.unique(kind_of_row):
        chosen_rows.append(
            rng.permutation(np.flatnonzero(kind_of_row == value))[:MAX_TEST_EXAMPLES]
        )
    return np.sort(np.concatenate(chosen_rows))


def _in_proportion(client_data: ClientData, rng: np.random.Generator) -> ClientData:
    """A client whose test data, all of the test pool, have been drawn in the proportions of its own classes.

    A class of which there are too few gives each of its examples several times, so that it counts
    for its share.
    """
    assert isinstance(client_data.test.targets, torch.Tensor)
    own_labels = torch.cat([client_data.train.targets, client_data.validation.targets]).numpy()
    test_labels = client_data.test.targets.numpy()
    classes, counts = np.unique(own_labels, return_counts=True)
    # How many test examples of each class: rounded so that they add up.
    test_count = min(MAX_TEST_EXAMPLES, len(test_labels))
    ends = np.round(np.cumsum(counts) * test_count / counts.sum()).astype(int)
    chosen_rows = []
    for label, quota in zip(classes, np.diff(ends, prepend=0), strict=True):
        rows_of_class = rng.permutation(np.flatnonzero(test_labels == label))
        chosen_rows.append(np.resize(rows_of_class, quota))
    chosen = torch.from_numpy(np.sort(np.concatenate(chosen_rows)))
    return replace(
        client_data,
        test=Split(
            client_data.test.inputs,
            client_data.test.index[chosen],
            client_data.test.targets[chosen],
        ),
    )


def same_sizes(
    labels: np.ndarray,
    clients: int,
    examples_of_client: int,
    alpha: float,
    rng: np.random.Generator,
) -> Parts:
    """Give every client equally many examples, whose classes are of shares drawn from ``Dirichlet(alpha)`` for each client.

    Clients take an example in turn, in a new random order each time. A class of which nothing is
    left is drawn no more.

    Args:
        labels: Labels ``(N,)`` of the examples, N >= clients * examples_of_client.
        clients: Number of clients.
        examples_of_client: Examples of a client.
        alpha: Concentration of the Dirichlet distribution.
        rng: Draws the shares and the examples.

    Returns:
        Positions of each client.
    """
    classes = np.unique(labels)
    rows_left = [list(rng.permutation(np.flatnonzero(labels == label))) for label in classes]
    shares = rng.dirichlet(np.full(len(classes), alpha), clients)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(examples_of_client):
        for client in rng.permutation(clients):
            weights = shares[client] * [bool(rows) for rows in rows_left]
            # Nothing is left of any class that the client has: any other class.
            if not weights.sum() > 0:
                weights = np.array([float(len(rows)) for rows in rows_left])
            chosen_class = rng.choice(len(classes), p=weights / weights.sum())
            parts[client].append(rows_left[chosen_class].pop())
    return [np.array(part) for part in parts]


def distinct_tests(clients: Mapping[Client, ClientData]) -> list[int]:
    """The number of different test examples of each client, by id."""
    return [len(torch.unique(clients[client].test.index)) for client in sorted(clients)]
