"""One hostile client of twenty: what it takes from the accuracy of the honest ones, with every method's defaults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from attack import Attempt

POINTS = {
    "one hostile client of 20": "no method's honest accuracy falls by more than .02, with default settings"
}

ATTACKS = (
    "huge",
    "sign-flip",
    "scale",
    "label-flip",
    "little-is-enough",
    "inner-product",
    "examples",
)
METHODS = (
    "fedavg", "cfl", "split-half", "hcct", "hcct-e", "hcct-p", "flhc", "acfl", "ifca", "flsc", "fedper", "maxfl", "fedfa",
    "independent", "fedrep", "fedbabu", "ditto", "apfl", "knn-per",
)  # fmt: skip
MARGIN = 0.03
"""Of one seed: the 19 honest clients of digits/iid have 171 test examples together, so .02 are
three of them."""


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    from coterie.data.adversaries import ATTACKS as known

    seed = rng.randrange(1000)
    while True:
        for method in rng.sample(METHODS, len(METHODS)):
            for attack in (kind for kind in ATTACKS if kind in known or kind == "huge"):
                name = f"{method} under {attack}, seed {seed}"
                yield Attempt(next(iter(POINTS)), name, partial(_lost, method, attack, seed))
        seed += 1


def _lost(method: str, attack: str, seed: int) -> str | None:
    calm, attacked = (honest_accuracy(method, kind, 40, seed) for kind in ("none", attack))
    return (
        f"honest accuracy {attacked:.3f}, {calm:.3f} without" if attacked < calm - MARGIN else None
    )


@cache
def honest_accuracy(method: str, attack: str, rounds: int, seed: int = 0) -> float:
    """Mean accuracy of the honest clients of digits/iid after so many rounds, one of twenty being hostile."""
    from dataclasses import replace

    import coterie
    from coterie.data.adversaries import Attack

    world = coterie.SCENARIOS["digits/iid"].build(seed)
    hostile = sorted(
        replace(coterie.SCENARIOS["digits/iid"], adversaries=0.05, attack="scale")
        .build(seed)
        .attacks
    )
    if attack == "label-flip":
        world = replace(coterie.SCENARIOS["digits/iid"], adversaries=0.05, attack=attack).build(
            seed
        )
    elif attack != "none":
        world = replace(world, attacks={client: _attack(Attack, attack) for client in hostile})
    *_, done = coterie.run(method, world, rounds=rounds, seed=seed, eval_every=rounds, workers=1)
    scores = done.scores or {}
    return float(
        np.mean([score["accuracy"] for client, score in scores.items() if client not in hostile])
    )


def _attack(made: type, kind: str) -> object:
    """The attack; one that sends huge entries is attacked with by hand where a version has no such kind."""
    from coterie.data.adversaries import ATTACKS as known

    if kind not in known and kind == "huge":
        return made(kind="scale", scale=9e8)
    usual = {"scale": 10.0, "huge": 1e17, "examples": 1e6, "little-is-enough": 1.5}
    return made(kind=kind, scale=usual.get(kind, 1.0))
