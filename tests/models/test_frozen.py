"""Frozen parameters are part of the model and not of a row: no client sends or averages them. Buffers travel by choice."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import coterie
from coterie.core import Training
from coterie.methods.fedavg import FedAvg
from coterie.models import nets
from coterie.models.layout import Layout, averaging
from coterie.randomness import seeded
from coterie.runs import export
from coterie.runs.checking import check
from coterie.settings import UserError
from small import CLASSES, FEATURES, normed, world

WIDTH = 600


class Backbone(nn.Module):
    """A large frozen layer and a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = (
            nn.Linear(FEATURES, WIDTH).requires_grad_(False),
            nn.Linear(WIDTH, CLASSES),
        )
        self.more = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.more(torch.relu(self.body(x)))))


@seeded(0)
def test_a_row_and_the_traffic_have_only_the_head() -> None:
    size = CLASSES * (WIDTH + 1)
    assert Layout(Backbone()).size == size
    (done,) = coterie.run("fedavg", world(model=Backbone), rounds=1, workers=1)
    assert done.assignment.models.shape == (1, size)
    assert (
        done.bytes_up
        == pytest.approx(done.bytes_down, rel=0.01)
        == pytest.approx(4 * size * 4, rel=0.01)
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_frozen_part_is_that_of_the_head_alone_over_fixed_features(workers: int) -> None:
    """Training a head over a frozen body is training a linear model over the body's outputs."""
    with seeded(0):
        body = Backbone()
    tried = world(model=Backbone, training=Training(lr=0.1, epochs=2))
    features = lambda x: torch.relu(body.more(torch.relu(body.body(x)))).detach()  # noqa: E731

    def over_features(split: coterie.Split) -> coterie.Split:
        return replace(split, inputs=features(split.inputs))

    clients = {
        c: replace(
            data,
            train=over_features(data.train),
            validation=over_features(data.validation),
            test=over_features(data.test),
        )
        for c, data in tried.clients.items()
    }
    start = torch.zeros(CLASSES * (WIDTH + 1))
    plain = replace(tried, clients=clients, model=lambda: nn.Linear(WIDTH, CLASSES))
    found, expected = (run_from(start, one, workers) for one in (tried, plain))
    torch.testing.assert_close(
        found.assignment.models, expected.assignment.models, rtol=1e-4, atol=1e-5
    )
    assert found.assignment.models.abs().max() > 0.01


def run_from(start: Tensor, tried: coterie.World, workers: int) -> coterie.Round:
    """The second round of FedAvg, whose first model is ``start``."""
    method = FedAvg()
    (first,) = coterie.run(method, tried, rounds=1, workers=1)
    state = replace(first.position.state, model=start)
    (done,) = coterie.run(
        method, tried, rounds=2, workers=workers, start=replace(first.position, state=state)
    )
    return done


def test_exported_models_share_one_file_of_the_frozen_part(tmp_path: Path) -> None:
    tried = world(model=Backbone)
    (one,) = coterie.begin(tried, tmp_path / "run", "independent", rounds=1, workers=1)
    list(one.rounds())
    with pytest.raises(UserError, match="world="):
        coterie.save(tmp_path / "run", tmp_path / "models")
    (made,) = coterie.begin(backbone_world, tmp_path / "named", "independent", rounds=1, workers=1)
    list(made.rounds())
    folder = coterie.save(tmp_path / "named", tmp_path / "models", trust_code=True)
    assert set(safetensors.torch.load_file(folder / export.SHARED_FILE)) == {
        "body.weight",
        "body.bias",
        "more.weight",
        "more.bias",
    }
    sizes = {
        path.name: path.stat().st_size
        for path in set(folder.glob("*.safetensors")) - {folder / export.PLACEMENT_FILE}
    }
    assert all(
        size < 4 * CLASSES * (WIDTH + 1) + 1000
        for name, size in sizes.items()
        if name != export.SHARED_FILE
    )
    (found,) = [line for line in check(folder).intact if "models.json" in line]
    assert found.endswith(f"models.json and {len(sizes) - 1} models")
    net = coterie.load(folder, min(tried.clients), model=Backbone)
    with seeded(0):
        assert torch.equal(net.more.weight, Backbone().more.weight)


def backbone_world(seed: int) -> coterie.World:
    return world(model=Backbone)


@seeded(0)
@pytest.mark.parametrize(
    ("buffers", "sent"),
    [(["*"], 2), ([], 0), (["*.running_mean"], 1)],
    ids=["all", "none", "means"],
)
def test_which_buffers_travel_is_a_setting(buffers: list[str], sent: int) -> None:
    layout = Layout(averaging(normed, buffers)())
    assert len(layout.statistics) == sent
    assert layout.trainable == Layout(normed()).trainable


@seeded(0)
def test_a_name_that_is_no_buffer_is_a_mistake() -> None:
    with pytest.raises(
        UserError,
        match=r"buffers: 'norm.\*' is no float buffer of the model \(these are: 1.running_mean, 1",
    ):
        world(model=normed, buffers=["norm.*"]).model()


@seeded(0)
def test_buffers_that_do_not_travel_keep_their_first_values() -> None:
    tried = world(model=normed, buffers=())
    (done,) = coterie.run("fedavg", tried, rounds=1, workers=1)
    module = tried.model()
    first = {name: value.clone() for name, value in module.named_buffers()}
    Layout(module).load(module, done.assignment.models[0])
    assert all(torch.equal(value, first[name]) for name, value in module.named_buffers())
    assert done.assignment.models.shape[1] == Layout(normed()).trainable


def test_the_setting_of_a_scenario_is_recorded_and_exported(tmp_path: Path) -> None:
    from coterie.data.scenario import SCENARIOS
    from coterie.runs.experiment import make

    tried = replace(SCENARIOS["digits/iid"], model="hcct-cnn", clients=3, samples=40)
    assert "buffers" not in (nets.described(tried.build(0).model) or {})
    few = replace(tried, buffers=())
    assert nets.described(few.build(0).model) == {
        **(nets.described(tried.build(0).model) or {}),
        "buffers": [],
    }
    spec = {
        "scenario": {"name": "synthetic/iid", "clients": 3, "buffers": []},
        "methods": ["fedavg"],
        "rounds": 1,
    }
    (one,) = coterie.begin(make(spec), tmp_path / "run")
    list(one.rounds(workers=1))
    assert one.record.description()["world"]["model"]["buffers"] == []
    coterie.save(tmp_path / "run", tmp_path / "models")
    assert coterie.load(tmp_path / "models", 0)
