"""Runs over worlds that users make themselves: recorded, continued, reported and exported as those of named scenarios are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.core import Training
from coterie.data.own import from_lists
from coterie.data.world import World
from coterie.engines.rounds import Position
from coterie.methods import CFL
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.robust import Robust
from coterie.runs.experiment import own
from coterie.settings import UserError
from coterie.training.trial import trial
from refusals import refuses

CODE = '''
"""Clients of two kinds, made by a seed."""

import numpy as np
from torch import nn

import coterie
from coterie.data.own import from_lists


def client(seed, number):
    rng = np.random.default_rng([seed, number])
    x = rng.standard_normal((60, 3)).astype(np.float32)
    return x, (x.sum(1) * (1 if number % 2 else -1) > 0).astype(np.int64)


def sites(seed):
    training = coterie.Training(lr=0.5, batch=20, epochs=2)
    return from_lists([client(seed, number) for number in range(6)], model=lambda: nn.Linear(3, 2), training=training)


def broken(seed):
    raise ValueError("no such table")


def numbers(seed):
    return [1, 2, 3]
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, in the current folder."""
    name = f"sites_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def world(seed: int = 0, kinds: int = 2) -> World:
    clients = []
    for number in range(6):
        rng = np.random.default_rng([seed, number])
        x = rng.standard_normal((60, 3)).astype(np.float32)
        clients.append((x, (x.sum(1) * (1 if number % kinds else -1) > 0).astype(np.int64)))
    return from_lists(
        clients, model=lambda: nn.Linear(3, 2), training=Training(lr=0.5, batch=20, epochs=2)
    )


