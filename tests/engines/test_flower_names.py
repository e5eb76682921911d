"""Clients of a federation have names: their nodes report them, and everything that a person reads shows them."""

from __future__ import annotations

import csv
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import coterie
from attack import flower_identity
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.contrib.tracking.trackers import Tracker
from coterie.data.world import World
from coterie.engines.flower import Participant, boundary_mod, client_app
from coterie.engines.flower.messages import NAME, QUERY, SCHEMA, WHO
from coterie.engines.flower.names import (
    SMALLEST_HASHED_ID,
    Claim,
    claim_in_config,
    claim_of,
    id_of,
    id_reply,
)
from coterie.engines.flower.nodes import Identity
from coterie.engines.flower.run_directory import read_memory
from coterie.engines.workers import EngineError
from coterie.methods import CFL, IFCA, FedAvg
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import NODES_FILE, Record
from coterie.report.explain import explain
from coterie.report.page.document import document
from coterie.settings import SettingError, UserError
from flowered import FIRST, Here, foreign, strategy_of
from small import mlp, world
from timed import Clock, Timed

IDS = (0, 1, 2, 3)
NAMES = ("hospital-A", "clinic <b>B</b>", "Ünal & sons", "42nd street")
SPLIT = CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1)
"""It splits in every round."""

A, B = str(id_of(NAMES[0])), str(id_of(NAMES[1]))


@pytest.fixture(autouse=True)
def _prepared(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr.coterie")
    if "clock" not in request.fixturenames:
        request.getfixturevalue("flower_run")


def app_of(tried: World, mods: Any = (), **how: Any) -> ClientApp:
    """An app whose nodes are called as their config says."""

    def participant(context: Context) -> Participant:
        return Participant(
            tried.clients[int(context.node_config["partition-id"])], tried.model, tried.objective
        )

    return client_app(participant=participant, mods=mods, **how)


def grid_of(tried: World, names: Sequence[Any] = NAMES, **how: Any) -> Here:
    """Nodes of clients with these names; one with None has only its number, ``partition-id``."""
    grid = Here(app_of(tried, **how), len(names))
    for i, name in enumerate(names):
        if name is not None:
            grid.contexts[FIRST + 7 * i].node_config["client-id"] = name
    return grid


def federated(
    folder: Path, names: Sequence[Any] = NAMES, rounds: int = 2, method: Any = SPLIT, **how: Any
) -> Any:
    tried = world(IDS)
    return strategy_of(method, tried, out=folder, **how).start(
        grid_of(tried, names), num_rounds=rounds
    )


def edited(folder: Path, change: Any) -> None:
    """Change ``nodes.json``, with a checksum that fits."""
    found = json.loads((folder / NODES_FILE).read_text())
    del found["checksum"]
    change(found)
    (folder / NODES_FILE).write_bytes(checksum.sealed_json(json.dumps(found).encode()))


# -- what a node is called
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, Claim(3)), ("3", Claim(3)), ("007", Claim(7)), ("9" * 18, Claim(10**18 - 1)),
     *((name, Claim(id_of(name), name)) for name in (*NAMES, "2_1", "1.5", "²", " a", "x" * 100))],
)  # fmt: skip
def test_a_whole_number_is_an_id_and_another_text_a_name(value: Any, expected: Claim) -> None:
    assert (
        claim_of(value, "client-id")
        == claim_in_config({"client-id": value, "partition-id": 5})
        == claim_in_config({"partition-id": value})
    )
    assert claim_of(value, "client-id") == expected


@pytest.mark.parametrize(
    "value",
    ["", "  ", "x" * 101, "a\nb", "a\x1b[2J", "a\u202eb", "\x7f", "\ud800", "-1", "+1", "9" * 19],
)
def test_a_text_that_can_be_neither_is_a_mistake_of_one_sentence(value: str) -> None:
    with pytest.raises(SettingError, match=r"^client-id") as found:
        claim_in_config({"client-id": value})
    assert str(found.value).isprintable()


