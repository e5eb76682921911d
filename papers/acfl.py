"""ACFL: A. Filippakopoulos, D. Kastaniotis, C. Theocharatos, V. Vassalos, "Personalization in Distributed tinyML Applications
via Adaptive Clustered Federated Learning", Irida Labs, HETiA; figures 3 to 7.

Figures 3 and 4: clients with two or three of CIFAR-10's classes each train alone from a common
start, and the cosines of their weights are taken layer by layer after several numbers of epochs.
Figures 5 to 7: 16 clients of CIFAR-100, with two classes each ("two tasks", 16 classes, 8 clusters)
or three ("three tasks", 20 classes, 4 clusters): validation loss, test accuracy and precision by λ,
with and without clustering, each a mean over clients. "FedAvg (no clustering λ = 0)".

Which precision is meant is not said. Ours is macro precision on a client's test data over the
classes that are in them: of the examples that its model calls c, the share that are c; the mean
over those classes c of the client that are predicted at all, 0 where none is. ``precision_any`` is
scikit-learn's: over all classes that occur or are predicted, 0 for one that is never right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from coterie.clustering import cut, groups_of, layer_similarities
from coterie.methods import ACFL
from papers import acfl_claims as claims
from papers import acfl_figures as figures
from papers.acfl_served import Served, precision
from papers.comparing import method_of
from papers.numbers import short
from papers.running import rounds_of, world_of
from papers.study import Resources, Study
from papers.tally import Tally

# -- figures 3 and 4
# -------------------------------------------------------------------------------------------------------


def by_epochs(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    epochs: Sequence[int],
    threshold: float,
    seed: int,
) -> dict[str, Any]:
    """The cosines of clients' weights after each of these numbers of epochs alone: layer -> epochs -> ``(n, n)``.

    ``clients``: whose they are, in order, which is by true groups; ``truth``: these groups.
    ``groups``: epochs -> those that ACFL makes of the dense layers at this threshold. ``added``,
    ``far`` and ``right``: see :func:`moved`; ``greatest``: the share of each client's most frequent
    class, which it has right by saying nothing else. One training with checkpoints, as in the
    paper: after one epoch it has the very weights of ACFL's own exchange.
    """
    world = world_of(on, scenario, training, seed)
    assert world.truth is not None
    order = [client for group in world.truth for client in group]
    served = Served(world, seed)
    layout = served.layout
    last = slice(*layout.columns[layout.dense[-1]])
    start = served.federation.draw(0)[last]
    found: dict[str, dict[str, Any]] = {layer: {} for layer in layout.columns}
    groups: dict[str, Any] = {}
    more: dict[str, dict[str, Any]] = {"added": {}, "far": {}, "right": {}}
    for done in rounds_of(
        ACFL(cluster=False, mixing=1.0), world, on, max(epochs), seed
    ):  # λ = 1: everybody alone
        if done.number not in epochs:
            continue
        weights = done.assignment.models[[done.assignment.row[client] for client in order]]
        similar = layer_similarities(weights, layout.columns)
        for layer in found:
            found[layer][str(done.number)] = shortened(similar[layer])
        dense = layer_similarities(weights, {name: layout.columns[name] for name in layout.dense})[
            "all"
        ]
        labels = cut(1 - dense, linkage="average", threshold=1 - threshold)
        groups[str(done.number)] = [[order[i] for i in group] for group in groups_of(labels)]
        for name, value in moved(weights[:, last], start).items():
            more[name][str(done.number)] = value
        more["right"][str(done.number)] = [
            short(served.right(done.assignment, client)) for client in order
        ]
    shares = [
        world.clients[client].train.targets.bincount() / len(world.clients[client].train)
        for client in order
    ]
    truth = [list(group) for group in world.truth]
    known = {
        "layers": found,
        "dense": list(layout.dense),
        "clients": order,
        "truth": truth,
        "groups": groups,
    }
    return {**known, **more, "greatest": [short(float(share.max())) for share in shares]}


def shortened(matrix: np.ndarray) -> list[list[float]]:
    """The rows of a matrix, in few digits."""
    return [[short(value) for value in line] for line in matrix.tolist()]


def moved(weights: Tensor, start: Tensor) -> dict[str, Any]:
    """What training added to clients' weights ``(n, d)`` of a layer, which began as ``start`` ``(d,)``.

    ``added``: ``(n, n)`` cosines of it, for weights are alike by their common start alone; ``far``:
    its norm over that of the start, the mean over clients.

    >>> import torch
    >>> moved(torch.tensor([[3.0, 4.0], [4.0, 4.0]]), torch.tensor([3.0, 4.0]) - torch.tensor([0.0, 0.5]))
    {'added': [[1.0, 0.4472], [0.4472, 1.0]], 'far': 0.1755}
    """
    added = weights - start
    cosines = layer_similarities(added, {"last": (0, added.shape[1])})["last"]
    return {
        "added": shortened(cosines),
        "far": short(float(added.norm(dim=1).mean() / start.norm())),
    }


# -- figures 5 to 7
# --------------------------------------------------------------------------------------------------------


def by_mixing(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    method: Mapping[str, Any],
    rounds: int,
    every: int,
    target: float,
    seed: int,
) -> dict[str, Any]:
    """What is found of a method (see :meth:`Tally.found`); ``validation``: the mean over clients of the loss on their
    validation data, in the rounds tested, and ``validation_end`` in the last; ``precision`` and
    ``precision_any`` at the end.
    """
    world = world_of(on, scenario, training, seed)
    tally, served, validation = Tally(world, target), Served(world, seed), []
    for done in rounds_of(method_of(method), world, on, rounds, seed, every=every):
        tally.add(done)
        if done.scores:
            validation.append(short(float(np.mean(list(served.losses(done.assignment).values())))))
    assert tally.last
    said = served.predicted(tally.last.assignment)
    each = [
        precision(called, world.clients[client].test.targets) for client, called in said.items()
    ]
    own, any_ = np.array(each).mean(0).tolist()
    scores = {"precision": short(own), "precision_any": short(any_)}
    return {**tally.found(), "validation": validation, "validation_end": validation[-1], **scores}


# The gains, in points of test accuracy, are "on our respective experiments": of two tasks first.
STUDIES = (
    Study(
        name="acfl/fig3",
        where="figure 3",
        what="Cosines of clients' weights by layer and epochs of pre-training",
        measure=by_epochs,
        claims=claims.of_layers,
        figure=figures.heat_maps,
        table=claims.table_of_layers,
    ),
    Study(
        name="acfl/fig4",
        where="figure 4",
        what="Cosines of pairs of clients' dense layers by epochs of pre-training",
        measure=by_epochs,
        claims=claims.of_pairs,
        figure=figures.pairs,
        table=claims.table_of_pairs,
        rows_of="acfl/fig3",
    ),
    Study(
        name="acfl/two-tasks",
        where="figures 5-7, two tasks",
        what="Two classes a client: by λ, with and without clustering",
        measure=by_mixing,
        claims=partial(claims.of_mixing, gain=12, fedavg_precise=True),
        figure=figures.by_mixing,
        table=claims.table_of_mixing,
    ),
    Study(
        name="acfl/three-tasks",
        where="figures 5-7, three tasks",
        what="Three classes of its group's five a client: by λ, with and without clustering",
        measure=by_mixing,
        claims=partial(claims.of_mixing, gain=11, fedavg_precise=False),
        figure=figures.by_mixing,
        table=claims.table_of_mixing,
    ),
)
