"""Runs of many clients: their records list the clients that are tested, and checkpoints are compact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.cli import main
from coterie.core import Position
from coterie.data.scenario import SCENARIOS
from coterie.methods import Auto, SplitHalf, _split_half_walks, split_half
from coterie.methods.fedavg import FedAvg
from coterie.records import codec
from coterie.records.codec import DamagedError, decode, encode
from coterie.records.record import Record
from coterie.report.page import document
from coterie.report.summary import agreement
from coterie.runs import placing_waiting
from coterie.runs.folders import MOST_LISTED
from coterie.runs.placing_waiting import PlacedClients
from coterie.settings import SettingError, UserError

CLIENTS, TESTED = 300, 40


def make_client(client: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The data of a client: two kinds of clients with opposite labels."""
    inputs = generator.normal(size=(30, 5)).astype("f")
    labels = ((inputs[:, 0] > 0).astype(int) + client) % 2
    return inputs[:24], labels[:24], inputs[24:], labels[24:]


def fleet(clients: int = CLIENTS) -> coterie.World:
    """Clients made on demand, in two true groups."""
    return coterie.from_function(
        make_client,
        clients,
        model="linear",
        classes=2,
        truth=[range(0, clients, 2), range(1, clients, 2)],
    )


def begun(folder: Path, method: Any, rounds: int = 3, **settings: Any) -> coterie.Runs:
    return coterie.begin(
        fleet(), folder, [method], rounds=rounds, eval_clients=TESTED, workers=1, **settings
    )


@pytest.fixture(scope="module")
def auto_run(tmp_path_factory: pytest.TempPathFactory) -> coterie.Run:
    """A run of auto in which a third of the clients train in a round."""
    runs = begun(tmp_path_factory.mktemp("fleet") / "auto", Auto(fraction=0.33), rounds=6)
    return runs.finish()[0]


def test_records_list_the_clients_that_are_tested(auto_run: coterie.Run) -> None:
    description, lines = Record(auto_run.folder).shown()
    world = description["world"]
    listed = set(world["clients"])
    assert (len(listed), world["all_clients"]) == (TESTED, CLIENTS)
    assert len(world["examples"]) == len(world["tests"]) == len(world["testers"]) == TESTED
    assert set().union(*world["true_groups"]) == listed
    for line in lines:
        assert set(map(int, line["clients"])) == set().union(*line["groups"]) == listed
        assert sum(line["sizes"]) == CLIENTS
        assert all(
            len(group) <= size for group, size in zip(line["groups"], line["sizes"], strict=False)
        )
        # Values of more clients than were asked are those of the listed ones.
        for note in line["notes"]:
            for values in note["values"].values():
                assert len(values) <= line["asked"] or set(map(int, values)) <= listed


def test_the_groups_of_all_are_in_the_checkpoint(auto_run: coterie.Run) -> None:
    groups = auto_run.groups()
    assert sorted(client for group in groups for client in group) == list(range(CLIENTS))
    last_line = auto_run.record.lines()[-1]
    assert sorted(map(len, groups)) == sorted(last_line["sizes"])
    listed = set(map(int, last_line["clients"]))
    kept = [sorted(listed.intersection(group)) for group in groups]
    assert sorted(filter(None, kept)) == sorted(last_line["groups"])


