"""Plans that need sums alone: what the engine gives is what single updates would have added up to, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.boundary import Boundary
from coterie.clustering import sketch
from coterie.contrib.private import SplitHalfSums
from coterie.contrib.private.cells import CellQuestion, sizes_of
from coterie.core import HALVES, Cohort, Plan, Position, PrivateTask, Replies, Task
from coterie.engines import rounds as inprocess
from coterie.engines.clock import Clock
from coterie.engines.exchange import exchange
from coterie.engines.pool import ClientPool
from coterie.engines.traffic import traffic
from coterie.engines.workers import Hardware
from coterie.methods import FedAvg, SplitHalf
from coterie.robust import Robust
from coterie.settings import SettingError
from scripted import play
from small import mlp, world

K = 8
IDS = world(model=mlp).attendance.founders(world(model=mlp).clients)


def carried(plan: Plan, kept: Any = None, round: int = 0) -> tuple[Replies, Any]:
    """The replies to a plan, and what clients keep."""
    tried = world(model=mlp)
    wire, _ = inprocess.setup(SplitHalf(), tried, 0, Boundary())
    with ClientPool(tried, wire, Hardware(workers=1)) as pool:
        return exchange(
            pool, plan, Position(round=0, exchange=round, state=None, kept=kept or {}), 0, Clock()
        )


def plan_of(tasks: dict[int, Task], **how: Any) -> Plan:
    tried = world(model=mlp)
    wire, _ = inprocess.setup(SplitHalf(), tried, 0, Boundary())
    first = wire.first_model(0, tried.model)
    return Plan(
        models=torch.stack([first, first]),
        tasks=tasks,
        columns=slice(0, wire.layout.trainable),
        **how,
    )


def test_means_and_answers_are_those_of_the_single_updates() -> None:
    halves, question = Task(offered=(0,), halves=True), CellQuestion(ask="moments", scale=2.0)
    tasks = {c: replace(halves, offered=(int(c > IDS[1]),)) for c in IDS}
    seen, _ = carried(plan_of(tasks, need="rows", second_halves=True))
    summed, kept = carried(
        plan_of(
            {c: replace(t, private=PrivateTask(question=question)) for c, t in tasks.items()},
            need="sums",
            sketch=K,
        )
    )
    assert seen.halves is not None
    assert seen.halves.second is not None
    firsts = 2 * seen.all_updates - seen.halves.second
    columns = slice(0, seen.all_updates.shape[1])
    for row, at in ((0, [0, 1]), (1, [2, 3])):
        weights = np.array([seen.examples[i] for i in at]) / sum(seen.examples[i] for i in at)
        mean = (torch.from_numpy(weights).float() @ seen.all_updates[at])[columns]
        torch.testing.assert_close(summed.mean_updates[row], mean, rtol=1e-4, atol=1e-6)
        answers = [
            question.answer(
                sketch(torch.stack([firsts[i], seen.halves.second[i]]), K).numpy()
            ).astype(np.float64)
            for i in at
        ]
        np.testing.assert_allclose(summed.sums.by_row[row], sum(answers), rtol=1e-3, atol=1e-6)
    assert sorted(kept[HALVES]) == list(IDS)
    assert {tuple(each.shape) for each in kept[HALVES].values()} == {(2, K)}


def test_nothing_of_a_single_client_is_in_the_replies() -> None:
    tasks = {
        c: Task(
            offered=(0,), measure="train", private=PrivateTask(question=CellQuestion(ask="sizes"))
        )
        for c in IDS
    }
    seen, _ = carried(plan_of(tasks, need="sums"))
    assert seen.clients == IDS
    assert seen.examples.tolist() == [1] * len(IDS)
    assert (
        seen.losses,
        seen.accuracies,
        seen.updates,
        seen.gram,
        seen.halves,
        seen.limits.claimed,
    ) == (
        (),
        (),
        None,
        None,
        None,
        {},
    )
    bound, examples = sizes_of(seen.sums.by_row[0])
    assert bound > 0
    assert 20 / 2**0.25 <= examples <= 20 * 2**0.25  # each has 20 for training


def test_questions_are_answered_from_sketches_of_an_earlier_exchange() -> None:
    first = {
        c: Task(offered=(0,), halves=True, private=PrivateTask(sends_update=False)) for c in IDS
    }
    done, kept = carried(plan_of(first, need="sums", sketch=K))
    assert done.mean_updates.abs().max() == 0  # asked to keep their updates
    assert done.mean_counts is not None
    assert done.mean_counts.sum() == 0
    own = {c: kept[HALVES][c].numpy() for c in IDS}
    centres = np.stack([own[IDS[0]].mean(0), own[IDS[-1]].mean(0)])
    asked = {
        c: Task(
            offered=(0,),
            epochs=0,
            private=PrivateTask(question=CellQuestion(ask="cell", centres=centres, scale=1.0)),
        )
        for c in IDS
    }
    placed, after = carried(plan_of(asked, need="sums", sketch=K), kept, 1)
    assert (placed.sums.cells[IDS[0]], placed.sums.cells[IDS[-1]]) == (0, 1)
    assert placed.sums.cells == {c: asked[c].private.question.cell(own[c]) for c in IDS}  # type: ignore[union-attr]
    assert all(torch.equal(after[HALVES][c], kept[HALVES][c]) for c in IDS)
    means = {
        c: replace(task, private=PrivateTask(question=CellQuestion(ask="means", centres=centres)))
        for c, task in asked.items()
    }
    summed, _ = carried(plan_of(means, need="sums", sketch=K), kept, 1)
    assert summed.sums.by_row[0].reshape(2, -1)[:, 0].tolist() == [
        sum(v == i for v in placed.sums.cells.values()) for i in (0, 1)
    ]


def test_a_client_without_sketches_says_nothing() -> None:
    asked = {
        c: Task(offered=(0,), epochs=0, private=PrivateTask(question=CellQuestion(ask="means")))
        for c in IDS
    }
    seen, _ = carried(plan_of(asked, need="sums", sketch=K))
    assert (seen.sums.by_row, seen.sums.cells, seen.clients) == ({}, {}, IDS)


def test_bytes_of_a_question_are_those_of_the_answer() -> None:
    tried = world(model=mlp)
    wire, _ = inprocess.setup(SplitHalf(), tried, 0, Boundary())
    question = CellQuestion(ask="means", centres=np.zeros((3, K)))
    asked = plan_of(
        {c: Task(offered=(0,), epochs=0, private=PrivateTask(question=question)) for c in IDS},
        need="sums",
        sketch=K,
    )
    up, down = traffic(asked, wire)
    assert up == 4 * len(IDS) * 3 * (1 + K)
    assert down == 4 * len(IDS) * question.sent  # no model


def test_workers_change_no_bit() -> None:
    method = SplitHalfSums(level=0.9, probe_every=1, smallest=1, sketch=K)
    one, two = (play(method, world(model=mlp), 6, workers=workers) for workers in (1, 2))
    assert [a.assignment.groups for a in one] == [b.assignment.groups for b in two]
    assert all(
        torch.equal(a.assignment.models, b.assignment.models) for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize(
    "settings", [{"rotation": "permute"}, {"clip": 1.0}, {"compress": "8bit"}], ids=str
)
def test_a_boundary_for_single_updates_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="must be none for split-half-sums, got"):
        play(SplitHalfSums(), world(model=mlp), 1, boundary=Boundary(**settings))


def test_a_method_that_asks_only_for_sums() -> None:
    method, tried = SplitHalfSums(level=0.9, probe_every=1, smallest=1, sketch=K), world(model=mlp)
    seen: list[str] = []
    for done in play(method, tried, 8):
        plan = method.plan(done.position.state, Cohort(present=IDS, exchange=0, seed=0))
        seen.append(plan.need)
    assert set(seen) == {"sums"}


def test_a_robust_mean_is_refused_before_anybody_trains() -> None:
    with pytest.raises(
        SettingError,
        match=r"robust.mean must be mean for a method that asks for sums only, .* got median",
    ):
        inprocess.rehearse(
            SplitHalfSums(), world(model=mlp), 0, Boundary(), robust=Robust(mean="median")
        )
    with pytest.raises(SettingError, match=r"which needs single updates"):
        play(SplitHalfSums(), world(model=mlp), 1, robust=Robust(mean="median"))
    inprocess.rehearse(SplitHalfSums(), world(model=mlp), 0, Boundary(), robust=Robust())


def test_a_robust_mean_is_refused_behind_masks() -> None:
    masks = Boundary(masks=True)
    for call in (
        lambda: inprocess.rehearse(
            FedAvg(), world(model=mlp), 0, masks, robust=Robust(mean="median")
        ),
        lambda: play(FedAvg(), world(model=mlp), 1, boundary=masks, robust=Robust(mean="median")),
    ):
        with pytest.raises(
            SettingError, match=r"^robust.mean must be mean with boundary.masks, got median"
        ):
            call()
