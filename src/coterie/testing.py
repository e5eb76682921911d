"""Check a method against the laws of the contract, in worlds of arithmetic without data or networks.

:func:`check_method` is for anybody's method, as scikit-learn's ``check_estimator`` is for
estimators. Coterie's own methods are held to the same laws.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core import (
    STATES,
    STORED,
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
    Statistic,
    Task,
    Training,
    as_groups,
    check_declared,
    groups_by,
    needs_of,
)
from coterie.engines.exchange import needed, products, sums_extension, together
from coterie.records.codec import decode, encode
from coterie.settings import UserError


@dataclass(frozen=True)
class Pull:
    """Client i's loss is ``|w - target_i|² / 2``; its update from w is ``rate * (target_i - w) + noise_i``.

    noise: scale of a term that depends on the client, and on the exchange if ``fresh``.
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
    turn: Tensor | None = None
    """An orthonormal map of all rows: of the first models, the targets and the noise."""

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(sorted(self.targets))

    @property
    def size(self) -> int:
        return len(next(iter(self.targets.values())))

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        return {"first": (0, 1), "rest": (1, self.size - self.buffers)}

    @property
    def tensors(self) -> dict[str, tuple[int, int]]:
        return {
            "first.weight": (0, 1),
            "rest.weight": (1, 3),
            "rest.bias": (3, self.size - self.buffers),
        }

    def turned(self, turn: Tensor) -> Pull:
        """The same world after an orthonormal map of all rows."""
        turned_targets = {client: turn @ target for client, target in self.targets.items()}
        return replace(self, targets=turned_targets, sketches={}, turn=turn)

    def _turned(self, row: Tensor) -> Tensor:
        return row if self.turn is None else self.turn @ row

    def federation(self) -> Federation:
        return Federation(
            clients=self.clients,
            draw=lambda model_number: self._turned(torch.full((self.size,), 0.01 * model_number)),
            columns=self.columns,
            tensors=self.tensors,
            dense=("rest",),
            norms=("first",),
        )

    def replies(self, plan: Plan, exchange: int, silent: Callable[[int, Client], bool]) -> Replies:
        """The replies to a plan, and to all of its parts.

        A client's held-out losses are those of four targets around its own; its personal model is
        half-way to its target.
        """
        parts = dict(plan.leaves())
        part_replies = {}
        for part_name, part in parts.items():
            part_replies[part_name] = self._replies_to_part(part, exchange, silent)
        # Client -> the models whose held-out losses it reports: in each part the one from which it
        # started, and its personal model.
        measured_models: dict[Client, list[tuple[Candidate, Tensor]]] = {}
        for part_name, part in parts.items():
            replies = part_replies[part_name]
            for client, chosen_rows in zip(replies.clients, replies.chosen, strict=True):
                task = part.tasks[client]
                if not task.holdout.report_losses:
                    continue
                client_models = measured_models.setdefault(client, [])
                start_model = part.models[list(chosen_rows)].mean(0)
                client_models.append(((part_name, 0), start_model))
                if task.personal is not None:
                    client_models.append(((part_name, 1), (start_model + self.targets[client]) / 2))
        held_out_losses: dict[Client, HeldOutLosses] = {}
        for client, client_models in measured_models.items():
            candidates: list[Candidate] = []
            losses_of_models: list[np.ndarray] = []
            for candidate, model in client_models:
                candidates.append(candidate)
                losses_of_models.append(self._held_out_losses(client, model))
            held_out_losses[client] = HeldOutLosses.of(candidates, np.stack(losses_of_models))
        return together(plan, part_replies, held_out_losses)

    def _held_out_losses(self, client: Client, model: Tensor) -> np.ndarray:
        generator = torch.Generator().manual_seed(client)
        offsets = 0.1 * torch.randn(4, self.size, generator=generator)
        held_out_targets = self.targets[client] + torch.stack(list(map(self._turned, offsets)))
        return (((model - held_out_targets) ** 2).sum(1) / 2).numpy()

    def _statistic(self, client: Client, statistic: Statistic) -> np.ndarray:
        """What a client tells of its data: numbers that follow from its target, and that no map of rows changes."""
        target = self.targets[client]
        mean = (target if self.turn is None else self.turn.T @ target).numpy().round(3)
        if statistic == "feature-mean":
            return mean.astype(np.float64)
        # More examples of the classes in whose direction the target is.
        return np.floor(np.clip(10 * mean + 10, 0, 20)).astype(np.float64)

    def _loss(self, client: Client, model: Tensor) -> float:
        return float(((model - self.targets[client]) ** 2).sum()) / 2

    def _replies_to_part(
        self, plan: Plan, exchange: int, silent: Callable[[int, Client], bool]
    ) -> Replies:
        """The replies to a plan without parts."""
        if plan.need == "sums":
            # Clients whose choice is hidden choose by their sketches of earlier exchanges.
            sketches = {}
            for client, half_sketches in self.sketches.items():
                sketches[client] = torch.from_numpy(half_sketches)
            plan = sums_extension().as_taken(plan, sketches)
        answering_clients: list[Client] = []
        example_counts: list[int] = []
        chosen_rows: list[tuple[int, ...]] = []
        losses_of_clients: list[tuple[float, ...]] = []
        accuracies_of_clients: list[tuple[float, ...]] = []
        updates: list[Tensor] = []
        half_updates: dict[Client, tuple[Tensor, Tensor]] = {}
        statistics: dict[Statistic, dict[Client, np.ndarray]] = {}
        for client, task in sorted(plan.tasks.items()):
            if silent(exchange, client):
                continue
            # The client starts from the mean of the offered models of lowest loss.
            offered_models = list(plan.models[list(task.offered)])
            correction = offered_models.pop() if task.corrected else None
            offered_losses = [self._loss(client, offered_model) for offered_model in offered_models]
            by_loss = sorted(range(len(offered_models)), key=offered_losses.__getitem__)
            best_positions = by_loss[: task.choose]
            start_model = torch.stack(
                [offered_models[position] for position in best_positions]
            ).mean(0)
            # It moves towards its target, by a share that grows with the epochs, and by noise.
            noise_seed = 1000 * client + (exchange if self.fresh else 0)
            generator = torch.Generator().manual_seed(noise_seed)
            update_noise = self._turned(self.noise * torch.randn(self.size, generator=generator))
            direction = self.targets[client] - start_model
            moved_share = 1 - (1 - self.rate) ** self._epochs(task)
            update = -direction if task.gradient else moved_share * direction + update_noise
            # What is added to gradients moves the model by its negative, times the learning rate.
            if correction is not None:
                update -= Training().lr * correction
            for layer_name in task.local_layers:
                update[slice(*self.columns[layer_name])] = 0.0
            # Two halves differ from the update by opposite noise, so the update is their mean.
            if task.halves and client not in self.single:
                half_noise = self._turned(self.noise * torch.randn(self.size, generator=generator))
                half_updates[client] = (update + half_noise, update - half_noise)
            answering_clients.append(client)
            example_counts.append(self.examples.get(client, 1))
            chosen_rows.append(tuple(task.offered[position] for position in best_positions))
            # Only a client that was asked to measure reports losses and accuracies.
            reported_losses = offered_losses if task.measure else []
            losses_of_clients.append(tuple(reported_losses))
            accuracies_of_clients.append(tuple(1 / (1 + loss) for loss in reported_losses))
            updates.append(update if task.trains else torch.zeros(self.size))
            for statistic in task.statistics:
                statistics.setdefault(statistic, {})[client] = self._statistic(client, statistic)
        # The method gets only that part of the replies which its plan needs.
        all_replies = Replies(
            clients=tuple(answering_clients),
            examples=np.array(example_counts, dtype=np.int64),
            chosen=tuple(chosen_rows),
            losses=tuple(losses_of_clients),
            accuracies=tuple(accuracies_of_clients),
            updates=self._stacked(plan, updates),
            halves=self._halved(plan, half_updates),
            statistics=statistics,
        )
        if plan.need == "sums":
            return self._sums(plan, all_replies, half_updates)
        return needed(plan, all_replies)

    def _halved(
        self, plan: Plan, half_updates: Mapping[Client, tuple[Tensor, Tensor]]
    ) -> HalvedUpdates | None:
        # Without clients that sent both halves, there are no products.
        gram_matrix = products(plan, half_updates)
        if gram_matrix is None:
            return None
        second_updates = None
        if plan.second_halves:
            second_updates = torch.stack(
                [second_update for _, second_update in half_updates.values()]
            )
        return HalvedUpdates(clients=tuple(half_updates), gram=gram_matrix, second=second_updates)

    def _sums(
        self,
        plan: Plan,
        all_replies: Replies,
        half_updates: Mapping[Client, tuple[Tensor, Tensor]],
    ) -> Replies:
        """The part of the replies that a server sees which gets only sums."""
        # Clients keep the sketches of their halves, and answer questions by them.
        answer_sums: dict[int, np.ndarray] = {}
        client_cells: dict[Client, int] = {}
        for position, client in enumerate(all_replies.clients):
            task = plan.tasks[client]
            if task.halves:
                self.sketches.pop(client, None)
            if client in half_updates:
                both_halves = torch.stack(half_updates[client])
                self.sketches[client] = both_halves[:, plan.columns].numpy()
            question = task.private.question
            if question is None:
                continue
            if question.asks_cell:
                if client in self.sketches:
                    client_cells[client] = question.cell(self.sketches[client])
                continue
            update_norm = None
            if all_replies.updates is not None:
                update_norm = float(all_replies.updates[position].norm())
            client_answer = question.answer(
                self.sketches.get(client), update_norm, self.examples.get(client, 1)
            )
            if client_answer is not None:
                first_row = task.offered[0]
                answer_sums[first_row] = answer_sums.get(first_row, 0.0) + client_answer
        # Updates that clients do not send count in no mean: their tasks are changed to measure only.
        counted_tasks = dict(plan.tasks)
        for client, task in plan.tasks.items():
            if not task.private.sends_update:
                counted_tasks[client] = replace(task, epochs=0, halves=False, private=PrivateTask())
        plan_of_means = replace(
            plan, need="mean", sketch=None, tasks=counted_tasks, private=PrivatePlan()
        )
        mean_replies = needed(plan_of_means, all_replies)
        # If nobody trained, all means are zero.
        if mean_replies.means is None:
            mean_replies = replace(
                mean_replies,
                means=torch.zeros_like(plan.models),
                mean_counts=np.zeros(len(plan.models), dtype=np.int64),
            )
        # With hidden choices, a sum is divided by the number of all clients that answered.
        if plan.private.hides_choices:
            assert mean_replies.means is not None
            assert mean_replies.mean_counts is not None
            client_count = max(len(all_replies.clients), 1)
            row_shares = torch.from_numpy(mean_replies.mean_counts / client_count).float()
            mean_replies = replace(mean_replies, means=mean_replies.means * row_shares[:, None])
        # The server learns no sizes and losses of single clients.
        return replace(
            mean_replies,
            examples=np.ones(len(all_replies.clients), dtype=np.int64),
            losses=(),
            accuracies=(),
            halves=None,
            sums=QuestionSums(by_row=answer_sums, cells=client_cells),
        )

    def taken(self, assignment: Assignment) -> Assignment:
        """What clients take by themselves, if the server does not know it."""
        if not assignment.hidden:
            return assignment
        # Each client takes the model of lowest loss.
        row_of_client: dict[Client, int] = {}
        for client in assignment.row:
            model_losses = ((assignment.models - self.targets[client]) ** 2).sum(1)
            row_of_client[client] = int(model_losses.argmin())
        return replace(assignment, row=row_of_client, groups=groups_by(row_of_client))

    def _stacked(self, plan: Plan, updates: list[Tensor]) -> Tensor | None:
        if not updates:
            return torch.zeros(0, self.size)
        # If no task trains, the replies have no updates at all.
        trains = any(task.trains for task in plan.tasks.values())
        return torch.stack(updates) if trains else None

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
    # The loop of an engine, without messages: plan, replies, step.
    state = method.init(world.federation()) if state is None else state
    for exchange in range(first, first + exchanges):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=seed))
        check_declared(method, plan)
        replies = world.replies(plan, exchange, silent)
        # An error in the method is told with the replies that it got.
        try:
            state = method.step(state, replies)
            played = Played(
                plan, replies, state, method.explain(state), world.taken(method.assignment(state))
            )
        except Exception as error:
            num_replies = len(replies.clients)
            replies_in_words = {0: "without any reply", 1: "with one reply"}.get(
                num_replies, f"with {num_replies} replies"
            )
            error.add_note(f"in exchange {exchange + 1}, {replies_in_words}")
            raise
        yield played


