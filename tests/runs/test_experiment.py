"""Experiments as values and as files; ``run`` in Python; what is said about mistakes; summaries and comparisons."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
import page_runs
from coterie.cli import main
from coterie.core import Training
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.methods import CFL, FLHC, FedAvg
from coterie.records.record import Record
from coterie.records.text_files import to_toml
from coterie.report.compared import compare
from coterie.report.setting_differences import unequal
from coterie.report.summary import agreement, expand, interval, summary
from coterie.runs.experiment import Experiment, make, normal, own, read
from coterie.runs.folders import begin, reopen
from coterie.runs.run import run
from coterie.runs.set_option import assign
from coterie.settings import SettingError, UserError
from refusals import refuses

SMALL: dict[str, Any] = {
    "scenario": {"name": "digits/label-permutation", "clients": 4, "groups": 2},
    "training": {"epochs": 1},
    "rounds": 2,
    "workers": 1,
}


# -- files
# ----------------------------------------------------------------------------------------------------------------


def test_an_empty_file_is_the_demonstration() -> None:
    experiment = make({})
    assert experiment.scenario == "digits/label-permutation"
    assert [method.name for method in experiment.methods] == ["fedavg", "auto"]
    assert experiment.setup == SCENARIOS["digits/label-permutation"]
    assert experiment.training == experiment.setup.training
    assert (experiment.rounds, experiment.seeds) == (40, (0,))


def test_a_file_with_everything(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("""
        methods = ["fedavg", {name = "flhc", groups = 4, threshold = "none"}]
        rounds = 7
        seeds = 3
        target = 0.9
        [scenario]
        name = "digits/label-swap"
        clients = 10
        [training]
        lr = 1
    """)
    experiment = make(read(path))
    assert experiment.methods == (FedAvg(), FLHC(groups=4, threshold=None))
    assert experiment.setup == dataclasses.replace(SCENARIOS["digits/label-swap"], clients=10)
    assert experiment.training == dataclasses.replace(
        SCENARIOS["digits/label-swap"].training, lr=1.0
    )
    assert (experiment.rounds, experiment.seeds, experiment.target) == (7, (0, 1, 2), 0.9)


@given(
    eps1=st.floats(0, 1e300), rounds=st.none() | st.lists(st.integers(1, 99), min_size=1).map(tuple),
    clip=st.none() | st.floats(1e-300, 1e300), clients=st.integers(1, 10**7), samples=st.none() | st.integers(1, 50),
    seeds=st.sets(st.integers(0, 2**60), min_size=1).map(tuple), target=st.none() | st.floats(0.1, 1),
)  # fmt: skip
def test_what_is_written_reads_as_the_same_experiment(
    eps1: float, rounds: Any, clip: Any, clients: int, samples: Any, seeds: Any, target: Any
) -> None:
    experiment = make(
        {
            "scenario": {
                "name": "digits/label-swap",
                "clients": clients,
                "samples": "none" if samples is None else samples,
            },
            "methods": [{"name": "cfl", "eps1": eps1, "split_rounds": rounds}, "independent"],
            "training": {"clip": clip},
            "seeds": list(seeds),
            **({} if target is None else {"target": target}),
        }
    )
    assert make(tomllib.loads(to_toml(experiment.spec()))) == experiment


def test_every_preset_and_every_method_survives_being_written() -> None:
    for name in SCENARIOS:
        experiment = make({"scenario": name, "methods": list(coterie.METHODS)})
        assert make(tomllib.loads(to_toml(experiment.spec()))) == experiment


def test_a_runs_own_file_is_an_experiment_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    experiment = make({**SMALL, "methods": [{"name": "cfl", "eps1": 0.25}], "seed": 3})
    (run,) = begin(experiment, tmp_path / "run")
    assert make(read(tmp_path / "run" / "run.toml")) == run.experiment == experiment
    description = Record(tmp_path / "run").description()
    assert set(description["versions"]) == {"coterie", "torch", "numpy", "python"}
    assert description["world"]["clients"] == [0, 1, 2, 3]
    assert sorted(c for group in description["world"]["true_groups"] for c in group) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        ({"roundz": 3}, ["'roundz'", "did you mean rounds?"]),
        (
            {"scenario": "digits/label-permutations"},
            ["'digits/label-permutations'", "did you mean"],
        ),
        (
            {"scenario": {"name": "digits/iid", "cliens": 3}},
            ["Scenario", "'cliens'", "did you mean clients?"],
        ),
        ({"scenario": {"name": "digits/iid", "training": {}}}, ["own table", "[training]"]),
        ({"scenario": {"clients": 3}}, ["scenario", "name"]),
        ({"methods": ["fedavgg"]}, ["'fedavgg'", "did you mean fedavg?"]),
        ({"methods": "fedavg"}, ["methods", "list"]),
        ({"methods": []}, ["at least one method"]),
        ({"methods": [{"name": "cfl", "esp1": 1}]}, ["CFL", "'esp1'", "did you mean eps1?"]),
        ({"methods": [{"name": "cfl", "eps1": "big"}]}, ["CFL.eps1", "'big'", "number"]),
        ({"methods": [{"name": "cfl", "eps1": -0.1}]}, ["CFL.eps1", "-0.1", ">= 0"]),
        ({"training": {"lr_": 1}}, ["training", "'lr_'", "did you mean lr"]),
        ({"training": {"batch": 1.5}}, ["Training.batch", "1.5", "integer"]),
        ({"training": 3}, ["training", "table"]),
        ({"rounds": 0}, ["Experiment.rounds", "got 0", ">= 1"]),
        ({"rounds": "many"}, ["Experiment.rounds", "'many'", "integer"]),
        ({"seeds": [1, 1]}, ["at least one", "different"]),
        ({"seeds": 0}, ["at least one"]),
        ({"seed": 1, "seeds": 2}, ["seed and seeds"]),
        ({"target": True}, ["Experiment.target", "True", "number or none"]),
    ],
)
def test_mistakes_in_a_file_are_told_with_setting_and_value(
    document: dict[str, Any], parts: list[str]
) -> None:
    with refuses(*parts):
        make(document)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml cannot be read: no such file"):
        read(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match=r"bad\.toml is not a readable TOML file"):
        read(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text("schema = 99")
    with pytest.raises(UserError, match="schema version 99"):
        read(tmp_path / "bad.toml")


# -- --set
# ----------------------------------------------------------------------------------------------------------------


def changed(text: str, **spec: Any) -> Experiment:
    return make(assign(normal({"methods": ["fedavg", "cfl"], **spec}), text))


def test_a_setting_is_found_by_its_bare_name() -> None:
    assert changed("eps1=0.3").methods == (FedAvg(), CFL(eps1=0.3))
    assert changed("lr=0.5").training.lr == 0.5
    assert changed("shift=none").setup.shift.kind == "none"
    assert changed("split_rounds=[3, 5]").methods[1].split_rounds == (3, 5)
    assert changed("clip=none", training={"clip": 1.0}).training.clip is None
    assert changed("eval_every = 5").eval_every == 5


def test_a_setting_is_found_by_its_dotted_name() -> None:
    assert [m.fraction for m in changed("method.fraction=0.5").methods] == [0.5, 0.5]
    assert [m.fraction for m in changed("cfl.fraction=0.5").methods] == [1.0, 0.5]
    assert changed("scenario.clients=8").setup.clients == 8
    assert changed("training.steps=9").training.steps == 9
    assert changed("experiment.rounds=2").rounds == 2


DIRICHLET = {"scenario": {"name": "digits/dirichlet", "partition": {"alpha": 0.1, "least": 3}}}


@pytest.mark.parametrize("key", ["scenario.partition.alpha", "scenario.alpha", "alpha"])
@pytest.mark.parametrize("spec", [{"scenario": "digits/dirichlet"}, DIRICHLET])
def test_a_setting_of_a_part_is_found_with_and_without_its_part(
    key: str, spec: dict[str, Any]
) -> None:
    partition = changed(f"{key}=0.3", **spec).setup.partition
    assert (partition.kind, partition.alpha) == ("dirichlet", 0.3)
    assert partition.least == (3 if spec == DIRICHLET else 10)


@pytest.mark.parametrize("key", ["scenario.partition.kind", "scenario.partition", "partition"])
def test_the_main_setting_of_a_part_has_three_names(key: str) -> None:
    partition = changed(f"{key}=quantity", **DIRICHLET).setup.partition
    assert (partition.kind, partition.alpha, partition.least) == ("quantity", 0.1, 3)


def test_the_later_of_two_names_of_a_setting_wins() -> None:
    spec = normal({"methods": ["fedavg"], "scenario": "digits/dirichlet"})
    keys = ("scenario.partition.alpha", "alpha")
    for first, second in (keys, keys[::-1]):
        twice = assign(assign(spec, f"{first}=0.1"), f"{second}=0.2")
        assert make(twice).setup.partition.alpha == 0.2


def test_a_part_takes_a_table() -> None:
    given = 'scenario.partition={alpha = 0.3, kind = "quantity"}'
    partition = changed(given, **DIRICHLET).setup.partition
    assert (partition.kind, partition.alpha, partition.least) == ("quantity", 0.3, 3)
    assert changed("scenario.holdout={samples = 50}").setup.holdout.samples == 50
    given = 'scenario.dataset={examples = 500, name = "synthetic"}'
    dataset = changed(given, scenario={"name": "digits/iid", "model": "linear"}).setup.dataset
    assert (dataset.name, dataset.examples) == ("synthetic", 500)
    assert changed("scenario.dataset.name=synthetic").setup.dataset.name == "synthetic"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("eps1", ["--set", "'eps1'", "key=value"]),
        ("=3", ["--set", "key=value"]),
        ("esp1=1", ["'esp1'", "did you mean eps1?"]),
        ("cfl.esp1=1", ["cfl", "'esp1'", "did you mean eps1?"]),
        ("clf.eps1=1", ["'clf'", "did you mean cfl?"]),
        ("flhc.warmup=1", ["flhc", "methods of this run"]),
        ("qqqq=1", ["coterie methods NAME", "coterie scenarios NAME"]),
        ("scenario.partition.alfa=1", ["scenario.partition", "'alfa'", "did you mean alpha?"]),
        ("scenario.dataset.examples=1", ["scenario.dataset", "'examples'"]),
        ("scenario.partition={alfa = 1}", ["scenario.partition", "'alfa'"]),
        ("scenario.partitio.alpha=1", ["'scenario.partitio'"]),
        ("partition.alpha=1", ["'partition'", "did you mean scenario.partition.alpha?"]),
    ],
)
def test_mistakes_in_set_are_told_with_key_and_value(text: str, parts: list[str]) -> None:
    with refuses(*parts, error=SettingError):
        changed(text)


def test_a_name_of_two_kinds_is_ambiguous() -> None:
    with pytest.raises(
        SettingError, match=r"groups is ambiguous: write flhc\.groups or scenario\.groups"
    ):
        changed("groups=4", methods=["fedavg", "flhc"])


@pytest.mark.usefixtures("capsys")
def test_a_scenario_changed_by_replace_is_recorded_by_its_name_and_settings(tmp_path: Path) -> None:
    # Any scenario of the registry keeps its name, and its description stays.
    for name, scenario in SCENARIOS.items():
        changed_scenario = dataclasses.replace(
            dataclasses.replace(scenario, silent=0.1), silent=0.2
        )
        experiment = own(changed_scenario, "fedavg")
        assert (experiment.scenario, experiment.setup) == (name, changed_scenario)
        assert make(experiment.spec()).setup == changed_scenario
    # A scenario from nothing has the name of the one that is most like it.
    like_digits = Scenario(partition="dirichlet", alpha=0.2, clients=5)
    assert own(like_digits, "fedavg").scenario == "digits/dirichlet"
    # Two values are two scenarios for comparisons, and records continue and start anew by a command.
    for alpha in (0.1, 5.0):
        scenario = dataclasses.replace(SCENARIOS["digits/dirichlet"], alpha=alpha, clients=6)
        folder = tmp_path / f"alpha-{alpha}"
        coterie.begin(scenario, folder, ["fedavg"], rounds=1, workers=1).finish()
    (run,) = coterie.reopen(tmp_path / "alpha-0.1")
    assert run.experiment.setup == dataclasses.replace(
        SCENARIOS["digits/dirichlet"],
        alpha=0.1,
        clients=6,
    )
    recorded_file = str(tmp_path / "alpha-0.1" / "run.toml")
    folder = str(tmp_path / "cfl")
    assert main(["run", recorded_file, "--method", "cfl", "--workers", "1", "--out", folder]) == 0
    compared = coterie.compare([tmp_path / "alpha-0.1", tmp_path / "alpha-5.0", folder])
    assert [entry["scenario_settings"]["alpha"] for entry in compared] == [0.1, 5.0, 0.1]
    with pytest.raises(
        UserError, match=r"digits/dirichlet, alpha 0.1; digits/dirichlet, alpha 5.0"
    ):
        compared.to_table()
    verdicts = compared.verdict().splitlines()
    assert verdicts.count("digits/dirichlet, alpha 0.1:") == 1
    assert verdicts.count("digits/dirichlet, alpha 5.0:") == 1


# -- running
# --------------------------------------------------------------------------------------------------------------


def test_run_takes_names_or_objects() -> None:
    scenario = dataclasses.replace(SCENARIOS["digits/label-permutation"], clients=4, groups=2)
    training = Training(lr=0.1, batch=10)
    by_scenario = list(run("cfl", scenario, rounds=2, workers=1, training=training))
    by_world = list(run(CFL(), scenario.build(0), rounds=2, workers=1, training=training))
    assert [r.number for r in by_scenario] == [1, 2]
    assert [r.scores for r in by_scenario] == [r.scores for r in by_world]
    start = by_scenario[0].position
    (last,) = run("cfl", scenario, rounds=2, workers=1, training=training, start=start)
    assert last.scores == by_scenario[1].scores


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"method": "clf"}, ["'clf'", "did you mean cfl?"]),
        ({"scenario": "digits/idd"}, ["'digits/idd'", "did you mean digits/iid?"]),
        ({"rounds": 0}, ["rounds", "got 0", ">= 1"]),
        ({"seed": -1}, ["seed", "got -1", ">= 0"]),
    ],
)
def test_run_refuses_mistakes_before_the_first_round(
    arguments: dict[str, Any], parts: list[str]
) -> None:
    with refuses(*parts):
        run(**{"method": "cfl", "scenario": "digits/iid", "rounds": 1, **arguments})


def test_public_names() -> None:
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
    assert set(coterie.__all__) <= set(dir(coterie))
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        coterie.runn  # noqa: B018


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"not an empty folder; choose another$"):
        begin(make(SMALL), tmp_path)
    begin(make(SMALL), tmp_path / "run")
    with pytest.raises(UserError, match="run"):
        begin(make({**SMALL, "rounds": SMALL["rounds"] + 1}), tmp_path / "run")


def test_a_mistake_that_only_the_data_show_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        begin(
            make({**SMALL, "scenario": {"name": "digits/iid", "clients": 100_000}}),
            tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_folders_that_are_no_run_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has neither run\.toml nor experiment\.toml"):
        reopen(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        reopen(tmp_path / "absent")
    with pytest.raises(UserError, match="is not a run directory"):
        summary(tmp_path)
    with pytest.raises(UserError, match="is not a run directory and contains none"):
        compare([tmp_path])


def test_runs_are_found_in_the_folders_of_a_folder(tmp_path: Path) -> None:
    lines = [page_runs.line(1, [[0, 1]])]
    for name in ("one", "two"):
        page_runs.write(tmp_path / "paper" / name / "seed0", lines)
    found = expand(tmp_path / "paper")
    assert [path.parent.name for path in found] == ["one", "two"]
    # A link may not lead out of the folder.
    page_runs.write(tmp_path / "elsewhere" / "seed0", lines)
    (tmp_path / "paper" / "three").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="link"):
        expand(tmp_path / "paper")


# -- results
# --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each."""
    folder = tmp_path_factory.mktemp("experiment") / "all"
    methods = ["fedavg", {"name": "cfl", "split_rounds": [2]}]
    for one in begin(make({**SMALL, "methods": methods, "seeds": 2, "eval_every": 2}), folder):
        for _ in one.rounds():
            pass
    return folder


