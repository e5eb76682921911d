"""Local training of a block of clients at once: every step is one step of each, under ``torch.func.vmap``.

Worth it where a client's own step is so small that calling torch takes most of the time: small dense nets on a CPU, and
anything on a GPU. Each client has its own examples, order and model; the results are the plain loop's up to rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from coterie.core import Training
from coterie.data.world import Split, cross_entropy
from coterie.training.learner import Learner, batch_starts, passes, stepper
from coterie.training.precision import computing


def goes_with(data: Split, training: Training, least: int, exact: bool) -> Hashable:
    """Clients of equal keys can be trained in one block: they make the same steps, of batches of nearly the same sizes.

    A last batch may be shorter than another's and is padded, if the loss is a mean over examples that can be left out;
    ``exact`` where it is not, or the module mixes examples: then all sizes are the same. least: examples a batch must have.
    ValueError for a client that can make no step.
    """
    steps = len(batch_starts(len(data), training, least))
    kind = data.inputs.shape[1:], data.inputs.dtype, data.targets.shape[1:], data.targets.dtype
    return steps, exact and len(data), kind


class Block:
    """Stacked models ``(w, d)`` of a learner's module, and one step after another of all of them."""

    def __init__(self, learner: Learner, rows: Sequence[Tensor]) -> None:
        self.learner, self.layout = learner, learner.layout
        self.flat = learner.scratch("models", len(rows), learner.layout.size)
        for model, row in zip(self.flat, rows, strict=True):
            self.layout.raise_variances(model.copy_(row))
        trainable = {p.name for p in self.layout.pieces[: len(learner.parameters)]}
        rounded = {id(parameter) for parameter, _ in learner.master.rounded}
        own = dict(learner.module.named_parameters())
        self.values: list[Tensor] = []  # float32 views of ``flat``, in the order of the row, trainable ones first
        self.tensors: dict[str, Tensor] = {}  # what the module computes with
        self.apart: list[tuple[Tensor, Tensor]] = []  # (values, tensor) of what is not trained
        for piece in self.layout.pieces:
            values = self.flat[:, piece.start : piece.stop].view(len(rows), *piece.shape)
            low = id(own.get(piece.name)) in rounded
            self.tensors[piece.name] = values.to(torch.bfloat16) if low else values.detach()
            if piece.name in trainable:
                self.values.append(values)
            else:  # BatchNorm writes its statistics, and under vmap to contiguous tensors only
                self.tensors[piece.name] = values.contiguous()
                self.apart.append((values, self.tensors[piece.name]))
        self.leaves = [self.tensors[p.name].requires_grad_() for p in self.layout.pieces if p.name in trainable]

    def train(self, splits: Sequence[Split], training: Training, lr: float, gens: Sequence[torch.Generator]) -> Tensor:
        """Train every client's model on its own examples; returns the trained rows ``(w, d)``.

        The rows are overwritten by the learner's next block.
        """
        learner = self.learner
        learner.reset()
        learner.module.train()
        longest = max(splits, key=len)
        size = training.batch or len(longest)
        present = _present([len(split) for split in splits], len(longest)).to(learner.device)
        step = stepper(self.values, training, lr, stacked=True)
        for starts in passes(batch_starts(len(longest), training, learner.least), training):
            x, y = self._shuffled(splits, len(longest), gens)
            for start in starts:
                part = slice(start, start + size)
                step(self._gradients(x[:, part], y[:, part], present[:, part]))
                self._round()
        for values, tensor in self.apart:
            values.copy_(tensor)
        return self.flat

    def _shuffled(self, splits: Sequence[Split], length: int, gens: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
        """Every client's examples in an order of its own, ``(w, length, ...)``; a shorter one's first fills up the rest."""
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

    def _gradients(self, x: Tensor, y: Tensor, present: Tensor) -> tuple[Tensor, ...]:
        """Of each client's mean loss; ``present`` ``(w, b)`` is False for padding."""
        with computing(self.learner.precision, self.learner.device):
            outputs = torch.func.vmap(self._module, randomness="error")(self.tensors, x)
        outputs = outputs.float()
        if self.learner.objective.loss is cross_entropy:
            losses = nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
            # Per client, the mean over what is there; their sum, as no model is in two of them.
            each = losses.view(*present.shape, -1).mean(-1) * present
            total = (each.sum(1) / present.sum(1)).sum()
        else:
            total = torch.func.vmap(self.learner.objective.loss)(outputs, y).sum()
        return torch.autograd.grad(total, self.leaves, materialize_grads=True)

    def _module(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(self.learner.module, tensors, (x,))

    @torch.no_grad()
    def _round(self) -> None:
        for leaf, values in zip(self.leaves, self.values, strict=True):
            if leaf.dtype != values.dtype:
                leaf.copy_(values)


def _present(lengths: Sequence[int], length: int) -> Tensor:
    """``(w, length)``: whether client i has an example at a place."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]
