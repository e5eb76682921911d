"""FLUX's grid of heterogeneity, every method on it: four shifts at eight levels, on MNIST, Fashion-MNIST and CIFAR-10.

    python benchmarks/flux.py [--datasets mnist,...] [--shifts px,...] [--levels 1,8] [--folds 0,1]
        [--methods fedavg,...] [--scale paper|small] [--data DIR]
    python benchmarks/flux.py --table

D. Fenoglio, M. Li, P. Barbiero, N. D. Lane, M. Langheinrich, M. Gjoreski, "FLUX: Efficient
Descriptor-Driven Clustered Federated Learning under Arbitrary Distribution Shifts", NeurIPS 2025,
arXiv 2511.22305. The settings are those of its code (``dariofenoglio98/FLUX``:
``public/config.py``, ``public/generate_datasets.py``), the shifts are those of the generator that
it calls (``alfredoLimo/ANDA``: ``split_fn.py``), and the printed accuracies are those of
``plots/plot_1_hetero.py``.

The scale *paper* has FLUX's own sizes, and *small* a tenth of each client's examples, with a
greater step. Runs that ``results/flux.jsonl`` has are not repeated. ``--minutes`` stops after a
time; a run that is not over is then kept in ``--pause``, and continues in the next call.
``--table`` prints the means over shifts beside the printed ones.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result_file import append_result, read_results

import coterie
from coterie.core import Method, Round, Training, as_groups
from coterie.data import datasets
from coterie.data.examples import Pool
from coterie.data.objective import Objective
from coterie.data.shift import rotated
from coterie.data.world import ClientData, Split, World, clients_of_concepts, whole
from coterie.methods import METHODS
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.records.store import Checkpoints
from coterie.report.summary import agreement
from coterie.settings import build

RESULTS = Path(__file__).resolve().parent / "results" / "flux.jsonl"
CLIENTS, CLASSES, ROUNDS, EPOCHS, MOMENTUM = 10, 10, 10, 2, 0.9
VALIDATION = 0.2
BANK = 5
"""Sets of classes of which each client has one (py)."""

DATASETS: Mapping[str, int] = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
"""Data set -> how many training images there are upstream."""

SHIFTS: Mapping[str, str] = {"px": "P(X)", "py": "P(Y)", "py-x": "P(Y|X)", "px-y": "P(X|Y)"}
LEVELS = tuple(range(1, 9))


@dataclass(frozen=True)
class Scale:
    """How much of the data is used, and how clients train on it.

    Attributes:
        share: Part of each client's training and validation examples.
        batch: Examples of a mini-batch.
        lr: Learning rate.
    """

    share: float
    batch: int
    lr: float


# A fifth of the steps, each of five times the length.
SCALES: Mapping[str, Scale] = {"paper": Scale(1.0, 64, 0.005), "small": Scale(0.1, 32, 0.025)}

COLOURS = (0, 2, 1)
"""The channel that is full in a coloured image: red, blue or green."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "ifca": {
        "models": 3
    },  # FLUX runs FedRC's code, whose default this is; FLUX's code does not state another number
    "auto": {},
    "apfl": {},
    "ditto": {},
    "tuned": {},
    "fedrep": {},
    "split-half": {},
    "cfl": {},
    "independent": {},
    "fedper": {},
    "fedbabu": {},
    "knn-per": {},
    "hcct": {},
    "acfl": {},
    "cfl-gp": {},
    "clove": {"models": 3},
    "flhc": {
        "warmup": 3,
        "fraction": 1.0,
    },  # of ten rounds; the default asks a fifth of the clients, two of ten
    "feddrift": {
        "period": 2
    },  # ten rounds have to have time steps; the data do not change between them
}
"""Method -> the settings that are not its defaults."""

