"""Tasks: measure, choose, train, reply; and what a learner that goes from client to client must not carry along."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie import training as local
from coterie.core import Task, Training
from coterie.data.objective import Objective
from coterie.data.world import ClientData, whole
from coterie.randomness import generator, seeded
from coterie.training import Learner
from small import CLASSES, FEATURES, client, dropped, examples, linear, made, mlp, normed, trained

KEY = (5, 6, 0, 1)
TRAINING = Training(batch=8, epochs=2)


def learner(model: Callable[[], nn.Module] = linear, seed: int = 0) -> Learner:
    return Learner(made(model, seed), Objective())


def rows(model: Callable[[], nn.Module], count: int) -> list[Tensor]:
    return [learner(model).layout.row(made(model, i)) for i in range(count)]


def order(task: Task, key: Any = KEY) -> local.Order:
    """The order of a task; the key is (seed, purpose, exchange, client)."""
    seed, _, exchange, who = key
    return local.Order(task=task, training=TRAINING, lr=0.1, key=(seed, exchange, 0), client=who)


def answer(
    task: Task,
    offered: list[Tensor],
    data: ClientData | None = None,
    model: Any = linear,
    key: Any = KEY,
) -> Any:
    return local.answer(learner(model, 50), local.Job(order(task, key), offered, data or client(1)))


# -- tasks
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("choose", [1, 2, 3])
def test_a_client_trains_from_the_mean_of_its_best_models(choose: int, part: Any) -> None:
    data, offered, reference = client(1), rows(linear, 4), learner()
    losses = [reference.measure(row, getattr(data, part))["loss"] for row in offered]
    best = sorted(range(4), key=losses.__getitem__)[:choose]
    reply = answer(Task(offered=(10, 11, 12, 13), choose=choose, measure=part), offered, data)
    assert reply.losses == tuple(losses)
    assert reply.chosen == tuple(10 + i for i in best)
    start = sum(offered[i] for i in best) / choose  # type: ignore[operator]
    expected = reference.train(start, data.train, TRAINING, 0.1, generator(*KEY)) - start
    torch.testing.assert_close(reply.update, expected, rtol=1e-5, atol=1e-6)


def test_equal_losses_go_to_the_first_offered() -> None:
    worse, better = sorted(
        rows(linear, 2), key=lambda row: -learner().measure(row, client(1).train)["loss"]
    )
    assert answer(Task(offered=(4, 2, 9), choose=1), [worse, better, better.clone()]).chosen == (2,)
    assert answer(Task(offered=(4, 2, 9), choose=2), [better, worse, better.clone()]).chosen == (
        4,
        9,
    )
    assert answer(Task(offered=(9, 4, 2), choose=1), [better] * 3).chosen == (9,)


def test_a_nan_loss_is_never_the_least() -> None:
    good, broken = rows(linear, 1)[0], torch.full((18,), math.nan)
    assert answer(Task(offered=(0, 1, 2), choose=1), [broken, broken, good]).chosen == (2,)
    nothing = answer(
        Task(offered=(5, 6), measure="validation"), [good, good], client(1, validation=0)
    )
    assert nothing.chosen == (5,)  # without validation data every loss is NaN
    assert all(math.isnan(loss) for loss in nothing.losses)


def test_only_measuring() -> None:
    task = Task(offered=(0, 1), choose=2, training=Training(epochs=0), measure="train")
    reply = answer(task, rows(linear, 2))
    assert (reply.update, len(reply.losses), len(reply.accuracies)) == (None, 2, 2)


def test_a_task_without_measuring_says_nothing_of_losses() -> None:
    reply = answer(Task(offered=(3,)), rows(linear, 1))
    assert (reply.chosen, reply.losses, reply.accuracies) == ((3,), (), ())


def test_a_gradient_task_replies_with_the_gradient() -> None:
    offered, data = rows(dropped, 1), client(1)
    reply = answer(Task(offered=(0,), gradient=True), offered, data, dropped)
    assert torch.equal(reply.update, learner(dropped).gradient(offered[0], data.train))


@seeded(0)
def test_objectives_without_classes_are_measured_by_their_own_metric() -> None:
    data = whole(torch.arange(10.0).reshape(5, 2), torch.arange(5.0))
    error = Objective(
        loss=lambda outputs, y: ((outputs[:, 0] - y) ** 2).mean(),
        metrics={"absolute": lambda outputs, y: (outputs[:, 0] - y).abs()},
    )
    it = Learner(nn.Linear(2, 1), error)
    scores = it.measure(
        torch.tensor([0.5, 0.0, 0.0]), data
    )  # inputs 0, 2, 4, 6, 8: the outputs are the targets
    assert scores == {"loss": 0.0, "absolute": 0.0}
    scores = it.measure(torch.tensor([0.0, 0.0, 1.0]), data)  # errors 1, 0, 1, 2, 3
    assert scores == {"loss": (1 + 0 + 1 + 4 + 9) / 5, "absolute": (1 + 0 + 1 + 2 + 3) / 5}
    both = ClientData(train=data, validation=data, test=data)
    job = local.Job(order(Task(offered=(0,), measure="train")), [torch.zeros(3)], both)
    assert local.answer(it, job).accuracies == (2.0,)


# -- randomness
# -------------------------------------------------------------------------------------------------------


def test_a_reply_depends_on_the_key_and_leaves_global_randomness_alone() -> None:
    offered, before = rows(dropped, 1), torch.get_rng_state()
    first = answer(Task(offered=(0,)), offered, model=dropped).update
    torch.rand(5)  # the caller's generator moves on
    assert torch.equal(answer(Task(offered=(0,)), offered, model=dropped).update, first)
    assert not torch.equal(
        answer(Task(offered=(0,)), offered, model=dropped, key=(5, 6, 1, 1)).update, first
    )
    torch.set_rng_state(before)
    answer(Task(offered=(0,)), offered, model=dropped)
    assert torch.equal(torch.get_rng_state(), before)


def test_modules_that_draw_in_tests_too_are_reproducible() -> None:
    class Always(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x), 0.5)  # training=True is its default

    def model() -> nn.Module:
        return Always(FEATURES, CLASSES)

    task, before = Task(offered=(0,), measure="train"), torch.get_rng_state()
    one, two = (answer(task, rows(model, 1), model=model) for _ in range(2))
    assert one.losses == two.losses
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_and_the_order_of_batches_are_draws_apart() -> None:
    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.rand(4))
            return super().forward(x)

    seen: list[Tensor] = []
    answer(Task(offered=(0,)), rows(linear, 1), model=lambda: Spy(FEATURES, CLASSES))
    assert not torch.equal(seen[0], torch.rand(4, generator=generator(*KEY)))


# -- buffers
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [17, 16, 24]
)  # of batches of 8: one example left over, none, a full batch more
def test_batchnorm_statistics_are_in_the_row(size: int) -> None:
    it, module, data = learner(normed, 1), made(normed), examples(size, 1)
    start = it.layout.row(module)
    found = it.train(start, data, TRAINING, 0.1, generator(*KEY)).clone()
    trained(module, data, TRAINING, 0.1, generator(*KEY), skip_single=True)
    torch.testing.assert_close(found, it.layout.row(module), rtol=1e-5, atol=1e-6)
    assert int(module[1].num_batches_tracked) == 2 * (
        (size - 1) // 8 if size % 8 == 1 else size // 8
    )
    assert not torch.equal(found[it.layout.trainable :], start[it.layout.trainable :])


def test_batchnorm_counts_afresh_at_every_client() -> None:
    it, start = learner(normed), rows(normed, 1)[0]
    it.train(start, examples(20, 1), TRAINING, 0.1, generator(1))
    assert int(it.module[1].num_batches_tracked) == 6  # type: ignore[index, union-attr]
    it.load(start)
    assert int(it.module[1].num_batches_tracked) == 0  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("count", "training", "text"),
    [
        (1, Training(batch=8), "a client with one training example"),
        (9, Training(batch=1), "a batch of 1"),
    ],
)
def test_batchnorm_needs_two_examples(count: int, training: Training, text: str) -> None:
    with pytest.raises(ValueError, match=f"{text} cannot train a model with BatchNorm"):
        learner(normed).train(rows(normed, 1)[0], examples(count, 1), training, 0.1, generator(1))


class Counting(nn.Linear):
    """Buffers as people write them: reassigned rather than changed, some of them in no state dict."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            self.steps = self.steps + 1
            self.scratch += 1
        return super().forward(x - self.mean + self.scratch.sum() + self.steps)


