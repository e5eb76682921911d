"""The clients of a run over a table as it is: the hook ``table-schema`` of :mod:`coterie.extensions`.

The core divides rows among clients and splits as always: it gets the numbers of the rows in place of
features. Then :func:`with_features` agrees on the constants, from the **training** rows alone, and
replaces the numbers by the features of the rows. So no constant depends on a row that is held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.contrib.sites import agreement
from coterie.contrib.sites.cells import Cells, Table, of_file, of_files, of_frame
from coterie.contrib.sites.columns import (
    DATE_ORIGIN,
    OTHER,
    BooleanColumn,
    CategoryColumn,
    DateColumn,
    IgnoredColumn,
    NumberColumn,
)
from coterie.contrib.sites.table_schema import BALANCED, NO_WEIGHTS, TableSchema, check_has_columns
from coterie.core import Client
from coterie.data.columns import check_columns, listed
from coterie.data.datasets.table import TableSettings, is_table_file
from coterie.data.frames import FrameColumns, clients_of
from coterie.data.own import OwnData
from coterie.data.times import looks_like_time
from coterie.data.world import ClientData, Split
from coterie.settings import SettingError, UserError

FACT = "table_schema"
"""Entry of ``World.about``, and so of ``run.toml`` and an export's ``models.json``: the schema with constants."""

WEIGHTS_FACT = "class_weights"
"""Entry of ``World.about``: the weight of each class in the loss, in the order of the classes."""

ROW = "row"
"""The only feature until the splits are known: the number of the row."""

SITE = "site"
"""Column that names the client of each row, where each client has a file and nobody names the column."""


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """What the columns of a table are for, and how its rows are divided; as for :func:`coterie.from_frame`.

    Attributes:
        client: The column that names the client of each row.
        targets: The columns to predict.
        features: The columns to predict from; None for all others.
        task: The task, or ``auto``.
        subject: The column of persons or things with several rows, which stay together; None for none.
        order: The column of the times, or the times of the rows ``(n,)``; None for none.
        gap: The least time between training and test rows.
    """

    client: str
    targets: Sequence[str]
    features: Sequence[str] | None
    task: str
    subject: str | None = None
    order: Any = None
    gap: Any = None

    @classmethod
    def of_frame(cls, columns: FrameColumns) -> ColumnRoles:
        """Return the roles that a user states of a data frame, whose columns may have other names than texts."""
        is_list = isinstance(columns.target, list | tuple)
        targets = list(columns.target) if is_list else [columns.target]
        # Times may also be an array, which is no column.
        order = columns.order
        if order is not None and not hasattr(order, "__len__"):
            order = str(order)
        return cls(
            client=str(columns.client),
            targets=[str(name) for name in targets],
            features=None if columns.features is None else [str(name) for name in columns.features],
            task=columns.task,
            subject=None if columns.subject is None else str(columns.subject),
            order=order,
            gap=columns.gap,
        )

    @property
    def order_column(self) -> str | None:
        """The column of the times; None if they are none of the table's."""
        return self.order if isinstance(self.order, str) else None

    @property
    def named(self) -> list[str]:
        """The columns of the client, the targets and the subject."""
        return [self.client, *self.targets, *([self.subject] if self.subject else [])]


def clients_of_path(path: Path, options: TableSettings) -> OwnData:
    """Make the clients of a file, or of a folder with a file per client.

    Args:
        path: The file or the folder.
        options: The columns of the scenario; what they leave open is taken from the schema.

    Raises:
        UserError: The file, the schema or a column is not valid.
    """
    assert options.schema is not None
    schema = TableSchema.from_file(_schema_path(options.schema, path))
    client = options.client or schema.client
    if path.is_dir():
        table_paths = sorted(filter(is_table_file, path.iterdir()))
        if not table_paths:
            raise UserError(f"{path} holds no table: no .csv, .csv.gz or .parquet file")
        client = client or SITE
        table = of_files(table_paths, site_column=client)
    else:
        table = of_file(path)
    targets = options.targets or schema.target
    for setting_name, columns_of_role in (("client", client), ("target", targets)):
        if not columns_of_role:
            raise SettingError(
                f"Scenario.{setting_name} must name a column of {path}, which has {listed(list(table))}"
            )
    return _clients(table, schema, column_roles(options, schema, client, targets), str(path))


def column_roles(
    options: TableSettings, schema: TableSchema, client: str, targets: Sequence[str]
) -> ColumnRoles:
    """Return what the columns are for by the settings of a table; what these leave open is taken from the schema.

    Args:
        options: The settings.
        schema: The schema.
        client: The column that names the client of each row.
        targets: The columns to predict.
    """
    return ColumnRoles(
        client=client,
        targets=targets,
        features=options.columns or None,
        task=options.task,
        subject=options.subject or schema.subject or None,
        order=options.order or schema.order or None,
        gap=options.gap,
    )


