"""Noisy steps against Algorithm 1 of Abadi et al. (2016) written out: one backward pass per example."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from coterie.contrib.dpsgd.options import RecordPrivacy
from coterie.contrib.dpsgd.steps import batches, clipped_gradients, example_gradients, train
from coterie.core import Stage, Training
from coterie.data.objective import CLASSIFICATION, Objective
from coterie.data.world import Split
from coterie.randomness import seeded
from coterie.settings import SettingError, UserError
from coterie.training import Learner


class Recurrent(nn.Module):
    """A net that torch computes example by example under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.lstm(inputs)
        return self.head(outputs[:, -1])


class Branching(nn.Module):
    """A net that vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(5, 3)
        self.negative = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = []
        for example in inputs:
            layer = self.positive if float(example.sum()) > 0 else self.negative
            # Both have a gradient.
            outputs.append(layer(example) + 0.1 * (self.positive(example) + self.negative(example)))
        return torch.stack(outputs)


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    return net


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), (5,), 3),
    "frozen": (frozen, (5,), 3),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
        ),
        (1, 4, 4),
        3,
    ),
    "branching": (Branching, (5,), 3),
    "recurrent": (Recurrent, (6, 3), 2),
}


def learner_and_examples(name: str, count: int = 12) -> tuple[Learner, Split]:
    make_net, shape, classes = NETS[name]
    learner = Learner(make_net(), CLASSIFICATION)
    inputs = torch.randn(count, *shape)
    targets = torch.randint(classes, (count,))
    return learner, Split(inputs, torch.arange(count), targets)


def brute_force_gradients(learner: Learner, examples: Split) -> list[list[Tensor]]:
    """The gradient of each example, one after the other."""
    gradients = []
    for position in range(len(examples)):
        learner.module.zero_grad()
        inputs = examples.inputs[position : position + 1]
        target = examples.targets[position : position + 1]
        nn.functional.cross_entropy(learner.module(inputs), target).backward()
        gradients.append([parameter.grad.clone() for parameter in learner.parameters])
    return gradients


def of_options(**options: float | str) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in options.items())


@pytest.mark.parametrize("name", NETS)
@seeded(0)
def test_gradients_of_examples_are_those_of_one_backward_pass_each(name: str) -> None:
    learner, examples = learner_and_examples(name)
    expected = brute_force_gradients(learner, examples)
    positions = range(len(learner.parameters))
    gradients = example_gradients(learner, examples.inputs, examples.targets, positions)
    for position, gradient in enumerate(gradients):
        of_examples = torch.stack([tensors[position] for tensors in expected])
        torch.testing.assert_close(gradient, of_examples, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NETS)
@seeded(1)
def test_a_step_without_noise_is_the_mean_of_clipped_gradients(name: str) -> None:
    learner, examples = learner_and_examples(name)
    clip = 0.3
    start = learner.master.row().clone()
    # Algorithm 1: clip each gradient as a whole, add them, divide, descend.
    sums = [torch.zeros_like(parameter) for parameter in learner.parameters]
    clipped_count = 0
    for tensors in brute_force_gradients(learner, examples):
        norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors))
        clipped_count += norm > clip
        for total, tensor in zip(sums, tensors, strict=True):
            total += tensor / max(1.0, norm / clip)
    assert clipped_count
    expected = start.clone()
    for piece, total in zip(learner.layout.pieces, sums, strict=False):
        expected[piece.start : piece.stop] -= 0.5 * total.flatten() / len(examples)
    training = Training(
        lr=0.5,
        batch=0,
        optimizer="dp-sgd",
        optimizer_options=of_options(clip=clip, noise=0, sampling="shuffled"),
    )
    trained = learner.train(start, examples, training, 0.5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-6)


@seeded(2)
def test_without_noise_and_with_a_large_norm_it_is_sgd() -> None:
    learner, examples = learner_and_examples("dense", count=40)
    start = learner.master.row().clone()
    options = of_options(clip=1e6, noise=0, sampling="shuffled", momentum=0.9)
    noisy = Training(batch=8, epochs=3, optimizer="dp-sgd", optimizer_options=options)
    plain = Training(batch=8, epochs=3, momentum=0.9)
    trained = [
        learner.train(start, examples, training, 0.1, torch.Generator().manual_seed(5))
        for training in (noisy, plain)
    ]
    # The noise, times 0, is drawn from the generator that draws the order of the next pass.
    first_pass = [
        learner.train(start, examples, training, 0.1, torch.Generator().manual_seed(5))
        for training in (
            Training(batch=8, optimizer="dp-sgd", optimizer_options=options),
            Training(batch=8, momentum=0.9),
        )
    ]
    torch.testing.assert_close(first_pass[0], first_pass[1], rtol=1e-4, atol=1e-6)
    assert (trained[0] - trained[1]).norm() < 0.5 * (trained[1] - start).norm()


@seeded(3)
def test_the_noise_has_the_stated_level() -> None:
    learner = Learner(nn.Linear(100, 100), CLASSIFICATION)
    examples = Split(torch.randn(20, 100), torch.arange(20), torch.randint(100, (20,)))
    start = learner.master.row().clone()
    rows = []
    for noise in (0, 2.0):
        options = of_options(clip=0.7, noise=noise, sampling="shuffled")
        training = Training(batch=0, optimizer="dp-sgd", optimizer_options=options)
        rows.append(learner.train(start, examples, training, 0.1, torch.Generator().manual_seed(1)))
    # One step of learning rate 0.1, with a sum over 20 examples.
    noise_of_sum = (rows[1] - rows[0]) / 0.1 * 20
    assert float(noise_of_sum.std()) == pytest.approx(2.0 * 0.7, rel=0.03)
    assert abs(float(noise_of_sum.mean())) < 0.1


@seeded(4)
def test_poisson_batches_have_the_stated_mean_and_any_size() -> None:
    learner, examples = learner_and_examples("dense", count=50)
    training = Training(batch=5, epochs=100)
    sizes = []
    divisors = set()
    for _, targets, divisor in batches(
        learner, examples, training, RecordPrivacy(), torch.Generator().manual_seed(0)
    ):
        sizes.append(float(len(targets)))
        divisors.add(divisor)
    # As many steps as with shuffled batches: 10 in a pass.
    assert len(sizes) == 1000
    assert divisors == {5}
    sizes_of_batches = torch.tensor(sizes)
    # Binomial of 50 draws with probability 0.1: mean 5, variance 4.5.
    assert float(sizes_of_batches.mean()) == pytest.approx(5, abs=0.3)
    assert float(sizes_of_batches.var()) == pytest.approx(4.5, rel=0.2)
    assert 0.0 in sizes


@seeded(5)
def test_an_empty_batch_makes_a_step_of_noise() -> None:
    learner, examples = learner_and_examples("dense", count=30)
    start = learner.master.row().clone()
    training = Training(batch=1, steps=1, optimizer="dp-sgd")
    # A batch of one of 30 is empty with probability 0.36: some seed of these draws none.
    for seed in range(20):
        drawn = torch.rand(30, generator=torch.Generator().manual_seed(seed)) * 30
        if not (drawn < 1).any():
            break
    trained = train(learner, start, examples, training, 0.1, torch.Generator().manual_seed(seed))
    noise_of_sum = (trained - start) / 0.1
    assert float(noise_of_sum.std()) == pytest.approx(1.0, rel=0.4)


def test_a_gradient_that_is_not_finite_contributes_nothing() -> None:
    gradients = [torch.tensor([[3.0, 4.0], [math.nan, 1.0], [0.3, 0.4]])]
    clipped = clipped_gradients(gradients, 1.0)
    torch.testing.assert_close(clipped[0], torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.3, 0.4]]))


@seeded(6)
def test_stages_change_their_layers_alone() -> None:
    learner, examples = learner_and_examples("dense")
    start = learner.master.row().clone()
    training = Training(batch=4, optimizer="dp-sgd")
    trained = learner.train(
        start, examples, training, 0.1, torch.Generator(), stages=(Stage(layers=("2",)),)
    )
    is_of_stage = learner.layout.mask(("2",))
    assert not torch.equal(trained[is_of_stage], start[is_of_stage])
    assert torch.equal(trained[~is_of_stage], start[~is_of_stage])


@seeded(7)
def test_an_augmentation_sees_one_example_at_a_time() -> None:
    seen = []

    def augment(inputs: Tensor, _: torch.Generator) -> Tensor:
        seen.append(len(inputs))
        return inputs

    learner = Learner(nn.Linear(5, 3), CLASSIFICATION, augment)
    examples = Split(torch.randn(12, 5), torch.arange(12), torch.randint(3, (12,)))
    training = Training(batch=4, optimizer="dp-sgd")
    learner.train(learner.master.row().clone(), examples, training, 0.1, torch.Generator())
    assert set(seen) == {1}


@seeded(8)
def test_what_cannot_be_clipped_per_example_is_refused_in_words() -> None:
    examples = Split(torch.randn(12, 5), torch.arange(12), torch.randint(3, (12,)))
    training = Training(optimizer="dp-sgd")

    def refusal(module: nn.Module, objective: Objective = CLASSIFICATION, **hardware: str) -> str:
        learner = Learner(module, objective, **hardware)
        with pytest.raises(UserError) as caught:
            learner.train(learner.master.row().clone(), examples, training, 0.1, torch.Generator())
        return str(caught.value)

    mixing = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, track_running_stats=False))
    assert "needs a model without BatchNorm" in refusal(mixing)
    assert "needs precision fp32, got bf16" in refusal(nn.Linear(5, 3), precision="bf16")
    weighted = Objective(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])))
    assert "without class weights" in refusal(nn.Linear(5, 3), weighted)


def test_wrong_options_are_one_sentence() -> None:
    for options, words in (
        (("nois=1",), "did you mean noise"),
        (("noise=-1",), "noise must be"),
        (("sampling=random",), "poisson"),
        (("optimizer=dp-sgd",), "makes steps of noisy gradients"),
        (("optimizer=torch.optim:AdamW", "momentum=0.9"), "momentum is for sgd"),
    ):
        with pytest.raises(SettingError) as caught:
            Training(optimizer="dp-sgd", optimizer_options=options)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
