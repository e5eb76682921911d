"""ACFL's figures: weights by epochs, models as they are served, precision, and verdicts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score
from studied import ALONE, holds

from coterie.boundary import Boundary
from coterie.engines.rounds import setup
from coterie.methods import ACFL
from papers import STUDIES
from papers.acfl import by_epochs
from papers.acfl_claims import oscillation
from papers.acfl_served import Served, precision
from papers.running import rounds_of, world_of
from papers.study import Row

SCENARIO = {
    "name": "digits/class-groups",
    "clients": 6,
    "groups": 3,
    "classes_per_group": 2,
    "train": 0.6,
    "validation": 0.2,
}
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
    by_hand = (
        -served.outputs(row, data).log_softmax(-1)[torch.arange(len(data)), data.targets].mean()
    )
    assert losses[2] == pytest.approx(float(by_hand))


def test_after_one_epoch_weights_are_those_of_acfls_own_exchange() -> None:
    found = by_epochs(
        ALONE,
        problem="",
        scenario=SCENARIO,
        training=TRAINING,
        epochs=[1, 3],
        threshold=0.9,
        seed=3,
    )
    first = next(
        rounds_of(ACFL(pretrain_epochs=1), world_of(ALONE, SCENARIO, TRAINING, 3), ALONE, 1, 3)
    )
    note = next(note for note in first.notes if note.similarity)
    order = [list(note.heard).index(client) for client in found["clients"]]
    assert list(found["layers"]) == ["fc1", "fc2"]
    for layer in ("fc1", "fc2"):
        theirs = note.similarity[layer].numpy()[np.ix_(order, order)]
        assert np.allclose(found["layers"][layer]["1"], theirs, atol=1e-3)
    assert sorted(map(sorted, found["groups"]["1"])) == sorted(map(sorted, first.assignment.groups))
    assert np.array(found["layers"]["fc2"]["3"]).min() < np.array(found["layers"]["fc2"]["1"]).min()


def test_added_is_without_the_common_start_and_right_counts_training_data() -> None:
    found = by_epochs(
        ALONE, problem="", scenario=SCENARIO, training=TRAINING, epochs=[1], threshold=0.9, seed=3
    )
    alone = next(
        rounds_of(
            ACFL(cluster=False, mixing=1.0), world_of(ALONE, SCENARIO, TRAINING, 3), ALONE, 1, 3
        )
    ).assignment
    world = world_of(ALONE, SCENARIO, TRAINING, 3)
    served = Served(world, 3)
    start = (
        setup(ACFL(), world, 3, Boundary())[1]
        .draw(0)
        .flatten()[slice(*served.layout.columns["fc2"])]
    )
    first, second = (
        alone.models[alone.row[client]][slice(*served.layout.columns["fc2"])] - start
        for client in found["clients"][:2]
    )
    assert found["added"]["1"][0][1] == pytest.approx(
        float(torch.cosine_similarity(first, second, dim=0)), abs=1e-3
    )
    data = world.clients[found["clients"][0]].train
    called = served.outputs(alone.models[alone.row[found["clients"][0]]], data).argmax(-1)
    assert found["right"]["1"][0] == pytest.approx(
        float((called == data.targets).float().mean()), abs=1e-3
    )
    assert found["greatest"][0] == pytest.approx(
        float(data.targets.bincount().max()) / len(data), abs=1e-3
    )


def test_inputs_of_any_images_may_be_standardized_for_a_study() -> None:
    plain, scaled = (
        world_of(ALONE, {**SCENARIO, **more}, TRAINING, 3)
        for more in ({}, {"standardize": "pooled"})
    )
    inputs = torch.cat([data.train.inputs[data.train.index] for data in scaled.clients.values()])
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-4)
    assert float(inputs.std()) == pytest.approx(1, abs=1e-2)
    assert torch.equal(plain.clients[0].train.targets, scaled.clients[0].train.targets)


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


# -- verdicts by hand
# ------------------------------------------------------------------------------------------------------


def square(same: float, across: float) -> list[list[float]]:
    """Of two pairs of clients."""
    own, other = np.array([[1, same], [same, 1]]), np.full((2, 2), across)
    return np.block([[own, other], [other, own]]).tolist()


PAIRS, APART, JOINT = [[0, 1], [2, 3]], [[0], [1], [2], [3]], [[0, 1, 2, 3]]


def weights(
    problem: str, conv: float, dense: Sequence[float], groups: Sequence[Any], data: str = "cifar10"
) -> Row:
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
        "added": {"2": square(0.99, dense[0]), "10": square(0.99, dense[1])},
        "far": {"2": 0.5, "10": 1.0},
        "right": {"2": [0.7] * 4, "10": [0.9] * 4},
        "greatest": [0.6] * 4,
    }
    cell = {
        "seed": 0,
        "problem": problem,
        "epochs": [2, 10],
        "threshold": 0.9,
        "scenario": {"name": f"{data}/class-groups"},
    }
    return {"cell": cell, "found": found, "seconds": 0.0}


def test_dense_layers_tell_apart_and_convolutions_do_not() -> None:
    rows = [
        weights("two alike", 0.98, (0.8, 0.7), (PAIRS, PAIRS)),
        weights("three, two shared", 0.97, (0.85, 0.7), (PAIRS, PAIRS)),
        weights("three chained", 0.97, (0.87, 0.8), (PAIRS, APART)),
    ]
    assert holds("acfl/fig3", rows) == [True] * 5
    rows = [
        weights(
            "two alike", 0.94, (0.8, 0.7), (PAIRS, PAIRS)
        ),  # a gap of 0.05 in a convolution, of 0.19 in the dense layer
        weights(
            "three, two shared", 0.97, (0.95, 0.7), (JOINT, PAIRS)
        ),  # of 0.04 in the dense layer, and one cluster
        weights("three chained", 0.97, (0.8, 0.8), (PAIRS, PAIRS)),
    ]
    assert holds("acfl/fig3", rows) == [False] * 5


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [(PAIRS, APART, True), (PAIRS, PAIRS, False), (APART, JOINT, False)],
)
def test_only_clusters_that_were_there_lose_their_structure(
    early: Any, late: Any, expected: bool
) -> None:
    clear = [
        weights(problem, 0.98, (0.8, 0.7), (PAIRS, PAIRS))
        for problem in ("two alike", "three, two shared")
    ]
    chained = weights("three chained", 0.98, (0.8, 0.7), (early, late))
    assert holds("acfl/fig3", [*clear, chained]) == [True] * 4 + [expected]
    chained["found"]["groups"]["2"] = [[0, 2], [1, 3]]  # below zero
    chained["found"]["groups"]["10"] = [[0, 2], [1, 3]]
    assert holds("acfl/fig3", [*clear, chained])[-1] is False


def test_clusters_on_digits_do_not_count() -> None:
    for data, expected in (("cifar10", 0), ("digits", 1)):
        rows = [
            weights(problem, 0.98, (0.8, 0.7), (PAIRS, PAIRS), data)
            for problem in ("two alike", "three, two shared", "three chained")
        ]
        assert [bool(claim.aside) for claim in STUDIES["acfl/fig3"].claims(rows)].count(
            True
        ) == expected


def test_pairs_hold_where_all_rise_in_one_order() -> None:
    rising = weights("two alike", 0.9, (0.5, 0.6), (PAIRS, PAIRS))
    assert holds("acfl/fig4", [rising]) == [True] * 4
    assert [bool(claim.aside) for claim in STUDIES["acfl/fig4"].claims([rising])] == [
        False,
        False,
        True,
        True,
    ]
    falling = weights("two alike", 0.9, (0.5, 0.999), (PAIRS, PAIRS))
    falling["found"]["layers"]["fc"]["2"] = square(0.9999, 0.9995)  # others become the more alike
    assert holds("acfl/fig4", [falling]) == [
        False,
        False,
        True,
        False,
    ]  # what was added rises, in another order
    table = STUDIES["acfl/fig4"].table
    assert table
    assert table([rising]).rows[-1] == (
        "two alike",
        "10",
        "0.990",
        "0.600",
        "0.990",
        "0.600",
        "1.00",
        "0.900 (0.600)",
    )


def mixed(
    accuracy: float, curve: Sequence[float], precise: float, seed: int = 0, **how: Any
) -> Row:
    found = {
        "accuracy": accuracy,
        "validation": list(curve),
        "validation_end": curve[-1],
        "precision": precise,
    }
    how = {"name": "acfl", "label": str(how), **how}
    return {"cell": {"seed": seed, "method": how}, "found": found, "seconds": 0.0}


CALM, WILD = (1.0, 0.6, 0.5, 0.5), (2.0, 1.0, 0.6, 1.0)


def mixing(
    clusters: Sequence[float],
    joint: Sequence[float],
    trained: Sequence[float],
    seed: int = 0,
    curves: Any = (CALM, WILD),
    precise: float = 0.95,
) -> list[Row]:
    """Accuracies at λ = 0, 0.25 and 0.5: of clusters, of one model, and of one model with the same pre-training.

    curves: of clusters, and of one model. precise: FedAvg, which is one model at λ = 0.
    """
    rows = []
    for place, share in enumerate((0.0, 0.25, 0.5)[: len(clusters)]):
        rows += [
            mixed(
                joint[place],
                curves[1],
                0.85 if place else precise,
                seed,
                cluster=False,
                mixing=share,
            ),
            mixed(clusters[place], curves[0], clusters[place], seed, mixing=share),
            mixed(trained[place], curves[0], 0.99, seed, mixing=share, threshold=-1.0),
        ]
    return [
        *rows,
        mixed(0.1, CALM, 0.99, seed, mixing=0.5, similarity="updates"),
    ]  # none of the paper's


def seeds(
    clusters: Sequence[float], joint: Sequence[float], trained: Sequence[float], *apart: float
) -> list[Row]:
    """As many seeds, in each of which clusters are so much better."""
    return [
        each
        for seed, more in enumerate(apart)
        for each in mixing([one + more for one in clusters], joint, trained, seed)
    ]


GOOD = ((0.87, 0.88, 0.88), (0.60, 0.78, 0.80), (0.66, 0.76, 0.83))


def test_mixing_holds_where_clusters_are_better_and_fedavg_is_worst_but_precise() -> None:
    rows = seeds(*GOOD, 0.0, 0.02, -0.02)  # +12.7 points on average, and +15
    assert holds("acfl/two-tasks", rows) == [True] * 7
    assert holds("acfl/three-tasks", rows) == [True] * 6


def test_mixing_does_not_hold_where_clusters_do_not_help() -> None:
    worse = (0.84, 0.90, 0.86), (0.85, 0.80, 0.86), (0.86, 0.82, 0.87)
    rows = [
        each for seed in range(3) for each in mixing(*worse, seed, curves=(WILD, CALM), precise=0.8)
    ]
    assert holds("acfl/two-tasks", rows) == [False] * 7
    assert holds("acfl/three-tasks", rows) == [False] * 6


@pytest.mark.parametrize(
    ("apart", "trained", "expected"),
    [
        ((0.0, 0.02, -0.02), (0.66, 0.76, 0.83), True),
        ((0.0, 0.02, -0.02), (0.60, 0.75, 0.88), False),  # +13 points, but none at the last λ
        ((0.0, 0.0, 0.0), (0.80, 0.80, 0.83), False),  # +6.7 points, and surely less than 12
        ((0.0, 0.025, -0.025), (0.80, 0.80, 0.83), True),  # between 0.5 and 12.9
        ((0.0,), (0.66, 0.76, 0.83), None),  # one seed
        ((0.0, 0.3, -0.3), (0.66, 0.76, 0.83), None),  # the interval has zero in it
    ],
)
def test_a_gain_is_at_every_share_and_on_average_what_is_printed(
    apart: Sequence[float], trained: Sequence[float], expected: bool | None
) -> None:
    found = holds("acfl/two-tasks", seeds(GOOD[0], GOOD[1], trained, *apart))[0]
    assert found is expected


def test_of_two_baselines_that_with_the_same_pre_training_counts() -> None:
    claims = STUDIES["acfl/two-tasks"].claims(mixing(*GOOD))
    assert [claim.what for claim in claims if claim.aside] == [
        "the same, beside one model without pre-training"
    ]


def test_whether_a_share_stands_out_takes_two_of_each_kind() -> None:
    one_left = [
        each[:2] for each in GOOD
    ]  # λ = 0.25 alone, of those that are mixed without clusters
    assert holds("acfl/two-tasks", mixing(*GOOD))[5] is True
    assert holds("acfl/two-tasks", mixing(*one_left))[5] is None
    assert holds("acfl/two-tasks", mixing((0.80, 0.88), *one_left[1:]))[5] is False


def test_oscillation_is_beside_the_level_of_the_loss() -> None:
    """A curve at a tenth of the height oscillates as much."""
    assert oscillation(mixed(0.5, WILD, 0.5)) == pytest.approx(0.5)
    assert oscillation(mixed(0.5, [value / 10 for value in WILD], 0.5)) == pytest.approx(0.5)
    assert oscillation(mixed(0.5, CALM, 0.5)) == 0.0
