"""The command line: parses, calls, prints. Every command has a twin in Python:

``run``: :func:`coterie.begin` and its runs' ``rounds()``; ``resume``: :func:`coterie.reopen`; ``compare``:
:func:`coterie.compare`; ``report``: :func:`coterie.write_report`; ``explain``: :func:`coterie.explain`; ``plot``:
:func:`coterie.plot`; ``suggest``: :func:`coterie.suggest`; ``export``: :func:`coterie.save`; ``--json``:
:func:`coterie.summary`; ``methods`` and ``scenarios``: :data:`coterie.METHODS` and :data:`coterie.SCENARIOS`;
``studies`` and ``study``: :data:`coterie.studies.STUDIES` and :func:`coterie.studies.carry_out`.

Exit status: 0 done, 1 a run that failed, 2 a wrong call or file, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from coterie.arguments import parse, parser
from coterie.settings import UserError

COMMANDS = {
    "run": "running", "resume": "running", "compare": "asking", "suggest": "asking", "export": "asking",
    "report": "showing", "watch": "watching", "plot": "plotting", "explain": "explaining",
    "methods": "listing", "scenarios": "listing", "studies": "listing", "study": "listing",
    "completion": "completing",
}  # fmt: skip
"""Command -> the module of this package with the function of its name. Imported when it is called: help answers at once."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters shows a question mark
            stream.reconfigure(errors="replace")
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.command is None:
            print(parser()[0].format_help(), end="")
            return 0
        module = importlib.import_module(f"coterie.cli.{COMMANDS[arguments.command]}")
        status: int = getattr(module, arguments.command)(arguments)
        sys.stdout.flush()
        return status
    except UserError as error:
        return fail(str(error), 2)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return fail(f"{error.filename or 'the disk'}: {(error.strerror or str(error)).lower()}", 2)


def fail(message: str, status: int) -> int:
    """One sentence on stderr; returns the status."""
    print(f"coterie: {' '.join(message.split())}", file=sys.stderr)
    return status
