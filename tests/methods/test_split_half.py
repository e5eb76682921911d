"""Split-half: when it probes, what makes it split, merge and move clients, and what it reduces to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clustering import gram, halves_gram
from coterie.clustering.congruence import Excess, excess
from coterie.core import (
    Cohort,
    Federation,
    HalvedUpdates,
    Plan,
    Replies,
    Round,
    Training,
    as_groups,
)
from coterie.data.attendance import Attendance
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.methods import CFL, FedAvg, SplitHalf, _split_half_reviews, split_half
from coterie.methods._cluster_tree import Leaf, root
from coterie.methods._split_half_probes import (
    Evidence,
    ProbeSchedule,
    confirmed,
    decide_probe,
    describe_probe,
    evidence_of,
)
from coterie.methods._split_half_reviews import DIVERGED_NORM_RATIO, middle, reviewed
from coterie.methods._split_half_walks import (
    SplitProbe,
    WalkersAtNode,
    branches_of,
    split_probe,
    walk,
)
from coterie.methods.split_half import MAX_KEPT_GROUPS, SplitHalfState
from method_examples import slow

D = 300
CLIENTS = tuple(range(3, 19))


def digits(name: str = "label-permutation", seed: int = 0, **how: Any) -> World:
    return replace(SCENARIOS[f"digits/{name}"], train=0.9, validation=0.0, **how).build(seed)


def played(method: Any, world: World, rounds: int, **how: Any) -> list[Round]:
    return list(inprocess.rounds(method, world, rounds=rounds, workers=1, eval_every=1000, **how))


def evidence(
    signal: np.ndarray, seed: int = 0, clients: tuple[int, ...] = CLIENTS, noise: float = 1.0
) -> Evidence:
    a, b = signal + noise * np.random.default_rng(seed).normal(size=(2, *signal.shape))
    return Evidence(clients=clients, products=torch.from_numpy(halves_gram(a, b)))


def signals(groups: np.ndarray, seed: int = 9, size: float = 0.6) -> np.ndarray:
    """The signal of each client's group."""
    return size * np.random.default_rng(seed).normal(size=(groups.max() + 1, D))[groups]


TWO, FOUR = np.arange(16) % 2, np.arange(16) % 4


# -- reductions and schedule
# -----------------------------------------------------------------------------------------------


def test_without_probes_it_is_fedavg() -> None:
    world = digits(clients=6)
    method = SplitHalf(first_probe=1000)
    for one, other in zip(played(method, world, 4), played(FedAvg(), world, 4), strict=True):
        assert torch.equal(one.assignment.models, other.assignment.models)
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


