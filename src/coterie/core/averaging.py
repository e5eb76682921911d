"""The average of several updates: the weighted mean, or a mean that a few hostile updates cannot move far.

Sources: coordinate-wise median and trimmed mean: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett,
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, arXiv
1803.01498, definitions 1 and 2. Geometric median by the smoothed Weiszfeld algorithm: K. Pillutla,
S. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022, arXiv
1912.13445, algorithm 2. Norm clipping: Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You
Really Backdoor Federated Learning?", arXiv 1911.07963, section 4; here the threshold is the median
norm, so it need not be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
import torch

from coterie.settings import SettingError, check, setting
from coterie.settings.calls import public

SHARE = 0.1
"""The share to which ``auto`` limits the weight of one client, where weights come from what clients
report."""

MEANS = ("mean", "median", "trimmed-mean", "geometric-median", "norm-clipping")
"""The averages that :class:`Averaging` has by name."""

MAX_WEISZFELD_STEPS = 100
"""The maximum number of iterations for the geometric median."""

WEISZFELD_TOLERANCE = 1e-6
"""The relative change of its cost at which the iterations for the geometric median stop."""


@public
@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A rule that combines several updates into one.

    ``mean`` is the weighted mean. ``median`` and ``trimmed-mean`` work on each coordinate and
    ignore the weights, because each client reports its own weight. ``geometric-median`` uses the
    weights. ``norm-clipping`` is the weighted mean after longer updates have been scaled down to
    the median norm. With ``hostile`` clients, ``mean`` is the weighted mean of updates of which none
    goes farther along the mean of the others than most of them do.
    """

    mean: str = setting(
        "mean",
        "how updates are averaged; all rules except mean limit the effect of hostile clients",
        choices=MEANS,
    )
    trim: float = setting(
        0.2,
        "fraction of the values that trimmed-mean removes at each end; at least one of three or more",
        ge=0,
        lt=0.5,
        only_with={"mean": ("trimmed-mean",)},
    )

    share: float | Literal["auto"] = setting(
        "auto",
        "maximum share of the total weight for one client, or twice the average weight if more; 1: no limit; auto: in a "
        f"federation or with adversaries, {SHARE:g} for weights that a method computes from what clients report, else none",
        gt=0,
        le=1,
    )

    hostile: int = setting(
        0,
        "number of hostile clients that must not decide which clients learn together: limits are tighter, and methods "
        "look at their groups without so few clients; 0: groups as published",
        ge=0,
    )

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.share, str) and self.share != "auto":
            raise SettingError(
                f"robust.share must be a number > 0 and <= 1, or auto, got {self.share!r}"
            )

    @property
    def limits_reports(self) -> bool:
        """Whether what one client reports is limited, so that a hostile one decides nothing for the others."""
        return self.share != 1.0

    @property
    def fewest_asked(self) -> int:
        """The fewest clients of a group that are asked to train, so that most of them are honest."""
        return 2 * self.hostile + 1

    @property
    def needs_all(self) -> bool:
        """Whether the rule needs all updates before it can average the first."""
        return self.mean != "mean" or self.hostile > 0

    def bounded(self, amounts: np.ndarray) -> np.ndarray:
        """Limit the weights so that no client has more than the largest share.

        Args:
            amounts: Shape ``(n,)``: the numbers of examples that the clients of one exchange
                report, or other weights.

        Returns:
            Shape ``(n,)``: the same weights, with the greatest cut to one level at which they have
            exactly that share. If too few clients have a weight above zero for that, their weights
            are equal, at the least of them; a single one keeps its weight.

        Raises:
            ValueError: A weight is negative or not finite.

        Example:
            >>> Averaging(share=0.1).bounded(np.array([30.0, 2.0, 1.0, 1.0]))  # twice the average weight is one half
            array([4., 2., 1., 1.])
        """
        # The largest share: 2 / n at least, twice the average weight.
        client_count = len(amounts)
        share = 1.0
        if client_count:
            share = max(SHARE if self.share == "auto" else self.share, 2 / client_count)
        is_wrong = ~(np.isfinite(amounts) & (amounts >= 0))
        if is_wrong.any():
            raise ValueError(f"weights must be finite and >= 0, got {amounts[is_wrong][0]:g}")
        if share >= 1 or amounts.max() <= share * amounts.sum(dtype=np.float64):
            return amounts
        # uncut_sums[i] is the sum of all weights but the i + 1 greatest.
        ordered = np.sort(amounts.astype(np.float64))[::-1]
        uncut_sums = ordered.sum() - ordered.cumsum()
        # The greatest weights are cut to one level: one of them, or two, until the level is at least
        # the next weight. The largest share is at least 2 / n, so n / 2 cut weights are enough.
        for cut_count in range(1, client_count):
            # The level m of j cut weights solves m = share * (j m + the sum of the others).
            max_amount = math.inf
            if cut_count * share < 1:
                max_amount = share * uncut_sums[cut_count - 1] / (1 - cut_count * share)
            if max_amount >= ordered[cut_count]:
                break
        # With so few weights above zero, no smaller shares than equal ones are possible.
        above_zero = amounts[amounts > 0]
        if len(above_zero) * share <= 1:
            return np.minimum(amounts, above_zero.min())
        is_integer = np.issubdtype(amounts.dtype, np.integer)
        # Numbers of examples stay whole numbers, of at least one.
        if is_integer:
            return np.minimum(amounts, max(1, math.floor(max_amount)))
        return np.minimum(amounts, max_amount)

    def of(self, updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        """Average several updates.

        Args:
            updates: Shape ``(n, d)``, n >= 1.
            weights: Shape ``(n,)``, non-negative, with a sum of at most 1. The average is scaled by
                that sum.

        Returns:
            Shape ``(d,)``, in the precision of ``updates``.
        """
        if self.mean == "mean" and self.hostile:
            weights = _weights_of_limited(updates, weights, self.hostile)
        if self.mean == "mean" or len(updates) == 1:
            return average(updates, weights)
        if self.mean == "norm-clipping":
            return _clipped(updates, weights)
        # The other rules find a middle of the updates, whatever the sum of the weights.
        return float(np.sum(weights)) * self._middle(updates, weights)

    def around(
        self,
        point: torch.Tensor,
        rows: torch.Tensor,
        weights: np.ndarray | Sequence[float],
    ) -> torch.Tensor:
        """Average models that were trained from about the same point.

        Only norm-clipping and the limits with ``hostile`` need the point: they limit the change that
        training made, ``rows - point``.

        Args:
            point: Shape ``(d,)``.
            rows: The models, shape ``(n, d)``.
            weights: Shape ``(n,)``, as in :meth:`of`.

        Returns:
            Shape ``(d,)``.
        """
        if self.mean == "norm-clipping" or self.hostile:
            return point + self.of(rows - point, weights)
        return self.of(rows, weights)

    def _middle(self, updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
        update_values = updates.numpy(force=True)
        if self.mean == "median":
            return _like(np.median(update_values, axis=0), updates)
        if self.mean == "trimmed-mean":
            min_trim = 0.0
            if self.trim and len(update_values) > 2:
                # At least one value at each end; SciPy rounds down.
                min_trim = (1 + 1e-9) / len(update_values)
            return _like(
                scipy.stats.trim_mean(update_values, max(self.trim, min_trim), axis=0), updates
            )
        return _geometric_median(updates, weights)


@public
def average(updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
    """Compute ``Σ w_i x_i`` of rows ``(n, d)``: shape ``(d,)``, in the precision of the rows."""
    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates


def _like(averaged_values: np.ndarray, updates: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(averaged_values, dtype=updates.dtype, device=updates.device)


MAX_COMPARED = 256
"""The most updates that are compared with each other where a few may be hostile; more are compared in parts."""


def _weights_of_limited(
    updates: torch.Tensor, weights: np.ndarray | Sequence[float], hostile: int
) -> np.ndarray:
    """Limit each update along the mean of the others, as weights of the same updates.

    Where clients differ, their updates nearly cancel, and one client that always steps against their
    mean stops all of them, within any limit of its norm. But along that one direction honest updates
    are alike, however much they differ elsewhere. So each update is moved along the mean of the
    others, until it goes as far as the (f + 1)-th least of all, but no farther than its own norm:
    where the others cancel, their mean says little. Elsewhere it stays as it is. Updates that go
    farther than others are not limited: they stop nobody, and those of large honest sites do.

    How far an update goes is its inner product with the mean of the others. To limit update i, each
    other update is compared with the mean of all but itself and i, so that none counts for its own
    direction, and i counts for none. Coterie's own.

    Args:
        updates: Shape ``(n, d)``.
        weights: Shape ``(n,)``; they do not count in the directions.
        hostile: f, the number of clients that may be hostile.

    Returns:
        Shape ``(n,)``: the weights with which the mean of the updates is that of the limited ones.
    """
    update_weights = np.asarray(weights, dtype=np.float64)
    part_count = -(-len(updates) // MAX_COMPARED)
    limited_weights = update_weights.copy()
    for part in np.array_split(np.arange(len(updates)), part_count):
        # Without a majority of honest clients, none can be told from the others.
        count = len(part)
        if count <= 2 * hostile or count < 3:
            continue
        rows = updates[int(part[0]) : int(part[-1]) + 1].double()
        products = (rows @ rows.T).numpy(force=True)
        squares = np.diagonal(products)
        # <x_j, mean of all but i and j>, and <x_i, mean of all but i> in the diagonal.
        sums = products.sum(axis=1)
        along = (sums - squares - products) / (count - 2)
        along_of_itself = (sums - squares) / (count - 1)
        np.fill_diagonal(along, along_of_itself)
        # ‖mean of all but i‖²
        squared_means = (sums.sum() - 2 * sums + squares) / (count - 1) ** 2
        # The (f + 1)-th least, but at most ‖x_i‖ ‖mean of all but i‖.
        least_along = np.sort(along, axis=1)[:, hostile]
        farthest = np.sqrt(squares * squared_means.clip(min=0.0))
        limited_along = np.maximum(along_of_itself, least_along).clip(-farthest, farthest)
        # x_i + shift_i · mean of all but i
        shifts = np.zeros(count)
        np.divide(
            limited_along - along_of_itself, squared_means, out=shifts, where=squared_means > 0
        )
        # Each of the others has 1 / (n - 1) of that mean: so much more, or less, it weighs.
        weighted_shifts = update_weights[part] * shifts / (count - 1)
        limited_weights[part] += weighted_shifts.sum() - weighted_shifts
    return limited_weights


def _clipped(updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
    """The weighted mean of updates that are scaled down to the median norm of those that moved."""
    update_norms = _norms(updates)
    positive_norms = update_norms[update_norms > 0].sort().values
    middle_position = len(positive_norms) // 2
    median_norm = update_norms.new_zeros(())
    if len(positive_norms):
        # The mean of both middle norms, because torch.median is the lower one.
        median_norm = (positive_norms[middle_position] + positive_norms[~middle_position]) / 2
    return _scaled_down(updates, weights, update_norms, median_norm)


def _norms(updates: torch.Tensor) -> torch.Tensor:
    """L2 norms of rows ``(n, d)``: shape ``(n,)``; in float64 if the squares overflow."""
    row_norms = updates.norm(dim=1)
    if bool(row_norms.isfinite().all()):
        return row_norms
    return updates.double().norm(dim=1)


def _scaled_down(
    updates: torch.Tensor,
    weights: np.ndarray | Sequence[float],
    update_norms: torch.Tensor,
    longest_norm: torch.Tensor | float,
) -> torch.Tensor:
    """The weighted mean of updates, of which longer ones are scaled down to ``longest_norm``."""
    # Shorter updates keep their length: no factor is above 1. The clamp avoids a division by zero.
    scale_factors = (
        longest_norm / update_norms.clamp(min=torch.finfo(update_norms.dtype).tiny)
    ).clamp(max=1.0)
    return average(updates, np.asarray(weights) * scale_factors.numpy(force=True))


def _geometric_median(updates: torch.Tensor, weights: np.ndarray | Sequence[float]) -> torch.Tensor:
    """The point with the smallest weighted sum of distances to the rows.

    The iteration starts at a mean of rows that are clipped at a norm in the middle. That point is
    already close, however long a hostile row is. It is also not a row, where Weiszfeld's iteration
    would stop.
    """
    update_rows = updates.double()
    row_weights = torch.as_tensor(weights, dtype=torch.float64, device=update_rows.device)
    update_norms = _norms(update_rows)
    positive_norms = update_norms[update_norms > 0]
    middle_norm = positive_norms.median() if len(positive_norms) else 0.0
    current_point = _scaled_down(update_rows, weights, update_norms, middle_norm)
    # Smoothed Weiszfeld steps: the mean with weights w_i / max(smoothing, distance of row i).
    for _ in range(MAX_WEISZFELD_STEPS):
        # The smoothing keeps a row at the point from getting infinite weight.
        distances = (update_rows - current_point).norm(dim=1)
        smoothing = WEISZFELD_TOLERANCE * float(distances.median())
        # Half of the rows are at the point.
        if not smoothing:
            break
        weights_over_distances = row_weights / distances.clamp(min=smoothing)
        new_point = (weights_over_distances / weights_over_distances.sum()) @ update_rows
        moved_distance = float((new_point - current_point).norm())
        current_point = new_point
        if moved_distance <= WEISZFELD_TOLERANCE * float(current_point.norm()):
            break
    # Steps become shorter near a row: if a row is itself the geometric median, it is the nearest
    # row.
    nearest_row = update_rows[(update_rows - current_point).norm(dim=1).argmin()]
    candidate_costs = [
        float((row_weights * (update_rows - candidate_row).norm(dim=1)).sum())
        for candidate_row in (current_point, nearest_row)
    ]
    point_cost, nearest_cost = candidate_costs
    return (nearest_row if nearest_cost < point_cost else current_point).to(updates.dtype)


CHUNK = 64
"""The number of updates that are averaged together. If updates arrive in multiples of this number,
the order of the sums does not depend on how many arrive at a time. If some updates are refused, the
order of the sums differs, and so does their rounding."""


@public
class Means:
    """Running weighted means of the updates of k groups.

    A robust rule of averaging needs all updates of a group at once: with such a rule, call
    :meth:`add` only once.

    Args:
        group_count: Number of groups.
        row_length: Number of parameters.
        averaging: The rule of averaging; the weighted mean if ``None``.

    Attributes:
        averaging: The rule of averaging.
        means: Shape ``(k, d)``; zeros for a group without updates.
        counts: Shape ``(k,)``: the number of updates in each mean.
        weight: Shape ``(k,)``: the sum of their weights.
    """

    def __init__(
        self, group_count: int, row_length: int, averaging: Averaging | None = None
    ) -> None:
        self.averaging = averaging or Averaging()
        self.means = torch.zeros(group_count, row_length)
        self.counts = np.zeros(group_count, dtype=np.int64)
        self.weight = np.zeros(group_count)

    def add(
        self, updates: torch.Tensor, amounts: np.ndarray, groups_of_updates: Sequence[Iterable[int]]
    ) -> None:
        """Add updates to the means.

        Args:
            updates: Shape ``(m, d)``.
            amounts: Shape ``(m,)``: the weight of each update.
            groups_of_updates: For each update, the groups in which it counts, if any.
        """
        chunk_size = len(updates) if self.averaging.needs_all else CHUNK
        for chunk_start in range(0, len(updates), max(chunk_size, 1)):
            # Group -> the updates of this chunk that count in it.
            rows_of_group: dict[int, list[int]] = {}
            for row_number in range(chunk_start, min(chunk_start + chunk_size, len(updates))):
                for group_number in groups_of_updates[row_number]:
                    rows_of_group.setdefault(group_number, []).append(row_number)
            # Each group averages its updates of the chunk, and joins them to its running mean.
            for group_number, row_numbers in rows_of_group.items():
                first_row = row_numbers[0]
                end_row = row_numbers[-1] + 1
                # Rows next to each other need no copy.
                is_contiguous = row_numbers == list(range(first_row, end_row))
                member_updates = updates[first_row:end_row]
                if not is_contiguous:
                    member_updates = updates[row_numbers]
                self._join(group_number, member_updates, amounts[row_numbers])

    def _join(self, group_number: int, updates: torch.Tensor, amounts: np.ndarray) -> None:
        total_amount = float(amounts.sum())
        # Updates without weight say nothing.
        if not total_amount > 0:
            return
        self.join(
            group_number,
            self.averaging.of(updates, amounts / total_amount),
            total_amount,
            len(updates),
        )

    def join(
        self, group_number: int, mean_update: torch.Tensor, added_weight: float, update_count: int
    ) -> None:
        """Add the mean of several updates to the mean of a group.

        Args:
            group_number: The group.
            mean_update: Shape ``(d,)``: the weighted mean of the updates.
            added_weight: The sum of their weights, above zero.
            update_count: The number of the updates.
        """
        # The new mean of weights W and w is (1 - s) mean + s new, with s = w / (W + w).
        weight_before = float(self.weight[group_number])
        if weight_before:
            added_share = added_weight / (weight_before + added_weight)
            mean_update = (
                self.means[group_number].mul(1 - added_share).add_(mean_update, alpha=added_share)
            )
        self.means[group_number] = mean_update
        self.weight[group_number] += added_weight
        self.counts[group_number] += update_count
