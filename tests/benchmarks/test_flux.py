"""FLUX's grid: clients see what each shift and level says, runs can pause, and means are over shifts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data.examples import Dataset, Pool
from coterie.data.shift import rotated
from coterie.data.world import Split
from coterie.randomness import Purpose, numpy_generator

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import flux  # noqa: E402
import flux_tables  # noqa: E402

ROTATIONS = {1: 2, 2: 3, 3: 4, 4: 5, 5: 2, 6: 3, 7: 4, 8: 5}
"""Level -> the number of rotations of P(X), as in FLUX's ``generate_datasets.py``."""


def noise(channels: int) -> Dataset:
    """A data set of noise: 200 images to train on and 100 to test, in ten classes."""
    rng = torch.Generator().manual_seed(0)
    pools = [
        Pool(torch.rand(n, channels, 12, 12, generator=rng), torch.arange(n) % 10)
        for n in (200, 100)
    ]
    for pool in pools:
        pool.inputs[..., 0, 0] = (
            0  # every image has some black, with which a turn fills its corners
        )
    return Dataset(name="noise", train=pools[0], test=pools[1], classes=10)


@pytest.fixture
def of_noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Dataset]:
    """Puts noise in the place of the data."""

    def put(channels: int) -> Dataset:
        made = noise(channels)
        monkeypatch.setattr(flux.datasets, "load", lambda name, folder: made)
        monkeypatch.setattr(flux, "DATASETS", dict.fromkeys(flux.DATASETS, len(made.train)))
        return made

    return put


def views(shift: str, level: int, seeds: int = 60) -> list[list[flux.Seen]]:
    return [flux.seen(shift, level, np.random.default_rng(seed)) for seed in range(seeds)]


