"""Imports run one way, and what must stay out of a layer stays out: read from the source, not run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "coterie"

ORDER = [
    "printable",
    "settings",
    "extensions",
    "pooling",
    "notebook",
    "files",
    "randomness",
    "masks",
    "clustering",
    "core",
    "models",
    "data",
    "training",
    "boundary",
    "robust",
    "methods",
    "records",
    "engines",
    "engines.flower",
    "testing",
    "runs",
    "report",
    "cli",
    "contrib",
    "contrib.ray",
    "contrib.rivals",
    "contrib.suggest",
    "contrib.tracking",
    "__main__",
    "__init__",
]
"""Parts of the package: each imports, besides itself, only parts that stand before it, for types as
well. The name of the whole package, ``__init__``, fetches what is public when it is first used."""

NEVER = {
    (part, other)
    for part in ("methods", "contrib.rivals")
    for other in ("models", "data", "training", "boundary", "robust")
} | {("clustering", "files")}
"""Arrows that would run down, and must not be: methods and clustering are arithmetic."""

EXTENSIONS = [part for part in ORDER if part.startswith("contrib.")]

NEVER |= {(one, other) for one in EXTENSIONS for other in EXTENSIONS if one != other}
"""An extension that comes with Coterie stands alone, as one of another package does."""

PURE = ("core", "clustering", "methods", "contrib.rivals")


def part_of(path: Path) -> str:
    return _part(path.relative_to(SOURCE).with_suffix("").parts)


def _part(names: Sequence[str]) -> str:
    folders = ".".join(names[:2])
    return folders if folders in ORDER else names[0]


FILES = sorted(SOURCE.rglob("*.py"))
BY_NAME = {str(path.relative_to(SOURCE)): path for path in FILES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def for_types(path: Path) -> set[int]:
    """The ids of nodes under ``if TYPE_CHECKING``."""
    guards = [
        n
        for n in ast.walk(tree_of(path))
        if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"
    ]
    return {id(node) for guard in guards for stmt in guard.body for node in ast.walk(stmt)}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module imported, whether for types alone), wherever in the file; ``from a import b`` is ``a.b``."""
    types = for_types(path)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in types
        elif isinstance(node, ast.ImportFrom):
            package = ("coterie", *path.relative_to(SOURCE).parts[:-1])
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            for alias in node.names:
                yield ".".join(filter(None, [base, node.module, alias.name])), id(node) in types


def parts_imported(path: Path) -> Iterator[tuple[str, bool]]:
    """(part of this package imported, whether for types alone)."""
    for name, types in imports(path):
        package, *rest = name.split(".")
        if package == "coterie":
            known = rest and ((SOURCE / rest[0]).is_dir() or (SOURCE / f"{rest[0]}.py").exists())
            yield (_part(rest) if known else "__init__"), types


