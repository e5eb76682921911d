"""A bench: the runs of methods in a suite that are missing, and the comparison with the recorded rows."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from coterie.contrib.bench.measuring import measure
from coterie.contrib.bench.ranking import Against, Results, Standing, against, results, standings
from coterie.contrib.bench.rows import (
    ROW_FILE_SUFFIXES,
    Row,
    append_row,
    mistakes,
    read_rows,
    recorded_rows,
)
from coterie.contrib.bench.suites import FROZEN_SETTINGS, WORLDS, BenchWorld, suite_of
from coterie.engines.workers import default_workers
from coterie.methods import METHODS
from coterie.methods._named import class_of_table, made_of_table, without_class
from coterie.records.store import locked
from coterie.runs.experiment import data_folder, normal
from coterie.runs.set_option import assign
from coterie.settings import UserError
from coterie.settings.calls import public


@dataclass(frozen=True)
class Entrant:
    """A method that is run in a suite.

    Attributes:
        name: Its own name.
        table: Its name or place, and its settings, as an experiment file has them.
        settings: The settings of its rows.
    """

    name: str
    table: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """Its name and settings, as rows have them."""
        return self.name, json.dumps(self.settings, sort_keys=True)


@dataclass(frozen=True)
class Bench:
    """The results of a suite.

    Attributes:
        suite: The name of the suite.
        compared: The rows, by world and method.
        standings: All methods, the smallest gap first.
        judged: For each method that was run here, its comparison with each other one.
    """

    suite: str
    compared: Results
    standings: Sequence[Standing]
    judged: Sequence[Sequence[Against]]

    def plain(self) -> dict[str, Any]:
        """The results as tables and lists, for JSON."""
        comparisons = []
        for group in self.judged:
            comparisons += [comparison.plain() for comparison in group]
        return {
            "suite": self.suite,
            "worlds": [world.name for world in self.compared.worlds],
            "ranking": [asdict(standing) for standing in self.standings],
            "against": comparisons,
            "incomplete": dict(self.compared.incomplete),
        }


def entrant_of(name: str, settings: Sequence[str] = ()) -> Entrant:
    """A method by its name or place, with the settings of its recorded rows unless others are given.

    Args:
        name: A method's name, or ``package.module:Class``.
        settings: Settings as ``--set`` takes them; those of other methods and tables are refused.

    Raises:
        UserError: There is no such method or setting, or a class has the name of one of Coterie's methods.
    """
    method_type = class_of_table({"name": name})
    if ":" in name and method_type.name in METHODS:
        raise UserError(
            f"{name} has the name of Coterie's method {method_type.name!r}: give the class another name"
        )
    spec = normal({"methods": [{"name": name}]})
    for text in settings:
        spec = assign(spec, text)
    (table,) = spec["methods"]
    changed = {**spec, "methods": []}
    if changed != {**normal({"methods": [{"name": name}]}), "methods": []}:
        raise UserError("--set changes a setting of the method alone: a suite has its own worlds")
    method_settings = without_class(table) or dict(FROZEN_SETTINGS.get(name, {}))
    full_table = {"name": name, **method_settings}
    made_of_table(full_table)
    return Entrant(method_type.name, full_table, method_settings)


@public
def bench(
    suite: str = "quick",
    methods: Sequence[str] | str = (),
    folder: Path | str | None = None,
    *,
    settings: Sequence[str] = (),
    rows: Sequence[Path | str] = (),
    data: Path | str | None = None,
    workers: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Bench:
    """Run methods in the worlds of a suite, and compare them with the recorded rows of all others.

    Args:
        suite: ``quick``, ``standard`` or ``full``.
        methods: Names of methods, or ``package.module:Class``; none for the recorded rows alone.
        folder: Where the rows of these methods are kept, a file for each; runs that it has are not
            repeated. Needed if there are methods.
        settings: Settings of the methods, ``KEY=VALUE``.
        rows: Files of further rows to compare with.
        data: Folder of the data files, which the suite ``full`` needs.
        workers: Runs at the same time; None for one per core.
        progress: Called after each run.

    Returns:
        The results.

    Raises:
        UserError: There is no such suite or method, files are missing, or rows cannot be compared.
    """
    names = [methods] if isinstance(methods, str) else list(methods)
    if names and folder is None:
        raise UserError("bench needs a folder for the rows of the methods that it runs")
    entrants = [entrant_of(name, settings) for name in names]
    own_rows: list[Row] = []
    for entrant in entrants:
        path = Path(str(folder)) / f"{entrant.name}.jsonl"
        run_missing(suite, entrant, path, data_folder(data), workers, progress)
        own_rows += [row for row in read_rows(path) if (row.method, row.key[2]) == entrant.key]
    return compared(suite, own_rows, rows)


def compared(suite: str, own_rows: Sequence[Row], files: Sequence[Path | str] = ()) -> Bench:
    """Compare rows with the recorded ones, and those of further files.

    Raises:
        UserError: Rows are wrong, see :func:`~coterie.contrib.bench.rows.mistakes`.
    """
    worlds = suite_of(suite)
    recorded = recorded_rows()
    further_rows: list[Row] = []
    for path in files:
        further_rows += read_rows(Path(path))
    wrong = mistakes([*own_rows, *further_rows], worlds, recorded)
    if wrong:
        raise UserError(f"these rows cannot be compared: {wrong[0]}")
    suite_results = results([*recorded, *further_rows, *own_rows], worlds)
    # Of a method with several settings, the label names them.
    own_keys = {(row.method, row.key[2]) for row in own_rows}
    judged = []
    for label in suite_results.methods:
        first_runs = next(iter(suite_results.runs.values()))
        row = next(iter(first_runs[label].values()))
        if (row.method, row.key[2]) in own_keys:
            judged.append(against(suite_results, label))
    return Bench(suite, suite_results, standings(suite_results), judged)


def missing_runs(suite: str, entrant: Entrant, path: Path) -> list[tuple[BenchWorld, int]]:
    """The runs of a method in a suite that its file of rows lacks.

    Raises:
        UserError: The file has rows of another version of the suites.
    """
    if not path.name.endswith(ROW_FILE_SUFFIXES):
        raise UserError(f"a file of rows ends in {' or '.join(ROW_FILE_SUFFIXES)}, got {path}")
    done_keys: set[Any] = set()
    if path.exists():
        rows = read_rows(path)
        wrong = mistakes(rows, (), recorded_rows())
        if wrong:
            raise UserError(f"{path}: {wrong[0]}")
        done_keys = {row.key for row in rows}
    missing = []
    for world in suite_of(suite):
        for seed in world.seeds:
            if (world.name, *entrant.key, seed) not in done_keys:
                missing.append((world, seed))
    return missing


def run_missing(
    suite: str,
    entrant: Entrant,
    path: Path,
    folder: str | None,
    workers: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Make the runs of a method that its file of rows lacks, and add them to the file."""
    missing = missing_runs(suite, entrant, path)
    needs_data = [world.name for world, _ in missing if world.family == "files"]
    if needs_data and folder is None:
        raise UserError(f"{needs_data[0]} needs data files: give --data DIR or set COTERIE_DATA")
    # Worlds of files come first: a file that is missing is told before hours of other runs.
    missing.sort(key=lambda run: run[0].family != "files")
    if not missing:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    table = json.dumps(entrant.table)
    settings = json.dumps(entrant.settings)
    jobs = [(table, settings, world.name, seed, folder) for world, seed in missing]
    with locked(path.parent):
        for row in _rows_of_jobs(jobs, workers or default_workers()):
            append_row(path, row)
            progress()


Job = tuple[str, str, str, int, str | None]


def _rows_of_jobs(jobs: Sequence[Job], workers: int) -> Iterator[Row]:
    """The rows of runs, in order: one after the other in this process, or several at the same time."""
    if workers == 1 or len(jobs) == 1:
        yield from map(_row, jobs)
        return
    children_before = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, initializer=_prepare_process)
    try:
        yield from executor.map(_row, jobs)
    except BaseException:
        # Nobody waits for runs that are not recorded.
        for child in multiprocessing.active_children():
            if child not in children_before:
                child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _prepare_process() -> None:
    """Let a process compute on one core, as runs share them, and leave Ctrl-C to the process that waits for it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _row(job: Job) -> Row:
    """One run."""
    table, settings, world_name, seed, folder = job
    method = made_of_table(json.loads(table))
    return measure(method, json.loads(settings), WORLDS[world_name], seed, folder)
