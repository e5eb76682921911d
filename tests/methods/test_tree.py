"""The parameter tree: what it remembers of a split, and that it cannot be split wrongly."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from coterie.clustering import closeness
from coterie.core import STATES, Replies
from coterie.methods._cluster_tree import Node, Tree, root


def two_splits() -> tuple[Tree, tuple[int, ...], tuple[int, ...]]:
    tree, first = root((1, 4, 6, 9)).split(
        0, ((1, 9), (4, 6)), torch.tensor([1.0, 2.0]), {1: 0.5, 4: 0.7}
    )
    tree, second = tree.split(first[1], ((4,), (6,)), torch.tensor([3.0, 4.0]), {})
    return tree, first, second


def test_a_split_closes_its_node_and_opens_children() -> None:
    tree, first, second = two_splits()
    assert (first, second) == ((1, 2), (3, 4))
    assert [(n.id, n.parent, n.clients) for n in tree.nodes] == [
        (0, None, (1, 4, 6, 9)),
        (1, 0, (1, 9)),
        (2, 0, (4, 6)),
        (3, 2, (4,)),
        (4, 2, (6,)),
    ]
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


@pytest.mark.parametrize(
    "parts", [((1, 4), (4, 6)), ((1, 4, 6), (9,)), ((1, 4, 6), ()), ((1, 1), (4, 6))]
)
def test_parts_must_be_disjoint_and_of_the_node(parts: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(
        ValueError, match="the parts of node 0 must be its clients, none empty and none twice"
    ):
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
    assert {"tree.node", "tree"} <= set(STATES)


def replies(clients: tuple[int, ...], rows: list[list[float]]) -> Replies:
    return Replies(
        clients=clients, examples=np.ones(len(clients), dtype=np.int64), updates=torch.tensor(rows)
    )


def with_edges(sketch: int | None = None) -> Tree:
    """Node 0 split into (1, 9) and (4, 6), client 6 silent; the third column is a buffer."""
    heard = replies((1, 4, 9), [[1.0, 0.0, 5.0], [0.0, 1.0, 5.0], [1.0, 1.0, 5.0]])
    tree, _ = root((1, 4, 6, 9), 2, sketch).split(0, ((1, 9), (4, 6)), torch.zeros(3), {}, heard, 7)
    return tree


def cosine(update: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    return closeness(update, stored, "cosine")


def test_edges_keep_a_copy_of_the_parameters_of_those_heard() -> None:
    heard = replies((1, 4), [[1.0, 0.0, 5.0], [0.0, 1.0, 5.0]])
    tree, _ = root((1, 4), 2).split(0, ((1,), (4,)), torch.zeros(3), {}, heard)
    heard.updates.fill_(torch.nan)
    assert [n.heard for n in tree.nodes] == [(), (1,), (4,)]
    assert [n.updates.tolist() for n in tree.nodes[1:]] == [[[1.0, 0.0]], [[0.0, 1.0]]]
    tree = with_edges()
    assert [n.heard for n in tree.nodes] == [(), (1, 9), (4,)]
    assert tree.nodes[0].round == 7


def test_algorithm_4_goes_to_the_nearest_update_not_to_the_nearest_mean() -> None:
    tree = with_edges()
    child, close = tree.nearest(0, torch.tensor([1.0, 1.1, 0.0]), cosine)  # client 9's neighbour
    assert child == 1
    assert close[1] > close[2]
    assert tree.nearest(0, torch.tensor([0.1, 1.0, 0.0]), cosine)[0] == 2
    # A zero update is like nobody: a tie, which the paper gives to the second child.
    assert tree.nearest(0, torch.zeros(3), cosine) == (2, {1: 0.0, 2: 0.0})


def test_clients_are_on_the_path_to_where_they_stand() -> None:
    tree = with_edges().place({20: 0})
    assert [n.clients for n in tree.nodes] == [(1, 4, 6, 9, 20), (1, 9), (4, 6)]
    tree = tree.place({20: 2, 1: 2})
    assert [n.clients for n in tree.nodes] == [(1, 4, 6, 9, 20), (9,), (1, 4, 6, 20)]
    tree = tree.remove((4, 20))
    assert [n.clients for n in tree.nodes] == [(1, 6, 9), (9,), (1, 6)]
    assert tree.nodes[2].heard == (4,)  # what was learned from those who are gone stays


def test_a_client_far_from_all_grows_a_leaf_of_its_own() -> None:
    tree, id = with_edges().place({20: 0}).grow(0, 20, torch.tensor([-1.0, 0.0, 3.0]))
    assert id == 3
    assert tree.is_leaf(3)
    assert tree.nodes[3].clients == (20,)
    assert tree.nearest(0, torch.tensor([-2.0, 0.1, 0.0]), cosine)[0] == 3


def test_sketched_edges_are_short_and_lead_the_same_way() -> None:
    gen = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 5000, generator=gen)
    rows = torch.cat([c + torch.randn(3, 5000, generator=gen) for c in centres])
    heard = Replies(clients=tuple(range(6)), examples=np.ones(6, dtype=np.int64), updates=rows)
    trees = [
        root(tuple(range(6)), 5000, size).split(
            0, ((0, 1, 2), (3, 4, 5)), torch.zeros(5000), {}, heard
        )[0]
        for size in (None, 512)
    ]
    assert trees[1].nodes[1].updates.shape == (3, 512)
    for _ in range(10):
        for side, centre in enumerate(centres, start=1):
            update = centre + torch.randn(5000, generator=gen)
            assert [tree.nearest(0, update, cosine)[0] for tree in trees] == [side, side]
