"""The worlds of ``coterie bench`` and the ranking of its recorded rows; :mod:`generate` puts them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from measured import table

from coterie.contrib.bench.benching import bench
from coterie.contrib.bench.suites import SUITES, VERSION, suite_of
from coterie.contrib.bench.tables import ranking_table
from coterie.notebook.tables import count

FAMILIES: Mapping[str, str] = {
    "digits": "handwritten digits in 20 or 60 clients: identically distributed, of unequal sizes, with groups of permuted "
    "labels, exchanged labels, rotations or classes, with Dirichlet mixtures, with hostile clients",
    "dropouts": "the same digits; each client answers in 30 % of the rounds",
    "silos": "4 to 20 unequal sites with tables: same rule, opposite rules, other inputs, wrong labels, rare classes",
    "drift": "data that change: groups of digits exchange labels, and FedDrift's SINE",
    "files": "MNIST, QMNIST, CIFAR-100, AG News and writers, from your data folder",
}
"""Family of worlds -> what they are."""


def worlds() -> str:
    """A row per family: its worlds and runs of a method in each suite."""
    cells = []
    for family, about in FAMILIES.items():
        counts = []
        for suite in SUITES.values():
            of_family = [world for world in suite if world.family == family]
            counts.append(str(len(of_family)) if of_family else "-")
        cells.append((f"`{family}`", about, *counts))
    runs = [str(sum(len(world.seeds) for world in suite)) for suite in SUITES.values()]
    cells.append(("runs of a method", "three seeds; one where data are in files", *runs))
    return table(("worlds", "what they are", *SUITES), cells, "llrrr")


def ranking(suite: str) -> str:
    """The ranking of the recorded rows of a suite."""
    result = bench(suite)
    num_worlds = len(suite_of(suite))
    left_out = len(result.compared.incomplete)
    text = (
        f"Version {VERSION} of the suite `{suite}`, {count(len(result.standings), 'method')} in "
        f"{count(num_worlds, 'world')}"
    )
    if left_out:
        text += f"; {count(left_out, 'method')} without rows of all runs {'are' if left_out > 1 else 'is'} left out"
    return f"{text}:\n\n{ranking_table(result.standings, num_worlds)}"


PARTS: Mapping[str, Callable[..., str]] = {"bench-worlds": worlds, "bench-ranking": ranking}
