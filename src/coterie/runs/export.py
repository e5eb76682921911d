"""Export of a run's models to safetensors files, which can be read without Coterie, and loading them again.

An export is a folder with ``models.json`` and one file per model: the ``state_dict`` of the
clients' module. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from coterie.core import Assignment, Client, Position, as_groups
from coterie.data.objective import mean_probability
from coterie.files import Folder
from coterie.models.layout import own_layers
from coterie.records.checksum import digest, sealed_json
from coterie.records.codec import from_stored
from coterie.records.shown import Shown, ends
from coterie.records.store import SCHEMA_VERSION
from coterie.records.text_files import to_json
from coterie.runs.exported_net import Net, net_of, next_tasks, of_federation
from coterie.runs.folders import reopen
from coterie.runs.run import Run
from coterie.settings import UserError
from coterie.settings.calls import public


def _personal(run: Run, position: Position, assignment: Assignment) -> bool:
    """Whether clients are served by personal models, which stay with them."""
    return set(assignment.plain) < set(assignment.row) and any(
        task.personal is not None for task in next_tasks(run, position)
    )


MODELS_FILE = "models.json"

SHARED_FILE = "shared.safetensors"
"""File of the tensors that no client trains, such as a frozen backbone, if they are large; all
models share it."""


_PLAIN = Shown()
Key = tuple[int, Client | None]
"""A model that serves clients: its row in the assignment and, if a client keeps own layers, the
client."""


@public
def save(
    run: Folder,
    to: Path | str,
    progress: Callable[[], None] | None = None,
    *,
    trust_code: bool = False,
    secret: int | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write every model that serves a client of a run into a new folder.

    If this fails, no files are left. A model that the server has only in part, or only as a sealed
    row, is written in that form.

    Args:
        run: A run directory, whose newest checkpoint is exported, or a folder of several runs, each
            of which gets a subfolder with its name.
        to: The new folder.
        progress: Called after each run.
        trust_code: Whether a model that a run directory names as ``package.module:Name`` may be
            imported.
        secret: The boundary's secret, if the run had one; None for the environment's
            COTERIE_SECRET.
        warn: Called with a sentence if there are records after the newest checkpoint, or if
            personal models stay at the clients of a federation; issues a warning by default.

    Returns:
        The new folder, as an absolute path.

    Raises:
        UserError: ``to`` is not empty, a run has no checkpoint yet or is damaged, all layers stay
            at the clients, clients are also served by their training examples, or code or a secret
            is needed and was not given.
    """
    to = Path(to).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists and is not an empty folder; choose another")
    runs = reopen(run, trust_code=trust_code, secret=secret)
    # The folders that are made here and are removed after a failure, the innermost first.
    folders_made = [parent for parent in to.parents if not parent.exists()]
    # The export is written under another name and renamed when it is complete.
    part = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        folders_made.insert(0, part)
        for run_saved in runs:
            is_only_run = run_saved.folder == Path(run)
            _save(run_saved, part if is_only_run else part / run_saved.folder.name, warn)
            if progress:
                progress()
        part.rename(to)
    finally:
        if part in folders_made:
            shutil.rmtree(part, ignore_errors=True)
        for parent in folders_made if not to.exists() else ():
            # It was never made, or another process has written into it.
            with contextlib.suppress(OSError):
                parent.rmdir()
    return to


def _save(run: Run, folder: Path, warn: Callable[[str], None]) -> None:
    """Export one run into a new folder."""
    run.experiment.check_secret()
    if not run.record.begun:
        hint = f"it was renamed, or it has not started; to start it, run coterie resume {run.folder.parent}"
        raise UserError(f"{run.folder} has no run: {hint}")
    # Only the newest checkpoint counts: an older one would be exported without notice.
    stored = run.record.stored(Position, fallback=False)
    # Read after the checkpoint: a process records a round before it stores its checkpoint.
    _, lines = run.record.shown()
    if stored is None or not lines:
        how_to_continue = f"run coterie resume {run.folder}"
        if of_federation(run):
            how_to_continue = "start its ServerApp again"
        raise UserError(f"{run.folder} has no completed round yet; to continue, {how_to_continue}")
    round, position = stored
    last_round = lines[-1]["round"]
    if last_round > round:
        warn(
            f"{run.folder} has records up to round {last_round}, but models only of round {round}, its newest checkpoint"
        )
    # Which model serves each client.
    checkpoint_path = run.record.checkpoints.path(round)
    description = run.record.description()
    with from_stored(checkpoint_path):
        assignment: Assignment = run.method.assignment(position.state)
        if assignment.neighbours is not None:
            raise UserError(
                f"{run.method.name} also serves each client by its own training examples, which no model's file can hold; in a "
                "Python program, Round.model(client) makes the net of a client"
            )
        if assignment.hidden:
            assignment = _as_recorded(assignment, run.record.lines()[round - 1], warn)
        numbers = assignment.models.shape[1]
        files, clients = _files(assignment, position, run.record.naming(description))
    # The files, with what the server knows of each model.
    net = net_of(run, position, numbers)
    if run.experiment.engine == "flower" or of_federation(run):
        with from_stored(checkpoint_path):
            if _personal(run, position, assignment):
                warn(
                    f"personal models of {run.folder} stay at its clients; the export has only the models that they share"
                )
    folder.mkdir(exist_ok=True)
    checksums: dict[str, str] = {}
    for model_key, file_name in files.items():
        _write_model(run, position, assignment, model_key, net, folder / file_name, checksums)
    # The list of models comes last: without it, the folder is no export.
    world = description["world"]
    document = {
        "schema": SCHEMA_VERSION,
        "coterie": version("coterie"),
        "method": run.method.name,
        "scenario": run.experiment.scenario,
        "seed": run.seed,
        "round": round,
        "finished": ends(lines[round - 1], run.experiment.rounds, run.experiment.target),
        "model": net.about,
        "data": world.get("about"),
        "target_scale": world.get("target_scale"),
        "sealed": net.sealed,
        "stays": net.stays,
        "ensemble": assignment.ensemble,
        "combine": world.get("combine", mean_probability.__name__),
        "groups": lines[round - 1]["groups"],
        "clients": clients,
        "files": checksums,
    }
    document_lines = [
        f"  {to_json(model_key)}: {to_json(value)}" for model_key, value in document.items()
    ]
    (folder / MODELS_FILE).write_bytes(
        sealed_json(("{\n" + ",\n".join(document_lines) + "\n}").encode()) + b"\n"
    )


