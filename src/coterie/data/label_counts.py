"""How many training examples of each class a client has."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from coterie.data.objective import counted
from coterie.data.world import World
from coterie.settings import UserError


def label_counts(targets: Any, num_classes: int) -> np.ndarray:
    """Return how many examples of each class there are.

    Args:
        targets: The classes of the examples, shape ``(s,)``, or of their positions,
            ``(s, ...)``; those that count in no loss are left out.
        num_classes: The number of classes, C.

    Returns:
        The counts, shape ``(C,)``.

    Raises:
        UserError: The targets are no class numbers from 0 to below C.

    Example:
        >>> label_counts(torch.tensor([0, 2, 2]), 4).tolist()
        [1, 0, 2, 0]
    """
    is_of_classes = isinstance(targets, torch.Tensor) and not targets.is_floating_point()
    if not is_of_classes:
        raise UserError("labels are counted of one class per example, and these targets are none")
    labels = targets[counted(targets)].flatten().long()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise UserError(
            f"labels are counted from 0 to {num_classes - 1}, "
            f"and there are some from {int(labels.min())} to {int(labels.max())}"
        )
    return torch.bincount(labels, minlength=num_classes).numpy()


def counts_of_clients(world: World) -> np.ndarray:
    """Return how many training examples of each class each client has.

    Args:
        world: The clients and their data.

    Returns:
        The counts, shape ``(n, C)``, in the order of the client ids. C is one more than the
        greatest class of all training and test examples.

    Raises:
        UserError: The clients do not predict one class.
    """
    clients = [world.clients[client] for client in sorted(world.clients)]
    greatest = -1
    for data in clients:
        for split in (data.train, data.test):
            if isinstance(split.targets, torch.Tensor) and split.targets.numel():
                greatest = max(greatest, int(split.targets.max()))
    return np.stack([label_counts(data.train.targets, greatest + 1) for data in clients])
