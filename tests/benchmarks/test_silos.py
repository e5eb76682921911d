"""The study of few unequal sites: its worlds are what they say, a run gives a row, and the summary adds up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import silos_tables  # noqa: E402
from result_file import read_results  # noqa: E402
from study import silos  # noqa: E402

from coterie.contrib.bench.silos import (  # noqa: E402
    LEAST_ROWS,
    LEAST_SITES,
    MOST_ROWS,
    MOST_ROWS_OF_ALL,
    MOST_SITES,
    NUM_FEATURES,
    OPPOSITE,
    SILO_KINDS,
    TEST_ROWS,
    Draw,
    draw,
    site_sizes,
)

# -- worlds
# ---------------------------------------------------------------------------------------------------------------


def arrays(drawn: Draw, site: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a site's train, validation or test."""
    split = getattr(drawn.world.clients[site], part)
    return split.inputs[split.index].numpy(), split.targets.numpy().reshape(len(split))


def fitted_rule(drawn: Draw, site: int) -> np.ndarray:
    """The direction of a site's rule, by least squares on its test rows; of length 1."""
    inputs, targets = arrays(drawn, site, "test")
    weights = np.linalg.lstsq(inputs - inputs.mean(0), targets - targets.mean(), rcond=None)[0]
    return np.asarray(weights / np.linalg.norm(weights))


@pytest.mark.parametrize("kind", SILO_KINDS)
def test_sites_are_few_and_unequal(kind: str) -> None:
    drawn = draw(kind, 3)
    num_sites = len(drawn.sizes)
    assert len(drawn.world.clients) == num_sites
    assert set(drawn.differing) <= set(range(num_sites))
    if kind == "minority":
        assert (num_sites, len(set(drawn.sizes)), len(drawn.differing)) == (20, 1, 2)
    else:
        assert LEAST_SITES <= num_sites <= MOST_SITES
        assert len(set(drawn.sizes)) > 1
        expected = 0 if kind in ("alike", "degrees") else max(2, round(num_sites / 3))
        assert len(drawn.differing) == expected
    for site, size in enumerate(drawn.sizes):
        data = drawn.world.clients[site]
        assert len(data.train) + len(data.validation) == size
        assert len(data.validation) > 0
        assert arrays(drawn, site, "test")[0].shape == (TEST_ROWS, NUM_FEATURES)


