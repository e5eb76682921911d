"""Losses in any spelling: recognised, weighted, vectorised, and refused where they are sums; and data sets that are tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import coterie
from coterie.core import Task, Training
from coterie.data.losses import is_plain_cross_entropy, is_sum, torch_loss
from coterie.data.objective import Objective, Tally, cross_entropy
from coterie.engines.workers import Hardware
from coterie.methods import Auto, FedAvg
from coterie.randomness import generator, seeded
from coterie.settings import UserError
from coterie.training.learner import Learner
from coterie.training.trial import trial
from scripted import Scripted, everyone, outcome, play
from small import CLASSES, examples, linear, made, mlp, world

WEIGHTS = torch.tensor([1.0, 9.0, 99.0])
GEN = generator(5)
OUTPUTS, CHOSEN = (
    torch.randn(40, CLASSES, generator=GEN),
    torch.randint(0, CLASSES, (40,), generator=GEN),
)
NUMBERS = torch.randn(40, CLASSES, generator=GEN)
LABELS = (NUMBERS > 0).float()


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    log = outputs.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return (-((1 - log.exp()) ** 2) * log).mean()


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def looping(outputs: Tensor, targets: Tensor) -> Tensor:
    """No vmap can compute it: it reads numbers."""
    return torch.stack(
        [
            (row * (1 + int(target))).square().mean()
            for row, target in zip(outputs, targets, strict=True)
        ]
    ).mean()


SPELLINGS: dict[str, Callable[..., Tensor]] = {
    "module": nn.CrossEntropyLoss(),
    "function": functional.cross_entropy,
    "partial": partial(functional.cross_entropy, reduction="mean"),
    "lambda": lambda outputs, targets: functional.cross_entropy(outputs, targets),
}
MEANS: dict[str, tuple[Any, Tensor]] = {
    **{name: (loss, CHOSEN) for name, loss in SPELLINGS.items()},
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), CHOSEN),
    "probabilities": (nn.CrossEntropyLoss(), NUMBERS.softmax(1)),
    "margin": (nn.MultiMarginLoss(), CHOSEN),
    "labels": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), LABELS),
    "several": (nn.MultiLabelSoftMarginLoss(), LABELS),
    "squares": (nn.MSELoss(), NUMBERS),
    "huber": (partial(functional.huber_loss, delta=0.5), NUMBERS),
    "smooth": (nn.SmoothL1Loss(), NUMBERS),
    "focal": (focal, CHOSEN),
    "looping": (looping, CHOSEN),
    "mean of none": (
        lambda outputs, targets: functional.cross_entropy(
            outputs, targets, reduction="none"
        ).mean(),
        CHOSEN,
    ),
}
WEIGHTED: dict[str, Any] = {
    "module": nn.CrossEntropyLoss(weight=WEIGHTS),
    "partial": partial(functional.cross_entropy, weight=WEIGHTS),
    "lambda": lambda outputs, targets: functional.cross_entropy(outputs, targets, WEIGHTS),
    "left out": nn.CrossEntropyLoss(ignore_index=1),
    "both, smoothed": nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=0, label_smoothing=0.2),
    "likelihood": lambda outputs, targets: functional.nll_loss(
        outputs.log_softmax(1), targets, weight=WEIGHTS
    ),
}


def alone(loss: Any, targets: Tensor) -> Tensor:
    return torch.stack([loss(OUTPUTS[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])


@pytest.mark.parametrize("name", MEANS)
def test_losses_of_all_examples_are_those_of_each_alone(name: str) -> None:
    loss, targets = MEANS[name]
    each = Objective(loss=loss).example_losses(OUTPUTS, targets)
    torch.testing.assert_close(each.losses, alone(loss, targets))
    torch.testing.assert_close(each.weighted.mean(), loss(OUTPUTS, targets))
    assert not is_sum(loss, OUTPUTS, targets)


@pytest.mark.parametrize("name", WEIGHTED)
def test_the_mean_of_weighted_losses_is_torchs_mean(name: str) -> None:
    loss = WEIGHTED[name]
    objective = Objective(loss=loss)
    each = objective.example_losses(OUTPUTS, CHOSEN)
    torch.testing.assert_close(each.weighted.mean(), loss(OUTPUTS, CHOSEN))
    counted = each.weights > 0  # type: ignore[operator]
    torch.testing.assert_close(each.losses[counted], alone(loss, CHOSEN)[counted])
    tally = Tally(objective)
    for at in (slice(0, 7), slice(7, 40)):
        tally.add(OUTPUTS[at], CHOSEN[at])
    assert objective.scores(tally.result())["loss"] == pytest.approx(
        float(loss(OUTPUTS, CHOSEN)), rel=1e-6
    )


def test_held_out_losses_have_the_class_weights() -> None:
    """The weights of the issue's case: 1 and 99."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 99.0, 1.0]))
    data, module = examples(600, 4), made(linear)  # more than one batch
    learner = Learner(module, Objective(loss=loss))
    row = learner.layout.row(module).clone()
    with torch.no_grad():
        outputs = module(data.inputs)
        tempered = [float(loss(outputs / 2 ** (step / 2), data.targets)) for step in range(13)]
    assert float(learner.losses(row, data).mean()) == pytest.approx(min(tempered), rel=1e-5)
    assert learner.measure(row, data)["loss"] == pytest.approx(tempered[0], rel=1e-5)
    total = loss(module(data.inputs), data.targets)
    expected = torch.cat(
        [g.flatten() for g in torch.autograd.grad(total, list(module.parameters()))]
    )
    torch.testing.assert_close(learner.gradient(row, data), expected)


