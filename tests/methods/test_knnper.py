"""kNN-Per: its definition by hand, the choice of λ, its limits, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import training
from coterie.core import Assignment, Client, Neighbours, Round, Training
from coterie.data.objective import MULTILABEL, Objective
from coterie.data.world import ClientData, Split, World, whole
from coterie.methods import FedAvg, KNNPer
from coterie.randomness import Purpose, generator, seeded
from coterie.records.codec import decode, encode
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.settings import SettingError, UserError
from coterie.training import neighbours as near
from coterie.training.learner import Learner
from scripted import outcome, play
from small import CLASSES, FEATURES, linear, mlp
from small import world as small_world

IDS, SIZES = (2, 3, 7, 11), (20, 9, 31, 14)
GRID = tuple(i / 10 for i in range(11))


def tried_world(**more: Any) -> World:
    """Clients that agree on what the classes are, but not on their names; the last one has no classes to learn."""
    tried = small_world(
        IDS, **{"sizes": SIZES, "training": Training(lr=0.3, batch=8, epochs=3), **more}
    )

    def named(data: ClientData, shift: int) -> ClientData:
        splits = {part: getattr(data, part) for part in ("train", "validation", "test")}
        found = {
            part: whole(s.inputs, (s.inputs[:, :CLASSES].argmax(1) + shift) % CLASSES)
            for part, s in splits.items()
        }
        return replace(data, **found)

    renamed = {c: named(tried.clients[c], shift) for shift, c in enumerate(IDS[:-1])}
    return replace(tried, clients={**tried.clients, **renamed})


def without_validation(tried: World) -> World:
    empty = torch.arange(0)
    return replace(
        tried,
        clients={c: replace(d, validation=d.train.at(empty)) for c, d in tried.clients.items()},
    )


def seen(net: nn.Module, split: Split) -> tuple[Tensor, Tensor, Tensor]:
    """Features, model's probabilities and classes; ``net`` is ``small.mlp``."""
    assert isinstance(net, nn.Sequential)
    with torch.no_grad():
        features = net[:-1](split.inputs[split.index])
        return features, net[-1](features).softmax(-1), split.targets


def by_hand(
    net: nn.Module, train: Split, asked: Split, k: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """p_knn and p_model of each example, and its class: one distance after the other."""
    known, _, labels = seen(net, train)
    features, model, targets = seen(net, asked)
    found = torch.zeros(len(features), CLASSES, dtype=torch.float64)
    for i, x in enumerate(features):
        distances = [float((x - one).double().norm()) for one in known]
        for j in sorted(range(len(known)), key=lambda j: distances[j])[:k]:
            found[i, labels[j]] += np.exp(-distances[j] / scale)
    return found / found.sum(1, keepdim=True), model.double(), targets


def losses(p_knn: Tensor, p_model: Tensor, targets: Tensor, weight: float) -> float:
    mixed = (weight * p_knn + (1 - weight) * p_model).gather(1, targets[:, None])
    return float(-mixed.clamp(min=np.finfo(np.float64).tiny).log().mean())


def halves(data: ClientData, share: float, client: Client) -> tuple[Split, Split]:
    """Training and validation examples as kNN-Per takes them, of a client without validation examples."""
    count = max(round(share * len(data.train)), 1)
    order = torch.randperm(len(data.train), generator=generator(0, Purpose.HOLDOUT, client))
    return data.train.at(order[count:].sort().values), data.train.at(order[:count].sort().values)


def scores(done: Round) -> Mapping[Client, Mapping[str, float]]:
    assert done.scores is not None
    return done.scores


# -- the definition
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [KNNPer(), KNNPer(neighbours=1, scale=0.2), KNNPer(neighbours=50, scale=3.0)], ids=str
)
@pytest.mark.parametrize("held", [True, False])
@seeded(0)
def test_it_is_its_definition(method: KNNPer, held: bool) -> None:
    """With validation examples of their own, and with held-out ones; with fewer training examples than neighbours."""
    tried = tried_world() if held else without_validation(tried_world())
    done = play(method, tried, 4)[-1]
    taken = set()
    for c, data in tried.clients.items():
        train, validation = (data.train, data.validation) if held else halves(data, 0.2, c)
        served = done.model(c)
        assert isinstance(served, training.WithNeighbours)
        net = tried.model()
        coterie.Layout(net).load(net, done.assignment.models[0])
        chances = by_hand(net, train, validation, method.neighbours, method.scale)
        best = min(GRID, key=lambda weight: losses(*chances, weight))
        assert served.weight == best
        p_knn, p_model, targets = by_hand(net, train, data.test, method.neighbours, method.scale)
        mixed = best * p_knn + (1 - best) * p_model
        with torch.no_grad():
            found = served(data.test.inputs[data.test.index]).softmax(-1)
        torch.testing.assert_close(found.double(), mixed, rtol=1e-4, atol=1e-6)
        assert scores(done)[c]["accuracy"] == pytest.approx(
            float((mixed.argmax(1) == targets).double().mean())
        )
        if best < 1:
            assert scores(done)[c]["loss"] == pytest.approx(
                losses(p_knn, p_model, targets, best), rel=1e-4
            )
        taken.add(best)
    assert len(taken) > 1  # clients differ in what they choose


