"""Files that are not what they should be: one sentence each, and nothing is ever unpickled."""

import gzip
import io
import os
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from upstream import idx_bytes

from coterie import files
from coterie.data import readers
from coterie.settings import UserError

LABELS = idx_bytes(np.arange(5, dtype=np.uint8))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 something", "is not an idx file: it starts with the bytes 50 4b 03 04"),
        (b"\0\0\x99\x01" + LABELS[4:], "is not an idx file"),
        (idx_bytes(np.zeros((2, 2), np.uint8)), "has 2 dimensions where 1 were expected"),
        (LABELS[:-1], "has 12 bytes where its header promises 13"),
        (LABELS + b"\0", "has 14 bytes where its header promises 13"),
        (LABELS[:6], "ends inside its header"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 0), "holds no examples"),
    ],
)
def test_files_that_are_no_idx_are_refused(tmp_path: Path, raw: bytes, sentence: str) -> None:
    path = tmp_path / "labels"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=sentence):
        readers.idx(path, 1)


def test_idx_round_trip(tmp_path: Path) -> None:
    table = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
    (tmp_path / "table").write_bytes(idx_bytes(table))
    assert (readers.idx(tmp_path / "table", 2) == table).all()


def test_cifar_rows_must_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(3074 * 2))
    assert readers.cifar(path, 2)[0].shape == (2, 3, 32, 32)
    with pytest.raises(UserError, match="6148 bytes, not a multiple of the row size 3073"):
        readers.cifar(path, 1)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        readers.cifar(path, 1)


def test_npz_with_python_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(UserError, match="holds Python objects, which are never loaded"):
        readers.npz(path)


def test_csv_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('"1","title","text, with a comma"\n"2","only two"\n')
    with pytest.raises(UserError, match="row 2 has 2 fields where 3 were expected"):
        readers.rows(path, 3)
    path.write_text("")
    with pytest.raises(UserError, match="is empty"):
        readers.rows(path, 3)
    path.write_bytes(b'"1","\xff\xfe","x"\n')
    with pytest.raises(UserError, match="is not a csv file in UTF-8"):
        readers.rows(path, 3)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a regular file"):
        readers.content(tmp_path)


def zipped(path: Path, *members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", how) as file:
        warnings.simplefilter("ignore")  # of names that occur twice
        for name, data in members:
            file.writestr(name, data)
    return path


def saved(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def archive(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


@pytest.mark.parametrize(
    "raw",
    [b"", b"not a zip file", b"PK\x03\x04cut", saved(np.ones(3)), archive(x=np.ones(1000))[:500]],
    ids=["empty", "text", "beginning", "single array", "half"],
)
def test_files_that_are_no_npz_are_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"is not a readable \.npz file"):
        readers.npz(path)


def headed(shape: str, dtype: str = "<f8") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head


def test_npz_gives_back_what_was_saved(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(24, dtype=">i4").reshape(2, 3, 4),
        "b": np.asfortranarray(np.random.default_rng(0).normal(size=(3, 5))),
        "c": np.array(3),
        "d": np.zeros((0, 4), np.uint8),
        "e": np.array(["x", "yz"]),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)
        found = readers.npz(tmp_path / "x.npz")
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            assert (found[name] == array).all()
            assert found[name].shape == array.shape


@pytest.mark.parametrize(
    "shape", ["(4000000000000,)", "(2, 3)", f"({2**62}, {2**62})", "(-1,)", "()"]
)
def test_an_array_that_claims_other_bytes_than_there_are(tmp_path: Path, shape: str) -> None:
    path = zipped(tmp_path / "x.npz", ("x.npy", headed(shape) + bytes(40)))
    with pytest.raises(
        UserError, match=r"x\.npy has 40 bytes where its header promises an array \["
    ):
        readers.npz(path)


@pytest.mark.parametrize(
    "head",
    [
        headed(f"({'9' * 5000},)"), headed("(" * 5000), headed("(True,)"), headed("'a'"), headed("(1,)", "x" * 9000),
        b"\x93NUMPY\x09\x00",
    ],
    ids=range(6),
)  # fmt: skip
def test_an_invalid_array_header_is_refused(tmp_path: Path, head: bytes) -> None:
    with pytest.raises(UserError, match=r"is not a readable \.npz file"):
        readers.npz(zipped(tmp_path / "x.npz", ("x.npy", head)))


def test_zip_files_that_numpy_does_not_write(tmp_path: Path) -> None:
    one = ("x.npy", saved(np.ones(3)))
    with pytest.raises(UserError, match="has two arrays 'x'"):
        readers.npz(zipped(tmp_path / "x.npz", one, one))
    with pytest.raises(UserError, match="packed by zip's method 14"):
        readers.npz(zipped(tmp_path / "x.npz", one, how=zipfile.ZIP_LZMA))
    data = bytearray(zipped(tmp_path / "x.npz", one).read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(UserError, match="is encrypted"):
        readers.npz(tmp_path / "x.npz")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may unpack to a megabyte, or to so many times their size."""
    monkeypatch.setattr(files, "ALLOWED_BYTES", 1 << 20)
    monkeypatch.setattr(readers, "READ_BYTES", 1 << 16)


@pytest.mark.usefixtures("small")
def test_bombs_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    zeros, many = bytes(1 << 24), "it looks like a decompression bomb"
    with pytest.raises(UserError, match=f"16,777,344 bytes or more from .*: {many}"):
        readers.npz(
            zipped(tmp_path / "x.npz", ("x.npy", headed(f"({1 << 21},)").ljust(128) + zeros))
        )
    (tmp_path / "x.gz").write_bytes(gzip.compress(zeros))
    with pytest.raises(UserError, match=many):
        readers.content(tmp_path / "x.gz")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"good") + gzip.compress(zeros))
    with pytest.raises(UserError, match=many):
        readers.content(tmp_path / "x.gz")
    packed = zlib.compress(zeros)
    element = (
        b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed
    )
    (tmp_path / "x.mat").write_bytes(element)
    with pytest.raises(UserError, match=many):
        readers.mat(tmp_path / "x.mat", ("X",))


@pytest.mark.usefixtures("small")
def test_data_that_are_packed_well_are_unpacked(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 2, 1 << 21, np.uint8).tobytes()
    (tmp_path / "x.gz").write_bytes(gzip.compress(data, 1))
    assert readers.content(tmp_path / "x.gz") == data
    np.savez_compressed(tmp_path / "x.npz", x=np.frombuffer(data, np.uint8))
    assert readers.npz(tmp_path / "x.npz")["x"].tobytes() == data


def test_files_have_room_in_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(bytes(600))
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(600)))
    for module in (files, readers):
        monkeypatch.setattr(module, "available_memory", lambda: 1000.0)
    with pytest.raises(UserError, match="has 600 bytes, more than the limit of 500"):
        readers.content(tmp_path / "x")
    with pytest.raises(
        UserError, match="unpacks to 600 bytes or more, and half of the free memory is 500 bytes"
    ):
        readers.content(tmp_path / "x.gz")


def test_the_memory_that_a_process_may_take_counts() -> None:
    """In a process of its own: a limit is for good."""
    code = (
        "import resource; from coterie.files import available_memory; before = available_memory();"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)); print(before > 0, available_memory() < 1 << 32)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


@pytest.mark.parametrize("name", ["x.npz", "x.gz", "x.mat"])
def test_a_named_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for read in (readers.npz, readers.content, lambda path: readers.mat(path, ("X",))):
        with pytest.raises(UserError, match="is not a regular file"):
            read(tmp_path / name)
