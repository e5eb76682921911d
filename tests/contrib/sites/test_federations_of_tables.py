"""Federations of sites with tables, from one file: the same constants as in a simulation, without a network."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from sites_here import NAMES, Sites, make_run, served, site_table, world_of, write_federation

import coterie
from coterie.cli import main
from coterie.contrib.sites.agreement import Answer, SumQuestion
from coterie.contrib.sites.columns import CategoryColumn
from coterie.contrib.sites.federation_file import TableFederation
from coterie.contrib.sites.flower.site_app import ACTION, SITE_ANSWER, UNFIT_TABLE, agreed_of
from coterie.contrib.sites.masked_answers import decoded, encoded, form_of
from coterie.contrib.sites.site import Site
from coterie.contrib.sites.sources import read_source
from coterie.contrib.sites.table_schema import TableSchema
from coterie.data.world import ClientData
from coterie.engines.workers import EngineError
from coterie.records.record import Record
from coterie.settings import UserError
from refusals import refuses


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sites' tables, their schema, and a run over them."""
    folder = tmp_path_factory.mktemp("trial")
    make_run(folder)
    return folder


def started(trial: Path, folder: Path, **options: Any) -> tuple[TableFederation, Sites]:
    """The federation of the trial's run, and a grid with all sites."""
    federation = write_federation(trial / "trial", folder / "federation.toml", **options)
    return federation, Sites(folder / "federation.toml", trial / "sites")


@dataclass(frozen=True)
class Ran:
    """A federation that has run for two rounds."""

    federation: TableFederation
    grid: Sites
    run: Path
    groups: Any


