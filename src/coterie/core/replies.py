"""What comes back from an exchange: the replies, their weights, and the losses on held-out examples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from coterie.core.averaging import Averaging, Means
from coterie.core.clients import Client
from coterie.core.tasks import Statistic, Weighting
from coterie.notebook.tables import count, some
from coterie.settings.calls import public

ReplyValue = TypeVar("ReplyValue")

Candidate = tuple[str, int]
"""The name of a plan's part, and the number of a model that a client measures in it, see
:attr:`~coterie.core.Task.measured_models`: 0 for the model from which it starts, or 1 for the personal
model that it trains."""


@public
@dataclass(frozen=True, kw_only=True)
class HeldOutLosses:
    """Losses of m models on the same held-out examples of one client: no single loss, only sums.

    Where examples have subjects, such as patients, a subject counts as one example, with its mean
    loss.

    Attributes:
        models: The models, in the order of the sums.
        count: Number of examples.
        sums: Shape ``(m,)``: the sum of each model's losses.
        products: Shape ``(m, m)``: sums of products of two models' losses of the same example.

    Example:
        >>> losses = HeldOutLosses.of([("", 0), ("", 1)], np.array([[1.0, 2.0], [1.0, 4.0]]))  # of two models, two examples
        >>> losses.difference(("", 0), ("", 1))  # mean, and its variance
        (-1.0, 1.0)
    """

    models: tuple[Candidate, ...]
    count: int
    sums: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, models: Iterable[Candidate], losses_of_models: np.ndarray) -> HeldOutLosses:
        """Make the sums of losses ``(m, examples)``. Losses that are not finite, or enormous, count as ``WORST_LOSS``."""
        # One enormous loss must not decide every comparison.
        bounded_losses = np.nan_to_num(
            losses_of_models.astype(np.float64), nan=WORST_LOSS, posinf=WORST_LOSS
        ).clip(-WORST_LOSS, WORST_LOSS)
        return cls(
            models=tuple(models),
            count=losses_of_models.shape[1],
            sums=bounded_losses.sum(axis=1),
            products=bounded_losses @ bounded_losses.T,
        )

    def difference(
        self, candidate: Candidate, compared_candidate: Candidate | None
    ) -> tuple[float, float] | None:
        """Return the mean of ``loss(candidate) - loss(compared_candidate)`` over the examples, and its estimated variance.

        The variance is that of the mean, infinite for a single example. None if a model was not
        measured, or no example. Without a second model, the mean is that of ``loss(candidate)``.
        """
        # Nothing can be said of a model that was not measured, or without examples.
        is_measured = candidate in self.models and (
            compared_candidate is None or compared_candidate in self.models
        )
        if not is_measured or not self.count:
            return None
        # A difference of losses is a weighted sum over the models: +1, -1, and 0 for the others.
        signs = np.array(
            [
                float(measured_model == candidate) - float(measured_model == compared_candidate)
                for measured_model in self.models
            ]
        )
        mean_difference = float(signs @ self.sums) / self.count
        squared_differences = float(signs @ self.products @ signs)
        # A difference by rounding alone must have a variance too.
        rounding_error = 0.0
        if mean_difference:
            rounding_error = 1e-14 * float(abs(signs) @ abs(self.products) @ abs(signs))
        # The sum of squared deviations from the mean. Divided by n - 1 and by n, it is the variance of
        # the mean.
        sum_of_squares = max(squared_differences - self.count * mean_difference**2, rounding_error)
        if self.count == 1:
            return mean_difference, math.inf
        return mean_difference, sum_of_squares / (self.count - 1) / self.count

    def within(self, part_name: str) -> HeldOutLosses:
        """Return the sums of one part's models, under its own names of them."""
        if not part_name:
            return self
        # The models of the part and of its own parts, whose names lose the prefix.
        positions: list[int] = []
        inner_candidates: list[Candidate] = []
        for position, (candidate_part, model_number) in enumerate(self.models):
            if candidate_part == part_name or candidate_part.startswith(f"{part_name}/"):
                positions.append(position)
                inner_candidates.append(
                    (candidate_part[len(part_name) :].lstrip("/"), model_number)
                )
        return replace(
            self,
            models=tuple(inner_candidates),
            sums=self.sums[positions],
            products=self.products[np.ix_(positions, positions)],
        )


