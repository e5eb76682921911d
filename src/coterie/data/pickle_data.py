"""The data in a pickle, read without unpickling: no name in it is looked up, and nothing is called.

Python's own reader does whatever a pickle says. Here its operations
(:mod:`pickletools`) build dictionaries, lists, tuples, numbers and texts alone. What a pickle would
call becomes a :class:`Call`, which says the name and the arguments; of these, only NumPy's arrays
of bytes are understood. It is enough for data that were published as pickled arrays, such as CIFAR.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Call:
    """What a pickle would call.

    Attributes:
        name: Module and name, with a space between them.
        arguments: The arguments.
        state: What the result would be given.
    """

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True)
class _Name:
    """What a pickle would import: module and name, with a space between them."""

    name: str


_MARK = object()

_LITERALS = {
    "BINSTRING", "SHORT_BINSTRING", "STRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1",
    "FLOAT", "BINFLOAT",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SMALL_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_WITHOUT_EFFECT = {"PROTO", "FRAME"}


def data_of(pickled: bytes) -> Any:
    """Return the data in a pickle.

    Args:
        pickled: The pickle; any protocol.

    Returns:
        Dictionaries, lists, tuples, numbers, texts and bytes, and a :class:`Call` in place of every
        other object. Bytes of Python 2 are texts whose characters are the bytes (Latin-1).

    Raises:
        ValueError: It is no pickle, or has an operation that plain data do not need.

    Example:
        >>> import pickle
        >>> data_of(pickle.dumps({"labels": [6, 9]}))
        {'labels': [6, 9]}
    """
    try:
        return _result(pickled)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is no pickle of plain data") from error


def _result(pickled: bytes) -> Any:
    stack: list[Any] = []
    memory: dict[int, Any] = {}
    argument: Any
    for operation, argument, _ in pickletools.genops(pickled):
        name = operation.name
        if name in _WITHOUT_EFFECT:
            continue
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        # Lists, dictionaries and tuples.
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name == "LIST":
            stack.append(_since_mark(stack))
        elif name == "DICT":
            entries = _since_mark(stack)
            stack.append(dict(zip(entries[::2], entries[1::2], strict=True)))
        elif name == "APPEND":
            entry = stack.pop()
            stack[-1].append(entry)
        elif name == "APPENDS":
            entries = _since_mark(stack)
            stack[-1].extend(entries)
        elif name == "SETITEM":
            value = stack.pop()
            key = stack.pop()
            stack[-1][key] = value
        elif name == "SETITEMS":
            entries = _since_mark(stack)
            stack[-1].update(zip(entries[::2], entries[1::2], strict=True))
        elif name == "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        elif name in _SMALL_TUPLES:
            start = len(stack) - _SMALL_TUPLES[name]
            stack[start:] = [tuple(stack[start:])]
        # What Python would import and call.
        elif name == "GLOBAL":
            stack.append(_Name(argument))
        elif name == "STACK_GLOBAL":
            attribute = stack.pop()
            module = stack.pop()
            stack.append(_Name(f"{module} {attribute}"))
        elif name == "REDUCE":
            arguments = stack.pop()
            called = stack.pop()
            # Python 3 writes bytes for Python 2 as a text and its encoding.
            if called.name == "_codecs encode" and arguments[1] == "latin1":
                stack.append(arguments[0].encode("latin-1"))
            else:
                stack.append(Call(called.name, arguments))
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        # Values that are used several times.
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memory[argument] = stack[-1]
        elif name == "MEMOIZE":
            memory[len(memory)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memory[argument])
        elif name == "STOP":
            return stack.pop()
        else:
            raise ValueError(f"it has the operation {name}, which plain data do not need")
    raise ValueError("it is incomplete")


def _since_mark(stack: list[Any]) -> list[Any]:
    """Take what is above the last mark, and the mark, from the stack."""
    start = len(stack) - 1
    while stack[start] is not _MARK:
        start -= 1
        if start < 0:
            raise IndexError("no mark")
    entries = stack[start + 1 :]
    del stack[start:]
    return entries


def byte_array(value: Any) -> np.ndarray:
    """Return the NumPy array of bytes that a part of :func:`data_of` stands for.

    Args:
        value: The part.

    Returns:
        The array, uint8.

    Raises:
        ValueError: It is something else, or not as long as it says.
    """
    # NumPy pickles an array as a call of _reconstruct, and then gives it this state.
    if not isinstance(value, Call) or not value.name.endswith(" _reconstruct"):
        raise ValueError("it has no NumPy array where the images should be")
    _, shape, dtype, is_fortran, stored = value.state
    if not isinstance(dtype, Call) or dtype.arguments[0] not in ("u1", "|u1"):
        raise ValueError("its images are not bytes")
    if isinstance(stored, str):
        stored = stored.encode("latin-1")
    if len(stored) != math.prod(shape):
        raise ValueError(f"its images have {len(stored)} bytes, and not those of the shape {shape}")
    return np.frombuffer(stored, np.uint8).reshape(shape, order="F" if is_fortran else "C")
