"""Drift: schedules as published, labels under each concept from their definitions, and data that change when they must."""

import math

import numpy as np
import pytest
import torch

from coterie.data.datasets import load
from coterie.data.drift import DRIFTS, FEDDRIFT, schedule
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.data.world import Drift, World
from coterie.settings import SettingError
from small import client, linear

DRIFTING = ["sine/drift", "circle/drift", "sea/drift", "digits/drift"]


def test_feddrifts_schedules_have_ten_time_steps_of_ten_clients() -> None:
    for name in FEDDRIFT:
        rows = schedule(f"feddrift-{name}", clients=10, concepts=4, calm=1)
        assert [len(row) for row in rows] == [10] * 10
    assert schedule("feddrift-a", 12, 2, 1)[1] == (
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
    )  # client 11 as client 1


def test_fedccfas_schedules() -> None:
    """Its clients 0-2 of ten swap labels 1 and 2, 3-5 swap 3 and 4, 6-9 swap 5 and 6; in turn, if the drift is incremental."""
    none, all_ = (0,) * 10, (1, 1, 1, 2, 2, 2, 3, 3, 3, 3)
    assert schedule("sudden", 10, 4, calm=2) == (none, none, all_)
    steps = [tuple(c if c <= most else 0 for c in all_) for most in (1, 2, 3)]
    assert schedule("incremental", 10, 4, calm=1) == (none, *steps)
    assert schedule("recurring", 10, 4, calm=1) == (none, all_, none, all_, none)
    assert schedule("still", 3, 1, calm=2) == ((0, 0, 0),) * 2
    assert schedule("sudden", 3, 2, calm=1) == ((0, 0, 0), (0, 1, 1))


@pytest.mark.parametrize(
    "drift", [name for name in DRIFTS if name not in ("none", "still", "given")]
)
def test_a_schedule_needs_its_concepts(drift: str) -> None:
    with pytest.raises(SettingError, match=f"drift {drift} needs"):
        schedule(drift, clients=10, concepts=1, calm=1)


def test_a_given_schedule_needs_a_concept_for_each_client() -> None:
    assert schedule("given", 2, 3, 1, given=((0, 2), (1, 1))) == ((0, 2), (1, 1))
    for wrong in ((), ((0, 1, 2),), ((0, 1), (0,))):
        with pytest.raises(
            SettingError,
            match=r"Scenario.schedule needs rows of one concept for each of the 2 clients",
        ):
            schedule("given", 2, 3, 1, given=wrong)
    with pytest.raises(SettingError, match=r"concepts 0 to 3, and Scenario.groups allows 3"):
        schedule("given", 2, 3, 1, given=((0, 3),))


def labels(name: str, x: list[float], concept: int) -> int:
    """The label of one example, from the definition."""
    if name == "sine":
        return int((x[1] <= math.sin(x[0])) == (concept == 0))
    if name == "circle":
        a, b, r = ((0.2, 0.5, 0.15), (0.6, 0.5, 0.25))[concept]
        return int(math.hypot(x[0] - a, x[1] - b) > r)
    return int(10 * x[0] + 10 * x[1] <= (8, 9, 7, 9.5)[concept])


@pytest.mark.parametrize("name", ["sine", "circle", "sea"])
def test_streams_have_the_labels_of_each_concept(name: str) -> None:
    pool = load(name, examples=200, seed=3).train
    for concept, column in enumerate(pool.meta.values()):
        assert column.tolist() == [labels(name, x, concept) for x in pool.inputs.double().tolist()]
    noisy = load(name, examples=4000, mislabelled=0.1, seed=3).train
    again = load(name, examples=4000, seed=3).train
    wrong = noisy.targets != again.targets
    assert 0.08 < wrong.float().mean() < 0.12
    assert torch.equal(noisy.meta["concept 1"] != again.meta["concept 1"], wrong)


@pytest.mark.parametrize("name", DRIFTING)
def test_drifting_worlds(name: str) -> None:
    scenario = SCENARIOS[name]
    world, again, other = (scenario.build(seed) for seed in (3, 3, 4))
    assert world.drift is not None
    assert again.drift is not None
    assert world.truth is None
    assert world.drift.concepts == again.drift.concepts
    assert world.drift.concepts != (other.drift and other.drift.concepts)
    for step, same in zip(world.steps, again.steps, strict=True):
        assert sorted(step) == list(range(scenario.clients))
        for c, data in step.items():
            assert torch.equal(data.train.targets, same[c].train.targets)
            assert torch.equal(
                data.test.batch(torch.arange(3))[0], same[c].test.batch(torch.arange(3))[0]
            )
    assert world.clients is world.steps[0]


def test_streams_have_new_examples_in_each_step_and_no_example_twice() -> None:
    world = SCENARIOS["sea/drift"].build(0)
    index = torch.cat(
        [s.index for step in world.steps for data in step.values() for s in (data.train, data.test)]
    )
    assert len(index) == len(index.unique()) == 20_000
    assert {len(data.train) for step in world.steps for data in step.values()} == {100}


