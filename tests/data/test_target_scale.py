"""Standardized targets: what the loss takes, and that nobody else sees them."""

from __future__ import annotations

import copy
import json
import pickle
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.cli import main
from coterie.core import Training
from coterie.data.objective import REGRESSION, squared_error
from coterie.data.target_scale import TargetScale
from coterie.randomness import seeded
from coterie.settings import SettingError, UserError

TRAINING = Training(lr=0.05, epochs=2, batch=8)


def table(
    mean: float = 120.0, scale: float = 9.0, outputs: int = 1, whole: bool = False
) -> dict[str, Any]:
    """Four sites of 40 rows: a number to predict, or several of other units, that depends on two features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 2))
    columns: dict[str, Any] = {"site": np.repeat(list("ABCD"), 40), "a": x[:, 0], "b": x[:, 1]}
    for i in range(outputs):
        y = mean * (1 + 10 * i) + scale * (1 + 99 * i) * (
            x[:, 0] - x[:, 1] + 0.3 * rng.normal(size=160)
        )
        columns[f"y{i}"] = y.round().astype(int) if whole else y
    return columns


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def made(columns: dict[str, Any], **settings: Any) -> coterie.World:
    targets = [name for name in columns if name.startswith("y")]
    return coterie.from_frame(
        columns, "site", targets, **{"training": TRAINING, "model": "mlp", **settings}
    )


def last_of(world: coterie.World, rounds: int = 6, method: str = "fedavg") -> coterie.Round:
    *_, done = coterie.run(method, world, rounds=rounds, workers=1)
    return done


def rows_of(world: coterie.World, part: str) -> np.ndarray:
    return np.concatenate(
        [getattr(data, part).batch(slice(None))[1].numpy() for data in world.clients.values()]
    )


@pytest.mark.parametrize("outputs", [1, 2])
def test_constants_are_those_of_all_training_targets(outputs: int) -> None:
    world = made(table(outputs=outputs), standardize_target="pooled")
    scale, targets = world.objective.target_scale, rows_of(world, "train").astype(float)
    assert scale
    assert scale.means == pytest.approx(targets.mean(0))
    assert scale.deviations == pytest.approx(targets.std(0))
    assert rows_of(world, "test").mean(0) == pytest.approx(
        rows_of(made(table(outputs=outputs)), "test").mean(0)
    )


def test_training_is_that_with_targets_standardized_by_hand() -> None:
    """Models are the same, the loss is in squared deviations, and metrics are in units."""
    columns = table()
    world = made(columns, model=net, standardize_target="pooled")
    scale = world.objective.target_scale
    assert scale
    by_hand = made(
        {**columns, "y0": (columns["y0"] - scale.means[0]) / scale.deviations[0]}, model=net
    )
    done, other = last_of(world), last_of(by_hand)
    torch.testing.assert_close(
        done.assignment.models, other.assignment.models, rtol=1e-3, atol=1e-4
    )
    for metric, factor in (
        ("loss", 1.0),
        ("MeanAbsoluteError", scale.deviations[0]),
        ("R2Score", 1.0),
    ):
        assert done.mean(metric) == pytest.approx((other.mean(metric) or 0) * factor, rel=1e-3)


def test_a_target_near_120_is_learned_with_the_usual_learning_rate() -> None:
    with pytest.raises(
        UserError,
        match=r"targets are around 120: standardize_target='pooled'.*, or a smaller training\.lr",
    ):
        last_of(made(table()))
    done = last_of(made(table(), standardize_target=True))
    assert (done.mean("R2Score") or 0) > 0.8


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "cfl", "fedper"])
def test_the_nets_of_clients_predict_in_units(outputs: int, method: str) -> None:
    world = made(table(outputs=outputs), standardize_target="pooled")
    done = last_of(world, method=method)
    errors = []
    for client, data in world.clients.items():
        x, y = data.test.batch(slice(None))
        model = done.model(data.name)
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            errors = [abs(one(x) - y).mean().item(), *errors]
        assert done.scores is not None
        assert errors[:3] == pytest.approx([done.scores[client]["MeanAbsoluteError"]] * 3, rel=1e-4)


def test_an_ensemble_predicts_in_units() -> None:
    world = made(table(), standardize_target="pooled")
    rows = [last_of(world, rounds).assignment.models[0] for rounds in (2, 6)]
    done = last_of(world)
    assert done.nets
    x, _ = world.clients[0].test.batch(slice(None))
    one, other, both = (done.nets(some, None, 0, None)(x) for some in (rows[:1], rows[1:], rows))
    torch.testing.assert_close(both, (one + other) / 2, rtol=1e-4, atol=1e-3)


def test_an_export_has_the_constants_and_applies_them(tmp_path: Path) -> None:
    world = made(table(), standardize_target="pooled")
    (run,) = coterie.begin(world, tmp_path / "run", "fedavg", rounds=4, workers=1).finish()
    coterie.save(run.folder, tmp_path / "models")
    document = json.loads((tmp_path / "models" / "models.json").read_text())
    scale = world.objective.target_scale
    assert scale
    assert document["target_scale"] == {
        "means": list(scale.means),
        "deviations": list(scale.deviations),
    }
    x, _ = world.clients[1].test.batch(slice(None))
    done = last_of(world, 4)
    loaded = coterie.load(tmp_path / "models", "B")
    torch.testing.assert_close(loaded(x), done.model("B")(x), rtol=1e-4, atol=1e-3)
    assert loaded(x).mean().item() == pytest.approx(120, abs=15)
    with seeded(0):
        assert list(loaded.state_dict()) == list(world.model().state_dict())


def test_commands_have_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = table()
    names = list(columns)
    rows = [
        ",".join(names),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    Path("data.csv").write_text("\n".join(rows))
    Path("e.toml").write_text(
        'rounds = 4\ndata = "data.csv"\n[[methods]]\nname = "fedavg"\n[scenario]\nname = "table/clients"\nclient = "site"\n'
        'target = "y0"\nstandardize_target = "pooled"\n[training]\nlr = 0.05\nbatch = 8\n'
    )
    assert main(["run", "e.toml", "--out", "runs", "--workers", "1"]) == 0
    assert "MeanAbsoluteError" in capsys.readouterr().out
    recorded = tomllib.loads(Path("runs/run.toml").read_text())
    assert recorded["world"]["target_scale"]["means"] == pytest.approx([120], abs=5)
    assert coterie.summary("runs")["score"]["mean"] == pytest.approx(5, abs=4.5)
    assert main(["check", "runs"]) == main(["resume", "runs"]) == 0
    base = ["run", "e.toml", "--out", "other", "--set"]
    assert main([*base, "standardize_target=given"]) == 2
    assert (
        "target_means and target_deviations go together with standardize_target = given"
        in capsys.readouterr().err
    )
    assert main([*base, "task=classification"]) == 2


def test_given_constants_newcomers_and_a_target_that_never_changes() -> None:
    given = made(table(), standardize_target=([100], [10.0])).objective.target_scale
    assert given == TargetScale((100.0,), (10.0,))
    first = made(table(), standardize_target="pooled")
    more = table(mean=500.0)
    more["site"] = np.where(more["site"] == "D", "E", more["site"])
    later = made(more, standardize_target="pooled", after=first)
    assert later.objective.target_scale == first.objective.target_scale
    same = made(
        {**table(), "y0": np.full(160, 0.1)}, standardize_target="pooled"
    ).objective.target_scale
    assert same
    assert (same.means[0], same.deviations) == (pytest.approx(0.1), (1.0,))


def test_lists_of_arrays_and_other_losses() -> None:
    columns = table()
    x, y = np.column_stack([columns["a"], columns["b"]]).astype("f"), columns["y0"].astype("f")
    clients = [(x[i::4], y[i::4]) for i in range(4)]
    world = coterie.from_lists(clients, training=TRAINING, standardize_target="pooled")
    assert (last_of(world).mean("R2Score") or 0) > 0.8
    objective = replace(
        REGRESSION,
        loss=lambda outputs, targets: nn.functional.huber_loss(outputs, targets.view_as(outputs)),
    )
    other = coterie.from_lists(
        clients, training=TRAINING, standardize_target="pooled", objective=objective
    )
    assert (last_of(other).mean("R2Score") or 0) > 0.8
    whole = [(a, b.round().astype(int)) for a, b in clients]
    ages = coterie.from_lists(
        whole, training=TRAINING, standardize_target="pooled", objective=REGRESSION
    )
    assert (last_of(ages).mean("R2Score") or 0) > 0.8


def test_losses_of_single_examples_are_those_of_standardized_targets() -> None:
    world = made(table(), standardize_target="pooled")
    scale, objective = world.objective.target_scale, world.objective
    assert scale
    rng = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(5, 1, generator=rng), torch.randn(5, 1, generator=rng) * 9 + 120
    each = objective.example_losses(outputs, targets)
    losses = getattr(each, "losses", each)
    expected = (outputs - (targets - scale.means[0]) / scale.deviations[0]).square().flatten()
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    assert float(objective.loss(outputs, targets)) == pytest.approx(
        float(expected.mean()), rel=1e-4
    )
    assert float(squared_error(outputs, targets)) > 1000


@pytest.mark.parametrize(
    ("columns", "settings", "sentence"),
    [
        (
            {"y0": ["ill", "well"] * 80},
            {"standardize_target": "pooled"},
            "needs numbers to predict .task = reg.*classes",
        ),
        (
            {},
            {"standardize_target": "mean"},
            "standardize_target must be none, pooled, or the means",
        ),
        (
            {},
            {"standardize_target": ([1.0, 2.0], [1.0])},
            "means must be one finite number, or one per target, 1, got 2",
        ),
        ({}, {"standardize_target": ([0.0], [0.0])}, "deviations must be > 0, got 0"),
        ({}, {"standardize_target": (["x"], [1.0])}, "means must be numbers"),
    ],
)
def test_mistakes_are_one_sentence(
    columns: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((SettingError, UserError), match=sentence):
        made({**table(), **columns}, **settings)


def test_wrong_constants_of_an_export_are_refused() -> None:
    from coterie.data.target_scale import sound

    assert sound({"means": [1.0], "deviations": [2.0]})
    for wrong in (
        {"means": [1.0]},
        {"means": [1.0], "deviations": [0.0]},
        {"means": ["1"], "deviations": [1.0]},
        [1.0],
    ):
        assert not sound(wrong)
    assert not sound({"means": [1.0, 2.0], "deviations": [1.0]})
