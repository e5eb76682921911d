"""Small worlds with real data and nets, for engines; and the slow, obvious local training they are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import Training
from coterie.data.objective import cross_entropy
from coterie.data.world import ClientData, Split, World, whole
from coterie.randomness import generator, seeded

FEATURES, CLASSES = 5, 3


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def examples(count: int, seed: int) -> Split:
    gen = generator(seed, 99)
    inputs = torch.randn(count, FEATURES, generator=gen)
    return whole(inputs, torch.randint(0, CLASSES, (count,), generator=gen))


def client(seed: int, train: int = 20, validation: int = 6, test: int = 9) -> ClientData:
    return ClientData(
        train=examples(train, 3 * seed),
        validation=examples(validation, 3 * seed + 1),
        test=examples(test, 3 * seed + 2),
    )


def world(
    ids: Iterable[int] = (2, 3, 7, 11),
    model: Callable[[], nn.Module] = mlp,
    sizes: Sequence[int] = (),
    **more: Any,
) -> World:
    """Clients of 20, or of ``sizes``, training examples each."""
    ids = tuple(ids)
    clients = {
        c: client(c, train=size) for c, size in zip(ids, sizes or [20] * len(ids), strict=True)
    }
    clients = more.pop("clients", clients)
    more.setdefault("training", Training(lr=0.1, batch=8))
    return World(clients=clients, model=model, **more)


def spoiled(data: ClientData, part: str) -> ClientData:
    """With every input of one part NaN."""
    split: Split = getattr(data, part)
    return replace(data, **{part: whole(split.inputs * math.nan, split.targets)})


def noisy(inputs: Tensor, gen: torch.Generator) -> Tensor:
    """An augmentation: it must depend on nothing but the generator it is given."""
    return inputs + 0.1 * torch.randn(inputs.shape, generator=gen)


def made(model: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with seeded(seed, 77):
        return model()


def trained(
    module: nn.Module, data: Split, training: Training, lr: float, gen: torch.Generator, *, skip_single: bool = False,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> nn.Module:  # fmt: skip
    """Local training as everyone would write it: torch.optim, torch's clipping, one mini-batch after the other."""
    wanted = [p for p in module.parameters() if p.requires_grad]
    if training.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(
            wanted, lr=lr, weight_decay=training.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(
            wanted, lr=lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
    first = [p.detach().clone() for p in wanted]
    module.train()
    done, epoch, size = 0, 0, training.batch or len(data)
    while epoch < training.epochs if training.steps is None else done < training.steps:
        order = torch.randperm(len(data), generator=gen)
        for batch in order.split(size):
            if (skip_single and len(batch) == 1) or done == training.steps:
                continue
            optimizer.zero_grad()
            total = loss(module(data.inputs[data.index[batch]]), data.targets[batch])
            if training.proximal:
                apart = sum(((p - q) ** 2).sum() for p, q in zip(wanted, first, strict=True))
                total = total + training.proximal / 2 * apart
            total.backward()
            if training.clip is not None:
                nn.utils.clip_grad_norm_(wanted, training.clip)
            optimizer.step()
            done += 1
        epoch += 1
    return module
