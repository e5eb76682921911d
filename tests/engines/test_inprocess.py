"""Rounds: the same bits however they are computed, nothing but training data in a state, failures in a sentence."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.core import Replies, Task, Training
from coterie.engines.inprocess import EXCHANGES, rounds
from coterie.engines.workers import EngineError
from coterie.layout import Layout
from coterie.methods import CFL, FLHC, METHODS, FedAvg, Independent
from coterie.randomness import Purpose, generator, seeded
from coterie.world import ClientData, Split, World, whole
from scripted import Scripted, bits, everyone, outcome, play, shown
from small import client, dropped, examples, mlp, noisy, normed, trained, world

EXAMPLES: Mapping[str, Any] = {
    "fedavg": FedAvg(fraction=0.5),
    "independent": Independent(),
    "cfl": CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1, fraction=0.5),
    "flhc": FLHC(warmup=1, fraction=0.6, threshold=None, groups=2),
}
SIZES = (20, 3, 50, 9)


@pytest.fixture(params=EXAMPLES, name="method")
def _method(request: pytest.FixtureRequest) -> Any:
    return EXAMPLES[request.param]


def test_every_method_is_played_here() -> None:
    assert set(EXAMPLES) >= set(METHODS)


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [dropped, normed], ids=lambda m: m.__name__)
def test_the_number_of_workers_changes_no_bit(method: Any, model: Any) -> None:
    tried = world(model=model, sizes=SIZES, augment=noisy, training=Training(lr=0.1, batch=8, momentum=0.5, epochs=2))
    alone, two, three = (outcome(play(method, tried, 3, workers)) for workers in (1, 2, 3))
    assert alone == two == three


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


# -- by hand ----------------------------------------------------------------------------------------------------------


def first_model(tried: World, seed: int) -> tuple[Layout, Tensor]:
    with seeded(seed, Purpose.INIT, 0):
        module = tried.model()
    layout = Layout(module)
    return layout, layout.row(module)


def by_hand(tried: World, layout: Layout, row: Tensor, client: int, exchange: int, lr: float, seed: int = 0) -> Tensor:
    """A client's trained row, by the slow loop."""
    module = tried.model()
    layout.load(module, row)
    key = (seed, Purpose.TRAIN, exchange, client)
    return layout.row(trained(module, tried.clients[client].train, tried.training, lr, generator(*key)))


def test_federated_averaging_by_hand() -> None:
    tried = world(sizes=SIZES, training=Training(lr=0.2, lr_decay=0.5, batch=8, epochs=2))
    layout, model = first_model(tried, 0)
    for done in play(FedAvg(), tried, 3):
        lr = 0.2 * 0.5 ** (done.number - 1)
        rows = [by_hand(tried, layout, model, c, done.number - 1, lr) for c in tried.clients]
        model = sum(n / sum(SIZES) * row for n, row in zip(SIZES, rows, strict=True))  # type: ignore[assignment]
        torch.testing.assert_close(done.assignment.models[0], model, rtol=1e-4, atol=1e-5)
        assert (done.asked, done.answered, done.exchanges) == (4, 4, 1)


