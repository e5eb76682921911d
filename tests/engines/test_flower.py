"""Methods over Flower's messages: the same results as in one process, other people's apps, faults, and going on."""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from coterie.boundary import Boundary
from coterie.core import Cohort, Federation, Holdout, Neighbours, Task, Training
from coterie.data.objective import Objective
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.flower import MethodStrategy, client_app, messages
from coterie.engines.flower.messages import QUERY, WHO
from coterie.engines.workers import EngineError
from coterie.methods import (
    ACFL,
    CFL,
    FLSC,
    HCCT,
    HCCTE,
    IFCA,
    METHODS,
    FedAvg,
    FedPer,
    KNNPer,
    SplitHalf,
    Tuned,
    tuned,
)
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.report.explain import explain
from coterie.report.summary import summary
from coterie.settings import SettingError
from flowered import FIRST, Here, app_of, foreign, over_flower, same, strategy_of
from method_examples import of_each_kind, slow
from small import FEATURES, mlp, world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3, 4, 5)


# -- agreement
# --------------------------------------------------------------------------------------------------------------


def test_perplexity_is_the_same_as_in_one_process() -> None:
    tried = replace(world(IDS), objective=Objective(metrics=("accuracy", "perplexity")))
    metrics = {name: (name,) for name in ("loss", *tried.objective.named)}
    found, expected = (
        over_flower(FedAvg(), tried, 1, metrics=metrics),
        inprocess.rounds(FedAvg(), tried, rounds=1, workers=1),
    )
    for one, other in zip(found, expected, strict=True):
        assert one.scores is not None
        assert other.scores is not None
        for client, score in other.scores.items():
            assert one.scores[client] == pytest.approx(score, rel=1e-4)
            assert one.scores[client]["perplexity"] == pytest.approx(
                math.exp(score["loss"]), rel=1e-4
            )


@pytest.mark.parametrize("name", of_each_kind(METHODS))
def test_every_method_finds_over_flower_what_it_finds_in_one_process(name: str) -> None:
    tried = world(range(8))
    method = METHODS[name]()
    # One client at a time, as over Flower: a block's rounding can turn a ReLU, and then grows with
    # the steps.
    same(
        over_flower(method, tried, 4),
        list(inprocess.rounds(method, tried, rounds=4, workers=1, width=1)),
    )


@pytest.mark.slow
def test_neighbours_over_flower_are_those_in_one_process() -> None:
    """Of clients with validation examples and without; the weight, the order and the neighbours are sent."""
    tried = replace(SCENARIOS["digits/label-permutation"], clients=8).build(0)
    none = {
        c: replace(d, validation=d.train.at(torch.arange(0)))
        for c, d in tried.clients.items()
        if c % 2
    }
    tried = replace(tried, clients={**tried.clients, **none})
    method = KNNPer(neighbours=4, scale=0.5, holdout=0.3)
    found = over_flower(method, tried, 3)
    same(found, list(inprocess.rounds(method, tried, rounds=3, workers=1, width=1)))
    alone = over_flower(FedAvg(), tried, 3)
    assert found[-1].scores is not None
    assert alone[-1].scores is not None
    assert (
        sum(
            found[-1].scores[c]["accuracy"] > score["accuracy"]
            for c, score in alone[-1].scores.items()
        )
        > 4
    )


def test_held_out_losses_with_neighbours_decide_over_flower_as_in_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "NEIGHBOURS_EVERY", 2)
    tried = replace(SCENARIOS["digits/label-permutation"], clients=4).build(0)
    method = Tuned(neighbours=4, epochs=1)
    found = over_flower(method, tried, 4)
    same(found, list(inprocess.rounds(method, tried, rounds=4, workers=1, width=1)))
    assert found[-1].assignment.by_neighbours == tuple(range(4))


