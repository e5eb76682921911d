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
from typing import TypeVar

import numpy as np
import torch

from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Federation,
    Groups,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    groups_by,
    joined,
    state,
    without,
)
from coterie.methods._hostile_few import near_others
from coterie.methods._leavers import entries_without
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


MAX_CENTRES = 50
"""The largest k for k-means++: an engine stops a round that has too many exchanges."""

MAX_ATTEMPTS = 5
"""Number of drawn clients in a row without an answer after which a model stays untrained, so that a
run cannot stall."""


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
    tasks = {}
    if centres.measuring:
        for client in asked:
            # The models that it has not measured yet.
            new_models = range(len(centres.losses.get(client, ())), centres.made)
            tasks[client] = Task(offered=tuple(new_models), epochs=0, measure="train")
    else:
        present = [client for client in clients if client in cohort.present]
        for client in _draw(centres, present, cohort):
            tasks[client] = Task(offered=(centres.made,), epochs=epochs, lr_round=0)
    return Plan(models=models, tasks=tasks, need="mean", ends_round=False)


def _draw(centres: Centres, present: list[Client], cohort: Cohort) -> tuple[Client, ...]:
    """Draw the client that trains next, from those that have measured every model, or from all if none has."""
    rng = numpy_generator(cohort.seed, Purpose.CHOICE, cohort.exchange)
    candidates = []
    for client in present:
        if centres.made and len(centres.losses.get(client, ())) == centres.made:
            candidates.append(client)
    if not candidates:
        return (int(rng.choice(present)),) if present else ()
    # Probability proportional to the least loss, minus the smallest such loss of all.
    least_losses = np.array([min(centres.losses[client]) for client in candidates])
    excess_losses = capped(least_losses - least_losses.min())
    probabilities = excess_losses / excess_losses.sum() if excess_losses.any() else None
    return (int(rng.choice(candidates, p=probabilities)),)


def capped(values: np.ndarray) -> np.ndarray:
    """Limit each of n clients' numbers to twice the second greatest, so that no client decides alone.

    Args:
        values: ``(n, ...)``, numbers >= 0.

    Example:
        >>> capped(np.array([1.0, 2.0, 3e38]))
        array([1., 2., 4.])
    """
    if len(values) < 3:
        return values
    second_greatest = np.partition(values, -2, axis=0)[-2]
    return np.minimum(values, 2 * second_greatest)


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
        losses = dict(centres.losses)
        for client, new_losses in zip(replies.clients, replies.losses, strict=True):
            if np.isfinite(new_losses).all():
                losses[client] = (*losses.get(client, ()), *new_losses)
        return replace(centres, measuring=False, losses=losses), models
    missed = 0 if replies.clients else centres.missed + 1
    if replies.clients:
        # The mean updates are zero except in the row that was trained.
        models = models + replies.mean_updates
    elif missed < MAX_ATTEMPTS:
        return replace(centres, missed=missed), models
    trained = centres.made + 1
    if trained == len(models):
        return None, models
    return replace(centres, made=trained, measuring=True, missed=missed), models


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
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

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
    choice_counts = Counter(chosen.values())
    most_frequent = min(
        choice_counts, key=lambda choice: (-choice_counts[choice], choice), default=default
    )
    return {client: chosen.get(client, most_frequent) for client in clients}


def groups_of(choices: Mapping[Client, Choice]) -> Groups:
    """Group clients by their first choice, the model of least loss."""
    return groups_by({client: choice[0] for client, choice in choices.items()})


def rows_of_least(losses: Sequence[float], row_count: int) -> Choice:
    """Return the rows of the ``row_count`` smallest losses, the smallest first; of equal losses the first.

    Example:
        >>> rows_of_least((0.5, 0.2, 0.9, 0.2), 3)
        (1, 3, 0)
    """
    return tuple(sorted(range(len(losses)), key=lambda row_number: losses[row_number])[:row_count])


def nan_last(loss: float) -> tuple[bool, float]:
    """Return a sort key that puts NaN after all other losses, as clients do.

    Example:
        >>> min((float("nan"), 0.5), key=nan_last)
        0.5
    """
    return math.isnan(loss), loss


def mean_losses(replies: Replies, start_count: int, models_per_client: int) -> np.ndarray:
    """Return for each start the mean over clients of their least losses with its models.

    NaN counts as infinite. Clients without any finite value are left out. A value far above all
    others is :func:`capped`. With ``hostile`` clients, no value is beyond those of the others.

    Args:
        replies: replies of the exchange that measured all models.
        start_count: number of starts.
        models_per_client: number of models that a client chooses, so the number of its losses that
            count.

    Returns:
        ``(starts,)``, the means; zeros where no client measured.
    """
    if not replies.clients:
        return np.zeros(start_count)
    losses_by_start = np.array(replies.losses).reshape(len(replies.clients), start_count, -1)
    losses_by_start = np.nan_to_num(losses_by_start, nan=np.inf, posinf=np.inf)
    client_means = np.sort(losses_by_start, axis=2)[:, :, :models_per_client].mean(axis=2)
    finite_means = client_means[np.isfinite(client_means).any(axis=1)]
    if replies.averaging.hostile:
        finite_means = near_others(finite_means, replies.averaging.hostile, ranges=0.0)
    return capped(finite_means).mean(axis=0) if len(finite_means) else np.zeros(start_count)


