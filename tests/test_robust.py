"""Bounds on what one client can do: robust means by their definitions, plausible norms, shares of examples; over whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.boundary import Boundary
from coterie.core import CHUNK, MEANS, Averaging, Stage, Task, Training
from coterie.data.adversaries import COLLUDING, Attack
from coterie.data.objective import Objective
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines import exchange as exchanges
from coterie.engines import rounds
from coterie.methods import FedAvg
from coterie.methods._model_choice import capped
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.robust import (
    AS_PUBLISHED,
    MAX_CLAIM,
    MAX_MODEL_NORMS,
    NORMS,
    REFUSAL_FACTOR,
    SMALL_SHARE,
    Length,
    Robust,
    Usual,
    steps_of,
)
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.runs.set_option import assign
from coterie.settings import SettingError
from coterie.training.blocks import Block
from coterie.training.learner import Learner
from scripted import everyone, shown
from small import normed, world

ROBUST_MEANS = [name for name in MEANS if name != "mean"]


def drawn(n: int, d: int = 4, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = rng.random(n) + 0.1
    return torch.from_numpy(rng.standard_normal((n, d))).float(), weights / weights.sum()


# -- means by their definitions
# -------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.25, 0.4]))
def test_median_and_trimmed_mean_by_definition(n: int, seed: int, trim: float) -> None:
    updates, weights = drawn(n, seed=seed)
    columns = [sorted(column) for column in updates.T.tolist()]
    middle = [(column[(n - 1) // 2] + column[n // 2]) / 2 for column in columns]
    np.testing.assert_allclose(
        Averaging(mean="median").of(updates, weights), middle, rtol=1e-5, atol=1e-6
    )
    out = max(int(trim * n), 1 if trim and n > 2 else 0)
    trimmed = [float(np.mean(column[out : n - out])) for column in columns]
    found = Averaging(mean="trimmed-mean", trim=trim).of(updates, weights)
    np.testing.assert_allclose(found, trimmed, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@given(st.integers(3, 8), st.integers(0, 1000))
def test_the_geometric_median_has_the_least_sum_of_distances(n: int, seed: int) -> None:
    updates, weights = drawn(n, d=3, seed=seed)
    rows = updates.double().numpy()

    def cost(point: np.ndarray) -> float:
        return float((weights * np.linalg.norm(rows - point, axis=1)).sum())

    found = cost(Averaging(mean="geometric-median").of(updates, weights).double().numpy())
    starts = [*rows, weights @ rows]
    best = min(float(minimize(cost, start, method="Nelder-Mead").fun) for start in starts)
    assert found <= best * 1.002 + 1e-6


@given(st.integers(1, 8), st.integers(0, 1000))
def test_norm_clipping_by_definition(n: int, seed: int) -> None:
    updates, weights = drawn(n, seed=seed)
    norms = updates.norm(dim=1).tolist()
    limit = float(np.median(norms))  # none is zero
    clipped = [
        row * min(1.0, limit / norm) for row, norm in zip(updates.double(), norms, strict=True)
    ]
    expected = (
        sum(weight * row for weight, row in zip(weights, clipped, strict=True))
        if n > 1
        else updates[0]
    )
    np.testing.assert_allclose(
        Averaging(mean="norm-clipping").of(updates, weights), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("mean", MEANS)
def test_equal_updates_are_their_own_mean(mean: str) -> None:
    updates = drawn(1)[0]
    found = Averaging(mean=mean).of(updates.repeat(5, 1), np.full(5, 0.2))
    np.testing.assert_allclose(found, updates[0], rtol=1e-6)
    half = Averaging(mean=mean).of(
        updates.repeat(5, 1), np.full(5, 0.1)
    )  # weights that sum to one half
    np.testing.assert_allclose(half, updates[0] / 2, rtol=1e-6)
    around = Averaging(mean=mean).around(torch.ones(4), updates.repeat(5, 1), np.full(5, 0.2))
    np.testing.assert_allclose(around, updates[0], rtol=1e-5)


@pytest.mark.parametrize("mean", ROBUST_MEANS)
@pytest.mark.parametrize("length", [1e2, 1e9, 1e17])
def test_one_hostile_update_of_nine_cannot_move_a_robust_mean_far(mean: str, length: float) -> None:
    updates, weights = drawn(9, d=50, seed=3)
    honest = Averaging(mean=mean).of(updates[1:], weights[1:] / weights[1:].sum())
    updates[0] = length
    found = Averaging(mean=mean).of(updates, weights)
    assert float((found - honest).norm()) < 2 * float(updates[1:].norm(dim=1).median())
    plain = Averaging().of(updates, weights)
    assert float((plain - honest).norm()) > 2 * float(updates[1:].norm(dim=1).median())


# -- shares of weight
# ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=30),
    st.sampled_from([0.05, 0.1, 0.3, 0.9, 1.0]),
)
def test_no_client_has_more_than_its_share(claims: list[int], share: float) -> None:
    examples = np.array(claims, dtype=np.int64)
    found = Averaging(share=share).bounded(examples)
    most = max(share, 2 / len(examples))
    assert found.dtype == examples.dtype
    assert (found >= 1).all()
    assert (found <= examples).all()
    assert found.max() <= most * found.sum() + 1  # whole numbers
    cut = found < examples
    assert len(set(found[cut].tolist())) <= 1  # all who are cut count for the same
    assert not cut.any() or found[cut][0] >= found[~cut].max()  # nobody is cut below one who is not
    if examples.max() <= most * examples.sum():
        assert found is examples


@pytest.mark.parametrize(
    ("amounts", "right"),
    [
        ([0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        (
            [5.0, 1.0, 2.0, *[0.0] * 7],
            [1.0, 1.0, 1.0, *[0.0] * 7],
        ),  # three of ten cannot have a fifth at most
        ([5.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]),
        ([7.0], [7.0]),
        ([], []),
        ([5e-324, 0.0, 0.0], [5e-324, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_clients_without_weight_do_not_take_it_from_the_others(
    amounts: list[float], right: list[float], dtype: type[np.number]
) -> None:
    """One client of four with a weight once lost it, and the weights were divided by their sum, zero."""
    given = np.array(amounts).astype(dtype)
    assert Averaging(share=0.1).bounded(given).tolist() == np.array(right).astype(dtype).tolist()


@given(
    st.lists(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 30.0]), min_size=1, max_size=14),
    st.sampled_from([0.05, 0.1, 0.4]),
)
def test_the_bounded_weights_sum_to_zero_only_if_the_weights_do(
    amounts: list[float], share: float
) -> None:
    weights = np.array(amounts)
    found = Averaging(share=share).bounded(weights)
    assert ((found > 0) == (weights > 0)).all()
    assert (found <= weights).all()
    reachable = max(share, 2 / len(weights), 1 / max((weights > 0).sum(), 1))
    assert found.max() <= (reachable + 1e-9) * found.sum()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -1.0])
def test_a_weight_that_is_no_weight_is_refused(odd: float) -> None:
    with pytest.raises(ValueError, match="weights must be finite and >= 0"):
        Averaging(share=0.1).bounded(np.array([1.0, odd, 1.0]))


def test_a_claim_of_everything_counts_for_a_tenth() -> None:
    found = Averaging().bounded(np.array([10**9, *[50] * 19]))
    assert found[1:].tolist() == [50] * 19
    assert found[0] == int(0.1 / 0.9 * 19 * 50)


@given(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=12))
def test_claims_of_any_size_are_counted(claims: list[int]) -> None:
    """Several of 2^62 once had a sum that no whole number of 64 bits has."""
    found = Robust().counted(dict(enumerate(claims)))
    assert all(
        1 <= found[client] <= min(claim, Robust().most_examples)
        for client, claim in enumerate(claims)
    )


# -- plausible norms
# ----------------------------------------------------------------------------------------------------


def long(
    update: float,
    start: int = 0,
    model: float = 5.0,
    buffers: float = 0.0,
    task: int = 0,
    steps: float = 1.0,
) -> Length:
    return Length(update, buffers, (model, model), False, task, frozenset({start}), steps)


def refused(lengths: dict[int, Length], robust: Robust | None = None) -> set[int]:
    return set((robust or Robust()).limited(lengths, {}).refused)


def scaled(lengths: dict[int, Length], robust: Robust | None = None) -> dict[int, float]:
    return dict((robust or Robust()).limited(lengths, {}).scaled)


def test_norms_are_compared_with_clients_that_began_with_the_same_model() -> None:
    alike = {client: long(1.0) for client in range(4)}
    assert not scaled({**alike, 9: long(NORMS - 0.1)})
    assert scaled({**alike, 9: long(4 * NORMS)}) == {9: 0.25}
    assert scaled({**alike, 9: long(NORMS * REFUSAL_FACTOR - 1)}) == {
        9: NORMS / (NORMS * REFUSAL_FACTOR - 1)
    }
    assert refused({**alike, 9: long(NORMS * REFUSAL_FACTOR + 1)}) == {9}
    newcomer = {
        **alike,
        9: long(25.0, start=1),
    }  # an honest one was seen to be that long beside converged clients
    assert not refused(newcomer)
    assert not scaled(newcomer)
    assert refused({**alike, 9: long(NORMS * REFUSAL_FACTOR + 1, start=1)}) == {9}
    assert not refused({**alike, 9: long(50.0, task=1)})  # another task: its norm tells nothing
    assert refused({**alike, 9: long(6 * MAX_MODEL_NORMS, task=1)}) == {9}
    assert not refused({**alike, 9: long(1e17)}, Robust(norms=None))
    assert scaled({**alike, 9: long(5.0)}, Robust(norms=4.0)) == {9: 0.8}


def test_who_shares_one_of_several_models_is_compared() -> None:
    """Of methods whose clients train from several: the order in which a client names them gets it no other bound."""
    alike = {client: replace(long(1.0), start=frozenset({0, 1})) for client in range(4)}
    assert scaled({**alike, 9: replace(long(4 * NORMS), start=frozenset({1, 2}))}) == {9: 0.25}


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 1000)), min_size=3, max_size=8),
    st.floats(1.5, 30),
)
def test_a_client_is_compared_with_one_of_as_many_steps(
    clients: list[tuple[float, int]], norms: float
) -> None:
    """By definition: the median over all of norm x max(1, own steps / their steps), or a tenth of the model's norm."""
    lengths = {client: long(norm, steps=steps) for client, (norm, steps) in enumerate(clients)}
    found = Robust(norms=norms).limited(lengths, {})
    for client, (norm, steps) in enumerate(clients):
        usual = float(np.median([other * max(1.0, steps / theirs) for other, theirs in clients]))
        limit = max(norms * usual, SMALL_SHARE * 5.0)
        if norm > REFUSAL_FACTOR * limit:
            assert client in found.refused
        else:
            assert found.scaled.get(client, 1.0) == pytest.approx(min(1.0, limit / norm))


