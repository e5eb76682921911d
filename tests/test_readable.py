"""Names and statements that a stranger reads once: a lint over the source, for what a linter of
style does not know.

Files that are not clean yet stand in ``readable_counts.json`` with their counts, which may only go
down. ``python tests/test_readable.py`` shows where the counts come from (``FILE ...`` for these
files), ``--write`` makes the list anew.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "coterie"
COUNTS_FILE = Path(__file__).parent / "readable_counts.json"

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COMPREHENSIONS_A_STATEMENT = 2
BINDING_NODES = (ast.Name, ast.Attribute, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef)
LEAVES = (ast.Name, ast.Constant, ast.Load, ast.Store)

GENERIC_WORDS = frozenset(
    """one other others found own at each said seen there known here where near which mine theirs
    both several either usual its it who what apart beside told heard spoke way how some many few
    most least made taken given wanted""".split()  # noqa: SIM905
)
"""As the name of a variable, a parameter or a function, these say that there is a thing, and not
what it is. In a comprehension, whose loop is read at one glance, they are no fault."""

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def shape(node: ast.AST) -> str:
    """An expression without the names, attributes and values in it: ``a.b`` and ``c.d`` are alike, ``f(a)``
    and ``g(a)`` are not."""
    if isinstance(node, ast.Name | ast.Attribute):
        return "name"
    if isinstance(node, ast.Constant):
        return type(node.value).__name__
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    parts = [shape(child) for child in ast.iter_child_nodes(node)]
    return f"{type(node).__name__} {called}({', '.join(parts)})"


def binds_unrelated_values(node: ast.stmt) -> bool:
    """``a, b = 1, f(x)``. A swap is one thing, and so is a pair of like expressions."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    value = node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    if {ast.unparse(part) for part in target.elts} == {ast.unparse(part) for part in value.elts}:
        return False
    return len({shape(part) for part in value.elts}) > 1


def bound_name(node: ast.AST) -> str:
    """The name that a node gives to a variable, an attribute, a parameter or a function, or ""."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
    return ""


def faults(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """(kind, line, what) of each fault within a file."""
    comprehensions: Counter[ast.stmt] = Counter()
    # (nodes of one parent, the innermost statement, whether they are a comprehension's loop variable)
    waiting: list[tuple[list[ast.AST], ast.stmt, bool]] = [
        ([node], node, False) for node in tree.body
    ]
    while waiting:
        nodes, statement, are_loop_variables = waiting.pop()
        for node in nodes:
            kind = type(node)
            innermost = statement
            if isinstance(node, ast.stmt):
                innermost = node
                if kind is ast.Assign and binds_unrelated_values(node):
                    yield "unrelated pairs", node.lineno, ast.unparse(node)
            elif kind in COMPREHENSIONS:
                comprehensions[statement] += 1
            if kind in BINDING_NODES and not are_loop_variables:
                name = bound_name(node)
                if name.strip("_") in GENERIC_WORDS:
                    yield "generic words", getattr(node, "lineno", 0), name
            if kind in LEAVES:
                continue
            if isinstance(node, ast.comprehension):
                waiting.append(([node.target], innermost, True))
                waiting.append(([node.iter, *node.ifs], innermost, are_loop_variables))
            else:
                waiting.append((list(ast.iter_child_nodes(node)), innermost, are_loop_variables))
    for statement, total in comprehensions.items():
        if total > COMPREHENSIONS_A_STATEMENT:
            yield "packed statements", statement.lineno, ast.unparse(statement).partition("\n")[0]


def constants(tree: ast.Module) -> Iterator[str]:
    """The names of the constants that a file defines; a variable of types is none."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("TypeVar"):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and CONSTANT.fullmatch(target.id):
                yield target.id


def classes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name


@cache
def trees() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


