"""LEAF's JSON and MATLAB files: FEMNIST, SVHN, SynthDigits, and the five domains that need these."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat
from upstream import write_colour_digits, write_leaf, write_mat, write_usps

from coterie.data import datasets
from coterie.data.scenario import Scenario
from coterie.settings import UserError


def test_femnist_puts_a_writers_images_together(tmp_path: Path) -> None:
    write_leaf(tmp_path / "femnist" / "data" / "train" / "a.json", {"f2": [61, 3], "f1": [7]})
    write_leaf(tmp_path / "femnist" / "data" / "test" / "a.json", {"f1": [5], "f3": [], "f2": [1]})
    data = datasets.load("femnist", tmp_path)
    assert data.classes == 62
    assert data.test is None
    assert data.shape == (1, 28, 28)
    assert data.train.targets.tolist() == [61, 3, 7, 5, 1]
    assert data.train.meta["writer"].tolist() == [1, 1, 0, 0, 1]
    assert torch.allclose(data.train.inputs[:, 0, 5, 5], data.train.targets / 100)


def test_femnist_of_all_data_makes_clients_of_writers(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data" / "0.json", {name: [i] * 12 for i, name in enumerate("abc")})
    world = Scenario(dataset="femnist", partition="writer", clients=3, model="linear").build(
        0, tmp_path
    )
    own = [set(client.train.targets.tolist()) for client in world.clients.values()]
    assert sorted(map(sorted, own)) == [[0], [1], [2]]


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", '{"users": []}', '{"user_data": {"a": {"x": [[1, 2]], "y": [0]}}}',
        json.dumps({"user_data": {"a": {"x": [["q"] * 784], "y": [0]}}}),
        '{"user_data": {"a": {"x": [], "y": []}, "a": {"x": [], "y": []}}}',
    ],
    ids=["cut", "list", "no data", "two pixels", "words", "a writer twice"],
)  # fmt: skip
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(content)
    with pytest.raises(UserError, match=r"a\.json is not a LEAF FEMNIST file"):
        datasets.load("femnist", tmp_path)


def test_missing_or_empty_leaf_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"femnist needs LEAF's \.json files, and there are none in"
    ):
        datasets.load("femnist", tmp_path)
    write_leaf(tmp_path / "train" / "a.json", {"a": []})
    with pytest.raises(UserError, match="holds no examples"):
        datasets.load("femnist", tmp_path)
    write_leaf(tmp_path / "train" / "a.json", {"a": [0], "a ": [1]})
    with pytest.raises(
        UserError, match=r"two writers in .* have names that look alike, 'a' and 'a '"
    ):
        datasets.load("femnist", tmp_path)


def write_five(folder: Path) -> None:
    for stem in ("", "synth_"):
        for part, count in (("train", 12), ("test", 11)):
            write_mat(folder / f"{stem}{part}_32x32.mat", count)
    write_usps(folder)
    write_colour_digits(folder)


def test_svhn_calls_zero_ten(tmp_path: Path) -> None:
    images = write_mat(tmp_path / "train_32x32.mat", 12)
    write_mat(tmp_path / "test_32x32.mat", 5)
    data = datasets.load("svhn", tmp_path)
    assert data.train.targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert torch.equal(data.train.inputs, torch.from_numpy(images) / 255)
    assert data.test is not None
    assert len(data.test) == 5


def test_digits_of_five_origins(mnist: Path) -> None:
    write_five(mnist)
    data = datasets.load("digit_five", mnist, per_domain=30)
    assert data.shape == (3, 28, 28)
    assert data.train.meta["domain"].bincount().tolist() == [30, 12, 9, 12, 8]
    assert data.test is not None
    assert data.test.meta["domain"].bincount().tolist() == [6, 6, 3, 6, 4]
    world = Scenario(
        dataset="digit_five",
        partition="domain",
        clients=5,
        test="whole",
        shuffle=False,
        model="linear",
    )
    assert world.build(0, mnist).truth == ((0,), (1,), (2,), (3,), (4,))


def test_matlab_files_of_another_form_are_refused(tmp_path: Path) -> None:
    write_mat(tmp_path / "test_32x32.mat", 5)
    file = tmp_path / "train_32x32.mat"
    file.write_bytes(b"no such thing")
    with pytest.raises(UserError, match="is not a readable MATLAB file"):
        datasets.load("svhn", tmp_path)
    savemat(file, {"X": np.zeros((32, 32, 3, 2))})
    with pytest.raises(UserError, match="lacks 'y'; it must hold X and y"):
        datasets.load("svhn", tmp_path)
    savemat(file, {"X": np.zeros((4, 4)), "y": np.ones((4, 1))})
    with pytest.raises(UserError, match="must hold colour images X"):
        datasets.load("svhn", tmp_path)
    savemat(file, {"X": np.zeros((32, 32, 3, 2)), "y": np.array([["a"], ["b"]], dtype=object)})
    with pytest.raises(UserError):
        datasets.load("svhn", tmp_path)
