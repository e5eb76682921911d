"""What ACFL's figures show by the paper's words, beside what came out here: the rules of the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from coterie.report.summary import agreement, interval
from coterie.report.words import plus_minus
from papers.comparing import ONE_MODEL, labels, method_table, of
from papers.numbers import found, mean, picked, spread, values
from papers.study import Claim, Row, Table

ENOUGH = 2
"""Epochs of pre-training after which the paper finds the optimal clusters."""

MUCH = 0.1
"""A gap in cosine that tells clients apart: what lies between similarity 1 and the threshold 0.9.
"""

LITTLE = 0.2
"""A layer whose gap is at most this share of a dense layer's is general."""

SOME = 0.5
"""An adjusted Rand index from which clusters have the structure of the true groups."""

SECOND_READING = "a second reading of the same words"

SHARED = "three chained"
"""The problem of the third experiment, in which clients share least with others of their group."""


# -- figures 3 and 4
# -------------------------------------------------------------------------------------------------------


def matrix(row: Row, layer: str, epochs: int) -> np.ndarray:
    """``(n, n)`` cosines of the clients, in the order of ``clients``."""
    return np.array(row["found"]["layers"][layer][str(epochs)])


def kin(row: Row) -> np.ndarray:
    """``(pairs,)``: which pairs of clients are of one true group, in the order of :func:`of_each_pair`."""
    group = {client: i for i, members in enumerate(row["found"]["truth"]) for client in members}
    mine = np.array([group[client] for client in row["found"]["clients"]])
    return of_each_pair(mine[:, None] == mine[None])


def of_each_pair(square: np.ndarray) -> np.ndarray:
    """``(pairs,)``: the entries above the diagonal."""
    entries: np.ndarray = square[np.triu_indices(len(square), 1)]
    return entries


def gap(rows: Sequence[Row], layer: str, epochs: int) -> float:
    """Mean cosine of pairs within true groups, less that of pairs across; the mean over rows."""
    gaps = []
    for row in rows:
        cosines, same = of_each_pair(matrix(row, layer, epochs)), kin(row)
        gaps.append(cosines[same].mean() - cosines[~same].mean())
    return float(np.mean(gaps))


def right(rows: Sequence[Row], epochs: int) -> float:
    """The mean adjusted Rand index of ACFL's clusters after so many epochs, with the true groups."""
    return float(
        np.mean(
            [agreement(row["found"]["groups"][str(epochs)], row["found"]["truth"]) for row in rows]
        )
    )


def _changed(rows: Sequence[Row]) -> str:
    """Why a claim does not count whose settings were changed; empty if they were not."""
    standardized = "standardize" in rows[0]["cell"].get("scenario", {})
    return "scale of inputs, and batch or rounds, were changed after a look" if standardized else ""


def of_layers(rows: Sequence[Row]) -> tuple[Claim, ...]:
    problems, layers, dense = (
        values(rows, "problem"),
        list(rows[0]["found"]["layers"]),
        rows[0]["found"]["dense"],
    )
    gaps = {
        (p, layer): gap(picked(rows, problem=p), layer, ENOUGH)
        for p in problems
        for layer in layers
    }
    apart = {p: min(gaps[p, layer] for layer in dense) for p in problems}
    least = min(problems, key=lambda p: apart[p])
    general = [(p, layer) for p in problems for layer in layers if layer not in dense]
    most = max(general, key=lambda place: gaps[place] - LITTLE * apart[place[0]])
    tried = rows[0]["cell"]["scenario"]["name"].startswith("digits/")
    after = [e for e in rows[0]["cell"]["epochs"] if e >= ENOUGH]
    clear = [p for p in problems if p != SHARED]
    index = {p: [right(picked(rows, problem=p), e) for e in after] for p in problems}
    words = {p: ", ".join(f"{value:.2f}" for value in index[p]) for p in problems}
    first, last = index[SHARED][0], index[SHARED][-1]
    return (
        Claim(
            what=f"dense layers after {ENOUGH} epochs",
            printed="task-specific",
            ours=f"same group above others by {apart[least]:.3f} or more ({least})",
            rule=f"by {MUCH:g} or more, in every experiment",
            holds=apart[least] >= MUCH,
            aside=_changed(rows),
        ),
        Claim(
            what=f"convolutional layers after {ENOUGH} epochs",
            printed="not task-specific but general",
            ours=f"{most[1]}, {most[0]}: same group above others by {gaps[most]:.3f}, dense layers {apart[most[0]]:.3f}",
            rule=f"at most {LITTLE:g} of the dense layers' gap, in every layer and experiment",
            holds=gaps[most] <= LITTLE * apart[most[0]],
        ),
        Claim(
            what=f"clusters of the first two experiments after {ENOUGH} epochs",
            printed="optimal",
            ours=", ".join(f"{p}: adjusted Rand {index[p][0]:.2f}" for p in clear),
            rule="1 in all runs",
            holds=all(index[p][0] == 1 for p in clear),
            aside="the batch was changed after a failing trial" if tried else "",
        ),
        Claim(
            what="the same with more epochs",
            printed="maintained",
            ours="; ".join(f"{p}: {words[p]} after {', '.join(map(str, after))}" for p in clear),
            rule="1 in all runs, after every number of epochs",
            holds=all(min(index[p]) == 1 for p in clear),
        ),
        Claim(
            what="clusters of the third experiment with more epochs",
            printed="the second loses its structure",
            ours=f"adjusted Rand {words[SHARED]} after {', '.join(map(str, after))} epochs",
            rule=f"{SOME:g} or more after {ENOUGH} epochs, and lower at the end",
            holds=SOME <= first > last,
        ),
    )


