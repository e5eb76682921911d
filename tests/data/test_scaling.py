"""Standardization by constants that all clients share: by the definition, and only from training data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import from_lists
from coterie.data.scaling import standardized
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.data.world import ClientData, Split, World
from coterie.settings import SettingError, UserError


def lists(shape: tuple[int, ...] = (4,)) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three clients of different sizes and ranges."""
    rng = np.random.default_rng(0)
    return [
        ((rng.random((size, *shape)) * 9 + 50 * size).astype(np.float32), rng.integers(0, 2, size))
        for size in (20, 30, 50)
    ]


def examples(world: World, part: str) -> np.ndarray:
    splits = [getattr(data, part) for data in world.clients.values()]
    return np.concatenate([split.inputs[split.index].double().numpy() for split in splits])


@pytest.mark.parametrize(("shape", "axes"), [((4,), (0,)), ((3, 5, 6), (0, 2, 3))])
def test_pooled_constants_are_those_of_all_training_examples(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    plain, scaled = from_lists(lists(shape)), from_lists(lists(shape), standardize="pooled")
    train = examples(plain, "train")
    means, deviations = train.mean(axes), train.std(axes)
    assert scaled.about["means"] == pytest.approx(means.tolist())
    assert scaled.about["deviations"] == pytest.approx(deviations.tolist())
    wide = (1, -1) + (1,) * (len(shape) - 1)
    for part in ("train", "validation", "test"):
        wanted = (examples(plain, part) - means.reshape(wide)) / deviations.reshape(wide)
        np.testing.assert_allclose(examples(scaled, part), wanted, atol=1e-5)
    assert np.abs(examples(scaled, "train").mean(axes)).max() < 1e-6
    assert scaled.clients[0].train.inputs.dtype == torch.float32


def test_splits_of_one_pool_still_share_it() -> None:
    data = from_lists(lists(), standardize="pooled").clients[1]
    assert data.train.inputs is data.validation.inputs is data.test.inputs


def test_a_feature_that_never_changes_becomes_zero() -> None:
    x = np.ones((20, 2), np.float32) * 7
    x[:, 1] = range(20)
    world = from_lists([(x, np.arange(20) % 2)], standardize="pooled")
    assert world.about["deviations"][0] == 1.0
    assert not world.clients[0].train.inputs[:, 0].any()


@pytest.mark.parametrize(
    ("means", "deviations"),
    [([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 8.0]), ([5.0], [2.0]), ([5.0], [1.0, 2, 3, 4])],
)
def test_given_constants(means: Sequence[float], deviations: Sequence[float]) -> None:
    plain, scaled = from_lists(lists()), from_lists(lists(), standardize=(means, deviations))
    np.testing.assert_allclose(
        examples(scaled, "test"), (examples(plain, "test") - means) / deviations, rtol=1e-6
    )
    assert scaled.about["means"] == list(np.broadcast_to(means, 4))
    assert scaled.about["deviations"] == list(np.broadcast_to(deviations, 4))


def test_no_standardization_changes_nothing() -> None:
    world = from_lists(lists())
    assert standardized(world) is world
    assert world.about == {}


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("pool", "standardize must be none, pooled, or the means and the deviations, got 'pool'"),
        (([1.0, 2.0], [1.0]), "means must be one finite number, or one per feature, 4, got 2"),
        (([1.0], [np.inf]), "deviations must be one finite number"),
        (([1.0], [0.0]), "deviations must be > 0, got 0"),
    ],
    ids=str,
)
def test_wrong_constants_are_refused(how: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_lists(lists(), standardize=how)


@pytest.mark.parametrize(
    "changes",
    [{}, {"shift": "rotation"}, {"drift": "still", "renew": True, "shift": "label-swap"}],
    ids=str,
)
def test_every_data_set_can_be_standardized(changes: dict[str, Any]) -> None:
    plain = Scenario(dataset="digits", clients=4, groups=2, **changes)
    world, scaled = plain.build(0), replace(plain, standardize="pooled").build(0)
    train = examples(world, "train")
    means, deviations = train.mean((0, 2, 3), keepdims=True), train.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(examples(scaled, "train"), (train - means) / deviations, atol=1e-5)
    assert scaled.truth == world.truth
    assert len(scaled.steps) == len(world.steps)
    for step, before in zip(scaled.steps, world.steps, strict=True):
        for client, data in step.items():
            part, own = data.train, before[client].train
            wanted = (own.inputs[own.index].numpy() - means) / deviations
            np.testing.assert_allclose(part.inputs[part.index].numpy(), wanted, atol=1e-5)
            assert torch.equal(part.targets, own.targets)


def test_pixels_count_as_numbers_from_0_to_1() -> None:
    world = from_lists(lists((3, 5, 6)))
    pixels = {
        c: replace_inputs(d, lambda x: (x / x.max() * 255).to(torch.uint8))
        for c, d in world.clients.items()
    }
    floats = {c: replace_inputs(d, lambda x: x / 255) for c, d in pixels.items()}
    one, other = (
        standardized(replace(world, clients=clients), "pooled") for clients in (pixels, floats)
    )
    assert one.about["means"] == pytest.approx(other.about["means"])
    np.testing.assert_allclose(examples(one, "train"), examples(other, "train"), atol=1e-4)


def replace_inputs(data: ClientData, change: Callable[[torch.Tensor], torch.Tensor]) -> ClientData:
    inputs = change(data.train.inputs)
    parts = {name: getattr(data, name) for name in ("train", "validation", "test")}
    return replace(
        data, **{name: Split(inputs, part.index, part.targets) for name, part in parts.items()}
    )


def test_tokens_are_not_standardized() -> None:
    words = [(np.arange(40).reshape(10, 4), np.arange(10) % 2)]
    with pytest.raises(
        UserError, match="standardize needs features or images, and the inputs are tokens"
    ):
        from_lists(words, model=lambda: torch.nn.EmbeddingBag(40, 2), standardize="pooled")


@pytest.mark.parametrize("how", ["shared", None, 3, (1.0,), ("a", "b"), (1.0, 2.0, 3.0)], ids=str)
def test_what_is_no_standardization(how: Any) -> None:
    with pytest.raises(
        SettingError, match=r"standardize must be none, pooled, or|means must be numbers, got 'a'"
    ):
        from_lists(lists(), standardize=how)


def test_inputs_in_several_parts_are_not_standardized() -> None:
    parts = [({"a": x, "b": x}, y) for x, y in lists()]
    with pytest.raises(
        UserError, match="standardize needs one tensor of features or images per client"
    ):
        from_lists(parts, model=lambda: torch.nn.Linear(3, 2), standardize="pooled")


def test_as_settings_of_a_scenario(tmp_path: Path) -> None:
    for number, (x, y) in enumerate(lists()):
        np.savez(tmp_path / f"{number}.npz", x=x, y=y)
    scenario = SCENARIOS["folder/clients"]
    plain, pooled = (
        scenario.build(0, tmp_path),
        replace(scenario, standardize="pooled").build(0, tmp_path),
    )
    assert pooled.about["means"] == pytest.approx(examples(plain, "train").mean(0).tolist())
    given = replace(scenario, standardize="given", means=(2000.0,), deviations=(10.0,)).build(
        0, tmp_path
    )
    np.testing.assert_allclose(
        examples(given, "train"), (examples(plain, "train") - 2000) / 10, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dataset": "folder", "partition": "clients", "means": [1.0]}, "go together with standardize = given"),
        ({"dataset": "folder", "partition": "clients", "standardize": "given"}, "means and deviations go together"),
        ({"deviations": [0.0]}, "Scenario.deviations must be > 0, got 0"),
        ({"standardize": "shared"}, "Scenario.standardize must be one of none, pooled, given, got 'shared'"),
    ],
    ids=range(4),
)  # fmt: skip
def test_settings_that_do_not_go_together(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        Scenario(**settings)
