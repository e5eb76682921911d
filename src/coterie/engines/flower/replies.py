"""Reading the clients' replies: nothing in a reply is trusted, and a refusal has a reason in one sentence.

The replies that can be used are then combined to what the method gets.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from coterie.boundary import Wire
from coterie.clustering.sketch import unchecked_sketch
from coterie.core import (
    AppliedLimits,
    Candidate,
    Client,
    HalvedUpdates,
    HeldOutLosses,
    Plan,
    Replies,
    Task,
    Training,
)
from coterie.engines.exchange import needed, products, replies_of_results
from coterie.engines.flower import boundary_check, messages
from coterie.engines.flower.messages import (
    ARRAYS,
    MAX_MEASURED,
    METRICS_RECORD,
    PERSONAL,
    STORED_AT,
    Unfit,
)
from coterie.engines.flower.sums import flower_sums
from coterie.engines.plausible import Plausible
from coterie.robust import Length, Limited, Robust, lengths, steps_of
from coterie.training import (
    PERSONAL_NOT_FINITE,
    UPDATE_NOT_FINITE,
    ClientResult,
    all_finite,
)
from coterie.training.statistics import sizes


@dataclass(frozen=True)
class ParsedReply:
    """One client's reply to its tasks of all parts of a plan, after parsing.

    Attributes:
        results: Name of a part -> the result of its task.
        refused: Name of a part -> why the result of its task cannot be used.
        held_out_losses: The sums of held-out losses over the models of all parts. None if no task
            asks for them.
    """

    results: Mapping[str, ClientResult]
    refused: Mapping[str, str]
    held_out_losses: HeldOutLosses | None

    def without(self, reasons: Mapping[str, str]) -> ParsedReply:
        """Return the reply without the results of some parts.

        Args:
            reasons: Name of a part -> why the result of its task cannot be used.
        """
        usable_results = {
            part_name: result
            for part_name, result in self.results.items()
            if part_name not in reasons
        }
        return replace(self, results=usable_results, refused={**self.refused, **reasons})

    def losses_of(self, part_names: Collection[str]) -> HeldOutLosses | None:
        """Return the sums of held-out losses over the models of some parts; None if there are none."""
        if self.held_out_losses is None:
            return None
        models = self.held_out_losses.models
        positions = [
            position for position, (part_name, _) in enumerate(models) if part_name in part_names
        ]
        if not positions:
            return None
        return replace(
            self.held_out_losses,
            models=tuple(models[position] for position in positions),
            sums=self.held_out_losses.sums[positions],
            products=self.held_out_losses.products[np.ix_(positions, positions)],
        )


@dataclass(frozen=True)
class ReplyReader:
    """Reads the replies of clients to the tasks of a plan.

    Attributes:
        plan: The plan.
        wire: The wire between clients and server.
        secret: Digest of the clients' secret. None if it is unknown.
        most_examples: Greatest number of held-out examples.
        plausible: What is known of the numbers that clients measure.
    """

    plan: Plan
    wire: Wire
    secret: str | None
    most_examples: int
    plausible: Plausible

    def read(self, reply: Message, client: Client) -> ParsedReply:
        """Parse a client's reply. No content of a reply can raise any other error than :class:`Unfit`.

        Args:
            reply: The message.
            client: The client.

        Returns:
            The reply.

        Raises:
            Unfit: The reply cannot be used, in no part of the plan.
        """
        try:
            # The order of the parts is that of the client's tasks in its message.
            parts = {
                part_name: part for part_name, part in self.plan.leaves() if client in part.tasks
            }
            return self._read(reply, parts, client)
        except Unfit:
            raise
        except Exception as error:
            # An unforeseen error of one client must not stop the others.
            raise Unfit(f"its reply cannot be read: {type(error).__name__} {error}") from error

    def _read(
        self, reply: Message, client_parts: Mapping[str, Plan], client: Client
    ) -> ParsedReply:
        # A reply without content says why the client could not do its tasks.
        if reply.has_error():
            raise Unfit(f"its app failed: {messages.failure(reply.error)}")
        if not reply.has_content():
            raise Unfit("its reply is empty")
        reply_content = reply.content
        client_tasks = {part_name: part.tasks[client] for part_name, part in client_parts.items()}
        # The client must protect its updates as the server expects it.
        if any(task.trains for task in client_tasks.values()):
            difference = boundary_check.unlike(reply_content, self.wire.boundary, self.secret)
            if difference:
                raise Unfit(difference)
        # What a reply has once: the number of examples, and held-out losses of all models.
        reply_metrics = messages.only(
            reply_content.metric_records, METRICS_RECORD, "metric records"
        )
        example_count = messages.count_of(reply_metrics, "num-examples", "number of examples")
        held_out_losses = self._held_out_losses(reply_metrics, client_tasks)
        # A result that cannot be used is refused in its part of the plan alone.
        results: dict[str, ClientResult] = {}
        refused: dict[str, str] = {}
        for task_place, (part_name, part) in enumerate(client_parts.items()):
            try:
                result = self._read_result(
                    reply_content, reply_metrics, part, client_tasks[part_name], task_place
                )
                results[part_name] = replace(result, examples=self.wire.examples(example_count))
            except Unfit as error:
                refused[part_name] = messages.brief(error)
        return ParsedReply(results, refused, held_out_losses)

    def _held_out_losses(
        self, reply_metrics: Any, client_tasks: Mapping[str, Task]
    ) -> HeldOutLosses | None:
        """The sums of held-out losses over the models of all tasks that ask for them."""
        # The client reports losses in the order of its tasks.
        models: list[Candidate] = []
        for part_name, task in client_tasks.items():
            for model_number in task.measured_models:
                models.append((part_name, model_number))
        if not models:
            return None
        # The numbers must be sums of losses that the objective can have.
        held_out_losses = messages.held_out_losses_of(reply_metrics, models, self.most_examples)
        flaw = self.plausible.flaw_of_held(
            held_out_losses.sums, held_out_losses.products, held_out_losses.count
        )
        if flaw:
            raise Unfit(flaw)
        return held_out_losses

    def _read_result(
        self, reply_content: Any, reply_metrics: Any, part: Plan, task: Task, task_place: int
    ) -> ClientResult:
        """The result of the task at a place among the client's tasks."""
        # The client reports 0 if its personal model is not finite.
        if reply_metrics.get(messages.of_task(PERSONAL, task_place), 1) != 1:
            raise Unfit(PERSONAL_NOT_FINITE)
        # Which models the client chose. Under masks, a plan may hide this from the server.
        masks = self.wire.boundary.masks
        chosen_positions: list[int] = []
        if not (part.private.hides_choices and masks):
            chosen_positions = _chosen_positions(reply_metrics, task, task_place)
        # The losses of the offered models, if the plan asks for measurements of single clients.
        losses: tuple[float, ...] = ()
        accuracies: tuple[float, ...] = ()
        if part.need != "sums" and task.measure:
            losses, accuracies = self._measured(reply_metrics, task, task_place)
        flaw = self.plausible.flaw(losses, accuracies, str(task.measure))
        if flaw:
            raise Unfit(flaw)
        # The update. Under masks it is a part of the sums, which are read elsewhere.
        updates: tuple[Tensor, ...] = ()
        if task.trains and task.private.sends_update and not masks:
            updates = self._updates(reply_content, part, task, chosen_positions, task_place)
        # The exchange whose own values the client started from, and its answer to a question.
        stored_at = messages.whole(reply_metrics.get(messages.of_task(STORED_AT, task_place)))
        answer_numbers: np.ndarray | None = None
        client_cell: int | None = None
        if task.private.question is not None:
            answer_numbers, client_cell = flower_sums().read_answer(
                reply_content, reply_metrics, part, task, self.wire.layout.size, task_place
            )
        return ClientResult(
            chosen=tuple(task.offered[position] for position in chosen_positions),
            losses=losses,
            accuracies=accuracies,
            trained=bool(updates),
            updates=updates,
            stored_at=-1 if stored_at is None else stored_at,
            answer=answer_numbers,
            cell=client_cell,
            statistics=messages.statistics_of(
                reply_metrics, task, task_place, sizes(self.wire.layout) or {}
            ),
        )

    def _measured(
        self, reply_metrics: Any, task: Task, task_place: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The client's losses and accuracies under the offered models."""
        losses = messages.numbers(reply_metrics, messages.of_task("losses", task_place))
        accuracies = messages.numbers(reply_metrics, messages.of_task("accuracies", task_place))
        if len(losses) != len(task.offered) or len(accuracies) != len(task.offered):
            raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
        # A client whose main metric is no share, such as R2 or an error, states NaN as its accuracy.
        stated_accuracies = list(accuracies)
        if not self.plausible.share:
            stated_accuracies = [
                measured_value for measured_value in accuracies if not math.isnan(measured_value)
            ]
        if not all(
            abs(measured_value) <= MAX_MEASURED for measured_value in (*losses, *stated_accuracies)
        ):
            measured = f"the losses or accuracies it measured on its {task.measure} data"
            raise Unfit(
                f"{measured} must be finite single-precision numbers; it may have no such data"
            )
        return tuple(map(float, losses)), tuple(map(float, accuracies))

    def _updates(
        self,
        reply_content: Any,
        part: Plan,
        task: Task,
        chosen_positions: Sequence[int],
        task_place: int,
    ) -> tuple[Tensor, ...]:
        """The update of a task, or those of both halves of the client's data."""
        layout = self.wire.layout
        keep_mask = layout.mask(task.local_layers) if task.local_layers else None
        # The names of the records with the update, or with those of both halves.
        array_records = reply_content.array_records
        first_name, second_name = messages.updates_of(task_place)
        record_names = [first_name]
        # A client with too few examples sends no halves.
        if task.halves and part.need != "sums" and second_name in array_records:
            record_names.append(second_name)
        # The rows of these records. The layers that stay at the client may be missing, as NaN.
        if self.wire.boundary.compress != "none":
            updates = [
                self._decompressed(array_records, record_name, keep_mask)
                for record_name in record_names
            ]
        elif first_name in array_records or task_place:
            if first_name not in array_records:
                raise Unfit(f"its reply has no array record {first_name!r}")
            updates = [
                messages.unpacked(array_records[record_name], layout, may_lack=keep_mask)
                for record_name in record_names
            ]
        else:
            # An app that does not know Coterie sends its trained model.
            trained_model = messages.unpacked(
                messages.only(array_records, ARRAYS, "array records"), layout
            )
            chosen_rows = [task.offered[position] for position in chosen_positions]
            updates = [trained_model - part.models[chosen_rows].mean(0)]
        # In the layers that stay at the client, the server counts no change.
        if keep_mask is not None:
            updates = [update.masked_fill(keep_mask, 0.0) for update in updates]
        # An update that is not finite, or longer than the client's boundary allows, would spoil the
        # mean.
        if not all_finite(_with_sketches(updates, part)):
            raise Unfit(UPDATE_NOT_FINITE)
        for update in updates:
            if problem := self.wire.unclipped(update, task):
                raise Unfit(problem)
        return tuple(updates)

    def _decompressed(
        self, array_records: Any, record_name: str, keep_mask: Tensor | None
    ) -> Tensor:
        array_record = array_records.get(record_name, {})
        try:
            tensors = {
                tensor_name: torch.from_numpy(messages.array_of(array_record, tensor_name))
                for tensor_name in array_record
            }
            return self.wire.unpack(tensors, keep_mask)
        except Unfit:
            raise
        except (ValueError, TypeError) as error:
            # TypeError: an array of a type that PyTorch does not have.
            raise Unfit(
                f"its update is not compressed by {self.wire.boundary.compress}: {error}"
            ) from None


def _chosen_positions(reply_metrics: Any, task: Task, task_place: int) -> list[int]:
    """The positions of the models that the client chose; an app without a choice need not report it."""
    # Without a choice, all offered models count as chosen.
    stated_positions = messages.numbers(reply_metrics, messages.of_task("chosen", task_place))
    offered_count = len(task.offered)
    if not stated_positions and task.choose == offered_count:
        return list(range(offered_count))
    # The stated positions must be distinct, valid, and as many as the task asks for.
    valid_positions = set()
    for stated_position in stated_positions[:offered_count]:
        position = messages.whole(stated_position)
        if position is not None and position < offered_count:
            valid_positions.add(position)
    if not len(stated_positions) == len(valid_positions) == task.choose:
        raise Unfit(f"it chose {list(stated_positions[:9])} of {offered_count} models")
    return [int(stated_position) for stated_position in stated_positions]


def _with_sketches(updates: Sequence[Tensor], plan: Plan) -> list[Tensor]:
    """The updates, and their sketches if the Gram matrix is computed from these."""
    if plan.sketch is None:
        return list(updates)
    columns = torch.stack(tuple(updates))[:, plan.columns or slice(None)]
    return [*updates, *unchecked_sketch(columns, plan.sketch)]


# ----------------------------------------------------------------------------------------------------
# What the method gets of all replies to a part of a plan.


def gathered(
    plan: Plan,
    results: Mapping[Client, ClientResult],
    refused: Mapping[Client, str],
    wire: Wire,
    robust: Robust,
    training: Training,
) -> Replies:
    """Combine all usable and plausible replies in the form that the plan needs for a step.

    Args:
        plan: The plan.
        results: Client -> its result after parsing.
        refused: Client -> why its reply was refused.
        wire: The wire between clients and server.
        robust: Bounds on the influence of one client on the others.
        training: Training settings of the experiment.

    Returns:
        The replies.
    """
    plausible = plausible_results(plan, results, wire, robust, training)
    counted_results = plausible.results
    limits = plausible.limits
    # The update of each client that counts, and those of both halves.
    row_length = wire.layout.size
    mean_updates = []
    half_updates: dict[Client, tuple[Tensor, ...]] = {}
    any_trained = False
    for client, result in counted_results.items():
        scale_factor = limits.scaled.get(client, 1.0)
        updates = tuple(update * scale_factor for update in result.updates)
        mean_updates.append(_mean(updates, row_length))
        any_trained = any_trained or bool(updates)
        if plan.tasks[client].halves and len(updates) == 2:
            half_updates[client] = updates
    # None means that nobody has trained, although clients have answered.
    updates_of_all: Tensor | None = None
    if any_trained:
        updates_of_all = torch.stack(mean_updates)
    elif not counted_results:
        updates_of_all = torch.empty(0, row_length)
    replies = replies_of_results(
        counted_results,
        claimed=plausible.claimed,
        counted=plausible.counted,
        refused={**refused, **limits.refused},
        scaled=limits.scaled,
        averaging=robust,
        halves=_halved(plan, half_updates),
    )
    return needed(plan, replace(replies, updates=updates_of_all))


@dataclass(frozen=True)
class PlausibleResults:
    """The results of an exchange within the limits on single clients.

    Attributes:
        results: Client -> its result, in order, without refused ones; updates are not scaled yet.
        claimed: Client -> the number of examples that it claims.
        counted: Client -> the number of examples that count.
        limits: Whose updates are refused or scaled.
    """

    results: dict[Client, ClientResult]
    claimed: dict[Client, int]
    counted: dict[Client, int]
    limits: Limited

    def applied_limits(self) -> AppliedLimits:
        """Return what the limits changed in the results that count."""
        limited_claims: dict[Client, int] = {}
        limited_counts: dict[Client, int] = {}
        for client in self.results:
            if self.claimed[client] > self.counted[client]:
                limited_claims[client] = self.claimed[client]
                limited_counts[client] = self.counted[client]
        return AppliedLimits(
            claimed=limited_claims, scaled=self.limits.scaled, counted=limited_counts
        )


def plausible_results(
    plan: Plan,
    results: Mapping[Client, ClientResult],
    wire: Wire,
    robust: Robust,
    training: Training,
) -> PlausibleResults:
    """Limit what single clients claim and send; arguments as for :func:`gathered`."""
    # A claimed number of examples counts up to a bound.
    claimed = {client: results[client].examples for client in sorted(results)}
    counted = robust.counted(claimed)
    # A long update is scaled down, or refused.
    limits = robust.limited(_update_lengths(plan, results, wire, training, counted), claimed)
    plausible: dict[Client, ClientResult] = {}
    for client in claimed:
        if client not in limits.refused:
            plausible[client] = results[client]
    return PlausibleResults(plausible, claimed, counted, limits)


def _update_lengths(
    plan: Plan,
    results: Mapping[Client, ClientResult],
    wire: Wire,
    training: Training,
    counted: Mapping[Client, int],
) -> dict[Client, Length]:
    """Compute the lengths of the updates of clients that trained, and the lengths to expect of them.

    The expected length depends on the models from which a client started, and on its steps.

    Args:
        plan: The plan.
        results: Client -> the result of its task.
        wire: The wire between clients and server.
        training: Training settings of the experiment.
        counted: Client -> the number of examples that it counts for.
    """
    client_updates: dict[Client, tuple[Tensor, ...]] = {}
    chosen_models: dict[Client, tuple[int, ...]] = {}
    step_counts: dict[Client, float] = {}
    for client, result in results.items():
        if result.updates:
            client_updates[client] = result.updates
            chosen_models[client] = result.chosen
            step_counts[client] = steps_of(plan.tasks[client], training, counted[client])
    return lengths(plan, client_updates, chosen_models, wire, step_counts)


def _halved(plan: Plan, half_updates: Mapping[Client, Sequence[Tensor]]) -> HalvedUpdates | None:
    """The updates of the clients that sent both halves; None without such clients."""
    gram_matrix = products(plan, half_updates)
    if gram_matrix is None:
        return None
    second_updates = None
    if plan.second_halves:
        second_updates = torch.stack([second_update for _, second_update in half_updates.values()])
    return HalvedUpdates(clients=tuple(half_updates), gram=gram_matrix, second=second_updates)


def _mean(updates: Sequence[Tensor], row_length: int) -> Tensor:
    """The mean of both halves' updates, or the single update; zeros without one."""
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(row_length)
