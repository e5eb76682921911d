"""What it was measured on: the machine, the versions, and how fast it multiplies matrices."""

from __future__ import annotations

import platform
import sys
import time
from importlib import metadata
from typing import Any

import torch

from coterie.engines.workers import Workers, default_workers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def cores() -> int:
    """Cores that this process may use."""
    return default_workers()


def _processor(field: str) -> str:
    """What Linux says of the first core; empty elsewhere."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith(field))
    except (OSError, StopIteration):
        return ""


def busy(seconds: float = 0.5) -> float:
    """Share of all cores' time that others took while this process slept; 0 where the system does not tell."""

    def ticks() -> tuple[int, int]:
        with open("/proc/stat") as file:
            user, nice, system, idle, wait, *others = map(int, file.readline().split()[1:])
        return user + nice + system + sum(others[:3]), idle + wait

    try:
        before = ticks()
        time.sleep(seconds)
        work, rest = (now - then for now, then in zip(ticks(), before, strict=True))
    except (OSError, ValueError):
        return 0.0
    return work / max(work + rest, 1)


def bf16() -> list[str]:
    """The processor's instructions for products in bf16."""
    flags = _processor("flags").split()
    return [
        name
        for name, flag in (("AMX", "amx_bf16"), ("AVX512_BF16", "avx512_bf16"))
        if flag in flags
    ]


def precisions(device: str) -> tuple[str, ...]:
    """Those that are measured: a processor without instructions for bf16 takes minutes for a product."""
    return tuple(DTYPES) if device != "cpu" or bf16() else ("fp32",)


def described(device: str) -> dict[str, Any]:
    """The machine as it is now; busy: with what is not ours, see :func:`busy`."""
    found = {
        "system": platform.system(),
        "processor": _processor("model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "bf16": bf16(),
        "busy": round(busy(), 2),
    }
    return {**found, "device": torch.cuda.get_device_name()} if device == "cuda" else found


def versions() -> dict[str, str]:
    """Of what takes part and is installed."""
    found = {"python": sys.version.split()[0]}
    for name in ("coterie", "torch", "numpy", "scipy", "flwr", "ray", "pfl"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name == "coterie":  # run from its sources
                found[name] = __import__("coterie").__version__
    return found


def _multiply(job: tuple[str, int, float, str]) -> float:
    """FLOP/s of products of square matrices, over about so many seconds."""
    precision, size, seconds, device = job
    a, b = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    out = torch.empty_like(a)
    done, wait = 0, torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.mm(a, b, out=out)
    wait()
    since = time.perf_counter()
    while (taken := time.perf_counter() - since) < seconds:
        torch.mm(a, b, out=out)
        wait()
        done += 1
    return done * 2 * size**3 / taken


class Gemm:
    """``rate(precision)``: FLOP/s of matrix products in as many processes of one thread as there are workers."""

    def __init__(
        self, workers: int, *, size: int = 2048, seconds: float = 1.0, device: str = "cpu"
    ) -> None:
        self.job = (size, seconds, device)
        self.workers = Workers(_multiply, workers if device == "cpu" else 1)

    def rate(self, precision: str) -> float:
        return sum(self.workers.run([(precision, *self.job)] * self.workers.count))

    def close(self) -> None:
        """End the processes."""
        self.workers.close()
