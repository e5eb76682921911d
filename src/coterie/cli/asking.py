"""Commands that ask something of runs: ``compare``, ``suggest``, ``export``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from coterie.cli import note
from coterie.printable import say


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a run directory does not get by itself: consent to import code, and the boundary's secret."""
    from coterie.boundary import secret_of_file

    secret = None if arguments.secret_file is None else secret_of_file(arguments.secret_file)
    return {"trust_code": arguments.trust_code, "secret": secret}


def compare(arguments: argparse.Namespace) -> int:
    from coterie.record import to_json
    from coterie.report import terminal
    from coterie.report.summary import compare as compared

    results = compared(arguments.runs)
    if arguments.json:
        say(to_json(results))
    else:
        terminal.console(sys.stdout).print(terminal.comparison(results))
    return 0


def suggest(arguments: argparse.Namespace) -> int:
    from coterie.record import to_json
    from coterie.report import suggested, terminal
    from coterie.report.live import Steps, watched
    from coterie.suggestion import EXCHANGES
    from coterie.suggestion import suggest as asked

    with Steps(watched(arguments.json), "asking the clients", EXCHANGES) as steps:
        said = asked(arguments.run, data=arguments.data, workers=arguments.workers, told=steps.step, **given(arguments))
    say(to_json(asdict(said))) if arguments.json else terminal.console(sys.stdout).print(suggested.screen(said))
    return 0


def export(arguments: argparse.Namespace) -> int:
    from coterie.export import MODELS, save
    from coterie.report.live import Steps, watched
    from coterie.runs import reopen

    with Steps(watched(), "writing models of runs", len(reopen(arguments.run))) as steps:
        to = save(arguments.run, arguments.to, told=steps.step, warn=note, **given(arguments))
        written = sorted(to.rglob(MODELS))
    files = sum(len(list(path.parent.glob("*.safetensors"))) for path in written)
    runs = f" of {len(written)} runs" if len(written) > 1 else ""
    say(f"{files} model{'' if files == 1 else 's'}{runs} written to {arguments.to}")
    return 0
