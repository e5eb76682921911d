"""What the models that clients are served put out on the clients' own data: predictions, and losses on validation data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.boundary import Boundary
from coterie.core import Assignment, Client
from coterie.data.world import Split, World
from coterie.engines import rounds
from coterie.methods import FedAvg
from coterie.randomness import seeded

AT_ONCE = 500
"""Examples in one batch."""


class Served:
    """Of a world whose clients are served one model each, and keep no layers of their own."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        wire, self.federation = rounds.setup(FedAvg(), world, seed, Boundary())
        self.layout = wire.layout
        with seeded(0):  # its numbers are overwritten by each row
            self.module = world.model().eval()

    def outputs(self, row: Tensor, split: Split) -> Tensor:
        """``(examples, classes)`` of the model ``row`` ``(d,)``."""
        self.layout.load(self.module, row)
        with torch.no_grad():
            return torch.cat(
                [self.module(split.inputs[index]) for index in split.index.split(AT_ONCE)]
            )

    def predicted(self, assignment: Assignment) -> dict[Client, Tensor]:
        """The classes ``(examples,)`` that each client's model finds in its test data."""
        return {
            client: self.outputs(assignment.models[row], self.world.clients[client].test).argmax(-1)
            for client, row in sorted(assignment.row.items())
        }

    def right(self, assignment: Assignment, client: Client) -> float:
        """The accuracy of a client's model on its training data."""
        data = self.world.clients[client].train
        called = self.outputs(assignment.models[assignment.row[client]], data).argmax(-1)
        return float((called == data.targets).float().mean())

    def losses(self, assignment: Assignment) -> dict[Client, float]:
        """Of each client's model on its validation data, of which it must have some."""
        found = {}
        for client, row in sorted(assignment.row.items()):
            data = self.world.clients[client].validation
            found[client] = float(
                self.world.objective.loss(self.outputs(assignment.models[row], data), data.targets)
            )
        return found


def precision(called: Tensor, targets: Tensor) -> tuple[float, float]:
    """Macro precision over the classes of ``targets`` that are predicted, and over all classes that are in either.

    >>> called, targets = torch.tensor([0, 0, 7, 7]), torch.tensor([0, 1, 1, 2])
    >>> precision(called, targets)  # 1 and 2 are never predicted; half of the 0s are right, and 7 is nowhere
    (0.5, 0.125)
    """
    said, right = called.numpy(), targets.numpy()
    of = {int(c): float(np.mean(right[said == c] == c)) for c in np.unique(said)}
    present = set(np.unique(right).tolist())
    known = [share for c, share in of.items() if c in present]
    return (float(np.mean(known)) if known else 0.0), sum(of.values()) / len(present | set(of))
