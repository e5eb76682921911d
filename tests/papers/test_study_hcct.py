"""HCCT's studies: one more exchange at the end, λ by validation, the calendar, three clients, and verdicts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from studied import ALONE, holds

from coterie.core import Training
from coterie.data.objective import cross_entropy
from coterie.methods import FedAvg, Independent
from coterie.randomness import seeded
from papers import STUDIES, hcct, hcct_choice, hcct_patterns
from papers.running import rounds_of, world_of
from papers.study import Row

SCENARIO = {"name": "digits/iid", "clients": 3, "train": 0.1, "validation": 0.1}
TRAINING = {"lr": 0.1, "batch": 20, "epochs": 1}


@pytest.mark.parametrize("method", [FedAvg(), Independent()])
@seeded(0)
def test_the_end_is_of_the_models_that_serve_the_clients(method: Any) -> None:
    world = world_of(ALONE, SCENARIO, TRAINING, 0)
    *_, last = rounds_of(method, world, ALONE, 2, 0)
    found = hcct.at_the_end(ALONE, method, last, world, 0)
    total, right = 0.0, []
    for row, client in zip(hcct.serving(last, [0, 1, 2]), (0, 1, 2), strict=True):
        module, data = world.model(), world.clients[client]
        torch.nn.utils.vector_to_parameters(row, module.parameters())
        x, y = data.train.batch(torch.arange(len(data.train)))
        gradients = torch.autograd.grad(cross_entropy(module(x), y), list(module.parameters()))
        total += sum(float(g.double().square().sum()) for g in gradients)
        x, y = data.validation.batch(torch.arange(len(data.validation)))
        right.append(float((module(x).argmax(1) == y).float().mean()))
    assert found["gradient_norm"] == pytest.approx(total, rel=1e-3)
    assert found["validation"] == pytest.approx(np.mean(right), rel=1e-3)


def test_without_data_for_choices_there_is_no_validation() -> None:
    cell = {"problem": "digits", "scenario": {**SCENARIO, "validation": 0.0}, "training": TRAINING}
    found = hcct.compare(
        ALONE, **cell, method={"label": "FedAvg", "name": "fedavg"}, rounds=2, every=1, seed=0
    )
    assert found["validation"] is None
    assert found["best_epoch"] >= max(found["curve"])


def test_clients_join_in_their_turn() -> None:
    assert hcct.calendar([0, 1, 2, 3, 4, 5], founders=2, joiners=2, apart=10) == {
        2: 11,
        3: 11,
        4: 21,
        5: 21,
    }
    assert set(hcct.calendar([0, 1, 2], founders=2, joiners=0, apart=10).values()) == {hcct.NEVER}


def test_three_clients_have_shares_of_five_classes_each() -> None:
    world = hcct_patterns.three_clients(ALONE, "digits", (0.8, 0.1), 500, 100, "mlp", Training(), 0)
    assert [len(world.clients[c].train) for c in (0, 1, 2)] == [400, 50, 500]
    kinds = [set(world.clients[c].train.targets.tolist()) for c in (0, 1, 2)]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == len(kinds[2]) == 5
    assert not kinds[0] & kinds[2]
    assert all(set(world.clients[c].test.targets.tolist()) == kinds[c] for c in (0, 1, 2))
    seen = [
        {row.numpy().tobytes() for row in s.inputs[s.index]}
        for c in (0, 1, 2)
        for s in [world.clients[c].train]
    ]
    held = {
        row.numpy().tobytes() for row in world.clients[0].test.inputs[world.clients[0].test.index]
    }
    assert not seen[0] & seen[1]
    assert not held & (seen[0] | seen[1])


def test_a_pattern_is_federated_averaging_in_each_group() -> None:
    world = world_of(ALONE, SCENARIO, TRAINING, 0)
    *_, whole = rounds_of(FedAvg(), world, ALONE, 2, 0)
    *_, same = rounds_of(hcct_patterns.Pattern(groups=((0, 1, 2),)), world, ALONE, 2, 0)
    assert same.assignment.models.equal(whole.assignment.models)
    with pytest.raises(ValueError, match="every client in one group"):
        list(rounds_of(hcct_patterns.Pattern(groups=((0, 1),)), world, ALONE, 2, 0))


# -- verdicts by hand
# ------------------------------------------------------------------------------------------------------


def row(label: str, accuracy: float, **more: Any) -> Row:
    """A run of a method by its label; ``how`` are its settings."""
    how = {
        "label": label,
        "name": "hcct" if label.startswith("HCCT,") or label == "HCCT" else "other",
        **more.pop("how", {}),
    }
    found = {
        "accuracy": accuracy,
        "worst": accuracy - 0.1,
        "std": 0.05,
        "groups": 4,
        "validation": 0.5,
        "validation_loss": 1.0,
        "exchanges": 10,
        "bytes_up": 5,
        "bytes_down": 5,
        **more,
    }
    cell = {"seed": 0, "scenario": {"name": "fashion/iid"}, "method": how}
    return {"cell": cell, "found": found, "seconds": 0.0}


def thrice(rows: Sequence[Row], label: str = "", *apart: float) -> list[Row]:
    """The rows of three seeds; apart: what is added to the accuracies, and taken from the deviations, of this label."""
    out = []
    for seed in range(3):
        for each in rows:
            more = apart[seed] if apart and each["cell"]["method"]["label"] == label else 0.0
            numbers = {name: each["found"][name] + more for name in ("accuracy", "worst")}
            numbers["std"] = each["found"]["std"] - more
            out.append(
                {
                    **each,
                    "cell": {**each["cell"], "seed": seed},
                    "found": {**each["found"], **numbers},
                }
            )
    return out


def others(alone: float = 0.78, joint: float = 0.65, rest: float = 0.7, **more: Any) -> list[Row]:
    """The paper's baselines."""
    names = {
        "Independent": alone,
        "FedAvg": joint,
        "MAXFL": rest,
        "FedFA": rest,
        "IFCA": rest,
        "FLSC": rest,
    }
    return [row(name, accuracy, **more) for name, accuracy in names.items()]


