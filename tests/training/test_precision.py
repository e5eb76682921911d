"""bf16 is torch's autocast over float32 weights, number for number; and the flat row behind a module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from coterie.core import Training
from coterie.data.objective import Objective, cross_entropy
from coterie.data.world import Split
from coterie.models.layout import Layout
from coterie.models.nets import make
from coterie.randomness import generator
from coterie.training import Learner
from coterie.training.blocks import Block
from coterie.training.precision import Master
from small import CLASSES, FEATURES, examples, linear, made, mlp, normed

KEY = (1, 2, 3)


class Own(nn.Module):
    """A parameter of its own beside a dense layer, and an embedding whose weight a dense layer shares."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.table, self.body, self.head = (
            nn.Embedding(CLASSES, 4),
            nn.Linear(FEATURES, 4),
            nn.Linear(4, CLASSES, bias=False),
        )
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)) + self.table.weight[0]) * self.scale


def autocast(
    module: nn.Module, data: Split, training: Training, lr: float, gen: torch.Generator
) -> Tensor:
    """Training as torch's manual has it: every step casts the weights anew.

    Images lie with their channels last, as they do in Coterie: in another order a convolution adds
    its products in another order, and in bf16 a sum next to the middle of two numbers is then
    rounded to the other one, 2^-8 of it away. Such errors grow from layer to layer and from step to
    step, by as much as the processor's kernels please; no tolerance tells them from mistakes. From
    the same bytes, the same kernels compute the same numbers.
    """
    module.train()
    inputs = (
        data.inputs.to(memory_format=torch.channels_last) if data.inputs.dim() == 4 else data.inputs
    )
    parameters = list(module.parameters())
    for _ in range(training.epochs):
        for batch in torch.randperm(len(data), generator=gen).split(training.batch):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = module(inputs[data.index[batch]])
            gradients = torch.autograd.grad(
                cross_entropy(outputs.float(), data.targets[batch]), parameters
            )
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p.sub_(g, alpha=lr)
    return Layout(module).row(module)


@pytest.mark.parametrize("model", [mlp, normed, Own], ids=lambda m: m.__name__)
def test_bf16_is_autocast_bit_for_bit(model: Callable[[], nn.Module]) -> None:
    learner = Learner(made(model), Objective(), precision="bf16")
    module, data, training = made(model, 1), examples(24, 1), Training(batch=8, epochs=3)
    start = learner.layout.row(module)
    found = learner.train(start, data, training, 0.1, generator(*KEY))
    assert torch.equal(found, autocast(module, data, training, 0.1, generator(*KEY)))
    full = Learner(made(model), Objective()).train(start, data, training, 0.1, generator(*KEY))
    assert not torch.equal(found, full)
    assert (found - full).norm() < 0.1 * (full - start).norm()


@pytest.mark.parametrize("seed", range(3))
def test_a_convolutional_net_in_bf16(seed: int) -> None:
    def cnn() -> nn.Module:
        return make("cfl-cnn", (1, 28, 28), 10)

    net, gen = made(cnn, seed), generator(4, seed)
    data = Split(
        torch.rand(12, 1, 28, 28, generator=gen),
        torch.arange(12),
        torch.randint(0, 10, (12,), generator=gen),
    )
    learner, full = (Learner(made(cnn), Objective(), precision=p) for p in ("bf16", "fp32"))
    start, training = learner.layout.row(net), Training(batch=6, epochs=2)
    found = learner.train(start, data, training, 0.1, generator(*KEY))
    assert found.dtype == torch.float32
    assert torch.equal(found, autocast(net, data, training, 0.1, generator(*KEY)))
    exact = full.train(start, data, training, 0.1, generator(*KEY))
    assert 0 < (found - exact).norm() < 0.5 * (exact - start).norm()


def test_small_steps_are_not_lost() -> None:
    """A change of 1e-4 of a weight is below bf16's resolution; the float32 weights add it up."""
    learner = Learner(made(linear), Objective(), precision="bf16")
    start, data = torch.full((learner.layout.size,), 1.0), examples(20, 1)
    moved = learner.train(start, data, Training(batch=0, epochs=1), 1e-4, generator(1)) - start
    assert 0 < float(moved.abs().max()) < 1e-3
    again = learner.train(start, data, Training(batch=0, epochs=50), 1e-4, generator(1)) - start
    torch.testing.assert_close(again, 50 * moved, rtol=0.02, atol=1e-6)


