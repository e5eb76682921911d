"""The picture of the contract can be read: by eyes in light and dark, at the width of a page, and by who cannot see it.

Its page names what the contract has."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

from coterie.core import FEATURES, Admits, Effect, Method, Need, Needs

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


def test_its_page_lists_every_feature_and_every_need() -> None:
    page = (DOCS / "reference" / "contract.md").read_text()
    needs = page.partition("\n## Needs\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", needs, re.MULTILINE)
    assert sorted(listed) == sorted(
        [*FEATURES, *(field.name for field in dataclasses.fields(Needs))]
    )
    assert re.findall(r'^\| `"(\w+)"` \|', page, re.MULTILINE) == list(get_args(Need))


def test_the_page_of_records_lists_every_effect() -> None:
    notes = (DOCS / "reference" / "runs.md").read_text().partition("\n### Notes\n")[2]
    effects = notes.partition("| effect |")[2].partition("\n\n")[0]
    first_column = "".join(re.findall(r"^\|([^|]*)\|", effects, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_column)) == set(get_args(Effect))
    assert len(get_args(Effect)) == 13  # as the page of the contract says