def test_the_id_of_a_name_is_the_same_on_every_machine() -> None:
    assert id_of("hospital-A") == 2**48 + 0xA63A404E946B  # as: printf hospital-A | b2sum -l 48
    ids = {id_of(f"hospital-{i}") for i in range(10_000)}
    assert len(ids) == 10_000
    assert min(ids) >= SMALLEST_HASHED_ID
    assert max(ids) < 2 * SMALLEST_HASHED_ID


# -- a run
# ----------------------------------------------------------------------------------------------------------------


def test_a_run_shows_names_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    result = federated(run)
    shown = {name for group in result.groups for name in group}
    assert shown == set(NAMES)
    assert len(result.groups) > 1
    for group in result.groups:
        for name in group:
            assert_equal(result.arrays_of(name), result.arrays_of(group[0]))
            assert_equal(result.arrays_of(name), result.arrays_of(id_of(name)))
    assert_equal(result.arrays, result.arrays_of(result.groups[0][0]))
    with pytest.raises(
        UserError, match=r"the result has no client 'hospital-C'; its clients are .*hospital-A"
    ):
        result.arrays_of("hospital-C")
    record = Record(run)
    (description, lines), ids = record.shown(), {id_of(name) for name in NAMES}
    assert {client for group in record.lines()[-1]["groups"] for client in group} == ids
    assert set(record.description()["world"]["clients"]) == ids
    assert set(description["world"]["clients"]) == set(lines[-1]["clients"]) == set(NAMES)
    assert sorted(map(sorted, lines[-1]["groups"])) == sorted(map(sorted, result.groups))
    assert {name for group in coterie.summary(run)["groups"] for name in group} == set(NAMES)
    told = json.dumps(
        [explain(run, client="hospital-A"), explain(run), document([run]), caplog.text], default=str
    )
    assert "hospital-A" in told
    assert not [id for id in ids if str(id) in told]


def assert_equal(one: ArrayRecord, other: ArrayRecord) -> None:
    state = other.to_torch_state_dict()
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in one.to_torch_state_dict().items()
    )


def test_exported_models_are_found_by_name(tmp_path: Path) -> None:
    result = federated(tmp_path / "run")
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    assert set(json.loads((models / "models.json").read_text())["clients"]) == set(NAMES)
    for name in NAMES:
        net = coterie.load(models, name, model=world(IDS).model)
        assert_equal(ArrayRecord(net.state_dict()), result.arrays_of(name))
    assert coterie.check(tmp_path / "run").damaged == []


def test_rounds_have_names() -> None:
    tried = world(IDS)
    done = next(strategy_of(SPLIT, tried).rounds(grid_of(tried), 1))
    assert done.names == {id_of(name): name for name in NAMES}
    assert (
        {name for group in done.groups for name in group}
        == set(NAMES)
        == set(done.to_pandas()["client"])
    )


def test_names_change_nothing_but_the_random_draws_of_clients() -> None:
    """Full batches draw nothing, so that the models are those of the same clients without names."""
    tried = world(IDS)
    tried = replace(tried, training=replace(tried.training, batch=0))
    one, other = (
        next(strategy_of(FedAvg(), tried).rounds(grid_of(tried, names), 1))
        for names in (NAMES, [None] * 4)
    )
    torch.testing.assert_close(one.assignment.models, other.assignment.models)
    assert other.names == {}


def test_clients_without_a_name_are_numbers_as_text_beside_names(tmp_path: Path) -> None:
    run, mixed = tmp_path / "run", {"hospital-A", "1", "north", "3"}
    result = federated(run, ("hospital-A", None, "north", 3))
    assert {name for group in result.groups for name in group} == mixed
    assert {client for group in Record(run).lines()[-1]["groups"] for client in group} >= {1, 3}
    assert {name for group in coterie.summary(run)["groups"] for name in group} == mixed
    assert_equal(result.arrays_of(3), result.arrays_of("3"))
    assert document([run])
    assert explain(run, client="3")["client"] == "3"
    assert coterie.load(coterie.save(run, tmp_path / "models"), "3", model=world(IDS).model)


