"""What several methods decide about a group, and what they say about a clustering.

A note describes a decision afterwards and steers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.core import Client, Groups, Note


@dataclass(frozen=True)
class SplitGroup:
    """The group is divided.

    Attributes:
        parts: the new groups.
    """

    parts: Groups


@dataclass(frozen=True)
class KeepWhole:
    """The group trains on as it is."""


def missed_quorum(clients: tuple[Client, ...], answered: int, quorum: float) -> Note | None:
    """Return the note of a clustering for which too few clients answered; None if enough did.

    Args:
        clients: all clients to cluster.
        answered: how many of them answered.
        quorum: the fraction of them that must answer; at least one client must, too.
    """
    if answered >= quorum * len(clients) and answered >= 1:
        return None
    description = (
        f"not clustered yet: {answered} of {len(clients)} clients answered, "
        f"less than the quorum {quorum:g}"
    )
    return Note(kind="keep", effect="keeps", clients=clients, text=description)


def merges_at_cut(merges: np.ndarray, num_groups: int) -> dict[str, float]:
    """Return the last merge that a cut made and the next one, which was not made; they show how clear it is.

    Args:
        merges: ``(n - 1,)``, the distances or similarities of the merges, in their order.
        num_groups: number of groups of the cut.

    Returns:
        ``last_merge``, unless there is none, and ``next_merge``, unless there is one group.
    """
    # n clients have n - 1 merges, and n - k of these make k groups.
    num_made = len(merges) - (num_groups - 1)
    numbers = {}
    if num_made:
        numbers["last_merge"] = float(merges[num_made - 1])
    if num_groups > 1:
        numbers["next_merge"] = float(merges[num_made])
    return numbers


def cut_in_words(numbers: Mapping[str, float], num_groups: int) -> str:
    """Describe the merges at a cut, from :func:`merges_at_cut`, and how many groups it gives."""
    # No merge was made if every client is alone, and none is left if all are one group.
    last_merge = f"{numbers['last_merge']:.3g}" if "last_merge" in numbers else "none"
    next_merge = f"{numbers['next_merge']:.3g}" if "next_merge" in numbers else "none"
    groups = f"{num_groups} group{'s' if num_groups > 1 else ''}"
    return f"of the last merge {last_merge}, of the next one {next_merge}; {groups}"


def cut_rule_in_words(threshold: float | None, groups: int | None) -> str:
    """Describe the rule of a cut: its threshold, or the number of groups if there is no threshold."""
    if threshold is not None:
        return f"threshold {threshold:g}"
    return f"{groups} groups asked for"
