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
from coterie.data.objective import Tally, accuracy, counted, exact_match
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
    # Make the model, and a learner of it.
    with seeded(seed, Purpose.INIT, 0):
        module = _fresh_module(world)
        _check_new(world, module)
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
    except ValueError as error:
        # There is nothing to train, or there are parameters of another kind.
        raise UserError(f"the model cannot be trained: {error}") from error
    _check_batches(world, learner)
    start = learner.layout.row(module)
    clients = sorted(world.clients)
    tried_clients = sorted({clients[0], clients[len(clients) // 2], clients[-1]})
    if learner.large:
        # The ten steps of a large model would take as long as a round.
        tried_clients = clients[:1]
    # Try the forward pass, the loss, the gradient and the metrics of each client, then a few steps.
    with seeded(0):
        trials = [_Trial(world, learner, client) for client in tried_clients]
        for client_trial in trials:
            client_trial.run()
            client_trial.check_keys(trials[0])
        diverged = []
        if not learner.large:
            diverged = [
                client for client in tried_clients if _diverges(world, learner, client, start)
            ]
        # One client alone may diverge in real training, too; that all do is a mistake.
        if diverged == tried_clients:
            raise UserError(
                f"the model of client {world.name(tried_clients[0])} has numbers that are not finite "
                f"after {TRIAL_STEPS} steps of training: "
                f"{_scale(world.clients[tried_clients[0]].train, learner)}"
            )


def _check_contexts() -> None:
    """Check that no context of the caller changes what training computes."""
    if not torch.is_grad_enabled():
        # torch.inference_mode turns gradients off, too.
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
    except Exception as error:
        # The user's code can raise anything.
        message = " ".join(str(error).split())[:200]
        raise UserError(
            f"the function that makes the model fails: {type(error).__name__}: {message}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"the function that makes the model must return a torch.nn.Module, got {type(module).__name__}{_no_updates(module)}"
        )
    return module


def _check_new(world: World, module: torch.nn.Module) -> None:
    """Check that the user's function makes a new module at each call.

    With one module for all, the first model would depend on what was trained before and not on the
    seed, and methods with several models would begin with equal ones. Tensors that no client trains
    may be shared.
    """
    other_module = _fresh_module(world)
    trained = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    if any(id(parameter) in trained for parameter in other_module.parameters()):
        raise UserError(
            "the function that makes the model must make a new module at each call, such as lambda: Net(), and returned "
            "one with the same parameters twice; to begin with the weights of a net, lambda: copy.deepcopy(net)"
        )


def _no_updates(model: object) -> str:
    """What to do with a model of scikit-learn's kind, which has no updates that a method could average."""
    if not (hasattr(model, "fit") and hasattr(model, "predict")):
        return ""
    return ", which has no updates that methods could average: coterie trees groups clients with such models"


def _check_batches(world: World, learner: Learner) -> None:
    """Check that each client has a batch that trains a model with BatchNorm, which needs two examples."""
    for client in sorted(world.examined.clients) if learner.has_batchnorm else ():
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
        learner = self.learner
        examples = self.data.train
        states_before = {
            holder_name: states(generators) for holder_name, generators in self.generators.items()
        }
        # Read a few examples.
        with self.step("its first examples cannot be read"):
            inputs, targets = learner.batch(
                examples, torch.arange(min(TRIAL_EXAMPLES, len(examples)))
            )
        self.keys = set(map(str, inputs)) if isinstance(inputs, Mapping) else set()
        # The forward pass, and whether the labels fit its outputs.
        learner.module.train()
        with self.step(f"the model fails for inputs of {_form(inputs)}", self.hint):
            outputs = learner.outputs(learner.arranged(inputs))
        self.check_labels(outputs, targets)
        # The loss, a mean that is finite, and its gradient.
        with (
            self.step(
                f"the loss fails for outputs of {_form(outputs)} and targets of {_form(targets)}"
            ),
            self.no_broadcast(),
        ):
            loss = learner.objective.loss(outputs, targets)
        self.check_mean(outputs, targets)
        self.check_loss(loss, examples, counts=learner.objective.weight(outputs, targets) != 0)
        with self.step("the gradient of the loss fails"):
            torch.autograd.grad(loss, learner.parameters, materialize_grads=True)
        # The metrics, and the augmentation.
        self.check_metrics(
            outputs.detach() if isinstance(outputs, torch.Tensor) else outputs, targets
        )
        if self.world.augment is not None:
            with self.step(f"the augmentation fails for inputs of {_form(inputs)}"):
                self.world.augment(inputs, generator(0))
        # No generator of the user's own may have drawn in these steps.
        for holder_name, generators in self.generators.items():
            if moved_generator := moved(generators, states_before[holder_name]):
                raise UserError(
                    f"{self.name}: {holder_name} draws from a random generator of its own, {moved_generator}, "
                    "whose numbers would depend on the number of workers: draw from np.random, random or torch, which "
                    "Coterie seeds for each task"
                )

    @property
    def generators(self) -> dict[str, Generators]:
        """The random generators that the user's code made itself, by what holds them."""
        world = self.world
        inputs = self.data.train.inputs
        holders: dict[str, Any] = {
            "the model": self.learner.module,
            "the loss": world.objective.loss,
        }
        for name, metric in world.objective.named.items():
            holders[f"the metric {name}"] = metric.function
        holders["the augmentation"] = world.augment
        if isinstance(inputs, Items):
            holders |= {"the data set": inputs.dataset, "collate": inputs.collate}
        generators_of_holders: dict[str, Generators] = {}
        for holder_name, holder in holders.items():
            if holder is not None:
                generators_of_holders[holder_name] = own_generators(holder)
        return generators_of_holders

    def check_keys(self, first_trial: _Trial) -> None:
        """Check that the model receives the same arguments of this client and the first: some may have a default."""
        if self.keys != first_trial.keys:
            different_keys = ", ".join(sorted(self.keys ^ first_trial.keys))
            raise UserError(
                "the inputs of all clients must have the same keys: "
                f"only one of {first_trial.name} and {self.name} has {different_keys}"
            )

    @property
    def hint(self) -> str:
        """What to change if the model does not take its inputs."""
        other_types: set[str] = set()
        for parameter in self.learner.module.parameters():
            if parameter.is_floating_point() and parameter.dtype != torch.float32:
                other_types.add(str(parameter.dtype))
        if not other_types:
            inputs = self.data.train.inputs
            if isinstance(inputs, torch.Tensor) and not inputs.is_floating_point():
                return (
                    'cast the inputs to float32 (x.astype("float32"), x.float()), unless the first layer is an '
                    "embedding"
                )
            return "its first layer must take such inputs"
        type_names = ", ".join(sorted(other_types))
        return f"inputs are torch.float32, and the model has parameters of {type_names}: make it with .float()"

    @contextmanager
    def step(self, failure: str, hint: str = "") -> Iterator[None]:
        """A part of the trial: an error in its body becomes one sentence."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            # The user's code can raise anything.
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

    def check_labels(self, outputs: Any, targets: Batch) -> None:
        """Check that class labels fit the outputs, if the loss is that of classes."""
        if not self.learner.objective.takes_classes(targets) or not isinstance(
            targets, torch.Tensor
        ):
            return
        if not isinstance(outputs, torch.Tensor):
            raise UserError(
                f"the model must return a tensor of outputs per class, got {type(outputs).__name__}: return the outputs alone, "
                "or give an objective whose loss takes what the model returns"
            )
        if targets.is_floating_point():
            raise UserError(
                f"{self.name} has targets that are floats, such as {float(targets.flatten()[0]):g}, and the loss is the cross "
                "entropy of classes: pass objective=coterie.REGRESSION to predict numbers, or class numbers from 0"
            )
        if outputs.shape[:-1] != targets.shape or outputs.dim() < 2:
            raise UserError(
                f"{self.name}: the model must have one output per class and target, {_form(targets)} targets need outputs "
                f"{(*targets.shape, 'classes')}, got {tuple(outputs.shape)}{_one_hot_hint(targets)}"
            )
        # All labels of the client, not only those of the tried examples.
        all_targets = self.data.train.targets
        labels = (all_targets if isinstance(all_targets, torch.Tensor) else targets).flatten()
        labels = labels[counted(labels)]
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < outputs.shape[-1]:
            raise UserError(
                f"{self.name} has labels from {int(labels.min())} to {int(labels.max())}, and the model has "
                f"{outputs.shape[-1]} outputs: labels must be 0 to {outputs.shape[-1] - 1}, or the model have more outputs"
            )

    def check_mean(self, outputs: Any, targets: Batch) -> None:
        """Check that the loss is a mean, and no sum: steps and losses would grow with the number of examples."""
        if isinstance(outputs, torch.Tensor) and is_sum(
            self.learner.objective.loss, outputs.detach(), targets
        ):
            raise UserError(
                "the loss must be a mean over the examples of a batch, and it is a sum, which grows with their number: "
                'use reduction="mean", or divide by the number of examples'
            )

    def check_loss(self, loss: Any, examples: Split, counts: bool) -> None:
        """Check that the loss is one finite number that depends on the model."""
        if not isinstance(loss, torch.Tensor) or loss.dim():
            description = type(loss).__name__
            if isinstance(loss, torch.Tensor):
                description = f"a tensor of shape {tuple(loss.shape)}"
            raise UserError(
                f"the loss must be a tensor with one number, the mean over a batch, got {description}"
            )
        if not loss.requires_grad:
            raise UserError(
                "the loss does not depend on a trainable parameter of the model: did its forward pass detach?"
            )
        if counts and not torch.isfinite(loss):
            # Where nothing counts, torch's mean is no number, and that is no mistake.
            raise UserError(
                f"the loss of {self.name} is {float(loss.detach())} before training: {_scale(examples, self.learner)}"
            )

    def check_metrics(self, outputs: Any, targets: Batch) -> None:
        """Check that each metric can be computed, and that the main one is one number."""
        objective = self.learner.objective
        self.check_accuracy()
        test_examples = self.data.test
        failure = f"a metric ({', '.join(objective.named)}) fails"
        with self.step(
            f"{failure} for outputs of {_form(outputs)} and targets of {_form(targets)}"
        ):
            # On the tried examples first, then on some of the test examples.
            score_tally = Tally(objective)
            score_tally.add(outputs, targets)
            scores = objective.scores(score_tally.result())
        with self.step(f"the test with {', '.join(objective.named)} fails"):
            if len(test_examples):
                scores = self.learner.measure(
                    self.learner.master.row().clone(), test_examples.at(slice(self.learner.at_once))
                )
        if objective.main not in scores:
            raise SettingError(
                f"the main metric {objective.main} gives several numbers ({', '.join(list(scores)[:4])}): choose another "
                "one by Objective(main=...)"
            )

    def check_accuracy(self) -> None:
        """Check that predictions are not compared for equality with targets that are numbers, which they never equal."""
        targets = self.data.train.targets
        if not isinstance(targets, torch.Tensor) or not targets.is_floating_point():
            return
        if ((targets == 0) | (targets == 1)).all():
            return
        for name, metric in self.learner.objective.named.items():
            if metric.function in (accuracy, exact_match):
                raise SettingError(
                    f"the metric {name} is for class labels, and {self.name} has targets that are numbers, such as "
                    f"{float(targets.flatten()[0]):.4g}: pass objective=coterie.REGRESSION, or "
                    'coterie.Objective(loss=..., metrics=["MeanAbsoluteError"], combine=coterie.data.objective.mean_output)'
                )


def _one_hot_hint(targets: torch.Tensor) -> str:
    """The end of a sentence if each row of the targets ``(b, K)`` has a single one."""
    is_one_hot = targets.dim() == 2 and targets.shape[1] > 1 and bool((targets.sum(1) == 1).all())
    return "; if they are one-hot, pass class numbers: y.argmax(1)" if is_one_hot else ""


def _diverges(world: World, learner: Learner, client: Client, model_row: torch.Tensor) -> bool:
    """Whether a few steps of local training from ``model_row`` ``(d,)`` lead to numbers that are not finite."""
    examples = world.clients[client].train
    training = world.training
    step_count = min(TRIAL_STEPS, training.steps or TRIAL_STEPS)
    trained = learner.train(
        model_row,
        examples,
        replace(training, steps=step_count),
        training.lr,
        generator(0, Purpose.TRAIN, client),
    )
    return not math.isfinite(float(trained.dot(trained)))


def _scale(examples: Split, learner: Learner) -> str:
    """What to change if training diverges on these examples."""
    # Look for the most common causes, the most certain first.
    inputs, targets = learner.batch(examples, torch.arange(min(256, len(examples))))
    float_tensors = [tensor for tensor in tensors(inputs) if tensor.is_floating_point()]
    if any(not torch.isfinite(tensor).all() for tensor in float_tensors):
        return "its inputs have NaN or infinite numbers; remove or replace them"
    largest = max((float(tensor.abs().max()) for tensor in float_tensors), default=0.0)
    if largest > LARGE_INPUT:
        return f"its inputs reach {largest:.3g}; scale them by constants that all clients share, such as standardize='pooled'"
    typical = typical_target(targets) if learner.objective.target_scale is None else 0.0
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
