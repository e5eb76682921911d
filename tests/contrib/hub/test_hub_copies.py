"""``coterie data``: files of data sets of the hub, from local folders in its layout; no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.contrib.hub import command
from coterie.contrib.hub.copying import HUB_COPIES, copy
from coterie.data import datasets
from coterie.data.examples import Dataset, pool
from coterie.settings import UserError

Columns = dict[str, list[Any]]


def images(count: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.fixture
def of_hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the reader of the hub finds: (name, column of labels) -> data set."""
    found: dict[Any, Dataset] = {}
    real_load = datasets.load

    def load(name: str, folder: Any = None, **options: Any) -> Dataset:
        if name.startswith("hub:") and (name, options.get("label_column")) in found:
            return found[name, options.get("label_column")]
        return real_load(name, folder, **options)

    monkeypatch.setattr(datasets, "load", load)
    return found


def made(shape: tuple[int, ...], classes: int, seed: int) -> tuple[Dataset, np.ndarray, np.ndarray]:
    train, test = images(23, shape, seed), images(7, shape, seed + 1)
    labels = [np.arange(count) * (seed + 1) % classes for count in (23, 7)]
    dataset = Dataset(
        name="any",
        train=pool(train, labels[0], "any", classes),
        test=pool(test, labels[1], "any", classes),
        classes=classes,
    )
    return dataset, train, labels[0]


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("cifar10", (3, 32, 32), 10), ("mnist", (1, 28, 28), 10), ("fashion_mnist", (1, 28, 28), 10)],
)
def test_what_is_written_is_read_as_the_hub_has_it(
    name: str, shape: tuple[int, ...], classes: int, tmp_path: Path, of_hub: dict[Any, Dataset]
) -> None:
    dataset, train, labels = made(shape, classes, 2)
    of_hub[f"hub:{HUB_COPIES[name].hub_name}", "label"] = dataset
    paths = copy(name, tmp_path / "data")
    assert all(path.is_file() for path in paths)
    read = datasets.load(name, tmp_path / "data")
    assert torch.equal(read.train.inputs, torch.from_numpy(train / np.float32(255)))
    assert read.train.targets.tolist() == labels.tolist()
    assert read.test is not None
    assert torch.equal(read.test.inputs, dataset.test.inputs)  # type: ignore[union-attr]
    # Nothing is replaced.
    with pytest.raises(UserError, match="exists: choose another folder, or remove it"):
        copy(name, tmp_path / "data")


def test_both_labels_of_cifar100_stand_in_its_files(
    tmp_path: Path, of_hub: dict[Any, Dataset]
) -> None:
    fine, train, labels = made((3, 32, 32), 100, 4)
    coarse, _, _ = made((3, 32, 32), 20, 4)
    coarse_labels = coarse.train.targets.tolist()
    of_hub["hub:mirror/cifar100", "fine_label"] = fine
    of_hub["hub:mirror/cifar100", "coarse_label"] = coarse
    copy("cifar100", tmp_path, source="mirror/cifar100")
    table = np.frombuffer((tmp_path / "cifar-100-binary/train.bin").read_bytes(), np.uint8)
    table = table.reshape(23, 2 + 3072)
    assert table[:, 0].tolist() == coarse_labels
    assert table[:, 1].tolist() == labels.tolist()
    assert np.array_equal(table[:, 2:].reshape(train.shape), train)
    assert datasets.load("cifar100", tmp_path).train.targets.tolist() == labels.tolist()


def test_any_other_data_set_becomes_an_npz_file(tmp_path: Path, of_hub: dict[Any, Dataset]) -> None:
    dataset, train, labels = made((1, 6, 6), 3, 1)
    of_hub["hub:someone/shapes", None] = dataset
    (path,) = copy("hub:someone/shapes", tmp_path)
    assert path.name == "someone_shapes.npz"
    read = datasets.load("someone_shapes", tmp_path)
    assert torch.equal(read.train.inputs, torch.from_numpy(train / np.float32(255)))
    assert read.train.targets.tolist() == labels.tolist()


@pytest.mark.slow
def test_a_local_folder_in_the_hub_s_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    hub = pytest.importorskip("datasets")
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    features = hub.Features({"img": hub.Image(), "label": hub.ClassLabel(num_classes=10)})
    photographs = images(12, (32, 32, 3), 9)
    (tmp_path / "copy").mkdir()
    for split, rows in (("train", slice(0, 10)), ("test", slice(10, 12))):
        columns = {
            "img": list(photographs[rows]),
            "label": list(range(10))[: len(photographs[rows])],
        }
        hub.Dataset.from_dict(columns, features=features).to_parquet(
            tmp_path / "copy" / f"{split}-00000-of-00001.parquet"
        )
    parser_arguments = type(
        "Given",
        (),
        {"name": "cifar10", "to": str(tmp_path / "data"), "source": str(tmp_path / "copy")},
    )
    assert command.run(parser_arguments) == 0  # type: ignore[arg-type]
    assert "data_batch_5.bin written" in capsys.readouterr().out
    read = datasets.load("cifar10", tmp_path / "data")
    expected = photographs[:10].transpose(0, 3, 1, 2) / np.float32(255)
    assert torch.equal(read.train.inputs, torch.from_numpy(expected))


def test_mistakes_are_sentences(tmp_path: Path, of_hub: dict[Any, Dataset]) -> None:
    with pytest.raises(UserError, match="hub: needs the name of a data set"):
        copy("hub:", tmp_path)
    with pytest.raises(UserError, match=r"knows no data set 'cifar-10'; did you mean cifar10\?"):
        copy("cifar-10", tmp_path)
    of_hub["hub:uoft-cs/cifar10", "label"] = made((1, 28, 28), 10, 0)[0]
    with pytest.raises(
        UserError, match=r"the images must have shape \(3, 32, 32\), got \(1, 28, 28\)"
    ):
        copy("cifar10", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_hub_out_of_reach_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    with pytest.raises(UserError, match=r"hub:nobody/nothing-at-all cannot be loaded: .") as caught:
        copy("hub:nobody/nothing-at-all", tmp_path / "never")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "never").exists()
