"""Optimizers that keep their state from one exchange to the next, at their clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core import OPTIMIZER, Training
from coterie.data.own import from_lists
from coterie.data.world import World
from coterie.runs.folders import reopen
from coterie.settings import SettingError
from coterie.training.optimizer_state import KeptOptimizer

ROUNDS = 4

OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "adam", "lr": 0.05},
    {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05},
    {"optimizer": "torch.optim:NAdam", "lr": 0.05},
    {"optimizer": "torch.optim:Adagrad", "lr": 0.05, "optimizer_options": ("lr_decay=0.1",)},
    {"optimizer": "torch.optim:RMSprop", "lr": 0.05},
    {"optimizer": "torch.optim:Rprop", "lr": 0.05},
]


def small_world(clients: int = 3) -> World:
    """Clients with 12 rows of three numbers, of which the sign of a sum is the class."""
    draws = np.random.default_rng(5)
    data = {}
    for client in range(clients):
        inputs = draws.normal(size=(12, 3)).astype(np.float32)
        rule = np.roll([1.0, -1.0, 0.3], client)
        data[f"site {client}"] = {
            "x": torch.from_numpy(inputs),
            "y": torch.from_numpy((inputs @ rule > 0).astype(np.int64)),
        }
    return from_lists(data, model=lambda: nn.Linear(3, 2), train=0.7, validation=0.0)


def full_batch(**settings: Any) -> Training:
    """One step on all of a client's examples per exchange, so that no order of examples matters."""
    return Training(batch=0, steps=1, **settings)


def trained_by_hand(world: World, client: int, training: Training, start: nn.Module) -> nn.Module:
    """The model of a client that trains alone, by one optimizer of torch for all rounds."""
    split = world.clients[client].train
    inputs = split.inputs[split.index]
    optimizer: torch.optim.Optimizer
    if training.optimizer == "adam":
        optimizer = torch.optim.Adam(start.parameters(), lr=training.lr)
    elif training.optimizer == "sgd":
        optimizer = torch.optim.SGD(start.parameters(), lr=training.lr, momentum=training.momentum)
    else:
        optimizer_class = getattr(torch.optim, training.optimizer.partition(":")[2])
        options = {"lr_decay": 0.1} if training.optimizer_options else {}
        optimizer = optimizer_class(start.parameters(), lr=training.lr, **options)
    for _ in range(ROUNDS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(start(inputs), split.targets).backward()
        optimizer.step()
    return start


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=lambda settings: settings["optimizer"])
def test_a_client_alone_trains_as_with_one_optimizer_for_all_rounds(
    settings: dict[str, Any],
) -> None:
    world = replace(small_world(), training=full_batch(keep_optimizer=True, **settings))
    *_, last = coterie.run("independent", world, rounds=ROUNDS, workers=1)
    *_, reset = coterie.run(
        "independent",
        replace(world, training=full_batch(**settings)),
        rounds=ROUNDS,
        workers=1,
    )
    first_round = next(
        iter(
            coterie.run(
                "independent", replace(world, training=Training(epochs=1, lr=1e-8)), rounds=1
            )
        )
    )
    for client in world.clients:
        start = first_round.model(client)
        expected = trained_by_hand(world, client, world.training, start.train())
        served = last.model(client)
        for name, tensor in expected.state_dict().items():
            torch.testing.assert_close(served.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
        # A new optimizer in each exchange trains otherwise.
        differences = [
            (reset.model(client).state_dict()[name] - tensor).abs().max()
            for name, tensor in expected.state_dict().items()
        ]
        assert max(differences) > 1e-3


def test_the_state_is_the_client_s_and_stays_while_it_rests() -> None:
    world = replace(small_world(4), training=full_batch(optimizer="adam", keep_optimizer=True))
    rounds = list(coterie.run(coterie.methods.FedAvg(fraction=0.5), world, rounds=3, workers=1))
    steps: dict[int, int] = dict.fromkeys(world.clients, 0)
    states_before: dict[int, torch.Tensor] = {}
    for finished_round in rounds:
        states = dict(finished_round.position.kept[OPTIMIZER])
        changed = {
            client
            for client, state in states.items()
            if client not in states_before or not torch.equal(state, states_before[client])
        }
        assert len(changed) == 2
        for client in changed:
            steps[client] += 1
        for client, state in states.items():
            optimizer = torch.optim.Adam([torch.zeros(2, 3), torch.zeros(2)])
            KeptOptimizer(state.numpy().tobytes()).resume(optimizer)
            counts = {float(values["step"]) for values in optimizer.state.values()}
            assert counts == {steps[client]}
        states_before = states


def test_the_number_of_workers_and_an_interruption_change_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rounds": 4,
        "training": {
            "optimizer": "adam",
            "keep_optimizer": True,
            "batch": 4,
            "epochs": 1,
            "lr": 0.05,
        },
    }
    scenario = replace(coterie.SCENARIOS["digits/dirichlet"], clients=4, samples=80)
    whole = coterie.begin(scenario, tmp_path / "whole", "fedavg", workers=1, **settings).finish()[0]
    run = coterie.begin(scenario, tmp_path / "cut", "fedavg", workers=2, **settings)[0]
    for finished_round in run.rounds():
        if finished_round.number == 2:
            break
    resumed = reopen(tmp_path / "cut")[0]
    list(resumed.rounds())
    clients = [[line["clients"] for line in one.record.lines()] for one in (whole, resumed)]
    assert clients[0] == clients[1]


def test_what_cannot_be_kept_is_a_sentence() -> None:
    with pytest.raises(
        SettingError,
        match="keep_optimizer needs an optimizer with a state, got sgd without momentum",
    ):
        Training(keep_optimizer=True)
    world = replace(small_world(), training=full_batch(optimizer="adam", keep_optimizer=True))
    for method in ("split-half", "ditto", "apfl", "fedrep", "auto"):
        with pytest.raises(
            SettingError, match=f"keep_optimizer must be false with {method}, which asks a client"
        ):
            list(coterie.run(method, world, rounds=1, workers=1))
    optimizer = torch.optim.SGD([torch.zeros(2)], momentum=0.9)
    kept = KeptOptimizer(None)
    kept.resume(optimizer)
    optimizer.state[optimizer.param_groups[0]["params"][0]]["history"] = [1]
    with pytest.raises(ValueError, match="has 'history', a list, which cannot be kept"):
        kept.state()


def test_numbers_of_a_state_keep_their_types() -> None:
    tensor = torch.zeros(3)
    optimizer = torch.optim.SGD([tensor], momentum=0.9)
    kept = KeptOptimizer(None)
    kept.resume(optimizer)
    optimizer.state[tensor] = {
        "count": 7,
        "scale": 0.25,
        "warm": True,
        "mean": tensor + 2,
        "none": None,
    }
    stored = kept.state()
    assert stored is not None
    again = torch.optim.SGD([tensor], momentum=0.9)
    KeptOptimizer(stored).resume(again)
    state = again.state[tensor]
    assert (state["count"], state["scale"], state["warm"]) == (7, 0.25, True)
    assert isinstance(state["count"], int)
    assert isinstance(state["warm"], bool)
    assert state["mean"].tolist() == [2.0, 2.0, 2.0]
