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
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coterie.data.scenario import flattened
from coterie.files import Folder
from coterie.methods import METHODS
from coterie.printable import printable
from coterie.records.record import Record
from coterie.records.shown import (
    ClientId,
    Line,
    Shown,
    mean_of,
    personal_clients,
    pooled_over,
    shown_as,
    sums_of,
)
from coterie.records.text_files import finite
from coterie.report.colours import group_colours
from coterie.report.compared import side_by_side
from coterie.report.gathered import Gathered, PlacedNotes, TreeNode, gathered
from coterie.report.listing import first_line
from coterie.report.page.charts import charts, real, squares, whole
from coterie.report.ranking import contests, gains
from coterie.report.setting_differences import AROUND, lines_of_settings
from coterie.report.summary import ABOUT, expand, silent
from coterie.report.trials import Trial, trial
from coterie.report.verdict import verdict
from coterie.report.words import readable
from coterie.settings import UserError, documented

MAX_EVENTS = 2000
"""The greatest number of notes on a page; notes that changed groups come first."""

MAX_CLIENTS_OF_EVENT = 50
"""The greatest number of clients of a note that are named on a page."""

COUNTED = ("exchanges", "asked", "answered", "bytes_up", "bytes_down", "evaluations")
"""Quantities counted in every round."""