def last(method: Any, world: Pull, exchanges: int, **how: Any) -> Played:
    """What stands after so many exchanges."""
    *_, last_exchange = play(method, world, exchanges, **how)
    return last_exchange


def grouped(
    groups: Sequence[Sequence[Client]],
    *,
    d: int = 12,
    noise: float = 0.02,
    seed: int = 0,
    **world: Any,
) -> Pull:
    """Clients of a group share a target; targets of groups are random directions of length 3."""
    generator = torch.Generator().manual_seed(seed)
    # The members of a group share one tensor.
    target_of_client = {}
    for clients_of_group in groups:
        direction = torch.randn(d, generator=generator)
        target_of_client.update(dict.fromkeys(clients_of_group, 3 * direction / direction.norm()))
    return Pull(targets=target_of_client, noise=noise, **world)


# Ids that are no positions: neither contiguous nor in the order of the groups.
THREE = ((2, 17, 31, 40), (3, 5, 50, 51), (8, 19, 29, 99))
TRUTH = as_groups(THREE)


# ----------------------------------------------------------------------------------------------------
# The laws: each takes a method and raises AssertionError if the method breaks it.


def same(left_value: Any, right_value: Any, stored_alone: bool = False) -> bool:
    """Whether two states are equal, tensors bit for bit.

    Args:
        left_value: A state, or a part of one.
        right_value: Another one.
        stored_alone: Whether fields that are not stored, such as notes, may differ.
    """
    if isinstance(left_value, torch.Tensor):
        return torch.equal(left_value, right_value)
    same_part = partial(same, stored_alone=stored_alone)
    if dataclasses.is_dataclass(left_value):
        if type(left_value) is not type(right_value):
            return False
        for state_field in dataclasses.fields(left_value):
            if stored_alone and not state_field.metadata.get(STORED, True):
                continue
            left_part = getattr(left_value, state_field.name)
            if not same_part(left_part, getattr(right_value, state_field.name)):
                return False
        return True
    if isinstance(left_value, tuple):
        return len(left_value) == len(right_value) and all(map(same_part, left_value, right_value))
    # The order of a mapping is part of the state: sums over its values depend on it.
    if isinstance(left_value, Mapping):
        return list(left_value) == list(right_value) and all(
            same_part(left_value[entry_key], right_value[entry_key]) for entry_key in left_value
        )
    return bool(left_value == right_value)


