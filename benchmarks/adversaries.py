"""Which methods set adversaries apart, and what honest clients lose, on IID digits: 20 clients of whom 4 mean harm.

    python benchmarks/adversaries.py [SEEDS] [ROUNDS] [WORKERS]      writes benchmarks/results/adversaries.json

A row per method and attack: the accuracy of the honest clients, the least accurate one's, what they have lost against the
same seed without the attack, the share of the adversaries that are in no group with an honest client, and the groups of
honest clients. docs/adversaries.md quotes the table.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie import SCENARIOS, run
from coterie.attack import ATTACKS, USUAL
from coterie.methods import ACFL, CFL, FLHC, HCCT, FedAvg, Independent
from coterie.report.summary import isolated, without

OUT = Path(__file__).parent / "results" / "adversaries.json"
SCENARIO = "digits/iid"
SHARE = 0.2
METHODS = (Independent(), FedAvg(), CFL(), FLHC(fraction=1.0), HCCT(), ACFL())


Played = tuple[Mapping[int, float], Any]


def play(method: Any, attack: str, seed: int, rounds: int, workers: int | None) -> Played:
    """Every client's accuracy after the last round, and the groups."""
    scenario = replace(SCENARIOS[SCENARIO], adversaries=0.0 if attack == "none" else SHARE, attack=attack)
    *_, done = run(method, scenario, rounds=rounds, seed=seed, eval_every=rounds, workers=workers)
    assert done.scores is not None
    return {client: score["accuracy"] for client, score in done.scores.items()}, done.assignment.groups


def adversaries(seed: int) -> list[int]:
    """Who they are: the same for every attack."""
    return sorted(replace(SCENARIOS[SCENARIO], adversaries=SHARE, attack="scale").build(seed).attacks)


def row(method: Any, attack: str, runs: list[Played], calm: list[Played]) -> dict[str, Any]:
    """The numbers of a method under an attack; ``calm``: its runs without one."""
    values = []
    for seed, ((scores, groups), (before, _)) in enumerate(zip(runs, calm, strict=True)):
        bad = adversaries(seed)
        honest = [client for client in scores if client not in bad]
        mean = float(np.mean([scores[c] for c in honest]))
        values.append({
            "accuracy": mean, "worst": min(scores[c] for c in honest),
            "lost": float(np.mean([before[c] for c in honest])) - mean,
            "isolated": isolated(groups, bad), "honest_groups": len(without(groups, bad)),
        })  # fmt: skip
    out = {name: round(float(np.mean([value[name] for value in values])), 3) for name in values[0]}
    if attack == "none":
        del out["isolated"]
    return {"method": method.name, "attack": attack, **out}


def main(seeds: int = 3, rounds: int = 40, workers: int | None = None) -> None:
    rows = []
    for method in METHODS:
        calm: list[Played] = []
        for attack in ("none", *ATTACKS):
            runs = [play(method, attack, seed, rounds, workers) for seed in range(seeds)]
            calm = calm or runs
            rows.append(row(method, attack, runs, calm))
            print(json.dumps(rows[-1]), flush=True)
    about = {
        "scenario": SCENARIO, "clients": SCENARIOS[SCENARIO].clients, "adversaries": SHARE, "scales": dict(USUAL),
        "rounds": rounds, "seeds": seeds,
    }  # fmt: skip
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
