"""Race: the evidence and its tests against brute force, hostile clients, and what a race of methods reduces to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
from coterie.boundary import Boundary
from coterie.core import Averaging, Cohort, Federation, HeldOutLosses, Replies, Round
from coterie.data.adversaries import AdversarySettings, Attack
from coterie.data.attendance import Attendance
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World, with_attacks
from coterie.engines.rounds import rounds
from coterie.methods import (
    ACFL,
    CFL,
    FLHC,
    HCCT,
    IFCA,
    MAXFL,
    Auto,
    FedAvg,
    FedPer,
    Independent,
    Race,
    SplitHalf,
    Tuned,
)
from coterie.methods._cluster_tree import Leaf, root
from coterie.methods._fences import fenced
from coterie.methods._race_evidence import Difference, expected, pooled
from coterie.methods._race_sharing import shared
from coterie.methods.race import MIN_REPORTS, OFFERED, RaceState, pair_key
from coterie.settings import SettingError, UserError, build
from method_examples import slow
from scripted import bits, outcome
from worlds import THREE, grouped, last
from worlds import play as played

Reports = dict[int, tuple[float, float, int]]
PAIR = "fedavg split-half"

TWO_GROUPS = Federation(
    clients=(0, 1, 2, 3), draw=lambda _: torch.zeros(2), columns={"all": (0, 2)}
)


def digits(name: str = "label-permutation", seed: int = 0, clients: int = 6, **how: Any) -> World:
    shares = {"train": 0.6, "validation": 0.2, **how}
    return replace(SCENARIOS[f"digits/{name}"], clients=clients, groups=2, **shares).build(seed)


def run(method: Any, world: World, count: int, workers: int = 1, **how: Any) -> list[Round]:
    return list(rounds(method, world, rounds=count, workers=workers, **how))


def reports(losses: np.ndarray) -> Reports:
    """Of differences of losses ``(clients, examples)``."""
    m = losses.shape[1]
    return {
        c: (float(x.mean()), float(x.var(ddof=1)) / m if m > 1 else math.inf, m)
        for c, x in enumerate(losses)
    }


def raced(
    past: Mapping[str, tuple[Difference, ...]], arms: tuple[str, ...] = ("fedavg", "split-half")
) -> RaceState:
    round = max((len(history) for history in past.values()), default=0)
    # Split-half has found two groups.
    states: dict[str, Any] = dict.fromkeys(arms, 0)
    if arms == ("fedavg", "split-half"):
        leaves = tuple(
            Leaf(node=node, clients=clients, model=torch.zeros(2))
            for node, clients in enumerate(((0, 1), (2, 3)))
        )
        states = {
            "fedavg": FedAvg().init(TWO_GROUPS),
            "split-half": replace(
                SplitHalf().init(TWO_GROUPS),
                leaves=leaves,
                tree=root(TWO_GROUPS.clients, 2).plant().place({2: 1, 3: 1}),
            ),
        }
    return RaceState(arms=states, leader=arms[0], past=past, round=round)


# -- pooled differences
# ---------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12))
def test_values_are_limited_by_the_fences_of_the_others(values: list[float]) -> None:
    slack = 0.5 * (len(values) % 2)
    found = fenced(np.array(values), slack)
    for i, value in enumerate(values):
        others = values[:i] + values[i + 1 :]
        if len(others) > 1:
            low, high = np.quantile(others, [0.25, 0.75])
            value = min(max(value, low - 3 * (high - low) - slack), high + 3 * (high - low) + slack)
        assert found[i] == pytest.approx(value, abs=1e-9)


def test_a_pooled_difference_is_the_mean_over_examples() -> None:
    rng = np.random.default_rng(0)
    each = [rng.normal(0.1, 1.0, size=m) for m in (400, 500, 600, 450)]
    seen = {c: (float(x.mean()), float(x.var(ddof=1) / len(x)), len(x)) for c, x in enumerate(each)}
    found = pooled(7, seen)
    assert found.round == 7
    assert found.mean == pytest.approx(np.concatenate(each).mean())  # no value is beyond a fence
    share = np.array([len(x) for x in each]) / 1950
    errors = [s**2 * x.var(ddof=1) / len(x) for s, x in zip(share, each, strict=True)]
    assert found.error == pytest.approx(math.sqrt(sum(errors)))
    welch = sum(errors) ** 2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, each, strict=True))
    assert found.degrees == pytest.approx(welch)


def test_one_client_and_one_example() -> None:
    assert pooled(1, {3: (0.5, 0.25, 4)}).z == pytest.approx(1.0)
    alone = pooled(
        1, {3: (0.5, math.inf, 1)}
    )  # nothing is known of its noise: it never takes the lead
    assert alone.z == pytest.approx(1.0)
    one_two = Race(methods=("fedavg", "ifca"))
    assert one_two.ahead(raced({"fedavg ifca": (alone,)}, ("fedavg", "ifca"))) == "fedavg"
    mixed = pooled(1, {1: (0.5, 0.25, 4), 2: (0.5, math.inf, 1)})
    assert mixed.error == pytest.approx(
        math.sqrt(0.64 * 0.25 + 0.04 * 1.0)
    )  # as noisy an example as the others'
    many = pooled(1, {c: (0.1 + 0.01 * c, math.inf, 1) for c in range(20)})
    assert many.z > 3


def test_equal_models_have_no_difference() -> None:
    same = pooled(3, dict.fromkeys(range(6), (0.0, 0.0, 5)))
    assert (same.mean, same.error, same.z) == (0.0, 0.0, 0.0)
    assert same.degrees == math.inf
    assert Race()._compared(raced({PAIR: (same,) * 40}), "fedavg", "split-half") is None


def test_no_client_counts_for_more_than_two_or_a_tenth() -> None:
    for n in (3, 5, 20, 40):
        seen = {c: (float(c == 0), 0.01, 10**9 if c == 0 else 10) for c in range(n)}
        share = max(0.1, 2 / n)
        others = pooled(1, {**seen, 0: (0.0, 0.01, 10**9)})
        assert pooled(1, seen).mean - others.mean <= share + 1e-9
    assert Averaging().bounded(np.array([10**9, *[10] * 39]))[0] == int(0.1 / 0.9 * 390)


# -- one hostile client
# -----------------------------------------------------------------------------------------------------

LIES = [
    (1e4, 0.0),
    (-1e4, 0.0),
    (1e4, 1e8),
    (-1e4, 1e8),
    (0.0, 1e8),
    (0.0, 1e300),
    (1e4, math.inf),
    (-1e4, math.inf),
]


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize("count", [1, 30, 10**12])
@pytest.mark.parametrize("n", [3, 4, 20, *slow(5, 8)])
def test_one_hostile_client_decides_nothing(n: int, count: int, lie: tuple[float, float]) -> None:
    """All honest clients are clearly better off with one arm: that arm leads, and the other is dropped, or neither is."""
    rng = np.random.default_rng(n)
    race = Race(methods=("fedavg", "split-half"))
    for gain, better in ((0.5, "split-half"), (-0.5, "fedavg")):
        honest = reports(
            gain + 0.02 * rng.normal(size=(n - 1, 1)) + 0.2 * rng.normal(size=(n - 1, 30))
        )
        told: Reports = {**honest, n: (*lie, count)}
        past = tuple(pooled(r, told, limited=True) for r in range(1, 41))
        state = raced({PAIR: past})
        assert race.ahead(state) == better, (n, lie)
        found = race._compared(state, "fedavg", "split-half")
        assert found is not None
        assert found[0] != better


def test_an_arm_that_is_about_to_overtake_is_given_twice_the_time() -> None:
    """One model's loss is higher, and comes down: after 20 reports it is expected to be the lower one after 40.

    Without personal models, groups stay ahead, so they do not end as those which are expected to be behind.
    """
    race = Race(methods=("fedavg", "split-half"), patience=10)

    def dropped_after(start: float, rounds: int) -> str | None:
        falling = tuple(
            Difference(round=r, mean=start - 0.2 * math.log(r), error=0.05)
            for r in range(1, rounds + 1)
        )
        ahead = tuple(replace(difference, mean=0.3) for difference in falling)
        state = replace(raced({PAIR: falling, PAIR + OFFERED: ahead}), leader="split-half")
        found = race._compared(state, "fedavg", "split-half")
        return found and found[0]

    # It is still behind in round 20, and would be ahead after twice as many.
    assert 0.65 - 0.2 * math.log(20) > 0 > 0.65 - 0.2 * math.log(40)
    assert dropped_after(0.65, 20) is None
    # It is too slow.
    assert dropped_after(0.75, 20) == "fedavg"
    # After four times patience the contest ends all the same.
    assert dropped_after(0.7, 39) is None
    assert dropped_after(0.7, 40) is not None


def test_personal_models_do_not_hide_what_groups_gain() -> None:
    """The models that serve clients are alike, and those that they were offered are better with groups: groups stay."""
    rng = np.random.default_rng(0)
    race, noise = Race(methods=("fedavg", "split-half")), 0.2 * rng.normal(size=(6, 30))
    alike, ahead_, behind = (
        tuple(pooled(r, reports(gain + noise - noise.mean())) for r in range(1, 31))
        for gain in (-1e-6, 0.3, -0.3)
    )
    for offered, ends in ((ahead_, "fedavg"), (behind, "split-half"), (alike, "split-half")):
        found = race._compared(
            raced({PAIR: alike, PAIR + OFFERED: offered}), "fedavg", "split-half"
        )
        assert (found and found[0]) == ends
    one, _ = race._compared(
        raced({PAIR: ahead_, PAIR + OFFERED: behind}), "fedavg", "split-half"
    ) or ("", None)
    assert one == "fedavg"  # what serves clients decides between arms that both have hope


@pytest.mark.slow
def test_evidence_without_personal_models_is_of_what_clients_were_offered() -> None:
    tried = digits(clients=8)
    state = run(
        Race(
            methods=(Tuned(epochs=2), Tuned(method=SplitHalf(probe_every=1), epochs=2)), patience=30
        ),
        tried,
        12,
    )
    key = "tuned-fedavg tuned-split-half"
    # Until one model ends, both are compared.
    (*_, end) = (one.position.state for one in state if key in one.position.state.seen)
    offered, served = end.seen[key + OFFERED], end.seen[key]
    assert offered.keys() == served.keys()
    own = {name: set(end.arms[name].own) for name in end.arms}
    differ = {client for client in offered if offered[client][0] != served[client][0]}
    assert differ <= set.union(*own.values())
    assert differ


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("n", [3, 4, 20, *slow(5, 8)])
def test_fences_keep_the_level_of_a_test(n: int, limited: bool) -> None:
    """With three clients and the fences of before, a test at the 10 % level rejected in 19 % of draws, without them in 8 %."""
    rng, draws = np.random.default_rng(n), 800
    rejected = 0
    for _ in range(draws):
        difference = pooled(1, reports(rng.normal(size=(n, 5))), limited)
        rejected += 2 * scipy.special.stdtr(difference.degrees, -abs(difference.z)) < 0.1
    assert rejected / draws <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / draws)


@pytest.mark.slow
def test_what_fences_change_is_said() -> None:
    """A hostile client's reports in a scenario with adversaries; without adversaries nothing is changed, so nothing is said."""
    for hostile in ({3: Attack(kind="label-flip")}, {}):
        tried = replace(digits(clients=10), attacks=hostile)
        notes = [
            note
            for done in run(Race(methods=("fedavg", "split-half")), tried, 8)
            for note in done.notes
        ]
        bounds = [note for note in notes if note.kind == "bound"]
        assert bool(bounds) == bool(hostile)
        assert all(
            set(note.clients) <= set(tried.clients) and "robust.share" in note.text
            for note in bounds
        )


