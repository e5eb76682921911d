"""Columns, keys, classes and clients are matched by name in every door; what looks alike, or cannot be matched, is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import coterie
from coterie import from_frame
from coterie.core import Groups
from coterie.data import own
from coterie.data.adversaries import Attack
from coterie.data.attendance import Attendance
from coterie.data.datasets.folder import read_folder
from coterie.data.datasets.images import ImageSettings, clients_of_images
from coterie.data.datasets.table import TableSettings, clients_of_table
from coterie.data.own import from_lists
from coterie.data.world import World
from coterie.runs.facts import same_world, world_facts
from coterie.settings import SettingError, UserError

ORDER = ["age", "bp", "bmi"]
TURNED = ["bmi", "bp", "age"]


def site(seed: int, order: Sequence[str] = ORDER, rows: int = 40) -> tuple[pd.DataFrame, pd.Series]:
    """The patients of a site; all sites have the same rule. Column c of ``ORDER`` is near 10 c, so that it is recognized."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    frame = pd.DataFrame(x + 10 * np.arange(3), columns=ORDER)
    return frame[list(order)], pd.Series((x @ [1.0, -2.0, 3.0] > 0).astype(int))


def means(world: World, client: int = 1) -> list[float]:
    """The rounded means of a client's inputs; 0, 10, 20 in the order of ``ORDER``."""
    return (world.clients[client].train.inputs.mean(0) / 10).round().mul(10).abs().tolist()


# ----------------------------------------------------------------------------------------------------
# Columns of the clients' tables.


def test_columns_in_another_order_train_the_same_model() -> None:
    alike = [site(seed, rows=80) for seed in range(4)]
    turned = [site(seed, TURNED if seed % 2 else ORDER, rows=80) for seed in range(4)]
    models = []
    for clients in (alike, turned):
        world = from_lists(
            clients,
            model="linear",
            standardize="pooled",
            training=coterie.Training(lr=0.1, batch=10, epochs=2),
        )
        *_, last = coterie.run("split-half", world, rounds=4, workers=1)
        models.append(last.assignment.models)
    assert torch.equal(*models)


def test_the_order_of_columns_makes_no_groups() -> None:
    def sites() -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
        for seed in range(4):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(200, 3))
            columns = TURNED if seed % 2 else ORDER
            yield pd.DataFrame(x, columns=ORDER)[columns], (x @ [1.0, -2.0, 3.0] > 0).astype(int)

    world = from_lists(
        list(sites()), model="linear", training=coterie.Training(lr=0.1, batch=10, epochs=2)
    )
    last = list(coterie.run("split-half", world, rounds=4, workers=1))[-1]
    assert last.groups == ((0, 1, 2, 3),)


