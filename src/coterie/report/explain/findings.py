"""What a decision compared, how close it was, and what would have changed it: values, and their sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SIGNS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
"""What a criterion asks of a value, in words."""

WHOLE = ("min_cluster_size",)
"""Settings that are whole numbers."""


@dataclass(frozen=True)
class Criterion:
    """One comparison: ``value sign bound``. what: the value in words. means, fails: what follows where it holds, and where it
    does not. setting: the name of the setting that the bound is, where it is one."""

    what: str
    value: float
    sign: str
    bound: float
    means: str = ""
    setting: str = ""
    fails: str = ""

    @property
    def holds(self) -> bool:
        return {"<": self.value < self.bound, "<=": self.value <= self.bound, ">": self.value > self.bound}.get(
            self.sign, self.value >= self.bound
        )

    def words(self) -> str:
        """One sentence: what was compared with what, how close it was, and what that means."""
        bound = f"{self.setting} {short(self.bound)}" if self.setting else short(self.bound)
        told = SIGNS[self.sign] if self.holds else f"not {SIGNS[self.sign]}"
        end = self.means if self.holds else self.fails
        said = f"{self.what} was {short(self.value)}, {told} {bound} ({margin(self.value, self.bound)})"
        return f"{said}: {end}." if end else f"{said}."

    def json(self) -> dict[str, Any]:
        ratio = self.value / self.bound if self.bound else None
        return {
            "what": self.what, "value": self.value, "sign": self.sign, "bound": self.bound, "setting": self.setting or None,
            "holds": self.holds, "ratio": ratio, "difference": self.value - self.bound,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A setting that would have to be ``sign value``, where it was ``was``."""

    setting: str
    sign: str
    value: float
    was: Any

    def words(self) -> str:
        if isinstance(self.value, int):
            side = "or more" if self.sign == ">=" else "or fewer"
            return f"{self.setting} {self.value} {side} (it was {plain(self.was)})"
        side = {"<": "below", "<=": "at or below", ">": "above", ">=": "at or above"}[self.sign]
        return f"{self.setting} {side} {outward(self.value, self.sign)} (it was {plain(self.was)})"

    def possible(self, limits: Mapping[str, Any]) -> bool:
        """Whether a setting with these limits can have such a value."""
        reach = math.inf if self.sign in (">", ">=") else -math.inf
        value = self.value if "=" in self.sign else math.nextafter(self.value, reach)
        low, high = limits.get("ge", -math.inf), limits.get("le", math.inf)
        return low <= value <= high and limits.get("gt", -math.inf) < value < limits.get("lt", math.inf)


@dataclass(frozen=True)
class Flip:
    """What would have changed a decision: all of ``changes`` together, and what would have happened then."""

    changes: tuple[Change, ...]
    then: str

    def words(self) -> str:
        *most, last = (change.words() for change in self.changes)
        return f"With {', '.join(most)} and {last}, {self.then}." if most else f"With {last}, {self.then}."

    def json(self) -> dict[str, Any]:
        changes = [{"setting": c.setting, "sign": c.sign, "value": c.value, "was": c.was} for c in self.changes]
        return {"changes": changes, "then": self.then}


@dataclass(frozen=True)
class Finding:
    """What is to be said of a decision, or of one client in it. says: further sentences, before the criteria; data: their
    numbers, for JSON."""

    says: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    flips: tuple[Flip, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        return [*self.says, *(c.words() for c in self.criteria), *(f.words() for f in self.flips)]

    def within(self, limits: Mapping[str, Mapping[str, Any]]) -> Finding:
        """The same without what no setting can be: limits of each setting by name."""
        flips = (f for f in self.flips if all(change.possible(limits.get(change.setting, {})) for change in f.changes))
        return replace(self, flips=tuple(flips))

    def json(self) -> dict[str, Any]:
        return {
            "says": list(self.says), "criteria": [c.json() for c in self.criteria],
            "would_change": [f.json() for f in self.flips], "numbers": dict(self.data),
        }  # fmt: skip


def opposed(criterion: Criterion, setting: str, was: Any, value: float) -> Change:
    """The change of ``setting``, which is on the criterion's side of the bound, that turns it round: ``value`` is what is
    compared with the setting, in its unit."""
    flipped = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"} if criterion.holds else {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    sign = flipped[criterion.sign]
    if setting not in WHOLE:
        return Change(setting, sign, value, was)
    return Change(setting, ">=" if sign == ">" else sign, int(value) + (sign == ">"), was)


def sentence(text: str) -> str:
    """A note's words as a sentence.

    >>> sentence("a group of one cannot split")
    'A group of one cannot split.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def short(value: float) -> str:
    """A number of three figures.

    >>> short(0.123456), short(1234567.0), short(3.0)
    ('0.123', '1.23e+06', '3')
    """
    return f"{value:.3g}"


def plain(value: Any) -> str:
    return short(value) if isinstance(value, float) else "none" if value is None else str(value)


def outward(value: float, sign: str) -> str:
    """A bound of three figures, rounded so that whatever is on its side of it is on that side of ``value``.

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
    """How close a value was to what it was compared with.

    >>> margin(0.25, 0.5), margin(0.51, 0.5), margin(1e-9, 1e-4), margin(0.2, 0.0), margin(0.5, 0.5)
    ('a factor of 2 below', '2 % above', 'a factor of 1e+05 below', '0.2 above', 'equal')
    """
    if value == bound:
        return "equal"
    side = "below" if value < bound else "above"
    if value > 0 and bound > 0:
        ratio = value / bound
        if 2 / 3 < ratio < 1.5:
            return f"{abs(ratio - 1) * 100:.2g} % {side}"
        return f"a factor of {short(max(ratio, 1 / ratio))} {side}"
    return f"{short(abs(value - bound))} {side}"