def test_of_two_clients_neither_is_known_to_be_hostile() -> None:
    assert fenced(np.array([1.0, 1e4])).tolist() == [1.0, 1e4]


# -- the sequential test
# -----------------------------------------------------------------------------------------------------


def dropped(
    rng: np.random.Generator, n: int, m: int, level: float, again: float, gain: float = 0.0
) -> str | None:
    """The arm that is dropped in 40 looks at the same held-out examples, of whose noise a part is drawn again each time."""
    race, past = (
        Race(methods=("fedavg", "split-half"), level=level, patience=21),
        tuple[Difference, ...](),
    )
    fixed = rng.normal(size=(n, m))
    for look in range(1, 41):
        noise = math.sqrt(1 - again) * fixed + math.sqrt(again) * rng.normal(size=(n, m))
        past = (*past, pooled(look, reports(noise + gain)))
        found = race._compared(raced({PAIR: past}), "fedavg", "split-half")
        if found is not None:
            return found[0]
    return None


@pytest.mark.parametrize("again", [0.0, 0.7])
@pytest.mark.parametrize(("n", "m"), [(3, 2), (1, 3), (10, 8), (20, 1)])
def test_an_arm_that_is_as_good_is_dropped_at_most_at_the_level(
    n: int, m: int, again: float
) -> None:
    rng, level, runs = np.random.default_rng(n + m), 0.05, 300
    wrong = sum(dropped(rng, n, m, level, again) == "fedavg" for _ in range(runs))
    assert wrong <= runs * level + 3 * math.sqrt(runs * level * (1 - level))


