"""The loop a researcher writes: one process, all cores as PyTorch's threads, one client after the other."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from .workloads import Workload, examples

Batches = Iterable[tuple[Tensor, Tensor]]


@cache
def loader(work: Workload, client: int) -> Batches:
    """A client's DataLoader, kept between rounds."""
    return DataLoader(TensorDataset(*examples(work, client)), batch_size=work.batch, shuffle=True)


def indexed(work: Workload, client: int, device: str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled mini-batches without a DataLoader, of data that lie on the device."""
    x, y = _resident(work, client, device)
    for rows in torch.randperm(len(x), device=device).split(work.batch):
        yield x[rows], y[rows]


@cache
def _resident(work: Workload, client: int, device: str) -> tuple[Tensor, Tensor]:
    x, y = examples(work, client)
    return x.to(device), y.to(device)


def train(model: nn.Module, epochs: Iterable[Batches], lr: float, device: str = "cpu") -> float:
    """Plain SGD in place; returns the last batch's loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for batches in epochs:
        for x, y in batches:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)).flatten(0, -2), y.to(device).flatten())
            loss.backward()
            optimizer.step()
    return loss.item()


def mean(states: Sequence[dict[str, Tensor]], sizes: Sequence[int]) -> dict[str, Tensor]:
    """FedAvg: the mean of the clients' models, weighted by their examples."""
    total = sum(sizes)
    return {
        name: sum(state[name] * (size / total) for state, size in zip(states, sizes, strict=True))
        for name in states[0]
    }


class PlainLoop:
    """``seconds()``: wall time of the next round. threads: PyTorch's, within an operation."""

    def __init__(
        self, work: Workload, *, threads: int, dataloader: bool, device: str = "cpu"
    ) -> None:
        self.work, self.threads, self.dataloader, self.device = work, threads, dataloader, device
        self.model, self.draw = work.module().to(device), random.Random(0)

    def _epochs(self, client: int) -> Iterator[Batches]:
        for _ in range(self.work.epochs):
            yield (
                loader(self.work, client)
                if self.dataloader
                else indexed(self.work, client, self.device)
            )

    def seconds(self) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return self._round()
        finally:
            torch.set_num_threads(before)

    def _round(self) -> float:
        since = time.perf_counter()
        states = []
        for client in self.draw.sample(range(self.work.clients), self.work.asked):
            model = copy.deepcopy(self.model)
            train(model, self._epochs(client), self.work.lr, self.device)
            states.append(model.state_dict())
        self.model.load_state_dict(mean(states, [self.work.examples] * len(states)))
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - since

    def close(self) -> None:
        """Nothing is open."""
