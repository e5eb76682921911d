"""The model, and a node's data: two groups of nodes, of which one calls the digits by other names."""

from __future__ import annotations

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import nn

from coterie.data.world import ClientData, whole


def net() -> nn.Module:
    """8 x 8 pixels -> ten digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load(context: Context) -> ClientData:
    """The part of the digits that is this node's. A hospital would read its own files here."""
    part, parts = (
        int(context.node_config["partition-id"]),
        int(context.node_config["num-partitions"]),
    )
    x, y = load_digits(return_X_y=True)
    mine = slice(part * len(x) // parts, (part + 1) * len(x) // parts)
    inputs, targets = torch.tensor(x[mine] / 16, dtype=torch.float32), torch.tensor(y[mine])
    if part % 2:
        targets = (targets + 5) % 10
    cut, end = int(0.8 * len(inputs)), len(inputs)
    return ClientData(
        train=whole(inputs[:cut], targets[:cut]),
        validation=whole(inputs[:0], targets[:0]),
        test=whole(inputs[cut:end], targets[cut:end]),
    )
