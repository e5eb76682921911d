"""A round in which every reply is refused teaches nothing: an error that names the reason and the remedy, not a silent run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.cli import main
from coterie.core import Training
from coterie.data.adversaries import Attack
from coterie.data.attendance import Attendance
from coterie.data.world import World
from coterie.engines.refusals import RefusedError, check_refusals
from coterie.methods import FedAvg
from coterie.records.record import Record
from coterie.robust import Robust
from coterie.runs.checking import check
from flowered import over_flower
from scripted import play
from small import client, spoiled, world


def broken(clients: tuple[int, ...] = (2, 3, 7, 11), **more: Any) -> World:
    """Clients 2, 3, 7 and 11, of which these have nothing but NaN to train on."""
    data = {c: spoiled(client(c), "train") if c in clients else client(c) for c in (2, 3, 7, 11)}
    return replace(world(), clients=data, **more)


@pytest.mark.parametrize("workers", [1, 2])
def test_all_replies_of_a_round_refused_is_an_error(workers: int) -> None:
    text = r"round 1: all 4 replies were refused, for example that of client 2: its update has a NaN.*standardize the inputs"
    with pytest.raises(RefusedError, match=text):
        play(FedAvg(), broken(), 3, workers=workers)


@pytest.mark.usefixtures("flower_run")
def test_over_flower_it_is_the_same_error() -> None:
    with pytest.raises(
        RefusedError, match="round 1: all 4 replies were refused, for example that of client "
    ):
        over_flower(
            FedAvg(),
            world((0, 1, 2, 3), clients={c: spoiled(client(c), "train") for c in range(4)}),
            2,
        )


def test_one_good_reply_is_enough() -> None:
    assert len(play(FedAvg(), broken((2, 3, 7)), 3)) == 3


def test_of_a_few_that_are_asked_all_may_be_broken_by_chance() -> None:
    """One client of four is asked in a round. Where all are broken, the run ends when that has been seen of most of them."""
    assert len(play(FedAvg(fraction=0.25), broken((2, 3, 7)), 8)) == 8
    with pytest.raises(RefusedError, match=r"round [4-9]\d?: the only reply was refused"):
        play(FedAvg(fraction=0.25), broken(), 60)


def test_silent_clients_are_no_refusals() -> None:
    silent = broken(attendance=Attendance(silent=0.999999))
    assert all(not done.answered for done in play(FedAvg(), silent, 3))


def test_hostile_clients_may_all_be_refused() -> None:
    """FedAvg asks a quarter of the clients: in some rounds the only one is hostile, which is no reason to stop."""
    attacked = replace(world(), attacks={2: Attack(kind="huge", scale=1e17)})
    done = play(FedAvg(fraction=0.25), attacked, 12, robust=Robust(norms=2.0))
    assert any(set(one.refused) == {2} and not one.answered for one in done)


def test_one_refused_client_of_a_federation_may_be_hostile() -> None:
    """Without a world nobody knows who is hostile: the only client that was asked, of four, does not end the run."""
    roster: Any = SimpleNamespace(attacks={}, client_names={0: "north"})
    why = dict.fromkeys(range(3), "its update has a NaN")
    check_refusals(1, {0: why[0]}, set(), range(4), roster, range(4))
    check_refusals(1, why, {3}, range(4), roster, range(3))
    check_refusals(1, {}, set(), range(4), roster, range(4))
    with pytest.raises(
        RefusedError, match="all 3 replies were refused, for example that of client north"
    ):
        check_refusals(1, why, set(), range(4), roster, range(3))
    with pytest.raises(RefusedError, match="the only reply was refused"):
        check_refusals(1, {0: why[0]}, set(), range(1), roster, range(1))


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        (
            "its update has norm 1.3e+04, more than 1000 times its model's 1.2",
            "standardize the inputs",
        ),
        (
            "its update has norm 30, more than 40 times the median 0.5 (robust.norms)",
            "or a larger robust.norms",
        ),
        (
            "it claims 2,000 examples, more than 1,000 (robust.most_examples)",
            "use a larger robust.most_examples",
        ),
        ("its app failed: no file", "no model can learn from such replies"),
    ],
)
def test_the_sentence_names_the_remedy(why: str, remedy: str) -> None:
    with pytest.raises(RefusedError, match=remedy):
        check_refusals(1, {0: why, 1: why}, set(), range(2), world(), range(2))


@pytest.mark.filterwarnings("ignore::coterie.runs.run.Caution")
def test_the_run_stays_resumable(tmp_path: Path) -> None:
    """Each round multiplies the model, until no number holds it: that round is refused, and those before are kept."""
    rng = np.random.default_rng(0)
    clients = [
        (1e3 * rng.normal(size=(40, 3)).astype("f"), rng.normal(size=40).astype("f"))
        for _ in range(3)
    ]
    made = coterie.from_lists(
        clients, model="linear", training=Training(lr=3.5e-6, batch=32, epochs=2)
    )
    runs = coterie.begin(made, tmp_path / "run", "fedavg", rounds=50, workers=1)
    with pytest.raises(RefusedError, match="all 3 replies were refused"):
        runs.finish()
    kept = len(Record(runs[0].folder).lines())
    with pytest.raises(RefusedError, match=f"round {kept + 1}: all 3 replies"):
        coterie.reopen(runs[0].folder, world=made).finish()
    assert len(Record(runs[0].folder).lines()) == kept
    assert not check(runs[0].folder).damaged


def test_the_command_ends_with_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = 300
    frame = pd.DataFrame(
        {"site": np.arange(rows) % 3, "x": 1e3 * rng.normal(size=rows), "y": rng.normal(size=rows)}
    )
    frame.assign(site=[f"s{site}" for site in frame["site"]]).to_csv(
        tmp_path / "sites.csv", index=False
    )
    data, lr = f"--data={tmp_path / 'sites.csv'}", "training.lr=3.5e-6"
    options = [
        "--scenario=table/clients",
        data,
        "--method=fedavg",
        "--rounds=50",
        "--workers=1",
        f"--out={tmp_path / 'run'}",
    ]
    sets = ["client=site", "target=y", "model=linear", lr, "training.batch=32", "training.epochs=2"]
    assert main(["run", *options, *(f"--set={one}" for one in sets)]) == 2
    said = capsys.readouterr().err
    assert "coterie: the inputs are not scaled: feature 'x' is typically" in said
    assert "all 3 replies were refused, for example that of client s0" in said
    assert said.count("standardize") >= 2
    assert "Traceback" not in said