def test_honest_clients_of_any_size_and_number_of_epochs_are_left_alone() -> None:
    """Aligned steps, of which an update is the sum, at sizes 1:100 and epochs 1:20: no longer than is usual."""
    small = {client: long(0.01 * 2, steps=2) for client in range(8)}
    assert not scaled({**small, 9: long(0.01 * 2 * 100 * 20, steps=2 * 100 * 20, model=1.0)})
    large = {client: long(0.01 * 200, steps=200) for client in range(8)}
    assert not scaled({**large, 9: long(0.02, steps=2)})
    own_app = {
        **small,
        9: long(0.01 * 2 * 20, steps=2, model=0.01),
    }  # it makes 20 epochs, and the server supposes one
    assert not scaled(own_app)


def test_one_who_still_learns_beside_clients_that_have_converged_is_left_alone() -> None:
    resting = {client: long(1e-7) for client in range(8)}
    assert not scaled({**resting, 9: long(0.49)})  # a tenth of its model's norm
    assert scaled({**resting, 9: long(1.0)}) == {9: 0.5}


def test_what_a_clip_allows_is_never_scaled() -> None:
    """With noise the server knows no sizes, so it cannot tell a large client from a hostile one."""
    alike = {client: long(1e-3) for client in range(4)}
    assert not scaled({**alike, 9: replace(long(3.0), plausible=3.0)})
    assert scaled({**alike, 9: replace(long(6.0), plausible=3.0)}) == {9: 0.5}


