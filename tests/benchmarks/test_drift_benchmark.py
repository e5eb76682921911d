"""The benchmark of drift: its oracle is right in every round, and its measures are those of rounds made by hand."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "benchmarks")]

import drift  # noqa: E402


@dataclass
class Made:
    number: int
    groups: Any
    value: float
    bytes_down: int = 1

    @property
    def assignment(self) -> Any:
        return SimpleNamespace(groups=self.groups)

    def mean(self) -> float:
        return self.value


def test_measures_by_hand() -> None:
    """After a change in round 21 the groups are right from round 24 on; then nothing changes."""
    whole = drift.world("sine", "sudden", 0)
    one, two = (whole.true_groups(1), whole.true_groups(21))
    rounds: Any = [Made(r, one if r < 24 else two, 0.5 if r < 24 else 1.0) for r in range(1, 81)]
    found = drift.measures(rounds, whole)
    assert found["delay"] == 3
    assert found["right"] == pytest.approx(57 / 60)
    assert found["accuracy"] == pytest.approx((3 * 0.5 + 57) / 60)
    assert found["at_ends"] == 1.0
    assert found["alarm"]
    never = drift.measures([Made(r, one, 0.5) for r in range(1, 81)], whole)  # type: ignore[misc]
    assert (never["delay"], never["alarm"]) == (20, False)
    still = drift.world("sine", "still", 0)
    assert (
        drift.measures([Made(r, still.true_groups(r), 1.0) for r in range(1, 81)], still)["delay"]
        is None
    )  # type: ignore[misc]


def test_the_oracle_has_the_true_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "PERIOD", 1)
    found = drift.run(("sine", "recurring", "oracle", 0))
    assert (found["right"], found["delay"]) == (1.0, 0.0)
    assert len(found["curve"]) == 5


def test_every_drawn_stream_has_as_many_examples_as_its_time_steps_show() -> None:
    """MNIST has its own images: a number of examples is refused there."""
    for stream in drift.STREAMS:
        if stream not in drift.FILES:
            whole = drift.world(stream, "recurring", 0)
            assert len(whole.steps) == drift.SCHEDULES["recurring"]


@pytest.mark.skipif("COTERIE_DATA" not in os.environ, reason="MNIST needs COTERIE_DATA")
def test_the_stream_of_mnist_can_be_made() -> None:
    whole = drift.world("mnist", "sudden", 0)
    assert len(whole.steps) == drift.SCHEDULES["sudden"]