def test_reports_say_how_many_clients_there_are(
    auto_run: coterie.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(auto_run.folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"among the tested ones of {CLIENTS} clients." in printed
    assert f"The run has {CLIENTS} clients, in " in printed
    assert f"the {TESTED} that are tested are listed" in printed
    assert main(["compare", str(auto_run.folder)]) == 0
    capsys.readouterr()
    summary = coterie.summary(auto_run)
    assert (summary["all_clients"], sum(summary["sizes"])) == (CLIENTS, CLIENTS)
    assert len(document(auto_run)["runs"][0]["clients"]) == TESTED
    unlisted = next(
        c for c in range(CLIENTS) if str(c) not in auto_run.record.lines()[-1]["clients"]
    )
    assert main(["explain", str(auto_run.folder), "--client", str(unlisted)]) == 2
    assert "is not one of the clients that the records list" in capsys.readouterr().err


def test_a_run_without_eval_clients_lists_all(tmp_path: Path) -> None:
    world = fleet(6)
    run = coterie.begin(world, tmp_path / "all", [FedAvg()], rounds=1, workers=1).finish()[0]
    description, lines = Record(run.folder).shown()
    assert description["world"]["clients"] == list(range(6))
    assert "all_clients" not in description["world"]
    assert "sizes" not in lines[0]


def test_a_run_goes_on_with_the_same_records(tmp_path: Path, auto_run: coterie.Run) -> None:
    rounds = begun(tmp_path / "stopped", Auto(fraction=0.33), rounds=6)[0].rounds()
    for _ in range(4):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    reopened = coterie.reopen(tmp_path / "stopped", world=fleet())
    reopened.finish()

    def without_seconds(run: coterie.Run) -> Iterator[dict[str, Any]]:
        for line in run.record.lines():
            yield {key: value for key, value in line.items() if key not in ("seconds", "check")}

    assert list(without_seconds(reopened[0])) == list(without_seconds(auto_run))
    with pytest.raises(UserError, match=r"the world has 298 clients, and .* has 300"):
        coterie.reopen(tmp_path / "stopped", world=fleet(298))


def test_records_of_a_huge_fleet_need_eval_clients(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match="eval_clients must be at most 10,000 with 10,001 clients"
    ):
        coterie.begin(fleet(MOST_LISTED + 1), tmp_path / "run", [FedAvg()], rounds=1)
    assert not (tmp_path / "run").exists()


def test_clients_in_memory_may_be_tested_in_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--scenario", "synthetic/groups", "--set", "clients=8", "--method", "fedavg"]
    out = str(tmp_path / "run")
    assert main(["run", *options, "--rounds", "2", "--eval-clients", "3", "--out", out]) == 0
    assert len(Record(Path(out)).lines()[-1]["clients"]) == 3
    capsys.readouterr()
    assert main(["run", *options, "--eval-clients", "0", "--out", out]) == 2
    assert "--eval-clients must be at least 1" in capsys.readouterr().err


def test_only_some_clients_of_a_drift() -> None:
    drifting = SCENARIOS["sea/drift"].build(0)
    some = sorted(drifting.clients)[1:4]
    part = drifting.only(some)
    assert sorted(part.clients) == some
    assert [sorted(step) for step in part.steps] == [some] * len(drifting.steps)
    kept = [
        tuple(client for client in group if client in some)
        for group in drifting.true_groups(1) or ()
    ]
    assert part.true_groups(1) == tuple(sorted(filter(None, kept)))


# ----------------------------------------------------------------------------------------------------
# Clients that wait for a group.


def test_waiting_clients_are_placed_by_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups do not depend on the batches, and are right."""
    # A probe of few clients: the others walk down the tree, few of them in a round.
    monkeypatch.setattr(split_half, "MAX_PROBED_CLIENTS", 40)
    method = SplitHalf(fraction=0.2)
    world = fleet()
    run = begun(tmp_path / "run", method, rounds=4)[0]
    for _ in run.rounds():
        pass
    state = run.record.stored(Position)[1].state  # type: ignore[index]
    assert len(state.walkers) > CLIENTS / 4, "the test needs clients that wait"
    together = run.place_waiting(batch=CLIENTS, workers=1)
    in_batches = run.place_waiting(batch=7, workers=1)
    assert in_batches == together
    assert (together.placed, together.without) == (len(state.walkers), ())
    assert sorted(client for group in together.groups for client in group) == list(range(CLIENTS))
    assert agreement(together.groups, world.true_groups(1)) > 0.8  # type: ignore[operator]
    # The waiting clients share the level of new groups.
    levels = set()

    def walk(*arguments: Any) -> Any:
        levels.add(arguments[-1])
        return _split_half_walks.walk(*arguments)

    monkeypatch.setattr(placing_waiting, "walk", walk)
    assert run.place_waiting(batch=50, workers=1) == together
    assert levels == {method.level / len(state.walkers)}
    # Clients that had a group keep it.
    for leaf in state.leaves:
        assert any(set(leaf.clients) <= set(group) for group in together.groups)
    together.write(tmp_path / "groups.csv")
    rows = (tmp_path / "groups.csv").read_text().splitlines()
    assert len(rows) == CLIENTS + 1
    assert rows[:2] == ["client,group", "0,0"]


def test_the_command_groups_writes_the_group_of_every_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(split_half, "MAX_PROBED_CLIENTS", 20)
    folder, table = str(tmp_path / "run"), tmp_path / "groups.csv"
    settings = [
        "--set",
        "clients=100",
        "--set",
        "examples=5000",
        "--set",
        "split-half.fraction=0.2",
    ]
    scenario = ["--scenario", "synthetic/groups", "--method", "split-half", *settings]
    assert main(["run", *scenario, "--rounds", "5", "--eval-clients", "9", "--out", folder]) == 0
    (run,) = coterie.reopen(folder)
    placed = run.place_waiting(workers=1)
    assert placed.placed > 20, "the test needs clients that wait"

    def rows() -> dict[str, str]:
        head, *lines = table.read_text().splitlines()
        assert head == "client,group"
        return dict(line.split(",") for line in lines)

    # As they are after the run: clients that wait are in the group of their node.
    capsys.readouterr()
    assert main(["groups", folder, "-o", str(table)]) == 0
    assert f"100 clients in {len(run.groups())} groups written" in capsys.readouterr().out
    assert len(rows()) == 100
    before = rows()
    # After all are placed, as in Python.
    assert main(["groups", folder, "-o", str(table), "--place-waiting", "--batch", "17"]) == 0
    assert f"{placed.placed} clients placed, 0 did not answer" in capsys.readouterr().out
    expected = {}
    for group_number, members in enumerate(placed.groups):
        expected |= {str(client): str(group_number) for client in members}
    assert rows() == expected != before
    assert main(["groups", folder, "-o", str(table), "--place-waiting", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "clients": 100,
            "groups": len(placed.groups),
            "placed": placed.placed,
            "without": 0,
        }
    ]


def test_wrong_calls_of_the_command_groups(
    tmp_path: Path, auto_run: coterie.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(auto_run.folder)
    for options, sentence in (
        (["-o", "x.csv", "--batch", "9"], "--batch is for --place-waiting"),
        (["-o", "x.csv", "--place-waiting", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["-o", str(tmp_path / "none" / "x.csv")], "cannot be written"),
        # The world was given in Python.
        (["-o", str(tmp_path / "x.csv"), "--place-waiting"], "world"),
    ):
        assert main(["groups", folder, *options]) == 2, options
        printed = capsys.readouterr().err
        assert sentence in printed
        assert "Traceback" not in printed


def test_clients_with_names_are_written_by_name(tmp_path: Path) -> None:
    placed = PlacedClients(((0, 2), (1,)), 0, (), {0: "north", 1: "south"})
    placed.write(tmp_path / "groups.csv")
    assert (tmp_path / "groups.csv").read_text().splitlines() == [
        "client,group",
        "north,0",
        "south,1",
        "2,0",
    ]


def test_runs_without_waiting_clients_are_refused(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", FedAvg(fraction=0.1), rounds=1)[0]
    with pytest.raises(UserError, match="has no checkpoint yet"):
        run.place_waiting()
    for _ in run.rounds():
        pass
    with pytest.raises(UserError, match="fedavg runs no split-half now"):
        run.place_waiting()
    with pytest.raises(SettingError, match="batch must be an integer >= 1, got 0"):
        run.place_waiting(batch=0)


# ----------------------------------------------------------------------------------------------------
# Checkpoints.


def _through_file(value: Any) -> tuple[Any, dict[str, bytes]]:
    """A value that was stored and read, and its blobs."""
    blobs: dict[str, bytes] = {}

    def store(blob_bytes: bytes) -> str:
        name = codec.blob(blob_bytes)
        blobs[name] = blob_bytes
        return name

    encoded = json.loads(json.dumps(encode(value, store)))
    assert set(codec.blobs(encoded)) == set(blobs)
    return decode(encoded, blobs.__getitem__), blobs


MANY_CLIENTS = tuple(range(5000))


@pytest.mark.parametrize(
    "value",
    [
        MANY_CLIENTS,
        tuple(client for client in MANY_CLIENTS if client % 3),
        tuple(reversed(MANY_CLIENTS)),
        (-1, 2**62, *MANY_CLIENTS),
        (2**80, *MANY_CLIENTS),
        (True, *MANY_CLIENTS),
        {client: client % 4 for client in reversed(MANY_CLIENTS)},
        {client: client / 7 for client in MANY_CLIENTS},
        {client: (client / 7, client, (client % 2,)) for client in MANY_CLIENTS},
        {client: (0.5,) * (1 + client % 2) for client in MANY_CLIENTS},
        {client: 1 if client % 2 else 0.5 for client in MANY_CLIENTS},
        dict.fromkeys(MANY_CLIENTS),
        {str(client): client for client in MANY_CLIENTS},
    ],
)
def test_long_values_come_back_from_a_checkpoint(value: Any) -> None:
    stored, _ = _through_file(value)
    assert stored == value
    assert repr(stored) == repr(value)


def test_few_runs_of_clients_take_few_bytes() -> None:
    all_but_some = tuple(client for client in range(100_000) if client % 1000)
    stored, blobs = _through_file(all_but_some)
    assert stored == all_but_some
    assert sum(map(len, blobs.values())) < 2000


def test_a_tensor_of_each_client_is_one_blob() -> None:
    rows = {client: torch.tensor([client, float("nan")]) for client in MANY_CLIENTS}
    stored, blobs = _through_file(rows)
    assert len(blobs) == 2
    assert list(stored) == list(rows)
    assert all(
        torch.equal(stored[client].nan_to_num(7), rows[client].nan_to_num(7)) for client in rows
    )
    # Tensors of two shapes stay blobs of their own.
    stored, blobs = _through_file({**rows, 9: torch.zeros(3)})
    assert stored[9].shape == (3,)
    assert len(blobs) == len(rows)


@pytest.mark.parametrize("lengths", [[2**40], [2**40, -(2**40)]])
def test_a_forged_run_of_clients_is_refused(lengths: list[int]) -> None:
    blobs: dict[str, bytes] = {}

    def store(blob_bytes: bytes) -> str:
        blobs[codec.blob(blob_bytes)] = blob_bytes
        return codec.blob(blob_bytes)

    forged = encode(np.array([[0] * len(lengths), lengths]), store)
    with pytest.raises(DamagedError, match="more than 100,000,000 integers"):
        decode({"is": "integers", "runs": forged["blob"]}, blobs.__getitem__)
