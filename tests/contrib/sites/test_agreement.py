"""What clients agree on besides medians: levels that no schema lists, standardization, and class weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

import coterie
from coterie.contrib.sites.agreement import (
    FEATURE_SUMS,
    TARGETS,
    Answer,
    Ask,
    Client,
    SumQuestion,
    agree,
    agreed,
    summed,
)
from coterie.contrib.sites.cells import Cells, of_frame
from coterie.contrib.sites.columns import CategoryColumn, NumberColumn
from coterie.contrib.sites.inferring import infer
from coterie.contrib.sites.table_schema import TableSchema
from coterie.settings import SettingError
from refusals import refuses

FOUND = CategoryColumn(levels=("a",), least=3, least_clients=2, find=True)


def asked(schema: TableSchema, sites: Sequence[Sequence[str]]) -> Ask:
    return summed([Client(schema, {"c": Cells.of(texts or [""])}, "t") for texts in sites])


def levels_of(column: CategoryColumn, sites: Sequence[Sequence[str]]) -> tuple[str, ...]:
    schema = TableSchema(columns={"c": column})
    constant = agreed(schema, asked(schema, sites)).columns["c"]
    assert isinstance(constant, CategoryColumn)
    assert not constant.rule
    return constant.levels


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "ä", "é é", "x" * 80]), max_size=8), max_size=5)
)
def test_levels_are_those_with_enough_rows_and_clients(sites: list[list[str]]) -> None:
    """Brute force: all rows in one place, and who has them."""
    together = [text for texts in sites for text in texts]
    expected = set()
    for text in set(together):
        clients = sum(text in texts for texts in sites)
        # A text that is too long to be written as numbers is not found.
        if together.count(text) >= 3 and clients >= 2 and len(text) < 64:
            expected.add(text)
    found = levels_of(FOUND, sites or [[]])
    assert set(found) == expected
    assert len(found) == len(expected)


def test_a_text_that_few_have_is_in_no_answer() -> None:
    """The sum of the clients' answers has the bytes of common texts alone."""
    schema = TableSchema(columns={"c": FOUND})
    sites = [["b"] * 3 + ["rare"] * 9, ["b", "secret"], ["b"]]
    ask = asked(schema, sites)
    texts: list[Answer] = []

    def recorded(question: SumQuestion) -> Answer:
        answer = ask(question)
        if question.about == "texts":
            texts.append(answer)
        return answer

    assert agreed(schema, recorded).columns["c"] == FOUND.with_levels(("b",))
    ((counts,),) = [answer["c"].tolist() for answer in texts]
    assert [count // 3 for count in counts[:2]] == [1, ord("b")]
    assert not any(counts[2:])


def test_two_texts_of_one_place_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.contrib.sites.agreement.hash_bucket", lambda name, level: 7)
    assert levels_of(FOUND, [["bb"] * 4, ["cc"] * 4]) == ()
    assert levels_of(FOUND, [["bb"] * 4, ["bb"] * 4]) == ("bb",)


def test_upper_and_lower_case_may_be_one_found_level() -> None:
    column = CategoryColumn(least=2, find=True, ignore_case=True, least_clients=2)
    assert levels_of(column, [["Yes"], ["YES", "no"]]) == ("yes",)


def test_rare_levels_by_clients() -> None:
    column = CategoryColumn(levels=("a", "b"), least=2, least_clients=2)
    assert levels_of(column, [["a", "b"], ["a"], ["c"]]) == ("a",)
    assert levels_of(CategoryColumn(levels=("a", "b"), least=1), [["a", "b"], ["a"]]) == ("a", "b")


def tables(rows: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(60, 9, rows).round(1)
    return pd.DataFrame(
        {
            "site": rng.choice(["north", "south", "west"], rows),
            "age": [str(value) if value > 50 else "" for value in age],
            "drug": rng.choice(["a", "b"], rows),
            "ill": rng.choice(["no", "yes"], rows, p=[0.8, 0.2]),
            "cost": rng.normal(1e4, 300, rows).round(2),
        }
    )


def schema_of(frame: pd.DataFrame, target: str, **changes: Any) -> TableSchema:
    schema = infer(of_frame(frame, "t"), client="site", target=[target]).schema
    return TableSchema.of({**schema.document(), **changes}, "t")


def test_sums_standardize_as_a_world_in_one_process_does() -> None:
    frame = tables()
    schema = schema_of(frame, "cost")
    world = coterie.from_frame(
        frame,
        client="site",
        target="cost",
        schema=schema,
        standardize="pooled",
        standardize_target="pooled",
        train=0.999,
        validation=0.0,
    )
    # The rows that train, as a site would have them.
    raw = coterie.from_frame(
        frame.assign(row=range(len(frame))),
        client="site",
        target="cost",
        features=["row"],
        train=0.999,
        validation=0.0,
    )
    clients = []
    for data in raw.clients.values():
        part = frame.iloc[data.train.inputs[data.train.index][:, 0].long().numpy()]
        columns = of_frame(part[["age", "drug", "ill"]], "t")
        costs = part["cost"].to_numpy(np.float32).astype(float)[:, None]
        clients.append(Client(schema.only(["age", "drug", "ill"]), columns, "t", targets=costs))
    found = agree(
        schema.only(["age", "drug", "ill"]),
        summed(clients),
        scales_inputs=True,
        scales_targets=True,
    )
    assert found.schema.document() == world.about["table_schema"]
    assert found.scaling is not None
    np.testing.assert_allclose(found.scaling[0], world.about["means"], rtol=1e-12)
    np.testing.assert_allclose(found.scaling[1], world.about["deviations"], rtol=1e-12)
    scale = world.objective.target_scale
    assert scale is not None
    np.testing.assert_allclose(found.target_scaling, (scale.means, scale.deviations), rtol=1e-9)


def test_class_weights_are_those_of_scikit_learn_over_the_training_rows_of_all_clients() -> None:
    frame = tables(300)
    schema = schema_of(frame, "ill", class_weights="balanced")
    assert TableSchema.of(schema.document(), "t") == schema
    world = coterie.from_frame(frame, client="site", target="ill", schema=schema)
    targets = torch.cat([data.train.targets for data in world.clients.values()]).numpy()
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=targets)
    np.testing.assert_allclose(world.about["class_weights"], expected)
    logits = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 1, 0, 0, 1])
    loss = torch.nn.functional.cross_entropy(
        logits, labels, weight=torch.tensor(expected, dtype=torch.float32)
    )
    torch.testing.assert_close(world.objective.loss(logits, labels), loss)
    # New sites get the weights of the earlier world, whatever classes they have.
    later = pd.concat([frame, frame[frame["ill"] == "yes"].assign(site="zest")])
    joined = coterie.from_frame(later, client="site", target="ill", schema=schema, after=world)
    assert joined.about["class_weights"] == world.about["class_weights"]


