"""The files of a bench: tables in Markdown and LaTeX, the numbers as JSON, and the critical-difference diagram."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from coterie.contrib.bench.benching import Bench
from coterie.contrib.bench.ranking import cliques
from coterie.contrib.bench.tables import against_table, ranking_table, verdict
from coterie.records.store import write_whole
from coterie.records.text_files import to_json

DIAGRAM_SUFFIXES = (".pdf", ".svg")


def written(result: Bench, folder: Path) -> list[Path]:
    """Write the results of a suite; the diagram only if Matplotlib is installed.

    Args:
        result: The results.
        folder: The folder.

    Returns:
        The files, named by the suite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    num_worlds = len(result.compared.worlds)
    contents = {".json": to_json(result.plain(), indent=1)}
    for form, suffix in (("markdown", ".md"), ("latex", ".tex")):
        texts = [ranking_table(result.standings, num_worlds, form)]
        comment = "% " if form == "latex" else ""
        for comparisons in result.judged:
            if comparisons:
                texts += [f"{comment}{verdict(comparisons)}\n", against_table(comparisons, form)]
        contents[suffix] = "\n".join(texts)
    paths = []
    for suffix, content in contents.items():
        path = folder / f"{result.suite}{suffix}"
        write_whole(path, content.encode())
        paths.append(path)
    if importlib.util.find_spec("matplotlib") is not None and len(result.compared.methods) > 1:
        # It needs Matplotlib.
        from coterie.contrib.bench.diagram import draw

        judged = tuple(comparisons[0].method for comparisons in result.judged if comparisons)
        ranked_cliques = cliques(result.compared)
        paths += [
            draw(ranked_cliques, folder / f"{result.suite}{end}", judged)
            for end in DIAGRAM_SUFFIXES
        ]
    return paths
