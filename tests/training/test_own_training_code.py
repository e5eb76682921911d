"""Optimizers and augmentations of a user's own, by name, and the built-in augmentations of images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import coterie
from coterie.cli import main
from coterie.core import Plan, Task, Training
from coterie.data.augmentation import AUGMENTATIONS, augmented
from coterie.data.scenario import SCENARIOS
from coterie.randomness import generator, seeded
from coterie.settings import SettingError, UserError

SMALL = replace(SCENARIOS["digits/dirichlet"], clients=3, samples=60)

CODE = '''
import torch

class Lion(torch.optim.Optimizer):
    """The sign of the mean of the gradient and its momentum, as a step."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for tensor in group["params"]:
                momentum = self.state[tensor].setdefault("momentum", torch.zeros_like(tensor))
                momentum.mul_(group["beta"]).add_(tensor.grad, alpha=1 - group["beta"])
                tensor.add_(momentum.sign(), alpha=-group["lr"])

def dimmed(images, generator):
    """Images of a random brightness."""
    return images * torch.rand(len(images), 1, 1, 1, generator=generator)

def unseeded(images, generator):
    return images * torch.rand(len(images), 1, 1, 1)

number = 3
'''


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's own in the current folder; returns its name."""
    (tmp_path / "owntraining.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "owntraining"
    sys.modules.pop("owntraining", None)


def last_models(training: Training, **settings: int) -> torch.Tensor:
    world = replace(SMALL.build(0), training=training)
    *_, last = coterie.run("fedavg", world, rounds=2, **{"workers": 1, **settings})
    return last.assignment.models


def test_an_optimizer_of_my_own_trains_as_it_says(code: str) -> None:
    training = Training(optimizer=f"{code}:Lion", optimizer_options="beta=0", lr=0.01, batch=0)
    first, *_ = coterie.run("independent", replace(SMALL.build(0), training=training), rounds=1)
    start, *_ = coterie.run(
        "independent", replace(SMALL.build(0), training=Training(lr=1e-9, batch=0)), rounds=1
    )
    # One step: each parameter with a gradient moves by the learning rate.
    for name, tensor in first.model(0).state_dict().items():
        moved = (tensor - start.model(0).state_dict()[name]).abs()
        has_gradient = moved > 1e-4
        assert has_gradient.float().mean() > 0.2
        steps = moved[has_gradient]
        torch.testing.assert_close(steps, torch.full_like(steps, 0.01), rtol=1e-2, atol=1e-5)


def test_it_keeps_its_state_if_that_is_asked(code: str) -> None:
    training = Training(optimizer=f"{code}:Lion", lr=0.01, batch=10)
    kept = last_models(replace(training, keep_optimizer=True))
    assert not torch.equal(kept, last_models(training))
    assert torch.equal(kept, last_models(replace(training, keep_optimizer=True), workers=2))


def test_an_augmentation_of_my_own_draws_by_the_seed_alone(code: str) -> None:
    training = Training(augment=f"{code}:dimmed", lr=0.1, batch=10)
    models = last_models(training)
    assert not torch.equal(models, last_models(replace(training, augment=None)))
    # Whatever the processes, and in blocks up to rounding.
    assert torch.equal(models, last_models(training, workers=2))
    torch.testing.assert_close(models, last_models(training, width=1), rtol=1e-4, atol=1e-5)
    # Draws of the global generator are seeded for each task, too.
    unseeded = replace(training, augment=f"{code}:unseeded")
    assert torch.equal(last_models(unseeded), last_models(unseeded, workers=2))


def test_code_of_a_record_is_imported_with_consent_alone(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--scenario", "digits/dirichlet", "--method", "fedavg", "--rounds", "1", "--out", "r",
               "--workers", "1", "--set", "scenario.clients=3", "--set", f"training.augment={code}:dimmed",
               "--set", f"training.optimizer={code}:Lion", "--set", "training.lr=0.01"]  # fmt: skip
    assert main(command) == 0
    text = (tmp_path / "r" / "run.toml").read_text()
    (tmp_path / "r" / "run.toml").write_text(text.replace("rounds = 1", "rounds = 2"))
    assert main(["check", "r", "--accept"]) == 0
    sys.modules.pop(code)
    # Reading the record imports nothing.
    assert main(["compare", "r"]) == 0
    assert code not in sys.modules
    assert main(["resume", "r"]) == 2
    assert f"names the optimizer '{code}:Lion', which is code" in capsys.readouterr().err
    assert code not in sys.modules
    assert main(["resume", "r", "--trust-code", "--workers", "1"]) == 0


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"augment": "crop-flipp"}, "must be one of crop-flip, flip, or package.module:function, got 'crop-flipp'"),
        ({"augment": "owntraining:number"}, "must be a function, got 'owntraining:number'"),
        ({"augment": "nowhere.at.all:f"}, "the augmentation 'nowhere.at.all:f' cannot be imported"),
        ({"optimizer": "owntraining:dimmed"}, "must be a subclass of torch.optim.Optimizer"),
        ({"optimizer": "owntraining:Lyon"}, "the optimizer 'owntraining:Lyon' cannot be imported"),
        ({"optimizer": "owntraining:Lion", "optimizer_options": {"gamma": 1}}, "must be arguments of owntraining:Lion"),
        ({"optimizer": "own training:Lion"}, "Training.optimizer must be sgd, adam, a class of torch.optim"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_makes_no_folder(
    code: str, tmp_path: Path, training: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        coterie.begin(SMALL, tmp_path / "run", "fedavg", training=training, workers=1)
    assert not (tmp_path / "run").exists()


def test_a_server_makes_no_site_import_code(code: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from coterie.engines.flower import MethodStrategy
    from coterie.engines.flower.messages import order_from_json, order_to_json
    from coterie.training import Order

    plan = Plan(models=torch.zeros(1, 2), tasks={0: Task(offered=(0,))})
    order = Order.of_plan(plan, 0, Training(optimizer=f"{code}:Lion"), (0, 0, 0), d=2)
    with pytest.raises(ValueError, match="is code, which no server may name"):
        order_from_json(order_to_json(order))
    assert code not in sys.modules
    net = lambda: torch.nn.Linear(2, 2)  # noqa: E731
    with pytest.raises(SettingError, match="no name makes a site import code"):
        MethodStrategy("fedavg", model=net, training={"optimizer": f"{code}:Lion"})
    with pytest.raises(SettingError, match="each site's app augments its own batches"):
        MethodStrategy("fedavg", model=net, training={"augment": "flip"})
    with pytest.raises(SettingError, match="needs engine inprocess or ray, got flower"):
        coterie.begin(
            SMALL,
            tmp_path / "run",
            "fedavg",
            engine="flower",
            training={"optimizer": f"{code}:Lion"},
        )


def test_flips_of_images_are_mirrored_halves() -> None:
    images = torch.arange(64.0).reshape(32, 1, 1, 2)
    flipped = AUGMENTATIONS["flip"](images, generator(0))
    is_mirrored = flipped[:, 0, 0, 0] > flipped[:, 0, 0, 1]
    assert 8 < is_mirrored.sum() < 24
    assert torch.equal(
        torch.where(is_mirrored[:, None, None, None], flipped.flip(3), flipped), images
    )


def test_rows_of_numbers_are_no_images() -> None:
    world = replace(SCENARIOS["synthetic/groups"], training=Training(augment="flip")).build(0)
    with pytest.raises(
        SettingError,
        match=r"flip needs images \(channels, height, width\), and the inputs have shape",
    ):
        augmented(world)


@seeded(0)
def test_images_of_a_world_are_augmented_by_name() -> None:
    images = torch.rand(24, 3, 8, 8)
    clients = {
        name: {"x": images + shift, "y": torch.arange(24) % 2}
        for name, shift in (("a", 0.0), ("b", 1.0))
    }
    net = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))  # noqa: E731
    world = coterie.from_lists(clients, model=net, training=Training(augment="crop-flip", batch=8))
    assert world.augment is None
    assert augmented(world).augment is AUGMENTATIONS["crop-flip"]
    trained = [
        next(
            iter(
                coterie.run(
                    "fedavg",
                    replace(world, training=replace(world.training, augment=name)),
                    rounds=1,
                    workers=1,
                )
            )
        )
        for name in ("crop-flip", "flip", None)
    ]
    first, second, third = (one.assignment.models for one in trained)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
