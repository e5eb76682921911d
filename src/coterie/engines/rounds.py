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

import numpy as np
import torch

from coterie.boundary import Boundary, Wire
from coterie.core import (
    AllBut,
    Assignment,
    Client,
    Cohort,
    Federation,
    Method,
    Note,
    Plan,
    Position,
    Replies,
    Round,
    Task,
    check_declared,
    check_training,
)
from coterie.core.client_table import those_among
from coterie.data.objective import mean_probability
from coterie.data.on_demand import OnDemand
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
    told_statistics,
)
from coterie.engines.pool import ClientPool, Remote
from coterie.engines.refusals import check_refusals
from coterie.engines.served import Nets
from coterie.engines.traffic import as_sent, evaluations, traffic
from coterie.engines.workers import EngineError, Hardware
from coterie.models.layout import Layout
from coterie.randomness import Purpose, numpy_generator, seeded
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
    eval_clients: int | None = None,
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
        eval_clients: Clients that are tested, the same random ones in each test; None for all.
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
    # Check all settings before the first client trains.
    hardware = Hardware(workers=workers, width=width, device=device, precision=precision)
    hardware.check(world)
    (robust or Robust()).check_clients(len(world.clients))
    wire, federation = setup(method, world, seed, boundary or Boundary())
    first_position = Position(
        round=0, exchange=0, state=method.init(federation), members=federation.clients
    )
    if start is not None:
        check_start(start, first_position, method, world, wire)
    position = replace(start or first_position, names=world.client_names)
    tested_clients = drawn_for_tests(world, eval_clients, seed)
    with ClientPool(world, wire, hardware, robust, remote) as pool:
        while position.round < rounds:
            # One communication round: its exchanges, and the method's steps.
            clock = Clock()
            exchange_steps = round_steps(
                method, world, wire, position, seed, clock, pool.robust.fewest_asked
            )
            finished_round = carry(exchange_steps, partial(exchange, pool, seed=seed, clock=clock))
            position = finished_round.position
            # The server does not know which model serves a client; the experimenter sees it.
            if finished_round.assignment.hidden:
                with clock("evaluate"):
                    exchange_key = (seed, position.exchange, position.round - 1)
                    finished_round = _with_taken_models(pool, finished_round, exchange_key)
            # Every ``eval_every`` rounds, and after the last one, clients test the models that
            # serve them.
            round_number = finished_round.number
            if round_number % eval_every == 0 or round_number == rounds:
                with clock("evaluate"):
                    scores = pool.evaluate(finished_round.assignment, position, tested_clients)
                finished_round = finished_round.tested(scores)
            yield replace(
                finished_round,
                notes=(*finished_round.notes, *pool.notes()),
                main=world.objective.main,
                nets=Nets(
                    world.model, wire, world.objective, world.steps[world.step(round_number)]
                ),
            )


def drawn_for_tests(world: World, number: int | None, seed: int) -> tuple[Client, ...] | None:
    """Return the clients that are tested; None for all.

    Args:
        world: The world.
        number: How many are tested; None for all.
        seed: Seed of the draw.
    """
    if number is None or number >= len(world.clients):
        return None
    generator = numpy_generator(seed, Purpose.TESTED)
    positions = generator.choice(len(world.clients), size=number, replace=False)
    clients = sorted(world.clients)
    return tuple(sorted(clients[position] for position in positions.tolist()))


def check_start(
    start_position: Position,
    first_position: Position,
    method: Method[Any],
    world: World,
    wire: Wire,
) -> None:
    """Check that a run of a method over a world can continue from a position.

    Args:
        start_position: The position.
        first_position: The position before the first round of such a run.
        method: The method.
        world: The world; it may have more clients than the position.
        wire: The wire between its clients and the server.

    Raises:
        SettingError: The position is of another method, another model, or other clients.
    """
    # The state must be of this method, its models of this size, and its clients those of the world.
    if type(start_position.state) is not type(first_position.state):
        expected_type = type(first_position.state).__name__
        start_type = type(start_position.state).__name__
        raise SettingError(
            f"start is the position of another method: {method.name} has a {expected_type}, and it has a {start_type}"
        )
    model_length = method.assignment(start_position.state).models.shape[1]
    if model_length != wire.layout.size:
        raise SettingError(
            f"start is the position of a model with {model_length:,} numbers, and the world's has {wire.layout.size:,}"
        )
    for client in start_position.members:
        client_name = start_position.names.get(client, str(client))
        if client not in world.clients:
            raise SettingError(f"start has the client {client_name}, and the world does not")
        if client in start_position.names and client_name != world.name(client):
            raise SettingError(
                f"start has {client_name} as client {client}, and the world has {world.name(client)}: "
                "make the world with after= the earlier one, and its clients keep their numbers"
            )


