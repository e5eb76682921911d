"""Studies: every experiment of the four papers, by one command, beside the numbers that the papers print.

``python -m papers list`` lists them, ``python -m papers run NAME`` runs one; in Python,
:data:`STUDIES` and :func:`carry_out`. A study is a row of :data:`STUDIES`, its settings a file in
``settings/``; where it comes from is the docstring of its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.settings import UserError, nearest
from papers import (
    acfl,
    cfl,
    cfl_bounds,
    cfl_learning,
    cfl_toys,
    flhc,
    flhc_curves,
    hcct,
    hcct_patterns,
)
from papers.reading import scales as scales
from papers.running import Outcome as Outcome
from papers.running import carry_out as carry_out
from papers.running import outcome as outcome
from papers.store import Rows as Rows
from papers.study import SCALES as SCALES
from papers.study import Claim as Claim
from papers.study import Resources as Resources
from papers.study import Scale as Scale
from papers.study import Study as Study
from papers.study import Table as Table

PAPERS: Mapping[str, str] = MappingProxyType(
    {
        "cfl": "CFL: Sattler, Müller, Samek, IEEE TNNLS 2020, arXiv 1910.01991",
        "flhc": "FL+HC: Briggs, Fan, Andras, IJCNN 2020, arXiv 2004.11791",
        "hcct": "HCCT: Sun, Kountouris, Zhang, arXiv 2401.13236",
        "acfl": "ACFL: Filippakopoulos, Kastaniotis, Theocharatos, Vassalos, Irida Labs, HETiA",
    }
)

STUDIES: Mapping[str, Study] = MappingProxyType(
    {
        study.name: study
        for each in (
            cfl_toys,
            cfl_bounds,
            cfl,
            cfl_learning,
            flhc,
            flhc_curves,
            hcct_patterns,
            hcct,
            acfl,
        )
        for study in each.STUDIES
    }
)
"""Name -> study, by paper and in the order of its figures and tables."""


def find(name: str) -> Study:
    """The study called ``name``; raises :class:`UserError` with the nearest known name."""
    if name not in STUDIES:
        raise UserError(
            f"there is no study {name!r}{nearest(name, STUDIES)}; python -m papers list lists them"
        )
    return STUDIES[name]
