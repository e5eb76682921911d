"""``python -m papers list`` and ``python -m papers run``: parse, call, print."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console

from coterie.cli import guarded
from coterie.cli.arguments import Parser, common, parse, whole
from coterie.core import Round
from coterie.engines.workers import EngineError, Hardware
from coterie.records.text_files import to_json
from coterie.report import terminal
from coterie.report.live import Steps, duration, groups, watched
from coterie.runs.experiment import data_folder
from coterie.settings import UserError
from papers import PAPERS, SCALES, STUDIES, drawing, running, screen
from papers import find as find_study
from papers.reading import find, scales
from papers.store import Rows
from papers.study import Cell, Resources, Scale, Study, key

LIST = """\
List the experiments of the papers: figure or table, scales, approximate duration on two cores, the data sets that are
read from files, how many runs are recorded, and how long the others take."""
RUN = """\
Run the part of a paper's experiment that is not recorded yet. Then print the paper's numbers beside ours, with the
spread over seeds and a verdict, and draw the figure. After an interruption, the same command continues.

  python -m papers run cfl/fig5
  python -m papers run all --scale small --out studies"""


def parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and each command's own."""
    top = Parser(
        prog="python -m papers",
        description="Run the experiments of the four papers and compare with the printed numbers.",
    )
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=Parser, required=True
    )
    own = {
        "list": commands.add_parser(
            "list", help="list the experiments and their durations", description=LIST
        ),
        "run": commands.add_parser(
            "run", help="run an experiment and compare it with the paper's numbers", description=RUN
        ),
    }
    for command in own.values():
        command.add_argument(
            "--out", metavar="DIR", default="studies", help="folder of rows and figures (studies)"
        )
    run = own["run"]
    run.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help="see python -m papers list; all runs every experiment of the scale",
    )
    run.add_argument("--scale", metavar="S", default="small", help="small, data or paper (small)")
    run.add_argument("--data", metavar="DIR", help="folder of the data sets' files (COTERIE_DATA)")
    run.add_argument(
        "--seeds",
        metavar="K",
        type=whole,
        help="run with the seeds 0 to K-1 (the scale's own number)",
    )
    run.add_argument("--device", metavar="D", help="cpu, or a GPU: cuda, cuda:1 (cpu)")
    run.add_argument(
        "--precision",
        metavar="P",
        help="fp32, or bf16: faster on some machines; in files of its own (fp32)",
    )
    run.add_argument(
        "--jobs", metavar="J", type=whole, default=1, help="runs at a time, each with one core (1)"
    )
    run.add_argument(
        "--part",
        metavar="I/N",
        default="1/1",
        help="every N-th run from the I-th, for N machines (1/1)",
    )
    common(run)
    return top, own


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of the papers; returns the exit status."""
    return guarded(lambda: _call(sys.argv[1:] if argv is None else argv))


def _call(argv: Sequence[str]) -> int:
    arguments = parse(argv, parser())
    return listed(Path(arguments.out)) if arguments.command == "list" else run(arguments)


def listed(out: Path) -> int:
    """``python -m papers list``."""
    console = terminal.console(sys.stdout)
    for paper, title in PAPERS.items():
        console.print(title, style="bold")
        console.print(screen.listing((one for one in STUDIES.values() if one.paper == paper), out))
        console.print()
    return 0


LETTERS = 24
"""Maximum number of entries shown of a setting that is a list."""


def run(arguments: argparse.Namespace) -> int:
    """``python -m papers run``: every mistake is reported before the first study begins."""
    chosen, part = list(_chosen(arguments)), _part(arguments.part)
    drawing.check_installed()
    if arguments.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {arguments.jobs}")
    if arguments.jobs > 1 and (arguments.workers or 1) > 1:
        raise UserError(
            f"--jobs {arguments.jobs} needs one process for each run, got --workers {arguments.workers}"
        )
    precision, device = arguments.precision or "fp32", arguments.device or "cpu"
    hardware = Hardware(workers=arguments.workers, device=device, precision=precision)
    on = Resources(data=data_folder(arguments.data), hardware=hardware)
    for _, scale in chosen:
        running.check_data(scale, on.data)
    out, said = Path(arguments.out), []
    if out.exists() and not out.is_dir():
        raise UserError(f"--out must be a folder, and {out} is a file")
    console, progress = terminal.console(sys.stdout), terminal.console(sys.stderr)
    for one, scale in chosen:
        name = (
            scale.name if precision == "fp32" else f"{scale.name}.{precision}"
        )  # apart: numbers of both are not averaged
        rows = Rows(out / f"{one.source}.{name}.jsonl")
        tell(progress, f"{one.name}, {one.where}, at scale {scale.name}: {scale.about}")
        try:
            _carry_out(
                one,
                scale,
                rows,
                on,
                arguments.seeds,
                arguments.jobs,
                part,
                progress,
                arguments.json,
            )
        except KeyboardInterrupt:
            tell(
                progress,
                f"coterie: interrupted; completed runs are in {rows.path}; run the same command again to continue",
            )
            return 130
        except EngineError as error:
            tell(progress, f"coterie: {one.name}: {error}")
            return 1
        found = running.outcome(one, scale, rows, arguments.seeds)
        if found is None:  # of several parts
            tell(
                progress,
                f"{one.name} has no verdict yet: the runs of other parts are not in {rows.path}",
            )
            continue
        files = drawing.draw(one, found.rows, out / f"{one.stem}.{name}")
        said.append(screen.as_json(found))
        if not arguments.json:
            console.print(screen.result(found))
            tell(console, f"figure in {files[0]} and {files[1]}\nrecorded in {rows.path}\n")
    if arguments.json:
        console.print(to_json(said[0] if len(said) == 1 else said), soft_wrap=True, markup=False)
    return 0


def tell(console: Console, text: str) -> None:
    """Lines as they are, not read as markup; in a terminal they are broken between words."""
    console.print(text, soft_wrap=not console.is_terminal, markup=False)


def _chosen(arguments: argparse.Namespace) -> Iterator[tuple[Study, Scale]]:
    """The studies named, each with its scale; ``all`` is those that have the scale."""
    if arguments.names == ["all"]:
        having = [one for one in STUDIES.values() if arguments.scale in scales(one.source)]
        if not having:
            raise UserError(
                f"no study has a scale {arguments.scale!r} (known: {', '.join(SCALES)})"
            )
        yield from ((one, scales(one.source)[arguments.scale]) for one in having)
        return
    for name in dict.fromkeys(arguments.names):
        one = find_study(name)
        yield one, find(one.name, one.source, arguments.scale)


def _part(text: str) -> tuple[int, int]:
    """The place from 0 of a part, and how many there are."""
    place, slash, parts = text.partition("/")
    if not (slash and place.isdecimal() and parts.isdecimal() and 1 <= int(place) <= int(parts)):
        raise UserError(f"--part must be I/N with 1 <= I <= N, such as 1/4, got {text}")
    return int(place) - 1, int(parts)


def _carry_out(
    study: Study,
    scale: Scale,
    rows: Rows,
    on: Resources,
    seeds: int | None,
    jobs: int,
    part: tuple[int, int],
    console: Console,
    quiet: bool,
) -> None:
    """Run what is missing, with a line for each row."""
    cells, began = scale.cells(seeds)[part[0] :: part[1]], time.perf_counter()
    done = len(rows.of(cells))
    left = duration(running.seconds_left(scale, rows, cells))
    tell(
        console,
        f"{done} of {len(cells)} runs are recorded{f'; about {left}' if done < len(cells) else ''}",
    )
    with Steps(console if watched(quiet) else None, study.name, len(cells), done) as steps:
        on = replace(on, progress=lambda last, rounds: steps.tell(_round(last, rounds)))
        for row in running.carry_out(study, scale, rows, on, seeds, jobs, part):
            done += 1
            shown = ", ".join(
                f"{name} {_shown(row['cell'][name])}"
                for name in varied(cells)
                if name in row["cell"]
            )
            tell(
                console,
                f"{done} of {len(cells)}: {shown}: {row['seconds']:.1f} s, {time.perf_counter() - began:.0f} s in all",
            )
            steps.step()


def _round(last: Round, rounds: int) -> str:
    """What goes on within a cell."""
    return f"round {last.number} of {rounds}, {last.answered} of {last.asked} replies, {groups(last.assignment.groups)}"


def varied(cells: Sequence[Cell]) -> list[str]:
    """The settings that tell cells apart: not those that only say how a problem is run, which are tables without a label.

    >>> varied([{"k": 2, "d": 9, "seed": 0}, {"k": 3, "d": 9, "seed": 0}])
    ['k', 'seed']
    """
    names = dict.fromkeys(name for cell in cells for name in cell)
    several = [name for name in names if len({key({name: cell.get(name)}) for cell in cells}) > 1]
    plain = [
        name
        for name in several
        if not any(isinstance(_shown(cell.get(name)), Mapping) for cell in cells)
    ]
    return [name for name in plain if name != "seed"] + ["seed"]


def _shown(value: Any) -> Any:
    """A setting in few words: of a table, its label; of a long list, its beginning.

    >>> _shown([[-1.5, 0.0, 0.0, 1.0, 0.45], [1.5, 0.0, 0.0, 0.45, 1.0]])
    '[[-1.5, 0.0, 0.0, ...'
    """
    if isinstance(value, Mapping):
        return value.get("label", value)
    return (
        shorten(str(value), LETTERS, placeholder=" ...")
        if isinstance(value, list | tuple)
        else value
    )
