"""Figures of a run for papers, by Matplotlib: in a journal's column or page width, readable in colour and in grey."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from coterie.files import Folder
from coterie.report.figures import style
from coterie.report.gathered import gather
from coterie.report.summary import expand
from coterie.report.words import MAX_RUNS_NAMED
from coterie.settings import UserError, known_list, nearest
from coterie.settings.calls import public

OVER_ROUNDS = ("score", "accuracy", "loss", "traffic")
"""Kinds that several runs can share: a curve for each method."""

FIGURE_KINDS = ("groups", "score", "accuracy", "loss", "similarity", "criteria", "traffic")
FIGURE_SUFFIXES = (".pdf", ".png", ".svg")


@public
def plot(
    run: Folder | Iterable[Folder], kind: str, out: Path | str, round: int | None = None
) -> Path:
    """Draw one figure of a run, or a curve for each method of several; the same records make the same file. Needs Matplotlib.

    Args:
        run: A run directory, or a folder with a single one. For ``score``, ``accuracy``, ``loss``
            and ``traffic`` also several, or a folder of several: the mean over clients, or the
            bytes. Runs that differ in their seed alone are one curve, with the 95 % interval.
        kind: ``groups`` (the group of each client over the rounds), ``score`` (the main metric),
            ``accuracy`` or ``loss`` (of every group and its clients), ``similarity`` (the matrices
            on which decisions were based), ``criteria`` (the numbers that the method compared) or
            ``traffic`` (bytes and seconds).
        out: The file to write, a .pdf, .png or .svg.
        round: For ``similarity``, the round of the matrices; None for the last round that has one.

    Returns:
        The path of the file.

    Raises:
        UserError: For an unknown kind, another suffix, several runs with a kind that shows one, a
            run without such numbers, or a ``round`` with another kind than ``similarity``.
    """
    out = Path(out)
    if kind not in FIGURE_KINDS:
        raise UserError(
            f"there is no figure {kind!r}{nearest(kind, FIGURE_KINDS)}{known_list(FIGURE_KINDS)}"
        )
    if out.suffix.lower() not in FIGURE_SUFFIXES:
        raise UserError(f"--out must end in .pdf, .png or .svg, got {out}")
    if round is not None and kind != "similarity":
        raise UserError(f"--round is for similarity; {kind} is drawn over all rounds")
    style.check_installed("figures", "report")
    style.load()
    # These modules need Matplotlib.
    from coterie.report.figures import drawings, several

    folders = expand(run)
    if not folders:
        raise UserError("there is no run to draw: the list of runs is empty")
    if len(folders) > 1 and kind not in OVER_ROUNDS:
        source = run if isinstance(run, str | os.PathLike) else "the list"
        named = ", ".join(map(str, folders[:MAX_RUNS_NAMED]))
        if len(folders) > MAX_RUNS_NAMED:
            named = f"{named}, …"
        raise UserError(
            f"{source} has {len(folders)} runs and a figure of {kind} is of one "
            f"({', '.join(OVER_ROUNDS)} show several): name {named}"
        )
    gathered_runs = list(map(gather, folders))
    if len(gathered_runs) > 1:
        return style.write(lambda: several.figure(gathered_runs, kind), [out])[0]
    return style.write(lambda: drawings.figure(gathered_runs[0], kind, round), [out])[0]
