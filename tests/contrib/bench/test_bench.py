"""The bench: frozen worlds, checked rows, ranks and tests against their definitions, and the command."""

from __future__ import annotations

import gzip
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli.arguments import Parser
from coterie.contrib.bench import benching
from coterie.contrib.bench.benching import bench, compared, entrant_of
from coterie.contrib.bench.command import options, run
from coterie.contrib.bench.measuring import measure
from coterie.contrib.bench.ranking import (
    Results,
    against,
    cliques,
    holm,
    results,
    signed_rank_p,
    standings,
)
from coterie.contrib.bench.rows import (
    Row,
    append_row,
    mistakes,
    read_rows,
    recorded_rows,
    write_rows,
)
from coterie.contrib.bench.suites import FROZEN_SETTINGS, QUICK, SUITES, VERSION, WORLDS, BenchWorld
from coterie.contrib.bench.tables import against_table, ranking_table, verdict
from coterie.methods import METHODS
from coterie.runs.facts import digest
from coterie.settings import SettingError, UserError

PLACE = "damped_fedavg:Damped"


def call(*arguments: str) -> int:
    """``coterie bench`` with these arguments, without the entry point of an installed package."""
    parser = Parser()
    options(parser)
    return run(parser.parse_args(arguments))


def row(world: str, method: str, seed: int, scores: Sequence[float], **changes: Any) -> Row:
    values: dict[str, Any] = {
        "version": VERSION, "world": world, "data": "d", "method": method, "settings": {}, "seed": seed,
        "scores": list(scores), "rand": None, "groups": 1, "bytes": 100, "seconds": 1.0,
    }  # fmt: skip
    return Row(**values | changes)


def some_worlds(count: int, seeds: tuple[int, ...] = (0, 1)) -> list[BenchWorld]:
    return [
        BenchWorld(name=f"w{number}", family="digits", build=lambda seed, folder: None, seeds=seeds)  # type: ignore[arg-type,return-value]
        for number in range(count)
    ]


def results_of(scores: Mapping[str, Sequence[Sequence[float]]]) -> Results:
    """Results of methods whose clients all have one score: method -> scores ``(worlds, seeds)``."""
    rows = []
    num_worlds, num_seeds = np.array(next(iter(scores.values()))).shape
    for method, of_worlds in scores.items():
        for world, of_seeds in enumerate(of_worlds):
            rows += [row(f"w{world}", method, seed, [s, s]) for seed, s in enumerate(of_seeds)]
    return results(rows, some_worlds(num_worlds, tuple(range(num_seeds))))


# -- statistics, against their definitions
# ------------------------------------------------------------------------------------------------------------------


