"""Clustering of clients: pure functions on matrices.

Letters: ``n`` clients, ``d`` parameters. Updates are ``(n, d)``, one row per client, NumPy arrays or tensors; all other
matrices are ``(n, n)`` float64. A client is its *position* here, 0 to n-1; who that is, only the caller knows.

From updates to matrices
    :func:`gram`, then :func:`cosine`, :func:`norms`, :func:`distances`, :func:`norm_of_mean`; :func:`manhattan`;
    :func:`gram_update` after some rows changed
Short stand-ins for long updates
    :func:`sketch`, :class:`Sketcher`; :func:`sketch_error`, how far they may be off; :func:`cut_margin` and
    :func:`bipartition_margin`, how far they may be off before groups change; :class:`SketchWarning`
A group cut in two (CFL)
    :func:`optimal_bipartition`, :func:`bipartition`, both a :class:`Bipartition`
When a cut is right (CFL's Separation Theorem)
    :func:`separation_gap`, :func:`separation_bound`, :func:`H`, :func:`guaranteed_gamma`, :func:`gamma_bound`,
    :func:`passes_gamma`
Hierarchical clustering (FL+HC, ACFL)
    :func:`agglomerative` of updates; :func:`cut` and :func:`dendrogram` of distances; :func:`cut_dendrogram`
Which layers tell clients apart (ACFL)
    :func:`layer_grams`, :func:`layer_similarities`, :func:`layer_cosines`
Signal and noise, from updates of two halves of every client's data
    :func:`halves_gram`, then :func:`signal_gram`, :func:`noise_levels`, :func:`reliability`, :func:`signal_cosine`
Clustering without thresholds (the split-half test)
    :func:`congruence`, a :class:`Congruence`; :func:`repeated_p` of two; :func:`signal_cut`; :func:`congruent_groups`,
    :class:`CongruentGroups` of :class:`SplitDecision`; :func:`contrast` and :func:`newcomer_contrasts`, :class:`Contrast`
A newcomer among stored updates (CFL's Algorithm 4)
    :func:`closeness`
Groups that gain by merging (HCCT)
    :func:`utility_merge`, :func:`utility`, :func:`benefits`, :func:`benefit`; :func:`utility_optimum` of a few
Partitions
    :func:`groups_of`, :func:`labels_of`, :func:`same_partition`, :func:`adjusted_rand`, :func:`purity`

Wrong input is a :class:`ValueError` of one sentence.
"""

from coterie.clustering.agglomerative import SketchWarning, agglomerative, cut, cut_dendrogram, cut_margin, dendrogram
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
from coterie.clustering.halves import halves_gram, noise_levels, reliability, signal_cosine, signal_gram
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
