"""A run's records as people read them: clients have their names, and the main metric says how good a model is.

The records themselves name a client by its number. ``run.toml``, or a federation's ``nodes.json``,
has the names. :func:`shown` puts them everywhere, so a reader of its result treats a client's id as
a whole number or a text and never looks a name up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.data.objective import METRICS, metric_of
from coterie.notebook.tables import labels
from coterie.pooling import ErrorSums, pooled
from coterie.printable import printable

ClientId = int | str
"""A client as it is shown: its name, or the whole number that identifies it."""

Line = dict[str, Any]
"""One round as it is recorded: see :func:`coterie.records.round_line.line_of_round`."""

SHOWN_KEY = "shown"
"""Key under which a shown line has its :class:`Shown`."""


@dataclass(frozen=True)
class Shown:
    """What is needed to show a run's records.

    Attributes:
        labels: Client's number as text -> its name; empty if clients have no names. Names that are
            all whole numbers are numbers here too; if they are not, a client without a name is
            shown by its number as text.
        main: The main metric.
        better: Whether a ``"greater"`` or a ``"smaller"`` value of it is better.
    """

    labels: Mapping[str, ClientId] = field(default_factory=dict)
    main: str = "accuracy"
    better: str = "greater"

    @classmethod
    def of(
        cls, world_table: Mapping[str, Any], client_names: Mapping[int, str] | None = None
    ) -> Shown:
        """What is needed to show the records of a run.

        Args:
            world_table: The table ``world`` of its ``run.toml``.
            client_names: Client -> its name. None takes the names in the table.
        """
        if client_names is None:
            client_names = dict(
                zip(world_table["clients"], world_table.get("names", ()), strict=False)
            )
        # Names come from clients: only their printable form is shown.
        printable_names = dict(
            zip(client_names, map(printable, client_names.values()), strict=True)
        )
        label_of_key = {str(client): label for client, label in labels(printable_names).items()}
        return cls(label_of_key, **world_table.get("metric", {}))

    def client(self, client_number: int | str) -> ClientId:
        """The client with this number, or with this number as a key of the records."""
        client_key = str(client_number)
        return self.labels[client_key] if client_key in self.labels else self.key(client_key)

    def key(self, client_key: str) -> ClientId:
        """The client's id as it is shown, from a key of a shown line's tables: text if any client has a name in words."""
        # Labels are all numbers or all texts, so the first one tells; without any, numbers.
        first_label = next(iter(self.labels.values()), 0)
        return client_key if isinstance(first_label, str) else int(client_key)

    def clients(self, client_numbers: Sequence[int]) -> list[ClientId]:
        """These clients, sorted as groups are."""
        # Numbers come before names, each in ascending order.
        shown_ids = map(self.client, client_numbers)
        return sorted(shown_ids, key=lambda shown_id: (isinstance(shown_id, str), shown_id))

    def text(self, note_text: str) -> str:
        """A note's text with the names of clients."""
        if not self.labels:
            return note_text

        def with_names(match: re.Match[str]) -> str:
            numbers_in_text = (match["list"] or match["one"]).split(", ")
            return f"client {', '.join(str(self.client(number)) for number in numbers_in_text)}"

        return _CLIENT_NUMBERS.sub(with_names, note_text)

    def line(self, recorded_line: Line) -> Line:
        """A line of the records as it is shown."""
        if not self.labels:
            return {**recorded_line, SHOWN_KEY: self}
        # Tables by client, lists of clients, and texts that name clients.
        shown_tables: dict[str, Any] = {
            table_key: _table(self, recorded_line[table_key])
            for table_key in _TABLES_BY_CLIENT
            if table_key in recorded_line
        }
        refusal_reasons = _table(self, recorded_line["refused"])
        for client_key, reason in refusal_reasons.items():
            refusal_reasons[client_key] = self.text(reason)
        if "personal" in recorded_line:
            shown_tables["personal"] = self.clients(recorded_line["personal"])
        return {
            **recorded_line,
            **shown_tables,
            "groups": list(map(self.clients, recorded_line["groups"])),
            "refused": refusal_reasons,
            "silent": self.clients(recorded_line["silent"]),
            "notes": [_note(self, note) for note in recorded_line["notes"]],
            SHOWN_KEY: self,
        }

    def best(self, metric_values: Sequence[float]) -> float:
        """The best of some values of the main metric."""
        return max(metric_values) if self.better == "greater" else min(metric_values)

    def direction(self, metric_name: str) -> str:
        """Whether a ``"greater"`` or a ``"smaller"`` value of a metric is better; greater if that is not known."""
        metric_name = metric_name if metric_name == self.main else metric_of(metric_name)
        if metric_name == self.main:
            return self.better
        if metric_name in METRICS:
            return METRICS[metric_name].better
        return "smaller" if metric_name == "loss" else "greater"


