"""Rewrite the generated parts of README.md and docs/, which stand between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

    python tools/docs/generate.py            all of them but what the demonstration prints
    python tools/docs/generate.py --demo     that too: it runs the demonstration twice, a minute
    python tools/docs/generate.py --figures  draw the figures of notes/studies too (coterie[report])
    python tools/docs/generate.py --check    write nothing; exit status 1 if a part is not up to date

Measured results are kept in docs/results and benchmarks/results; measured.py makes tables of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bench_tables
import choosing_tables
import decision_tables
import drift_tables
import example_source
import experiment_tables
import fleet_tables
import flux_tables
import influence_table
import method_table
import problem_tables
import published_tables
import ray_table
import regret_tables
import replications
import row_privacy_table
import scale_table
import silos_tables
import standing_tables
import study_tables
import suggest_table
from measured import (
    adversaries,
    boundary_results,
    cfl_defaults,
    compared,
    hcct_signals,
    honest_accuracy,
    honest_norms,
    mask_costs,
    private_sums,
    report_page,
    results,
    robust_means,
    table,
    trust,
)
from speed_tables import speed
from traffic_table import traffic

from coterie import METHODS, SCENARIOS, Training
from coterie.boundary import Boundary
from coterie.cli.arguments import parser
from coterie.data.datasets import DATASETS, FAMILIES, OWN_DATA, OWN_SOURCES
from coterie.data.datasets.source import DatasetSettings
from coterie.data.scenario import SCENARIO_PARTS, Scenario, datasets_with
from coterie.report.listing import allowed, plain
from coterie.settings import documented

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WIDTH = 100
MARKER = re.compile(
    r"^<!-- ([\w-]+)((?: [\w/-]+)*) -->\n(.*?)^<!-- /\1 -->$", re.MULTILINE | re.DOTALL
)

RELATIVE_LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)(#[^)\s]*)?\)")


def documents() -> list[Path]:
    """README, every page of docs and every page of notes."""
    pages = [ROOT / "README.md"]
    for folder in ("docs", "notes"):
        pages += sorted((ROOT / folder).rglob("*.md"))
    return pages


# -- tables
# ---------------------------------------------------------------------------------------------------------------


ADVANCED = " (advanced)"
"""The end of the sentence about a setting that few users need."""


def settings(of: str, part: str = "all", other: str = "") -> str:
    """The settings of a method, of ``training``, of ``boundary`` or of ``scenario``.

    Args:
        of: Whose settings.
        part: ``all``; ``basic`` or ``advanced``; or ``unlike``, those that another method lacks or
            has with another default.
        other: The name of that method.
    """
    if of == "scenario":
        return scenario_settings()
    tables: dict[str, type[Any]] = {"training": Training, "boundary": Boundary}
    cls = tables.get(of) or METHODS[of]
    limits = {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
    known = documented(METHODS[other]) if part == "unlike" else []
    rows = []
    for setting in documented(cls):
        name, words, default, about = setting
        is_advanced = about.endswith(ADVANCED)
        if setting in known or (
            part in ("basic", "advanced") and is_advanced != (part == "advanced")
        ):
            continue
        meaning = about if part == "all" else about.removesuffix(ADVANCED)
        values = allowed(words, limits[name])
        if of in METHODS:
            values = in_short(values)
        rows.append((f"`{name}`", f"`{plain(default)}`", values, meaning))
    return (
        table(("setting", "default", "allowed", "meaning"), rows)
        if rows
        else "It has no settings.\n"
    )


def in_short(values: str) -> str:
    """What a setting may be, without the words that a table can do without.

    Example:
        >>> in_short("a number > 0, <= 1"), in_short("an integer or none a positive multiple of 4")
        ('number > 0, <= 1', 'multiple of 4 or none')
        >>> in_short("an integer >= 4, <= 256, a positive multiple of 4")
        'multiple of 4, <= 256'
    """
    values = re.sub(r"\ban? (?=number|integer|list|string|method)", "", values)
    # A positive multiple is a whole number, and at least its divisor.
    return re.sub(
        r"integer(?: >= 4)?( or none|)(,? ?(?:<= \d+)?),? a positive (multiple of \d+)",
        r"\3\1\2",
        values,
    ).rstrip(" ,")


def scenario_settings() -> str:
    """The settings of a scenario, by its parts; options of data sets with the data sets that have them."""
    options = {source.options: source for source in (*DATASETS.values(), *OWN_SOURCES.values())}
    options |= {family.options: family for family in FAMILIES}
    tables: list[tuple[str, type[Any]]] = [("scenario", Scenario)]
    tables += [(f"scenario.{name}", part) for name, part in SCENARIO_PARTS.items()]
    tables += [("scenario.dataset", cls) for cls in options if cls is not DatasetSettings]
    rows, seen = [], set()
    for table_name, cls in tables:
        limits = {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
        for name, words, default, about in documented(cls):
            if name in ("about", "training") or (table_name, name) in seen:
                continue
            seen.add((table_name, name))
            main = name == getattr(cls, "main", "")
            shown = f"`{table_name.rpartition('.')[2]}`" if main else f"`{name}`"
            owners = datasets_with(name) if cls in options else []
            of = f" ({', '.join(owners)})" if owners else ""
            rows.append(
                (
                    shown,
                    f"`[{table_name}]`" + (f" `{name}`" if main else ""),
                    f"`{plain(default)}`",
                    allowed(words, limits[name]),
                    about + of,
                )
            )
    return table(("setting", "table", "default", "allowed", "meaning"), rows)


def scenarios() -> str:
    """The named scenarios by data set; what most of one data set have in common stands once."""
    sets: dict[str, list[str]] = {}
    for name in SCENARIOS:
        sets.setdefault(name.partition("/")[0], []).append(name)
    lines, single = [], []
    for data_set, names in sets.items():
        sizes = {name: size_and_model(SCENARIOS[name]) for name in names}
        usual = max(sizes.values(), key=list(sizes.values()).count)
        items = single if len(names) == 1 else []
        for name in names:
            other = "" if sizes[name] == usual and len(names) > 1 else f" ({sizes[name]})"
            items.append(f"- `{name}`: {SCENARIOS[name].about}{other}")
        if len(names) > 1:
            lines += [f"`{data_set}`: {usual}", "", *items, ""]
    return "\n".join([*lines, "Others:", "", *single, ""])


def size_and_model(scenario: Scenario) -> str:
    """How many clients a scenario has, and their model."""
    clients = OWN_DATA.get(scenario.dataset.name, f"{scenario.clients} clients")
    return f"{clients}, `{scenario.model}`"


FILES: Mapping[str, str] = {
    "ag_news": "`train.csv`, `test.csv` in `ag_news_csv`, `ag_news`",
    "cifar10": "`data_batch_1.bin` to `_5.bin`, `test_batch.bin` in `cifar-10-batches-bin`, `cifar10`; or "
    "torchvision's `cifar-10-batches-py`",
    "cifar100": "`train.bin`, `test.bin` in `cifar-100-binary`, `cifar100`; or torchvision's `cifar-100-python`",
    "digit_domains": "those of its parts",
    "digit_five": "those of its parts",
    "mnist": "`train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`,"
    " `t10k-labels-idx1-ubyte` in `MNIST/raw`, `mnist`",
    "qmnist": "those of `mnist`, `qmnist-train-labels-idx2-int`, `qmnist-test-labels-idx2-int`",
    "fashion_mnist": "as `mnist`, in `FashionMNIST/raw`, `fashion_mnist`, `fashion`",
    "femnist": "`.json` in `train` and `test`, or `all_data`, of `femnist/data/`,"
    " `leaf/data/femnist/data/`, `femnist`",
    "svhn": "`train_32x32.mat`, `test_32x32.mat` in `svhn`",
    "synth_digits": "`synth_train_32x32.mat`, `synth_test_32x32.mat` in `synth_digits`, `synth`",
    "usps": "in `usps`",
    "mnist_m": "in `mnist_m`",
}
"""Data set -> its files, and the subfolders in which they are found."""


def datasets() -> str:
    """The data sets by name."""
    rows = [
        (f"`{name}`", source.about, FILES[name] if source.files else "none")
        for name, source in DATASETS.items()
    ]
    return table(("data set", "what it is", "files, and subfolders"), rows)


def commands() -> str:
    """Every command with its arguments; options that several commands share stand in one table."""
    rows: dict[str, list[tuple[str, str]]] = {}
    users: dict[tuple[str, str], list[str]] = {}
    for name, own in parser()[1].items():
        rows[name] = []
        for action in own._actions:
            words = action.option_strings[-1:] if action.option_strings else []
            words += [str(action.metavar)] if action.metavar else []
            row = (f"`{' '.join(words)}`", action.help or "")
            rows[name].append(row)
            if action.option_strings:
                users.setdefault(row, []).append(name)
    shared = {row: names for row, names in users.items() if len(names) > 1}
    out = []
    for name, own in parser()[1].items():
        text = (own.description or "").partition("\n\n  ")[0]
        single = [row for row in rows[name] if row not in shared]
        listed = f"\n\n{table(('argument', 'meaning'), single)}" if single else "\n"
        out.append(f"## coterie {name}\n\n{text}{listed}")
    common = [
        (*row, "all" if len(names) == len(rows) else ", ".join(names))
        for row, names in shared.items()
    ]
    out.append(f"## Shared options\n\n{table(('option', 'meaning', 'commands'), common)}")
    return "\n" + "\n".join(out) + "\n"


# -- the demonstration
# ---------------------------------------------------------------------------------------------------


def demo() -> str:
    """What the bare ``coterie run`` prints in a terminal of :data:`WIDTH` columns."""
    return f"```text\n$ coterie run\n{normalised(in_terminal('run'))}\n```\n"


def explained_demo() -> str:
    """What ``coterie explain`` prints first about the demonstration compared with training alone: its screen."""
    methods = ("fedavg", "independent", "auto")
    run = [word for name in methods for word in ("--method", name)] + ["--out", "runs/three"]
    explain = ["explain", "runs/three/auto-seed0"]
    with tempfile.TemporaryDirectory() as folder:
        in_terminal("run", *run, folder=folder)
        printed = in_terminal(*explain, folder=folder)
    paragraphs = printed.split("\n\n")
    table = next(part for part in paragraphs if part.startswith("accuracy in round"))
    screen = "\n\n".join(paragraphs[: paragraphs.index(table) + 1])
    commands = f"$ coterie run {' '.join(run)}\n$ coterie {' '.join(explain)}"
    return f"```text\n{commands}\n{screen}\n...\n```\n"


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


def in_terminal(*arguments: str, folder: str | None = None) -> str:
    """What ``coterie`` prints to a plain terminal of a fixed width, in ``folder`` or in an empty one."""
    if folder is None:
        with tempfile.TemporaryDirectory() as empty:
            return in_terminal(*arguments, folder=empty)
    master, slave = os.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(WIDTH),
        "LINES": "50",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COTERIE_DATA"):
        environment.pop(name, None)
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "coterie", *arguments]
        with subprocess.Popen(
            command, stdout=slave, stderr=errors, cwd=folder, env=environment
        ) as process:
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


# -- parts of documents
# ---------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[..., str]] = {
    "settings": settings,
    "scenarios": scenarios,
    **method_table.PARTS,
    "datasets": datasets,
    "commands": commands,
    "results": results,
    "compared": compared,
    "cfl-defaults": cfl_defaults,
    "boundary-results": boundary_results,
    "mask-costs": mask_costs,
    "private-sums": private_sums,
    "adversaries": adversaries,
    "honest-norms": honest_norms,
    "honest-accuracy": honest_accuracy,
    "robust-means": robust_means,
    "trust": trust,
    "hcct-signals": hcct_signals,
    "report-page": report_page,
    "speed": speed,
    "traffic": traffic,
    "ray-nodes": ray_table.ray_nodes,
    "row-privacy": row_privacy_table.row_privacy,
    "influence": influence_table.influence,
    "influence-honest": influence_table.influence_honest,
    "backdoor": influence_table.backdoor,
    "hostile-level": influence_table.hostile_level,
    "scale": scale_table.scale,
    "scale-memory": scale_table.memory,
    "scale-growth": scale_table.growth,
    "scale-placement": scale_table.placement,
    "experiments": experiment_tables.experiments,
    "experiment": experiment_tables.experiment,
    "strengths": experiment_tables.strengths,
    **study_tables.PARTS,
    **regret_tables.PARTS,
    **silos_tables.PARTS,
    **decision_tables.PARTS,
    **bench_tables.PARTS,
    **replications.PARTS,
    **drift_tables.PARTS,
    **suggest_table.PARTS,
    **problem_tables.PARTS,
    **example_source.PARTS,
    **published_tables.PARTS,
    **fleet_tables.PARTS,
    **flux_tables.PARTS,
    **standing_tables.PARTS,
    **choosing_tables.PARTS,
    "demo": demo,
    "explained-demo": explained_demo,
}
SLOW = ("demo", "explained-demo")


def regenerated(text: str, folder: Path = DOCS, skip: Sequence[str] = SLOW) -> str:
    """A document with its generated parts made anew, but for those named in ``skip``.

    Args:
        text: The document, in Markdown.
        folder: The folder it lies in. Generators write links relative to ``docs/``.
        skip: Names of the parts that stay as they are.
    """

    def part(found: re.Match[str]) -> str:
        name = found[1]
        arguments = found[2].split()
        if name in skip:
            return found[0]
        made = RELATIVE_LINK.sub(partial(moved_link, folder), PARTS[name](*arguments))
        return f"<!-- {' '.join([name, *arguments])} -->\n{made}<!-- /{name} -->"

    return MARKER.sub(part, text)


def moved_link(folder: Path, link: re.Match[str]) -> str:
    """A link relative to ``docs/``, made relative to ``folder``."""
    target = os.path.relpath(DOCS / link[1], folder)
    return f"]({target}{link[2] or ''})"


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument(
        "--check", action="store_true", help="write nothing, tell what is not up to date"
    )
    options.add_argument("--demo", action="store_true", help="run the demonstration as well")
    options.add_argument(
        "--figures", action="store_true", help="draw the figures of studies as well"
    )
    chosen = options.parse_args(argv)
    if chosen.figures:
        experiment_tables.figures()
    stale = False
    for path in documents():
        old = path.read_text()
        new = regenerated(old, path.parent, () if chosen.demo else SLOW)
        if new != old:
            stale = True
            print(
                f"{path.relative_to(ROOT)} {'is not up to date' if chosen.check else 'rewritten'}"
            )
            if not chosen.check:
                path.write_text(new)
    return int(chosen.check and stale)


if __name__ == "__main__":
    sys.exit(main())