def test_an_arm_that_is_behind_is_dropped() -> None:
    rng = np.random.default_rng(1)
    assert {dropped(rng, 10, 30, 0.01, 0.5, gain=0.6) for _ in range(20)} == {"fedavg"}
    assert {dropped(rng, 10, 30, 0.01, 0.5, gain=-0.6) for _ in range(20)} == {"split-half"}


@pytest.mark.parametrize("first", [1, 30])
def test_what_is_expected_lies_on_a_line_in_the_logarithm_of_the_rounds_since_the_start(
    first: int,
) -> None:
    line = tuple(
        Difference(round=first + r - 1, mean=0.3 + 0.2 * math.log(r), error=0.1)
        for r in range(1, 31)
    )
    assert expected(line) == pytest.approx(0.3 + 0.2 * math.log(2 * 30))
    assert expected(line[:1]) == line[0].mean
    bent = (line[0], *(replace(one, mean=9.0) for one in line[1:15]), *line[15:])
    assert expected(bent) == pytest.approx(expected(line))  # the first half does not count


def test_patience_counts_reports_of_each_client() -> None:
    """An arm is dropped as soon as all clients have reported so often on average; if it is hopeless, sooner."""
    rng = np.random.default_rng(2)
    race = Race(patience=8)
    hopeless = reports(rng.normal(-1.0, 0.1, size=(8, 20)))
    noise = rng.normal(size=(8, 20))
    # Behind by one and a half standard errors, or ahead by half a one.
    behind = reports(noise - noise.mean() - 1.5 / math.sqrt(160))
    within_noise = reports(noise - noise.mean() + 0.5 / math.sqrt(160))
    for share in (1.0, 0.5, 0.25):
        for seen, needed in ((hopeless, MIN_REPORTS), (behind, 8), (within_noise, 16)):
            history = tuple(replace(pooled(r, seen), share=share) for r in range(1, 101))
            ends = (
                n
                for n in range(1, 101)
                if race._compared(raced({PAIR: history[:n]}), "fedavg", "split-half")
            )
            assert next(ends) == needed / share


