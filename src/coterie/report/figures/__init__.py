"""Figures of a run for papers, by Matplotlib: in a journal's column or page width, readable in colour and in grey."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coterie.report.compared import same_but_seed
from coterie.report.figures import style
from coterie.report.gathered import gather
from coterie.report.summary import expand, summary
from coterie.report.words import MAX_RUNS_NAMED
from coterie.settings import UserError, known_list, nearest
from coterie.settings.calls import public

OVER_ROUNDS = ("score", "accuracy", "loss", "traffic", "time")
"""Kinds with a curve for each method, if there are several runs."""

OF_SEVERAL = (*OVER_ROUNDS, "clients")
"""Kinds that several runs can share."""

OF_A_METRIC = ("score", "time", "clients")
"""Kinds of which the metric can be chosen."""

RECORDED_KINDS = (
    "groups",
    "score",
    "clients",
    "accuracy",
    "loss",
    "similarity",
    "criteria",
    "traffic",
    "time",
)
"""Kinds that show what runs recorded."""

PARTITION = "partition"
"""The kind that shows the clients' data, which runs do not record."""

FIGURE_KINDS = (*RECORDED_KINDS, PARTITION)
FIGURE_SUFFIXES = (".pdf", ".png", ".svg")


@public
def plot(
    run: Any,
    kind: str,
    out: Path | str,
    round: int | None = None,
    *,
    metric: str = "",
    trust_code: bool = False,
    data: Path | str | None = None,
) -> Path:
    """Draw one figure of a run, or a curve for each method of several; the same records make the same file. Needs Matplotlib.

    A figure is as wide as a column of a paper, or as a page where it has several charts. Methods
    have the same colours in all figures of the same runs.

    Args:
        run: A run directory, or a folder with a single one. For ``score``, ``accuracy``, ``loss``,
            ``traffic``, ``time`` and ``clients`` also several, or a folder of several: the mean over clients,
            or the bytes. Runs that differ in their seed alone are one curve, with the 95 %
            interval. For ``partition`` also a scenario or its name, a world, a function that makes
            the world of a seed, or an experiment file.
        kind: ``groups`` (the group of each client over the rounds), ``score`` (the main metric),
            ``clients`` (a dot for each client at its last score, a strip for each method),
            ``accuracy`` or ``loss`` (of every group and its clients), ``similarity`` (the matrices
            on which decisions were based), ``criteria`` (the numbers that the method compared),
            ``traffic`` (bytes and seconds), ``time`` (the main metric by virtual time, of runs of
            ``timed``) or ``partition`` (who has how many training examples of
            which class).
        out: The file to write, a .pdf, .png or .svg.
        round: For ``similarity``, the round of the matrices; None for the last round that has one.
        metric: For ``score``, ``time`` and ``clients``, any metric that the runs recorded; empty for the main
            one.
        trust_code: For ``partition``, whether a scenario or a model that a recorded file names as
            ``package.module:Name`` may be imported.
        data: For ``partition``, the folder of the data set's files.

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
    if metric and kind not in OF_A_METRIC:
        raise UserError(f"--metric is for score, time and clients, and not for {kind}")
    style.check_installed("figures", "report")
    style.load()
    # These modules need Matplotlib.
    from coterie.report.figures import clients, drawings, partition, several

    if kind == PARTITION:
        world = partition.world_of(run, trust_code=trust_code, data=data)
        return style.write(lambda: partition.figure(world), [out])[0]
    folders = expand(run)
    if not folders:
        raise UserError("there is no run to draw: the list of runs is empty")
    if kind == "clients":
        entries = same_but_seed(summary(folder, metric=metric) for folder in folders)
        return style.write(lambda: clients.figure(entries), [out])[0]
    if len(folders) > 1 and kind not in OVER_ROUNDS:
        source = run if isinstance(run, str | os.PathLike) else "the list"
        named = ", ".join(map(str, folders[:MAX_RUNS_NAMED]))
        if len(folders) > MAX_RUNS_NAMED:
            named = f"{named}, …"
        raise UserError(
            f"{source} has {len(folders)} runs and a figure of {kind} is of one "
            f"({', '.join(OF_SEVERAL)} show several): name {named}"
        )
    gathered_runs = list(map(gather, folders))
    if len(gathered_runs) > 1 or kind == "time":
        return style.write(lambda: several.figure(gathered_runs, kind, metric), [out])[0]
    return style.write(lambda: drawings.figure(gathered_runs[0], kind, round, metric), [out])[0]
