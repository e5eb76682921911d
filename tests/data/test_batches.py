"""Inputs and targets of any form: the same numbers as with plain tensors, also from data sets, dicts and files."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.core import Training
from coterie.data.batches import Items, call, joined, mapped, rows, size, tensors
from coterie.data.own import from_lists
from coterie.runs.facts import digest
from coterie.settings import UserError
from small import CLASSES, FEATURES, examples

TRAINING = Training(lr=0.1, batch=8)


def test_parts_of_nested_batches() -> None:
    batch = {"a": torch.arange(6).view(3, 2), "b": (torch.arange(3), [torch.arange(3) * 10])}
    assert (size(batch), len(tensors(batch))) == (3, 3)
    assert mapped(len, batch) == {"a": 3, "b": (3, (3,))}
    two = rows(batch, torch.tensor([2, 0]))
    assert (two["a"].tolist(), two["b"][1][0].tolist()) == ([[4, 5], [0, 1]], [20, 0])
    again = joined([rows(batch, slice(0, 1)), rows(batch, slice(1, 3))])
    assert all(
        torch.equal(one, other) for one, other in zip(tensors(again), tensors(batch), strict=True)
    )


def test_a_module_gets_dicts_by_keyword_and_tuples_by_position() -> None:
    class Product(nn.Module):
        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            return one - two

    one, two = torch.ones(2), torch.zeros(2)
    assert (
        call(Product(), {"two": two, "one": one}).tolist()
        == call(Product(), (one, two)).tolist()
        == [1, 1]
    )
    Output = namedtuple("Output", ["loss", "logits"])
    module = nn.Module()
    module.forward = lambda x: Output(None, x)  # type: ignore[method-assign, assignment]
    assert torch.equal(call(module, one), one)


class Named(nn.Linear):
    """A linear model of two named inputs, whose output is an object."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Any:  # type: ignore[override]
        return namedtuple("Output", ["logits"])(super().forward(torch.cat([left, right], 1)))


