"""The measurement of what masked sums cost is of sums that are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

import masks  # noqa: E402


def test_bytes_are_counted_for_clients_of_which_one_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        masks.main(
            ["--clients", "4,101", "--parameters", "50", "--out", str(tmp_path / "masks.json")]
        )
        == 0
    )
    few, many = json.loads((tmp_path / "masks.json").read_text())
    assert (few["neighbours"], few["parameters"]) == (3, 50)
    # Each of four has three neighbours: keys, shares and lists of some hundred bytes for each, four
    # times.
    assert 3 * 300 < few["more"] < 3 * 1500
    assert few["bytes"] == pytest.approx(1 + few["more"] / (2 * 4 * 50))
    assert many["server"] > 0
    assert "clients 101" in capsys.readouterr().out


def test_a_wrong_sum_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks.MaskedSum, "unmasked", lambda self, received: self.total)
    with pytest.raises(AssertionError, match="the sum is wrong"):
        masks.Costs(4, 50).run()
