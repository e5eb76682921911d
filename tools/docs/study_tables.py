"""Tables of the study of clustering without thresholds, of what ``benchmarks/study/run.py`` measured; :mod:`generate` puts
them in."""

from __future__ import annotations

import json
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import evidence_tables
from measured import table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from study.frozen import frozen  # noqa: E402
from study.worlds import KINDS  # noqa: E402

from coterie.contrib.bench.kinds import SIZES  # noqa: E402

STUDY = BENCHMARKS / "results" / "study.jsonl"
SUMS = BENCHMARKS / "results" / "sums.jsonl"
SETTINGS = tomllib.loads((BENCHMARKS / "study" / "settings.toml").read_text())
COMMAND = "python benchmarks/study/run.py --out benchmarks/results/study.jsonl"
NOTHING = "–"
NOT_MEASURED = "Not measured yet.\n"

Row = Mapping[str, Any]
"""A run of the study: a method with settings, in a world of a kind and a size, with a seed."""


def rows(path: Path | None = None) -> list[Row]:
    """All runs of the study, or of another file, in the order of worlds."""
    path = path or STUDY
    if not path.is_file():
        return []
    recorded_runs = map(json.loads, path.read_text().splitlines())
    kinds = list(KINDS)
    sizes = list(SIZES)
    return sorted(
        recorded_runs, key=lambda row: (kinds.index(row["kind"]), sizes.index(row["size"]))
    )


def is_frozen(row: Row) -> bool:
    """Whether a run has the settings that were chosen before the study."""
    return row["settings"] == frozen(SETTINGS, row["kind"], row["method"])


