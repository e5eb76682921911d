"""What HCCT's partitions rest on: the inner products of updates as they were heard, or of what is signal in them.

Noise makes cosines smaller: ``‖g_i‖²`` holds all of a client's own, and ``<g_i, g_j>`` none, as two clients share no noise.
From updates a_i, b_i of two halves of its data, whose mean is g_i, noise adds ``‖(a_i - b_i) / 2‖² = ‖g_i‖² - a_i · b_i``, as
the halves share none either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coterie.clustering import gram, sketch
from coterie.core import Client, Replies
from coterie.methods.hcct_groups import HCCTState, Heard
from coterie.methods.hcct_memory import Memory, begin, recall, remember, share_of_signal, signal_in

if TYPE_CHECKING:
    from coterie.methods.hcct import HCCT


def hear(method: HCCT, state: HCCTState, replies: Replies, new: tuple[Client, ...]) -> tuple[HCCTState, Heard]:
    """What the next partition rests on, and the state that remembers it. new: whose update was its first."""
    clients, matrix, signal = replies.clients, None, 1.0
    if not np.isinf(method.tradeoff):
        columns = state.columns
        if replies.updates is not None and replies.means is not None:  # sketches of these columns
            columns = slice(0, replies.updates.shape[1])
        matrix = _products(replies, columns)
        noise = noise_in(matrix, replies.halves)
        signal = share_of_signal(matrix.diagonal(), noise)
        if method.memory and not method.layer_open(state):  # what was seen of other columns compares with nothing later
            memory = remember(state.memory, clients, matrix, method.memory, noise)
            memory = _with_firsts(memory, replies.of(new), columns, method.sketch if replies.means is None else None)
            state = replace(state, memory=memory)
            clients, matrix = recall(memory, clients)
            signal = signal_in(memory, clients)
        if method.cosines == "signals":
            matrix = without_noise(matrix, signal)
    sizes = np.array([state.sizes[c] for c in clients], dtype=np.float64)
    unit = sizes if method.scale == "per-client" else np.ones(len(sizes))
    if method.scale == "mean-size":
        unit = unit * np.mean(list(state.sizes.values()))
    return state, Heard(replies.clients, clients, matrix, sizes, method.tradeoff * unit, signal)


def _products(replies: Replies, columns: slice) -> np.ndarray:
    if replies.gram is not None:
        return replies.gram
    assert replies.updates is not None
    return gram(replies.updates, columns=columns)


def noise_in(matrix: np.ndarray, halves: np.ndarray | None) -> np.ndarray:
    """What noise adds to each squared norm of a Gram matrix ``(n, n)`` of updates, ``(n,)``, by that of their ``halves``
    ``(2n, 2n)``: for who has none the same share as of all others together, and 0 where nobody has."""
    if halves is None or np.isnan(halves.diagonal()).all():
        return np.zeros(len(matrix))
    square, shared = matrix.diagonal(), halves.diagonal(len(matrix))  # a_i · b_i
    known = ~np.isnan(shared)
    noise = square - np.where(known, shared, 0.0)
    total = float(square[known].sum())
    return np.where(known, noise, square * (float(noise[known].sum()) / total if total > 0 else 0.0))


def without_noise(matrix: np.ndarray, signal: float) -> np.ndarray:
    """A Gram matrix ``(n, n)`` of updates with the share ``signal`` of its diagonal, of the vectors that come near it.

    What is left need be no vectors' Gram matrix: in a group at its optimum it would have means shorter than nothing, and
    utilities without bound. So cosines are cut to [-1, 1], and directions of negative squares, which are noise, left out.
    Where there is no noise but float32's, nothing changes.
    """
    if signal > 1.0 - 1e-6:
        return matrix
    norm = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    lengths = signal * np.outer(norm, norm)
    cosines = np.clip(np.divide(matrix, lengths, out=np.eye(len(norm)), where=lengths > 0), -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    squares, axes = np.linalg.eigh(cosines)
    rows = axes * np.sqrt(np.maximum(squares, 0.0))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # of unit length again; none is zero, as each square was 1 or more
    return np.asarray(rows @ rows.T * lengths)


def _with_firsts(memory: Memory, first: Replies, columns: slice, size: int | None) -> Memory:
    """size: of the sketches to be made, where the rows are none yet, as HCCT-E had to see all layers."""
    if not first.clients:
        return memory
    assert first.updates is not None
    rows = first.updates[:, columns]
    return begin(memory, first.clients, rows if size is None else sketch(rows, size))