_TABLES_BY_CLIENT = (
    "clients",
    "absent",
    "scaled",
    "claimed",
    "counted",
    "released",
    "rows",
    "sums",
)
"""Entries of a line whose keys are clients."""

_CLIENT_NUMBERS = re.compile(
    r"\bclient (?:(?P<list>\d{1,18}(?:, \d{1,18})*)(?=, \.\.\.|[;:.)]|$)|(?P<one>\d{1,18})\b)"
)
"""A client in a note's text, or a list of clients that ends the text, a sentence or a bracket."""


def shown_as(recorded_line: Line) -> Shown:
    """The :class:`Shown` of a line."""
    naming: Shown = recorded_line.get(SHOWN_KEY) or Shown()
    return naming


def shown(
    naming: Shown, description: Mapping[str, Any], recorded_lines: Sequence[Line]
) -> tuple[dict[str, Any], list[Line]]:
    """Return the content of ``run.toml`` and the lines of the records as they are shown.

    Args:
        naming: What is needed to show them.
        description: The content of ``run.toml``.
        recorded_lines: The recorded rounds.

    Returns:
        Both, with names in place of numbers wherever a client is named, also in the texts of notes.
        Where data drift, ``true_groups`` are those of the last of these rounds.
    """
    shown_description = _described(naming, description)
    # Where data drift, the true groups are those of the newest round.
    if "drift" in shown_description["world"] and recorded_lines:
        world_table = shown_description["world"]
        shown_description["world"] = {
            **world_table,
            "true_groups": truth_at(world_table, recorded_lines[-1]["round"]),
        }
    return shown_description, [naming.line(recorded_line) for recorded_line in recorded_lines]