def of_pyarrow(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pandas(frame)


def of_polars(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("polars").from_pandas(frame)


TABLES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas types": lambda frame: frame.convert_dtypes(),
    "objects": lambda frame: frame.astype(object),
    "polars": of_polars,
    "pyarrow": of_pyarrow,
    "named fields": lambda frame: frame.to_records(index=False),
}


@pytest.mark.parametrize("kind", TABLES)
def test_columns_are_matched_in_every_kind_of_table(kind: str) -> None:
    make = TABLES[kind]
    (x, y), (other, labels) = site(0), site(1, TURNED)
    world = from_lists([(make(x), y), (make(other), labels.to_numpy())])
    assert means(world) == [0, 10, 20]
    assert world.about == {"features": ORDER}
    # Also between the parts of one client, which has the first client's order in none of them.
    parts = {f"{part}_{which}": make(table) if part == "x" else labels.to_numpy()
             for which in ("train", "validation", "test")
             for part, table in (("x", other), ("y", None))}  # fmt: skip
    data = from_lists([(make(x), y), parts]).clients[1]
    for split in (data.train, data.validation, data.test):
        assert split.inputs.mean(0).div(10).round().abs().tolist() == [0, 1, 2]


def test_a_table_keeps_the_numbers_of_an_array() -> None:
    x, y = site(0)
    for made in (x, x.astype(np.float32), x.round().astype(int)):
        frames, arrays = from_lists([(made, y)]), from_lists([(made.to_numpy(), y.to_numpy())])
        assert torch.equal(frames.clients[0].train.inputs, arrays.clients[0].train.inputs)
        assert frames.clients[0].train.inputs.dtype == arrays.clients[0].train.inputs.dtype


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x[["age", "bp"]], r"client 1: x lacks bmi: .* \(it has age, bp, and client 0: x has age, bp, bmi\)"),
        (lambda x: x.assign(sex=1), "client 1: x also has sex: all clients must have the same columns"),
        (lambda x: x.rename(columns={"bp": "rr"}), "x lacks bp and also has rr"),
        (lambda x: x.rename(columns={"bp": "bp "}), "'bp' and 'bp ' look alike: give both one spelling"),
        (lambda x: x.rename(columns={"bp": "BP"}), "'bp' and 'BP' look alike: give both one spelling"),
        (lambda x: x.assign(**{"bp ": 1}), "two columns of client 1: x have names that look alike, 'bp' and 'bp '"),
        (lambda x: x[["age", "bp", "bp"]], "client 1: x has 2 columns with the name 'bp'"),
        (lambda x: x.to_numpy(), "client 0: x has columns by name .age, bp, bmi., and client 1: x has none, so their order"),
        (lambda x: x.assign(bp="high"), "client 1: x: the column bp is text .'high'.: leave it out, or make numbers of it"),
        (lambda x: x.assign(bp=np.nan), "client 1: x: the column bp has 40 missing values, the first in row 1"),
        (lambda x: [row for _, row in x.iterrows()], "client 1: x is a list of rows with names, which would be lost"),
    ],
    ids=range(11),
)  # fmt: skip
def test_columns_that_differ_are_refused(
    change: Callable[[pd.DataFrame], Any], sentence: str
) -> None:
    x, y = site(1)
    with pytest.raises(UserError, match=sentence):
        from_lists([site(0), (change(x), y)])


def test_numbers_and_texts_are_one_name_across_clients() -> None:
    x, y = site(0)
    numbered, texts = (
        x.set_axis([0, 1, 2], axis=1),
        x.set_axis(["0", "1", "2"], axis=1)[["2", "0", "1"]],
    )
    assert means(from_lists([(numbered, y), (texts, y)])) == [0, 10, 20]


def test_targets_by_name() -> None:
    x, y = site(0)
    both = pd.DataFrame({"p": y * 1.5, "q": y * 2.5})
    world = from_lists([(x, both), (x, both[["q", "p"]])])
    assert torch.equal(
        world.clients[1].train.targets[:, 0] * 5, world.clients[1].train.targets[:, 1] * 3
    )
    assert world.about["targets"] == ["p", "q"]
    with pytest.raises(UserError, match="client 1: y lacks ill and also has bp"):
        from_lists([(x, y.rename("ill")), (x, y.rename("bp"))])
    assert len(from_lists([(x, y.rename("ill")), (x, y.to_numpy())]).clients) == 2


def test_keyword_inputs_in_the_order_of_the_first_client() -> None:
    x, y = site(0)
    parts = {"u": x[["age"]], "v": x[["bp", "bmi"]]}
    other = {"v": x[["bmi", "bp"]], "u": x[["age"]]}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, u: torch.Tensor, v: torch.Tensor) -> Any:
            return self.layer(torch.cat([u, v], 1))

    world = from_lists([(parts, y), (other, y)], model=Net)
    inputs = world.clients[1].train.inputs
    assert list(inputs) == ["u", "v"]
    assert inputs["v"].mean(0).div(10).round().tolist() == [1, 2]
    with pytest.raises(UserError, match="client 1: x lacks u: all clients must have the same keys"):
        from_lists([(parts, y), ({"v": x[["bp", "bmi"]]}, y)], model=Net)


