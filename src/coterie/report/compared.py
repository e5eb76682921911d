"""Results of methods, each over the seeds of its runs: means with intervals, and the settings in which they differ."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.files import Folder
from coterie.notebook.tables import count, frame, some, table
from coterie.records.shown import ClientId
from coterie.records.text_files import finite
from coterie.report.over_seeds import over_seeds
from coterie.report.paper_table import check_columns, paper_table
from coterie.report.setting_differences import SAME_BUT_SEED, differences, named, world_titles
from coterie.report.summary import Summary, expand, summary
from coterie.report.words import numbered
from coterie.settings import UserError
from coterie.settings.calls import public

if TYPE_CHECKING:
    from coterie.data.world import World
    from coterie.report.against import Differences
    from coterie.report.classic import ClassicReferences
    from coterie.report.contest import Contest

COMPARED_NUMBERS = (
    "score",
    "worst",
    "std",
    "loss",
    "ari",
    "isolated",
    "groups",
    "personal",
    "exchanges",
    "bytes_up",
    "bytes_down",
    "evaluations",
    "seconds",
)
"""Numbers of a summary whose means over seeds are compared."""

REPORT_FILE_SUFFIXES = {"": "mean", " low": "low", " high": "high", " sd": "sd"}
"""End of a column's name -> the part of the number over seeds that it has."""

SCORE_PARTS = {"score": "mean", "worst": "worst", "std": "std"}
"""Compared numbers that are parts of a summary's score."""


