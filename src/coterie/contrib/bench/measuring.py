"""A run of a method in a world of a suite, as a row of results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from statistics import fmean
from typing import Any

from coterie.contrib.bench.rows import Row
from coterie.contrib.bench.suites import VERSION, BenchWorld
from coterie.core import Client, Groups, Method, as_groups
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.report.summary import agreement
from coterie.robust import AS_PUBLISHED, Robust
from coterie.runs.facts import digest
from coterie.settings import UserError

DIGITS_OF_SCORES = 5


def measure(
    method: Method[Any],
    settings: Mapping[str, Any],
    bench_world: BenchWorld,
    seed: int,
    folder: str | None = None,
) -> Row:
    """Run a method in a world with one seed.

    Args:
        method: The method.
        settings: What its row says about its settings.
        bench_world: The world.
        seed: The seed of world and run.
        folder: Folder of the data files, for worlds that need some.

    Returns:
        The row.

    Raises:
        UserError: Files are missing, or the method has no score for some client.
    """
    world, data_digest = _world_and_digest(bench_world, seed, folder)
    # With adversaries, every method has the limits that a run has by default then.
    robust = Robust() if world.attacks else AS_PUBLISHED
    began = time.perf_counter()
    tests: list[Mapping[Client, float]] = []
    num_bytes = 0
    for finished_round in inprocess.rounds(
        method,
        world,
        rounds=bench_world.rounds,
        seed=seed,
        workers=1,
        eval_every=bench_world.tested_every,
        robust=robust,
    ):
        num_bytes += finished_round.bytes_up + finished_round.bytes_down
        is_counted = bench_world.period is None or finished_round.number > bench_world.period
        if finished_round.scores is not None and is_counted:
            tests.append(
                {
                    client: scores[world.objective.main]
                    for client, scores in finished_round.scores.items()
                    if client not in world.attacks
                }
            )
    # The score of a client: after the last round, or where data change the mean over tests.
    if any(test.keys() != tests[0].keys() for test in tests):
        raise UserError(f"{method.name} has no score for some clients of {bench_world.name}")
    scores_of_clients = [fmean(test[client] for test in tests) for client in sorted(tests[0])]
    true_groups = world.true_groups(bench_world.rounds)
    rand_index = None
    if true_groups is not None:
        honest = sorted(tests[0])
        rand_index = agreement(
            _among(finished_round.assignment.groups, honest), _among(true_groups, honest)
        )
    return Row(
        version=VERSION,
        world=bench_world.name,
        data=data_digest,
        method=method.name,
        settings=dict(settings),
        seed=seed,
        scores=[round(score, DIGITS_OF_SCORES) for score in scores_of_clients],
        rand=None if rand_index is None else round(rand_index, 3),
        groups=len(finished_round.assignment.groups),
        bytes=num_bytes,
        seconds=round(time.perf_counter() - began, 2),
    )


@lru_cache(maxsize=1)
def _world_and_digest(bench_world: BenchWorld, seed: int, folder: str | None) -> tuple[World, str]:
    """A world of a seed, and the digest of its data; the newest is kept for the next method."""
    world = bench_world.build(seed, folder)
    return world, digest(world)[:12]


def _among(groups: Groups, clients: list[Client]) -> Groups:
    """The groups of some clients: adversaries are left out wherever they are."""
    groups_of_clients = []
    for group in groups:
        members = [client for client in group if client in clients]
        if members:
            groups_of_clients.append(members)
    return as_groups(groups_of_clients)
