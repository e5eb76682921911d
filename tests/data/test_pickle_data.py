"""Data in pickles are read without unpickling."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from upstream import write_cifar, write_cifar_of_python

from coterie.data import datasets
from coterie.data.pickle_data import byte_array, data_of
from coterie.settings import UserError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.binary(min_size=1, max_size=5)
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(max_size=3), inner) | st.tuples(inner, inner)
    ),
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(value=PLAIN)
def test_plain_data_are_what_was_pickled(protocol: int, value: object) -> None:
    assert data_of(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_of_bytes(protocol: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for stored in (array, np.asfortranarray(array)):
        read = byte_array(data_of(pickle.dumps({"data": stored}, protocol))["data"])
        assert (read == array).all()
        assert read.dtype == np.uint8


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_called(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps({"data": Harmful(), "labels": [1]}, protocol)
    assert data_of(pickled)["data"].arguments == ("harmed",)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickled)
    with pytest.raises(
        UserError, match=r"data_batch_1 is no file of CIFAR's Python version: it has no NumPy"
    ):
        datasets.load("cifar10", tmp_path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"hello",
        b"\x80\x04N",
        pickle.dumps({1, 2}, 4),
        pickle.dumps(OrderedDict(a=1), 1),
        b"e.",
        b"0.",
    ],
)
def test_what_is_no_pickle_of_plain_data(pickled: bytes) -> None:
    with pytest.raises(ValueError, match=r"pickle|operation|incomplete|NumPy|opcode|exhausted"):
        byte_array(data_of(pickled))


def test_cifar_as_torchvision_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    first = write_cifar_of_python(folder / "data_batch_1", [3, 9, 0])
    write_cifar_of_python(folder / "data_batch_2", [1, 2])
    write_cifar_of_python(folder / "test_batch", [7])
    data = datasets.load("cifar10", tmp_path)
    assert data.train.targets.tolist() == [3, 9, 0, 1, 2]
    assert torch.equal(data.train.inputs[:3], torch.from_numpy(first / np.float32(255)))
    assert data.test is not None
    assert data.test.targets.tolist() == [7]
    # Of both versions, the binary one is read.
    write_cifar(tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin", np.array([5]), 1)
    assert datasets.load("cifar10", tmp_path).train.targets.tolist() == [5]


def test_cifar100_as_torchvision_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    write_cifar_of_python(folder / "train", [99, 5], "fine_labels")
    with pytest.raises(UserError, match=r"cifar100 needs train\.bin"):
        datasets.load("cifar100", tmp_path)
    write_cifar_of_python(folder / "test", [42], "fine_labels")
    data = datasets.load("cifar100", tmp_path)
    assert data.train.targets.tolist() == [99, 5]
    assert data.test is not None
    assert data.test.targets.tolist() == [42]
    # Without the labels that are asked for.
    write_cifar_of_python(folder / "test", [42], "coarse_labels")
    with pytest.raises(UserError, match="test is no file of CIFAR's Python version: 'fine_labels'"):
        datasets.load("cifar100", tmp_path)