def test_files_of_arrays_with_named_fields(tmp_path: Path) -> None:
    for name, order in (("a", ORDER), ("b", TURNED)):
        x, y = site(0, order)
        np.savez(tmp_path / f"{name}.npz", x=np.array(x.to_records(index=False)), y=y)
    data = own.of_pools(read_folder(tmp_path), as_features=True)
    first, second = (data.pools[name][0] for name in "ab")
    assert first is not None
    assert second is not None
    assert torch.equal(first.inputs, second.inputs)


# ----------------------------------------------------------------------------------------------------
# Rows: the index of pandas.


def test_rows_in_another_order_are_refused() -> None:
    x, y = site(0)
    shuffled = y.sample(frac=1, random_state=0)
    people = pd.Series(np.arange(40) // 2)
    for part in (
        (x, shuffled),
        {"x": x, "y": shuffled},
        (x, y, x, shuffled),
        ({"u": x[["age"]], "v": x[["bp"]].sample(frac=1, random_state=0)}, y),
        {"x": x, "y": y, "subject": people.sample(frac=1, random_state=0)},
    ):
        with pytest.raises(
            UserError,
            match=r"the indexes of x.* and .* differ .*, so it is unclear which rows belong together",
        ):
            from_lists([part])
    aligned = from_lists([(x, shuffled.loc[x.index])]).clients[0].train
    plain = from_lists([(x.to_numpy(), y.to_numpy())]).clients[0].train
    assert torch.equal(aligned.targets, plain.targets)
    assert torch.equal(from_lists([(x, shuffled.to_numpy())]).clients[0].train.inputs, plain.inputs)
    same = x.set_axis(range(5, 45)), y.set_axis(range(5, 45))
    assert torch.equal(from_lists([same]).clients[0].train.targets, plain.targets)


def test_columns_of_a_mapping_with_other_rows_are_refused() -> None:
    table = stacked()
    mapping = {name: table[name] for name in table}
    assert len(from_frame(mapping, "site", "ill").clients) == 2
    with pytest.raises(UserError, match="the data frame: the indexes of site and age differ"):
        from_frame({**mapping, "age": table["age"].sample(frac=1, random_state=0)}, "site", "ill")
    with pytest.raises(UserError, match="the data frame: the indexes of site and order differ"):
        from_frame(
            table, "site", "ill", order=pd.Series(np.arange(80)).sample(frac=1, random_state=0)
        )


# ----------------------------------------------------------------------------------------------------
# Names of clients.


@pytest.mark.parametrize(
    "names",
    [(1, "1"), ("a", "a "), (1.0, "1"), (True, "True"), ("caf\u00e9", "cafe\u0301"), ("a b", "a  b"), ("\ufeffa", "a"),
     (np.int64(7), "7"), (None, "None"), ("7.00", 7)],
    ids=ascii,
)  # fmt: skip
def test_clients_whose_names_look_alike_are_refused(names: tuple[Any, Any]) -> None:
    with pytest.raises(SettingError, match="two clients have names that look alike"):
        from_lists({names[0]: site(0), names[1]: site(1), 2: site(2)})


def test_names_that_differ_are_different_clients() -> None:
    world = from_lists({"a": site(0), "A": site(1), 1: site(2), 2.0: site(3), "1.5": site(4)})
    assert list(world.client_names.values()) == ["a", "A", "1", "2", "1.5"]


def test_numbers_are_names_where_all_names_are_numbers() -> None:
    """As in ``Round.model``: in silence, the client with the id 1 would be another than the one of the name 1."""
    clients = {3: site(0), 1: site(1), 2: site(2)}
    settings = {
        "attendance": Attendance(joins={3: 4}, away={"2": [(2, 3)]}),
        "attacks": {1: Attack()},
    }
    truth: Any = [[3], [1, 2]]
    worlds = [from_lists(clients, truth=truth, **settings)]
    data = worlds[0].clients
    by_name: Any = {data[client].name: data[client] for client in data}
    worlds.append(World(clients=by_name, model=worlds[0].model, truth=truth, **settings))  # type: ignore[arg-type]
    expected: Groups = ((0,), (1, 2))
    for world in worlds:
        assert world.attendance.joins == {0: 4}
        assert world.attendance.away == {2: [(2, 3)]}
        assert list(world.attacks) == [1]
        assert world.truth == expected


def test_clients_that_do_not_exist_are_refused_where_they_are_named() -> None:
    clients = {"north": site(0), "south": site(1)}
    assert from_lists(clients, attacks={"south": Attack()}).attacks == {1: Attack()}
    for settings, sentence in (
        (
            {"attacks": {"suoth": Attack()}},
            "World.attacks has client 'suoth', which does not exist; did you mean south?",
        ),
        ({"attacks": {7: Attack()}}, "World.attacks has client 7, which does not exist"),
        (
            {"attendance": Attendance(joins={7: 3})},
            "World.attendance has client 7, which does not exist",
        ),
        (
            {"attendance": Attendance(away={"noth": [(1, 2)]})},
            "World.attendance has client 'noth', which does not exist",
        ),
        (
            {"attendance": Attendance(joins={"south": 3, 1: 4})},
            "World.attendance has client south twice",
        ),  # type: ignore[dict-item]
    ):
        with pytest.raises(SettingError, match=sentence):
            from_lists(clients, **settings)


# ----------------------------------------------------------------------------------------------------
# Classes.


class Labelled(torch.utils.data.Dataset[Any]):
    """Items with class numbers, and the names of the classes as torchvision has them."""

    def __init__(self, classes: Sequence[str], numbers: bool = True) -> None:
        self.classes = list(classes)
        if numbers:
            self.class_to_idx = {name: number for number, name in enumerate(classes)}

    def __len__(self) -> int:
        return 20

    def __getitem__(self, item: int) -> Any:
        return torch.full((3,), float(item)), item % 2


def net() -> nn.Module:
    return nn.Linear(3, 2)


def test_the_classes_of_data_sets_must_have_the_same_numbers() -> None:
    same, other = Labelled(["cat", "dog"]), Labelled(["dog", "cat"], numbers=False)
    subset = torch.utils.data.Subset(other, range(10))
    world = from_lists([same, Labelled(["cat", "dog"], numbers=False)], model=net)
    assert world.about == {"classes": ["cat", "dog"]}
    for clients in (
        [same, other],
        [same, subset],
        [{"train": same, "test": other}],
        [same, {"train": subset}],
    ):
        with pytest.raises(
            UserError,
            match=r"the classes of all clients must be the same, .* has dog, cat, and .* cat, dog",
        ):
            from_lists(clients, model=net)
    with pytest.raises(UserError, match="data set 1 of a concatenation has dog, cat"):
        from_lists([torch.utils.data.ConcatDataset([same, other])], model=net)


def test_the_classes_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")

    def labelled(names: list[str], **columns: Any) -> Any:
        rows = {"x": [[0.0, 1.0]] * 20, "label": [0, 1] * 10, **columns}
        kinds = {
            "x": datasets.Sequence(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=names),
        }
        kinds |= {name: datasets.Value("float32") for name in columns}
        return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).with_format(
            "torch"
        )

    same = labelled(["ill", "well"])
    assert from_lists([same, labelled(["ill", "well"])], model=net).about == {
        "classes": ["ill", "well"]
    }
    with pytest.raises(
        UserError,
        match=r"the classes of label of all clients must be the same, .* has well, ill, and",
    ):
        from_lists([same, labelled(["well", "ill"])], model=net)
    with pytest.raises(
        UserError, match="client 1 also has z: all clients must have the same columns"
    ):
        from_lists([same, labelled(["ill", "well"], z=[0.0] * 20)], model=net)


