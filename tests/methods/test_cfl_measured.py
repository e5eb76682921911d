"""CFL with γ_max measured: two halves of the clients' data say how much of their updates is noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clustering import halves_gram
from coterie.core import Cohort, Federation, HalvedUpdates, Replies, Training
from coterie.data.scenario import SCENARIOS
from coterie.engines import rounds as inprocess
from coterie.methods import CFL
from coterie.methods.cfl import measured_gamma
from coterie.settings import SettingError

METHOD = CFL(gamma_max=None)


def replies(a: np.ndarray, b: np.ndarray) -> Replies:
    clients = tuple(range(len(a)))
    return Replies(
        clients=clients,
        examples=np.ones(len(a), int),
        halves=HalvedUpdates(clients=clients, gram=halves_gram(a, b)),
    )


def test_gamma_is_noise_over_signal() -> None:
    rng = np.random.default_rng(0)
    signal = np.repeat([[1.0], [-1.0]], 4, axis=0) * rng.choice([-1, 1], 4000)
    noise = (
        0.5 * np.sqrt(2) * rng.normal(size=(2, *signal.shape))
    )  # a whole update has half of a half's variance
    found = measured_gamma(replies(*(signal + noise)))
    assert found == pytest.approx(0.5, rel=0.1)
    assert measured_gamma(replies(signal, signal)) == pytest.approx(0.0, abs=1e-6)


def test_where_there_is_nothing_but_noise_gamma_is_beyond_all_bounds() -> None:
    assert measured_gamma(replies(*np.random.default_rng(3).normal(size=(2, 6, 500)))) == np.inf


def without(whole: Replies, *gone: int) -> Replies:
    halved = whole.of(set(whole.clients) - set(gone))
    return replace(whole, halves=halved.halves)


def test_gamma_is_that_of_those_who_sent_halves_and_two_must() -> None:
    rng = np.random.default_rng(1)
    signal = rng.normal(size=(4, 200))
    noise = rng.normal(size=(2, 4, 200)) * np.array([[0.1], [0.9], [0.1], [0.1]])
    whole = replies(*(signal + noise))
    three = replies(*np.delete(signal + noise, 1, axis=1))
    assert measured_gamma(without(whole, 1)) == pytest.approx(measured_gamma(three))
    assert measured_gamma(without(whole, 1)) < 0.5 * measured_gamma(whole)  # type: ignore[operator]
    assert measured_gamma(without(whole, 0, 1, 2)) is None
    assert measured_gamma(replace(whole, halves=None)) is None


def played(name: str, rounds: int, **how: Any) -> list[inprocess.Round]:
    scenario = replace(SCENARIOS[f"digits/{name}"], train=0.9, validation=0.0)
    return list(
        inprocess.rounds(
            METHOD, scenario.build(0), rounds=rounds, workers=1, eval_every=1000, **how
        )
    )


@pytest.mark.slow
def test_halves_are_asked_for_where_a_group_is_about_to_split_and_nowhere_else() -> None:
    found = played("label-permutation", 24)
    texts = [
        (done.number, note.kind, note.text)
        for done in found
        for note in done.notes
        if note.kind != "keep"
    ]
    first = next(number for number, kind, text in texts if kind == "ask")
    assert "gamma_max is measured next, from halves" in next(
        text for _, kind, text in texts if kind == "ask"
    )
    usual = found[0].bytes_up
    assert all(done.bytes_up == usual for done in found[:first])
    assert found[first].bytes_up > 1.9 * usual
    assert any(
        kind in ("hold", "split") and "separable by the measured noise" in text
        for _, kind, text in texts
    )


@pytest.mark.slow
def test_groups_split_only_in_rounds_in_which_both_norms_pass() -> None:
    """Also in rounds of halves, whose updates are of as many steps as usual; once they were not tested there."""
    found = [
        note
        for done in played("label-permutation", 24)
        for note in done.notes
        if note.kind in ("hold", "split")
    ]
    assert any(note.kind == "split" for note in found)
    for note in found:
        tested = {criterion.setting: criterion for criterion in note.criteria}
        assert tested["eps1"].held
        assert tested["eps2"].held


def test_a_group_that_moves_again_is_not_split_by_its_halves() -> None:
    clients, method = (0, 1, 2, 3), CFL(gamma_max=None, persistence=1)
    training = Training(epochs=3, batch=10)
    federation = Federation(
        clients=clients, draw=lambda i: torch.zeros(2), columns={"all": (0, 2)}, training=training
    )
    opposite = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])
    whole = Replies(clients=clients, examples=np.ones(4, int), updates=opposite)
    state = method.step(method.init(federation), whole)
    assert state.notes[0].kind == "ask"
    plan = method.plan(state, Cohort(present=clients, exchange=1, seed=0))
    assert {(task.halves, task.training) for task in plan.tasks.values()} == {
        (True, replace(training, epochs=6))
    }
    for kind, updates in (("keep", opposite + torch.tensor([9.0, 0.0])), ("split", opposite)):
        halves = replace(
            whole,
            updates=updates,
            halves=HalvedUpdates(clients=whole.clients, gram=halves_gram(updates, updates)),
        )
        assert method.step(state, halves).notes[0].kind == kind


@pytest.mark.slow
def test_clients_who_are_alike_are_not_split() -> None:
    assert all(len(done.assignment.groups) == 1 for done in played("iid", 24))


def test_gradients_have_no_halves() -> None:
    with pytest.raises(SettingError, match=r"CFL.gamma_max none needs similarity updates"):
        CFL(gamma_max=None, similarity="gradients", post_split="parent-mean")
