"""``coterie run`` and ``coterie resume``: make the rounds that are asked for or missing, then print the result."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli import fail
from coterie.files import reason
from coterie.printable import printable, say
from coterie.settings import UserError, in_shell

if TYPE_CHECKING:
    from coterie.report.live import Live
    from coterie.report.live_page import LivePage
    from coterie.runs.estimate import Estimate
    from coterie.runs.experiment import Experiment, Spec
    from coterie.runs.run import Run


MODEL_KEYS = ("model", "scenario.model")
"""Keys of the model for --set. A model that is named there is the user's own choice."""

PLAIN_OPTIONS = (
    "rounds",
    "target",
    "eval_every",
    "eval_clients",
    "validation_share",
    "stop_after",
    "workers",
    "width",
    "device",
    "precision",
    "engine",
    "address",
    "data",
)
"""Options that are settings of an experiment of the same name."""

MAX_TREES = 4
"""Most runs for which trees are drawn; if there are more, they are only compared."""


def run(arguments: argparse.Namespace) -> int:
    """The command ``run``."""
    from coterie.boundary import secret_of_environment
    from coterie.cli.commands import given
    from coterie.runs.experiment import make, normal, read
    from coterie.runs.folders import begin_new
    from coterie.runs.set_option import assign, presets_first

    # A tracker that is missing is an error before anything else is done.
    _tracking(arguments.track)
    consent = given(arguments)
    secret = consent["secret"]
    trusts_code = consent["trust_code"] or any(
        setting.partition("=")[0].strip() in MODEL_KEYS for setting in arguments.set
    )
    # The file, then the options, then --set; the later one counts.
    spec = normal({})
    if arguments.file:
        spec = read(arguments.file, trust_code=trusts_code, secret=secret)
    spec = options(arguments, spec)
    for setting in presets_first(arguments.set):
        spec = assign(spec, setting)
    # The secret of a rotation comes from a file, or from the environment; it stands in no setting.
    boundary = spec["boundary"]
    needs_secret = boundary.get("rotation", "none") != "none" and "secret" not in boundary
    if secret is None and needs_secret:
        secret = secret_of_environment()
    if secret is not None:
        spec["boundary"] = {**boundary, "secret": secret}
    experiment = make(spec)
    folder = Path(arguments.out) if arguments.out else _new_folder(experiment.scenario)
    # An estimate runs nothing, and makes no folder.
    if arguments.estimate:
        return show(experiment, folder, arguments.json)
    runs = begin_new(experiment, folder)
    # Say how long it will take, then train.
    announce(experiment, folder)
    return _carry_out(runs, folder, arguments)


def options(arguments: argparse.Namespace, spec: Spec) -> Spec:
    """Change an experiment by the options of the command line.

    Settings of the scenario in a file stay, and so do settings of a method that an option names
    again.

    Args:
        arguments: The parsed arguments.
        spec: The experiment's tables; they stay as they are.

    Returns:
        The changed tables.
    """
    from coterie.methods._named import CLASS

    spec = dict(spec)
    # The name of the scenario changes; its settings in the file stay.
    if arguments.scenario:
        spec["scenario"] = {**spec["scenario"], "name": arguments.scenario}
    if arguments.method:
        # A method that the file has keeps its settings.
        method_tables = []
        for method_name in named_once(arguments.method):
            tables_of_file = []
            for table in spec["methods"]:
                if method_name in (table["name"], table.get(CLASS)):
                    tables_of_file.append(table)
            method_tables += tables_of_file or [{"name": method_name}]
        spec["methods"] = method_tables
        # What the user names himself needs no further consent.
        if "origin" in spec:
            spec["origin"] = dataclasses.replace(spec["origin"], chosen=tuple(arguments.method))
    for key in PLAIN_OPTIONS:
        if getattr(arguments, key) is not None:
            spec[key] = getattr(arguments, key)
    # --seeds K stands for several seeds, --seed N for one.
    if arguments.seeds is not None:
        spec["seeds"] = list(range(arguments.seeds))
    if arguments.seed is not None:
        spec["seeds"] = [arguments.seed]
    return spec


def named_once(method_names: Sequence[str]) -> Sequence[str]:
    """Return the methods of ``--method``; one that is named twice would run once.

    Args:
        method_names: The names in their order.

    Raises:
        UserError: A name is given twice.
    """
    for position, name in enumerate(method_names):
        if name in method_names[:position]:
            raise UserError(
                f"--method {name} is given twice: give it once; for runs with several seeds, use --seeds, and for other "
                "settings of the same method an experiment file"
            )
    return method_names


