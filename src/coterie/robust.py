"""Limits on the effect of one client on the others: length of updates, number of examples, and rule of averaging.

Both engines apply them before anything is averaged or compared. docs/adversaries.md has measurements of their effect.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import torch

from coterie.boundary import Wire
from coterie.core import CHUNK, Averaging, Client, Plan
from coterie.settings import SettingError, setting
from coterie.settings.calls import public

PEERS = 3
"""The smallest number of clients whose median norm is a reference: one hostile client among three cannot choose it."""

LOOSE = 20.0
"""An update that is longer than its limit by this factor is refused, and not only scaled down. The factor is also the bound
if the others started from other models: in measurements, honest newcomers sent updates of 25 times the norm of clients that
had long converged, and of at most 4.5 times that of clients that started from the same model (docs/adversaries.md)."""

LONGEST = 1000.0
"""No training makes an update longer than this many times the norm of its model (or than this number, if the model's norm is
below 1). This is the bound if no other client did the same task."""

ROUNDING = 1e-6
"""The greatest change by rounding, relative to a model's norm (or to 1)."""


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

    norms: float | None = setting(
        2.0,
        "maximum norm of an update, in medians of the norms of clients that started from the same model; larger "
        f"updates are scaled down to it, and refused from {LOOSE:g} times this norm on; none: no limit",
        gt=1,
    )
    most_examples: int = setting(10**9, "number of examples above which a client's reply is refused", ge=1)

    def check_plan(self, plan: Plan, masks: bool = False) -> None:
        """Check that the rule of averaging can be computed from what the server sees.

        Args:
            plan: The plan.
            masks: Whether clients send masked numbers.

        Raises:
            SettingError: The rule needs single updates, and the plan asks for sums, or clients mask their numbers.
        """
        if self.needs_all and masks:
            raise SettingError(f"robust.mean must be mean with boundary.masks, got {self.mean}, which needs single updates")
        if self.needs_all and any(part.need == "sums" for _, part in plan.leaves()):
            raise SettingError(
                f"robust.mean must be mean for a method that asks for sums only, such as split-half-sums, got {self.mean}, "
                "which needs single updates"
            )

    def counted(self, claims: Mapping[Client, int]) -> dict[Client, int]:
        """Compute how many examples each client of an exchange counts for.

        Refused clients are included: the engines do not always know of them in time.

        Args:
            claims: Client -> the number of examples that it reports.

        Returns:
            Client -> the number of examples that it counts for.
        """
        clients = sorted(claims)
        most = np.array([min(claims[client], self.most_examples) for client in clients], dtype=np.int64)
        return dict(zip(clients, self.bounded(most).tolist(), strict=True))

    def limited(self, lengths: Mapping[Client, Length], claims: Mapping[Client, int], usual: Usual | None = None) -> Limited:
        """Decide which well-formed replies are refused or scaled down.

        Args:
            lengths: The length of the update of each client that trained, see :func:`~coterie.robust.lengths`.
            claims: Client -> the number of examples that it reports.
            usual: The usual lengths in earlier waves of the same exchange; these lengths are added to it.

        Returns:
            The refused clients, and the factors of the others.
        """
        why = "it claims {:,} examples, more than {:,} (robust.most_examples)"
        refused = {c: why.format(count, self.most_examples) for c, count in claims.items() if count > self.most_examples}
        refused |= {client: one.flaw for client, one in lengths.items() if one.flaw}
        scaled: dict[Client, float] = {}
        if self.norms is None:
            return Limited(refused, scaled)
        usual = usual or Usual()
        for _, wave in groupby(sorted(lengths), key=lambda client: lengths[client].wave):
            clients = list(wave)
            usual.add(lengths[client] for client in clients)
            for client in clients:
                own, near = lengths[client], usual.near(lengths[client])
                if client in refused:
                    continue
                if found := own.beyond(near or usual.same_task(own), LOOSE * self.norms):
                    refused[client] = found
                elif near and (factor := own.factor(near, self.norms)) < 1:
                    scaled[client] = factor
        return Limited(refused, scaled)


AS_PUBLISHED = Robust(norms=None, share=1.0)
"""No limits, as in the experiments of the papers."""


