"""Explanations of a run's groups in plain words, from its records alone.

They state which numbers were compared, how close each decision was, and which settings would have
changed it. They need no data and no training, and have no formulas of their own: those are in
:mod:`coterie.clustering`.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.files import Folder
from coterie.records.record import finite
from coterie.report.explain import client_history, run_history
from coterie.report.explain.view import RunHistory, read
from coterie.settings.calls import public

WIDTH = 100
"""Columns of a line of text."""


class Explanation(dict[str, Any]):
    """The values of an explanation, by their names; as a string, and where a notebook shows it, it is the text.

    Attributes:
        text: The explanation in words.
    """

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


@public
def explain(run: Folder, client: int | str | None = None, round: int | None = None) -> Explanation:
    """Explain a run's decisions, or those that concern one client: printed it is the text that ``coterie explain`` prints.

    docs/explain.md has the fields.

    Args:
        run: The run directory.
        client: The client's name, or its number if clients have no names, or None for the whole
            run.
        round: Explain the state after this round; None for the last one.

    Returns:
        A dict of the values, which ``--json`` prints, with the text.

    Raises:
        UserError: If there is no such run, round or client.
    """
    history = read(Path(run), round)
    found = (
        run_history.run_history(history)
        if client is None
        else client_history.client_history(history, client)
    )
    return Explanation(finite(found), _text(history, found, client, WIDTH))


def words(
    run: Path | str, client: int | str | None = None, round: int | None = None, width: int = WIDTH
) -> str:
    """Return the explanation as text.

    Args:
        run: The run directory.
        client: The client's name, or its number if clients have no names, or None for the whole
            run.
        round: Explain the state after this round; None for the last one.
        width: The greatest number of columns of a line.

    Raises:
        UserError: If there is no such run, round or client.
    """
    history = read(run, round)
    found = (
        run_history.run_history(history)
        if client is None
        else client_history.client_history(history, client)
    )
    return _text(history, found, client, width)


def _text(history: RunHistory, found: dict[str, Any], client: int | str | None, width: int) -> str:
    paragraphs = run_history.text(history, found) if client is None else client_history.text(found)
    return "\n".join(_wrapped(indent, paragraph, width) for indent, paragraph in paragraphs)


def _wrapped(indent: int, paragraph: str, width: int) -> str:
    first, rest = "  " * indent, "  " * (indent + 1 if indent else 0)
    return textwrap.fill(
        paragraph,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
