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
    amounts,
    group_means,
)
from coterie.engines.clock import Clock
from coterie.engines.pool import ClientPool
from coterie.extensions import provided
from coterie.robust import Usual
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
    pool.robust.check_plan(plan, pool.wire.boundary.masks)
    key = (seed, position.exchange, position.round)
    kept = dict(position.kept)
    replies: dict[str, Replies] = {}
    held: dict[str, Mapping[Client, np.ndarray]] = {}
    for number, (name, part) in enumerate(plan.leaves()):
        own_values = kept.get(name, {})
        if part.need == "sums" or pool.wire.boundary.masks:
            sums = sums_extension()
            half_sketches = kept.get(name + HALVES, {})
            part_as_taken = sums.as_taken(part, half_sketches)
            collected = Collected(
                pool, part_as_taken, own_values, key, number, clock, screens=False
            )
            replies[name], kept[name + HALVES] = sums.carry_out(collected, half_sketches)
        else:
            collected = Collected(pool, part, own_values, key, number, clock, screens=True)
            at_once = collected.window >= len(part.tasks)
            if at_once and part.sketch is None and not pool.updates_stay(part):
                replies[name] = rows_exchange(collected)
            else:
                replies[name] = means_exchange(collected)
        kept[name] = collected.kept
        held[name] = collected.held_losses
        if plan.parts and replies[name].updates is not None:
            # The next part uses the same memory.
            replies[name] = replace(replies[name], updates=replies[name].all_updates.clone())
    # Values of parts that ended are dropped, also those of parts in them.
    ended = tuple(f"{name}/" for name in plan.all_ended_parts)
    still_kept = {
        name: values for name, values in kept.items() if values and not f"{name}/".startswith(ended)
    }
    return together(plan, replies, held_losses(held)), still_kept


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
    pool, plan = collected.pool, collected.plan
    means = Means(len(plan.models), pool.layout.size, pool.robust)
    sketches: list[Tensor] = []
    for results in collected.waves():
        with collected.clock("server"):
            collected.average_halves(results)
            collected.keep_own_values(results)
            collected.add_to_means(results, means)
            if plan.sketch is not None:
                slots = [result.slots[0] for result in results.values()]
                sketches.append(pool.rows.sketches(slots))
    with collected.clock("server"):
        replies = collected.replies()
        if not collected.any_update:
            return replies
        replies = replace(replies, means=means.means, mean_counts=means.counts)
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
        key: The seed, the exchange, and the round counted from 0.
        number: The position of the plan among the parts that are carried out together.
        clock: Adds up the seconds.
        screens: Whether the server sees single updates, so that it can limit them to plausible
            lengths.

    Attributes:
        kept: Client -> the values that it keeps, after the exchange.
        results: Client -> its result, if it was not refused.
        refused: Client -> why it was refused.
        window: How many updates are in memory at a time.
    """

    def __init__(
        self,
        pool: ClientPool,
        plan: Plan,
        own_values: Mapping[Client, Tensor],
        key: tuple[int, int, int],
        number: int,
        clock: Clock,
        *,
        screens: bool,
    ) -> None:
        self.pool = pool
        self.plan = plan
        self.own_values = own_values
        self.key = key
        self.number = number
        self.clock = clock
        self.screens = screens
        self.clients = sorted(plan.tasks)
        self.claims = {client: _claimed(pool, client, key[2] + 1) for client in self.clients}
        self.counted = pool.robust.counted(self.claims) if screens else self.claims
        self.window = window(plan, pool.layout.size, pool.robust.needs_all) * pool.machines(plan)
        self.kept = dict(own_values)
        self.results: dict[Client, ClientResult] = {}
        self.refused: dict[Client, str] = {}
        self._scaled: dict[Client, float] = {}
        self._usual = Usual()
        self._halves = HalfUpdates(pool, plan)

    def waves(self) -> Iterator[dict[Client, ClientResult]]:
        """Yield the results of one window of clients after the other, without those that are refused.

        The next wave overwrites the updates.
        """
        for start in range(0, len(self.clients), self.window):
            wave = self.clients[start : start + self.window]
            with self.clock("train"):
                results = self.pool.train(self.plan, wave, self.own_values, self.key, self.number)
            with self.clock("server"):
                self._collude(results)
                if self.screens:
                    results = self._screened(results)
            usable = {}
            for client, result in results.items():
                if result.refused is None:
                    usable[client] = result
                else:
                    self.refused[client] = result.refused
            self.results.update(usable)
            yield usable

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
        losses = {client: result.held_losses for client, result in self.results.items()}
        return {client: rows for client, rows in losses.items() if rows is not None}

    def replies(self) -> Replies:
        """Return the replies without updates and means."""
        clients = tuple(self.results)
        results = self.results.values()
        limits = AppliedLimits(claimed=self._limited_claims(), scaled=self._scaled)
        return Replies(
            clients=clients,
            examples=np.array([self.counted[client] for client in clients], dtype=np.int64),
            chosen=tuple(result.chosen for result in results),
            losses=tuple(result.losses for result in results),
            accuracies=tuple(result.accuracies for result in results),
            refused=self.refused,
            halves=self._halves.halved(),
            averaging=self.pool.robust,
            limits=limits,
        )

    def _limited_claims(self) -> dict[Client, int]:
        """The numbers of examples of clients that claim more than is counted."""
        return {
            client: self.claims[client]
            for client in self.results
            if self.claims[client] > self.counted[client]
        }

    def average_halves(self, results: Mapping[Client, ClientResult]) -> None:
        """Replace the updates of both halves by their mean, after the products that the plan needs."""
        self._halves.take(results)

    def add_to_means(self, results: Mapping[Client, ClientResult], means: Means) -> None:
        """Add the updates of clients that trained to the means of the models from which they did."""
        groups = []
        for client, result in results.items():
            task = self.plan.tasks[client]
            groups.append(result.chosen if task.trains and task.private.sends_update else ())
        examples = np.array([self.counted[client] for client in results])
        slots = [result.slots[0] for result in results.values()]
        self.pool.rows.add_to_means(means, slots, amounts(examples, self.plan.weighting), groups)

    def keep_own_values(self, results: Mapping[Client, ClientResult]) -> None:
        """Move the layers that stay at clients from their updates into ``kept``, and personal models."""
        for client, result in results.items():
            task = self.plan.tasks[client]
            keep_mask = self.pool.keep_mask(task)
            own_values = self.kept.get(client)
            start = None
            if keep_mask is not None and result.update is not None:
                start = self.pool.start_model(self.plan, task, own_values, result.chosen)
            stored = local.own_values_after(
                task, result, start, result.update, keep_mask, own_values
            )
            if stored is not None:
                # A personal model is a row that the next exchange overwrites.
                self.kept[client] = stored.clone()
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
        trained = {
            client: result
            for client, result in results.items()
            if result.trained and result.refused is None
        }
        limited = robust.limited(
            self.pool.rows.lengths(self.plan, trained, self.counted),
            {client: self.claims[client] for client in results},
            self._usual,
        )
        sketched = self.plan.sketch is not None
        for client, factor in limited.scaled.items():
            keep_mask = self.pool.keep_mask(self.plan.tasks[client])
            self.pool.rows.scale(results[client], factor, keep_mask, sketched)
        self._scaled.update(limited.scaled)
        screened = dict(results)
        for client, refusal in limited.refused.items():
            screened[client] = replace(results[client], refused=results[client].refused or refusal)
        return screened

    def _collude(self, results: Mapping[Client, ClientResult]) -> None:
        """Write the updates of colluding adversaries, which know the updates of the honest clients.

        They use the honest clients that were asked for the same kind of update (a gradient, or the
        result of training). If at least two of these started from the same models as the adversary,
        only those count.
        """
        attacks = self.pool.world.attacks
        colluding = [
            client for client, attack in attacks.items() if client in results and attack.colluding
        ]
        if not colluding:
            return
        tasks = self.plan.tasks
        honest = {
            client: result
            for client, result in results.items()
            if client not in attacks and result.trained and result.refused is None
        }
        for client in colluding:
            result = results[client]
            # The results that the adversary knows.
            same_kind = [
                honest_result
                for honest_client, honest_result in honest.items()
                if tasks[honest_client].gradient == tasks[client].gradient
            ]
            same_start = [
                honest_result
                for honest_result in same_kind
                if honest_result.chosen == result.chosen
            ]
            known_results = same_start if len(same_start) > 1 else same_kind
            if not result.trained or not known_results:
                continue
            for half, update in enumerate(result.updates):
                # The client keeps running statistics and its own layers as they are.
                untouched = torch.arange(len(update)) >= self.pool.layout.trainable
                keep_mask = self.pool.keep_mask(tasks[client])
                if keep_mask is not None:
                    untouched |= keep_mask
                known_updates = [
                    known.updates[min(half, len(known.updates) - 1)] for known in known_results
                ]
                fabricated = attacks[client].fabricated(torch.stack(known_updates))
                update[~untouched] = fabricated[~untouched]
                if self.plan.sketch is not None:
                    columns = self.plan.columns or slice(None)
                    sketched = update.masked_fill(untouched, 0.0)[None, columns]
                    sketch = unchecked_sketch(sketched, self.plan.sketch)[0]
                    self.pool.worker.sketches[result.slots[half]] = sketch


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
    has_halves = any(task.halves for task in plan.tasks.values())
    needs_single_updates = plan.need not in ("mean", "sums") or has_halves
    # Sketches stand for single updates, so these need not all be in memory.
    if robust or (needs_single_updates and plan.sketch is None):
        return max(1, len(plan.tasks))
    return max(1, WINDOW_BYTES // (4 * d * CHUNK)) * CHUNK


def _claimed(pool: ClientPool, client: Client, round: int) -> int:
    """Number of examples that a client reports in a round."""
    world = pool.world
    count = len(world.steps[world.step(round)][client].train)
    attack = world.attacks.get(client)
    return pool.wire.examples(count if attack is None else attack.claimed(count))


# ----------------------------------------------------------------------------------------------------
# The form of the replies that a plan needs.


def held_losses(losses: Mapping[str, Mapping[Client, np.ndarray]]) -> dict[Client, HeldOutLosses]:
    """Return the sums of each client's held-out losses, over the models of all parts of a plan.

    Args:
        losses: Name of a part -> client -> held-out losses ``(m, examples)``.
    """
    models: dict[Client, list[Candidate]] = {}
    rows: dict[Client, list[np.ndarray]] = {}
    for name, losses_of_part in losses.items():
        for client, client_losses in losses_of_part.items():
            models.setdefault(client, []).extend((name, i) for i in range(len(client_losses)))
            rows.setdefault(client, []).extend(client_losses)
    return {
        client: HeldOutLosses.of(models[client], np.stack(rows_of_client))
        for client, rows_of_client in rows.items()
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
    held_out_losses = {}
    for client, losses in sorted(held.items()):
        losses_within = losses.within(name)
        if losses_within.models:
            held_out_losses[client] = losses_within
    if not plan.parts:
        return replace(replies[name], held_out_losses=held_out_losses, ends_round=plan.ends_round)
    parts = {
        part: _nested(inner, f"{name}/{part}".lstrip("/"), replies, held)
        for part, inner in plan.parts.items()
    }
    # Of a client with several replies, the last part counts.
    examples: dict[Client, int] = {}
    refused: dict[Client, str] = {}
    claimed: dict[Client, int] = {}
    scaled: dict[Client, float] = {}
    for part_replies in parts.values():
        examples.update(zip(part_replies.clients, part_replies.examples, strict=True))
        refused.update(part_replies.refused)
        claimed.update(part_replies.limits.claimed)
        scaled.update(part_replies.limits.scaled)
    clients = sorted(examples)
    return Replies(
        clients=tuple(clients),
        examples=np.array([examples[client] for client in clients], dtype=np.int64),
        refused=refused,
        averaging=next(iter(parts.values())).averaging,
        limits=AppliedLimits(claimed=claimed, scaled=scaled),
        held_out_losses=held_out_losses,
        ends_round=plan.ends_round,
        parts=parts,
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
    groups: list[list[Client]] = [[] for _ in range(len(plan.models))]
    for client, chosen in zip(replies.clients, replies.chosen, strict=True):
        if plan.tasks[client].trains:
            for row in set(chosen):
                groups[row].append(client)
    means, mean_counts = group_means(replies, groups, plan.weighting)
    updates = replies.updates
    replies = replace(replies, means=means, mean_counts=mean_counts, updates=None)
    if plan.sketch is not None:
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
        halved = {client: result for client, result in results.items() if len(result.slots) == 2}
        if not halved:
            return
        own_columns = {
            client: self._own_columns(client, result)
            for client, result in halved.items()
            if self.plan.tasks[client].local_layers
        }
        slots = [result.slots[half] for half in (0, 1) for result in halved.values()]
        rows = self.pool.rows
        # Products of two clients are no sums. Without sketches, all updates are in memory at once,
        # see :func:`window`.
        if self.plan.need != "sums" and self.plan.sketch is None:
            self._products = gram(rows.updates(slots), columns=self.plan.columns)
        elif self.plan.need != "sums":
            self._sketches.append(rows.sketches(slots).view(2, len(halved), -1))
        self.clients += halved
        for client, result in halved.items():
            if self.plan.second_halves:
                self.seconds[client] = result.updates[1].clone()
            rows.average_halves(*result.slots)
            if client in own_columns:
                keep_mask = self.pool.mask(self.plan.tasks[client].local_layers)
                result.updates[0][keep_mask] = own_columns[client]

    def _own_columns(self, client: Client, result: ClientResult) -> Tensor:
        """Mean of both updates in the columns that stay at the client, which become zero in the rows."""
        keep_mask = self.pool.mask(self.plan.tasks[client].local_layers)
        first, second = result.updates
        own_columns = (first[keep_mask] + second[keep_mask]) / 2
        first[keep_mask] = 0.0
        second[keep_mask] = 0.0
        return own_columns

    def halved(self) -> HalvedUpdates | None:
        """Return the inner products of all halves, and the second updates if the plan asks for them."""
        products = self._products
        if self._sketches:
            products = gram(torch.cat(self._sketches, 1).flatten(0, 1))
        if products is None:
            return None
        second = torch.stack(list(self.seconds.values())) if self.seconds else None
        return HalvedUpdates(clients=tuple(self.clients), gram=products, second=second)


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
