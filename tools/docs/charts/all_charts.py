"""All charts of results; ``python -m tools.docs.charts`` writes them to docs/figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools" / "docs"))  # where the modules of the tables are
sys.path.append(str(ROOT / "benchmarks"))

from tools.docs.charts.comparison import comparison_chart  # noqa: E402
from tools.docs.charts.decisions import decision_chart  # noqa: E402
from tools.docs.charts.drift import drift_chart  # noqa: E402
from tools.docs.charts.fleet import fleet_chart  # noqa: E402
from tools.docs.charts.gaps import gap_chart  # noqa: E402
from tools.docs.charts.growth import growth_chart  # noqa: E402
from tools.docs.charts.personal import personal_chart  # noqa: E402
from tools.docs.charts.published import published_chart  # noqa: E402
from tools.docs.charts.replications import replication_chart  # noqa: E402
from tools.docs.charts.scale import scale_chart  # noqa: E402
from tools.docs.charts.shifts import shift_chart  # noqa: E402
from tools.docs.charts.speed import speed_chart  # noqa: E402
from tools.docs.charts.split_half import split_half_chart  # noqa: E402
from tools.docs.drawings.canvas import Drawing  # noqa: E402

CHARTS: Mapping[str, Callable[[], Drawing]] = {
    "comparison": comparison_chart,
    "decisions": decision_chart,
    "drift": drift_chart,
    "fleet": fleet_chart,
    "gaps": gap_chart,
    "growth": growth_chart,
    "personal": personal_chart,
    "published": published_chart,
    "replications": replication_chart,
    "scale": scale_chart,
    "shifts": shift_chart,
    "speed": speed_chart,
    "split-half": split_half_chart,
}
"""Name of a file in docs/figures -> what draws it."""


def drawn() -> dict[Path, str]:
    """Every file and its content."""
    figures = ROOT / "docs" / "figures"
    return {figures / f"{name}.svg": draw().svg() for name, draw in CHARTS.items()}
