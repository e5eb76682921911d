"""Weighted means of updates, row by row of a plan's models, taken as the updates come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.averaging import Averaging
from coterie.core.messages import Replies, amounts
from coterie.core.state import Client

CHUNK = 64
"""Updates averaged together. What is averaged in which order does not depend on how many came at a time, as long as that
is a multiple of this; where some were refused, sums are taken in another order, which is rounding."""


class Means:
    """Running weighted means ``(k, d)`` of k groups; ``heard`` ``(k,)`` counts their updates. Zeros where there are none.

    A robust rule of averaging looks at all updates of a group at once: with one, :meth:`add` is called once.
    """

    def __init__(self, k: int, d: int, averaging: Averaging | None = None) -> None:
        self.averaging = averaging or Averaging()
        self.means, self.heard, self.weight = torch.zeros(k, d), np.zeros(k, dtype=np.int64), np.zeros(k)

    def add(self, updates: Tensor, amounts: np.ndarray, groups: Sequence[Iterable[int]]) -> None:
        """updates ``(m, d)``; amounts ``(m,)``: what each weighs; groups: per update, those it counts in, if any."""
        chunk = len(updates) if self.averaging.needs_all else CHUNK
        for start in range(0, len(updates), max(chunk, 1)):
            members: dict[int, list[int]] = {}
            for i in range(start, min(start + chunk, len(updates))):
                for group in groups[i]:
                    members.setdefault(group, []).append(i)
            for group, at in members.items():
                together = at == list(range(at[0], at[-1] + 1))  # then the rows need no copy
                self._join(group, updates[at[0] : at[-1] + 1] if together else updates[at], amounts[at])

    def _join(self, group: int, updates: Tensor, amounts: np.ndarray) -> None:
        part, before = float(amounts.sum()), float(self.weight[group])
        mean = self.averaging.of(updates, amounts / part)
        if before:
            share = part / (before + part)
            mean = self.means[group].mul(1 - share).add_(mean, alpha=share)
        self.means[group] = mean
        self.weight[group] += part
        self.heard[group] += len(updates)


def group_means(replies: Replies, groups: Sequence[Iterable[Client]], weighting: str = "data") -> tuple[Tensor, np.ndarray]:
    """The weighted mean update of each of k groups, ``(k, d)`` in float32, and how many of it answered, ``(k,)``; zeros where
    nobody."""
    assert replies.updates is not None
    place = {client: i for i, client in enumerate(replies.clients)}
    within: list[list[int]] = [[] for _ in place]
    for group, members in enumerate(groups):
        for client in members:
            if client in place:
                within[place[client]].append(group)
    means = Means(len(groups), replies.updates.shape[1], replies.averaging)
    means.add(replies.updates, amounts(replies.examples, weighting), within)
    return means.means, means.heard
