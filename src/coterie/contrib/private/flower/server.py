"""The server's side of sums over Flower: masked sums, of which no single update can be read, and plain ones.

Clients whose tasks offer the same model form one sum. The reply to a task has one array of integers
modulo 2³²: the update times the client's weight, the weight, a 1 if the update was cut to the
bound, and the answer to the task's question, all under masks. If the plan hides choices, all
clients form one sum, and the update and a 1 are in the slot of the model that the client took. With
noise, each client adds its share of it to its numbers before they are rounded and masked.

What a reply has besides: the client's cell, or the model that it chose, if the task asks for that
and the plan does not hide it; and whether the client has stored its own values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from coterie.boundary import Wire
from coterie.contrib.private.answers import flaw_of, limited_answers
from coterie.contrib.private.cells import question_of
from coterie.contrib.private.flower import steps
from coterie.contrib.private.flower.steps import MASKED, MASKS, step_message
from coterie.contrib.private.flower.sum_layout import Decoded, SumLayout
from coterie.contrib.private.masks import MaskedSum, ProtocolError
from coterie.contrib.private.sums import NoiseShare, min_answers, note_of_cut
from coterie.core import (
    Client,
    Means,
    Note,
    Plan,
    QuestionSums,
    Replies,
    Task,
    Training,
    amounts,
)
from coterie.engines.flower import messages
from coterie.engines.flower.messages import ANSWER, CELL, CONFIG, MAX_ROUNDING_ERROR, Unfit
from coterie.engines.flower.replies import plausible_results
from coterie.engines.flower.sums import Ask
from coterie.robust import Robust
from coterie.settings import SettingError
from coterie.training import ClientResult, sketch_size

StepAnswer = TypeVar("StepAnswer")


@dataclass
class SumOfClients:
    """One masked sum of an exchange.

    Attributes:
        part: Name of the part of the plan.
        row: The offered row.
        clients: The clients that have a task in it.
        layout: What the numbers of a client are.
        name: Its name, never used again.
        server: The server's state; it never holds numbers of a single client.
        shares_for: Client -> the shares that its neighbours have encrypted for it.
    """

    part: str
    row: int
    clients: tuple[Client, ...]
    layout: SumLayout
    name: bytes
    server: MaskedSum = field(init=False)
    shares_for: Mapping[Client, Mapping[Client, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = MaskedSum(name=self.name, size=self.layout.size)

    @property
    def key(self) -> str:
        """The name in messages."""
        return self.name.hex()

    def answers_in(
        self, replies: Mapping[Client, RecordDict], from_json: Callable[[Any], StepAnswer | None]
    ) -> dict[Client, StepAnswer]:
        """Return client -> its answer to a step of this sum, for the clients whose answers can be read.

        Args:
            replies: Client -> the content of its reply to the step.
            from_json: Reads an answer; None if it cannot be read.
        """
        answers = {}
        for client in self.clients:
            answer = from_json(steps.answer_about(replies.get(client), self.name))
            if answer is not None:
                answers[client] = answer
        return answers


@dataclass
class PartSums:
    """The sums of a part of a plan, after unmasking.

    Attributes:
        means: Shape ``(k, d)``: the mean updates.
        mean_counts: Shape ``(k,)``: the numbers of clients in them.
        answers: First offered row -> the sum of the answers.
    """

    means: Tensor
    mean_counts: np.ndarray
    answers: dict[int, np.ndarray] = field(default_factory=dict)


class MaskedGridExchange:
    """The masked sums of one exchange over a grid, see :class:`~coterie.engines.flower.sums.MaskedExchange`.

    Args:
        plan: The plan.
        clients: The clients that take part, of those that have tasks.
        run_name: Name of the run.
        exchange: Number of the exchange.
        wire: The wire between clients and server.
        ask: Sends messages.

    Attributes:
        notes: What went wrong, for the record of the round.

    Raises:
        SettingError: The noise would be rounded away.
    """

    def __init__(
        self,
        plan: Plan,
        clients: Collection[Client],
        run_name: str,
        exchange: int,
        wire: Wire,
        ask: Ask,
    ) -> None:
        self.parts = dict(plan.leaves())
        self.wire = wire
        self.ask = ask
        self.notes: list[Note] = []
        self.sums: list[SumOfClients] = []
        # One sum for all clients whose numbers can be added.
        clients_of_sums = _clients_of_sums(self.parts, clients, wire.layout.size)
        for sum_number, (
            (part_name, offered_row, sends_update, answer_size, question_cost),
            members,
        ) in enumerate(clients_of_sums.items()):
            layout = self._layout(
                self.parts[part_name], sends_update, answer_size, question_cost, len(members)
            )
            sum_name = f"{run_name}|{exchange}|{sum_number}".encode()
            self.sums.append(SumOfClients(part_name, offered_row, tuple(members), layout, sum_name))
        self._clients_of_part = [(masked_sum.part, masked_sum.clients) for masked_sum in self.sums]
        self._part_sums: dict[str, PartSums] = {}

    def _layout(
        self,
        plan: Plan,
        sends_update: bool,
        answer_size: int,
        question_cost: int,
        client_count: int,
    ) -> SumLayout:
        """What each client adds to a sum. Raises :class:`SettingError` if the noise would be rounded away."""
        boundary = self.wire.boundary
        hides_choices = plan.private.hides_choices
        max_norm = self.wire.limit(plan.private.clip)
        # What each client sends, and the share of the noise that it adds.
        sum_layout = SumLayout(
            d=self.wire.layout.size if sends_update else 0,
            answer_size=answer_size,
            max_clients=client_count,
            bound=boundary.bound,
            slots=len(plan.models) if hides_choices and sends_update else 1,
            noise=NoiseShare.of(boundary, client_count, hides_choices, max_norm, question_cost),
        )
        if sum_layout.drowned_by == "bound":
            raise SettingError(
                f"boundary.bound is {boundary.bound:g}, and must be at most {sum_layout.max_bound:.2g} with boundary.noise "
                f"{boundary.noise:g}, updates of norm {max_norm:g} or less and {client_count} clients in a masked "
                "sum: the noise would be rounded away"
            )
        if sum_layout.drowned_by:
            raise SettingError(
                f"boundary.noise is {boundary.noise:g}, too small for {client_count} clients in a masked sum: "
                "it would be rounded away"
            )
        return sum_layout

    def sums_of(self, client: Client) -> list[SumOfClients]:
        """Return the sums in which a client takes part, one per part of the plan at most."""
        return [masked_sum for masked_sum in self.sums if client in masked_sum.clients]

    def is_silent(self, client: Client) -> bool:
        """Return whether a client has a task in a sum that is not formed, or has not answered the steps so far."""
        ready_parts = {
            masked_sum.part
            for masked_sum in self.sums_of(client)
            if client in masked_sum.shares_for
        }
        return any(
            client in clients and part_name not in ready_parts
            for part_name, clients in self._clients_of_part
        )

    # -- the steps before the tasks
    # --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Carry out the first two steps: keys, and encrypted shares."""
        offered_keys = self._exchange_keys()
        replies = self._ask_step("shares", offered_keys)
        # Step 2: the server passes on the shares that it cannot read.
        for masked_sum in self.sums:
            shares_of_clients = masked_sum.answers_in(replies, steps.shares_from_json)
            masked_sum.shares_for = masked_sum.server.shares(shares_of_clients)

    def _exchange_keys(self) -> dict[Client, dict[str, Any]]:
        """Ask all clients for public keys. Return client -> sum -> the keys of its neighbours, and the threshold.

        A sum with too few clients is given up.
        """
        # A client has one message for all of its sums.
        sums_of_client: dict[Client, list[str]] = {}
        for masked_sum in self.sums:
            for client in masked_sum.clients:
                sums_of_client.setdefault(client, []).append(masked_sum.key)
        replies = self._ask_step("keys", sums_of_client)
        # Step 1: each client gets the public keys of its neighbours.
        offered_keys: dict[Client, dict[str, Any]] = {}
        for masked_sum in list(self.sums):
            public_keys = masked_sum.answers_in(replies, steps.keys_from_json)
            try:
                keys_of_neighbours = masked_sum.server.keys(public_keys)
            except ProtocolError as error:
                self._give_up(masked_sum, str(error))
                continue
            threshold = masked_sum.server.graph.threshold
            for client, neighbours in keys_of_neighbours.items():
                offered_values = {
                    neighbour: steps.keys_to_json(neighbour_keys)
                    for neighbour, neighbour_keys in neighbours.items()
                }
                offered_keys.setdefault(client, {})[masked_sum.key] = [offered_values, threshold]
        return offered_keys

    def _ask_step(
        self, step_name: str, sums_of_clients: Mapping[Client, Any]
    ) -> Mapping[Client, RecordDict]:
        """Ask clients for a step of some sums each, and return the contents of their replies."""
        return self.ask(
            {
                client: step_message(step_name, client, sums_of_client)
                for client, sums_of_client in sums_of_clients.items()
            }
        )

    # -- the tasks
    # -------------------------------------------------------------------------------------------------

    def add_config(self, client: Client, content: RecordDict) -> None:
        """Add what a client must know for its masked reply: part -> name, sizes and shares."""
        config_of_parts = {}
        for masked_sum in self.sums_of(client):
            if client not in masked_sum.shares_for:
                continue
            sum_layout = masked_sum.layout
            config_of_parts[masked_sum.part] = {
                "name": masked_sum.key,
                "form": [
                    sum_layout.d,
                    sum_layout.answer_size,
                    sum_layout.max_clients,
                    sum_layout.slots,
                ],
                "uniform": self.parts[masked_sum.part].weighting == "uniform",
                "shares": steps.shares_to_json(masked_sum.shares_for[client]),
            }
        content.config_records[CONFIG][MASKS] = json.dumps(config_of_parts)

    def take(
        self, client: Client, content: RecordDict, usable_parts: Collection[str]
    ) -> dict[str, str]:
        """Add a client's masked numbers to the totals.

        Args:
            client: The client.
            content: Its reply.
            usable_parts: Names of the parts of the plan in which the rest of the reply is usable. In the
                others the client counts as one that fell silent.

        Returns:
            Name of a part -> why its numbers are not added.
        """
        reasons: dict[str, str] = {}
        for masked_sum in self.sums_of(client):
            if client not in masked_sum.shares_for or masked_sum.part not in usable_parts:
                continue
            try:
                masked_sum.server.add(client, _masked_numbers(content, masked_sum.part))
            except (Unfit, ProtocolError) as error:
                reasons[masked_sum.part] = messages.brief(error)
        return reasons

    # -- the step after the replies
    # ------------------------------------------------------------------------------

    def end(self) -> None:
        """Carry out the last step: the sums are unmasked."""
        arrived_clients: dict[Client, dict[str, list[Client]]] = {}
        for masked_sum in list(self.sums):
            server = masked_sum.server
            # Without enough shares of noise, the sum is never unmasked.
            if 0 < len(server.arrived) < min_answers(self.wire.boundary, len(masked_sum.clients)):
                self._give_up(
                    masked_sum,
                    f"{len(server.arrived)} of {len(masked_sum.clients)} clients have added noise, which is too few",
                )
                server.arrived.clear()
            clients = sorted(server.arrived)
            for client in clients:
                arrived_clients.setdefault(client, {})[masked_sum.key] = clients
        replies = self._ask_step("unmask", arrived_clients)
        # A sum that cannot be unmasked leaves zeros.
        for part_name, plan in self.parts.items():
            self._part_sums[part_name] = PartSums(
                means=torch.zeros(len(plan.models), self.wire.layout.size),
                mean_counts=np.zeros(len(plan.models), dtype=np.int64),
            )
        for masked_sum in list(self.sums):
            if masked_sum.server.arrived:
                self._unmask(masked_sum, replies)

    def _unmask(self, masked_sum: SumOfClients, replies: Mapping[Client, RecordDict]) -> None:
        """Unmask a sum with the shares in the clients' replies, and store it with those of its part."""
        unmaskings = masked_sum.answers_in(replies, steps.unmasking_from_json)
        try:
            decoded = masked_sum.layout.decode(masked_sum.server.unmasked(unmaskings))
        except ProtocolError as error:
            self._give_up(masked_sum, str(error))
            return
        self._store(masked_sum, decoded)
        if decoded.num_cut:
            clients = tuple(sorted(masked_sum.server.arrived))
            self.notes.append(note_of_cut(decoded.num_cut, clients, masked_sum.layout.bound))

    def _store(self, masked_sum: SumOfClients, decoded: Decoded) -> None:
        """Store the means of a sum and its answers with those of its part."""
        sum_layout = masked_sum.layout
        part_sums = self._part_sums[masked_sum.part]
        answer_count = len(masked_sum.server.arrived)
        has_noise = sum_layout.noise is not None
        if sum_layout.d and self.parts[masked_sum.part].private.hides_choices:
            # All clients are in this sum, and each model has a slot.
            part_sums.means[:] = torch.from_numpy(decoded.updates / answer_count).float()
            weights = decoded.weights
            part_sums.mean_counts = weights if has_noise else weights.round().astype(np.int64)
        elif sum_layout.d and decoded.weights[0] > 0:
            # With noise every client has the weight 1, and the sum of the weights is noisy.
            total_weight = answer_count if has_noise else decoded.weights[0]
            mean_update = decoded.updates[0] / total_weight
            part_sums.means[masked_sum.row] = torch.from_numpy(mean_update).float()
            part_sums.mean_counts[masked_sum.row] = answer_count
        if sum_layout.answer_size:
            earlier_answers = part_sums.answers.get(masked_sum.row, 0.0)
            part_sums.answers[masked_sum.row] = earlier_answers + decoded.answers

    def replies(
        self, part_name: str, results: Mapping[Client, ClientResult], refused: Mapping[Client, str]
    ) -> Replies:
        """Return the replies to a part of the plan: its sums, and what single replies have besides."""
        return _replies(results, refused, self._part_sums[part_name], self._deviation(part_name))

    def _deviation(self, part_name: str) -> float:
        """The standard deviation of the noise on each number of the answers in a part of the plan."""
        deviations = [0.0]
        for masked_sum in self.sums:
            noise_share = masked_sum.layout.noise
            if masked_sum.part == part_name and noise_share is not None:
                deviations.append(noise_share.answer * math.sqrt(len(masked_sum.server.arrived)))
        return max(deviations)

    def _give_up(self, masked_sum: SumOfClients, reason: str) -> None:
        """Remove a sum, with a note."""
        self.sums.remove(masked_sum)
        note_text = f"a masked sum was not formed: {reason}"
        self.notes.append(
            Note(kind="node", effect="warns", clients=masked_sum.clients, text=note_text)
        )


