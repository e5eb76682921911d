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
from papers import hcct, hcct_choice, hcct_patterns
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
    found = hcct.compare(ALONE, **cell, method={"label": "FedAvg", "name": "fedavg"}, rounds=2, every=1, seed=0)
    assert found["validation"] is None
    assert found["best_epoch"] >= max(found["curve"])


def test_clients_join_in_their_turn() -> None:
    assert hcct.calendar([0, 1, 2, 3, 4, 5], founders=2, joiners=2, apart=10) == {2: 11, 3: 11, 4: 21, 5: 21}
    assert set(hcct.calendar([0, 1, 2], founders=2, joiners=0, apart=10).values()) == {hcct.NEVER}


def test_three_clients_have_shares_of_five_classes_each() -> None:
    world = hcct_patterns.three_clients(ALONE, "digits", (0.8, 0.1), 500, 100, "mlp", Training(), 0)
    assert [len(world.clients[c].train) for c in (0, 1, 2)] == [400, 50, 500]
    kinds = [set(world.clients[c].train.targets.tolist()) for c in (0, 1, 2)]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == len(kinds[2]) == 5
    assert not kinds[0] & kinds[2]
    assert all(set(world.clients[c].test.targets.tolist()) == kinds[c] for c in (0, 1, 2))
    seen = [{row.numpy().tobytes() for row in s.inputs[s.index]} for c in (0, 1, 2) for s in [world.clients[c].train]]
    held = {row.numpy().tobytes() for row in world.clients[0].test.inputs[world.clients[0].test.index]}
    assert not seen[0] & seen[1]
    assert not held & (seen[0] | seen[1])


def test_a_pattern_is_federated_averaging_in_each_group() -> None:
    world = world_of(ALONE, SCENARIO, TRAINING, 0)
    *_, whole = rounds_of(FedAvg(), world, ALONE, 2, 0)
    *_, same = rounds_of(hcct_patterns.Pattern(groups=((0, 1, 2),)), world, ALONE, 2, 0)
    assert same.assignment.models.equal(whole.assignment.models)
    with pytest.raises(ValueError, match="every client in one group"):
        list(rounds_of(hcct_patterns.Pattern(groups=((0, 1),)), world, ALONE, 2, 0))


# -- verdicts by hand ------------------------------------------------------------------------------------------------------


def row(label: str, accuracy: float, **more: Any) -> Row:
    """A run of a method by its label; ``how`` are its settings."""
    how = {"label": label, "name": "hcct" if label.startswith("HCCT,") or label == "HCCT" else "other", **more.pop("how", {})}
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
    return {"cell": {"seed": 0, "method": how}, "found": found, "seconds": 0.0}


def printed(weight: float, accuracy: float, **more: Any) -> Row:
    return row(f"HCCT, printed {weight}", accuracy, how={"name": "hcct", "memory": 0, "tradeoff": weight}, **more)


def test_the_run_that_validates_best_is_chosen_and_all_are_paid_for() -> None:
    rows = [
        printed(0.1, 0.9, validation=0.6),
        printed(0.7, 0.8, validation=0.7, validation_loss=0.5),
        printed(1.5, 0.7, validation=0.7, validation_loss=0.6),
        row("FedAvg", 0.99),
    ]
    *same, chosen = hcct_choice.with_chosen(rows)
    assert same == rows
    assert chosen["cell"]["method"] == {"label": hcct_choice.PRINTED, "name": "hcct", "tradeoff": 0.7}
    assert (chosen["found"]["accuracy"], chosen["found"]["exchanges"]) == (0.8, 30)
    assert hcct_choice.tradeoff(row("HCCT", 0.5)) == 0.7
    assert hcct_choice.family(row("HCCT, five", 0.5, how={"groups": 5})) is None


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        (0.85, [row("Independent", 0.78), row("FedAvg", 0.65)], [True, True]),
        (0.77, [row("Independent", 0.78), row("FedAvg", 0.65)], [False, False]),
        (0.785, [row("Independent", 0.78), row("FedAvg", 0.65)], [True, False]),  # not by a point
        (0.85, [row("Independent", 0.78), row("FedAvg", 0.65), row("IFCA", 0.9, groups=1)], [False, True, True]),
        (0.85, [row("Independent", 0.78), row("FedAvg", 0.65), row("IFCA, identical start", 0.6)], [True, True, False]),
    ],
)
def test_table_4_digit(mine: float, others: Sequence[Row], expected: list[bool]) -> None:
    assert holds("hcct/table4-digit", [printed(0.1, mine), *others]) == expected


