"""Models taken out of a run predict what the run recorded, with Coterie and without; nothing is half-written."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import coterie
from coterie.cli import main
from coterie.core import Assignment
from coterie.methods import CFL, Independent
from coterie.models.nets import make as make_net
from coterie.randomness import seeded
from coterie.records.checksum import digest, sealed_json
from coterie.records.codec import DamagedError
from coterie.records.record import Record
from coterie.records.store import SCHEMA_VERSION
from coterie.runs import export
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.runs.run import Run
from coterie.settings import UserError
from forged import change
from method_examples import slow

SMALL: dict[str, Any] = {
    "scenario": {"name": "digits/label-permutation", "clients": 5, "groups": 2},
    "training": {"epochs": 1},
    "rounds": 2,
    "workers": 1,
}
SPLIT = {"name": "cfl", "split_rounds": [1]}


class Awkward(nn.Module):
    """BatchNorm with its whole-number buffer, dropout, tied layers, a frozen layer, and buffers that no row carries."""

    shuffle: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        size = 1
        for side in shape:
            size *= side
        self.register_buffer("shuffle", torch.randperm(size))
        self.register_buffer("scale", 1 + torch.rand(size), persistent=False)
        self.first, self.norm, self.drop = nn.Linear(size, 24), nn.BatchNorm1d(24), nn.Dropout(0.3)
        self.second, self.third = nn.Linear(24, 24), nn.Linear(24, 24)
        self.third.weight = self.second.weight
        self.last = nn.Linear(24, classes)
        self.third.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(self.first(x.flatten(1)[:, self.shuffle] * self.scale)).relu())
        return self.last(self.third(self.second(x).relu()).relu())


def finished(folder: Path, method: Any, **changes: Any) -> Run:
    spec = {**SMALL, **changes}
    spec["scenario"] = {**SMALL["scenario"], **changes.get("scenario", {})}
    (run,) = begin(make({**spec, "methods": [method]}), folder)
    for _ in run.rounds():
        pass
    return run


def accuracies(run: Run, net_of: Callable[[int], nn.Module]) -> dict[str, float]:
    world, found = run.experiment.world(run.seed), {}
    for client in Record(run.folder).lines()[-1]["clients"]:
        test = world.clients[int(client)].test
        with torch.no_grad():
            predicted = net_of(int(client))(test.inputs[test.index]).argmax(1)
        found[client] = float((predicted == test.targets).double().mean())
    return found


def recorded(run: Run) -> dict[str, float]:
    return {
        client: entry["accuracy"]
        for client, entry in Record(run.folder).lines()[-1]["clients"].items()
    }


def plainly(run: Run, folder: Path) -> Callable[[int], nn.Module]:
    """A client's net without the library's loader: the state dict of its file in a module of one's own."""
    about = json.loads((folder / "models.json").read_text())
    classes, shape = about["model"]["classes"], tuple(about["model"]["shape"])

    def net(client: int) -> nn.Module:
        module = make_net(about["model"]["name"], shape, classes)
        module.load_state_dict(
            safetensors.torch.load_file(folder / about["clients"][str(client)]["file"]), strict=True
        )
        return module.eval()

    return net


