"""Suggestions: ranges by hand, what methods find with them, that a run is left as it was, and mistakes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie import Experiment, Suggestion, begin, suggest
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.cli.arguments import parse
from coterie.cli.running import options
from coterie.clustering import distances, gram, halves_gram
from coterie.contrib.suggest.cfl_settings import CutPath, ProbeDraw, cfl_advice, cut_path
from coterie.contrib.suggest.dendrogram_cuts import Cut, Geometry, common_cut, cut_of
from coterie.contrib.suggest.probing import ProbedClients, StartingPoint, start_of
from coterie.contrib.suggest.ranges import shortest
from coterie.contrib.suggest.remarks import caveats, own_probes
from coterie.contrib.suggest.suggesting import MAX_PROBE_EXCHANGES, finding_of
from coterie.contrib.suggest.suggestion import Advice, Finding, sureness
from coterie.core import Assignment, Federation, Groups, Position, Replies
from coterie.data.scenario import SCENARIOS
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import setup
from coterie.engines.workers import Hardware
from coterie.methods import CFL, METHODS, FedAvg, SplitHalf
from coterie.methods._split_half_probes import Evidence
from coterie.records.text_files import read_toml, to_json, to_toml
from coterie.report.summary import agreement
from coterie.runs.experiment import make, normal
from coterie.runs.set_option import assign
from coterie.settings import UserError, build
from forged import forge
from method_examples import slow_cases
from small import world as small_world


def experiment(
    name: str = "digits/label-permutation", *, method: Any = None, rounds: int = 10, **more: Any
) -> Experiment:
    setup = replace(SCENARIOS[name], **more.pop("setup", {}))
    return Experiment(
        scenario=name,
        setup=setup,
        methods=(method or FedAvg(),),
        training=setup.training,
        rounds=rounds,
        eval_every=rounds,
        workers=1,
        **more,
    )


def ran(study: Experiment, folder: Path) -> Path:
    for one in begin(study, folder):
        for _ in one.rounds():
            pass
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- thresholds by hand
# ---------------------------------------------------------------------------------------------------

PAIRS = np.array([0, 0, 1, 1])


def test_the_thresholds_of_flhcs_worked_case() -> None:
    """Updates 0, 1, 5 and 6.5: the highest merge inside a pair is at 1.5, that of the pairs at 5.25 √2."""
    apart = distances(gram(np.array([[0.0], [1.0], [5.0], [6.5]])))
    advice = Geometry("flhc", {"warmup": 3}, "l2, ward", "ward", [apart, apart]).advice(
        PAIRS, firm=True
    )
    (found,) = advice.ranges
    assert (found.low, found.high) == pytest.approx((1.5, 5.25 * math.sqrt(2)))
    assert advice.margin == pytest.approx(5.25 * math.sqrt(2) / 1.5)
    assert found.value == pytest.approx(math.sqrt(found.low * found.high), rel=0.05)
    assert advice.settings == {"warmup": 3, "threshold": found.value}
    assert (advice.sure, advice.ari) == ("clear", 1.0)


def test_the_thresholds_of_acfls_worked_case_are_similarities() -> None:
    """Weights (3, 4), (4, 3) and (4, -3): merged at a similarity of 0.96, and the third at (0 + 0.28) / 2."""
    rows = np.array([[3.0, 4.0], [4.0, 3.0], [4.0, -3.0]])
    apart = distances(gram(rows), metric="cosine")
    advice = Geometry("acfl", {}, "weights", "average", [apart], similarity=True).advice(
        np.array([0, 0, 1]), firm=True
    )
    (found,) = advice.ranges
    assert (found.low, found.high) == pytest.approx((0.14, 0.96))
    assert found.value == pytest.approx(1 - math.sqrt(0.04 * 0.86), rel=0.02)
    assert advice.margin == pytest.approx(0.86 / 0.04)


def test_of_one_group_any_higher_threshold_is_right() -> None:
    apart = distances(gram(np.array([[0.0], [1.0], [3.0]])))
    advice = Geometry("flhc", {}, "l2, single", "single", [apart]).advice(
        np.zeros(3, int), firm=True
    )
    assert (advice.ranges[0].low, advice.ranges[0].high, advice.settings["threshold"]) == (
        2.0,
        math.inf,
        3.0,
    )
    far = Geometry("acfl", {}, "updates", "single", [apart], similarity=True).advice(
        np.zeros(3, int), firm=True
    )
    assert (far.ranges[0].low, far.ranges[0].high, far.settings["threshold"]) == (-1.0, -1.0, -1.0)


def test_a_tree_that_does_not_hold_the_groups_has_no_threshold() -> None:
    apart = distances(gram(np.array([[0.0], [1.0], [5.0], [6.5]])))
    advice = Geometry("flhc", {}, "l2, ward", "ward", [apart]).advice(
        np.array([0, 1, 0, 1]), firm=True
    )
    assert (advice.sure, advice.settings, advice.ranges) == ("none", {}, ())
    assert advice.ari == 0.0  # all in one, or each alone
    nearest = cut_of(apart, "ward", np.array([0, 0, 0, 1]))
    assert not nearest.has_room()
    assert 0 < nearest.ari < 1


def test_two_draws_have_in_common_what_is_right_in_both() -> None:
    assert common_cut([Cut(1.0, 4.0, 1.0), Cut(2.0, 5.0, 1.0)]) == Cut(2.0, 4.0, 1.0)
    assert not common_cut([Cut(1.0, 2.0, 1.0), Cut(3.0, 4.0, 1.0)]).has_room()
    far = [distances(gram(np.array([[0.0], [1.0], [5.0], [6.0]]) * scale)) for scale in (1.0, 10.0)]
    advice = Geometry("flhc", {}, "l2, ward", "ward", far).advice(PAIRS, firm=True)
    assert (advice.sure, advice.ari) == ("none", 1.0)
    assert "both probes" in advice.text


@pytest.mark.parametrize(
    ("margin", "firm", "sure"),
    [
        (1.6, True, "clear"),
        (1.6, False, "narrow"),
        (1.4, True, "narrow"),
        (1.0, True, "none"),
        (math.inf, True, "clear"),
    ],
)
def test_how_sure_an_advice_is(margin: float, firm: bool, sure: str) -> None:
    assert sureness(margin, firm) == sure


def test_a_value_is_rounded_within_its_range() -> None:
    for low, high in ((1.0, 2.0), (0.98991, 0.99113), (37.2, 39.0), (2.0, math.inf), (-0.3, 0.2)):
        value = 1.5 * low if math.isinf(high) else (low + high) / 2
        short = shortest(value, low, high)
        assert low < short < high
        assert len(repr(short)) <= len(repr(value))


# -- CFL by hand
# ----------------------------------------------------------------------------------------------------------

WORKED = torch.tensor([[1.0, 0.2], [-1.0, 0.2], [1.0, -0.2], [-1.0, -0.2]])
"""The card's case: clients 3 and 8 pull to the right, 5 and 9 to the left."""
IDS = (3, 5, 8, 9)
SIDES: Groups = ((3, 8), (5, 9))