def test_one_model_that_is_hopeless_beside_groups_of_a_test_ends_before_patience() -> None:
    """Beside groups without a test, which may only learn faster at first, it has the time of ``patience``."""
    rng = np.random.default_rng(3)
    history = tuple(pooled(r, reports(rng.normal(1.0, 0.1, size=(8, 20)))) for r in range(1, 41))
    for arms, needed in ((("fedavg", "split-half"), MIN_REPORTS), (("fedavg", "hcct"), 10)):
        race = Race(methods=arms)
        pair = pair_key(*arms)
        ended = []
        for n in range(1, 41):
            drop = race._compared(raced({pair: history[:n]}, arms), *arms)
            if drop is not None:
                ended.append((n, drop[0]))
        assert ended[0] == (needed, "fedavg")


THREE_ARMS = ("fedavg", "ifca", "hcct")


def test_the_lead_is_taken_beyond_a_standard_error() -> None:
    race = Race(methods=THREE_ARMS)
    two_arms = THREE_ARMS[:2]
    for z, first, leader in (
        (0.9, "fedavg", "fedavg"),
        (1.1, "fedavg", "ifca"),
        (-5.0, "fedavg", "fedavg"),
        # The more complex arm that leads stays, too, until the other one is ahead by as much.
        (-0.9, "ifca", "ifca"),
        (-1.1, "ifca", "fedavg"),
    ):
        history = (Difference(round=1, mean=z, error=1.0),)
        state = replace(raced({"fedavg ifca": history}, two_arms), leader=first)
        assert race.ahead(state) == leader
    pairs = ("fedavg ifca", "fedavg hcct", "ifca hcct")
    three = {pair: (Difference(round=1, mean=2.0, error=1.0),) for pair in pairs}
    assert race.ahead(raced(three, THREE_ARMS)) == "hcct"


@pytest.mark.parametrize("split_half", ["split-half", Tuned(method="split-half")])
def test_groups_that_a_test_has_found_take_the_lead_if_they_are_ahead_at_all(
    split_half: Any,
) -> None:
    race = Race(methods=("fedavg", split_half))
    arms = tuple(race.named)
    for z, first, leader in (
        (0.1, 0, 1),
        (-0.1, 0, 0),
        (-0.9, 1, 1),
        (-1.1, 1, 0),
    ):
        history = (Difference(round=1, mean=z, error=1.0),)
        state = replace(raced({" ".join(arms): history}, arms), leader=arms[first])
        assert race.ahead(state) == arms[leader]


