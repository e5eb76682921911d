"""Conversion of values to JSON and safetensors, and back, bit for bit; nothing is ever unpickled.

A class marked with :func:`coterie.core.state` may hold tensors, NumPy arrays, numbers, strings,
``None``, tuples, frozensets, mappings, and other such classes. Numbers, strings, booleans and
``None`` stand for themselves in JSON, and a tuple is a JSON list. Every other value is an object
whose entry ``"is"`` names its kind. Arrays are blobs, named by the hash of their bytes, so equal
arrays are stored once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from coterie import core
from coterie.settings import UserError

Json = Any
"""A value that ``json.dumps`` accepts: dicts, lists, strings, numbers, booleans, None."""

CONTRACT_CLASSES: Mapping[str, type[Any]] = {
    "assignment": core.Assignment,
    "criterion": core.Criterion,
    "neighbours": core.Neighbours,
    "note": core.Note,
    "plan": core.Plan,
    "replies": core.Replies,
    "task": core.Task,
    "training": core.Training,
}
"""Tag -> value class of the contract. A state may hold these classes too."""

_TAG_OF_CLASS = {cls: tag for tag, cls in CONTRACT_CLASSES.items()}
"""Value class of the contract -> its tag."""

_ERRORS_OF_DAMAGE = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    AssertionError,
    struct.error,
    safetensors.SafetensorError,
)
"""Exceptions that may occur when a value is built from changed JSON, or when such a value is used.
"""


class DamagedError(UserError):
    """A file has been changed or damaged since it was written."""


class UnknownClassError(UserError):
    """A stored class is unknown to this version of Coterie, or has other fields in it."""


@contextmanager
def from_stored(what: object, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors in the body into a :class:`DamagedError`, for code that uses a stored value.

    A stored value may be inconsistent in ways in which no method leaves it.

    Args:
        what: The file in which the value is stored, for the error message.
        but: Exceptions that stay as they are.

    Yields:
        None.

    Raises:
        DamagedError: The body raised an error.
    """
    try:
        yield
    except _ERRORS_OF_DAMAGE as error:
        # A message of our own says more than the name of an exception.
        if isinstance(error, (UserError, *but)):
            raise
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise DamagedError(
            f"{what} was changed or damaged, or fails with this version of Coterie ({reason})"
        ) from error


def blob(data: bytes) -> str:
    """The name of a blob: the hash of its bytes.

    Args:
        data: The bytes.

    Returns:
        40 hexadecimal digits of their SHA-256 hash.

    Example:
        >>> len(blob(b""))
        40
    """
    return hashlib.sha256(data).hexdigest()[:40]


def encode(value: Any, put: Callable[[bytes], str]) -> Json:
    """Convert a value to JSON.

    Args:
        value: The value.
        put: Stores an array's bytes and returns their name.

    Returns:
        The value as JSON.

    Raises:
        TypeError: A state may not hold the value.
    """
    # NumPy's float is a Python float too, so it comes first.
    if isinstance(value, np.generic):
        array = _plain(np.asarray(value))
        return {"is": "scalar", "dtype": array.dtype.str, "bits": array.tobytes().hex()}
    if value is None or type(value) in (bool, str, int):
        return value
    if type(value) is float:
        # JSON has no NaN and no infinity.
        if math.isfinite(value):
            return value
        return {"is": "float", "bits": struct.pack(">d", value).hex()}
    if isinstance(value, torch.Tensor):
        # Arrays are blobs, so that equal ones of several checkpoints are stored once.
        tensor = value.detach().cpu().contiguous()
        return {"is": "tensor", "blob": put(safetensors_of({"": tensor}))}
    if isinstance(value, np.ndarray):
        return {"is": "array", "blob": put(safetensors.numpy.save({"": _plain(value)}))}
    if type(value) is tuple:
        return [encode(item, put) for item in value]
    if isinstance(value, frozenset):
        # Sorted: equal sets have equal JSON.
        items = sorted((encode(item, put) for item in value), key=json.dumps)
        return {"is": "frozenset", "items": items}
    if isinstance(value, Mapping):
        return {
            "is": "mapping",
            "items": [[encode(key, put), encode(item, put)] for key, item in value.items()],
        }
    # Only classes that are marked as states, and are known to this version, can be stored.
    tag = _tag(type(value))
    if tag is not None:
        fields = {
            field.name: encode(getattr(value, field.name), put)
            for field in dataclasses.fields(value)
            if field.init
        }
        return {"is": tag, "fields": fields}
    raise TypeError(
        f"a stored state holds tensors, arrays, numbers, texts, tuples, frozensets, mappings and classes marked "
        f"with coterie.core; it cannot hold {type(value).__name__} {value!r:.60}"
    )


def decode(value: Json, get: Callable[[str], bytes]) -> Any:
    """Convert JSON back to a value: the inverse of :func:`encode`.

    Args:
        value: The JSON.
        get: Returns a blob's bytes by name.

    Returns:
        The value. Mappings come back as dicts, in the same order.

    Raises:
        UnknownClassError: A class is not in :data:`coterie.core.STATES`.
        DamagedError: :func:`encode` does not write such JSON.
    """
    if isinstance(value, list):
        # JSON has no tuples, so a list always stands for one.
        return tuple(decode(item, get) for item in value)
    if not isinstance(value, dict):
        return value
    try:
        return _decode_object(value, get)
    except _ERRORS_OF_DAMAGE as error:
        raise DamagedError(
            f"a stored {str(value.get('is', 'value'))[:80]} is damaged ({str(error)[:200]})"
        ) from error


