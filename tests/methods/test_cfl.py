"""CFL against its papers: criteria by arithmetic, recursion on ids, and the bugs of published code."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.core import Cohort, Federation, Replies, as_groups
from coterie.methods import CFL, FedAvg
from coterie.settings import SettingError
from worlds import THREE, TRUTH, Pull, grouped, last, play

PAPER = {"scale": "absolute", "persistence": 1}


def two(left: float, right: float, **world: object) -> Pull:
    """Two clients who pull the first of two parameters from 0 to ``left`` and to ``right``; rate 1."""
    targets = {4: torch.tensor([left, 0.0]), 9: torch.tensor([right, 0.0])}
    return Pull(targets=targets, rate=1.0, **world)  # type: ignore[arg-type]


# -- the criteria
# -------------------------------------------------------------------------------------------------------


def test_criteria_are_the_norm_of_the_mean_and_the_greatest_norm() -> None:
    # Δ = (3, 0) and (-1, 0): ‖mean‖ = 1, max ‖Δ‖ = 3, α_cross = -1.
    note = last(CFL(eps1=1.5, eps2=2.0, **PAPER), two(3.0, -1.0), 1).notes[0]
    assert note.kind == "split"
    assert note.numbers["mean_norm"] == pytest.approx((3 - 1) / 2)
    assert note.numbers["client_norm"] == pytest.approx(3)
    assert note.numbers["alpha_cross"] == pytest.approx(-1)


def test_the_norm_of_the_mean_is_not_the_mean_of_norms() -> None:
    # Published slip: the mean of ‖Δ‖ is 2 here and would never be below eps1 = 0.1, though the
    # group is stationary.
    assert last(CFL(eps1=0.1, eps2=1.0, **PAPER), two(2.0, -2.0), 1).groups == ((4,), (9,))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"eps1": 1.0, "eps2": 2.0},
            "not stationary: mean update 1 >= eps1 1",
        ),  # strict: 1 is not below 1
        ({"eps1": 1.5, "eps2": 3.1}, "congruent: largest update 3 < eps2 3.1"),
        ({"eps1": 1.5, "eps2": 2.0, "warmup": 1}, "round 1 is within the warm-up of 1"),
        (
            {"eps1": 1.5, "eps2": 2.0, "min_cluster_size": 2},
            "a side is too small: smaller side 1 < min_cluster_size 2",
        ),
    ],
)
def test_each_criterion_alone_keeps_a_group_together(settings: dict[str, float], why: str) -> None:
    end = last(CFL(**settings, **PAPER), two(3.0, -1.0), 1)
    assert end.groups == ((4, 9),)
    assert why in end.notes[0].text


def test_eps2_is_reached_by_a_norm_that_equals_it() -> None:
    assert len(last(CFL(eps1=1.5, eps2=3.0, **PAPER), two(3.0, -1.0), 1).groups) == 2


@pytest.mark.parametrize(("gamma_max", "groups"), [(0.70, 2), (0.71, 1)])
def test_gamma_max_bounds_alpha_cross(gamma_max: float, groups: int) -> None:
    # Orthogonal updates: α_cross = 0 and sqrt((1 - 0) / 2) = 0.7071.
    world = Pull(targets={0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0])}, rate=1.0)
    end = last(CFL(eps1=1.0, eps2=0.5, gamma_max=gamma_max, **PAPER), world, 1)
    assert len(end.groups) == groups
    assert "0.707" in end.notes[0].text


def test_relative_criteria_do_not_depend_on_the_scale_of_updates() -> None:
    for noise in (0.0, 0.05):
        small, large = (grouped(THREE, noise=noise * scale) for scale in (1.0, 1000.0))
        large = replace(large, targets={c: 1000 * t for c, t in large.targets.items()})
        histories = [[p.groups for p in play(CFL(), w, 20)] for w in (small, large)]
        assert histories[0] == histories[1]


def test_all_criteria_must_hold_for_as_many_rounds_as_asked() -> None:
    world = two(2.0, -2.0)
    kinds = [
        p.notes[0].kind
        for p in play(CFL(eps1=0.1, eps2=1.0, scale="absolute", persistence=3), world, 3)
    ]
    assert kinds == ["hold", "hold", "split"]


# -- what the children get
# ------------------------------------------------------------------------------------------------


def test_child_mean_and_parent_mean() -> None:
    child, parent = (
        last(CFL(eps1=1.5, eps2=2.0, post_split=how, **PAPER), two(3.0, -1.0), 1).assignment
        for how in ("child-mean", "parent-mean")
    )
    assert child.models[:, 0].tolist() == [
        3.0,
        -1.0,
        0.0,
    ]  # the last is the model at the split, on both paths
    assert parent.models[:, 0].tolist() == [1.0, 1.0, 0.0]  # (3 - 1) / 2 for both


def test_weighting() -> None:
    world = two(3.0, -1.0, examples={4: 30, 9: 10})
    uniform, data = (
        last(CFL(eps1=0.0, weighting=w, **PAPER), world, 1).assignment.models[0, 0].item()
        for w in ("uniform", "data")
    )
    assert uniform == pytest.approx((3 - 1) / 2)
    assert data == pytest.approx((30 * 3 - 10 * 1) / 40)


# -- recursion
# ------------------------------------------------------------------------------------------------------------


def test_alpha_cross_is_corrected_for_few_clients_where_criteria_are_relative() -> None:
    # Two orthogonal updates: α_cross = 0, and corrected ((2 - 1) * 0 + 1) / 2 = 0.5, so gamma may
    # be up to sqrt(0.25).
    world = Pull(targets={0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0])}, rate=1.0)
    loose = {"eps1": 1.0, "eps2": 0.0, "persistence": 1}
    assert len(last(CFL(gamma_max=0.49, **loose), world, 1).groups) == 2
    kept = last(CFL(gamma_max=0.51, **loose), world, 1)
    assert len(kept.groups) == 1
    assert "not separable: noise allowed 0.5 <= gamma_max 0.51" in kept.notes[0].text
    assert len(last(CFL(gamma_max=0.51, scale="absolute", **loose), world, 1).groups) == 2


def test_positions_are_never_taken_for_ids() -> None:
    # In the authors' notebook and its descendants (KarhouTam/FL-bench issue 20) the sides of the
    # second and third split, positions inside a cluster, become the clusters. Four groups take
    # three levels; every client stays in one group.
    groups = [[0, 7, 8], [1, 5, 9], [2, 4, 11], [3, 6, 10]]
    world = grouped(groups, noise=0.01, seed=3)
    splits = []
    for played in play(CFL(), world, 60):
        for note in played.notes:
            if note.kind == "split":
                assert sorted(c for part in note.parts for c in part) == list(note.clients)
                splits.append(note.parts)
        assert sorted(c for group in played.groups for c in group) == list(range(12))
    assert len(splits) == 3
    assert played.groups == as_groups(groups)
    path = played.state.tree.path(played.state.leaves[0].node)
    assert path[0].clients == tuple(range(12))
    assert all(set(child.clients) < set(node.clients) for node, child in itertools.pairwise(path))


def test_the_tree_keeps_the_model_that_was_offered_at_the_split() -> None:
    before = None
    for played in play(CFL(), grouped(THREE), 30):
        if any(n.kind == "split" for n in played.notes):
            assert before is not None
            assert torch.equal(played.state.tree.nodes[0].model, before.assignment.models[0])
            return
        before = played
    pytest.fail("no split")


def test_buffers_do_not_count_as_similarity() -> None:
    # The last entry is a buffer that all clients move alike and far; with it in the cosine nobody
    # would look different.
    targets = {
        c: torch.tensor([x, 0.0, 1000.0]) for c, x in ((1, 1.0), (2, 1.0), (3, -1.0), (4, -1.0))
    }
    world = Pull(targets=targets, buffers=1)
    assert last(CFL(), world, 10).groups == ((1, 2), (3, 4))


# -- silence and partial participation
# --------------------------------------------------------------------------------------


def test_an_absent_client_is_not_a_zero() -> None:
    # Published slip: absent clients enter the similarity as zero rows and end on a side of their
    # own. Here client 40 is silent when the others split: the sides are those of the others, and it
    # walks to its own when it speaks again.
    world = grouped(THREE)
    split = None
    speaks: list[int] = []
    for played in play(CFL(), world, 40, silent=lambda e, c: c == 40 and not speaks):
        parts = next((n.parts for n in played.notes if n.kind == "split"), None)
        if split is None and parts:
            split = parts
            speaks.append(40)
            assert played.state.walkers == {40: 0}
            assert (40,) in played.groups
            heard = as_groups([[c for c in g if c != 40] for g in TRUTH])
            assert all(any(set(g) <= set(part) for part in parts) for g in heard)
            assert torch.equal(
                played.assignment.models[played.assignment.row[40]],
                played.state.tree.nodes[0].model,
            )
    assert played.groups == TRUTH


def test_a_split_needs_a_quorum() -> None:
    world = grouped(THREE)
    few = lambda e, c: c not in (2, 3, 8, 17, 5)  # noqa: E731  (5 of 12 answer)
    end = last(CFL(quorum=0.5), world, 30, silent=few)
    assert len(end.groups) == 1
    assert "only 5 of 12 members answered" in end.notes[0].text
    assert len(last(CFL(quorum=0.4), world, 30, silent=few).groups) > 1


def test_with_a_client_fraction_a_group_is_asked_in_full_before_it_splits() -> None:
    asked_before_split = []
    for played in play(CFL(fraction=0.5), grouped(THREE), 60):
        asked_before_split += [
            set(note.clients) <= set(played.plan.tasks)
            for note in played.notes
            if note.kind == "split"
        ]
        if all(note.kind == "keep" for note in played.notes):
            assert len(played.plan.tasks) <= math.ceil(0.5 * 12) + len(played.groups)
    assert asked_before_split == [True, True]
    assert played.groups == TRUTH


# -- other modes
# --------------------------------------------------------------------------------------------------------------


def test_scheduled_splits_take_the_least_alike_group() -> None:
    method = CFL(split_rounds=(4, 6))
    counts = [len(p.groups) for p in play(method, grouped(THREE), 8)]
    assert counts == [1, 1, 1, 2, 2, 3, 3, 3]
    assert last(method, grouped(THREE), 8).groups == TRUTH


def test_scheduled_splits_allow_for_the_size_of_a_group() -> None:
    """Three who agree and differ by noise alone have lower cosines than eight of two kinds, and yet are not less alike."""
    rng = np.random.default_rng(0)
    alike = np.array(
        [[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]]
    )  # they sum to zero: cosines of -1/2
    kinds = np.repeat([[1.0, 0.0], [-1.0, 0.0]], 4, axis=0) @ np.eye(2, 20) + rng.normal(
        0, 0.2, (8, 20)
    )
    kinds[:, 2:] -= kinds[:, 2:].mean(0)
    rows = np.zeros((11, 20))
    rows[:3, :2], rows[3:] = alike, kinds
    method = CFL(split_rounds=(1,))
    federation = Federation(
        clients=tuple(range(11)), draw=lambda i: torch.zeros(20), columns={"all": (0, 20)}
    )
    state = method.init(federation)
    leaf = state.leaves[0]
    state = replace(
        state,
        leaves=(
            replace(leaf, clients=(0, 1, 2)),
            replace(leaf, node=1, clients=tuple(range(3, 11))),
        ),
    )
    replies = Replies(
        clients=federation.clients,
        examples=np.full(11, 5),
        chosen=((0,),) * 11,
        updates=torch.tensor(rows).float(),
    )
    said = {
        leaf.node: method.group_updates(state, row, replies)
        for row, leaf in enumerate(state.leaves)
    }
    few, many = said[0], said[1]
    assert few
    assert many
    assert few.sides
    assert many.sides
    assert few.sides.cross < many.sides.cross
    assert few.alpha > many.alpha
    assert method.scheduled_node(state, said) == 1


def test_scheduled_splits_respect_the_smallest_size() -> None:
    # One odd client: the least alike cut would be a group of one.
    world = grouped([[1, 2, 3, 4, 5], [6]])
    assert last(CFL(split_rounds=(4,)), world, 5).groups == ((1, 2, 3, 4, 5), (6,))
    assert last(CFL(split_rounds=(4,), min_cluster_size=2), world, 5).groups == (
        (1, 2, 3, 4, 5, 6),
    )


def test_a_split_by_gradients_keeps_the_losses_of_the_model_it_stores() -> None:
    method = CFL(similarity="gradients", post_split="parent-mean", fallback=True)
    world = grouped(THREE)
    end = last(method, world, 40)
    for node in end.state.tree.nodes:
        for client, loss in node.losses.items():
            assert loss == pytest.approx(
                float(((node.model - world.targets[client]) ** 2).sum()) / 2, rel=1e-4
            )
    assert end.groups == TRUTH


def test_gradients_are_an_exchange_of_their_own_and_move_no_model() -> None:
    method = CFL(similarity="gradients", post_split="parent-mean")
    before = None
    for played in play(method, grouped(THREE), 40):
        if any(task.gradient for task in played.plan.tasks.values()):
            assert before is not None
            assert not played.plan.ends_round
            start = before.assignment
            for client in played.plan.tasks:  # children start from θ*
                mine = played.assignment.models[played.assignment.row[client]]
                assert torch.equal(mine, start.models[start.row[client]])
        before = played
    assert before is not None
    assert before.groups == TRUTH


def test_fallback_serves_the_ancestor_that_was_better() -> None:
    # A split by schedule of clients who agree, and then noise: the root's model at the split served
    # them better.
    world = grouped([[1, 2, 3, 4]], noise=0.0)
    method = CFL(split_rounds=(8,), fallback=True)
    state = last(method, world, 9).state
    leaf = state.leaves[0]
    client = leaf.clients[0]
    worse = replace(leaf, losses=dict.fromkeys(leaf.clients, 1000000.0))
    assignment = method.assignment(replace(state, leaves=(worse, *state.leaves[1:])))
    assert torch.equal(assignment.models[assignment.row[client]], state.tree.nodes[0].model)
    better = replace(leaf, losses=dict.fromkeys(leaf.clients, -1.0))
    assignment = method.assignment(replace(state, leaves=(better, *state.leaves[1:])))
    assert torch.equal(assignment.models[assignment.row[client]], leaf.model)


def test_fallback_without_validation_data_is_refused() -> None:
    method, world = CFL(fallback=True), two(1.0, -1.0)
    state = method.init(world.federation())
    plan = method.plan(state, Cohort(present=(4, 9), exchange=0, seed=0))
    replies = replace(world.replies(plan, 0, lambda *_: False), losses=((math.nan,), (math.nan,)))
    with pytest.raises(SettingError, match=r"CFL\.fallback true needs validation data"):
        method.step(state, replies)


def test_no_reply_leaves_everything_as_it_is() -> None:
    method, world = CFL(), two(1.0, -1.0)
    state = method.init(world.federation())
    none = Replies(clients=(), examples=np.zeros(0, dtype=np.int64), updates=torch.zeros(0, 2))
    assert torch.equal(
        method.assignment(method.step(state, none)).models, method.assignment(state).models
    )


# -- reductions
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "never_splits", [{"eps2": math.inf}, {"eps1": 0.0}, {"split_rounds": ()}, {"warmup": 10**6}]
)
@pytest.mark.parametrize("weighting", ["uniform", "data"])
def test_cfl_that_never_splits_is_fedavg(never_splits: dict[str, float], weighting: str) -> None:
    world = grouped(THREE, examples={2: 9, 51: 4})
    cfl = last(CFL(weighting=weighting, **never_splits), world, 12).assignment  # type: ignore[arg-type]
    fedavg = last(FedAvg(weighting=weighting), world, 12).assignment
    assert torch.equal(cfl.models, fedavg.models)
    assert cfl.groups == fedavg.groups


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"eps1": -0.1}, r"CFL\.eps1 must be >= 0, got -0\.1"),
        ({"gamma_max": 1.0}, r"CFL\.gamma_max must be >= 0 and < 1, got 1\.0"),
        ({"eps1": math.nan}, r"CFL\.eps1 must be >= 0, got nan"),
        ({"scale": "relativ"}, "did you mean relative"),
        ({"similarity": "gradients"}, "needs post_split parent-mean, got child-mean"),
        ({"split_rounds": (0,)}, r"CFL\.split_rounds must be >= 1, got 0"),
        ({"min_cluster_size": 0}, "must be >= 1, got 0"),
        ({"persistence": 1.5}, "must be an integer, got 1.5"),
    ],
)
def test_contradictions_are_refused_at_birth(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        CFL(**settings)  # type: ignore[arg-type]