@pytest.mark.parametrize("kind", SILO_KINDS)
def test_sizes_are_in_their_range_and_not_too_many_in_all(kind: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes = site_sizes(kind, rng)
        assert LEAST_ROWS <= min(sizes) <= max(sizes) <= MOST_ROWS
        # Sites of the least size are not made smaller.
        assert sum(sizes) <= MOST_ROWS_OF_ALL + LEAST_ROWS * len(sizes)


@pytest.mark.parametrize("kind", sorted({*SILO_KINDS} - {"rare", "degrees"}))
def test_sites_that_differ_have_the_rule_of_their_kind(kind: str) -> None:
    drawn = draw(kind, 5)
    alike = [site for site in range(len(drawn.sizes)) if site not in drawn.differing]
    rules = [fitted_rule(drawn, site) for site in range(len(drawn.sizes))]
    for site in alike[1:]:
        assert rules[site] @ rules[alike[0]] > 0.8
    for site in drawn.differing:
        cosine = rules[site] @ rules[alike[0]]
        if kind in OPPOSITE:
            assert cosine < -0.8
        elif kind in ("rotate", "angle"):
            assert abs(cosine) < 0.8
        else:
            assert cosine > 0.75


def test_every_site_has_a_rule_of_its_own_in_degrees() -> None:
    drawn = draw("degrees", 5)
    rules = [fitted_rule(drawn, site) for site in range(len(drawn.sizes))]
    cosines = [rules[0] @ rule for rule in rules[1:]]
    assert 0.5 < np.mean(cosines) < 0.85


def test_only_sites_that_differ_have_shifted_inputs() -> None:
    drawn = draw("covariate", 5)
    for site in range(len(drawn.sizes)):
        inputs, _ = arrays(drawn, site, "test")
        distance = np.linalg.norm(inputs.mean(0))
        # Of 20 means of 400 numbers, the expected norm is 0.22.
        assert (distance > 1) == (site in drawn.differing)


def test_rare_labels_have_their_share_on_both_sides() -> None:
    drawn = draw("rare", 5)
    assert 0.05 <= drawn.positive_share <= 0.5
    for site in range(len(drawn.sizes)):
        _, labels = arrays(drawn, site, "test")
        assert labels.mean() == pytest.approx(drawn.positive_share, abs=0.1)
    shares = [draw("rare", seed).positive_share for seed in range(20)]
    assert min(shares) < 0.15
    assert max(shares) > 0.35


def test_numbers_to_predict_have_about_unit_variance() -> None:
    drawn = draw("regression", 5)
    for site in range(len(drawn.sizes)):
        _, targets = arrays(drawn, site, "test")
        assert targets.dtype == np.float32
        assert targets.std() == pytest.approx(1, abs=0.15)


def test_shared_tests_have_the_same_inputs_and_opposite_labels() -> None:
    drawn = draw("shared", 5)
    reference_inputs, _ = arrays(drawn, 0, "test")
    labels_of_side: dict[bool, np.ndarray] = {}
    for site in range(len(drawn.sizes)):
        inputs, labels = arrays(drawn, site, "test")
        assert (inputs == reference_inputs).all()
        side = labels_of_side.setdefault(site in drawn.differing, labels)
        assert (labels == side).all()
    assert (labels_of_side[True] != labels_of_side[False]).mean() > 0.6


def test_only_labels_to_train_on_are_wrong() -> None:
    drawn = draw("noise", 1)
    alike = [site for site in range(len(drawn.sizes)) if site not in drawn.differing]
    rule = np.mean([fitted_rule(drawn, site) for site in alike], 0)
    for site in drawn.differing:
        wrong = {}
        for part in ("train", "test"):
            inputs, labels = arrays(drawn, site, part)
            wrong[part] = ((inputs @ rule > 0) != labels).mean()
        # By the noise in the scores, 13 % of the labels are not what the rule says.
        assert wrong["test"] < 0.22
        if drawn.sizes[site] > 200:
            assert wrong["train"] > wrong["test"] + 0.03


def test_a_draw_can_be_repeated_and_another_is_different() -> None:
    for kind in ("invert", "noise"):
        once = draw(kind, 7)
        again = draw(kind, 7)
        other = draw(kind, 8)
        assert once.sizes == again.sizes != other.sizes
        for first, second in zip(arrays(once, 1, "train"), arrays(again, 1, "train"), strict=True):
            assert (first == second).all()
    assert draw("invert", 7).sizes != draw("rotate", 7).sizes


# -- runs
# -----------------------------------------------------------------------------------------------------------------


def test_runs_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silos, "NUM_ROUNDS", 2)
    path = tmp_path / "silos.jsonl"
    call = ["--out", str(path), "--kinds", "noise,regression", "--methods", "fedavg,independent"]
    call += ["--draws", "1", "--first", "1000"]
    assert silos.main([*call, "--part", "1/2"]) == 0
    first = path.read_text()
    assert silos.main(call) == 0
    assert path.read_text().startswith(first)
    rows = read_results(path)
    assert [(row["kind"], row["seed"], row["method"]) for row in rows] == [
        ("noise", 1000, "independent"),
        ("regression", 1000, "independent"),
        ("noise", 1000, "fedavg"),
        ("regression", 1000, "fedavg"),
    ]
    for row in rows:
        drawn = draw(row["kind"], 1000)
        assert tuple(row["sizes"]) == drawn.sizes
        assert tuple(row["differing"]) == drawn.differing
        assert row["accuracy"] == pytest.approx(np.mean(row["accuracies"]))
        assert len(row["accuracies"]) == len(drawn.sizes)
        # R2 can be negative.
        assert row["kind"] == "regression" or min(row["accuracies"]) >= 0


# -- summary
# --------------------------------------------------------------------------------------------------------------


def row(method: str, seed: int, accuracies: list[float], **more: Any) -> dict[str, Any]:
    """A run with two sites."""
    usual = {"kind": "invert", "groups": 1}
    about = {"method": method, "seed": seed, "accuracies": accuracies}
    return {**usual, **about, "accuracy": sum(accuracies) / len(accuracies), **more}


