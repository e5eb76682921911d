"""Export of a run's models to safetensors files, which can be read without Coterie, and loading them again.

An export is a folder with ``models.json`` and one file per model: the ``state_dict`` of the
clients' module. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Assignment, Client, Cohort, Position, Task, as_groups, serving_tasks
from coterie.data.objective import COMBINED, mean_probability
from coterie.data.scenario import OwnWorld
from coterie.data.target_scale import of_record, predicting, sound
from coterie.engines.served import Ensemble
from coterie.files import Folder, read_within
from coterie.models import nets
from coterie.models import nets as models
from coterie.models.layout import Layout, averaging, own_layers
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.checksum import digest, sealed_json
from coterie.records.codec import DamagedError, from_stored
from coterie.records.record import RUN, to_json
from coterie.records.shown import Shown, ends
from coterie.records.store import SCHEMA, check_schema
from coterie.runs.run import Run, reopen
from coterie.settings import UserError
from coterie.settings.calls import public

# ----------------------------------------------------------------------------------------------------
# The net of a run: from a row of the server's model matrix to the tensors of a file.


MAX_INPUT_NUMBERS = 2**28
"""Most numbers in an input, and most classes. A net for more would not fit into memory."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Net:
    """A run's net.

    Attributes:
        about: Its name, input shape and number of classes; None for a net that Coterie has no name
            for.
        sealed: The map of the models, if only the clients know its secret.
        stays: Layers that stay at the clients. The server does not have them.
        layers: All layers that are trained.
        untrained: Names of tensors that are not part of a row: frozen parameters and integer
            buffers.
        named: Function from a row ``(d,)`` to all tensors by name, as copies.
    """

    about: Mapping[str, Any] | None
    sealed: Mapping[str, Any] | None
    stays: tuple[str, ...]
    layers: tuple[str, ...]
    untrained: tuple[str, ...]
    named: Callable[[Tensor], Tensors]

    def tensors(self, row: Tensor) -> Tensors:
        """The tensors that go into the file of a model ``row`` ``(d,)``; empty if all layers stay at the clients."""
        if set(self.stays) == set(self.layers):
            return {}
        return {
            tensor_name: tensor
            for tensor_name, tensor in self.named(row).items()
            if tensor_name.rpartition(".")[0] not in self.stays
        }

    def shared(self, tensors: Tensors) -> Tensors:
        """Those of a model's tensors that all models share and that are large, so that a file of their own has them."""
        untrained_tensors = {
            tensor_name: tensors[tensor_name]
            for tensor_name in self.untrained
            if tensor_name in tensors
        }
        return (
            untrained_tensors
            if sum(tensor.nbytes for tensor in untrained_tensors.values()) > MAX_COPIED_BYTES
            else {}
        )


def net_of(run: Run, position: Position, numbers: int) -> Net:
    """The net of a run at a position.

    Args:
        run: The run.
        position: The position of the run, from a checkpoint.
        numbers: Numbers in a row of its models.

    Returns:
        The net.

    Raises:
        UserError: The net is no longer known, or cannot be made.
    """
    world = run.record.description()["world"]
    boundary = run.experiment.boundary
    elsewhere = of_federation(run)
    # The server of a federation does not know the secret of its clients' map.
    sealed = None
    if elsewhere and boundary.rotation != "none":
        sealed = {"rotation": boundary.rotation, "block": boundary.block}
    stays = _stays(run, position) if elsewhere or run.experiment.engine == "flower" else ()
    # The net by its name, by the user's world, or by the description of a federation's server.
    about = world.get("model")
    if about is not None:
        run.experiment.check_consent(str(about.get("name")))
        module = fresh(about, run.folder / RUN, numbers)
    elif isinstance(run.experiment.setup, OwnWorld):
        with seeded(0):
            module = run.experiment.world(run.seed).model()
    else:
        return Net(None, sealed, stays, *_described(run, whole=sealed is not None))
    layout = Layout(module)
    opened = None if sealed else plain_rows(run, layout)

    def named(row: Tensor) -> Tensors:
        layout.load(module, row if opened is None else opened(row))
        # Copies: safetensors does not accept two names for the same memory, which tied layers have.
        return {
            tensor_name: tensor.detach().clone().contiguous()
            for tensor_name, tensor in module.state_dict().items()
        }

    # Which tensors no client trains, such as those of a frozen backbone.
    trained_names = {piece.name for piece in layout.pieces}
    # The parameters themselves: tied ones are the same object.
    all_tensors = module.state_dict(keep_vars=True)
    trained = {id(all_tensors[tensor_name]) for tensor_name in trained_names}
    untrained = tuple(
        tensor_name for tensor_name, value in all_tensors.items() if id(value) not in trained
    )
    return Net(about, sealed, stays, tuple(layout.columns), untrained, named)