def changed_world(**changes: Any) -> World:
    return replace(world(), **changes)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records without what differs from run to run."""
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "checksum")}
        for line in Record(folder).lines()
    ]


def run(*words: str) -> int:
    return main(list(words))


@pytest.mark.usefixtures("capsys")
def test_a_function_by_name_gets_what_named_scenarios_get(module: str, tmp_path: Path) -> None:
    name = f"{module}:sites"
    common = ["--scenario", name, "--rounds", "6", "--workers", "1"]
    assert run("run", *common, "--method", "split-half", "--out", "whole") == 0
    assert run("run", *common, "--method", "split-half", "--method", "fedavg", "--out", "two") == 0
    for words in (
        ["report", "two"],
        ["compare", "two"],
        ["explain", "whole", "--client", "3"],
        ["plot", "whole", "groups", "-o", "groups.png"],
        ["check", "whole"],
        ["resume", "two"],
        ["export", "whole", "--to", "models", "--trust-code"],
        ["suggest", "whole", "--trust-code"],
        ["scenarios", name],
    ):
        assert run(*words) == 0, words
    description = Record(tmp_path / "whole").description()
    assert description["scenario"] == {"name": name}
    assert description["training"]["lr"] == 0.5  # the world's own
    assert json.loads((tmp_path / "models" / "models.json").read_text())["clients"]


def test_a_function_from_python_is_recorded_by_its_name_and_goes_on_bit_for_bit(
    module: str, tmp_path: Path
) -> None:
    sites = vars(__import__(module))["sites"]
    (whole,) = coterie.begin(sites, tmp_path / "whole", CFL(persistence=1), rounds=6, workers=1)
    list(whole.rounds())
    (part,) = coterie.begin(sites, tmp_path / "part", CFL(persistence=1), rounds=6, workers=1)
    list(islice(part.rounds(), 3))
    sys.modules.pop(module)  # as in another process
    (again,) = coterie.reopen(tmp_path / "part", trust_code=True)
    assert len(list(again.rounds())) == 3
    assert lines(tmp_path / "part") == lines(tmp_path / "whole")


def test_code_of_a_recorded_scenario_needs_consent(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = vars(__import__(module))["sites"]
    (part,) = coterie.begin(sites, tmp_path / "part", "fedavg", rounds=4, workers=1)
    list(islice(part.rounds(), 2))
    sys.modules.pop(module)
    assert run("resume", "part") == 2
    said = capsys.readouterr().err
    assert "names the scenario" in said
    assert "--trust-code" in said
    assert said.count("\n") == 1
    assert module not in sys.modules
    assert run("resume", "part", "--trust-code") == 0
    assert len(lines(tmp_path / "part")) == 4


def test_a_world_itself_is_recorded_and_given_again(tmp_path: Path) -> None:
    runs = coterie.begin(
        world(), tmp_path / "runs", ["fedavg", "split-half"], rounds=5, workers=1, seeds=(0, 1)
    )
    assert len(runs) == 4
    list(islice(runs[0].rounds(), 2))
    (again, *_) = coterie.reopen(tmp_path / "runs")
    with pytest.raises(
        UserError, match=r"began with a world given in Python: pass it to coterie.reopen"
    ):
        list(again.rounds())
    (again, *_) = coterie.reopen(tmp_path / "runs", world=world(seed=1))
    with pytest.raises(UserError, match="the scenario's clients or data have changed"):
        list(again.rounds())
    for one in coterie.reopen(tmp_path / "runs", world=lambda seed: world()):
        list(one.rounds())
        assert one.finished()
    assert coterie.explain(tmp_path / "runs" / "split-half-seed0")["scenario"] == "own"
    coterie.write_report([tmp_path / "runs"], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_run_takes_no_world_with_other_clients(tmp_path: Path) -> None:
    clients = {name: (np.ones((20, 2), "f"), np.arange(20) % 2) for name in ("a", "b", "c")}
    (run,) = coterie.begin(
        from_lists(clients), tmp_path / "run", "fedavg", rounds=1, workers=1
    ).finish()
    for changed, difference in (
        ({**clients, "d": clients["a"]}, "does not have d"),
        ({name: clients[name] for name in ("a", "b")}, "has also c"),
    ):
        with pytest.raises(UserError, match=rf"other clients than .*run, which {difference}"):
            coterie.reopen(run.folder, world=from_lists(changed))
    assert coterie.reopen(run.folder, world=from_lists(clients))


def test_a_run_over_a_world_is_saved_and_probed_in_another_process_that_has_the_world(
    tmp_path: Path,
) -> None:
    made = world()
    (first,) = coterie.begin(made, tmp_path / "run", "split-half", rounds=2, workers=1).finish()
    with pytest.raises(UserError, match="began with a world given in Python"):
        coterie.save(tmp_path / "run", tmp_path / "models")
    (again,) = coterie.reopen(tmp_path / "run", world=made)
    _, position = first.record.stored(Position)
    assignment = first.method.assignment(position.state)
    for one, to in ((first, "first"), (again, "again")):
        coterie.save(one, tmp_path / to)
        net = coterie.load(tmp_path / to, 3, model=made.model)
        row = torch.cat([tensor.flatten() for tensor in net.state_dict().values()])
        torch.testing.assert_close(row, assignment.models[assignment.row[3]], rtol=0, atol=0)
        assert coterie.suggest(one, workers=1).run == str(tmp_path / "run")


def test_training_of_the_world_unless_it_is_given(tmp_path: Path) -> None:
    (one,) = coterie.begin(world(), tmp_path / "own", "fedavg", rounds=1, workers=1)
    (other,) = coterie.begin(
        world(), tmp_path / "given", "fedavg", rounds=1, workers=1, training=Training(lr=0.125)
    )
    assert (one.experiment.training.lr, other.experiment.training.lr) == (0.5, 0.125)
    assert other.experiment.world(0).training.lr == 0.125
    (table,) = coterie.begin(
        world(), tmp_path / "table", "fedavg", rounds=1, workers=1, training={"lr": 0.25}
    )
    assert (table.experiment.training.lr, table.experiment.training.batch) == (0.25, 20)
    (several, _) = coterie.begin(
        world(), tmp_path / "seeds", "fedavg", rounds=1, workers=1, seeds=2
    )
    assert several.seed == 0


def test_true_groups_by_names(tmp_path: Path) -> None:
    data = [(np.arange(20, dtype="f")[:, None], np.arange(20) % 2)] * 3
    made = from_lists(dict(zip("abc", data, strict=True)), truth=[["c"], ["b", "a"]])
    assert made.truth == ((0, 1), (2,))
    (one,) = coterie.begin(made, tmp_path / "run", "fedavg", rounds=1, workers=1).finish()
    assert coterie.summary(one)["true_groups"] == [["a", "b"], ["c"]]


def test_torchs_cross_entropy_has_the_world_of_class_numbers() -> None:
    clients = [([[float(row), 1.0]] * 9, [0, 1, 2] * 3) for row in range(2)]
    world = from_lists(clients)
    with_torchs = from_lists(clients, objective=coterie.Objective(loss=nn.CrossEntropyLoss()))
    with seeded(0):
        expected = world.model()
    with seeded(0):
        model = with_torchs.model()
    assert str(model) == str(expected)
    for client, data in world.clients.items():
        same = with_torchs.clients[client]
        assert torch.equal(data.train.inputs, same.train.inputs)
        assert torch.equal(data.train.targets, same.train.targets)
        assert torch.equal(data.train.index, same.train.index)


def test_tables_of_settings_in_python() -> None:
    objects = {
        "training": Training(lr=0.25, batch=20, epochs=2),
        "boundary": Boundary(clip=0.1),
        "robust": Robust(mean="median"),
    }
    tables = {"training": {"lr": 0.25}, "boundary": {"clip": 0.1}, "robust": {"mean": "median"}}
    (one,), (other,) = (
        coterie.run("fedavg", world(), rounds=1, workers=1, **each) for each in (objects, tables)
    )
    assert torch.equal(one.assignment.models, other.assignment.models)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "fails with seed 0: ValueError: no such table"),
        ("numbers", "must return a coterie.World, but returns list"),
        ("absent", "cannot be imported"),
    ],
)
def test_a_function_that_fails_is_one_sentence_and_nothing_is_written(
    module: str, tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "--scenario", f"{module}:{name}", "--rounds", "2", "--out", "runs") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (
            lambda to: coterie.begin(world(), to, "fedavg", round=3),
            ["'round'", "did you mean rounds"],
        ),
        (lambda to: coterie.begin(world(), to, "fedav"), ["'fedav'", "did you mean fedavg?"]),
        (
            lambda to: coterie.begin(7, to, "fedavg"),
            ["begin", "Experiment", "World", "scenario", "function"],
        ),
        (
            lambda to: coterie.begin("digits/iidd", to, "fedavg"),
            ["'digits/iidd'", "did you mean digits/iid?"],
        ),
        (
            lambda to: coterie.begin(world(), to, "fedavg", training={"rate": 1}),
            ["training", "'rate'"],
        ),
        (
            lambda to: coterie.begin(world(), to, "fedavg", engine="flower"),
            ["engine flower", "function"],
        ),
        (
            lambda to: coterie.begin(world(), to, "fedavg", rounds=0),
            ["Experiment.rounds", "got 0", ">= 1"],
        ),
        (
            lambda to: coterie.begin(world(), to, "fedavg", seeds=1.5),
            ["seeds", "whole numbers"],
        ),
        (
            lambda to: coterie.begin(world(), to, "fedavg", training="x"),
            ["training", "coterie.Training", "table"],
        ),
        (
            lambda to: coterie.begin(world(), to, "fedavg", boundary="secret"),
            ["boundary", "coterie.Boundary", "table"],
        ),
        (
            lambda to: coterie.begin(world(), to, 3),
            ["method", "name", "table", "object"],
        ),
        (lambda to: coterie.begin(world(), to, CFL), ["the class CFL", "CFL()"]),
        (
            lambda to: coterie.begin(world(), to, [{"name": "cfll"}]),
            ["'cfll'", "did you mean cfl"],
        ),
        (
            lambda to: coterie.begin(own("digits/iid", "fedavg"), to, ["cfl"]),
            ["methods", "experiment"],
        ),
        (
            lambda to: list(coterie.run("fedavg", world(), rounds=1, start=3)),
            ["start", "position"],
        ),
        (
            lambda to: list(coterie.run(["fedavg"], world(), rounds=1)),
            ["method", "name", "table", "object"],
        ),
        (
            lambda to: list(coterie.run("fedavg", world(), rounds=1, robust="x")),
            ["robust", "coterie.Robust", "table"],
        ),
        (
            lambda to: changed_world(truth=[[0, 1], [2, 3, 4]]),
            ["World.truth", "client 5", "every client"],
        ),
        (
            lambda to: changed_world(truth=[[0, 1, 2], [2, 3, 4, 5]]),
            ["World.truth", "client 2", "2 times"],
        ),
        (
            lambda to: changed_world(truth=[range(6), ["north"]]),
            ["World.truth", "'north'"],
        ),
        (
            lambda to: changed_world(truth=3),
            ["World.truth", "got 3", "[[0, 1], [2]]"],
        ),
        (
            lambda to: changed_world(about={"x": object()}),
            ["World.about", "text, finite numbers, and lists"],
        ),
        (
            lambda to: changed_world(about={"x": [1.0, float("nan")]}),
            ["World.about", "nan", "finite numbers"],
        ),
        (
            lambda to: changed_world(training={"lr": 1}),
            ["World.training", "{'lr': 1}", "coterie.Training"],
        ),
        (
            lambda to: changed_world(objective="accuracy"),
            ["World.objective", "'accuracy'", "coterie.Objective"],
        ),
        (
            lambda to: changed_world(model=nn.Identity()),
            ["function", "fresh module"],
        ),
        (
            lambda to: trial(changed_world(model=nn.Linear)),
            ["model", "TypeError"],
        ),
        (
            lambda to: trial(changed_world(model=lambda: None)),
            ["NoneType", "torch.nn.Module"],
        ),
        (
            lambda to: from_lists([([[1.0, 2.0], [3.0]], [0, 1])]),
            ["client 0", "x must be an array", "rows"],
        ),
        (
            lambda to: from_lists([{"x": [[1.0]], "y": [0], "x_tset": [[1.0]]}]),
            ["'x_tset'", "did you mean"],
        ),
        (
            lambda to: from_lists([{"train": [1], "tests": [2]}]),
            ["'tests'", "did you mean test"],
        ),
        (lambda to: from_lists({"a": {"train": None}}), ["client a", "data set"]),
        (
            lambda to: from_lists([([[1.0]] * 9, [0] * 9)], classes="3"),
            ["classes", "'3'", "write 3"],
        ),
        (
            lambda to: from_lists([([[1.0]] * 9, [0] * 9)], seed=-1),
            ["seed", "-1", ">= 0"],
        ),
        (
            lambda to: from_lists([([[1.0]] * 9, [0] * 9)], objective="accuracy"),
            ["objective", "coterie.Objective"],
        ),
        (
            lambda to: from_lists([([[1.0]] * 9, [0] * 9)], objective=nn.CrossEntropyLoss()),
            ["objective", "CrossEntropyLoss", "coterie.Objective(loss=YOUR_LOSS)"],
        ),
        (
            lambda to: from_lists(
                [([[1.0]] * 9, [0] * 9)], objective=coterie.Objective(loss=nn.MultiMarginLoss())
            ),
            ["'mlp'", "outputs", "MultiMarginLoss"],
        ),
        (
            lambda to: coterie.write_report([], to.with_suffix(".html")),
            ["report", "none", "at least one run"],
        ),
    ],
)
def test_mistakes_in_python_are_told_with_setting_and_value(
    tmp_path: Path, call: Callable[[Path], Any], parts: list[str]
) -> None:
    with refuses(*parts):
        call(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
