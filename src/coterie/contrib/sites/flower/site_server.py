"""What runs at the server of a federation of sites: agreement on the constants, then the rounds of the method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from coterie.contrib.sites.federation_file import TableFederation
from coterie.contrib.sites.flower.grid_agreement import GridAgreement, nodes_of
from coterie.contrib.sites.flower.site_app import AGREED
from coterie.contrib.sites.site import objective_of
from coterie.data.schema import SHARED_SCALING, Schema
from coterie.data.tasks import PredictionTask, objective_for
from coterie.engines.flower import MethodStrategy
from coterie.engines.flower.nodes import Identity, Messenger, Waiting, identity_of_file
from coterie.engines.flower.result import GroupedResult
from coterie.engines.flower.tolerant_grid import TolerantGrid, log
from coterie.models import nets
from coterie.records.record import Record
from coterie.settings import SettingError

RUN_KEYS = ("nodes", "wait", "timeout", "min-replies", "grace", "patience")
"""Keys of the run config that are arguments of the strategy. Everything else is in the file."""

MAX_ANSWER_SECONDS = 600.0
"""Longest time that a site has to answer a question about its sums."""


def server_app(file: Path | str) -> ServerApp:
    """Return the app of the server.

    Args:
        file: The path of ``federation.toml``.

    Raises:
        UserError: The file cannot be read, or a setting is not allowed.
    """
    federation = TableFederation.from_file(file)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(federation, grid, context.run_config)

    return app


def serve(federation: TableFederation, grid: Grid, run_config: Mapping[str, Any]) -> GroupedResult:
    """Agree on the constants with the sites, and run the method.

    A run directory that has constants already keeps them.

    Args:
        federation: The federation's file.
        grid: Flower's grid.
        run_config: Flower's run config: ``rounds``, ``eval-every``, ``out``, ``identity``, ``clients``
            and :data:`RUN_KEYS`; what it leaves out is in the file, or has its default.

    Raises:
        UserError: A setting is not allowed.
        EngineError: Too few sites are connected.
    """
    out = str(run_config.get("out", ""))
    clients_file = str(run_config.get("clients", ""))
    identity = Identity.of(str(run_config.get("identity", "claimed")))
    if clients_file:
        identity = identity_of_file(clients_file)
    arguments = {key.replace("-", "_"): run_config[key] for key in RUN_KEYS if key in run_config}
    facts = recorded_facts(out) if out else None
    if facts is None:
        facts = _agreed_by(grid, identity, federation, arguments)
    about = facts["about"]
    experiment = federation.experiment
    task = PredictionTask(
        federation.common.task, federation.outputs, tuple(federation.common.classes)
    )
    objective = objective_of(objective_for(task), federation)
    metrics = {objective.main: objective.main}
    metrics |= {name: name for name in objective.named}
    strategy = MethodStrategy(
        federation.method,
        nets.factory(federation.scenario.model, (len(about["features"]),), federation.outputs),
        training=experiment.training,
        boundary=experiment.boundary,
        robust=experiment.robust,
        seed=federation.seed,
        eval_every=int(run_config.get("eval-every", experiment.eval_every)),
        identity=identity,
        metrics=metrics if objective.main != "accuracy" else None,
        schema=schema_of(about),
        facts=facts,
        out=out or None,
        **arguments,
    )
    # The constants are in every message, so that a site that joins late has them, too.
    agreed = ConfigRecord({AGREED: json.dumps(facts)})
    return strategy.start(
        grid,
        num_rounds=int(run_config.get("rounds", experiment.rounds)),
        train_config=agreed,
        evaluate_config=agreed,
    )


def _agreed_by(
    grid: Grid, identity: Identity, federation: TableFederation, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The facts on which the connected sites agree."""
    timeout = min(float(arguments.get("timeout", MAX_ANSWER_SECONDS)), MAX_ANSWER_SECONDS)
    # All sites must answer each question: sums over other sites would not fit together.
    waiting = Waiting(timeout=timeout, min_replies=1.0)
    nodes = nodes_of(Messenger(TolerantGrid(grid)), waiting, identity)
    asked = GridAgreement(federation, nodes, waiting, log.info)
    return asked.agree(int(arguments.get("nodes", 2)), float(arguments.get("wait", 600.0)))


def recorded_facts(out: Path | str) -> dict[str, Any] | None:
    """Return the facts that a run directory has; None if it has no run yet.

    Raises:
        UserError: It has the run of another app, or is damaged.
    """
    record = Record(out)
    if not record.begun:
        return None
    world = record.description()["world"]
    if "table_schema" not in world.get("about", {}):
        raise SettingError(f"{out} has a run without a table schema: choose another folder")
    return {name: world[name] for name in ("about", "target_scale") if name in world}


def schema_of(about: Mapping[str, Any]) -> Schema:
    """Return the schema that all sites' data must have, once they are encoded."""
    constants: dict[str, Any] = {}
    if "means" in about:
        constants = {
            "scaling": SHARED_SCALING,
            "means": about["means"],
            "deviations": about["deviations"],
        }
    return Schema(
        columns=about["features"],
        targets=about["targets"],
        classes=about.get("classes", ()),
        task=about["task"],
        **constants,
    )
