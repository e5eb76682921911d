"""Groups are looked at without a few clients: minimal cases without training, the level of the test, and short runs."""

from __future__ import annotations

import itertools
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attack import influence
from coterie.clustering import halves_gram
from coterie.contrib.rivals.clove import grouped
from coterie.core import Averaging, Cohort, Federation, HalvedUpdates, Replies, average
from coterie.methods import CFL
from coterie.methods._decisions import KeepWhole, SplitGroup
from coterie.methods._hcct_partition import EpochComparison
from coterie.methods._hostile_few import labels_without_few, left_out
from coterie.methods._model_choice import mean_losses
from coterie.methods._split_half_probes import ProbeAgain, decide_probe
from coterie.methods._split_half_reviews import _contrast
from coterie.robust import NORMS, NORMS_WITH_HOSTILE, Robust

GROUPS = np.repeat(np.arange(4), 5)
"""The true group of each of twenty clients."""

LEVEL = 1e-4


def probe(
    rng: np.random.Generator, hostile: int, distance: float = 3.0, num_hiding: int = 1
) -> Replies:
    """Replies of halves: four groups of five, of which the first clients send opposite halves."""
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(60, 4)))[0].T
    signal = distance * directions[GROUPS]
    first = signal + rng.normal(size=(20, 60)) / 4
    second = signal + rng.normal(size=(20, 60)) / 4
    # Along the difference of two groups, with 25 times the norm of an honest update.
    long = 25 * 3.5 * (directions[0] - directions[1]) / np.sqrt(2)
    first[:num_hiding] = long
    second[:num_hiding] = -long
    clients = tuple(range(20))
    return Replies(
        clients=clients,
        examples=np.ones(20, dtype=np.int64),
        updates=torch.from_numpy((first + second) / 2),
        halves=HalvedUpdates(clients=clients, gram=halves_gram(first, second)),
        averaging=Averaging(hostile=hostile),
    )


def two_probes(hostile: int, **settings: float) -> object:
    rng = np.random.default_rng(1)
    first = decide_probe(LEVEL, probe(rng, hostile, **settings), None)
    assert first is not None
    if isinstance(first.action, KeepWhole):
        return first
    assert isinstance(first.action, ProbeAgain)
    return decide_probe(LEVEL, probe(rng, hostile, **settings), first.evidence)


# -- split-half
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_hiding", [1, 2, 3])
def test_opposite_halves_hide_groups_unless_few_clients_may_be_hostile(num_hiding: int) -> None:
    assert isinstance(two_probes(0, num_hiding=num_hiding).action, KeepWhole)
    action = two_probes(num_hiding, num_hiding=num_hiding).action
    assert isinstance(action, SplitGroup)
    honest_groups = [
        set(np.flatnonzero(group == GROUPS)) - set(range(num_hiding)) for group in range(4)
    ]
    found = [set(part) - set(range(num_hiding)) for part in action.parts]
    assert sorted(map(sorted, filter(None, found))) == sorted(map(sorted, honest_groups))


def test_who_hides_a_difference_is_said() -> None:
    rng = np.random.default_rng(1)
    first = decide_probe(LEVEL, probe(rng, 1, distance=1.0), None)
    assert first is not None
    assert first.why.endswith("hidden by client 0")


def test_without_hiding_clients_the_groups_are_the_same() -> None:
    assert two_probes(2, num_hiding=0).action == two_probes(0, num_hiding=0).action


@pytest.mark.parametrize("hostile", [1, 2])
def test_clients_that_are_alike_are_rarely_split(hostile: int) -> None:
    """False alarms of two probes at the 5 % level stay below it, though many sets of clients are left out in turn."""
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(60):
        decision = decide_probe(0.05, probe(rng, hostile, distance=0.0, num_hiding=0), None)
        assert decision is not None
        alarms += isinstance(decision.action, ProbeAgain)
    # One probe, seen twice: an upper bound of both.
    assert alarms <= 60 * 0.05 + 3 * np.sqrt(60 * 0.05 * 0.95)


def test_opposite_halves_do_not_merge_groups() -> None:
    products = probe(np.random.default_rng(3), 1).halves.gram
    first_group = np.flatnonzero(GROUPS == 0).tolist()
    second_group = np.flatnonzero(GROUPS == 1).tolist()
    assert _contrast(products, first_group, second_group, hostile=0).p > 0.01
    assert _contrast(products, first_group, second_group, hostile=1).p < 1e-6


