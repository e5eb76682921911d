"""Mistakes in a user's own data, model, loss or metrics: one sentence each, before the first round."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.data.objective import REGRESSION, Metric, Objective, squared_error
from coterie.data.own import from_lists
from coterie.data.world import whole
from coterie.randomness import seeded
from coterie.settings import UserError
from coterie.training.trial import trial
from refusals import refuses
from small import CLASSES, FEATURES, linear, mlp, normed, world


def changed(**parts: Any) -> coterie.World:
    """Clients of which every split is changed by a function of inputs and targets."""
    tried = world(**{key: value for key, value in parts.items() if key not in ("x", "y")})
    same = lambda tensor: tensor  # noqa: E731
    x, y = parts.get("x", same), parts.get("y", same)

    def new(data: coterie.ClientData) -> coterie.ClientData:
        splits = {part: getattr(data, part) for part in ("train", "validation", "test")}
        return replace(
            data, **{part: whole(x(one.inputs), y(one.targets)) for part, one in splits.items()}
        )

    return replace(tried, clients={client: new(data) for client, data in tried.clients.items()})


def two_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean(0)


def constant(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.tensor(1.0)


def broken(outputs: Tensor, targets: Tensor) -> float:
    raise KeyError("no such label")


def late(outputs: Tensor, targets: Tensor) -> float:
    if len(targets) > 4:
        raise ValueError("too many")
    return 1.0


class Detached(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).detach()


class Wrapped(nn.Module):
    """A net that returns what ``form`` makes of a pair of its outputs."""

    def __init__(self, form: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.form = linear(), form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form([self.net(x)] * 2)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: changed(model=lambda: nn.Linear(FEATURES + 1, CLASSES)),
         ["client 2", "(5,) float32", "RuntimeError", "first layer"]),
        (lambda: changed(model=lambda: nn.Linear(FEATURES, 2)), ["client 2", "labels from 0 to 2", "2 outputs", "0 to 1"]),
        (lambda: changed(y=lambda y: y + 100_000), ["client 2", "labels from 100000 to 100002", "3 outputs"]),
        (lambda: changed(y=lambda y: y - 1), ["client 2", "labels from -1 to 1", "3 outputs"]),
        (lambda: changed(y=lambda y: y + 0.5), ["client 2", "floats", "objective="]),
        (lambda: changed(model=lambda: nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0))), ["one output per class"]),
        (lambda: changed(x=lambda x: x * float("nan")), ["client 2", "loss", "nan", "inputs"]),
        (lambda: changed(x=lambda x: x * 1e30, model=mlp), ["client 2", "its inputs reach", "scale"]),
        (lambda: changed(training=coterie.Training(lr=9e8, epochs=9), model=mlp), ["not finite after 10 steps", "training.lr"]),
        (lambda: changed(objective=Objective(loss=two_numbers)), ["loss", "(3,)", "one number"]),
        (lambda: changed(objective=Objective(loss=lambda o, y: 1.0)), ["loss", "float", "one number"]),
        (lambda: changed(objective=Objective(loss=constant)), ["loss", "trainable parameter"]),
        (lambda: changed(model=lambda: Detached(FEATURES, CLASSES)), ["loss", "trainable parameter"]),
        (lambda: changed(objective=Objective(metrics={"odd": broken})), ["(odd)", "KeyError: 'no such"]),
        (lambda: changed(objective=Objective(metrics=["Recall", "accuracy"])), ["main metric Recall", "several numbers"]),
        (lambda: changed(model=lambda: linear().requires_grad_(False)), ["model", "Linear", "trained"]),
        (lambda: changed(y=lambda y: y.float(), model=lambda: nn.Linear(FEATURES, 1), objective=Objective(
            loss=nn.functional.mse_loss, metrics=["MeanAbsoluteError"])), ["outputs and targets", "loss"]),
        (lambda: changed(y=lambda y: y.float(), model=lambda: nn.Linear(FEATURES, 1), objective=Objective(
            loss=squared_error, metrics=["AUROC"])), ["AUROC", "ValueError"]),
        (lambda: changed(objective=Objective(metrics={"odd": late})), ["odd", "ValueError: too many"]),
        (lambda: changed(model=lambda: Wrapped(tuple)), ["got tuple", "tensor of outputs per class"]),
        (lambda: changed(model=lambda: Wrapped(lambda pair: None)), ["got NoneType", "tensor of outputs per class"]),
        (lambda: changed(model=lambda: nn.LazyLinear(CLASSES)), ["LazyLinear", "without a size"]),
        (lambda: world(model=normed, sizes=[20, 20, 1, 20]), ["client 7", "one training example"]),
        (lambda: changed(model=normed, training=coterie.Training(batch=1)), ["a batch of 1", "2 or more"]),
    ],
    ids=range(24),
)  # fmt: skip
def test_a_mistake_is_told_before_any_folder_is_written(
    make: Callable[[], coterie.World], parts: list[str], tmp_path: Path
) -> None:
    tried = make()
    with refuses(*parts):
        coterie.begin(tried, tmp_path / "run", "fedavg", rounds=1, workers=1)
    assert not (tmp_path / "run").exists()
    with refuses(*parts):
        coterie.run("fedavg", tried, rounds=1, workers=1)


def test_labels_with_wide_gaps_are_no_class_numbers() -> None:
    x = np.random.default_rng(0).random((20, 3), "f")
    y = np.where(np.arange(20) % 2, 5, 100_005)
    with pytest.raises(
        UserError,
        match="labels must be class numbers from 0, found 2 different labels from 5 to 100005",
    ):
        from_lists([(x, y)] * 3)
    assert from_lists([(x, y % 100)] * 3, classes=6).clients


@pytest.mark.parametrize("model", [linear, normed], ids=lambda model: model.__name__)
def test_nothing_is_said_of_what_fits(model: Callable[[], nn.Module]) -> None:
    tried = world(model=model)
    before = {client: data.train.inputs.clone() for client, data in tried.clients.items()}
    trial(tried)
    assert all(
        torch.equal(before[client], data.train.inputs) for client, data in tried.clients.items()
    )


def test_a_regression_and_a_metric_of_a_whole_test_set_fit() -> None:
    rng = np.random.default_rng(0)
    numbers = from_lists([(rng.random((20, 3), "f"), rng.random(20)) for _ in range(3)])
    assert numbers.objective is REGRESSION
    trial(numbers)
    spread = Metric(lambda outputs, y: {"std": float(outputs.std())})
    trial(
        replace(
            numbers,
            objective=Objective(
                loss=squared_error, metrics={"R2": coterie.METRICS["R2Score"], "spread": spread}
            ),
        )
    )


def test_targets_must_be_finite_and_floats_are_numbers_to_predict() -> None:
    x = np.random.default_rng(0).random((20, 3), "f")
    with pytest.raises(
        UserError, match="client 0 holds targets that are not finite numbers in float32"
    ):
        from_lists([(x, np.where(np.arange(20) == 3, np.nan, 0.5))] * 2)
    whole_numbers, labels = np.round(x[:, 0] * 9), np.round(x[:, 0])
    assert from_lists([(x, labels), (x, whole_numbers)]).objective is REGRESSION
    assert from_lists([(x, labels)] * 2).objective.main == "accuracy"


def test_begin_takes_a_scenarios_name(tmp_path: Path) -> None:
    (one,) = coterie.begin("synthetic/groups", tmp_path / "run", "fedavg", rounds=1, workers=1)
    assert [done.number for done in one.rounds()] == [1]
    assert one.experiment.scenario == "synthetic/groups"


# -- what of torch's own surrounds a run
# ----------------------------------------------------------------------------------


def test_a_model_of_another_precision_is_told_so() -> None:
    for make in (nn.Module.double, nn.Module.half):
        with pytest.raises(
            UserError,
            match=r"inputs are torch.float32, and the model has parameters of torch.float\d\d: make it",
        ):
            trial(world(model=lambda make=make: make(mlp())))


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_torchscript_is_refused() -> None:
    with pytest.raises(UserError, match="the model is a TorchScript module"):
        trial(world(model=lambda: torch.jit.script(mlp())))


def test_contexts_that_change_training_are_refused() -> None:
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UserError, match="autocast is on"),
    ):
        trial(world())
    for context in (torch.no_grad, torch.inference_mode):
        with context(), pytest.raises(UserError, match="gradients are off here"):
            trial(world())


@seeded(0)
def test_a_model_must_be_new_at_each_call() -> None:
    tried = world()
    net = linear()
    with pytest.raises(UserError, match="must make a new module at each call"):
        trial(replace(tried, model=lambda: net))
    backbone = nn.Linear(FEATURES, 4).requires_grad_(False)
    trial(replace(tried, model=lambda: nn.Sequential(backbone, nn.Linear(4, CLASSES))))
    trial(replace(tried, model=lambda: copy.deepcopy(net)))


def test_whole_numbers_for_a_dense_layer_are_to_be_cast() -> None:
    inputs = np.arange(240).reshape(60, 4)
    whole_numbers = from_lists([(inputs, np.arange(60) % 2)], model=lambda: nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"cast the inputs to float32 .* unless the first layer"):
        trial(whole_numbers)
