"""What is tracked of a round: its record as names and numbers, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coterie.printable import printable
from coterie.record import Line, spread
from coterie.report.summary import ABOUT, agreement, isolated, mean_of, without

MOST = 100
"""Clients are tracked one by one up to so many; of more, the clusters and the whole are."""

BEFALL = ("join", "walk", "move", "merge")
"""Kinds of notes besides those on a group that was looked at, in the same round and maybe with the same smallest member."""


class Course:
    """Turns the rounds of a run, one after the other, into numbers. description: of ``run.toml``."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.truth = description["world"].get("true_groups")
        self.adversaries = description["world"].get("adversaries", [])
        self.sums: dict[str, float] = {"traffic/bytes_up": 0, "traffic/bytes_down": 0, "seconds/total": 0.0}

    def numbers(self, line: Line) -> dict[str, float]:
        """All numbers of the next round by name; what is not finite, or was not measured, is left out."""
        self.sums["traffic/bytes_up"] += line["bytes_up"]
        self.sums["traffic/bytes_down"] += line["bytes_down"]
        self.sums["seconds/total"] += sum(line["seconds"].values())
        found = {
            **self.sums,
            **{f"seconds/{name}": value for name, value in line["seconds"].items()},
            "traffic/asked": line["asked"],
            "traffic/answered": line["answered"],
            **self._groups(line),
            **_criteria(line),
            **dict(_measured(line)),
        }
        return {name: float(value) for name, value in found.items() if value is not None and value == value}

    def _groups(self, line: Line) -> dict[str, float | None]:
        """How many there are, and how well they agree with the truth about those who are there."""
        groups = line["groups"]
        absent = {c for group in self.truth or () for c in group} - {c for group in groups for c in group}
        truth = self.truth and without(self.truth, [*self.adversaries, *absent])
        return {
            "groups/count": len(groups),
            "groups/adjusted_rand": agreement(without(groups, self.adversaries), truth),
            "groups/isolated": isolated(groups, self.adversaries),
        }


def _criteria(line: Line) -> dict[str, float | None]:
    """The numbers that the method compared, of each group that it looked at, and of what befell one."""
    return {
        "/".join(["criteria", name_of(note["clients"]), *([note["kind"]] if note["kind"] in BEFALL else []), name]): value
        for note in line["notes"]
        if note["clients"]
        for name, value in note["numbers"].items()
    }


def _measured(line: Line) -> Iterator[tuple[str, float | None]]:
    """Of a tested round: each metric over all clients, over those of a cluster, and of each client."""
    clients = line["clients"]
    yield from ((f"cluster/{name_of(group)}/size", len(group)) for group in line["groups"])
    if not line["tested"]:
        return
    for metric in dict.fromkeys(name for entry in clients.values() for name in entry if name not in ABOUT):
        whole = spread(line, metric)
        yield from ((f"{metric}/{part}", whole[part]) for part in ("mean", "std", "min"))
        for group in line["groups"]:
            yield f"cluster/{name_of(group)}/{metric}", mean_of(line, group, metric)
        if len(clients) <= MOST:
            yield from ((f"client/{client}/{metric}", value) for client, value in whole["per_client"].items())


def name_of(group: list[int]) -> str:
    """A group is called by its smallest member: after a split, one part keeps the name, and the curve goes on.

    >>> name_of([7, 3, 12])
    'of-3'
    """
    return f"of-{min(group)}"


def words(line: Line) -> str:
    """The notes of a round as text, a line each; empty where there are none."""
    return "\n".join(f"round {line['round']} {note['kind']}: {printable(note['text'])}" for note in line["notes"])


def changed(line: Line) -> bool:
    """Whether a note tells that groups were made anew."""
    return any(len(note["parts"]) > 1 for note in line["notes"])


def settings(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """What was run, flat: ``method.eps1``, ``scenario.clients``, ``training.lr``, ``seed``, ``versions.torch``.

    Lists are texts. Of the world, the number of clients alone.
    """
    rest = {k: v for k, v in description.items() if k not in ("methods", "seeds", "world", "schema")}
    world = {"clients": len(description["world"]["clients"])}
    table = {"method": description["methods"][0], "seed": description["seeds"][0], **rest, "world": world}
    return dict(_flat(table, ""))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, bool | int | float | str) else str(value)
