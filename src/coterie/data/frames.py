"""Clients from the columns of a table: one names the client, one or several are the target, the others are features.

:func:`from_frame` reads a data frame in memory, and ``datasets.table`` a csv or parquet file; both
divide the rows among clients by :func:`clients_of`. Refused are columns that are missing, named twice
or used twice, missing values, features of text or dates, numbers that float32 cannot tell apart, and
classes or clients with names that look alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie.data.arrays import as_array
from coterie.data.columns import (
    MAKE_NUMBERS,
    Problems,
    RowCountError,
    check_columns,
    listed,
    names_of,
    of_dates,
    values,
)
from coterie.data.examples import Pool, check_distinct
from coterie.data.matching import Matching, check_rows
from coterie.data.objective import Objective
from coterie.data.own import SUBJECT, OwnData
from coterie.data.scaling import Constants
from coterie.data.spelling import check_unlike
from coterie.data.splits import check_shares
from coterie.data.tasks import PredictionTask, as_before, encoded, hint, objective_for, targets
from coterie.data.time_order import about_order, spans
from coterie.data.times import (
    TIME_HINT_END,
    Times,
    check_gap,
    gap_of,
    hint_of_dates,
    index_as_order,
    is_date_column,
    is_time_column,
    looks_like_time,
    times_of,
)
from coterie.data.world import OF_A_WORLD, World, check_name
from coterie.extensions import provided
from coterie.settings import UserError
from coterie.settings.calls import public

NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
"""A number that is written as text."""


@public(more=OF_A_WORLD)
def from_frame(
    frame: Any,
    client: Any,
    target: Any,
    *,
    features: Sequence[Any] | None = None,
    subject: Any = None,
    order: Any = None,
    gap: Any = None,
    task: str = "auto",
    model: str | Callable[[], torch.nn.Module] = "mlp",
    objective: Objective | None = None,
    standardize: str | Constants = "none",
    standardize_target: str | bool | Constants = "none",
    schema: Any = None,
    train: float = 0.8,
    validation: float = 0.1,
    seed: int = 0,
    after: World | None = None,
    **world: Any,
) -> World:
    """Make a world of the rows of a data frame; each distinct value of a column is a client.

    One target of text, booleans or whole numbers has classes, in sorted order; one of floats has
    numbers to predict, with the mean squared error as loss. Several targets are labels, each 0 or
    1, or several numbers to predict.

    Args:
        frame: A data frame of pandas, polars or pyarrow, or a mapping from names to arrays
            ``(N,)``.
        client: The column that names the client of each row.
        target: The column, or columns, to predict.
        features: The columns of the inputs, numbers or booleans; None takes all others.
        subject: The column that names the subject of each row, such as a patient of whom there are
            several rows. A client's rows of a subject are in the same split, and in the same half
            where a method divides the client's data. None if every row has its own.
        order: The column of the times of the rows, or an array ``(N,)``: numbers, dates, or text
            that is an ISO date. A client's latest rows are for tests, and those before for
            validation; rows of one time are in one part. The column is a feature only if
            ``features`` has it. With ``subject``, earlier rows of a subject that is in a later part
            are left out. None divides at random.
        gap: Rows of a later part are later by more than this, and earlier ones that are nearer are
            left out: a number in the unit of the order; of dates a duration such as ``"7D"``,
            ``"12h"`` or ``"30min"``.
        task: ``"auto"``, or ``"classification"`` or ``"regression"`` if the type of the target
            should not decide.
        model: Name of a model, or a function that makes a fresh module.
        objective: The loss and the metrics, in place of the task's usual ones.
        standardize: ``"none"``, ``"pooled"``, or means and deviations, see
            :func:`~coterie.data.scaling.standardized`.
        standardize_target: The same for the numbers to predict, see
            ``with_standardized_targets``; metrics and predictions stay in their unit.
        schema: What the columns are, so that text, dates and missing values become features: the
            path of a file that ``coterie schema`` has written, or its document as a mapping.
            Constants, such as medians, are those of the training rows of all clients. None if the
            features are numbers and booleans.
        train: Share of a client's rows to train on, or of its subjects.
        validation: Share of a client's rows, or subjects, for validation; the rest is for tests.
        seed: Seed of the splits.
        after: An earlier world, to add clients to: its clients keep their ids, and new ones get the
            next. Its features, targets and classes keep their order, by their names, and its pooled
            means and deviations are used again.
        **world: ``training``, ``truth``, ``augment``, ``attendance`` of the :class:`World`.

    Returns:
        The world. Clients have the ids 0, 1, ... in the sorted order of their names (whole numbers
        as numbers), which are in ``ClientData.name``. ``World.about`` has the names of features,
        targets and classes.

    Raises:
        UserError: A column is missing, has missing values, or is of text or dates where numbers are
            needed.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ages, sites = rng.normal(60, 9, 40), ["north", "south"] * 20
        >>> made = from_frame({"site": sites, "age": ages, "ill": ages > 60}, client="site", target="ill")
        >>> [data.name for data in made.clients.values()], made.about["classes"]
        (['north', 'south'], ['False', 'True'])
    """
    check_shares(train, validation, "share")
    earlier_facts = None if after is None else after.about
    make_clients = clients_of
    if schema is not None:
        make_clients = partial(
            provided("coterie.hooks", "table-schema").clients_of_frame, schema=schema
        )
    columns = FrameColumns(
        client=client,
        target=target,
        features=features,
        task=task,
        subject=subject,
        order=order,
        gap=gap,
    )
    own_data = make_clients(frame, columns, "the data frame", earlier_facts)
    world_fields = world if objective is None else {"objective": objective, **world}
    return own_data.world(
        model,
        (train, validation),
        seed,
        standardize=standardize,
        standardize_target=standardize_target,
        after=after,
        **world_fields,
    )


@dataclass(frozen=True, kw_only=True)
class FrameColumns:
    """What a user says of the columns of a table, and of how its rows are divided; see :func:`from_frame`.

    Attributes:
        client: The column that names the client of each row.
        target: The column, or columns, to predict.
        features: The columns of the inputs; None for all others.
        task: The task, or ``auto``.
        subject: The column of the subject of each row; None if every row has its own.
        order: The column of the times, or the times of the rows ``(N,)``; None for none.
        gap: The least time between rows of different splits; None for none.
    """

    client: Any
    target: Any
    features: Sequence[Any] | None = None
    task: str = "auto"
    subject: Any = None
    order: Any = None
    gap: Any = None


def clients_of(
    frame: Any,
    columns: FrameColumns,
    context: str,
    earlier_facts: Mapping[str, Any] | None = None,
) -> OwnData:
    """Divide the rows of a table among clients.

    Args:
        frame: As for :func:`from_frame`.
        columns: What its columns are for.
        context: The table, for messages.
        earlier_facts: The facts of an earlier world, whose features, targets and classes keep their
            order; None if there is none.

    Returns:
        The clients' data.

    Raises:
        UserError: As for :func:`from_frame`.
    """
    client = columns.client
    subject = columns.subject
    order = columns.order
    # Which columns have which use, and in which order: an earlier world has its own.
    uses = _column_uses(frame, columns, context)
    matching = Matching(earlier_facts)
    feature_names = matching.order("x", uses.features, context)
    target_names = matching.order("y", uses.targets, context, "targets")
    # Each distinct value of the client's column is a client.
    _check_no_mixture(frame[client], f"{context}: the column {client}")
    owners, client_names = _owners(values(frame, client, context), client, context)

    def column_of(name: Any) -> np.ndarray:
        """A column, which must have as many rows as that of the clients."""
        column = values(frame, name, context)
        if len(column) != len(owners):
            raise RowCountError(
                f"{context}: the column {name} has {len(column)} rows, and the column {client} has {len(owners)}"
            )
        return column

    # What each row says: its target, its inputs, and, where they are given, its subject and time.
    problems = Problems(context)
    target_columns: dict[str, np.ndarray] = {}
    for name in target_names:
        with problems.noted():
            target_columns[str(name)] = column_of(name)
    inputs, dtypes = _inputs(feature_names, column_of, len(owners), problems)
    meta: dict[str, torch.Tensor] = {}
    if subject is not None:
        with problems.noted():
            meta[SUBJECT] = _subjects(column_of(subject), subject, context)
    problems.check()
    outputs, predicted = _outputs(target_columns, columns.task, earlier_facts, context)
    row_times = None
    if order is not None:
        row_times = _times(frame, order, bool(uses.order), len(owners), context)

    # The rows of each client are its training pool. Spans are ranks among a client's own times.
    pools: dict[str, tuple[Pool | None, ...]] = {}
    for client_number, client_name in enumerate(client_names):
        client_rows = np.flatnonzero(owners == client_number)
        client_positions = torch.from_numpy(client_rows)
        client_meta = {key: row_values[client_positions] for key, row_values in meta.items()}
        if row_times is not None:
            client_times = replace(row_times, values=row_times.values[client_rows])
            client_meta |= spans(client_times, gap_of(columns.gap, row_times.dates))
        pools[client_name] = (
            Pool(inputs[client_positions], outputs[client_positions], client_meta),
            None,
            None,
        )

    # Facts that records and a later world (after=) read.
    about = {
        "features": [str(name) for name in feature_names],
        "targets": [str(name) for name in target_names],
        **predicted.about,
    }
    if subject is not None:
        about[SUBJECT] = str(subject)
    about |= about_order(str(order) if uses.order else "", columns.gap, pools)

    # Hints where nobody said by which order or for which task the rows are meant.
    hints: list[str] = []
    if order is None:
        hints += time_hints(frame, feature_names, uses.unused, owners)
    if columns.task == "auto" and len(target_columns) == 1:
        hints += _type_hints(target_columns, predicted)
    return OwnData(
        pools=pools,
        shape=(len(feature_names),),
        outputs=predicted.outputs,
        objective=objective_for(predicted),
        about=about,
        dtypes=dtypes,
        hints=hints,
    )


@dataclass(frozen=True, kw_only=True)
class _ColumnUses:
    """What the columns of a table are for.

    Attributes:
        targets: The columns to predict.
        features: The columns of the inputs.
        order: The column of the times, in a list; empty if there is none, or the times are an array.
        unused: The columns that are not the client, a target, the subject or a feature.
    """

    targets: list[Any]
    features: list[Any]
    order: list[Any]
    unused: list[Any]


def _column_uses(frame: Any, columns: FrameColumns, context: str) -> _ColumnUses:
    """Check which columns the user names, and give the others their use; arguments as for :func:`clients_of`."""
    client = columns.client
    target = columns.target
    features = columns.features
    order = columns.order
    names = names_of(frame, context)
    # The user may name one target or several.
    target_names = list(target) if isinstance(target, list | tuple) else [target]
    if features is not None and (isinstance(features, str) or not isinstance(features, Iterable)):
        raise UserError(f"features must be a list of columns, got {features!r}")
    if not target_names:
        raise UserError("target must be a column or several, got none")
    taken_names = [client, *target_names]
    if columns.subject is not None:
        taken_names.append(columns.subject)
    # A list in place of a name would fail below with a message of Python.
    for used_name in (*taken_names, *(features or ())):
        if not isinstance(used_name, Hashable):
            raise UserError(
                f"client, target, features and subject must be names of columns, "
                f"got a {type(used_name).__name__} (columns: {listed(names)})"
            )

    # Without a choice, every column that has no other use is a feature.
    order_names = [order] if order is not None and _is_name(order, names) else []
    feature_names = list(features or ())
    if features is None:
        feature_names = [name for name in names if name not in [*taken_names, *order_names]]
    check_columns(names, taken_names, feature_names, context)
    check_order(names, taken_names, order_names, columns.gap if order is None else None, context)

    # Columns of pandas that are not of one frame must have the same rows.
    if isinstance(frame, Mapping):
        used_names = (*taken_names, *feature_names, *order_names)
        check_rows({str(name): frame[name] for name in used_names}, context)
    if order is not None and not order_names:
        check_rows({str(client): frame[client], "order": order}, context)
    return _ColumnUses(
        targets=target_names,
        features=feature_names,
        order=order_names,
        unused=[name for name in names if name not in (*taken_names, *feature_names)],
    )


def _outputs(
    target_columns: Mapping[str, np.ndarray],
    task: str,
    earlier_facts: Mapping[str, Any] | None,
    context: str,
) -> tuple[torch.Tensor, PredictionTask]:
    """The targets of all rows, and what is predicted; classes have the numbers of an earlier world, if there is one."""
    # With the classes of an earlier world, a table may have one of them alone.
    least_classes = 2 if earlier_facts is None else 1
    outputs, predicted = targets(target_columns, task, context, least_classes)
    first_target = next(iter(target_columns))
    # Names of classes end in reports, and two that look alike are one class to a reader.
    for class_name in predicted.classes:
        check_name(class_name, f"{context}: the column {first_target}")
    check_unlike(predicted.classes, f"classes in the column {first_target} of {context}")
    if earlier_facts is None:
        return outputs, predicted
    return as_before(outputs, predicted, earlier_facts, f"{context}: the target {first_target}")


def _subjects(column: np.ndarray, name: Any, context: str) -> torch.Tensor:
    """The number of each row's subject ``(N,)``."""
    subject_ids = _ids(column, f"{context}: the column {name} must name the subjects")
    distinct_ids, subject_numbers = np.unique(subject_ids, return_inverse=True)
    check_unlike(distinct_ids, f"subjects of {context}")
    return torch.from_numpy(subject_numbers)


