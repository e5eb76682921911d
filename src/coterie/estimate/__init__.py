"""What an experiment will take, before it begins: time, memory and disk, of each method.

The method's own plans are played through with made-up replies, which tells who trains how much and what is kept; a few real
steps of training tell how fast this machine does it. No file is written, and no random number of the run is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from coterie.engines import inprocess
from coterie.estimate.playing import Played, play
from coterie.estimate.probing import Costs, probe
from coterie.experiment import Experiment
from coterie.world import World

PATIENCE, LEAST = 0.8, 0.05
"""Seconds for playing, of all methods together, and of each at least."""

PROCESS = 280e6
WORKER = 40e6
"""Bytes that Python and PyTorch take in the first process, and in each worker for itself."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one method with one seed. seconds: of the clock. memory, disk: bytes. exchanges, asked (tasks sent), evaluations (of a
    model by a client): in all rounds."""

    method: str
    seconds: float
    memory: float
    disk: float
    exchanges: float
    asked: float
    evaluations: float


def estimate(experiment: Experiment, world: World | None = None, patience: float = PATIENCE) -> tuple[Estimate, ...]:
    """One estimate per method. world: that of the first seed, where it is at hand. patience: seconds to play for."""
    seed, hardware = experiment.seeds[0], experiment.hardware()
    world = world or experiment.world(seed)
    wire, _ = inprocess.meeting(experiment.methods[0], world, seed, experiment.boundary)
    costs, each = probe(world, wire, hardware), max(patience / len(experiment.methods), LEAST)
    workers = hardware.processes(len(world.clients))
    out = []
    for method in experiment.methods:
        played = play(
            method, world, seed, experiment.boundary, rounds=experiment.rounds, eval_every=experiment.eval_every,
            kept=experiment.checkpoints_kept, patience=each,
        )  # fmt: skip
        total = {name: played.total(name, experiment.rounds) for name in ("exchanges", "asked", "evaluations")}
        out.append(
            Estimate(
                method=method.name,
                seconds=seconds(played, costs, experiment.rounds, workers),
                memory=PROCESS + data_bytes(world) + rows_bytes(played) + 2 * played.state + workers * WORKER,
                disk=disk(played, experiment.rounds),
                **total,
            )
        )
    return tuple(out)


def seconds(played: Played, costs: Costs, rounds: int, workers: int) -> float:
    """Of a run: training and tests shared among the workers, the server's arithmetic in one process."""
    total = {name: played.total(name, rounds) for name in played.work[0].__dataclass_fields__}
    blocks = math.ceil(total["tasks"] / max(total["exchanges"], 1) / costs.width)
    together = max(1, min(workers, blocks))
    training = total["tasks"] * costs.task + total["passes"] * costs.trained + total["measured"] * costs.tried
    return training / together + total["tested"] * costs.tried / workers + total["products"] * costs.product + total["server"]


def rows_bytes(played: Played) -> float:
    """Bytes of the models and replies in shared memory, of the largest exchange."""
    return played.most("rows") * played.size * 4


def disk(played: Played, rounds: int) -> float:
    """Bytes of a run directory: records, matrices, the newest checkpoints."""
    return played.total("text", rounds) + played.total("matrices", rounds) + played.kept


def data_bytes(world: World) -> float:
    """Bytes of all clients' examples; what several share is counted once."""
    tensors: dict[int, Tensor] = {}
    for data in world.clients.values():
        for split in (data.train, data.validation, data.test):
            tensors |= {id(tensor): tensor for tensor in (split.inputs, split.index, split.targets)}
    return float(sum(tensor.nbytes for tensor in tensors.values()))


def together(estimates: Sequence[Estimate], seeds: int) -> Estimate:
    """All runs of an experiment, one after the other."""
    added = ("seconds", "disk", "exchanges", "asked", "evaluations")
    sums = {name: seeds * sum(getattr(one, name) for one in estimates) for name in added}
    return Estimate(method="all", memory=max(one.memory for one in estimates), **sums)
