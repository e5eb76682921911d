"""Rounds: the same bits however they are computed, nothing but training data in a state, failures in a sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.core import Replies, Task, Training
from coterie.data.world import World
from coterie.methods import FedAvg
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, seeded
from method_examples import EVERY_METHOD, IN_FEW_ROUNDS, MOST_AND_LEAST_SHOWN, of_each_kind
from scripted import Scripted, bits, everyone, outcome, play, shown
from small import dropped, noisy, normed, spoiled, trained, world

SIZES = (20, 3, 50, 9)


# -- the same bits
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [dropped, normed], ids=lambda m: m.__name__)
def test_the_number_of_workers_changes_no_bit(model: Any) -> None:
    same_with_workers(FedAvg(), model)


@pytest.mark.parametrize("name", of_each_kind(EVERY_METHOD, MOST_AND_LEAST_SHOWN))
def test_the_number_of_workers_changes_no_bit_of_any_method(name: str) -> None:
    same_with_workers(IN_FEW_ROUNDS[name], dropped)


def same_with_workers(method: Any, model: Any) -> None:
    tried = world(
        model=model,
        sizes=SIZES,
        augment=noisy,
        training=Training(lr=0.1, batch=8, momentum=0.5, epochs=2),
    )
    assert outcome(play(method, tried, 3, workers=3)) == outcome(play(method, tried, 3))


def test_a_run_may_stop_and_go_on(method: Any) -> None:
    tried = world(model=dropped, sizes=SIZES, training=Training(lr=0.1, lr_decay=0.5, batch=8))
    whole_run = play(method, tried, 5, seed=3)
    later = play(method, tried, 5, seed=3, start=whole_run[2].position)
    assert outcome(later) == outcome(whole_run[3:])
    assert [r.number for r in later] == [4, 5]
    assert play(method, tried, 5, seed=3, start=whole_run[4].position) == []


def test_a_seed_is_a_run(method: Any) -> None:
    tried = world(model=dropped)
    assert outcome(play(method, tried, 2, seed=1)) == outcome(play(method, tried, 2, seed=1))
    assert outcome(play(method, tried, 2, seed=1)) != outcome(play(method, tried, 2, seed=2))


def test_a_run_leaves_global_randomness_and_threads_alone() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    play(FedAvg(), world(model=dropped), 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


# -- by hand
# ----------------------------------------------------------------------------------------------------------


def first_model(tried: World, seed: int) -> tuple[Layout, Tensor]:
    with seeded(seed, Purpose.INIT, 0):
        module = tried.model()
    layout = Layout(module)
    return layout, layout.row(module)


def by_hand(
    tried: World, layout: Layout, row: Tensor, client: int, exchange: int, lr: float, seed: int = 0
) -> Tensor:
    """A client's trained row, by the slow loop."""
    module = tried.model()
    layout.load(module, row)
    key = (seed, Purpose.TRAIN, exchange, client)
    return layout.row(
        trained(module, tried.clients[client].train, tried.training, lr, generator(*key))
    )


@seeded(0)
def test_federated_averaging_by_hand() -> None:
    tried = world(sizes=SIZES, training=Training(lr=0.2, lr_decay=0.5, batch=8, epochs=2))
    layout, model = first_model(tried, 0)
    for done in play(FedAvg(), tried, 3):
        lr = 0.2 * 0.5 ** (done.number - 1)
        rows = [by_hand(tried, layout, model, c, done.number - 1, lr) for c in tried.clients]
        model = sum(n / sum(SIZES) * row for n, row in zip(SIZES, rows, strict=True))  # type: ignore[assignment]
        torch.testing.assert_close(done.assignment.models[0], model, rtol=1e-4, atol=1e-5)
        assert (done.asked, done.answered, done.exchanges) == (4, 4, 1)


@seeded(0)
def test_scores_are_of_each_clients_model_on_its_own_test_data(method: Any) -> None:
    tried = world(sizes=SIZES, model=normed)
    done = play(method, tried, 3)[-1]
    layout, _ = first_model(tried, 0)
    assert done.scores is not None
    for c, data in tried.clients.items():
        module, row = tried.model(), done.assignment.models[done.assignment.row[c]]
        own = done.position.own(done.assignment, c)
        if own is not None:  # a mixture, a model or some layers
            row = (
                own[-1] * own[:-1] + (1 - own[-1]) * row
                if len(own) > len(row)
                else torch.where(own.isnan(), row, own)
            )
        layout.load(module, row)
        with torch.no_grad():
            near = done.assignment.neighbours is not None
            outputs = (done.model(c) if near else module.eval())(data.test.inputs)
        assert done.scores[c]["loss"] == pytest.approx(
            float(nn.functional.cross_entropy(outputs, data.test.targets)), rel=1e-4
        )
        assert done.scores[c]["accuracy"] == pytest.approx(
            float((outputs.argmax(1) == data.test.targets).float().mean())
        )


