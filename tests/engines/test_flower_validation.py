"""Validation scores over Flower: nodes set rows aside, do not train on them, and report their scores as one process does."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Message

import coterie
from alone import alone
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines import rounds
from coterie.engines.flower.messages import METRICS_RECORD, QUERY
from coterie.methods import IFCA, Ditto, FedAvg, FedPer, KNNPer
from coterie.training import set_aside
from flowered import Here, app_of, over_flower, strategy_of

IN_A_RUN = pytest.mark.usefixtures("flower_run")


def world(clients: int = 4) -> World:
    scenario = replace(SCENARIOS["digits/dirichlet"], clients=clients, samples=60)
    return set_aside(scenario.build(3), 0.3, 3)


@IN_A_RUN
@pytest.mark.parametrize(
    "method",
    [FedAvg(), IFCA(models=2), FedPer(), Ditto(), KNNPer(neighbours=3)],
    ids=lambda method: method.name,
)
def test_validation_scores_are_those_of_one_process(method: Any) -> None:
    expected = list(rounds.rounds(method, world(), rounds=2, seed=3, workers=1))
    found = over_flower(method, world(), 2, seed=3)
    for one, other in zip(found, expected, strict=True):
        assert one.scores is not None
        assert other.scores is not None
        assert one.scores.keys() == other.scores.keys()
        for client, scores in other.scores.items():
            assert {"accuracy", "validation_accuracy", "validation_loss"} <= set(scores)
            for metric, value in scores.items():
                assert one.scores[client][metric] == pytest.approx(value, abs=1e-4), metric


@IN_A_RUN
def test_of_a_node_that_does_not_answer_all_scores_are_missing() -> None:
    tried = world()
    grid = Here(app_of(tried), 4)
    silent_node = grid.get_node_ids()[2]

    def fate(message: Message) -> str | None:
        is_test = message.metadata.message_type.startswith("evaluate")
        is_test = is_test and message.metadata.message_type != QUERY
        return "silent" if is_test and message.metadata.dst_node_id == silent_node else None

    grid.fate = fate
    (done,) = strategy_of(FedAvg(), tried, seed=3).rounds(grid, 1)
    assert done.scores is not None
    missing = {client for client, scores in done.scores.items() if math.isnan(scores["loss"])}
    assert len(missing) == 1
    for client, scores in done.scores.items():
        assert math.isnan(scores["validation_accuracy"]) == (client in missing)


@IN_A_RUN
def test_nodes_without_such_rows_report_no_validation_score() -> None:
    tried = replace(SCENARIOS["digits/dirichlet"], clients=3, samples=60).build(3)
    grid = Here(app_of(tried), 3)
    (done,) = strategy_of(FedAvg(), tried).rounds(grid, 1)
    assert done.scores is not None
    assert set(done.scores[0]) == {"loss", "accuracy"}
    for message, reply in grid.messages:
        if message.metadata.message_type == "evaluate":
            assert reply is not None
            names = set(reply.content[METRICS_RECORD])
            assert names == {"loss", "accuracy", "num-examples"}


@pytest.mark.slow
def test_a_simulation_stops_early_and_records_them_as_one_process_does(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    scenario = replace(SCENARIOS["digits/dirichlet"], clients=4, samples=60)
    lines = {}
    best_scores = {}
    for engine in ("inprocess", "flower"):
        with alone():
            (run,) = coterie.begin(
                scenario,
                tmp_path / engine,
                "fedavg",
                rounds=12,
                workers=1,
                engine=engine,
                validation_share=0.3,
                stop_after=2,
                training={"lr": 0.5},
            ).finish()
        text = (run.folder / "rounds.jsonl").read_text()
        lines[engine] = [json.loads(line) for line in text.splitlines()]
        best = coterie.compare(tmp_path / engine, best_round=True)[0]
        best_scores[engine] = best["validation_accuracy"]["values"]
        assert len(run.record.description()["world"]["validation_rows"]) == 4
    assert len(lines["flower"]) == len(lines["inprocess"]) < 12
    assert best_scores["flower"] == pytest.approx(best_scores["inprocess"], abs=1e-4)
    for one, other in zip(lines["flower"], lines["inprocess"], strict=True):
        for client, scores in other["clients"].items():
            assert one["clients"][client] == pytest.approx(scores, abs=1e-3)
