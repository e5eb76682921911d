"""Random numbers of the user's own code: of torch, NumPy and Python, the same for any workers, widths, resumes and engines."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.core import Holdout, Task, Training
from coterie.data.batches import Items
from coterie.data.objective import Metric, Objective, cross_entropy
from coterie.data.scenario import OwnWorld
from coterie.data.world import ClientData, Split, World
from coterie.engines.flower.client import client_app
from coterie.methods import FedAvg, KNNPer
from coterie.randomness import seeded
from coterie.settings import UserError
from coterie.training.trial import trial
from flowered import Here, a_run, over_flower, strategy_of
from scripted import Scripted, everyone, outcome, play
from small import CLASSES, FEATURES, client, linear, mlp, world

SOURCES: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002
    "python": random.random,
}


class Drawing:
    """A data set whose items have noise, of the global generator of ``source``."""

    def __init__(self, split: Split, source: str) -> None:
        self.split, self.source = split, source

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.split.inputs[at] + SOURCES[self.source](), self.split.targets[at]


def with_items(tried: World, make: Callable[[Split], Any], collate: Any = None) -> World:
    """Clients whose splits are data sets that ``make`` makes of them."""

    def wrapped(split: Split) -> Split:
        return Split(Items(make(split), collate), torch.arange(len(split)))

    clients = {}
    for c, data in tried.clients.items():
        clients[c] = ClientData(
            train=wrapped(data.train), validation=wrapped(data.validation), test=wrapped(data.test)
        )
    return replace(tried, clients=clients)


class Noisy(nn.Module):
    """A net that draws in training and in tests, and for its first parameters."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.layer, self.source = nn.Linear(FEATURES, CLASSES), source
        with torch.no_grad():
            self.layer.weight.mul_(1 + SOURCES[source]())

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x + SOURCES[self.source]())
        return outputs


def drawing_world(where: str, source: str, ids: tuple[int, ...] = (2, 3, 7, 11)) -> World:
    """Clients of which one part of the code draws."""
    made = world(ids, model=linear, training=Training(lr=0.1, batch=8))
    if where == "data set":
        return with_items(made, lambda split: Drawing(split, source))
    if where == "collate":

        def collate(rows: list[Any]) -> tuple[Tensor, Tensor]:
            return torch.stack([x for x, _ in rows]) * (1 + SOURCES[source]()), torch.stack(
                [y for _, y in rows]
            )

        return with_items(
            made, lambda split: list(zip(split.inputs, split.targets, strict=True)), collate
        )
    if where == "model":
        return replace(made, model=lambda: Noisy(source))
    if where == "loss":

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(outputs * (1 + SOURCES[source]()), targets)

        return replace(made, objective=Objective(loss=loss))
    if where == "metric":
        drawn = Metric(lambda outputs, targets: SOURCES[source](), share=False)
        part = Metric(
            lambda outputs, targets: torch.full((len(targets),), SOURCES[source]()), whole=False
        )
        return replace(
            made,
            objective=Objective(
                metrics={"accuracy": coterie.METRICS["accuracy"], "drawn": drawn, "part": part}
            ),
        )
    return replace(made, augment=lambda x, gen: x + SOURCES[source]())


PLACES = ("data set", "collate", "model", "loss", "metric", "augmentation")


PLACES_AND_SOURCES = [
    *((where, "numpy") for where in PLACES),
    *(("model", source) for source in SOURCES if source != "numpy"),
]
"""Every place, and every generator at one of them."""


def global_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize(("where", "source"), PLACES_AND_SOURCES)
@seeded(0)
def test_numbers_do_not_depend_on_generators_workers_or_interruptions(
    where: str, source: str
) -> None:
    tried, before = drawing_world(where, source), global_states()
    done = play(FedAvg(), tried, 3)
    assert global_states() == before
    with seeded(5):  # another state of the caller's generators
        again = play(FedAvg(), tried, 3, workers=2)
    assert outcome(again) == outcome(done)
    resumed = play(FedAvg(), tried, 3, start=done[1].position)
    assert outcome(resumed) == outcome(done)[2:]


@pytest.mark.parametrize(("where", "source"), PLACES_AND_SOURCES)
@seeded(0)
def test_silence_of_others_changes_no_number(where: str, source: str) -> None:
    method = [
        Scripted(everyone(Task(offered=(0, 1), choose=1, holdout=Holdout(report_losses=True))))
        for _ in range(2)
    ]
    whole = play(method[0], drawing_world(where, source))
    few = play(method[1], drawing_world(where, source, ids=(3, 11)))
    for c in (3, 11):
        one, other = method[0].seen[0], method[1].seen[0]
        assert torch.equal(one.updates[one.clients.index(c)], other.updates[other.clients.index(c)])  # type: ignore[index]
        assert np.array_equal(one.held_out_losses[c], other.held_out_losses[c])  # type: ignore[index]
        assert whole[0].scores[c] == few[0].scores[c]  # type: ignore[index]


