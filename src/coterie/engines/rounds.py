"""The in-process engine: a generator of rounds over clients that live on this machine.

All random draws depend only on (seed, exchange, client). So neither the number of workers nor an
interruption changes a bit of the result, and a client that does not answer changes no draw of
another client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coterie.boundary import Boundary, Wire
from coterie.core import (
    Client,
    Cohort,
    Federation,
    Method,
    Note,
    Plan,
    Position,
    Replies,
    Round,
    check_declared,
)
from coterie.data.objective import mean_probability
from coterie.data.world import World
from coterie.engines.clock import Clock
from coterie.engines.exchange import ExchangeResult, exchange
from coterie.engines.membership import (
    Roster,
    admit_new,
    answering,
    check_membership,
    missed_rounds,
    present,
    retire_silent,
)
from coterie.engines.pool import ClientPool, Remote
from coterie.engines.refusals import check_refusals
from coterie.engines.served import Nets
from coterie.engines.traffic import as_sent, evaluations, traffic
from coterie.engines.workers import EngineError, Hardware
from coterie.models.layout import Layout
from coterie.randomness import Purpose, seeded
from coterie.robust import Robust
from coterie.settings import SettingError

MAX_EXCHANGES = 200
"""Most exchanges that a round may have.

A round with more makes no progress: the method asks again and again, and cannot use the clients'
replies. An initialisation may need many: k-means++ with k models needs 2 k - 1, and a few more for
clients that do not answer.
"""


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
    remote: Remote | None = None,
) -> Generator[Round, None, None]:
    """Run a method over a world, one communication round after the other.

    Leaving the loop early stops the workers.

    Args:
        method: The method to run.
        world: The clients, their data and their model.
        rounds: Number of the last round.
        seed: Seed of all random draws.
        workers: Worker processes, see :class:`~coterie.engines.workers.Hardware`.
        width: Clients trained in one block, see :class:`~coterie.engines.workers.Hardware`.
        device: Device for training, see :class:`~coterie.engines.workers.Hardware`.
        precision: Number format for training, see :class:`~coterie.engines.workers.Hardware`.
        eval_every: Rounds between tests on the clients' test data. The last round is always tested.
        start: Position from which the run continues. None starts a new run.
        boundary: Operations on the rows between clients and server, such as clipping or noise.
        robust: Bounds on the influence of one client on the others.
        remote: Other machines on which the clients train, in place of this one.

    Yields:
        Each communication round, up to number ``rounds``.

    Raises:
        EngineError: Training fails.
        SettingError: Method, world and boundary do not fit together.
    """
    hardware = Hardware(workers=workers, width=width, device=device, precision=precision)
    hardware.check(world)
    wire, federation = setup(method, world, seed, boundary or Boundary())
    first = Position(round=0, exchange=0, state=method.init(federation), members=federation.clients)
    if start is not None:
        check_start(start, first, method, world, wire)
    position = replace(start or first, names=world.client_names)
    with ClientPool(world, wire, hardware, robust, remote) as pool:
        while position.round < rounds:
            clock = Clock()
            steps = round_steps(method, world, wire, position, seed, clock)
            finished_round = carry(steps, partial(exchange, pool, seed=seed, clock=clock))
            position = finished_round.position
            # The server does not know which model serves a client; the experimenter sees it.
            if finished_round.assignment.hidden:
                with clock("evaluate"):
                    key = (seed, position.exchange, position.round - 1)
                    finished_round = _with_taken_models(pool, finished_round, key)
            number = finished_round.number
            if number % eval_every == 0 or number == rounds:
                with clock("evaluate"):
                    scores = pool.evaluate(finished_round.assignment, position)
                finished_round = finished_round.tested(scores)
            yield replace(
                finished_round,
                notes=(*finished_round.notes, *pool.notes()),
                main=world.objective.main,
                nets=Nets(world.model, wire, world.objective, world.steps[world.step(number)]),
            )


def check_start(
    start: Position, first: Position, method: Method[Any], world: World, wire: Wire
) -> None:
    """Check that a run of a method over a world can continue from a position.

    Args:
        start: The position.
        first: The position before the first round of such a run.
        method: The method.
        world: The world; it may have more clients than the position.
        wire: The wire between its clients and the server.

    Raises:
        SettingError: The position is of another method, another model, or other clients.
    """
    if type(start.state) is not type(first.state):
        expected_type = type(first.state).__name__
        start_type = type(start.state).__name__
        raise SettingError(
            f"start is the position of another method: {method.name} has a {expected_type}, and it has a {start_type}"
        )
    size = method.assignment(start.state).models.shape[1]
    if size != wire.layout.size:
        raise SettingError(
            f"start is the position of a model with {size:,} numbers, and the world's has {wire.layout.size:,}"
        )
    for client in start.members:
        name = start.names.get(client, str(client))
        if client not in world.clients:
            raise SettingError(f"start has the client {name}, and the world does not")
        if client in start.names and name != world.name(client):
            raise SettingError(
                f"start has {name} as client {client}, and the world has {world.name(client)}: make the world with after= the"
                " earlier one, and its clients keep their numbers"
            )


def _with_taken_models(pool: ClientPool, finished_round: Round, key: tuple[int, int, int]) -> Round:
    """A round with the models that clients take by themselves, for the experimenter to see, and a note that says so."""
    assignment = pool.taken(finished_round.assignment, key)
    clients = tuple(sorted(assignment.row))
    text = "each client takes the model of lowest loss on its training data; the server does not know which"
    note = Note(
        kind="choose",
        effect="divides",
        clients=clients,
        text=text,
        parts=assignment.groups,
        values={"model": dict(assignment.row)},
    )
    return replace(finished_round, assignment=assignment, notes=(*finished_round.notes, note))


def setup(
    method: Method[Any], world: World, seed: int, boundary: Boundary
) -> tuple[Wire, Federation]:
    """Return the wire between clients and server, and the federation that the method receives.

    Args:
        method: The method to run.
        world: The clients, their data and their model.
        seed: Seed of all random draws.
        boundary: Operations on the rows between clients and server.

    Returns:
        The wire, and the description of the clients for ``method.init``.

    Raises:
        SettingError: Method, world and boundary do not fit together.
    """
    wire = wire_of(world, seed, boundary)
    check_membership(method, world)
    boundary.check_method(method)
    layout = wire.layout
    federation = Federation(
        clients=world.attendance.founders(world.clients),
        draw=lambda i: wire.first_model(i, world.model),
        columns=layout.columns,
        tensors=layout.tensors,
        dense=layout.dense,
        training=world.training,
        labels=world.objective.combine is mean_probability,
        clip=boundary.clip,
    )
    return wire, wire.veil(federation)


def wire_of(world: World, seed: int, boundary: Boundary) -> Wire:
    """Return the wire between the clients of a world and the server.

    Args:
        world: The clients and their model.
        seed: Seed of all random draws.
        boundary: Operations on the rows between clients and server.
    """
    with seeded(seed, Purpose.INIT):
        layout = Layout(world.model())
    return Wire(boundary, layout, seed)


def rehearse(
    method: Method[Any],
    world: World,
    seed: int,
    boundary: Boundary,
    hardware: Hardware | None = None,
    robust: Robust | None = None,
) -> None:
    """Check the settings as far as the first plan of the method shows mistakes. No client trains.

    Args:
        method: The method to check.
        world: The clients, their data and their model.
        seed: Seed of all random draws.
        boundary: Operations on the rows between clients and server.
        hardware: Hardware settings to check as well. None leaves this check out.
        robust: Bounds on the influence of one client to check as well.

    Raises:
        SettingError: The settings contain a mistake.
    """
    if hardware:
        hardware.check(world)
    wire, federation = setup(method, world, seed, boundary)
    cohort = Cohort(present=federation.clients, exchange=0, seed=seed)
    plan = method.plan(method.init(federation), cohort)
    check_declared(method, plan)
    (robust or Robust()).check_plan(plan, boundary.masks)
    for _, part in plan.leaves():
        wire.check(part, method.name)


Steps = Generator[tuple[Plan, Position], ExchangeResult, Round]


def round_steps(
    method: Method[Any], roster: Roster, wire: Wire, position: Position, seed: int, clock: Clock
) -> Steps:
    """Run one communication round, independently of the engine that carries out its exchanges.

    Args:
        method: The method to run.
        roster: The clients that may take part.
        wire: The wire between clients and server.
        position: State of the run before the round.
        seed: Seed of all random draws.
        clock: Adds up the seconds of the round.

    Yields:
        For each exchange, the plan without the tasks of clients that will not answer, and the
        position in which the method made it. Send back the replies and the values that the clients
        keep.

    Returns:
        The round, not tested yet.

    Raises:
        EngineError: The round has not ended after :data:`MAX_EXCHANGES` exchanges.
        RefusedError: All replies of the round were refused, see :func:`check_refusals`.
        SettingError: The method makes a plan that the wire does not allow.
    """
    first_exchange = position.exchange
    position, notes_of_arrivals = admit_new(method, roster, position)
    present_clients = present(roster.attendance, position)
    notes = list(notes_of_arrivals)
    tally = RoundTally()
    ends_round = False
    while not ends_round:
        if position.exchange - first_exchange == MAX_EXCHANGES:
            raise EngineError(_no_end(position.round + 1, tally, roster.client_names))
        # The method makes a plan, and its tasks go to the clients that answer.
        cohort = Cohort(present=present_clients, exchange=position.exchange, seed=seed)
        with clock("server"):
            plan = method.plan(position.state, cohort)
        check_declared(method, plan)
        for _, part in plan.leaves():
            wire.check(part, method.name)
        answered_plan = answering(roster.attendance, plan, position.exchange, seed)
        replies, kept = yield answered_plan, position
        # The method takes its step with the replies.
        with clock("server"):
            state = method.step(position.state, replies)
            notes.extend(method.explain(state))
        ends_round = plan.ends_round
        position = replace(
            position,
            round=position.round + ends_round,
            exchange=position.exchange + 1,
            state=state,
            kept=kept,
        )
        tally.add(plan, answered_plan, replies, wire)
    # Clients that have been silent for too many rounds leave.
    missed = missed_rounds(
        position.missed,
        position.members,
        tally.asked_clients,
        tally.answered_clients,
        present_clients,
    )
    check_refusals(
        position.round, tally.refused, tally.answered_clients, present_clients, roster, missed
    )
    position, notes_of_departures = retire_silent(
        method,
        position,
        tally.asked_clients,
        tally.answered_clients,
        present_clients,
        roster.attendance.patience,
    )
    notes += notes_of_departures
    return Round(
        number=position.round,
        position=position,
        assignment=method.assignment(position.state),
        notes=tuple(notes),
        refused=tally.refused,
        released=tally.released,
        exchanges=position.exchange - first_exchange,
        asked=tally.tasks,
        answered=tally.answered_tasks,
        scores=None,
        bytes_up=tally.bytes_up,
        bytes_down=tally.bytes_down,
        evaluations=tally.evaluations,
        seconds=clock.seconds,
        adversaries=tuple(sorted(roster.attacks)),
        silent=tuple(sorted(tally.asked_clients - tally.answered_clients)),
        claimed=tally.claimed,
        counted=tally.counted,
        scaled=tally.scaled,
        names=roster.client_names,
    )


@dataclass
class RoundTally:
    """What is counted over the exchanges of a round, see :class:`~coterie.core.Round`.

    Attributes:
        tasks: How many clients had a task, added up over exchanges.
        answered_tasks: How many of them answered.
        asked_clients: The clients that had a task in some exchange.
        answered_clients: The clients whose replies were used in some exchange.
        refused: Client -> why its last refused reply was refused.
        claimed: Client -> the number of examples that it reported, if it counted for fewer.
        counted: Client -> the number for which it counted.
        scaled: Client -> the factor by which its update was scaled down.
        released: Client -> how many updates it sent that noise must cover.
        bytes_up: Bytes from the clients to the server.
        bytes_down: Bytes from the server to the clients.
        evaluations: Measurements of one model by one client.
    """

    tasks: int = 0
    answered_tasks: int = 0
    asked_clients: set[Client] = field(default_factory=set)
    answered_clients: set[Client] = field(default_factory=set)
    refused: dict[Client, str] = field(default_factory=dict)
    claimed: dict[Client, int] = field(default_factory=dict)
    counted: dict[Client, int] = field(default_factory=dict)
    scaled: dict[Client, float] = field(default_factory=dict)
    released: Counter[Client] = field(default_factory=Counter)
    bytes_up: int = 0
    bytes_down: int = 0
    evaluations: int = 0

    def add(self, plan: Plan, answered_plan: Plan, replies: Replies, wire: Wire) -> None:
        """Count an exchange.

        Args:
            plan: The plan, which all of its clients receive.
            answered_plan: The plan without the tasks of clients that do not answer.
            replies: The replies.
            wire: The wire between clients and server.
        """
        self.tasks += len(plan.asked)
        self.answered_tasks += len(replies.clients)
        self.asked_clients.update(plan.asked)
        self.answered_clients.update(replies.clients)
        self.refused.update(replies.refused)
        self.claimed.update(replies.limits.claimed)
        examples = dict(zip(replies.clients, replies.examples.tolist(), strict=True))
        self.counted.update({client: examples[client] for client in replies.limits.claimed})
        self.scaled.update(replies.limits.scaled)
        sent_plan = as_sent(answered_plan, replies)
        for _, part in sent_plan.leaves():
            for client, task in part.tasks.items():
                releases = wire.releases(task, part.private.hides_choices)
                if releases:
                    self.released[client] += releases
        self.bytes_up += traffic(sent_plan, wire)[0]
        self.bytes_down += traffic(plan, wire)[1]
        self.evaluations += evaluations(plan)


def carry(steps: Steps, exchange: Callable[[Plan, Position], ExchangeResult]) -> Round:
    """Run the round of :func:`round_steps` to its end.

    Args:
        steps: The generator of :func:`round_steps`.
        exchange: Function that carries out a plan, given the plan and its position.

    Returns:
        The round, not tested yet.
    """
    plan, position = next(steps)
    while True:
        try:
            plan, position = steps.send(exchange(plan, position))
        except StopIteration as stop:
            finished_round: Round = stop.value
            return finished_round


def _no_end(number: int, tally: RoundTally, names: Mapping[Client, str]) -> str:
    text = (
        f"round {number} has not ended after {MAX_EXCHANGES} exchanges, in which "
        f"{tally.answered_tasks} of {tally.tasks} tasks were answered"
    )
    if tally.refused:
        client, refusal = next(iter(tally.refused.items()))
        text += (
            f"; {len(tally.refused)} clients were refused, for example client "
            f"{names.get(client, client)}: {refusal}"
        )
    return text