class OfRows(SplitHalf):
    """Asks for all rows in every round."""

    def plan(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        plan = super().plan(state, cohort)
        return replace(plan, need="rows") if plan.ends_round else plan


@pytest.mark.slow
def test_means_are_enough_where_nobody_probes_or_walks() -> None:
    world = digits(clients=12)
    method, cohort = SplitHalf(), Cohort(present=tuple(world.clients), exchange=0, seed=0)
    of_means, of_rows = played(method, world, 8), played(OfRows(), world, 8)
    needs = [
        method.plan(r.position.state, cohort).need
        for r in of_means
        if r.position.state.stage != "review"
    ]
    assert {"mean", "rows"} == set(needs)
    assert len(of_means[-1].assignment.groups) > 1
    for one, other in zip(of_means, of_rows, strict=True):
        assert one.assignment.row == other.assignment.row
        assert torch.equal(one.assignment.models, other.assignment.models)


def test_it_probes_in_its_turn_and_halves_make_equal_steps() -> None:
    method, federation = (
        SplitHalf(first_probe=2, probe_every=3),
        Federation(
            clients=(1, 2, 5),
            draw=lambda i: torch.zeros(4),
            columns={"all": (0, 4)},
            training=Training(epochs=3, batch=10),
        ),
    )
    state, probed = method.init(federation), []
    for exchange in range(8):
        plan = method.plan(state, Cohort(present=(1, 2, 5), exchange=exchange, seed=0))
        probed.append({task.halves for task in plan.tasks.values()} == {True})
        if probed[
            -1
        ]:  # four times what the client of median size does: 3 passes over 60 examples in batches of 10
            assert {task.how(Training()).steps for task in plan.tasks.values()} == {72}
        replies = Replies(
            clients=(1, 2, 5), examples=np.array([20, 60, 600]), updates=torch.zeros(3, 4)
        )
        state = method.step(state, replies)
    assert probed == [False, True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("training", "own", "steps"),
    [
        (Training(steps=10), None, 40),
        (Training(steps=1), None, 4),
        (Training(epochs=4, batch=0), None, 16),
        (Training(), 7, 7),
    ],
    ids=str,
)
def test_the_steps_of_a_half(training: Training, own: int | None, steps: int) -> None:
    federation = Federation(
        clients=(1, 2), draw=lambda i: torch.zeros(4), columns={"all": (0, 4)}, training=training
    )
    method = SplitHalf(steps=own)
    state = method.init(federation)
    state = method.step(
        state, Replies(clients=(1, 2), examples=np.array([30, 50]), updates=torch.zeros(2, 4))
    )
    plan = method.plan(state, Cohort(present=(1, 2), exchange=1, seed=0))
    assert {task.how(training).steps for task in plan.tasks.values()} == {steps}


def test_a_probe_in_every_fourth_round_costs_an_eighth() -> None:
    world = digits("iid", clients=6)
    found, plain = played(SplitHalf(), world, 9), played(FedAvg(), world, 9)
    up, down = sum(r.bytes_up for r in found[1:]), sum(r.bytes_down for r in found[1:])
    usual = sum(r.bytes_up for r in plain[1:])
    assert (up + down) / (2 * usual) == pytest.approx(1 + 2 / 16, rel=0.01)


# -- evidence
# --------------------------------------------------------------------------------------------------------------


def test_two_probes_confirm_groups_however_many() -> None:
    for groups in (TWO, FOUR):
        found = confirmed(1e-4, evidence(signals(groups), 1), evidence(signals(groups), 2))
        assert found == tuple(
            tuple(np.array(CLIENTS)[groups == g].tolist()) for g in range(groups.max() + 1)
        )


def test_what_one_probe_alone_finds_is_not_confirmed() -> None:
    same = signals(np.zeros(16, int))
    assert confirmed(1e-4, evidence(signals(TWO), 1), evidence(same, 2)) == (CLIENTS,)
    assert confirmed(1e-4, evidence(signals(TWO), 1), evidence(signals(FOUR // 2), 2)) == (
        CLIENTS,
    )  # cut otherwise


def test_clients_on_whom_probes_disagree_are_on_no_side() -> None:
    other = TWO.copy()
    other[4] = 1 - other[4]
    found = confirmed(1e-4, evidence(signals(TWO), 1), evidence(signals(other), 2))
    assert len(found) == 2
    assert set(CLIENTS) - {c for group in found for c in group} == {CLIENTS[4]}


def test_who_answered_one_probe_alone_is_on_no_side() -> None:
    some = evidence(signals(TWO)[:14], 2, CLIENTS[:14])
    found = confirmed(1e-4, evidence(signals(TWO), 1), some)
    assert {c for group in found for c in group} == set(CLIENTS[:14])


def test_evidence_is_of_those_who_sent_halves() -> None:
    whole = evidence(signals(TWO))
    halved = CLIENTS[:2] + CLIENTS[3:]
    products = whole.of(halved).products.numpy()
    found = evidence_of(
        Replies(
            clients=CLIENTS,
            examples=np.ones(16, int),
            halves=HalvedUpdates(clients=halved, gram=products),
        )
    )
    assert found is not None
    assert found.clients == halved
    assert torch.equal(found.products, whole.of(found.clients).products)
    assert evidence_of(Replies(clients=CLIENTS, examples=np.ones(16, int))) is None


def test_a_probe_is_explained_with_its_p() -> None:
    leaf = Leaf(node=0, clients=CLIENTS, model=torch.zeros(D))

    def own(e: Evidence) -> Replies:
        halves = HalvedUpdates(clients=CLIENTS, gram=e.products.numpy())
        return Replies(clients=CLIENTS, examples=np.ones(16, int), halves=halves)

    calm, apart = evidence(np.zeros((16, D))), evidence(signals(TWO), 1)
    told = [
        decide_probe(1e-4, own(e), before)
        for e, before in ((calm, None), (apart, None), (apart, apart), (calm, apart))
    ]
    notes = [describe_probe(leaf, found) for found in told if found]
    assert [note.kind for note in notes] == ["keep", "hold", "split", "keep"]
    assert all("p " in note.text and "p" in note.numbers for note in notes)


# -- reviews
# ---------------------------------------------------------------------------------------------------------------


def leaves(*groups: tuple[int, ...]) -> list[Leaf]:
    return [
        Leaf(node=i + 1, clients=group, model=torch.full((2,), float(i)))
        for i, group in enumerate(groups)
    ]


def asked(e: Evidence) -> Replies:
    return Replies(
        clients=e.clients,
        examples=np.ones(len(e.clients), int),
        halves=HalvedUpdates(clients=e.clients, gram=e.products.numpy()),
    )


def test_groups_that_are_one_merge_with_the_mean_of_their_models() -> None:
    halves = leaves(CLIENTS[:4], CLIENTS[4:8], CLIENTS[8:])
    truth = np.repeat([0, 1], 8)
    new, merged, notes = reviewed(
        1e-4, halves, asked(evidence(signals(truth), 4)), dict.fromkeys(CLIENTS, 5)
    )
    assert sorted(leaf.clients for leaf in new) == [CLIENTS[:8], CLIENTS[8:]]
    assert merged == {2: 1}
    assert torch.equal(next(leaf.model for leaf in new if leaf.node == 1), torch.full((2,), 0.5))
    assert [note.kind for note in notes] == ["merge"]


def test_a_client_of_the_wrong_group_moves() -> None:
    groups = [tuple(np.array(CLIENTS)[g == TWO].tolist()) for g in (0, 1)]
    stray = groups[0][2]
    wrong = leaves(tuple(c for c in groups[0] if c != stray), tuple(sorted((*groups[1], stray))))
    new, merged, notes = reviewed(1e-4, wrong, asked(evidence(signals(TWO), 4)), {})
    assert sorted(leaf.clients for leaf in new) == groups
    assert not merged
    assert [(note.kind, note.clients) for note in notes] == [("move", (stray,))]


def test_a_review_leaves_right_groups_alone() -> None:
    groups = leaves(*(tuple(np.array(CLIENTS)[g == FOUR].tolist()) for g in range(4)))
    for seed in range(20):
        new, merged, notes = reviewed(1e-4, groups, asked(evidence(signals(FOUR), seed)), {})
        assert [leaf.clients for leaf in new] == [leaf.clients for leaf in groups]
        assert not merged
        assert not notes


# -- in a federation
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shift", ["label-permutation", *slow("label-swap", "rotation", "class-groups")]
)
def test_it_finds_the_groups_of_digits(shift: str) -> None:
    world = digits(shift)
    found = played(SplitHalf(), world, 24)
    assert found[-1].assignment.groups == world.truth
    assert {note.kind for done in found for note in done.notes} <= {
        "keep",
        "hold",
        "split",
        "walk",
        "join",
        "merge",
        "move",
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_clients_who_are_alike_stay_together(seed: int) -> None:
    assert all(
        len(done.assignment.groups) == 1
        for done in played(SplitHalf(), digits("iid", seed), 24, seed=seed)
    )


@pytest.mark.slow
def test_it_is_right_before_cfl_is() -> None:
    world = digits()
    when = [
        next(
            done.number
            for done in played(method, world, 30)
            if done.assignment.groups == world.truth
        )
        for method in (SplitHalf(), CFL())
    ]
    assert when[0] < when[1]


@pytest.mark.slow
def test_newcomers_and_silent_clients_find_their_groups() -> None:
    world = digits(newcomers=3, join_round=12, silent=0.15)
    assert played(SplitHalf(), world, 30)[-1].assignment.groups == world.truth


@pytest.mark.slow
def test_a_wrong_split_heals() -> None:
    """Groups are torn apart and mixed by hand in a run that goes well; reviews bring them together again."""
    world, method = digits(), SplitHalf(review_every=4)
    done = played(method, world, 18)[-1]
    position = done.position
    leaves = list(position.state.leaves)
    one, other = leaves[0], leaves[1]
    torn = [
        replace(one, clients=tuple(sorted((*one.clients[2:], other.clients[0])))),
        replace(other, clients=tuple(sorted((*other.clients[1:], *one.clients[:2])))),
    ]
    state = replace(
        position.state, leaves=tuple(sorted([*torn, *leaves[2:]], key=lambda leaf: leaf.clients))
    )
    healed = played(method, world, 40, start=replace(position, state=state))
    assert healed[0].assignment.groups != world.truth
    assert healed[-1].assignment.groups == world.truth


@pytest.mark.slow
def test_someone_who_is_away_in_a_review_stays_where_it_is() -> None:
    world = digits()
    away = replace(world, attendance=Attendance(away={0: [(14, 17)]}))
    found = played(
        SplitHalf(review_every=12), away, 20
    )  # the last split is in round 3, so the review is after 15
    assert [done.number for done in found if done.exchanges > 1] == [16]
    assert found[-1].assignment.groups == world.truth


# -- what a review found
# ----------------------------------------------------------------------------------------------------


def walking_to_a_merged_leaf(split: bool) -> SplitHalfState:
    """A state in which client 9 has walked to a leaf that was merged into another one, which may have been split since."""
    heard = Replies(clients=(1, 2, 3, 4, 9), examples=np.ones(5, int), updates=torch.eye(5, 6))
    tree, (one, other) = root((1, 2, 3, 4, 9), 6).split(
        0, [(1, 2), (3, 4)], torch.zeros(6), replies=heard, round=1
    )
    leaves = [Leaf(node=one, clients=(1, 2, 3, 4), model=torch.zeros(6))]
    tree = tree.place({3: one, 4: one})
    if split:
        tree, ids = tree.split(one, [(1, 3), (2, 4)], torch.ones(6), replies=heard, round=2)
        leaves = [
            Leaf(node=id, clients=part, model=torch.ones(6))
            for id, part in zip(ids, [(1, 3), (2, 4)], strict=True)
        ]
    probed = {0: SplitProbe(steps=1, levels=dict.fromkeys((1, 2, 3, 4), 0.1), share=0.1, df=np.inf)}
    watched = {leaf.node: ProbeSchedule(due=10) for leaf in leaves}
    return SplitHalfState(
        round=3,
        leaves=tuple(leaves),
        tree=tree,
        schedules=watched,
        probed=probed,
        walkers={9: 0},
        merged={other: one},
    )


@pytest.mark.parametrize("split", [False, True])
def test_who_walks_to_a_merged_leaf_comes_to_what_it_became(split: bool) -> None:
    method, state = SplitHalf(first_probe=1000), walking_to_a_merged_leaf(split)
    own = torch.zeros(1, 6)
    own[0, 2] = 1.0  # most like client 3's update, which is on the edge to the merged leaf
    new = method.step(state, Replies(clients=(9,), examples=np.array([5]), updates=own))
    assert set(method.assignment(new).row) == {1, 2, 3, 4, 9}
    if split:
        assert new.walkers == {9: 1}
    else:
        assert [leaf.clients for leaf in new.leaves] == [(1, 2, 3, 4, 9)]
        assert 9 in new.tree.nodes[1].clients
        assert 9 not in new.tree.nodes[2].clients


def test_a_review_of_nobody_is_none() -> None:
    method, state = SplitHalf(), replace(walking_to_a_merged_leaf(True), stage="review")
    gone = method.retire(state, (1, 2, 3, 4))
    assert gone.stage == "train"
    assert method.plan(gone, Cohort(present=(9,), exchange=9, seed=0)).tasks


def test_a_probe_asks_everybody_whatever_the_fraction() -> None:
    method = SplitHalf(fraction=0.2, first_probe=2, probe_every=5)
    federation = Federation(clients=CLIENTS, draw=lambda i: torch.zeros(4), columns={"all": (0, 4)})
    state, asked = method.init(federation), []
    for exchange in range(3):
        plan = method.plan(state, Cohort(present=CLIENTS, exchange=exchange, seed=0))
        asked.append(len(plan.tasks))
        heard = tuple(sorted(plan.tasks))
        replies = Replies(
            clients=heard, examples=np.full(len(heard), 9), updates=torch.zeros(len(heard), 4)
        )
        state = method.step(state, replies)
    assert asked == [3, 16, 3]


def test_a_few_answers_overrule_no_probe() -> None:
    leaf, before = Leaf(node=0, clients=CLIENTS, model=torch.zeros(D)), evidence(signals(TWO), 1)
    few = evidence(np.zeros((5, D)), 2, CLIENTS[:5])
    found = decide_probe(1e-4, asked(few), before)
    assert found is not None
    assert (describe_probe(leaf, found).kind, found.evidence) == ("hold", before)


def test_other_clients_in_the_second_probe_confirm_the_first() -> None:
    """Who is heard twice is too few to cut by, so the groups are those of the second probe; the rest walk."""
    one, other = (
        evidence(signals(TWO)[:9], 1, CLIENTS[:9]),
        evidence(signals(TWO)[6:], 2, CLIENTS[6:]),
    )
    found = confirmed(1e-4, one, other)
    assert found == tuple(tuple(np.array(CLIENTS[6:])[TWO[6:] == g].tolist()) for g in (0, 1))


def test_the_review_begins_in_the_middle_of_all_models() -> None:
    groups = [
        Leaf(node=i, clients=c, model=torch.tensor([x]))
        for i, (c, x) in enumerate((((1, 2), 1.0), ((3, 4), 3.0)))
    ]
    assert middle(groups).tolist() == [2.0]  # of two groups alike, the mean
    assert middle(
        [*groups, Leaf(node=2, clients=(5,), model=torch.tensor([1e3]))]
    ).item() == pytest.approx(3.0, abs=0.05)
    assert (
        0.9 < middle([*groups, Leaf(node=2, clients=(5,), model=torch.tensor([1e30]))]).item() < 3.1
    )
    assert middle([*groups, Leaf(node=2, clients=(), model=torch.tensor([1e9]))]).tolist() == [2.0]
    rng = np.random.default_rng(0)
    for count in (1, 3, 4):
        models = torch.tensor(rng.normal(size=(count, 5)))
        turn = torch.linalg.qr(torch.tensor(rng.normal(size=(5, 5))))[0]
        plain, turned = (
            middle(
                [Leaf(node=i, clients=tuple(range(i + 1)), model=row) for i, row in enumerate(rows)]
            )
            for rows in (models, models @ turn)
        )
        assert torch.allclose(plain @ turn, turned)
        weight = torch.arange(1.0, count + 1).double()
        least, *others = (
            float(weight @ (models - at).norm(dim=1))
            for at in (plain, weight @ models / weight.sum(), *models)
        )
        assert least <= min(others) * 1.001  # the sum of distances


@pytest.mark.slow
def test_calm_groups_are_probed_less_often() -> None:
    world = digits("iid")
    probed = [done.number for done in played(SplitHalf(), world, 40) if done.notes]
    assert probed == [2, 6, 14, 30]


# -- newcomers
# --------------------------------------------------------------------------------------------------------------


ROUND, LONG = np.ones(D), np.array([3.0] * 30 + [0.3] * (D - 30))
"""Noise in all directions alike, and most of it in a tenth of them: standard deviations."""


def split_tree(seed: int = 1, noise: np.ndarray = ROUND) -> tuple[Any, Any]:
    """Two groups of eight, split at node 0, and what the split keeps of its probe."""
    a, b = signals(TWO) + noise * np.random.default_rng(seed).normal(size=(2, 16, D))
    replies = Replies(
        clients=CLIENTS, examples=np.ones(16, int), updates=torch.from_numpy((a + b) / 2)
    )
    parts = as_groups([tuple(np.array(CLIENTS)[g == TWO].tolist()) for g in (0, 1)])
    tree, _ = root(CLIENTS, D).split(0, parts, torch.zeros(D), replies=replies, round=1)
    seen = Evidence(clients=CLIENTS, products=torch.from_numpy(halves_gram(a, b)))
    return tree, split_probe(3, seen, parts)


def newcomer(
    signal: np.ndarray, seed: int, noise: np.ndarray = ROUND, halved: bool = True
) -> Replies:
    a, b = signal + noise * np.random.default_rng(seed).normal(size=(2, 1, D))
    halves = HalvedUpdates(clients=(99,), gram=halves_gram(a, b)) if halved else None
    return Replies(
        clients=(99,),
        examples=np.ones(1, int),
        updates=torch.from_numpy((a + b) / 2),
        halves=halves,
    )


@pytest.mark.parametrize("halved", [True, False])
def test_a_newcomer_goes_to_the_nearest_branch(halved: bool) -> None:
    tree, probe = split_tree()
    for seed in range(20):
        went = walk(
            tree,
            {99: 0},
            {0: probe},
            newcomer(signals(TWO)[seed % 2], 100 + seed, halved=halved),
            1e-4,
        )
        assert (went.new_nodes, went.models) == ({99: 1 + seed % 2}, {})
        assert (f"p_{1 + seed % 2}" in went.notes[0].numbers) == halved


def test_a_newcomer_of_no_branch_is_on_its_own_and_the_next_finds_it() -> None:
    tree, probe = split_tree()
    other = signals(np.array([0]), seed=77, size=1.2)[0]
    went = walk(tree, {99: 0}, {0: probe}, newcomer(other, 1), 1e-4)
    assert (went.new_nodes, list(went.models)) == ({99: 3}, [3])
    assert went.tree.nodes[3].clients == (99,)
    assert "a new group" in went.notes[0].text
    twin = replace(newcomer(other, 2), clients=(100,))
    went = walk(went.tree, {100: 0}, went.probed, twin, 1e-4)
    assert (went.new_nodes, went.models) == ({100: 3}, {})


def excess_of_weights(
    mean: np.ndarray, levels: np.ndarray, w: np.ndarray, share: float, df: float
) -> Excess:
    """The sums of ``excess`` from a matrix of weights W."""
    own = np.diagonal(w)
    squares = own**2 @ levels**2
    sums = (w * mean).sum(), own @ levels, squares, levels @ w**2 @ levels - squares
    largest = own.max() * np.diagonal(mean).max()
    return excess(sums, levels, largest, share, df).excess_at()


@pytest.mark.parametrize("known", [True, False])
def test_distances_are_those_of_the_definition(known: bool) -> None:
    tree, probe = split_tree()
    for seed in range(10):
        update, noise = newcomer(signals(TWO)[seed % 2], seed).all_updates, 300.0 if known else None
        walkers = WalkersAtNode({99: 0}, update, {99: noise} if noise else {}, tree)
        walkers.compare(branches_of(tree, 0, probe), probe)
        found = walkers.distances_of(99)
        for child in tree.children(0):
            assert child.updates is not None
            m = len(child.heard)
            w = np.array([1.0, *[-1 / m] * m])
            levels = np.array([noise or 0.0, *(probe.levels[client] for client in child.heard)])
            mean = gram(torch.cat([update, child.updates]))
            assert found[child.id] == pytest.approx(
                excess_of_weights(mean, levels, np.outer(w, w), probe.share, probe.df), rel=1e-9
            )


def test_many_walkers_go_as_one_after_the_other() -> None:
    tree, probe = split_tree()
    noise = np.random.default_rng(5).normal(size=(2, 12, D))
    halves = (
        np.concatenate([signals(TWO)[:8], signals(np.zeros(4, int), seed=77, size=1.2)]) + noise
    )  # four of a third group
    clients = tuple(range(100, 112))
    updates = torch.from_numpy(halves.mean(axis=0))
    halved_updates = HalvedUpdates(clients=clients, gram=halves_gram(*halves))
    own = Replies(
        clients=clients,
        examples=np.ones(12, int),
        updates=updates,
        halves=halved_updates,
    )
    went = walk(tree, dict.fromkeys(clients, 0), {0: probe}, own, 1e-4)
    assert list(went.new_nodes.values()) == [1, 2] * 4 + [3] * 4
    probed = {0: probe}
    for client in clients:
        one = walk(tree, {client: 0}, probed, own.of([client]), 1e-4)
        tree, probed = one.tree, one.probed
        assert one.new_nodes[client] == went.new_nodes[client]
        assert one.notes[0].numbers == pytest.approx(went.notes[clients.index(client)].numbers)


# -- more clients than a probe asks
# -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_a_large_group_some_probe_and_the_others_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_half, "MAX_PROBED_CLIENTS", 12)
    monkeypatch.setattr(_split_half_reviews, "MAX_PROBED_CLIENTS", 12)
    monkeypatch.setattr(split_half, "ENOUGH_CLIENTS", 3)
    asked: list[int] = []
    plan = SplitHalf.plan

    def counted(self: SplitHalf, state: SplitHalfState, cohort: Cohort) -> Plan:
        made = plan(self, state, cohort)
        asked.append(sum(task.halves for task in made.tasks.values()))
        return made

    monkeypatch.setattr(SplitHalf, "plan", counted)
    world = digits(clients=32)
    done = played(SplitHalf(), world, 30)
    assert max(asked) == 12  # also of four groups that probe in the same round
    walked = {
        client
        for one in done
        for note in one.notes
        if note.kind in ("join", "walk")
        for client in note.clients
    }
    assert (
        len(walked) == 20
    )  # all but those that were asked in the probe that split the first group
    assert done[-1].assignment.groups == world.truth
    assert any(one.exchanges == 2 for one in done)  # a review, of three clients of each group


def test_a_second_probe_asks_the_clients_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_half, "MAX_PROBED_CLIENTS", 6)
    monkeypatch.setattr(_split_half_reviews, "MAX_PROBED_CLIENTS", 6)
    monkeypatch.setattr(split_half, "ENOUGH_CLIENTS", 3)
    method, clients = SplitHalf(), CLIENTS
    state = method.init(federation_of(clients))
    first = evidence(signals(TWO)[:6], clients=clients[2:8])
    state = replace(state, round=2, schedules={0: ProbeSchedule(due=3, evidence=first)})

    def probing(*present: int) -> list[int]:
        plan = method.plan(state, Cohort(present=present, exchange=7, seed=0))
        assert plan.tasks.keys() == set(present)  # the others train
        return [client for client, task in plan.tasks.items() if task.halves]

    assert sorted(probing(*clients)) == list(clients[2:8])
    assert sorted(probing(*clients[5:])) == list(clients[5:8])
    assert len(probing(*clients[8:])) <= 6  # nobody of the first: a sample


@pytest.mark.slow
@pytest.mark.parametrize("noise", [ROUND, LONG], ids=["round", "long"])
def test_false_alarms_of_newcomers(noise: np.ndarray) -> None:
    ps = []
    for seed in range(300):
        tree, probe = split_tree(seed, noise)
        went = walk(tree, {99: 0}, {0: probe}, newcomer(signals(TWO)[0], 5000 + seed, noise), 1e-4)
        ps.append(went.notes[0].numbers["p_1"])
    assert np.mean(np.array(ps) < 0.05) <= 0.09
    assert np.mean(np.array(ps) < 0.01) <= 0.03


# -- corner cases
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "least"), [(4, 4), (6, 4)])
def test_clients_who_all_differ_are_parted(clients: int, least: int) -> None:
    """By even cuts, in which everybody is as far from the own side's others as from the other side's; two are hard to part."""
    found = played(SplitHalf(), digits(clients=clients, groups=clients), 16)
    assert len(found[-1].assignment.groups) >= least
    holds = [any(note.kind == "hold" for note in done.notes) for done in found]
    assert not any(one and next for one, next in pairwise(holds))


