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

    def of(self, round_line: Line) -> dict[str, float]:
        """All numbers of the next round by name, except those that are not finite or were not measured."""
        self.sums["traffic/bytes_up"] += round_line["bytes_up"]
        self.sums["traffic/bytes_down"] += round_line["bytes_down"]
        self.sums["seconds/total"] += sum(round_line["seconds"].values())
        # Totals so far, then the numbers of this round.
        groups = round_line["groups"]
        round_numbers = {
            **self.sums,
            **{
                f"seconds/{number_name}": number_value
                for number_name, number_value in round_line["seconds"].items()
            },
            "traffic/asked": round_line["asked"],
            "traffic/answered": round_line["answered"],
            "traffic/refused": len(round_line.get("refused", ())),
            "traffic/silent": len(round_line.get("silent", ())),
            "groups/count": len(groups),
            "groups/adjusted_rand": agreement_at(self.world, round_line),
            "groups/isolated": isolated(groups, self.adversaries),
            **dict(_of_notes(round_line["notes"])),
            **dict(_of_clients(round_line)),
        }
        # Without what was not measured (None) and what is not a number.
        return {
            number_name: float(number_value)
            for number_name, number_value in round_numbers.items()
            if number_value is not None and not math.isnan(number_value)
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
        for number_name, number_value in note["numbers"].items():
            yield f"numbers/{group_name}/{number_name}", number_value


def _of_clients(round_line: Line) -> Iterator[tuple[str, float | None]]:
    """The sizes of clusters, and in a tested round each metric over all clients, over each cluster, and of each client."""
    clients = round_line["clients"]
    for clients_of_group in round_line["groups"]:
        yield f"cluster/{name_of(clients_of_group)}/size", len(clients_of_group)
    if not round_line["tested"]:
        return
    # All metrics that a client has, in the order in which they first come.
    measured_metrics: dict[str, None] = {}
    for client_entry in clients.values():
        measured_metrics |= {
            metric_name: None for metric_name in client_entry if metric_name not in ABOUT
        }
    for metric in measured_metrics:
        statistics = spread(round_line, metric)
        for statistic in ("mean", "std", "worst"):
            yield f"{metric}/{statistic}", statistics[statistic]
        for clients_of_group in round_line["groups"]:
            yield (
                f"cluster/{name_of(clients_of_group)}/{metric}",
                mean_of(round_line, clients_of_group, metric),
            )
        if len(clients) <= MAX_TRACKED_CLIENTS:
            for client, client_value in statistics["per_client"].items():
                yield f"client/{_safe(client)}/{metric}", client_value


def name_of(clients_of_group: Sequence[ClientId]) -> str:
    """The name of a group, after its first member. After a split, one part keeps the name, and its curve continues."""
    # Names must not change while the group exists, so they depend on one member only.
    first_member: Any = min(clients_of_group)
    return f"of-{_safe(first_member)}"


def _safe(shown_name: ClientId) -> str:
    """A name without signs that MLflow refuses."""
    return re.sub(r"[^\w.-]", "_", str(shown_name))


def words(round_line: Line) -> str:
    """The notes of a round as text, one line each; empty if there are none."""
    return "\n".join(
        f"round {round_line['round']} {note['kind']}: {printable(note['text'])}"
        for note in round_line["notes"]
    )


def settings(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """The settings of a run as a flat table: ``method.eps1``, ``scenario.clients``, ``training.lr``, ``versions.torch``.

    Args:
        description: The document of ``run.toml``.

    Returns:
        Name -> value. Lists and tables in tables are strings. From the world, only the number of
        clients is included.
    """
    # The parts of the description that are settings, and the number of clients.
    settings_table: dict[str, Any] = {
        "method": description["methods"][0],
        "seed": description["seeds"][0],
    }
    for setting_name, setting_value in description.items():
        if setting_name not in ("methods", "seeds", "world", "schema"):
            settings_table[setting_name] = setting_value
    settings_table["scenario"] = flattened(settings_table["scenario"])
    settings_table["world"] = {"clients": len(description["world"]["clients"])}
    # One level of tables: ``training.lr``.
    flat_settings: dict[str, Any] = {}
    for setting_name, setting_value in settings_table.items():
        if isinstance(setting_value, Mapping):
            flat_settings |= {
                f"{setting_name}.{entry_name}": entry_value
                for entry_name, entry_value in setting_value.items()
            }
        else:
            flat_settings[setting_name] = setting_value
    return {
        setting_name: setting_value
        if isinstance(setting_value, bool | int | float | str)
        else str(setting_value)
        for setting_name, setting_value in flat_settings.items()
    }