@cache
def counts() -> dict[str, dict[str, int]]:
    """Kind of fault: file: how many."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for file, tree in trees().items():
        for kind, _, _ in faults(tree):
            totals[kind][file] += 1
    return {kind: dict(sorted(by_file.items())) for kind, by_file in sorted(totals.items())}


def named_twice(kind: str) -> dict[str, list[str]]:
    """Constants, or classes, that several files define under one name, with the files."""
    definitions: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees().items():
        for name in constants(tree) if kind == "constants" else classes(tree):
            definitions[name].add(file)
    return {name: sorted(files) for name, files in sorted(definitions.items()) if len(files) > 1}


def allowed() -> dict[str, dict[str, int]]:
    known: dict[str, dict[str, int]] = json.loads(COUNTS_FILE.read_text(encoding="utf-8"))
    return known


def assert_not_more(kind: str) -> None:
    allowance = allowed().get(kind, {})
    present = counts().get(kind, {})
    if "all files" in allowance:  # while files are moved and rewritten: only the sum counts
        assert sum(present.values()) <= allowance["all files"]
        return
    grown = {
        file: f"{count}, allowed {allowance.get(file, 0)}"
        for file, count in present.items()
        if count > allowance.get(file, 0)
    }
    assert not grown, f"{kind}: python tests/test_readable.py FILE shows the lines"


def test_names_say_what_they_hold() -> None:
    assert_not_more("generic words")


def test_no_line_binds_unrelated_values() -> None:
    assert_not_more("unrelated pairs")


def test_no_statement_packs_more_than_two_comprehensions() -> None:
    assert_not_more("packed statements")


def test_no_two_constants_of_one_name() -> None:
    assert set(named_twice("constants")) <= set(allowed().get("constants of one name", {}))


def test_no_two_classes_of_one_name() -> None:
    assert set(named_twice("classes")) <= set(allowed().get("classes of one name", {}))


def test_what_the_lint_sees() -> None:
    """A check of the check."""
    text = """
one = 1
def heard(there, client_ids):
    low, high = 0.0, 1.0
    low, high = high, low
    update, steps = None, len(there)
    pairs = [one for one in there]
    return {a: [b for b in there for c in [d for d in there]] for a in there}
"""
    seen = [(kind, line) for kind, line, _ in faults(ast.parse(text))]
    assert sorted(seen) == [
        ("generic words", 2),
        ("generic words", 3),
        ("generic words", 3),
        ("packed statements", 8),
        ("unrelated pairs", 6),
    ]
    assert list(constants(ast.parse("A_B = 1\nT_ = TypeVar('T_')\n_MAX: int = 2\nx = 3"))) == [
        "A_B",
        "_MAX",
    ]


def write_counts(totals_only: bool) -> None:
    written: dict[str, dict[str, int]] = dict(counts())
    if totals_only:
        written = {kind: {"all files": sum(c.values())} for kind, c in written.items()}
    for kind in ("constants", "classes"):
        written[f"{kind} of one name"] = {n: len(files) for n, files in named_twice(kind).items()}
    text = json.dumps(written, indent=1, sort_keys=True)
    COUNTS_FILE.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="files or folders below src/coterie; none: all")
    parser.add_argument("--write", action="store_true", help="make the list of counts anew")
    parser.add_argument("--totals", action="store_true", help="with --write: not by file")
    arguments = parser.parse_args()
    if arguments.write:
        write_counts(arguments.totals)
        return
    wanted = tuple(name.removeprefix("src/coterie/") for name in arguments.files)
    for file, tree in trees().items():
        if not file.startswith(wanted or ""):
            continue
        for kind, line, what in sorted(faults(tree), key=lambda fault: fault[1]):
            print(f"src/coterie/{file}:{line}: {kind}: {what[:100]}")
    for kind in ("constants", "classes"):
        for name, files in named_twice(kind).items():
            if not wanted or any(file.startswith(wanted) for file in files):
                print(f"{kind} of one name: {name} in {', '.join(files)}")


if __name__ == "__main__":
    main()
