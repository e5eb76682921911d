"""Local training of a block of clients at once: each step is one step of all clients, under ``torch.func.vmap``.

This is faster where the step of one client is so small that calls to torch take most of the time: small dense networks on a
CPU, and all networks on a GPU. Each client has its own examples, order and model. The results are equal to those of the
plain loop up to rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from coterie.core import Stage, Training
from coterie.data.objective import counted, cross_entropy
from coterie.data.world import Split
from coterie.training.learner import Learner, Pull, batch_starts, passes, staged, stepper
from coterie.training.precision import computing


def goes_with(data: Split, training: Training, least: int, exact: bool) -> Hashable:
    """Return a key; clients with equal keys can be trained in one block.

    They make the same number of steps, with batches of nearly the same sizes. A shorter last batch is padded if the loss is
    a mean over examples, so that the padding can be left out.

    Args:
        data: The client's training examples.
        training: Settings of local training.
        least: Fewest examples of a batch.
        exact: Whether all sizes must be equal, because the loss is not such a mean or the module mixes examples.

    Returns:
        The key.

    Raises:
        ValueError: The client can make no step.
    """
    steps = len(batch_starts(len(data), training, least))
    kind = data.inputs.shape[1:], data.inputs.dtype, data.targets.shape[1:], data.targets.dtype
    return steps, exact and len(data), kind


class Block:
    """Stacked models ``(w, d)`` of w clients, and steps of all of them at once."""

    def __init__(self, learner: Learner, rows: Sequence[Tensor]) -> None:
        self.learner, self.layout = learner, learner.layout
        self.flat = learner.scratch("models", len(rows), learner.layout.size)
        for model, row in zip(self.flat, rows, strict=True):
            self.layout.raise_variances(model.copy_(row))
        trainable = {p.name for p in self.layout.pieces[: len(learner.parameters)]}
        rounded = {id(parameter) for parameter, _ in learner.master.rounded}
        own = dict(learner.module.named_parameters())
        self.values: list[Tensor] = []  # float32 views of ``flat``, in the order of the row, trainable ones first
        self.tensors: dict[str, Tensor] = {}  # the tensors with which the module computes
        self.apart: list[tuple[Tensor, Tensor]] = []  # (values, tensor) of tensors that are not trained
        for piece in self.layout.pieces:
            values = self.flat[:, piece.start : piece.stop].view(len(rows), *piece.shape)
            low = id(own.get(piece.name)) in rounded
            self.tensors[piece.name] = values.to(torch.bfloat16) if low else values.detach()
            if piece.name in trainable:
                self.values.append(values)
            else:  # BatchNorm writes its statistics, under vmap only to contiguous tensors
                self.tensors[piece.name] = values.contiguous()
                self.apart.append((values, self.tensors[piece.name]))
        self.leaves = [self.tensors[p.name].requires_grad_() for p in self.layout.pieces if p.name in trainable]

    def train(
        self,
        splits: Sequence[Split],
        training: Training,
        lr: float,
        gens: Sequence[torch.Generator],
        *,
        stages: Sequence[Stage] = (),
        pull: Pull | None = None,
    ) -> Tensor:
        """Train the model of each client on its own examples.

        Args:
            splits: Training examples of each client.
            training: Settings of local training.
            lr: Learning rate.
            gens: Generator of each client, which draws the order of its examples.
            stages: Stages with the layers that they train; none to train all layers at once.
            pull: A term that pulls each client's model to another one.

        Returns:
            The trained rows ``(w, d)``, which the learner's next block overwrites.
        """
        learner = self.learner
        learner.reset()
        learner.module.train()
        longest = max(splits, key=len)
        size = training.batch or len(longest)
        present = _present([len(split) for split in splits], len(longest)).to(learner.device)
        for at, how in staged(self.layout, training, stages):
            leaves, values = ([every[i] for i in at] for every in (self.leaves, self.values))
            pulled = None if pull is None else pull.of(self.layout, at, learner.device)
            step = stepper(values, how, lr, stacked=True, pull=pulled)
            for starts in passes(batch_starts(len(longest), how, learner.least), how):
                x, y = self._shuffled(splits, len(longest), gens)
                for start in starts:
                    part = slice(start, start + size)
                    step(self._gradients(x[:, part], y[:, part], present[:, part], leaves))
                    self._round()
        for buffer, tensor in self.apart:
            buffer.copy_(tensor)
        return self.flat

    def _shuffled(self, splits: Sequence[Split], length: int, gens: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
        """Each client's examples in its own order, ``(w, length, ...)``, padded with its first example."""
        whole: list[Tensor] = []
        for i, (split, gen) in enumerate(zip(splits, gens, strict=True)):
            own = self.learner.shuffled(split, gen)
            whole = whole or [
                self.learner.scratch(name, len(splits), length, *t.shape[1:], dtype=t.dtype)
                for name, t in zip(("inputs", "targets"), own, strict=True)
            ]
            for all_of_them, t in zip(whole, own, strict=True):
                all_of_them[i, : len(split)], all_of_them[i, len(split) :] = t, t[:1]
        return whole[0], whole[1]

    def _gradients(self, x: Tensor, y: Tensor, present: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gradients of each client's mean loss by ``leaves``; ``present`` ``(w, b)`` is False for padding."""
        with computing(self.learner.precision, self.learner.device):
            outputs = torch.func.vmap(self._module, randomness="error")(self.tensors, x)
        outputs = outputs.float()
        if self.learner.objective.loss is cross_entropy:
            losses = nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
            # The sum of the clients' means over predictions that count: each mean depends on one model only.
            counts = (counted(y).view(*present.shape, -1) & present[..., None]).flatten(1)
            total = ((losses.view_as(counts) * counts).sum(1) / counts.sum(1)).sum()
        else:
            total = torch.func.vmap(self.learner.objective.loss)(outputs, y).sum()
        return torch.autograd.grad(total, leaves, materialize_grads=True)

    def _module(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        found = torch.func.functional_call(self.learner.module, tensors, (x,))
        return found.logits if hasattr(found, "logits") else found

    @torch.no_grad()
    def _round(self) -> None:
        for leaf, values in zip(self.leaves, self.values, strict=True):
            if leaf.dtype != values.dtype:
                leaf.copy_(values)


def _present(lengths: Sequence[int], length: int) -> Tensor:
    """Whether client i has an example at a position, ``(w, length)``."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]
