"""Is the default good for few unequal sites? Methods over drawn worlds of sites with tables, a line of JSON per run.

    python benchmarks/study/silos.py --out benchmarks/results/silos.jsonl [--kinds KIND,...]
        [--methods NAME,...] [--draws 8] [--first 1000] [--part 0/2]
    python benchmarks/study/silos.py --summary benchmarks/results/silos.jsonl

The worlds are those of :mod:`coterie.contrib.bench.silos`. Settings of methods are their defaults. Those of the
default method were fixed on other draws, of seeds 0 to 9; the study has seeds from 1000 on. Runs
that the file already has are left out, so it can be stopped and started again; ``--part i/n`` does
every n-th run, for n processes at a time. For numbers to predict, R² stands in the place of accuracy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from result_file import append_result, read_results

from coterie import run
from coterie.contrib.bench.silos import REGRESSION_KIND, SILO_KINDS, draw
from study import regret_summary
from study.regret import chosen
from study.regret_summary import CLOSE, NOTHING, Row, table

METHODS = ("fedavg", "independent", "split-half", "hcct", "tuned", "auto")
JUDGED = "auto"
ONE_MODEL = regret_summary.ONE
ALONE = regret_summary.ALONE

NUM_ROUNDS = 25
FIRST_DRAW = 1000
NUM_DRAWS = 8

KEY = ("kind", "seed", "method")
"""The key of a run."""

RunsOfKind = Mapping[str, Mapping[int, Row]]
"""Method -> number of the draw -> its run, in one kind of world."""


# -- runs
# -----------------------------------------------------------------------------------------------------------------


def measured(kind: str, seed: int, method: str) -> dict[str, Any]:
    """Run a method in a drawn world: the row of results."""
    drawn = draw(kind, seed)
    metric = "R2Score" if kind == REGRESSION_KIND else "accuracy"
    began = time.perf_counter()
    num_bytes = 0
    notes = []
    for done in run(
        method, drawn.world, rounds=NUM_ROUNDS, seed=seed, workers=1, eval_every=NUM_ROUNDS
    ):
        num_bytes += done.bytes_up + done.bytes_down
        notes += done.notes
    scores = done.scores or {}
    accuracies = [scores[site][metric] for site in sorted(scores)]
    return {
        "kind": kind,
        "seed": seed,
        "method": method,
        "sizes": drawn.sizes,
        "differing": drawn.differing,
        "accuracy": mean(accuracies),
        "accuracies": accuracies,
        "groups": len(done.groups),
        "chosen": chosen(notes),
        "bytes": num_bytes,
        "seconds": round(time.perf_counter() - began, 2),
    }


# -- summary
# --------------------------------------------------------------------------------------------------------------


def by_kind(rows: Iterable[Row]) -> dict[str, dict[str, dict[int, Row]]]:
    """Runs by kind of world, method and draw, of draws in which all methods of the rows were run."""
    rows = list(rows)
    run_methods = {row["method"] for row in rows}
    # In the order of the study, whatever the order of the rows; then others that were asked for.
    methods = [method for method in METHODS if method in run_methods]
    methods += sorted(run_methods - set(METHODS))
    row_of_run = {(row["kind"], row["seed"], row["method"]): row for row in rows}
    runs_of_kind: dict[str, dict[str, dict[int, Row]]] = {}
    for kind in SILO_KINDS:
        seeds = sorted({row["seed"] for row in rows if row["kind"] == kind})
        for seed in seeds:
            if any((kind, seed, method) not in row_of_run for method in methods):
                continue
            runs_of_method = runs_of_kind.setdefault(kind, {})
            for method in methods:
                row = row_of_run[kind, seed, method]
                runs_of_method.setdefault(method, {})[seed] = row
    return runs_of_kind


def gaps(runs_of_method: RunsOfKind, method: str) -> list[float]:
    """In each draw, how far a method's accuracy is from that of the best method there."""
    found = []
    for seed, own_run in runs_of_method[method].items():
        best = max(runs[seed]["accuracy"] for runs in runs_of_method.values())
        found.append(best - own_run["accuracy"])
    return found


def num_below(runs_of_method: RunsOfKind, method: str) -> int:
    """In how many draws a method is clearly less accurate than one model for all, or training alone."""
    num_draws = 0
    for seed, own_run in runs_of_method[method].items():
        safe_choices = [runs_of_method[other][seed]["accuracy"] for other in (ONE_MODEL, ALONE)]
        num_draws += own_run["accuracy"] < max(safe_choices) - CLOSE
    return num_draws


def num_with_groups(runs_of_method: RunsOfKind, method: str) -> int:
    """In how many draws a method ended with more than one group."""
    return sum(own_run["groups"] > 1 for own_run in runs_of_method[method].values())


def accuracy(runs_of_method: RunsOfKind, method: str) -> float:
    """The mean over draws."""
    return mean(own_run["accuracy"] for own_run in runs_of_method[method].values())


