"""Order in time: the times that users give, the parts that follow each other, and what records say.

The earliest examples of a client train, later ones are held out, and the last ones test. An example
shows a *span* of time: a row shows one time, and a window of a series all times from its first
value to its last. An example is in an earlier part only if its span ends before the span of each
example of all later parts begins. A *gap* makes spans begin earlier. So no value is on both sides
of a cut, and rows of the same time are in the same part.

``times`` reads single times and gaps, and ``windows`` finds the windows that overlap; this file
orders examples by them. :func:`coterie.from_lists` and the folder of .npz files give a client an
array of times (:func:`order_of_each`, :func:`with_spans`), :func:`coterie.from_frame` and table files
a column (:func:`spans`); ``own`` then cuts each client by :func:`in_time`, and ``training.splits`` the
held-out examples of a round by :func:`latest`. Refused are a gap without an order, times that do not
fit the examples, later parts that are not later, and an order at some clients only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import numpy as np
import torch

from coterie.data.batches import Items
from coterie.data.examples import Pool
from coterie.data.spelling import client_called
from coterie.data.times import (
    EPOCH,
    TIME_HINT_END,
    Times,
    check_gap,
    gap_of,
    hint_of_dates,
    index_as_order,
    is_time_column,
    times_of,
)
from coterie.data.windows import overlap
from coterie.data.world import ClientData
from coterie.notebook.tables import count
from coterie.settings import UserError

STARTS = "starts"
"""Column of a pool's ``meta``: the starts of its examples' spans, as ranks among the client's times."""

ENDS = "ends"
"""Column of a pool's ``meta``: the ends of these spans."""

MAX_TRIED_CUTS = 100
"""Places of a cut that are tried, those with the wanted number of examples first."""

MAX_SIZE_DEVIATION = 0.5
"""Part of the wanted number by which a part may be larger or smaller, unless many examples have the
same time."""

GAP_ROUNDING = 1e-9
"""Part of a gap of floats by which it is made longer: 0.4 - 0.3 is less than 0.1."""

ORDERS = ("order", "order_validation", "order_test")
"""Keys of the times of a client's training, validation and test examples."""

MAX_EXAMINED_CLIENTS = 5
"""Clients whose examples are examined for overlapping windows, where no order is given."""

Pools = tuple[Pool | None, ...]
"""The (training, validation, test) pools of a client; a missing one is None."""


def spans(times: Times, gap: float = 0.0, overlap: int = 0) -> dict[str, torch.Tensor]:
    """Return the spans of examples.

    Args:
        times: Their times.
        gap: In the unit of the times: examples of a later part are later by more than this.
        overlap: Number of the next distinct times whose examples share values with an example, such
            as of overlapping windows; see :func:`~coterie.data.windows.overlap`.

    Returns:
        ``STARTS`` and ``ENDS``, ``(N,)`` int64. They are ranks, which other clients cannot change.
    """
    # An example with one time begins and ends there.
    first_and_last = times.values if times.values.ndim == 2 else times.values[:, None]
    first_times = first_and_last[:, 0]
    last_times = first_and_last[:, -1]

    # A gap makes spans begin earlier. Of floats it is a little longer than given, because a
    # difference that is exactly the gap may be rounded down; of whole numbers it must not overflow.
    if gap and first_times.dtype.kind == "f":
        rounding = GAP_ROUNDING * np.spacing(np.abs(first_times).max() / GAP_ROUNDING)
        first_times = first_times - gap * (1 + GAP_ROUNDING) - rounding
    elif gap:
        whole_gap = int(min(gap, 2.0**62))
        lowest_time = np.iinfo(np.int64).min + whole_gap
        first_times = np.maximum(first_times, lowest_time) - whole_gap

    # Ranks among the client's last times: every end before the start has a smaller rank.
    distinct_times, end_ranks = np.unique(last_times, return_inverse=True)
    start_ranks = np.searchsorted(distinct_times, first_times)
    start_ranks = np.minimum(start_ranks, end_ranks - overlap)
    return {
        STARTS: torch.from_numpy(start_ranks.astype(np.int64)),
        ENDS: torch.from_numpy(end_ranks.astype(np.int64)),
    }


