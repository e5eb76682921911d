"""``coterie plot``: one figure of a run, for a paper."""

from __future__ import annotations

import argparse


def plot(arguments: argparse.Namespace) -> int:
    from coterie.report.figures import plot as drawn

    out = drawn(arguments.run, arguments.kind, arguments.out, arguments.round)
    print(f"figure written to {out}")
    return 0