def test_an_app_may_name_its_client() -> None:
    tried = world(IDS)
    grid = grid_of(
        tried, [None] * 4, client=lambda context: f"site {context.node_config['partition-id']}"
    )
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert done.groups == (("site 0", "site 1", "site 2", "site 3"),)


def test_a_world_shows_its_own_names_over_flower(tmp_path: Path) -> None:
    """As in ``--engine flower``: nodes say the numbers, and the world knows the names."""
    tried = world(IDS)
    tried = replace(
        tried, clients={i: replace(tried.clients[i], name=name) for i, name in enumerate(NAMES)}
    )
    grid = grid_of(tried, [None] * 4)
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1, roster=tried))
    assert done.names == tried.client_names
    assert done.groups == (tuple(sorted(NAMES)),)


# -- texts of the server
# --------------------------------------------------------------------------------------------------


def test_a_client_that_answers_late_is_noted_by_its_name(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Timed(clock)
    for i, name in enumerate([*NAMES, "x", "slow"]):
        grid.join(FIRST + i, name, delay=90.0 if name == "slow" else 20.0)
    flower_identity.strategy(FedAvg(), 6, "claimed", out=tmp_path, wait=100.0).start(
        grid, num_rounds=3
    )
    _, lines = Record(tmp_path).shown()
    assert lines[0]["silent"] == ["slow"]
    late = "client slow answered late: the other clients continued without it"
    assert [(note["clients"], note["text"]) for line in lines for note in line["notes"]] == [
        (["slow"], late)
    ]
    assert f"node: {late}" in caplog.messages


def test_a_refused_task_names_the_client(caplog: pytest.LogCaptureFixture) -> None:
    tried = world(IDS)
    odd = RecordDict({"metrics": MetricRecord({"num-examples": 0})})
    grid = grid_of(tried)
    grid.fate = lambda m: (
        odd if m.metadata.dst_node_id == FIRST and m.metadata.message_type == "train" else None
    )
    strategy_of(FedAvg(), tried).start(grid, num_rounds=1)
    assert "client hospital-A refused: " in caplog.text
    assert str(id_of("hospital-A")) not in caplog.text


def test_an_app_that_cannot_do_a_task_is_named() -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 4, named=False)
    names = [id_reply(claim_of(name, ""), functions=1) for name in NAMES]
    grid.fate = lambda m: (
        names[(m.metadata.dst_node_id - FIRST) // 7] if m.metadata.message_type == QUERY else None
    )
    first = min(NAMES, key=id_of)
    with pytest.raises(
        SettingError,
        match=f"^cfl asks a client for a gradient.*, which client {first}'s app does not support",
    ):
        next(
            strategy_of(CFL(similarity="gradients", post_split="parent-mean"), tried).rounds(
                grid, 1
            )
        )


# -- identity
# -------------------------------------------------------------------------------------------------------------


def test_two_nodes_with_a_name_are_the_same_claim(caplog: pytest.LogCaptureFixture) -> None:
    tried = world(IDS)
    grid = grid_of(tried, ("hospital-A", "north", "south", "hospital-A"))
    strategy = strategy_of(FedAvg(), tried, nodes=3)
    strategy.start(grid, num_rounds=1)
    assert strategy.last is not None
    assert strategy.last.groups == (("hospital-A", "north", "south"),)
    assert (
        "2 nodes claim to be client hospital-A; only the one that came last is used" in caplog.text
    )


@pytest.mark.parametrize("known", ["first", "listed"])
def test_a_name_that_belongs_to_another_key_is_refused(
    known: str, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Timed(clock)
    for i, name in enumerate(NAMES):
        grid.join(FIRST + i, name, flower_identity.key(i))
    rule = {name: FIRST + i for i, name in enumerate(NAMES)} if known == "listed" else "first"
    flower_identity.strategy(FedAvg(), 4, rule, out=tmp_path, wait=100.0).start(grid, num_rounds=1)
    grid.join(FIRST + 9, "hospital-A", b"impostor")
    grid.join(FIRST + 10, "hospital-C", b"another")
    flower_identity.strategy(FedAvg(), 4, rule, out=tmp_path, wait=100.0).start(grid, num_rounds=2)
    line = Record(tmp_path).shown()[1][-1]
    told = [
        note["text"].partition(" with key ")[0] for note in line["notes"] if note["kind"] == "node"
    ]
    assert told == [f"node {FIRST + 9}", f"node {FIRST + 10}"][: 2 if known == "listed" else 1]
    assert " claims to be client hospital-A, but " in caplog.text
    assert ("claims to be client hospital-C, but is not in the list of clients" in caplog.text) == (
        known == "listed"
    )
    assert {name for group in line["groups"] for name in group} == {
        *NAMES,
        *(["hospital-C"] if known == "first" else []),
    }


def test_a_list_has_names_and_numbers() -> None:
    found = Identity.of({"hospital-A": 5, 3: 6, "4": 7})
    assert found.owners == {id_of("hospital-A"): "node 5", 3: "node 6", 4: "node 7"}
    assert found.names == {id_of("hospital-A"): "hospital-A"}


# -- answers that are not to be believed
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "client", "why"),
    [
        (MetricRecord({"name": 3}), int(A), "its client name must be a text"),
        (ConfigRecord({"name": 3}), int(A), "its client name must be a text"),
        (ConfigRecord({"name": b"north"}), int(A), "its client name must be a text"),
        (ConfigRecord({"name": ["north"]}), int(A), "its client name must be a text"),
        (ConfigRecord({"title": "north"}), int(A), "its client name must be a text"),
        (ArrayRecord(), int(A), "its client name must be a text"),
        (ConfigRecord({"name": "x" * 10_000}), int(A), "its client name: names must have at most 100 characters"),
        (ConfigRecord({"name": ""}), int(A), "its client name: names must have at most 100 characters"),
        (ConfigRecord({"name": "a\x1b[2J"}), int(A), "its client name: names must have at most 100 characters and no control"),
        (ConfigRecord({"name": "\u202eA-latipsoh"}), int(A), "its client name: a name must have only printable characters"),
        (ConfigRecord({"name": "north"}), int(A), f"its client id {A} is not the id of its name"),
        (ConfigRecord({"name": "north"}), None, "its client id None is not the id of its name 'north'"),
        (ConfigRecord({"name": "5"}), 5, "its client id 5 is not the id of its name '5'"),
        (ConfigRecord({"name": "north"}), -1, "its client id must be a non-negative integer"),
    ],
)  # fmt: skip
def test_a_hostile_name_is_refused_in_one_sentence(
    record: Any, client: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    tried = world(IDS)
    grid = grid_of(tried)
    odd = RecordDict(
        {WHO: MetricRecord({} if client is None else {"client": client}), NAME: record}
    )
    grid.fate = lambda m: (
        odd if m.metadata.dst_node_id == FIRST and m.metadata.message_type == QUERY else None
    )
    strategy = strategy_of(FedAvg(), tried, nodes=3)
    strategy.start(grid, num_rounds=3)
    assert strategy.last is not None
    assert strategy.last.groups == (tuple(sorted(NAMES[1:])),)
    (told,) = [line for line in caplog.messages if f"node {FIRST} " in line]
    assert told.startswith(
        f"node: node {FIRST} did not report its client id in 3 queries and does not take part: {why}"
    )
    assert len(told) < 500
    assert told.isprintable()


def test_a_config_that_can_be_no_name_is_told_of_to_the_server() -> None:
    tried = world(IDS)
    with pytest.raises(
        EngineError,
        match=r"its app failed: .*names must have at most 100 characters and no control",
    ):
        next(strategy_of(FedAvg(), tried, wait=500.0).rounds(grid_of(tried, (*NAMES[:3], "\t")), 1))


def test_of_two_names_with_the_same_id_the_first_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coterie.engines.flower.names.id_of", lambda name: SMALLEST_HASHED_ID + len(name)
    )
    tried = world(IDS)
    done = next(
        strategy_of(FedAvg(), tried, nodes=2).rounds(
            grid_of(tried, ("north", "south", "hill", "lake")), 1
        )
    )
    assert done.groups == (("hill", "north"),)


