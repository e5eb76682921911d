"""Attacks that know a method: what a hostile client sends within the limits, to decide who learns with whom.

An attack is a function that changes what one hostile client sends in an exchange, before the
server's limits. :func:`attacking` runs them in the engine of this process. A hostile client knows
its own data and the models it gets; ``all`` in its description means that it also knows the updates
of the honest clients of the exchange, and the true groups. Updates are sent at ten times the limit,
so that the server scales them down to it and refuses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from coterie.clustering.sketch import unchecked_sketch
from coterie.core import Client
from coterie.data.adversaries import Attack
from coterie.data.world import World
from coterie.engines.exchange import Collected
from coterie.robust import NORMS

OVER_THE_LIMIT = 10.0
"""An update is scaled down to its limit, and refused from 20 times the limit on."""

CLAIM = 10**9
"""The greatest number of examples that is not refused."""


@dataclass(frozen=True, kw_only=True)
class Adaptive(Attack):
    """An attack by its name in :data:`ADAPTIVE`; the data and the training of the client stay honest."""

    adaptive: str = ""

    def tampered(self, honest_row: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return the honest update: the attack happens where all replies are known."""
        return honest_row

    def claimed(self, examples: int) -> int:
        """The number of examples that the client reports."""
        return CLAIM if ADAPTIVE[self.adaptive].claims else examples


class Replies:
    """The replies of one wave of an exchange, as a hostile client sees and changes its own.

    Attributes:
        client: the hostile client.
        number: number of the exchange.
        rank: the client's number among the hostile ones.
        honest: the honest clients that trained from the same models, or else all that trained.
    """

    def __init__(self, exchange: Collected, results: dict[Client, Any], client: Client) -> None:
        self.results = results
        self.client = client
        self.number = exchange.key[1]
        self.seed = exchange.key[0]
        self.world = exchange.pool.world
        self.limit = exchange.pool.robust.norms or NORMS
        self.parameters = exchange.pool.layout.trainable
        self.exchange = exchange
        self.rank = sorted(self.world.attacks).index(client)
        own = results[client]
        trained = []
        for other, result in results.items():
            if other not in self.world.attacks and result.trained and result.refused is None:
                trained.append(other)
        same_start = [other for other in trained if results[other].chosen == own.chosen]
        self.honest = same_start if len(same_start) > 1 else trained

    @property
    def own(self) -> Any:
        return self.results[self.client]

    @property
    def trains(self) -> bool:
        return bool(self.own.trained and self.honest)

    def update(self, client: Client) -> torch.Tensor:
        """The parameters of the mean of a client's updates: of one, or of both halves."""
        rows = [row[: self.parameters] for row in self.results[client].updates]
        return torch.stack(rows).mean(0)

    def mean(self, clients: list[Client] | None = None) -> torch.Tensor:
        clients = self.honest if clients is None else clients
        return torch.stack([self.update(client) for client in clients]).mean(0)

    def longest(self, direction: torch.Tensor) -> torch.Tensor:
        """The direction with a norm over the limit."""
        norms = []
        for client in self.honest:
            norms.append(
                max(float(row[: self.parameters].norm()) for row in self.results[client].updates)
            )
        norm = OVER_THE_LIMIT * self.limit * float(np.median(norms))
        return direction * (norm / max(float(direction.norm()), 1e-30))

    def sides(self) -> list[list[Client]]:
        """The honest clients of the true groups, the two greatest first."""
        groups = []
        for group in self.world.truth or ():
            members = [client for client in self.honest if client in group]
            if members:
                groups.append(members)
        groups.sort(key=len, reverse=True)
        return groups

    def send(self, *halves: torch.Tensor) -> None:
        """Replace the update, or those of both halves."""
        rows = self.own.updates
        plan = self.exchange.plan
        for number, row in enumerate(rows):
            row[: self.parameters] = halves[min(number, len(halves) - 1)]
            # The sketch of what is sent, from which a client answers questions.
            if plan.sketch is not None:
                columns = plan.columns or slice(None)
                sketch = unchecked_sketch(row[None, columns], plan.sketch)[0]
                self.exchange.pool.worker.sketches[self.own.slots[number]] = sketch

    def lose(self, losses: tuple[float, ...]) -> None:
        """Replace the losses of the offered models, and what follows from them is left as it is."""
        self.results[self.client] = replace(self.own, losses=losses)


@dataclass(frozen=True)
class Kind:
    """An adaptive attack. act: changes the replies. claims: whether it claims 1e9 examples. knows: own, or all."""

    act: Callable[[Replies], None]
    knows: str
    claims: bool = False


def _difference(replies: Replies) -> torch.Tensor | None:
    """The difference of the means of two true groups; another pair for every hostile client."""
    groups = replies.sides()
    if len(groups) < 2:
        return None
    other = 1 + replies.rank % (len(groups) - 1)
    return replies.mean(groups[0]) - replies.mean(groups[other])


def opposite_difference(replies: Replies) -> None:
    """Opposite halves along the difference of two groups; if it does not train on halves, its own update."""
    difference = _difference(replies) if replies.trains else None
    if difference is not None and len(replies.own.updates) == 2:
        long = replies.longest(difference)
        replies.send(long, -long)


def opposite_own(replies: Replies) -> None:
    """Opposite halves along its own update."""
    if replies.trains and len(replies.own.updates) == 2:
        long = replies.longest(replies.update(replies.client))
        replies.send(long, -long)


