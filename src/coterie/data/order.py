"""Order in time: the times that users give, the parts that follow each other, and what records say.

The earliest examples of a client train, later ones are held out, and the last ones test. An example
shows a *span* of time: a row shows one time, and a window of a series all times from its first
value to its last. An example is in an earlier part only if its span ends before the span of each
example of all later parts begins. A *gap* makes spans begin earlier. So no value is on both sides
of a cut, and rows of the same time are in the same part.
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
from coterie.data.times import EPOCH, Times, check_gap, gap_of, times_of
from coterie.data.windows import overlap
from coterie.data.world import ClientData
from coterie.notebook.tables import count
from coterie.settings import UserError

STARTS = "starts"
ENDS = "ends"
"""Columns of a pool's ``meta`` with the spans of its examples, as ranks among the client's times.
"""

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
    values = times.values if times.values.ndim == 2 else times.values[:, None]
    first, last = values[:, 0], values[:, -1]
    if gap and first.dtype.kind == "f":
        first = (
            first
            - gap * (1 + GAP_ROUNDING)
            - GAP_ROUNDING * np.spacing(np.abs(first).max() / GAP_ROUNDING)
        )
    elif gap:
        whole = int(min(gap, 2.0**62))
        first = np.maximum(first, np.iinfo(np.int64).min + whole) - whole
    distinct, ranks = np.unique(last, return_inverse=True)
    starts = np.searchsorted(distinct, first)  # ends before the start have a smaller rank
    starts = np.minimum(starts, ranks - overlap)
    return {
        STARTS: torch.from_numpy(starts.astype(np.int64)),
        ENDS: torch.from_numpy(ranks.astype(np.int64)),
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
    held, tested = sizes
    everything = np.argsort(spans[:, 1], kind="stable")
    nothing = everything[:0]
    for test in _latest(spans, everything, tested) if tested else (nothing,):
        before = _before(spans, everything, test, subjects)
        for validation in _latest(spans, before, held) if held else (nothing,):
            train = _before(spans, before, validation, subjects)
            if len(train):
                return train, validation, test
    parts = 1 + bool(held) + bool(tested)
    times = count(len(np.unique(spans[:, 1])), "different time")
    of_subjects = (
        ", or leave out subject: rows of a subject that a later part has are left out"
        if subjects is not None
        else ""
    )
    raise UserError(
        f"{name} has {count(len(spans), 'example')} at {times}, too few for {parts} parts that follow each other in time with "
        f"this gap: use a smaller gap{of_subjects}, or leave the client out"
    )


def latest(
    spans: np.ndarray, most: int, wanted: int, subjects: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Hold out the latest examples.

    Args:
        spans: Start and end of each example's span ``(N, 2)``.
        most: The greatest number of examples to hold out.
        wanted: The number of examples to hold out; the cut is made between two times, at the
            nearest number.
        subjects: The subject of each example ``(N,)``, or None if each has its own.

    Returns:
        Positions, in ascending order, of the examples that are held out, and of those before them
        that do not reach into them; None if there is no such cut.
    """
    everything = np.argsort(spans[:, 1], kind="stable")
    for held in _latest(spans, everything, wanted):
        kept = _before(spans, everything, held, subjects)
        if len(kept) and len(held) <= most:
            return np.sort(held), np.sort(kept)
    return None


def _latest(spans: np.ndarray, rows: np.ndarray, wanted: int) -> Iterator[np.ndarray]:
    """The last of ``rows``, which are in order of time, about ``wanted`` of them; of several cuts, the nearest first."""
    ends = spans[rows, 1]
    cuts = 1 + np.flatnonzero(np.diff(ends))  # never between rows of the same time
    if not len(cuts):
        return
    apart = np.abs(len(rows) - cuts - wanted)
    nearest = np.argsort(apart, kind="stable")[:MAX_TRIED_CUTS]
    for cut in cuts[nearest[apart[nearest] <= max(apart.min(), MAX_SIZE_DEVIATION * wanted)]]:
        yield rows[cut:]


