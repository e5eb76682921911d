"""``coterie schema`` says what messy columns are, and what is doubtful about that."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.cli import main
from coterie.contrib.sites.cells import Cells, of_frame
from coterie.contrib.sites.columns import (
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    IgnoredColumn,
    NumberColumn,
    TextColumn,
)
from coterie.contrib.sites.inferring import infer
from coterie.contrib.sites.table_schema import TableSchema

ROWS = 60
RNG = np.random.default_rng(0)
NUMBERS = [f"{number:.2f}" for number in RNG.normal(5, 1, ROWS)]
DAYS = pd.date_range("2022-01-25", periods=ROWS, freq="3D")


def repeated(*texts: str) -> list[str]:
    return [texts[row % len(texts)] for row in range(ROWS)]


CASES: dict[str, tuple[list[str], Column, str]] = {
    "number": (NUMBERS, NumberColumn(), ""),
    "gaps": (
        ["", "NA", *NUMBERS[2:]],
        NumberColumn(missing="indicator"),
        "",
    ),
    "words among numbers": (
        ["unknown", ">9", *NUMBERS[2:]],
        NumberColumn(missing="indicator", missing_marks=(">9", "unknown")),
        "numbers but for '>9', 'unknown' in 2 rows",
    ),
    "decimal comma": (
        [number.replace(".", ",") for number in NUMBERS],
        NumberColumn(decimal=","),
        "has decimal commas",
    ),
    "thousands": (
        [f"{1234 + row:,}" for row in range(ROWS)],
        NumberColumn(),
        "commas between thousands, such as '1,234'",
    ),
    "sentinel among floats": (
        ["999.0", "999.0", *NUMBERS[2:]],
        NumberColumn(),
        "has 999.0 in 2 rows, far from the rest",
    ),
    "sentinel": (
        ["-999", "-999", *NUMBERS[2:]],
        NumberColumn(),
        "has -999 in 2 rows, far from the rest",
    ),
    "codes": (repeated("1", "2", "3"), NumberColumn(), "has 3 whole numbers (1, 2, 3)"),
    "leading zeros": (
        repeated("01", "02", "07"),
        CategoryColumn(levels=("01", "02", "07")),
        "",
    ),
    "boolean": (repeated("Y", "N"), BooleanColumn(true=("Y",), false=("N",)), ""),
    "one value or none": (
        repeated("x", ""),
        BooleanColumn(true=("x",), false=(), fill=0.0),
        "has 'x' or nothing",
    ),
    "levels": (
        ["rare", *repeated("a", "b")[1:]],
        CategoryColumn(levels=("a", "b", "rare")),
        "1 of 3 levels in fewer than 10 rows",
    ),
    "spellings": (
        repeated("no", "yes ", "Yes", "maybe"),
        CategoryColumn(levels=("Yes", "maybe", "no"), ignore_case=True),
        "upper and lower case, such as 'Yes', 'yes'",
    ),
    "a word that may be missing": (
        repeated("mild", "None", "severe"),
        CategoryColumn(levels=("mild", "severe"), missing="indicator"),
        "has 'None' in 20 rows, read as missing",
    ),
    "iso": ([str(day.date()) for day in DAYS], DateColumn(parts=("years", "week")), ""),
    "german": (
        [day.strftime("%d.%m.%Y") for day in DAYS],
        DateColumn(format="%d.%m.%Y", parts=("years", "week")),
        "",
    ),
    "american": (
        [day.strftime("%m/%d/%Y") for day in DAYS],
        DateColumn(format="%m/%d/%Y", parts=("years", "week")),
        "",
    ),
    "day or month": (
        repeated("01/02/2022", "03/04/2022"),
        DateColumn(format="%d/%m/%Y", parts=("years", "week")),
        'format = "%m/%d/%Y"',
    ),
    "time of day": (
        [f"2022-03-{1 + row // 24:02} {row % 24:02}:30" for row in range(ROWS)],
        DateColumn(parts=("years", "day")),
        "",
    ),
    "prose": (
        [f"pain since day {row} of {row % 7}" for row in range(ROWS)],
        TextColumn(),
        "60 different texts of 6.0 words on average",
    ),
    "record_id": ([str(1000 + row) for row in range(ROWS)], IgnoredColumn(), "as ids have"),
    "hash": ([f"a{row}f" for row in range(ROWS)], IgnoredColumn(), "as ids have"),
    "constant": (["DE"] * ROWS, IgnoredColumn(), "the same value in every row"),
    "empty": (["", "NA"] * (ROWS // 2), IgnoredColumn(), "has no value at all"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_column_is(name: str) -> None:
    row_texts, expected, doubt = CASES[name]
    proposal = infer({name: Cells.of(row_texts)})
    assert proposal.schema.columns[name] == expected
    doubts = " ".join(proposal.doubts.get(name, ()))
    assert doubt in doubts
    if not doubt:
        assert not doubts


@pytest.mark.parametrize("name", CASES)
def test_a_proposed_schema_fits_its_table(name: str) -> None:
    table = {name: Cells.of(CASES[name][0])}
    infer(table).schema.check(table, "t")


def test_doubts_about_sites_and_the_target() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(list("AB"), ROWS)})
    frame["lab"] = np.where(frame["site"] == "A", rng.normal(size=2 * ROWS).round(2), np.nan)
    frame["device"] = np.where(frame["site"] == "A", "mk1", "mk2")
    frame["ill"] = rng.choice(["yes", "no"], 2 * ROWS)
    frame["code"] = np.where(frame["ill"] == "yes", "J18", "Z00")
    frame.loc[3, "ill"] = ""
    proposal = infer(of_frame(frame, "t"), client="site", target=["ill"])
    doubts = {name: " ".join(sentences) for name, sentences in proposal.doubts.items()}
    assert "has no value at all at 'B'" in doubts["lab"]
    assert "has one value at each client" in doubts["device"]
    assert "has no value in 1 row: a run leaves these out" in doubts["ill"]
    assert "tells the target 'ill' in every row" in doubts["code"]
    # One row that differs is enough for the column to be a feature like others.
    frame.loc[5, "ill"] = "no" if frame.loc[5, "ill"] == "yes" else "yes"
    proposal = infer(of_frame(frame, "t"), client="site", target=["ill"])
    assert "code" not in proposal.doubts


MESSY = """\
\ufeffhospital;alter;raucher;aufnahme;befund
Nord;61,5;ja;03.02.2021;krank
Nord;;nein;17.02.2021;gesund
Süd;58,0;Ja;28.03.2021;krank
Süd;70,25;nein;n/a;gesund
"""


def test_the_command_writes_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text(MESSY)
    out = tmp_path / "schema.toml"
    arguments = ["schema", str(table), "--client", "hospital", "--target", "befund", "-o", str(out)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    # Doubts come before the table of columns.
    assert shown.index("alter has decimal commas") < shown.index("column ")
    schema = TableSchema.from_file(out)
    assert schema.client == "hospital"
    assert schema.target == ("befund",)
    assert schema.columns["alter"] == NumberColumn(decimal=",", missing="indicator")
    assert "# has decimal commas\n[columns.alter]" in out.read_text()
    # Edited files are not overwritten.
    assert main(arguments) == 2
    assert "exists, and may have been edited" in capsys.readouterr().err
    assert main(["schema", str(table), "--check", str(out)]) == 0
    assert "fits" in capsys.readouterr().out
    table.write_text(MESSY.replace("61,5", "alt"))
    assert main(["schema", str(table), "--check", str(out)]) == 2
    assert "the column alter has 'alt' in row 1" in capsys.readouterr().err


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(MESSY)
    assert main(["schema", str(tmp_path / "t.csv"), "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["kind"] for entry in entries][:2] == ["category", "number"]


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (MESSY, ["--client", "hospitl"], "did you mean hospital?"),
        (MESSY, ["--least", "-1"], "--least: must be >= 0"),
        (MESSY, ["--check", "s.toml", "-o", "x.toml"], "--check proposes nothing to write"),
        ("a;b\n1;2;3\n", [], "row 1 has 3 fields where 2 were expected"),
        ("a;a\n1;2\n", [], "two columns with one name"),
        ("a;b\n", [], "no rows below the names"),
        ("", [], "is empty"),
    ],
)
def test_mistakes_are_one_sentence(
    content: str,
    options: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "t.csv").write_text(content)
    assert main(["schema", str(tmp_path / "t.csv"), *options]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_several_files_are_several_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "north.csv").write_text("age,ill\n1,yes\n2,no\n")
    (tmp_path / "south.csv").write_text("ill,age\nno,3\n")
    files = [str(tmp_path / "north.csv"), str(tmp_path / "south.csv")]
    out = tmp_path / "schema.toml"
    assert main(["schema", *files, "--target", "ill", "-o", str(out)]) == 0
    assert tomllib.loads(out.read_text())["client"] == "site"
    capsys.readouterr()
    (tmp_path / "south.csv").write_text("ill,aeg\nno,3\n")
    assert main(["schema", *files]) == 2
    assert "south.csv has other columns than" in capsys.readouterr().err


def test_doubts_of_awkward_columns() -> None:
    rng = np.random.default_rng(0)
    rows = 60
    days = pd.Timestamp("2021-01-01") + pd.to_timedelta(np.arange(rows), unit="D")
    finding = ["ill", "well"] * (rows // 2)
    frame = pd.DataFrame(
        {
            # Nearly all values differ, and so each goes with one finding.
            "age": rng.normal(60, 9, rows).round(3).astype(str),
            "code": ["A", "B"] * (rows // 2),
            "visit": [
                day.strftime("%d/%m/%Y") if number % 2 else day.strftime("%Y-%m-%d")
                for number, day in enumerate(days)
            ],
            "weight": [f"{value:.1f} kg" for value in rng.uniform(50, 90, rows)],
            "price": [f"€{value:.2f}" for value in rng.uniform(1, 9, rows)],
            "zip": [f"0{1000 + row % 4}" for row in range(rows)],
            "finding": finding,
        }
    )
    doubts = infer(of_frame(frame, "t"), target=["finding"]).doubts
    assert "age" not in doubts
    assert any("tells the target 'finding' in every row" in doubt for doubt in doubts["code"])
    for name in ("visit", "weight", "price"):
        assert any("write them in one form" in doubt for doubt in doubts[name])
    assert "write them in one form" not in " ".join(doubts.get("zip", ()))
    one_class = frame.assign(finding="ill")
    (doubt,) = infer(of_frame(one_class, "t"), target=["finding"]).doubts["finding"]
    assert "the same class in every row, 'ill'" in doubt


def test_a_site_with_another_unit_is_said() -> None:
    heights = RNG.normal(170, 10, ROWS)
    sites = repeated("a", "b", "c")
    in_metres = [
        f"{height / 100:.3f}" if site == "b" else f"{height:.1f}"
        for height, site in zip(heights, sites, strict=True)
    ]
    table = of_frame(pd.DataFrame({"site": sites, "height": in_metres}), "rows")
    (doubt,) = infer(table, client="site").findings[1].doubts
    assert doubt.startswith("is typically 1.")
    assert "at 'b' and 17" in doubt
    # Sites that differ, but not by a unit.
    older = [
        f"{height + 30 * (site == 'b'):.1f}" for height, site in zip(heights, sites, strict=True)
    ]
    table = of_frame(pd.DataFrame({"site": sites, "height": older}), "rows")
    assert infer(table, client="site").findings[1].doubts == ()


def test_the_time_may_be_the_first_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = DAYS.strftime("%Y-%m-%d")
    frame = pd.DataFrame({"day": days, "level": NUMBERS, "ill": repeated("yes", "no"), "site": "a"})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    roles = ["--client=site", "--target=ill", "--order=day"]
    assert main(["schema", str(tmp_path / "rows.csv"), *roles]) == 0
    assert "day     order " in capsys.readouterr().out
