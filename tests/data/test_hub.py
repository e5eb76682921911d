"""Data sets of the hub, from a local folder in the hub's layout: no network."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data import datasets
from coterie.settings import UserError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ``datasets`` package, offline, with its cache in a folder of the test's."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip(
        "flwr_datasets", reason="flwr-datasets is not installed (pip install 'coterie[hub]')"
    )
    package = pytest.importorskip("datasets")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return package


def write(hub: Any, folder: Path, features: Any, splits: dict[str, dict[str, list[Any]]]) -> str:
    folder.mkdir()
    for split, columns in splits.items():
        hub.Dataset.from_dict(columns, features=features).to_parquet(
            folder / f"{split}-00000-of-00001.parquet"
        )
    return f"hub:{folder}"


def columns(count: int) -> dict[str, list[Any]]:
    return {
        "img": [np.full((6, 6, 3), i, np.uint8) for i in range(count)],
        "species": [i % 3 for i in range(count)],
        "writer_id": [f"w{i % 2}" for i in range(count)],
    }


@pytest.mark.slow
def test_columns_are_found_by_their_types(hub: Any, tmp_path: Path) -> None:
    features = hub.Features(
        {
            "img": hub.Image(),
            "species": hub.ClassLabel(num_classes=4),
            "writer_id": hub.Value("string"),
        }
    )
    name = write(hub, tmp_path / "birds", features, {"train": columns(10), "test": columns(4)})
    data = datasets.load(name)
    assert data.shape == (3, 6, 6)
    assert data.classes == 4
    assert data.test is not None
    assert len(data.test) == 4
    assert data.train.inputs[5].max() == data.train.inputs[5].min() == np.float32(5 / 255)
    assert data.train.targets.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert data.train.meta["writer"].tolist() == [0, 1] * 5


def test_columns_are_found_by_usual_names_or_by_settings(hub: Any, tmp_path: Path) -> None:
    features = hub.Features({"x": hub.Sequence(hub.Value("float32")), "kind": hub.Value("int64")})
    rows = {"x": [[0.5, 1.0], [1.0, 2.0]], "kind": [1, 0]}
    name = write(hub, tmp_path / "table", features, {"train": rows})
    with pytest.raises(
        UserError, match="the column is ambiguous, set label_column; it has x, kind"
    ):
        datasets.load(name)
    data = datasets.load(name, label_column="kind")
    assert data.shape == (2,)
    assert data.test is None
    assert data.classes == 2
    with pytest.raises(UserError, match=r"has no column 'y' \(label_column\); it has x, kind"):
        datasets.load(name, label_column="y")


def test_a_missing_data_set_is_one_sentence(hub: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be loaded"):
        datasets.load(f"hub:{tmp_path / 'absent'}")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(
        UserError, match=r"hub:mnist needs flwr-datasets: pip install 'coterie\[hub\]'"
    ):
        datasets.load("hub:mnist")


def test_a_folder_of_broken_files_or_of_a_pipe(hub: Any, tmp_path: Path) -> None:
    features = hub.Features({"x": hub.Sequence(hub.Value("float32")), "label": hub.Value("int64")})
    rows = {"x": [[0.5, 1.0]] * 40, "label": [1, 0] * 20}
    name = write(hub, tmp_path / "table", features, {"train": rows})
    (file,) = (tmp_path / "table").iterdir()
    whole = file.read_bytes()
    changed = whole[:300] + bytes(200) + whole[500:]
    for number, broken in enumerate((b"", b"PAR1", whole[:-20], changed, b"\x80\x04cos\nsystem\n")):
        folder = tmp_path / f"table{number}"
        folder.mkdir()
        (folder / file.name).write_bytes(broken)
        with pytest.raises(UserError, match=f"^hub:{folder} cannot be loaded: ."):
            datasets.load(f"hub:{folder}")
    os.mkfifo(tmp_path / "table" / "train-00001.parquet")
    with pytest.raises(UserError, match="is not a regular file"):
        datasets.load(name)
