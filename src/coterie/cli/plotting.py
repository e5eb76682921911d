"""``coterie plot``: one figure of a run, for a paper."""

from __future__ import annotations

import argparse

from coterie.printable import say


def plot(arguments: argparse.Namespace) -> int:
    from coterie.report.figures import plot as drawn

    out = drawn(arguments.run, arguments.kind, arguments.out, arguments.round)
    say(f"figure written to {out}")
    return 0
