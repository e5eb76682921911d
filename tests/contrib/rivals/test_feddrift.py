"""FedDrift: detection and merges from their definitions, on losses made by hand; its reductions; drift in a real run."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import cut_dendrogram, dendrogram, groups_of
from coterie.contrib.rivals import FedDrift
from coterie.contrib.rivals.feddrift import FedDriftState, cluster_distances, drifted
from coterie.core import Cohort, Federation, Replies
from coterie.data.scenario import Scenario
from coterie.engines.rounds import rounds
from coterie.methods import FedAvg

FEDERATION = Federation(
    clients=(2, 5, 8), draw=lambda i: torch.full((2,), float(i)), columns={"all": (0, 2)}
)


def measured(
    losses: Sequence[Sequence[float]], examples: Sequence[int] = (10, 10, 10), **more: object
) -> Replies:
    rows = tuple(map(tuple, losses))
    return Replies(
        clients=(2, 5, 8), examples=np.array(examples), losses=rows, chosen=((0,),) * 3, **more
    )  # type: ignore[arg-type]


def state(
    models: Sequence[Sequence[float]], row: dict[int, int], last: dict[int, float], **more: object
) -> FedDriftState:
    k = len(models)
    used = tuple(0 if i in row.values() else -1 for i in range(k))
    fields = {
        "seen": (0.0,) * k,
        "used": used,
        "round": 2,
        "examples": dict.fromkeys((2, 5, 8), 10),
        **more,
    }
    return FedDriftState(
        clients=(2, 5, 8), models=torch.tensor(models), phase="detect", row=row, last=last, **fields
    )  # type: ignore[arg-type]


def test_a_rise_of_more_than_delta_is_a_drift() -> None:
    losses = {2: np.array([0.5, 0.4]), 5: np.array([0.3, 0.9]), 8: np.array([0.9, 0.9])}
    assert drifted(losses, {2: 0.25, 5: 0.25}, delta=0.1) == (
        2,
    )  # 0.15 more, 0.05 more, and not known


def test_drifted_clients_are_isolated_for_a_time_step() -> None:
    """Clients 5 and 8 drift: each has a copy of its best model, which is not merged now, although the copies are the same."""
    method = FedDrift(period=2, delta=0.1)
    before = state([[1.0, 2.0]], dict.fromkeys((2, 5, 8), 0), dict.fromkeys((2, 5, 8), 0.1))
    after = method.step(before, measured([[0.15], [0.9], [0.8]]))
    assert after.row == {2: 0, 5: 1, 8: 2}
    assert after.models.tolist() == [[1.0, 2.0]] * 3
    assert after.used == (1, 1, 1)
    (note,) = after.notes
    assert note.criteria[0].held
    assert note.criteria[0].value == pytest.approx(0.8)
    # A time step later both are well served by the other's model, within delta: they merge,
    # weighted by examples.
    later = state(
        [[1.0, 2.0], [3.0, 0.0], [5.0, 0.0]],
        {2: 0, 5: 1, 8: 2},
        dict.fromkeys((2, 5, 8), 0.1),
        seen=(0.0, 20.0, 0.0),
    )
    merged = method.step(later, measured([[0.1, 0.9, 0.9], [0.9, 0.1, 0.15], [0.9, 0.15, 0.1]]))
    assert merged.row == {2: 0, 5: 1, 8: 1}
    assert merged.models[1].tolist() == [3.5, 0.0]  # 3 of 20 + 10 examples, 5 of 10
    assert merged.used == (1, 1, -1)
    assert merged.seen == (0.0, 20.0, 0.0)
    assert method.assignment(merged).groups == ((2,), (5, 8))


def test_a_recurring_concept_finds_its_model() -> None:
    method = FedDrift(period=2, delta=0.1)
    before = state(
        [[1.0, 2.0], [3.0, 0.0]], {2: 0, 5: 0, 8: 0}, dict.fromkeys((2, 5, 8), 0.1), used=(0, 0)
    )
    after = method.step(before, measured([[0.1, 0.9], [0.9, 0.12], [0.1, 0.9]]))
    assert after.row == {2: 0, 5: 1, 8: 0}
    assert len(after.models) == 2


def test_at_most_so_many_models() -> None:
    losses, last = measured([[0.9, 0.9], [0.9, 0.9], [0.1, 0.9]]), dict.fromkeys((2, 5, 8), 0.1)
    before = state([[1.0, 0.0], [2.0, 0.0]], {2: 0, 5: 0, 8: 0}, last, used=(0, 0))
    after = FedDrift(period=2, models=2).step(before, losses)
    assert after.row == {2: 1, 5: 0, 8: 0}  # model 1 was unused; there is none for client 5
    assert after.models.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_a_distance_compares_a_model_with_itself_on_its_own_data() -> None:
    """Model 0 loses 3 - 1 = 2 on the other cluster's data, and model 1 gains there: 1.5 - 2."""
    assert cluster_distances(np.array([[1.0, 3.0], [1.5, 2.0]]))[0, 1] == 2.0