def test_noise_of_single_rounds_does_not_change_the_leader() -> None:
    race = Race(methods=THREE_ARMS)
    means = [2.0, 2.5, 1.8, 2.2, -0.5]  # only the last round speaks against the leader
    history = tuple(Difference(round=1 + i, mean=mean, error=0.3) for i, mean in enumerate(means))
    state = replace(raced({"fedavg ifca": history}, THREE_ARMS[:2]), leader="ifca")
    assert race.ahead(state) == "ifca"


def test_an_arm_that_was_not_compared_with_the_leader_does_not_replace_it() -> None:
    race = Race(methods=THREE_ARMS)
    ahead = (Difference(round=1, mean=-2.0, error=1.0),)
    # The first two arms have just started again.
    state = replace(raced({"fedavg ifca": ahead}, THREE_ARMS), leader="hcct")
    assert race.ahead(state) == "hcct"
    assert race.ahead(replace(state, past={**state.past, "fedavg hcct": ahead})) == "fedavg"
    assert race.ahead(replace(state, leader="gone")) == "fedavg"


# -- reductions
# ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(fraction=0.5),
        CFL(
            similarity="gradients",
            post_split="parent-mean",
            eps1=10.0,
            eps2=0.0,
            gamma_max=0.0,
            persistence=1,
        ),
        FedPer(),
        SplitHalf(level=0.5, probe_every=1),
        *slow(IFCA(models=2, initial="kmeans++"), Independent(), ACFL(pretrain_epochs=1)),
    ],
    ids=str,
)
def test_a_race_of_one_method_is_that_method(method: Any) -> None:
    tried = digits()
    for ours, alone in zip(
        run(Race(methods=(method,)), tried, 4), run(method, tried, 4), strict=True
    ):
        assert torch.equal(ours.assignment.models, alone.assignment.models)
        assert ours.assignment.row == alone.assignment.row
        assert ours.scores == alone.scores
        assert (ours.exchanges, ours.asked, ours.answered) == (
            alone.exchanges,
            alone.asked,
            alone.answered,
        )
        assert ours.bytes_down == alone.bytes_down


@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_fedavg_beside_split_half_costs_nothing_and_stays_itself(weighting: Any) -> None:
    tried = small.world(ids=range(6), sizes=(20, 9, 31, 14, 25, 40))
    quiet = SplitHalf(weighting=weighting, first_probe=1000)
    both = run(Race(methods=(FedAvg(weighting=weighting), quiet)), tried, 5)
    for ours, alone, host in zip(
        both, run(FedAvg(weighting=weighting), tried, 5), run(quiet, tried, 5), strict=True
    ):
        assert set(ours.position.state.parts.values()) == {"split-half+fedavg"}
        torch.testing.assert_close(
            ours.assignment.models, alone.assignment.models, rtol=0, atol=1e-6
        )
        assert ours.scores == alone.scores
        assert ours.bytes_down == host.bytes_down
        assert (
            ours.bytes_up == host.bytes_up + 6 * 3 * 4
        )  # number of examples, sum, product, at 4 bytes
        assert ours.position.state.leader == "fedavg"


@pytest.mark.slow
def test_where_it_never_splits_a_race_costs_its_probes_and_serves_one_model() -> None:
    tried = digits("iid")
    split = SplitHalf(level=1e-12, probe_every=2)
    for ours, host in zip(
        run(Race(methods=("fedavg", split)), tried, 6), run(split, tried, 6), strict=True
    ):
        assert ours.bytes_down == host.bytes_down
        assert ours.bytes_up - host.bytes_up == len(tried.clients) * 3 * 4
        torch.testing.assert_close(
            ours.assignment.models[0], host.assignment.models[0], rtol=0, atol=1e-6
        )
        assert not ours.position.state.dropped  # they are the same model: none is worse


