"""HCCT's models: what a group starts from, and what became of it (arXiv 2401.13236, Algorithm 1, equations 3 and 6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core import Client, Replies, average, group_means
from coterie.methods.hcct_groups import HCCTState


def starts(state: HCCTState) -> Tensor:
    """What each coming group trains from, ``(k, d)``: the mean of its members' models, by their training data."""
    return torch.stack([_start(state, group) for group in state.next]) if state.next else state.first[None]


def _start(state: HCCTState, group: tuple[Client, ...]) -> Tensor:
    data = dict.fromkeys((state.row[c] for c in group), 0)
    for client in group:
        data[state.row[client]] += state.sizes.get(client, 0)
    known = {row: n for row, n in data.items() if n} or dict.fromkeys(data, 1)  # never heard: of no weight
    if len(known) == 1:
        return state.models[next(iter(known))]
    return average(state.models[list(known)], np.array(list(known.values())) / sum(known.values()))


def beginners(state: HCCTState) -> tuple[Client, ...]:
    """Who trains from the first model in the coming epoch: everyone in the first, newcomers later."""
    may = state.waiting if state.sizes else state.clients
    fresh = {row: torch.equal(state.models[row], state.first) for row in {state.row[c] for c in may}}
    return tuple(c for c in may if fresh[state.row[c]])


def trained(state: HCCTState, replies: Replies) -> HCCTState:
    """Each group that was heard has moved by its mean update, silent members too; the models of the others stay."""
    if replies.means is not None and replies.heard is not None:
        means, heard = replies.means, replies.heard
    else:
        means, heard = group_means(replies, state.next)
    moved = np.flatnonzero(heard)
    row = {client: place for place, at in enumerate(moved) for client in state.next[at]}
    stale = sorted({state.row[c] for c in state.clients if c not in row})
    place = {old: len(moved) + i for i, old in enumerate(stale)}
    return replace(
        state, models=torch.cat([(starts(state) + means)[moved], state.models[stale]]),
        row={c: row[c] if c in row else place[state.row[c]] for c in state.clients}, groups=state.next,
        sizes={**state.sizes, **dict(zip(replies.clients, map(int, replies.examples), strict=True))},
    )  # fmt: skip