# -- restarts and files
# ---------------------------------------------------------------------------------------------------


def test_a_restarted_server_knows_the_names(tmp_path: Path) -> None:
    federated(tmp_path, rounds=1)
    tried = world(IDS)
    grid = grid_of(tried, NAMES[1:])  # under other node ids, and the first is away
    strategy = strategy_of(SPLIT, tried, nodes=3, out=tmp_path)
    strategy.start(grid, num_rounds=2)
    assert strategy.last is not None
    assert strategy.last.names == {id_of(name): name for name in NAMES}
    assert {name for group in strategy.last.groups for name in group} == set(NAMES)
    again = strategy_of(SPLIT, tried, nodes=3, out=tmp_path).start(
        grid, num_rounds=2
    )  # which has nothing to do
    assert {name for group in again.groups for name in group} == set(NAMES)


def test_a_run_without_the_file_of_nodes_shows_ids(tmp_path: Path) -> None:
    federated(tmp_path)
    (tmp_path / NODES_FILE).unlink()
    assert {client for group in coterie.summary(tmp_path)["groups"] for client in group} == {
        id_of(name) for name in NAMES
    }


@pytest.mark.parametrize(
    "names",
    [
        [],
        {A: 3},
        {"x": "a"},
        {A: ""},
        {A: "x" * 101},
        {A: "same", B: "same"},
        {A: "5"},
        {A: "a\u202e", B: "a\\u202e"},
        {A: None},
    ],
    ids=str,
)
def test_damaged_names_are_told_of_and_never_shown(names: Any, tmp_path: Path) -> None:
    federated(tmp_path)
    edited(tmp_path, lambda found: found.update(names=names))
    for reads in (
        coterie.summary,
        explain,
        read_memory,
        lambda run: coterie.save(run, run / "models"),
    ):
        with pytest.raises(DamagedError, match=r"nodes\.json is damaged: .*names"):
            reads(tmp_path)
    (told,) = coterie.check(tmp_path).damaged
    assert "nodes.json is damaged" in told


