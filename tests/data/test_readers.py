"""Files that are not what they should be: one sentence each, and nothing is ever unpickled."""

import struct
from pathlib import Path

import numpy as np
import pytest
from upstream import idx_bytes

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
def test_idx_files_that_are_none(tmp_path: Path, raw: bytes, sentence: str) -> None:
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
    with pytest.raises(UserError, match="6148 bytes, no multiple of a row of 3073"):
        readers.cifar(path, 1)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        readers.cifar(path, 1)


def test_npz_with_python_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(UserError, match="holds Python objects, which are never loaded"):
        readers.npz(path)


@pytest.mark.parametrize("raw", [b"", b"not a zip file", b"PK\x03\x04cut"])
def test_npz_that_is_none(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"is no readable \.npz file"):
        readers.npz(path)


def test_npz_that_is_a_single_array(tmp_path: Path) -> None:
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(UserError, match=r"is no readable \.npz file"):
        readers.npz(tmp_path / "x.npz")


def test_npz_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.ones(1000))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match=r"is no readable \.npz file"):
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
    with pytest.raises(UserError, match="cannot be read"):
        readers.content(tmp_path)