@seeded(0)
def test_validation_examples_that_were_held_out_are_trained_by_nobody() -> None:
    tried = without_validation(tried_world())
    kept = {c: replace(d, train=halves(d, 0.2, c)[0]) for c, d in tried.clients.items()}
    ours, theirs = (
        play(KNNPer(), tried, 2)[-1],
        play(FedAvg(weighting="uniform"), replace(tried, clients=kept), 2)[-1],
    )
    uniform = play(KNNPer(weighting="uniform"), tried, 2)[-1]
    torch.testing.assert_close(uniform.assignment.models, theirs.assignment.models)
    assert not torch.allclose(
        ours.assignment.models, play(FedAvg(), tried, 2)[-1].assignment.models
    )


def test_without_neighbours_it_is_fedavg() -> None:
    for tried in (tried_world(), without_validation(tried_world())):
        ours, theirs = (
            play(KNNPer(weight=0.0, fraction=0.5), tried, 3),
            play(FedAvg(fraction=0.5), tried, 3),
        )
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.assignment.models, other.assignment.models)
            assert one.scores == other.scores
            assert one.assignment.neighbours is None


def test_the_shared_model_and_the_bytes_are_those_of_fedavg() -> None:
    ours, theirs = play(KNNPer(), tried_world(), 3), play(FedAvg(), tried_world(), 3)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.assignment.models, other.assignment.models)
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


@seeded(0)
def test_with_neighbours_alone_it_is_nearest_neighbours() -> None:
    tried = tried_world()
    done = play(KNNPer(neighbours=1, weight=1.0), tried, 1)[-1]
    net = tried.model()
    coterie.Layout(net).load(net, done.assignment.models[0])
    for c, data in tried.clients.items():
        known, _, labels = seen(net, data.train)
        features, _, targets = seen(net, data.test)
        nearest = labels[(features[:, None] - known).norm(dim=2).argmin(1)]
        assert scores(done)[c]["accuracy"] == pytest.approx(
            float((nearest == targets).double().mean())
        )
        assert np.isfinite(scores(done)[c]["loss"])


@pytest.mark.parametrize("method", [KNNPer(), KNNPer(weight=0.7)], ids=str)
@seeded(0)
def test_workers_and_stopping_change_nothing(method: KNNPer) -> None:
    tried = without_validation(tried_world())
    alone = play(method, tried, 4, workers=1)
    assert outcome(play(method, tried, 4, workers=3)) == outcome(alone)
    assert outcome(play(method, tried, 4, start=alone[1].position)) == outcome(alone[2:])


def test_clients_that_were_never_asked_are_served_by_their_neighbours_too() -> None:
    """The paper's clients that take no part in training."""
    ours, theirs = (
        play(method, tried_world(), 1)[-1]
        for method in (KNNPer(weight=0.5, fraction=0.25), FedAvg(fraction=0.25))
    )
    assert torch.equal(ours.assignment.models, theirs.assignment.models)
    assert ours.asked == 1
    for c in IDS:
        assert abs(scores(ours)[c]["loss"] - scores(theirs)[c]["loss"]) > 1e-3


