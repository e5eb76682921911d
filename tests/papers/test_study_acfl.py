"""ACFL's figures: weights by epochs, models as they are served, precision, and verdicts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score
from studied import ALONE, holds

from coterie.methods import ACFL
from papers.acfl import by_epochs
from papers.acfl_served import Served, precision
from papers.running import rounds_of, world_of
from papers.study import Row

SCENARIO = {"name": "digits/class-groups", "clients": 6, "groups": 3, "classes_per_group": 2, "train": 0.6, "validation": 0.2}
TRAINING = {"lr": 0.1, "batch": 20, "epochs": 1}


def test_served_models_put_out_what_the_engine_tests() -> None:
    world = world_of(ALONE, SCENARIO, TRAINING, 3)
    *_, last = rounds_of(ACFL(layers=("fc2",), mixing=0.5, pretrain_epochs=3), world, ALONE, 3, 3)
    assert last.scores
    served = Served(world, 3)
    for client, called in served.predicted(last.assignment).items():
        right = float((called == world.clients[client].test.targets).float().mean())
        assert right == pytest.approx(last.scores[client]["accuracy"])
    row = last.assignment.models[last.assignment.row[2]]
    losses = served.losses(last.assignment)
    assert sorted(losses) == sorted(world.clients)
    data = world.clients[2].validation
    by_hand = -served.outputs(row, data).log_softmax(-1)[torch.arange(len(data)), data.targets].mean()
    assert losses[2] == pytest.approx(float(by_hand))


def test_after_one_epoch_weights_are_those_of_acfls_own_exchange() -> None:
    found = by_epochs(ALONE, problem="", scenario=SCENARIO, training=TRAINING, epochs=[1, 3], threshold=0.9, seed=3)
    first = next(rounds_of(ACFL(pretrain_epochs=1), world_of(ALONE, SCENARIO, TRAINING, 3), ALONE, 1, 3))
    note = next(note for note in first.notes if note.similarity)
    order = [list(note.heard).index(client) for client in found["clients"]]
    assert list(found["layers"]) == ["fc1", "fc2"]
    for layer in ("fc1", "fc2"):
        theirs = note.similarity[layer].numpy()[np.ix_(order, order)]
        assert np.allclose(found["layers"][layer]["1"], theirs, atol=1e-3)
    assert sorted(map(sorted, found["groups"]["1"])) == sorted(map(sorted, first.assignment.groups))
    assert np.array(found["layers"]["fc2"]["3"]).min() < np.array(found["layers"]["fc2"]["1"]).min()


def test_precision_agrees_with_scikit_learn() -> None:
    gen = torch.Generator().manual_seed(1)
    for _ in range(20):
        called, targets = (torch.randint(0, high, (30,), generator=gen) for high in (6, 3))
        own = [c for c in targets.unique().tolist() if c in called]
        how: dict[str, Any] = {"average": "macro", "zero_division": 0}
        arrays = targets.numpy(), called.numpy()
        expected = precision_score(*arrays, labels=own, **how), precision_score(*arrays, **how)
        assert precision(called, targets) == pytest.approx(expected)
    nowhere = torch.tensor([4, 4])
    assert precision(nowhere, torch.tensor([0, 1])) == (0.0, 0.0)


# -- verdicts by hand ------------------------------------------------------------------------------------------------------


def square(same: float, across: float) -> list[list[float]]:
    """Of two pairs of clients."""
    own, other = np.array([[1, same], [same, 1]]), np.full((2, 2), across)
    return np.block([[own, other], [other, own]]).tolist()


PAIRS, APART, JOINT = [[0, 1], [2, 3]], [[0], [1], [2], [3]], [[0, 1, 2, 3]]


def weights(problem: str, conv: float, dense: Sequence[float], groups: Sequence[Any]) -> Row:
    """Pairs of one group are at 0.99; conv, dense: the cosine of others, the dense ones after 2 and after 10 epochs."""
    found = {
        "layers": {
            "conv1": {"2": square(0.99, conv), "10": square(0.99, conv)},
            "fc": {"2": square(0.99, dense[0]), "10": square(0.99, dense[1])},
        },
        "dense": ["fc"],
        "clients": [0, 1, 2, 3],
        "truth": PAIRS,
        "groups": {"2": groups[0], "10": groups[1]},
    }
    return {"cell": {"seed": 0, "problem": problem, "epochs": [2, 10], "threshold": 0.9}, "found": found, "seconds": 0.0}


def test_dense_layers_tell_apart_and_convolutions_do_not() -> None:
    rows = [
        weights("two alike", 0.98, (0.8, 0.7), (PAIRS, PAIRS)),
        weights("three, two shared", 0.97, (0.85, 0.7), (PAIRS, PAIRS)),
        weights("three chained", 0.97, (0.87, 0.8), (PAIRS, APART)),
    ]
    assert holds("acfl/fig3", rows) == [True] * 5
    rows = [
        weights("two alike", 0.9, (0.8, 0.7), (PAIRS, PAIRS)),  # a gap of 0.09 in a convolution
        weights("three, two shared", 0.97, (0.95, 0.7), (JOINT, PAIRS)),  # of 0.04 in the dense layer, and one cluster
        weights("three chained", 0.97, (0.8, 0.8), (PAIRS, PAIRS)),
    ]
    assert holds("acfl/fig3", rows) == [False] * 5


def test_pairs_hold_where_all_rise_in_one_order() -> None:
    rising = weights("two alike", 0.9, (0.5, 0.6), (PAIRS, PAIRS))
    assert holds("acfl/fig4", [rising]) == [True, True]
    falling = weights("two alike", 0.9, (0.5, 0.999), (PAIRS, PAIRS))
    falling["found"]["layers"]["fc"]["2"] = square(0.9999, 0.9995)  # others become the more alike
    assert holds("acfl/fig4", [falling]) == [False, False]


def mixed(label: str, accuracy: float, curve: Sequence[float], precise: float, **how: Any) -> Row:
    found = {"accuracy": accuracy, "validation": list(curve), "validation_end": curve[-1], "precision": precise}
    return {"cell": {"seed": 0, "method": {"name": "acfl", "label": label, **how}}, "found": found, "seconds": 0.0}


CALM, WILD = (1.0, 0.6, 0.5, 0.5), (2.0, 1.0, 0.6, 1.0)


def test_mixing_holds_where_clusters_are_better_and_fedavg_is_worst_but_precise() -> None:
    rows = [
        mixed("FedAvg", 0.70, WILD, 0.95, cluster=False, mixing=0.0),
        mixed("no clusters, λ = 0.5", 0.80, WILD, 0.85, cluster=False, mixing=0.5),
        mixed("ACFL, λ = 0", 0.86, CALM, 0.86, mixing=0.0),
        mixed("ACFL, λ = 0.5", 0.88, CALM, 0.88, mixing=0.5),
        mixed("pre-trained, λ = 0", 0.79, CALM, 0.99, mixing=0.0, threshold=-1.0),
        mixed("pre-trained, λ = 0.5", 0.83, CALM, 0.99, mixing=0.5, threshold=-1.0),
        mixed("on updates", 0.10, CALM, 0.99, mixing=0.5, similarity="updates"),  # none of the paper's
    ]
    assert holds("acfl/two-tasks", rows) == [True] * 7  # +12 points on average, and 6
    assert holds("acfl/three-tasks", rows) == [True] * 6


def test_mixing_does_not_hold_where_clusters_do_not_help() -> None:
    rows = [
        mixed("FedAvg", 0.85, CALM, 0.8, cluster=False, mixing=0.0),
        mixed("no clusters, λ = 0.5", 0.80, CALM, 0.85, cluster=False, mixing=0.5),
        mixed("ACFL, λ = 0", 0.90, WILD, 0.86, mixing=0.0),
        mixed("ACFL, λ = 0.5", 0.86, WILD, 0.88, mixing=0.5),
        mixed("pre-trained, λ = 0", 0.86, CALM, 0.8, mixing=0.0, threshold=-1.0),
        mixed("pre-trained, λ = 0.5", 0.82, CALM, 0.8, mixing=0.5, threshold=-1.0),
    ]
    assert holds("acfl/two-tasks", rows) == [False] * 7  # +5.5 points, less than half of 12, and +4
    assert holds("acfl/three-tasks", rows) == [True, False, False, False, False, False]  # 5.5 is half of 11
