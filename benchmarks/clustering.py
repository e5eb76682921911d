"""Clustering of many clients: the Gram matrix, what follows from it, sketches, and what one would write instead.

    python benchmarks/clustering.py                   up to 10,000 clients; needs 16 GB of memory
    and a quarter of an hour python benchmarks/clustering.py --out FILE        in place of
    benchmarks/results/clustering.json python benchmarks/clustering.py --scale small --out FILE
    tiny sizes: that the code works, no measurement

Every row is measured in a process of its own, so that its peak of memory is its own. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from speed import machine  # noqa: E402
from speed.clock import spread  # noqa: E402

from coterie import clustering as c  # noqa: E402

OUT = BENCHMARKS / "results" / "clustering.json"
GROUPS = 10
BLOCK = 20  # rows that are made, sketched and forgotten together

SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "exact": [
            (100, 100_000),
            (1000, 100_000),
            (100, 1_660_000),
            (1000, 1_660_000),
            (10_000, 100_000),
        ],
        "sketched": [(10_000, 1_660_000, 4096)],
        "pairwise": (100, 200_000),
        "literal": (30, 10_000),
    },
    "small": {
        "exact": [(20, 3000), (250, 2000)],
        "sketched": [(50, 5000, 64)],
        "pairwise": (8, 500),
        "literal": (8, 200),
    },
}


def measure(scale: str) -> dict[str, Any]:
    """All rows as plain JSON: values, medians, least and greatest; seconds and bytes."""
    sizes = SIZES[scale]
    return {
        "exact": [alone(exact, n, d, 3 if n < 10_000 else 1) for n, d in sizes["exact"]],
        "sketched": [alone(sketched, n, d, size) for n, d, size in sizes["sketched"]],
        "pairwise": alone(pairwise, *sizes["pairwise"]),
        "literal": alone(literal, *sizes["literal"]),
    }


def alone(work: Callable[..., dict[str, Any]], *sizes: int) -> dict[str, Any]:
    """What it returns in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(work, *sizes).result()
    print(json.dumps({work.__name__: found}), flush=True)
    return found


# -- rows
# -----------------------------------------------------------------------------------------------------------------


def updates(n: int, d: int, first: int = 0) -> torch.Tensor:
    """Normal rows in groups, made in place; those from ``first`` on of a larger matrix."""
    directions = torch.randn(GROUPS, d, generator=torch.Generator().manual_seed(0))
    out = torch.empty(n, d)
    rng = torch.Generator().manual_seed(1 + first)
    for i, row in enumerate(out):
        row.normal_(generator=rng).add_(directions[(first + i) % GROUPS])
    return out


def exact(n: int, d: int, repetitions: int) -> dict[str, Any]:
    """The Gram matrix beside one bare product of the same rows, in turns; its memory; and the steps that follow it."""
    rows = updates(n, d)
    c.gram(rows[:300, :1000])  # libraries are loaded, threads started
    before = resident()
    products = c.gram(rows)
    extra = peak() - before - products.nbytes
    gram, bare = [], []
    for _ in range(repetitions):
        bare.append(seconds(partial(torch.matmul, rows, rows.T)))
        gram.append(seconds(partial(c.gram, rows)))
    del rows
    return {
        "clients": n,
        "parameters": d,
        "gram": spread(gram),
        "bare": spread(bare),
        "over_bare": spread([one / other for one, other in zip(gram, bare, strict=True)]),
        "extra_bytes": max(extra, 0),
        "steps": steps(products, repetitions),
    }


def sketched(n: int, d: int, size: int) -> dict[str, Any]:
    """Rows that come a few at a time, are sketched and forgotten; then the Gram matrix of the sketches, and its steps."""
    sketcher = c.Sketcher(d, size)
    sketcher.rows(updates(1, d))
    before, taken, short = resident(), 0.0, torch.empty(n, size)
    for first in range(0, n, BLOCK):
        rows = updates(min(BLOCK, n - first), d, first)
        since = time.perf_counter()
        short[first : first + BLOCK] = sketcher.rows(rows)
        taken += time.perf_counter() - since
    del rows
    since = time.perf_counter()
    products = c.gram(short)
    gram = time.perf_counter() - since
    extra = peak() - before - products.nbytes - short.nbytes
    return {
        "clients": n,
        "parameters": d,
        "size": size,
        "sketching": spread([taken]),
        "gram": spread([gram]),
        "extra_bytes": max(extra, 0),
        "error": c.sketch_error(size, n),
        "steps": steps(products, 1),
    }


