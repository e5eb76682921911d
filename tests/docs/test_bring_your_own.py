"""The example with clients of one's own does what it says."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "bring_your_own.py"


@pytest.mark.slow
def test_the_example_finds_who_is_who(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](rounds=4)
    printed = capsys.readouterr().out
    assert "groups ((0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11))" in printed
