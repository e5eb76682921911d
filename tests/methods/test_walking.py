"""Newcomers on a trained tree: Algorithm 4, a level per exchange, also while the leaf they are heading for splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.core import Client, Cohort, as_groups
from coterie.methods import CFL
from worlds import THREE, Played, Pull, grouped, last, play

EIGHT = tuple(tuple(range(8 * g, 8 * g + 6)) for g in range(8))
"""Eight groups of six clients; 8 g + 6 and 8 g + 7 would be theirs too."""


def eight(noise: float = 0.02, seed: int = 1) -> Pull:
    """Groups in pairs, pairs in fours: a tree of at least three levels."""
    gen = torch.Generator().manual_seed(seed)
    d, directions = 24, torch.linalg.qr(torch.randn(24, 24, generator=gen)).Q
    targets = {}
    for g in range(8):
        signs = [1 if g >> bit & 1 else -1 for bit in (2, 1, 0)]
        target = 3.2 * signs[0] * directions[0]
        target = (
            target
            + 3 * signs[1] * directions[1 + (g >> 2)]
            + 2.8 * signs[2] * directions[3 + (g >> 1)]
        )
        targets.update(dict.fromkeys(range(8 * g, 8 * g + 8), target))
    assert len(target) == d
    return Pull(targets=targets, noise=noise)


def only(world: Pull, clients: tuple[Client, ...]) -> Pull:
    return replace(world, targets={c: world.targets[c] for c in clients})


def go_on(method: Any, world: Pull, state: Any, exchanges: int, first: int) -> Played:
    return last(method, world, exchanges, state=state, first=first)


def truth(clients: tuple[Client, ...]) -> tuple[tuple[Client, ...], ...]:
    return as_groups([c for c in clients if c // 8 == g] for g in range(8))


@pytest.fixture(scope="module")
def trained() -> tuple[Pull, Played]:
    world = eight()
    clients = tuple(c for group in EIGHT for c in group)
    end = last(CFL(), only(world, clients), 120)
    assert end.groups == EIGHT
    assert sum(node.model is not None for node in end.state.tree.nodes) == 7
    assert max(len(end.state.tree.path(leaf.node)) for leaf in end.state.leaves) >= 4
    return world, end


@pytest.mark.slow
def test_ten_newcomers_reach_their_true_leaves(trained: tuple[Pull, Played]) -> None:
    world, end = trained
    new = (6, 7, 14, 22, 30, 31, 38, 46, 55, 63)
    state = CFL().admit(end.state, new)
    waiting = CFL().assignment(state)
    assert new in waiting.groups  # all at the root, served by its model
    assert torch.equal(waiting.models[waiting.row[6]], state.tree.nodes[0].model)
    everyone = tuple(sorted((*end.assignment.row, *new)))
    after = go_on(CFL(), only(world, everyone), state, 8, 120)
    assert after.groups == truth(everyone)
    assert not after.state.walkers
    for leaf in after.state.leaves:  # every node on the way knows them
        assert all(
            set(leaf.clients) <= set(node.clients) for node in after.state.tree.path(leaf.node)
        )


def test_a_step_costs_one_training_per_level_and_says_why(trained: tuple[Pull, Played]) -> None:
    world, end = trained
    state = CFL().admit(end.state, (63,))
    levels = 0
    for played in play(CFL(), only(world, (*end.assignment.row, 63)), 6, state=state, first=120):
        notes = [n for n in played.notes if n.kind in ("walk", "join")]
        levels += len(notes)
        if notes:
            assert notes[0].clients == (63,)
            assert "greatest cosine" in notes[0].text
            task = played.plan.tasks[63]
            assert torch.equal(
                played.plan.models[task.offered[0]], end.state.tree.nodes[_at(notes[0], end)].model
            )
            assert task.lr_round == end.state.tree.nodes[_at(notes[0], end)].round
    leaf = next(leaf for leaf in played.state.leaves if 63 in leaf.clients)
    assert levels == len(played.state.tree.path(leaf.node)) - 1


def _at(note: Any, end: Played) -> int:
    return end.state.tree.nodes[note.labels["node"]].parent


@pytest.mark.slow
def test_three_join_in_the_very_round_their_leaf_splits() -> None:
    world, late = grouped(THREE), (17, 5, 29)
    founders = tuple(c for c in world.clients if c not in late)
    method = CFL()
    when = [
        p
        for p in play(method, only(world, founders), 40)
        if any(n.kind == "split" for n in p.notes)
    ]
    rounds = [p.state.round for p in when]
    assert len(rounds) == 2
    for split in rounds:  # the root's own split, and a split below it
        for early in (
            0,
            1,
        ):  # known before the exchange of the split, or one earlier, so that they arrive in it
            state, joined = method.init(only(world, founders).federation()), False
            for exchange in range(40):
                if exchange == split - 1 - early and not joined:
                    state, joined = method.admit(state, late), True
                mine = only(world, tuple(sorted((*founders, *late))) if joined else founders)
                plan = method.plan(state, Cohort(present=mine.clients, exchange=exchange, seed=0))
                state = method.step(state, mine.replies(plan, exchange, lambda *_: False))
            assert method.assignment(state).groups == as_groups(THREE), (split, early)


def test_a_walker_whose_leaf_splits_as_it_arrives_walks_on() -> None:
    # Client 29 comes to a leaf in the exchange that splits it: it is no member yet, so it stands at
    # the inner node.
    world, late = grouped(THREE), (29,)
    founders = tuple(c for c in world.clients if c not in late)
    method = CFL()
    second = [
        p.state.round
        for p in play(method, only(world, founders), 40)
        if any(n.kind == "split" for n in p.notes)
    ][1]
    state = last(method, only(world, founders), second - 1).state
    state = method.admit(state, late)
    plan = method.plan(state, Cohort(present=world.clients, exchange=second - 1, seed=0))
    state = method.step(state, world.replies(plan, second - 1, lambda *_: False))
    assert any(n.kind == "split" for n in state.notes)
    assert method.assignment(
        last(method, world, 3, state=state, first=second).state
    ).groups == as_groups(THREE)


def test_who_leaves_and_comes_back_finds_its_leaf_again(trained: tuple[Pull, Played]) -> None:
    world, end = trained
    whole = EIGHT[3]
    state = CFL().retire(end.state, (0, *whole))  # one client, and a whole group
    left = CFL().assignment(state)
    assert sorted(left.row) == [c for c in end.assignment.row if c not in (0, *whole)]
    assert len(left.groups) == 7
    mine = only(world, tuple(left.row))
    state = go_on(CFL(), mine, state, 3, 120).state
    state = CFL().admit(state, (0, *whole))
    after = go_on(CFL(), only(world, tuple(sorted((*left.row, 0, *whole)))), state, 8, 123)
    assert after.groups == EIGHT


def test_newcomers_before_any_split_are_members_at_once() -> None:
    world = grouped(THREE)
    founders = tuple(c for c in world.clients if c not in (17, 5))
    state = CFL().admit(last(CFL(), only(world, founders), 2).state, (17, 5))
    assert CFL().assignment(state).groups == (world.clients,)
    assert last(CFL(), world, 40, state=state, first=2).groups == as_groups(THREE)


def test_silent_newcomers_wait_where_they_are(trained: tuple[Pull, Played]) -> None:
    world, end = trained
    state = CFL().admit(end.state, (63,))
    mine = only(world, (*end.assignment.row, 63))
    still = last(CFL(), mine, 4, state=state, first=120, silent=lambda e, c: c == 63)
    assert still.state.walkers == {63: 0}
    assert (63,) in still.groups


def test_gradients_on_the_edges_are_compared_with_gradients() -> None:
    method, world = CFL(similarity="gradients", post_split="parent-mean"), grouped(THREE)
    founders = tuple(c for c in world.clients if c not in (17, 5, 29))
    end = last(method, only(world, founders), 60)
    assert len(end.groups) == 3
    state = method.admit(end.state, (5, 17, 29))
    seen = False
    for played in play(method, world, 6, state=state, first=60):
        walking = [
            task for c, task in played.plan.tasks.items() if c in (5, 17, 29) and task.gradient
        ]
        seen = seen or bool(walking)
    assert seen
    assert played.groups == as_groups(THREE)


def test_every_client_can_be_given_any_model_on_its_path(trained: tuple[Pull, Played]) -> None:
    _, end = trained
    assignment, tree = end.assignment, end.state.tree
    for leaf in end.state.leaves:
        for client in leaf.clients:
            models = assignment.models[list(assignment.path[client])]
            expected = [n.model for n in tree.path(leaf.node)[:-1]] + [leaf.model]
            assert torch.equal(models, torch.stack(expected))
            assert assignment.row[client] == assignment.path[client][-1]
    assert CFL(ensemble=True).assignment(end.state).ensemble


@pytest.mark.slow
def test_sketched_edges_find_the_same_leaves() -> None:
    world = eight()
    clients = tuple(c for group in EIGHT for c in group)
    method = CFL(edge_sketch=20)
    end = last(method, only(world, clients), 120)
    assert end.groups == EIGHT
    assert {n.updates.shape[1] for n in end.state.tree.nodes if n.updates is not None} == {20}
    new = (7, 15, 23, 31, 39, 47, 55, 63)
    everyone = tuple(sorted((*clients, *new)))
    after = go_on(method, only(world, everyone), method.admit(end.state, new), 8, 120)
    assert after.groups == truth(everyone)
