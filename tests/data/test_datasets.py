"""Every data set is read from small files in its upstream layout."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from upstream import pictures, write_cifar, write_colour_digits, write_idx, write_mnist, write_usps

from coterie.data import datasets
from coterie.data.datasets import digits
from coterie.data.examples import pool
from coterie.data.scenario import Scenario
from coterie.settings import SettingError, UserError

pytestmark = pytest.mark.usefixtures("no_data")


def test_digits_come_with_scikit_learn() -> None:
    data = datasets.load("digits")
    assert data.train.inputs.shape == (1797, 1, 8, 8)
    assert data.train.inputs.dtype == torch.float32
    assert 0 <= data.train.inputs.min() < data.train.inputs.max() == 1
    assert data.shape == (1, 8, 8)
    assert data.classes == 10
    assert data.test is None


@pytest.mark.parametrize("moved", [False, True], ids=["read directly", "its file has moved"])
def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    if moved:
        monkeypatch.setattr(digits, "find_spec", lambda name: None)
    pixels, labels = load_digits(return_X_y=True)
    for found, expected in zip(digits._pixels_and_labels(), (pixels, labels), strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def test_a_run_on_digits_imports_no_scikit_learn() -> None:
    code = """
import sys, coterie
list(coterie.run("auto", "digits/label-permutation", rounds=1, workers=1, eval_every=2))
print([name for name in ("sklearn", "pandas", "scipy.stats") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_synthetic_depends_on_its_seed_alone() -> None:
    a, b, c = (
        datasets.load("synthetic", examples=50, features=3, classes=5, seed=seed)
        for seed in (1, 1, 2)
    )
    assert a.train.inputs.shape == (50, 3)
    assert a.train.targets.bincount().tolist() == [10] * 5
    assert torch.equal(a.train.inputs, b.train.inputs)
    assert not torch.equal(a.train.inputs, c.train.inputs)


@pytest.mark.parametrize("place", ["", "MNIST/raw", "mnist"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_plain_or_gzipped(tmp_path: Path, place: str, suffix: str) -> None:
    write_mnist(tmp_path / place, suffix=suffix)
    data = datasets.load("mnist", tmp_path)
    assert data.train.inputs.shape == (40, 1, 28, 28)
    assert data.test is not None
    assert len(data.test) == 20
    assert torch.equal(data.train.inputs[:, 0], torch.from_numpy(pictures(40, (28, 28))) / 255)
    assert data.train.targets.tolist() == [*range(10)] * 4


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path / "FashionMNIST" / "raw")
    assert len(datasets.load("fashion_mnist", tmp_path).train) == 40
    with pytest.raises(
        UserError,
        match=r"mnist needs train-images-idx3-ubyte \(or .*\.gz\), which is in none of: .*raw",
    ):
        datasets.load("mnist", tmp_path)


def test_names_with_a_dot_are_found(tmp_path: Path) -> None:
    write_mnist(tmp_path, suffix="")
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(datasets.load("mnist", tmp_path).train) == 40


def test_qmnist_tells_the_writers_and_their_populations(mnist: Path) -> None:
    data = datasets.load("qmnist", mnist)
    assert data.train.meta["writer"].tolist() == [0, 1, 2, 3] * 10
    assert data.train.meta["population"].tolist() == [0, 0, 1, 1] * 10
    assert data.test is not None
    assert len(data.test.meta["writer"]) == 20


def test_populations_make_two_groups(mnist: Path) -> None:
    world = Scenario(dataset="qmnist", partition="population", clients=6, shuffle=False).build(
        0, mnist
    )
    assert world.truth == ((0, 2, 4), (1, 3, 5))
    students = datasets.load("qmnist", mnist).train.meta["population"]
    for client, data in world.clients.items():
        for split in (data.train, data.validation, data.test):
            assert set(students[split.index].tolist()) == {client % 2}


def test_writers_of_other_images_are_refused(mnist: Path) -> None:
    table = np.zeros((40, 8), np.int32)
    write_idx(mnist / "MNIST" / "raw" / "qmnist-train-labels-idx2-int.gz", table)
    with pytest.raises(UserError, match="does not belong to these MNIST labels"):
        datasets.load("qmnist", mnist)


def test_cifar10_of_any_number_of_files_and_rows(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    first = write_cifar(folder / "data_batch_1.bin", np.array([3, 9, 0]), 1)
    write_cifar(folder / "data_batch_4.bin", np.array([1, 2]), 1)
    data = datasets.load("cifar10", tmp_path)
    assert data.train.targets.tolist() == [3, 9, 0, 1, 2]
    assert data.test is None
    assert data.classes == 10
    assert torch.equal(data.train.inputs[:3], torch.from_numpy(first) / 255)
    write_cifar(folder / "test_batch.bin", np.array([7]), 1)
    again = datasets.load("cifar10", tmp_path)
    assert again.test is not None
    assert again.test.targets.tolist() == [7]


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    write_cifar(tmp_path / "train.bin", np.array([99, 5]), 2)
    write_cifar(tmp_path / "test.bin", np.array([42]), 2)
    data = datasets.load("cifar100", tmp_path)
    assert data.train.targets.tolist() == [99, 5]
    assert data.classes == 100
    assert data.shape == (3, 32, 32)


def test_any_npz_by_its_name(tmp_path: Path) -> None:
    arrays = {
        "x_train": pictures(6, (5, 5, 3)),
        "y_train": np.arange(6),
        "x_test": pictures(2, (5, 5, 3)),
    }
    np.savez(tmp_path / "mine.npz", **arrays, y_test=np.array([7, 0]))
    data = datasets.load("mine", tmp_path)
    assert data.shape == (3, 5, 5)
    assert data.classes == 8
    assert data.test is not None
    assert len(data.test) == 2
    np.savez(tmp_path / "table.npz", x=np.ones((4, 2)), y=np.array([0, 1, 0, 1]))
    assert datasets.load("table", tmp_path).train.inputs.dtype == torch.float32
    np.savez(
        tmp_path / "scales.npz",
        **{**arrays, "x_test": arrays["x_test"] / 1.0},
        y_test=np.array([7, 0]),
    )
    with pytest.raises(
        UserError,
        match=r"scales\.npz: x_train has uint8, .* is divided by 255, and .*x_test has float64",
    ):
        datasets.load("scales", tmp_path)


def test_digits_of_four_origins_have_one_shape(mnist: Path) -> None:
    write_usps(mnist, shade=0.5)
    write_colour_digits(mnist)
    data = datasets.load("digit_domains", mnist, per_domain=30)
    assert data.shape == (3, 28, 28)
    assert data.test is not None
    assert data.train.meta["domain"].bincount().tolist() == [30, 9, 8, 30]
    assert data.test.meta["domain"].bincount().tolist() == [6, 3, 4, 6]
    usps = data.train.inputs[data.train.meta["domain"] == 1]
    assert torch.allclose(usps, torch.tensor(0.5))


def test_a_data_set_is_read_once_until_a_file_changes(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    first = datasets.load("mnist", tmp_path)
    assert datasets.load("mnist", tmp_path) is first
    write_mnist(tmp_path, train=30)
    assert len(datasets.load("mnist", tmp_path).train) == 30


def test_the_folder_is_the_one_given_or_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path)
    with pytest.raises(
        UserError,
        match="mnist is read from files: give their folder with --data DIR or set COTERIE_DATA",
    ):
        datasets.load("mnist")
    with pytest.raises(UserError, match=r"the data folder .*absent does not exist"):
        datasets.load("mnist", tmp_path / "absent")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert len(datasets.load("mnist").train) == 40


def test_for_unknown_names_the_nearest_is_suggested() -> None:
    with pytest.raises(UserError, match=r"no data set 'mnits'; did you mean mnist\?"):
        datasets.load("mnits")
    with pytest.raises(
        SettingError, match=r"synthetic has no setting 'clases'; did you mean classes\?"
    ):
        datasets.load("synthetic", clases=3)


@pytest.mark.parametrize(
    ("inputs", "targets", "sentence"),
    [
        (np.ones((3, 2)), np.arange(4), "mislabelled: 3 inputs but 4 labels"),
        (
            np.ones((3, 2)),
            np.array([0, 1, 10]),
            "mislabelled: labels must be 0 to 9, found 0 to 10",
        ),
        (np.ones((2, 2)), np.array([-1, 1]), "labels must be 0 to 9, found -1 to 1"),
        (np.ones((2, 2)), np.array([0.5, 1]), "labels that are integers"),
        (np.ones((0, 2)), np.ones(0), "holds no examples"),
        (np.array([["a"], ["b"]]), np.arange(2), "must hold numbers"),
        (np.array([[np.nan], [1.0]]), np.arange(2), "not finite"),
        (np.array([[1e300], [1.0]]), np.arange(2), "not finite numbers in float32"),
        (np.ones((2, 2)), np.array([0, np.inf]), "labels that are integers"),
        (
            np.ones((2, 2)),
            np.array([0, 2**63], np.uint64),
            "labels must be class numbers from 0, found 9223372036854775808",
        ),
    ],
)
def test_invalid_arrays_are_refused(inputs: np.ndarray, targets: np.ndarray, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pool(inputs, targets, "some file", 10)


def test_whole_numbers_are_pixels_or_tokens_by_their_shape() -> None:
    labels = np.zeros(2, int)
    assert pool(np.full((2, 4, 4), 255), labels, "images").inputs.max() == 1
    assert pool(np.full((2, 4), 255, np.uint8), labels, "flat images").inputs.max() == 1
    assert pool(np.full((2, 4), 255), labels, "tokens").inputs.dtype == torch.int64


def test_labels_of_another_set_are_mislabelled(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(39, np.uint8))
    with pytest.raises(UserError, match=r"train-labels.* is mislabelled: 40 inputs but 39 labels"):
        datasets.load("mnist", tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.full(40, 11, np.uint8))
    with pytest.raises(UserError, match="labels must be 0 to 9"):
        datasets.load("mnist", tmp_path)


def test_cifar_with_a_label_out_of_range(tmp_path: Path) -> None:
    write_cifar(tmp_path / "data_batch_1.bin", np.array([3, 10]), 1)
    with pytest.raises(
        UserError, match=r"data_batch_1.bin is mislabelled: labels must be 0 to 9, found 10"
    ):
        datasets.load("cifar10", tmp_path)


def test_a_half_downloaded_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="broken or incomplete gzip file"):
        datasets.load("mnist", tmp_path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(UserError, match="is empty"):
        datasets.load("mnist", tmp_path)


def test_the_real_data_sets_are_whole(data_folder: Path) -> None:
    mnist, fashion = (
        datasets.load("qmnist", data_folder),
        datasets.load("fashion_mnist", data_folder),
    )
    assert len(mnist.train) == len(fashion.train) == 60_000
    assert mnist.test is not None
    assert len(mnist.test) == 10_000
    assert len(mnist.train.meta["writer"].unique()) == 539
    assert mnist.train.meta["population"].bincount().tolist() == [30_950, 29_050]
    assert fashion.train.targets.bincount().tolist() == [6000] * 10
    usps = datasets.load("usps", data_folder)
    assert usps.shape == (1, 16, 16)
    assert len(usps.train) == 7291
    assert usps.test is not None
    assert len(usps.test) == 2007


def test_the_real_colour_images(data_folder: Path) -> None:
    cifar10, cifar100 = (
        datasets.load("cifar10", data_folder),
        datasets.load("cifar100", data_folder),
    )
    assert cifar10.shape == cifar100.shape == (3, 32, 32)
    assert cifar10.classes == 10
    assert cifar100.classes == 100
    # The channel means of the whole set are .491, .482, .447; a half of it is near.
    assert torch.allclose(
        cifar10.train.inputs.mean((0, 2, 3)), torch.tensor([0.491, 0.482, 0.447]), atol=0.01
    )
