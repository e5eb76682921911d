"""Commands, options and help texts of the command line. This module imports little, so that help appears immediately."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from coterie.printable import say
from coterie.settings import MOST_SEEDS, UserError, fits, nearest


class UsageError(UserError):
    """The arguments of the command line are wrong."""


class Parser(argparse.ArgumentParser):
    """Parser that reports mistakes by :class:`UsageError`, in one sentence."""

    def __init__(self, **options: Any) -> None:
        form = partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)
        super().__init__(allow_abbrev=False, formatter_class=form, **options)

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
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        import platform
        from importlib.metadata import version

        say(f"coterie {version('coterie')}, Python {platform.python_version()}, torch {version('torch')}")
        parser.exit()


def whole(text: str) -> int:
    """A whole number in an argument."""
    try:
        number = int(text)
    except ValueError:  # also for more digits than Python reads
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if not fits(number):
        raise argparse.ArgumentTypeError(f"must be a whole number of at most 64 bits, got {text!r}")
    return number


def real(text: str) -> float:
    """A number in an argument."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the command line, and command -> its parser."""
    top = Parser(
        prog="coterie",
        description="Clustered federated learning: find which clients should learn together, and train them that way.",
        epilog="coterie COMMAND --help says more. A bare coterie run is a demonstration.",
    )
    top.add_argument("--version", action=Version, help="say the versions of Coterie, Python and PyTorch, and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    own = {
        name: commands.add_parser(name, help=about, description=text)
        for name, about, text in (
            ("run", "run methods in a scenario", RUN),
            ("resume", "go on with an interrupted run", RESUME),
            ("compare", "methods side by side, over seeds", COMPARE),
            ("report", "a page that shows what runs found", REPORT),
            ("explain", "why a client is in its group, in words", EXPLAIN),
            ("plot", "one figure of a run, for a paper", PLOT),
            ("watch", "the report of a run that goes on, in a browser", WATCH),
            ("suggest", "thresholds that would find a run's groups", SUGGEST),
            ("export", "write the models of a run as safetensors", EXPORT),
            ("check", "whether files of runs and exports are as they were written", CHECK),
            ("methods", "list the methods, or the settings of one", METHODS),
            ("scenarios", "list the scenarios, or the settings of one", SCENARIOS),
        )
    }
    _run(own["run"])
    own["resume"].add_argument("run", metavar="RUN", help="a run directory, or the folder of several")
    _track(own["resume"])
    _given(own["resume"])
    common(own["resume"])
    own["compare"].add_argument("runs", metavar="RUN", nargs="+", help="run directories, or folders of several")
    _json(own["compare"])
    _seen(own)
    own["suggest"].add_argument("run", metavar="RUN", help="a run directory, of any method")
    own["suggest"].add_argument("--data", metavar="DIR", help="folder of the data set's files (that of the run)")
    _given(own["suggest"])
    common(own["suggest"])
    own["export"].add_argument("run", metavar="RUN", help="a run directory, or the folder of several")
    own["export"].add_argument("--to", metavar="DIR", required=True, help="a new folder for the models")
    _given(own["export"])
    own["check"].add_argument("runs", metavar="RUN", nargs="+", help="a run directory, a folder of several, or an export")
    own["check"].add_argument(
        "--accept", action="store_true", help="write new checksums after you edited run.toml or experiment.toml"
    )
    _json(own["check"])
    own["methods"].add_argument("name", metavar="M", nargs="?", help="a method")
    own["scenarios"].add_argument("name", metavar="S", nargs="?", help="a scenario")
    return top, own


RUN = """\
Run methods in a scenario, each with each seed, and record every round.
What is not said is the demonstration's: FedAvg and split-half on digits/label-permutation.

  coterie run
  coterie run --scenario digits/label-swap --method cfl --set eps1=0.3 --seeds 3
  coterie run experiment.toml --set training.lr=0.05 --out runs/slow"""
RESUME = """\
Go on with a run, or with all runs of a folder, from the last checkpoint. The result is, bit for bit, that of a run
that was never interrupted. A finished run is left as it is."""
COMPARE = """\
Methods side by side: means over the seeds of the given runs, with 95% intervals (Student's t)."""
REPORT = """\
Write one page that shows what runs found: groups over rounds and why they changed, accuracy, similarities, clients,
costs, settings. It is made from the run directories alone, and opens in any browser without a network.

  coterie report runs/first
  coterie report runs/cfl runs/fedavg -o both.html"""
EXPLAIN = """\
Say in plain words, from the records: why groups are what they are, or why one client is in its group; which numbers were
compared, how close the decision was, and what would have changed it."""
PLOT = """\
Draw one figure of a run as PDF, PNG or SVG. Kinds: groups, accuracy, loss, similarity, criteria, traffic."""
WATCH = """\
Serve the report of a run on this machine alone, at 127.0.0.1, and refresh it while the run goes on. The address that it
prints has a token: other users of the machine see nothing without it. Ctrl-C ends it."""
SUGGEST = """\
Ask the clients of a run for updates of two halves of their data, find its groups by the split-half test, and say what
FL+HC, ACFL and CFL would have to be set to, to find the same, and how sure that is. Nothing of the run is changed."""
EXPORT = """\
Write every model that serves a client, as the newest checkpoint has it, as safetensors, and who is served by which.
Of several runs, each gets a folder inside."""
CHECK = """\
Read all files of runs and of exported models, and say what is not as it was written. Exit status 1: something is wrong. This
finds damage and careless edits; who can write the files can also write their checksums.

  coterie check runs/first
  coterie check runs/first --accept"""
