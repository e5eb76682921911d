"""How often each method found exactly the true groups: a dot for each seed of the study of split-half."""

from __future__ import annotations

from collections.abc import Mapping

from study_tables import Row, is_frozen, methods_of, rows, runs_of, worlds

from tools.docs.charts.axes import dot_legend
from tools.docs.drawings.canvas import Drawing

SETTINGS: Mapping[str, str] = {
    "iid": "digits, no groups",
    "quantity": "digits, no groups, unequal sizes",
    "permutations-2": "digits, permuted labels, 2 groups",
    "permutations-4": "digits, permuted labels, 4",
    "permutations-8": "digits, permuted labels, 8",
    "swaps-4": "digits, two labels swapped, 4",
    "rotations-4": "digits, rotated images, 4",
    "classes-5": "digits, different classes, 5",
    "unequal-4": "digits, unequal sizes, 4",
    "adversaries": "digits, hostile clients, 4",
    "mnist-iid": "MNIST, no groups",
    "mnist-permutations-4": "MNIST, permuted labels, 4",
    "mnist-swaps-4": "MNIST, two labels swapped, 4",
    "mnist-rotations-2": "MNIST, rotated images, 2",
    "mnist-unequal-swaps-4": "MNIST, swapped, unequal sizes, 4",
    "domains-4": "digits of four data sets, 4",
    "mnist-permutations-4-60": "MNIST, permuted, 60 clients, 4",
    "mnist-swaps-4-60": "MNIST, swapped, 60 clients, 4",
    "populations-2": "two populations of writers, 2",
    "populations-2-large": "the same, 600 images a client",
}
"""Name in the study -> its label. Those with enough examples."""

METHODS: Mapping[str, str] = {
    "split-half": "split-half",
    "cfl": "CFL",
    "hcct": "HCCT",
    "ifca": "IFCA",
    "flhc": "FL+HC",
}
LEFT = 262
COLUMN = 90
TOP = 84
ROW_HEIGHT = 22


def settings_run() -> list[tuple[str, list[Row]]]:
    """Kind and runs of each setting with enough examples, in which all answer and all methods have their one setting."""
    chosen = [
        row
        for row in rows()
        if row["size"] in ("large", "many")
        and row["participation"] == 1.0
        and row["true_groups"]
        and is_frozen(row)
    ]
    found = [(kind, runs) for kind, _, runs in worlds(chosen) if kind in SETTINGS]
    return [(kind, runs) for kind, runs in found if set(methods_of(runs)) == set(METHODS)]


def split_half_chart() -> Drawing:
    """A row per setting, a column per method, five dots for five seeds."""
    found = settings_run()
    right = {
        method: sum(
            row["right_from"] is not None for _, runs in found for row in runs_of(method, runs)
        )
        for method in METHODS
    }
    count = sum(len(runs_of("split-half", runs)) for _, runs in found)
    bottom = TOP + ROW_HEIGHT * len(found)
    drawing = Drawing(
        720,
        bottom + 42,
        "Runs that end with exactly the true groups",
        f"For each of {len(found)} settings and five methods, a dot for each of five seeds: filled if the groups at the end "
        "are exactly the true ones. "
        + " ".join(
            f"{METHODS[method]}: {number} of {count} runs." for method, number in right.items()
        ),
    )
    drawing.text(20, 30, "Exactly the true groups at the end", size=16, bold=True)
    dot_legend(drawing, 56, (("accent", "right"), ("line", "not right")), (25, 92))
    for column, (method, label) in enumerate(METHODS.items()):
        drawing.text(LEFT + COLUMN * column, TOP - 10, label, bold=method == "split-half")
    for place, (kind, runs) in enumerate(found):
        y = TOP + ROW_HEIGHT * (place + 0.5)
        drawing.text(20, y + 5, SETTINGS[kind])
        for column, method in enumerate(METHODS):
            own = sorted(runs_of(method, runs), key=lambda row: row["right_from"] is None)
            for number, row in enumerate(own):
                drawing.circle(
                    LEFT + COLUMN * column + 6 + 13 * number,
                    y,
                    5,
                    fill="line" if row["right_from"] is None else "accent",
                )
    drawing.text(20, bottom + 26, "all", bold=True)
    for column, method in enumerate(METHODS):
        words = f"{right[method]} of {count}"
        drawing.text(LEFT + COLUMN * column, bottom + 26, words, bold=method == "split-half")
    return drawing
