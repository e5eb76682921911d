"""FL+HC against its paper: one clustering exchange, strict thresholds, client fractions, and FedAvg at its limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.core import Cohort, as_groups
from coterie.methods import FLHC, FedAvg
from coterie.settings import SettingError
from worlds import THREE, TRUTH, Pull, grouped, last, play


def line(*places: float) -> Pull:
    """Clients 10, 20, ... whose first update from 0 moves the first parameter to their place."""
    return Pull(
        targets={10 * (i + 1): torch.tensor([p, 0.0]) for i, p in enumerate(places)}, rate=1.0
    )


def test_the_clustering_exchange_asks_all_and_moves_nothing() -> None:
    method = FLHC(warmup=4, fraction=0.25, threshold=1.0)
    history = list(play(method, grouped(THREE), 8))
    before, clustering, after = history[3:6]
    assert [p.plan.ends_round for p in history] == [True, True, True, True, False, True, True, True]
    assert len(before.plan.tasks) == 3  # a quarter of 12
    assert len(clustering.plan.tasks) == 12
    for model in clustering.assignment.models:
        assert torch.equal(model, before.assignment.models[0])
    assert clustering.groups == TRUTH
    assert len(after.plan.tasks) == 3  # one of each group of four
    assert {len(set(after.plan.tasks) & set(group)) for group in TRUTH} == {1}
    assert clustering.notes[0].kind == "cluster"
    assert "3 groups" in clustering.notes[0].text


def test_the_first_round_tells_when_the_clients_will_be_clustered() -> None:
    first, second = list(
        play(FLHC(warmup=3, fraction=0.25, groups=3, threshold=None), grouped(THREE), 2)
    )
    assert [(note.kind, note.text) for note in first.notes] == [
        ("keep", "not clustered yet: this is done after round 3 (warmup)")
    ]
    assert not second.notes
    assert not next(iter(play(FLHC(warmup=1), grouped(THREE), 1))).notes


@pytest.mark.parametrize(("threshold", "groups"), [(3.0, 2), (3.001, 1)])
def test_the_threshold_is_strict(threshold: float, groups: int) -> None:
    method = FLHC(warmup=0, threshold=threshold, linkage="single", fraction=1.0)
    assert len(last(method, line(0.0, 3.0), 1).groups) == groups


@pytest.mark.parametrize(("threshold", "groups"), [(4.2426, 2), (4.2427, 1)])
def test_ward_as_scipy_and_scikit_learn_have_it(threshold: float, groups: int) -> None:
    # Two pairs at distance 3: sqrt(2 * 2 * 2 / (2 + 2)) * 3 = 4.24264.
    method = FLHC(warmup=0, threshold=threshold)
    assert len(last(method, line(0.0, 0.0, 3.0, 3.0), 1).groups) == groups


@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
def test_every_metric_and_linkage_finds_the_groups(metric: str, linkage: str) -> None:
    if linkage == "ward" and metric != "l2":
        with pytest.raises(SettingError, match="ward needs metric l2"):
            FLHC(metric=metric, linkage=linkage)
        return
    method = FLHC(metric=metric, linkage=linkage, threshold=None, groups=3, warmup=2)
    assert last(method, grouped(THREE), 4).groups == TRUTH


def test_a_mean_is_renormalised_over_those_who_answered() -> None:
    world = Pull(
        targets={
            1: torch.tensor([8.0, 0.0]),
            2: torch.tensor([2.0, 0.0]),
            3: torch.tensor([100.0, 0.0]),
        },
        examples={1: 10, 2: 30, 3: 1000},
        rate=1.0,
    )
    end = last(FLHC(warmup=5, fraction=1.0), world, 1, silent=lambda e, c: c == 3)
    assert end.assignment.models[0, 0].item() == pytest.approx((10 * 8 + 30 * 2) / 40)


def test_silent_clients_wait_in_a_group_of_their_own_with_the_global_model() -> None:
    method = FLHC(warmup=2, threshold=1.0, fraction=1.0)
    history = list(play(method, grouped(THREE), 6, silent=lambda e, c: e >= 2 and c in (2, 99)))
    assert history[2].groups == as_groups([[17, 31, 40], [3, 5, 50, 51], [8, 19, 29], [2, 99]])
    end = history[-1].assignment
    assert torch.equal(end.models[end.row[2]], history[1].assignment.models[0])


def test_below_the_quorum_a_round_is_one_more_of_fedavg() -> None:
    few = lambda e, c: e < 5 and c > 10  # noqa: E731
    history = list(play(FLHC(warmup=1, threshold=1.0, fraction=1.0), grouped(THREE), 8, silent=few))
    # FedAvg; asked in vain and FedAvg, twice; heard at last; then the clusters' rounds.
    assert [p.plan.ends_round for p in history] == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
        True,
    ]
    assert "not clustered yet: 4 of 12 clients answered" in history[1].notes[0].text
    assert [len(p.groups) for p in history] == [1, 1, 1, 1, 1, 3, 3, 3]


@pytest.mark.parametrize(
    "whole", [{"threshold": math.inf}, {"threshold": None, "groups": 1}, {"warmup": 10**6}]
)
def test_one_cluster_is_fedavg(whole: dict[str, float]) -> None:
    world = grouped(THREE, examples={2: 9, 51: 4}, fresh=False)
    method = FLHC(**{"warmup": 3, "fraction": 1.0, **whole})  # type: ignore[arg-type]
    exchanges = 10 + (method.warmup == 3)  # the clustering exchange is no round
    flhc, fedavg = last(method, world, exchanges).assignment, last(FedAvg(), world, 10).assignment
    assert torch.equal(flhc.models, fedavg.models)


def test_the_warm_up_is_fedavg_with_the_same_clients() -> None:
    world = grouped(THREE)
    flhc = list(play(FLHC(warmup=6, fraction=0.3), world, 6, seed=4))
    fedavg = list(play(FedAvg(fraction=0.3), world, 6, seed=4))
    for ours, theirs in zip(flhc, fedavg, strict=True):
        assert set(ours.plan.tasks) == set(theirs.plan.tasks)
        assert torch.equal(ours.assignment.models, theirs.assignment.models)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"groups": 3}, r"exactly one of FLHC\.threshold and FLHC\.groups must be set"),
        ({"threshold": None}, r"exactly one of FLHC\.threshold and FLHC\.groups must be set"),
        ({"threshold": 0.0}, r"FLHC\.threshold must be > 0"),
        ({"fraction": 1.5}, r"FLHC\.fraction must be > 0 and <= 1, got 1\.5"),
        ({"linkage": "centroid"}, "must be one of single, complete, average, ward"),
    ],
)
def test_contradictions_are_refused_at_birth(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        FLHC(**settings)  # type: ignore[arg-type]


def test_more_groups_than_clients_are_refused_before_the_first_round() -> None:
    with pytest.raises(SettingError, match=r"FLHC\.groups must be at most the 2 clients, got 3"):
        FLHC(threshold=None, groups=3).init(line(0.0, 1.0).federation())


# -- late clients
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{"threshold": 1.0}, {"metric": "cosine", "linkage": "average", "threshold": 0.3},
     {"metric": "l1", "linkage": "complete", "threshold": 4.0}, {"threshold": None, "groups": 3}],
)  # fmt: skip
def test_late_clients_join_the_cluster_of_the_nearest_update(how: dict[str, Any]) -> None:
    # 17 is silent at the clustering, 5 and 29 join five rounds later.
    world, method = grouped(THREE), FLHC(warmup=3, fraction=1.0, **how)
    founders = replace(world, targets={c: t for c, t in world.targets.items() if c not in (5, 29)})
    early = last(method, founders, 9, silent=lambda e, c: c == 17)
    assert (17,) in early.groups
    assert torch.equal(
        early.assignment.models[early.assignment.row[17]], early.state.tree.nodes[0].model
    )
    state = method.admit(early.state, (5, 29))
    assert (5, 17, 29) in method.assignment(state).groups
    after = last(method, world, 2, state=state, first=9)
    assert after.groups == TRUTH
    assert not after.state.walkers


def test_a_late_client_unlike_all_is_a_cluster_of_its_own() -> None:
    world, method = grouped(THREE), FLHC(warmup=3, fraction=1.0, threshold=1.0)
    odd = replace(world, targets={**world.targets, 7: -world.targets[2]})
    end = last(method, world, 6)
    after = last(method, odd, 3, state=method.admit(end.state, (7,)), first=6)
    assert after.groups == as_groups([*TRUTH, (7,)])
    joined = last(method, odd, 30, state=after.state, first=9)
    assert torch.allclose(
        joined.assignment.models[joined.assignment.row[7]], odd.targets[7], atol=0.2
    )


@pytest.mark.parametrize(("threshold", "groups"), [(3.0, 2), (3.001, 1)])
def test_the_threshold_is_as_strict_for_late_clients(threshold: float, groups: int) -> None:
    method = FLHC(warmup=0, threshold=threshold, linkage="single", fraction=1.0)
    end = last(method, line(0.0, 3.0), 3, silent=lambda e, c: c == 20 and e < 2)
    assert len(end.groups) == groups
    assert not end.state.walkers


def test_late_clients_train_with_the_learning_rate_of_the_clustering() -> None:
    world, method = grouped(THREE), FLHC(warmup=3, fraction=1.0, threshold=1.0)
    end = last(method, world, 9)
    state = method.admit(method.retire(end.state, (17,)), (17,))
    plan = method.plan(state, Cohort(present=world.clients, exchange=9, seed=0))
    assert plan.tasks[17].lr_round == 3
    assert torch.equal(plan.models[plan.tasks[17].offered[0]], end.state.tree.nodes[0].model)


def test_nobody_walks_through_a_round_of_the_others() -> None:
    # While one waits, the others' means are what they would be without it.
    world, method = (
        grouped(THREE, examples={2: 9, 51: 4}),
        FLHC(warmup=2, fraction=1.0, threshold=1.0),
    )
    end = last(method, world, 6)
    odd = replace(world, targets={**world.targets, 7: -world.targets[2]})
    with_one = last(method, odd, 1, state=method.admit(end.state, (7,)), first=6).assignment
    without = last(method, world, 1, state=end.state, first=6).assignment
    for client in world.clients:
        assert torch.equal(
            with_one.models[with_one.row[client]], without.models[without.row[client]]
        )


def test_a_group_that_all_have_left_waits_for_them() -> None:
    world, method = grouped(THREE), FLHC(warmup=2, fraction=1.0, threshold=1.0)
    gone = THREE[1]
    state = method.retire(last(method, world, 6).state, gone)
    assert set(method.assignment(state).groups) == set(TRUTH) - {tuple(sorted(gone))}
    rest = replace(world, targets={c: t for c, t in world.targets.items() if c not in gone})
    state = last(method, rest, 2, state=state, first=6).state
    assert last(method, world, 2, state=method.admit(state, gone), first=8).groups == TRUTH