# -- CFL
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bridges", [1, 2])
def test_a_bridge_does_not_join_two_groups(num_bridges: int) -> None:
    """One update between those of two groups makes single linkage find them inseparable."""
    rng = np.random.default_rng(5)
    directions = np.zeros((2, 40))
    directions[:, 0] = (1, -1)
    directions[:, 1] = 0.5
    updates = directions[np.arange(20) % 2] + rng.normal(size=(20, 40)) / 20
    updates[:num_bridges] = directions.sum(axis=0)
    method = CFL()
    federation = Federation(
        clients=tuple(range(20)), draw=lambda number: torch.zeros(40), columns={"all": (0, 40)}
    )
    state = method.init(federation)

    def decided(hostile: int) -> tuple[bool, tuple[int, ...]]:
        replies = Replies(
            clients=tuple(range(20)),
            examples=np.ones(20, dtype=np.int64),
            chosen=((0,),) * 20,
            updates=torch.from_numpy(updates).float(),
            averaging=Averaging(hostile=hostile),
        )
        group = method.group_updates(state, 0, replies)
        assert group is not None
        return all(criterion.held for criterion in method.cut_criteria(group)), group.clients

    assert decided(0) == (False, tuple(range(20)))
    assert decided(num_bridges) == (True, tuple(range(num_bridges, 20)))


# -- HCCT
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", [0, 1])
def test_a_lure_draws_no_client_out_of_its_group(hostile: int) -> None:
    """The last client sends nearly what client 0 sends, of a group of five."""
    rng = np.random.default_rng(6)
    updates = np.zeros((6, 40))
    updates[:5, 0] = 1.0
    updates[:5] += rng.normal(size=(5, 40)) / 12
    updates[0, 1] = 1.0
    updates[5] = updates[0]
    updates[5, 0] = 0.0
    updates[5, 1] = 1.5
    comparison = EpochComparison(
        answered=tuple(range(6)),
        clients=tuple(range(6)),
        gram=updates @ updates.T,
        sizes=np.full(6, 100.0),
        tradeoffs=np.full(6, 30.0),
        signal_share=1.0,
        hostile=hostile,
    )
    expected_groups = [[1, 2, 3, 4], [0, 5]] if not hostile else [[0, 1, 2, 3, 4], [5]]
    assert sorted(comparison.partition(range(6), None)) == sorted(expected_groups)


def test_two_clients_that_are_drawn_together_return_to_their_groups() -> None:
    """The last client sends the mean of what clients 0 and 5 send, of two groups of five."""
    rng = np.random.default_rng(2)
    updates = np.zeros((11, 40))
    updates[:5, 0] = 1.0
    updates[5:10, 1] = 1.0
    updates[:10] += rng.normal(size=(10, 40)) / 12
    updates[[0, 5], 2] = 0.9
    updates[10] = 1.3 * updates[[0, 5]].sum(axis=0)
    found = {}
    for hostile in (0, 1):
        comparison = EpochComparison(
            answered=tuple(range(11)),
            clients=tuple(range(11)),
            gram=updates @ updates.T,
            sizes=np.full(11, 100.0),
            tradeoffs=np.full(11, 30.0),
            signal_share=1.0,
            hostile=hostile,
        )
        found[hostile] = sorted(comparison.partition(range(11), None))
    assert found[0] == [[0, 5, 10], [1, 2, 3, 4], [6, 7, 8, 9]]
    assert found[1] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]


def test_many_small_groups_are_searched_for_lures_in_seconds() -> None:
    """Partitions of 400 clients in groups of four: Algorithm 2 without each client in turn takes minutes."""
    rng = np.random.default_rng(17)
    updates = rng.normal(size=(100, 100))[np.arange(400) % 100] + rng.normal(size=(400, 100))
    comparison = EpochComparison(
        answered=tuple(range(400)),
        clients=tuple(range(400)),
        gram=updates @ updates.T,
        sizes=np.full(400, 100.0),
        tradeoffs=np.full(400, 30.0),
        signal_share=0.5,
        hostile=1,
    )
    begin = time.process_time()
    comparison.partition(range(400), None)
    assert time.process_time() - begin < 10


# -- leaving out
# ------------------------------------------------------------------------------------------------


