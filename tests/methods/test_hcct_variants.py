"""HCCT-E's layer, HCCT-P's and FedPer's heads, and both of them at the limits that are other methods."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core import Cohort, Federation
from coterie.data.scenario import find
from coterie.methods import HCCT, HCCTE, HCCTP, FedAvg, FedPer, Independent
from coterie.methods._hcct_layers import comparable, paper_code_ratios, relative_variances
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError
from scripted import play as run
from small import CLASSES, FEATURES, mlp, normed
from small import world as small_world
from worlds import THREE, TRUTH, grouped, last, play

SIZES = (20, 9, 31, 14)


def federation_of(module: nn.Module) -> Federation:
    layout = Layout(module)
    row = layout.row(module)
    return Federation(
        clients=(0, 1), draw=lambda i: row, columns=layout.columns, tensors=layout.tensors
    )


# -- HCCT-E
# -----------------------------------------------------------------------------------------------------------

LAYERS = {"a": ((0, 3), (3, 5)), "b": ((5, 9),), "c": ((9, 12), (12, 13))}


def updates(seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(7, 13, generator=gen) + 0.7 * torch.randn(13, generator=gen)


def test_relative_variance_is_that_of_the_definition() -> None:
    rows = updates().double().numpy()
    found = relative_variances(updates(), LAYERS)
    for layer, spans in LAYERS.items():
        part = rows[:, spans[0][0] : spans[-1][1]]
        mean = part.mean(axis=0)
        expected = ((part - mean) ** 2).sum(axis=1).mean() / (mean**2).sum()
        assert found[layer] == pytest.approx(expected, rel=1e-5)


def test_relative_variance_has_no_unit() -> None:
    small, large = (relative_variances(updates() * scale, LAYERS) for scale in (1e-8, 1e4))
    assert small == pytest.approx(large, rel=1e-4)
    still = updates()
    still[:, 5:9] = 0.0
    assert relative_variances(still, LAYERS)["b"] == 0.0
    opposed = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    assert relative_variances(opposed, {"x": ((0, 1),), "y": ((1, 2),)}) == {
        "x": pytest.approx(1e12),
        "y": 0.0,
    }


def test_the_papers_code_takes_gradients_and_adds_weight_and_bias() -> None:
    g = -updates().double().numpy()
    for layer, ratio in paper_code_ratios(updates(), LAYERS).items():
        expected = sum(np.var(g[:, a:b]) / np.mean(g[:, a:b]) for a, b in LAYERS[layer])
        assert ratio == pytest.approx(expected, rel=1e-3)
    zero = paper_code_ratios(torch.zeros(3, 13), LAYERS)
    assert set(zero.values()) == {-math.inf}


@seeded(0)
def test_normalisation_and_layers_that_stay_do_not_compete() -> None:
    federation = federation_of(normed())
    assert tuple(federation.columns) == ("0", "1", "3")
    assert tuple(comparable(federation, ())) == ("0", "3")
    assert tuple(comparable(federation, ("3",))) == ("0",)
    assert tuple(comparable(federation_of(nn.BatchNorm1d(4)), ())) == ("",)  # there is no other


@pytest.mark.parametrize("how", ["robust", "paper-code"])
def test_the_layer_is_chosen_once_and_compared_from_then_on(how: str) -> None:
    world = grouped(THREE, noise=0.3, buffers=1)
    method = HCCTE(layer=how)
    first, *later = play(method, world, 4)
    shown = world.replies(replace(first.plan, need="rows"), 0, lambda e, c: False)
    assert first.plan.need == "rows"
    assert shown.updates is not None
    ratios = (relative_variances if how == "robust" else paper_code_ratios)(
        shown.updates, first.state.layers
    )
    best = max(ratios, key=lambda layer: ratios[layer])
    assert first.state.layer == best
    note = next(n for n in first.notes if n.kind == "layer")
    assert dict(note.numbers) == pytest.approx(ratios)
    assert repr(best) in note.text
    assert all(
        p.plan.need == "gram" and p.plan.columns == slice(*world.columns[best]) for p in later
    )
    assert all(n.kind != "layer" for p in later for n in p.notes)


def test_the_first_partition_sees_the_layer_alone() -> None:
    world = grouped(THREE, noise=0.0)
    first = last(HCCTE(memory=0.0), world, 1)
    signs = [[c for c in world.clients if (world.targets[c][0] > 0) == up] for up in (True, False)]
    assert first.state.layer == "first"  # one parameter: cosines are 1 or -1
    assert first.state.next == tuple(sorted(tuple(group) for group in signs if group))


def test_one_client_alone_chooses_no_layer() -> None:
    history = list(play(HCCTE(), grouped(THREE), 4, silent=lambda e, c: e < 2 and c != 8))
    assert [p.state.layer is None for p in history] == [True, True, False, False]


def test_what_was_heard_before_the_layer_was_chosen_is_not_remembered() -> None:
    # Updates of all layers are no first updates to compare those of one layer with: a newcomer's
    # would not even fit.
    world, method = grouped(THREE, noise=0.0), HCCTE()
    founders = replace(world, targets={c: t for c, t in world.targets.items() if c != 99})
    alone, *_, end = play(method, founders, 3, silent=lambda e, c: e < 1 and c != 8)
    assert alone.state.memory is None
    after = last(method, world, 2, state=method.admit(end.state, (99,)), first=3)
    assert after.state.memory is not None
    assert after.state.memory.firsts is not None
    width = len(range(*after.state.columns.indices(world.size)))
    assert after.state.memory.firsts.shape == (len(after.state.memory.began), width)


# -- HCCT-P and FedPer
# ------------------------------------------------------------------------------------------------


def test_the_last_layers_stay_and_similarity_is_of_those_that_travel() -> None:
    world = grouped(THREE)
    method = HCCTP()
    history = list(play(method, world, 3))
    assert {task.local_layers for p in history for task in p.plan.tasks.values()} == {("rest",)}
    signs = [[c for c in world.clients if (world.targets[c][0] > 0) == up] for up in (True, False)]
    assert history[-1].groups == tuple(sorted(tuple(group) for group in signs if group))
    assert torch.equal(
        history[-1].assignment.models[:, 1:], torch.zeros_like(history[-1].assignment.models[:, 1:])
    )


def outcomes(method: Any, count: int = 3, **how: Any) -> list[Any]:
    return [r.scores for r in run(method, small_world(sizes=SIZES, model=mlp), count, **how)]


def test_every_layer_personal_is_independent_training() -> None:
    for method in (HCCT(personal=2), FedPer(personal=2), HCCT(personal=2, tradeoff=math.inf)):
        assert outcomes(method) == outcomes(Independent())
        assert run(method, small_world(model=mlp))[0].bytes_up == 0


def test_no_layer_personal_is_fedavg() -> None:
    for weighting in ("data", "uniform"):
        how = {"weighting": weighting, "fraction": 0.5}
        ours, theirs = (
            run(m, small_world(sizes=SIZES), 3) for m in (FedPer(personal=0, **how), FedAvg(**how))
        )
        for one, other in zip(ours, theirs, strict=True):
            assert one.scores == other.scores
            assert torch.equal(one.assignment.models, other.assignment.models)
            assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


def test_one_group_is_fedavg_on_real_nets_with_batchnorm() -> None:
    for method in (HCCT(tradeoff=math.inf), HCCT(tradeoff=1e5), HCCTE(tradeoff=1e5)):
        ours, theirs = (
            run(m, small_world(sizes=SIZES, model=normed), 3) for m in (method, FedAvg())
        )
        assert [r.scores for r in ours] == [r.scores for r in theirs]
        assert torch.equal(ours[-1].assignment.models, theirs[-1].assignment.models)


def test_one_group_with_personal_layers_is_fedper() -> None:
    assert outcomes(HCCTP(tradeoff=math.inf)) == outcomes(FedPer())
    assert outcomes(HCCTP(tradeoff=1e5)) == outcomes(FedPer())


@pytest.mark.parametrize("method", [HCCTP(tradeoff=1e5), FedPer()])
@seeded(0)
def test_heads_are_never_averaged_and_cost_nothing(method: Any) -> None:
    # Published slip: the heads of a group's members are averaged before each epoch. Without a
    # learning rate nothing moves, so each client's head must be the one it had, and they must
    # differ after a round with one.
    world = small_world(sizes=SIZES)
    layout = Layout(mlp())
    done = run(method, world, 1)
    head = slice(*layout.columns["2"])
    heads = {c: row[head] for c, row in done[0].position.kept[""].items()}
    assert len({tuple(h.tolist()) for h in heads.values()}) == len(SIZES)
    still = replace(world, training=replace(world.training, lr=1e-12))
    again = run(method, still, 3, start=replace(done[0].position, round=0))
    for client, before in heads.items():
        torch.testing.assert_close(
            again[-1].position.kept[""][client][head], before, rtol=0, atol=1e-9
        )
    base = layout.size - (head.stop - head.start)
    assert done[0].bytes_down == len(SIZES) * base * 4
    assert base == FEATURES * 8 + 8
    assert head.stop - head.start == 8 * CLASSES + CLASSES


def test_fedpers_silent_clients_and_those_that_come_and_go() -> None:
    method, world = FedPer(personal=0), grouped(THREE, examples={2: 5})
    state = last(method, world, 2).state
    assert (
        method.step(state, world.replies(method.plan(state, everyone(world)), 2, lambda e, c: True))
        is state
    )
    fewer = method.retire(state, (2, 99))
    assert sorted(method.assignment(fewer).row) == sorted(set(world.clients) - {2, 99})
    back = method.admit(fewer, (99, 2, 5))
    assert method.assignment(back).groups == (world.clients,)
    assert torch.equal(back.model, state.model)
    nobody = method.retire(state, world.clients)
    assert not method.plan(nobody, everyone(world)).tasks


def everyone(world: Any) -> Cohort:
    return Cohort(present=world.clients, exchange=0, seed=0)


def test_more_personal_layers_than_there_are_are_refused() -> None:
    for method, name in ((FedPer(personal=3), "FedPer"), (HCCTP(personal=3), "HCCTP")):
        with pytest.raises(
            SettingError,
            match=rf"{name}\.personal must be at most the 2 layers of the model, got 3",
        ):
            method.init(grouped(THREE).federation())


# -- real data
# --------------------------------------------------------------------------------------------------------


def test_five_disjoint_pairs_of_classes_are_five_groups() -> None:
    scenario = replace(find("digits/class-groups"), clients=10, groups=5)
    truth = scenario.build(0).truth
    for method in (HCCT(), HCCT(memory=0.0), HCCTE()):
        done = list(coterie.run(method, scenario, rounds=3, workers=1, eval_every=3))
        assert [round.assignment.groups == truth for round in done] == [False, True, True]


@pytest.mark.parametrize("silent", [0.0, 0.3])
def test_three_permutations_of_labels_are_three_groups(silent: float) -> None:
    scenario = replace(find("digits/label-permutation"), clients=12, groups=3, silent=silent)
    *_, end = coterie.run(HCCT(), scenario, rounds=12, workers=1, eval_every=12)
    assert end.assignment.groups == scenario.build(0).truth


def test_three_permutations_in_a_world_of_arithmetic() -> None:
    for seed in range(5):
        for method in (
            HCCT(),
            HCCT(memory=0.0),
            HCCT(newcomers="partition"),
            HCCT(scale="per-client"),
        ):
            assert {p.groups for p in list(play(method, grouped(THREE, seed=seed), 5))[1:]} == {
                TRUTH
            }
