"""The notebook runs and prints what is committed; how that is told from what differs between processors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from documents import ROOT, load

SCRIPT = ROOT / "tools" / "docs" / "execute_notebook.py"

execute_notebook = load("tools/docs/execute_notebook.py", "docs_execute_notebook")


@pytest.mark.slow
def test_the_notebook_runs_and_prints_what_is_committed() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}\npython tools/docs/execute_notebook.py makes it anew"
    )


def test_the_notebook_holds_nothing_of_one_machine() -> None:
    text = execute_notebook.NOTEBOOK.read_text()
    notebook = nbformat.reads(text, as_version=4)
    assert notebook.metadata == execute_notebook.METADATA
    assert [cell.metadata for cell in notebook.cells] == [{}] * len(notebook.cells)
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.findall(r"(?<![\w.)>])/(?:[\w.-]+/)+", without_pictures)  # a path from the root
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum("image/png" in part.get("data", {}) for cell in code for part in cell.outputs) == 3


def test_words_and_whole_numbers_of_what_is_printed_are_compared() -> None:
    def words(text: str) -> list[list[str]]:
        return execute_notebook.printed(
            nbformat.from_dict({"cells": [{"outputs": [{"text": text}]}, {"source": "prose"}]})
        )

    assert (
        words("p 2.8e-21 of 20  clients\n")
        == words("p 3e-20 of 20 clients")
        == [["p", "of", "20", "clients"], []]
    )
    assert words("0.35 of 20") != words("0.35 of 21")


def test_a_check_tells_of_a_cell_that_prints_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = nbformat.v4.new_code_cell(
        "print(1)", outputs=[nbformat.v4.new_output("stream", text="1\n")]
    )
    kept, made = tmp_path / "kept.ipynb", nbformat.v4.new_notebook(cells=[cell])
    nbformat.write(made, kept)
    monkeypatch.setattr(execute_notebook, "NOTEBOOK", kept)
    monkeypatch.setattr(execute_notebook, "executed", lambda notebook: made)
    assert execute_notebook.main(["--check"]) == 0
    made.cells[0].outputs[0].text = "2\n"
    assert execute_notebook.main(["--check"]) == 1
    assert capsys.readouterr().out == "cell 0 prints '2', and '1' is kept\n"
    assert "1" in nbformat.read(kept, as_version=4).cells[0].outputs[0].text
    assert execute_notebook.main([]) == 0
    assert nbformat.read(kept, as_version=4) == made