def test_a_class_without_weight_counts_nothing() -> None:
    objective = Objective(loss=nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 1.0])))
    each = objective.example_losses(OUTPUTS, torch.zeros(40, dtype=torch.int64))
    assert not each.weighted.any()


@pytest.mark.parametrize("name", SPELLINGS)
def test_any_spelling_of_cross_entropy_is_known(name: str) -> None:
    known = torch_loss(SPELLINGS[name], OUTPUTS, CHOSEN)
    assert known is not None
    assert known.plain
    assert known.cooled is not None
    assert is_plain_cross_entropy(SPELLINGS[name]) == (
        name != "lambda"
    )  # what a lambda does later may be something else


@pytest.mark.parametrize(
    "loss",
    [
        WEIGHTED["module"],
        nn.MSELoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        focal,
        contrastive,
    ],
)
def test_other_losses_are_not_plain_cross_entropy(loss: Any) -> None:
    assert not Objective(loss=loss).plain_classes


def test_log_probabilities_are_divided_and_made_probabilities_again() -> None:
    log = OUTPUTS.log_softmax(1)
    found = Objective(loss=nn.NLLLoss()).at_temperatures(log, CHOSEN).losses
    torch.testing.assert_close(found, Objective().at_temperatures(OUTPUTS, CHOSEN).losses)


def world_of(
    loss: Any, sizes: tuple[int, ...] = (20, 23, 30, 41), model: Any = mlp
) -> coterie.World:
    return world(
        sizes=sizes, model=model, objective=Objective(loss=loss), training=Training(lr=0.2, batch=8)
    )


@pytest.mark.parametrize("name", ["module", "function", "partial"])
@seeded(0)
def test_auto_decides_the_same_for_any_spelling_bit_for_bit(name: str) -> None:
    built_in, spelled = (
        play(Auto(), world_of(loss), 4) for loss in (cross_entropy, SPELLINGS[name])
    )
    assert outcome(spelled) == outcome(built_in)


@pytest.mark.parametrize(
    "loss",
    [WEIGHTED["module"], focal, nn.CrossEntropyLoss(label_smoothing=0.1), nn.MultiMarginLoss()],
)
@seeded(0)
def test_a_block_of_clients_of_several_sizes_trains_as_each_alone(loss: Any) -> None:
    method = Scripted(everyone(Task(offered=(0,))))
    blocks = world_of(loss)
    assert Hardware().block(blocks.model(), blocks) > 1
    play(method, blocks, 1)
    play(method, blocks, 1, width=1)
    torch.testing.assert_close(method.seen[0].updates, method.seen[1].updates, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [looping, coterie.REGRESSION.loss])
@seeded(0)
def test_other_clients_train_alone(loss: Any) -> None:
    assert Hardware().block(mlp(), world_of(loss)) == 1


# -- sums
# -----------------------------------------------------------------------------------------------------------------