def _new_folder(scenario: str) -> Path:
    """A folder in ``runs`` that does not exist, with the time and the scenario in its name."""
    folder_name = f"{time.strftime('%Y%m%d-%H%M%S')}-{scenario.replace('/', '-').replace(':', '-')}"
    folder = Path("runs", folder_name)
    attempt = 2
    while folder.exists():
        folder = Path("runs", f"{folder_name}-{attempt}")
        attempt += 1
    return folder


def resume(arguments: argparse.Namespace) -> int:
    """The command ``resume``."""
    from coterie.cli.commands import given
    from coterie.runs.folders import reopen
    from coterie.runs.run import changed_versions

    _tracking(arguments.track)
    runs = reopen(arguments.run, **given(arguments), address=arguments.address)
    # A finished run may still have rounds that no tracker has.
    if all(run.finished() for run in runs):
        _track(runs, arguments.track)
        if arguments.json:
            _print_json(runs)
        else:
            rounds = max(run.record.lines()[-1]["round"] for run in runs)
            say(f"{arguments.run} is finished ({rounds} rounds); there is nothing to do")
        return 0
    # Each change once, though several runs may have it.
    changes: dict[str, None] = {}
    for run in runs:
        if not run.finished():
            changes |= dict.fromkeys(changed_versions(run))
    for change in changes:
        say(
            f"coterie: {printable(change)}; the last digits of further rounds may differ",
            sys.stderr,
        )
    return _carry_out(runs, Path(arguments.run), arguments)


class _NoTracking:
    """What follows runs without ``--track``: nothing."""

    def __enter__(self) -> _NoTracking:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def follow(self, folder: Path) -> None:
        """Do nothing after a round."""


def _tracking(
    names: Sequence[str],
    tell: Callable[[str], None] = warnings.warn,
    wait: Callable[[str], None] | None = None,
) -> Any:
    """The context in which trackers follow runs; trackers that cannot be used are refused at once."""
    if not names:
        return _NoTracking()
    from coterie.extensions import provided

    return provided("coterie.hooks", "tracking")(names, tell, wait)


