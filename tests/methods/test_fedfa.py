"""FedFA's weights, from the definition, and the model they make."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import Replies
from coterie.methods import FedAvg, FedFA
from coterie.methods.fedfa import FedFAState, fair_weights
from coterie.settings import SettingError
from scripted import play as run
from small import world as small_world
from worlds import THREE, Pull, grouped, last, play


def heard(accuracies: list[float], examples: list[int] | None = None) -> Replies:
    clients = tuple(range(5, 5 + len(accuracies)))
    sizes = np.array(examples or [1] * len(accuracies))
    return Replies(clients=clients, examples=sizes, accuracies=tuple((a,) for a in accuracies))


def test_weights_by_hand() -> None:
    # -log2 of 1/2 and 1/4 are 1 and 2 bits.
    assert fair_weights(heard([0.5, 0.25], [100, 1])).tolist() == pytest.approx([1 / 3, 2 / 3])


def test_where_all_are_right_weights_are_those_of_the_data() -> None:
    assert fair_weights(heard([1.0, 1.0], [30, 10])).tolist() == [0.75, 0.25]


def test_who_is_all_right_weighs_nothing_and_none_right_counts_as_one_in_ten_million() -> None:
    assert fair_weights(heard([1.0, 0.5])).tolist() == [0.0, 1.0]
    bits = -math.log2(1e-7)
    assert fair_weights(heard([0.0, 0.5])).tolist() == pytest.approx(
        [bits / (bits + 1), 1 / (bits + 1)]
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_weights_sum_to_one_and_fall_with_accuracy(accuracies: list[float]) -> None:
    found = fair_weights(heard(accuracies))
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    if min(accuracies) < 1:
        order = np.argsort(accuracies, kind="stable")
        assert (np.diff(found[order]) <= 1e-12).all()


def told(accuracies: list[float]) -> Replies:
    """Of clients 5, 6, ..., each of whom sends an update of ones times its place."""
    updates = torch.arange(1.0, len(accuracies) + 1)[:, None].expand(-1, 4)
    return replace(heard(accuracies), updates=updates, chosen=((0,),) * len(accuracies))


def state_of(count: int) -> FedFAState:
    return FedFAState(clients=tuple(range(5, 5 + count)), model=torch.zeros(4))


@pytest.mark.parametrize("accuracy", [math.nan, 1.5, -0.1, 1e308, -math.inf])
def test_who_tells_an_accuracy_that_is_none_is_left_out_and_the_others_go_on(
    accuracy: float,
) -> None:
    method, state = FedFA(), state_of(3)
    found = method.step(state, told([0.5, 0.25, accuracy]))
    assert torch.equal(found.model, method.step(state, told([0.5, 0.25])).model)
    assert [note.clients for note in method.explain(found)] == [(5, 6), (7,)]
    assert (
        method.explain(found)[1].text
        == f"left out, as their training accuracy is not 0 to 1: client 7 ({accuracy:.3g})"
    )
    alone = method.step(state, told([accuracy]))  # the only one that was asked
    assert torch.equal(alone.model, state.model)
    assert [note.clients for note in method.explain(alone)] == [(5,)]


def test_an_objective_whose_accuracy_is_none_is_a_mistake_that_is_told() -> None:
    with pytest.raises(
        SettingError, match=r"main metric is 0 to 1, as an accuracy, but client 5 measured 7$"
    ):
        FedFA().step(state_of(2), told([7.0, -3.0]))


def test_a_round_moves_the_model_by_the_weighted_mean_of_those_who_answered() -> None:
    # Losses |t|²/2 of 0.5 and 4.5 at the first model are accuracies 1 / 1.5 and 1 / 5.5.
    world = Pull(
        targets={
            3: torch.tensor([1.0, 0, 0, 0]),
            8: torch.tensor([0, 3.0, 0, 0]),
            9: torch.ones(4),
        },
        rate=1.0,
    )
    bits = [math.log2(1.5), math.log2(5.5)]
    played = last(FedFA(), world, 1, silent=lambda e, c: c == 9)
    share = [b / sum(bits) for b in bits]
    assert played.assignment.models[0].tolist() == pytest.approx(
        [share[0], 3 * share[1], 0, 0], abs=1e-6
    )
    assert played.notes[0].values["weight"] == pytest.approx({3: share[0], 8: share[1]})
    assert played.notes[0].values["accuracy"] == pytest.approx({3: 1 / 1.5, 8: 1 / 5.5})


def test_accuracies_are_measured_on_training_data_in_the_exchange_that_trains() -> None:
    for played in play(FedFA(fraction=0.5), grouped(THREE), 3):
        assert played.plan.ends_round
        assert {(t.offered, t.measure, t.trains) for t in played.plan.tasks.values()} == {
            ((0,), "train", True)
        }
        assert len(played.plan.tasks) == 6


def test_clients_that_are_alike_make_fedavg() -> None:
    # Equal accuracies and sizes are equal weights.
    everyone = sorted(c for group in THREE for c in group)
    world = grouped([everyone], noise=0.0)
    ours, theirs = (last(method, world, 4).assignment.models for method in (FedFA(), FedAvg()))
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_on_real_clients_the_least_accurate_weighs_most() -> None:
    (done,) = run(FedFA(), small_world(sizes=(20, 7, 50, 9)), 1)
    accuracy, weight = (done.notes[0].values[name] for name in ("accuracy", "weight"))
    assert len(set(accuracy.values())) > 1
    assert sorted(accuracy, key=lambda c: (accuracy[c], c)) == sorted(
        weight, key=lambda c: (-weight[c], c)
    )
