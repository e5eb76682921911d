"""Pictures of the demonstration for the documents: its page, and two figures of its run.

``python tools/docs/picture.py RUNS`` makes docs/figures/report*.png of a folder of runs: the top of the
page, the page down to the end of its verdict, the groups and the similarities. It needs Playwright,
Pillow, Matplotlib and a Chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import coterie
from coterie.report.page import document, page

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
WIDTH = 1200
MARGIN = 16


def pictures_of_page(runs: str) -> dict[str, bytes]:
    """The page of ``runs`` as small PNGs: name -> what ends with its first part, and with its verdict."""
    found = {}
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
        for name, last_part in (("report-top", ".hero"), ("report", ".verdict")):
            part = tab.locator(last_part).first.bounding_box()
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": part["y"] + part["height"] + MARGIN}
            found[name] = small(tab.screenshot(full_page=True, clip=clip))
        browser.close()
    return found


def small(picture: bytes) -> bytes:
    """A PNG in 128 colours."""
    image = Image.open(io.BytesIO(picture))
    out = io.BytesIO()
    image.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    for picture_name, png in pictures_of_page(sys.argv[1]).items():
        (FIGURES / f"{picture_name}.png").write_bytes(png)
    for kind in ("groups", "similarity"):
        figure_path = FIGURES / f"report-{kind}.png"
        coterie.plot(Path(sys.argv[1], "auto-seed0"), kind, figure_path)
        figure_path.write_bytes(small(figure_path.read_bytes()))
