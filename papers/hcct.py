"""HCCT: Y. Sun, M. Kountouris, J. Zhang, arXiv 2401.13236, tables II, IV and V, figures 3 to 5.

Table IV has the mean test error of ten methods in three tasks, table V how errors spread over the
clients of one of them, by the same runs. Figure 3: clients that join later. Figure 4: the weight λ
of little data, by how much data there is. Figure 5: a number of groups that is given. Table II,
three clients and who trains with whom, is in :mod:`papers.hcct_patterns`.

The paper's λ are lost. Here λ is a share of the mean training-set size, and runs with several are
made: which of them counts is up to the clients' validation accuracy, see :mod:`papers.hcct_choice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core import Client, Method, Note, Plan, Round, Task
from coterie.data.world import World
from coterie.methods import HCCT
from papers import hcct_claims as claims
from papers import hcct_figures as figures
from papers import hcct_tables as tables
from papers.comparing import method_of
from papers.numbers import short
from papers.running import asked, rounds_of, world_of
from papers.study import Resources, Study
from papers.tally import Tally

# -- one run
# ---------------------------------------------------------------------------------------------------------------


def run_of(
    on: Resources, method: Method[Any], world: World, rounds: int, every: int, seed: int
) -> dict[str, Any]:
    """What is found of a method (see :meth:`Tally.found`), and ``best_epoch``: the mean over clients of each one's best
    accuracy over the rounds tested, the number that the published code records; ``utility``: the
    total that HCCT's last partition tells, None of other methods; and :func:`at_the_end`."""
    tally, best, utility = Tally(world), dict[Client, float](), None
    for done in rounds_of(method, world, on, rounds, seed, every=every):
        tally.add(done)
        for client, score in (done.scores or {}).items():
            best[client] = max(best.get(client, 0.0), score["accuracy"])
        utility = noted_utility(done.notes, utility)
    assert tally.last
    more = {"best_epoch": short(float(np.mean([*best.values()]))), "utility": utility}
    return {**tally.found(), **more, **at_the_end(on, method, tally.last, world, seed)}


def noted_utility(notes: tuple[Note, ...], before: float | None) -> float | None:
    """The sum of all clients' utilities in the last partition of a round, or ``before`` where there was none."""
    shown = [
        note.numbers["utility"]
        for note in notes
        if note.kind == "partition" and "utility" in note.numbers
    ]
    return short(shown[-1]) if shown else before


def at_the_end(
    on: Resources, method: Method[Any], last: Round, world: World, seed: int
) -> dict[str, Any]:
    """Of the models that serve the clients after a round, each on its client's own data.

    ``gradient_norm``: the sum of ``‖∇F_n(w_n)‖²`` over clients, F_n the mean training loss (the
    left side of the paper's theorem 2). ``validation`` and ``validation_loss``: mean over clients,
    None where nobody has data for choices.
    """
    clients = sorted(last.assignment.row)
    held = all(len(world.clients[c].validation) for c in clients)
    task = Task(offered=(0,), gradient=True, measure="validation" if held else None)
    tasks = {client: replace(task, offered=(i,)) for i, client in enumerate(clients)}
    replies = asked(
        on,
        method,
        Plan(models=serving(last, clients), tasks=tasks, need="rows"),
        last.position,
        world,
        seed,
    )
    assert replies.updates is not None
    mean = lambda each: short(float(np.mean([values[0] for values in each]))) if held else None  # noqa: E731
    return {
        "gradient_norm": short(sum(float(row.double().square().sum()) for row in replies.updates)),
        "validation": mean(replies.accuracies),
        "validation_loss": mean(replies.losses),
    }


def serving(last: Round, clients: list[Client]) -> Tensor:
    """``(n, d)``: the model that serves each client, with its own values of layers that stay with it."""
    rows = last.assignment.models[[last.assignment.row[client] for client in clients]].clone()
    for row, client in zip(rows, clients, strict=True):
        own = last.position.own(last.assignment, client)
        if own is not None:
            row[:] = torch.where(own.isnan(), row, own)
    return rows


# -- tables IV and V
# -------------------------------------------------------------------------------------------------------


def compare(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    method: Mapping[str, Any],
    rounds: int,
    every: int,
    seed: int,
) -> dict[str, Any]:
    """One method in one task."""
    return run_of(
        on, method_of(method), world_of(on, scenario, training, seed), rounds, every, seed
    )


