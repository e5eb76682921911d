"""What a run computes with: processes, blocks of clients, a device, a precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from coterie.engines.workers import default_workers
from coterie.local.precision import PRECISIONS
from coterie.randomness import seeded
from coterie.settings import SettingError
from coterie.world import World, cross_entropy

BLOCK_BYTES = 1 << 21
"""Of the models in a block on a CPU: they should fit a core's cache together with their gradients and examples."""

WIDEST = 16
"""Clients in a block on a CPU; in wider ones the workers share the work less evenly, and little is gained."""

WIDEST_ON_A_GPU = 64
STEP = 40e6
"""Operations of a step on a CPU above which it pays a client alone: calling torch is then a small part of its time."""

_ONE_BY_ONE = (nn.Sequential, nn.Flatten, nn.Linear, nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU)
"""Modules known to be fast in blocks on a CPU, and to treat every example alone."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """workers: processes that train, None for one per core; width: clients trained in one block, None for what suits the
    model and the device; device: a torch device; precision: ``"fp32"`` or ``"bf16"``.

    The number of workers changes no bit of a result. The width and the device change rounding, bf16 a little more.
    Raises :class:`~coterie.settings.SettingError`.
    """

    workers: int | None = None
    width: int | None = None
    device: str = "cpu"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("workers", "width"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SettingError(f"{name} must be a whole number >= 1, got {value!r}")
        if self.precision not in PRECISIONS:
            raise SettingError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self._kind() not in ("cpu", "cuda"):
            raise SettingError(f"device must be cpu or cuda, got {self.device!r}")
        if self._kind() != "cpu" and (self.workers or 1) > 1:
            raise SettingError(f"workers must be 1 with device {self.device}, got {self.workers} (width is for blocks)")

    def _kind(self) -> str:
        try:
            return torch.device(self.device).type
        except (RuntimeError, TypeError):
            raise SettingError(f"device must be cpu, cuda, cuda:1 or the like, got {self.device!r}") from None

    def check(self, world: World) -> None:
        """Raises :class:`~coterie.settings.SettingError` if this machine has no such device or the model is not for it."""
        if self._kind() == "cuda" and not torch.cuda.is_available():
            raise SettingError(f"device {self.device!r} cannot be used: this PyTorch finds no CUDA GPU; cpu always works")
        count = torch.cuda.device_count()
        if self._kind() == "cuda" and (torch.device(self.device).index or 0) >= count:
            raise SettingError(f"device {self.device!r} cannot be used: the last GPU here is cuda:{count - 1}")
        with seeded(0):
            self.block(world.model(), world)

    def processes(self, clients: int) -> int:
        """Worker processes for so many clients."""
        return 1 if self._kind() != "cpu" else min(self.workers or default_workers(), clients)

    def block(self, module: nn.Module, world: World) -> int:
        """Clients in a block: ``width``, or what suits; 1 trains each alone. Never depends on the number of workers."""
        obstacle = next((why for part in module.modules() for why in _obstacles(part)), None)
        if self.width is not None:
            if self.width > 1 and obstacle:
                raise SettingError(f"width must be 1 for a model with {obstacle}, got {self.width}")
            return self.width
        if obstacle or world.objective.loss is not cross_entropy:
            return 1
        if self._kind() != "cpu":
            return WIDEST_ON_A_GPU
        parameters = sum(p.numel() for p in module.parameters())
        if not all(type(part) in _ONE_BY_ONE for part in module.modules()) or _work(parameters, world) > STEP:
            return 1
        return max(1, min(WIDEST, BLOCK_BYTES // (4 * parameters)))


def _obstacles(part: nn.Module) -> Iterator[str]:
    """Why a module with this part cannot be computed for several models at once."""
    if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
        yield "dropout, whose draws are a client's own"
    if isinstance(part, nn.RNNBase):
        yield "recurrent layers, which torch cannot compute for several models at once"
    owned = [buffer for buffer in part._buffers.values() if buffer is not None and buffer.is_floating_point()]
    if owned and not isinstance(part, nn.modules.batchnorm._BatchNorm):
        yield f"buffers in {type(part).__name__}, which may change as it is trained"


def _work(parameters: int, world: World) -> float:
    """Operations of one step of a dense net, of the client with most examples: two per weight and example, three times."""
    most = max(len(data.train) for data in world.clients.values())
    return 6.0 * parameters * (min(world.training.batch, most) or most)
