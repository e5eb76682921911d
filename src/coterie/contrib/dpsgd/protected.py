"""What DP-SGD refuses, because its noise would not cover it, and what it counts for ε.

A method may see what clients compute from noisy steps alone: their updates, also of both halves of
the data, and of layers trained in stages. Everything else that tasks can ask for (losses, choices
among models by their losses, counts of labels, raw gradients) depends on the rows without noise.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.boundary import Wire
from coterie.contrib.dpsgd.options import OPTIMIZER_NAME, options_of
from coterie.core import Client, Plan, Task, Training
from coterie.core.needs import IN_WORDS, Feature, all_methods, features_of_plan, needs_of
from coterie.data.on_demand import OnDemand
from coterie.data.world import Split, World
from coterie.settings import SettingError, UserError
from coterie.training.learner import batch_starts

COVERED_FEATURES: frozenset[Feature] = frozenset(
    ("several-tasks", "local-layers", "halves", "stages", "training")
)
"""What tasks may ask for: all of it is computed from noisy steps."""

FIXED = ("optimizer", "optimizer_options", "batch")
"""Settings of local training that no task may replace: ε is computed with those of the experiment."""


def protected_wire(plain_wire: Wire, world: World) -> Wire:
    """Return a wire that refuses what noise would not cover.

    Args:
        plain_wire: The wire between the clients and the server.
        world: The clients.

    Raises:
        SettingError: The model, the data or the boundary do not fit.
        UserError: dp-accounting is not installed.
    """
    if len(world.steps) > 1:
        raise SettingError(
            f"{OPTIMIZER_NAME} needs data that stay the same, got {len(world.steps)} time steps: "
            "its ε counts the passes over one set of rows"
        )
    training_data: Mapping[Client, Split]
    if isinstance(world.clients, OnDemand):
        # The rows of a client are counted when it trains.
        training_data = world.clients.changed(lambda _, data: data.train)
    else:
        training_data = {client: data.train for client, data in world.clients.items()}
    return _checked_wire(plain_wire, world.training, training_data)


def server_wire(plain_wire: Wire, training: Training) -> Wire:
    """Return the wire of a federation's server, which knows of the clients' data only how many rows they report.

    Args:
        plain_wire: The wire between the clients and the server.
        training: The settings of local training.

    Raises:
        SettingError: The model or the boundary do not fit.
        UserError: dp-accounting is not installed.
    """
    return _checked_wire(plain_wire, training, None)


def protected_wire_of_client(
    plain_wire: Wire, training: Training, client: Client, training_data: Split
) -> Wire:
    """Return the wire of a node of a federation.

    Args:
        plain_wire: The wire between the node and the server.
        training: The settings of local training.
        client: The node's client.
        training_data: Its training examples.

    Raises:
        SettingError: The model does not fit.
        UserError: dp-accounting is not installed.
    """
    return _checked_wire(plain_wire, training, {client: training_data})


def _checked_wire(
    plain_wire: Wire, training: Training, training_data: Mapping[Client, Split] | None
) -> ProtectedWire:
    if importlib.util.find_spec("dp_accounting") is None:
        raise UserError(f"{OPTIMIZER_NAME} needs dp-accounting: pip install 'coterie[dp]'")
    if plain_wire.layout.statistics:
        raise SettingError(
            f"{OPTIMIZER_NAME} needs a model without running statistics (BatchNorm), got {plain_wire.layout.statistics[0]!r}: "
            "these averages of a client's data would be sent without noise; use GroupNorm"
        )
    if plain_wire.boundary.noise:
        raise SettingError(
            f"Boundary.noise must be 0 with {OPTIMIZER_NAME}, got {plain_wire.boundary.noise:g}: "
            "one protects whole clients, the other single rows; choose one"
        )
    return ProtectedWire(
        plain_wire.boundary, plain_wire.layout, plain_wire.seed, training, training_data
    )


@dataclass(frozen=True)
class ProtectedWire(Wire):
    """A wire of clients that train with DP-SGD.

    Attributes:
        training: The settings of local training of the experiment.
        training_data: Client -> its training examples; None at the server of a federation.
    """

    training: Training
    training_data: Mapping[Client, Split] | None

    @property
    def counts_rows(self) -> bool:
        """Whether the number of rows that a client reports is all that is known of its data."""
        return self.training_data is None

    def check_method(self, method: Any) -> None:
        """Check that a method sees only what is computed from noisy steps."""
        super().check_method(method)
        for each_method in all_methods(method):
            for feature in needs_of(each_method).features:
                self._check_feature(feature, each_method.name)

    def check(self, plan: Plan, method_name: str) -> None:
        """Check that a plan asks only for what is computed from noisy steps."""
        super().check(plan, method_name)
        for feature in sorted(features_of_plan(plan)):
            self._check_feature(feature, method_name)
        for _, part in plan.leaves():
            for task in set(part.tasks.values()):
                self._check_training(task, method_name)

    def releases(
        self, task: Task, hidden: bool = False, client: Client | None = None, rows: int = 0
    ) -> int:
        """What ε follows from: the steps of a client's training on Poisson batches, or its passes over shuffled ones."""
        if not task.trains:
            return 0
        assert client is not None
        has_subjects = False
        if self.training_data is not None:
            rows = len(self.training_data[client])
            has_subjects = self.training_data[client].subjects is not None
        if not rows:
            # The reply was refused, and says nothing. The node's own count has it.
            return 0
        task_training = task.how(self.training)
        # Both halves together are one pass over the data: each example is in one of them.
        rows_of_pass = max(1, rows // 2) if task.halves else rows
        steps_of_pass = len(batch_starts(rows_of_pass, task_training, 1))
        if task.halves and has_subjects:
            # The half with fewer rows may have any number of them.
            steps_of_pass = 1
        is_poisson = options_of(self.training.optimizer_options).sampling == "poisson"
        amount = 0
        for epochs, steps in _lengths(task, task_training):
            if is_poisson:
                amount += epochs * steps_of_pass if steps is None else steps
            else:
                # A training that ends within a pass has begun it.
                amount += epochs if steps is None else math.ceil(steps / steps_of_pass)
        return amount

    def _check_feature(self, feature: Feature, method_name: str) -> None:
        if feature not in COVERED_FEATURES:
            raise SettingError(
                f"{OPTIMIZER_NAME} cannot be used with {method_name} and these settings: it asks a client "
                f"{IN_WORDS[feature]}, which its noise does not cover"
            )
        if (
            feature == "halves"
            and options_of(self.training.optimizer_options).sampling != "shuffled"
        ):
            raise SettingError(
                f"{OPTIMIZER_NAME} needs sampling shuffled with {method_name}, got poisson: it asks a client "
                f"{IN_WORDS[feature]}, of which batches are a larger share"
            )

    def _check_training(self, task: Task, method_name: str) -> None:
        """Check that a task trains with the noise of the experiment."""
        task_training = task.how(self.training)
        for name in FIXED:
            if getattr(task_training, name) != getattr(self.training, name):
                raise SettingError(
                    f"{OPTIMIZER_NAME} cannot be used with {method_name} and these settings: a task changes training.{name}"
                )


def _lengths(task: Task, training: Training) -> list[tuple[int, int | None]]:
    """How long a task trains: (epochs, steps in place of them or None) of each of its stages."""
    if not task.stages:
        return [(training.epochs, training.steps)]
    lengths: list[tuple[int, int | None]] = []
    for stage in task.stages:
        if stage.epochs is None:
            lengths.append((training.epochs, training.steps))
        else:
            lengths.append((stage.epochs, None))
    return lengths
