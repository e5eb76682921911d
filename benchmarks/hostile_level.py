"""Level and power of split-half's test rounds with robust.hostile, without training: results/hostile-level.json.

    python benchmarks/hostile_level.py [--draws 20000] [--power-draws 2000]

Twenty clients send two halves of 60 numbers each, with noise of standard deviation 1/4. For the
level all are alike; for the power some of them differ from the others by a direction of their own.
A draw counts if the group is split after two test rounds at the level of 0.05, and for the power
if one part is exactly the clients that differ. ``tools/docs/influence_table.py`` makes the table of
docs/deploy/hostile.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from coterie.clustering import halves_gram
from coterie.core import Averaging, HalvedUpdates, Replies
from coterie.methods._decisions import SplitGroup
from coterie.methods._split_half_probes import ProbeAgain, decide_probe

OUT = Path(__file__).parent / "results" / "hostile-level.json"
NUM_CLIENTS = 20
NUM_PARAMETERS = 60
LEVEL = 0.05
HOSTILE = (0, 1, 2)

DIFFERING = {2: 1.1, 3: 0.9}
"""Clients that differ -> the length of their signal, for which about three of four draws find them."""


def replies(
    rng: np.random.Generator, hostile: int, num_differing: int, signal_length: float
) -> Replies:
    """Draw the replies of one test round.

    Args:
        rng: Draws the noise.
        hostile: ``robust.hostile``.
        num_differing: The first clients, which have another signal than the others.
        signal_length: The length of both signals, which are orthogonal.
    """
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(NUM_PARAMETERS, 2)))[0].T
    is_differing = (np.arange(NUM_CLIENTS) < num_differing).astype(int)
    signals = signal_length * directions[is_differing]
    first_halves = signals + rng.normal(size=signals.shape) / 4
    second_halves = signals + rng.normal(size=signals.shape) / 4
    clients = tuple(range(NUM_CLIENTS))
    return Replies(
        clients=clients,
        examples=np.ones(NUM_CLIENTS, dtype=np.int64),
        updates=torch.from_numpy((first_halves + second_halves) / 2),
        halves=HalvedUpdates(clients=clients, gram=halves_gram(first_halves, second_halves)),
        averaging=Averaging(hostile=hostile),
    )


def share_split(draws: int, hostile: int, num_differing: int, signal_length: float) -> float:
    """Return the share of draws that split after two test rounds, and rightly if some clients differ."""
    rng = np.random.default_rng(num_differing)
    num_split = 0
    for _ in range(draws):
        first_replies = replies(rng, hostile, num_differing, signal_length)
        first = decide_probe(LEVEL, first_replies, None)
        if first is None or not isinstance(first.action, ProbeAgain):
            continue
        second_replies = replies(rng, hostile, num_differing, signal_length)
        second = decide_probe(LEVEL, second_replies, first.evidence)
        if second is None or not isinstance(second.action, SplitGroup):
            continue
        parts = set(map(frozenset, second.action.parts))
        num_split += not num_differing or frozenset(range(num_differing)) in parts
    return num_split / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--power-draws", type=int, default=2_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for hostile in HOSTILE:
        row: dict[str, float] = {"hostile": hostile, "draws": options.draws}
        row["split_alike"] = share_split(options.draws, hostile, 0, 0.0)
        for num_differing, signal_length in DIFFERING.items():
            row[f"found_{num_differing}"] = share_split(
                options.power_draws, hostile, num_differing, signal_length
            )
        rows.append({**row, "power_draws": options.power_draws})
        print(json.dumps(rows[-1]), flush=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
