"""Adversaries: attacks of clients on their data or their updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.core import Client
from coterie.data.parts import ScenarioPart
from coterie.randomness import Purpose, generator, numpy_generator
from coterie.settings import SettingError, check, setting
from coterie.settings.calls import public

DEFAULT_SCALE: Mapping[str, float] = {
    "label-flip": 1.0,
    "sign-flip": 1.0,
    "scale": 10.0,
    "random": 1.0,
    "huge": 1e17,
    "examples": 1e6,
    "little-is-enough": 1.5,
    "inner-product": 1.0,
}
"""Attack -> its default scale."""

ATTACKS = tuple(DEFAULT_SCALE)
COLLUDING = ("little-is-enough", "inner-product")
"""Attacks of clients that know the updates of other clients."""


@public
@dataclass(frozen=True, kw_only=True)
class Attack:
    """The attack of an adversary.

    label-flip changes the client's data before the first round; the others change each of its
    updates Δ:

    - sign-flip sends ``-scale Δ``, scale sends ``scale Δ``, and random sends Gaussian noise of norm
      ``scale ‖Δ‖``.
    - huge sends ``scale`` or ``-scale`` in every entry, at random.
    - examples sends ``-Δ`` and reports ``scale`` times the number of its examples.
    - little-is-enough sends ``μ - scale σ``, where μ and σ are mean and standard deviation of each
      entry over the honest updates (G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough",
      NeurIPS 2019, arXiv 1902.06156, algorithm 3, with their experiments' z of 1.5).
    - inner-product sends ``-scale μ`` (C. Xie, O. Koyejo, I. Gupta, "Fall of Empires", UAI 2019,
      arXiv 1903.03936, section 4).

    Attributes:
        kind: The attack, one of ``ATTACKS``.
        scale: Scale of the attack, as above; label-flip does not use it.
    """

    kind: str = setting("sign-flip", "what the adversary does", choices=ATTACKS)
    scale: float = setting(
        1.0, "factor on the update that it would send without the attack", gt=0, lt=1e18
    )

    def __post_init__(self) -> None:
        check(self)

    def tampered(
        self,
        honest_row: torch.Tensor,
        sent_columns: torch.Tensor,
        seed: int,
        exchange: int,
        client: int,
    ) -> torch.Tensor:
        """Return the row that the client sends in place of an update (or gradient).

        Entries that are not sent, of layers that stay at the client and of running statistics, do
        not change: no server could continue with a negative variance.

        Args:
            honest_row: The honest update ``(d,)``.
            sent_columns: Mask ``(d,)`` of the parameters that are sent.
            seed: The run's seed.
            exchange: Number of the exchange.
            client: The client.

        Returns:
            The row ``(d,)``; for label-flip and colluding attacks, the honest update.
        """
        if self.kind == "label-flip" or self.colluding:
            return honest_row
        # The draws depend on the client and the exchange only, and so are the same in every engine.
        attack_rng = generator(seed, Purpose.ATTACK, exchange, client)
        match self.kind:
            case "huge":
                uniform = torch.rand(len(honest_row), generator=attack_rng)
                # Each entry is the scale, with a random sign.
                tampered_row = self.scale * (uniform - 0.5).sign()
            case "random":
                # Noise of the honest update's norm.
                noise = torch.randn(len(honest_row), generator=attack_rng)
                noise_norm = noise[sent_columns].norm()
                honest_norm = honest_row[sent_columns].norm()
                tampered_row = self.scale * (
                    noise * (honest_norm / noise_norm if noise_norm else 0.0)
                )
            case "examples":
                # The opposite of its update, for which it then claims many examples.
                tampered_row = -honest_row
            case "sign-flip":
                tampered_row = self.scale * -honest_row
            case _:
                tampered_row = self.scale * honest_row
        # What is not sent stays as it was.
        return torch.where(sent_columns, tampered_row, honest_row)

    @property
    def colluding(self) -> bool:
        """Whether the attack uses the updates of other clients."""
        return self.kind in COLLUDING

    def claimed(self, examples: int) -> int:
        """The number of examples that the client reports."""
        return max(1, int(self.scale * examples)) if self.kind == "examples" else examples

    def fabricated(self, honest_updates: torch.Tensor) -> torch.Tensor:
        """The update ``(d,)`` of a colluding adversary, from the updates ``(m, d)`` of honest clients, m >= 1."""
        # Both attacks start from the mean of the honest updates.
        mean = honest_updates.mean(0)
        # A shift by some deviations, which is small enough to look honest.
        if self.kind == "little-is-enough":
            return mean - self.scale * honest_updates.std(0, correction=0)
        return -self.scale * mean


def flipped(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the labels ``(s,)`` in reverse order of the classes.

    Example:
        >>> flipped(torch.tensor([0, 1, 9]), 10)
        tensor([9, 8, 0])
    """
    return classes - 1 - targets


@dataclass(frozen=True, kw_only=True)
class AdversarySettings(ScenarioPart):
    """Which share of a scenario's clients is hostile, and what it does."""

    part: ClassVar[str] = "adversaries"
    main: ClassVar[str] = "fraction"

    fraction: float = setting(
        0.0, "fraction of clients that are hostile, at least one client; 0: none", ge=0, lt=1
    )
    attack: str = setting(
        "none",
        "what hostile clients do, to their labels or to their updates",
        choices=("none", *ATTACKS),
        not_with={"fraction": (0.0,)},
    )
    attack_scale: float | None = setting(
        None,
        "scale of the attack; none: the attack's default",
        gt=0,
        lt=1e18,
        not_with={"attack": ("none", "label-flip"), "fraction": (0.0,)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction and self.attack == "none":
            raise SettingError(
                f"Scenario.adversaries {self.fraction:g} needs Scenario.attack, one of "
                f"{', '.join(ATTACKS)}, got none"
            )

    def draw(self, clients: Collection[Client], seed: int) -> dict[Client, Attack]:
        """Draw the adversaries.

        Args:
            clients: All clients.
            seed: Seed of the draw.

        Returns:
            Adversary -> its attack; empty if there are none.

        Raises:
            SettingError: No client would be honest.
        """
        if not self.fraction:
            return {}
        # The fraction as a number, at least one.
        adversary_count = max(round(self.fraction * len(clients)), 1)
        if adversary_count == len(clients):
            raise SettingError(
                f"Scenario.adversaries must leave at least one of the {len(clients)} clients "
                f"honest, got {self.fraction:g}"
            )
        # Draw who is hostile; all have the same attack.
        adversary_rng = numpy_generator(seed, Purpose.ADVERSARY)
        adversaries = adversary_rng.choice(sorted(clients), size=adversary_count, replace=False)
        default_scale = DEFAULT_SCALE[self.attack]
        scale = default_scale if self.attack_scale is None else self.attack_scale
        attack = Attack(kind=self.attack, scale=scale)
        return dict.fromkeys(sorted(map(int, adversaries)), attack)
