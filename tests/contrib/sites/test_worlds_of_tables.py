"""Runs over tables as they are: constants of training rows alone, records, exports, and predictions for raw rows."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie
from coterie.cli import main
from coterie.contrib.sites.cells import of_frame
from coterie.contrib.sites.inferring import infer
from coterie.contrib.sites.prediction import inputs_of, predict
from coterie.contrib.sites.table_schema import TableSchema
from coterie.contrib.sites.worlds import features_of_rows
from coterie.data.scenario import SCENARIOS
from coterie.runs.facts import same_world, world_facts
from refusals import refuses

TRAINING = coterie.Training(lr=0.2, batch=20, epochs=1)


def messy(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    """A table as a hospital would write it, as texts."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, rows).round(1)
    smoker = rng.choice(["no", "yes", "former", "pipe"], rows, p=[0.5, 0.3, 0.17, 0.03])
    days = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 500, rows), unit="D")
    ill = rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 4 - (smoker != "no")))
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south", "west"], rows),
            "age": [f"{number:.1f}".replace(".", ",") for number in age],
            "smoker": smoker,
            "admitted": days.strftime("%d.%m.%Y"),
            "diabetes": rng.choice(["Y", "N"], rows),
            "note": [
                " ".join(rng.choice(["pain", "fever", "cough", "left"], 5)) for _ in range(rows)
            ],
            "finding": np.where(ill, "ill", "well"),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "age"] = ""
    frame.loc[rng.random(rows) < 0.05, "admitted"] = "n/a"
    return frame


def schema_of(frame: pd.DataFrame, **options: Any) -> TableSchema:
    return infer(of_frame(frame, "t"), client="hospital", target=["finding"], **options).schema


def world_of(frame: pd.DataFrame, schema: Any = None, **settings: Any) -> coterie.World:
    return coterie.from_frame(
        frame,
        client="hospital",
        target="finding",
        schema=schema or schema_of(messy()),
        training=TRAINING,
        **settings,
    )


def rows_of_split(world: coterie.World, split: str) -> torch.Tensor:
    """The inputs of a split of all clients, one after the other."""
    parts = [getattr(data, split) for data in world.clients.values()]
    return torch.cat([part.inputs[part.index] for part in parts])


def test_constants_are_those_of_scikit_learn_on_the_training_rows() -> None:
    """The median of the training rows, whichever these are, and the levels that are common among them."""
    frame = messy()
    # A feature that numbers the rows says which are for training.
    frame["serial"] = range(len(frame))
    world = world_of(frame, schema_of(frame, min_level_rows=8))
    place = world.about["features"].index("serial")
    train_rows = rows_of_split(world, "train")[:, place].long().numpy()
    train = frame.iloc[train_rows]
    ages = pd.to_numeric(train["age"].str.replace(",", ".")).median()
    columns = world.about["table_schema"]["columns"]
    assert columns["age"]["fill"] == ages
    common = train["smoker"].value_counts()
    assert set(columns["smoker"]["levels"]) == set(common[common >= 8].index)
    dates = pd.to_datetime(train["admitted"], format="%d.%m.%Y", errors="coerce")
    expected = dates.astype("datetime64[s]").median()
    assert abs(pd.Timestamp(columns["admitted"]["fill"]) - expected) <= pd.Timedelta(seconds=1)


def test_constants_do_not_depend_on_rows_that_are_held_out() -> None:
    frame = messy()
    frame["serial"] = range(len(frame))
    schema = schema_of(frame)
    world = world_of(frame, schema, standardize="pooled")
    plain = world_of(frame, schema)
    place = plain.about["features"].index("serial")
    held_out = torch.cat([rows_of_split(plain, "validation"), rows_of_split(plain, "test")])
    changed = frame.copy()
    for row in held_out[:, place].long().tolist():
        changed.loc[row, ["age", "smoker", "admitted"]] = ["999,0", "pipe", "01.01.1950"]
    changed_world = world_of(changed, schema, standardize="pooled")
    assert changed_world.about == world.about
    assert torch.equal(rows_of_split(changed_world, "train"), rows_of_split(world, "train"))
    assert not torch.equal(rows_of_split(changed_world, "test"), rows_of_split(world, "test"))


def test_all_clients_have_the_same_constants_and_features() -> None:
    world = world_of(messy(), standardize="pooled")
    schemas = {data.schema for data in world.clients.values()}
    assert len(schemas) == 1
    (schema,) = schemas
    assert schema.columns == tuple(world.about["features"])
    assert schema.classes == ("ill", "well")