def _with_taken_models(
    pool: ClientPool, finished_round: Round, exchange_key: tuple[int, int, int]
) -> Round:
    """A round with the models that clients take by themselves, for the experimenter to see, and a note that says so."""
    assignment = pool.taken(finished_round.assignment, exchange_key)
    clients = tuple(sorted(assignment.row))
    note_text = "each client takes the model of lowest loss on its training data; the server does not know which"
    choice_note = Note(
        kind="choose",
        effect="divides",
        clients=clients,
        text=note_text,
        parts=assignment.groups,
        values={"model": dict(assignment.row)},
    )
    return replace(
        finished_round, assignment=assignment, notes=(*finished_round.notes, choice_note)
    )


def setup(
    method: Method[Any], world: World, seed: int, boundary: Boundary, wire: Wire | None = None
) -> tuple[Wire, Federation]:
    """Return the wire between clients and server, and the federation that the method receives.

    Args:
        method: The method to run.
        world: The clients, their data and their model.
        seed: Seed of all random draws.
        boundary: Operations on the rows between clients and server.
        wire: The wire, if :func:`wire_of` has made it before.

    Returns:
        The wire, and the description of the clients for ``method.init``.

    Raises:
        SettingError: Method, world and boundary do not fit together.
    """
    if wire is None:
        wire = wire_of(world, seed, boundary)
    check_membership(method, world)
    wire.check_method(method)
    check_training(method, world.training)
    # What a method may know of the clients before the first round.
    layout = wire.layout
    federation = Federation(
        clients=world.attendance.founders(world.clients),
        draw=lambda model_number: wire.first_model(model_number, world.model),
        columns=layout.columns,
        tensors=layout.tensors,
        dense=layout.dense,
        norms=layout.norms,
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
    wire = Wire(boundary, layout, seed)
    optimizer = world.training.own_optimizer
    return wire if optimizer is None else optimizer.wire(wire, world)


def rehearse(
    method: Method[Any],
    world: World,
    seed: int,
    boundary: Boundary,
    robust: Robust | None = None,
    wire: Wire | None = None,
) -> None:
    """Check the settings as far as the first plan of the method shows mistakes. No client trains.

    Args:
        method: The method to check.
        world: The clients, their data and their model.
        seed: Seed of all random draws.
        boundary: Operations on the rows between clients and server.
        robust: Bounds on the influence of one client to check as well.
        wire: The wire of the world and the boundary, if it is made; several methods can have one.

    Raises:
        SettingError: The settings contain a mistake.
    """
    wire, federation = setup(method, world, seed, boundary, wire)
    cohort = Cohort(present=federation.clients, exchange=0, seed=seed)
    state = method.init(federation)
    first_plan = method.plan(state, cohort)
    plans = [first_plan]
    # A plan in which nobody trains, and no client measures anything, is answered at once. The next
    # plan may show further mistakes.
    if _asks_only_for_sizes(first_plan) and not isinstance(world.clients, OnDemand):
        state = method.step(state, _replies_with_sizes(first_plan, world))
        plans.append(method.plan(state, replace(cohort, exchange=1)))
    (robust or Robust()).check_clients(len(world.clients))
    for plan in plans:
        check_declared(method, plan)
        (robust or Robust()).check_plan(plan, boundary.masks)
        for _, part in plan.leaves():
            wire.check(part, method.name)


def _asks_only_for_sizes(plan: Plan) -> bool:
    """Whether clients only say how many training examples they have."""
    if plan.parts or plan.need != "mean" or plan.ends_round or not plan.tasks:
        return False
    return set(plan.tasks.values()) == {Task(offered=(0,), epochs=0)}


def _replies_with_sizes(plan: Plan, world: World) -> Replies:
    """The replies to such a plan: the clients' numbers of training examples, and no change of the model."""
    clients = tuple(sorted(plan.tasks))
    sizes = [len(world.clients[client].train) for client in clients]
    return Replies(
        clients=clients,
        examples=np.array(sizes, dtype=np.int64),
        chosen=((0,),) * len(clients),
        means=torch.zeros_like(plan.models),
        mean_counts=np.zeros(len(plan.models), dtype=np.int64),
        ends_round=plan.ends_round,
    )


def _check_groups(method: Method[Any], assignment: Assignment) -> None:
    """Check that no client is in two groups.

    Raises:
        SettingError: One is.
    """
    grouped_clients: set[Client] = set()
    for group in assignment.groups:
        twice = grouped_clients.intersection(group)
        if twice:
            raise SettingError(
                f"the method {method.name} must assign each client to one group, and client {min(twice)} is in two"
            )
        grouped_clients.update(group)


Steps = Generator[tuple[Plan, Position], ExchangeResult, Round]


def round_steps(
    method: Method[Any],
    roster: Roster,
    wire: Wire,
    position: Position,
    seed: int,
    clock: Clock,
    fewest_asked: int = 1,
) -> Steps:
    """Run one communication round, independently of the engine that carries out its exchanges.

    Args:
        method: The method to run.
        roster: The clients that may take part.
        wire: The wire between clients and server.
        position: State of the run before the round.
        seed: Seed of all random draws.
        clock: Adds up the seconds of the round.
        fewest_asked: The fewest clients of a group that a sample has.

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
    # Clients that have joined since the last round become members.
    first_exchange = position.exchange
    position, notes_of_arrivals = admit_new(method, roster, position)
    present_clients = present(roster.attendance, position)
    round_notes = list(notes_of_arrivals)
    round_tally = RoundTally()
    personal_parts: set[str] = set()
    ends_round = False
    while not ends_round:
        if position.exchange - first_exchange == MAX_EXCHANGES:
            raise EngineError(_no_end(position.round + 1, round_tally, roster.client_names))
        # The method makes a plan, and its tasks go to the clients that answer.
        cohort = Cohort(
            present=present_clients, exchange=position.exchange, seed=seed, fewest=fewest_asked
        )
        with clock("server"):
            plan = method.plan(position.state, cohort)
        check_declared(method, plan)
        for _, part in plan.leaves():
            wire.check(part, method.name)
        personal_parts |= parts_with_personal_models(plan)
        answered_plan = answering(roster.attendance, plan, position.exchange, seed)
        replies, kept_values = yield answered_plan, position
        # The method takes its step with the replies.
        with clock("server"):
            next_state = method.step(position.state, replies)
            if next_state is None:
                raise SettingError(
                    f"the method {method.name} must return a state from step, got None: is a return missing?"
                )
            round_notes.extend(method.explain(next_state))
        # What clients told about their data is recorded, whatever the method says.
        round_notes.extend(told_statistics(replies))
        # The position moves on by one exchange, and at the end of the round by one round.
        ends_round = plan.ends_round
        position = replace(
            position,
            round=position.round + ends_round,
            exchange=position.exchange + 1,
            state=next_state,
            kept=kept_values,
        )
        round_tally.add(plan, answered_plan, replies, wire)
    # Clients that have been silent for too many rounds leave.
    missed_by_member = missed_rounds(
        position.missed,
        position.members,
        round_tally.asked_clients,
        round_tally.answered_clients,
        present_clients,
    )
    check_refusals(
        position.round,
        round_tally.refused,
        round_tally.answered_clients,
        present_clients,
        roster,
        missed_by_member,
    )
    absent_since = {}
    for client, missed_in_a_row in missed_by_member.items():
        if client not in present_clients:
            absent_since[client] = position.round - missed_in_a_row + 1
    position, notes_of_departures = retire_silent(
        method,
        position,
        round_tally.asked_clients,
        round_tally.answered_clients,
        present_clients,
        roster.attendance.patience,
    )
    round_notes += notes_of_departures
    assignment = method.assignment(position.state)
    _check_groups(method, assignment)
    personal: tuple[Client, ...] = ()
    if assignment.part in personal_parts:
        personal = served_by_personal_models(assignment, position)
    return Round(
        number=position.round,
        position=position,
        assignment=assignment,
        notes=tuple(round_notes),
        refused=round_tally.refused,
        released=round_tally.released,
        rows=round_tally.rows,
        exchanges=position.exchange - first_exchange,
        asked=round_tally.tasks,
        answered=round_tally.answered_tasks,
        scores=None,
        bytes_up=round_tally.bytes_up,
        bytes_down=round_tally.bytes_down,
        evaluations=round_tally.evaluations,
        seconds=clock.seconds,
        adversaries=tuple(sorted(roster.attacks)),
        silent=tuple(sorted(round_tally.asked_clients - round_tally.answered_clients)),
        absent=absent_since,
        claimed=round_tally.claimed,
        counted=round_tally.counted,
        scaled=round_tally.scaled,
        names=roster.client_names,
        personal=personal,
    )


def parts_with_personal_models(plan: Plan) -> set[str]:
    """The names of the parts of a plan in which some client trains a personal model."""
    return {
        part_name
        for part_name, part in plan.leaves()
        if any(task.personal is not None for task in part.tasks.values())
    }


def served_by_personal_models(assignment: Assignment, position: Position) -> tuple[Client, ...]:
    """The clients that an assignment serves by their personal models.

    Args:
        assignment: Which model serves which client, of a part with personal models.
        position: The position after the round. In a federation the models stay at the clients, and
            each that is not served plainly is taken to have one.
    """
    kept_values = position.kept.get(assignment.part)
    may_have_own = assignment.row if kept_values is None else kept_values
    plain = assignment.plain
    if isinstance(plain, AllBut) and plain.clients is assignment.row:
        # A few of many clients are not served plainly, or all of them: they are looked up at once.
        not_plain = tuple(sorted(plain.exceptions))
        return those_among(those_among(not_plain, may_have_own), assignment.row)
    return tuple(
        client
        for client in sorted(may_have_own)
        if client in assignment.row and client not in plain
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
        rows: Client -> its number of training rows as it reports them, where ``released`` depends on it.
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
    rows: dict[Client, int] = field(default_factory=dict)
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
        # Who was asked, who answered, and what limits did to the replies.
        self.tasks += len(plan.asked)
        self.answered_tasks += len(replies.clients)
        self.asked_clients.update(plan.asked)
        self.answered_clients.update(replies.clients)
        self.refused.update(replies.refused)
        self.claimed.update(replies.limits.claimed)
        self.counted.update(replies.limited_counts())
        self.scaled.update(replies.limits.scaled)
        # Privacy is spent, and bytes flow, only for updates that were sent.
        sent_plan = as_sent(answered_plan, replies)
        examples = dict(zip(replies.clients, replies.examples.tolist(), strict=True))
        for _, part in sent_plan.leaves():
            for client, task in part.tasks.items():
                rows = self.claimed.get(client, examples.get(client, 0))
                releases = wire.releases(task, part.private.hides_choices, client, rows)
                if releases:
                    self.released[client] += releases
                    if wire.counts_rows:
                        self.rows[client] = rows
        self.bytes_up += traffic(sent_plan, wire)[0]
        self.bytes_down += traffic(plan, wire)[1]
        self.evaluations += evaluations(plan)


def carry(exchange_steps: Steps, exchange: Callable[[Plan, Position], ExchangeResult]) -> Round:
    """Run the round of :func:`round_steps` to its end.

    Args:
        exchange_steps: The generator of :func:`round_steps`.
        exchange: Function that carries out a plan, given the plan and its position.

    Returns:
        The round, not tested yet.
    """
    # The generator yields a plan, and takes the replies to it.
    plan, position = next(exchange_steps)
    while True:
        try:
            plan, position = exchange_steps.send(exchange(plan, position))
        except StopIteration as stop:
            finished_round: Round = stop.value
            return finished_round


def _no_end(round_number: int, round_tally: RoundTally, client_names: Mapping[Client, str]) -> str:
    error_text = (
        f"round {round_number} has not ended after {MAX_EXCHANGES} exchanges, in which "
        f"{round_tally.answered_tasks} of {round_tally.tasks} tasks were answered"
    )
    if round_tally.refused:
        client, refusal = next(iter(round_tally.refused.items()))
        error_text += (
            f"; {len(round_tally.refused)} clients were refused, for example client "
            f"{client_names.get(client, client)}: {refusal}"
        )
    return error_text
