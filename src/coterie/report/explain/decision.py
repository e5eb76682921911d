"""A decision in words: the criteria of its note, how close each was, and the settings that would have changed it.

It is the same for every method: a method states its criteria in its notes
(:class:`coterie.core.Criterion`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.core import Criterion, Sign
from coterie.methods import METHODS
from coterie.records.shown import ClientId
from coterie.report.explain.view import NoteView
from coterie.report.page.charts import measure
from coterie.report.words import sentence, short

REVERSED: Mapping[bool, Mapping[Sign, Sign]] = {
    True: {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    False: {"<": ">", "<=": ">=", ">": "<", ">=": "<="},
}
"""Whether a criterion held -> its sign -> how its bound must then compare with its value for the
opposite outcome."""


@dataclass(frozen=True)
class Change:
    """A change of a setting that would have been necessary: to ``sign value``.

    Attributes:
        setting: The name of the setting.
        sign: How its new value must compare with ``value``.
        value: The bound of its new value.
        was: Its value in the run.
    """

    setting: str
    sign: Sign
    value: float
    was: Any

    def words(self) -> str:
        """Return the change in words."""
        was = short(self.was) if isinstance(self.was, float) else str(self.was)
        if isinstance(self.value, int):
            return f"{self.setting} {self.value} {'or more' if self.sign == '>=' else 'or fewer'} (it was {was})"
        side = {"<": "below", "<=": "at or below", ">": "above", ">=": "at or above"}[self.sign]
        return f"{self.setting} {side} {outward(self.value, self.sign)} (it was {was})"

    def possible(self, limits: Mapping[str, Any]) -> bool:
        """Return whether a setting with these limits can have such a value."""
        reach = math.inf if self.sign in (">", ">=") else -math.inf
        value = self.value if "=" in self.sign else math.nextafter(self.value, reach)
        low, high = limits.get("ge", -math.inf), limits.get("le", math.inf)
        return low <= value <= high and limits.get("gt", -math.inf) < value < limits.get(
            "lt", math.inf
        )


def decision(note: NoteView) -> dict[str, Any]:
    """Return a note as data: the numbers compared, how close they were, and what would have changed it.

    docs/explain.md has the fields.
    """
    changes, then = would_change(note), note.note["otherwise"]
    words = [
        sentence(note.note["text"]),
        *close(note.criteria),
        *(_changed(some, then) for some in changes),
    ]
    return {
        "round": note.round,
        "kind": note.kind,
        "effect": note.effect,
        "clients": list(note.clients),
        "parts": [list(part) for part in note.parts],
        "was_one_group": note.was_one_group,
        "text": note.note["text"],
        "criteria": [_data(one) for one in note.criteria],
        "would_change": [
            {"changes": [dataclasses.asdict(one) for one in some], "then": then} for some in changes
        ],
        "numbers": note.numbers,
        "labels": note.labels,
        "joined": _joined(note),
        "words": [text for text in words if text],
    }


def _joined(note: NoteView) -> list[ClientId]:
    """Return the clients that the client of a note is with after the round, if it found its group in this round."""
    if note.effect not in ("joins", "moves") or len(note.clients) != 1:
        return []
    group: list[ClientId] = next(
        (group for group in note.line["groups"] if note.clients[0] in group), []
    )
    return [client for client in group if client != note.clients[0]]


def _data(one: Criterion) -> dict[str, Any]:
    """Return a criterion as data for JSON."""
    return {
        "name": one.name,
        "key": one.key,
        "value": one.value,
        "sign": one.sign,
        "bound": one.bound,
        "setting": one.setting or None,
        "held": one.held,
        "meaning": one.meaning,
        "ratio": one.value / one.bound if one.bound else None,
        "difference": one.value - one.bound,
    }


def close(criteria: tuple[Criterion, ...]) -> list[str]:
    """Return a sentence that states how close each criterion was; none if there are none."""
    said = [
        f"{one.name} {short(one.value)}, {margin(one.value, one.bound)} {f'{one.setting} {short(one.bound)}'.strip()}"
        for one in criteria
        if math.isfinite(one.value) and math.isfinite(one.bound)
    ]
    return [f"How close: {'; '.join(said)}."] if said else []


def would_change(note: NoteView) -> list[tuple[Change, ...]]:
    """Return the changes of settings that would have changed a decision.

    If all its criteria held, each of the changes is enough. If some did not, all of these would
    have had to hold, which takes all the changes of the one entry.

    Args:
        note: The note, whose criteria compare numbers with settings.
    """
    if not note.note["otherwise"]:
        return []
    failed = [one for one in note.criteria if not one.held]
    if any(not one.setting for one in failed):
        return []
    found: list[tuple[Change, ...]] = (
        [tuple(_reversed(note, one) for one in failed)]
        if failed
        else [(_reversed(note, one),) for one in note.criteria if one.setting]
    )
    cls = METHODS.get(note.history.method)
    if cls is None:
        return found
    limits = {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
    own = [
        some for some in found if all(one.setting in limits for one in some)
    ]  # a method that is an arm has other settings
    return [some for some in own if all(one.possible(limits[one.setting]) for one in some)]


def _reversed(note: NoteView, one: Criterion) -> Change:
    """Return the change of the setting of a criterion that reverses its outcome."""
    sign, was = REVERSED[one.held][one.sign], note.history.settings.get(one.setting, one.bound)
    if not isinstance(was, int):
        return Change(one.setting, sign, one.value, was)
    whole = int(one.value) + {">": 1, "<": -1}.get(sign, 0)
    return Change(one.setting, ">=" if sign in (">", ">=") else "<=", whole, was)


def _changed(changes: tuple[Change, ...], then: str) -> str:
    """Return the changes and their effect in one sentence."""
    *most, last = (change.words() for change in changes)
    return f"With {', '.join(most)} and {last}, {then}." if most else f"With {last}, {then}."


def outward(value: float, sign: Sign) -> str:
    """Return a bound with three significant digits.

    It is rounded so that every number beyond it, in the direction of ``sign``, is also beyond
    ``value``.

    Args:
        value: The exact bound.
        sign: The direction.

    Example:
        >>> outward(0.31449, "<="), outward(0.31441, ">"), outward(0.5, "<"), outward(1.00000000001, ">")
        ('0.314', '0.315', '0.5', '1.01')
    """
    if value == 0 or not math.isfinite(value):
        return short(value)
    down = sign in ("<", "<=")
    shown = float(short(value))
    if (shown > value) if down else (shown < value):
        step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
        shown += -step if down else step
    return short(shown)


def margin(value: float, bound: float) -> str:
    """Return how close a value was to its bound, in words.

    Example:
        >>> margin(0.25, 0.5), margin(0.51, 0.5), margin(1e-9, 1e-4), margin(0.2, 0.0), margin(0.5, 0.5)
        ('a factor of 2 below', '2 % above', 'a factor of 1e+05 below', '0.2 above', 'equal to')
    """
    if value == bound:
        return "equal to"
    side = "below" if value < bound else "above"
    if value > 0 and bound > 0:
        ratio = value / bound
        if 2 / 3 < ratio < 1.5:
            return f"{abs(ratio - 1) * 100:.2g} % {side}"
        return f"a factor of {short(max(ratio, 1 / ratio))} {side}"
    return f"{short(abs(value - bound))} {side}"


# ----------------------------------------------------------------------------------------------------
# One client in a decision: the nearest clients on both sides, and its numbers.


LISTED = 5
"""The greatest number of values of one kind in a sentence, such as the losses with several models.
"""


def member(note: NoteView, client: ClientId) -> dict[str, Any]:
    """Return the part that a client came to, the clients nearest to it by the note's matrix, and its values.

    Args:
        note: The note.
        client: The client.

    Returns:
        ``side``, ``nearest``, ``values`` and ``words``; docs/explain.md describes them.
    """
    side = next((part for part in note.parts if client in part), None)
    nearest = _nearest(note, client, side)
    values = {
        name: found[client]
        for name in note.note["values"]
        if client in (found := note.values(name))
    }
    words = []
    if note.parts and side is None:
        words.append("It was not among the clients that were compared.")
    if nearest:
        shown = [
            f"client {one['client']} {where} ({one['measure']} {short(one['value'])})"
            for where, one in nearest.items()
        ]
        words.append(f"Nearest to it: {' and '.join(shown)}.")
    words += _listed(values)
    return {"side": side and list(side), "nearest": nearest, "values": values, "words": words}


def _nearest(note: NoteView, client: ClientId, side: tuple[ClientId, ...] | None) -> dict[str, Any]:
    """Return where -> the nearest client there, by the matrix on which the decision rests."""
    clients, matrices = note.matrices
    if side is None or client not in clients:
        return {}
    name = next(name for name in ("compared", "all", *matrices) if name in matrices)
    row, what = matrices[name][clients.index(client)], measure(matrices[name])
    order = -row if what == "distance" else row
    found: dict[str, Any] = {}
    for where, inside in (("in its part", True), ("in another", False)):
        there = [i for i, c in enumerate(clients) if c != client and (c in side) == inside]
        if there:
            best = max(there, key=lambda i: (order[i], -i))  # rows are in the order of the clients
            found[where] = {"client": clients[best], "measure": what, "value": float(row[best])}
    return found


def _listed(values: Mapping[str, float]) -> list[str]:
    """Return a client's numbers as sentences; ``loss of model 0``, ``loss of model 1``, ... in one, the least first."""
    kinds: dict[str, dict[str, float]] = {}
    words = []
    for name, value in values.items():
        kind, _, which = name.rpartition(" ")
        if kind and which.isdecimal():
            kinds.setdefault(kind, {})[which] = value
        else:
            words.append(f"Its {name.replace('_', ' ')}: {short(value)}.")
    for kind, found in kinds.items():
        order = sorted(found, key=lambda which: (found[which], int(which)))
        shown = "; ".join(f"{which}: {short(found[which])}" for which in order[:LISTED])
        words.append(f"Its {kind} {shown}{'; ...' if len(order) > LISTED else ''}.")
    return words
