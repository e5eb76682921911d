"""How many floating-point operations a workload's training takes, counted once on tensors without values."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .workloads import Workload


def of_a_round(work: Workload) -> int:
    """Of all clients' local training in a round: products of matrices and convolutions, forwards and backwards."""
    count = 4
    shape = (count, *work.shape)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        module = work.module()
        x = torch.zeros(shape, dtype=torch.int64) if work.tokens else torch.zeros(shape)
        y = torch.zeros(shape if work.tokens else (count,), dtype=torch.int64)
        nn.functional.cross_entropy(module(x).flatten(0, -2), y.flatten()).backward()
    return counter.get_total_flops() // count * work.examples * work.epochs * work.asked
