"""The boundary of one run: what a client does to a row as it enters or leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.boundary.compress import NUMBER, check_packed, pack, packed_bytes, unpack
from coterie.boundary.maps import drawn
from coterie.boundary.rules import WHOLE_ROW, Boundary
from coterie.core import Client, Federation, Plan, Task
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, numpy_generator, seeded

OTHERS = "others"
"""Name of the array with a row's entries behind the parameters, beside a compressed update."""


@dataclass(frozen=True, kw_only=True)
class Veiled(Federation):
    """A federation whose rows are mapped as a whole: layers have names, and no places.

    trainable: the number of parameters, which still come first. Asking for a layer's columns raises ``SettingError``.
    """

    trainable: int

    @property
    def parameters(self) -> slice:
        return slice(0, self.trainable)


class Veil(Mapping[str, tuple[int, int]]):
    """Names of layers whose places nobody may ask for; ``boundary`` tells why."""

    def __init__(self, names: Iterable[str], boundary: Boundary) -> None:
        self.names, self.boundary = tuple(names), boundary

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> tuple[int, int]:
        raise self.boundary.hidden("a method looks at single layers")


@dataclass(frozen=True)
class Wire:
    """A boundary with its map drawn, for models of ``layout``. A *sealed* row is one in the server's coordinates.

    seed: the run's. Raises :class:`~coterie.settings.SettingError` if the model and the boundary do not go together.
    """

    boundary: Boundary
    layout: Layout
    seed: int
    seal: Callable[[Tensor], Tensor] = field(init=False, repr=False)
    open: Callable[[Tensor], Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.boundary.check_layout(self.layout)
        secret = self.seed if self.boundary.secret is None else self.boundary.secret
        drawing = drawn(self.boundary.rotation, self.layout, self.boundary.block, secret, Purpose.BOUNDARY)
        object.__setattr__(self, "seal", drawing.seal)
        object.__setattr__(self, "open", drawing.open)

    def first_model(self, i: int, model: Callable[[], nn.Module]) -> Tensor:
        """The i-th fresh model ``(d,)``; with a secret, who knows the seed alone cannot draw it.

        An initialiser draws by PyTorch's generator, whose seeds are of 32 bits, and can be tried one by one. So each drawn
        tensor is mixed half and half, in variance, with Gaussian numbers of its own scale, drawn by all of the secret.
        """
        secret, layout = self.boundary.secret, self.layout
        with seeded(*((self.seed, Purpose.INIT, i) if secret is None else (secret, Purpose.INIT, self.seed, i))):
            row = layout.row(model())
        if secret is None:
            return row
        rng = numpy_generator(secret, Purpose.INIT, self.seed, i, 1)
        for start, stop in layout.tensors.values():
            drawn = row[start:stop]
            scale = drawn.std(correction=0)
            more = torch.from_numpy(rng.standard_normal(stop - start, dtype=np.float32))
            row[start:stop] = drawn.mean() + (drawn - drawn.mean() + scale * more) / 2**0.5 if scale > 0 else drawn
        return row

    def veil(self, federation: Federation, sealed: bool = False) -> Federation:
        """What a method may be told: fresh models sealed, and no places of layers where the map has moved them.

        sealed: ``federation`` draws sealed models.
        """
        told: dict[str, Any] = {f.name: getattr(federation, f.name) for f in fields(federation)}
        if not sealed:
            told["draw"] = lambda i: self.seal(federation.draw(i))
        if self.boundary.rotation not in WHOLE_ROW:
            return Federation(**told)
        told |= {name: Veil(told[name], self.boundary) for name in ("columns", "tensors")}
        return Veiled(**told, trainable=self.layout.trainable)

    # -- an update on its way out -----------------------------------------------------------------------------------------

    def send(self, update: Tensor, client: Client, exchange: int, keep: Tensor | None = None, half: int = 0) -> Tensor:
        """A client's update ``(d,)`` as it arrives: :meth:`protected`, compressed and unpacked again.

        keep: mask of the columns that stay at the client; there the result is the update itself, sealed. half: 1 of the
        second of two updates, which has noise of its own.
        """
        out = self.protected(update, client, exchange, keep, half)
        if self.boundary.compress != "none":
            out = self.unpack(self.pack(out, client, exchange, half, keep), keep)
        return out if keep is None else torch.where(keep, self.seal(update), out)

    def protected(
        self, update: Tensor, client: Client, exchange: int, keep: Tensor | None = None, half: int = 0,
        seed: int | None = None,
    ) -> Tensor:  # fmt: skip
        """An update ``(d,)`` clipped, noised and sealed; zero in the columns that stay at the client.

        seed: of the noise, where the server knows the run's and could take the noise off again. Clipping and noise
        are of the parameters; buffers travel as they are. With noise, an update that is not finite counts as zero, since a
        refusal would tell of the data.
        """
        if self.boundary.noise and not torch.isfinite(update.dot(update)):
            update = torch.zeros_like(update)
        out = update if keep is None else update.masked_fill(keep, 0.0)
        if self.boundary.clip is not None:
            out = self._clipped(out)
        if self.boundary.noise:
            key = self.seed if seed is None else seed, Purpose.NOISE, exchange, client
            out = self._noised(out, keep, numpy_generator(*key, *((2,) if half else ())))
        return self.seal(out)

    def _clipped(self, update: Tensor) -> Tensor:
        limit, parameters = self.boundary.clip, self.layout.trainable
        assert limit is not None
        norm = float(update[:parameters].double().norm())
        if not norm > limit:
            return update
        scaled = update.clone()
        scaled[:parameters] *= limit / norm * (1 - 1e-6)  # rounding cannot lift it above the limit
        return scaled

    def _noised(self, update: Tensor, keep: Tensor | None, rng: np.random.Generator) -> Tensor:
        """With noise on the parameters, and nothing of what is behind them: frozen ones do not change."""
        assert self.boundary.clip is not None
        parameters, out = self.layout.trainable, torch.zeros_like(update)
        noise = torch.from_numpy(rng.standard_normal(parameters, dtype=np.float32))
        out[:parameters] = update[:parameters] + self.boundary.noise * self.boundary.clip * noise
        return out if keep is None else out.masked_fill(keep, 0.0)

    def pack(self, sealed: Tensor, client: Client, exchange: int, half: int, keep: Tensor | None = None) -> dict[str, Tensor]:
        """A sealed update as the arrays that travel: its parameters compressed, and what is behind them as it is."""
        there, behind = self._travelling(keep)
        gen = generator(self.seed, Purpose.NOISE, exchange, client, 3 if half else 1)
        packed = pack(sealed[there], self.boundary.compress, self.boundary.share, gen) if len(there) else {}
        return {**packed, OTHERS: sealed[behind]}

    def unpack(self, sent: Mapping[str, Tensor], keep: Tensor | None = None) -> Tensor:
        """The sealed update ``(d,)`` of what :meth:`pack` made; zero in the columns that stay. Raises ``ValueError`` where
        the arrays are of another kind."""
        there, behind = self._travelling(keep)
        packed = {name: values for name, values in sent.items() if name != OTHERS}
        if OTHERS not in sent or sent[OTHERS].shape != behind.shape:
            raise ValueError(f"its {OTHERS} are not the {len(behind)} entries behind the parameters")
        row = torch.zeros(self.layout.size)
        if len(there):
            check_packed(packed, self.boundary.compress, len(there), self.boundary.share)
            row[there] = unpack(packed, self.boundary.compress, len(there))
        row[behind] = sent[OTHERS].float()
        return row

    def unclipped(self, sealed: Tensor, task: Task) -> str | None:
        """Why an update that arrived in ``task`` was not clipped, or has more noise than the boundary has; None if it was.

        A map keeps the norm of the parameters; topk leaves entries out, and sign's scale, their mean magnitude, makes no
        norm larger. 8bit moves an entry by half a step at most, and a step is 1/127 of the largest. The norm of noise on p
        entries is above z C (√p + 8) once in 8e13 updates: it is 1-Lipschitz, so P(> mean + t) <= exp(-t²/2), t = 8.
        """
        clip, noise = self.boundary.clip, self.boundary.noise
        if clip is None:
            return None
        sizes = sealed[: self.layout.trainable].double().abs()
        if self.boundary.compress == "8bit":
            sizes = (sizes - sizes.max() / 254).clamp(min=0)
        norm, most = float(sizes.norm()), clip * (1 + noise * (math.sqrt(self.columns(task)[0]) + 8))
        if norm <= most * (1 + 1e-4):  # single precision, and a margin
            return None
        said = f"clip {clip:g} and noise {noise:g}" if noise else f"clip {clip:g}"
        return f"its update has norm {norm:.4g}, and under the boundary's {said} none is above {most:.4g}"

    def _travelling(self, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """The columns that do not stay at the client: those of parameters, and those behind them."""
        at = torch.arange(self.layout.size)
        at = at if keep is None else at[~keep]
        return at[at < self.layout.trainable], at[at >= self.layout.trainable]

    # -- what it costs --------------------------------------------------------------------------------------------------

    def columns(self, task: Task) -> tuple[int, int]:
        """(parameters, other entries) of a row that travel in ``task``."""
        if not task.keep:
            return self.layout.trainable, self.layout.size - self.layout.trainable
        stay = self.layout.mask(task.keep)
        parameters = self.layout.trainable - int(stay[: self.layout.trainable].sum())
        return parameters, self.layout.size - int(stay.sum()) - parameters

    def bytes_of(self, parameters: int, others: int) -> int:
        """Bytes of an update with so many entries as it is sent."""
        return packed_bytes(self.boundary.compress, parameters, self.boundary.share) + others * NUMBER

    @property
    def counts(self) -> bool:
        """Whether a client tells how many examples it has; with noise it does not."""
        return not self.boundary.noise

    def examples(self, count: int) -> int:
        """A client's number of examples as the server knows it: with noise everybody counts as one."""
        return count if self.counts else 1

    def check(self, plan: Plan, name: str) -> None:
        """Raises :class:`~coterie.settings.SettingError` if a plan of method ``name`` does not go with the boundary."""
        self.boundary.check_plan(plan, self.layout, name)

    def releases(self, task: Task) -> int:
        """How many updates that noise must cover a client sends that does ``task``."""
        sends = bool(self.boundary.noise) and task.trains and bool(self.columns(task)[0])
        return sends * (2 if task.halves else 1)
