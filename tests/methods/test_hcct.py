"""HCCT against its paper: utilities in notes, epochs and their groups, silent clients, newcomers, and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import utility_merge
from coterie.core import Cohort, as_groups
from coterie.data import splits
from coterie.methods import HCCT, FedAvg
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


# -- the partition
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("c", "critical"), [(0.5, 0.267949), (0.0, 0.585786), (-0.5, 1.0)])
def test_two_clients_merge_above_the_critical_share_of_their_size(
    c: float, critical: float
) -> None:
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
    assert after(HCCT(tradeoff=0.0), grouped(THREE), 2).groups == as_groups(
        (c,) for group in THREE for c in group
    )


def test_two_orthogonal_blocks_have_the_utility_of_the_definition() -> None:
    # 6 (1 - 10/300) = 5.8. The published report counts own data twice, 1 - λ/(N_n + N_G), and would
    # say 5.85.
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
    examples = {
        c: int(n)
        for c, n in zip((c for g in THREE for c in g), rng.integers(1, 9, size=12), strict=True)
    }
    world, silent = (
        grouped(THREE, noise=2.0, seed=seed, examples=examples),
        set(rng.choice(list(examples), 4)),
    )
    method = HCCT(tradeoff=0.8 if scale != "absolute" else 2.0, scale=scale, **PAPER)
    end = after(method, world, silent=lambda e, c: c in silent)
    shown = world.replies(
        method.plan(method.init(world.federation()), cohort(world)), 0, lambda e, c: c in silent
    )
    sizes = np.array([examples[c] for c in shown.clients])
    price = {"mean-size": 0.8 * sizes.mean(), "absolute": 2.0, "per-client": 0.8 * sizes}[scale]
    assert shown.gram is not None
    expected = [
        [shown.clients[i] for i in part] for part in utility_merge(shown.gram, sizes, price)
    ]
    assert as_groups(
        [c for c in group if c not in silent] for group in following(end)
    ) == as_groups(expected)


def cohort(world: Pull) -> Cohort:
    return Cohort(present=world.clients, exchange=0, seed=0)


@pytest.mark.parametrize("m", [1, 3, 12])
def test_a_fixed_number_of_groups(m: int) -> None:
    assert len(after(HCCT(groups=m), grouped(THREE), 2).groups) == m


# -- models
# -----------------------------------------------------------------------------------------------------------


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


WHOLE: list[dict[str, float]] = [
    {"tradeoff": math.inf},
    {"tradeoff": 1e6},
    {"tradeoff": 100.0, "memory": 0.0},
]


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
    # Published slip: counters that move alike in all clients drown the cosine, and statistics are
    # those of client 0.
    targets = {
        c: torch.tensor([1.0 - (c > 2), 0.0 + (c > 2), 0.0, 0.0, 1000.0 + c]) for c in (1, 2, 3, 4)
    }
    world = Pull(targets=targets, examples={3: 3}, buffers=1, rate=1.0)
    end = after(HCCT(tradeoff=0.1), world, 2)
    assert end.groups == ((1, 2), (3, 4))
    assert end.assignment.models[:, 4].tolist() == [1001.5, 1003.25]


# -- settings
# ---------------------------------------------------------------------------------------------------------


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
    with pytest.raises(
        SettingError, match=r"HCCT\.personal must be at most the 2 layers of the model, got 3"
    ):
        HCCT(personal=3).init(world.federation())


def test_training_sets_of_the_papers_sizes() -> None:
    # Digit: 206 images a client of which 0.9 train; FMNIST: 3000, of which 0.04.
    assert len(splits.hold_out(np.arange(206), 0.9, 0.1, False)[0]) == 185
    assert len(splits.hold_out(np.arange(3000), 0.04, 0.0, True)[0]) == 120