# -- notes
# --------------------------------------------------------------------------------------------------------------


def round_note(
    state: ChoosingState, start_before: Start, start_after: Start, replies: Replies
) -> Note:
    """Describe the choices of a round, with the groups if they changed and this start serves the clients.

    Args:
        state: the state before the round.
        start_before: the start before the round.
        start_after: the start after the round.
        replies: replies of the round.
    """
    moved_count = 0
    for client, choice in start_after.chosen.items():
        moved_count += start_before.chosen.get(client, choice) != choice
    client_counts: Counter[int] = Counter()
    for choice in start_after.chosen.values():
        client_counts.update(choice)
    rows = range(len(start_after.models))
    count_list = ", ".join(str(client_counts[row_number]) for row_number in rows)
    description = (
        f"{len(replies.clients)} clients answered, {moved_count} changed their choice; "
        f"models are chosen by {count_list} clients"
    )
    numbers = {"moved": float(moved_count)}
    smallest = {}
    for client, losses in zip(replies.clients, replies.losses, strict=True):
        if losses:
            smallest[client] = min(losses, key=nan_last)
    if smallest:
        numbers["loss"] = float(np.mean(list(smallest.values())))
        description += f", mean least training loss {numbers['loss']:.3g}"
    if len(state.starts) > 1:
        description = f"start {state.at + 1} of {len(state.starts)}: {description}"
    # The first start serves the clients, so only its groups are news.
    old_groups = groups_of(of_all(state.clients, start_before.chosen, (0,)))
    new_groups = groups_of(of_all(state.clients, start_after.chosen, (0,)))
    regrouped = new_groups != old_groups or not start_before.chosen
    parts = new_groups if state.at == 0 and regrouped else ()
    first_choices = [float(choice[0]) for choice in replies.chosen]
    values: dict[str, dict[Client, float]] = {
        "model": dict(zip(replies.clients, first_choices, strict=True))
    }
    if smallest:
        values |= {"loss": smallest, **losses_of(replies)}
    return Note(
        kind="cluster" if parts else "keep",
        effect="divides" if parts else "keeps",
        clients=state.clients,
        text=description,
        parts=parts,
        numbers=numbers,
        values=values,
    )


def losses_of(replies: Replies) -> dict[str, dict[Client, float]]:
    """Return ``loss of model j`` -> client -> its training loss with model j, for clients that measured all k models."""
    model_count = max(map(len, replies.losses), default=0)
    losses_by_model: dict[str, dict[Client, float]] = {}
    for client, losses in zip(replies.clients, replies.losses, strict=True):
        if len(losses) == model_count:
            for model_number, loss in enumerate(losses):
                losses_by_model.setdefault(f"loss of model {model_number}", {})[client] = loss
    return losses_by_model


def restart_note(
    state: ChoosingState,
    kept_start: Start,
    best_number: int,
    start_losses: np.ndarray,
    measured: int,
) -> Note:
    """Describe the comparison of the starts.

    Args:
        state: the state before the comparison.
        kept_start: the start that is kept.
        best_number: its index.
        start_losses: mean loss of each start.
        measured: number of clients that measured.
    """
    loss_list = ", ".join(f"{mean_loss:.3g}" for mean_loss in start_losses)
    description = (
        f"start {best_number + 1} of {len(start_losses)} goes on; "
        f"mean least training losses by {measured} clients: {loss_list}"
    )
    parts = groups_of(of_all(state.clients, kept_start.chosen, (0,)))
    numbers = {
        f"start{start_number + 1}": float(mean_loss)
        for start_number, mean_loss in enumerate(start_losses)
    }
    return Note(
        kind="cluster",
        effect="divides",
        clients=state.clients,
        text=description,
        parts=parts,
        numbers=numbers,
    )


MOST_MODELS = 1000
"""The largest number of models, or of starts: all are drawn, and held in memory, before the first
round."""