PRINTED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mnist": {
        "fedavg": (0.931, 0.894, 0.845, 0.816, 0.809, 0.762, 0.720, 0.694),
        "ifca": (0.914, 0.925, 0.897, 0.836, 0.836, 0.796, 0.759, 0.760),
        "cfl": (0.932, 0.897, 0.849, 0.821, 0.814, 0.769, 0.724, 0.695),
        "fesem": (0.936, 0.912, 0.887, 0.876, 0.874, 0.853, 0.856, 0.832),
        "feddrift": (0.958, 0.948, 0.920, 0.915, 0.890, 0.876, 0.885, 0.896),
        "flux": (0.957, 0.953, 0.949, 0.935, 0.934, 0.905, 0.878, 0.884),
        "flux-prior": (0.959, 0.958, 0.955, 0.957, 0.957, 0.957, 0.959, 0.959),
        "apfl": (0.957, 0.956, 0.954, 0.954, 0.955, 0.954, 0.953, 0.954),
        "pfedme": (0.948, 0.950, 0.952, 0.954, 0.956, 0.957, 0.959, 0.961),
    },
    "fashion_mnist": {
        "fedavg": (0.772, 0.733, 0.685, 0.655, 0.661, 0.621, 0.568, 0.541),
        "ifca": (0.793, 0.758, 0.759, 0.727, 0.728, 0.715, 0.663, 0.652),
        "cfl": (0.776, 0.738, 0.693, 0.661, 0.666, 0.626, 0.572, 0.546),
        "fesem": (0.787, 0.759, 0.715, 0.713, 0.715, 0.713, 0.687, 0.662),
        "feddrift": (0.798, 0.784, 0.798, 0.804, 0.806, 0.816, 0.826, 0.826),
        "flux": (0.789, 0.797, 0.793, 0.797, 0.792, 0.783, 0.804, 0.800),
        "flux-prior": (0.799, 0.805, 0.804, 0.813, 0.819, 0.830, 0.840, 0.842),
        "apfl": (0.814, 0.811, 0.812, 0.810, 0.815, 0.821, 0.835, 0.838),
        "pfedme": (0.789, 0.797, 0.808, 0.815, 0.824, 0.832, 0.842, 0.846),
    },
    "cifar10": {
        "fedavg": (0.367, 0.349, 0.342, 0.332, 0.304, 0.281, 0.253, 0.245),
        "ifca": (0.400, 0.394, 0.386, 0.387, 0.371, 0.366, 0.384, 0.379),
        "cfl": (0.378, 0.360, 0.353, 0.341, 0.315, 0.296, 0.269, 0.259),
        "fesem": (0.376, 0.372, 0.375, 0.379, 0.363, 0.363, 0.345, 0.346),
        "feddrift": (0.381, 0.363, 0.354, 0.350, 0.347, 0.333, 0.335, 0.343),
        "flux": (0.367, 0.375, 0.383, 0.378, 0.397, 0.386, 0.398, 0.408),
        "flux-prior": (0.374, 0.377, 0.382, 0.395, 0.403, 0.411, 0.422, 0.443),
        "apfl": (0.427, 0.430, 0.434, 0.444, 0.440, 0.448, 0.465, 0.484),
        "pfedme": (0.383, 0.394, 0.404, 0.417, 0.430, 0.438, 0.455, 0.473),
    },
}
"""Data set -> method -> printed accuracy at each level, the mean over the four shifts and five
folds, clients known."""

# ----------------------------------------------------------------------------------------------------
# What clients see.


@dataclass(frozen=True)
class Seen:
    """How a client sees the data.

    Attributes:
        classes: The classes that it has.
        labels: The label that it gives to each class.
        angles: Degrees by which its images of each class are turned, counter-clockwise.
        colour: The channel that is full in all its images; None: they keep their colours.
    """

    classes: tuple[int, ...] = tuple(range(CLASSES))
    labels: tuple[int, ...] = tuple(range(CLASSES))
    angles: tuple[int, ...] = (0,) * CLASSES
    colour: int | None = None


