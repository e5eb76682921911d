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


def ours(name: str, rows: Sequence[Row]) -> dict[str, str]:
    return {claim.what: claim.ours for claim in STUDIES[name].claims(rows)}


# -- toys -----------------------------------------------------------------------------------------------------------------


def toy_rows(**accuracy: float) -> list[Row]:
    return [
        row({"fedavg": {"accuracy": accuracy[f"{toy}_{model}"]}, "cfl": {"accuracy": 0.99, "ari": 1.0}}, toy=toy, model=model)
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
    other = holds("cfl/fig2", [row(together, problem="incongruent"), row(apart, problem="congruent")])
    assert list(other.values()) == [False, True, False, False]


# -- the Separation Theorem ------------------------------------------------------------------------------------------------


def shares(k: int, gamma: float, gap: float, correct: float) -> Row:
    return row({"gap": gap, "correct": correct}, k=k, gamma=gamma, stationary=True)


def test_bounds_hold_where_the_green_area_is_right_and_much_noise_too() -> None:
    # sin(π / 4) = 0.71 for k = 2: 0.5 is below it, and 0.75 is not.
    rows = [shares(2, 0.5, 1.0, 1.0), shares(2, 0.75, 0.9, 0.9), shares(12, 1.1, 0.96, 0.96)]
    assert list(holds("cfl/fig3", rows).values()) == [True, True, True]
    wrong = [shares(2, 0.5, 0.99, 0.99), shares(2, 0.75, 0.9, 1.0), shares(12, 1.1, 0.9, 1.0)]
    assert list(holds("cfl/fig3", wrong).values()) == [False, False, False]
    assert ours("cfl/fig3", rows)["k > 10 and γ > 1, stationary gradients"] == "0.96 at k = 12, γ = 1.1"


def test_cuts_of_random_gradients_agree_with_an_independent_table() -> None:
    """Shares of 200 draws that a program of its own found: 1 at γ = 1, and none above 0.1 at k = 20, γ = 2."""
    cell = {"stationary": True, "d": 100, "per_distribution": 3, "draws": 20, "seed": 5}
    measure = STUDIES["cfl/fig3"].measure
    assert measure(None, k=6, gamma=1.0, **cell) == {"gap": 1.0, "correct": 1.0}
    far = measure(None, k=20, gamma=2.0, **cell)
    assert far["gap"] == 0.0
    assert far["correct"] <= 0.2


# -- data -----------------------------------------------------------------------------------------------------------------


def test_a_tree_holds_where_leaves_are_the_truth_and_newcomers_are_at_home() -> None:
    right = {"groups": [[0, 1], [2]], "truth": [[0, 1], [2]], "newcomers": {"2": True}}
    assert list(holds("cfl/fig4", [row(right), row(right)]).values()) == [True, True]
    wrong = {"groups": [[0], [1], [2]], "truth": [[0, 1], [2]], "newcomers": {"2": True, "1": False}}
    assert list(holds("cfl/fig4", [row(right), row(wrong)]).values()) == [False, False]
    assert ours("cfl/fig4", [row(right), row(wrong)])["newcomers walk down the tree (Algorithm 4)"].startswith("2 of 3")


def gaps(problem: str, updates: Sequence[float], gradients: Sequence[float]) -> list[Row]:
    return [
        row({"updates": {"gap": a, "correct": 1.0}, "gradients": {"gap": b, "correct": 0.0}}, problem=problem, examples=size)
        for size, a, b in zip((10, 20, 100), updates, gradients, strict=True)
    ]


@pytest.mark.parametrize(
    ("problem", "updates", "gradients", "expected"),
    [
        ("MNIST", (-0.1, 0.2, 0.5), (-0.2, -0.1, 0.1), [True, True, True]),
        ("MNIST", (-0.1, -0.2, 0.5), (-0.2, -0.3, 0.1), [False, False, True]),  # 100 examples are more than 40, and it fell
        ("CIFAR-10", (-0.1, 0.2, 0.5), (-0.2, 0.1, 0.6), [False, True, False]),  # 20 are fewer than 250
        ("digits", (-0.1, -0.05, 0.5), (-0.2, -0.1, -0.1), [True, True, True]),
        ("digits", (-0.3, -0.2, -0.1), (-0.4, -0.3, -0.2), [False, True, True]),
    ],
)
def test_gaps_by_examples(problem: str, updates: Sequence[float], gradients: Sequence[float], expected: list[bool]) -> None:
    assert list(holds("cfl/fig5", gaps(problem, updates, gradients)).values()) == expected


def test_gaps_by_rounds() -> None:
    def series(updates: Sequence[float], gradients: Sequence[float]) -> list[Row]:
        return [row({"updates": {"gap": updates}, "gradients": {"gap": gradients}}, problem="digits", rounds=len(updates))]

    assert list(holds("cfl/fig6", series([-1, 0.1, 0.2, 0.3], [-1, -1, 0.1, 0.2])).values()) == [True, True, True]
    # Never above zero for good, falling, and later than the gradients.
    assert list(holds("cfl/fig6", series([0.3, 0.2, 0.1, -1], [-1, -1, -1, 0.1])).values()) == [False, False, False]
    late = [-1.0] * 20 + [0.1] * 5
    assert not next(iter(holds("cfl/fig6", series(late, [-1.0] * 25)).values()))  # from round 21 on


def test_norms() -> None:
    def norms(problem: str, mean: Sequence[float], client: Sequence[float]) -> Row:
        return row({"rounds": [1, 5, 10], "mean_norm": mean, "client_norm": client}, problem=problem, rounds=10)

    as_printed = [norms("congruent", (1, 0.2, 0.05), (2, 0.5, 0.1)), norms("incongruent", (1, 0.2, 0.05), (2, 1.0, 1.1))]
    assert all(holds("cfl/fig7", as_printed).values())
    # The clients at odds come to rest: 0.5 is half of what it was in the middle.
    falls = [as_printed[0], norms("incongruent", (1, 0.2, 0.2), (2, 1.0, 0.5))]
    assert [what for what, value in holds("cfl/fig7", falls).items() if not value] == [
        "incongruent: the greatest client norm (33)",
        "incongruent: the mean update (32)",
    ]
