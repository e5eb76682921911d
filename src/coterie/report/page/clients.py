"""The clients of a run as rows of a table: where each is, how good each model on its way served it, how often it was silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.record import Line
from coterie.report.gathered import Gathered
from coterie.report.summary import silent

STEPS = 8
"""Groups on a client's way that are told: the first, and the last ones."""


def rows(run: Gathered) -> list[dict[str, Any]]:
    """A row per client, in the order of ``run.clients``.

    id, node (its group's id in the last round, or -1), examples, truth (number of its true group), adversary, accuracy and
    loss (as last tested), path: ``[node, round, accuracy]`` of each group it was in, as it was last tested there; best (the
    id of the group on the path where it was most accurate), silent (rounds in which it was asked and not heard; None in
    records that do not tell), refused (replies).
    """
    facts, truth = run.facts, run.truth
    examples = dict(zip(facts.get("clients", ()), facts.get("examples", ()), strict=False))
    adversaries = set(facts.get("adversaries", ()))
    quiet = silences(run.lines)
    refused = Counter(int(client) for line in run.lines for client in line["refused"])
    tested = tests(run.lines)
    out = []
    for client, places in zip(run.clients, run.members, strict=True):
        path = way(places, tested.get(client, {}))
        last = tested.get(client, {})
        final = last[max(last)] if last else {}
        out.append({
            "id": client, "node": places[-1], "examples": examples.get(client), "truth": truth.get(client),
            "adversary": client in adversaries, "accuracy": final.get("accuracy"), "loss": final.get("loss"),
            "path": path, "best": best(path), "silent": None if quiet is None else quiet[client],
            "refused": refused[client],
        })  # fmt: skip
    return out


def tests(lines: Sequence[Line]) -> dict[int, dict[int, Mapping[str, float | None]]]:
    """client -> position of a round -> its scores."""
    found: dict[int, dict[int, Mapping[str, float | None]]] = {}
    for at, line in enumerate(lines):
        if line["tested"]:
            for client, entry in line["clients"].items():
                if entry.get("accuracy") is not None or entry.get("loss") is not None:
                    found.setdefault(int(client), {})[at] = entry
    return found


def way(places: Sequence[int], tested: Mapping[int, Mapping[str, float | None]]) -> list[list[Any]]:
    """``[node, round, accuracy]``: the groups that a client was in, in order, each as last tested."""
    steps: list[list[Any]] = []
    for at, node in enumerate(places):
        if node < 0:
            continue
        if not steps or steps[-1][0] != node:
            steps.append([node, None, None])
        if at in tested and tested[at].get("accuracy") is not None:
            steps[-1][1:] = [at + 1, tested[at]["accuracy"]]  # rounds are numbered from 1
    return steps if len(steps) <= STEPS else [steps[0], *steps[1 - STEPS :]]


def best(path: Sequence[Sequence[Any]]) -> int | None:
    """The node of greatest accuracy; of equals the last."""
    known = [(step[2], i) for i, step in enumerate(path) if step[2] is not None]
    return None if not known else path[max(known)[1]][0]


def silences(lines: Sequence[Line]) -> Counter[int] | None:
    """client -> rounds in which it was asked and not heard; None where records do not tell."""
    if not all("silent" in line for line in lines):
        return None
    return Counter(client for line in lines for client in line["silent"] if silent(line, client))