ALONE = {
    "name": "knn-per",
    "weight": 0.0,
}  # otherwise its models do not serve without a client's examples
QUICK = [
    SPLIT,  # a model per group
    "fedper",  # layers of a client's own
    "independent",  # models of a client's own
    "apfl",  # mixtures
    ALONE,
]
METHODS = [
    *QUICK,
    *slow(
        *(name for name in coterie.METHODS if name not in (*QUICK, "knn-per")),
        {**SPLIT, "fallback": True},
    ),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@seeded(0)
def test_loaded_models_predict_what_was_recorded(tmp_path: Path, method: Any) -> None:
    run = finished(tmp_path / "run", method)
    folder = coterie.save(run.folder, tmp_path / "models")
    assert folder == tmp_path / "models"
    assert accuracies(run, lambda client: coterie.load(folder, client)) == pytest.approx(
        recorded(run)
    )
    if not json.loads((folder / "models.json").read_text())["ensemble"]:
        assert accuracies(run, plainly(run, folder)) == pytest.approx(recorded(run))
    assert not any(part.training for part in coterie.load(folder, 0).modules())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", SPLIT, "independent"], ids=str)
@pytest.mark.parametrize("model", ["test_export:Awkward", "acfl-cnn"])
@seeded(0)
def test_nets_of_all_kinds(tmp_path: Path, method: Any, model: str) -> None:
    run = finished(
        tmp_path / "run", method, scenario={"model": model}, training={"epochs": 1, "lr": 0.2}
    )
    folder = coterie.save(run.folder, tmp_path / "models", trust_code=True)
    assert accuracies(
        run, lambda client: coterie.load(folder, client, trust_code=True)
    ) == pytest.approx(recorded(run))
    fresh = make_net(model, (1, 8, 8), 10).state_dict()
    for path in set(folder.glob("*.safetensors")) - {folder / export.PLACEMENT_FILE}:
        tensors = safetensors.torch.load_file(path)
        assert {k: (v.shape, v.dtype) for k, v in tensors.items()} == {
            k: (v.shape, v.dtype) for k, v in fresh.items()
        }
        if "norm.num_batches_tracked" in tensors:
            assert tensors["norm.num_batches_tracked"] == 0


@pytest.mark.parametrize(
    ("method", "rotation"),
    [("fedavg", "permute"), ("independent", "permute-tensors"), (SPLIT, "blocks")],
    ids=str,
)
def test_models_that_the_server_holds_in_other_coordinates_are_turned_back(
    tmp_path: Path, method: Any, rotation: str
) -> None:
    boundary = {"rotation": rotation, "secret": 7}
    run = finished(
        tmp_path / "run", method, scenario={"model": "test_export:Awkward"}, boundary=boundary
    )
    folder = coterie.save(run.folder, tmp_path / "models", trust_code=True, secret=7)
    assert accuracies(
        run, lambda client: coterie.load(folder, client, trust_code=True)
    ) == pytest.approx(recorded(run))


@pytest.mark.parametrize("cls", [CFL, Independent])
@seeded(0)
def test_an_ensemble_answers_as_its_models_do_on_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: Any
) -> None:
    original = cls.assignment

    def with_paths(self: Any, state: Any) -> Assignment:
        found = original(self, state)
        models = torch.cat([found.models, 1.5 * found.models.mean(0, keepdim=True)])
        path = {client: (len(models) - 1, row) for client, row in found.row.items()}
        return replace(found, models=models, path=path, ensemble=True)

    monkeypatch.setattr(cls, "assignment", with_paths)
    run = finished(tmp_path / "run", SPLIT if cls is CFL else cls.name)
    folder = coterie.save(run.folder, tmp_path / "models")
    assert accuracies(run, lambda client: coterie.load(folder, client)) == pytest.approx(
        recorded(run)
    )
    about = json.loads((folder / "models.json").read_text())
    for client, entry in about["clients"].items():
        root, leaf = entry["path"]
        assert leaf == entry["file"]
        assert root != leaf
        x = torch.rand(3, 1, 8, 8)
        voices = []
        for name in (root, leaf):
            net = make_net("mlp", (1, 8, 8), 10)
            net.load_state_dict(safetensors.torch.load_file(folder / name))
            voices.append(net(x).softmax(-1))
        mean = coterie.load(folder, int(client))(x).softmax(-1)
        torch.testing.assert_close(mean, (voices[0] + voices[1]) / 2)


