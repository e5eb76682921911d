"""Commands, options and help texts of the command line. This module imports little, so that help appears immediately."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from coterie.extensions import Registry, entry_points
from coterie.printable import say
from coterie.settings import MOST_SEEDS, UserError, fits, known_list, nearest
from coterie.settings.field_names import called_here, closest


class UsageError(UserError):
    """The arguments of the command line are wrong."""


class Parser(argparse.ArgumentParser):
    """Parser that reports mistakes by :class:`UsageError`, in one sentence."""

    def __init__(self, **options: Any) -> None:
        # The texts of the commands have their own line breaks.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`."""
        raise UsageError(re.sub(r"^argument (\S+): ", r"\1: ", message))

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse's own method, it fails if the disk is full."""
        say(self.format_help(), file, end="")

    def options(self) -> list[str]:
        """The option strings of the parser."""
        return [option for action in self._actions for option in action.option_strings]


class Version(argparse.Action):
    """The option ``--version``, whose text is only made when it is needed."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        # Like argparse's own action, but it leaves nothing in the parsed arguments.
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        import platform
        from importlib.metadata import version

        say(
            f"coterie {version('coterie')}, Python {platform.python_version()}, torch {version('torch')}"
        )
        parser.exit()


def whole(text: str) -> int:
    """An integer in an argument."""
    try:
        number = int(text)
    except ValueError:
        # Also for more digits than Python reads.
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
    if not fits(number):
        raise argparse.ArgumentTypeError(f"must be an integer of at most 64 bits, got {text!r}")
    return number


def real(text: str) -> float:
    """A number in an argument."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


@dataclass(frozen=True)
class Command:
    """A command that an extension adds; its entry point in ``coterie.commands`` names an object of this class.

    The module that defines it is imported for ``coterie --help``, so it must not import libraries
    that take long; ``run`` may.

    Attributes:
        about: One line for ``coterie --help``.
        description: The text of the command's own help.
        options: Adds the command's arguments to its parser.
        run: Runs the command with the parsed arguments, and returns the exit status.
    """

    about: str
    description: str
    options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]


EXTENSIONS: Registry[Command] = Registry(
    "coterie.commands",
    "a coterie.cli.arguments.Command",
    accepts=lambda name, command: isinstance(command, Command),
)
"""The commands of extensions by name."""