def test_an_order_with_neighbours_survives_and_wrong_ones_are_refused() -> None:
    near = Neighbours(layer="2", k=3, scale=0.5, weights=(0.0, 1.0), holdout=0.1)
    order = messages.Order(
        task=Task(offered=(0,)),
        training=Training(),
        lr=0.1,
        key=(0, 1, 2),
        client=3,
        neighbours=near,
    )
    measured = replace(order, task=Task(offered=(0,), holdout=Holdout(neighbours=near)))
    assert (
        messages.order_from_json(json.loads(json.dumps(messages.order_to_json(measured))))
        == measured
    )
    sent = json.loads(json.dumps(messages.order_to_json(order)))
    assert messages.order_from_json(sent) == order
    for wrong in (
        {"k": 0},
        {"k": 1.5},
        {"weights": [True]},
        {"scale": -1.0},
        {"layer": 3},
        {"holdout": "x"},
        {"more": 1},
    ):
        with pytest.raises((ValueError, TypeError), match=r"Neighbours|supported"):
            messages.order_from_json({**sent, "neighbours": {**sent["neighbours"], **wrong}})


def test_neighbours_need_apps_that_know_coterie() -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    with pytest.raises(
        SettingError,
        match=r"^knn-per serves clients by their nearest training examples, which no app here",
    ):
        strategy_of(KNNPer(), tried).start(grid, num_rounds=3)
    assert {message.metadata.message_type for message, _ in grid.messages} == {QUERY}


@seeded(0)
def test_flowers_own_loop_comes_to_the_same() -> None:
    """Its start() calls configure_train and aggregate_train in turn; ours also knows rounds of several exchanges."""
    tried = world(IDS)
    strategy = strategy_of(CFL(), tried)
    result = Strategy.start(
        strategy, Here(app_of(tried), 6), ArrayRecord(first_state(tried)), num_rounds=3
    )
    other = strategy_of(CFL(), tried)
    other.start(Here(app_of(tried), 6), ArrayRecord(first_state(tried)), num_rounds=3)
    assert strategy.last is not None
    assert other.last is not None
    assert torch.equal(strategy.last.assignment.models, other.last.assignment.models)
    assert "accuracy" in result.evaluate_metrics_clientapp[3]


@seeded(3)
def first_state(tried: World) -> dict[str, Tensor]:
    return tried.model().state_dict()


@seeded(0)
def test_the_first_model_may_be_given() -> None:
    tried = world(IDS)
    strategy = strategy_of(FedAvg(), tried, training=Training(lr=1e-9))
    strategy.start(Here(app_of(tried), 6), ArrayRecord(first_state(tried)), num_rounds=1)
    assert strategy.last is not None
    row = strategy.settings.layout.row(first_state(tried))
    torch.testing.assert_close(strategy.last.assignment.models[0], row, rtol=1e-4, atol=1e-5)


# -- apps that know nothing of Coterie
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "cfl", "hcct-e", *slow("flhc", "hcct")])
@seeded(0)
def test_an_app_that_knows_nothing_of_coterie_takes_part(name: str) -> None:
    tried = replace(world(IDS), training=Training(batch=0, lr=0.2, lr_decay=0.9))
    method = METHODS[name]()
    found = list(strategy_of(method, tried).rounds(Here(foreign(tried), 6, named=False), 3))
    same(found, list(inprocess.rounds(method, tried, rounds=3, workers=1)))


@seeded(0)
def test_an_app_that_knows_nothing_of_coterie_gets_no_message_that_it_cannot_answer() -> None:
    """Also when it was silent for a while, is away and is asked whether it is there again."""
    tried = world(IDS)
    plain, failed = foreign(tried), []

    def app(message: Message, context: Context) -> Message:
        try:
            return plain(message, context)
        except Exception as error:  # Flower logs a traceback for it
            failed.append(error)
            raise

    grid, quiet = Here(app, 6, named=False), [True]  # type: ignore[arg-type]
    grid.fate = lambda m: (
        "silent"
        if m.metadata.dst_node_id == FIRST and m.metadata.message_type != QUERY and quiet[0]
        else None
    )
    config = ConfigRecord({"momentum": 0.5})
    strategy = strategy_of(FedAvg(), tried, patience=1, out=None)
    for done in strategy.rounds(grid, 5):
        quiet[0] = done.number < 3
    assert 0 in done.position.members
    strategy.start(grid, num_rounds=1, evaluate_config=config)
    assert not failed
    asked = [m.content["config"] for m, _ in grid.messages if m.metadata.message_type == QUERY]
    assert len(asked) > 12
    assert asked[-1] == ConfigRecord({"momentum": 0.5, "lr": tried.training.lr, "server-round": 0})