def aside(name: str, rows: Sequence[Row]) -> dict[str, str]:
    """What does not count, and why."""
    return {claim.what: claim.aside for claim in STUDIES[name].claims(rows) if claim.aside}


def printed(weight: float, accuracy: float, **more: Any) -> Row:
    return row(
        f"HCCT, printed {weight}",
        accuracy,
        how={"name": "hcct", "memory": 0, "tradeoff": weight},
        **more,
    )


def test_the_run_that_validates_best_is_chosen_and_all_are_paid_for() -> None:
    rows = [
        printed(0.1, 0.9, validation=0.6),
        printed(0.7, 0.8, validation=0.7, validation_loss=0.5),
        printed(1.5, 0.7, validation=0.7, validation_loss=0.6),
        row("FedAvg", 0.99),
    ]
    *same, chosen = hcct_choice.with_chosen(rows)
    assert same == rows
    assert chosen["cell"]["method"] == {
        "label": hcct_choice.PRINTED,
        "name": "hcct",
        "tradeoff": 0.7,
    }
    assert (chosen["found"]["accuracy"], chosen["found"]["exchanges"]) == (0.8, 30)
    assert hcct_choice.tradeoff(row("HCCT", 0.5)) == 0.7
    assert hcct_choice.family(row("HCCT, five", 0.5, how={"groups": 5})) is None


def test_what_was_added_to_the_grid_after_a_look_at_digits_is_not_chosen_there() -> None:
    rows = [printed(1.5, 0.8, groups=2), printed(4, 0.9, groups=1, validation=0.9)]
    assert hcct_choice.with_chosen(rows)[-1]["found"]["groups"] == 1
    for each in rows:
        each["cell"]["scenario"]["name"] = "digits/iid"
    assert hcct_choice.with_chosen(rows)[-1]["found"]["groups"] == 2


@pytest.mark.parametrize(
    ("mine", "groups", "expected"),
    [
        (0.85, 1, [True, True, True]),
        (0.77, 4, [False, False, False]),
        (0.785, 4, [True, False, False]),  # not by a point
    ],
)
def test_table_4_digit(mine: float, groups: int, expected: list[bool]) -> None:
    assert (
        holds("hcct/table4-digit", thrice([printed(0.1, mine), *others(groups=groups)])) == expected
    )


def test_an_error_is_least_where_all_baselines_were_run_and_seeds_agree() -> None:
    first = lambda rows: holds("hcct/table4-digit", rows)[0]  # noqa: E731
    rows = [printed(0.1, 0.85), *others()]
    assert first(thrice(rows)) is True
    assert first(rows) is None  # one seed
    assert (
        first(thrice(rows, "Independent", 0.1, -0.05, 0.0)) is None
    )  # above it on average, and once below
    assert (
        first(thrice([each for each in rows if each["cell"]["method"]["label"] != "FLSC"])) is None
    )
    assert first(thrice([*rows, row("IFCA, identical start", 0.9)])) is False
    assert (
        first(thrice([*rows[:-1], row("IFCA, identical start", 0.9)])) is False
    )  # whatever FLSC may have


