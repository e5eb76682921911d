"""Pieces of the files in examples/ and of what README shows, as they are, for pages that go through them; :mod:`generate` puts
them in."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, README = ROOT / "examples", ROOT / "README.md"


def source(file: str, *pieces: str) -> str:
    """Pieces of examples/FILE.py in a block of code: ``imports``, a class or function, ``Class/method``, or ``Class/head``,
    which is the class up to its first method without underscores. Methods lose their indentation.
    Raises KeyError for a piece that is not there."""
    text = (EXAMPLES / f"{file}.py").read_text()
    found = pieces_of(text)
    shown = "\n\n\n".join(found[piece] for piece in pieces)
    return f"```python\n{shown}\n```\n"


def pieces_of(text: str) -> dict[str, str]:
    """Every piece of a module by name."""
    lines, body = text.splitlines(), ast.parse(text).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    found = {"imports": "\n".join(lines[imports[0].lineno - 1 : imports[-1].end_lineno])}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = _lines(lines, node)
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            public = [method for method in methods if not method.name.startswith("_")]
            if public:
                found[f"{node.name}/head"] = "\n".join(
                    lines[_first(node) - 1 : _first(public[0]) - 1]
                ).rstrip()
            found |= {
                f"{node.name}/{method.name}": textwrap.dedent(_lines(lines, method))
                for method in methods
            }
    return found


def _first(node: ast.FunctionDef | ast.ClassDef) -> int:
    """The line it begins in, decorators included."""
    return min(part.lineno for part in (node, *node.decorator_list))


def _lines(lines: list[str], node: ast.FunctionDef | ast.ClassDef) -> str:
    return "\n".join(lines[_first(node) - 1 : node.end_lineno])


def shown(first: str) -> str:
    """The part of the demonstration's output in README whose first line begins with the word ``first``."""
    for part in README.read_text().partition("<!-- demo -->")[2].split("\n\n"):
        if part.startswith(f"{first} "):
            return f"```text\n{part}\n```\n"
    raise ValueError(f"README shows nothing that begins with {first!r}")


PARTS: Mapping[str, Callable[..., str]] = {"source": source, "shown": shown}
