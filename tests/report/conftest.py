"""A real browser, for the pages that are tested in one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if BROWSER is None:
        pytest.skip("there is no Chromium on this machine")
    state = random.getstate()  # Playwright draws from the global generator as it starts
    with api.sync_playwright() as made:
        random.setstate(state)
        opened = made.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()