def test_different_weights_or_own_values_are_not_shared() -> None:
    federation = grouped(THREE).federation()

    def parts(*methods: Any) -> list[str]:
        state = (race := Race(methods=methods)).init(federation)
        return list(race.plan(state, Cohort(present=(2, 3, 5), exchange=0, seed=0)).parts)

    assert parts("fedavg", "split-half") == ["split-half+fedavg"]
    assert parts(FedAvg(weighting="uniform"), "split-half") == ["fedavg", "split-half"]
    assert parts("fedavg", "fedavg") == ["fedavg-2+fedavg"]
    tuned = [Tuned(method=one, epochs=2) for one in ("fedavg", "split-half")]
    assert parts(*tuned) == ["tuned-split-half+tuned-fedavg"]
    assert parts(replace(tuned[0], epochs=1), tuned[1]) == ["tuned-fedavg", "tuned-split-half"]
    own = [
        replace(one, start="own", pull=0.1) for one in tuned
    ]  # one personal model for both, until they part
    assert parts(*own) == ["tuned-split-half+tuned-fedavg"]
    assert parts(own[0], replace(own[1], pull=0.2)) == ["tuned-fedavg", "tuned-split-half"]
    assert parts("fedper", "fedper") == [
        "fedper",
        "fedper-2",
    ]  # the layers of its clients stay with each
    assert shared({}) == {}


def test_arms_with_more_exchanges_are_compared_with_those_of_one() -> None:
    """The first round of ACFL has two exchanges; FedAvg's waits for the second, and then both are measured."""
    done = run(Race(methods=("fedavg", ACFL(pretrain_epochs=1))), small.world(), 2)
    assert [one.exchanges for one in done] == [2, 1]
    assert [each.round for each in done[-1].position.state.past["fedavg acfl"]] == [1, 2]
    assert done[-1].position.state.spent["fedavg"] == 2 * len(small.world().clients)


# -- names, settings, boundaries
# --------------------------------------------------------------------------------------------


class Renamed:
    """FedAvg under a name with all that stands between names; and a setting called ``method``."""

    name = "my own+method/2"
    method = "ward"

    def __getattr__(self, name: str) -> Any:
        return getattr(FedAvg(), name)


def test_any_name_of_a_method_will_do() -> None:
    race = Race(methods=(Renamed(), Renamed(), "fedavg", Tuned(method="cfl"), Tuned(method="cfl")))
    assert list(race.named) == [
        "my-own-method-2",
        "my-own-method-2-2",
        "fedavg",
        "tuned-cfl",
        "tuned-cfl-2",
    ]
    end = last(Race(methods=(Renamed(), "cfl"), patience=2), grouped(THREE), 12)
    assert len(end.state.arms) == 1


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ((), "race.methods must name at least one method"),
        (("fedavg", "ifkca"), "there is no method 'ifkca'; did you mean ifca"),
        (
            ("fedavg", {"name": "ifca", "model": 3}),
            "IFCA has no setting 'model'; did you mean models",
        ),
        (
            (5,),
            "a method is a name, a table with a name, or an object with the five functions, got 5",
        ),
        (5, "a method is a name, a table with a name, or an object with the five functions, got 5"),
    ],
)
def test_a_wrong_list_of_methods_is_one_sentence(methods: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Race(methods=methods)


def test_one_name_is_a_list_of_one() -> None:
    one, several = (
        build(Race, {"methods": "ifca"}),
        build(Race, {"methods": [{"name": "ifca"}]}),
    )  # as from TOML
    assert one == several == Race(methods=("ifca",)) == Race(methods=(IFCA(),))


@pytest.mark.parametrize(
    "method",
    [Race(), Race(methods=(Race(methods=("fedavg",)),)), Auto(), Tuned(method=Race())],
    ids=str,
)
def test_noise_is_refused_before_the_first_round(method: Any) -> None:
    with pytest.raises(
        SettingError, match=f"Boundary.noise 1 cannot be used with {method.name} and these settings"
    ):
        next(
            rounds(
                method, small.world(), rounds=1, workers=1, boundary=Boundary(clip=1.0, noise=1.0)
            )
        )


def test_a_map_that_an_inner_method_does_not_allow_is_refused() -> None:
    inner = FLHC(metric="l1", linkage="complete", warmup=1, threshold=None, groups=2)
    for method in (
        Race(methods=("fedavg", inner)),
        Tuned(method=inner),
        Race(methods=(Tuned(method=inner),)),
    ):
        with pytest.raises(
            SettingError,
            match=r"Boundary.rotation must be none or permute or permute-tensors for flhc",
        ):
            next(
                rounds(
                    method, small.world(), rounds=1, workers=1, boundary=Boundary(rotation="blocks")
                )
            )


# -- real rounds
# ---------------------------------------------------------------------------------------------------------------

NESTED: dict[str, Callable[[], Any]] = {
    "tuned-race": lambda: Tuned(method=Race(methods=("fedavg", "ifca", "fedper"), patience=2)),
    "race-of-races": lambda: Race(
        methods=("fedper", Race(methods=("fedavg", IFCA(models=2)), patience=2)), patience=3
    ),
    "keeps": lambda: Race(methods=("fedavg", "fedper", "independent", "hcct-p"), patience=2),
    "several-exchanges": lambda: Race(
        methods=(
            "fedavg",
            ACFL(pretrain_epochs=1),
            "cfl",
            MAXFL(pretrain_epochs=1),
            FLHC(warmup=1),
        ),
        patience=2,
    ),
    "sampled": lambda: Race(
        methods=(FedAvg(fraction=0.5), SplitHalf(fraction=0.5), HCCT(fraction=0.5)), patience=1
    ),
    "own": lambda: Race(methods=(Tuned(start="own"), Tuned(method="ditto"), "apfl"), patience=3),
    "auto": lambda: Auto(patience=1),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "auto" else pytest.param(name, marks=pytest.mark.slow) for name in NESTED],
)
def test_rounds_with_all_that_can_happen_and_a_resume_of_them(name: str) -> None:
    method = NESTED[name]()
    attendance = Attendance(
        silent=0.3, joins={5: 3, 6: 4}, away={1: [(2, 4)], 2: [(3, 3)]}, patience=2
    )
    settings = AdversarySettings(fraction=0.2, attack="scale", attack_scale=5.0)
    honest = digits(clients=8, validation=0.0)
    attacked = with_attacks(honest, settings.draw(honest.clients, 0))
    tried = replace(attacked, attendance=attendance)
    whole = run(method, tried, 6, workers=2)
    assert [one.number for one in whole] == [1, 2, 3, 4, 5, 6]
    for one in whole:
        assert one.assignment.row.keys() == {c for group in one.assignment.groups for c in group}
        for client in one.assignment.row:
            assert one.model(client) is not None
    for stop in (1, 4):
        rest = run(method, tried, 6, start=whole[stop - 1].position)
        assert outcome(rest) == outcome(whole[stop:])