def test_running_statistics_are_held_to_the_same_bound() -> None:
    alike = {client: long(1.0, buffers=0.5) for client in range(4)}
    assert scaled({**alike, 9: long(1.0, buffers=2 * 0.5 * NORMS)}) == {9: pytest.approx(0.5)}
    assert refused({**alike, 9: long(1.0, buffers=0.5 * NORMS * REFUSAL_FACTOR + 1)}) == {9}
    near_rest = {client: long(1.0, buffers=1e-3) for client in range(4)}
    assert not scaled(
        {**near_rest, 9: long(1.0, buffers=5.0)}
    )  # another domain: its statistics are other ones


def test_what_rests_with_everybody_else_cannot_be_moved() -> None:
    """Frozen parameters, or running statistics behind a gradient: one reply once ended the run for everybody."""
    alike = {client: long(1.0) for client in range(4)}
    assert refused({**alike, 9: long(1.0, buffers=1e-3)}) == {9}
    assert not refused({**alike, 9: long(1.0, buffers=1e-7)})  # rounding
    resting = {client: long(0.0) for client in range(4)}
    assert not refused({**resting, 9: long(4.9)})  # it has something left to learn
    assert not scaled({**resting, 9: long(4.9)})
    assert refused({**resting, 9: long(5.1)}) == {9}  # longer than the model