def _schema_path(schema: str, data_path: Path) -> Path:
    """The file of a schema; one that is not in the current folder may lie beside the data."""
    path = Path(schema).expanduser()
    beside_data = (data_path if data_path.is_dir() else data_path.parent) / path
    return beside_data if not path.exists() and beside_data.exists() else path


def clients_of_frame(
    frame: Any,
    columns: FrameColumns,
    context: str,
    earlier_facts: Mapping[str, Any] | None,
    *,
    schema: Any,
) -> OwnData:
    """Make the clients of a data frame by a schema.

    Args:
        frame: The data frame, as for :func:`coterie.from_frame`.
        columns: What its columns are for.
        context: The table, for messages.
        earlier_facts: The facts of an earlier world, whose classes keep their order; None if there
            is none.
        schema: The schema, its document, or the path of its file.

    Raises:
        UserError: The schema is not valid, or the data frame does not fit it.
    """
    if isinstance(schema, str | Path):
        schema = TableSchema.from_file(schema)
    elif not isinstance(schema, TableSchema):
        schema = TableSchema.of(schema, "schema")
    roles = ColumnRoles.of_frame(columns)
    return _clients(of_frame(frame, context), schema, roles, context, earlier_facts)


def features_of_rows(rows: Any, schema: TableSchema | Mapping[str, Any]) -> np.ndarray:
    """Return the features of raw rows by a schema with constants.

    Args:
        rows: A data frame, a mapping from columns to lists, or the path of a table.
        schema: The schema, or the entry :data:`FACT` of a run's facts.

    Returns:
        The features ``(N, d)`` float32, before they are standardized.

    Raises:
        UserError: The rows do not fit the schema.
    """
    if not isinstance(schema, TableSchema):
        schema = TableSchema.of(schema, FACT)
    if isinstance(rows, str | Path):
        context = str(rows)
        table = of_file(Path(rows))
    else:
        context = "the data frame"
        table = of_frame(rows, context)
    return schema.encoded(table, context)


def cautions_of_rows(rows: Path | str, schema_document: Mapping[str, Any]) -> list[str]:
    """Return what is unusual in rows that a model shall predict, though they fit its schema.

    Args:
        rows: The path of a table that fits the schema.
        schema_document: The schema with constants, the entry :data:`FACT` of a run's facts.

    Returns:
        A sentence for each column with levels that are rare or unknown, or without any value.
    """
    schema = TableSchema.of(schema_document, FACT)
    table = of_file(Path(rows))
    cautions = []
    for name, column in schema.feature_columns().items():
        cells = table[name]
        missing_rows = column.is_missing(cells, schema.marks)[cells.text_of_row]
        if missing_rows.all():
            cautions.append(
                f"the column {name} has no value in any of {len(cells):,} rows: all are filled"
            )
        if not isinstance(column, CategoryColumn):
            continue
        rows_of_text = column.unlisted_rows(cells, schema.marks)
        if rows_of_text:
            shown_texts = ", ".join(
                f"{text!r:.40}" for text in list(rows_of_text)[:MAX_SHOWN_LEVELS]
            )
            more = ", ..." if len(rows_of_text) > MAX_SHOWN_LEVELS else ""
            cautions.append(
                f"the column {name} has levels that were rare or unknown in training, in "
                f"{sum(rows_of_text.values()):,} of {len(cells):,} rows: {shown_texts}{more}; all of them count as {OTHER}"
            )
    return cautions


MAX_SHOWN_LEVELS = 3
"""Most levels that a caution names."""


@dataclass(frozen=True, kw_only=True)
class RawClients:
    """Clients whose rows are divided by their numbers, and have no features yet.

    Attributes:
        own_data: The clients, with the numbers of their rows as inputs.
        table: The rows.
        schema: The columns that become features.
        context: The table, for messages.
    """

    own_data: OwnData
    table: Table
    schema: TableSchema
    context: str

    def rows_of(self, split: Split) -> Table:
        """The rows of a split."""
        rows = split.inputs[split.index][:, 0].long().numpy()
        return {name: self.table[name].in_rows(rows) for name in self.schema.columns}


def _clients(
    table: Table,
    schema: TableSchema,
    roles: ColumnRoles,
    context: str,
    earlier_facts: Mapping[str, Any] | None = None,
) -> OwnData:
    """The clients of a table, whose features are made once the splits are known."""
    raw = raw_clients(table, schema, roles, context, earlier_facts)
    return replace(raw.own_data, encode=partial(with_features, raw=raw))


