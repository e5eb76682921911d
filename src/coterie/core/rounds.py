"""The position of a run, and the events of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from coterie.core.clients import Client, row_of, state, without
from coterie.core.method import Assignment
from coterie.core.notes import Note
from coterie.notebook.tables import by_group, count, frame, labels, mean, partition, some, table
from coterie.pooling import ErrorSums, parted, pooled
from coterie.settings import UserError, known_list, nearest
from coterie.settings.calls import public

HALVES = "/halves"
"""What follows the name of a part in :class:`~coterie.Position` where clients keep the sketches of their
halves."""

OPTIMIZER = "/optimizer"
"""What follows the name of a part in :class:`~coterie.Position` where clients keep the states of their
optimizers."""

# A string, because commands that only read start without torch.
Kept = Mapping[str, Mapping[Client, "torch.Tensor"]]
"""Name of a plan's part -> client -> its own values, see :class:`~coterie.Position`."""


@public
@state("position")
class Position:
    """The position of a run: with the method, the world and the seed, it is sufficient to continue the run.

    Attributes:
        round: Number of completed rounds.
        exchange: Number of completed exchanges.
        state: The state of the method.
        kept: Name of a plan's part -> client -> its own values, shape ``(d,)``, of the layers that
            stay with it; NaN in the other columns. A plan without parts has the empty name. Values
            of a mixture have one more entry, its weight. The sketches ``(2, k)`` of a client's
            halves are under the name of the part followed by ``/halves``, and the bytes of its
            optimizer's state under that followed by ``/optimizer``.
        members: The clients that take part.
        missed: Client -> number of consecutive rounds without an answer.
        names: Client -> its name; empty if clients have no names.

    Raises:
        ValueError: ``round`` or ``exchange`` is negative.
    """

    round: int
    exchange: int
    state: Any
    kept: Kept = field(default_factory=dict)
    members: tuple[Client, ...] = ()
    missed: Mapping[Client, int] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown_members = count(len(self.members), "member")
        return f"<Position after round {self.round} ({count(self.exchange, 'exchange')}): {shown_members}>"

    def __post_init__(self) -> None:
        # A forged file may have negative numbers.
        if min(self.round, self.exchange) < 0:
            raise ValueError(
                f"rounds and exchanges are counted from 0, got {self.round} and {self.exchange}"
            )

    def own(self, assignment: Assignment, client: Client) -> torch.Tensor | None:
        """Return the values of its own with which a client is served; None if it has none.

        Args:
            assignment: Which model serves which client.
            client: The client.
        """
        # Clients served without values of their own, and clients that never stored some.
        if client in assignment.plain:
            return None
        return self.kept.get(assignment.part, {}).get(client)