def test_short_updates_get_nobody_refused() -> None:
    """Hostile clients that send next to nothing cannot make the honest ones look long, while these are the majority."""
    honest = {client: long(1.0 + 0.1 * client) for client in range(5)}
    assert not refused({**honest, **{client: long(1e-9) for client in range(5, 8)}})
    assert not scaled({**honest, **{client: long(1e-9) for client in range(5, 8)}})


def test_of_two_clients_none_is_refused_for_the_other() -> None:
    assert not refused({0: long(1.0), 1: long(100.0)})


def test_who_came_earlier_in_the_exchange_is_a_reference() -> None:
    usual = Usual()
    usual.add(long(1.0) for _ in range(4))
    assert Robust().limited({9: long(4 * NORMS)}, {}, usual).scaled == {9: 0.25}
    assert not Robust().limited({9: long(4 * NORMS)}, {}).scaled


@pytest.mark.parametrize(
    ("task", "training", "examples", "steps"),
    [
        (Task(offered=(0,)), Training(batch=32), 100, 4),
        (Task(offered=(0,)), Training(batch=0, epochs=3), 100, 3),
        (Task(offered=(0,)), Training(steps=7), 100, 7),
        (Task(offered=(0,), epochs=20), Training(steps=7, batch=10), 100, 200),
        (Task(offered=(0,), training=Training(batch=50)), Training(batch=1), 100, 2),
        (
            Task(offered=(0,), stages=(Stage(layers=("a",)), Stage(layers=("b",), epochs=5))),
            Training(batch=100),
            100,
            6,
        ),
        (Task(offered=(0,), gradient=True), Training(batch=1), 100, 1),
        (Task(offered=(0,)), Training(batch=32), 0, 1),
    ],
)
def test_steps_of_a_task(task: Task, training: Training, examples: int, steps: int) -> None:
    assert steps_of(task, training, examples) == steps


# -- when limits are on
# -------------------------------------------------------------------------------------------------


def test_limits_are_off_where_nobody_is_hostile() -> None:
    assert Robust().within(exposed=False) == AS_PUBLISHED
    assert Robust().within(exposed=True) == Robust(norms=NORMS)
    assert Robust(norms=3, share=0.2).within(exposed=False) == Robust(norms=3, share=0.2)
    assert not Robust().within(exposed=False).limits_reports
    assert Robust().within(exposed=True).limits_reports
    for name, value in (("norms", "atuo"), ("share", "all")):
        with pytest.raises(
            SettingError, match=rf"robust\.{name} must be a number .*auto.*, got '{value}'"
        ):
            Robust(**{name: value})


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12))
def test_claims_that_are_believed_count_as_they_are(claims: list[int]) -> None:
    found = Robust().counted(dict(enumerate(claims)))
    positive = [claim for claim in claims if claim > 0]
    for client, claim in enumerate(claims):
        if len(positive) >= 3 and claim > MAX_CLAIM * np.median(positive):
            assert found[client] == max(1, math.floor(np.median(positive)))
        else:
            assert found[client] == claim


# -- what is sent
# -------------------------------------------------------------------------------------------------------


class Sends(Attack):
    """An attack that sends its own update, changed by ``change``."""

    change: Callable[[torch.Tensor], torch.Tensor]

    def tampered(self, row: torch.Tensor, sent: torch.Tensor, *key: int) -> torch.Tensor:
        return type(self).change(row)


