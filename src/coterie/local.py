"""What one client does with an offered model: measure it, choose, train from it, or give its gradient.

This is the plain loop, one client and one mini-batch at a time: the reference for every faster way. The module's
parameters and gradients are views of two flat buffers, so loading a row is one copy and an SGD step one operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core import Task, Training
from coterie.layout import Layout
from coterie.randomness import generator, seeded
from coterie.world import ClientData, Objective, Split

BATCH_TO_MEASURE = 256
"""Examples per batch where nothing is trained; a batch's activations should fit a core's cache."""

Scores = dict[str, float]


@dataclass(frozen=True)
class Reply:
    """One client's answer; ``row`` ``(d,)`` is a buffer that the next call writes over, or None if nothing was trained."""

    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    row: Tensor | None


class Learner:
    """A module bound to one flat row of parameters ``(d,)``; reused for client after client."""

    def __init__(self, module: nn.Module, objective: Objective, augment: Callable | None = None) -> None:
        self.module, self.objective, self.augment = module, objective, augment
        self.layout = Layout(module)
        self.row = self.layout.row(module)
        self.grad = torch.zeros(self.layout.trainable)
        self.has_batchnorm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
        self.views: list[tuple[nn.Module, str, Tensor]] = []
        self._bind()
        bound = {id(view) for _, _, view in self.views}
        self.others = [
            (owner, name, buffer.clone())
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None and id(buffer) not in bound
        ]

    def _bind(self) -> None:
        """Make every float tensor of the module a view of ``row``, and every gradient one of ``grad``."""
        parameters = dict(self.module.named_parameters())
        for piece in self.layout.pieces:
            view = self.row[piece.start : piece.stop].view(piece.shape)
            if piece.name in parameters:
                parameter = parameters[piece.name]
                parameter.data = view
                if parameter.requires_grad:
                    parameter.grad = self.grad[piece.start : piece.stop].view(piece.shape)
            else:
                path, _, name = piece.name.rpartition(".")
                owner = self.module.get_submodule(path)
                owner._buffers[name] = view
                self.views.append((owner, name, view))

    def load(self, row: Tensor) -> None:
        """Take over a model; buffers that no row carries (integers, say) go back to what they were."""
        self.row.copy_(row)
        for owner, name, view in self.views:
            owner._buffers[name] = view
        for owner, name, first in self.others:
            owner._buffers[name] = first.clone()

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Put the gradient of the batch's mean loss into ``grad``."""
        self.grad.zero_()
        self.objective.loss(self.module(x), y).backward()

    # -- measuring ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sums(self, inputs: Tensor, index: Tensor, targets: Sequence[Tensor]) -> list[dict[str, tuple[float, int]]]:
        """(sum, count) of the loss and of each metric of the loaded model on ``inputs[index]``.

        targets: any number of targets of the same examples, one result each; the outputs are computed once.
        """
        self.module.eval()
        totals: list[dict[str, tuple[float, int]]] = [{} for _ in targets]
        for start in range(0, len(index), BATCH_TO_MEASURE):
            part = slice(start, start + BATCH_TO_MEASURE)
            outputs = self.module(inputs[index[part]])
            for total, target in zip(totals, targets, strict=True):
                y = target[part]
                _add(total, "loss", float(self.objective.loss(outputs, y)) * y.numel(), y.numel())
                for name, metric in self.objective.metrics.items():
                    values = metric(outputs, y)
                    _add(total, name, float(values.sum(dtype=torch.float64)), values.numel())
        return totals

    def measure(self, row: Tensor, data: Split) -> Scores:
        """Mean loss and metrics of a model on a client's examples; NaN without examples."""
        self.load(row)
        totals = self.sums(data.inputs, data.index, [data.targets])[0]
        if not totals:
            return dict.fromkeys(["loss", *self.objective.metrics], float("nan"))
        return {name: total / count for name, (total, count) in totals.items()}

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self, row: Tensor, data: Split, training: Training, lr: float, gen: torch.Generator) -> Tensor:
        """Train from ``row`` ``(d,)``; returns the trained row, a buffer that the next call writes over."""
        self.load(row)
        self.module.train()
        weights = self.row[: self.layout.trainable]
        offered = row[: self.layout.trainable]
        step = self._stepper(weights, training, lr)
        for x, y in self._batches(data, training, gen):
            self.backward(x, y)
            if training.proximal:
                self.grad.add_(weights - offered, alpha=training.proximal)
            if training.clip is not None:
                self.grad.mul_((training.clip / (self.grad.norm() + 1e-6)).clamp(max=1.0))
            step()
        for owner, name, view in self.views:
            now = owner._buffers[name]
            if now is not view and now is not None:  # ``self.seen = self.seen + 1`` makes a new tensor
                view.copy_(now)
        return self.row

    def _stepper(self, weights: Tensor, training: Training, lr: float) -> Callable[[], object]:
        """A fresh optimiser over the flat row; plain SGD is its one line."""
        if training.optimizer == "sgd" and not training.momentum and not training.weight_decay:
            return lambda: weights.add_(self.grad, alpha=-lr)
        flat = nn.Parameter(weights)
        flat.grad = self.grad
        if training.optimizer == "adam":
            return torch.optim.Adam([flat], lr=lr, weight_decay=training.weight_decay).step
        return torch.optim.SGD([flat], lr=lr, momentum=training.momentum, weight_decay=training.weight_decay).step

    def _batches(self, data: Split, training: Training, gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled mini-batches of ``epochs`` passes, or as many passes as ``steps`` take; one gather per pass."""
        size = training.batch or len(data)
        # BatchNorm has no variance of a single example: a last batch of one is left out.
        least = 2 if self.has_batchnorm else 1
        per_pass = sum(min(size, len(data) - start) >= least for start in range(0, len(data), size))
        if not per_pass:
            kind = "a batch of 1" if len(data) > 1 else "a client with one training example"
            raise ValueError(f"{kind} cannot train a model with BatchNorm")
        left = training.steps if training.steps is not None else training.epochs * per_pass
        while left > 0:
            order = torch.randperm(len(data), generator=gen)
            x, y = data.batch(order)
            if self.augment is not None:
                x = self.augment(x, gen)
            for start in range(0, min(left, per_pass) * size, size):
                yield x[start : start + size], y[start : start + size]
            left -= per_pass

    def gradient(self, row: Tensor, data: Split) -> Tensor:
        """Full-batch gradient ``(d,)`` of the mean training loss at ``row``, without dropout; zero for buffers."""
        self.load(row)
        self.module.eval()
        total = torch.zeros(self.layout.size)
        for start in range(0, len(data), BATCH_TO_MEASURE):
            x, y = data.batch(torch.arange(start, min(start + BATCH_TO_MEASURE, len(data))))
            self.backward(x, y)
            total[: self.layout.trainable].add_(self.grad, alpha=len(x) / len(data))
        return total

    # -- a task -------------------------------------------------------------------------------------------------------

    def answer(
        self, task: Task, offered: Sequence[Tensor], data: ClientData, training: Training, lr: float, key: tuple[int, ...]
    ) -> Reply:
        """Do a task with the models offered, one row each; ``key`` seeds everything random about it.

        The reply's row is the update (trained - start), or the gradient where the task asks for it.
        """
        with seeded(*key, 1):  # a key of its own: dropout and the order of batches are draws apart
            scores = []
            if task.measure is not None:
                part = data.train if task.measure == "train" else data.validation
                scores = [self.measure(row, part) for row in offered]
            best = _least(scores, task.choose) if task.choose < len(offered) else list(range(len(offered)))
            start = offered[best[0]] if len(best) == 1 else torch.stack([offered[i] for i in best]).mean(0)
            row = None
            if task.gradient:
                row = self.gradient(start, data.train)
            elif task.trains:
                row = self.train(start, data.train, training, lr, generator(*key)) - start
        return Reply(
            chosen=tuple(task.offered[i] for i in best),
            losses=tuple(s["loss"] for s in scores),
            accuracies=tuple(s.get("accuracy", float("nan")) for s in scores),
            row=row,
        )


def _least(scores: Sequence[Scores], count: int) -> list[int]:
    """The ``count`` positions of least loss; ties to the first, and a NaN loss is never the least."""
    return sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]["loss"]), scores[i]["loss"]))[:count]


def _add(totals: dict[str, tuple[float, int]], name: str, value: float, count: int) -> None:
    before = totals.get(name, (0.0, 0))
    totals[name] = (before[0] + value, before[1] + count)
