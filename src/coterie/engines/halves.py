"""Clients that train on both halves of their data: the Gram matrix of all halves, and one update of each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import gram, sketch
from coterie.core import Client, Plan
from coterie.engines.fleet import Answer, Fleet


class Halves:
    """What becomes of the two updates of those who were asked for halves: products are taken, as rows or as sketches, and
    their mean comes in place of the first."""

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self.fleet, self.plan = fleet, plan
        self.clients: list[Client] = []
        self.sketches: list[Tensor] = []
        self.products: np.ndarray | None = None

    def take(self, answers: Mapping[Client, Answer]) -> None:
        """Those of ``answers`` that have halves."""
        pairs = {client: (a.slot, a.second) for client, a in answers.items() if a.second is not None}
        if not pairs:
            return
        slots = [*(first for first, _ in pairs.values()), *(second for _, second in pairs.values())]
        own = {client: self._own(client, *pair) for client, pair in pairs.items() if self.plan.tasks[client].keep}
        if self.plan.sketch is None:  # they are here all at once, see gather.window
            self.products = gram(self.fleet.updates(slots), columns=self.plan.columns)
        else:
            self.sketches.append(self.fleet.sketches(slots).view(2, len(pairs), -1))
        self.clients += pairs
        for client, pair in pairs.items():
            self.fleet.average(*pair)
            if client in own:
                self.fleet.hand.replies[pair[0]][self.fleet.mask(self.plan.tasks[client].keep)] = own[client]

    def _own(self, client: Client, first: int, second: int) -> Tensor:
        """The mean of both in the columns that stay at the client; for everybody else these are zero."""
        mask, rows = self.fleet.mask(self.plan.tasks[client].keep), self.fleet.hand.replies
        own = (rows[first][mask] + rows[second][mask]) / 2
        rows[first][mask] = rows[second][mask] = 0.0
        return own

    def gram(self, clients: Sequence[Client]) -> np.ndarray | None:
        """Of ``clients`` in their order, as :class:`~coterie.core.Replies` has it; None if nobody has sent halves."""
        if self.sketches:
            self.products = gram(torch.cat(self.sketches, 1).flatten(0, 1))
        return None if self.products is None else spread(self.products, self.clients, clients)


def products(plan: Plan, updates: Mapping[Client, Sequence[Tensor]], clients: Sequence[Client]) -> np.ndarray | None:
    """The same of ``updates`` that are all at hand: client -> those of both halves, or the one of who has none."""
    pairs = {client: each for client, each in updates.items() if len(each) == 2}
    if not pairs:
        return None
    rows = torch.stack([pair[half] for half in (0, 1) for pair in pairs.values()])
    if plan.sketch is not None:
        rows = sketch(rows[:, plan.columns or slice(None)], plan.sketch)
    return spread(gram(rows, columns=plan.columns if plan.sketch is None else None), list(pairs), clients)


def spread(products: np.ndarray, of: Sequence[Client], clients: Sequence[Client]) -> np.ndarray:
    """The Gram matrix of the halves of some clients as one of all ``clients``, NaN for the others."""
    place = {client: i for i, client in enumerate(clients)}
    at = [half * len(clients) + place[client] for half in (0, 1) for client in of]
    out = np.full((2 * len(clients), 2 * len(clients)), np.nan)
    out[np.ix_(at, at)] = products
    return out