def raw_clients(
    table: Table,
    schema: TableSchema,
    roles: ColumnRoles,
    context: str,
    earlier_facts: Mapping[str, Any] | None = None,
) -> RawClients:
    """Divide the rows of a table among clients, and check its columns.

    Args:
        table: The table.
        schema: What its columns are.
        roles: What its columns are for.
        context: The table, for messages.
        earlier_facts: The facts of an earlier world, whose classes keep their order.

    Raises:
        UserError: The table does not fit the schema.
    """
    # The columns with a role, and those of the features.
    feature_schema = schema_of_features(schema, roles)
    if not feature_schema.columns:
        raise UserError(
            f"the table schema leaves no feature for {context}: all columns are ignored"
        )
    feature_schema.check(table, context)
    check_columns(list(table), roles.named, list(feature_schema.columns), context)
    if roles.order_column is not None:
        check_has_columns(table, [roles.order_column], context)

    # A row without a target teaches nothing, and tests nothing.
    marks = schema.marks
    lacks_target = np.zeros(len(table[roles.client]), bool)
    for name in roles.targets:
        column = schema.columns.get(name) or IgnoredColumn()
        lacks_target |= column.is_missing(table[name], marks)[table[name].text_of_row]
    kept_rows = np.flatnonzero(~lacks_target)
    if not len(kept_rows):
        raise UserError(
            f"{context}: no row has a value of the target {listed(list(roles.targets))}"
        )
    kept_table = {name: cells.in_rows(kept_rows) for name, cells in table.items()}
    hints = []
    if lacks_target.any():
        hints.append(
            f"{int(lacks_target.sum()):,} of {len(lacks_target):,} rows have no value of the target "
            f"{listed(list(roles.targets))}: they are left out"
        )

    # The core divides the numbers of the rows.
    row_frame: dict[str, Any] = {f"{ROW} of {roles.client}": np.arange(len(kept_rows))}
    row_column = next(iter(row_frame))
    for role_name in (roles.client, roles.subject):
        if role_name is not None:
            row_frame[role_name] = np.array(kept_table[role_name].row_texts(), object)
    for name in roles.targets:
        row_frame[name] = _typed(kept_table[name], schema, name, context)
    order = roles.order
    if roles.order_column is not None:
        cells = kept_table[roles.order_column]
        row_frame[roles.order_column] = _typed(cells, schema, roles.order_column, context)
    elif order is not None:
        order = np.asarray(order)[kept_rows]
    if earlier_facts is not None:
        earlier_facts = {**earlier_facts, "features": [row_column]}
    row_columns = FrameColumns(
        client=roles.client,
        target=list(roles.targets),
        features=[row_column],
        task=roles.task,
        subject=roles.subject,
        order=order,
        gap=roles.gap,
    )
    own_data = clients_of(row_frame, row_columns, context, earlier_facts)
    hints += own_data.hints
    if order is None:
        dates = [
            n for n, column in feature_schema.columns.items() if isinstance(column, DateColumn)
        ]
        hints += [looks_like_time(name) for name in dates[:1]]
    if schema.class_weights == BALANCED and own_data.about["task"] != "classification":
        raise UserError(
            f"the table schema has class_weights = {BALANCED!r}, which needs classes to predict, and "
            f"{listed(list(roles.targets))} of {context} has none"
        )
    return RawClients(
        own_data=replace(own_data, hints=hints),
        table=kept_table,
        schema=feature_schema,
        context=context,
    )


def schema_of_features(schema: TableSchema, roles: ColumnRoles) -> TableSchema:
    """Return the columns of a schema that become features.

    Args:
        schema: The schema.
        roles: What the columns are for. The column of the times is a feature only if the user has chosen it.

    Raises:
        UserError: The schema lacks a chosen column.
    """
    used_schema = schema
    without = [*roles.named, *([roles.order_column] if roles.order_column else [])]
    if roles.features is not None:
        check_has_columns(schema.columns, roles.features, "the table schema")
        used_schema = schema.only(roles.features)
        without = list(roles.named)
    chosen = schema.only(used_schema.feature_columns(without))
    return replace(chosen, class_weights=schema.class_weights)


