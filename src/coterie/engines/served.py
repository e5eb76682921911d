"""The net that serves a client, made of its rows of the server's models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from coterie import training as local
from coterie.boundary import Wire
from coterie.core import Client, Neighbours
from coterie.data.objective import Objective, mean_probability
from coterie.data.target_scale import predicting
from coterie.data.world import ClientData
from coterie.models.layout import own_layers
from coterie.randomness import seeded
from coterie.settings.calls import public


@public
class Ensemble(nn.Module):
    """Several nets as one.

    Args:
        nets: The nets.
        combine: Function of their outputs ``(m, b, ...)``. For class labels, it gives the logarithm
            of the mean class probabilities, and a softmax of this the mean probabilities.
    """

    def __init__(
        self, nets: Sequence[nn.Module], combine: Callable[[Tensor], Tensor] = mean_probability
    ) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.combine = combine

    def forward(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """The combined outputs of the nets for these inputs."""
        net_outputs = [member_net(*inputs, **named_inputs) for member_net in self.nets]
        # Transformers return an object with the logits.
        logits = [getattr(net_output, "logits", net_output) for net_output in net_outputs]
        return self.combine(torch.stack(logits))


@dataclass(frozen=True)
class Nets:
    """Makes nets of a world's clients.

    Attributes:
        model: Makes a module with fresh parameters.
        wire: Maps the server's rows to the clients'.
        objective: Combines the outputs of several nets, see :class:`Ensemble`.
        clients: The clients' data, from which neighbours are.
    """

    model: Callable[[], nn.Module]
    wire: Wire
    objective: Objective
    clients: Mapping[Client, ClientData] = field(repr=False)

    def __call__(
        self,
        model_rows: Sequence[Tensor],
        kept_values: Tensor | None,
        client: Client,
        neighbours: Neighbours | None = None,
    ) -> nn.Module:
        """Return the net of a client.

        Args:
            model_rows: Its models, each ``(d,)``, as the server has them; several are an ensemble.
            kept_values: Its own values ``(d,)`` of layers that stay with it, NaN in the other columns;
                None for none.
            client: The client.
            neighbours: How its nearest training examples take part; None if they do not.

        Returns:
            A new net in evaluation mode.
        """
        # A client is served by one net, an ensemble, or a net with its nearest training examples.
        member_nets = [self._net(own_layers(model_row, kept_values)) for model_row in model_rows]
        if neighbours is not None:
            return self._with_neighbours(member_nets[0], client, neighbours).eval()
        served_net = (
            member_nets[0]
            if len(member_nets) == 1
            else Ensemble(member_nets, self.objective.combine)
        )
        return predicting(served_net, self.objective.target_scale).eval()

    def _with_neighbours(self, net: nn.Module, client: Client, neighbours: Neighbours) -> nn.Module:
        # The features of the training examples are the memory; the held-out ones give its weight.
        client_data = local.held_out(
            self.clients[client], neighbours.holdout, self.wire.seed, client
        )
        learner = local.Learner(net, self.objective)
        with seeded(0):
            neighbour_memory, neighbour_weight = local.remembered(
                learner, learner.layout.row(net), client_data, neighbours
            )
        return local.WithNeighbours(net, neighbours.layer, neighbour_memory, neighbour_weight)

    def _net(self, model_row: Tensor) -> nn.Module:
        # Clients have the model without the boundary's map.
        layout = self.wire.layout
        opened_row = self.wire.open(model_row).clone()
        layout.raise_variances(opened_row)
        # What no row has, such as frozen parameters, is what the engine's clients have.
        with seeded(0):
            net = self.model()
        layout.load(net, opened_row)
        return net
