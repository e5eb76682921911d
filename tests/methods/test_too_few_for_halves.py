"""Clients with too few examples to be halved, under every method that asks for halves."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.methods import CFL, HCCT, SplitHalf
from method_examples import check_assignment
from worlds import THREE, TRUTH, grouped, play

ASKING: dict[str, Any] = {
    "split-half": SplitHalf(level=1e-3, probe_every=2, review_every=6),
    "cfl": CFL(gamma_max=None),
    "hcct": HCCT(cosines="signals"),
}
SINGLE = frozenset({31, 5})


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKING)
def test_they_are_averaged_and_find_their_groups(name: str) -> None:
    for seed in range(3):
        world = grouped(THREE, seed=seed, single=SINGLE)
        history = list(play(ASKING[name], world, 60))
        asked = [p for p in history if p.replies.halves is not None]
        assert asked
        for played in asked:
            assert not set(played.replies.halves.clients) & SINGLE
            assert set(played.replies.clients) >= SINGLE
        for played in history:
            check_assignment(played.assignment, world.clients)
        assert history[-1].groups == TRUTH


@pytest.mark.parametrize("name", ASKING)
def test_a_group_of_nobody_else_stays_whole(name: str) -> None:
    everyone = tuple(sorted(c for group in THREE for c in group))
    for single in (frozenset(everyone), frozenset(everyone[1:])):
        assert all(
            p.groups == (everyone,)
            for p in play(ASKING[name], grouped([everyone], single=single), 30)
        )


def test_cfl_says_where_it_cannot_measure() -> None:
    world = grouped(THREE, single=frozenset(c for group in THREE for c in group if c != 2))
    history = list(play(CFL(gamma_max=None), world, 40))
    texts = [note.text for played in history for note in played.notes]
    assert any(text.endswith("fewer than two members sent updates of halves") for text in texts)
    assert len(history[-1].groups) == 1
