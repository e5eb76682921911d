"""Tables that compare the default method with published numbers, of what was measured; :mod:`generate` puts them in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flux_tables import ELSEWHERE
from measured import recorded, table

from coterie.report.words import plus_minus

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import flux

NOTHING = "–"
DEFAULT = "auto"
CALLED = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Printed:
    """A published column of accuracies, and the experiment that repeats it in a smaller size.

    Attributes:
        source: Where it is published.
        what: Its data and partition.
        methods: Method of Coterie -> printed accuracy.
        others: Methods that Coterie does not have, with theirs.
        differs: In which way the repetition differs.
    """

    source: str
    what: str
    methods: Mapping[str, float]
    others: Mapping[str, float]
    differs: str


PERSONAL: Mapping[str, Printed] = {
    "personal-cifar10": Printed(
        "[kNN-Per](https://github.com/omarfoq/knn-per)",
        "CIFAR-10, Dirichlet(0.3)",
        {
            "knn-per": 0.830,
            "ditto": 0.800,
            "apfl": 0.789,
            "fedrep": 0.777,
            "tuned": 0.752,
            "cfl": 0.733,
            "fedavg": 0.728,
            "independent": 0.576,
        },
        {},
        "a fifth of the clients, a small net that is not pre-trained",
    ),
    "personal-cifar100": Printed(
        "[PFLlib](https://www.pfllib.com/benchmark.html)",
        "CIFAR-100, Dirichlet(0.1)",
        {
            "fedbabu": 0.550,
            "ditto": 0.529,
            "fedrep": 0.524,
            "fedper": 0.496,
            "apfl": 0.467,
            "fedavg": 0.319,
        },
        {"FedDBE": 0.644, "GPFL": 0.619, "FedCP": 0.596, "FedALA": 0.559},
        "an eighth of the images, a small net, 100 rounds in place of 2,000, the last round",
    ),
}
"""Name of an experiment, which is also that of its file in docs/results -> the published column."""


def personal(name: str) -> str:
    """A published column and what was measured: best first."""
    found, printed = recorded(name), PERSONAL[name]
    if not found:
        return f"Not measured yet: `coterie run experiments/{name}.toml --data DIR` does it.\n"
    best = max(one["accuracy"]["mean"] for one in found.values())
    lines = [
        (
            f"`{method}`",
            _accuracy(printed.methods.get(method)),
            plus_minus(one["accuracy"]),
            f"{100 * (best - one['accuracy']['mean']):.1f}",
            f"{one['worst']['mean']:.3f}",
        )
        for method, one in sorted(found.items(), key=lambda pair: -pair[1]["accuracy"]["mean"])
    ]
    lines += [
        (other, _accuracy(value), NOTHING, NOTHING, NOTHING)
        for other, value in printed.others.items()
    ]
    head = ("method", "printed", "here", "points behind the best here", "worst client")
    return table(head, lines, "lrrrr")


def _accuracy(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Comparison:
    """The default next to a column of published accuracies.

    Attributes:
        source: Who published them.
        link: Where.
        what: On which data.
        printed_method: The method of the best printed accuracy.
        printed: That accuracy.
        same_here: What the same method has here; None if Coterie does not have it.
        other_method: The best method here but for the default.
        other: Its accuracy.
        default: The default's accuracy.
        differs: In which way the run here differs.
    """

    source: str
    link: str
    what: str
    printed_method: str
    printed: float
    same_here: float | None
    other_method: str
    other: float
    default: float
    differs: str


def comparisons() -> Iterator[Comparison]:
    """All columns in which the default and other methods have been run."""
    for dataset in flux.DATASETS:
        rows = [row for row in flux.known() if (row["dataset"], row["scale"]) == (dataset, "paper")]
        found = flux.means(rows)
        for level in flux.LEVELS:
            own = {method: value for (method, at), value in found.items() if at == level}
            printed = {name: values[level - 1] for name, values in flux.PRINTED[dataset].items()}
            part = any(row["epochs"] > flux.EPOCHS for row in rows)  # to make as many steps
            differs = "one fold, the last round" + ", a part of the images" * part
            what = f"{CALLED[dataset]}, level {level}"
            yield from _compared("FLUX", "evidence/flux.md", what, printed, own, differs)
    for name, column in PERSONAL.items():
        own = {method: one["accuracy"]["mean"] for method, one in recorded(name).items()}
        printed = {**column.methods, **column.others}
        source, link = column.source[1:-1].split("](")
        yield from _compared(source, link, column.what, printed, own, column.differs)


def _compared(
    source: str,
    link: str,
    what: str,
    printed: Mapping[str, float],
    found: Mapping[str, float],
    differs: str,
) -> Iterator[Comparison]:
    """The best of what is printed, and of what was measured here; nothing where the default was not run."""
    others = {method: value for method, value in found.items() if method != DEFAULT}
    if DEFAULT in found and others:
        first = max(printed, key=lambda method: printed[method])
        best = max(others, key=lambda method: others[method])
        yield Comparison(
            source,
            link,
            what,
            _named(first),
            printed[first],
            found.get(first),
            _named(best),
            others[best],
            found[DEFAULT],
            differs,
        )


def _named(method: str) -> str:
    return f"`{method}`" if method in flux.METHODS else ELSEWHERE.get(method, method)


def accuracies() -> str:
    """The default and each column of published accuracies that was repeated."""
    head = (
        "published by",
        "on",
        "best printed",
        "that method here",
        "best other here",
        "`auto` here",
        "what differs here",
    )
    lines = [
        (
            f"[{one.source}]({one.link})",
            one.what,
            f"{one.printed_method} {one.printed:.3f}",
            _accuracy(one.same_here),
            f"{one.other_method} {one.other:.3f}",
            f"{one.default:.3f}",
            one.differs,
        )
        for one in comparisons()
    ]
    return table(head, lines, "llllll")


PARTS: Mapping[str, Callable[..., str]] = {
    "personal": personal,
    "standing-accuracies": accuracies,
}
