"""Tables by which a method is chosen, of what other studies have measured; :mod:`generate` puts them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

import study_tables
from measured import BOUNDARY, recorded, table
from published_tables import by_label, error, over, rows

from coterie.clustering import same_partition
from coterie.core import as_groups, row_of

NOTHING = "–"

WORLDS = {
    "permutations-2": "two groups call the classes differently",
    "permutations-4": "four groups call the classes differently",
    "permutations-8": "eight such groups",
    "permutations-4-60": "four such groups of 15 clients",
    "swaps-4": "four groups exchange two labels each",
    "rotations-4": "four groups see images turned",
    "classes-5": "five groups with classes of their own",
    "unequal-4": "four groups, clients of unequal size",
    "mnist-permutations-4": "MNIST, four groups call the classes differently",
    "mnist-swaps-4": "MNIST, four groups exchange two labels each",
    "mnist-rotations-2": "MNIST, two groups see images turned",
    "domains-4": "digits of four origins",
    "populations-2": "MNIST by who wrote it, two populations",
    "dirichlet": "class shares by degrees, no groups",
    "iid": "all alike",
    "quantity": "all alike, unequal sizes",
    "mnist-iid": "MNIST, all alike",
}
"""Kind of a world of the study of split-half -> what its clients have."""

Row = Mapping[str, Any]


BOTH = "adjusted Rand, accuracy"


def studied(
    head: str,
    kinds: Iterable[str],
    size: str,
    participation: float,
    cell: Callable[[Sequence[Row]], str],
) -> str:
    """A row per kind of world, a column per method, of the runs at frozen settings; ``head`` says what cells are."""
    seen = [
        row
        for row in study_tables.rows()
        if row["size"] == size
        and row["participation"] == participation
        and study_tables.is_frozen(row)
    ]
    methods, lines = study_tables.methods_of(seen), []
    for kind in kinds:
        own = [row for row in seen if row["kind"] == kind]
        cells = [[row for row in own if row["method"] == method] for method in methods]
        lines.append((WORLDS[kind], *(cell(runs) if runs else NOTHING for runs in cells)))
    return table((head, *(f"`{method}`" for method in methods)), lines, "l" + "r" * len(methods))


def groups(size: str, *kinds: str) -> str:
    """Adjusted Rand index and accuracy where everybody answers."""
    return studied(
        BOTH, kinds, size, 1.0, lambda runs: f"{_mean(runs, 'ari')}, {_mean(runs, 'accuracy', 3)}"
    )


def silent(*kinds: str) -> str:
    """The same where each client answers with probability 0.3."""
    return studied(
        BOTH, kinds, "many", 0.3, lambda runs: f"{_mean(runs, 'ari')}, {_mean(runs, 'accuracy', 3)}"
    )


def pieces(*kinds: str) -> str:
    """Groups at the end and accuracy, where there is nothing, or no more than degrees, to find."""
    return studied(
        "number of groups, accuracy",
        kinds,
        "many",
        1.0,
        lambda runs: f"{_mean(runs, 'groups', 1)}, {_mean(runs, 'accuracy', 3)}",
    )


def _mean(runs: Sequence[Row], key: str, digits: int = 2) -> str:
    values = [row[key] for row in runs if row[key] is not None]
    return f"{mean(values):.{digits}f}" if values else NOTHING


SINGLE = {
    "hcct-table4-fmnist.data": "Fashion-MNIST, 20 clients, all alike, 120 images each",
    "hcct-table4-cifar.data": "CIFAR-10, 10 clients with shards of one class",
    "hcct-table4-cifar.small": "digits, 10 clients with shards of one class",
    "hcct-table4-digit.small": "digits, 8 clients, four rotations, 45 images each",
    "hcct-table4-digit.data": "digits of four origins, 8 clients",
}
"""Study and scale -> what its clients have; where one model for all and training alone were run
beside the rest."""

BESIDE = ("FedAvg", "Independent", "FedPer", "IFCA", "HCCT", "split-half")


def whether() -> str:
    """Errors of one model for all and of training alone beside clustered methods; the least in bold."""
    lines = []
    for name, what in SINGLE.items():
        found = by_label(name)
        least = min(
            (label for label in BESIDE if label in found),
            key=lambda label: -_accuracy(found[label]),
        )
        cells = [error(found[label]) if label in found else NOTHING for label in BESIDE]
        marked = [
            f"**{cell}**" if label == least else cell
            for label, cell in zip(BESIDE, cells, strict=True)
        ]
        lines.append((what, *marked))
    return table(("error in %", *BESIDE), lines, "l" + "r" * len(BESIDE))


def _accuracy(runs: Sequence[Row]) -> float:
    return mean(run["accuracy"] for run in runs)


def words() -> str:
    """Perplexity of the next word on AG News by topic."""
    lines = [
        (
            label,
            str(len(runs)),
            over(runs, "perplexity", 1),
            over(runs, "groups", 1),
            over(runs, "ari", 2),
        )
        for label, runs in by_label("cfl-fig9.data").items()
    ]
    return table(
        ("AG News by topic", "seeds", "perplexity", "groups", "adjusted Rand"), lines, "lrrrr"
    )


COMPARED = {
    "digits": "digits, label permutations",
    "mnist": "MNIST, label swaps",
    "fashion": "Fashion-MNIST, rotations",
}


def compared(name: str) -> dict[str, Row]:
    """label -> what all seeds of a method came to, of docs/results/all-methods-NAME.json."""
    return recorded(f"all-methods-{name}")


def costs() -> str:
    """What each method sent on MNIST in 30 rounds, as multiples of FedAvg's, and what it asked besides."""
    found = compared("mnist")
    usual = found["fedavg"]
    lines = [
        (
            f"`{label}`",
            f"{one['exchanges']['mean']:.0f}",
            *(_times(one, usual, way) for way in ("bytes_up", "bytes_down")),
            f"{one['evaluations']['mean']:.0f}",
        )
        for label, one in sorted(
            found.items(),
            key=lambda pair: pair[1]["bytes_up"]["mean"] + pair[1]["bytes_down"]["mean"],
        )
    ]
    head = (
        "30 rounds, 20 clients",
        "exchanges",
        "up, × FedAvg",
        "down, × FedAvg",
        "models measured by clients",
    )
    return table(head, lines, "lrrrr")


