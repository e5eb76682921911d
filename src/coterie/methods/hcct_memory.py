"""HCCT's memory (ours): cosines of updates over epochs, so that the noise of one epoch breaks no group.

Near a group's optimum its mean update vanishes: members' updates are then noise or point away from each other, and the
definition dissolves a group that should stay. The cosine of two clients is therefore the mean of their cosines in the
epochs in which both were heard, each weighted by the norms of the two updates, and by β for every epoch it is older.
What clients said while they were far from their optimum counts most.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from coterie.core import Client, state


@state
class Memory:
    """clients (n,): ids. products ``(n, n)``: ``Σ β^age <g_i, g_j>`` over the epochs in which both were heard; weights
    ``(n, n)``: ``Σ β^age ‖g_i‖ ‖g_j‖`` over the same, 0 for clients never heard together. norms ``(n,)``: the last ones."""

    clients: tuple[Client, ...]
    products: Tensor
    weights: Tensor
    norms: Tensor


def remember(memory: Memory | None, clients: tuple[Client, ...], gram: np.ndarray, share: float) -> Memory:
    """The memory after an epoch in which ``clients`` were heard, with the Gram matrix ``(n, n)``; ``share`` is β."""
    old = memory.clients if memory is not None else ()
    ids = tuple(sorted({*old, *clients}))
    place = {client: i for i, client in enumerate(ids)}
    products, weights, norms = np.zeros((len(ids), len(ids))), np.zeros((len(ids), len(ids))), np.zeros(len(ids))
    if memory is not None:
        at = [place[c] for c in old]
        products[np.ix_(at, at)], weights[np.ix_(at, at)], norms[at] = memory.products, memory.weights, memory.norms
    at = [place[c] for c in clients]
    both, norm = np.ix_(at, at), np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    products[both] = share * products[both] + gram
    weights[both] = share * weights[both] + np.outer(norm, norm)
    norms[at] = norm
    return Memory(clients=ids, **{k: torch.from_numpy(v) for k, v in
                                  (("products", products), ("weights", weights), ("norms", norms))})  # fmt: skip


def recall(memory: Memory, heard: Collection[Client]) -> tuple[tuple[Client, ...], np.ndarray]:
    """Clients, sorted, and the Gram matrix of their last norms and remembered cosines.

    They are those just heard, and of the silent those whose cosine with all others taken is known.
    """
    products, weights, norms = memory.products.numpy(), memory.weights.numpy(), memory.norms.numpy()
    known, spoke = weights > 0, set(heard)
    taken = [i for i, client in enumerate(memory.clients) if client in spoke]
    for i, client in enumerate(memory.clients):
        if client not in spoke and known[i, [*taken, i]].all():
            taken.append(i)
    both = np.ix_(sorted(taken), sorted(taken))
    cosines = np.divide(products[both], weights[both], out=np.zeros((len(taken), len(taken))), where=known[both])
    norm = norms[sorted(taken)]
    return tuple(memory.clients[i] for i in sorted(taken)), np.clip(cosines, -1.0, 1.0) * np.outer(norm, norm)


def forget(memory: Memory | None, gone: Collection[Client]) -> Memory | None:
    """The memory without clients that have left."""
    if memory is None:
        return None
    stay = [i for i, client in enumerate(memory.clients) if client not in gone]
    return Memory(
        clients=tuple(memory.clients[i] for i in stay), products=memory.products[stay][:, stay],
        weights=memory.weights[stay][:, stay], norms=memory.norms[stay],
    ) if stay else None  # fmt: skip
