"""What hostile clients take from the honest ones, with all attacks, adaptive ones too: results/influence.jsonl.

    python benchmarks/influence.py [--methods a,b] [--seeds 0,1] [--hostile 1,2] [--protected 0,1]

The run goes on where it was interrupted: a case whose line is in the file is not repeated.
``--protected`` is ``robust.hostile``: ``as hostile`` sets it to the number of hostile clients.
``tools/docs/influence_table.py`` makes the tables of docs/deploy/hostile.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from result_file import append_result, read_results  # noqa: E402

from attack import influence  # noqa: E402
from attack._adaptive import ADAPTIVE  # noqa: E402

OUT = Path(__file__).parent / "results" / "influence.jsonl"
ROUNDS = 40
WORLDS = ("digits/label-permutation", "digits/iid")
ATTACKS = (*influence.ATTACKS, *ADAPTIVE)


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All cases, the ones without an attack first."""
    for world in options.worlds.split(","):
        for hostile in map(int, options.hostile.split(",")):
            for seed in map(int, options.seeds.split(",")):
                for method in options.methods.split(","):
                    for protected in options.protected.split(","):
                        for attack in dict.fromkeys(["none", *options.attacks.split(",")]):
                            yield {
                                "method": method,
                                "attack": attack,
                                "world": world,
                                "hostile": hostile,
                                "seed": seed,
                                "protected": hostile
                                if protected == "as hostile"
                                else int(protected),
                            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(influence.METHODS))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--hostile", default="1,2,4")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--protected", default="0,as hostile")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    # Cases of earlier calls are known.
    known = set()
    for row in read_results(options.out):
        row.pop("accuracy")
        row.pop("seconds")
        known.add(json.dumps(row, sort_keys=True))
    for case in cases(options):
        if json.dumps(case, sort_keys=True) in known:
            continue
        begin = time.perf_counter()
        accuracy = influence.honest_accuracy(
            case["method"],
            case["attack"],
            ROUNDS,
            case["seed"],
            case["world"],
            case["hostile"],
            case["protected"],
        )
        seconds = time.perf_counter() - begin
        row = {**case, "accuracy": round(accuracy, 4), "seconds": round(seconds, 1)}
        append_result(options.out, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