@dataclass(frozen=True)
class Length:
    """The length of an update.

    Attributes:
        update: L2 norm over the parameters; for two halves, that of the longer one.
        buffers: The same over the columns after them: running statistics such as those of BatchNorm.
        model: Norms of the model from which it started, over the same two ranges of columns.
        gradient: Whether it is a gradient, and not the change by training.
        task: A key that is equal for clients that did the same work.
        start: The models from which it started, as rows of the plan.
        wave: Number of the client's wave. It is compared with the clients of this wave and of those before, so the result
            does not depend on how many replies are held at a time.
        flaw: The reason to refuse it whatever the others sent, if there is one.
    """

    update: float
    buffers: float
    model: tuple[float, float]
    gradient: bool
    task: Hashable
    start: frozenset[int]
    wave: int = 0
    flaw: str | None = None

    def beyond(self, usual: Sequence[float] | None, factor: float) -> str | None:
        """Find a reason why it is too long to be plausible.

        Args:
            usual: The usual lengths, see :class:`Usual`; ``None`` if they are not known.
            factor: The greatest plausible length, in multiples of the usual one.

        Returns:
            The reason, or ``None`` if it is plausible.
        """
        if not self.gradient and self.update > LONGEST * max(self.model[0], 1.0):
            return f"its update has norm {self.update:.3g}, more than {LONGEST:g} times its model's {self.model[0]:.3g}"
        for own, name, median, most in self._compared(usual, factor):
            if own > most:
                bound = f"{factor:g} times the median {median:.3g}"
                return f"its {name} has norm {own:.3g}, more than {bound} (robust.norms)"
        return None

    def factor(self, usual: Sequence[float], factor: float) -> float:
        """Compute the factor that makes it as long as is plausible.

        Args:
            usual: The usual lengths, see :class:`Usual`.
            factor: The greatest plausible length, in multiples of the usual one.

        Returns:
            The factor; 1 if it is shorter.
        """
        return min([1.0, *(most / own for own, _, _, most in self._compared(usual, factor) if own)])

    def _compared(self, usual: Sequence[float] | None, factor: float) -> Iterator[tuple[float, str, float, float]]:
        """(norm, its name, the usual one, the greatest plausible one) of the update and of the columns after it.

        If the updates of the others are zero, the parameters may still move, as for a client that has something left to
        learn. Running statistics may not: they rest with all clients or with none.
        """
        resting = max(self.model[0], 1.0), ROUNDING * max(self.model[1], 1.0)
        names = "update", "change of running statistics"
        for own, name, median, rest in zip((self.update, self.buffers), names, usual or (), resting, strict=usual is not None):
            yield own, name, median, factor * median if median else rest


class Usual:
    """The usual lengths of updates in an exchange: medians over clients that did the same task.

    The lengths are kept in order as they arrive, because the medians are asked for after every wave of clients.
    """

    def __init__(self) -> None:
        self.groups: dict[Hashable, dict[frozenset[int], _Norms]] = {}
        self.found: dict[Hashable, tuple[float, float] | None] = {}

    def add(self, known: Iterable[Length]) -> None:
        """Add the lengths of further clients."""
        for one in known:
            self.groups.setdefault(one.task, {}).setdefault(one.start, _Norms()).add(one)
        self.found = {}

    def near(self, own: Length) -> tuple[float, float] | None:
        """The median lengths of clients that started from one of the same models.

        Args:
            own: The length to compare with them.

        Returns:
            The medians of update and buffers; ``None`` if there are fewer clients than :data:`~coterie.robust.PEERS`.
        """
        return self._of(own.task, own.start)

    def same_task(self, own: Length) -> tuple[float, float] | None:
        """The median lengths of clients that did the same task.

        Args:
            own: The length to compare with them.

        Returns:
            The medians of update and buffers; ``None`` if there are fewer clients than :data:`~coterie.robust.PEERS`.
        """
        return self._of(own.task, None)

    def _of(self, task: Hashable, rows: frozenset[int] | None) -> tuple[float, float] | None:
        """The medians of clients that started from any of these models, or of all."""
        key = task, rows
        if key not in self.found:
            groups = self.groups[task].items()
            self.found[key] = _medians([norms for start, norms in groups if rows is None or start & rows])
        return self.found[key]


class _Norms:
    """The norms of clients that started from the same models: their number, and the norms above zero in order."""

    def __init__(self) -> None:
        self.clients = 0
        self.update: list[float] = []
        self.buffers: list[float] = []

    def add(self, one: Length) -> None:
        self.clients += 1
        for norms, norm in ((self.update, one.update), (self.buffers, one.buffers)):
            if norm > 0:
                insort(norms, norm)