METHODS = "List the methods, or the settings of one."
SCENARIOS = "List the scenarios, or the settings of one."


def _run(own: Parser) -> None:
    own.add_argument("file", metavar="FILE.toml", nargs="?", help="an experiment; options below change it")
    own.add_argument("--scenario", metavar="S", help="coterie scenarios lists them")
    own.add_argument("--method", metavar="M", action="append", help="coterie methods lists them; may be repeated")
    own.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="a setting: eps1=0.3, cfl.eps1=0.3, training.lr=0.05, scenario.clients=50; may be repeated",
    )  # fmt: skip
    own.add_argument("--rounds", metavar="R", type=whole, help="communication rounds (40)")
    own.add_argument("--seed", metavar="N", type=whole, help="the one seed to run with (0)")
    own.add_argument("--seeds", metavar="K", type=whole, help="run with the seeds 0 to K-1")
    own.add_argument("--target", metavar="A", type=real, help="stop a run when its mean accuracy reaches this")
    own.add_argument("--eval-every", metavar="N", type=whole, help="rounds between tests (1)")
    own.add_argument("--width", metavar="N", type=whole, help="clients trained in one block (what suits the model)")
    own.add_argument("--device", metavar="D", help="cpu, or a GPU: cuda, cuda:1 (cpu)")
    own.add_argument("--precision", metavar="P", help="fp32, or bf16 on processors that have it (fp32)")
    own.add_argument("--engine", metavar="E", help="inprocess, or flower for Flower's simulation (inprocess)")
    own.add_argument("--data", metavar="DIR", help="folder of the data set's files (COTERIE_DATA)")
    own.add_argument("--out", metavar="DIR", help="a new folder for the record (runs/TIME-SCENARIO)")
    own.add_argument("--estimate", action="store_true", help="say what it would take: time, memory, disk; run nothing")
    _track(own)
    _given(own)
    common(own)


def _given(own: Parser) -> None:
    own.add_argument("--trust-code", action="store_true", help="import a model that a recorded file calls package.module:Name")
    own.add_argument("--secret-file", metavar="FILE", help="file with the boundary's secret (COTERIE_SECRET)")


def _track(own: Parser) -> None:
    own.add_argument(
        "--track", metavar="TRACKER", action="append", default=[],
        help="tensorboard, mlflow or wandb, which see every round as it is recorded; may be repeated",
    )  # fmt: skip


def _seen(own: dict[str, Parser]) -> None:
    """Add the arguments of commands that show a run."""
    own["report"].add_argument("runs", metavar="RUN", nargs="+", help="run directories, or folders of several")
    own["report"].add_argument("-o", "--out", metavar="FILE", help="the page (report.html in the one RUN's folder, or here)")
    own["explain"].add_argument("run", metavar="RUN", help="a run directory")
    own["explain"].add_argument("--client", metavar="ID", type=whole, help="this client alone")
    own["explain"].add_argument("--round", metavar="R", type=whole, help="as things stood after this round (the last)")
    _json(own["explain"])
    own["plot"].add_argument("run", metavar="RUN", help="a run directory")
    own["plot"].add_argument("kind", metavar="KIND", help="groups, accuracy, loss, similarity, criteria or traffic")
    own["plot"].add_argument("-o", "--out", metavar="FILE", required=True, help="the figure: .pdf, .png or .svg")
    own["plot"].add_argument("--round", metavar="R", type=whole, help="of this round (the last that has one)")
    own["watch"].add_argument("run", metavar="RUN", help="a run directory, or the folder of several")
    own["watch"].add_argument("--port", metavar="N", type=whole, default=8642, help="0: any that is free (8642)")


def common(own: Parser) -> None:
    """Add the options that several commands have."""
    own.add_argument("--workers", metavar="W", type=whole, help="processes that train (one per core); changes no result")
    _json(own)


def _json(own: Parser) -> None:
    own.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")


def parse(argv: Sequence[str], parsers: tuple[Parser, dict[str, Parser]] | None = None) -> argparse.Namespace:
    """Parse the command line. ``--help`` and ``--version`` end the process.

    Args:
        argv: The arguments.
        parsers: The result of :func:`parser`; None to make it.

    Returns:
        The parsed arguments.

    Raises:
        UsageError: The arguments are wrong. For an unknown command or option, the message names the most similar one.
    """
    top, own = parsers or parser()
    if argv and not argv[0].startswith("-") and argv[0] not in own:
        raise UsageError(f"there is no command {argv[0]!r}{nearest(argv[0], own)} (known: {', '.join(own)})")
    found, extra = top.parse_known_args(argv)
    if extra:
        options = own[found.command].options() if found.command else top.options()
        where = f"{top.prog} {found.command}" if found.command else top.prog
        first = extra[0].partition("=")[0]
        if first.startswith("-"):
            raise UsageError(f"{where} has no option {first}{nearest(first, options)}")
        raise UsageError(f"{where} takes no {first!r} here; {where} --help says what it takes")
    if getattr(found, "seed", None) is not None and getattr(found, "seeds", None) is not None:
        raise UsageError("use just one of --seed and --seeds")
    for option in ("rounds", "seeds", "workers", "width", "eval_every"):
        value = getattr(found, option, None)
        if value is not None and value < 1:
            raise UsageError(f"--{option.replace('_', '-')} must be at least 1, got {value}")
    if (getattr(found, "seeds", None) or 0) > MOST_SEEDS:
        raise UsageError(f"--seeds must be at most {MOST_SEEDS:,}, got {found.seeds}")
    return found
