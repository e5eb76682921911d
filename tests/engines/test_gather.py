"""Replies taken in as they come: the same bits, and no more memory, whatever is held at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.core import CHUNK, Plan, Task
from coterie.engines import exchange as exchanges
from coterie.engines import rounds
from coterie.engines.exchange import window
from coterie.methods import CFL, IFCA, FedAvg, FedPer
from method_examples import slow
from scripted import everyone, outcome, play, shown
from small import client, world

MANY = range(2 * CHUNK + 9)


@pytest.fixture(name="tried", scope="module")
def _tried() -> Any:
    return world(MANY, clients={c: client(c, train=4 + c % 7, validation=2, test=2) for c in MANY})


@pytest.fixture(name="narrow")
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", 1)


METHODS = [
    FedAvg(fraction=0.7, weighting="uniform"),
    *slow(FedAvg(), FedPer(), IFCA(models=3)),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("width", [1, 16])
def test_a_narrow_window_changes_no_bit(
    method: Any, width: int, tried: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = outcome(play(method, tried, 2, 2, width=width, eval_every=9))
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", 1)
    narrow = play(method, tried, 2, 2, width=width, eval_every=9)
    if width == 1:  # other blocks give other rounding
        assert outcome(narrow) == wide
    assert narrow[-1].answered == wide[-1][5]


def test_no_more_replies_are_held_than_the_window(
    tried: Any, narrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = []
    train = rounds.ClientPool.train

    def counted(self: Any, plan: Plan, clients: Any, *more: Any) -> Any:
        answers = train(self, plan, clients, *more)
        most.append(len(self.worker.replies))
        return answers

    monkeypatch.setattr(rounds.ClientPool, "train", counted)
    play(FedAvg(), tried, 1)
    assert most == [CHUNK] * 3
    play(CFL(), tried, 1)
    assert most[3:] == [len(MANY)]


def test_what_is_needed_decides_the_window() -> None:
    plan = Plan(
        models=torch.zeros(1, 10), tasks={c: Task(offered=(0,)) for c in range(1000)}, need="mean"
    )
    assert window(plan, 50_000) == 1280  # 256 MiB hold 1342 rows of 200 kB; in multiples of 64
    assert window(plan, 10**9) == CHUNK
    assert all(window(replace(plan, need=need), 10**9) == 1000 for need in ("gram", "rows"))  # type: ignore[arg-type]


def test_refused_replies_leave_the_means_whatever_the_window(
    tried: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {
        c: replace(d, train=replace(d.train, inputs=d.train.inputs * torch.nan))
        for c, d in tried.clients.items()
        if c % 50 == 3
    }
    broken = replace(tried, clients=tried.clients | bad)
    wide = shown([everyone(Task(offered=(0,)), need="mean")(0, tuple(MANY))], broken)[0]
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", 1)
    narrow = shown([everyone(Task(offered=(0,)), need="mean")(0, tuple(MANY))], broken)[0]
    assert set(wide.refused) == set(narrow.refused) == set(bad)
    assert wide.clients == narrow.clients
    assert wide.means is not None
    assert narrow.means is not None
    torch.testing.assert_close(wide.means, narrow.means, rtol=1e-4, atol=1e-6)
    assert narrow.mean_counts is not None
    assert narrow.mean_counts.tolist() == [len(MANY) - len(bad), 0]


def test_exchanges_that_only_measure_have_no_means(tried: Any, narrow: None) -> None:
    plan = everyone(Task(offered=(0, 1), epochs=0, measure="train"), need="mean")(0, tuple(MANY))
    replies = shown([plan], tried)[0]
    assert replies.means is None
    assert len(replies.losses) == len(MANY)