def replies(updates: torch.Tensor) -> Replies:
    return Replies(clients=IDS, examples=np.full(4, 10), chosen=((0,),) * 4, updates=updates)


def probe(common_part: Sequence[float] = (0.0, 0.0), noise: float = 0.0) -> ProbeDraw:
    """Halves that differ by ``noise`` in the second parameter; at the first model all agree more than they differ."""
    now, apart = WORKED + torch.tensor(common_part), torch.tensor([0.0, noise])
    return ProbeDraw(
        halves_gram(now + apart, now - apart),
        replies(now),
        replies(WORKED + torch.tensor([2.0, 0.0])),
        2,
    )


def test_cfl_sees_what_its_card_says() -> None:
    found = cut_path(probe(), SIDES)
    (cut,) = found.splits
    assert (cut.clients, cut.parts, found.groups) == (IDS, SIDES, SIDES)
    peak = math.sqrt(3.0**2 + 0.2**2)  # of clients 3 and 8, at the first model
    assert cut.client_norm == pytest.approx(math.sqrt(1.04) / peak)
    assert cut.gamma_bound == pytest.approx(math.sqrt((1 + (3 * 0.96 / 1.04 - 1) / 4) / 2))
    assert [seen.clients for seen in found.kept] == list(reversed(SIDES))
    for (
        seen
    ) in found.kept:  # at rest (0, 0.2) and (0, -0.2): opposite, and corrected for two clients 0
        assert (seen.client_norm, seen.gamma_bound) == pytest.approx((0.2 / peak, math.sqrt(0.5)))
    assert (found.first_mean_norm, found.probed_mean_norm) == pytest.approx((2 / peak, 0.0))


