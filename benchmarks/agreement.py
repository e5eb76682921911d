"""Whether ``coterie suggest`` and split-half find the same groups among eight clients of 192 images, and when they do not.

    python benchmarks/agreement.py --data DIR      writes benchmarks/results/agreement.json

For every world and seed, split-half runs at its defaults for 20 rounds. FedAvg runs for ten and is
asked for a suggestion; split-half then runs with the options that this prints, in the same world.
Last, the run of split-half itself is asked. The page docs/research/thresholds.md quotes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie import SCENARIOS, Experiment, begin, suggest
from coterie.contrib.suggest.suggestion import Suggestion
from coterie.core import Groups, Training
from coterie.methods import FedAvg, SplitHalf
from coterie.models.nets import Conv, convolutional
from coterie.report.summary import agreement
from coterie.settings import build

OUT = Path(__file__).parent / "results" / "agreement.json"

small = partial(convolutional, convs=[Conv(8, 5, 2, True), Conv(16, 5, 2, True)], hidden=(32,))
"""A small convolutional net, 28,874 parameters at 28 x 28."""

_CLINICS: dict[str, Any] = {
    "clients": 8,
    "samples": 192,
    "train": 0.8,
    "validation": 0.1,
    "test": "share",
}
_SLOW = {**_CLINICS, "model": "agreement:small", "training": Training(lr=0.03, batch=10)}
_FAST = {**_CLINICS, "model": "mlp", "training": Training(lr=0.1, batch=10, epochs=3)}

WORLDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "MNIST, 2 rotations, convolutional net": ("mnist/rotation", {**_SLOW, "groups": 2}),
    "MNIST, 4 rotations, convolutional net": ("mnist/rotation", {**_SLOW, "groups": 4}),
    "MNIST, IID, convolutional net": ("mnist/iid", _SLOW),
    "MNIST, 2 rotations, dense net": ("mnist/rotation", {**_FAST, "groups": 2}),
    "MNIST, 4 rotations, dense net": ("mnist/rotation", {**_FAST, "groups": 4}),
    "digits, 2 rotations, dense net": ("digits/rotation", {**_FAST, "groups": 2}),
    "digits, 4 rotations, dense net": ("digits/rotation", {**_FAST, "groups": 4}),
    "digits, IID, dense net": ("digits/iid", _FAST),
}
"""Name -> scenario and its changes. ``convolutional net``: learning rate 0.03, one epoch; ``dense
net``: 0.1, three epochs."""

SEEDS, MANY = 5, {"digits, IID, dense net": 50}
"""Seeds of a world, and the world of more, in which suggestions that find groups are counted."""

PROBED_AFTER, ROUNDS = 10, 20


def played(
    world: str, method: Any, rounds: int, seed: int, data: str, folder: Path
) -> tuple[list[Groups], list[Mapping[str, Any]]]:
    """The groups after every round, and each probe's round, kind and p."""
    name, changes = WORLDS[world]
    setup = replace(SCENARIOS[name], **changes)
    study = Experiment(
        scenario=name,
        setup=setup,
        methods=(method,),
        training=setup.training,
        rounds=rounds,
        seeds=(seed,),
        eval_every=rounds,
        data=data,
        workers=1,
    )
    (one,) = begin(study, folder)
    groups, probes = [], []
    for number, done in enumerate(one.rounds(), start=1):
        groups.append(done.assignment.groups)
        probes += [
            {"round": number, "kind": note.kind, "p": float(f"{note.numbers['p']:.3g}")}
            for note in done.notes
            if "p" in note.numbers
        ]
    return groups, probes


def asked(folder: Path) -> Suggestion:
    """The suggestion for a run; its model is this file's."""
    return suggest(folder, workers=1, trust_code=True)


def measured(world: str, seed: int, data: str) -> dict[str, Any]:
    """One world and seed: the groups of split-half by round, and those of suggestions."""
    name, changes = WORLDS[world]
    truth = replace(SCENARIOS[name], **changes).build(seed, data).truth
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        default, probes = played(world, SplitHalf(), ROUNDS, seed, data, place / "default")
        played(world, FedAvg(), PROBED_AFTER, seed, data, place / "fedavg")
        said, own = asked(place / "fedavg"), asked(place / "default")
        row: dict[str, Any] = {
            "world": world,
            "seed": seed,
            "p": float(f"{said.finding.p:.3g}"),
            "suggest": _found(said.finding.groups, truth),
            "default": {str(n): _found(default[n - 1], truth) for n in (PROBED_AFTER, ROUNDS)},
            "probes": probes,
            "of its run": {
                **_found(own.finding.groups, truth),
                "same": own.finding.groups == default[-1],
            },
        }
        if said.split_half.rounds is not None:
            method = build(SplitHalf, dict(said.split_half.settings))
            led, _ = played(world, method, said.split_half.rounds, seed, data, place / "suggested")
            row["suggested"] = {**_found(led[-1], truth), "same": led[-1] == said.finding.groups}
    return row


def _found(groups: Groups, truth: Groups | None) -> dict[str, Any]:
    return {"groups": len(groups), "right": truth is not None and agreement(groups, truth) == 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", default=os.environ.get("COTERIE_DATA"), help="folder of MNIST (COTERIE_DATA)"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for world in WORLDS:
        for seed in range(MANY.get(world, SEEDS)):
            rows.append(measured(world, seed, given.data))
            print(json.dumps(rows[-1]), flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    OUT.write_text(
        f'{{"probed_after": {PROBED_AFTER}, "rounds": {ROUNDS}, "rows": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