def check_assignment(assignment: Assignment, clients: tuple[Client, ...]) -> None:
    """Assert that every client is in exactly one group and has a finite model."""
    assert as_groups(assignment.groups) == assignment.groups, "groups are not sorted"
    grouped_clients = sorted(
        client for clients_of_group in assignment.groups for client in clients_of_group
    )
    assert grouped_clients == list(clients), (
        f"groups have the clients {grouped_clients}, not {list(clients)}"
    )
    # Each client has a model, and each model can be used.
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
    method_class: Any = type(method)
    # A subclass has the parameters of its parent.
    assert method_class.__dataclass_params__.frozen, "it is not frozen"


def leaves_a_partition_and_a_model_for_everyone(method: Any) -> None:
    """After every exchange all clients have a group and a model; notes are about clients that exist."""
    world = example_world()
    for played in play(method, world, 25):
        check_assignment(played.assignment, world.clients)
        assert set(played.plan.tasks) <= set(world.clients), "a task is of no client"
        # A note is about existing clients, and its parts divide them.
        for note in played.notes:
            assert note.text, "a note has no text"
            assert note.kind, "a note has no kind"
            assert set(note.clients) <= set(world.clients), "a note is about no client"
            note_members = [client for part in note.parts for client in part]
            assert len(set(note_members)) == len(note_members), "the parts of a note overlap"
            assert set(note_members) <= set(note.clients), "a part of a note has other clients"


