"""The table of a paper: the best of each column, forms, and what is refused."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import coterie
from coterie.cli import main
from coterie.report.compared import Comparison
from coterie.report.over_seeds import over_seeds, paired_p_value
from coterie.settings import UserError


def entry(
    method: str, score: float | None, worst: float, bytes_up: float, **more: Any
) -> dict[str, Any]:
    """A row of a comparison over two seeds."""

    def value(mean: float | None) -> dict[str, float | None]:
        return {
            "mean": mean,
            "low": None if mean is None else mean - 0.01,
            "high": None if mean is None else mean + 0.01,
        }

    return {
        "method": method,
        "scenario": "digits/iid",
        "settings": {},
        "metric": "accuracy",
        "better": "greater",
        "seeds": [0, 1],
        "score": value(score),
        "worst": value(worst),
        "ari": value(None),
        "bytes_up": value(bytes_up),
        **more,
    }


COMPARED = Comparison([entry("fedavg", 0.5, 0.25, 2e6), entry("cfl", 0.75, 0.125, 1e6)])


def test_the_best_of_each_column_is_bold() -> None:
    assert COMPARED.to_table().splitlines() == [
        "| method | accuracy | worst client | MB up |",
        "| --- | ---: | ---: | ---: |",
        "| fedavg | 0.500 ± 0.010 | **0.250 ± 0.010** | 2.0 ± 0.0 |",
        "| cfl | **0.750 ± 0.010** | 0.125 ± 0.010 | **1.0 ± 0.0** |",
    ]


def test_little_traffic_is_shown_to_a_kilobyte() -> None:
    rows = [entry("a", 0.5, 0.9, 9_400.0), entry("b", 0.75, 0.8, 11_000.0)]
    first, second = Comparison(rows).to_table(columns=["bytes_up"]).splitlines()[2:]
    assert first == "| a | **0.009 ± 0.000** |"
    assert second == "| b | 0.011 ± 0.000 |"


def test_further_metrics_have_their_own_direction_or_none() -> None:
    def further(low: float) -> dict[str, Any]:
        names = ("MeanAbsoluteError", "Recall/0", "brier")
        value = {"mean": low, "low": low, "high": low}
        return {"others": list(names), **dict.fromkeys(names, value)}

    rows = [entry("a", 0.5, 0.9, 1.0, **further(0.25)), entry("b", 0.5, 0.9, 1.0, **further(0.5))]
    columns = ["MeanAbsoluteError", "Recall/0", "brier"]
    first, second = Comparison(rows).to_table(columns=columns).splitlines()[2:]
    assert first == "| a | **0.250 ± 0.000** | 0.250 ± 0.000 | 0.250 ± 0.000 |"
    assert second == "| b | 0.500 ± 0.000 | **0.500 ± 0.000** | 0.500 ± 0.000 |"


def test_of_an_error_the_least_is_the_best() -> None:
    rows = [
        entry("a", 0.5, 0.9, 1.0, better="smaller"),
        entry("b", 0.75, 0.8, 1.0, better="smaller"),
    ]
    first, second = Comparison(rows).to_table(columns=["score", "worst"]).splitlines()[2:]
    assert first == "| a | **0.500 ± 0.010** | 0.900 ± 0.010 |"
    assert second == "| b | 0.750 ± 0.010 | **0.800 ± 0.010** |"


def test_a_column_of_latex_and_names_with_its_signs() -> None:
    rows = [
        entry("my_method", 0.5, 0.25, 1.0, settings={"k": 2}),
        entry("my_method", 0.25, 0.25, 1.0, settings={"k": 3}),
    ]
    table = Comparison(rows).to_table("latex", ["score"])
    assert r"my\_method (k 2) & \textbf{0.500 $\pm$ 0.010} \\" in table
    assert table.startswith("\\begin{tabular}{lr}\n\\toprule\n")


def test_an_unknown_number_is_a_dash_and_never_the_best() -> None:
    rows = [entry("a", None, 0.9, 1.0), entry("b", 0.5, 0.8, 1.0)]
    assert Comparison(rows).to_table(columns=["score"]).splitlines()[2:] == [
        "| a | - |",
        "| b | **0.500 ± 0.010** |",
    ]


@pytest.mark.parametrize(
    ("form", "columns", "words"),
    [
        ("html", (), "'html'"),
        ("latex", ("scores",), "'scores'; did you mean score?"),
    ],
)
def test_what_is_unknown_is_named(form: str, columns: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        COMPARED.to_table(form, columns)


def test_runs_of_two_scenarios_have_no_common_table() -> None:
    rows = [entry("a", 0.5, 0.5, 1.0), entry("a", 0.5, 0.5, 1.0, scenario="digits/label-swap")]
    with pytest.raises(UserError, match="digits/iid; digits/label-swap"):
        Comparison(rows).to_table()
    with pytest.raises(UserError, match="no runs"):
        Comparison([]).to_table()


def test_an_interval_that_says_nothing_gives_way_to_the_standard_deviation() -> None:
    # Two seeds have no interval, and of three the one of "worst" would end above 1.
    of_two = over_seeds([0.5, 0.7], "accuracy")
    of_three = over_seeds([0.9, 0.7, 1.0], "accuracy")
    assert (of_two["low"], of_two["high"]) == (None, None)
    assert (of_three["high"], of_three["low"] > 0) == (1.0, True)
    rows = [{**entry("a", 0.5, 0.5, 1.0), "score": of_two, "worst": of_three}]
    assert "| a | **0.600 (sd 0.141)** | **0.867 (sd 0.153)** |" in Comparison(rows).to_table(
        columns=["score", "worst"]
    )
    # In any case, if it is asked for.
    of_many = over_seeds([0.5, 0.52, 0.51, 0.49], "accuracy")
    rows = [{**entry("a", 0.5, 0.5, 1.0), "score": of_many}]
    assert "0.505 ± 0.021" in Comparison(rows).to_table(columns=["score"])
    assert "0.505 (sd 0.013)" in Comparison(rows).to_table(columns=["score"], spread="sd")
    with pytest.raises(UserError, match="the spread of a table must be interval or sd"):
        Comparison(rows).to_table(spread="range")


def of_seeds(method: str, *scores: float) -> dict[str, Any]:
    row = entry(method, scores[0], 0.5, 1.0, seeds=list(range(len(scores))))
    return {**row, "score": over_seeds(list(scores), "accuracy")}


def test_what_does_not_differ_from_the_best_by_the_paired_test_is_bold_too() -> None:
    rows = [
        of_seeds("best", 0.80, 0.90, 0.85),
        of_seeds("tied", 0.79, 0.92, 0.82),  # better and worse: p is far above 0.05
        of_seeds("worse", 0.70, 0.801, 0.749),  # by 0.1 with each seed
    ]
    lines = Comparison(rows).to_table(columns=["score"]).splitlines()
    bold = [line.split(" | ")[0].strip("| ") for line in lines[2:5] if "**" in line]
    assert bold == ["best", "tied"]
    assert lines[5:] == [
        "",
        "Bold: the best mean of a column, and each that does not differ from it significantly "
        "(paired t-test over 3 seeds, p >= 0.05).",
    ]
    assert Comparison(rows).to_table("latex", ["score"]).startswith("% Bold: the best")
    # The test is that of SciPy.
    differences = np.array([0.80, 0.90, 0.85]) - [0.79, 0.92, 0.82]
    assert paired_p_value(list(differences)) == pytest.approx(stats.ttest_1samp(differences, 0)[1])


def test_the_test_pairs_seeds_and_not_positions() -> None:
    rows = [of_seeds("best", 0.5, 0.7, 0.9), of_seeds("other", 0.89, 0.69, 0.49)]
    rows[1]["seeds"] = [2, 1, 0]  # with each seed 0.01 less, up to rounding
    rows[1]["score"] = over_seeds([0.8901, 0.69, 0.4901], "accuracy")
    assert "**" not in Comparison(rows).to_table(columns=["score"]).splitlines()[3]


def test_numbers_for_programs_are_complete() -> None:
    rows = [of_seeds("a", 0.5, 0.75, 1.0), of_seeds("b", 0.25, 0.5, 0.75)]
    (first, second) = csv.DictReader(io.StringIO(Comparison(rows).to_table("csv", ["score"])))
    assert (first["method"], first["seeds"], first["accuracy"]) == ("a", "3", "0.75")
    assert float(second["accuracy sd"]) == 0.25
    assert float(first["accuracy low"]) < 0.75 < float(first["accuracy high"])
    with pytest.raises(UserError, match=r"no column 'scor'; did you mean score\?"):
        Comparison(rows).to_table("csv", ["scor"])


def test_means_over_test_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = []
    for size in (40, 400):
        x = np.random.default_rng(size).normal(size=(size, 3)).astype(np.float32)
        clients.append((x, (x[:, 0] > 0).astype(np.int64)))
    runs = coterie.begin(
        coterie.from_lists(clients),
        tmp_path / "runs",
        ["fedavg", "independent"],
        rounds=2,
        workers=1,
    ).finish()
    sizes = runs[0].record.description()["world"]["tests"]
    assert sizes[0] < sizes[1]
    (by_clients, _), (by_examples, _) = coterie.compare(runs), coterie.compare(runs, by="examples")
    accuracies = list(coterie.summary(runs[0])["score"]["per_client"].values())
    assert by_clients["score"]["mean"] == pytest.approx(np.mean(accuracies))
    mean = np.average(accuracies, weights=sizes)
    assert by_examples["score"]["mean"] == by_examples["accuracy"]["mean"] == pytest.approx(mean)
    deviation = np.average((accuracies - mean) ** 2, weights=sizes) ** 0.5
    assert by_examples["std"]["mean"] == pytest.approx(deviation)
    assert by_examples["worst"] == by_clients["worst"]
    assert "by" not in by_clients
    # On the command line.
    folder = str(tmp_path / "runs")
    assert main(["compare", folder, "--by", "examples", "--latex", "--columns", "score,loss"]) == 0
    assert "method & accuracy over examples & loss over examples" in capsys.readouterr().out
    assert main(["compare", folder, "--by", "examples"]) == 0
    assert "Means of metrics are over test examples" in capsys.readouterr().out
    assert main(["compare", folder, "--markdown"]) == main(["compare", folder, "--csv"]) == 0
    capsys.readouterr()
    for words in (["--columns", "loss"], ["--by", "examples", "--clients"], ["--csv", "--latex"]):
        assert main(["compare", folder, *words]) == 2
    with pytest.raises(UserError, match="by must be clients or examples"):
        coterie.compare(runs, by="rows")