@pytest.mark.parametrize(
    ("mine", "joint", "rest", "groups", "expected"),
    [
        (0.80, 0.81, 0.70, 1, [True, True, True]),
        (0.79, 0.81, 0.70, 1, [False, True, True]),
        (0.80, 0.81, 0.805, 2, [True, False, False]),
    ],
)
def test_table_4_fmnist(mine: float, joint: float, rest: float, groups: int, expected: list[bool]) -> None:
    rows = [printed(4, mine, groups=groups), row("FedAvg", joint), row("Independent", rest)]
    assert holds("hcct/table4-fmnist", rows) == expected


@pytest.mark.parametrize(
    ("mine", "alone", "joint", "expected"),
    [(0.80, 0.81, 0.70, [True, True, True]), (0.79, 0.81, 0.80, [False, False, False])],
)
def test_table_4_cifar(mine: float, alone: float, joint: float, expected: list[bool]) -> None:
    rows = [printed(0.001, mine), row("FedAvg", joint), row("Independent", alone)]
    assert holds("hcct/table4-cifar", rows) == expected


def test_table_5() -> None:
    rows = [printed(0.1, 0.8, std=0.04), row("FedAvg", 0.7), row("Independent", 0.75)]
    assert holds("hcct/table5", rows) == [True, True]
    rows[0]["found"].update(std=0.06, worst=0.6)
    assert holds("hcct/table5", rows) == [False, False]


def joined(joiners: int, accuracy: float, first: float) -> Row:
    cell = {"seed": 0, "joiners": joiners, "method": {"label": "HCCT"}}
    return {**row("HCCT", accuracy, founders=[0.1, first]), "cell": cell}


def test_figure_3() -> None:
    assert holds("hcct/fig3", [joined(0, 0.7, 0.7), joined(1, 0.75, 0.75), joined(2, 0.8, 0.8)]) == [True, True]
    assert holds("hcct/fig3", [joined(0, 0.7, 0.7), joined(1, 0.69, 0.72), joined(2, 0.8, 0.65)]) == [False, False]


def weighed(train: float, weight: float, accuracy: float) -> Row:
    cell = {"seed": 0, "train": train, "tradeoff": weight, "memory": 0.0}
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


def test_figure_5() -> None:
    def grouped(count: int, accuracy: float, utility: float) -> Row:
        found = {"accuracy": accuracy, "utility": utility, "domains": 2}
        return {"cell": {"seed": 0, "groups": count, "memory": 0.0}, "found": found, "seconds": 0.0}

    assert holds("hcct/fig5", [grouped(1, 0.5, 1.0), grouped(2, 0.8, 2.0), grouped(3, 0.7, 1.5)]) == [True, True]
    assert holds("hcct/fig5", [grouped(1, 0.5, 1.0), grouped(2, 0.7, 2.0), grouped(3, 0.8, 1.5)]) == [False, False]


def pattern(label: str, *each: float, ari: float = 1.0) -> Row:
    return row(label, float(np.mean(each)), each=[*each], ari=ari)


def test_table_2() -> None:
    rows = [
        pattern("alone", 0.9, 0.7, 0.9),
        pattern("all together", 0.8, 0.8, 0.8),
        pattern("1 with 2", 0.9, 0.9, 0.9),
        pattern("1 with 3", 0.7, 0.7, 0.8),
        pattern("2 with 3", 0.9, 0.2, 0.9),
        pattern("HCCT", 0.9, 0.9, 0.9),
    ]
    assert holds("hcct/table2", rows) == [True, True, True, True, True]
    rows[0], rows[4] = pattern("alone", 0.95, 0.95, 0.7), pattern("2 with 3", 0.9, 0.88, 0.9)
    rows[2], rows[5] = pattern("1 with 2", 0.5, 0.9, 0.5), pattern("HCCT", 0.9, 0.9, 0.9, ari=0.0)
    assert holds("hcct/table2", rows) == [False, False, False, False, False]