def of_federation(run: Run) -> bool:
    """Whether the clients were nodes of a federation, whose data were never on this machine."""
    return "data" not in run.record.description()["world"]


def plain_rows(run: Run, layout: Layout) -> Callable[[Tensor], Tensor]:
    """The function from the server's row ``(d,)`` to the clients' row.

    This is the only place in this module where the boundary's map is inverted.

    Args:
        run: The run.
        layout: The layout of its net.

    Returns:
        The function.
    """
    return Wire(run.experiment.boundary, layout, run.seed).open


def fresh(about: Mapping[str, Any], file: Path, numbers: int) -> nn.Module:
    """A new net from its name, input shape and number of classes.

    Tensors that no file holds have the values that they have in engines.

    Args:
        about: The name, shape and classes.
        file: The file in which they stand, for error messages.
        numbers: The numbers that are available for the net. A larger net is refused before memory
            is allocated.

    Returns:
        The net.

    Raises:
        UserError: No net can be made from the description.
    """
    try:
        # The description is not trusted: its sizes are bounded before anything is made.
        shape = tuple(int(size) for size in about["shape"])
        classes = int(about["classes"])
        sizes = math.prod(shape) if shape and min(shape) > 0 else 0
        if not 0 < sizes <= MAX_INPUT_NUMBERS or not 0 < classes <= MAX_INPUT_NUMBERS:
            raise ValueError(f"inputs of shape {list(shape)} and {classes} classes")
        # Counted without memory: a description may ask for any size.
        if str(about["name"]) in nets.MODELS:
            with torch.device("meta"):
                needed = sum(
                    parameter.numel()
                    for parameter in nets.make(str(about["name"]), shape, classes).parameters()
                )
            if needed > numbers:
                raise ValueError(f"a net of {needed:,} numbers, but its models have {numbers:,}")
        buffers = [str(buffer_name) for buffer_name in about.get("buffers", ["*"])]
        with seeded(0):
            return averaging(partial(nets.make, str(about["name"]), shape, classes), buffers)()
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"the net that {file} describes cannot be made: {error}") from error


def _stays(run: Run, position: Position) -> tuple[str, ...]:
    """The layers that stay at the clients, in the next tasks of the method that serves them."""
    with from_stored(run.record.checkpoints.path(position.round)):
        local_layers: set[str] = set()
        for task in _tasks(run, position):
            local_layers.update(task.local_layers)
        return tuple(sorted(local_layers))


def _personal(run: Run, position: Position, assignment: Assignment) -> bool:
    """Whether clients are served by personal models, which stay with them."""
    return set(assignment.plain) < set(assignment.row) and any(
        task.personal is not None for task in _tasks(run, position)
    )


def _tasks(run: Run, position: Position) -> tuple[Task, ...]:
    """The next tasks of the method that serves the clients."""
    cohort = Cohort(present=position.members, exchange=position.exchange, seed=run.seed)
    return serving_tasks(run.method, position.state, cohort)