def test_a_summary_is_a_fold_over_the_records(folder: Path) -> None:
    found = summary(folder / "cfl-seed1")
    first, last = Record(folder / "cfl-seed1").lines()
    assert (first["tested"], last["tested"]) == (False, True)
    assert {k: found[k] for k in ("method", "scenario", "seed", "rounds", "finished")} == {
        "method": "cfl",
        "scenario": "digits/label-permutation",
        "seed": 1,
        "rounds": 2,
        "finished": True,
    }
    assert found["settings"]["split_rounds"] == [2]
    assert len(found["groups"]) == len(found["true_groups"]) == 2
    assert found["ari"] == agreement(found["groups"], found["true_groups"])
    values = [last["clients"][str(client)]["accuracy"] for client in range(4)]
    assert found["accuracy"]["per_client"] == dict(zip("0123", values, strict=True))
    assert found["accuracy"]["mean"] == pytest.approx(sum(values) / 4)
    assert found["accuracy"]["std"] == pytest.approx(np.std(values))
    assert found["accuracy"]["worst"] == min(values)
    assert found["bytes_up"] == first["bytes_up"] + last["bytes_up"] > 0
    assert found["exchanges"] == 2
    assert found["seconds"] > 0
    assert found["run_dir"] == str(folder / "cfl-seed1")


