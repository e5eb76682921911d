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
from coterie.engines.exchange import needed, products
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
from coterie.robust import Robust, lengths, steps_of
from coterie.training import (
    PERSONAL_NOT_FINITE,
    UPDATE_NOT_FINITE,
    ClientResult,
    all_finite,
)


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
        usable = {part: result for part, result in self.results.items() if part not in reasons}
        return replace(self, results=usable, refused={**self.refused, **reasons})

    def losses_of(self, parts: Collection[str]) -> HeldOutLosses | None:
        """Return the sums of held-out losses over the models of some parts; None if there are none."""
        if self.held_out_losses is None:
            return None
        models = self.held_out_losses.models
        positions = [position for position, (part, _) in enumerate(models) if part in parts]
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
            parts = {name: part for name, part in self.plan.leaves() if client in part.tasks}
            return self._read(reply, parts, client)
        except Unfit:
            raise
        except Exception as error:
            # An unforeseen error of one client must not stop the others.
            raise Unfit(f"its reply cannot be read: {type(error).__name__} {error}") from error

    def _read(self, reply: Message, parts: Mapping[str, Plan], client: Client) -> ParsedReply:
        if reply.has_error():
            raise Unfit(f"its app failed: {reply.error.reason or reply.error.code}")
        if not reply.has_content():
            raise Unfit("its reply is empty")
        content = reply.content
        tasks = {name: part.tasks[client] for name, part in parts.items()}
        # The client must protect its updates as the server expects it.
        if any(task.trains for task in tasks.values()):
            difference = boundary_check.unlike(content, self.wire.boundary, self.secret)
            if difference:
                raise Unfit(difference)
        # What a reply has once: the number of examples, and held-out losses of all models.
        metrics = messages.only(content.metric_records, METRICS_RECORD, "metric records")
        examples = messages.count_of(metrics, "num-examples", "number of examples")
        held_out_losses = self._held_out_losses(metrics, tasks)
        # A result that cannot be used is refused in its part of the plan alone.
        results: dict[str, ClientResult] = {}
        refused: dict[str, str] = {}
        for place, (name, part) in enumerate(parts.items()):
            try:
                result = self._read_result(content, metrics, part, tasks[name], place)
                results[name] = replace(result, examples=self.wire.examples(examples))
            except Unfit as error:
                refused[name] = messages.brief(error)
        return ParsedReply(results, refused, held_out_losses)

    def _held_out_losses(self, metrics: Any, tasks: Mapping[str, Task]) -> HeldOutLosses | None:
        """The sums of held-out losses over the models of all tasks that ask for them."""
        models: list[Candidate] = []
        for name, task in tasks.items():
            if task.holdout.report_losses:
                # The model from which the client starts, and its personal one.
                models.append((name, 0))
                if task.personal is not None:
                    models.append((name, 1))
        if not models:
            return None
        losses = messages.held_out_losses_of(metrics, models, self.most_examples)
        flaw = self.plausible.flaw_of_held(losses.sums, losses.products, losses.count)
        if flaw:
            raise Unfit(flaw)
        return losses

    def _read_result(
        self, content: Any, metrics: Any, part: Plan, task: Task, place: int
    ) -> ClientResult:
        """The result of the task at a place among the client's tasks."""
        if metrics.get(messages.of_task(PERSONAL, place), 1) != 1:
            raise Unfit(PERSONAL_NOT_FINITE)
        masks = self.wire.boundary.masks
        chosen_positions: list[int] = []
        if not (part.private.hides_choices and masks):
            chosen_positions = _chosen_positions(metrics, task, place)
        losses: tuple[float, ...] = ()
        accuracies: tuple[float, ...] = ()
        if part.need != "sums" and task.measure:
            losses, accuracies = self._measured(metrics, task, place)
        flaw = self.plausible.flaw(losses, accuracies, str(task.measure))
        if flaw:
            raise Unfit(flaw)
        updates: tuple[Tensor, ...] = ()
        if task.trains and task.private.sends_update and not masks:
            updates = self._updates(content, part, task, chosen_positions, place)
        stored_at = messages.whole(metrics.get(messages.of_task(STORED_AT, place)))
        answer: np.ndarray | None = None
        cell: int | None = None
        if task.private.question is not None:
            answer, cell = flower_sums().read_answer(
                content, metrics, part, task, self.wire.layout.size, place
            )
        return ClientResult(
            chosen=tuple(task.offered[position] for position in chosen_positions),
            losses=losses,
            accuracies=accuracies,
            trained=bool(updates),
            updates=updates,
            stored_at=-1 if stored_at is None else stored_at,
            answer=answer,
            cell=cell,
        )

    def _measured(
        self, metrics: Any, task: Task, place: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The client's losses and accuracies under the offered models."""
        losses = messages.numbers(metrics, messages.of_task("losses", place))
        accuracies = messages.numbers(metrics, messages.of_task("accuracies", place))
        if len(losses) != len(task.offered) or len(accuracies) != len(task.offered):
            raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
        # A client whose main metric is no share, such as R2 or an error, states NaN as its accuracy.
        stated_accuracies = list(accuracies)
        if not self.plausible.share:
            stated_accuracies = [value for value in accuracies if not math.isnan(value)]
        if not all(abs(value) <= MAX_MEASURED for value in (*losses, *stated_accuracies)):
            measured = f"the losses or accuracies it measured on its {task.measure} data"
            raise Unfit(
                f"{measured} must be finite single-precision numbers; it may have no such data"
            )
        return tuple(map(float, losses)), tuple(map(float, accuracies))

    def _updates(
        self, content: Any, part: Plan, task: Task, chosen_positions: Sequence[int], place: int
    ) -> tuple[Tensor, ...]:
        """The update of a task, or those of both halves of the client's data."""
        layout = self.wire.layout
        keep_mask = layout.mask(task.local_layers) if task.local_layers else None
        arrays = content.array_records
        first_name, second_name = messages.updates_of(place)
        record_names = [first_name]
        # A client with too few examples sends no halves.
        if task.halves and part.need != "sums" and second_name in arrays:
            record_names.append(second_name)
        if self.wire.boundary.compress != "none":
            updates = [self._decompressed(arrays, name, keep_mask) for name in record_names]
        elif first_name in arrays or place:
            if first_name not in arrays:
                raise Unfit(f"its reply has no array record {first_name!r}")
            updates = [
                messages.unpacked(arrays[name], layout, may_lack=keep_mask) for name in record_names
            ]
        else:
            # An app that does not know Coterie sends its trained model.
            trained_model = messages.unpacked(
                messages.only(arrays, ARRAYS, "array records"), layout
            )
            chosen_rows = [task.offered[position] for position in chosen_positions]
            updates = [trained_model - part.models[chosen_rows].mean(0)]
        if keep_mask is not None:
            updates = [update.masked_fill(keep_mask, 0.0) for update in updates]
        if not all_finite(_with_sketches(updates, part)):
            raise Unfit(UPDATE_NOT_FINITE)
        for update in updates:
            if problem := self.wire.unclipped(update, task):
                raise Unfit(problem)
        return tuple(updates)

    def _decompressed(self, arrays: Any, name: str, keep_mask: Tensor | None) -> Tensor:
        record = arrays.get(name, {})
        try:
            tensors = {key: torch.from_numpy(messages.array_of(record, key)) for key in record}
            return self.wire.unpack(tensors, keep_mask)
        except Unfit:
            raise
        except (ValueError, TypeError) as error:
            # TypeError: an array of a type that PyTorch does not have.
            raise Unfit(
                f"its update is not compressed by {self.wire.boundary.compress}: {error}"
            ) from None


def _chosen_positions(metrics: Any, task: Task, place: int) -> list[int]:
    """The positions of the models that the client chose; an app without a choice need not report it."""
    stated = messages.numbers(metrics, messages.of_task("chosen", place))
    count = len(task.offered)
    if not stated and task.choose == count:
        return list(range(count))
    valid_positions = set()
    for value in stated[:count]:
        position = messages.whole(value)
        if position is not None and position < count:
            valid_positions.add(position)
    if not len(stated) == len(valid_positions) == task.choose:
        raise Unfit(f"it chose {list(stated[:9])} of {count} models")
    return [int(value) for value in stated]


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
    # Limits: a claimed number of examples counts up to a bound, and a long update is scaled down or
    # refused.
    claimed = {client: results[client].examples for client in sorted(results)}
    counted = robust.counted(claimed)
    client_updates = {client: result.updates for client, result in results.items()}
    client_updates = {client: updates for client, updates in client_updates.items() if updates}
    chosen = {client: results[client].chosen for client in client_updates}
    steps = {
        client: steps_of(plan.tasks[client], training, counted[client]) for client in client_updates
    }
    limits = robust.limited(lengths(plan, client_updates, chosen, wire, steps), claimed)
    clients = [client for client in claimed if client not in limits.refused]
    # The update of each client that counts, and those of both halves.
    size = wire.layout.size
    mean_updates = []
    half_updates: dict[Client, tuple[Tensor, ...]] = {}
    any_trained = False
    for client in clients:
        factor = limits.scaled.get(client, 1.0)
        updates = tuple(update * factor for update in results[client].updates)
        mean_updates.append(_mean(updates, size))
        any_trained = any_trained or bool(updates)
        if plan.tasks[client].halves and len(updates) == 2:
            half_updates[client] = updates
    limited_claims = {
        client: claimed[client] for client in clients if claimed[client] > counted[client]
    }
    updates_of_all: Tensor | None = None
    if any_trained:
        updates_of_all = torch.stack(mean_updates)
    elif not clients:
        updates_of_all = torch.empty(0, size)
    replies = Replies(
        clients=tuple(clients),
        examples=np.array([counted[client] for client in clients], dtype=np.int64),
        averaging=robust,
        limits=AppliedLimits(claimed=limited_claims, scaled=limits.scaled),
        chosen=tuple(results[client].chosen for client in clients),
        losses=tuple(results[client].losses for client in clients),
        accuracies=tuple(results[client].accuracies for client in clients),
        refused={**refused, **limits.refused},
        updates=updates_of_all,
        halves=_halved(plan, half_updates),
    )
    return needed(plan, replies)


def _halved(plan: Plan, half_updates: Mapping[Client, Sequence[Tensor]]) -> HalvedUpdates | None:
    """The updates of the clients that sent both halves; None without such clients."""
    gram = products(plan, half_updates)
    if gram is None:
        return None
    second_updates = None
    if plan.second_halves:
        second_updates = torch.stack([second for _, second in half_updates.values()])
    return HalvedUpdates(clients=tuple(half_updates), gram=gram, second=second_updates)


def _mean(updates: Sequence[Tensor], size: int) -> Tensor:
    """The mean of both halves' updates, or the single update; zeros without one."""
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(size)
