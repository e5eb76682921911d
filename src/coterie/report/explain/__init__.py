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
from coterie.records.shown import ClientId
from coterie.records.text_files import finite
from coterie.report import screen
from coterie.report.explain import client_history, run_history
from coterie.report.explain.view import RunHistory, read
from coterie.settings.calls import public

WIDTH = 100
"""Columns of a line of text."""

MIN_WIDTH = 40
"""The least number of columns of a line of text."""


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

    notes/explain.md has the fields.

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
    values = _values(history, client)
    # JSON has no infinite numbers.
    return Explanation(finite(values), _text(history, values, client, WIDTH))


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
    return _text(history, _values(history, client), client, width)


def _values(history: RunHistory, client: ClientId | None) -> dict[str, Any]:
    """Return the values of the explanation of a run, or of one of its clients."""
    if client is None:
        return run_history.run_history(history)
    return client_history.client_history(history, client)


def _text(history: RunHistory, values: dict[str, Any], client: ClientId | None, width: int) -> str:
    """Return the explanation with these values as text."""
    width = max(width, MIN_WIDTH)
    screen_lines = []
    if client is None:
        # What a person reads first; the reasons follow.
        name = _wrapped(0, run_history.name_of_run(values), width)
        screen_lines = [name, *screen.lines(values["screen"], width), ""]
        paragraphs = run_history.text(history, values)
    else:
        paragraphs = client_history.text(values)
    paragraph_lines = [_wrapped(indentation, text, width) for indentation, text in paragraphs]
    return "\n".join([*screen_lines, *paragraph_lines])


def _wrapped(indentation: int, text: str, width: int) -> str:
    """Return a paragraph as lines; those after the first are indented one step more, if it is indented at all."""
    further_indentation = indentation + 1 if indentation else 0
    return textwrap.fill(
        text,
        width,
        initial_indent="  " * indentation,
        subsequent_indent="  " * further_indentation,
        break_long_words=False,
        break_on_hyphens=False,
    )