def turns(count: int) -> list[int]:
    """``count`` angles, evenly spread over a turn."""
    return [turn * 360 // count for turn in range(count)]


def seen(shift: str, level: int, rng: np.random.Generator) -> list[Seen]:
    """Draw how each client sees the data.

    - ``px``: one of two to five rotations of all images; from level 5 on, the same with one of
      three colours.
    - ``py``: one of five sets of classes, of ten classes at level 1 to three at level 8.
    - ``py-x``: a permutation of the labels of some classes, the same classes for all, as many as
      the level.
    - ``px-y``: a rotation by a multiple of 90 degrees for each of some classes, the same for all,
      as many as the level.

    Args:
        shift: One of :data:`SHIFTS`.
        level: The level of heterogeneity, 1 to 8.
        rng: Draws all.

    Returns:
        What each client sees.
    """
    if shift == "px":
        colours: Sequence[int | None] = (None,) if level <= 4 else COLOURS
        patterns = [
            Seen(angles=(turn,) * CLASSES, colour=c)
            for turn in turns(2 + (level - 1) % 4)
            for c in colours
        ]
        return [patterns[rng.integers(len(patterns))] for _ in range(CLIENTS)]
    if shift == "py":
        bank = [
            tuple(sorted(map(int, rng.permutation(CLASSES)[: 11 - level]))) for _ in range(BANK)
        ]
        return [Seen(classes=bank[rng.integers(BANK)]) for _ in range(CLIENTS)]
    chosen = rng.permutation(CLASSES)[:level]
    made = []
    for _ in range(CLIENTS):
        labels, angles = np.arange(CLASSES), np.zeros(CLASSES, int)
        if shift == "py-x":
            labels[chosen] = rng.permutation(chosen)
        else:
            angles[chosen] = rng.choice(turns(4), level)
        made.append(Seen(labels=tuple(map(int, labels)), angles=tuple(map(int, angles))))
    return made


def pictures(
    images: torch.Tensor, classes: torch.Tensor, view: Seen, channels: int
) -> torch.Tensor:
    """Return images ``(N, C, H, W)`` of some classes ``(N,)`` as a client sees them, grey ones with ``channels`` channels."""
    made = images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images
    made = made.clone()
    for angle in set(view.angles) - {0}:
        at = torch.tensor(view.angles)[classes] == angle
        made[at] = rotated(made[at], angle)
    if view.colour is not None:
        made[:, view.colour] = 1.0
    return made


# ----------------------------------------------------------------------------------------------------
# Worlds.


def epochs(dataset: str, folder: Path | str | None) -> int:
    """Epochs of a round: more than FLUX's where only a part of the images is available, so that there are as many steps."""
    return EPOCHS * round(DATASETS[dataset] / len(datasets.load(dataset, folder).train))


def world(
    dataset: str, scale: str, shift: str, level: int, fold: int, folder: Path | str | None = None
) -> World:
    """Make the clients of a cell of the grid.

    Args:
        dataset: One of :data:`DATASETS`.
        scale: One of :data:`SCALES`.
        shift: One of :data:`SHIFTS`.
        level: The level of heterogeneity.
        fold: Seed of all draws.
        folder: Folder of the data files.

    Returns:
        The world; clients that see the data alike are a true group.
    """
    data, how = datasets.load(dataset, folder), SCALES[scale]
    assert data.test is not None
    rng = numpy_generator(fold, Purpose.SHIFT, level, list(SHIFTS).index(shift))
    views = seen(shift, level, rng)
    channels = 3 if shift in ("px", "px-y") else data.shape[0]
    dealt = zip(views, _dealt(data.train, rng, how.share), _dealt(data.test, rng), strict=True)
    return World(
        clients={
            number: _client(data.train, data.test, *own, channels, rng)
            for number, own in enumerate(dealt)
        },
        model=nets.factory("lenet5", (channels, *data.shape[1:]), CLASSES),
        training=Training(
            lr=how.lr, momentum=MOMENTUM, epochs=epochs(dataset, folder), batch=how.batch
        ),
        objective=Objective(metrics=("accuracy",)),
        truth=as_groups(
            clients_of_concepts({number: views.index(view) for number, view in enumerate(views)})
        ),
    )


def _dealt(pool: Pool, rng: np.random.Generator, share: float = 1.0) -> list[np.ndarray]:
    """Rows of each client, equally many, at random."""
    each = len(pool) // CLIENTS
    order = rng.permutation(len(pool))[: each * CLIENTS].reshape(CLIENTS, each)
    return list(order[:, : round(share * each)])


def _client(
    train: Pool,
    test: Pool,
    view: Seen,
    mine: np.ndarray,
    tested: np.ndarray,
    channels: int,
    rng: np.random.Generator,
) -> ClientData:
    """The data of a client, of the rows that were dealt to it and whose classes it has.

    It has as many training examples as one that has all classes: some of its own are repeated.
    """
    mine, tested = (
        rows[np.isin(of.labels[rows], view.classes)] for rows, of in ((mine, train), (tested, test))
    )
    held = round(VALIDATION * len(mine))
    validation, own = mine[:held], mine[held:]
    more = rng.choice(own, round(len(own) * (CLASSES / len(view.classes) - 1)))
    return ClientData(
        train=_split(train, np.concatenate([own, more]), view, channels),
        validation=_split(train, validation, view, channels),
        test=_split(test, tested, view, channels),
    )


def _split(pool: Pool, rows: np.ndarray, view: Seen, channels: int) -> Split:
    index = torch.from_numpy(rows)
    classes = pool.targets[index]
    labels = torch.tensor(view.labels)[classes]
    if channels == pool.inputs.shape[1] and view.colour is None and not any(view.angles):
        return Split(pool.inputs, index, labels)
    return whole(pictures(pool.inputs[index], classes, view, channels), labels)


# ----------------------------------------------------------------------------------------------------
# Runs.

KEY = ("dataset", "scale", "shift", "level", "fold", "method")
"""The key of a run, which also has the settings."""

Cell = tuple[str, str, str, int, int]
"""A world of the grid: what is in the key before the method."""


def measured(
    cell: Cell, name: str, made: World, end: float = math.inf, pause: Path | None = None
) -> dict[str, Any] | None:
    """What is written of a run: accuracies of the last round, each client's on its own test data.

    Args:
        cell: The world's place in the grid.
        name: The method.
        made: The world.
        end: The time (:func:`time.monotonic`) after which no round begins.
        pause: Folder in which a run is kept that is not over then, and from which it continues.

    Returns:
        The line of JSON; None if the run is not over.
    """
    kept = None if pause is None else Checkpoints(pause / "-".join(map(str, (*cell, name))))
    _, (start, total, seconds) = (kept and kept.load()) or (0, (None, 0, 0.0))
    method: Method[Any] = build(METHODS[name], SETTINGS[name])
    began = time.monotonic()
    for done in coterie.run(
        method, made, rounds=ROUNDS, seed=cell[-1], workers=1, eval_every=ROUNDS, start=start
    ):
        total += done.bytes_up + done.bytes_down
        if kept and done.number < ROUNDS and time.monotonic() > end:
            kept.save(done.number, (done.position, total, seconds + time.monotonic() - began))
            return None
    if kept:
        shutil.rmtree(kept.folder, ignore_errors=True)
    return {
        **dict(zip(KEY, (*cell, name), strict=True)),
        **found(name, made, done, total, seconds + time.monotonic() - began),
    }


def found(name: str, made: World, last: Round, total: int, seconds: float) -> dict[str, Any]:
    """What a run found, of its last round, its bytes and its seconds."""
    scores = last.scores or {}
    accuracies = [round(scores[client]["accuracy"], 4) for client in sorted(made.clients)]
    return {
        "settings": dict(SETTINGS[name]),
        "accuracy": round(float(np.mean(accuracies)), 4),
        "accuracies": accuracies,
        "groups": len(last.assignment.groups),
        "true_groups": len(made.truth or ()),
        "ari": agreement(last.assignment.groups, made.truth),
        "epochs": made.training.epochs,
        "bytes": total,
        "seconds": round(seconds, 1),
    }


def known() -> list[dict[str, Any]]:
    """The measured runs, at the settings that the methods have now; of each, the one with the most images."""
    rows = read_results(RESULTS)
    rows.sort(key=lambda row: -row["epochs"])
    return list(
        {_key(row): row for row in rows if row["settings"] == SETTINGS.get(row["method"])}.values()
    )


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in KEY)


