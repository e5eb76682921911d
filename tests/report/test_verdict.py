"""The verdict over methods: noise by its definition, the same round for all, the recommended method, and what it says."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import coterie
from coterie.cli import main
from coterie.core import P_VALUE
from coterie.report import terminal
from coterie.report.contest import Contest
from coterie.report.explain import explain, words
from coterie.report.noise import NORMAL_95, two_areas, two_shares
from coterie.report.page import document
from coterie.report.ranking import contests
from coterie.report.recommendation import recommend
from coterie.report.trials import read
from coterie.report.verdict import verdict
from coterie.settings import PlainWarning
from page_runs import OLD, line, note, write

Values = Mapping[int, float]


def run(
    folder: Path,
    method: str,
    *rounds: Values | None,
    groups: Sequence[Sequence[int]] | None = None,
    metric: str = "accuracy",
    better: str = "greater",
    tests: int | None = 24,
    adversary: int | None = None,
    **more: Any,
) -> Path:
    """A run with these values of the main metric in each round; None is a round without tests."""
    clients = sorted(next(values for values in rounds if values))
    lines = []
    for number, values in enumerate(rounds, start=1):
        made = line(number, groups or [clients], tested=values is not None)
        for client, entry in made["clients"].items() if values else ():
            entry.pop("accuracy")
            entry |= {metric: values[int(client)]} | (
                {"adversary": True} if int(client) == adversary else {}
            )
        lines.append(made)
    sizes = {} if tests is None else {"tests": [tests] * len(clients)}
    other = {} if metric == "accuracy" else {"metric": {"main": metric, "better": better}}
    return write(folder, lines, method, **sizes, **other, **more)


def contest(*folders: Path) -> Contest:
    (found,) = contests(map(read, folders))
    return found


@pytest.mark.parametrize("n", [9, 24, 100])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
def test_two_models_that_are_alike_rarely_differ_beyond_noise(n: int, p: float) -> None:
    """The exact probability, over all outcomes of two tests with n examples each."""
    chances = scipy.stats.binom.pmf(range(n + 1), n, p)
    beyond = sum(
        chances[a] * chances[b]
        for a in range(n + 1)
        for b in range(n + 1)
        if abs(a - b) / n > NORMAL_95 * math.sqrt(two_shares((a + b) / 2 / n, n))
    )
    assert beyond < 0.05


@pytest.mark.parametrize(
    ("right", "sign"), [(1, 0), (5, 0), (8, 0), (9, 1), (11, 1), (-1, 0), (-8, 0), (-11, -1)]
)
def test_one_of_24_test_images_is_no_gain(right: int, sign: int, tmp_path: Path) -> None:
    base = run(tmp_path / "a", "fedavg", {0: 12 / 24})
    found = contest(run(tmp_path / "b", "cfl", {0: (12 + right) / 24}), base)
    mine, other = found.find("cfl"), found.find("fedavg")
    assert mine
    assert other
    gain = found.client_gain(mine, other, 0)
    assert gain
    p = (24 + right) / 48
    assert gain.improvement == pytest.approx(right / 24)
    noise = 1.96 * math.sqrt(2 * min(p, 1 - p) / 24) + 1 / 24
    assert gain.noise == pytest.approx(noise)
    assert gain.sign == (0 if abs(right / 24) <= noise else sign)


def test_a_metric_of_ones_own_that_averages_shares_has_the_noise_of_its_tests(
    tmp_path: Path,
) -> None:
    def top_three(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.topk(3).indices == targets[:, None]).any(1).float()

    objective = coterie.Objective(metrics={"top 3": coterie.Metric(top_three, whole=False)})
    inputs, targets = torch.zeros(12, 3), torch.arange(12) % 4
    world = coterie.from_lists([(inputs, targets)] * 2, model="linear", objective=objective)
    runs = coterie.begin(world, tmp_path, ["fedavg", "independent"], rounds=1, workers=1).finish()
    compared = contest(*(one.folder for one in runs))
    assert compared.metric == "top 3"
    assert compared.noise_is_of_tests
    other = contest(run(tmp_path / "d", "fedavg", {0: 0.5}, metric="top 3"))
    assert not other.noise_is_of_tests


def test_the_mean_is_less_noisy_than_its_clients(tmp_path: Path) -> None:
    clients = range(16)
    found = contest(
        run(tmp_path / "b", "cfl", dict.fromkeys(clients, 0.6)),
        run(tmp_path / "a", "fedavg", dict.fromkeys(clients, 0.5)),
    )
    mine, other = found.methods
    assert (mine.name, other.name) == ("cfl", "fedavg")
    gain, one = found.mean_gain(mine, other), found.client_gain(mine, other, 3)
    assert gain
    assert one
    step = 1 / 24  # of 16 clients, a right answer more is a sixteenth of this
    assert gain.noise == pytest.approx((one.noise - step) / 4 + step / 16)
    assert (one.sign, gain.sign) == (0, 1)


def test_without_a_standard_error_seeds_are_the_noise(tmp_path: Path) -> None:
    rows = {"fedavg": [0.50, 0.40, 0.45], "cfl": [0.62, 0.50, 0.55]}
    folders = [
        run(
            tmp_path / f"{method}{seed}",
            method,
            dict.fromkeys((0, 1), value),
            metric="R2Score",
            seed=seed,
        )
        for method, values in rows.items()
        for seed, value in enumerate(values)
    ]
    found = contest(*folders)
    gain = found.client_gain(found.methods[0], found.methods[1], 1)
    assert found.methods[0].name == "cfl"
    assert gain
    assert gain.improvement == pytest.approx(0.32 / 3)
    both = scipy.stats.sem(
        [0.12, 0.10, 0.10]
    )  # of two clients with the same values: two degrees of freedom each
    assert gain.noise == pytest.approx(scipy.stats.t.ppf(0.975, 4) * both)
    assert gain.sign == 1
    alone = contest(folders[0], folders[3])
    gain = alone.client_gain(*alone.methods, 1)
    assert gain
    assert gain.noise is None


@pytest.mark.parametrize("area", [0.6, 0.8, 0.95])
@pytest.mark.parametrize(("with_label", "without_label"), [(2, 6), (5, 19), (18, 72), (40, 40)])
def test_models_with_equal_areas_rarely_differ_beyond_noise(
    area: float, with_label: int, without_label: int
) -> None:
    """Of normal scores whose errors are independent, which is the worst of usual cases."""
    rng = np.random.default_rng(0)
    shift = scipy.stats.norm.ppf(area) * math.sqrt(2)
    draws = 1000
    above = rng.normal(shift, 1, (2, draws, with_label, 1)) > rng.normal(
        0, 1, (2, draws, 1, without_label)
    )
    areas = above.mean((2, 3))
    beyond = 0
    for mine, other in areas.T:
        noise = NORMAL_95 * math.sqrt(two_areas((mine + other) / 2, with_label, without_label))
        beyond += abs(mine - other) > noise + 0.5 / min(with_label, without_label)
    assert beyond / draws < 0.05


def areas(folder: Path, mine: float, other: float, seed: int = 0, **world: Any) -> list[Path]:
    """Two runs of four clients with these areas under the ROC curve, nearly the same with each seed."""
    return [
        run(
            folder / f"{method}{seed}",
            method,
            {client: area + 0.001 * seed * (client + 1) for client in range(4)},
            metric="AUROC",
            seed=seed,
            **world,
        )
        for method, area in (("cfl", mine), ("fedavg", other))
    ]


def test_the_area_of_a_few_positives_is_noise_however_many_seeds_repeat_its_test(
    tmp_path: Path,
) -> None:
    facts = {"test_rows": "the same", "deciding_tests": [[5.0, 19.0]] * 3 + [[50.0, 190.0]]}
    folders = [path for seed in range(3) for path in areas(tmp_path, 0.9, 0.7, seed, **facts)]
    found = contest(*folders)
    assert found.noise_is_of_tests
    assert found.repeats_tests
    mine, other = found.methods
    gain = found.client_gain(mine, other, 0)
    assert gain
    noise = 1.96 * math.sqrt(two_areas((gain.score + gain.rival_score) / 2, 5, 19)) + 0.1
    assert gain.noise == pytest.approx(noise)
    assert found.clients_better_with(mine, other) == [3]
    # With so many rows, of which as many have the label, it would not be noise.
    needed = found.test_size_needed(0, gain)
    assert needed
    assert 24 < needed < 24 * 6
    said = verdict(found)
    assert "Hanley and McNeil" in said["noise"]
    assert "seeds" not in said["noise"]


def test_seeds_that_repeat_a_test_do_not_make_a_difference_significant(tmp_path: Path) -> None:
    """They differ by the noise of training alone."""
    repeated = [
        path for seed in range(3) for path in areas(tmp_path, 0.9, 0.7, seed, test_rows="the same")
    ]
    found = contest(*repeated)
    mine, other = found.find("cfl"), found.find("fedavg")
    assert mine
    assert other
    gain = found.client_gain(mine, other, 0)
    assert gain
    assert gain.sign is None
    noise = verdict(found)["noise"]
    assert noise.startswith("The 3 seeds have the same test rows, so they count as one. ")
    assert noise.endswith(
        "noise is not known: AUROC has no standard error, and each seed has the same test rows."
    )
    # Other rows with each seed say how much the choice of rows matters.
    drawn = [
        path
        for seed in range(3)
        for path in areas(tmp_path / "drawn", 0.9, 0.7, seed, test_rows=str(seed))
    ]
    found = contest(*drawn)
    gain = found.client_gain(*found.methods, 0)
    assert gain
    assert gain.sign == 1


def test_a_run_records_which_tests_decide(tmp_path: Path) -> None:
    inputs, targets = torch.zeros(60, 3), torch.arange(60) % 4 // 3
    objective = coterie.Objective(metrics=["AUROC"])
    world = coterie.from_lists([(inputs, targets)] * 2, model="linear", objective=objective)
    settings: Any = {"rounds": 1, "workers": 1, "seeds": [0, 1]}
    runs = coterie.begin(world, tmp_path / "runs", ["fedavg", "cfl"], **settings).finish()
    found = contest(*(one.folder for one in runs))
    # The world was made once, so each seed has its rows.
    assert found.repeats_tests
    assert found.compares_areas


def test_without_a_standard_error_clients_are_the_noise_of_a_mean(tmp_path: Path) -> None:
    """One seed is enough for the mean over clients; two give the noise of one client, pooled over all."""
    rng = np.random.default_rng(0)
    base, more = rng.random((2, 5)) * 0.1, 0.5 + rng.random((2, 5)) * 0.1
    folders = {
        (name, seed): run(
            tmp_path / f"{name}{seed}",
            name,
            dict(enumerate(rows[seed])),
            metric="R2Score",
            seed=seed,
        )
        for name, rows in (("fedavg", base), ("cfl", more))
        for seed in (0, 1)
    }
    single = contest(folders["fedavg", 0], folders["cfl", 0])
    gain = single.mean_gain(single.methods[0], single.methods[1])
    low, high = scipy.stats.t.interval(0.95, 4, loc=0, scale=scipy.stats.sem(more[0] - base[0]))
    assert gain
    assert (gain.noise, gain.sign) == (pytest.approx((high - low) / 2), 1)
    both = contest(*folders.values())
    one = both.client_gain(both.methods[0], both.methods[1], 3)
    pooled = np.var(
        more - base, axis=0, ddof=1
    ).mean()  # five clients with one degree of freedom each
    assert one
    assert one.noise == pytest.approx(scipy.stats.t.ppf(0.975, 5) * np.sqrt(pooled / 2))


def groups_of_two(folder: Path, seeds: int) -> list[Path]:
    """One model serves 8 of 10 clients and is wrong for 2; groups serve all."""
    rng = np.random.default_rng(0)
    return [
        run(
            folder / f"{name}{seed}",
            name,
            dict(enumerate(values)),
            metric="AUROC",
            seed=seed,
            groups=groups,
        )
        for seed in range(seeds)
        for name, values, groups in (
            ("fedavg", [0.0, 0.0, *(1 - 0.01 * rng.random(8))], [[*range(10)]]),
            ("cfl", list(1 - 0.01 * rng.random(10)), [[0, 1], [*range(2, 10)]]),
        )
    ]


def test_that_groups_help_a_few_clients_much_is_no_noise(tmp_path: Path) -> None:
    found = contest(*groups_of_two(tmp_path, 3))
    advice = recommend(found)
    assert (advice.method, advice.reason, advice.exceptions) == ("cfl", "best", {})
    gain = found.mean_gain(*found.methods)
    assert gain
    assert gain.sign == 1
    assert verdict(found)["use"].startswith("Use cfl for all clients: ")


def test_with_one_seed_it_is_not_known_whether_a_few_clients_gain(tmp_path: Path) -> None:
    advice = recommend(contest(*groups_of_two(tmp_path, 1)))
    assert (advice.method, advice.reason) == ("cfl", "not known")


def test_methods_are_compared_in_the_last_round_that_all_have_tested(tmp_path: Path) -> None:
    base = run(tmp_path / "a", "fedavg", {0: 0.1, 1: 0.2}, None, {0: 0.5, 1: 0.3})
    more = run(
        tmp_path / "b",
        "cfl",
        {0: 0.2, 1: 0.3},
        {0: 0.4, 1: 0.4},
        {0: 0.9, 1: 0.9},
        {0: 1.0, 1: 1.0},
    )
    compared = contest(base, more)
    found = verdict(compared)
    assert found["table"]["round"] == 3
    assert found["table"]["methods"] == ["cfl", "fedavg"]
    assert [row["values"] for row in found["table"]["rows"]] == [[0.9, 0.5], [0.9, 0.3]]
    assert len(found["better"]) == 1
    gain = compared.mean_gain(*compared.methods)
    assert gain
    assert (gain.score, gain.rival_score, gain.sign) == (0.9, pytest.approx(0.4), 1)
    assert compared.clients_better_with(compared.methods[0], compared.methods[1]) == [0, 1]
    assert recommend(compared).reason == "best"
    (gains,) = [one["gains"] for one in document([base, more])["runs"] if one["method"] == "cfl"]
    assert gains == {"round": 3, "of": [(0, pytest.approx(0.4), 1), (1, pytest.approx(0.6), 1)]}


def test_of_methods_within_noise_the_simplest_is_recommended_and_exceptions_are_named(
    tmp_path: Path,
) -> None:
    base = run(tmp_path / "a", "fedavg", {0: 0.5, 1: 0.5, 2: 0.6})
    split = run(tmp_path / "b", "cfl", {0: 0.55, 1: 0.52, 2: 0.6}, groups=[[0, 1], [2]])
    compared = contest(split, base)
    found = verdict(compared)
    assert found["table"]["methods"] == ["fedavg", "cfl"]
    assert recommend(compared).reason == "simplest"
    assert found["use"] == (
        "Use fedavg for all clients: cfl has the best mean accuracy, but within noise, "
        "and of the methods within noise of it none has fewer groups."
    )
    assert (found["method"], found["groups"]) == ("cfl", [[0, 1], [2]])
    alone = run(tmp_path / "c", "independent", {0: 0.1, 1: 0.1, 2: 1.0}, groups=[[0], [1], [2]])
    compared = contest(split, base, alone)
    assert recommend(compared).exceptions == {"independent": [2]}
    gains = compared.client_gains(compared.focus, compared.find("independent") or compared.focus)
    assert [gain.sign for gain in gains.values()] == [1, 1, -1]
    assert verdict(compared)["better"][1].endswith("significantly worse for client 2.")


def test_smaller_is_better_where_it_is(tmp_path: Path) -> None:
    errors = {"fedavg": 2.0, "cfl": 1.5}
    options = {"metric": "MeanSquaredError", "better": "smaller"}
    compared = contest(
        *(run(tmp_path / name, name, {0: by, 1: by}, **options) for name, by in errors.items())
    )
    found = verdict(compared)
    assert found["table"]["methods"] == ["cfl", "fedavg"]
    gain = compared.mean_gain(*compared.methods)
    assert gain
    assert (gain.score, gain.rival_score, gain.improvement, gain.noise) == (1.5, 2.0, 0.5, None)
    assert "0.500 lower (1.500 against 2.000)" in found["better"][0]
    assert recommend(compared).reason == "not known"


def test_adversaries_are_not_judged(tmp_path: Path) -> None:
    values = {0: 0.5, 1: 0.5, 2: 0.0}
    found = contest(
        *(run(tmp_path / name, name, values, adversary=2) for name in ("fedavg", "cfl"))
    )
    assert found.clients == [0, 1]


def test_runs_over_other_data_are_not_compared(tmp_path: Path) -> None:
    base = run(tmp_path / "a", "fedavg", {0: 0.5}, data="other")
    found = verdict(contest(run(tmp_path / "b", "cfl", {0: 0.9}), base))
    assert found["left_out"].endswith("in common: fedavg.")
    assert "(independent)" in found["missing"]
    assert "fedavg" not in found["missing"]
    assert found["better"] == []


def test_a_run_without_sizes_of_test_sets_has_no_noise_known(tmp_path: Path) -> None:
    found = verdict(
        contest(*(run(tmp_path / name, name, {0: 0.5}, tests=None) for name in ("fedavg", "cfl")))
    )
    assert (
        "noise is not known: the sizes of test sets are not recorded, and there is one seed."
        in found["noise"]
    )
    assert [verdict(one)["found"] for one in contests([read(OLD / "cfl")])] == [
        "cfl found 2 groups, the same as the true groups."
    ]


def test_why_is_the_last_decision(tmp_path: Path) -> None:
    split = note("split", [0, 1, 2], [[0], [1, 2]], text="differ [0.9 > 0.5]")
    keep = note("keep", [1, 2], text="no longer")
    lines = [
        line(1, [[0, 1, 2]], note("keep", [0, 1, 2], text="not yet")),
        line(2, [[0], [1, 2]], split),
    ]
    lines.append(line(3, [[0], [1, 2]], keep))
    run = write(tmp_path / "split", lines)
    assert (
        verdict(contest(run))["why"]
        == "The last decision that divided clients. Round 2: Differ [0.9 > 0.5]."
    )
    assert (
        verdict(contest(write(tmp_path / "one", lines[:1])))["why"]
        == "Why it did not split. Round 1: Not yet."
    )


def test_the_last_examination_may_be_that_of_an_arm_that_does_not_serve(tmp_path: Path) -> None:
    test = [
        {
            "key": P_VALUE,
            "name": "p",
            "value": 1e-9,
            "sign": "<",
            "bound": 1e-4,
            "setting": "level",
            "held": True,
            "met": "",
            "unmet": "",
        }
    ]
    found = {**note("arm", [0, 1, 2], text="groups, not in use: differ"), "criteria": test}
    better = note("arm", [0, 1, 2], text="personal models are better")
    lines = [
        line(1, [[0, 1, 2]], note("hold", [0, 1, 2], text="probed again")),
        line(2, [[0, 1, 2]], found, better),
    ]
    run = write(tmp_path / "run", lines)
    assert (
        verdict(contest(run))["why"] == "Why it did not split. Round 2: Groups, not in use: differ."
    )
    assert explain(run)["standing"]["groups"][0]["decision"]["round"] == 2


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_command_adds_what_is_missing(
    seeds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--scenario=synthetic/groups",
        "--method=cfl",
        "--rounds=2",
        "--workers=1",
        f"--seeds={seeds}",
    ]
    assert main(["run", *options, f"--out={tmp_path / 'own run'}", "--json"]) == 0
    (said,) = document([tmp_path / "own run"])["verdicts"]
    assert said["missing"].startswith(
        "There is no run to compare with one model for all (fedavg) and with training alone (ind"
    )
    run_command, report_command = said["command"].splitlines()
    _, *arguments = shlex.split(run_command)
    assert main([*arguments, "--workers=1", "--json"]) == 0
    capsys.readouterr()
    new_folder = Path(arguments[arguments.index("--out") + 1])
    assert tmp_path / "own run" not in new_folder.parents
    assert shlex.split(report_command)[2:] == [str(tmp_path / "own run"), str(new_folder)]
    shown = document([tmp_path / "own run", new_folder])
    (said,) = shown["verdicts"]
    assert said["missing"] == said["left_out"] == said["command"] == ""
    assert (len(said["better"]), said["table"]["seeds"]) == (2, list(range(seeds)))
    assert [one["method"] for one in shown["runs"][::seeds]] == said["table"]["methods"]


def test_a_command_for_runs_whose_scenario_is_code_names_the_consent(tmp_path: Path) -> None:
    found = contest(write(tmp_path / "run", [line(1, [[0, 1, 2]])]))
    assert not verdict(found)["missing"].endswith("if you trust it.")
    found.focus.first.summary["scenario"] = "mine:sites"
    said = verdict(found)
    assert said["missing"].endswith("The first imports code, so add --trust-code if you trust it.")
    assert "--trust-code" not in said["command"]


def test_an_explanation_compares_with_the_experiments_baselines(tmp_path: Path) -> None:
    own = run(tmp_path / "cfl-seed1", "cfl", {0: 0.9, 1: 0.5}, {0: 1.0, 1: 0.5}, seed=1)
    run(tmp_path / "fedavg-seed0", "fedavg", {0: 0.0, 1: 0.0}, seed=0)
    base = run(tmp_path / "fedavg-seed1", "fedavg", {0: 0.2, 1: 0.5}, {0: 0.1, 1: 0.5}, seed=1)
    found = explain(own)["verdict"]
    losses, groups, compared = found
    assert "0.417 to 0.292 in rounds 1 to 2 with fedavg" in losses
    assert groups == "cfl found 1 group."
    assert "in round 2, the mean accuracy of cfl is 0.450 higher (0.750 against 0.300)" in compared
    assert compared.endswith(
        "better for 1 of 2 clients (client 0) and significantly worse for none."
    )
    assert f"\n\n{' '.join(found)}\n" in words(own, width=1000)
    assert (
        "in round 1, the mean accuracy of cfl is 0.350 higher"
        in explain(own, round=1)["verdict"][1]
    )
    assert explain(own, client=0)["verdict"] == [
        "Client 0 has accuracy 1.000 with cfl in round 2, on 24 test examples. "
        "With fedavg it has 0.100: significantly worse."
    ]
    (base / "rounds.jsonl").write_text("damaged\n")
    with pytest.warns(PlainWarning, match="not compared: .*fedavg-seed1"):
        assert explain(own)["verdict"][1:] == found[1:2]


def test_a_comparison_ends_with_what_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [
        run(tmp_path / "cfl", "cfl", {0: 0.9, 1: 0.8}, {0: 1.0, 1: 0.9}),
        run(tmp_path / "fedavg", "fedavg", {0: 0.2, 1: 0.3}, {0: 0.1, 1: 0.2}),
    ]
    told = coterie.compare(folders).verdict().splitlines()
    assert told[-1].startswith("Use cfl for all clients: ")
    assert any("the mean accuracy of cfl is 0.800 higher" in sentence for sentence in told)
    assert main(["compare", *map(str, folders)]) == 0
    assert "Use cfl for all clients" in capsys.readouterr().out
    assert "Use" not in coterie.compare(folders[:1]).verdict()
    assert main(["compare", str(folders[0])]) == 0
    assert "Use" not in capsys.readouterr().out


def test_without_tests_there_is_nothing_to_compare(tmp_path: Path) -> None:
    lines = [line(1, [[0], [1]], tested=False)]
    folders = [write(tmp_path / f"{name}-seed0", lines, name) for name in ("fedavg", "cfl")]
    shown = document(folders)["verdicts"]
    assert [(one["better"], one["use"], one["table"]) for one in shown] == [([], "", None)]
    assert shown[0]["left_out"].endswith("in common: cfl.") or shown[0]["left_out"].endswith(
        "in common: fedavg."
    )
    assert explain(folders[1])["verdict"] == ["cfl found 2 groups: client 0 | client 1."]
    assert explain(folders[1], client=0)["verdict"] == []


def test_a_worst_client_of_a_few_rows_is_chance(tmp_path: Path) -> None:
    accuracies = dict.fromkeys(range(4), 0.5)
    few = [
        run(tmp_path / f"{tests}-{method}", method, accuracies, tests=tests)
        for tests in (1, 4, 5)
        for method in ("cfl", "fedavg")
    ]
    sentence = "4 of 4 clients have fewer than 5 test rows, so the worst client is mostly chance: "
    for folders, size in ((few[:2], "1 row"), (few[2:4], "4 rows")):
        said = verdict(contest(*folders))["warnings"]
        assert any(text.startswith(f"{sentence}0 ({size}), 1 ({size})") for text in said)
        assert coterie.summary(folders[0])["few_tests"] == [0, 1, 2, 3]
        compared = coterie.compare(folders)
        assert [entry["few_tests"] for entry in compared] == [4, 4]
        assert "0.500*" in shown_table(compared)
    said = verdict(contest(*few[4:]))["warnings"]
    assert not any("mostly chance" in text for text in said)
    assert coterie.summary(few[4])["few_tests"] == []
    assert "mostly chance" not in shown_table(coterie.compare(few[4:]))


def test_personal_models_are_counted_in_comparisons(tmp_path: Path) -> None:
    folders = []
    for method in ("auto", "fedavg"):
        made = line(1, [[0, 1, 2]])
        if method == "auto":
            made["personal"] = [0, 2]
        folders.append(write(tmp_path / method, [made], method, tests=[24] * 3))
    compared = coterie.compare(folders)
    assert [entry["personal"]["mean"] for entry in compared] == [2, 0]
    assert "2 of 3" in shown_table(compared)
    assert "models" not in shown_table(compared[1:])


def shown_table(compared: Sequence[Any]) -> str:
    """The table as a terminal shows it."""
    stream = io.StringIO()
    terminal.console(stream).print(terminal.comparison(compared))
    return stream.getvalue()
