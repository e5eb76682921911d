"""FL+HC: C. Briggs, Z. Fan, P. Andras, arXiv 2004.11791, tables I, II, IV and V.

Clients with two labels each (tables I and IV) or in four groups that each exchange two labels (II and V). Tables I and II: by
the client fraction C and the round n after which clients are clustered, with Ward's linkage of L2 distances at threshold 3;
plain Federated Learning beside it. Tables IV and V: by metric and linkage, "with a range of thresholds", of which the best is
reported. Here the range is every cut of the dendrogram into some numbers of groups; the updates are asked for once, and each
partition is trained once, whichever metrics it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coterie.boundary import Boundary
from coterie.core import Cohort, Groups, Method, Replies
from coterie.engines import inprocess, roll
from coterie.engines.clock import Clock
from coterie.engines.fleet import Fleet
from coterie.engines.gather import exchange
from coterie.engines.inprocess import Position, Round
from coterie.methods import FLHC, FedAvg
from coterie.report.summary import agreement
from coterie.studies import flhc_claims as claims
from coterie.studies import flhc_figures as figures
from coterie.studies import flhc_printed as printed
from coterie.studies.numbers import short
from coterie.studies.running import rounds_of, world_of
from coterie.studies.study import Resources, Study
from coterie.world import World

COMBINATIONS = tuple(printed.TABLE_4)
"""Metric and linkage, in the order of the paper's tables."""


def scores(done: Round, world: World, target: float) -> dict[str, Any]:
    """Mean accuracy, the share of clients that reach the target, groups, and their agreement with the true ones."""
    accuracy = [score["accuracy"] for score in (done.scores or {}).values()]
    groups = done.assignment.groups
    return {
        "accuracy": short(float(np.mean(accuracy))), "share": float(np.mean([a >= target for a in accuracy])),
        "groups": len(groups), "ari": agreement(groups, world.truth),
    }  # fmt: skip


def at_rounds(
    method: Method[Any], world: World, on: Resources, wanted: Sequence[int], seed: int, start: Position | None = None
) -> Iterator[Round]:
    """The rounds of these numbers, ascending, each tested and none else; ``start``: go on from there."""
    for number in wanted:
        *_, last = rounds_of(method, world, on, number, seed, start=start)
        start = last.position
        yield last


# -- tables I and II -------------------------------------------------------------------------------------------------------


def by_fraction(
    on: Resources, *, problem: str, scenario: Mapping[str, Any], training: Mapping[str, Any], fraction: float,
    rounds_before: int, threshold: float, tested: Sequence[int], target: float, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Scores in the rounds tested: of plain Federated Learning if clients are clustered after 0 rounds, else of FL+HC."""
    world = world_of(on, scenario, training, seed)
    flhc = FLHC(warmup=rounds_before, fraction=fraction, threshold=threshold)
    method: Method[Any] = flhc if rounds_before else FedAvg(fraction=fraction)
    wanted = [round for round in tested if round > rounds_before]
    return {str(done.number): scores(done, world, target) for done in at_rounds(method, world, on, wanted, seed)}


# -- tables IV and V -------------------------------------------------------------------------------------------------------


def by_linkage(
    on: Resources, *, problem: str, scenario: Mapping[str, Any], training: Mapping[str, Any], fraction: float,
    rounds_before: int, counts: Sequence[int], rounds: int, target: float, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Of Federated Learning, and of each metric and linkage at its best cut: scores directly after clustering, and at the end.

    The best cut of a dendrogram is the one into the groups that are most accurate at the end.
    """
    world = world_of(on, scenario, training, seed)
    *_, before = rounds_of(FLHC(warmup=rounds_before, fraction=fraction), world, on, rounds_before, seed)
    replies = clustering_replies(on, world, before.position, fraction, rounds_before, seed)
    counts = [count for count in counts if count <= len(replies.clients)]
    wanted = (rounds_before + 1, rounds)

    def post_and_end(method: Method[Any], start: Position | None = None) -> dict[str, Any]:
        done = [scores(one, world, target) for one in at_rounds(method, world, on, wanted, seed, start)]
        return dict(zip(("post", "end"), done, strict=True))

    trained: dict[Groups, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for name in COMBINATIONS:
        cuts = []
        for count in counts:
            method, position = clustered(name, count, replies, before.position, fraction, rounds_before)
            groups = method.assignment(position.state).groups
            if groups not in trained:
                trained[groups] = post_and_end(method, position)
            cuts.append(trained[groups])
        found[name] = max(cuts, key=lambda each: each["end"]["accuracy"])
    return found | {"fedavg": post_and_end(FedAvg(fraction=fraction))}


def clustering_replies(
    on: Resources, world: World, position: Position, fraction: float, rounds_before: int, seed: int
) -> Replies:
    """What all clients answer to FL+HC's clustering exchange, which is the same for every metric, linkage and threshold."""
    method = FLHC(warmup=rounds_before, fraction=fraction)
    cohort = Cohort(present=roll.present(world.attendance, position), exchange=position.exchange, seed=seed)
    wire, _ = inprocess.meeting(method, world, seed, Boundary())
    with Fleet(world, wire, on.hardware) as fleet:
        replies, _ = exchange(fleet, method.plan(position.state, cohort), position, seed, Clock())
        assert replies.updates is not None
        return replace(replies, updates=replies.updates.clone())  # the fleet's memory goes with it


def clustered(
    name: str, count: int, replies: Replies, position: Position, fraction: float, rounds_before: int
) -> tuple[FLHC, Position]:
    """FL+HC with a metric and linkage, right after its clustering exchange has made so many groups."""
    metric, linkage = name.split()
    how: dict[str, Any] = {"metric": metric, "linkage": linkage, "threshold": None, "groups": count}
    method = FLHC(warmup=rounds_before, fraction=fraction, **how)
    state = method.step(position.state, replies)
    return method, replace(position, state=state, exchange=position.exchange + 1)


# A model for all learns two labels a client in the end as well (the paper's factor is 1.0), and exchanged labels never (1.3).
TWO_LABELS, SWAPS = "clients with two labels each", "four groups that exchange labels"

STUDIES = (
    Study(
        name="flhc/table1", where="table I", what=f"{TWO_LABELS}: by client fraction and round of clustering",
        measure=by_fraction, claims=partial(claims.of_fractions, printed=printed.TABLE_1, gain=0.0),
        table=partial(claims.table_of_fractions, printed=printed.TABLE_1), figure=figures.fractions,
    ),
    Study(
        name="flhc/table2", where="table II", what=f"{SWAPS}: by client fraction and round of clustering",
        measure=by_fraction, claims=partial(claims.of_fractions, printed=printed.TABLE_2, gain=0.05),
        table=partial(claims.table_of_fractions, printed=printed.TABLE_2), figure=figures.fractions,
    ),
    Study(
        name="flhc/table4", where="table IV", what=f"{TWO_LABELS}: by metric and linkage",
        measure=by_linkage, claims=partial(claims.of_linkages, printed=printed.TABLE_4, gain=0.0),
        table=partial(claims.table_of_linkages, printed=printed.TABLE_4), figure=figures.linkages,
    ),
    Study(
        name="flhc/table5", where="table V", what=f"{SWAPS}: by metric and linkage",
        measure=by_linkage, claims=partial(claims.of_linkages, printed=printed.TABLE_5, gain=0.05),
        table=partial(claims.table_of_linkages, printed=printed.TABLE_5), figure=figures.linkages,
    ),
)  # fmt: skip
