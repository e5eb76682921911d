"""``make bench``: the speed of Coterie against what users would pick instead, measured side by side.

    python benchmarks/bench.py                           everything, in about three hours on two
                                                         cores; e, f, j and l take most of it
    python benchmarks/bench.py --only a,c                some parts
    python benchmarks/bench.py --scale small --out DIR   tiny sizes: that the code works, no
                                                         measurement
    python benchmarks/bench.py --device cuda             parts a to d and h on a GPU, in files of
                                                         their own

Parts: a FL+HC's CNN, b ACFL's CNN, c MLPs, d CFL's LSTM, e clustering, f whole experiments, g
scaling, h the benchmarks of other simulators, i nodes of a Ray cluster, j many clients in the
default method, of which only missing rows are measured, k losses in other spellings, l the price of
the default method. What each measures stands in notes/speed.md, notes/cluster.md (i) and
notes/scale.md (j). pfl-research takes part if its package, ``pfl``, is installed, and i needs Ray.
Results go to benchmarks/results/speed, a file per part, with the machine and the versions; those of
e, i, j and l, which are scripts of their own, lie beside this folder. ``python
tools/docs/generate.py`` makes the documents' tables of them. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
sys.path[:0] = [str(BENCHMARKS), str(ROOT / "src"), str(ROOT / "tools" / "docs")]

import speed_tables  # noqa: E402
import torch  # noqa: E402
from speed import experiments, losses, machine, scaling, training  # noqa: E402
from speed.workloads import workloads  # noqa: E402

OUT = BENCHMARKS / "results" / "speed"
PARTS = "abcdefghijkl"
SCRIPTS = {
    "e": ("clustering.py", "clustering.json"),
    "i": ("ray_nodes.py", "ray.json"),
    "j": ("scale.py", "scale.json"),
    "l": ("price.py", "price.json"),
}
"""Parts by scripts of their own, and their files; they measure memory or processor time, or start other processes."""


def jobs(scale: str, device: str, repetitions: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name of the part's file, what measures it); the name starts with the part's letter."""
    gemm = 2048 if scale == "full" else 64
    for work in workloads(scale):
        if work.for_gpu and scale == "full" and device == "cpu":
            continue
        yield (
            work.key,
            partial(training.measure, work, device=device, repetitions=repetitions, gemm_size=gemm),
        )
    if device == "cpu":
        yield "f", partial(experiments.measure, scale, repetitions=repetitions)
        yield "g", partial(scaling.measure, scale, repetitions=repetitions)
        yield "k", partial(losses.measure, scale, repetitions=repetitions)


def by_script(part: str, scale: str, out: Path) -> None:
    """A part by a script of its own; by default its file lies beside the folder of the others."""
    script, file = SCRIPTS[part]
    where = () if out == OUT else ("--out", str(out / file))
    subprocess.run([sys.executable, str(BENCHMARKS / script), "--scale", scale, *where], check=True)


def write(path: Path, scale: str, device: str, measure: Callable[[], Any]) -> None:
    """Measure a part and keep it, with what it was measured on; the machine's load is that before."""
    found = {
        "scale": scale,
        "device": device,
        "machine": machine.described(device),
        "versions": machine.versions(),
    }
    since = time.perf_counter()
    found["measured"] = measure()
    found["took"] = round(time.perf_counter() - since, 1)
    path.write_text(json.dumps(found, indent=1) + "\n")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--scale", choices=("small", "full"), default="full")
    options.add_argument("--only", default=",".join(PARTS), help="letters of parts, as in a,c")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument(
        "--repetitions", type=int, default=3, help="rounds after the first one (3)"
    )
    options.add_argument(
        "--out", type=Path, help="folder of the results (benchmarks/results/speed)"
    )
    chosen = options.parse_args(argv)
    if chosen.scale == "small" and chosen.out is None:
        options.error(
            "--scale small needs --out: its results are not measurements, and must not replace them"
        )
    chosen.out = chosen.out or OUT
    if chosen.device == "cuda" and not torch.cuda.is_available():
        options.error("--device cuda needs a GPU that PyTorch can use, and there is none")
    chosen.only = chosen.only.split(",")
    if unknown := [part for part in chosen.only if part not in PARTS or len(part) != 1]:
        options.error(f"--only takes letters from a to l, separated by commas, got {unknown[0]!r}")
    if chosen.repetitions < 1:
        options.error(f"--repetitions must be at least 1, got {chosen.repetitions}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    chosen = arguments(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name, measure in jobs(chosen.scale, chosen.device, chosen.repetitions):
        if name[0] in chosen.only:
            print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
            write(
                chosen.out / f"{name}{'-cuda' if chosen.device == 'cuda' else ''}.json",
                chosen.scale,
                chosen.device,
                measure,
            )
    for part in SCRIPTS if chosen.device == "cpu" else ():
        if part in chosen.only and (part != "i" or importlib.util.find_spec("ray")):
            print(f"{time.strftime('%H:%M:%S')} {part}", file=sys.stderr, flush=True)
            by_script(part, chosen.scale, chosen.out)
    tables = speed_tables.page(chosen.out)
    (chosen.out / "tables.md").write_text(tables)
    print(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