SumKey = tuple[str, int, bool, int, int]
"""What the clients of one sum have in common: the part of the plan, the offered row, whether an
update is sent, the numbers of an answer, and the cost of the question."""


def _clients_of_sums(
    parts: Mapping[str, Plan], clients: Collection[Client], row_length: int
) -> dict[SumKey, list[Client]]:
    """The clients of each sum. A task without an update and an answer is in none."""
    clients_of_sum: dict[SumKey, list[Client]] = {}
    for part_name, plan in parts.items():
        for client, task in sorted(plan.tasks.items()):
            question = question_of(task)
            answer_size = 0 if question is None else question.length(sketch_size(plan, row_length))
            question_cost = 1 if question is None else question.cost
            has_update = sends_update(task)
            if client in clients and (has_update or answer_size):
                sum_key = (part_name, task.offered[0], has_update, answer_size, question_cost)
                clients_of_sum.setdefault(sum_key, []).append(client)
    return clients_of_sum


def sends_update(task: Task) -> bool:
    """Whether a client sends an update in a task."""
    return task.trains and task.private.sends_update


def _masked_numbers(content: RecordDict, part_name: str) -> np.ndarray:
    """The masked numbers of a reply to a part of the plan. Raises :class:`Unfit` if it has none."""
    record_name = f"{MASKED}.{part_name}"
    if record_name not in content.array_records:
        raise Unfit("its reply has no masked numbers")
    # Any integers of 32 bits are valid numbers under masks.
    masked_numbers = messages.array_of(content.array_records[record_name], MASKED)
    if masked_numbers.dtype != np.uint32:
        raise Unfit("its masked numbers are not integers of 32 bits")
    return masked_numbers


