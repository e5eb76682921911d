"""The command ``coterie tune``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.arguments import (
    Command,
    Parser,
    UsageError,
    common,
    experiment_options,
    real,
    whole,
)
from coterie.cli.running import named_once
from coterie.printable import say
from coterie.settings import in_shell

if TYPE_CHECKING:
    from coterie.contrib.tune.space import Range
    from coterie.contrib.tune.tuning import Tuning

TUNE_DESCRIPTION = """\
Tune the settings of methods by validation scores: on examples that are set aside from each client's training data, so
that no model is trained on them. Test data are not read. All methods have the same number of trials, rounds and seeds.
Without --range and without lists in --set, each method's own settings are searched, between their limits.

  coterie tune --scenario digits/label-swap --method flhc --method cfl --trials 20 --seeds 2
  coterie tune --scenario digits/label-swap --method flhc --set flhc.threshold=0.8,1.6,3.2
  coterie tune runs/tuning"""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "file",
        metavar="FILE.toml|DIR",
        nargs="?",
        help="an experiment file, or the folder of a tuning that goes on",
    )
    experiment_options(parser)
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting for all trials; KEY=A,B,C: values to try, all combinations without --trials",
    )
    parser.add_argument(
        "--range",
        metavar="KEY=LOW:HIGH",
        action="append",
        default=[],
        help="numbers to search, such as training.lr=0.01:1; may be repeated",
    )
    parser.add_argument("--trials", metavar="N", type=whole, help="trials of each method (20)")
    parser.add_argument(
        "--validation-share",
        metavar="A",
        type=real,
        default=0.2,
        help="the share of each client's training examples that is set aside (0.2)",
    )
    parser.add_argument(
        "--no-pruning",
        action="store_true",
        help="run each trial to its end, also where it is worse than most before",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the data set's files (COTERIE_DATA)"
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the record (runs/TIME-tuning)")
    common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tune, and print the result; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.cli import fail
    from coterie.contrib.tune.results import as_json, screen, write_results
    from coterie.contrib.tune.tuning import carry_out
    from coterie.records.text_files import to_json
    from coterie.report import terminal
    from coterie.report.live import Steps, watched

    tuning = _asked_tuning(arguments)
    done = sum(map(len, tuning.judged.values()))
    try:
        with Steps(watched(arguments.json), "trials", tuning.total, done) as steps:
            tuning = carry_out(tuning, arguments.workers, steps.step)
    except KeyboardInterrupt:
        return fail(f"interrupted; to continue, run coterie tune {in_shell(tuning.folder)}", 130)
    files = write_results(tuning)
    if arguments.json:
        say(to_json(as_json(tuning, files)))
    else:
        terminal.console(sys.stdout).print(screen(tuning, files))
    return 0


def _asked_tuning(arguments: argparse.Namespace) -> Tuning:
    """The tuning that a command line asks for: a new one, or one that goes on."""
    from coterie.contrib.tune.space import given_range, given_values
    from coterie.contrib.tune.tuning import new_tuning, reopened
    from coterie.runs.experiment import normal, read
    from coterie.runs.set_option import assign, presets_first

    if arguments.file and Path(arguments.file).is_dir():
        new_tuning_options = [arguments.scenario, arguments.method, arguments.rounds, arguments.out]
        if any(new_tuning_options) or arguments.set or arguments.range:
            raise UsageError(
                f"{arguments.file} is a tuning with its own settings: of options it takes --trials and --workers"
            )
        return reopened(Path(arguments.file), arguments.trials)
    spec = read(arguments.file) if arguments.file else normal({})
    if arguments.scenario:
        spec["scenario"] = {**spec["scenario"], "name": arguments.scenario}
    if arguments.method:
        spec["methods"] = [{"name": name} for name in named_once(arguments.method)]
    elif not arguments.file:
        raise UsageError("tune needs at least one --method M")
    for option in ("rounds", "data"):
        if getattr(arguments, option) is not None:
            spec[option] = getattr(arguments, option)
    if arguments.seeds is not None:
        spec["seeds"] = list(range(arguments.seeds))
    if arguments.seed is not None:
        spec["seeds"] = [arguments.seed]
    # A list of values is searched; any other setting is that of all trials.
    searched: dict[str, Range] = dict(map(given_range, arguments.range))
    for text in presets_first(arguments.set):
        values = given_values(text)
        if values is None:
            spec = assign(spec, text)
        else:
            searched[values[0]] = values[1]
    folder = Path(arguments.out or Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-tuning"))
    return new_tuning(
        spec,
        folder,
        searched,
        arguments.trials,
        arguments.validation_share,
        not arguments.no_pruning,
    )


TUNE_COMMAND = Command("tune settings by validation scores", TUNE_DESCRIPTION, options, run)
