"""The command line: parses arguments, calls functions, prints results.

Every command has an equivalent in Python:

``run``: :func:`coterie.begin` and its runs' ``rounds()``; ``resume``: :func:`coterie.reopen`;
``compare``: :func:`coterie.compare`; ``report``: :func:`coterie.write_report`; ``explain``:
:func:`coterie.explain`; ``plot``: :func:`coterie.plot`; ``suggest``: :func:`coterie.suggest`; ``tune``: :func:`coterie.tune`;
``bench``: :func:`coterie.bench`;
``groups``: :meth:`coterie.Run.groups` and :meth:`coterie.Run.place_waiting`;
``export``: :func:`coterie.save`; ``check``: :func:`coterie.check`; ``--json``:
:func:`coterie.summary`; ``methods`` and ``scenarios``: :data:`coterie.METHODS` and
:data:`coterie.SCENARIOS`.

Exit status: 0 for success, 1 for a failed run, 2 for a wrong call or file, 130 for an interrupted
command.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TextIO

from coterie.cli.arguments import BUILT_IN, EXTENSIONS, parse, parser
from coterie.files import reason
from coterie.printable import one_line, say
from coterie.settings import PlainWarning, UserError

READING_COMMANDS = ("compare", "explain", "methods", "report", "scenarios")
"""Commands that need no torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments; None for those of the process.

    Returns:
        The exit status.
    """
    with _interrupts(keep=argv is None), _plain_warnings():
        return guarded(lambda: _call(sys.argv[1:] if argv is None else argv))


SAME_INTERRUPT_SECONDS = 1.0
"""Seconds after an interrupt in which further ones are the same one: people press Ctrl-C twice."""


@contextmanager
def _interrupts(keep: bool) -> Iterator[None]:
    """Context in which Ctrl-C is one ``KeyboardInterrupt``, and a later one ends the process at once.

    Without it, a second Ctrl-C while the first is handled is a traceback, also when Python itself
    is about to end.

    Args:
        keep: Whether this stays so after an interrupt, because the process ends then.
    """
    # Only the main thread gets signals; and a caller's own handler stays.
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        yield
        return
    # When the first interrupt came; empty before.
    first_interrupt: list[float] = []

    def interrupted(number: int, frame: object) -> None:
        seconds_now = time.monotonic()
        if not first_interrupt:
            first_interrupt.append(seconds_now)
            raise KeyboardInterrupt
        if seconds_now - first_interrupt[0] > SAME_INTERRUPT_SECONDS:
            # The first is still being handled. Files are written whole or not at all, and workers
            # end with this process.
            if sys.stderr.isatty():
                # The cursor, which a progress bar hides.
                os.write(2, b"\x1b[?25h")
            os.write(2, b"coterie: interrupted\n")
            os._exit(130)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        ignores_interrupts = keep and first_interrupt
        signal.signal(
            signal.SIGINT, signal.SIG_IGN if ignores_interrupts else signal.default_int_handler
        )


def _call(argv: Sequence[str]) -> int:
    """Parse the arguments and call the function of the command."""
    arguments = parse(argv)
    if arguments.command is None:
        say(parser()[0].format_help(), end="")
        return 0
    if arguments.command not in BUILT_IN:
        return EXTENSIONS.find(arguments.command).run(arguments)
    if arguments.command in READING_COMMANDS:
        _delay_torch()
    # Imported on call, so that help appears immediately.
    module_name = "running" if arguments.command in ("run", "resume") else "commands"
    with _without_collections():
        module = importlib.import_module(f"coterie.cli.{module_name}")
    exit_status: int = getattr(module, arguments.command)(arguments)
    return exit_status


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Context in which a warning of Coterie's own is one sentence, as all that is said beside the result."""

    # Any other warning is shown as Python shows it.
    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if not issubclass(category, PlainWarning):
            usual_show(message, category, *place, **options)
        elif str(message) not in shown_texts:
            shown_texts.add(str(message))
            note(str(message))

    usual_show = warnings.showwarning
    shown_texts: set[str] = set()
    with warnings.catch_warnings():
        # Each once, also those that this process has printed for an earlier command.
        warnings.simplefilter("always", PlainWarning)
        warnings.showwarning = show
        yield


@contextmanager
def _without_collections() -> Iterator[None]:
    """Context without garbage collections: imports make many objects and no garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Delayed(ModuleType):
    """A module that is imported when an attribute of it is first used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _delay_torch() -> None:
    """Make ``import torch`` free until an attribute of torch is used: the import takes seconds, and reading needs no torch.

    The modules of reading commands must therefore not use torch while they are imported, nor import
    anything from it. SciPy delays its parts by itself: ``import scipy`` is free until, for example,
    ``scipy.special`` is used.
    """
    # Not importlib.util.LazyLoader: its modules are loaded by the second import statement already.
    if "torch" in sys.modules:
        return
    spec = importlib.util.find_spec("torch")
    if spec is not None:
        sys.modules["torch"] = _Delayed("torch")
        # For find_spec("torch") in other libraries.
        sys.modules["torch"].__spec__ = spec


def guarded(call: Callable[[], int]) -> int:
    """Run a command, and report each error of the user or of the system in one sentence on stderr.

    Args:
        call: The command, which returns its exit status.

    Returns:
        The exit status.
    """
    _open_streams()
    try:
        exit_status = call()
        sys.stdout.flush()
        return exit_status
    except UserError as error:
        return fail(str(error), 2)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except MemoryError:
        return fail("not enough memory; use a smaller scenario, model or file", 2)
    except BrokenPipeError:
        # The reader has closed the pipe.
        _drop(sys.stdout)
        return 0
    except RuntimeError as error:
        # The module imports PyTorch: a command that has not imported it has no such error.
        engine = sys.modules.get("coterie.engines.workers")
        if engine is None or not isinstance(error, engine.EngineError):
            raise
        return fail(str(error), 1)
    except OSError as error:
        # The disk of stdout may be full: then its buffer cannot be written at the end.
        if error.filename is None:
            _drop(sys.stdout)
        return fail(f"{error.filename or 'the disk'}: {reason(error)}", 2)


def note(message: str) -> None:
    """Print one sentence on stderr, besides the result."""
    say(f"coterie: {one_line(message)}", sys.stderr)


def _open_streams() -> None:
    """Make stdout and stderr accept all output.

    A terminal without Greek letters shows a question mark, and a stream that the caller has closed
    is replaced by one that discards its output.
    """
    for stream_name in ("stdout", "stderr"):
        if getattr(sys, stream_name) is None:
            setattr(sys, stream_name, open(os.devnull, "w"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, stream_name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop(stream: TextIO) -> None:
    """Discard the buffer of a stream and all later output to it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fail(message: str, exit_status: int) -> int:
    """Print one sentence on stderr.

    Args:
        message: The sentence.
        exit_status: The exit status.

    Returns:
        The exit status.
    """
    try:
        say(f"coterie: {one_line(message)}", sys.stderr)
    except OSError:
        # stderr cannot be written; only the exit status shows the error.
        _drop(sys.stderr)
    return exit_status