def _write_model(
    run: Run,
    position: Position,
    assignment: Assignment,
    key: Key,
    net: Net,
    file: Path,
    checksums: dict[str, str],
) -> None:
    """Write one model, the tensors that all models share once, and add the checksums of what was written."""
    row, client = key
    with from_stored(run.record.checkpoints.path(position.round)):
        # The model of the row, with the layers that the client keeps.
        own_values = None if client is None else position.own(assignment, client)
        tensors = net.tensors(own_layers(assignment.models[row], own_values))
        shared = net.shared(tensors)
        unshared = {
            tensor_name: tensor
            for tensor_name, tensor in tensors.items()
            if tensor_name not in shared
        }
        file_bytes = safetensors.torch.save(unshared)
    if not tensors:
        raise UserError(
            f"{run.method.name} keeps all layers at the clients, and {run.folder} has no model of them"
        )
    file.write_bytes(file_bytes)
    checksums[file.name] = digest(file_bytes)
    # The tensors that all models share are the same in each: the first model writes them.
    if shared and SHARED_FILE not in checksums:
        file_bytes = safetensors.torch.save(shared)
        file.with_name(SHARED_FILE).write_bytes(file_bytes)
        checksums[SHARED_FILE] = digest(file_bytes)


def _as_recorded(
    assignment: Assignment, recorded: Mapping[str, Any], warn: Callable[[str], None]
) -> Assignment:
    """An assignment of which the server does not know who takes which model, as far as the record of the round shows it.

    The record of a federation does not; each client then has all models on its path.
    """
    # In process, the last note with parts says which model each client took.
    notes = [note for note in recorded["notes"] if note["parts"] and "model" in note["values"]]
    if notes:
        model_of_client = {
            int(client): int(model) for client, model in notes[-1]["values"]["model"].items()
        }
        return replace(assignment, row=model_of_client, groups=as_groups(notes[-1]["parts"]))
    num_models = len(assignment.models)
    warn(
        f"the server does not know which of the {num_models} models serves a client: "
        "the entry of each has all of them as its path, and a client takes the one of lowest loss "
        "on its own training data"
    )
    return replace(assignment, path=dict.fromkeys(assignment.row, tuple(range(num_models))))


def _files(
    assignment: Assignment, position: Position, names: Shown = _PLAIN
) -> tuple[dict[Key, str], dict[str, dict[str, Any]]]:
    """(model -> file, client -> its entry). Each model has one file, named by a group, a client or its number in a path.

    A file has a group's name only if its model serves the whole group. A client that keeps layers
    has a separate model. The models of its path have these layers too, unless it keeps all: its
    path then has the models that it shares with others.
    """
    # The model of each client; one that keeps layers has a separate one.
    key_of_client: dict[Client, Key] = {}
    for client, row in sorted(assignment.row.items()):
        has_own = position.own(assignment, client) is not None
        key_of_client[client] = (row, client if has_own else None)
    # A group's name for a model that serves the whole group, else the name of its first client.
    files: dict[Key, str] = {}
    for number, group in enumerate(assignment.groups):
        models_of_group = {key_of_client[client] for client in group}
        if len(models_of_group) == 1:
            model_key = models_of_group.pop()
            if model_key[1] is None:
                files.setdefault(model_key, f"group-{number}.safetensors")
    for client, model_key in key_of_client.items():
        files.setdefault(model_key, f"client-{client}.safetensors")
    # The models on paths through a tree that serve no client as they are.
    paths: dict[Client, list[Key]] = {}
    path_number = 0
    for client, path_rows in sorted(assignment.path.items()):
        own_values = position.own(assignment, client)
        shares_path = not assignment.ensemble and _keeps_all(own_values)
        kept_by = None if shares_path else key_of_client[client][1]
        paths[client] = [(row, kept_by) for row in path_rows]
        for model_key in paths[client]:
            if model_key not in files:
                files[model_key] = f"path-{path_number}.safetensors"
                path_number += 1
    # The entry of each client: its group, its file, and the files on its path.
    group_of_client: dict[Client, int] = {}
    for number, group in enumerate(assignment.groups):
        group_of_client |= dict.fromkeys(group, number)
    entries: dict[str, dict[str, Any]] = {}
    for client, model_key in key_of_client.items():
        entry: dict[str, Any] = {"group": group_of_client.get(client), "file": files[model_key]}
        if client in paths:
            entry["path"] = [files[path_key] for path_key in paths[client]]
        entries[str(names.client(client))] = entry
    return files, entries


def _keeps_all(own_values: torch.Tensor | None) -> bool:
    """Whether a client's own values are a whole model."""
    return own_values is not None and not bool(own_values.isnan().any())