def test_a_table_is_not_read_item_by_item() -> None:
    x, _ = site(0)
    for client in (x, {"train": x}):
        with pytest.raises(
            UserError,
            match=r"client 0 is a table without its target: pass \(frame\[FEATURES\], frame",
        ):
            from_lists([client], model=net)


def test_classes_that_look_alike_are_refused(tmp_path: Path) -> None:
    table = stacked()
    table["ill"] = np.where(table["site"] == "n", "no", "no ")
    with pytest.raises(
        SettingError,
        match="two classes in the column ill of the data frame have names that look alike",
    ):
        from_frame(table, "site", "ill")
    table.assign(ill=np.where(table["site"] == "n", "caf\u00e9", "cafe\u0301")).to_csv(
        tmp_path / "table.csv", index=False
    )
    with pytest.raises(
        SettingError,
        match=r"two classes in the column ill of .*table.csv have names that look alike, 'cafe\\u0301' and",
    ):
        clients_of_table(tmp_path / "table.csv", TableSettings(client="site", target="ill"))


def test_folders_of_pictures_whose_classes_look_alike_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for client, kind in (("a", "caf\u00e9"), ("a", "dog"), ("b", "cafe\u0301"), ("b", "dog")):
        folder = tmp_path / client / kind
        folder.mkdir(parents=True)
        image.new("RGB", (4, 4)).save(folder / "1.png")
    with pytest.raises(SettingError, match=r"two classes in .* have names that look alike"):
        clients_of_images(tmp_path, ImageSettings())


