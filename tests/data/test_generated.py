"""Worlds of clients whose data are made when they are needed: :func:`coterie.from_function`."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.core import AllBut, SharedValues, among
from coterie.data.cautions import cautions
from coterie.data.on_demand import MOST_EXAMINED, OnDemand
from coterie.data.world import ClientData, World
from coterie.methods import Auto
from coterie.methods.fedavg import FedAvg
from coterie.settings import UserError

LABELLED_BY = np.random.default_rng(0).normal(size=(5, 3))


def make_client(client: int, generator: np.random.Generator) -> tuple[Any, ...]:
    """Thirty training and ten test examples of three classes, whose names are turned in every second client."""
    inputs = generator.normal(size=(40, 5)).astype("f")
    labels = (inputs @ LABELLED_BY).argmax(1)
    if client % 2:
        labels = (labels + 1) % 3
    return inputs[:30], labels[:30], inputs[30:], labels[30:]


def world_of(clients: int, **world: Any) -> World:
    return coterie.from_function(make_client, clients, model="linear", classes=3, **world)


def in_memory(clients: int) -> World:
    """The same world with all data in memory."""
    on_demand = world_of(clients)
    return World(
        clients={client: on_demand.clients[client] for client in range(clients)},
        model=on_demand.model,
    )


def test_only_clients_that_are_needed_are_made() -> None:
    made: list[int] = []

    def counting(client: int, generator: np.random.Generator) -> tuple[Any, ...]:
        made.append(client)
        return make_client(client, generator)

    world = coterie.from_function(counting, 1_000_000, model="linear", classes=3)
    rounds = coterie.run(
        FedAvg(fraction=5e-6), world, rounds=2, workers=1, eval_clients=20, eval_every=2
    )
    *_, last = rounds
    assert last.asked == 5
    assert last.scores is not None
    assert len(last.scores) == 20
    assert len(last.assignment.row) == 1_000_000
    # The examined ones, those of two rounds, those tested, and those tried.
    assert len(set(made)) <= MOST_EXAMINED + 2 * 5 + 20 + 3


@pytest.mark.parametrize("method", [FedAvg(fraction=0.5), Auto(fraction=0.5), Auto()])
def test_results_are_those_of_the_same_data_in_memory(method: Any) -> None:
    found = [
        [
            (done.assignment.models, done.groups, done.scores, tuple(done.assignment.plain))
            for done in coterie.run(method, world, rounds=5, workers=1, seed=3)
        ]
        for world in (world_of(12), in_memory(12))
    ]
    for on_demand, all_in_memory in zip(*found, strict=True):
        assert torch.equal(on_demand[0], all_in_memory[0])
        assert on_demand[1:] == all_in_memory[1:]


def test_data_that_are_forgotten_are_made_again() -> None:
    made: list[int] = []

    def numbered(client: int) -> str:
        made.append(client)
        return f"client {client}"

    clients = OnDemand(numbered, 10, most_kept=2)
    assert [clients[client] for client in (0, 1, 1, 2, 1, 0)] == [
        f"client {client}" for client in (0, 1, 1, 2, 1, 0)
    ]
    assert made == [0, 1, 2, 0]
    assert 9 in clients
    assert 10 not in clients
    with pytest.raises(KeyError):
        clients[10]
    # Another process makes its own.
    world = world_of(3)
    copied = pickle.loads(pickle.dumps(world.clients))
    assert torch.equal(copied[2].train.inputs, world.clients[2].train.inputs)


def test_the_same_clients_are_tested_in_each_test() -> None:
    tested = [
        set(done.scores or ())
        for done in coterie.run(
            FedAvg(), world_of(30), rounds=2, workers=1, eval_clients=7, validation_share=0.2
        )
    ]
    assert tested[0] == tested[1]
    assert len(tested[0]) == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda client, generator: None, "make_client must return (x, y), (x, y, x_test, y_test)"),
        (lambda client, generator: 1 / 0, "make_client fails for client 0: ZeroDivisionError"),
        (
            lambda client, generator: (torch.rand(3, 2), torch.zeros(3, dtype=torch.long)),
            "make_client returns other data when it is called again",
        ),
        (
            lambda client, generator: (np.zeros((0, 2), "f"), np.zeros(0, int)),
            "client 0 has no training data",
        ),
        (3, "make_client must be a function of a client and its generator"),
    ],
)
def test_a_mistake_is_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        coterie.from_function(make, 4, model="linear", classes=2)
    assert message in str(raised.value)


def test_wrong_arguments_are_one_sentence() -> None:
    with pytest.raises(UserError, match="clients must be a whole number >= 1"):
        world_of(0)
    with pytest.raises(UserError, match="kept must be a whole number >= 1"):
        world_of(3, kept=0)
    with pytest.raises(UserError, match="classes must be given with a model by name"):
        coterie.from_function(make_client, 4, model="linear")
    with pytest.raises(UserError, match="eval_clients must be an integer >= 1"):
        coterie.run(FedAvg(), world_of(3), rounds=1, eval_clients=0)


def test_a_world_shows_itself_without_its_data() -> None:
    world = world_of(1000, truth=[range(0, 1000, 2), range(1, 1000, 2)])
    assert "1,000 clients: 0, 1, 2" in repr(world)
    assert "made on demand" in repr(world)
    assert isinstance(world.examined.clients[0], ClientData)
    assert len(world.examined.clients) == MOST_EXAMINED
    assert world_of(3).name(2) == "2"
    assert world.has_validation_scores is False


def test_values_that_groups_share() -> None:
    values = SharedValues([((1, 4, 9), "a"), ((2, 3), "b"), ((), "c")])
    assert dict(values) == {1: "a", 2: "b", 3: "b", 4: "a", 9: "a"}
    assert values == dict(values)
    assert list(values) == [1, 2, 3, 4, 9]
    assert values.distinct == ["a", "b"]
    assert 5 not in values
    assert len(values) == 5
    assert among([9, 7, 4], (1, 4, 9)) == [4, 9]
    others = AllBut(values, [4])
    assert others == (1, 2, 3, 9)
    assert 4 not in others
    assert 5 not in others
    assert len(others) == 4


def changed_for(client: int, change: Any) -> Any:
    """A function like :func:`make_client` that changes the data of one client."""

    def make(number: int, generator: np.random.Generator) -> tuple[Any, ...]:
        made = make_client(number, generator)
        return change(made) if number == client else made

    return make


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda made: (made[0] * np.nan, *made[1:]),
            r"numbers that are not finite for client 251 \(train\)",
        ),
        (
            lambda made: (made[0][:, :2], made[1], made[2][:, :2], made[3]),
            r"client 0 has \(5,\) float32, \(\) int64, client 251 has \(2,\) float32",
        ),
        (
            lambda made: (made[0], made[1].astype("f"), *made[2:]),
            r"client 251 has \(5,\) float32, \(\) float32",
        ),
    ],
)
def test_clients_that_no_check_before_the_run_makes_are_checked_when_they_are_made(
    change: Any, message: str
) -> None:
    world = coterie.from_function(changed_for(251, change), 400, model="linear", classes=3)
    assert 251 not in world.examined.clients
    with pytest.raises(UserError, match=message):
        list(coterie.run(FedAvg(), world, rounds=1, workers=1))


def test_an_array_that_each_call_fills_is_refused() -> None:
    filled = np.zeros((30, 5), "f")

    def make(client: int, generator: np.random.Generator) -> tuple[Any, ...]:
        inputs, *others = make_client(client, generator)
        filled[:] = inputs
        return filled, *others

    with pytest.raises(UserError, match="make_client changes what it returned before"):
        coterie.from_function(make, 4, model="linear", classes=3)


def test_seeds_and_classes_that_are_none() -> None:
    with pytest.raises(UserError, match="seed must be a whole number >= 0, got -1"):
        world_of(3, seed=-1)
    with pytest.raises(UserError, match="classes must be >= 2, got 0"):
        coterie.from_function(make_client, 3, model="linear", classes=0)


def test_without_test_examples_there_are_no_scores() -> None:
    def make(client: int, generator: np.random.Generator) -> tuple[Any, ...]:
        return make_client(client, generator)[:2]

    world = coterie.from_function(make, 4, model="linear", classes=3)
    assert any(text.startswith("no client has test examples") for text in cautions(world))
    assert not any(text.startswith("no client has test") for text in cautions(world_of(4)))
