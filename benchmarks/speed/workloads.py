"""What is trained: models, clients and random data of the right shapes. Speed needs no real images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import Training
from coterie.data.world import ClientData, Split, World, whole
from coterie.models import nets


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One round of federated averaging: ``asked`` of ``clients`` clients with ``examples`` examples each.

    shape: of one input. hidden: width of the one hidden layer, in place of ``model``. lr: low,
    since labels are random and a model that runs into infinity would be measured for nothing. turn:
    rounds in a row that are measured as one. for_gpu: a full round takes minutes on a CPU.
    """

    key: str
    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    asked: int
    examples: int
    batch: int
    epochs: int = 1
    lr: float = 0.01
    hidden: int = 0
    turn: int = 1
    for_gpu: bool = False

    @property
    def tokens(self) -> bool:
        return nets.takes_tokens(self.model)

    @property
    def fraction(self) -> float:
        return self.asked / self.clients

    def module(self) -> nn.Module:
        """A fresh model."""
        if self.hidden:
            return nets.dense(self.shape, self.classes, (self.hidden,))
        return nets.make(self.model, self.shape, self.classes)

    def description(self) -> dict[str, Any]:
        """For the results: the setting, and the number of parameters d."""
        with torch.device("meta"):
            d = sum(p.numel() for p in self.module().parameters())
        names = ("key", "title", "model", "clients", "asked", "examples", "batch", "epochs", "turn")
        return {**{name: getattr(self, name) for name in names}, "parameters": d}


_MNIST = {"shape": (1, 28, 28), "classes": 10}
_FULL = (
    Workload(
        key="a",
        title="FL+HC's CNN, 10 of 100 clients, 600 images, batch 10, 3 epochs",
        model="flhc-cnn",
        **_MNIST,
        clients=100,
        asked=10,
        examples=600,
        batch=10,
        epochs=3,
    ),
    Workload(
        key="b",
        title="ACFL's CNN, 10 of 100 clients, 600 images of 3 x 32 x 32, batch 32",
        model="acfl-cnn",
        shape=(3, 32, 32),
        classes=10,
        clients=100,
        asked=10,
        examples=600,
        batch=32,
    ),
    Workload(
        key="c100",
        title="MLP 784-64-10, 100 clients, 120 images, batch 64",
        model="mlp",
        **_MNIST,
        clients=100,
        asked=100,
        examples=120,
        batch=64,
        turn=5,
    ),
    Workload(
        key="c1000",
        title="MLP 784-64-10, 1,000 clients, 120 images, batch 64",
        model="mlp",
        **_MNIST,
        clients=1000,
        asked=1000,
        examples=120,
        batch=64,
    ),
    Workload(
        key="d",
        title="CFL's LSTM, 10 clients, 200 sequences of 30 tokens, 10,000 words, batch 100",
        model="cfl-lstm",
        shape=(30,),
        classes=10_000,
        clients=10,
        asked=10,
        examples=200,
        batch=100,
    ),
    Workload(
        key="h-lr",
        title="LR-MNIST of FedML and FLUTE: logistic regression 784-10, 10 of 1,000 clients, 60 images, batch 10",
        model="linear",
        **_MNIST,
        clients=1000,
        asked=10,
        examples=60,
        batch=10,
        turn=10,
    ),
    Workload(
        key="h-cifar",
        title="CIFAR-10 of pfl-research: 50 of 1,000 clients, 50 images, batch 10, with ACFL's CNN",
        model="acfl-cnn",
        shape=(3, 32, 32),
        classes=10,
        clients=1000,
        asked=50,
        examples=50,
        batch=10,
    ),
    Workload(
        key="h-emnist",
        title="EMNIST of FedJAX: 10 of 3,400 clients, 200 images of 62 classes, batch 20, with FL+HC's CNN",
        model="flhc-cnn",
        shape=(1, 28, 28),
        classes=62,
        clients=3400,
        asked=10,
        examples=200,
        batch=20,
    ),
    Workload(
        key="h-resnet",
        title="ResNet-20 with GroupNorm, 10 of 100 clients, 500 images of 3 x 32 x 32, batch 32",
        model="resnet20-gn",
        shape=(3, 32, 32),
        classes=10,
        clients=100,
        asked=10,
        examples=500,
        batch=32,
        for_gpu=True,
    ),
)

_SMALL = {
    "a": {"asked": 2, "clients": 20, "examples": 10, "epochs": 1},
    "b": {"asked": 2, "clients": 20, "examples": 16, "batch": 8},
    "c100": {"asked": 10, "clients": 10, "examples": 8, "batch": 4},
    "c1000": {"asked": 20, "clients": 20, "examples": 8, "batch": 4},
    "d": {"asked": 2, "clients": 2, "examples": 4, "batch": 2, "shape": (5,), "classes": 50},
    "h-lr": {"asked": 2, "clients": 20, "examples": 10},
    "h-cifar": {"asked": 2, "clients": 20, "examples": 8, "batch": 4},
    "h-emnist": {"asked": 2, "clients": 20, "examples": 8, "batch": 4},
    "h-resnet": {"asked": 2, "clients": 4, "examples": 4, "batch": 2},
}


def workloads(scale: str) -> tuple[Workload, ...]:
    """Those of the parts a to d and h; ``small`` ones take seconds in all, and their titles say so."""
    if scale == "full":
        return _FULL
    return tuple(
        replace(one, title=f"{one.title} (much smaller here)", **_SMALL[one.key]) for one in _FULL
    )


@cache
def _pool(work: Workload) -> tuple[Tensor, Tensor]:
    """Inputs and targets for two rounds' clients; more clients share them, which speed does not notice."""
    gen = torch.Generator().manual_seed(0)
    count = work.examples * min(work.clients, 2 * work.asked)
    if work.tokens:
        words = torch.randint(0, work.classes, (count, *work.shape), generator=gen)
        return words, torch.randint(0, work.classes, words.shape, generator=gen)
    return torch.randn(count, *work.shape, generator=gen), torch.randint(
        0, work.classes, (count,), generator=gen
    )


def _part(work: Workload, client: int) -> slice:
    start = client * work.examples % len(_pool(work)[0])
    return slice(start, start + work.examples)


def examples(work: Workload, client: int) -> tuple[Tensor, Tensor]:
    """One client's inputs and targets, views of what this process keeps in memory."""
    x, y = _pool(work)
    part = _part(work, client)
    return x[part], y[part]


def world(work: Workload) -> World:
    """The same clients and data for Coterie; a single example to test on, and no round is tested."""
    x, y = _pool(work)
    rows = torch.arange(len(x))
    test = whole(x[:1], y[:1])
    none = whole(x[:0], y[:0])
    clients = {}
    for client in range(work.clients):
        part = _part(work, client)
        clients[client] = ClientData(
            train=Split(x, rows[part], y[part]), validation=none, test=test
        )
    return World(
        clients=clients,
        model=work.module,
        training=Training(lr=work.lr, batch=work.batch, epochs=work.epochs),
    )