class Comparison(list[dict[str, Any]]):
    """The result of :func:`coterie.compare`: a list, which notebooks show as a table."""

    def to_pandas(self, *, each_seed: bool = False) -> Any:
        """Return a pandas data frame with one row per entry, or per entry and seed.

        Args:
            each_seed: Whether there is a row for each seed, with its own numbers.

        Returns:
            A row has the method, the settings in which entries of one method differ, the scenario,
            the number of seeds, and the mean of each number that is compared, with the ends ``low``
            and ``high`` of its interval, and with ``sd``, its standard deviation over the seeds.
            With ``each_seed``, the seed, and each number with it.

        Raises:
            UserError: pandas is not installed.
        """
        if each_seed:
            return frame(self._rows_of_seeds())
        return frame(self._rows(REPORT_FILE_SUFFIXES))

    def to_table(
        self, form: str = "markdown", columns: Sequence[str] = (), spread: str = "interval"
    ) -> str:
        """Return the table of a paper: means over seeds ± half the 95 % interval, the best in bold.

        With two seeds, and where the interval would leave the range of the metric, the standard
        deviation over the seeds takes its place: ``0.784 (sd 0.042)``. Bold is also each mean that
        does not differ significantly from the best of its column, by the paired t-test over three
        seeds or more.

        Args:
            form: ``markdown``, ``latex`` for the package booktabs, or ``csv`` for programs: numbers
                in full, with the ends of each interval and the standard deviation, and runs of
                several scenarios in one table.
            columns: The numbers of an entry to show, such as ``score`` (the main metric), ``worst``,
                ``std``, ``ari``, ``bytes_up``, or another metric. Without them: the main metric, its
                worst client, the adjusted Rand index if true groups are known, and what clients
                send; in CSV all.
            spread: ``interval``, or ``sd`` for the standard deviation over the seeds in all cells.

        Raises:
            UserError: An unknown form or column, or runs of several scenarios.
        """
        if form == "csv":
            return self._csv(columns)
        return paper_table(self, self.labels(), form, columns, spread)

    def _csv(self, columns: Sequence[str]) -> str:
        """The rows as comma-separated values."""
        if self:
            check_columns(self, columns)
        rows = self._rows(REPORT_FILE_SUFFIXES, columns)
        # Rows of several scenarios may have different metrics.
        names: dict[str, None] = {}
        for row in rows:
            names |= dict.fromkeys(row)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def labels(self) -> list[str]:
        """Return the methods' names; the settings in which several entries of one method differ are added."""
        return numbered(named(self))

    def verdicts(self) -> list[dict[str, Any]]:
        """Return a verdict for each scenario."""
        from coterie.report.verdict import verdict

        return list(map(verdict, self._contests))

    @cached_property
    def _contests(self) -> list[Contest]:
        from coterie.report.ranking import contests
        from coterie.report.trials import read

        return contests(read(run_dir) for entry in self for run_dir in entry["run_dirs"])

    def verdict(self) -> str:
        """Return which method to use and for whom, as ``coterie run`` prints it: a line for each paragraph."""
        from coterie.report.verdict import paragraphs, verdict

        texts = []
        all_contests = self._contests
        titles = world_titles([contest.summary for contest in all_contests])
        for title, contest in zip(titles, all_contests, strict=True):
            if len(all_contests) > 1:
                texts.append(f"{title}:")
            is_comparison = len(contest.methods) > 1
            for text, _ in paragraphs(verdict(contest), is_comparison=is_comparison):
                texts.append(text)
        return "\n".join(texts)

    def against(self, method: str) -> Differences:
        """Return how each other method compares with one that is named, with the paired test over seeds.

        Args:
            method: The name of the method in these runs, or its label, such as ``cfl 2``.

        Returns:
            A list with an entry for each other method, which prints as sentences.

        Raises:
            UserError: No run has this method, or several methods have this name.
        """
        from coterie.report.against import against
        from coterie.report.trials import read

        run_dirs = [Path(run_dir) for entry in self for run_dir in entry["run_dirs"]]
        return against(map(read, run_dirs), method)

    def classic(
        self,
        *,
        world: World | Callable[[int], World] | None = None,
        trust_code: bool = False,
        step: Callable[[], None] = lambda: None,
    ) -> ClassicReferences:
        """Return how the methods compare with classic models of tables on the same rows.

        The models are scikit-learn's gradient boosting, and logistic or ridge regression, trained on
        the training rows of each client, of each group that was found, and of all clients. They
        federate nothing, so they tell whether federating is worth it.

        Args:
            world: The world, or the function that makes it, if the runs began with one.
            trust_code: Whether a model or scenario that a run names as ``package.module:Name`` may be
                imported.
            step: Called after each model of some clients.

        Returns:
            A list with an entry for each method and each classic model, which prints as a table and
            sentences.

        Raises:
            UserError: The clients have no tables, or their data are not those of the runs.
        """
        from coterie.report.classic import classic

        return classic(self._contests, world=world, trust_code=trust_code, step=step)

    def __repr__(self) -> str:
        methods = []
        for entry in self:
            mean_score = entry["score"]["mean"]
            score = "" if mean_score is None else f" {mean_score:.3f}"
            methods.append(f"{entry['method']}{score}")
        return f"<Comparison of {count(len(self), 'method')}: {some(methods)}>"

    def _repr_html_(self) -> str:
        return table("Means over seeds", self._rows({"": "mean"}))

    def _rows(
        self, part_of_ending: Mapping[str, str], columns: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The rows; ``part_of_ending`` maps the end of a column's name to a part of the interval."""
        rows = []
        for entry, settings in zip(self, differences(self), strict=True):
            # The columns: what was run, then each number and the ends of its interval.
            row = {
                "method": entry["method"],
                "settings": settings,
                "scenario": entry["scenario"],
                "seeds": len(entry["seeds"]),
            }
            for key in columns or (*COMPARED_NUMBERS, *entry["others"]):
                column = entry["metric"] if key == "score" else key
                for ending, part in part_of_ending.items():
                    row[f"{column}{ending}"] = entry[key].get(part)
            rows.append(row)
        return rows

    def _rows_of_seeds(self) -> list[dict[str, Any]]:
        """The rows with the numbers of each seed."""
        rows = []
        for entry, settings in zip(self, differences(self), strict=True):
            for position, seed in enumerate(entry["seeds"]):
                row = {
                    "method": entry["method"],
                    "settings": settings,
                    "scenario": entry["scenario"],
                    "seed": seed,
                }
                for key in (*COMPARED_NUMBERS, *entry["others"]):
                    column = entry["metric"] if key == "score" else key
                    row[column] = entry[key]["values"][position]
                rows.append(row)
        return rows


@public
def compare(
    runs: Folder | Iterable[Folder],
    *,
    metric: str = "",
    by: str = "clients",
    best_round: bool = False,
) -> Comparison:
    """Compare methods, each over its seeds: one entry for all runs that differ in their seed alone.

    Args:
        runs: Run directories, or folders that contain some; also a single one, or the runs of
            :func:`coterie.begin`.
        metric: The metric of the score, such as ``validation_accuracy`` or ``loss``; empty for the
            main metric. A verdict is always by the main metric.
        by: What counts equally in a mean of a metric: ``clients``, or ``examples``, by which a
            client has the weight of its test examples. A verdict is always by clients.
        best_round: Whether each run is compared as it was after the round with its best validation
            score. A verdict is always by the last round.

    Returns:
        One dict per entry. Each of score (the main metric, mean over clients; also under the
        metric's own name), worst (its worst value of a client), std (its standard deviation over
        clients), loss, the metrics named in ``others`` (means over clients), ari, isolated, groups
        (their number), personal (the number of clients with a personal model), exchanges, bytes_up,
        bytes_down, evaluations and seconds is ``{mean, low, high, sd, values}``: the mean over
        seeds and its 95% interval by Student's t, not beyond the limits of the metric; the standard
        deviation over the seeds, and the number with each seed. low and high are None for fewer than
        three seeds, sd for one. worst_client is the client with the worst value, if it is the same
        in all seeds. best_rounds has the rounds with the best validation scores, where runs have
        some. ``by`` is in entries whose means are over examples.

    Raises:
        UserError: If a folder has no runs, or a run does not have the metric, or validation scores.
    """
    folders = expand(runs)
    if not folders:
        raise UserError("a comparison needs at least one run, got none")
    entries = side_by_side(
        summary(run, metric=metric, by=by, best_round=best_round) for run in folders
    )
    if by != "clients":
        for entry in entries:
            entry["by"] = by
    return Comparison(entries)


def side_by_side(summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """Compare runs, as :func:`compare` does, from their summaries."""
    return [_over_seeds(runs) for runs in same_but_seed(summaries)]


def same_but_seed(summaries: Iterable[Summary]) -> list[list[Summary]]:
    """Return the summaries of runs that differ in their seed alone together, in the order of the first of them."""
    entries: list[tuple[list[Any], dict[int, Summary]]] = []
    for run in summaries:
        same_settings = [run[key] for key in SAME_BUT_SEED]
        seed = run["seed"]
        for entry_settings, run_of_seed in entries:
            # A second run with the same settings and seed is an entry of its own.
            if entry_settings == same_settings and seed not in run_of_seed:
                run_of_seed[seed] = run
                break
        else:
            entries.append((same_settings, {seed: run}))
    return [list(run_of_seed.values()) for _, run_of_seed in entries]


def _over_seeds(runs: Sequence[Summary]) -> dict[str, Any]:
    """Return the entry of runs that differ in their seed alone."""
    first_run = runs[0]
    rand_indices = [run["ari"] for run in runs]
    # In how many runs the groups are exactly the true ones.
    num_exact = None if None in rand_indices else rand_indices.count(1.0)
    few_tests_of_runs = [len(run.get("few_tests", ())) for run in runs]
    entry: dict[str, Any] = {key: first_run[key] for key in SAME_BUT_SEED}
    entry |= {
        "rounds": sorted({run["rounds"] for run in runs}),
        "best_rounds": sorted({run["best_round"]["round"] for run in runs if run["best_round"]}),
        "seeds": [run["seed"] for run in runs],
        "run_dirs": [run["run_dir"] for run in runs],
        "virtual": [run["virtual"] for run in runs],
        "exact": num_exact,
        "few_tests": max(few_tests_of_runs),
        "clients": sum(map(len, first_run["groups"])),
    }
    for key in (*COMPARED_NUMBERS, *first_run["others"]):
        # What limits a score is its metric.
        metric = first_run["metric"] if key in ("score", "worst") else key
        entry[key] = over_seeds([_number(run, key) for run in runs], metric)
    entry["worst_client"] = _worst_client(runs)
    entry["others"] = first_run["others"]
    # The main metric also has its own name.
    entry[first_run["metric"]] = entry["score"]
    result: dict[str, Any] = finite(entry)
    return result


def _worst_client(runs: Sequence[Summary]) -> ClientId | None:
    """Return the honest client with the worst score, if it is the same in all runs; otherwise None."""
    worst_clients: set[ClientId | None] = set()
    for run in runs:
        worst_client = None
        worst_score = math.inf
        adversaries = set(map(str, run["adversaries"]))
        for client, score in (run["score"] or {"per_client": {}})["per_client"].items():
            if score is None or client in adversaries:
                continue
            # A small value is worse, unless the metric is one such as an error.
            badness = score if run["better"] == "greater" else -score
            if badness < worst_score:
                worst_client = client
                worst_score = badness
        worst_clients.add(worst_client)
    return worst_clients.pop() if len(worst_clients) == 1 else None


def _number(run: Summary, key: str) -> float | None:
    """Return a number of a summary that is compared; None if it is not known."""
    number: float | None
    if key in SCORE_PARTS:
        score = run["score"]
        number = None if score is None else score[SCORE_PARTS[key]]
    elif key == "groups":
        number = len(run["groups"])
    elif key == "personal":
        number = len(run.get("personal", ()))
    else:
        number = run.get(key)
    return number