def worst_site(runs_of_method: RunsOfKind, method: str) -> float:
    """The accuracy of the worst site, mean over draws."""
    return mean(min(own_run["accuracies"]) for own_run in runs_of_method[method].values())


def judged(rows: Iterable[Row]) -> str:
    """A row per kind of world: the default beside the best method, one model, and training alone."""
    cells = []
    for kind, runs_of_method in by_kind(rows).items():
        own_gaps = gaps(runs_of_method, JUDGED)
        regret = regret_summary.regret(runs_of_method, JUDGED)
        crossed = None if regret is None else regret.crossed
        cells.append(
            (
                f"`{kind}`",
                str(len(own_gaps)),
                f"{accuracy(runs_of_method, JUDGED):.3f}",
                f"{mean(own_gaps):.4f}",
                NOTHING if crossed is None else f"{crossed:.4f}",
                f"{max(own_gaps):.3f}",
                f"{num_below(runs_of_method, JUDGED) / len(own_gaps):.0%}",
                f"{worst_site(runs_of_method, JUDGED):.2f}",
                f"{worst_site(runs_of_method, ONE_MODEL):.2f}",
                str(num_with_groups(runs_of_method, JUDGED)),
            )
        )
    head = (
        "kind of world",
        "draws",
        "accuracy",
        "mean gap",
        "crossed",
        "greatest gap",
        "below one model or alone",
        "worst site",
        f"`{ONE_MODEL}`'s",
        "draws with groups",
    )
    return table(head, cells, 1)


def mean_gaps(rows: Iterable[Row]) -> str:
    """A row per kind of world, a column per method: its mean gap, the least one in bold; and over all kinds with labels."""
    runs_of_kind = by_kind(rows)
    methods = list(dict.fromkeys(method for runs in runs_of_kind.values() for method in runs))
    # Gaps of R2 are on another scale than those of accuracy, and left out.
    gaps_of_labels: dict[str, list[float]] = {method: [] for method in methods}
    cells = []
    for kind, runs_of_method in runs_of_kind.items():
        gap_of_method = {}
        for method in methods:
            own_gaps = gaps(runs_of_method, method)
            gap_of_method[method] = mean(own_gaps)
            if kind != REGRESSION_KIND:
                gaps_of_labels[method] += own_gaps
        cells.append((f"`{kind}`", *_least_in_bold(gap_of_method)))
    if any(gaps_of_labels.values()):
        gap_of_method = {method: mean(own_gaps) for method, own_gaps in gaps_of_labels.items()}
        cells.append((f"all but `{REGRESSION_KIND}`", *_least_in_bold(gap_of_method)))
    return table(("kind of world", *(f"`{method}`" for method in methods)), cells, 1)


def _least_in_bold(gap_of_method: Mapping[str, float]) -> list[str]:
    least = min(gap_of_method.values())
    words = []
    for gap in gap_of_method.values():
        words.append(f"**{gap:.4f}**" if gap == least else f"{gap:.4f}")
    return words


def summary(rows: Sequence[Row]) -> str:
    """Both tables, in Markdown."""
    needed = {JUDGED, ONE_MODEL, ALONE}
    runs_of_kind = by_kind(rows)
    if not any(needed <= set(runs_of_method) for runs_of_method in runs_of_kind.values()):
        return f"No draw has runs of all of {', '.join(sorted(needed))} yet.\n"
    return f"{judged(rows)}\nMean gap of each method:\n\n{mean_gaps(rows)}"


# -- command
# --------------------------------------------------------------------------------------------------------------


def options() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="measure, and append to this file")
    what.add_argument("--summary", type=Path, help="print the tables of this file")
    parser.add_argument("--kinds", default=",".join(SILO_KINDS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--draws", type=int, default=NUM_DRAWS, help="draws of each kind")
    parser.add_argument("--first", type=int, default=FIRST_DRAW, help="number of the first draw")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th run, from the i-th on")
    return parser


def wanted_runs(asked: argparse.Namespace) -> list[tuple[str, int, str]]:
    """All runs that were asked for, draw after draw; see :data:`KEY`."""
    wanted = []
    for seed in range(asked.first, asked.first + asked.draws):
        for kind in asked.kinds.split(","):
            for method in asked.methods.split(","):
                wanted.append((kind, seed, method))
    return wanted


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options().parse_args(arguments)
    if asked.summary:
        print(summary(read_results(asked.summary)), end="")
        return 0
    torch.set_num_threads(1)
    place, num_parts = map(int, asked.part.split("/"))
    finished = {tuple(row[name] for name in KEY) for row in read_results(asked.out)}
    for kind, seed, method in wanted_runs(asked)[place::num_parts]:
        if (kind, seed, method) in finished:
            continue
        row = measured(kind, seed, method)
        append_result(asked.out, row)
        print(kind, seed, method, f"{row['accuracy']:.3f}", row["seconds"], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
