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

from coterie.data.objective import METRICS
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
    def of(cls, world: Mapping[str, Any], names: Mapping[int, str] | None = None) -> Shown:
        """What is needed to show the records of a run with this table ``world`` of ``run.toml``.

        Args:
            world: The table.
            names: Client -> its name. None takes the names in the table.
        """
        if names is None:
            names = dict(zip(world["clients"], world.get("names", ()), strict=False))
        # Names come from clients: only their printable form is shown.
        label_of = labels({client: printable(client_name) for client, client_name in names.items()})
        return cls(
            {str(client): label for client, label in label_of.items()}, **world.get("metric", {})
        )

    def client(self, id: int | str) -> ClientId:
        """The client with this number, or with this number as a key of the records."""
        return self.labels[str(id)] if str(id) in self.labels else self.key(str(id))

    def key(self, key: str) -> ClientId:
        """The client's id as it is shown, from a key of a shown line's tables: text if any client has a name in words."""
        return key if isinstance(next(iter(self.labels.values()), 0), str) else int(key)

    def clients(self, ids: Sequence[int]) -> list[ClientId]:
        """These clients, sorted as groups are."""
        return sorted(
            (self.client(id) for id in ids), key=lambda label: (isinstance(label, str), label)
        )

    def text(self, text: str) -> str:
        """A note's text with the names of clients."""
        if not self.labels:
            return text
        return _CLIENT_NUMBER.sub(lambda match: f"client {self.client(match[1])}", text)

    def line(self, line: Line) -> Line:
        """A line of the records as it is shown."""
        if not self.labels:
            return {**line, SHOWN_KEY: self}
        # Tables by client, lists of clients, and texts that name clients.
        tables = {
            table_key: _table(self, line[table_key])
            for table_key in _TABLES_BY_CLIENT
            if table_key in line
        }
        refused = _table(self, line["refused"])
        return {
            **line,
            **tables,
            "groups": [self.clients(group) for group in line["groups"]],
            "refused": {table_key: self.text(reason) for table_key, reason in refused.items()},
            "silent": self.clients(line["silent"]),
            "notes": [_note(self, note) for note in line["notes"]],
            SHOWN_KEY: self,
        }

    def best(self, values: Sequence[float]) -> float:
        """The best of some values of the main metric."""
        return max(values) if self.better == "greater" else min(values)

    def direction(self, metric: str) -> str:
        """Whether a ``"greater"`` or a ``"smaller"`` value of a metric is better; greater if that is not known."""
        if metric == self.main:
            return self.better
        if metric in METRICS:
            return METRICS[metric].better
        return "smaller" if metric == "loss" else "greater"


_TABLES_BY_CLIENT = ("clients", "scaled", "claimed", "counted", "released", "sums")
"""Entries of a line whose keys are clients."""

_CLIENT_NUMBER = re.compile(r"\bclient (\d{1,18})\b")


def shown_as(line: Line) -> Shown:
    """The :class:`Shown` of a line."""
    naming: Shown = line.get(SHOWN_KEY) or Shown()
    return naming


def shown(
    naming: Shown, description: Mapping[str, Any], lines: Sequence[Line]
) -> tuple[dict[str, Any], list[Line]]:
    """Return the content of ``run.toml`` and the lines of the records as they are shown.

    Args:
        naming: What is needed to show them.
        description: The content of ``run.toml``.
        lines: The recorded rounds.

    Returns:
        Both, with names in place of numbers wherever a client is named, also in the texts of notes.
        Where data drift, ``true_groups`` are those of the last of these rounds.
    """
    described = _described(naming, description)
    # Where data drift, the true groups are those of the newest round.
    if "drift" in described["world"] and lines:
        world = described["world"]
        described["world"] = {**world, "true_groups": truth_at(world, lines[-1]["round"])}
    return described, [naming.line(line) for line in lines]