# -- figure 3
# --------------------------------------------------------------------------------------------------------------


def joining(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    method: Mapping[str, Any],
    founders: int,
    joiners: int,
    apart: int,
    rounds: int,
    every: int,
    seed: int,
) -> dict[str, Any]:
    """Of the clients that are there: some from the first round, and so many more after every ``apart`` rounds.

    Besides what is found at the end, ``curve`` is of those who are there and ``founders`` of those
    who always were; the clients, their data and their order are the same whatever the number of
    ``joiners``.
    """
    world = world_of(on, scenario, training, seed)
    joins = calendar(sorted(world.clients), founders, joiners, apart)
    world = replace(world, attendance=replace(world.attendance, joins=joins))
    tally, first = Tally(world), list[float]()
    old = world.attendance.founders(world.clients)
    for done in rounds_of(method_of(method), world, on, rounds, seed, every=every):
        tally.add(done)
        if done.scores:
            first.append(short(float(np.mean([done.scores[client]["accuracy"] for client in old]))))
    assert tally.last
    return {**tally.found(), "founders": first, "clients": len(tally.last.assignment.row)}


def calendar(clients: list[Client], founders: int, joiners: int, apart: int) -> dict[Client, int]:
    """Client -> the round in which it joins; those that never do join long after the end.

    >>> calendar([0, 1, 2, 3, 4], founders=2, joiners=1, apart=10)
    {2: 11, 3: 21, 4: 31}
    """
    late = clients[founders:]
    return {
        client: 1 + apart * (1 + i // joiners) if joiners else NEVER
        for i, client in enumerate(late)
    }


NEVER = 10**9

# -- figures 4 and 5
# -------------------------------------------------------------------------------------------------------


def by_tradeoff(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    train: float,
    tradeoff: float,
    memory: float,
    rounds: int,
    every: int,
    seed: int,
) -> dict[str, Any]:
    """HCCT with a share of clients' data to train on, and λ as a share of the mean training-set size."""
    world = world_of(on, {**scenario, "train": train}, training, seed)
    return run_of(on, HCCT(tradeoff=tradeoff, memory=memory), world, rounds, every, seed)


def by_groups(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    groups: int,
    memory: float,
    rounds: int,
    every: int,
    seed: int,
) -> dict[str, Any]:
    """HCCT with a number of groups that is given; ``domains``: the number that there are."""
    world = world_of(on, scenario, training, seed)
    found = run_of(on, HCCT(groups=groups, memory=memory), world, rounds, every, seed)
    return {**found, "domains": len(world.truth or ())}


STUDIES = (
    Study(
        name="hcct/table4-digit",
        where="table IV, Digit",
        what="Clients of several domains of digits: error by method",
        measure=compare,
        claims=claims.of_digit,
        figure=figures.errors,
        table=tables.errors,
    ),
    Study(
        name="hcct/table4-fmnist",
        where="table IV, FMNIST",
        what="Clients that are all alike: error by method",
        measure=compare,
        claims=claims.of_fmnist,
        figure=figures.errors,
        table=tables.errors,
    ),
    Study(
        name="hcct/table4-cifar",
        where="table IV, CIFAR-10",
        what="Clients with some shards of one class: error by method",
        measure=compare,
        claims=claims.of_cifar,
        figure=figures.errors,
        table=tables.errors,
    ),
    Study(
        name="hcct/table5",
        where="table V",
        what="Clients of several domains of digits: how errors spread over clients",
        rows_of="hcct/table4-digit",
        measure=compare,
        claims=claims.of_spread,
        figure=figures.spreads,
        table=tables.spreads,
    ),
    Study(
        name="hcct/fig3",
        where="figure 3",
        what="Clients that join later: error, by how many there are",
        measure=joining,
        claims=claims.of_joining,
        figure=figures.joining,
        table=tables.joining,
    ),
    Study(
        name="hcct/fig4",
        where="figure 4",
        what="The weight λ of little data, by the share of data to train on: error",
        measure=by_tradeoff,
        claims=claims.of_tradeoff,
        figure=figures.tradeoffs,
        table=tables.tradeoffs,
    ),
    Study(
        name="hcct/fig5",
        where="figure 5",
        what="A given number of groups: error and total utility",
        measure=by_groups,
        claims=claims.of_groups,
        figure=figures.groups,
        table=tables.groups,
    ),
)