@seeded(0)
def test_clients_with_the_same_test_examples_are_tested_one_by_one() -> None:
    tried = tried_world()
    test = tried.clients[2].test
    tried = replace(tried, clients={c: replace(d, test=test) for c, d in tried.clients.items()})
    done = play(KNNPer(weight=0.5), tried, 1)[-1]
    for c in IDS:
        with torch.no_grad():
            loss = nn.functional.cross_entropy(done.model(c)(test.inputs), test.targets)
        assert scores(done)[c]["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert len({score["loss"] for score in scores(done).values()}) == len(IDS)


@seeded(0)
def test_inputs_are_the_features_of_a_single_layer() -> None:
    tried = tried_world(model=linear)
    done = play(KNNPer(neighbours=2, weight=1.0), tried, 1)[-1]
    for c, data in tried.clients.items():
        served = done.model(c)
        assert torch.equal(served.features, data.train.inputs[data.train.index])


@seeded(0)
def test_a_model_that_is_no_number_has_no_score() -> None:
    tried = tried_world()
    layout = coterie.Layout(mlp())
    for weights in (GRID, (1.0,), (0.5,)):
        how = Neighbours(layer="2", k=3, scale=1.0, weights=weights)
        row = torch.full((layout.size,), torch.nan)
        sums = training.sums_with_neighbours(
            Learner(mlp(), tried.objective), row, tried.clients[7], how
        )
        assert np.isnan(tried.objective.scores(sums)["loss"])
        assert np.isnan(tried.objective.scores(sums)["accuracy"])


# -- sequences, time and memory
# -------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A class for each place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x[..., None]).tanh())


@seeded(0)
def test_of_sequences_every_place_that_counts_is_an_example() -> None:
    tried = tried_world()
    gen = generator(5)

    def tagged(split: Split) -> Split:
        targets = torch.randint(0, CLASSES, (len(split), FEATURES), generator=gen)
        targets[:, -1] = -100
        return whole(split.inputs[split.index], targets)

    clients = {
        c: replace(d, train=tagged(d.train), validation=tagged(d.validation), test=tagged(d.test))
        for c, d in tried.clients.items()
    }
    tried = replace(tried, clients=clients, model=Tagger)
    done = play(KNNPer(neighbours=3), tried, 2)[-1]
    for c, size in zip(IDS, SIZES, strict=True):
        served = done.model(c)
        assert served.features.shape == (size * (FEATURES - 1), 4)
        data = tried.clients[c].test
        with torch.no_grad():
            loss = nn.functional.cross_entropy(
                served(data.inputs).flatten(0, 1), data.targets.flatten()
            )
        assert scores(done)[c]["loss"] == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("known", [1, 7, 8, 100])
@seeded(0)
def test_blocks_find_the_same_neighbours_and_bound_what_is_compared(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = near.NeighbourMemory(torch.randn(50, 6), torch.randint(0, 4, (50,)), 8, 0.7)
    asked = torch.randn(23, 6)
    at_once = memory.probabilities(asked, 4)
    sizes, compare = [], torch.cdist
    monkeypatch.setattr(near, "REMEMBERED_BLOCK", known)
    monkeypatch.setattr(near, "PREDICTED_BLOCK", 5)
    monkeypatch.setattr(
        torch, "cdist", lambda a, b, **how: sizes.append((len(a), len(b))) or compare(a, b, **how)
    )
    torch.testing.assert_close(memory.probabilities(asked, 4), at_once)
    assert max(a for a, _ in sizes) <= 5
    assert max(b for _, b in sizes) <= known
    assert sum(a * b for a, b in sizes) == 23 * 50  # every pair once


@seeded(0)
def test_the_features_of_a_client_are_computed_once_for_each_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, counts, plain = tried_world(), [0], Learner.outputs

    def counted(self: Learner, x: Tensor) -> Any:
        counts[0] += len(x)
        return plain(self, x)

    data, model = tried.clients[7], coterie.Layout(mlp()).row(mlp())
    monkeypatch.setattr(Learner, "outputs", counted)
    how = Neighbours(layer="2", k=3, scale=1.0, weights=GRID)
    training.sums_with_neighbours(Learner(mlp(), tried.objective), model, data, how)
    assert counts == [len(data.train) + len(data.validation) + len(data.test)]


# -- the choice of λ
# ------------------------------------------------------------------------------------------------------


def test_of_equal_weights_the_first_is_chosen() -> None:
    same = np.array([0.3, 0.6])
    assert near.chosen(same, same, (0.2, 0.5)) == 0.2
    assert near.chosen(np.array([1.0, 1.0]), same, GRID) == 1.0
    assert near.chosen(np.array([1.0, 0.0]), np.array([0.1, 0.9]), GRID) not in (0.0, 1.0)


def test_without_examples_or_numbers_the_model_serves_alone() -> None:
    assert near.chosen(np.zeros(0), np.zeros(0), (0.5, 1.0)) == 0.0
    assert near.chosen(np.array([np.nan]), np.array([0.5]), (0.5, 1.0)) == 0.0
    tried = without_validation(tried_world(sizes=(1, 1, 1, 1)))
    ours, theirs = play(KNNPer(), tried, 2)[-1], play(FedAvg(), tried, 2)[-1]
    for c in IDS:
        assert scores(ours)[c]["loss"] == pytest.approx(scores(theirs)[c]["loss"], rel=1e-5)


# -- what is refused, and what is stored
# ------------------------------------------------------------------------------------


def test_it_needs_class_labels_and_a_fully_connected_last_layer() -> None:
    normed_last = lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.LayerNorm(CLASSES))  # noqa: E731
    with pytest.raises(
        SettingError,
        match=r"^knn-per needs a model whose last layer is fully connected .* and '1' is not$",
    ):
        play(KNNPer(), tried_world(model=normed_last), 1)
    with pytest.raises(
        SettingError,
        match=r"^knn-per needs clients that predict a class, and these predict several labels",
    ):
        play(KNNPer(), tried_world(objective=MULTILABEL), 1)


def test_targets_that_are_no_classes_are_told_at_the_first_test() -> None:
    tried = tried_world(
        objective=Objective(loss=lambda outputs, targets: (outputs[:, 0] - targets).square().mean())
    )
    floats = {
        c: replace(d, train=whole(d.train.inputs, d.train.targets.float()))
        for c, d in tried.clients.items()
    }
    with pytest.raises(
        coterie.engines.workers.EngineError,
        match="features need a class label for each input",
    ):
        play(KNNPer(), replace(tried, clients=floats), 1)


@pytest.mark.parametrize(
    "wrong",
    [{"neighbours": 0}, {"scale": 0.0}, {"weight": 1.5}, {"holdout": 0.6}, {"holdout": 0.0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"^KNNPer.{next(iter(wrong))} must be"):
        KNNPer(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"k": 0}, {"scale": 0.0}, {"weights": ()}, {"weights": (2.0,)}, {"holdout": 1.0}],
    ids=str,
)
def test_neighbours_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^Neighbours"):
        Neighbours(**{"layer": "2", "k": 3, "scale": 1.0, "weights": (0.5,), **wrong})


def test_an_ensemble_has_no_neighbours() -> None:
    how = Neighbours(layer="2", k=3, scale=1.0, weights=(0.5,))
    with pytest.raises(ValueError, match="served by one model each"):
        Assignment(
            models=torch.zeros(1, 2), row={0: 0}, groups=((0,),), ensemble=True, neighbours=how
        )


def test_neighbours_can_be_stored() -> None:
    how = Neighbours(layer="2", k=3, scale=1.0, weights=GRID, holdout=0.1)
    stored = json.loads(json.dumps(encode(how, lambda data: "")))
    assert dataclasses.asdict(decode(stored, lambda name: b"")) == dataclasses.asdict(how)


@pytest.mark.slow
def test_an_export_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    how = {"scenario": {"name": "digits/iid", "clients": 4}, "rounds": 1, "workers": 1}
    for name, weight in (("run", None), ("alone", 0.0)):
        settings = {"name": "knn-per", **({} if weight is None else {"weight": weight})}
        (run,) = begin(make({**how, "methods": [settings]}), tmp_path / name)
        for _ in run.rounds():
            pass
    with pytest.raises(
        UserError, match=r"^knn-per also serves each client by its own training examples"
    ) as told:
        coterie.save(tmp_path / "run", tmp_path / "to")
    assert "\n" not in str(told.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "run"]
    coterie.save(tmp_path / "alone", tmp_path / "to")  # FedAvg's model
    assert (tmp_path / "to" / "models.json").is_file()