def test_a_common_part_is_taken_off_but_told() -> None:
    """At rest it is not there; away from rest, the mean update and the cosines are what they are."""
    rest, moving = cut_path(probe(), SIDES), cut_path(probe((0.5, 0.0)), SIDES)
    assert moving.splits[0].gamma_bound == pytest.approx(rest.splits[0].gamma_bound)
    assert moving.splits[0].client_norm == pytest.approx(rest.splits[0].client_norm)
    assert moving.probed_mean_norm == pytest.approx(0.5 / math.hypot(1.5, 0.2))
    assert moving.probed_gamma_bound < rest.probed_gamma_bound


def test_noise_alone_leaves_this_much_of_the_mean() -> None:
    """Each client's noise is 0.3, so that of the mean of four is 0.3 / 2; the greatest update at rest is sqrt(1.04)."""
    assert cut_path(probe(noise=0.3), SIDES).splits[0].noise_norm == pytest.approx(
        0.15 / math.sqrt(1.04)
    )


def test_cfls_advice_lies_between_what_must_be_cut_and_what_must_not() -> None:
    found = cut_path(probe((0.3, 0.0)), SIDES)
    advice = cfl_advice([found, found], SIDES, np.array([0.8, 0.5, 0.8, 0.5]), firm=True)
    eps1, eps2, gamma = advice.ranges
    assert [one.setting for one in advice.ranges] == ["eps1", "eps2", "gamma_max"]
    assert (eps1.low, eps1.high) == pytest.approx((found.probed_mean_norm, found.first_mean_norm))
    assert (eps2.low, eps2.high) == pytest.approx(
        (found.kept[0].client_norm, found.splits[0].client_norm)
    )
    assert (gamma.low, gamma.high) == pytest.approx(
        (found.kept[0].gamma_bound, found.splits[0].gamma_bound)
    )
    for one in (eps1, eps2):
        assert one.value is not None
        assert one.low < one.value < one.high
    assert gamma.value is not None
    assert gamma.value < gamma.high
    assert advice.margin == pytest.approx(min(eps1.margin, max(eps2.margin, gamma.margin)))
    assert advice.sure == "clear"
    assert "median 0.75, maximum 1.00" in advice.text  # sqrt(1/ρ - 1) is 0.5 and 1
    build(CFL, dict(advice.settings))


def test_where_cfls_cut_goes_through_a_group_there_is_no_advice() -> None:
    wrong: Groups = ((3, 5), (8, 9))
    advice = cfl_advice([cut_path(probe(), wrong)], wrong, np.full(4, 0.5), firm=True)
    assert (advice.sure, advice.settings) == ("none", {})
    assert advice.ari == 0.0


def test_a_probe_far_from_rest_tells_nothing_of_eps1() -> None:
    far = replace(cut_path(probe(), SIDES), probed_mean_norm=0.8, first_mean_norm=0.7)
    advice = cfl_advice([far], SIDES, np.full(4, 0.5), firm=True)
    assert (advice.sure, advice.ranges[0].value) == ("none", None)
    assert "probe a later round" in advice.text


def test_of_one_group_cfl_needs_only_what_keeps_it_whole() -> None:
    alone: Groups = (IDS,)
    advice = cfl_advice([cut_path(probe(), alone)], alone, np.zeros(4), firm=True)
    assert set(advice.settings) == {"eps2", "gamma_max"}
    assert all(one.low < advice.settings[one.setting] <= one.high == 1.0 for one in advice.ranges)


def test_single_clients_have_nothing_that_must_stay() -> None:
    each: Groups = ((3,), (5,), (8,), (9,))
    found = cut_path(probe(), each)
    assert (len(found.splits), found.kept, found.groups) == (3, (), each)
    assert isinstance(found, CutPath)


# -- which model is probed
# ------------------------------------------------------------------------------------------------

MODELS = torch.tensor([[1.0], [2.0], [6.0]])
AT = Position(round=9, exchange=20, state=None)


