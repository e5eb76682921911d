"""What each method's notes mean, one module per family of methods. A method that has none here explains itself by the words
of its notes: :mod:`.plain`."""

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
    """about: how the method decides, in two or three sentences. decision: what a note compared. member: what it says of one of
    its clients."""

    def about(self, settings: dict[str, Any]) -> str: ...

    def decision(self, told: NoteView) -> Explanation: ...

    def member(self, told: NoteView, client: int) -> Explanation: ...


FAMILIES: Mapping[str, Family] = {
    "cfl": cfl, "split-half": split_half, "flhc": FLHC, "acfl": ACFL, "hcct": hcct, "hcct-e": hcct, "hcct-p": hcct,
    "ifca": choosing, "flsc": choosing, "maxfl": weighing, "fedfa": weighing, **{name: Plain(name) for name in ABOUT},
}  # fmt: skip
"""Method -> what its notes mean."""


def of(method: str) -> Family:
    return FAMILIES.get(method) or Plain(method)


def decision(told: NoteView) -> Explanation:
    """What a note compared, how close it was, and what would have changed it."""
    found = placing.decision(told) if told.kind in placing.KINDS else of(told.story.method).decision(told)
    return found.within(_limits(told))


def member(told: NoteView, client: int) -> Explanation:
    """The same of one client, whom the note concerns."""
    found = placing.decision(told) if told.kind in placing.KINDS else of(told.story.method).member(told, client)
    return found.within(_limits(told))


def _limits(told: NoteView) -> dict[str, Mapping[str, Any]]:
    """Setting of the method -> its limits."""
    cls = METHODS.get(told.story.method)
    return {} if cls is None else {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