def _before(
    spans: np.ndarray, rows: np.ndarray, later: np.ndarray, subjects: np.ndarray | None
) -> np.ndarray:
    """Those of ``rows`` that end before all of ``later`` begin, and whose subjects are not among these."""
    if not len(later):
        return rows
    fits = spans[rows, 1] < spans[later, 0].min()
    if subjects is not None:
        fits &= ~np.isin(subjects[rows], subjects[later])
    return rows[fits]


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
        if gap is not None and not any(
            isinstance(one, Mapping) and "order" in one for one in clients.values()
        ):
            raise UserError(
                f"gap {gap!r} needs an order, by which examples are early or late: pass the times of each client"
            )
        return dict(clients)
    if isinstance(order, str):
        raise UserError(
            f"order must be the times of each client's examples, got {order!r}; from_frame takes a column's name"
        )
    return {
        name: _with_order(name, clients[name], one)
        for name, one in _by_client(clients, order).items()
    }


def _by_client(clients: Mapping[Any, Any], order: Any) -> dict[Any, Any]:
    """Name of each client -> its order."""
    if isinstance(order, Mapping):
        if set(order) != set(clients):
            name = next(iter(set(order) ^ set(clients)))
            raise UserError(
                f"order must have the times of each client by its name, and {name!r} is not in both"
            )
        return {name: order[name] for name in clients}
    several = isinstance(order, list | tuple) and all(
        hasattr(one, "__len__") and not isinstance(one, str) for one in order
    )
    table = isinstance(order, np.ndarray | torch.Tensor) and order.ndim == 2 and order.shape[1] != 2
    if several or table:
        if len(order) != len(clients):
            raise UserError(
                f"order must have one array for each of {count(len(clients), 'client')}, got {len(order)}"
            )
        return dict(zip(clients, order, strict=True))
    return dict.fromkeys(clients, order)  # one array for all


def _with_order(name: Any, data: Any, order: Any) -> Mapping[str, Any]:
    """A client's data as a mapping that has an order."""
    if isinstance(data, Mapping):
        if "order" in data:
            raise UserError(f"client {name} has an order in its data and in order: give it once")
        return {**data, "order": order}
    if isinstance(data, Sequence):
        keys = ("x", "y", "x_test", "y_test")
        if len(data) not in (2, 4):
            raise UserError(
                f"client {name} must be (x, y) or (x, y, x_test, y_test), got {len(data)} arrays"
            )
        return {**dict(zip(keys, data, strict=False)), "order": order}
    return {"train": data, "order": order}


def with_spans(pools: Pools, given: Mapping[str, Any], gap: Any, where: Any) -> Pools:
    """Give a client's pools the spans of their examples, and check that parts follow each other in time.

    Args:
        pools: The (training, validation, test) pools.
        given: The client's data, with some keys of :data:`ORDERS` or none.
        gap: See :func:`coterie.from_lists`.
        where: The client, for messages.

    Returns:
        The pools, with :data:`ENDS` in the ``meta`` of those that have an
        order.

    Raises:
        UserError: An order does not fit its examples, or a part is not later than an earlier one.
    """
    known = [key for key in ORDERS if given.get(key) is not None]
    if not known:
        return pools
    if known[0] != "order":
        raise UserError(f"{where} has {known[0]} and no order, the times of its training examples")
    made: list[Pool | None] = list(pools)
    times: dict[str, Times] = {}
    for key in known:
        place, what = ORDERS.index(key), f"{where}: {key}"
        pool = pools[place]
        if pool is None:
            raise UserError(f"{what} is the time of examples that it does not have")
        times[key] = times_of(given[key], what)
        if len(times[key].values) != len(pool):
            raise UserError(
                f"{what} must hold a time for each of {len(pool)} examples, got {len(times[key].values)}"
            )
        made[place] = replace(pool, meta={**pool.meta, **_spans(pool, times[key], gap)})
    check_later(times, gap, where)
    return tuple(made)


def _spans(pool: Pool, times: Times, gap: Any) -> dict[str, torch.Tensor]:
    """The spans of a pool's examples, which are longer for overlapping windows."""
    shared = 0
    if not isinstance(pool.inputs, Items):
        last = times.values if times.values.ndim == 1 else times.values[:, 1]
        by_time = np.argsort(last, kind="stable")
        shared = max(
            overlap(pool.inputs, pool.targets), overlap(pool.inputs, pool.targets, by_time)
        )
    return spans(times, gap_of(gap, times.dates), shared)


