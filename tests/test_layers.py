"""Imports run one way, and what must stay out of a layer stays out: read from the source, not run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "coterie"

ORDER = [
    "printable",
    "settings",
    "extensions",
    "pooling",
    "notebook",
    "files",
    "randomness",
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
    "contrib.bench",
    "contrib.dpsgd",
    "contrib.hub",
    "contrib.private",
    "contrib.ray",
    "contrib.rivals",
    "contrib.sites",
    "contrib.suggest",
    "contrib.tracking",
    "contrib.trees",
    "contrib.tune",
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

NEVER |= {
    (extension, other) for extension in EXTENSIONS for other in EXTENSIONS if extension != other
}
"""An extension that comes with Coterie stands alone, as one of another package does."""

PURE = ("core", "clustering", "methods", "contrib.rivals")

PURE_IN_PRIVATE = (
    "cells",
    "group_search",
    "masks",
    "moments",
    "split_half_private",
    "split_half_sums",
)
"""The modules of ``contrib.private`` that are arithmetic. The others belong to engines."""


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
    guarded = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                guarded |= {id(inner) for inner in ast.walk(statement)}
    return guarded


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
            is_module = rest and (
                (SOURCE / rest[0]).is_dir() or (SOURCE / f"{rest[0]}.py").exists()
            )
            yield (_part(rest) if is_module else "__init__"), types


@cache
def calls(path: Path) -> list[str]:
    """The names of everything called, dotted: ``torch.load``."""
    nodes = ast.walk(tree_of(path))
    return [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]


def strayed(path: Path) -> list[str]:
    """The parts that ``path`` imports and may not."""
    part = part_of(path)
    before = ORDER[: ORDER.index(part)]
    forbidden = []
    for imported, _ in parts_imported(path):
        if imported != part and (imported not in before or (part, imported) in NEVER):
            forbidden.append(imported)
    return forbidden


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in FILES} == set(ORDER)


def test_imports_run_one_way() -> None:
    faults = {name: strayed(path) for name, path in BY_NAME.items() if strayed(path)}
    assert not faults, "these may not import these parts: see ORDER"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("coterie", *parts)).removesuffix(".__init__")


def test_no_modules_import_each_other() -> None:
    """Not even for types."""
    modules = {module_name(path) for path in FILES}
    needed: dict[str, set[str]] = {}
    for path in FILES:
        imported = set()
        for name, _ in imports(path):
            imported.add(name if name in modules else name.rpartition(".")[0])
        needed[module_name(path)] = (imported & modules) - {module_name(path), "coterie"}
    needed["coterie"] = set()
    # Modules that need none of those left go, until none is left.
    while needed:
        free = {name for name, imported in needed.items() if not imported & set(needed)}
        assert free, f"a circle among {sorted(needed)}"
        needed = {name: imported for name, imported in needed.items() if name not in free}


def test_the_core_imports_no_extension() -> None:
    """It finds them by entry points. The list of public names in ``__init__`` may contain theirs."""
    importing = {
        name
        for name, path in BY_NAME.items()
        for part, _ in parts_imported(path)
        if part.startswith("contrib") and not name.startswith("contrib/")
    }
    assert importing <= {"__init__.py"}


def is_pure(path: Path) -> bool:
    if part_of(path) == "contrib.private":
        return path.relative_to(SOURCE).with_suffix("").parts[2] in PURE_IN_PRIVATE
    return part_of(path) in PURE


def test_private_methods_know_no_engine() -> None:
    faults = []
    for name, path in BY_NAME.items():
        if part_of(path) == "contrib.private" and is_pure(path):
            for part, _ in parts_imported(path):
                if part.startswith("engines") or ("methods", part) in NEVER:
                    faults.append((name, part))
    assert not faults


def test_the_root_has_few_modules() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 9


NOT_ARITHMETIC = (
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
INPUT_AND_OUTPUT = {"open", "print", "input", "exec", "eval", "warnings.warn"}


def test_methods_and_clustering_are_arithmetic() -> None:
    faults = []
    for name, path in BY_NAME.items():
        if not is_pure(path):
            continue
        for imported, _ in imports(path):
            if imported.startswith(tuple(f"{module}." for module in NOT_ARITHMETIC)):
                faults.append((name, imported))
            if imported in NOT_ARITHMETIC:
                faults.append((name, imported))
        for call in set(calls(path)) & INPUT_AND_OUTPUT:
            # The warnings of agglomerative clustering are a result.
            if (name, call) != ("clustering/agglomerative.py", "warnings.warn"):
                faults.append((name, call))
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.nn", "torch.optim"):
                faults.append((name, ast.unparse(node)))
    assert not faults


SEEDING = {"manual_seed", "manual_seed_all", "set_rng_state", "fork_rng", "seed"}
MAY_SEED = {
    "contrib/bench/silos.py",  # its draws are those of the rows that were recorded before it was a part
    "randomness.py",  # forks and seeds the global generators, for the user's code
    "testing.py",  # its clients belong to no run: their numbers are drawn once
}


def test_only_randomness_seeds() -> None:
    faults = []
    for name, path in BY_NAME.items():
        if name in MAY_SEED:
            continue
        for call in calls(path):
            of_numpy = call.startswith(("np.random.", "numpy.random."))
            if of_numpy or call.rpartition(".")[2] in SEEDING:
                faults.append((name, call))
        if "random" in {imported.partition(".")[0] for imported, _ in imports(path)}:
            faults.append((name, "import random"))
    assert not faults


def test_all_that_is_printed_is_printable_and_by_the_command_line() -> None:
    faults = []
    for name, path in BY_NAME.items():
        forbidden = {"sys.stdout.write", "sys.stderr.write", "Console", "rich.print"}
        if name != "printable.py":
            forbidden.add("print")
        if name != "report/console.py":
            forbidden.add("_Console")
        is_command = name.startswith("contrib/") and name.endswith("/command.py")
        if not is_command and part_of(path) not in ("cli", "report", "notebook"):
            forbidden.add("say")
        faults += [(name, call) for call in set(calls(path)) & forbidden]
    assert not faults


FLOWER_FOLDERS = ("engines/flower/", "contrib/private/flower/", "contrib/sites/flower/")


def test_flower_and_the_data_hub_stay_in_one_place_each() -> None:
    faults = []
    for name, path in BY_NAME.items():
        packages = {imported.partition(".")[0] for imported, _ in imports(path)}
        if "flwr" in packages and not name.startswith(FLOWER_FOLDERS):
            faults.append((name, "flwr"))
        if packages & {"flwr_datasets", "datasets"} and name != "data/datasets/hub.py":
            faults.append((name, "datasets"))
    assert not faults


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
