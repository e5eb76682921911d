"""Ways to train that tell apart what limits CFL in figures 8 and 9: a learning rate that falls, and one true group alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Client, Method, Position, Round
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.pool import ClientPool
from coterie.robust import AS_PUBLISHED
from papers.running import rounds_of
from papers.study import Resources


def alone(world: World, number: int) -> World:
    """The world of the clients of one true group, as if no others existed.

    A model that they train has no incongruent clients to serve: no grouping of all clients can give
    them a model trained on more data of their own distribution.

    Args:
        world: All clients, with their true groups.
        number: The group's number, from 0.
    """
    assert world.truth is not None
    group = world.truth[number]
    return replace(
        world, clients={client: world.clients[client] for client in group}, truth=(group,)
    )


def halving(
    method: Method[Any],
    world: World,
    on: Resources,
    rounds: int,
    seed: int,
    every: int,
    halve_after: Sequence[int] = (),
) -> Iterator[Round]:
    """The rounds of a method whose clients train at half the learning rate after each of some rounds.

    Args:
        method: The method.
        world: The clients; their training has the first learning rate.
        on: What may be used.
        rounds: The number of the last round.
        seed: The seed of the run.
        every: Rounds between tests.
        halve_after: The rounds, in ascending order; none for a constant rate.

    Yields:
        Each round. One after which the learning rate changes is tested too.
    """
    position: Position | None = None
    for halvings, last in enumerate((*halve_after, rounds)):
        # A stage goes on where the last one has ended, with the same draws as one long run.
        training = replace(world.training, lr=world.training.lr / 2**halvings)
        stage = replace(world, training=training)
        for done in rounds_of(method, stage, on, last, seed, start=position, every=every):
            position = done.position
            yield done


def has_validation(world: World) -> bool:
    """Whether every client has validation data."""
    return all(len(data.validation) for data in world.clients.values())


def validated(
    done: Round, method: Method[Any], world: World, on: Resources, seed: int
) -> Mapping[Client, Mapping[str, float]]:
    """The scores of the models that serve the clients after a round, on validation data in place of test data.

    Args:
        done: The round.
        method: The method of the run.
        world: The clients, each with validation data.
        on: What may be used.
        seed: The seed of the run.

    Returns:
        Client -> name of a score -> its value.
    """
    held = replace(
        world,
        clients={
            client: replace(data, test=data.validation) for client, data in world.clients.items()
        },
    )
    wire, _ = inprocess.setup(method, world, seed, Boundary())
    with ClientPool(held, wire, on.hardware, AS_PUBLISHED) as fleet:
        return fleet.evaluate(done.assignment, done.position)