def _times(frame: Any, order: Any, is_column: bool, rows: int, context: str) -> Times:
    """The times of all rows, from a column or an array."""
    order_context = f"{context}: the column {order}" if is_column else f"{context}: order"
    row_times = times_of(frame[order] if is_column else order, order_context)
    if len(row_times.values) != rows:
        raise UserError(
            f"{order_context} must have a time for each of {rows:,} rows, got {len(row_times.values):,}"
        )
    return row_times


def _type_hints(target_columns: Mapping[str, np.ndarray], predicted: PredictionTask) -> list[str]:
    """A hint if the type of the only target decided on the task, and its values suggest another."""
    ((name, column),) = target_columns.items()
    for_classes = 'task = "classification" makes classes of them'
    for_numbers = 'task = "regression"'
    sentence = hint(column, predicted, f"target {name!r}", for_classes, for_numbers)
    return [sentence] if sentence else []


def _is_name(order: Any, names: Sequence[Any]) -> bool:
    """Whether an order is the name of a column, and not an array; a text can only be a name."""
    return isinstance(order, str) or (not hasattr(order, "__len__") and order in names)


def check_order(
    names: Sequence[Any],
    taken_names: Sequence[Any],
    order_names: Sequence[Any],
    gap: Any,
    context: str,
) -> None:
    """Check the use of the column that orders the rows.

    Args:
        names: All columns.
        taken_names: The columns of the client, the targets and the subject.
        order_names: The column, if there is one.
        gap: The gap, if there is no order.
        context: The table, for messages.

    Raises:
        UserError: It is missing, occurs twice, or has another use; or there is a gap without an
            order.
    """
    check_gap(gap)
    if gap is not None:
        raise UserError(f"gap {gap!r} needs order, a column by which rows are early or late")
    for name in order_names:
        # Any other column stands for the features, which are not checked here.
        check_columns(
            names,
            [name],
            [other_column for other_column in names if other_column != name][:1],
            context,
        )
        if name in taken_names:
            raise UserError(
                f"{context}: the order {name!r} is the client, a target or the subject, and must be another column"
            )


