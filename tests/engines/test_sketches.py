"""Sketches in an engine: replies are shortened as they come, and methods find the same groups in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.clustering import gram, sketch
from coterie.core import CHUNK, Plan, Task
from coterie.data.adversaries import Attack
from coterie.data.scenario import SCENARIOS
from coterie.engines import exchange as exchanges
from coterie.engines import rounds as gather
from coterie.engines.exchange import needed
from coterie.methods import CFL, FLHC, HCCT, HCCTE, HCCTP, FedAvg
from coterie.settings import SettingError
from scripted import outcome, play, shown
from small import client, mlp, normed, spoiled, world

IDS = (2, 3, 7, 11)
TASK = Task(offered=(0,))


def seen(task: Task, tried: Any, **plan: Any) -> Any:
    return shown([{"tasks": dict.fromkeys(tried.clients, task), **plan}], tried)[0]


@pytest.mark.parametrize("columns", [None, slice(0, 48), slice(10, 60)], ids=str)
@pytest.mark.parametrize(
    "task",
    [TASK, replace(TASK, gradient=True), Task(offered=(0, 1), choose=1)],
    ids=["train", "gradient", "choose"],
)
def test_what_a_step_sees_is_the_sketch_of_what_it_would_have_seen(
    task: Task, columns: slice | None
) -> None:
    tried = world(IDS, sizes=(20, 3, 50, 9))
    rows = seen(task, tried, need="rows", columns=columns)
    short = seen(task, tried, need="rows", columns=columns, sketch=16)
    expected = sketch(rows.updates[:, columns or slice(None)], 16)
    assert torch.equal(short.updates, expected)
    matrix = seen(task, tried, need="gram", columns=columns, sketch=16)
    assert matrix.updates is None
    assert (matrix.gram == gram(expected)).all()
    means = seen(task, tried, need="mean")
    for found in (short, matrix):
        assert torch.equal(found.means, means.means)
        assert found.mean_counts.tolist() == means.mean_counts.tolist()
        assert (found.clients, found.chosen, found.examples.tolist()) == (
            rows.clients,
            rows.chosen,
            rows.examples.tolist(),
        )


def test_scripted_worlds_see_the_same() -> None:
    tried = world(IDS)
    plan = Plan(
        models=torch.zeros(2, 75), tasks=dict.fromkeys(IDS, TASK), columns=slice(0, 60), sketch=16
    )
    rows = seen(TASK, tried, need="rows")
    for need in ("rows", "gram"):
        found, expected = (
            seen(TASK, tried, need=need, columns=plan.columns, sketch=16),
            needed(replace(plan, need=need), rows),
        )
        assert found.updates is expected.updates is None or torch.equal(
            found.updates, expected.updates
        )
        assert found.gram is expected.gram is None or (found.gram == expected.gram).all()
        assert torch.equal(found.means, expected.means)


def test_layers_that_stay_are_not_in_a_sketch() -> None:
    tried = world(IDS)
    kept = replace(TASK, local_layers=("2",))
    rows, short = (seen(kept, tried, need="rows", sketch=k) for k in (None, 16))
    assert torch.equal(short.updates, sketch(rows.updates, 16))
    assert not rows.updates[:, 48:].any()


def test_short_rows_are_their_own_sketches() -> None:
    tried = world(IDS)
    rows, short = (seen(TASK, tried, need="rows", sketch=k) for k in (None, 4096))
    assert torch.equal(short.updates, rows.updates)


def test_refused_and_untrained_replies_have_no_sketch() -> None:
    clients = {c: client(c) for c in IDS} | {7: spoiled(client(7), "train")}
    found = seen(TASK, world(IDS, clients=clients), need="rows", sketch=16)
    assert found.clients == (2, 3, 11)
    assert found.updates.shape == (3, 16)
    assert set(found.refused) == {7}
    measured = seen(
        Task(offered=(0,), epochs=0, measure="train"), world(IDS), need="rows", sketch=16
    )
    assert measured.updates is measured.means is measured.gram is None


class Towering(Attack):
    """An update that is finite itself, squared as well, and in a sketch is not."""

    def tampered(self, row: Tensor, sent: Tensor, *key: int) -> Tensor:
        d, size = len(row), 4
        up = torch.ones(1, size) @ sketch(torch.eye(d), size).T  # the longest way through the map
        return (up[0] / up.norm() * 1.5e19).float()


def test_an_update_whose_sketch_overflows_is_refused() -> None:
    tried = replace(world(IDS), attacks={7: Towering()})
    for need in ("rows", "gram"):
        assert set(seen(TASK, tried, need=need).refused) == set()
        assert set(seen(TASK, tried, need=need, sketch=4).refused) == {7}


def test_no_update_is_held_beyond_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    many = range(2 * CHUNK + 9)
    tried = world(many, clients={c: client(c, train=4, validation=2, test=2) for c in many})
    wide = seen(TASK, tried, need="rows", sketch=16)
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", 1)
    held = []
    train = gather.ClientPool.train

    def counted(self: Any, *arguments: Any) -> Any:
        answers = train(self, *arguments)
        held.append(len(self.worker.replies))
        return answers

    monkeypatch.setattr(gather.ClientPool, "train", counted)
    narrow = seen(TASK, tried, need="rows", sketch=16)
    assert held == [CHUNK] * 3
    torch.testing.assert_close(
        narrow.updates, wide.updates, rtol=1e-4, atol=1e-6
    )  # other blocks, other rounding
    torch.testing.assert_close(narrow.means, wide.means, rtol=1e-4, atol=1e-6)


NO_GROUPS = HCCT(sketch=1024, memory=0.0)
"""The paper's HCCT dissolves groups near their optima, with sketches and without."""

