"""Methods on data that drift, beside an oracle that knows the concepts: ``python benchmarks/drift.py [--seeds N] [--jobs N]``.

Each world is a stream (SINE, CIRCLE, SEA) of ten clients, with 100 new examples per client in each
time step of 20 rounds; or digits of ten clients, who keep their examples, and whose groups exchange
two labels each; or MNIST (``--streams mnist``), of which ten clients have 100 new images in each
time step, and whose groups exchange labels. The schedules are FedCCFA's ``sudden`` and
``recurring``, and ``still``, in which nothing changes. Each run has these measures:

- accuracy: the mean over clients and rounds, from the second time step on, and ``behind``: that of
  the better oracle minus this. One oracle trains the model of a new concept from the first draw,
  one (``warm``) from a trained model;
- right: the share of these rounds in which the groups are the true ones;
- delay: rounds from a change until the groups are the true ones, mean over changes; a time step if
  they never are;
- alarm: whether there was ever more than one group, on data that are still.

Runs that ``results/drift.jsonl`` has are not repeated. ``--table`` only prints the means. To see
how often there are false alarms: ``--schedules still --only "tuned alert" --first 20 --seeds 20``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from result_file import append_result, read_results

import coterie
from coterie.contrib.rivals import FedDrift
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Method,
    Needs,
    Note,
    Plan,
    Replies,
    Round,
    as_groups,
    state,
    train_from,
)
from coterie.data.drift import schedule
from coterie.data.world import World
from coterie.methods import HCCT, IFCA, Auto, FedAvg, SplitHalf, Tuned

RESULTS = Path(__file__).resolve().parent / "results" / "drift.jsonl"
CLIENTS, PERIOD, SAMPLES = 10, 20, 200
STREAMS = {"sine": 2, "circle": 2, "sea": 4, "digits": 4, "mnist": 4}
"""World -> its concepts."""
FILES = ("mnist",)
"""Worlds that need files (COTERIE_DATA)."""
SCHEDULES = {"sudden": 4, "recurring": 5, "still": 4}
"""Schedule -> its time steps; the last row is repeated."""

DELTAS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""FedDrift's thresholds, of which each world has its best."""

METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(),
    "ifca": IFCA(models=4),
    "split-half": SplitHalf(),
    "split-half alert": SplitHalf(alert=True),
    "tuned alert": Tuned(method=SplitHalf(alert=True), epochs=2, start="either", pull=0.2),
    "auto": Auto(),
    "hcct": HCCT(),
    **{f"feddrift {delta:g}": FedDrift(period=PERIOD, delta=delta) for delta in DELTAS},
}


ORACLES = ("oracle", "oracle warm")


