"""Signals of updates for HCCT (ours): inner products of updates, without the noise that two halves of the data show.

Noise makes cosines smaller: ``‖g_i‖²`` contains the client's noise, but ``<g_i, g_j>`` does not,
because the noise of two clients is independent. Let a_i and b_i be updates of two halves of the
client's data, and g_i their mean. Their noise is independent too, so noise adds ``‖(a_i - b_i) /
2‖² = ‖g_i‖² - a_i · b_i`` to ``‖g_i‖²``.
"""

from __future__ import annotations

import numpy as np

from coterie.clustering import gram
from coterie.core import Replies


def update_products(replies: Replies, columns: slice) -> np.ndarray:
    """Return the Gram matrix ``(n, n)`` of the clients' updates in some columns."""
    if replies.gram is not None:
        return replies.gram
    return gram(replies.all_updates, columns=columns)


def halves_products(replies: Replies) -> np.ndarray:
    """Return the inner products ``a_i · b_i`` of each client's halves, ``(n,)``; NaN for a client without."""
    products = np.full(len(replies.clients), np.nan)
    if replies.halves is not None:
        halved_clients = replies.halves.clients
        # The Gram matrix is of a_1 to a_n, then b_1 to b_n: a_i · b_i is at (i, n + i).
        shared_products = replies.halves.gram.diagonal(len(halved_clients))
        products[replies.positions(halved_clients)] = shared_products
    return products


def noise_in(gram_matrix: np.ndarray, half_products: np.ndarray) -> np.ndarray:
    """Estimate the noise in the squared norms of updates.

    A client without halves gets the same share of noise as all others together.

    Args:
        gram_matrix: ``(n, n)``, the Gram matrix of the updates.
        half_products: ``(n,)``, the inner products of each client's halves; NaN for clients without.

    Returns:
        ``(n,)``, the part of each squared norm that is noise; 0 if no client has halves.
    """
    squared_norms = gram_matrix.diagonal()
    has_halves = ~np.isnan(half_products)
    if not has_halves.any():
        return np.zeros(len(gram_matrix))
    # ‖(a_i - b_i) / 2‖² = ‖g_i‖² - a_i · b_i
    noise = squared_norms - np.where(has_halves, half_products, 0.0)
    total = float(squared_norms[has_halves].sum())
    noise_share = float(noise[has_halves].sum()) / total if total > 0 else 0.0
    return np.where(has_halves, noise, squared_norms * noise_share)


def share_of_signal(squared_norms: np.ndarray, noise: np.ndarray) -> float:
    """Return the share of a sum of squared norms that is not noise.

    Args:
        squared_norms: ``(n,)``, squared norms.
        noise: ``(n,)``, the part of each that is noise.

    Returns:
        The share; 1 if no signal is left, because then only cosines of whole updates can be used.
    """
    total = float(squared_norms.sum())
    if total <= 0:
        return 1.0
    signal_share = 1.0 - float(noise.sum()) / total
    return signal_share if signal_share > 0 else 1.0


def without_noise(gram_matrix: np.ndarray, signal_share: float) -> np.ndarray:
    """Remove the noise from the diagonal of a Gram matrix.

    The remaining matrix may have negative eigenvalues. In a group at its optimum this would give
    means with a negative squared norm, and unbounded utilities. So cosines are limited to [-1, 1],
    and directions of negative eigenvalues, which are noise, are left out. If there is no noise
    except that of float32, the matrix does not change.

    Args:
        gram_matrix: ``(n, n)``, the Gram matrix of the updates.
        signal_share: the share of signal in its diagonal.

    Returns:
        ``(n, n)``, a Gram matrix of vectors close to the signals.
    """
    if signal_share > 1.0 - 1e-6:
        return gram_matrix
    # Cosines of signals: only the norms contain noise, so each is divided by the share of signal.
    update_norms = np.sqrt(np.maximum(gram_matrix.diagonal(), 0.0))
    norm_products = signal_share * np.outer(update_norms, update_norms)
    cosines = np.divide(
        gram_matrix, norm_products, out=np.eye(len(update_norms)), where=norm_products > 0
    )
    cosines = np.clip(cosines, -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    # Vectors with these cosines, without the directions of negative eigenvalues.
    eigenvalues, axes = np.linalg.eigh(cosines)
    vectors = axes * np.sqrt(np.maximum(eigenvalues, 0.0))
    # Unit length again. No vector is zero, because each squared length was 1 or more.
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors @ vectors.T * norm_products)
