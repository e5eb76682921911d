"""The picture of the contract can be read: by eyes in light and dark, at the width of a page, and by who cannot see it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from coterie.core import Admits, Method

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "figures" / "contract.svg").read_text()
PICTURE = ElementTree.fromstring(TEXT)
SVG = "{http://www.w3.org/2000/svg}"


def test_it_has_words_for_who_cannot_see_it() -> None:
    assert PICTURE.get("role") == "img"
    named = {PICTURE.find(f"{SVG}{tag}").get("id") for tag in ("title", "desc")}  # type: ignore[union-attr]
    assert named == set(PICTURE.get("aria-labelledby", "").split())
    assert re.search(
        r"!\[[^\]]{80,}\]\(\.\./figures/contract\.svg\)",
        (DOCS / "reference" / "contract.md").read_text(),
    )


def test_no_text_is_small_at_800_pixels() -> None:
    assert PICTURE.get("viewBox", "").split()[2] == "800"
    sizes = [int(size) for size in re.findall(r"font-size[:=]\s*\"?(\d+)", TEXT)]
    assert len(sizes) > 2
    assert min(sizes) >= 14


def test_every_colour_has_another_in_the_dark() -> None:
    light, dark = (
        dict(re.findall(r"(--\w+):\s*(#\w+)", part))
        for part in TEXT.split("prefers-color-scheme: dark")
    )
    assert light.keys() == dark.keys()
    assert all(light[name] != dark[name] for name in light)
    assert set(re.findall(r"var\((--\w+)\)", TEXT)) == light.keys()


def test_it_shows_every_function_that_a_method_must_have() -> None:
    words = "".join(PICTURE.itertext())
    functions = {
        name
        for name in vars(Method)
        if not name.startswith("_") and callable(getattr(Method, name))
    }
    assert functions == {"init", "plan", "step", "assignment", "explain"}
    assert all(f"{name}(" in words for name in functions)
    page = (DOCS / "reference" / "contract.md").read_text()
    optional = {
        name
        for name in vars(Admits)
        if not name.startswith("_") and callable(getattr(Admits, name))
    }
    assert all(f"`{name}(" in page for name in functions | optional)
