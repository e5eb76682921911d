"""Sums over clients, without masks: what a server learns of a plan with ``need="sums"``, computed in one process.

With noise (``boundary.noise``) a sum gets what the clients' shares of it add up to. Of n clients
that are asked, each adds Gaussian noise with 1 / sqrt(honest n) of the standard deviation, so that
it is enough as soon as that share of them answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.contrib.private.answers import limited_answers
from coterie.contrib.private.cells import CellQuestion, question_of
from coterie.core import Client, Means, Note, Plan, QuestionSums, Replies, Task
from coterie.engines.exchange import Collected
from coterie.models.layout import Layout
from coterie.randomness import Purpose, numpy_generator
from coterie.training import ClientResult

COUNT_WEIGHT = 0.4
"""Weight of the number of clients compared with an update of norm 1, in the slots of a hidden plan."""


@dataclass(frozen=True)
class NoiseShare:
    """Standard deviations of one client's share of the noise on a sum.

    Attributes:
        update: On each number of an update.
        count: On each slot's number of clients.
        answer: On each number of the answer.
    """

    update: float
    count: float
    answer: float

    @classmethod
    def of(
        cls,
        boundary: Boundary,
        asked_count: int,
        hides_choices: bool,
        max_norm: float | None,
        question_cost: int,
    ) -> NoiseShare | None:
        """Return the noise of a sum; None if the boundary has none.

        Args:
            boundary: The boundary.
            asked_count: How many clients are asked.
            hides_choices: Whether the plan hides the clients' choices.
            max_norm: The maximum norm of an update.
            question_cost: The number of updates as which the answer counts.
        """
        if not boundary.noise or max_norm is None:
            return None
        relative_share = boundary.noise / math.sqrt(boundary.honest * asked_count)
        if not hides_choices:
            return cls(
                update=relative_share * max_norm,
                count=0.0,
                answer=relative_share / math.sqrt(question_cost),
            )
        # The update and the weighted count are one vector, whose norm the noise must cover.
        slot_share = relative_share * math.sqrt(1 + COUNT_WEIGHT**2)
        return cls(
            update=slot_share * max_norm,
            count=slot_share / COUNT_WEIGHT,
            answer=relative_share / math.sqrt(question_cost),
        )


def min_answers(boundary: Boundary, asked_count: int) -> int:
    """Return how many of the clients that were asked must answer, so that their noise is enough."""
    return math.ceil(boundary.honest * asked_count - 1e-9) if boundary.noise else 1


# -- plans and questions at a client
# ------------------------------------------------------------------------------------


def as_taken(plan: Plan, half_sketches: Mapping[Client, Tensor | np.ndarray]) -> Plan:
    """Return a plan in which clients that take the model of their cell are offered only that one.

    Args:
        plan: The plan.
        half_sketches: Client -> the sketches ``(2, k)`` of its halves; a client without takes the
            model of lowest loss.
    """
    # Only clients that follow their cell are offered another choice than the plan says.
    questions = [question_of(task) for task in plan.tasks.values()]
    asks_cells = any(question is not None and question.asks_cell for question in questions)
    if not plan.private.hides_choices or not asks_cells:
        return plan
    tasks_as_taken = {
        client: task_as_taken(task, half_sketches.get(client))
        for client, task in plan.tasks.items()
    }
    return replace(plan, tasks=tasks_as_taken)


def task_as_taken(task: Task, half_sketches: Tensor | np.ndarray | None) -> Task:
    """Return the task of a hidden plan as a client with these sketches ``(2, k)`` takes it."""
    question = question_of(task)
    if question is None or not question.asks_cell:
        return task
    # The client follows its cell, or chooses by loss if it has no sketches, and says neither.
    private = replace(task.private, question=None)
    if half_sketches is None:
        return replace(task, private=private)
    row_of_cell = task.offered[question.cell(np.asarray(half_sketches))]
    return replace(task, private=private, offered=(row_of_cell,), measure=None)


def answer_to(
    question: CellQuestion,
    half_sketches: np.ndarray | None,
    update: Tensor | None,
    examples: int,
    layout: Layout,
) -> np.ndarray | None:
    """Return the numbers that a client adds to the sum; None if it does not know what is asked for.

    Args:
        question: Any question but for a cell, whose answer is no part of a sum.
        half_sketches: Shape ``(2, k)``, the sketches of the halves; None if the client has none.
        update: The update ``(d,)``, or None.
        examples: The client's number of training examples.
        layout: Its first columns, the parameters, count for the norm.
    """
    update_norm = None
    if question.needs_norm and update is not None:
        update_norm = float(update[: layout.trainable].norm())
        if not math.isfinite(update_norm):
            update_norm = None
    return question.answer(half_sketches, update_norm, examples)


# -- an exchange
# ----------------------------------------------------------------------------------------------------------


def carry_out(
    collected: Collected, half_sketches: Mapping[Client, Tensor]
) -> tuple[Replies, dict[Client, Tensor]]:
    """Carry out a plan: of a single client, nothing is in the replies.

    Args:
        collected: Collects the results of the plan, whose tasks are as the clients take them.
        half_sketches: Client -> the sketches ``(2, k)`` of its halves, before the exchange.

    Returns:
        The replies with means and sums, and the sketches after the exchange. They stay at the
        clients.
    """
    pool = collected.pool
    plan = collected.plan
    wire = pool.wire
    # Means and answers are added up as the results arrive. Behind masks the server sees sums alone,
    # and can limit no single update.
    averaging = None if wire.boundary.masks else pool.robust
    running_means = Means(len(plan.models), pool.layout.size, averaging)
    answer_sums = AnswerSums(collected, half_sketches)
    num_cut = 0
    for results in collected.waves():
        with collected.clock("server"):
            # The sketches are those of both halves, so they are taken before these are averaged.
            answer_sums.take(results)
            collected.average_halves(results)
            if wire.boundary.masks:
                num_cut += limit_updates(results.values(), wire, plan)
            collected.keep_own_values(results)
            collected.add_to_means(results, running_means)
    with collected.clock("server"):
        # Then noise is added to the sums, as all clients together would add it.
        replies = replace(
            collected.replies(), means=running_means.means, mean_counts=running_means.counts
        )
        replies = summed(plan, replies, answer_sums)
        if wire.boundary.noise:
            run_seed, exchange, _ = collected.key
            noise_generator = numpy_generator(run_seed, Purpose.NOISE, exchange, collected.number)
            replies = noised(collected, replies, noise_generator)
        elif num_cut:
            # With noise, the server must not learn how many updates were cut.
            pool.add_note(note_of_cut(num_cut, replies.clients, wire.boundary.bound))
    return replies, answer_sums.half_sketches


class AnswerSums:
    """The clients' answers to the questions of a plan, added up as they arrive.

    Args:
        collected: Collects the results of the plan.
        half_sketches: Client -> the sketches ``(2, k)`` of its halves.

    Attributes:
        half_sketches: The same, with those of the halves of this exchange.
        cells: Client -> its cell, if it was asked for that.
    """

    def __init__(self, collected: Collected, half_sketches: Mapping[Client, Tensor]) -> None:
        self.pool = collected.pool
        self.plan = collected.plan
        self.half_sketches = dict(half_sketches)
        self.cells: dict[Client, int] = {}
        # Single answers are limited by each other where some may be hostile, if the server sees them.
        has_masks = collected.pool.wire.boundary.masks
        self._hostile = 0 if has_masks else collected.pool.robust.hostile
        self._sums: dict[int, np.ndarray] = {}
        self._single_answers: dict[int, tuple[CellQuestion, dict[Client, np.ndarray]]] = {}
        world = collected.pool.world
        round_number = collected.key[2] + 1
        self._data = world.steps[world.step(round_number)]

    @property
    def by_row(self) -> dict[int, np.ndarray]:
        """First offered row -> the sum of the answers."""
        answer_sums = dict(self._sums)
        for offered_row, (question, answers) in self._single_answers.items():
            counted_answers = limited_answers(question, answers, self._hostile)
            answer_sums[offered_row] = np.sum(list(counted_answers.values()), axis=0)
        return answer_sums

    def take(self, results: Mapping[Client, ClientResult]) -> None:
        """Store the sketches of clients that trained on both halves, and add the answers of all.

        Args:
            results: Client -> its result, in which the updates of both halves are still apart.
        """
        for client, result in results.items():
            task = self.plan.tasks[client]
            if task.halves:
                # Sketches of an earlier model do not count any more.
                self.half_sketches.pop(client, None)
            if len(result.slots) == 2:
                sketches = self.pool.rows.sketches(result.slots)
                self.half_sketches[client] = sketches.view(2, -1)
            question = question_of(task)
            if question is not None:
                self._add_answer(client, question, task, result)

    def _add_answer(
        self, client: Client, question: CellQuestion, task: Task, result: ClientResult
    ) -> None:
        # The sketches of this exchange, or those of an earlier one.
        stored_sketches = self.half_sketches.get(client)
        half_sketches = None if stored_sketches is None else stored_sketches.numpy()
        # A cell is the only answer of which the server knows whose it is.
        if question.asks_cell:
            if half_sketches is not None:
                self.cells[client] = question.cell(half_sketches)
            return
        examples = len(self._data[client].train)
        client_answer = answer_to(
            question, half_sketches, result.update, examples, self.pool.layout
        )
        if client_answer is not None:
            offered_row = task.offered[0]
            client_answer = client_answer.astype(np.float64)
            if self._hostile:
                _, answers = self._single_answers.setdefault(offered_row, (question, {}))
                answers[client] = client_answer
            else:
                self._sums[offered_row] = self._sums.get(offered_row, 0.0) + client_answer


def limit_updates(results: Iterable[ClientResult], wire: Wire, plan: Plan) -> int:
    """Shorten updates to the maximum norm, and cut them to what masked numbers can express.

    Args:
        results: The clients' results, whose updates change.
        wire: The wire between clients and server.
        plan: The plan.

    Returns:
        How many updates were cut.
    """
    bound = wire.boundary.bound
    max_norm = wire.limit(plan.private.clip)
    num_cut = 0
    for result in results:
        if result.update is None:
            continue
        if max_norm is not None:
            result.update.copy_(wire.clipped(result.update, max_norm))
        num_cut += bool((result.update.abs() > bound).any())
        result.update.clamp_(-bound, bound)
    return num_cut


def note_of_cut(num_cut: int, clients: tuple[Client, ...], bound: float) -> Note:
    """Return the warning that updates were cut to the bound.

    Args:
        num_cut: How many.
        clients: The clients whose updates are in the sum.
        bound: The bound, ``Boundary.bound``.
    """
    text = f"{num_cut} of {len(clients)} updates were cut: they had changes beyond boundary.bound {bound:g}"
    return Note(kind="node", effect="warns", clients=clients, text=text)


def summed(plan: Plan, replies: Replies, answers: AnswerSums) -> Replies:
    """Return the replies with the sums, and without anything of a single client.

    Every client counts as one example. What limits changed is told all the same: without masks the
    server sees single updates.

    Args:
        plan: The plan.
        replies: The replies, with means.
        answers: The sums of the answers.
    """
    hides_choices = plan.private.hides_choices
    client_count = len(replies.clients)
    replies = replace(
        replies,
        examples=np.ones(client_count, dtype=np.int64),
        losses=(),
        accuracies=(),
        limits=replace(replies.limits, counted=replies.limited_counts()),
        halves=None,
        sums=QuestionSums(by_row=answers.by_row, cells=answers.cells),
        chosen=() if hides_choices else replies.chosen,
    )
    if hides_choices and replies.means is not None and replies.mean_counts is not None:
        # The server divides by all clients that answered: it does not know who chose a model.
        answering_shares = torch.from_numpy(replies.mean_counts / max(client_count, 1)).float()
        replies = replace(replies, means=replies.means * answering_shares[:, None])
    return replies


# -- noise
# ----------------------------------------------------------------------------------------------------------------


def noised(collected: Collected, replies: Replies, noise_generator: np.random.Generator) -> Replies:
    """Return the replies with noise on every sum; sums in which too few clients have answered are left out.

    Args:
        collected: What has collected the results.
        replies: The replies, with means and sums.
        noise_generator: Draws the noise.
    """
    plan = collected.plan
    wire = collected.pool.wire
    hides_choices = plan.private.hides_choices
    max_norm = wire.limit(plan.private.clip)
    assert replies.means is not None
    assert replies.mean_counts is not None
    noisy_means = replies.means.clone()
    mean_counts = replies.mean_counts.astype(np.float64)
    noisy_answers = dict(replies.sums.by_row)
    answer_deviation = 0.0
    for sum_row, asked_clients in enumerate(_clients_of_sums(plan, len(noisy_means))):
        sum_tasks = [plan.tasks[client] for client in asked_clients]
        answer_count = len(set(replies.clients).intersection(asked_clients))
        # A hidden plan has a single sum, of which each model is a slot.
        rows_of_sum = slice(None) if hides_choices else slice(sum_row, sum_row + 1)
        # With too few shares of noise, nothing of the sum may be read.
        if answer_count < min_answers(wire.boundary, len(sum_tasks)) or not answer_count:
            noisy_means[rows_of_sum] = 0.0
            mean_counts[rows_of_sum] = 0.0
            noisy_answers.pop(sum_row, None)
            continue
        noise_share = NoiseShare.of(
            wire.boundary, len(sum_tasks), hides_choices, max_norm, _cost(sum_tasks)
        )
        assert noise_share is not None
        # The shares of all clients that answered add up by their variances.
        noise_factor = math.sqrt(answer_count)
        # Noise on the mean update, and on the number of clients in each slot.
        if any(task.trains and task.private.sends_update for task in sum_tasks):
            drawn_noise = _drawn(noisy_means[rows_of_sum], sum_tasks[0], collected, noise_generator)
            noisy_means[rows_of_sum] += drawn_noise * (
                noise_share.update * noise_factor / answer_count
            )
            if hides_choices:
                drawn_counts = noise_generator.standard_normal(len(mean_counts))
                mean_counts = mean_counts + drawn_counts * noise_share.count * noise_factor
        # Noise on the answers.
        if sum_row in noisy_answers:
            answer_deviation = noise_share.answer * noise_factor
            noisy_answers[sum_row] = (
                noisy_answers[sum_row]
                + noise_generator.standard_normal(len(noisy_answers[sum_row])) * answer_deviation
            )
    noisy_sums = replace(replies.sums, by_row=noisy_answers, deviation=answer_deviation)
    return replace(replies, means=noisy_means, mean_counts=mean_counts, sums=noisy_sums)


def _clients_of_sums(plan: Plan, model_count: int) -> list[list[Client]]:
    """The clients of each sum: one sum per offered model, or a single one if the plan is hidden."""
    if plan.private.hides_choices:
        return [list(plan.tasks)]
    clients_of_sum: list[list[Client]] = [[] for _ in range(model_count)]
    for client, task in plan.tasks.items():
        clients_of_sum[task.offered[0]].append(client)
    return clients_of_sum


def _cost(tasks: Iterable[Task]) -> int:
    """The number of updates as which an answer counts: that of the first question; 1 without one."""
    for task in tasks:
        if task.private.question is not None:
            return task.private.question.cost
    return 1


def _drawn(
    mean_updates: Tensor, task: Task, collected: Collected, noise_generator: np.random.Generator
) -> Tensor:
    """Standard normal numbers for some means; zero for running statistics, and for layers that stay at the clients."""
    drawn_noise = torch.from_numpy(
        noise_generator.standard_normal(mean_updates.shape, dtype=np.float32)
    )
    drawn_noise[:, collected.pool.layout.trainable :] = 0.0
    keep_mask = collected.pool.keep_mask(task)
    return drawn_noise if keep_mask is None else drawn_noise.masked_fill(keep_mask, 0.0)