@seeded(0)
def test_clients_with_whole_models_of_their_own_have_the_groups_models_in_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_paths(self: Any, state: Any) -> Assignment:
        found = Independent.__dict__["plain_assignment"](self, state)
        models = torch.cat([found.models, found.models + 1])
        return replace(
            found, models=models, path={client: (1, row) for client, row in found.row.items()}
        )

    monkeypatch.setattr(Independent, "plain_assignment", Independent.assignment, raising=False)
    monkeypatch.setattr(Independent, "assignment", with_paths)
    run = finished(tmp_path / "run", "independent")
    folder = coterie.save(run.folder, tmp_path / "models")
    entries = json.loads((folder / "models.json").read_text())["clients"]
    assert {entry["file"] for entry in entries.values()} == {
        f"client-{client}.safetensors" for client in entries
    }
    assert {tuple(entry["path"]) for entry in entries.values()} == {
        ("path-0.safetensors", "path-1.safetensors")
    }
    root, group = (safetensors.torch.load_file(folder / f"path-{i}.safetensors") for i in range(2))
    assert all(torch.allclose(root[name], group[name] + 1) for name in group)
    assert accuracies(run, lambda client: coterie.load(folder, client)) == pytest.approx(
        recorded(run)
    )


def test_models_are_written_once_and_named_by_whom_they_serve(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", SPLIT)
    coterie.save(run.folder, tmp_path / "models")
    about = json.loads((tmp_path / "models" / "models.json").read_text())
    assert {
        key: about[key]
        for key in ("schema", "method", "scenario", "seed", "round", "finished", "ensemble")
    } == {
        "schema": SCHEMA_VERSION,
        "method": "cfl",
        "scenario": "digits/label-permutation",
        "seed": 0,
        "round": 2,
        "finished": True,
        "ensemble": False,
    }
    assert about["model"] == {"name": "mlp", "shape": [1, 8, 8], "classes": 10}
    groups = Record(run.folder).lines()[-1]["groups"]
    assert about["groups"] == groups
    for number, group in enumerate(groups):
        for client in group:
            assert about["clients"][str(client)]["group"] == number
            assert about["clients"][str(client)]["file"] == f"group-{number}.safetensors"
    names = {path.name for path in (tmp_path / "models").iterdir()}
    assert names >= {"models.json", "group-0.safetensors", "group-1.safetensors"}
    assert "client-0.safetensors" not in names


def position(**kept: Tensor) -> Any:
    return export.Position(
        round=1, exchange=1, state=None, kept={"": {int(c[1:]): row for c, row in kept.items()}}
    )


def test_names_where_groups_and_models_are_not_the_same() -> None:
    found = Assignment(
        models=torch.zeros(4, 2),
        row={1: 0, 2: 0, 5: 3, 7: 1, 9: 3},
        groups=((1, 2), (5, 7), (9,)),
        path={7: (2, 1), 1: (2, 0)},
    )
    files, clients = export._files(found, position(c2=torch.zeros(2)))
    # Group 0 has two models, since client 2 keeps layers; group 2's one model also serves client 5,
    # of a group of two.
    assert files == {
        (3, None): "group-2.safetensors",
        (0, None): "client-1.safetensors",
        (0, 2): "client-2.safetensors",
        (1, None): "client-7.safetensors",
        (2, None): "path-0.safetensors",
    }
    assert clients["7"] == {
        "group": 1,
        "file": "client-7.safetensors",
        "path": ["path-0.safetensors", "client-7.safetensors"],
    }
    assert clients["5"] == {"group": 1, "file": "group-2.safetensors"}


def test_a_run_that_does_not_describe_its_net_is_damaged(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "fedavg")
    change(
        run.folder,
        lambda text: text[: text.index("[world.model]")] + text[text.index("[versions]") :],
    )
    assert "model" not in Record(run.folder).description()["world"]
    with pytest.raises(DamagedError, match="has no valid list of its net's tensors"):
        coterie.save(run.folder, tmp_path / "models")


# -- mistakes
# -------------------------------------------------------------------------------------------------------------


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    return (status, *capsys.readouterr())


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in begin(make({**SMALL, "methods": ["fedavg", "independent"], "rounds": 1}), "all"):
        for _ in run.rounds():
            pass
    assert call(capsys, "export", "all", "--to", "deep/out") == (
        0,
        "6 models of 2 runs written to deep/out\n",
        "",
    )
    assert sorted(p.name for p in Path("deep").iterdir()) == ["out"]
    assert sorted(p.name for p in Path("deep/out").iterdir()) == [
        "fedavg-seed0",
        "independent-seed0",
    ]
    told: list[None] = []
    coterie.save("all", "again", progress=lambda: told.append(None))
    assert len(told) == 2
    assert call(capsys, "export", "all/fedavg-seed0", "--to", "one") == (
        0,
        "1 model written to one\n",
        "",
    )
    status, out, err = call(capsys, "export", "all", "--to", "one")
    assert (status, out) == (2, "")
    assert err.endswith("one exists and is not an empty folder; choose another\n")
    with pytest.raises(
        UserError,
        match=r"no models\.json; it has models of several runs: fedavg-seed0, independent-seed0",
    ):
        coterie.load("deep/out", 0)
    with pytest.raises(
        UserError, match=r"one has no model for client '7' .*\(known: 0, 1, 2, 3, 4\)"
    ):
        coterie.load("one", client=7)
    Path("one/models.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="schema version 99"):
        coterie.load("one", 0)
    Path("one/models.json").write_text('{"schema": 1}')
    with pytest.raises(UserError, match=r"one/models\.json has lost its checksum"):
        coterie.load("one", 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("export", "run"), "the following arguments are required: --to"),
        (("export", "absent", "--to", "out"), "absent does not exist"),
        (("export", ".", "--to", "out"), ". is not a run directory"),
        (
            ("export", "begun", "--to", "out"),
            "begun has no completed round yet; to continue, run coterie resume begun",
        ),
    ],
)
def test_a_mistake_costs_one_sentence_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Any,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "begun" in arguments:
        begin(make({**SMALL, "methods": ["fedavg"]}), "begun")
    before = sorted(Path().iterdir())
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path / "run", "independent", rounds=1)
    original, written = Path.write_bytes, []

    def full(path: Path, data: bytes) -> int:
        if len(written) == 3:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        return original(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            coterie.save(run.folder, tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "models").mkdir()  # an empty folder is taken
    coterie.save(run.folder, tmp_path / "models")
    assert len(list((tmp_path / "models").iterdir())) == 12


def forge_model(folder: Path, about: dict[str, Any]) -> None:
    """Make the checksums fit to the group's model."""
    about["files"] = {"group-0.safetensors": digest((folder / "group-0.safetensors").read_bytes())}
    (folder / "models.json").write_bytes(sealed_json(json.dumps(about).encode()))


def test_a_file_of_another_net_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "fedavg", rounds=1)
    folder = coterie.save(run.folder, tmp_path / "models")
    safetensors.torch.save_file({"fc.weight": torch.zeros(3)}, folder / "group-0.safetensors")
    with pytest.raises(
        UserError, match=r"group-0\.safetensors was changed or damaged: its checksum does not match"
    ):
        coterie.load(folder, 0)
    about = json.loads((folder / "models.json").read_text())
    del about["checksum"]
    forge_model(folder, about)
    with pytest.raises(UserError, match=r"a net of 4,810 numbers, but its models have 3"):
        coterie.load(folder, 0)
    safetensors.torch.save_file({"fc.weight": torch.zeros(4810)}, folder / "group-0.safetensors")
    forge_model(folder, about)
    with pytest.raises(UserError, match=r"group-0\.safetensors cannot be loaded into mlp"):
        coterie.load(folder, 0)