SETTINGS_OF_RUN = (
    "rounds",
    "target",
    "eval_every",
    "validation_share",
    "stop_after",
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
    return document_of(list(map(read_run, folders)))


@dataclass(frozen=True)
class PageRun:
    """What a page needs of one run. It does not depend on the other runs of the page.

    Attributes:
        folder: The run directory.
        trial: What a comparison needs.
        entry: The run's entry in the document, without its name and its gains.
    """

    folder: Path
    trial: Trial
    entry: Mapping[str, Any]

    @property
    def run_dir(self) -> str:
        """The run directory as its summary names it."""
        return str(self.trial.summary["run_dir"])


def document_of(page_runs: Sequence[PageRun]) -> dict[str, Any]:
    """Return the document of runs from the results of :func:`read_run`; runs of the recommended method come first.

    Args:
        page_runs: The runs.
    """
    comparisons = contests(run.trial for run in page_runs)
    # The runs in the order of the page: contests order their methods by the recommendation.
    rank_of_run: dict[str, int] = {}
    gains_of_run: dict[str, Any] = {}
    # Methods that are there with several settings are numbered.
    method_of_run: dict[str, str] = {}
    for contest in comparisons:
        gains_of_run.update(gains(contest))
        for method in contest.methods:
            for seed in sorted(method.trials):
                run_dir = method.trials[seed].summary["run_dir"]
                rank_of_run.setdefault(run_dir, len(rank_of_run))
                method_of_run[run_dir] = method.label
    run_names = labels([run.folder for run in page_runs])
    # Runs that no contest could compare come last.
    ranked = sorted(
        zip(run_names, page_runs, strict=True),
        key=lambda named_run: rank_of_run.get(named_run[1].run_dir, len(rank_of_run)),
    )
    run_entries = []
    for run_name, run in ranked:
        run_entries.append({"name": run_name, **run.entry, "gains": gains_of_run.get(run.run_dir)})
    compared = []
    settings: list[str] = []
    if len(ranked) > 1:
        compared = side_by_side([run.trial.summary for _, run in ranked])
        for entry in compared:
            entry["label"] = method_of_run.get(entry["run_dirs"][0], entry["method"])
        settings = lines_of_settings([entry["label"] for entry in compared], compared)
    return {
        "coterie": version("coterie"),
        "verdicts": list(map(verdict, comparisons)),
        "runs": run_entries,
        "compared": compared,
        "settings": settings,
    }


def labels(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names, each with as many parent folders as needed to distinguish them."""
    absolute_paths = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in absolute_paths)):
        names = ["/".join(path.parts[-depth:]) for path in absolute_paths]
        if len(set(names)) == len(names):
            return names
    return list(map(str, absolute_paths))


def read_run(folder: Path) -> PageRun:
    """Return what the page needs of one run.

    Clients have the same order everywhere.

    Args:
        folder: The run directory.
    """
    # 1. The records, and what comparisons and pages make of them.
    record = Record(folder)
    description, lines = record.shown()
    run_trial = trial(folder, description, lines)
    run = gathered(folder, description, lines)
    summary = run_trial.summary
    metric = summary["metric"]
    # 2. Parts of the entry that take several steps.
    matrices, num_matrices, num_unreadable = squares(folder, lines, run.clients)
    # The page has groups and settings in other forms, and of the score three numbers only.
    left_out = {"groups", "true_groups", "score", metric, "settings", *AROUND} - {"limits"}
    summary_entries = {key: value for key, value in summary.items() if key not in left_out}
    score = summary["score"]
    if score:
        score = {"mean": score["mean"], "std": score["std"], "worst": score["worst"]}
    is_known_method = summary["method"] in METHODS
    # 3. The entry. Scripts of the page read it by these keys.
    entry = {
        **summary_entries,
        "score": score,
        "about": first_line(METHODS[summary["method"]]) if is_known_method else "",
        "clients": client_rows(run),
        "true_groups": run.facts.get("true_groups"),
        **groups(run),
        "members": whole(run.members),
        "pooled": any(sums_of(line, metric) for line in lines),
        "scores": {**scores(lines, run.clients), "pooled": pooled_scores(run)},
        "rounds": round_columns(lines),
        "squares": matrices,
        "squares_in_all": num_matrices,
        "squares_lost": num_unreadable,
        "charts": charts(description["methods"][0], folder, lines, run.notes, run.facts),
        "events": events(run.notes),
        "events_in_all": len(run.notes),
        "settings": settings(description),
        "versions": description["versions"],
    }
    return PageRun(folder, run_trial, entry)


def scores(lines: Sequence[Line], clients: Sequence[ClientId]) -> dict[str, Any]:
    """Return the scores of all clients in the tested rounds.

    Args:
        lines: The completed rounds.
        clients: The n client ids, in the order of the rows.

    Returns:
        rounds: the tested rounds; and metrics: metric -> packed matrix ``(n, rounds)``.
    """
    tested_indices = [round_index for round_index, line in enumerate(lines) if line["tested"]]
    metrics: set[str] = set()
    for round_index in tested_indices:
        for entry in lines[round_index]["clients"].values():
            metrics.update(entry_name for entry_name in entry if entry_name not in ABOUT)
    # The main metric comes first, then the loss.
    main_metric = shown_as(lines[-1]).main
    ordered_metrics = sorted(
        metrics, key=lambda metric: (metric != main_metric, metric != "loss", metric)
    )
    # One matrix per metric, with a missing number where a client was not tested.
    tests_of_client = client_tests(lines)
    packed_matrices = {}
    for metric in ordered_metrics:
        matrix_rows = []
        for client in clients:
            tests = tests_of_client.get(client, {})
            matrix_rows.append(
                [tests.get(round_index, {}).get(metric) for round_index in tested_indices]
            )
        packed_matrices[metric] = real(matrix_rows)
    tested_rounds = [lines[round_index]["round"] for round_index in tested_indices]
    return {"rounds": tested_rounds, "metrics": packed_matrices}


def pooled_scores(run: Gathered) -> dict[str, dict[str, dict[int, float]]]:
    """Return metric -> group's id, or "all" -> tested round -> value, of metrics that are pooled over clients, such as R2."""
    adversaries = set(run.facts.get("adversaries", ()))
    values: dict[str, dict[str, dict[int, float]]] = {}
    for round_index, line in enumerate(run.lines):
        metrics: dict[str, None] = {}  # an ordered set
        for sums_of_client in line.get("sums", {}).values():
            metrics.update(dict.fromkeys(sums_of_client))
        if not metrics:
            continue
        # The honest members of each group in this round, and of all groups together.
        members: dict[str, list[str]] = {}
        for client, nodes in zip(run.clients, run.members, strict=True):
            if client not in adversaries and nodes[round_index] >= 0:
                members.setdefault("all", []).append(str(client))
                members.setdefault(str(nodes[round_index]), []).append(str(client))
        for metric in metrics:
            for group_id, clients in members.items():
                pooled_value = pooled_over(line, clients, metric)
                if pooled_value is not None and not math.isnan(pooled_value):
                    values_of_group = values.setdefault(metric, {}).setdefault(group_id, {})
                    values_of_group[line["round"]] = pooled_value
    return values


def round_columns(lines: Sequence[Line]) -> dict[str, list[Any]]:
    """Return the numbers of each round: groups, traffic, and seconds by activity."""
    columns: dict[str, list[Any]] = {}
    for key in COUNTED:
        columns[key] = [line[key] for line in lines]
    # Numbers that the records have as lists.
    columns["groups"] = [len(line["groups"]) for line in lines]
    columns["refused"] = [len(line["refused"]) for line in lines]
    # Not every round has every activity.
    activities: dict[str, None] = {}  # an ordered set
    for line in lines:
        activities.update(dict.fromkeys(line["seconds"]))
    for activity in activities:
        columns[f"seconds_{activity}"] = [line["seconds"].get(activity) for line in lines]
    return columns


def events(notes: PlacedNotes) -> list[dict[str, Any]]:
    """Return notes of the run in order, at most :data:`MAX_EVENTS`.

    Notes that divided clients are chosen first, then those with another effect, then others as far
    as there is room. The page shows the last only if asked to.

    Args:
        notes: The notes of the run.
    """

    def priority(note_index: int) -> tuple[bool, bool, int]:
        """Sorts the most important notes first, of equally important ones the newest."""
        note = notes[note_index].note
        return not _divides(note), not _has_effect(note), -note_index

    chosen = sorted(sorted(range(len(notes)), key=priority)[:MAX_EVENTS])
    entries = []
    for note_index in chosen:
        round, node, note = notes[note_index]
        entries.append(
            {
                "round": round,
                "node": node,
                "kind": note["kind"],
                "text": readable(note["text"]),
                "clients": note["clients"][:MAX_CLIENTS_OF_EVENT],
                "count": len(note["clients"]),
                "changes": _divides(note),
                "shown": _has_effect(note),
            }
        )
    return entries


def _divides(note: Mapping[str, Any]) -> bool:
    """Whether a note divided clients."""
    return len(note["parts"]) > 1


def _has_effect(note: Mapping[str, Any]) -> bool:
    """Whether a note had an effect on groups or models."""
    return _divides(note) or note["effect"] not in ("keeps", "limits", "info")


def settings(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of settings of a run.

    Args:
        description: The content of ``run.toml``.

    Returns:
        One dict per table, with its title and rows of name, value and, for a setting of the method,
        its description.
    """
    # A copy, because the name is not a setting.
    method = dict(description["methods"][0])
    method_name = method.pop("name")
    # A custom method, or one of a newer Coterie, is not in METHODS.
    method_class = METHODS.get(method_name)
    descriptions: dict[str, str] = {}
    if method_class:
        descriptions = {setting: about for setting, _, _, about in documented(method_class)}
    run_settings = {key: description[key] for key in SETTINGS_OF_RUN if key in description}
    tables = {
        f"method {method_name}": method,
        "scenario": flattened(description["scenario"]),
        "training": description["training"],
        "boundary": description["boundary"],
        "robust": description.get("robust", {}),
        "run": run_settings,
    }
    titled_tables = []
    for title, table in tables.items():
        if not table:
            continue
        abouts = descriptions if table is method else {}
        table_rows = [[setting, value, abouts.get(setting, "")] for setting, value in table.items()]
        titled_tables.append({"title": title, "rows": table_rows})
    return titled_tables


# ----------------------------------------------------------------------------------------------------
# The clients of a run as rows of a table: the group of each, its score in its earlier groups, and
# its missing answers.


MAX_GROUPS_ON_PATH = 8
"""The greatest number of groups that are listed for a client: the first one and the last ones."""


def client_rows(run: Gathered) -> list[dict[str, Any]]:
    """Return one row per client, in the order of ``run.clients``.

    Args:
        run: The run.

    Returns:
        One dict per client:

        - id, and node: the id of its group in the last round, or -1
        - examples, truth (number of its true group), adversary
        - score (the main metric) and loss, as last tested
        - path: ``[node, round, score]`` of each group it was in, as last tested there
        - best: the id of the group on the path where its score was best; None if a personal model
          serves it now
        - personal: the tested rounds in which a personal model served it, of those on the path and
          the last one
        - personal_now: whether a personal model serves it
        - silent: the number of rounds in which it was asked and did not answer, or was away
        - refused: the number of its replies that were refused
    """
    facts = run.facts
    truth = run.truth
    # Not every record has the numbers of examples.
    examples = dict(zip(facts.get("clients", ()), facts.get("examples", ()), strict=False))
    adversaries = set(facts.get("adversaries", ()))
    silent_rounds = count_silent_rounds(run.lines)
    refused_replies: Counter[str] = Counter()
    for line in run.lines:
        refused_replies.update(list(line["refused"]))
    tests_of_client = client_tests(run.lines)
    naming = shown_as(run.lines[-1])
    personal_of_round = {line["round"]: personal_clients(line) for line in run.lines}
    served_personally = personal_clients(run.lines[-1])
    table_rows = []
    for client, nodes in zip(run.clients, run.members, strict=True):
        tests = tests_of_client.get(client, {})
        last_test = tests[max(tests)] if tests else {}
        path = group_path(nodes, tests, naming.main)
        # Rounds are numbered from 1.
        shown_rounds = {round for _, round, _ in path if round is not None}
        if tests:
            shown_rounds.add(max(tests) + 1)
        personal_rounds = [
            round for round in sorted(shown_rounds) if client in personal_of_round[round]
        ]
        best = None
        # Scores of personal models say nothing of a group.
        if client not in served_personally:
            best = best_group([stay for stay in path if stay[1] not in personal_rounds], naming)
        table_rows.append(
            {
                "id": client,
                "node": nodes[-1],
                "examples": examples.get(client),
                "truth": truth.get(client),
                "adversary": client in adversaries,
                "score": last_test.get(naming.main),
                "loss": last_test.get("loss"),
                "path": path,
                "best": best,
                "personal": personal_rounds,
                "personal_now": client in served_personally,
                "silent": silent_rounds[client],
                "refused": refused_replies[str(client)],
            }
        )
    return table_rows


def client_tests(lines: Sequence[Line]) -> dict[ClientId, dict[int, Mapping[str, float | None]]]:
    """Return the tests of each client: client -> position of a round -> its scores."""
    tests_of_client: dict[ClientId, dict[int, Mapping[str, float | None]]] = {}
    for round_index, line in enumerate(lines):
        if not line["tested"]:
            continue
        naming = shown_as(line)
        for client, entry in line["clients"].items():
            if entry.get(naming.main) is not None or entry.get("loss") is not None:
                tests_of_client.setdefault(naming.key(client), {})[round_index] = entry
    return tests_of_client


def group_path(
    nodes: Sequence[int], tests: Mapping[int, Mapping[str, float | None]], metric: str
) -> list[list[Any]]:
    """Return the groups that a client was in, in order, each as last tested.

    Args:
        nodes: The id of the client's group in each round, or -1.
        tests: Position of a round -> the client's scores.
        metric: The main metric.

    Returns:
        ``[node, round, score]`` of each group, at most :data:`MAX_GROUPS_ON_PATH`.
    """
    path: list[list[Any]] = []
    for round_index, node in enumerate(nodes):
        if node < 0:
            continue
        # The client came to another group.
        if not path or path[-1][0] != node:
            path.append([node, None, None])
        score = tests.get(round_index, {}).get(metric)
        if score is not None:
            # Rounds are numbered from 1.
            path[-1] = [node, round_index + 1, score]
    if len(path) <= MAX_GROUPS_ON_PATH:
        return path
    return [path[0], *path[1 - MAX_GROUPS_ON_PATH :]]


def best_group(path: Sequence[Sequence[Any]], naming: Shown) -> int | None:
    """Return the last node on a path with the best score; None if there is no score."""
    tested = [(node, score) for node, _, score in path if score is not None]
    if not tested:
        return None
    best_score = naming.best([score for _, score in tested])
    return next((node for node, score in reversed(tested) if score == best_score), None)


def count_silent_rounds(lines: Sequence[Line]) -> Counter[ClientId]:
    """Count the rounds in which each client was asked and did not answer, or was away."""
    silent_rounds: Counter[ClientId] = Counter()
    for line in lines:
        silent_rounds.update(client for client in line["silent"] if silent(line, client))
        silent_rounds.update(map(shown_as(line).key, line.get("absent", ())))
    return silent_rounds


# ----------------------------------------------------------------------------------------------------
# The groups of a run as a page shows them. Methods that make new groups in every round may have
# tens of thousands.


MAX_CLIENTS_OF_GROUP = 60
"""The greatest number of clients of a group that are named on a page."""

MAX_PARENTS_OF_GROUP = 6
"""The greatest number of parent groups that are named."""


def groups(run: Gathered) -> dict[str, Any]:
    """Return the groups of a run as the page shows them.

    Args:
        run: The run.

    Returns:
        nodes, reasons and truth_colours (number of a true group -> number of its colour, see
        :mod:`coterie.report.colours`). reasons has each text once. nodes has one dict per group: id,
        name, colour (its number; None if the group has ended), first and last (round), count,
        clients (the first :data:`MAX_CLIENTS_OF_GROUP`), parents, kind, why (position in reasons, or
        None), truth (``[true group, number of its clients]``), and the
        keys of :func:`last_scores`.
    """
    truth = run.truth
    # Text -> its position in ``reasons``; :func:`_node_entry` adds to it.
    position_of_reason: dict[str, int] = {}
    colours = group_colours(run)
    nodes = []
    for node in run.nodes:
        node_entry = _node_entry(node, run, truth, position_of_reason)
        nodes.append({**node_entry, "colour": colours.of_node.get(node.id)})
    return {
        "nodes": nodes,
        "reasons": list(position_of_reason),
        "truth_colours": colours.of_truth,
    }


def _node_entry(
    node: TreeNode, run: Gathered, truth: dict[ClientId, int], position_of_reason: dict[str, int]
) -> dict[str, Any]:
    # How many of its clients each true group has.
    sizes_of_true_groups = Counter(truth[client] for client in node.clients if client in truth)
    why = None
    if node.why:
        why = position_of_reason.setdefault(readable(node.why), len(position_of_reason))
    return {
        "id": node.id,
        "name": run.group_name(node.id),
        "first": node.first,
        "last": node.last,
        "count": len(node.clients),
        "clients": node.clients[:MAX_CLIENTS_OF_GROUP],
        "parents": node.parents[:MAX_PARENTS_OF_GROUP],
        "kind": node.kind,
        "why": why,
        "truth": sorted(sizes_of_true_groups.items()),
        **last_scores(node, run),
    }


def last_scores(node: TreeNode, run: Gathered) -> dict[str, Any]:
    """Return the mean score (the main metric) and loss of a group's honest members in the last tested round of the group.

    Args:
        node: The group.
        run: The run.

    Returns:
        tested (the round), score and loss; all None if no round of the group was tested.
    """
    # The group existed in the rounds from node.first to node.last; round r is run.lines[r - 1].
    for round_index in range(node.last - 1, node.first - 2, -1):
        line = run.lines[round_index]
        if line["tested"]:
            members = line["groups"][run.node_ids_by_round[round_index].index(node.id)]
            return {
                "tested": line["round"],
                "score": mean_of(line, members),
                "loss": mean_of(line, members, "loss"),
            }
    return {"tested": None, "score": None, "loss": None}


# ----------------------------------------------------------------------------------------------------
# The page itself: markup, style, script and the document of numbers in one file, which loads
# nothing from the network.


SCRIPTS = (
    "base.js",
    "chart.js",
    "groups.js",
    "square.js",
    "table.js",
    "words.js",
    "strip.js",
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
    script = "\n".join(map(asset, SCRIPTS))
    # The page's policy allows this one script, by its digest, and nothing from the network.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    filled_in = {
        "policy": policy,
        "title": _escaped(title(document)),
        "style": asset("page.css"),
        "reload": "" if reload_seconds is None else str(reload_seconds),
        "document": embedded(document),
        "script": script,
    }
    # In one pass, because the inserted texts may contain braces themselves.
    return re.sub(
        r"\{\{(\w+)\}\}", lambda placeholder: filled_in[placeholder[1]], asset("page.html")
    )


def title(document: Mapping[str, Any]) -> str:
    """Return the title that the browser's tab shows."""
    runs = document["runs"]
    if len(runs) == 1:
        return f"{runs[0]['method']}, {runs[0]['title']} – Coterie"
    titles = {run["title"] for run in runs}
    if len(titles) == 1:
        return f"{titles.pop()}: {len(runs)} runs – Coterie"
    return f"{len(runs)} runs – Coterie"


def embedded(document: Mapping[str, Any]) -> str:
    """Return the document as JSON that cannot close the HTML element that contains it."""
    text = json.dumps(finite(document), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # Without "<" there is no "</script>".
    return printable(text).replace("<", "\\u003c")


def asset(file_name: str) -> str:
    """Return the text of a file of the package's assets."""
    return (
        resources.files("coterie.report").joinpath("assets", file_name).read_text(encoding="utf-8")
    )


def _escaped(text: str) -> str:
    return html.escape(printable(text))
