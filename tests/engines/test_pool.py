"""What clients keep, what travels, and tests: every number by hand, every pair of a model and examples computed once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Plan, Task, Training
from coterie.data.objective import Metric, Objective
from coterie.data.world import ClientData, Split, World
from coterie.engines import pool as pools
from coterie.engines.traffic import evaluations, traffic
from coterie.methods import CFL, FLHC, FedAvg, Independent
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, seeded
from coterie.training import BATCH_TO_MEASURE
from scripted import Scripted, bits, everyone, play, shown
from small import CLASSES, FEATURES, client, examples, linear, mlp, normed, trained, world

SIZES = (20, 3, 50, 9)
HEAD, BODY = "2", "0"  # the layers of small.mlp
TRAINING = Training(lr=0.2, lr_decay=0.9, batch=8)


def first_models(tried: World, count: int = 1) -> tuple[Layout, list[Tensor]]:
    rows = []
    for i in range(count):
        with seeded(0, Purpose.INIT, i):
            module = tried.model()
        rows.append(Layout(module).row(module))
    return Layout(module), rows


def by_hand(tried: World, row: Tensor, client: int, exchange: int) -> Tensor:
    module, training = tried.model(), tried.training
    normed = any(isinstance(m, nn.BatchNorm1d) for m in module.modules())
    layout = Layout(module)
    layout.load(module, row)
    lr, key = training.lr * training.lr_decay**exchange, (0, Purpose.TRAIN, exchange, client)
    return layout.row(
        trained(
            module, tried.clients[client].train, training, lr, generator(*key), skip_single=normed
        )
    )


# -- what clients keep
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [mlp, normed], ids=lambda m: m.__name__)
@seeded(0)
def test_independent_clients_train_as_if_alone_and_send_nothing(model: Any) -> None:
    tried = world(model=model, sizes=SIZES, training=TRAINING)
    _, (row,) = first_models(tried)
    rows = dict.fromkeys(tried.clients, row)
    for done in play(Independent(), tried, 3, workers=2):
        rows = {c: by_hand(tried, rows[c], c, done.number - 1) for c in rows}
        assert (done.bytes_up, done.bytes_down) == (0, 0)
        for c, expected in rows.items():
            torch.testing.assert_close(done.position.kept[""][c], expected, rtol=1e-4, atol=1e-5)


@seeded(0)
def test_a_head_that_stays_is_trained_kept_and_not_sent() -> None:
    tried = world(sizes=SIZES, training=TRAINING)
    layout, (first, _) = first_models(tried, 2)
    method = Scripted(everyone(Task(offered=(0,), local_layers=(HEAD,))))
    done, head = play(method, tried, 2), layout.mask([HEAD])
    rows = {c: by_hand(tried, first, c, 0) for c in tried.clients}
    for after, seen in zip(done, method.seen, strict=True):
        assert seen.updates is not None
        for c, update in zip(seen.clients, seen.updates, strict=True):
            assert not update[head].any()
            torch.testing.assert_close(
                update[~head], (rows[c] - first)[~head], rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(
                after.position.kept[""][c][head], rows[c][head], rtol=1e-4, atol=1e-5
            )
            assert after.position.kept[""][c][~head].isnan().all()
        # The next round starts from the offered body (Scripted never moves it) with the client's
        # own head.
        rows = {c: by_hand(tried, torch.where(head, rows[c], first), c, 1) for c in rows}


@seeded(0)
def test_own_layers_count_only_in_tasks_that_keep_them() -> None:
    tried = world(training=TRAINING)
    layout, (first, _) = first_models(tried, 2)
    head, body = layout.mask([HEAD]), layout.mask([BODY])
    tasks = [
        Task(offered=(0,), local_layers=(HEAD,)),
        Task(offered=(0,)),
        Task(offered=(0,), local_layers=(BODY,)),
    ]
    method = Scripted(lambda e, clients: {"tasks": dict.fromkeys(clients, tasks[e])})
    done = play(method, tried, 3)
    kept = [r.position.kept[""][7] for r in done]
    updates = [seen.updates[2] for seen in method.seen if seen.updates is not None]
    torch.testing.assert_close(
        updates[1], by_hand(tried, first, 7, 1) - first, rtol=1e-4, atol=1e-5
    )
    assert bits(kept[1]) == bits(kept[0])  # a task that keeps nothing leaves what the client has
    torch.testing.assert_close(
        updates[2][head], (by_hand(tried, first, 7, 2) - first)[head], rtol=1e-4, atol=1e-5
    )
    assert torch.equal(kept[2][head], kept[0][head])
    torch.testing.assert_close(
        kept[2][body], by_hand(tried, first, 7, 2)[body], rtol=1e-4, atol=1e-5
    )


def test_asking_for_a_gradient_changes_no_layer_that_stays() -> None:
    tried, keep = world(), (HEAD,)
    tasks = [
        Task(offered=(0,), local_layers=keep),
        Task(offered=(0,), local_layers=keep, gradient=True),
    ]
    method = Scripted(lambda e, clients: {"tasks": dict.fromkeys(clients, tasks[e])})
    trained_once, asked = play(method, tried, 2)
    assert bits(asked.position.kept) == bits(trained_once.position.kept)
    assert method.seen[1].updates is not None
    assert not method.seen[1].updates[:, first_models(tried)[0].mask(keep)].any()


@seeded(0)
def test_the_mean_of_several_models_has_the_clients_own_layers() -> None:
    tried = world(training=TRAINING)
    layout, models = first_models(tried, 2)
    head = layout.mask([HEAD])
    plans = [
        Task(offered=(0,), local_layers=(HEAD,)),
        Task(offered=(0, 1), choose=2, local_layers=(HEAD,)),
    ]
    seen = shown([{"tasks": {7: task}} for task in plans], tried)
    own = by_hand(tried, models[0], 7, 0)
    start = torch.where(head, own, (models[0] + models[1]) / 2)
    assert seen[1].updates is not None
    expected = torch.where(head, 0.0, by_hand(tried, start, 7, 1) - start)
    torch.testing.assert_close(seen[1].updates[0], expected, rtol=1e-4, atol=1e-5)


# -- what travels
# -----------------------------------------------------------------------------------------------------

D = FEATURES * 8 + 8 + 8 * CLASSES + CLASSES  # of small.mlp
HEAD_SIZE = 8 * CLASSES + CLASSES


@pytest.mark.parametrize(
    ("task", "up", "down"),
    [
        (Task(offered=(0,)), D + 1, D),  # the update and the number of examples; the model
        (Task(offered=(0,), gradient=True), D + 1, D),
        (Task(offered=(0,), measure="validation"), D + 1 + 2, D),  # a loss and an accuracy
        (Task(offered=(0, 1)), D + 1 + 4 + 1, 2 * D),  # and the choice
        (Task(offered=(0, 1, 0), choose=2), D + 1 + 6 + 2, 3 * D),
        (Task(offered=(0, 1), choose=2), D + 1, 2 * D),  # nothing to choose
        (
            Task(offered=(0, 1), choose=2, training=Training(epochs=0), measure="train"),
            1 + 4,
            2 * D,
        ),
        (Task(offered=(0,), local_layers=(HEAD,)), D - HEAD_SIZE + 1, D - HEAD_SIZE),
        (Task(offered=(0,), local_layers=(HEAD, BODY)), 0, 0),
        (Task(offered=(0,), local_layers=(HEAD, BODY), measure="train"), 1 + 2, 0),
    ],
)
@seeded(0)
def test_bytes_are_counted_both_ways(task: Task, up: int, down: int) -> None:
    layout = Layout(mlp())
    assert layout.size == D
    wire = Wire(Boundary(), layout, 0)
    assert traffic(Plan(models=torch.zeros(2, D), tasks={1: task}), wire) == (4 * up, 4 * down)
    assert traffic(Plan(models=torch.zeros(2, D), tasks={1: task, 5: task}), wire) == (
        8 * up,
        8 * down,
    )


def test_an_evaluation_is_one_model_measured_by_one_client() -> None:
    tasks = {
        1: Task(offered=(0,)),  # trains only
        2: Task(offered=(1,), measure="validation"),
        3: Task(offered=(0, 1, 2)),  # chooses, so it measures all three
        4: Task(offered=(0, 1), epochs=0, measure="train"),
    }
    assert evaluations(Plan(models=torch.zeros(3, D), tasks=tasks)) == 0 + 1 + 3 + 2


def test_bytes_of_whole_rounds() -> None:
    half = play(FedAvg(fraction=0.5), world(), 2)
    assert [(r.bytes_up, r.bytes_down) for r in half] == [(2 * 4 * (D + 1), 2 * 4 * D)] * 2
    clustering = play(FLHC(warmup=1, fraction=0.5, threshold=None, groups=1), world(), 2)[
        1
    ]  # all 4, then 2 of 4
    assert (clustering.asked, clustering.bytes_up, clustering.bytes_down) == (
        6,
        6 * 4 * (D + 1),
        6 * 4 * D,
    )


# -- tests
# ------------------------------------------------------------------------------------------------------------


class Tally(nn.Linear):
    """Counts the examples it is shown in tests."""

    shown = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            Tally.shown += len(x)
        return super().forward(x)


def permuted_world(**more: Any) -> World:
    """Four clients tested on the same examples, under two labellings; a fifth on its own."""
    pool = examples(40, 1)
    labels = [pool.targets, (pool.targets + 1) % CLASSES]
    clients = {
        c: replace(client(c), test=Split(pool.inputs, pool.index, labels[c % 2])) for c in range(4)
    }
    return world(clients={**clients, 9: client(9, test=7)}, **more)


def test_each_pair_of_a_model_and_examples_is_computed_once() -> None:
    tried = permuted_world(model=lambda: Tally(FEATURES, CLASSES))
    Tally.shown = 0
    play(FedAvg(), tried, 2)
    assert Tally.shown == 2 * (40 + 7)
    split = CFL(split_rounds=(1,))
    done = play(split, tried, 1)[0]
    Tally.shown = 0
    play(split, tried, 2, start=done.position)
    groups = {c: i for i, g in enumerate(done.assignment.groups) for c in g}
    assert len(done.assignment.groups) == 2
    assert Tally.shown == 40 * len({groups[c] for c in range(4)}) + 7
    Tally.shown = 0
    play(Independent(), tried, 1)
    assert Tally.shown == 4 * 40 + 7


def separate(tried: World) -> World:
    """The world in which every client has a copy of its test pool, so that no outputs are shared."""
    apart = {
        c: replace(d, test=replace(d.test, inputs=d.test.inputs.clone()))
        for c, d in tried.clients.items()
    }
    return replace(tried, clients=apart)


def test_shared_outputs_give_the_scores_of_separate_ones() -> None:
    tried = permuted_world()
    for method in (FedAvg(), Independent()):
        together, alone = (
            play(method, tried, 2)[-1].scores,
            play(method, separate(tried), 2)[-1].scores,
        )
        assert together == alone
        assert together is not None
        assert together[0] != together[1]


def overlapping_world(**more: Any) -> World:
    """Eight clients whose test examples overlap, in two pools, in any order and also twice; a ninth without, a tenth alone."""
    pools, clients = [examples(60, 1), examples(60, 2)], {}
    for c in range(8):
        gen = torch.Generator().manual_seed(c)
        index = torch.randint(0, 30, (25,), generator=gen)
        clients[c] = replace(
            client(c),
            test=Split(pools[c // 4].inputs, index, (pools[c // 4].targets[index] + c) % CLASSES),
        )
    return world(clients={**clients, 8: client(8, test=0), 9: client(9, test=7)}, **more)


def test_examples_that_several_clients_have_are_computed_once() -> None:
    tried = overlapping_world(model=lambda: Tally(FEATURES, CLASSES))
    distinct = sum(
        len(torch.cat([tried.clients[c].test.index for c in of_pool]).unique())
        for of_pool in (range(4), range(4, 8))
    )
    assert distinct < 8 * 25
    Tally.shown = 0
    play(FedAvg(), tried, 2)
    assert Tally.shown == 2 * (distinct + 7)


@pytest.mark.parametrize(
    ("method", "chunk"),
    [
        (FedAvg(), 1),
        (FLHC(warmup=0, threshold=None, groups=3), 7),
        (FedAvg(), 10_000),
    ],
    ids=["fedavg-1", "flhc-7", "fedavg-all"],
)
def test_overlapping_tests_give_the_scores_of_separate_ones(
    method: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = overlapping_world()
    expected = play(method, separate(tried), 2)[-1].scores
    monkeypatch.setattr(pools, "EXAMPLES_PER_TEST", chunk)
    found = play(method, tried, 2, workers=2)[-1].scores
    assert expected is not None
    assert found is not None
    assert found.keys() == expected.keys()
    for c in expected:
        assert found[c] == pytest.approx(expected[c], rel=1e-6, nan_ok=True)


def mixing() -> nn.Module:
    """A net whose outputs for an example depend on the others of its batch, in tests as well."""
    return nn.Sequential(
        nn.Linear(FEATURES, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, CLASSES)
    )


@pytest.mark.parametrize(("model", "metric"), [(mixing, "accuracy"), (mlp, "F1Score")])
def test_overlapping_tests_that_must_not_be_cut_are_whole(model: Any, metric: str) -> None:
    tried = overlapping_world(
        model=model, objective=Objective(metrics=tuple(dict.fromkeys(("accuracy", metric))))
    )
    expected, found = (play(FedAvg(), each, 1)[-1].scores for each in (separate(tried), tried))
    assert expected is not None
    assert found is not None
    for c in expected:
        assert found[c] == pytest.approx(expected[c], rel=1e-6, nan_ok=True)


@seeded(0)
def test_metrics_of_a_whole_test_set_have_its_examples_in_their_order() -> None:
    first = Metric(
        lambda outputs, targets: float((outputs.argmax(-1) == targets)[:5].float().mean())
    )
    tried, pool = (
        overlapping_world(objective=Objective(metrics={"first": first})),
        examples(2000, 1),
    )
    at = {
        c: torch.randperm(2000, generator=torch.Generator().manual_seed(c))[:200]
        for c in tried.clients
    }
    clients = {
        c: replace(d, test=Split(pool.inputs, at[c], pool.targets[at[c]]))
        for c, d in tried.clients.items()
    }
    done = play(FedAvg(), replace(tried, clients=clients), 1)[-1]
    assert done.scores is not None
    net = tried.model()
    Layout(net).load(net, done.assignment.models[0])
    for c in clients:
        right = net.eval()(pool.inputs[at[c][:5]]).argmax(-1) == pool.targets[at[c][:5]]
        assert done.scores[c]["first"] == pytest.approx(float(right.float().mean()))


def test_a_net_that_mixes_examples_has_each_test_whole() -> None:
    """Also the second one, which begins just before a job is full."""
    sizes = (pools.EXAMPLES_PER_TEST - 1, 10, 20)
    tried = world(clients={c: client(c, test=size) for c, size in enumerate(sizes)}, model=mixing)
    scores = play(FedAvg(), tried, 1)[-1].scores
    assert scores is not None
    assert all(math.isfinite(score["loss"]) for score in scores.values())


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 30), max_size=30)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
    st.integers(1, 20),
    st.integers(0, 3),
)
def test_every_example_of_every_test_is_in_one_job(
    tests: list[tuple[int, list[int]]], whole: bool, overlap: bool, most: int, costs: int
) -> None:
    inputs = [torch.zeros(31, 1) for _ in range(3)]
    data = [
        Split(inputs[p], torch.tensor(at, dtype=torch.int64), torch.zeros(len(at)))
        for p, at in tests
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "EXAMPLES_PER_TEST", most)
        patch.setattr(pools, "EXAMPLES_PER_PART", costs)
        jobs = pools.cut(data, whole=whole, overlap=overlap and not whole)
    found: dict[int, list[int]] = {}
    for job in jobs:
        seen = set()
        for i, at in job:
            positions = np.arange(len(data[i]))[at].tolist()
            found.setdefault(i, []).extend(positions)
            seen |= {(tests[i][0], tests[i][1][position]) for position in positions}
            assert not whole or len(positions) == len(data[i])
        assert whole or len(seen) <= most
    assert {i: sorted(at) for i, at in found.items()} == {
        i: list(range(len(at))) for i, (_, at) in enumerate(tests) if at
    }


@pytest.mark.parametrize("own_pools", [True, False])
def test_a_little_overlap_does_not_cut_tests(own_pools: bool) -> None:
    """Each part of a test costs more than an example of a small model."""
    order = (
        torch.randperm(30_000, generator=torch.Generator().manual_seed(0)).view(300, 100).clone()
    )
    order[1, :30] = order[0, :30]
    inputs = (
        [torch.zeros(30_000, 1)] * 300
        if not own_pools
        else [torch.zeros(100, 1) for _ in range(300)]
    )
    index = [torch.arange(100).clamp(min=60) for _ in range(300)] if own_pools else list(order)
    data = [Split(pool, at, torch.zeros(100)) for pool, at in zip(inputs, index, strict=True)]
    jobs = pools.cut(data, whole=False, overlap=True)
    assert len(jobs) <= 12
    assert sum(map(len, jobs)) <= 300 + 12


@pytest.mark.parametrize("chunk", [1, 7, BATCH_TO_MEASURE, 10_000])
def test_long_tests_are_cut_without_a_change(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = world(clients={c: client(c, test=BATCH_TO_MEASURE + 3) for c in (1, 2)}, model=normed)
    expected = play(FedAvg(), tried, 1)[0].scores
    monkeypatch.setattr(pools, "EXAMPLES_PER_TEST", chunk)
    found = play(FedAvg(), tried, 1, workers=2)[0].scores
    assert expected is not None
    assert found is not None
    for c in (1, 2):
        assert found[c] == pytest.approx(expected[c], rel=1e-6)


def test_perplexity_is_exp_of_the_mean_loss() -> None:
    tried = world(objective=Objective(metrics=("accuracy", "perplexity")))
    scores = play(FedAvg(), tried, 1)[0].scores
    assert scores is not None
    assert all(s["perplexity"] == pytest.approx(math.exp(s["loss"])) for s in scores.values())
    assert "perplexity" not in (play(FedAvg(), world(), 1)[0].scores or {})[2]


@pytest.mark.parametrize(
    "method", [FedAvg(), Independent(), CFL(), FLHC(warmup=0, threshold=None, groups=2)]
)
def test_clients_without_validation_or_test_data(method: Any) -> None:
    tried = world(clients={c: client(c, validation=0, test=0 if c == 3 else 9) for c in (1, 2, 3)})
    scores = play(method, tried, 2, workers=2)[-1].scores
    assert scores is not None
    assert math.isnan(scores[3]["loss"])
    assert all(math.isfinite(scores[c]["loss"]) for c in (1, 2))


@seeded(0)
def test_clients_may_differ_greatly_in_size() -> None:
    sizes = (1, 1000, 3, 40)
    tried = world(model=linear, sizes=sizes, training=TRAINING)
    _, (row,) = first_models(tried)
    done = play(FedAvg(), tried, 1, workers=2)[0]
    expected = sum(
        n / sum(sizes) * by_hand(tried, row, c, 0)
        for n, c in zip(sizes, tried.clients, strict=True)
    )
    torch.testing.assert_close(done.assignment.models[0], expected, rtol=1e-4, atol=1e-5)


def test_a_client_of_one_example_cannot_have_batchnorm() -> None:
    tried = World(clients={3: client(3), 8: client(8, train=1)}, model=normed)
    with pytest.raises(
        RuntimeError, match="client 8 failed in its task: ValueError: a client with one training"
    ):
        play(FedAvg(), tried, 1)


def test_a_world_needs_clients_with_ids_and_data() -> None:
    data: ClientData = client(1)
    with pytest.raises(ValueError, match="client 4 has no training data"):
        World(clients={4: client(4, train=0)}, model=mlp)
    with pytest.raises(ValueError, match="non-negative integer, got -1"):
        World(clients={-1: data}, model=mlp)
    with pytest.raises(ValueError, match="at least one client"):
        World(clients={}, model=mlp)
    with pytest.raises(ValueError, match="3 examples but 2 targets"):
        Split(data.train.inputs, torch.arange(3), torch.arange(2))
