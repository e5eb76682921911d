"""How several updates become one: the weighted mean, or a mean that a few hostile updates cannot move far.

Sources: coordinate-wise median and trimmed mean: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust
Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, arXiv 1803.01498, definitions 1 and 2. Geometric median
by the smoothed Weiszfeld algorithm: K. Pillutla, S. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE
TSP 2022, arXiv 1912.13445, algorithm 2. Norm clipping: Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really
Backdoor Federated Learning?", arXiv 1911.07963, section 4; our threshold is the median norm, so there is no number to choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.settings import check, setting

MEANS = ("mean", "median", "trimmed-mean", "geometric-median", "norm-clipping")

STEPS, CLOSE = 100, 1e-6
"""Weiszfeld's iterations at most, and the relative change at which they end."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A rule that makes one update of several.

    ``mean`` is the weighted mean. ``median`` and ``trimmed-mean`` work on each coordinate and ignore the weights, as a weight
    is a client's own claim. ``geometric-median`` is the weighted one. ``norm-clipping`` is the weighted mean after longer
    updates have been scaled down to the median norm.
    """

    mean: str = setting("mean", "how updates are averaged; every rule but mean limits what a hostile client can do",
                        choices=MEANS)  # fmt: skip
    trim: float = setting(
        0.2, "share of the values that trimmed-mean leaves out at either end; of three or more, one at least", ge=0, lt=0.5
    )

    share: float = setting(
        0.1, "largest share of all weight for one client, or twice the average weight if that is more; 1 sets no limit",
        gt=0, le=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs_all(self) -> bool:
        """Whether all updates must be known before the first is averaged."""
        return self.mean != "mean"

    def bounded(self, amounts: np.ndarray) -> np.ndarray:
        """What each client counts for, so that none has more than its share.

        Args:
            amounts: shape ``(n,)``, non-negative: the examples that the clients of one exchange claim, or other weights.

        Returns:
            Shape ``(n,)``: the same, but that the greatest are cut down to one level at which they have just the share.
        """
        n = len(amounts)
        share = max(self.share, 2 / n) if n else 1.0
        if share >= 1 or amounts.max() <= share * amounts.sum():
            return amounts
        ordered = np.sort(amounts.astype(np.float64))[::-1]
        rests = ordered.sum() - ordered.cumsum()
        for cut in range(1, n):  # so many are cut; the largest share is at least 2 / n, so n / 2 are enough
            level = share * rests[cut - 1] / (1 - cut * share) if cut * share < 1 else math.inf
            if level >= ordered[cut]:
                break
        whole = np.issubdtype(amounts.dtype, np.integer)
        return np.minimum(amounts, max(1, math.floor(level)) if whole else level)

    def of(self, updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
        """The average of several updates.

        Args:
            updates: shape ``(n, d)``, n >= 1.
            weights: shape ``(n,)``, non-negative, with a sum of at most 1; the average is scaled by that sum.

        Returns:
            Shape ``(d,)``, in the precision of ``updates``.
        """
        if self.mean == "mean" or len(updates) == 1:
            return average(updates, weights)
        if self.mean == "norm-clipping":
            return _clipped(updates, weights)
        return float(np.sum(weights)) * self._middle(updates, weights)

    def around(self, point: Tensor, rows: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
        """The average of models ``(n, d)`` that were trained from about ``point`` ``(d,)``.

        Only norm-clipping needs the point: it clips what training added, ``rows - point``.
        """
        return point + self.of(rows - point, weights) if self.mean == "norm-clipping" else self.of(rows, weights)

    def _middle(self, updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
        values = updates.numpy(force=True)
        if self.mean == "median":
            return _like(np.median(values, axis=0), updates)
        if self.mean == "trimmed-mean":
            from scipy.stats import trim_mean  # a third of a second, at every start of any run

            least = (1 + 1e-9) / len(values) if self.trim and len(values) > 2 else 0.0  # SciPy rounds down
            return _like(trim_mean(values, max(self.trim, least), axis=0), updates)
        return _geometric_median(updates, weights)


def average(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    """``Σ w_i x_i`` of rows ``(n, d)`` -> ``(d,)``, in the rows' precision."""
    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates


def _like(values: np.ndarray, updates: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=updates.dtype, device=updates.device)


def _clipped(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    norms = updates.norm(dim=1)
    moved = norms[norms > 0]
    limit = moved.median() if len(moved) else 0.0
    factors = (limit / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return average(updates, np.asarray(weights) * factors.numpy(force=True))


def _geometric_median(updates: Tensor, weights: np.ndarray | Sequence[float]) -> Tensor:
    """The point of least weighted sum of distances to the rows.

    It begins at the norm-clipped mean: near already, however long a hostile row is, and not at a row, where Weiszfeld's steps
    would end.
    """
    rows = updates.double()
    start = torch.as_tensor(weights, dtype=torch.float64, device=rows.device)
    point = _clipped(rows, weights)
    for _ in range(STEPS):
        distances = (rows - point).norm(dim=1)
        smoothing = CLOSE * float(distances.median())
        if not smoothing:  # half of the rows are at the point
            break
        pull = start / distances.clamp(min=smoothing)
        new = (pull / pull.sum()) @ rows
        moved = float((new - point).norm())
        point = new
        if moved <= CLOSE * float(point.norm()):
            break
    # Steps shorten towards a row: where one is the geometric median itself, it is the nearest.
    nearest = rows[(rows - point).norm(dim=1).argmin()]
    costs = [float((start * (rows - at).norm(dim=1)).sum()) for at in (point, nearest)]
    return (nearest if costs[1] < costs[0] else point).to(updates.dtype)
