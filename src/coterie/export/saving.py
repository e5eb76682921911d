"""A run's models written into a folder: ``models.json``, and a file per model."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

import coterie
from coterie.core import Assignment, Client
from coterie.engines.inprocess import Position
from coterie.export.nets import net_of, of_federation
from coterie.layout import own_layers
from coterie.record import ends, to_json
from coterie.runs import Run, reopen
from coterie.settings import UserError
from coterie.store import SCHEMA

MODELS = "models.json"

Key = tuple[int, Client | None]
"""A model as it serves: its row in the assignment and, if the client keeps layers of its own, the client."""


def save(run: Path | str, to: Path | str, told: Callable[[], None] | None = None) -> Path:
    """Write every model that serves a client of ``run`` into the new folder ``to``; returns it.

    run: a run directory, as its newest checkpoint stands, or the folder of several, each of which gets a subfolder of its
    name. Nothing is left behind where this fails. Models of which the server has a part alone, or sealed rows, are written
    as it has them. told: is called after each run.

    Raises :class:`~coterie.settings.UserError` if ``to`` has something in it, a run has no checkpoint yet, or all layers stay
    at the clients.
    """
    to = Path(to).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is there already and not an empty folder; name another")
    runs = reopen(run)
    made = [parent for parent in to.parents if not parent.exists()]  # the innermost first
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        for one in runs:
            _save(one, part if one.folder == Path(run) else part / one.folder.name)
            if told:
                told()
        part.rename(to)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for parent in made if not to.exists() else ():
            with contextlib.suppress(OSError):  # never made, or somebody else has put something there
                parent.rmdir()
    return to


def _save(run: Run, folder: Path) -> None:
    stored = run.record.checkpoints.load()
    if stored is None or not isinstance(stored[1], Position):
        on = "its ServerApp, started again," if of_federation(run) else f"coterie resume {run.folder}"
        raise UserError(f"{run.folder} has no completed round yet; {on} goes on with it")
    round, position = stored
    assignment: Assignment = run.method.assignment(position.state)
    net = net_of(run, position)
    files, clients = _files(assignment, position)
    folder.mkdir(exist_ok=True)
    for (row, client), name in files.items():
        tensors = net.tensors(own_layers(assignment.models[row], None if client is None else position.kept[client]))
        if not tensors:
            raise UserError(f"{run.method.name} leaves all layers at the clients, and {run.folder} has no model of theirs")
        safetensors.torch.save_file(tensors, folder / name)
    document = {
        "schema": SCHEMA,
        "coterie": coterie.__version__,
        "method": run.method.name,
        "scenario": run.experiment.scenario,
        "seed": run.seed,
        "round": round,
        "finished": any(line["round"] == round and ends(line, **_limits(run)) for line in run.record.lines()),
        "model": net.about,
        "sealed": net.sealed,
        "stays": net.stays,
        "ensemble": assignment.ensemble,
        "groups": assignment.groups,
        "clients": clients,
    }
    lines = [f"  {to_json(key)}: {to_json(value)}" for key, value in document.items()]
    (folder / MODELS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _limits(run: Run) -> dict[str, Any]:
    return {"rounds": run.experiment.rounds, "target": run.experiment.target}


def _files(assignment: Assignment, position: Position) -> tuple[dict[Key, str], dict[str, dict[str, Any]]]:
    """(model -> file, client -> its entry): each model once, named by its group, or else by a client or as part of a path.

    A group's name is for the one model that serves all of it; layers that a client keeps make a model its own.
    """
    keys = {c: (row, c if c in position.kept else None) for c, row in sorted(assignment.row.items())}
    files: dict[Key, str] = {}
    for number, group in enumerate(assignment.groups):
        served = {keys[c] for c in group}
        if len(served) == 1 and (key := served.pop())[1] is None:
            files.setdefault(key, f"group-{number}.safetensors")
    for client, key in keys.items():
        files.setdefault(key, f"client-{client}.safetensors")
    paths, number = {}, 0
    for client, rows in sorted(assignment.path.items()):
        paths[client] = [(row, keys[client][1]) for row in rows]
        for key in paths[client]:
            if key not in files:
                files[key] = f"path-{number}.safetensors"
                number += 1
    group_of = {c: number for number, group in enumerate(assignment.groups) for c in group}
    clients: dict[str, dict[str, Any]] = {}
    for client, key in keys.items():
        clients[str(client)] = {"group": group_of.get(client), "file": files[key]}
        if client in paths:
            clients[str(client)]["path"] = [files[key] for key in paths[client]]
    return files, clients
