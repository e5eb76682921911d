"""DP-SGD over Flower: both engines agree, each client's ε is in the record, and a node's operator decides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from coterie.contrib.dpsgd.accounting import spent_by_rows
from coterie.contrib.dpsgd.at_node import NodeRule, epsilon_of_counts
from coterie.core import Training
from coterie.data.world import World
from coterie.engines.flower import Participant, client_app
from coterie.engines.rounds import rounds
from coterie.methods import METHODS
from coterie.records.record import Record
from coterie.report.summary import spent_privacy, summary
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.settings import SettingError
from flowered import Here, a_run, foreign, over_flower, same, strategy_of


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    with a_run():
        yield


SCENARIO = {"name": "synthetic/groups", "clients": 4}
TRAINING: dict[str, Any] = {
    "optimizer": "dp-sgd",
    "optimizer_options": {"noise": 1.5, "clip": 0.5},
    "epochs": 1,
    "batch": 40,
}


def tried(**options: Any) -> World:
    changed = {**TRAINING, "optimizer_options": {**TRAINING["optimizer_options"], **options}}
    spec = {"scenario": SCENARIO, "methods": [{"name": "fedavg"}], "rounds": 2}
    return make({**spec, "training": changed}).world(0)


def app_of(world: World, simulated: bool) -> ClientApp:
    ids = sorted(world.clients)

    def participant(context: Context) -> Participant:
        data = world.clients[ids[int(context.node_config["partition-id"])]]
        return Participant(data, world.model, world.objective, compared=not simulated)

    return client_app(
        participant=participant,
        client=lambda context: ids[int(context.node_config["partition-id"])],
    )


@pytest.mark.parametrize(("name", "sampling"), [("fedavg", "poisson"), ("split-half", "shuffled")])
def test_both_engines_agree(name: str, sampling: str) -> None:
    world = tried(sampling=sampling)
    method = METHODS[name]()
    expected = list(rounds(method, world, rounds=2, workers=1))
    grid = Here(app_of(world, simulated=True), 4)
    found = list(strategy_of(method, world).rounds(grid, 2, roster=world))
    same(found, expected)
    for one, other in zip(found, expected, strict=True):
        assert one.released == other.released
        assert one.released
        assert one.rows == {client: len(data.train) for client, data in world.clients.items()}


def test_each_clients_epsilon_is_in_the_record_of_a_federation(tmp_path: Path) -> None:
    world = tried()
    strategy_of(METHODS["fedavg"](), world, out=tmp_path / "federated").start(
        Here(app_of(world, simulated=False), 4), num_rounds=2
    )
    spec = {"scenario": SCENARIO, "methods": [{"name": "fedavg"}], "rounds": 2, "workers": 1}
    (simulated,) = begin(make({**spec, "training": TRAINING}), tmp_path / "simulated")
    for _ in simulated.rounds():
        pass
    found = summary(tmp_path / "federated")["privacy"]
    expected = summary(tmp_path / "simulated")["privacy"]
    assert found["of_client"] == pytest.approx(expected["of_client"])
    assert found["words"] == expected["words"]
    rows = len(world.clients[0].train)
    assert found["of_client"]["0"] == pytest.approx(
        spent_by_rows(rows, 2, batch=40, noise=1.5, sampling="poisson")
    )
    # Of numbers of rows that differ, the least counts.
    record = Record(tmp_path / "federated")
    lines = [dict(line) for line in record.lines()]
    lines[1]["rows"] = {**lines[1]["rows"], "0": rows // 2}
    fewer = spent_privacy(record.description(), lines)
    assert fewer is not None
    assert fewer["of_client"]["0"] > found["of_client"]["0"]


def test_a_real_node_draws_noise_that_the_server_cannot_know() -> None:
    world = tried()
    method = METHODS["fedavg"]()
    models = []
    for simulated in (True, True, False, False):
        grid = Here(app_of(world, simulated), 4)
        (done,) = strategy_of(method, world).rounds(grid, 1)
        models.append(done.assignment.models)
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])
    assert not torch.equal(models[2], models[3])


def refused_by_first_node(tmp_path: Path, rule: str, world: World, count: int = 1) -> str | None:
    """Why the first node, which has a rule, is refused in the last round; None if it is not."""
    grid = Here(app_of(world, simulated=False), 4)
    first_node = min(grid.contexts)
    config = {"partition-id": 0, "row-privacy": rule, "keep-dir": str(tmp_path)}
    grid.contexts[first_node] = Context(
        run_id=1, node_id=first_node, node_config=config, state=RecordDict(), run_config={}
    )
    *_, done = strategy_of(METHODS["fedavg"](), world).rounds(grid, count)
    return done.refused.get(0)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("noise=2", "this node demands noise >= 2"),
        ("noise=1, clip=0.1", "this node demands clip <= 0.1"),
        ("clip=1", "must state noise"),
        ("noise=1, sigma=2", "must have numbers > 0 for noise, clip, epsilon, delta"),
        ("noise=yes", "must have numbers > 0"),
    ],
)
def test_a_node_refuses_less_than_its_operator_demands(
    tmp_path: Path, rule: str, words: str
) -> None:
    refusal = refused_by_first_node(tmp_path, rule, tried())
    assert refusal is not None
    assert words in refusal


def test_a_node_counts_its_epsilon_over_all_runs(tmp_path: Path) -> None:
    world = tried()
    rows = len(world.clients[0].train)
    of_two_rounds = spent_by_rows(rows, 2, batch=40, noise=1.5)
    rule = f"noise=1, epsilon={of_two_rounds * 1.001}"
    assert refused_by_first_node(tmp_path, rule, world, count=2) is None
    refusal = refused_by_first_node(tmp_path, rule, world)
    assert refusal is not None
    assert "this node's privacy budget is spent: one more answer would raise" in refusal
    # A count that cannot be read is not taken as none.
    (tmp_path / "row-privacy.json").write_text('{"2 1": 3}')
    refusal = refused_by_first_node(tmp_path, rule, world)
    assert refusal is not None
    assert "is damaged" in refusal


def test_a_node_with_a_rule_does_not_train_without_noise(tmp_path: Path) -> None:
    world = replace(tried(), training=Training(batch=40))
    refusal = refused_by_first_node(tmp_path, "noise=1", world)
    assert refusal is not None
    assert "this node trains only with dp-sgd" in refusal
    assert "the server asks for sgd" in refusal


def test_what_the_noise_does_not_cover_is_refused_at_the_server() -> None:
    with pytest.raises(SettingError, match="which its noise does not cover"):
        over_flower(METHODS["ifca"](models=2), tried(), 1)


def test_an_app_that_trains_by_itself_is_refused() -> None:
    world = tried()
    grid = Here(foreign(world), 4, named=False)
    with pytest.raises(
        SettingError, match="trains by code of its own, which cannot train with dp-sgd"
    ):
        list(strategy_of(METHODS["fedavg"](), world).rounds(grid, 1))


def test_epsilon_of_counts_is_that_of_the_accountant() -> None:
    assert epsilon_of_counts({}, 1e-5) == 0
    passes = {"1.0 2.0": 5}
    assert epsilon_of_counts(passes, 1e-5) == pytest.approx(
        spent_by_rows(100, 5, noise=2.0, sampling="shuffled")
    )
    # 20 steps of 25 of 100 rows are five passes.
    steps = {"0.25 1.5": 20}
    assert epsilon_of_counts(steps, 1e-5) == pytest.approx(
        spent_by_rows(100, 5, batch=25, noise=1.5)
    )
    both = epsilon_of_counts({**passes, **steps}, 1e-5)
    assert both > max(epsilon_of_counts(passes, 1e-5), epsilon_of_counts(steps, 1e-5))
    rule = NodeRule.of_config({"row-privacy": "noise=1.5"})
    assert rule == NodeRule(1.5, math.inf, math.inf, 1e-5)
    assert NodeRule.of_config({}) is None
