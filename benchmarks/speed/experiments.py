"""Part f: whole experiments by the command line, and where their time goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .clock import spread

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "The experiment on MNIST is left out: the environment variable COTERIE_DATA names no folder with the data set."
FLHC = ("experiments/flhc-mnist.toml", "--method", "flhc", "--seed", "0")


def measure(scale: str, *, repetitions: int = 3) -> dict[str, Any]:
    """``rows``: an experiment each; ``left_out``: sentences. The long one is run once."""
    quick = scale == "small"
    demo = ("--rounds", "1") if quick else ()
    rows = [_row("the demonstration, `coterie run`", demo, 1 if quick else repetitions)]
    if not os.environ.get("COTERIE_DATA"):
        return {"rows": rows, "left_out": [ABSENT]}
    few = ("--rounds", "1", "--set", "scenario.samples=20", "--set", "flhc.fraction=0.02")
    options = (*FLHC, *(few if quick else ("--rounds", "50")))
    rows.append(_row("FL+HC on MNIST with swapped labels to round 50", options, 1))
    return {"rows": rows, "left_out": []}


def _row(title: str, options: tuple[str, ...], repetitions: int) -> dict[str, Any]:
    """Medians over repetitions of the wall time and of each share of it."""
    runs = [_run(options) for _ in range(repetitions)]
    spreads = {name: spread([run[name] for run in runs]) for name in runs[0]}
    return {"title": title, "command": " ".join(["coterie run", *options]), **spreads}


def _run(options: tuple[str, ...]) -> dict[str, float]:
    """Seconds of one call from its start to its end: ``wall``, and of it ``train``, ``evaluate``, ``server``, ``other``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "coterie",
            "run",
            *options,
            "--json",
            "--out",
            str(Path(folder) / "run"),
        ]
        paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        since = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.perf_counter() - since
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
        found = json.loads(done.stdout)
        parts = dict.fromkeys(("train", "evaluate", "server"), 0.0)
        for run in found if isinstance(found, list) else [found]:
            for line in (Path(run["run_dir"]) / "rounds.jsonl").read_text().splitlines():
                for name, seconds in json.loads(line)["seconds"].items():
                    parts[name] += seconds
    return {"wall": wall, **parts, "other": wall - sum(parts.values())}
