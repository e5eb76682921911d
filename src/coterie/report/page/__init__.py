"""A run as one self-contained HTML page: a document of numbers made from its records, and a page that draws it.

The page draws by its own code, in SVG and canvas, without a plotting library. It then has 60 kB of
script instead of several megabytes, follows the reader's light, dark and print settings, works by
keyboard, and draws 1,000 clients at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie.files import Folder
from coterie.records.store import write_whole
from coterie.report.page.document import document, page
from coterie.settings import UserError
from coterie.settings.calls import public

SUFFIXES = (".html", ".htm")


@public
def write_report(
    runs: Folder | Iterable[Folder], to: Path | str, *, warn: Callable[[str], None] = warnings.warn
) -> Path:
    """Write the page of some runs to the file ``to``, completely or not at all.

    Args:
        runs: Run directories, or folders that contain some; also a single one, or the runs of
            :func:`coterie.begin`.
        to: The file to write, which ends in .html or .htm.
        warn: Receives a sentence on matrices that are missing or damaged, and so not on the page;
            by default it issues a warning.

    Returns:
        The path of the file.

    Raises:
        UserError: If one of ``runs`` is not a run directory or has no completed round, or ``to`` is
            not the name of a page.
    """
    to = checked_suffix(Path(to))
    # Matrices that cannot be read are missing on the page; the others are there.
    shown = document(runs)
    for run in shown["runs"]:
        if run["squares_lost"]:
            warn(
                f"{run['name']}: {run['squares_lost']} files of matrices cannot be read; coterie check says why"
            )
    text = page(shown)
    to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(to, text.encode())
    return to


def checked_suffix(to: Path) -> Path:
    """Return the file of a page.

    Args:
        to: The file.

    Raises:
        UserError: It does not end in .html or .htm.
    """
    if to.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in .html, got {to}")
    return to


__all__ = ["checked_suffix", "document", "page", "write_report"]
