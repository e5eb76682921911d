"""Readers of files in upstream layouts that return NumPy arrays.

Nothing is ever unpickled. Every mistake in a file raises a :class:`UserError` of one sentence that
names the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from coterie.files import available_memory, check_unpacked, open_regular, reason
from coterie.settings import UserError

AT_ONCE = 1 << 20
"""Bytes to unpack between two checks that the total is not too large."""


def find(folder: Path, places: Iterable[str], names: Iterable[str], dataset: str) -> Path:
    """Find the first of ``names``, plain or gzipped, in the first of ``places`` that has one of them.

    Args:
        folder: The data folder.
        places: Subfolders to search, in this order.
        names: Names of the file.
        dataset: Name of the data set, for the message.

    Returns:
        The path of an existing file.

    Raises:
        UserError: There is no such file.
    """
    places, names = tuple(places), tuple(names)
    for place in places:
        for name in names:
            for path in (folder / place / name, folder / place / f"{name}.gz"):
                if path.is_file():
                    return path
    looked = ", ".join(str(folder / place) for place in places)
    raise UserError(f"{dataset} needs {names[0]} (or {names[0]}.gz), which is in none of: {looked}")


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading that is at most as large as half of the free memory.

    Args:
        path: The file.

    Returns:
        The open file.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        return open_regular(path, limit=available_memory() / 2)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error


def stored(path: Path) -> bytes:
    """Return the bytes of a file without unpacking them."""
    with opened(path) as file:
        return file.read()


def content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if it is gzipped, whatever its name.

    Args:
        path: The file.

    Returns:
        The bytes.

    Raises:
        UserError: The file cannot be read, or the gzip file is broken or incomplete.
    """
    raw = stored(path)
    if raw[:2] != b"\x1f\x8b":
        return raw
    out, packed = bytearray(), io.BytesIO(raw)
    try:
        with gzip.GzipFile(fileobj=packed) as file:
            while some := file.read(AT_ONCE):
                out += some
                check_unpacked(path, packed.tell(), len(out))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is a broken or incomplete gzip file ({error}); download it again"
        ) from error
    return bytes(out)


_IDX = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an array in MNIST's idx format.

    The format is two zero bytes, the type, the number of dimensions, their sizes (big-endian), and
    the data.

    Args:
        path: The file.
        dimensions: The expected number of dimensions.

    Returns:
        The array.

    Raises:
        UserError: The file is not such a file, is incomplete, or has no examples.
    """
    raw = content(path)
    if not raw:
        raise UserError(f"{path} is empty")
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX:
        raise UserError(f"{path} is not an idx file: it starts with the bytes {raw[:4].hex(' ')}")
    if raw[3] != dimensions:
        raise UserError(
            f"{path} has {raw[3]} dimensions where {dimensions} were expected; is it another file?"
        )
    head, dtype = 4 + 4 * dimensions, np.dtype(_IDX[raw[2]])
    if len(raw) < head:
        raise UserError(f"{path} is incomplete: it ends inside its header")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", dimensions, 4))
    if len(raw) != head + math.prod(shape) * dtype.itemsize:
        wanted = head + math.prod(shape) * dtype.itemsize
        raise UserError(
            f"{path} has {len(raw)} bytes where its header promises {wanted}; it is incomplete or corrupt"
        )
    if not math.prod(shape):
        raise UserError(f"{path} holds no examples")
    return np.frombuffer(raw, dtype, offset=head).reshape(shape)


def cifar(path: Path, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Read a file of CIFAR's binary version.

    A row has ``labels`` label bytes, of which the last is the fine label, and 3 x 32 x 32 pixel
    bytes. Any number of complete rows is valid.

    Args:
        path: The file.
        labels: Label bytes per row.

    Returns:
        Images ``(N, 3, 32, 32)`` uint8 and labels ``(N,)``.

    Raises:
        UserError: The file is empty or not a multiple of a row.
    """
    raw, row = content(path), labels + 3072
    if not raw:
        raise UserError(f"{path} is empty")
    if len(raw) % row:
        raise UserError(
            f"{path} has {len(raw)} bytes, not a multiple of the row size {row}; it is incomplete or another file"
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, row)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


def npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a NumPy .npz file; Python objects in it are refused.

    Args:
        path: The file.

    Returns:
        Name -> array.

    Raises:
        UserError: The file is not readable, or holds something other than plain arrays.
    """
    try:
        with opened(path) as raw, zipfile.ZipFile(raw) as file:
            members = file.infolist()
            check_unpacked(
                path, os.fstat(raw.fileno()).st_size, sum(member.file_size for member in members)
            )
            return {name: _member(path, file, member) for name, member in _named(path, members)}
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        zlib.error,
        struct.error,
        OSError,
        NotImplementedError,
    ) as error:
        raise UserError(
            f"{path} is not a readable .npz file ({error}); write plain arrays with numpy.savez"
        ) from error


def _named(path: Path, members: list[zipfile.ZipInfo]) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    """The members of the zip file, each with the name of its array."""
    seen: set[str] = set()
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in seen:
            raise UserError(f"{path} has two arrays {name!r}; write plain arrays with numpy.savez")
        if member.flag_bits & 1:
            raise UserError(f"{path} is encrypted; write plain arrays with numpy.savez")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(
                f"{path} is packed by zip's method {member.compress_type}, which numpy.savez does not write"
            )
        seen.add(name)
        yield name, member


def _member(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array after a check that its header agrees with the number of bytes, before memory is allocated for it."""
    with file.open(member) as stream:
        shape, by_columns, dtype = _npy_header(stream)
        if dtype.hasobject:
            raise UserError(
                f"{path} holds Python objects, which are never loaded; write plain arrays with numpy.savez"
            )
        count = math.prod(shape)
        if min(shape, default=0) < 0 or count * dtype.itemsize != member.file_size - stream.tell():
            there = member.file_size - stream.tell()
            raise UserError(
                f"{path}: {member.filename} has {there:,} bytes where its header promises an array {list(shape)}"
            )
        data = stream.read()  # at most the size in the zip directory, with a correct checksum
    array = np.frombuffer(data, dtype, count) if dtype.itemsize else np.empty(count, dtype)
    return array.reshape(shape, order="F" if by_columns else "C")


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in column order, and type of an array; raises ``ValueError`` if it is not a .npy file."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of format {version}")
    try:
        shape, by_columns, dtype = (
            npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        )(stream)
    except (
        Exception
    ) as error:  # a header is Python code, and its parser raises errors of many kinds
        raise ValueError(f"an array's header is broken: {error}") from error
    if any(type(size) is not int for size in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, by_columns, dtype


def rows(path: Path, columns: int) -> list[list[str]]:
    """Read the rows of a csv file in UTF-8.

    Args:
        path: The file.
        columns: The expected number of fields of each row.

    Returns:
        The fields of each row.

    Raises:
        UserError: The file is empty or not such a file, or a row has another number of fields; the
            message has its number.
    """
    try:
        text = content(path).decode("utf-8")
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a csv file in UTF-8 ({error})") from error
    for number, row in enumerate(table, 1):
        if len(row) != columns:
            raise UserError(
                f"{path}: row {number} has {len(row)} fields where {columns} were expected"
            )
    if not table:
        raise UserError(f"{path} is empty")
    return table


NUMBERS = (
    "double",
    "single",
    "logical",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
"""MATLAB's classes of numeric arrays."""


def mat(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Read arrays of numbers by their names from a MATLAB file (before version 7.3).

    Args:
        path: The file.
        names: Names of the arrays.

    Returns:
        The arrays, in the order of ``names``.

    Raises:
        UserError: The file is not readable, is of version 7.3, or lacks an array.
    """
    from scipy.io import loadmat, whosmat

    raw = _unpacked_mat(path, stored(path))
    try:
        declared = {name: (shape, kind) for name, shape, kind in whosmat(io.BytesIO(raw))}
        for name in names:
            shape, kind = declared[name]
            if kind not in NUMBERS or math.prod(map(int, shape)) > len(raw):
                raise ValueError(f"{name} is declared as {kind} of shape {list(shape)}")
        found = loadmat(io.BytesIO(raw), variable_names=names)
        return tuple(np.asarray(found[name]) for name in names)
    except KeyError as error:
        raise UserError(
            f"{path} lacks {error.args[0]!r}; it must hold {' and '.join(names)}"
        ) from error
    except NotImplementedError as error:
        raise UserError(
            f"{path} is a MATLAB file of version 7.3; save it as version 7 or older"
        ) from error
    except Exception as error:  # the parser raises errors of many kinds
        raise UserError(f"{path} is not a readable MATLAB file ({error})") from error


_PACKED = 15
"""MATLAB's type of a compressed element, which has another type after unpacking."""


def _unpacked_mat(path: Path, raw: bytes) -> bytes:
    """A MATLAB file of version 5 with its compressed elements unpacked; any other file without change."""
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if order is None:
        return raw
    out, at = bytearray(raw[:128]), 128
    while at + 8 <= len(raw):
        kind, size = struct.unpack_from(f"{order}II", raw, at)
        element = raw[at : at + 8 + size]
        at += 8 + size
        out += _inflated(path, at, len(out), element[8:]) if kind == _PACKED else element
    return bytes(out)


def _inflated(path: Path, end: int, before: int, data: bytes) -> bytes:
    """Unpack one element, which ends at byte ``end`` of the file, after ``before`` unpacked bytes of other elements."""
    out, unpacker = bytearray(), zlib.decompressobj()
    try:
        while not unpacker.eof and (some := unpacker.decompress(data, AT_ONCE)):
            out += some
            data = unpacker.unconsumed_tail
            check_unpacked(path, end - len(data), before + len(out))
    except zlib.error as error:
        raise UserError(f"{path} is not a readable MATLAB file ({error})") from error
    return bytes(out)
