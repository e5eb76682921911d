"""Optimizers and schedules of torch by name, against torch itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import coterie
from coterie.core import Plan, Task, Training
from coterie.data.objective import cross_entropy
from coterie.engines.flower.messages import order_from_json, order_to_json
from coterie.randomness import generator
from coterie.settings import SettingError
from coterie.settings.optimizers import ELEMENTWISE, rate_of_round
from coterie.training.blocks import Block
from coterie.training.learner import Learner
from coterie.training.order import Order
from small import examples, made, mlp, world

OPTIONS: dict[str, dict[str, Any]] = {
    "AdamW": {"betas": (0.8, 0.95), "weight_decay": 0.1, "amsgrad": True},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"alpha": 0.9, "centered": True},
    "Adafactor": {"beta2_decay": -0.5},
}


def learner_and_row(model: Any) -> tuple[Learner, torch.Tensor, nn.Module]:
    module = made(model)
    learner = Learner(made(model), coterie.Objective())
    return learner, learner.layout.row(module), module


def by_torch(module: nn.Module, data: Any, training: Training, options: Mapping[str, Any]) -> None:
    """A loop as everyone would write it."""
    optimizer_class = getattr(torch.optim, training.optimizer.partition(":")[2])
    optimizer = optimizer_class(module.parameters(), lr=training.lr, **options)
    draws = generator(5)
    for _ in range(training.epochs):
        order = torch.randperm(len(data), generator=draws)
        for start in range(0, len(data), training.batch):
            at = order[start : start + training.batch]
            optimizer.zero_grad()
            cross_entropy(module(data.inputs[data.index[at]]), data.targets[at]).backward()
            if training.clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), training.clip)
            optimizer.step()


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("name", [*sorted(ELEMENTWISE), "Adafactor"])
def test_it_is_torchs_loop(name: str, clip: float | None) -> None:
    options = OPTIONS.get(name, {})
    training = Training(
        lr=0.05,
        batch=8,
        epochs=3,
        clip=clip,
        optimizer=f"torch.optim:{name}",
        optimizer_options=options,
    )
    learner, row, module = learner_and_row(mlp)
    data = examples(20, 1)
    found = learner.train(row.clone(), data, training, training.lr, generator(5))
    by_torch(module, data, training, options)
    assert not torch.equal(found, row)
    torch.testing.assert_close(found, learner.layout.row(module), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_a_block_is_each_client_alone(name: str) -> None:
    # A new optimizer may be added to the list only if it treats each parameter alone.
    training = Training(
        batch=8,
        epochs=2,
        clip=0.5,
        optimizer=f"torch.optim:{name}",
        optimizer_options=OPTIONS.get(name, {}),
    )
    learner, row, _ = learner_and_row(mlp)
    splits = [examples(size, size) for size in (20, 17, 23)]
    rows = [row * scale for scale in (1.0, 0.5, 2.0)]
    alone = []
    for client, (start, split) in enumerate(zip(rows, splits, strict=True)):
        alone.append(learner.train(start.clone(), split, training, 0.05, generator(client)))
    block = Block(learner, rows).train(splits, training, 0.05, [generator(i) for i in range(3)])
    torch.testing.assert_close(block, torch.stack(alone), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["AdamW", "Adafactor"])
def test_a_run_has_the_same_numbers_for_any_width(name: str) -> None:
    # Adafactor looks at whole matrices, so its clients are trained one by one.
    training = Training(lr=0.02, batch=8, optimizer=f"torch.optim:{name}")
    ways = []
    for width in (1, 4):
        run = coterie.run("fedavg", world(training=training), rounds=2, workers=1, width=width)
        *_, last = run
        ways.append(last.assignment.models)
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-5)
    if name == "Adafactor":
        assert torch.equal(*ways)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.01}),
        ("StepLR", {"step_size": 3, "gamma": 0.5}),
        ("MultiStepLR", {"milestones": [2, 5]}),
        ("LinearLR", {"start_factor": 0.1, "total_iters": 4}),
        ("OneCycleLR", {"max_lr": 0.3, "total_steps": 9}),
        ("ExponentialLR", {"gamma": 0.9}),
    ],
)
def test_a_schedule_states_the_rates_of_rounds(name: str, options: dict[str, Any]) -> None:
    training = Training(
        lr=0.2, schedule=f"torch.optim.lr_scheduler:{name}", schedule_options=options
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.2, momentum=0.9)
    schedule = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
    for round in range(9):
        task = Task(offered=(0,))
        plan = Plan(models=torch.zeros(1, 2), tasks={3: task})
        order = Order.of_plan(plan, 3, training, (0, round, round), d=2)
        assert order.lr == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if round < 8:
            schedule.step()
    # A schedule that has ended keeps its last rate.
    assert training.rate(100) > 0
    assert replace(training, lr_decay=0.5).rate(3) == pytest.approx(training.rate(3) / 8)


def test_rates_do_not_depend_on_who_asked_before() -> None:
    name, options = "torch.optim.lr_scheduler:StepLR", ("step_size=2", "gamma=0.5")
    late = rate_of_round(1.0, name, options, 17)
    assert [rate_of_round(1.0, name, options, round) for round in range(5)] == [
        1,
        1,
        0.5,
        0.5,
        0.25,
    ]
    assert late == 0.5**8


def test_settings_travel_and_are_compared() -> None:
    training = Training(
        optimizer="torch.optim:AdamW",
        optimizer_options={"betas": (0.8, 0.9), "amsgrad": True},
        schedule="torch.optim.lr_scheduler:StepLR",
        schedule_options={"step_size": 3},
    )
    as_texts = Training(
        optimizer="torch.optim:AdamW",
        optimizer_options=("betas=[0.8, 0.9]", "amsgrad=true"),
        schedule="torch.optim.lr_scheduler:StepLR",
        schedule_options="step_size=3",
    )
    assert training == as_texts
    assert hash(training) == hash(as_texts)
    plan = Plan(models=torch.zeros(1, 2), tasks={3: Task(offered=(0,))})
    order = Order.of_plan(plan, 3, training, (0, 1, 1), d=2)
    assert order_from_json(json.loads(json.dumps(order_to_json(order)))) == order


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "AdamW"},
            "must be sgd, adam, a class of torch.optim such as .*got 'AdamW'",
        ),
        ({"optimizer": "adamw"}, "did you mean torch.optim:AdamW"),
        ({"optimizer": "torch.optim:AdmW"}, "did you mean torch.optim:AdamW"),
        ({"optimizer": "torch.optim:LBFGS"}, "evaluates the loss several times"),
        ({"optimizer": "os.system"}, "must be sgd, adam, a class of torch.optim"),
        ({"optimizer": "torch.optim:lr_scheduler"}, "must be sgd, adam, a class"),
        (
            {"optimizer": "torch.optim:AdamW", "optimizer_options": {"beta": 1}},
            "must be arguments of torch.optim:AdamW, which says",
        ),
        (
            {"optimizer": "torch.optim:AdamW", "optimizer_options": {"betas": (2, 3)}},
            "Invalid beta parameter",
        ),
        ({"optimizer": "torch.optim:AdamW", "optimizer_options": {"lr": 1}}, "it is Training.lr"),
        ({"optimizer": "torch.optim:AdamW", "optimizer_options": ("eps",)}, "texts name=value"),
        ({"optimizer": "torch.optim:AdamW", "weight_decay": 0.1}, "optimizer_options.weight_decay"),
        ({"optimizer": "torch.optim:SGD", "momentum": 0.1}, "optimizer_options.momentum"),
        ({"optimizer_options": {"eps": 1}}, "needs an optimizer of torch.optim"),
        ({"schedule_options": {"T_max": 1}}, "needs Training.schedule"),
        ({"schedule": "torch.optim.lr_scheduler:StepLR"}, "step_size"),
        ({"schedule": "torch.optim.lr_scheduler:ReduceLROnPlateau"}, "needs a loss"),
        ({"schedule": "cosine"}, "a class of torch.optim.lr_scheduler such as"),
    ],
)
def test_a_slip_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        Training(**settings)
    assert "\n" not in str(caught.value)
