"""Tables of the papers' experiments, from the rows that are kept in docs/results/studies; :mod:`generate` puts
them in.

    python -m papers run all --out docs/results/studies     runs what is missing of the small scale
    python tools/docs/generate.py --figures                 draws notes/studies/figures anew, and rewrites
                                                            the pages
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from measured import table

from coterie.report.live import duration

sys.path.append(str(Path(__file__).resolve().parents[2]))

from papers import PAPERS, SCALES, STUDIES, Outcome, Rows, Study, outcome, scales
from papers.drawing import draw
from papers.running import complete_seeds
from papers.study import Claim

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "studies"
PAGES = ROOT / "notes" / "studies"
FIGURES = PAGES / "figures"

WORDS = {True: "yes", False: "**no**", None: "undecided"}


def outcomes(study: Study) -> Iterator[tuple[str, Outcome | int]]:
    """(scale, what came out, or how many of its runs are recorded), from the smallest scale."""
    for name, scale in scales(study.source).items():
        rows = Rows(RESULTS / f"{study.source}.{name}.jsonl")
        seeds = complete_seeds(scale, rows)
        said = outcome(study, scale, rows, seeds) if seeds else None
        yield name, said or len(rows.of(scale.cells()))


def largest(study: Study) -> Outcome | None:
    """What came out at the largest scale that was run; None if none was."""
    known = [said for _, said in outcomes(study) if isinstance(said, Outcome)]
    return max(known, key=lambda said: SCALES.index(said.scale.name), default=None)


def experiments(*names: str) -> str:
    """A row per experiment of the papers, or of those named: at the largest scale that was run."""
    lines = []
    for study in [STUDIES[name] for name in names] or STUDIES.values():
        said = largest(study)
        place = f"[{PAPERS[study.paper].partition(':')[0]}, {study.where}](../notes/studies/{study.stem}.md)"
        if said is None:
            lines.append((place, study.what, "–", "not run yet", "–", "–", "–"))
            continue
        first = said.claims[0]
        lines.append(
            (
                place,
                study.what,
                f"{first.what}: {first.printed}",
                first.ours,
                f"{said.scale.name}, {said.seeds} seed{'s' * (said.seeds > 1)}",
                said.strength,
                said.verdict,
            )
        )
    return table(("experiment", "what", "paper", "here", "scale", "strength", "verdict"), lines)


def strengths() -> str:
    """How many experiments have which strength, at the largest scale that was run, and how long all recorded rows took."""
    run = [said for study in STUDIES.values() if (said := largest(study))]
    count = Counter(said.strength for said in run)
    lines = [line for path in RESULTS.glob("*.jsonl") for line in path.read_text().splitlines()]
    hours = sum(json.loads(line)["seconds"] for line in lines) / 3600
    shares = ", ".join(
        f"{count[strength]} are {strength}" for strength in ("strong", "medium", "weak")
    )
    return f"Of {len(run)} experiments, {shares}. Together, the {len(lines):,} recorded rows took {hours:.0f} hours.\n"


def experiment(name: str) -> str:
    """All that was measured of a study, scale by scale."""
    study = STUDIES[name]
    return "\n" + "\n".join(_at_scale(study, scale, said) for scale, said in outcomes(study)) + "\n"


def _at_scale(study: Study, name: str, said: Outcome | int) -> str:
    scale, command = scales(study.source)[name], f"python -m papers run {study.name} --scale {name}"
    command += " --data DIR" if scale.needs else ""
    head = f"### Scale {name}\n\n`{command}`, about {duration(scale.seconds)}: {scale.about}.\n\n"
    if not isinstance(said, Outcome):
        recorded = f"{said} of {len(scale.cells())} runs are recorded" if said else "Not run yet"
        return f"{head}{recorded}.\n"
    claims = [
        (claim.what, claim.printed, claim.ours, _agrees(claim), claim.rule) for claim in said.claims
    ]
    parts = [table(("", "paper", "here", "agrees", "if"), claims)]
    if study.table:
        found = study.table(said.rows)
        parts.append(table(found.head, found.rows, found.align))
    parts.append(f"![{study.where}](../notes/studies/figures/{study.stem}.{name}.png)\n")
    seeds = (
        f"{said.seeds} seeds; ± is the 95 % interval of their mean"
        if said.seeds > 1
        else "one seed"
    )
    return head + "\n".join([f"**Verdict: {said.verdict}** ({seeds}).\n", *parts])


def _agrees(claim: Claim) -> str:
    return (
        WORDS[claim.holds]
        if not claim.aside
        else f"{WORDS[claim.holds].strip('*')}, not counted: {claim.aside}"
    )


def figures() -> list[Path]:
    """Draw every figure whose rows are kept."""
    return [
        path
        for study in STUDIES.values()
        for scale, said in outcomes(study)
        if isinstance(said, Outcome)
        for path in draw(study, said.rows, FIGURES / f"{study.stem}.{scale}")
    ]
