"""Commands that ask something of runs: ``compare``, ``suggest``, ``export``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict


def compare(arguments: argparse.Namespace) -> int:
    from coterie.record import to_json
    from coterie.report import terminal
    from coterie.report.summary import compare as compared

    results = compared(arguments.runs)
    if arguments.json:
        print(to_json(results))
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
        said = asked(arguments.run, data=arguments.data, workers=arguments.workers, told=steps.step)
    print(to_json(asdict(said))) if arguments.json else terminal.console(sys.stdout).print(suggested.screen(said))
    return 0


def export(arguments: argparse.Namespace) -> int:
    from coterie.export import MODELS, save
    from coterie.report.live import Steps, watched
    from coterie.runs import reopen

    with Steps(watched(), "writing models of runs", len(reopen(arguments.run))) as steps:
        written = sorted(save(arguments.run, arguments.to, told=steps.step).rglob(MODELS))
    files = sum(len(list(path.parent.glob("*.safetensors"))) for path in written)
    runs = f" of {len(written)} runs" if len(written) > 1 else ""
    print(f"{files} model{'' if files == 1 else 's'}{runs} written to {arguments.to}")
    return 0
