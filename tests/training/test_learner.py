"""Local training on a flat row, against the slow and obvious loop of tests/small.py on an ordinary module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core import Training
from coterie.data.batches import Items
from coterie.data.objective import MULTILABEL, REGRESSION, Objective, cross_entropy
from coterie.data.world import Split, whole
from coterie.randomness import generator, seeded
from coterie.training import BATCH_TO_MEASURE, Learner
from small import (
    CLASSES,
    FEATURES,
    client,
    dropped,
    examples,
    linear,
    made,
    mlp,
    noisy,
    normed,
    trained,
)

KEY = (5, 6, 0, 1)


class Tied(nn.Module):
    """An input layer whose weight is used again on the way out."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.out.weight = self.into.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.into(x)))


class Doubled(nn.Module):
    """Two parameters whose gradients are one and the same tensor to autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Parameter(torch.randn(FEATURES, CLASSES)),
            nn.Parameter(torch.randn(FEATURES, CLASSES)),
        )
        self.shift = nn.Parameter(torch.randn(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a + self.b) + self.shift


class Images(nn.Module):
    """Vectors as images of one channel: convolutions, which a learner keeps with the channels last in memory.

    No bias before BatchNorm: its gradient is zero but for rounding, which Adam would make a step
    of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.second, self.fc = (
            nn.Conv2d(4, 2, (1, 2), bias=False),
            nn.Linear(2 * (FEATURES - 1), CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(
            self.second(torch.relu(self.norm(self.first(x.view(-1, 1, 1, FEATURES))))).flatten(1)
        )


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


class Words(nn.Module):
    """Tokens ``(b, t)`` -> logits ``(b, t, words)``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.fc = (
            nn.Embedding(7, 4),
            nn.LSTM(4, 5, batch_first=True),
            nn.Linear(5, 7),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.lstm(self.embedding(tokens))[0])


def tokens(count: int = 11) -> Split:
    drawn = torch.randint(0, 7, (count, 6), generator=generator(3))
    return whole(drawn[:, :-1], drawn[:, 1:])


def pair(model: Callable[[], nn.Module], **how: Any) -> tuple[Learner, nn.Module]:
    """A learner, and an ordinary module with the same frozen numbers."""
    learners, module = made(model, 1), made(model)
    for own, other in zip(learners.parameters(), module.parameters(), strict=True):
        if not own.requires_grad:
            own.data.copy_(other)
    return Learner(learners, Objective(), **how), module


@pytest.mark.parametrize(
    "model", [linear, mlp, Tied, Doubled, Images, Frozen], ids=lambda m: m.__name__
)
@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8), Training(batch=8, epochs=3), Training(batch=8, steps=5), Training(batch=8, steps=2, epochs=9),
        Training(batch=0, epochs=3), Training(batch=100, epochs=2), Training(batch=1, steps=23), Training(batch=0, steps=3),
        Training(momentum=0.9, epochs=2, batch=8), Training(weight_decay=0.1, epochs=2, batch=8),
        Training(momentum=0.9, weight_decay=0.1, clip=0.3, proximal=0.5, epochs=2, batch=8),
        Training(clip=0.3, batch=8), Training(clip=1e6, batch=8), Training(proximal=0.5, epochs=3, batch=8),
        Training(optimizer="adam", epochs=2, batch=8), Training(optimizer="adam", weight_decay=0.1, steps=7, batch=8),
    ],
    ids=str,
)  # fmt: skip
def test_training_is_the_plain_loop(model: Callable[[], nn.Module], training: Training) -> None:
    learner, module = pair(model)
    if model is Images and training.batch == 1:
        pytest.skip("BatchNorm needs two examples")
    start, data = (
        learner.layout.row(module),
        examples(20, 1),
    )  # 20 = 8 + 8 + 4: the last batch is short
    found = learner.train(start.clone(), data, training, 0.05, generator(*KEY))
    expected = learner.layout.row(trained(module, data, training, 0.05, generator(*KEY)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found, start)


def test_plain_sgd_is_the_plain_loop_bit_for_bit() -> None:
    learner, module = pair(mlp)
    training, data = Training(batch=8, epochs=3), examples(20, 1)
    found = learner.train(learner.layout.row(module), data, training, 0.05, generator(*KEY))
    assert torch.equal(
        found, learner.layout.row(trained(module, data, training, 0.05, generator(*KEY)))
    )


@pytest.mark.parametrize("channels", [1, 3])
@seeded(0)
def test_images_keep_the_channels_last_through_the_net(channels: int) -> None:
    # With one channel both orders are the same bytes, and only the strides tell a convolution which
    # one is meant.
    module = nn.Sequential(
        nn.Conv2d(channels, 4, 3),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.Flatten(),
        nn.LazyLinear(2),
    )
    module(torch.zeros(1, channels, 12, 12))
    learner, seen = Learner(module, Objective()), []
    for layer in module[:3]:
        layer.register_forward_hook(
            lambda *call: seen.append(call[2].is_contiguous(memory_format=torch.channels_last))
        )
    data = whole(torch.rand(6, channels, 12, 12), torch.zeros(6, dtype=torch.int64))
    learner.train(learner.master.row().clone(), data, Training(batch=3), 0.1, generator(1))
    assert seen == [True] * 6


def test_a_proximal_step_is_arithmetic() -> None:
    # Two full-batch steps: w2 = w1 - lr * (g(w1) + mu * (w1 - w0)), with w1 = w0 - lr * g(w0).
    learner, module = pair(linear)
    w0, data, lr, mu = learner.layout.row(module), examples(6, 1), 0.1, 2.0
    g0 = learner.gradient(w0, data).clone()
    w1 = w0 - lr * g0
    w2 = w1 - lr * (learner.gradient(w1, data) + mu * (w1 - w0))
    found = learner.train(w0, data, Training(batch=0, steps=2, proximal=mu), lr, generator(1))
    torch.testing.assert_close(found, w2, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay() -> None:
    learner, module = pair(Frozen)
    start = learner.layout.row(module)
    found = learner.train(
        start, examples(20, 1), Training(weight_decay=0.1, epochs=2), 0.1, generator(1)
    )
    cut = learner.layout.trainable
    assert cut == 6 * CLASSES + CLASSES
    assert torch.equal(found[cut:], start[cut:])
    assert not torch.equal(found[:cut], start[:cut])


def test_sequences_are_trained_and_measured_per_word() -> None:
    learner, module = pair(Words)
    data, training = tokens(), Training(batch=4, epochs=2)
    start = learner.layout.row(module)
    scores = learner.measure(start, data)
    with torch.no_grad():
        outputs = module(data.inputs)
    expected = nn.functional.cross_entropy(outputs.transpose(1, 2), data.targets)
    assert scores["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(
        float((outputs.argmax(-1) == data.targets).float().mean())
    )
    found = learner.train(start, data, training, 0.5, generator(*KEY))
    expected_row = learner.layout.row(trained(module, data, training, 0.5, generator(*KEY)))
    torch.testing.assert_close(found, expected_row, rtol=1e-5, atol=1e-6)


def test_dropout_follows_the_scope_and_order_the_generator() -> None:
    learner, module = pair(dropped)
    data, training = examples(20, 1), Training(batch=8, epochs=2)
    start = learner.layout.row(module)
    with seeded(9):
        found = learner.train(start, data, training, 0.1, generator(*KEY)).clone()
    with seeded(9):
        expected = learner.layout.row(trained(module, data, training, 0.1, generator(*KEY)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_augmentation_changes_training_alone() -> None:
    learner, module = pair(linear, augment=noisy)
    start, data = learner.layout.row(module), examples(20, 1)
    gen = generator(*KEY)
    order = torch.randperm(20, generator=gen)
    noise_after_order = noisy(data.inputs[order], gen)
    plain = Learner(made(linear), Objective())
    expected = start - 0.1 * plain.gradient(start, whole(noise_after_order, data.targets[order]))
    found = learner.train(start, data, Training(batch=0), 0.1, generator(*KEY))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert learner.measure(start, data) == plain.measure(start, data)
    assert torch.equal(learner.gradient(start, data), plain.gradient(start, data))


@pytest.mark.parametrize(
    "model", [mlp, dropped, normed, Tied, Doubled, Images, Frozen], ids=lambda m: m.__name__
)
def test_gradient_is_autograds_on_the_full_batch(model: Callable[[], nn.Module]) -> None:
    learner, module = pair(model)
    data = examples(2 * BATCH_TO_MEASURE + 3, 1)  # three parts
    found = learner.gradient(learner.layout.row(module), data)
    module.eval()
    wanted = [p for p in module.parameters() if p.requires_grad]
    parts = torch.autograd.grad(cross_entropy(module(data.inputs), data.targets), wanted)
    expected = torch.cat([g.reshape(-1) for g in parts])
    torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-4, atol=1e-6)
    assert not found[len(expected) :].any()


@pytest.mark.parametrize("model", [mlp, dropped, normed], ids=lambda m: m.__name__)
def test_measuring_is_the_plain_mean_and_changes_nothing(model: Callable[[], nn.Module]) -> None:
    learner, module = pair(model)
    data = examples(BATCH_TO_MEASURE + 7, 1)
    start = learner.layout.row(module)
    scores = learner.measure(start, data)
    with torch.no_grad():
        outputs = module.eval()(data.inputs)
    assert scores["loss"] == pytest.approx(float(cross_entropy(outputs, data.targets)), rel=1e-5)
    assert scores["accuracy"] == float((outputs.argmax(1) == data.targets).sum()) / len(data)
    assert torch.equal(learner.layout.row(learner.module), start)
    assert learner.measure(start, data) == scores


def test_a_split_is_its_rows_and_its_own_targets() -> None:
    learner, module = pair(linear)
    pool, start = examples(30, 1), learner.layout.row(module)
    part = Split(pool.inputs, torch.tensor([4, 29, 4]), torch.tensor([0, 1, 2]))
    copied = whole(pool.inputs[[4, 29, 4]], torch.tensor([0, 1, 2]))
    assert learner.measure(start, part) == learner.measure(start, copied)
    assert torch.equal(learner.gradient(start, part), learner.gradient(start, copied))


@seeded(0)
def test_in_tests_too_a_net_that_mixes_the_examples_of_a_batch_sees_one_clients_alone() -> None:
    module = nn.Sequential(
        nn.BatchNorm1d(FEATURES, track_running_stats=False), nn.Linear(FEATURES, CLASSES)
    )
    learner = Learner(module, Objective())
    data, row = examples(30, 1), learner.master.row().clone()
    parts = [
        (data.inputs, torch.arange(0, 10), [data.targets[:10]]),
        (data.inputs, torch.arange(10, 30), [data.targets[10:]]),
    ]
    together = learner.sums([row], parts)
    assert together == [learner.sums([row], [part])[0] for part in parts]


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 29), max_size=40), min_size=1, max_size=5), st.integers(1, 50)
)
def test_parts_that_overlap_are_measured_as_each_alone(
    positions: list[list[int]], most: int
) -> None:
    learner, module = pair(mlp)
    learner.at_once = most
    data, row = examples(30, 1), learner.layout.row(module)
    parts = [
        (
            data.inputs,
            torch.tensor(at, dtype=torch.int64),
            [data.targets[at], (data.targets[at] + i) % CLASSES],
        )
        for i, at in enumerate(positions)
    ]
    together = learner.sums([row], parts)
    for part, found in zip(parts, together, strict=True):
        alone = learner.sums([row], [part])[0]
        for mine, its in zip(found, alone, strict=True):
            assert mine.keys() == its.keys()
            for name in its:
                assert mine[name] == pytest.approx(its[name], rel=1e-5)


class Padded(torch.utils.data.Dataset[Any]):
    """Sequences of 1 to 5 tokens, each followed by its own targets."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        tokens = torch.arange(1 + i % 5) % CLASSES
        return tokens, tokens.roll(1)


def pad(items: list[Any]) -> tuple[Tensor, Tensor]:
    inputs, targets = (
        nn.utils.rnn.pad_sequence(list(one), batch_first=True) for one in zip(*items, strict=True)
    )
    return inputs, targets


@pytest.mark.parametrize("at_once", [1, 3, 20])
@seeded(0)
def test_batches_that_are_padded_to_other_lengths_are_measured(at_once: int) -> None:
    learner = Learner(nn.Sequential(nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES)), Objective())
    learner.at_once = at_once
    pool = Items(Padded(), pad)
    parts: list[Any] = [(pool, torch.tensor(at), [None]) for at in ([0, 1, 2, 3, 4], [4, 3, 7])]
    sums = learner.sums([learner.master.row().clone()], parts)
    assert all(of_part[0]["accuracy"][1] >= 5 for of_part in sums)


def test_nothing_to_measure_is_nan() -> None:
    learner, module = pair(linear)
    scores = learner.measure(learner.layout.row(module), client(1, validation=0).validation)
    assert list(scores) == ["loss", "accuracy"]
    assert all(value != value for value in scores.values())


# -- losses by which models are compared
# --------------------------------------------------------------------------------------


def compared(objective: Objective, weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """What a linear model without a bias has for its losses."""
    with seeded(0):
        module = nn.Linear(*reversed(weight.shape), bias=False)
    return Learner(module, objective).losses(weight.flatten(), whole(inputs, targets))


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0, 200.0])
def test_losses_are_those_at_the_best_temperature(sharpness: float) -> None:
    """From the definition, with targets drawn by a model at temperature 1; the last is too sure for the greatest one."""
    inputs, right = (
        examples(200, seed=3).inputs,
        torch.randn(CLASSES, FEATURES, generator=generator(0, 99)),
    )
    targets = (inputs @ right.T).softmax(1).multinomial(1, generator=generator(0, 98)).flatten()
    logits = sharpness * (inputs @ right.T).double()
    tried = [
        [
            -float((row / 2 ** (step / 2)).log_softmax(0)[y])
            for row, y in zip(logits, targets, strict=True)
        ]
        for step in range(13)
    ]
    best = min(range(13), key=lambda step: sum(tried[step]))
    assert abs(best - min(max(2 * math.log2(sharpness), 0), 12)) <= 1
    found = compared(Objective(), sharpness * right, inputs, targets)
    assert found.tolist() == pytest.approx(tried[best], rel=1e-3, abs=1e-6)


