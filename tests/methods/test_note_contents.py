"""What notes tell for explanations is what the decision rested on: held against the definitions, on small worlds."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering import congruence, signal_cosine, signal_gram
from coterie.methods import ACFL, CFL, HCCT, IFCA, SplitHalf
from coterie.methods._split_half_probes import distances
from worlds import THREE, TRUTH, grouped, last, play


def test_cfl_tells_nodes_peaks_and_rounds_in_a_row() -> None:
    told = [note for p in play(CFL(persistence=2), grouped(THREE), 30) for note in p.notes]
    splits = [note for note in told if note.kind == "split"]
    assert splits[0].labels["node"] == 0
    assert splits[0].labels["first_part"] == 1
    nodes = {
        note.labels["first_part"] + i: part for note in splits for i, part in enumerate(note.parts)
    }
    assert set(TRUTH) <= set(nodes.values())
    assert all(nodes.get(note.labels["node"], note.clients) == note.clients for note in told)
    rows = {
        kind: {note.criteria[-1].value for note in told if note.kind == kind}
        for kind in ("split", "hold")
    }
    assert rows == {"split": {2}, "hold": {1}}
    assert all(all(one.held for one in note.criteria) for note in splits)
    assert all(
        not all(one.held for one in note.criteria)
        for note in told
        if note.kind in ("hold", "keep") and note.criteria
    )
    peaks = [note.numbers["peak"] for note in told if note.labels["node"] == 0]
    assert peaks == [
        max(note.numbers["client_norm"] for note in told[: i + 1]) for i in range(len(peaks))
    ]


def test_split_half_tells_its_signals_cosines_by_both_probes() -> None:
    method = SplitHalf(first_probe=2, probe_every=1, review_every=0, level=1e-3)
    played = list(play(method, grouped(THREE, d=60, noise=0.3), 6))
    at, note = next((i, n) for i, p in enumerate(played) for n in p.notes if n.kind == "split")
    first, second = (p.replies.halves.gram for p in played[at - 1 : at + 1])
    assert all(any(set(true) <= set(part) for part in note.parts) for true in TRUTH)
    both = (first + second) / 2
    np.testing.assert_allclose(note.similarity["all"].numpy(), signal_cosine(both), atol=1e-6)
    assert note.order == played[at].replies.clients
    assert note.labels["heard"] == 12
    assert note.numbers["p"] == pytest.approx(congruence(second).p)
    near = [
        min(range(len(note.parts)), key=lambda j: note.values[f"distance to part {j}"][c])
        for c in note.order
    ]
    assert [client in note.parts[j] for client, j in zip(note.order, near, strict=True)] == [
        True
    ] * 12


def test_distances_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10, 7))
    gram, clients, parts = rows @ rows.T, (3, 5, 8, 9, 20), ((3, 8, 9), (5,))
    signal, found = signal_gram(gram), distances(clients, gram, parts)
    assert list(found) == ["distance to part 0", "distance to part 1"]
    for j, part in enumerate(parts):
        for i, client in enumerate(clients):
            rest = [clients.index(c) for c in part if c != client]
            if not rest:
                assert client not in found[f"distance to part {j}"]
                continue
            w = np.zeros(5)
            w[i] += 1
            w[rest] -= 1 / len(rest)
            assert found[f"distance to part {j}"][client] == pytest.approx(w @ signal @ w)


def test_a_review_tells_the_cosines_once_or_how_near_the_nearest_groups_are() -> None:
    method = SplitHalf(first_probe=2, probe_every=1, review_every=1, level=1e-3)
    calm = [
        n
        for p in play(method, grouped(THREE, d=60, noise=0.3), 12)
        for n in p.notes
        if "other_node" in n.labels
    ]
    assert calm
    assert all(0 <= note.criteria[0].value <= 0.01 == note.criteria[0].bound for note in calm)
    assert all(not note.similarity for note in calm)


def test_hcct_tells_utilities_and_the_tradeoff_at_which_groups_merge() -> None:
    world = grouped(THREE, noise=0.4, examples={2: 30, 8: 10})
    first, second = (p.notes[-1] for p in play(HCCT(), world, 2))
    assert sum(first.values["utility"].values()) == pytest.approx(first.numbers["utility"])
    alone = {c: first.values["utility"][c] - first.values["gain"][c] for c in first.order}
    assert all(value < 1 for value in alone.values())
    (criterion,) = first.criteria
    assert criterion.setting == "tradeoff"
    assert criterion.held
    assert criterion.bound == HCCT().tradeoff
    assert bool(second.parts) == (second.parts != () and second.parts != first.parts)


def test_acfl_tells_the_similarities_that_counted() -> None:
    note = last(ACFL(layers=("first", "rest")), grouped(THREE), 1).notes[0]
    assert set(note.similarity) == {"first", "rest", "all", "compared"}
    np.testing.assert_array_equal(note.similarity["compared"], note.similarity["all"])


def test_ifca_tells_the_losses_with_all_models() -> None:
    played = last(IFCA(models=3), grouped(THREE), 4)
    (note,) = played.notes
    for client, losses in zip(played.replies.clients, played.replies.losses, strict=True):
        assert [note.values[f"loss of model {j}"][client] for j in range(3)] == list(losses)
    assert note.values["loss"][2] == min(note.values[f"loss of model {j}"][2] for j in range(3))
