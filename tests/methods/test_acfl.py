"""ACFL against its algorithm, written down line by line; its limits, FedAvg and local training; and who comes late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core import Cohort, Federation, as_groups
from coterie.data.scenario import find
from coterie.data.world import World
from coterie.methods import ACFL, FedAvg, Independent
from coterie.runs.experiment import make, read
from coterie.settings import SettingError
from scripted import play as run
from small import world as small_world
from worlds import THREE, TRUTH, Played, Pull, grouped, last, play


def served(played: Played) -> dict[int, Tensor]:
    return {client: played.assignment.models[row] for client, row in played.assignment.row.items()}


def mean(world: Pull, rows: Mapping[int, Tensor]) -> Tensor:
    """Of clients' models, weighted by their examples."""
    total = sum(world.examples.get(c, 1) for c in rows)
    return torch.stack([row * world.examples.get(c, 1) / total for c, row in rows.items()]).sum(0)


def as_printed(
    world: Pull, first: Tensor, epochs: int, mixing: Mapping[int, float], rounds: int
) -> dict[int, Tensor]:
    """Lines 1 to 25 of the paper's algorithm, given the right clusters, in a world without noise: what clients are served."""

    def after(start, client, e):
        return start + (1 - (1 - world.rate) ** e) * (world.targets[client] - start)

    out: dict[int, Tensor] = {}
    for group in TRUTH:
        h = mean(world, {k: after(first, k, epochs) for k in group})
        own = dict.fromkeys(group, h)
        for _ in range(rounds):
            trained = {k: after(own[k], k, 1) for k in group}
            h = mean(world, trained)
            own = {k: mixing[k] * trained[k] + (1 - mixing[k]) * h for k in group}
        out.update(own)
    return out


def jittered() -> Pull:
    """Three groups whose members pull towards places that differ a little, so that mixing matters."""
    world = grouped(THREE, noise=0.0, examples={2: 5, 17: 2, 50: 7})
    gen = torch.Generator().manual_seed(5)
    return replace(
        world,
        targets={
            c: t + 0.05 * torch.randn(len(t), generator=gen) for c, t in world.targets.items()
        },
    )


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_rounds_are_those_of_the_printed_algorithm(
    mixing: list[float], rounds: int, epochs: int
) -> None:
    world = jittered()
    method = ACFL(mixing_per_client=tuple(mixing), pretrain_epochs=epochs)
    end = last(method, world, 1 + rounds)
    assert end.groups == TRUTH
    by_id = dict(zip(world.clients, mixing, strict=True))  # in the order of the sorted ids
    wanted = as_printed(world, torch.zeros(world.size), epochs, by_id, rounds)
    for client, model in served(end).items():
        assert torch.allclose(model, wanted[client], atol=1e-5)


def test_the_clustering_exchange_is_no_round_and_serves_the_means_of_what_was_trained() -> None:
    world = jittered()
    first, second = play(ACFL(pretrain_epochs=3), world, 2)
    assert (first.plan.ends_round, second.plan.ends_round) == (False, True)
    assert set(first.plan.tasks) == set(world.clients)
    assert {task.epochs for task in first.plan.tasks.values()} == {3}
    assert {task.epochs for task in second.plan.tasks.values()} == {None}
    updates = first.replies.updates
    assert updates is not None
    for group in TRUTH:
        trained = {c: updates[first.replies.positions([c])[0]] for c in group}
        for client in group:
            assert torch.allclose(served(first)[client], mean(world, trained), atol=1e-6)


