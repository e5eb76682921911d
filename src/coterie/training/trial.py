"""A trial before the first round: real steps and tests with a few examples of some clients.

Mistakes in a user's own data, model, loss or metrics show here, before any file is written, and not
as a traceback of PyTorch in the first round.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from coterie.core import Client
from coterie.data.batches import Batch, Items, mapped, tensors
from coterie.data.losses import is_sum
from coterie.data.objective import Tally, counted
from coterie.data.target_scale import LARGE_TARGET, typical_target
from coterie.data.world import Split, World
from coterie.randomness import Purpose, generator, seeded
from coterie.settings import SettingError, UserError
from coterie.training.learner import Learner, batch_starts
from coterie.training.own_code import Generators, moved, own_generators, states

TRIAL_EXAMPLES = 2
"""Examples of a client that are tried."""

LARGE_INPUT = 30.0
"""Inputs beyond this may be why training diverges."""

TRIAL_STEPS = 10
"""Steps of local training after which the model must still have finite numbers."""


def trial(world: World, seed: int = 0) -> None:
    """Try the model, the loss, a few steps of training and the metrics on examples of three clients; of one if it is large.

    Args:
        world: The clients, their data and their model.
        seed: Seed of the first model.

    Raises:
        UserError: Something does not fit; the sentence says what to change.
    """
    _check_contexts()
    with seeded(seed, Purpose.INIT, 0):
        module = _fresh_module(world)
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError(
            "the model is a TorchScript module, which cannot be trained here: return the module that it was made of"
        )
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise UserError(
            "the model has layers without a size, such as LazyLinear: give them their sizes"
        )
    try:
        learner = Learner(module, world.objective)
    except ValueError as error:  # nothing to train, or parameters of another kind
        raise UserError(f"the model cannot be trained: {error}") from error
    _check_batches(world, learner)
    start = learner.layout.row(module)
    clients = sorted(world.clients)
    tried = sorted({clients[0], clients[len(clients) // 2], clients[-1]})
    if learner.large:  # its ten steps would take as long as a round
        tried = clients[:1]
    with seeded(0):
        trials = [_Trial(world, learner, client) for client in tried]
        for client_trial in trials:
            client_trial.run()
            client_trial.check_keys(trials[0])
        diverged = []
        if not learner.large:
            diverged = [client for client in tried if _diverges(world, learner, client, start)]
        if diverged == tried:
            raise UserError(
                f"the model of client {world.name(tried[0])} has numbers that are not finite "
                f"after {TRIAL_STEPS} steps of training: "
                f"{_scale(world.clients[tried[0]].train, learner)}"
            )


def _check_contexts() -> None:
    """Check that no context of the caller changes what training computes."""
    if not torch.is_grad_enabled():  # inference_mode turns gradients off, too
        raise UserError(
            "gradients are off here, by torch.no_grad or torch.inference_mode: call this outside of it"
        )
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise UserError(
            'torch.autocast is on here: call this outside of it; precision="bf16" trains with autocast'
        )


def _fresh_module(world: World) -> torch.nn.Module:
    """A fresh module; raises :class:`~coterie.settings.UserError` if the user's function makes none."""
    try:
        module = world.model()
    except UserError:
        raise
    except Exception as error:  # the user's code can raise anything
        message = " ".join(str(error).split())[:200]
        raise UserError(
            f"the function that makes the model fails: {type(error).__name__}: {message}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"the function that makes the model must return a torch.nn.Module, got {type(module).__name__}"
        )
    return module


def _check_batches(world: World, learner: Learner) -> None:
    """Check that each client has a batch that trains a model with BatchNorm, which needs two examples."""
    for client in sorted(world.clients) if learner.has_batchnorm else ():
        try:
            batch_starts(len(world.clients[client].train), world.training, learner.min_batch)
        except ValueError as error:
            hint = "set batch to 2 or more" if world.training.batch == 1 else "leave the client out"
            raise UserError(
                f"client {world.name(client)}: {error}: {hint}, or use another normalization"
            ) from None