def truth_at(world_table: Mapping[str, Any], round_number: int) -> list[list[ClientId]] | None:
    """Return the true groups in a round, also where data drift.

    Args:
        world_table: The table ``world`` of ``run.toml``, as it is recorded or shown.
        round_number: The number of the round, from 1.

    Returns:
        The clients of each group, in the order of their first member; None if the true groups are
        not known.

    Example:
        >>> truth_at({"clients": [0, 1, 2], "drift": {"period": 5, "concepts": [[0, 0, 0], [0, 1, 0]]}}, 6)
        [[0, 2], [1]]
    """
    # Without drift, the recorded groups hold in every round.
    drift_table = world_table.get("drift")
    if drift_table is None:
        true_groups: list[list[ClientId]] | None = world_table.get("true_groups")
        return true_groups
    # Clients that have one concept in this time step are a group.
    time_steps = drift_table["concepts"]
    time_step = min((round_number - 1) // drift_table["period"], len(time_steps) - 1)
    clients_of_concept: dict[int, list[ClientId]] = {}
    for client, concept in zip(world_table["clients"], time_steps[time_step], strict=False):
        clients_of_concept.setdefault(concept, []).append(client)
    return list(clients_of_concept.values())


def _described(naming: Shown, description: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``run.toml`` with the names of clients."""
    if not naming.labels:
        return dict(description)
    # Only these entries of the table name clients.
    world_table = dict(description["world"])
    world_table["clients"] = list(map(naming.client, world_table["clients"]))
    if "true_groups" in world_table:
        world_table["true_groups"] = list(map(naming.clients, world_table["true_groups"]))
    if "adversaries" in world_table:
        world_table["adversaries"] = naming.clients(world_table["adversaries"])
    return {**description, "world": world_table}


def _table(naming: Shown, client_table: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose keys are clients, with their names."""
    return {str(naming.client(client_key)): value for client_key, value in client_table.items()}


def _note(naming: Shown, recorded_note: Mapping[str, Any]) -> dict[str, Any]:
    """A note with the names of clients."""
    shown_values = {}
    for value_name, value_of_client in recorded_note["values"].items():
        shown_values[value_name] = _table(naming, value_of_client)
    return {
        **recorded_note,
        "clients": naming.clients(recorded_note["clients"]),
        "parts": list(map(naming.clients, recorded_note["parts"])),
        "text": naming.text(recorded_note["text"]),
        "otherwise": naming.text(recorded_note["otherwise"]),
        "values": shown_values,
    }


def spread(
    recorded_line: Line, metric_name: str = "", weights: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Statistics of a metric in a tested round.

    Args:
        recorded_line: The record of the round.
        metric_name: The name of the metric; the main one if it is empty.
        weights: Client -> its weight in mean and standard deviation, such as its number of test
            examples; None for equal weights.

    Returns:
        ``mean``, ``std`` (the standard deviation of exactly these clients, not an estimate) and
        ``worst`` over honest clients, and ``per_client``: client -> value, for all clients. A
        client without a value, such as the area under an ROC curve of one class, counts only for
        the loss, of which all three are then NaN. For a metric whose sums the line has, such as R2,
        ``mean`` is that of the test rows of the honest clients together, see ``coterie.pooling``.
    """
    naming = shown_as(recorded_line)
    metric_name = metric_name or naming.main
    honest_entries = _honest(recorded_line["clients"])
    value_of_client = {}
    honest_values = []
    honest_weights = []
    for client_key, client_entry in recorded_line["clients"].items():
        value = client_entry.get(metric_name)
        value_of_client[client_key] = value
        # A client without a value counts only for the loss, of which nothing is known then.
        if client_key in honest_entries and (value is not None or metric_name == "loss"):
            honest_values.append(value)
            honest_weights.append(1.0 if weights is None else weights.get(client_key, 0.0))
    # NumPy makes NaN of None, also if no client has a value.
    counted_values = np.array(honest_values or [None], dtype=np.float64)
    is_greater_better = naming.direction(metric_name) == "greater"
    worst_value = counted_values.min() if is_greater_better else counted_values.max()
    pooled_mean = pooled_over(recorded_line, honest_entries, metric_name)
    mean = float(counted_values.mean())
    deviation = float(counted_values.std())
    if weights is not None:
        mean, deviation = _weighted(counted_values, np.array(honest_weights))
    return {
        "mean": mean if pooled_mean is None else pooled_mean,
        "std": deviation,
        "worst": float(worst_value),
        "per_client": value_of_client,
    }


def _weighted(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The weighted mean of values ``(n,)`` and their weighted standard deviation; NaN if no value has a weight."""
    if not weights.any():
        return math.nan, math.nan
    mean = float(np.average(values, weights=weights))
    return mean, float(np.average((values - mean) ** 2, weights=weights)) ** 0.5


def _honest(client_entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The entries of clients that are not hostile."""
    return {
        client_key: client_entry
        for client_key, client_entry in client_entries.items()
        if not client_entry.get("adversary")
    }


def personal_clients(recorded_line: Line) -> frozenset[ClientId]:
    """Return the clients that a personal model serves after a round; empty if that is not recorded."""
    return frozenset(recorded_line.get("personal", ()))


def mean_of(
    recorded_line: Line, clients: Iterable[ClientId], metric_name: str = ""
) -> float | None:
    """Return the mean of a metric over these clients in one round; over the honest ones only, if there are any.

    For a metric whose sums the line has, such as R2, it is that of their test rows together, see
    ``coterie.pooling``.

    Args:
        recorded_line: The record of the round.
        clients: The clients to average over.
        metric_name: The name of the metric; the main one if it is empty.

    Returns:
        The mean, or None if no client has a value.
    """
    metric_name = metric_name or shown_as(recorded_line).main
    client_entries = {}
    for client_key in map(str, clients):
        # A client may have joined after this round.
        if client_key in recorded_line["clients"]:
            client_entries[client_key] = recorded_line["clients"][client_key]
    # A group of hostile clients alone has a mean, too.
    averaged_entries = _honest(client_entries) or client_entries
    pooled_mean = pooled_over(recorded_line, averaged_entries, metric_name)
    if pooled_mean is not None:
        return None if math.isnan(pooled_mean) else pooled_mean
    # A client without a value does not count.
    optional_values = [entry.get(metric_name) for entry in averaged_entries.values()]
    metric_values = [value for value in optional_values if value is not None]
    return float(np.mean(metric_values)) if metric_values else None


def pooled_over(recorded_line: Line, clients: Iterable[str], metric_name: str) -> float | None:
    """Return a metric of the test rows of some clients together.

    Args:
        recorded_line: The record of the round.
        clients: The keys of these clients in the line.
        metric_name: The name of the metric.

    Returns:
        The metric, NaN if it is not defined; None if the line has no sums of it, so that it is
        averaged over clients.
    """
    sums_of_client = sums_of(recorded_line, metric_name)
    client_sums = [sums_of_client[client] for client in clients if client in sums_of_client]
    return pooled(client_sums) if client_sums else None


def sums_of(recorded_line: Line, metric_name: str) -> dict[str, ErrorSums]:
    """Return client -> its sums of a metric, see ``coterie.pooling``; empty for a metric that is averaged over clients."""
    return {
        client: sums[metric_name]
        for client, sums in recorded_line.get("sums", {}).items()
        if metric_name in sums
    }
