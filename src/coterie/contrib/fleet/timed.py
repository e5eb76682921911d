"""Timed: a method in virtual time, on devices that differ in speed, in rounds or without rounds.

A method plans and processes rounds as always. Here its tasks take the time that the client's device
needs (:mod:`coterie.contrib.fleet.devices`), and a mode says for whom the server waits:

- ``rounds``: for all clients. With ``over_selection`` c > 1, only until a share 1 / c of the asked
  clients has replied. With ``deadline``, at most so many seconds. K. Bonawitz et al., "Towards
  Federated Learning at Scale: System Design", MLSys 2019, arXiv 1902.01046, has both.
- ``buffered``: for the next ``buffer`` replies, K; the other clients go on with the models that they
  have. J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022,
  arXiv 2106.06639 (FedBuff), Algorithm 1: clients train without waiting for each other, at most
  ``concurrency`` at a time; an update that is τ steps of the server old counts ``(1 + τ)^-staleness``
  (the paper: staleness 1/2, in its section on staleness scaling). K = 1 is asynchronous.

Which methods bear old updates? Those that only average them. A plan of mean updates, each from one
offered model, is carried out with a buffer: an old update of a client counts for the model that the
client is offered now. So it follows its client into another group. Any other plan compares what
clients reply, and these replies must be of the same models: the server *freezes a version*. It gives
up the work in progress, which clients end first, and carries the plan out as one round, of all clients and with the deadline.
So split-half's probes are rounds, between which its groups train without rounds. Methods that compare
updates in every round, such as CFL and HCCT, have rounds only.

Deviations
- FedBuff has one model. Here each model of a plan gets the mean of the old updates that count for
  it, weighted as the method states.
- FedBuff draws clients at random when others end. Here idle clients start after each step of the
  server, in random order.
- A method is told no seed. So devices have one of their own, and all seeds of an experiment the same
  fleet.
- The numbers of training examples, which times need, are asked for before the first round. A client
  that joins later counts as the median.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.contrib.fleet.devices import (
    DEVICE_CLASSES,
    OPERATIONS_OF_TRAINING,
    Device,
    DeviceDraw,
    Rhythm,
    TaskWork,
    drawn,
    shares_of_classes,
    work_of,
)
from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Federation,
    Means,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    amounts,
    joined,
    needs_of,
    state,
    without,
)
from coterie.methods.tuned import method_of
from coterie.notebook.tables import count
from coterie.randomness import numpy_generator
from coterie.settings import SettingError, check, setting

MAX_EXAMINED = 10_000
"""Clients of which each is examined before the first round: of more, so many, and those asked first."""


@state("timed.work")
class WorkInProgress:
    """A client's task that is not done yet.

    Attributes:
        task: the task.
        version: the step of the server whose models the client has.
        start: virtual time at which it began.
        finish: virtual time at which the server has the reply.
        joules: energy that it takes.
        fails: whether no reply arrives then.
    """

    task: Task
    version: int
    start: float
    finish: float
    joules: float = 0.0
    fails: bool = False


@state("timed")
class TimedState:
    """State of a method in virtual time.

    Attributes:
        inner: state of the method.
        clients: all ids.
        training: the experiment's settings of training.
        parameters: d.
        layer_sizes: layer -> its number of parameters.
        sizes: client -> its training examples; empty before the first exchange.
        now: virtual time in seconds.
        server_step: exchanges of the method.
        round: rounds completed.
        progress: client -> its work in progress, in ``buffered`` mode.
        versions: server step -> the models ``(k, d)`` of its plan, for work in progress.
        arriving: clients whose replies the next exchange brings.
        until: virtual time at which it ends.
        is_round: whether it is the method's own plan, of all its clients.
        lost_seconds: seconds of devices whose work the next exchange loses.
        idle_seconds: seconds that devices wait after their reply until the next exchange ends.
        joules: energy of devices for the next exchange, lost work included.
        notes: notes of the last step.
    """

    inner: Any
    clients: tuple[Client, ...]
    training: Training
    parameters: int
    layer_sizes: Mapping[str, int]
    sizes: Mapping[Client, int] = field(default_factory=dict)
    now: float = 0.0
    server_step: int = 0
    round: int = 0
    progress: Mapping[Client, WorkInProgress] = field(default_factory=dict)
    versions: Mapping[int, torch.Tensor] = field(default_factory=dict)
    arriving: tuple[Client, ...] = ()
    until: float = 0.0
    is_round: bool = True
    lost_seconds: float = 0.0
    idle_seconds: float = 0.0
    joules: float = 0.0
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A method in virtual time: the server waits for all clients, until a deadline, or for the next K replies."""

    name: ClassVar[str] = "timed"

    method: Any = setting("fedavg", "the method that runs in virtual time", method=True)
    mode: str = setting(
        "rounds",
        "rounds: the server waits for the clients of a round; buffered: for the next replies",
        choices=("rounds", "buffered"),
    )
    deadline: float | None = setting(
        None,
        "seconds after which the server ends a round, in buffered mode one with a frozen version; none: it waits",
        gt=0,
    )
    over_selection: float = setting(
        1.0,
        "a round, or a frozen version, ends when one of so many asked clients has replied",
        ge=1,
    )
    buffer: int = setting(
        10,
        "replies for a step of the server (K) in buffered mode",
        ge=1,
        only_with={"mode": ("buffered",)},
    )
    concurrency: int | None = setting(
        None,
        "most clients that train at a time in buffered mode; none: all",
        ge=1,
        only_with={"mode": ("buffered",)},
    )
    staleness: float = setting(
        0.5,
        "exponent of the weight of old updates: (1 + age in steps)^-staleness",
        ge=0,
        only_with={"mode": ("buffered",)},
    )
    server_lr: float = setting(
        1.0,
        "factor on mean updates in buffered mode (η_g)",
        gt=0,
        only_with={"mode": ("buffered",)},
    )
    devices: tuple[str, ...] = setting(
        ("fast=0.25", "middle=0.5", "slow=0.25"),
        "shares of the classes of devices: fast, middle, slow, server; measured: nexus-6, redmi-note-8, galaxy-note-10",
    )
    spread: float = setting(
        0.3, "standard deviation of the logarithm of speeds within a class", ge=0
    )
    available: float = setting(
        1.0,
        "share of each day in which a client is available, from a time of its own on",
        gt=0,
        le=1,
    )
    time_zones: float = setting(
        24.0,
        "hours over which these times are spread; few: all at the same time, as at night in one country",
        ge=0,
        le=24,
    )
    memory: float = setting(
        0.0, "gigabytes of memory that training needs; devices with less never take part", ge=0
    )
    failures: float = setting(0.0, "probability that a task fails without a reply", ge=0, lt=1)
    work: float = setting(
        float(OPERATIONS_OF_TRAINING),
        "operations per parameter and example in training; more for convolutions",
        gt=0,
    )

    seed: int = setting(
        0,
        "seed of devices, failures and samples of clients, the same for all seeds of a run",
        ge=0,
    )

    def __post_init__(self) -> None:
        check(self)
        method = method_of(self.method, "timed.method")
        object.__setattr__(self, "method", method)
        if self.mode == "buffered" and needs_of(method).fraction < 1:
            raise SettingError(
                f"timed.method {method.name} must have fraction 1 with timed.mode buffered, got "
                f"{needs_of(method).fraction:g}: timed.concurrency says how many clients train at a time"
            )
        share_of_class = shares_of_classes(self.devices, "timed.devices")
        most_memory = max(DEVICE_CLASSES[name].memory for name in share_of_class)
        if self.memory > most_memory:
            raise SettingError(
                f"timed.memory must be at most {most_memory:g}, what a class of timed.devices has, "
                f"got {self.memory:g}"
            )

    @property
    def needs(self) -> Needs:
        """What the method needs; in buffered mode single updates, since each has its own age."""
        inner_needs = needs_of(self.method)
        # The question for sizes is a task without epochs, and old updates have the rate of their round.
        with_own = inner_needs.with_inner(("training",), self.method)
        sums_only = inner_needs.sums_only and self.mode != "buffered"
        return replace(with_own, sums_only=sums_only)

    # -- the contract
    # -----------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> TimedState:
        layer_sizes = {}
        # A boundary may hide the layers, which matter if some stay at the clients.
        if "local-layers" in needs_of(self.method).declared:
            for name, (start, stop) in federation.columns.items():
                layer_sizes[name] = stop - start
        return TimedState(
            inner=self.method.init(federation),
            clients=federation.clients,
            training=federation.training,
            parameters=len(federation.draw(0)),
            layer_sizes=layer_sizes,
        )

    def plan(self, state: TimedState, cohort: Cohort) -> Plan:
        present = set(cohort.present)
        if not state.sizes:
            return self._asking_sizes(state, present)
        answering = present.intersection(state.arriving)
        if state.is_round:
            return of_clients(self._inner_plan(state), answering)
        return self._plan_of_arrivals(state, answering)

    def step(self, state: TimedState, replies: Replies) -> TimedState:
        state = replace(state, notes=())
        if not state.sizes:
            sizes = dict(zip(replies.clients, map(int, replies.examples), strict=True))
            # Nobody has answered: ask again.
            if not sizes:
                return state
            state = replace(state, sizes=sizes)
            return replace(self._scheduled(state), notes=self._notes_of_unable(state))
        inner_plan = self._inner_plan(state)
        clock_note = self._clock_note(state, replies)
        inner_replies = replies
        if not state.is_round:
            inner_replies = self._of_current_models(state, inner_plan, replies)
        inner = self.method.step(state.inner, inner_replies)
        progress = dict(state.progress)
        versions = dict(state.versions)
        if state.is_round:
            # All work in progress was given up.
            progress = {}
            versions = {}
        for client in state.arriving:
            progress.pop(client, None)
        state = replace(
            state,
            inner=inner,
            now=state.until,
            server_step=state.server_step + 1,
            round=state.round + inner_plan.ends_round,
            progress=progress,
            versions=versions,
            notes=(*self.method.explain(inner), clock_note),
        )
        return self._scheduled(state)

    def assignment(self, state: TimedState) -> Assignment:
        assignment: Assignment = self.method.assignment(state.inner)
        return assignment

    def explain(self, state: TimedState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: TimedState, clients: tuple[Client, ...]) -> TimedState:
        inner = self.method.admit(state.inner, clients)
        state = replace(state, inner=inner, clients=joined(state.clients, clients))
        return self._scheduled(state) if state.sizes and state.is_round else state

    def retire(self, state: TimedState, clients: tuple[Client, ...]) -> TimedState:
        left = set(clients)
        progress = {client: work for client, work in state.progress.items() if client not in left}
        state = replace(
            state,
            inner=self.method.retire(state.inner, clients),
            clients=without(state.clients, clients),
            progress=progress,
            arriving=without(state.arriving, clients),
        )
        return self._scheduled(state) if state.sizes and state.is_round else state

    # -- who can never reply
    # -----------------------------------------------------------------------------------------------

    def _notes_of_unable(self, state: TimedState) -> tuple[Note, ...]:
        """Return notes of the clients that never take part, as the method's first plan shows.

        Raises:
            SettingError: No client does.
        """
        plan = self._inner_plan(state)
        examined = state.clients
        num_examined = count(len(examined), "client")
        # Of very many clients, some are examined, which cannot show that none takes part.
        are_all = len(state.clients) <= MAX_EXAMINED
        if not are_all:
            positions = np.linspace(0, len(state.clients) - 1, MAX_EXAMINED).astype(int)
            spread_out = {state.clients[position] for position in positions.tolist()}
            examined = tuple(sorted(spread_out.union(plan.asked)))
            num_examined = f"{count(len(examined), 'client')} examined"
        notes = []
        # Devices without the memory that training needs.
        able = [client for client in examined if self._has_memory(state, client)]
        if not able and are_all:
            raise SettingError(
                f"timed.memory {self.memory:g} is more than the device of any of {num_examined} has, so that none would "
                "ever take part; another timed.seed draws other devices"
            )
        fit = set(able)
        unfit = [client for client in examined if client not in fit]
        if unfit:
            text = (
                f"{len(unfit)} of {num_examined} never take part: their devices have less memory than timed.memory "
                f"{self.memory:g}"
            )
            notes.append(Note(kind="devices", effect="warns", clients=tuple(unfit), text=text))
        # Devices that would be late even if they began at once.
        if self.deadline is None or not self._is_round(plan):
            return tuple(notes)
        seconds_of_client = self._seconds_of_tasks(state, plan, able)
        seconds_of_late = {}
        for client, seconds in seconds_of_client.items():
            if seconds > self.deadline:
                seconds_of_late[client] = seconds
        if able and len(seconds_of_late) == len(able) and are_all:
            raise SettingError(
                f"timed.deadline {self.deadline:g} is too short: the fastest of {num_examined} needs "
                f"{min(seconds_of_late.values()):.3g} seconds for its task, so that no reply would ever arrive"
            )
        if seconds_of_late:
            seconds_in_words = f"{min(seconds_of_late.values()):.3g}"
            if len(seconds_of_late) > 1:
                seconds_in_words += f" to {max(seconds_of_late.values()):.3g}"
            text = (
                f"{len(seconds_of_late)} of {num_examined} cannot meet timed.deadline {self.deadline:g}: a task like the "
                f"first takes them {seconds_in_words} seconds, so that their updates do not count"
            )
            late_clients = tuple(seconds_of_late)
            notes.append(Note(kind="devices", effect="warns", clients=late_clients, text=text))
        return tuple(notes)

    def _seconds_of_tasks(
        self, state: TimedState, plan: Plan, clients: Sequence[Client]
    ) -> dict[Client, float]:
        """Return client -> seconds from its tasks to its reply; of a client that is not asked, the tasks of the first one."""
        first_asked = plan.asked[0]
        asked = set(plan.asked)
        seconds_of_client = {}
        for client in clients:
            like = client if client in asked else first_asked
            tasks = [part.tasks[like] for _, part in plan.leaves() if like in part.tasks]
            device = self.device(state, client)
            works = self._works(state, client, tasks)
            seconds_of_client[client] = sum(device.seconds(work) for work in works)
        return seconds_of_client

    def _is_round(self, plan: Plan) -> bool:
        """Whether a plan is carried out as a round of all its clients."""
        return self.mode == "rounds" or not bears_old_updates(plan)

    # -- which replies arrive next
    # -----------------------------------------------------------------------------------------------

    def _scheduled(self, state: TimedState) -> TimedState:
        """The state with the clients whose replies the next exchange brings, and when it ends."""
        plan = self._inner_plan(state)
        if self._is_round(plan):
            return self._scheduled_round(state, plan)
        return self._scheduled_arrivals(state, plan)

    def _scheduled_round(self, state: TimedState, plan: Plan) -> TimedState:
        """A round: the server sends the plan to all its clients, and waits as the mode says."""
        works = {}
        for client in plan.asked:
            if not self._has_memory(state, client):
                continue
            tasks = [part.tasks[client] for _, part in plan.leaves() if client in part.tasks]
            works[client] = self._begun(state, client, tasks)
        arriving = sorted(
            (client for client in works if not works[client].fails),
            key=lambda client: (works[client].finish, client),
        )
        # The first 1 / c of the asked clients, if so many do not fail.
        num_awaited = math.ceil(len(works) / self.over_selection)
        arriving = arriving[:num_awaited]
        end_of_round = math.inf
        if self.deadline is not None:
            end_of_round = state.now + self.deadline
        in_time = [client for client in arriving if works[client].finish <= end_of_round]
        until = state.now
        if len(in_time) < num_awaited and self.deadline is not None:
            # The server waits for those that are late or have failed.
            until = end_of_round
        elif in_time:
            until = works[in_time[-1]].finish
        if not in_time and self.deadline is None and works:
            # All have failed, which the server notices when the last one would have replied.
            until = max(work.finish for work in works.values())
        lost_works = [works[client] for client in set(works) - set(in_time)]
        lost_works += state.progress.values()
        lost_seconds = 0.0
        joules = sum(works[client].joules for client in in_time)
        for work in lost_works:
            worked_seconds = min(work.finish, until) - min(work.start, until)
            lost_seconds += worked_seconds
            # Energy for the part that was done.
            if worked_seconds:
                joules += work.joules * worked_seconds / (work.finish - work.start)
        return replace(
            state,
            arriving=tuple(sorted(in_time)),
            until=until,
            is_round=True,
            lost_seconds=lost_seconds,
            idle_seconds=sum(until - works[client].finish for client in in_time),
            joules=joules,
        )

    def _scheduled_arrivals(self, state: TimedState, plan: Plan) -> TimedState:
        """FedBuff, Algorithm 1: idle clients start from the current models; the next K replies end the step."""
        progress = dict(state.progress)
        idle = []
        for client in sorted(plan.tasks):
            if client not in progress and self._has_memory(state, client):
                idle.append(client)
        generator = numpy_generator(self.seed, DeviceDraw.START, state.server_step)
        num_starting = len(idle)
        if self.concurrency is not None:
            num_starting = max(self.concurrency - len(progress), 0)
        for client in generator.permutation(idle)[:num_starting].tolist():
            progress[client] = self._begun(state, client, [plan.tasks[client]])
        # In the order in which they end, until K replies have arrived.
        arriving: list[Client] = []
        lost_seconds = 0.0
        joules = 0.0
        until = state.now
        for client in sorted(progress, key=lambda client: (progress[client].finish, client)):
            if len(arriving) == self.buffer:
                break
            until = max(until, progress[client].finish)
            joules += progress[client].joules
            if progress[client].fails:
                lost_seconds += progress[client].finish - progress[client].start
                del progress[client]
            else:
                arriving.append(client)
        versions = {**state.versions, state.server_step: plan.models}
        versions_in_use = {work.version for work in progress.values()}
        return replace(
            state,
            progress=progress,
            versions={step: versions[step] for step in sorted(versions_in_use)},
            arriving=tuple(sorted(arriving)),
            until=until,
            is_round=False,
            lost_seconds=lost_seconds,
            idle_seconds=sum(until - progress[client].finish for client in arriving),
            joules=joules,
        )

    def _works(self, state: TimedState, client: Client, tasks: Iterable[Task]) -> list[TaskWork]:
        """What each of a client's tasks asks of its device."""
        num_examples = self._num_examples(state, client)
        works = []
        for task in tasks:
            num_local = sum(state.layer_sizes[layer] for layer in task.local_layers)
            works.append(
                work_of(task, state.training, num_examples, state.parameters, num_local, self.work)
            )
        return works

    def _begun(self, state: TimedState, client: Client, tasks: Sequence[Task]) -> WorkInProgress:
        """The work of a client that starts its tasks now, or when it is available."""
        device = self.device(state, client)
        works = self._works(state, client, tasks)
        seconds = sum(device.seconds(work) for work in works)
        joules = sum(device.joules(work) for work in works)
        first_task = tasks[0]
        # A client that is busy with older work finishes that first.
        start = state.now
        if client in state.progress:
            start = max(start, state.progress[client].finish)
        start += Rhythm(self.available).wait(device, start)
        # Its learning rate is that of the round in which it begins.
        if first_task.lr_round is None:
            first_task = replace(first_task, lr_round=state.round)
        draw = numpy_generator(self.seed, DeviceDraw.FAILURE, client, state.server_step).random()
        return WorkInProgress(
            task=first_task,
            version=state.server_step,
            start=start,
            finish=start + seconds,
            joules=joules,
            fails=bool(draw < self.failures),
        )

    def device(self, state: TimedState, client: Client) -> Device:
        """Return the device of a client."""
        shares = shares_of_classes(self.devices, "timed.devices")
        return drawn(client, shares, self.spread, self.seed, self.time_zones)

    def _has_memory(self, state: TimedState, client: Client) -> bool:
        """Whether a client's device has the memory that training needs."""
        return not self.memory or self.device(state, client).memory >= self.memory

    def _num_examples(self, state: TimedState, client: Client) -> int:
        """The number of a client's training examples; the median of all, if it has not told it."""
        if client in state.sizes:
            return state.sizes[client]
        return int(np.median(list(state.sizes.values())))

    # -- the plans and replies of an exchange
    # -----------------------------------------------------------------------------------------------

    def _inner_plan(self, state: TimedState) -> Plan:
        """The method's plan for its next exchange; all clients can be asked."""
        cohort = Cohort(present=state.clients, exchange=state.server_step, seed=self.seed)
        plan: Plan = self.method.plan(state.inner, cohort)
        return plan

    def _asking_sizes(self, state: TimedState, present: Iterable[Client]) -> Plan:
        """A plan in which clients train nothing: their replies say how many examples they have."""
        models = self.method.assignment(state.inner).models[:1]
        question = Task(offered=(0,), epochs=0)
        return Plan(
            models=models,
            tasks=dict.fromkeys(sorted(present), question),
            need="mean",
            ends_round=False,
        )

    def _plan_of_arrivals(self, state: TimedState, answering: set[Client]) -> Plan:
        """A plan that carries out the work that arrives now, each from the models that its client has."""
        rows: list[torch.Tensor] = []
        row_of_model: dict[tuple[int, int], int] = {}
        tasks = {}
        for client in sorted(answering):
            work = state.progress[client]
            old_row = work.task.offered[0]
            model_key = (work.version, old_row)
            if model_key not in row_of_model:
                row_of_model[model_key] = len(rows)
                rows.append(state.versions[work.version][old_row])
            tasks[client] = replace(work.task, offered=(row_of_model[model_key],))
        models = torch.stack(rows) if rows else torch.zeros(0, state.parameters)
        return Plan(models=models, tasks=tasks, need="rows")

    def _of_current_models(self, state: TimedState, plan: Plan, replies: Replies) -> Replies:
        """The replies as if their updates were of the current plan's models: scaled by age, and averaged."""
        num_models = len(plan.models)
        current_rows = []
        factors = []
        for client in replies.clients:
            # The model of the client now, not that from which it started.
            current_rows.append((plan.tasks[client].offered[0],))
            age = state.server_step - state.progress[client].version
            factors.append(self.server_lr * (1 + age) ** -self.staleness)
        means = Means(num_models, state.parameters, replies.averaging)
        if replies.clients:
            scaled_updates = replies.all_updates * torch.tensor(factors)[:, None]
            means.add(scaled_updates, amounts(replies.examples, plan.weighting), current_rows)
        return replace(
            replies,
            chosen=tuple(current_rows),
            updates=None,
            means=means.means,
            mean_counts=means.counts,
        )

    def _clock_note(self, state: TimedState, replies: Replies) -> Note:
        """What the exchange took, in virtual time."""
        numbers = {
            "virtual seconds": state.until,
            "seconds of the step": state.until - state.now,
            "replies": float(len(replies.clients)),
            "lost device seconds": state.lost_seconds,
            "idle device seconds": state.idle_seconds,
            "joules": state.joules,
        }
        num_replies = len(replies.clients)
        replies_in_words = "1 reply" if num_replies == 1 else f"{num_replies} replies"
        text = f"at {state.until:,.1f} s of virtual time: {replies_in_words}"
        if not state.is_round and replies.clients:
            ages = [
                state.server_step - state.progress[client].version for client in replies.clients
            ]
            numbers["age of updates"] = float(np.mean(ages))
            text += f", {numbers['age of updates']:.1f} steps old in the mean"
        return Note(kind="clock", clients=replies.clients, text=text, numbers=numbers)


def bears_old_updates(plan: Plan) -> bool:
    """Whether all that the plan needs are mean updates, each from the one model that a client is offered."""
    if plan.parts or plan.need != "mean" or not plan.ends_round or plan.second_halves:
        return False
    for task in set(plan.tasks.values()):
        asks_more = (
            task.halves
            or task.corrected
            or task.gradient
            or task.measure is not None
            or task.holdout.report_losses
            or task.statistics
        )
        if asks_more or len(task.offered) != 1 or not task.trains:
            return False
    return bool(plan.tasks)


def of_clients(plan: Plan, clients: set[Client]) -> Plan:
    """Return the plan with the tasks of some clients alone."""
    tasks = {client: task for client, task in plan.tasks.items() if client in clients}
    parts = {name: of_clients(part, clients) for name, part in plan.parts.items()}
    return replace(plan, tasks=tasks, parts=parts)
