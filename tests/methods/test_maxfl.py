"""MAXFL: who takes part by both rules of the papers, what becomes of those who do not, and Cho's weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.core import as_groups
from coterie.methods import MAXFL, FedAvg
from coterie.methods.maxfl import appeal
from coterie.settings import SettingError
from scripted import play as run
from small import world as small_world
from worlds import THREE, Played, Pull, grouped, last, play


def served(played: Played) -> dict[int, Tensor]:
    return {client: played.assignment.models[row] for client, row in played.assignment.row.items()}


def line(places: dict[int, float], **world: Any) -> Pull:
    """Clients whose loss at w is (w - place)² / 2 in the first parameter."""
    return Pull(targets={c: torch.tensor([p, 0.0, 0.0, 0.0]) for c, p in places.items()}, **world)


# -- distance
# --------------------------------------------------------------------------------------------------------------


def test_exchanges_of_a_round() -> None:
    history = list(play(MAXFL(pretrain_epochs=3), grouped(THREE), 6))
    assert [p.plan.ends_round for p in history] == [False, True, False, True, False, True]
    told = [{(t.epochs, t.measure, t.lr_round) for t in p.plan.tasks.values()} for p in history]
    assert told[0] == {(3, None, 0)}
    assert told[1] == told[3] == {(None, None, None)}
    assert told[2] == told[4] == {(0, "train", None)}


def test_the_first_round_is_fedavg() -> None:
    world = grouped(THREE, examples={2: 5, 99: 3}, fresh=False)
    ours = list(play(MAXFL(), world, 2))[1]
    assert torch.equal(ours.assignment.models, last(FedAvg(), world, 1, first=1).assignment.models)
    assert ours.groups == (world.clients,)


def test_a_round_by_hand() -> None:
    # Alone, at rate 1, everybody gets to its place; ŵ = 0, 1, 4. FedAvg of all with 2, 1 and 1
    # examples: w = 5 / 4. Losses (w - ŵ)² / 2 are below (w - ŵ)² for all: all take part. With
    # losses of their own they would not.
    world = line({5: 0.0, 6: 1.0, 9: 4.0}, rate=1.0, examples={5: 2})
    history = list(play(MAXFL(pretrain_epochs=1), world, 4))
    assert history[1].assignment.models[0, 0].item() == 1.25
    note = history[2].notes[0]
    assert note.values["loss"] == pytest.approx({5: 1.25**2 / 2, 6: 0.25**2 / 2, 9: 2.75**2 / 2})
    assert note.values["bar"] == pytest.approx({5: 1.25**2, 6: 0.25**2, 9: 2.75**2})
    assert history[3].groups == ((5, 6, 9),)


def test_the_distance_leaves_out_buffers() -> None:
    world = Pull(
        targets={1: torch.tensor([1.0, 0, 0, 7.0]), 2: torch.tensor([-1.0, 0, 0, -9.0])},
        rate=1.0,
        buffers=1,
    )
    note = last(MAXFL(pretrain_epochs=1), world, 3).notes[0]
    assert note.values["bar"] == pytest.approx(
        {1: 1.0, 2: 1.0}
    )  # the mean is 0 in the first parameter


def opposed() -> Pull:
    """Three clients near 0 and one far off, whose loss of any mean is above its own."""
    return line({5: 0.0, 6: 0.1, 9: -0.1, 77: 50.0}, rate=0.5, examples={5: 3})


def test_participants_start_from_the_mean_of_their_current_models_and_the_rest_go_on_alone() -> (
    None
):
    method, world = MAXFL(rule="local-loss", pretrain_epochs=1), opposed()
    state = last(method, world, 2).state
    own = {c: torch.full((4,), float(c)) for c in (6, 9)}  # as if these two had trained apart
    state = replace(
        state,
        apart=(6, 9),
        own=torch.stack([*own.values()]),
        alone=(),
        prior=state.prior[:0],
        bars={5: math.inf, 6: math.inf, 9: -1.0, 77: -1.0},  # 5 and 6 take part; 77 leaves
    )
    measured, trained = play(method, world, 2, state=state, first=2)
    start = 0.75 * state.model + 0.25 * own[6]  # 3 and 1 examples
    assert torch.allclose(trained.plan.models[0], start)
    assert {c: trained.plan.tasks[c].offered for c in (5, 6)} == {5: (0,), 6: (0,)}
    after = served(trained)
    step = lambda w, c: w + 0.5 * (world.targets[c] - w)  # noqa: E731
    assert torch.allclose(after[9], step(own[9], 9))
    assert torch.allclose(after[77], step(state.model, 77))
    together = 0.75 * step(start, 5) + 0.25 * step(start, 6)
    for client in (5, 6):
        assert torch.allclose(after[client], together, atol=1e-6)
    assert trained.groups == ((5, 6), (9,), (77,))
    assert measured.notes[0].parts == ((5, 6), (9,), (77,))
    assert "2 of 4 clients take part" in measured.notes[0].text


def test_where_nobody_takes_part_the_global_model_stays() -> None:
    # The code published with HCCT raises KeyError in the round after: it looks for a group that is
    # not there.
    method, world = MAXFL(rule="local-loss", pretrain_epochs=1), opposed()
    state = replace(last(method, world, 2).state, bars=dict.fromkeys(world.clients, -1.0))
    before = state.model
    history = list(play(method, world, 8, state=state, first=2))
    assert torch.equal(history[-1].state.model, before)
    assert history[-1].groups == as_groups([c] for c in world.clients)
    for client, model in served(history[-1]).items():  # four rounds alone
        assert torch.allclose(
            model, before + (1 - 0.5**4) * (world.targets[client] - before), atol=1e-4
        )
    # and it can be joined again
    state = replace(history[-1].state, bars=dict.fromkeys(world.clients, math.inf))
    assert last(method, world, 2, state=state, first=10).groups == (world.clients,)


def test_distance_leaves_out_whose_loss_is_above_the_squared_distance() -> None:
    # Pulled half the way once: ŵ = t / 2, w = mean of them. t = 8: ŵ = 4; others at 0: w = 1; loss
    # (8 - 1)² / 2 = 24.5 is above (4 - 1)² = 9. The three others: loss 1 / 2 is below 1.
    world = line({5: 0.0, 6: 0.0, 9: 0.0, 77: 8.0}, rate=0.5)
    history = list(play(MAXFL(pretrain_epochs=1), world, 4))
    assert history[2].notes[0].values["loss"] == pytest.approx({5: 0.5, 6: 0.5, 9: 0.5, 77: 24.5})
    assert history[2].notes[0].values["bar"] == pytest.approx({5: 1.0, 6: 1.0, 9: 1.0, 77: 9.0})
    assert history[3].groups == ((5, 6, 9), (77,))
    assert served(history[3])[77][0].item() == pytest.approx(1 + 0.5 * 7)
    assert served(history[3])[5][0].item() == pytest.approx(0.5)


# -- local-loss
# ------------------------------------------------------------------------------------------------------------


def test_own_losses_are_measured_by_offering_own_models_back_once() -> None:
    world = line({5: 0.0, 6: 1.0, 9: 4.0}, rate=0.5)
    history = list(play(MAXFL(rule="local-loss", pretrain_epochs=2), world, 6))
    first, later = history[2].plan, history[4].plan
    assert {(len(t.offered), t.choose, t.epochs, t.measure) for t in first.tasks.values()} == {
        (2, 2, 0, "train")
    }
    assert {t.offered for t in later.tasks.values()} == {(0,)}
    # ŵ = 3/4 of the way from 0: the loss is (t / 4)² / 2.
    assert history[2].state.bars == pytest.approx({5: 0.0, 6: 0.25**2 / 2, 9: 1.0**2 / 2})
    assert len(history[2].state.prior) == 0  # ŵ has served


def test_a_clients_own_loss_of_zero_is_never_beaten() -> None:
    history = list(
        play(MAXFL(rule="local-loss", pretrain_epochs=2), line({5: 0.0, 6: 1.0}, rate=0.5), 4)
    )
    assert (5,) in history[3].groups


# -- cho
# -------------------------------------------------------------------------------------------------------------------


@given(st.floats(-30, 30))
def test_appeal_is_the_derivative_of_the_sigmoid(z: float) -> None:
    sigma = 1 / (1 + math.exp(-z))
    assert appeal(np.array([z]))[0] == pytest.approx(sigma * (1 - sigma), abs=1e-12)


def test_appeal_of_extremes() -> None:
    assert appeal(np.array([0.0, math.inf, -math.inf, 1e308, math.nan])).tolist() == [
        0.25,
        0,
        0,
        0,
        0,
    ]


def prepared(method: MAXFL, world: Pull, bars: dict[int, float]) -> Any:
    """The state before the first round, with these ρ."""
    return replace(last(method, world, 2).state, bars=bars)


def test_one_exchange_per_round_after_two_of_preparation() -> None:
    history = list(play(MAXFL(rule="cho", pretrain_epochs=2), grouped(THREE), 5))
    assert [p.plan.ends_round for p in history] == [False, False, True, True, True]
    assert {(t.epochs, t.measure) for t in history[1].plan.tasks.values()} == {(0, "train")}
    assert {(t.offered, t.measure) for t in history[2].plan.tasks.values()} == {((0,), "train")}
    assert history[-1].groups == (grouped(THREE).clients,)


@pytest.mark.parametrize("z", [0.0, -2.0])
def test_equal_weights_are_a_scaled_step_of_uniform_fedavg(z: float) -> None:
    world = grouped(THREE, fresh=False)
    method = MAXFL(rule="cho", server_lr=0.7, epsilon=0.5)
    loss = 4.5  # |target|² / 2 at the first model, for all
    end = last(
        method,
        world,
        1,
        state=prepared(method, world, dict.fromkeys(world.clients, loss - z)),
        first=2,
    )
    mean = last(FedAvg(weighting="uniform"), world, 1, first=2).assignment.models
    q = 12 / (2 + math.exp(z) + math.exp(-z))
    assert torch.allclose(end.assignment.models, 0.7 * q / (q + 0.5) * mean, atol=1e-6)


def test_a_cho_round_by_hand() -> None:
    # At w = 0 the losses are 0.5 and 2; with ρ = 0.5 and 0: z = 0 and 2, q = 1/4 and σ(2)(1 - σ(2))
    # = 0.105.
    world = line({3: 1.0, 4: 2.0}, rate=1.0, examples={3: 100})
    method = MAXFL(rule="cho", server_lr=2.0)
    end = last(method, world, 1, state=prepared(method, world, {3: 0.5, 4: 0.0}), first=2)
    q = [0.25, 0.10499358540350652]
    assert end.assignment.models[0, 0].item() == pytest.approx(
        2 * (q[0] * 1 + q[1] * 2) / sum(q), abs=1e-6
    )
    assert end.notes[0].values["weight"] == pytest.approx({3: q[0], 4: q[1]})
    assert "for 0 of 2 clients" in end.notes[0].text


def test_the_servers_step_is_of_parameters_and_leaves_out_buffers() -> None:
    # A BatchNorm's variance that goes from 1 to 0.2 must not be stepped over to -0.6.
    world = Pull(
        targets=dict.fromkeys((3, 4), torch.tensor([1.0, 0.0, 0.0, 0.2])), rate=1.0, buffers=1
    )
    method = MAXFL(rule="cho", server_lr=2.0)
    before = prepared(method, world, {3: 0.5, 4: 0.5})
    one = torch.tensor([0.0, 0.0, 0.0, 1.0])
    end = last(method, world, 1, state=replace(before, model=one), first=2)
    assert torch.allclose(end.assignment.models[0], torch.tensor([2.0, 0.0, 0.0, 0.2]))


# -- silence
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["distance", "local-loss", "cho"])
def test_who_was_silent_before_the_first_round_catches_up(name: str) -> None:
    world = grouped(THREE)
    method = MAXFL(rule=name, pretrain_epochs=2)
    history = list(play(method, world, 9, silent=lambda e, c: c == 8 and e in (0, 1)))
    asked = [p.plan.tasks.get(8) for p in history]
    alone = [i for i, task in enumerate(asked) if task is not None and task.epochs == 2]
    assert len(alone) == {"distance": 2, "local-loss": 2, "cho": 3}[name]
    assert all(asked[i].lr_round == 0 for i in alone)  # type: ignore[union-attr]
    assert torch.equal(history[alone[-1]].plan.models[asked[alone[-1]].offered[0]], torch.zeros(12))  # type: ignore[union-attr]
    assert 8 in (history[-1].state.alone if name == "distance" else history[-1].state.bars)


def test_who_was_not_heard_measuring_is_not_asked_to_train() -> None:
    history = list(play(MAXFL(), grouped(THREE), 6, silent=lambda e, c: c == 8 and e == 4))
    assert 8 in history[3].plan.tasks
    assert 8 not in history[5].plan.tasks


def test_if_nobody_measures_nobody_trains_and_the_round_ends() -> None:
    history = list(play(MAXFL(), grouped(THREE), 6, silent=lambda e, c: e == 4))
    assert not history[5].plan.tasks
    assert history[5].plan.ends_round
    assert torch.equal(history[5].assignment.models, history[3].assignment.models)


def test_on_real_clients_what_is_offered_back_is_what_was_trained() -> None:
    *_, done = run(
        MAXFL(rule="local-loss", pretrain_epochs=8), small_world(sizes=(20, 7, 50, 9)), 2
    )
    state, first = done.position.state, done.notes[0].values
    assert state.bars == first["bar"]
    *_, alone = run(
        MAXFL(rule="local-loss", pretrain_epochs=1), small_world(sizes=(20, 7, 50, 9)), 2
    )
    assert sum(state.bars.values()) < sum(
        alone.position.state.bars.values()
    )  # eight epochs fit better than one


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(
        SettingError,
        match=r"MAXFL\.rule must be one of distance, local-loss, cho, got 'local'; did you mean",
    ):
        MAXFL(rule="local")
    with pytest.raises(SettingError, match=r"MAXFL\.epsilon must be > 0"):
        MAXFL(epsilon=0.0)
