"""Readers of files in upstream layouts that return NumPy arrays, for the data sets and for a folder of .npz files.

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

READ_BYTES = 1 << 20
"""Bytes to unpack between two checks that the total is not too large."""

GZIP_MAGIC = b"\x1f\x8b"
"""The first bytes of a gzip file."""

CIFAR_PIXELS = 3 * 32 * 32
"""Bytes of an image of CIFAR."""

ZIP_ENCRYPTED = 1
"""The bit of a zip member's flags that says that it is encrypted."""


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
    # Both are walked through several times, and the message names them.
    places = tuple(places)
    names = tuple(names)
    for place in places:
        for name in names:
            for path in (folder / place / name, folder / place / f"{name}.gz"):
                if path.is_file():
                    return path
    searched_folders = ", ".join(str(folder / place) for place in places)
    raise UserError(
        f"{dataset} needs {names[0]} (or {names[0]}.gz), which is in none of: {searched_folders}"
    )


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
    stored_bytes = stored(path)
    if stored_bytes[:2] != GZIP_MAGIC:
        return stored_bytes
    # A small file may unpack to more than the memory, so its size is checked on the way.
    unpacked = bytearray()
    packed = io.BytesIO(stored_bytes)
    try:
        with gzip.GzipFile(fileobj=packed) as file:
            while block := file.read(READ_BYTES):
                unpacked += block
                check_unpacked(path, packed.tell(), len(unpacked))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is a broken or incomplete gzip file ({error}); download it again"
        ) from error
    return bytes(unpacked)