@seeded(0)
def test_a_failing_test_keeps_an_app_out_and_is_told_while_the_server_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flwr.coterie")
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    del grid.contexts[FIRST].node_config["place"]
    with pytest.raises(
        EngineError,
        match=f"6 clients, and 6 nodes connected; node {FIRST} did not report.*failed: 'place'$",
    ):
        next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert [
        r
        for r in caplog.messages
        if r.startswith(f"node {FIRST} did not report its client id in 3 queries")
    ]


def test_an_app_of_flowers_earlier_interface_takes_no_part_and_is_told_why() -> None:
    class Earlier(NumPyClient):
        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 1.0, 5, {}

    app = ClientApp(client_fn=lambda context: Earlier().to_client())
    says = "does not take part: its app has Flower's earlier interface, client_fn; it needs functions for @app.train and"
    with pytest.raises(EngineError, match=says):
        next(strategy_of(FedAvg(), world(IDS)).rounds(Here(app, 6), 1))


@seeded(0)
def test_an_app_without_a_function_for_tests_takes_part() -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    del grid.app._registered_funcs["evaluate.default"]
    assert next(strategy_of(FedAvg(), tried).rounds(grid, 1)).answered == 6


@seeded(0)
def test_apps_receive_the_config_of_the_server_app() -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    strategy_of(FedAvg(), tried).start(
        grid, num_rounds=1, train_config=ConfigRecord({"momentum": 0.5, "lr": 9.0})
    )
    configs = [m.content["config"] for m, _ in grid.messages if m.metadata.message_type == "train"]
    assert {(config["momentum"], config["lr"]) for config in configs} == {(0.5, tried.training.lr)}


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (IFCA(), "to choose among several models"), (FedPer(), "to keep some layers"), (ACFL(), "to train differently"),
        (HCCT(cosines="signals"), "for updates of both halves"), (HCCTE(cosines="signals"), "for updates of both halves"),
        (CFL(gamma_max=None), "for updates of both halves"), (SplitHalf(), "for updates of both halves"),
        (FLSC(first="random", overlap=1), "for the loss of a model"),
        (CFL(similarity="gradients", post_split="parent-mean"), "for a gradient instead of an update"),
    ],
    ids=str,
)  # fmt: skip
def test_what_such_an_app_would_ignore_is_refused_before_anybody_trains(
    method: Any, says: str, tmp_path: Path
) -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    instead = "client_app, or use fedavg, fedopt, cfl, flhc, hcct or hcct-e with default settings"
    sentence = f"^{method.name} asks a client {says}.*{instead}$"
    with pytest.raises(SettingError, match=sentence):
        strategy_of(method, tried, out=tmp_path / "run").start(grid, num_rounds=3)
    assert {message.metadata.message_type for message, _ in grid.messages} == {QUERY}
    assert not (tmp_path / "run" / "run.toml").exists()


@seeded(0)
def test_one_app_that_knows_of_coterie_is_enough_to_begin_with() -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    knowing, usual = app_of(tried), grid.app
    grid.contexts[FIRST].node_config["partition-id"] = 0
    grid.app = lambda message, context: (knowing if context.node_id == FIRST else usual)(
        message, context
    )  # type: ignore[assignment]
    (done,) = strategy_of(HCCT(cosines="signals"), tried).rounds(grid, 1)
    assert done.answered == 1
    assert set(done.refused) == set(IDS[1:])
    assert all("for updates of both halves" in why for why in done.refused.values())


