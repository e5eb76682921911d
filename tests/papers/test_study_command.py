"""``python -m papers list`` and ``python -m papers run``: what they print and write, and one sentence for a mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.engines.workers import Hardware
from papers import PAPERS, STUDIES, scales
from papers.cfl_bounds import gradients
from papers.command import main
from papers.running import measured, seconds_left
from papers.store import Rows
from papers.study import Resources, Scale, key

TINY = """
[small]
about = "a test"
seconds = 1
seeds = 2

[[small.cells]]
each.k = [2, 12]
each.gamma = [0.5, 1.1]
stationary = true
d = 10
per_distribution = 3
draws = 5

[data]
about = "with files"
seconds = 1
seeds = 1
needs = ["mnist"]
cells = []
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and figure 3 with settings of no time."""
    settings = tmp_path / "settings"
    settings.mkdir()
    for study in STUDIES.values():
        (settings / f"{study.source}.toml").write_text(TINY.partition("[data]")[0])
    (settings / "cfl-fig3.toml").write_text(TINY)
    monkeypatch.setattr("papers.reading.FOLDER", settings)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    scales.cache_clear()
    yield tmp_path
    scales.cache_clear()


def test_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name, study in STUDIES.items():
        assert f"{name} " in out
        assert f"{study.where}: {study.what}" in out
    assert all(title in out for title in PAPERS.values())


def test_a_study_is_run_shown_and_drawn(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "cfl/fig3"]) == 0
    out, said = capsys.readouterr()
    assert sorted(path.name for path in (tiny / "studies").iterdir()) == [
        f"cfl-fig3.small.{suffix}" for suffix in ("jsonl", "pdf", "png")
    ]
    assert "0 of 8 runs are recorded; about 1 s" in said
    assert "8 of 8: k 12, gamma 1.1, seed 1: " in said
    for text in ("always correct (Theorem 1)", "verdict at scale small: ", "2 seeds"):
        assert text in out
    assert "figure in studies/cfl-fig3.small.pdf and studies/cfl-fig3.small.png\n" in out
    assert "recorded in studies/cfl-fig3.small.jsonl\n" in out
    assert main(["run", "cfl/fig3"]) == 0
    again, said = capsys.readouterr()
    assert again == out
    assert said.endswith("8 of 8 runs are recorded\n")


def test_runs_in_bf16_are_apart_from_the_others(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def measure(on: Resources, **cell: Any) -> dict[str, Any]:
        seen.append(on.hardware.precision)
        return study.measure(on, **cell)

    study = STUDIES["cfl/fig3"]
    monkeypatch.setattr("papers.command.find_study", lambda name: replace(study, measure=measure))
    assert main(["run", "cfl/fig3", "--seeds", "1"]) == 0
    assert main(["run", "cfl/fig3", "--seeds", "1", "--precision", "bf16"]) == 0
    assert seen == ["fp32"] * 4 + ["bf16"] * 4
    assert {path.name for path in (tiny / "studies").glob("*.jsonl")} == {
        "cfl-fig3.small.jsonl",
        "cfl-fig3.small.bf16.jsonl",
    }


def test_a_row_names_the_gpu_that_it_was_made_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how long the others take is not told by it."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"GPU of {device}")
    on = Resources(hardware=Hardware(device="cuda:1"))
    found = measured(lambda on, **cell: {"seed": cell["seed"]}, on, {"seed": 0})
    assert found["device"] == "GPU of cuda:1"
    rows = Rows(tmp_path / "rows.jsonl")
    rows.append({**found, "seconds": 1.0})
    rows.append({"cell": {"seed": 1}, "found": {}, "seconds": 100.0})
    assert "device" in rows.known()[key({"seed": 0})]
    scale = Scale(name="data", about="", seconds=30, seeds=3, tables=({},))
    assert seconds_left(scale, rows, [{"seed": seed} for seed in range(3)]) == 100.0


def rows_of(path: Path) -> dict[str, Any]:
    return {
        json.dumps(row["cell"]): row["found"]
        for row in map(json.loads, path.read_text().splitlines())
    }


@pytest.mark.slow
def test_runs_at_a_time_and_in_parts_are_those_one_after_the_other(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "cfl/fig3"]) == 0
    assert main(["run", "cfl/fig3", "--jobs", "2", "--out", "both"]) == 0
    assert main(["run", "cfl/fig3", "--part", "2/3", "--out", "parts"]) == 0
    said = capsys.readouterr().err
    assert "0 of 3 runs are recorded" in said
    assert (
        "cfl/fig3 has no verdict yet: the runs of other parts are not in parts/cfl-fig3.small.jsonl"
        in said
    )
    assert main(["list", "--out", "parts"]) == 0
    assert "3 of 8" in capsys.readouterr().out
    one, both, part = (
        rows_of(tiny / folder / "cfl-fig3.small.jsonl") for folder in ("studies", "both", "parts")
    )
    assert both == one
    assert part.items() < one.items()
    assert len(part) == 3


def test_json_is_the_result_and_nothing_else(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "cfl/fig3", "--json", "--seeds", "1", "--out", "kept"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["study"], said["scale"], said["seeds"], len(said["rows"])) == (
        "cfl/fig3",
        "small",
        1,
        4,
    )
    assert {"what", "printed", "ours", "rule", "holds", "aside"} == set(said["claims"][0])
    assert (tiny / "kept" / "cfl-fig3.small.jsonl").is_file()


def test_an_interrupted_study_goes_on(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def interrupted(*settings: Any) -> np.ndarray:
        drawn.append(1)
        if len(drawn) == 12:  # in the third of the cells, of five draws each
            raise KeyboardInterrupt
        return gradients(*settings)

    with monkeypatch.context() as patch:
        patch.setattr("papers.cfl_bounds.gradients", interrupted)
        assert main(["run", "cfl/fig3"]) == 130
    said = capsys.readouterr().err
    assert (
        "interrupted; completed runs are in studies/cfl-fig3.small.jsonl; run the same command again to continue"
        in said
    )
    assert len((tiny / "studies" / "cfl-fig3.small.jsonl").read_text().splitlines()) == 2
    assert main(["run", "cfl/fig3"]) == 0
    assert "2 of 8 runs are recorded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "cfl/figg3",
            "there is no study 'cfl/figg3'; did you mean cfl/fig3?; python -m papers list lists them",
        ),
        ("cfl/fig3 --scale paper", "cfl/fig3 has no scale 'paper' (it has: small, data)"),
        (
            "cfl/fig3 --scale smal",
            "cfl/fig3 has no scale 'smal'; did you mean small? (it has: small, data)",
        ),
        ("all --scale paper", "no study has a scale 'paper' (known: small, data, paper)"),
        (
            "cfl/fig3 --scale data",
            "mnist is read from files: give their folder with --data DIR or set COTERIE_DATA",
        ),
        ("cfl/fig3 --scale data --data nowhere", "nowhere does not exist"),
        ("cfl/fig3 --seeds 0", "--seeds must be at least 1, got 0"),
        ("cfl/fig3 --jobs 0", "--jobs must be at least 1, got 0"),
        (
            "cfl/fig3 --jobs 2 --workers 2",
            "--jobs 2 needs one process for each run, got --workers 2",
        ),
        ("cfl/fig3 --part 3/2", "--part must be I/N with 1 <= I <= N, such as 1/4, got 3/2"),
        ("cfl/fig3 --workers 0", "--workers must be at least 1, got 0"),
        ("cfl/fig3 --device tpu", "device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
        ("cfl/fig3 --precision fp16", "precision must be one of fp32, bf16, got 'fp16'"),
        (
            "cfl/fig3 --out settings/cfl-fig3.toml",
            "--out must be a folder, and settings/cfl-fig3.toml is a file",
        ),
        ("", "the following arguments are required: NAME"),
    ],
)
def test_a_mistake_costs_one_sentence(
    tiny: Path, capsys: pytest.CaptureFixture[str], call: str, said: str
) -> None:
    assert main(["run", *call.split()]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert said in errors
    assert len(errors.splitlines()) == 1
    assert not (tiny / "studies").exists()


def test_a_mistake_in_one_of_several_is_told_before_any_is_run(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "cfl/fig3", "cfl/nothing"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tiny / "studies").exists()


def test_figures_need_matplotlib(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["run", "cfl/fig3"]) == 2
    assert (
        capsys.readouterr().err
        == "coterie: figures of studies need Matplotlib: pip install 'coterie[report]'\n"
    )
    assert not (tiny / "studies").exists()
