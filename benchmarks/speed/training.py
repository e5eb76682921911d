"""Parts a to d, with h: a round of federated averaging by Coterie and by what users would pick instead."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol

from . import flops, flower, pfl_research
from .clock import interleaved, spread
from .machine import Gemm, cores, precisions
from .ours import Coterie
from .plain import PlainLoop
from .workloads import Workload


class Contestant(Protocol):
    """Something that carries out one round after the other."""

    def seconds(self) -> float: ...

    def close(self) -> None: ...


def _on_cpu(work: Workload, workers: int, rounds: int) -> dict[str, Contestant]:
    """Everyone with all cores: processes of one thread, or one process with as many threads."""
    found: dict[str, Contestant] = {
        **{
            f"Coterie {which}": Coterie(work, workers=workers, precision=which)
            for which in precisions("cpu")
        },
        "plain loop": PlainLoop(work, threads=workers, dataloader=True),
        "plain loop, no DataLoader": PlainLoop(work, threads=workers, dataloader=False),
    }
    if work.model == "mlp":  # so small a net gains from blocks, and not from threads
        found["Coterie fp32, client by client"] = Coterie(
            work, workers=workers, precision="fp32", width=1
        )
        if workers > 1:
            found["plain loop, no DataLoader, 1 thread"] = PlainLoop(
                work, threads=1, dataloader=False
            )
    if flower.installed():
        found["Flower simulation"] = flower.Flower(work, workers, rounds)
    if pfl_research.installed():
        found["pfl-research"] = pfl_research.Research(work, threads=workers)
        found["pfl-research, 1 thread"] = pfl_research.Research(work, threads=1)
    return found


def _on_gpu(work: Workload) -> dict[str, Contestant]:
    """Blocks of clients against one client after the other, and against others' simulators where they are installed."""
    found: dict[str, Contestant] = {
        "Coterie fp32": Coterie(work, device="cuda", precision="fp32"),
        "Coterie bf16": Coterie(work, device="cuda", precision="bf16"),
        "Coterie fp32, client by client": Coterie(work, device="cuda", precision="fp32", width=1),
        "plain loop": PlainLoop(work, threads=1, dataloader=True, device="cuda"),
        "plain loop, no DataLoader": PlainLoop(work, threads=1, dataloader=False, device="cuda"),
    }
    if pfl_research.installed():
        found["pfl-research"] = pfl_research.Research(work, threads=1, device="cuda")
    return found


def measure(
    work: Workload, *, device: str = "cpu", repetitions: int = 3, gemm_size: int = 2048
) -> dict[str, Any]:
    """One workload's row: seconds of whole rounds, Coterie's of training alone, and FLOP/s of matrix products.

    All take turns, the products too. The first round of each is kept apart.
    """
    workers = cores()
    with ExitStack() as open_ones:
        everyone = (
            _on_gpu(work)
            if device == "cuda"
            else _on_cpu(work, workers, 1 + repetitions * work.turn)
        )
        gemm = Gemm(workers, size=gemm_size, seconds=gemm_size / 4096, device=device)
        for one in (*everyone.values(), gemm):
            open_ones.callback(one.close)
        turns = {name: one.seconds for name, one in everyone.items()}
        turns |= {
            f"gemm {precision}": lambda precision=precision: gemm.rate(precision)
            for precision in precisions(device)
        }
        found = interleaved(turns, repetitions, work.turn)
    ours = {name: one.train[1:] for name, one in everyone.items() if isinstance(one, Coterie)}
    return {
        "workload": work.description(),
        "workers": workers,
        "flops": flops.of_a_round(work),
        "seconds": {name: found[name] for name in everyone},
        "train_seconds": {name: spread(seconds) for name, seconds in ours.items()},
        "gemm": {precision: found[f"gemm {precision}"] for precision in precisions(device)},
        "left_out": [] if device == "cuda" or flower.installed() else [flower.ABSENT],
    }
