"""Clients from the columns of a table: one names the client, one or several are the target, the others are features."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.data.arrays import as_array
from coterie.data.columns import NUMBERS, check_columns, listed, names_of, of_dates, values
from coterie.data.examples import Pool, check_distinct
from coterie.data.matching import Matching, check_rows
from coterie.data.objective import Objective
from coterie.data.order import about_order, spans
from coterie.data.own import SUBJECT, OwnData
from coterie.data.scaling import Constants
from coterie.data.spelling import check_unlike
from coterie.data.splits import check_shares
from coterie.data.tasks import as_before, encoded, hint, objective_for, targets
from coterie.data.times import check_gap, gap_of, is_date_column, is_time_column, times_of
from coterie.data.world import OF_A_WORLD, World, check_name
from coterie.settings import UserError
from coterie.settings.calls import public

NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
"""A number in text."""


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
    earlier = None if after is None else after.about
    data = clients_of(
        frame, client, target, features, task, "the data frame", subject, order, gap, earlier
    )
    world = {"objective": objective or data.objective, **world}
    return data.world(
        model,
        (train, validation),
        seed,
        standardize=standardize,
        standardize_target=standardize_target,
        after=after,
        **world,
    )


def clients_of(
    frame: Any,
    client: Any,
    target: Any,
    features: Sequence[Any] | None,
    task: str,
    where: str,
    subject: Any = None,
    order: Any = None,
    gap: Any = None,
    earlier: Mapping[str, Any] | None = None,
) -> OwnData:
    """Divide the rows of a table among clients.

    Args:
        frame: As for :func:`from_frame`.
        client: As for :func:`from_frame`.
        target: As for :func:`from_frame`.
        features: As for :func:`from_frame`.
        task: As for :func:`from_frame`.
        where: The table, for messages.
        subject: As for :func:`from_frame`.
        order: As for :func:`from_frame`.
        gap: As for :func:`from_frame`.
        earlier: The facts of an earlier world, whose features, targets and classes keep their
            order; None if there is none.

    Returns:
        The clients' data.

    Raises:
        UserError: As for :func:`from_frame`.
    """
    names = names_of(frame, where)
    several = list(target) if isinstance(target, list | tuple) else [target]
    if features is not None and (isinstance(features, str) or not isinstance(features, Iterable)):
        raise UserError(f"features must be a list of columns, got {features!r}")
    if not several:
        raise UserError("target must be a column or several, got none")
    taken = [client, *several, *(() if subject is None else (subject,))]
    for name in (*taken, *(features or ())):
        if not isinstance(name, Hashable):
            what, have = type(name).__name__, listed(names)
            raise UserError(
                f"client, target, features and subject must be names of columns, got a {what} (columns: {have})"
            )
    ordering = [order] if order is not None and _is_name(order, names) else []
    chosen = (
        [name for name in names if name not in [*taken, *ordering]]
        if features is None
        else list(features)
    )
    check_columns(names, taken, chosen, where)
    check_order(names, taken, ordering, gap if order is None else None, where)
    if isinstance(frame, Mapping):
        check_rows({str(name): frame[name] for name in (*taken, *chosen, *ordering)}, where)
    if order is not None and not ordering:
        check_rows({str(client): frame[client], "order": order}, where)
    matching = Matching(earlier)
    chosen = matching.order("x", chosen, where)
    several = matching.order("y", several, where, "targets")
    _check_no_mixture(frame[client], f"{where}: the column {client}")
    owners, clients = _owners(values(frame, client, where), client, where)

    def get(name: Any) -> np.ndarray:
        column = values(frame, name, where)
        if len(column) != len(owners):
            raise UserError(
                f"{where}: the column {name} has {len(column)} rows, and the column {client} has {len(owners)}"
            )
        return column

    outputs, found = targets({str(name): get(name) for name in several}, task, where)
    for name in found.classes:
        check_name(name, f"{where}: the column {several[0]}")
    check_unlike(found.classes, f"classes in the column {several[0]} of {where}")
    if earlier is not None:
        outputs, found = as_before(outputs, found, earlier, f"{where}: the target {several[0]}")
    dtypes: list[str] = []

    def feature(name: Any) -> np.ndarray:
        column = get(name)
        dtypes.append(
            "boolean" if column.dtype.kind == "b" else "number"
        )  # whole numbers and fractions may be one column
        return column

    inputs = _matrix(((name, feature(name)) for name in chosen), len(owners), len(chosen), where)
    subjects: dict[str, torch.Tensor] = {}
    if subject is not None:
        ids = _ids(get(subject), f"{where}: the column {subject} must name the subjects")
        distinct, numbers = np.unique(ids, return_inverse=True)
        check_unlike(distinct, f"subjects of {where}")
        subjects[SUBJECT] = torch.from_numpy(numbers)
    times = None
    if order is not None:
        what = f"{where}: the column {order}" if ordering else f"{where}: order"
        times = times_of(frame[order] if ordering else order, what)
        if len(times.values) != len(owners):
            raise UserError(
                f"{what} must have a time for each of {len(owners):,} rows, got {len(times.values):,}"
            )
    pools = {}
    for number, name in enumerate(clients):
        mine = np.flatnonzero(owners == number)
        rows = torch.from_numpy(mine)
        meta = {key: of_rows[rows] for key, of_rows in subjects.items()}
        if times is not None:
            meta |= spans(replace(times, values=times.values[mine]), gap_of(gap, times.dates))
        pools[name] = (Pool(inputs[rows], outputs[rows], meta), None, None)
    about = {
        "features": [str(name) for name in chosen],
        "targets": [str(name) for name in several],
        **found.about,
    }
    about |= {} if subject is None else {SUBJECT: str(subject)}
    about |= about_order(str(order) if ordering else "", gap, pools)
    unused = [name for name in names if name not in (*taken, *chosen)]
    hints = time_hints(frame, chosen, unused, owners) if order is None else []
    if task == "auto" and len(several) == 1:  # the type of the target decided
        choices = 'task = "classification" makes classes of them', 'task = "regression"'
        hints += filter(
            None, [hint(get(several[0]), found, f"target {str(several[0])!r}", *choices)]
        )
    return OwnData(
        pools=pools,
        shape=(len(chosen),),
        outputs=found.outputs,
        objective=objective_for(found),
        about=about,
        dtypes=dtypes,
        hints=hints,
    )


def _is_name(order: Any, names: Sequence[Any]) -> bool:
    """Whether an order is the name of a column, and not an array; a text can only be a name."""
    return isinstance(order, str) or (not hasattr(order, "__len__") and order in names)


def check_order(
    names: Sequence[Any], taken: Sequence[Any], ordering: Sequence[Any], gap: Any, where: str
) -> None:
    """Check the use of the column that orders the rows.

    Args:
        names: All columns.
        taken: The columns of the client, the targets and the subject.
        ordering: The column, if there is one.
        gap: The gap, if there is no order.
        where: The table, for messages.

    Raises:
        UserError: It is missing, occurs twice, or has another use; or there is a gap without an
            order.
    """
    check_gap(gap)
    if gap is not None:
        raise UserError(f"gap {gap!r} needs order, a column by which rows are early or late")
    for name in ordering:
        check_columns(names, [name], [other for other in names if other != name][:1], where)
        if name in taken:
            raise UserError(
                f"{where}: the order {name!r} is the client, a target or the subject, and must be another column"
            )


HINT = "rows are divided at random, so tests may know the future"
"""The end of a hint of time."""


def time_hints(
    frame: Any, chosen: Sequence[Any], unused: Sequence[Any], owners: np.ndarray
) -> list[str]:
    """Return a hint if no order is given and a column looks like time.

    Args:
        frame: As for :func:`from_frame`.
        chosen: The features.
        unused: Columns that are not used.
        owners: The client's number of each row ``(N,)``.
    """
    for name in (*unused, *chosen):
        column = frame[name]
        array = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(as_array(column))
        if len(array) == len(owners) and (
            is_date_column(array) or is_time_column(name, array, owners)
        ):
            return [looks_like_time(name)]
    return []


def looks_like_time(name: Any) -> str:
    """The hint about a column."""
    return (
        f"column {str(name)!r} looks like time: order={str(name)!r} tests on later rows; now {HINT}"
    )


def _check_no_mixture(column: Any, where: str) -> None:
    """Raise :class:`~coterie.settings.UserError` if names are booleans and numbers, of which ``True`` and 1 would be one."""
    array = np.asarray(as_array(column))
    if array.dtype.kind == "O" and {True, False} == {
        isinstance(value, bool | np.bool_) for value in array
    }:
        raise UserError(
            f"{where} has booleans and other values, of which True and 1 would be one name: make text of them"
        )


def _owners(column: np.ndarray, name: Any, where: str) -> tuple[np.ndarray, list[str]]:
    """The client's number of each row ``(N,)``, and the names of the clients."""
    owners, names = encoded(_ids(column, f"{where}: the column {name} must name the clients"))
    for one in names:
        check_name(one, f"{where}: the column {name}")
    return owners, names