@pytest.mark.slow
def test_a_map_changes_nothing() -> None:
    tried = digits()
    method = Race(methods=("fedavg", Tuned(method=IFCA(models=2)), "cfl"), patience=2)
    plain, sealed = (
        run(method, tried, 4),
        run(method, tried, 4, boundary=Boundary(rotation="blocks")),
    )
    for one, other in zip(plain, sealed, strict=True):
        assert one.assignment.groups == other.assignment.groups
        assert one.position.state.leader == other.position.state.leader
        assert other.scores is not None
        for client, scores in (one.scores or {}).items():
            assert other.scores[client] == pytest.approx(scores, rel=1e-2, abs=1e-3)


def test_groups_that_pay_take_the_lead_and_one_model_is_dropped() -> None:
    done = run(
        Race(methods=("fedavg", SplitHalf(probe_every=1)), patience=4), digits(clients=8), 14
    )
    end = done[-1].position.state
    assert end.leader == "split-half"
    assert set(end.dropped) == {"fedavg"}
    (note,) = (note for one in done for note in one.notes if note.kind == "drop")
    assert "clients stop training one model (fedavg)" in note.text
    assert note.criteria[0].held
    assert len(done[-1].groups) == 2
    assert bits(done[-1].position)  # it can be stored


# -- another start
# ----------------------------------------------------------------------------------------------------------


def settled() -> tuple[Race, RaceState]:
    race = Race(methods=("fedavg", "split-half"), patience=2)
    everyone = [sorted(c for group in THREE for c in group)]
    *_, end = played(race, grouped(everyone), 12)
    state = end.state
    return race, replace(
        state,
        arms={"fedavg": state.arms["fedavg"]},
        dropped={"split-half": 5},
        decided=tuple(everyone[0]),
    )


