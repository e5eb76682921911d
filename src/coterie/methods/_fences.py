"""Limits on the reports of clients, so that one hostile client decides nothing. Honest reports pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import compress

import numpy as np

from coterie.core import Client, Note
from coterie.notebook.tables import some

MIN_CLIENTS_FOR_QUARTILES = 8
"""The quartiles of fewer clients than this say little about where an honest value may lie: with
three clients, fences alone made a test at the 10 % level reject in 15 to 27 % of draws. So for few
clients the fences are wider by a slack."""

MEAN_SLACK = 1.0
"""The slack for means, in standard deviations of a single example."""

POSITIVE_SLACK = 10.0
"""The slack for variances and other positive values, a factor."""


def fenced(values: np.ndarray, slack: float = 0.0) -> np.ndarray:
    """Limit the value of each client to the outer fences of the other clients' values.

    Two clients are not limited: none of them can be told from the other.

    Args:
        values: Shape ``(n,)``.
        slack: How much wider the fences are on both sides.

    Returns:
        Shape ``(n,)``.

    Example:
        >>> fenced(np.array([1.0, 2.0, 3.0, 4.0, 1000.0]))
        array([1.  , 2.  , 3.  , 4.  , 7.75])
    """
    other_count = len(values) - 1
    if other_count < 2:
        return values
    # The quartiles of the other clients follow from all values in order and the client's own rank.
    ordered = np.sort(values)
    rank_of_client = np.argsort(np.argsort(values))

    def quantile(level: float) -> np.ndarray:
        """The quantile of all values but one, for each of them that is left out."""
        position = level * (other_count - 1)
        rank_below = math.floor(position)
        rank_above = math.ceil(position)
        # Without the client of rank r, the k-th value is the (k + 1)-th from r on.
        lower = ordered[rank_below + (rank_of_client <= rank_below)]
        upper = ordered[rank_above + (rank_of_client <= rank_above)]
        return np.asarray(lower + (position - rank_below) * (upper - lower))

    # Tukey's outer fences: three times the distance of the quartiles beyond them.
    low_quartiles = quantile(0.25)
    high_quartiles = quantile(0.75)
    fence_widths = 3 * (high_quartiles - low_quartiles) + slack
    return values.clip(low_quartiles - fence_widths, high_quartiles + fence_widths)


def fenced_positive(values: np.ndarray) -> np.ndarray:
    """Limit positive values on the scale of their logarithms, where those of honest clients are symmetric.

    Args:
        values: Shape ``(n,)``, non-negative. Zeros stay as they are.

    Returns:
        Shape ``(n,)``.
    """
    limited = values.copy()
    positive = values > 0
    slack = math.log(POSITIVE_SLACK) if len(values) < MIN_CLIENTS_FOR_QUARTILES else 0.0
    limited[positive] = np.exp(fenced(np.log(values[positive]), slack))
    return limited


def fenced_reports(means: np.ndarray, spreads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Limit the means and variances that clients report, each by those of the other clients.

    Args:
        means: Shape ``(n,)``: each client's mean over its examples.
        spreads: Shape ``(n,)``: the variances of a single example, non-negative. Zeros stay as they
            are.

    Returns:
        The limited means and variances, ``(n,)`` each.
    """
    needs_slack = len(means) < MIN_CLIENTS_FOR_QUARTILES
    limited = fenced_positive(spreads)
    # Means, with a slack in the unit of a single example's standard deviation.
    deviation = math.sqrt(np.median(limited)) if len(limited) else 0.0
    return fenced(means, MEAN_SLACK * deviation if needs_slack else 0.0), limited


def clients_limited(
    clients: Iterable[Client],
    before: tuple[np.ndarray, np.ndarray],
    after: tuple[np.ndarray, np.ndarray],
) -> set[Client]:
    """Return the clients whose reports were changed by :func:`fenced_reports`.

    Args:
        clients: The n clients.
        before: The means and variances that they reported, ``(n,)`` each.
        after: The limited ones.
    """
    is_kept = np.isclose(after[0], before[0]) & np.isclose(after[1], before[1])
    return set(compress(clients, ~is_kept))


LOSSES_LIMITED = "reports on held-out examples are limited by those of the other clients"
"""What happened to the clients whose reports the fences have changed."""


def fence_note(clients: Iterable[Client], limit_in_words: str = LOSSES_LIMITED) -> Note:
    """Describe whose reports were limited by the fences of the others' reports, and how."""
    limited_clients = tuple(sorted(clients))
    client_names = some([str(client) for client in limited_clients])
    text = f"{limit_in_words} (robust.share): client {client_names}"
    return Note(kind="bound", effect="limits", clients=limited_clients, text=text)
