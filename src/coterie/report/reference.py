"""What the records of one run have to judge it by: scores of constant predictions, and the evidence for groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from coterie.core import P_VALUE
from coterie.pooling import ErrorSums
from coterie.records.shown import ClientId, Line
from coterie.report.gathered import examines_groups
from coterie.report.words import sentence


@dataclass(frozen=True)
class Reference:
    """The scores of constant predictions, as a run has recorded them.

    Attributes:
        predicts: The prediction in words; empty if it is not recorded.
        values: Client -> the main metric if the prediction is that of all clients' training data,
            where it is known.
        own_values: Client -> the same for the prediction of its own training data.
        sums: Client -> the sums of ``values``, if the main metric is pooled over clients, see
            ``coterie.pooling``.
    """

    predicts: str = ""
    values: Mapping[ClientId, float] = field(default_factory=dict)
    own_values: Mapping[ClientId, float] = field(default_factory=dict)
    sums: Mapping[ClientId, ErrorSums] = field(default_factory=dict)

    @classmethod
    def of(cls, world: Mapping[str, Any]) -> Reference:
        """Return the scores in the table ``world`` of ``run.toml``, as shown."""
        # Older runs and federations have not recorded it.
        constant = world.get("constant")
        if constant is None:
            return cls()
        # Only metrics that are pooled over clients have sums.
        sums = zip(world["clients"], constant.get("sums", ()), strict=False)
        return cls(
            predicts=constant["predicts"],
            values=_by_client(world["clients"], constant["values"]),
            own_values=_by_client(world["clients"], constant["own"]),
            sums={client: client_sums for client, client_sums in sums if client_sums},
        )


def _by_client(clients: Iterable[ClientId], scores: Iterable[float]) -> dict[ClientId, float]:
    """Return client -> score, of the scores that are known."""
    scored_clients = zip(clients, scores, strict=False)
    return {client: score for client, score in scored_clients if not isnan(score)}


@dataclass(frozen=True)
class GroupEvidence:
    """The strongest evidence for groups in the notes of a run.

    Attributes:
        p: The p-value under the hypothesis that clients are identically distributed.
        round: The round of the note.
        text: The note, as a sentence.
    """

    p: float
    round: int
    text: str


def strongest_evidence(lines: Sequence[Line]) -> GroupEvidence | None:
    """Return the note with the smallest p-value against a single group; None if there is none.

    Args:
        lines: The completed rounds, as shown.
    """
    strongest: GroupEvidence | None = None
    for line in lines:
        for note in line["notes"]:
            # Notes about a single client are no evidence for groups.
            if len(note["clients"]) < 2 or not examines_groups(note):
                continue
            p_value = min(_p_values(note), default=None)
            # Of equally strong notes the first.
            if p_value is not None and (strongest is None or p_value < strongest.p):
                strongest = GroupEvidence(p_value, line["round"], sentence(note["text"]))
    return strongest


def _p_values(note: Mapping[str, Any]) -> list[float]:
    """The p-values of a note: those that its criteria compared, as its text has them; else that in its numbers."""
    compared = [
        criterion["value"]
        for criterion in note["criteria"]
        if criterion["key"] == P_VALUE and criterion["value"] is not None
    ]
    if compared:
        return compared
    p_value = note["numbers"].get("p")
    return [] if p_value is None else [p_value]