def _decode_object(value: dict[str, Json], get: Callable[[str], bytes]) -> Any:
    """The value of a JSON object that names its kind."""
    kind = value["is"]
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(value["bits"]))[0]
    if kind == "scalar":
        return np.frombuffer(bytes.fromhex(value["bits"]), dtype=np.dtype(value["dtype"]))[0]
    if kind == "tensor":
        # Imported here because it imports torch.
        from safetensors.torch import load

        return load(get(value["blob"]))[""]
    if kind == "array":
        return safetensors.numpy.load(get(value["blob"]))[""]
    if kind == "frozenset":
        return frozenset(decode(encoded, get) for encoded in value["items"])
    if kind == "mapping":
        return {decode(key, get): decode(encoded, get) for key, encoded in value["items"]}
    return _decode_class(kind, value, get)


def _decode_class(kind: str, value: dict[str, Json], get: Callable[[str], bytes]) -> Any:
    """A value of the class with the tag ``kind``, after checks of its fields."""
    # A tag is looked up and never imported: a checkpoint cannot name code.
    cls = _known(kind)
    if cls is None:
        raise UnknownClassError(
            f"the checkpoint holds a {kind}, which this version of Coterie does not know"
        )
    fields = {name: decode(encoded, get) for name, encoded in value["fields"].items()}
    # Later versions add fields with defaults, which a stored state may lack.
    class_fields = [field for field in dataclasses.fields(cls) if field.init]
    required = {field.name for field in class_fields if _has_no_default(field)}
    unknown = fields.keys() - {field.name for field in class_fields}
    differing = unknown | (required - fields.keys())
    if differing:
        differs = sorted(differing)[0]
        raise UnknownClassError(
            f"the checkpoint's {kind} is of another version of Coterie: {differs!r} differs"
        )
    # A value of another type would fail anywhere later.
    hints = _hints(kind)
    for name, content in fields.items():
        if not agrees(content, hints.get(name, Any)):
            raise TypeError(f"its {name} is {type(content).__name__} {str(content)[:40]!r}")
    return cls(**fields)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    """Whether a field of a class must be given."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def safetensors_of(
    tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> bytes:
    """Convert contiguous tensors to the bytes of a safetensors file.

    Args:
        tensors: The tensors, on the CPU, by name.
        metadata: Texts by name, in the header of the file.

    Returns:
        The bytes.
    """
    # Imported here because it imports torch.
    from safetensors.torch import save

    return save(dict(tensors), metadata)


@cache
def _hints(tag: str) -> Mapping[str, Any]:
    """The annotations of a class of Coterie. Those of custom methods are not checked, since they may be arbitrary."""
    cls = _known(tag)
    # Only Coterie's own classes have annotations that `agrees` understands.
    if cls is None or not cls.__module__.startswith("coterie."):
        return {}
    return typing.get_type_hints(cls)


def blobs(value: Json) -> Iterator[str]:
    """The names of all blobs to which an encoded value refers."""
    if isinstance(value, list):
        for item in value:
            yield from blobs(item)
    elif isinstance(value, dict):
        if "blob" in value and isinstance(value["blob"], str):
            yield value["blob"]
        for item in value.values():
            yield from blobs(item)


def _plain(array: np.ndarray) -> np.ndarray:
    """``array`` in little-endian bytes and C order."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(f"a stored array holds numbers or booleans, not {array.dtype}")
    return array.astype(array.dtype.newbyteorder("<"), order="C")


def _known(tag: str) -> type[Any] | None:
    """The class with this tag; None if this version has none."""
    return CONTRACT_CLASSES.get(tag) or core.STATES.get(tag)


def _tag(cls: type[Any]) -> str | None:
    """The tag of a class in stored states; None for a class that may not be stored."""
    tag = _TAG_OF_CLASS.get(cls) or cls.__dict__.get("__state_tag__")
    return tag if tag is not None and _known(tag) is cls else None


# ----------------------------------------------------------------------------------------------------
# Type checks: whether a value that was read from a file agrees with an annotation, as far as this
# can be decided.


_NUMBERS: Mapping[Any, Any] = {int: Integral, float: Real, bool: (bool, np.bool_), str: str}


def agrees(value: Any, hint: Any) -> bool:
    """Whether a value agrees with an annotation.

    Args:
        value: The value.
        hint: The annotation.

    Returns:
        The result; True for kinds of annotations that this function does not know.

    Example:
        >>> agrees((1, 2), tuple[int, ...]), agrees((1, "x"), tuple[int, ...]), agrees(None, int | None), agrees(True, int)
        (True, False, True, False)
    """
    # A union agrees if one of its options does, a container if all of its entries do.
    if hint is Any:
        return True
    origin = typing.get_origin(hint) or hint
    inner = typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(agrees(value, option) for option in inner)
    if origin is typing.Literal:
        return value in inner
    # True is an integer to Python, and agrees with bool alone.
    if origin in _NUMBERS:
        return isinstance(value, _NUMBERS[origin]) and (
            origin is bool or not isinstance(value, bool | np.bool_)
        )
    if origin is tuple:
        return isinstance(value, tuple) and _all_agree(value, inner)
    if origin is frozenset:
        return isinstance(value, frozenset) and all(_all_agree((item,), inner) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_all_agree(pair, inner) for pair in value.items())
    return isinstance(value, origin) if isinstance(origin, type) else True


def _all_agree(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    """Whether the entries of a tuple agree with ``tuple[hints]``; without hints, all entries agree."""
    if not hints:
        return True
    # `tuple[X, ...]` has any number of entries of one type.
    if hints[1:] == (...,):
        return all(agrees(value, hints[0]) for value in values)
    return len(values) == len(hints) and all(map(agrees, values, hints))
