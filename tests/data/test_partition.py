"""Dealing examples to clients: nobody's twice, nobody without, the same from the same seed; and what each way promises."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import partition
from coterie.data.partition import Parts
from coterie.data.shift import deal
from coterie.settings import SettingError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(examples: int, classes: int, seed: int = 0) -> np.ndarray:
    return rng(seed).permutation(np.arange(examples) % classes)


WAYS: dict[str, Callable[[np.ndarray, int, np.random.Generator], Parts]] = {
    "iid": lambda labels, n, r: partition.iid(len(labels), n, r),
    "shards": lambda labels, n, r: partition.shards(labels, n, 2, r),
    "half-normal": lambda labels, n, r: partition.half_normal(labels, n, 3 * n, r),
    "dirichlet": lambda labels, n, r: partition.dirichlet(labels, n, 0.1, r),
    "dirichlet-least": lambda labels, n, r: partition.dirichlet(labels, n, 0.1, r, least=5),
    "quantity": lambda labels, n, r: partition.quantity(len(labels), n, 0.1, r),
    "ranges": lambda labels, n, r: partition.ranges(len(labels), n, 1, 5, r),
    "classes": lambda labels, n, r: partition.class_groups(labels, np.arange(n) % 2, r),
    "some classes": lambda labels, n, r: partition.class_groups(
        labels, np.arange(n) % 2, r, per_group=2, per_client=1, sizes=(n, 2 * n)
    ),
    "owners": lambda labels, n, r: partition.by_owner(np.arange(len(labels)) % n, n, r),
    "kinds": lambda labels, n, r: partition.by_kind(labels % 4, np.arange(n) % 4, r),
}
COVERS = {"iid", "shards", "dirichlet", "dirichlet-least", "quantity", "classes", "owners", "kinds"}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(4, 12),
    classes=st.integers(4, 10),
    extra=st.integers(0, 50),
)
def test_every_way_deals_examples_once(
    way: str, seed: int, n: int, classes: int, extra: int
) -> None:
    labels = labels_of(5 * n * classes + extra, classes, seed)
    parts = WAYS[way](labels, n, rng(seed))
    dealt = np.concatenate(parts)
    assert len(parts) == n
    assert all(len(part) for part in parts)
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < len(labels)
    if way in COVERS:
        assert len(dealt) == len(labels)
    again = WAYS[way](labels, n, rng(seed))
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


def test_seeds_differ() -> None:
    a, b = (partition.iid(100, 4, rng(seed)) for seed in (0, 1))
    assert not all((x == y).all() for x, y in zip(a, b, strict=True))


def test_iid_parts_are_equal() -> None:
    assert sorted(map(len, partition.iid(1797, 20, rng()))) == [89] * 3 + [90] * 17


def test_two_shards_are_two_labels() -> None:
    labels = np.repeat(np.arange(10), 600)  # 20 shards of 300: no shard has two labels
    parts = partition.shards(labels, 10, 2, rng())
    assert all(len(part) == 600 and len(np.unique(labels[part])) <= 2 for part in parts)


def test_half_normal_counts_are_the_floor_of_the_shares() -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = partition.half_normal(labels, 10, 100, rng(3))
    draws = np.abs(rng(3).standard_normal(10))
    assert [len(part) // 10 for part in parts] == [
        max(int(100 * x / draws.sum()), 1) for x in draws
    ]


def test_half_normal_has_hccts_sizes() -> None:
    """HCCT's CIFAR-10: 100 shards of 500, a train ratio of .2 and 10 clients make about 950 training images each."""
    labels = np.repeat(np.arange(10), 5000)
    used = [sum(map(len, partition.half_normal(labels, 10, 100, rng(seed)))) for seed in range(20)]
    assert 930 <= 0.2 * np.mean(used) / 10 <= 970


def test_half_normal_gives_everyone_a_shard() -> None:
    assert all(
        len(part) for part in partition.half_normal(np.repeat(np.arange(4), 10), 20, 20, rng())
    )


