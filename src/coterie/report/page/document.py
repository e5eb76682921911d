"""The numbers of a page, from run directories alone: the JSON document that :mod:`coterie.report.page` draws."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coterie.data.scenario import flattened
from coterie.files import Folder
from coterie.methods import METHODS
from coterie.printable import printable
from coterie.records.record import Line, Record, finite
from coterie.records.shown import ClientId, Shown, mean_of, pooled_over, shown_as, sums_of
from coterie.report.compared import AROUND, side_by_side
from coterie.report.gathered import Gathered, PlacedNotes, TreeNode, gathered
from coterie.report.listing import first_line
from coterie.report.page.charts import charts, real, squares, whole
from coterie.report.ranking import contests, gains
from coterie.report.summary import ABOUT, Summary, expand, silent
from coterie.report.trials import Trial, trial
from coterie.report.verdict import verdict
from coterie.settings import UserError, documented

EVENTS = 2000
"""The greatest number of notes on a page; notes that changed groups come first."""

COUNTED = ("exchanges", "asked", "answered", "bytes_up", "bytes_down", "evaluations")
"""Quantities counted in every round."""

LIMITS = (
    "rounds",
    "target",
    "eval_every",
    "checkpoint_every",
    "checkpoints_kept",
    "seeds",
    "engine",
    "workers",
    "width",
    "device",
    "precision",
)
"""Settings of the run itself in ``run.toml``."""


def document(runs: Folder | Iterable[Folder]) -> dict[str, Any]:
    """Return the document that the page of these runs shows.

    Args:
        runs: Run directories, or folders that contain some.

    Returns:
        ``coterie`` (its version), ``verdicts`` (one per scenario, see
        :func:`~coterie.report.verdict.verdict`), ``runs``, and ``compared``: with several runs, see
        :func:`coterie.compare`.

    Raises:
        UserError: If there is no run, or one of ``runs`` is not a run directory or has no completed
            round.
    """
    folders = expand(runs)
    if not folders:
        raise UserError("a report needs at least one run, got none")
    return together(folders, [one(folder) for folder in folders])


Part = tuple[Summary, Trial, Mapping[str, Any]]
"""What a page needs of a run: its summary, what a comparison needs, and the part of the document
about it."""


def together(folders: Sequence[Path], parts: Sequence[Part]) -> dict[str, Any]:
    """Return the document of runs from the results of :func:`one`; runs of the recommended method come first.

    Args:
        folders: The run directories.
        parts: The results of :func:`one`, in the same order.
    """
    found = contests(one for _, one, _ in parts)
    best = [
        each.summary["run_dir"]
        for contest in found
        for one in contest.methods
        for _, each in sorted(one.trials.items())
    ]
    better = {run: gain for contest in found for run, gain in gains(contest).items()}
    named = list(zip(labels(folders), parts, strict=True))
    named.sort(
        key=lambda one: best.index(run) if (run := one[1][0]["run_dir"]) in best else len(best)
    )
    return {
        "coterie": version("coterie"),
        "verdicts": [verdict(contest) for contest in found],
        "runs": [
            {"name": name, **about, "gains": better.get(said["run_dir"])}
            for name, (said, _, about) in named
        ],
        "compared": side_by_side([said for _, (said, _, _) in named]) if len(named) > 1 else [],
    }


def labels(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names, each with as many parent folders as needed to distinguish them."""
    whole_ = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(folder.parts) for folder in whole_)):
        names = ["/".join(folder.parts[-depth:]) for folder in whole_]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in whole_]


def one(folder: Path) -> Part:
    """Return what the page needs of one run; its name depends on the others.

    Clients have the same order everywhere.

    Args:
        folder: The run directory.
    """
    record = Record(folder)
    description, lines = record.shown()
    compared = trial(folder, description, lines)
    said, run = compared.summary, gathered(folder, description, lines)
    clients, members, truth = run.clients, run.members, run.facts.get("true_groups")
    pictures, count, lost = squares(folder, lines, clients)
    left_out = {"groups", "true_groups", "score", said["metric"], "settings", *AROUND} - {"limits"}
    return (
        said,
        compared,
        {
            **{key: value for key, value in said.items() if key not in left_out},
            "score": said["score"]
            and {key: said["score"][key] for key in ("mean", "std", "worst")},
            "about": first_line(METHODS[said["method"]]) if said["method"] in METHODS else "",
            "clients": rows(run),
            "true_groups": truth,
            **groups(run),
            "members": whole(members),
            "pooled": bool(lines) and any(sums_of(line, said["metric"]) for line in lines),
            "scores": {**scores(lines, clients), "pooled": pooled_scores(run)},
            "rounds": rounds(lines),
            "squares": pictures,
            "squares_in_all": count,
            "squares_lost": lost,
            "charts": charts(run.description["methods"][0], folder, lines, run.notes, run.facts),
            "events": events(run.notes),
            "events_in_all": len(run.notes),
            "settings": settings(run.description),
            "versions": run.description["versions"],
        },
    )