def worlds(runs: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """(kind, size, its runs) of each world."""
    runs_of_world: dict[tuple[str, str], list[Row]] = {}
    for row in runs:
        runs_of_world.setdefault((row["kind"], row["size"]), []).append(row)
    for (kind, size), world_runs in runs_of_world.items():
        yield kind, size, world_runs


def methods_of(runs: Sequence[Row]) -> list[str]:
    """The methods of some runs, in the order of the settings."""
    methods_run = {row["method"] for row in runs}
    return [method for method in SETTINGS["frozen"] if method in methods_run]


def runs_of(method: str, runs: Sequence[Row]) -> list[Row]:
    """The runs of one method among others."""
    return [row for row in runs if row["method"] == method]


def study(measure: str, *sizes: str) -> str:
    """A table of one measure: a row per world, a column per method, at frozen settings with everybody answering."""
    cell_of = CELLS[measure]
    frozen_runs = []
    for row in rows():
        if row["size"] in sizes and row["participation"] == 1.0 and is_frozen(row):
            frozen_runs.append(row)
    return _by_method(frozen_runs, cell_of, f"Not measured yet: `{COMMAND}` does it.\n")


def silent() -> str:
    """The adjusted Rand index where only three in ten answer."""
    partial_runs = []
    for row in rows():
        if row["participation"] == 0.3 and row["true_groups"] and is_frozen(row):
            partial_runs.append(row)
    missing = f"Not measured yet: `{COMMAND} --participation 0.3` does it.\n"
    return _by_method(partial_runs, _ari, missing)


def _by_method(runs: Sequence[Row], cell_of: Callable[[Sequence[Row]], str], missing: str) -> str:
    """A table with a row per world and a column per method; ``missing`` if there are no runs."""
    methods = methods_of(runs)
    lines = []
    for kind, size, world_runs in worlds(runs):
        cells = [cell_of(runs_of(method, world_runs)) for method in methods]
        lines.append((f"`{kind}`", size, *cells))
    return _world_table(methods, lines, missing)


def _world_table(methods: Sequence[str], lines: Sequence[Sequence[str]], missing: str) -> str:
    """A table of worlds, with a column per method."""
    if not lines:
        return missing
    method_heads = [f"`{method}`" for method in methods]
    return table(("setting", "size", *method_heads), lines, "ll" + "r" * len(methods))


def oracle() -> str:
    """What an oracle reaches that knows the true groups: of all settings tried in a world, those of the best mean index.

    Over the seeds of those settings that were tried with most: the frozen ones may have been run
    with more.
    """
    grouped_runs = [row for row in rows() if row["participation"] == 1.0 and row["true_groups"]]
    # Only worlds in which other settings than the frozen ones were tried.
    tried_worlds = []
    tried_runs: list[Row] = []
    for kind, size, world_runs in worlds(grouped_runs):
        if not all(map(is_frozen, world_runs)):
            tried_worlds.append((kind, size, world_runs))
            tried_runs += world_runs
    methods = methods_of(tried_runs)
    lines = []
    for kind, size, world_runs in tried_worlds:
        seeds = _most_tried_seeds(world_runs)
        cells = []
        for method in methods:
            method_runs = runs_of(method, world_runs)
            best_runs = best([row for row in method_runs if row["seed"] in seeds])
            cells.append(_ari_and_settings(best_runs))
        lines.append((f"`{kind}`", size, *cells))
    return _world_table(methods, lines, f"Not measured yet: `{COMMAND} --oracle` does it.\n")


def _most_tried_seeds(world_runs: Sequence[Row]) -> set[int]:
    """The seeds of those settings, of all but the frozen ones, that were tried with most seeds."""
    seeds_of_settings = []
    for same_settings in alike(row for row in world_runs if not is_frozen(row)):
        seeds_of_settings.append({row["seed"] for row in same_settings})
    return max(seeds_of_settings, key=len)


def best(runs: Sequence[Row]) -> Sequence[Row]:
    """The runs of a method in a world at the settings of the greatest mean index, of those that were tried with most seeds.

    Among equals the frozen ones, else the first measured.
    """
    runs_by_settings = alike(sorted(runs, key=is_frozen, reverse=True))
    return max(
        runs_by_settings,
        key=lambda same_settings: (len(same_settings), mean(_values(same_settings, "ari"))),
        default=[],
    )


def alike(runs: Iterable[Row]) -> list[list[Row]]:
    """Runs of the same method and settings together."""
    runs_by_settings: dict[str, list[Row]] = {}
    for row in runs:
        settings_key = json.dumps([row["method"], row["settings"]])
        runs_by_settings.setdefault(settings_key, []).append(row)
    return list(runs_by_settings.values())


def _ari_and_settings(runs: Sequence[Row]) -> str:
    """The mean adjusted Rand index, and the settings that are not the frozen ones."""
    if not runs:
        return NOTHING
    first_run = runs[0]
    frozen_settings = frozen(SETTINGS, first_run["kind"], first_run["method"])
    changes = []
    for name, value in first_run["settings"].items():
        if frozen_settings.get(name) != value:
            changes.append(f"{name} {value:g}")
    changed_words = f" ({', '.join(changes)})" if changes else ""
    return f"{mean(_values(runs, 'ari')):.2f}{changed_words}"


# ----------------------------------------------------------------------------------------------------
# The cells of a table, each from the runs of a method in a world.


def _values(runs: Sequence[Row], key: str) -> list[float]:
    """A measure of each run that has it."""
    return [row[key] for row in runs if row[key] is not None]


def _ari(runs: Sequence[Row]) -> str:
    indices = _values(runs, "ari")
    return f"{mean(indices):.2f}" if indices else NOTHING


def _rounds(runs: Sequence[Row]) -> str:
    """The median round, of the seeds that came to be right, and how many did."""
    if not runs or runs[0]["true_groups"] is None:
        return NOTHING
    right_rounds = _values(runs, "right_from")
    if not right_rounds:
        return f"never (0 of {len(runs)})"
    return f"{median(right_rounds):g} ({len(right_rounds)} of {len(runs)})"


def _cut(runs: Sequence[Row]) -> str:
    """In how many runs a true group was cut."""
    if not runs or not runs[0]["true_groups"]:
        return NOTHING
    return f"{sum(row['cut'] for row in runs)} of {len(runs)}"


def _accuracy(runs: Sequence[Row]) -> str:
    """The mean accuracy over clients, and that of the worst one."""
    if not runs:
        return NOTHING
    return f"{mean(_values(runs, 'accuracy')):.3f}, {mean(_values(runs, 'worst')):.3f}"


def _bytes(runs: Sequence[Row]) -> str:
    return f"{mean(_values(runs, 'bytes')) / 1e6:.1f} MB" if runs else NOTHING


def _index_and_accuracy(runs: Sequence[Row]) -> str:
    return f"{_ari(runs)}, {mean(_values(runs, 'accuracy')):.3f}" if runs else NOTHING


CELLS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "ari": _ari,
    "rounds": _rounds,
    "accuracy": _accuracy,
    "cut": _cut,
    "bytes": _bytes,
}
"""Measure of a table -> the function that makes its cells."""


# ----------------------------------------------------------------------------------------------------
# Tables over several worlds.


SUMMARY_COLUMNS = (
    "method",
    "adjusted Rand",
    "lowest setting",
    "right at the end",
    "from round",
    "accuracy",
    "bytes",
)


