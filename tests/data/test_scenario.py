"""Scenarios: the same from the same seed, shifts in every split, truth, sharing, and clients' own data."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core import Training
from coterie.data import datasets
from coterie.data.own import from_lists
from coterie.data.scenario import SCENARIOS, Scenario, datasets_with, find
from coterie.data.world import Split, World
from coterie.engines.rounds import rounds
from coterie.methods import METHODS, FedAvg
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError, UserError

FREE = [name for name in SCENARIOS if name.startswith(("digits/", "synthetic/"))]
FILED = [
    name
    for name, one in SCENARIOS.items()
    if not name.endswith("/clients") and datasets.find(one.dataset.name).files
]


def same(a: Split, b: Split) -> bool:
    return torch.equal(a.inputs[a.index], b.inputs[b.index]) and torch.equal(a.targets, b.targets)


def splits(world: World) -> list[Split]:
    return [
        split
        for data in world.clients.values()
        for split in (data.train, data.validation, data.test)
    ]


def hold(world: World, scenario: Scenario) -> None:
    """What every world must be: complete, its pieces disjoint, its truth a partition, its model fit for its data."""
    assert list(world.clients) == list(range(scenario.clients))
    assert world.training == scenario.training
    module = world.model().eval()
    for data in world.clients.values():
        assert len(data.train)
        assert len(data.test)
        assert bool(len(data.validation)) == bool(scenario.holdout.validation)
        own = (
            (data.train, data.validation, data.test)
            if scenario.holdout.test == "share"
            else (data.train, data.validation)
        )
        rows = torch.cat([split.index for split in own])
        assert len(rows.unique()) == len(rows)
    trained = torch.cat([data.train.index for data in world.clients.values()])
    assert len(trained.unique()) == len(trained)
    if world.truth is not None:
        assert sorted(client for group in world.truth for client in group) == list(world.clients)
    batch = world.clients[0].train.batch(torch.arange(2))
    with torch.no_grad():
        assert torch.isfinite(world.objective.loss(module(batch[0]), batch[1]))


@pytest.mark.parametrize("name", FREE)
@seeded(0)
def test_worlds_without_files(name: str) -> None:
    scenario = find(name)
    world, again, other = (scenario.build(seed) for seed in (3, 3, 4))
    hold(world, scenario)
    assert all(map(same, splits(world), splits(again)))
    assert world.truth == again.truth
    assert not all(
        len(a) == len(b) and same(a, b) for a, b in zip(splits(world), splits(other), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FILED)
@seeded(0)
def test_worlds_from_the_real_data(name: str, data_folder: Path) -> None:
    source = datasets.find(find(name).dataset.name)
    assert source.files
    try:
        source.files(data_folder)
    except UserError as error:
        pytest.skip(str(error))
    hold(find(name).build(0, data_folder), find(name))


@seeded(0)
def test_the_demo() -> None:
    """digits/label-permutation: 20 clients, 4 groups of 5, all 1,797 images, 72 or so of each client's to train."""
    world = find("digits/label-permutation").build(0)
    assert world.truth is not None
    assert [len(group) for group in world.truth] == [5] * 4
    assert sum(map(len, splits(world))) == 1797
    assert {len(data.train) for data in world.clients.values()} == {71, 72}
    assert Layout(world.model()).size == 4810
    assert world.training == Training(lr=0.1, batch=10, epochs=3)
    assert world.truth != find("digits/label-permutation").build(1).truth


def test_fl_hcs_label_swap(data_folder: Path) -> None:
    world = find("mnist/label-swap").build(0, data_folder)
    assert world.truth is not None
    assert [len(group) for group in world.truth] == [25] * 4
    assert all(
        len(data.train) == 600 and len(data.test) == 10_000 for data in world.clients.values()
    )
    # One set of test outputs serves all 100 clients: the inputs and rows are the same objects
    # everywhere.
    assert (
        len({(id(data.test.inputs), id(data.test.index)) for data in world.clients.values()}) == 1
    )
    assert len({id(data.test) for data in world.clients.values()}) == 4
    first, second = (world.clients[group[0]].test.targets for group in world.truth[:2])
    assert (
        0.55 < (first == second).float().mean() < 0.65
    )  # two pairs of labels differ: four classes of ten