@seeded(0)
def test_learning_rates_go_by_rounds_and_randomness_by_exchanges() -> None:
    tried = world(training=Training(lr=0.2, lr_decay=0.5, batch=8))
    method = Scripted(
        lambda e, clients: {"tasks": {7: Task(offered=(0,))}, "ends_round": e % 2 == 1}
    )
    play(method, tried, 2)
    layout, model = first_model(tried, 0)
    for exchange, seen in enumerate(method.seen):
        expected = (
            by_hand(tried, layout, model, 7, exchange, lr=0.2 * 0.5 ** (exchange // 2)) - model
        )
        assert seen.updates is not None
        torch.testing.assert_close(seen.updates[0], expected, rtol=1e-4, atol=1e-5)


@seeded(0)
def test_a_task_may_bring_its_own_training() -> None:
    own = Training(lr=0.5, lr_decay=0.1, batch=0, steps=2)
    method = Scripted(everyone(Task(offered=(0,), training=own)))
    tried = world()
    play(method, tried, 2)
    layout, model = first_model(tried, 0)
    for number, seen in enumerate(method.seen):
        expected = (
            by_hand(replace(tried, training=own), layout, model, 2, number, lr=0.5 * 0.1**number)
            - model
        )
        assert seen.updates is not None
        torch.testing.assert_close(seen.updates[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("every", "tested"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (9, [5])]
)
def test_the_last_round_is_always_tested(every: int, tested: list[int]) -> None:
    done = play(FedAvg(), world(), 5, eval_every=every)
    assert [r.number for r in done if r.scores is not None] == tested
    assert bits(done[-1].position) == bits(play(FedAvg(), world(), 5)[-1].position)


# -- what step sees
# ---------------------------------------------------------------------------------------------------


def test_means_and_grams_are_those_of_the_rows() -> None:
    tried, at = world(sizes=SIZES), slice(0, 40)
    tasks = {
        2: Task(offered=(0,)),
        3: Task(offered=(1,)),
        7: Task(offered=(0, 1)),
        11: Task(offered=(0, 1), choose=2),
    }
    rows, mean, some = (
        shown([{"tasks": tasks, "need": need, **more}], tried)[0]
        for need, more in (
            ("rows", {}),
            ("mean", {}),
            ("gram", {"columns": at, "weighting": "uniform"}),
        )
    )
    assert rows.updates is not None
    assert rows.means is None
    assert mean.updates is None
    assert some.updates is None
    assert mean.chosen == rows.chosen == some.chosen
    for row in (0, 1):
        from_it = [i for i, chosen in enumerate(rows.chosen) if row in chosen]
        total = sum(SIZES[i] for i in from_it)
        by_data = sum(SIZES[i] / total * rows.updates[i] for i in from_it)
        assert mean.means is not None
        assert mean.mean_counts is not None
        assert some.means is not None
        torch.testing.assert_close(mean.means[row], by_data, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(
            some.means[row], rows.updates[from_it].mean(0), rtol=1e-5, atol=1e-7
        )
        assert mean.mean_counts[row] == len(from_it)
    assert mean.gram is None
    assert some.gram is not None
    part = rows.updates[:, at].double().numpy()
    np.testing.assert_allclose(some.gram, part @ part.T, rtol=1e-4, atol=1e-9)


def test_clients_that_only_measure_are_in_no_mean() -> None:
    tried, still = world(), Training(epochs=0)
    train, measure = Task(offered=(0,)), Task(offered=(0,), training=still, measure="train")
    plans = [{"tasks": dict.fromkeys(tried.clients, t), "need": "mean"} for t in (train, measure)]
    first, second = shown(plans, tried)
    assert first.means is not None
    assert second.means is None  # nothing of the exchange before
    assert all(len(loss) == 1 for loss in second.losses)
    mixed = {2: train, 3: measure, 7: measure, 11: train}
    for need in ("mean", "rows"):
        _, found = shown(
            [{"tasks": dict.fromkeys(tried.clients, train)}, {"tasks": mixed, "need": need}], tried
        )
        _, only = shown([plans[0], {"tasks": {2: train, 11: train}, "need": need}], tried)
        if found.means is None:
            assert found.updates is not None
            assert only.updates is not None
            assert torch.equal(found.updates[[0, 3]], only.updates)
            assert not found.updates[[1, 2]].any()
        else:
            assert only.means is not None
            assert torch.equal(found.means, only.means)
            assert found.mean_counts is not None
            assert found.mean_counts.tolist() == [2, 0]


def test_test_data_reach_no_state(method: Any) -> None:
    tried = world(model=dropped, sizes=SIZES)
    poisoned = replace(tried, clients={c: spoiled(d, "test") for c, d in tried.clients.items()})
    good, bad = play(method, tried, 4), play(method, poisoned, 4)
    assert [bits(r.position) for r in good] == [bits(r.position) for r in bad]
    assert all(math.isnan(s["loss"]) for r in bad if r.scores for s in r.scores.values())


class Poisoning:
    """A method whose replies are spoiled as soon as its step is over."""

    def __init__(self, method: Any) -> None:
        self.method, self.name = method, method.name
        self.init, self.plan = method.init, method.plan
        self.assignment, self.explain = method.assignment, method.explain
        self.needs = method.needs

    def step(self, state: Any, replies: Replies) -> Any:
        new = self.method.step(state, replies)
        for tensor in (replies.updates, replies.means):
            if tensor is not None:
                tensor.fill_(math.nan)
        if replies.gram is not None:
            replies.gram.fill(math.nan)
        return new


def test_no_state_holds_on_to_replies(method: Any) -> None:
    assert outcome(play(Poisoning(method), world(), 4)) == outcome(play(method, world(), 4))
