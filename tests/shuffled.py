"""A plugin of pytest: ``--shuffle SEED`` runs the tests in an order, and Hypothesis on examples, that the seed decides.

Modules change places, and so do the tests within a module, whose fixtures are still made once. All
workers of pytest-xdist find the same order. Without the option the tests run in the order of the
files, and Hypothesis tries the same examples in every run: what passes once passes again.
"""

from __future__ import annotations

import random

import hypothesis
import pytest

# No deadline: a busy machine is no failure. Where examples are the same in every run, the first half of them say nearly as
# much as all; a run with a seed tries as many as Hypothesis does by itself, and others each time.
hypothesis.settings.register_profile(
    "coterie", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.register_profile("searching", deadline=None, database=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        type=int,
        help="run the tests in an order made from this whole number",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("shuffle")
    return None if seed is None else f"shuffled: --shuffle {seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("shuffle")
    hypothesis.settings.load_profile("coterie" if seed is None else "searching")
    if seed is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("shuffle")
    if seed is None:
        return
    places = random.Random(seed)
    module = {item: item.location[0] for item in items}
    of_module = {name: places.random() for name in sorted(set(module.values()))}
    within = {name: places.random() for name in sorted({item.nodeid for item in items})}
    items.sort(key=lambda item: (of_module[module[item]], within[item.nodeid]))