def test_members_that_leave_are_no_evidence_any_more() -> None:
    method, federation = (
        SplitHalf(),
        Federation(clients=CLIENTS, draw=lambda i: torch.zeros(D), columns={"all": (0, D)}),
    )
    state = replace(
        method.init(federation),
        schedules={0: ProbeSchedule(due=3, evidence=evidence(signals(TWO), 1))},
        round=2,
    )
    left = method.retire(state, CLIENTS[:9]).schedules[0].evidence
    assert left is not None
    assert left.clients == CLIENTS[9:]
    assert method.retire(state, CLIENTS[:15]).schedules[0].evidence is None


def test_groups_of_which_few_answer_do_not_merge() -> None:
    groups = leaves(CLIENTS[:8], CLIENTS[8:])
    few = evidence(np.zeros((4, D)), 2, (*CLIENTS[:2], *CLIENTS[8:10]))
    new, merged, _ = reviewed(1e-4, groups, asked(few), {})
    assert (len(new), merged) == (2, {})


# -- probes of several rounds, where few clients answer
# ----------------------------------------------------------------------

TEN = tuple(range(10))


def federation_of(clients: tuple[int, ...], size: int = D) -> Federation:
    return Federation(clients=clients, draw=lambda i: torch.zeros(size), columns={"all": (0, size)})


