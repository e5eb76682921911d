"""All drawings and where each of them is kept."""

from __future__ import annotations

from pathlib import Path

from tools.docs.drawings.canvas import ROOT
from tools.docs.drawings.choose import choose
from tools.docs.drawings.concepts import (
    concept_auto,
    concept_groups,
    concept_round,
    concept_split_half,
)
from tools.docs.drawings.deployment import deployment
from tools.docs.drawings.idea import idea
from tools.docs.drawings.logo import logos
from tools.docs.drawings.methods import METHOD_DRAWINGS
from tools.docs.drawings.privacy import privacy_levels

FIGURES = ROOT / "docs" / "figures"
STATIC = ROOT / "docs" / "_static"

DRAWINGS = {
    "idea": idea,
    "concept-round": concept_round,
    "concept-groups": concept_groups,
    "concept-split-half": concept_split_half,
    "concept-auto": concept_auto,
    "choose": choose,
    "deployment": deployment,
    "privacy-levels": privacy_levels,
    **{f"method-{name}": draw for name, draw in METHOD_DRAWINGS.items()},
}
"""Name of a file in docs/figures/ -> what draws it."""


def drawn() -> dict[Path, str]:
    """Every file and its content."""
    figures = {FIGURES / f"{name}.svg": draw().svg() for name, draw in DRAWINGS.items()}
    marks = {STATIC / name: text for name, text in logos().items()}
    return figures | marks
