"""All commands except ``run`` and ``resume``: queries on runs, exports, and lists of methods and scenarios."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli import note
from coterie.cli.arguments import UsageError
from coterie.printable import say
from coterie.settings import UserError, documented

if TYPE_CHECKING:
    from coterie.report.compared import Comparison


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments that only the user can give for a run directory: permission to import code, and the boundary's secret."""
    from coterie.boundary import secret_of_file

    secret = None if arguments.secret_file is None else secret_of_file(arguments.secret_file)
    return {"trust_code": arguments.trust_code, "secret": secret}


def compare(arguments: argparse.Namespace) -> int:
    """The command ``compare``."""
    from rich.text import Text

    from coterie.records.text_files import to_json
    from coterie.report import terminal
    from coterie.report.client_results import client_rows
    from coterie.report.compared import compare as compared

    # The same function as in Python; only the form of the output differs.
    by_examples = arguments.by == "examples"
    if arguments.against is not None or arguments.clients or arguments.classic:
        for option, is_given in (
            ("--metric", arguments.metric),
            ("--by", by_examples),
            ("--best-round", arguments.best_round),
        ):
            if is_given:
                raise UsageError(
                    f"{option} changes the table alone: use it without --against, --clients and --classic"
                )
    if arguments.columns is not None and arguments.table is None:
        raise UsageError("--columns is for a table: add --markdown, --latex or --csv")
    # Of several forms of output, all but one would be lost.
    forms = {
        "--against": arguments.against is not None,
        "--clients": arguments.clients,
        "--classic": arguments.classic,
    }
    given_forms = [option for option, is_given in forms.items() if is_given]
    if arguments.table is not None:
        given_forms.append(f"--{arguments.table}")
    if len(given_forms) > 1:
        raise UsageError(f"use only one of {' and '.join(given_forms)}")
    if arguments.json and arguments.table is not None:
        raise UsageError(f"use only one of --json and --{arguments.table}")
    results = compared(
        arguments.runs,
        metric=arguments.metric,
        by=arguments.by,
        best_round=arguments.best_round,
    )
    if arguments.against is not None:
        differences = results.against(arguments.against)
        say(to_json(differences) if arguments.json else str(differences))
    elif arguments.classic:
        _classic(results, arguments)
    elif arguments.clients:
        if arguments.json:
            say(to_json(client_rows(results, results.labels())))
        else:
            terminal.console(sys.stdout).print(terminal.client_tables(results))
    elif arguments.json:
        say(to_json(results))
    elif arguments.table is not None:
        columns = arguments.columns.split(",") if arguments.columns else ()
        table = results.to_table(arguments.table, columns, spread=arguments.spread)
        say(table.rstrip("\n"))
    else:
        terminal.console(sys.stdout).print(terminal.comparison(results))
        if by_examples:
            say("\nMeans of metrics are over test examples: a client counts by how many it has.")
        # Which method to use, where there are several; that is by the main metric after the last
        # round, and by clients.
        if arguments.metric or by_examples or arguments.best_round:
            return 0
        if len(results) > 1:
            for verdict in results.verdicts():
                clients = terminal.clients_by_method(verdict)
                if clients is not None:
                    terminal.console(sys.stdout).print(Text(""), clients)
        if len(results) > 1 and (sentences := results.verdict()):
            terminal.console(sys.stdout).print(Text(f"\n{sentences}"))
    return 0


def _classic(results: Comparison, arguments: argparse.Namespace) -> None:
    """Print how methods compare with classic models, which are trained now."""
    from rich.text import Text

    from coterie.records.text_files import to_json
    from coterie.report import terminal
    from coterie.report.live import Steps, watched

    num_clients = max(entry["clients"] for entry in results)
    with Steps(watched(), "training classic models", 2 * num_clients) as steps:
        references = results.classic(trust_code=arguments.trust_code, step=steps.step)
    if arguments.json:
        say(to_json(references))
    else:
        terminal.console(sys.stdout).print(Text(str(references)))


