"""The recorded rows of ``coterie bench``, from what the studies measured.

    python benchmarks/study/bench_rows.py [--add FILE ...] [--studies] [--data DIR]

It writes the file of rows that comes with Coterie. ``--add`` takes rows that ``coterie bench SUITE
--method M --out DIR`` made, in place of those that the file has of the same runs; ``--studies`` takes
those of the studies first. The worlds of the suites are those of :mod:`study.regret` and
:mod:`study.silos`, so their runs are rows of the suites. Left out are runs with other seeds or
settings than a suite has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from result_file import read_results

from coterie.contrib.bench.rows import Row, read_rows, write_rows
from coterie.contrib.bench.suites import (
    FROZEN_SETTINGS,
    LOW_PARTICIPATION,
    VERSION,
    WORLDS,
)
from coterie.runs.facts import digest

RESULTS = Path(__file__).resolve().parents[1] / "results"

RECORDED = Path(__file__).resolve().parents[2] / "src/coterie/contrib/bench/rows/coterie.jsonl.gz"


def studied() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name of the world in the suites, run of a study), whether or not a suite has it."""
    for run in read_results(RESULTS / "regret.jsonl.gz"):
        answers = run["participation"]
        name = f"{run['kind']}/{run['size']}"
        if f"files/{name}" in WORLDS and answers == 1:
            yield f"files/{name}", run
        elif answers == 1:
            yield f"digits/{name}", run
        elif answers == LOW_PARTICIPATION:
            yield f"dropouts/{name}", run
    for run in read_results(RESULTS / "silos.jsonl"):
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
        if world is None or not is_row:
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
    parser.add_argument("--studies", action="store_true", help="take the rows of the studies")
    parser.add_argument("--add", type=Path, action="append", default=[], help="a file of rows")
    asked = parser.parse_args()
    made = {row.key: row for row in (read_rows(RECORDED) if RECORDED.exists() else [])}
    if asked.studies:
        made |= {row.key: row for row in rows(asked.data)}
    for path in asked.add:
        made |= {row.key: row for row in read_rows(path)}
    write_rows(RECORDED, made.values())
    print(f"{RECORDED}: {len(made)} rows, {RECORDED.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
