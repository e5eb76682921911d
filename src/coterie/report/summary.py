"""Results of one run, and of several runs with different seeds, computed from run directories alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from coterie.boundary import Boundary, spent
from coterie.clustering import adjusted_rand
from coterie.data.scenario import OWN_DATA
from coterie.files import Folder, within
from coterie.notebook.tables import count, frame, some, table
from coterie.records.record import RUN, Line, Record, finite
from coterie.records.shown import ClientId, ends, shown_as, spread, truth_at
from coterie.report.limits import Limit, limited
from coterie.robust import Robust
from coterie.settings import UserError, brief, plain
from coterie.settings.calls import public

RUN_SETTINGS: Mapping[str, Any] = {"engine": "inprocess", "precision": "fp32", "eval_every": 1}
"""Settings of the run itself that its numbers depend on, besides its end, and what they are if none
is recorded."""

Summary = dict[str, Any]
"""One run as ``--json`` prints it: see :func:`summary`."""


@public
def summary(run: Folder) -> Summary:
    """Summarize the run in directory ``run``, after all rounds completed so far.

    If the run has adversaries, ``ari`` and the means, ``std`` and ``worst`` cover the honest
    clients only. Numbers that are not finite are None.

    Args:
        run: A run directory.

    Returns:
        A dict, with the keys below.

        - method, scenario, seed, rounds (completed)
        - settings (of the method), scenario_settings, training, boundary, robust
        - run_settings: engine, precision, eval_every, and data if these are your own
        - limits (when the run ends) and finished (whether it has ended)
        - groups and true_groups: lists of lists of client ids; true_groups is None if not known,
          and where data drift that of the last completed round
        - ari: the adjusted Rand index of groups and true_groups over the clients that are present,
          or None
        - adversaries, and isolated: the share of them that is isolated, or None
        - metric: the name of the main metric, better: whether a greater or a smaller value is
          better
        - score: mean, std and worst of the main metric over clients, and per_client, in the last
          tested round; and the same under the metric's own name, such as accuracy
        - loss and each other metric, whose names are in others: the mean over clients
        - bytes_up, bytes_down, exchanges, evaluations, seconds: the sums over all rounds. An
          evaluation is that of a model on a client's data, requested by the method.
        - limited: what limits on single clients changed, see ``limited``; empty if nothing
        - privacy (see ``privacy``)
        - run_dir

    Raises:
        UserError: If no round is completed yet.
    """
    run = Path(run)
    description, lines = Record(run).shown()
    return summarised(run, description, lines, limited(lines))


def summarised(
    run: Path | str,
    description: Mapping[str, Any],
    lines: Sequence[Line],
    limits: Sequence[Limit],
) -> Summary:
    """Summarize a run, as :func:`summary` does, from records that have been read.

    Args:
        run: The run directory.
        description: The content of ``run.toml``.
        lines: The completed rounds.
        limits: What limits on single clients changed in these rounds.

    Returns:
        The summary, with the keys of :func:`summary`.

    Raises:
        UserError: If ``lines`` is empty.
    """
    if not lines:
        raise UserError(f"{run} has no completed round yet; to continue, run coterie resume {run}")
    method, scenario = dict(description["methods"][0]), dict(description["scenario"])
    end = {"rounds": description["rounds"], "target": description.get("target")}
    run_settings = {name: description.get(name, usual) for name, usual in RUN_SETTINGS.items()}
    if scenario.get("dataset") in OWN_DATA and "data" in description:
        run_settings["data"] = description["data"]
    groups, truth = lines[-1]["groups"], truth_at(description["world"], lines[-1]["round"])
    adversaries = description["world"].get("adversaries", [])
    out: Summary = {
        "method": method.pop("name"),
        "scenario": scenario.pop("name"),
        "seed": description["seeds"][0],
        "rounds": lines[-1]["round"],
        "settings": method,
        "scenario_settings": scenario,
        "training": description["training"],
        "boundary": description["boundary"],
        "robust": {**plain(Robust()), **description.get("robust", {})},
        "run_settings": run_settings,
        "limits": end,
        "finished": ends(lines[-1], **end),
        "groups": groups,
        "true_groups": truth,
        "ari": agreement_at(description["world"], lines[-1]),
        "adversaries": adversaries,
        "isolated": isolated(groups, adversaries),
        **scores(lines),
        **{
            key: sum(line[key] for line in lines)
            for key in ("bytes_up", "bytes_down", "exchanges", "evaluations")
        },
        "seconds": sum(sum(line["seconds"].values()) for line in lines),
        "limited": [limit.plain() for limit in limits],
        "privacy": privacy(description["boundary"], lines),
        "run_dir": str(run),
    }
    result: Summary = finite(out)
    return result


def without(
    groups: Sequence[Sequence[ClientId]], clients: Sequence[ClientId]
) -> list[list[ClientId]]:
    """Return the groups without these clients; groups that become empty are left out.

    Args:
        groups: The client ids of each group.
        clients: The clients to leave out.

    Example:
        >>> without([[0, 1], [2]], [2])
        [[0, 1]]
    """
    left = [[client for client in group if client not in clients] for group in groups]
    return [group for group in left if group]


def isolated(groups: Sequence[Sequence[ClientId]], adversaries: Sequence[ClientId]) -> float | None:
    """Return the share of the adversaries that are in no group with an honest client.

    Args:
        groups: The client ids of each group.
        adversaries: The ids of the hostile clients.

    Returns:
        A number from 0 to 1, or None if no adversary is in a group.

    Example:
        >>> isolated([[0, 1, 7], [8, 9]], adversaries=[7, 8, 9])
        0.6666666666666666
    """
    alone = [len(group) for group in groups if all(client in adversaries for client in group)]
    there = sum(client in adversaries for group in groups for client in group)
    return sum(alone) / there if there else None


def privacy(boundary: Mapping[str, Any], lines: Sequence[Line]) -> Summary | None:
    """Return the privacy loss of a client's data under noise.

    It is the loss of the client that sent the most updates; see :func:`coterie.boundary.spent`.

    Args:
        boundary: The settings of the boundary.
        lines: The completed rounds.

    Returns:
        epsilon, delta and updates (the number of updates sent), or None without noise.
    """
    if not boundary.get("noise"):
        return None
    sent: Counter[str] = Counter()
    for line in lines:
        sent.update(line.get("released", {}))
    updates = max(sent.values(), default=0)
    delta = boundary.get("delta", Boundary.delta)
    epsilon = spent(boundary["noise"], updates, delta, sums=boundary.get("masks", False))
    return {"epsilon": epsilon, "delta": delta, "updates": updates}


def agreement(
    groups: Sequence[Sequence[ClientId]], truth: Sequence[Sequence[ClientId]] | None
) -> float | None:
    """Return the adjusted Rand index of two partitions of the same clients.

    Args:
        groups: The client ids of each group.
        truth: The client ids of each true group, or None if not known.

    Returns:
        The index, or None if ``truth`` is None or has other clients.
    """
    if truth is None:
        return None
    mine = {client: i for i, group in enumerate(groups) for client in group}
    true = {client: i for i, group in enumerate(truth) for client in group}
    if mine.keys() != true.keys():
        return None
    return adjusted_rand([mine[c] for c in sorted(mine)], [true[c] for c in sorted(mine)])


def agreement_at(world: Mapping[str, Any], line: Line) -> float | None:
    """Return the adjusted Rand index of a round's groups and the true groups of this round, over honest clients in groups.

    Args:
        world: The table ``world`` of ``run.toml``.
        line: The record of the round.

    Returns:
        The index, or None if the true groups are not known.
    """
    groups, adversaries, truth = (
        line["groups"],
        world.get("adversaries", []),
        truth_at(world, line["round"]),
    )
    absent = {c for group in truth or () for c in group} - {c for group in groups for c in group}
    return agreement(
        without(groups, adversaries), truth and without(truth, [*adversaries, *absent])
    )


def silent(line: Line, client: ClientId) -> bool:
    """Return whether a client was asked in a round and did not answer.

    A client whose reply was refused has answered.

    Args:
        line: The record of the round.
        client: The client's id.
    """
    return client in line["silent"] and str(client) not in line["refused"]


ABOUT = ("group", "adversary")
"""Entries about a client in a round's record that are not metrics."""


