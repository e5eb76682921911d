"""Verdicts by hand: rows made up so that what holds and what does not can be read off them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from papers import STUDIES
from papers.study import Row
from papers.toys import toy_clients


def row(found: Any, **cell: Any) -> Row:
    return {"cell": {"seed": 0, **cell}, "found": found, "seconds": 0.0}


def holds(name: str, rows: Sequence[Row]) -> dict[str, bool | None]:
    return {claim.what: claim.holds for claim in STUDIES[name].claims(rows)}


def aside(name: str, rows: Sequence[Row]) -> list[str]:
    """What does not count."""
    return [claim.what for claim in STUDIES[name].claims(rows) if claim.aside]


def ours(name: str, rows: Sequence[Row]) -> dict[str, str]:
    return {claim.what: claim.ours for claim in STUDIES[name].claims(rows)}


# -- toys
# -----------------------------------------------------------------------------------------------------------------


def toy_rows(**accuracy: float) -> list[Row]:
    return [
        row(
            {
                "fedavg": {"accuracy": accuracy[f"{toy}_{model}"]},
                "cfl": {"accuracy": 0.99, "ari": 1.0},
            },
            toy=toy,
            model=model,
        )
        for toy in ("xor", "diverging")
        for model in ("linear", "mlp")
    ]


def test_toys_hold_where_one_model_fails_and_groups_do_not() -> None:
    as_printed = {"xor_linear": 0.5, "xor_mlp": 1.0, "diverging_linear": 0.5, "diverging_mlp": 0.5}
    assert all(holds("cfl/fig1", toy_rows(**as_printed)).values())
    other = holds("cfl/fig1", toy_rows(**as_printed | {"xor_mlp": 0.9, "diverging_mlp": 0.9}))
    assert [what for what, value in other.items() if not value] == [
        "xor, mlp: one model for all",
        "diverging, mlp: one model for all",
    ]


def test_that_no_model_fits_both_clusters_of_a_toy_does_not_count_where_no_model_can() -> None:
    rows = toy_rows(xor_linear=0.5, xor_mlp=1.0, diverging_linear=0.5, diverging_mlp=0.5)
    assert aside("cfl/fig1", rows) == [
        f"{toy}: one model for all"
        for toy in ("xor, linear", "diverging, linear", "diverging, mlp")
    ]


def test_toys_of_points_are_what_they_are_called() -> None:
    for client, (x, y, *_) in enumerate(toy_clients("xor", 4, 40, 0.1, seed=3)):
        assert (np.sign(x[:, 0]) == (1 if client % 2 == 0 else -1)).all()
        assert ((np.sign(x[:, 0]) * np.sign(x[:, 1]) < 0) == (y == 1)).all()
    (x, y, *_), (other, names, *_) = toy_clients("diverging", 2, 40, 0.1, seed=3)
    assert ((x[:, 0] > 0) == (y == 1)).all()
    assert ((other[:, 0] > 0) == (names == 0)).all()


def path(mean: Sequence[float], client: Sequence[float], cosine: float) -> dict[str, Any]:
    return {"mean_norm": mean, "client_norm": client, "cosines": {"gradients": cosine}}


def test_paths_hold_where_the_incongruent_pull_apart_and_the_congruent_rest() -> None:
    apart, together = path([1, 0.001], [2, 0.5], -0.999), path([1, 0.001], [2, 0.001], 0.3)
    rows = [row(apart, problem="incongruent"), row(together, problem="congruent")]
    assert all(holds("cfl/fig2", rows).values())
    other = holds(
        "cfl/fig2", [row(together, problem="incongruent"), row(apart, problem="congruent")]
    )
    assert list(other.values()) == [False, True, False, False]


# -- the Separation Theorem
# ------------------------------------------------------------------------------------------------


def shares(k: int, gamma: float, gap: float, correct: float, stationary: bool = True) -> Row:
    return row({"gap": gap, "correct": correct}, k=k, gamma=gamma, stationary=stationary)


def test_bounds_hold_where_the_green_area_is_right_and_much_noise_too() -> None:
    # sin(π / 4) = 0.71 for k = 2: 0.5 is below it, and 0.75 is not.
    rows = [shares(2, 0.5, 1.0, 1.0), shares(2, 0.75, 0.9, 0.9), shares(12, 1.1, 0.96, 0.96)]
    assert list(holds("cfl/fig3", rows).values()) == [True, True, True]
    wrong = [shares(2, 0.5, 0.99, 0.99), shares(2, 0.75, 0.9, 1.0), shares(12, 1.1, 0.9, 1.0)]
    assert list(holds("cfl/fig3", wrong).values()) == [False, False, False]
    assert (
        ours("cfl/fig3", rows)["k > 10 and γ > 1, stationary gradients"]
        == "0.96 at k = 12, γ = 1.1"
    )


def test_of_two_readings_of_the_gradients_one_counts() -> None:
    both = [shares(12, 1.1, 0.96, 0.96), shares(12, 1.1, 0.96, 0.96, stationary=False)]
    assert aside("cfl/fig3", both) == ["k > 10 and γ > 1, free gradients"]


def test_cuts_of_random_gradients_agree_with_an_independent_table() -> None:
    """Shares of 200 draws that a program of its own found: 1 at γ = 1, and none above 0.1 at k = 20, γ = 2."""
    cell = {"stationary": True, "d": 100, "per_distribution": 3, "draws": 20, "seed": 5}
    measure = STUDIES["cfl/fig3"].measure
    assert measure(None, k=6, gamma=1.0, **cell) == {"gap": 1.0, "correct": 1.0}
    far = measure(None, k=20, gamma=2.0, **cell)
    assert far["gap"] == 0.0
    assert far["correct"] <= 0.2


# -- data
# -----------------------------------------------------------------------------------------------------------------


def test_a_tree_holds_where_leaves_are_the_truth_and_newcomers_are_at_home() -> None:
    def grown(*groups: list[int], newcomers: Sequence[int] = (3,)) -> Row:
        return row({"groups": groups, "truth": ([0, 1], [2, 3]), "newcomers": newcomers})

    right = grown([0, 1], [2, 3])
    assert list(holds("cfl/fig4", [right, right]).values()) == [True, True]
    among_others, alone = grown([0, 1, 3], [2]), grown([0, 1], [2], [3])
    for wrong in (among_others, alone):
        assert list(holds("cfl/fig4", [right, wrong]).values()) == [False, False]
        assert ours("cfl/fig4", [right, wrong])[
            "newcomers walk down the tree (Algorithm 4)"
        ].startswith("1 of 2")
    # The founders 0 and 1 should not have been parted; that is no fault of the newcomer's walk.
    assert list(holds("cfl/fig4", [grown([0], [1], [2, 3])]).values()) == [False, True]


def gaps(problem: str, updates: Sequence[float], gradients: Sequence[float]) -> list[Row]:
    sizes = (100, 500, 1000) if problem == "CIFAR-10" else (10, 20, 100)
    return [
        row(
            {
                "updates": {"gap": a, "correct": float(a > 0)},
                "gradients": {"gap": b, "correct": 0.0},
            },
            problem=problem,
            examples=size,
        )
        for size, a, b in zip(sizes, updates, gradients, strict=True)
    ]


@pytest.mark.parametrize(
    ("problem", "updates", "gradients", "expected"),
    [
        ("MNIST", (-0.1, 0.2, 0.5), (-0.2, -0.1, 0.1), [True, True, True]),
        (
            "MNIST",
            (-0.1, -0.2, 0.5),
            (-0.2, -0.3, 0.1),
            [False, False, True],
        ),  # below zero at 20, and it fell
        (
            "MNIST",
            (0.1, 0.2, -0.1),
            (-0.2, -0.3, -0.4),
            [False, False, False],
        ),  # above zero at 20, but not to the end
        (
            "CIFAR-10",
            (-0.1, 0.2, 0.5),
            (-0.2, 0.1, 0.6),
            [True, True, False],
        ),  # the gradients' gap is greater at 1,000
        ("CIFAR-10", (-0.2, -0.1, 0.5), (-0.3, -0.2, 0.1), [False, True, True]),
        ("digits", (-0.1, -0.05, 0.5), (-0.2, -0.1, -0.1), [None, True, True]),
        (
            "digits",
            (-0.3, -0.2, -0.1),
            (-0.4, -0.3, -0.2),
            [None, True, False],
        ),  # greater at all sizes, but never above zero
    ],
)
def test_gaps_by_examples(
    problem: str, updates: Sequence[float], gradients: Sequence[float], expected: list[bool | None]
) -> None:
    assert list(holds("cfl/fig5", gaps(problem, updates, gradients)).values()) == expected


@pytest.mark.parametrize(
    ("correct_seeds_of_size", "expected"),
    [
        ((0, 2, 3), True),  # of three seeds, two at the printed size, and all with more examples
        ((0, 1, 3), False),
        ((0, 3, 2), False),  # a wrong cut with more examples
        ((3, 3, 3), True),
    ],
)
def test_a_correct_bipartition_is_one_of_most_seeds_and_of_all_with_more_examples(
    correct_seeds_of_size: Sequence[int], expected: bool
) -> None:
    rows = []
    for seed in range(3):
        for size, correct_seeds in zip((10, 20, 50), correct_seeds_of_size, strict=True):
            measured = {"gap": -0.1, "correct": float(seed < correct_seeds)}
            found = {"updates": measured, "gradients": measured}
            rows.append(row(found, problem="MNIST", examples=size, seed=seed))
    (claim, *_) = holds("cfl/fig5", rows).items()
    assert claim == ("MNIST: examples for a correct bipartition", expected)


def test_gaps_by_rounds() -> None:
    def verdicts(
        updates: Sequence[float], gradients: Sequence[float], problem: str = "MNIST"
    ) -> list[bool | None]:
        correct = [float(value > 0) for value in updates]
        gap = {"updates": {"gap": updates, "correct": correct}, "gradients": {"gap": gradients}}
        return list(holds("cfl/fig6", [row(gap, problem=problem, rounds=len(updates))]).values())

    assert verdicts([-1, 0.1, 0.2, 0.3], [-1, -1, 0.1, 0.2]) == [True, True, True]
    assert verdicts([-1, 0.1, 0.2, 0.3], [-1, -1, 0.1, 0.2], "digits") == [None, True, True]
    ablation = "CIFAR-10, 500 examples"  # judged, not counted
    assert verdicts([-1.0] * 10 + [0.1] * 5, [-1.0] * 15, ablation)[::2] == [False, True]
    rows = [
        row(
            {of: {"gap": [-1, 0.1], "correct": [0.0, 1.0]} for of in ("updates", "gradients")},
            problem=p,
            rounds=2,
        )
        for p in ("MNIST", ablation)
    ]
    assert [what.partition(": ")[0] for what in aside("cfl/fig6", rows)] == [ablation] * 3
    # Never above zero for good, falling, and later than the gradients.
    assert verdicts([0.3, 0.2, 0.1, -1], [-1, -1, -1, 0.1]) == [False, False, False]
    assert verdicts([-1.0] * 9 + [0.1] * 5, [-1.0] * 9 + [0.2] * 5)[::2] == [
        True,
        False,
    ]  # both from round 10 on
    assert verdicts([-1.0] * 10 + [0.1] * 5, [-1.0] * 15)[::2] == [False, True]  # from round 11 on
    assert verdicts([-1.0, -0.9], [-1.0, -1.0])[2] is False  # neither ever


def test_norms() -> None:
    def norms(problem: str, mean: Sequence[float], client: Sequence[float]) -> Row:
        return row(
            {"rounds": [1, 5, 10], "mean_norm": mean, "client_norm": client},
            problem=problem,
            rounds=10,
        )

    as_printed = [
        norms("congruent", (1, 0.2, 0.05), (2, 0.5, 0.1)),
        norms("incongruent", (1, 0.2, 0.05), (2, 1.0, 1.1)),
    ]
    assert all(holds("cfl/fig7", as_printed).values())
    # The clients at odds come to rest: 0.5 is half of what it was in the middle.
    falls = [as_printed[0], norms("incongruent", (1, 0.2, 0.2), (2, 1.0, 0.5))]
    assert [what for what, value in holds("cfl/fig7", falls).items() if not value] == [
        "incongruent: the greatest client norm (33)",
        "incongruent: the mean update (32)",
    ]
