"""The in-process engine: a generator of rounds over clients that live on this machine.

All random draws depend only on (seed, exchange, client). So neither the number of workers nor an
interruption changes a bit of the result, and a client that does not answer changes no draw of
another client.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.boundary import NUMBER, Boundary, Wire
from coterie.clustering import gram
from coterie.clustering.sketch import unchecked_sketch
from coterie.core import (
    CHUNK,
    HALVES,
    Admits,
    AppliedLimits,
    Candidate,
    Client,
    Cohort,
    Federation,
    HalvedUpdates,
    HeldOutLosses,
    Kept,
    Means,
    Method,
    Need,
    Note,
    Plan,
    Position,
    Replies,
    Round,
    Task,
    amounts,
    group_means,
)
from coterie.data.objective import mean_probability
from coterie.data.world import Attendance, World
from coterie.engines.pool import Answer, ClientPool, Remote, sketch_size
from coterie.engines.served import Nets
from coterie.engines.sums import Answers
from coterie.engines.workers import EngineError, Hardware
from coterie.models.layout import Layout
from coterie.randomness import Purpose, seeded
from coterie.robust import Robust, Usual
from coterie.settings import SettingError, UserError

EXCHANGES = 200
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
            done = carry(steps, partial(exchange, pool, seed=seed, clock=clock))
            position = done.position
            if done.assignment.hidden:
                with clock("evaluate"):
                    done = _shown(pool, done, (seed, position.exchange, position.round - 1))
            if done.number % eval_every == 0 or done.number == rounds:
                with clock("evaluate"):
                    results = pool.evaluate(done.assignment, position)
                done = done.tested(results)
            nets = Nets(world.model, wire, world.objective, world.steps[world.step(done.number)])
            yield replace(
                done, notes=(*done.notes, *pool.notes()), main=world.objective.main, nets=nets
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
        own, other = type(first.state).__name__, type(start.state).__name__
        raise SettingError(
            f"start is the position of another method: {method.name} has a {own}, and it has a {other}"
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


def _shown(pool: ClientPool, done: Round, when: tuple[int, int, int]) -> Round:
    """A round with the models that clients take by themselves, for the experimenter to see, and a note that says so."""
    assignment = pool.taken(done.assignment, when)
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
    return replace(done, assignment=assignment, notes=(*done.notes, note))


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
    (robust or Robust()).check_plan(plan, boundary.masks)
    for _, part in plan.leaves():
        wire.check(part, method.name)


ExchangeResult = tuple[Replies, Kept]
"""The replies to a plan, and the values that each client keeps afterwards."""

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
        EngineError: The round has not ended after :data:`EXCHANGES` exchanges.
        RefusedError: All replies of the round were refused, see :func:`check_refusals`.
        SettingError: The method makes a plan that the wire does not allow.
    """
    first, attendance = position.exchange, roster.attendance
    position, came = admit_new(method, roster, position)
    there = present(attendance, position)
    notes = list(came)
    refused: dict[Client, str] = {}
    claimed: dict[Client, int] = {}
    counted: dict[Client, int] = {}
    scaled: dict[Client, float] = {}
    spoken: tuple[set[Client], set[Client]] = (
        set(),
        set(),
    )  # clients that were asked, clients that answered
    released: Counter[Client] = Counter()
    asked = answered = up = down = measured = 0
    ends = False
    while not ends:
        if position.exchange - first == EXCHANGES:
            raise EngineError(
                _endless(position.round + 1, asked, answered, refused, roster.client_names)
            )
        cohort = Cohort(present=there, exchange=position.exchange, seed=seed)
        with clock("server"):
            plan = method.plan(position.state, cohort)
        for _, part in plan.leaves():
            wire.check(part, method.name)
        carried = answering(attendance, plan, position.exchange, seed)
        replies, kept = yield carried, position
        with clock("server"):
            new = method.step(position.state, replies)
            notes.extend(method.explain(new))
        ends = plan.ends_round
        position = replace(
            position,
            round=position.round + ends,
            exchange=position.exchange + 1,
            state=new,
            kept=kept,
        )
        asked, answered = asked + len(plan.asked), answered + len(replies.clients)
        spoken[0].update(plan.asked)
        spoken[1].update(replies.clients)
        refused.update(replies.refused)
        claimed.update(replies.limits.claimed)
        examples = dict(zip(replies.clients, replies.examples.tolist(), strict=True))
        counted.update({client: examples[client] for client in replies.limits.claimed})
        scaled.update(replies.limits.scaled)
        sent = as_sent(carried, replies)
        for _, part in sent.leaves():
            released.update(
                {
                    client: count
                    for client, task in part.tasks.items()
                    if (count := wire.releases(task, part.private.hides_choices))
                }
            )
        up, down = up + traffic(sent, wire)[0], down + traffic(plan, wire)[1]
        measured += evaluations(plan)
    missed = _missed(position.missed, position.members, *spoken, there)
    check_refusals(position.round, refused, spoken[1], there, roster, missed)
    position, left = retire_silent(method, position, *spoken, there, attendance.patience)
    notes += left
    return Round(
        number=position.round,
        position=position,
        assignment=method.assignment(position.state),
        notes=tuple(notes),
        refused=refused,
        released=released,
        exchanges=position.exchange - first,
        asked=asked,
        answered=answered,
        scores=None,
        bytes_up=up,
        bytes_down=down,
        evaluations=measured,
        seconds=clock.seconds,
        adversaries=tuple(sorted(roster.attacks)),
        silent=tuple(sorted(spoken[0] - spoken[1])),
        claimed=claimed,
        counted=counted,
        scaled=scaled,
        names=roster.client_names,
    )