@given(st.integers(0, 3), st.integers(0, 3))
def test_the_fewest_clients_are_left_out(num_hiding: int, hostile: int) -> None:
    """Of clients that hide a difference, all must go: against all subsets, by brute force."""
    clients = tuple(range(8))
    hiding = set(range(num_hiding))

    def differ(remaining: tuple[int, ...], num_sets: int) -> tuple[bool, float]:
        return not hiding & set(remaining), -float(len(hiding & set(remaining)))

    possible = [
        subset
        for size in range(hostile + 1)
        for subset in itertools.combinations(clients, size)
        if differ(tuple(sorted(set(clients) - set(subset))), 1)[0]
    ]
    assert left_out(clients, hostile, differ) == (possible[0] if possible else None)


# -- k-means
# ------------------------------------------------------------------------------------------------


def losses_of_groups() -> np.ndarray:
    losses = 2 + np.random.default_rng(4).normal(size=(20, 4)) / 20
    losses[np.arange(20), GROUPS] -= 1.5
    return losses


@pytest.mark.parametrize("lie", [[-1e30] * 4, [0.0, 1e3, 1e3, 1e3], [1e3] * 4])
def test_false_losses_get_no_group(lie: list[float]) -> None:
    losses = losses_of_groups()
    honest_rows = grouped(losses)[1:]
    losses[0] = lie
    with warnings.catch_warnings():
        # scikit-learn sees that 1e30 hides the differences of all others.
        warnings.simplefilter("ignore")
        assert grouped(losses)[1:] != honest_rows
    assert grouped(losses, hostile=1)[1:] == honest_rows


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
def test_no_losses_of_one_client_change_clear_groups(lie: list[float]) -> None:
    losses = losses_of_groups()
    honest_rows = grouped(losses)[1:]
    losses[0] = lie
    assert grouped(losses, hostile=1)[1:] == honest_rows


def test_at_most_a_quarter_of_the_points_is_left_out() -> None:
    points = np.arange(8.0)[:, None] ** 4
    labels, decided = labels_without_few(points, lambda rows: np.arange(len(rows)), hostile=1)
    assert decided.sum() == 6
    assert len(labels) == 8


@pytest.mark.parametrize("hostile", [0, 1])
def test_a_loss_far_below_chooses_no_start(hostile: int) -> None:
    """Two starts of one model, of which the second is better for all clients but the first, which lies."""
    losses = ((-1e30, 1.0), (2.0, 1.0), (2.1, 1.1), (1.9, 0.9))
    replies = Replies(
        clients=(0, 1, 2, 3),
        examples=np.ones(4, dtype=np.int64),
        losses=losses,
        averaging=Averaging(hostile=hostile),
    )
    means = mean_losses(replies, start_count=2, models_per_client=1)
    assert int(np.argmin(means)) == hostile


# -- means and samples
# ------------------------------------------------------------------------------------------------


def test_a_claim_counts_as_the_greatest_that_others_make() -> None:
    claims = {0: 90, 1: 80, 2: 10**9, 3: 70}
    assert Robust(hostile=1).counted(claims) == {0: 90, 1: 80, 2: 90, 3: 70}
    assert Robust(hostile=2).counted(claims) == {0: 80, 1: 80, 2: 80, 3: 70}


def limited_by_definition(updates: np.ndarray, hostile: int) -> np.ndarray:
    """Each update, at least as far along the mean of the others as the (f + 1)-th least of all goes."""
    limited = updates.copy()
    clients = range(len(updates))
    for client in clients:
        direction = np.delete(updates, client, axis=0).mean(axis=0)
        along = [updates[client] @ direction]
        for other in clients:
            if other != client:
                along.append(
                    updates[other] @ np.delete(updates, [client, other], axis=0).mean(axis=0)
                )
        allowed = max(along[0], np.sort(along)[hostile])
        farthest = np.linalg.norm(updates[client]) * np.linalg.norm(direction)
        allowed = np.clip(allowed, -farthest, farthest)
        limited[client] += (allowed - along[0]) / (direction @ direction) * direction
    return limited


@pytest.mark.parametrize("hostile", [1, 2])
def test_the_mean_is_that_of_updates_limited_along_the_mean_of_the_others(hostile: int) -> None:
    rng = np.random.default_rng(7)
    updates = rng.normal(size=(9, 30)) + 0.3
    updates[:hostile] = -5 * updates.mean(axis=0)
    weights = rng.random(9)
    weights /= weights.sum()
    limited = limited_by_definition(updates, hostile)
    mean = Averaging(hostile=hostile).of(torch.from_numpy(updates), weights)
    np.testing.assert_allclose(mean.numpy(), weights @ limited)