@dataclass(frozen=True, kw_only=True)
class Choosing(ABC):
    """Settings and initialisation of methods whose clients choose among k models; a subclass defines a round."""

    models: int = setting(4, "number of models (k)", ge=1, le=MOST_MODELS)
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each exchange, at least one", gt=0, le=1
    )
    initial: str = setting(
        "distinct",
        "first models: distinct draws; the same draw k times; or kmeans++, each trained by a client (not in the paper)",
        choices=("distinct", "same", "kmeans++"),
    )
    initial_epochs: int = setting(
        5,
        "local epochs of a client that trains a first model (kmeans++)",
        ge=1,
        only_with={"initial": ("kmeans++",)},
    )
    restarts: int = setting(
        1, "number of starts; the one with the least training loss is kept", ge=1, le=MOST_MODELS
    )
    restart_rounds: int = setting(
        3,
        "rounds of training of each start before they are compared",
        ge=1,
        not_with={"restarts": (1,)},
    )

    def __post_init__(self) -> None:
        check(self)
        if self.initial == "kmeans++" and self.models > MAX_CENTRES:
            raise SettingError(
                f"{type(self).__name__}.models must be at most {MAX_CENTRES} with initial kmeans++, "
                f"got {self.models}: each takes two exchanges of the first round"
            )

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("losses",),
            occasional=("model-choice", "training", "gradients"),
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    # -- to be defined by a subclass
    # ------------------------------------------------------------------------------------

    @property
    def models_per_client(self) -> int:
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
        for start_number in range(self.restarts):
            first_draw = start_number * self.models
            if self.initial == "distinct":
                draws = range(first_draw, first_draw + self.models)
                models = torch.stack([federation.draw(draw) for draw in draws])
            else:
                models = federation.draw(start_number).repeat(self.models, 1)
            centres = Centres() if self.initial == "kmeans++" else None
            starts.append(Start(models=models, centres=centres))
        return ChoosingState(clients=federation.clients, starts=tuple(starts))

    def plan(self, state: ChoosingState, cohort: Cohort) -> Plan:
        asked_clients = cohort.sample(state.clients, self.fraction)
        # Every client measures the models of all starts.
        if state.compares:
            models = torch.cat([start.models for start in state.starts])
            task = Task(offered=tuple(range(len(models))), epochs=0, measure="train")
            tasks = dict.fromkeys(asked_clients, task)
            return Plan(models=models, tasks=tasks, need="mean", ends_round=False)
        # k-means++ makes the first models of a start, then its rounds follow.
        start = state.starts[state.at]
        if start.centres is not None:
            return plan_centre(
                start.centres,
                start.models,
                state.clients,
                asked_clients,
                cohort,
                self.initial_epochs,
            )
        return self.plan_round(start, asked_clients, cohort)

    def step(self, state: ChoosingState, replies: Replies) -> ChoosingState:
        if state.compares:
            return self._keep_best(state, replies)
        start = state.starts[state.at]
        if start.centres is not None:
            centres, models = step_centre(start.centres, start.models, replies)
            return self._put(state, replace(start, centres=centres, models=models))
        models = self.aggregate(start.models, replies) if replies.clients else start.models
        chosen = {**start.chosen, **dict(zip(replies.clients, replies.chosen, strict=True))}
        new_start = replace(start, models=models, round=start.round + 1, chosen=chosen)
        note = round_note(state, start, new_start, replies)
        state = replace(self._put(state, new_start), notes=(note,))
        # After its rounds, the next start is trained, or all are compared.
        if len(state.starts) > 1 and new_start.round >= self.restart_rounds:
            return replace(state, at=state.at + 1)
        return state

    def _put(self, state: ChoosingState, start: Start) -> ChoosingState:
        """Replace the start in training; notes of the last exchange go."""
        starts = (*state.starts[: state.at], start, *state.starts[state.at + 1 :])
        return replace(state, starts=starts, notes=())

    def _keep_best(self, state: ChoosingState, replies: Replies) -> ChoosingState:
        """Keep the start with the smallest mean of least losses over the clients that measured, or the first if none did.

        The losses also give the choices of these clients.
        """
        start_losses = mean_losses(replies, len(state.starts), self.models_per_client)
        best_number = int(np.argmin(start_losses))
        start = state.starts[best_number]
        chosen = dict(start.chosen)
        start_rows = slice(best_number * self.models, (best_number + 1) * self.models)
        for client, all_losses in zip(replies.clients, replies.losses, strict=True):
            losses = all_losses[start_rows]
            if np.isfinite(losses).all():
                chosen[client] = rows_of_least(losses, self.models_per_client)
        start = replace(start, chosen=chosen)
        note = restart_note(state, start, best_number, start_losses, len(replies.clients))
        return replace(state, starts=(start,), at=0, notes=(note,))

    def assignment(self, state: ChoosingState) -> Assignment:
        choices = of_all(state.clients, state.starts[0].chosen, (0,))
        models, row_of_client = self.served(state.starts[0].models, choices)
        return Assignment(models=models, row=row_of_client, groups=groups_of(choices))

    def explain(self, state: ChoosingState) -> tuple[Note, ...]:
        return state.notes

    # -- clients that join or leave
    # -------------------------------------------------------------------------------------

    def admit(self, state: ChoosingState, clients: tuple[Client, ...]) -> ChoosingState:
        """Admit clients; the most frequent choice serves them until they are asked and choose by their losses."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: ChoosingState, clients: tuple[Client, ...]) -> ChoosingState:
        """Delete the clients' choices; what the models learned from them stays."""
        removed = set(clients)
        starts = tuple(_without(start, removed) for start in state.starts)
        return replace(state, clients=without(state.clients, clients), starts=starts, notes=())


def _without(start: Start, removed: set[Client]) -> Start:
    """The start without the choices and losses of clients."""
    choices = entries_without(start.chosen, removed)
    centres = start.centres
    if centres is not None:
        centres = replace(centres, losses=entries_without(centres.losses, removed))
    return replace(start, chosen=choices, centres=centres)
