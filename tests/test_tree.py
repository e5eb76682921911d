"""The parameter tree: what it remembers of a split, and that it cannot be split wrongly."""

from __future__ import annotations

import sys

import pytest
import torch

from coterie.core import STATES
from coterie.tree import Node, Tree, root


def two_splits() -> tuple[Tree, tuple[int, ...], tuple[int, ...]]:
    tree, first = root((1, 4, 6, 9)).split(0, ((1, 9), (4, 6)), torch.tensor([1.0, 2.0]), {1: 0.5, 4: 0.7})
    tree, second = tree.split(first[1], ((4,), (6,)), torch.tensor([3.0, 4.0]), {})
    return tree, first, second


def test_a_split_closes_its_node_and_opens_children() -> None:
    tree, first, second = two_splits()
    assert (first, second) == ((1, 2), (3, 4))
    assert [(n.id, n.parent, n.clients) for n in tree.nodes] == [
        (0, None, (1, 4, 6, 9)), (1, 0, (1, 9)), (2, 0, (4, 6)), (3, 2, (4,)), (4, 2, (6,)),
    ]  # fmt: skip
    assert tree.nodes[0].model is not None
    assert tree.nodes[0].model.tolist() == [1.0, 2.0]
    assert tree.nodes[0].losses == {1: 0.5, 4: 0.7}
    assert [n.model is None for n in tree.nodes] == [False, True, False, True, True]


def test_a_path_leads_from_the_root() -> None:
    tree, _, second = two_splits()
    assert [n.id for n in tree.path(second[0])] == [0, 2, 3]
    assert [n.id for n in tree.path(0)] == [0]


def test_a_tree_is_not_changed_by_splitting_it() -> None:
    tree, losses = root((0, 1)), {0: 1.0}
    later, _ = tree.split(0, ((0,), (1,)), torch.zeros(1), losses)
    losses[0] = 2.0
    assert len(tree.nodes) == 1
    assert tree.nodes[0].model is None
    assert later.nodes[0].losses == {0: 1.0}


@pytest.mark.parametrize("parts", [((1, 4),), ((1, 4), (4, 6)), ((1, 4, 6), (9,)), ((1, 4, 6), ()), ((1, 1), (4, 6))])
def test_parts_must_be_a_partition(parts: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="the parts of node 0 must hold each of its clients once"):
        root((1, 4, 6)).split(0, parts, torch.zeros(1), {})


def test_a_node_splits_once() -> None:
    tree, _, _ = two_splits()
    with pytest.raises(ValueError, match="node 0 is split already"):
        tree.split(0, ((1, 4), (6, 9)), torch.zeros(2), {})


def test_a_tree_may_be_deeper_than_pythons_stack() -> None:
    depth = sys.getrecursionlimit() + 10
    nodes = tuple(Node(id=i, parent=i - 1 if i else None, clients=(0,)) for i in range(depth))
    assert [n.id for n in Tree(nodes=nodes).path(depth - 1)] == list(range(depth))


def test_a_checkpoint_may_hold_it() -> None:
    assert {"coterie.tree.Node", "coterie.tree.Tree"} <= set(STATES)