_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""Code of a type in an idx file -> the type of NumPy."""


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
    file_bytes = content(path)
    if not file_bytes:
        raise UserError(f"{path} is empty")
    # Two zero bytes, the type and the number of dimensions.
    has_magic = len(file_bytes) >= 4 and file_bytes[:2] == b"\0\0"
    if not has_magic or file_bytes[2] not in _IDX_TYPES:
        raise UserError(
            f"{path} is not an idx file: it starts with the bytes {file_bytes[:4].hex(' ')}"
        )
    if file_bytes[3] != dimensions:
        raise UserError(
            f"{path} has {file_bytes[3]} dimensions where {dimensions} were expected; is it another file?"
        )
    # The size of each dimension, in four bytes each.
    header_bytes = 4 + 4 * dimensions
    dtype = np.dtype(_IDX_TYPES[file_bytes[2]])
    if len(file_bytes) < header_bytes:
        raise UserError(f"{path} is incomplete: it ends inside its header")
    # The sizes are big-endian, and so are the data.
    shape = tuple(int(size) for size in np.frombuffer(file_bytes, ">u4", dimensions, 4))
    promised_bytes = header_bytes + math.prod(shape) * dtype.itemsize
    if len(file_bytes) != promised_bytes:
        raise UserError(
            f"{path} has {len(file_bytes)} bytes where its header promises {promised_bytes}; it is incomplete or corrupt"
        )
    if not math.prod(shape):
        raise UserError(f"{path} holds no examples")
    return np.frombuffer(file_bytes, dtype, offset=header_bytes).reshape(shape)


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
    file_bytes = content(path)
    row_bytes = labels + CIFAR_PIXELS
    if not file_bytes:
        raise UserError(f"{path} is empty")
    if len(file_bytes) % row_bytes:
        raise UserError(
            f"{path} has {len(file_bytes)} bytes, not a multiple of the row size {row_bytes}; "
            "it is incomplete or another file"
        )
    # The last label is the fine one, and the pixels follow.
    table = np.frombuffer(file_bytes, np.uint8).reshape(-1, row_bytes)
    return table[:, labels:].reshape(-1, 3, 32, 32), table[:, labels - 1]


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
        with opened(path) as raw_file, zipfile.ZipFile(raw_file) as zip_file:
            # The sizes that the zip directory promises are checked before anything is unpacked.
            members = zip_file.infolist()
            unpacked_bytes = sum(member.file_size for member in members)
            check_unpacked(path, os.fstat(raw_file.fileno()).st_size, unpacked_bytes)
            arrays: dict[str, np.ndarray] = {}
            for name, member in _named(path, members):
                arrays[name] = _member(path, zip_file, member)
            return arrays
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
    earlier_names: set[str] = set()
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in earlier_names:
            raise UserError(f"{path} has two arrays {name!r}; write plain arrays with numpy.savez")
        if member.flag_bits & ZIP_ENCRYPTED:
            raise UserError(f"{path} is encrypted; write plain arrays with numpy.savez")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(
                f"{path} is packed by zip's method {member.compress_type}, which numpy.savez does not write"
            )
        earlier_names.add(name)
        yield name, member


def _member(path: Path, zip_file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array after a check that its header agrees with the number of bytes, before memory is allocated for it."""
    with zip_file.open(member) as stream:
        shape, is_by_columns, dtype = _npy_header(stream)
        if dtype.hasobject:
            raise UserError(
                f"{path} holds Python objects, which are never loaded; write plain arrays with numpy.savez"
            )
        count = math.prod(shape)
        data_bytes = member.file_size - stream.tell()
        if min(shape, default=0) < 0 or count * dtype.itemsize != data_bytes:
            raise UserError(
                f"{path}: {member.filename} has {data_bytes:,} bytes where its header promises an array {list(shape)}"
            )
        # At most the size in the zip directory is read, and its checksum is verified.
        data = stream.read()
    array = np.frombuffer(data, dtype, count) if dtype.itemsize else np.empty(count, dtype)
    return array.reshape(shape, order="F" if is_by_columns else "C")


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in column order, and type of an array; raises ``ValueError`` if it is not a .npy file."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of format {version}")
    # A header is Python code, and its parser raises errors of many kinds.
    try:
        if version == (1, 0):
            shape, is_by_columns, dtype = npy.read_array_header_1_0(stream)
        else:
            shape, is_by_columns, dtype = npy.read_array_header_2_0(stream)
    except Exception as error:
        raise ValueError(f"an array's header is broken: {error}") from error
    if any(type(size) is not int for size in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, is_by_columns, dtype


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


MATLAB_NUMBER_CLASSES = (
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

    file_bytes = _unpacked_mat(path, stored(path))
    # The parser raises errors of many kinds.
    try:
        # Types and shapes are checked before an array is made of them.
        declared = {}
        for name, shape, matlab_class in whosmat(io.BytesIO(file_bytes)):
            declared[name] = (shape, matlab_class)
        for name in names:
            shape, matlab_class = declared[name]
            is_number = matlab_class in MATLAB_NUMBER_CLASSES
            if not is_number or math.prod(map(int, shape)) > len(file_bytes):
                raise ValueError(f"{name} is declared as {matlab_class} of shape {list(shape)}")
        arrays = loadmat(io.BytesIO(file_bytes), variable_names=names)
        return tuple(np.asarray(arrays[name]) for name in names)
    except KeyError as error:
        raise UserError(
            f"{path} lacks {error.args[0]!r}; it must hold {' and '.join(names)}"
        ) from error
    except NotImplementedError as error:
        raise UserError(
            f"{path} is a MATLAB file of version 7.3; save it as version 7 or older"
        ) from error
    except Exception as error:
        raise UserError(f"{path} is not a readable MATLAB file ({error})") from error


_MATLAB_COMPRESSED = 15
"""MATLAB's type of a compressed element, which has another type after unpacking."""


def _unpacked_mat(path: Path, file_bytes: bytes) -> bytes:
    """A MATLAB file of version 5 with its compressed elements unpacked; any other file without change."""
    # The header has 128 bytes, of which the last two say the byte order.
    byte_order = {b"IM": "<", b"MI": ">"}.get(file_bytes[126:128])
    if byte_order is None:
        return file_bytes
    unpacked = bytearray(file_bytes[:128])
    position = 128
    # Each element has its type and size in 8 bytes before it.
    while position + 8 <= len(file_bytes):
        element_type, size = struct.unpack_from(f"{byte_order}II", file_bytes, position)
        element = file_bytes[position : position + 8 + size]
        position += 8 + size
        if element_type == _MATLAB_COMPRESSED:
            element = _inflated(path, position, len(unpacked), element[8:])
        unpacked += element
    return bytes(unpacked)


def _inflated(path: Path, end: int, bytes_before: int, packed: bytes) -> bytes:
    """Unpack one element, which ends at byte ``end`` of the file, after ``bytes_before`` unpacked bytes of other elements."""
    # Blocks are small enough that a bomb is found before the memory is full.
    unpacked = bytearray()
    unpacker = zlib.decompressobj()
    try:
        while not unpacker.eof and (block := unpacker.decompress(packed, READ_BYTES)):
            unpacked += block
            packed = unpacker.unconsumed_tail
            check_unpacked(path, end - len(packed), bytes_before + len(unpacked))
    except zlib.error as error:
        raise UserError(f"{path} is not a readable MATLAB file ({error})") from error
    return bytes(unpacked)