# ----------------------------------------------------------------------------------------------------
# Tables of all clients.


def stacked(order: Sequence[str] = ORDER) -> pd.DataFrame:
    """The patients of two sites in one table."""
    parts = [
        site(seed, order)[0].assign(ill=site(seed)[1], site=name) for seed, name in enumerate("ns")
    ]
    return pd.concat(parts, ignore_index=True)


def test_columns_that_look_alike_are_refused() -> None:
    for more, target, sentence in (
        (
            {"age ": 1.0},
            "ill",
            "two columns of the data frame have names that look alike, 'age' and 'age '",
        ),
        (
            {1: 0, "1": 1},
            [1, "1"],
            "two columns of the data frame have names that look alike, 1 and '1'",
        ),
    ):
        frame: Any = {**{name: stacked()[name].to_numpy() for name in stacked()}}
        frame |= {name: np.full(80, value) for name, value in more.items()}  # type: ignore[attr-defined]
        with pytest.raises(SettingError, match=sentence):
            from_frame(frame, "site", target)


def test_subjects_that_look_alike_are_refused() -> None:
    table = stacked().assign(patient=["p1", "p1 "] * 40)
    with pytest.raises(
        SettingError,
        match="two subjects of the data frame have names that look alike, 'p1' and 'p1 '",
    ):
        from_frame(table, "site", "ill", subject="patient")
    x, y = site(0)
    with pytest.raises(
        SettingError, match="two subjects of client 0 have names that look alike, 'p1' and 'p1 '"
    ):
        from_lists([{"x": x, "y": y, "subject": ["p1", "p1 "] * 20}])


def test_a_column_itself_in_place_of_its_name() -> None:
    table = stacked()
    for settings in (
        {"client": table["site"], "target": "ill"},
        {"client": "site", "target": table["ill"]},
    ):
        with pytest.raises(UserError, match="must be names of columns, got a Series"):
            from_frame(table, **settings)


def test_a_table_of_pyarrow() -> None:
    world = from_frame(of_pyarrow(stacked()), "site", "ill")
    assert torch.equal(
        world.clients[1].train.inputs, from_frame(stacked(), "site", "ill").clients[1].train.inputs
    )


