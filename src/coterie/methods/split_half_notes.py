"""What split-half's notes tell of a probe besides its p-value: cosines of the clients' signals, distances to the parts, and
how near the nearest groups of a review are to being one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from coterie.clustering import signal_cosine, signal_gram
from coterie.clustering.congruence_split import Contrast
from coterie.core import Client, Groups, Note
from coterie.methods.cfl_leaves import Leaf


def with_cosines(note: Note, clients: tuple[Client, ...], products: np.ndarray) -> Note:
    """The note with the cosines of the clients' signals, without noise, from the Gram matrix ``(2n, 2n)`` of their halves."""
    return replace(note, heard=clients, similarity={"all": torch.from_numpy(signal_cosine(products)).float()})


def distances(clients: Sequence[Client], products: np.ndarray, parts: Groups) -> dict[str, dict[Client, float]]:
    """``distance j`` -> client -> the squared distance of its signal from the mean signal of part j, without the bias of
    noise, so it may be below zero; a client's own share in that mean is left out. Of parts that are the client alone, none."""
    signal, place = signal_gram(products), {client: i for i, client in enumerate(clients)}
    own = np.diagonal(signal)
    found: dict[str, dict[Client, float]] = {}
    for j, part in enumerate(parts):
        at = [place[client] for client in part if client in place]
        inside = np.zeros(len(clients), dtype=bool)
        inside[at] = True
        rows, total = signal[:, at].sum(axis=1), float(signal[np.ix_(at, at)].sum())
        count = len(at) - inside
        rest = np.where(inside, rows - own, rows), np.where(inside, total - 2 * rows + own, total)
        known = count > 0
        many = np.where(known, count, 1)
        apart = own - 2 * rest[0] / many + rest[1] / many**2
        found[f"distance {j}"] = {client: float(apart[i]) for i, client in enumerate(clients) if known[i]}
    return found


def nearest(pairs: Iterable[tuple[Leaf, Leaf, Contrast]]) -> Mapping[str, float]:
    """Of the pairs of groups that a review has compared, the numbers of that most likely to be one; none of no pairs."""
    one, other, found = max(pairs, key=lambda pair: pair[2].p, default=(None, None, None))
    if one is None or other is None or found is None:
        return {}
    return {"node": float(one.node), "other_node": float(other.node), "p": found.p, "distance": found.distance}