def scores(lines: Sequence[Line], clients: Sequence[ClientId]) -> dict[str, Any]:
    """Return the scores of all clients in the tested rounds.

    Args:
        lines: The completed rounds.
        clients: The n client ids, in the order of the rows.

    Returns:
        rounds: the tested rounds; and metrics: metric -> packed matrix ``(n, rounds)``.
    """
    tested = [i for i, line in enumerate(lines) if line["tested"]]
    found = tests(lines)
    entries = (entry for at in tested for entry in lines[at]["clients"].values())
    names = dict.fromkeys(name for entry in entries for name in entry if name not in ABOUT)
    main = shown_as(lines[-1]).main
    table = {
        name: real(
            [[found.get(client, {}).get(at, {}).get(name) for at in tested] for client in clients]
        )
        for name in sorted(names, key=lambda name: (name != main, name != "loss", name))
    }
    return {"rounds": [lines[at]["round"] for at in tested], "metrics": table}


def pooled_scores(run: Gathered) -> dict[str, dict[str, dict[int, float]]]:
    """Return metric -> group's id, or "all" -> tested round -> value, of metrics that are pooled over clients, such as R2."""
    honest = [client for client in run.clients if client not in run.facts.get("adversaries", ())]
    places = dict(zip(run.clients, run.members, strict=True))
    found: dict[str, dict[str, dict[int, float]]] = {}
    for at, line in enumerate(run.lines):
        for metric in dict.fromkeys(
            name for sums in line.get("sums", {}).values() for name in sums
        ):
            members: dict[str, list[str]] = {}
            for client in honest:
                if places[client][at] >= 0:
                    members.setdefault("all", []).append(str(client))
                    members.setdefault(str(places[client][at]), []).append(str(client))
            for group, clients in members.items():
                value = pooled_over(line, clients, metric)
                if value is not None and not math.isnan(value):
                    found.setdefault(metric, {}).setdefault(group, {})[line["round"]] = value
    return found


def rounds(lines: Sequence[Line]) -> dict[str, list[Any]]:
    """Return the numbers of each round: groups, traffic, and seconds by activity."""
    out: dict[str, list[Any]] = {key: [line[key] for line in lines] for key in COUNTED}
    out["groups"] = [len(line["groups"]) for line in lines]
    out["refused"] = [len(line["refused"]) for line in lines]
    for name in dict.fromkeys(name for line in lines for name in line["seconds"]):
        out[f"seconds_{name}"] = [line["seconds"].get(name) for line in lines]
    return out


def events(described: PlacedNotes) -> list[dict[str, Any]]:
    """Return notes of the run in order, at most :data:`EVENTS`.

    Notes that divided clients are chosen first, then those with another effect, then others as far
    as there is room. The page shows the last only if asked to.

    Args:
        described: The notes of the run.
    """
    rank = [_importance(note) for _, _, note in described]
    chosen = sorted(sorted(range(len(described)), key=lambda i: (rank[i], -i))[:EVENTS])
    return [
        {
            "round": round,
            "node": node,
            "kind": note["kind"],
            "text": note["text"],
            "clients": note["clients"][:50],
            "count": len(note["clients"]),
            "changes": rank[i] == 0,
            "shown": rank[i] < 2,
        }
        for i, (round, node, note) in ((i, described[i]) for i in chosen)
    ]


def _importance(note: Mapping[str, Any]) -> int:
    """Return 0 for a note that divided clients, 2 for one without an effect, 1 for all others."""
    if len(note["parts"]) > 1:
        return 0
    return 2 if note["effect"] in ("keeps", "limits", "info") else 1