class RefusedError(UserError):
    """All replies of a round were refused, so that no model learns anything; the sentence names the reason and a remedy."""


MANY = 3
"""Refused clients of a round from which on they cannot all be hostile clients that happened to be
the only ones asked."""

MOST = 0.8
"""Share of the clients that are present of which none may have answered when it was last asked. If
only some clients are asked in a round, all of these may be broken by chance, and the others not."""


def check_refusals(
    round: int,
    refused: Mapping[Client, str],
    heard: Collection[Client],
    there: Collection[Client],
    roster: Roster,
    missed: Collection[Client],
) -> None:
    """Check that a round had an answer, if any client answered: without one the models stay as they are, and nobody notices.

    Clients that do not answer are no refusals. Neither are hostile clients, if they were the only
    ones that were asked: that is known in a simulation, and likely where fewer than :data:`MANY` of
    the clients of a federation were. If only some clients are asked in a round, all of them must
    have been refused in the first round (and be :data:`MANY`), or most of all clients that are
    present when they were last asked.

    Args:
        round: The number of the round.
        refused: Client -> why its reply was refused.
        heard: Clients whose replies were used in some exchange of the round.
        there: Clients that were present.
        roster: The clients that may take part.
        missed: Members that have not answered since they were last asked, after the round.

    Raises:
        RefusedError: All replies were refused.
    """
    honest = sorted(set(refused) - set(roster.attacks))
    if heard or not honest:
        return
    many = len(refused) >= min(MANY, len(there))
    simulated = isinstance(roster, World) and not roster.attacks
    most = len(set(missed) & set(there)) >= MOST * len(there)
    if not (many and round == 1) and not (most and (many or simulated)):
        return
    client, why = honest[0], refused[honest[0]]
    name = roster.client_names.get(client, client)
    replies = (
        f"all {len(refused)} replies were refused"
        if len(refused) > 1
        else "the only reply was refused"
    )
    raise RefusedError(
        f"round {round}: {replies}, for example that of client {name}: {why}; {_remedy(why)}"
    )


def _remedy(why: str) -> str:
    """What to change if replies are refused for this reason."""
    if "robust.most_examples" in why:
        return "use a larger robust.most_examples"
    if not any(word in why for word in ("norm", "finite", "infinite", "NaN")):
        return "no model can learn from such replies"
    scale = 'standardize the inputs (standardize = "pooled") or use a smaller training.lr'
    return (
        f"{scale}, or a larger robust.norms if such updates are right"
        if "robust.norms" in why
        else scale
    )


def carry(steps: Steps, exchange: Callable[[Plan, Position], ExchangeResult]) -> Round:
    """Run the round of :func:`round_steps` to its end.

    Args:
        steps: The generator of :func:`round_steps`.
        exchange: Function that carries out a plan, given the plan and its position.

    Returns:
        The round, not tested yet.
    """
    plan, at = next(steps)
    while True:
        try:
            plan, at = steps.send(exchange(plan, at))
        except StopIteration as end:
            done: Round = end.value
            return done


def _endless(
    number: int,
    asked: int,
    answered: int,
    refused: Mapping[Client, str],
    names: Mapping[Client, str],
) -> str:
    text = f"round {number} has not ended after {EXCHANGES} exchanges, in which {answered} of {asked} tasks were answered"
    if refused:
        client, why = next(iter(refused.items()))
        text += f"; {len(refused)} clients were refused, for example client {names.get(client, client)}: {why}"
    return text


