"""Tuned: the shrunk gains against their formula, which clients are served by personal models, and what it leaves alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import small
from coterie.boundary import Boundary
from coterie.core import (
    Cohort,
    Federation,
    HeldOutLosses,
    Holdout,
    Neighbours,
    Personal,
    Replies,
    Round,
    Task,
    Training,
)
from coterie.data.attendance import Attendance
from coterie.data.objective import TEMPERATURES, Objective, squared_error
from coterie.data.scenario import SCENARIOS
from coterie.data.world import ClientData, Split, World, whole
from coterie.engines.rounds import rounds
from coterie.methods import APFL, IFCA, Ditto, FedAvg, FedPer, Independent, Race, Tuned
from coterie.methods._fences import fenced_reports
from coterie.methods.tuned import TunedState, shrunk
from coterie.records.codec import decode, encode
from coterie.settings import SettingError, UserError
from coterie.training.learner import Learner
from coterie.training.neighbours import losses_with_neighbours
from method_examples import slow
from scripted import bits, play
from worlds import THREE, grouped, last

IDS = (2, 3, 7, 11)
Gains = dict[int, tuple[float, float, int]]


def world(**more: Any) -> World:
    return small.world(IDS, **{"sizes": (20, 9, 31, 14), **more})


# -- the expected gains
# -------------------------------------------------------------------------------------------------------


def by_hand(gains: Gains, limited: bool = False) -> dict[int, float]:
    """DerSimonian and Laird with the noise of single examples pooled, sums written out; then each client's posterior mean."""
    n = {c: count for c, (_, _, count) in gains.items()}
    d = {c: mean for c, (mean, _, _) in gains.items()}
    spreads = np.array([count * variance for _, variance, count in gains.values()])
    means = np.array(list(d.values()))
    shown = dict(zip(d, fenced_reports(means, spreads)[0] if limited else means, strict=True))
    noise = sum(n[c] * (n[c] - 1) * gains[c][1] for c in d) / sum(n[c] - 1 for c in d)
    common = sum(n[c] * shown[c] for c in d) / sum(n.values())
    q = sum(n[c] * (d[c] - common) ** 2 for c in d)
    if len(d) == 1 or scipy.stats.chi2.sf(q / noise, len(d) - 1) >= 0.01:
        return dict.fromkeys(d, common)
    tau = (q - (len(d) - 1) * noise) / (
        sum(n.values()) - sum(x**2 for x in n.values()) / sum(n.values())
    )
    mu = sum(shown[c] / (noise / n[c] + tau) for c in d) / sum(1 / (noise / n[c] + tau) for c in d)
    return {c: (tau * d[c] + noise / n[c] * mu) / (tau + noise / n[c]) for c in d}


REPORTS = st.tuples(st.floats(-3, 3), st.floats(1e-3, 3), st.integers(2, 40))


@given(st.dictionaries(st.integers(0, 99), REPORTS, min_size=1, max_size=12), st.booleans())
def test_expected_gains_are_the_formula(gains: Gains, limited: bool) -> None:
    found = shrunk(gains, [*gains, 1000], limited)  # a client without a report has none
    assert found == pytest.approx(by_hand(gains, limited), rel=1e-6, abs=1e-9)


@given(st.dictionaries(st.integers(0, 99), REPORTS, min_size=1, max_size=7))
@example({0: (0.8, 1.0, 3)})  # 3 * 0.8 / 3 is not 0.8
def test_an_expected_gain_lies_between_the_client_and_its_group(gains: Gains) -> None:
    found, means = shrunk(gains, gains), [mean for mean, _, _ in gains.values()]
    assert set(found) == set(gains)
    for client, value in found.items():
        assert min(means) - 1e-9 <= value <= max(means) + 1e-9, client


def test_clients_that_differ_by_chance_alone_have_the_groups_mean() -> None:
    found = shrunk({1: (-0.2, 1.0, 5), 2: (0.1, 1.0, 5), 3: (-0.5, 1.0, 5)}, (1, 2, 3))
    assert list(found.values()) == pytest.approx([-0.2] * 3)


