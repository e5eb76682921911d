"""The recorded rows of ``coterie bench``, from what the studies measured.

    python benchmarks/study/bench_rows.py --out FILE [--data DIR]

The worlds of the suites are those of :mod:`study.regret` and :mod:`study.silos`, so their runs are
rows of the suites. Left out are methods in :data:`CHANGED`, whose rule is another one since, and
runs with other seeds or settings than a suite has. Other rows are made by ``coterie bench SUITE
--record FILE``. The studies wrote accuracies with five digits, and no bytes of each direction.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coterie.contrib.bench.rows import Row, write_rows
from coterie.contrib.bench.suites import (
    FROZEN_SETTINGS,
    LOW_PARTICIPATION,
    VERSION,
    WORLDS,
)
from coterie.runs.facts import digest
from study.run import lines

RESULTS = Path(__file__).resolve().parents[1] / "results"

CHANGED = ("auto",)
"""Methods whose runs in the studies are of an earlier rule."""


def studied() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name of the world in the suites, run of a study), whether or not a suite has it."""
    for run in lines(RESULTS / "regret.jsonl.gz"):
        answers = run["participation"]
        name = f"{run['kind']}/{run['size']}"
        if f"files/{name}" in WORLDS and answers == 1:
            yield f"files/{name}", run
        elif answers == 1:
            yield f"digits/{name}", run
        elif answers == LOW_PARTICIPATION:
            yield f"dropouts/{name}", run
    for run in lines(RESULTS / "silos.jsonl"):
        yield f"silos/{run['kind']}", run


def rows(folder: str | None) -> list[Row]:
    """The rows; the data of each world are made for their digest."""
    digests: dict[tuple[str, int], str] = {}
    found = []
    for name, run in studied():
        world = WORLDS.get(name)
        settings = run.get("settings", {})
        usual_settings = dict(FROZEN_SETTINGS.get(run["method"], {}))
        is_row = world is not None and run["seed"] in world.seeds and settings == usual_settings
        if world is None or not is_row or run["method"] in CHANGED:
            continue
        key = (name, run["seed"])
        if key not in digests:
            digests[key] = digest(world.build(run["seed"], folder))[:12]
        found.append(
            Row(
                version=VERSION,
                world=name,
                data=digests[key],
                method=run["method"],
                settings=settings,
                seed=run["seed"],
                scores=[round(score, 5) for score in run["accuracies"] if score is not None],
                rand=run.get("ari"),
                groups=run["groups"],
                bytes=run["bytes"],
                seconds=run["seconds"],
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    made = rows(asked.data)
    write_rows(asked.out, made)
    print(json.dumps({"rows": len(made), "bytes": asked.out.stat().st_size}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
