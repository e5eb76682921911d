"""What there is to choose from: ``methods``, ``scenarios``, ``studies``; and ``study``, which carries one out."""

from __future__ import annotations

import argparse
import sys

from coterie.printable import say
from coterie.settings import documented


def methods(arguments: argparse.Namespace) -> int:
    from coterie.methods import METHODS, method_class
    from coterie.report import listing, terminal

    console = terminal.console(sys.stdout)
    if arguments.name is None:
        console.print(listing.names({name: listing.first_line(cls) for name, cls in METHODS.items()}))
        return 0
    cls = method_class(arguments.name)
    say(f"{arguments.name}: {listing.first_line(cls)}\n")
    if documented(cls):
        console.print(listing.settings(cls))
    else:
        say("It has no settings.")
    return 0


def scenarios(arguments: argparse.Namespace) -> int:
    from coterie.report import listing, terminal
    from coterie.scenario import SCENARIOS, find

    console = terminal.console(sys.stdout)
    if arguments.name is None:
        console.print(listing.names({name: scenario.about for name, scenario in SCENARIOS.items()}))
        return 0
    scenario = find(arguments.name)
    say(f"{arguments.name}: {scenario.about}\n")
    console.print(listing.settings(scenario, hidden=("training", "about")))
    say("\ntraining")
    console.print(listing.settings(scenario.training))
    return 0


def studies(arguments: argparse.Namespace) -> int:
    from coterie.studies import command

    return command.listed(arguments)


def study(arguments: argparse.Namespace) -> int:
    from coterie.studies import command

    return command.study(arguments)