@pytest.mark.parametrize(
    ("row", "path", "model", "round", "shared"),
    [
        ({0: 1, 1: 1}, {}, 2.0, 9, True),  # all are served one
        ({0: 1, 1: 2}, {0: (0, 1), 1: (0, 2)}, 1.0, 4, True),  # they parted in round 5
        ({0: 1, 1: 2, 2: 2}, {}, 4.0, 9, False),  # each model once
    ],
)
def test_the_model_probed_is_one_that_all_have_had(
    row: dict[int, int], path: dict[int, tuple[int, ...]], model: float, round: int, shared: bool
) -> None:
    lines = [{"round": i, "groups": [[0, 1]] if i < 5 else [[0], [1]]} for i in range(1, 10)]
    start = start_of(Assignment(models=MODELS, row=row, groups=((0, 1),), path=path), AT, lines)
    assert (start.model.item(), start.round, start.shared) == (model, round, shared)


def test_layers_that_clients_keep_are_in_the_mean() -> None:
    kept = {0: torch.tensor([4.0, math.nan]), 1: torch.tensor([6.0, math.nan])}
    at = replace(AT, kept={"": kept})
    start = start_of(
        Assignment(models=torch.tensor([[0.0, 3.0]]), row={0: 0, 1: 0}, groups=((0, 1),)), at, []
    )
    assert start.model.tolist() == [5.0, 3.0]


def asked(sizes: Sequence[int]) -> ProbedClients:
    world = small_world(sizes=sizes)
    wire, federation = setup(FedAvg(), world, 0, Boundary())
    at = replace(AT, members=federation.clients)
    return ProbedClients(ClientPool(world, wire, Hardware(workers=1)), federation.parameters, at, 0)


def test_who_cannot_be_halved_is_left_out_and_two_must_be_left() -> None:
    clients = asked((20, 1, 20, 20))
    start = StartingPoint(torch.zeros(clients.pool.layout.size), 0, "", True)
    with clients.pool:
        assert clients.halves(start).clients == (2, 7, 11)
        assert clients.updates(start).clients == (2, 7, 11)
    assert clients.left_out == {3: "too few training examples (or subjects) for two halves"}
    few = asked((20, 1, 1, 1))
    with (
        few.pool,
        pytest.raises(UserError, match="a probe needs two clients with enough training examples"),
    ):
        few.halves(start)


# -- what methods find with it
# --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Suggestion]:
    folder = ran(experiment("digits/label-permutation"), tmp_path_factory.mktemp("suggest") / "run")
    return folder, suggest(folder, workers=1)


def found_with(advice: Advice, name: str, rounds: int) -> tuple[Groups, Groups | None]:
    world = SCENARIOS[name].build(0)
    method = build(METHODS[advice.method], dict(advice.settings))
    *_, last = coterie.run(method, world, rounds=rounds, eval_every=rounds, workers=1)
    return last.assignment.groups, world.truth


@pytest.mark.slow
def test_the_true_groups_are_found_twice(told: tuple[Path, Suggestion]) -> None:
    said = told[1]
    assert (
        agreement(said.finding.groups, SCENARIOS["digits/label-permutation"].build(0).truth) == 1.0
    )
    assert said.finding.same
    assert said.finding.firm
    assert said.finding.p < said.finding.level
    assert (said.start, said.round, said.caveats) == ("the model that serves all clients", 10, ())


@pytest.mark.parametrize(
    ("method", "rounds"), [("acfl", 1), ("cfl", 25), *slow_cases(("flhc", 11))]
)
def test_every_method_finds_the_groups_with_its_settings(
    told: tuple[Path, Suggestion], method: str, rounds: int
) -> None:
    advice = told[1].best(method)
    assert advice.sure != "none"
    groups, truth = found_with(advice, "digits/label-permutation", rounds)
    assert groups == truth == told[1].finding.groups


@pytest.mark.slow
def test_split_half_tests_the_same_model_with_its_settings_and_finds_the_same(
    told: tuple[Path, Suggestion],
) -> None:
    """At its defaults it would test earlier models; here its first probe would be after the run's end."""
    said = told[1]
    late = suggest(
        ran(experiment(method=SplitHalf(first_probe=12)), told[0].parent / "late"), workers=1
    )
    assert late.finding.groups == said.finding.groups
    for one in (said, late):
        assert one.split_half.rounds == 20
        method = build(SplitHalf, dict(one.split_half.settings))
        assert method == SplitHalf(first_probe=11)
        *_, last = coterie.run(
            method, SCENARIOS[said.scenario].build(0), rounds=12, eval_every=12, workers=1
        )
        assert last.assignment.groups == one.finding.groups


