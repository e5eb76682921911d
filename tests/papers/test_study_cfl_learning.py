"""CFL's figures 8 and 9: what the published code's bugs do, what is kept of a run, the chains, and verdicts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from studied import ALONE, holds

from coterie.clustering.bipartition import bipartition
from coterie.core import Federation, Replies
from coterie.engines import rounds as inprocess
from coterie.methods import CFL
from papers import cfl_learning
from papers.cfl_ablations import PublishedCFL
from papers.cfl_learning_seen import WATCH, SeenCFL
from papers.cfl_learning_words import chains, walk, world_of_chains
from papers.running import world_of
from papers.study import Row

SCENARIO = {"name": "digits/label-permutation", "clients": 8}
TRAINING = {"lr": 0.1, "batch": 20, "epochs": 1}

# -- ablations -------------------------------------------------------------------------------------------------------------


def test_without_a_bug_the_published_code_is_cfl_and_watching_changes_nothing() -> None:
    world = world_of(ALONE, SCENARIO, TRAINING, 1)
    runs = [
        [*inprocess.rounds(method, world, rounds=5, seed=1, workers=1)]
        for method in (CFL(split_rounds=(2, 3, 5)), SeenCFL(split_rounds=(2, 3, 5)), PublishedCFL(split_rounds=(2, 3, 5)))
    ]
    for plain, *others in zip(*runs, strict=True):
        for other in others:
            assert other.assignment.groups == plain.assignment.groups
            assert other.scores == plain.scores
    assert len(runs[0][-1].assignment.groups) == 4
    watched = [note for note in runs[1][-1].notes if note.kind == WATCH]
    assert sorted(note.clients for note in watched) == sorted(runs[0][-2].assignment.groups)


def start(**bugs: Any) -> tuple[PublishedCFL, Any]:
    method = PublishedCFL(split_rounds=(1,), **bugs)
    clients = (10, 11, 12, 13, 14, 15)
    return method, method.init(Federation(clients=clients, draw=lambda i: torch.zeros(2), columns={"all": (0, 2)}))


def blocks(*sizes: int) -> np.ndarray:
    """Cosines of 0.9 within blocks of clients and -0.5 across."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    return np.where(np.eye(len(of)), 1.0, np.where(of[:, None] == of, 0.9, -0.5))


def test_ids_mixed_up_are_right_for_the_first_split_alone() -> None:
    whole = (tuple(range(6)),)
    right, (method, state) = PublishedCFL(), start(ids="mixed up")
    first = method.split(whole, blocks(2, 4))
    assert first == right.split(whole, blocks(2, 4)) == ((0, 1), (2, 3, 4, 5))
    apart = blocks(2, 2, 2)
    assert right.split(first, apart) == ((0, 1), (2, 3), (4, 5))
    # The sides are positions 0, 1 and 2, 3 of the group (2, 3, 4, 5), and taken for clients: 4 and 5 are named by none.
    mixed = method.split(first, apart)
    assert mixed == ((0, 1), (0, 1), (2, 3))
    served = method.assignment(type(state)(**{**vars(state), "groups": mixed}))
    assert served.groups == ((10, 11), (12, 13), (14, 15))