def spans_of(meta: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the spans ``(N, 2)`` that a pool has in its ``meta``, or None."""
    return torch.stack([meta[STARTS], meta[ENDS]], 1) if ENDS in meta else None


def in_time(
    spans: np.ndarray,
    sizes: tuple[int, int],
    subjects: np.ndarray | None,
    name: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the examples of a client into training, validation and test examples, the last ones for tests.

    Examples whose spans reach into a later part are in no part. So are those of a subject that a
    later part has.

    Args:
        spans: Start and end of each example's span ``(N, 2)``.
        sizes: Numbers of validation and of test examples; each cut is made between two times, at
            the nearest number. A part of 0 examples stays empty.
        subjects: The subject of each example ``(N,)``, or None if each has its own.
        name: The client, for the message.

    Returns:
        Positions of the training, validation and test examples, each in order of time.

    Raises:
        UserError: A part would be empty.
    """
    validation_size, test_size = sizes
    by_time = np.argsort(spans[:, 1], kind="stable")
    no_rows = by_time[:0]

    # Of all cuts, nearest to the wanted sizes first, the first that leaves something to train on.
    for test in _latest(spans, by_time, test_size) if test_size else (no_rows,):
        before_test = _before(spans, by_time, test, subjects)
        validations = (
            _latest(spans, before_test, validation_size) if validation_size else (no_rows,)
        )
        for validation in validations:
            train = _before(spans, before_test, validation, subjects)
            if len(train):
                return train, validation, test

    parts = 1 + bool(validation_size) + bool(test_size)
    times = count(len(np.unique(spans[:, 1])), "different time")
    hint = ""
    if subjects is not None:
        hint = ", or leave out subject: rows of a subject that a later part has are left out"
    raise UserError(
        f"{name} has {count(len(spans), 'example')} at {times}, too few for {parts} parts that follow each other in time with "
        f"this gap: use a smaller gap{hint}, or leave the client out"
    )


def latest(
    spans: np.ndarray, max_held_out: int, wanted_size: int, subjects: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Hold out the latest examples.

    Args:
        spans: Start and end of each example's span ``(N, 2)``.
        max_held_out: The greatest number of examples to hold out.
        wanted_size: The number of examples to hold out; the cut is made between two times, at the
            nearest number.
        subjects: The subject of each example ``(N,)``, or None if each has its own.

    Returns:
        Positions, in ascending order, of the examples that are held out, and of those before them
        that do not reach into them; None if there is no such cut.
    """
    by_time = np.argsort(spans[:, 1], kind="stable")
    for held_out in _latest(spans, by_time, wanted_size):
        kept = _before(spans, by_time, held_out, subjects)
        if len(kept) and len(held_out) <= max_held_out:
            return np.sort(held_out), np.sort(kept)
    return None


def _latest(spans: np.ndarray, rows: np.ndarray, wanted_size: int) -> Iterator[np.ndarray]:
    """The last of ``rows``, which are in order of time, about ``wanted_size`` of them; of several cuts, the nearest first."""
    # Cuts are never between rows of the same time.
    ends = spans[rows, 1]
    cuts = 1 + np.flatnonzero(np.diff(ends))
    if not len(cuts):
        return
    size_errors = np.abs(len(rows) - cuts - wanted_size)
    nearest_first = np.argsort(size_errors, kind="stable")[:MAX_TRIED_CUTS]
    # The nearest cut is tried, however far it is: many examples may have the same time.
    largest_error = max(size_errors.min(), MAX_SIZE_DEVIATION * wanted_size)
    for cut in cuts[nearest_first[size_errors[nearest_first] <= largest_error]]:
        yield rows[cut:]


def _before(
    spans: np.ndarray, rows: np.ndarray, later_rows: np.ndarray, subjects: np.ndarray | None
) -> np.ndarray:
    """Those of ``rows`` that end before all of ``later_rows`` begin, and whose subjects are not among these."""
    if not len(later_rows):
        return rows
    is_before = spans[rows, 1] < spans[later_rows, 0].min()
    if subjects is not None:
        is_before &= ~np.isin(subjects[rows], subjects[later_rows])
    return rows[is_before]


# --------------------------------------------------------------------------------------------------
# The times that users give with their clients' examples.


def order_of_each(clients: Mapping[Any, Any], order: Any, gap: Any) -> dict[Any, Any]:
    """Give each client its own order.

    Args:
        clients: Name of each client -> its data, see :func:`coterie.from_lists`.
        order: See :func:`coterie.from_lists`.
        gap: See :func:`coterie.from_lists`.

    Returns:
        The clients' data, each a mapping with an order, if ``order`` is not None.

    Raises:
        UserError: The order does not fit the clients, or there is a gap but no order.
    """
    check_gap(gap)
    if order is None:
        has_order = any(isinstance(data, Mapping) and "order" in data for data in clients.values())
        if gap is not None and not has_order:
            raise UserError(
                f"gap {gap!r} needs an order, by which examples are early or late: pass the times of each client"
            )
        return dict(clients)
    if isinstance(order, str):
        raise UserError(
            f"order must be the times of each client's examples, got {order!r}; from_frame takes a column's name"
        )
    # Every client gets its times as the key "order" of its data.
    data_with_order: dict[Any, Any] = {}
    for name, client_order in _by_client(clients, order).items():
        data_with_order[name] = _with_order(name, clients[name], client_order)
    return data_with_order


def _by_client(clients: Mapping[Any, Any], order: Any) -> dict[Any, Any]:
    """Name of each client -> its order."""
    if isinstance(order, Mapping):
        if set(order) != set(clients):
            name = next(iter(set(order) ^ set(clients)))
            raise UserError(
                f"order must have the times of each client by its name, and {name!r} is not in both"
            )
        # In the order of the clients, not of the mapping.
        return {name: order[name] for name in clients}

    # A list of arrays, or a table, has one array for each client. A table of two columns has the
    # first and last times of each example.
    is_list_of_arrays = isinstance(order, list | tuple) and all(
        hasattr(times, "__len__") and not isinstance(times, str) for times in order
    )
    is_table = (
        isinstance(order, np.ndarray | torch.Tensor) and order.ndim == 2 and order.shape[1] != 2
    )
    if is_list_of_arrays or is_table:
        if len(order) != len(clients):
            raise UserError(
                f"order must have one array for each of {count(len(clients), 'client')}, got {len(order)}"
            )
        return dict(zip(clients, order, strict=True))

    # One array is that of all clients.
    return dict.fromkeys(clients, order)


def _with_order(name: Any, data: Any, order: Any) -> Mapping[str, Any]:
    """A client's data as a mapping that has an order."""
    if isinstance(data, Mapping):
        if "order" in data:
            raise UserError(
                f"{client_called(name)} has an order in its data and in order: give it once"
            )
        return {**data, "order": order}
    # A tuple becomes a mapping with the same meaning; a data set becomes its train.
    if isinstance(data, Sequence):
        keys = ("x", "y", "x_test", "y_test")
        if len(data) not in (2, 4):
            raise UserError(
                f"{client_called(name)} must be (x, y) or (x, y, x_test, y_test), got {len(data)} arrays"
            )
        return {**dict(zip(keys, data, strict=False)), "order": order}
    return {"train": data, "order": order}


def with_spans(pools: Pools, data: Mapping[str, Any], gap: Any, context: Any) -> Pools:
    """Give a client's pools the spans of their examples, and check that parts follow each other in time.

    Args:
        pools: The (training, validation, test) pools.
        data: The client's data, with some keys of :data:`ORDERS` or none.
        gap: See :func:`coterie.from_lists`.
        context: The client, for messages.

    Returns:
        The pools, with :data:`ENDS` in the ``meta`` of those that have an
        order.

    Raises:
        UserError: An order does not fit its examples, or a part is not later than an earlier one.
    """
    keys = [key for key in ORDERS if data.get(key) is not None]
    if not keys:
        return pools
    if keys[0] != "order":
        raise UserError(f"{context} has {keys[0]} and no order, the times of its training examples")
    # Each part with times gets the spans of its examples.
    pools_with_spans: list[Pool | None] = list(pools)
    times_of_key: dict[str, Times] = {}
    for key in keys:
        place = ORDERS.index(key)
        pool = pools[place]
        key_context = f"{context}: {key}"
        if pool is None:
            raise UserError(f"{key_context} is the time of examples that it does not have")
        times = times_of(data[key], key_context)
        times_of_key[key] = times
        if len(times.values) != len(pool):
            raise UserError(
                f"{key_context} must hold a time for each of {len(pool)} examples, got {len(times.values)}"
            )
        pools_with_spans[place] = replace(
            pool, meta={**pool.meta, **_spans_of_pool(pool, times, gap)}
        )
    check_later(times_of_key, gap, context)
    return tuple(pools_with_spans)


def _spans_of_pool(pool: Pool, times: Times, gap: Any) -> dict[str, torch.Tensor]:
    """The spans of a pool's examples, which are longer for overlapping windows."""
    shared_windows = 0
    if not isinstance(pool.inputs, Items):
        # Windows may lie in the order of their times, or in the order of the pool.
        last_times = times.values if times.values.ndim == 1 else times.values[:, 1]
        by_time = np.argsort(last_times, kind="stable")
        shared_windows = max(
            overlap(pool.inputs, pool.targets), overlap(pool.inputs, pool.targets, by_time)
        )
    return spans(times, gap_of(gap, times.dates), shared_windows)


def check_later(times_of_key: Mapping[str, Times], gap: Any, context: Any) -> None:
    """Check that given parts follow each other in time.

    Args:
        times_of_key: Key of :data:`ORDERS` -> the times of the part.
        gap: See :func:`coterie.from_lists`.
        context: The client, for messages.

    Raises:
        UserError: An example of a later part is not later than all of an earlier one.
    """
    # The keys are in the order of the parts, so the second one of each pair must be later.
    for (early_key, early), (late_key, late) in combinations(times_of_key.items(), 2):
        if early.dates != late.dates:
            raise UserError(
                f"{context}: {early_key} and {late_key} must both hold dates, or both numbers"
            )
        last_early = early.values.max()
        first_times = late.values if late.values.ndim == 1 else late.values[:, 0]
        is_too_early = first_times - gap_of(gap, late.dates) <= last_early
        if is_too_early.any():
            by_gap = "" if gap is None else f" by more than the gap {gap}"
            raise UserError(
                f"{context}: {count(int(is_too_early.sum()), 'example')} of {late_key} are not later{by_gap} "
                f"than all of {early_key}, which ends at {_shown(last_early, early.dates)}, "
                f"while {late_key} begins at {_shown(first_times.min(), late.dates)}: "
                "a test on the past knows the future; give later examples"
            )


def _shown(time: Any, is_date: bool) -> str:
    """A time in a message."""
    if is_date:
        return str(EPOCH + timedelta(microseconds=int(time)))
    return f"{time:g}" if isinstance(time, float) else str(time)


# ----------------------------------------------------------------------------------------------------
# What records and reports say.


def about_order(
    column: str, gap: Any, pools_of_clients: Mapping[Any, Sequence[Pool | None]]
) -> dict[str, Any]:
    """Return the entry ``order`` for ``World.about``: what orders the examples, and the gap; empty without an order.

    Args:
        column: The name of the column, or empty.
        gap: See :func:`coterie.from_lists`.
        pools_of_clients: Name of each client -> its pools.
    """
    ordered_names: list[str] = []
    unordered_names: list[str] = []
    for name, (train_pool, *_) in pools_of_clients.items():
        if train_pool is not None:
            names = ordered_names if ENDS in train_pool.meta else unordered_names
            names.append(str(name))
    if not ordered_names:
        return {}
    if unordered_names:
        raise UserError(
            f"{client_called(unordered_names[0])} has no order, and other clients have one: give all clients one, or none"
        )
    # Records keep the gap as text, whatever it was.
    entry = {"by": column or "time"}
    if isinstance(gap, int | float):
        entry["gap"] = f"{gap:g}"
    elif gap is not None:
        entry["gap"] = str(gap)
    return {"order": entry}


def tested_by(
    about: Mapping[str, Any],
    pools_of_clients: Mapping[Any, Sequence[Pool | None]],
    clients: Iterable[ClientData],
) -> tuple[dict[str, Any], list[str]]:
    """Add to the entry ``order`` which share of the examples tests, and how many are left out.

    Args:
        about: Facts about the world.
        pools_of_clients: Name of each client -> its pools.
        clients: The data of the clients.

    Returns:
        The facts, and hints about given parts whose times are not known.
    """
    if "order" not in about:
        return dict(about), []

    # Examples that reach over a cut are in no part: they are the difference.
    used_count = 0
    test_count = 0
    for data in clients:
        used_count += len(data.train) + len(data.validation) + len(data.test)
        test_count += len(data.test)
    example_count = 0
    for client_pools in pools_of_clients.values():
        example_count += sum(len(pool) for pool in client_pools if pool is not None)
    entry = {
        **about["order"],
        "test": round(test_count / used_count, 3),
        "left_out": example_count - used_count,
    }

    # One hint for each part whose times some client does not give.
    hints = []
    for place, order_key in enumerate(ORDERS):
        for name, client_pools in pools_of_clients.items():
            pool = client_pools[place]
            if pool is not None and ENDS not in pool.meta:
                hints.append(
                    f"{client_called(str(name))} has {order_key.removeprefix('order_')} examples without {order_key}: "
                    "whether they are later is not known"
                )
                break
    return {**about, "order": entry}, hints


def time_column_hints(clients: Mapping[Any, Any]) -> list[str]:
    """Return a hint if the tables of all clients have a column or an index of times, and are divided at random.

    Args:
        clients: Name of each client -> its data, as given to :func:`coterie.from_lists`.
    """
    in_all_tables: dict[str, None] | None = None
    for data in list(clients.values())[:MAX_EXAMINED_CLIENTS]:
        table = _table_divided_at_random(data)
        if table is None:
            return []
        times_of_table = _times_in(table)
        if in_all_tables is None:
            in_all_tables = dict.fromkeys(times_of_table)
        in_all_tables = {name: None for name in in_all_tables if name in times_of_table}
    for times_in_words in in_all_tables or ():
        return [
            f"{times_in_words} of the clients' tables looks like time: with order, for each client the times of its rows, "
            f"later rows test; now {TIME_HINT_END}"
        ]
    return []


def _table_divided_at_random(data: Any) -> Any:
    """The data frame of a client's inputs; None if it is none, or has an order or tests of its own."""
    table = None
    if isinstance(data, Mapping) and not {"order", "x_test"}.intersection(data):
        table = data.get("x")
    elif isinstance(data, tuple | list) and len(data) == 2:
        table = data[0]
    return table if hasattr(table, "columns") and hasattr(table, "to_numpy") else None


def _times_in(table: Any) -> list[str]:
    """What of a data frame holds times, in words."""
    times_in_words = []
    for name in table.columns:
        values = table[name].to_numpy()
        one_client = np.zeros(len(values), dtype=np.int64)
        if is_time_column(name, values, one_client) or hint_of_dates(name, values):
            times_in_words.append(f"the column {str(name)!r}")
    if index_as_order(table):
        times_in_words.append("the index")
    return times_in_words


def window_hints(pools_of_clients: Mapping[Any, Sequence[Pool | None]]) -> list[str]:
    """Return a hint if no order is given, parts are divided at random, and examples are overlapping windows of a series."""
    # Clients with test data of their own are not divided at random.
    for train_pool, _, test_pool in list(pools_of_clients.values())[:MAX_EXAMINED_CLIENTS]:
        if train_pool is None or test_pool is not None:
            continue
        if ENDS in train_pool.meta or isinstance(train_pool.inputs, Items):
            continue
        if shared_windows := overlap(train_pool.inputs, train_pool.targets):
            return [
                f"examples are overlapping windows, each shares values with the next {shared_windows}, and tests at random "
                "places know the future: order, such as the numbers of the windows, tests on later ones"
            ]
    return []