def is_pure(method: Any) -> None:
    """The same inputs give the same state, and no function changes its inputs."""
    world = example_world()
    # Two runs from the same inputs end in equal states.
    state = last(method, example_world(), 15).state
    repeated_state = last(method, example_world(), 15).state
    assert same(state, repeated_state), "two runs differ"
    # The first state is used once more, and must still be equal to the second.
    plan = method.plan(state, Cohort(present=world.clients, exchange=15, seed=0))
    method.step(state, world.replies(plan, 15, never))
    method.assignment(state)
    assert same(state, repeated_state), "a function changed the state in place"


_GLOBAL_GENERATORS: Mapping[str, tuple[Callable[[int], object], Callable[[], Any]]] = {
    "Python's module random": (random.seed, random.getstate),
    "numpy.random": (np.random.seed, lambda: str(np.random.get_state())),  # noqa: NPY002
    "PyTorch": (torch.manual_seed, lambda: torch.get_rng_state().tolist()),
}
"""Whose global generator -> how it is seeded, and its state."""


def draws_only_seeded_random_numbers(method: Any) -> None:
    """Random numbers come from a seed that the method is given or has: a run can be repeated, and go on."""
    # Updates are mostly noise, so that a random start leads to other groups.
    world = grouped(THREE, noise=1.0)
    final_states = []
    states_of_generators: dict[str, list[Any]] = {name: [] for name in _GLOBAL_GENERATORS}
    saved_states = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
    try:
        # The same run twice, while the generators that all code shares start differently.
        for process_seed in (1, 2):
            untouched = {}
            for name, (seed_generator, state_of_generator) in _GLOBAL_GENERATORS.items():
                seed_generator(process_seed)
                untouched[name] = state_of_generator()
            final_states.append(last(method, replace(world, sketches={}), 15).state)
            for name, (_, state_of_generator) in _GLOBAL_GENERATORS.items():
                is_drawn_from = state_of_generator() != untouched[name]
                states_of_generators[name].append(state_of_generator() if is_drawn_from else None)
    finally:
        random.setstate(saved_states[0])
        np.random.set_state(saved_states[1])  # noqa: NPY002
        torch.set_rng_state(saved_states[2])
    # A generator that ends differently was drawn from, and the method had not seeded it.
    for name, (first_state, second_state) in states_of_generators.items():
        assert first_state == second_state, (
            f"it draws from the global generator of {name}: make one of your own, with a fixed seed "
            "or with Cohort.seed"
        )
    assert same(*final_states), "two runs with the same seed differ: a random number has no seed"


