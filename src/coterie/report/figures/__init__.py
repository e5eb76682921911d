"""Figures of a run for papers, by Matplotlib: in a journal's column or page width, readable in colour and in grey."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.records.record import RUN
from coterie.report.gathered import Gathered, gather
from coterie.report.summary import expand
from coterie.settings import UserError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("groups", "accuracy", "loss", "similarity", "criteria", "traffic")
SUFFIXES = (".pdf", ".png", ".svg")


def plot(run: Path | str, kind: str, out: Path | str, round: int | None = None) -> Path:
    """Draw one figure of the run in directory ``run``; the same records make the same file. Needs Matplotlib.

    Args:
        run: A run directory, or a folder with a single one.
        kind: ``groups`` (the group of each client over the rounds), ``accuracy`` or ``loss`` (of every group and its
            clients), ``similarity`` (the matrices on which decisions were based), ``criteria`` (the numbers that the method
            compared) or ``traffic`` (bytes and seconds).
        out: The file to write, a .pdf, .png or .svg.
        round: For ``similarity``, the round of the matrices; None for the last round that has one.

    Returns:
        The path of the file.

    Raises:
        UserError: For an unknown kind, another suffix, a folder of several runs, a run without such numbers, or a ``round``
            with another kind than ``similarity``.
    """
    from coterie.report.figures import style

    out = Path(out)
    if kind not in KINDS:
        raise UserError(f"there is no figure {kind!r}{nearest(kind, KINDS)} (known: {', '.join(KINDS)})")
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in .pdf, .png or .svg, got {out}")
    if round is not None and kind != "similarity":
        raise UserError(f"--round is for similarity; {kind} is drawn over all rounds")
    style.check_installed("figures", "report")
    gathered = gather(_single(Path(run)))
    return style.write(_maker(kind, gathered, round), [out])[0]


def _maker(kind: str, run: Gathered, round: int | None) -> Callable[[], Figure]:
    from coterie.report.figures import criteria, curves, groups, heat

    makers: dict[str, Callable[[], Figure]] = {
        "groups": lambda: groups.figure(run),
        "similarity": lambda: heat.figure(run, round),
        "criteria": lambda: criteria.figure(run),
        "traffic": lambda: curves.traffic(run),
    }
    return makers.get(kind, lambda: curves.figure(run, kind))


def _single(folder: Path) -> Path:
    """Return the folder if it is a run directory, else the only run directory in it."""
    if (folder / RUN).is_file():
        return folder
    inside = expand([folder])
    if len(inside) > 1:
        shown = ", ".join(str(one) for one in inside[:6]) + (", …" if len(inside) > 6 else "")
        raise UserError(f"{folder} has {len(inside)} runs and a figure is of one: name {shown}")
    return inside[0]
