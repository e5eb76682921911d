"""The page itself: markup, style, script and the document of numbers in one file, which asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from coterie.printable import printable
from coterie.record import finite

SCRIPTS = ("base.js", "chart.js", "groups.js", "square.js", "table.js", "parts.js", "page.js")
"""In the order in which they are read."""


def page(document: Mapping[str, Any], live: str = "") -> str:
    """The page that shows a :func:`~coterie.report.page.document`.

    live: if it is to ask ``document.json``, beside it and with the query of its own address, again and again, and draw what
    has come since: the tag of this document.
    """
    script = "\n".join(asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    filled = {
        "policy": policy + ("; connect-src 'self'" if live else ""), "title": _escaped(title(document)),
        "style": asset("page.css"), "live": _escaped(live), "document": embedded(document), "script": script,
    }  # fmt: skip
    # In one pass: what is filled in may have braces of its own.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: filled[place[1]], asset("page.html"))


def title(document: Mapping[str, Any]) -> str:
    """What the browser's tab says."""
    runs = document["runs"]
    first = f"{runs[0]['method']}, {runs[0]['scenario']}" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{first} – Coterie"


def embedded(document: Mapping[str, Any]) -> str:
    """The document as JSON that cannot end the element it stands in."""
    text = json.dumps(finite(document), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return printable(text).replace("<", "\\u003c")


def asset(name: str) -> str:
    return resources.files("coterie.report").joinpath("assets", name).read_text(encoding="utf-8")


def _escaped(text: str) -> str:
    return html.escape(printable(text))
