"""What holds of every method when clients are silent, join late, leave and come back.

The quick tests have one method of each kind here: the laws of tests/methods/test_contract.py, which
they hold all methods to, have clients that are silent, leave and come back as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import Admits, Cohort
from method_examples import (
    DECIDES,
    EXAMPLES,
    FINDS_GROUPS,
    check_assignment,
    of_each_kind,
)
from worlds import THREE, TRUTH, Pull, grouped, last, play

Silence = Callable[[int, int], bool]


def at_random(seed: int, share: float = 0.3) -> Silence:
    draws = np.random.default_rng(seed).random((200, 100)) < share
    return lambda exchange, client: bool(draws[exchange, client])


def sums_to_one(name: str) -> bool:
    """Whether a trained model is an average; not by IFCA's gradients, Cho's MAXFL, FedOpt, SCAFFOLD and old updates."""
    method = EXAMPLES[name]
    if method.name in ("fedopt", "scaffold") or getattr(method, "mode", "") == "buffered":
        return False
    return getattr(method, "averaging", "") != "gradients" and getattr(method, "rule", "") != "cho"


@pytest.mark.parametrize("name", of_each_kind(name for name in EXAMPLES if sums_to_one(name)))
def test_weights_sum_to_one_whoever_answers(name: str) -> None:
    # All clients train to the same model from wherever they start: so does every average of some of
    # them.
    everyone = sorted(c for group in THREE for c in group)
    world = replace(grouped([everyone], noise=0.0, examples={2: 5, 17: 1, 3: 7, 99: 2}), rate=1.0)
    target, before = world.targets[2], None
    kept = [slice(*world.columns[layer]) for layer in _kept(EXAMPLES[name], world)]
    for played in play(EXAMPLES[name], world, 20, silent=at_random(1)):
        after = served(played)
        for client in played.replies.clients if before is not None else ():
            model = after[client].clone()
            for columns in kept:
                model[columns] = target[columns]  # no server averages these
            still = torch.equal(after[client], before[client])
            assert still or torch.allclose(model, target, atol=1e-5), (client, played.notes)
        before = after


def _kept(method: Any, world: Pull) -> set[str]:
    """Layers that stay at the clients, and those that no stage of training changes."""
    tasks = method.plan(
        method.init(world.federation()), Cohort(present=world.clients, exchange=0, seed=0)
    ).tasks.values()
    still = {
        layer
        for t in tasks
        if t.stages
        for layer in world.columns
        if not any(layer in s.layers for s in t.stages)
    }
    return still | {layer for task in tasks for layer in task.local_layers}


def served(played: Any) -> dict[int, torch.Tensor]:
    return {client: played.assignment.models[row] for client, row in played.assignment.row.items()}


@pytest.mark.parametrize(
    "name", of_each_kind(name for name in EXAMPLES if not name.startswith("flsc"))
)  # its groups overlap
def test_the_model_of_a_silent_client_changes_with_its_groups_only(name: str) -> None:
    before = None
    group_before: dict[int, set[int]] = {}
    for played in play(EXAMPLES[name], grouped(THREE), 20, silent=at_random(2)):
        after, heard = served(played), set(played.replies.clients)
        # After another start, or when another arm takes the lead, the models of all clients are
        # others.
        another_lead = any(note.kind in ("lead", "arms") for note in played.notes)
        another_start = another_lead or ("restarts" in name and not played.plan.ends_round)
        for group in played.groups if before is not None and not another_start else ():
            for client in set(group) - heard:
                moved = not torch.equal(after[client], before[client])
                # A group that has just been divided learned from all its former members.
                learned_from = set(group) | group_before[client]
                assert not moved or heard & learned_from, client
        before = after
        group_before = {client: set(group) for group in played.groups for client in group}


@pytest.mark.parametrize(
    "name", of_each_kind(name for name in FINDS_GROUPS if "private" not in name)
)  # it probes once, with too few here
def test_finds_the_groups_with_three_in_ten_silent(name: str) -> None:
    found = [
        last(EXAMPLES[name], grouped(THREE, seed=s), 100, silent=at_random(s)).groups == TRUTH
        for s in range(5)
    ]
    assert sum(found) >= 4


@pytest.mark.parametrize("name", of_each_kind(EXAMPLES))
def test_clients_join_leave_and_come_back(name: str) -> None:
    method, whole = EXAMPLES[name], grouped(THREE)
    assert isinstance(method, Admits)

    def of(clients: tuple[int, ...]) -> Pull:
        return replace(whole, targets={c: whole.targets[c] for c in clients})

    founders = tuple(c for c in whole.clients if c not in (5, 17, 29))
    state, first = method.init(of(founders).federation()), 0
    members = founders
    for change, clients in (
        (method.admit, (5, 17)),
        (method.retire, (17, 2, 3, 5, 50, 51)),
        (method.admit, (2, 29)),
    ):
        for played in play(method, of(members), 8, state=state, first=first):
            check_assignment(played.assignment, members)
        state, first = change(played.state, clients), first + 8
        members = tuple(sorted(set(members) ^ set(clients)))
        check_assignment(method.assignment(state), members)
    for played in play(method, of(members), 8, state=state, first=first, silent=at_random(3)):
        check_assignment(played.assignment, members)
        assert set(played.plan.tasks) <= set(members)


@pytest.mark.parametrize("name", of_each_kind(DECIDES))
def test_newcomers_and_who_returns_find_their_groups(name: str) -> None:
    method, whole = EXAMPLES[name], grouped(THREE)
    founders = tuple(c for c in whole.clients if c not in (5, 17, 29))
    end = last(method, replace(whole, targets={c: whole.targets[c] for c in founders}), 60)
    state = method.admit(method.retire(end.state, (8,)), (5, 8, 17, 29))
    assert last(method, whole, 60, state=state, first=60).groups == TRUTH


@pytest.mark.parametrize("name", of_each_kind(EXAMPLES))
def test_where_all_have_left_there_is_no_group(name: str) -> None:
    method, world = EXAMPLES[name], grouped(THREE)
    state = method.retire(last(method, world, 5).state, world.clients)
    check_assignment(method.assignment(state), ())
    assert method.assignment(state).groups == ()


@pytest.mark.parametrize("name", of_each_kind(EXAMPLES))
def test_all_may_leave_but_one(name: str) -> None:
    method, world = EXAMPLES[name], grouped(THREE)
    state = method.retire(last(method, world, 12).state, tuple(c for c in world.clients if c != 40))
    one = replace(world, targets={40: world.targets[40]})
    for played in play(method, one, 5, state=state, first=12):
        assert played.groups == ((40,),)
