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
from study.worlds import KINDS, SIZES  # noqa: E402

STUDY = BENCHMARKS / "results" / "study.jsonl"
SUMS = BENCHMARKS / "results" / "sums.jsonl"
SETTINGS = tomllib.loads((BENCHMARKS / "study" / "settings.toml").read_text())
COMMAND = "python benchmarks/study/run.py --out benchmarks/results/study.jsonl"
NOTHING = "–"

Row = Mapping[str, Any]


def rows(path: Path | None = None) -> list[Row]:
    """All runs of the study, or of another file, in the order of worlds."""
    path = path or STUDY
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    kinds, sizes = list(KINDS), list(SIZES)
    return sorted(found, key=lambda row: (kinds.index(row["kind"]), sizes.index(row["size"])))


def is_frozen(row: Row) -> bool:
    return row["settings"] == frozen(SETTINGS, row["kind"], row["method"])


def worlds(seen: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """(name, size, its runs) of each world."""
    for kind, size in dict.fromkeys((row["kind"], row["size"]) for row in seen):
        yield kind, size, [row for row in seen if (row["kind"], row["size"]) == (kind, size)]


def methods_of(seen: Sequence[Row]) -> list[str]:
    there = {row["method"] for row in seen}
    return [method for method in SETTINGS["frozen"] if method in there]


def study(what: str, *sizes: str) -> str:
    """A table of one measure: a row per world, a column per method, at frozen settings with everybody answering."""
    of = {"ari": _ari, "rounds": _rounds, "accuracy": _accuracy, "cut": _cut, "bytes": _bytes}[what]
    seen = [
        row
        for row in rows()
        if row["size"] in sizes and row["participation"] == 1.0 and is_frozen(row)
    ]
    return _by_method(seen, of, f"Not measured yet: `{COMMAND}` does it.\n")


def silent() -> str:
    """The adjusted Rand index where only three in ten answer."""
    seen = [
        row
        for row in rows()
        if row["participation"] == 0.3 and row["true_groups"] and is_frozen(row)
    ]
    return _by_method(seen, _ari, f"Not measured yet: `{COMMAND} --participation 0.3` does it.\n")


def _by_method(seen: Sequence[Row], of: Callable[[Sequence[Row]], str], else_: str) -> str:
    methods, lines = methods_of(seen), []
    for kind, size, own in worlds(seen):
        cells = [of([row for row in own if row["method"] == method]) for method in methods]
        lines.append((f"`{kind}`", size, *cells))
    head = ("world", "size", *(f"`{method}`" for method in methods))
    return table(head, lines, "ll" + "r" * len(methods)) if lines else else_


def oracle() -> str:
    """What an oracle reaches that knows the true groups: of all settings tried in a world, those of the best mean index.

    Over the seeds of those settings that were tried with most: the frozen ones may have been run
    with more.
    """
    known = [row for row in rows() if row["participation"] == 1.0 and row["true_groups"]]
    chosen = [
        (kind, size, own) for kind, size, own in worlds(known) if not all(map(is_frozen, own))
    ]
    methods = methods_of([row for _, _, own in chosen for row in own])
    lines = []
    for kind, size, own in chosen:
        seeds = max(
            ({row["seed"] for row in of} for of in alike(row for row in own if not is_frozen(row))),
            key=len,
        )
        each = [
            best([row for row in own if row["method"] == method and row["seed"] in seeds])
            for method in methods
        ]
        lines.append(
            (
                f"`{kind}`",
                size,
                *(
                    f"{mean(_each(of, 'ari')):.2f}{_changed(of[0])}" if of else NOTHING
                    for of in each
                ),
            )
        )
    head = ("world", "size", *(f"`{method}`" for method in methods))
    missing = f"Not measured yet: `{COMMAND} --oracle` does it.\n"
    return table(head, lines, "ll" + "r" * len(methods)) if lines else missing


def best(own: Sequence[Row]) -> Sequence[Row]:
    """The runs of a method in a world at the settings of the greatest mean index, of those that were tried with most seeds.

    Among equals the frozen ones, else the first measured.
    """
    each = alike(sorted(own, key=is_frozen, reverse=True))
    return max(each, key=lambda of: (len(of), mean(_each(of, "ari"))), default=[])


def alike(own: Iterable[Row]) -> list[list[Row]]:
    """Runs of the same method and settings together."""
    found: dict[str, list[Row]] = {}
    for row in own:
        found.setdefault(json.dumps([row["method"], row["settings"]]), []).append(row)
    return list(found.values())


def _changed(row: Row) -> str:
    """The settings that are not the frozen ones."""
    usual = frozen(SETTINGS, row["kind"], row["method"])
    changed = [
        f"{name} {value:g}" for name, value in row["settings"].items() if usual.get(name) != value
    ]
    return f" ({', '.join(changed)})" if changed else ""


def _each(own: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in own if row[key] is not None]


def _ari(own: Sequence[Row]) -> str:
    values = _each(own, "ari")
    return f"{mean(values):.2f}" if values else NOTHING


def _rounds(own: Sequence[Row]) -> str:
    """The median round, of the seeds that came to be right, and how many did."""
    if not own or own[0]["true_groups"] is None:
        return NOTHING
    right = _each(own, "right_from")
    return (
        f"{median(right):g} ({len(right)} of {len(own)})" if right else f"never (0 of {len(own)})"
    )


def _cut(own: Sequence[Row]) -> str:
    return (
        f"{sum(row['cut'] for row in own)} of {len(own)}"
        if own and own[0]["true_groups"]
        else NOTHING
    )


def _accuracy(own: Sequence[Row]) -> str:
    return (
        f"{mean(_each(own, 'accuracy')):.3f}, {mean(_each(own, 'worst')):.3f}" if own else NOTHING
    )


def _bytes(own: Sequence[Row]) -> str:
    return f"{mean(_each(own, 'bytes')) / 1e6:.1f} MB" if own else NOTHING


def summary() -> str:
    """One line per method over the worlds that have true groups and enough examples, and in which all methods were run."""
    seen = [
        row
        for row in rows()
        if row["size"] in ("large", "many") and row["participation"] == 1.0 and is_frozen(row)
    ]
    seen = [row for row in seen if (row["true_groups"] or 0) > 1 and row["kind"] != "adversaries"]
    methods = methods_of(seen)
    common = [own for _, _, own in worlds(seen) if set(methods_of(own)) == set(methods)]
    lines = []
    for method in methods if common else ():
        by_world = [[row for row in own if row["method"] == method] for own in common]
        runs = [row for own in by_world for row in own]
        index = {own[0]["kind"]: mean(_each(own, "ari")) for own in by_world}
        worst = min(index, key=lambda kind: index[kind])
        right = _each(runs, "right_from")
        lines.append(
            (
                f"`{method}`",
                f"{mean(index.values()):.2f}",
                f"{index[worst]:.2f} (`{worst}`)",
                f"{len(right)} of {len(runs)}",
                f"{median(right):g}" if right else NOTHING,
                f"{mean(_each(runs, 'accuracy')):.3f}",
                f"{mean(_each(runs, 'bytes')) / 1e6:.1f} MB",
            )
        )
    head = (
        "method",
        "adjusted Rand",
        "least world",
        "right at the end",
        "from round",
        "accuracy",
        "bytes",
    )
    return table(head, lines, "lrrrrrr") if lines else "Not measured yet.\n"


ALIKE = 100
"""From this seed on, runs of clients that are all alike, which are counted apart."""


def sums() -> str:
    """Split-half from sums, by the size of its smallest group, beside split-half with the same seeds: index and accuracy."""
    usual = [
        row
        for row in rows()
        if row["method"] == "split-half" and row["participation"] == 1.0 and is_frozen(row)
    ]
    seen = [row for row in rows(SUMS) if row["seed"] < ALIKE]
    sizes = sorted({row["settings"]["smallest"] for row in seen}, reverse=True)
    lines = []
    for kind, size, own in worlds(seen):
        seeds = {row["seed"] for row in own}
        each = [
            [
                row
                for row in usual
                if (row["kind"], row["size"]) == (kind, size) and row["seed"] in seeds
            ]
        ]
        each += [
            [row for row in own if row["settings"]["smallest"] == smallest] for smallest in sizes
        ]
        lines.append((f"`{kind}`", size, str(len(seeds)), *map(_index_and_accuracy, each)))
    head = (
        "world",
        "size",
        "seeds",
        "`split-half`",
        *(f"sums, `smallest` {smallest}" for smallest in sizes),
    )
    return table(head, lines, "llr" + "r" * (1 + len(sizes))) if lines else "Not measured yet.\n"


def _index_and_accuracy(own: Sequence[Row]) -> str:
    return f"{_ari(own)}, {mean(_each(own, 'accuracy')):.3f}" if own else NOTHING


def sums_alike() -> str:
    """In how many runs of clients that are all alike split-half from sums found groups, by the size of its smallest group."""
    seen, found = [row for row in rows(SUMS) if row["seed"] >= ALIKE], []
    for smallest in sorted({row["settings"]["smallest"] for row in seen}, reverse=True):
        own = [row for row in seen if row["settings"]["smallest"] == smallest]
        found.append(
            f"in {sum(row['groups'] > 1 for row in own)} of {len(own)} with `smallest` {smallest}"
        )
    text = f"In further runs of `iid`, in which all clients are alike, groups were found {' and '.join(found)}."
    return textwrap.fill(text, 125) + "\n" if found else "Not measured yet.\n"


PARTS: Mapping[str, Callable[..., str]] = {
    "study-sums": sums,
    "study-sums-alike": sums_alike,
    "study": study,
    "study-summary": summary,
    "study-silent": silent,
    "study-oracle": oracle,
    **evidence_tables.PARTS,
}
