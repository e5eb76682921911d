"""Private split-half: groups that the server does not know, and noise that the accountant knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.boundary import Boundary, spent
from coterie.contrib.private import SplitHalfPrivate
from coterie.contrib.private.cells import COVERED
from coterie.contrib.private.split_half_private import CROSSED_COST, PLACES_COST
from coterie.contrib.private.sums import COUNT_WEIGHT
from coterie.core import Cohort, Round, Training
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.methods import FedAvg
from coterie.report.summary import agreement
from coterie.settings import SettingError
from method_examples import slow
from scripted import play
from small import mlp, world


def digits(
    clients: int = 24, scenario: str = "label-permutation", seed: int = 0, **how: Any
) -> World:
    made = replace(SCENARIOS[f"digits/{scenario}"], clients=clients, samples=70, **how).build(seed)
    return replace(made, training=Training(lr=0.3, batch=20, epochs=2))


def run(tried: World, rounds: int = 14, seed: int = 0, **how: Any) -> list[Round]:
    return list(
        inprocess.rounds(SplitHalfPrivate(), tried, rounds=rounds, seed=seed, workers=1, **how)
    )


def test_it_finds_the_groups_of_the_digits_and_the_server_does_not_know_them() -> None:
    tried = digits()
    done = run(tried)
    assert agreement(done[-1].assignment.groups, tried.truth) == 1.0
    own = SplitHalfPrivate().assignment(done[-1].position.state)
    assert own.groups == (tuple(sorted(tried.clients)),)
    assert own.hidden
    split = [note for one in done for note in one.notes if note.kind == "split"]
    assert len(split) == 1
    assert split[0].parts == ()
    assert split[0].numbers["groups"] == len(own.models)


@pytest.mark.parametrize("seed", [0, 1, *slow(2, 3, 4)])
def test_it_finds_no_groups_where_there_are_none(seed: int) -> None:
    done = run(digits(scenario="iid", seed=seed), 12, seed)
    assert len(done[-1].assignment.models) == 1
    assert all(note.kind == "keep" for one in done for note in one.notes)


def test_one_model_is_fedavg_with_equal_weights() -> None:
    whole = Training(lr=0.1, batch=0)  # no order of examples is drawn: exchanges have other numbers
    never, tried = SplitHalfPrivate(first_probe=99), replace(world(model=mlp), training=whole)
    for one, other in zip(
        play(never, tried, 3), play(FedAvg(weighting="uniform"), tried, 3), strict=True
    ):
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-5, atol=1e-6
        )


def test_all_plans_hide_who_takes_what_and_ask_only_what_noise_covers() -> None:
    tried, method, asked = digits(), SplitHalfPrivate(), set()
    for done in run(tried):
        plan = method.plan(
            done.position.state, Cohort(present=tuple(tried.clients), exchange=0, seed=0)
        )
        assert plan.private.hides_choices
        assert len(set(plan.tasks.values())) == 1  # the same task for all
        asked |= {
            task.private.question.ask
            for task in plan.tasks.values()
            if task.private.question is not None
        }
    assert asked <= {*COVERED, "cell"}
    assert "cell" in asked


def test_a_run_counts_as_its_rounds_and_its_questions() -> None:
    done = run(digits(), boundary=Boundary(masks=True, clip=5.0, bound=10.0, noise=0.01))
    counts = [max(one.released.values()) for one in done]
    search = (
        1 + 3 * CROSSED_COST + 2 * PLACES_COST
    )  # distances, and no cell of the last level is cut; it begins the next round
    assert counts == [2, 1, 1, 1, 1, search + 1, *[1] * 8]
    state = done[-1].position.state
    assert 0 < state.clip < 5.0  # the median norm
    assert agreement(done[-1].assignment.groups, digits().truth) > 0.5


def test_noise_is_as_large_as_the_accountant_takes_it() -> None:
    """Of the same world with and without noise: the difference of one round's models."""
    quiet = Boundary(masks=True, clip=0.5, noise=1e-12, honest=1.0)
    tried, n = world(model=mlp), len(world(model=mlp).clients)
    plain = play(SplitHalfPrivate(), tried, 1, boundary=quiet)[0].position.state
    noisy = play(SplitHalfPrivate(), tried, 1, boundary=replace(quiet, noise=1e-3))[
        0
    ].position.state
    assert noisy.clip == plain.clip
    apart = (noisy.models - plain.models)[0, :75]
    expected = 1e-3 * plain.clip * (1 + COUNT_WEIGHT**2) ** 0.5 / n
    assert 0.75 * expected < float(apart.std()) < 1.3 * expected


def test_epsilon_of_sums_is_that_of_leaving_a_client_out() -> None:
    assert spent(10.0, 66, sums=True) == pytest.approx(spent(20.0, 66))
    dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting.pld import PLDAccountant

    ledger = PLDAccountant()
    for cost, times in (
        (1, 42),
        (CROSSED_COST, 3),
        (PLACES_COST, 3),
    ):  # a question's noise is less by the square root of its cost
        ledger.compose(dp.GaussianDpEvent(10.0 / cost**0.5), times)
    assert spent(10.0, 66, sums=True) == pytest.approx(float(ledger.get_epsilon(1e-5)), rel=1e-3)


def test_a_client_that_comes_later_finds_its_group_by_itself() -> None:
    tried = digits()
    late = max(tried.clients)
    tried = replace(tried, attendance=replace(tried.attendance, joins={late: 10}))
    done = run(tried)
    assert late not in {c for group in done[8].assignment.groups for c in group}
    assert agreement(done[-1].assignment.groups, tried.truth) == 1.0


def test_noise_without_masks_is_refused() -> None:
    with pytest.raises(SettingError, match="it asks for sums over clients"):
        run(digits(), 1, boundary=Boundary(clip=1.0, noise=1.0))


def test_with_very_much_noise_nothing_is_found_and_nothing_breaks() -> None:
    done = run(digits(), 12, boundary=Boundary(masks=True, clip=1.0, bound=100.0, noise=100.0))
    assert len(done[-1].assignment.models) == 1
    assert np.isfinite([score["loss"] for score in (done[-1].scores or {}).values()]).all()