def test_who_is_named_twice_moves_twice_and_who_by_none_stands_still() -> None:
    method, state = start()
    state = type(state)(**{**vars(state), "groups": ((0, 1), (0, 1), (2, 3)), "round": 5})
    sent = torch.tensor([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2 + [[5.0, 5.0]] * 2)
    after = method.step(state, Replies(clients=state.clients, examples=np.ones(6), updates=sent))
    assert after.models.tolist() == [[2.0, 0.0]] * 2 + [[0.0, 1.0]] * 2 + [[0.0, 0.0]] * 2
    with pytest.raises(ValueError, match="hears every client"):
        method.step(state, Replies(clients=state.clients[:3], examples=np.ones(3), updates=sent[:3]))


def test_complete_linkage_makes_another_cut_than_algorithm_1() -> None:
    """A chain of clients, each like the next, and one that is a little like all of them, and most like nobody."""
    cosines = np.array(
        [
            [1.0, 0.9, 0.0, 0.0, 0.3],
            [0.9, 1.0, 0.8, 0.0, 0.3],
            [0.0, 0.8, 1.0, 0.7, 0.3],
            [0.0, 0.0, 0.7, 1.0, 0.3],
            [0.3, 0.3, 0.3, 0.3, 1.0],
        ]
    )
    whole = (tuple(range(5)),)
    best, other = (PublishedCFL(linkage=linkage).split(whole, cosines) for linkage in ("single", "complete"))
    assert best == ((0, 1, 2, 3), (4,))
    assert other == ((0, 1, 4), (2, 3))
    assert bipartition(cosines, "complete").cross > bipartition(cosines, "single").cross


# -- what is kept ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "cfl", "cfl-published"])
def test_a_course_tells_scores_by_true_group_and_cosines_by_group_found(name: str) -> None:
    how = {"label": "x", "name": name} | ({"split_rounds": [2]} if name != "fedavg" else {})
    settings = {"scenario": SCENARIO, "training": TRAINING, "rounds": 3, "every": 1, "target": 0.5}
    found = cfl_learning.learn(ALONE, problem="digits", method=how, seed=0, **settings)
    assert found["score"] == "accuracy"
    assert np.mean([curve[-1] for curve in found["by_group"]]) == pytest.approx(found["accuracy"], abs=1e-3)
    assert np.mean(found["clients"]) == pytest.approx(found["accuracy"], abs=1e-3)
    whole = found["leaves"][0]
    assert whole["clients"] == list(range(8))
    assert whole["rounds"] == ([1, 2, 3] if name == "fedavg" else [1, 2])
    assert all(len(leaf["rounds"]) == len(leaf["gap"]) == len(leaf["least"]) == len(leaf["mean"]) for leaf in found["leaves"])
    assert all(least <= mean for leaf in found["leaves"] for least, mean in zip(leaf["least"], leaf["mean"], strict=True))


def test_chains_are_walked_as_they_say() -> None:
    rng = np.random.default_rng(0)
    chain = chains(2, 3, 0.5, rng)[0]
    text = walk(chain, 4000, 6, rng)
    counts = np.zeros((3, 3))
    np.add.at(counts, (text[:, :-1], text[:, 1:]), 1)
    assert np.allclose(counts / counts.sum(1, keepdims=True), chain, atol=0.03)


def test_a_world_of_chains_has_a_topic_per_client_and_one_word_ahead() -> None:
    shape = {"clients": 8, "topics": 4, "words": 5, "narrow": 0.3, "length": 6, "sequences": 10}
    world = world_of_chains(shape, TRAINING, seed=2)
    assert sorted(len(group) for group in world.truth or ()) == [2, 2, 2, 2]
    data = world.clients[3]
    assert (len(data.train), len(data.test)) == (8, 2)
    x, y = data.train.batch(torch.arange(8))
    assert x[:, 1:].equal(y[:, :-1])
    assert "perplexity" in world.objective.named


# -- verdicts --------------------------------------------------------------------------------------------------------------

SPLIT = {"label": "CFL, split at 10, 20", "name": "cfl", "split_rounds": [10, 20]}
JOINT = {"label": "FedAvg", "name": "fedavg"}


def row(method: dict[str, Any], **found: Any) -> Row:
    return {"cell": {"seed": 0, "method": method}, "found": {"tested": [5, 10, 15, 30], **found}, "seconds": 0.0}


def leaf(clients: list[int], rounds: list[int], gap: list[float], mean: list[float]) -> dict[str, Any]:
    return {"clients": clients, "rounds": rounds, "gap": gap, "mean": mean}


def permuted(
    end: float, joint: tuple[float, float], soon: float, ari: float, gaps: tuple[float, float], mean: float
) -> list[Row]:
    leaves = [leaf([0, 1], [5, 10], [-1.0, gaps[0]], [0.0, 0.0]), leaf([0], [15, 30], [1.0, gaps[1]], [0.0, mean])]
    cfl = row(SPLIT, accuracy=end, ari=ari, by_group=[[0.2, 0.2, 0.2, end], [0.2, 0.3, soon, end]], leaves=leaves)
    return [row(JOINT, accuracy=joint[1], scores=[0.1, *joint, joint[1]]), cfl]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (permuted(0.6, (0.2, 0.22), 0.45, 1.0, (0.3, -0.1), 0.05), [True] * 7),
        (permuted(0.4, (0.2, 0.3), 0.3, 0.8, (-0.1, 0.1), -0.2), [False] * 7),
    ],
)
def test_permutations(rows: Sequence[Row], expected: list[bool]) -> None:
    assert holds("cfl/fig8", rows) == expected


def test_ablations_and_criteria_are_told_where_they_were_run() -> None:
    rows = permuted(0.6, (0.2, 0.22), 0.45, 1.0, (0.3, -0.1), 0.05)
    more = [
        row({"label": "CFL, by criteria", "name": "cfl"}, accuracy=0.6, ari=0.9),
        row({"label": "CFL, complete linkage", "name": "cfl-published"}, accuracy=0.62, ari=1.0),
        row({"label": "CFL, ids mixed up", "name": "cfl-published"}, accuracy=0.3, ari=0.1),
    ]
    assert holds("cfl/fig8", rows + more)[7:] == [False, False, True]


def spoken(end: float, joint: tuple[float, float], curve: list[float], worst: float, ari: float) -> list[Row]:
    cfl = row(SPLIT, perplexity=end, scores=curve, clients=[end, worst], ari=ari)
    cfl["found"]["tested"] = [5, 15, 19, 25, 30]
    return [row(JOINT, perplexity=joint[1], scores=[90.0, *joint, joint[1]]), cfl]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (spoken(36, (43, 42), [43, 41, 41, 38, 36], 41, 1.0), [True] * 5),
        (spoken(40, (50, 42), [43, 41, 40, 40.5, 40], 43, 0.9), [False] * 5),
    ],
)
def test_words(rows: Sequence[Row], expected: list[bool]) -> None:
    assert holds("cfl/fig9", rows) == expected
