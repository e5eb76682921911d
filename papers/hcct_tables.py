"""Tables of HCCT's experiments: test errors in percent, as the paper has them."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.report.summary import interval
from coterie.report.words import plus_minus
from papers.comparing import labels, of, rand, sent
from papers.hcct_choice import tradeoff, with_chosen
from papers.numbers import found, mean, picked, spread, values
from papers.study import Row, Table


def error(rows: Sequence[Row], name: str = "accuracy") -> float:
    """The mean error over seeds, in percent; ``name``: of the accuracy."""
    return 100 * (1 - mean(rows, name))


def said(rows: Sequence[Row], name: str = "accuracy") -> str:
    """The mean error and its 95 % interval, in words."""
    return plus_minus(interval((100 * (1 - found(rows, name))).tolist()), 1)


def weights(rows: Sequence[Row]) -> str:
    """The λ of a method, each once."""
    known = {each for row in rows if (each := tradeoff(row)) is not None}
    return ", ".join(f"{each:g}" for each in sorted(known)) or "–"


def errors(rows: Sequence[Row]) -> Table:
    """A row per method: how good, for whom, in which groups, how near to stationary, at what cost."""
    every, lines = with_chosen(rows), []
    for name in labels(every):
        own = of(every, name)
        lines.append(
            (
                name,
                weights(own),
                said(own),
                said(own, "best_epoch"),
                said(own, "worst"),
                f"{100 * mean(own, 'std'):.1f}",
                rand(own),
                spread(own, "groups", digits=1),
                f"{mean(own, 'largest'):.1f}",
                f"{mean(own, 'gradient_norm'):.2g}",
                f"{mean(own, 'exchanges'):.0f}",
                sent(own),
            )
        )
    head = (
        "method",
        "λ / mean size",
        "error, %",
        "best epochs",
        "worst client",
        "std of clients",
        "adjusted Rand",
        "groups",
        "largest",
        "Σ‖∇F‖²",
        "exchanges",
        "MB",
    )
    return Table(head, tuple(lines), "ll" + "r" * (len(head) - 2))


def spreads(rows: Sequence[Row]) -> Table:
    """A row per method: mean, standard deviation, least and greatest error of clients."""
    every, lines = with_chosen(rows), []
    for name in labels(every):
        own = of(every, name)
        deviation = plus_minus(interval((100 * found(own, "std")).tolist()), 1)
        lines.append((name, said(own), deviation, said(own, "best"), said(own, "worst")))
    return Table(("method", "mean error, %", "std", "min", "max"), tuple(lines), "lrrrr")


def joining(rows: Sequence[Row]) -> Table:
    """A row per method and number of joiners."""
    lines = []
    for name in labels(rows):
        for joiners in values(rows, "joiners"):
            own = of(rows, name, joiners=joiners)
            first = 100 * (1 - found(own, "founders")[:, -1])
            lines.append(
                (
                    name,
                    str(joiners),
                    f"{mean(own, 'clients'):.0f}",
                    said(own),
                    plus_minus(interval(first.tolist()), 1),
                    said(own, "worst"),
                    spread(own, "groups", digits=1),
                )
            )
    head = (
        "method",
        "join at a time",
        "clients at the end",
        "error, %",
        "of the first clients",
        "worst client",
        "groups",
    )
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


MEMORY = {True: "as printed", False: "with memory"}
"""Whether HCCT has none."""


def tradeoffs(rows: Sequence[Row]) -> Table:
    """A row per memory and share of data to train on, a column per λ; the best in each row by test and by validation."""
    every, lines = values(rows, "tradeoff"), []
    for memory in values(rows, "memory"):
        for train in values(rows, "train"):
            own = picked(rows, memory=memory, train=train)
            each = [picked(own, tradeoff=weight) for weight in every]
            lines.append(
                (
                    MEMORY[memory == 0],
                    f"{train:g}",
                    *(f"{said(runs)} ({mean(runs, 'groups'):.1f})" for runs in each),
                    f"{best_tradeoff(own):g}",
                    f"{best_tradeoff(own, 'validation'):g}",
                )
            )
    head = (
        "HCCT",
        "share to train on",
        *(f"λ {weight:g}" for weight in every),
        "best λ",
        "by validation",
    )
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


def best_tradeoff(rows: Sequence[Row], name: str = "accuracy") -> float:
    """The λ of greatest mean accuracy; of equal ones the smallest."""
    return max(
        sorted(values(rows, "tradeoff")),
        key=lambda weight: mean(picked(rows, tradeoff=weight), name),
    )


def groups(rows: Sequence[Row]) -> Table:
    """A row per memory and number of groups."""
    lines = []
    for memory in values(rows, "memory"):
        for count in values(rows, "groups"):
            own = picked(rows, memory=memory, groups=count)
            lines.append(
                (
                    MEMORY[memory == 0],
                    str(count),
                    said(own),
                    said(own, "worst"),
                    spread(own, "utility"),
                    spread(own, "ari"),
                )
            )
    return Table(
        ("HCCT", "groups", "error, %", "worst client", "total utility", "adjusted Rand"),
        tuple(lines),
        "lrrrrr",
    )
