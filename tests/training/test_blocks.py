"""Blocks of clients against the plain loop: the same models up to rounding, whatever the clients' sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from test_learner import Frozen, Tied
from torch import Tensor, nn

from coterie import training as local
from coterie.core import Task, Training
from coterie.data.objective import IGNORED, Objective
from coterie.data.world import Split, whole
from coterie.models import nets
from coterie.randomness import generator
from coterie.training import Learner, blocks
from coterie.training.blocks import Block, DenseStack, goes_with
from coterie.training.graphs import Recorded, recordable
from small import CLASSES, FEATURES, client, dropped, examples, linear, made, mlp, noisy, normed

LR = 0.2


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3 * FEATURES, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x.view(-1, 1, 1, FEATURES))).flatten(1)) * self.scale


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - nn.functional.one_hot(targets, CLASSES)) ** 2).mean()


def both_ways(
    learner: Learner, splits: Sequence[Split], training: Training, rows: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Trained rows of a block, and of the plain loop, client by client."""
    starts = [rows[i % len(rows)].clone() for i in range(len(splits))]
    alone = [
        learner.train(r, s, training, LR, generator(i))
        for i, (r, s) in enumerate(zip(starts, splits, strict=True))
    ]
    block = Block(learner, starts).train(
        splits, training, LR, [generator(i) for i in range(len(splits))]
    )
    return block.clone(), torch.stack(alone)


def learner_of(model: Callable[[], nn.Module], **how: Any) -> tuple[Learner, list[Tensor]]:
    learner = Learner(made(model), how.pop("objective", Objective()), **how)
    return learner, [learner.layout.row(made(model, seed)) for seed in range(1, 4)]


TRAININGS = [
    Training(batch=8, epochs=2), Training(batch=8, steps=4), Training(batch=0, epochs=3), Training(batch=1, steps=5),
    Training(batch=8, momentum=0.9, weight_decay=0.1), Training(batch=8, proximal=0.5, epochs=2),
    Training(batch=8, clip=0.2, epochs=2), Training(batch=8, optimizer="adam", weight_decay=0.1, epochs=2),
]  # fmt: skip


@pytest.mark.parametrize("training", TRAININGS, ids=str)
@pytest.mark.parametrize("model", [linear, mlp, Tied, Images, Frozen], ids=lambda m: m.__name__)
def test_a_block_is_the_plain_loop(model: Callable[[], nn.Module], training: Training) -> None:
    learner, rows = learner_of(model)
    splits = [
        examples(size, size) for size in (20, 17, 23, 18)
    ]  # three batches of 8 each, the last one ragged
    block, alone = both_ways(learner, splits, training, rows)
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=2e-6)
    assert not torch.equal(block[0], rows[0])


def deep() -> nn.Module:
    """Layers in a layer, every activation, one after the last layer, and one without a bias."""
    inner = nn.Sequential(nn.Linear(6, 7, bias=False), nn.Sigmoid())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, 6), nn.Tanh(), inner, nn.Linear(7, CLASSES), nn.ReLU()
    )


def two_in_a_row() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES))