def test_the_methods_named_to_them_are_those_that_they_can_do() -> None:
    federation = Federation(
        clients=IDS, draw=lambda i: torch.zeros(4), columns={"a": (0, 2), "b": (2, 4)}, dense=("b",)
    )
    able = []
    for name, cls in METHODS.items():
        method = cls()
        first = method.plan(method.init(federation), Cohort(present=IDS, exchange=0, seed=0))
        try:
            messages.check(method, first, ())
        except SettingError:
            continue
        able.append(name)
    assert set(able) == set(messages.METHODS_FOR_ANY_APP)


# -- faults
# -------------------------------------------------------------------------------------------------------------------


def spoiling(
    node: int, reply: Callable[[Message], Any], after: int = 0
) -> Callable[[Message], Any]:
    """A fate: what a node replies to training from some round on."""

    def fate(message: Message) -> Any:
        its = message.metadata.dst_node_id == node and message.metadata.message_type == "train"
        return reply(message) if its and message.content["config"]["server-round"] > after else None

    return fate


def arrays(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> Callable[[Message], RecordDict]:
    def reply(message: Message) -> RecordDict:
        state = change(dict(message.content["arrays"].to_torch_state_dict()))
        return RecordDict(
            {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 5})}
        )

    return reply


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (arrays(lambda s: {n: t * torch.nan for n, t in s.items()}), "NaN"),
        (arrays(lambda s: {n: t[:1] for n, t in s.items()}), "has shape"),
        (arrays(lambda s: {n: t.to(torch.int64) for n, t in s.items()}), "not of floating-point"),
        (arrays(lambda s: {"other": torch.zeros(3)}), "lack"),
        (
            lambda m: RecordDict(
                {"arrays": m.content["arrays"], "metrics": MetricRecord({"loss": 1.0})}
            ),
            "number of examples",
        ),
        (lambda m: RecordDict({"metrics": MetricRecord({"num-examples": 5})}), "array records"),
        (lambda m: RecordDict({}), "metric records"),
    ],
    ids=["nan", "shape", "type", "names", "examples", "no arrays", "nothing"],
)
def test_a_reply_that_is_of_no_use_is_refused_with_the_reason(
    reply: Callable[[Message], Any], says: str
) -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    grid.fate = spoiling(FIRST + 7 * 2, reply)
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert set(done.refused) == {2}
    assert says in done.refused[2]
    assert (done.asked, done.answered) == (6, 5)
    assert torch.isfinite(done.assignment.models).all()


@seeded(0)
def test_an_app_that_fails_is_refused_and_the_others_go_on() -> None:
    tried = world(IDS)
    data = tried.clients[4]
    wide = replace(data, train=replace(data.train, inputs=torch.randn(len(data.train.inputs), 99)))
    grid = Here(app_of(replace(tried, clients={**tried.clients, 4: wide})), 6)
    for context in grid.contexts.values():
        context.node_config["schema"] = "none"  # else it would be refused before it trains
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert set(done.refused) == {4}
    assert "its app failed: mat1 and mat2 shapes cannot be multiplied" in done.refused[4]


@pytest.mark.parametrize("client", [-1, 1.5, 1e300, math.nan, [3]], ids=str)
def test_a_node_with_an_invalid_id_takes_no_part_and_is_noted(client: Any) -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    odd = RecordDict({WHO: MetricRecord({"client": client})})
    grid.fate = lambda m: (
        odd
        if m.metadata.dst_node_id == FIRST + 7 * 5 and m.metadata.message_type == QUERY
        else None
    )
    found = list(strategy_of(FedAvg(), tried, nodes=5).rounds(grid, 3))
    assert found[-1].position.members == (0, 1, 2, 3, 4)
    notes = [note.text for done in found for note in done.notes if note.kind == "node"]
    why = "its client id must be a non-negative integer"
    assert notes == [
        f"node {FIRST + 35} did not report its client id in 3 queries and does not take part: {why}"
    ]