def test_a_net_is_not_made_for_models_that_are_much_smaller(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "fedavg", rounds=1)
    folder = coterie.save(run.folder, tmp_path / "models")
    about = json.loads((folder / "models.json").read_text())
    del about["checksum"]
    big = {"name": "mlp", "shape": [2**23], "classes": 10}  # 2 GB
    (folder / "models.json").write_bytes(sealed_json(json.dumps({**about, "model": big}).encode()))
    with pytest.raises(UserError, match="a net of 536,871,626 numbers, but its models have 4,810"):
        coterie.load(folder, 0)
    change(
        run.folder,
        lambda text: re.sub(r"(?s)(\[world.model\].*?shape = \[).*?\]", r"\g<1>8388608]", text),
    )
    with pytest.raises(
        UserError,
        match=r"the net that .*run\.toml describes cannot be made: a net of 536,871,626 numbers",
    ):
        coterie.save(run.folder, tmp_path / "again")


def test_a_path_that_names_a_file_often_is_damage(tmp_path: Path) -> None:
    """Each name was once read, and made a net."""
    folder = coterie.save(
        finished(tmp_path / "run", "fedavg", rounds=1).folder, tmp_path / "models"
    )
    about = json.loads((folder / "models.json").read_text())
    del about["checksum"]
    for entry in about["clients"].values():
        entry["path"] = [entry["file"]] * 10_000
    (folder / "models.json").write_bytes(
        sealed_json(json.dumps({**about, "ensemble": True}).encode())
    )
    with pytest.raises(DamagedError, match=r"models\.json is damaged .*names a file twice"):
        coterie.load(folder, 0)