def truth_at(world: Mapping[str, Any], round: int) -> list[list[ClientId]] | None:
    """Return the true groups in a round, also where data drift.

    Args:
        world: The table ``world`` of ``run.toml``, as it is recorded or shown.
        round: The number of the round, from 1.

    Returns:
        The clients of each group, in the order of their first member; None if the true groups are
        not known.

    Example:
        >>> truth_at({"clients": [0, 1, 2], "drift": {"period": 5, "concepts": [[0, 0, 0], [0, 1, 0]]}}, 6)
        [[0, 2], [1]]
    """
    # Without drift, the recorded groups hold in every round.
    drift = world.get("drift")
    if drift is None:
        groups: list[list[ClientId]] | None = world.get("true_groups")
        return groups
    # Clients that have one concept in this time step are a group.
    time_steps = drift["concepts"]
    time_step = min((round - 1) // drift["period"], len(time_steps) - 1)
    members: dict[int, list[ClientId]] = {}
    for client, concept in zip(world["clients"], time_steps[time_step], strict=False):
        members.setdefault(concept, []).append(client)
    return list(members.values())


def _described(naming: Shown, description: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``run.toml`` with the names of clients."""
    if not naming.labels:
        return dict(description)
    # Only these entries of the table name clients.
    world = dict(description["world"])
    world["clients"] = [naming.client(client) for client in world["clients"]]
    if "true_groups" in world:
        world["true_groups"] = [naming.clients(group) for group in world["true_groups"]]
    if "adversaries" in world:
        world["adversaries"] = naming.clients(world["adversaries"])
    return {**description, "world": world}


def _table(naming: Shown, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose keys are clients, with their names."""
    return {str(naming.client(key)): value for key, value in table.items()}


def _note(naming: Shown, note: Mapping[str, Any]) -> dict[str, Any]:
    """A note with the names of clients."""
    return {
        **note,
        "clients": naming.clients(note["clients"]),
        "parts": [naming.clients(group) for group in note["parts"]],
        "text": naming.text(note["text"]),
        "otherwise": naming.text(note["otherwise"]),
        "values": {
            value_name: _table(naming, values) for value_name, values in note["values"].items()
        },
    }


def spread(line: Line, metric: str = "") -> dict[str, Any]:
    """Statistics of a metric in a tested round.

    Args:
        line: The record of the round.
        metric: The name of the metric; the main one if it is empty.

    Returns:
        ``mean``, ``std`` (the standard deviation of exactly these clients, not an estimate) and
        ``worst`` over honest clients, and ``per_client``: client -> value, for all clients. A
        client without a value, such as the area under an ROC curve of one class, counts only for
        the loss, of which all three are then NaN. For a metric whose sums the line has, such as R2,
        ``mean`` is that of the test rows of the honest clients together, see ``coterie.pooling``.
    """
    naming = shown_as(line)
    metric = metric or naming.main
    values = {client: entry.get(metric) for client, entry in line["clients"].items()}
    honest = list(_honest(line["clients"]))
    # A client without a value counts only for the loss, of which nothing is known then.
    counted = [values[client] for client in honest]
    if metric != "loss":
        counted = [value for value in counted if value is not None]
    counted_values = np.array(counted or [None], dtype=np.float64)
    pooled_mean = pooled_over(line, honest, metric)
    return {
        "mean": float(counted_values.mean()) if pooled_mean is None else pooled_mean,
        "std": float(counted_values.std()),
        "worst": float(
            counted_values.min() if naming.direction(metric) == "greater" else counted_values.max()
        ),
        "per_client": values,
    }


def _honest(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The entries of clients that are not hostile."""
    return {client: entry for client, entry in entries.items() if not entry.get("adversary")}


def mean_of(line: Line, clients: Iterable[ClientId], metric: str = "") -> float | None:
    """Return the mean of a metric over these clients in one round; over the honest ones only, if there are any.

    For a metric whose sums the line has, such as R2, it is that of their test rows together, see
    ``coterie.pooling``.

    Args:
        line: The record of the round.
        clients: The clients to average over.
        metric: The name of the metric; the main one if it is empty.

    Returns:
        The mean, or None if no client has a value.
    """
    metric = metric or shown_as(line).main
    entries = {
        str(client): line["clients"][str(client)]
        for client in clients
        if str(client) in line["clients"]
    }
    # A group of hostile clients alone has a mean, too.
    honest = _honest(entries) or entries
    pooled_mean = pooled_over(line, honest, metric)
    if pooled_mean is not None:
        return None if math.isnan(pooled_mean) else pooled_mean
    values = [entry[metric] for entry in honest.values() if entry.get(metric) is not None]
    return float(np.mean(values)) if values else None


def pooled_over(line: Line, clients: Iterable[str], metric: str) -> float | None:
    """Return a metric of the test rows of some clients together.

    Args:
        line: The record of the round.
        clients: The keys of these clients in the line.
        metric: The name of the metric.

    Returns:
        The metric, NaN if it is not defined; None if the line has no sums of it, so that it is
        averaged over clients.
    """
    sums = sums_of(line, metric)
    client_sums = [sums[client] for client in clients if client in sums]
    return pooled(client_sums) if client_sums else None


def sums_of(line: Line, metric: str) -> dict[str, ErrorSums]:
    """Return client -> its sums of a metric, see ``coterie.pooling``; empty for a metric that is averaged over clients."""
    return {client: sums[metric] for client, sums in line.get("sums", {}).items() if metric in sums}


def ends(line: Line, rounds: int, target: float | None) -> bool:
    """Whether a run ends with a round.

    Args:
        line: The shown record of the round.
        rounds: Rounds of the run.
        target: The target of the mean of the main metric; None for none.

    Returns:
        Whether the round is the last, or its mean has reached the target.
    """
    if target is None or not line["tested"]:
        return bool(line["round"] >= rounds)
    # A run with a target ends when the mean of a tested round has reached it.
    main_mean = spread(line)["mean"]
    reached = main_mean >= target if shown_as(line).better == "greater" else main_mean <= target
    return bool(line["round"] >= rounds or reached)
