"""The command line: parses, calls, prints. Every command has a twin in Python:

``run``: :func:`coterie.begin` and its runs' ``rounds()``; ``resume``: :func:`coterie.reopen`; ``compare``:
:func:`coterie.compare`; ``report``: :func:`coterie.write_report`; ``explain``: :func:`coterie.explain`; ``plot``:
:func:`coterie.plot`; ``suggest``: :func:`coterie.suggest`; ``export``: :func:`coterie.save`; ``check``:
:func:`coterie.check`; ``--json``: :func:`coterie.summary`;
``methods`` and ``scenarios``: :data:`coterie.METHODS` and :data:`coterie.SCENARIOS`.

Exit status: 0 done, 1 a run that failed, 2 a wrong call or file, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from coterie.cli.arguments import parse, parser
from coterie.files import reason
from coterie.printable import one_line, say
from coterie.settings import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return guarded(lambda: _call(sys.argv[1:] if argv is None else argv))


def _call(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.command is None:
        say(parser()[0].format_help(), end="")
        return 0
    # Imported when it is called: help answers at once.
    module = importlib.import_module(f"coterie.cli.{'running' if arguments.command in ('run', 'resume') else 'commands'}")
    status: int = getattr(module, arguments.command)(arguments)
    return status


def guarded(call: Callable[[], int]) -> int:
    """The exit status of a command, every mistake of a user and of the surroundings in one sentence on stderr."""
    _open_streams()
    try:
        status = call()
        sys.stdout.flush()
        return status
    except UserError as error:
        return fail(str(error), 2)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except MemoryError:
        return fail("the memory is not enough for this; a smaller scenario, model or file takes less", 2)
    except BrokenPipeError:  # the reader has seen enough
        _drop(sys.stdout)
        return 0
    except OSError as error:
        if error.filename is None:  # it may be stdout's disk that is full: what is left for it cannot be written at the end
            _drop(sys.stdout)
        return fail(f"{error.filename or 'the disk'}: {reason(error)}", 2)


def note(message: str) -> None:
    """One sentence on stderr, besides the result."""
    say(f"coterie: {one_line(message)}", sys.stderr)


def _open_streams() -> None:
    """Both streams, so that whatever is written to them is no error: a terminal without Greek letters shows a question mark,
    and a stream that was closed by who called takes everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop(stream: TextIO) -> None:
    """What is written to a stream from now on, and what waits in it, goes nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fail(message: str, status: int) -> int:
    """One sentence on stderr; returns the status."""
    try:
        say(f"coterie: {one_line(message)}", sys.stderr)
    except OSError:  # there is nobody to tell, but the status
        _drop(sys.stderr)
    return status