def _described(
    run: Run, whole: bool
) -> tuple[tuple[str, ...], tuple[str, ...], Callable[[Tensor], Tensors]]:
    """The fields ``layers``, ``untrained`` and ``named`` of a federation's net, from its server's description.

    ``tensors``: in the order of a row. ``trainable``: how many of them are trainable. ``tied``: the
    further names of tensors that have several. ``others``: the file of the tensors that have no
    place in a row. With ``whole``, all tensors stay float32, so that a row keeps all its digits.
    """
    try:
        net = run.record.description()["world"]["net"]
        # The tensors of a row, and the layers of the trainable ones, each once and in order.
        pieces = [
            (tensor_entry["name"], tuple(tensor_entry["shape"]), _dtype(tensor_entry["dtype"]))
            for tensor_entry in net["tensors"]
        ]
        layers = tuple(
            {
                tensor_name.rpartition(".")[0]: None
                for tensor_name, _, _ in pieces[: net["trainable"]]
            }
        )
        tied_names = dict(net.get("tied", {}))
        other_tensors = {}
        if "others" in net:
            tensor_name = Path(net["others"]).name
            file_bytes = read_within(run.folder, tensor_name)
            checksum.check(file_bytes, run.folder / tensor_name, net.get("others_checksum"))
            other_tensors = safetensors.torch.load(file_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise DamagedError(
            f"{run.folder} has no valid list of its net's tensors ({error}); it is damaged"
        ) from error

    def named(row: Tensor) -> Tensors:
        tensors = dict(other_tensors)
        start = 0
        for tensor_name, shape, dtype in pieces:
            # Each tensor begins in the row where the one before ends.
            stop = start + math.prod(shape)
            tensors[tensor_name] = (
                row[start:stop].reshape(shape).to(torch.float32 if whole else dtype, copy=True)
            )
            start = stop
        return {
            **tensors,
            **{tensor_name: tensors[source].clone() for tensor_name, source in tied_names.items()},
        }

    return layers, tuple(other_tensors), named


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a numeric type")
    return dtype


# ----------------------------------------------------------------------------------------------------
# Saving: the models of a run in a folder, as ``models.json`` and one file per model.


MODELS = "models.json"

SHARED_FILE = "shared.safetensors"
"""File of the tensors that no client trains, such as a frozen backbone, if they are large; all
models share it."""

MAX_COPIED_BYTES = 2**20
"""Bytes of such tensors up to which each model's file has them, so that it is complete."""

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
            assignment = _taken(assignment, run.record.lines()[round - 1], warn)
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
        "schema": SCHEMA,
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
    (folder / MODELS).write_bytes(
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


def _taken(
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


# ----------------------------------------------------------------------------------------------------
# Loading: nets from the models that :mod:`coterie.runs.export` has written.


@public
def load(
    folder: Path | str,
    client: Client | str,
    *,
    model: Callable[[], nn.Module] | None = None,
    secret: int | None = None,
    trust_code: bool = False,
) -> nn.Module:
    """Load the net that serves a client, as :func:`coterie.save` has written it.

    If the method serves clients by ensembles, the net is the ensemble of the models on the client's
    path.

    Args:
        folder: The export. It may come from another person: no code that it names is imported.
        client: The client's name, or its number if clients have no names.
        model: Makes the net, if Coterie has no name for it (as in a federation), or if the name
            stands for code.
        secret: The clients' secret, if the models are sealed by a boundary's rotation.
        trust_code: Whether a model that the folder names as ``package.module:Name`` may be
            imported.

    Returns:
        The net, in evaluation mode.

    Raises:
        UserError: The client has no model in the folder, or the files have been changed or damaged.
    """
    folder = Path(folder)
    document = read_document(folder)
    entry = document["clients"].get(str(client))
    if entry is None:
        raise UserError(
            f"{folder} has no model for client {client!r}; it has models for {', '.join(document['clients'])}"
        )
    # One file, or for an ensemble all on the client's path.
    files = _listed_files(folder, document, entry)
    if document["stays"]:
        raise UserError(
            f"client {client} keeps {', '.join(document['stays'])} of its model, and {folder} has only the rest; "
            f"load it from {files[-1]} by the net's load_state_dict with strict=False"
        )
    _check_secret(folder, document["sealed"], secret)
    # The tensors of each file, and those that all models share.
    loaded_nets = []
    shared = read_model(folder, SHARED_FILE, document) if SHARED_FILE in document["files"] else {}
    for file_name in files:
        tensors = {**shared, **read_model(folder, file_name, document)}
        numbers = sum(tensor.numel() for tensor in tensors.values())
        net, called = _made(folder, document["model"], model, trust_code, numbers)
        loaded_nets.append(
            _filled(net, called, folder / file_name, tensors, document["sealed"], secret)
        )
    # An ensemble combines the outputs of all nets, as the engines do.
    served = (
        loaded_nets[0]
        if len(loaded_nets) == 1
        else Ensemble(loaded_nets, COMBINED[document["combine"]])
    )
    return predicting(served, of_record(document["target_scale"])).eval()


def read_document(folder: Path) -> dict[str, Any]:
    """Read the ``models.json`` of an export.

    Args:
        folder: The export.

    Returns:
        The entries that loading needs.

    Raises:
        UserError: There is no such file, or it has been changed or damaged.
    """
    document_path = folder / MODELS
    if not document_path.is_file():
        inside = sorted(entries.parent.name for entries in folder.glob(f"*/{MODELS}"))
        runs_hint = f"; it has models of several runs: {', '.join(inside)}" if inside else ""
        raise UserError(f"{folder} holds no exported models: it has no {MODELS}{runs_hint}")
    try:
        # The checksum first, then the types of the entries, then their values.
        document_bytes = read_within(folder, MODELS)
        document: dict[str, Any] = json.loads(document_bytes)
        check_schema(document["schema"], document_path)
        checksum.check_json(document_bytes, document_path)
        entries = {entry_name: document[entry_name] for entry_name in _ENTRY_TYPES}
        for entry_name, kinds in _ENTRY_TYPES.items():
            if not isinstance(entries[entry_name], kinds):
                raise TypeError(f"{entry_name!r} has the wrong type")
        entries["combine"] = document.get("combine", mean_probability.__name__)
        entries["target_scale"] = document.get("target_scale")
        if entries["target_scale"] is not None and not sound(entries["target_scale"]):
            raise ValueError("'target_scale' has no means and deviations")
        if entries["ensemble"] and entries["combine"] not in COMBINED:
            raise UserError(
                f"{document_path} combines an ensemble's outputs by code of its own; load its files one by one"
            )
        if entries["sealed"] is not None:
            Boundary(rotation=entries["sealed"]["rotation"], block=entries["sealed"]["block"])
        return entries
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{document_path} is damaged ({error})") from error


_ENTRY_TYPES: dict[str, Any] = {
    "model": (dict, type(None)),
    "ensemble": bool,
    "clients": dict,
    "sealed": (dict, type(None)),
    "stays": list,
    "files": dict,
}
"""Entry of ``models.json`` that loading needs -> its type."""


def _listed_files(folder: Path, document: dict[str, Any], entry: Any) -> list[str]:
    """The files of a client's models."""
    try:
        files = entry.get("path", [entry["file"]]) if document["ensemble"] else [entry["file"]]
        # A file name with a folder could lead out of the export.
        if not files or any(Path(file_name).name != file_name for file_name in files):
            raise ValueError("a model's file is outside of the folder")
        if len(set(files)) < len(files):
            raise ValueError("a client's path names a file twice")
        return list(files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{folder / MODELS} is damaged ({error})") from error


def read_model(folder: Path, name: str, document: dict[str, Any]) -> dict[str, Tensor]:
    """Read the tensors of one file of an export.

    Args:
        folder: The export.
        name: The name of the file.
        document: The entries of ``models.json``, which hold the checksums.

    Returns:
        The tensors by name.

    Raises:
        UserError: The file cannot be read, or has been changed or damaged.
    """
    try:
        file_bytes = read_within(folder, name)
        checksum.check(file_bytes, folder / name, document["files"].get(name))
        return safetensors.torch.load(file_bytes)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DamagedError(f"{folder / name} cannot be read: {error}") from error


def _check_secret(folder: Path, sealed: Any, secret: int | None) -> None:
    """Check that sealed models come with a secret."""
    if sealed is not None and secret is None:
        raise UserError(
            f"{folder} has models that are sealed by rotation {sealed['rotation']}; open them with the clients' "
            "secret: coterie.load(..., secret=SECRET)"
        )


def _made(
    folder: Path, about: Any, model: Callable[[], nn.Module] | None, trust_code: bool, numbers: int
) -> tuple[nn.Module, str]:
    """A new net, for ``numbers`` numbers, and its name."""
    if model is None:
        if about is None:
            raise UserError(
                f"{folder} has models of a custom net; pass its class or a function that makes it: coterie.load(..., model=Net)"
            )
        if not trust_code:
            models.check_consent(str(about.get("name")), str(folder / MODELS))
        return fresh(about, folder / MODELS, numbers), str(about.get("name"))
    # A net in place of a function is a likely mistake, with its own message.
    if isinstance(model, nn.Module):
        raise UserError(
            "model must be a class or function that makes the net, got a net; leave out the parentheses"
        )
    with seeded(0):
        net = model()
    if not isinstance(net, nn.Module):
        raise UserError(f"model must make an nn.Module, but makes {type(net).__name__}")
    return net, type(net).__name__


def _filled(
    net: nn.Module,
    called: str,
    path: Path,
    tensors: dict[str, Tensor],
    sealed: Any,
    secret: int | None,
) -> nn.Module:
    """``net`` with the tensors of a file, unsealed if they are sealed."""
    try:
        net.load_state_dict(tensors)
        if sealed is not None:
            # A sealed row becomes the clients' row before it is loaded.
            layout = Layout(net)
            boundary = Boundary(rotation=sealed["rotation"], block=sealed["block"], secret=secret)
            layout.load(net, Wire(boundary, layout, seed=0).open(layout.row(tensors)))
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{path} cannot be loaded into {called}: {error}") from error
    return net
