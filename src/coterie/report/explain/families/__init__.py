"""The meaning of each method's notes, with one module per family of methods.

A method without a family is explained by the words of its notes: :mod:`.plain`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from coterie.methods import METHODS
from coterie.report.explain.families import cfl, choosing, hcct, placing, split_half, weighing
from coterie.report.explain.families.linkage import ACFL, FLHC
from coterie.report.explain.families.plain import ABOUT, Plain
from coterie.report.explain.view import Explanation, NoteView


class Family(Protocol):
    """The explanations of a family of methods."""

    def about(self, settings: dict[str, Any]) -> str:
        """Return how the method decides, in two or three sentences."""
        ...

    def decision(self, view: NoteView) -> Explanation:
        """Explain a note: the numbers that it compared."""
        ...

    def member(self, view: NoteView, client: int) -> Explanation:
        """Explain a note for one of its clients."""
        ...


FAMILIES: Mapping[str, Family] = {
    "cfl": cfl, "split-half": split_half, "flhc": FLHC, "acfl": ACFL, "hcct": hcct, "hcct-e": hcct, "hcct-p": hcct,
    "ifca": choosing, "flsc": choosing, "maxfl": weighing, "fedfa": weighing, **{name: Plain(name) for name in ABOUT},
}  # fmt: skip
"""Method -> the explanations of its notes."""


def of(method: str) -> Family:
    """Return the family of a method; :class:`~coterie.report.explain.families.plain.Plain` if it has none."""
    return FAMILIES.get(method) or Plain(method)


def decision(view: NoteView) -> Explanation:
    """Explain a note: the numbers compared, how close they were, and what would have changed the decision."""
    found = placing.decision(view) if view.kind in placing.KINDS else of(view.story.method).decision(view)
    return found.within(_limits(view))


def member(view: NoteView, client: int) -> Explanation:
    """Explain a note for one client that it concerns."""
    found = placing.decision(view) if view.kind in placing.KINDS else of(view.story.method).member(view, client)
    return found.within(_limits(view))


def _limits(view: NoteView) -> dict[str, Mapping[str, Any]]:
    """Return the limits of each setting of the method."""
    cls = METHODS.get(view.story.method)
    return {} if cls is None else {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