def test_a_loss_that_rises_starts_dropped_arms_again() -> None:
    race, state = settled()
    steady = dict.fromkeys(state.decided, (1.0, 0.0001, 9))
    calm = race._reopened(replace(state, losses=steady, lowest=None))
    assert calm.dropped
    assert calm.lowest is not None
    assert race._reopened(
        replace(calm, losses=dict.fromkeys(state.decided, (1.4, 0.0001, 9)))
    ).dropped
    unsure = dict.fromkeys(state.decided, (2.0, 4.0, 9))
    assert race._reopened(replace(calm, losses=unsure)).dropped  # within noise
    risen = race._reopened(replace(calm, losses=dict.fromkeys(state.decided, (1.6, 0.0001, 9))))
    assert not risen.dropped
    assert list(risen.arms) == ["fedavg", "split-half"]
    assert (
        "the held-out loss rose from 1 to 1.6: clients train groups (split-half) again"
        in risen.notes[-1].text
    )
    model = race.assignment(state).models[0]
    assert torch.allclose(
        race.named["split-half"].assignment(risen.arms["split-half"]).models[0], model
    )


def test_the_losses_of_another_leader_are_not_compared_with_those_before() -> None:
    race, world = Race(methods=("fedavg", "split-half")), grouped(THREE)
    steady = dict.fromkeys(world.clients, (1.0, 0.0001, 9))
    state = replace(
        race.init(world.federation()),
        round=5,
        leader="split-half",
        losses=steady,
        lowest=Difference(round=4, mean=1.0, error=0.01),
        seen={
            PAIR: dict.fromkeys(world.clients, (-3.0, 0.0001, 9))
        },  # the simpler arm is far ahead
    )
    held = {2: HeldOutLosses.of([("fedavg", 0)], np.ones((1, 4)))}
    new = race._judged(
        state, Replies(clients=(2,), examples=np.array([5]), held_out_losses=held), (world.clients,)
    )
    assert new.leader == "fedavg"
    assert (dict(new.losses), new.lowest) == ({}, None)


def test_many_newcomers_start_dropped_arms_again() -> None:
    race, state = settled()
    few, many = (
        race.admit(state, (200, 201)),
        race.admit(state, (200, 201, 202)),
    )  # of 14 and of 15 clients
    assert race._reopened(few).dropped
    assert not race._reopened(many).dropped
    assert race._reopened(many).decided == (*state.decided, 200, 201, 202)


def test_who_has_left_leaves_no_evidence() -> None:
    race = Race(methods=("fedavg", "cfl"))
    state = last(race, grouped(THREE), 4).state
    gone = race.retire(state, (2, 17))
    for seen in (*gone.seen.values(), gone.losses):
        assert not {2, 17} & set(seen)
        assert 3 in seen


def test_groups_do_not_lead_while_one_of_them_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are wrong at random: the others gain by a model without these clients, who lose by theirs."""
    race = Race(methods=("fedavg", "split-half"))
    monkeypatch.setattr(Race, "_groups", lambda *_: ((0, 1), (2, 3)))
    key = pair_key("fedavg", "split-half")

    def racing(reports: dict[int, tuple[float, float, int]]) -> RaceState:
        ahead = Difference(round=1, mean=0.02, error=0.01, degrees=100.0, share=1.0)
        return RaceState(
            arms={"fedavg": None, "split-half": None},
            leader="fedavg",
            seen={key: reports},
            past={key: (ahead,) * 6},
        )

    # The loss with one model less that with groups: mean, variance of the mean, examples.
    reports = {0: (0.05, 1e-4, 40), 1: (0.04, 1e-4, 40), 2: (-0.06, 4e-4, 20), 3: (-0.02, 4e-4, 20)}
    behind = race._groups_behind(racing(reports), "fedavg", "split-half")
    assert set(behind) == {(2, 3)}
    # The mean of both is -0.04, and its standard error half of the root of 8e-4.
    assert behind[2, 3].z == pytest.approx(-0.04 / (math.sqrt(8e-4) / 2))
    assert race.ahead(racing(reports)) == "fedavg"
    # One client, which may be hostile, does not stop them.
    hostile = {**reports, 2: (-9.0, 4e-4, 20), 3: (0.01, 4e-4, 20)}
    assert race.ahead(racing(hostile)) == "split-half"
    # Within a standard error they lead.
    near = {**reports, 2: (-0.01, 4e-4, 20), 3: (0.0, 4e-4, 20)}
    assert race.ahead(racing(near)) == "split-half"


def test_local_models_lead_though_some_clients_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(methods=("fedavg", "independent"))
    monkeypatch.setattr(Race, "_groups", lambda *_: ((0,), (1,)))
    reports = {0: (0.5, 1e-4, 40), 1: (-0.4, 1e-4, 40)}
    state = RaceState(arms={}, seen={pair_key("fedavg", "independent"): reports})
    assert race._groups_behind(state, "fedavg", "independent") == {}
