"""Groups followed through rounds: what goes on, what is new, where it came from and why."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coterie.report.gathered import follow, memberships, ordered
from page_runs import line, note


def test_a_split_ends_a_group_and_begins_two() -> None:
    lines = [
        line(1, [[0, 1, 2, 3, 4]]),
        line(2, [[0, 1, 2, 3], [4]], note("split", [0, 1, 2, 3, 4], [[0, 1, 2, 3], [4]])),
        line(3, [[0, 1, 2, 3], [4]], note("keep", [4])),
    ]
    nodes, places = follow(lines)
    assert [(node.first, node.last, node.parents, node.kind) for node in nodes] == [
        (1, 1, (), ""),
        (2, 3, (0,), "split"),
        (2, 3, (0,), "split"),
    ]
    assert places == [[0], [1, 2], [1, 2]]
    assert nodes[1].why == "why it is a split"


def test_who_comes_goes_and_moves_does_not_end_a_group() -> None:
    lines = [
        line(1, [[0, 1, 2], [3, 4, 5]]),
        line(2, [[0, 1, 2, 5, 8], [3, 4]], note("move", [5]), note("join", [8])),
        line(3, [[0, 1, 5, 8], [2, 3, 4]], note("move", [2])),
    ]
    nodes, places = follow(lines)
    assert places == [[0, 1]] * 3
    assert nodes[0].clients == (0, 1, 5, 8)
    assert nodes[1].clients == (2, 3, 4)


def test_groups_that_merge_are_a_new_one_of_the_greater_half() -> None:
    lines = [line(1, [[0, 1], [2, 3]]), line(2, [[0, 1, 2, 3]], note("merge", [0, 1, 2, 3]))]
    nodes, _ = follow(lines)
    assert (nodes[2].parents, nodes[2].kind, nodes[2].first) == ((0, 1), "merge", 2)


def test_a_newcomer_alone_has_no_parent_and_its_own_reason() -> None:
    lines = [line(1, [[0, 1]]), line(2, [[0, 1], [7]], note("keep", [0, 1]), note("join", [7]))]
    nodes, _ = follow(lines)
    assert (nodes[1].parents, nodes[1].kind) == ((), "join")


def test_a_partition_of_all_divides_only_the_groups_that_change() -> None:
    everyone = [0, 1, 2, 3, 4]
    parts = [[0, 1], [2, 3, 4]]
    later = [[0, 1], [2], [3], [4]]
    lines = [
        line(1, parts, note("partition", everyone, parts)),
        line(2, parts, note("partition", everyone)),
        line(3, later, note("partition", everyone, later)),
    ]
    nodes, places = follow(lines)
    assert places == [[0, 1], [0, 1], [0, 2, 3, 4]]
    assert all(node.parents == (1,) and node.kind == "partition" for node in nodes[2:])


partitions = st.lists(st.integers(0, 3), min_size=6, max_size=6).map(
    lambda labels: [[c for c in range(6) if labels[c] == g] for g in sorted(set(labels) - {3})]
)
"""Of six clients; those with label 3 are not there."""


@given(st.lists(partitions.filter(bool), min_size=1, max_size=6))
def test_every_round_is_told_whole_and_nodes_are_intervals(rounds: list[list[list[int]]]) -> None:
    lines = [line(number, groups) for number, groups in enumerate(rounds, start=1)]
    nodes, places = follow(lines)
    for groups, row in zip(rounds, places, strict=True):
        assert len(set(row)) == len(groups)
    for node in nodes:
        there = [number for number, row in enumerate(places, start=1) if node.id in row]
        assert there == list(range(node.first, node.last + 1))
        assert all(parent < node.id for parent in node.parents)
    for (before, old), (after, new) in pairwise(zip(rounds, places, strict=True)):
        for group, id in zip(after, new, strict=True):
            if id in old:  # it keeps most of what it was
                was = before[old.index(id)]
                assert 2 * len(set(was) & set(group)) > len(was)


@given(st.lists(partitions.filter(bool), min_size=1, max_size=4))
def test_clients_who_are_together_now_stand_side_by_side(rounds: list[list[list[int]]]) -> None:
    lines = [line(number, groups) for number, groups in enumerate(rounds, start=1)]
    nodes, places = follow(lines)
    members = memberships(lines, places, range(6))
    for client, row in enumerate(members):
        for groups, ids, id in zip(rounds, places, row, strict=True):
            inside = [i for i, group in zip(ids, groups, strict=True) if client in group]
            assert inside == ([id] if id >= 0 else [])
    last = [members[i][-1] for i in ordered(range(6), members, nodes, {c: c % 2 for c in range(6)})]
    assert len([a for a, b in pairwise(last) if a != b]) == len(set(last)) - 1


def test_the_order_is_that_of_the_tree_then_of_the_true_groups() -> None:
    lines = [
        line(1, [[0, 1, 2, 3, 4, 5]]),
        line(2, [[0, 3, 5], [1, 2, 4]], note("split", range(6), [[0, 3, 5], [1, 2, 4]])),
        line(3, [[0, 5], [1, 2, 4], [3]], note("split", [0, 3, 5], [[0, 5], [3]])),
    ]
    nodes, places = follow(lines)
    members = memberships(lines, places, range(6))
    assert ordered(range(6), members, nodes, {1: 1, 2: 0, 4: 0}) == [0, 5, 3, 2, 4, 1]


def test_who_was_not_heard_when_a_group_was_divided_waits() -> None:
    split = note("split", range(5), [[0, 1], [2, 3]])
    nodes, _ = follow([line(1, [[0, 1, 2, 3, 4]]), line(2, [[0, 1], [2, 3], [4]], split)])
    assert [node.kind for node in nodes] == ["", "split", "split", "wait"]
    assert nodes[3].parents == (0,)
