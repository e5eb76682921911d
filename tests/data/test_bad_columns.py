"""A table with several columns that cannot be used names all of them in one refusal."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import coterie
from coterie.data.datasets.table import TableSettings, clients_of_table
from coterie.settings import UserError

TABLE = pd.DataFrame(
    {
        "site": ["a", "b"] * 10,
        "ill": [0, 1, 1, 0] * 5,
        "age": range(20),
        "ward": ["x", "y"] * 10,
        "payer": ["public"] * 20,
        "day": ["2024-01-01"] * 20,
        "level": [None, 1.5] * 10,
    }
)


def test_all_bad_columns_are_in_one_refusal() -> None:
    with pytest.raises(UserError) as caught:
        coterie.from_frame(TABLE, client="site", target="ill")
    said = str(caught.value)
    assert said.startswith(
        "the data frame has 4 columns that cannot be used as they are. ward is text ('x' in row 1), "
        "payer is text ('public' in row 1): list the columns to use as features"
    )
    assert "day is text ('2024-01-01' in row 1)" in said
    assert "level has 10 missing values, the first in row 1: remove such rows" in said
    assert "\n" not in said


def test_a_single_bad_column_has_a_sentence_of_its_own() -> None:
    with pytest.raises(UserError, match=r"^the data frame: the column level has 10 missing values"):
        coterie.from_frame(TABLE, client="site", target="ill", features=["age", "level"])


def test_targets_and_subjects_are_among_them() -> None:
    table = TABLE.assign(outcome=TABLE["level"], patient=TABLE["level"])
    with pytest.raises(UserError, match=r"2 columns .* outcome has 10 .*, patient has 10"):
        coterie.from_frame(
            table, client="site", target="outcome", features=["age"], subject="patient"
        )


def test_all_empty_fields_of_a_file_are_in_one_refusal(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    TABLE.assign(age=TABLE["level"])[["site", "ill", "age", "level"]].to_csv(path, index=False)
    with pytest.raises(UserError, match=r"has 2 columns that cannot be used as they are. age has"):
        clients_of_table(path, TableSettings(client="site", target="ill"))
