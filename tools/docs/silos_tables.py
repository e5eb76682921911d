"""Tables of few unequal sites, of what ``benchmarks/study/silos.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from result_file import read_results  # noqa: E402
from study import silos  # noqa: E402

from coterie.contrib.bench.silos import REGRESSION_KIND, SILO_KINDS  # noqa: E402

SILOS = BENCHMARKS / "results" / "silos.jsonl"
COMMAND = "python benchmarks/study/silos.py --out benchmarks/results/silos.jsonl"
NOT_YET = f"Not measured yet: `{COMMAND}` does it.\n"


def tables() -> str:
    """The default by kind of world, and the mean gaps of all methods."""
    rows = read_results(SILOS)
    return silos.summary(rows) if rows else NOT_YET


def kinds() -> str:
    """A line per kind of world: how its sites differ."""
    return "".join(f"- `{kind}`: {about}.\n" for kind, about in SILO_KINDS.items())


def found() -> str:
    """The numbers of the default in sentences, over all kinds with labels."""
    runs_of_kind = silos.by_kind(read_results(SILOS))
    runs_of_kind.pop(REGRESSION_KIND, None)
    if not runs_of_kind:
        return NOT_YET
    gaps_of_draws = []
    num_below = 0
    num_methods = 0
    for runs_of_method in runs_of_kind.values():
        gaps_of_draws += silos.gaps(runs_of_method, silos.JUDGED)
        num_below += silos.num_below(runs_of_method, silos.JUDGED)
        num_methods = len(runs_of_method)
    text = (
        f"In {len(gaps_of_draws)} simulated federations of {len(runs_of_kind)} kinds with class "
        f"labels, the mean gap of `auto` to the best of {num_methods} methods is {mean(gaps_of_draws):.3f}, the greatest "
        f"{max(gaps_of_draws):.3f}. In {num_below} of them it is more than {silos.CLOSE:g} below "
        "one model for all or training alone."
    )
    if "alike" in runs_of_kind:
        alike = runs_of_kind["alike"]
        num_false = silos.num_with_groups(alike, silos.JUDGED)
        num_alike = len(alike[silos.JUDGED])
        text += (
            " Where all sites have the same data distribution, it ended with several groups in "
            f"{num_false} of {num_alike}."
        )
    return textwrap.fill(text, 125) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "silos": tables,
    "silos-kinds": kinds,
    "silos-found": found,
}