@pytest.mark.slow
def test_the_groups_of_a_run_that_split_half_has_split_are_the_finding(
    told: tuple[Path, Suggestion],
) -> None:
    own = suggest(ran(experiment(method=SplitHalf()), told[0].parent / "split"), workers=1)
    assert (own.finding.of_run, own.finding.groups) == (True, told[1].finding.groups)
    assert own.split_half.text.startswith("split-half found these groups in this run")
    assert own.best("flhc").ari == 1.0


@pytest.mark.slow
def test_clients_who_are_alike_stay_together(tmp_path: Path) -> None:
    said = suggest(ran(experiment("digits/iid"), tmp_path / "run"), workers=1)
    assert len(said.finding.groups) == 1
    assert (said.split_half.settings, said.split_half.rounds) == ({}, None)
    for method, rounds in (("flhc", 11), ("acfl", 1), ("cfl", 15)):
        assert len(found_with(said.best(method), "digits/iid", rounds)[0]) == 1


@pytest.mark.slow
def test_nothing_of_the_run_is_changed_and_workers_change_nothing(
    told: tuple[Path, Suggestion],
) -> None:
    folder, said = told
    before = files(folder)
    asked: list[None] = []
    assert suggest(folder, workers=2, progress=lambda: asked.append(None)) == said
    assert len(asked) == said.exchanges <= MAX_PROBE_EXCHANGES
    assert files(folder) == before


def test_the_best_is_the_default_where_that_is_clear(told: tuple[Path, Suggestion]) -> None:
    said, made = told[1], Advice("flhc", "", {"threshold": 1.0}, (), 1.3, "clear", 1.0, "")
    wide, narrow = replace(made, margin=9.0), replace(made, sure="narrow", margin=1.2)
    assert replace(said, advice=(made, wide)).best("flhc") is made
    assert replace(said, advice=(narrow, wide)).best("flhc") is wide
    with pytest.raises(KeyError):
        said.best("hcct")


SMALL = {"clients": 4, "groups": 2}


def test_a_boundary_that_hides_layers_leaves_what_needs_none(tmp_path: Path) -> None:
    study = experiment(rounds=1, setup=SMALL, boundary=Boundary(rotation="blocks"))
    said = suggest(ran(study, tmp_path / "run"), workers=1)
    why = {(one.method, one.compared): one.text for one in said.advice if one.sure == "none"}
    assert "Boundary.rotation" in why["flhc", "l1, complete"]
    assert "Boundary.rotation" in why["acfl", "dense layers"]
    assert ("flhc", "l2, ward") not in why


# -- how much it is worth
# -------------------------------------------------------------------------------------------------

CLOSE = Finding(IDS, 1e-4, 1e-9, SIDES, (SIDES, SIDES), 1.0, (0.4, 0.9), (0.5,) * 4)
SINGLES: Groups = ((3,), (5,), (8, 9))
SHARED = StartingPoint(MODELS[0], 3, "", True)


@pytest.mark.parametrize(
    ("finding", "start", "words"),
    [
        (
            replace(CLOSE, groups=((3, 5), (8, 9))),
            SHARED,
            "the run has 2 groups, different from these",
        ),
        (
            replace(CLOSE, alone=(SIDES, (IDS,)), agreement=0.0),
            SHARED,
            "the two probes alone find 2 and 1 groups",
        ),
        (replace(CLOSE, alike=(0.004, 0.9)), SHARED, "2 clients are in one group, but p = 0.004"),
        (
            CLOSE,
            replace(SHARED, shared=False, words="the mean of the 3 models that serve clients"),
            "the mean of the 3 models",
        ),
        (
            replace(CLOSE, groups=SINGLES, alike=(1.0, 1.0, 1.0)),
            SHARED,
            "2 of 3 groups are single clients",
        ),
    ],
)
def test_caveats(finding: Finding, start: StartingPoint, words: str) -> None:
    (caveat,) = caveats(start, finding, SIDES if "the run" in words else (IDS,))
    assert words in caveat
    assert finding.firm == (finding.same and finding.alike[0] > 0.025)