# ----------------------------------------------------------------------------------------------------
# One exchange: the engine collects the replies and keeps only as much of them as the plan needs.


WINDOW_BYTES = 1 << 28
"""Bytes of replies held in memory at a time if the plan needs only their means."""


def exchange(
    pool: ClientPool, plan: Plan, position: Position, seed: int, clock: Clock
) -> ExchangeResult:
    """Carry out a plan on the clients of this machine.

    Args:
        pool: The worker processes and their clients.
        plan: The tasks to carry out.
        position: State of the run in which the method made the plan.
        seed: Seed of all random draws.
        clock: Adds up the seconds.

    Returns:
        The replies in the form that ``step`` needs, and the values that each client keeps
        afterwards.
    """
    pool.robust.check_plan(plan, pool.wire.boundary.masks)
    when, kept = (seed, position.exchange, position.round), dict(position.kept)
    replies: dict[str, Replies] = {}
    losses: dict[str, Mapping[Client, np.ndarray]] = {}
    for i, (name, part) in enumerate(plan.leaves()):
        summed = part.need == "sums" or pool.wire.boundary.masks
        answers = (
            Answers(pool, part, kept.get(name + HALVES, {}), position.round + 1) if summed else None
        )
        replies[name], kept[name], losses[name] = _exchange_part(
            pool, part, kept.get(name, {}), when, clock, i, answers
        )
        if answers is not None:
            kept[name + HALVES] = answers.halves
        if plan.parts and replies[name].updates is not None:  # the next part uses the same memory
            replies[name] = replace(replies[name], updates=replies[name].all_updates.clone())
    gone = tuple(f"{name}/" for name in plan.all_ended_parts)
    return together(plan, replies, held_losses(losses)), {
        n: v for n, v in kept.items() if v and not f"{n}/".startswith(gone)
    }


def held_losses(losses: Mapping[str, Mapping[Client, np.ndarray]]) -> dict[Client, HeldOutLosses]:
    """Return the sums of each client's held-out losses, over the models of all parts of a plan.

    Args:
        losses: Name of a part -> client -> held-out losses ``(m, examples)``.
    """
    seen: dict[Client, list[tuple[Candidate, np.ndarray]]] = {}
    for name, of_part in losses.items():
        for client, rows in of_part.items():
            seen.setdefault(client, []).extend(((name, i), row) for i, row in enumerate(rows))
    return {
        client: HeldOutLosses.of([model for model, _ in each], np.stack([row for _, row in each]))
        for client, each in seen.items()
    }


def together(
    plan: Plan, replies: Mapping[str, Replies], held: Mapping[Client, HeldOutLosses]
) -> Replies:
    """Return the replies to a plan from those to its parts.

    Args:
        plan: The plan.
        replies: Name of a part -> the replies to it, for each of :meth:`~coterie.core.Plan.leaves`.
        held: Client -> the sums of its held-out losses.
    """
    return _nested(plan, "", replies, held)


def _nested(
    plan: Plan, name: str, replies: Mapping[str, Replies], held: Mapping[Client, HeldOutLosses]
) -> Replies:
    """The replies to a plan that is part ``name`` of another one, or that one itself."""
    own = {
        client: inner
        for client, each in sorted(held.items())
        if (inner := each.within(name)).models
    }
    if not plan.parts:
        return replace(replies[name], held_out_losses=own, ends_round=plan.ends_round)
    parts = {
        part: _nested(inner, f"{name}/{part}".lstrip("/"), replies, held)
        for part, inner in plan.parts.items()
    }
    examples = {
        c: n for each in parts.values() for c, n in zip(each.clients, each.examples, strict=True)
    }
    return Replies(
        clients=tuple(sorted(examples)),
        examples=np.array([examples[c] for c in sorted(examples)], dtype=np.int64),
        refused={c: why for each in parts.values() for c, why in each.refused.items()},
        averaging=next(iter(parts.values())).averaging,
        limits=AppliedLimits(
            claimed={c: n for each in parts.values() for c, n in each.limits.claimed.items()},
            scaled={c: s for each in parts.values() for c, s in each.limits.scaled.items()},
        ),
        held_out_losses=own,
        ends_round=plan.ends_round,
        parts=parts,
    )