def groups(arguments: argparse.Namespace) -> int:
    """The command ``groups``."""
    from coterie.records.text_files import to_json
    from coterie.runs.folders import reopen
    from coterie.runs.placing_waiting import without_placement

    if arguments.batch is not None and not arguments.place_waiting:
        raise UsageError("--batch is for --place-waiting")
    runs = reopen(arguments.run, **given(arguments))
    if len(runs) > 1:
        raise UsageError(f"{arguments.run} has {len(runs)} runs: name one of them")
    run = runs[0]
    if arguments.place_waiting:
        placed_clients = run.place_waiting(batch=arguments.batch or 1000, workers=arguments.workers)
    else:
        placed_clients = without_placement(run)
    try:
        placed_clients.write(arguments.out)
    except OSError as error:
        raise UserError(f"{arguments.out} cannot be written: {error.strerror}") from error
    num_clients = sum(map(len, placed_clients.groups))
    if arguments.json:
        numbers = {
            "clients": num_clients,
            "groups": len(placed_clients.groups),
            "placed": placed_clients.placed,
            "without": len(placed_clients.without),
        }
        say(to_json([numbers]))
        return 0
    if arguments.place_waiting:
        say(
            f"{placed_clients.placed:,} clients placed, {len(placed_clients.without):,} did not answer"
        )
    say(
        f"{num_clients:,} clients in {len(placed_clients.groups):,} groups written to {arguments.out}"
    )
    return 0


def export(arguments: argparse.Namespace) -> int:
    """The command ``export``."""
    from coterie.report.live import Steps, watched
    from coterie.runs.export import MODELS_FILE, PLACEMENT_FILE, SHARED_FILE, save
    from coterie.runs.folders import reopen

    consent = given(arguments)
    num_runs = len(reopen(arguments.run, **consent))
    with Steps(watched(), "writing models of runs", num_runs) as steps:
        export_folder = save(
            arguments.run,
            arguments.to,
            progress=steps.step,
            warn=note,
            default=arguments.default,
            read_data=not arguments.without_data,
            best_round=arguments.best_round,
            **consent,
        )
    # One models.json per run; the tensors that models share are no model.
    model_lists = sorted(export_folder.rglob(MODELS_FILE))
    num_models = 0
    for model_list in model_lists:
        for model_file in model_list.parent.glob("*.safetensors"):
            num_models += model_file.name not in (SHARED_FILE, PLACEMENT_FILE)
    of_runs = f" of {len(model_lists)} runs" if len(model_lists) > 1 else ""
    say(f"{num_models} model{'' if num_models == 1 else 's'}{of_runs} written to {arguments.to}")
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """The command ``predict``."""
    from coterie.records.text_files import to_json
    from coterie.runs.predicting import predict as predicted

    predictions = predicted(
        arguments.export,
        arguments.file,
        arguments.client,
        group=arguments.group,
        **given(arguments),
    )
    for caution in predictions.cautions:
        note(f"{arguments.file}: {caution}")
    if not predictions.is_calibrated and predictions.classes is not None:
        note(f"the model is not calibrated: {arguments.export} has no temperature for it")
    if arguments.out is not None:
        try:
            predictions.write(arguments.out)
        except OSError as error:
            raise UserError(f"{arguments.out} cannot be written: {error.strerror}") from error
        say(f"{len(predictions.values)} predictions written to {arguments.out}")
    elif arguments.json:
        say(to_json(predictions.rows()))
    else:
        say(predictions.to_csv().rstrip("\n"))
    return 0


def place(arguments: argparse.Namespace) -> int:
    """The command ``place``."""
    from coterie.records.text_files import to_json
    from coterie.runs.placing import place as placed

    placement = placed(
        arguments.export, arguments.file, labels=arguments.labels, **given(arguments)
    )
    for caution in placement.cautions:
        note(f"{arguments.file}: {caution}")
    say(to_json(asdict(placement)) if arguments.json else str(placement))
    return 0


# ----------------------------------------------------------------------------------------------------
# ``coterie check``: the integrity of files.


def check(arguments: argparse.Namespace) -> int:
    """The command ``check``; the exit status is 1 if a file is damaged."""
    from coterie.records.text_files import to_json
    from coterie.runs.checking import accept
    from coterie.runs.checking import check as checked

    if arguments.accept:
        # All folders, before a word is printed.
        accepted_files: list[Path] = []
        for folder in arguments.runs:
            accepted_files += accept(folder)
        for path in () if arguments.json else accepted_files:
            say(f"{path} is accepted")
    findings = [checked(folder) for folder in arguments.runs]
    if arguments.json:
        say(to_json([asdict(finding) for finding in findings]))
    for finding in () if arguments.json else findings:
        for verdict in ("intact", "unchecked", "damaged"):
            for sentence in getattr(finding, verdict):
                say(f"{verdict + ':':<11}{sentence}")
        result = "DAMAGED" if finding.damaged else "intact"
        say(f"{finding.folder}: {result}; digest {finding.digest}")
    return 1 if any(finding.damaged for finding in findings) else 0


