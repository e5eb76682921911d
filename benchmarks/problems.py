"""What grouping gains in each of ``examples/problems``: ``python benchmarks/problems.py [NAME ...]``.

Each problem is made with three seeds and run with training alone, one model for all and split-half.
The numbers are the mean of the problem's main metric over clients in the last round, whether
split-half found the two groups, and bytes; of forecasts also those of its baselines, which need no
model.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import coterie

HERE = Path(__file__).resolve().parent
PROBLEMS = HERE.parent / "examples" / "problems"
RESULTS = HERE / "results" / "problems.json"
METHODS = ("independent", "fedavg", "split-half")
TRUTH = ((0, 1, 2), (3, 4, 5))
ROUNDS, SEEDS = 20, (0, 1, 2)


def lines_of(source: str) -> int:
    """Lines of a program without blank lines, comments, docstrings and the functions that make data up."""
    tree = ast.parse(source)
    tree.body = [part for part in tree.body if not (_said(part) or "").startswith("Made up")]
    return sum(1 for line in ast.unparse(_bare(tree)).splitlines() if line.strip())


def _said(part: ast.stmt) -> str | None:
    return ast.get_docstring(part) if isinstance(part, ast.FunctionDef | ast.ClassDef) else None


def _bare(tree: ast.Module) -> ast.Module:
    """The tree without docstrings."""
    for part in ast.walk(tree):
        body = getattr(part, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return tree


def measured(name: str) -> dict[str, Any]:
    """The numbers of one problem."""
    module = importlib.import_module(name)
    row: dict[str, Any] = {
        "problem": name,
        "about": module.__doc__.splitlines()[0],
        "found": 0,
        "scores": {},
    }
    row["lines"] = lines_of((PROBLEMS / f"{name}.py").read_text())
    for method in METHODS:
        means = []
        for seed in SEEDS:
            world = module.world(seed)
            *_, done = coterie.run(
                method, world, rounds=ROUNDS, seed=seed, workers=1, eval_every=ROUNDS
            )
            mean = done.mean()
            assert mean is not None
            means.append(mean)
            row["found"] += method == "split-half" and done.assignment.groups == TRUTH
            row["bytes"] = done.bytes_up / len(world.clients)
        row["scores"][method] = sum(means) / len(means)
    if hasattr(module, "baselines"):
        each = [module.baselines(module.world(seed)) for seed in SEEDS]
        row["baselines"] = {name: sum(one[name] for one in each) / len(each) for name in each[0]}
    whole = sum(parameter.numel() for parameter in world.model().parameters())
    return row | {"metric": world.objective.main, "share": row["bytes"] / (4 * whole)}


def main(names: list[str]) -> None:
    """Measure the named problems, or all of them, and store the results."""
    sys.path.insert(0, str(PROBLEMS))
    known = (
        {row["problem"]: row for row in json.loads(RESULTS.read_text())}
        if RESULTS.is_file()
        else {}
    )
    for name in names or sorted(path.stem for path in PROBLEMS.glob("*.py")):
        known[name] = measured(name)
        print(json.dumps(known[name]), flush=True)
        RESULTS.write_text(json.dumps([known[name] for name in sorted(known)], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