def _exchange_part(
    pool: ClientPool,
    plan: Plan,
    before: Mapping[Client, Tensor],
    when: tuple[int, int, int],
    clock: Clock,
    number: int,
    sums: Answers | None,
) -> tuple[Replies, Mapping[Client, Tensor], Mapping[Client, np.ndarray]]:
    """Carry out a plan without parts: the replies, the values that each client keeps afterwards, and held-out losses."""
    plan = plan if sums is None else sums.plan  # with the tasks as clients take them
    clients, size = (
        sorted(plan.tasks),
        window(plan, pool.layout.size, pool.robust.needs_all) * pool.machines(plan),
    )
    halves = HalfUpdates(pool, plan)
    claims, kept = {c: _claimed(pool, c, when[2] + 1) for c in clients}, dict(before)
    counted = (
        pool.robust.counted(claims) if sums is None else claims
    )  # no server sees single ones in sums
    taken: dict[Client, Answer] = {}
    refused: dict[Client, str] = {}
    scaled: dict[Client, float] = {}
    usual = Usual()
    streams = (
        plan.sketch is not None or sums is not None or size < len(clients) or pool.reduces(plan)
    )
    means = Means(len(plan.models), pool.layout.size, pool.robust) if streams else None
    sketches = []
    for start in range(0, len(clients), size):
        wave = clients[start : start + size]
        with clock("train"):
            answers = pool.train(plan, wave, before, when, number)
        with clock("server"):
            _collude(pool, plan, answers)
            if sums is None:
                answers = _screened(pool, plan, answers, claims, counted, usual, scaled)
            new = {c: a for c, a in answers.items() if a.refused is None}
            if sums is not None:
                sums.take(new)
            halves.take(new)
            if sums is not None:
                sums.limit(new)
            for client, answer in new.items():
                _keep(pool, plan, client, answer, kept)
        refused.update((c, a.refused) for c, a in answers.items() if a.refused is not None)
        taken.update(new)
        if means is not None:
            with clock("server"):
                _average(pool, plan, new, counted, means)
        if plan.sketch is not None and sums is None:
            sketches.append(pool.sketches([a.slot for a in new.values()]))
    replies = Replies(
        clients=tuple(taken),
        examples=np.array([counted[c] for c in taken], dtype=np.int64),
        chosen=tuple(a.chosen for a in taken.values()),
        losses=tuple(a.losses for a in taken.values()),
        accuracies=tuple(a.accuracies for a in taken.values()),
        refused=refused,
        halves=halves.halved(),
        averaging=pool.robust,
        limits=AppliedLimits(
            claimed={c: claims[c] for c in taken if claims[c] > counted[c]}, scaled=scaled
        ),
    )
    losses = {c: a.held for c, a in taken.items() if a.held is not None}
    trained = not taken or any(a.update is not None for a in taken.values())
    with clock("server"):
        if means is None:
            updates = pool.updates([a.slot for a in taken.values()]) if trained else None
            return needed(plan, replace(replies, updates=updates)), kept, losses
        if sums is not None:
            return (
                sums.only(
                    replace(replies, means=means.means, mean_counts=means.counts),
                    (when[0], when[1], number),
                ),
                kept,
                losses,
            )
        if not trained:
            return replies, kept, losses
        replies = replace(replies, means=means.means, mean_counts=means.counts)
        return (_short(plan, replies, torch.cat(sketches)) if sketches else replies), kept, losses