def halved(
    clients: tuple[int, ...], signal: np.ndarray, seed: int, whole: tuple[int, ...] = ()
) -> Replies:
    """Replies with the updates of both halves; clients in ``whole`` have too few examples for halves."""
    a, b = (signal + np.random.default_rng(seed).normal(size=(2, *signal.shape))).astype(np.float32)
    out = np.isin(clients, whole)
    products = halves_gram(a[~out], b[~out])
    b[out] = np.nan
    updates = torch.from_numpy(np.where(np.isnan(b), a, (a + b) / 2)).float()
    examples = np.full(len(clients), 20)
    return Replies(
        clients=clients,
        examples=examples,
        updates=updates,
        halves=HalvedUpdates(
            clients=tuple(client for client in clients if client not in whole),
            gram=products,
            second=torch.from_numpy(b[~out]).float(),
        ),
    )


def some(replies: Replies, *clients: int) -> Replies:
    return replies.of(clients)


def silent_start(method: SplitHalf, clients: tuple[int, ...] = TEN) -> SplitHalfState:
    """The state before the first probe, after a round in which three clients answered."""
    state = method.init(federation_of(clients))
    return method.step(
        state, Replies(clients=clients[:3], examples=np.full(3, 20), updates=torch.zeros(3, D))
    )


