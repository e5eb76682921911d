"""Hostile clients: what they do to their data or to what they send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.randomness import Purpose, generator
from coterie.settings import check, setting

USUAL: Mapping[str, float] = {
    "label-flip": 1.0, "sign-flip": 1.0, "scale": 10.0, "random": 1.0, "huge": 1e17, "examples": 1e6,
    "little-is-enough": 1.5, "inner-product": 1.0,
}  # fmt: skip
"""Attack -> its scale where none is given."""

ATTACKS = tuple(USUAL)
COLLUDING = ("little-is-enough", "inner-product")
"""Attacks by clients that know the updates of the others."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an adversary does. label-flip is done to its data before the first round; the others to each of its updates Δ.

    - sign-flip sends ``-scale Δ``, scale sends ``scale Δ``, and random sends Gaussian noise of norm ``scale ‖Δ‖``.
    - huge sends ``scale`` or ``-scale`` in every entry, at random.
    - examples sends ``-Δ`` and claims ``scale`` times the examples that it has.
    - little-is-enough sends ``μ - scale σ``, where μ and σ are mean and standard deviation of each entry over the honest
      updates (G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough", NeurIPS 2019, arXiv 1902.06156, algorithm 3, with
      their experiments' z of 1.5).
    - inner-product sends ``-scale μ`` (C. Xie, O. Koyejo, I. Gupta, "Fall of Empires", UAI 2019, arXiv 1903.03936, section 4).
    """

    kind: str = setting("sign-flip", "what the adversary does", choices=ATTACKS)
    scale: float = setting(1.0, "factor on the update it would have sent", gt=0, lt=1e18)

    def __post_init__(self) -> None:
        check(self)

    def tampered(self, row: Tensor, sent: Tensor, seed: int, exchange: int, client: int) -> Tensor:
        """What is sent in place of an update (or gradient) ``row`` ``(d,)``.

        sent: mask ``(d,)`` of the parameters that travel. The others, layers that stay at the client and running statistics,
        are as they were: no server could go on with a negative variance.
        """
        if self.kind == "label-flip" or self.colluding:
            return row
        if self.kind == "huge":
            coins = torch.rand(len(row), generator=generator(seed, Purpose.ATTACK, exchange, client))
            return torch.where(sent, self.scale * (coins - 0.5).sign(), row)
        if self.kind == "examples":
            return torch.where(sent, -row, row)
        if self.kind == "random":
            noise = torch.randn(len(row), generator=generator(seed, Purpose.ATTACK, exchange, client))
            length = noise[sent].norm()
            wrong = noise * (row[sent].norm() / length if length else 0.0)
        else:
            wrong = -row if self.kind == "sign-flip" else row
        return torch.where(sent, self.scale * wrong, row)

    @property
    def colluding(self) -> bool:
        """Whether it takes the updates of others to make what is sent."""
        return self.kind in COLLUDING

    def claimed(self, examples: int) -> int:
        """How many examples it says that it has."""
        return max(1, int(self.scale * examples)) if self.kind == "examples" else examples

    def fabricated(self, honest: Tensor) -> Tensor:
        """What a colluding adversary sends, ``(d,)``, given the updates ``(m, d)`` of honest clients, m >= 1."""
        mean = honest.mean(0)
        return mean - self.scale * honest.std(0, correction=0) if self.kind == "little-is-enough" else -self.scale * mean


def flipped(targets: Tensor, classes: int) -> Tensor:
    """Labels ``(s,)`` read backwards.

    >>> flipped(torch.tensor([0, 1, 9]), 10)
    tensor([9, 8, 0])
    """
    return classes - 1 - targets