def parser(extensions: Mapping[str, Command] | None = None) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the command line, and command -> its parser.

    Args:
        extensions: The commands of extensions by name; None for all that are installed.
    """
    top_parser = Parser(
        prog="coterie",
        description="Clustered federated learning: find groups of similar clients, and train a model for each group.",
        epilog="See coterie COMMAND --help for details. coterie run without options is a demonstration.",
    )
    top_parser.add_argument(
        "--version",
        action=Version,
        help="print the versions of Coterie, Python and PyTorch, and exit",
    )
    commands = top_parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    command_parsers = {
        command_name: commands.add_parser(command_name, help=one_line, description=description)
        for command_name, (one_line, description) in BUILT_IN.items()
    }
    # Commands that train. None is the default of options that are settings of the experiment, so
    # that only those that were given override a file.
    _add_run_arguments(command_parsers["run"])
    resume = command_parsers["resume"]
    resume.add_argument("run", metavar="RUN", help="a run directory, or a folder of several")
    _add_watch(resume)
    _add_track(resume)
    _add_address(resume)
    consent_options(resume)
    common(resume)
    # Commands that show runs, commands about the files of runs, and lists.
    _add_reading_arguments(command_parsers)
    _add_file_arguments(command_parsers)
    command_parsers["methods"].add_argument(
        "name", metavar="M", nargs="?", help="a method, or package.module:Class of your own"
    )
    command_parsers["scenarios"].add_argument("name", metavar="S", nargs="?", help="a scenario")
    # The commands of extensions come last, as in the help.
    for command_name, extension in (EXTENSIONS if extensions is None else extensions).items():
        command_parsers[command_name] = commands.add_parser(
            command_name, help=extension.about, description=extension.description
        )
        extension.options(command_parsers[command_name])
    return top_parser, command_parsers


RUN = """\
Run methods in a scenario, each with each seed, and record every round.
Defaults are those of the demonstration: FedAvg and auto on digits/label-permutation.

  coterie run
  coterie run --scenario digits/label-swap --method cfl --set eps1=0.3 --seeds 3
  coterie run experiment.toml --set training.lr=0.05 --out runs/slow"""
RESUME = """\
Resume a run, or all runs of a folder, from the last checkpoint. The result is bit-identical to that of an
uninterrupted run. Finished runs do not change."""
COMPARE = """\
Compare methods: means over the seeds of the given runs, with 95% intervals (Student's t), and which method to use."""
REPORT = """\
Write one HTML page about runs: groups over rounds and why they changed, accuracy, similarities, clients, costs,
settings. It needs only the run directories, and opens in any browser without a network.

  coterie report runs/first
  coterie report runs/cfl runs/fedavg -o both.html
  coterie report runs/first --follow"""
EXPLAIN = """\
Explain from the records why the groups are as they are, or why one client is in its group: which numbers were compared,
how close the decision was, and what would have changed it."""
PLOT = """\
Draw one figure of a run as PDF, PNG or SVG. Kinds: groups, score, accuracy, loss, similarity, criteria, traffic, time (the
score by virtual time, of timed), clients (a dot per client) and partition (who has which classes). Of several runs, score,
accuracy, loss, traffic and time draw a curve for each method: the mean over its seeds, in a band that is the 95 % interval;
clients draws a strip for each method.

  coterie plot runs/first groups -o groups.pdf
  coterie plot runs/cfl runs/fedavg score -o score.pdf
  coterie plot digits/dirichlet partition -o partition.pdf"""
GROUPS = """\
Write a CSV file with the group of every client, from the newest checkpoint: also of clients that are not tested, which the
records do not list. With --place-waiting, clients that split-half or auto did not yet ask for their group are placed, a
batch after the other; the run stays as it is.

  coterie groups runs/first -o groups.csv
  coterie groups runs/million -o groups.csv --place-waiting"""
EXPORT = """\
Write every model that serves a client, from the newest checkpoint, as safetensors, and a list of which client uses
which model. With several runs, each gets its own folder."""
PREDICT = """\
Predict the rows of a file with a model of an export, with its calibration: one line per row, with the probability of
each class. The file is a .csv with the columns of the model, an .npz with an array x, or an .npy.

  coterie predict models patients.csv --client north
  coterie predict models patients.csv --group 1 -o predictions.csv"""
PLACE = """\
Find the group of a site that took no part in training, from an export and the site's rows alone: the probability of each
group, and that it is none of these. With labels, by the losses of the groups' models; without, by the inputs.

  coterie place models patients.csv --labels outcome
  coterie place models patients.csv"""
CHECK = """\
Read all files of runs and of exported models, and list those that are damaged or were edited. Exit status 1: there are some.
The check does not find deliberate forgery: whoever can write the files can also write their checksums.

  coterie check runs/first
  coterie check runs/first --accept"""
METHODS = "List the methods, or the settings of one."
SCENARIOS = "List the scenarios, or the settings of one."

BUILT_IN = {
    "run": ("run methods in a scenario", RUN),
    "resume": ("resume an interrupted run", RESUME),
    "compare": ("compare methods, averaged over seeds", COMPARE),
    "report": ("write a report of runs as one HTML page", REPORT),
    "explain": ("explain why a client is in its group", EXPLAIN),
    "plot": ("plot one figure of a run, for a paper", PLOT),
    "groups": ("write the group of every client as CSV", GROUPS),
    "export": ("write the models of a run as safetensors", EXPORT),
    "predict": ("predict the rows of a file with an exported model", PREDICT),
    "place": ("find the group of a new site from an export", PLACE),
    "check": ("check files of runs and exports for damage and edits", CHECK),
    "methods": ("list the methods, or the settings of one", METHODS),
    "scenarios": ("list the scenarios, or the settings of one", SCENARIOS),
}
"""Command -> (one line for ``coterie --help``, the text of its own help)."""


def _extensions_for(argv: Sequence[str]) -> Mapping[str, Command] | None:
    """The commands of extensions that a command line needs; None for all, which only help lists."""
    if not argv or argv[0].startswith("-"):
        return None
    # Help lists all commands; a call of one needs at most one extension, and imports no other.
    command_name = argv[0]
    if command_name in BUILT_IN:
        return {}
    try:
        return {command_name: EXTENSIONS.find(command_name)}
    except KeyError:
        known_commands = [*BUILT_IN, *entry_points(EXTENSIONS.group)]
        raise UsageError(
            f"there is no command {command_name!r}{nearest(command_name, known_commands)}"
            f"{known_list(known_commands, 'coterie --help')}"
        ) from None


def _add_run_arguments(parser: Parser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE.toml",
        nargs="?",
        help="an experiment file; the options below override it",
    )
    # What is run, how long, and with which seeds.
    experiment_options(parser)
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting: eps1=0.3, cfl.eps1=0.3, training.lr=0.05, scenario.clients=50; may be repeated",
    )
    parser.add_argument(
        "--target",
        metavar="A",
        type=real,
        help="stop a run when the mean of its main metric reaches this",
    )
    parser.add_argument("--eval-every", metavar="N", type=whole, help="rounds between tests (1)")
    parser.add_argument(
        "--eval-clients",
        metavar="N",
        type=whole,
        help="test this many clients, and list them alone in the records (all)",
    )
    parser.add_argument(
        "--validation-share",
        metavar="A",
        type=real,
        help="set this share of each client's training examples aside for validation scores (none)",
    )
    parser.add_argument(
        "--stop-after",
        metavar="N",
        type=whole,
        help="stop a run after N rounds without a better validation score (never)",
    )
    # Where and how it is computed.
    parser.add_argument(
        "--width",
        metavar="N",
        type=whole,
        help="clients trained in one block (chosen for the model)",
    )
    parser.add_argument("--device", metavar="D", help="cpu, or a GPU: cuda, cuda:1 (cpu)")
    parser.add_argument(
        "--precision",
        metavar="P",
        help="fp32, bf16 on processors that have it, or auto: the faster one, measured (fp32)",
    )
    parser.add_argument(
        "--engine",
        metavar="E",
        help="inprocess, flower for its simulation, or ray for a Ray cluster (inprocess)",
    )
    _add_address(parser)
    # Where the data are, and where the record goes.
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the data set's files, or your table (COTERIE_DATA)"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="a new folder for the record (runs/TIME-SCENARIO)"
    )
    parser.add_argument(
        "--estimate", action="store_true", help="estimate time, memory and disk space; run nothing"
    )
    _add_watch(parser)
    _add_track(parser)
    consent_options(parser)
    common(parser)


