"""Statistics of their data that clients tell: counts of labels and means of features, in every engine, and who forbids them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from torch import nn

from coterie.boundary import Boundary
from coterie.core import STATISTICS, Needs, Plan, Task
from coterie.engines import rounds as inprocess
from coterie.engines.flower import client, messages
from coterie.methods import FedAvg
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.robust import AS_PUBLISHED
from coterie.settings import SettingError
from flowered import Here, a_run, app_of, strategy_of
from small import CLASSES, mlp, world

TOLD: list[Any] = []
"""What the method below was told, in its steps."""


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """FedAvg that asks for both statistics in every round."""

    name: ClassVar[str] = "curious"
    needs: ClassVar[Needs] = Needs(features=STATISTICS, unchanged_by="rotation")

    def plan(self, state: Any, cohort: Any) -> Plan:
        planned = super().plan(state, cohort)
        tasks = {c: replace(task, statistics=STATISTICS) for c, task in planned.tasks.items()}
        return replace(planned, tasks=tasks)

    def step(self, state: Any, replies: Any) -> Any:
        TOLD.append((state.model.clone(), replies.statistics))
        return super().step(state, replies)


@dataclass(frozen=True, kw_only=True)
class Sneaky(Curious):
    """The same, which declares nothing."""

    name: ClassVar[str] = "sneaky"
    needs: ClassVar[Needs] = Needs()


def rounds_of(tried: Any, method: Any = None, **how: Any) -> list[Any]:
    """Two rounds of the method in this process."""
    TOLD.clear()
    how = {"workers": 1, "robust": AS_PUBLISHED, **how}
    return list(inprocess.rounds(method or Curious(), tried, rounds=2, **how))


@seeded(0)
def expected(tried: Any, row: torch.Tensor) -> dict[str, dict[int, np.ndarray]]:
    """The statistics by their definitions, one example after the other."""
    net = mlp()
    Layout(net).load(net, row)
    counts, means = {}, {}
    for number, data in tried.clients.items():
        counts[number] = np.array(
            [data.train.targets.tolist().count(label) for label in range(CLASSES)]
        )
        features = [net[:-1](data.train.inputs[position][None])[0] for position in data.train.index]
        means[number] = torch.stack(features).double().mean(0).detach().numpy()
    return {"label-counts": counts, "feature-mean": means}


@pytest.mark.parametrize("width", [1, 4], ids=["alone", "in blocks"])
def test_clients_tell_what_their_data_are_before_they_train(width: int) -> None:
    tried = world(sizes=(20, 9, 31, 20))
    done = rounds_of(tried, width=width)
    assert len(TOLD) == 2
    for row, told in TOLD:
        assert set(told) == set(STATISTICS)
        for statistic, of_client in expected(tried, row).items():
            assert set(told[statistic]) == set(tried.clients)
            for number, values in of_client.items():
                np.testing.assert_allclose(told[statistic][number], values, rtol=1e-5, atol=1e-6)
    # The engine records it, and the bytes: C counts and f features of 4 bytes from each of 4 clients.
    notes = [note for note in done[0].notes if note.kind == "statistic"]
    assert [note.text for note in notes] == [
        "4 clients told the server the counts of their labels",
        "4 clients told the server the means of their features",
    ]
    silent = rounds_of(tried, FedAvg(), width=width)
    assert done[0].bytes_up - silent[0].bytes_up == 4 * 4 * (CLASSES + 8)
    # It changes nothing else.
    assert torch.equal(done[0].assignment.models, silent[0].assignment.models)


@pytest.mark.slow
def test_the_same_in_several_processes() -> None:
    tried = world()
    rounds_of(tried)
    expected_told = list(TOLD)
    rounds_of(tried, workers=2)
    for (_, one), (_, other) in zip(expected_told, TOLD, strict=True):
        for statistic in STATISTICS:
            for number, values in one[statistic].items():
                np.testing.assert_array_equal(values, other[statistic][number])


def over_flower(tried: Any, allowed: str) -> tuple[list[Any], list[Any]]:
    """Two rounds over Flower with nodes that may tell ``allowed``, and what the method was told."""
    TOLD.clear()
    grid = Here(app_of(tried), len(tried.clients))
    for context in grid.contexts.values():
        if allowed:
            context.node_config["statistics"] = allowed
    with a_run():
        done = list(strategy_of(Curious(), tried).rounds(grid, 2))
    return done, list(TOLD)


def test_over_flower_nodes_tell_the_same_if_their_operators_allow_it() -> None:
    tried = world()
    rounds_of(tried, width=1)
    expected_told = list(TOLD)
    done, told = over_flower(tried, "label-counts, feature-mean")
    assert not done[0].refused
    for (_, one), (_, other) in zip(expected_told, told, strict=True):
        for statistic in STATISTICS:
            for number, values in one[statistic].items():
                np.testing.assert_allclose(other[statistic][number], values, rtol=1e-5, atol=1e-6)


def test_a_node_tells_nothing_that_its_operator_does_not_allow() -> None:
    orders = [_order("label-counts")]
    for config in ({}, {"statistics": "feature-mean"}):
        with pytest.raises(
            SettingError, match='must allow it, statistics="label-counts" in the node'
        ):
            client.check_told(orders, config, is_simulated=False)
    client.check_told(orders, {"statistics": "feature-mean,label-counts"}, is_simulated=False)
    client.check_told(orders, {}, is_simulated=True)
    # The server is told why, and goes on with the others.
    tried = world()
    grid = Here(app_of(tried), len(tried.clients))
    for node in grid.get_node_ids()[1:]:
        grid.contexts[node].node_config["statistics"] = "label-counts,feature-mean"
    with a_run():
        (done,) = strategy_of(Curious(), tried).rounds(grid, 1)
    ((refused, reason),) = done.refused.items()
    assert refused == min(tried.clients)
    assert "does not tell label-counts" in reason


def _order(*statistics: Any) -> Any:
    class Order:
        task = Task(offered=(0,), statistics=statistics)

    return Order()


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([1.0, 2.0], "has 2 numbers in place of 3"),
        ([1.0, 2.0, float("nan")], "not finite"),
        ([1.0, 2.0, -1.0], "not whole numbers from 0"),
        ([1.0, 2.0, 0.5], "not whole numbers from 0"),
    ],
)
def test_a_reply_whose_counts_cannot_be_is_refused(numbers: list[float], reason: str) -> None:
    metrics = MetricRecord({"statistic-label-counts": numbers})
    task = Task(offered=(0,), statistics=("label-counts",))
    with pytest.raises(messages.Unfit, match=reason):
        messages.statistics_of(metrics, task, 0, {"label-counts": 3, "feature-mean": 8})


def test_what_does_not_allow_it_refuses_it_before_the_first_round() -> None:
    tried = world()
    with pytest.raises(
        SettingError, match="asks a client for the counts of its labels, which its needs"
    ):
        rounds_of(tried, Sneaky())
    with pytest.raises(SettingError, match=r"noise .* losses or statistics of their data"):
        rounds_of(tried, boundary=Boundary(clip=1.0, noise=1.0))
    sums = type(
        "Sums", (Curious,), {"needs": replace(Curious.needs, sums_only=True), "name": "sums"}
    )
    with pytest.raises(SettingError, match="it asks each client for statistics of its data"):
        Boundary(masks=True).check_method(sums())
    with pytest.raises(SettingError, match="need a model whose last layer is dense"):
        rounds_of(world(model=lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))))
    for bad in (
        {"halves": True},
        {"statistics": ("labels",)},
        {"statistics": ("label-counts",) * 2},
    ):
        with pytest.raises(ValueError, match=r"Task\.statistics"):
            Task(offered=(0,), **{"statistics": ("label-counts",), **bad})
    with pytest.raises(ValueError, match=r"Task\.statistics are of single clients"):
        Plan(models=torch.zeros(1, 2), tasks={0: _order("label-counts").task}, need="sums")
    # Apps that train by a function of their own cannot do it, and plain apps ignore it.
    for by_function in (False, True):
        task = _order("feature-mean").task
        reason = messages.why_not("curious", [task], 0, trains_by_function=by_function)
        assert "for the mean of its features" in str(reason)
