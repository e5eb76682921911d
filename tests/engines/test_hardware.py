"""Workers, blocks, device and precision: what changes no bit, what changes rounding, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.data.objective import Objective
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import rounds, setup
from coterie.engines.workers import BLOCK_BYTES, MAX_WIDTH, Hardware
from coterie.methods import CFL, FLHC, HCCT, FedAvg
from coterie.randomness import seeded
from coterie.settings import SettingError
from method_examples import EVERY_METHOD, IN_FEW_ROUNDS, MOST_AND_LEAST_SHOWN, of_each_kind
from scripted import outcome, play
from small import client, dropped, mlp, normed, world

SIZES = (20, 3, 50, 9, 17, 18)
IDS = (2, 3, 7, 11, 12, 20)


def width(model: Callable[[], nn.Module], tried: World, **how: Any) -> int:
    return Hardware(**how).block(model(), tried)


@seeded(0)
def test_small_dense_nets_train_in_blocks_on_a_cpu() -> None:
    tried = world()
    assert width(mlp, tried) == MAX_WIDTH
    assert width(dropped, tried) == width(normed, tried) == 1
    assert width(mlp, replace(tried, objective=Objective(loss=lambda o, y: o.mean()))) == MAX_WIDTH
    assert (
        width(mlp, replace(tried, objective=Objective(loss=lambda o, y: o.mean() * o[0, 0].item())))
        == 1
    )
    assert (
        width(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), tried) == 1
    )
    assert width(mlp, tried, width=3) == 3
    assert width(normed, tried, width=3) == 3


@seeded(0)
def test_blocks_fit_a_cache_and_long_steps_need_none() -> None:
    tried, make = (
        world(),
        lambda hidden: (
            lambda: nn.Sequential(nn.Linear(100, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        ),
    )
    sizes = [width(make(hidden), tried) for hidden in (10, 100, 1000, 10_000)]
    parameters = sum(p.numel() for p in make(1000)().parameters())
    assert sizes == [MAX_WIDTH, MAX_WIDTH, BLOCK_BYTES // (4 * parameters), 1]
    long = replace(tried, training=Training(batch=0), clients={1: client(1, train=100_000)})
    assert width(make(100), long) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"workers": 0}, "workers must be an integer >= 1, got 0"),
        ({"width": 0}, "width must be an integer >= 1, got 0"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16, got 'fp16'"),
        ({"device": "gpu"}, "device must be cpu, cuda or cuda:NUMBER, got 'gpu'"),
        ({"device": "meta"}, "device must be cpu or cuda, got 'meta'"),
        ({"device": "cuda", "workers": 2}, "workers must be 1 with device cuda, got 2"),
    ],
    ids=str,
)
def test_wrong_settings(how: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=f"^{says}"):
        Hardware(**how)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_before_anything_trains() -> None:
    with pytest.raises(
        SettingError, match="device 'cuda' cannot be used: this PyTorch finds no CUDA GPU"
    ):
        next(rounds(FedAvg(), world(), rounds=1, device="cuda"))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (dropped, "dropout, which draws"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LSTM(5, 3)), "recurrent layers"),
        (lambda: nn.InstanceNorm1d(3, track_running_stats=True), "buffers in InstanceNorm1d"),
    ],
    ids=["dropout", "lstm", "buffers"],
)
def test_models_that_have_no_blocks(model: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(SettingError, match=f"width must be 1 for a model with {says}.*, got 2"):
        next(rounds(FedAvg(), world(model=model), rounds=1, width=2))


@pytest.mark.parametrize("name", of_each_kind(EVERY_METHOD, MOST_AND_LEAST_SHOWN))
def test_the_number_of_workers_changes_no_bit_of_blocks(name: str) -> None:
    method = IN_FEW_ROUNDS[name]
    tried = world(IDS, sizes=SIZES, training=Training(lr=0.1, batch=8, epochs=2))
    alone, three = (outcome(play(method, tried, 3, workers, width=2)) for workers in (1, 3))
    assert alone == three


def test_every_width_gives_the_same_models_up_to_rounding(method: Any) -> None:
    tried = world(IDS, sizes=SIZES, model=mlp)
    plain = play(method, tried, 2, width=1)
    for size in (4, 100):  # a block of some, with a rest, and one of all
        for one, other in zip(plain, play(method, tried, 2, width=size), strict=True):
            assert one.assignment.groups == other.assignment.groups
            torch.testing.assert_close(
                one.assignment.models, other.assignment.models, rtol=1e-3, atol=1e-5
            )


def test_a_run_in_blocks_may_stop_and_go_on() -> None:
    tried = world(IDS, sizes=SIZES)
    whole_run = play(FedAvg(fraction=0.5), tried, 5, width=2)
    later = play(FedAvg(fraction=0.5), tried, 5, start=whole_run[2].position, width=2)
    assert outcome(later) == outcome(whole_run[3:])


@pytest.mark.parametrize("model", [mlp, normed], ids=lambda m: m.__name__)
def test_a_client_that_breaks_down_in_a_block_is_refused_alone(model: Any) -> None:
    clients = {c: client(c) for c in IDS}
    clients[7] = replace(
        clients[7], train=replace(clients[7].train, inputs=clients[7].train.inputs * torch.nan)
    )
    done = play(FedAvg(), world(IDS, model=model, clients=clients), 1, width=6)[0]
    assert set(done.refused) == {7}
    assert done.assignment.models.isfinite().all()


def test_a_failing_block_names_a_way_out() -> None:
    def refuse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.sum() > 0:  # a choice by values, which a block cannot make
            return outputs.sum()
        return (outputs**2).mean()

    tried = world(IDS, objective=Objective(loss=refuse))
    assert play(FedAvg(), tried, 1, width=1)[0].answered == len(IDS)
    with pytest.raises(
        RuntimeError,
        match=r"a block of 6 clients failed in its task: .*; --width 1 trains each client alone",
    ):
        play(FedAvg(), tried, 1, width=6)


def test_clients_of_a_block_make_the_same_steps() -> None:
    tried = world(IDS, sizes=(8, 16, 9, 17, 24, 1), training=Training(batch=8))
    wire, federation = setup(FedAvg(), tried, 0, Boundary())
    with ClientPool(tried, wire, Hardware(workers=1, width=2)) as pool:
        seen: list[list[int]] = []
        blocks = pool._blocks

        def remembered(placed_orders: Any) -> Any:
            made = blocks(placed_orders)
            seen.extend([placed.order.client for placed in block] for block in made)
            return made

        pool._blocks = remembered  # type: ignore[method-assign]
        plan = FedAvg().plan(FedAvg().init(federation), _cohort(federation))
        pool.train(plan, list(plan.tasks), {}, (0, 0, 0))
    assert sorted(sorted(block) for block in seen) == [
        [2, 20],
        [3, 7],
        [11, 12],
    ]  # one, two, three batches


def _cohort(federation: Any) -> Any:
    from coterie.core import Cohort

    return Cohort(present=federation.clients, exchange=0, seed=0)


# -- precision
# --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", [CFL(), FLHC(warmup=3), HCCT()], ids=lambda m: m.name)
def test_groups_are_the_same_in_every_width_and_precision(method: Any) -> None:
    tried = SCENARIOS["digits/label-permutation"].build(0)
    results = [
        play(method, tried, 22, 2, eval_every=30, **how)[-1].assignment
        for how in (
            {"width": 1},
            {"width": 5},
            {"precision": "bf16", "width": 1},
            {"precision": "bf16"},
        )
    ]
    assert len(results[0].groups) > 1
    assert all(found.groups == results[0].groups for found in results)
    assert not torch.equal(results[0].models, results[2].models)


def test_bf16_is_the_same_bits_with_any_number_of_workers() -> None:
    tried = world(IDS, sizes=SIZES)
    alone, two = (
        outcome(play(FedAvg(), tried, 2, workers, precision="bf16")) for workers in (1, 2)
    )
    assert alone == two
    assert alone != outcome(play(FedAvg(), tried, 2))
    rows = play(FedAvg(), tried, 1, precision="bf16")[0].assignment.models
    assert rows.dtype == torch.float32
    assert not torch.equal(rows, rows.bfloat16().float())  # the weights themselves are float32
