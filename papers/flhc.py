"""FL+HC: C. Briggs, Z. Fan, P. Andras, arXiv 2004.11791, tables I to VI.

Clients with two labels each (tables I and IV), in four groups that each exchange two labels (II and
V), or of one writer each (III and VI). Tables I to III: by the client fraction C and the round n
after which clients are clustered, with Ward's linkage of L2 distances at threshold 3; plain
Federated Learning beside it. Tables IV to VI: by metric and linkage, "with a range of thresholds",
of which the best is reported. Here the range is every cut of the dendrogram into some numbers of
groups; the updates are asked for once, and each partition is trained once, whichever metrics it
comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Cohort, Groups, Method, Note, Position, Replies
from coterie.engines import rounds as inprocess
from coterie.methods import FLHC, METHODS, FedAvg
from coterie.settings import build
from papers import flhc_claims as claims
from papers import flhc_figures as figures
from papers import flhc_printed as printed
from papers import flhc_tables as tables
from papers import flhc_writers_claims as writers
from papers.numbers import short
from papers.running import asked, rounds_of, world_of
from papers.study import Resources, Study
from papers.tally import Tally


def at_rounds(
    method: Method[Any],
    on: Resources,
    wanted: Sequence[int],
    seed: int,
    tally: Tally,
    start: Position | None = None,
) -> Iterator[dict[str, Any]]:
    """What is found in the rounds of these numbers, ascending, none else being tested; ``start``: go on from there."""
    for number in wanted:
        yield tally.of(rounds_of(method, tally.world, on, number, seed, start=start)).found()
        assert tally.last
        start = tally.last.position


# -- tables I to III
# -------------------------------------------------------------------------------------------------------


def by_fraction(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    fraction: float,
    rounds_before: int,
    threshold: float,
    tested: Sequence[int],
    target: float,
    seed: int,
) -> dict[str, Any]:
    """What is found in the rounds tested: of plain Federated Learning if clustering comes after 0 rounds, else of FL+HC."""
    world = world_of(on, scenario, training, seed)
    flhc = FLHC(warmup=rounds_before, fraction=fraction, threshold=threshold)
    method: Method[Any] = flhc if rounds_before else FedAvg(fraction=fraction)
    wanted = [round for round in tested if round > rounds_before]
    found = at_rounds(method, on, wanted, seed, Tally(world, target))
    return dict(zip(map(str, wanted), found, strict=True))


# -- tables IV to VI
# ------------------------------------------------------------------------------------------------------


def by_linkage(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    fraction: float,
    rounds_before: int,
    linkages: Sequence[str],
    counts: Sequence[int],
    rounds: int,
    beside: Mapping[str, int],
    target: float,
    seed: int,
) -> dict[str, Any]:
    """Of each metric and linkage at its best cut, and of the methods ``beside`` until the round given: what is found directly
    after clustering, and at the end.

    The best cut of a dendrogram is the one into the groups that are most accurate at the end;
    ``merges`` are the last merge that it makes and the first that it does not: every threshold
    between them makes the same groups.
    """
    world = world_of(on, scenario, training, seed)
    until = Tally(world, target).of(
        rounds_of(FLHC(warmup=rounds_before, fraction=fraction), world, on, rounds_before, seed)
    )

    def post_and_end(
        method: Method[Any], last: int, tally: Tally, start: Position | None = None
    ) -> dict[str, Any]:
        wanted = sorted({rounds_before + 1, last})
        done = [*at_rounds(method, on, wanted, seed, tally, start)]
        return {"post": done[0], "end": done[-1]}

    assert until.last
    position, joint = until.last.position, until.copy()
    replies = clustering_replies(on, until, fraction, rounds_before, seed)
    trained: dict[Groups, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for name in linkages:
        cuts = []
        for count in [count for count in counts if count <= len(replies.clients)]:
            method, after = clustered(name, count, replies, position, fraction, rounds_before)
            groups = method.assignment(after.state).groups
            if groups not in trained:
                trained[groups] = post_and_end(method, rounds, until.copy(), after)
            cuts.append({**trained[groups], "merges": merges(method.explain(after.state)[0])})
        found[name] = max(cuts, key=lambda each: each["end"]["accuracy"])
    for name, last in beside.items():
        if name == "fedavg":  # to the bit what FL+HC is before it clusters: go on from there
            found[name] = post_and_end(FLHC(warmup=last, fraction=fraction), last, joint, position)
        else:
            found[name] = post_and_end(
                build(METHODS[name], {"fraction": fraction}), last, Tally(world, target)
            )
    return found


def merges(note: Note) -> list[float | None]:
    """The highest merge that a clustering made, and the lowest that it did not; None where there was none."""
    return [
        short(note.numbers[name]) if name in note.numbers else None
        for name in ("last_merge", "next_merge")
    ]


def clustering_replies(
    on: Resources, tally: Tally, fraction: float, rounds_before: int, seed: int
) -> Replies:
    """What all clients answer to FL+HC's clustering exchange, which is the same for every metric, linkage and threshold; it
    comes after the rounds that ``tally`` counted, and is counted too."""
    assert tally.last
    method, position, world = (
        FLHC(warmup=rounds_before, fraction=fraction),
        tally.last.position,
        tally.world,
    )
    cohort = Cohort(
        present=inprocess.present(world.attendance, position), exchange=position.exchange, seed=seed
    )
    wire, _ = inprocess.setup(method, world, seed, Boundary())
    plan = method.plan(position.state, cohort)
    up, down = inprocess.traffic(plan, wire)
    tally.exchanges, tally.bytes_up, tally.bytes_down = (
        tally.exchanges + 1,
        tally.bytes_up + up,
        tally.bytes_down + down,
    )
    return asked(on, method, plan, position, world, seed)


def clustered(
    name: str, count: int, replies: Replies, position: Position, fraction: float, rounds_before: int
) -> tuple[FLHC, Position]:
    """FL+HC with a metric and linkage, right after its clustering exchange has made so many groups."""
    metric, linkage = name.split()
    how: dict[str, Any] = {"metric": metric, "linkage": linkage, "threshold": None, "groups": count}
    method = FLHC(warmup=rounds_before, fraction=fraction, **how)
    state = method.step(position.state, replies)
    return method, replace(position, state=state, exchange=position.exchange + 1)


# A model for all learns two labels a client in the end as well (the paper's factor is 1.0), and
# exchanged labels never (1.3).
TWO_LABELS, SWAPS, WRITERS = (
    "clients with two labels each",
    "four groups that exchange labels",
    "clients of one writer each",
)

STUDIES = (
    Study(
        name="flhc/table1",
        where="table I",
        what=f"{TWO_LABELS}: by client fraction and round of clustering",
        measure=by_fraction,
        claims=partial(
            claims.of_fractions,
            printed=printed.TABLE_1,
            factor=1.0,
            everywhere=("share", 1.2),
            after=printed.AFTER_1,
        ),
        table=partial(tables.by_fraction, printed=printed.TABLE_1),
        figure=figures.fractions,
    ),
    Study(
        name="flhc/table2",
        where="table II",
        what=f"{SWAPS}: by client fraction and round of clustering",
        measure=by_fraction,
        claims=partial(
            claims.of_fractions,
            printed=printed.TABLE_2,
            factor=1.3,
            everywhere=("accuracy", 1.2),
            after=printed.AFTER_2,
        ),
        table=partial(tables.by_fraction, printed=printed.TABLE_2),
        figure=figures.fractions,
    ),
    Study(
        name="flhc/table3",
        where="table III",
        what=f"{WRITERS}: by client fraction and round of clustering",
        measure=by_fraction,
        claims=writers.of_fractions,
        table=partial(tables.by_fraction, printed=printed.TABLE_3),
        figure=figures.fractions,
    ),
    Study(
        name="flhc/table4",
        where="table IV",
        what=f"{TWO_LABELS}: by metric and linkage",
        measure=by_linkage,
        claims=partial(
            claims.of_linkages, printed=printed.TABLE_4, factor=1.0, everywhere=("share", 1.2)
        ),
        table=partial(tables.by_linkage, printed=printed.TABLE_4),
        figure=figures.linkages,
    ),
    Study(
        name="flhc/table5",
        where="table V",
        what=f"{SWAPS}: by metric and linkage",
        measure=by_linkage,
        claims=partial(
            claims.of_linkages, printed=printed.TABLE_5, factor=1.3, everywhere=("accuracy", 1.2)
        ),
        table=partial(tables.by_linkage, printed=printed.TABLE_5),
        figure=figures.linkages,
    ),
    Study(
        name="flhc/table6",
        where="table VI",
        what=f"{WRITERS}: by metric and linkage",
        measure=by_linkage,
        claims=writers.of_linkages,
        table=partial(tables.by_linkage, printed=printed.TABLE_6),
        figure=figures.linkages,
    ),
)
