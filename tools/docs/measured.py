"""Tables of what was measured, for the documents; :mod:`generate` puts them in.

Results are those of ``coterie run FILE --json``, or of ``coterie compare RUNS --json`` where there
are many runs, kept in docs/results/NAME.json, and those of the scripts in benchmarks/. To keep
those of another run, add a row to :data:`STUDIES` or :data:`COMPARISONS`, and call from the
repository's root, so that the paths in it are relative:

    coterie run experiments/digits.toml --json --out runs/digits > docs/results/digits.json
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.report.summary import interval
from coterie.report.terminal import size
from coterie.report.words import decimals, numbered, plus_minus

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
DEFAULTS = ROOT / "benchmarks" / "results" / "cfl-defaults.json"
BOUNDARY = ROOT / "benchmarks" / "results" / "boundary.json"
MASKS = ROOT / "benchmarks" / "results" / "masks.json"
PRIVATE = ROOT / "benchmarks" / "results" / "private.jsonl"
SIGNALS = ROOT / "benchmarks" / "results" / "hcct-signals.json"
HONEST = ROOT / "benchmarks" / "results" / "honest.json"
ADVERSARIES = ROOT / "benchmarks" / "results" / "adversaries-methods.json"
PAGE = ROOT / "benchmarks" / "results" / "report-page.json"

STUDIES: Mapping[str, tuple[str, str]] = {
    "digits": ("Digits, 4 label permutations", "experiments/digits.toml"),
    "cfl-mnist": ("MNIST, 4 label swaps, few images", "experiments/cfl-mnist.toml"),
    "cfl-mnist-iid": ("MNIST, IID, few images", "experiments/cfl-mnist.toml"),
    "flhc-mnist": ("MNIST, 4 label swaps", "experiments/flhc-mnist.toml"),
    "flhc-mnist-iid": ("MNIST, IID", "experiments/flhc-mnist.toml"),
}
"""Name of a file in docs/results -> what it is, and the experiment it comes from."""

COMPARISONS: Mapping[str, str] = {
    "all-methods-digits": "all-methods-digits-silent",
    "all-methods-mnist": "",
    "all-methods-fashion": "",
}
"""Name of a file in docs/results that ``coterie compare`` has written -> that of the same runs with
silent clients."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table; ``align`` has an ``r`` for each column that is flushed right."""
    rule = ["---:" if mark == "r" else "---" for mark in align.ljust(len(head), "l")]
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def recorded(name: str) -> dict[str, Mapping[str, Any]]:
    """label -> what all seeds of a method came to, of docs/results/NAME.json, which ``coterie compare`` has written."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.is_file() else []
    return dict(zip(numbered([one["method"] for one in found]), found, strict=True))


def results() -> str:
    """Measured results, a row per study and method: mean over seeds and its 95 % interval."""
    rows = []
    for study, (title, file) in STUDIES.items():
        path = RESULTS / f"{study}.json"
        if path.is_file():
            found = json.loads(path.read_text())
            for alike in _alike(found if isinstance(found, list) else [found]):
                rows.append(_result(title, file, alike))
                title = file = ""
    if not rows:
        return "No results have been recorded yet.\n"
    head = (
        "experiment",
        "clients",
        "method",
        "seeds",
        "rounds",
        "accuracy",
        "worst client",
        "groups",
        "adjusted Rand",
    )
    return table(head, rows, "lrlrrrrrr")


def _alike(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Runs that differ in their seed alone, together."""
    groups: list[list[Mapping[str, Any]]] = []
    for one in runs:
        for group in groups:
            if all(
                one.get(key) == group[0].get(key)
                for key in ("method", "scenario", "settings", "training")
            ):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _result(title: str, file: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first = runs[0]

    def over(pick: Callable[[Any], Any]) -> dict[str, float | None]:
        return interval([pick(run) for run in runs])

    return (
        f"[{title}](../{file})" if title else "",  # from docs/
        str(len(first["accuracy"]["per_client"])) if title else "",
        f"`{first['method']}`",
        str(len(runs)),
        "-".join(str(rounds) for rounds in sorted({run["rounds"] for run in runs})),
        plus_minus(over(lambda run: run["accuracy"]["mean"])),
        plus_minus(over(lambda run: run["accuracy"]["worst"])),
        plus_minus(over(lambda run: len(run["groups"])), 1),
        plus_minus(over(lambda run: run["ari"]), 2),
    )


def cfl_defaults() -> str:
    """CFL with its defaults, from benchmarks/cfl_defaults.py."""
    if not DEFAULTS.is_file():
        return (
            "The table has not been measured yet: `python benchmarks/cfl_defaults.py` makes it.\n"
        )
    found = json.loads(DEFAULTS.read_text())
    rows = [
        (
            row["world"],
            f"{row['exact']} of {row['runs']}",
            decimals(row["ari"]),
            _range(row["groups"]),
            str(row["last_split"]) if row["last_split"] else "-",
        )
        for row in found["rows"]
    ]
    head = (
        "digits, 20 clients",
        "exactly the true groups",
        "adjusted Rand",
        "groups",
        "last split in round",
    )
    return f"After {found['rounds']} rounds:\n\n{table(head, rows, 'lrrrr')}"


def hcct_signals(what: str) -> str:
    """HCCT by updates and by signals, from benchmarks/hcct_signals.py: its ``groups`` by tradeoff, or what one ``costs``."""
    if not SIGNALS.is_file():
        return (
            "The table has not been measured yet: `python benchmarks/hcct_signals.py` makes it.\n"
        )
    rows = json.loads(SIGNALS.read_text())["rows"]
    many = what == "groups"
    chosen = [
        row
        for row in rows
        if not many or (row["size"] == "many" and row["way"] in ("updates", "signals"))
    ]
    usual = sorted({row["tradeoff"] for row in rows})[1]
    chosen = chosen if many else [row for row in chosen if row["tradeoff"] == usual]
    columns = list(dict.fromkeys((row["way"], row["tradeoff"]) for row in chosen))
    cells: dict[str, list[str]] = {}
    for row in chosen:
        right = f"{decimals(row['ari'], 2)}, {row['exact']} of {row['runs']}"
        few = "" if row["size"] == "many" else ", few"
        text = right if many else f"{right}; {decimals(row['accuracy'])}"
        cells.setdefault(f"`{row['world']}`{few}", []).append(text)
    up = {
        way: size(next(row["bytes_up"] for row in chosen if row["way"] == way))
        for way, _ in columns
    }
    head = [f"{way}, λ {tradeoff:g}" if many else f"{way}, {up[way]}" for way, tradeoff in columns]
    return table(
        ("world", *head), [(name, *row) for name, row in cells.items()], "l" + "r" * len(head)
    )


def adversaries(part: str = "methods") -> str:
    """What one hostile client took from the others, by benchmarks/adversaries.py: every method with its defaults."""
    path = ADVERSARIES.with_stem(f"adversaries-{part}")
    if not path.is_file():
        return "The table has not been measured yet: `python benchmarks/adversaries.py` makes it.\n"
    found, rows = _attacked(path)
    attacks = list(dict.fromkeys(attack for _, attack, _, _ in rows if attack != "none"))
    cells = []
    for method in dict.fromkeys(method for method, *_ in rows):
        calm = rows[method, "none", 1, "defaults"]
        cells.append(
            (
                f"`{method}`",
                decimals(calm),
                *(f"{calm - rows[method, a, 1, 'defaults']:+.3f}" for a in attacks),
            )
        )
    tests = (
        found["seeds"] * 171
    )  # test examples of the honest clients in each of the digits scenarios
    about = (
        f"`{found['scenario']}`, {found['clients']} clients, {found['rounds']} rounds, {_seeds(found)}. First "
        "column: accuracy of the 19 honest clients without an attack. The others: how much of it they **lose** to one hostile "
        f"client, with every setting at its default. {1 / tests:.3f} is one of the {tests} test examples of "
        "the honest clients.\n\n"
    )
    return about + table(("method", "no attack", *attacks), cells, "l" + "r" * (1 + len(attacks)))


def honest_norms() -> str:
    """The greatest norm of an honest update beside the usual one, by benchmarks/honest.py."""
    if not HONEST.is_file():
        return "The table has not been measured yet: `python benchmarks/honest.py` makes it.\n"
    rows = json.loads(HONEST.read_text())["norms"]
    greatest = {(row["world"], row["method"]): row["greatest"] for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = [
        (
            f"`{world}`" if "/" in world else world,
            *(f"{greatest[world, method]:.1f}" for method in methods),
        )
        for world in dict.fromkeys(row["world"] for row in rows)
    ]
    return table(
        ("clients", *(f"`{method}`" for method in methods)), cells, "l" + "r" * len(methods)
    )


def honest_accuracy() -> str:
    """FedAvg with default settings in each engine beside FedAvg as published, by benchmarks/honest.py."""
    if not HONEST.is_file():
        return "The table has not been measured yet: `python benchmarks/honest.py` makes it.\n"
    rows = json.loads(HONEST.read_text())["accuracy"]
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    shown = {
        (row["world"], row["engine"]): f"{row['mean']:.3f} / {row['by_examples']:.3f}"
        for row in rows
    }
    cells = [
        (
            f"`{world}`" if "/" in world else world,
            *(shown.get((world, engine), "") for engine in engines),
        )
        for world in dict.fromkeys(row["world"] for row in rows)
    ]
    return table(("clients", *engines), cells, "l" + "r" * len(engines))


def robust_means() -> str:
    """The same with 1, 2 and 4 hostile clients, by the rule of averaging."""
    path = ADVERSARIES.with_stem("adversaries-means")
    if not path.is_file():
        return "The table has not been measured yet: `python benchmarks/adversaries.py` makes it.\n"
    found, rows = _attacked(path)
    defences = list(dict.fromkeys(defence for *_, defence in rows))
    cells = []
    for method in dict.fromkeys(method for method, *_ in rows):
        calm = {defence: rows[method, "none", 1, defence] for defence in defences}
        cells.append(
            (f"`{method}`", "none", "0", *(decimals(calm[defence]) for defence in defences))
        )
        for attack, hostile in dict.fromkeys(
            (a, n) for m, a, n, _ in rows if m == method and a != "none"
        ):
            lost = (
                f"{calm[defence] - rows[method, attack, hostile, defence]:+.3f}"
                for defence in defences
            )
            cells.append((f"`{method}`", attack, str(hostile), *lost))
    about = (
        f"`{found['scenario']}` with 1, 2 and 4 hostile clients of {found['clients']}, {_seeds(found)}. *none*: no "
        "bounds and the plain mean. *defaults*: the bounds and the plain mean. The others: a robust mean and no bounds. Rows "
        "of attack *none* are accuracies, the others what is lost.\n\n"
    )
    return about + table(
        ("method", "attack", "hostile", *defences), cells, "llr" + "r" * len(defences)
    )


def _seeds(found: Mapping[str, Any]) -> str:
    return f"means of {found['seeds']} seeds" if found["seeds"] > 1 else "one seed"


def _attacked(path: Path) -> tuple[Any, dict[tuple[str, str, int, str], float]]:
    found = json.loads(path.read_text())
    return found, {
        (row["method"], row["attack"], row["hostile"], row["defence"]): row["accuracy"]
        for row in found["rows"]
    }


def trust(of: str = "points") -> str:
    """Attempts of the attack campaign and how many of them succeeded; ``python -m attack --json``.

    Args:
        of: ``"points"`` for a row per target of an attempt, before the guarantees were made and now; ``"subjects"`` for
            their sums now.
    """
    paths = [RESULTS / f"attacks{which}.json" for which in ("-before", "")]
    if not all(path.is_file() for path in paths):
        return "The table has not been measured yet: `make attack` makes it.\n"
    before, after = (json.loads(path.read_text())["subjects"] for path in paths)
    if of == "subjects":
        return _attempts_by_subject(after)
    rows = []
    for subject, points in after.items():
        for point, now in points.items():
            then = before[subject][point]
            counts = (f"{found['failed']:,} of {found['attempts']:,}" for found in (then, now))
            rows.append((subject.replace("_", " "), f"*{point}*: {now['promise']}", *counts))
    sums = (
        [
            sum(counts[key] for points in found.values() for counts in points.values())
            for key in ("failed", "attempts")
        ]
        for found in (before, after)
    )
    rows.append(("all", "", *(f"{failed:,} of {attempts:,}" for failed, attempts in sums)))
    return table(("subject", "what must hold", "broken before", "broken now"), rows, "llrr")


def _attempts_by_subject(subjects: Mapping[str, Any]) -> str:
    """A row per subject of the attack campaign, and one for all."""
    sums = [
        (
            subject.replace("_", " "),
            sum(counts["attempts"] for counts in points.values()),
            sum(counts["failed"] for counts in points.values()),
        )
        for subject, points in subjects.items()
    ]
    sums.append(("all", sum(row[1] for row in sums), sum(row[2] for row in sums)))
    rows = [(subject, f"{attempts:,}", f"{failed:,}") for subject, attempts, failed in sums]
    return table(("subject", "attempts", "broke a guarantee"), rows, "lrr")


def boundary_results() -> str:
    """CFL and FL+HC behind noise and compression, from benchmarks/boundary.py."""
    if not BOUNDARY.is_file():
        return "The table has not been measured yet: `python benchmarks/boundary.py` makes it.\n"
    found = json.loads(BOUNDARY.read_text())
    rows = [
        (
            f"`{row['method']}`",
            row["boundary"],
            f"{row['exact']} of {row['runs']}",
            decimals(row["ari"]),
            decimals(row["accuracy"]),
            size(row["bytes_up"]),
            "-" if row["epsilon"] is None else f"{row['epsilon']:.3g}",
        )
        for row in found["rows"]
    ]
    head = (
        "method",
        "boundary",
        "exactly the true groups",
        "adjusted Rand",
        "accuracy",
        "sent up",
        "ε",
    )
    return f"After {found['rounds']} rounds, ε at δ = {found['delta']:g}:\n\n{table(head, rows, 'llrrrrr')}"


def mask_costs() -> str:
    """What masked sums cost, from benchmarks/masks.py."""
    rows = [
        (
            f"{row['clients']:,}",
            f"{row['neighbours']}",
            f"{row['bytes']:.3f} ×",
            size(row["more"]),
            f"{row['client']:.2f} s",
            f"{row['server']:.1f} s",
        )
        for row in json.loads(MASKS.read_text())
    ]
    head = (
        "clients",
        "neighbours",
        "bytes of a round",
        "more for each client",
        "a client's masking",
        "all of the server's work",
    )
    return table(head, rows, "rrrrrr")


def private_sums() -> str:
    """Adjusted Rand index and accuracy by ε and clients, from benchmarks/private.py."""
    found: dict[tuple[str, int], dict[float, list[Mapping[str, Any]]]] = {}
    rows = [json.loads(line) for line in PRIVATE.read_text().splitlines()]
    for row in rows:
        if row["groups"] > 1:
            found.setdefault((row["method"], row["clients"]), {}).setdefault(
                row["epsilon"], []
            ).append(row)
    epsilons = sorted(
        {epsilon for of in found.values() for epsilon in of},
        key=lambda epsilon: -epsilon or -math.inf,
    )

    def cell(rows: Sequence[Mapping[str, Any]]) -> str:
        if not rows:
            return "-"
        index, accuracy = (sum(row[key] for row in rows) / len(rows) for key in ("ari", "accuracy"))
        return f"{index:.2f}, {accuracy:.3f}"

    lines = [
        (
            f"`{method}`",
            f"{n:,}",
            str(max(map(len, of.values()))),
            *(cell(of.get(epsilon, [])) for epsilon in epsilons),
        )
        for (method, n), of in sorted(
            found.items(), key=lambda each: (each[0][0] == "fedavg", each[0][1])
        )
    ]
    heads = [f"ε = {epsilon:g}" if epsilon else "no noise" for epsilon in epsilons]
    alike = [row for row in rows if row["groups"] == 1]
    false = sum(row["models"] > 1 for row in alike)
    text = (
        "Where all 100 clients have the same data distribution, without noise and at ε = 2, "
        f"{false} of {len(alike)} runs found groups.\n"
    )
    return (
        table(("method", "clients", "seeds", *heads), lines, "lrr" + "r" * len(heads)) + "\n" + text
    )


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def compared(name: str) -> str:
    """All methods in one scenario, from ``coterie compare``: best first; and how often they found the groups with drop-outs."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return f"The table has not been measured yet: `coterie run experiments/{name}.toml` makes it.\n"
    quiet = RESULTS / f"{COMPARISONS[name]}.json"
    found, silent = (
        json.loads(path.read_text()),
        json.loads(quiet.read_text()) if COMPARISONS[name] else [],
    )
    labels = numbered([one["method"] for one in found])
    rows = []
    for label, one in sorted(
        zip(labels, found, strict=True), key=lambda pair: -pair[1]["accuracy"]["mean"]
    ):
        same = [
            other
            for other in silent
            if (other["method"], other["settings"]) == (one["method"], one["settings"])
        ]
        rows.append(
            (
                f"`{label}`",
                plus_minus(one["accuracy"]),
                decimals(one["worst"]["mean"]),
                decimals(one["std"]["mean"]),
                decimals(one["ari"]["mean"], 2),
                f"{one['exact']} of {len(one['seeds'])}",
                *(f"{other['exact']} of {len(other['seeds'])}" for other in same),
                decimals(one["groups"]["mean"], 1),
                decimals(one["exchanges"]["mean"], 0),
                size(one["bytes_up"]["mean"]),
                size(one["bytes_down"]["mean"]),
                decimals(one["evaluations"]["mean"], 0),
            )
        )
    head = [
        "method",
        "accuracy",
        "worst client",
        "std of clients",
        "adjusted Rand",
        "true groups",
        *(["true groups, 30 % drop-out"] if silent else []),
        "groups",
        "exchanges",
        "up",
        "down",
        "client evaluations",
    ]
    return table(head, rows, "l" + "r" * (len(head) - 1))


def report_page() -> str:
    """How large the page of a run is, and how long it takes to make and to open."""
    head = ("run", "clients", "rounds", "page", "made in", "opened in")
    rows = [
        (
            one["method"],
            str(one["clients"]),
            str(one["rounds"]),
            size(one["bytes"]),
            f"{one['made']:.1f} s",
            f"{one['opened']:.2f} s",
        )
        for one in json.loads(PAGE.read_text())
    ]
    return table(head, rows, "lrrrrr")
