"""One exchange with the clients of this machine, or of a Ray cluster: what the server keeps of their results.

A plan says what a method needs of the replies, and the server gets no more than that:
:func:`rows_exchange` keeps every update, :func:`means_exchange` adds updates to means as they
arrive, and a :class:`SumsExchange` has nothing of a single client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie import training as local
from coterie.clustering import gram
from coterie.clustering.sketch import unchecked_sketch
from coterie.core import (
    CHUNK,
    HALVES,
    OPTIMIZER,
    AppliedLimits,
    Candidate,
    Client,
    HalvedUpdates,
    HeldOutLosses,
    Kept,
    Means,
    Plan,
    Position,
    Replies,
    Statistic,
    Task,
    amounts,
    group_means,
)
from coterie.engines.clock import Clock
from coterie.engines.pool import ClientPool
from coterie.extensions import provided
from coterie.robust import Robust, Usual
from coterie.settings import SettingError
from coterie.training import ClientResult

WINDOW_BYTES = 1 << 28
"""Bytes of replies held in memory at a time if the plan needs only their means."""

ExchangeResult = tuple[Replies, Kept]
"""The replies to a plan, and the values that each client keeps afterwards."""


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
    # A plan that the settings do not allow fails before a client trains.
    pool.robust.check_plan(plan, pool.wire.boundary.masks)
    exchange_key = (seed, position.exchange, position.round)
    kept_values = dict(position.kept)
    replies: dict[str, Replies] = {}
    held_losses_of_parts: dict[str, Mapping[Client, np.ndarray]] = {}
    # Carry out the parts one after the other, each with what its clients keep for it.
    for part_number, (part_name, part) in enumerate(plan.leaves()):
        own_values = kept_values.get(part_name, {})
        optimizer_states = kept_values.get(part_name + OPTIMIZER, {})
        # Of a single client, nothing is in the replies. Behind masks not even the server sees it.
        has_masks = pool.wire.boundary.masks
        if part.need == "sums" or has_masks:
            sums_exchange = sums_extension()
            half_sketches = kept_values.get(part_name + HALVES, {})
            part_as_taken = sums_exchange.as_taken(part, half_sketches)
            collected = Collected(
                pool,
                part_as_taken,
                own_values,
                optimizer_states,
                exchange_key,
                part_number,
                clock,
                screens=not has_masks,
            )
            replies[part_name], kept_values[part_name + HALVES] = sums_exchange.carry_out(
                collected, half_sketches
            )
        else:
            collected = Collected(
                pool,
                part,
                own_values,
                optimizer_states,
                exchange_key,
                part_number,
                clock,
                screens=True,
            )
            # Single updates are in memory together if the plan needs them, or if they fit.
            at_once = collected.window >= len(part.tasks)
            if at_once and part.sketch is None and not pool.updates_stay(part):
                replies[part_name] = rows_exchange(collected)
            else:
                replies[part_name] = means_exchange(collected)
        kept_values[part_name] = collected.kept
        kept_values[part_name + OPTIMIZER] = collected.optimizer_states
        held_losses_of_parts[part_name] = collected.held_losses
        if plan.parts and replies[part_name].updates is not None:
            # The next part uses the same memory.
            replies[part_name] = replace(
                replies[part_name], updates=replies[part_name].all_updates.clone()
            )
    # Values of parts that ended are dropped, also those of parts in them.
    ended_prefixes = tuple(f"{part_name}/" for part_name in plan.all_ended_parts)
    still_kept = {
        part_name: values_of_part
        for part_name, values_of_part in kept_values.items()
        if values_of_part and not f"{part_name}/".startswith(ended_prefixes)
    }
    tasks_of_parts = {part_name: part.tasks for part_name, part in plan.leaves()}
    held_out_losses = held_losses(held_losses_of_parts, tasks_of_parts)
    return together(plan, replies, held_out_losses), still_kept


# -- the three kinds of an exchange
# ------------------------------------------------------------------------------------


def rows_exchange(collected: Collected) -> Replies:
    """Carry out a plan of which all updates are in memory at once.

    Args:
        collected: Collects the results.

    Returns:
        The replies: rows, or what :func:`needed` makes of them.
    """
    for results in collected.waves():
        with collected.clock("server"):
            collected.average_halves(results)
            collected.keep_own_values(results)
    with collected.clock("server"):
        updates = None
        if collected.any_update:
            updates = collected.pool.rows.updates(collected.slots)
        return needed(collected.plan, replace(collected.replies(), updates=updates))


def means_exchange(collected: Collected) -> Replies:
    """Carry out a plan that needs means or sketches: updates are averaged as they arrive.

    Args:
        collected: Collects the results.

    Returns:
        The replies with means, and with sketches or their Gram matrix if the plan asks for them.
    """
    pool = collected.pool
    plan = collected.plan
    # The updates of a wave are added to the means, and then overwritten by those of the next one.
    model_means = Means(len(plan.models), pool.layout.size, pool.robust)
    sketches: list[Tensor] = []
    for results in collected.waves():
        with collected.clock("server"):
            collected.average_halves(results)
            collected.keep_own_values(results)
            collected.add_to_means(results, model_means)
            if plan.sketch is not None:
                slots = [result.slots[0] for result in results.values()]
                sketches.append(pool.rows.sketches(slots))
    with collected.clock("server"):
        replies = collected.replies()
        if not collected.any_update:
            return replies
        replies = replace(replies, means=model_means.means, mean_counts=model_means.counts)
        return _with_sketches(plan, replies, torch.cat(sketches)) if sketches else replies


class SumsExchange(Protocol):
    """Carries out plans that need only sums, and all plans under masks.

    It is an extension, the module that the entry point ``sums`` in ``coterie.exchanges`` names.
    """

    def as_taken(self, plan: Plan, half_sketches: Mapping[Client, Tensor]) -> Plan:
        """Return a plan in which a client that takes the model of its cell is offered only that one.

        Args:
            plan: The plan.
            half_sketches: Client -> the sketches ``(2, k)`` of its halves.
        """
        ...

    def carry_out(
        self, collected: Collected, half_sketches: Mapping[Client, Tensor]
    ) -> tuple[Replies, dict[Client, Tensor]]:
        """Carry out a plan: of a single client, nothing is in the replies.

        Args:
            collected: Collects the results of the plan as the clients take it.
            half_sketches: Client -> the sketches ``(2, k)`` of its halves, before the exchange.

        Returns:
            The replies with means and sums, and the sketches after the exchange. They stay at the
            clients.
        """
        ...


def sums_extension() -> SumsExchange:
    """Return what carries out plans that need only sums.

    Raises:
        UserError: No installed package registers it.
    """
    extension: SumsExchange = provided("coterie.exchanges", "sums")
    return extension


# -- the results of a plan without parts
# -------------------------------------------------------------------------------


class Collected:
    """Carries out a plan without parts, and collects what each kind of exchange needs of the results.

    Args:
        pool: The worker processes and their clients.
        plan: The plan.
        own_values: Client -> the values ``(d,)`` that it keeps, before the exchange.
        optimizer_states: Client -> the bytes of its optimizer's state, before the exchange.
        key: The seed, the exchange, and the round counted from 0.
        part_number: The position of the plan among the parts that are carried out together.
        clock: Adds up the seconds.
        screens: Whether the server sees single updates, so that it can limit them to plausible
            lengths.

    Attributes:
        kept: Client -> the values that it keeps, after the exchange.
        optimizer_states: Client -> the bytes of its optimizer's state, after the exchange.
        results: Client -> its result, if it was not refused.
        refused: Client -> why it was refused.
        window: How many updates are in memory at a time.
    """

    def __init__(
        self,
        pool: ClientPool,
        plan: Plan,
        own_values: Mapping[Client, Tensor],
        optimizer_states: Mapping[Client, Tensor],
        key: tuple[int, int, int],
        part_number: int,
        clock: Clock,
        *,
        screens: bool,
    ) -> None:
        self.pool = pool
        self.plan = plan
        self.own_values = own_values
        self.key = key
        self.number = part_number
        self.clock = clock
        self.screens = screens
        self.clients = sorted(plan.tasks)
        self.claims = {client: _claimed(pool, client, key[2] + 1) for client in self.clients}
        self.counted = pool.robust.counted(self.claims) if screens else self.claims
        self.window = window(plan, pool.layout.size, pool.robust.needs_all) * pool.machines(plan)
        self.kept = dict(own_values)
        self.optimizer_states = dict(optimizer_states)
        self.results: dict[Client, ClientResult] = {}
        self.refused: dict[Client, str] = {}
        self._scaled: dict[Client, float] = {}
        self._usual_lengths = Usual()
        self._halves = HalfUpdates(pool, plan)

    def waves(self) -> Iterator[dict[Client, ClientResult]]:
        """Yield the results of one window of clients after the other, without those that are refused.

        The next wave overwrites the updates.
        """
        for wave_start in range(0, len(self.clients), self.window):
            wave_clients = self.clients[wave_start : wave_start + self.window]
            with self.clock("train"):
                results = self.pool.train(
                    self.plan,
                    wave_clients,
                    self.own_values,
                    self.key,
                    self.number,
                    self.optimizer_states,
                )
            with self.clock("server"):
                # The server's limits see the updates as they arrive, also those of adversaries.
                self._collude(results)
                if self.screens:
                    results = self._screened(results)
            # The results that count are remembered without their rows.
            usable_results = {}
            for client, result in results.items():
                if result.refused is None:
                    usable_results[client] = result
                else:
                    self.refused[client] = result.refused
            self.results.update(usable_results)
            yield usable_results

    @property
    def slots(self) -> list[int]:
        """The rows of the updates of all clients that answered; of two halves, that of their mean."""
        return [result.slots[0] for result in self.results.values()]

    @property
    def any_update(self) -> bool:
        """Whether a client has trained; also if no client has answered."""
        return not self.results or any(result.trained for result in self.results.values())

    @property
    def held_losses(self) -> dict[Client, np.ndarray]:
        """Client -> its held-out losses ``(m, examples)``, if its task asks for them."""
        losses_of_clients = {}
        for client, result in self.results.items():
            if result.held_losses is not None:
                losses_of_clients[client] = result.held_losses
        return losses_of_clients

    def replies(self) -> Replies:
        """Return the replies without updates and means."""
        return replies_of_results(
            self.results,
            claimed=self.claims,
            counted=self.counted,
            refused=self.refused,
            scaled=self._scaled,
            averaging=self.pool.robust,
            halves=self._halves.halved(),
        )

    def average_halves(self, results: Mapping[Client, ClientResult]) -> None:
        """Replace the updates of both halves by their mean, after the products that the plan needs."""
        self._halves.take(results)

    def add_to_means(self, results: Mapping[Client, ClientResult], model_means: Means) -> None:
        """Add the updates of clients that trained to the means of the models from which they did."""
        # An update counts in the mean of each model from which its client started.
        chosen_models = []
        for client, result in results.items():
            task = self.plan.tasks[client]
            chosen_models.append(result.chosen if task.trains and task.private.sends_update else ())
        example_counts = np.array([self.counted[client] for client in results])
        reply_slots = [result.slots[0] for result in results.values()]
        self.pool.rows.add_to_means(
            model_means, reply_slots, amounts(example_counts, self.plan.weighting), chosen_models
        )

    def keep_own_values(self, results: Mapping[Client, ClientResult]) -> None:
        """Move the layers that stay at clients from their updates into ``kept``, personal models, and states of optimizers."""
        for client, result in results.items():
            if result.optimizer_state is not None:
                state_bytes = bytearray(result.optimizer_state)
                self.optimizer_states[client] = torch.frombuffer(state_bytes, dtype=torch.uint8)
            task = self.plan.tasks[client]
            keep_mask = self.pool.keep_mask(task)
            own_values = self.kept.get(client)
            start_model = None
            if keep_mask is not None and result.update is not None:
                start_model = self.pool.start_model(self.plan, task, own_values, result.chosen)
            stored_values = local.own_values_after(
                task, result, start_model, result.update, keep_mask, own_values
            )
            if stored_values is not None:
                # A personal model is a row that the next exchange overwrites.
                self.kept[client] = stored_values.clone()
            if keep_mask is not None and result.update is not None:
                result.update[keep_mask] = 0.0

    # -- what the server does with updates as they arrive
    # --------------------------------------------------------------

    def _screened(self, results: Mapping[Client, ClientResult]) -> dict[Client, ClientResult]:
        """Limit the updates of a wave to plausible lengths, compared with this wave and earlier ones."""
        robust = self.pool.robust
        claims_too_many = max(self.claims.values(), default=0) > robust.most_examples
        if robust.norms is None and not claims_too_many and not self.pool.world.attacks:
            # Norms that nobody asks for cost time.
            return dict(results)
        trained_results = {
            client: result
            for client, result in results.items()
            if result.trained and result.refused is None
        }
        # Compare the lengths of these updates with the usual ones.
        limits = robust.limited(
            self.pool.rows.lengths(self.plan, trained_results, self.counted),
            {client: self.claims[client] for client in results},
            self._usual_lengths,
        )
        # A long update is scaled where it lies, with its sketch.
        sketched = self.plan.sketch is not None
        for client, scale_factor in limits.scaled.items():
            keep_mask = self.pool.keep_mask(self.plan.tasks[client])
            self.pool.rows.scale(results[client], scale_factor, keep_mask, sketched)
        self._scaled.update(limits.scaled)
        screened = dict(results)
        for client, refusal in limits.refused.items():
            screened[client] = replace(results[client], refused=results[client].refused or refusal)
        return screened

    def _collude(self, results: Mapping[Client, ClientResult]) -> None:
        """Write the updates of colluding adversaries, which know the updates of the honest clients.

        They use the honest clients that were asked for the same kind of update (a gradient, or the
        result of training). If at least two of these started from the same models as the adversary,
        only those count.
        """
        attacks = self.pool.world.attacks
        colluding_clients = [
            client for client, attack in attacks.items() if client in results and attack.colluding
        ]
        if not colluding_clients:
            return
        tasks = self.plan.tasks
        # The updates that adversaries can know: those of honest clients that trained.
        honest_results = {}
        for client, result in results.items():
            if client not in attacks and result.trained and result.refused is None:
                honest_results[client] = result
        for client in colluding_clients:
            result = results[client]
            # The results that the adversary knows: of the same kind, and of the same start.
            same_kind = []
            same_start = []
            for honest_client, honest_result in honest_results.items():
                if tasks[honest_client].gradient == tasks[client].gradient:
                    same_kind.append(honest_result)
                    if honest_result.chosen == result.chosen:
                        same_start.append(honest_result)
            known_results = same_start if len(same_start) > 1 else same_kind
            if not result.trained or not known_results:
                continue
            # Each half has a fabricated update of its own.
            for half_number, update in enumerate(result.updates):
                # The client keeps running statistics and its own layers as they are.
                untouched = torch.arange(len(update)) >= self.pool.layout.trainable
                keep_mask = self.pool.keep_mask(tasks[client])
                if keep_mask is not None:
                    untouched |= keep_mask
                known_updates = [
                    known_result.updates[min(half_number, len(known_result.updates) - 1)]
                    for known_result in known_results
                ]
                fabricated = attacks[client].fabricated(torch.stack(known_updates))
                update[~untouched] = fabricated[~untouched]
                if self.plan.sketch is not None:
                    columns = self.plan.columns or slice(None)
                    sketched_columns = update.masked_fill(untouched, 0.0)[None, columns]
                    fabricated_sketch = unchecked_sketch(sketched_columns, self.plan.sketch)[0]
                    self.pool.worker.sketches[result.slots[half_number]] = fabricated_sketch


def window(plan: Plan, row_length: int, robust_means: bool = False) -> int:
    """Return how many replies are held in memory at a time.

    Args:
        plan: The plan that the clients answer.
        row_length: Number of parameters.
        robust_means: Whether the means are robust ones that need all replies at once.

    Returns:
        The number of all tasks (at least 1), or a multiple of :data:`~coterie.core.CHUNK`, the
        replies averaged together.
    """
    # Inner products of clients need all updates at once, unless sketches stand for them.
    has_halves = any(task.halves for task in plan.tasks.values())
    needs_single_updates = plan.need not in ("mean", "sums") or has_halves
    # Sketches stand for single updates, so these need not all be in memory.
    if robust_means or (needs_single_updates and plan.sketch is None):
        return max(1, len(plan.tasks))
    return max(1, WINDOW_BYTES // (4 * row_length * CHUNK)) * CHUNK


def _claimed(pool: ClientPool, client: Client, round_number: int) -> int:
    """Number of examples that a client reports in a round."""
    world = pool.world
    clients = world.steps[world.step(round_number)]
    if client not in clients:
        raise SettingError(
            f"the method's plan has a task for client {client}, and there is no such client: plan for cohort.present"
        )
    example_count = len(clients[client].train)
    attack = world.attacks.get(client)
    return pool.wire.examples(example_count if attack is None else attack.claimed(example_count))


# ----------------------------------------------------------------------------------------------------
# The form of the replies that a plan needs.


def replies_of_results(
    results: Mapping[Client, ClientResult],
    *,
    claimed: Mapping[Client, int],
    counted: Mapping[Client, int],
    refused: Mapping[Client, str],
    scaled: Mapping[Client, float],
    averaging: Robust,
    halves: HalvedUpdates | None,
) -> Replies:
    """Return the replies to a plan, without updates and means.

    Args:
        results: Client -> its result, for the clients whose replies count.
        claimed: Client -> the number of examples that it reports.
        counted: Client -> the number of examples for which it counts.
        refused: Client -> why its reply was refused.
        scaled: Client -> the factor by which its update was scaled down.
        averaging: How updates are averaged.
        halves: The updates of both halves of clients' data.
    """
    examples: list[int] = []
    chosen: list[tuple[int, ...]] = []
    losses: list[tuple[float, ...]] = []
    accuracies: list[tuple[float, ...]] = []
    limited_claims: dict[Client, int] = {}
    statistics: dict[Statistic, dict[Client, np.ndarray]] = {}
    for client, result in results.items():
        for statistic, values in result.statistics.items():
            statistics.setdefault(statistic, {})[client] = values
        examples.append(counted[client])
        chosen.append(result.chosen)
        losses.append(result.losses)
        accuracies.append(result.accuracies)
        if claimed[client] > counted[client]:
            limited_claims[client] = claimed[client]
    return Replies(
        clients=tuple(results),
        examples=np.array(examples, dtype=np.int64),
        chosen=tuple(chosen),
        losses=tuple(losses),
        accuracies=tuple(accuracies),
        refused=refused,
        halves=halves,
        averaging=averaging,
        limits=AppliedLimits(claimed=limited_claims, scaled=scaled),
        statistics=statistics,
    )


def held_losses(
    losses_of_parts: Mapping[str, Mapping[Client, np.ndarray]],
    tasks_of_parts: Mapping[str, Mapping[Client, Task]],
) -> dict[Client, HeldOutLosses]:
    """Return the sums of each client's held-out losses, over the models of all parts of a plan.

    Args:
        losses_of_parts: Name of a part -> client -> held-out losses ``(m, examples)``.
        tasks_of_parts: Name of a part -> client -> its task, which names the m models.
    """
    # Stack the losses of all parts, so that products of models in different parts are known, too.
    models_of_client: dict[Client, list[Candidate]] = {}
    loss_rows: dict[Client, list[np.ndarray]] = {}
    for part_name, losses_of_part in losses_of_parts.items():
        for client, client_losses in losses_of_part.items():
            models_of_client.setdefault(client, []).extend(
                (part_name, model_number)
                for model_number in tasks_of_parts[part_name][client].measured_models
            )
            loss_rows.setdefault(client, []).extend(client_losses)
    return {
        client: HeldOutLosses.of(models_of_client[client], np.stack(rows_of_client))
        for client, rows_of_client in loss_rows.items()
    }


def together(
    plan: Plan, replies: Mapping[str, Replies], held_out_losses: Mapping[Client, HeldOutLosses]
) -> Replies:
    """Return the replies to a plan from those to its parts.

    Args:
        plan: The plan.
        replies: Name of a part -> the replies to it, for each of :meth:`~coterie.core.Plan.leaves`.
        held_out_losses: Client -> the sums of its held-out losses.
    """
    return _nested(plan, "", replies, held_out_losses)


def _nested(
    plan: Plan,
    part_name: str,
    replies: Mapping[str, Replies],
    losses_of_clients: Mapping[Client, HeldOutLosses],
) -> Replies:
    """The replies to a plan that is a part of another one, or to that one itself."""
    # Held-out losses of the models of this part, or of the parts in it.
    held_out_losses = {}
    for client, client_losses in sorted(losses_of_clients.items()):
        losses_within = client_losses.within(part_name)
        if losses_within.models:
            held_out_losses[client] = losses_within
    if not plan.parts:
        return replace(
            replies[part_name], held_out_losses=held_out_losses, ends_round=plan.ends_round
        )
    inner_replies = {
        inner_name: _nested(
            inner_plan, f"{part_name}/{inner_name}".lstrip("/"), replies, losses_of_clients
        )
        for inner_name, inner_plan in plan.parts.items()
    }
    # Of a client with several replies, the last part counts.
    examples: dict[Client, int] = {}
    refused: dict[Client, str] = {}
    claimed: dict[Client, int] = {}
    scaled: dict[Client, float] = {}
    for part_replies in inner_replies.values():
        examples.update(zip(part_replies.clients, part_replies.examples, strict=True))
        refused.update(part_replies.refused)
        claimed.update(part_replies.limits.claimed)
        scaled.update(part_replies.limits.scaled)
    clients = sorted(examples)
    return Replies(
        clients=tuple(clients),
        examples=np.array([examples[client] for client in clients], dtype=np.int64),
        refused=refused,
        averaging=next(iter(inner_replies.values())).averaging,
        limits=AppliedLimits(claimed=claimed, scaled=scaled),
        held_out_losses=held_out_losses,
        ends_round=plan.ends_round,
        parts=inner_replies,
    )


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
    # The mean update of each model, over the clients that trained from it.
    clients_of_model: list[list[Client]] = [[] for _ in range(len(plan.models))]
    for client, chosen_rows in zip(replies.clients, replies.chosen, strict=True):
        if plan.tasks[client].trains:
            for row_number in set(chosen_rows):
                clients_of_model[row_number].append(client)
    model_means, mean_counts = group_means(replies, clients_of_model, plan.weighting)
    updates = replies.updates
    replies = replace(replies, means=model_means, mean_counts=mean_counts, updates=None)
    if plan.sketch is not None:
        # Inner products are computed from sketches, or from the rows themselves.
        sketches = unchecked_sketch(updates[:, plan.columns or slice(None)], plan.sketch)
        return _with_sketches(plan, replies, sketches)
    if plan.need == "gram" and len(replies.clients):
        return replace(replies, gram=gram(updates, columns=plan.columns))
    return replies


def _with_sketches(plan: Plan, replies: Replies, sketches: Tensor) -> Replies:
    """Return the replies with the sketches (one row per client) or with their Gram matrix, as the plan needs."""
    if plan.need == "rows":
        return replace(replies, updates=sketches)
    if plan.need == "gram" and len(sketches):
        return replace(replies, gram=gram(sketches))
    return replies


# ----------------------------------------------------------------------------------------------------
# Split-half training: clients train on both halves of their data.


class HalfUpdates:
    """The two updates of each client that was asked to train on both halves of its data.

    Their inner products are computed, from rows or from sketches. Then the mean of both replaces
    the first. The second is copied if the plan asks for it.

    Attributes:
        clients: The clients that sent both updates.
        seconds: Client -> its second update ``(d,)``, if the plan asks for these.
    """

    def __init__(self, pool: ClientPool, plan: Plan) -> None:
        self.pool = pool
        self.plan = plan
        self.clients: list[Client] = []
        self.seconds: dict[Client, Tensor] = {}
        self._sketches: list[Tensor] = []
        self._products: np.ndarray | None = None

    def take(self, results: Mapping[Client, ClientResult]) -> None:
        """Take the updates of those clients that trained on both halves."""
        halved_results = {
            client: result for client, result in results.items() if len(result.slots) == 2
        }
        if not halved_results:
            return
        # 1. Set aside the layers that stay at clients: they must not count in the products.
        own_columns = {
            client: self._own_columns(client, result)
            for client, result in halved_results.items()
            if self.plan.tasks[client].local_layers
        }
        # 2. The inner products of all halves: first all first halves, then all second ones.
        first_slots = [result.slots[0] for result in halved_results.values()]
        second_slots = [result.slots[1] for result in halved_results.values()]
        half_slots = [*first_slots, *second_slots]
        reply_rows = self.pool.rows
        # Products of two clients are no sums. Without sketches, all updates are in memory at once,
        # see :func:`window`.
        if self.plan.need != "sums" and self.plan.sketch is None:
            self._products = gram(reply_rows.updates(half_slots), columns=self.plan.columns)
        elif self.plan.need != "sums":
            self._sketches.append(reply_rows.sketches(half_slots).view(2, len(halved_results), -1))
        # 3. The mean of both halves becomes the client's update.
        self.clients += halved_results
        for client, result in halved_results.items():
            if self.plan.second_halves:
                self.seconds[client] = result.updates[1].clone()
            reply_rows.average_halves(*result.slots)
            if client in own_columns:
                keep_mask = self.pool.mask(self.plan.tasks[client].local_layers)
                result.updates[0][keep_mask] = own_columns[client]

    def _own_columns(self, client: Client, result: ClientResult) -> Tensor:
        """Mean of both updates in the columns that stay at the client, which become zero in the rows."""
        keep_mask = self.pool.mask(self.plan.tasks[client].local_layers)
        first_update, second_update = result.updates
        own_columns = (first_update[keep_mask] + second_update[keep_mask]) / 2
        first_update[keep_mask] = 0.0
        second_update[keep_mask] = 0.0
        return own_columns

    def halved(self) -> HalvedUpdates | None:
        """Return the inner products of all halves, and the second updates if the plan asks for them."""
        half_products = self._products
        if self._sketches:
            half_products = gram(torch.cat(self._sketches, 1).flatten(0, 1))
        if half_products is None:
            return None
        second_updates = torch.stack(list(self.seconds.values())) if self.seconds else None
        return HalvedUpdates(clients=tuple(self.clients), gram=half_products, second=second_updates)


def products(
    plan: Plan, updates_of_clients: Mapping[Client, Sequence[Tensor]]
) -> np.ndarray | None:
    """Return the Gram matrix of halves, from updates that are all in memory.

    Args:
        plan: The plan that the clients answered.
        updates_of_clients: The m clients that sent updates of both halves, sorted -> these updates ``(d,)``.

    Returns:
        The matrix ``(2 m, 2 m)`` as in :class:`~coterie.core.Replies`, or None if no client sent
        halves.
    """
    if not updates_of_clients:
        return None
    # First the first halves of all clients, then the second ones.
    first_halves = [half_updates[0] for half_updates in updates_of_clients.values()]
    second_halves = [half_updates[1] for half_updates in updates_of_clients.values()]
    update_rows = torch.stack([*first_halves, *second_halves])
    if plan.sketch is not None:
        update_rows = unchecked_sketch(update_rows[:, plan.columns or slice(None)], plan.sketch)
    return gram(update_rows, columns=plan.columns if plan.sketch is None else None)