def _medians(groups: Sequence[_Norms]) -> tuple[float, float] | None:
    """The medians of update and buffers; ``None`` if there are fewer clients than :data:`~coterie.robust.PEERS`."""
    if sum(norms.clients for norms in groups) < PEERS:
        return None
    return _median([norms.update for norms in groups]), _median([norms.buffers for norms in groups])


def _median(groups: Sequence[list[float]]) -> float:
    """The median of all norms, each group in order; 0 if there are fewer of them than :data:`~coterie.robust.PEERS`."""
    norms = groups[0] if len(groups) == 1 else sorted(chain.from_iterable(groups))
    half = len(norms) // 2
    return (norms[half] + norms[~half]) / 2 if len(norms) >= PEERS else 0.0


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


def extent(row: torch.Tensor, start: torch.Tensor, wire: Wire, keep: torch.Tensor | None = None) -> Extent:
    """Measure one update.

    Args:
        row: The update, shape ``(d,)``.
        start: The model from which it started, shape ``(d,)``.
        wire: Defines which columns are parameters and, without a rotation, which are variances.
        keep: Mask ``(d,)`` of the columns that stay at the client, which do not count; None for none.

    Returns:
        Its norms, and whether a running variance would become negative.
    """
    row, stop = row if keep is None else row.masked_fill(keep, 0.0), wire.layout.trainable
    variances = wire.layout.variances if wire.boundary.rotation == "none" else ()
    negative = any(float((start[part] + row[part]).min()) < -ROUNDING for part in variances)
    norm = torch.linalg.vector_norm  # two thirds of the time of Tensor.norm
    return Extent(float(norm(row[:stop])), float(norm(row[stop:])) if stop < len(row) else 0.0, negative)


def lengths(
    plan: Plan, updates: Mapping[Client, Sequence[torch.Tensor]], chosen: Mapping[Client, tuple[int, ...]], wire: Wire
) -> dict[Client, Length]:
    """Compute the lengths of the updates of one exchange.

    Args:
        plan: The plan of the exchange.
        updates: For each client that trained, its update ``(d,)``, or those of both halves. Columns of layers that stay at
            the client do not count.
        chosen: The rows of the plan's models from which each client started.
        wire: Defines which columns are parameters and, without a rotation, which are variances.

    Returns:
        Client -> length.
    """
    starts = {rows: plan.models[list(rows)].mean(0) for rows in {chosen[client] for client in updates}}
    masks = {keep: wire.layout.mask(keep) for keep in {plan.tasks[client].keep for client in updates} if keep}
    extents = {
        client: [extent(row, starts[chosen[client]], wire, masks.get(plan.tasks[client].keep)) for row in rows]
        for client, rows in updates.items()
    }
    return lengths_of(plan, extents, chosen, wire)


def lengths_of(
    plan: Plan, extents: Mapping[Client, Sequence[Extent]], chosen: Mapping[Client, tuple[int, ...]], wire: Wire
) -> dict[Client, Length]:
    """Compute the lengths of updates that were measured elsewhere.

    Args:
        plan: The plan of the exchange.
        extents: For each client that trained, the measure of its update, or those of both halves.
        chosen: The rows of the plan's models from which each client started.
        wire: Defines which columns are parameters.

    Returns:
        Client -> length.
    """
    stop = wire.layout.trainable
    starts = {rows: plan.models[list(rows)].mean(0) for rows in {chosen[client] for client in extents}}
    models = {rows: (float(row[:stop].norm()), float(row[stop:].norm())) for rows, row in starts.items()}
    places = {client: place for place, client in enumerate(sorted(plan.tasks))}
    found = {}
    for client, each in extents.items():
        task, began = plan.tasks[client], chosen[client]
        update, buffers = max(one.update for one in each), max(one.buffers for one in each)
        kind = task.training, task.epochs, task.stages, task.gradient, task.halves, task.keep
        negative = any(one.negative for one in each) and not task.gradient
        flaw = "its running variance is negative" if negative else None
        wave = places[client] // CHUNK
        found[client] = Length(update, buffers, models[began], task.gradient, kind, frozenset(began), wave, flaw)
    return found