def test_rare_classes_are_found_more_often_with_weights() -> None:
    rng = np.random.default_rng(1)
    age = rng.normal(60, 9, 900)
    frame = pd.DataFrame({"site": rng.choice(["north", "south"], 900), "age": age})
    frame["ill"] = np.where(rng.random(900) < 0.3 / (1 + np.exp(-(age - 66) / 3)), "yes", "no")
    recall = {}
    for class_weights in ("none", "balanced"):
        schema = schema_of(frame, "ill", class_weights=class_weights)
        world = coterie.from_frame(
            frame,
            client="site",
            target="ill",
            schema=schema,
            standardize="pooled",
        )
        (*_, last) = coterie.run("fedavg", world, rounds=5)
        model = last.model(0)
        tests = [data.test for data in world.clients.values()]
        outputs = torch.cat([model(test.inputs[test.index]) for test in tests]).argmax(1)
        targets = torch.cat([test.targets for test in tests])
        recall[class_weights] = float((outputs[targets == 1] == 1).float().mean())
    assert recall["none"] < 0.2 < 0.6 < recall["balanced"]


def test_weights_need_classes() -> None:
    frame = tables()
    with refuses("class_weights = 'balanced'", "needs classes"):
        coterie.from_frame(
            frame,
            client="site",
            target="cost",
            schema=schema_of(frame, "cost", class_weights="balanced"),
        )
    with refuses("class_weights must be none or balanced, got 'balance'", "did you mean balanced?"):
        schema_of(frame, "ill", class_weights="balance")


def test_values_of_another_unit_are_refused() -> None:
    schema = TableSchema(columns={"t": NumberColumn(plausible=(30, 45))})
    schema.check({"t": Cells.of(["36.6", "", "41"])}, "north.csv")
    with refuses(
        "north.csv: the column t has values outside 30 to 45 in 2 of 3 rows, such as '97.9' in row 1",
        "unit",
    ):
        schema.check({"t": Cells.of(["97.9", "99.0", "41"])}, "north.csv")
    with refuses("plausible must be the least and the greatest value, got [45.0, 30.0]"):
        NumberColumn(plausible=(45, 30))


def test_settings_with_their_defaults_are_not_in_the_file() -> None:
    document = TableSchema(columns={"c": CategoryColumn(), "t": NumberColumn()}).document()
    assert "class_weights" not in document
    assert not {"plausible", "find", "least_clients"} & {
        *document["columns"]["c"],
        *document["columns"]["t"],
    }
    changed = {"c": FOUND, "t": NumberColumn(plausible=(0.0, 1.0))}
    schema = TableSchema(columns=changed)
    assert TableSchema.of(schema.document(), "t") == schema


def test_questions_are_sent_as_json_and_strange_ones_are_refused() -> None:
    schema = TableSchema(columns={"c": FOUND})
    for question in (
        SumQuestion(about="columns"),
        SumQuestion(about="texts", buckets={"c": (1, 2)}),
        SumQuestion(about="at-most", bounds={"t": (-1.0, 0.5)}),
        SumQuestion(about="squares", schema=schema, means={FEATURE_SUMS: (1.0,), TARGETS: (2.0,)}),
    ):
        assert SumQuestion.of(question.to_json()) == question
    for entries in (None, {}, {**SumQuestion(about="columns").to_json(), "about": "rows"}):
        with pytest.raises(SettingError):
            SumQuestion.of(entries)