def _times(one: Row, usual: Row, way: str) -> str:
    return f"{one[way]['mean'] / usual[way]['mean']:.2f}"


PERSONAL = ("fedavg", "fedper", "hcct", "hcct-p", "acfl", "independent")


def personal() -> str:
    """Accuracies of methods with layers or models of clients' own beside those without."""
    lines = [
        (f"`{method}`", *(_served(compared(name)[method]) for name in COMPARED))
        for method in PERSONAL
    ]
    return table(("accuracy, worst client", *COMPARED.values()), lines, "lrrr")


def _served(one: Row) -> str:
    return f"{one['accuracy']['mean']:.3f}, {one['worst']['mean']:.3f}"


def newcomers() -> str:
    """How many newcomers found their group in CFL's tree, and HCCT's and split-half's errors with more that join."""
    found = [row["found"] for row in rows("cfl-fig4.small")]
    right = [ok for one in found for ok in one["newcomers"].values()]
    whole = sum(_same(one["groups"], one["truth"]) for one in found)
    text = (
        f"[CFL's tree](../notes/studies/cfl-fig4.md): {sum(right)} of {len(right)} newcomers in their true "
        "group, and exactly the true "
        f"groups at the end of {whole} of {len(found)} runs.\n\n"
    )
    by: dict[str, dict[int, list[Row]]] = {}
    for row in rows("hcct-fig3.small"):
        by.setdefault(row["cell"]["method"]["label"], {}).setdefault(
            row["cell"]["joiners"], []
        ).append(row["found"])
    counts = sorted({count for own in by.values() for count in own})
    lines = [(label, *(error(own[count]) for count in counts)) for label, own in by.items()]
    head = (
        "[error in %](../notes/studies/hcct-fig3.md), joining every 10 rounds",
        *(str(count) for count in counts),
    )
    return text + table(head, lines, "l" + "r" * len(counts))


def _same(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    a, b = row_of(as_groups(one)), row_of(as_groups(other))
    return a.keys() == b.keys() and same_partition(
        [a[client] for client in a], [b[client] for client in a]
    )


HIDDEN = (
    "nothing",
    "blocks",
    "8bit",
    "sign",
    "clip 1, noise 0.03",
    "clip 1, noise 0.1",
    "clip 1, noise 10",
)


def hidden() -> str:
    """CFL and FL+HC behind a map, compression and noise: true groups, accuracy and ε."""
    found = json.loads(BOUNDARY.read_text())["rows"] if BOUNDARY.is_file() else []
    by = {(row["method"], row["boundary"]): row for row in found}
    methods = list(dict.fromkeys(row["method"] for row in found))
    lines = [
        (boundary, *(_behind(by[method, boundary]) for method in methods))
        for boundary in HIDDEN
        if all((method, boundary) in by for method in methods)
    ]
    head = ("exactly the true groups, accuracy, ε", *(f"`{method}`" for method in methods))
    return table(head, lines, "l" + "r" * len(methods))


def _behind(row: Row) -> str:
    spent = "" if row["epsilon"] is None else f", ε {row['epsilon']:.3g}"
    return f"{row['exact']} of {row['runs']}, {row['accuracy']:.3f}{spent}"


PARTS: Mapping[str, Callable[..., str]] = {
    "choosing-hidden": hidden,
    "choosing-groups": groups,
    "choosing-silent": silent,
    "choosing-pieces": pieces,
    "choosing-whether": whether,
    "choosing-words": words,
    "choosing-costs": costs,
    "choosing-personal": personal,
    "choosing-newcomers": newcomers,
}
