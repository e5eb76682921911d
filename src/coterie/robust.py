"""Limits on the effect of one client on the others: length of updates, number of examples, and rule of averaging.

Honest clients get the published algorithm. So the limits are off in a simulation, unless its
scenario has adversaries or a setting asks for them. A federation over Flower does not know its
clients, so there they are on, in a form that compares like with like: an update with what a client
of as many local steps would send.

All engines apply the limits before anything is averaged or compared, and record whatever they
change. docs/deploy/hostile.md has measurements of their effect.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
import torch

from coterie.boundary import Wire
from coterie.core import CHUNK, Averaging, Client, Plan, Task, Training
from coterie.settings import SettingError, setting
from coterie.settings.calls import public

PEERS = 3
"""The smallest number of clients whose median norm is a reference: one hostile client among three
cannot choose it."""

NORMS = 25.0
"""The usual limit, in norms of what a client of as many steps would send. An app that trains in its
own way may make 20 times as many passes as the server supposes, and honest clients of the same
number of steps differ by up to 7 times (docs/deploy/hostile.md)."""

NORMS_WITH_HOSTILE = 2.0
"""The usual limit with ``hostile`` above 0, when one client's update must not outweigh a small group's.
It scales some honest updates down, too."""

REFUSAL_FACTOR = 20.0
"""An update that is longer than its limit by this factor is refused, and not only scaled down. The
product of both factors is also the limit if the others started from other models: honest newcomers
sent updates of 25 times the norm of clients that had long converged."""

SMALL_SHARE = 0.1
"""An update of at most this share of its model's norm (or of 1) is never scaled down: where the
others have nothing left to learn, an honest client that still has is many times as long as they
are, and yet moves the model little."""

MAX_MODEL_NORMS = 1000.0
"""No training makes an update longer than this many times the norm of its model (or than this
number, if the model's norm is below 1). This is the bound if no other client did the same task."""

MAX_ROUNDING = 1e-6
"""The greatest change by rounding, relative to a model's norm (or to 1)."""

MAX_CLAIM = 1000
"""A claim of more examples than this many times the median claim is not believed; it counts as the
median. Honest sites differ by a factor of a hundred and more, false claims are limited by nothing
else."""


OFF: Mapping[str, str] = {"robust.norms": "robust.norms=none", "robust.share": "robust.share=1"}
"""Setting -> how to set it so that it changes nothing."""


@dataclass(frozen=True)
class Limited:
    """The treatment of the replies of one exchange.

    Attributes:
        refused: Client -> one sentence with the reason; its reply has no effect.
        scaled: Client -> a factor below 1, by which its update must be multiplied.
    """

    refused: Mapping[Client, str]
    scaled: Mapping[Client, float]


@public
@dataclass(frozen=True, kw_only=True)
class Robust(Averaging):
    """Limits on the effect of one client on means and comparisons; settings of an experiment, the same for every method."""

    norms: float | Literal["auto"] | None = setting(
        "auto",
        "maximum norm of an update, in medians of what clients that started from the same model would send in as many steps; "
        "larger updates are scaled down to it, and refused "
        f"from {REFUSAL_FACTOR:g} times this norm on; auto: {NORMS_WITH_HOSTILE:g} with robust.hostile, {NORMS:g} in a "
        "federation or with adversaries, else none; none: no limit",
        gt=1,
    )
    most_examples: int = setting(
        10**9, "number of examples above which a client's reply is refused", ge=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.norms, str) and self.norms != "auto":
            raise SettingError(
                f"robust.norms must be a number > 1, auto or none, got {self.norms!r}"
            )

    def within(self, exposed: bool) -> Robust:
        """Return the limits that apply to some clients, without ``auto`` where it stands for a number or for no limit.

        Args:
            exposed: Whether some clients may be hostile: in a federation, or if the scenario has
                adversaries.

        Returns:
            The limits. If they are on, ``share`` stays ``auto``, which limits reports and claims
            that are not believed.
        """
        # "auto" limits norms only where clients may be hostile.
        norms = self.norms
        share = self.share
        exposed = exposed or self.hostile > 0
        if norms == "auto":
            norms = self._usual_limit if exposed else None
        if share == "auto" and not exposed:
            share = 1.0
        return replace(self, norms=norms, share=share)

    @property
    def _usual_limit(self) -> float:
        """The limit of norms where ``auto`` stands for one."""
        return NORMS_WITH_HOSTILE if self.hostile else NORMS

    def check_plan(self, plan: Plan, masks: bool = False) -> None:
        """Check that the rule of averaging can be computed from what the server sees.

        Args:
            plan: The plan.
            masks: Whether clients send masked numbers.

        Raises:
            SettingError: The rule needs single updates, and the plan asks for sums, or clients mask
                their numbers.
        """
        if self.mean != "mean" and masks:
            raise SettingError(
                f"robust.mean must be mean with boundary.masks, got {self.mean}, which needs single updates"
            )
        if self.mean != "mean" and any(part.need == "sums" for _, part in plan.leaves()):
            raise SettingError(
                f"robust.mean must be mean for a method that asks for sums only, such as split-half-sums, got {self.mean}, "
                "which needs single updates"
            )

    def check_clients(self, num_clients: int) -> None:
        """Check that most clients may be honest.

        Args:
            num_clients: The number of clients of the run.

        Raises:
            SettingError: As many as half may be hostile, against which nothing protects.
        """
        if self.hostile and 2 * self.hostile >= num_clients:
            raise SettingError(
                f"robust.hostile must be less than half of the {num_clients} clients, got {self.hostile}: it is the number "
                "of hostile clients that you expect"
            )

    def counted(self, claims: Mapping[Client, int]) -> dict[Client, int]:
        """Compute how many examples each client of an exchange counts for.

        Refused clients are included: the engines do not always know of them in time.

        Args:
            claims: Client -> the number of examples that it reports.

        Returns:
            Client -> the number of examples that it counts for.
        """
        # No claim counts for more than the greatest number; then the share limits the largest
        # clients.
        clients = sorted(claims)
        claims_in_order = [min(claims[client], self.most_examples) for client in clients]
        capped_claims = np.array(claims_in_order, dtype=np.int64)
        if self.hostile:
            capped_claims = _within_others(capped_claims, self.hostile)
        counted = _believed(capped_claims) if self.share == "auto" else self.bounded(capped_claims)
        return dict(zip(clients, counted.tolist(), strict=True))

    def limited(
        self,
        lengths: Mapping[Client, Length],
        claims: Mapping[Client, int],
        usual_lengths: Usual | None = None,
    ) -> Limited:
        """Decide which well-formed replies are refused or scaled down.

        Args:
            lengths: The length of the update of each client that trained, see
                :func:`~coterie.robust.lengths`.
            claims: Client -> the number of examples that it reports.
            usual_lengths: The usual lengths in earlier waves of the same exchange; these lengths are
                added to it.

        Returns:
            The refused clients, and the factors of the others.
        """
        # Refuse claims of too many examples, and updates with a flaw, whatever other clients sent.
        refused: dict[Client, str] = {}
        for client, claimed_count in claims.items():
            if claimed_count > self.most_examples:
                refused[client] = (
                    f"it claims {claimed_count:,} examples, more than {self.most_examples:,} "
                    "(robust.most_examples)"
                )
        for client, length in lengths.items():
            if length.flaw:
                refused[client] = length.flaw
        # Compare norms, wave after wave: each wave with itself and those before it.
        scaled: dict[Client, float] = {}
        if self.norms is None:
            return Limited(refused, scaled)
        # Where the limits are off, `within` has replaced auto.
        max_norms = self._usual_limit if self.norms == "auto" else self.norms
        usual_lengths = usual_lengths or Usual()
        for _, clients_of_wave in groupby(sorted(lengths), key=lambda client: lengths[client].wave):
            clients = list(clients_of_wave)
            usual_lengths.add(lengths[client] for client in clients)
            for client in clients:
                length = lengths[client]
                if client in refused:
                    continue
                # Refused by what others with the same task send; scaled only by those that started
                # from the same model, unless a client alone with its model may be hostile.
                of_same_start = usual_lengths.same_start(length)
                comparable = of_same_start or usual_lengths.same_task(length)
                refusal = length.implausible(comparable, max_norms)
                scaled_by = comparable if self.hostile else of_same_start
                if refusal:
                    refused[client] = refusal
                elif scaled_by:
                    factor = length.factor(scaled_by, max_norms)
                    if factor < 1:
                        scaled[client] = factor
        return Limited(refused, scaled)


def _believed(claims: np.ndarray) -> np.ndarray:
    """Replace claims ``(n,)`` of more than :data:`MAX_CLAIM` medians by the median; too few clients have no usual claim."""
    # Clients without examples have no claim.
    positive_claims = claims[claims > 0]
    if len(positive_claims) < PEERS:
        return claims
    median_claim = float(np.median(positive_claims))
    return np.where(claims > MAX_CLAIM * median_claim, max(1, math.floor(median_claim)), claims)


def _within_others(claims: np.ndarray, hostile: int) -> np.ndarray:
    """Limit claims ``(n,)`` to the greatest that some honest client makes too, whichever clients are the hostile ones."""
    if len(claims) <= hostile:
        return claims
    return np.minimum(claims, np.partition(claims, -1 - hostile)[-1 - hostile])


AS_PUBLISHED = Robust(norms=None, share=1.0)
"""No limits at all, as in the experiments of the papers."""


@dataclass(frozen=True)
class Length:
    """The length of an update.

    Attributes:
        update: L2 norm over the parameters; for two halves, that of the longer one.
        buffers: The same over the columns after them: running statistics such as those of
            BatchNorm.
        model: Norms of the model from which it started, over the same two ranges of columns.
        gradient: Whether it is a gradient, and not the change by training.
        task: A key that is equal for clients that did the same kind of work.
        start: The models from which it started, as rows of the plan.
        steps: The number of mini-batch steps that a client of this many examples makes; 1 for a
            gradient.
        plausible: A norm that every honest update may have: the clip of a boundary, or 0.
        wave: Number of the client's wave. It is compared with the clients of this wave and of those
            before, so the result does not depend on how many replies are held at a time.
        flaw: The reason to refuse it whatever the others sent, if there is one.
    """

    update: float
    buffers: float
    model: tuple[float, float]
    gradient: bool
    task: Hashable
    start: frozenset[int]
    steps: float = 1.0
    plausible: float = 0.0
    wave: int = 0
    flaw: str | None = None

    def implausible(self, usual: Sequence[float] | None, norms: float) -> str | None:
        """Find a reason why no honest client would send an update of this length.

        Args:
            usual: What a client of as many steps would send, see :class:`Usual`; ``None`` if it is
                not known.
            norms: The limit of an update, in multiples of the usual one.

        Returns:
            The reason, or ``None`` if it is plausible.
        """
        # First a bound that needs no other clients, then the comparison with what is usual.
        model_norm, _ = self.model
        if not self.gradient and self.update > MAX_MODEL_NORMS * max(model_norm, 1.0):
            return (
                f"its update has norm {self.update:.3g}, "
                f"more than {MAX_MODEL_NORMS:g} times its model's {model_norm:.3g}"
            )
        for norm, vector_name, usual_norm, limit in self._compared(usual, norms):
            # Where the others do not move, the limit itself is already generous.
            others_rest = usual_norm == 0
            if norm > (limit if others_rest else REFUSAL_FACTOR * limit):
                return (
                    f"its {vector_name} has norm {norm:.3g}, more than {REFUSAL_FACTOR * norms:g} times "
                    f"the {usual_norm:.3g} that is usual for its number of steps (robust.norms)"
                )
        return None

    def factor(self, usual: Sequence[float], norms: float) -> float:
        """Compute the factor that makes it as long as its limit.

        Args:
            usual: What a client of as many steps would send, see :class:`Usual`.
            norms: The limit, in multiples of the usual length.

        Returns:
            The factor; 1 if it is shorter.
        """
        smallest_factor = 1.0
        for norm, _, _, limit in self._compared(usual, norms):
            if norm:
                smallest_factor = min(smallest_factor, limit / norm)
        return smallest_factor

    def _compared(
        self, usual: Sequence[float] | None, norms: float
    ) -> Iterator[tuple[float, str, float, float]]:
        """(norm, its name, the usual one, its limit) of the update and of the columns after it.

        If the updates of the others are zero, the parameters may still move, as for a client that
        has something left to learn. Running statistics may not: they rest with all clients or with
        none.
        """
        if usual is None:
            return
        # The parameters: a multiple of the usual norm, but small updates always pass.
        usual_update, usual_buffers = usual
        model_norm, statistics_norm = self.model
        limit = max(model_norm, 1.0)
        if usual_update:
            smallest_limit = max(SMALL_SHARE * max(model_norm, 1.0), self.plausible)
            limit = max(norms * usual_update, smallest_limit)
        yield self.update, "update", usual_update, limit
        # Running statistics: rounding only if those of the others rest.
        limit = MAX_ROUNDING * max(statistics_norm, 1.0)
        if usual_buffers:
            limit = max(norms * usual_buffers, statistics_norm)
        yield self.buffers, "change of running statistics", usual_buffers, limit


class Usual:
    """What a client of a number of steps would send: medians over the clients of an exchange that did the same task.

    An update of s steps is at most as long as the sum of its steps. So a client with s steps is
    compared with the median over the others, of s' steps each, of ``norm * max(1, s / s')``. Who
    made fewer steps than another one is compared with its whole norm: with training, steps become
    shorter.
    """

    def __init__(self) -> None:
        self.groups: dict[Hashable, dict[frozenset[int], list[Length]]] = {}
        self.medians: dict[Hashable, tuple[float, float] | None] = {}

    def add(self, lengths: Iterable[Length]) -> None:
        """Add the lengths of further clients."""
        for length in lengths:
            self.groups.setdefault(length.task, {}).setdefault(length.start, []).append(length)
        self.medians = {}

    def same_start(self, length: Length) -> tuple[float, float] | None:
        """The usual lengths among clients that started from one of the same models.

        Args:
            length: The length to compare with them.

        Returns:
            Those of update and buffers; ``None`` if there are fewer clients than
            :data:`~coterie.robust.PEERS`.
        """
        return self._of(length, length.start)

    def same_task(self, length: Length) -> tuple[float, float] | None:
        """The usual lengths among clients that did the same task.

        Args:
            length: The length to compare with them.

        Returns:
            Those of update and buffers; ``None`` if there are fewer clients than
            :data:`~coterie.robust.PEERS`.
        """
        return self._of(length, None)

    def _of(self, length: Length, start_rows: frozenset[int] | None) -> tuple[float, float] | None:
        """The usual lengths among clients that started from any of these models, or among all, for a number of steps."""
        # Medians are computed once for each task, start and number of steps.
        median_key = (length.task, start_rows, length.steps)
        if median_key not in self.medians:
            peers: list[Length] = []
            for start_of_members, members in self.groups[length.task].items():
                if start_rows is None or start_of_members & start_rows:
                    peers += members
            if len(peers) < PEERS:
                self.medians[median_key] = None
            else:
                # norm * max(1, s / s')
                steps_ratio = np.maximum(
                    1.0, length.steps / np.array([peer.steps for peer in peers])
                )
                scaled_updates = steps_ratio * np.array([peer.update for peer in peers])
                scaled_buffers = steps_ratio * np.array([peer.buffers for peer in peers])
                self.medians[median_key] = (_median(scaled_updates), _median(scaled_buffers))
        return self.medians[median_key]


def _median(norms: np.ndarray) -> float:
    """The median of the norms ``(n,)`` above zero; 0 if there are fewer of them than :data:`~coterie.robust.PEERS`."""
    positive_norms = norms[norms > 0]
    return float(np.median(positive_norms)) if len(positive_norms) >= PEERS else 0.0


class Extent(NamedTuple):
    """What the length of an update is judged by, besides its task.

    Attributes:
        update: L2 norm over the parameters.
        buffers: L2 norm over the columns after them.
        negative: Whether a running variance would become negative.
    """

    update: float
    buffers: float
    negative: bool


def extent(
    row: torch.Tensor, start: torch.Tensor, wire: Wire, keep: torch.Tensor | None = None
) -> Extent:
    """Measure one update.

    Args:
        row: The update, shape ``(d,)``.
        start: The model from which it started, shape ``(d,)``.
        wire: Defines which columns are parameters and, without a rotation, which are variances.
        keep: Mask ``(d,)`` of the columns that stay at the client, which do not count; None for
            none.

    Returns:
        Its norms, and whether a running variance would become negative.
    """
    # Parameters come first in a row, running statistics after them.
    parameter_count = wire.layout.trainable
    if keep is not None:
        row = row.masked_fill(keep, 0.0)
    # A map may move variances, so that their columns are not known.
    variances = wire.layout.variances if wire.boundary.rotation == "none" else ()
    has_negative = any(
        float((start[variance_columns] + row[variance_columns]).min()) < -MAX_ROUNDING
        for variance_columns in variances
    )
    # Two thirds of the time of Tensor.norm.
    vector_norm = torch.linalg.vector_norm
    buffer_norm = float(vector_norm(row[parameter_count:])) if parameter_count < len(row) else 0.0
    return Extent(float(vector_norm(row[:parameter_count])), buffer_norm, has_negative)


def lengths(
    plan: Plan,
    updates: Mapping[Client, Sequence[torch.Tensor]],
    chosen: Mapping[Client, tuple[int, ...]],
    wire: Wire,
    steps: Mapping[Client, float],
) -> dict[Client, Length]:
    """Compute the lengths of the updates of one exchange.

    Args:
        plan: The plan of the exchange.
        updates: For each client that trained, its update ``(d,)``, or those of both halves. Columns
            of layers that stay at the client do not count.
        chosen: The rows of the plan's models from which each client started.
        wire: Defines which columns are parameters and, without a rotation, which are variances.
        steps: Client -> the number of steps that it made, see ``steps_of``.

    Returns:
        Client -> length.
    """
    # The model from which each client started: the mean of those that it chose.
    start_models = _start_models(plan, chosen, updates)
    # Columns of layers that stay at a client do not count.
    masks_of_layers = {}
    for kept_layers in {plan.tasks[client].local_layers for client in updates}:
        if kept_layers:
            masks_of_layers[kept_layers] = wire.layout.mask(kept_layers)
    extents_of_clients = {}
    for client, updates_of_client in updates.items():
        start_model = start_models[chosen[client]]
        kept_mask = masks_of_layers.get(plan.tasks[client].local_layers)
        extents_of_clients[client] = [
            extent(row, start_model, wire, kept_mask) for row in updates_of_client
        ]
    return lengths_of(plan, extents_of_clients, chosen, wire, steps)


def _start_models(
    plan: Plan, chosen: Mapping[Client, tuple[int, ...]], clients: Iterable[Client]
) -> dict[tuple[int, ...], torch.Tensor]:
    """The rows of the plan that a client chose -> their mean, the model from which it started."""
    distinct_choices = {chosen[client] for client in clients}
    return {chosen_rows: plan.models[list(chosen_rows)].mean(0) for chosen_rows in distinct_choices}


def lengths_of(
    plan: Plan,
    extents: Mapping[Client, Sequence[Extent]],
    chosen: Mapping[Client, tuple[int, ...]],
    wire: Wire,
    steps: Mapping[Client, float],
) -> dict[Client, Length]:
    """Compute the lengths of updates that were measured elsewhere.

    Args:
        plan: The plan of the exchange.
        extents: For each client that trained, the measure of its update, or those of both halves.
        chosen: The rows of the plan's models from which each client started.
        wire: Defines which columns are parameters.
        steps: Client -> the number of steps that it made, see ``steps_of``.

    Returns:
        Client -> length.
    """
    parameter_count = wire.layout.trainable
    model_norms = {}
    for chosen_rows, start_model in _start_models(plan, chosen, extents).items():
        model_norms[chosen_rows] = (
            float(start_model[:parameter_count].norm()),
            float(start_model[parameter_count:].norm()),
        )
    # Waves are counted in the order of the clients' ids, so they do not depend on the engine.
    position_of_client = {client: place for place, client in enumerate(sorted(plan.tasks))}
    lengths_of_clients = {}
    for client, halves in extents.items():
        task = plan.tasks[client]
        chosen_rows = chosen[client]
        # Of two halves, the longer one counts.
        has_negative = any(half.negative for half in halves) and not task.gradient
        lengths_of_clients[client] = Length(
            update=max(half.update for half in halves),
            buffers=max(half.buffers for half in halves),
            model=model_norms[chosen_rows],
            gradient=task.gradient,
            task=_comparable_part(task),
            start=frozenset(chosen_rows),
            steps=steps[client],
            plausible=wire.boundary.clip or 0.0,
            wave=position_of_client[client] // CHUNK,
            flaw="its running variance is negative" if has_negative else None,
        )
    return lengths_of_clients


def _comparable_part(task: Task) -> Hashable:
    """What tasks have in common whose updates can be compared step by step: not how many epochs or steps they have."""
    training = task.training and replace(task.training, epochs=1, steps=None)
    layers = tuple(stage.layers for stage in task.stages)
    return training, layers, task.gradient, task.halves, task.local_layers


def steps_of(task: Task, training: Training, examples: int) -> float:
    """Compute the number of mini-batch steps that a client makes in a task.

    An app that trains in its own way may make another number; the limit leaves room for that.

    Args:
        task: The task.
        training: The training settings of the experiment.
        examples: The number of the client's training examples.

    Returns:
        The number of steps, at least 1; 1 for a gradient.
    """
    if task.gradient:
        return 1.0
    task_training = task.how(training)
    # Steps of one pass, then of all stages.
    steps_per_pass = math.ceil(examples / task_training.batch) if task_training.batch else 1
    training_of_stages = []
    for stage in task.stages:
        if stage.epochs is None:
            training_of_stages.append(task_training)
        else:
            training_of_stages.append(replace(task_training, epochs=stage.epochs, steps=None))
    steps = 0
    for stage_training in training_of_stages or [task_training]:
        steps += stage_training.steps or stage_training.epochs * steps_per_pass
    return float(max(steps, 1))