def test_a_client_that_keeps_its_concept_keeps_its_data() -> None:
    scenario = Scenario(
        shift="label-swap",
        groups=3,
        drift="incremental",
        calm=2,
        period=5,
        shuffle=False,
        clients=6,
    )
    world = scenario.build(0)
    assert world.drift is not None
    assert [tuple(row.values()) for row in world.drift.concepts] == [
        (0,) * 6,
        (0,) * 6,
        (1, 1, 1, 0, 0, 0),
        (1, 1, 1, 2, 2, 2),
    ]
    first, second, third, fourth = world.steps
    assert all(first[c] is second[c] for c in first)
    assert [first[c] is third[c] for c in first] == [False, False, False, True, True, True]
    assert all(third[c] is fourth[c] for c in (0, 1, 2))
    for c in first:  # concept 1 swaps labels 1 and 7, concept 2 swaps 3 and 5
        assert first[c].train.inputs is fourth[c].train.inputs
        assert first[c].train.index is fourth[c].train.index
        a, b = (1, 7) if c < 3 else (3, 5)
        swap = {a: b, b: a}
        assert fourth[c].test.targets.tolist() == [
            swap.get(y, y) for y in first[c].test.targets.tolist()
        ]


def test_the_truth_of_a_round() -> None:
    world = Scenario(
        shift="label-swap", groups=3, drift="recurring", period=5, shuffle=False, clients=4
    ).build(0)
    apart = ((0, 1), (2, 3))
    assert [world.true_groups(r) for r in (1, 5, 6, 10, 11, 16, 99)] == [
        ((0, 1, 2, 3),), ((0, 1, 2, 3),), apart, apart, ((0, 1, 2, 3),), apart, ((0, 1, 2, 3),)
    ]  # fmt: skip
    assert [world.step(r) for r in (1, 5, 6, 99)] == [0, 0, 1, 4]


def test_kinds_of_a_partition_stay_apart() -> None:
    """Two groups of classes, and half of the clients change their labels: four true groups."""
    fields = {
        "partition": "classes",
        "groups": 2,
        "shift": "label-swap",
        "shuffle": False,
        "clients": 8,
    }
    world = Scenario(drift="sudden", **fields).build(0)
    assert world.true_groups(1) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert world.true_groups(21) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_a_world_without_a_drift_is_as_before() -> None:
    plain = Scenario(shift="label-swap").build(0)
    assert plain.drift is None
    assert plain.steps == (plain.clients,)
    assert plain.step(7) == 0
    assert plain.true_groups(7) == plain.truth


def test_flipped_labels_stay_flipped_as_data_drift() -> None:
    fields = {
        "shift": "label-swap",
        "groups": 2,
        "drift": "sudden",
        "swaps": ((1, 2),),
        "clients": 4,
    }
    honest, world = (
        Scenario(**fields, **more).build(0)
        for more in ({}, {"adversaries": 0.25, "attack": "label-flip"})
    )
    (bad,) = world.attacks
    for step, was in zip(world.steps, honest.steps, strict=True):
        assert torch.equal(step[bad].train.targets, 9 - was[bad].train.targets)
        assert torch.equal(step[bad].test.targets, was[bad].test.targets)
    assert world.clients is world.steps[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"drift": "given"}, "Scenario.schedule goes together with drift = given"),
        ({"schedule": ((0,),)}, "Scenario.schedule goes together with drift = given"),
        ({"renew": True}, "Scenario.renew needs a drift, got none"),
        (
            {"drift": "still", "renew": True, "partition": "classes"},
            "Scenario.renew needs a partition of iid, dirichlet",
        ),
        (
            {"drift": "still", "dataset": "table", "partition": "clients"},
            "Scenario.drift must be none for the data set table",
        ),
        ({"period": 0}, "Scenario.period must be >= 1, got 0"),
        ({"drift": "sudde"}, "did you mean sudden"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Scenario(**settings)  # type: ignore[arg-type]


def test_too_few_concepts() -> None:
    with pytest.raises(SettingError, match=r"Scenario.groups must be at most the 2 concepts"):
        Scenario(dataset="sine", shift="concept", groups=3).build(0)
    with pytest.raises(SettingError, match="drift sudden needs at least 2 concepts"):
        Scenario(drift="sudden").build(0)


def test_concepts_make_groups_without_a_drift() -> None:
    world = Scenario(dataset="sine", shift="concept", groups=2, shuffle=False, clients=4).build(0)
    assert world.truth == ((0, 2), (1, 3))


def test_a_world_whose_drift_does_not_fit() -> None:
    data = {c: client(c) for c in (1, 2)}
    drift = Drift(period=3, concepts=[{1: 0, 2: 0}], data=[data])
    assert World(clients=data, model=linear, drift=drift).true_groups(9) == ((1, 2),)
    with pytest.raises(ValueError, match=r"World.truth must be None"):
        World(clients=data, model=linear, drift=drift, truth=((1, 2),))
    with pytest.raises(ValueError, match="must have the ids"):
        World(clients={3: client(3)}, model=linear, drift=drift)
    with pytest.raises(ValueError, match="same clients"):
        Drift(period=3, concepts=[{1: 0}], data=[data])
    with pytest.raises(SettingError, match=r"Drift.period must be an integer >= 1, got 0"):
        Drift(period=0, concepts=[{1: 0, 2: 0}], data=[data])


def test_shuffling_changes_only_who_is_who() -> None:
    world = Scenario(
        dataset="sine", shift="concept", groups=2, drift="feddrift-w", clients=10
    ).build(5)
    assert world.drift is not None
    columns = sorted(tuple(row[c] for row in world.drift.concepts) for c in range(10))
    assert columns == sorted(map(tuple, np.array(schedule("feddrift-w", 10, 2, 1)).T.tolist()))
