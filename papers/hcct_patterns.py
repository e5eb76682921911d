"""HCCT's motivating example, table II: three clients, and who trains with whom (arXiv 2401.13236, section III-B).

Clients 1 and 2 have some and few of the training data of five classes, client 3 has all of the
other five; each is tested on its own classes. Every pattern of three clients is trained: alone,
all, and each pair with the third one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core import (
    Assignment,
    Cohort,
    Federation,
    Groups,
    Method,
    Note,
    Plan,
    Replies,
    Training,
    as_groups,
    row_of,
    state,
    train_from,
)
from coterie.data import datasets
from coterie.data.own import from_lists
from coterie.data.world import World
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import build, check, setting
from papers import hcct_patterns_claims as claims
from papers.comparing import method_of
from papers.numbers import short
from papers.running import rounds_of
from papers.study import Resources, Study
from papers.tally import Tally


@state("papers.pattern")
class PatternState:
    """groups of all clients; models ``(k, d)``: theirs, in that order."""

    groups: Groups
    models: Tensor


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Groups that are given, and FedAvg in each."""

    name: ClassVar[str] = "pattern"

    groups: tuple[tuple[int, ...], ...] = setting(
        (), "who trains with whom: every client in one group"
    )

    def __post_init__(self) -> None:
        check(self)

    def init(self, federation: Federation) -> PatternState:
        groups = as_groups(self.groups)
        if sorted(client for group in groups for client in group) != list(federation.clients):
            raise ValueError(
                f"a pattern has every client in one group, got {groups} of {federation.clients}"
            )
        return PatternState(groups=groups, models=federation.draw(0).repeat(len(groups), 1))

    def plan(self, state: PatternState, cohort: Cohort) -> Plan:
        row = row_of(state.groups)
        return train_from(
            state.models, {client: row[client] for client in cohort.present}, need="mean"
        )

    def step(self, state: PatternState, replies: Replies) -> PatternState:
        assert replies.means is not None
        return PatternState(groups=state.groups, models=state.models + replies.means)

    def assignment(self, state: PatternState) -> Assignment:
        return Assignment(models=state.models, row=row_of(state.groups), groups=state.groups)

    def explain(self, state: PatternState) -> tuple[Note, ...]:
        return ()


def three_clients(
    on: Resources,
    dataset: str,
    shares: Sequence[float],
    examples: int,
    tests: int,
    model: str,
    training: Training,
    seed: int,
    standardize: str = "none",
) -> World:
    """Clients 0 and 1 with their ``shares`` of the training ``examples`` of five classes, client 2 with those of the others.

    Classes are dealt at random. tests: test examples of either five classes, which clients 0 and 1
    share; taken from the test pool, or from the training pool where the data set comes in one
    piece. No two clients share a training example.
    """
    data, rng = datasets.load(dataset, on.data), numpy_generator(seed, Purpose.PARTITION)
    classes = rng.permutation(data.classes)
    halves = []
    for own in (classes[: data.classes // 2], classes[data.classes // 2 :]):
        rows = rng.permutation(np.flatnonzero(np.isin(data.train.labels, own)))
        if data.test is None:
            held, rows, pool = rows[:tests], rows[tests:], data.train
        else:
            held, pool = (
                rng.permutation(np.flatnonzero(np.isin(data.test.labels, own)))[:tests],
                data.test,
            )
        halves.append(
            (
                rows[:examples],
                pool.inputs[torch.from_numpy(held)],
                pool.targets[torch.from_numpy(held)],
            )
        )
    first, second = halves
    cuts = (np.cumsum(shares) * len(first[0])).round().astype(int)
    mine = [first[0][: cuts[0]], first[0][cuts[0] : cuts[1]], second[0]]
    clients = [
        {
            "x": data.train.inputs[torch.from_numpy(rows)],
            "y": data.train.targets[torch.from_numpy(rows)],
            "x_test": test[1],
            "y_test": test[2],
        }
        for rows, test in zip(mine, (first, first, second), strict=True)
    ]
    shape: dict[str, Any] = {
        "model": model,
        "classes": data.classes,
        "train": 0.8,
        "validation": 0.0,
        "standardize": standardize,
    }
    return from_lists(clients, **shape, seed=seed, training=training, truth=((0, 1), (2,)))


def by_pattern(
    on: Resources,
    *,
    problem: str,
    dataset: str,
    shares: Sequence[float],
    examples: int,
    tests: int,
    model: str,
    training: Mapping[str, Any],
    method: Mapping[str, Any],
    rounds: int,
    every: int,
    seed: int,
    standardize: str = "none",
) -> dict[str, Any]:
    """One pattern, or a method that finds one: what is found, and ``each`` client's accuracy."""
    world = three_clients(
        on, dataset, shares, examples, tests, model, build(Training, training), seed, standardize
    )
    known = method["name"] == Pattern.name
    made: Method[Any] = Pattern(groups=as_groups(method["groups"])) if known else method_of(method)
    tally = Tally(world).of(rounds_of(made, world, on, rounds, seed, every=every))
    assert tally.last
    assert tally.last.scores
    return {
        **tally.found(),
        "each": [short(tally.last.scores[client]["accuracy"]) for client in sorted(world.clients)],
    }


STUDIES = (
    Study(
        name="hcct/table2",
        where="table II",
        what="Three clients, two of them alike: error by who trains with whom",
        measure=by_pattern,
        claims=claims.of_patterns,
        figure=claims.patterns,
        table=claims.table_of_patterns,
    ),
)
