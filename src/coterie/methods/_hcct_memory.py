"""Memory of HCCT (ours): means of cosines over epochs, so that the noise of one epoch does not split a group.

Near a group's optimum its mean update vanishes: the members' updates are then noise or have
negative cosines, and the definition dissolves a group that should stay. The cosine of two clients
is therefore the mean of their cosines in the epochs in which both answered, each weighted by the
norms of the two updates, and by β for every later such epoch. So updates from epochs far from the
optimum count most.

For signals, that mean is divided by the share of signal in the squared norms of all clients that
are compared, over all their epochs: the correction of a correlation for noise. The share of one
client, or of one epoch, is too noisy: with 40 examples per client, it was below zero for a quarter
of the clients.

First updates, from the first model, are remembered as well, as sketches of :data:`SKETCH` numbers:
those of the first epoch and of newcomers. A newcomer's first update is compared with them, not with
the other clients' updates of a model that the newcomer has never had. Clients that did not answer
in the first epoch have no first update.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch

from coterie.clustering import sketch
from coterie.core import Client, Replies, rows_without, state, without
from coterie.methods._hcct_signals import share_of_signal
from coterie.methods._positions import positions_of

SKETCH = 4096
"""Numbers kept of a first update; the standard deviation of its cosines' error is 0.022 at most."""


@state("hcct.memory")
class Memory:
    """Cosines of updates over epochs.

    Attributes:
        clients: n ids.
        products: ``(n, n)``, ``Σ β^age <g_i, g_j>`` over the epochs in which both clients answered.
        weights: ``(n, n)``, ``Σ β^age ‖g_i‖ ‖g_j‖`` over the same epochs; 0 for clients never
            compared.
        lengths: ``(n,)``, ``Σ β^age ‖g_i‖``.
        noise: ``(n,)``, ``Σ β^age`` times the part of ``‖g_i‖²`` that is noise; 0 in epochs in
            which it is unknown.
        began: ids of the clients whose first updates, from the first model, are the rows of
            ``firsts``.
        firsts: ``(m, p)``, first updates, with p at most ``SKETCH``; None before there are any.
    """

    clients: tuple[Client, ...]
    products: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor
    noise: torch.Tensor
    began: tuple[Client, ...] = ()
    firsts: torch.Tensor | None = None


def remember(
    memory: Memory | None,
    clients: tuple[Client, ...],
    gram_matrix: np.ndarray,
    decay: float,
    noise: np.ndarray | None = None,
) -> Memory:
    """Return the memory after an epoch.

    Args:
        memory: the memory before it; None before the first epoch.
        clients: the n clients that answered.
        gram_matrix: ``(n, n)``, the Gram matrix of their updates.
        decay: weight of an epoch in each later one (β).
        noise: ``(n,)``, the part of the diagonal that is noise; None for zero.
    """
    # The tables grow by the clients that are new in the memory.
    known_clients = memory.clients if memory is not None else ()
    all_clients = tuple(sorted({*known_clients, *clients}))
    client_count = len(all_clients)
    products = np.zeros((client_count, client_count))
    weights = np.zeros((client_count, client_count))
    lengths = np.zeros(client_count)
    noises = np.zeros(client_count)
    if memory is not None:
        earlier = positions_of(known_clients, among=all_clients)
        products[np.ix_(earlier, earlier)] = memory.products
        weights[np.ix_(earlier, earlier)] = memory.weights
        lengths[earlier] = memory.lengths
        noises[earlier] = memory.noise
    # Only pairs that answered together age by β and get this epoch's products.
    answered = positions_of(clients, among=all_clients)
    pairs = np.ix_(answered, answered)
    update_norms = np.sqrt(np.maximum(np.diagonal(gram_matrix), 0.0))
    products[pairs] = decay * products[pairs] + gram_matrix
    weights[pairs] = decay * weights[pairs] + np.outer(update_norms, update_norms)
    lengths[answered] = decay * lengths[answered] + update_norms
    noises[answered] = decay * noises[answered] + (0.0 if noise is None else noise)
    return Memory(
        clients=all_clients,
        products=torch.from_numpy(products),
        weights=torch.from_numpy(weights),
        lengths=torch.from_numpy(lengths),
        noise=torch.from_numpy(noises),
        began=memory.began if memory is not None else (),
        firsts=memory.firsts if memory is not None else None,
    )


