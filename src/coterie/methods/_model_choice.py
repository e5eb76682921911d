"""What IFCA and FLSC share: k models from which every client chooses by its training loss, and how they come to be.

A *start* is a set of k first models and the models trained from them. With ``restarts`` above 1,
several starts are trained for ``restart_rounds`` rounds each, one after the other. Then the same
clients measure all their models in one exchange. Each client's loss with a start is its training
loss with the model that it would choose, or the mean loss with the models that it would choose. The
start with the smallest mean of these losses is kept. Until then the first start serves every
client. Learning rates decay with the rounds of the start itself, so that all starts are trained in
the same way. Rounds of all starts count as communication rounds. Exchanges that only measure, and
those of k-means++, belong to the round that follows them.

All of this is in the costs of a method: there are no exchanges except those that ``plan`` asks for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np
import torch

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Groups,
    Note,
    Plan,
    Replies,
    Task,
    groups_by,
    joined,
    state,
    without,
)
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, check, setting

# ----------------------------------------------------------------------------------------------------
# Initialisation by k-means++: k first models, each trained by one client that the models so far
# serve badly.
#
# After D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, with
# a client's training loss instead of the squared distance; ours. All models of a start are trained
# from the same draw, so that they differ only by their clients' data. Two kinds of exchange
# alternate:
#
# - one client trains the next model;
# - the clients asked measure the models that they have not measured yet.
#
# The first client is drawn uniformly. Each next client is drawn with probability proportional to
# its least loss minus the smallest such loss of all clients, so that a loss that all clients have
# in common does not count.


MOST_CENTRES = 50
"""The largest k for k-means++: an engine stops a round that has too many exchanges."""

ATTEMPTS = 5
"""Number of drawn clients in a row without an answer after which a model stays untrained, so that
no run waits for ever."""


@state("model-choice.centres")
class Centres:
    """State of k-means++.

    Attributes:
        made: number of models trained so far.
        measuring: whether clients measure in the next exchange; else one client trains.
        losses: client -> its training losses with the first models, in their order, as many as it
            has measured.
        missed: number of drawn clients in a row that did not answer.
    """

    made: int = 0
    measuring: bool = False
    losses: Mapping[Client, tuple[float, ...]] = field(default_factory=dict)
    missed: int = 0


def plan_centre(
    centres: Centres,
    models: torch.Tensor,
    clients: tuple[Client, ...],
    asked: tuple[Client, ...],
    cohort: Cohort,
    epochs: int,
) -> Plan:
    """Plan the next exchange of k-means++.

    Args:
        centres: the state of k-means++.
        models: ``(k, d)``, the models trained so far; the other rows hold the draw.
        clients: clients among which the next one is drawn.
        asked: clients that measure.
        cohort: the clients that are present, and the seed.
        epochs: local epochs of a client that trains a first model.
    """
    if centres.measuring:
        tasks = {c: _measure(len(centres.losses.get(c, ())), centres.made) for c in asked}
    else:
        drawn = _draw(centres, [c for c in clients if c in cohort.present], cohort)
        tasks = {c: Task(offered=(centres.made,), epochs=epochs, lr_round=0) for c in drawn}
    return Plan(models=models, tasks=tasks, need="mean", ends_round=False)


def _measure(first: int, stop: int) -> Task:
    return Task(offered=tuple(range(first, stop)), epochs=0, measure="train")


def _draw(centres: Centres, present: list[Client], cohort: Cohort) -> tuple[Client, ...]:
    """Draw the client that trains next, from those that have measured every model, or from all if none has."""
    rng = numpy_generator(cohort.seed, Purpose.CHOICE, cohort.exchange)
    known = [c for c in present if centres.made and len(centres.losses.get(c, ())) == centres.made]
    if not known:
        return (int(rng.choice(present)),) if present else ()
    least = np.array([min(centres.losses[c]) for c in known])
    excess = capped(least - least.min())
    return (int(rng.choice(known, p=excess / excess.sum() if excess.any() else None)),)


def capped(values: np.ndarray) -> np.ndarray:
    """Limit each of n clients' numbers to twice the second greatest, so that no client decides alone.

    Args:
        values: ``(n, ...)``, numbers >= 0.

    Example:
        >>> capped(np.array([1.0, 2.0, 3e38]))
        array([1., 2., 4.])
    """
    return (
        values if len(values) < 3 else np.minimum(values, 2 * np.partition(values, -2, axis=0)[-2])
    )


def step_centre(
    centres: Centres, models: torch.Tensor, replies: Replies
) -> tuple[Centres | None, torch.Tensor]:
    """Process the replies of an exchange of k-means++.

    Args:
        centres: the state before the exchange.
        models: ``(k, d)``, the models before the exchange.
        replies: replies of the exchange.

    Returns:
        The new state, or None when all k models are trained; and the models ``(k, d)``.
    """
    if centres.measuring:
        measured = zip(replies.clients, replies.losses, strict=True)
        new = {
            c: (*centres.losses.get(c, ()), *losses)
            for c, losses in measured
            if np.isfinite(losses).all()
        }
        return replace(centres, measuring=False, losses={**centres.losses, **new}), models
    missed = 0 if replies.clients else centres.missed + 1
    if replies.clients:
        models = models + replies.mean_updates  # zero except in the row that was trained
    elif missed < ATTEMPTS:
        return replace(centres, missed=missed), models
    made = centres.made + 1
    return None if made == len(models) else replace(
        centres, made=made, measuring=True, missed=missed
    ), models


# ----------------------------------------------------------------------------------------------------
# Starts and choices: state, groups and notes of methods whose clients choose among models.


Choice = tuple[int, ...]
"""The models that a client chose: rows, the one of least loss first."""


@state("restarts.start")
class Start:
    """A start.

    Attributes:
        models: ``(k, d)``, its models.
        round: number of rounds trained.
        chosen: client -> its last choice, for clients that have answered.
        centres: state of k-means++; None when the first models are complete.
    """

    models: torch.Tensor
    round: int = 0
    chosen: Mapping[Client, Choice] = field(default_factory=dict)
    centres: Centres | None = None


@state("model-choice")
class ChoosingState:
    """State of a method whose clients choose among models.

    Attributes:
        clients: all ids.
        starts: all starts until they are compared, then only the best.
        at: index of the start in training; ``len(starts)`` when the starts are to be compared.
        notes: notes of the last exchange.
    """

    clients: tuple[Client, ...]
    starts: tuple[Start, ...]
    at: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def compares(self) -> bool:
        """Whether the next exchange compares the starts."""
        return self.at == len(self.starts)


Chosen = TypeVar("Chosen", int, Choice)


def of_all(
    clients: tuple[Client, ...], chosen: Mapping[Client, Chosen], default: Chosen
) -> dict[Client, Chosen]:
    """Return every client's choice; clients that never answered get the most frequent one.

    Of equally frequent choices, the first counts.

    Args:
        clients: all clients.
        chosen: client -> its choice, for clients that have answered: rows, or one row.
        default: the choice of all if no client has answered.

    Example:
        >>> of_all((1, 4, 5, 9), {4: (2,), 5: (0,), 9: (2,)}, (0,))
        {1: (2,), 4: (2,), 5: (0,), 9: (2,)}
    """
    counts = Counter(chosen.values())
    common = min(counts, key=lambda choice: (-counts[choice], choice), default=default)
    return {c: chosen.get(c, common) for c in clients}


def groups_of(choices: Mapping[Client, Choice]) -> Groups:
    """Group clients by their first choice, the model of least loss."""
    return groups_by({client: choice[0] for client, choice in choices.items()})


def least(losses: Sequence[float], count: int) -> Choice:
    """Return the rows of the ``count`` smallest losses, the smallest first; of equal losses the first.

    Example:
        >>> least((0.5, 0.2, 0.9, 0.2), 3)
        (1, 3, 0)
    """
    return tuple(sorted(range(len(losses)), key=lambda row: losses[row])[:count])


def no_number_last(loss: float) -> tuple[bool, float]:
    """Return a sort key that puts NaN after all other losses, as clients do.

    Example:
        >>> min((float("nan"), 0.5), key=no_number_last)
        0.5
    """
    return math.isnan(loss), loss


def mean_losses(replies: Replies, starts: int, taken: int) -> np.ndarray:
    """Return for each start the mean over clients of their ``taken`` least losses with its models.

    NaN counts as infinite. Clients without any finite value are left out. A value far above all
    others is :func:`capped`.

    Args:
        replies: replies of the exchange that measured all models.
        starts: number of starts.
        taken: number of models that a client chooses.

    Returns:
        ``(starts,)``, the means; zeros where no client measured.
    """
    if not replies.clients:
        return np.zeros(starts)
    losses = np.nan_to_num(
        np.array(replies.losses).reshape(len(replies.clients), starts, -1),
        nan=np.inf,
        posinf=np.inf,
    )
    best = np.sort(losses, axis=2)[:, :, :taken].mean(axis=2)
    finite = best[np.isfinite(best).any(axis=1)]
    return capped(finite).mean(axis=0) if len(finite) else np.zeros(starts)


# -- notes
# --------------------------------------------------------------------------------------------------------------


def round_note(state: ChoosingState, before: Start, after: Start, replies: Replies) -> Note:
    """Describe the choices of a round, with the groups if they changed and this start serves the clients.

    Args:
        state: the state before the round.
        before: the start before the round.
        after: the start after the round.
        replies: replies of the round.
    """
    old, new = (of_all(state.clients, start.chosen, (0,)) for start in (before, after))
    moved = sum(1 for c, choice in after.chosen.items() if before.chosen.get(c, choice) != choice)
    taken = Counter(row for choice in after.chosen.values() for row in choice)
    counts = ", ".join(str(taken[row]) for row in range(len(after.models)))
    text = f"{len(replies.clients)} clients answered, {moved} changed their choice; models are chosen by {counts} clients"
    numbers = {"moved": float(moved)}
    smallest = {
        c: min(losses, key=no_number_last)
        for c, losses in zip(replies.clients, replies.losses, strict=True)
        if losses
    }
    if smallest:
        numbers["loss"] = float(np.mean(list(smallest.values())))
        text += f", mean least training loss {numbers['loss']:.3g}"
    if len(state.starts) > 1:
        text = f"start {state.at + 1} of {len(state.starts)}: {text}"
    parts = (
        groups_of(new)
        if state.at == 0 and (groups_of(new) != groups_of(old) or not before.chosen)
        else ()
    )
    rows = {c: float(choice[0]) for c, choice in zip(replies.clients, replies.chosen, strict=True)}
    return Note(
        kind="cluster" if parts else "keep",
        effect="divides" if parts else "keeps",
        clients=state.clients,
        text=text,
        parts=parts,
        numbers=numbers,
        values={"model": rows, "loss": smallest, **losses_of(replies)}
        if smallest
        else {"model": rows},
    )


def losses_of(replies: Replies) -> dict[str, dict[Client, float]]:
    """Return ``loss of model j`` -> client -> its training loss with model j, for clients that measured all k models."""
    found = [
        (client, losses)
        for client, losses in zip(replies.clients, replies.losses, strict=True)
        if losses
    ]
    count = max((len(losses) for _, losses in found), default=0)
    whole = [(client, losses) for client, losses in found if len(losses) == count]
    return {
        f"loss of model {j}": {client: losses[j] for client, losses in whole} for j in range(count)
    }


def restart_note(
    state: ChoosingState, start: Start, best: int, losses: np.ndarray, heard: int
) -> Note:
    """Describe the comparison of the starts.

    Args:
        state: the state before the comparison.
        start: the start that is kept.
        best: its index.
        losses: mean loss of each start.
        heard: number of clients that measured.
    """
    shown = ", ".join(f"{loss:.3g}" for loss in losses)
    text = f"start {best + 1} of {len(losses)} goes on; mean least training losses by {heard} clients: {shown}"
    parts = groups_of(of_all(state.clients, start.chosen, (0,)))
    numbers = {f"start{i + 1}": float(loss) for i, loss in enumerate(losses)}
    return Note(
        kind="cluster",
        effect="divides",
        clients=state.clients,
        text=text,
        parts=parts,
        numbers=numbers,
    )


MOST_MODELS = 1000
"""The largest number of models, or of starts: all are drawn, and held in memory, before the first
round."""


@dataclass(frozen=True, kw_only=True)
class Choosing(ABC):
    """Settings and initialisation of methods whose clients choose among k models; a subclass defines a round."""

    measures: ClassVar[bool] = True  # clients send losses, even if not in the first exchange

    models: int = setting(4, "number of models (k)", ge=1, le=MOST_MODELS)
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each exchange, at least one", gt=0, le=1
    )
    initial: str = setting(
        "distinct",
        "first models: distinct draws; the same draw k times; or kmeans++, each trained by a client (ours)",
        choices=("distinct", "same", "kmeans++"),
    )
    initial_epochs: int = setting(
        5, "local epochs of a client that trains a first model (kmeans++)", ge=1
    )
    restarts: int = setting(
        1, "number of starts; the one with the least training loss is kept", ge=1, le=MOST_MODELS
    )
    restart_rounds: int = setting(
        3, "rounds of training of each start before they are compared", ge=1
    )

    def __post_init__(self) -> None:
        check(self)
        if self.initial == "kmeans++" and self.models > MOST_CENTRES:
            raise SettingError(
                f"{type(self).__name__}.models must be at most {MOST_CENTRES} with initial kmeans++, got {self.models}: each "
                "takes two exchanges of the first round"
            )

    # -- to be defined by a subclass
    # ------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """The number of models that a client chooses."""
        return 1

    @abstractmethod
    def plan_round(self, start: Start, asked: tuple[Client, ...], cohort: Cohort) -> Plan:
        """Plan one round of a start for the clients ``asked``."""

    @abstractmethod
    def aggregate(self, models: torch.Tensor, replies: Replies) -> torch.Tensor:
        """Return the models ``(k, d)`` after a round."""

    @abstractmethod
    def served(
        self, models: torch.Tensor, choices: Mapping[Client, Choice]
    ) -> tuple[torch.Tensor, dict[Client, int]]:
        """Return the models that serve the clients, and client -> row."""

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> ChoosingState:
        starts = []
        for start in range(self.restarts):
            first = start * self.models
            if self.initial == "distinct":
                models = torch.stack([federation.draw(first + row) for row in range(self.models)])
            else:
                models = federation.draw(start).repeat(self.models, 1)
            starts.append(
                Start(models=models, centres=Centres() if self.initial == "kmeans++" else None)
            )
        return ChoosingState(clients=federation.clients, starts=tuple(starts))

    def plan(self, state: ChoosingState, cohort: Cohort) -> Plan:
        asked = cohort.sample(state.clients, self.fraction)
        if state.compares:
            models = torch.cat([start.models for start in state.starts])
            task = Task(offered=tuple(range(len(models))), epochs=0, measure="train")
            return Plan(
                models=models, tasks=dict.fromkeys(asked, task), need="mean", ends_round=False
            )
        start = state.starts[state.at]
        if start.centres is not None:
            return plan_centre(
                start.centres, start.models, state.clients, asked, cohort, self.initial_epochs
            )
        return self.plan_round(start, asked, cohort)

    def step(self, state: ChoosingState, replies: Replies) -> ChoosingState:
        if state.compares:
            return self._keep_best(state, replies)
        start = state.starts[state.at]
        if start.centres is not None:
            centres, models = step_centre(start.centres, start.models, replies)
            return self._put(state, replace(start, centres=centres, models=models))
        models = self.aggregate(start.models, replies) if replies.clients else start.models
        chosen = {**start.chosen, **dict(zip(replies.clients, replies.chosen, strict=True))}
        new = replace(start, models=models, round=start.round + 1, chosen=chosen)
        tried = len(state.starts) > 1 and new.round >= self.restart_rounds
        return self._put(
            state, new, at=state.at + tried, notes=(round_note(state, start, new, replies),)
        )

    def _put(
        self,
        state: ChoosingState,
        start: Start,
        *,
        at: int | None = None,
        notes: tuple[Note, ...] = (),
    ) -> ChoosingState:
        starts = (*state.starts[: state.at], start, *state.starts[state.at + 1 :])
        return replace(state, starts=starts, at=state.at if at is None else at, notes=notes)

    def _keep_best(self, state: ChoosingState, replies: Replies) -> ChoosingState:
        """Keep the start with the smallest mean of least losses over the clients that measured, or the first if none did.

        The losses also give the choices of these clients.
        """
        losses = mean_losses(replies, len(state.starts), self.taken)
        best = int(np.argmin(losses))
        start = state.starts[best]
        measured = zip(replies.clients, replies.losses, strict=True)
        rows = slice(best * self.models, (best + 1) * self.models)
        finite = {
            c: least(values[rows], self.taken)
            for c, values in measured
            if np.isfinite(values[rows]).all()
        }
        start = replace(start, chosen={**start.chosen, **finite})
        note = restart_note(state, start, best, losses, len(replies.clients))
        return replace(state, starts=(start,), at=0, notes=(note,))

    def assignment(self, state: ChoosingState) -> Assignment:
        choices = of_all(state.clients, state.starts[0].chosen, (0,))
        models, row = self.served(state.starts[0].models, choices)
        return Assignment(models=models, row=row, groups=groups_of(choices))

    def explain(self, state: ChoosingState) -> tuple[Note, ...]:
        return state.notes

    # -- clients that join or leave
    # -------------------------------------------------------------------------------------

    def admit(self, state: ChoosingState, clients: tuple[Client, ...]) -> ChoosingState:
        """Admit clients; the most frequent choice serves them until they are asked and choose by their losses."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: ChoosingState, clients: tuple[Client, ...]) -> ChoosingState:
        """Delete the clients' choices; what the models learned from them stays."""
        gone = set(clients)
        starts = tuple(_without(start, gone) for start in state.starts)
        return replace(state, clients=without(state.clients, clients), starts=starts, notes=())


def _without(start: Start, gone: set[Client]) -> Start:
    kept = {c: choice for c, choice in start.chosen.items() if c not in gone}
    centres = start.centres
    if centres is not None:
        centres = replace(
            centres, losses={c: v for c, v in centres.losses.items() if c not in gone}
        )
    return replace(start, chosen=kept, centres=centres)
