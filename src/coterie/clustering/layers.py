"""Which layers tell clients apart (ACFL): a Gram matrix and cosine similarities of every layer on its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from coterie.clustering import _checks
from coterie.clustering.geometry import cosine, gram_of_rows

ALL = "all"
"""The name of the matrix of all layers together."""


def layer_grams(rows: np.ndarray | Tensor, columns: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """layer -> ``(n, n)`` inner products of the clients' rows ``(n, d)`` in that layer's columns alone.

    columns: layer -> ``(start, stop)``, which do not overlap, so that the matrices of layers add up to that of them all.
    Raises ``ValueError`` for rows that are not finite and for columns that are not there.

    >>> layer_grams(np.array([[3.0, 4.0], [0.0, 2.0]]), {"conv": (0, 1), "fc": (1, 2)})["fc"]
    array([[16.,  8.],
           [ 8.,  4.]])
    """
    checked = _checks.rows(rows)
    return {layer: gram_of_rows(checked, span) for layer, span in columns.items()}


def layer_similarities(rows: np.ndarray | Tensor, columns: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """layer -> ``(n, n)`` cosine similarities of the clients' rows ``(n, d)`` in that layer, and ``"all"`` in all of them.

    The matrices of ACFL's figure 3: first layers are alike in all clients, the last ones tell tasks apart. Arguments and
    errors as in :func:`layer_grams`.

    >>> found = layer_similarities(np.array([[3.0, 4.0], [0.0, 2.0]]), {"conv": (0, 1), "fc": (1, 2)})
    >>> float(found["fc"][0, 1]), float(found["all"][0, 1])
    (1.0, 0.8)
    """
    return layer_cosines(layer_grams(rows, columns))


def layer_cosines(grams: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """:func:`layer_similarities` from the matrices of :func:`layer_grams`; ``"all"`` is the cosine of their sum."""
    return {**{layer: cosine(gram) for layer, gram in grams.items()}, ALL: cosine(np.sum([*grams.values()], axis=0))}
