"""The settings of DP-SGD: arguments of ``training.optimizer_options``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from coterie.core import Training
from coterie.settings import SettingError, build, check, setting
from coterie.settings.optimizers import arguments

OPTIMIZER_NAME = "dp-sgd"
"""The optimizer's name in ``training.optimizer``."""


@dataclass(frozen=True, kw_only=True)
class RecordPrivacy:
    """The settings of DP-SGD, with the symbols of Algorithm 1 of Abadi et al. (2016)."""

    clip: float = setting(
        1.0,
        "maximum L2 norm of the gradient of one example; larger ones are scaled down (C)",
        gt=0,
        lt=1e9,
    )
    noise: float = setting(
        1.0,
        "standard deviation of the noise on the sum of the gradients of a batch, in units of clip (σ)",
        ge=0,
        lt=1e6,
    )
    delta: float = setting(1e-5, "the δ at which ε is reported", gt=0, lt=1)
    sampling: str = setting(
        "poisson",
        "poisson: each example is in a batch with probability batch / examples, which lowers ε; "
        "shuffled: each example is in one batch of a pass, and ε does not depend on the batch",
        choices=("poisson", "shuffled"),
    )
    accountant: str = setting(
        "rdp",
        "of poisson batches: rdp, a bound by Rényi divergences; pld, tighter, takes seconds per size of client",
        choices=("rdp", "pld"),
    )
    optimizer: str = setting(
        "sgd", "what makes steps of the noisy gradients: as training.optimizer, without options"
    )
    momentum: float = setting(0.0, "momentum of sgd", ge=0, lt=1)

    def __post_init__(self) -> None:
        check(self)
        if self.optimizer == OPTIMIZER_NAME:
            raise SettingError(
                f"RecordPrivacy.optimizer must be what makes steps of noisy gradients, such as sgd, got {OPTIMIZER_NAME}"
            )
        # Training checks the optimizer, and refuses momentum where it has none.
        self.of_steps(Training())

    def of_steps(self, training: Training) -> Training:
        """Return settings of local training with the optimizer that makes steps of noisy gradients."""
        settings = {name: getattr(training, name) for name in ("lr", "batch", "epochs", "steps")}
        return Training(
            **settings,
            optimizer=self.optimizer,
            momentum=self.momentum,
            proximal=training.proximal,
        )


@lru_cache(maxsize=64)
def options_of(options: tuple[str, ...]) -> RecordPrivacy:
    """Return the settings that ``training.optimizer_options`` state.

    Args:
        options: Texts ``name=value``.

    Raises:
        SettingError: There is no such setting, or its value is not allowed.
    """
    name = "Training.optimizer_options"
    settings: RecordPrivacy = build(RecordPrivacy, arguments(name, options), name)
    return settings