def test_a_probe_of_few_answers_lasts_until_most_have_answered() -> None:
    method, cohort = SplitHalf(), Cohort(present=TEN, exchange=1, seed=0)
    state, all_ = silent_start(method), halved(TEN, signals(np.arange(10) % 2), 1)
    plan = method.plan(state, cohort)
    assert plan.second_halves
    assert {task.halves for task in plan.tasks.values()} == {True}
    state = method.step(state, some(all_, 0, 1, 2))
    assert not state.notes
    state = method.step(state, some(all_, 3, 4, 5))
    plan = method.plan(state, cohort)
    began = state.schedules[0].long_probe
    assert began is not None
    assert began.answered == (0, 1, 2, 3, 4, 5)
    torch.testing.assert_close(
        plan.models[1], torch.zeros(D)
    )  # the model of the probe, not that of the group
    for client, task in plan.tasks.items():
        assert (task.halves, task.offered) == ((False, (0,)) if client < 6 else (True, (1,)))
    assert {task.lr_round for client, task in plan.tasks.items() if client >= 6} == {1}
    state = method.step(state, some(all_, 1, 6, 7))
    (note,) = state.notes
    assert note.kind == "hold"
    assert note.labels["heard"] == 8
    assert state.schedules[0].long_probe is None


def test_replies_of_several_rounds_are_those_of_one() -> None:
    method, all_ = SplitHalf(), halved(TEN, signals(np.arange(10) % 2), 1)
    state = silent_start(method)
    for few in ((4, 9), (0, 1), (0, 2, 3, 4), (5, 8)):
        state = method.step(state, some(all_, *few))
    whole = method.step(silent_start(method), some(all_, 0, 1, 2, 3, 4, 5, 8, 9))
    found, expected = state.schedules[0].evidence, whole.schedules[0].evidence
    assert found is not None
    assert expected is not None
    assert found.clients == expected.clients == (0, 1, 2, 3, 4, 5, 8, 9)
    np.testing.assert_allclose(found.products, expected.products, rtol=1e-4, atol=1e-3)


