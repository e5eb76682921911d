"""HCCT against its paper: utilities in notes, epochs and their groups, silent clients, newcomers, and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import gram, utility_merge
from coterie.core import Cohort, Replies, as_groups
from coterie.data import splits
from coterie.methods import HCCT, FedAvg
from coterie.methods.hcct_groups import follow
from coterie.methods.hcct_memory import begin, forget, recall, remember
from coterie.settings import SettingError
from worlds import THREE, TRUTH, Played, Pull, grouped, last, play

PAPER = {"memory": 0.0}
SOME = {2: 9, 51: 4, 99: 2, 40: 6}


def directions(*rows: tuple[float, ...], examples: tuple[int, ...] = (), rate: float = 0.5) -> Pull:
    """Clients 10, 20, ... whose targets are these rows, and two more columns of zeros."""
    targets = {10 * (i + 1): torch.tensor([*row, 0.0, 0.0]) for i, row in enumerate(rows)}
    return Pull(targets=targets, examples=dict(zip(targets, examples, strict=False)), rate=rate)


def after(method: HCCT, world: Pull, exchanges: int = 1, **how: object) -> Played:
    return last(method, world, exchanges, **how)


def following(played: Played) -> object:
    return played.state.next


# -- the partition ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("c", "critical"), [(0.5, 0.267949), (0.0, 0.585786), (-0.5, 1.0)])
def test_two_clients_merge_above_the_critical_share_of_their_size(c: float, critical: float) -> None:
    world = directions((1.0, 0.0), (c, math.sqrt(1 - c * c)), examples=(70, 70))
    for share, groups in ((critical - 1e-4, 2), (critical + 1e-4, 1)):
        end = after(HCCT(tradeoff=share), world, 2)
        assert len(end.groups) == groups
        assert len(after(HCCT(tradeoff=70 * share, scale="absolute"), world, 2).groups) == groups
        assert len(after(HCCT(tradeoff=share, scale="per-client"), world, 2).groups) == groups


def test_the_first_epoch_is_one_group_and_each_later_one_a_new_partition() -> None:
    first, second, *_ = play(HCCT(**PAPER), grouped(THREE), 3)
    assert first.groups == (tuple(sorted(c for group in THREE for c in group)),)
    assert len(first.plan.models) == 1
    assert first.notes[-1].kind == "partition"
    assert first.notes[-1].parts == TRUTH
    assert second.groups == TRUTH
    assert len(second.plan.models) == 3


def test_no_tradeoff_leaves_everyone_alone() -> None:
    assert after(HCCT(tradeoff=0.0), grouped(THREE), 2).groups == as_groups((c,) for group in THREE for c in group)


def test_two_orthogonal_blocks_have_the_utility_of_the_definition() -> None:
    # 6 (1 - 10/300) = 5.8. The published report counts own data twice, 1 - λ/(N_n + N_G), and would say 5.85.
    world = directions(*[(1.0, 0.0)] * 3, *[(0.0, 1.0)] * 3, examples=(100,) * 6)
    note = after(HCCT(tradeoff=10.0, scale="absolute"), world).notes[-1]
    assert note.parts == ((10, 20, 30), (40, 50, 60))
    assert note.numbers["utility"] == pytest.approx(5.8)
    assert set(note.values["utility"]) == set(world.clients)
    assert note.values["utility"][40] == pytest.approx(1 - 10 / 300)
    assert note.values["gain"][40] == pytest.approx(10 / 100 - 10 / 300)
    assert note.values["group_utility"][10] == pytest.approx(2.9)
    assert note.numbers["best_open"] == pytest.approx(6 * (math.sqrt(0.5) - 10 / 600) - 5.8)
    assert "2 groups of 6 clients" in note.text
    assert note.similarity["all"].shape == (6, 6)


def test_identical_gradients_are_one_group_worth_k_less_the_price() -> None:
    world = directions(*[(1.0, 0.5)] * 5, examples=(50,) * 5)
    note = after(HCCT(tradeoff=3.0, scale="absolute"), world).notes[-1]
    assert note.numbers["utility"] == pytest.approx(5 - 5 * 3 / 250)
    assert note.parts == ()  # nothing changed


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["mean-size", "absolute", "per-client"]))
def test_the_partition_is_that_of_the_updates_heard(seed: int, scale: str) -> None:
    rng = np.random.default_rng(seed)
    examples = {c: int(n) for c, n in zip((c for g in THREE for c in g), rng.integers(1, 9, size=12), strict=True)}
    world, silent = grouped(THREE, noise=2.0, seed=seed, examples=examples), set(rng.choice(list(examples), 4))
    method = HCCT(tradeoff=0.8 if scale != "absolute" else 2.0, scale=scale, **PAPER)
    end = after(method, world, silent=lambda e, c: c in silent)
    shown = world.replies(method.plan(method.init(world.federation()), cohort(world)), 0, lambda e, c: c in silent)
    sizes = np.array([examples[c] for c in shown.clients])
    price = {"mean-size": 0.8 * sizes.mean(), "absolute": 2.0, "per-client": 0.8 * sizes}[scale]
    assert shown.gram is not None
    expected = [[shown.clients[i] for i in part] for part in utility_merge(shown.gram, sizes, price)]
    assert as_groups([c for c in group if c not in silent] for group in following(end)) == as_groups(expected)


def cohort(world: Pull) -> Cohort:
    return Cohort(present=world.clients, exchange=0, seed=0)


@pytest.mark.parametrize("m", [1, 3, 12])
def test_a_fixed_number_of_groups(m: int) -> None:
    assert len(after(HCCT(groups=m), grouped(THREE), 2).groups) == m


# -- models -----------------------------------------------------------------------------------------------------------


def test_a_group_starts_from_the_mean_of_its_members_models_by_their_data() -> None:
    # 10 and 20 agree at first, 20 and 30 from then on.
    world = directions((4.0, 0.0), (4.0, 1.0), (0.0, 6.0), examples=(1, 2, 5), rate=1.0)
    method = HCCT(tradeoff=0.3, **PAPER)
    state = after(method, world, 2).state
    assert state.groups == ((10, 20), (30,))
    moved = as_groups([[10], [20, 30]])
    plan = method.plan(type(state)(**{**vars(state), "next": moved}), cohort(world))
    of = {c: state.models[state.row[c]] for c in world.clients}
    assert torch.equal(plan.models[0], of[10])
    torch.testing.assert_close(plan.models[1], (2 * of[20] + 5 * of[30]) / 7)


WHOLE: list[dict[str, float]] = [{"tradeoff": math.inf}, {"tradeoff": 1e6}, {"tradeoff": 100.0, "memory": 0.0}]


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_a_large_tradeoff_is_fedavg_bit_for_bit(whole: dict[str, float], fraction: float) -> None:
    world = grouped(THREE, examples=SOME)
    silent: Callable[[int, int], bool] = lambda e, c: (5 * e + c) % 7 == 0  # noqa: E731
    ours = list(play(HCCT(fraction=fraction, **whole), world, 10, silent=silent))  # type: ignore[arg-type]
    theirs = list(play(FedAvg(fraction=fraction), world, 10, silent=silent))
    for one, other in zip(ours, theirs, strict=True):
        assert set(one.plan.tasks) == set(other.plan.tasks)
        assert one.groups == other.groups
        assert torch.equal(one.assignment.models, other.assignment.models)


def test_buffers_are_averaged_by_data_but_no_similarity() -> None:
    # Published slip: counters that move alike in all clients drown the cosine, and statistics are those of client 0.
    targets = {c: torch.tensor([1.0 - (c > 2), 0.0 + (c > 2), 0.0, 0.0, 1000.0 + c]) for c in (1, 2, 3, 4)}
    world = Pull(targets=targets, examples={3: 3}, buffers=1, rate=1.0)
    end = after(HCCT(tradeoff=0.1), world, 2)
    assert end.groups == ((1, 2), (3, 4))
    assert end.assignment.models[:, 4].tolist() == [1001.5, 1003.25]


# -- silent clients ---------------------------------------------------------------------------------------------------


def test_follow_goes_with_most_data_of_the_old_group() -> None:
    old, sizes = [[1, 2, 3, 4], [5, 6], [7]], {1: 5, 2: 3, 3: 3, 5: 1}
    assert as_groups(follow([[1], [2, 3], [5]], old, sizes)) == ((1,), (2, 3, 4), (5, 6), (7,))
    assert as_groups(follow([[1], [2], [5]], old, {**sizes, 1: 3})) == ((1, 3, 4), (2,), (5, 6), (7,))
    assert as_groups(follow([], old, sizes)) == as_groups(old)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_follow_is_a_partition_that_keeps_the_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = rng.permutation(12).tolist()
    labels, new, heard = rng.integers(4, size=12), rng.integers(3, size=12), rng.random(12) < 0.6
    old = [[c for c, g in zip(clients, labels, strict=True) if g == j] for j in range(4)]
    parts = [p for p in ([c for c, g, h in zip(clients, new, heard, strict=True) if h and g == j] for j in range(3)) if p]
    result = follow(parts, old, dict.fromkeys(clients, 1))
    assert sorted(c for group in result for c in group) == sorted(clients)
    assert [group[: len(part)] for group, part in zip(result, parts, strict=False)] == parts


def test_a_silent_client_goes_with_its_group_and_keeps_its_weight() -> None:
    world = grouped(THREE, noise=0.0, examples=SOME)
    silent = lambda e, c: c == 40 and e >= 2  # noqa: E731
    *_, before, end = play(HCCT(**PAPER), world, 6, silent=silent)
    assert end.groups == TRUTH
    assert end.assignment.row[40] == end.assignment.row[2]
    assert not torch.equal(end.assignment.models[end.assignment.row[40]], before.assignment.models[before.assignment.row[40]])


def test_a_group_that_is_silent_stays_as_it_is() -> None:
    gone = {3, 5, 50, 51}
    *_, before, end = play(HCCT(**PAPER), grouped(THREE), 5, silent=lambda e, c: e >= 3 and c in gone)
    assert end.groups == TRUTH
    for c in gone:
        assert torch.equal(end.assignment.models[end.assignment.row[c]], before.assignment.models[before.assignment.row[c]])


def test_an_epoch_without_answers_changes_nothing() -> None:
    *_, before, end = play(HCCT(), grouped(THREE), 4, silent=lambda e, c: e == 3)
    assert end.notes == ()
    assert torch.equal(before.assignment.models, end.assignment.models)
    assert before.state.next == end.state.next


def test_remembered_cosines_place_those_who_are_silent() -> None:
    # Two of each group are silent in every epoch, other ones each time: the definition would see halves of groups.
    silent = lambda e, c: (c + e) % 2 == 0 and e > 0  # noqa: E731
    for seed in range(3):
        history = list(play(HCCT(), grouped(THREE, seed=seed), 40, silent=silent))
        assert all(p.groups == TRUTH for p in history[1:])


# -- memory -----------------------------------------------------------------------------------------------------------


def test_without_memory_noise_dissolves_a_group_at_its_optimum() -> None:
    world = grouped(THREE)
    assert all(p.groups == TRUTH for p in list(play(HCCT(), world, 60))[1:])
    assert last(HCCT(**PAPER), world, 60).groups != TRUTH


def test_memory_by_hand() -> None:
    # Norms 2 and 1, cosine 1/2; then 1 and 1, cosine -1. β = 1/2: (1/2 · 1 - 1) / (1/2 · 2 + 1) = -1/4.
    first = remember(None, (7, 3), np.array([[4.0, 1.0], [1.0, 1.0]]), 0.5)
    clients, matrix = recall(first, (3, 7))
    assert clients == (3, 7)
    assert matrix.tolist() == [[1.0, 1.0], [1.0, 4.0]]
    second = remember(first, (3, 7), np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.5)
    # Mean norms: 7 has (1/2 · 4 + 1) / (1/2 · 2 + 1) = 1.5, 3 has 1.
    assert recall(second, (3, 7))[1].tolist() == [[1.0, -0.25 * 1.5], [-0.25 * 1.5, 1.5**2]]


def test_memory_tells_of_silent_clients_only_what_was_seen() -> None:
    memory = remember(None, (1, 2), np.eye(2), 0.9)
    memory = remember(memory, (2, 3), np.ones((2, 2)), 0.9)
    assert recall(memory, (2, 3))[0] == (2, 3)  # 1 and 3 were never heard together
    assert recall(memory, (2,))[0] == (1, 2)
    assert recall(memory, (3,))[0] == (2, 3)
    left = forget(memory, {2})
    assert left is not None
    assert left.clients == (1, 3)
    assert left.weights[0, 1] == 0
    assert forget(left, {1, 3}) is None


def test_a_first_update_is_compared_with_first_updates() -> None:
    axes = torch.eye(2)
    memory = begin(remember(None, (1, 2), np.eye(2), 0.9), (1, 2), axes)
    memory = remember(memory, (1, 2), np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.9)
    # Now 5 comes, and moves as 1 did at first. What 1 and 2 say in this epoch is another matter.
    memory = begin(remember(memory, (1, 2, 5), np.diag([1.0, 1.0, 4.0]), 0.9), (5,), 2 * axes[:1])
    clients, matrix = recall(memory, (1, 2, 5))
    cosines = matrix / np.sqrt(np.outer(np.diagonal(matrix), np.diagonal(matrix)))
    assert clients == (1, 2, 5)
    assert cosines[2].tolist() == [1.0, 0.0, 1.0]
    assert memory.began == (1, 2, 5)
    left = forget(memory, {1})
    assert left is not None
    assert left.firsts is not None
    assert left.began == (2, 5)
    assert left.firsts.tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_memory_of_one_epoch_is_its_gram_matrix() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4))
    rows[2] = 0.0
    np.testing.assert_allclose(recall(remember(None, tuple(range(6)), gram(rows), 0.9), range(6))[1], gram(rows), atol=1e-12)


# -- one shot ---------------------------------------------------------------------------------------------------------


def test_one_shot_asks_everyone_once_and_never_needs_more_than_means() -> None:
    first, *later = play(HCCT(one_shot=True, fraction=0.5), grouped(THREE), 6)
    assert len(first.plan.tasks) == 12
    assert {len(p.plan.tasks) for p in later} == {6}
    assert {p.groups for p in later} == {TRUTH}
    assert {p.plan.need for p in later} == {"mean"}
    assert all(not p.notes for p in later)


def test_one_shot_places_those_silent_in_it_when_they_are_heard() -> None:
    late = (17, 19)
    history = list(play(HCCT(one_shot=True), grouped(THREE), 7, silent=lambda e, c: c in late and e < 3))
    assert history[0].state.waiting == late
    assert {g for g in history[1].groups if set(g) & set(late)} == {(17,), (19,)}
    for c in late:  # never heard: the first model
        assert torch.equal(history[2].assignment.models[history[2].assignment.row[c]], grouped(THREE).federation().draw(0))
    assert history[-1].groups == TRUTH
    assert [n.kind for n in history[3].notes] == ["join", "join", "partition"]
    assert {p.plan.need for p in history[4:]} == {"mean"}


# -- clients that come and go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        (HCCT(), ["join", "partition"]),
        (HCCT(newcomers="partition"), ["partition"]),
        (HCCT(one_shot=True, newcomers="partition"), ["join", "partition"]),
    ],
)
def test_a_newcomer_trains_alone_from_the_first_model_and_finds_its_group(method: HCCT, kinds: list[str]) -> None:
    world = grouped(THREE)
    before = Pull(targets={c: t for c, t in world.targets.items() if c != 31}, noise=world.noise)
    state = method.admit(last(method, before, 2).state, (31,))
    assert (31,) in method.assignment(state).groups
    assert torch.equal(state.models[state.row[31]], world.federation().draw(0))
    alone, together = play(method, world, 2, state=state, first=2)
    assert torch.equal(alone.plan.models[alone.plan.tasks[31].offered[0]], world.federation().draw(0))
    assert (31,) in alone.groups
    assert [n.kind for n in alone.notes] == kinds
    assert kinds[0] != "join" or "client 31 joins the group of client 2," in alone.notes[0].text
    assert together.groups == TRUTH


@pytest.mark.parametrize("method", [HCCT(), HCCT(newcomers="partition"), HCCT(one_shot=True)])
def test_a_newcomer_finds_its_group_when_the_others_are_at_their_optimum(method: HCCT) -> None:
    for seed in range(3):
        world = grouped(THREE, seed=seed)
        before = Pull(targets={c: t for c, t in world.targets.items() if c not in (31, 99)}, noise=world.noise)
        state = method.admit(last(method, before, 40).state, (31, 99))
        alone, *_, end = play(method, world, 4, state=state, first=40)
        assert alone.plan.need == "rows"
        assert {alone.plan.tasks[c].lr_round for c in (31, 99)} == {0}
        assert end.groups == TRUTH


def test_a_newcomer_that_nobody_gains_by_stays_alone() -> None:
    world = directions((1.0, 0.0), (1.0, 0.1), (-1.0, 0.0), examples=(50, 50, 50))
    two = directions((1.0, 0.0), (1.0, 0.1), examples=(50, 50))
    for method in (HCCT(), HCCT(one_shot=True)):
        state = method.admit(last(method, two, 2).state, (30,))
        alone, after = play(method, world, 2, state=state, first=2)
        assert "stays alone" in alone.notes[0].text
        assert alone.notes[0].numbers["gain"] < 0
        assert after.groups == ((10, 20), (30,))


def test_those_who_leave_are_in_no_group_and_come_back_as_new() -> None:
    method, world = HCCT(), grouped(THREE)
    state = method.retire(last(method, world, 3).state, (2, 17))
    assert sorted(method.assignment(state).row) == sorted(set(world.clients) - {2, 17})
    assert (31, 40) in method.assignment(state).groups
    state = method.admit(state, (2, 17))
    assert {(2,), (17,)} <= set(method.assignment(state).groups)
    assert last(method, world, 2, state=state, first=3).groups == TRUTH


def test_everyone_may_leave_and_come_back() -> None:
    for method in (HCCT(), HCCT(one_shot=True), HCCT(tradeoff=math.inf)):
        world = grouped(THREE)
        state = method.retire(last(method, world, 3).state, world.clients)
        plan = method.plan(state, cohort(world))
        assert not plan.tasks
        state = method.step(state, Replies(clients=(), examples=np.zeros(0, dtype=np.int64)))
        end = last(method, world, 2, state=method.admit(state, world.clients), first=3)
        assert end.groups == (TRUTH if method.tradeoff < math.inf else (world.clients,))


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"tradeoff": -0.1}, r"HCCT\.tradeoff must be >= 0, got -0\.1"),
        ({"tradeoff": math.nan}, r"HCCT\.tradeoff must be >= 0, got nan"),
        ({"groups": 3, "tradeoff": math.inf}, r"HCCT\.groups 3 needs a finite tradeoff"),
        ({"scale": "mean"}, "must be one of mean-size, absolute, per-client"),
        ({"memory": 1.5}, r"HCCT\.memory must be >= 0 and <= 1"),
        ({"personal": -1}, r"HCCT\.personal must be >= 0"),
    ],
)
def test_contradictions_are_refused_at_birth(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        HCCT(**wrong)  # type: ignore[arg-type]


def test_more_than_there_is_is_refused_before_the_first_round() -> None:
    world = directions((1.0, 0.0), (0.0, 1.0))
    with pytest.raises(SettingError, match=r"HCCT\.groups must be at most the 2 clients, got 3"):
        HCCT(groups=3).init(world.federation())
    with pytest.raises(SettingError, match=r"HCCT\.personal must be at most the 2 layers of the model, got 3"):
        HCCT(personal=3).init(world.federation())


def test_training_sets_of_the_papers_sizes() -> None:
    # Digit: 206 images a client of which 0.9 train; FMNIST: 3000, of which 0.04.
    assert len(splits.hold_out(np.arange(206), 0.9, 0.1, False)[0]) == 185
    assert len(splits.hold_out(np.arange(3000), 0.04, 0.0, True)[0]) == 120
