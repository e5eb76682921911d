"""The picture of a report in the README: the demonstration's page, as a browser shows the part on groups.

``python docs/picture.py RUN`` makes docs/figures/report.png of a run directory; it needs Playwright, Pillow and a Chromium.
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

TO = Path(__file__).parent / "figures" / "report.png"


def picture(run: str) -> bytes:
    """The upper part of the page of ``run``, down to its chart of accuracy, as PNG."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        path = Path(folder, "page.html")
        path.write_text(page(document([run])), encoding="utf-8")
        browser = api.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
        tab.goto(path.as_uri())
        tab.wait_for_selector("figure.chart .legend button")
        bottom = tab.locator("figure.chart").first.bounding_box()
        tab.wait_for_timeout(300)
        shot = tab.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": 1100, "height": bottom["y"] + bottom["height"]})
        browser.close()
    small = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    TO.write_bytes(picture(sys.argv[1]))
