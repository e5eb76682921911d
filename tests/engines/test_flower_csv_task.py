"""What the example app for CSV files reads at a site, without Flower's processes."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.scenario import SCENARIOS
from coterie.settings import UserError

pytest.importorskip("flwr", reason="Flower is not installed")

TASK = Path(__file__).parents[2] / "examples" / "flower_csv" / "sites_app" / "task.py"
LABELS = {
    "whole numbers": (0, 1),
    "booleans": (False, True),
    "texts": ("no", "yes"),
    "whole numbers as floats": (0.0, 1.0),
    "texts that pandas takes for missing values": ("NA", "null"),
}


def app() -> Any:
    spec = importlib.util.spec_from_file_location("csv_task", TASK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site_of(folder: Path, frame: Any, classes: list[str]) -> Any:
    """A site's folder with a table and the agreed schema, as Flower's context names it."""
    frame.to_csv(folder / "records.csv", index=False)
    columns = [name for name in frame.columns if name != "y"]
    agreed = {"columns": columns, "targets": ["y"], "classes": classes}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in agreed.items()]
    (folder / "schema.toml").write_text("".join(lines))
    return SimpleNamespace(node_config={"folder": str(folder)}, run_config={})


@pytest.mark.parametrize("kind", LABELS)
def test_a_site_has_the_classes_of_the_trial_whatever_the_type_of_its_labels(
    tmp_path: Path, kind: str
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=["a", "b"])
    frame["y"] = np.array(LABELS[kind], object)[np.arange(40) % 2]
    frame["site"] = "only"
    table = tmp_path / "trial.csv"
    frame.to_csv(table, index=False)
    # The trial writes down its classes.
    task = "classification" if kind == "whole numbers as floats" else "auto"
    scenario = replace(SCENARIOS["table/clients"], client="site", target="y", task=task)
    world = scenario.build(0, table)
    context = site_of(tmp_path, frame.drop(columns="site"), list(world.about["classes"]))
    assert app().schema(context).classes == tuple(world.about["classes"])
    data = app().load(context)
    targets = [
        part.targets for part in (data.train, data.validation, data.test) if part is not None
    ]
    assert sorted(np.concatenate(targets).tolist()) == [0] * 20 + [1] * 20


def test_other_labels_are_stated_and_missing_ones_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 2]})
    assert app().schema(site_of(tmp_path, frame, ["0", "1"])).classes == ("0", "1", "2")
    frame["y"] = ["0", None, "1"]
    context = site_of(tmp_path, frame, ["0", "1"])
    with pytest.raises(UserError, match=r"records.csv: the column y has a missing value, in row 2"):
        app().load(context)


def test_a_schema_names_its_classes_as_a_world_does() -> None:
    labels = (np.int64(0), True, np.bool_(False), 2.0, np.float32(3), "four")
    names = ("0", "True", "False", "2", "3", "four")
    assert coterie.Schema(classes=labels).classes == names  # type: ignore[arg-type]
    for label in (0.5, None, float("nan")):
        with pytest.raises(UserError, match=r"Schema.classes must be a list of texts"):
            coterie.Schema(classes=(label,))  # type: ignore[arg-type]