def keeps_no_updates_of_the_engine(method: Any) -> None:
    """A state does not hold on to the updates that it was shown: engines use this memory again."""
    world = example_world()
    state = method.init(world.federation())
    for exchange in range(12):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=0))
        replies = world.replies(plan, exchange, never)
        state = method.step(state, replies)
        # If the state shares memory with the updates, a model is no longer finite.
        if replies.updates is not None:
            replies.updates.fill_(torch.nan)
        check_assignment(method.assignment(state), world.clients)


def goes_on_from_a_stored_state(method: Any) -> None:
    """A state that was written and read continues as if nothing had happened, bit for bit."""
    world = example_world()
    halfway_state = last(method, world, 9).state
    assert type(halfway_state) in STATES.values(), "the state's class has no @state"
    # The state is written and read as a record does it, with tensors as blobs.
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        blobs[str(len(blobs))] = data
        return str(len(blobs) - 1)

    restored = decode(encode(halfway_state, put), blobs.__getitem__)
    assert same(halfway_state, restored, stored_alone=True), "a stored state differs"
    # Both runs go on with copies of what clients keep.
    worlds = [replace(world, sketches=dict(world.sketches)) for _ in range(2)]
    final_state = last(method, worlds[0], 9, state=halfway_state, first=9).state
    final_restored_state = last(method, worlds[1], 9, state=restored, first=9).state
    assert same(final_state, final_restored_state), "a run goes on differently from a stored state"