def test_seeds_are_compared_by_method(folder: Path) -> None:
    cfl, fedavg = compare([folder, folder / "cfl-seed0"])
    assert (cfl["method"], fedavg["method"]) == ("cfl", "fedavg")
    assert cfl["seeds"] == fedavg["seeds"] == [0, 1]
    means = [summary(folder / f"cfl-seed{seed}")["accuracy"]["mean"] for seed in (0, 1)]
    # Two seeds have a standard deviation, and no interval that would say something.
    assert cfl["accuracy"]["mean"] == pytest.approx(sum(means) / 2)
    assert cfl["accuracy"]["sd"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    assert cfl["accuracy"]["values"] == means
    no_interval = {"low": None, "high": None}
    assert cfl["groups"] == {"mean": 2.0, **no_interval, "sd": 0.0, "values": [2, 2]}
    table = compare(folder).to_pandas(each_seed=True)
    assert list(table["seed"]) == [0, 1, 0, 1]
    assert list(table["accuracy"][:2]) == means
    assert list(compare(folder).to_pandas()["accuracy sd"]) == pytest.approx(
        [cfl["accuracy"]["sd"], compare(folder)[1]["accuracy"]["sd"]]
    )
    assert cfl["std"]["mean"] == pytest.approx(
        sum(summary(folder / f"cfl-seed{seed}")["accuracy"]["std"] for seed in (0, 1)) / 2
    )
    assert (cfl["exchanges"]["mean"], cfl["evaluations"]["mean"]) == (2.0, 0.0)


def test_evaluations_are_what_clients_were_asked_to_measure(tmp_path: Path) -> None:
    methods = [
        {"name": "cfl", "fallback": True}
    ]  # which asks everyone for the loss of its one model
    (one,) = begin(make({**SMALL, "methods": methods}), tmp_path / "run")
    assert [done.evaluations for done in one.rounds()] == [4, 4]
    assert summary(tmp_path / "run")["evaluations"] == 8


@pytest.mark.slow
def test_other_settings_are_not_averaged_with_each_other(tmp_path: Path) -> None:
    base = {**SMALL, "rounds": 1, "methods": ["fedavg"]}
    others = {
        "settings": {"methods": [{"name": "fedavg", "weighting": "uniform"}]},
        "scenario_settings": {"scenario": {**SMALL["scenario"], "clients": 5}},
        "training": {"training": {"epochs": 2}},
        "boundary": {"boundary": {"clip": 2.0}},
        "robust": {"robust": {"mean": "median"}},
        "precision": {"precision": "bf16"},
        "eval_every": {"eval_every": 2},
        "limits": {"rounds": 2},
        "seed": {},
    }
    for name, changes in {
        "base": {"seed": 0},
        **others,
    }.items():  # runs of one seed would never be averaged
        (one,) = begin(make({**base, "seed": 1, **changes}), tmp_path / name)
        list(one.rounds())
    for name in others:
        found = compare([tmp_path / "base", tmp_path / name])
        assert len(found) == (1 if name == "seed" else 2), name
    assert unequal(compare([tmp_path / "base", tmp_path / "robust"]), ["a", "b"]) == [
        "mean mean (a), median (b)"
    ]


def test_tables_of_different_files_are_not_averaged(tmp_path: Path) -> None:
    rows = [f"{client},{x},{x % 2}" for client in "ab" for x in range(20)]
    spec = {
        "scenario": {"name": "table/clients", "client": "c", "target": "y"},
        "methods": ["fedavg"],
        "rounds": 1,
    }
    for seed, name in enumerate(("one", "two")):
        (tmp_path / f"{name}.csv").write_text("\n".join(["c,x,y", *rows]))
        list(
            begin(
                make({**spec, "seed": seed, "data": str(tmp_path / f"{name}.csv")}), tmp_path / name
            )[0].rounds()
        )
    assert len(compare([tmp_path / "one", tmp_path / "two"])) == 2


def test_a_run_stops_at_its_target(tmp_path: Path) -> None:
    (one,) = begin(
        make({**SMALL, "methods": ["independent"], "rounds": 50, "target": 0.3}), tmp_path / "run"
    )
    rounds = list(one.rounds())
    found = summary(tmp_path / "run")
    assert 1 <= len(rounds) < 50
    assert found["accuracy"]["mean"] >= 0.3
    assert found["finished"]
    assert one.finished()
    assert list(one.rounds()) == []


def test_a_run_without_rounds_has_no_summary(tmp_path: Path) -> None:
    begin(make({**SMALL, "methods": ["cfl"]}), tmp_path / "my run")
    # The command can be copied, although the path has a space.
    with pytest.raises(
        UserError, match=r"no completed round yet; to continue, run coterie resume '.*/my run'$"
    ):
        summary(tmp_path / "my run")


def test_intervals() -> None:
    assert interval([0.5]) == {"mean": 0.5, "low": None, "high": None}
    assert interval([0.5, None])["mean"] is None
    assert interval([])["mean"] is None
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)  # t of 4 degrees of freedom, s² = 10 / 4
    assert found["low"] == pytest.approx(3 - half)
    assert found["high"] == pytest.approx(3 + half)


