"""Sites of a federation in this process: files of tables, a run over them, and a grid with a node for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Context, RecordDict

import coterie
from coterie.cli import main
from coterie.contrib.sites.federation_file import TableFederation
from coterie.contrib.sites.flower.site_app import site_app
from coterie.contrib.sites.flower.site_server import serve
from flowered import FIRST, Here, a_run

NAMES = ("aster", "birch", "cedar", "daisy")


def site_table(place: int, rows: int = 60) -> pd.DataFrame:
    """The rows of a site as texts: half of the sites have the opposite rule."""
    rng = np.random.default_rng(place)
    age = rng.normal(60, 9, rows).round(1)
    smoker = rng.choice(["no", "yes", "former", "pipe"], rows, p=[0.5, 0.3, 0.15, 0.05])
    days = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 600, rows), unit="D")
    score = (age - 60) / 4 + 2 * (smoker != "no") - 1
    ill = rng.random(rows) < 1 / (1 + np.exp(-score if place % 2 else score))
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, "", age.astype(str)),
            "smoker": smoker,
            "admitted": days.strftime("%d.%m.%Y"),
            "finding": np.where(ill, "ill", "well"),
            "cost": (1000 + 40 * age + rng.normal(0, 30, rows)).round(2),
        }
    )


def make_run(
    folder: Path,
    *,
    target: str = "finding",
    rounds: int = 2,
    method: str = "fedavg",
    **settings: str,
) -> Path:
    """Write the tables of all sites and their schema into a folder, and run a simulation; returns the run."""
    sites = folder / "sites"
    sites.mkdir(parents=True)
    for place, name in enumerate(NAMES):
        site_table(place).to_csv(sites / f"{name}.csv", index=False)
    schema = folder / "schema.toml"
    proposal = ["schema", *map(str, sorted(sites.iterdir())), "--target", target, "--least", "8"]
    assert main([*proposal, "-o", str(schema)]) == 0
    options = {"schema": str(schema), "standardize": "pooled", **settings}
    words = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    command = [
        "run",
        "--scenario",
        "table/clients",
        "--data",
        str(sites),
        "--method",
        method,
        *words,
    ]
    run = folder / "trial"
    assert main([*command, "--rounds", str(rounds), "--out", str(run)]) == 0
    return run


class Sites(Here):
    """A grid with a node for each table of a folder."""

    def __init__(self, file: Path, folder: Path, **node_config: Any) -> None:
        super().__init__(site_app(file), 0)
        for place, path in enumerate(sorted(folder.iterdir())):
            self.add(place, client=path.name.partition(".")[0], data=str(path), **node_config)

    def add(self, place: int, *, client: str, **node_config: Any) -> int:
        """A node connects; returns its id."""
        node = FIRST + 7 * place
        self.contexts[node] = Context(
            run_id=1,
            node_id=node,
            node_config={"client-id": client, **node_config},
            state=RecordDict(),
            run_config={},
        )
        return node


def write_federation(run: Path, file: Path, **options: Any) -> TableFederation:
    """Write the file of a federation with a run's settings."""
    federation = TableFederation.from_run(run, **options)
    file.write_text(federation.toml())
    return TableFederation.from_file(file)


def served(federation: TableFederation, grid: Here, **run_config: Any) -> Any:
    """What the server's app returns; nobody waits for a node."""
    with a_run():
        return serve(federation, grid, {"nodes": len(grid.contexts), "wait": 5.0, **run_config})


def world_of(folder: Path, **settings: Any) -> coterie.World:
    """The world of a simulation over the tables of all sites."""
    frames = []
    for path in sorted((folder / "sites").iterdir()):
        frames.append(pd.read_csv(path, dtype=str).fillna("").assign(site=path.stem))
    return coterie.from_frame(
        pd.concat(frames, ignore_index=True),
        client="site",
        schema=str(folder / "schema.toml"),
        **settings,
    )