# -- replies
# --------------------------------------------------------------------------------------------------------------


def read_answer(
    content: RecordDict, metrics: Any, plan: Plan, task: Task, row_length: int, task_place: int
) -> tuple[np.ndarray | None, int | None]:
    """Read the answer to a task's question from a reply without masks, or the client's cell.

    Args:
        content: The reply, from an unknown sender.
        metrics: Its metrics.
        plan: The plan.
        task: The task, which has a question.
        row_length: The number of parameters.
        task_place: The place of the task among the client's tasks.

    Returns:
        The numbers of the answer, and the client's cell: None for what the client was not asked, or
        does not know.

    Raises:
        Unfit: The answer cannot be used.
    """
    question = question_of(task)
    assert question is not None
    if question.asks_cell:
        cell_name = messages.of_task(CELL, task_place)
        if plan.private.hides_choices or cell_name not in metrics:
            return None, None
        client_cell = messages.count_of(metrics, cell_name, "cell", minimum=0)
        if client_cell >= question.count:
            raise Unfit(f"it says that it is in cell {client_cell} of {question.count}")
        return None, client_cell
    answer_name = messages.of_task(ANSWER, task_place)
    if answer_name not in content.array_records:
        return None, None
    answer_shape = (question.length(sketch_size(plan, row_length)),)
    answer_record = content.array_records[answer_name]
    answer_numbers = messages.array_of(answer_record, ANSWER, answer_shape).astype(np.float64)
    # NaN fails, too.
    if not (np.abs(answer_numbers) <= 1 + MAX_ROUNDING_ERROR).all():
        raise Unfit("its answer to a question has numbers that are not between -1 and 1")
    flaw = flaw_of(question, answer_numbers)
    if flaw is not None:
        raise Unfit(flaw)
    return answer_numbers, None