def test_a_node_that_is_slow_to_report_its_id_is_asked_again() -> None:
    tried = world(IDS)
    grid, slow = Here(app_of(tried), 6), FIRST
    asked: list[Message] = []

    def fate(message: Message) -> Any:
        if message.metadata.message_type == QUERY and message.metadata.dst_node_id == slow:
            asked.append(message)
        return "silent" if asked and message is asked[0] else None

    grid.fate = fate
    done = next(strategy_of(FedAvg(), tried, nodes=5).rounds(grid, 1))
    assert len(asked) == 2
    assert [(note.kind, note.clients) for note in done.notes] == [
        ("arrive", (0,))
    ]  # and nobody else was called that
    assert done.position.members == IDS


@seeded(0)
def test_a_plain_app_that_joins_late_stops_nobody() -> None:
    tried = world(IDS)
    grid, usual, plain = Here(app_of(tried), 5), app_of(tried), foreign(tried)
    grid.app = lambda m, c: (plain if c.node_id == 77 else usual)(m, c)  # type: ignore[assignment]
    rounds = strategy_of(FedPer(), tried, nodes=5).rounds(grid, 3)
    next(rounds)
    grid.join(5, node=77)
    grid.contexts[77].node_config = {"place": 5}
    done = next(rounds)
    assert (done.asked, done.answered, set(done.refused)) == (6, 5, {5})
    assert (
        "fedper asks a client to keep some layers, which client 5's app does not support"
        in done.refused[5]
    )


MALFORMED = [
    b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    + f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**15},), }}".ljust(117).encode() + b"\n",
    b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00\x05\x00{{{{{", b"", b"\x80\x04}.",
]  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED, ids=["huge", "zip", "header", "empty", "pickle"])
def test_malformed_arrays_are_refused(data: bytes) -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)

    def reply(message: Message) -> RecordDict:
        arrays = message.content["arrays"]
        name = next(iter(arrays))
        arrays[name] = Array(dtype="float32", shape=(8, 5), stype="numpy.ndarray", data=data)
        return RecordDict(
            {"arrays": ArrayRecord(dict(arrays)), "metrics": MetricRecord({"num-examples": 5})}
        )

    grid.fate = spoiling(FIRST, lambda m: reply(copy.deepcopy(m)))
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert set(done.refused) == {0}
    assert "cannot be read" in done.refused[0] or "has shape (1000000000000000,)" in done.refused[0]


@seeded(0)
def test_tensors_that_do_not_travel_reach_no_mean() -> None:
    tried = world(IDS)
    grid, layout = Here(app_of(tried), 6), Layout(tried.model())
    large = {
        piece.name: torch.full(piece.shape, 1e3 if piece.name.startswith("2.") else 0.0)
        for piece in layout.pieces
    }
    sent = RecordDict({"update": ArrayRecord(large), "metrics": MetricRecord({"num-examples": 5})})
    grid.fate = spoiling(FIRST, lambda m: sent)
    done = next(strategy_of(FedPer(), tried).rounds(grid, 1))
    assert done.assignment.models.abs().max() < 100
    grid.fate = spoiling(
        FIRST,
        lambda m: RecordDict(
            {"update": ArrayRecord({}), "metrics": MetricRecord({"num-examples": 5})}
        ),
    )
    assert "lack '0.weight'" in next(strategy_of(FedPer(), tried).rounds(grid, 1)).refused[0]


def test_a_silent_client_leaves_after_a_while_and_is_admitted_again() -> None:
    tried, node = world(IDS), FIRST + 7 * 3
    grid = Here(app_of(tried), 6)
    grid.fate = lambda m: (
        "silent"
        if m.metadata.dst_node_id == node and m.metadata.message_type != QUERY and quiet[0]
        else None
    )
    quiet, seen = [True], []
    for done in strategy_of(CFL(), tried, patience=2).rounds(grid, 5):
        seen.append(done)
        quiet[0] = done.number < 3
    members = [3 in done.position.members for done in seen]
    assert members == [True, False, False, True, True] or members == [True, False, True, True, True]
    assert [note.kind for done in seen for note in done.notes if note.kind in ("leave", "arrive")][
        :2
    ] == ["leave", "arrive"]


def test_a_late_node_joins_and_one_that_restarts_is_the_same_client() -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 5)
    rounds = strategy_of(CFL(), tried, nodes=5).rounds(grid, 5)
    assert next(rounds).position.members == (0, 1, 2, 3, 4)
    grid.join(5)
    assert next(rounds).position.members == IDS
    del grid.contexts[FIRST]
    done = next(rounds)
    assert done.asked == 5
    grid.join(0, node=99)  # the same client by its partition, with another node id
    done = next(rounds)
    assert done.asked == 6
    assert done.position.members == IDS


