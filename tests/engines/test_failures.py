"""Broken replies are turned away, failures are a sentence, and nothing is left running."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coterie.core import Task, Training
from coterie.data.world import ClientData, Split, World, whole
from coterie.engines.refusals import RefusedError
from coterie.engines.rounds import MAX_EXCHANGES, rounds
from coterie.engines.workers import EngineError
from coterie.methods import CFL, FLHC, FedAvg
from coterie.randomness import generator
from scripted import Scripted, bits, everyone, play, shown
from small import client, examples, mlp, spoiled, world


def test_a_broken_update_reaches_nothing(method: Any) -> None:
    tried = world()
    broken = replace(tried, clients={**tried.clients, 7: spoiled(tried.clients[7], "train")})
    for done in play(method, broken, 3):
        assert set(done.silent) <= set(done.refused) <= {7}
        assert done.exchanges > 1 or done.silent == tuple(done.refused)
        missing = (
            done.asked - done.answered
        )  # in each exchange it was asked in, which need not be all of them
        assert (7 in done.refused) <= missing <= (7 in done.refused) * done.exchanges
        assert torch.isfinite(done.assignment.models).all()
    assert any(7 in r.refused for r in play(method, broken, 6))


@pytest.mark.parametrize("need", ["rows", "mean", "gram"])
def test_a_refused_client_is_a_silent_one(need: Any) -> None:
    tried = world(sizes=(20, 3, 50, 9))
    broken = replace(tried, clients={**tried.clients, 3: spoiled(tried.clients[3], "train")})
    task = Task(offered=(0,))
    found = shown([{"tasks": dict.fromkeys(tried.clients, task), "need": need}], broken)[0]
    without = shown([{"tasks": dict.fromkeys((2, 7, 11), task), "need": need}], tried)[0]
    assert list(found.refused) == [3]
    assert "NaN, infinite or enormous" in found.refused[3]
    assert found.limits == without.limits
    same: dict[str, Any] = {"refused": {}, "averaging": None, "limits": None, "sums": None}
    assert bits(replace(found, **same)) == bits(replace(without, **same))


def test_a_round_that_cannot_end_is_an_error() -> None:
    broken = replace(
        world(),
        clients={c: spoiled(client(c), "train") if c < 11 else client(c) for c in (2, 3, 7, 11)},
    )
    text = (
        f"round 1 has not ended after {MAX_EXCHANGES} exchanges, in which {MAX_EXCHANGES} of "
        f"{4 * MAX_EXCHANGES} tasks were answered; 3 "
    )
    with pytest.raises(EngineError, match=text):
        play(Scripted(everyone(Task(offered=(0,)), ends_round=False)), broken, 3)


def test_federated_learning_goes_on_where_most_clients_are_broken(method: Any) -> None:
    broken = replace(
        world(),
        clients={c: spoiled(client(c), "train") if c < 11 else client(c) for c in (2, 3, 7, 11)},
    )
    assert [r.number for r in play(method, broken, 4)] == [1, 2, 3, 4]


def test_nobody_is_asked() -> None:
    found = shown([{"tasks": {}, "need": "gram"}, {"tasks": {}}], world(), workers=2)
    assert [r.clients for r in found] == [(), ()]
    assert found[0].gram is None


def reading() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4 * 5, 3))


def words(top: int, seed: int) -> Split:
    return whole(
        torch.randint(0, top, (12, 5), generator=generator(seed)), examples(12, seed).targets
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("part", "where"), [("train", "task"), ("test", "test")])
def test_a_task_that_fails_names_its_client(workers: int, part: str, where: str) -> None:
    good = {
        c: ClientData(train=words(9, c), validation=words(9, c), test=words(9, c))
        for c in (4, 6, 8)
    }
    assert play(FedAvg(), world((1,), model=reading, clients=good), 1, workers)[
        0
    ].scores  # whole numbers are inputs too
    bad = {**good, 6: replace(good[6], **{part: words(99, 6)})}
    with pytest.raises(
        EngineError, match=f"^client 6 failed in its {where}: IndexError: index out of range"
    ) as caught:
        play(FedAvg(), world((1,), model=reading, clients=bad), 1, workers)
    assert "Traceback" in caught.value.details


def test_leaving_the_loop_ends_the_processes() -> None:
    for done in rounds(FedAvg(), world(), rounds=9, workers=3):
        assert len(multiprocessing.active_children()) == 3
        if done.number == 2:
            break
    assert not multiprocessing.active_children()


def test_a_killed_worker_ends_the_run() -> None:
    going = rounds(FedAvg(), world(), rounds=9, workers=2)
    next(going)
    first = multiprocessing.active_children()[0]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    with pytest.raises(EngineError, match="a worker process ended with exit code -9"):
        list(itertools.islice(going, 1))
    assert not multiprocessing.active_children()


def test_one_client_is_a_world(method: Any) -> None:
    tried = World(clients={5: client(5)}, model=mlp)
    if getattr(method, "groups", None):
        method = replace(method, groups=1)
    done = play(method, tried, 2, workers=2)
    assert done[-1].assignment.groups == ((5,),)


def test_a_plan_may_ask_for_more_exchanges_in_a_round() -> None:
    plan = everyone(Task(offered=(0,)))
    method = Scripted(lambda e, clients: {**plan(e, clients), "ends_round": e % 3 == 2})
    done = play(method, world(), 2)
    assert [(r.number, r.exchanges, r.position.exchange, r.asked) for r in done] == [
        (1, 3, 3, 12),
        (2, 3, 6, 12),
    ]


@pytest.mark.parametrize("method", [CFL(), FLHC(warmup=0, fraction=1.0)], ids=["cfl", "flhc"])
@pytest.mark.parametrize("lr", [1e5, 1e6, 1e8])
def test_enormous_updates_are_refused_before_they_overflow_a_gram_matrix(
    method: Any, lr: float
) -> None:
    tried = replace(world(), training=Training(lr=lr, steps=2, batch=0))
    if lr > 1e5:  # the second round refuses all of them
        with pytest.raises(RefusedError, match="round 2: all 4 replies were refused"):
            play(method, tried, 2)
    else:
        assert torch.isfinite(play(method, tried, 2)[-1].assignment.models).all()