def time_hints(
    frame: Any, features: Sequence[Any], unused: Sequence[Any], owners: np.ndarray
) -> list[str]:
    """Return a hint if no order is given and a column looks like time.

    Args:
        frame: As for :func:`from_frame`.
        features: The features.
        unused: Columns that are not used.
        owners: The client's number of each row ``(N,)``.
    """
    # Columns that are no features first: times are more often left out than used as features.
    for name in (*unused, *features):
        column = frame[name]
        array = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(as_array(column))
        if len(array) != len(owners):
            continue
        if is_time_column(name, array, owners):
            return [looks_like_time(name)]
        if sentence := hint_of_dates(name, array):
            return [sentence]
    # The rows of a data frame of pandas may have their times as names.
    index_order = index_as_order(frame)
    if index_order:
        return [
            f"the index of the data frame holds times: order={index_order} tests on later rows; "
            f"now {TIME_HINT_END}"
        ]
    return []


def _check_no_mixture(column: Any, context: str) -> None:
    """Raise :class:`~coterie.settings.UserError` if names are booleans and numbers, of which ``True`` and 1 would be one."""
    # Only objects can be of several types.
    array = np.asarray(as_array(column))
    if array.dtype.kind != "O":
        return
    if len({isinstance(value, bool | np.bool_) for value in array}) == 2:
        raise UserError(
            f"{context} has booleans and other values, of which True and 1 would be one name: make text of them"
        )


