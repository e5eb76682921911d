"""The documentation site is built strictly, whole, and opens without a network."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
from documents import ROOT, load

from coterie import METHODS
from coterie.settings import documented

DOCS = ROOT / "docs"

navigation = load("tools/docs/navigation.py", "docs_navigation")


# -- the sidebar
# ----------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_sidebar() -> None:
    """A page is entered in docs/index.md or another index page: a link that begins a list item or a table's row."""
    paths = [
        path
        for kind in ("*.md", "*.ipynb")
        for path in DOCS.rglob(kind)
        if DOCS / "results" not in path.parents
    ]
    pages = {str(path.relative_to(DOCS).with_suffix("")): path.read_text() for path in paths}
    assert "sites/choosing" in pages
    assert {*pages} - navigation.reached(pages) == set()


def test_the_sidebar_has_what_an_index_lists_and_nothing_it_mentions() -> None:
    text = (
        "# All\n\n- [Before](before.md): no caption yet\n\n## Start\n\n- [A](a.md): like [B](b.md)\n\nSee [C](c.md).\n"
        "- [D](sub/d.ipynb#part)\n- [E](https://e.md)\n\n## None\n\nWords.\n\n## Cards\n\n| [`f`](f.md) | as [G](g.md) |\n"
        "- [H](h.rst)\n"
    )
    assert navigation.toctrees(text) == {"Start": ("a",), "Cards": ("f", "h")}
    assert navigation.reached({"index": text, "x/index": text, "page": text}) == {
        "index",
        "a",
        "f",
        "h",
        "x/a",
        "x/f",
        "x/h",
    }
    assert ":caption: Start\n\na\n```" in navigation.directives("index", text)
    assert ":caption:" not in navigation.directives("x/index", text)


# -- the site
# -------------------------------------------------------------------------------------------------------------


@dataclass
class Page(HTMLParser):
    """What a page links to, fetches, is linked by, and shows as text outside of code."""

    links: set[str] = field(default_factory=set)
    fetched: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    text: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if "href" in given:
            (self.fetched if tag == "link" else self.links).add(given["href"])
        if "src" in given:
            self.fetched.add(given["src"])
        if tag in ("script", "style", "pre", "code"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text.append(data)


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    return page


def dead(site: Path, pages: dict[Path, Page]) -> Iterator[tuple[str, str]]:
    """(page, link) of what leads nowhere."""
    for path, page in pages.items():
        for link in page.links | page.fetched:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            file = (path.parent / target.partition("?")[0]).resolve() if target else path
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].ids):
                yield str(path.relative_to(site)), link


def documented_names(site: Path) -> set[str]:
    """The Python names in the site's index of objects."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {
        entry.split()[0]
        for entry in zlib.decompress(packed).decode().splitlines()
        if " py:" in entry
    }


def public() -> Iterator[tuple[str, object]]:
    """(name, value) of what the public packages offer: their ``__all__``, else all that they have."""
    for package in ("", ".core", ".clustering", ".methods", ".boundary", ".engines.flower"):
        module = importlib.import_module(f"coterie{package}")
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if (
                not name.startswith("_")
                and name not in ("annotations", "Any")
                and not isinstance(value, ModuleType)
            ):
                yield f"coterie{package}.{name}", value


def missing(site: Path) -> list[str]:
    """Public names that the reference does not have, neither there nor where they are defined."""
    known = documented_names(site)
    return [
        name
        for name, value in public()
        if name not in known
        and f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}" not in known
    ]


@pytest.mark.slow
def test_the_site_builds_strictly_and_is_whole(tmp_path: Path) -> None:
    """One test, as building takes a while and tests are spread over processes."""
    site = (tmp_path / "site").resolve()
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(tmp_path / "trees"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "COTERIE_DATA"}
    built = subprocess.run(
        [*command, str(DOCS), str(site)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    pages = {path: parsed(path.read_text()) for path in sorted(site.rglob("*.html"))}
    assert site / "sites" / "choosing.html" in pages
    assert list(dead(site, pages)) == []
    fetched = {
        link for page in pages.values() for link in page.fetched if re.match(r"https?:|//", link)
    }
    assert fetched == set()
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text()), style
    assert [path for path, page in pages.items() if "<!--" in "".join(page.text)] == []

    assert missing(site) == []
    text = (site / "reference" / "methods.html").read_text()
    for name, method in METHODS.items():
        assert f'href="../methods/{name}.html"' in text
        for setting, *_ in documented(method):
            assert f'<span class="pre">{setting}</span>' in text, (name, setting)


def test_what_the_check_of_the_site_finds(tmp_path: Path) -> None:
    pages = {}
    links = '<a href="b.html#there"></a><a href="b.html#gone"></a><a href="c.html"></a>'
    for name, text in {
        "a.html": f"<h1>A &lt;!-- demo --&gt;</h1>{links}",
        "b.html": '<script src="https://x.org/y.js"></script><a id="there" href="#there"></a><code>&lt;!-- fine --&gt;</code>',
    }.items():
        (tmp_path / name).write_text(text)
        pages[tmp_path / name] = parsed(text)
    assert sorted(dead(tmp_path, pages)) == [("a.html", "b.html#gone"), ("a.html", "c.html")]
    assert pages[tmp_path / "b.html"].fetched == {"https://x.org/y.js"}
    assert ["<!--" in "".join(page.text) for page in pages.values()] == [True, False]
