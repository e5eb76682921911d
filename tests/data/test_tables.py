"""CSV and Parquet files of rows that name their client: what is read, and what is refused in one sentence."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import torch

import coterie
from coterie import files
from coterie.cli import main
from coterie.data import readers
from coterie.data.datasets import table as tables
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.runs.experiment import make, normal
from coterie.runs.folders import begin
from coterie.runs.set_option import assign
from coterie.settings import SettingError, UserError
from refusals import refuses


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "ward": [f"{row % 3:02}" for row in range(rows)],
            "age": rng.integers(20, 90, rows),
            "fever": rng.normal(37, 1, rows).round(2),
            "smokes": rng.random(rows) < 0.3,
            "finding": np.where(rng.random(rows) < 0.5, "ill", "well"),
        }
    )


def scenario(**settings: Any) -> Scenario:
    return replace(
        SCENARIOS["table/clients"], **{"client": "ward", "target": "finding", **settings}
    )


def csv_file(path: Path, table: pd.DataFrame) -> Path:
    table.to_csv(path, index=False)
    return path


def parquet_file(path: Path, table: pd.DataFrame) -> Path:
    table.to_parquet(path)
    return path


WRITE: dict[str, Callable[[Path, pd.DataFrame], Path]] = {
    "t.csv": csv_file,
    "T.PARQUET": parquet_file,
}


def same(one: coterie.World, other: coterie.World) -> bool:
    """Whether two worlds have the same clients with the same examples, and the same facts."""
    tensors = [
        [
            [
                data.name,
                *(
                    tensor.tolist()
                    for split in (data.train, data.test)
                    for tensor in split.batch(torch.arange(len(split)))
                ),
            ]
            for data in world.clients.values()
        ]
        for world in (one, other)
    ]
    return tensors[0] == tensors[1] and one.about == other.about


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("target", ["finding", "fever", "age", "smokes"])
def test_a_file_has_the_world_of_its_data_frame(tmp_path: Path, name: str, target: str) -> None:
    table = frame()
    table["finding"] = table["finding"] == "ill" if target != "finding" else table["finding"]
    path = WRITE[name](tmp_path / name, table)
    world = scenario(target=target, task="regression" if target == "age" else "auto").build(3, path)
    assert same(
        world,
        coterie.from_frame(
            table, "ward", target, task="regression" if target == "age" else "auto", seed=3
        ),
    )
    assert [data.name for data in world.clients.values()] == [
        "00",
        "01",
        "02",
    ]  # as they are written


@pytest.mark.parametrize("name", WRITE)
def test_columns_can_be_chosen(tmp_path: Path, name: str) -> None:
    table = frame().assign(note="free text, of no use")
    path = WRITE[name](tmp_path / name, table)
    world = scenario(columns=("fever", "age")).build(0, path)
    assert same(world, coterie.from_frame(table, "ward", "finding", features=["fever", "age"]))
    several = scenario(target=("age", "fever"), columns=("smokes",), task="regression").build(
        0, path
    )
    assert several.about["targets"] == ["age", "fever"]


def test_forms_of_csv(tmp_path: Path) -> None:
    table = frame()
    plain = scenario().build(0, csv_file(tmp_path / "t.csv", table))
    text = (tmp_path / "t.csv").read_text()
    forms = {
        "semicolon.csv": text.replace(",", ";").encode(),
        "tab.csv": text.replace(",", "\t").encode(),
        "bom.csv": b"\xef\xbb\xbf" + text.encode(),
        "windows.csv": text.replace("\n", "\r\n").encode(),
        "quoted.csv": text.replace(",", '","')
        .replace("\n", '"\n"')
        .join(['"', ""])
        .removesuffix('"')
        .encode(),
        "blank.csv": text.encode() + b"\n\n",
        "packed.csv.gz": gzip.compress(text.encode()),
    }
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        assert same(scenario().build(0, tmp_path / name), plain), name


def test_types_of_csv_are_found_over_blocks_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CSV_BLOCK_ROWS", 4)
    rows = [
        "w,i,f,b,y",
        *(
            f"{n % 2},{n},{n if n < 7 else n + 0.5},{'true' if n % 3 else 'False'},{n // 10}"
            for n in range(40)
        ),
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    world = scenario(client="w", target="y").build(0, tmp_path / "t.csv")
    found = sorted(row for data in world.clients.values() for row in data.train.inputs.tolist())
    assert found == [[n, n if n < 7 else n + 0.5, float(n % 3 > 0)] for n in range(40)]
    rows[-1] = "1,39,1.5.2,true,3"
    (tmp_path / "t.csv").write_text("\n".join(rows))
    with pytest.raises(UserError, match=r"the column f is text \('1\.5\.2' in row 40\)"):
        scenario(client="w", target="y").build(0, tmp_path / "t.csv")


def test_the_rows_numbers_of_pandas_are_no_feature(tmp_path: Path) -> None:
    table = frame()
    path = parquet_file(tmp_path / "t.parquet", table[table.index % 3 > 0])
    assert any(
        name.startswith("__index") for name in pyarrow.parquet.ParquetFile(path).schema_arrow.names
    )
    made = tables.clients_of_table(path, tables.TableSettings(client="ward", target="finding"))
    assert not any("index" in name for name in made.about["features"])


def test_text_of_parquet(tmp_path: Path) -> None:
    table = frame().astype({"ward": "category", "finding": "category"})
    path = parquet_file(tmp_path / "t.parquet", table)
    assert same(scenario().build(0, path), coterie.from_frame(table, "ward", "finding"))
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pandas(frame()), path, row_group_size=7, use_dictionary=False
    )
    assert same(scenario().build(0, path), coterie.from_frame(frame(), "ward", "finding"))


def test_a_table_is_read_again_only_if_it_has_changed(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "t.csv", frame())
    first, again = (scenario().build(seed, path).clients[0].train for seed in (0, 1))
    assert first.inputs is again.inputs
    csv_file(path, frame(61))
    assert len(scenario().build(0, path).clients[0].train.inputs) == 21


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"client": None}, ["Scenario.client", "ward, age, fever, smokes, finding"]),
        ({"target": None}, ["Scenario.target", "ward, age, fever, smokes, finding"]),
        ({"target": "findings"}, ["'findings'", "did you mean finding?"]),
        ({"columns": ("age", "ward")}, ["features", "'ward'", "the client"]),
    ],
)
@pytest.mark.parametrize("name", WRITE)
def test_wrong_columns(
    tmp_path: Path, name: str, settings: dict[str, Any], parts: list[str]
) -> None:
    with refuses(*parts):
        scenario(**settings).build(0, WRITE[name](tmp_path / name, frame()))


HEAD = b"ward,age,finding\n"


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        (b"", ["is empty"]),
        (b" \n\n", ["is empty"]),
        (HEAD, ["no rows"]),
        (b"ward,age,age,finding\nA,1,2,0\n", ["2 columns", "'age'"]),
        (b",ward,age,finding\n0,A,1,0\n", ["column 1", "no name", "index=False"]),
        (HEAD + b"A,1,0\nB,2\n", ["row 2", "2 fields", "3"]),
        (HEAD + b"A,1,0\nB,,0\n", ["column age", "missing value", "row 2"]),
        (HEAD + b"A,1,0\nB,NA,1\n", ["column age", "'NA' in row 2"]),
        (HEAD + b"A,1,0\nB,inf,1\n", ["column age", "'inf' in row 2"]),
        (HEAD + b"A,1,0\nB,1_0,1\n", ["column age", "'1_0' in row 2"]),
        (HEAD + b"A,1e999,0\nB,1,1\n", ["column age", "finite"]),
        (HEAD + b"A,\xff,0\n", ["csv", "UTF-8"]),
        (HEAD + b'A,"1,0\n', ["csv", "UTF-8"]),
        (HEAD + b"A," + b"1" * 200_000 + b",0\n", ["csv", "UTF-8"]),
        (b"\x1f\x8b\x08broken", ["gzip", "broken or incomplete"]),
        (HEAD + b'"A\x1b[2J",1,0\nB,1,1\n', ["names", "control characters"]),
        (HEAD + b"A" * 201 + b",1,0\nB,1,1\n", ["names", "100 characters"]),
        (b"," * 100_000 + b"\n", ["100,000 columns"]),
    ],
    ids=range(18),
)  # fmt: skip
def test_a_csv_file_that_is_not_a_table(tmp_path: Path, raw: bytes, parts: list[str]) -> None:
    (tmp_path / "t.csv").write_bytes(raw)
    with refuses(*parts):
        scenario().build(0, tmp_path / "t.csv")


@pytest.mark.parametrize(
    "damage",
    [lambda raw: b"", lambda raw: b"PAR1", lambda raw: raw[:-100], lambda raw: b"\0" * len(raw)],
    ids=range(4),
)
def test_a_parquet_file_that_is_not_one(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = parquet_file(tmp_path / "t.parquet", frame())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="is not a readable Parquet file"):
        scenario().build(0, path)


def test_no_damage_of_a_parquet_file_is_a_traceback(tmp_path: Path) -> None:
    """Damaged files are read as they are, or refused."""
    path = parquet_file(tmp_path / "t.parquet", frame(2000))
    raw, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(raw)
        for place in rng.integers(0, len(data), 20):
            data[place] = rng.integers(256)
        path.write_bytes(data)
        tables._clients.cache_clear()
        with suppress(UserError):
            scenario().build(0, path)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pyarrow.array([[1], [2]] * 10), "list<"),
        (pyarrow.array([{"a": 1}] * 20), "struct<"),
        (pyarrow.array([b"x"] * 20), "binary"),
        (pyarrow.array([b"xy"] * 20, pyarrow.binary(2)), "fixed_size_binary"),
        (pyarrow.array([0] * 20, pyarrow.time32("s")), "time32"),
        (pyarrow.nulls(20), "null"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parquet_columns_that_are_no_numbers(tmp_path: Path, column: Any, kind: str) -> None:
    table = pyarrow.table(
        {"ward": ["a", "b"] * 10, "odd": column, "finding": [0, 1] * 10, "age": range(20)}
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(
        UserError,
        match=f"the column odd holds values of type {kind}.*: list the columns to use as features",
    ):
        scenario().build(0, tmp_path / "t.parquet")
    assert scenario(columns=("age",)).build(0, tmp_path / "t.parquet").about["features"] == ["age"]


def test_missing_values_of_parquet(tmp_path: Path) -> None:
    table = pyarrow.table(
        {"ward": ["a", None] * 10, "age": [1, 2, None, 4] * 5, "finding": [0, 1] * 10}
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(
        UserError, match="the column ward has 10 missing values, the first in row 2"
    ):
        scenario().build(0, tmp_path / "t.parquet")
    with pytest.raises(
        UserError, match="age has 5 missing values, the first in row 3, ward has 10"
    ):
        scenario(client="finding", target="age").build(0, tmp_path / "t.parquet")


def test_long_text_that_is_packed_stays_packed(tmp_path: Path) -> None:
    """A text of a megabyte in each of 100,000 rows would take 100 GB."""
    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 100_000, pyarrow.int32()), pyarrow.array(["x" * 1_000_000])
    )
    table = pyarrow.table({"ward": texts, "age": range(100_000), "finding": [0, 1] * 50_000})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", store_schema=False)
    with pytest.raises(UserError, match="names must have at most 100 characters"):
        scenario().build(0, tmp_path / "t.parquet")


def test_bombs_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ALLOWED_BYTES", 1 << 20)
    zeros = np.zeros(1_000_000, int)
    pyarrow.parquet.write_table(
        pyarrow.table({"ward": zeros, "age": zeros, "finding": zeros}), tmp_path / "t.parquet"
    )
    with pytest.raises(UserError, match="it looks like a decompression bomb"):
        scenario().build(0, tmp_path / "t.parquet")


@pytest.mark.parametrize("name", WRITE)
def test_tables_have_room_in_the_memory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITE[name](tmp_path / name, frame())
    for module in (files, readers):
        monkeypatch.setattr(module, "available_memory", lambda: 1000.0)
    with pytest.raises(UserError, match="more than the limit of 500"):
        scenario().build(0, path)
    (tmp_path / "u.csv").write_text("w,y,a\n" + "1,0,1\n" * 60)
    with pytest.raises(
        UserError, match="unpacks to 1,440 bytes or more, and half of the free memory is 500 bytes"
    ):
        scenario(client="w", target="y").build(0, tmp_path / "u.csv")


def test_places_that_are_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"x")
    (tmp_path / "folder.csv").mkdir()
    for name, sentence in (
        ("t.xlsx", r"must be a table, with a name that ends in \.csv, \.csv\.gz or \.parquet"),
        ("folder.csv", "is a folder, and a table is one file: give it with --data FILE.csv"),
        ("none.csv", "the data file .*none.csv does not exist"),
    ):
        with pytest.raises(UserError, match=sentence):
            scenario().build(0, tmp_path / name)
    with pytest.raises(
        UserError, match="is a file; for a table of your own, use the scenario table/clients"
    ):
        SCENARIOS["folder/clients"].build(0, tmp_path / "t.xlsx")
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(
        UserError,
        match=r"a table is read from a file: give it with --data FILE\.csv or set COTERIE_DATA",
    ):
        scenario().build(0)


def test_without_pyarrow_a_sentence_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet_file(tmp_path / "t.parquet", frame())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install 'coterie\[tables\]'"):
        scenario().build(0, path)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"partition": "iid"}, ["partition clients", "folder, images, table"]),
        ({"shift": "rotation"}, ["table", "shift must be none", "test share"]),
        ({"task": "ranking"}, ["Scenario.task", "auto, classification, regression"]),
        ({"dataset": "folder"}, ["Scenario.client", "table", "folder"]),
        ({"target": 3}, ["Scenario.target", "string", "list", "3"]),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], parts: list[str]) -> None:
    with refuses(*parts, error=SettingError):
        scenario(**settings)


@pytest.mark.filterwarnings("ignore:the inputs are not scaled")
def test_a_client_of_a_table_joins_later_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    csv_file(Path("t.csv"), frame())
    table = {
        "name": "table/clients",
        "client": "ward",
        "target": "finding",
        "newcomers": ["01"],
        "join_round": 3,
    }
    experiment = make({"scenario": table, "data": "t.csv", "methods": ["fedavg"], "rounds": 4})
    assert experiment.world(0).attendance.joins == experiment.world(1).attendance.joins == {1: 3}
    (run,) = begin(experiment, "a")
    assert [len(done.assignment.row) for done in run.rounds()] == [2, 2, 3, 3]
    assert coterie.reopen("a")[0].experiment.setup == experiment.setup


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    csv_file(Path("t.csv"), frame())
    words = [
        "--scenario",
        "table/clients",
        "--data",
        "t.csv",
        "--set",
        "client=ward",
        "--workers",
        "1",
    ]
    call = ["run", *words, "--method", "fedavg", "--rounds", "2", "--set", "standardize=pooled"]
    assert main([*call, "--set", "target=finding", "--out", "a"]) == 0
    (run,) = coterie.reopen("a")
    about = run.record.description()["world"]["about"]
    assert about["classes"] == ["ill", "well"]
    assert about == run.experiment.world(0).about
    assert len(about["means"]) == len(about["deviations"]) == 3
    assert main(["export", "a", "--to", "models"]) == 0
    assert main(["resume", "a"]) == 0
    capsys.readouterr()
    assert main([*call, "--out", "b"]) == 2
    assert capsys.readouterr().err.startswith("coterie: Scenario.target must name a column of ")
    assert not Path("b").exists()


def test_target_alone_is_the_accuracy_where_no_table_is() -> None:
    digits = assign(normal({"scenario": "digits/iid"}), "target=0.9")
    assert make(digits).target == 0.9
    table = assign(
        assign(normal({"scenario": "table/clients"}), "target=finding"), "experiment.target=0.9"
    )
    assert (make(table).target, make(table).setup.dataset.target) == (0.9, "finding")
