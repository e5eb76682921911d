"""The console on which commands print: plain text and rich's styles. This module needs no records, so lists appear at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import IO, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from coterie.printable import printable

WIDTH_OF_FILES = 160
"""Columns of text that is not written to a terminal."""


class _Console(Console):
    """A console that shows plain text: no markup, and no control sequences except those of rich's own styles."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # rich would end the process with an error


def console(stream: IO[str]) -> Console:
    """Return a console on ``stream``.

    Its width is COLUMNS, if that is set. Otherwise it is the terminal's width, or 160 columns if
    ``stream`` is not a terminal, so that rows stay on one line.

    Args:
        stream: The stream to write to.
    """
    # The user's COLUMNS comes first, if it is a sensible number.
    columns = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else WIDTH_OF_FILES
    if re.fullmatch("[1-9][0-9]{0,4}", columns):
        width = int(columns)
    # rich would trust any value of these variables.
    environment = dict(os.environ)
    environment.pop("COLUMNS", None)
    environment.pop("LINES", None)
    return _Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, _environ=environment
    )
