"""What the tutorial and the page on explaining show of the demonstration's client 3 is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.cli import main

ROOT = Path(__file__).parents[2]
WALKED = re.compile(r"<!-- walked: --client 3 -->\n```text\n(.*?)```", re.DOTALL)


def loosely(printed: str) -> str:
    """Without line ends and decimals: the last digits depend on the processor, and they move the ends of lines."""
    return " ".join(re.sub(r"-?\d+\.\d+", " ", printed).split())


@pytest.mark.slow
def test_client_3_is_told_what_the_pages_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--method", "auto", "--workers", "1", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "--client", "3"]) == 0
    printed = loosely(capsys.readouterr().out)
    for page in ("tutorial.md", "explain.md"):
        (shown,) = WALKED.findall((ROOT / "docs" / page).read_text())
        for part in shown.split("…"):
            assert part.strip()
            assert loosely(part) in printed, (page, part)