def bears_silent_clients(method: Any) -> None:
    """Any clients may be silent in any exchange: some, all but one, or all."""
    world = example_world()
    # In each exchange about a third of the clients are silent.
    is_silent = np.random.default_rng(1).random((40, 100)) < 0.3
    for played in play(
        method, world, 40, silent=lambda exchange, client: bool(is_silent[exchange, client])
    ):
        check_assignment(played.assignment, world.clients)
    # All clients are silent, or all but client 8. Without replies the first model does not change.
    for speaking_client in (None, 8):
        last_exchange = last(
            method,
            example_world(),
            6,
            silent=lambda exchange, client, speaking_client=speaking_client: (
                client != speaking_client
            ),
        )
        check_assignment(last_exchange.assignment, world.clients)
        if speaking_client is None:
            first_model = world.federation().draw(0)
            assert torch.equal(last_exchange.assignment.models[0], first_model), (
                "a model changed by itself"
            )


def lets_clients_join_and_leave(method: Any) -> None:
    """Clients that leave have no group; when they are back they have one. For methods with ``admit``."""
    admits = isinstance(method, Admits)
    if not admits:
        return
    world = example_world()
    # Two clients of different groups leave.
    leavers = (2, 5)
    state_without_leavers = method.retire(last(method, world, 8).state, leavers)
    remaining_clients = tuple(client for client in world.clients if client not in leavers)
    check_assignment(method.assignment(state_without_leavers), remaining_clients)
    # They come back.
    state_with_all = method.admit(state_without_leavers, leavers)
    check_assignment(method.assignment(state_with_all), world.clients)


def has_groups_that_do_not_depend_on_ids(method: Any) -> None:
    """Clients with other ids, in another order, end in the same groups. For methods that ask all clients."""
    # Who is asked by a method that samples clients depends on their ids.
    if needs_of(method).fraction < 1:
        return
    world = grouped(THREE, noise=0.0)
    new_id = dict(zip(world.clients, (70, 4, 66, 12, 0, 91, 33, 5, 28, 45, 1, 13), strict=True))
    renamed_world = Pull(
        targets={new_id[client]: target for client, target in world.targets.items()}, noise=0.0
    )
    groups = last(method, world, 25).groups
    renamed_groups = as_groups([new_id[client] for client in group] for group in groups)
    assert last(method, renamed_world, 25).groups == renamed_groups, (
        "the same clients with other ids end in other groups"
    )


MODEL_TOLERANCE = 1e-3
"""How far models may differ after a map of updates, relative to them: maps round to float32."""

NUMBER_TOLERANCE = 0.05
"""The same of numbers in notes."""


def is_unchanged_by_the_maps_that_it_declares(method: Any) -> None:
    """If ``needs`` say that a map of updates changes nothing, groups, models and notes stay the same under one."""
    declared = needs_of(method).unchanged_by
    if declared == "nothing":
        return
    for noise in (0.02, 1.0):
        world = grouped(THREE, noise=noise, buffers=2)
        # A sketch keeps distances up to an error, which a map changes.
        num_columns = world.size - world.buffers
        if (getattr(method, "sketch", None) or num_columns) < num_columns:
            return
        turn = _drawn_turn(world, with_rotations=declared == "rotation")
        in_both_worlds = zip(
            play(method, world, 25), play(method, world.turned(turn), 25), strict=True
        )
        for played, turned in in_both_worlds:
            assert turned.groups == played.groups, _after_map(declared, "the groups differ")
            mapped_models = played.assignment.models @ turn.T
            assert torch.allclose(
                turned.assignment.models, mapped_models, rtol=MODEL_TOLERANCE, atol=MODEL_TOLERANCE
            ), _after_map(declared, "the models differ")
            for note, turned_note in zip(played.notes, turned.notes, strict=False):
                for name, number, turned_number in _numbers_of_both(note, turned_note):
                    assert np.isclose(
                        number, turned_number, NUMBER_TOLERANCE, MODEL_TOLERANCE, equal_nan=True
                    ), _after_map(declared, f"{name} is {turned_number:.6g}, and not {number:.6g}")


def _after_map(declared: str, difference: str) -> str:
    return f"its needs declare unchanged_by={declared!r}, and after such a map {difference}"


