"""The settings of a federation, as a strategy has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from coterie.boundary import Boundary, Wire
from coterie.core import Method, Training, check_training
from coterie.data import objective
from coterie.data.schema import Schema
from coterie.engines.flower import messages
from coterie.engines.flower.nodes import Identity, Waiting
from coterie.engines.unused_settings import unused_of_engine
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.robust import Robust
from coterie.settings import SettingError

APP_METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "eval_loss", "test_loss", "val_loss"),
    "accuracy": (
        "accuracy",
        "eval_acc",
        "eval_accuracy",
        "acc",
        "test_acc",
        "test_accuracy",
        "val_acc",
        "val_accuracy",
    ),
}
"""Metric -> the names that apps may use for it. The first one found in a reply counts."""


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """The settings of a federation.

    See :class:`~coterie.engines.flower.MethodStrategy` for the names that are not listed here.

    Attributes:
        waiting: ``timeout``, ``min_replies`` and ``grace`` of the strategy.
        metric_names: Metric -> the names that apps use for it.
        wire: The wire between clients and server.
        other_tensors: Tensors of the net's state dict that are not part of a row.
        facts: Entries of ``world`` in ``run.toml`` besides those that the rounds show.

    Raises:
        SettingError: Method and boundary do not fit together, or the boundary has a secret.
    """

    method: Method[Any]
    model: Callable[[], nn.Module]
    training: Training
    nodes: int
    wait: float
    waiting: Waiting
    identity: Identity
    patience: int
    seed: int
    eval_every: int
    metric_names: Mapping[str, Sequence[str]]
    boundary: Boundary
    robust: Robust = field(default_factory=Robust)
    schema: Schema | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    wire: Wire = field(init=False)
    other_tensors: messages.OtherTensors = field(init=False)

    def __post_init__(self) -> None:
        # Method and boundary must fit together.
        self.boundary.check_method(self.method)
        check_training(self.method, self.training)
        if "optimizer" in self.training.own_code:
            raise SettingError(
                f"Training.optimizer must be sgd, adam or one of torch.optim in a federation, got {self.training.optimizer}: "
                "no name makes a site import code"
            )
        if self.training.augment is not None:
            raise SettingError(
                f"Training.augment must be none in a federation, got {self.training.augment}: "
                "each site's app augments its own batches (augment of the client app)"
            )
        if self.boundary.secret is not None:
            raise SettingError(
                "Boundary.secret must be none in the server's strategy, got one: only the clients may know it"
            )
        # The layout says where each parameter is in a row. The values of this net are not used.
        with seeded(0):
            module = self.model()
        layout = Layout(module)
        wire = Wire(self.boundary, layout, self.seed)
        # An optimizer of an extension may refuse methods, and count what clients release.
        if self.training.own_optimizer is not None:
            wire = self.training.own_optimizer.server_wire(wire, self.training)
            wire.check_method(self.method)
        object.__setattr__(self, "wire", wire)
        object.__setattr__(self, "other_tensors", messages.OtherTensors.of(module, layout))

    @property
    def layout(self) -> Layout:
        """The layout of the net's parameters in a row."""
        return self.wire.layout

    @property
    def main_metric(self) -> str:
        """The main metric: the first one whose names were given, besides the loss; the accuracy if none or it was."""
        configured_metrics = [
            metric
            for metric, app_names in self.metric_names.items()
            if APP_METRIC_NAMES.get(metric) != app_names and metric != "loss"
        ]
        if not configured_metrics or "accuracy" in configured_metrics:
            return "accuracy"
        return configured_metrics[0]

    @property
    def better(self) -> str:
        """Whether a greater or a smaller value of the main metric is better; greater if it has a name of the user's own."""
        metric = objective.METRICS.get(self.main_metric)
        return "greater" if metric is None else metric.better

    def unused(self, rounds: int | None) -> list[str]:
        """Return a sentence for each setting that was set and has no effect.

        Args:
            rounds: The number of the last round; None if it is not known.
        """
        return unused_of_engine(
            [self.method],
            rounds,
            training=self.training,
            boundary=self.boundary,
            robust=self.robust,
        )
