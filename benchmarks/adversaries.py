"""What hostile clients take from the honest ones, and which defences hold, on digits with 20 clients.

    python benchmarks/adversaries.py [PART] [ROUNDS]      writes
    benchmarks/results/adversaries-PART.json, and goes on with it

PART ``methods``: every method with its defaults, one client of 20 hostile, all attacks, where all
clients are alike; PART ``groups``: the same where there are four groups to be found. PART
``means``: two methods with 1, 2 and 4 hostile clients, under each rule of averaging, with and
without the bounds of ``robust``.

A row has the accuracy of the honest clients, the same ones with and without the attack, the least
accurate one's, and the share of hostile clients in no group with an honest one. notes/hostile.md
quotes the tables.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie import SCENARIOS, run
from coterie.core import MEANS
from coterie.data.adversaries import ATTACKS, DEFAULT_SCALE
from coterie.methods import METHODS
from coterie.report.summary import isolated
from coterie.robust import AS_PUBLISHED, Robust

OUT = Path(__file__).parent / "results"
SEEDS = {"methods": 3, "groups": 1, "means": 1}
SCENARIO = {"methods": "digits/iid", "groups": "digits/label-permutation", "means": "digits/iid"}
CLIENTS = 20
TRIED = [attack for attack in ATTACKS if attack != "random"]
DEFENDED = ("fedavg", "hcct")
DEFENCES: Mapping[str, Robust] = {
    "none": AS_PUBLISHED,
    "defaults": Robust(),
    **{mean: replace(AS_PUBLISHED, mean=mean) for mean in MEANS if mean != "mean"},
}
"""Name of a column -> the settings. Robust means stand alone, so that it shows what each of them
does."""


@dataclass(frozen=True)
class Case:
    """One cell of a table."""

    method: str
    attack: str
    hostile: int
    defence: str


def cases(part: str) -> Iterator[Case]:
    if part != "means":
        yield from (
            Case(method, attack, 1, "defaults") for method in METHODS for attack in ("none", *TRIED)
        )
        return
    for method in DEFENDED:
        for defence in DEFENCES:
            yield Case(method, "none", 1, defence)
            for hostile in (1, 2, 4):
                for attack in TRIED:
                    yield Case(method, attack, hostile, defence)


def row(case: Case, named: str, seeds: int, rounds: int) -> dict[str, Any]:
    values = []
    for seed in range(seeds):
        share = case.hostile / CLIENTS
        bad = sorted(
            replace(SCENARIOS[named], adversaries=share, attack="scale").build(seed).attacks
        )
        adversaries = {} if case.attack == "none" else {"adversaries": share, "attack": case.attack}
        scenario = replace(SCENARIOS[named], **adversaries)
        how = {
            "rounds": rounds,
            "seed": seed,
            "eval_every": rounds,
            "workers": 1,
            "robust": DEFENCES[case.defence],
        }
        *_, done = run(case.method, scenario, **how)
        scores = {client: score["accuracy"] for client, score in (done.scores or {}).items()}
        honest = [
            0.0 if np.isnan(scores[client]) else scores[client]
            for client in scores
            if client not in bad
        ]
        alone = isolated(done.assignment.groups, bad)
        values.append(
            (float(np.mean(honest)), min(honest), 1.0 if alone is None else alone)
        )  # retired, as always refused
    accuracy, worst, apart = np.mean(values, 0).round(4).tolist()
    each = [round(value[0], 4) for value in values]
    return {**asdict(case), "accuracy": accuracy, "worst": worst, "isolated": apart, "each": each}


def main(part: str, rounds: int = 40) -> None:
    seeds, out = SEEDS[part], OUT / f"adversaries-{part}.json"
    about: dict[str, Any] = {
        "scenario": SCENARIO[part],
        "clients": CLIENTS,
        "scales": dict(DEFAULT_SCALE),
        "rounds": rounds,
        "seeds": seeds,
    }
    found = json.loads(out.read_text()) if out.is_file() else {}
    rows = found.get("rows", []) if {key: found.get(key) for key in about} == about else []
    known = {tuple(one[key] for key in ("method", "attack", "hostile", "defence")) for one in rows}
    for case in cases(part):
        if tuple(asdict(case).values()) not in known:
            rows.append(row(case, SCENARIO[part], seeds, rounds))
            print(json.dumps(rows[-1]), flush=True)
            out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    for part in sys.argv[1:2] or SEEDS:
        main(part, *map(int, sys.argv[2:]))
