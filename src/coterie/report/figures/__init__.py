"""Figures of a run for papers, by Matplotlib: in a journal's column or page width, readable in colour and in grey."""

from __future__ import annotations

from pathlib import Path

from coterie.files import Folder
from coterie.report.figures import style
from coterie.report.gathered import gather
from coterie.report.summary import expand
from coterie.settings import UserError, nearest
from coterie.settings.calls import public

KINDS = ("groups", "score", "accuracy", "loss", "similarity", "criteria", "traffic")
SUFFIXES = (".pdf", ".png", ".svg")


@public
def plot(run: Folder, kind: str, out: Path | str, round: int | None = None) -> Path:
    """Draw one figure of the run in directory ``run``; the same records make the same file. Needs Matplotlib.

    Args:
        run: A run directory, or a folder with a single one.
        kind: ``groups`` (the group of each client over the rounds), ``score`` (the main metric), ``accuracy`` or
            ``loss`` (of every group and its clients), ``similarity`` (the matrices on which decisions were based),
            ``criteria`` (the numbers that the method compared) or ``traffic`` (bytes and seconds).
        out: The file to write, a .pdf, .png or .svg.
        round: For ``similarity``, the round of the matrices; None for the last round that has one.

    Returns:
        The path of the file.

    Raises:
        UserError: For an unknown kind, another suffix, a folder of several runs, a run without such numbers, or a ``round``
            with another kind than ``similarity``.
    """
    out = Path(out)
    if kind not in KINDS:
        raise UserError(f"there is no figure {kind!r}{nearest(kind, KINDS)} (known: {', '.join(KINDS)})")
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in .pdf, .png or .svg, got {out}")
    if round is not None and kind != "similarity":
        raise UserError(f"--round is for similarity; {kind} is drawn over all rounds")
    style.check_installed("figures", "report")
    style.load()
    from coterie.report.figures import drawings  # needs Matplotlib

    found = gather(_single(Path(run)))
    return style.write(lambda: drawings.figure(found, kind, round), [out])[0]


def _single(folder: Path) -> Path:
    """Return the folder if it is a run directory, else the only run directory in it."""
    inside = expand([folder])
    if len(inside) > 1:
        shown = ", ".join(map(str, inside[:6])) + (", …" if len(inside) > 6 else "")
        raise UserError(f"{folder} has {len(inside)} runs and a figure is of one: name {shown}")
    return inside[0]
