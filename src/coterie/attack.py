"""Clients that mean harm: what they do to their data or to what they send."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.randomness import Purpose, generator
from coterie.settings import check, setting

ATTACKS = ("label-flip", "sign-flip", "scale", "random")

USUAL = {"label-flip": 1.0, "sign-flip": 1.0, "scale": 10.0, "random": 1.0}
"""The scale of each attack where none is given: that of an honest update, but for the one that is about scale."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an adversary does. label-flip is done to its data before the first round; the others to each of its updates Δ.

    sign-flip sends ``-scale Δ``, scale sends ``scale Δ``, and random sends Gaussian noise of norm ``scale ‖Δ‖``.
    """

    kind: str = setting("sign-flip", "what the adversary does", choices=ATTACKS)
    scale: float = setting(1.0, "factor on the update it would have sent", gt=0, lt=1e9)

    def __post_init__(self) -> None:
        check(self)

    def tampered(self, row: Tensor, sent: Tensor, seed: int, exchange: int, client: int) -> Tensor:
        """What is sent in place of an update (or gradient) ``row`` ``(d,)``.

        sent: mask ``(d,)`` of the parameters that travel. The others, layers that stay at the client and running statistics,
        are as they were: no server could go on with a negative variance.
        """
        if self.kind == "label-flip":
            return row
        if self.kind == "random":
            noise = torch.randn(len(row), generator=generator(seed, Purpose.ATTACK, exchange, client))
            length = noise[sent].norm()
            wrong = noise * (row[sent].norm() / length if length else 0.0)
        else:
            wrong = -row if self.kind == "sign-flip" else row
        return torch.where(sent, self.scale * wrong, row)


def flipped(targets: Tensor, classes: int) -> Tensor:
    """Labels ``(s,)`` read backwards.

    >>> flipped(torch.tensor([0, 1, 9]), 10)
    tensor([9, 8, 0])
    """
    return classes - 1 - targets