def table_of_layers(rows: Sequence[Row]) -> Table:
    """A row per experiment and epochs: the gap of every layer, and the clusters that are found."""
    layers, lines = list(rows[0]["found"]["layers"]), []
    for problem in values(rows, "problem"):
        own = picked(rows, problem=problem)
        for epochs in own[0]["cell"]["epochs"]:
            gaps = [f"{gap(own, layer, epochs):.3f}" for layer in layers]
            count = np.mean([len(row["found"]["groups"][str(epochs)]) for row in own])
            true = len(own[0]["found"]["truth"])
            lines.append(
                (problem, str(epochs), *gaps, f"{count:.1f} ({true})", f"{right(own, epochs):.2f}")
            )
    head = (
        "classes",
        "epochs",
        *(f"gap {layer}" for layer in layers),
        "clusters (true)",
        "adjusted Rand",
    )
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


def dense_pairs(row: Row) -> np.ndarray:
    """``(epochs, pairs)``: cosines of the last dense layer."""
    return np.array(
        [of_each_pair(matrix(row, row["found"]["dense"][-1], e)) for e in row["cell"]["epochs"]]
    )


def added_pairs(row: Row) -> np.ndarray:
    """``(epochs, pairs)``: cosines of what training added to the last dense layer, without the common start."""
    return np.array(
        [of_each_pair(np.array(row["found"]["added"][str(e)])) for e in row["cell"]["epochs"]]
    )


def of_pairs(rows: Sequence[Row]) -> tuple[Claim, ...]:
    out: list[Claim] = []
    for problem in values(rows, "problem"):
        own = picked(rows, problem=problem)
        epochs = own[0]["cell"]["epochs"]
        out += _of_cosines(problem, epochs, [dense_pairs(row) for row in own])
        out += _of_cosines(
            f"{problem}, without the common start",
            epochs,
            [added_pairs(row) for row in own],
            SECOND_READING,
        )
    return tuple(out)


def _of_cosines(
    what: str, epochs: Sequence[int], each: Sequence[np.ndarray], aside: str = ""
) -> list[Claim]:
    """each: ``(epochs, pairs)`` cosines of every run."""
    means = np.mean([cosines.mean(1) for cosines in each], axis=0)
    rank = float(spearmanr(epochs, means).statistic)
    start = epochs.index(ENOUGH)
    kept = [
        float(np.mean([spearmanr(cosines[start], cosines[i]).statistic for cosines in each]))
        for i in range(start + 1, len(epochs))
    ]
    return [
        Claim(
            what=f"{what}: similarity with more epochs",
            printed="increases across clients",
            ours=f"mean of pairs {means[0]:.3f} to {means[-1]:.3f}; rank correlation with the epochs {rank:.2f}",
            rule="rank correlation at least 0.9",
            holds=rank >= 0.9,
            aside=aside,
        ),
        Claim(
            what=f"{what}: similarity of pairs, relative to each other",
            printed="relatively unchanged",
            ours=f"rank correlation of pairs with those after {ENOUGH} epochs at least {min(kept):.2f}",
            rule="at least 0.8 after every number of epochs",
            holds=min(kept) >= 0.8,
            aside=aside,
        ),
    ]


