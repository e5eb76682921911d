"""Subjects of examples, such as patients with several rows: those of one subject stay together wherever data are divided."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import coterie
from coterie import from_frame, from_lists
from coterie import training as local
from coterie.data.scenario import SCENARIOS
from coterie.data.world import ClientData, Split, whole
from coterie.records.record import Record
from coterie.report.explain import words
from coterie.runs.facts import digest
from coterie.settings import UserError

KEY = (5, 6, 0, 1)


def of(subjects: Any) -> Split:
    """Examples of these subjects."""
    numbers = torch.tensor(list(subjects), dtype=torch.int64)
    return whole(
        torch.zeros(len(numbers), 2), torch.zeros(len(numbers), dtype=torch.int64), numbers
    )


def known(split: Split) -> set[int]:
    assert split.subjects is not None
    return set(split.subjects.tolist())


def table(sites: int = 3, people: int = 10, rows: int = 4) -> dict[str, Any]:
    """Rows of patients in random order; ``a`` is the number of the patient."""
    order = np.random.default_rng(0).permutation(sites * people * rows)
    patient = order // rows
    return {
        "site": [f"site {one}" for one in patient // people],
        "patient": [f"{one:03}" for one in patient],
        "a": patient.astype(float),
        "b": np.random.default_rng(1).normal(size=len(order)),
        "ill": patient % 2,
    }


def check_apart(data: ClientData, people: int) -> None:
    """Every subject is in one split, of which it has the subjects' numbers; shares are of the subjects."""
    parts = [known(part) for part in (data.train, data.validation, data.test)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == people
    assert [len(part) for part in parts] == [
        round(0.8 * people),
        round(0.1 * people),
        people - round(0.9 * people),
    ]


def test_rows_of_a_subject_are_in_one_split() -> None:
    world = from_frame(table(), client="site", target="ill", subject="patient")
    assert world.about["features"] == ["a", "b"]
    assert world.about["subject"] == "patient"
    for data in world.clients.values():
        check_apart(data, 10)
        assert len(data.train) == 8 * 4
        pairs = set()
        for part in (data.train, data.validation, data.test):
            assert part.subjects is not None
            pairs |= set(
                zip(part.inputs[part.index, 0].tolist(), part.subjects.tolist(), strict=True)
            )
        assert len(pairs) == 10


def test_without_subjects_rows_are_divided_as_before() -> None:
    columns = {name: values for name, values in table().items() if name != "patient"}
    data = from_frame(columns, client="site", target="ill").clients[0]
    assert data.train.subjects is None
    people = [set(part.inputs[part.index, 0].tolist()) for part in (data.train, data.test)]
    assert people[0] & people[1]


def test_arrays_data_sets_and_files_have_subjects(tmp_path: Path) -> None:
    x, y, people = (
        np.random.default_rng(0).normal(size=(40, 3)).astype("f"),
        np.arange(40) % 2,
        np.arange(40) // 4,
    )
    items = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    module = lambda: torch.nn.Linear(3, 2)  # noqa: E731
    for one in (
        {"x": x, "y": y, "subject": people},
        {"x": x, "y": y, "subject": [f"p{n}" for n in people]},
    ):
        check_apart(from_lists([one], model=module).clients[0], 10)
    check_apart(from_lists([{"train": items, "subject": people}], model=module).clients[0], 10)
    given_test = from_lists(
        [{"x": x, "y": y, "x_test": x, "y_test": y, "subject": people}], model=module
    ).clients[0]
    assert (
        len(known(given_test.train)),
        len(known(given_test.validation)),
        given_test.test.subjects,
    ) == (9, 1, None)
    np.savez(tmp_path / "a.npz", x=x, y=y, subject=people)
    check_apart(SCENARIOS["folder/clients"].build(0, tmp_path).clients[0], 10)


def test_a_table_in_a_file_has_subjects(tmp_path: Path) -> None:
    pd.DataFrame(table()).to_csv(tmp_path / "t.csv", index=False)
    scenario = replace(SCENARIOS["table/clients"], client="site", target="ill", subject="patient")
    for data in scenario.build(0, tmp_path / "t.csv").clients.values():
        check_apart(data, 10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"subject": "person"}, "has no column 'person'"),
        ({"subject": "ill"}, "client, targets and subject must be different"),
        (
            {"subject": "patient", "features": ["a", "patient"]},
            "which is the client, a target or the subject",
        ),
    ],
)
def test_a_wrong_column_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        from_frame(table(), client="site", target="ill", **settings)