@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8, momentum=0.9),
        Training(batch=8, optimizer="adam"),
        Training(batch=8, clip=0.1, proximal=0.3),
    ],
    ids=str,
)
def test_every_optimiser_in_bf16_and_in_blocks(training: Training) -> None:
    learner, full = (Learner(made(mlp), Objective(), precision=p) for p in ("bf16", "fp32"))
    start, splits = learner.layout.row(made(mlp, 1)), [examples(20, 1), examples(17, 2)]
    alone = [learner.train(start, s, training, 0.05, generator(i)) for i, s in enumerate(splits)]
    block = Block(learner, [start, start]).train(
        splits, training, 0.05, [generator(i) for i in range(2)]
    )
    for i, s in enumerate(splits):
        exact = full.train(start, s, training, 0.05, generator(i))
        scale = (exact - start).norm()
        assert (alone[i] - exact).norm() < 0.1 * scale
        assert (block[i] - exact).norm() < 0.1 * scale


def test_measuring_in_bf16() -> None:
    learner, full = (Learner(made(mlp), Objective(), precision=p) for p in ("bf16", "fp32"))
    row, data = learner.layout.row(made(mlp, 1)), examples(20, 1)
    found, exact = learner.measure(row, data), full.measure(row, data)
    assert found["loss"] == pytest.approx(exact["loss"], rel=0.02)
    assert found["loss"] != exact["loss"]
    torch.testing.assert_close(
        learner.gradient(row, data), full.gradient(row, data), rtol=0.1, atol=0.01
    )


class Replaced(nn.Module):
    """A buffer that is replaced rather than written to, a float64 parameter, and a whole-number one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, CLASSES, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(CLASSES))
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            self.calls = self.calls + 1
        return ((x - self.mean).double() @ self.weight).float() + self.bias


def test_buffers_that_are_replaced_and_other_types_of_numbers() -> None:
    learner = Learner(made(Replaced), Objective())
    start, data = torch.randn(learner.layout.size, generator=generator(1)), examples(20, 1)
    found = learner.train(start, data, Training(batch=8), 0.1, generator(*KEY))
    mean = learner.layout.state_dict(found)["mean"]
    order = torch.randperm(20, generator=generator(*KEY))
    expected = learner.layout.state_dict(start)["mean"]
    for batch in order.split(8):
        expected = 0.5 * expected + 0.5 * data.inputs[batch].mean(0)
    torch.testing.assert_close(mean, expected)
    moved = learner.layout.state_dict(found - start)
    assert moved["weight"].abs().max() > 0
    assert moved["bias"].abs().max() > 0
    assert torch.equal(learner.train(start, data, Training(batch=8), 0.1, generator(*KEY)), found)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loaded_row_is_read_back_unchanged(precision: str) -> None:
    module = made(normed)
    master = Master(module, Layout(module), "cpu", precision)
    row = torch.randn(master.layout.size, generator=generator(2))
    for part in master.layout.variances:
        row[part].abs_()
    master.load(row)
    assert torch.equal(master.row(), row)
    shown = Layout(module).row(module)
    assert torch.equal(shown, row) == (precision == "fp32")
    torch.testing.assert_close(shown, row, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("model", ["cfl-cnn", "normed", "grouped", "tied"])
def test_a_block_of_convolutional_nets_in_bf16(model: str) -> None:
    """Autocast does not reach a convolution under vmap, which then got inputs and weights of different types."""

    def net() -> nn.Module:
        if model == "cfl-cnn":
            return make("cfl-cnn", (1, 28, 28), 10)
        norm = {
            "normed": nn.BatchNorm2d(4),
            "grouped": nn.GroupNorm(2, 4),
            "tied": nn.Conv2d(4, 4, 1),
        }[model]
        last = nn.Conv2d(4, 4, 1) if model == "tied" else nn.ReLU()
        if model == "tied":
            last.weight = norm.weight  # it is not rounded, and the biases are
        return nn.Sequential(
            nn.Conv2d(1, 4, 5, 2), norm, last, nn.Flatten(), nn.Linear(4 * 12 * 12, 10)
        )

    gen = generator(4)
    x, y = torch.rand(24, 1, 28, 28, generator=gen), torch.randint(0, 10, (24,), generator=gen)
    splits = [Split(x, torch.arange(at, at + 12), y[at : at + 12]) for at in (0, 12)]
    learner, full = (Learner(made(net), Objective(), precision=p) for p in ("bf16", "fp32"))
    start, training = learner.layout.row(made(net, 1)), Training(batch=6, epochs=2)
    rows, exact = (
        Block(each, [start, start])
        .train(splits, training, 0.1, [generator(i) for i in range(2)])
        .clone()
        for each in (learner, full)
    )
    alone = torch.stack(
        [learner.train(start, split, training, 0.1, generator(i)) for i, split in enumerate(splits)]
    )
    assert 0 < (rows - exact).norm() < 2 * (alone - exact).norm()