def test_a_diverged_model_is_merged_with_no_other() -> None:
    """Model 1 is NaN everywhere, so its loss on other data is no worse than on its own; that must not make it near."""
    apart = cluster_distances(np.array([[0.1, 0.1, 0.1], [np.nan] * 3, [0.1, 0.1, 0.1]]))
    assert apart[0, 2] == 0.0
    assert apart[1, [0, 2]].min() > 1e6
    assert np.array_equal(apart, apart.T)


def brute(matrix: np.ndarray, delta: float) -> list[tuple[int, ...]]:
    """Merge the two nearest clusters, by the greatest distance of a pair, as long as that is below delta."""
    parts = [(i,) for i in range(len(matrix))]
    while len(parts) > 1:
        far = {
            (a, b): max(matrix[i, j] for i in a for j in b)
            for n, a in enumerate(parts)
            for b in parts[n + 1 :]
        }
        a, b = min(far, key=lambda pair: far[pair])
        if far[a, b] >= delta:
            break
        parts = [*(p for p in parts if p not in (a, b)), tuple(sorted(a + b))]
    return sorted(parts)


@given(
    st.integers(2, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(0, 3), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
)
def test_merges_by_brute_force_from_the_definition(rows: list[list[float]]) -> None:
    losses = np.array(rows)
    n = len(losses)
    apart = cluster_distances(losses)
    for i in range(n):
        for j in range(n):
            assert apart[i, j] == pytest.approx(
                max(losses[i, j] - losses[i, i], losses[j, i] - losses[j, j], 0.0)
            )
    off = sorted(apart[np.triu_indices(n, 1)])
    if any(b - a < 1e-9 for a, b in pairwise(off)):
        return  # with equal distances there are several answers
    labels = cut_dendrogram(dendrogram(apart, "complete"), threshold=0.7)
    assert sorted(tuple(part) for part in groups_of(labels)) == brute(apart, 0.7)


def test_a_loss_that_is_not_a_number_is_infinite() -> None:
    after = FedDrift(period=2).step(
        state([[1.0, 2.0]], dict.fromkeys((2, 5, 8), 0), {2: 0.1}),
        measured([[np.nan], [0.1], [0.1]]),
    )
    assert after.row == {2: 1, 5: 0, 8: 0}


def test_silence_changes_nothing() -> None:
    before = state([[1.0, 2.0], [3.0, 0.0]], {2: 0, 5: 1, 8: 0}, {2: 0.1})
    none = Replies(clients=(), examples=np.zeros(0, dtype=np.int64))
    after = FedDrift(period=2).step(before, none)
    assert (after.phase, after.row, after.notes) == ("train", before.row, ())


def test_exchanges_of_a_time_step() -> None:
    """Two rounds: train, train and measure; then a measurement that begins the next one."""
    method, cohort = FedDrift(period=2), Cohort(present=(2, 5, 8), exchange=0, seed=0)
    now, found = method.init(FEDERATION), []
    for _ in range(6):
        plan = method.plan(now, cohort)
        found.append((now.phase, plan.ends_round, now.round))
        trained = {"means": torch.zeros(len(plan.models), 2)} if now.phase == "train" else {}
        now = method.step(now, measured([[0.1]] * 3, **trained))
    wanted = [
        ("train", True, 0),
        ("train", False, 1),
        ("remember", True, 1),
        ("detect", False, 2),
        ("train", True, 2),
    ]
    assert found == [*wanted, ("train", False, 3)]


def test_with_infinite_delta_it_is_fedavg() -> None:
    world = Scenario(
        dataset="sine",
        shift="concept",
        groups=2,
        clients=4,
        examples=400,
        drift="recurring",
        period=2,
    ).build(0)
    for one, two in zip(
        rounds(FedDrift(delta=float("inf"), period=2), world, rounds=5, workers=1),
        rounds(FedAvg(), world, rounds=5, workers=1),
        strict=True,
    ):
        assert torch.equal(one.assignment.models, two.assignment.models)
        assert one.bytes_up == two.bytes_up
        assert one.evaluations == 0


@pytest.mark.slow
def test_it_finds_a_sudden_drift_and_workers_and_interruption_change_nothing() -> None:
    scenario = Scenario(
        dataset="sine", shift="concept", groups=2, clients=6, examples=4800, drift="given",
        schedule=((0,) * 6, *((0, 0, 0, 1, 1, 1),) * 3), period=10, renew=True, shuffle=False,
    )  # fmt: skip
    world = scenario.build(0)
    method = FedDrift(period=10, delta=0.3)
    found = list(rounds(method, world, rounds=40, workers=1, eval_every=10))
    assert found[9].assignment.groups == ((0, 1, 2, 3, 4, 5),)
    assert found[-1].assignment.groups == ((0, 1, 2), (3, 4, 5))
    for start, workers in ((None, 2), (found[11].position, 1)):
        for one in rounds(method, world, rounds=40, workers=workers, start=start, eval_every=10):
            assert torch.equal(one.assignment.models, found[one.number - 1].assignment.models)
            assert one.assignment.groups == found[one.number - 1].assignment.groups
