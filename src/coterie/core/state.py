"""Clients, groups of them, and what a stored state may be made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Client = int
"""A client's id: any whole number >= 0, the same in every exchange. Never a position in a matrix."""

Groups = tuple[tuple[Client, ...], ...]
"""A partition of clients: each group sorted, groups ordered by their first member."""

STATES: dict[str, type[Any]] = {}
"""Every class that may occur in a stored state, by name: what a checkpoint may bring back to life, and nothing else."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
def state(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only dataclass of tensors, numbers, strings, tuples, mappings and such classes.

    It is entered in ``STATES``, so that records can store and restore it without pickle.
    """
    made = dataclass(frozen=True, kw_only=True, eq=False)(cls)
    STATES[f"{cls.__module__}.{cls.__qualname__}"] = made
    return made


def as_groups(groups: Iterable[Iterable[Client]]) -> Groups:
    """Sorted members, groups ordered by their first.

    >>> as_groups([[5, 3], [0, 9]])
    ((0, 9), (3, 5))
    """
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def row_of(groups: Groups) -> dict[Client, int]:
    """client -> the number of its group."""
    return {client: row for row, group in enumerate(groups) for client in group}


def joined(clients: tuple[Client, ...], new: Iterable[Client]) -> tuple[Client, ...]:
    """``clients`` and ``new``, sorted, nobody twice."""
    return tuple(sorted({*clients, *new}))


def without(clients: Iterable[Client], gone: Iterable[Client]) -> tuple[Client, ...]:
    """``clients`` less those of ``gone``, in their order."""
    away = set(gone)
    return tuple(c for c in clients if c not in away)