@pytest.fixture(scope="module")
def ran(trial: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    federation, grid = started(trial, folder)
    result = served(federation, grid, rounds=2, out=str(folder / "run"))
    return Ran(federation, grid, folder / "run", result.groups)


def data_of(
    federation: TableFederation, trial: Path, facts: dict[str, Any], name: str
) -> ClientData:
    table, context = read_source(str(trial / "sites" / f"{name}.csv"))
    return Site(federation, name, 0, table, context).data(facts).data


def facts_in(run: Path) -> dict[str, Any]:
    return dict(Record(run).description()["world"])


def check_agreed(run: Path, trial: Path) -> None:
    """The constants of a federation are those of the simulation."""
    about = facts_in(run)["about"]
    simulated = facts_in(trial / "trial")["about"]
    assert about["table_schema"] == simulated["table_schema"]
    assert (about["features"], about["classes"]) == (simulated["features"], simulated["classes"])
    # Sums over sites add up in another order, or are rounded to fixed digits.
    np.testing.assert_allclose(about["means"], simulated["means"], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(about["deviations"], simulated["deviations"], rtol=1e-12)


def plain_answers(grid: Sites) -> list[Any]:
    """The replies with sums of one site alone."""
    return [
        reply
        for _, reply in grid.messages
        if reply and reply.has_content() and SITE_ANSWER in reply.content
    ]


def test_sites_agree_on_the_constants_of_the_simulation(trial: Path, ran: Ran) -> None:
    check_agreed(ran.run, trial)
    assert plain_answers(ran.grid)
    # The sites of the simulation hold out the same rows, and have the same features.
    agreed = facts_in(ran.run)
    world = world_of(trial, target="finding", standardize="pooled")
    for expected in world.clients.values():
        site_data = data_of(ran.federation, trial, agreed, expected.name)
        for split in ("train", "validation", "test"):
            ours, theirs = getattr(site_data, split), getattr(expected, split)
            torch.testing.assert_close(ours.inputs[ours.index], theirs.inputs[theirs.index])
            assert torch.equal(ours.targets, theirs.targets)


def test_under_masks_they_agree_on_the_same_and_no_message_has_a_plain_answer(
    trial: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography", reason="masks need cryptography")
    federation, grid = started(trial, tmp_path, masks=True)
    served(federation, grid, rounds=1, out=str(tmp_path / "run"))
    check_agreed(tmp_path / "run", trial)
    assert not plain_answers(grid)


def test_a_federation_is_recorded_exported_and_predicts_raw_rows(
    trial: Path, ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [sorted(group) for group in ran.groups] == [list(NAMES)]
    assert main(["check", str(ran.run)]) == 0
    assert main(["export", str(ran.run), "--to", str(tmp_path / "models")]) == 0
    capsys.readouterr()
    rows = trial / "sites" / "birch.csv"
    assert main(["predict", str(tmp_path / "models"), str(rows), "--client", "birch"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "ill,well,prediction"
    assert len(lines) == len(site_table(1))
    # The same net on the inputs that the site trained with, calibrated by what the sites reported.
    site_data = data_of(ran.federation, trial, facts_in(ran.run), "birch")
    net = coterie.load(tmp_path / "models", client="birch")
    with torch.inference_mode():
        about = json.loads((tmp_path / "models" / "models.json").read_text())
        (calibration,) = about["calibration"].values()
        assert calibration["rows"] > 0
        assert calibration["temperature"] != 1
        expected = (net(site_data.test.inputs) / calibration["temperature"]).softmax(1)
    printed = [[float(cell) for cell in line.split(",")[:2]] for line in lines]
    torch.testing.assert_close(torch.tensor(printed), expected, atol=1e-5, rtol=0)


def test_a_resumed_run_keeps_its_constants_and_asks_nobody(trial: Path, tmp_path: Path) -> None:
    federation, grid = started(trial, tmp_path)
    served(federation, grid, rounds=1, out=str(tmp_path / "run"))
    before = facts_in(tmp_path / "run")["about"]
    # One site has gone, and another has come, whose rows would change all constants.
    again = Sites(tmp_path / "federation.toml", trial / "sites")
    del again.contexts[min(again.contexts)]
    late = tmp_path / "eider.csv"
    site_table(9).assign(cost="4000").to_csv(late, index=False)
    node = again.add(9, client="eider", data=str(late))
    served(federation, again, rounds=2, out=str(tmp_path / "run"))
    assert facts_in(tmp_path / "run")["about"] == before
    assert not any(
        message.metadata.message_type == f"query.{ACTION}" for message, _ in again.messages
    )
    # The late site has the constants.
    agreed = agreed_of(again.contexts[node])
    assert agreed is not None
    assert agreed["about"] == before
    lines = Record(tmp_path / "run").lines()
    assert lines[-1]["answered"] == 4


def test_a_site_whose_table_does_not_fit_takes_no_part_and_the_server_learns_no_value(
    trial: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A simulation in this process may have set Flower's logger to errors alone.
    caplog.set_level(logging.INFO, logger="flwr.coterie")
    sites = tmp_path / "sites"
    sites.mkdir()
    for place, name in enumerate(NAMES):
        frame = site_table(place)
        if name == "cedar":
            frame.loc[3, "age"] = "sixty-two"
        frame.to_csv(sites / f"{name}.csv", index=False)
    federation = write_federation(trial / "trial", tmp_path / "federation.toml")
    grid = Sites(tmp_path / "federation.toml", sites)
    served(federation, grid, rounds=1, out=str(tmp_path / "run"))
    (line,) = Record(tmp_path / "run").lines()
    assert line["answered"] == 3
    (refusal,) = line["refused"].values()
    assert UNFIT_TABLE in refusal
    assert "the column age has 'sixty-two' in row 4" in caplog.text
    for message, reply in grid.messages:
        assert "sixty" not in str(message.content)
        assert reply is None or "sixty" not in str(reply.content)


@pytest.mark.slow
def test_a_table_that_changes_meanwhile_is_not_shown_either(trial: Path, tmp_path: Path) -> None:
    """Flower sends the errors of an app to the server."""
    sites = tmp_path / "sites"
    sites.mkdir()
    for place, name in enumerate(NAMES):
        site_table(place).to_csv(sites / f"{name}.csv", index=False)
    federation = write_federation(trial / "trial", tmp_path / "federation.toml")
    grid = Sites(tmp_path / "federation.toml", sites)

    def fate(message: Any) -> None:
        if message.metadata.message_type == f"query.{ACTION}":
            site_table(0).assign(age="sixty-two").to_csv(sites / "aster.csv", index=False)

    grid.fate = fate
    served(federation, grid, rounds=1, out=str(tmp_path / "run"))
    (line,) = Record(tmp_path / "run").lines()
    assert line["answered"] == 3
    errors = [reply.error.reason for _, reply in grid.messages if reply and reply.has_error()]
    assert errors == [UNFIT_TABLE]


def test_without_any_site_that_fits_the_run_ends(trial: Path, tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    for place, name in enumerate(NAMES):
        site_table(place).drop(columns="age").to_csv(sites / f"{name}.csv", index=False)
    federation = write_federation(trial / "trial", tmp_path / "federation.toml")
    with pytest.raises(EngineError, match=UNFIT_TABLE):
        served(federation, Sites(tmp_path / "federation.toml", sites))


@pytest.mark.slow
def test_a_site_that_falls_silent_is_left_out_of_all_sums(trial: Path, tmp_path: Path) -> None:
    federation, grid = started(trial, tmp_path)
    lost = min(grid.contexts)

    def fate(message: Any) -> Any:
        is_question = "at-most" in str(message.content)
        return "silent" if is_question and message.metadata.dst_node_id == lost else None

    grid.fate = fate
    served(federation, grid, rounds=1, out=str(tmp_path / "run"))
    without = tmp_path / "without"
    without.mkdir()
    for name in NAMES[1:]:
        (without / f"{name}.csv").write_bytes((trial / "sites" / f"{name}.csv").read_bytes())
    fewer = Sites(tmp_path / "federation.toml", without)
    served(federation, fewer, rounds=1, out=str(tmp_path / "fewer"))
    assert facts_in(tmp_path / "run")["about"] == facts_in(tmp_path / "fewer")["about"]


def test_the_constants_of_the_run_may_count_and_then_nobody_is_asked(
    trial: Path, tmp_path: Path
) -> None:
    federation, grid = started(trial, tmp_path, constants=True)
    served(federation, grid, rounds=1, out=str(tmp_path / "run"))
    assert facts_in(tmp_path / "run")["about"] == facts_in(trial / "trial")["about"]
    assert not any(
        message.metadata.message_type == f"query.{ACTION}" for message, _ in grid.messages
    )


@pytest.mark.slow
def test_numbers_to_predict_class_weights_and_one_class_at_a_site(tmp_path: Path) -> None:
    make_run(tmp_path / "costs", target="cost", standardize_target="pooled")
    federation, grid = started(tmp_path / "costs", tmp_path / "costs")
    served(federation, grid, rounds=1, out=str(tmp_path / "costs" / "run"))
    ours, simulated = facts_in(tmp_path / "costs" / "run"), facts_in(tmp_path / "costs" / "trial")
    for part in ("means", "deviations"):
        np.testing.assert_allclose(
            ours["target_scale"][part], simulated["target_scale"][part], rtol=1e-9
        )
    assert ours["metric"] == simulated["metric"]
    # Weights are those of the classes of all sites, also where a site has one class alone.
    make_run(tmp_path / "ill")
    schema = tmp_path / "ill" / "schema.toml"
    schema.write_text('class_weights = "balanced"\n' + schema.read_text())
    sick = tmp_path / "ill" / "sites" / "daisy.csv"
    frame = pd.read_csv(sick, dtype=str)
    frame[frame["finding"] == "ill"].to_csv(sick, index=False)
    federation, grid = started(tmp_path / "ill", tmp_path / "ill")
    served(federation, grid, rounds=1, out=str(tmp_path / "ill" / "run"))
    agreed = facts_in(tmp_path / "ill" / "run")
    world = world_of(tmp_path / "ill", target="finding", standardize="pooled")
    np.testing.assert_allclose(agreed["about"]["class_weights"], world.about["class_weights"])
    table, context = read_source(str(sick))
    site = Site(federation, "daisy", 0, table, context).data(agreed)
    torch.testing.assert_close(
        site.objective.loss.weight,
        torch.tensor(world.about["class_weights"]),  # type: ignore[attr-defined]
    )


@pytest.mark.slow
def test_a_site_with_a_database_takes_part_under_masks(
    trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    pytest.importorskip("cryptography", reason="masks need cryptography")
    federation = write_federation(trial / "trial", tmp_path / "federation.toml", masks=True)
    # All sites have files but one, whose rows are in a database.
    files = tmp_path / "sites"
    files.mkdir()
    for name in NAMES:
        if name != "birch":
            (files / f"{name}.csv").write_bytes((trial / "sites" / f"{name}.csv").read_bytes())
    table = pd.read_csv(trial / "sites" / "birch.csv", dtype=str, keep_default_na=False)
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        table.assign(ward="3").to_sql("visits", connection, index=False)
    query = tmp_path / "visits.sql"
    query.write_text("SELECT * FROM visits WHERE ward = '3'")
    monkeypatch.setenv("CLINIC", f"sqlite:///{tmp_path}/clinic.db")
    grid = Sites(tmp_path / "federation.toml", files)
    grid.add(9, client="birch", data="env:CLINIC", query=str(query))
    served(federation, grid, rounds=2, out=str(tmp_path / "run"))
    check_agreed(tmp_path / "run", trial)
    assert not plain_answers(grid)
    assert [line["answered"] for line in Record(tmp_path / "run").lines()] == [4, 4]
    # The address of the database stays at the site.
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert b"clinic.db" not in path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["rotation='permute'", "masks=true", "clip=1.0"])
def test_the_files_privacy_is_that_of_the_sites(
    trial: Path, tmp_path: Path, boundary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "federation.toml"
    name, _, value = boundary.partition("=")
    text = write_federation(trial / "trial", file).toml()
    before = {"rotation": '"none"', "masks": "false", "clip": '"none"'}[name]
    head, mark, tail = text.partition("[boundary]")
    file.write_text(head + mark + tail.replace(f"{name} = {before}", f"{name} = {value}", 1))
    federation = TableFederation.from_file(file)
    grid = Sites(file, trial / "sites")
    # The secret of a map is in the sites' environment, and never in the file.
    monkeypatch.setenv("COTERIE_SECRET", str((1 << 90) + 7))
    served(federation, grid, rounds=2, out=str(tmp_path / "run"))
    lines = Record(tmp_path / "run").lines()
    assert [line["answered"] for line in lines] == [4, 4]


def test_a_node_that_was_started_with_another_file_takes_no_part(
    trial: Path, tmp_path: Path
) -> None:
    federation = write_federation(trial / "trial", tmp_path / "federation.toml")
    grid = Sites(tmp_path / "federation.toml", trial / "sites", federation="0" * 32)
    with pytest.raises(EngineError, match=UNFIT_TABLE):
        served(federation, grid)
    good = Sites(tmp_path / "federation.toml", trial / "sites", federation=federation.digest)
    served(federation, good, rounds=1)


def test_under_masks_a_site_answers_no_plain_question(trial: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="masks need cryptography")
    federation, _ = started(trial, tmp_path, masks=True)
    plain = write_federation(trial / "trial", tmp_path / "plain.toml")
    grid = Sites(tmp_path / "federation.toml", trial / "sites")
    # The server's app has another file: it asks for plain answers.
    with pytest.raises(EngineError):
        served(plain, grid)
    assert not plain_answers(grid)
    two = Sites(tmp_path / "federation.toml", trial / "sites")
    for node in sorted(two.contexts)[:2]:
        del two.contexts[node]
    with pytest.raises(EngineError, match="masks need 3 to 1,000 sites, and 2"):
        served(federation, two)


def test_answers_are_whole_numbers_whose_sum_is_exact() -> None:
    rng = np.random.default_rng(0)
    answers: list[Answer] = []
    for _ in range(5):
        counts = rng.integers(0, 1000, (2, 3))
        answers.append({"a": counts, "b": rng.normal(0, 1e6, 4), "c": rng.normal(0, 1e-9, 1)})
    answers[0]["b"][:2] = [3.4e38, -3.4e38]
    form = form_of(answers[0])
    words = sum(encoded(answer).astype(np.uint64) for answer in answers) % 2**32
    total = decoded(words.astype("<u4"), form)
    for name in form:
        expected = sum(answer[name] for answer in answers)
        np.testing.assert_allclose(total[name], expected, rtol=1e-15, atol=1e-17)
    assert total["a"].dtype.kind == "i"
    with refuses("3e+06 is too large for a masked sum"):
        encoded({"a": np.array([3_000_000])})


# ----------------------------------------------------------------------------------------------------
# Rows of files and databases.


def test_rows_of_a_database_and_of_parquet_are_those_of_the_file(
    trial: Path, ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    agreed = facts_in(ran.run)
    expected = data_of(ran.federation, trial, agreed, "aster")
    frame = site_table(0)
    numbers = frame.assign(
        age=pd.to_numeric(frame["age"].replace("", None)),
        cost=frame["cost"].astype(float),
        unused=1,
    )
    database = tmp_path / "clinic.db"
    with sqlite3.connect(database) as connection:
        numbers.to_sql("visits", connection, index=False)
    numbers.to_parquet(tmp_path / "aster.parquet", index=False)
    query = tmp_path / "visits.sql"
    query.write_text('SELECT "age", smoker, admitted, finding, cost FROM visits')
    monkeypatch.setenv("CLINIC", f"sqlite:///{database}")
    sources = [
        (f"sqlite:///{database}", "SELECT * FROM visits"),
        ("env:CLINIC", str(query)),
        (str(tmp_path / "aster.parquet"), ""),
    ]
    for source, source_query in sources:
        table, context = read_source(source, source_query)
        data = Site(ran.federation, "aster", 0, table, context).data(agreed).data
        assert torch.equal(data.train.inputs, expected.train.inputs)
        assert torch.equal(data.test.targets, expected.test.targets)
    assert sqlite3.connect(database).execute("SELECT count(*) FROM visits").fetchone() == (60,)


def test_what_is_wrong_with_a_source_is_one_sentence_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    database = tmp_path / "clinic.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE visits (age REAL, picture BLOB)")
    address = f"sqlite:///{database}"
    with refuses("need a query, such as SELECT"):
        read_source(address)
    with refuses("the query failed: no such table: visit"):
        read_source(address, "SELECT * FROM visit")
    with refuses("the query returns no rows"):
        read_source(address, "SELECT * FROM visits")
    with refuses("the query returns no rows: it must be a SELECT"):
        read_source(address, "INSERT INTO visits VALUES (1, NULL)")
    assert sqlite3.connect(database).execute("SELECT count(*) FROM visits").fetchone() == (0,)
    with refuses("two columns with one name"):
        read_source(address, "SELECT 1 AS a, 2 AS a")
    with refuses("the query's column picture has bytes"):
        read_source(address, "SELECT x'00ff' AS picture")
    with refuses("there is no database"):
        read_source(f"sqlite:///{tmp_path / 'none.db'}", "SELECT 1")
    with refuses("the environment has no variable NOWHERE"):
        read_source("env:NOWHERE")
    with refuses("a query needs a database"):
        read_source(str(tmp_path / "a.csv"), "SELECT 1")
    monkeypatch.setenv("CLINIC", "nodialect://user:hunter2@host/db")
    with pytest.raises(UserError) as caught:
        read_source("env:CLINIC", "SELECT 1")
    assert "hunter2" not in str(caught.value)


# ----------------------------------------------------------------------------------------------------
# The commands.


def test_the_commands_write_an_app_and_a_node_config(
    trial: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tomllib

    app = tmp_path / "app"
    assert main(["federation", str(trial / "trial"), "-o", str(app)]) == 0
    said = capsys.readouterr().out
    assert "fedavg, 2 rounds" in said
    assert "constants that the sites agree on" in said
    file = app / "federation.toml"
    federation = TableFederation.from_file(file)
    assert federation == TableFederation.from_run(trial / "trial")
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert settings["config"]["nodes"] == 4
    for component in settings["components"].values():
        module = component.partition(":")[0].replace(".", "/")
        source = (app / f"{module}.py").read_text()
        names: dict[str, Any] = {"__file__": str(app / f"{module}.py")}
        exec(compile(source, module, "exec"), names)
        assert names["app"] is not None
    node = tmp_path / "node.toml"
    rows = trial / "sites" / "aster.csv"
    check = ["node", str(file), "--client", "aster", "--data", str(rows)]
    assert main([*check, "--keep-dir", str(tmp_path / "kept"), "-o", str(node)]) == 0
    assert "aster.csv fits" in capsys.readouterr().out
    assert tomllib.loads(node.read_text()) == {
        "client-id": "aster",
        "data": str(rows),
        "federation": federation.digest,
        "keep-dir": str(tmp_path / "kept"),
    }
    for again in (["federation", str(trial / "trial"), "-o", str(app)], [*check, "-o", str(node)]):
        assert main(again) == 2
        assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.drop(columns="smoker"), "lacks the column smoker of the table schema"),
        (lambda frame: frame.rename(columns={"age": "ages"}), "did you mean ages?"),
        (lambda frame: frame.assign(age="old"), "the column age has 'old' in row 1"),
        (lambda frame: frame.replace("ill", "sick"), "has the class 'sick'"),
        (
            lambda frame: frame.assign(cost=frame["cost"] * 100),
            "values outside 1000 to 9000 in 60 of 60 rows",
        ),
        (
            lambda frame: frame.assign(site=["a", "b"] * 30),
            "has rows of 2 sites in its column site",
        ),
    ],
)
def test_what_differs_at_a_site_is_one_sentence_before_anything_is_sent(
    trial: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, sentence: str
) -> None:
    file = tmp_path / "federation.toml"
    text = write_federation(trial / "trial", file).toml()
    file.write_text(
        text.replace(
            "[table_schema.columns.cost]", "[table_schema.columns.cost]\nplausible = [1000, 9000]"
        )
    )
    rows = tmp_path / "aster.csv"
    change(site_table(0)).to_csv(rows, index=False)
    assert main(["node", str(file), "--client", "aster", "--data", str(rows)]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not printed.out


def test_files_of_other_forms_are_refused_in_a_sentence(trial: Path, tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    text = write_federation(trial / "trial", file).toml()
    for before, after, sentence in (
        ("[federation]", "[federated]", "must have a table [federation]"),
        ('kind = "number"', 'kind = "numbers"', "kind must be one of"),
        ("rounds = 2", "round = 2", "has no entry 'round'; did you mean rounds?"),
        ('name = "fedavg"', 'name = "evil:Method"', "is code of your own"),
        ('model = "mlp"', 'model = "evil:Net"', "is code of your own"),
        ('classes = ["ill", "well"]', 'classes = ["ill"]', "two classes or more"),
    ):
        assert before in text
        file.write_text(text.replace(before, after, 1))
        with refuses(sentence):
            TableFederation.from_file(file)


def test_a_run_without_a_schema_or_with_another_one_has_no_federation(
    trial: Path, tmp_path: Path
) -> None:
    command = [
        "run",
        "--scenario",
        "digits/iid",
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--set",
        "clients=2",
    ]
    assert main([*command, "--out", str(tmp_path / "digits")]) == 0
    with refuses("is no run over tables with a schema"):
        TableFederation.from_run(tmp_path / "digits")
    other = tmp_path / "other.toml"
    other.write_text((trial / "schema.toml").read_text().replace("[columns.age]", "[columns.ages]"))
    with refuses("is not the schema of", "it lacks age"):
        TableFederation.from_run(trial / "trial", schema_file=other)
    with refuses("which is not here", "--constants"):
        TableFederation.from_run(trial / "trial", schema_file=tmp_path / "gone.toml")


def test_levels_are_found_over_the_grid(trial: Path, tmp_path: Path) -> None:
    """A schema that lists no level: common ones are found, rare ones stay other."""
    file = tmp_path / "federation.toml"
    text = write_federation(trial / "trial", file).toml()
    listed = 'levels = ["former", "no", "pipe", "yes"]\n'
    assert listed in text
    file.write_text(text.replace(listed, "levels = []\nfind = true\nleast_clients = 2\n"))
    federation = TableFederation.from_file(file)
    served(federation, Sites(file, trial / "sites"), rounds=1, out=str(tmp_path / "run"))
    columns = facts_in(tmp_path / "run")["about"]["table_schema"]["columns"]
    simulated = facts_in(trial / "trial")["about"]["table_schema"]["columns"]
    assert columns["smoker"]["levels"] == simulated["smoker"]["levels"]
    assert "find" not in columns["smoker"]


def test_a_strange_question_is_refused_at_the_site(trial: Path, tmp_path: Path) -> None:
    federation, _ = started(trial, tmp_path)
    table, context = read_source(str(trial / "sites" / "aster.csv"))
    site = Site(federation, "aster", 0, table, context)
    for question in (
        SumQuestion(about="at-most", bounds={"finding": (0.0,)}),
        SumQuestion(about="texts", buckets={"age": (1,)}),
        SumQuestion(about="features"),
    ):
        with refuses("is not one of the file's"):
            site.answer(question)
    other = TableSchema(columns={"finding": CategoryColumn(levels=("ill",), least=0)})
    with refuses("is about other columns than the file's"):
        site.answer(SumQuestion(about="features", schema=other))
    json.dumps(SumQuestion(about="columns").to_json())
