"""Thresholds that cut a dendrogram into the groups found, for FL+HC and ACFL."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from coterie.clustering import adjusted_rand, cut_dendrogram, dendrogram, same_partition
from coterie.contrib.suggest.ranges import middle, ratio, shortest
from coterie.contrib.suggest.suggestion import Advice, Range, no_advice, sureness


@dataclass(frozen=True)
class Cut:
    """The thresholds that cut a dendrogram into given groups: above ``low`` and up to ``high``.

    If there is no such threshold, ``low`` is not below ``high``.

    Attributes:
        low: The height of the highest merge inside a group.
        high: The height of the lowest merge across groups.
        ari: Adjusted Rand index of the cut that is most similar to the groups; 1 if it gives them.
    """

    low: float
    high: float
    ari: float

    def has_room(self) -> bool:
        """Whether there is such a threshold."""
        return self.low < self.high


def cut_of(client_distances: np.ndarray, linkage: str, group_labels: np.ndarray) -> Cut:
    """The thresholds that cut a dendrogram into given groups.

    Args:
        client_distances: Distances ``(n, n)`` of the clients.
        linkage: The linkage of the dendrogram.
        group_labels: The number of each client's group, ``(n,)``.

    Returns:
        The thresholds.

    Example:
        >>> cut_of(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single", np.array([0, 0, 1]))
        Cut(low=1.0, high=4.0, ari=1.0)
    """
    # The rows of ``merges`` are in the order of their heights, in the third column.
    merges = dendrogram(client_distances, linkage)
    num_clients = len(group_labels)
    num_groups = len(set(group_labels.tolist()))
    if same_partition(cut_dendrogram(merges, groups=num_groups), group_labels):
        # With g groups, n - g merges have been made: the last of them bounds the threshold from
        # below, the next one from above.
        merge_heights = [0.0, *merges[:, 2].tolist(), math.inf]
        return Cut(
            merge_heights[num_clients - num_groups],
            merge_heights[num_clients - num_groups + 1],
            1.0,
        )
    # No cut gives the groups. How near does the best one come?
    similarities = [
        adjusted_rand(cut_dendrogram(merges, groups=num_cut_groups), group_labels)
        for num_cut_groups in range(1, num_clients + 1)
    ]
    return Cut(math.inf, 0.0, max(similarities))


def common_cut(cuts: Iterable[Cut]) -> Cut:
    """The thresholds that are right in each of several dendrograms of the same clients."""
    all_cuts = list(cuts)
    # The range that all of them have in common.
    return Cut(
        low=max(map(attrgetter("low"), all_cuts)),
        high=min(map(attrgetter("high"), all_cuts)),
        ari=min(map(attrgetter("ari"), all_cuts)),
    )


@dataclass(frozen=True)
class Geometry:
    """The distances by which a method clusters.

    Attributes:
        method: The name of the method.
        settings: The settings that select these distances, besides the threshold.
        compared: The same in words.
        linkage: The linkage of the dendrogram.
        draws: Distances ``(n, n)`` of the clients in each draw.
        similarity: Whether the threshold is the cosine similarity 1 - distance.
    """

    method: str
    settings: Mapping[str, Any]
    compared: str
    linkage: str
    draws: Sequence[np.ndarray]
    similarity: bool = False

    def advice(self, group_labels: np.ndarray, firm: bool) -> Advice:
        """The threshold that gives the groups in every draw.

        Args:
            group_labels: The number of each client's group, ``(n,)``.
            firm: As for :func:`~coterie.contrib.suggest.suggestion.sureness`.

        Returns:
            The advice.
        """
        # A threshold is right if it is right in every draw.
        cut = common_cut(cut_of(draw, self.linkage, group_labels) for draw in self.draws)
        if not cut.has_room():
            failure_reason = (
                "they are not in its tree" if cut.ari < 1 else "none is right in both probes"
            )
            text = f"no threshold gives these groups: {failure_reason}"
            return no_advice(self.method, self.compared, text, cut.ari)
        margin = ratio(cut.low, cut.high)
        threshold_range = _similarity_range(cut) if self.similarity else _distance_range(cut)
        return Advice(
            method=self.method,
            compared=self.compared,
            settings={**self.settings, "threshold": threshold_range.value},
            ranges=(threshold_range,),
            margin=margin,
            sure=sureness(margin, firm),
            ari=1.0,
            text=self._words(cut),
        )

    def _words(self, cut: Cut) -> str:
        """The heights between which the threshold lies."""
        quantity = "distance 1 - cos, " if self.similarity else ""
        across_words = f"lowest merge across {cut.high:.3g}"
        if math.isinf(cut.high):
            across_words = "no merge across"
        return f"{quantity}{self.linkage} linkage: highest merge within a group {cut.low:.3g}, {across_words}"


def _distance_range(cut: Cut) -> Range:
    """The range of a threshold on distances."""
    value = shortest(middle(cut.low, cut.high), cut.low, cut.high)
    return Range("threshold", cut.low, cut.high, value, ratio(cut.low, cut.high))


def _similarity_range(cut: Cut) -> Range:
    """The range as similarities: groups merge while their similarity is above the threshold, so the ends change places."""
    # Cosine similarities are at least -1.
    lowest_similarity = max(1 - cut.high, -1.0)
    highest_similarity = 1 - cut.low
    value = max(1 - middle(cut.low, cut.high), -1.0)
    rounded_value = shortest(value, lowest_similarity, highest_similarity)
    return Range(
        "threshold", lowest_similarity, highest_similarity, rounded_value, ratio(cut.low, cut.high)
    )
