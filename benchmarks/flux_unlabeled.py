"""FLUX's test clients without labels: each is placed by its images alone, and served by the model of its group.

    python benchmarks/flux_unlabeled.py [--datasets mnist,...] [--shifts px,...] [--levels 1,8] [--folds 0,1]
        [--methods split-half,...] [--scale paper|small] [--data DIR] [--runs DIR] [--minutes N]
    python benchmarks/flux_unlabeled.py --table

The worlds, sizes and methods are those of ``flux.py``. After training, the test images of each
client come as those of a site that nobody knows, as in FLUX's code (``flux/server.py``, *Test-time
inference*): all its test images at once, and no label. So a site sees the data as one of the
clients does, and has other images. An export of the run gives a model for the site, by a rule
(:data:`RULES`).

The printed accuracies are those of *Testing phase inference* in FLUX's ``plots/plot_1_hetero.py``.
They are means over three shifts, without P(Y|X): times three, those of level 1 have five decimals,
as shares of 50,000 test images have, and times four they have not. No rule can do without labels
where labels are permuted. So this shift is measured here too, and stands beside the mean.

Runs that ``results/flux_unlabeled.jsonl`` has are not repeated. ``--runs`` keeps the runs; one that
is complete there is not trained again. ``--minutes`` starts no run after a time.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flux
import numpy as np
import torch
from result_file import append_result, read_results

import coterie
from coterie.data.world import World
from coterie.methods import METHODS
from coterie.runs.loading import read_document
from coterie.runs.predicting import outputs_of
from coterie.settings import build

RESULTS = Path(__file__).resolve().parent / "results" / "flux_unlabeled.jsonl"

SHIFTS_OF_MEAN = ("px", "py", "px-y")
"""The shifts of which the printed accuracies are means."""

RULES: Mapping[str, str] = {
    "own": "the model of the client's own group, as if the site were known",
    "place": "the group of `coterie place`; the default model if it tells no groups apart, or names none",
    "confident": "the model whose predictions have the least mean entropy",
    "default": "the default model of the export: that of the largest group",
}
"""Rule -> which model serves a site."""

METHODS_HERE = ("fedavg", "ifca", "cfl", "split-half", "auto")

PRINTED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mnist": {
        "fedavg": (0.922, 0.898, 0.863, 0.853, 0.866, 0.839, 0.811, 0.794),
        "ifca": (0.899, 0.857, 0.829, 0.812, 0.792, 0.740, 0.683, 0.642),
        "cfl": (0.927, 0.901, 0.869, 0.860, 0.871, 0.849, 0.817, 0.795),
        "flux": (0.956, 0.944, 0.945, 0.948, 0.939, 0.935, 0.927, 0.923),
    },
    "fashion_mnist": {
        "fedavg": (0.767, 0.740, 0.699, 0.684, 0.704, 0.675, 0.628, 0.606),
        "ifca": (0.763, 0.703, 0.653, 0.647, 0.651, 0.612, 0.525, 0.526),
        "cfl": (0.771, 0.745, 0.708, 0.691, 0.710, 0.680, 0.633, 0.612),
        "flux": (0.786, 0.796, 0.794, 0.805, 0.822, 0.806, 0.847, 0.843),
    },
    "cifar10": {
        "fedavg": (0.363, 0.349, 0.351, 0.348, 0.316, 0.295, 0.265, 0.261),
        "ifca": (0.400, 0.390, 0.391, 0.392, 0.352, 0.351, 0.329, 0.320),
        "cfl": (0.374, 0.360, 0.362, 0.357, 0.329, 0.314, 0.284, 0.278),
        "flux": (0.361, 0.369, 0.376, 0.384, 0.389, 0.405, 0.410, 0.398),
    },
}
"""Data set -> method -> printed accuracy at each level, the mean over three shifts and five folds,
clients without labels and not known."""

# ----------------------------------------------------------------------------------------------------
# Sites without labels.


def trained(cell: flux.Cell, name: str, made: World, folder: Path) -> Any:
    """Train a method on the known clients, or continue or reopen such a run.

    Args:
        cell: The world's place in the grid.
        name: The method.
        made: The world.
        folder: The folder of the run.

    Returns:
        The run, complete.
    """
    (run,) = coterie.begin(
        made,
        folder,
        [build(METHODS[name], flux.SETTINGS[name])],
        rounds=flux.ROUNDS,
        seeds=(cell[-1],),
        workers=1,
        eval_every=flux.ROUNDS,
    )
    for _ in run.rounds():
        pass
    return run


def served(export: Path, made: World, folder: Path) -> dict[str, Any]:
    """What an export gives to each client's test images, without labels and without its name.

    Args:
        export: The export of a run of this world.
        made: The world.
        folder: Takes the file of each site for a moment.

    Returns:
        ``accuracies``: for each rule those of all clients, in their order; ``own_group`` and
        ``placed``: the group of each as a client, and as a site, None for the default model;
        ``own_probability``: the mean probability of the own group.
    """
    document = read_document(export)
    groups = document["groups"]
    nets = [coterie.load(export, group=group) for group in range(len(groups))]
    default_group = document["default"]["group"]
    accuracies: dict[str, list[float]] = {rule: [] for rule in RULES}
    own_groups = []
    placed_groups = []
    own_probabilities = []
    for client, data in sorted(made.clients.items()):
        inputs, labels = data.test.batch(torch.arange(len(data.test)))
        assert isinstance(inputs, torch.Tensor)
        site_file = folder / f"site-{client}.npz"
        np.savez(site_file, x=inputs.numpy())
        # The model that each rule chooses.
        own_group = next(
            number for number, group in enumerate(groups) if str(client) in map(str, group)
        )
        placement = coterie.place(export, site_file)
        outputs_of_groups = [outputs_of(net, inputs, str(site_file)) for net in nets]
        entropies = [mean_entropy(outputs) for outputs in outputs_of_groups]
        chosen = {
            "own": own_group,
            "place": default_group if placement.group_to_use is None else placement.group_to_use,
            "confident": int(np.argmin(entropies)),
            "default": default_group,
        }
        for rule, group in chosen.items():
            is_right = outputs_of_groups[group].argmax(1) == labels
            accuracies[rule].append(round(float(is_right.double().mean()), 4))
        own_groups.append(own_group)
        placed_groups.append(placement.group_to_use)
        own_probabilities.append(placement.groups[own_group]["probability"])
        site_file.unlink()
    return {
        "accuracies": accuracies,
        "own_group": own_groups,
        "placed": placed_groups,
        "own_probability": round(float(np.mean(own_probabilities)), 4),
    }


def mean_entropy(outputs: torch.Tensor) -> float:
    """The mean entropy of predictions in nats, from logits ``(n, classes)``."""
    log_probabilities = outputs.double().log_softmax(1)
    return float(-(log_probabilities.exp() * log_probabilities).sum(1).mean())


def measured(cell: flux.Cell, name: str, made: World, runs: Path) -> dict[str, Any]:
    """What is written of a run.

    Args:
        cell: The world's place in the grid.
        name: The method.
        made: The world.
        runs: Folder of the runs.

    Returns:
        The line of JSON.
    """
    run = trained(cell, name, made, runs / "-".join(map(str, (*cell, name))))
    seconds = sum(sum(line["seconds"].values()) for line in run.record.lines())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        export = coterie.save(run, folder / "models", warn=lambda _: None)
        found = served(export, made, folder)
        groups = len(read_document(export)["groups"])
    return {
        **dict(zip(flux.KEY, (*cell, name), strict=True)),
        "settings": dict(flux.SETTINGS[name]),
        "groups": groups,
        "true_groups": len(made.truth or ()),
        **found,
        "epochs": made.training.epochs,
        "seconds": round(seconds, 1),
    }


# ----------------------------------------------------------------------------------------------------
# Rows and tables.


def known() -> list[dict[str, Any]]:
    """The measured runs, the last one of each."""
    return list({_key(row): row for row in read_results(RESULTS)}.values())


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in flux.KEY)


def missing(asked: argparse.Namespace) -> Iterator[tuple[flux.Cell, list[str]]]:
    """Worlds, and the methods that were asked for and have not been measured there."""
    done = {_key(row) for row in known()}
    for dataset in asked.datasets:
        for fold in asked.folds:
            for level in asked.levels:
                for shift in asked.shifts:
                    cell = (dataset, asked.scale, shift, level, fold)
                    names = [name for name in asked.methods if (*cell, name) not in done]
                    if names:
                        yield cell, names


def means(dataset: str, scale: str) -> dict[tuple[str, str, int, str], float]:
    """(method, rule, level, shift) -> the mean accuracy over folds; the shift ``mean`` is that of the printed numbers."""
    of_folds: dict[tuple[str, str, int, str], list[float]] = {}
    for row in known():
        if (row["dataset"], row["scale"]) != (dataset, scale):
            continue
        for rule, accuracies in row["accuracies"].items():
            at = (row["method"], rule, row["level"], row["shift"])
            of_folds.setdefault(at, []).append(float(np.mean(accuracies)))
    found = {at: float(np.mean(values)) for at, values in of_folds.items()}
    for method, rule, level, _ in list(found):
        own = [found.get((method, rule, level, shift), math.nan) for shift in SHIFTS_OF_MEAN]
        if not any(map(math.isnan, own)):
            found[method, rule, level, "mean"] = float(np.mean(own))
    return found


def table() -> str:
    """The accuracy of each method by each rule, at each level, beside the printed mean."""
    columns = [*SHIFTS_OF_MEAN, "mean", "py-x"]
    table_lines = [
        "| data | scale | level | method | rule | " + " | ".join(columns) + " | printed |",
        "|---|---|--:|---|---|" + "--:|" * (len(columns) + 1),
    ]
    for dataset in flux.DATASETS:
        for scale in flux.SCALES:
            found = means(dataset, scale)
            seen = sorted(
                {(level, METHODS_HERE.index(method), rule) for method, rule, level, _ in found}
            )
            for level, number, rule in seen:
                method = METHODS_HERE[number]
                cells = []
                for shift in columns:
                    value = found.get((method, rule, level, shift))
                    cells.append("" if value is None else f"{value:.3f}")
                printed = PRINTED[dataset].get(method)
                cells.append("" if printed is None else f"{printed[level - 1]:.3f}")
                head = f"| {dataset} | {scale} | {level} | {method} | {rule} | "
                table_lines.append(head + " | ".join(cells) + " |")
    return "\n".join(table_lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = flux.options()
    parser.description = (__doc__ or "").partition("\n")[0]
    parser.set_defaults(methods=list(METHODS_HERE))
    parser.add_argument("--runs", type=Path, help="folder in which the runs are kept")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(table())
        return 0
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory() as temporary:
        runs = asked.runs or Path(temporary)
        for cell, names in missing(asked):
            made = flux.world(*cell, asked.data)
            for name in names:
                if time.monotonic() > end:
                    return 0
                row = measured(cell, name, made, runs)
                append_result(RESULTS, row)
                accuracies = {
                    rule: round(float(np.mean(values)), 3)
                    for rule, values in row["accuracies"].items()
                }
                shown = [row[key] for key in (*flux.KEY, "groups", "seconds")]
                print(*shown, accuracies, row["own_group"], row["placed"], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
