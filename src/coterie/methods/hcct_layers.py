"""HCCT-E: which layer to compare, that of the largest relative variance (arXiv 2401.13236, section V, equation 19)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.clustering import gram
from coterie.core import Client, Federation, Note

Layers = Mapping[str, tuple[tuple[int, int], ...]]
"""layer -> the columns of each of its tensors, one after the other."""


def comparable(federation: Federation, keep: tuple[str, ...]) -> Layers:
    """The layers that compete: those that travel, less normalisation layers, unless there are no others.

    What is told of a layer is the sizes of its tensors. One scale and one shift per channel are of equal size.
    """
    layers = {}
    for layer, (start, stop) in federation.columns.items():
        inside = tuple(span for span in federation.tensors.values() if start <= span[0] and span[1] <= stop)
        if layer not in keep:
            layers[layer] = inside or ((start, stop),)
    plain = {name: spans for name, spans in layers.items() if len(spans) == 1 or len({b - a for a, b in spans}) > 1}
    return plain or layers


def relative_variances(updates: Tensor, layers: Layers) -> dict[str, float]:
    """layer -> ``mean_n ‖g_n - ḡ‖² / ‖ḡ‖²`` of the clients' updates ``(n, d)`` in that layer, ḡ their plain mean.

    Both follow from the layer's Gram matrix: the mean of its diagonal less its mean, and its mean. A mean that cancels
    counts as 1e-12 of the squared norms, so that no unit matters; 0 where nothing moved.
    """
    ratios = {}
    for layer, spans in layers.items():
        products = gram(updates, columns=(spans[0][0], spans[-1][1]))
        squares, mean = float(products.diagonal().mean()), max(float(products.mean()), 0.0)
        ratios[layer] = (squares - mean) / max(mean, 1e-12 * squares) if squares > 0 else 0.0
    return ratios


def paper_code_ratios(updates: Tensor, layers: Layers) -> dict[str, float]:
    """layer -> variance / mean of its accumulated gradients, weight and bias apart and added, as in the published code.

    Over all entries of all clients together. The mean is signed, so a layer may rank last for being negative; -inf where
    a ratio is undefined. Gradients point against updates, and the learning rate scales all ratios alike.
    """
    ratios = {}
    for layer, spans in layers.items():
        pieces = (torch.var_mean(-updates[:, start:stop], correction=0) for start, stop in spans)
        total = sum(float(variance) / float(mean) if float(mean) else math.nan for variance, mean in pieces)
        ratios[layer] = total if math.isfinite(total) else -math.inf
    return ratios


def layer_note(clients: tuple[Client, ...], ratios: Mapping[str, float], how: str) -> Note:
    """Which layer is compared from now on; of equal ratios the first in the forward pass."""
    ranked = sorted(ratios, key=lambda layer: -ratios[layer])
    text = f"clients are compared by layer {ranked[0]!r} from now on, of relative variance {ratios[ranked[0]]:.3g} ({how})"
    if len(ranked) > 1:
        text += f"; next is {ranked[1]!r} with {ratios[ranked[1]]:.3g}"
    return Note(kind="layer", clients=clients, text=text, numbers=ratios)