def _track(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Track the rounds of finished runs that are not tracked yet."""
    with _tracking(names, lambda text: say(f"coterie: {text}", sys.stderr)) as tracking:
        for run in runs:
            tracking.follow(run.folder)


def _carry_out(runs: Sequence[Run], folder: Path, arguments: argparse.Namespace) -> int:
    """Finish the unfinished runs, then print the result."""
    from coterie.engines.workers import EngineError
    from coterie.records.round_line import line_of_round
    from coterie.records.shown import Shown
    from coterie.report.live import Live, watched

    # Runs of one experiment differ by their folders.
    run_names = [f"{run.folder.name}" if len(runs) > 1 else run.method.name for run in runs]
    try:
        with (
            Live(watched(arguments.json), run_names, runs[0].experiment.rounds) as live,
            _tracking(arguments.track, live.tell, wait=live.note) as tracking,
            _live_page(arguments.watch, folder, live) as live_page,
        ):
            # One run after the other; each round is shown, tracked and reported when it ends.
            for run_number, run in enumerate(runs):
                live.begin(run_number, len(run.record.lines()))
                shown_world = None
                for finished_round in run.rounds(arguments.workers):
                    if shown_world is None:
                        world_table = run.record.description()["world"]
                        shown_world = Shown.of(world_table)
                        listed = world_table["clients"] if "all_clients" in world_table else None
                    line = line_of_round(finished_round, listed)
                    live.show(run_number, shown_world.line(line))
                    tracking.follow(run.folder)
                    live_page.update()
                live.end(run_number)
                tracking.follow(run.folder)
    # The record has every finished round, so each of these ends can be continued.
    except KeyboardInterrupt:
        return fail(f"interrupted; {_to_continue(arguments, runs[0], folder)}", 130)
    except EngineError as error:
        return fail(f"{run.folder}: {error}{_keep_details(run, error.details)}", 1)
    except OSError as error:
        return fail(
            f"{error.filename or folder}: {reason(error)}; {_to_continue(arguments, runs[0], folder)}",
            1,
        )
    _print_json(runs) if arguments.json else _print_report(runs, folder)
    return 0


class _LivePage:
    """The report that ``--watch`` keeps up to date; without ``--watch`` it does nothing."""

    def __init__(self, folder: Path | None, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.page: LivePage | None = None
        # Making pages takes long to import.
        if folder is not None:
            from coterie.report.live_page import LivePage

            self.page = LivePage([folder], folder / "report.html")

    def update(self, reloads: bool = True) -> None:
        """Write the page; a page that cannot be made ends no run."""
        if self.page is None:
            return
        try:
            self.page.update(reloads)
        except UserError as error:
            self.tell(f"the report is no longer updated: {error}")
            self.page = None


@contextmanager
def _live_page(wanted: bool, folder: Path, live: Live) -> Iterator[_LivePage]:
    """The page during the runs of a folder; at the end, also by an interrupt, it no longer reloads itself."""
    # The page exists before the first round, so that it can be opened at once.
    live_page = _LivePage(folder if wanted else None, live.tell)
    if wanted:
        live_page.update()
        live.tell(f"open {folder / 'report.html'} in a browser; it shows each round when it ends")
    try:
        yield live_page
    finally:
        live_page.update(reloads=False)


def _to_continue(arguments: argparse.Namespace, run: Run, folder: Path) -> str:
    """The end of a sentence that says how a run continues which has stopped."""
    from coterie.methods._named import place_of

    options_to_repeat = [f" --track {name}" for name in arguments.track]
    if arguments.watch:
        options_to_repeat.append(" --watch")
    if arguments.address:
        options_to_repeat.append(f" --address {arguments.address}")
    # A name with a colon stands for code: package.module:Name.
    has_own_code = ":" in run.experiment.setup.model or ":" in run.experiment.scenario
    if has_own_code or place_of(type(run.method)) or run.experiment.training.own_code:
        options_to_repeat.append(" --trust-code")
    if arguments.secret_file:
        options_to_repeat.append(f" --secret-file {in_shell(arguments.secret_file)}")
    return f"to continue, run coterie resume {in_shell(folder)}{''.join(options_to_repeat)}"


def _keep_details(run: Run, details: str) -> str:
    """Save the traceback of a failed run, and return the end of a sentence that names its file."""
    from coterie.records.store import write_whole

    if not details:
        return ""
    write_whole(run.folder / "failure.txt", printable(details, keep="\n").encode(errors="replace"))
    return f"; details in {run.folder / 'failure.txt'}"


def _print_json(runs: Sequence[Run]) -> None:
    """Print the summary of each run as JSON."""
    from coterie.records.text_files import to_json
    from coterie.report.summary import summary

    say(to_json([summary(run.folder) for run in runs]))


def _print_report(runs: Sequence[Run], folder: Path) -> None:
    """Print the groups, the results of each method, the verdict, and what else a user must know."""
    from rich.text import Text

    from coterie.records.ending import Ending
    from coterie.report import terminal
    from coterie.report.compared import side_by_side
    from coterie.report.limits import refused_sentence
    from coterie.report.ranking import contests
    from coterie.report.setting_differences import labels_of_runs
    from coterie.report.summary import summary
    from coterie.report.trials import read
    from coterie.report.verdict import paragraphs, verdict

    # The trees of a few runs, then one table of all, then the verdict.
    summaries = [summary(run.folder) for run in runs]
    console = terminal.console(sys.stdout)
    if len(runs) <= MAX_TREES:
        for run, label in zip(runs, labels_of_runs(summaries), strict=True):
            console.print(Text.assemble((label, "bold"), f" seed {run.seed}"))
            console.print(terminal.tree(run.record.shown()[1]))
            console.print()
    # With several seeds, the means over them.
    if len({run.seed for run in runs}) > 1:
        console.print(terminal.comparison(side_by_side(summaries)))
    else:
        console.print(terminal.table(summaries))
    # One verdict for all runs over the same scenario.
    for contest in contests(read(run.folder) for run in runs):
        texts = [
            Text(text, style="yellow" if is_warning else "")
            for text, is_warning in paragraphs(verdict(contest), is_comparison=len(runs) > 1)
        ]
        console.print(Text(""), *texts, sep="\n") if texts else console.print()
    # Which runs stopped early.
    for run in runs:
        ending = Ending.of(*run.record.shown())
        if ending.stopped and ending.best is not None:
            best = ending.best
            say(
                f"\n{run.folder.name} stopped: no better {best.metric} than {best.score:.3f} in round {best.round}"
            )
    # What limits refused, and the privacy that was spent.
    for run, result in zip(runs, summaries, strict=True):
        record_lines = run.record.shown()[1]
        refusals = refused_sentence(record_lines)
        if refusals:
            say(f"\n{run.folder.name}: {printable(refusals)}")
        privacy = result["privacy"]
        if privacy is not None:
            say(f"\n{run.folder.name}: {privacy['words']}")
    say(f"\nrecorded in {folder}")


# ----------------------------------------------------------------------------------------------------
# Estimates before a run begins: ``coterie run --estimate``, and one line before a long run.


MIN_ANNOUNCED_SECONDS = 60.0
"""Duration in seconds from which on a run is announced."""

MAX_ESTIMATE_SECONDS = 2.0
"""Most seconds that the estimate before a run may take."""


class TimeUp(BaseException):
    """Raised by :func:`within`. It is not an ``Exception``, so that no handler in the body catches it by mistake."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Context manager that limits the time of its body.

    There is no limit on systems without such a timer, and outside of the main thread.

    Args:
        seconds: The limit.

    Yields:
        None.

    Raises:
        TimeUp: The body has reached the limit.
    """
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    # The handler of the timer's signal.
    def end(number: int, frame: object) -> None:
        raise TimeUp

    earlier_handler = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier_handler)


def show(experiment: Experiment, folder: Path, as_json: bool) -> int:
    """Print the estimate of each method and of all runs; nothing is run or written.

    Args:
        experiment: The experiment.
        folder: The folder into which the runs would be written.
        as_json: Whether to print JSON.

    Returns:
        The exit status.
    """
    from rich.table import Table

    from coterie.records.text_files import to_json
    from coterie.report import terminal
    from coterie.report.live import duration
    from coterie.runs.estimate import estimate, together

    # Mistakes first, as before a run.
    experiment.check_calendar()
    estimates = estimate(_ready(experiment))
    run_count = len(estimates) * len(experiment.seeds)
    estimate_of_all = together(estimates, len(experiment.seeds))
    if as_json:
        method_rows = [dataclasses.asdict(row) for row in estimates]
        say(
            to_json(
                [
                    {
                        "runs": run_count,
                        "methods": method_rows,
                        "all": dataclasses.asdict(estimate_of_all),
                    }
                ]
            )
        )
        return 0
    # A row for each method, and one for all runs together.
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column_name in ("method", "time", "memory", "disk", "exchanges", "tasks", "evaluations"):
        table.add_column(column_name, justify="left" if column_name == "method" else "right")
    rows = [*estimates, estimate_of_all] if run_count > 1 else estimates
    for row in rows:
        row_name = f"all {run_count} runs" if row is estimate_of_all else row.method
        table.add_row(
            row_name,
            duration(row.seconds),
            terminal.size(row.memory),
            terminal.size(row.disk),
            f"{round(row.exchanges):,}",
            f"{round(row.asked):,}",
            f"{round(row.evaluations):,}",
        )
    terminal.console(sys.stdout).print(table)
    place_note = ", on this machine alone" if experiment.engine == "ray" else ""
    say(f"\nestimated, each method with one seed{place_note}; nothing was run")
    for shortage in shortages(estimate_of_all, folder):
        say(f"coterie: {shortage}", sys.stderr)
    return 0


def announce(experiment: Experiment, folder: Path) -> None:
    """Print, before a long run and only in a terminal, what the run will need and which resources are too small.

    Nothing is printed if the estimate fails or takes more than :data:`MAX_ESTIMATE_SECONDS` seconds: a run
    neither waits longer for it nor fails because of it.

    Args:
        experiment: The experiment.
        folder: The folder into which the runs are written.
    """
    from coterie.report import terminal
    from coterie.report.live import duration

    # A cluster's time and memory cannot be measured here.
    if not sys.stderr.isatty() or experiment.engine == "ray":
        return
    sentences: list[str] = []
    # The run itself reports mistakes of the user.
    with suppress(Exception, TimeUp), within(MAX_ESTIMATE_SECONDS):
        from coterie.runs.estimate import estimate, together

        total = together(estimate(_ready(experiment)), len(experiment.seeds))
        if total.seconds > MIN_ANNOUNCED_SECONDS:
            needs = f"{terminal.size(total.memory)} of memory, {terminal.size(total.disk)} on disk"
            sentences.append(f"about {duration(total.seconds)}, {needs}")
        sentences += shortages(total, folder)
    for sentence in sentences:
        say(f"coterie: {sentence}", sys.stderr)


def shortages(total: Estimate, folder: Path) -> Sequence[str]:
    """A sentence for each of disk and memory of which there is less than the runs need.

    Args:
        total: The estimate for all runs.
        folder: The folder into which the runs are written.

    Returns:
        The sentences.
    """
    from coterie.files import available_memory
    from coterie.report.terminal import size

    # The folder itself may not exist before the run: its nearest parent that exists is on the disk
    # that the records will be on.
    existing_folder = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    free_bytes = shutil.disk_usage(existing_folder).free
    free_memory = available_memory()
    sentences = []
    if free_bytes < total.disk:
        sentences.append(
            f"{existing_folder} has {size(free_bytes)} free, and the records may take {size(total.disk)}: "
            "choose another folder with --out"
        )
    if free_memory < total.memory:
        sentences.append(
            f"{size(free_memory)} of memory are free, and the runs may take {size(total.memory)}: use fewer --workers"
        )
    return sentences


def _ready(experiment: Experiment) -> Experiment:
    """The experiment with the data folder that a run would use."""
    from coterie.runs.experiment import data_folder

    return dataclasses.replace(experiment, data=data_folder(experiment.data))
