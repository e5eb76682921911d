"""Imports run one way, and what must stay out of a layer stays out: read from the source, not run.

    cli > report, experiment > engines > scenario > data, models
    engines > local > layout;  engines > methods > tree, clustering;  everything > core
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "coterie"

MAY_IMPORT: dict[str, str] = {
    # At the bottom: settings and random numbers, and what is about matrices alone.
    "printable": "",
    "settings": "printable",
    "files": "settings",
    "randomness": "",
    "clustering": "randomness",
    "layout": "",
    "core": "settings randomness",
    # Methods know matrices and the contract.
    "tree": "core clustering",
    "methods": "core settings randomness tree clustering",
    # Clients: data, nets, local training.
    "attendance": "core settings randomness",
    "attack": "settings randomness",
    "world": "core settings attendance attack",
    "models": "settings randomness",
    "local": "core randomness layout world",
    "boundary": "core files settings randomness layout",
    "data": "core settings randomness world files",
    "robust": "boundary core settings layout",
    "catalogue": "core",
    "adversaries": "core settings randomness attack world models",
    "lists": "settings world models data",
    "scenario": "adversaries attack core settings randomness attendance world models lists data catalogue",
    # Engines bring both together.
    "engines": "core settings randomness attendance world layout local boundary robust models data scenario methods tree "
    "clustering files",
    # What is kept of a run; of an engine it knows the type of a round, see TYPES_ONLY.
    "hints": "",
    "codec": "core hints settings",
    "checksum": "codec",
    "store": "checksum codec files settings",
    "wellformed": "boundary core methods robust settings",
    "record": "checksum codec core files settings store wellformed __init__ printable",
    "experiment": "attack core settings boundary robust world data models scenario methods record store engines files",
    # Flower is an engine that keeps a run directory by itself: there is no command that runs it in a federation.
    "engines.flower": "checksum clustering codec core files settings randomness attendance world layout local boundary robust "
    "models scenario engines record store experiment printable",
    "runs": "checksum codec boundary robust core files settings world models scenario methods engines engines.flower record "
    "store experiment __init__",
    "export": "checksum codec core files settings randomness layout models world experiment record store runs engines boundary "
    "__init__",
    "estimate": "clustering boundary core randomness layout world engines record experiment",
    "suggestion": "clustering core settings layout world methods tree engines codec record experiment runs",
    "overrides": "core settings boundary robust scenario methods experiment",
    "checking": "checksum export files record runs settings store",
    "report": "core codec files settings boundary clustering methods tree scenario experiment record store runs suggestion "
    "__init__ printable",
    "track": "files settings record store report runs printable",
    "studies": "boundary robust codec core settings randomness clustering world models lists data methods engines store "
    "record experiment report files",
    "arguments": "core settings scenario methods experiment overrides runs report record store __init__ printable",
    "cli": "boundary checking core settings scenario methods engines experiment overrides runs report record store arguments "
    "export suggestion local studies track estimate __init__ printable files",
    "__main__": "cli",
}
"""Part of the package -> the parts it may import, besides itself. A new part finds its place here."""

TYPES_ONLY = {("record", "engines"), ("__init__", "*")}
"""Imports for the type checker alone."""

PURE = ("core", "tree", "clustering", "methods")


def part_of(path: Path) -> str:
    return _part(path.relative_to(SOURCE).with_suffix("").parts)


def _part(names: Sequence[str]) -> str:
    return "engines.flower" if list(names[:2]) == ["engines", "flower"] else names[0]


FILES = sorted(SOURCE.rglob("*.py"))
BY_NAME = {str(path.relative_to(SOURCE)): path for path in FILES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def for_types(path: Path) -> set[int]:
    """The ids of nodes under ``if TYPE_CHECKING``."""
    guards = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
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
    part, wrong = part_of(path), []
    for other, types in parts_imported(path):
        allowed = other == part or other in MAY_IMPORT.get(part, "").split()
        excused = types and ((part, other) in TYPES_ONLY or (part, "*") in TYPES_ONLY)
        if not allowed and not excused:
            wrong.append(other)
    return wrong


def test_every_part_has_its_place() -> None:
    homeless = {part_of(path) for path in FILES} - set(MAY_IMPORT) - {"__init__"}
    assert not homeless, f"say in MAY_IMPORT what {sorted(homeless)} may import"


@pytest.mark.parametrize("name", BY_NAME)
def test_imports_run_one_way(name: str) -> None:
    assert not strayed(BY_NAME[name]), f"{name} may not import {strayed(BY_NAME[name])}: see MAY_IMPORT"


def test_the_rule_itself_has_no_circle() -> None:
    left = {part: set(may.split()) - {"__init__"} for part, may in MAY_IMPORT.items()}
    while left:
        free = {part for part, needs in left.items() if not needs & set(left)}
        assert free, f"a circle among {sorted(left)}"
        left = {part: needs for part, needs in left.items() if part not in free}


@pytest.mark.parametrize("name", [n for n, path in BY_NAME.items() if part_of(path) in PURE])
def test_methods_and_clustering_are_arithmetic(name: str) -> None:
    found = [n for n, _ in imports(BY_NAME[name])]
    banned = ("torch.nn", "torch.optim", "torch.utils", "flwr", "pickle", "os", "io", "pathlib", "logging", "subprocess")
    assert not [n for n in found if n.startswith(tuple(f"{b}." for b in banned)) or n in banned]
    called = set(calls(BY_NAME[name]))
    told = {"warnings.warn"} if name != "clustering/margins.py" else set()  # whose warnings are a result
    assert not called & {"open", "print", "input", "exec", "eval", *told}
    used = {ast.unparse(node) for node in ast.walk(tree_of(BY_NAME[name])) if isinstance(node, ast.Attribute)}
    assert not used & {"torch.nn", "torch.optim"}


@pytest.mark.parametrize("name", BY_NAME)
def test_only_randomness_seeds(name: str) -> None:
    called = {call.rpartition(".")[2] for call in calls(BY_NAME[name])}
    assert name == "randomness.py" or not called & {"manual_seed", "manual_seed_all", "set_rng_state", "fork_rng", "seed"}
    assert not {n.partition(".")[0] for n, _ in imports(BY_NAME[name])} & {"random"}
    # Of NumPy's, only generators that are made from a key.
    drawn = [c for c in calls(BY_NAME[name]) if c.startswith(("np.random.", "numpy.random."))]
    assert not drawn if name != "randomness.py" else set(drawn) <= {"np.random.default_rng", "np.random.SeedSequence"}


@pytest.mark.parametrize("name", BY_NAME)
def test_all_that_is_printed_is_printable_and_by_the_command_line(name: str) -> None:
    called = set(calls(BY_NAME[name]))
    assert "print" not in called or name == "printable.py"
    assert "say" not in called or part_of(BY_NAME[name]) in ("cli", "report", "arguments")
    assert not called & {"sys.stdout.write", "sys.stderr.write", "Console", "rich.print"}
    assert "_Console" not in called or name == "report/terminal.py"


@pytest.mark.parametrize("name", BY_NAME)
def test_flower_and_the_data_hub_stay_in_one_file_each(name: str) -> None:
    packages = {n.partition(".")[0] for n, _ in imports(BY_NAME[name])}
    assert "flwr" not in packages or name.startswith("engines/flower")
    assert not packages & {"flwr_datasets", "datasets"} or name == "data/hub.py"


def test_importing_what_a_file_is_found_at() -> None:
    """The walk sees relative imports and imports within functions: a check of the check."""
    text = "from . import b\ndef f():\n    from ..data import c\n    import coterie.engines.workers\n"
    path = SOURCE / "methods" / "no_such_file.py"
    found = ast.parse(text)
    tree_of_original = globals()["tree_of"]
    globals()["tree_of"] = lambda p: found if p == path else tree_of_original(p)
    try:
        assert [n for n, _ in imports(path)] == ["coterie.methods.b", "coterie.data.c", "coterie.engines.workers"]
        assert strayed(path) == ["data", "engines"]
    finally:
        globals()["tree_of"] = tree_of_original


def test_the_package_is_the_one_that_is_read() -> None:
    spec = importlib.util.find_spec("coterie")
    assert spec is not None
    assert spec.origin == str(SOURCE / "__init__.py")
