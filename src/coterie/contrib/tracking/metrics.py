"""The numbers that are tracked of a round, its notes as text, and the settings of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.data.scenario import flattened
from coterie.printable import printable
from coterie.records.shown import ClientId, Line, mean_of, spread
from coterie.report.summary import ABOUT, agreement_at, isolated

MAX_TRACKED_CLIENTS = 100
"""Most clients that are tracked one by one; if there are more, only the clusters and the whole are
tracked."""


class Metrics:
    """The numbers of a run's rounds. Some are sums over all rounds, so every round is passed, in order.

    Args:
        world: The table ``world`` of ``run.toml``.
    """

    def __init__(self, world: Mapping[str, Any]) -> None:
        self.world = world
        self.adversaries = world.get("adversaries", [])
        self.sums = {"traffic/bytes_up": 0.0, "traffic/bytes_down": 0.0, "seconds/total": 0.0}

    def of(self, line: Line) -> dict[str, float]:
        """All numbers of the next round by name, except those that are not finite or were not measured."""
        self.sums["traffic/bytes_up"] += line["bytes_up"]
        self.sums["traffic/bytes_down"] += line["bytes_down"]
        self.sums["seconds/total"] += sum(line["seconds"].values())
        # Totals so far, then the numbers of this round.
        groups = line["groups"]
        numbers = {
            **self.sums,
            **{f"seconds/{name}": value for name, value in line["seconds"].items()},
            "traffic/asked": line["asked"],
            "traffic/answered": line["answered"],
            "groups/count": len(groups),
            "groups/adjusted_rand": agreement_at(self.world, line),
            "groups/isolated": isolated(groups, self.adversaries),
            **dict(_of_notes(line["notes"])),
            **dict(_of_clients(line)),
        }
        # Without what was not measured (None) and what is not a number.
        return {
            name: float(value)
            for name, value in numbers.items()
            if value is not None and not math.isnan(value)
        }


def _of_notes(notes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float | None]]:
    """The criteria of each group that was examined, and the other numbers of its note; the same of each event."""
    for note in notes:
        if not note["clients"]:
            continue
        group_name = name_of(note["clients"])
        if note["effect"] in ("joins", "waits", "moves", "merges"):
            # A group with the same smallest member may have been examined in this round.
            group_name += f"/{note['kind']}"
        for criterion in note["criteria"]:
            criterion_name = _safe(criterion["name"])
            yield f"criteria/{group_name}/{criterion_name}", criterion["value"]
            yield f"criteria/{group_name}/{criterion_name}/bound", criterion["bound"]
        for number_name, value in note["numbers"].items():
            yield f"numbers/{group_name}/{number_name}", value


def _of_clients(line: Line) -> Iterator[tuple[str, float | None]]:
    """The sizes of clusters, and in a tested round each metric over all clients, over each cluster, and of each client."""
    clients = line["clients"]
    for group in line["groups"]:
        yield f"cluster/{name_of(group)}/size", len(group)
    if not line["tested"]:
        return
    # All metrics that a client has, in the order in which they first come.
    metrics: dict[str, None] = {}
    for entry in clients.values():
        metrics |= {name: None for name in entry if name not in ABOUT}
    for metric in metrics:
        statistics = spread(line, metric)
        for statistic in ("mean", "std", "worst"):
            yield f"{metric}/{statistic}", statistics[statistic]
        for group in line["groups"]:
            yield f"cluster/{name_of(group)}/{metric}", mean_of(line, group, metric)
        if len(clients) <= MAX_TRACKED_CLIENTS:
            for client, value in statistics["per_client"].items():
                yield f"client/{_safe(client)}/{metric}", value


def name_of(group: Sequence[ClientId]) -> str:
    """The name of a group, after its first member. After a split, one part keeps the name, and its curve continues."""
    first_member: Any = min(group)
    return f"of-{_safe(first_member)}"


def _safe(name: ClientId) -> str:
    """A name without signs that MLflow refuses."""
    return re.sub(r"[^\w.-]", "_", str(name))


def words(line: Line) -> str:
    """The notes of a round as text, one line each; empty if there are none."""
    return "\n".join(
        f"round {line['round']} {note['kind']}: {printable(note['text'])}" for note in line["notes"]
    )


def settings(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """The settings of a run as a flat table: ``method.eps1``, ``scenario.clients``, ``training.lr``, ``versions.torch``.

    Args:
        description: The document of ``run.toml``.

    Returns:
        Name -> value. Lists and tables in tables are strings. From the world, only the number of
        clients is included.
    """
    table: dict[str, Any] = {
        "method": description["methods"][0],
        "seed": description["seeds"][0],
    }
    for name, value in description.items():
        if name not in ("methods", "seeds", "world", "schema"):
            table[name] = value
    table["scenario"] = flattened(table["scenario"])
    table["world"] = {"clients": len(description["world"]["clients"])}
    # One level of tables: ``training.lr``.
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flat.items()
    }