ROWS = [
    row("auto", 1000, [0.75, 0.5], groups=2),
    row("auto", 1001, [1.0, 0.75]),
    row("fedavg", 1000, [0.75, 0.25]),
    row("fedavg", 1001, [1.0, 0.5]),
    row("independent", 1000, [0.75, 0.75]),
    row("independent", 1001, [0.5, 0.5]),
    # A draw that is not finished.
    row("auto", 1002, [0.0, 0.0]),
    row("auto", 1000, [0.5, 0.5], kind="alike"),
    row("fedavg", 1000, [0.625, 0.5], kind="alike"),
    row("independent", 1000, [0.25, 0.5], kind="alike"),
]


def test_the_default_is_compared_in_each_draw() -> None:
    runs_of_kind = silos.by_kind(ROWS)
    assert list(runs_of_kind) == ["alike", "invert"]
    runs_of_method = runs_of_kind["invert"]
    assert list(runs_of_method) == ["fedavg", "independent", "auto"]
    assert sorted(runs_of_method["auto"]) == [1000, 1001]
    # Means of auto 0.625 and 0.875, of one model 0.5 and 0.75, alone 0.75 and 0.5.
    assert silos.gaps(runs_of_method, "auto") == [0.125, 0.0]
    assert silos.gaps(runs_of_method, "fedavg") == [0.25, 0.125]
    assert silos.num_below(runs_of_method, "auto") == 1
    assert silos.num_with_groups(runs_of_method, "auto") == 1
    assert silos.worst_site(runs_of_method, "auto") == 0.625
    assert silos.worst_site(runs_of_method, "fedavg") == 0.375


def test_a_small_difference_is_not_below() -> None:
    rows = [
        row("auto", 1000, [0.5, 0.5]),
        row("fedavg", 1000, [0.505, 0.505]),
        row("independent", 1000, [0.25, 0.25]),
    ]
    assert silos.num_below(silos.by_kind(rows)["invert"], "auto") == 0


def test_tables_say_what_was_measured() -> None:
    page = silos.summary(ROWS)
    # By draw 1001 auto is the best, to which it lacks nothing in draw 1000. By draw 1000 training
    # alone is the best, and it lacks 0.375 to auto in draw 1001.
    line = "| `invert` | 2 | 0.750 | 0.0625 | -0.1875 | 0.125 | 50% | 0.62 | 0.38 | 1 |"
    assert line in page
    assert "| `alike` | 1 | 0.500 | 0.0625 | – | 0.062 | 100% | 0.50 | 0.50 | 0 |" in page
    assert "| `invert` | 0.1875 | 0.1875 | **0.0625** |" in page
    assert "| `alike` | **0.0000** | 0.1875 | 0.0625 |" in page
    assert "| all but `regression` | 0.1250 | 0.1875 | **0.0625** |" in page
    numbers = [{**one, "kind": "regression"} for one in ROWS[:6]]
    with_numbers = silos.summary([*ROWS, *numbers])
    assert "| `regression` | 0.1875 | 0.1875 | **0.0625** |" in with_numbers
    assert "| all but `regression` | 0.1250 | 0.1875 | **0.0625** |" in with_numbers
    assert silos.summary([]) == "No draw has runs of all of auto, fedavg, independent yet.\n"
    assert silos.summary(ROWS[:2]) == silos.summary([])


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts rows in the place of those that were measured."""
    path = tmp_path / "silos.jsonl"
    monkeypatch.setattr(silos_tables, "SILOS", path)
    return lambda *rows: path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))


def test_documents_have_the_tables_and_the_sentences(
    recorded: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert silos_tables.tables() == silos_tables.found() == silos_tables.NOT_YET
    recorded(*ROWS)
    assert silos_tables.tables() == silos.summary(ROWS)
    assert silos.main(["--summary", str(silos_tables.SILOS)]) == 0
    assert capsys.readouterr().out == silos.summary(ROWS)
    words = " ".join(silos_tables.found().split())
    assert words == (
        "In 3 simulated federations of 2 kinds with class labels, the mean gap of `auto` to the best "
        "of 3 methods is 0.062, the greatest 0.125. In 2 of them it is more than 0.01 below one model for all or "
        "training alone. Where all sites have the same data distribution, it ended with several "
        "groups in 0 of 1."
    )
    assert len(silos_tables.kinds().splitlines()) == len(SILO_KINDS)