def test_parts_of_a_probe_of_several_rounds_differ_as_their_means() -> None:
    method, groups = SplitHalf(), np.arange(10) % 2
    signal = signals(groups)
    state = silent_start(method)
    for seed in (1, 2):
        all_ = halved(TEN, signal, seed)
        for few in (TEN[:4], TEN[4:7], TEN[7:9]):
            state = method.step(state, some(all_, *few))
    (note,) = state.notes
    assert note.parts == ((0, 2, 4, 6, 8), (1, 3, 5, 7))
    one, other = (leaf.model for leaf in state.leaves)
    means = [all_.of(part).all_updates.mean(0) for part in note.parts]
    torch.testing.assert_close(one - other, means[0] - means[1], rtol=1e-4, atol=1e-4)
    assert state.walkers == {9: 0}
    first, second = state.tree.children(0)
    assert first.heard + second.heard == (0, 2, 4, 6, 8, 1, 3, 5, 7)


def test_a_late_client_counts_with_the_model_that_it_came_to() -> None:
    method = SplitHalf()
    state = silent_start(method)
    state = method.step(state, halved((0, 1), np.full((2, D), 4.0), 1))
    moved = state.leaves[0].model
    late, usual = halved((2,), np.full((1, D), 4.0), 2), torch.full((1, D), 3.0)
    both = replace(
        halved((0, 2), np.zeros((2, D)), 3),
        updates=torch.cat([usual, late.all_updates]),
        halves=None,
    )
    new = method.step(state, both).leaves[0].model
    torch.testing.assert_close(new, ((moved + usual[0]) + late.all_updates[0]) / 2)


def test_a_probe_ends_whoever_answers() -> None:
    method, all_ = SplitHalf(), halved(TEN, np.zeros((10, D)), 1, whole=(1,))
    state, rounds = silent_start(method), 0
    while not state.notes:
        state, rounds = method.step(state, some(all_, 0, 1, 2)), rounds + 1
        assert rounds < 20
    assert rounds == 12
    (note,) = state.notes
    assert (note.kind, note.labels["heard"]) == ("keep", 2)


def test_who_leaves_takes_its_replies_along() -> None:
    method, all_ = SplitHalf(), halved(TEN, np.zeros((10, D)), 1, whole=(2,))
    state = method.step(silent_start(method), some(all_, 0, 1, 2, 5))
    left = method.retire(state, (1, 2, 7)).schedules[0].long_probe
    assert left is not None
    assert (left.answered, left.clients) == ((0, 5), (0, 5))
    torch.testing.assert_close(left.updates, all_.of((0, 5)).all_updates)


def test_enough_answers_in_a_round_need_no_second() -> None:
    """Of a hundred clients thirty are many, though few of them."""
    method, clients = SplitHalf(), tuple(range(100))
    state = replace(silent_start(method, clients), answered=0.3)
    plan = method.plan(state, Cohort(present=clients, exchange=1, seed=0))
    assert not plan.second_halves
    assert method.plan(
        replace(state, answered=0.29), Cohort(present=clients, exchange=1, seed=0)
    ).second_halves


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["label-permutation", "class-groups"])
def test_it_finds_groups_if_three_in_ten_answer(shift: str) -> None:
    world = digits(shift, silent=0.7, patience=1000)
    assert played(SplitHalf(), world, 40)[-1].assignment.groups == world.truth


# -- alerts: losses that rise
# ----------------------------------------------------------------------------------------------


MEMBERS = (3, 4, 5, 6)


def heard(losses: dict[int, tuple[float, ...]]) -> Replies:
    return Replies(
        clients=tuple(losses), examples=np.ones(len(losses)), losses=tuple(losses.values())
    )


