"""Explanations of a run's groups in plain words, from its records alone.

They state which numbers were compared, how close each decision was, and which settings would have changed it. They need no
data and no training, and have no formulas of their own: those are in :mod:`coterie.clustering`.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from coterie.files import Folder
from coterie.records.record import finite
from coterie.report.explain import client_history, run_history
from coterie.report.explain.view import read
from coterie.settings.calls import public

WIDTH = 100
"""Columns of a line of text."""


@public
def explain(run: Folder, client: int | str | None = None, round: int | None = None) -> dict[str, Any]:
    """Return what ``coterie explain RUN --json`` prints: the run's decisions, or those that concern one client.

    docs/explain.md has the fields.

    Args:
        run: The run directory.
        client: The client's name, or its number if clients have no names, or None for the whole run.
        round: Explain the state after this round; None for the last one.

    Raises:
        UserError: If there is no such run, round or client.
    """
    history = read(Path(run), round)
    found = run_history.run_history(history) if client is None else client_history.client_history(history, client)
    result: dict[str, Any] = finite(found)
    return result


def words(run: Path | str, client: int | str | None = None, round: int | None = None, width: int = WIDTH) -> str:
    """Return the explanation as text.

    Args:
        run: The run directory.
        client: The client's name, or its number if clients have no names, or None for the whole run.
        round: Explain the state after this round; None for the last one.
        width: The greatest number of columns of a line.

    Raises:
        UserError: If there is no such run, round or client.
    """
    history = read(run, round)
    if client is None:
        paragraphs = run_history.text(history, run_history.run_history(history))
    else:
        paragraphs = client_history.text(client_history.client_history(history, client))
    return "\n".join(_wrapped(indent, paragraph, width) for indent, paragraph in paragraphs)


def _wrapped(indent: int, paragraph: str, width: int) -> str:
    first, rest = "  " * indent, "  " * (indent + 1 if indent else 0)
    return textwrap.fill(
        paragraph, max(width, 40), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
