"""Pieces of sentences that all explanations share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coterie.report.explain.findings import short
from coterie.report.terminal import members


def who(clients: Iterable[int]) -> str:
    """A group in words.

    >>> who([3]), who([0, 1, 2])
    ('client 3', 'clients 0-2 (3 clients)')
    """
    ids = list(clients)
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {members(ids, most=6)}"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "group"), count(3, "group")
    ('1 group', '3 groups')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rounds(numbers: Sequence[int], most: int = 8) -> str:
    """Rounds in words.

    >>> rounds([4]), rounds([1, 2, 3, 7])
    ('round 4', 'rounds 1-3, 7')
    """
    text = members(numbers, most=most).rpartition(" (")[0]
    return f"round{'' if len(numbers) == 1 else 's'} {text}"


def ranked(values: Mapping[str, float], names: Mapping[str, str], most: int = 4) -> str:
    """Numbers with the names of what they are of, in their order; the rest counted.

    >>> ranked({"a": 0.5, "b": 0.25, "c": 1.0}, {"a": "branch a", "b": "branch b"}, most=2)
    '0.5 for branch a; 0.25 for branch b; and 1 more'
    """
    shown = "; ".join(f"{short(value)} for {names[name]}" for name, value in list(values.items())[:most])
    return shown + (f"; and {len(values) - most} more" if len(values) > most else "")