def added_up(
    plan: Plan,
    results: Mapping[Client, ClientResult],
    refused: Mapping[Client, str],
    wire: Wire,
    robust: Robust,
    training: Training,
) -> Replies:
    """Combine the plausible replies to a plan that needs only sums, without masks. Everything but the sums is dropped.

    Args:
        plan: The plan.
        results: Client -> its result after parsing.
        refused: Client -> why its reply was refused.
        wire: The wire between clients and server.
        robust: Limits on the effect of one client on the others.
        training: Training settings of the experiment.
    """
    # Without masks the server sees single updates: it limits them, and adds them up at once.
    plausible = plausible_results(plan, results, wire, robust, training)
    limits = plausible.limits
    refused = {**refused, **limits.refused}
    results = plausible.results
    clients = list(results)
    running_means = Means(len(plan.models), wire.layout.size, robust)
    # The mean update of each model, over the clients that have trained from it.
    trained_clients = [client for client in clients if results[client].updates]
    if trained_clients:
        limited_updates = []
        for client in trained_clients:
            scale_factor = limits.scaled.get(client, 1.0)
            limited_updates.append(results[client].updates[0] * scale_factor)
        example_counts = np.array([plausible.counted[client] for client in trained_clients])
        running_means.add(
            torch.stack(limited_updates),
            amounts(example_counts, plan.weighting),
            [results[client].chosen for client in trained_clients],
        )
    answers_by_row = _answer_sums(plan, results, robust.hostile)
    mean_updates = running_means.means
    if plan.private.hides_choices:
        # The server divides by all clients that answered: it does not know who chose a model.
        answering_shares = torch.from_numpy(running_means.counts / max(len(clients), 1)).float()
        mean_updates = mean_updates * answering_shares[:, None]
        results = {client: replace(result, chosen=()) for client, result in results.items()}
    replies = _replies(
        results, refused, PartSums(mean_updates, running_means.counts, answers_by_row)
    )
    return replace(replies, limits=plausible.applied_limits())