def test_a_client_of_too_few_subjects_is_refused() -> None:
    with pytest.raises(
        UserError, match="site 0 has 2 subjects, too few to hold some out: it needs 3 at least"
    ):
        from_frame(table(people=2), client="site", target="ill", subject="patient")


def test_fractions_are_no_names() -> None:
    with pytest.raises(
        UserError, match="the column patient must name the subjects, and holds fractions"
    ):
        from_frame(
            {**table(), "patient": np.arange(120) / 2},
            client="site",
            target="ill",
            subject="patient",
        )


def test_other_clients_change_no_split() -> None:
    """Also if the names of their subjects put all names in another order."""
    columns = table()
    before = from_frame(columns, client="site", target="ill", subject="patient")
    more = {
        "site": ["site 9"] * 40,
        "patient": [f"A{one // 4}" for one in range(40)],
        "ill": [0, 1] * 20,
    }
    both = {name: [*columns[name], *more.get(name, [0.0] * 40)] for name in columns}
    after = from_frame(both, client="site", target="ill", subject="patient", after=before)
    for client, data in before.clients.items():
        for part in ("train", "validation", "test"):
            one, two = getattr(data, part), getattr(after.clients[client], part)
            assert torch.equal(one.inputs[one.index], two.inputs[two.index])
            assert torch.equal(one.subjects, two.subjects)