def test_scores_are_of_each_clients_model_on_its_own_test_data(method: Any) -> None:
    tried = world(sizes=SIZES, model=normed)
    done = play(method, tried, 3)[-1]
    layout, _ = first_model(tried, 0)
    assert done.scores is not None
    for c, data in tried.clients.items():
        module, row = tried.model(), done.assignment.models[done.assignment.row[c]]
        own = done.position.kept.get(c)
        layout.load(module, row if own is None else torch.where(own.isnan(), row, own))
        with torch.no_grad():
            outputs = module.eval()(data.test.inputs)
        assert done.scores[c]["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, data.test.targets)), rel=1e-4)
        assert done.scores[c]["accuracy"] == pytest.approx(float((outputs.argmax(1) == data.test.targets).float().mean()))


@pytest.mark.parametrize(("every", "tested"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (9, [5])])
def test_the_last_round_is_always_tested(every: int, tested: list[int]) -> None:
    done = play(FedAvg(), world(), 5, eval_every=every)
    assert [r.number for r in done if r.scores is not None] == tested
    assert bits(done[-1].position) == bits(play(FedAvg(), world(), 5)[-1].position)


# -- what step sees ---------------------------------------------------------------------------------------------------


def test_means_and_grams_are_those_of_the_rows() -> None:
    tried, at = world(sizes=SIZES), slice(0, 40)
    tasks = {2: Task(offered=(0,)), 3: Task(offered=(1,)), 7: Task(offered=(0, 1)), 11: Task(offered=(0, 1), choose=2)}
    rows, mean, some = (
        shown([{"tasks": tasks, "need": need, **more}], tried)[0]
        for need, more in (("rows", {}), ("mean", {}), ("gram", {"columns": at, "weighting": "uniform"}))
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
        assert mean.heard is not None
        assert some.means is not None
        torch.testing.assert_close(mean.means[row], by_data, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(some.means[row], rows.updates[from_it].mean(0), rtol=1e-5, atol=1e-7)
        assert mean.heard[row] == len(from_it)
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
        _, found = shown([{"tasks": dict.fromkeys(tried.clients, train)}, {"tasks": mixed, "need": need}], tried)
        _, only = shown([plans[0], {"tasks": {2: train, 11: train}, "need": need}], tried)
        if found.means is None:
            assert found.updates is not None
            assert only.updates is not None
            assert torch.equal(found.updates[[0, 3]], only.updates)
            assert not found.updates[[1, 2]].any()
        else:
            assert only.means is not None
            assert torch.equal(found.means, only.means)
            assert found.heard is not None
            assert found.heard.tolist() == [2, 0]


def spoiled(data: ClientData, part: str) -> ClientData:
    split: Split = getattr(data, part)
    return replace(data, **{part: whole(split.inputs * math.nan, split.targets)})


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


# -- replies that are turned away, and failures -----------------------------------------------------------------------


def test_a_broken_update_reaches_nothing(method: Any) -> None:
    tried = world()
    broken = replace(tried, clients={**tried.clients, 7: spoiled(tried.clients[7], "train")})
    for done in play(method, broken, 3):
        assert set(done.refused) <= {7}
        assert done.answered == done.asked - (7 in done.refused) * done.exchanges or method.fraction < 1
        assert torch.isfinite(done.assignment.models).all()
    assert any(7 in r.refused for r in play(method, broken, 6))


@pytest.mark.parametrize("need", ["rows", "mean", "gram"])
def test_a_refused_client_is_a_silent_one(need: Any) -> None:
    tried = world(sizes=SIZES)
    broken = replace(tried, clients={**tried.clients, 3: spoiled(tried.clients[3], "train")})
    task = Task(offered=(0,))
    found = shown([{"tasks": dict.fromkeys(tried.clients, task), "need": need}], broken)[0]
    without = shown([{"tasks": dict.fromkeys((2, 7, 11), task), "need": need}], tried)[0]
    assert list(found.refused) == [3]
    assert "NaN or infinite" in found.refused[3]
    assert bits(replace(found, refused={})) == bits(without)


def test_a_round_that_cannot_end_is_an_error() -> None:
    broken = replace(world(), clients={c: spoiled(client(c), "train") if c < 11 else client(c) for c in (2, 3, 7, 11)})
    text = f"round 1 has not ended after {EXCHANGES} exchanges, in which {EXCHANGES} of {4 * EXCHANGES} tasks were answered; 3 "
    with pytest.raises(EngineError, match=text):
        play(Scripted(everyone(Task(offered=(0,)), ends_round=False)), broken, 3)


def test_federated_learning_goes_on_where_most_clients_are_broken(method: Any) -> None:
    broken = replace(world(), clients={c: spoiled(client(c), "train") if c < 11 else client(c) for c in (2, 3, 7, 11)})
    assert [r.number for r in play(method, broken, 4)] == [1, 2, 3, 4]


def test_nobody_is_asked() -> None:
    found = shown([{"tasks": {}, "need": "gram"}, {"tasks": {}}], world(), workers=2)
    assert [r.clients for r in found] == [(), ()]
    assert found[0].gram is None


def reading() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4 * 5, 3))


def words(top: int, seed: int) -> Split:
    return whole(torch.randint(0, top, (12, 5), generator=generator(seed)), examples(12, seed).targets)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("part", "where"), [("train", "task"), ("test", "test")])
def test_a_task_that_fails_names_its_client(workers: int, part: str, where: str) -> None:
    good = {c: ClientData(train=words(9, c), validation=words(9, c), test=words(9, c)) for c in (4, 6, 8)}
    assert play(FedAvg(), world((1,), model=reading, clients=good), 1, workers)[0].scores  # whole numbers are inputs too
    bad = {**good, 6: replace(good[6], **{part: words(99, 6)})}
    with pytest.raises(EngineError, match=f"^client 6 failed in its {where}: IndexError: index out of range") as caught:
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


def test_workers_must_be_one_or_more() -> None:
    with pytest.raises(ValueError, match="workers must be >= 1, got 0"):
        play(FedAvg(), world(), 1, 0)


def test_one_client_is_a_world(method: Any) -> None:
    tried = World(clients={5: client(5)}, model=mlp)
    done = play(method, tried, 2, workers=2)
    assert done[-1].assignment.groups == ((5,),)
    with pytest.raises(ValueError, match="whole number >= 0, got -1"):
        replace(tried, clients={-1: client(5)})


def test_a_plan_may_ask_for_more_exchanges_in_a_round() -> None:
    plan = everyone(Task(offered=(0,)))
    method = Scripted(lambda e, clients: {**plan(e, clients), "ends_round": e % 3 == 2})
    done = play(method, world(), 2)
    assert [(r.number, r.exchanges, r.position.exchange, r.asked) for r in done] == [(1, 3, 3, 12), (2, 3, 6, 12)]