def test_too_few_nodes_are_an_error_that_says_how_many_came() -> None:
    tried = world(IDS)
    with pytest.raises(EngineError, match=r"waited 0.1 s for 9 clients, and 6 nodes connected"):
        next(strategy_of(FedAvg(), tried, nodes=9, wait=0.1).rounds(Here(app_of(tried), 6), 1))


def test_of_two_nodes_of_one_client_the_later_is_asked_and_a_note_says_so() -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    rounds = strategy_of(FedAvg(), tried).rounds(grid, 4)
    assert not next(rounds).notes
    grid.join(3, node=77)
    done = next(rounds)
    assert [(note.kind, note.clients) for note in done.notes] == [("node", (3,))]
    assert "2 nodes claim to be client 3; only the one that came last is used" in done.notes[0].text
    assert (done.asked, done.answered) == (6, 6)
    assert 77 in [
        m.metadata.dst_node_id for m, _ in grid.messages if m.metadata.message_type == "train"
    ]
    assert not next(rounds).notes  # told once
    del grid.contexts[77]
    done = next(rounds)  # the earlier one is still there
    assert (done.asked, done.answered) == (6, 6)


def test_a_client_whose_node_has_gone_is_noted_once_and_when_it_is_back() -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    rounds = strategy_of(FedAvg(), tried).rounds(grid, 5)
    assert not next(rounds).notes
    context = grid.contexts.pop(FIRST)
    told = []
    for _ in range(2):
        done = next(rounds)
        assert (done.asked, done.answered, done.silent) == (5, 5, ())
        told.append([(note.kind, note.text) for note in done.notes])
    grid.contexts[FIRST] = context
    done = next(rounds)
    told.append([(note.kind, note.text) for note in done.notes])
    assert done.asked == 6
    assert told == [
        [("node", f"client {IDS[0]} is offline, and is not asked until it is back")],
        [],
        [("node", f"client {IDS[0]} is back")],
    ]


def test_who_is_offline_is_recorded_and_logged_since_when_also_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.coterie")
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    out = tmp_path / "run"
    strategy_of(FedAvg(), tried, out=out).start(grid, num_rounds=1)
    # The first client leaves a message without an answer, and then its node has gone.
    grid.fate = lambda message: (
        "silent"
        if message.metadata.dst_node_id == FIRST and message.metadata.message_type != QUERY
        else None
    )
    strategy_of(FedAvg(), tried, out=out).start(grid, num_rounds=2)
    context = grid.contexts.pop(FIRST)
    strategy_of(FedAvg(), tried, out=out, nodes=5).start(grid, num_rounds=4)
    # In a server that goes on, it is still known that the client is missing.
    caplog.clear()
    strategy_of(FedAvg(), tried, out=out, nodes=5).start(grid, num_rounds=5)
    assert f"away: {IDS[0]} is offline since round 2" in caplog.messages
    grid.contexts[FIRST] = context
    grid.fate = lambda message: None
    strategy_of(FedAvg(), tried, out=out).start(grid, num_rounds=6)
    lines = Record(out).lines()
    assert [line["silent"] for line in lines] == [[], [IDS[0]], [], [], [], []]
    absent = {str(IDS[0]): 2}
    assert [line.get("absent") for line in lines] == [None, None, absent, absent, absent, None]
    told = explain(out, client=IDS[0])
    assert (told["silent"], told["absent"]) == ([2], [3, 4, 5])
    of_run = " ".join(str(explain(out)).split())
    assert f"CLIENTS THAT WERE AWAY Client {IDS[0]}: not asked in rounds 3-5." in of_run
    sentence = "It missed rounds 2-5: it did not answer in round 2, and was away in rounds 3-5."
    assert sentence in " ".join(str(told).split())


