"""The contract's own values: tasks, cohorts, replies, weights, averages."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core import (
    STATES,
    Assignment,
    Cohort,
    Federation,
    Personal,
    Plan,
    Replies,
    Stage,
    Task,
    Training,
    as_groups,
    average,
    group_means,
    row_of,
    state,
    train_from,
    weights,
)

IDS = st.frozensets(st.integers(0, 10**6), min_size=1, max_size=30).map(
    lambda ids: tuple(sorted(ids))
)


def replies(clients: tuple[int, ...] = (2, 5, 9, 40)) -> Replies:
    n = len(clients)
    return Replies(
        clients=clients,
        examples=np.arange(1, n + 1),
        chosen=tuple((i % 2,) for i in range(n)),
        losses=tuple((i / 10,) for i in range(n)),
        accuracies=tuple((i / 20,) for i in range(n)),
        gram=np.arange(n * n, dtype=float).reshape(n, n),
        updates=torch.arange(n * 3.0).reshape(n, 3),
        means=torch.ones(2, 3),
        mean_counts=np.array([2, 2]),
    )


# -- tasks
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offered", "choose"), [((0, 1), 3), ((0,), 0), ((), 1)])
def test_a_task_chooses_among_what_it_offers(offered: tuple[int, ...], choose: int) -> None:
    with pytest.raises(
        ValueError,
        match=rf"Task.choose must be 1 to the {len(offered)} models offered, got {choose}",
    ):
        Task(offered=offered, choose=choose)


@pytest.mark.parametrize("row", [-1, 1, 2, 0.5, "0"])
def test_a_plan_offers_its_own_models(row: Any) -> None:
    """Row 2 of one model was once the third model of an earlier exchange, and row -1 the last one."""
    with pytest.raises(
        ValueError,
        match=r"Task\.offered must be rows|Plan\.models has rows 0 to 0, but client 4 is offered row",
    ):
        Plan(models=torch.zeros(1, 3), tasks={2: Task(offered=(0,)), 4: Task(offered=(0, row))})
    with pytest.raises(
        ValueError, match=r"Assignment\.models has rows 0 to 0, but a client is served by row"
    ):
        Assignment(models=torch.zeros(1, 3), row={2: 0, 4: row}, groups=((2, 4),))
    with pytest.raises(
        ValueError, match=r"Assignment\.models has rows 0 to 0, but a client is served by row"
    ):
        Assignment(
            models=torch.zeros(1, 3),
            row={2: 0, 4: 0},
            groups=((2, 4),),
            path={2: (0, row)},
            ensemble=True,
        )


def test_a_plan_has_rows_of_models_and_tasks_only_in_its_parts() -> None:
    task = {0: Task(offered=(0,))}
    with pytest.raises(ValueError, match=r"Plan\.models must be rows \(k, d\), got shape \(3,\)"):
        Plan(models=torch.zeros(3), tasks=task)
    with pytest.raises(ValueError, match="has no models, but client 0 is offered row 0"):
        Plan(models=torch.zeros(0, 3), tasks=task)
    part = Plan(models=torch.zeros(1, 3), tasks=task)
    with pytest.raises(ValueError, match=r"a plan with Plan\.parts has no tasks itself"):
        Plan(models=torch.zeros(1, 3), tasks=task, parts={"first": part})
    assert Plan(models=torch.zeros(0, 3), tasks={}, parts={"first": part}).asked == (0,)


def test_clients_without_examples_make_no_weight_nan() -> None:
    of_nobody = Replies(clients=(1, 2), examples=np.array([0, 0]), updates=torch.eye(2))
    assert weights(of_nobody, "data").tolist() == [0.5, 0.5]
    assert weights(Replies(clients=(), examples=np.zeros(0, np.int64)), "data").tolist() == []
    means, heard = group_means(of_nobody, [(1, 2)])
    assert means.tolist() == [[0.0, 0.0]]
    assert heard.tolist() == [0]
    mixed = Replies(clients=(1, 2), examples=np.array([0, 3]), updates=torch.eye(2))
    assert group_means(mixed, [(1, 2)])[0].tolist() == [[0.0, 1.0]]


def test_choosing_takes_losses() -> None:
    assert Task(offered=(0, 1)).measure == "train"
    assert Task(offered=(0, 1), measure="validation").measure == "validation"
    assert Task(offered=(0, 1), choose=2).measure is None
    assert Task(offered=(0,)).measure is None


def test_what_trains() -> None:
    still = Training(epochs=0)
    assert not Task(offered=(0,), training=still, measure="train").trains
    assert Task(offered=(0,), training=Training(epochs=0, steps=1)).trains
    assert Task(offered=(0,), training=still, gradient=True).trains
    assert Task(offered=(0,)).trains


def test_no_task_offers_the_test_data() -> None:
    with pytest.raises(ValueError, match="measure must be train, validation or None, got 'test'"):
        Task(offered=(0,), measure="test")  # type: ignore[arg-type]
    assert Task(offered=(0, 1), training=Training(epochs=0)).measure == "train"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"epochs": -1}, "must be >= 0, got 0.0 and -1"),
        ({"pull": -0.5}, "must be >= 0, got -0.5 and None"),
        ({"mixture": 0.5}, "must be 0 to 1, of the client's own model"),
        ({"mixture": 1.5, "start": "own"}, "must be 0 to 1, of the client's own model"),
        (
            {"mixture": 0.5, "start": "own", "pull": 1.0},
            "without epochs, layers or a pull of its own",
        ),
        (
            {"mixture": 0.5, "start": "own", "layers": ("fc",)},
            "without epochs, layers or a pull of its own",
        ),
        ({"adapt": True}, "Personal.adapt needs Personal.mixture, got None"),
    ],
)
def test_a_personal_model_that_contradicts_itself_is_refused(
    how: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Personal(**how)


def test_stages_are_of_one_model() -> None:
    stage, mixture = Stage(layers=("fc",)), Personal(start="own", mixture=0.5)
    for how in ({"gradient": True}, {"personal": mixture}):
        with pytest.raises(ValueError, match=r"Task\.stages needs a task that trains one model"):
            Task(offered=(0,), stages=(stage,), **how)
    with pytest.raises(ValueError, match=r"Stage\.epochs must be >= 0, got -1"):
        Stage(layers=("fc",), epochs=-1)


# -- cohorts
# ----------------------------------------------------------------------------------------------------------


@given(IDS, st.floats(0.01, 1), st.integers(0, 5), st.integers(0, 99))
def test_a_sample_is_a_share_of_the_members(
    ids: tuple[int, ...], fraction: float, exchange: int, seed: int
) -> None:
    cohort = Cohort(present=ids, exchange=exchange, seed=seed)
    sampled = cohort.sample(ids, fraction)
    assert len(sampled) == max(round(fraction * len(ids)), 1)
    assert set(sampled) <= set(ids)
    assert sampled == tuple(sorted(set(sampled)))
    assert all(type(c) is int for c in sampled)
    assert cohort.sample(reversed(ids), fraction) == sampled


@given(IDS, st.integers(0, 99))
def test_who_is_present_does_not_change_who_is_drawn(ids: tuple[int, ...], seed: int) -> None:
    everyone = Cohort(present=ids, exchange=3, seed=seed).sample(ids, 0.5)
    some = ids[::2]
    assert Cohort(present=some, exchange=3, seed=seed).sample(ids, 0.5) == tuple(
        c for c in everyone if c in some
    )


def test_samples_differ_between_exchanges_and_seeds_and_reach_everyone() -> None:
    ids = tuple(range(10, 30))
    drawn = [
        Cohort(present=ids, exchange=e, seed=s).sample(ids, 0.3)
        for e in range(10)
        for s in range(2)
    ]
    assert len(set(drawn)) == len(drawn)
    assert set().union(*drawn) == set(ids)


# -- replies
# ----------------------------------------------------------------------------------------------------------


def test_replies_of_some_are_their_rows_of_everything() -> None:
    part = replies().of([40, 7, 5])  # in any order; 7 did not answer
    assert part.clients == (5, 40)
    assert part.examples.tolist() == [2, 4]
    assert (part.chosen, part.losses, part.accuracies) == (
        ((1,), (1,)),
        ((0.1,), (0.3,)),
        ((0.05,), (0.15,)),
    )
    assert part.gram is not None
    assert part.gram.tolist() == [[5.0, 7.0], [13.0, 15.0]]
    assert part.updates is not None
    assert part.updates.tolist() == [[3.0, 4.0, 5.0], [9.0, 10.0, 11.0]]
    assert part.means is None
    assert part.mean_counts is None
    assert replies().positions([40, 7, 5]) == [3, 1]


def test_replies_of_nobody() -> None:
    nobody = replies().of([3])
    assert nobody.clients == ()
    assert len(nobody.examples) == 0
    assert nobody.gram is not None
    assert nobody.gram.shape == (0, 0)
    assert nobody.updates is not None
    assert nobody.updates.shape == (0, 3)


def test_weights_and_average_by_hand() -> None:
    assert weights(replies(), "data").tolist() == [0.1, 0.2, 0.3, 0.4]
    assert weights(replies(), "uniform").tolist() == [0.25] * 4
    rows = torch.tensor([[1.0, 0.0], [3.0, 8.0]])
    assert average(rows, [0.25, 0.75]).tolist() == [0.25 * 1 + 0.75 * 3, 0.75 * 8]
    assert average(rows, np.array([0.5, 0.5])).dtype == torch.float32


# -- groups, plans, states
# --------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 50), st.integers(0, 4), min_size=1))
def test_groups_have_one_form(label: dict[int, int]) -> None:
    parts = [[c for c in label if label[c] == g] for g in set(label.values())]
    groups = as_groups(parts)
    assert groups == as_groups(reversed([p[::-1] for p in parts]))
    assert sorted(c for g in groups for c in g) == sorted(label)
    assert [g[0] for g in groups] == sorted(g[0] for g in groups)
    row = row_of(groups)
    assert all((row[a] == row[b]) == (label[a] == label[b]) for a in label for b in label)


def test_train_from_offers_each_client_its_one_model() -> None:
    plan = train_from(torch.zeros(2, 3), {9: 1, 4: 0, 7: 1}, need="mean")
    assert {c: t.offered for c, t in plan.tasks.items()} == {4: (0,), 7: (1,), 9: (1,)}
    assert all(t == Task(offered=t.offered) for t in plan.tasks.values())
    assert plan.need == "mean"


def test_similarity_sees_the_parameters() -> None:
    federation = Federation(
        clients=(0,), draw=lambda i: torch.zeros(12), columns={"b": (4, 9), "a": (0, 4)}
    )
    assert federation.parameters == slice(0, 9)  # the last three are buffers


def test_states_are_frozen_and_known_by_tag() -> None:
    @state("test.made")
    class Made:
        number: int = 3

    try:
        assert STATES["test.made"] is Made
        made: Any = Made(number=4)
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.number = 5
        with pytest.raises(TypeError):
            Made(4)  # type: ignore[misc]
    finally:
        del STATES["test.made"]


def test_a_tag_belongs_to_one_class() -> None:
    def define(name: str, module: str) -> type[Any]:
        return state("test.tag")(type(name, (), {"__module__": module, "__annotations__": {}}))

    try:
        define("Old", "mine")
        again = define("Old", "mine")  # as of a notebook's cell that is run twice
        assert STATES["test.tag"] is again
        assert define("Old", "__main__") is STATES["test.tag"]
        with pytest.raises(
            ValueError, match=r"the tag 'test.tag' of New is already used by __main__.Old"
        ):
            define("New", "mine")
    finally:
        del STATES["test.tag"]
