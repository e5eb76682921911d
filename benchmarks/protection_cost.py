"""What ``robust.hostile`` takes from honest clients, where none is hostile: results/protection-cost.jsonl.

    python benchmarks/protection_cost.py [--worlds a,b] [--methods a,b] [--seeds 0,1] [--news NEWS.csv]

Each case is run with the same seed without protection and with ``robust.hostile = 1``. Worlds are
scenarios of digits, ``silos/KIND`` (:mod:`coterie.contrib.bench.silos`) and ``news``, a client per
source of a table with the columns source, topic and text (see ``benchmarks/honest.py``). The run
goes on where it was interrupted. ``tools/docs/influence_table.py`` makes the table of
docs/deploy/hostile.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from honest import NEWS_ROUNDS, news
from result_file import append_result, read_results

import coterie
from coterie.contrib.bench.silos import REGRESSION_KIND, SILO_KINDS, draw
from coterie.data.world import World
from coterie.robust import Robust

OUT = Path(__file__).parent / "results" / "protection-cost.jsonl"
DIGITS = ("iid", "quantity", "dirichlet", "label-permutation", "rotation", "class-groups")
DIGITS_ROUNDS = 40
SILO_ROUNDS = 25
FIRST_DRAW = 1000
"""The number of the world of sites of seed 0; the settings of methods were fixed on other draws."""

WORLDS = (
    *(f"digits/{name}" for name in DIGITS),
    *(f"silos/{kind}" for kind in SILO_KINDS),
)
METHODS = ("auto", "split-half", "hcct", "fedavg", "cfl", "flhc", "clove", "cfl-gp")

KEY = ("world", "method", "seed", "protected")
"""The key of a run."""


def world_of(name: str, seed: int, news_table: str | None) -> tuple[World, int, str]:
    """Make a world: its clients, the number of rounds, and the metric.

    Args:
        name: A scenario, ``silos/KIND`` or ``news``.
        seed: The seed of the world; the news are the same for every seed.
        news_table: Path of the table of the news.

    Raises:
        ValueError: The news were asked for without their table.
    """
    if name == "news":
        if news_table is None:
            raise ValueError("--news NEWS.csv says where the table of the news is")
        return news(news_table, "mlp"), NEWS_ROUNDS, "accuracy"
    if name.startswith("silos/"):
        kind = name.removeprefix("silos/")
        metric = "R2Score" if kind == REGRESSION_KIND else "accuracy"
        return draw(kind, FIRST_DRAW + seed).world, SILO_ROUNDS, metric
    return coterie.SCENARIOS[name].build(seed), DIGITS_ROUNDS, "accuracy"


def measured(case: dict[str, Any], news_table: str | None) -> dict[str, Any]:
    """Run a case, and return its row of results: the mean score over the clients, and how many test examples they have."""
    world, num_rounds, metric = world_of(case["world"], case["seed"], news_table)
    began = time.perf_counter()
    *_, done = coterie.run(
        case["method"],
        world,
        rounds=num_rounds,
        seed=case["seed"],
        eval_every=num_rounds,
        workers=1,
        robust=Robust(hostile=case["protected"]),
    )
    scores = done.scores or {}
    score_of_client = [scores[client][metric] for client in sorted(scores)]
    return {
        **case,
        "score": round(float(np.mean(np.nan_to_num(score_of_client))), 5),
        "clients": len(score_of_client),
        "tests": sum(len(data.test) for data in world.clients.values()),
        "seconds": round(time.perf_counter() - began, 1),
    }


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All cases, seed after seed; with and without protection one after the other."""
    for seed in map(int, options.seeds.split(",")):
        for world in options.worlds.split(","):
            for method in options.methods.split(","):
                for protected in (0, 1):
                    yield {
                        "world": world,
                        "method": method,
                        "seed": seed,
                        "protected": protected,
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--news", help="the table of the world news")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {tuple(row[name] for name in KEY) for row in read_results(options.out)}
    for case in cases(options):
        if tuple(case[name] for name in KEY) in known:
            continue
        row = measured(case, options.news)
        append_result(options.out, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