def test_clients_that_differ_far_beyond_chance_keep_their_own_gain() -> None:
    found = shrunk({1: (-5.0, 1e-4, 9), 2: (5.0, 1e-4, 9), 3: (0.5, 1e-4, 9)}, (1, 2, 3))
    assert list(found.values()) == pytest.approx([-5, 5, 0.5], abs=1e-3)


def test_one_client_has_its_own_gain_and_only_those_of_the_group_count() -> None:
    gains = {1: (-0.25, 0.5, 4), 2: (9.0, 0.1, 4)}
    assert shrunk(gains, [1]) == pytest.approx({1: -0.25})
    assert shrunk(gains, [5]) == shrunk({}, [1]) == {}


def test_gains_without_variance_are_taken_as_they_are() -> None:
    assert shrunk({1: (-0.5, 0.0, 3), 2: (0.5, 0.0, 3)}, (1, 2)) == pytest.approx({1: -0.5, 2: 0.5})
    assert shrunk({1: (0.0, 0.0, 3), 2: (0.0, 0.0, 3)}, (1, 2)) == {1: 0.0, 2: 0.0}


def test_a_client_with_one_example_has_no_variance_and_no_number_spoils_the_group() -> None:
    sure: Gains = {1: (-0.3, 0.01, 20), 2: (-0.2, 0.01, 20), 3: (-0.25, 0.01, 20)}
    odd = {4: (9.0, math.inf, 1), 5: (math.nan, 0.1, 3), 6: (0.1, math.nan, 3)}
    found = shrunk({**sure, **odd}, range(9), limited=True)
    assert set(found) == {1, 2, 3, 4}
    assert all(-0.31 < found[client] < -0.19 for client in sure)  # the others decide without it
    assert shrunk({3: (9.0, math.inf, 1)}, [3]) == {}


def test_few_examples_are_decided_by_the_group_many_by_themselves() -> None:
    many = dict.fromkeys(range(8), (-0.3, 0.01, 10))
    few, sure = (
        shrunk({**many, 8: (0.2, 0.1 / n, n), 9: (-0.5, 0.01, 10)}, range(10))[8] for n in (2, 400)
    )
    assert few < 0 < sure


def one_differs() -> World:
    """Classes of client 7 follow from its inputs. Those of the others are random, so that their own training does harm."""

    def split(count: int, seed: int) -> Split:
        inputs = small.examples(count, seed).inputs
        return whole(inputs, inputs[:, : small.CLASSES].argmax(1))

    clients = {c: small.client(c, train=8, validation=60) for c in IDS}
    clients[7] = ClientData(train=split(90, 1), validation=split(60, 2), test=split(9, 3))
    return world(clients=clients)


# -- which model serves a client
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [FedAvg(), IFCA(models=2), APFL(), *slow(Ditto(pull=0.5), FedPer(), Independent())],
    ids=str,
)
def test_the_methods_models_and_groups_stay_as_they_are(method: Any) -> None:
    """With validation data no training example is held out, and personal models cost the shared ones nothing."""
    tried = world()
    for epochs in (0, 2):
        pairs = zip(
            play(Tuned(method=method, epochs=epochs), tried, 4), play(method, tried, 4), strict=True
        )
        for ours, alone in pairs:
            assert torch.equal(ours.assignment.models, alone.assignment.models)
            assert ours.assignment.groups == alone.assignment.groups
            assert ours.bytes_down == alone.bytes_down


@pytest.mark.parametrize("method", [FedPer(), Independent()], ids=str)
def test_layers_that_stay_at_clients_still_serve_them(method: Any) -> None:
    tried = world()
    ours, alone = (play(one, tried, 3)[-1] for one in (Tuned(method=method), method))
    assert ours.assignment.plain == ()
    assert ours.scores == alone.scores
    for client in IDS:
        own, other = (one.position.own(one.assignment, client) for one in (ours, alone))
        assert own is not None
        assert other is not None
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)


def test_a_methods_own_personal_models_are_judged() -> None:
    method = Tuned(method=Ditto(pull=0.5))
    state = method.init(grouped(THREE).federation())
    plan = method.plan(state, Cohort(present=(2, 3), exchange=0, seed=0))
    assert plan.tasks[2] == Task(
        offered=(0,),
        personal=Personal(start="own", pull=0.5),
        holdout=Holdout(share=0.15, report_losses=True),
    )
    ours, alone = (play(one, world(), 4)[-1] for one in (method, Ditto(pull=0.5)))
    gains = ours.position.state.gains
    assert set(gains) == set(IDS)
    assert set(ours.position.state.own) == set(IDS) - set(ours.assignment.plain)
    assert bits(ours.position.kept) == bits(alone.position.kept)


