"""A run as one self-contained page: a document of numbers made from its records, and a page that draws it.

The drawing is by hand, in SVG and canvas, and no plotting library is bundled: a page then has 60 kB of script in place of
some megabytes, follows the reader's light, dark and print, is worked by keyboard, and draws 1,000 clients at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie.records.store import write_whole
from coterie.report.page.document import document, page
from coterie.settings import UserError

SUFFIXES = (".html", ".htm")


def write_report(runs: Iterable[Path | str], to: Path | str, *, warn: Callable[[str], None] = warnings.warn) -> Path:
    """Write the page of run directories, or folders of several, into the file ``to``, whole or not at all; returns it.

    warn: takes a sentence on matrices that are missing or damaged, and so not on the page; a warning by default.

    Raises :class:`~coterie.settings.UserError` if one is no run directory or has no completed round, or ``to`` is no name of
    a page.
    """
    to = Path(to)
    if to.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in .html, got {to}")
    shown = document(runs)
    for run in shown["runs"]:
        if run["squares_lost"]:
            warn(f"{run['name']}: {run['squares_lost']} files of matrices cannot be read; coterie check says why")
    text = page(shown)
    to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(to, text.encode())
    return to


__all__ = ["document", "page", "write_report"]