def test_no_buffer_leaks_from_client_to_client() -> None:
    it, start = learner(Counting, 1), rows(Counting, 1)[0]
    first = it.train(start, examples(20, 1), TRAINING, 0.01, generator(1)).clone()
    it.train(start, examples(9, 4), TRAINING, 0.01, generator(2))
    assert torch.equal(it.train(start, examples(20, 1), TRAINING, 0.01, generator(1)), first)
    module = made(Counting)
    trained(module, examples(20, 1), TRAINING, 0.01, generator(1))
    torch.testing.assert_close(first, it.layout.row(module), rtol=1e-5, atol=1e-6)
    assert first[it.layout.trainable :].any()  # the reassigned mean has come into the row


@pytest.mark.parametrize("model", [mlp, normed, Counting], ids=lambda m: m.__name__)
def test_a_learner_forgets(model: Callable[[], nn.Module]) -> None:
    it, (start, other) = learner(model), rows(model, 2)
    training = Training(momentum=0.9, batch=8)
    first = it.train(start, examples(20, 1), training, 0.1, generator(1)).clone()
    it.gradient(other, examples(30, 2))
    it.train(other, examples(30, 2), training, 0.1, generator(2))
    assert torch.equal(it.train(start, examples(20, 1), training, 0.1, generator(1)), first)