def _typed(cells: Cells, schema: TableSchema, name: str, context: str) -> np.ndarray:
    """A target or an order ``(N,)`` as the core reads it: numbers, dates, booleans or texts; missing values are None or NaN."""
    column = schema.columns.get(name)
    is_missing_text = (column or IgnoredColumn()).is_missing(cells, schema.marks)
    of_text: list[Any] = [
        None if missing else text
        for text, missing in zip(cells.texts, is_missing_text, strict=True)
    ]
    match column:
        case NumberColumn():
            numbers = column.values(cells, is_missing_text, name, context)
            # As in files of numbers: 3.0 is a number to predict, and 3 may be a class.
            has_decimals = any(column.decimal in text for text in cells.texts)
            are_whole = not has_decimals and bool((numbers == np.round(numbers)).all())
            typed = numbers.astype(np.int64) if are_whole else numbers
            return typed[cells.text_of_row]
        case DateColumn():
            seconds = column.values(cells, is_missing_text, name, context)
            of_text = [
                None if np.isnan(second) else DATE_ORIGIN + timedelta(seconds=second)
                for second in seconds.tolist()
            ]
        case BooleanColumn():
            # One spelling of each class.
            spelled = {True: column.true[0], False: column.false[0]}
            truths = column.values(cells, is_missing_text, name, context).tolist()
            of_text = [None if truth != truth else spelled[truth == 1.0] for truth in truths]
        case CategoryColumn():
            level_of_key = {column.key(level): level for level in column.levels}
            of_text = [text and level_of_key.get(column.key(text), text) for text in of_text]
    return np.array(of_text, object)[cells.text_of_row]


def with_features(
    own_data: OwnData,
    clients: dict[Client, ClientData],
    earlier_facts: Mapping[str, Any] | None,
    *,
    raw: RawClients,
) -> tuple[OwnData, dict[Client, ClientData]]:
    """Return clients with the features of their rows in place of the rows' numbers, see :attr:`OwnData.encode`.

    Args:
        own_data: The clients' data, with the numbers of the rows.
        clients: The clients with their splits.
        earlier_facts: The facts of an earlier world with constants; None to agree on new ones.
        raw: The rows.
    """
    constant_schema, class_weights = _agreed(raw, own_data.outputs, clients.values(), earlier_facts)
    features = torch.from_numpy(constant_schema.encoded(raw.table, raw.context))
    about = {
        **own_data.about,
        "features": constant_schema.features,
        FACT: constant_schema.document(),
    }
    objective = own_data.objective
    if class_weights:
        about[WEIGHTS_FACT] = list(class_weights)
        loss = torch.nn.CrossEntropyLoss(torch.tensor(class_weights, dtype=torch.float32))
        objective = replace(objective, loss=loss)
    encoded_data = replace(
        own_data,
        shape=(features.shape[1],),
        about=about,
        objective=objective,
        dtypes=["number"] * features.shape[1],
        encode=None,
    )
    # The splits of a client have one pool.
    features_of_pool: dict[int, torch.Tensor] = {}

    def featured(split: Split) -> Split:
        pool = split.inputs
        if id(pool) not in features_of_pool:
            features_of_pool[id(pool)] = features[pool[:, 0].long()]
        return replace(split, inputs=features_of_pool[id(pool)])

    encoded_clients = {}
    for client, client_data in clients.items():
        encoded_clients[client] = replace(
            client_data,
            train=featured(client_data.train),
            validation=featured(client_data.validation),
            test=featured(client_data.test),
            schema=encoded_data.schema,
        )
    return encoded_data, encoded_clients


def _agreed(
    raw: RawClients,
    outputs: int,
    clients: Iterable[ClientData],
    earlier_facts: Mapping[str, Any] | None,
) -> tuple[TableSchema, tuple[float, ...]]:
    """The schema with the constants of the clients' training rows, or those of an earlier world; and the class weights."""
    if earlier_facts is not None and FACT in earlier_facts:
        earlier_schema = TableSchema.of(earlier_facts[FACT], "the earlier world")
        if set(earlier_schema.columns) != set(raw.schema.columns):
            raise UserError(
                "the table schema must have the columns of the earlier world, "
                f"{listed(list(earlier_schema.columns))}, got {listed(list(raw.schema.columns))}"
            )
        return earlier_schema, tuple(earlier_facts.get(WEIGHTS_FACT, ()))
    asked_clients = [asked_client(raw, outputs, client_data.train) for client_data in clients]
    agreed = agreement.agree(raw.schema, agreement.summed(asked_clients))
    return replace(agreed.schema, class_weights=NO_WEIGHTS), agreed.class_weights


def asked_client(
    raw: RawClients, outputs: int, train: Split, *, of_numbers: bool = False
) -> agreement.Client:
    """Return a client that answers questions about its training rows.

    Args:
        raw: The rows.
        outputs: The number of classes.
        train: The client's training rows, by their numbers.
        of_numbers: Whether it also answers questions about its numbers to predict.
    """
    class_counts = None
    numbers = None
    if raw.schema.class_weights == BALANCED:
        class_counts = np.bincount(train.targets.numpy(), minlength=outputs)
    if of_numbers:
        numbers = train.targets.double().reshape(len(train.targets), -1).numpy()
    return agreement.Client(raw.schema, raw.rows_of(train), raw.context, class_counts, numbers)
