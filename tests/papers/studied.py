"""What tests of studies share: one worker, and the verdicts on rows."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.engines.workers import Hardware
from papers import STUDIES
from papers.study import Resources, Row

ALONE = Resources(hardware=Hardware(workers=1))


def holds(name: str, rows: Sequence[Row]) -> list[bool | None]:
    """Whether each of a study's claims holds of rows, in their order."""
    return [claim.holds for claim in STUDIES[name].claims(rows)]