def missing(asked: argparse.Namespace) -> Iterator[tuple[Cell, list[str]]]:
    """Worlds, and the methods that have not been run there, of those that were asked for.

    A run with a part of the images does not count where there are more of them.
    """
    done = {_key(row): row["epochs"] for row in known()}
    for dataset in asked.datasets:
        own = epochs(dataset, asked.data)
        for fold in asked.folds:
            for level in asked.levels:
                for shift in asked.shifts:
                    cell = (dataset, asked.scale, shift, level, fold)
                    if names := [
                        name for name in asked.methods if done.get((*cell, name), math.inf) > own
                    ]:
                        yield cell, names


# ----------------------------------------------------------------------------------------------------
# Tables.


def means(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], float]:
    """(method, level) -> its mean over shifts, of each shift's mean over folds; only where all shifts have been run."""
    cells: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in rows:
        cells.setdefault((row["method"], row["level"]), {}).setdefault(row["shift"], []).append(
            row["accuracy"]
        )
    return {
        at: float(np.mean([np.mean(own) for own in by.values()]))
        for at, by in cells.items()
        if len(by) == len(SHIFTS)
    }


def table() -> str:
    """The mean of each method at each level, beside the printed one."""
    lines = ["| data | scale | method | level | here | printed |", "|---|---|---|--:|--:|--:|"]
    rows = known()
    for dataset in DATASETS:
        for scale in SCALES:
            of = means([row for row in rows if (row["dataset"], row["scale"]) == (dataset, scale)])
            for name, level in sorted(of, key=lambda at: (list(SETTINGS).index(at[0]), at[1])):
                printed = PRINTED[dataset].get(name)
                beside = f"{printed[level - 1]:.3f}" if printed else ""
                lines.append(
                    f"| {dataset} | {scale} | {name} | {level} | {of[name, level]:.3f} | {beside} |"
                )
    return "\n".join(lines)