def test_a_client_retired_since_its_node_is_offline_stays_recorded_as_absent() -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    rounds = strategy_of(FedAvg(), tried, patience=2).rounds(grid, 5)
    next(rounds)
    del grid.contexts[FIRST]
    done = [next(rounds) for _ in range(4)]
    assert IDS[0] not in done[-1].position.members
    assert [one.absent for one in done] == [{IDS[0]: 2}] * 4


def test_a_listed_client_that_never_came_is_absent(caplog: pytest.LogCaptureFixture) -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    listed = {client: FIRST + 7 * place for place, client in enumerate(IDS)}
    strategy = strategy_of(FedAvg(), tried, identity={**listed, "south": 12345})
    done = next(strategy.rounds(grid, 1))
    assert done.answered == 6
    strategy._log_round(done)
    assert "away: south is offline since round 1" in caplog.messages


def test_two_nodes_of_one_client_do_not_count_as_two() -> None:
    tried = world(IDS)
    grid = Here(app_of(tried), 6)
    grid.join(3, node=77)
    with pytest.raises(
        EngineError, match="7 clients, and 7 nodes connected; 2 nodes claim to be client 3"
    ):
        next(strategy_of(FedAvg(), tried, nodes=7, wait=0.1).rounds(grid, 1))


def test_a_run_config_has_every_setting() -> None:
    config = {
        "method": "hcct",
        "hcct.personal": 1,
        "training.lr": 0.3,
        "boundary.clip": 2.0,
        "nodes": 3,
        "eval-every": 2,
        "metrics.accuracy": "hits,share",
        "metrics.loss": "nll",
        "timeout": 5.0,
        "out": "",
        "hidden-units": 32,
    }
    for written, rounds in (("3,6", (3, 6)), ("3,", (3,))):
        lists = {"method": "cfl", "cfl.split_rounds": written}
        method = MethodStrategy.from_config(lists, mlp).settings.method
        assert method == CFL(split_rounds=rounds)
    assert MethodStrategy.from_config({}, mlp).settings.method == METHODS["auto"]()
    terms = MethodStrategy.from_config(config, mlp, patience=4).settings
    assert terms.method == METHODS["hcct"](personal=1)
    assert (terms.training.lr, terms.boundary, terms.metric_names["accuracy"]) == (
        0.3,
        Boundary(clip=2.0),
        ("hits", "share"),
    )
    assert (terms.nodes, terms.eval_every, terms.waiting.timeout, terms.patience) == (3, 2, 5.0, 4)
    with pytest.raises(SettingError, match=r"CFL has no setting 'eps'"):
        MethodStrategy.from_config({"method": "cfl", "cfl.eps": 1.0}, mlp)


def test_a_strategy_takes_names_and_tables_and_refuses_the_rest() -> None:
    tables = {"training": {"lr": 0.3}, "boundary": {"clip": 2.0}, "robust": {"mean": "median"}}
    terms = MethodStrategy("hcct", mlp, metrics={"accuracy": "hits"}, **tables).settings
    assert (terms.method, terms.training.lr, terms.metric_names["accuracy"]) == (
        METHODS["hcct"](),
        0.3,
        ("hits",),
    )
    assert (terms.boundary, terms.robust.mean) == (Boundary(clip=2.0), "median")
    for given, sentence in (
        ({"method": METHODS["cfl"]}, r"got the class CFL: write CFL\(\)"),
        (
            {"model": nn.Identity()},
            "MethodStrategy.model must be a function that makes a fresh module, .*, got the module Identity",
        ),
        ({"metrics": ["accuracy"]}, "metrics must be a mapping"),
        ({"training": 3}, "training must be a coterie.Training or a table"),
    ):
        with pytest.raises(SettingError, match=sentence):
            MethodStrategy(**{"method": "cfl", "model": mlp, **given})