def table_of_pairs(rows: Sequence[Row]) -> Table:
    """A row per experiment and epochs: cosines with and without the common start, how far training went, what it learned."""
    lines = []
    for problem in values(rows, "problem"):
        own = picked(rows, problem=problem)
        for i, epochs in enumerate(own[0]["cell"]["epochs"]):
            whole = [_within_and_across(row, dense_pairs(row)[i]) for row in own]
            added = [_within_and_across(row, added_pairs(row)[i]) for row in own]
            cosines = [
                f"{value:.3f}" for value in (*np.mean(whole, axis=0), *np.mean(added, axis=0))
            ]
            far = np.mean([row["found"]["far"][str(epochs)] for row in own])
            right = np.mean([row["found"]["right"][str(epochs)] for row in own])
            greatest = np.mean([row["found"]["greatest"] for row in own])
            lines.append(
                (problem, str(epochs), *cosines, f"{far:.2f}", f"{right:.3f} ({greatest:.3f})")
            )
    head = (
        "classes",
        "epochs",
        "same group",
        "across",
        "added: same group",
        "added: across",
        "added / start",
        "learned",
    )
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


def _within_and_across(row: Row, cosines: np.ndarray) -> tuple[float, float]:
    same = kin(row)
    return float(cosines[same].mean()), float(cosines[~same].mean())


# -- figures 5 to 7
# --------------------------------------------------------------------------------------------------------

ALIKE = 0.03
"""Accuracies no further apart than this do not stand out."""


CLUSTERS, NONE, PRETRAINED = "ACFL", "no clusters", "no clusters, pre-trained"
"""Kinds of ACFL: the paper's; without clustering, and so without the exchange before it; with this
exchange and one cluster."""

ALL_MERGE = -1.0
"""The threshold at which all clients are one cluster."""


def grid(rows: Sequence[Row]) -> dict[tuple[str, float], list[Row]]:
    """(kind, λ) -> rows, of ACFL on weights."""
    return {
        (_kind(how), how["mixing"]): of(rows, how["label"])
        for how in values(rows, "method")
        if how["name"] == "acfl" and how.get("similarity", "weights") == "weights"
    }


def _kind(how: Mapping[str, Any]) -> str:
    if not how.get("cluster", True):
        return NONE
    return PRETRAINED if how.get("threshold") == ALL_MERGE else CLUSTERS


