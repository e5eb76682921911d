"""Rounds over data that drift: the same as runs over each time step's data, one after the other; workers, resume, records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.contrib.tracking.metrics import Metrics
from coterie.core import Method, Position, Round
from coterie.data.world import Drift, World
from coterie.engines.rounds import rounds
from coterie.methods import IFCA, FedAvg, KNNPer, SplitHalf
from coterie.records.codec import DamagedError
from coterie.records.record import Record
from coterie.records.schema import check_description
from coterie.records.shown import truth_at
from coterie.report.summary import agreement_at
from coterie.runs.experiment import make
from coterie.settings import SettingError, UserError
from small import client, world

IDS, PERIOD = (2, 3, 7), 2


def drifting(**more: Any) -> World:
    """Three time steps; client 7 keeps its data in the second one."""
    first = {c: client(c) for c in IDS}
    second = {**{c: client(c + 20, train=16) for c in IDS}, 7: first[7]}
    data = [first, second, {c: client(c + 40, train=24) for c in IDS}]
    concepts = [dict.fromkeys(IDS, 0), {2: 1, 3: 1, 7: 0}, {2: 1, 3: 0, 7: 0}]
    return world(
        IDS, clients=first, drift=Drift(period=PERIOD, concepts=concepts, data=data), **more
    )


def same(a: Round, b: Round) -> None:
    assert torch.equal(a.assignment.models, b.assignment.models)
    assert a.assignment.groups == b.assignment.groups
    assert a.scores == b.scores
    assert (a.bytes_up, a.bytes_down, a.position.exchange) == (
        b.bytes_up,
        b.bytes_down,
        b.position.exchange,
    )


METHODS: list[Method[Any]] = [
    FedAvg(),
    IFCA(models=2),
    KNNPer(),
    SplitHalf(probe_every=1),
    SplitHalf(alert=True),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_it_is_a_run_on_one_step_after_the_other(method: Method[Any]) -> None:
    whole = drifting()
    found = list(rounds(method, whole, rounds=7, workers=1))
    start: Position | None = None
    for step, clients in enumerate(whole.steps):
        part = replace(whole, clients=clients, drift=None)
        last = 7 if step == 2 else PERIOD * (step + 1)
        for one in rounds(method, part, rounds=last, workers=1, start=start):
            same(one, found[one.number - 1])
            start = one.position


def test_the_number_of_workers_and_an_interruption_change_nothing() -> None:
    whole = drifting()
    found = list(rounds(IFCA(models=2), whole, rounds=6, workers=1))
    for one in rounds(IFCA(models=2), whole, rounds=6, workers=2):
        same(one, found[one.number - 1])
    for one in rounds(IFCA(models=2), whole, rounds=6, workers=1, start=found[2].position):
        same(one, found[one.number - 1])


def test_the_net_of_a_client_has_its_neighbours_of_the_round() -> None:
    whole = drifting()
    for one in rounds(KNNPer(neighbours=3), whole, rounds=3, workers=1):
        near = one.model(2)
        test = whole.steps[whole.step(one.number)][2].test
        inputs, targets = test.batch(torch.arange(len(test)))
        right = (near(inputs).argmax(1) == targets).float().mean()
        assert float(right) == pytest.approx(one.scores[2]["accuracy"])  # type: ignore[index]


NAMED = {"name": "sine/drift", "clients": 4, "examples": 400, "drift": "recurring", "period": 2}


def recorded(folder: Path, rounds: int = 9) -> Path:
    spec = {
        "scenario": NAMED,
        "methods": [{"name": "ifca", "models": 2}],
        "rounds": rounds,
        "workers": 1,
    }
    coterie.begin(make(spec), folder)
    return folder


def test_a_recorded_run_is_resumed_and_knows_the_truth_of_each_round(tmp_path: Path) -> None:
    one, two = recorded(tmp_path / "one"), recorded(tmp_path / "two")
    coterie.reopen(one).finish(workers=1)
    (run,) = coterie.reopen(two)
    for done in run.rounds(workers=1):
        if done.number == 3:
            break
    coterie.reopen(two).finish(workers=1)
    lines = [Record(folder).lines() for folder in (one, two)]
    assert [{**line, "seconds": 0} for line in lines[0]] == [
        {**line, "seconds": 0} for line in lines[1]
    ]
    facts, built = (
        Record(one).description()["world"],
        make({"scenario": NAMED, "methods": ["fedavg"]}).world(0),
    )
    assert "true_groups" not in facts
    assert facts["drift"]["period"] == 2
    for line in lines[0]:
        truth = truth_at(facts, line["round"])
        assert truth is not None
        assert tuple(sorted(map(tuple, truth))) == built.true_groups(line["round"])
        assert Metrics(facts).of(line)["groups/adjusted_rand"] == agreement_at(facts, line)
    said = coterie.summary(one)
    assert said["true_groups"] == [[0, 1, 2, 3]]
    assert said["ari"] == agreement_at(facts, lines[0][-1])
    page = tmp_path / "page.html"
    coterie.write_report(one, page)
    assert "Agreement with the true groups of each round" in page.read_text()


def test_changed_concepts_are_other_data(tmp_path: Path) -> None:
    """Also where the data of both concepts are the same."""
    data = {c: client(c) for c in IDS}
    worlds = [
        world(
            IDS,
            clients=data,
            drift=Drift(period=2, concepts=[{**dict.fromkeys(IDS, 0), 7: last}], data=[data]),
        )
        for last in (0, 1)
    ]
    runs = coterie.begin(worlds[0], tmp_path / "run", ["fedavg"], rounds=3)
    (run,) = runs
    for done in run.rounds(workers=1):
        if done.number == 1:
            break
    with pytest.raises(UserError, match="data have changed"):
        coterie.reopen(tmp_path / "run", world=worlds[1]).finish(workers=1)


def test_a_forged_drift_is_refused(tmp_path: Path) -> None:
    document = Record(recorded(tmp_path / "run", 1)).description()
    check_description(document)
    for wrong in (
        {},
        {"period": 0, "concepts": [[0]]},
        {"period": 2, "concepts": []},
        {"period": 2, "concepts": [[0], [0, 1]]},
        3,
    ):
        changed = {**document, "world": {**document["world"], "drift": wrong}}
        with pytest.raises(DamagedError):
            check_description(changed)


def test_flower_refuses_data_that_drift() -> None:
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    with pytest.raises(SettingError, match=r"Scenario.drift recurring needs engine inprocess"):
        make({"scenario": NAMED, "methods": ["fedavg"], "engine": "flower"})