def test_other_subjects_are_other_data() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("f"), np.arange(40) % 2
    given = {"x": x, "y": y, "x_validation": x, "y_validation": y, "x_test": x, "y_test": y}
    digests = {
        digest(from_lists([{**given, **more}], model=lambda: torch.nn.Linear(3, 2)))
        for more in ({}, {"subject": np.arange(40) // 4}, {"subject": np.arange(40) % 10})
    }
    assert len(digests) == 3


def test_held_out_losses_are_of_subjects() -> None:
    losses = torch.tensor([[1.0, 2.0, 6.0, 4.0], [0.0, 1.0, 1.0, 5.0]])
    found = local.of_each_subject(losses, torch.tensor([7, 3, 7, 7]))
    torch.testing.assert_close(found, torch.tensor([[2.0, 11 / 3], [1.0, 2.0]]))
    assert local.of_each_subject(losses, None) is losses


def test_noise_is_that_of_subjects(tmp_path: Path) -> None:
    """A record has the number of subjects of each test set, by which reports judge differences."""
    world = from_frame(table(), client="site", target="ill", subject="patient")
    coterie.begin(world, tmp_path / "run", ["fedavg", "independent"], rounds=2).finish()
    assert Record(tmp_path / "run" / "fedavg-seed0").description()["world"]["test_subjects"] == [
        1,
        1,
        1,
    ]
    assert " in round 2, on 1 test subject" in words(
        tmp_path / "run" / "fedavg-seed0", "site 0", width=1000
    )


NOBODY: list[Any] = [
    [0.5] * 6,
    [[1]] * 6,
    [1, 2],
    [None] * 6,
    [True] * 6,
    ["a", math.nan] * 3,
    ["a", ""] * 3,
    ["a", pd.NA] * 3,
]


@pytest.mark.parametrize("subject", NOBODY)
def test_subjects_are_a_number_or_a_name_for_each_example(subject: Any) -> None:
    with pytest.raises(
        UserError, match="subject must hold a whole number or a name for each of 6 examples"
    ):
        from_lists([{"x": np.zeros((6, 2), "f"), "y": np.arange(6) % 2, "subject": subject}])


def test_subjects_are_for_tables() -> None:
    with pytest.raises(UserError, match=r"Scenario\.subject is for the data set table"):
        replace(SCENARIOS["digits/iid"], subject="patient")


@given(st.lists(st.integers(0, 8), max_size=40), st.integers(1, 5))
def test_halves_hold_whole_subjects(subjects: list[int], least: int) -> None:
    data = of(subjects)
    greatest = max((subjects.count(one) for one in subjects), default=0)
    if not local.halvable(data, 1):
        assert len(set(subjects)) < 2
        with pytest.raises(ValueError, match="too few subjects cannot be halved"):
            local.halves(data, KEY)
        return
    first, second = (data.at(half) for half in local.halves(data, KEY))
    assert not known(first) & known(second)
    assert len(first) + len(second) == len(data)
    assert abs(len(first) - len(second)) <= greatest
    assert torch.equal(torch.cat([first.index, second.index]).sort().values, data.index)
    if local.halvable(data, least):
        assert min(len(first), len(second)) >= least


def test_halves_are_drawn_again_with_each_key() -> None:
    data = of(list(range(10)) * 3)
    drawn = {frozenset(known(data.at(local.halves(data, (seed,))[0]))) for seed in range(20)}
    assert len(drawn) > 10
    odd = of(list(range(5)) * 3)
    assert {len(local.halves(odd, (seed,))[0]) for seed in range(20)} == {6, 9}


@given(st.lists(st.integers(0, 8), max_size=40), st.floats(0.01, 1))
def test_held_out_examples_are_of_other_subjects(subjects: list[int], share: float) -> None:
    empty = of([])
    data = ClientData(train=of(subjects), validation=empty, test=empty)
    held = local.held_out(data, share, 0, 3)
    if len(set(subjects)) < 2:
        assert held is data
        return
    assert not known(held.train) & known(held.validation)
    assert len(held.train) + len(held.validation) == len(subjects)
    assert 0 < len(held.validation) <= len(subjects) / 2
    assert held.validation.index.tolist() == sorted(held.validation.index.tolist())


def patients(seed: int, noise: float = 2.0) -> dict[str, Any]:
    """Eight sites that are alike, with 25 patients of eight rows each; a diagnosis is of a patient, and noisy."""
    rng = np.random.default_rng(seed)
    base, weights = rng.normal(size=(8 * 25, 6)), rng.normal(size=6)
    ill = base @ weights + noise * rng.normal(size=len(base)) > 0
    rows = np.repeat(np.arange(len(base)), 8)
    x = base[rows] + 0.3 * rng.normal(size=(len(rows), 6))
    return {
        "site": rows // 25,
        "patient": rows,
        "ill": ill[rows],
        **{f"x{i}": x[:, i] for i in range(6)},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("subject", "width"), [("patient", 1), ("patient", 4), (None, 1)])
def test_patients_are_no_groups(subject: str | None, width: int) -> None:
    """Without subjects, both halves have the same patients: what a site has by chance looks like a difference of sites."""
    columns = patients(0)
    if subject is None:
        del columns["patient"]
    world = from_frame(columns, client="site", target="ill", subject=subject)
    groups = [
        len(done.groups)
        for done in coterie.run("split-half", world, rounds=12, workers=1, width=width)
    ]
    assert (groups[-1] == 1) == (subject is not None)


def test_groups_of_sites_are_found() -> None:
    """With whole patients in each half, where half of the sites write down the other finding."""
    columns = patients(0, noise=0.5)
    columns["ill"] ^= columns["site"] % 2 == 1
    world = from_frame(columns, client="site", target="ill", subject="patient")
    *_, last = coterie.run("split-half", world, rounds=12, workers=1)
    assert last.assignment.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