def experiment_options(parser: Parser) -> None:
    """Add what commands that make runs of an experiment have in common: scenario, methods, rounds and seeds."""
    parser.add_argument("--scenario", metavar="S", help="see coterie scenarios")
    parser.add_argument(
        "--method",
        metavar="M",
        action="append",
        help="see coterie methods, or package.module:Class of your own; may be repeated",
    )
    parser.add_argument("--rounds", metavar="R", type=whole, help="communication rounds (40)")
    parser.add_argument(
        "--seed", metavar="N", type=whole, action=_OneSeed, help="run with this one seed (0)"
    )
    parser.add_argument("--seeds", metavar="K", type=whole, help="run with the seeds 0 to K-1")


class _OneSeed(argparse.Action):
    """Takes ``--seed`` once: with two, a user expects runs with both."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        earlier_seed = getattr(namespace, self.dest)
        if earlier_seed not in (None, values):
            parser.error(
                f"--seed is one seed, got {earlier_seed} and {values}; several are --seeds K (0 to K-1), or "
                f"seeds = [{earlier_seed}, {values}] in an experiment file"
            )
        setattr(namespace, self.dest, values)


def _add_address(parser: Parser) -> None:
    parser.add_argument(
        "--address",
        metavar="A",
        help="the Ray cluster: HOST:PORT, auto or local (RAY_ADDRESS, or found by Ray)",
    )


def consent_options(parser: Parser) -> None:
    """Add what only the user can give for a run directory: permission to import code, and the secret."""
    _add_trust(parser)
    parser.add_argument(
        "--secret-file", metavar="FILE", help="file with the boundary's secret (COTERIE_SECRET)"
    )


def _add_trust(parser: Parser) -> None:
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="allow a recorded file to import its model, scenario or method package.module:Name",
    )


def _add_watch(parser: Parser) -> None:
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write report.html after each round; open it: it reloads itself",
    )


def _add_track(parser: Parser) -> None:
    parser.add_argument(
        "--track",
        metavar="TRACKER",
        action="append",
        default=[],
        help="tensorboard, mlflow, wandb or prometheus: log every round there; may be repeated",
    )


def _add_reading_arguments(command_parsers: dict[str, Parser]) -> None:
    """Add the arguments of commands that show runs."""
    command_parsers["compare"].add_argument(
        "runs", metavar="RUN", nargs="+", help="run directories, or folders of several"
    )
    # Of two forms, one would be lost.
    table_forms = command_parsers["compare"].add_mutually_exclusive_group()
    table_forms.add_argument(
        "--table",
        choices=("markdown", "latex", "csv"),
        help="print the table of a paper: means ± half the 95%% interval, in bold the best and what is as good",
    )
    for form in ("markdown", "latex", "csv"):
        table_forms.add_argument(
            f"--{form}",
            dest="table",
            action="store_const",
            const=form,
            help=f"the same as --table {form}",
        )
    command_parsers["compare"].add_argument(
        "--columns",
        metavar="A,B,...",
        help="the numbers of this table: score, worst, std, loss, ari, bytes_up, ..., or any metric",
    )
    command_parsers["compare"].add_argument(
        "--by",
        choices=("clients", "examples"),
        default="clients",
        help="what counts equally in the mean of a metric: clients, or their test examples (clients)",
    )
    command_parsers["compare"].add_argument(
        "--metric",
        metavar="M",
        default="",
        help="the metric of the score, such as loss or validation_accuracy (the main metric)",
    )
    command_parsers["compare"].add_argument(
        "--best-round",
        action="store_true",
        help="each run as it was after the round with its best validation score",
    )
    command_parsers["compare"].add_argument(
        "--against",
        metavar="METHOD",
        help="compare each other method with this one, with the paired test over seeds",
    )
    command_parsers["compare"].add_argument(
        "--spread",
        choices=("interval", "sd"),
        default="interval",
        help="what follows a mean in this table: half the interval, or the standard deviation over seeds",
    )
    command_parsers["compare"].add_argument(
        "--clients",
        action="store_true",
        help="one row per client: its newest score with each method; of one run also its group, and rounds that it missed",
    )
    command_parsers["compare"].add_argument(
        "--classic",
        action="store_true",
        help="for tables: train gradient boosting and a linear model on the same rows, which federates nothing, and compare",
    )
    command_parsers["compare"].add_argument(
        "--trust-code",
        action="store_true",
        help="with --classic: allow a recorded file to import its scenario or model package.module:Name",
    )
    _add_json(command_parsers["compare"])
    command_parsers["report"].add_argument(
        "runs", metavar="RUN", nargs="+", help="run directories, or folders of several"
    )
    command_parsers["report"].add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="the page (report.html in RUN, or here for several runs)",
    )
    command_parsers["report"].add_argument(
        "--follow",
        action="store_true",
        help="write the page after each round until the runs end; it reloads itself",
    )
    command_parsers["explain"].add_argument("run", metavar="RUN", help="a run directory")
    command_parsers["explain"].add_argument(
        "--client",
        metavar="NAME",
        help="explain this client only, by its name, or its number if it has none",
    )
    command_parsers["explain"].add_argument(
        "--round", metavar="R", type=whole, help="explain the groups after this round (the last)"
    )
    _add_json(command_parsers["explain"])
    command_parsers["plot"].add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run directory; several for a curve of each; for partition also a scenario or FILE.toml",
    )
    command_parsers["plot"].add_argument(
        "kind",
        metavar="KIND",
        help="groups, score, clients, accuracy, loss, similarity, criteria, traffic, time or partition",
    )
    command_parsers["plot"].add_argument(
        "-o", "--out", metavar="FILE", required=True, help="the figure: .pdf, .png or .svg"
    )
    command_parsers["plot"].add_argument(
        "--round", metavar="R", type=whole, help="round to plot (the last with this figure)"
    )
    command_parsers["plot"].add_argument(
        "--metric",
        metavar="M",
        default="",
        help="the metric of score, time and clients, such as loss (the main metric)",
    )
    command_parsers["plot"].add_argument(
        "--data", metavar="DIR", help="for partition: folder of the data set's files (COTERIE_DATA)"
    )
    _add_trust(command_parsers["plot"])


def _add_file_arguments(command_parsers: dict[str, Parser]) -> None:
    """Add the arguments of commands about the files of runs."""
    groups = command_parsers["groups"]
    groups.add_argument("run", metavar="RUN", help="a run directory")
    groups.add_argument("-o", "--out", metavar="FILE", required=True, help="a .csv file")
    groups.add_argument(
        "--place-waiting", action="store_true", help="place clients that wait for a group"
    )
    groups.add_argument(
        "--batch",
        metavar="B",
        type=whole,
        help="clients that are in memory at a time while they are placed (1000)",
    )
    consent_options(groups)
    common(groups)
    command_parsers["export"].add_argument(
        "run", metavar="RUN", help="a run directory, or a folder of several"
    )
    command_parsers["export"].add_argument(
        "--to", metavar="DIR", required=True, help="a new folder for the models"
    )
    command_parsers["export"].add_argument(
        "--default",
        metavar="NAME",
        default="",
        help="the model for sites that are not known: group-1, or a client (of the group with the most clients)",
    )
    command_parsers["export"].add_argument(
        "--best-round",
        action="store_true",
        help="the models after the round with the best validation score, not after the last",
    )
    command_parsers["export"].add_argument(
        "--without-data",
        action="store_true",
        help="do not read the clients' data: no calibration, and nothing that places a new site",
    )
    consent_options(command_parsers["export"])
    for command_name in ("predict", "place"):
        command_parsers[command_name].add_argument(
            "export", metavar="EXPORT", help="a folder that coterie export has written"
        )
        command_parsers[command_name].add_argument(
            "file", metavar="FILE", help="the rows: .csv, .csv.gz, .npz or .npy"
        )
    command_parsers["predict"].add_argument(
        "--client",
        metavar="NAME",
        help="whose model predicts; without --client and --group, the default model of the export",
    )
    command_parsers["predict"].add_argument(
        "--group", metavar="G", type=whole, help="the number of the group whose model predicts"
    )
    command_parsers["predict"].add_argument(
        "-o", "--out", metavar="FILE", help="a .csv file for the predictions (the terminal)"
    )
    command_parsers["place"].add_argument(
        "--labels",
        metavar="COLUMN",
        action="append",
        help="the column with the labels, or an array of the .npz file; may be repeated",
    )
    for command_name in ("predict", "place"):
        consent_options(command_parsers[command_name])
        _add_json(command_parsers[command_name])
    command_parsers["check"].add_argument(
        "runs", metavar="RUN", nargs="+", help="a run directory, a folder of several, or an export"
    )
    command_parsers["check"].add_argument(
        "--accept",
        action="store_true",
        help="write new checksums after you edited run.toml or experiment.toml",
    )
    _add_json(command_parsers["check"])


def common(parser: Parser) -> None:
    """Add the options that several commands have."""
    parser.add_argument(
        "--workers",
        metavar="W",
        type=whole,
        help="training processes (one per core); results do not depend on it",
    )
    _add_json(parser)


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")


def parse(
    argv: Sequence[str], parsers: tuple[Parser, dict[str, Parser]] | None = None
) -> argparse.Namespace:
    """Parse the command line. ``--help`` and ``--version`` end the process.

    Args:
        argv: The arguments.
        parsers: The result of :func:`parser`; None to make it.

    Returns:
        The parsed arguments.

    Raises:
        UsageError: The arguments are wrong. For an unknown command or option, the message names the
            most similar one.
        BrokenExtension: The command is of an extension that cannot be imported.
    """
    # Only the parsers that this command line needs.
    top_parser, command_parsers = parsers or parser(_extensions_for(argv))
    if argv and not argv[0].startswith("-") and argv[0] not in command_parsers:
        raise UsageError(
            f"there is no command {argv[0]!r}{nearest(argv[0], command_parsers)}{known_list(command_parsers, 'coterie --help')}"
        )
    # An unknown argument gets a sentence with the nearest option, instead of argparse's usage text.
    arguments, unknown_arguments = top_parser.parse_known_args(argv)
    if unknown_arguments:
        command_parser = command_parsers.get(arguments.command, top_parser)
        raise _unknown_argument(argv, unknown_arguments[0], arguments.command, command_parser)
    # What argparse cannot check.
    seed = getattr(arguments, "seed", None)
    seed_count = getattr(arguments, "seeds", None)
    if seed is not None and seed_count is not None:
        raise UsageError("use only one of --seed and --seeds")
    for option in (
        "rounds",
        "seeds",
        "workers",
        "width",
        "eval_every",
        "eval_clients",
        "stop_after",
        "batch",
    ):
        number = getattr(arguments, option, None)
        if number is not None and number < 1:
            raise UsageError(f"--{option.replace('_', '-')} must be at least 1, got {number}")
    if (seed_count or 0) > MOST_SEEDS:
        raise UsageError(f"--seeds must be at most {MOST_SEEDS:,}, got {seed_count}")
    return arguments


def _unknown_argument(
    argv: Sequence[str], argument: str, command: str | None, parser: Parser
) -> UsageError:
    """The error for an argument that the command does not have.

    Args:
        argv: The whole command line.
        argument: The first unknown argument.
        command: The command; None without one.
        parser: Its parser.
    """
    # "--option=value" is one argument, "--option value" two.
    command_line = f"coterie {command}" if command else "coterie"
    option, _, value = argument.partition("=")
    if not option.startswith("-"):
        return UsageError(
            f"{command_line} does not take {option!r} here; see {command_line} --help"
        )
    if not value:
        # The value may be the next argument.
        following = argv[list(argv).index(argument) + 1 :]
        value = following[0] if following else ""
    hint = _instead(option, value, parser.options(), command)
    return UsageError(f"{command_line} has no option {option}{hint}")


SLIP_SIMILARITY = 0.8
"""The similarity from which on a name is a slip of an option, even where a setting has that name.
"""


def _instead(option: str, value: str, options: Sequence[str], command: str | None) -> str:
    """The end of a sentence that says which option, or which setting, an unknown option stands for."""
    # Only run has settings that a user may take for options.
    if command != "run":
        return nearest(option, options)
    # Other libraries' names of options that coterie run has.
    for own_name in called_here(option):
        likely_option = f"--{own_name.replace('_', '-')}"
        if likely_option in options:
            return f"; did you mean {likely_option}?"
    if closest(option, options, SLIP_SIMILARITY) is None:
        # Imported here: it imports PyTorch, for which only this mistake waits.
        from coterie.runs.set_option import option_hint

        hint = option_hint(option, "" if value.startswith("-") else value)
        if hint:
            return hint
    return nearest(option, options)
