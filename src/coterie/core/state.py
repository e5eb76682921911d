"""Clients, groups of them, and what a stored state may be made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Client = int
"""A client's id: any whole number >= 0, the same in every exchange. Never a position in a matrix."""

Groups = tuple[tuple[Client, ...], ...]
"""A partition of clients: each group sorted, groups ordered by their first member."""

STATES: dict[str, type[Any]] = {}
"""Tag -> the class of all that may occur in a stored state: what a checkpoint may bring back to life, and nothing else."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
def state(tag: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: a frozen, keyword-only dataclass of tensors, numbers, strings, tuples, mappings and such classes.

    It is entered in ``STATES``, so that records can store and restore it without pickle.

    Args:
        tag: what stored states call the class. It must stay the same when the class is renamed or moved.

    Raises:
        ValueError: Another class has the tag.

    Example:
        >>> @state("doc.counter")
        ... class Counter:
        ...     count: int = 0
        >>> Counter(count=3).count
        3
    """

    def entered(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, kw_only=True, eq=False)(cls)
        known = STATES.setdefault(tag, made)
        modules = {known.__module__, cls.__module__} - {"__main__"}  # a script may be imported, too
        if known.__qualname__ != cls.__qualname__ or len(modules) > 1:
            other = f"{known.__module__}.{known.__qualname__}"
            raise ValueError(f"the tag {tag!r} of {cls.__qualname__} is that of {other} already")
        STATES[tag] = made  # a class defined anew, as in a notebook, takes the place of the old one
        made.__state_tag__ = tag  # type: ignore[attr-defined]
        return made

    return entered


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