def oscillation(row: Row) -> float:
    """The mean change of the validation loss from one tested round to the next, as a share of its mean, in the second half."""
    curve = row["found"]["validation"]
    late = np.array(curve[len(curve) // 2 :])
    return float(np.abs(np.diff(late)).mean() / late.mean())


def of_mixing(rows: Sequence[Row], gain: float, fedavg_precise: bool) -> tuple[Claim, ...]:
    """gain: printed, in points of accuracy. fedavg_precise: whether FedAvg is said to be the most precise."""
    known = {place: own for place, own in grid(rows).items() if place[0] != PRETRAINED}
    lambdas = sorted({share for _, share in known})
    with_, without = (
        [mean(known[kind, share], "validation_end") for share in lambdas]
        for kind in (CLUSTERS, NONE)
    )
    calm, restless = (
        np.mean([oscillation(row) for share in lambdas for row in known[kind, share]])
        for kind in (CLUSTERS, NONE)
    )
    worst = min(known, key=lambda place: mean(known[place], "accuracy"))
    first = "test accuracy with clustering, beside one model with the same pre-training"
    out = [
        _gains(rows, PRETRAINED, first, gain),
        _gains(
            rows,
            NONE,
            "the same, beside one model without pre-training",
            gain,
            aside="unequal pre-training",
        ),
        Claim(
            what="the least accurate of all",
            printed="no clustering, λ = 0 (FedAvg)",
            ours=f"{words(worst)}: {mean(known[worst], 'accuracy'):.3f}",
            rule="FedAvg",
            holds=worst == (NONE, 0),
        ),
        Claim(
            what="validation loss at the end, mean over λ",
            printed="lower with clustering",
            ours=f"{np.mean(with_):.3f} beside {np.mean(without):.3f}",
            rule="lower with clustering",
            holds=bool(np.mean(with_) < np.mean(without)),
        ),
        Claim(
            what="oscillation of the validation loss, mean over λ",
            printed="reduced by clustering",
            ours=f"{calm:.3f} beside {restless:.3f} of the loss from one tested round to the next, in the second half",
            rule="a smaller share of the loss with clustering",
            holds=bool(calm < restless),
        ),
        _stands_out(known, lambdas),
    ]
    if fedavg_precise:
        best = max(known, key=lambda place: mean(known[place], "precision"))
        out.append(
            Claim(
                what="the greatest precision of all",
                printed="no clustering, λ = 0 (FedAvg)",
                ours=f"{words(best)}: {mean(known[best], 'precision'):.3f}; FedAvg {mean(known[NONE, 0], 'precision'):.3f}",
                rule="FedAvg's",
                holds=mean(known[NONE, 0], "precision") >= mean(known[best], "precision"),
            )
        )
    return tuple(out)


def _gains(rows: Sequence[Row], beside: str, what: str, gain: float, aside: str = "") -> Claim:
    """What clustering adds to the accuracy of another kind, by λ and on average."""
    shares, with_ = by_share(rows, CLUSTERS, "accuracy")
    gains = 100 * (with_ - by_share(rows, beside, "accuracy")[1])
    average, by_mean = interval(gains.mean(1).tolist()), gains.mean(0)
    each = ", ".join(
        f"{one:+.1f} (λ = {share:g})" for share, one in zip(shares, by_mean, strict=True)
    )
    return Claim(
        what=what,
        printed=f"+{gain:g} %",
        ours=f"{plus_minus(average, 1)} points on average: {each}",
        rule=f"above zero at every λ; the 95 % interval of the average above zero, and not below {gain:g}",
        holds=_steadily(by_mean, average, gain),
        aside=aside,
    )


def _steadily(
    gains: np.ndarray, average: Mapping[str, float | None], printed: float
) -> bool | None:
    """Whether all gains are above zero, and their average surely is, and not surely below what is printed."""
    low, high = average["low"], average["high"]
    if gains.min() <= 0 or (high is not None and high < printed):
        return False
    return None if low is None or low <= 0 else True


def _stands_out(known: Mapping[tuple[str, float], list[Row]], lambdas: Sequence[float]) -> Claim:
    """λ among those who personalise: clustered, or not clustered and mixed."""
    kinds = {
        name: [
            mean(known[kind, share], "accuracy")
            for share in lambdas
            if kind == CLUSTERS or share > 0
        ]
        for name, kind in (("clustered", CLUSTERS), ("not clustered, λ > 0", NONE))
    }
    apart = {name: max(each) - min(each) for name, each in kinds.items()}
    several = min(map(len, kinds.values())) > 1
    return Claim(
        what="λ, but for FedAvg",
        printed="none stands out, with clustering or without",
        ours="; ".join(f"{name}: accuracies {wide:.3f} apart" for name, wide in apart.items()),
        rule=f"at most {ALIKE:g} apart, in both; undecided where one of them has one λ",
        holds=(several or None) if max(apart.values()) <= ALIKE else False,
    )


def words(place: tuple[str, float]) -> str:
    """A kind and λ in words."""
    kind, share = place
    return (
        ONE_MODEL
        if place == (NONE, 0)
        else f"{'clusters' if kind == CLUSTERS else kind}, λ = {share:g}"
    )


def table_of_mixing(rows: Sequence[Row]) -> Table:
    """What methods are compared by, and the losses and precisions."""
    base = method_table(rows)
    lines = [
        (
            *line,
            *(
                spread(of(rows, name), key, digits=3)
                for key in ("validation_end", "precision", "precision_any")
            ),
        )
        for name, line in zip(labels(rows), base.rows, strict=True)
    ]
    return Table(
        (*base.head, "validation loss", "precision", "of all classes"),
        tuple(lines),
        base.align + "rrr",
    )


def by_share(rows: Sequence[Row], kind: str, name: str) -> tuple[list[float], np.ndarray]:
    """λ, ascending, and ``(seeds, λ)`` what was found under this name."""
    known = grid(rows)
    shares = sorted(share for own, share in known if own == kind)
    return shares, np.array([found(known[kind, share], name) for share in shares]).T