def test_the_signed_rank_test_is_that_of_all_signs() -> None:
    differences = np.array([0.3, -0.1, 0.25, 0.5, 0.02, 0.07, -0.04])
    ranks = scipy.stats.rankdata(np.abs(differences))
    observed = ranks[differences > 0].sum()
    sums = [
        ranks[np.array(signs)].sum()
        for signs in itertools.product([False, True], repeat=len(ranks))
    ]
    upper = np.mean([value >= observed for value in sums])
    lower = np.mean([value <= observed for value in sums])
    assert signed_rank_p(differences) == pytest.approx(min(1, 2 * min(upper, lower)))
    assert signed_rank_p(np.zeros(5)) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_step_down_procedure(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for level in (0.01, 0.05, 0.3, 0.9):
        # Reject the smallest as long as it is at most level / (tests that are left).
        rejected = set()
        for step, place in enumerate(sorted(range(len(p_values)), key=lambda p: p_values[p])):
            if p_values[place] * (len(p_values) - step) > level:
                break
            rejected.add(place)
        assert rejected == {place for place, p in enumerate(corrected) if p <= level}


def test_gaps_ranks_and_crossed_gaps_by_hand() -> None:
    found = {
        standing.method: standing
        for standing in standings(
            results_of(
                {
                    "fedavg": [[0.5, 0.5], [0.9, 0.7]],
                    "b": [[0.7, 0.5], [0.6, 0.6]],
                    "c": [[0.4, 0.9], [0.8, 0.8]],
                }
            )
        )
    }
    # Means: fedavg .5 and .8, b .6 and .6, c .65 and .8.
    assert found["fedavg"].gap == pytest.approx((0.15 + 0) / 2)
    assert found["c"].gap == 0
    assert found["b"].greatest_gap == pytest.approx(0.2)
    assert found["b"].greatest_world == "w1"
    assert [found[name].rank for name in ("fedavg", "b", "c")] == [2.25, 2.5, 1.25]
    # In w0 the best in seed 1 is c (.9), which has .4 in seed 0; the best in seed 0 is b, with .5 in seed 1.
    assert found["fedavg"].crossed == pytest.approx(np.mean([-0.1, 0.0, -0.1, 0.0]))
    assert found["fedavg"].below_one_model == 0
    assert found["b"].below_one_model == 0.5
    assert found["b"].traffic == 1.0
    # Of one seed there is no cross-validated gap.
    assert standings(results_of({"a": [[0.5]], "b": [[0.6]]}))[0].crossed is None


def test_wins_and_losses_of_one_method() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.4, 0.8, (12, 1))
    better = base + rng.uniform(0.01, 0.1, (12, 1))
    same = base.copy()
    same[0] += 0.05
    compared_results = results_of({"own": base, "better": better, "same": same})  # type: ignore[dict-item]
    to_better, to_same = against(compared_results, "own")
    assert (to_better.opponent, to_better.wins, to_better.ties, to_better.losses) == (
        "better", 0, 0, 12,
    )  # fmt: skip
    assert to_better.corrected == pytest.approx(2 * to_better.p)
    assert to_better.corrected < 0.05
    assert (to_same.wins, to_same.ties, to_same.losses) == (0, 11, 1)
    assert to_same.corrected > 0.05
    assert "significantly worse than better" in verdict([to_better, to_same])
    with pytest.raises(UserError, match="there are no rows of it"):
        against(compared_results, "nobody")


def test_cliques_are_the_largest_groups_without_a_significant_pair() -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.4, 0.5, (15, 1))
    steps = {"a": 0.3, "b": 0.28, "c": 0.1, "d": 0.08, "e": -0.2}
    compared_results = results_of(
        {name: base + step + rng.normal(0, 0.04, (15, 1)) for name, step in steps.items()}  # type: ignore[misc]
    )
    found = cliques(compared_results)
    order = list(found.ranks)
    scores = compared_results.scores().round(4)
    pairs = list(itertools.combinations(order, 2))
    p_values = holm(
        [
            signed_rank_p(
                scores[:, compared_results.methods.index(first)]
                - scores[:, compared_results.methods.index(second)]
            )
            for first, second in pairs
        ]
    )
    differing = {pair for pair, p in zip(pairs, p_values, strict=True) if p < 0.05}
    expected = []
    for start, end in itertools.combinations(range(len(order) + 1), 2):
        group = order[start:end]
        if len(group) > 1 and not differing & set(itertools.combinations(group, 2)):
            expected.append(group)
    largest = [g for g in expected if not any(set(g) < set(other) for other in expected)]
    assert list(map(list, found.groups)) == largest == [["a", "b"], ["c", "d"]]
    assert found.friedman_p is not None
    assert found.friedman_p < 1e-6


# -- worlds and recorded rows
# ------------------------------------------------------------------------------------------------------------------


def test_suites_are_nested_and_quick_needs_no_files() -> None:
    names = {name: [world.name for world in worlds] for name, worlds in SUITES.items()}
    assert set(names["quick"]) < set(names["standard"]) < set(names["full"]) == set(WORLDS)
    assert all(len(set(of_suite)) == len(of_suite) for of_suite in names.values())
    assert {world.family for world in QUICK} == {"digits", "dropouts", "silos", "drift"}
    assert not [name for name in names["standard"] if name.startswith("files/")]


def test_data_are_those_of_the_recorded_rows() -> None:
    recorded = {(r.world, r.seed): r.data for r in recorded_rows()}
    for world in QUICK:
        seed = world.seeds[0]
        assert digest(world.build(seed, None))[:12] == recorded[world.name, seed], (
            f"{world.name} has other data: the suites need a new version"
        )


