"""``coterie report``: what runs found, as a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.cli import note
from coterie.printable import say


def report(arguments: argparse.Namespace) -> int:
    from coterie.report.page import write_report

    first = Path(arguments.runs[0] if len(arguments.runs) == 1 else ".")
    say(f"report written to {write_report(arguments.runs, arguments.out or first / 'report.html', warn=note)}")
    return 0
