"""Files in the layouts that upstream tools use -> NumPy arrays. Nothing is ever unpickled.

Every mistake in a file is one sentence (:class:`UserError`) that names it.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coterie.settings import UserError


def find(folder: Path, places: Iterable[str], names: Iterable[str], dataset: str) -> Path:
    """The first of ``names``, plain or gzipped, in the first of ``places`` under ``folder`` that has one."""
    places, names = tuple(places), tuple(names)
    for place in places:
        for name in names:
            for path in (folder / place / name, folder / place / f"{name}.gz"):
                if path.is_file():
                    return path
    looked = ", ".join(str(folder / place) for place in places)
    raise UserError(f"{dataset} needs {names[0]} (or {names[0]}.gz), which is in none of: {looked}")


def content(path: Path) -> bytes:
    """A file's bytes, unzipped where it is gzipped, whatever its name."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is a broken or incomplete gzip file ({error}); get it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


_IDX = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx(path: Path, dimensions: int) -> np.ndarray:
    """An array in MNIST's idx format: two zero bytes, type, number of dimensions, their sizes (big-endian), data."""
    raw = content(path)
    if not raw:
        raise UserError(f"{path} is empty")
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX:
        raise UserError(f"{path} is not an idx file: it starts with the bytes {raw[:4].hex(' ')}")
    if raw[3] != dimensions:
        raise UserError(f"{path} has {raw[3]} dimensions where {dimensions} were expected; is it another file?")
    head, dtype = 4 + 4 * dimensions, np.dtype(_IDX[raw[2]])
    if len(raw) < head:
        raise UserError(f"{path} is incomplete: it ends inside its header")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", dimensions, 4))
    if len(raw) != head + math.prod(shape) * dtype.itemsize:
        wanted = head + math.prod(shape) * dtype.itemsize
        raise UserError(f"{path} has {len(raw)} bytes where its header promises {wanted}; it is incomplete or corrupt")
    if not math.prod(shape):
        raise UserError(f"{path} holds no examples")
    return np.frombuffer(raw, dtype, offset=head).reshape(shape)


def cifar(path: Path, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR's binary version: rows of ``labels`` label bytes (the last is the fine one) and 3 x 32 x 32 pixel bytes.

    Returns images ``(N, 3, 32, 32)`` uint8 and labels ``(N,)``. Any number of whole rows will do.
    """
    raw, row = content(path), labels + 3072
    if not raw:
        raise UserError(f"{path} is empty")
    if len(raw) % row:
        raise UserError(f"{path} has {len(raw)} bytes, no multiple of a row of {row}; it is incomplete or another file")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, row)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


def npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a NumPy .npz file; Python objects in it are refused."""
    try:
        with path.open("rb") as raw:
            if raw.read(2) != b"PK":  # NumPy takes anything else for a pickle or a single array
                raise zipfile.BadZipFile
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as error:
        kind = "holds Python objects, which are never loaded" if "pickle" in str(error) else "is no readable .npz file"
        raise UserError(f"{path} {kind}; write plain arrays with numpy.savez") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def rows(path: Path, columns: int) -> list[list[str]]:
    """The rows of a csv file in UTF-8, each with ``columns`` fields; a bad row is told by its number."""
    try:
        text = content(path).decode("utf-8")
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a csv file in UTF-8 ({error})") from error
    for number, row in enumerate(table, 1):
        if len(row) != columns:
            raise UserError(f"{path}: row {number} has {len(row)} fields where {columns} were expected")
    if not table:
        raise UserError(f"{path} is empty")
    return table


def mat(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Arrays of numbers by their names in a MATLAB file (before version 7.3)."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=names)
        return tuple(np.asarray(found[name]) for name in names)
    except KeyError as error:
        raise UserError(f"{path} lacks {error.args[0]!r}; it must hold {' and '.join(names)}") from error
    except NotImplementedError as error:
        raise UserError(f"{path} is a MATLAB file of version 7.3; save it as version 7 or older") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the parser's own errors are of many kinds
        raise UserError(f"{path} is no readable MATLAB file ({error})") from error
