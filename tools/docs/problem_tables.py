"""Tables of ``examples/problems`` and of adapters, of what ``benchmarks`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from measured import table

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def problems() -> str:
    """A row per problem: the main metric of training alone, of one model for all and of groups, lines and bytes."""
    rows = []
    for one in json.loads((RESULTS / "problems.json").read_text()):
        scores = one["scores"]
        rows.append(
            (
                f"[{one['about'].partition(':')[0]}](../examples/problems/{one['problem']}.py)",
                f"`{one['metric']}`",
                *(f"{scores[method]:.3f}" for method in ("independent", "fedavg", "split-half")),
                f"{one['found']} of 3",
                str(one["lines"]),
                f"{one['share']:.1%}",
            )
        )
    head = (
        "problem",
        "metric",
        "alone",
        "one model",
        "split-half",
        "groups found",
        "lines",
        "sent",
    )
    return table(head, rows, "llrrrrrr")


def forecasts() -> str:
    """What forecasts without a model score beside the methods."""
    one = next(
        one
        for one in json.loads((RESULTS / "problems.json").read_text())
        if one["problem"] == "forecasting"
    )
    (mean, last), score = one["baselines"].values(), one["scores"]["split-half"]
    return (
        f"Forecasts are tested on the last hours of each station. Without a model, the mean of the last 24 hours has\n"
        f"{mean:.3f} as a forecast and the last value {last:.3f}; split-half has {score:.3f} (`baselines` in the program).\n"
    )


def adapters() -> str:
    """What the adapters of a large transformer cost."""
    one = json.loads((RESULTS / "adapters.json").read_text())
    size, sent, memory = one["parameters"] / 1e6, one["bytes"] / 1e6, one["memory"] / 1e9
    return (
        f"With adapters of a BERT of {size:.0f} million parameters, a client sends {sent:.1f} MB in a round, "
        f"{one['share']:.2%} of\nthe model. 20 clients and two worker processes take {memory:.1f} GB of memory in all\n"
        "(`python benchmarks/adapters.py`).\n"
    )


PARTS: Mapping[str, Callable[[], str]] = {
    "problems": problems,
    "forecasts": forecasts,
    "adapters": adapters,
}
