"""What one client does with an offered model: measure it, choose, train from it, or give its gradient.

This is the plain loop, one client and one mini-batch at a time: the reference for every faster way.
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
    """One client's answer; ``row`` ``(d,)`` is None if nothing was trained."""

    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    row: Tensor | None


class Learner:
    """A module that is loaded with one model after another; reused for client after client."""

    def __init__(self, module: nn.Module, objective: Objective, augment: Callable | None = None) -> None:
        self.layout = Layout(module)
        self.images = any(isinstance(m, nn.Conv2d) for m in module.modules())
        # Convolutions are faster with the channels last in memory; shapes and names stay what they are.
        self.module = module.to(memory_format=torch.channels_last) if self.images else module  # type: ignore[call-overload]
        self.objective, self.augment = objective, augment
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.has_batchnorm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
        in_row = {piece.name for piece in self.layout.pieces}
        self.others = [
            (owner, name, buffer.clone())
            for path, owner in module.named_modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None and f"{path}.{name}".lstrip(".") not in in_row
        ]

    def load(self, row: Tensor) -> None:
        """Take over a model; buffers that no row carries (integers, say) go back to what they were."""
        self.layout.load(self.module, row)
        for owner, name, first in self.others:
            owner._buffers[name] = first.clone()

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Of the batch's mean loss, one per trainable parameter; zero for those the loss does not depend on."""
        loss = self.objective.loss(self.module(x), y)
        return torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    def _inputs(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.images and x.dim() == 4 else x

    # -- measuring ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sums(
        self, rows: Sequence[Tensor], inputs: Tensor, index: Tensor, targets: Sequence[Tensor]
    ) -> list[dict[str, tuple[float, int]]]:
        """(sum, count) of the loss and of each metric of a model ``(d,)`` on ``inputs[index]``; of the ensemble of several.

        targets: any number of targets of the same examples, one result each; the outputs are computed once.
        """
        totals: list[dict[str, tuple[float, int]]] = [{} for _ in targets]
        if len(rows) == 1:
            self.load(rows[0])
        for start in range(0, len(index), BATCH_TO_MEASURE):
            part = slice(start, start + BATCH_TO_MEASURE)
            outputs = self._outputs(rows, self._inputs(inputs[index[part]]))
            for total, target in zip(totals, targets, strict=True):
                y = target[part]
                _add(total, "loss", float(self.objective.loss(outputs, y)) * y.numel(), y.numel())
                for name, metric in self.objective.metrics.items():
                    values = metric(outputs, y)
                    _add(total, name, float(values.sum(dtype=torch.float64)), values.numel())
        return totals

    def _outputs(self, rows: Sequence[Tensor], x: Tensor) -> Tensor:
        """Of the loaded model, or of the ensemble of several, each loaded in turn."""
        self.module.eval()
        if len(rows) == 1:
            return self.module(x)
        voices = []
        for row in rows:
            self.load(row)
            voices.append(self.module(x))
        return self.objective.combine(torch.stack(voices))

    def measure(self, row: Tensor, data: Split) -> Scores:
        """Mean loss and metrics of a model on a client's examples; NaN without examples."""
        totals = self.sums([row], data.inputs, data.index, [data.targets])[0]
        if not totals:
            return dict.fromkeys(["loss", *self.objective.metrics], float("nan"))
        return {name: total / count for name, (total, count) in totals.items()}

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self, row: Tensor, data: Split, training: Training, lr: float, gen: torch.Generator) -> Tensor:
        """Train from ``row`` ``(d,)``; returns the trained row."""
        self.load(row)
        self.module.train()
        offered = [p.detach().clone() for p in self.parameters] if training.proximal else None
        step = self._stepper(training, lr)
        for x, y in self._batches(data, training, gen):
            gradients = self.gradients(x, y)
            with torch.no_grad():  # nothing in place: autograd may give two parameters the same tensor
                if offered is not None:
                    pulls = zip(gradients, self.parameters, offered, strict=True)
                    gradients = tuple(g.add(p - first, alpha=training.proximal) for g, p, first in pulls)
                if training.clip is not None:
                    share = (training.clip / (nn.utils.get_total_norm(gradients) + 1e-6)).clamp(max=1.0)
                    gradients = tuple(g * share for g in gradients)
                for p, g in zip(self.parameters, gradients, strict=True):
                    p.grad = g
            step()
        return self.layout.row(self.module)

    def _stepper(self, training: Training, lr: float) -> Callable[[], object]:
        """A step of a fresh optimiser, from the parameters' ``grad``; plain SGD is its one line."""
        if training.optimizer == "adam":
            return torch.optim.Adam(self.parameters, lr=lr, weight_decay=training.weight_decay).step
        if training.momentum or training.weight_decay:
            decay = training.weight_decay
            return torch.optim.SGD(self.parameters, lr=lr, momentum=training.momentum, weight_decay=decay).step

        @torch.no_grad()
        def plain() -> None:
            for p in self.parameters:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-lr)

        return plain

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
            x = self._inputs(x)
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
            gradients = torch.cat([g.reshape(-1) for g in self.gradients(self._inputs(x), y)])
            total[: self.layout.trainable].add_(gradients, alpha=len(x) / len(data))
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
