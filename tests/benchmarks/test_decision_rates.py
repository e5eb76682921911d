"""The study of wrong decisions: losses are drawn as it says, the decisions are those of a race, and the tables add up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import decision_tables  # noqa: E402
from study import decision_rates  # noqa: E402
from study.decision_rates import (  # noqa: E402
    COMPLEX,
    GROUPS,
    NO_HYSTERESIS,
    SHAPE,
    SIMPLE,
    SimulatedLosses,
    constant,
    late,
    raced,
    rates,
    reports_of,
)

from coterie.data.scenario import SCENARIOS  # noqa: E402
from coterie.methods.race import MIN_REPORTS  # noqa: E402

# -- losses
# ---------------------------------------------------------------------------------------------------------------


def test_parts_by_example_have_mean_0_and_variance_1() -> None:
    parts = decision_rates.example_parts(np.random.default_rng(0), 1_000_000, SHAPE)
    assert parts.mean() == pytest.approx(0.0, abs=0.01)
    assert parts.var() == pytest.approx(1.0, rel=0.1)
    # Tails as heavy as those of real differences: half of all parts are within .3 standard deviations.
    quartile_range = float(np.subtract(*np.quantile(parts, [0.75, 0.25])))
    assert 0.3 < quartile_range / 1.349 < 0.6


def test_noise_of_training_goes_on_from_round_to_round() -> None:
    losses = SimulatedLosses.drawn(np.random.default_rng(0), np.full(4, 5000))
    rounds = np.stack([losses.next_round() for _ in range(3)])
    noise = (rounds - losses.fixed) / np.repeat(losses.scales, losses.sizes)
    assert noise.std() == pytest.approx(SHAPE.example_noise, rel=0.05)
    for before, after in ((0, 1), (1, 2)):
        correlation = float(np.corrcoef(noise[before], noise[after])[0, 1])
        assert correlation == pytest.approx(SHAPE.persistence, abs=0.03)


def test_the_standard_error_is_that_of_the_draw_of_the_examples() -> None:
    quiet = replace(SHAPE, example_noise=0.0, round_noise=0.0, client_scale=0.0, client=0.0)
    rng = np.random.default_rng(0)
    sizes = np.array([40, 10, 200])
    draws = [SimulatedLosses.drawn(rng, sizes, quiet) for _ in range(400)]
    means = [losses.next_round().mean() for losses in draws]
    assert np.std(means) == pytest.approx(draws[0].error, rel=0.15)


def test_reports_are_means_and_their_variances() -> None:
    sizes = np.array([2, 7, 30])
    differences = np.random.default_rng(0).normal(0.1, 0.4, size=sizes.sum())
    reports = reports_of(differences, sizes)
    for client, own in enumerate(np.split(differences, np.cumsum(sizes)[:-1])):
        variance = own.var(ddof=1) / len(own)
        assert reports[client] == pytest.approx((own.mean(), variance, len(own)))


def test_late_groups_are_behind_until_they_cross() -> None:
    curve = late(gain=2.0, crossing=15.0)
    assert curve(1) < curve(14) < 0.0 < curve(16) < curve(40) < 2.0
    assert curve(15) == 0.0


# -- races
# ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GROUPS)
def test_a_great_difference_decides(kind: str) -> None:
    rng = np.random.default_rng(0)
    sizes = np.full(6, 20)
    better = raced(rng, sizes, kind, constant(12.0))
    assert (better.leader, better.ended, better.changes) == (COMPLEX, SIMPLE, 1)
    assert better.ended_by == "held_out_loss"
    worse = raced(rng, sizes, kind, constant(-12.0))
    assert (worse.leader, worse.ended, worse.changes) == (SIMPLE, COMPLEX, 0)
    # The more complex one ends as hopeless; one model only beside groups that a test has found.
    assert worse.ended_round == MIN_REPORTS
    assert (better.ended_round == MIN_REPORTS) == (kind == "tested")


def test_hysteresis_saves_changes_of_the_leader() -> None:
    changes = {}
    for kind in ("untested", NO_HYSTERESIS):
        rng = np.random.default_rng(1)
        races = [raced(rng, np.full(3, 10), kind, constant(0.0)) for _ in range(10)]
        changes[kind] = rates(races)["changes"]
    assert changes["untested"] < changes[NO_HYSTERESIS]


def test_a_client_that_differs_is_limited_by_the_fences() -> None:
    alike = decision_rates.fence_row("fences", 12, 30, unequal=False, apart=0.0, runs=60)
    apart = decision_rates.fence_row("fences", 12, 30, unequal=False, apart=4.0, runs=60)
    assert alike["draws with limits"] < apart["draws with limits"]
    assert apart["mean shift"] < -1.0


def test_personal_models_that_are_worse_are_used_by_few() -> None:
    used = {
        name: decision_rates.personal_row(name, 12, 10, runs=5)["use"]
        for name in ("worse", "better")
    }
    assert used["worse"] < 0.2 < 0.8 < used["better"]


def test_losses_of_real_runs_are_recorded() -> None:
    world = replace(SCENARIOS["digits/label-permutation"], clients=6, groups=2).build(0)
    rounds = decision_rates.recorded(world, rounds=6)
    assert len(rounds) == 6
    for losses in rounds:
        assert set(losses) == {"fedavg", "split-half", "independent"}
        assert len({len(own) for own in losses.values()}) == 1
    # The examples are the same in all rounds.
    assert [len(own) for own in rounds[0]["fedavg"]] == [len(own) for own in rounds[5]["fedavg"]]
    differences = [
        [one - other for one, other in zip(losses["fedavg"], losses["independent"], strict=True)]
        for losses in rounds
    ]
    assert decision_rates.shape_of(differences)["unit"] > 0


# -- tables
# ---------------------------------------------------------------------------------------------------------------


def test_rows_are_weighted_by_their_runs() -> None:
    rows = [{"runs": 10, "delivered": 1.0}, {"runs": 30, "delivered": 0.0}]
    assert decision_tables.mean(rows, "delivered") == 0.25


@pytest.mark.parametrize("part", decision_tables.PARTS.values(), ids=decision_tables.PARTS.keys())
def test_tables_have_as_many_cells_in_every_row(part: Callable[[], str]) -> None:
    lines = part().splitlines()
    assert len(lines) > 2
    assert len({line.count("|") for line in lines}) == 1


def test_the_command_appends_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(scale: float) -> Any:
        yield decision_rates.race_row("null", 3, 3, "tested", (0.0,), 2 * scale)

    monkeypatch.setattr(decision_rates, "STUDIES", {"null": few})
    out = tmp_path / "rates.jsonl"
    assert decision_rates.main(["--out", str(out), "--only", "null"]) == 0
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (row["part"], row["runs"], row["clients"]) == ("null", 2, 3)
