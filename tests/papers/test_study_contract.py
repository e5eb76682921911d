"""What holds of every study: settings that can be run, rows that are JSON, claims and figures of nothing but rows."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from studied import ALONE

from coterie.data.datasets import DATASETS
from coterie.records.text_files import to_json
from coterie.settings import UserError
from papers import PAPERS, STUDIES
from papers.drawing import draw
from papers.reading import FOLDER, scales
from papers.running import check_data, world_of
from papers.study import SCALES, Resources, Row, key

FAST = {"lr": 0.1, "batch": 50, "epochs": 1}
CHAINS = {
    "name": "chains/topics",
    "clients": 8,
    "topics": 4,
    "words": 5,
    "narrow": 0.3,
    "length": 4,
    "sequences": 20,
}
TINY: dict[str, dict[str, Any]] = {
    "acfl/fig3": {"epochs": [1, 2]},
    "acfl/fig4": {"epochs": [1, 2, 3]},
    "acfl/two-tasks": {"rounds": 4, "training": FAST},
    "acfl/three-tasks": {"rounds": 4, "training": FAST},
    "cfl/fig1": {"rounds": 2, "points": 8, "clients": 4},
    "cfl/fig2": {"rounds": 3},
    "cfl/fig3": {"draws": 3},
    "cfl/fig4": {
        "rounds": 3,
        "scenario": {"name": "digits/iid", "clients": 4, "newcomers": 1, "join_round": 2},
    },
    "cfl/fig5": {"rounds": 2},
    "cfl/fig6": {"rounds": 3},
    "cfl/fig7": {"rounds": 4},
    "cfl/fig8": {
        "rounds": 3,
        "every": 1,
        "training": FAST,
        "scenario": {"name": "digits/label-permutation", "clients": 8},
    },
    "cfl/fig9": {"rounds": 3, "every": 1, "training": FAST, "scenario": CHAINS},
    "flhc/table1": {"tested": [2, 11, 12], "training": FAST},
    "flhc/table2": {"tested": [2, 11, 12], "training": FAST},
    "flhc/table3": {"tested": [2, 6, 12], "training": FAST},
    "flhc/table6": {
        "rounds_before": 1,
        "rounds": 3,
        "counts": [1, 2, 99],
        "training": FAST,
        "beside": {"fedavg": 3},
    },
    "flhc/fig1-6": {"rounds": 2, "training": FAST},
    "flhc/iid": {"rounds": 2, "training": FAST},
    "flhc/table4": {
        "rounds_before": 1,
        "rounds": 3,
        "counts": [1, 2, 99],
        "training": FAST,
        "beside": {"fedavg": 3},
    },
    "flhc/table5": {
        "rounds_before": 1,
        "rounds": 3,
        "counts": [1, 2, 99],
        "training": FAST,
        "beside": {"fedavg": 3},
    },
    "hcct/table2": {"rounds": 2, "training": FAST, "examples": 100, "tests": 50},
    "hcct/table4-digit": {"rounds": 2, "every": 1, "training": FAST},
    "hcct/table4-fmnist": {"rounds": 2, "every": 1, "training": FAST},
    "hcct/table4-cifar": {"rounds": 2, "every": 1, "training": FAST},
    "hcct/table5": {"rounds": 2, "every": 1, "training": FAST},
    "hcct/fig3": {"rounds": 4, "apart": 1, "training": FAST},
    "hcct/fig4": {"rounds": 2, "training": FAST},
    "hcct/fig5": {"rounds": 2, "training": FAST},
}
"""Study -> what is changed of the cells of its small scale, so that they take no time."""

SMALLEST: dict[str, dict[str, Any]] = {
    "cfl/fig3": {"k": (2, 20), "gamma": (0.04, 1.1)},
    "cfl/fig5": {"examples": (10, 20)},
    "flhc/table1": {"fraction": (0.2,), "rounds_before": (0, 1, 10)},
    "flhc/table2": {"fraction": (0.2,), "rounds_before": (0, 1, 10)},
    "flhc/table3": {"fraction": (0.2,), "rounds_before": (0, 5)},
    "hcct/fig4": {"train": (0.1, 0.7), "tradeoff": (0.001, 0.7)},
    "hcct/fig5": {"groups": (1, 4)},
}
"""Study -> the only values of a setting that are tried."""

each = pytest.mark.parametrize("name", STUDIES)


def tiny(name: str) -> list[Row]:
    """Rows of tiny cells, as they come back from a file."""
    study, wanted = STUDIES[name], SMALLEST.get(name, {})
    cells = [{**cell, **TINY[name]} for cell in scales(study.source)["small"].cells(1)]
    rows = [
        {"cell": cell, "found": study.measure(ALONE, **cell), "seconds": 0.0}
        for cell in cells
        if all(cell[setting] in values for setting, values in wanted.items())
    ]
    return json.loads(to_json(rows))


def test_every_study_is_of_a_paper_and_has_its_settings() -> None:
    assert {study.paper for study in STUDIES.values()} == set(PAPERS)
    assert {path.stem for path in FOLDER.glob("*.toml")} == {
        study.source for study in STUDIES.values()
    }


@each
def test_settings_are_what_the_study_takes(name: str) -> None:
    taken = inspect.signature(STUDIES[name].measure)
    assert list(scales(STUDIES[name].source)) == [
        scale for scale in SCALES if scale in scales(STUDIES[name].source)
    ]
    assert "small" in scales(STUDIES[name].source)
    for scale in scales(STUDIES[name].source).values():
        cells = scale.cells()
        assert len({key(cell) for cell in cells}) == len(cells) > 0
        assert {cell["seed"] for cell in cells} == set(range(scale.seeds))
        for cell in cells:
            taken.bind(ALONE, **cell)
        assert set(scale.needs) <= set(DATASETS)
        assert not scale.needs if scale.name == "small" else True


@pytest.mark.slow
@each
def test_tiny_rows_make_claims_tables_and_figures(name: str, tmp_path: Path) -> None:
    study, rows = STUDIES[name], tiny(name)
    claims = study.claims(rows)
    assert claims
    assert len({claim.what for claim in claims}) == len(claims)
    for claim in claims:
        assert all(
            isinstance(text, str) and text
            for text in (claim.what, claim.printed, claim.ours, claim.rule)
        )
        assert claim.holds in (True, False, None)
    if study.table:
        made = study.table(rows)
        assert made.rows
        assert all(len(row) == len(made.head) for row in made.rows)
    first = draw(study, rows, tmp_path / "one")
    assert [path.suffix for path in first] == [".pdf", ".png"]
    again = draw(study, rows, tmp_path / "two")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def worlds(scale: str, needs: bool) -> Sequence[Any]:
    """(study, scenario, training), each once."""
    found = {}
    for study in STUDIES.values():
        if scale in scales(study.source) and bool(scales(study.source)[scale].needs) == needs:
            for cell in scales(study.source)[scale].cells(1):
                if "scenario" in cell:
                    found[study.name, to_json(cell["scenario"])] = (
                        study.name,
                        cell["scenario"],
                        cell["training"],
                    )
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["data", "paper"])
def test_worlds_of_real_data_can_be_made(scale: str, data_folder: Path) -> None:
    made = 0
    for name, scenario, training in worlds(scale, needs=True):
        try:
            check_data(scales(STUDIES[name].source)[scale], str(data_folder))
        except UserError:
            continue  # data that nobody need have
        world = world_of(Resources(data=str(data_folder)), scenario, training, seed=0)
        assert len(world.clients) > 1, name
        made += 1
    assert made > 10
