"""Why a run's groups are what they are, in plain words and from its records alone: which numbers were compared, how close each
decision was, and what would have changed it. No data and no training, and no formula of its own: those are
:mod:`coterie.clustering`'s."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from coterie.records.record import finite
from coterie.report.explain import client_history, story
from coterie.report.explain.view import read

WIDTH = 100
"""Columns of a line of words."""


def explain(run: Path | str, client: int | None = None, round: int | None = None) -> dict[str, Any]:
    """What ``coterie explain RUN --json`` prints: the run's decisions, or those that concern one client, as things stood after
    ``round``; docs/explain.md has the fields.

    Raises :class:`~coterie.settings.UserError` where there is no such run, round or client.
    """
    told = read(run, round)
    result: dict[str, Any] = finite(story.story(told) if client is None else client_history.client_history(told, client))
    return result


def words(run: Path | str, client: int | None = None, round: int | None = None, width: int = WIDTH) -> str:
    """The same as a text of lines of at most ``width`` columns."""
    told = read(run, round)
    paragraphs = (
        story.text(told, story.story(told))
        if client is None
        else client_history.text(told, client_history.client_history(told, client))
    )
    return "\n".join(_wrapped(indent, paragraph, width) for indent, paragraph in paragraphs)


def _wrapped(indent: int, paragraph: str, width: int) -> str:
    first, rest = "  " * indent, "  " * (indent + 1 if indent else 0)
    return textwrap.fill(
        paragraph, max(width, 40), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