# -- what clients see
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", flux.LEVELS)
def test_all_images_of_a_client_are_turned_and_coloured_alike(level: int) -> None:
    patterns = set()
    for view in (view for made in views("px", level) for view in made):
        assert len(set(view.angles)) == 1
        assert (view.classes, view.labels) == (tuple(range(10)), tuple(range(10)))
        patterns.add((view.angles[0], view.colour))
    wanted = [360 // ROTATIONS[level] * turn for turn in range(ROTATIONS[level])]
    assert patterns == {
        (turn, colour) for turn in wanted for colour in ([None] if level < 5 else [0, 1, 2])
    }


@pytest.mark.parametrize("level", flux.LEVELS)
def test_clients_have_one_of_five_sets_of_classes(level: int) -> None:
    for made in views("py", level):
        assert {len(set(view.classes)) for view in made} == {11 - level}
        assert len({view.classes for view in made}) <= 5
        assert {view.labels for view in made} == {tuple(range(10))}
    assert {label for made in views("py", level) for view in made for label in view.classes} == set(
        range(10)
    )


@pytest.mark.parametrize("level", flux.LEVELS)
def test_labels_of_as_many_classes_as_the_level_are_permuted(level: int) -> None:
    most = 0
    for made in views("py-x", level):
        assert all(sorted(view.labels) == list(range(10)) for view in made)
        changed = {label for view in made for label in range(10) if view.labels[label] != label}
        assert {
            label for view in made for label in changed if view.labels[label] not in changed
        } == set()
        most = max(most, len(changed))
    assert most == (0 if level == 1 else level)


@pytest.mark.parametrize("level", flux.LEVELS)
def test_images_of_as_many_classes_as_the_level_are_turned(level: int) -> None:
    turned = []
    for made in views("px-y", level):
        assert {angle for view in made for angle in view.angles} <= {0, 90, 180, 270}
        turned.append(len({label for view in made for label in range(10) if view.angles[label]}))
    assert max(turned) == level


# -- worlds
# ---------------------------------------------------------------------------------------------------------------


def slowly(image: torch.Tensor, angle: int, colour: int | None, channels: int) -> torch.Tensor:
    """One image as a client sees it, a channel at a time."""
    if len(image) < channels:
        image = torch.stack([image[0]] * channels)
    square = angle % 90 == 0
    made = (
        torch.stack([channel.rot90(angle // 90) for channel in image])
        if square
        else rotated(image[None], angle)[0]
    )
    if colour is not None:
        made = torch.stack(
            [torch.ones(12, 12) if number == colour else made[number] for number in range(channels)]
        )
    return made


def origins(split: Split, pool: Pool, view: flux.Seen, channels: int) -> list[int]:
    """The positions in the pool of a client's examples; each must be seen as the view says, with the label that it says."""
    turned = [
        slowly(image, view.angles[label], view.colour, channels)
        for image, label in zip(pool.inputs, pool.targets.tolist(), strict=True)
    ]
    images, labels = split.batch(torch.arange(len(split)))
    assert isinstance(images, torch.Tensor)
    far = torch.cdist(
        images.flatten(1),
        torch.stack(turned).flatten(1),
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    assert far.min(1).values.max() < 1e-3
    found = far.argmin(1)
    classes = pool.targets[found].tolist()
    assert set(classes) <= set(view.classes)
    assert isinstance(labels, torch.Tensor)
    assert labels.tolist() == [view.labels[label] for label in classes]
    return found.tolist()


@pytest.mark.parametrize("level", [1, 4, 8])
@pytest.mark.parametrize("shift", flux.SHIFTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_worlds_are_what_their_clients_see(
    of_noise: Callable[..., Dataset], channels: int, shift: str, level: int
) -> None:
    data, fold = of_noise(channels), 3
    made = flux.world("mnist", "paper", shift, level, fold)
    views = flux.seen(
        shift, level, numpy_generator(fold, Purpose.SHIFT, level, list(flux.SHIFTS).index(shift))
    )
    seen_in = 3 if shift in ("px", "px-y") else channels
    used: list[int] = []
    tested: list[int] = []
    assert data.test is not None
    for client, view in enumerate(views):
        own = made.clients[client]
        train, validation = (
            origins(part, data.train, view, seen_in) for part in (own.train, own.validation)
        )
        distinct = len(set(train)) + len(validation)
        assert len(validation) == round(0.2 * distinct)
        assert len(train) == round(len(set(train)) * 10 / len(view.classes))  # some are repeated
        used += [*set(train), *validation]
        tested += origins(own.test, data.test, view, seen_in)
    for rows, pool in ((used, data.train), (tested, data.test)):
        assert len(set(rows)) == len(rows)  # nobody has an example of another client
        assert len(rows) == len(pool) or shift == "py"
    assert made.truth is not None
    for group in made.truth:
        assert len({views[client] for client in group}) == 1
    assert len(made.truth) == len(set(views))


def test_scales_differ_in_examples_and_steps(of_noise: Callable[..., Dataset]) -> None:
    of_noise(1)
    whole, small = (flux.world("mnist", scale, "py-x", 3, 0) for scale in ("paper", "small"))
    assert [len(made.clients[0].train) for made in (whole, small)] == [16, 2]
    assert [made.training.batch for made in (whole, small)] == [64, 32]
    assert len(small.clients[0].test) == len(whole.clients[0].test) == 10
    # As many steps times their length in an epoch: of 4,800 examples by 64, and of 480 by 32.
    assert 4800 / 64 * whole.training.lr == pytest.approx(480 / 32 * small.training.lr)


def test_half_of_the_images_have_twice_the_epochs(
    of_noise: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_noise(3)
    assert flux.world("cifar10", "paper", "py", 1, 0).training.epochs == 2
    monkeypatch.setattr(flux, "DATASETS", {"cifar10": 400})
    assert flux.world("cifar10", "paper", "py", 1, 0).training.epochs == 4


# -- runs and tables
# ------------------------------------------------------------------------------------------------------


def row(method: str, shift: str, level: int, accuracy: float, **more: Any) -> dict[str, Any]:
    usual = {
        "dataset": "mnist",
        "scale": "small",
        "fold": 0,
        "settings": dict(flux.SETTINGS[method]),
        "groups": 2,
        "epochs": 2,
    }
    return {
        **usual,
        "method": method,
        "shift": shift,
        "level": level,
        "accuracy": accuracy,
        "ari": 0.5,
        **more,
    }


def test_runs_pause_and_go_on(
    of_noise: Callable[..., Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_noise(1)
    monkeypatch.setattr(flux, "ROUNDS", 3)
    call = ["--datasets", "mnist", "--shifts", "px", "--levels", "8", "--methods", "fedavg,apfl"]
    found, calls = [], {}
    for name, more in (
        ("whole", []),
        ("parts", ["--minutes", "0", "--pause", str(tmp_path / "pause")]),
    ):
        monkeypatch.setattr(flux, "RESULTS", tmp_path / f"{name}.jsonl")
        calls[name] = 0
        while len(flux.known()) < 2:
            assert flux.main([*call, *more]) == 0
            calls[name] += 1
        found.append([{**row, "seconds": 0} for row in flux.known()])
    assert calls == {"whole": 1, "parts": 6}  # two runs of three rounds
    assert not list((tmp_path / "pause").iterdir())
    assert found[0] == found[1]
    assert [row["method"] for row in found[0]] == ["fedavg", "apfl"]
    assert all(
        row["accuracy"] == pytest.approx(np.mean(row["accuracies"]), abs=1e-4) for row in found[0]
    )


def test_a_run_with_a_part_of_the_images_does_not_count_where_there_are_more(
    of_noise: Callable[..., Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_noise(1)
    monkeypatch.setattr(flux, "RESULTS", tmp_path / "flux.jsonl")
    half, whole = (
        row("fedavg", "px", 8, accuracy, epochs=epochs)
        for accuracy, epochs in ((0.25, 4), (0.5, 2))
    )
    asked = flux.options().parse_args(
        ["--datasets=mnist", "--shifts=px", "--levels=8", "--methods=fedavg", "--scale=small"]
    )
    wanted = [(("mnist", "small", "px", 8, 0), ["fedavg"])]

    def write(*rows: dict[str, Any]) -> None:
        flux.RESULTS.write_text("".join(f"{json.dumps(one)}\n" for one in rows))

    write(half)
    assert (list(flux.missing(asked)), flux.known()) == (wanted, [half])
    for rows in ((half, whole), (whole, half)):
        write(*rows)
        assert (list(flux.missing(asked)), flux.known()) == ([], [whole])
    monkeypatch.setattr(flux, "DATASETS", {"mnist": 400})  # half of them
    assert list(flux.missing(asked)) == []
    write(half)
    assert list(flux.missing(asked)) == []


ROWS = [
    *(
        row("fedavg", shift, 8, accuracy)
        for shift, accuracy in zip(flux.SHIFTS, (0.5, 0.625, 0.75, 0.875), strict=True)
    ),
    row("fedavg", "px", 8, 0.75, fold=1),
    row("auto", "px", 8, 0.75),
]


def test_means_are_over_shifts_of_means_over_folds() -> None:
    assert flux.means(ROWS) == {("fedavg", 8): (0.625 + 0.625 + 0.75 + 0.875) / 4}


@pytest.mark.parametrize(
    ("dataset", "published"),
    [
        (
            "mnist",
            {
                "apfl": 0.955,
                "pfedme": 0.955,
                "flux": 0.925,
                "feddrift": 0.911,
                "ifca": 0.841,
                "cfl": 0.813,
                "fedavg": 0.809,
            },
        ),
        (
            "fashion_mnist",
            {
                "apfl": 0.819,
                "pfedme": 0.819,
                "flux": 0.794,
                "feddrift": 0.807,
                "ifca": 0.724,
                "fedavg": 0.655,
            },
        ),
        (
            "cifar10",
            {
                "apfl": 0.447,
                "pfedme": 0.424,
                "flux": 0.386,
                "feddrift": 0.351,
                "ifca": 0.383,
                "fedavg": 0.309,
            },
        ),
    ],
)
def test_printed_numbers_have_the_published_means(
    dataset: str, published: dict[str, float]
) -> None:
    for name, mean in published.items():
        assert np.mean(flux.PRINTED[dataset][name]) == pytest.approx(mean, abs=0.0011)
    assert all(len(levels) == 8 for levels in flux.PRINTED[dataset].values())


def test_tables_have_the_printed_numbers_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flux, "RESULTS", tmp_path / "flux.jsonl")
    assert "Not measured yet" in flux_tables.levels("mnist", "small") + flux_tables.shifts(
        "mnist", "small"
    )
    flux.RESULTS.write_text("".join(f"{json.dumps(one)}\n" for one in ROWS))
    assert "| mnist | small | fedavg | 8 | 0.719 | 0.694 |" in flux.table()
    levels = flux_tables.levels("mnist", "small")
    assert "| `fedavg` | 0.719 | 0.694 |" in levels
    assert "| `apfl` | – | 0.954 |" in levels
    assert "| FLUX | – | 0.884 |" in levels
    assert "`auto`" not in levels  # not of all shifts
    shifts = flux_tables.shifts("mnist", "small")
    assert r"| P(X) | P(Y) | P(Y\|X) | P(X\|Y) | mean |" in shifts
    assert "| 8 | `fedavg` | 0.625 | 0.625 | 0.750 | 0.875 | 0.719 |" in shifts
    assert "| 8 | `auto` | 0.750 | – | – | – | – |" in shifts