def scores(lines: Sequence[Line]) -> Summary:
    """Return the main metric, the loss and each other metric of the last tested round of ``lines``."""
    tested, one = (
        next((line for line in reversed(lines) if line["tested"]), None),
        shown_as(lines[-1]),
    )
    found: Summary = {
        "metric": one.main,
        "better": one.better,
        "others": [],
        "score": None,
        one.main: None,
        "loss": None,
    }
    if tested is None:
        return found
    names = dict.fromkeys(
        name for client in tested["clients"].values() for name in client if name not in ABOUT
    )
    found |= {name: spread(tested, name)["mean"] for name in names if name != one.main}
    found["others"] = [name for name in names if name not in (one.main, "loss")]
    score = spread(tested)
    return {**found, "score": score, one.main: score}


def expand(folders: Folder | Iterable[Folder]) -> list[Path]:
    """Return the run directories among ``folders`` and directly inside them, each once.

    Args:
        folders: Run directories, or folders that contain some; a single one need not be in a list.

    Raises:
        UserError: If one of ``folders`` is a file, or contains no run.
    """
    out: list[Path] = []
    given = [folders] if isinstance(folders, str | os.PathLike) else folders
    listed = list(given) if isinstance(given, Iterable) else [given]
    for wrong in (one for one in listed if not isinstance(one, str | os.PathLike)):
        raise UserError(f"runs must be run directories, or folders of them, got {brief(wrong)}")
    for folder in map(Path, listed):
        if folder.is_file():
            raise UserError(f"{folder} is a file; give the run directory that contains it")
        inside = (
            [folder]
            if (folder / RUN).is_file()
            else sorted(p.parent for p in folder.glob(f"*/{RUN}"))
        )
        if not inside:
            raise UserError(f"{folder} is not a run directory and contains none: there is no {RUN}")
        for path in inside if inside != [folder] else ():
            within(folder, path.name)
        known = {path.resolve() for path in out}
        out += [path for path in inside if path.resolve() not in known]
    return out


