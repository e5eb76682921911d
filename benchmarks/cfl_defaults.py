"""CFL with its default settings in worlds it should split, worlds it must not, and worlds it finds hard.

    python benchmarks/cfl_defaults.py [SEEDS] [ROUNDS]      writes
    benchmarks/results/cfl-defaults.json

A row per world: in how many of the runs the groups were exactly the true ones at the end, how many
groups were found, and the round of the last split. The card docs/methods/cfl.md quotes the table.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie import SCENARIOS, run
from coterie.methods import CFL
from coterie.report.summary import agreement

OUT = Path(__file__).parent / "results" / "cfl-defaults.json"

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "4 label permutations": ("digits/label-permutation", {}),
    "2 label permutations": ("digits/label-permutation", {"groups": 2}),
    "4 label swaps": ("digits/label-swap", {}),
    "4 rotations": ("digits/rotation", {}),
    "IID": ("digits/iid", {}),
    "IID, 45 examples a client": ("digits/iid", {"samples": 45}),
    "4 label permutations, 45 examples a client": ("digits/label-permutation", {"samples": 45}),
    "4 label permutations, lr 0.03": ("digits/label-permutation", {"lr": 0.03}),
    "IID, lr 0.03": ("digits/iid", {"lr": 0.03}),
}


def groups_found(
    name: str, changes: dict[str, Any], seed: int, rounds: int
) -> tuple[float, int, int]:
    """(adjusted Rand index, number of groups, round of the last split or 0) of one run."""
    scenario = SCENARIOS[name]
    training = {k: v for k, v in changes.items() if k in ("epochs", "lr")}
    rest = {k: v for k, v in changes.items() if k not in training}
    scenario = replace(scenario, training=replace(scenario.training, **training), **rest)
    world = scenario.build(seed)
    last_split = 0
    for done in run(CFL(), world, rounds=rounds, seed=seed, eval_every=rounds):
        last_split = done.number if any(note.kind == "split" for note in done.notes) else last_split
    ari = agreement(done.assignment.groups, world.truth)
    assert ari is not None
    return ari, len(done.assignment.groups), last_split


def main(seeds: int = 5, rounds: int = 60) -> None:
    rows = []
    for title, (name, changes) in WORLDS.items():
        runs = [groups_found(name, changes, seed, rounds) for seed in range(seeds)]
        rows.append(
            {
                "world": title,
                "runs": seeds,
                "exact": sum(ari == 1.0 for ari, _, _ in runs),
                "ari": round(sum(ari for ari, _, _ in runs) / seeds, 3),
                "groups": sorted(n for _, n, _ in runs),
                "last_split": max(r for _, _, r in runs),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"method": "cfl", "rounds": rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
