"""Running means against the definition, however many updates come at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import CHUNK, Means, Replies, average, group_means


def drawn(n: int, d: int = 5, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=gen), torch.randint(
        1, 50, (n,), generator=gen
    ).numpy().astype(float)


def by_definition(
    updates: torch.Tensor, amounts: np.ndarray, groups: list[list[int]], k: int
) -> np.ndarray:
    out = np.zeros((k, updates.shape[1]))
    for group in range(k):
        members = [i for i, of in enumerate(groups) if group in of]
        if members:
            out[group] = (updates.double().numpy()[members] * amounts[members, None]).sum(
                0
            ) / amounts[members].sum()
    return out


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3 * CHUNK), st.integers(1, 5), st.randoms(use_true_random=False))
def test_means_of_many_groups(n: int, k: int, random: object) -> None:
    updates, amounts = drawn(n, seed=n)
    groups = [[g for g in range(k) if random.random() < 0.5] for _ in range(n)]  # type: ignore[attr-defined]
    means = Means(k, 5)
    means.add(updates, amounts, groups)
    np.testing.assert_allclose(
        means.means.numpy(), by_definition(updates, amounts, groups, k), rtol=1e-4, atol=1e-5
    )
    assert means.counts.tolist() == [sum(g in of for of in groups) for g in range(k)]


def test_what_comes_at_a_time_changes_no_bit() -> None:
    updates, amounts = drawn(5 * CHUNK + 7)
    groups: list[Iterable[int]] = [(i % 3, 3) for i in range(len(updates))]
    whole = Means(4, 5)
    whole.add(updates, amounts, groups)
    for step in (CHUNK, 2 * CHUNK, 4 * CHUNK):
        parts = Means(4, 5)
        for start in range(0, len(updates), step):
            part = slice(start, start + step)
            parts.add(updates[part], amounts[part], groups[part])
        assert torch.equal(parts.means, whole.means)
        assert parts.counts.tolist() == whole.counts.tolist()


@pytest.mark.parametrize("n", [1, 2, CHUNK])
def test_few_updates_are_averaged_at_once(n: int) -> None:
    updates, amounts = drawn(n)
    means = Means(1, 5)
    means.add(updates, amounts, [(0,)] * n)
    assert torch.equal(means.means[0], average(updates, amounts / amounts.sum()))


def test_means_of_named_groups() -> None:
    updates, amounts = drawn(4)
    replies = Replies(clients=(2, 5, 7, 9), examples=amounts.astype(np.int64), updates=updates)
    means, heard = group_means(replies, [(5, 9), (1, 3), (2, 5, 8)])
    np.testing.assert_allclose(
        means.numpy(),
        by_definition(updates, amounts, [[2], [0, 2], [], [0]], 3),
        rtol=1e-5,
        atol=1e-6,
    )
    assert heard.tolist() == [2, 0, 2]
    equal, _ = group_means(replies, [(5, 9)], "uniform")
    torch.testing.assert_close(equal[0], (updates[1] + updates[3]) / 2)