def _drawn_turn(world: Pull, with_rotations: bool) -> Tensor:
    """An orthonormal matrix ``(d, d)`` that mixes the entries of each tensor: signs and order, or also rotations."""
    generator = torch.Generator().manual_seed(7)
    turn = torch.eye(world.size)
    # Layers keep their columns, because plans may name them; buffers stay as they are.
    for start, stop in world.tensors.values():
        num_entries = stop - start
        order = torch.randperm(num_entries, generator=generator)
        signs = 1.0 - 2.0 * torch.randint(0, 2, (num_entries,), generator=generator)
        block = torch.diag(signs)[order]
        if with_rotations:
            block = torch.linalg.qr(
                torch.randn(num_entries, num_entries, generator=generator, dtype=torch.float64)
            )[0].float()
        turn[start:stop, start:stop] = block
    return turn


def _numbers_of_both(note: Note, turned_note: Note) -> Iterator[tuple[str, float, float]]:
    """The name of each number of two notes about the same decision, and the number in both."""
    for criterion, turned_criterion in zip(note.criteria, turned_note.criteria, strict=False):
        yield criterion.name, criterion.value, turned_criterion.value
    for name in note.numbers.keys() & turned_note.numbers.keys():
        yield name, note.numbers[name], turned_note.numbers[name]
    # Of a matrix, the entries that differ most.
    for name in note.similarity.keys() & turned_note.similarity.keys():
        entries = note.similarity[name].double()
        turned_entries = turned_note.similarity[name].double()
        if entries.shape == turned_entries.shape and entries.numel():
            position = int((entries - turned_entries).abs().argmax())
            yield (
                f"an entry of similarity {name}",
                float(entries.flatten()[position]),
                float(turned_entries.flatten()[position]),
            )


LAWS: tuple[Callable[[Any], None], ...] = (
    follows_the_protocol,
    leaves_a_partition_and_a_model_for_everyone,
    is_pure,
    draws_only_seeded_random_numbers,
    keeps_no_updates_of_the_engine,
    goes_on_from_a_stored_state,
    bears_silent_clients,
    lets_clients_join_and_leave,
    has_groups_that_do_not_depend_on_ids,
    is_unchanged_by_the_maps_that_it_declares,
)
"""All laws that do not depend on the purpose of a method. A plan that asks for more than the
method's needs declare breaks each of them."""


def _broken_law(method: Any, law: Callable[[Any], None], error: Exception) -> str:
    """What a method breaks, in words: the law, what happened, and the line of the method."""
    law_in_words = inspect.cleandoc(law.__doc__ or "").partition("\n")[0].rstrip(".")
    law_name = f"{law.__name__} ({law_in_words})"
    method_name = getattr(method, "name", type(method).__name__)
    if isinstance(error, AssertionError) and error.args:
        return f"{method_name} breaks {law_name}: {error}"
    # The method itself failed: where, and with how many replies.
    circumstances = "; ".join(getattr(error, "__notes__", ()))
    return (
        f"{method_name} fails in {law_name}: {type(error).__name__}: {error}"
        f"{_line_of_method(method, error)}{f'; {circumstances}' if circumstances else ''}"
    )


def _line_of_method(method: Any, error: Exception) -> str:
    """The last line of the method's own files that an error came through, as the end of a sentence."""
    files_of_method = set()
    for method_class in type(method).__mro__[:-1]:
        try:
            files_of_method.add(inspect.getfile(method_class))
        # A class of a notebook or of Python itself has no file.
        except (TypeError, OSError):
            continue
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files_of_method:
            return f", at {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return ""


def check_method(method: Any) -> tuple[str, ...]:
    """Check a method against all :data:`LAWS` of the contract.

    Args:
        method: The method, with settings under which something happens in about ten rounds of
            twelve clients.

    Returns:
        What the method did in 25 rounds of twelve clients, from its notes. If it is empty for a
        method that makes groups, the laws were tested on a method that had done nothing.

    Raises:
        AssertionError: The method breaks a law, or fails in it; the message says what the law is, and
            in which line of the method an error was raised.
        SettingError: A plan asks for more than the method's ``needs`` declare.
    """
    for law in LAWS:
        try:
            law(method)
        except UserError:
            raise
        except Exception as error:
            raise AssertionError(_broken_law(method, law, error)) from error
    done = []
    for round_number, played in enumerate(play(method, example_world(), 25), 1):
        done += [f"round {round_number}: {note.kind}: {note.text}" for note in played.notes]
    return tuple(done)
