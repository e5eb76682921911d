"""By how much distances may move before groups change, so that what was found in sketches can be vouched for."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from coterie.clustering import _checks
from coterie.clustering.sketch import sketch_error


class SketchWarning(UserWarning):
    """Groups were found in sketches, and a sketch's error could have changed them."""


def borders(distances: np.ndarray, labels: np.ndarray, tree: np.ndarray, linkage: str) -> tuple[float, float]:
    """(below, above): while every distance that is at most ``below`` stays under all that are at least ``above``, the
    groups ``labels`` stay as they are. ``-inf`` where nobody has a fellow, ``inf`` where all are together.

    Single linkage: the last merge made and the next one. Its groups are the components of the graph of distances below
    the cut; the merges made hold them together, and no distance between them is below the next merge.
    Complete and average linkage: the greatest distance within a group and the least between groups. The linkage of two
    sets lies between their least and greatest distance, so while all distances within groups are under all between them,
    merges within come first, whichever way the tree grows. This is sufficient, not necessary: of groups that overlap it
    knows nothing (below >= above).
    """
    n, groups = len(labels), int(labels.max()) + 1
    if linkage == "single":
        made = n - groups
        below = float(tree[made - 1, 2]) if made else -math.inf
        return below, float(tree[made, 2]) if groups > 1 else math.inf
    below, above = -math.inf, math.inf
    for part in _checks.strips(n):
        fellows = labels[part, None] == labels
        above = min(above, float(np.min(distances[part], where=~fellows, initial=math.inf)))
        below = max(below, float(np.max(distances[part], where=fellows, initial=0.0)))
    return (below if groups < n else -math.inf), above


def margin(below: float, above: float, threshold: float | None) -> float:
    """How much two distances may approach each other between ``borders``: twice what each may move, never below 0."""
    if threshold is None:
        return max(above - below, 0.0)
    room = math.inf if above == math.inf else above - threshold
    return max(2 * min(threshold - below, room), 0.0)


def doubt(
    ends: tuple[float, float], *, linkage: str, metric: str, threshold: float | None, size: int, n: int
) -> str | None:
    """Why the error of sketches of ``size`` numbers might have changed the groups between ``ends``; None if it cannot.

    ends: the borders among the distances of n sketches. A cosine distance is off by up to the bound, a squared Euclidean
    one by up to its share.
    """
    error = sketch_error(size, n)
    if linkage == "ward":
        return "no margin is known for linkage ward"
    if _safe(ends, metric, threshold, error):
        return None
    what = "a cosine" if metric == "cosine" else "a squared distance by a share"
    return f"a sketch of {size} numbers may put {what} off by {error:.3g}, more than the cut has room for"


def warn_if_near(ends: tuple[float, float], **cut: Any) -> None:
    """A :class:`SketchWarning` where there is a :func:`doubt`."""
    reason = doubt(ends, **cut)
    if reason is None:
        return
    advice = "compare with a larger sketch, or cluster the updates themselves"
    warnings.warn(f"the groups of the updates may be others than those of their sketches: {reason}; {advice}",
                  SketchWarning, stacklevel=3)  # fmt: skip


def _safe(ends: tuple[float, float], metric: str, threshold: float | None, error: float) -> bool:
    below, above = ends
    if threshold is None and (below == -math.inf or above == math.inf):
        return True  # one group, or as many as clients
    if metric == "cosine":
        greatest, least = below + error, above - error
    elif error >= 1:
        return False
    else:
        greatest, least = below / math.sqrt(1 - error), above / math.sqrt(1 + error)
    return greatest < (least if threshold is None else threshold) and (threshold is None or threshold <= least)