@pytest.mark.parametrize("shift", ["label-permutation", "label-swap"])
def test_label_shifts_reach_every_split(shift: str) -> None:
    shifted = Scenario(shift=shift).build(5)
    plain = Scenario().build(5)
    assert shifted.truth is not None
    for group in shifted.truth:
        called: dict[int, set[int]] = {}
        for client in group:
            a, b = shifted.clients[client], plain.clients[client]
            for mine, true in ((a.train, b.train), (a.validation, b.validation), (a.test, b.test)):
                assert mine.inputs is true.inputs
                assert torch.equal(mine.index, true.index)
                for now, was in zip(mine.targets.tolist(), true.targets.tolist(), strict=True):
                    called.setdefault(was, set()).add(now)
        assert all(
            len(names) == 1 for names in called.values()
        )  # one permutation for the whole group
        assert len(set.union(*called.values())) == 10
        changed = sum(names != {label} for label, names in called.items())
        assert changed == 2 if shift == "label-swap" else changed > 2


def test_rotation_reaches_every_split() -> None:
    turned, plain = Scenario(shift="rotation", shuffle=False).build(5), Scenario().build(5)
    for client in (0, 1, 2, 3):
        a, b = turned.clients[client], plain.clients[client]
        for mine, true in ((a.train, b.train), (a.validation, b.validation), (a.test, b.test)):
            assert torch.equal(
                mine.inputs[mine.index], torch.rot90(true.inputs[true.index], client, (2, 3))
            )


def test_truth() -> None:
    assert find("digits/iid").build(0).truth == (tuple(range(20)),)
    assert find("digits/quantity").build(0).truth == (tuple(range(20)),)
    assert find("digits/dirichlet").build(0).truth is None
    assert Scenario(shift="label-swap", shuffle=False).build(0).truth == tuple(
        tuple(range(g, 20, 4)) for g in range(4)
    )
    both = Scenario(partition="classes", groups=2, shift="label-swap", shuffle=False).build(0).truth
    assert both == (tuple(range(0, 20, 2)), tuple(range(1, 20, 2)))
    shards = Scenario(dataset="synthetic", clients=4, shards=1, partition="shards").build(0)
    assert shards.truth == ((0,), (1,), (2,), (3,))  # one class each
    assert Scenario(partition="shards").build(0).truth is None


def test_samples_bound_a_client() -> None:
    world = Scenario(samples=40, train=0.5, validation=0.25).build(0)
    data = world.clients[7]
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 10, 10)