def _owners(column: np.ndarray, name: Any, context: str) -> tuple[np.ndarray, list[str]]:
    """The client's number of each row ``(N,)``, and the names of the clients."""
    # Names are sorted, whole numbers as numbers, so that the order of rows does not matter.
    client_ids = _ids(column, f"{context}: the column {name} must name the clients")
    owners, client_names = encoded(client_ids)
    for client_name in client_names:
        check_name(client_name, f"{context}: the column {name}")
    return owners, client_names


def _ids(column: np.ndarray, rule: str) -> np.ndarray:
    """Names or numbers ``(N,)``; ids become floats where one was missing, and are whole numbers again here."""
    if column.dtype.kind != "f":
        return column
    # Up to 2^53 every whole number is a float.
    if (
        not np.isfinite(column).all()
        or (column != np.floor(column)).any()
        or np.abs(column).max() > 2**53
    ):
        raise UserError(f"{rule}, and holds fractions")
    return column.astype(np.int64)


def _instead(text: str) -> str:
    """What to do about a text where a number is needed."""
    # The usual reasons why a column of numbers is read as text.
    plain_text = text.strip().lower()
    if re.fullmatch(r"[+-]?\d+,\d+", plain_text):
        return "numbers have a decimal point, not a comma"
    if plain_text.lstrip("+-") in ("inf", "infinity"):
        return "numbers must be finite"
    if plain_text in ("na", "n/a", "nan", "null", "none", "-", "?"):
        return "an empty field is a missing value, and features must have none: fill it in or leave the row out"
    return (
        f"{MAKE_NUMBERS}, such as a column of 0 and 1 for each of its values (pandas.get_dummies)"
    )


