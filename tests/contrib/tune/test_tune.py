"""Tuning: spaces from limits, equal trials, validation scores alone, stopping, resuming, and what it writes."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.cli.arguments import Parser
from coterie.contrib.tune import proposing, tuning
from coterie.contrib.tune.command import options, run
from coterie.contrib.tune.judging import Judged, PlannedTrial, judge, without_tests, world_of
from coterie.contrib.tune.results import write_results
from coterie.contrib.tune.space import (
    Among,
    Between,
    given_range,
    given_values,
    own_space,
    spaces,
    with_settings,
)
from coterie.contrib.tune.tuning import carry_out, new_tuning, reopened, tune
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.methods import METHODS
from coterie.runs.experiment import Experiment, make, normal, read
from coterie.settings import SettingError, UserError

SMALL: dict[str, Any] = {
    "scenario": {"name": "digits/label-swap", "clients": 4, "samples": 40},
    "rounds": 4,
    "seeds": [0, 1],
}
GRID = ["flhc.threshold=0.8,1.6,3.2", "flhc.warmup=1,2"]


def call(*arguments: str) -> int:
    """``coterie tune`` with these arguments, without the entry point of an installed package."""
    parser = Parser()
    options(parser)
    return run(parser.parse_args(arguments))


def small_tuning(folder: Path, **changes: Any) -> tuning.Tuning:
    asked = {"trials": 6, "search": ["flhc.threshold=0.3:9", "flhc.warmup=1:3"], "workers": 1}
    return tune(SMALL["scenario"], ["flhc"], folder, **asked | changes, rounds=4, seeds=[0, 1])


def lines(folder: Path) -> list[dict[str, Any]]:
    """The record of the trials, without the time that they took."""
    rows = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    return [{**row, "seconds": 0} for row in rows]


# -- spaces
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(METHODS))
def test_the_values_of_a_space_are_within_the_limits(method: str) -> None:
    spec = normal({"methods": [method]})
    for key, values in own_space(METHODS[method]).items():
        ends = values.values if isinstance(values, Among) else (values.low, values.high)
        accepted = 0
        for end in ends:
            whole = isinstance(values, Between) and values.whole
            changed = with_settings(spec, {key: int(end) if whole else end})
            try:
                made = make(changed).methods[0]
            except SettingError:
                # Two settings may exclude each other; such settings are not proposed.
                continue
            assert getattr(made, key.rpartition(".")[2]) == pytest.approx(end)
            accepted += 1
        assert accepted


def test_spaces_follow_limits_and_defaults() -> None:
    assert own_space(METHODS["acfl"])["acfl.threshold"] == Between(-1, 1)
    assert own_space(METHODS["cfl"])["cfl.gamma_max"] == Between(0, pytest.approx(0.99))
    assert own_space(METHODS["flhc"])["flhc.threshold"] == Between(pytest.approx(0.3), 30, log=True)
    assert own_space(METHODS["knn-per"])["knn-per.neighbours"] == Between(
        2, 40, log=True, whole=True
    )
    assert own_space(METHODS["apfl"])["apfl.adapt"] == Among((False, True))
    assert own_space(METHODS["independent"]) == {}
    # What a round costs stays the same for all.
    assert not [
        key for name in METHODS for key in own_space(METHODS[name]) if key.endswith("fraction")
    ]


def test_ranges_and_values_of_the_user() -> None:
    assert given_range("a.b=1:9") == ("a.b", Between(1, 9, whole=True))
    assert given_range("lr=0.01:0.1") == ("lr", Between(0.01, 0.1, log=True))
    assert given_values("cfl.scale=relative,absolute") == (
        "cfl.scale", Among(("relative", "absolute")),
    )  # fmt: skip
    assert given_values("scenario.swaps=[[1, 7]]") is None
    for wrong in ("lr=1", "lr=2:1", "lr=a:b", "=1:2", "lr=0:inf"):
        with pytest.raises(SettingError, match="--range takes KEY=LOW:HIGH"):
            given_range(wrong)
    with pytest.raises(SettingError, match="must be different"):
        given_values("eps1=1,1")


# -- trials
# ------------------------------------------------------------------------------------------------------------------


def test_a_grid_tries_all_combinations_without_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposing.importlib.util, "find_spec", lambda name: None)
    result = small_tuning(tmp_path / "t", trials=None, search=GRID)
    tried = [trial.settings for trial in result.trials_of("flhc")]
    assert tried == [
        {"flhc.threshold": threshold, "flhc.warmup": warmup}
        for threshold in (0.8, 1.6, 3.2)
        for warmup in (1, 2)
    ]
    with pytest.raises(UserError, match="tune needs Optuna: pip install"):
        small_tuning(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_score_is_that_which_a_run_records_as_validation_score(tmp_path: Path) -> None:
    result = small_tuning(tmp_path / "t", trials=None, search=["flhc.threshold=1.6,3.2"])
    settings = make(with_settings(normal({**SMALL, "methods": ["flhc"]}), {"flhc.threshold": 3.2}))
    runs = coterie.begin(
        replace(settings, validation_share=0.2, workers=1), tmp_path / "runs"
    ).finish()
    recorded = coterie.compare(runs)[0]["validation_accuracy"]
    trial = result.trials_of("flhc")[1]
    assert trial.of_seeds == pytest.approx(recorded["values"])
    assert trial.score == pytest.approx(recorded["mean"])


def test_test_data_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_other_tests(world: World) -> World:
        """The same world with test labels that are all wrong, and twice as many of them."""
        clients = {}
        for client, data in world.clients.items():
            doubled = data.test.at(torch.arange(len(data.test)).repeat(2))
            wrong = replace(doubled, targets=(torch.as_tensor(doubled.targets) + 1) % 10)
            clients[client] = replace(data, test=wrong)
        return replace(world, clients=clients)

    plain_world = Experiment.world
    tables = {}
    for name, change in (("as-is", lambda world: world), ("wrong", with_other_tests)):
        tuning_world = lambda experiment, seed, change=change: change(plain_world(experiment, seed))  # noqa: E731
        monkeypatch.setattr(Experiment, "world", tuning_world)
        world_of.__globals__["_world"].cache_clear()
        small_tuning(tmp_path / name)
        tables[name] = lines(tmp_path / name)
    world_of.__globals__["_world"].cache_clear()
    assert tables["as-is"] == tables["wrong"]
    assert len(tables["wrong"]) == 6


def test_worlds_of_trials_have_no_test_rows() -> None:
    world = replace(SCENARIOS["digits/dirichlet"], clients=4, samples=40).build(0)
    judged = without_tests(world, 0.25, 0)
    for client, data in judged.clients.items():
        before = world.clients[client]
        rows = set(data.test.index.tolist())
        assert rows <= set(before.train.index.tolist())
        assert not rows & {*before.test.index.tolist(), *data.train.index.tolist()}
        assert not rows & set(data.validation.index.tolist())


def test_methods_have_equal_trials_and_the_first_ones_are_known_settings(tmp_path: Path) -> None:
    result = tune(
        SMALL["scenario"], ["flhc", "hcct", "independent"], tmp_path / "t",
        trials=5, workers=1, rounds=2,
    )  # fmt: skip
    counts = {method: len(result.trials_of(method)) for method in result.methods}
    assert counts == {"flhc": 5, "hcct": 5, "independent": 1}
    first, paper = result.trials_of("hcct")[:2]
    assert first.settings == {"hcct.tradeoff": 0.7, "hcct.cosines": "updates"}
    assert paper.settings == {"hcct.scale": "absolute", "hcct.tradeoff": 1.0, "hcct.memory": 0.0}
    settings = [json.dumps(trial.settings, sort_keys=True) for trial in result.trials_of("flhc")]
    assert len(set(settings)) == 5


@pytest.mark.slow  # processes
def test_the_same_trials_for_any_number_of_workers(tmp_path: Path) -> None:
    small_tuning(tmp_path / "one", workers=1)
    small_tuning(tmp_path / "two", workers=2)
    assert lines(tmp_path / "one") == lines(tmp_path / "two")


def test_an_interrupted_tuning_goes_on_with_the_same_trials(tmp_path: Path) -> None:
    small_tuning(tmp_path / "whole")

    class Stop(Exception):
        pass

    made = []

    def stop() -> None:
        made.append(1)
        if len(made) == 3:
            raise Stop

    with pytest.raises(Stop):
        small_tuning(tmp_path / "cut", progress=stop)
    trials_path = tmp_path / "cut" / "trials.jsonl"
    with trials_path.open("a") as trials_file:
        trials_file.write('{"method": "flhc", "num')  # a process was killed
    carry_out(reopened(tmp_path / "cut"), workers=1)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    # More trials are added to those that are there.
    more = carry_out(reopened(tmp_path / "cut", trials=8), workers=1)
    assert len(more.trials_of("flhc")) == 8
    assert lines(tmp_path / "cut")[:6] == lines(tmp_path / "whole")


def test_a_trial_below_the_bound_is_stopped_and_the_median_is_the_bound(tmp_path: Path) -> None:
    spec = normal({**SMALL, "methods": ["fedavg"], "eval_every": 1})
    whole = judge(PlannedTrial("fedavg", 0, {}), spec, 0.2, {})
    assert (whole.state, whole.rounds) == ("complete", 4)
    stopped = judge(PlannedTrial("fedavg", 1, {}), spec, 0.2, {2: 1.1})
    assert (stopped.state, stopped.rounds) == ("pruned", 2)
    assert stopped.curve == {number: whole.curve[number] for number in ("1", "2")}
    # A trial that is equal to the bound goes on, and none is stopped in its last round.
    assert (
        judge(PlannedTrial("fedavg", 2, {}), spec, 0.2, {2: whole.curve["2"], 4: 1.1}).rounds == 4
    )
    result = small_tuning(tmp_path / "t", trials=4)
    earlier = [
        Judged("flhc", number, {}, "complete", 0.5, curve={"2": score})
        for number, score in enumerate((0.1, 0.2, 0.6, 0.8))
    ]
    assert tuning._bounds(result, earlier, True) == {2: pytest.approx(0.4)}
    assert tuning._bounds(result, earlier[:3], True) == {}


def test_a_trial_whose_settings_do_not_fit_is_a_row_with_its_reason() -> None:
    spec = normal({**SMALL, "methods": [{"name": "flhc", "threshold": "none"}]})
    judged = judge(PlannedTrial("flhc", 0, {}), spec, 0.2, {})
    assert judged.state == "failed"
    assert judged.score is None
    assert "threshold" in judged.reason


# -- results
# ------------------------------------------------------------------------------------------------------------------


def test_the_command_writes_an_experiment_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    arguments = [
        "--scenario", "digits/label-swap", "--set", "scenario.clients=4", "--set", "scenario.samples=40",
        "--method", "flhc", "--method", "fedavg", "--rounds", "4", "--seeds", "2", "--workers", "1",
        "--set", "flhc.warmup=2", "--set", "flhc.threshold=0.8,1.6,3.2", "--out", str(folder),
    ]  # fmt: skip
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    assert f"coterie run {folder / 'tuned.toml'}" in shown
    assert "fedavg has no setting to search here, so it has one trial" in shown
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [row["flhc.threshold"] for row in rows if row["method"] == "flhc"] == [
        "0.8",
        "1.6",
        "3.2",
    ]
    best = max(
        (row for row in rows if row["method"] == "flhc"), key=lambda row: float(row["score"])
    )
    document = tomllib.loads((folder / "tuned.toml").read_text())
    assert document["seeds"] == [2, 3, 4, 5, 6]
    assert "eval_every" not in document
    assert document["methods"][0] == {
        "name": "flhc", "warmup": 2, "threshold": float(best["flhc.threshold"]),
    }  # fmt: skip
    make(read(folder / "tuned.toml"))
    # The same command, or its folder alone, has nothing left to do.
    assert call(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["methods"][0]["trials"] == 3
    assert call(str(folder), "--json") == 0


def test_the_rounds_of_tests_in_a_users_file_stay_in_the_tuned_one(tmp_path: Path) -> None:
    result = tune(
        SMALL["scenario"], "flhc", tmp_path / "t",
        search=["flhc.threshold=0.8,1.6"], workers=1, rounds=4, eval_every=2,
    )  # fmt: skip
    (path,) = write_results(result)
    assert tomllib.loads(path.read_text())["eval_every"] == 2
    # Trials are scored in the same rounds.
    assert list(result.trials_of("flhc")[0].curve) == ["2", "4"]


def test_methods_have_a_file_each_where_they_may_differ_in_training(tmp_path: Path) -> None:
    result = tune(
        SMALL["scenario"], ["fedavg", "independent"], tmp_path / "t",
        search=["training.lr=0.001,0.1"], workers=1, rounds=2,
    )  # fmt: skip
    # Whether or not the best values are the same.
    for best_of_independent in (0, 1):
        judged = {}
        for method, best_number in (("fedavg", 0), ("independent", best_of_independent)):
            trials = result.trials_of(method)
            judged[method] = {
                trial.number: replace(trial, score=float(trial.number == best_number))
                for trial in trials
            }
        files = write_results(replace(result, judged=judged))
        assert [path.name for path in files] == ["tuned-fedavg.toml", "tuned-independent.toml"]
        assert make(read(files[0])).training.lr == 0.001
        assert make(read(files[1])).training.lr == (0.1 if best_of_independent else 0.001)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "tune needs at least one --method M"),
        (["--method", "flhc", "--trials", "0"], "trials must be at least 1, got 0"),
        (["--method", "flhc", "--validation-share", "0.9"], "validation_share must be > 0 and <= 0.5"),
        (["--method", "flhc", "--range", "eps9=1:2"], "eps9"),
        (["--method", "flhc", "--range", "flhc.threshold=2:1"], "two numbers with LOW < HIGH"),
        (["--method", "flhk"], "did you mean flhc?"),
        (["--method", "flhc", "--set", "engine=ray"], "tune needs engine inprocess, got ray"),
        (["--method", "flhc", "--set", "experiment.target=0.9"], "tune takes no target"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences_before_a_file_is_written(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        call("--scenario", "digits/iid", "--out", str(tmp_path / "t"), *arguments)
    assert not (tmp_path / "t").exists()


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is no tuning"):
        small_tuning(tmp_path)
    small_tuning(tmp_path / "t", trials=4)
    with pytest.raises(UserError, match="has a tuning with another"):
        small_tuning(tmp_path / "t", trials=4, validation_share=0.3)
    with pytest.raises(UserError, match="has a tuning with 4 trials, got --trials 2"):
        small_tuning(tmp_path / "t", trials=2)


def test_a_method_of_the_users_own_is_tuned_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "method_package")
    place = "damped_fedavg:Damped"
    result = tune(SMALL["scenario"], [place], tmp_path / "t", trials=3, workers=1, rounds=2)
    assert result.methods == ["damped"]
    assert list(result.spaces["damped"])[-1] == "damped.damping"
    assert len(result.trials_of("damped")) == 3
    (path,) = write_results(result)
    made = make(read(path)).methods[0]
    best = result.best("damped")
    assert best is not None
    assert made.damping == best.settings["damped.damping"]


def test_the_command_is_registered() -> None:
    entry = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    commands = entry["entry-points"]["coterie.commands"]
    assert commands["tune"] == "coterie.contrib.tune.command:TUNE_COMMAND"


def test_a_value_that_no_trial_can_have_is_refused_before_the_first() -> None:
    spec = normal({"scenario": "synthetic/groups", "methods": ["fedavg"]})
    with pytest.raises(SettingError, match=r"--set training.lr=0.1,-1: Training.lr must be > 0"):
        spaces(spec, {"training.lr": Among((0.1, -1))})
    with pytest.raises(SettingError, match=r"Training.lr must be a number, got ''"):
        spaces(spec, {"training.lr": Among((0.1, ""))})
    # Values that fit only some values of another key are tried with these.
    searched = {
        "training.optimizer": Among(("sgd", "torch.optim:AdamW")),
        "training.momentum": Among((0.0, 0.9)),
    }
    assert spaces(spec, searched)["fedavg"] == searched


def test_whole_ends_of_a_range_are_numbers_where_the_setting_is_one() -> None:
    spec = normal({"scenario": "synthetic/groups", "methods": ["fedavg"]})
    _, ends = given_range("training.lr=0:1")
    assert not spaces(spec, {"training.lr": ends})["fedavg"]["training.lr"].whole
    _, ends = given_range("training.epochs=1:4")
    assert spaces(spec, {"training.epochs": ends})["fedavg"]["training.epochs"].whole


def test_settings_that_change_the_validation_examples_are_not_tuned(tmp_path: Path) -> None:
    spec = normal({"scenario": "synthetic/groups", "methods": ["fedavg"], "rounds": 1})
    tuned = {"scenario.clients": Among((10, 20))}
    with pytest.raises(SettingError, match=r"scenario\.clients changes the validation examples"):
        new_tuning(spec, tmp_path / "tuning", tuned, None, 0.2, True)
    assert not (tmp_path / "tuning").exists()
    model = {"scenario.model": Among(("linear", "mlp"))}
    new_tuning(spec, tmp_path / "tuning", model, None, 0.2, True)