@state("benchmark.oracle")
class OracleState:
    """round: rounds completed. models ``(k, d)``: one per concept."""

    round: int
    models: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """FedAvg among the clients of each concept; it knows who has which concept in each round.

    The model of a new concept is the first draw; with ``warm`` it is a copy of the model that most
    of its clients had.
    """

    name: ClassVar[str] = "oracle"
    needs: ClassVar[Needs] = Needs(sums_only=True, unchanged_by="rotation")
    concepts: tuple[Mapping[Client, int], ...]
    period: int
    warm: bool = False

    def row(self, done: int) -> Mapping[Client, int]:
        """Client -> its concept in the round after ``done`` rounds."""
        return self.concepts[min(done // self.period, len(self.concepts) - 1)]

    def init(self, federation: Federation) -> OracleState:
        k = 1 + max(max(row.values()) for row in self.concepts)
        return OracleState(round=0, models=federation.draw(0).repeat(k, 1))

    def plan(self, state: OracleState, cohort: Cohort) -> Plan:
        return train_from(state.models, self.row(state.round), need="mean")

    def step(self, state: OracleState, replies: Replies) -> OracleState:
        models, done = state.models + replies.mean_updates, state.round + 1
        if self.warm and done % self.period == 0 and done // self.period < len(self.concepts):
            earlier, now = self.row(done - 1), self.row(done)
            known = {
                concept for row in self.concepts[: done // self.period] for concept in row.values()
            }
            for new in set(now.values()) - known:
                models[new] = models[
                    Counter(earlier[c] for c in now if now[c] == new).most_common(1)[0][0]
                ]
        return replace(state, round=done, models=models)

    def assignment(self, state: OracleState) -> Assignment:
        row = self.row(max(state.round - 1, 0))
        groups = as_groups([c for c in row if row[c] == at] for at in set(row.values()))
        return Assignment(models=state.models, row=row, groups=groups)

    def explain(self, state: OracleState) -> tuple[Note, ...]:
        return ()


def world(stream: str, drift: str, seed: int) -> World:
    """The world of a stream and a schedule."""
    rows = schedule(drift, CLIENTS, STREAMS[stream], calm=1)
    rows += (rows[-1],) * (SCHEDULES[drift] - len(rows))
    base = replace(
        coterie.SCENARIOS[f"{stream}/drift"],
        clients=CLIENTS,
        drift="given",
        schedule=rows,
        period=PERIOD,
    )
    # Streams that are drawn need as many examples as all time steps show; MNIST has its images.
    if base.drift.renew and stream not in FILES:
        base = replace(base, examples=len(rows) * CLIENTS * SAMPLES)
    return base.build(seed)


def measures(made: list[Round], whole: World) -> dict[str, Any]:
    """The measures of a run, without the oracle's."""
    exact = [one.assignment.groups == whole.true_groups(one.number) for one in made]
    after, delays = made[PERIOD:], []
    for start in range(PERIOD, len(made), PERIOD):
        if whole.true_groups(start + 1) != whole.true_groups(start):
            step = exact[start : start + PERIOD]
            delays.append(step.index(True) if True in step else PERIOD)
    ends = [one.mean() for one in made[2 * PERIOD - 1 :: PERIOD]]
    return {
        "accuracy": float(np.mean([one.mean() for one in after])),
        "at_ends": float(np.mean(ends)),
        "right": float(np.mean(exact[PERIOD:])),
        "delay": float(np.mean(delays)) if delays else None,
        "groups": len(made[-1].assignment.groups),
        "alarm": any(len(one.assignment.groups) > 1 for one in made),
        "bytes_down": sum(one.bytes_down for one in made),
        "curve": [round(float(one.mean() or 0), 4) for one in made],
    }


def run(cell: tuple[str, str, str, int]) -> dict[str, Any]:
    """The measures of a cell: stream, schedule, method, seed."""
    stream, drift, name, seed = cell
    whole = world(stream, drift, seed)
    assert whole.drift is not None
    oracle = Oracle(concepts=tuple(whole.drift.concepts), period=PERIOD, warm=name == "oracle warm")
    method = oracle if name in ORACLES else METHODS[name]
    made = list(coterie.run(method, whole, rounds=PERIOD * SCHEDULES[drift], seed=seed, workers=1))
    return {"stream": stream, "drift": drift, "method": name, "seed": seed, **measures(made, whole)}


def known() -> list[dict[str, Any]]:
    """The measured cells."""
    return read_results(RESULTS)


def measured() -> list[dict[str, Any]]:
    """The measured cells, with ``behind``: points of accuracy behind the better oracle of the same world; None without one."""
    rows, best = known(), dict[tuple[str, str, int], float]()
    for one in rows:
        if one["method"] in ORACLES:
            at = one["stream"], one["drift"], one["seed"]
            best[at] = max(one["accuracy"], best.get(at, 0.0))
    for one in rows:
        oracle = best.get((one["stream"], one["drift"], one["seed"]))
        one["behind"] = None if oracle is None else 100 * (oracle - one["accuracy"])
    return rows


def mean(found: list[dict[str, Any]], key: str) -> float | None:
    """The mean of a measure over the cells that have it; None if none has."""
    values = [one[key] for one in found if one[key] is not None]
    return float(np.mean(values)) if values else None


def table() -> str:
    """The means over seeds, as Markdown."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in measured():
        cells.setdefault((one["stream"], one["drift"], one["method"]), []).append(one)
    lines = [
        "| stream | schedule | method | seeds | accuracy | behind | right | delay | alarms |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for (stream, drift, name), found in sorted(cells.items(), key=lambda item: item[0][:2]):
        digits = {"accuracy": 3, "behind": 1, "right": 2, "delay": 1}
        values = [
            "" if (value := mean(found, key)) is None else f"{value:.{n}f}"
            for key, n in digits.items()
        ]
        alarms = f"{sum(one['alarm'] for one in found)} of {len(found)}" if drift == "still" else ""
        lines.append(
            f"| {stream} | {drift} | {name} | {len(found)} | {' | '.join(values)} | {alarms} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the missing cells, one seed after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="methods")
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES))
    parser.add_argument(
        "--streams", nargs="*", default=[stream for stream in STREAMS if stream not in FILES]
    )
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    done = {(one["stream"], one["drift"], one["method"], one["seed"]) for one in known()}
    names = asked.only or [*ORACLES, *METHODS]
    seeds = range(asked.first, asked.first + asked.seeds)
    cells = [
        (s, d, m, seed)
        for seed in seeds
        for d in asked.schedules
        for s in asked.streams
        for m in names
    ]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for found in pool.map(
            run, [] if asked.table else [cell for cell in cells if cell not in done]
        ):
            append_result(RESULTS, found)
    print(table())


if __name__ == "__main__":
    main()
