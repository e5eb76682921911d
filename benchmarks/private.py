"""What differential privacy of sums leaves of groups and accuracy, by ε and by the number of clients.

    python benchmarks/private.py --out benchmarks/results/private.jsonl [--clients 100,1000]
        [--epsilons 0.5,2] [--seeds 0,1] [--part 0/2]

A line of JSON per run of private split-half behind masks with noise; runs that the file already has
are left out. The world: handwritten digits of 8 x 8 in four label permutations. A client has 40 of
1,400 images, drawn for it, so that clients share images; all are tested on the other 397. The model
is softmax regression, with 650 parameters. The noise is such that 40 rounds and one search of three
levels spend ε at δ = 1e-5. ε 0 in a line is none: masks without noise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from result_file import append_result, read_results

from coterie.boundary import Boundary, noise_for, spent
from coterie.core import Training, as_groups
from coterie.data.datasets import load
from coterie.data.world import ClientData, Split, World
from coterie.engines import rounds as inprocess
from coterie.methods import METHODS
from coterie.report.summary import agreement

ROUNDS, GROUPS, EXAMPLES, TRAINED = 40, 4, 40, 1400
CLIP = 8.0
"""More than any update here: the method finds the clipping norm by itself."""

UPDATES = ROUNDS + 26
"""As how many updates a run counts: each round as one, norms and distances as one each, and a
search of three levels as 24."""

KEY = ("method", "clients", "epsilon", "groups", "seed")


def world(n: int, groups: int, seed: int) -> World:
    """n clients in groups of equal size, which have the same images under permutations of their labels."""
    pool, rng = load("digits").train, np.random.default_rng(seed)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(pool)))
    of = rng.permutation(np.arange(n) % groups)
    labels = [torch.from_numpy(rng.permutation(10))[pool.targets] for _ in range(groups)]
    tests = [Split(pool.inputs, order[TRAINED:], each[order[TRAINED:]]) for each in labels]
    clients = {}
    for client in range(n):
        own, group = (
            order[torch.from_numpy(rng.choice(TRAINED, EXAMPLES, replace=False))],
            of[client],
        )
        none = Split(pool.inputs, own[:0], labels[group][own[:0]])
        clients[client] = ClientData(
            train=Split(pool.inputs, own, labels[group][own]), test=tests[group], validation=none
        )
    return World(
        clients=clients,
        model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        training=Training(lr=0.5, batch=20, epochs=2),
        truth=as_groups([int(c) for c in np.flatnonzero(of == group)] for group in range(groups)),
    )


def measured(method: str, n: int, epsilon: float, groups: int, seed: int) -> dict[str, Any]:
    """One run."""
    noise = noise_for(epsilon, UPDATES, sums=True) if epsilon else 0.0
    boundary = Boundary(masks=True, bound=10.0, clip=CLIP, noise=noise)
    began, updates = time.perf_counter(), 0
    here = world(n, groups, seed)
    for done in inprocess.rounds(
        METHODS[method](),
        here,
        rounds=ROUNDS,
        seed=seed,
        eval_every=ROUNDS,
        boundary=boundary,
        workers=1,
    ):
        updates += max(done.released.values(), default=0)
    scores = done.scores or {}
    return {
        **dict(zip(KEY, (method, n, epsilon, groups, seed), strict=True)),
        "noise": round(noise, 4),
        "spent": round(spent(noise, updates, sums=True), 4) if epsilon else None,
        "ari": round(agreement(done.assignment.groups, here.truth) or 0.0, 4),
        "models": len(done.assignment.models),
        "accuracy": round(float(np.mean([score["accuracy"] for score in scores.values()])), 4),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", default="100,300,1000,3000,10000")
    parser.add_argument("--epsilons", default="0,0.5,1,2,4,8")
    parser.add_argument("--groups", default=str(GROUPS))
    parser.add_argument("--methods", default="split-half-private,fedavg")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--part", default="0/1")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    place, parts = map(int, asked.part.split("/"))
    known = {tuple(row[key] for key in KEY) for row in read_results(asked.out)}
    runs = [
        (method, n, epsilon, groups, seed)
        for n in map(int, asked.clients.split(","))
        for seed in map(int, asked.seeds.split(","))
        for groups in map(int, asked.groups.split(","))
        for method in asked.methods.split(",")
        for epsilon in map(float, asked.epsilons.split(","))
    ]
    for run in runs[place::parts]:
        if run not in known:
            row = measured(*run)
            append_result(asked.out, row)
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
