"""Check a method against the laws of the contract, in worlds of arithmetic without data or networks.

:func:`check_method` is for anybody's method, as scikit-learn's ``check_estimator`` is for
estimators. Coterie's own methods are held to the same laws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core import (
    STATES,
    Admits,
    Assignment,
    Candidate,
    Client,
    Cohort,
    Federation,
    Groups,
    HalvedUpdates,
    HeldOutLosses,
    Method,
    Note,
    Plan,
    PrivatePlan,
    PrivateTask,
    QuestionSums,
    Replies,
    Task,
    as_groups,
    check_declared,
)
from coterie.engines.exchange import needed, products, sums_extension, together
from coterie.records.codec import decode, encode


@dataclass(frozen=True)
class Pull:
    """Client i's loss is ``|w - target_i|² / 2``; its update from w is ``rate * (target_i - w) + noise_i``.

    noise: scale of a term that depends on the client, and on the exchange where ``fresh``.
    """

    targets: Mapping[Client, Tensor]
    examples: Mapping[Client, int] = field(default_factory=dict)
    rate: float = 0.5
    noise: float = 0.0
    fresh: bool = True
    buffers: int = 0
    """How many of the last entries of a row are buffers, which similarity must not see."""
    single: frozenset[Client] = frozenset()
    """Who has too few examples to be halved."""
    sketches: dict[Client, np.ndarray] = field(default_factory=dict)
    """What clients keep of their last halves."""

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(sorted(self.targets))

    @property
    def size(self) -> int:
        return len(next(iter(self.targets.values())))

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        return {"first": (0, 1), "rest": (1, self.size - self.buffers)}

    def federation(self) -> Federation:
        return Federation(
            clients=self.clients,
            draw=lambda i: torch.full((self.size,), 0.01 * i),
            columns=self.columns,
            tensors={
                "first.weight": (0, 1),
                "rest.weight": (1, 3),
                "rest.bias": (3, self.size - self.buffers),
            },
            dense=("rest",),
        )

    def replies(self, plan: Plan, exchange: int, silent: Callable[[int, Client], bool]) -> Replies:
        """The replies to a plan, and to all of its parts.

        A client's held-out losses are those of four targets around its own; its personal model is
        half-way to its target.
        """
        parts = dict(plan.leaves())
        replies = {name: self._to_part(part, exchange, silent) for name, part in parts.items()}
        models: dict[Client, list[tuple[Candidate, Tensor]]] = {}
        for name, part in parts.items():
            for client, chosen in zip(replies[name].clients, replies[name].chosen, strict=True):
                task, start = part.tasks[client], part.models[list(chosen)].mean(0)
                own = [(start + self.targets[client]) / 2] if task.personal is not None else []
                if task.holdout.report_losses:
                    models.setdefault(client, []).extend(
                        ((name, i), model) for i, model in enumerate([start, *own])
                    )
        held = {
            client: HeldOutLosses.of(
                [name for name, _ in each],
                np.stack([self._held_out(client, model) for _, model in each]),
            )
            for client, each in models.items()
        }
        return together(plan, replies, held)

    def _held_out(self, client: Client, model: Tensor) -> np.ndarray:
        gen = torch.Generator().manual_seed(client)
        around = self.targets[client] + 0.1 * torch.randn(4, self.size, generator=gen)
        return (((model - around) ** 2).sum(1) / 2).numpy()

    def _to_part(self, plan: Plan, exchange: int, silent: Callable[[int, Client], bool]) -> Replies:
        if plan.need == "sums":
            sketches = {client: torch.from_numpy(own) for client, own in self.sketches.items()}
            plan = sums_extension().as_taken(plan, sketches)
        rows, clients, losses, accuracies, chosen = [], [], [], [], []
        halves: dict[Client, tuple[Tensor, Tensor]] = {}
        for client, task in sorted(plan.tasks.items()):
            if silent(exchange, client):
                continue
            offered = [plan.models[r] for r in task.offered]
            loss = [float(((w - self.targets[client]) ** 2).sum()) / 2 for w in offered]
            best = sorted(range(len(offered)), key=lambda i: loss[i])[: task.choose]
            start = torch.stack([offered[i] for i in best]).mean(0)
            gen = torch.Generator().manual_seed(1000 * client + (exchange if self.fresh else 0))
            noise = self.noise * torch.randn(self.size, generator=gen)
            pull = self.targets[client] - start
            row = (
                -pull
                if task.gradient
                else (1 - (1 - self.rate) ** self._epochs(task)) * pull + noise
            )
            for layer in task.local_layers:
                row[slice(*self.columns[layer])] = 0.0
            if (
                task.halves and client not in self.single
            ):  # as noisy as they have to be for their mean to be the update
                apart = self.noise * torch.randn(self.size, generator=gen)
                halves[client] = (row + apart, row - apart)
            rows.append(row if task.trains else torch.zeros(self.size))
            clients.append(client)
            chosen.append(tuple(task.offered[i] for i in best))
            losses.append(tuple(loss) if task.measure else ())
            accuracies.append(tuple(1 / (1 + value) for value in loss) if task.measure else ())
        matrix = products(plan, halves)
        second = [both[1] for both in halves.values()]
        halved = matrix is not None and HalvedUpdates(
            clients=tuple(halves),
            gram=matrix,
            second=torch.stack(second) if plan.second_halves else None,
        )
        full = Replies(
            clients=tuple(clients),
            examples=np.array([self.examples.get(c, 1) for c in clients], dtype=np.int64),
            chosen=tuple(chosen),
            losses=tuple(losses),
            accuracies=tuple(accuracies),
            updates=self._updates(plan, rows),
            halves=halved or None,
        )
        return self._sums(plan, full, halves) if plan.need == "sums" else needed(plan, full)

    def _sums(
        self, plan: Plan, full: Replies, halves: Mapping[Client, tuple[Tensor, Tensor]]
    ) -> Replies:
        """What only sums show."""
        sums: dict[int, np.ndarray] = {}
        cells: dict[Client, int] = {}
        for i, client in enumerate(full.clients):
            task = plan.tasks[client]
            if task.halves:
                self.sketches.pop(client, None)
            if client in halves:
                self.sketches[client] = torch.stack(halves[client])[:, plan.columns].numpy()
            question = task.private.question
            if question is not None and question.asks_cell:
                cells |= (
                    {client: question.cell(self.sketches[client])}
                    if client in self.sketches
                    else {}
                )
            elif question is not None:
                norm = float(full.updates[i].norm()) if full.updates is not None else None
                answer = question.answer(
                    self.sketches.get(client), norm, self.examples.get(client, 1)
                )
                if answer is not None:
                    sums[task.offered[0]] = sums.get(task.offered[0], 0.0) + answer
        sent = {
            client: task
            if task.private.sends_update
            else replace(task, epochs=0, halves=False, private=PrivateTask())
            for client, task in plan.tasks.items()
        }
        means = needed(
            replace(plan, need="mean", sketch=None, tasks=sent, private=PrivatePlan()), full
        )
        if means.means is None:  # nobody trained
            means = replace(
                means,
                means=torch.zeros_like(plan.models),
                mean_counts=np.zeros(len(plan.models), dtype=np.int64),
            )
        ones = np.ones(len(full.clients), dtype=np.int64)
        if plan.private.hides_choices:
            assert means.means is not None
            assert means.mean_counts is not None
            shares = torch.from_numpy(means.mean_counts / max(len(full.clients), 1)).float()
            means = replace(means, means=means.means * shares[:, None])
        return replace(
            means,
            examples=ones,
            losses=(),
            accuracies=(),
            halves=None,
            sums=QuestionSums(by_row=sums, cells=cells),
        )

    def taken(self, assignment: Assignment) -> Assignment:
        """What clients take by themselves, if the server does not know it."""
        if not assignment.hidden:
            return assignment
        row = {
            c: int(((assignment.models - self.targets[c]) ** 2).sum(1).argmin())
            for c in assignment.row
        }
        groups = [[c for c, at in row.items() if at == one] for one in sorted(set(row.values()))]
        return replace(assignment, row=row, groups=as_groups(groups))

    def _updates(self, plan: Plan, rows: list[Tensor]) -> Tensor | None:
        if not any(task.trains for task in plan.tasks.values()) and rows:
            return None
        return torch.stack(rows) if rows else torch.zeros(0, self.size)

    def _epochs(self, task: Task) -> int:
        return 1 if task.epochs is None else task.epochs


@dataclass(frozen=True)
class Played:
    """An exchange that was played, and what stood after it."""

    plan: Plan
    replies: Replies
    state: Any
    notes: tuple[Note, ...]
    assignment: Assignment

    @property
    def groups(self) -> Groups:
        return self.assignment.groups


def never(exchange: int, client: Client) -> bool:
    """No client is silent."""
    return False


def play(
    method: Any,
    world: Pull,
    exchanges: int,
    *,
    seed: int = 0,
    silent: Callable[[int, Client], bool] = never,
    state: Any = None,
    first: int = 0,
) -> Iterator[Played]:
    """Run a method over a world, exchange by exchange, as an engine would."""
    state = method.init(world.federation()) if state is None else state
    for exchange in range(first, first + exchanges):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=seed))
        check_declared(method, plan)
        replies = world.replies(plan, exchange, silent)
        state = method.step(state, replies)
        yield Played(
            plan, replies, state, method.explain(state), world.taken(method.assignment(state))
        )


def last(method: Any, world: Pull, exchanges: int, **how: Any) -> Played:
    """What stands after so many exchanges."""
    *_, end = play(method, world, exchanges, **how)
    return end


def grouped(
    groups: Sequence[Sequence[Client]],
    *,
    d: int = 12,
    noise: float = 0.02,
    seed: int = 0,
    **world: Any,
) -> Pull:
    """Clients of a group share a target; targets of groups are random directions of length 3."""
    gen = torch.Generator().manual_seed(seed)
    targets = {}
    for group in groups:
        direction = torch.randn(d, generator=gen)
        targets.update(dict.fromkeys(group, 3 * direction / direction.norm()))
    return Pull(targets=targets, noise=noise, **world)


# Ids that are no positions: neither contiguous nor in the order of the groups.
THREE = ((2, 17, 31, 40), (3, 5, 50, 51), (8, 19, 29, 99))
TRUTH = as_groups(THREE)


# ----------------------------------------------------------------------------------------------------
# The laws: each takes a method and raises AssertionError if the method breaks it.


def same(left: Any, right: Any) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if dataclasses.is_dataclass(left):
        names = [f.name for f in dataclasses.fields(left)]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def check_assignment(assignment: Assignment, clients: tuple[Client, ...]) -> None:
    """Assert that every client is in exactly one group and has a finite model."""
    assert as_groups(assignment.groups) == assignment.groups, "groups are not sorted"
    members = sorted(client for group in assignment.groups for client in group)
    assert members == list(clients), f"groups have the clients {members}, not {list(clients)}"
    assert sorted(assignment.row) == list(clients), "not every client has a model"
    assert torch.isfinite(assignment.models).all(), "a model is not finite"


def example_world() -> Pull:
    """Return twelve clients in three groups, of unequal numbers of examples, and a model with buffers."""
    return grouped(THREE, examples={2: 5, 17: 1, 3: 7, 99: 2}, buffers=2)


def follows_the_protocol(method: Any) -> None:
    """A method is a frozen dataclass with the five functions."""
    has_functions = isinstance(method, Method)
    assert has_functions, "it lacks one of init, plan, step, assignment, explain"
    assert dataclasses.is_dataclass(method), "it is no dataclass"
    kind: Any = type(method)
    assert kind.__dataclass_params__.frozen, "it is not frozen"  # a subclass has its parent's


def leaves_a_partition_and_a_model_for_everyone(method: Any) -> None:
    """After every exchange all clients have a group and a model; notes are about clients that exist."""
    world = example_world()
    for played in play(method, world, 25):
        check_assignment(played.assignment, world.clients)
        assert set(played.plan.tasks) <= set(world.clients), "a task is of no client"
        for note in played.notes:
            assert note.text, "a note has no text"
            assert set(note.clients) <= set(world.clients), "a note is about no client"
            members = [client for part in note.parts for client in part]
            assert len(set(members)) == len(members), "the parts of a note overlap"
            assert set(members) <= set(note.clients), "a part of a note has other clients"


def is_pure(method: Any) -> None:
    """The same inputs give the same state, and no function changes its inputs."""
    world = example_world()
    once, twice = (last(method, example_world(), 15).state for _ in range(2))
    assert same(once, twice), "two runs differ"
    plan = method.plan(once, Cohort(present=world.clients, exchange=15, seed=0))
    method.step(once, world.replies(plan, 15, never))
    method.assignment(once)
    assert same(once, twice), "a function changed the state in place"


def keeps_no_updates_of_the_engine(method: Any) -> None:
    """A state does not hold on to the updates that it was shown: engines use this memory again."""
    world = example_world()
    state = method.init(world.federation())
    for exchange in range(12):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=0))
        replies = world.replies(plan, exchange, never)
        state = method.step(state, replies)
        if replies.updates is not None:
            replies.updates.fill_(torch.nan)
        check_assignment(method.assignment(state), world.clients)


def goes_on_from_a_stored_state(method: Any) -> None:
    """A state that was written and read continues as if nothing had happened, bit for bit."""
    world = example_world()
    halfway = last(method, world, 9).state
    assert type(halfway) in STATES.values(), "the state's class has no @state"
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        blobs[str(len(blobs))] = data
        return str(len(blobs) - 1)

    restored = decode(encode(halfway, put), blobs.__getitem__)
    assert same(halfway, restored), "a stored state differs"
    worlds = [replace(world, sketches=dict(world.sketches)) for _ in range(2)]
    ends = [
        last(method, copy, 9, state=state, first=9).state
        for copy, state in zip(worlds, (halfway, restored), strict=True)
    ]
    assert same(*ends), "a run goes on differently from a stored state"


def bears_silent_clients(method: Any) -> None:
    """Any clients may be silent in any exchange: some, all but one, or all."""
    world = example_world()
    silence = np.random.default_rng(1).random((40, 100)) < 0.3
    for played in play(method, world, 40, silent=lambda e, c: bool(silence[e, c])):
        check_assignment(played.assignment, world.clients)
    for speaking in (None, 8):
        end = last(method, example_world(), 6, silent=lambda e, c, speaking=speaking: c != speaking)
        check_assignment(end.assignment, world.clients)
        if speaking is None:
            first_model = world.federation().draw(0)
            assert torch.equal(end.assignment.models[0], first_model), "a model changed by itself"


def lets_clients_join_and_leave(method: Any) -> None:
    """Clients that leave have no group; when they are back they have one. For methods with ``admit``."""
    admits = isinstance(method, Admits)
    if not admits:
        return
    world = example_world()
    gone = (2, 5)
    state = method.retire(last(method, world, 8).state, gone)
    stay = tuple(client for client in world.clients if client not in gone)
    check_assignment(method.assignment(state), stay)
    check_assignment(method.assignment(method.admit(state, gone)), world.clients)


LAWS: tuple[Callable[[Any], None], ...] = (
    follows_the_protocol,
    leaves_a_partition_and_a_model_for_everyone,
    is_pure,
    keeps_no_updates_of_the_engine,
    goes_on_from_a_stored_state,
    bears_silent_clients,
    lets_clients_join_and_leave,
)
"""All laws that do not depend on the purpose of a method. A plan that asks for more than the
method's needs declare breaks each of them."""


def check_method(method: Any) -> None:
    """Check a method against all :data:`LAWS` of the contract.

    Args:
        method: The method, with settings under which something happens in about ten rounds of
            twelve clients.

    Raises:
        AssertionError: The method breaks a law; the message names it.
        SettingError: A plan asks for more than the method's ``needs`` declare.
    """
    for law in LAWS:
        try:
            law(method)
        except AssertionError as error:
            raise AssertionError(f"{method.name} breaks {law.__name__}: {error}") from error
