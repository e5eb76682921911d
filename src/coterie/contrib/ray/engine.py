"""What the entry point ``ray`` in ``coterie.engines`` names: the three functions of an engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from coterie.core import Method, Position, Round
from coterie.data.world import World
from coterie.runs.experiment import Experiment, OwnWorld
from coterie.settings import SettingError, UserError


def check(experiment: Experiment) -> None:
    """Raise an error if Ray is not installed, or if a setting is one that its nodes do not support."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("engine ray needs Ray: pip install 'coterie[ray]'")
    if experiment.device != "cpu":
        raise SettingError(
            f"Experiment.device needs engine inprocess, got {experiment.device} with engine ray"
        )
    if isinstance(experiment.setup, OwnWorld) and not experiment.setup.source:
        raise SettingError(
            "engine ray needs a function that makes the world, in a module that can be imported on every node"
        )
    if experiment.address is not None and "://" in experiment.address:
        raise SettingError(
            f"Experiment.address must be HOST:PORT, auto or local, got {experiment.address!r}"
        )


def prepare(experiment: Experiment, seed: int, make_world: Callable[[], World]) -> None:
    """Make the world on every node of an existing cluster, before a run begins."""
    from coterie.contrib.ray import cluster

    cluster.try_nodes(
        make_world, experiment.address, experiment.boundary, seed, experiment.hardware()
    )


def rounds(
    experiment: Experiment,
    method: Method[Any],
    world: World,
    make_world: Callable[[], World],
    *,
    seed: int,
    start: Position | None,
    workers: int | None,
) -> Iterator[Round]:
    """Run the rounds that are missing on the cluster."""
    from coterie.contrib.ray import cluster

    return cluster.rounds(
        method,
        world,
        make_world,
        address=experiment.address,
        rounds=experiment.rounds,
        seed=seed,
        workers=workers or experiment.workers,
        width=experiment.width,
        precision=experiment.precision,
        eval_every=experiment.eval_every,
        eval_clients=experiment.eval_clients,
        start=start,
        boundary=experiment.boundary,
        robust=experiment.robust,
    )