def test_a_changed_file_of_nodes_is_damage(tmp_path: Path) -> None:
    federated(tmp_path)
    path = tmp_path / NODES_FILE
    path.write_text(path.read_text().replace("hospital-A", "hospital-B"))
    with pytest.raises(
        DamagedError, match=r"nodes\.json was changed or damaged: its checksum does not match"
    ):
        coterie.summary(tmp_path)


def test_a_hostile_name_in_a_file_is_harmless_text(tmp_path: Path) -> None:
    federated(tmp_path)
    edited(tmp_path, lambda found: found["names"].update({A: "a\x1b[2J"}))
    assert "a\\u001b[2J" in {
        name for group in coterie.summary(tmp_path)["groups"] for name in group
    }


def test_a_tracker_shows_the_names_of_clients_that_join_later(tmp_path: Path) -> None:
    class Kept(Tracker):
        name = "kept"

        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.seen: list[Any] = []

        def write(self, round: int, numbers: Any, text: str, pictures: Any) -> None:
            self.seen.append({key for key in numbers if key.startswith("client/")})

        def close(self) -> None: ...

    federated(tmp_path, NAMES[:3], rounds=1, nodes=3, method=FedAvg())
    one = Kept(tmp_path)
    one.catch_up()
    federated(tmp_path, (*NAMES[:3], "late"), rounds=2, nodes=4, method=FedAvg())
    one.catch_up()
    assert ["client/late/accuracy" in found for found in one.seen] == [False, True]
    assert all("client/hospital-A/accuracy" in found for found in one.seen)


