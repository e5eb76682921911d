"""Clients have names: everything that a person reads shows them, and takes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.cli import main
from coterie.core import Training
from coterie.data.world import ClientData, World, whole
from coterie.models.layout import own_layers
from coterie.records.record import Record
from coterie.records.shown import Shown, shown
from coterie.report.explain import explain
from coterie.report.page.document import document
from coterie.settings import SettingError, UserError
from small import client, mlp, world

NAMES = ("north", "hospital <b>A</b>", "Ünal & sons", "42nd street", "west-1", "west 2")


def turned(data: ClientData) -> ClientData:
    """The data with other labels, so that such clients are a group of their own."""
    parts = {part: getattr(data, part) for part in ("train", "validation", "test")}
    return replace(
        data, **{part: whole(one.inputs, 2 - one.targets) for part, one in parts.items()}
    )


def named_world(names: Sequence[Any] = NAMES, **more: Any) -> World:
    """Six clients whose labels depend on the inputs, in two groups."""

    def made(seed: int) -> ClientData:
        data = client(seed, train=60, test=30)
        parts = {part: getattr(data, part) for part in ("train", "validation", "test")}
        return replace(
            data,
            **{part: whole(one.inputs, one.inputs[:, :3].argmax(1)) for part, one in parts.items()},
        )

    clients = {name: made(i) if i % 2 else turned(made(i)) for i, name in enumerate(names)}
    return World(clients=clients, model=mlp, training=Training(lr=0.3, batch=10, epochs=3), **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names") / "run"
    (one,) = coterie.begin(named_world(), folder, "split-half", rounds=6, workers=1)
    list(one.rounds())
    return folder


def test_clients_have_ids_inside_and_names_outside(run: Path) -> None:
    tried = named_world(truth=(NAMES[::2], NAMES[1::2]))
    assert tried.client_names == dict(enumerate(NAMES))
    assert tried.truth == ((0, 2, 4), (1, 3, 5))
    (done,) = coterie.run("fedavg", tried, rounds=1, workers=1)
    assert done.names == tried.client_names
    (folder,) = run.parent.glob("run")
    assert coterie.summary(folder)["groups"] == [sorted(NAMES[::2]), sorted(NAMES[1::2])]


def test_records_keep_numbers_and_run_toml_the_names(run: Path) -> None:
    record = Record(run)
    description, lines = record.description(), record.lines()
    assert description["world"]["names"] == list(NAMES)
    assert lines[-1]["groups"] == [[0, 2, 4], [1, 3, 5]]
    told, seen = shown(record.naming(description), description, lines)
    assert told["world"]["clients"] == list(NAMES)
    assert (
        {c for group in seen[-1]["groups"] for c in group} == set(NAMES) == set(seen[-1]["clients"])
    )
    split = next(note for line in seen for note in line["notes"] if note["kind"] == "split")
    assert {c for part in split["parts"] for c in part} == set(NAMES)


def test_whole_numbers_as_names_are_numbers_that_people_read() -> None:
    one = Shown.of({"clients": [0, 1], "names": ["907", "12"]})
    assert one.clients([0, 1]) == [12, 907]
    assert (
        one.text("client 1 joins the group of client 0")
        == "client 12 joins the group of client 907"
    )
    assert Shown.of({"clients": [0, 1], "names": ["907", "b\x1b[2J"]}).client(1) == "b\\u001b[2J"


def test_explain_takes_a_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explain(run, client="42nd street")
    assert found["client"] == "42nd street"
    assert set(found["group"]) == set(NAMES[1::2])
    assert main(["explain", str(run), "--client", "Ünal & sons"]) == 0
    said = capsys.readouterr().out
    assert "Client Ünal & sons" in said
    assert "west-1" in said
    assert main(["explain", str(run), "--client", "west1"]) == 2
    assert "client west1 is not one of the run's clients" in (told := capsys.readouterr().err)
    assert "did you mean west-1?" in told


def test_tables_trees_and_pages_show_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(run)]) == 0
    capsys.readouterr()
    rows = document([run])["runs"][0]["clients"]
    assert {row["id"] for row in rows} == set(NAMES)
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<b>A</b>" not in page  # a name is text, and no markup
    for kind in ("groups", "score", "criteria"):
        assert main(["plot", str(run), kind, "-o", str(tmp_path / f"{kind}.svg")]) == 0


def test_models_are_exported_and_loaded_by_name(run: Path, tmp_path: Path) -> None:
    (one,) = coterie.begin(six, tmp_path / "run", "independent", rounds=1, workers=1)
    *_, last = one.rounds()
    coterie.save(tmp_path / "run", tmp_path / "models", trust_code=True)
    entries = json.loads((tmp_path / "models/models.json").read_text())
    assert set(entries["clients"]) == set(NAMES)
    net = coterie.load(tmp_path / "models", "west 2", model=mlp)
    row = own_layers(last.assignment.models[last.assignment.row[5]], last.position.kept[""][5])
    assert torch.equal(torch.cat([p.detach().flatten() for p in net.parameters()]), row)
    with pytest.raises(UserError, match=r"no model for client 'west' .*\(known: north, "):
        coterie.load(tmp_path / "models", "west", model=mlp)


def six(seed: int) -> World:
    return named_world()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("limited: client 3, 44, 7", "limited: client B6, DL, WN"),
        ("hidden by client 3, 44, ...", "hidden by client B6, DL, ..."),
        ("(client 3, 7) and client 44's", "(client B6, WN) and client DL's"),
        # No list of clients.
        ("client 44, 7 rows", "client DL, 7 rows"),
        ("client 7: 3, 44", "client WN: 3, 44"),
    ],
)
def test_all_clients_of_a_list_are_named(text: str, shown: str) -> None:
    assert Shown({"3": "B6", "44": "DL", "7": "WN"}).text(text) == shown


def test_errors_name_the_client() -> None:
    from coterie.engines.workers import EngineError

    tried = named_world()
    broken = replace(
        tried.clients[1], test=replace(tried.clients[1].test, inputs=torch.zeros(30, 2))
    )
    tried = replace(tried, clients={**tried.clients, 1: broken})
    with pytest.raises(EngineError, match="client hospital <b>A</b> failed in its test"):
        list(coterie.run("fedavg", tried, rounds=1, workers=1))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a", ""], "names must have at most 100 characters and no control characters, got ''"),
        (["a", "b" * 101], "names must have at most 100 characters"),
        (["a", "b\x1b[2J"], "no control characters"),
        (["1", 1], "two clients have the name '1'; names must differ"),
    ],
    ids=["empty", "long", "control", "twice"],
)
def test_names_that_are_refused(names: Sequence[Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        named_world(names)


def test_worlds_without_names_are_as_before() -> None:
    tried = world()
    assert (tried.client_names, tried.name(7)) == ({}, "7")
    assert Shown.of({"clients": [2, 7]}).client("7") == 7


def test_suggestions_show_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from coterie.contrib.suggest.screen import screen
    from coterie.report import terminal

    (one,) = coterie.begin(six, tmp_path / "run", "fedavg", rounds=3, workers=1)
    list(one.rounds())
    said = coterie.suggest(tmp_path / "run", trust_code=True, workers=1)
    assert said.names == dict(enumerate(NAMES))
    terminal.console(sys.stdout).print(screen(said))
    assert "north" in capsys.readouterr().out