def test_recorded_rows_have_no_mistake_and_all_runs_of_quick() -> None:
    rows = recorded_rows()
    assert not mistakes(rows, (), rows)
    complete = results(rows, QUICK).methods
    assert {"fedavg", "independent", "split-half", "hcct", "tuned", "ifca", "knn-per"} <= set(
        complete
    )
    assert len(complete) >= 18
    for recorded in rows:
        if recorded.method in METHODS:
            assert recorded.settings == FROZEN_SETTINGS.get(recorded.method, {})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "ifca", "knn-per"])
@pytest.mark.parametrize(
    "world", ["digits/permutations-4/many", "dropouts/dirichlet-0.5/many", "silos/invert", "drift/sine"]
)  # fmt: skip
def test_recorded_rows_are_what_runs_give(method: str, world: str) -> None:
    seed = WORLDS[world].seeds[1]
    settings = FROZEN_SETTINGS.get(method, {})
    measured = measure(METHODS[method](**settings), settings, WORLDS[world], seed)
    recorded = {r.key: r for r in recorded_rows()}[measured.key]
    # Other processors round otherwise, which changes few predictions.
    assert measured.score == pytest.approx(recorded.score, abs=0.003)
    assert measured.bytes == recorded.bytes
    assert measured.data == recorded.data


# -- rows
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_rows_are_read_as_they_were_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows{ending}"
    rows = [row("w0", "a", seed, [0.5, 0.25]) for seed in (1, 0)]
    append_row(path, rows[0])
    append_row(path, replace(rows[0], scores=[0.75]))
    append_row(path, rows[1])
    assert {r.seed: r.scores for r in read_rows(path)} == {1: [0.75], 0: [0.5, 0.25]}
    write_rows(path, rows)
    first = path.read_bytes()
    write_rows(path, reversed(rows))
    assert path.read_bytes() == first
    assert [r.seed for r in read_rows(path)] == [0, 1]


def test_a_file_that_has_no_rows_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"world": "w0"}\n')
    with pytest.raises(UserError, match="line 1, is no row of a suite"):
        read_rows(path)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(b"no gzip")
    with pytest.raises(UserError, match="cannot be unpacked"):
        read_rows(packed)
    packed.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(UserError, match="is no row"):
        read_rows(packed)


def test_rows_are_checked_before_they_are_compared() -> None:
    recorded = recorded_rows()
    own = [replace(r, method="mine") for r in recorded if r.method == "fedavg"]
    quick = {(world.name, seed) for world in QUICK for seed in world.seeds}
    own = [r for r in own if (r.world, r.seed) in quick]
    assert not mistakes(own, QUICK, recorded)
    first = own[0]
    for wrong, sentence in (
        (replace(first, version=0), "is of version 0 of the suites"),
        (replace(first, world="digits/idd/many"), "there is no world"),
        (replace(first, seed=77), "has a row of 77"),
        (replace(first, data="0" * 12), "has other data than the recorded rows"),
        (replace(first, settings={"fraction": 0.5}), "different settings"),
        (replace(first, scores=[float("nan")]), "scores that are no accuracies"),
    ):
        assert any(sentence in found for found in mistakes([wrong, *own[1:]], QUICK, recorded))
    assert mistakes(own[1:], QUICK, recorded) == [
        f"mine lacks 1 of {len(quick)} runs, such as {first.world} with seed {first.seed}"
    ]
    with pytest.raises(UserError, match="these rows cannot be compared: mine lacks 1 of"):
        compared("quick", own[1:])
    # The same rows under another name are as good as those that are recorded.
    result = compared("quick", own)
    (comparisons,) = result.judged
    assert {c.opponent: (c.ties, c.p) for c in comparisons}["fedavg"] == (len(QUICK), 1.0)


# -- the command
# ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite of two small worlds with two rounds, and recorded rows of FedAvg and local training."""
    silo, drifting = WORLDS["silos/invert"], WORLDS["drift/sine"]
    worlds = (
        replace(silo, seeds=(1000,), rounds=2),
        replace(drifting, seeds=(0, 1), rounds=22),
    )
    monkeypatch.setattr("coterie.contrib.bench.suites.SUITES", {"quick": worlds})
    names = {world.name: world for world in worlds}
    monkeypatch.setattr("coterie.contrib.bench.rows.WORLDS", names)
    monkeypatch.setattr(benching, "WORLDS", names)
    rows = []
    for name in ("fedavg", "independent"):
        for world in worlds:
            rows += [measure(METHODS[name](), {}, world, seed) for seed in world.seeds]
    monkeypatch.setattr(benching, "recorded_rows", lambda: rows)
    monkeypatch.setattr("coterie.contrib.bench.rows.recorded_rows", lambda: rows)
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "method_package")