@pytest.mark.parametrize(
    ("where", "source"),
    [pair for pair in PLACES_AND_SOURCES if pair[0] not in ("data set", "collate")],
)
@seeded(0)
def test_a_block_of_clients_draws_as_each_alone(where: str, source: str) -> None:
    tried = drawing_world(where, source)
    alone = play(FedAvg(), tried, 2, width=1)
    together = play(FedAvg(), tried, 2, width=4)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-5, atol=1e-6
        )
        for c, scores in other.scores.items():  # type: ignore[union-attr]
            assert one.scores[c] == pytest.approx(scores, rel=1e-5)  # type: ignore[index]


@pytest.mark.parametrize("where", PLACES)
@seeded(0)
def test_flower_draws_the_same_numbers(where: str) -> None:
    tried = drawing_world(where, "numpy")
    done = play(FedAvg(), tried, 2)
    with a_run():
        for one, other in zip(over_flower(FedAvg(), tried, 2), done, strict=True):
            torch.testing.assert_close(
                one.assignment.models, other.assignment.models, rtol=1e-6, atol=1e-7
            )
            for c, scores in other.scores.items():  # type: ignore[union-attr]
                shown = {name: scores[name] for name in one.scores[c]}  # type: ignore[index]
                assert one.scores[c] == pytest.approx(shown, rel=1e-5)  # type: ignore[index]


def test_torchs_numbers_are_those_of_a_scope_of_torch_alone() -> None:
    """What a model with dropout draws must not change with the generators beside torch's."""
    with seeded(3, own_code=False):
        alone = torch.rand(3)
    with seeded(3):
        assert torch.equal(torch.rand(3), alone)


@pytest.mark.parametrize("source", SOURCES)
@seeded(0)
def test_neighbours_of_drawing_data_sets(source: str) -> None:
    tried, method = (
        replace(
            drawing_world("data set", source),
            model=lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES)),
        ),
        KNNPer(),
    )
    done = play(method, tried, 2)
    with seeded(5):
        assert outcome(play(method, tried, 2, workers=2)) == outcome(done)


def test_a_function_that_makes_a_world_draws_the_same_data_each_time() -> None:
    def made(seed: int) -> World:
        x = np.random.rand(4, 30, 3) + random.random() + float(torch.rand(()))  # noqa: NPY002
        clients = [(part.astype("f"), np.random.randint(0, 2, 30)) for part in x]  # noqa: NPY002
        return coterie.from_lists(clients, model=lambda: nn.Linear(3, 2), seed=seed)

    before = global_states()
    first, again, other = (OwnWorld(made=made).build(seed) for seed in (0, 0, 1))
    assert global_states() == before
    x, y, z = (one.clients[2].train.inputs for one in (first, again, other))
    assert torch.equal(x, y)
    assert not torch.equal(x, z)


@seeded(0)
def test_a_nodes_data_are_the_same_each_time_and_others_at_another_node() -> None:
    found: list[tuple[int, float]] = []

    def data(context: Any) -> ClientData:
        place = int(context.node_config["partition-id"])
        found.append((place, sum(draw() for draw in SOURCES.values())))
        return client(place)

    tried = world((0, 1))
    app = client_app(model=mlp, data=data)
    before = global_states()
    with a_run():
        list(strategy_of(FedAvg(), tried).rounds(Here(app, 2), 2))
    assert global_states() == before
    assert len(found) > 2  # another node's message came between
    assert len(set(found)) == 2


# -- generators of its own
# ------------------------------------------------------------------------------------------------


class WithGenerator(Drawing):
    def __init__(self, split: Split, generator: Any) -> None:
        super().__init__(split, "numpy")
        self.generator = generator

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        noise = (
            self.generator.random()
            if hasattr(self.generator, "random")
            else float(torch.rand((), generator=self.generator))
        )
        return self.split.inputs[at] + noise, self.split.targets[at]


class Unused(WithGenerator):
    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.split.inputs[at], self.split.targets[at]


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "generator",
    [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()],
    ids=lambda g: type(g).__name__,
)
def test_a_data_set_that_draws_from_its_own_generator_is_refused(generator: Any) -> None:
    with pytest.raises(
        UserError, match=r"client 2: the data set draws from .* generator, whose numbers"
    ):
        trial(with_items(world(model=linear), lambda split: WithGenerator(split, generator)))
    trial(with_items(world(model=linear), lambda split: Unused(split, generator)))


def test_an_augmentation_that_draws_from_a_global_generator_object_is_refused() -> None:
    with pytest.raises(
        UserError, match="the augmentation draws from a random generator of its own, RNG"
    ):
        trial(world(augment=lambda x, gen: x + RNG.random()))
    with pytest.raises(UserError, match="the augmentation fails"):
        trial(world(augment=lambda x, gen: x.nothing))
