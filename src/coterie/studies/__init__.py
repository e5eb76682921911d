"""Studies: every experiment of the four papers, by one command, beside the numbers that the papers print.

``coterie studies`` lists them, ``coterie study NAME`` runs one; in Python, :data:`STUDIES` and :func:`carry_out`. A study is
a row of :data:`STUDIES`, its settings a file in ``settings/``; where it comes from is the docstring of its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.settings import UserError, nearest
from coterie.studies import acfl, cfl, cfl_bounds, cfl_learning, cfl_toys, flhc, flhc_curves, hcct, hcct_patterns
from coterie.studies.reading import scales as scales
from coterie.studies.running import Outcome as Outcome
from coterie.studies.running import carry_out as carry_out
from coterie.studies.running import outcome as outcome
from coterie.studies.store import Rows as Rows
from coterie.studies.study import SCALES as SCALES
from coterie.studies.study import Claim as Claim
from coterie.studies.study import Resources as Resources
from coterie.studies.study import Scale as Scale
from coterie.studies.study import Study as Study
from coterie.studies.study import Table as Table

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
        for each in (cfl_toys, cfl_bounds, cfl, cfl_learning, flhc, flhc_curves, hcct_patterns, hcct, acfl)
        for study in each.STUDIES
    }
)
"""Name -> study, by paper and in the order of its figures and tables."""


def find(name: str) -> Study:
    """The study called ``name``; raises :class:`UserError` with the nearest known name."""
    if name not in STUDIES:
        raise UserError(f"there is no study {name!r}{nearest(name, STUDIES)}; coterie studies lists them")
    return STUDIES[name]
