"""Precision auto: what is measured, what is recorded, and that a run which continues does not measure again."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie
import small
from coterie.runs import folders
from coterie.settings import SettingError
from coterie.training import faster_precision as module
from coterie.training.faster_precision import MeasuredPrecision, faster_precision


def test_it_measures_steps_of_training_in_both_formats() -> None:
    measured = faster_precision(small.world())
    assert 0 < measured.ratio < 1000
    assert measured.precision == ("bf16" if measured.ratio <= module.MAX_RATIO else "fp32")
    assert f"takes {measured.ratio:.2f} of its time in fp32" in str(measured)


@pytest.mark.parametrize(("seconds_in_bf16", "expected"), [(0.5, "bf16"), (0.95, "fp32")])
def test_bf16_must_be_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, seconds_in_bf16: float, expected: str
) -> None:
    def timer(learner: coterie.training.Learner, *_: object) -> object:
        seconds = 1.0 if learner.precision == "fp32" else seconds_in_bf16
        return lambda step_count: seconds * step_count

    monkeypatch.setattr(module, "_timer", timer)
    measured = faster_precision(small.world())
    assert (measured.precision, measured.ratio) == (expected, seconds_in_bf16)


def test_the_record_has_the_measured_one_and_it_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def measured(*given: object) -> MeasuredPrecision:
        calls.append(given)
        return MeasuredPrecision("bf16", 0.4)

    monkeypatch.setattr(folders, "faster_precision", measured)
    for _ in range(2):
        runs = coterie.begin(
            "digits/iid", tmp_path / "runs", "fedavg", rounds=2, precision="auto", workers=1
        )
        assert runs[0].experiment.precision == "bf16"
    assert len(calls) == 1
    assert 'precision = "bf16"' in (tmp_path / "runs" / "run.toml").read_text()
    assert "a training step in bf16 takes 0.40 of its time in fp32" in capsys.readouterr().err


def test_a_run_without_files_measures_too() -> None:
    (done,) = coterie.run("fedavg", small.world(), rounds=1, precision="auto", workers=1)
    assert done.scores


def test_what_is_allowed_is_said() -> None:
    with pytest.raises(SettingError, match=r"fp32, bf16 or auto|fp32, bf16, auto"):
        coterie.begin("digits/iid", "nowhere", "fedavg", precision="fp16")
