"""What a backdoor of one hostile client of twenty does, with and without protection: results/backdoor.jsonl.

    python benchmarks/backdoor.py [--methods a,b] [--seeds 0,1] [--worlds a,b]

The run goes on where it was interrupted. ``tools/docs/influence_table.py`` makes the table of
docs/deploy/hostile.md.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from result_file import append_result, read_results  # noqa: E402

from attack import _backdoor  # noqa: E402

OUT = Path(__file__).parent / "results" / "backdoor.jsonl"
METHODS = ("fedavg", "split-half", "auto", "hcct", "cfl")
KEY = ("world", "method", "seed", "hostile", "protected")
"""The key of a run."""

CASES = ((0, 0), (1, 0), (1, 1))
"""The number of hostile clients, and ``robust.hostile``."""


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Run a case, and return its row of results."""
    found = _backdoor.outcome(
        case["method"],
        hostile=case["hostile"],
        protected=case["protected"],
        seed=case["seed"],
        scenario=case["world"],
    )
    return {**case, "accuracy": round(found.accuracy, 4), "success": round(found.success, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--worlds", default="digits/iid")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    known = {tuple(row[name] for name in KEY) for row in read_results(options.out)}
    for seed in map(int, options.seeds.split(",")):
        for world in options.worlds.split(","):
            for method in options.methods.split(","):
                for hostile, protected in CASES:
                    values = (world, method, seed, hostile, protected)
                    if values in known:
                        continue
                    row = measured(dict(zip(KEY, values, strict=True)))
                    append_result(options.out, row)
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