AROUND = ("scenario_settings", "training", "boundary", "robust", "run_settings", "limits")
"""Tables of settings that are not the method's own."""

ALIKE = ("method", "scenario", "settings", *AROUND, "metric", "better")
"""Keys that are equal in runs that differ in their seed alone."""

COMPARED = (
    "score",
    "worst",
    "std",
    "loss",
    "ari",
    "isolated",
    "groups",
    "exchanges",
    "bytes_up",
    "bytes_down",
    "evaluations",
    "seconds",
)
PARTS = {"score": "mean", "worst": "worst", "std": "std"}
"""Compared numbers that are parts of a summary's score."""


class Comparison(list[dict[str, Any]]):
    """The result of :func:`coterie.compare`: a list, which notebooks show as a table."""

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per entry.

        Returns:
            Per entry: the method, the settings in which entries of one method differ, the scenario,
            the number of seeds, and the mean of each number that is compared, with the ends ``low``
            and ``high`` of its interval.

        Raises:
            UserError: pandas is not installed.
        """
        return frame(self._rows({"": "mean", " low": "low", " high": "high"}))

    def __repr__(self) -> str:
        means = [(one["method"], one["score"]["mean"]) for one in self]
        shown = [method if mean is None else f"{method} {mean:.3f}" for method, mean in means]
        return f"<Comparison of {count(len(self), 'method')}: {some(shown)}>"

    def _repr_html_(self) -> str:
        return table("Means over seeds", self._rows({"": "mean"}))

    def _rows(self, parts: Mapping[str, str]) -> list[dict[str, Any]]:
        """The rows; ``parts`` maps the end of a column's name to a part of the interval."""
        rows = []
        for one, words in zip(self, differences(self), strict=True):
            row = {
                "method": one["method"],
                "settings": words,
                "scenario": one["scenario"],
                "seeds": len(one["seeds"]),
            }
            for key in (*COMPARED, *one["others"]):
                name = one["metric"] if key == "score" else key
                row |= {f"{name}{end}": one[key][part] for end, part in parts.items()}
            rows.append(row)
        return rows