def test_probes_may_only_divide_the_groups_of_a_run_further() -> None:
    apart = np.repeat([[3.0] * 300, [-3.0] * 300], 2, axis=0) + np.random.default_rng(0).normal(
        size=(4, 4, 300)
    )
    probes = [
        Evidence(clients=IDS, products=torch.from_numpy(halves_gram(apart[i], apart[i + 1])))
        for i in (0, 2)
    ]
    pairs: Groups = ((3, 5), (8, 9))
    for known, groups in (
        ((), pairs),
        ((IDS,), pairs),
        (pairs, pairs),
        (SIDES, SIDES),
        (((3,), (5, 8, 9)),) * 2,
    ):
        found = finding_of(*probes, IDS, 1e-4, known)
        assert (found.groups, found.of_run) == (groups, known == groups)


def test_the_groups_of_a_run_that_do_not_show_at_this_model_are_kept_with_a_caveat() -> None:
    """Halves that say nothing: both probes find one group, and the run has two; client 9 still walks down its tree."""
    noise = np.random.default_rng(0).normal(size=(4, 4, 30))
    probes = [
        Evidence(clients=IDS, products=torch.from_numpy(halves_gram(noise[i], noise[i + 1])))
        for i in (0, 2)
    ]
    assert len(finding_of(*probes, IDS, 1e-4, ()).groups) == 1
    found = finding_of(*probes, IDS, 1e-4, ((3, 8), (5,)))
    assert (found.of_run, found.clients, found.groups, found.p > 0.05) == (
        True,
        (3, 5, 8),
        ((3, 8), (5,)),
        True,
    )
    assert found.unseen
    assert not found.firm
    (caveat,) = caveats(SHARED, found, found.groups)
    assert (
        caveat
        == "the groups are the run's; at this model the probes alone find 1 group, so thresholds are uncertain"
    )


@pytest.mark.parametrize(
    ("method", "start", "finding", "words", "first"),
    [
        (
            FedAvg(fraction=0.5),
            SHARED,
            CLOSE,
            "these groups are the advice, even if split-half finds fewer",
            4,
        ),
        (
            SplitHalf(level=0.01),
            SHARED,
            CLOSE,
            "of other models, here in 2 rounds, the last 6 (least p 0.03)",
            4,
        ),
        (FedAvg(), replace(SHARED, round=0), CLOSE, "with the options below, it tests this one", 2),
        (FedAvg(), replace(SHARED, shared=False), CLOSE, "these groups are the advice", None),
        (FedAvg(), SHARED, replace(CLOSE, groups=(IDS,)), "one group is no proof", None),
        (
            SplitHalf(),
            SHARED,
            replace(CLOSE, of_run=True),
            "split-half found these groups in this run",
            None,
        ),
    ],
)
def test_one_of_split_half_and_the_suggestion_is_the_advice(
    method: Any, start: StartingPoint, finding: Finding, words: str, first: int | None
) -> None:
    lines: list[dict[str, Any]] = [
        {"round": 2, "notes": [{"kind": "keep", "numbers": {"p": 0.2}}]},
        {"round": 4, "notes": [{"kind": "join", "numbers": {}}]},
        {"round": 6, "notes": [{"kind": "hold", "numbers": {"p": 0.03}}]},
    ]
    found = own_probes(method, start, finding, lines)
    assert words in found.text
    if first is None:
        assert (found.settings, found.rounds) == ({}, None)
        return
    own = build(SplitHalf, dict(found.settings))
    assert own == SplitHalf(
        first_probe=first,
        level=getattr(method, "level", 1e-4),
        fraction=getattr(method, "fraction", 1.0),
    )
    state = own.init(Federation(clients=IDS, draw=lambda _: torch.zeros(1), columns={"w": (0, 1)}))
    assert found.rounds == first + 1 + 2 * own.probe_every
    assert [
        own.probes(replace(state, round=n), state.leaves[0]) for n in (first - 2, first - 1)
    ] == [False, True]


def test_a_firm_finding_has_none() -> None:
    assert CLOSE.firm
    assert not list(caveats(SHARED, CLOSE, SIDES))


# -- the command
# ----------------------------------------------------------------------------------------------------------

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: str) -> tuple[int, str, str]:
        return main(arguments), *capsys.readouterr()

    return call


def test_json_is_the_librarys_answer(told: tuple[Path, Suggestion], call: Call) -> None:
    folder, said = told
    status, out, err = call("suggest", str(folder), "--workers", "1", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out, parse_constant=pytest.fail) == [json.loads(to_json(asdict(said)))]