def test_what_is_not_the_papers_does_not_count() -> None:
    rows = [
        printed(0.1, 0.85),
        row("HCCT", 0.8),
        *others(),
        row("IFCA, identical start", 0.6, groups=1),
    ]
    assert set(aside("hcct/table4-digit", rows)) == {
        "HCCT with memory: mean error",
        "IFCA, as published: all models start alike",
    }
    assert list(aside("hcct/table4-cifar", rows)) == ["HCCT with memory beside training alone"]
    assert list(aside("hcct/table5", rows)) == [
        "HCCT with memory: standard deviation of errors over clients"
    ]


def test_with_layers_of_its_own_a_client_is_better_than_with_hccts_best() -> None:
    rows = [printed(0.1, 0.85), row("HCCT, a", 0.8, validation=0.6), row("HCCT", 0.7), *others()]
    assert holds("hcct/table4-digit", [*rows, row("HCCT-P", 0.81)])[-1] is True
    assert holds("hcct/table4-digit", [*rows, row("HCCT-P", 0.75)])[-1] is False


@pytest.mark.parametrize(
    ("mine", "alone", "joint", "rest", "groups", "expected"),
    [
        (0.80, 0.70, 0.81, 0.75, 1, [True, True, True]),
        (0.79, 0.70, 0.81, 0.75, 1, [False, True, True]),  # 2 points behind
        (0.80, 0.795, 0.81, 0.75, 1, [False, True, True]),  # 1 point, as near to training alone
        (0.80, 0.70, 0.81, 0.805, 2, [True, False, False]),
    ],
)
def test_table_4_fmnist(
    mine: float, alone: float, joint: float, rest: float, groups: int, expected: list[bool]
) -> None:
    rows = [printed(4, mine, groups=groups), *others(alone, joint, rest)]
    assert holds("hcct/table4-fmnist", rows) == expected


def test_one_group_is_one_in_every_run() -> None:
    rows = thrice([printed(4, 0.8, groups=1), *others()])
    assert holds("hcct/table4-fmnist", rows)[-1] is True
    rows[0]["found"]["groups"] = 2
    assert holds("hcct/table4-fmnist", rows)[-1] is False


@pytest.mark.parametrize(
    ("mine", "alone", "joint", "expected"),
    [
        (0.80, 0.81, 0.75, [True, True, True]),
        (0.79, 0.81, 0.80, [False, False, False]),
        (
            0.80,
            0.81,
            0.795,
            [False, True, True],
        ),  # 1 point from training alone, and half a point from one model for all
    ],
)
def test_table_4_cifar(mine: float, alone: float, joint: float, expected: list[bool]) -> None:
    assert (
        holds("hcct/table4-cifar", thrice([printed(0.001, mine), *others(alone, joint)]))
        == expected
    )


def test_table_4_cifar_is_undecided_where_seeds_differ_or_baselines_lack() -> None:
    rows = [printed(0.001, 0.80), *others(0.81, 0.75)]
    assert holds("hcct/table4-cifar", thrice(rows, "FedAvg", 0.07, -0.07, 0.0)) == [
        True,
        None,
        True,
    ]
    assert holds("hcct/table4-cifar", rows[:-1]) == [True, None, None]  # one seed, and no FLSC
    assert (
        holds("hcct/table4-cifar", [*rows[:-2], row("IFCA", 0.9)])[-1] is False
    )  # whatever FLSC may have


def test_table_5() -> None:
    rows = [printed(0.1, 0.8, std=0.04), *others()]
    assert holds("hcct/table5", thrice(rows)) == [True, True]
    assert holds("hcct/table5", thrice(rows[:-1])) == [None, None]
    assert holds("hcct/table5", thrice(rows, "FedAvg", 0.02, 0.0, -0.02)) == [
        None,
        True,
    ]  # 1 point, and 15
    rows[0]["found"].update(std=0.06, worst=0.6)
    assert holds("hcct/table5", thrice(rows)) == [False, False]


def joined(accuracies: Sequence[float], first: Sequence[float], epochs: int = 1) -> list[Row]:
    return [
        {
            **row(label, accuracy, founders=[0.1, own]),
            "cell": {
                "seed": 0,
                "joiners": joiners,
                "training": {"epochs": epochs},
                "method": {"label": label},
            },
        }
        for label in ("HCCT", "HCCT as printed")
        for joiners, (accuracy, own) in enumerate(zip(accuracies, first, strict=True))
    ]


def test_figure_3() -> None:
    assert holds("hcct/fig3", joined((0.7, 0.75, 0.8), (0.7, 0.75, 0.8))) == [True] * 4
    assert holds("hcct/fig3", joined((0.7, 0.69, 0.8), (0.7, 0.72, 0.65))) == [False] * 4


