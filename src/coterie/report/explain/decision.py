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
from coterie.report.words import MIN_P_VALUE, is_p_value, readable_number, sentence, short

SIGN_TO_REVERSE: Mapping[bool, Mapping[Sign, Sign]] = {
    True: {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    False: {"<": ">", "<=": ">=", ">": "<", ">=": "<="},
}
"""Whether a criterion held -> its sign -> how its bound must then compare with its value for the
opposite outcome."""

SIDES: Mapping[Sign, str] = {"<": "below", "<=": "at or below", ">": "above", ">=": "at or above"}
"""Signs in words."""


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
        # Numbers have three digits, other values are as in the settings.
        was = short(self.was) if isinstance(self.was, float) else str(self.was)
        # A whole number is named itself; of a real one, the side of the bound.
        if isinstance(self.value, int):
            direction = "or more" if self.sign == ">=" else "or fewer"
            return f"{self.setting} {self.value} {direction} (it was {was})"
        bound = outward(self.value, self.sign)
        return f"{self.setting} {SIDES[self.sign]} {bound} (it was {was})"

    def possible(self, limits: Mapping[str, Any]) -> bool:
        """Return whether a setting with these limits can have such a value."""
        # The value nearest to the bound that is beyond it, or the bound itself where that is enough.
        value = self.value
        if self.sign == ">":
            value = math.nextafter(value, math.inf)
        elif self.sign == "<":
            value = math.nextafter(value, -math.inf)
        lowest = limits.get("ge", -math.inf)
        highest = limits.get("le", math.inf)
        above = limits.get("gt", -math.inf)
        below = limits.get("lt", math.inf)
        return bool(lowest <= value <= highest and above < value < below)


def decision(note: NoteView) -> dict[str, Any]:
    """Return a note as data: the numbers compared, how close they were, and what would have changed it.

    notes/explain.md has the fields.
    """
    # Each alternative is a tuple of changes that all are needed.
    alternatives = would_change(note)
    opposite = note.note["otherwise"]
    words = [sentence(note.note["text"]), *close(note.criteria)]
    alternative_entries = []
    for changes in alternatives:
        words.append(_alternative_in_words(changes, opposite))
        change_entries = [dataclasses.asdict(change) for change in changes]
        alternative_entries.append({"changes": change_entries, "then": opposite})
    return {
        "round": note.round,
        "kind": note.kind,
        "effect": note.effect,
        "clients": list(note.clients),
        "parts": list(map(list, note.parts)),
        "was_one_group": note.was_one_group,
        "text": note.note["text"],
        "criteria": list(map(_criterion_entry, note.criteria)),
        "would_change": alternative_entries,
        "numbers": note.numbers,
        "labels": note.labels,
        "joined": _joined(note),
        "words": [text for text in words if text],
    }


def _joined(note: NoteView) -> list[ClientId]:
    """Return the clients that the client of a note is with after the round, if it found its group in this round."""
    if note.effect not in ("joins", "moves") or len(note.clients) != 1:
        return []
    (joining_client,) = note.clients
    for group in note.line["groups"]:
        if joining_client in group:
            return [client for client in group if client != joining_client]
    return []


def _criterion_entry(criterion: Criterion) -> dict[str, Any]:
    """Return a criterion as data for JSON."""
    return {
        "name": criterion.name,
        "key": criterion.key,
        "value": criterion.value,
        "sign": criterion.sign,
        "bound": criterion.bound,
        "setting": criterion.setting or None,
        "held": criterion.held,
        "meaning": criterion.meaning,
        "ratio": criterion.value / criterion.bound if criterion.bound else None,
        "difference": criterion.value - criterion.bound,
    }


def close(criteria: tuple[Criterion, ...]) -> list[str]:
    """Return a sentence that states how close each criterion was; none if there are none."""
    distances = []
    for criterion in criteria:
        if math.isfinite(criterion.value) and math.isfinite(criterion.bound):
            distance = margin(criterion.value, criterion.bound)
            # How far a p-value that counts as 0 is below its bound says nothing.
            if is_p_value(criterion.name) and criterion.value < MIN_P_VALUE:
                distance = "far below"
            bound = f"{criterion.setting} {short(criterion.bound)}".strip()
            value = readable_number(criterion.name, criterion.value)
            distances.append(f"{criterion.name} {value}, {distance} {bound}")
    return [f"How close: {'; '.join(distances)}."] if distances else []


def would_change(note: NoteView) -> list[tuple[Change, ...]]:
    """Return the changes of settings that would have changed a decision.

    If all its criteria held, each of the changes is enough. If some did not, all of these would
    have had to hold, which takes all the changes of the one entry.

    Args:
        note: The note, whose criteria compare numbers with settings.
    """
    if not note.note["otherwise"]:
        return []
    # 1. All failed criteria together, or each one that held.
    failed = [criterion for criterion in note.criteria if not criterion.held]
    if any(not criterion.setting for criterion in failed):
        return []
    alternatives: list[tuple[Change, ...]] = []
    if failed:
        alternatives.append(tuple(_reversed(note, criterion) for criterion in failed))
    else:
        for criterion in note.criteria:
            if criterion.setting:
                alternatives.append((_reversed(note, criterion),))
    # 2. Only changes that the method's settings allow. A method that is an arm of another one
    # compares with settings that the other one does not have.
    method_class = METHODS.get(note.history.method)
    if method_class is None:
        return alternatives
    fields = dataclasses.fields(method_class)
    limits = {field.name: field.metadata.get("limits", {}) for field in fields}
    return [changes for changes in alternatives if _are_possible(changes, limits)]


def _are_possible(changes: tuple[Change, ...], limits: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a method has all the settings, and their limits allow the changes."""
    if any(change.setting not in limits for change in changes):
        return False
    return all(change.possible(limits[change.setting]) for change in changes)


def _reversed(note: NoteView, criterion: Criterion) -> Change:
    """Return the change of the setting of a criterion that reverses its outcome."""
    sign = SIGN_TO_REVERSE[criterion.held][criterion.sign]
    was = note.history.settings.get(criterion.setting, criterion.bound)
    if not isinstance(was, int):
        return Change(criterion.setting, sign, criterion.value, was)
    # The next whole number, which the setting can be equal to.
    value = int(criterion.value)
    match sign:
        case ">":
            return Change(criterion.setting, ">=", value + 1, was)
        case "<":
            return Change(criterion.setting, "<=", value - 1, was)
        case _:
            return Change(criterion.setting, sign, value, was)


def _alternative_in_words(changes: tuple[Change, ...], opposite: str) -> str:
    """Return changes that are all needed, and their effect, in one sentence."""
    *first, last = (change.words() for change in changes)
    if first:
        return f"With {', '.join(first)} and {last}, {opposite}."
    return f"With {last}, {opposite}."


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
    rounded = float(short(value))
    # One unit of the third digit further, if rounding went to the other side.
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    if sign in ("<", "<=") and rounded > value:
        rounded -= unit
    elif sign in (">", ">=") and rounded < value:
        rounded += unit
    return short(rounded)


def margin(value: float, bound: float) -> str:
    """Return how close a value was to its bound, in words.

    Example:
        >>> margin(0.25, 0.5), margin(0.51, 0.5), margin(1e-9, 1e-4), margin(0.2, 0.0), margin(0.5, 0.5)
        ('a factor of 2 below', '2 % above', 'a factor of 1e+05 below', '0.2 above', 'equal to')
    """
    if value == bound:
        return "equal to"
    side = "below" if value < bound else "above"
    # The ratio of positive numbers, in percent if they are close; else the difference.
    if value > 0 and bound > 0:
        ratio = value / bound
        if 2 / 3 < ratio < 1.5:
            return f"{abs(ratio - 1) * 100:.2g} % {side}"
        return f"a factor of {short(max(ratio, 1 / ratio))} {side}"
    return f"{short(abs(value - bound))} {side}"


# ----------------------------------------------------------------------------------------------------
# One client in a decision: the nearest clients on both sides, and its numbers.


MAX_VALUES_LISTED = 5
"""The greatest number of values of one kind in a sentence, such as the losses with several models.
"""


def member(note: NoteView, client: ClientId) -> dict[str, Any]:
    """Return the part that a client came to, the clients nearest to it by the note's matrix, and its values.

    Args:
        note: The note.
        client: The client.

    Returns:
        ``side``, ``nearest``, ``values`` and ``words``; notes/explain.md describes them.
    """
    # 1. The part that the client came to, its neighbours and its values.
    side = next((part for part in note.parts if client in part), None)
    nearest = _nearest(note, client, side)
    values = {}
    for value_name in note.note["values"]:
        value_of_client = note.values(value_name)
        if client in value_of_client:
            values[value_name] = value_of_client[client]
    words = []
    # 2. The same in words.
    if note.parts and side is None:
        words.append("It was not among the clients that were compared.")
    if nearest:
        neighbours = []
        for place, neighbour in nearest.items():
            closeness = f"{neighbour['measure']} {short(neighbour['value'])}"
            neighbours.append(f"client {neighbour['client']} {place} ({closeness})")
        words.append(f"Nearest to it: {' and '.join(neighbours)}.")
    words += _value_sentences(values)
    return {"side": side and list(side), "nearest": nearest, "values": values, "words": words}


def _nearest(note: NoteView, client: ClientId, side: tuple[ClientId, ...] | None) -> dict[str, Any]:
    """Return the nearest client in its part and in another one, by the matrix on which the decision rests."""
    clients, matrices = note.matrices
    if side is None or client not in clients:
        return {}
    # The matrix that was clustered, or that of all layers, or the first one.
    matrix_name = next(
        matrix_name for matrix_name in ("compared", "all", *matrices) if matrix_name in matrices
    )
    matrix = matrices[matrix_name]
    client_row = matrix[clients.index(client)]
    closeness = -client_row if measure(matrix) == "distance" else client_row
    nearest: dict[str, Any] = {}
    for place, is_in_part in (("in its part", True), ("in another", False)):
        candidates = []
        for client_index, candidate in enumerate(clients):
            if candidate != client and (candidate in side) == is_in_part:
                candidates.append(client_index)
        if candidates:
            # Of equally close ones the first.
            nearest_index = max(
                candidates, key=lambda client_index: (closeness[client_index], -client_index)
            )
            nearest[place] = {
                "client": clients[nearest_index],
                "measure": measure(matrix),
                "value": float(client_row[nearest_index]),
            }
    return nearest


def _value_sentences(values: Mapping[str, float]) -> list[str]:
    """Return a client's numbers as sentences.

    ``loss of model 0``, ``loss of model 1``, ... are in one sentence, the smallest first.
    """
    sentences = []
    # Kind, such as "loss of model" -> number of the model -> value.
    numbered_values: dict[str, dict[str, float]] = {}
    for value_name, value in values.items():
        kind, _, number = value_name.rpartition(" ")
        if kind and number.isdecimal():
            numbered_values.setdefault(kind, {})[number] = value
        else:
            sentences.append(f"Its {value_name.replace('_', ' ')}: {short(value)}.")
    for kind, values_of_kind in numbered_values.items():
        smallest_first = sorted(values_of_kind, key=lambda key: (values_of_kind[key], int(key)))
        listed = []
        for number in smallest_first[:MAX_VALUES_LISTED]:
            listed.append(f"{number}: {short(values_of_kind[number])}")
        if len(smallest_first) > MAX_VALUES_LISTED:
            listed.append("...")
        sentences.append(f"Its {kind} {'; '.join(listed)}.")
    return sentences