@pytest.mark.parametrize("hostile", [0, 1])
def test_a_step_against_the_mean_does_not_stop_clients_that_differ(hostile: int) -> None:
    """Twenty clients in four groups, whose mean is short; one of them steps back as far as the norm allows.

    The others move their mean by 19 / 20 of it. With the rule, the step back counts as much as the
    one of them that goes least far along their mean.
    """
    rng = np.random.default_rng(8)
    updates = np.eye(4, 40)[GROUPS] + rng.normal(size=(20, 40)) / 100
    updates[:, :4] -= 0.25
    updates[:, 5] += 0.1
    mean = updates[1:].mean(axis=0)
    updates[0] = -2 * mean / np.linalg.norm(mean)
    along_of_others = []
    for client in range(1, 20):
        along_of_others.append(
            updates[client] @ np.delete(updates, [0, client], axis=0).mean(axis=0)
        )
    along_of_hostile = min(along_of_others) if hostile else updates[0] @ mean
    expected_progress = (19 + along_of_hostile / (mean @ mean)) / 20
    averaged = Averaging(hostile=hostile).of(torch.from_numpy(updates), np.full(20, 0.05))
    progress = averaged.numpy() @ mean / (mean @ mean)
    assert progress == pytest.approx(expected_progress)
    # Two thirds of the mean of the others remain, or nearly nothing.
    assert progress > 0.6 if hostile else progress < 0.05


@pytest.mark.parametrize("length", [1e-4, 1e-6, 0.0])
def test_no_update_becomes_long_where_the_others_cancel(length: float) -> None:
    """A part along a mean that is nearly zero is divided by its norm: without a bound, the mean of all is 1,900 long."""
    rng = np.random.default_rng(9)
    updates = np.eye(4, 40)[GROUPS] + rng.normal(size=(20, 40)) / 100
    updates[1:] -= updates[1:].mean(axis=0)
    updates[1:, 5] += length
    updates[0] = 0.0
    updates[0, 6] = 1.0
    averaged = Averaging(hostile=1).of(torch.from_numpy(updates), np.full(20, 0.05))
    # No update gets longer than the square root of two times its norm.
    assert averaged.norm() <= np.sqrt(2) * np.linalg.norm(updates, axis=1).mean()


def test_without_hostile_clients_the_mean_is_the_weighted_mean() -> None:
    """Bit for bit, of updates and of models, and as they arrive."""
    rng = np.random.default_rng(10)
    updates = torch.from_numpy(rng.normal(size=(9, 30))).float()
    point = torch.from_numpy(rng.normal(size=30)).float()
    weights = rng.random(9)
    weights /= weights.sum()
    assert torch.equal(Averaging().of(updates, weights), average(updates, weights))
    assert torch.equal(Averaging().around(point, updates, weights), average(updates, weights))
    assert not Averaging().needs_all
    assert not torch.equal(Averaging(hostile=1).of(updates, weights), average(updates, weights))


def test_limits_are_tighter_with_hostile_clients_in_all_engines() -> None:
    assert Robust(hostile=1).within(exposed=False).norms == NORMS_WITH_HOSTILE
    assert Robust().within(exposed=True).norms == NORMS
    assert Robust().within(exposed=False).norms is None
    assert Robust(hostile=1, norms=7.0).within(exposed=True).norms == 7


def test_a_sample_has_a_majority_of_honest_clients() -> None:
    cohort = Cohort(
        present=tuple(range(10)), exchange=0, seed=0, fewest=Averaging(hostile=2).fewest_asked
    )
    assert len(cohort.sample(range(10), 0.1)) == 5
    assert len(cohort.sample(range(10), 0.8)) == 8
    assert len(cohort.sample(range(3), 0.1)) == 3


# -- short runs
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(
    ("method", "attack", "rounds"),
    [
        ("split-half", "opposite-difference", 20),
        ("cfl", "bridge", 40),
        ("clove", "losses-far-below", 15),
        ("cfl-gp", "constant-direction", 15),
    ],
)
def test_one_client_of_twenty_does_not_decide_who_learns_with_whom(
    method: str, attack: str, rounds: int
) -> None:
    scenario = "digits/label-permutation"
    calm = influence.honest_accuracy(method, "none", rounds, 0, scenario)
    attacked = influence.honest_accuracy(method, attack, rounds, 0, scenario)
    protected = influence.honest_accuracy(method, attack, rounds, 0, scenario, protected=1)
    assert attacked < calm - 0.1  # or the attack would show nothing
    assert protected >= calm - 0.02