# ----------------------------------------------------------------------------------------------------
# ``coterie explain``: the reasons why a client is in its group, in words.


def explain(arguments: argparse.Namespace) -> int:
    """The command ``explain``."""
    from coterie.records.text_files import to_json
    from coterie.report import explain as why

    question = {"client": arguments.client, "round": arguments.round}
    if arguments.json:
        say(to_json([why.explain(arguments.run, **question)]))
    else:
        # Text for people is as wide as the terminal, up to a width that can be read.
        columns = why.WIDTH
        if sys.stdout.isatty():
            columns = shutil.get_terminal_size((why.WIDTH, 24)).columns
        say(why.words(arguments.run, **question, width=min(columns, why.WIDTH)))
    return 0


# ----------------------------------------------------------------------------------------------------
# ``coterie methods`` and ``coterie scenarios``: lists of the methods and scenarios.


def methods(arguments: argparse.Namespace) -> int:
    """The command ``methods``."""
    from coterie.methods import METHODS, method_class
    from coterie.methods._presets import presets_of
    from coterie.report import listing
    from coterie.report.console import console

    screen = console(sys.stdout)
    if arguments.name is None:
        screen.print(
            listing.names(
                {name: listing.first_line(method_type) for name, method_type in METHODS.items()}
            )
        )
        return 0
    method_type = method_class(arguments.name)
    say(f"{arguments.name}: {listing.first_line(method_type)}\n")
    # Some methods have no settings, for example local training alone.
    if documented(method_type):
        screen.print(listing.settings(method_type))
    else:
        say("It has no settings.")
    # What each preset sets, as --set and files take it.
    for preset_name, preset_settings in presets_of(method_type).items():
        say(f"\npreset={preset_name}: {listing.assignments(preset_settings)}")
    return 0


def scenarios(arguments: argparse.Namespace) -> int:
    """The command ``scenarios``."""
    from coterie.data.scenario import SCENARIO_PARTS, SCENARIOS, Scenario, find
    from coterie.report import listing
    from coterie.report.console import console

    screen = console(sys.stdout)
    if arguments.name is None:
        screen.print(listing.names({name: scenario.about for name, scenario in SCENARIOS.items()}))
        return 0
    scenario = SCENARIOS.get(arguments.name) or find(arguments.name)
    say(f"{arguments.name}: {scenario.about}\n")
    if not isinstance(scenario, Scenario):
        say("It is called with the seed, and has no settings.")
        return 0
    screen.print(listing.settings(scenario, hidden=("training", "about")))
    # The settings of each part, as in a file: the table's name, then its settings.
    for part_name in SCENARIO_PARTS:
        scenario_part = getattr(scenario, part_name)
        say(f"\n{part_name}")
        screen.print(listing.settings(scenario_part, called={scenario_part.main: part_name}))
    say("\ntraining")
    screen.print(listing.settings(scenario.training))
    return 0


# ----------------------------------------------------------------------------------------------------
# ``coterie plot``: one figure of a run, for a paper.


def plot(arguments: argparse.Namespace) -> int:
    """The command ``plot``."""
    from coterie.report.figures import PARTITION
    from coterie.report.figures import plot as drawn

    source: Any = arguments.runs
    # A scenario, a file or a folder; several runs differ in their methods alone.
    if arguments.kind == PARTITION:
        source = arguments.runs[0]
    figure_file = drawn(
        source,
        arguments.kind,
        arguments.out,
        arguments.round,
        metric=arguments.metric,
        trust_code=arguments.trust_code,
        data=arguments.data,
    )
    say(f"figure written to {figure_file}")
    return 0


# ----------------------------------------------------------------------------------------------------
# ``coterie report``: the results of runs as a page.


def report(arguments: argparse.Namespace) -> int:
    """The command ``report``."""
    from coterie.report.page import write_report

    folder = Path(arguments.runs[0] if len(arguments.runs) == 1 else ".")
    page = Path(arguments.out or folder / "report.html")
    if arguments.follow:
        _follow(arguments.runs, page)
    else:
        write_report(arguments.runs, page, warn=note)
    say(f"report written to {page}")
    return 0


def _follow(runs: Sequence[str], page: Path) -> None:
    """Write the page of runs after each of their rounds, until they end or the user interrupts."""
    from coterie.report.live_page import LivePage

    live_page = LivePage(map(Path, runs), page)
    live_page.update()
    if not live_page.ended:
        note(f"open {page} in a browser; press Ctrl-C to stop")
        live_page.follow()