def test_the_screen_says_what_was_found_and_what_can_be_run(
    told: tuple[Path, Suggestion], call: Call
) -> None:
    folder, said = told
    status, out, err = call("suggest", str(folder), "--workers", "1")
    assert (status, err) == (0, "")
    assert (
        "digits/label-permutation, fedavg, seed 0: probed from the model that serves all clients, after round 10"
        in out
    )
    assert "4 groups, found by each of two probes" in out
    assert all(f"{one.method} " in out and one.compared in out for one in said.advice)
    assert len(out.splitlines()) <= 30
    lines = [line.split() for line in out.splitlines() if line.startswith("--method")]
    assert [words[1] for words in lines] == ["split-half", "flhc", "acfl", "cfl"]
    for words in lines:
        arguments = parse(["run", *words])
        spec = options(arguments, normal({}))
        for text in arguments.set:
            spec = assign(spec, text)
        (method,) = make(spec).methods
        settings = (
            said.split_half.settings
            if method.name == "split-half"
            else said.best(method.name).settings
        )
        assert method == build(METHODS[method.name], dict(settings))
    assert said.split_half.text in " ".join(out.split())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("missing", "does not exist"),
        ("empty", "is not a run directory"),
        ("several", "holds 2 runs, and a suggestion is for one; give one, for example"),
        ("begun", "has no completed round yet"),
        ("federation", "is of a federation, whose clients are on other machines and cannot be probed here; there, method "
         "split-half probes by itself"),
        ("changed", "cannot be probed: the scenario's clients or data have changed"),
    ],
)  # fmt: skip
def test_a_mistake_costs_one_sentence(made: str, words: str, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if made == "empty":
        folder.mkdir()
    elif made == "several":
        begin(experiment(rounds=1, setup=SMALL, seeds=(0, 1)), folder)
    elif made == "begun":
        begin(experiment(rounds=1, setup=SMALL), folder)
    elif made != "missing":
        ran(experiment(rounds=1, setup=SMALL), folder)
        edit(folder / "run.toml", made)
    status, out, err = call("suggest", str(folder), "--workers", "1")
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def edit(path: Path, made: str) -> None:
    """A run's file as a federation would have left it, or of a world with other data."""
    document = read_toml(path)
    if made == "federation":
        document["scenario"] = {"name": "federation"}
        del document["world"]["data"]
    else:
        document["world"]["data"] = "0" * 32
    path.write_text(to_toml(document))
    forge(path.parent)


# -- the tables of the page
# -----------------------------------------------------------------------------------------------


def test_the_tables_count_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "tools" / "docs"))
    import suggest_table

    monkeypatch.setattr(suggest_table, "SUGGEST", tmp_path / "suggest.json")
    assert "Not measured yet" in suggest_table.worlds()
    right, wrong = {"found": True, "true": True}, {"found": False, "true": False}
    runs = [
        {"sure": "clear", "same": right, "other": {"found": True, "true": False}, "default": wrong},
        {"sure": "narrow", "same": right, "other": wrong, "default": right},
        {"sure": "none", "default": right},
    ]
    rows = [{"world": "IID", "found": 2, "method": "flhc", "runs": runs}]
    (tmp_path / "suggest.json").write_text(json.dumps({"rows": rows}))
    assert suggest_table.worlds().splitlines()[-1] == (
        "| IID | 2 of 3 | `flhc` | 1, 1, 1 | 2 of 2 | 1 of 2 | 2 of 2 | 2 of 3 |"
    )
    assert suggest_table.sureness().splitlines()[-2:] == [
        "| clear | 2 of 2 |",
        "| narrow | 1 of 2 |",
    ]


def test_the_table_of_agreement_counts_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "tools" / "docs"))
    import suggest_table

    monkeypatch.setattr(suggest_table, "AGREEMENT", tmp_path / "agreement.json")
    assert "benchmarks/agreement.py" in suggest_table.agreement()
    right, wrong = {"right": True, "same": True}, {"right": False, "same": False}
    alone = {
        "world": "IID",
        "suggest": right,
        "default": {"10": wrong, "20": right},
        "of its run": right,
    }
    rows = [alone, {**alone, "suggest": wrong, "suggested": wrong}]
    (tmp_path / "agreement.json").write_text(
        json.dumps({"probed_after": 10, "rounds": 20, "rows": rows})
    )
    assert (
        suggest_table.agreement().splitlines()[-1]
        == "| IID | 1 of 2 | 0 of 2 | 2 of 2 | 0 of 1 | 2 of 2 |"
    )
