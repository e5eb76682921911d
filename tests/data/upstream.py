"""Writes small data sets in the layouts that upstream tools use."""

import gzip
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.io import savemat

CODES = {"uint8": 0x08, "int32": 0x0C}


def idx_bytes(array: np.ndarray) -> bytes:
    """``array`` in the idx format."""
    head = struct.pack(">BBBB", 0, 0, CODES[array.dtype.name], array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(path: Path, array: np.ndarray) -> None:
    """As an idx file, gzipped where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = idx_bytes(array)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_mnist(folder: Path, train: int = 40, test: int = 20, suffix: str = ".gz") -> None:
    """An MNIST of 28 x 28 noise; labels go round from 0 to 9."""
    for stem, count in (("train", train), ("t10k", test)):
        write_idx(folder / f"{stem}-images-idx3-ubyte{suffix}", pictures(count, (28, 28)))
        write_idx(
            folder / f"{stem}-labels-idx1-ubyte{suffix}", (np.arange(count) % 10).astype(np.uint8)
        )


def write_writers(folder: Path, train: int = 40, test: int = 20) -> None:
    """QMNIST's tables for :func:`write_mnist`, with two rows more in the test table; image i is by writer i mod 4, of whom
    2 and 3 are high-school students (series 4)."""
    for stem, count in (("train", train), ("test", test + 2)):
        rows = np.arange(count)
        table = np.stack([rows % 10, rows % 4 // 2 * 4, rows % 4, *[rows * 0] * 5], axis=1).astype(
            np.int32
        )
        write_idx(folder / f"qmnist-{stem}-labels-idx2-int.gz", table)


def write_cifar(path: Path, labels: np.ndarray, columns: int) -> np.ndarray:
    """Rows of ``columns`` label bytes and 3,072 pixels; returns the pixels ``(N, 3, 32, 32)``."""
    images = pictures(len(labels), (3, 32, 32), seed=len(labels))
    head = np.zeros((len(labels), columns), np.uint8)
    head[:, -1] = labels
    path.parent.mkdir(parents=True, exist_ok=True)
    np.hstack([head, images.reshape(len(labels), -1)]).tofile(path)
    return images


def write_cifar_of_python(path: Path, labels: list[int], label_key: str = "labels") -> np.ndarray:
    """What Python 2 pickled for CIFAR's Python version, written by its operations; returns the pixels ``(N, 3, 32, 32)``."""
    images = pictures(len(labels), (3, 32, 32), seed=len(labels))

    def text(characters: bytes) -> bytes:
        return b"U" + bytes([len(characters)]) + characters  # SHORT_BINSTRING

    shape = struct.pack("<cI", b"J", len(labels)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    pixels = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    )
    array += b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x80\x02}q\x01("
        + (text(b"batch_label") + text(b"training batch 1 of 5"))
        + (text(label_key.encode()) + listed)
        + (text(b"data") + array)
        + b"u."
    )
    return images


def write_usps(folder: Path, shade: float = 1.0) -> None:
    """9 training and 3 test images of 16 x 16, the training images of one shade."""
    images = {"x_train": np.full((9, 16, 16), shade), "x_test": np.ones((3, 16, 16))}
    np.savez(folder / "usps.npz", **images, y_train=np.arange(9), y_test=np.arange(3))


def write_colour_digits(folder: Path) -> None:
    """An MNIST-M of 8 training and 4 test images of noise."""
    images = {"x_train": pictures(8, (32, 32, 3)), "x_test": pictures(4, (32, 32, 3))}
    np.savez(folder / "mnist_m.npz", **images, y_train=np.arange(8), y_test=np.arange(4))


def write_mat(path: Path, count: int) -> np.ndarray:
    """SVHN's layout: noise in colour, labels 1 to 10; returns the pixels ``(N, 3, 32, 32)``."""
    images = pictures(count, (3, 32, 32), seed=count)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": (np.arange(count) % 10 + 1)[:, None]})
    return images


def write_leaf(path: Path, writers: Mapping[str, list[int]]) -> None:
    """A file of LEAF's: each writer's images have the shade label / 100."""
    data = {
        name: {"x": [[label / 100] * 784 for label in labels], "y": labels}
        for name, labels in writers.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "users": list(writers),
        "num_samples": [len(own) for own in writers.values()],
        "user_data": data,
    }
    path.write_text(json.dumps(document))
