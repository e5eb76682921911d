"""The newest result of each client in runs: its score with each method, and the rounds that it missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.records.record import Record
from coterie.records.shown import ClientId, Line, shown_as
from coterie.report.summary import absent, silent


@dataclass(frozen=True, kw_only=True)
class NewestResult:
    """What the records of a run say about one client at last.

    Attributes:
        group: The position of its group in the last round, from 1; None if it is in none.
        score: The main metric on its test data, as last tested; None if it never was.
        loss: Its loss in the same test.
        tested: The round of this test.
        missed: The number of rounds in which it did not answer or was away.
        refused: The number of rounds in which its reply was refused.
    """

    group: int | None = None
    score: float | None = None
    loss: float | None = None
    tested: int | None = None
    missed: int = 0
    refused: int = 0


def results_of_run(run: Path | str) -> dict[ClientId, NewestResult]:
    """Return the newest result of each client of a run, by the name under which the client is shown."""
    _, lines = Record(run).shown()
    return {client: _result(lines, client) for client in _clients(lines)}


def _clients(lines: Sequence[Line]) -> list[ClientId]:
    """All clients that were in a group in some round, in the order of their names."""
    clients: dict[ClientId, None] = {}
    for line in lines:
        clients |= dict.fromkeys(map(shown_as(line).key, line["clients"]))
    return sorted(clients, key=lambda client: (isinstance(client, str), client))


def _result(lines: Sequence[Line], client: ClientId) -> NewestResult:
    group = None
    for position, members in enumerate(lines[-1]["groups"], start=1):
        if client in members:
            group = position
    tested_line: Line | None = None
    for line in reversed(lines):
        entry = line["clients"].get(str(client), {})
        if line["tested"] and entry.get(shown_as(line).main) is not None:
            tested_line = line
            break
    missed_lines = [line for line in lines if silent(line, client) or absent(line, client)]
    refused_lines = [line for line in lines if str(client) in line["refused"]]
    entry = {} if tested_line is None else tested_line["clients"][str(client)]
    return NewestResult(
        group=group,
        score=None if tested_line is None else entry[shown_as(tested_line).main],
        loss=entry.get("loss"),
        tested=None if tested_line is None else tested_line["round"],
        missed=len(missed_lines),
        refused=len(refused_lines),
    )


def client_rows(
    entries: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each client of runs in one scenario.

    Args:
        entries: Entries of :func:`coterie.compare` with the same clients.
        labels: What each entry is called.

    Returns:
        Per row: ``client``; ``scores``: label -> the client's score, the mean over seeds, or None
        if a run has none; and for a single run the fields of :class:`NewestResult`.
    """
    results_of_entry: list[list[dict[ClientId, NewestResult]]] = []
    for entry in entries:
        results_of_entry.append(list(map(results_of_run, entry["run_dirs"])))
    # The clients of all runs, in the order of the first run that has them.
    clients: dict[ClientId, None] = {}
    for results_of_seeds in results_of_entry:
        for results in results_of_seeds:
            clients |= dict.fromkeys(results)
    is_single = len(results_of_entry) == 1 and len(results_of_entry[0]) == 1
    rows = []
    for client in clients:
        scores = {}
        for label, results_of_seeds in zip(labels, results_of_entry, strict=True):
            scores[label] = _mean(
                results.get(client, NewestResult()).score for results in results_of_seeds
            )
        row: dict[str, Any] = {"client": client, "scores": scores}
        if is_single:
            row |= vars(results_of_entry[0][0][client])
        rows.append(row)
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of values; None if one is missing."""
    known_values = []
    for value in values:
        if value is None:
            return None
        known_values.append(value)
    return sum(known_values) / len(known_values)
