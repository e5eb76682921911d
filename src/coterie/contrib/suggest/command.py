"""The command ``coterie suggest``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from coterie.cli.arguments import Command, Parser, common, consent_options
from coterie.printable import say

DESCRIPTION = """\
Ask the clients of a run for updates of two halves of their data, find groups by the split-half test, and suggest
settings with which FL+HC, ACFL and CFL find the same groups, each with a confidence. The run does not change."""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("run", metavar="RUN", help="a run directory; any method")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set's files (the run's)")
    consent_options(parser)
    common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a suggestion; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.cli.commands import given
    from coterie.contrib.suggest.screen import screen
    from coterie.contrib.suggest.suggesting import MAX_PROBE_EXCHANGES, suggest
    from coterie.records.text_files import to_json
    from coterie.report import terminal
    from coterie.report.live import Steps, watched

    with Steps(watched(arguments.json), "probing the clients", MAX_PROBE_EXCHANGES) as steps:
        suggestion = suggest(
            arguments.run,
            data=arguments.data,
            workers=arguments.workers,
            progress=steps.step,
            **given(arguments),
        )
    if arguments.json:
        say(to_json([asdict(suggestion)]))
    else:
        terminal.console(sys.stdout).print(screen(suggestion))
    return 0


COMMAND = Command("suggest thresholds that find a run's groups", DESCRIPTION, options, run)
