"""HCCT's memory (ours): cosines of updates over epochs, so that the noise of one epoch breaks no group.

Near a group's optimum its mean update vanishes: members' updates are then noise or point away from each other, and the
definition dissolves a group that should stay. The cosine of two clients is therefore the mean of their cosines in the
epochs in which both were heard, each weighted by the norms of the two updates, and by β for every later one of them.
What clients said while they were far from their optimum counts most.

Of signals (:mod:`~coterie.methods.hcct_hearing`) that mean is divided by the share of signal in the squared norms of all who
are compared, over all their epochs: the correction of a correlation for noise. One client's share, or one epoch's, is too
noisy itself: with 40 examples a client, it came out below zero for a quarter of the clients.

First updates, from the first model, are remembered as well, shortened to :data:`SKETCH` numbers: those of the first epoch
and of newcomers. A newcomer's first update is compared with them, and not with what these clients say of a model that it has
never seen. Who was not heard in the first epoch has none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import sketch
from coterie.core import Client, state

SKETCH = 4096
"""Numbers kept of a first update: its cosines are off by 0.022 at most (a standard deviation)."""


@state("hcct.memory")
class Memory:
    """clients (n,): ids. products ``(n, n)``: ``Σ β^age <g_i, g_j>`` over the epochs in which both were heard; weights
    ``(n, n)``: ``Σ β^age ‖g_i‖ ‖g_j‖`` over the same, 0 for clients never compared; lengths (n,): ``Σ β^age ‖g_i‖``. noise
    (n,): ``Σ β^age`` of what noise adds to ``‖g_i‖²``, 0 in epochs in which that is not known.

    began: ids of those whose first updates, from the first model, are the rows of firsts, at most ``SKETCH`` wide.
    """

    clients: tuple[Client, ...]
    products: Tensor
    weights: Tensor
    lengths: Tensor
    noise: Tensor
    began: tuple[Client, ...] = ()
    firsts: Tensor | None = None


def remember(
    memory: Memory | None, clients: tuple[Client, ...], gram: np.ndarray, share: float, noise: np.ndarray | None = None
) -> Memory:
    """The memory after an epoch in which ``clients`` were heard, with the Gram matrix ``(n, n)``; ``share`` is β.

    noise ``(n,)``: what of the diagonal is noise; none of it where ``None``.
    """
    old = memory.clients if memory is not None else ()
    ids = tuple(sorted({*old, *clients}))
    place = {client: i for i, client in enumerate(ids)}
    products, weights = np.zeros((len(ids), len(ids))), np.zeros((len(ids), len(ids)))
    lengths, noises = np.zeros(len(ids)), np.zeros(len(ids))
    if memory is not None:
        at = [place[c] for c in old]
        products[np.ix_(at, at)], weights[np.ix_(at, at)] = memory.products, memory.weights
        lengths[at], noises[at] = memory.lengths, memory.noise
    at = [place[c] for c in clients]
    both, norm = np.ix_(at, at), np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    products[both] = share * products[both] + gram
    weights[both] = share * weights[both] + np.outer(norm, norm)
    lengths[at] = share * lengths[at] + norm
    noises[at] = share * noises[at] + (0.0 if noise is None else noise)
    return Memory(
        clients=ids, products=torch.from_numpy(products), weights=torch.from_numpy(weights),
        lengths=torch.from_numpy(lengths), noise=torch.from_numpy(noises),
        began=memory.began if memory is not None else (), firsts=memory.firsts if memory is not None else None,
    )  # fmt: skip


def begin(memory: Memory, clients: tuple[Client, ...], updates: Tensor) -> Memory:
    """The memory that knows the first updates ``(m, p)`` of ``clients``, who have just been heard for the first time.

    Their cosines with those who began before them are those of the first updates.
    """
    short = sketch(updates, SKETCH).clone()
    if memory.firsts is None:
        return replace(memory, began=clients, firsts=short)
    place = {client: i for i, client in enumerate(memory.clients)}
    new, old = [place[c] for c in clients], [place[c] for c in memory.began]
    found = (short @ memory.firsts.T).double()
    scale = torch.outer(torch.linalg.vector_norm(short, dim=1), torch.linalg.vector_norm(memory.firsts, dim=1)).double()
    products, weights = memory.products.clone(), memory.weights.clone()
    for table, values in ((products, found), (weights, scale)):
        table[np.ix_(new, old)] = values
        table[np.ix_(old, new)] = values.T
    firsts = torch.cat([memory.firsts, short])
    return replace(memory, products=products, weights=weights, began=(*memory.began, *clients), firsts=firsts)


def recall(memory: Memory, heard: Collection[Client]) -> tuple[tuple[Client, ...], np.ndarray]:
    """Clients, sorted, and the Gram matrix ``(n, n)`` of their remembered cosines and mean norms.

    They are those just heard, and of the silent those whose cosine with all others taken is known. A mean norm is weighted
    by the norms themselves. After one epoch this is that epoch's Gram matrix.
    """
    products, weights, lengths = memory.products.numpy(), memory.weights.numpy(), memory.lengths.numpy()
    known, spoke = weights > 0, set(heard)
    taken = [i for i, client in enumerate(memory.clients) if client in spoke]
    for i, client in enumerate(memory.clients):
        if client not in spoke and known[i, [*taken, i]].all():
            taken.append(i)
    taken.sort()
    both = np.ix_(taken, taken)
    cosines = np.divide(products[both], weights[both], out=np.zeros((len(taken), len(taken))), where=known[both])
    norm = np.divide(np.diagonal(products), lengths, out=np.zeros(len(lengths)), where=lengths > 0)[taken]
    return tuple(memory.clients[i] for i in taken), np.clip(cosines, -1.0, 1.0) * np.outer(norm, norm)


def signal_in(memory: Memory, clients: Collection[Client]) -> float:
    """The share of signal in what ``clients`` have said in all their epochs."""
    at = [i for i, client in enumerate(memory.clients) if client in clients]
    return share_of_signal(memory.products.numpy().diagonal()[at], memory.noise.numpy()[at])


def share_of_signal(squares: np.ndarray, noise: np.ndarray) -> float:
    """Of squared norms ``(n,)``, of which ``noise`` ``(n,)`` is noise: what is left of their sum. 1 where that is nothing, as
    cosines can then be of nothing but whole updates."""
    total = float(squares.sum())
    share = 1.0 - float(noise.sum()) / total if total > 0 else 1.0
    return share if share > 0 else 1.0


def forget(memory: Memory | None, gone: Collection[Client]) -> Memory | None:
    """The memory without clients that have left."""
    if memory is None:
        return None
    stay = [i for i, client in enumerate(memory.clients) if client not in gone]
    began = [i for i, client in enumerate(memory.began) if client not in gone]
    return Memory(
        clients=tuple(memory.clients[i] for i in stay), products=memory.products[stay][:, stay],
        weights=memory.weights[stay][:, stay], lengths=memory.lengths[stay],
        noise=memory.noise[stay], began=tuple(memory.began[i] for i in began),
        firsts=memory.firsts[began] if memory.firsts is not None and began else None,
    ) if stay else None  # fmt: skip