@pytest.mark.parametrize("training", TRAININGS, ids=str)
@pytest.mark.parametrize("model", [deep, two_in_a_row], ids=lambda m: m.__name__)
def test_gradients_of_dense_layers_are_those_of_autograd(
    model: Callable[[], nn.Module], training: Training
) -> None:
    learner, rows = learner_of(model)
    assert DenseStack.of(learner) is not None
    splits = [examples(size, size) for size in (20, 17, 23, 18)]
    for split in splits:  # with batches of one, also one in which no target counts
        split.targets[3] = IGNORED
    block, alone = both_ways(learner, splits, training, rows)
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("num_classes", [3, 40])
def test_the_derivative_without_padding_has_the_same_bits(num_classes: int) -> None:
    gen = torch.Generator().manual_seed(0)
    for batch in (1, 7, 10, 56, 64):
        outputs = 4 * torch.randn(5, batch, num_classes, generator=gen)
        targets = torch.randint(0, num_classes, (5, batch), generator=gen)
        is_present = torch.ones(5, batch, dtype=torch.bool)
        general = blocks.of_cross_entropy(outputs, targets, is_present)
        assert torch.equal(blocks.of_cross_entropy_of_all(outputs, targets, is_present), general), (
            batch
        )


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("sizes", [(9, 9, 9), (9, 7, 9)])
def test_padding_and_ignored_targets_take_the_general_derivative(
    sizes: tuple[int, ...], ignored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = [examples(size, seed=i) for i, size in enumerate(sizes)]
    if ignored:
        targets = splits[1].targets.clone()
        targets[2] = IGNORED
        splits[1] = replace(splits[1], targets=targets)
    needs_general = ignored or len(set(sizes)) > 1
    unused = "of_cross_entropy_of_all" if needs_general else "of_cross_entropy"
    monkeypatch.setattr(blocks, unused, None)
    learner, rows = learner_of(mlp)
    together, alone = both_ways(learner, splits, Training(batch=4, epochs=2), rows)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_images_are_flattened(dtype: torch.dtype) -> None:
    learner, rows = learner_of(lambda: nets.dense((1, 2, 3), CLASSES, (4,)))
    gen = generator(5)
    images = torch.randint(0, 256, (19, 1, 2, 3), generator=gen, dtype=torch.uint8)
    images = images if dtype == torch.uint8 else images / 255
    labels = torch.randint(0, CLASSES, (19,), generator=gen)
    splits = [whole(images[part], labels[part]) for part in (slice(9), slice(9, None))]
    block, alone = both_ways(learner, splits, Training(batch=4, steps=5), rows)
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=2e-6)


def hooked() -> nn.Module:
    module = mlp()
    module[0].register_forward_hook(lambda layer, inputs, out: 2 * out)
    return module


def shared() -> nn.Module:
    square = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(square, nn.ReLU(), square, nn.Linear(FEATURES, CLASSES))


def half_fixed() -> nn.Module:
    module = mlp()
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "model", [Tied, Frozen, normed, dropped, hooked, shared, half_fixed], ids=lambda m: m.__name__
)
def test_gradients_of_other_networks_are_left_to_autograd(model: Callable[[], nn.Module]) -> None:
    assert DenseStack.of(learner_of(model)[0]) is None
    assert DenseStack.of(learner_of(mlp)[0]) is not None
    assert DenseStack.of(learner_of(mlp, precision="bf16")[0]) is None


@pytest.mark.parametrize("model", [hooked, shared, half_fixed], ids=lambda m: m.__name__)
@pytest.mark.parametrize("size", [8, 1])
def test_a_block_of_other_networks_is_the_plain_loop(
    model: Callable[[], nn.Module], size: int
) -> None:
    learner, rows = learner_of(model)
    splits = [examples(20, 1), examples(17, 2)]
    splits[0].targets[3] = IGNORED
    block, alone = both_ways(learner, splits, Training(batch=size, epochs=2), rows)
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("model", [mlp, normed], ids=lambda m: m.__name__)
def test_blocks_of_clients_of_one_size_need_no_mask(model: Callable[[], nn.Module]) -> None:
    """BatchNorm and a loss that nobody knows: the running statistics too are the plain loop's."""
    learner, rows = learner_of(model, objective=Objective(loss=squares))
    block, alone = both_ways(
        learner, [examples(17, seed) for seed in range(4)], Training(batch=8, epochs=2), rows
    )
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=2e-6)


def test_augmented_examples_are_each_clients_own() -> None:
    learner, rows = learner_of(mlp, augment=noisy)
    block, alone = both_ways(
        learner, [examples(20, 1), examples(17, 2)], Training(batch=8, epochs=2), rows
    )
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=2e-6)


def test_padding_is_nothing_that_was_there_before() -> None:
    learner, rows = learner_of(mlp)
    splits = [examples(20, 1), examples(17, 2)]
    expected, _ = both_ways(learner, splits, Training(batch=8), rows)
    for name in ("inputs", "models"):
        learner.scratch(name, 1000).fill_(torch.nan)
    found, _ = both_ways(learner, splits, Training(batch=8), rows)
    assert torch.equal(found, expected)