@pytest.mark.parametrize("how", [{}, {"fraction": 0.3}])
@pytest.mark.parametrize(
    "mixing", [{"mixing": 0.0}, {"mixing": 0.9, "mixing_per_client": (0.0,) * 12}]
)
def test_without_clusters_and_mixing_it_is_fedavg_bit_for_bit(
    how: dict[str, Any], mixing: dict[str, Any]
) -> None:
    world = grouped(THREE, examples={2: 9, 51: 4})
    silence = np.random.default_rng(3).random((20, 100)) < 0.3
    silent = lambda e, c: bool(silence[e, c])  # noqa: E731
    ours = list(play(ACFL(cluster=False, **mixing, **how), world, 15, silent=silent))
    theirs = list(play(FedAvg(**how), world, 15, silent=silent))
    for one, other in zip(ours, theirs, strict=True):
        assert set(one.plan.tasks) == set(other.plan.tasks)
        assert one.groups == other.groups
        assert torch.equal(one.assignment.models, other.assignment.models)


def test_without_mixing_every_cluster_is_fedavg_from_its_warm_start() -> None:
    world = grouped(THREE, examples={2: 9, 51: 4}, fresh=False)
    silent = lambda e, c: e > 0 and (e + c) % 3 == 0  # noqa: E731
    end = last(ACFL(mixing=0.0), world, 8, silent=silent)
    start = served(next(iter(play(ACFL(mixing=0.0), world, 1))))
    for group in TRUTH:
        part = replace(world, targets={c: world.targets[c] for c in group})
        state = replace(FedAvg().init(part.federation()), model=start[group[0]])
        alone = last(FedAvg(), part, 7, silent=silent, state=state, first=1)
        for client in group:
            assert torch.equal(served(end)[client], alone.assignment.models[0])


def test_mixing_one_is_local_training_from_the_warm_start() -> None:
    world = grouped(THREE, examples={2: 9, 51: 4})
    history = list(play(ACFL(mixing=1.0), world, 6))
    models = served(history[0])
    for played in history[1:]:
        updates = played.replies.updates
        assert updates is not None
        models = {c: models[c] + updates[played.replies.positions([c])[0]] for c in world.clients}
        for client, model in served(played).items():
            assert torch.equal(model, models[client])


def test_without_clusters_mixing_one_has_exactly_the_models_of_independent_clients() -> None:
    world = small_world(sizes=(20, 3, 50, 9))
    *_, ours = run(ACFL(cluster=False, mixing=1.0), world, 3)
    *_, alone = run(Independent(), world, 3)
    for client, row in ours.assignment.row.items():
        assert torch.equal(ours.assignment.models[row], alone.position.kept[""][client])
    assert ours.scores == alone.scores


def test_an_absent_clients_own_model_stays_and_its_served_model_follows_the_centre() -> None:
    world, away = jittered(), 31  # of the group 2, 17, 31, 40
    history = list(play(ACFL(mixing=0.25), world, 5, silent=lambda e, c: e >= 3 and c == away))
    own = history[2].state.own[history[2].state.trained.index(away)]
    for played in history[3:]:
        centre = played.state.centres[played.state.home[away]]
        assert torch.allclose(served(played)[away], 0.25 * own + 0.75 * centre, atol=1e-6)
    assert not torch.equal(served(history[3])[away], served(history[4])[away])


# -- what is compared
# ------------------------------------------------------------------------------------------------------


def angles(*degrees: float, first: float = 0.0) -> Pull:
    """Clients 10, 20, ... that pull in these directions; the dense columns are the two in which they point."""
    turned = [np.deg2rad(a) for a in degrees]
    return Pull(
        targets={
            10 * (i + 1): torch.tensor([first, np.cos(a), np.sin(a), 0, 0]).float()
            for i, a in enumerate(turned)
        },
        rate=1.0,
    )


@pytest.mark.parametrize(("threshold", "groups"), [(0.9, 1), (0.94, 1), (0.95, 2), (0.1, 1)])
def test_the_threshold_is_a_similarity(threshold: float, groups: int) -> None:
    world = angles(0, 19)  # cos 19 degrees = 0.9455
    assert len(last(ACFL(threshold=threshold), world, 1).groups) == groups


