"""Who has which classes: a bar per client, or for many classes a matrix. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.data.label_counts import counts_of_clients
from coterie.data.scenario import FEDERATION, OwnWorld, Scenario, find
from coterie.data.world import World
from coterie.records.record import RUN_FILE, Record
from coterie.report.colours import SLATE
from coterie.report.figures.looks import ENDED
from coterie.report.figures.style import COLOURS, COLUMN, LINE_HEIGHT, panels
from coterie.report.summary import expand
from coterie.runs.experiment import data_folder, make, read
from coterie.runs.facts import digest
from coterie.settings import UserError

CLASS_COLOURS = (*COLOURS, SLATE, ENDED)
"""The colours of classes in bars; of more classes, counts are shown by colours of a matrix."""

MAX_CLIENTS_NAMED = 24
"""The greatest number of clients with their names at the axis."""

MAX_CLIENTS_DRAWN = 1000
"""The greatest number of clients with a bar: more would be narrower than a line."""

LEGEND_COLUMNS = 5
"""Classes in a line of the legend."""


def figure(world: World) -> Figure:
    """Draw how many training examples of each class each client has.

    Of very many clients, or of those whose data are made on demand, it draws some, evenly spaced.

    Args:
        world: The clients and their data.

    Raises:
        UserError: If the clients do not predict one class.
    """
    num_clients = len(world.clients)
    world = drawn_clients(world)
    counts = counts_of_clients(world)
    num_classes = counts.shape[1]
    known_names = world.about.get("classes") or ()
    class_names = [
        str(known_names[label]) if label < len(known_names) else str(label)
        for label in range(num_classes)
    ]
    draws_bars = num_classes <= len(CLASS_COLOURS)
    legend_lines = math.ceil(num_classes / LEGEND_COLUMNS) if draws_bars else 0
    drawing, ((axes,),) = panels(1, width=COLUMN, height=1.9 + LINE_HEIGHT * legend_lines)
    if draws_bars:
        _bars(axes, counts, class_names)
        drawing.legend(
            loc="outside lower center",
            ncols=LEGEND_COLUMNS,
            handlelength=1.0,
            columnspacing=1.0,
            labelspacing=0.3,
        )
    else:
        _matrix(axes, counts)
    # Few clients have their names at the axis.
    names = [world.name(client) for client in sorted(world.clients)]
    if len(names) <= MAX_CLIENTS_NAMED:
        is_long = max(map(len, names)) > 2
        axes.set_xticks(range(len(names)), names, rotation=90 if is_long else 0)
    axis_label = "client"
    if len(names) < num_clients:
        axis_label = f"{len(names):,} of {num_clients:,} clients"
    axes.set(xlabel=axis_label, xlim=(-0.5, len(names) - 0.5))
    axes.tick_params(axis="x", length=0)
    return drawing


def drawn_clients(world: World) -> World:
    """Return the world of the clients that are drawn: all, or of many some, evenly spaced."""
    world = world.examined
    clients = sorted(world.clients)
    if len(clients) <= MAX_CLIENTS_DRAWN:
        return world
    spacing = math.ceil(len(clients) / MAX_CLIENTS_DRAWN)
    return world.only(clients[::spacing])


def _bars(axes: Axes, counts: np.ndarray, class_names: list[str]) -> None:
    """A bar for each client, in parts for the classes."""
    bottom = np.zeros(len(counts))
    for label, class_name in enumerate(class_names):
        axes.bar(
            np.arange(len(counts)),
            counts[:, label],
            width=0.9,
            bottom=bottom,
            color=CLASS_COLOURS[label],
            label=class_name,
        )
        bottom += counts[:, label]
    axes.set_ylabel("training examples")


def _matrix(axes: Axes, counts: np.ndarray) -> None:
    """A row for each class, and a column for each client; no example is white."""
    shown_counts = np.where(counts.T > 0, counts.T.astype(float), np.nan)
    image = axes.imshow(shown_counts, aspect="auto", interpolation="nearest", cmap="YlGnBu", vmin=0)
    axes.figure.colorbar(image, ax=axes, pad=0.02, label="training examples")
    axes.set_ylabel("class")


def world_of(source: Any, *, trust_code: bool = False, data: Path | str | None = None) -> World:
    """Return the world whose partition is drawn.

    Args:
        source: A world, a function that makes the world of a seed, a scenario or its name, an
            experiment file, or a folder of runs: then the world of the first of them.
        trust_code: Whether a scenario or a model that a recorded file names as
            ``package.module:Name`` may be imported.
        data: Folder of the data set's files.

    Raises:
        UserError: There is no such scenario or run, or its data are not here or have changed.
    """
    if isinstance(source, World):
        return source
    if isinstance(source, Scenario | OwnWorld):
        return source.build(0, data_folder(data))
    if callable(source):
        return OwnWorld.of(source).build(0)
    path = Path(source)
    if path.is_dir():
        return _world_of_run(expand(path)[0], trust_code, data)
    if path.suffix == ".toml":
        return _world_of_file(path, trust_code, data)
    return find(str(source)).build(0, data_folder(data))


def _world_of_file(path: Path, trust_code: bool, data: Path | str | None) -> World:
    """The world of the first seed of an experiment's file."""
    spec = read(path, trust_code=trust_code)
    # Methods, and a boundary that may need a secret, do not change the data.
    kept = ("scenario", "seeds", "data", "origin")
    entries: dict[str, Any] = {key: spec[key] for key in kept if key in spec}
    experiment = make(entries)
    if data is not None:
        experiment = replace(experiment, data=str(data))
    experiment = replace(experiment, data=data_folder(experiment.data))
    return experiment.world(experiment.seeds[0])


def _world_of_run(folder: Path, trust_code: bool, data: Path | str | None) -> World:
    """The world of a recorded run, made again and compared with what the run recorded."""
    description = Record(folder).description()
    scenario_name = description["scenario"]["name"]
    setup = find(scenario_name)
    if scenario_name == FEDERATION:
        raise UserError(f"{folder} is a run of a federation, whose data are on other machines")
    if isinstance(setup, OwnWorld) and not setup.source:
        raise UserError(
            f"{folder} has a world that was given in Python: draw that, coterie.plot(world, 'partition', FILE)"
        )
    world = _world_of_file(folder / RUN_FILE, trust_code, data)
    recorded_digest = description["world"].get("data")
    if recorded_digest not in (None, digest(world)):
        raise UserError(f"the data of {scenario_name} have changed since {folder} was recorded")
    return world