WORST_LOSS = 1e4
"""The greatest held-out loss of one example that counts."""


@public
@dataclass(frozen=True, kw_only=True)
class HalvedUpdates:
    """The updates of clients that trained on two halves of their data (``Task.halves``).

    Attributes:
        clients: The m clients that sent updates of both halves, sorted: they were asked for them,
            and have enough examples.
        gram: Shape ``(2 m, 2 m)``: the Gram matrix over the plan's columns of their first updates,
            followed by their second updates.
        second: Shape ``(m, d)``: the updates of the second halves, if the plan asked for them.

    Raises:
        ValueError: A shape does not fit the number of clients.
    """

    clients: tuple[Client, ...]
    gram: np.ndarray
    second: torch.Tensor | None = None

    def __post_init__(self) -> None:
        clients = count(len(self.clients), "client")
        if self.gram.shape != (2 * len(self.clients),) * 2:
            raise ValueError(f"halves of {clients} cannot have the shape {self.gram.shape}")
        if self.second is not None and len(self.second) != len(self.clients):
            raise ValueError(f"halves of {clients} cannot have {len(self.second)} second updates")

    def of(self, clients: Iterable[Client]) -> HalvedUpdates | None:
        """Return the updates of those of ``clients`` that sent both; None if there are none."""
        # A client without both updates has no rows here.
        wanted_clients = set(clients)
        row_numbers = [
            row_number for row_number, client in enumerate(self.clients) if client in wanted_clients
        ]
        if not row_numbers:
            return None
        # In the Gram matrix, all first halves come before all second halves.
        second_rows = [len(self.clients) + row_number for row_number in row_numbers]
        rows_of_both_halves = row_numbers + second_rows
        return HalvedUpdates(
            clients=tuple(self.clients[row_number] for row_number in row_numbers),
            gram=self.gram[np.ix_(rows_of_both_halves, rows_of_both_halves)],
            second=None if self.second is None else self.second[row_numbers],
        )


@public
@dataclass(frozen=True, kw_only=True)
class QuestionSums:
    """The sums of the clients' answers to questions (``PrivateTask.question``).

    Attributes:
        by_row: First offered row -> the sum of the answers of the clients that were offered it.
        cells: Client -> its cell, if it was asked for that.
        deviation: Standard deviation of the noise on each number of the sums.
    """

    by_row: Mapping[int, np.ndarray] = field(default_factory=dict)
    cells: Mapping[Client, int] = field(default_factory=dict)
    deviation: float = 0.0


@public
@dataclass(frozen=True, kw_only=True)
class AppliedLimits:
    """How far the bounds on the influence of one client changed what clients sent.

    Attributes:
        claimed: Client -> the number of examples that it reports, if it counts for fewer.
        scaled: Client -> the factor by which its update was scaled down.
        counted: Client -> the number of examples for which it counts, of those in ``claimed``. Empty
            where ``Replies.examples`` says it: of sums over clients, these are all 1.
    """

    claimed: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)
    counted: Mapping[Client, int] = field(default_factory=dict)