def test_a_client_is_served_by_its_personal_model_where_it_expects_less_loss() -> None:
    """Targets of the world's groups are far apart, and a personal model is half-way to the client's own."""
    end = last(Tuned(), grouped(THREE), 3)
    assert end.assignment.plain == ()
    assert [note.kind for note in last(Tuned(), grouped(THREE), 1).notes] == ["tune"]


def test_own_models_serve_in_tests_and_plain_ones_do_not() -> None:
    done = play(Tuned(epochs=20), one_differs(), 4)[-1]
    state = done.position.state
    assert 7 in state.own
    assert set(state.own) < set(IDS)
    for client in IDS:
        own = done.position.own(done.assignment, client)
        assert (own is None) == (client in done.assignment.plain) == (client not in state.own)
        served = done.assignment.models[done.assignment.row[client]] if own is None else own
        net = done.model(client)
        shown = torch.nn.utils.parameters_to_vector(net.parameters())
        torch.testing.assert_close(shown.detach(), served)


def test_clients_without_a_report_are_served_plain() -> None:
    clients = {
        c: small.client(c, train=1, validation=0) for c in IDS
    }  # none can be held out of one example
    done = play(Tuned(), world(clients=clients), 3)[-1]
    assert done.position.state.gains == {}
    assert done.assignment.plain == IDS
    (first,) = play(Tuned(), world(attendance=Attendance(away={7: [(1, 1)]})), 1)
    assert 7 in first.assignment.plain


# -- held-out examples, newcomers, noise
# ------------------------------------------------------------------------------------


def test_the_outermost_share_is_held_out_in_all_parts() -> None:
    clients = {c: small.client(c, validation=0 if c == 2 else 6) for c in IDS}
    method = Tuned(method=Race(methods=(Tuned(holdout=0.3), "ifca"), holdout=0.2), holdout=0.4)
    state = method.init(grouped(THREE).federation())
    plan = method.plan(state, Cohort(present=(2, 3), exchange=0, seed=0))
    assert {task.holdout.share for _, part in plan.leaves() for task in part.tasks.values()} == {
        0.4
    }
    done = play(method, world(clients=clients), 2)[-1]
    assert {len(reports) for reports in done.position.state.inner.seen.values()} == {4}


def test_who_has_left_leaves_nothing_behind() -> None:
    method = Tuned()
    state = last(method, grouped(THREE), 3).state
    assert isinstance(state, TunedState)
    assert 17 in state.gains
    assert 17 in state.own
    gone = method.retire(state, (17,))
    assert 17 not in gone.gains
    assert 17 not in gone.own
    back = method.admit(gone, (17,))
    assert 17 in method.assignment(back).plain
    assert method.explain(back) == method.method.explain(back.inner)


def test_evidence_of_one_example_survives_a_checkpoint() -> None:
    clients = {c: small.client(c, train=3 if c == 2 else 20, validation=0) for c in IDS}
    state = play(Tuned(), world(clients=clients), 2)[-1].position.state
    assert state.gains[2][1] == math.inf
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        blobs[str(len(blobs))] = data
        return str(len(blobs) - 1)

    assert bits(decode(encode(state, put), blobs.__getitem__)) == bits(state)


def test_noise_is_refused_before_the_first_round() -> None:
    with pytest.raises(
        SettingError, match=r"Boundary.noise 1 cannot be used with tuned and these settings"
    ) as refused:
        next(rounds(Tuned(), world(), rounds=1, workers=1, boundary=Boundary(clip=1.0, noise=1.0)))
    assert str(refused.value).count(".") == 1


