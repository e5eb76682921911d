"""A run's models written into a folder: ``models.json``, and a file per model."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

import coterie
from coterie.checksum import digest, sealed_json
from coterie.codec import from_stored
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


def save(
    run: Path | str, to: Path | str, told: Callable[[], None] | None = None, *, trust_code: bool = False,
    secret: int | None = None, warn: Callable[[str], None] = warnings.warn,
) -> Path:  # fmt: skip
    """Write every model that serves a client of ``run`` into the new folder ``to``; returns it.

    Nothing is left behind where this fails. Models of which the server has a part alone, or sealed rows, are written as it has
    them.

    Args:
        run: A run directory, as its newest checkpoint stands, or the folder of several, each of which gets a subfolder of its
            name.
        to: The new folder.
        told: Is called after each run.
        trust_code: Lets a model be imported that a run directory names as ``package.module:Name``.
        secret: The boundary's, where the run had one; else the environment's COTERIE_SECRET.
        warn: Takes a sentence where records go on after the newest checkpoint; a warning by default.

    Raises:
        UserError: ``to`` has something in it, a run has no checkpoint yet or is damaged, all layers stay at the clients, or
            code or a secret is needed and was not given.
    """
    to = Path(to).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is there already and not an empty folder; name another")
    runs = reopen(run, trust_code=trust_code, secret=secret)
    made = [parent for parent in to.parents if not parent.exists()]  # the innermost first
    part = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        made.insert(0, part)
        for one in runs:
            _save(one, part if one.folder == Path(run) else part / one.folder.name, warn)
            if told:
                told()
        part.rename(to)
    finally:
        if part in made:
            shutil.rmtree(part, ignore_errors=True)
        for parent in made if not to.exists() else ():
            with contextlib.suppress(OSError):  # never made, or somebody else has put something there
                parent.rmdir()
    return to


def _save(run: Run, folder: Path, warn: Callable[[str], None]) -> None:
    run.experiment.check_secret()
    if not run.record.begun:
        hint = f"it was renamed, or it has not begun and coterie resume {run.folder.parent} begins it"
        raise UserError(f"{run.folder} has no run: {hint}")
    stored = run.record.stored(Position, fallback=False)
    lines = run.record.lines()  # after that: a run that goes on records a round before it stores its checkpoint
    if stored is None or not lines:
        on = "its ServerApp, started again," if of_federation(run) else f"coterie resume {run.folder}"
        raise UserError(f"{run.folder} has no completed round yet; {on} goes on with it")
    round, position = stored
    if lines[-1]["round"] > round:
        last = lines[-1]["round"]
        warn(f"{run.folder} has records up to round {last}, and models of round {round} alone, that of its newest checkpoint")
    path = run.record.checkpoints.path(round)
    with from_stored(path):
        assignment: Assignment = run.method.assignment(position.state)
        numbers = assignment.models.shape[1]
        files, clients = _files(assignment, position)
    net = net_of(run, position, numbers)
    folder.mkdir(exist_ok=True)
    checksums = {}
    for (row, client), name in files.items():
        with from_stored(path):
            tensors = net.tensors(own_layers(assignment.models[row], None if client is None else position.kept[client]))
            data = safetensors.torch.save(tensors)
        if not tensors:
            raise UserError(f"{run.method.name} leaves all layers at the clients, and {run.folder} has no model of theirs")
        (folder / name).write_bytes(data)
        checksums[name] = digest(data)
    document = {
        "schema": SCHEMA,
        "coterie": coterie.__version__,
        "method": run.method.name,
        "scenario": run.experiment.scenario,
        "seed": run.seed,
        "round": round,
        "finished": ends(lines[round - 1], **_limits(run)),
        "model": net.about,
        "sealed": net.sealed,
        "stays": net.stays,
        "ensemble": assignment.ensemble,
        "groups": assignment.groups,
        "clients": clients,
        "files": checksums,
    }
    rows = [f"  {to_json(key)}: {to_json(value)}" for key, value in document.items()]
    (folder / MODELS).write_bytes(sealed_json(("{\n" + ",\n".join(rows) + "\n}").encode()) + b"\n")


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