def settings(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of settings of a run.

    Args:
        description: The content of ``run.toml``.

    Returns:
        One dict per table, with its title and rows of name, value and, for a setting of the method,
        its description.
    """
    method = dict(description["methods"][0])
    known = METHODS.get(
        method["name"]
    )  # a method of a newer Coterie, or a custom one, is not known
    words = {name: text for name, _, _, text in documented(known)} if known else {}
    tables = {
        f"method {method.pop('name')}": method,
        "scenario": flattened(description["scenario"]),
        "training": description["training"],
        "boundary": description["boundary"],
        "robust": description.get("robust", {}),
        "run": {k: description[k] for k in LIMITS if k in description},
    }
    return [
        {
            "title": title,
            "rows": [
                [key, value, words.get(key, "") if table is method else ""]
                for key, value in table.items()
            ],
        }
        for title, table in tables.items()
        if table
    ]


# ----------------------------------------------------------------------------------------------------
# The clients of a run as rows of a table: the group of each, its score in its earlier groups, and
# its missing answers.


STEPS = 8
"""The greatest number of groups that are listed for a client: the first one and the last ones."""


def rows(run: Gathered) -> list[dict[str, Any]]:
    """Return one row per client, in the order of ``run.clients``.

    Args:
        run: The run.

    Returns:
        One dict per client:

        - id, and node: the id of its group in the last round, or -1
        - examples, truth (number of its true group), adversary
        - score (the main metric) and loss, as last tested
        - path: ``[node, round, score]`` of each group it was in, as last tested there
        - best: the id of the group on the path where its score was best
        - silent: the number of rounds in which it was asked and did not answer
        - refused: the number of its replies that were refused
    """
    facts, truth = run.facts, run.truth
    examples = dict(zip(facts.get("clients", ()), facts.get("examples", ()), strict=False))
    adversaries = set(facts.get("adversaries", ()))
    quiet = silences(run.lines)
    refused = Counter(client for line in run.lines for client in line["refused"])
    tested, one = tests(run.lines), shown_as(run.lines[-1])
    out = []
    for client, places in zip(run.clients, run.members, strict=True):
        path = way(places, tested.get(client, {}), one.main)
        last = tested.get(client, {})
        final = last[max(last)] if last else {}
        out.append(
            {
                "id": client,
                "node": places[-1],
                "examples": examples.get(client),
                "truth": truth.get(client),
                "adversary": client in adversaries,
                "score": final.get(one.main),
                "loss": final.get("loss"),
                "path": path,
                "best": best(path, one),
                "silent": quiet[client],
                "refused": refused[str(client)],
            }
        )
    return out


def tests(lines: Sequence[Line]) -> dict[ClientId, dict[int, Mapping[str, float | None]]]:
    """Return the scores of each client: client -> position of a round -> scores."""
    found: dict[ClientId, dict[int, Mapping[str, float | None]]] = {}
    for at, line in enumerate(lines):
        if line["tested"]:
            one = shown_as(line)
            for client, entry in line["clients"].items():
                if entry.get(one.main) is not None or entry.get("loss") is not None:
                    found.setdefault(one.key(client), {})[at] = entry
    return found


def way(
    places: Sequence[int], tested: Mapping[int, Mapping[str, float | None]], metric: str
) -> list[list[Any]]:
    """Return the groups that a client was in, in order, each as last tested.

    Args:
        places: The id of the client's group in each round, or -1.
        tested: Position of a round -> the client's scores.
        metric: The main metric.

    Returns:
        ``[node, round, score]`` of each group, at most :data:`STEPS`.
    """
    steps: list[list[Any]] = []
    for at, node in enumerate(places):
        if node < 0:
            continue
        if not steps or steps[-1][0] != node:
            steps.append([node, None, None])
        if at in tested and tested[at].get(metric) is not None:
            steps[-1][1:] = [at + 1, tested[at][metric]]  # rounds are numbered from 1
    return steps if len(steps) <= STEPS else [steps[0], *steps[1 - STEPS :]]


def best(path: Sequence[Sequence[Any]], one: Shown) -> int | None:
    """Return the node with the best score on a path; the last of equal ones, and None if there is no score."""
    known = [step for step in path if step[2] is not None]
    top = one.best([step[2] for step in known]) if known else None
    return next((step[0] for step in reversed(known) if step[2] == top), None)


def silences(lines: Sequence[Line]) -> Counter[ClientId]:
    """Count the rounds in which each client was asked and did not answer."""
    return Counter(client for line in lines for client in line["silent"] if silent(line, client))


# ----------------------------------------------------------------------------------------------------
# The groups of a run as a page shows them. Methods that make new groups in every round may have
# tens of thousands.


CLIENTS = 60
"""The greatest number of clients of a group that are named on a page."""

PARENTS = 6
"""The greatest number of parent groups that are named."""


def groups(run: Gathered) -> dict[str, Any]:
    """Return the groups of a run as the page shows them.

    Args:
        run: The run.

    Returns:
        nodes and reasons. reasons has each text once. nodes has one dict per group: id, first and
        last (round), count, clients (the first :data:`CLIENTS`), parents, kind, why (position in
        reasons, or None), truth (``[true group, number of its clients]``), and the keys of
        :func:`scored`.
    """
    truth = run.truth
    reasons: dict[str, int] = {}
    return {
        "nodes": [_node_entry(node, run, truth, reasons) for node in run.nodes],
        "reasons": list(reasons),
    }


def _node_entry(
    node: TreeNode, run: Gathered, truth: dict[ClientId, int], reasons: dict[str, int]
) -> dict[str, Any]:
    inside = Counter(truth[client] for client in node.clients if client in truth)
    return {
        "id": node.id,
        "first": node.first,
        "last": node.last,
        "count": len(node.clients),
        "clients": node.clients[:CLIENTS],
        "parents": node.parents[:PARENTS],
        "kind": node.kind,
        "why": reasons.setdefault(node.why, len(reasons)) if node.why else None,
        "truth": sorted(inside.items()),
        **scored(node, run),
    }


def scored(node: TreeNode, run: Gathered) -> dict[str, Any]:
    """Return the mean score (the main metric) and loss of a group's honest members in the last tested round of the group.

    Args:
        node: The group.
        run: The run.

    Returns:
        tested (the round), score and loss; all None if no round of the group was tested.
    """
    at = next((i for i in range(node.last - 1, node.first - 2, -1) if run.lines[i]["tested"]), None)
    if at is None:
        return {"tested": None, "score": None, "loss": None}
    line = run.lines[at]
    members = line["groups"][run.places[at].index(node.id)]
    return {
        "tested": line["round"],
        "score": mean_of(line, members),
        "loss": mean_of(line, members, "loss"),
    }


# ----------------------------------------------------------------------------------------------------
# The page itself: markup, style, script and the document of numbers in one file, which loads
# nothing from the network.


SCRIPTS = (
    "base.js",
    "chart.js",
    "groups.js",
    "square.js",
    "table.js",
    "parts.js",
    "verdict.js",
    "page.js",
)
"""The script files, in the order in which they run."""


def page(document: Mapping[str, Any], reload_seconds: int | None = None) -> str:
    """Return the page that shows a :func:`~coterie.report.page.document`.

    Args:
        document: The document.
        reload_seconds: Seconds after which the page reloads itself, because its file will be
            written again; None if the page is final.
    """
    script = "\n".join(asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    filled = {
        "policy": policy,
        "title": _escaped(title(document)),
        "style": asset("page.css"),
        "reload": "" if reload_seconds is None else str(reload_seconds),
        "document": embedded(document),
        "script": script,
    }
    # In one pass, because the inserted texts may contain braces themselves.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: filled[place[1]], asset("page.html"))


def title(document: Mapping[str, Any]) -> str:
    """Return the title that the browser's tab shows."""
    runs = document["runs"]
    first = f"{runs[0]['method']}, {runs[0]['scenario']}" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{first} – Coterie"


def embedded(document: Mapping[str, Any]) -> str:
    """Return the document as JSON that cannot close the HTML element that contains it."""
    text = json.dumps(finite(document), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return printable(text).replace("<", "\\u003c")


def asset(name: str) -> str:
    """Return the text of a file of the package's assets."""
    return resources.files("coterie.report").joinpath("assets", name).read_text(encoding="utf-8")


def _escaped(text: str) -> str:
    return html.escape(printable(text))
