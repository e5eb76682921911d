"""What record-level differential privacy (DP-SGD at the clients) leaves of groups and accuracy, by ε.

    python benchmarks/row_privacy.py --out benchmarks/results/row-privacy.jsonl
        [--rows 72,625] [--epsilons 2,8] [--seeds 0,1,2]

A line of JSON per run; runs that the file already has are left out. The world: 20 clients in four
label permutations, of scikit-learn's digits (72 training rows a client) or of MNIST (625). The
model is softmax regression. The noise is such that a client's training rows have ε at δ = 1e-5
after all rounds. ε 0 in a line is none: plain SGD. ``independent`` and ``fedavg`` find no groups,
``flhc`` finds them from noisy updates.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from result_file import append_result, read_results

import coterie
from coterie.contrib.dpsgd.accounting import noise_for_rows
from coterie.report.summary import summary
from coterie.runs.experiment import make

ROUNDS, BATCH, CLIENTS = 30, 36, 20
WORLDS: dict[int, dict[str, Any]] = {
    72: {"name": "digits/label-permutation", "clients": CLIENTS, "model": "linear"},
    625: {"name": "mnist/label-permutation", "clients": CLIENTS, "model": "linear", "samples": 625},
}
"""Training rows of a client -> the scenario."""

METHODS: dict[str, dict[str, Any]] = {
    "independent": {"name": "independent"},
    "fedavg": {"name": "fedavg"},
    "flhc": {"name": "flhc", "threshold": "none", "groups": 4, "warmup": 5, "fraction": 1.0},
}
KEY = ("rows", "epsilon", "sampling", "method", "seed")


def run(rows: int, epsilon: float, sampling: str, method: str, seed: int) -> dict[str, Any]:
    """Run a method, and return its line."""
    training: dict[str, Any] = {"lr": 0.1, "batch": BATCH, "epochs": 1}
    noise = 0.0
    if epsilon:
        noise = noise_for_rows(epsilon, rows, ROUNDS, batch=BATCH, sampling=sampling)
        options = {"noise": noise, "clip": 1.0, "sampling": sampling}
        training |= {"optimizer": "dp-sgd", "optimizer_options": options}
    spec = {
        "scenario": WORLDS[rows],
        "methods": [METHODS[method]],
        "rounds": ROUNDS,
        "eval_every": ROUNDS,
        "training": training,
        "seeds": [seed],
        "workers": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        coterie.begin(make(spec), Path(folder) / "run").finish()
        result = summary(Path(folder) / "run")
    spent = result["privacy"]["epsilon"] if epsilon else None
    return {
        "rows": rows,
        "epsilon": epsilon,
        "sampling": sampling,
        "method": method,
        "seed": seed,
        "noise": round(noise, 4),
        "spent": spent,
        "accuracy": round(result["score"]["mean"], 4),
        "groups": len(result["groups"]),
        "ari": result["ari"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="72,625")
    parser.add_argument("--epsilons", default="0,1,2,4,8,16")
    parser.add_argument("--samplings", default="poisson")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args(arguments)
    done = {tuple(row[name] for name in KEY) for row in read_results(options.out)}
    for rows in map(int, options.rows.split(",")):
        for epsilon in map(float, options.epsilons.split(",")):
            # Without noise, batches are those of plain SGD.
            samplings = options.samplings.split(",") if epsilon else ["shuffled"]
            for sampling in samplings:
                for seed in map(int, options.seeds.split(",")):
                    for method in options.methods.split(","):
                        if (rows, epsilon, sampling, method, seed) in done:
                            continue
                        row = run(rows, epsilon, sampling, method, seed)
                        append_result(options.out, row)
                        print(row, flush=True)


if __name__ == "__main__":
    main()