def test_the_schema_of_a_file_a_folder_and_a_frame_make_one_world(tmp_path: Path) -> None:
    frame = messy()
    schema = schema_of(frame)
    (tmp_path / "schema.toml").write_text(schema.toml())
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")
    (tmp_path / "sites").mkdir()
    for name, rows in frame.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    # The file of the schema may lie beside the data.
    scenario = replace(SCENARIOS["table/clients"], schema="schema.toml")
    from_csv = scenario.build(0, tmp_path / "all.csv")
    from_parquet = scenario.build(0, tmp_path / "all.parquet")
    from_frame = world_of(frame, tmp_path / "schema.toml", model="mlp")
    assert from_csv.about == from_parquet.about == from_frame.about
    for split in ("train", "test"):
        rows = rows_of_split(from_csv, split)
        assert torch.equal(rows, rows_of_split(from_parquet, split))
        assert torch.equal(rows, rows_of_split(from_frame, split))
    # A folder has a file per client.
    (tmp_path / "sites" / "schema.toml").write_text(schema.toml())
    from_folder = scenario.build(0, tmp_path / "sites")
    assert [data.name for data in from_folder.clients.values()] == ["north", "south", "west"]
    assert from_folder.about == from_csv.about
    assert torch.equal(rows_of_split(from_folder, "train"), rows_of_split(from_csv, "train"))


def test_a_run_is_recorded_exported_and_predicts_raw_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = messy()
    data, schema, out = tmp_path / "t.csv", tmp_path / "schema.toml", tmp_path / "run"
    frame.to_csv(data, index=False)
    assert (
        main(
            ["schema", str(data), "--client", "hospital", "--target", "finding", "-o", str(schema)]
        )
        == 0
    )
    run = ["run", "--scenario", "table/clients", "--data", str(data), "--method", "fedavg"]
    run += ["--set", f"schema={schema}", "--set", "standardize=pooled", "--rounds", "2"]
    assert main([*run, "--workers", "1", "--out", str(out)]) == 0
    # The record has the constants, and its own checksum.
    about = tomllib.loads((out / "run.toml").read_text())["world"]["about"]
    assert about["table_schema"]["columns"]["age"]["fill"] > 0
    models = tmp_path / "models"
    assert main(["export", str(out), "--to", str(models)]) == 0
    assert (
        json.loads((models / "models.json").read_text())["data"]["table_schema"]
        == about["table_schema"]
    )
    capsys.readouterr()

    # Raw rows of a file and of a frame become the inputs that the run had, bit by bit.
    world = replace(SCENARIOS["table/clients"], schema=str(schema), standardize="pooled").build(
        0, data
    )
    inputs = inputs_of(models, data)
    known = {tuple(row) for row in inputs.tolist()}
    assert {tuple(row) for row in rows_of_split(world, "train").tolist()} <= known
    assert torch.equal(inputs, inputs_of(models, frame))
    # Columns are taken by name, further ones are not used, and no target is needed.
    shuffled = frame[list(reversed(frame.columns))].drop(columns=["finding", "hospital"])
    assert torch.equal(inputs, inputs_of(models, shuffled.assign(more="x")))

    net = coterie.load(models, "north")
    with torch.inference_mode():
        expected = net(inputs).numpy()
    predicted = predict(models, "north", frame)
    assert predicted["prediction"].tolist() == [
        "ill" if row[0] >= row[1] else "well" for row in expected
    ]

    # The command reads the same rows.
    by_command = coterie.predict(models, data, "north")
    assert by_command.classes == predicted["prediction"].tolist()
    assert by_command.is_calibrated
    in_frame = np.column_stack([predicted["ill"], predicted["well"]])
    np.testing.assert_allclose(in_frame, by_command.values, atol=1e-6)
    # Levels that no site had, and a column without values, are told.
    unusual = frame.assign(age="", smoker=["cigar", "SNUFF", *frame["smoker"][2:]])
    unusual.to_csv(tmp_path / "unusual.csv", index=False)
    cautions = coterie.predict(models, tmp_path / "unusual.csv", "north").cautions
    assert ["age has no value in any of 240 rows" in caution for caution in cautions].count(
        True
    ) == 1
    (levels,) = [caution for caution in cautions if "smoker" in caution]
    assert "rare or unknown in training" in levels
    assert "'cigar'" in levels
    frame.drop(columns="age").to_csv(tmp_path / "lacking.csv", index=False)
    assert main(["predict", str(models), str(tmp_path / "lacking.csv"), "--client", "north"]) == 2
    assert "lacks the column age of the table schema" in capsys.readouterr().err

    # A level that nobody knew is the other one; a lacking column is one sentence.
    unknown = frame.assign(smoker="vape")
    other = about["features"].index("smoker = (other)")
    assert (features_of_rows(unknown, about["table_schema"])[:, other] == 1).all()
    with refuses("the data frame lacks the column age of the table schema"):
        predict(models, "north", frame.drop(columns="age"))

    # With an edited schema the run has other data, and is not continued by mistake.
    recorded = tomllib.loads((out / "run.toml").read_text())["world"]
    assert same_world(world_facts(world), recorded)
    schema.write_text(schema.read_text().replace("least = 10", "least = 1"))
    scenario = replace(SCENARIOS["table/clients"], schema=str(schema), standardize="pooled")
    assert not same_world(world_facts(scenario.build(0, data)), recorded)