def sending(change: Callable[[torch.Tensor], torch.Tensor]) -> Attack:
    return type("Sends", (Sends,), {"change": staticmethod(change)})()


@pytest.mark.parametrize("sketch", [None, 8])
@pytest.mark.parametrize("halves", [False, True])
def test_a_long_update_is_scaled_down_to_the_bound(sketch: int | None, halves: bool) -> None:
    tried = world()
    plan = everyone(Task(offered=(0,), halves=halves), sketch=sketch)(
        0, tuple(sorted(tried.clients))
    )
    calm = shown([plan], tried, robust=Robust(norms=None))[0]
    client = calm.clients[0]
    many = replace(tried, attacks={client: sending(lambda row: 20 * row)})
    found, free = (
        shown([plan], many, robust=robust)[0] for robust in (Robust(norms=2.0), Robust(norms=None))
    )
    assert set(found.limits.scaled) == {client}
    torch.testing.assert_close(
        found.updates[0], free.updates[0] * found.limits.scaled[client], rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(found.updates[1:], calm.updates[1:])
    if halves:
        own = np.array([0, len(calm.clients)])
        np.testing.assert_allclose(
            found.halves.gram[np.ix_(own, own)],
            free.halves.gram[np.ix_(own, own)] * found.limits.scaled[client] ** 2,
            rtol=1e-4,
        )
    else:
        norms = (
            shown([{**plan, "sketch": None}], many, robust=Robust(norms=None))[0]
            .updates.norm(dim=1)
            .numpy()
        )
        start = float(rounds.setup(FedAvg(), tried, 0, Boundary())[1].draw(0).norm())
        limit = max(2 * np.median(norms), SMALL_SHARE * max(start, 1.0))
        assert found.limits.scaled[client] == pytest.approx(limit / norms[0], rel=1e-4)


def layout_of(world: World) -> Layout:
    with seeded(0):
        return Layout(world.model())


@pytest.mark.parametrize("value", [-1e-3, -5.0])
def test_a_negative_variance_is_refused(value: float) -> None:
    """Within the bound of norms it once made every model NaN: a variance has a root."""
    tried = world(model=normed)
    at = layout_of(tried).variances[0].start

    def negative(row: torch.Tensor) -> torch.Tensor:
        row = row.clone()
        row[at] = value - 1.0  # a running variance begins at 1
        return row

    plan = everyone(Task(offered=(0,)))(0, tuple(sorted(tried.clients)))
    client = min(tried.clients)
    found = shown([plan], replace(tried, attacks={client: sending(negative)}), robust=Robust())[0]
    assert found.refused == {client: "its running variance is negative"}


def test_a_model_whose_variance_is_negative_serves_all_the_same() -> None:
    """Under a rotation the server cannot tell which columns are variances: the clients take one below zero for zero."""
    with seeded(0):
        learner = Learner(normed(), Objective())
    (part,) = learner.layout.variances
    row = learner.layout.row(learner.module)
    row[part] = torch.arange(-2.0, 6.0)
    learner.load(row)
    raised = [0.0, 0.0, *range(6)]
    assert learner.master.row()[part].tolist() == raised
    assert Block(learner, [row, row]).flat[:, part].tolist() == [raised] * 2


def test_the_last_of_many_waves_is_compared_with_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = range(CHUNK + 1)
    tried = world(many, attacks={CHUNK: sending(lambda row: 3000 * row)})
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", 1)
    plan = everyone(Task(offered=(0,)), need="mean")(0, tuple(many))
    assert set(shown([plan], tried, robust=Robust())[0].refused) == {CHUNK}


@given(st.lists(st.floats(0, 10), min_size=3, max_size=20), st.floats(0, 3e38))
def test_no_client_alone_decides_by_the_losses_that_it_reports(
    honest: list[float], claim: float
) -> None:
    """Of 3e38 it once drew all centres of IFCA's start, and chose which of several starts went on."""
    found = capped(np.array([*honest, claim]))
    assert found[-1] <= 2 * max(honest)
    assert (found[:-1] == honest).all() or claim < max(honest)


# -- in runs
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COLLUDING)
@pytest.mark.parametrize("sketch", [None, 8])
@pytest.mark.parametrize("halves", [False, True])
def test_what_a_colluding_client_sends_is_made_of_the_honest_updates(
    kind: str, sketch: int | None, halves: bool
) -> None:
    """By definition: mean less 1.5 standard deviations, or less the mean, of those that began with the same model."""
    tried = world()
    plan = everyone(Task(offered=(0,), halves=halves), sketch=sketch)(
        0, tuple(sorted(tried.clients))
    )

    def rows(attacks: Any) -> Any:
        return shown([plan], replace(tried, attacks=attacks), robust=Robust(norms=None))[0]

    calm = rows({})
    client = calm.clients[0]
    hostile = rows({client: Attack(kind=kind, scale=1.5 if kind == "little-is-enough" else 1.0)})
    honest = calm.updates[1:]
    expected = (
        honest.mean(0) - 1.5 * honest.std(0, correction=0)
        if kind == "little-is-enough"
        else -honest.mean(0)
    )
    if sketch is None and not halves:
        torch.testing.assert_close(hostile.updates[0], expected, rtol=1e-4, atol=1e-6)
    elif kind == "inner-product":  # linear, so that it holds for sketches and means of halves too
        torch.testing.assert_close(hostile.updates[0], expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(hostile.updates[1:], honest)
    if halves:
        assert np.isfinite(hostile.halves.gram).all()
        assert not np.allclose(hostile.halves.gram[0], calm.halves.gram[0])


def test_what_was_refused_is_recorded(tmp_path: Path) -> None:
    scenario = {"name": "synthetic/iid", "clients": 8, "adversaries": 0.1, "attack": "huge"}
    experiment = make({"scenario": scenario, "methods": ["fedavg"], "rounds": 2, "workers": 1})
    (run,) = begin(experiment, tmp_path / "run")
    list(run.rounds())
    (hostile,) = map(str, Record(tmp_path / "run").description()["world"]["adversaries"])
    for line in Record(tmp_path / "run").lines():
        assert set(line["refused"]) == {hostile}
        assert "norm" in line["refused"][hostile]
    assert make(experiment.spec()).robust == experiment.robust


def test_a_claim_that_was_cut_is_recorded(tmp_path: Path) -> None:
    scenario = {"name": "synthetic/iid", "adversaries": 0.05, "attack": "examples"}
    (run,) = begin(
        make({"scenario": scenario, "methods": ["fedavg"], "rounds": 1, "workers": 1}),
        tmp_path / "run",
    )
    list(run.rounds())
    world = run.record.description()["world"]
    (hostile,) = world["adversaries"]
    has = world["examples"][world["clients"].index(hostile)]
    assert run.record.lines()[0]["claimed"] == {str(hostile): 1_000_000 * has}


@pytest.mark.parametrize("mean", ROBUST_MEANS)
def test_a_robust_mean_holds_where_the_mean_does_not(mean: str) -> None:
    """Four of twenty turn their updates round, eight times as long; no norm is refused."""
    scenario = replace(
        SCENARIOS["synthetic/iid"], adversaries=0.2, attack="sign-flip", attack_scale=8.0
    )

    def honest(rule: str) -> float:
        tried = scenario.build(0)
        *_, done = rounds.rounds(
            FedAvg(), tried, rounds=6, workers=1, eval_every=6, robust=Robust(norms=None, mean=rule)
        )
        return float(
            np.mean(
                [score["accuracy"] for c, score in done.scores.items() if c not in tried.attacks]
            )
        )

    assert honest("mean") < 0.5
    assert honest(mean) > 0.8


def test_settings_by_file_and_command_line() -> None:
    spec = make({"methods": ["cfl"], "robust": {"mean": "median"}}).spec()
    assert make(assign(spec, "robust.norms=none")).robust == Robust(mean="median", norms=None)
    with pytest.raises(SettingError, match=r"write robust\.mean"):
        assign(spec, "mean=median")
    with pytest.raises(SettingError, match=r"robust has no setting 'men'; did you mean mean\?"):
        make({"robust": {"men": "median"}})
    with pytest.raises(SettingError, match="needs engine inprocess, got flower"):
        make(
            {
                "scenario": {"name": "digits/iid", "adversaries": 0.1, "attack": "inner-product"},
                "engine": "flower",
            }
        )