def test_at_the_threshold_nothing_is_merged() -> None:
    world = Pull(
        targets={1: torch.tensor([0.0, 1, 0, 0]), 2: torch.tensor([0.0, 0, 1, 0])}, rate=1.0
    )  # cosine 0
    assert len(last(ACFL(threshold=0.0), world, 1).groups) == 2
    assert len(last(ACFL(threshold=-0.01), world, 1).groups) == 1


def test_the_linkage_is_the_mean_of_pairs() -> None:
    # 0 and 20 merge first (0.94); then 60 is at (cos 60 + cos 40) / 2 = 0.633 on average, 0.766 at
    # best, 0.5 at worst.
    for linkage, at in (("average", 0.633), ("single", 0.766), ("complete", 0.5)):
        assert (
            len(last(ACFL(linkage=linkage, threshold=at - 0.01), angles(0, 20, 60), 1).groups) == 1
        )
        assert (
            len(last(ACFL(linkage=linkage, threshold=at + 0.01), angles(0, 20, 60), 1).groups) == 2
        )


def test_only_the_dense_layers_count_unless_others_are_named() -> None:
    world = Pull(
        targets={1: torch.tensor([9.0, 1, 0, 0]), 2: torch.tensor([9.0, 0, 1, 0])}, rate=1.0
    )
    assert len(last(ACFL(), world, 1).groups) == 2
    assert len(last(ACFL(layers=("first", "rest")), world, 1).groups) == 1  # cos = 81 / 82
    note = last(ACFL(), world, 1).notes[0]
    found = {layer: float(matrix[0, 1]) for layer, matrix in note.similarity.items()}
    assert found == pytest.approx({"first": 1.0, "rest": 0.0, "all": 81 / 82, "compared": 0.0})
    assert note.order == (1, 2)


def from_afar(world: Pull) -> Federation:
    """The first model is far from the origin, as a network's is from zero, compared with what an epoch adds."""
    return replace(world.federation(), draw=lambda i: torch.full((world.size,), 20.0 + i))


@pytest.mark.parametrize(("similarity", "groups"), [("weights", 1), ("updates", 2)])
def test_weights_share_the_first_model_and_updates_do_not(similarity: str, groups: int) -> None:
    start = torch.tensor([20.0] * 5)
    world = angles(0, 90)
    world = replace(world, targets={c: start + t for c, t in world.targets.items()})
    method = ACFL(similarity=similarity)
    end = last(method, world, 1, state=method.init(from_afar(world)))
    assert len(end.groups) == groups


def test_late_silent_clients_are_left_out_of_the_matrices() -> None:
    note = last(ACFL(), grouped(THREE), 1, silent=lambda e, c: c in (2, 99)).notes[0]
    assert note.order == tuple(c for c in grouped(THREE).clients if c not in (2, 99))
    assert note.parts == as_groups([[17, 31, 40], [3, 5, 50, 51], [8, 19, 29], [2, 99]])
    assert "2 clients without an answer wait" in note.text


# -- silence, newcomers
# ----------------------------------------------------------------------------------------------------


def test_below_the_quorum_a_round_passes_and_all_are_asked_again() -> None:
    history = list(play(ACFL(), grouped(THREE), 7, silent=lambda e, c: e < 3 and c > 10))
    assert [p.plan.ends_round for p in history] == [False, True, False, True, False, True, True]
    assert "not clustered yet: 4 of 12 clients answered" in history[0].notes[0].text
    assert [len(p.groups) for p in history] == [1, 1, 1, 1, 3, 3, 3]


def test_a_client_that_was_silent_trains_as_the_others_did_and_joins_its_like() -> None:
    world = grouped(THREE)
    history = list(play(ACFL(pretrain_epochs=4), world, 5, silent=lambda e, c: e < 3 and c == 2))
    asked = [p.plan.tasks[2] for p in history]
    assert [(task.epochs, task.lr_round) for task in asked] == [
        (4, None),
        (4, 0),
        (4, 0),
        (4, 0),
        (None, None),
    ]
    offered = history[1].plan.models[asked[1].offered[0]]
    assert torch.equal(offered, torch.zeros(world.size))
    assert [p.groups == TRUTH for p in history] == [False, False, False, True, True]
    centre = history[3].assignment.models[history[3].state.home[2]]
    assert torch.equal(served(history[3])[2], centre)
    others = [c for c in TRUTH[0] if c != 2]
    alone = last(ACFL(pretrain_epochs=4), world, 4, silent=lambda e, c: c == 2)
    for client in others:  # what it trained to be compared is in no mean
        assert torch.equal(served(history[3])[client], served(alone)[client])