@public
def compare(runs: Folder | Iterable[Folder]) -> Comparison:
    """Compare methods, each over its seeds: one entry for all runs that differ in their seed alone.

    Args:
        runs: Run directories, or folders that contain some; also a single one, or the runs of
            :func:`coterie.begin`.

    Returns:
        One dict per entry. Each of score (the main metric, mean over clients; also under the
        metric's own name), worst (its worst value of a client), std (its standard deviation over
        clients), loss, the metrics named in ``others`` (means over clients), ari, isolated, groups
        (their number), exchanges, bytes_up, bytes_down, evaluations and seconds is ``{mean, low,
        high}``: the mean over seeds and its 95% interval by Student's t. low and high are None for
        one seed.

    Raises:
        UserError: If a folder has no runs.
    """
    return Comparison(side_by_side(map(summary, expand(runs))))


def differences(
    compared: Sequence[Mapping[str, Any]], tables: Sequence[str] = ("settings", *AROUND)
) -> list[str]:
    """Return the settings, in words, in which entries of the same method and scenario differ; one text per entry.

    Args:
        compared: The entries.
        tables: The tables of settings to compare.
    """
    out = []
    for one in compared:
        alike = [
            c for c in compared if (c["method"], c["scenario"]) == (one["method"], one["scenario"])
        ]
        words = [
            f"{key} {value}"
            for table in tables
            for key, value in one.get(table, {}).items()
            if any(other.get(table, {}).get(key) != value for other in alike)
        ]
        out.append(", ".join(words))
    return out


def unequal(compared: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return the settings in :data:`AROUND` in which rows differ, whatever their methods.

    Args:
        compared: The entries of one scenario.
        labels: Their labels.

    Returns:
        For each such setting, its values and the rows that have them, such as ``lr 0.1 (cfl), 0.05
        (fedavg, ifca)``.
    """
    out = []
    for around in AROUND:
        for key in dict.fromkeys(key for one in compared for key in one.get(around, {})):
            rows: dict[str, list[str]] = {}
            for one, label in zip(compared, labels, strict=True):
                rows.setdefault(str(one.get(around, {}).get(key, "not set")), []).append(label)
            if len(rows) > 1:
                out.append(
                    f"{key} "
                    + ", ".join(f"{value} ({', '.join(names)})" for value, names in rows.items())
                )
    return out


def side_by_side(summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """Compare runs, as :func:`compare` does, from their summaries."""
    alike: list[tuple[Any, list[Summary]]] = []
    for one in summaries:
        key = [one[name] for name in ALIKE]
        for known, members in alike:
            if known == key and one["seed"] not in [m["seed"] for m in members]:
                members.append(one)
                break
        else:
            alike.append((key, [one]))
    return [_compared(members) for _, members in alike]


def _compared(members: list[Summary]) -> dict[str, Any]:
    first = members[0]
    out: dict[str, Any] = {name: first[name] for name in ALIKE}
    out |= {
        "rounds": sorted({m["rounds"] for m in members}),
        "seeds": [m["seed"] for m in members],
        "run_dirs": [m["run_dir"] for m in members],
        "exact": None
        if any(m["ari"] is None for m in members)
        else sum(m["ari"] == 1.0 for m in members),
    }
    for name in (*COMPARED, *first["others"]):
        out[name] = interval([_number(m, name) for m in members])
    out["others"] = first["others"]
    out[first["metric"]] = out["score"]
    result: dict[str, Any] = finite(out)
    return result


def _number(one: Summary, name: str) -> float | None:
    if name in PARTS:
        return one["score"] and one["score"][PARTS[name]]
    value: float | None = len(one["groups"]) if name == "groups" else one.get(name)
    return value


def interval(values: Sequence[float | None], confidence: float = 0.95) -> dict[str, float | None]:
    """Return the mean of some values and its confidence interval by Student's t.

    Args:
        values: The values; None for one that is missing.
        confidence: The level of the interval.

    Returns:
        mean, low, high. All are None if a value is missing or there are no values; low and high are
        None for one value.

    Example:
        >>> interval([0.8, 0.9, 1.0])["low"].__round__(4)  # 0.9 - 4.3027 * 0.1 / sqrt(3)
        0.6516
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return {"mean": None, "low": None, "high": None}
    mean = float(np.mean(known))
    if len(known) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = float(
        scipy.special.stdtrit(len(known) - 1, (1 + confidence) / 2)
        * np.std(known, ddof=1)
        / np.sqrt(len(known))
    )
    return {"mean": mean, "low": mean - half, "high": mean + half}