@pytest.mark.parametrize(
    "sealed", [{"a": 1}, {"rotation": "x", "block": 64}, {"rotation": "permute", "block": "x"}]
)
def test_a_seal_of_another_form_is_damage(tmp_path: Path, sealed: dict[str, Any]) -> None:
    folder = coterie.save(
        finished(tmp_path / "run", "fedavg", rounds=1).folder, tmp_path / "models"
    )
    about = json.loads((folder / "models.json").read_text())
    del about["checksum"]
    (folder / "models.json").write_bytes(
        sealed_json(json.dumps({**about, "sealed": sealed}).encode())
    )
    with pytest.raises(DamagedError, match=r"models\.json is damaged"):
        coterie.load(folder, 0, secret=3)


def test_a_failed_export_leaves_no_folders_above_it(tmp_path: Path) -> None:
    run = begin(make({**SMALL, "methods": ["independent"]}), tmp_path / "run")[0]
    with pytest.raises(UserError, match="no completed round yet"):
        coterie.save(run.folder, tmp_path / "new" / "deep" / "models")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_clients_that_choose_by_themselves_get_what_the_record_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "split-half-private", "first_probe": 1, "level": 0.5}
    run = finished(tmp_path / "run", method, rounds=6, scenario={"clients": 12, "groups": 2})
    last = Record(run.folder).lines()[-1]
    assert len(last["groups"]) > 1
    said: list[str] = []
    export.save(run.folder, tmp_path / "to", warn=said.append)
    document = json.loads((tmp_path / "to" / "models.json").read_text())
    assert document["groups"] == last["groups"]
    assert len({one["file"] for one in document["clients"].values()}) == len(last["groups"])
    assert accuracies(run, lambda c: coterie.load(tmp_path / "to", c)) == pytest.approx(
        {client: scores["accuracy"] for client, scores in last["clients"].items()}, abs=1e-6
    )
    assert not said
    taken = export._as_recorded  # as of a federation, whose record does not say what clients choose
    monkeypatch.setattr(
        export, "_as_recorded", lambda a, line, warn: taken(a, {**line, "notes": []}, warn)
    )
    export.save(run.folder, tmp_path / "federation", warn=said.append)
    document = json.loads((tmp_path / "federation" / "models.json").read_text())
    assert {len(one["path"]) for one in document["clients"].values()} == {len(document["files"])}
    assert "the server does not know which of the" in said[0]