def late(method: ACFL, newcomers: dict[int, Tensor], exchanges: int = 2) -> Played:
    """What stands after clients with these targets came to a clustered federation."""
    world = grouped(THREE)
    state = method.admit(last(method, world, 3).state, tuple(newcomers))
    wider = replace(world, targets={**world.targets, **newcomers})
    return last(method, wider, exchanges, state=state, first=3)


@pytest.mark.parametrize("similarity", ["weights", "updates"])
def test_newcomers_join_their_like_or_are_on_their_own(similarity: str) -> None:
    known, odd = grouped(THREE).targets[8], -grouped(THREE).targets[2]
    method = ACFL(similarity=similarity)
    end = late(method, {60: known, 61: odd, 7: odd}, exchanges=1)
    assert end.groups == as_groups([[*THREE[0]], [*THREE[1]], [*THREE[2], 60], [7, 61]])
    assert {note.clients: note.text.split(": ")[1] for note in end.notes} == {
        (7,): "it starts a new group",
        (60,): "it joins that group",
        (61,): "it joins that group",
    }
    # 7 and 61 came together: their model is the mean of what they trained.
    updates = end.replies.of([7, 61]).updates
    assert updates is not None
    assert torch.allclose(served(end)[7], updates.mean(0), atol=1e-6)
    assert late(method, {60: known, 61: odd, 7: odd}, exchanges=4).groups == end.groups


def test_with_a_number_of_groups_newcomers_make_no_new_one() -> None:
    end = late(ACFL(threshold=None, groups=3), {60: -grouped(THREE).targets[2]})
    assert len(end.groups) == 3


def test_until_they_are_heard_newcomers_have_the_first_model() -> None:
    method = ACFL()
    state = method.admit(last(method, grouped(THREE), 3).state, (60, 61))
    told = method.assignment(state)
    assert (60, 61) in told.groups
    assert torch.equal(told.models[told.row[60]], torch.zeros(12))
    plan = method.plan(
        state, Cohort(present=tuple(c for c in told.row if c != 61), exchange=3, seed=0)
    )
    assert 60 in plan.tasks
    assert 61 not in plan.tasks


def test_a_whole_group_that_left_finds_its_model_again() -> None:
    world, method = grouped(THREE), ACFL()
    before = last(method, world, 5)
    state = method.retire(before.state, THREE[1])
    assert method.assignment(state).groups == as_groups([THREE[0], THREE[2]])
    without = replace(world, targets={c: t for c, t in world.targets.items() if c not in THREE[1]})
    state = last(method, without, 2, state=state, first=5).state
    end = last(method, world, 1, state=method.admit(state, THREE[1]), first=7)
    assert end.groups == TRUTH
    assert torch.equal(served(end)[3], before.state.centres[before.state.home[3]])


