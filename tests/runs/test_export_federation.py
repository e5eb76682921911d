"""Models of a federation, whose net Coterie has no name for: taken out by what the server has told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Context, Message
from test_export import Awkward, finished

import coterie
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World, whole
from coterie.engines.flower import boundary_mod
from coterie.methods import METHODS
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.settings import UserError
from flowered import Here, a_run, app_of, strategy_of
from forged import change
from method_examples import of_each_kind
from small import CLASSES, FEATURES, world

SECRET = 2**100 + 31415926535
ROTATED = Boundary(rotation="permute-tensors", secret=SECRET)


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    with a_run():
        yield


def Net() -> nn.Module:
    """A user's, with all that makes nets awkward; its batches are never of one example."""
    return Awkward((FEATURES,), CLASSES)


def federated(
    folder: Path, name: str, *, mods: Any = (), rounds: int = 3, model: Any = Net, **how: Any
) -> World:
    """A method's run over the grid, in ``folder``; the clients it had."""
    tried = world(range(6), model)
    settings = {"cfl": {"split_rounds": (1,)}, "flhc": {"warmup": 1, "fraction": 1.0}}
    method = METHODS[name](**settings.get(name, {}))
    strategy_of(method, tried, out=folder, **how).start(
        Here(app_of(tried, mods), 6), num_rounds=rounds
    )
    return tried


def predicted(tried: World, models: Path, **how: Any) -> dict[str, float]:
    found = {}
    for client, data in tried.clients.items():
        with torch.no_grad():
            classes = coterie.load(models, client, **how)(data.test.inputs[data.test.index]).argmax(
                1
            )
        found[str(client)] = float((classes == data.test.targets).double().mean())
    return found


def recorded(folder: Path) -> dict[str, float]:
    return {
        client: entry["accuracy"] for client, entry in Record(folder).lines()[-1]["clients"].items()
    }


OWN = (
    "independent",
    "fedper",
    "fedbn",
    "fedrep",
    "hcct-p",
    "ditto",
    "apfl",
    "fedbabu",
    "knn-per",
    "tuned",
    "auto",
)
"""Methods whose clients keep layers or models that the server does not have."""


@pytest.mark.parametrize(
    "name", of_each_kind((name for name in METHODS if name not in OWN), ("fedavg", "cfl"))
)
def test_models_of_a_net_without_a_name_predict_what_was_recorded(
    tmp_path: Path, name: str
) -> None:
    tried = federated(tmp_path / "run", name)
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    assert json.loads((models / "models.json").read_text())["model"] is None
    assert predicted(tried, models, model=Net) == pytest.approx(recorded(tmp_path / "run"))


@seeded(0)
def test_files_are_the_state_dict_of_the_net(tmp_path: Path) -> None:
    federated(tmp_path / "run", "fedavg", rounds=1)
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    tensors, net = safetensors.torch.load_file(models / "group-0.safetensors"), Net()
    expected = net.state_dict()
    assert {name: (t.shape, t.dtype) for name, t in tensors.items()} == {
        n: (t.shape, t.dtype) for n, t in expected.items()
    }
    torch.testing.assert_close(
        tensors["third.weight"], tensors["second.weight"], rtol=0, atol=0
    )  # one and the same
    assert tensors["norm.num_batches_tracked"] == 0
    net.load_state_dict(tensors)


@seeded(0)
def test_who_does_not_say_what_makes_the_net_is_told(tmp_path: Path) -> None:
    federated(tmp_path / "run", "fedavg", rounds=1)
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    with pytest.raises(
        UserError,
        match=r"a custom net; pass its class or a function that makes it: coterie.load\(..., model=Net",
    ):
        coterie.load(models, 0)
    with pytest.raises(
        UserError,
        match=r"model must be a class or function that makes the net, got a net; leave out the parentheses",
    ):
        coterie.load(models, 0, model=Net())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"model must make an nn\.Module, but makes int"):
        coterie.load(models, 0, model=lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=r"group-0\.safetensors cannot be loaded into Linear"):
        coterie.load(models, 0, model=lambda: nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["tuned", "ditto"])
def test_personal_models_that_stay_at_the_clients_are_told(tmp_path: Path, name: str) -> None:
    method = METHODS[name]() if name == "ditto" else METHODS[name](epochs=20)
    if name == "tuned":  # classes of their own: a personal model is better at each client
        tried = world(range(6), Net, sizes=[40] * 6)
        clients = {}
        for c, data in tried.clients.items():
            splits = {part: getattr(data, part) for part in ("train", "validation", "test")}
            clients[c] = replace(
                data,
                **{
                    k: whole(s.inputs, torch.full_like(s.targets, c % CLASSES))
                    for k, s in splits.items()
                },
            )
        tried = replace(tried, clients=clients)
    else:
        tried = world(range(6), Net)
    strategy_of(method, tried, out=tmp_path / "run").start(Here(app_of(tried, ()), 6), num_rounds=2)
    with pytest.warns(
        UserWarning,
        match=r"personal models of .* stay at its clients; the export has only the models",
    ):
        coterie.save(tmp_path / "run", tmp_path / "models")