METHODS = [
    CFL(sketch=1024, post_split="parent-mean"), CFL(sketch=1024, post_split="parent-mean", similarity="gradients"),
    FLHC(warmup=3, sketch=1024), HCCT(sketch=1024), NO_GROUPS, HCCTP(sketch=1024), HCCTE(sketch=64),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if m != NO_GROUPS], ids=str)
def test_methods_find_the_groups_in_sketches(method: Any) -> None:
    tried = SCENARIOS["digits/label-permutation"].build(0)
    full = play(replace(method, sketch=None), tried, 25, 2, eval_every=99)[-1].assignment
    short = play(method, tried, 25, 2, eval_every=99)[-1].assignment
    assert short.groups == full.groups
    assert len(full.groups) > 1


@pytest.mark.parametrize(
    ("method", "model"),
    [*((method, mlp) for method in METHODS), (METHODS[0], normed), (HCCTE(sketch=64), normed)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_methods_with_sketches_as_wide_as_a_model_are_the_methods(method: Any, model: Any) -> None:
    """Then sketches are the updates, and only what is averaged where differs: rounding."""
    tried = world(range(6), model=model, sizes=(20, 3, 50, 9, 17, 18))
    eager: dict[str, Any] = (
        {"eps1": 10.0, "eps2": 0.0, "gamma_max": 0.0, "persistence": 1}
        if isinstance(method, CFL)
        else {}
    )
    if isinstance(method, FLHC):
        eager = {"warmup": 1, "threshold": None, "groups": 2}
    whole = play(replace(method, sketch=None, **eager), tried, 4)
    short = play(replace(method, sketch=4096, **eager), tried, 4)
    for one, other in zip(whole, short, strict=True):
        assert one.assignment.groups == other.assignment.groups
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-3, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS[:4], HCCTE(sketch=64), HCCTE(sketch=8)], ids=str)
def test_late_clients_find_their_place_by_sketches(method: Any) -> None:
    """They come, are silent, and go, with sketches on the edges of the tree."""
    setup = replace(
        SCENARIOS["digits/label-permutation"],
        clients=10,
        newcomers=2,
        join_round=6,
        silent=0.2,
        leavers=1,
        leave=(8, 9),
    )
    rounds = 3 if isinstance(method, FLHC) else None
    method = replace(method, warmup=2) if rounds else method
    done = play(method, setup.build(0), 12, 2, eval_every=99)
    assert sorted(c for g in done[-1].assignment.groups for c in g) == sorted(
        done[-1].position.members
    )


def test_a_sketch_is_refused_where_it_cannot_do() -> None:
    with pytest.raises(SettingError, match=r"FLHC.sketch needs metric l2 or cosine, got l1"):
        FLHC(metric="l1", linkage="complete", sketch=64)
    with pytest.raises(
        SettingError, match=r"CFL.sketch needs post_split parent-mean, got child-mean"
    ):
        CFL(sketch=64)
    for method in (CFL, FLHC, HCCT):
        with pytest.raises(SettingError, match=r"sketch must be a positive multiple of 4, got 63"):
            method(sketch=63)


def test_the_number_of_workers_changes_no_bit_of_sketches() -> None:
    tried = world(range(6))
    alone, three = (outcome(play(HCCT(sketch=16), tried, 3, workers)) for workers in (1, 3))
    assert alone == three
    assert play(FedAvg(), tried, 1)[0].answered == 6


@pytest.mark.parametrize(
    ("method", "unsure"),
    [
        (
            CFL(
                sketch=16,
                post_split="parent-mean",
                eps1=10.0,
                eps2=0.0,
                gamma_max=0.0,
                persistence=1,
            ),
            True,
        ),
        (FLHC(warmup=1, threshold=None, groups=2, sketch=16), True),
        (
            FLHC(
                warmup=1, threshold=None, groups=2, sketch=16, metric="cosine", linkage="complete"
            ),
            True,
        ),
        (
            FLHC(
                warmup=1, threshold=None, groups=2, sketch=4096, metric="cosine", linkage="complete"
            ),
            False,
        ),
        (
            FLHC(
                warmup=1, threshold=None, groups=6, sketch=16, metric="cosine", linkage="complete"
            ),
            False,
        ),
    ],
    ids=str,
)
def test_a_decision_that_a_sketch_may_have_changed_says_so(method: Any, unsure: bool) -> None:
    notes = [note.text for r in play(method, world(range(6)), 3) for note in r.notes if note.parts]
    assert notes
    assert any("unsure" in text for text in notes) == unsure
