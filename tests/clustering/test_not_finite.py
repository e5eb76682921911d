"""No public function of the package computes with NaN or infinity: each refuses it in every argument of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import coterie.clustering as public
from coterie.clustering import cosine, dendrogram, distances, gram, halves_gram

N = 6  # clients
ROWS = np.random.default_rng(0).normal(size=(N, 8))
GRAM, SIMILAR = gram(ROWS), cosine(gram(ROWS))
APART = distances(GRAM)
TREE = dendrogram(APART, "average")
HALVES = halves_gram(ROWS, ROWS + 0.1 * np.random.default_rng(1).normal(size=(N, 8)))
SIZES = np.ones(N)
LABELS = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
SPANS = {"first": (0, 4), "last": (4, 8)}

CALLS: dict[str, list[tuple[Callable[..., Any], Any]]] = {
    "adjusted_rand": [
        (lambda x: public.adjusted_rand(x, LABELS), LABELS),
        (lambda x: public.adjusted_rand(LABELS, x), LABELS),
    ],
    "agglomerative": [
        (lambda x: public.agglomerative(x, metric="l2", linkage="average", groups=2), ROWS),
        (lambda x: public.agglomerative(x, metric="l1", linkage="average", groups=2), ROWS),
        (lambda x: public.agglomerative(ROWS, metric="l2", linkage="average", threshold=x), 1.0),
    ],
    "benefit": [
        (lambda x: public.benefit(x, SIZES, 1.0, [[0], [1]], 2), GRAM),
        (lambda x: public.benefit(GRAM, x, 1.0, [[0], [1]], 2), SIZES),
        (lambda x: public.benefit(GRAM, SIZES, x, [[0], [1]], 2), 1.0),
    ],
    "benefits": [
        (lambda x: public.benefits(x, SIZES, 1.0, [[0], [1]]), GRAM),
        (lambda x: public.benefits(GRAM, x, 1.0, [[0], [1]]), SIZES),
        (lambda x: public.benefits(GRAM, SIZES, x, [[0], [1]]), SIZES),
        (lambda x: public.benefits(GRAM, SIZES, x, [[0], [1]]), 1.0),
    ],
    "bipartition": [(public.bipartition, SIMILAR)],
    "bipartition_margin": [(public.bipartition_margin, SIMILAR)],
    "closeness": [
        *((lambda x, m=m: public.closeness(x, ROWS, m), ROWS[0]) for m in ("cosine", "l2", "l1")),
        *((lambda x, m=m: public.closeness(ROWS[0], x, m), ROWS) for m in ("cosine", "l2", "l1")),
    ],
    "congruence": [(public.congruence, HALVES)],
    "congruent_groups": [
        (public.congruent_groups, HALVES),
        (lambda x: public.congruent_groups(HALVES, alpha=x), 0.1),
    ],
    "contrast": [(lambda x: public.contrast(x, [0, 1], [2, 3]), HALVES)],
    "cosine": [(public.cosine, GRAM)],
    "cut": [
        (lambda x: public.cut(x, linkage="average", groups=2), APART),
        (lambda x: public.cut(APART, linkage="average", threshold=x), 1.0),
    ],
    "cut_dendrogram": [
        (lambda x: public.cut_dendrogram(x, groups=2), TREE),
        (lambda x: public.cut_dendrogram(TREE, threshold=x), 1.0),
    ],
    "cut_margin": [
        (lambda x: public.cut_margin(x, linkage="average", groups=2), APART),
        (lambda x: public.cut_margin(APART, linkage="average", threshold=x), 1.0),
    ],
    "dendrogram": [(lambda x: public.dendrogram(x, "average"), APART)],
    "distances": [(public.distances, GRAM), (lambda x: public.distances(x, "cosine"), GRAM)],
    "gamma_bound": [(public.gamma_bound, 0.1)],
    "gram": [
        (public.gram, ROWS),
        (public.gram, ROWS.astype(np.float32)),
        (public.gram, torch.from_numpy(ROWS).half()),
        (lambda x: public.gram(x, columns=(0, 3)), ROWS),
        (lambda x: public.gram(x, sketch=4), ROWS),
    ],
    "gram_update": [
        (lambda x: public.gram_update(x, ROWS, [1]), GRAM),
        (lambda x: public.gram_update(GRAM, x, range(N)), ROWS),
        (lambda x: public.gram_update(GRAM, x, range(N)), ROWS.astype(np.float32)),
    ],
    "groups_of": [(public.groups_of, LABELS)],
    "guaranteed_gamma": [(public.guaranteed_gamma, 3)],
    "H": [(lambda x: public.H(x, 0.1), 0.1), (lambda x: public.H(0.1, x), 0.1)],
    "halves_gram": [
        (lambda x: public.halves_gram(x, ROWS), ROWS),
        (lambda x: public.halves_gram(ROWS, x), ROWS),
    ],
    "labels_of": [(lambda x: public.labels_of([[0, x], [2]]), 1)],
    "layer_cosines": [(lambda x: public.layer_cosines({"first": x, "last": GRAM}), GRAM)],
    "layer_grams": [(lambda x: public.layer_grams(x, SPANS), ROWS)],
    "layer_similarities": [(lambda x: public.layer_similarities(x, SPANS), ROWS)],
    "manhattan": [(public.manhattan, ROWS)],
    "member_contrasts": [(lambda x: public.member_contrasts(x, [0, 1, 2]), HALVES)],
    "newcomer_contrasts": [(lambda x: public.newcomer_contrasts(x, 4, [[0, 1], [2, 3]]), HALVES)],
    "noise_levels": [(public.noise_levels, HALVES)],
    "norm_of_mean": [(public.norm_of_mean, GRAM), (lambda x: public.norm_of_mean(GRAM, x), SIZES)],
    "norms": [(public.norms, GRAM)],
    "optimal_bipartition": [(public.optimal_bipartition, SIMILAR)],
    "passes_gamma": [
        (lambda x: public.passes_gamma(x, 0.1), 0.1),
        (lambda x: public.passes_gamma(0.1, x), 0.1),
    ],
    "purity": [
        (lambda x: public.purity(x, LABELS), LABELS),
        (lambda x: public.purity(LABELS, x), LABELS),
    ],
    "reliability": [(public.reliability, HALVES)],
    "repeated_p": [
        (lambda x: public.repeated_p(x, 0.1, 5), 0.1),
        (lambda x: public.repeated_p(0.1, x, 5), 0.1),
        (lambda x: public.repeated_p(0.1, 0.1, x), 5),
    ],
    "same_partition": [
        (lambda x: public.same_partition(x, LABELS), LABELS),
        (lambda x: public.same_partition(LABELS, x), LABELS),
    ],
    "separation_bound": [
        (lambda x: public.separation_bound(x, 0.1, 0.1), 3),
        (lambda x: public.separation_bound(3, x, 0.1), 0.1),
        (lambda x: public.separation_bound(3, 0.1, x), 0.1),
    ],
    "separation_gap": [
        (lambda x: public.separation_gap(x, LABELS), SIMILAR),
        (lambda x: public.separation_gap(SIMILAR, x), LABELS),
    ],
    "signal_cosine": [(public.signal_cosine, HALVES)],
    "signal_cut": [(public.signal_cut, GRAM)],
    "signal_gram": [(public.signal_gram, HALVES)],
    "sketch": [(lambda x: public.sketch(x, 4), ROWS), (lambda x: public.sketch(x, 16), ROWS)],
    "sketch_error": [
        (lambda x: public.sketch_error(x, 5), 4096),
        (lambda x: public.sketch_error(4096, x), 5),
        (lambda x: public.sketch_error(4096, 5, x), 0.1),
    ],
    "utility": [(lambda x: public.utility(x, SIZES, 1.0, [0, 1]), GRAM)],
    "utility_merge": [(lambda x: public.utility_merge(x, SIZES, 1.0), GRAM)],
    "utility_optimum": [(lambda x: public.utility_optimum(x, SIZES, 1.0), GRAM)],
}
"""Function -> calls of one argument, and a right value of it."""

THRESHOLDS = {"agglomerative", "cut", "cut_dendrogram", "cut_margin"}
"""Functions of a threshold, which may be infinite: then all clients merge, or none."""

RESULTS = {
    "Bipartition",
    "Congruence",
    "CongruentGroups",
    "Contrast",
    "SplitDecision",
    "SketchWarning",
}
"""Classes of results; and a warning."""

SHOWN = {"Sketcher"}
"""A linear map: what is not finite comes out as it is, so that engines see it (see
``test_a_sketcher_shows_...``)."""


def spoilt(right: Any, value: float) -> list[Any]:
    """Copies of an argument with one number replaced, on the diagonal or beside it; and with all numbers replaced."""
    if not isinstance(right, (np.ndarray, torch.Tensor)):
        return [value]
    found = []
    for at in ([(1, 1)], [(1, 2), (2, 1)]) if right.ndim == 2 else ([(0,)], [(1,)]):
        one = right.clone() if isinstance(right, torch.Tensor) else right.copy()
        for place in at:
            one[place] = value
        found.append(one)
    return [*found, right * 0 + value]


def test_every_public_function_is_covered() -> None:
    assert set(public.__all__) == set(CALLS) | RESULTS | SHOWN


@pytest.mark.parametrize("name", sorted(CALLS))
def test_numbers_that_are_not_finite_are_refused(name: str) -> None:
    for call, right in CALLS[name]:
        call(right)  # so that the refusal is of the number
        for value in (np.nan, np.inf, -np.inf):
            if name in THRESHOLDS and isinstance(right, float) and not np.isnan(value):
                continue
            for wrong in spoilt(right, value):
                with pytest.raises(ValueError, match=r"\w"):
                    call(wrong)


def test_a_sketcher_shows_what_is_not_finite() -> None:
    rows = ROWS.copy()
    rows[2, 5] = np.nan
    found = public.Sketcher(8, 4).rows(rows)
    assert torch.isfinite(found).all(dim=1).tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize(
    "of", [public.distances, public.reliability, public.signal_gram, public.congruence]
)
def test_entries_of_which_sums_would_overflow_are_refused(of: Callable[..., Any]) -> None:
    """Finite numbers, from which distances and signals would become infinity minus infinity."""
    with pytest.raises(ValueError, match="overflow"):
        of(HALVES / np.abs(HALVES).max() * 1e308)