def test_an_earlier_world_keeps_the_order_of_names() -> None:
    table = stacked().assign(ill=np.where(stacked()["ill"], "yes", "no"))
    before = from_frame(table, "site", "ill", standardize="pooled")
    later = pd.concat([table, table[table["site"] == "s"].assign(site="t")])
    for settings in ({}, {"features": TURNED}):
        world = from_frame(
            later[["ill", "site", *TURNED]],
            "site",
            "ill",
            standardize="pooled",
            after=before,
            **settings,
        )
        assert world.about == before.about
        for old, new in zip(before.clients.values(), world.clients.values(), strict=False):
            assert torch.equal(old.train.inputs, new.train.inputs)
    with pytest.raises(
        UserError, match=r"the data frame lacks bmi: .* the earlier world has age, bp, bmi"
    ):
        from_frame(later, "site", "ill", features=["age", "bp"], after=before)
    with pytest.raises(
        UserError,
        match=r"the target ill has the class 'maybe', which is none of the model's classes: no, yes",
    ):
        from_frame(
            later.assign(ill=np.where(later["site"] == "t", "maybe", later["ill"])),
            "site",
            "ill",
            after=before,
        )
    with pytest.raises(
        UserError,
        match="the target ill is for regression, and that of the earlier world for classification",
    ):
        from_frame(later.assign(ill=np.arange(120) / 7), "site", "ill", after=before)


def test_fewer_classes_after_an_earlier_world_keep_their_numbers() -> None:
    table = stacked().assign(ill=["a", "b", "c", "c"] * 20)
    before = from_frame(table, "site", "ill")
    world = from_frame(table.replace({"ill": {"a": "b"}}), "site", "ill", after=before)
    assert world.about["classes"] == ["a", "b", "c"]
    assert world.clients[0].train.targets.unique().tolist() == [1, 2]


def test_lists_after_an_earlier_world() -> None:
    before = from_lists({"a": site(0), "b": site(1)}, standardize="pooled")
    world = from_lists(
        {"a": site(0, TURNED), "b": site(1, TURNED), "c": site(2)},
        standardize="pooled",
        after=before,
    )
    assert world.about == before.about
    assert torch.equal(world.clients[1].train.inputs, before.clients[1].train.inputs)
    with pytest.raises(
        UserError, match=r"the earlier world has columns by name .* and client a: x has none"
    ):
        from_lists({"a": (site(0)[0].to_numpy(), site(0)[1])}, after=before)


def test_facts_of_lists_tell_worlds_apart() -> None:
    world = from_lists([site(0), site(1)])
    facts = world_facts(world)
    assert facts["about"] == {"features": ORDER}
    assert same_world(facts, dict(facts))
    assert not same_world(facts, {name: value for name, value in facts.items() if name != "about"})
    assert not same_world(facts, {**facts, "about": {"features": TURNED}})


def test_constants_of_the_standardization_by_name() -> None:
    table = stacked()
    listed = from_frame(table, "site", "ill", features=TURNED, standardize=([20, 10, 0], [3, 2, 1]))
    ordered = pd.Series([0, 10, 20], ORDER), pd.Series([1, 2, 3], ORDER)
    frames = tuple(series.to_frame().T for series in ordered)
    for constants in (ordered, tuple(map(dict, ordered)), frames):
        world = from_frame(table, "site", "ill", features=TURNED, standardize=constants)
        assert torch.equal(world.clients[0].train.inputs, listed.clients[0].train.inputs)
        assert world.about["means"] == [20, 10, 0]
    # Numbers as names: those of the features, although they are not in their order.
    numbered = table.rename(columns={"age": 0, "bp": 1, "bmi": 2})
    world = from_frame(
        numbered,
        "site",
        "ill",
        features=[2, 1, 0],
        standardize=(numbered[[0, 1, 2]].mean(), ordered[1].to_list()),
    )
    assert [round(mean) for mean in world.about["means"]] == [20, 10, 0]
    # A column of pandas without names is a list.
    assert from_frame(table, "site", "ill", standardize=(pd.Series([1, 2, 3]), [1])).about[
        "means"
    ] == [1, 2, 3]
    with pytest.raises(
        SettingError,
        match="means must have each feature by its name, age, bp, bmi: it lacks bmi and also has x",
    ):
        from_frame(table, "site", "ill", standardize=({"age": 0, "bp": 1, "x": 2}, [1]))
    x, y = site(0)
    with pytest.raises(
        SettingError,
        match=r"means has names .age, bp, bmi., and the features have none: give a list",
    ):
        from_lists([(x.to_numpy(), y)], standardize=(x.mean(), [1]))


