"""What the package imports is what it says it needs: dependencies, and extras by the name that a missing one tells."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "coterie"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

PACKAGE = {
    "sklearn": "scikit-learn", "PIL": "pillow", "dp_accounting": "dp-accounting", "flwr_datasets": "flwr-datasets",
    "google": "protobuf", "mlflow": "mlflow-skinny", "tomli_w": "tomli-w",
}  # fmt: skip
"""Module -> the package that brings it, where the names differ."""

MADE_WITH = {"tensorboard": "protobuf"}
"""Package -> one that it cannot do without, whose module is used as well."""


def names(requirements: list[str]) -> set[str]:
    """The packages of requirements, those of the extras of this package that they name included."""
    out = set()
    for requirement in requirements:
        name, inner = re.fullmatch(r"([\w.-]+)(?:\[([\w,-]+)\])?.*", requirement).groups()  # type: ignore[union-attr]
        if name == "coterie":
            out |= names([package for extra in inner.split(",") for package in EXTRAS[extra]])
        else:
            out |= {name, *([MADE_WITH[name]] if name in MADE_WITH else [])}
    return out


@cache
def imported() -> frozenset[tuple[str, str]]:
    """(file, the first part of a module it imports) for what is neither of Python nor of this package."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typed = {
            id(n)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for n in ast.walk(node)
        }
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for module in {module.partition(".")[0] for module in modules}:
                if (
                    module not in sys.stdlib_module_names
                    and module != "coterie"
                    and id(node) not in typed
                ):
                    found.add((path.relative_to(SOURCE).as_posix(), module))
    return frozenset(found)


HOME = {
    "engines/flower/": "flower", "contrib/private/flower/": "flower", "contrib/private/masks/": "masks",
    "contrib/sites/flower/": "flower", "contrib/sites/sources.py": "sql", "contrib/tracking/": "track",
    "report/figures/": "report", "notebook/": "notebook",
    "contrib/ray/": "ray", "contrib/tune/": "tune", "contrib/dpsgd/": "dp", "contrib/trees/": "trees",
    "data/datasets/hub.py": "hub", "data/datasets/table.py": "tables", "data/datasets/images.py": "images",
    "boundary/privacy.py": "dp", "runs/onnx_files.py": "onnx",
}  # fmt: skip
"""Where an extra is used -> its name."""


def allowed(file: str) -> set[str]:
    """The packages that a file may import: the dependencies, and those of its extra."""
    extra = next((extra for home, extra in HOME.items() if file.startswith(home)), None)
    return names(PROJECT["dependencies"]) | (names(EXTRAS[extra]) if extra else set())


def test_what_is_imported_is_required() -> None:
    found = {(file, PACKAGE.get(module, module)) for file, module in imported()}
    assert len(found) > 50
    lacking = {(file, package) for file, package in found if package not in allowed(file)}
    assert lacking == set(), "add these packages to the dependencies, or to an extra"


def test_nothing_is_required_that_is_not_imported() -> None:
    used = {PACKAGE.get(module, module) for _, module in imported()}
    assert names(PROJECT["dependencies"]) <= used


def told() -> list[tuple[str, str]]:
    """(file, extra) of every sentence that names one."""
    return [
        (path.relative_to(SOURCE).as_posix(), extra)
        for path in sorted(SOURCE.rglob("*.py"))
        for extra in re.findall(r"coterie\[([a-z]+)\]", path.read_text(encoding="utf-8"))
    ]


def test_every_extra_that_a_message_names_exists() -> None:
    found = told()
    assert found
    assert [(file, extra) for file, extra in found if extra not in EXTRAS] == []


def test_the_extras_of_users_are_all_of_them_together() -> None:
    ours = {"all", "bench", "docs", "test"}  # for work on Coterie, or another name
    assert names(EXTRAS["all"]) == names([f"coterie[{','.join(sorted(set(EXTRAS) - ours))}]"])
    assert {"hub", "flower", "report", "track", "dp"} <= set(EXTRAS)


def test_the_versions_of_python() -> None:
    told = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert len(told) > 1
    assert PROJECT["requires-python"] == f">={told[0]}"


def test_the_citation_is_of_this_version_and_complete() -> None:
    """By the schema of the Citation File Format 1.2.0, as far as this file has of it."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0"
    assert (cited["type"], cited["license"]) == ("software", PROJECT["license"])
    assert cited["version"] == coterie.__version__ == PROJECT["version"]
    assert all(
        {"name"} <= set(a) or {"family-names", "given-names"} <= set(a) for a in cited["authors"]
    )
    for reference in cited["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        assert reference["type"] in ("article", "conference-paper")
    assert len(cited["keywords"]) == len(set(cited["keywords"]))


@pytest.mark.slow
def test_without_fcntl_it_says_what_it_needs() -> None:
    code = "import sys; sys.modules['fcntl'] = None; from coterie.cli import main; sys.exit(main(['resume', 'x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "coterie: Coterie locks run directories with fcntl, which Windows does not have: install Coterie in WSL 2\n"
    )
