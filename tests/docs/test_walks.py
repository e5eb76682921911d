"""What the quickstart shows of the demonstration's client 3 is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.cli import main

ROOT = Path(__file__).parents[2]
WALKED = re.compile(r"<!-- walked: --client 3 -->\n```text\n(.*?)```", re.DOTALL)


NUMBER = re.compile(r"\d+\.\d+")


def differences(shown: str, printed: str) -> list[tuple[float, float]] | None:
    """Decimals of a part of a page, and those printed in the same text; None if the text was not printed.

    Ends of lines do not count: the last digits depend on the processor, and they move the ends of
    lines.
    """
    words = " ".join(shown.split())
    pattern = r"(\d+\.\d+)".join(map(re.escape, NUMBER.split(words)))
    found = re.search(pattern, " ".join(printed.split()))
    return found and list(
        zip(map(float, NUMBER.findall(words)), map(float, found.groups()), strict=True)
    )


@pytest.mark.slow
def test_client_3_is_told_what_the_quickstart_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--method", "auto", "--workers", "1", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "--client", "3"]) == 0
    printed = capsys.readouterr().out
    (shown,) = WALKED.findall((ROOT / "docs/start/quickstart.md").read_text())
    for part in shown.split("…"):
        assert part.strip()
        pairs = differences(part, printed)
        assert pairs is not None, part
        for one, other in pairs:
            assert one == pytest.approx(other, rel=0.03), part