# -- mistakes
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"groups": 3}, r"exactly one of ACFL\.threshold and ACFL\.groups must be set"),
        ({"threshold": None}, r"exactly one of ACFL\.threshold and ACFL\.groups must be set"),
        ({"threshold": 1.5}, r"ACFL\.threshold must be >= -1 and <= 1, got 1\.5"),
        ({"mixing": 1.1}, r"ACFL\.mixing must be >= 0 and <= 1, got 1\.1"),
        (
            {"mixing_per_client": (0.5, 2.0)},
            r"ACFL\.mixing_per_client must be >= 0 and <= 1, got 2\.0",
        ),
        ({"linkage": "ward"}, "must be one of single, complete, average, got 'ward'"),
    ],
)
def test_contradictions_are_refused_at_birth(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        ACFL(**wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"threshold": None, "groups": 13}, r"ACFL\.groups must be at most the 12 clients, got 13"),
        ({"mixing_per_client": (0.5,)}, r"one number for each of the 12 clients, got 1"),
        (
            {"layers": ("frist",)},
            r"the model has no layer 'frist'; did you mean first\? \(layers: first, rest\)",
        ),
    ],
)
def test_what_does_not_fit_the_federation_is_refused_before_the_first_round(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        ACFL(**wrong).init(grouped(THREE).federation())


def test_a_model_without_dense_layers_needs_names() -> None:
    none = replace(grouped(THREE).federation(), dense=())
    with pytest.raises(SettingError, match="the model has none; name some of first, rest"):
        ACFL().init(none)
    assert ACFL(layers=("first",)).init(none).compared == ("first",)
    assert ACFL(cluster=False).init(none).round == 0


# -- handwritten digits
# ----------------------------------------------------------------------------------------------------


def digits(seed: int, name: str = "digits/label-permutation", **changed: Any) -> World:
    return replace(find(name), **changed).build(seed)


PAIRS = {"name": "digits/class-groups", "clients": 8, "groups": 4, "classes_per_group": 2}


@pytest.mark.parametrize(("epochs", "groups"), [(1, 1), (2, 4)])
def test_two_epochs_tell_disjoint_classes_apart_by_weights(epochs: int, groups: int) -> None:
    # The paper's finding: dense layers at 0.9 after two epochs. After one the least alike are at
    # 0.92.
    world = digits(0, **PAIRS)
    (done,) = run(ACFL(pretrain_epochs=epochs), world, 1)
    assert len(done.assignment.groups) == groups
    if groups == 4:
        assert done.assignment.groups == world.truth
    matrices = done.notes[0].similarity
    assert world.truth is not None
    across = [
        (a, b)
        for one in world.truth
        for other in world.truth
        if one < other
        for a in one
        for b in other
    ]
    highest = {
        layer: max(float(matrix[a, b]) for a, b in across) for layer, matrix in matrices.items()
    }
    assert highest["fc2"] < highest["all"] < highest["fc1"]  # the classifier tells the most


@pytest.mark.parametrize(
    ("similarity", "threshold", "right"), [("weights", 0.9, False), ("updates", 0.5, True)]
)
def test_weights_do_not_tell_label_permutations_apart_and_updates_do(
    similarity: str, threshold: float, right: bool
) -> None:
    world = digits(0, clients=12, groups=3)
    (done,) = run(ACFL(similarity=similarity, threshold=threshold), world, 1)
    assert (done.assignment.groups == world.truth) == right
    assert right or len(done.assignment.groups) == 1


def committed() -> ACFL:
    experiment = make(read(Path(__file__).parents[2] / "experiments" / "acfl-digits.toml"))
    (method,) = [m for m in experiment.methods if isinstance(m, ACFL)]
    return method


@pytest.mark.slow
@pytest.mark.parametrize("changed", [
    {"clients": 12, "groups": 3}, {}, {"name": "digits/iid", "clients": 12}, {"name": "digits/iid"},
])  # fmt: skip
def test_the_committed_settings_find_the_groups_of_ten_seeds(changed: dict[str, Any]) -> None:
    for seed in range(10):
        world = digits(seed, **changed)
        (done,) = run(committed(), world, 1, seed=seed, eval_every=9)
        assert done.assignment.groups == world.truth


@pytest.mark.slow
def test_they_find_them_with_three_in_ten_silent() -> None:
    right = 0
    for seed in range(10):
        world = digits(seed, clients=12, groups=3, silent=0.3)
        *_, done = run(committed(), world, 6, seed=seed, eval_every=9)
        right += done.assignment.groups == world.truth
    assert right >= 9