def test_agreement_needs_the_truth_about_the_same_clients() -> None:
    assert agreement([[5, 3], [9]], [[9], [3, 5]]) == 1.0
    assert agreement([[0, 1]], None) is None
    assert agreement([[0, 1]], [[0, 1, 2]]) is None


def test_records_are_mappings_of_plain_values(folder: Path) -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, Mapping):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        return (
            all(map(plain, value))
            if isinstance(value, list)
            else isinstance(value, (str, int, float, bool, type(None)))
        )

    for line in Record(folder / "cfl-seed0").lines():
        assert plain(line)
        assert set(line) - {"files"} == {
            "round",
            "exchange",
            "exchanges",
            "tested",
            "groups",
            "clients",
            "notes",
            "asked",
            "answered",
            "refused",
            "silent",
            "bytes_up",
            "bytes_down",
            "evaluations",
            "seconds",
        }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"newcomers": 2, "join_round": 3},
            r"Scenario\.join_round 3 is after the last round, 2: no client would join",
        ),
        (
            {"leavers": 1, "leave": [3, 4]},
            r"Scenario\.leave \[3, 4\] is after the last round, 2: no client would leave",
        ),
    ],
)
def test_clients_that_would_never_join_or_leave_are_refused_before_anything_is_written(
    tmp_path: Path, changes: Any, said: str
) -> None:
    scenario = {**SMALL["scenario"], **changes}
    with pytest.raises(SettingError, match=said):
        begin(make({**SMALL, "scenario": scenario, "methods": ["fedavg"]}), tmp_path / "late")
    assert not list(tmp_path.iterdir())
    begin(
        make({**SMALL, "scenario": scenario, "methods": ["fedavg"], "rounds": 3}),
        tmp_path / "in-time",
    )


def test_agreement_of_a_run_is_over_the_clients_that_are_there(tmp_path: Path) -> None:
    scenario = {**SMALL["scenario"], "clients": 6, "newcomers": 2, "join_round": 2}
    one = begin(
        make({**SMALL, "scenario": scenario, "methods": ["independent"]}), tmp_path / "run"
    )[0]
    rounds = one.rounds()
    there = next(rounds).assignment.groups  # type: ignore[attr-defined]
    rounds.close()  # type: ignore[attr-defined]
    found = summary(tmp_path / "run")
    assert len(there) == 4
    truth = [[c for c in group if (c,) in there] for group in found["true_groups"]]
    assert found["ari"] == agreement(there, [group for group in truth if group]) is not None
    for done in one.rounds():
        assert len(done.assignment.groups) == 6
    found = summary(tmp_path / "run")
    assert found["ari"] == agreement(found["groups"], found["true_groups"]) is not None
