"""Clustering of clients: pure functions on matrices.

Letters: ``n`` clients, ``d`` parameters. Updates are ``(n, d)``, one row per client, NumPy arrays
or tensors. All other matrices are ``(n, n)`` float64. Here a client is a *position*, 0 to n-1. Only
the caller knows which client has which id.

From updates to matrices :func:`gram`, then :func:`cosine`, :func:`norms`, :func:`distances`,
    :func:`norm_of_mean`; :func:`manhattan`; :func:`gram_update` after some rows changed
Sketches: short random projections of long updates :func:`sketch`, :class:`Sketcher`;
    :func:`sketch_error`, the size of their error; :func:`cut_margin` and
    :func:`bipartition_margin`, the error that cannot change the groups; :class:`SketchWarning`
Bipartition of a group (CFL)
    :func:`optimal_bipartition` and :func:`bipartition`, which return a :class:`Bipartition`
Conditions for a correct bipartition (CFL's Separation Theorem) :func:`separation_gap`,
    :func:`separation_bound`, :func:`H`, :func:`guaranteed_gamma`, :func:`gamma_bound`,
    :func:`passes_gamma`
Hierarchical clustering (FL+HC, ACFL) :func:`agglomerative` for updates; :func:`cut` and
    :func:`dendrogram` for distances; :func:`cut_dendrogram`
Layers that distinguish clients (ACFL)
    :func:`layer_grams`, :func:`layer_similarities`, :func:`layer_cosines`
Signal and noise, from updates of two halves of every client's data :func:`halves_gram`, then
    :func:`signal_gram`, :func:`noise_levels`, :func:`reliability`, :func:`signal_cosine`
Clustering without thresholds (the split-half test) :func:`congruence`, which returns a
    :class:`Congruence`; :func:`repeated_p` for two probes; :func:`signal_cut`;
    :func:`congruent_groups`, which returns :class:`CongruentGroups` with a :class:`SplitDecision`
    for each group; :func:`contrast`, :func:`member_contrasts` and :func:`newcomer_contrasts`, which
    return a :class:`Contrast`
A newcomer among stored updates (CFL's Algorithm 4)
    :func:`closeness`
Groups that gain by merging (HCCT) :func:`utility_merge`, :func:`utility`, :func:`benefits`,
    :func:`benefit`; :func:`utility_optimum` for few clients
Partitions :func:`groups_of`, :func:`labels_of`, :func:`same_partition`, :func:`adjusted_rand`,
    :func:`purity`

Wrong input raises a :class:`ValueError` with a message of one sentence.
"""

from coterie.clustering.agglomerative import (
    SketchWarning,
    agglomerative,
    cut,
    cut_dendrogram,
    cut_margin,
    dendrogram,
)
from coterie.clustering.bipartition import (
    Bipartition,
    H,
    bipartition,
    bipartition_margin,
    gamma_bound,
    guaranteed_gamma,
    optimal_bipartition,
    passes_gamma,
    separation_bound,
    separation_gap,
)
from coterie.clustering.congruence import (
    Congruence,
    CongruentGroups,
    Contrast,
    SplitDecision,
    congruence,
    congruent_groups,
    contrast,
    member_contrasts,
    newcomer_contrasts,
    repeated_p,
    signal_cut,
)
from coterie.clustering.geometry import (
    closeness,
    cosine,
    distances,
    gram,
    gram_update,
    layer_cosines,
    layer_grams,
    layer_similarities,
    manhattan,
    norm_of_mean,
    norms,
)
from coterie.clustering.halves import (
    halves_gram,
    noise_levels,
    reliability,
    signal_cosine,
    signal_gram,
)
from coterie.clustering.labels import adjusted_rand, groups_of, labels_of, purity, same_partition
from coterie.clustering.sketch import Sketcher, sketch, sketch_error
from coterie.clustering.utility import benefit, benefits, utility, utility_merge, utility_optimum

__all__ = [
    "Bipartition",
    "Congruence",
    "CongruentGroups",
    "Contrast",
    "H",
    "SketchWarning",
    "Sketcher",
    "SplitDecision",
    "adjusted_rand",
    "agglomerative",
    "benefit",
    "benefits",
    "bipartition",
    "bipartition_margin",
    "closeness",
    "congruence",
    "congruent_groups",
    "contrast",
    "cosine",
    "cut",
    "cut_dendrogram",
    "cut_margin",
    "dendrogram",
    "distances",
    "gamma_bound",
    "gram",
    "gram_update",
    "groups_of",
    "guaranteed_gamma",
    "halves_gram",
    "labels_of",
    "layer_cosines",
    "layer_grams",
    "layer_similarities",
    "manhattan",
    "member_contrasts",
    "newcomer_contrasts",
    "noise_levels",
    "norm_of_mean",
    "norms",
    "optimal_bipartition",
    "passes_gamma",
    "purity",
    "reliability",
    "repeated_p",
    "same_partition",
    "separation_bound",
    "separation_gap",
    "signal_cosine",
    "signal_cut",
    "signal_gram",
    "sketch",
    "sketch_error",
    "utility",
    "utility_merge",
    "utility_optimum",
]
