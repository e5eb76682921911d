"""Warnings about a net: outputs that depend on other examples, on chance, or that have no label."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.data.cautions import cautions
from coterie.settings import UserError

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3) for _ in range(3)]


class OverBatch(nn.Module):
    """Normalizes over the batch by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last((inputs - inputs.mean(0)) / inputs.std(0))
        return outputs


class RandomInTests(nn.Module):
    """Has a dropout that never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.last(inputs), 0.5)


def normalized(**options: bool) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4, **options), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (OverBatch, "the model's output for an example depends on the other examples of its batch"),
        (
            lambda: normalized(track_running_stats=False),
            "the model's output for an example depends",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)),
            "the model's output for an example",
        ),
        (RandomInTests, "the model's outputs are random in eval mode"),
        (
            lambda: nn.Linear(4, 7),
            "the model has 7 outputs, and the labels of all clients are 0 to 2",
        ),
    ],
)
def test_such_a_net_is_said(model: Callable[[], nn.Module], expected: str) -> None:
    (sentence,) = cautions(coterie.from_lists(CLIENTS, model=model))
    assert sentence.startswith(expected)


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Linear(4, 3),
        normalized,
        lambda: nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 3)),
        "mlp",
    ],
)
def test_nothing_is_said_of_other_nets(model: Callable[[], nn.Module] | str) -> None:
    assert cautions(coterie.from_lists(CLIENTS, model=model)) == []


def test_classes_without_examples_have_an_output() -> None:
    wide = coterie.from_lists(CLIENTS, model=lambda: nn.Linear(4, 4), classes=4)
    assert cautions(wide) == []
    numbers = [(inputs, labels.astype(np.float32)[:, None] / 3) for inputs, labels in CLIENTS]
    assert coterie.from_lists(numbers, model=lambda: nn.Linear(4, 1)).hints == ()


def on_losses(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *layers: nn.Module
) -> list[str]:
    """What is said of a linear net, with further layers, and a loss."""
    return cautions(
        coterie.from_lists(
            CLIENTS,
            model=lambda: nn.Sequential(nn.Linear(4, 3), *layers),
            objective=coterie.Objective(loss=loss),
        )
    )


def test_a_loss_that_is_no_mean_over_examples_is_said() -> None:
    (sentence,) = on_losses(
        lambda out, y: nn.functional.cross_entropy(out, y, reduction="none").max()
    )
    assert sentence.startswith("the loss of 8 examples is ")
    squared = lambda out, y: (nn.functional.cross_entropy(out, y, reduction="none") ** 2).mean()  # noqa: E731
    assert on_losses(squared) == []
    # Weights of classes and left-out classes are known.
    assert on_losses(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0, 1.0]))) == []
    assert on_losses(nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)) == []


def test_a_likelihood_of_logits_is_said() -> None:
    (sentence,) = on_losses(nn.NLLLoss())
    assert sentence.startswith(
        "the loss is torch's nll_loss, which takes logarithms of probabilities"
    )
    assert on_losses(nn.NLLLoss(), nn.LogSoftmax(1)) == []
    in_loss = lambda out, y: nn.functional.nll_loss(out.log_softmax(1), y)  # noqa: E731
    assert on_losses(in_loss) == []


def test_labels_that_begin_at_one_are_said() -> None:
    from_one = [(inputs, labels + 1) for inputs, labels in CLIENTS]
    (sentence,) = coterie.from_lists(from_one).hints
    assert sentence.startswith(
        "the labels are 1 to 3, and the model has an output for each number from 0"
    )
    assert coterie.from_lists(from_one, classes=4).hints == ()
    assert coterie.from_lists(CLIENTS).hints == ()


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.HuberLoss(), lambda out, y: (out - y).abs().mean()]
)
def test_accuracy_of_numbers_is_refused(loss: Callable[..., torch.Tensor]) -> None:
    numbers = [(inputs, inputs[:, :1]) for inputs, _ in CLIENTS]
    world = coterie.from_lists(
        numbers, model=lambda: nn.Linear(4, 1), objective=coterie.Objective(loss=loss)
    )
    with pytest.raises(
        UserError, match="the metric accuracy is for class labels, and client 0 has"
    ):
        next(iter(coterie.run("fedavg", world, rounds=1, workers=1)))


def test_one_hot_labels_are_refused_with_the_remedy() -> None:
    one_hot = [(inputs, np.eye(3, dtype=int)[labels]) for inputs, labels in CLIENTS]
    world = coterie.from_lists(one_hot, model=lambda: nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"if they are one-hot, pass class numbers: y\.argmax\(1\)"):
        next(iter(coterie.run("fedavg", world, rounds=1, workers=1)))