def watching(**more: Any) -> SplitHalfState:
    """Two groups of two clients, whose usual change of a loss is 0.01; the first draw is 9."""
    leaves = (
        Leaf(node=0, clients=(3, 4), model=torch.zeros(2)),
        Leaf(node=1, clients=(5, 6), model=torch.ones(2)),
    )
    known: dict[str, Any] = {
        "leaves": leaves,
        "tree": root(MEMBERS, 2).plant().place({5: 1, 6: 1}),
        "schedules": {0: ProbeSchedule(due=30, calm=3), 1: ProbeSchedule(due=40, calm=3)},
        "review": (80, 32),
        "losses": dict.fromkeys(MEMBERS, 0.5),
        "usual_change": 0.01,
        "stage": "measure-losses",
        "first": torch.full((2,), 9.0),
    }
    return SplitHalfState(round=10, **(known | more))


ALERT = SplitHalf(alert=True)
EVERYONE = Cohort(present=MEMBERS, exchange=0, seed=0)


def test_each_round_begins_with_losses() -> None:
    plan = ALERT.plan(watching(), EVERYONE)
    assert not plan.ends_round
    assert {c: task.offered for c, task in plan.tasks.items()} == {
        3: (0,),
        4: (0,),
        5: (1,),
        6: (1,),
    }
    assert not any(task.trains for task in plan.tasks.values())
    calm = ALERT.step(watching(), heard({3: (0.5,), 4: (0.59,), 5: (0.49,), 6: (float("nan"),)}))
    assert (calm.stage, calm.risen, calm.notes, calm.review) == ("train", {}, (), (80, 32))
    assert calm.usual_change == pytest.approx(0.01)  # of 0, 0.09 and -0.01
    assert calm.losses == {3: 0.5, 4: 0.59, 5: 0.49, 6: 0.5}
    assert ALERT.plan(calm, EVERYONE).ends_round
    everyone = Federation(clients=MEMBERS, draw=lambda i: torch.zeros(2), columns={"all": (0, 2)})
    assert SplitHalf().init(everyone).stage == "train"


def test_the_usual_change_falls_by_half_at_most() -> None:
    again = ALERT.step(watching(usual_change=0.4), heard(dict.fromkeys(MEMBERS, (0.5,))))
    assert again.usual_change == pytest.approx(0.2)


def test_clients_whose_loss_rose_try_all_models() -> None:
    rose = ALERT.step(watching(), heard({3: (0.5,), 4: (0.7,), 5: (0.5,), 6: (1.5,)}))
    assert rose.risen == pytest.approx({4: 0.6, 6: 1.0})
    assert rose.review == (10, 8)
    (note,) = rose.notes
    assert (note.kind, note.clients) == ("alert", (4, 6))
    assert note.numbers["rise"] == pytest.approx(1.0)
    plan = ALERT.plan(rose, EVERYONE)
    assert {c: task.offered for c, task in plan.tasks.items()} == {
        4: (0, 1),
        6: (0, 1, 2),
    }  # the loss of 6 more than doubled
    assert plan.models[:, 0].tolist() == [0.0, 1.0, 9.0]
    assert not plan.ends_round


def test_a_client_takes_a_model_that_undoes_half_of_the_rise() -> None:
    tried = watching(stage="offer-models", risen={3: 0.6, 4: 0.6})
    new = ALERT.step(tried, heard({3: (0.7, 0.61, 0.69), 4: (0.7, 0.59, 0.69)}))
    assert [leaf.clients for leaf in new.leaves] == [(3,), (4, 5, 6)]
    assert new.tree.nodes[1].clients == (4, 5, 6)
    assert new.risen == {}
    assert new.losses[4] == 0.59
    (note,) = new.notes
    assert (note.kind, note.clients, note.labels) == ("move", (4,), {"at": 0, "node": 1})
    assert new.schedules[0].due == 11  # of client 3, which no model serves
    assert new.schedules[1].due == 14  # the next turn
    assert ALERT.plan(new, EVERYONE).ends_round


def test_evidence_that_waits_for_a_second_probe_stays() -> None:
    waits = ProbeSchedule(due=11, evidence=evidence(signals(TWO)))
    tried = watching(
        stage="offer-models", risen={3: 0.6}, schedules={0: waits, 1: ProbeSchedule(due=40)}
    )
    assert ALERT.step(tried, heard({3: (0.7, 0.7, 0.7)})).schedules[0] is waits


def test_the_first_draw_is_better_than_a_model_of_opposite_labels() -> None:
    tried = watching(stage="offer-models", risen={3: 2.0, 5: 2.0})
    new = ALERT.step(tried, heard({3: (4.0, 4.0, 0.7), 5: (4.0, 4.0, 0.7)}))
    assert [(leaf.node, leaf.clients) for leaf in new.leaves] == [(2, (3, 5)), (0, (4,)), (1, (6,))]
    assert new.leaves[0].model.tolist() == [9.0, 9.0]
    assert new.tree.nodes[2].clients == (3, 5)
    served = ALERT.assignment(new)
    assert served.models[served.row[3]].tolist() == [9.0, 9.0]


def test_the_model_of_a_group_that_all_have_left_is_kept_and_found_again() -> None:
    left = ALERT.step(
        watching(stage="offer-models", risen={5: 1.0, 6: 1.0}),
        heard(dict.fromkeys((5, 6), (0.4, 2.0, 3.0))),
    )
    assert [(leaf.node, leaf.clients) for leaf in left.leaves] == [(0, MEMBERS), (1, ())]
    assert (left.left, left.merged) == ((1,), {1: 0})
    assert ALERT.assignment(left).groups == (MEMBERS,)
    back = ALERT.step(
        replace(left, stage="offer-models", risen={5: 1.0, 6: 1.0}),
        heard(dict.fromkeys((5, 6), (2.0, 0.4, 3.0))),
    )
    assert [leaf.clients for leaf in back.leaves] == [(3, 4), (5, 6)]
    assert back.leaves[1].model.tolist() == [1.0, 1.0]
    assert (back.left, back.merged) == ((), {})


def test_newcomers_do_not_join_a_group_that_all_have_left() -> None:
    left = ALERT.step(
        watching(stage="offer-models", risen={3: 1.0, 4: 1.0}),
        heard(dict.fromkeys((3, 4), (2.0, 0.4, 3.0))),
    )
    assert (left.left, left.merged) == ((0,), {0: 1})
    assert [leaf.clients for leaf in ALERT.admit(left, (9,)).leaves if leaf.clients] == [
        (3, 4, 5, 6, 9)
    ]


