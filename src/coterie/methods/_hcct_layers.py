"""Layers of HCCT-E (section V, equation 19): the choice of the layer to compare, by the largest relative variance."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from coterie.clustering import gram
from coterie.core import Client, Federation, Note

Layers = Mapping[str, tuple[tuple[int, int], ...]]
"""Layer -> the columns of each of its tensors, one after the other."""


def comparable(federation: Federation, personal_layers: tuple[str, ...]) -> Layers:
    """Return the layers that may be compared: those that are sent, without normalisation layers unless there are no others.

    Only the sizes of a layer's tensors are known. A layer of several tensors, all of one size (one
    scale and one shift per channel), counts as a normalisation layer.

    Args:
        federation: the columns of the model's layers and tensors.
        personal_layers: layers that stay at the client.
    """
    # The layers that leave the clients, each with the columns of its tensors.
    sent_layers = {}
    for layer, (start, stop) in federation.columns.items():
        if layer in personal_layers:
            continue
        tensor_spans = []
        for tensor_start, tensor_stop in federation.tensors.values():
            if start <= tensor_start and tensor_stop <= stop:
                tensor_spans.append((tensor_start, tensor_stop))
        sent_layers[layer] = tuple(tensor_spans) or ((start, stop),)
    # Normalisation layers are compared only if there is nothing else.
    main_layers = {}
    for layer, spans in sent_layers.items():
        if not _is_normalisation(spans):
            main_layers[layer] = spans
    return main_layers or sent_layers


def _is_normalisation(spans: tuple[tuple[int, int], ...]) -> bool:
    """Whether a layer has several tensors, all of one size."""
    tensor_sizes = {stop - start for start, stop in spans}
    return len(spans) > 1 and len(tensor_sizes) == 1


def relative_variances(updates: torch.Tensor, layers: Layers) -> dict[str, float]:
    """Return the relative variance of the updates in each layer.

    It is ``mean_n ‖g_n - ḡ‖² / ‖ḡ‖²``, with ḡ the unweighted mean of the updates. Both terms follow
    from the layer's Gram matrix: the mean of its diagonal minus its mean, and its mean. A mean that
    cancels counts as 1e-12 of the squared norms, so that the result does not depend on units.

    Args:
        updates: ``(n, d)``, the clients' updates.
        layers: the layers.

    Returns:
        Layer -> relative variance; 0 where no update moved.
    """
    ratio_of_layer = {}
    for layer, spans in layers.items():
        # The Gram matrix of the layer's columns has <g_i, g_j> for each two clients.
        products = gram(updates, columns=(spans[0][0], spans[-1][1]))
        # Its diagonal has the mean mean_n ‖g_n‖², and all of it the mean ‖ḡ‖².
        mean_square = float(products.diagonal().mean())
        square_of_mean = max(float(products.mean()), 0.0)
        ratio_of_layer[layer] = 0.0
        if mean_square > 0:
            variance = mean_square - square_of_mean
            ratio_of_layer[layer] = variance / max(square_of_mean, 1e-12 * mean_square)
    return ratio_of_layer


def paper_code_ratios(updates: torch.Tensor, layers: Layers) -> dict[str, float]:
    """Return variance / mean of the accumulated gradients in each layer, as in the published code.

    Both are over all entries of all clients together. The ratios of weight and bias are computed
    separately and added. The mean is signed, so a layer may rank last because its mean is negative.
    Gradients are the negative updates; the learning rate scales all ratios by the same factor.

    Args:
        updates: ``(n, d)``, the clients' updates.
        layers: the layers.

    Returns:
        Layer -> ratio; -inf where it is undefined.
    """
    ratio_of_layer = {}
    for layer, spans in layers.items():
        layer_ratio = 0.0
        for start, stop in spans:
            variance, mean = torch.var_mean(-updates[:, start:stop], correction=0)
            layer_ratio += float(variance) / float(mean) if float(mean) else math.nan
        ratio_of_layer[layer] = layer_ratio if math.isfinite(layer_ratio) else -math.inf
    return ratio_of_layer


def layer_note(clients: tuple[Client, ...], ratios: Mapping[str, float], rule: str) -> Note:
    """Describe the choice of the layer to compare; of equal ratios the first layer in the forward pass.

    Args:
        clients: all clients.
        ratios: layer -> ratio.
        rule: the rule, ``robust`` or ``paper-code``.
    """
    chosen_layer, *other_layers = sorted(ratios, key=lambda layer: -ratios[layer])
    description = (
        f"clients are compared by layer {chosen_layer!r} from now on, "
        f"of relative variance {ratios[chosen_layer]:.3g} ({rule})"
    )
    if other_layers:
        runner_up = other_layers[0]
        description += f"; next is {runner_up!r} with {ratios[runner_up]:.3g}"
    return Note(kind="layer", effect="info", clients=clients, text=description, numbers=ratios)
