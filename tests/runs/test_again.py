"""A cell that is run twice: the same settings and data give the recorded runs, others an error that names the difference."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.report.explain import Explanation, words
from coterie.settings import UserError
from forged import change


def world(scale: float = 1.0) -> coterie.World:
    rng = np.random.default_rng(0)
    clients = [(rng.random((20, 3), "f") * scale, np.arange(20) % 2) for _ in range(4)]
    return coterie.from_lists(clients)


def cell(folder: Path, made: Any = None, methods: Any = ("fedavg", "cfl"), **settings: Any) -> Any:
    return coterie.begin(
        made or world(), folder, methods, **{"rounds": 2, "workers": 1, **settings}
    )


def test_a_finished_cell_that_is_run_again_gives_the_recorded_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = cell(tmp_path / "runs").finish()
    lines = [run.record.lines() for run in first]
    capsys.readouterr()
    again = cell(tmp_path / "runs").finish()
    assert [run.folder for run in again] == [run.folder for run in first]
    assert [run.record.lines() for run in again] == lines
    said = capsys.readouterr().err
    assert (
        said
        == f"coterie: {tmp_path / 'runs'} has these runs already, with the same settings: finished\n"
    )


def test_a_setting_that_an_older_record_lacks_had_its_default(tmp_path: Path) -> None:
    (run,) = cell(tmp_path / "runs", methods="fedavg").finish()
    change(run.folder, lambda text: text.replace("proximal = 0.0\n", ""))
    assert "proximal" not in (run.folder / "run.toml").read_text()
    assert cell(tmp_path / "runs", methods="fedavg")[0].finished()
    with pytest.raises(UserError, match=r"training\.proximal = 0\.0, and not 0\.1"):
        cell(tmp_path / "runs", methods="fedavg", training={"proximal": 0.1})


def test_an_unfinished_cell_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = cell(tmp_path / "whole", methods="fedavg").finish()
    (run,) = cell(tmp_path / "part", methods="fedavg")
    rounds = run.rounds()
    next(rounds)
    rounds.close()
    again = cell(tmp_path / "part", methods="fedavg")
    assert (
        "has this run already, with the same settings: continued after 1 recorded round"
        in capsys.readouterr().err
    )
    again.finish()
    assert coterie.summary(again[0])["score"] == coterie.summary(whole[0])["score"]


def test_number_of_workers_is_no_difference(tmp_path: Path) -> None:
    cell(tmp_path / "runs", methods="fedavg", workers=1)
    cell(tmp_path / "runs", methods="fedavg", workers=2)


OTHER: dict[str, tuple[Callable[[Path], Any], str]] = {
    "rounds": (lambda to: cell(to, rounds=3), "rounds = 2, and not 3"),
    "training": (lambda to: cell(to, training={"lr": 0.2}), "training.lr = 0.1, and not 0.2"),
    "a method's setting": (
        lambda to: cell(to, methods=["fedavg", {"name": "cfl", "eps1": 0.1}]),
        "cfl.eps1 = 0.5, and not 0.1",
    ),
    "methods": (
        lambda to: cell(to, methods=["fedavg"]),
        r"the methods fedavg, cfl, and not fedavg: .*coterie\.compare takes both folders",
    ),
    "seeds": (lambda to: cell(to, seeds=2), r"seeds = \[0\], and not \[0, 1\]"),
    "scenario": (lambda to: cell(to, "digits/iid"), "scenario"),
    "data": (lambda to: cell(to, world(2.0)), "runs of other clients or data"),
}


@pytest.mark.parametrize("case", OTHER)
def test_other_settings_or_data_are_named(case: str, tmp_path: Path) -> None:
    cell(tmp_path / "runs").finish()
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    call, difference = OTHER[case]
    with pytest.raises(UserError, match=difference) as caught:
        call(tmp_path / "runs")
    assert "choose another folder, or remove this one" in str(caught.value)
    assert "coterie resume" not in str(caught.value)  # which a notebook cannot follow
    assert {
        path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()
    } == before


def test_a_method_is_added_to_a_finished_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = cell(tmp_path / "runs").finish()
    lines = [run.record.lines() for run in first]
    both = cell(tmp_path / "runs", methods=("cfl", "ifca", "fedavg"))
    assert "and ifca added" in capsys.readouterr().err
    both.finish()
    # The runs of before stay as they are, and the folder has all of them from now on.
    assert [run.record.lines() for run in first] == lines
    assert [entry["method"] for entry in coterie.compare(tmp_path / "runs")] == [
        "cfl",
        "fedavg",
        "ifca",
    ]
    reopened = coterie.reopen(tmp_path / "runs", world=world())
    assert [run.name for run in reopened] == ["cfl seed 0", "ifca seed 0", "fedavg seed 0"]
    assert all(run.finished() for run in reopened)
    # The same method with other settings would change the names of folders.
    with pytest.raises(
        UserError, match="to add a method, name those of the folder and the new one"
    ):
        cell(tmp_path / "runs", methods=("cfl", "ifca", "fedavg", {"name": "cfl", "eps1": 0.1}))


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"exists and is not an empty folder; choose another$"):
        cell(tmp_path)


def test_an_explanation_prints_and_is_a_dict(tmp_path: Path) -> None:
    (run,) = cell(tmp_path / "runs", methods="cfl").finish()
    for client in (None, 0):
        told = coterie.explain(run, client=client)
        assert isinstance(told, Explanation)
        assert isinstance(told, dict)
        assert str(told) == repr(told) == told.text == words(run, client=client)
        assert told["method"] == "cfl"
        assert told._repr_html_() == f"<pre>{html.escape(words(run, client=client))}</pre>"


@pytest.mark.slow
def test_a_figure_of_several_runs_has_a_curve_for_each_method(tmp_path: Path) -> None:
    matplotlib_figures = pytest.importorskip("coterie.report.figures.several")
    from coterie.report.gathered import gather

    runs = cell(tmp_path / "runs", seeds=2).finish()
    for kind in ("score", "accuracy", "loss", "traffic"):
        assert coterie.plot(runs, kind, tmp_path / f"{kind}.svg").stat().st_size > 1000
        assert coterie.plot(tmp_path / "runs", kind, tmp_path / f"{kind}.png").exists()
    figure = matplotlib_figures.figure([gather(run.folder) for run in runs], "score")
    curves = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert list(curves) == ["fedavg", "cfl"]
    assert len(figure.axes[0].collections) == 2  # bands
    for number, curve in enumerate(curves.values()):
        seeds = [run.to_pandas().groupby("round")["accuracy"].mean() for run in runs][2 * number :]
        assert curve == pytest.approx(list((seeds[0] + seeds[1]) / 2))
    # The same settings and seed twice are two curves, which their folders tell apart.
    (again,) = cell(tmp_path / "again", methods="cfl").finish()
    figure = matplotlib_figures.figure([gather(run.folder) for run in (*runs, again)], "score")
    labels = [str(line.get_label()) for line in figure.axes[0].get_lines()]
    assert labels == ["fedavg", "cfl, runs/cfl-seed0", f"cfl, {tmp_path.name}/again"]
    for kind in ("groups", "similarity", "criteria"):
        with pytest.raises(UserError, match=f"a figure of {kind} is of one"):
            coterie.plot(runs, kind, tmp_path / "x.png")
    for given in ([], 3, [3]):
        with pytest.raises(
            UserError, match=r"there is no run to draw|runs must be run directories"
        ):
            coterie.plot(given, "score", tmp_path / "x.png")  # type: ignore[arg-type]


MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no scenario": (
        lambda to: coterie.run("fedavg", 3, rounds=1),
        "scenario must be a scenario's name, a Scenario, a World",
    ),  # type: ignore[arg-type]
    "a class": (
        lambda to: coterie.run(coterie.methods.FedAvg, world(), rounds=1),
        r"write FedAvg\(\)",
    ),  # type: ignore[type-var,arg-type]
    "runs": (
        lambda to: coterie.compare([3]),
        "runs must be run directories, or folders of them, got 3",
    ),  # type: ignore[list-item]
    "several": (
        lambda to: coterie.explain(cell(to)),
        r"run must be a path, got a Runs; give one of them, such as \[0\]",
    ),
    "no list": (lambda to: coterie.from_lists(3), "clients must be a list of each client's data"),  # type: ignore[arg-type]
    "a set": (
        lambda to: coterie.from_lists({1, 2}),
        "clients must be a list of each client's data",
    ),  # type: ignore[arg-type]
    "a world's clients": (
        lambda to: coterie.World(clients=[1], model=lambda: None),
        "World.clients must be a mapping",
    ),  # type: ignore
    "a client": (
        lambda to: coterie.World(clients={0: 3}, model=lambda: None),
        "to coterie.ClientData, got 3",
    ),  # type: ignore
    "a split": (
        lambda to: coterie.ClientData(train=3, validation=3, test=3),
        "ClientData.train must be a coterie.Split",
    ),  # type: ignore[arg-type]
    "a loss": (
        lambda to: coterie.Objective(loss="mse"),
        "Objective.loss must be a function, got 'mse'",
    ),  # type: ignore[arg-type]
    "metrics": (
        lambda to: coterie.Objective(metrics=3),
        "Objective.metrics must be names of metrics",
    ),  # type: ignore[arg-type]
    "a metric": (lambda to: coterie.Metric(3), "a metric's function must be a function, got 3"),  # type: ignore[arg-type]
    "silence": (
        lambda to: coterie.Attendance(silent=2.0),
        "Attendance.silent must be >= 0 and <= 1, got 2.0",
    ),
    "joins": (lambda to: coterie.Attendance(joins=[1]), "Attendance.joins must be a mapping"),  # type: ignore[arg-type]
    "methods": (
        lambda to: coterie.reopen(to, methods="fedavg"),
        "methods must be a list of your own methods, got 'fedavg'",
    ),  # type: ignore[arg-type]
    "a world": (lambda to: coterie.reopen(to, world=3), "world must be a World, or a function"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", MISTAKES)
def test_ordinary_mistakes_are_one_sentence(case: str, tmp_path: Path) -> None:
    call, sentence = MISTAKES[case]
    with pytest.raises(UserError, match=sentence) as caught:
        call(tmp_path / "runs")
    assert "\n" not in str(caught.value)


def test_a_scenario_may_begin_runs(tmp_path: Path) -> None:
    scenario = coterie.SCENARIOS["digits/iid"]
    (run,) = coterie.begin(scenario, tmp_path / "a", "fedavg", rounds=1, workers=1)
    assert run.experiment.scenario == "digits/iid"


def test_nothing_that_is_given_to_a_finished_run_is_ignored(tmp_path: Path) -> None:
    cell(tmp_path / "runs", methods="fedavg").finish()
    ignored: dict[str, dict[str, Any]] = {
        "was recorded without a secret": {"secret": 3},
        "has no run of the method 'cfl' .it has fedavg.: begin it in another folder": {
            "methods": [coterie.METHODS["cfl"]()]
        },
        "the world has other data than": {"world": world(scale=2.0)},
        "the world has other data .*, which is finished": {"world": lambda seed: world(scale=2.0)},
    }
    for sentence, arguments in ignored.items():
        with pytest.raises(UserError, match=sentence):
            coterie.reopen(tmp_path / "runs", **{"world": world(), **arguments})
    assert coterie.reopen(tmp_path / "runs", world=lambda seed: world())
    with pytest.raises(UserError, match="a world has its own data: leave it out"):
        cell(tmp_path / "other", data="folder")
