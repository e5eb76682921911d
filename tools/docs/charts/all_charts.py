"""All charts of results; ``python -m tools.docs.charts`` writes them to docs/figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools" / "docs"))  # where the modules of the tables are

from tools.docs.charts.gaps import gap_chart  # noqa: E402
from tools.docs.charts.replications import replication_chart  # noqa: E402
from tools.docs.drawings.canvas import Drawing  # noqa: E402

CHARTS: Mapping[str, Callable[[], Drawing]] = {
    "gaps": gap_chart,
    "replications": replication_chart,
}
"""Name of a file in docs/figures -> what draws it."""


def drawn() -> dict[Path, str]:
    """Every file and its content."""
    figures = ROOT / "docs" / "figures"
    return {figures / f"{name}.svg": draw().svg() for name, draw in CHARTS.items()}
