"""Steps of training on a GPU that are recorded as CUDA graphs, and replayed with one call each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from coterie.core import Training
from coterie.training.learner import Learner


def recordable(learner: Learner, training: Training) -> bool:
    """Return whether a step can be recorded as a CUDA graph.

    A replay repeats what the GPU did, not what Python did. So the network must be made of layers of
    which all that changes is on the GPU. Adam counts its steps elsewhere.

    Args:
        learner: The network, its loss and the device.
        training: Settings of local training.
    """
    if learner.device.type != "cuda" or training.optimizer != "sgd":
        return False
    if not learner.objective.plain_classes:
        return False
    # A replay needs that every layer keeps all that changes on the GPU.
    parts = list(learner.module.modules())
    # A BatchNorm without momentum reads its count of batches.
    counts_batches = any(getattr(part, "momentum", 0.0) is None for part in parts)
    if counts_batches or not used_once(learner.module):
        return False
    return all(type(part) in _ON_THE_GPU for part in parts)


# Layers that keep all that changes on the GPU.
_ON_THE_GPU = frozenset(
    {nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Embedding, nn.Dropout}
    | {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm}
    | {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
    | {nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d}
    | {nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d}
    | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.PReLU}
)


class Recorded:
    """A function of tensors that is recorded as a CUDA graph and replayed, with what it reads and changes at the same place.

    The calls to torch of one step take longer than the GPU's own work. A graph needs one call for
    all of it.

    Args:
        function: The function.
        device: The device of its tensors.
    """

    CALLS_BEFORE = 3
    """Calls before the recording, in which torch makes what it makes only once. Shorter training
    gains nothing."""

    def __init__(self, function: Callable[..., None], device: torch.device) -> None:
        self.function = function
        self.device = device
        self.calls: Counter[tuple[torch.Size, ...]] = Counter()
        self.graphs: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, *tensors: Tensor) -> None:
        """Call the function, or replay its graph for tensors of these shapes."""
        shapes = tuple(tensor.shape for tensor in tensors)
        # Batches of other shapes, such as a shorter last one, have a graph of their own.
        if self.calls[shapes] == self.CALLS_BEFORE:
            self.graphs[shapes] = self.record(tensors)
        self.calls[shapes] += 1
        if shapes not in self.graphs:
            self.function(*tensors)
            return
        graph, graph_inputs = self.graphs[shapes]
        # A graph always reads the same memory, so the new tensors are copied there.
        for graph_input, tensor in zip(graph_inputs, tensors, strict=True):
            graph_input.copy_(tensor)
        graph.replay()

    def record(self, tensors: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        """Record the function; nothing is computed yet.

        Args:
            tensors: Tensors of the shapes to record.

        Returns:
            The graph, and the tensors that it reads.
        """
        graph = torch.cuda.CUDAGraph()
        graph_inputs = [tensor.clone() for tensor in tensors]
        # By default the stream would be that of the first GPU that recorded anything.
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=stream):
            self.function(*graph_inputs)
        return graph, graph_inputs


def used_once(module: nn.Module) -> bool:
    """Return whether no part of a module occurs twice, and none has hooks.

    Args:
        module: The network.
    """
    # A layer that is used twice, or a hook, may do in Python what a replay would not repeat.
    parts = [part for _, part in module.named_modules(remove_duplicate=False)]
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if len(parts) != len(set(map(id, parts))):
        return False
    return not any(getattr(part, kind) for part in parts for kind in hooks)