@public
@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of one exchange: one entry for each client that answered, in the order of ``clients``.

    Attributes:
        clients: The ids of the n clients that answered, sorted.
        examples: Training-set sizes, shape ``(n,)``.
        chosen: For each client, the rows of the plan's models from which it started.
        losses: For each client, one loss per offered model, in the order of the offer; empty if
            nothing was measured.
        accuracies: The same for accuracies.
        means: Shape ``(k, d)``: for each row of the plan's models, the weighted mean update; zeros
            if no client trained from it. ``None`` if the plan does not need them; then
            ``mean_updates`` raises an error.
        mean_counts: Shape ``(k,)``: for each row of the plan's models, the number of clients in the mean.
        gram: Shape ``(n, n)``: the Gram matrix of the updates, or of their sketches; ``None`` if
            the plan does not need it.
        updates: Shape ``(n, d)``: the updates, or their sketches; ``None`` if the plan does not
            need them. Then ``all_updates`` raises an error.
        halves: The updates of clients that trained on two halves of their data; ``None`` if no
            client did.
        refused: Client -> the reason why its reply was refused (non-finite values, wrong shape,
            implausible norm). A refused client counts as silent.
        averaging: The rule by which the run averages updates, see :meth:`mean`.
        limits: How far the bounds on the influence of one client changed what clients sent.
        held_out_losses: Client -> the sums of its held-out losses, if tasks asked for these.
        sums: The sums of answers to the questions of a plan with ``need="sums"``.
        statistics: Name of a statistic -> client -> what it told, if its task asked for it
            (``Task.statistics``). ``label-counts``: the number of training examples of each of the C
            classes, shape ``(C,)``; ``feature-mean``: the mean of the f features over the training
            examples, shape ``(f,)``.
        ends_round: Whether the exchange ended the round, as far as the plan is concerned.
        parts: Name -> the replies to a part of the plan.

    Example:
        >>> replies = Replies(clients=(2, 5), examples=np.array([30, 10]), updates=torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
        >>> replies.mean(weights(replies, "data"))
        tensor([3., 1.])
        >>> replies.of([5, 9]).clients  # client 9 did not answer
        (5,)
    """

    clients: tuple[Client, ...]
    examples: np.ndarray
    chosen: tuple[tuple[int, ...], ...] = ()
    losses: tuple[tuple[float, ...], ...] = ()
    accuracies: tuple[tuple[float, ...], ...] = ()
    means: torch.Tensor | None = None
    mean_counts: np.ndarray | None = None
    gram: np.ndarray | None = None
    updates: torch.Tensor | None = None
    halves: HalvedUpdates | None = None
    refused: Mapping[Client, str] = field(default_factory=dict)
    averaging: Averaging = field(default_factory=Averaging)
    limits: AppliedLimits = AppliedLimits()
    held_out_losses: Mapping[Client, HeldOutLosses] = field(default_factory=dict)
    sums: QuestionSums = QuestionSums()
    statistics: Mapping[Statistic, Mapping[Client, np.ndarray]] = field(default_factory=dict)
    ends_round: bool = True
    parts: Mapping[str, Replies] = field(default_factory=dict)

    def __repr__(self) -> str:
        # A short text without tensors, which would fill the screen.
        shown_refusals = f", {len(self.refused):,} refused" if self.refused else ""
        shown_updates = (
            "" if self.updates is None else f", updates of shape {tuple(self.updates.shape)}"
        )
        return f"<Replies of {count(len(self.clients), 'client')}: {some(self.clients)}{shown_updates}{shown_refusals}>"

    @property
    def all_updates(self) -> torch.Tensor:
        """The ``updates`` of a plan with ``need="rows"``.

        Raises:
            ValueError: The plan did not ask for them.
        """
        if self.updates is None:
            raise ValueError('replies hold no single updates: ask for them by Plan(need="rows")')
        return self.updates

    @property
    def mean_updates(self) -> torch.Tensor:
        """The ``means`` of a plan with ``need="mean"`` or ``"gram"``.

        Raises:
            ValueError: The plan did not ask for them.
        """
        if self.means is None:
            raise ValueError('replies hold no mean updates: ask for them by Plan(need="mean")')
        return self.means

    def limited_counts(self) -> dict[Client, int]:
        """Return client -> the number of examples for which it counts, of clients that reported more."""
        # Replies to the parts of a plan may count a client in different ways: the last part is told.
        counts: dict[Client, int] = {}
        for part_replies in self.parts.values():
            counts.update(part_replies.limited_counts())
        if self.parts:
            return counts
        examples_of_client = dict(zip(self.clients, self.examples.tolist(), strict=True))
        for client in self.limits.claimed:
            counts[client] = self.limits.counted.get(client, examples_of_client[client])
        return counts

    def mean(self, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        """Average the updates by the rule of the run.

        Args:
            weights: Shape ``(n,)``, in the order of ``clients``, with sum 1. Some rules ignore
                weights.

        Returns:
            Shape ``(d,)``.
        """
        return self.averaging.of(self.all_updates, weights)

    def positions(self, clients: Iterable[Client]) -> list[int]:
        """Return the positions in this object's arrays of those of ``clients`` that answered."""
        position_of_client = {client: position for position, client in enumerate(self.clients)}
        return [position_of_client[client] for client in clients if client in position_of_client]

    def of(self, clients: Iterable[Client]) -> Replies:
        """Return the replies of those of ``clients`` that answered, without means."""
        positions = self.positions(sorted(clients))
        answered_clients = tuple(self.clients[position] for position in positions)
        answered = set(answered_clients)
        held_out_losses = {}
        for client, client_losses in self.held_out_losses.items():
            if client in answered:
                held_out_losses[client] = client_losses
        statistics: dict[Statistic, dict[Client, np.ndarray]] = {}
        for statistic, told_by_client in self.statistics.items():
            statistics[statistic] = {
                client: told
                for client, told in told_by_client.items()
                if client in answered_clients
            }
        # The Gram matrix has a row and a column for each client, the updates have a row.
        selected_gram = self.gram
        if selected_gram is not None:
            selected_gram = selected_gram[np.ix_(positions, positions)]
        selected_updates = self.updates
        if selected_updates is not None:
            selected_updates = selected_updates[positions]

        def selected(values_of_clients: tuple[ReplyValue, ...]) -> tuple[ReplyValue, ...]:
            # Entries that nobody asked for are an empty tuple.
            if not values_of_clients:
                return ()
            return tuple(values_of_clients[position] for position in positions)

        return replace(
            self,
            clients=answered_clients,
            examples=self.examples[positions],
            chosen=selected(self.chosen),
            losses=selected(self.losses),
            accuracies=selected(self.accuracies),
            means=None,
            mean_counts=None,
            gram=selected_gram,
            updates=selected_updates,
            halves=None if self.halves is None else self.halves.of(answered_clients),
            held_out_losses=held_out_losses,
            statistics=statistics,
        )


@public
def weights(replies: Replies, weighting: Weighting) -> np.ndarray:
    """Return weights ``(n,)`` with sum 1: by training examples (``"data"``) or equal (``"uniform"``).

    If no client has examples, weights are equal.
    """
    # Weights count only relative to each other. If all are zero, each client counts the same.
    unscaled_weights = amounts(replies.examples, weighting)
    total_amount = unscaled_weights.sum()
    if total_amount > 0:
        return unscaled_weights / total_amount
    return np.full(len(unscaled_weights), 1 / max(len(unscaled_weights), 1))


@public
def amounts(examples: np.ndarray, weighting: Weighting) -> np.ndarray:
    """Return the unscaled weight of each update, ``(n,)``: its training examples (``"data"``) or 1 (``"uniform"``)."""
    return examples.astype(np.float64) if weighting == "data" else np.ones(len(examples))


@public
def rows_without(
    clients: tuple[Client, ...], client_rows: torch.Tensor, removed_clients: Iterable[Client]
) -> tuple[tuple[Client, ...], torch.Tensor]:
    """Return clients and their rows ``(m, d)`` without the removed ones; a copy."""
    removed_set = set(removed_clients)
    kept_positions = [
        position for position, client in enumerate(clients) if client not in removed_set
    ]
    return tuple(clients[position] for position in kept_positions), client_rows[kept_positions]


@public
def group_means(
    replies: Replies, groups: Sequence[Iterable[Client]], weighting: Weighting = "data"
) -> tuple[torch.Tensor, np.ndarray]:
    """Compute the weighted mean update of each of k groups.

    Args:
        replies: The replies, with ``updates``.
        groups: The k groups of clients.
        weighting: The weights, ``"data"`` or ``"uniform"``, see :func:`amounts`.

    Returns:
        The means, shape ``(k, d)``, float32, and the numbers of clients that answered, shape
        ``(k,)``. Both are zero for a group without an answer.
    """
    position_of_client = {client: position for position, client in enumerate(replies.clients)}
    # The groups in which each reply counts. Groups may overlap, and clients may be silent.
    groups_of_reply: list[list[int]] = [[] for _ in position_of_client]
    for group_number, members in enumerate(groups):
        for client in members:
            if client in position_of_client:
                groups_of_reply[position_of_client[client]].append(group_number)
    # One pass over the replies adds each update to the means of its groups.
    model_means = Means(len(groups), replies.all_updates.shape[1], replies.averaging)
    model_means.add(replies.all_updates, amounts(replies.examples, weighting), groups_of_reply)
    return model_means.means, model_means.counts
