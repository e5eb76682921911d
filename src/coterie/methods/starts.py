"""Starts of methods whose clients choose among models: what is kept of them, who chose what, and the reasons told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
from torch import Tensor

from coterie.core import Client, Groups, Note, Replies, as_groups, state
from coterie.methods.initialisation import Centres, capped

Choice = tuple[int, ...]
"""The models that a client took: rows, that of least loss first."""


@state("restarts.start")
class Start:
    """models ``(k, d)``. round: rounds trained. chosen: client -> its last choice, of those that were heard. centres:
    k-means++ under way, None once the models are made."""

    models: Tensor
    round: int = 0
    chosen: Mapping[Client, Choice] = field(default_factory=dict)
    centres: Centres | None = None


@state("model-choice")
class ChoosingState:
    """starts: all of them until they are compared, then the best alone. at: the one that is trained; ``len(starts)``
    where they are to be compared. notes: of the last exchange."""

    clients: tuple[Client, ...]
    starts: tuple[Start, ...]
    at: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def compares(self) -> bool:
        return self.at == len(self.starts)


def of_all(clients: tuple[Client, ...], chosen: Mapping[Client, Choice]) -> dict[Client, Choice]:
    """Every client's choice; for those never heard the most frequent one, of equally frequent ones the first, else row 0.

    >>> of_all((1, 4, 5, 9), {4: (2,), 5: (0,), 9: (2,)})
    {1: (2,), 4: (2,), 5: (0,), 9: (2,)}
    """
    counts = Counter(chosen.values())
    common = min(counts, key=lambda choice: (-counts[choice], choice), default=(0,))
    return {c: chosen.get(c, common) for c in clients}


def groups_of(choices: Mapping[Client, Choice]) -> Groups:
    """Clients by their first choice, the model of least loss."""
    members: dict[int, list[Client]] = {}
    for client, choice in choices.items():
        members.setdefault(choice[0], []).append(client)
    return as_groups(members.values())


def least(losses: Sequence[float], count: int) -> Choice:
    """The rows of the ``count`` smallest losses, the smallest first; of equal ones the first.

    >>> least((0.5, 0.2, 0.9, 0.2), 3)
    (1, 3, 0)
    """
    return tuple(sorted(range(len(losses)), key=lambda row: losses[row])[:count])


def no_number_last(loss: float) -> tuple[bool, float]:
    """Sorts losses so that one that is no number is as bad as any, as clients have it.

    >>> min((float("nan"), 0.5), key=no_number_last)
    0.5
    """
    return math.isnan(loss), loss


def mean_losses(replies: Replies, starts: int, taken: int) -> np.ndarray:
    """``(starts,)`` means over clients of the ``taken`` least losses among each start's models; zeros where nobody measured.

    A loss that is no number is as bad as any; clients that have no finite value at all are left out. One that is far above
    all others is :func:`capped`.
    """
    if not replies.clients:
        return np.zeros(starts)
    losses = np.nan_to_num(np.array(replies.losses).reshape(len(replies.clients), starts, -1), nan=np.inf, posinf=np.inf)
    best = np.sort(losses, axis=2)[:, :, :taken].mean(axis=2)
    told = best[np.isfinite(best).any(axis=1)]
    return capped(told).mean(axis=0) if len(told) else np.zeros(starts)


# -- reasons ------------------------------------------------------------------------------------------------------------


def round_note(state: ChoosingState, before: Start, after: Start, replies: Replies) -> Note:
    """Who chose what; with the groups, where they changed and clients are served by this start."""
    old, new = (of_all(state.clients, start.chosen) for start in (before, after))
    moved = sum(1 for c, choice in after.chosen.items() if before.chosen.get(c, choice) != choice)
    taken = Counter(row for choice in after.chosen.values() for row in choice)
    counts = ", ".join(str(taken[row]) for row in range(len(after.models)))
    text = f"{len(replies.clients)} clients answered, {moved} changed their choice; models are chosen by {counts} clients"
    numbers = {"moved": float(moved)}
    smallest = {c: min(losses, key=no_number_last) for c, losses in zip(replies.clients, replies.losses, strict=True) if losses}
    if smallest:
        numbers["loss"] = float(np.mean(list(smallest.values())))
        text += f", mean least training loss {numbers['loss']:.3g}"
    if len(state.starts) > 1:
        text = f"start {state.at + 1} of {len(state.starts)}: {text}"
    parts = groups_of(new) if state.at == 0 and (groups_of(new) != groups_of(old) or not before.chosen) else ()
    rows = {c: float(choice[0]) for c, choice in zip(replies.clients, replies.chosen, strict=True)}
    return Note(
        kind="cluster" if parts else "keep", clients=state.clients, text=text, parts=parts, numbers=numbers,
        values={"model": rows, "loss": smallest, **losses_of(replies)} if smallest else {"model": rows},
    )  # fmt: skip


def losses_of(replies: Replies) -> dict[str, dict[Client, float]]:
    """``loss j`` -> client -> its training loss with model j, of those that measured all k."""
    told = [(client, losses) for client, losses in zip(replies.clients, replies.losses, strict=True) if losses]
    count = max((len(losses) for _, losses in told), default=0)
    return {f"loss {j}": {client: losses[j] for client, losses in told if len(losses) == count} for j in range(count)}


def restart_note(state: ChoosingState, start: Start, best: int, losses: np.ndarray, heard: int) -> Note:
    """The means compared."""
    shown = ", ".join(f"{loss:.3g}" for loss in losses)
    text = f"start {best + 1} of {len(losses)} goes on; mean least training losses by {heard} clients: {shown}"
    parts = groups_of(of_all(state.clients, start.chosen))
    numbers = {f"start{i + 1}": float(loss) for i, loss in enumerate(losses)}
    return Note(kind="cluster", clients=state.clients, text=text, parts=parts, numbers=numbers)
