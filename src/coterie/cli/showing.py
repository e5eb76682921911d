"""``coterie report`` and ``coterie watch``: what runs found, as a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.settings import UserError

SUFFIXES = (".html", ".htm")


def report(arguments: argparse.Namespace) -> int:
    from coterie.report.page import document, page
    from coterie.store import write_whole

    out = _where(arguments)
    text = page(document(arguments.runs))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, text.encode())
    print(f"report written to {out}")
    return 0


def _where(arguments: argparse.Namespace) -> Path:
    """The file that was named; or report.html in the folder of the one run, or here for several."""
    if arguments.out is None:
        return Path(arguments.runs[0] if len(arguments.runs) == 1 else ".") / "report.html"
    out = Path(arguments.out)
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in .html, got {arguments.out}")
    return out
