"""What tests of the documents share: modules that lie in ``docs/`` and ``examples/``, and the anchors of headings."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load(path: str, name: str) -> ModuleType:
    """The module of a file of the repository, imported as ``name``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(text: str, level: str = "#+") -> list[str]:
    """The anchors of a page's headings, as hosts of Markdown make them. level: a pattern of the headings' marks."""
    titles = re.findall(rf"^{level} (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
