"""The in-process engine: a generator of rounds over clients that live on this machine.

Everything random depends on (seed, exchange, client) alone: the number of workers or an interruption changes no bit, and a
silent client no draw of another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.core import (
    Client,
    Cohort,
    Federation,
    Method,
    Plan,
    Replies,
)
from coterie.core.round import Position, Round
from coterie.engines import roll
from coterie.engines.clock import Clock
from coterie.engines.fleet import Fleet
from coterie.engines.gather import exchange
from coterie.engines.hardware import Hardware
from coterie.engines.traffic import as_sent
from coterie.engines.traffic import evaluations as evaluations
from coterie.engines.traffic import traffic as traffic
from coterie.engines.workers import EngineError
from coterie.layout import Layout
from coterie.randomness import Purpose, seeded
from coterie.robust import Robust
from coterie.world import World

EXCHANGES = 200
"""More in one round are no progress: a method that asks again, and clients whose replies are no use. A start-up may well
take many: k-means++ with k models 2 k - 1 and a few for clients that do not answer."""


def rounds(
    method: Method[Any],
    world: World,
    *,
    rounds: int,
    seed: int = 0,
    workers: int | None = None,
    width: int | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    eval_every: int = 1,
    start: Position | None = None,
    boundary: Boundary | None = None,
    robust: Robust | None = None,
) -> Iterator[Round]:
    """Run ``method`` over ``world``; yields each communication round up to number ``rounds``.

    workers, width, device, precision: what it computes with, see :class:`~coterie.engines.hardware.Hardware`. eval_every:
    rounds between tests on the clients' test data; the last round is always tested. start: go on from there. boundary: what
    is done to rows between clients and server. robust: bounds on what one client can do to the others.

    Leaving the loop early stops the workers. Raises
    :class:`~coterie.engines.workers.EngineError` if training fails, and :class:`~coterie.settings.SettingError` where
    method, world and boundary do not go together.
    """
    hardware = Hardware(workers=workers, width=width, device=device, precision=precision)
    hardware.check(world)
    wire, federation = meeting(method, world, seed, boundary or Boundary())
    position = start or Position(round=0, exchange=0, state=method.init(federation), members=federation.clients)
    with Fleet(world, wire, hardware, robust) as fleet:
        while position.round < rounds:
            clock = Clock()
            steps = communicate(method, world, wire, position, seed, clock)
            done = carry(steps, partial(exchange, fleet, seed=seed, clock=clock))
            position = done.position
            if done.number % eval_every == 0 or done.number == rounds:
                with clock("evaluate"):
                    scores = fleet.evaluate(done.assignment, position.kept)
                done = replace(done, scores=scores)
            yield done


def meeting(method: Method[Any], world: World, seed: int, boundary: Boundary) -> tuple[Wire, Federation]:
    """The wire between clients and server, and what the method is told of the clients."""
    with seeded(seed, Purpose.INIT):
        layout = Layout(world.model())
    roll.check(method, world)
    boundary.check_method(method)
    wire = Wire(boundary, layout, seed)
    federation = Federation(
        clients=world.attendance.founders(world.clients),
        draw=lambda i: wire.first_model(i, world.model),
        columns=layout.columns,
        tensors=layout.tensors,
        dense=layout.dense,
        training=world.training,
    )
    return wire, wire.veil(federation)


def rehearse(method: Method[Any], world: World, seed: int, boundary: Boundary, hardware: Hardware | None = None) -> None:
    """Raises :class:`~coterie.settings.SettingError` for a mistake that the first plan shows; trains nobody."""
    if hardware:
        hardware.check(world)
    wire, federation = meeting(method, world, seed, boundary)
    cohort = Cohort(present=federation.clients, exchange=0, seed=seed)
    wire.check(method.plan(method.init(federation), cohort), method.name)


Heard = tuple[Replies, Mapping[Client, Tensor]]
"""The replies to a plan, and what the clients keep afterwards."""

Steps = Generator[tuple[Plan, Position], Heard, Round]


def communicate(method: Method[Any], roster: roll.Roster, wire: Wire, position: Position, seed: int, clock: Clock) -> Steps:
    """One communication round, whoever carries it out: yields each exchange's plan, for those who will answer, with the
    position it is made in; takes the replies; returns the round, not tested yet."""
    first, attendance = position.exchange, roster.attendance
    position, came = roll.call(method, roster, position)
    there = roll.present(attendance, position)
    notes = list(came)
    refused: dict[Client, str] = {}
    claimed: dict[Client, int] = {}
    scaled: dict[Client, float] = {}
    spoken: tuple[set[Client], set[Client]] = (set(), set())  # who was asked, who was heard
    released: Counter[Client] = Counter()
    asked = answered = up = down = measured = 0
    ends = False
    while not ends:
        if position.exchange - first == EXCHANGES:
            raise EngineError(_endless(position.round + 1, asked, answered, refused))
        cohort = Cohort(present=there, exchange=position.exchange, seed=seed)
        with clock("server"):
            plan = method.plan(position.state, cohort)
        wire.check(plan, method.name)
        carried = roll.answering(attendance, plan, position.exchange, seed)
        replies, kept = yield carried, position
        with clock("server"):
            new = method.step(position.state, replies)
            notes.extend(method.explain(new))
        ends = plan.ends_round
        position = replace(
            position, round=position.round + ends, exchange=position.exchange + 1, state=new, kept=kept
        )
        asked, answered = asked + len(plan.tasks), answered + len(replies.clients)
        spoken[0].update(plan.tasks)
        spoken[1].update(replies.clients)
        refused.update(replies.refused)
        claimed.update(replies.claimed)
        scaled.update(replies.scaled)
        sent = as_sent(carried, replies)
        released.update({client: count for client, task in sent.tasks.items() if (count := wire.releases(task))})
        up, down = up + traffic(sent, wire)[0], down + traffic(plan, wire)[1]
        measured += evaluations(plan)
    position, left = roll.dismiss(method, position, *spoken, there, attendance.patience)
    notes += left
    return Round(
        number=position.round, position=position, assignment=method.assignment(position.state), notes=tuple(notes),
        refused=refused, released=released, exchanges=position.exchange - first, asked=asked, answered=answered, scores=None,
        bytes_up=up, bytes_down=down, evaluations=measured, seconds=clock.seconds, adversaries=tuple(sorted(roster.attacks)),
        silent=tuple(sorted(spoken[0] - spoken[1])), claimed=claimed, scaled=scaled,
    )  # fmt: skip


def carry(steps: Steps, exchange: Callable[[Plan, Position], Heard]) -> Round:
    """The round of :func:`communicate`, each plan carried out by ``exchange``."""
    plan, at = next(steps)
    while True:
        try:
            plan, at = steps.send(exchange(plan, at))
        except StopIteration as end:
            done: Round = end.value
            return done


def _endless(number: int, asked: int, answered: int, refused: Mapping[Client, str]) -> str:
    text = f"round {number} has not ended after {EXCHANGES} exchanges, in which {answered} of {asked} tasks were answered"
    if refused:
        client, why = next(iter(refused.items()))
        text += f"; {len(refused)} clients were refused, as client {client}: {why}"
    return text