def test_text_reports_perplexity(tmp_path: Path) -> None:
    rows = "".join(
        f'"{1 + i % 4}","t","some words of topic {i % 4} and number {i}"\n' for i in range(80)
    )
    (tmp_path / "train.csv").write_text(rows)
    (tmp_path / "test.csv").write_text(rows)
    scenario = Scenario(
        **{"dataset": "ag_news", "partition": "topic", "clients": 4, "length": 5, "test": "whole"}
    )
    world = scenario.build(0, tmp_path)
    assert "perplexity" in world.objective.named
    assert world.truth == ((0,), (1,), (2,), (3,))
    assert (
        len({id(data.test.index) for data in world.clients.values()}) == 4
    )  # each is tested on its own topic
    with pytest.raises(
        SettingError, match="label-swap needs class labels, and ag_news predicts words"
    ):
        Scenario(dataset="ag_news", shift="label-swap").build(0, tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"partition": "idd"}, "Scenario.partition must be one of .*did you mean iid?"),
        ({"train": 1.5}, "Scenario.train must be > 0 and <= 1, got 1.5"),
        (
            {"train": 0.9},
            "train and validation must leave some examples for the test data, got 0.9 and 0.1",
        ),
        ({"sizes": [5, 2]}, r"Scenario.sizes must be a lowest and a highest number, got \[5, 2\]"),
        (
            {"dataset": "folder"},
            "the partition clients goes together with the data sets folder, images, table",
        ),
        ({"clinets": 3}, "Scenario has no setting 'clinets'; did you mean clients?"),
        (
            {"dataset": "table", "partition": "clients", "clients": 4},
            "Scenario.clients is for data that are divided among clients, .* their own: there is one per name; leave it out",
        ),
        (
            {"dataset": "folder", "partition": "clients", "alpha": 1.0},
            "Scenario.alpha is for data that are divided among",
        ),
        ({"metrics": ["AUC"]}, "there is no metric 'AUC'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        Scenario(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"test": "whole"}, "digits has no test pool: Scenario.test must be share, got 'whole'"),
        (
            {"partition": "writer"},
            "Scenario.partition writer .* does not record the writer of its examples",
        ),
        ({"clients": 3, "shift": "label-swap"}, "4 groups need at least as many clients, got 3"),
        ({"clients": 1500}, "client 0 has 2 examples, too few to hold some out"),
        ({"clients": 5000}, "5000 clients of at least 1 examples need 5000, and there are 1797"),
        ({"dataset": "synthetic", "augment": True}, "Scenario.augment needs images"),
        ({"dataset": "synthetic", "shift": "rotation"}, "rotation needs square images"),
        ({"model": "flhc-cn"}, "there is no model 'flhc-cn'; did you mean flhc-cnn?"),
    ],
)
def test_settings_that_do_not_fit_the_data(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Scenario(**settings).build(0)


def arrays(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((count, 5), np.float32), rng.integers(0, 3, count)


@seeded(0)
def test_a_folder_with_a_file_per_client(tmp_path: Path) -> None:
    for seed, name in enumerate(("anna", "bert")):
        x, y = arrays(20, seed)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    (x, y), (x_test, y_test), (x_val, y_val) = arrays(20, 2), arrays(7, 3), arrays(5, 4)
    np.savez(tmp_path / "carl.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    np.savez(tmp_path / "dora.npz", x_train=x, y_train=y, x_validation=x_val, y_validation=y_val)
    world = find("folder/clients").build(0, tmp_path)
    sizes = {d.name: (len(d.train), len(d.validation), len(d.test)) for d in world.clients.values()}
    assert sizes == {"anna": (16, 2, 2), "bert": (16, 2, 2), "carl": (18, 2, 7), "dora": (18, 5, 2)}
    assert world.truth is None
    assert world.model()(torch.ones(1, 5)).shape == (1, 3)
    again = find("folder/clients").build(0, tmp_path)
    assert all(map(same, splits(world), splits(again)))


def test_an_invalid_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"holds no .npz file; each client is one, with arrays x and y"
    ):
        find("folder/clients").build(0, tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones((5, 2)))
    with pytest.raises(UserError, match=r"a.npz must hold x and y .*; it holds x"):
        find("folder/clients").build(0, tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones((5, 2)), y=np.arange(5))
    np.savez(tmp_path / "b.npz", x=np.ones((5, 3)), y=np.arange(5))
    with pytest.raises(
        UserError,
        match=r"must have the same shape and type: a has \(2,\) torch.float32, b has \(3,\)",
    ):
        find("folder/clients").build(0, tmp_path)


def test_whole_numbers_are_features_to_a_model_of_features(tmp_path: Path) -> None:
    x, y = np.arange(40).reshape(10, 4), np.arange(10) % 2
    np.savez(tmp_path / "one.npz", x=x, y=y)
    inputs = find("folder/clients").build(0, tmp_path).clients[0].train.inputs
    assert inputs.dtype == torch.float32
    assert inputs.tolist() == x.tolist()
    assert from_lists([(x, y)]).clients[0].train.inputs.dtype == torch.float32
    own = from_lists([(x, y)], model=lambda: nn.EmbeddingBag(40, 2))
    assert (
        own.clients[0].train.inputs.dtype == torch.int64
    )  # to a model of one's own they may be tokens


def test_clients_that_would_not_train_are_refused() -> None:
    with pytest.raises(SettingError, match=r"training\.epochs must be >= 1"):
        Scenario(training={"epochs": 0}).build()


@seeded(0)
def test_clients_from_lists() -> None:
    three = [
        arrays(20, 0),
        (*arrays(30, 1), *arrays(9, 2)),
        dict(zip("xy", arrays(10, 3), strict=True)),
    ]
    world = from_lists(
        three, training=Training(lr=0.3), truth=((0, 1), (2,)), model=lambda: nn.Linear(5, 3)
    )
    assert [len(data.train) for data in world.clients.values()] == [16, 27, 8]
    assert len(world.clients[1].test) == 9
    assert world.training.lr == 0.3
    assert world.truth == ((0, 1), (2,))
    assert isinstance(world.model(), nn.Linear)
    tensors = from_lists([(torch.rand(20, 1, 8, 8), torch.arange(20) % 4)], model="mlp", classes=10)
    assert tensors.model()(torch.rand(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "a world needs at least one client"),
        (
            [arrays(5, 0)[:1]],
            r"client 0 must be \(x, y\) or \(x, y, x_test, y_test\), got 1 arrays",
        ),
        ([(np.ones((3, 2)), np.arange(4))], "client 0 is mislabelled: 3 inputs but 4 labels"),
    ],
)
def test_invalid_lists_are_refused(clients: list[tuple[np.ndarray, ...]], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_lists(clients)


def test_a_table_is_refused_where_nothing_reads_it() -> None:
    with pytest.raises(
        SettingError,
        match=r"data is the table clean\.csv, and the data set is digits, which does not read it",
    ):
        Scenario().build(0, "clean.csv")


def test_metrics_of_a_scenario(tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]},{i % 7},{int(i % 3 > 0)}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *rows]))
    settings = {
        "dataset": "table",
        "partition": "clients",
        "client": "site",
        "target": "y",
        "metrics": ["AUROC", "accuracy"],
    }
    world = Scenario(**settings).build(0, tmp_path / "t.csv")
    assert world.objective.main == "AUROC"
    (done,) = rounds(FedAvg(), world, rounds=1, workers=1)
    assert done.scores is not None
    assert set(done.scores[0]) == {"loss", "AUROC", "accuracy"}


def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((9, 2)), y=np.arange(9) % 2)
    monkeypatch.setitem(os.environ, "COTERIE_DATA", str(tmp_path))
    assert find("folder/clients").build(0).clients[0].name == "a"


@pytest.mark.parametrize(
    "setting",
    [
        "clients",
        "groups",
        "shards",
        "total_shards",
        "vocabulary",
        "examples",
        "features",
        "classes",
    ],
)
def test_counts_that_no_memory_holds_are_refused(setting: str) -> None:
    dataset = next(iter(datasets_with(setting)), "digits")
    with pytest.raises(UserError, match=rf"Scenario\.{setting} must be >= \d and <= "):
        Scenario(dataset=dataset, **{setting: 2**63 - 1})


@pytest.mark.parametrize("method", ["ifca", "flsc", "clove", "cfl-gp", "feddrift"])
def test_more_models_than_can_be_drawn_are_refused(method: str) -> None:
    """An estimate of 2**63 - 1 models did not end."""
    with pytest.raises(
        UserError, match=r"\.models must be >= 1 and <= 1000, got 9223372036854775807"
    ):
        METHODS[method](models=2**63 - 1)
