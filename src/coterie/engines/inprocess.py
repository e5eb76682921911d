"""The in-process engine: a generator of rounds over clients that live on this machine.

Everything random depends on (seed, exchange, client) alone: the number of workers or an interruption changes no bit, and a
silent client no draw of another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Method,
    Note,
    state,
)
from coterie.engines import roll
from coterie.engines.clock import Clock
from coterie.engines.fleet import Fleet
from coterie.engines.gather import exchange
from coterie.engines.hardware import Hardware
from coterie.engines.traffic import evaluations as evaluations
from coterie.engines.traffic import traffic as traffic
from coterie.engines.workers import EngineError
from coterie.layout import Layout
from coterie.randomness import Purpose, seeded
from coterie.world import World

EXCHANGES = 200
"""More in one round are no progress: a method that asks again, and clients whose replies are no use. A start-up may well
take many: k-means++ with k models 2 k - 1 and a few for clients that do not answer."""


@state
class Position:
    """Where a run stands: with the method, the world and the seed, all it takes to go on.

    round, exchange: how many are completed. state: the method's. kept: client -> its own values ``(d,)`` of layers that
    stay with it (NaN in the other columns). members: who takes part. missed: rounds in a row without an answer.
    """

    round: int
    exchange: int
    state: Any
    kept: Mapping[Client, Tensor] = field(default_factory=dict)
    members: tuple[Client, ...] = ()
    missed: Mapping[Client, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One communication round: its number (from 1), the position after it, and what happened.

    assignment: who is served by which model now. notes: of all its exchanges. asked, answered: tasks sent and replies
    taken. refused: client -> why its reply was turned away. released: client -> updates it sent that noise has to cover.
    scores: client -> test loss and metrics, or None where this
    round was not evaluated. bytes: of this round, both ways. evaluations: of a model on one client's data that the plans
    asked for, tests not counted. seconds: ``train``, ``server``, ``evaluate``. adversaries: clients that mean harm.
    """

    number: int
    position: Position
    assignment: Assignment
    notes: tuple[Note, ...]
    exchanges: int
    asked: int
    answered: int
    refused: Mapping[Client, str]
    released: Mapping[Client, int]
    scores: Mapping[Client, Mapping[str, float]] | None
    bytes_up: int
    bytes_down: int
    evaluations: int
    seconds: Mapping[str, float]
    adversaries: tuple[Client, ...] = ()


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
) -> Iterator[Round]:
    """Run ``method`` over ``world``; yields each communication round up to number ``rounds``.

    workers, width, device, precision: what it computes with, see :class:`~coterie.engines.hardware.Hardware`. eval_every:
    rounds between tests on the clients' test data; the last round is always tested. start: go on from there. boundary: what
    is done to rows between clients and server. Leaving the loop early stops the workers. Raises
    :class:`~coterie.engines.workers.EngineError` if training fails, and :class:`~coterie.settings.SettingError` where
    method, world and boundary do not go together.
    """
    hardware = Hardware(workers=workers, width=width, device=device, precision=precision)
    hardware.check(world)
    wire, federation = meeting(method, world, seed, boundary or Boundary())
    position = start or Position(round=0, exchange=0, state=method.init(federation), members=federation.clients)
    with Fleet(world, wire, hardware) as fleet:
        while position.round < rounds:
            test = (position.round + 1) % eval_every == 0 or position.round + 1 == rounds
            done = _round(method, fleet, position, seed, test)
            position = done.position
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
        draw=lambda i: _draw(world, wire, i),
        columns=layout.columns,
        tensors=layout.tensors,
        dense=layout.dense,
    )
    return wire, wire.veil(federation)


def rehearse(method: Method[Any], world: World, seed: int, boundary: Boundary, hardware: Hardware | None = None) -> None:
    """Raises :class:`~coterie.settings.SettingError` for a mistake that the first plan shows; trains nobody."""
    if hardware:
        hardware.check(world)
    wire, federation = meeting(method, world, seed, boundary)
    cohort = Cohort(present=federation.clients, exchange=0, seed=seed)
    wire.check(method.plan(method.init(federation), cohort), method.name)


def _draw(world: World, wire: Wire, i: int) -> Tensor:
    with seeded(*wire.first_key(i)):
        return wire.layout.row(world.model())


def _round(method: Method[Any], fleet: Fleet, position: Position, seed: int, test: bool) -> Round:
    """The exchanges of one communication round, then the test."""
    first, clock, attendance = position.exchange, Clock(), fleet.world.attendance
    position, came = roll.call(method, fleet.world, position)
    there = roll.present(attendance, position)
    notes = list(came)
    refused: dict[Client, str] = {}
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
        fleet.wire.check(plan, method.name)
        carried = roll.answering(attendance, plan, position.exchange, seed)
        replies, kept = exchange(fleet, carried, position, seed, clock)
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
        released.update(c for c, task in carried.tasks.items() if fleet.wire.releases(task))
        up, down = up + traffic(carried, fleet.wire)[0], down + traffic(plan, fleet.wire)[1]
        measured += evaluations(plan)
    position, left = roll.dismiss(method, position, *spoken, there, attendance.patience)
    notes += left
    assignment = method.assignment(position.state)
    with clock("evaluate"):
        scores = fleet.evaluate(assignment, position.kept) if test else None
    return Round(
        number=position.round, position=position, assignment=assignment, notes=tuple(notes), refused=refused, released=released,
        exchanges=position.exchange - first, asked=asked, answered=answered, scores=scores,
        bytes_up=up, bytes_down=down, evaluations=measured, seconds=clock.seconds,
        adversaries=tuple(sorted(fleet.world.attacks)),
    )  # fmt: skip


def _endless(number: int, asked: int, answered: int, refused: Mapping[Client, str]) -> str:
    text = f"round {number} has not ended after {EXCHANGES} exchanges, in which {answered} of {asked} tasks were answered"
    if refused:
        client, why = next(iter(refused.items()))
        text += f"; {len(refused)} clients were refused, as client {client}: {why}"
    return text