def steps(products: np.ndarray, repetitions: int) -> dict[str, Any]:
    """What methods do with a Gram matrix: seconds of each."""
    n = len(products)
    examples = np.random.default_rng(0).integers(50, 150, size=n)

    def cfl() -> None:
        c.norms(products)
        c.norm_of_mean(products, examples)
        c.optimal_bipartition(c.cosine(products))

    def flhc() -> None:
        c.cut(c.distances(products), linkage="complete", groups=GROUPS)

    def hcct() -> None:
        c.utility_merge(products, examples, 50.0)

    return {
        step.__name__: spread([seconds(step) for _ in range(repetitions)])
        for step in (cfl, flhc, hcct)
    }


# -- the usual alternatives, for comparison
# ---------------------------------------------------------------------------------


def pairwise(n: int, d: int) -> dict[str, Any]:
    """Cosine similarities by two loops over clients, as published code has them, beside those of the Gram matrix."""
    rows = updates(n, d)

    def loops() -> np.ndarray:
        found = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                found[i, j] = torch.nn.functional.cosine_similarity(rows[i], rows[j], dim=0)
        return found

    def ours() -> np.ndarray:
        return c.cosine(c.gram(rows))

    return against(loops, ours, lambda one, two: np.abs(one - two).max() < 1e-3, n, d)


def literal(n: int, d: int) -> dict[str, Any]:
    """HCCT's greedy merge from the definition of utility on the rows, beside that from the Gram matrix."""
    rows, examples = updates(n, d).numpy(), np.arange(100.0, 100.0 + n)

    def worth(group: Sequence[int]) -> float:
        weights = examples[list(group)]
        mean = weights @ rows[list(group)] / weights.sum()
        alike = [rows[i] @ mean / np.linalg.norm(rows[i]) / np.linalg.norm(mean) for i in group]
        return sum(alike) - len(group) * 50.0 / weights.sum()

    def by_definition() -> set[frozenset[int]]:
        groups: list[tuple[int, ...]] = [(i,) for i in range(n)]
        while len(groups) > 1:
            gain, a, b = max(
                (worth(a + b) - worth(a) - worth(b), a, b) for a, b in combinations(groups, 2)
            )
            if gain <= 0:
                break
            groups = [group for group in groups if group not in (a, b)] + [a + b]
        return {frozenset(group) for group in groups}

    def ours() -> set[frozenset[int]]:
        return {frozenset(group) for group in c.utility_merge(c.gram(rows), examples, 50.0)}

    return against(by_definition, ours, lambda one, two: one == two, n, d)


def against(
    theirs: Callable[[], Any],
    ours: Callable[[], Any],
    same: Callable[[Any, Any], bool],
    n: int,
    d: int,
) -> dict[str, Any]:
    """Both three times in turns, after one call of each whose results have to be the same."""
    if not same(theirs(), ours()):
        raise AssertionError("the compared implementations give different results")
    times = [(seconds(theirs), seconds(ours)) for _ in range(3)]
    return {
        "clients": n,
        "parameters": d,
        "theirs": spread([one for one, _ in times]),
        "ours": spread([two for _, two in times]),
        "faster": spread([one / two for one, two in times]),
    }


# -- clocks
# ---------------------------------------------------------------------------------------------------------------


def seconds(work: Callable[[], Any]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def resident() -> int:
    """Bytes of memory in use now; forgets the peak until now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes in use since :func:`resident` was called."""
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def options(
    argv: Sequence[str] | None, about: str | None, out: Path, repetitions: int | None = None
) -> argparse.Namespace:
    """The scale and the file of results of a command: ``out``, if it names no other.

    repetitions: how many by default, if the command lets them be chosen.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("--out", type=Path)
    if repetitions is not None:
        parser.add_argument("--repetitions", type=int, default=repetitions)
    chosen = parser.parse_args(argv)
    if chosen.scale == "small" and chosen.out is None:
        parser.error(
            "--scale small needs --out: its results are not measurements, and must not replace them"
        )
    chosen.out = chosen.out or out
    return chosen


def main(argv: Sequence[str] | None = None) -> None:
    chosen = options(argv, __doc__, OUT)
    about = {
        "scale": chosen.scale,
        "machine": machine.described("cpu"),
        "versions": machine.versions(),
    }
    found = {**about, "measured": measure(chosen.scale)}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