def calls(path: Path) -> Iterator[str]:
    """The names of everything called, dotted: ``torch.load``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def strayed(path: Path) -> list[str]:
    """What ``path`` imports and may not."""
    part = part_of(path)
    before = ORDER[: ORDER.index(part)]
    return [
        o for o, _ in parts_imported(path) if o != part and (o not in before or (part, o) in NEVER)
    ]


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("name", BY_NAME)
def test_imports_run_one_way(name: str) -> None:
    assert not strayed(BY_NAME[name]), f"{name} may not import {strayed(BY_NAME[name])}: see ORDER"


def test_no_modules_import_each_other() -> None:
    """Not even for types."""
    modules = {
        ".".join(("coterie", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in FILES
    }
    left = {}
    for path in FILES:
        name = ".".join(("coterie", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        found = {
            known if known in modules else known.rpartition(".")[0] for known, _ in imports(path)
        }
        left[name] = (found & modules) - {name, "coterie"}
    left["coterie"] = set()
    while left:
        free = {name for name, needs in left.items() if not needs & set(left)}
        assert free, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_the_core_imports_no_extension() -> None:
    """It finds them by entry points. The list of public names in ``__init__`` may contain theirs."""
    importing = {
        name
        for name, path in BY_NAME.items()
        for part, _ in parts_imported(path)
        if part.startswith("contrib") and not name.startswith("contrib/")
    }
    assert importing <= {"__init__.py"}


def test_the_root_has_few_modules() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 9


@pytest.mark.parametrize("name", [n for n, path in BY_NAME.items() if part_of(path) in PURE])
def test_methods_and_clustering_are_arithmetic(name: str) -> None:
    found = [n for n, _ in imports(BY_NAME[name])]
    banned = (
        "torch.nn",
        "torch.optim",
        "torch.utils",
        "flwr",
        "pickle",
        "os",
        "io",
        "pathlib",
        "logging",
        "subprocess",
    )
    assert not [n for n in found if n.startswith(tuple(f"{b}." for b in banned)) or n in banned]
    called = set(calls(BY_NAME[name]))
    told = (
        {"warnings.warn"} if name != "clustering/agglomerative.py" else set()
    )  # whose warnings are a result
    assert not called & {"open", "print", "input", "exec", "eval", *told}
    used = {
        ast.unparse(node)
        for node in ast.walk(tree_of(BY_NAME[name]))
        if isinstance(node, ast.Attribute)
    }
    assert not used & {"torch.nn", "torch.optim"}


@pytest.mark.parametrize("name", BY_NAME)
def test_only_randomness_seeds(name: str) -> None:
    called = {call.rpartition(".")[2] for call in calls(BY_NAME[name])}
    if name == "randomness.py":  # the global ones it forks and seeds, for the user's code
        return
    if name == "testing.py":  # its clients are no run's: their numbers are drawn once
        return
    assert not called & {"manual_seed", "manual_seed_all", "set_rng_state", "fork_rng", "seed"}
    assert not {n.partition(".")[0] for n, _ in imports(BY_NAME[name])} & {"random"}
    assert not [c for c in calls(BY_NAME[name]) if c.startswith(("np.random.", "numpy.random."))]


@pytest.mark.parametrize("name", BY_NAME)
def test_all_that_is_printed_is_printable_and_by_the_command_line(name: str) -> None:
    called = set(calls(BY_NAME[name]))
    assert "print" not in called or name == "printable.py"
    prints = part_of(BY_NAME[name]) in ("cli", "report", "notebook")
    command = name.startswith("contrib/") and name.endswith("/command.py")
    assert "say" not in called or prints or command
    assert not called & {"sys.stdout.write", "sys.stderr.write", "Console", "rich.print"}
    assert "_Console" not in called or name == "report/terminal.py"


@pytest.mark.parametrize("name", BY_NAME)
def test_flower_and_the_data_hub_stay_in_one_file_each(name: str) -> None:
    packages = {n.partition(".")[0] for n, _ in imports(BY_NAME[name])}
    assert "flwr" not in packages or name.startswith("engines/flower")
    assert not packages & {"flwr_datasets", "datasets"} or name == "data/datasets/hub.py"


def test_importing_what_a_file_is_found_at() -> None:
    """The walk sees relative imports and imports within functions: a check of the check."""
    text = (
        "from . import b\ndef f():\n    from ..data import c\n    import coterie.engines.workers\n"
    )
    path = SOURCE / "methods" / "no_such_file.py"
    found = ast.parse(text)
    tree_of_original = globals()["tree_of"]
    globals()["tree_of"] = lambda p: found if p == path else tree_of_original(p)
    try:
        assert [n for n, _ in imports(path)] == [
            "coterie.methods.b",
            "coterie.data.c",
            "coterie.engines.workers",
        ]
        assert strayed(path) == ["data", "engines"]
    finally:
        globals()["tree_of"] = tree_of_original


def test_the_package_is_the_one_that_is_read() -> None:
    spec = importlib.util.find_spec("coterie")
    assert spec is not None
    assert spec.origin == str(SOURCE / "__init__.py")
