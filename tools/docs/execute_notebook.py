"""Run docs/start/notebook.ipynb and keep its outputs, which the site shows as they are.

    python tools/docs/execute_notebook.py            run it and write it
    python tools/docs/execute_notebook.py --check    write nothing; exit status 1 if a cell fails or
                                                     prints other words

Decimals may differ by processor, so a check is of words and whole numbers, and figures are only
made.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOK = DOCS / "start" / "notebook.ipynb"
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
DECIMAL = re.compile(r"-?\d+(?:\.\d+)?e[+-]?\d+|-?\d+\.\d+")


def executed(notebook: Any) -> Any:
    """The notebook with the outputs of a run in an empty folder, and nothing that is of one machine."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(DOCS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    for name in ("MPLBACKEND", "COTERIE_DATA"):  # the kernel draws into the notebook
        os.environ.pop(name, None)
    made = nbformat.from_dict({**notebook, "metadata": METADATA})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder
        NotebookClient(
            made, timeout=300, record_timing=False, resources={"metadata": {"path": folder}}
        ).execute()
    made.metadata = METADATA
    for cell in made.cells:
        cell.metadata = {}
    return made


def printed(notebook: Any) -> list[list[str]]:
    """The words that each cell printed, without decimals."""
    out = []
    for cell in notebook.cells:
        texts = [
            part.get("text") or part.get("data", {}).get("text/plain", "")
            for part in cell.get("outputs", ())
        ]
        out.append(DECIMAL.sub(" ", " ".join(texts)).split())
    return out


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument(
        "--check", action="store_true", help="write nothing, tell which cells print something else"
    )
    chosen = options.parse_args(argv)
    kept = nbformat.read(NOTEBOOK, as_version=4)
    made = executed(kept)
    if not chosen.check:
        nbformat.write(made, NOTEBOOK)
        return 0
    stale = False
    for number, (now, then) in enumerate(zip(printed(made), printed(kept), strict=True)):
        if now != then:
            stale = True
            print(f"cell {number} prints {' '.join(now)!r}, and {' '.join(then)!r} is kept")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
