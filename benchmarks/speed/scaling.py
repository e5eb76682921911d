"""Part g: how a round's time grows with workers, clients and parameters. Coterie alone, the same training throughout."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from .clock import interleaved
from .machine import cores
from .ours import Coterie
from .workloads import Workload, workloads

_COUNTS = {"small": (2, 4), "full": (10, 30, 100, 300, 1000)}
_HIDDEN = {"small": (2, 4), "full": (16, 64, 256, 1024, 4096)}


def measure(scale: str, *, repetitions: int = 3) -> dict[str, Any]:
    """Series by name; each has what it varies, what it keeps, and seconds of a round for every value."""
    cnn, _, mlp, *_ = workloads(scale)
    cnn = replace(cnn, epochs=1)
    return {
        "workers": {
            "title": f"FL+HC's CNN, {cnn.asked} clients, {cnn.examples} images, batch {cnn.batch}, 1 epoch",
            "seconds": _series({str(w): (cnn, w) for w in _up_to(cores())}, repetitions),
        },
        "clients": {
            "title": f"MLP 784-64-10, {mlp.examples} images, batch {mlp.batch}",
            "seconds": _series(
                {str(n): (replace(mlp, clients=n, asked=n), None) for n in _COUNTS[scale]},
                repetitions,
            ),
        },
        "parameters": {
            "title": f"MLPs of one hidden layer, {mlp.clients} clients, {mlp.examples} images, batch {mlp.batch}",
            "seconds": _series(
                {str(_d(one)): (one, None) for one in _wider(mlp, scale)}, repetitions
            ),
        },
    }


def _up_to(most: int) -> list[int]:
    """1, 2, 4, ... and the last."""
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def _wider(mlp: Workload, scale: str) -> list[Workload]:
    return [replace(mlp, hidden=hidden) for hidden in _HIDDEN[scale]]


def _d(work: Workload) -> int:
    return int(work.description()["parameters"])


def _series(values: Mapping[str, tuple[Workload, int | None]], repetitions: int) -> dict[str, Any]:
    with ExitStack() as open_ones:
        running = {name: Coterie(work, workers=workers) for name, (work, workers) in values.items()}
        for one in running.values():
            open_ones.callback(one.close)
        calls = next(iter(values.values()))[0].turn
        return interleaved({name: one.seconds for name, one in running.items()}, repetitions, calls)
