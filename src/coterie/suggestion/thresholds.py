"""Where to cut a dendrogram so that it gives the groups found: thresholds for FL+HC and ACFL."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.clustering import adjusted_rand, cut_dendrogram, dendrogram, same_partition
from coterie.suggestion.results import Advice, Range, middle, ratio, shortest, sureness, without


@dataclass(frozen=True)
class Cut:
    """The thresholds that cut a dendrogram into given groups: above ``low``, the highest merge inside one, and up to ``high``,
    the lowest across; ``ari``: adjusted Rand index of the cut that is most like them, 1 where it gives them. Without such a
    threshold, low is not below high."""

    low: float
    high: float
    ari: float

    def room(self) -> bool:
        """Whether there is such a threshold."""
        return self.low < self.high


def cut_of(apart: np.ndarray, linkage: str, labels: np.ndarray) -> Cut:
    """The thresholds that cut the dendrogram of distances ``(n, n)`` into the groups ``labels`` ``(n,)``.

    >>> cut_of(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single", np.array([0, 0, 1]))
    Cut(low=1.0, high=4.0, ari=1.0)
    """
    tree = dendrogram(apart, linkage)
    n, groups = len(labels), len(set(labels.tolist()))
    if same_partition(cut_dendrogram(tree, groups=groups), labels):
        heights = [0.0, *tree[:, 2].tolist(), math.inf]
        return Cut(heights[n - groups], heights[n - groups + 1], 1.0)
    return Cut(math.inf, 0.0, max(adjusted_rand(cut_dendrogram(tree, groups=k), labels) for k in range(1, n + 1)))


def common(cuts: Iterable[Cut]) -> Cut:
    """The thresholds that are right in all of several dendrograms of the same clients."""
    several = list(cuts)
    return Cut(max(c.low for c in several), min(c.high for c in several), min(c.ari for c in several))


@dataclass(frozen=True)
class Geometry:
    """What a method clusters by. method: its name. settings: that make it so, beside the threshold. compared: the same, in
    words. apart: distances ``(n, n)`` of each draw. similarity: the threshold is the cosine similarity 1 - distance."""

    method: str
    settings: Mapping[str, Any]
    compared: str
    linkage: str
    apart: Sequence[np.ndarray]
    similarity: bool = False

    def advice(self, labels: np.ndarray, firm: bool) -> Advice:
        """The threshold that gives the groups ``labels`` ``(n,)`` in every draw; ``firm``: as :func:`.results.sureness`."""
        cut = common(cut_of(apart, self.linkage, labels) for apart in self.apart)
        if not cut.room():
            why = "its tree does not hold them" if cut.ari < 1 else "none is right in both draws"
            return without(self.method, self.compared, f"no threshold gives these groups: {why}", cut.ari)
        margin = ratio(cut.low, cut.high)
        found = _similarities(cut) if self.similarity else _distances(cut)
        across = "nothing across" if math.isinf(cut.high) else f"lowest merge across {cut.high:.3g}"
        what = "distance 1 - cos, " if self.similarity else ""
        text = f"{what}{self.linkage} linkage: highest merge inside a group {cut.low:.3g}, {across}"
        settings = {**self.settings, "threshold": found.value}
        return Advice(self.method, self.compared, settings, (found,), margin, sureness(margin, firm), 1.0, text)


def _distances(cut: Cut) -> Range:
    value = shortest(middle(cut.low, cut.high), cut.low, cut.high)
    return Range("threshold", cut.low, cut.high, value, ratio(cut.low, cut.high))


def _similarities(cut: Cut) -> Range:
    """As similarities, that merge while they are above: the ends change places."""
    low, high = max(1 - cut.high, -1.0), 1 - cut.low
    value = max(1 - middle(cut.low, cut.high), -1.0)
    return Range("threshold", low, high, -shortest(-value, -high, -low), ratio(cut.low, cut.high))
