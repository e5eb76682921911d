"""Tables of how often the default decides wrongly, of what ``benchmarks/study/decision_rates.py`` simulated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from measured import table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from result_file import read_results  # noqa: E402
from study import decision_rates  # noqa: E402

RESULTS = BENCHMARKS / "results" / "decision-rates.jsonl"

Row = Mapping[str, Any]

SIZE_BANDS = (0, 100, 1000, 10_000, 100_000)
"""Limits of the held-out rows of all clients together: from each limit to below the next."""


def rows(part: str) -> list[Row]:
    """The results of a part of the study."""
    return [row for row in read_results(RESULTS) if row["part"] == part]


def mean(chosen: Iterable[Row], key: str) -> float:
    """The mean of a share over rows, each weighted by its runs."""
    chosen = list(chosen)
    run_count = sum(row["runs"] for row in chosen)
    return float(sum(row["runs"] * row[key] for row in chosen) / run_count)


def share(value: float) -> str:
    """A share in per cent; small ones with a decimal."""
    return f"{100 * value:.0f} %" if value >= 0.1 or not value else f"{100 * value:.1f} %"


def null() -> str:
    """Arms that are as good: a row per band of held-out rows."""
    cells = []
    for low, high in pairwise(SIZE_BANDS):
        band = [row for row in rows("null") if low <= row["clients"] * row["rows"] < high]
        by_kind = {
            kind: [row for row in band if row["groups"] == kind] for kind in decision_rates.GROUPS
        }
        both = [row for own in by_kind.values() for row in own]
        cells.append(
            (
                f"{low:,} to {high:,}" if low else f"fewer than {high:,}",
                str(sum(row["runs"] for row in both)),
                *(
                    f"{share(mean(own, 'delivered'))}, {mean(own, 'changes'):.1f}"
                    for own in by_kind.values()
                ),
                share(mean(both, "complex ended early")),
                share(mean(both, "simple ended by test")),
                share(mean(both, "complex hopeless")),
            )
        )
    head = (
        "held-out rows, all clients",
        "races",
        "tested groups: delivered, changes",
        "untested groups: delivered, changes",
        "groups ended before `2 patience`",
        "one model ended by the test",
        "groups ended as hopeless",
    )
    return table(head, cells, "lrrrrrr")


def late() -> str:
    """Groups that are better late: delivered, by the round in which they become better and by how much."""
    by_curve: dict[tuple[float, float], dict[str, Row]] = {}
    for row in rows("late"):
        gain, crossing = row["curve"]
        by_curve.setdefault((gain, crossing), {})[row["groups"]] = row
    gains = sorted({gain for gain, _ in by_curve})
    crossings = sorted({crossing for _, crossing in by_curve})
    cells = []
    for gain in gains:
        values = []
        for crossing in crossings:
            by_kind = by_curve[gain, crossing]
            values.append(
                f"{share(by_kind['tested']['delivered'])}, {share(by_kind['untested']['delivered'])}"
            )
        cells.append((f"{gain:g}", *values))
    head = ("ahead at last, in standard errors", *(f"round {crossing:g}" for crossing in crossings))
    return table(head, cells, "l" + "r" * len(crossings))


def fences() -> str:
    """One client that differs: how often honest reports are limited, and what that does to the difference."""
    cells = []
    for row in rows("unequal fences"):
        cells.append(
            (
                str(row["clients"]),
                str(row["rows"]),
                f"{row['apart']:g}",
                share(row["draws with limits"]),
                f"{row['mean shift']:.1f}".replace("-0.0", "0.0"),
                share(row["rejected"][1]),
                share(row["rejected within fences"][1]),
            )
        )
    head = (
        "clients",
        "rows of each",
        "one differs by",
        "draws with a limit",
        "shift of the mean, in standard errors",
        "rejected at 1 %, no fences",
        "with fences",
    )
    return table(head, cells, "rrrrrrr")


def fences_in_short() -> str:
    """The same for few and many rows: a row per number of clients, a column per distance of the one that differs."""
    return _by_clients(
        [row for row in rows("unequal fences") if row["rows"] == 100],
        "apart",
        lambda row: f"{share(row['draws with limits'])}, {abs(row['mean shift']):.1f}",
        "clients; one differs by",
        lambda apart: f"{apart:g} sd",
    )


def _by_clients(
    chosen: Sequence[Row],
    column: str,
    words: Callable[[Row], str],
    corner: str,
    column_words: Callable[[Any], str],
) -> str:
    values = sorted({row[column] for row in chosen})
    cells = []
    for client_count in sorted({row["clients"] for row in chosen}):
        own = {row[column]: row for row in chosen if row["clients"] == client_count}
        cells.append((str(client_count), *(words(own[value]) for value in values)))
    return table((corner, *map(column_words, values)), cells, "r" * (1 + len(values)))


def levels() -> str:
    """Tests of a difference of 0, in one look, at a level of 1 %: rejected without and with fences, and limits."""
    return _by_clients(
        rows("fences"),
        "rows",
        lambda row: (
            f"{share(row['rejected'][1])}, {share(row['rejected within fences'][1])} "
            f"({share(row['draws with limits'])})"
        ),
        "clients; rows of each",
        str,
    )


def personal() -> str:
    """Who uses a personal model after the rounds of the study, a row per kind of gain and number of clients."""
    cells = []
    for gain_name in decision_rates.TRUE_GAINS:
        for client_count in sorted({row["clients"] for row in rows("personal")}):
            own = [
                row
                for row in rows("personal")
                if (row["gains"], row["clients"]) == (gain_name, client_count)
            ]
            cells.append(
                (
                    gain_name,
                    str(client_count),
                    share(mean(own, "use")),
                    share(mean(own, "differ")),
                    f"{mean(own, 'added'):+.2f}".replace("+0.00", "0.00").replace("-0.00", "0.00"),
                    f"{mean(own, 'best'):+.2f}".replace("+0.00", "0.00").replace("-0.00", "0.00"),
                )
            )
    head = (
        "personal models are",
        "clients",
        "clients that use them",
        "each client's own difference counts",
        "added to the loss",
        "with the best choice",
    )
    return table(head, cells, "lrrrrr")


def shapes() -> str:
    """The shape of real and of simulated differences: a row per federation and pair of arms."""
    names = ("unit", "kurtosis", "skewness", "quartiles", "client scale", "client")
    noise_names = ("example noise", "round noise", "persistence")
    cells = []
    for row in rows("shape"):
        values = [f"{row[name]:.2f}" for name in names]
        values += [f"{row[name]:.3f}" for name in noise_names]
        cells.append((row["world"], row["pair"].replace(" ", ", "), *values))
    return table(
        ("federation", "arms", *names, *noise_names),
        cells,
        "ll" + "r" * len((*names, *noise_names)),
    )


def errors() -> str:
    """The standard deviation of z where there is no difference: a row per size."""
    cells = []
    for row in rows("errors"):
        cells.append(
            (
                str(row["clients"]),
                str(row["rows"]),
                str(row["runs"]),
                f"{row['last round']:.2f}",
                f"{row['later half']:.2f}",
            )
        )
    head = ("clients", "rows of each", "runs", "last round alone", "later half of the rounds")
    return table(head, cells, "rrrrr")


PARTS: Mapping[str, Callable[[], str]] = {
    "decision-null": null,
    "decision-late": late,
    "decision-fences": fences_in_short,
    "decision-fences-all": fences,
    "decision-levels": levels,
    "decision-personal": personal,
    "decision-shapes": shapes,
    "decision-errors": errors,
}