def summary() -> str:
    """One line per method over the worlds that have true groups and enough examples, and in which all methods were run."""
    grouped_runs = []
    for row in rows():
        is_large = row["size"] in ("large", "many")
        has_groups = (row["true_groups"] or 0) > 1 and row["kind"] != "adversaries"
        if is_large and has_groups and row["participation"] == 1.0 and is_frozen(row):
            grouped_runs.append(row)
    methods = methods_of(grouped_runs)
    # Means over the same worlds for all methods.
    common_worlds = []
    for _, _, world_runs in worlds(grouped_runs):
        if set(methods_of(world_runs)) == set(methods):
            common_worlds.append(world_runs)
    if not common_worlds:
        return NOT_MEASURED
    lines = [_summary_line(method, common_worlds) for method in methods]
    return table(SUMMARY_COLUMNS, lines, "lrrrrrr")


def _summary_line(method: str, common_worlds: Sequence[Sequence[Row]]) -> tuple[str, ...]:
    """The cells of a method in the summary."""
    method_runs: list[Row] = []
    index_of_kind: dict[str, float] = {}
    for world_runs in common_worlds:
        runs_in_world = runs_of(method, world_runs)
        method_runs += runs_in_world
        index_of_kind[runs_in_world[0]["kind"]] = mean(_values(runs_in_world, "ari"))
    worst_kind = min(index_of_kind, key=lambda kind: index_of_kind[kind])
    right_rounds = _values(method_runs, "right_from")
    return (
        f"`{method}`",
        f"{mean(index_of_kind.values()):.2f}",
        f"{index_of_kind[worst_kind]:.2f} (`{worst_kind}`)",
        f"{len(right_rounds)} of {len(method_runs)}",
        f"{median(right_rounds):g}" if right_rounds else NOTHING,
        f"{mean(_values(method_runs, 'accuracy')):.3f}",
        f"{mean(_values(method_runs, 'bytes')) / 1e6:.1f} MB",
    )


FIRST_SEED_ALIKE = 100
"""From this seed on, runs of clients that are all alike, which are counted apart."""


def _smallest_sizes(runs: Iterable[Row]) -> list[int]:
    """The sizes of the smallest group with which split-half from sums was run, in descending order."""
    return sorted({row["settings"]["smallest"] for row in runs}, reverse=True)


def sums() -> str:
    """Split-half from sums, by the size of its smallest group, beside split-half with the same seeds: index and accuracy."""
    split_half_runs: dict[tuple[str, str], list[Row]] = {}
    for row in runs_of("split-half", rows()):
        if row["participation"] == 1.0 and is_frozen(row):
            split_half_runs.setdefault((row["kind"], row["size"]), []).append(row)
    runs_of_sums = [row for row in rows(SUMS) if row["seed"] < FIRST_SEED_ALIKE]
    smallest_sizes = _smallest_sizes(runs_of_sums)
    lines = []
    for kind, size, world_runs in worlds(runs_of_sums):
        seeds = {row["seed"] for row in world_runs}
        # Split-half itself comes first, with the same seeds only.
        compared_runs = split_half_runs.get((kind, size), [])
        cells = [_index_and_accuracy([row for row in compared_runs if row["seed"] in seeds])]
        for smallest in smallest_sizes:
            runs_of_size = [row for row in world_runs if row["settings"]["smallest"] == smallest]
            cells.append(_index_and_accuracy(runs_of_size))
        lines.append((f"`{kind}`", size, str(len(seeds)), *cells))
    if not lines:
        return NOT_MEASURED
    size_heads = [f"sums, `smallest` {smallest}" for smallest in smallest_sizes]
    head = ("setting", "size", "seeds", "`split-half`", *size_heads)
    return table(head, lines, "llr" + "r" * (1 + len(smallest_sizes)))


def sums_alike() -> str:
    """In how many runs of clients that are all alike split-half from sums found groups, by the size of its smallest group."""
    runs_alike = [row for row in rows(SUMS) if row["seed"] >= FIRST_SEED_ALIKE]
    counts = []
    for smallest in _smallest_sizes(runs_alike):
        runs_of_size = [row for row in runs_alike if row["settings"]["smallest"] == smallest]
        num_divided = sum(row["groups"] > 1 for row in runs_of_size)
        counts.append(f"in {num_divided} of {len(runs_of_size)} with `smallest` {smallest}")
    if not counts:
        return NOT_MEASURED
    text = (
        "In further runs of `iid`, in which all clients have the same data distribution, "
        f"groups were found {' and '.join(counts)}."
    )
    return textwrap.fill(text, 125) + "\n"


PARTS: Mapping[str, Callable[..., str]] = {
    "study-sums": sums,
    "study-sums-alike": sums_alike,
    "study": study,
    "study-summary": summary,
    "study-silent": silent,
    "study-oracle": oracle,
    **evidence_tables.PARTS,
}
