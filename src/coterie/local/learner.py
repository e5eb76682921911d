"""What one client does with a model: measure it, train from it, give its gradient.

This is the plain loop, one client and one mini-batch at a time: the reference for every faster way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from coterie.core import Training
from coterie.layout import Layout
from coterie.local.dense import DenseUpdates
from coterie.local.measure import BATCH_TO_MEASURE, Part, Scores, Sums, batches, score
from coterie.local.precision import Master, computing
from coterie.local.steps import batch_starts, descend, passes, stepper
from coterie.world import Objective, Split


class Learner:
    """A module that is loaded with one model after another; reused for client after client.

    device: where it computes; a pool of examples is copied there once. precision: ``"fp32"``, or ``"bf16"`` for autocast
    over float32 weights. Rows come from the CPU's memory and go back there.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        augment: Callable | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: str = "fp32",
    ) -> None:
        self.layout = Layout(module)
        self.module, self.objective, self.augment = module.to(device), objective, augment
        self.device, self.precision = torch.device(device), precision
        # Convolutions are faster with the channels last in memory.
        self.images = any(isinstance(m, nn.Conv2d) for m in module.modules())
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.has_batchnorm = bool(norms)
        self.mixes = any(norm.running_mean is None for norm in norms)  # the examples of a batch, in tests too
        self.master = Master(module, self.layout, self.device, precision)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.dense = DenseUpdates(module, self.parameters if precision == "fp32" else [])
        in_row = {piece.name for piece in self.layout.pieces}
        self.others = [
            (owner, name, buffer.clone())
            for path, owner in module.named_modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None and f"{path}.{name}".lstrip(".") not in in_row
        ]
        self._resident: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch: dict[tuple[str, torch.dtype], Tensor] = {}

    def load(self, row: Tensor) -> None:
        """Take over a model; buffers that no row carries (integers, say) go back to what they were."""
        self.master.load(row)
        self.reset()

    def reset(self) -> None:
        for owner, name, first in self.others:
            owner._buffers[name] = first.clone()

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Of the batch's mean loss, one per trainable parameter; zero for those the loss does not depend on."""
        loss = self.objective.loss(self.outputs(x), y)
        return torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    def outputs(self, x: Tensor) -> Tensor:
        """The module's, in float32."""
        if self.precision == "fp32":
            return self.module(x)
        with computing(self.precision, self.device):
            return self.module(x).float()

    def here(self, tensor: Tensor) -> Tensor:
        """A tensor of the world on this device; copied once."""
        if tensor.device == self.device:
            return tensor
        if id(tensor) not in self._resident:
            self._resident[id(tensor)] = tensor, tensor.to(self.device)  # with the key's owner, whose id stays taken
        return self._resident[id(tensor)][1]

    def batch(self, data: Split, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the examples at ``positions`` of a split, on this device."""
        index = data.index[positions].to(self.device)
        # index_select takes a fifth of the time of ordinary indexing.
        x = self.here(data.inputs).index_select(0, index)
        return x, self.here(data.targets).index_select(0, positions.to(self.device))

    def scratch(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uninitialised memory under a name, the same at every call that asks for as much: new memory is slow to touch."""
        size = math.prod(shape)
        if (name, dtype) not in self._scratch or len(self._scratch[name, dtype]) < size:
            self._scratch[name, dtype] = torch.empty(size, dtype=dtype, device=self.device)
        return self._scratch[name, dtype][:size].view(shape)

    def arranged(self, x: Tensor) -> Tensor:
        # Not contiguous(): it leaves images of one channel as they are, and what follows would be channels first.
        return x.to(memory_format=torch.channels_last) if self.images and x.dim() == 4 else x

    # -- measuring ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sums(self, rows: Sequence[Tensor], parts: Sequence[Part]) -> list[list[Sums]]:
        """(sum, count) of the loss and of each metric of a model ``(d,)``, or of the ensemble of several.

        One result per part and its targets. Parts that follow each other in one pool share batches.
        """
        if len(rows) == 1:
            self.load(rows[0])
        if self.mixes and len(parts) > 1:
            return [self.sums(rows, [part])[0] for part in parts]
        totals: list[list[Sums]] = [[{} for _ in targets] for _, _, targets in parts]
        for pool, index, pieces in batches(parts):
            outputs = self._voices(rows, self.arranged(self.here(pool).index_select(0, index.to(self.device))))
            for i, of_part, of_batch in pieces:
                for total, target in zip(totals[i], parts[i][2], strict=True):
                    score(total, self.objective, outputs[of_batch], target[of_part].to(self.device))
        return totals

    def _voices(self, rows: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs of the loaded model, or of the ensemble of several, each loaded in turn."""
        self.module.eval()
        if len(rows) == 1:
            return self.outputs(x)
        voices = []
        for row in rows:
            self.load(row)
            voices.append(self.outputs(x))
        return self.objective.combine(torch.stack(voices))

    def measure(self, row: Tensor, data: Split) -> Scores:
        """Mean loss and metrics of a model on a client's examples; NaN without examples."""
        totals = self.sums([row], [(data.inputs, data.index, [data.targets])])[0][0]
        if not totals:
            return dict.fromkeys(["loss", *self.objective.metrics], float("nan"))
        return {name: total / count for name, (total, count) in totals.items()}

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self, row: Tensor, data: Split, training: Training, lr: float, gen: torch.Generator) -> Tensor:
        """Train from ``row`` ``(d,)``; returns the trained row."""
        self.load(row)
        self.module.train()
        batches = self._batches(data, training, gen)
        if self.dense.gain(training):
            self._train_dense(batches, lr)
        else:
            step = stepper(self.master.trainable, training, lr)
            for x, y in batches:
                step(self.gradients(x, y))
                self.master.round()
        return self.master.row().to("cpu", copy=True)

    def _train_dense(self, batches: Iterable[tuple[Tensor, Tensor]], lr: float) -> None:
        """Plain SGD where large dense layers take their updates apart."""
        with self.dense.kept():
            for x, y in batches:
                loss = self.objective.loss(self.outputs(x), y)
                self.dense.forget()
                gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
                self.dense.step(lr)
                descend(self.master.trainable, lr, gradients)

    def _batches(self, data: Split, training: Training, gen: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled mini-batches of ``epochs`` passes, or as many passes as ``steps`` take; one gather per pass."""
        size = training.batch or len(data)
        for starts in passes(batch_starts(len(data), training, self.least), training):
            x, y = self.shuffled(data, gen)
            for start in starts:
                yield x[start : start + size], y[start : start + size]

    @property
    def least(self) -> int:
        """Examples a batch must have: BatchNorm has no variance of a single one."""
        return 2 if self.has_batchnorm else 1

    def shuffled(self, data: Split, gen: torch.Generator) -> tuple[Tensor, Tensor]:
        """A client's examples in a fresh order, augmented."""
        x, y = self.batch(data, torch.randperm(len(data), generator=gen))
        if self.augment is not None:
            x = self.augment(x, gen)
        return self.arranged(x), y

    def gradient(self, row: Tensor, data: Split) -> Tensor:
        """Full-batch gradient ``(d,)`` of the mean training loss at ``row``, without dropout; zero for buffers."""
        self.load(row)
        self.module.eval()
        total = torch.zeros(self.layout.size, device=self.device)
        for start in range(0, len(data), BATCH_TO_MEASURE):
            x, y = self.batch(data, torch.arange(start, min(start + BATCH_TO_MEASURE, len(data))))
            gradients = torch.cat([g.reshape(-1) for g in self.gradients(self.arranged(x), y)])
            total[: self.layout.trainable].add_(gradients, alpha=len(x) / len(data))
        return total.cpu()
