"""Rewrite the generated parts of README.md and docs/, which stand between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

    python docs/generate.py            all of them but the demonstration's output
    python docs/generate.py --demo     that too: it runs the bare ``coterie run``, in about half a minute
    python docs/generate.py --check    write nothing; exit status 1 if a part is not up to date

Measured results are those of ``coterie run FILE --json``, kept in docs/results/NAME.json. To keep those of another run,
add a row to :data:`STUDIES`, and call from the repository's root, so that the paths in it are relative:

    coterie run experiments/digits.toml --json --out runs/digits > docs/results/digits.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import METHODS, SCENARIOS, Training
from coterie.arguments import parser
from coterie.boundary import Boundary
from coterie.data.datasets import DATASETS
from coterie.report.listing import allowed, first_line, plain
from coterie.report.summary import interval
from coterie.report.terminal import number, plus_minus, size
from coterie.settings import documented

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
DEFAULTS = ROOT / "benchmarks" / "results" / "cfl-defaults.json"
BOUNDARY = ROOT / "benchmarks" / "results" / "boundary.json"
WIDTH = 100
ADVERSARIES = ROOT / "benchmarks" / "results" / "adversaries.json"
MARKER = re.compile(r"^<!-- ([\w-]+)((?: [\w/-]+)*) -->\n(.*?)^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)

STUDIES: Mapping[str, tuple[str, str]] = {
    "digits": ("Digits, 4 label permutations", "experiments/digits.toml"),
    "cfl-mnist": ("MNIST, 4 label swaps, few images", "experiments/cfl-mnist.toml"),
    "cfl-mnist-iid": ("MNIST, IID, few images", "experiments/cfl-mnist.toml"),
    "flhc-mnist": ("MNIST, 4 label swaps", "experiments/flhc-mnist.toml"),
    "flhc-mnist-iid": ("MNIST, IID", "experiments/flhc-mnist.toml"),
}
"""Name of a file in docs/results -> what it is, and the experiment it comes from."""


def documents() -> list[Path]:
    """README and every page of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# -- tables ---------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table; ``align`` has an ``r`` for each column that is flushed right."""
    rule = ["---:" if mark == "r" else "---" for mark in align.ljust(len(head), "l")]
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def settings(of: str) -> str:
    """The settings of a method, of ``training``, of ``boundary`` or of ``scenario``."""
    tables: dict[str, type[Any]] = {"training": Training, "boundary": Boundary, "scenario": type(SCENARIOS["digits/iid"])}
    cls = tables.get(of) or METHODS[of]
    limits = {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
    hidden = ("about", "training")
    rows = [
        (f"`{name}`", f"`{plain(default)}`", allowed(words, limits[name]), about)
        for name, words, default, about in documented(cls)
        if name not in hidden
    ]
    return table(("setting", "default", "allowed", "meaning"), rows) if rows else "It has no settings.\n"


def methods(folder: str = "") -> str:
    """The methods with their cards."""
    rows = [(f"[`{name}`]({folder}methods/{name}.md)", first_line(cls)) for name, cls in METHODS.items()]
    return table(("method", "what it does"), rows)


def scenarios() -> str:
    """The named scenarios."""
    rows = [
        (f"`{name}`", s.about, str(s.clients) if s.dataset != "folder" else "one per file", f"`{s.model}`")
        for name, s in SCENARIOS.items()
    ]
    return table(("scenario", "what it is", "clients", "model"), rows, "llrl")


def datasets() -> str:
    """The data sets by name."""
    rows = [(f"`{name}`", source.about, "yes" if source.files else "no") for name, source in DATASETS.items()]
    return table(("data set", "what it is", "needs files"), rows)


def commands() -> str:
    """Every command with its arguments and options."""
    out = []
    for name, own in parser()[1].items():
        rows = []
        for action in own._actions:
            words = action.option_strings[-1:] if action.option_strings else []
            words += [str(action.metavar)] if action.metavar else []
            rows.append((f"`{' '.join(words)}`", action.help or ""))
        text = (own.description or "").partition("\n\n  ")[0]
        out.append(f"## coterie {name}\n\n{text}\n\n{table(('argument', 'meaning'), rows)}")
    return "\n" + "\n".join(out) + "\n"


# -- measured -------------------------------------------------------------------------------------------------------------


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
    head = ("experiment", "clients", "method", "seeds", "rounds", "accuracy", "worst client", "groups", "adjusted Rand")
    return table(head, rows, "lrlrrrrrr")


def _alike(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Runs that differ in their seed alone, together."""
    groups: list[list[Mapping[str, Any]]] = []
    for one in runs:
        for group in groups:
            if all(one.get(key) == group[0].get(key) for key in ("method", "scenario", "settings", "training")):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _result(title: str, file: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    first = runs[0]
    over: Callable[[Callable[[Any], Any]], dict[str, float | None]] = lambda pick: interval([pick(run) for run in runs])  # noqa: E731
    return (
        f"[{title}]({file})" if title else "",
        str(len(first["accuracy"]["per_client"])) if title else "",
        f"`{first['method']}`",
        str(len(runs)),
        "-".join(str(rounds) for rounds in sorted({run["rounds"] for run in runs})),
        plus_minus(over(lambda run: run["accuracy"]["mean"])),
        plus_minus(over(lambda run: run["accuracy"]["min"])),
        plus_minus(over(lambda run: len(run["groups"])), 1),
        plus_minus(over(lambda run: run["ari"]), 2),
    )


def cfl_defaults() -> str:
    """CFL with its defaults, from benchmarks/cfl_defaults.py."""
    if not DEFAULTS.is_file():
        return "The table has not been measured yet: `python benchmarks/cfl_defaults.py` makes it.\n"
    found = json.loads(DEFAULTS.read_text())
    rows = [
        (
            row["world"], f"{row['exact']} of {row['runs']}", number(row["ari"]),
            _range(row["groups"]), str(row["last_split"]) if row["last_split"] else "-",
        )
        for row in found["rows"]
    ]  # fmt: skip
    head = ("digits, 20 clients", "exactly the true groups", "adjusted Rand", "groups", "last split in round")
    return f"After {found['rounds']} rounds:\n\n{table(head, rows, 'lrrrr')}"


def adversaries() -> str:
    """What attacks did to each method, from benchmarks/adversaries.py: a row per method, a column per attack."""
    if not ADVERSARIES.is_file():
        return "The table has not been measured yet: `python benchmarks/adversaries.py` makes it.\n"
    found = json.loads(ADVERSARIES.read_text())
    attacks = list(dict.fromkeys(row["attack"] for row in found["rows"]))
    cells: dict[str, list[str]] = {}
    for row in found["rows"]:
        alone = f", {row['isolated']:.0%} alone" if "isolated" in row else ""
        cells.setdefault(row["method"], []).append(f"{number(row['accuracy'])}{alone}")
    about = (
        f"`{found['scenario']}` with {found['clients']} clients, of whom {round(found['adversaries'] * found['clients'])} are "
        f"adversaries, after {found['rounds']} rounds; means of {found['seeds']} seeds. The number is the accuracy of the "
        f"honest clients, the same ones in every column; *alone* are the adversaries in no group with an honest client.\n\n"
    )
    return about + table(("method", *attacks), [(f"`{name}`", *row) for name, row in cells.items()], "l" + "r" * len(attacks))


def boundary_results() -> str:
    """CFL and FL+HC behind noise and compression, from benchmarks/boundary.py."""
    if not BOUNDARY.is_file():
        return "The table has not been measured yet: `python benchmarks/boundary.py` makes it.\n"
    found = json.loads(BOUNDARY.read_text())
    rows = [
        (
            f"`{row['method']}`", row["boundary"], f"{row['exact']} of {row['runs']}", number(row["ari"]),
            number(row["accuracy"]), size(row["bytes_up"]), "-" if row["epsilon"] is None else f"{row['epsilon']:.3g}",
        )
        for row in found["rows"]
    ]  # fmt: skip
    head = ("method", "boundary", "exactly the true groups", "adjusted Rand", "accuracy", "sent up", "ε")
    return f"After {found['rounds']} rounds, ε at δ = {found['delta']:g}:\n\n{table(head, rows, 'llrrrrr')}"


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def demo() -> str:
    """What the bare ``coterie run`` prints in a terminal of :data:`WIDTH` columns."""
    return f"```text\n$ coterie run\n{normalised(in_terminal('run'))}\n```\n"


def normalised(printed: str) -> str:
    """Without what differs from one run to the next: seconds and the time in the folder's name."""
    printed = re.sub(r"(?<=runs/)\d{8}-\d{6}(-\d+)?(?=-digits)", "TIME", printed)
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    head = next(number for number, line in enumerate(lines) if line.startswith("method "))
    for row in range(head + 1, len(lines)):
        if not lines[row]:
            break
        lines[row] = re.sub(r"[\d.]+$", lambda found: "…".rjust(len(found[0])), lines[row])
    return "\n".join(lines)


def in_terminal(*arguments: str) -> str:
    """What ``coterie`` prints to a plain terminal of a fixed width, in an empty folder."""
    master, slave = os.openpty()
    environment = {**os.environ, "COLUMNS": str(WIDTH), "LINES": "50", "TERM": "dumb", "NO_COLOR": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COTERIE_DATA"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "coterie", *arguments]
        with subprocess.Popen(command, stdout=slave, stderr=errors, cwd=folder, env=environment) as process:
            os.close(slave)
            printed = b"".join(_until_closed(master))
        os.close(master)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(errors.read().decode())
    return printed.decode().replace("\r\n", "\n")


def _until_closed(terminal: int) -> Iterable[bytes]:
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return
        if not read:
            return
        yield read


# -- parts of documents ---------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[..., str]] = {
    "settings": settings,
    "methods": methods,
    "scenarios": scenarios,
    "datasets": datasets,
    "commands": commands,
    "results": results,
    "cfl-defaults": cfl_defaults,
    "boundary-results": boundary_results,
    "adversaries": adversaries,
    "demo": demo,
}
SLOW = ("demo",)


def regenerated(text: str, skip: Sequence[str] = SLOW) -> str:
    """A document with its generated parts made anew, but for those named in ``skip``."""

    def part(found: re.Match[str]) -> str:
        name, arguments = found[1], found[2].split()
        if name in skip:
            return found[0]
        return f"<!-- {' '.join([name, *arguments])} -->\n{PARTS[name](*arguments)}<!-- /{name} -->"

    return MARKER.sub(part, text)


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing, tell what is not up to date")
    options.add_argument("--demo", action="store_true", help="run the demonstration as well")
    chosen = options.parse_args(argv)
    stale = False
    for path in documents():
        old = path.read_text()
        new = regenerated(old, () if chosen.demo else SLOW)
        if new != old:
            stale = True
            print(f"{path.relative_to(ROOT)} {'is not up to date' if chosen.check else 'rewritten'}")
            if not chosen.check:
                path.write_text(new)
    return int(chosen.check and stale)


if __name__ == "__main__":
    sys.exit(main())