@public
@dataclass(frozen=True, kw_only=True)
class Round:
    """One communication round: its number, the position after it, and the events in it.

    Attributes:
        number: From 1.
        position: The position after the round.
        assignment: Which model now serves which client.
        notes: Those of all exchanges of the round.
        exchanges: Number of exchanges.
        asked: Number of tasks sent.
        answered: Number of replies accepted.
        refused: Client -> the reason why its reply was refused.
        released: Client -> number of updates it sent that noise has to cover.
        rows: Client -> number of training rows that it reports; only in a federation in which
            ``released`` depends on it.
        scores: Client -> test loss and metrics; ``None`` if this round was not evaluated.
        sums: Client -> metric -> the sums from which its value for several clients together
            follows, see ``coterie.pooling``; only of metrics that have one.
        bytes_up: Bytes of this round from the clients to the server.
        bytes_down: Bytes of this round from the server to the clients.
        evaluations: Number of evaluations of a model on the data of one client that the plans asked
            for, without tests.
        seconds: Durations ``train``, ``server`` and ``evaluate``, in seconds.
        adversaries: Clients that are hostile.
        silent: Clients that were asked in this round and of which no reply was accepted.
        absent: Client that was away in this round, and so was not asked -> the first of the rounds
            in a row that it missed.
        claimed: Client -> the number of examples that it reports, if it counted for fewer.
        counted: Client -> the number for which it counted instead.
        scaled: Client -> the factor by which its update was scaled down.
        names: Client -> its name, if clients have names.
        main: The name of the main metric; empty if it is unknown.
        personal: Clients that are served by a personal model, which they train for themselves; not
            those that only keep some layers.
        nets: Function of a client's models, rows ``(d,)``, its own values of layers, the client and
            the neighbours that serve it, which makes its net, see :meth:`model`. None if the engine
            has no such function. It is not pickled.
    """

    number: int
    position: Position
    assignment: Assignment
    notes: tuple[Note, ...]
    exchanges: int
    asked: int
    answered: int
    refused: Mapping[Client, str]
    released: Mapping[Client, int]
    scores: Mapping[Client, Mapping[str, float]] | None
    bytes_up: int
    bytes_down: int
    evaluations: int
    seconds: Mapping[str, float]
    adversaries: tuple[Client, ...] = ()
    silent: tuple[Client, ...] = ()
    absent: Mapping[Client, int] = field(default_factory=dict)
    claimed: Mapping[Client, int] = field(default_factory=dict)
    counted: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)
    rows: Mapping[Client, int] = field(default_factory=dict)
    main: str = ""
    sums: Mapping[Client, Mapping[str, ErrorSums]] = field(default_factory=dict)
    personal: tuple[Client, ...] = ()
    nets: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    @property
    def groups(self) -> tuple[tuple[Client | str, ...], ...]:
        """The groups, each as its clients' sorted names, or ids if they have no names."""
        shown_names: Mapping[Client, Any] = labels(self.names, self.assignment.row)
        return tuple(
            tuple(sorted(shown_names[client] for client in clients_of_group))
            for clients_of_group in self.assignment.groups
        )

    def tested(self, test_results: Mapping[Client, Mapping[str, float]]) -> Round:
        """Return this round with the results of its test.

        Args:
            test_results: Client -> test loss, metrics and, by keys of ``flat``, their sums.
        """
        # An engine reports metrics and sums in one mapping. Here they are separated by their keys.
        client_scores: dict[Client, Mapping[str, float]] = {}
        metric_sums: dict[Client, Mapping[str, ErrorSums]] = {}
        for client, client_results in test_results.items():
            metrics_of_client, sums_of_client = parted(client_results)
            client_scores[client] = metrics_of_client
            if sums_of_client:
                metric_sums[client] = sums_of_client
        return replace(self, scores=client_scores, sums=metric_sums)

    def mean(self, metric: str = "") -> float | None:
        """Return the mean of a metric over the honest clients that have a value of it.

        R2 and the root mean squared error are those of the test rows of these clients together, see
        ``coterie.pooling``.

        Args:
            metric: The name of the metric, or ``loss``; empty for the main metric.

        Returns:
            The mean; None if this round was not tested, or no client has a value. The mean loss is
            NaN if one is.

        Raises:
            UserError: No client has such a metric.
        """
        if not self.scores:
            return None
        # Clients may have different metrics. The name must be one of theirs.
        known_metrics: dict[str, None] = {}
        for client_scores in self.scores.values():
            known_metrics.update(dict.fromkeys(client_scores))
        metric_name = metric or self._metric
        if metric and metric not in known_metrics:
            raise UserError(
                f"there is no metric {metric!r}{nearest(metric, known_metrics)}{known_list(known_metrics)}"
            )
        honest_clients = without(self.scores, self.adversaries)
        # Without a number for a client's loss, its model has diverged.
        honest_losses = (self.scores[client].get("loss", math.nan) for client in honest_clients)
        if metric_name == "loss" and any(map(math.isnan, honest_losses)):
            return math.nan
        return self.over(honest_clients, metric_name)

    def over(self, clients: Iterable[Client], metric: str) -> float | None:
        """Return a metric over some clients: the mean of those that have a value, or that of their test rows together.

        Args:
            clients: The clients' ids.
            metric: The name of the metric.

        Returns:
            The value; None if no client has one.
        """
        clients = tuple(clients)
        # Some metrics, such as R2, follow from sums over the test rows of all clients together.
        client_sums = [
            self.sums[client][metric] for client in clients if metric in self.sums.get(client, ())
        ]
        if client_sums:
            pooled_value = pooled(client_sums)
            return None if math.isnan(pooled_value) else pooled_value
        # Of any other metric, the clients' values are averaged.
        client_scores = self.scores or {}
        return mean(
            client_scores[client].get(metric) for client in clients if client in client_scores
        )

    def model(self, client: Client | str) -> Any:
        """Return the net that serves a client after this round, with the layers of its own if it keeps some.

        Args:
            client: Its name or its id.

        Returns:
            A new ``torch.nn.Module`` in evaluation mode. If the method serves the client by several
            models, it is their ensemble, a :class:`~coterie.engines.served.Ensemble`; if it also
            serves the client by its training examples, a ``WithNeighbours``, which has the features
            of these examples.

        Raises:
            UserError: The round has no such client, or is of Flower's server, which does not have
                the clients' nets.
        """
        # Flower's server and a pickled round have no function that makes nets.
        if self.nets is None:
            likely_reason = "it is of Flower's server or was pickled; coterie.save writes the models of a recorded run"
            raise UserError(f"round {self.number} cannot make the net of a client: {likely_reason}")
        client_id = self._id(client)
        # The models that serve the client, and its own values, as the engine's tests use them.
        model_rows = [
            self.assignment.models[row_number] for row_number in self.assignment.serving(client_id)
        ]
        return self.nets(
            model_rows,
            self.position.own(self.assignment, client_id),
            client_id,
            self.assignment.neighbours_of(client_id),
        )

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per client: round, client, group, and the metrics if it was tested.

        Raises:
            UserError: pandas is not installed.
        """
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        # A client has a row even if the round was not tested.
        group_of_client = row_of(self.assignment.groups)
        client_scores = self.scores or {}
        shown_names = labels(self.names, group_of_client)
        return [
            {
                "round": self.number,
                "client": shown_names[client],
                "group": group_of_client[client],
                **client_scores.get(client, {}),
            }
            for client in sorted(group_of_client)
        ]

    def _id(self, client: Client | str) -> Client:
        """The id of a client that the round serves. If names are numbers, a number is a name, and else an id."""
        shown_names = labels(self.names, self.assignment.row)
        id_of_name = {str(client_name): client_id for client_id, client_name in shown_names.items()}
        has_number_names = any(isinstance(client_name, int) for client_name in shown_names.values())
        # A number that is no name is an id, unless numbers are names. No client has the id -1.
        default_id = -1
        if isinstance(client, int) and not has_number_names:
            default_id = client
        client_id = id_of_name.get(str(client), default_id)
        if client_id in self.assignment.row:
            return client_id
        raise UserError(
            f"round {self.number} has no client {client!r}{nearest(client, id_of_name)} (clients: {some(id_of_name)})"
        )

    @property
    def _metric(self) -> str:
        """The main metric; if it is unknown, the first besides the loss."""
        measured_metrics = next(iter((self.scores or {}).values()), {})
        return self.main or next(
            (metric_name for metric_name in measured_metrics if metric_name != "loss"), "loss"
        )

    def __str__(self) -> str:
        # The groups, and the main metric if the round was tested.
        shown_parts = [partition(self.assignment.groups)]
        mean_score = None if self.scores is None else self.mean()
        if mean_score is not None:
            shown_parts.append(f"{self._metric} {mean_score:.3f}")
        return f"round {self.number}: {'; '.join(shown_parts)}; {self.answered:,} of {self.asked:,} replies"

    def __repr__(self) -> str:
        return f"<R{str(self)[1:]}>"

    def _repr_html_(self) -> str:
        shown_names = labels(self.names, self.assignment.row)
        id_of_name = {client_name: client_id for client_id, client_name in shown_names.items()}

        def group_value(clients_of_group: Sequence[Client | str]) -> float | None:
            return self.over(
                [id_of_name[client_name] for client_name in clients_of_group], self._metric
            )

        # Without a test the table has no column for the metric.
        value_of_group = group_value if self.scores else None
        return table(str(self), by_group(self.groups, self._metric, value_of_group))

    def __getstate__(self) -> dict[str, Any]:
        # A world's model is often a function that cannot be pickled.
        return {**self.__dict__, "nets": None}