class Closed:
    """A method that admits nobody."""

    name = "closed"

    def init(self, federation: Any) -> Any: ...
    def plan(self, state: Any, cohort: Any) -> Any: ...
    def step(self, state: Any, replies: Any) -> Any: ...
    def assignment(self, state: Any) -> Any: ...
    def explain(self, state: Any) -> Any: ...


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("fedavgg", "there is no method 'fedavgg'; did you mean fedavg"),
        ({"name": "ifca", "modles": 3}, "IFCA has no setting 'modles'; did you mean models"),
        ({"models": 3}, "a method's table needs a name"),
        (5, "a method is a name, a table with a name, or an object with the five functions, got 5"),
        (Closed(), "tuned.method closed must take newcomers: it has no methods admit and retire"),
    ],
)
def test_a_wrong_inner_method_is_one_sentence(inner: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Tuned(method=inner)


def silent_run(workers: int, **how: Any) -> list[Round]:
    tried = world(attendance=Attendance(silent=0.3, joins={11: 3}, away={3: [(2, 4)]}, patience=2))
    return list(rounds(Tuned(start="own", pull=0.1), tried, rounds=6, workers=workers, **how))


@pytest.mark.slow
def test_a_resumed_run_is_the_same_bits() -> None:
    done = silent_run(2)
    for stop in (1, 3, 5):
        rest = silent_run(1, start=done[stop - 1].position)
        assert bits(rest[-1].position) == bits(done[-1].position)


@pytest.mark.parametrize(
    ("method", "share"),
    [(FedAvg(), 1.0), (FedAvg(fraction=0.5), 0.5), (FedAvg(fraction=0.25), 0.25)],
)
def test_personal_models_go_on_while_half_of_the_clients_train_in_a_round(
    method: FedAvg, share: float
) -> None:
    either = Tuned(method=method, start="either", pull=0.1)
    states, starts = [one.position.state for one in play(either, world(), 6)], []
    for exchange, state in enumerate(states, 1):
        tasks = either.plan(state, Cohort(present=IDS, exchange=exchange, seed=0)).tasks.values()
        starts += [{task.personal.start for task in tasks if task.personal}]
    assert [state.share for state in states] == pytest.approx(
        [share + (1 - share) / 2**n for n in range(1, 7)]
    )
    expected = [{"own"} if state.share >= 0.5 else {"trained"} for state in states]
    # Where all clients have reported four times and none uses its own model, a round is left out.
    if share == 1:
        expected[4] = set()
    assert starts == expected
    assert starts[-1] == ({"own"} if share >= 0.5 else {"trained"})


def test_personal_models_of_a_start_of_their_own_go_on() -> None:
    tried = world(training=replace(world().training, lr=0.02))
    once, again = play(Tuned(start="own", epochs=1), tried, 2)
    for client in IDS:
        first, second = (one.position.kept[""][client] for one in (once, again))
        start = once.assignment.models[0]
        assert float((second - first).norm()) < float((second - start).norm())
    assert np.isfinite([gain for gain, _, _ in again.position.state.gains.values()]).all()


# -- rest, and what stays
# -------------------------------------------------------------------------------------------


def reporting(gain: float, settled: bool = False) -> Replies:
    """Replies of four clients, whose personal models change the loss by ``gain``."""
    clients = (2, 3, 7, 11)
    losses = np.array([[1.0, 1.2, 0.8], [1.0 + gain, 1.2 + gain, 0.9 + gain]])
    if settled:
        losses = losses[:, :0]
    held_out = HeldOutLosses.of([("", 0), ("", 1)], losses)
    return Replies(
        clients=clients,
        examples=np.full(4, 20),
        chosen=((0,),) * 4,
        means=torch.zeros(1, 2),
        mean_counts=np.array([4]),
        held_out_losses=dict.fromkeys(clients, held_out),
    )


def tries_personal(tuned: Tuned, state: TunedState) -> set[int]:
    """The clients that train a personal model in the next round."""
    cohort = Cohort(present=(2, 3, 7, 11), exchange=0, seed=0)
    tasks = tuned.plan(state, cohort).tasks
    return {client for client, task in tasks.items() if task.personal is not None}


def started() -> tuple[Tuned, TunedState]:
    tuned = Tuned()
    federation = Federation(
        clients=(2, 3, 7, 11), draw=lambda _: torch.zeros(2), columns={"all": (0, 2)}
    )
    return tuned, tuned.init(federation)


def test_personal_models_that_are_worse_are_tried_less_and_less_often() -> None:
    tuned, state = started()
    tried = []
    for round in range(1, 40):
        trains = bool(tries_personal(tuned, state))
        if trains:
            tried.append(round)
        state = tuned.step(
            state,
            reporting(0.5)
            if trains
            else replace(
                reporting(0.5), held_out_losses={2: HeldOutLosses.of([("", 0)], np.ones((1, 3)))}
            ),
        )
    assert tried == [1, 2, 3, 4, 6, 9, 14, 23, 32]
    # As soon as they pay, they are trained in each round again.
    while not tries_personal(tuned, state):
        state = tuned.step(
            state,
            replace(
                reporting(0.5), held_out_losses={2: HeldOutLosses.of([("", 0)], np.ones((1, 3)))}
            ),
        )
    for _ in range(3):
        state = tuned.step(state, reporting(-3.0))
        assert tries_personal(tuned, state) == {2, 3, 7, 11}
    assert state.own == (2, 3, 7, 11)


def test_personal_models_that_nobody_uses_are_tried_in_every_second_and_then_every_fourth_round() -> (
    None
):
    """They are neither better nor worse; after every report of a client, not after every round."""
    tuned, state = started()
    tried = []
    for round in range(1, 22):
        if tries_personal(tuned, state):
            tried.append(round)
        state = tuned.step(state, reporting(-0.1 / 3))
        assert state.own == ()
    assert tried == [1, 2, 3, 4, 5, 7, 9, 13, 17, 21]
    # If a tenth of the clients trains in a round, each has reported twice in 21 rounds.
    assert tries_personal(tuned, replace(state, share=0.1, rounds=21))


def test_after_a_rest_personal_models_are_tried_again_in_a_run() -> None:
    """While they rested, clients reported nothing, which counted as settled: they were never tried again."""
    tried = SCENARIOS["digits/iid"].build(0)
    tuned = Tuned(epochs=2, start="either", pull=0.2)
    states = [one.position.state for one in play(tuned, tried, 16)]
    assert not any(state.settled for state in states)
    rounds_worse = [state.worse for state in states]
    # They have rested, and were found worse once more.
    assert max(rounds_worse) > 4


def test_a_client_begins_to_use_its_own_model_beyond_noise_and_stays_as_long_as_it_pays() -> None:
    tuned, state = started()
    error = 0.1 / math.sqrt(3) / 2 / math.sqrt(3)  # one of three differences is 0.1 greater
    unsure = tuned.step(state, reporting(-0.1 / 3 - 0.9 * error))
    assert unsure.own == ()
    sure = tuned.step(state, reporting(-0.1 / 3 - 1.1 * error))
    assert sure.own == (2, 3, 7, 11)
    # The mean of this report and the one before is still below zero.
    less = tuned.step(sure, reporting(-0.1 / 3 + error))
    assert less.own == (2, 3, 7, 11)
    assert tuned.step(less, reporting(0.5)).own == ()


def test_without_held_out_examples_the_choice_stays_and_only_used_models_are_trained() -> None:
    tuned, state = started()
    state = replace(tuned.step(state, reporting(-0.5)), own=(3, 11))
    settled = tuned.step(state, reporting(-0.5, settled=True))
    assert settled.settled
    assert settled.own == (3, 11)
    assert tries_personal(tuned, settled) == {3, 11}
    again = tuned.step(settled, reporting(-0.5))
    assert not again.settled
    assert tries_personal(tuned, again) == {2, 3, 7, 11}


# -- nearest training examples
# ---------------------------------------------------------------------------------------------------


def classes_of_inputs(*, names_differ: bool, **more: Any) -> World:
    """Classes follow from the inputs. If their names differ between clients, one model cannot predict them."""

    def named(split: Split, shift: int) -> Split:
        return whole(split.inputs, (split.inputs[:, : small.CLASSES].argmax(1) + shift) % 3)

    clients = {}
    for position, c in enumerate(IDS):
        shift = position if names_differ else 0
        data = small.client(c, train=60, validation=40, test=60)
        clients[c] = ClientData(
            train=named(data.train, shift),
            validation=named(data.validation, shift),
            test=named(data.test, shift),
        )
    return world(clients=clients, **more)


def test_held_out_losses_with_neighbours_are_those_of_the_mean_prediction() -> None:
    tried = classes_of_inputs(names_differ=True)
    learner = Learner(small.made(small.mlp), tried.objective)
    model_row = learner.layout.row(small.made(small.mlp))
    neighbours = Neighbours(layer="2", k=3, scale=0.5, weights=(0.5,))
    data = tried.clients[7]
    losses = losses_with_neighbours(learner, model_row, data, neighbours)
    # From the definition: features, distances, votes, and the mean with the model's probabilities.
    net = small.made(small.mlp).requires_grad_(False)
    hidden = net[:2](data.train.inputs[data.train.index])
    log_probabilities = []
    for x in data.validation.inputs[data.validation.index]:
        distances = (net[:2](x) - hidden).norm(dim=1)
        votes = torch.zeros(3)
        for i in distances.argsort()[:3]:
            votes[data.train.targets[i]] += math.exp(-distances[i] / 0.5)
        log_probabilities.append((0.5 * votes / votes.sum() + 0.5 * net(x).softmax(0)).log())
    # One temperature for all examples.
    by_hand = []
    for temperature in TEMPERATURES:
        cooled = (torch.stack(log_probabilities) / temperature).log_softmax(1)
        by_hand.append(-cooled.gather(1, data.validation.targets[:, None])[:, 0])
    torch.testing.assert_close(losses, min(by_hand, key=torch.sum), rtol=1e-3, atol=1e-5)


def test_clients_use_neighbours_where_they_lower_held_out_loss() -> None:
    rounds_done = play(Tuned(epochs=1, neighbours=10), classes_of_inputs(names_differ=True), 8)
    # They are measured first in round 5. Until then clients are served by models alone.
    assert rounds_done[3].assignment.neighbours is None
    served = rounds_done[-1].assignment
    assert served.by_neighbours == IDS
    assert served.neighbours == Neighbours(layer="2", k=10, scale=1.0, weights=(0.7,))
    texts = [note.text for note in rounds_done[4].notes]
    assert any("nearest training examples help 4 of 4 clients" in text for text in texts)
    # A client's score is that of its model with its neighbours.
    alone = play(Tuned(epochs=1), classes_of_inputs(names_differ=True), 8)[-1]
    assert rounds_done[-1].mean("loss") < alone.mean("loss") - 0.1
    assert torch.equal(served.models, alone.assignment.models)  # nothing else is trained


def test_neighbours_are_not_used_where_they_do_harm() -> None:
    # One model learns the classes better than the nearest of 60 examples tell them.
    trained_well = Training(lr=0.5, batch=8, epochs=10)
    tried = classes_of_inputs(names_differ=False, training=trained_well)
    method = Tuned(epochs=0, neighbours=5)
    done = play(method, tried, 16)
    assert all(one.assignment.neighbours is None for one in done)
    # After two measurements in which they were worse beyond noise, they are measured no more.
    state = done[-1].position.state
    assert state.neighbours_worse == 2
    assert (
        method.plan(state, Cohort(present=IDS, exchange=16, seed=0)).tasks[2].holdout.neighbours
        is None
    )


def test_one_client_may_use_neighbours_and_another_not() -> None:
    tried = classes_of_inputs(names_differ=True)
    odd = small.client(7, train=60, validation=300, test=9)  # its labels are random
    done = play(
        Tuned(epochs=0, neighbours=10), replace(tried, clients={**tried.clients, 7: odd}), 8
    )
    served = done[-1].assignment
    assert served.by_neighbours == (2, 3, 11)
    assert served.neighbours_of(7) is None
    assert served.neighbours_of(2) is not None


def test_models_that_predict_no_class_have_no_neighbours() -> None:
    tried = world(objective=Objective(loss=squared_error))

    def numbers(split: Split) -> Split:
        return whole(split.inputs, split.inputs[:, :3])

    targets = {}
    for c, data in tried.clients.items():
        targets[c] = ClientData(
            train=numbers(data.train), validation=numbers(data.validation), test=numbers(data.test)
        )
    done = play(Tuned(neighbours=5), replace(tried, clients=targets), 6)
    assert done[-1].assignment.neighbours is None
    assert done[-1].position.state.classifier == ""
