"""The net that serves a client, made of its rows of the server's models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.data.objective import mean_probability
from coterie.models.layout import own_layers
from coterie.randomness import seeded


class Ensemble(nn.Module):
    """Several nets as one.

    Args:
        nets: The nets.
        combine: Function of their outputs ``(m, b, ...)``. For class labels, it gives the logarithm of the mean class
            probabilities, and a softmax of this the mean probabilities.
    """

    def __init__(self, nets: Sequence[nn.Module], combine: Callable[[Tensor], Tensor] = mean_probability) -> None:
        super().__init__()
        self.nets, self.combine = nn.ModuleList(nets), combine

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The combined outputs of the nets for these inputs."""
        outputs = [net(*inputs, **named) for net in self.nets]
        return self.combine(torch.stack([getattr(one, "logits", one) for one in outputs]))


@dataclass(frozen=True)
class Nets:
    """Makes nets of a world's clients.

    Attributes:
        model: Makes a module with fresh parameters.
        wire: Maps the server's rows to the clients'.
        combine: Function of the outputs of several nets, see :class:`Ensemble`.
    """

    model: Callable[[], nn.Module]
    wire: Wire
    combine: Callable[[Tensor], Tensor]

    def __call__(self, rows: Sequence[Tensor], kept: Tensor | None) -> nn.Module:
        """Return the net of a client.

        Args:
            rows: Its models, each ``(d,)``, as the server has them; several are an ensemble.
            kept: Its own values ``(d,)`` of layers that stay with it, NaN in the other columns; None for none.

        Returns:
            A new net in evaluation mode.
        """
        nets = [self._net(own_layers(row, kept)) for row in rows]
        return (nets[0] if len(nets) == 1 else Ensemble(nets, self.combine)).eval()

    def _net(self, row: Tensor) -> nn.Module:
        layout, plain = self.wire.layout, self.wire.open(row).clone()
        layout.raise_variances(plain)
        with seeded(0):  # what no row has, such as frozen parameters, is what the engine's clients have
            net = self.model()
        layout.load(net, plain)
        return net
