"""What a verdict is measured by, as the records of one run have it: a constant prediction, and the evidence for groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from coterie.pooling import ErrorSums
from coterie.records.record import Line
from coterie.records.shown import ClientId
from coterie.report.gathered import aside
from coterie.report.words import sentence


@dataclass(frozen=True)
class Reference:
    """The scores of constant predictions, as a run has recorded them.

    Attributes:
        predicts: The prediction in words; empty if it is not recorded.
        values: Client -> the main metric of the prediction of all clients' training data, where it
            is known.
        own: Client -> that of its own training data, where it is known.
        sums: Client -> the sums of the former, if the main metric is pooled over clients, see
            ``coterie.pooling``.
    """

    predicts: str = ""
    values: Mapping[ClientId, float] = field(default_factory=dict)
    own: Mapping[ClientId, float] = field(default_factory=dict)
    sums: Mapping[ClientId, ErrorSums] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Reference:
        """The scores in the table ``world`` of ``run.toml``, as shown."""
        known = facts.get("constant")
        if known is None:
            return cls()
        tables = [
            {
                client: value
                for client, value in zip(facts["clients"], known[name], strict=False)
                if not isnan(value)
            }
            for name in ("values", "own")
        ]
        values, own = tables
        sums = dict(zip(facts["clients"], known.get("sums", ()), strict=False))
        return cls(
            known["predicts"], values, own, {client: each for client, each in sums.items() if each}
        )


@dataclass(frozen=True)
class Evidence:
    """The strongest evidence for groups in the notes of a run.

    Attributes:
        p: The p-value of clients that differ as much as these if all are alike.
        round: The round of the note.
        text: The note, as a sentence.
    """

    p: float
    round: int
    text: str


def strongest_evidence(lines: list[Line]) -> Evidence | None:
    """Return the note with the least p-value of all clients of a group being alike; None if there is none.

    Args:
        lines: The completed rounds, as shown.
    """
    found: list[Evidence] = []
    for line in lines:
        for note in line["notes"]:
            if len(note["clients"]) < 2 or aside(note):
                continue
            of_tests = [
                one["value"]
                for one in note["criteria"]
                if one["name"].startswith("p ") and one["sign"] == "<"
            ]
            known = [p for p in (note["numbers"].get("p"), *of_tests) if p is not None]
            if known:
                found.append(Evidence(min(known), line["round"], sentence(note["text"])))
    return min(found, key=lambda one: one.p, default=None)