def _inputs(
    names: Sequence[Any], column_of: Callable[[Any], np.ndarray], rows: int, problems: Problems
) -> tuple[torch.Tensor, list[str]]:
    """The inputs ``(N, features)`` float32, and the type of each column; columns that cannot be inputs are problems."""
    matrix = np.empty((rows, len(names)), np.float32)
    dtypes = []
    for column_place, name in enumerate(names):
        with problems.noted():
            column = column_of(name)
            # Whole numbers and fractions may be one column, at different clients.
            dtypes.append("boolean" if column.dtype.kind == "b" else "number")
            _check_numbers(column, name, problems.context)
            # Numbers that are too large for float32 become infinite.
            with np.errstate(over="ignore"):
                matrix[:, column_place] = column
            if not np.isfinite(matrix[:, column_place]).all():
                raise UserError(
                    f"{problems.context}: the column {name} must hold finite numbers in float32"
                )
            # Different numbers may also become one number, such as ids and times in seconds.
            check_distinct(column[:, None], f"{problems.context}: the column", [name])
    return torch.from_numpy(matrix), dtypes


def _check_numbers(column: np.ndarray, name: Any, context: str) -> None:
    """Raise :class:`~coterie.settings.UserError` for a column of text or dates, which cannot be inputs."""
    if column.dtype.kind != "O":
        return
    text_row, text = _first_text(column)
    advice = of_dates(name) if is_date_column(column) else _instead(text)
    raise UserError(
        f"{context}: the column {name} is text ({text!r} in row {text_row:,}): {advice}"
    )


def _first_text(column: np.ndarray) -> tuple[int, str]:
    """The first text of a column that is no number, and its row from 1; the first row if all are numbers."""
    for row_number, text in enumerate(column, 1):
        if not NUMBER_PATTERN.fullmatch(text):
            return row_number, text
    return 1, column[0]