class _Trial:
    """The trial of one client."""

    def __init__(self, world: World, learner: Learner, client: Client) -> None:
        self.world = world
        self.learner = learner
        self.data = world.clients[client]
        self.name = f"client {world.name(client)}"
        self.keys: set[str] = set()

    def run(self) -> None:
        learner, data = self.learner, self.data.train
        before = {what: states(generators) for what, generators in self.generators.items()}
        with self.step("its first examples cannot be read"):
            x, y = learner.batch(data, torch.arange(min(TRIAL_EXAMPLES, len(data))))
        self.keys = set(map(str, x)) if isinstance(x, Mapping) else set()
        learner.module.train()
        with self.step(f"the model fails for inputs of {_form(x)}", self.hint):
            outputs = learner.outputs(learner.arranged(x))
        self.check_labels(outputs, y)
        with (
            self.step(f"the loss fails for outputs of {_form(outputs)} and targets of {_form(y)}"),
            self.no_broadcast(),
        ):
            loss = learner.objective.loss(outputs, y)
        self.check_mean(outputs, y)
        self.check_loss(loss, data, counts=learner.objective.weight(outputs, y) != 0)
        with self.step("the gradient of the loss fails"):
            torch.autograd.grad(loss, learner.parameters, materialize_grads=True)
        self.check_metrics(outputs.detach() if isinstance(outputs, torch.Tensor) else outputs, y)
        if self.world.augment is not None:
            with self.step(f"the augmentation fails for inputs of {_form(x)}"):
                self.world.augment(x, generator(0))
        for what, generators in self.generators.items():
            if name := moved(generators, before[what]):
                raise UserError(
                    f"{self.name}: {what} draws from a random generator of its own, {name}, whose numbers would depend on the "
                    "number of workers: draw from np.random, random or torch, which Coterie seeds for each task"
                )

    @property
    def generators(self) -> dict[str, Generators]:
        """The random generators that the user's code made itself, by what holds them."""
        world, inputs = self.world, self.data.train.inputs
        holders: dict[str, Any] = {
            "the model": self.learner.module,
            "the loss": world.objective.loss,
        }
        holders |= {
            f"the metric {name}": metric.function for name, metric in world.objective.named.items()
        }
        holders["the augmentation"] = world.augment
        if isinstance(inputs, Items):
            holders |= {"the data set": inputs.dataset, "collate": inputs.collate}
        return {
            what: own_generators(holder) for what, holder in holders.items() if holder is not None
        }

    def check_keys(self, first: _Trial) -> None:
        """Check that the model receives the same arguments of this client and the first: some may have a default."""
        if self.keys != first.keys:
            differ = ", ".join(sorted(self.keys ^ first.keys))
            raise UserError(
                f"the inputs of all clients must have the same keys: only one of {first.name} and {self.name} has {differ}"
            )

    @property
    def hint(self) -> str:
        """What to change if the model does not take its inputs."""
        floats = [p for p in self.learner.module.parameters() if p.is_floating_point()]
        other_types = {str(p.dtype) for p in floats} - {"torch.float32"}
        if not other_types:
            return "its first layer must take such inputs"
        types = ", ".join(sorted(other_types))
        return f"inputs are torch.float32, and the model has parameters of {types}: make it with .float()"

    @contextmanager
    def step(self, failure: str, hint: str = "") -> Iterator[None]:
        """A part of the trial: an error in its body becomes one sentence."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # the user's code can raise anything
            message = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self.name}: {failure}: {type(error).__name__}: {message}{f'; {hint}' if hint else ''}"
            ) from error

    @contextmanager
    def no_broadcast(self) -> Iterator[None]:
        """Refuse outputs ``(b, 1)`` beside targets ``(b,)``, of which PyTorch would compare each with each."""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")
            try:
                yield
            except UserWarning as warning:
                hint = (
                    "give the targets the shape (N, 1), or use coterie.data.objective.squared_error"
                )
                raise UserError(
                    f"{self.name}: outputs and targets of the loss have different shapes: {hint}"
                ) from warning

    def check_labels(self, outputs: Any, y: Batch) -> None:
        """Check that class labels fit the outputs, if the loss is that of classes."""
        if not self.learner.objective.takes_classes(y) or not isinstance(y, torch.Tensor):
            return
        if not isinstance(outputs, torch.Tensor):
            raise UserError(
                f"the model must return a tensor of outputs per class, got {type(outputs).__name__}: return the outputs alone, "
                "or give an objective whose loss takes what the model returns"
            )
        if y.is_floating_point():
            raise UserError(
                f"{self.name} has targets that are floats, such as {float(y.flatten()[0]):g}, and the loss is the cross "
                "entropy of classes: pass objective=coterie.REGRESSION to predict numbers, or class numbers from 0"
            )
        if outputs.shape[:-1] != y.shape or outputs.dim() < 2:
            raise UserError(
                f"{self.name}: the model must have one output per class and target, {_form(y)} targets need outputs "
                f"{(*y.shape, 'classes')}, got {tuple(outputs.shape)}"
            )
        targets = self.data.train.targets
        labels = (targets if isinstance(targets, torch.Tensor) else y).flatten()
        labels = labels[counted(labels)]
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < outputs.shape[-1]:
            raise UserError(
                f"{self.name} has labels from {int(labels.min())} to {int(labels.max())}, and the model has "
                f"{outputs.shape[-1]} outputs: labels must be 0 to {outputs.shape[-1] - 1}, or the model have more outputs"
            )

    def check_mean(self, outputs: Any, y: Batch) -> None:
        """Check that the loss is a mean, and no sum: steps and losses would grow with the number of examples."""
        if isinstance(outputs, torch.Tensor) and is_sum(
            self.learner.objective.loss, outputs.detach(), y
        ):
            raise UserError(
                "the loss must be a mean over the examples of a batch, and it is a sum, which grows with their number: "
                'use reduction="mean", or divide by the number of examples'
            )

    def check_loss(self, loss: Any, data: Split, counts: bool) -> None:
        """Check that the loss is one finite number that depends on the model."""
        if not isinstance(loss, torch.Tensor) or loss.dim():
            got = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else type(loss).__name__
            )
            raise UserError(
                f"the loss must be a tensor with one number, the mean over a batch, got {got}"
            )
        if not loss.requires_grad:
            raise UserError(
                "the loss does not depend on a trainable parameter of the model: did its forward pass detach?"
            )
        if counts and not torch.isfinite(loss):  # torch's mean over nothing is no number
            raise UserError(
                f"the loss of {self.name} is {float(loss.detach())} before training: {_scale(data, self.learner)}"
            )

    def check_metrics(self, outputs: Any, y: Batch) -> None:
        """Check that each metric can be computed, and that the main one is one number."""
        objective = self.learner.objective
        test = self.data.test
        failure = f"a metric ({', '.join(objective.named)}) fails"
        with self.step(f"{failure} for outputs of {_form(outputs)} and targets of {_form(y)}"):
            tally = Tally(objective)
            tally.add(outputs, y)
            scores = objective.scores(tally.result())
        with self.step(f"the test with {', '.join(objective.named)} fails"):
            if len(test):
                scores = self.learner.measure(
                    self.learner.master.row().clone(), test.at(slice(self.learner.at_once))
                )
        if objective.main not in scores:
            raise SettingError(
                f"the main metric {objective.main} gives several numbers ({', '.join(list(scores)[:4])}): choose another "
                "one by Objective(main=...)"
            )


def _diverges(world: World, learner: Learner, client: Client, row: torch.Tensor) -> bool:
    """Whether a few steps of local training from ``row`` ``(d,)`` lead to numbers that are not finite."""
    data, training = world.clients[client].train, world.training
    steps = min(TRIAL_STEPS, training.steps or TRIAL_STEPS)
    trained = learner.train(
        row, data, replace(training, steps=steps), training.lr, generator(0, Purpose.TRAIN, client)
    )
    return not math.isfinite(float(trained.dot(trained)))


def _scale(data: Split, learner: Learner) -> str:
    """What to change if training diverges on these examples."""
    x, y = learner.batch(data, torch.arange(min(256, len(data))))
    floats = [tensor for tensor in tensors(x) if tensor.is_floating_point()]
    if any(not torch.isfinite(tensor).all() for tensor in floats):
        return "its inputs have NaN or infinite numbers; remove or replace them"
    largest = max((float(tensor.abs().max()) for tensor in floats), default=0.0)
    if largest > LARGE_INPUT:
        return f"its inputs reach {largest:.3g}; scale them by constants that all clients share, such as standardize='pooled'"
    typical = typical_target(y) if learner.objective.target_scale is None else 0.0
    if typical > LARGE_TARGET:
        return (
            f"its targets are around {typical:.3g}: standardize_target='pooled', which metrics and predictions undo, or a "
            "smaller training.lr"
        )
    return "use a smaller training.lr, or training.clip"


def _form(batch: Batch) -> str:
    """Shapes and types of a batch in words, without the number of examples."""
    if isinstance(batch, torch.Tensor):
        return f"shape {tuple(batch.shape[1:])} {str(batch.dtype).removeprefix('torch.')}"
    try:
        return str(mapped(_shape_and_type, batch))
    except AttributeError:
        return type(batch).__name__


def _shape_and_type(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}"