def test_small_alpha_skews_and_large_alpha_does_not() -> None:
    labels = labels_of(10_000, 10)
    spread = {}
    for alpha in (0.1, 100.0):
        parts = partition.dirichlet(labels, 10, alpha, rng(), least=10)
        assert min(map(len, parts)) >= 10
        spread[alpha] = np.std(
            [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
        )
    assert spread[0.1] > 0.2 > 0.03 > spread[100.0]


def test_quantity_skews_sizes_alone() -> None:
    labels = labels_of(20_000, 4)
    parts = partition.quantity(len(labels), 10, 0.5, rng(1), least=200)
    assert max(map(len, parts)) > 5 * min(map(len, parts))
    assert all(np.abs(np.bincount(labels[part]) / len(part) - 0.25).max() < 0.12 for part in parts)
    assert all(30 <= len(part) <= 40 for part in partition.ranges(1000, 10, 30, 40, rng()))


def test_groups_of_classes_are_disjoint() -> None:
    labels, groups = labels_of(1000, 10), deal(8, 4, rng())
    parts = partition.class_groups(labels, groups, rng())
    sets = [frozenset(np.unique(labels[part])) for part in parts]
    for a in range(8):
        for b in range(a):
            assert sets[a] == sets[b] if groups[a] == groups[b] else not sets[a] & sets[b]
    found = partition.same_classes(labels, parts)
    assert found is not None
    assert len({*zip(found, groups, strict=True)}) == 4


def test_acfls_three_tasks() -> None:
    """ACFL: 16 clients, 20 of the classes in 4 groups of 5, three at each client, unequal numbers of each class."""
    labels, groups = np.repeat(np.arange(30), 500), np.arange(16) % 4
    parts = partition.class_groups(
        labels, groups, rng(), per_group=5, per_client=3, sizes=(50, 500)
    )
    sets = [frozenset(np.unique(labels[part])) for part in parts]
    assert all(len(classes) == 3 for classes in sets)
    assert len(frozenset().union(*sets)) == 20
    assert [len(frozenset().union(*sets[g::4])) for g in range(4)] == [5] * 4
    assert sets[0] & sets[4]
    assert sets[0] != sets[4]
    assert partition.same_classes(labels, parts) is None
    sizes = np.unique(labels[np.concatenate(parts)], return_counts=True)[1]
    assert 50 <= sizes.min() < 200 < 350 < sizes.max() <= 500


def test_each_client_is_one_writer() -> None:
    owners = np.repeat([7, 3, 9, 4], [5, 6, 2, 5])
    parts = partition.by_owner(owners, 3, rng(), least=3)
    assert sorted(int(owners[part[0]]) for part in parts) == [3, 4, 7]
    assert all(len(np.unique(owners[part])) == 1 for part in parts)
    with pytest.raises(
        SettingError, match="4 clients requested, but only 3 writers have at least 3 examples"
    ):
        partition.by_owner(owners, 4, rng(), least=3)


def test_each_client_sees_its_domain() -> None:
    kinds, groups = np.repeat([0, 1, 2], [10, 20, 30]), np.array([2, 0, 1, 2])
    parts = partition.by_kind(kinds, groups, rng())
    assert [np.unique(kinds[part]).tolist() for part in parts] == [[2], [0], [1], [2]]
    assert [len(part) for part in parts] == [15, 10, 20, 15]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: partition.iid(3, 4, rng()),
            "4 clients of at least 1 examples need 4, and there are 3",
        ),
        (
            lambda: partition.shards(np.zeros(5, int), 3, 2, rng()),
            "3 clients of at least 2 examples need 6",
        ),
        (
            lambda: partition.half_normal(np.zeros(50, int), 9, 8, rng()),
            "at least one shard per client: 8 shards, 9",
        ),
        (
            lambda: partition.dirichlet(np.zeros(9, int), 2, 1.0, rng(), 5),
            "2 clients of at least 5 examples need 10",
        ),
        (lambda: partition.ranges(100, 10, 20, 30, rng()), "need"),
        (lambda: partition.ranges(100, 10, 5, 4, rng()), "1 <= lowest <= highest, got 5 and 4"),
        (
            lambda: partition.class_groups(np.arange(3), np.arange(4), rng()),
            "4 groups of 1 classes need 4, and there are 3",
        ),
        (
            lambda: partition.class_groups(np.arange(4), np.zeros(2, int), rng(), per_client=5),
            "cannot hold 5 of the 4",
        ),
        (
            lambda: partition.class_groups(np.arange(4), np.arange(8) % 4, rng()),
            "too few for 8 clients in 4 groups",
        ),
        (
            lambda: partition.by_kind(np.zeros(3, int), np.array([0, 1]), rng()),
            "1 clients of at least 1 examples",
        ),
    ],
)
def test_too_few_examples_are_one_sentence(call: Callable[[], Parts], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        call()
