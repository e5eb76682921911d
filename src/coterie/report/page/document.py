"""The numbers of a page, from run directories alone: what :mod:`coterie.report.page` draws, as one JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import coterie
from coterie.methods import METHODS
from coterie.record import Line, Record
from coterie.report.gathered import Told, gathered
from coterie.report.listing import first_line
from coterie.report.page.charts import charts
from coterie.report.page.clients import rows, tests
from coterie.report.page.groups import groups
from coterie.report.page.packing import real, whole
from coterie.report.page.squares import squares
from coterie.report.summary import ABOUT, Summary, expand, side_by_side, summarised
from coterie.settings import documented

EVENTS = 2000
"""Notes on a page at most: those under which groups changed come first."""

COUNTED = ("exchanges", "asked", "answered", "bytes_up", "bytes_down", "evaluations")
"""What is counted in every round."""

LIMITS = (
    "rounds", "target", "eval_every", "checkpoint_every", "seeds", "engine", "workers", "width", "device", "precision",
)  # fmt: skip
"""What ``run.toml`` says of the run itself."""

WALKS = ("walk", "join", "move", "wait", "leave", "node")
"""Notes of these kinds tell of single clients on their way."""


def document(runs: Iterable[Path | str]) -> dict[str, Any]:
    """What the page of these runs shows: ``coterie`` (version), ``runs``, and ``compared`` (see
    :func:`coterie.compare`) of several.

    runs: run directories or folders of several. Raises :class:`~coterie.settings.UserError` if one is none, or has no
    completed round.
    """
    folders = expand(runs)
    return together(folders, [one(folder) for folder in folders])


def together(folders: Sequence[Path], parts: Sequence[tuple[Summary, Mapping[str, Any]]]) -> dict[str, Any]:
    """The document of runs of which each :func:`one` is known."""
    told = [{"name": name, **about} for name, (_, about) in zip(labels(folders), parts, strict=True)]
    compared = side_by_side([said for said, _ in parts]) if len(told) > 1 else []
    return {"coterie": coterie.__version__, "runs": told, "compared": compared}


def labels(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with as much of what is above as it takes to tell them apart."""
    whole_ = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(folder.parts) for folder in whole_)):
        names = ["/".join(folder.parts[-depth:]) for folder in whole_]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in whole_]


def one(folder: Path) -> tuple[Summary, dict[str, Any]]:
    """A run: its summary, and what a page shows of it but for the name. Clients are in the same order everywhere."""
    record = Record(folder)
    description, lines = record.description(), record.lines()
    about, run = summarised(folder, description, lines), gathered(folder, description, lines)
    clients, members, truth = run.clients, run.members, run.facts.get("true_groups")
    pictures, count, lost = squares(folder, lines, clients)
    left_out = ("groups", "true_groups", "accuracy", "settings", "scenario_settings", "training", "boundary")
    return about, {
        **{key: value for key, value in about.items() if key not in left_out},
        "accuracy": about["accuracy"] and {key: about["accuracy"][key] for key in ("mean", "std", "min")},
        "about": first_line(METHODS[about["method"]]) if about["method"] in METHODS else "",
        "clients": rows(run),
        "true_groups": truth,
        **groups(run),
        "members": whole(members),
        "scores": scores(lines, clients),
        "rounds": rounds(lines),
        "squares": pictures, "squares_in_all": count, "squares_lost": lost,
        "charts": charts(run.description["methods"][0], folder, lines, run.told),
        "events": events(run.told), "events_in_all": len(run.told),
        "settings": settings(run.description),
        "versions": run.description.get("versions", {}),
    }  # fmt: skip


def scores(lines: Sequence[Line], clients: Sequence[int]) -> dict[str, Any]:
    """rounds: those tested; and metric -> packed ``(n, rounds)``, clients in this order."""
    tested = [i for i, line in enumerate(lines) if line["tested"]]
    found = tests(lines)
    entries = (entry for at in tested for entry in lines[at]["clients"].values())
    names = dict.fromkeys(name for entry in entries for name in entry if name not in ABOUT)
    table = {
        name: real([[found.get(client, {}).get(at, {}).get(name) for at in tested] for client in clients])
        for name in sorted(names, key=lambda name: (name != "accuracy", name != "loss", name))
    }
    return {"rounds": [lines[at]["round"] for at in tested], "metrics": table}


def rounds(lines: Sequence[Line]) -> dict[str, list[Any]]:
    """Numbers of each round: groups, traffic, seconds by what they went to."""
    out: dict[str, list[Any]] = {key: [line.get(key) for line in lines] for key in COUNTED}
    out["groups"] = [len(line["groups"]) for line in lines]
    out["refused"] = [len(line["refused"]) for line in lines]
    for name in dict.fromkeys(name for line in lines for name in line["seconds"]):
        out[f"seconds_{name}"] = [line["seconds"].get(name) for line in lines]
    return out


def events(told: Told) -> list[dict[str, Any]]:
    """What happened, in order: notes with a change of groups, those about single clients, then as many others as fit."""
    rank = [0 if len(note["parts"]) > 1 else 1 if note["kind"] in WALKS else 2 for _, _, note in told]
    chosen = sorted(sorted(range(len(told)), key=lambda i: (rank[i], -i))[:EVENTS])
    return [
        {"round": round, "node": node, "kind": note["kind"], "text": note["text"], "clients": note["clients"][:50],
         "count": len(note["clients"]), "changes": rank[i] == 0}
        for i, (round, node, note) in ((i, told[i]) for i in chosen)
    ]  # fmt: skip


def settings(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tables of settings: title, and rows of name, value, and the sentence that a setting of a method has."""
    method = dict(description["methods"][0])
    known = METHODS.get(method["name"])  # not of a newer Coterie, nor one of the user's own
    words = {name: text for name, _, _, text in documented(known)} if known else {}
    tables = {
        f"method {method.pop('name')}": method, "scenario": description["scenario"], "training": description["training"],
        "boundary": description.get("boundary", {}), "run": {k: description[k] for k in LIMITS if k in description},
    }  # fmt: skip
    return [
        {"title": title, "rows": [[key, value, words.get(key, "") if table is method else ""] for key, value in table.items()]}
        for title, table in tables.items()
        if table
    ]
