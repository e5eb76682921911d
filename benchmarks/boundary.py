"""How much noise, and how much compression, until CFL and FL+HC no longer find the groups of the digits.

    python benchmarks/boundary.py [SEEDS] [ROUNDS]      writes benchmarks/results/boundary.json

A row per method and boundary: in how many of the runs the groups were exactly the true ones at the
end, the adjusted Rand index, the accuracy, what was sent, and the ε that the noise left.
notes/privacy.md quotes the table.
"""

import json
import sys
from pathlib import Path
from typing import Any

from coterie import SCENARIOS, run
from coterie.boundary import Boundary, spent
from coterie.methods import CFL, FLHC
from coterie.report.summary import agreement

OUT = Path(__file__).parent / "results" / "boundary.json"
SCENARIO = "digits/label-permutation"
METHODS = (CFL(), FLHC(warmup=5, fraction=1.0, threshold=None, groups=4))
CLIP = 1.0

BOUNDARIES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "blocks": {"rotation": "blocks"},
    "8bit": {"compress": "8bit"},
    "sign": {"compress": "sign"},
    **{
        f"topk, share {share:g}": {"compress": "topk", "share": share}
        for share in (0.1, 0.01, 0.001)
    },
    f"clip {CLIP:g}": {"clip": CLIP},
    **{
        f"clip {CLIP:g}, noise {z:g}": {"clip": CLIP, "noise": z}
        for z in (0.001, 0.003, 0.01, 0.03, 0.1, 10.0)
    },
}


def one(method: Any, boundary: Boundary, seed: int, rounds: int) -> dict[str, float]:
    """What came of one run."""
    world = SCENARIOS[SCENARIO].build(seed)
    up, sent = 0, 0
    for done in run(
        method, world, rounds=rounds, seed=seed, eval_every=rounds, workers=1, boundary=boundary
    ):
        up += done.bytes_up
        sent += max(done.released.values(), default=0)
    assert done.scores is not None
    accuracy = sum(score["accuracy"] for score in done.scores.values()) / len(done.scores)
    return {
        "ari": agreement(done.assignment.groups, world.truth) or 0.0,
        "accuracy": accuracy,
        "bytes_up": up,
        "updates": sent,
    }


def row(method: Any, title: str, seeds: int, rounds: int) -> dict[str, Any]:
    boundary = Boundary(**BOUNDARIES[title])
    runs = [one(method, boundary, seed, rounds) for seed in range(seeds)]
    out = {
        "method": method.name,
        "boundary": title,
        "runs": seeds,
        "exact": sum(r["ari"] == 1.0 for r in runs),
        "ari": round(sum(r["ari"] for r in runs) / seeds, 3),
        "accuracy": round(sum(r["accuracy"] for r in runs) / seeds, 3),
        "bytes_up": round(sum(r["bytes_up"] for r in runs) / seeds),
        "epsilon": None,
    }
    if boundary.noise:
        most = int(max(r["updates"] for r in runs))
        out |= {
            "epsilon": float(f"{spent(boundary.noise, most, boundary.delta):.3g}"),
            "updates": most,
        }
    return out


def main(seeds: int = 3, rounds: int = 40) -> None:
    rows = []
    for method in METHODS:
        for title in BOUNDARIES:
            rows.append(row(method, title, seeds, rounds))
            print(json.dumps(rows[-1]), flush=True)
    OUT.parent.mkdir(exist_ok=True)
    about = {"scenario": SCENARIO, "rounds": rounds, "delta": Boundary().delta}
    OUT.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