# -- what the server does not have
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rotation"), [("cfl", "permute"), ("ifca", "permute-tensors"), ("cfl", "blocks")]
)
def test_sealed_models_are_opened_by_who_knows_the_secret(
    tmp_path: Path, name: str, rotation: str
) -> None:
    boundary = Boundary(rotation=rotation, secret=SECRET)
    tried = federated(
        tmp_path / "run",
        name,
        boundary=replace(boundary, secret=None),
        mods=[boundary_mod(boundary, Net)],
        rounds=2,
    )
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    assert predicted(tried, models, model=Net, secret=SECRET) == pytest.approx(
        recorded(tmp_path / "run")
    )
    plain = coterie.load(models, 0, model=Net, secret=SECRET).state_dict()
    about = json.loads((models / "models.json").read_text())
    assert about["sealed"] == {"rotation": rotation, "block": 64}
    sealed = safetensors.torch.load_file(models / about["clients"]["0"]["file"])
    assert not torch.allclose(sealed["first.weight"], plain["first.weight"])
    with pytest.raises(
        UserError, match=rf"sealed by rotation {rotation}; .* coterie.load\(..., secret=SECRET\)"
    ):
        coterie.load(models, 0, model=Net)


def test_sealed_models_of_a_net_with_a_name_need_the_secret_alone(tmp_path: Path) -> None:
    tried = replace(SCENARIOS["digits/label-permutation"], clients=6).build(0)
    how = {"boundary": replace(ROTATED, secret=None), "out": tmp_path / "run"}
    mods = [boundary_mod(ROTATED, tried.model)]
    strategy_of(METHODS["fedavg"](), tried, **how).start(Here(app_of(tried, mods), 6), num_rounds=1)
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    assert predicted(tried, models, secret=SECRET) == pytest.approx(recorded(tmp_path / "run"))


@pytest.mark.parametrize("name", ["fedper", "hcct-p"])
@seeded(0)
def test_layers_that_stay_at_the_clients_are_not_made_up(tmp_path: Path, name: str) -> None:
    federated(tmp_path / "run", name, rounds=1)
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    assert json.loads((models / "models.json").read_text())["stays"] == ["last"]
    lacking = Net().load_state_dict(
        safetensors.torch.load_file(models / "group-0.safetensors"), strict=False
    )
    assert lacking.missing_keys == ["last.weight", "last.bias"]
    assert not lacking.unexpected_keys
    with pytest.raises(
        UserError, match=r"client 3 keeps last of its model, .* has only the rest; .* strict=False"
    ):
        coterie.load(models, 3, model=Net)


