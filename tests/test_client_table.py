"""Tables of many clients' numbers: the same mapping as a dictionary, in any order of changes, and stored as such."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.core import AllBut, Note, Position, SharedValues, client_table, state
from coterie.core.client_table import (
    MIN_TABLE_ENTRIES,
    ClientTable,
    are_among,
    as_array,
    entries_among,
    those_among,
    with_entries,
)
from coterie.engines import rounds as inprocess
from coterie.methods import Auto, SplitHalf, tuned
from coterie.records.round_line import line_of_round
from coterie.records.store import Checkpoints

IDS = st.integers(0, 2**40)
REPORTS = st.tuples(
    st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(-(2**40), 2**40)
)


@state("test.numbers")
class Numbers:
    """A state with numbers of clients, and one value that is not stored."""

    reports: Any


def many(offset: float = 0.0) -> dict[int, tuple[float, float, int]]:
    """Reports of more clients than a table needs, in no order of their ids."""
    order = np.random.default_rng(0).permutation(3 * MIN_TABLE_ENTRIES).tolist()
    return {3 * client: (client / 7 + offset, math.inf, client) for client in order}


@given(st.dictionaries(IDS, REPORTS, min_size=1), st.dictionaries(IDS, REPORTS, min_size=1))
def test_a_table_is_the_mapping_that_it_was_made_of_and_of_later_entries(
    first: dict[int, Any], later: dict[int, Any]
) -> None:
    table = ClientTable.of(first)
    entries = ClientTable.of(later)
    assert table is not None
    assert entries is not None
    updated = table.updated(entries)
    assert updated is not None
    expected = {**first, **later}
    assert list(updated.items()) == list(expected.items())
    assert list(updated.values()) == list(expected.values())
    for client in (*expected, 5, 2**70):
        assert updated.get(client) == expected.get(client)
        assert (client in updated) == (client in expected)
    assert dict(table) == first, "a table never changes"
    assert updated == expected
    assert len(updated) == len(expected)


def test_numbers_keep_their_type_and_the_dictionary_its_place_where_they_do_not_fit() -> None:
    table = ClientTable.of({4: (1.0, 2), 1: (2.5, 3)})
    assert table is not None
    assert [type(number) for number in table[4]] == [float, int]
    assert ClientTable.of({4: 3}) is not None
    others: list[dict[int, Any]] = [
        {1: "a"},
        {1: 1.0, 2: 1},
        {1: (1.0,), 2: 1.0},
        {1: ()},
        {1: 2**70},
        {},
    ]
    assert [ClientTable.of(other) for other in others] == [None] * len(others)
    # Values of another kind are added as they are.
    mixed = with_entries(many(), {3: "text"})  # type: ignore[dict-item]
    assert isinstance(mixed, dict)
    assert mixed[3] == "text"
    assert len(mixed) == len(many())


def test_only_the_numbers_of_many_clients_are_a_table() -> None:
    few = {1: 0.5, 2: 0.25}
    assert with_entries(few, {3: 1.0}) == {1: 0.5, 2: 0.25, 3: 1.0}
    assert isinstance(with_entries(few, {3: 1.0}), dict)
    table = with_entries(many(), {1: (0.0, 0.0, 0)})
    assert isinstance(table, ClientTable)
    assert list(table.items()) == list({**many(), 1: (0.0, 0.0, 0)}.items())
    # Eight bytes for a client and its place, and 20 for its numbers.
    arrays = (table.clients, table.rank, *table.columns)
    assert sum(array.nbytes for array in arrays) == 28 * len(table)


@pytest.mark.parametrize(
    "group",
    [
        (),
        (3,),
        tuple(range(0, 30, 2)),
        tuple(range(0, 9000, 2)),
        range(6, 3000, 5),
        dict.fromkeys(range(100), 0),
        frozenset(range(2000)),
        SharedValues([((0, 3, 4), 1), (tuple(range(5, 500)), 2)]),
        AllBut(SharedValues([(range(600), 0)]), (3, 9)),
        [30, 6, 7],
    ],
)
def test_the_clients_of_a_group_are_found_as_one_by_one(group: Any) -> None:
    reports = many()
    table = ClientTable.of(reports)
    assert table is not None
    expected = {client: reports[client] for client in sorted(reports) if client in group}
    assert list(entries_among(table, group).items()) == list(expected.items())
    assert list(entries_among(reports, group).items()) == list(expected.items())
    assert those_among(tuple(sorted(reports)), group) == tuple(expected)
    assert are_among(as_array(()), group).tolist() == []


def test_a_table_is_stored_as_arrays_and_read_as_such(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    table = ClientTable.of(many())
    checkpoints.save(1, Position(round=1, exchange=1, state=Numbers(reports=table)))
    loaded = checkpoints.load()
    assert loaded is not None
    reports = loaded[1].state.reports
    assert isinstance(reports, ClientTable)
    assert list(reports.items()) == list(many().items())
    # Bytes of a client: 2 for its id, which is less than 65,536, 16 for floats, and 2 for the number.
    blobs = sum(path.stat().st_size for path in (tmp_path / "blobs").iterdir())
    assert blobs < 21 * len(many())


def test_a_forged_table_is_refused() -> None:
    floats, clients = np.zeros(2), np.array([1, 2])
    for forged in [
        (np.array([1, 1]), (floats,)),
        (clients, (np.zeros(3),)),
        (np.zeros(2), (floats,)),
        (clients, (np.array(["a", "b"]),)),
        (clients, (np.zeros((2, 1)),)),
    ]:
        with pytest.raises(ValueError, match="a table has"):
            ClientTable.checked(*forged, has_tuples=False)


def rounds_of(world: coterie.World, method: Any, rounds: int = 8) -> list[Any]:
    """The recorded lines of a run, without its seconds, and its last position."""
    lines: list[Any] = []
    for done in inprocess.rounds(method, world, rounds=rounds, eval_every=4, workers=1):
        line = line_of_round(done)
        line.pop("seconds")
        lines.append(line)
    return [*lines, done.position]


def two_groups(client: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The training and test examples of a client whose labels depend on its group."""
    inputs = generator.normal(size=(40, 5)).astype("f")
    labels = ((inputs[:, 0] > 0) ^ (client % 2 == 0)).astype(np.int64)
    return inputs[:30], labels[:30], inputs[30:], labels[30:]


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.4, 1.0])
def test_a_run_is_the_same_with_tables_and_with_dictionaries(
    fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = coterie.from_function(two_groups, 30, model="linear", classes=2)
    *with_dictionaries, _ = rounds_of(world, Auto(fraction=fraction))
    for module in (client_table, tuned):
        monkeypatch.setattr(module, "MIN_TABLE_ENTRIES", 1)
    *with_tables, position = rounds_of(world, Auto(fraction=fraction))
    assert with_tables == with_dictionaries
    assert isinstance(position.state.losses, ClientTable), "tables were used"


@pytest.mark.slow
def test_what_a_round_no_longer_needs_is_not_in_its_checkpoint(tmp_path: Path) -> None:
    world = coterie.from_function(two_groups, 30, model="linear", classes=2)
    *lines, position = rounds_of(world, SplitHalf(first_probe=2), 4)
    state = position.state
    assert {leaf.node for leaf in state.leaves} == {1, 2}, "the group has split"
    # The evidence of its probe, of the size of its Gram matrix, has gone with it.
    assert set(state.schedules) == {1, 2}
    # Notes are in the records.
    noted = replace(
        position, state=replace(state, notes=(Note(kind="keep", clients=(1,), text="x"),))
    )
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(4, noted)
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[1].state.notes == ()
    assert loaded[1].state.round == 4
    assert lines[-1]["notes"] is not None


def test_a_table_is_used_as_a_dictionary_is() -> None:
    table = ClientTable.of({7: 0.5, 3: 0.25})
    assert table is not None
    assert table | {3: 1.0, 4: 2.0} == {7: 0.5, 3: 1.0, 4: 2.0}
    assert {7: 1.0, 4: 2.0} | table == {7: 0.5, 4: 2.0, 3: 0.25}
    for key in ("abc", None, 1.5, -(2**63) - 1, 2**63):
        assert table.get(key) is None  # type: ignore[call-overload]
        assert key not in table
    # Entries of a dictionary are copied.
    entries = {1: 2.0}
    result = with_entries({}, entries)
    entries[1] = 3.0
    assert result == {1: 2.0}
