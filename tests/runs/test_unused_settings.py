"""Settings that another setting switches off: each is said, in one sentence, and none where nothing was set."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.core import Training
from coterie.data.scenario import SCENARIO_PARTS, SCENARIOS, Scenario
from coterie.methods import CFL, METHODS
from coterie.methods._presets import presets_of
from coterie.records.record import Record
from coterie.robust import Robust
from coterie.runs.experiment import own
from coterie.runs.run import Caution
from coterie.runs.unused_settings import unused_settings
from coterie.settings import SettingError

IID = SCENARIOS["digits/iid"]


def said(scenario: Scenario = IID, method: str = "fedavg", rounds: int = 40, **tables: Any) -> str:
    """The one sentence about these settings."""
    (sentence,) = unused_settings(scenario, [coterie.methods.made(method)], rounds, **tables)
    return sentence


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"attack": "sign-flip"}, "attack = sign-flip", "adversaries = 0: set adversaries above 0"),
        ({"period": 5}, "period = 5", "drift = none: set drift to another value"),
        ({"join_round": 3}, "join_round = 3", "newcomers = 0: set newcomers above 0"),
        (
            {"alpha": 0.1},
            "alpha = 0.1",
            "partition = iid: it is for partition = dirichlet or quantity",
        ),
        ({"angles": (0, 90)}, "angles = [0, 90]", "shift = none: it is for shift = rotation"),
        ({"groups": 3}, "groups = 3", "shift = none and partition = iid"),
    ],
)
def test_settings_of_a_scenario(changes: dict[str, Any], name: str, reason: str) -> None:
    sentence = said(replace(IID, **changes))
    assert sentence.startswith(f"the setting Scenario.{name} has no effect with {reason}")


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        ("timed", {"buffer": 5}, "mode = rounds: it is for mode = buffered"),
        ("fedopt", {"optimizer": "momentum", "tau": 0.1}, "optimizer = momentum"),
        ("ifca", {"step_size": 0.3}, "averaging = models: it is for averaging = gradients"),
        ("cfl", {"split_rounds": (3,), "eps1": 0.1}, "split_rounds = [3]"),
        (
            "hcct",
            {"one_shot": True, "memory": 0.5},
            "one_shot = true: set one_shot to another value",
        ),
    ],
)
def test_settings_of_a_method(method: str, changes: dict[str, Any], reason: str) -> None:
    made = METHODS[method](**changes)
    (sentence,) = unused_settings(IID, [made], 40)
    changed_name = list(changes)[-1]
    assert sentence.startswith(f"the setting {method}.{changed_name} = ")
    assert f" has no effect with {reason}" in sentence
    # Also where another method runs it.
    assert unused_settings(IID, [METHODS["tuned"](method=made)], 40) == [sentence]


def test_settings_of_the_other_tables() -> None:
    assert "trim = 0.3 has no effect with mean = mean" in said(robust=Robust(trim=0.3))
    assert "share = 0.2 has no effect with compress = none" in said(boundary=Boundary(share=0.2))
    assert "epochs = 4 has no effect with steps = 3" in said(training=Training(steps=3, epochs=4))
    momentum = Training(optimizer="adam", momentum=0.9)
    assert "momentum = 0.9 has no effect with optimizer = adam" in said(training=momentum)
    assert "where fedprox.mu stands in its place" in said(
        method="fedprox", training=Training(proximal=0.1)
    )
    assert said(data="files") == (
        "the setting data = files has no effect: the data set digits reads no files"
    )


def test_limits_on_single_clients_where_masks_hide_them() -> None:
    hostile = Robust(hostile=2)
    assert said(boundary=Boundary(masks=True), robust=hostile) == (
        "the setting robust.hostile = 2 has no effect with boundary.masks = true: the server sees sums over clients, and "
        "no single client"
    )
    # Without masks the server limits single clients before it adds up.
    for name in ("fedavg", "split-half-sums"):
        assert unused_settings(IID, [METHODS[name]()], 40, robust=hostile) == []
    assert "bound = 2 has no effect with masks = false" in said(boundary=Boundary(bound=2.0))
    assert unused_settings(IID, [], 40, boundary=Boundary(masks=True, bound=2.0)) == []


def test_what_comes_after_the_last_round_is_said() -> None:
    assert said(method="flhc", rounds=10) == (
        "the setting flhc.warmup = 10 is too late for 10 rounds: the clustering would be in round 11"
    )
    assert unused_settings(IID, [METHODS["flhc"]()], 11) == []
    # Of several rounds, the first one counts.
    late_splits = [CFL(split_rounds=(7, 5))]
    assert unused_settings(IID, late_splits, 4) == [
        "the setting cfl.split_rounds = [7, 5] is too late for 4 rounds: the first split would be in round 5"
    ]
    assert unused_settings(IID, late_splits, 5) == []
    drifting = SCENARIOS["fashion/drift"]
    assert "the first change is in round 101 (period = 100)" in said(drifting, rounds=100)
    assert unused_settings(drifting, [], 101) == []


def test_nothing_is_said_of_what_nobody_set() -> None:
    long_run = 1000
    for scenario in SCENARIOS.values():
        assert unused_settings(scenario, [], long_run, training=scenario.training) == []
    for method in METHODS.values():
        assert unused_settings(IID, [method()], long_run) == []
        for preset in presets_of(method).values():
            assert unused_settings(IID, [method(**preset)], long_run) == []
    # A named scenario's own settings stay unsaid where the user switches off what they belong to.
    permuted = SCENARIOS["digits/label-permutation"]
    assert unused_settings(replace(permuted, shift="none", groups=permuted.groups), [], 40) == []
    assert unused_settings(coterie.from_lists, [], 40) == []


def test_named_scenarios_set_nothing_without_effect() -> None:
    for name, scenario in SCENARIOS.items():
        # As if the user had set it all.
        bare = replace(scenario)
        object.__setattr__(bare, "base_name", "")
        assert unused_settings(bare, [], 1000, training=scenario.training) == [], name


def test_each_condition_names_a_setting_and_values_that_it_can_have() -> None:
    parts = [*SCENARIO_PARTS.values(), *METHODS.values(), Training, Boundary, Robust]
    num_conditions = 0
    for settings in parts:
        fields = {field.name: field for field in dataclasses.fields(settings)}
        for field in fields.values():
            for key in ("only_with", "not_with"):
                for name, values in field.metadata.get(key, {}).items():
                    choices = fields[name].metadata["limits"].get("choices")
                    assert choices is None or set(values) <= set(choices), (settings, field.name)
                    num_conditions += 1
    assert num_conditions > 50


def test_python_the_record_and_the_command_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(IID, clients=3, samples=20, attack="sign-flip")
    expected = "the setting Scenario.attack = sign-flip has no effect with adversaries = 0"
    with pytest.warns(Caution, match=expected):
        next(iter(coterie.run("fedavg", small, rounds=1, workers=1)))
    with pytest.warns(Caution, match=expected):
        runs = coterie.begin(own(small, ["fedavg"], rounds=1, workers=1), tmp_path / "begun")
    runs.finish()
    (recorded,) = Record(runs[0].folder).description()["world"]["cautions"]
    assert recorded.startswith(expected)
    options = ["--scenario=digits/iid", "--set=clients=3", "--set=samples=20", "--set=period=4"]
    options += ["--method=fedavg", "--rounds=1", "--workers=1", f"--out={tmp_path / 'run'}"]
    assert main(["run", *options]) == 0
    printed = capsys.readouterr()
    expected = "the setting Scenario.period = 4 has no effect with drift = none"
    assert f"coterie: {expected}" in printed.err
    assert expected[1:] in printed.out  # again with the verdict


def test_a_target_that_no_run_can_reach_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--rounds=1", "--target=95", f"--out={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err == (
        "coterie: Experiment.target 95 can never be reached: accuracy is at most 1; write 0.95\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_method_twice_with_the_same_settings_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingError, match="has fedavg twice with the same settings"):
        own(IID, ["fedavg", METHODS["fedavg"]()])
    assert len(own(IID, ["fedavg", METHODS["fedavg"](fraction=0.5)]).methods) == 2
    for command in ("run", "tune"):
        assert main([command, "--method=fedavg", "--method=cfl", "--method=fedavg"]) == 2
        assert "--method fedavg is given twice: give it once" in capsys.readouterr().err


def test_python_checks_the_number_of_hostile_clients_too() -> None:
    with pytest.raises(SettingError, match="less than half of the 20 clients, got 10"):
        next(iter(coterie.run("fedavg", IID, rounds=1, robust={"hostile": 10})))


def test_the_server_of_a_federation_says_it_once_and_records_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A strategy said nothing of settings without effect, which a simulation says."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flowered import Here, a_run, app_of, strategy_of
    from small import world

    caplog.set_level(logging.INFO, "flwr.coterie")
    tried = world((0, 1, 2))
    method = CFL(split_rounds=(5,), eps1=0.1)
    sentences = unused_settings(None, [method], 2, training=tried.training)
    assert len(sentences) == 2, sentences
    # Both for a new run and for one that has all its rounds.
    for _ in range(2):
        caplog.clear()
        with a_run():
            strategy_of(method, tried, out=tmp_path / "run").start(
                Here(app_of(tried), 3), num_rounds=2
            )
        warned = [record.message for record in caplog.records if "the setting" in record.message]
        assert warned == sentences
    assert Record(tmp_path / "run").description()["world"]["cautions"] == sentences
    # Who reads the run sees it, too.
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for sentence in sentences:
        assert sentence[1:] in printed