def test_models_that_stay_at_the_clients_altogether_cannot_be_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    federated(Path("run"), "independent", rounds=1)
    capsys.readouterr()
    assert main(["export", "run", "--to", "models"]) == 2
    assert (
        capsys.readouterr().err
        == "coterie: independent keeps all layers at the clients, and run has no model of them\n"
    )
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_layers_that_ended_with_a_simulation_are_not_made_up(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", "fedper", rounds=1)
    change(run.folder, lambda text: text.replace('engine = "inprocess"', 'engine = "flower"'))
    models = coterie.save(run.folder, tmp_path / "models")
    with pytest.raises(UserError, match="client 0 keeps fc2 of its model"):
        coterie.load(models, 0)


# -- calibration
# ----------------------------------------------------------------------------------------


def both_exports(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the exports of a federation and of a simulation say, of the same method and data."""
    table = {"name": "digits/label-permutation", "clients": 6}
    cfl = {"name": "cfl", "split_rounds": [1]}
    settings = {"rounds": 2, "workers": 1, "training": {"epochs": 15}}
    (simulated,) = begin(
        make({"scenario": table, "methods": [cfl], **settings}), folder / "simulated"
    )
    for _ in simulated.rounds():
        pass
    tried = replace(SCENARIOS["digits/label-permutation"], clients=6).build(0)
    tried = replace(tried, training=replace(tried.training, epochs=15))
    strategy_of(METHODS["cfl"](split_rounds=(1,)), tried, out=folder / "federated").start(
        Here(app_of(tried, ()), 6), num_rounds=2
    )
    documents = []
    for run_folder in (folder / "federated", simulated.folder):
        models = coterie.save(run_folder, folder / f"models-{run_folder.name}")
        documents.append(json.loads((models / "models.json").read_text()))
    return documents[0], documents[1]


def test_clients_sums_calibrate_the_models_as_their_data_do(tmp_path: Path) -> None:
    federated_export, simulated_export = both_exports(tmp_path)
    assert federated_export["outputs"] == simulated_export["outputs"] == "classes"
    assert len(federated_export["groups"]) == 2
    assert set(federated_export["calibration"]) == set(simulated_export["calibration"])
    for files, expected in simulated_export["calibration"].items():
        found = federated_export["calibration"][files]
        # The temperatures of the sums are in steps of 4.4 %.
        assert found["temperature"] == pytest.approx(expected["temperature"], rel=0.025)
        assert found["temperature"] != pytest.approx(1, rel=0.03)
        for name in ("rows", "shared", "test_rows"):
            assert found[name] == expected[name]
        assert found["rows"] > 0
        for name in ("loss_before", "error_before", "loss_after"):
            # Rounding makes the models of the two engines differ a little.
            assert found[name] == pytest.approx(expected[name], rel=0.02)
        assert found["error_after"] == pytest.approx(expected["error_after"], abs=0.01)
    # The intervals of scores need numbers of rows.
    for client, entry in simulated_export["scores"]["clients"].items():
        assert federated_export["scores"]["clients"][client]["interval"] == pytest.approx(
            entry["interval"], abs=0.01
        )
    card = (tmp_path / "models-federated" / "card-0.md").read_text()
    assert "fitted on the validation rows" in card
    assert "Their numbers of rows are not known" not in card


def test_an_answer_that_is_no_sum_calibrates_nothing(tmp_path: Path) -> None:
    tried = world(range(6), Net, sizes=[40] * 6)
    grid = Here(app_of(tried), 6)
    app = grid.app

    def hostile(message: Message, context: Context) -> Message:
        reply = app(message, context)
        config = message.content.config_records.get("config", {})
        if "calibration" in config and context.node_config["partition-id"] == 0:
            metrics = reply.content["metrics"]
            metrics["calibration-validation-losses"] = [-1.0] * 129
        return reply

    grid.app = hostile  # type: ignore[assignment]
    strategy_of(METHODS["fedavg"](), tried, out=tmp_path / "run").start(grid, num_rounds=1)
    (entry,) = json.loads((tmp_path / "run" / "calibration.json").read_text())["models"]
    assert sorted(entry["clients"]) == ["1", "2", "3", "4", "5"]
    assert min(entry["validation-losses"]) >= 0


@pytest.mark.parametrize("boundary", [Boundary(clip=1.0, noise=0.1), ROTATED])
def test_under_noise_nobody_is_asked_and_under_a_rotation_the_node_opens_the_model(
    tmp_path: Path, boundary: Boundary
) -> None:
    tried = replace(SCENARIOS["digits/label-permutation"], clients=6).build(0)
    mods = [boundary_mod(boundary, tried.model)]
    how = {"boundary": replace(boundary, secret=None), "out": tmp_path / "run"}
    strategy_of(METHODS["fedavg"](), tried, **how).start(Here(app_of(tried, mods), 6), num_rounds=2)
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    about = json.loads((models / "models.json").read_text())
    if boundary.noise:
        assert about["calibration"] == {}
        assert not (tmp_path / "run" / "calibration.json").exists()
    else:
        (entry,) = about["calibration"].values()
        tested_loss = sum(
            line["loss"] for line in Record(tmp_path / "run").lines()[-1]["clients"].values()
        )
        assert entry["loss_before"] == pytest.approx(tested_loss / 6, rel=0.05)


def test_a_damaged_file_of_sums_is_told(tmp_path: Path) -> None:
    federated(tmp_path / "run", "fedavg", rounds=1)
    file = tmp_path / "run" / "calibration.json"
    file.write_text(file.read_text().replace("test-rows", "test-lines"))
    with pytest.raises(UserError, match=r"calibration\.json was changed or damaged"):
        coterie.save(tmp_path / "run", tmp_path / "models")
    assert any("calibration.json" in text for text in coterie.check(tmp_path / "run").damaged)


# -- damage
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [("world.net", "world.web"), ("float32", "no_such_type"), ("float32", "nn"), ('name = "first.bias"', ""),
     ("shape", "form"), ("trainable", "some")],
)  # fmt: skip
def test_a_damaged_description_is_told(tmp_path: Path, old: str, new: str) -> None:
    federated(tmp_path / "run", "fedavg", rounds=1)
    change(tmp_path / "run", lambda text: text.replace(old, new))
    with pytest.raises(UserError, match="has no valid list of its net's tensors"):
        coterie.save(tmp_path / "run", tmp_path / "models")


@pytest.mark.parametrize("name", ["nodes.json", "others.safetensors"])
def test_a_file_of_the_server_that_is_gone_is_damage(tmp_path: Path, name: str) -> None:
    federated(tmp_path / "run", "fedavg", rounds=1)
    assert coterie.check(tmp_path / "run").damaged == []
    (tmp_path / "run" / name).unlink()
    (damaged,) = coterie.check(tmp_path / "run").damaged
    assert name in damaged
    if name == "nodes.json":
        with pytest.raises(UserError, match=r"has lost its nodes\.json; it is damaged"):
            federated(tmp_path / "run", "fedavg", rounds=1)
