"""Picture of a report for the documents: the top of the demonstration's page, down to the end of its verdict.

``python tools/docs/picture.py RUNS`` makes docs/figures/report.png of a folder of runs; it needs
Playwright, Pillow and a Chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from coterie.report.page import document, page

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "report.png"
WIDTH = 1200
MARGIN = 16


def picture(runs: str) -> bytes:
    """The page of ``runs`` down to the end of the verdict, as a small PNG."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        path = Path(folder, "page.html")
        path.write_text(page(document([runs])), encoding="utf-8")
        browser = api.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        tab.goto(path.as_uri())
        # The charts of the first run are drawn last.
        tab.wait_for_selector("#run-0 figure.chart .legend button")
        tab.wait_for_timeout(300)
        verdict = tab.locator(".verdict").first.bounding_box()
        height = verdict["y"] + verdict["height"] + MARGIN
        shot = tab.screenshot(
            full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}
        )
        browser.close()
    image = Image.open(io.BytesIO(shot)).convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    small = io.BytesIO()
    image.save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    PICTURE.write_bytes(picture(sys.argv[1]))