def test_a_temperature_is_that_of_all_examples_and_never_below_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lower one would give a model that is right on its few examples the loss 0."""
    inputs, targets, sure = torch.eye(2), torch.tensor([0, 1]), torch.eye(2)
    right = compared(Objective(), sure, inputs, targets)
    assert right.tolist() == pytest.approx([math.log(1 + math.exp(-1))] * 2)
    half = compared(Objective(), 100 * sure, inputs, torch.tensor([0, 0]))  # one right, one wrong
    monkeypatch.setattr("coterie.training.learner.BATCH_TO_MEASURE", 1)
    assert compared(Objective(), 100 * sure, inputs, torch.tensor([0, 0])).tolist() == half.tolist()
    assert half.sum() < 2  # far from the 100 nats at temperature 1


def test_outputs_that_are_no_logits_have_no_temperature() -> None:
    inputs, targets = torch.eye(2), torch.tensor([9.0, -7.0])
    wrong = compared(REGRESSION, torch.tensor([[8.0, -8.0]]), inputs, targets)
    assert wrong.tolist() == [1.0, 1.0]
    labels = compared(MULTILABEL, torch.tensor([[100.0, 100.0]]), inputs, torch.tensor([1.0, 0.0]))
    assert labels.sum() < 2  # these are logits


def test_a_model_that_has_diverged_has_losses_that_are_no_numbers() -> None:
    assert (
        compared(Objective(), torch.full((2, 2), math.nan), torch.eye(2), torch.tensor([0, 1]))
        .isnan()
        .all()
    )