def options() -> argparse.ArgumentParser:
    """The options of the command line."""

    def several(kind: type) -> Any:
        return lambda text: [kind(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--datasets", type=several(str), default=list(DATASETS))
    parser.add_argument("--shifts", type=several(str), default=list(SHIFTS))
    parser.add_argument("--levels", type=several(int), default=list(LEVELS))
    parser.add_argument("--folds", type=several(int), default=[0])
    parser.add_argument("--methods", type=several(str), default=list(SETTINGS))
    parser.add_argument("--scale", choices=list(SCALES), default="paper")
    parser.add_argument(
        "--data",
        default=os.environ.get("COTERIE_DATA"),
        help="folder of the data files (COTERIE_DATA)",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many minutes"
    )
    parser.add_argument(
        "--pause", type=Path, help="folder in which a run that is not over is kept, to continue"
    )
    parser.add_argument("--table", action="store_true", help="only print the table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options().parse_args(arguments)
    if asked.table:
        print(table())
        return 0
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * asked.minutes
    for cell, names in missing(asked):
        made = world(*cell, asked.data)
        for name in names:
            row = measured(cell, name, made, end, asked.pause)
            if row is not None:
                append_result(RESULTS, row)
                print(*(row[key] for key in (*KEY, "accuracy", "groups", "seconds")), flush=True)
            if time.monotonic() > end:
                return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
