"""The benchmark of labels that rotate in two directions, on files of random images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "benchmarks")]

import label_rotations  # noqa: E402
from label_rotations import DOWNWARDS, STATIONARY, UPWARDS, rotation, world  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files in the binary form of CIFAR-10, of 20 random images each."""
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name in names:
        records = rng.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] = rng.integers(0, 10, 20)
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


def test_labels_rotate_in_rounds_3_5_7_and_9_and_images_stay(folder: Path) -> None:
    whole = world(folder, 8, seed=0)
    first = whole.steps[whole.step(1)]
    for number, turns in ((2, 0), (3, 1), (4, 1), (5, 2), (9, 4), (10, 4)):
        step = whole.steps[whole.step(number)]
        for client, turned in ((STATIONARY[0], 0), (UPWARDS[0], turns), (DOWNWARDS[0], -turns)):
            for split, split_before in (
                (step[client].train, first[client].train),
                (step[client].test, first[client].test),
            ):
                images, labels = label_rotations.examples_of(split)
                images_before, labels_before = label_rotations.examples_of(split_before)
                assert torch.equal(images, images_before)
                assert torch.equal(labels, (labels_before + turned) % 10)
    assert whole.true_groups(2) == (tuple(range(10)),)
    assert whole.true_groups(3) == (STATIONARY, UPWARDS, DOWNWARDS)


def test_the_oracle_has_a_model_for_each_rotation() -> None:
    assert label_rotations.own_concepts(0) == dict.fromkeys(range(10), 0)
    later = label_rotations.own_concepts(3)
    assert [later[client] for client in (0, 2, 6)] == [0, 3, 7]
    assert rotation(6, 3) == -3


def test_runs_and_their_table(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cifar-10-batches-bin").symlink_to(folder)
    monkeypatch.setattr(label_rotations, "RESULTS", tmp_path / "rows.jsonl")
    arguments = ["--data", str(tmp_path), "--images", "6", "--only", "fedavg", "oracle"]
    label_rotations.main(arguments)
    rows = label_rotations.known()
    assert [row["method"] for row in rows] == ["fedavg", "oracle"]
    assert np.array(rows[0]["accuracies"]).shape == (10, 10)
    # What is measured is not measured again.
    label_rotations.main(arguments)
    assert label_rotations.known() == rows
    assert "| fedavg | 1 |" in capsys.readouterr().out


def test_the_table_by_hand() -> None:
    """Stationary clients have .2 and, from round 4 on, .6; the others half of that."""
    accuracies = np.full((10, 10), 0.1)
    accuracies[:, list(STATIONARY)] = 0.2
    accuracies[3:] *= 3
    accuracies[-1] = 0.5
    found = label_rotations.table([{"method": "one", "accuracies": accuracies.tolist()}])
    stationary = (6 * 0.6 + 0.5) / 7
    drifted = (6 * 0.3 + 0.5) / 7
    assert (
        found.splitlines()[2] == f"| one | 1 | 0.500 | {stationary:.3f} | 0.500 | {drifted:.3f} |"
    )


def test_fed_clma_itself_runs(folder: Path) -> None:
    pytest.importorskip("clma", reason="fed-clma is not installed")
    accuracies = np.array(label_rotations.by_clma(world(folder, 6, seed=0), seed=0))
    assert accuracies.shape == (10, 10)
    assert ((accuracies >= 0) & (accuracies <= 1)).all()