@pytest.mark.usefixtures("tiny")
def test_a_users_method_is_run_compared_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bench"
    arguments = ["quick", "--method", PLACE, "--out", str(folder), "--workers", "1"]
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    assert "damped is significantly better than 0 of 2 methods" in shown
    rows = read_rows(folder / "damped.jsonl")
    assert len(rows) == 3
    assert {r.rand is None for r in rows if r.world == "drift/sine"} == {False}
    suffixes = {path.suffix for path in folder.glob("quick.*")}
    assert suffixes >= {".md", ".tex", ".json", ".pdf", ".svg"}
    assert r"\toprule" in (folder / "quick.tex").read_text()
    # A second call repeats no run; other settings are another method, in the same file.
    before = (folder / "damped.jsonl").read_bytes()
    assert call(*arguments, "--json") == 0
    assert (folder / "damped.jsonl").read_bytes() == before
    document = json.loads(capsys.readouterr().out)
    assert {entry["method"] for entry in document["ranking"]} == {"damped", "fedavg", "independent"}
    assert call("quick", "--check", str(folder / "damped.jsonl")) == 0
    result = bench("quick", PLACE, folder, settings=["damped.damping=0.5"], workers=1)
    assert [comparisons[0].method for comparisons in result.judged] == ["damped"]
    assert call("quick", "--check", str(folder / "damped.jsonl")) == 1
    assert "different settings" in capsys.readouterr().out


@pytest.mark.slow  # processes
def test_rows_do_not_depend_on_the_number_of_workers() -> None:
    jobs = [('{"name": "fedavg"}', "{}", "drift/sine", seed, None) for seed in (0, 1)]
    one, two = (list(benching._rows_of_jobs(jobs, workers)) for workers in (1, 2))
    assert [replace(r, seconds=0.0) for r in one] == [replace(r, seconds=0.0) for r in two]


def test_the_ranking_of_recorded_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("quick") == 0
    assert "mean rank" in capsys.readouterr().out
    result = bench("quick")
    best, *_ = result.standings
    assert best.gap == min(standing.gap for standing in result.standings)
    assert not result.judged
    table = ranking_table(result.standings, len(QUICK))
    assert table.count("\n") == len(result.standings) + 2
    text = against_table(against(result.compared, "fedavg"), "latex")
    assert r"\bottomrule" in text


def test_mistakes_are_sentences() -> None:
    with pytest.raises(UserError, match="there is no suite 'quikc'; did you mean quick"):
        call("quikc")
    with pytest.raises(UserError, match="did you mean fedavg"):
        entrant_of("fedagv")
    with pytest.raises(SettingError, match="no method of this run, training or scenario"):
        entrant_of("fedavg", ["nonsense=1"])
    with pytest.raises(UserError, match="a suite has its own worlds"):
        entrant_of("fedavg", ["training.lr=0.3"])
    with pytest.raises(UserError, match="has the name of Coterie's method 'fedavg'"):
        entrant_of("coterie.methods.fedavg:FedAvg")
    with pytest.raises(UserError, match="bench needs a folder"):
        bench("quick", "fedavg")
    with pytest.raises(UserError, match="leave out --method"):
        call("quick", "--check", "x.jsonl", "--method", "fedavg")


def test_methods_have_the_settings_of_their_recorded_rows() -> None:
    assert entrant_of("ifca").settings == {"models": 4}
    assert entrant_of("ifca", ["models=2"]).settings == {"models": 2}
    assert entrant_of("fedavg").settings == {}


def test_the_command_is_registered_and_the_rows_are_packaged() -> None:
    document = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    commands = document["project"]["entry-points"]["coterie.commands"]
    assert commands["bench"] == "coterie.contrib.bench.command:BENCH_COMMAND"
    assert "contrib/bench/rows/*" in document["tool"]["setuptools"]["package-data"]["coterie"]
