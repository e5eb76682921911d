"""Columns of messy tables become the features that scikit-learn and pandas make, by constants from sums alone."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from coterie.contrib.sites.agreement import Client, agreed, summed
from coterie.contrib.sites.cells import Cells, of_frame
from coterie.contrib.sites.columns import (
    COLUMN_CLASSES,
    DATE_PARTS,
    FILLS,
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    TextColumn,
)
from coterie.contrib.sites.table_schema import TableSchema
from coterie.settings import SettingError, UserError
from refusals import refuses


def encoded(column: Column, texts: list[str]) -> list[list[float]]:
    """The features of a column's rows; a rule is agreed with these rows as the only client."""
    schema = TableSchema(columns={"c": column})
    table = {"c": Cells.of(texts)}
    constant_schema = agreed(schema, summed([Client(schema, table, "t")]))
    return constant_schema.encoded(table, "t").tolist()


def agreed_over(schema: TableSchema, frames: list[pd.DataFrame]) -> TableSchema:
    """The schema with the constants of several clients."""
    return agreed(schema, summed([Client(schema, of_frame(frame, "t"), "t") for frame in frames]))


@pytest.mark.parametrize(
    ("decimal", "text", "number"),
    [
        (".", "3.5", 3.5),
        (".", "-.5e2", -50.0),
        (".", "1,234", 1234.0),
        (".", "1,234,567.25", 1234567.25),
        (".", "1 234.5", 1234.5),
        (".", "1'234", 1234.0),
        (".", "12,34", None),
        (".", "1.2.3", None),
        (".", "", None),
        (".", "-", None),
        (".", "1e99", None),
        (".", "inf", None),
        (",", "3,5", 3.5),
        (",", "1.234", 1234.0),
        (",", "1.234.567,25", 1234567.25),
        (",", "3.5", None),
        (",", "7", 7.0),
    ],
)
def test_numbers_as_people_write_them(decimal: str, text: str, number: float | None) -> None:
    assert NumberColumn(decimal=decimal).value_of(text) == number


@pytest.mark.parametrize(
    ("date_format", "text", "moment"),
    [
        ("iso", "2024-03-31", "2024-03-31"),
        ("iso", "2024-03-31 12:30", "2024-03-31T12:30"),
        ("iso", "2024-03-31T12:30:00+02:00", "2024-03-31T10:30"),
        ("iso", "1999-12-31", "1999-12-31"),
        ("iso", "20240331", None),
        ("%d.%m.%Y", "31.03.2024", "2024-03-31"),
        ("%m/%d/%Y %H:%M", "03/31/2024 07:05", "2024-03-31T07:05"),
        ("%d.%m.%Y", "2024-03-31", None),
    ],
)
def test_dates_are_those_of_pandas(date_format: str, text: str, moment: str | None) -> None:
    seconds = DateColumn(format=date_format).value_of(text)
    if moment is None:
        assert seconds is None
    else:
        assert seconds == (pd.Timestamp(moment) - pd.Timestamp("2000-01-01")).total_seconds()


def test_parts_of_a_date() -> None:
    dates = pd.date_range("2021-01-01", "2021-12-31 23:00", freq="7h")
    features = np.array(encoded(DateColumn(parts=DATE_PARTS), [str(date) for date in dates]))
    # The angles of the place in a week and a day, from the fields of pandas.
    hours = (dates.hour + dates.minute / 60).to_numpy()
    day_angle = 2 * np.pi * hours / 24
    # 2000-01-01 was a Saturday, which is day 5 in pandas.
    week_angle = 2 * np.pi * ((dates.day_of_week.to_numpy() - 5) % 7 + hours / 24) / 7
    np.testing.assert_allclose(features[:, 3], np.sin(week_angle), atol=1e-4)
    np.testing.assert_allclose(features[:, 4], np.cos(week_angle), atol=1e-4)
    np.testing.assert_allclose(features[:, 5], np.sin(day_angle), atol=1e-4)
    np.testing.assert_allclose(features[:, 6], np.cos(day_angle), atol=1e-4)
    elapsed_days = (dates - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1)
    np.testing.assert_allclose(features[:, 0] * 365.2425, elapsed_days, rtol=1e-6)
    # A year after, the place in the year is the same.
    (one, other) = encoded(DateColumn(parts=("year",)), ["2021-05-03", "2022-05-03"])
    np.testing.assert_allclose(one, other, atol=0.02)


def test_a_missing_date_has_no_place_in_the_week() -> None:
    rows = encoded(
        DateColumn(missing="indicator", parts=("years", "week")), ["2001-01-01", "", "2003-01-01"]
    )
    years = [row[0] for row in rows]
    assert years[1] == pytest.approx((years[0] + years[2]) / 2)
    assert [row[3] for row in rows] == [0, 1, 0]
    assert rows[1][1:3] == [0, 0]