def _ids(column: np.ndarray, rule: str) -> np.ndarray:
    """Names or numbers ``(N,)``; ids become floats where one was missing, and are whole numbers again here."""
    if column.dtype.kind != "f":
        return column
    if (
        not np.isfinite(column).all()
        or (column != np.floor(column)).any()
        or np.abs(column).max() > 2**53
    ):
        raise UserError(f"{rule}, and holds fractions")
    return column.astype(np.int64)


def _instead(text: str) -> str:
    """What to do about a text where a number is needed."""
    word = text.strip().lower()
    if re.fullmatch(r"[+-]?\d+,\d+", word):
        return "numbers have a decimal point, not a comma"
    if word.lstrip("+-") in ("inf", "infinity"):
        return "numbers must be finite"
    if word in ("na", "n/a", "nan", "null", "none", "-", "?"):
        return "an empty field is a missing value, and features must have none: fill it in or leave the row out"
    return f"{NUMBERS}, such as a column of 0 and 1 for each of its values (pandas.get_dummies)"


def _matrix(
    columns: Iterator[tuple[Any, np.ndarray]], rows: int, features: int, where: str
) -> torch.Tensor:
    """The inputs ``(N, features)`` float32."""
    matrix = np.empty((rows, features), np.float32)
    for number, (name, column) in enumerate(columns):
        if column.dtype.kind == "O":
            row, odd = next(
                ((n, one) for n, one in enumerate(column, 1) if not NUMBER.fullmatch(one)),
                (1, column[0]),
            )
            instead = of_dates(name) if is_date_column(column) else _instead(odd)
            raise UserError(
                f"{where}: the column {name} is text ({odd!r} in row {row:,}): {instead}"
            )
        with np.errstate(over="ignore"):
            matrix[:, number] = column
        if not np.isfinite(matrix[:, number]).all():
            raise UserError(f"{where}: the column {name} must hold finite numbers in float32")
        check_distinct(column[:, None], f"{where}: the column", [name])
    return torch.from_numpy(matrix)
