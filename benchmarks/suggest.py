"""Whether methods find the groups with the settings that ``coterie suggest`` says, on digits with 20 clients.

    python benchmarks/suggest.py [SEEDS]      writes benchmarks/results/suggest.json

For every world and seed FedAvg runs for ten rounds and is asked for a suggestion. Then each method
runs in the same world with the settings suggested: once more from the same first model, with draws
of its own, and from another first model; and with its defaults. A row per world and method; the
page docs/research/thresholds.md quotes the table.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie import SCENARIOS, Experiment, begin, run, suggest
from coterie.contrib.suggest.suggestion import Advice, Suggestion
from coterie.core import Groups
from coterie.data.world import World
from coterie.methods import ACFL, CFL, FLHC, METHODS, FedAvg
from coterie.report.summary import agreement, without
from coterie.settings import build

OUT = Path(__file__).parent / "results" / "suggest.json"

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "4 label permutations": ("digits/label-permutation", {}),
    "4 label swaps": ("digits/label-swap", {}),
    "4 rotations": ("digits/rotation", {}),
    "4 sets of classes": ("digits/class-groups", {}),
    "4 label permutations, 45 examples a client": ("digits/label-permutation", {"samples": 45}),
    "IID": ("digits/iid", {}),
    "IID, 45 examples a client": ("digits/iid", {"samples": 45}),
}
PROBED_AFTER = 10
ROUNDS = {"flhc": PROBED_AFTER + 1, "acfl": 1, "cfl": 60}
DEFAULTS = {"flhc": FLHC(warmup=PROBED_AFTER, fraction=1.0), "acfl": ACFL(), "cfl": CFL()}
FIRST = 30
"""The first seed: the rules were made on lower ones."""

OTHER = 1000
"""Added to the seed for another first model."""


def suggested(name: str, changes: dict[str, Any], seed: int) -> tuple[World, Suggestion]:
    """A world, and what is suggested after FedAvg in it."""
    setup = replace(SCENARIOS[name], **changes)
    study = Experiment(
        scenario=name,
        setup=setup,
        methods=(FedAvg(),),
        training=setup.training,
        rounds=PROBED_AFTER,
        seeds=(seed,),
        eval_every=PROBED_AFTER,
        workers=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        (one,) = begin(study, Path(folder) / "run")
        for _ in one.rounds():
            pass
        return study.world(seed), suggest(one.folder, workers=1)


def played(method: Any, world: World, seed: int, found: Groups) -> dict[str, bool]:
    """Whether a method ends with the groups ``found``, and with the true ones."""
    rounds = ROUNDS[method.name]
    *_, last = run(method, world, rounds=rounds, seed=seed, eval_every=rounds, workers=1)
    groups = last.assignment.groups
    undecided = set(world.clients) - {client for group in found for client in group}
    alike = agreement(without(groups, sorted(undecided)), found)
    return {"found": alike == 1.0, "true": agreement(groups, world.truth) == 1.0}


def tried(advice: Advice, world: World, seed: int, found: Groups) -> dict[str, Any]:
    """One run of each kind; nothing is run where nothing was suggested."""
    out: dict[str, Any] = {
        "sure": advice.sure,
        "default": played(DEFAULTS[advice.method], world, seed, found),
    }
    if advice.settings:
        method = build(METHODS[advice.method], dict(advice.settings))
        out |= {
            "same": played(method, world, seed, found),
            "other": played(method, world, seed + OTHER, found),
        }
    return {
        **out,
        "margin": round(advice.margin, 3) if advice.margin < 1e6 else None,
        "settings": dict(advice.settings),
    }


def main(seeds: int = 5) -> None:
    rows = []
    for title, (name, changes) in WORLDS.items():
        made = [suggested(name, changes, seed) for seed in range(FIRST, FIRST + seeds)]
        found = sum(agreement(said.finding.groups, world.truth) == 1.0 for world, said in made)
        for method in ROUNDS:
            runs = [
                tried(said.best(method), world, seed, said.finding.groups)
                for seed, (world, said) in enumerate(made, FIRST)
            ]
            rows.append({"world": title, "found": found, "method": method, "runs": runs})
            print(json.dumps(rows[-1]), flush=True)
    OUT.parent.mkdir(exist_ok=True)
    about = {"probed_after": PROBED_AFTER, "rounds": ROUNDS, "first": FIRST, "seeds": seeds}
    OUT.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