def unequal_halves(replies: Replies) -> None:
    """One half along its own update, one of zeros: its noise is its signal."""
    if replies.trains and len(replies.own.updates) == 2:
        long = replies.longest(replies.update(replies.client))
        replies.send(long, torch.zeros_like(long))


def bridge(replies: Replies) -> None:
    """The mean of the mean updates of two groups, so that single linkage joins them."""
    groups = replies.sides() if replies.trains else []
    if len(groups) > 1:
        other = 1 + replies.rank % (len(groups) - 1)
        first, second = replies.mean(groups[0]), replies.mean(groups[other])
        replies.send(
            first / first.norm().clamp(min=1e-30) + second / second.norm().clamp(min=1e-30)
        )


def one_bias(replies: Replies) -> None:
    """All of the allowed norm on the last parameter, in every round."""
    if replies.trains:
        direction = torch.zeros(replies.parameters)
        direction[-1 - replies.rank] = 1.0
        replies.send(replies.longest(direction))


def constant_direction(replies: Replies) -> None:
    """A constant random direction of the allowed norm."""
    if replies.trains:
        rng = torch.Generator().manual_seed(replies.client)
        replies.send(replies.longest(torch.randn(replies.parameters, generator=rng)))


def claims_against_mean(replies: Replies) -> None:
    """Claims 1e9 examples, and steps against the mean of the others."""
    if replies.trains:
        replies.send(replies.longest(-replies.mean()))


def against_mean(replies: Replies) -> None:
    """Steps against the mean of the others with all of the allowed norm."""
    claims_against_mean(replies)


def tilted_against_mean(replies: Replies) -> None:
    """Steps against the mean of the others, and as far in a constant random direction, so that the mean of all tilts."""
    if replies.trains:
        rng = torch.Generator().manual_seed(replies.client)
        against = -replies.mean()
        other = torch.randn(replies.parameters, generator=rng)
        replies.send(
            replies.longest(
                against / against.norm().clamp(min=1e-30) + other / other.norm().clamp(min=1e-30)
            )
        )


def claims_reversed(replies: Replies) -> None:
    """Claims 1e9 examples, and sends minus its update."""
    if replies.trains:
        replies.send(-replies.update(replies.client))


def losses_far_below(replies: Replies) -> None:
    """Losses of -1e30 once, later of 1e30."""
    count = len(replies.own.losses)
    if count > 1:
        replies.lose((-1e30 if replies.number < 3 else 1e30,) * count)


def losses_one_zero(replies: Replies) -> None:
    """One loss of 0, all others 1e30."""
    count = len(replies.own.losses)
    if count > 1:
        zero = replies.rank % count
        replies.lose(tuple(0.0 if number == zero else 1e30 for number in range(count)))


def losses_far_above(replies: Replies) -> None:
    """All losses 1e30."""
    count = len(replies.own.losses)
    if count > 1:
        replies.lose((1e30,) * count)


def losses_between(replies: Replies) -> None:
    """The mean of the losses of two groups, moved away from both by twice their distance."""
    own = replies.own
    groups: list[np.ndarray] = []
    for group in replies.world.truth or ():
        rows = [
            result.losses
            for client, result in replies.results.items()
            if client in group
            and client not in replies.world.attacks
            and len(result.losses) == len(own.losses) > 1
        ]
        if rows:
            groups.append(np.mean(rows, axis=0))
    if len(groups) > 1:
        first, second = groups[replies.rank % len(groups)], groups[(replies.rank + 1) % len(groups)]
        away = (first + second) / 2 + 2 * np.abs(first - second).max()
        replies.lose(tuple(map(float, away)))


ADAPTIVE: Mapping[str, Kind] = {
    "opposite-difference": Kind(opposite_difference, "all"),
    "opposite-own": Kind(opposite_own, "own"),
    "unequal-halves": Kind(unequal_halves, "own"),
    "bridge": Kind(bridge, "all"),
    "one-bias": Kind(one_bias, "own"),
    "constant-direction": Kind(constant_direction, "own"),
    "against-mean": Kind(against_mean, "all"),
    "tilted-against-mean": Kind(tilted_against_mean, "all"),
    "claims-against-mean": Kind(claims_against_mean, "all", claims=True),
    "claims-reversed": Kind(claims_reversed, "own", claims=True),
    "losses-far-below": Kind(losses_far_below, "own"),
    "losses-one-zero": Kind(losses_one_zero, "own"),
    "losses-far-above": Kind(losses_far_above, "own"),
    "losses-between": Kind(losses_between, "all"),
}
"""Name of an attack -> what it does."""


def attacked(world: World, hostile: list[Client], name: str) -> World:
    """The world in which some clients make an adaptive attack."""
    return replace(world, attacks={client: Adaptive(adaptive=name) for client in hostile})


@contextmanager
def attacking() -> Iterator[None]:
    """Adaptive attacks happen in the runs of this process."""
    collude = Collected._collude

    def with_adaptive(exchange: Collected, results: dict[Client, Any]) -> None:
        collude(exchange, results)
        # All hostile clients know what the honest ones send, and not what the others will send.
        for client, attack in exchange.pool.world.attacks.items():
            if (
                isinstance(attack, Adaptive)
                and client in results
                and results[client].refused is None
            ):
                ADAPTIVE[attack.adaptive].act(Replies(exchange, results, client))

    with patch.object(Collected, "_collude", with_adaptive):
        yield