SUMS = {
    "module": nn.CrossEntropyLoss(reduction="sum"),
    "partial": partial(functional.cross_entropy, reduction="sum"),
    "own": lambda outputs, targets: -outputs.log_softmax(1).gather(1, targets[:, None]).sum(),
    "divided": lambda outputs, targets: (
        functional.cross_entropy(outputs, targets, reduction="sum") / 32 + 3
    ),
    "norm": lambda outputs, targets: (
        outputs.softmax(1) - functional.one_hot(targets, CLASSES)
    ).norm(),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_refused_before_the_first_round(name: str) -> None:
    with pytest.raises(UserError, match="must be a mean over the examples"):
        trial(world_of(SUMS[name]))


@pytest.mark.parametrize("loss", [contrastive, focal, *WEIGHTED.values()])
def test_what_is_no_sum_is_not_refused(loss: Any) -> None:
    trial(world_of(loss))


# -- data sets that are tensors
# -------------------------------------------------------------------------------------------


def arrays(seed: int, count: int = 40) -> tuple[Tensor, Tensor]:
    data = examples(count, seed)
    return data.inputs, data.targets


DATA_SETS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tensors": TensorDataset,
    "subset": lambda x, y: Subset(
        Subset(TensorDataset(x.flip(0), y.flip(0)), range(39, -1, -1)), range(40)
    ),
    "joined": lambda x, y: ConcatDataset(
        [TensorDataset(x[:13], y[:13]), TensorDataset(x[13:], y[13:])]
    ),
}


@pytest.mark.parametrize("name", DATA_SETS)
@pytest.mark.parametrize("parts", [False, True])
@seeded(0)
def test_a_data_set_of_tensors_is_its_tensors(name: str, parts: bool) -> None:
    pairs, make = [arrays(i) for i in range(4)], DATA_SETS[name]
    given: list[Any] = [make(*pair) for pair in pairs]
    plain: list[Any] = pairs
    if parts:
        given = [{"train": one, "test": make(*arrays(9))} for one in given]
        plain = [(*pair, *arrays(9)) for pair in pairs]
    runs = []
    for clients in (plain, given):
        tried = coterie.from_lists(clients, model=mlp, training=Training(lr=0.2, batch=8))
        assert isinstance(tried.clients[0].train.inputs, Tensor)
        runs.append(outcome(play(FedAvg(), tried, 2)))
    assert runs[0] == runs[1]
    coterie.from_lists(given)  # a named model gets its sizes


def test_a_data_set_that_does_more_is_read_item_by_item() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, at: Any) -> Any:
            x, y = super().__getitem__(at)
            return 2 * x, y

    x, y = arrays(0)
    tried = coterie.from_lists([Doubled(x, y)] * 2, model=mlp)
    assert not isinstance(tried.clients[0].train.inputs, Tensor)
    collated = coterie.from_lists(
        [TensorDataset(x, y)] * 2, model=mlp, collate=torch.utils.data.default_collate
    )
    assert not isinstance(collated.clients[0].train.inputs, Tensor)


def test_images_of_a_data_set_keep_their_form() -> None:
    """A model for a data set's items takes them as they are: no dimension of channels is added, and nothing is scaled."""
    images = torch.randint(0, 255, (30, 4, 4), dtype=torch.uint8, generator=GEN)
    y = torch.arange(30) % 3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1:] == (4, 4)
            out: Tensor = self.layer(x.flatten(1).float() / 255)
            return out

    trial(coterie.from_lists([TensorDataset(images, y)] * 2, model=Net))


def test_floats_as_targets_are_numbers_to_predict() -> None:
    x, _ = arrays(0)
    tried = coterie.from_lists([TensorDataset(x, x[:, :1] * 2)] * 2, model=lambda: nn.Linear(5, 1))
    assert tried.objective.main == coterie.REGRESSION.main


@pytest.mark.parametrize("shape", [(1, 2), (7, 10), (3, 4, 6)])
def test_all_temperatures_in_one_call_are_those_of_one_after_the_other(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = 5 * torch.randn(shape, generator=generator)
    targets = torch.randint(0, shape[-1], shape[:-1], generator=generator)
    together = Objective().at_temperatures(outputs, targets)
    monkeypatch.setattr("coterie.data.objective.MAX_NUMBERS_AT_ONCE", 0)
    in_turn = Objective().at_temperatures(outputs, targets)
    assert torch.equal(together.losses, in_turn.losses)
    assert together.weights is not None
    assert in_turn.weights is not None
    assert torch.equal(together.weights, in_turn.weights)