def begin(memory: Memory, clients: tuple[Client, ...], updates: torch.Tensor) -> Memory:
    """Add first updates to the memory.

    The cosines of these clients with those that began before them are the cosines of the first
    updates.

    Args:
        memory: the memory, with this epoch in it.
        clients: m clients that have just answered for the first time.
        updates: ``(m, p)``, their updates.
    """
    new_sketches = sketch(updates, SKETCH).clone()
    # Without earlier first updates, this epoch's products are right as they are.
    if memory.firsts is None:
        return replace(memory, began=clients, firsts=new_sketches)
    # The products and norms of new and earlier first updates.
    first_products = (new_sketches @ memory.firsts.T).double()
    norm_products = torch.outer(
        torch.linalg.vector_norm(new_sketches, dim=1),
        torch.linalg.vector_norm(memory.firsts, dim=1),
    ).double()
    # They replace this epoch's entries, which compare updates of different models.
    new_positions = positions_of(clients, among=memory.clients)
    earlier_positions = positions_of(memory.began, among=memory.clients)
    products = memory.products.clone()
    weights = memory.weights.clone()
    for table, entries in ((products, first_products), (weights, norm_products)):
        table[np.ix_(new_positions, earlier_positions)] = entries
        table[np.ix_(earlier_positions, new_positions)] = entries.T
    return replace(
        memory,
        products=products,
        weights=weights,
        began=(*memory.began, *clients),
        firsts=torch.cat([memory.firsts, new_sketches]),
    )


def recall(memory: Memory, answered: Collection[Client]) -> tuple[tuple[Client, ...], np.ndarray]:
    """Return the clients that can be compared, and the Gram matrix of their remembered cosines and mean norms.

    These are the clients that have just answered, and the silent clients whose cosines with all
    others in the result are known. A mean norm is weighted by the norms themselves. After one epoch
    the result is that epoch's Gram matrix.

    Args:
        memory: the memory.
        answered: clients that have just answered.

    Returns:
        The n clients, sorted, and the Gram matrix ``(n, n)``.
    """
    products = memory.products.numpy()
    weights = memory.weights.numpy()
    lengths = memory.lengths.numpy()
    was_compared = weights > 0
    # The clients that answered, then each silent client whose cosines with all of these are known.
    answered_clients = set(answered)
    recalled = positions_of(sorted(answered_clients), among=memory.clients)
    for position, client in enumerate(memory.clients):
        is_silent = client not in answered_clients
        if is_silent and was_compared[position, [*recalled, position]].all():
            recalled.append(position)
    recalled.sort()
    # The mean cosine of each pair, weighted by the norms of the two updates.
    pairs = np.ix_(recalled, recalled)
    cosines = np.divide(
        products[pairs],
        weights[pairs],
        out=np.zeros((len(recalled), len(recalled))),
        where=was_compared[pairs],
    )
    # The mean norm of each client: Σ β^age ‖g_i‖² / Σ β^age ‖g_i‖.
    mean_norms = np.divide(
        np.diagonal(products), lengths, out=np.zeros(len(lengths)), where=lengths > 0
    )
    recalled_norms = mean_norms[recalled]
    gram_matrix = np.clip(cosines, -1.0, 1.0) * np.outer(recalled_norms, recalled_norms)
    return tuple(memory.clients[position] for position in recalled), gram_matrix


def signal_in(memory: Memory, clients: Collection[Client]) -> float:
    """Return the share of signal in the squared norms of the clients' updates, over all their epochs."""
    positions = positions_of(sorted(clients), among=memory.clients)
    squared_norms = memory.products.numpy().diagonal()
    return share_of_signal(squared_norms[positions], memory.noise.numpy()[positions])


def forget(memory: Memory | None, leavers: Collection[Client]) -> Memory | None:
    """Return the memory without clients that have left."""
    if memory is None:
        return None
    remaining = without(memory.clients, leavers)
    if not remaining:
        return None
    # First updates are in the order in which clients began.
    began = without(memory.began, leavers)
    kept_firsts = None
    if memory.firsts is not None and began:
        _, kept_firsts = rows_without(memory.began, memory.firsts, leavers)
    kept_positions = positions_of(remaining, among=memory.clients)
    return Memory(
        clients=remaining,
        products=memory.products[kept_positions][:, kept_positions],
        weights=memory.weights[kept_positions][:, kept_positions],
        lengths=memory.lengths[kept_positions],
        noise=memory.noise[kept_positions],
        began=began,
        firsts=kept_firsts,
    )


def with_firsts(
    memory: Memory, first_replies: Replies, columns: slice, sketch_size: int | None
) -> Memory:
    """Add first updates to the memory; with ``sketch_size``, as sketches (HCCT-E first needs all layers)."""
    if not first_replies.clients:
        return memory
    updates = first_replies.all_updates[:, columns]
    if sketch_size is not None:
        updates = sketch(updates, sketch_size)
    return begin(memory, first_replies.clients, updates)
