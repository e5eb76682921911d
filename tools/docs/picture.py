"""Pictures of a report for the documents: the demonstration's page, as a browser shows its verdict and the section of a run.

``python tools/docs/picture.py RUNS`` makes docs/figures/report.png and report-run.png of a folder of
runs; it needs Playwright, Pillow and a Chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from coterie.report.page import document, page

TO = Path(__file__).resolve().parents[2] / "docs" / "figures"
WIDTH = 1200


def pictures(runs: str) -> dict[str, bytes]:
    """The verdict on ``runs``, and the upper part of the first run's section, down to its first chart, as PNG by name."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        path = Path(folder, "page.html")
        path.write_text(page(document([runs])), encoding="utf-8")
        browser = api.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        tab.goto(path.as_uri())
        tab.wait_for_selector("#run-0 figure.chart .legend button")
        tab.wait_for_timeout(300)
        verdict, run, chart = (
            tab.locator(one).first.bounding_box()
            for one in (".verdict", "#run-0", "#run-0 figure.chart")
        )
        found = {
            "report": _part(tab, 0, verdict["y"] + verdict["height"] + 16),
            "report-run": _part(tab, run["y"] + 4, chart["y"] + chart["height"]),
        }
        browser.close()
    return found


def _part(tab: Any, top: float, bottom: float) -> bytes:
    shot = tab.screenshot(
        full_page=True, clip={"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
    )
    small = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


if __name__ == "__main__":
    for name, data in pictures(sys.argv[1]).items():
        (TO / f"{name}.png").write_bytes(data)