def test_slips_in_a_run_config_are_named(caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "metod": "auto",
        "min_replies": 0.5,
        "level": 0.3,
        "cfl.eps1": 0.3,
        "lr": 0.1,
        "num-server-rounds": 3,
        "fraction-evaluate": 1.0,
    }
    log = logging.getLogger("flwr.coterie")
    caplog.set_level(logging.WARNING, "flwr.coterie")  # another test may have silenced Flower
    log.addHandler(caplog.handler)
    MethodStrategy.from_config(config, mlp)
    log.removeHandler(caplog.handler)
    assert list(dict.fromkeys(record.getMessage() for record in caplog.records)) == [
        f"the run config has {key!r}, which Coterie does not read; did you mean {meant}?"
        for key, meant in (
            ("metod", "method"),
            ("min_replies", "min-replies"),
            ("level", "auto.level"),
        )
    ] + [
        "the run config has 'cfl.eps1' and no method, so auto runs; for cfl, write method = \"cfl\""
    ]


@pytest.mark.parametrize("name", ["nodes", "patience", "seed", "eval_every"])
def test_invalid_settings_are_refused(name: str) -> None:
    with pytest.raises(
        SettingError, match=f"MethodStrategy.{name} must be an integer >= [01], got -1"
    ):
        MethodStrategy(FedAvg(), mlp, **{name: -1})


def test_an_app_takes_one_way_of_being_made() -> None:
    with pytest.raises(TypeError, match="model and data, or participant"):
        client_app(model=mlp)


# -- records
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", [CFL(), FedPer()], ids=lambda m: m.name)
def test_a_server_that_was_stopped_goes_on(method: Any, tmp_path: Path) -> None:
    tried = SCENARIOS["digits/label-permutation"]
    tried = replace(tried, clients=6).build(0)
    whole = over_flower(method, tried, 5)
    grid = Here(app_of(tried), 6)
    strategy_of(method, tried, out=tmp_path / "run").start(grid, num_rounds=3)
    again = strategy_of(
        method, tried, out=tmp_path / "run"
    )  # another process; the clients are still there
    again.start(grid, num_rounds=5)
    assert again.last is not None
    assert torch.equal(again.last.assignment.models, whole[-1].assignment.models)
    assert again.last.scores == whole[-1].scores
    told = summary(tmp_path / "run")
    assert (told["method"], told["scenario"], told["rounds"]) == (method.name, "federation", 5)


@seeded(0)
def test_layers_that_stay_are_sent_once_to_every_node() -> None:
    tried = world(IDS)
    grid, layout = Here(app_of(tried), 6), Layout(tried.model())
    down: list[int] = []  # bytes of the arrays as they leave: each has a header of 128 besides

    def noted(message: Message) -> Any:
        if message.metadata.message_type in ("train", "evaluate"):
            down.append(
                sum(
                    len(a.data) - 128
                    for r in message.content.array_records.values()
                    for a in r.values()
                )
            )

    grid.fate = noted
    rounds = strategy_of(FedPer(), tried).rounds(grid, 3)
    done = next(rounds)
    own = done.bytes_down // 6
    assert down == [4 * layout.size] * 6 + [own] * 6
    assert own < 4 * layout.size
    grid.contexts[
        FIRST
    ].state = RecordDict()  # a node loses what it had: refused once, and sent all of it then
    del down[:]
    done = next(rounds)
    assert set(done.refused) == {0}
    assert (
        "lack '2.weight'; they are from another model; or this client has lost its personal layers"
        in done.refused[0]
    )
    assert down[:6] == [own] * 6
    assert next(rounds).answered == 6
    assert down[12:18] == [4 * layout.size, *[own] * 5]


class Tied(nn.Module):
    """A net whose two layers are one, and with a buffer that no row carries."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@seeded(0)
def test_a_tensor_with_two_names_is_sent_under_both() -> None:
    tried = replace(world(IDS), model=Tied, training=Training(batch=0, lr=0.2))
    found = list(strategy_of(FedAvg(), tried).rounds(Here(foreign(tried), 6, named=False), 3))
    same(found, list(inprocess.rounds(FedAvg(), tried, rounds=3, workers=1)))
