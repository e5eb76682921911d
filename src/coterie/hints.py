"""Whether a value is what an annotation says, as far as it can be told: for values that were read from a file."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

_NUMBERS: Mapping[Any, Any] = {int: Integral, float: Real, bool: (bool, np.bool_), str: str}


def agrees(value: Any, hint: Any) -> bool:
    """Whether ``value`` may stand where ``hint`` does; true of hints that are not known here.

    >>> agrees((1, 2), tuple[int, ...]), agrees((1, "x"), tuple[int, ...]), agrees(None, int | None), agrees(True, int)
    (True, False, True, False)
    """
    if hint is Any:
        return True
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(agrees(value, option) for option in inner)
    if origin is typing.Literal:
        return value in inner
    if origin in _NUMBERS:
        return isinstance(value, _NUMBERS[origin]) and (origin is bool or not isinstance(value, bool | np.bool_))
    if origin is tuple:
        return isinstance(value, tuple) and _all_agree(value, inner)
    if origin is frozenset:
        return isinstance(value, frozenset) and all(_all_agree((one,), inner) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_all_agree(pair, inner) for pair in value.items())
    return isinstance(value, origin) if isinstance(origin, type) else True


def _all_agree(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    """Whether the entries of a tuple are those of ``tuple[hints]``; a tuple without hints has any."""
    if not hints:
        return True
    if hints[1:] == (...,):
        return all(agrees(value, hints[0]) for value in values)
    return len(values) == len(hints) and all(map(agrees, values, hints))