def test_rows_without_a_target_are_left_out_and_said() -> None:
    frame = messy()
    complete = world_of(frame.drop(index=[0, 5]).reset_index(drop=True))
    frame.loc[[0, 5], "finding"] = ["", "NA"]
    world = world_of(frame)
    assert any("2 of 240 rows have no value of the target finding" in hint for hint in world.hints)
    assert torch.equal(rows_of_split(world, "train"), rows_of_split(complete, "train"))


def test_numbers_to_predict_subjects_and_times() -> None:
    frame = messy().assign(patient=[f"p{row % 80}" for row in range(240)])
    frame.loc[frame["age"] == "", "age"] = "60,0"
    schema = schema_of(frame).document()
    frame.loc[frame["admitted"] == "n/a", "admitted"] = "01.02.2021"
    timed = coterie.from_frame(
        frame,
        "hospital",
        "age",
        schema=schema,
        subject="patient",
        order="admitted",
        training=TRAINING,
    )
    assert timed.about["task"] == "regression"
    assert timed.about["order"]["by"] == "admitted"
    assert "admitted: years" not in timed.about["features"]
    # The times are those of pandas: tests are the latest rows.
    dates = pd.to_datetime(frame["admitted"], format="%d.%m.%Y")
    ordered = coterie.from_frame(
        frame,
        "hospital",
        "age",
        schema=schema,
        subject="patient",
        order=dates.to_numpy(),
        training=TRAINING,
    )
    place = timed.about["features"].index("smoker = no")
    assert "admitted: years" in ordered.about["features"]
    assert (
        rows_of_split(timed, "test")[:, place].tolist()
        == rows_of_split(ordered, "test")[
            :, ordered.about["features"].index("smoker = no")
        ].tolist()
    )


def test_later_clients_get_the_constants_of_the_earlier_world() -> None:
    frame = messy()
    world = world_of(frame, standardize="pooled")
    newcomer = messy(60, seed=1).assign(hospital="abbey", age="200,0")
    later = world_of(
        pd.concat([frame, newcomer], ignore_index=True), after=world, standardize="pooled"
    )
    assert later.about["table_schema"] == world.about["table_schema"]
    assert later.about["means"] == world.about["means"]
    assert [data.name for data in later.clients.values()][-1] == "abbey"
    with refuses("the table schema must have the columns of the earlier world"):
        world_of(frame, schema_of(frame).only(["age"]), after=world)


def test_mistakes_of_a_run_are_one_sentence(tmp_path: Path) -> None:
    frame = messy()
    schema = schema_of(frame)
    with refuses("the data frame lacks the column smoker of the table schema", "columns: hospital"):
        world_of(frame.drop(columns="smoker"), schema)
    with refuses("the column age has 'old' in row 8", "add the text to missing_marks"):
        frame.loc[7, "age"] = "old"
        world_of(frame, schema)
    with refuses("the table schema leaves no feature"):
        world_of(frame, TableSchema(columns={}))
    with refuses("the table schema nowhere.toml cannot be read"):
        world_of(frame, "nowhere.toml")
    with refuses("no row has a value of the target finding"):
        world_of(messy().assign(finding=""), schema)
    (tmp_path / "empty").mkdir()
    (tmp_path / "schema.toml").write_text(schema.toml())
    scenario = replace(SCENARIOS["table/clients"], schema=str(tmp_path / "schema.toml"))
    with refuses("holds no table"):
        scenario.build(0, tmp_path / "empty")
    with refuses("is a folder, and a table is one file"):
        SCENARIOS["table/clients"].build(0, tmp_path / "empty")