def test_figure_3_counts_as_printed_with_one_local_epoch() -> None:
    known = aside("hcct/fig3", joined((0.7, 0.75, 0.8), (0.7, 0.75, 0.8)))
    assert set(known.values()) == {"with memory, which is ours"}
    assert len(known) == 2
    assert len(aside("hcct/fig3", joined((0.7, 0.75, 0.8), (0.7, 0.75, 0.8), epochs=3))) == 4


def weighed(train: float, weight: float, accuracy: float, memory: float = 0.0) -> Row:
    cell = {"seed": 0, "train": train, "tradeoff": weight, "memory": memory}
    return {"cell": cell, "found": {"accuracy": accuracy}, "seconds": 0.0}


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ({(0.1, 0.1): 0.5, (0.1, 0.7): 0.6, (0.8, 0.1): 0.9, (0.8, 0.7): 0.8}, [True, True]),
        ({(0.1, 0.1): 0.6, (0.1, 0.7): 0.5, (0.8, 0.1): 0.9, (0.8, 0.7): 0.5}, [False, False]),
    ],
)
def test_figure_4(accuracy: dict[tuple[float, float], float], expected: list[bool]) -> None:
    rows = [weighed(*place, value) for place, value in accuracy.items()]
    assert holds("hcct/fig4", rows) == expected
    remembering = [weighed(*place, value, memory=0.9) for place, value in accuracy.items()]
    why = list(aside("hcct/fig4", [*rows, *remembering]).values())
    assert why == ["nearly any run passes"] + ["with memory, which is ours"] * 2


@pytest.mark.parametrize(
    ("best", "expected"), [((2, 2, 0, 1), True), ((0, 2, 0, 0), False), ((1, 2, 1, 0), False)]
)
def test_the_best_weight_is_larger_with_each_small_share_than_with_each_great_one(
    best: Sequence[int], expected: bool
) -> None:
    rows = [
        weighed(share, weight, share + 0.05 * (place == best[i]))
        for i, share in enumerate((0.1, 0.2, 0.4, 0.7))
        for place, weight in enumerate((0.1, 0.3, 0.7))
    ]
    assert holds("hcct/fig4", rows) == [expected, True]


def test_more_data_are_better_from_each_share_to_the_next() -> None:
    rows = [weighed(0.1, 0.1, 0.5), weighed(0.2, 0.1, 0.4), weighed(0.7, 0.1, 0.9)]
    assert holds("hcct/fig4", rows)[1] is False


def test_figure_5() -> None:
    def grouped(count: int, accuracy: float, utility: float, memory: float = 0.0) -> Row:
        found = {"accuracy": accuracy, "utility": utility, "domains": 2}
        return {
            "cell": {"seed": 0, "groups": count, "memory": memory},
            "found": found,
            "seconds": 0.0,
        }

    assert holds(
        "hcct/fig5", [grouped(1, 0.5, 1.0), grouped(2, 0.8, 2.0), grouped(3, 0.7, 1.5)]
    ) == [True, True]
    assert holds(
        "hcct/fig5", [grouped(1, 0.5, 1.0), grouped(2, 0.7, 2.0), grouped(3, 0.8, 1.5)]
    ) == [False, False]
    assert not aside("hcct/fig5", [grouped(1, 0.5, 1.0)])
    assert len(aside("hcct/fig5", [grouped(1, 0.5, 1.0, memory=0.9)])) == 2


def pattern(label: str, *each: float, ari: float = 1.0) -> Row:
    return row(label, float(np.mean(each)), each=[*each], ari=ari)


def test_table_2() -> None:
    rows = [
        pattern("alone", 0.9, 0.7, 0.9),
        pattern("all together", 0.8, 0.8, 0.8),
        pattern("1 with 2", 0.9, 0.9, 0.9),
        pattern("1 with 3", 0.7, 0.7, 0.8),
        pattern("2 with 3", 0.9, 0.2, 0.9),
        pattern("HCCT as printed", 0.9, 0.9, 0.9),
        pattern("HCCT", 0.9, 0.9, 0.9, ari=0.5),
    ]
    assert holds("hcct/table2", rows) == [True, True, True, True, True, False]
    assert list(aside("hcct/table2", rows)) == ["HCCT finds that pattern"]
    rows[0], rows[4] = pattern("alone", 0.95, 0.95, 0.7), pattern("2 with 3", 0.9, 0.88, 0.9)
    rows[2], rows[5] = (
        pattern("1 with 2", 0.5, 0.9, 0.5),
        pattern("HCCT as printed", 0.9, 0.9, 0.9, ari=0.0),
    )
    assert holds("hcct/table2", rows) == [False, False, False, False, False, False]
