"""``coterie completion``: a script by which a shell completes commands, options, files, and the names that options take."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from coterie.arguments import SHELLS, UsageError, parser
from coterie.printable import say

FILES = {"FILE", "FILE.toml"}
FOLDERS = {"DIR", "RUN"}
"""Metavars of what lies on the disk."""


def completion(arguments: argparse.Namespace) -> int:
    import shtab

    if arguments.shell not in SHELLS:
        raise UsageError(f"SHELL must be one of {', '.join(SHELLS)}, got {arguments.shell!r}")
    top, own = parser()
    known = names()
    for command, one in own.items():
        for action in one._actions:
            action.choices = known.get(f"{command}.{action.dest}", known.get(action.dest))
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if action.metavar in FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    say(shtab.complete(top, shell=arguments.shell))
    return 0


def names() -> Mapping[str, Iterable[Any]]:
    """The values that there are for an argument, by its name, or by command and name where commands differ."""
    from coterie.experiment import ENGINES
    from coterie.local.precision import PRECISIONS
    from coterie.methods import METHODS
    from coterie.report.figures import KINDS
    from coterie.scenario import SCENARIOS
    from coterie.studies import SCALES, STUDIES
    from coterie.track.known import TRACKERS

    return {
        "method": tuple(METHODS),
        "scenario": tuple(SCENARIOS),
        "precision": PRECISIONS,
        "engine": ENGINES,
        "device": ("cpu", "cuda"),
        "track": tuple(TRACKERS),
        "shell": SHELLS,
        "methods.name": tuple(METHODS),
        "scenarios.name": tuple(SCENARIOS),
        "study.names": (*STUDIES, "all"),
        "study.scale": SCALES,
        "plot.kind": KINDS,
    }