def check_later(times: Mapping[str, Times], gap: Any, where: Any) -> None:
    """Check that given parts follow each other in time.

    Args:
        times: Key of :data:`ORDERS` -> the times of the part.
        gap: See :func:`coterie.from_lists`.
        where: The client, for messages.

    Raises:
        UserError: An example of a later part is not later than all of an earlier one.
    """
    for (one, early), (two, late) in combinations(times.items(), 2):
        if early.dates != late.dates:
            raise UserError(f"{where}: {one} and {two} must both hold dates, or both numbers")
        last = early.values.max()
        first = late.values if late.values.ndim == 1 else late.values[:, 0]
        wrong = first - gap_of(gap, late.dates) <= last
        if wrong.any():
            ends, begins = _shown(last, early.dates), _shown(first.min(), late.dates)
            apart = "" if gap is None else f" by more than the gap {gap}"
            raise UserError(
                f"{where}: {count(int(wrong.sum()), 'example')} of {two} are not later{apart} than all of {one}, which ends at "
                f"{ends}, while {two} begins at {begins}: a test on the past knows the future; give later examples"
            )


def _shown(time: Any, dates: bool) -> str:
    return (
        str(EPOCH + timedelta(microseconds=int(time)))
        if dates
        else f"{time:g}"
        if isinstance(time, float)
        else str(time)
    )


# ----------------------------------------------------------------------------------------------------
# What records and reports say.


def about_order(by: str, gap: Any, pools: Mapping[Any, Sequence[Pool | None]]) -> dict[str, Any]:
    """Return the entry ``order`` for ``World.about``: what orders the examples, and the gap; empty without an order.

    Args:
        by: The name of the column, or empty.
        gap: See :func:`coterie.from_lists`.
        pools: Name of each client -> its pools.
    """
    if not any(first is not None and ENDS in first.meta for first, *_ in pools.values()):
        return {}
    unordered = [
        str(name)
        for name, (first, *_) in pools.items()
        if first is not None and ENDS not in first.meta
    ]
    if unordered:
        raise UserError(
            f"{_called(unordered[0])} has no order, and other clients have one: give all clients one, or none"
        )
    entry = {"by": by or "time"}
    if gap is not None:
        entry["gap"] = (
            gap
            if isinstance(gap, str)
            else f"{gap:g}"
            if isinstance(gap, int | float)
            else str(gap)
        )
    return {"order": entry}


def _called(name: str) -> str:
    """A client's name in a sentence; clients without names are called by their numbers."""
    return name if name.startswith("client ") else f"client {name}"


def tested_by(
    about: Mapping[str, Any],
    pools: Mapping[Any, Sequence[Pool | None]],
    clients: Iterable[ClientData],
) -> tuple[dict[str, Any], list[str]]:
    """Add to the entry ``order`` which share of the examples tests, and how many are left out.

    Args:
        about: Facts about the world.
        pools: Name of each client -> its pools.
        clients: The data of the clients.

    Returns:
        The facts, and hints about given parts whose times are not known.
    """
    if "order" not in about:
        return dict(about), []
    clients = list(clients)
    parts = [
        sum(len(getattr(data, part)) for data in clients)
        for part in ("train", "validation", "test")
    ]
    there = sum(len(pool) for each in pools.values() for pool in each if pool is not None)
    entry = {
        **about["order"],
        "test": round(parts[2] / sum(parts), 3),
        "left_out": there - sum(parts),
    }
    hints = []
    for place, what in enumerate(ORDERS):
        unknown = [
            str(name)
            for name, each in pools.items()
            if (pool := each[place]) is not None and ENDS not in pool.meta
        ]
        if unknown:
            part = what.removeprefix("order_")
            hints.append(
                f"{_called(unknown[0])} has {part} examples without {what}: whether they are later is not known"
            )
    return {**about, "order": entry}, hints


def window_hints(pools: Mapping[Any, Sequence[Pool | None]]) -> list[str]:
    """Return a hint if no order is given, parts are divided at random, and examples are overlapping windows of a series."""
    for first, _, test in list(pools.values())[:MAX_EXAMINED_CLIENTS]:
        if (
            first is None
            or test is not None
            or ENDS in first.meta
            or isinstance(first.inputs, Items)
        ):
            continue
        if shared := overlap(first.inputs, first.targets):
            return [
                f"examples are overlapping windows, each shares values with the next {shared}, and tests at random places know "
                "the future: order, such as the numbers of the windows, tests on later ones"
            ]
    return []
