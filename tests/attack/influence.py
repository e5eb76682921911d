"""One, two or four hostile clients of twenty: what they take from the accuracy of the honest ones.

The campaign (``make attack``) tries every method with its defaults under the attacks of a scenario,
where all clients have the same data distribution. With :data:`~attack._adaptive.ADAPTIVE` attacks,
which know the method, and with true groups, ``benchmarks/influence.py`` measures all of them;
docs/deploy/hostile.md has the table.
"""

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
"""Attacks of a scenario, which know nothing of the method."""

METHODS = (
    "fedavg", "cfl", "split-half", "hcct", "hcct-e", "hcct-p", "flhc", "acfl", "ifca", "flsc", "fedper", "maxfl", "fedfa",
    "independent", "fedrep", "fedbabu", "ditto", "apfl", "knn-per", "auto", "tuned", "race", "split-half-sums",
    "split-half-private", "feddrift", "clove", "cfl-gp",
)  # fmt: skip
MARGIN = 0.03
"""Of one seed: the 19 honest clients of digits/iid have 171 test examples together, so .02 are
three of them."""

CLIENTS = 20


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
def honest_accuracy(
    method: str,
    attack: str,
    rounds: int,
    seed: int = 0,
    scenario: str = "digits/iid",
    hostile: int = 1,
    protected: int = 0,
) -> float:
    """Mean accuracy of the honest clients after so many rounds.

    Args:
        method: the method, with its defaults.
        attack: an attack of a scenario, an adaptive one, or ``none``.
        rounds: number of rounds.
        seed: seed of the world and the run.
        scenario: name of a scenario of twenty clients.
        hostile: how many of them are hostile; without an attack they are honest, and do not count.
        protected: ``robust.hostile``.
    """
    from dataclasses import replace

    import coterie
    from attack import _adaptive
    from coterie.data.adversaries import DEFAULT_SCALE, Attack
    from coterie.robust import Robust

    of_scenario = coterie.SCENARIOS[scenario]
    share = hostile / CLIENTS
    hostile_clients = sorted(
        replace(of_scenario, adversaries=share, attack="scale").build(seed).attacks
    )
    world = of_scenario.build(seed)
    if attack == "label-flip":
        world = replace(of_scenario, adversaries=share, attack=attack).build(seed)
    elif attack in _adaptive.ADAPTIVE:
        world = _adaptive.attacked(world, hostile_clients, attack)
    elif attack != "none":
        scaled = Attack(kind=attack, scale=DEFAULT_SCALE[attack])
        world = replace(world, attacks=dict.fromkeys(hostile_clients, scaled))
    # Older versions have no such setting.
    robust = Robust(hostile=protected) if protected else Robust()
    with _adaptive.attacking():
        *_, done = coterie.run(
            method, world, rounds=rounds, seed=seed, eval_every=rounds, workers=1, robust=robust
        )
    scores = done.scores or {}
    accuracies = [
        score["accuracy"] for client, score in scores.items() if client not in hostile_clients
    ]
    # A model that has diverged has no accuracy.
    return float(np.mean(np.nan_to_num(accuracies)))