class Directions(nn.Module):
    """Of inputs only the direction counts; zeros have none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x / x.norm(dim=-1, keepdim=True))


def test_padding_is_examples_that_a_model_can_take() -> None:
    learner = Learner(made(Directions), Objective())
    splits = [examples(20, 1), examples(17, 2)]
    block, alone = both_ways(
        learner, splits, Training(batch=8, epochs=2), [learner.master.row().clone()] * 2
    )
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=1e-6)


def test_an_augmentation_may_change_the_type_of_numbers() -> None:
    learner = Learner(
        made(linear),
        Objective(),
        lambda x, gen: x.float() / 255 + torch.rand(x.shape, generator=gen),
    )
    gen = generator(5)
    pixels = torch.randint(0, 256, (21, FEATURES), generator=gen, dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (21,), generator=gen)
    splits = [whole(pixels[part], labels[part]) for part in (slice(12), slice(12, None))]
    block, alone = both_ways(
        learner, splits, Training(batch=4, epochs=2), [learner.master.row().clone()] * 2
    )
    torch.testing.assert_close(block, alone, rtol=1e-4, atol=1e-6)


def test_a_client_that_breaks_down_leaves_the_others_alone() -> None:
    learner, rows = learner_of(mlp)
    splits = [examples(20, 1), examples(20, 2), examples(20, 3)]
    expected, _ = both_ways(learner, splits, Training(batch=8), rows)
    broken = Split(splits[1].inputs * torch.nan, splits[1].index, splits[1].targets)
    found, _ = both_ways(learner, [splits[0], broken, splits[2]], Training(batch=8), rows)
    assert found[1].isnan().any()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_who_goes_with_whom() -> None:
    training, exact = Training(batch=8), {"min_batch": 1, "needs_equal_sizes": True}

    def key(n, **how):
        return goes_with(
            examples(n, 0), training, **{"min_batch": 1, "needs_equal_sizes": False, **how}
        )

    assert key(17) == key(24) != key(25)
    assert key(16) != key(17)
    assert key(17, **exact) == key(17, **exact) != key(24, **exact)
    assert key(17, min_batch=2) == key(16, min_batch=2)  # a last batch of one is left out
    whole = Training(batch=0)
    assert goes_with(examples(5, 0), whole, 1, False) == goes_with(
        examples(500, 0), whole, 1, False
    )
    other = replace(examples(20, 0), inputs=torch.zeros(20, 2, 2))
    assert goes_with(other, training, 1, False) != key(20)


def order(task: Task, who: int) -> local.Order:
    return local.Order(task=task, training=Training(batch=8), lr=LR, key=(1, 0, 0), client=who)


def test_tasks_done_together_are_the_tasks_done_alone() -> None:
    """Choices and measured losses are each client's; the update is from the mean of what it chose."""
    learner, rows = learner_of(mlp)
    task = Task(offered=(4, 5, 6), choose=2, measure="validation")
    jobs = [local.Job(order(task, i), rows, client(i)) for i in range(3)]
    for job, found in zip(jobs, local.answer_together(learner, jobs), strict=True):
        alone = local.answer(Learner(made(mlp), Objective()), job)
        assert (found.chosen, found.losses, found.accuracies) == (
            alone.chosen,
            alone.losses,
            alone.accuracies,
        )
        assert found.update is not None
        assert alone.update is not None
        torch.testing.assert_close(found.update, alone.update, rtol=1e-4, atol=2e-6)


def test_global_randomness_is_left_alone() -> None:
    learner, rows = learner_of(mlp)
    before = torch.random.get_rng_state()
    job = local.Job(order(Task(offered=(0,)), 1), rows[:1], client(1))
    list(local.answer_together(learner, [job, job]))
    assert torch.equal(torch.random.get_rng_state(), before)


class Replayed:
    """In place of a CUDA graph: what was recorded is called again, with the tensors that were recorded."""

    def __init__(self, function: Callable[..., None], own: list[Tensor]) -> None:
        self.function, self.own = function, own

    def replay(self) -> None:
        self.function(*self.own)