def test_a_bounded_number_of_models_is_kept() -> None:
    state, seen = watching(), []
    for number in range(MAX_KEPT_GROUPS + 3):  # everyone goes to a new group, each time
        away = replace(
            state,
            stage="offer-models",
            risen=dict.fromkeys(MEMBERS, 1.0),
            first=torch.full((2,), float(number)),
        )
        state = ALERT.step(away, heard({c: (*[2.0] * len(state.leaves), 0.5) for c in MEMBERS}))
        seen.append(len(state.leaves))
    assert seen[-1] == max(seen) == MAX_KEPT_GROUPS + 1
    assert len(state.left) == MAX_KEPT_GROUPS
    assert set(state.left) == {leaf.node for leaf in state.leaves if not leaf.clients}
    assert set(state.merged.values()) == {state.leaves[0].node}
    assert set(state.merged) == {node.id for node in state.tree.nodes} - {state.leaves[0].node}


def drifting(*rows: tuple[int, ...]) -> World:
    """A sine stream, with a row of concepts for each time step of 12 rounds."""
    how = {
        "drift": "given",
        "schedule": rows,
        "examples": 2000 * len(rows),
        "period": 12,
        "shuffle": False,
    }
    return replace(SCENARIOS["sine/drift"], **how).build(0)


ONE, TWO_CONCEPTS = (0,) * 10, (0, 0, 0, 0, 0, 1, 1, 1, 1, 1)
PARTED = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))


@pytest.mark.slow
def test_alerts_find_a_concept_in_its_first_round_and_again_when_it_comes_back() -> None:
    world = drifting(ONE, TWO_CONCEPTS, ONE, TWO_CONCEPTS)
    found = played(SplitHalf(alert=True), world, 40)
    groups = [one.assignment.groups for one in found]
    assert (
        groups
        == [(tuple(range(10)),)] * 12 + [PARTED] * 12 + [(tuple(range(10)),)] * 12 + [PARTED] * 4
    )


@pytest.mark.slow
def test_a_run_with_alerts_resumes_as_if_it_had_not_stopped() -> None:
    world = drifting(ONE, TWO_CONCEPTS, ONE)
    whole = played(SplitHalf(alert=True), world, 26)
    rest = played(SplitHalf(alert=True), world, 26, start=whole[13].position)
    assert [one.number for one in rest] == [one.number for one in whole[14:]]
    for one, other in zip(rest, whole[14:], strict=True):
        assert torch.equal(one.assignment.models, other.assignment.models)


def test_a_model_that_has_diverged_does_not_count_in_a_merger() -> None:
    """That of a hostile client alone in its group once took 20 honest clients from .97 to .10 when the groups merged."""
    near = Leaf(node=1, clients=(1, 2, 3), model=torch.ones(4))
    for length in (1.0, DIVERGED_NORM_RATIO - 0.1, DIVERGED_NORM_RATIO + 0.1, 1e6):
        far = Leaf(node=2, clients=(4,), model=-length * torch.ones(4))
        diverged = length > DIVERGED_NORM_RATIO
        mean = near.model if diverged else (3 * near.model + far.model) / 4
        for pair in ((near, far), (far, near)):
            merged = _split_half_reviews._joined(*pair, {})
            torch.testing.assert_close(merged.model, mean)
            assert merged.clients == (1, 2, 3, 4)


# -- alerts with the training


WITH_TRAINING = SplitHalf(alert=True, alert_with_training=True)


def trained_with(losses: dict[int, float]) -> Replies:
    """Replies of clients that measured their group's model and then trained; all updates are 1, or 100 of clients 4 and 6."""
    updates = [100.0 if client in (4, 6) else 1.0 for client in losses]
    return Replies(
        clients=tuple(losses),
        examples=np.ones(len(losses), dtype=np.int64),
        chosen=tuple((int(client > 4),) for client in losses),
        losses=tuple((loss,) for loss in losses.values()),
        updates=torch.tensor(updates)[:, None].expand(-1, 2),
    )


def test_losses_come_with_the_training_and_those_of_changed_data_do_not_count() -> None:
    state = watching(stage="train")
    plan = WITH_TRAINING.plan(state, EVERYONE)
    assert plan.ends_round
    assert plan.need == "rows"
    assert {task.measure for task in plan.tasks.values()} == {"train"}
    calm = WITH_TRAINING.step(state, trained_with(dict.fromkeys(MEMBERS, 0.5)))
    assert (calm.stage, calm.risen, calm.round) == ("train", {}, 11)
    assert calm.leaves[0].model.tolist() == [50.5, 50.5]
    # The losses of clients 4 and 6 rise: their updates are left out, and they try other models next.
    rose = WITH_TRAINING.step(state, trained_with({3: 0.5, 4: 1.1, 5: 0.5, 6: 1.1}))
    assert rose.stage == "offer-models"
    assert rose.risen == pytest.approx({4: 0.8, 6: 0.8})
    assert [leaf.model.tolist() for leaf in rose.leaves] == [[1.0, 1.0], [2.0, 2.0]]
    offers = WITH_TRAINING.plan(rose, EVERYONE)
    assert not offers.ends_round
    assert set(offers.tasks) == {4, 6}
    moved = WITH_TRAINING.step(rose, heard({4: (1.1, 0.1, 3.0), 6: (1.2, 1.1, 3.0)}))
    assert moved.stage == "train"
    assert [leaf.clients for leaf in moved.leaves] == [(3,), (4, 5, 6)]


@pytest.mark.slow
def test_alerts_with_the_training_find_a_concept_one_round_later_with_no_exchange_more() -> None:
    world = drifting(ONE, TWO_CONCEPTS, ONE, TWO_CONCEPTS)
    found = played(WITH_TRAINING, world, 40)
    groups = [one.assignment.groups for one in found]
    everyone = (tuple(range(10)),)
    assert groups[:13] == [everyone] * 13
    assert groups[14:24] == [PARTED] * 10
    assert groups[26:36] == [everyone] * 10
    assert groups[38:] == [PARTED] * 2
    calm = [one for one in found[3:12] if not one.notes]
    assert calm
    assert all(one.exchanges == 1 for one in calm)
