"""A site of a federation: its rows, its answers about them, and its data once the constants are agreed.

Here the table of a node is read as ``federation.toml`` says. A table that does not fit is refused in one
sentence, which stays at the node: it may show a value of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from coterie.contrib.sites import agreement
from coterie.contrib.sites.cells import Cells, Table
from coterie.contrib.sites.federation_file import TableFederation
from coterie.contrib.sites.table_schema import NO_WEIGHTS, TableSchema, check_has_columns
from coterie.contrib.sites.worlds import (
    FACT,
    WEIGHTS_FACT,
    ColumnRoles,
    RawClients,
    asked_client,
    column_roles,
    raw_clients,
    schema_of_features,
    with_features,
)
from coterie.core import Client
from coterie.data.columns import listed
from coterie.data.objective import Objective
from coterie.data.own import client_data
from coterie.data.scaling import standardized, with_standardized_targets
from coterie.data.world import ClientData, World
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError


@dataclass(frozen=True)
class SiteData:
    """The data of a site, as a node trains with them.

    Attributes:
        data: The examples.
        objective: The loss and the metrics.
    """

    data: ClientData
    objective: Objective


class Site:
    """The rows of a site, checked against the federation's file and divided for training and tests.

    Args:
        federation: The file.
        name: The site's name.
        number: Its client id, which draws the held-out rows of a site that the simulation did not have.
        table: Its rows.
        context: The table, for messages.

    Raises:
        UserError: The table does not fit the file.
    """

    def __init__(
        self, federation: TableFederation, name: str, number: Client, table: Table, context: str
    ) -> None:
        self.federation = federation
        used_columns = [*feature_schema(federation).columns, *federation.common.targets]
        check_has_columns(table, used_columns, context)
        roles = _roles(federation)
        if roles.task == "auto":
            roles = replace(roles, task=_task_to_read(federation))
        named_table = {**table, roles.client: _named_rows(table, federation, name, context)}
        self._raw: RawClients = raw_clients(
            named_table, federation.schema, roles, context, federation.facts
        )
        own_data = self._raw.own_data
        if own_data.about["task"] != federation.common.task:
            raise UserError(
                f"{context}: the target {listed(federation.common.targets)} is for {own_data.about['task']}, "
                f"and the federation's for {federation.common.task}"
            )
        holdout = federation.scenario.holdout
        # A site of the simulation holds out the rows that it held out there.
        sites = federation.common.sites
        draw_number = sites.index(name) if name in sites else number
        split_rng = numpy_generator(federation.seed, Purpose.DATA, 1, draw_number)
        (pool_name,) = own_data.pools
        self._data = client_data(
            name,
            own_data.pools[pool_name],
            holdout.train,
            holdout.validation,
            split_rng,
            holdout.samples,
        )

    @property
    def rows(self) -> int:
        """The number of rows that are used."""
        data = self._data
        return len(data.train) + len(data.validation) + len(data.test)

    def answer(self, question: agreement.SumQuestion) -> agreement.Answer:
        """Return the sums over this site's training rows that a question asks for.

        Raises:
            SettingError: The question is about other columns than the file's.
        """
        if question.schema is not None and set(question.schema.columns) != set(
            self._raw.schema.columns
        ):
            raise SettingError("a question about sums is about other columns than the file's")
        client = asked_client(
            self._raw,
            self.federation.outputs,
            self._data.train,
            of_numbers=self.federation.scenario.scaling.of_targets == "pooled",
        )
        try:
            return client.answer(question)
        except (KeyError, AssertionError) as error:
            raise SettingError(
                f"a question about sums is not one of the file's: {error!r}"
            ) from None

    def data(self, agreed: Mapping[str, Any]) -> SiteData:
        """Return the site's data, encoded and scaled by agreed constants.

        Args:
            agreed: ``about``, as ``World.about`` has it, and ``target_scale``.
        """
        about = agreed["about"]
        data = replace(self._data, schema=self._raw.own_data.schema)
        own_data, clients = with_features(self._raw.own_data, {0: data}, about, raw=self._raw)
        world = World(
            clients=clients,
            model=nets.factory(
                self.federation.scenario.model, own_data.shape, self.federation.outputs
            ),
            objective=own_data.objective,
            about=own_data.about,
        )
        if "means" in about:
            world = standardized(world, (about["means"], about["deviations"]))
        scale = agreed.get("target_scale")
        if scale is not None:
            world = with_standardized_targets(world, (scale["means"], scale["deviations"]))
        objective = objective_of(world.objective, self.federation)
        return SiteData(world.clients[0], objective)


def objective_of(objective: Objective, federation: TableFederation) -> Objective:
    """Return an objective with the metrics of the federation's file, if it names some."""
    metrics = federation.scenario.metrics
    return replace(objective, metrics=metrics, main="") if metrics else objective


def _task_to_read(federation: TableFederation) -> str:
    """How the target of a site is read: the type of its texts may be another one by chance."""
    task = federation.common.task
    return task if task in ("classification", "regression") else "auto"


def _named_rows(table: Table, federation: TableFederation, name: str, context: str) -> Cells:
    """The column that names the site of each row, which is this site."""
    column = federation.client_column
    row_count = len(next(iter(table.values())))
    if column in table:
        names = [text for text, rows in table[column].counts().items() if rows]
        if len(names) > 1:
            raise UserError(
                f"{context} has rows of {len(names)} sites in its column {column}, such as "
                f"{listed(names[:2])}: a site gives its own rows alone"
            )
    return Cells((name,), np.zeros(row_count, np.int64))


def agreed_facts(federation: TableFederation, agreed: agreement.Agreed) -> dict[str, Any]:
    """Return what a run records of the data, and every site needs: as ``run.toml`` has it under ``world``.

    Args:
        federation: The file.
        agreed: The constants.
    """
    about: dict[str, Any] = {
        "features": agreed.schema.features,
        **federation.facts,
        FACT: replace(agreed.schema, class_weights=NO_WEIGHTS).document(),
    }
    if agreed.class_weights:
        about[WEIGHTS_FACT] = list(agreed.class_weights)
    scaling = federation.scenario.scaling
    constants = agreed.scaling or (
        None if isinstance(scaling.of_inputs, str) else scaling.of_inputs
    )
    if constants is not None:
        means, deviations = (
            torch.as_tensor(values, dtype=torch.float64).tolist() for values in constants
        )
        about |= {"means": means, "deviations": deviations}
    facts: dict[str, Any] = {"about": about}
    target_constants = agreed.target_scaling or (
        None if isinstance(scaling.of_targets, str) else scaling.of_targets
    )
    if target_constants is not None:
        target_means, target_deviations = target_constants
        facts["target_scale"] = {
            "means": list(target_means),
            "deviations": list(target_deviations),
        }
    return facts


def _roles(federation: TableFederation) -> ColumnRoles:
    """What the columns are for, as at every site."""
    client = federation.client_column
    return column_roles(federation.table, federation.schema, client, federation.common.targets)


def feature_schema(federation: TableFederation) -> TableSchema:
    """Return the columns that become features, as at every site."""
    return schema_of_features(federation.schema, _roles(federation))
