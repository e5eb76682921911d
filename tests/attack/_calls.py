"""How attempts call Coterie: the command line within this process, with limits, and what may come of it."""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SECONDS = 20.0
"""What takes longer hangs."""

WARM = (
    "torch",
    "scipy.io",
    "sklearn.datasets",
    "matplotlib.pyplot",
    "papers",
    "coterie.runs.export",
    "coterie.contrib.suggest.suggesting",
)
"""What takes seconds to import: no attempt is to be charged with it, nor to be stopped in it."""

ROOM = 3 << 30
"""Bytes of memory that an attempt may take, beside those of this process."""


class Hangs(BaseException):
    """Raised where an attempt takes too long. No exception of a program's, so that nobody takes it for one of theirs."""


@cache
def warm() -> None:
    for module in (
        *WARM,
        "coterie.report.page",
        "coterie.report.explain",
        "coterie.report.figures.drawings",
        "coterie.runs.estimate",
    ):
        importlib.import_module(module)


@contextmanager
def at_most(seconds: float = SECONDS) -> Iterator[None]:
    """Raises an error in the body, after so many seconds."""
    warm()

    def end(number: int, frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Hangs:
        raise TimeoutError(f"no end after {seconds:.0f} seconds") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Terminal(io.TextIOWrapper):
    """A stream that says whether somebody looks."""

    looked_at = False

    def isatty(self) -> bool:
        return self.looked_at


def cli(
    words: Sequence[str], terminal: bool = False, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a call of the command line, in the present folder."""
    from coterie.cli import main

    streams = [
        _Terminal(io.BytesIO(), "utf-8", errors="surrogateescape", newline="") for _ in range(2)
    ]
    for one in streams:
        one.looked_at = terminal
    kept, saved = (sys.stdout, sys.stderr), dict(os.environ)
    os.environ.update(environment or {})
    sys.stdout, sys.stderr = streams
    try:
        with at_most():
            status = main(list(words))
    except SystemExit as exit:  # of --help
        status = int(exit.code or 0)
    finally:
        sys.stdout, sys.stderr = kept
        os.environ.clear()
        os.environ.update(saved)
    for one in streams:
        one.flush()
    out, err = (one.buffer.getvalue().decode("utf-8", "surrogateescape") for one in streams)  # type: ignore[attr-defined]
    return status, out, err


def one_sentence(status: int, out: str, err: str, unwritten: Path | None = None) -> str | None:
    """None if a call was refused as a user's mistake is: exit status 2, a line on stderr and nothing else, nothing written."""
    if status != 2:
        return f"exit status {status}, {(err or out)[:150]!r}"
    if out:
        return f"it printed {out[:100]!r}"
    if not err.startswith("coterie: ") or err.count("\n") != 1 or len(err) > 4000:
        return f"no sentence of one line but {len(err)} letters: {err[:150]!r}"
    if unwritten is not None and unwritten.exists():
        return f"{unwritten.name} was written"
    return None


def sentence(error: Exception) -> str | None:
    """None if an error is a user's, told in one line."""
    from coterie.settings import UserError

    text = str(error)
    if not isinstance(error, UserError):
        return f"{type(error).__name__}: {text[:150]}"
    return (
        None
        if text and "\n" not in text and len(text) < 4000
        else f"no sentence but {text[:100]!r}"
    )


def read_or_refused(read: Callable[[], object]) -> str | None:
    """None if reading ends, or is refused in a sentence."""
    try:
        with at_most():
            read()
    except Exception as error:
        return sentence(error)
    return None


def apart(attempt: Callable[[], str | None], room: int = ROOM) -> str | None:
    """The attempt in a process of its own, which has so much memory and no more."""
    warm()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        said: str | None = "it ended without a word"
        try:
            os.close(ours)
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + room,) * 2)
            said = attempt()
        except BaseException as error:
            said = f"{type(error).__name__}: {str(error)[:150]}"
        finally:
            os.write(theirs, json.dumps(said).encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else "it was killed"


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """With this as the present folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