def window(plan: Plan, d: int, robust: bool = False) -> int:
    """Return how many replies are held in memory at a time.

    Args:
        plan: The plan that the clients answer.
        d: Number of parameters.
        robust: Whether the means are robust ones that need all replies at once.

    Returns:
        The number of all tasks (at least 1), or a multiple of :data:`~coterie.core.CHUNK`, the
        replies averaged together.
    """
    whole = (
        robust
        or plan.need not in ("mean", "sums")
        or any(task.halves for task in plan.tasks.values())
    )
    if robust or (whole and plan.sketch is None):
        return max(1, len(plan.tasks))
    return max(1, WINDOW_BYTES // (4 * d * CHUNK)) * CHUNK


def _claimed(pool: ClientPool, client: Client, round: int) -> int:
    """Number of examples that a client reports in a round."""
    world = pool.world
    count, attack = len(world.steps[world.step(round)][client].train), world.attacks.get(client)
    return pool.wire.examples(count if attack is None else attack.claimed(count))


def _rows(pool: ClientPool, answer: Answer) -> list[Tensor]:
    return [pool.hand.replies[slot] for slot in answer.slots]


def _screened(
    pool: ClientPool,
    plan: Plan,
    answers: Mapping[Client, Answer],
    claims: Mapping[Client, int],
    counted: Mapping[Client, int],
    usual: Usual,
    scaled: dict[Client, float],
) -> dict[Client, Answer]:
    """Limit the answers of a wave to plausible lengths, compared with this wave and with the ``usual`` of earlier waves."""
    limits = (
        pool.robust.norms is not None or max(claims.values(), default=0) > pool.robust.most_examples
    )
    if not limits and not pool.world.attacks:  # norms that nobody asks for cost time
        return dict(answers)
    trained = {
        c: answer
        for c, answer in answers.items()
        if answer.update is not None and answer.refused is None
    }
    claims = {c: claims[c] for c in answers}
    limited = pool.robust.limited(pool.lengths(plan, trained, counted), claims, usual)
    for client, factor in limited.scaled.items():
        pool.scale(plan, client, answers[client], factor)
    scaled.update(limited.scaled)
    refused = {
        c: replace(answers[c], refused=answers[c].refused or why)
        for c, why in limited.refused.items()
    }
    return {**answers, **refused}


def _collude(pool: ClientPool, plan: Plan, answers: Mapping[Client, Answer]) -> None:
    """Write the updates of colluding adversaries, which know the updates of the honest clients.

    They use the honest clients that were asked for the same kind of update (a gradient, or the
    result of training). If at least two of these started from the same models as the adversary,
    only those count.
    """
    attacks = {
        c: attack for c, attack in pool.world.attacks.items() if c in answers and attack.colluding
    }
    honest = {
        c: a
        for c, a in answers.items()
        if c not in pool.world.attacks and a.update is not None and a.refused is None
    }
    for client, attack in attacks.items():
        own, task = answers[client], plan.tasks[client]
        alike = [a for c, a in honest.items() if plan.tasks[c].gradient == task.gradient]
        near = [a for a in alike if a.chosen == own.chosen]
        seen = near if len(near) > 1 else alike
        if own.update is None or not seen:
            continue
        for half, row in enumerate(_rows(pool, own)):
            wrong = attack.fabricated(
                torch.stack([_rows(pool, a)[half if a.second is not None else 0] for a in seen])
            )
            stays = torch.arange(len(row)) >= pool.layout.trainable
            stays = stays | pool.mask(task.local_layers) if task.local_layers else stays
            row[~stays] = wrong[~stays]
            if plan.sketch is not None:
                shown = row.masked_fill(stays, 0.0)[None, plan.columns or slice(None)]
                pool.hand.sketches[own.second if half else own.slot] = unchecked_sketch(
                    shown, plan.sketch
                )[0]


def _keep(
    pool: ClientPool, plan: Plan, client: Client, answer: Answer, kept: dict[Client, Tensor]
) -> None:
    """Move the layers that stay at a client from its update into ``kept``, and its personal model."""
    task = plan.tasks[client]
    if (
        answer.own is not None and torch.isfinite(answer.own).all()
    ):  # with noise, no refusal reveals that it is not
        kept[client] = answer.own.clone()
    if not task.local_layers or answer.update is None:
        return
    mask, before = pool.mask(task.local_layers), kept.get(client)
    if not task.gradient:
        start = pool.start_row(plan, task, before, answer.chosen)
        kept[client] = torch.where(
            mask, start + answer.update, torch.nan if before is None else before
        )
    answer.update[mask] = 0.0


def _average(
    pool: ClientPool,
    plan: Plan,
    answers: Mapping[Client, Answer],
    counted: Mapping[Client, int],
    means: Means,
) -> None:
    tasks = [plan.tasks[client] for client in answers]
    groups = [
        a.chosen if task.trains and task.private.sends_update else ()
        for a, task in zip(answers.values(), tasks, strict=True)
    ]
    weigh = amounts(np.array([counted[client] for client in answers]), plan.weighting)
    pool.add_means(means, [answer.slot for answer in answers.values()], weigh, groups)


def needed(plan: Plan, replies: Replies) -> Replies:
    """Reduce all updates to the form that the plan needs for ``step``: means, sketches, Gram matrix or rows.

    Args:
        plan: The plan that the clients answered.
        replies: The replies with all updates ``(n, d)``.

    Returns:
        The replies with the means ``(k, d)``, and the rows, sketches or Gram matrix that the plan
        asks for.
    """
    if replies.updates is None or (plan.need == "rows" and plan.sketch is None):
        return replies
    trained = [
        (c, chosen)
        for c, chosen in zip(replies.clients, replies.chosen, strict=True)
        if plan.tasks[c].trains
    ]
    groups = [[c for c, chosen in trained if row in chosen] for row in range(len(plan.models))]
    means, heard = group_means(replies, groups, plan.weighting)
    rows = replies.updates
    replies = replace(replies, means=means, mean_counts=heard, updates=None)
    if plan.sketch is not None:
        return _short(
            plan, replies, unchecked_sketch(rows[:, plan.columns or slice(None)], plan.sketch)
        )
    matrix = (
        gram(rows, columns=plan.columns) if plan.need == "gram" and len(replies.clients) else None
    )
    return replace(replies, gram=matrix)


def _short(plan: Plan, replies: Replies, sketches: Tensor) -> Replies:
    """Return the replies with the sketches (one row per client) or with their Gram matrix, as the plan needs."""
    if plan.need == "rows":
        return replace(replies, updates=sketches)
    return replace(replies, gram=gram(sketches) if plan.need == "gram" and len(sketches) else None)


# ----------------------------------------------------------------------------------------------------
# Split-half training: clients train on both halves of their data. The Gram matrix of all halves,
# and one update per client.


class HalfUpdates:
    """The two updates of each client that was asked to train on both halves of its data.

    Their inner products are computed, from rows or from sketches. Then the mean of both replaces
    the first. The second is copied if the plan asks for it.
    """

    def __init__(self, pool: ClientPool, plan: Plan) -> None:
        self.pool, self.plan = pool, plan
        self.clients: list[Client] = []
        self.sketches: list[Tensor] = []
        self.products: np.ndarray | None = None
        self.seconds: dict[Client, Tensor] = {}

    def take(self, answers: Mapping[Client, Answer]) -> None:
        """Take the updates of those clients in ``answers`` that trained on both halves."""
        pairs = {
            client: (a.slot, a.second) for client, a in answers.items() if a.second is not None
        }
        if not pairs:
            return
        slots = [*(first for first, _ in pairs.values()), *(second for _, second in pairs.values())]
        own = {
            client: self._own(client, *pair)
            for client, pair in pairs.items()
            if self.plan.tasks[client].local_layers
        }
        if self.plan.need == "sums":
            pass  # products of two clients are no sums
        elif self.plan.sketch is None:  # all of them are in memory at once, see window
            self.products = gram(self.pool.updates(slots), columns=self.plan.columns)
        else:
            self.sketches.append(self.pool.sketches(slots).view(2, len(pairs), -1))
        self.clients += pairs
        for client, pair in pairs.items():
            if self.plan.second_halves:
                self.seconds[client] = self.pool.hand.replies[pair[1]].clone()
            self.pool.average(*pair)
            if client in own:
                self.pool.hand.replies[pair[0]][
                    self.pool.mask(self.plan.tasks[client].local_layers)
                ] = own[client]

    def _own(self, client: Client, first: int, second: int) -> Tensor:
        """Mean of both updates in the columns that stay at the client; these columns are then set to zero in the rows."""
        mask, rows = self.pool.mask(self.plan.tasks[client].local_layers), self.pool.hand.replies
        own = (rows[first][mask] + rows[second][mask]) / 2
        rows[first][mask] = rows[second][mask] = 0.0
        return own

    def halved(self) -> HalvedUpdates | None:
        """Return the inner products of all halves, and the second updates if the plan asked for them; None without halves."""
        matrix = self.products
        if self.sketches:
            matrix = gram(torch.cat(self.sketches, 1).flatten(0, 1))
        if matrix is None:
            return None
        second = torch.stack(list(self.seconds.values())) if self.seconds else None
        return HalvedUpdates(clients=tuple(self.clients), gram=matrix, second=second)


def products(plan: Plan, pairs: Mapping[Client, Sequence[Tensor]]) -> np.ndarray | None:
    """Return the Gram matrix of halves, from updates that are all in memory.

    Args:
        plan: The plan that the clients answered.
        pairs: The m clients that sent updates of both halves, sorted -> these updates ``(d,)``.

    Returns:
        The matrix ``(2 m, 2 m)`` as in :class:`~coterie.core.Replies`, or None if no client sent
        halves.
    """
    if not pairs:
        return None
    rows = torch.stack([pair[half] for half in (0, 1) for pair in pairs.values()])
    if plan.sketch is not None:
        rows = unchecked_sketch(rows[:, plan.columns or slice(None)], plan.sketch)
    return gram(rows, columns=plan.columns if plan.sketch is None else None)


# ----------------------------------------------------------------------------------------------------
# Client participation: clients that join, leave or return, and clients retired after too many
# rounds without an answer.


class Roster(Protocol):
    """The clients that may take part: those of a world, or the nodes of a federation."""

    @property
    def clients(self) -> Mapping[Client, Any]:
        """All clients, by id."""
        ...

    @property
    def attendance(self) -> Attendance:
        """The rounds in which clients are present, and whether they answer."""
        ...

    @property
    def client_names(self) -> Mapping[Client, str]:
        """The names of the clients, by id; empty if they have none."""
        ...

    @property
    def attacks(self) -> Mapping[Client, Any]:
        """The adversaries among the clients, by id, and their attacks."""
        ...


def check_membership(method: Method[Any], world: World) -> None:
    """Check that the method can admit clients if clients of the world join during the run.

    Args:
        method: The method to check.
        world: The clients and when they are present.

    Raises:
        SettingError: Clients join, and the method has no ``admit`` and ``retire``.
    """
    if world.attendance.joins and not isinstance(method, Admits):
        raise SettingError(
            f"{method.name} cannot take newcomers: it has no methods admit and retire"
        )


def admit_new(
    method: Method[Any], roster: Roster, position: Position
) -> tuple[Position, tuple[Note, ...]]:
    """Admit the clients that are present in the next round and are not members yet.

    Args:
        method: The method that admits them.
        roster: The clients that may take part.
        position: State of the run before the round.

    Returns:
        The position with the new members, and a note of kind "arrive" if there are any.
    """
    known, number = set(position.members), position.round + 1
    new = tuple(
        c for c in sorted(roster.clients) if c not in known and roster.attendance.there(c, number)
    )
    if not new or not isinstance(method, Admits):
        return position, ()
    members = tuple(sorted((*position.members, *new)))
    text = f"{len(new)} client{'s' if len(new) > 1 else ''} joined in round {number}"
    note = Note(kind="arrive", effect="arrives", clients=new, text=text)
    return replace(position, members=members, state=method.admit(position.state, new)), (note,)


def present(attendance: Attendance, position: Position) -> tuple[Client, ...]:
    """Members that are present in the next round."""
    return tuple(c for c in position.members if attendance.there(c, position.round + 1))


def answering(attendance: Attendance, plan: Plan, exchange: int, seed: int) -> Plan:
    """The plan without the tasks of clients that will not answer."""
    if not attendance.silent:
        return plan
    parts = {name: answering(attendance, part, exchange, seed) for name, part in plan.parts.items()}
    return replace(
        plan,
        tasks={c: t for c, t in plan.tasks.items() if attendance.answers(c, exchange, seed)},
        parts=parts,
    )


def retire_silent(
    method: Method[Any],
    position: Position,
    asked: Collection[Client],
    heard: Collection[Client],
    there: Collection[Client],
    patience: int,
) -> tuple[Position, tuple[Note, ...]]:
    """Count missed rounds and retire the clients that missed too many in a row.

    A member misses a round if it was not present, or was asked and did not answer. A member that
    missed ``patience`` rounds in a row is retired: it is no longer served, and is admitted as a new
    client when it returns. At least one member stays.

    Args:
        method: The method that retires them.
        position: State of the run after the round.
        asked: Clients that got a task in the round.
        heard: Clients that answered in the round.
        there: Clients that were present in the round.
        patience: Missed rounds in a row after which a client is retired.

    Returns:
        The position after the round, and a note of kind "leave" if clients were retired.
    """
    missed = _missed(position.missed, position.members, asked, heard, there)
    gone = tuple(c for c, rounds in missed.items() if rounds >= patience)
    stay = tuple(c for c in position.members if c not in set(gone))
    if not gone or not stay or not isinstance(method, Admits):  # the last members are never retired
        return replace(position, missed=missed), ()
    text = f"{len(gone)} client{'s' if len(gone) > 1 else ''} away: no answer in {patience} round{'s' if patience > 1 else ''}"
    note = Note(kind="leave", effect="leaves", clients=gone, text=text)
    missed = {c: rounds for c, rounds in missed.items() if c not in set(gone)}
    return replace(
        position, members=stay, missed=missed, state=method.retire(position.state, gone)
    ), (note,)


def _missed(
    before: Mapping[Client, int],
    members: Collection[Client],
    asked: Collection[Client],
    heard: Collection[Client],
    there: Collection[Client],
) -> dict[Client, int]:
    """Rounds in a row that each member has missed; a round in which it is present and has no task does not count."""
    heard, there, asked = set(heard), set(there), set(asked)
    out = {c: before.get(c, 0) + (c in asked or c not in there) for c in members if c not in heard}
    return {c: rounds for c, rounds in out.items() if rounds}


# ----------------------------------------------------------------------------------------------------
# Communication cost and evaluation cost of an exchange: bytes in both directions, and how often
# clients measure a model.


def traffic(plan: Plan, wire: Wire) -> tuple[int, int]:
    """Return the communication cost of an exchange.

    Rows count without the layers that stay at the client. Losses, choices and example counts are
    included.

    Args:
        plan: The plan of the exchange.
        wire: The wire between clients and server.

    Returns:
        Bytes from the clients to the server, and bytes from the server to the clients.
    """
    up = down = 0
    sizes: dict[tuple[str, ...], tuple[int, int]] = {}
    for count in held_models(plan).values():  # the number of examples, sums, and products
        up += (1 + count + count * (count + 1) // 2) * NUMBER
    for need, task, size, slots in _tasks_of(plan, wire.layout.size):
        if task.local_layers not in sizes:
            sizes[task.local_layers] = wire.columns(task)
        parameters, others = sizes[task.local_layers]
        row = parameters + others
        if task.private.question is not None:
            up += (
                (task.private.question.ask == "cell" and not slots)
                or task.private.question.length(size)
            ) * NUMBER
            down += task.private.question.sent * NUMBER
        if need == "sums" and not (task.trains or task.measure):  # no model is sent
            continue
        if row or task.measure or task.holdout.report_losses:
            updates = (
                task.trains
                * task.private.sends_update
                * (2 if task.halves and need != "sums" else 1)
            )
            if slots:  # and the number of clients in each
                up += slots * (updates * wire.bytes_of(parameters, others) + NUMBER)
            else:
                up += (
                    updates * wire.bytes_of(parameters, others)
                    + _reply_numbers(task, wire) * NUMBER
                )
            down += len(task.offered) * row * NUMBER
    return up, down


def _tasks_of(plan: Plan, d: int) -> Iterator[tuple[Need, Task, int, int]]:
    """All tasks of a plan's parts, with what the part needs, the numbers of a sketch, and the slots of a hidden plan."""
    for _, part in plan.leaves():
        for task in part.tasks.values():
            yield (
                part.need,
                task,
                sketch_size(part, d),
                len(part.models) * part.private.hides_choices,
            )


def as_sent(plan: Plan, replies: Replies) -> Plan:
    """Adapt the plan to the replies.

    A client with too few examples for two halves sends one update. In the plan returned it was
    asked for one only.

    Args:
        plan: The plan of the exchange.
        replies: The replies to it.

    Returns:
        The plan in which only clients that sent two updates have ``halves``.
    """
    parts = {name: as_sent(part, replies.parts[name]) for name, part in plan.parts.items()}
    halved = () if replies.halves is None else replies.halves.clients
    whole = set(replies.clients) - set(halved)
    tasks = {
        c: replace(task, halves=False) if task.halves and c in whole else task
        for c, task in plan.tasks.items()
    }
    return replace(plan, tasks=tasks, parts=parts)


def evaluations(plan: Plan) -> int:
    """Number of measurements that a plan asks for: one client, one model."""
    tasks = [task for _, part in plan.leaves() for task in part.tasks.values()]
    return sum(len(task.offered) for task in tasks if task.measure) + held_models(plan).total()


def held_models(plan: Plan) -> Counter[Client]:
    """The number of models of which each client reports held-out losses."""
    count: Counter[Client] = Counter()
    for _, part in plan.leaves():
        for client, task in part.tasks.items():
            if task.holdout.report_losses:
                count[client] += 1 + (task.personal is not None)
    return count


def _reply_numbers(task: Task, wire: Wire) -> int:
    """Numbers in a reply besides the update: the example count, choices, loss and accuracy per model."""
    measured = 2 * len(task.offered) if task.measure else 0
    choice = task.choose if task.choose < len(task.offered) else 0
    return wire.counts + measured + choice


# ----------------------------------------------------------------------------------------------------
# Timing of a round.


class Clock:
    """Adds up seconds by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("train", "server", "evaluate"), 0.0)

    def __call__(self, name: str) -> Clock:
        self.name = name
        return self

    def __enter__(self) -> None:
        self.since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] += time.perf_counter() - self.since
