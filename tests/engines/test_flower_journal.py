"""A federation's run directory under the commands, and what it says of runs that go on."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed")

from coterie.cli import main
from coterie.core import Training
from coterie.engines.flower.run_directory import tensors_of
from coterie.methods import CFL, FedAvg
from coterie.records.record import Record
from coterie.report.summary import summary
from coterie.runs.export import save
from coterie.settings import UserError
from flowered import Here, app_of, strategy_of
from small import mlp, world

pytestmark = pytest.mark.usefixtures("flower_run")

SPLITS = CFL(split_rounds=(1,))


def federated(
    folder: Path, rounds: int, method: Any = SPLITS, stop: int | None = None, **how: Any
) -> None:
    """A run over the grid; stopped after round ``stop``, as by somebody's hand."""
    tried = world(range(4))

    def watch(number: int, arrays: Any) -> None:
        if number == stop:
            raise KeyboardInterrupt

    strategy = strategy_of(method, tried, out=folder, **how)
    if stop is None:
        strategy.start(Here(app_of(tried), 4), num_rounds=rounds)
        return
    with pytest.raises(KeyboardInterrupt):
        strategy.start(Here(app_of(tried), 4), num_rounds=rounds, evaluate_fn=watch)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(arguments)
    return (status, *capsys.readouterr())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- commands
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_who_resumes_a_federation_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    federated(Path("run"), rounds=5, stop=2)
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    status, out, err = call(capsys, "resume", "run")
    assert (status, out) == (2, "")
    assert err == (
        "coterie: the clients of a federation are on other machines: to resume, start its ServerApp again with the same "
        "settings\n"
    )
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before
    assert call(capsys, "run", "run/run.toml", "--out", "other")[0] == 2
    assert [path.name for path in Path().iterdir()] == ["run"]


@pytest.mark.usefixtures("here")
def test_a_federation_is_compared_and_taken_out_as_any_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    federated(Path("cfl"), rounds=2)
    federated(Path("fedavg"), rounds=2, method=FedAvg())
    status, out, err = call(capsys, "compare", "cfl", "fedavg")
    assert (status, err) == (0, "")
    # A row for each method and the worst client; below the table, after an empty line, the verdict.
    table = out.split("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines()[-3:]] == ["cfl", "fedavg", "worst"]
    found = json.loads(call(capsys, "compare", "cfl", "fedavg", "--json")[1])
    assert [(one["method"], one["scenario"], one["groups"]["mean"]) for one in found] == [
        ("cfl", "federation", 2.0),
        ("fedavg", "federation", 1.0),
    ]
    assert call(capsys, "resume", "cfl") == (
        0,
        "cfl is finished (2 rounds); there is nothing to do\n",
        "",
    )
    (told,) = json.loads(call(capsys, "resume", "cfl", "--json")[1])
    assert (told["finished"], told["ari"], len(told["groups"])) == (True, None, 2)
    assert call(capsys, "export", "cfl", "--to", "models") == (
        0,
        "3 models written to models\n",
        "",
    )


@pytest.mark.usefixtures("here")
def test_where_nothing_is_stored_yet_the_server_app_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    federated(Path("run"), rounds=5, stop=1)
    shutil.rmtree("run/state")  # as if killed before the first checkpoint
    status, _, err = call(capsys, "export", "run", "--to", "models")
    assert status == 2
    assert (
        err == "coterie: run has no completed round yet; to continue, start its ServerApp again\n"
    )
    federated(Path("run"), rounds=2)
    assert len(Record("run").lines()) == 2
    assert call(capsys, "export", "run", "--to", "models")[0] == 0


# -- going on
# -------------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_for_longer_says_so(tmp_path: Path) -> None:
    federated(tmp_path, rounds=2)
    federated(tmp_path, rounds=5, stop=3, eval_every=2)
    told = summary(tmp_path)
    assert (told["rounds"], told["limits"]["rounds"], told["finished"]) == (3, 5, False)
    assert Record(tmp_path).description()["eval_every"] == 2
    federated(tmp_path, rounds=1)  # there are three already
    told = summary(tmp_path)
    assert (told["rounds"], told["limits"]["rounds"], told["finished"]) == (3, 3, True)
    document = json.loads(
        (save(tmp_path, tmp_path.with_name("models")) / "models.json").read_text()
    )
    assert (document["round"], document["finished"]) == (3, True)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            {"method": CFL(split_rounds=(1,), gamma_max=0.5)},
            r"its method\.gamma_max was 0\.68, and now is 0\.5",
        ),
        ({"method": FedAvg()}, r"its method\.name was cfl, and now is fedavg"),
        ({"training": Training(lr=0.2, batch=8)}, r"its training\.lr was 0\.1, and now is 0\.2"),
        ({"seed": 3}, r"its seeds were \[0\], and now are \[3\]"),
    ],
    ids=str,
)
def test_other_settings_are_told_by_name(tmp_path: Path, how: dict[str, Any], says: str) -> None:
    federated(tmp_path, rounds=1)
    before = (tmp_path / "run.toml").read_bytes()
    with pytest.raises(UserError, match=f"cannot be resumed: {says}"):
        federated(tmp_path, rounds=2, **how)
    assert (tmp_path / "run.toml").read_bytes() == before


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not a run directory; choose another folder"):
        federated(tmp_path, rounds=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


# -- what is told
# ---------------------------------------------------------------------------------------------------------


def test_the_versions_are_flowers_too(tmp_path: Path) -> None:
    federated(tmp_path, rounds=1)
    told = Record(tmp_path).description()["versions"]
    assert told["flwr"] == version("flwr")
    assert told["torch"] == torch.__version__


def test_a_net_is_described_in_the_order_of_a_row(tmp_path: Path) -> None:
    federated(tmp_path, rounds=1)
    net = Record(tmp_path).description()["world"]["net"]
    assert net["trainable"] == 4
    assert net["tensors"][:2] == [
        {"name": "0.weight", "shape": [8, 5], "dtype": "float32"},
        {"name": "0.bias", "shape": [8], "dtype": "float32"},
    ]
    assert set(net) == {"trainable", "tensors"}
    assert not (tmp_path / "others.safetensors").exists()
    assert tensors_of(mlp) == (net, {})


def test_statistics_come_after_what_trains_and_frozen_tensors_and_counts_apart() -> None:
    def made() -> nn.Module:
        net = nn.Sequential(
            nn.Linear(2, 2, bias=False),
            nn.BatchNorm1d(2),
            nn.Linear(2, 2, bias=False).to(torch.float64),
        )
        net[0].weight.requires_grad_(False)
        net.append(net[2])  # the same layer again
        return net

    net, others = tensors_of(made)
    names = [(one["name"], one["dtype"]) for one in net["tensors"]]
    assert names == [
        ("1.weight", "float32"),
        ("1.bias", "float32"),
        ("2.weight", "float64"),
        ("1.running_mean", "float32"),
        ("1.running_var", "float32"),
    ]
    assert net["trainable"] == 3
    assert net["tied"] == {"3.weight": "2.weight"}
    assert set(others) == {"0.weight", "1.num_batches_tracked"}