@pytest.mark.parametrize("before", [0, 1, 3, 100])
def test_recorded_steps_are_the_steps(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shape of a batch has a recording, with the values of the batch at hand; test_gpu.py has that of a real graph."""
    made: list[Recorded] = []

    def record(self: Recorded, tensors: Sequence[Tensor]) -> tuple[Replayed, list[Tensor]]:
        made.append(self)
        own = [torch.full_like(tensor, 0) for tensor in tensors]
        return Replayed(self.function, own), own

    learner, rows = learner_of(Images)
    splits, training = [examples(20, 1), examples(18, 2)], Training(batch=8, epochs=3)
    expected, _ = both_ways(learner, splits, training, rows)
    monkeypatch.setattr(Recorded, "record", record)
    monkeypatch.setattr(Recorded, "CALLS_BEFORE", before)
    monkeypatch.setattr(blocks, "recordable", lambda learner, training: True)
    found, _ = both_ways(learner, splits, training, rows)
    assert torch.equal(found, expected)
    assert len(made) == {100: 0, 3: 1}.get(before, 2)  # six batches of 8, three of 4


def test_what_can_be_recorded() -> None:
    """Networks of torch's layers with the usual loss: a replay repeats nothing that Python does."""

    def can(
        model: Callable[[], nn.Module], device: str = "cuda", loss: Any = None, **training: Any
    ) -> bool:
        learner = Learner(made(model), Objective() if loss is None else Objective(loss=loss))
        learner.device = torch.device(device)
        return recordable(learner, Training(**training))

    def hooked() -> nn.Module:
        module = nn.Sequential(nn.Linear(2, 2))
        module[0].register_forward_hook(lambda *_: None)
        return module

    cnn, normed = (
        partial(nets.make, "flhc-cnn", (1, 28, 28), 10),
        partial(nets.make, "fedbn-cnn-narrow", (3, 28, 28), 10),
    )
    assert can(cnn)
    assert can(normed, momentum=0.9, weight_decay=0.1, clip=1.0, proximal=0.1)
    assert not can(cnn, device="cpu")
    assert not can(cnn, optimizer="adam")
    assert not can(cnn, loss=squares)
    assert not can(Images)
    assert not can(hooked)
    assert not can(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)))


# -- measuring without training
# ------------------------------------------------------------------------------------------------


def weighted_loss() -> Objective:
    return Objective(loss=nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0])))


@pytest.mark.parametrize("objective", [Objective(), weighted_loss()], ids=["plain", "weights"])
@pytest.mark.parametrize("model", [linear, mlp, Images, normed], ids=lambda m: m.__name__)
def test_losses_together_are_those_of_each_model_alone(
    model: Callable[[], nn.Module], objective: Objective
) -> None:
    learner, rows = learner_of(model, objective=objective)
    splits = [examples(size, size) for size in (20, 1, 23, 0, 18)]
    models = [5 * rows[i % len(rows)] for i in range(len(splits))]  # too sure: cooled
    learner.own_code = False  # the nets of these tests are code of their own
    assert blocks.can_measure_together(learner, splits)
    together = blocks.losses_together(learner, models, splits)
    for model_row, split, losses in zip(models, splits, together, strict=True):
        torch.testing.assert_close(losses, learner.losses(model_row, split), rtol=1e-4, atol=1e-5)


def test_losses_of_many_examples_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, rows = learner_of(mlp)
    splits = [examples(size, size) for size in (9, 12, 10)]
    whole_batch = blocks.losses_together(learner, rows, splits)
    monkeypatch.setattr(learner, "at_once", 15)
    for one, other in zip(blocks.losses_together(learner, rows, splits), whole_batch, strict=True):
        torch.testing.assert_close(one, other)


def test_what_cannot_be_measured_together() -> None:
    splits = [examples(4, 1), examples(3, 2)]
    assert not blocks.can_measure_together(learner_of(Images)[0], splits)  # code of a user
    learner, _ = learner_of(mlp)
    other_shape = whole(torch.zeros(3, FEATURES + 1), torch.zeros(3, dtype=torch.long))
    assert blocks.can_measure_together(learner, splits)
    assert not blocks.can_measure_together(learner, [splits[0], other_shape])