# ----------------------------------------------------------------------------------------------------
# Types that decide how numbers are read.


def test_inputs_of_which_only_some_would_be_divided_by_255_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ages, y = rng.integers(20, 90, (40, 3)), site(0)[1].to_numpy()
    photos = rng.integers(0, 256, (40, 3, 6, 6)).astype(np.uint8)
    for one, other in (
        (ages.astype(np.uint8), ages),
        (photos, photos.astype(float)),
        (photos.astype(int), photos - 128.0),
    ):
        for clients in (
            [(one, y), (other, y)],
            [(other, y), (one, y)],
            [(one, y, other, y)],
            [(one, y), (torch.tensor(other), y)],
        ):
            with pytest.raises(
                UserError,
                match=r"the inputs of all clients must have one type: .* is divided by 255, and",
            ):
                from_lists(clients)
    scaled = from_lists([(photos, y), (photos / 255, y), (photos.astype(int), y)])
    assert all(float(data.train.inputs.max()) == 1 for data in scaled.clients.values())
    for name, x in (("a", ages), ("b", ages.astype(np.uint8))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    with pytest.raises(
        UserError, match=r"b.npz: x has uint8, .*, and .*a.npz: x has int64, which is not"
    ):
        read_folder(tmp_path)


def test_targets_of_one_shape_and_type() -> None:
    x, y = site(0)[0].to_numpy(), site(0)[1].to_numpy()
    with pytest.raises(
        UserError,
        match="the targets of all clients must have the same shape and type: client 0 has",
    ):
        from_lists([(x, y * 0.5), (x, y[:, None] * 0.5)])
    whole = from_lists([(x, y * 0.5), (x, y)], model="linear").clients[1].train.targets
    assert whole.dtype == torch.float32
    assert set(whole.tolist()) == {0.0, 1.0}


def test_keys_that_mean_the_same_array_are_refused() -> None:
    x, y = site(0)
    with pytest.raises(UserError, match="client 0 must hold either x and y or x_train and y_train"):
        from_lists([{"x": x, "y": y, "x_train": x + 1, "y_train": y}])


class Named(torch.utils.data.Dataset[Any]):
    """Items by keyword; those from ``since`` on have one more."""

    def __init__(self, since: int) -> None:
        self.since = since

    def __len__(self) -> int:
        return 20

    def __getitem__(self, item: int) -> Any:
        more = {"mask": torch.ones(3)} if item >= self.since else {}
        return {"tokens": torch.full((3,), float(item)), **more, "label": item % 2}


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return self.layer(tokens if mask is None else tokens * mask)


def test_items_with_other_keys_are_refused() -> None:
    mixed = from_lists([Named(since=10)], model=Masked).clients[0].train.inputs
    assert set(mixed.batch(torch.arange(3))[0]) == {"tokens"}
    for rows in ([0, 19], [19, 0]):
        with pytest.raises(
            UserError,
            match="the items of a data set must have the same keys, and only some of them have mask",
        ):
            mixed.batch(torch.tensor(rows))
    world = from_lists([Named(since=0), Named(since=20)], model=Masked)
    with pytest.raises(
        UserError, match="must have the same keys: only one of client 0 and client 1 has mask"
    ):
        next(iter(coterie.run("fedavg", world, rounds=1, workers=1)))


def test_columns_whose_names_are_fractions() -> None:
    table = stacked().rename(columns=dict(zip(ORDER, (400.0, 400.5, 401.0), strict=True)))
    before = from_frame(table, "site", "ill")
    means = pd.Series([20.0, 0.0, 10.0], [401.0, 400.0, 400.5])
    world = from_frame(
        table[["site", 401.0, 400.5, 400.0, "ill"]],
        "site",
        "ill",
        standardize=(means, [1]),
        after=before,
    )
    assert world.about["features"] == before.about["features"] == ["400.0", "400.5", "401.0"]
    assert world.about["means"] == [0, 10, 20]
