"""Models taken out of a run, as safetensors that need no Coterie; and loaded again.

A folder has ``models.json`` and a file per model: the ``state_dict`` of the scenario's module. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import coterie
from coterie import models
from coterie.boundary import Wire
from coterie.codec import DamagedError
from coterie.core import Assignment, Client
from coterie.engines.fleet import own_layers
from coterie.engines.inprocess import Position
from coterie.layout import Layout
from coterie.randomness import seeded
from coterie.record import ends, to_json
from coterie.runs import Run, reopen, world_facts
from coterie.settings import UserError
from coterie.store import SCHEMA, check_schema
from coterie.world import mean_probability

MODELS = "models.json"

Key = tuple[int, Client | None]
"""A model as it serves: its row in the assignment and, if the client keeps layers of its own, the client."""


def save(run: Path | str, to: Path | str) -> Path:
    """Write every model that serves a client of ``run`` into the new folder ``to``; returns it.

    run: a run directory, as its newest checkpoint stands, or the folder of several, each of which gets a subfolder of its
    name. Nothing is left behind where this fails. Raises :class:`~coterie.settings.UserError` if ``to`` has something in
    it, or a run has no checkpoint yet.
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
        raise UserError(f"{run.folder} has no completed round yet; coterie resume {run.folder} goes on with it")
    round, position = stored
    assignment: Assignment = run.method.assignment(position.state)
    about = _model(run)
    module = fresh(about)
    layout = Layout(module)
    plain = plain_rows(run, layout)
    files, clients = _files(assignment, position)
    folder.mkdir(exist_ok=True)
    for (row, client), name in files.items():
        sealed = own_layers(assignment.models[row], None if client is None else position.kept[client])
        layout.load(module, plain(sealed))
        # Copies: safetensors takes no two names of one memory, as tied layers have.
        tensors = {key: value.detach().clone().contiguous() for key, value in module.state_dict().items()}
        safetensors.torch.save_file(tensors, folder / name)
    document = {
        "schema": SCHEMA,
        "coterie": coterie.__version__,
        "method": run.method.name,
        "scenario": run.experiment.scenario,
        "seed": run.seed,
        "round": round,
        "finished": any(line["round"] == round and ends(line, **_limits(run)) for line in run.record.lines()),
        "model": about,
        "ensemble": assignment.ensemble,
        "groups": assignment.groups,
        "clients": clients,
    }
    lines = [f"  {to_json(key)}: {to_json(value)}" for key, value in document.items()]
    (folder / MODELS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def plain_rows(run: Run, layout: Layout) -> Callable[[Tensor], Tensor]:
    """From a row ``(d,)`` of the server's to the clients': the one place here where the boundary's map is undone."""
    return Wire(run.experiment.boundary, layout, run.seed).open


def _model(run: Run) -> dict[str, Any]:
    """name, shape and classes of the run's net; of a record that does not tell them, from the data."""
    about: dict[str, Any] | None = run.record.description()["world"].get("model")
    return about or world_facts(run.experiment.world(run.seed))["model"]


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


# -- loading --------------------------------------------------------------------------------------------------------------


class Ensemble(nn.Module):
    """Several nets as one: the logarithm of their mean class probabilities, which a softmax turns back into these."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        return mean_probability(torch.stack([net(x) for net in self.nets]))


def load(folder: Path | str, client: Client) -> nn.Module:
    """The net that serves ``client``, as :func:`save` has written it, in evaluation mode.

    Where the method serves by ensembles, it is that of the models on the client's path. A model of your own
    (``package.module:Name``) is imported. Raises :class:`~coterie.settings.UserError` for a client that has no model there.
    """
    folder = Path(folder)
    document = _document(folder)
    entry = document["clients"].get(str(client))
    if entry is None:
        raise UserError(f"{folder} has no model for client {client!r}; it has those of {', '.join(document['clients'])}")
    files = entry.get("path", [entry["file"]]) if document["ensemble"] else [entry["file"]]
    nets = [_net(document["model"], folder / Path(name).name) for name in files]
    return (nets[0] if len(nets) == 1 else Ensemble(nets)).eval()


def _document(folder: Path) -> dict[str, Any]:
    path = folder / MODELS
    if not path.is_file():
        inside = sorted(found.parent.name for found in folder.glob(f"*/{MODELS}"))
        hint = f"; it has those of several runs: {', '.join(inside)}" if inside else ""
        raise UserError(f"{folder} holds no exported models: it has no {MODELS}{hint}")
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        check_schema(document["schema"], path)
        return {key: document[key] for key in ("model", "ensemble", "clients")}
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} is damaged ({error})") from error


def fresh(about: dict[str, Any]) -> nn.Module:
    """A new net by its name, shape and classes; what no file holds is as engines have it."""
    shape, classes = tuple(int(size) for size in about["shape"]), int(about["classes"])
    with seeded(0):
        return models.make(about["name"], shape, classes)


def _net(about: dict[str, Any], path: Path) -> nn.Module:
    net = fresh(about)
    try:
        net.load_state_dict(safetensors.torch.load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be loaded into {about['name']}: {error}") from error
    return net