def test_booleans_and_their_median() -> None:
    column = BooleanColumn(true=("Y",), false=("N",), missing="indicator")
    assert encoded(column, ["Y", "n", "y", "NA"]) == [[1, 0], [0, 0], [1, 0], [1, 1]]
    with refuses("the column c has 'maybe' in row 2", "has true and false"):
        encoded(column, ["Y", "maybe"])


def test_a_level_that_is_missing_rare_or_unknown() -> None:
    column = CategoryColumn(levels=("a", "b", "c"), least=2, missing="indicator")
    rows = encoded(column, ["a", "a", "b", "c", "c", "", "z"])
    # Columns: a, c, other, missing.
    assert rows == [
        [1, 0, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 1, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
    ]
    filled = CategoryColumn(levels=("a",), least=0)
    assert encoded(filled, ["a", "", "z"]) == [[1, 0], [0, 1], [0, 1]]
    folded = CategoryColumn(levels=("a",), least=0, ignore_case=True)
    assert encoded(folded, ["A", "a"]) == [[1, 0], [1, 0]]


def test_words_are_hashed_by_scikit_learn() -> None:
    texts = ["chest pain", "Pain, no fever", "", "fever"]
    expected = HashingVectorizer(n_features=8, token_pattern=r"\w+").transform(texts).toarray()
    np.testing.assert_array_equal(encoded(TextColumn(words=8), texts), expected.astype(np.float32))


def test_missing_values_may_be_refused() -> None:
    with refuses("the column c has no value in row 3", 'missing = "indicator"'):
        encoded(NumberColumn(missing="refuse"), ["1", "2", "?", "3"])


@pytest.mark.parametrize("strategy", ["median", "mean"])
@pytest.mark.parametrize("sites", [1, 3])
def test_agreement_of_sites_is_what_scikit_learn_finds_in_one_place(
    strategy: str, sites: int
) -> None:
    rng = np.random.default_rng(sites)
    rows = 301
    age = rng.normal(60, 9, rows).round(1)
    age[rng.random(rows) < 0.1] = np.nan
    drug = rng.choice(list("abcdef"), rows, p=[0.4, 0.3, 0.2, 0.05, 0.03, 0.02])
    frame = pd.DataFrame({"age": age, "drug": drug})
    schema = TableSchema(
        columns={
            "age": NumberColumn(fill=strategy, missing="indicator"),
            "drug": CategoryColumn(levels=tuple("abcdef"), least=20),
        }
    )
    parts = [frame.iloc[positions] for positions in np.array_split(rng.permutation(rows), sites)]
    constant_schema = agreed_over(schema, parts)
    transformer = ColumnTransformer(
        [
            ("age", SimpleImputer(strategy=strategy, add_indicator=True), ["age"]),
            ("drug", OneHotEncoder(min_frequency=20, sparse_output=False), ["drug"]),
        ]
    )
    expected = transformer.fit_transform(frame)
    np.testing.assert_allclose(
        constant_schema.encoded(of_frame(frame, "t"), "t"), expected.astype(np.float32), rtol=1e-6
    )
    assert [name.rpartition(" ")[2] for name in constant_schema.features[2:]] == [
        *"abc",
        "(other)",
    ]


finite = st.floats(-1e30, 1e30, allow_nan=False)


@given(st.lists(st.lists(finite, max_size=9), min_size=1, max_size=4))
def test_a_median_from_counts_is_the_median(sites: list[list[float]]) -> None:
    schema = TableSchema(columns={"x": NumberColumn()})
    tables = [{"x": Cells.of([repr(value) for value in values] or [""])} for values in sites]
    constant_schema = agreed(schema, summed([Client(schema, table, "t") for table in tables]))
    column = constant_schema.columns["x"]
    assert isinstance(column, NumberColumn)
    together = [value for values in sites for value in values]
    expected = float(np.median(together)) if together else 0.0
    assert column.fill == expected


def test_whoever_asks_learns_sums_alone() -> None:
    """The constants follow from the questions' sums: two divisions of the same rows are told the same."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=40), "c": rng.choice(list("ab"), 40)})
    schema = TableSchema(
        columns={"x": NumberColumn(), "c": CategoryColumn(levels=("a", "b"), least=3)}
    )
    histories = []
    for sites in (2, 5):
        parts = [frame.iloc[positions] for positions in np.array_split(rng.permutation(40), sites)]
        ask = summed([Client(schema, of_frame(part, "t"), "t") for part in parts])
        history: list[Any] = []

        def recorded(question: Any, ask: Any = ask, history: list[Any] = history) -> Any:
            answer = ask(question)
            history.append({name: np.round(sums, 9).tolist() for name, sums in answer.items()})
            return answer

        agreed(schema, recorded)
        histories.append(history)
    assert histories[0] == histories[1]
    # One question for the sums, and at most seven for all medians together.
    assert len(histories[0]) <= 8


# ----------------------------------------------------------------------------------------------------
# The file.


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
# Cells have no control characters.
cell_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
texts = st.lists(cell_texts, max_size=4, unique_by=str.casefold).map(tuple)
missing = {"missing": st.sampled_from(["indicator", "fill", "refuse"]), "missing_marks": texts}
measured = {**missing, "fill": st.one_of(st.sampled_from(FILLS), st.floats(-1e9, 1e9))}
columns = st.one_of(
    st.builds(NumberColumn, decimal=st.sampled_from(".,"), **measured),
    st.builds(BooleanColumn, true=st.just(("ja",)), false=st.just(("nein",)), **measured),
    st.builds(
        CategoryColumn, levels=texts, least=st.integers(0, 99), ignore_case=st.booleans(), **missing
    ),
    st.builds(
        DateColumn,
        format=st.sampled_from(["iso", "%d.%m.%Y"]),
        parts=st.lists(st.sampled_from(DATE_PARTS), min_size=1, unique=True).map(tuple),
        fill=st.sampled_from(["median", "2020-03-01T12:00:00"]),
        **missing,
    ),
    st.builds(TextColumn, words=st.integers(1, 9), **missing),
    st.builds(COLUMN_CLASSES["ignore"]),
)


@given(
    st.builds(
        TableSchema,
        columns=st.dictionaries(names, columns, max_size=4),
        missing_marks=texts,
        client=st.one_of(st.just(""), names),
        target=texts,
    ),
    st.lists(names, max_size=2),
)
def test_a_schema_comes_back_from_its_file(schema: TableSchema, doubts: list[str]) -> None:
    text = schema.toml(dict.fromkeys(schema.columns, doubts))
    assert TableSchema.of(tomllib.loads(text), "schema.toml") == schema


@given(st.lists(finite, min_size=1, max_size=9))
def test_a_schema_with_constants_needs_no_rows(values: list[float]) -> None:
    """Constants that were agreed stay as they are, whatever rows come later, also through the file."""
    schema = TableSchema(columns={"x": NumberColumn()})
    table = {"x": Cells.of(map(repr, values))}
    constant_schema = agreed(schema, summed([Client(schema, table, "t")]))
    read_again = TableSchema.of(tomllib.loads(constant_schema.toml()), "t")
    assert read_again == constant_schema
    assert agreed(read_again, lambda question: {}) == constant_schema


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"colums": {}}, "no entry 'colums'; did you mean columns?"),
        ({}, "must have a table [columns.NAME]"),
        ({"columns": {"a": 1}}, "[columns.a] must be a table"),
        ({"columns": {"a": {"kind": "numbr"}}}, "kind must be one of number"),
        (
            {"columns": {"a": {"kind": "number", "fil": 1}}},
            "[columns.a]: a column of kind number has no",
        ),
        (
            {"columns": {"a": {"kind": "number", "fill": "mode"}}},
            "fill must be median, mean or a number",
        ),
        (
            {"columns": {"a": {"kind": "date", "fill": "soon"}}},
            "fill must be median, mean or an ISO date",
        ),
        ({"columns": {"a": {"kind": "date", "parts": ["month"]}}}, "parts must be some of years"),
        ({"columns": {"a": {"kind": "category", "levels": ["x", "x"]}}}, "which are one level"),
        (
            {"columns": {"a": {"kind": "boolean", "true": ["x"], "false": ["X"]}}},
            "no text in common",
        ),
        ({"columns": {}, "target": [1]}, "target must be a list of texts"),
        ({"columns": {}, "client": 1}, "client must be the name of a column"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        TableSchema.of(document, "schema.toml")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("schema.toml: ")


def test_what_encoding_refuses() -> None:
    schema = TableSchema(columns={"a": NumberColumn(fill=0.0), "b": NumberColumn(fill=0.0)})
    with refuses("t lacks the columns a, b of the table schema"):
        schema.encoded({"x": Cells.of(["1"])}, "t")
    with refuses("are not agreed yet: the column a has the rule median"):
        TableSchema(columns={"a": NumberColumn()}).encoded({"a": Cells.of(["1"])}, "t")
    # All columns at fault are named at once.
    with pytest.raises(UserError, match=r"(?s)a has 'x' in row 2.*b has 'y' in row 1"):
        schema.check({"a": Cells.of(["1", "x"]), "b": Cells.of(["y", "1"])}, "t")
    twice = TableSchema(
        columns={"a": NumberColumn(missing="indicator"), "a is missing": NumberColumn()}
    )
    with refuses("two features of the table schema are called 'a is missing'"):
        _ = twice.features


def test_cells_of_a_frame() -> None:
    frame = pd.DataFrame(
        {
            "whole": [1, 2],
            "with_gap": [7.0, math.nan],
            "flag": [True, False],
            "day": pd.to_datetime(["2024-03-31", None]),
            "kind": pd.Categorical(["a", None]),
        }
    )
    row_texts = {name: cells.row_texts() for name, cells in of_frame(frame, "t").items()}
    assert row_texts == {
        "whole": ["1", "2"],
        "with_gap": ["7", ""],
        "flag": ["true", "false"],
        "day": ["2024-03-31T00:00:00.000000", ""],
        "kind": ["a", ""],
    }
