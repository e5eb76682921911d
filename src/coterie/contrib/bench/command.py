"""The command ``coterie bench``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coterie.cli.arguments import Command, Parser, UsageError, common
from coterie.cli.running import named_once
from coterie.printable import say

BENCH_DESCRIPTION = """\
Run a method in the frozen worlds of a suite, and compare it with the recorded rows of all other methods: rank, gap to the
best, worst clients, bytes, and for each other method wins, losses and a test. (make bench measures speed, not this.)
Without --method, show the ranking of the recorded rows.

  coterie bench quick --method mypackage.mymodule:MyMethod --out runs/bench
  coterie bench quick
  coterie bench quick --check runs/bench/mymethod.jsonl"""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("suite", metavar="SUITE", help="quick, standard or full")
    parser.add_argument(
        "--method",
        metavar="M",
        action="append",
        default=[],
        help="a method's name, or package.module:Class; may be repeated",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of the method, the same in all worlds; may be repeated",
    )
    parser.add_argument(
        "--rows",
        metavar="FILE",
        action="append",
        default=[],
        help="further rows to compare with; may be repeated",
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="check a file of rows, and run nothing; exit status 1: wrong",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the data files, for the suite full (COTERIE_DATA)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder of the rows, tables and diagram; runs that it has are not repeated (runs/bench)",
    )
    common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the methods, and print how they compare; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.cli import fail
    from coterie.contrib.bench.benching import compared, entrant_of, missing_runs, run_missing
    from coterie.contrib.bench.results import written
    from coterie.contrib.bench.rows import mistakes, read_rows, recorded_rows
    from coterie.contrib.bench.suites import suite_of
    from coterie.contrib.bench.tables import screen
    from coterie.records.text_files import to_json
    from coterie.report import terminal
    from coterie.report.live import Steps, watched
    from coterie.runs.experiment import data_folder

    worlds = suite_of(arguments.suite)
    if arguments.check:
        if arguments.method:
            raise UsageError("--check runs no method: leave out --method")
        wrong = mistakes(read_rows(Path(arguments.check)), worlds, recorded_rows())
        for sentence in wrong:
            say(f"wrong: {sentence}")
        if not wrong:
            say(f"{arguments.check} has all rows of the suite {arguments.suite}")
        return 1 if wrong else 0
    folder = Path(arguments.out or Path("runs", "bench"))
    entrants = [entrant_of(name, arguments.set) for name in named_once(arguments.method)]
    own_rows = []
    for entrant in entrants:
        path = folder / f"{entrant.name}.jsonl"
        total = sum(len(world.seeds) for world in worlds)
        done = total - len(missing_runs(arguments.suite, entrant, path))
        try:
            with Steps(watched(arguments.json), entrant.name, total, done) as steps:
                run_missing(
                    arguments.suite,
                    entrant,
                    path,
                    data_folder(arguments.data),
                    arguments.workers,
                    steps.step,
                )
        except KeyboardInterrupt:
            return fail("interrupted; the same command goes on", 130)
        own_rows += [row for row in read_rows(path) if (row.method, row.key[2]) == entrant.key]
    result = compared(arguments.suite, own_rows, arguments.rows)
    files = written(result, folder) if entrants or arguments.out else []
    if arguments.json:
        say(to_json(result.plain()))
    else:
        terminal.console(sys.stdout).print(screen(result.compared, result.standings, result.judged))
        for path in files:
            say(f"{path} written")
    return 0


BENCH_COMMAND = Command("compare a method with recorded results", BENCH_DESCRIPTION, options, run)