class Listed(torch.utils.data.Dataset):
    """A data set of PyTorch, which counts how often it is read."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.read = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> Any:
        self.read += 1
        return self.item(at)

    def item(self, at: int) -> Any:
        return self.x[at], int(self.y[at])


class Dicts(Listed):
    """Items as Hugging Face has them: lists of numbers, and the target among them."""

    def item(self, at: int) -> Any:
        return {
            "left": self.x[at, :2].tolist(),
            "right": self.x[at, 2:].tolist(),
            "labels": int(self.y[at]),
        }


def clients() -> list[tuple[Tensor, Tensor]]:
    splits = [examples(40, seed) for seed in range(4)]
    return [(split.inputs, split.targets) for split in splits]


def models_of(given: Any, model: Any, **more: Any) -> Tensor:
    tried = from_lists(given, model=model, training=TRAINING, **more)
    *_, last = coterie.run("fedavg", tried, rounds=2, workers=1, width=1)
    assert last.scores is not None
    assert all(0 <= score["accuracy"] <= 1 for score in last.scores.values())
    return last.assignment.models


@pytest.mark.parametrize(
    "form", ["tensors", "dict", "tuple", "data set", "dicts", "collate", "splits", "file"]
)
def test_every_form_trains_to_the_same_model(form: str, tmp_path: Path) -> None:
    def linear() -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    plain = clients()
    expected = models_of(plain, linear)
    model, more, given = (Named, {}, plain)
    match form:
        case "dict":
            given = [({"left": x[:, :2], "right": x[:, 2:]}, y) for x, y in plain]
        case "tuple":
            given = [((x[:, :2], x[:, 2:]), y) for x, y in plain]
        case "data set":
            given, model = [Listed(*pair) for pair in plain], linear
        case "dicts":
            given = [Dicts(*pair) for pair in plain]
        case "collate":

            def stacked(items):
                return (
                    torch.stack([x for x, _ in items]),
                    torch.tensor([y for _, y in items]),
                )

            given, model, more = [Listed(*pair) for pair in plain], linear, {"collate": stacked}
        case "splits":
            given, model, more = [{"train": Listed(*pair)} for pair in plain], linear, {}
        case "file":
            model = linear
            for i, (x, _) in enumerate(plain):
                np.save(tmp_path / f"{i}.npy", x.numpy())
            given = [
                (np.load(tmp_path / f"{i}.npy", mmap_mode="r"), y) for i, (_, y) in enumerate(plain)
            ]
        case _:
            model = linear
    torch.testing.assert_close(models_of(given, model, **more), expected, rtol=1e-5, atol=1e-6)


def test_items_are_read_in_workers_and_a_batch_at_a_time() -> None:
    """Two processes give the same bits as one, and an epoch reads each item once."""
    given = [Listed(*pair) for pair in clients()]
    tried = from_lists(given, model=lambda: nn.Linear(FEATURES, CLASSES), training=TRAINING)
    before = [one.read for one in given]
    (one,) = coterie.run("independent", tried, rounds=1, workers=1, eval_every=5)
    trial, test = (
        2 + 10 * 8 + 4,
        4,
    )  # two items, ten steps and the tests of the trial; the last round is tested
    assert max(now.read - was for now, was in zip(given, before, strict=True)) <= 32 + trial + test
    (two,) = coterie.run("independent", tried, rounds=1, workers=2)
    assert torch.equal(one.assignment.models, two.assignment.models)


def test_sequences_of_different_lengths_need_a_collate_function() -> None:
    class Ragged(Listed):
        def item(self, at: int) -> Any:
            return self.x[at, : 1 + at % FEATURES], int(self.y[at])

    def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
        inputs = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
        return nn.functional.pad(inputs, (0, FEATURES - inputs.shape[1])), torch.tensor(
            [y for _, y in items]
        )

    given = [Ragged(*pair) for pair in clients()]
    with pytest.raises(
        UserError,
        match=r"the items of a data set cannot be stacked: .*; pass collate, a function from a list",
    ):
        models_of(given, lambda: nn.Linear(FEATURES, CLASSES))
    assert models_of(given, lambda: nn.Linear(FEATURES, CLASSES), collate=padded).isfinite().all()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (iter([1, 2]), "a data set must have a length and items by number"),
        (Listed(torch.zeros(0, 2), torch.zeros(0)), "a data set must have at least one item"),
        ({"x": {"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, "y": np.zeros(3, int)}, "number of examples, got 3 and 4"),
        (({"a": np.array(["text"])}, np.zeros(1, int)), "inputs and targets must be numbers, got an array of <U4"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_lists([data] * 2, model=Named)


def test_an_item_without_a_target() -> None:
    class Unlabelled(Listed):
        def item(self, at: int) -> Any:
            return {"left": self.x[at]}

    with pytest.raises(
        UserError, match=r"must have its target under one of labels, label, .*; it has left"
    ):
        Items(Unlabelled(*clients()[0])).batch(torch.tensor([0]))


def test_the_digest_of_items_sees_other_data_and_not_random_augmentation() -> None:
    def world(*, change: bool = False, noise: bool = False) -> coterie.World:
        class Data(Listed):
            def item(self, at: int) -> Any:
                x = self.x[at] + (1.0 if change else 0.0) + (torch.randn(()) if noise else 0.0)
                return x, int(self.y[at])

        return from_lists(
            [Data(*pair) for pair in clients()], model=lambda: nn.Linear(FEATURES, CLASSES)
        )

    from coterie.randomness import seeded

    assert digest(world()) == digest(world()) != digest(world(change=True))
    with seeded(0):
        first = digest(world(noise=True))
    with seeded(1):
        assert digest(world(noise=True)) == first


def test_a_file_larger_than_the_limit_is_read_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.training import learner

    plain = clients()
    expected = models_of(plain, lambda: nn.Linear(FEATURES, CLASSES))
    monkeypatch.setattr(learner, "MAX_PASS_BYTES", 10)
    torch.testing.assert_close(
        models_of(plain, lambda: nn.Linear(FEATURES, CLASSES)), expected, rtol=1e-5, atol=1e-6
    )


def test_images_in_a_file_stay_bytes_until_they_are_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    y = rng.integers(0, 2, 30)
    stored = from_lists(
        [(np.load(tmp_path / "images.npy", mmap_mode="r"), y)] * 2, model="mlp", training=TRAINING
    )
    assert stored.clients[0].train.inputs.dtype == torch.uint8
    held = from_lists([(images, y)] * 2, model="mlp", training=TRAINING)
    results: list[Mapping[str, Any]] = []
    for tried in (stored, held):
        (done,) = coterie.run("fedavg", tried, rounds=1, workers=1, width=1)
        results.append({"models": done.assignment.models})
    torch.testing.assert_close(results[0]["models"], results[1]["models"], rtol=1e-5, atol=1e-6)
