"""The attack campaign: attempts to break Coterie's promises, as data that a test and ``make attack`` both run.

A module of this package is one subject (run directories, replies over Flower, ...). It has

- ``POINTS``: name of a row in docs/deploy/threat-model.md -> one sentence that says what is promised;
- ``attempts(rng, folder)``: an endless, seeded iterator of :class:`Attempt`; ``folder`` is empty
  and its own.

An attempt *holds* if Coterie ends in the right result or in one sentence (``UserError``; at the
command line exit 2, no traceback). ``Attempt.run`` returns None then, and otherwise a sentence that
says what went wrong. An exception that leaves ``run`` is a failure too. Import what an attempt
needs inside of it, so that older versions of Coterie can be attacked as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    """One attempt. point: a key of the module's ``POINTS``. name: what is tried, in a few words; the same for the same seed."""

    point: str
    name: str
    run: Callable[[], str | None]

    def failure(self) -> str | None:
        """None if Coterie held, else what went wrong in one line."""
        try:
            return self.run()
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