# -- boundaries
# -----------------------------------------------------------------------------------------------------------


def test_a_boundary_lets_the_name_through_and_nothing_else() -> None:
    noise, tried = Boundary(clip=1.0, noise=10.0), world(IDS)
    grid = grid_of(tried, mods=[boundary_mod(noise, tried.model)])
    done = next(strategy_of(FedAvg(), tried, boundary=noise).rounds(grid, 1))
    assert done.groups == (tuple(sorted(NAMES)),)
    replies = [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == QUERY
    ]
    assert {name for content in replies for name in content} == {WHO, NAME, SCHEMA}
    assert [dict(content[NAME]) for content in replies] == [{"name": name} for name in NAMES]


def test_clients_with_names_count_their_budgets_in_files_of_their_own(tmp_path: Path) -> None:
    noise, tried = Boundary(clip=1.0, noise=10.0), world(IDS)
    grid = grid_of(tried, ("../../up", *NAMES[1:]), mods=[boundary_mod(noise, mlp, budget=5.0)])
    for context in grid.contexts.values():
        context.node_config["keep-dir"] = str(tmp_path / "kept")
    done = next(strategy_of(FedAvg(), replace(tried, model=mlp), boundary=noise).rounds(grid, 1))
    assert done.refused == {}
    names = {path.name for path in (tmp_path / "kept").glob("budget-*")}
    assert names == {f"budget-{id_of(name)}.json" for name in ("../../up", *NAMES[1:])}
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_layers_that_stay_are_found_again_by_name(tmp_path: Path) -> None:
    """In another process, under another node id: the folder has only what the name says."""
    tried, settings = world(IDS), {"keep-dir": str(tmp_path / "kept")}
    for _ in range(2):
        grid = grid_of(tried)
        for context in grid.contexts.values():
            context.node_config.update(settings)
        strategy_of(coterie.METHODS["fedper"](), tried, out=tmp_path / "run").start(
            grid, num_rounds=2
        )
    kept = {path.name for run in (tmp_path / "kept").iterdir() for path in run.iterdir()}
    assert kept == {str(id_of(name)) for name in NAMES}


def test_orders_keep_names_out_of_messages_to_clients() -> None:
    """A client is told its own id, and no name of another."""
    tried = world(IDS)
    grid = grid_of(tried)
    list(strategy_of(IFCA(models=2), tried).rounds(grid, 1))
    assert not [
        name
        for message, _ in grid.messages
        for name in NAMES
        if name in str(message.content.config_records)
    ]


def test_names_do_not_depend_on_the_order_in_which_nodes_come(clock: Clock) -> None:
    found = []
    for seed in range(3):
        grid = Timed(clock)
        for i in random.Random(seed).sample(range(4), 4):
            grid.join(FIRST + 10 * seed + i, NAMES[i])
        found.append(
            next(flower_identity.strategy(FedAvg(), 4, "claimed", wait=100.0).rounds(grid, 1))
        )
    assert len({done.groups for done in found}) == 1
    assert len({done.position.members for done in found}) == 1


def test_groups_in_a_file_have_the_names_of_a_federation(tmp_path: Path) -> None:
    """Its nodes report their names later than the run is described, so they are in another file."""
    federated(tmp_path / "run")
    table = tmp_path / "groups.csv"
    assert main(["groups", str(tmp_path / "run"), "-o", str(table)]) == 0
    with table.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    assert {client for client, _ in rows} == set(NAMES)
