"""Dense layers whose updates are added to the weights in one product, against the plain loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_learner import Frozen, Tied, Words, pair, tokens
from torch import Tensor, nn

from coterie.core import Training
from coterie.data.objective import Objective
from coterie.models.layout import Layout
from coterie.randomness import generator, seeded
from coterie.training import Learner
from coterie.training import learner as dense
from small import CLASSES, FEATURES, examples, linear, made, mlp, trained


class Twice(nn.Module):
    """One layer without a bias that is used twice, the first time on the inputs; and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = (
            nn.Linear(FEATURES, FEATURES, bias=False),
            nn.Linear(FEATURES, CLASSES),
        )
        self.idle = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(torch.tanh(self.body(x)))))


class First(nn.Module):
    """Nothing but a product with the inputs: no gradient but that of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Attacked(nn.Module):
    """Trains on inputs moved against the model: a gradient is taken within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))

    def forward(self, x: Tensor) -> Tensor:
        moved = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.logits(moved).square().sum(), moved)
        return self.logits(x + 0.1 * slope.sign())


class Penalised(Attacked):
    """Adds the length of that gradient to the outputs, so that it is differentiated itself."""

    def forward(self, x: Tensor) -> Tensor:
        moved = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.logits(moved).square().sum(), moved, create_graph=True)
        return self.logits(x) + slope.square().sum(1, keepdim=True)


class Halved(nn.Module):
    """Computes with another weight in the layer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.fc, {"weight": 0.5 * self.fc.weight}, x)


class Autocast(Attacked):
    """In half precision by its own decision."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.logits(x).float()


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "MIN_LAYER_WEIGHTS", 1)


MODELS = [linear, mlp, Tied, Frozen, Words, Twice, First, Attacked, Penalised, Halved]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_training_is_the_plain_loop(model: Callable[[], nn.Module]) -> None:
    learner, module = pair(model)
    training, data = Training(batch=8, epochs=3), tokens(20) if model is Words else examples(20, 1)
    assert learner.dense.gain(training)
    start = learner.layout.row(module)
    found = learner.train(start.clone(), data, training, 0.05, generator(1))
    expected = learner.layout.row(trained(module, data, training, 0.05, generator(1)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found, start)


def test_a_module_with_an_autocast_of_its_own() -> None:
    learner, module = Learner(made(Autocast, 1), Objective()), made(Autocast)
    training, data, start = Training(batch=8, epochs=3), examples(24, 1), Layout(module).row(module)
    found = learner.train(start.clone(), data, training, 0.05, generator(1))
    expected = Layout(module).row(trained(module, data, training, 0.05, generator(1)))
    assert (found - expected).norm() < 0.01 * (expected - start).norm()


@pytest.mark.parametrize(
    "model", [linear, mlp, Frozen, Twice, First, Attacked], ids=lambda m: m.__name__
)
def test_in_bf16_the_float32_values_are_updated(
    model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, data = Training(batch=8, epochs=3), examples(20, 1)
    learner = Learner(made(model), Objective(), precision="bf16")
    start = learner.layout.row(made(model, 1))
    assert learner.dense.layers
    found = learner.train(start.clone(), data, training, 0.05, generator(1))
    monkeypatch.setattr(dense, "MIN_LAYER_WEIGHTS", 10**9)
    autocast = Learner(made(model), Objective(), precision="bf16")
    expected = autocast.train(start.clone(), data, training, 0.05, generator(1))
    assert (found - expected).norm() < 0.02 * (expected - start).norm()
    assert not torch.equal(found, start)
    monkeypatch.setattr(dense, "MAX_FLOAT32_ROWS", 0)  # no product in float32
    assert torch.equal(learner.train(start.clone(), data, training, 0.05, generator(1)), expected)


def test_without_oneDNN_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    g, weight = (
        torch.randn(10, 30, generator=generator(1)),
        torch.randn(30, 50, generator=generator(2)),
    )
    torch.testing.assert_close(dense._times(g, weight), g @ weight)
    monkeypatch.delattr(torch.ops.mkldnn, "_linear_pointwise", raising=False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)
    assert torch.equal(dense._times(g, weight), g @ weight)


@pytest.mark.parametrize(
    "training",
    [
        Training(momentum=0.9), Training(weight_decay=0.1), Training(proximal=0.5), Training(clip=1.0),
        Training(optimizer="adam"),
    ],
    ids=str,
)  # fmt: skip
def test_other_steps_need_the_gradient(training: Training) -> None:
    assert not Learner(made(mlp), Objective()).dense.gain(training)


@seeded(0)
def test_layers_with_other_weights_than_the_models_are_left_alone() -> None:
    hooked = made(linear)
    next(hooked.parameters()).register_hook(lambda g: g * 0)
    assert not Learner(hooked, Objective()).dense.layers
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES))
    assert not Learner(normed, Objective()).dense.layers
    assert len(Learner(made(Frozen), Objective()).dense.layers) == 1  # the head


def test_a_small_layer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "MIN_LAYER_WEIGHTS", FEATURES * CLASSES + 1)
    assert not Learner(made(linear), Objective()).dense.gain(Training())


def test_after_training_or_an_error_the_module_is_what_it_was() -> None:
    learner = Learner(made(mlp), Objective())

    def stop_halfway() -> None:
        with learner.dense.kept():
            learner.outputs(examples(4, 1).inputs).sum().backward()
            assert learner.dense.held
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        stop_halfway()
    assert not learner.dense.held
    assert not any("forward" in vars(layer) for layer, *_ in learner.dense.layers)
    learner.train(
        learner.master.row().clone(), examples(20, 1), Training(batch=8), 0.05, generator(1)
    )
    assert learner.gradient(learner.master.row().clone(), examples(20, 1)).any()