def _answer_sums(
    plan: Plan, results: Mapping[Client, ClientResult], hostile: int
) -> dict[int, np.ndarray]:
    """First offered row -> the sum of the clients' answers, limited by each other."""
    answers_of_row: dict[int, dict[Client, np.ndarray]] = {}
    for client, result in sorted(results.items()):
        if result.answer is not None:
            offered_row = plan.tasks[client].offered[0]
            answers_of_row.setdefault(offered_row, {})[client] = result.answer
    answer_sums = {}
    for offered_row, answers in answers_of_row.items():
        question = question_of(plan.tasks[min(answers)])
        assert question is not None
        counted_answers = limited_answers(question, answers, hostile)
        answer_sums[offered_row] = np.sum(list(counted_answers.values()), axis=0)
    return answer_sums


def _replies(
    results: Mapping[Client, ClientResult],
    refused: Mapping[Client, str],
    part_sums: PartSums,
    deviation: float = 0.0,
) -> Replies:
    """The replies with sums over clients, and what single replies have besides.

    Args:
        results: Client -> its result after parsing.
        refused: Client -> why its reply was refused.
        part_sums: The sums.
        deviation: Standard deviation of the noise on the answers.
    """
    clients = tuple(sorted(results))
    # What a client may say for itself: the models that it chose, and its cell.
    chosen = tuple(results[client].chosen for client in clients)
    client_cells = {}
    for client in clients:
        client_cell = results[client].cell
        if client_cell is not None:
            client_cells[client] = client_cell
    return Replies(
        clients=clients,
        examples=np.ones(len(clients), dtype=np.int64),
        chosen=chosen if any(chosen) else (),
        refused=refused,
        means=part_sums.means,
        mean_counts=part_sums.mean_counts,
        sums=QuestionSums(by_row=part_sums.answers, cells=client_cells, deviation=deviation),
    )
