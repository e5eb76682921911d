"""The papers' experiments on one page: a verdict on the implementation and one on the claim, a line each."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from experiment_tables import largest
from measured import table

from papers import PAPERS, STUDIES

VERDICTS_FILE = Path(__file__).with_name("replications.toml")
VERDICTS = tomllib.loads(VERDICTS_FILE.read_text(encoding="utf-8"))
CLAIM_VERDICTS = ("holds", "holds under other settings", "does not hold", "undecided")


def verdict_of(study_name: str) -> Mapping[str, str]:
    """``claim`` and ``says`` of a study, by its name, for example ``cfl/fig1``."""
    paper, _, experiment = study_name.partition("/")
    verdict: Mapping[str, str] = VERDICTS[paper][experiment]
    return verdict


def implementations() -> str:
    """A line per paper: what the method was compared with."""
    rows = []
    for paper, title in PAPERS.items():
        rows.append((title.partition(":")[0], "agrees", VERDICTS["implementation"][paper]))
    return table(("method", "implementation", "compared with"), rows)


def replications() -> str:
    """A row per experiment: the verdict on its main claim, what was found, and the size of the run."""
    rows = []
    for name, study in STUDIES.items():
        verdict = verdict_of(name)
        place = f"{PAPERS[study.paper].partition(':')[0]}, {study.where}"
        outcome = largest(study)
        size = "not run" if outcome is None else outcome.strength
        link = f"[{place}](../notes/studies/{study.stem}.md)"
        rows.append((link, f"**{verdict['claim']}**", verdict["says"], size))
    return table(("experiment", "claim", "what was found", "evidence"), rows)


def replication_counts() -> str:
    """How many claims hold, in one sentence."""
    counts = Counter(verdict_of(name)["claim"] for name in STUDIES)
    hold, hold_elsewhere, fail, open_ = (counts[verdict] for verdict in CLAIM_VERDICTS)
    return (
        f"Of {len(STUDIES)} main claims, {hold} hold, {hold_elsewhere} hold under other settings, "
        f"{fail} do not hold, and {open_} are undecided.\n"
    )


PARTS: Mapping[str, Callable[..., str]] = {
    "implementations": implementations,
    "replications": replications,
    "replication-counts": replication_counts,
}
