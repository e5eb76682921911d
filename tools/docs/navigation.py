"""The site's navigation is what the index pages list: a link that begins a list item or a table's row is a page's place.

``docs/index.md`` has a caption of the sidebar per heading; another ``index.md`` lists the pages
below it. So a page has one place to be entered in, and reads the same as plain Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
ENTRY = re.compile(r"^(?:- |\| )\[[^\]\n]*\]\(([^)#:\s]+)\.(?:md|rst|ipynb)\)", re.MULTILINE)


def toctrees(text: str) -> Mapping[str, tuple[str, ...]]:
    """Caption -> the pages listed below that heading of an index page, without their suffix, in order."""
    _, *parts = HEADING.split(text)
    listed = {
        caption: tuple(ENTRY.findall(part))
        for caption, part in zip(parts[::2], parts[1::2], strict=True)
    }
    return {caption: pages for caption, pages in listed.items() if pages}


def directives(docname: str, text: str) -> str:
    """MyST's toctree directives of an index page; captions for the root alone."""
    out = []
    for caption, pages in toctrees(text).items():
        options = [":hidden:", *([f":caption: {caption}"] if docname == "index" else [])]
        out.append("\n".join(["```{toctree}", *options, "", *pages, "```", ""]))
    return "\n".join(["", *out])


def reached(texts: Mapping[str, str]) -> set[str]:
    """The pages that the index pages among ``texts`` (docname -> Markdown) list, those pages included."""
    pages = {"index"}
    for docname, text in texts.items():
        if PurePosixPath(docname).name == "index":
            folder = PurePosixPath(docname).parent
            pages |= {str(folder / page) for listed in toctrees(text).values() for page in listed}
    return pages
