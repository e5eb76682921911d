"""What a suggestion says: the groups that were found, and for each method the settings that would have found them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core import Client, Groups

CLEAR, NARROW, NONE = "clear", "narrow", "none"
"""How sure an advice is; see :func:`sureness`."""

ROOM = 1.5
"""The least margin of what is clear: a value in the middle may then be a fifth off either way."""

DOUBT = 0.05
"""A p-value below this is no sign that clients are alike."""

AWAY = 1.5
"""How far a value is put from its one end where nothing tells the other: of one group, how far apart two would be."""


@dataclass(frozen=True)
class Range:
    """Between which values a setting gives the groups found.

    setting: its name. low, high: the ends; infinite, or the setting's own limit, where nothing bounds it. value: the one
    suggested, None where the ends leave no room; of CFL's eps2 and gamma_max, of which one is enough to keep a group whole, it
    may be below low. margin: high over low, as distances or norms.
    """

    setting: str
    low: float
    high: float
    value: float | None
    margin: float


@dataclass(frozen=True)
class Advice:
    """What a method would have to be set to.

    method: its name. compared: of what, in words: a metric and linkage, say. settings: all to set, as in an experiment's file;
    empty where nothing is right. ranges: of the settings that were looked for. margin: how much room there is, a ratio; 1 or
    less is none. sure: ``clear``, ``narrow`` or ``none``. ari: adjusted Rand index of the nearest groups that the method
    could make; 1 where it can make those found. text: the numbers compared, in a sentence.
    """

    method: str
    compared: str
    settings: Mapping[str, Any]
    ranges: tuple[Range, ...]
    margin: float
    sure: str
    ari: float
    text: str


@dataclass(frozen=True)
class Finding:
    """What the split-half test says of the clients, by two probes with halves drawn apart.

    clients (n,): on whom they agree. level: of the test. p: that all are alike, by both together. groups: that both confirm.
    alone: what each finds by itself; agreement: adjusted Rand index of these two. alike: of each group, p that its members
    are alike, by both together. reliability ``(n,)``: of each client, the share of signal in what sets it
    apart, the mean of both.
    """

    clients: tuple[Client, ...]
    level: float
    p: float
    groups: Groups
    alone: tuple[Groups, Groups]
    agreement: float
    alike: tuple[float, ...]
    reliability: tuple[float, ...]

    @property
    def same(self) -> bool:
        """Whether each probe finds the same groups by itself."""
        return self.alone[0] == self.alone[1]

    @property
    def doubt(self) -> float | None:
        """The p of the group that is likeliest to be several, where it is small: below :data:`DOUBT`, divided by the groups."""
        least = min(self.alike)
        return least if least < DOUBT / len(self.groups) else None

    @property
    def firm(self) -> bool:
        """Whether the groups are ones to set thresholds by: a group that is not alike, and was not cut, is none."""
        return self.same and self.doubt is None


@dataclass(frozen=True)
class Suggestion:
    """What :func:`coterie.suggest` says of a run.

    run, method, scenario, seed: which. start: the model that was probed from, in words; round: how many it was trained for.
    finding: the groups. advice: for each method, what it compares by default first. caveats: why to trust this less, one
    sentence each. left_out: client -> why it could not be asked. exchanges: how many everybody was asked for.
    """

    run: str
    method: str
    scenario: str
    seed: int
    start: str
    round: int
    finding: Finding
    advice: tuple[Advice, ...]
    caveats: tuple[str, ...]
    left_out: Mapping[Client, str]
    exchanges: int

    def best(self, method: str) -> Advice:
        """The advice for a method to follow: what it compares by default where that is clear, else that of the widest margin.

        Raises ``KeyError`` for a method that nothing is said about.
        """
        own = [one for one in self.advice if one.method == method]
        if not own:
            raise KeyError(method)
        return own[0] if own[0].sure == CLEAR else max(own, key=lambda one: one.margin)


def sureness(margin: float, firm: bool) -> str:
    """``none`` where no value is right, ``clear`` from a margin of :data:`ROOM` if the finding is ``firm``, else ``narrow``."""
    if not margin > 1:
        return NONE
    return CLEAR if margin >= ROOM and firm else NARROW


def labels(groups: Groups) -> np.ndarray:
    """Of the clients of ``groups``, in their order, ``(n,)``."""
    return np.array([number for _, number in sorted((client, i) for i, group in enumerate(groups) for client in group)])


def without(method: str, compared: str, text: str, ari: float = 0.0) -> Advice:
    """The advice where nothing is right, and why."""
    return Advice(method, compared, {}, (), 0.0, NONE, ari, text)


def ratio(low: float, high: float) -> float:
    """``high / low``; infinite where nothing is below or nothing above."""
    return high / low if low > 0 else math.inf


def middle(low: float, high: float) -> float:
    """As far from one end as from the other, as ratios; where one is zero or infinite, :data:`AWAY` from the other.

    >>> middle(1.0, 4.0), middle(2.0, math.inf), middle(0.0, 3.0)
    (2.0, 3.0, 2.0)
    """
    if math.isinf(high):
        return AWAY * low if low > 0 else 1.0  # neither end: any will do
    return math.sqrt(low * high) if low > 0 else high / AWAY


def shortest(value: float, low: float, high: float) -> float:
    """``value`` in so few digits, two at least, that it moves by no more than a fifth of its way to the nearer end.

    >>> shortest(1.6449, 1.137, 2.382), shortest(0.99052, 0.9899, 0.9911)
    (1.6, 0.9905)
    """
    room = min(value - low, high - value) / 5
    return next((short for digits in range(2, 17) if abs((short := float(f"{value:.{digits}g}")) - value) <= room), value)
