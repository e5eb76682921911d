"""The price of the default: processor seconds and bytes of ``auto`` beside FedAvg, early and late in a run.

    python benchmarks/price.py [--repetitions 3]            in about an hour on one core
    python benchmarks/price.py --scale small --out FILE     tiny sizes: that the code works, no
                                                            measurement

Early, ``auto`` trains several models and decides between them; later it trains what it has decided
for. So the seconds of the rounds 1 to 20 and 21 to 40 are kept apart. In every repetition both
methods run in turn, in this process alone: seconds are those of the processor, with one thread. The
only test is that after the last round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed import machine
from speed.clock import spread
from torch import nn

import coterie
from clustering import options
from coterie import World
from coterie.contrib.bench.silos import draw

OUT = Path(__file__).resolve().parent / "results" / "price.json"
METHODS = ("fedavg", "auto")
SEED = 0
REPETITIONS = 3

NUM_ROUNDS = {"full": 40, "small": 4}
NUM_CLASSES = 10
TEST_ROWS = 20


def templates_and_noise(
    num_clients: int, num_examples: int, shape: tuple[int, ...]
) -> list[tuple[np.ndarray, ...]]:
    """Random images of alike clients: of each class a template, and noise.

    Args:
        num_clients: How many clients.
        num_examples: Images of a client to train on and for validation.
        shape: Of one image.

    Returns:
        The inputs and labels of each client, and those of its tests.
    """
    rng = np.random.default_rng(SEED)
    templates = rng.normal(size=(NUM_CLASSES, *shape)).astype(np.float32)
    clients: list[tuple[np.ndarray, ...]] = []
    for _ in range(num_clients):
        labels = rng.integers(0, NUM_CLASSES, num_examples + TEST_ROWS)
        noise = rng.normal(size=(len(labels), *shape)).astype(np.float32)
        images = templates[labels] + 3 * noise
        clients.append(
            (
                images[:num_examples],
                labels[:num_examples],
                images[num_examples:],
                labels[num_examples:],
            )
        )
    return clients


def small_mlp() -> nn.Module:
    """For images of 8 x 8 in a row."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))


def cnn_world(num_clients: int, num_examples: int) -> World:
    """Images in the shape of MNIST, with the CNN of CFL."""
    return coterie.from_lists(
        templates_and_noise(num_clients, num_examples, (1, 28, 28)),
        model="cfl-cnn",
        training=coterie.Training(lr=0.03, batch=20, epochs=1),
        classes=NUM_CLASSES,
    )


def mlp_world(num_clients: int) -> World:
    """Many clients of few small images."""
    return coterie.from_lists(
        templates_and_noise(num_clients, 50, (64,)),
        model=small_mlp,
        training=coterie.Training(lr=0.1, batch=20, epochs=1),
        classes=NUM_CLASSES,
    )


def digits_world(scenario: str) -> World:
    """A named scenario of 8 x 8 digits."""
    return coterie.SCENARIOS[scenario].build(SEED)


def table_world() -> World:
    """Few unequal sites, a third of them with the opposite rule."""
    return draw("invert", SEED).world


WORLDS: Mapping[str, Mapping[str, Callable[[], World]]] = {
    "full": {
        "`digits/iid`": lambda: digits_world("digits/iid"),
        "`digits/label-permutation`": lambda: digits_world("digits/label-permutation"),
        "`digits/dirichlet`": lambda: digits_world("digits/dirichlet"),
        "few unequal sites with tables, `invert`": table_world,
        "CFL's CNN, 20 clients, 100 images of 28 x 28": lambda: cnn_world(20, 100),
        "MLP 64-64-10, 1,000 clients, 50 images": lambda: mlp_world(1000),
    },
    "small": {
        "CFL's CNN, 3 clients, 20 images of 28 x 28": lambda: cnn_world(3, 20),
        "MLP 64-64-10, 5 clients, 50 images": lambda: mlp_world(5),
    },
}
"""Scale -> title -> what makes the world."""


def run_of(method: str, world: World, num_rounds: int) -> tuple[list[float], list[int]]:
    """Processor seconds and bytes of each round of a run; those of its start count to the first."""
    seconds = []
    num_bytes = []
    since = time.process_time()
    for done in coterie.run(
        method, world, rounds=num_rounds, seed=SEED, workers=1, eval_every=num_rounds
    ):
        now = time.process_time()
        seconds.append(now - since)
        since = now
        num_bytes.append(done.bytes_up + done.bytes_down)
    return seconds, num_bytes


def phases(num_rounds: int) -> dict[str, slice]:
    """The rounds of the two halves of a run, and of all of it, by their names."""
    half = num_rounds // 2
    return {
        f"1 to {half}": slice(0, half),
        f"{half + 1} to {num_rounds}": slice(half, num_rounds),
        "all": slice(0, num_rounds),
    }


def priced(title: str, world: World, num_rounds: int, repetitions: int) -> dict[str, Any]:
    """A row of results: of each phase and method, the seconds of all repetitions, and the bytes."""
    # Libraries are loaded and caches filled before anything is measured.
    for method in METHODS:
        run_of(method, world, 1)
    seconds_of_runs: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    bytes_of_rounds: dict[str, list[int]] = {}
    for repetition in range(repetitions):
        # In turn: the one that was last is first in the next repetition.
        order = METHODS if repetition % 2 == 0 else METHODS[::-1]
        for method in order:
            seconds, bytes_of_rounds[method] = run_of(method, world, num_rounds)
            seconds_of_runs[method].append(seconds)
    measured: dict[str, Any] = {}
    for phase, rounds_of_phase in phases(num_rounds).items():
        measured[phase] = {}
        for method in METHODS:
            totals = [sum(seconds[rounds_of_phase]) for seconds in seconds_of_runs[method]]
            measured[phase][method] = {
                "seconds": spread(totals),
                "bytes": sum(bytes_of_rounds[method][rounds_of_phase]),
            }
    return {
        "title": title,
        "clients": len(world.clients),
        "rounds": num_rounds,
        "repetitions": repetitions,
        "phases": measured,
    }


def measure(scale: str, repetitions: int, out: Path) -> None:
    """Measure all worlds; the file is written after each, so that a measurement can be watched."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "scale": scale,
        "machine": machine.described("cpu"),
        "versions": machine.versions(),
        "rows": [],
    }
    for title, make_world in WORLDS[scale].items():
        row = priced(title, make_world(), NUM_ROUNDS[scale], repetitions)
        print(json.dumps(row), flush=True)
        found["rows"].append(row)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    chosen = options(argv, __doc__, OUT, repetitions=REPETITIONS)
    measure(chosen.scale, chosen.repetitions, chosen.out)


if __name__ == "__main__":
    main()
