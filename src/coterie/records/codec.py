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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice
from numbers import Integral, Real
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from coterie import core
from coterie.core.client_table import ClientTable
from coterie.settings import UserError

Json = Any
"""A value that ``json.dumps`` accepts: dicts, lists, strings, numbers, booleans, None."""

CONTRACT_CLASSES: Mapping[str, type[Any]] = {
    "assignment": core.Assignment,
    "criterion": core.Criterion,
    "holdout": core.Holdout,
    "neighbours": core.Neighbours,
    "note": core.Note,
    "personal": core.Personal,
    "plan": core.Plan,
    "private-plan": core.PrivatePlan,
    "private-task": core.PrivateTask,
    "replies": core.Replies,
    "stage": core.Stage,
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
def from_stored(
    stored_in: object, passed_errors: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn errors in the body into a :class:`DamagedError`, for code that uses a stored value.

    A stored value may be inconsistent in ways in which no method leaves it.

    Args:
        stored_in: The file in which the value is stored, for the error message.
        passed_errors: Exceptions that stay as they are.

    Yields:
        None.

    Raises:
        DamagedError: The body raised an error.
    """
    try:
        yield
    except _ERRORS_OF_DAMAGE as error:
        # A message of our own says more than the name of an exception.
        if isinstance(error, (UserError, *passed_errors)):
            raise
        error_text = f"{type(error).__name__}: {str(error)[:200]}"
        raise DamagedError(
            f"{stored_in} was changed or damaged, or fails with this version of Coterie ({error_text})"
        ) from error


def blob(blob_bytes: bytes) -> str:
    """The name of a blob: the hash of its bytes.

    Args:
        blob_bytes: The bytes.

    Returns:
        40 hexadecimal digits of their SHA-256 hash.

    Example:
        >>> len(blob(b""))
        40
    """
    return hashlib.sha256(blob_bytes).hexdigest()[:40]


def encode(value: Any, store_blob: Callable[[bytes], str]) -> Json:
    """Convert a value to JSON.

    Args:
        value: The value.
        store_blob: Stores an array's bytes and returns their name.

    Returns:
        The value as JSON.

    Raises:
        TypeError: A state may not hold the value.
    """
    # NumPy's float is a Python float too, so it comes first.
    if isinstance(value, np.generic):
        plain_array = _plain(np.asarray(value))
        return {"is": "scalar", "dtype": plain_array.dtype.str, "bits": plain_array.tobytes().hex()}
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
        return {"is": "tensor", "blob": store_blob(safetensors_of({"": tensor}))}
    if isinstance(value, np.ndarray):
        return {"is": "array", "blob": store_blob(safetensors.numpy.save({"": _plain(value)}))}
    if isinstance(value, core.AllBut):
        # Stored, it is the tuple of its clients.
        value = tuple(value)
    if _is_long(value):
        if type(value) is tuple:
            integers = _integers(value)
            if integers is not None:
                return {"is": "integers", **_encoded_integers(integers, store_blob)}
        elif isinstance(value, ClientTable):
            return _encoded_client_table(value, store_blob)
        elif isinstance(value, Mapping):
            encoded_table = _encoded_table(value, store_blob)
            if encoded_table is not None:
                return encoded_table
    if type(value) is tuple:
        return [encode(entry, store_blob) for entry in value]
    if isinstance(value, frozenset):
        # Sorted: equal sets have equal JSON.
        encoded_entries = sorted((encode(entry, store_blob) for entry in value), key=json.dumps)
        return {"is": "frozenset", "items": encoded_entries}
    if isinstance(value, Mapping):
        # Objects of JSON have only texts as keys, so pairs stand for the entries, in their order.
        encoded_pairs = []
        for key, entry in value.items():
            encoded_pairs.append([encode(key, store_blob), encode(entry, store_blob)])
        return {"is": "mapping", "items": encoded_pairs}
    # Only classes that are marked as states, and are known to this version, can be stored.
    class_tag = _tag(type(value))
    if class_tag is not None:
        encoded_fields = {}
        for state_field in _init_fields(value):
            if state_field.metadata.get(core.STORED, True) is False:
                continue
            field_value = getattr(value, state_field.name)
            encoded_fields[state_field.name] = encode(field_value, store_blob)
        return {"is": class_tag, "fields": encoded_fields}
    raise TypeError(
        f"a stored state holds tensors, arrays, numbers, texts, tuples, frozensets, mappings and classes marked "
        f"with coterie.core; it cannot hold {type(value).__name__} {value!r:.60}"
    )


MIN_ARRAY_ENTRIES = 1000
"""From so many entries on, tuples of integers and mappings from integers are stored as arrays, in
place of JSON or a blob for each tensor."""


def _is_long(value: Any) -> bool:
    return isinstance(value, tuple | Mapping) and len(value) >= MIN_ARRAY_ENTRIES


def _integers(values: Iterable[Any]) -> np.ndarray | None:
    """Integers as an array ``(n,)``; None if one is something else, or too large."""
    entries = list(values)
    # A set of types is faster than a loop over a million entries.
    if set(map(type, entries)) != {int}:
        return None
    try:
        return np.array(entries, dtype=np.int64)
    except OverflowError:
        return None


def _encoded_integers(integers: np.ndarray, store_blob: Callable[[bytes], str]) -> Json:
    """Integers ``(n,)`` as a blob: runs of successive ones if there are few, such as all clients but some.

    A run is its first integer and its length.
    """
    starts = np.flatnonzero(np.diff(integers, prepend=integers[0] - 2) != 1)
    if 2 * len(starts) < len(integers):
        lengths = np.diff(starts, append=len(integers))
        return {"runs": store_blob(_array_bytes(np.stack([integers[starts], lengths])))}
    return {"blob": store_blob(_array_bytes(integers))}


def _array_bytes(integers: np.ndarray) -> bytes:
    """An array of integers in the smallest type that holds them."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if integers.min() >= 0 and integers.max() <= np.iinfo(dtype).max:
            integers = integers.astype(dtype)
            break
    return safetensors.numpy.save({"": _plain(integers)})


def _decoded_integers(encoded: Mapping[str, Json], read_blob: Callable[[str], bytes]) -> Any:
    """The integers of :func:`_encoded_integers`, as a tuple."""
    return tuple(_read_integers(encoded, read_blob).tolist())


def _read_integers(encoded: Mapping[str, Json], read_blob: Callable[[str], bytes]) -> np.ndarray:
    """The integers of :func:`_encoded_integers`, shape ``(n,)``."""
    if "blob" in encoded:
        integers: np.ndarray = safetensors.numpy.load(read_blob(encoded["blob"]))[""]
        return integers
    starts, lengths = safetensors.numpy.load(read_blob(encoded["runs"]))[""].astype(np.int64)
    # A forged file cannot ask for more memory than the largest federation needs.
    if min(lengths.tolist(), default=0) < 0 or sum(lengths.tolist()) > MOST_INTEGERS:
        raise ValueError(f"runs of negative length, or of more than {MOST_INTEGERS:,} integers")
    # Each integer is the start of its run and its place in the run.
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    return np.asarray(np.repeat(starts, lengths) + places)


MOST_INTEGERS = 100_000_000
"""Most integers that are read from runs."""


def _encoded_table(
    table: Mapping[Any, Any], store_blob: Callable[[bytes], str]
) -> dict[str, Json] | None:
    """A mapping from integers to values of one kind as arrays; None for any other."""
    keys = _integers(table)
    if keys is None:
        return None
    encoded_values = _encoded_column(list(table.values()), store_blob)
    if encoded_values is None:
        return None
    encoded_keys = {"is": "integers", **_encoded_integers(keys, store_blob)}
    return {"is": "table", "keys": encoded_keys, "values": encoded_values}


def _encoded_client_table(
    table: ClientTable[Any], store_blob: Callable[[bytes], str]
) -> dict[str, Json]:
    """A table of numbers, in the form of a mapping from integers, with a mark that it is such a table."""
    columns: list[Json] = []
    for column in table.columns:
        if column.dtype.kind == "f":
            float_bytes = safetensors.numpy.save({"": _plain(column)})
            columns.append({"is": "floats", "blob": store_blob(float_bytes)})
        else:
            integers = column.astype(np.int64)
            columns.append({"is": "integers", **_encoded_integers(integers, store_blob)})
    keys = {"is": "integers", **_encoded_integers(table.clients.astype(np.int64), store_blob)}
    values = {"is": "columns", "columns": columns} if table.has_tuples else columns[0]
    return {"is": "table", "keys": keys, "values": values, "numbers": True}


def _decoded_client_table(
    encoded: Mapping[str, Json], read_blob: Callable[[str], bytes]
) -> ClientTable[Any]:
    """The table of :func:`_encoded_client_table`."""
    values = encoded["values"]
    has_tuples = values["is"] == "columns"
    columns = []
    for column in values["columns"] if has_tuples else [values]:
        columns.append(_decoded_numbers(column, read_blob))
    clients = _decoded_numbers(encoded["keys"], read_blob)
    return ClientTable.checked(clients, tuple(columns), has_tuples)


def _decoded_numbers(encoded: Mapping[str, Json], read_blob: Callable[[str], bytes]) -> np.ndarray:
    """Integers or floats as an array ``(n,)``."""
    if encoded["is"] == "floats":
        floats: np.ndarray = safetensors.numpy.load(read_blob(encoded["blob"]))[""]
        return floats
    return _read_integers(encoded, read_blob)


def _encoded_column(values: list[Any], store_blob: Callable[[bytes], str]) -> Json:
    """Values of one kind as arrays: integers, floats, tensors of one shape, or tuples of columns; None for others."""
    first = values[0]
    if type(first) is int:
        integers = _integers(values)
        if integers is None:
            return None
        return {"is": "integers", **_encoded_integers(integers, store_blob)}
    if set(map(type, values)) == {float}:
        float_bytes = safetensors.numpy.save({"": _plain(np.array(values))})
        return {"is": "floats", "blob": store_blob(float_bytes)}
    if isinstance(first, torch.Tensor):
        is_uniform = all(
            isinstance(value, torch.Tensor)
            and value.shape == first.shape
            and value.dtype == first.dtype
            for value in values
        )
        if not is_uniform:
            return None
        stacked = torch.stack([value.detach().cpu() for value in values])
        return {"is": "tensors", "blob": store_blob(safetensors_of({"": stacked}))}
    if type(first) is tuple and first:
        is_uniform = all(type(value) is tuple and len(value) == len(first) for value in values)
        if not is_uniform:
            return None
        columns = []
        for column in zip(*values, strict=True):
            columns.append(_encoded_column(list(column), store_blob))
        return None if None in columns else {"is": "columns", "columns": columns}
    return None


def decode(encoded_value: Json, read_blob: Callable[[str], bytes]) -> Any:
    """Convert JSON back to a value: the inverse of :func:`encode`.

    Args:
        encoded_value: The JSON.
        read_blob: Returns a blob's bytes by name.

    Returns:
        The value. Mappings come back as dicts, in the same order, and tables of numbers as such tables.

    Raises:
        UnknownClassError: A class is not in :data:`coterie.core.STATES`.
        DamagedError: :func:`encode` does not write such JSON.
    """
    if isinstance(encoded_value, list):
        # JSON has no tuples, so a list always stands for one.
        return tuple(decode(encoded_entry, read_blob) for encoded_entry in encoded_value)
    if not isinstance(encoded_value, dict):
        return encoded_value
    try:
        return _decode_object(encoded_value, read_blob)
    except _ERRORS_OF_DAMAGE as error:
        raise DamagedError(
            f"a stored {str(encoded_value.get('is', 'value'))[:80]} is damaged ({str(error)[:200]})"
        ) from error


def _decode_object(encoded_object: dict[str, Json], read_blob: Callable[[str], bytes]) -> Any:
    """The value of a JSON object that names its kind."""
    kind = encoded_object["is"]
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(encoded_object["bits"]))[0]
    if kind == "scalar":
        scalar_bytes = bytes.fromhex(encoded_object["bits"])
        return np.frombuffer(scalar_bytes, dtype=np.dtype(encoded_object["dtype"]))[0]
    if kind == "tensor":
        # Imported here because it imports torch.
        from safetensors.torch import load

        return load(read_blob(encoded_object["blob"]))[""]
    if kind == "array":
        return safetensors.numpy.load(read_blob(encoded_object["blob"]))[""]
    if kind == "integers":
        return _decoded_integers(encoded_object, read_blob)
    if kind == "floats":
        return tuple(safetensors.numpy.load(read_blob(encoded_object["blob"]))[""].tolist())
    if kind == "tensors":
        from safetensors.torch import load

        return load(read_blob(encoded_object["blob"]))[""].unbind()
    if kind == "columns":
        decoded_columns = [decode(column, read_blob) for column in encoded_object["columns"]]
        return tuple(zip(*decoded_columns, strict=True))
    if kind == "table" and encoded_object.get("numbers"):
        return _decoded_client_table(encoded_object, read_blob)
    if kind == "table":
        keys = decode(encoded_object["keys"], read_blob)
        return dict(zip(keys, decode(encoded_object["values"], read_blob), strict=True))
    if kind == "frozenset":
        return frozenset(decode(encoded, read_blob) for encoded in encoded_object["items"])
    if kind == "mapping":
        decoded_mapping = {}
        for encoded_key, encoded_entry in encoded_object["items"]:
            decoded_key = decode(encoded_key, read_blob)
            decoded_mapping[decoded_key] = decode(encoded_entry, read_blob)
        return decoded_mapping
    return _decode_class(kind, encoded_object, read_blob)


def _decode_class(
    class_tag: str, encoded_object: dict[str, Json], read_blob: Callable[[str], bytes]
) -> Any:
    """A value of the class with the tag ``class_tag``, after checks of its fields."""
    # A tag is looked up and never imported: a checkpoint cannot name code.
    state_class = _known(class_tag)
    if state_class is None:
        raise UnknownClassError(
            f"the checkpoint holds a {class_tag}, which this version of Coterie does not know"
        )
    decoded_fields = {}
    for field_name, encoded_field in encoded_object["fields"].items():
        decoded_fields[field_name] = decode(encoded_field, read_blob)
    # Later versions add fields with defaults, which a stored state may lack.
    class_fields = _init_fields(state_class)
    field_names = {class_field.name for class_field in class_fields}
    required_names = {field.name for field in class_fields if _has_no_default(field)}
    unknown_names = decoded_fields.keys() - field_names
    differing_names = unknown_names | (required_names - decoded_fields.keys())
    if differing_names:
        differing_name = sorted(differing_names)[0]
        raise UnknownClassError(
            f"the checkpoint's {class_tag} is of another version of Coterie: {differing_name!r} differs"
        )
    # A value of another type would fail anywhere later.
    annotations = _hints(class_tag)
    for field_name, field_value in decoded_fields.items():
        if not agrees(field_value, annotations.get(field_name, Any)):
            raise TypeError(
                f"its {field_name} is {type(field_value).__name__} {str(field_value)[:40]!r}"
            )
    return state_class(**decoded_fields)


def _init_fields(state: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a class or a value that its ``__init__`` takes; the others follow from these."""
    return [field for field in dataclasses.fields(state) if field.init]


def _has_no_default(class_field: dataclasses.Field[Any]) -> bool:
    """Whether a field of a class must be given."""
    return (
        class_field.default is dataclasses.MISSING
        and class_field.default_factory is dataclasses.MISSING
    )


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
def _hints(class_tag: str) -> Mapping[str, Any]:
    """The annotations of a class of Coterie. Those of custom methods are not checked, since they may be arbitrary."""
    state_class = _known(class_tag)
    # Only Coterie's own classes have annotations that `agrees` understands.
    if state_class is None or not state_class.__module__.startswith("coterie."):
        return {}
    return typing.get_type_hints(state_class)


def blobs(encoded_value: Json) -> Iterator[str]:
    """The names of all blobs to which an encoded value refers."""
    if isinstance(encoded_value, list):
        for encoded_entry in encoded_value:
            yield from blobs(encoded_entry)
    elif isinstance(encoded_value, dict):
        for entry_name in ("blob", "runs"):
            if isinstance(encoded_value.get(entry_name), str):
                yield encoded_value[entry_name]
        for encoded_entry in encoded_value.values():
            yield from blobs(encoded_entry)


def _plain(numpy_array: np.ndarray) -> np.ndarray:
    """``numpy_array`` in little-endian bytes and C order."""
    if numpy_array.dtype.kind not in "biuf" or numpy_array.dtype.itemsize > 8:
        raise TypeError(f"a stored array holds numbers or booleans, not {numpy_array.dtype}")
    return numpy_array.astype(numpy_array.dtype.newbyteorder("<"), order="C")


def _known(class_tag: str) -> type[Any] | None:
    """The class with this tag; None if this version has none."""
    return CONTRACT_CLASSES.get(class_tag) or core.STATES.get(class_tag)


def _tag(state_class: type[Any]) -> str | None:
    """The tag of a class in stored states; None for a class that may not be stored."""
    # The class itself must have the tag: a subclass inherits it, and may have other fields.
    class_tag = _TAG_OF_CLASS.get(state_class) or state_class.__dict__.get("__state_tag__")
    return class_tag if class_tag is not None and _known(class_tag) is state_class else None


# ----------------------------------------------------------------------------------------------------
# Type checks: whether a value that was read from a file agrees with an annotation, as far as this
# can be decided.


_ACCEPTED_TYPES: Mapping[Any, Any] = {int: Integral, float: Real, bool: (bool, np.bool_), str: str}


def agrees(value: Any, annotation: Any) -> bool:
    """Whether a value agrees with an annotation.

    Args:
        value: The value.
        annotation: The annotation.

    Returns:
        The result; True for kinds of annotations that this function does not know.

    Example:
        >>> agrees((1, 2), tuple[int, ...]), agrees((1, "x"), tuple[int, ...]), agrees(None, int | None), agrees(True, int)
        (True, False, True, False)
    """
    # A union agrees if one of its options does, a container if all of its entries do.
    if annotation is Any:
        return True
    annotated_type = typing.get_origin(annotation) or annotation
    type_arguments = typing.get_args(annotation)
    if annotated_type in (types.UnionType, typing.Union):
        return any(agrees(value, option) for option in type_arguments)
    if annotated_type is typing.Literal:
        return value in type_arguments
    # True is an integer to Python, and agrees with bool alone.
    if annotated_type in _ACCEPTED_TYPES:
        return isinstance(value, _ACCEPTED_TYPES[annotated_type]) and (
            annotated_type is bool or not isinstance(value, bool | np.bool_)
        )
    if annotated_type is tuple:
        return isinstance(value, tuple) and _all_agree(value, type_arguments)
    if annotated_type is frozenset:
        return isinstance(value, frozenset) and all(
            _all_agree((entry,), type_arguments) for entry in value
        )
    if isinstance(annotated_type, type) and issubclass(annotated_type, Mapping):
        if not isinstance(value, Mapping) or not type_arguments:
            return isinstance(value, Mapping)
        key_annotation, value_annotation = type_arguments
        if isinstance(value, ClientTable):
            # All entries are of the kind of the first one.
            value = dict(islice(value.items(), 1))
        return _each_agrees(value.keys(), key_annotation) and _each_agrees(
            value.values(), value_annotation
        )
    return isinstance(value, annotated_type) if isinstance(annotated_type, type) else True


def _each_agrees(values: Iterable[Any], annotation: Any) -> bool:
    """Whether each of many values agrees with an annotation."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        # Only the type of a value counts, so one value of each type is looked at.
        values = {type(value): value for value in values}.values()
    return all(agrees(value, annotation) for value in values)


def _all_agree(values: tuple[Any, ...], annotations: tuple[Any, ...]) -> bool:
    """Whether the entries of a tuple agree with ``tuple[hints]``; without hints, all entries agree."""
    if not annotations:
        return True
    # `tuple[X, ...]` has any number of entries of one type.
    if annotations[1:] == (...,):
        return _each_agrees(values, annotations[0])
    return len(values) == len(annotations) and all(map(agrees, values, annotations))
