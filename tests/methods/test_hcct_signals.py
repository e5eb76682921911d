"""HCCT by the signals in updates: by hand, where it is HCCT by updates, and where noise makes the difference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import gram, halves_gram
from coterie.core import Cohort, Federation, HalvedUpdates, Replies, Training
from coterie.methods import HCCT, HCCTE, HCCTP
from coterie.methods._half_steps import of_equal_steps
from coterie.methods._hcct_memory import remember, signal_in
from coterie.methods._hcct_signals import (
    halves_products,
    noise_in,
    share_of_signal,
    without_noise,
)
from coterie.settings import SettingError
from worlds import THREE, TRUTH, grouped, last, play

EACH: dict[str, Any] = {"cosines": "signals", "partition_every": 1}
EVERYONE = tuple(sorted(c for group in THREE for c in group))


# -- by hand
# ----------------------------------------------------------------------------------------------------------

# Two clients agree in the first column. Each has noise of its own in the mean of its halves, and as
# much between them.
A = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])
B = torch.tensor([[1.0, 1.0, 0.0, -1.0], [1.0, 0.0, 1.0, -1.0]])


def heard(halves: bool = True, halved: int = 2) -> Replies:
    return Replies(
        clients=(4, 9),
        examples=np.array([100, 100]),
        chosen=((0,), (0,)),
        updates=(A + B) / 2,
        halves=HalvedUpdates(clients=(4, 9)[:halved], gram=halves_gram(A[:halved], B[:halved]))
        if halves
        else None,
    )


def groups(method: HCCT, replies: Replies) -> Any:
    federation = Federation(clients=(4, 9), draw=lambda i: torch.zeros(4), columns={"all": (0, 4)})
    state = method.init(federation)
    method.plan(state, Cohort(present=(4, 9), exchange=0, seed=0))
    return method.step(state, replies)


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_two_clients_merge_by_the_cosine_of_their_signals(memory: float) -> None:
    # Of whole updates it is 1/2, so λ/N > 0.268 merges; half of ‖g‖² = 2 is noise, so that of
    # signals is 1, and any λ does.
    for share, plain in ((0.26, 2), (0.28, 1)):
        assert len(groups(HCCT(tradeoff=share, memory=memory), heard(halves=False)).next) == plain
        end = groups(HCCT(tradeoff=share, memory=memory, **EACH), heard())
        assert end.next == ((4, 9),)
        assert end.notes[-1].numbers["signal"] == pytest.approx(0.5)
        assert "of 50% signal" in end.notes[-1].text


def test_who_has_no_halves_is_as_noisy_as_the_others() -> None:
    products = gram((A + B) / 2)
    assert noise_in(products, halves_products(heard())).tolist() == [1.0, 1.0]
    assert noise_in(products, halves_products(heard(halved=1))).tolist() == [1.0, 1.0]
    assert noise_in(products, halves_products(heard(halves=False))).tolist() == [0.0, 0.0]
    assert groups(HCCT(**EACH), heard(halved=1)).notes[-1].numbers["signal"] == pytest.approx(0.5)


def test_where_nothing_but_noise_was_seen_whole_updates_count() -> None:
    assert share_of_signal(np.array([4.0, 4.0]), np.array([1.0, 2.0])) == pytest.approx(5 / 8)
    assert share_of_signal(np.array([1.0, 1.0]), np.array([2.0, 0.5])) == 1.0
    assert share_of_signal(np.zeros(2), np.zeros(2)) == 1.0


def test_memory_adds_up_what_is_noise() -> None:
    # Norms² 4 and 1 of which 1 and 1 are noise; then 1 and 1, of which 1/2 and 0. β = 1/2.
    memory = remember(None, (3, 7), np.diag([4.0, 1.0]), 0.5, np.array([1.0, 1.0]))
    memory = remember(memory, (3, 7), np.eye(2), 0.5, np.array([0.5, 0.0]))
    assert signal_in(memory, (3,)) == pytest.approx(1 - (0.5 + 0.5) / (2 + 1))
    assert signal_in(memory, (3, 7)) == pytest.approx(1 - (1.0 + 0.5) / (3 + 1.5))


@given(st.integers(0, 10_000), st.floats(0.01, 0.99))
def test_what_is_left_is_the_gram_matrix_of_some_vectors(seed: int, signal: float) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(8, 5)) * rng.choice([0.0, 0.1, 1.0], size=(8, 1))
    rows -= rng.choice([0.0, 1.0]) * rows.mean(
        axis=0
    )  # a group at its optimum: they add up to nothing
    left = without_noise(rows @ rows.T, signal)
    np.testing.assert_allclose(np.diagonal(left), signal * (rows**2).sum(axis=1), rtol=1e-9)
    assert np.linalg.eigvalsh(left).min() > -1e-9
    np.testing.assert_array_equal(without_noise(rows @ rows.T, 1.0), rows @ rows.T)


# -- where it is HCCT by updates
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{}, {"memory": 0.0}, {"one_shot": True}, {"personal": 1}, {"fraction": 0.5}, {"sketch": 8}],
)
def test_without_noise_it_is_hcct_by_updates(how: dict[str, Any]) -> None:
    silent = lambda e, c: (3 * e + c) % 5 == 0  # noqa: E731
    world = grouped(THREE, noise=0.0, buffers=2, examples={2: 5, 19: 2})
    ours = list(play(HCCT(**EACH, **how), world, 8, silent=silent))
    theirs = list(play(HCCT(**how), world, 8, silent=silent))
    assert [p.groups for p in ours] == [p.groups for p in theirs]
    assert any(task.halves for task in ours[0].plan.tasks.values())


def test_an_infinite_tradeoff_asks_for_no_halves() -> None:
    for played in play(HCCT(tradeoff=math.inf, cosines="signals"), grouped(THREE), 6):
        assert played.plan.need == "mean"
        assert not any(task.halves for task in played.plan.tasks.values())
        assert played.groups == (EVERYONE,)


# -- epochs
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "every"), [({"cosines": "signals"}, 4), ({"partition_every": 3}, 3), (EACH, 1), ({}, 1)]
)
def test_groups_are_made_in_some_epochs_and_halves_asked_in_these_alone(
    how: dict[str, Any], every: int
) -> None:
    history = list(play(HCCT(**how), grouped(THREE, examples=dict.fromkeys(EVERYONE, 100)), 9))
    for epoch, played in enumerate(history):
        due = epoch % every == 0
        tasks = played.plan.tasks.values()
        assert {task.halves for task in tasks} == {due and "cosines" in how}
        assert played.plan.need == ("mean" if not due else "gram" if epoch else "rows")
        assert [note.kind for note in played.notes] == (["partition"] if due else [])
        assert played.groups == (TRUTH if epoch else (EVERYONE,))


def test_an_epoch_in_which_nobody_was_heard_does_not_count() -> None:
    method = HCCT(cosines="signals")
    halves = [
        bool(p.replies.halves is not None)
        for p in play(method, grouped(THREE), 8, silent=lambda e, c: e in (0, 2))
    ]
    assert halves == [False, True, False, False, False, False, True, False]


def test_groups_are_made_until_everybody_has_been_heard_once() -> None:
    silent = lambda e, c: c == 50 and e < 3  # noqa: E731
    halves = [
        p.replies.halves is not None
        for p in play(HCCT(cosines="signals"), grouped(THREE), 9, silent=silent)
    ]
    assert halves == [True, True, True, True, True, False, False, False, True]


def test_all_halves_make_the_same_steps_once_sizes_are_known() -> None:
    world = grouped(THREE, examples={c: 10 + c for c in EVERYONE})
    method = HCCT(**EACH)
    asked = [{task.training for task in p.plan.tasks.values()} for p in play(method, world, 3)]
    middle = float(np.median([10 + c for c in EVERYONE]))
    assert asked[0] == {None}
    assert asked[1] == asked[2] == {replace(Training(), steps=max(1, round(middle / 64)))}


def test_half_the_work_of_a_client_of_median_size() -> None:
    usual = Training(epochs=3, batch=10)
    assert of_equal_steps(usual, [20, 40, 900]) == replace(usual, steps=6)
    assert of_equal_steps(replace(usual, batch=0), [40]) == replace(usual, batch=0, steps=2)
    assert of_equal_steps(replace(usual, steps=7), []) == replace(usual, steps=3)
    assert of_equal_steps(usual, [2]) == replace(usual, steps=1)
    assert of_equal_steps(usual, []) is of_equal_steps(usual, [1, 1, 1]) is None


# -- what it is for
# ---------------------------------------------------------------------------------------------------


def test_noise_breaks_a_group_by_updates_and_not_by_signals() -> None:
    def whole(**how: Any) -> int:
        worlds = (grouped([EVERYONE], d=300, noise=0.12, seed=seed) for seed in range(10))
        return sum(
            last(HCCT(tradeoff=0.3, **how), world, 4).groups == (EVERYONE,) for world in worlds
        )

    assert whole() <= 1
    assert whole(**EACH) >= 9


def test_three_groups_stay_three_in_noise() -> None:
    def found(**how: Any) -> int:
        worlds = (grouped(THREE, d=300, noise=0.15, seed=seed) for seed in range(6))
        return sum(last(HCCT(tradeoff=0.3, **how), world, 4).groups == TRUTH for world in worlds)

    assert found() == 0
    assert found(**EACH) == 6


# -- newcomers, layers
# ------------------------------------------------------------------------------------------------


def test_a_newcomer_finds_its_group_in_the_next_epoch_whichever_that_is() -> None:
    world, method = grouped(THREE, noise=0.1), HCCT(cosines="signals")
    founders = replace(world, targets={c: t for c, t in world.targets.items() if c not in (99, 40)})
    for first in (6, 7, 8):
        state = method.admit(last(method, founders, first).state, (40, 99))
        came, after = play(method, world, 2, state=state, first=first)
        assert all(task.halves for task in came.plan.tasks.values())
        assert after.groups == TRUTH


def test_hcct_e_chooses_its_layer_by_whole_updates_and_compares_the_signals_of_that_layer() -> None:
    world = grouped(THREE, noise=0.3, buffers=1)
    first, *later = play(HCCTE(**EACH), world, 4)
    assert not any(task.halves for task in first.plan.tasks.values())
    columns = slice(*world.columns[first.state.layer])
    for played in later:
        assert played.plan.columns == columns
        assert all(task.halves for task in played.plan.tasks.values())


def test_hcct_p_keeps_its_layers_in_halves_too() -> None:
    for played in play(HCCTP(**EACH), grouped(THREE), 3):
        assert {(task.halves, task.local_layers) for task in played.plan.tasks.values()} == {
            (True, ("rest",))
        }


def test_groups_of_those_who_are_heard() -> None:
    silent = lambda e, c: (c + e) % 2 == 0 and e > 0  # noqa: E731
    for seed in range(3):
        history = list(play(HCCT(**EACH), grouped(THREE, noise=0.1, seed=seed), 20, silent=silent))
        assert all(p.groups == TRUTH for p in history[1:])


def test_what_is_no_number_of_epochs_is_refused() -> None:
    with pytest.raises(SettingError, match=r"HCCT\.partition_every must be >= 1, got 0"):
        HCCT(partition_every=0)
    with pytest.raises(SettingError, match=r"HCCT\.cosines must be one of updates, signals"):
        HCCT(cosines="signal")
