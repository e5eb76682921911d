"""Export of a run's models to safetensors files, which can be read without Coterie, and loading them again.

An export is a folder with ``models.json`` and one file per model: the ``state_dict`` of the
clients' module. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from coterie.core import Assignment, Client, Position, as_groups
from coterie.data.objective import mean_probability
from coterie.files import Folder
from coterie.methods._named import method_table
from coterie.models.layout import own_layers
from coterie.notebook.tables import count, some
from coterie.records.checksum import digest, sealed_json
from coterie.records.codec import from_stored
from coterie.records.ending import Ending, best_round_of
from coterie.records.shown import Shown
from coterie.records.store import SCHEMA_VERSION
from coterie.records.text_files import to_json
from coterie.runs.exported_net import Net, net_of, next_tasks, of_federation
from coterie.runs.folders import reopen
from coterie.runs.model_cards import model_card, scores
from coterie.runs.reported_facts import reported_facts
from coterie.runs.run import Run
from coterie.runs.served_facts import GroupNet, ServedFacts, served_facts
from coterie.settings import UserError, in_shell, known_list, nearest
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


PLACEMENT_FILE = "placement.safetensors"
"""File of the means and variances by which a new site is placed."""

_WITHOUT_NAMES = Shown()
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
    default: str = "",
    read_data: bool = True,
    best_round: bool = False,
) -> Path:
    """Write every model that serves a client of a run into a new folder.

    Where the clients' data are on this machine, they are read: for the calibration of the models,
    the sizes in their cards, and what :func:`coterie.place` needs. Of the data, the export has
    means and variances over the rows of each group, and principal components.

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
        default: The model for sites that are not known: ``"group-1"``, or a client's name. Empty
            for that of the group with the most clients.
        read_data: Whether the clients' data may be read.
        best_round: Whether to export the models after the round with the best validation score, in
            place of the newest checkpoint. A run with ``stop_after`` keeps them.

    Returns:
        The new folder, as an absolute path.

    Raises:
        UserError: ``to`` is not empty, a run has no checkpoint yet or is damaged, the record has not
            kept the best round, all layers stay at the clients, clients are also served by their
            training examples, or code or a secret is needed and was not given.
    """
    to = Path(to).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists and is not an empty folder; choose another")
    exported_runs = reopen(run, trust_code=trust_code, secret=secret)
    # The folders that are made here and are removed after a failure, the innermost first.
    folders_made = [parent_folder for parent_folder in to.parents if not parent_folder.exists()]
    # The export is written under another name and renamed when it is complete.
    partial_folder = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        partial_folder.mkdir()
        folders_made.insert(0, partial_folder)
        for exported_run in exported_runs:
            is_only_run = exported_run.folder == Path(run)
            _save(
                exported_run,
                partial_folder if is_only_run else partial_folder / exported_run.folder.name,
                warn,
                default,
                read_data,
                best_round,
            )
            if progress:
                progress()
        partial_folder.rename(to)
    finally:
        if partial_folder in folders_made:
            shutil.rmtree(partial_folder, ignore_errors=True)
        for parent_folder in folders_made if not to.exists() else ():
            # It was never made, or another process has written into it.
            with contextlib.suppress(OSError):
                parent_folder.rmdir()
    return to


def _save(
    run: Run,
    folder: Path,
    warn: Callable[[str], None],
    default: str,
    read_data: bool,
    best_round: bool,
) -> None:
    """Export one run into a new folder."""
    run.experiment.check_secret()
    if not run.record.begun:
        start_hint = f"it was renamed, or it has not started; to start it, run coterie resume {in_shell(run.folder.parent)}"
        raise UserError(f"{run.folder} has no run: {start_hint}")
    # Only the newest checkpoint counts: an older one would be exported without notice.
    chosen_round = _best_round(run) if best_round else None
    checkpoint = run.record.stored(Position, fallback=False, round_number=chosen_round)
    # Read after the checkpoint: a process records a round before it stores its checkpoint.
    _, shown_lines = run.record.shown()
    if checkpoint is None or not shown_lines:
        how_to_continue = f"run coterie resume {in_shell(run.folder)}"
        if of_federation(run):
            how_to_continue = "start its ServerApp again"
        raise UserError(f"{run.folder} has no completed round yet; to continue, {how_to_continue}")
    checkpoint_round, position = checkpoint
    last_round = shown_lines[-1]["round"]
    if last_round > checkpoint_round and not best_round:
        warn(
            f"{run.folder} has records up to round {last_round}, but models only of round "
            f"{checkpoint_round}, its newest checkpoint"
        )
    # Which model serves each client.
    checkpoint_path = run.record.checkpoints.path(checkpoint_round)
    description = run.record.description()
    with from_stored(checkpoint_path):
        assignment: Assignment = run.method.assignment(position.state)
        if assignment.neighbours is not None and assignment.by_neighbours is None:
            raise UserError(
                f"{run.method.name} also serves each client by its own training examples, which no model's file can hold; in a "
                "Python program, Round.model(client) makes the net of a client"
            )
        served_with_neighbours = assignment.by_neighbours or ()
        if assignment.neighbours is not None and served_with_neighbours:
            warn(
                f"for {count(len(served_with_neighbours), 'client')}, predictions also use own nearest training examples, "
                "which no model's file can hold: the export has the models alone "
                f"({run.method.name}.neighbours = 0 trains for that)"
            )
        if assignment.hidden:
            assignment = _as_recorded(assignment, run.record.lines()[checkpoint_round - 1], warn)
        numbers_per_row = assignment.models.shape[1]
        naming = run.record.naming(description)
        file_of_model, client_entries = _files(assignment, position, naming)
    # The files, with what the server knows of each model.
    net = net_of(run, position, numbers_per_row)
    with from_stored(checkpoint_path):
        group_nets = _group_nets(assignment, position, file_of_model, bool(net.local_layers))
    shown_groups = shown_lines[checkpoint_round - 1]["groups"]
    # A record may list some of the clients alone.
    if "sizes" in shown_lines[checkpoint_round - 1]:
        shown_groups = list(map(naming.clients, assignment.groups))
    # A record may know groups of which the server does not: those of clients that choose in secret.
    if len(group_nets) != len(shown_groups):
        group_nets = [None] * len(shown_groups)
    default_entry = _default(default, group_nets, client_entries, assignment, run.folder)
    if run.experiment.engine == "flower" or of_federation(run):
        with from_stored(checkpoint_path):
            if _personal(run, position, assignment):
                warn(
                    f"personal models of {run.folder} stay at its clients; the export has only the models that they share"
                )
    folder.mkdir(exist_ok=True)
    checksum_of_file: dict[str, str] = {}
    for model_key, file_name in file_of_model.items():
        _write_model(
            run, position, assignment, model_key, net, folder / file_name, checksum_of_file
        )
    # What the clients' data say about the models.
    facts = ServedFacts(why_none="the export was made without the clients' data")
    files_of_client = {}
    for client in assignment.row:
        client_entry = client_entries[str(naming.client(client))]
        files_of_client[client] = files_of_entry(client_entry, assignment.ensemble)
    if of_federation(run):
        facts = reported_facts(run.folder, checkpoint_round, files_of_client)
    elif read_data:
        facts = served_facts(run, position, assignment, files_of_client, group_nets)
    if facts.tensors:
        file_bytes = safetensors.torch.save(dict(facts.tensors))
        (folder / PLACEMENT_FILE).write_bytes(file_bytes)
        checksum_of_file[PLACEMENT_FILE] = digest(file_bytes)
    rows_of_name = {str(naming.client(client)): rows for client, rows in facts.rows.items()}
    tested_lines = [line for line in shown_lines[:checkpoint_round] if line["tested"]]
    # The list of models comes last: without it, the folder is no export.
    world_table = description["world"]
    document: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "coterie": version("coterie"),
        "torch": torch.__version__,
        "method": run.method.name,
        "scenario": run.experiment.scenario,
        "seed": run.seed,
        "round": checkpoint_round,
        "finished": Ending.of(
            description, shown_lines if best_round else shown_lines[:checkpoint_round]
        ).ended,
        "model": net.about,
        "data": world_table.get("about"),
        "target_scale": world_table.get("target_scale"),
        "sealed": net.sealed,
        "stays": net.local_layers,
        "ensemble": assignment.ensemble,
        "combine": world_table.get("combine", mean_probability.__name__),
        "groups": shown_groups,
        "group_models": [
            None if group_net is None else {"files": list(group_net.files)}
            for group_net in group_nets
        ],
        "default": default_entry,
        "clients": client_entries,
        "outputs": facts.kind,
        "scores": scores(tested_lines[-1] if tested_lines else None, shown_groups, rows_of_name),
        "calibration": facts.calibration,
        "placement": facts.placement,
        "without_data": facts.why_none,
        "files": checksum_of_file,
        "cards": {},
    }
    # A card for each group, from the same entries.
    settings = method_table(run.method)
    training = asdict(run.experiment.training)
    for group_number in range(len(shown_groups)):
        card = model_card(document, group_number, settings, training, rows_of_name).encode()
        card_name = f"card-{group_number}.md"
        (folder / card_name).write_bytes(card)
        document["cards"][card_name] = digest(card)
    # One entry a line, so that people can read it.
    entry_lines = []
    for entry_name, value in document.items():
        entry_lines.append(f"  {to_json(entry_name)}: {to_json(value)}")
    document_text = "{\n" + ",\n".join(entry_lines) + "\n}"
    (folder / MODELS_FILE).write_bytes(sealed_json(document_text.encode()) + b"\n")


def _best_round(run: Run) -> int:
    """The round of a run with the best validation score, whose checkpoint the record must have."""
    description, shown_lines = run.record.shown()
    best = best_round_of(run.folder, description, shown_lines)
    kept_rounds = run.record.checkpoints.rounds()
    if best not in kept_rounds:
        raise UserError(
            f"{run.folder} has its best validation score after round {best}, and models only of "
            f"round {some(kept_rounds)}: a run with --stop-after keeps those of its best round"
        )
    return best


def _write_model(
    run: Run,
    position: Position,
    assignment: Assignment,
    model_key: Key,
    net: Net,
    file_path: Path,
    checksum_of_file: dict[str, str],
) -> None:
    """Write one model, the tensors that all models share once, and add the checksums of what was written."""
    model_row, client = model_key
    with from_stored(run.record.checkpoints.path(position.round)):
        # The model of the row, with the layers that the client keeps.
        own_values = None if client is None else position.own(assignment, client)
        tensors = net.tensors(own_layers(assignment.models[model_row], own_values))
        shared_tensors = net.shared(tensors)
        unshared_tensors = dict(tensors)
        for tensor_name in shared_tensors:
            del unshared_tensors[tensor_name]
        file_bytes = safetensors.torch.save(unshared_tensors)
    if not tensors:
        raise UserError(
            f"{run.method.name} keeps all layers at the clients, and {run.folder} has no model of them"
        )
    file_path.write_bytes(file_bytes)
    checksum_of_file[file_path.name] = digest(file_bytes)
    # The tensors that all models share are the same in each: the first model writes them.
    if shared_tensors and SHARED_FILE not in checksum_of_file:
        file_bytes = safetensors.torch.save(shared_tensors)
        file_path.with_name(SHARED_FILE).write_bytes(file_bytes)
        checksum_of_file[SHARED_FILE] = digest(file_bytes)


def files_of_entry(entry: Mapping[str, Any], ensemble: bool) -> tuple[str, ...]:
    """The files of the net that serves a client, from its entry: one, or for an ensemble all on its path."""
    return tuple(entry["path"]) if ensemble and "path" in entry else (entry["file"],)


def _group_nets(
    assignment: Assignment,
    position: Position,
    file_of_model: dict[Key, str],
    layers_are_local: bool,
) -> list[GroupNet | None]:
    """The net of each group, which a new site of the group would get; None if the group has none as a whole.

    Where each client of a group has a personal model, or some have, the group's net is the model
    that they share, and gets a file of its own.
    """
    group_nets: list[GroupNet | None] = []
    # Without the clients' layers, or without knowledge of who has which model, there is none.
    is_not_known = assignment.hidden and bool(assignment.path)
    for group_number, group in enumerate(assignment.groups):
        nets_of_group: set[tuple[tuple[int, ...], Client | None]] = set()
        are_whole_models = True
        for client in group:
            own_values = position.own(assignment, client)
            are_whole_models &= own_values is None or _keeps_all(own_values)
            own_client = None if own_values is None else client
            nets_of_group.add((tuple(assignment.serving(client)), own_client))
        shared_rows = {rows for rows, _ in nets_of_group}
        group_net = None
        if layers_are_local or is_not_known or len(shared_rows) != 1:
            pass
        elif len(nets_of_group) == 1:
            group_net = nets_of_group.pop()
        elif are_whole_models and not assignment.ensemble:
            group_net = (shared_rows.pop(), None)
        if group_net is None:
            group_nets.append(None)
            continue
        rows, own_client = group_net
        files = []
        for row in rows:
            default_name = f"group-{group_number}.safetensors"
            files.append(file_of_model.setdefault((row, own_client), default_name))
        group_nets.append(GroupNet(rows, own_client, tuple(files)))
    return group_nets


def _default(
    name: str,
    group_nets: Sequence[GroupNet | None],
    client_entries: Mapping[str, Mapping[str, Any]],
    assignment: Assignment,
    folder: Path,
) -> dict[str, Any] | None:
    """The entry of the model for sites that are not known; None if no group has a model as a whole."""
    group_names = {}
    for group_number, group_net in enumerate(group_nets):
        if group_net is not None:
            group_names[f"group-{group_number}"] = group_number
    if name in client_entries:
        client_entry = client_entries[name]
        files = files_of_entry(client_entry, assignment.ensemble)
        return {"name": name, "group": client_entry["group"], "files": list(files)}
    if name and name not in group_names:
        known_names = [*group_names, *client_entries]
        raise UserError(
            f"default must be a group's model or a client of {folder}, got {name!r}"
            f"{nearest(name, known_names)}{known_list(known_names)}"
        )
    if not group_names:
        return None
    # Of groups of one size the first.
    if not name:
        name = max(
            group_names, key=lambda group_name: len(assignment.groups[group_names[group_name]])
        )
    group_number = group_names[name]
    group_net = group_nets[group_number]
    assert group_net is not None
    return {"name": name, "group": group_number, "files": list(group_net.files)}


def _as_recorded(
    assignment: Assignment, recorded_line: Mapping[str, Any], warn: Callable[[str], None]
) -> Assignment:
    """An assignment of which the server does not know who takes which model, as far as the record of the round shows it.

    The record of a federation does not; each client then has all models on its path.
    """
    # In process, the last note with parts says which model each client took.
    choice_notes = [
        recorded_note
        for recorded_note in recorded_line["notes"]
        if recorded_note["parts"] and "model" in recorded_note["values"]
    ]
    if choice_notes:
        model_of_client = {}
        for client_key, model_number in choice_notes[-1]["values"]["model"].items():
            model_of_client[int(client_key)] = int(model_number)
        return replace(assignment, row=model_of_client, groups=as_groups(choice_notes[-1]["parts"]))
    num_models = len(assignment.models)
    warn(
        f"the server does not know which of the {num_models} models serves a client: "
        "the entry of each has all of them as its path, and a client takes the one of lowest loss "
        "on its own training data"
    )
    return replace(assignment, path=dict.fromkeys(assignment.row, tuple(range(num_models))))


def _files(
    assignment: Assignment, position: Position, naming: Shown = _WITHOUT_NAMES
) -> tuple[dict[Key, str], dict[str, dict[str, Any]]]:
    """(model -> file, client -> its entry). Each model has one file, named by a group, a client or its number in a path.

    A file has a group's name only if its model serves the whole group. A client that keeps layers
    has a separate model. The models of its path have these layers too, unless it keeps all: its
    path then has the models that it shares with others.
    """
    # The model of each client; one that keeps layers has a separate one.
    key_of_client: dict[Client, Key] = {}
    for client, model_row in sorted(assignment.row.items()):
        has_own_layers = position.own(assignment, client) is not None
        key_of_client[client] = (model_row, client if has_own_layers else None)
    # A group's name for a model that serves the whole group, else the name of its first client.
    file_of_model: dict[Key, str] = {}
    for group_number, group in enumerate(assignment.groups):
        models_of_group = {key_of_client[client] for client in group}
        if len(models_of_group) == 1:
            model_key = models_of_group.pop()
            if model_key[1] is None:
                file_of_model.setdefault(model_key, f"group-{group_number}.safetensors")
    for client, model_key in key_of_client.items():
        file_of_model.setdefault(model_key, f"client-{client}.safetensors")
    # The models on paths through a tree that serve no client as they are.
    models_on_path: dict[Client, list[Key]] = {}
    path_number = 0
    for client, path_rows in sorted(assignment.path.items()):
        own_values = position.own(assignment, client)
        shares_path = not assignment.ensemble and _keeps_all(own_values)
        keeping_client = None if shares_path else key_of_client[client][1]
        models_on_path[client] = [(model_row, keeping_client) for model_row in path_rows]
        for model_key in models_on_path[client]:
            if model_key not in file_of_model:
                file_of_model[model_key] = f"path-{path_number}.safetensors"
                path_number += 1
    # The entry of each client: its group, its file, and the files on its path.
    group_of_client: dict[Client, int] = {}
    for group_number, group in enumerate(assignment.groups):
        group_of_client |= dict.fromkeys(group, group_number)
    client_entries: dict[str, dict[str, Any]] = {}
    for client, model_key in key_of_client.items():
        client_entry: dict[str, Any] = {
            "group": group_of_client.get(client),
            "file": file_of_model[model_key],
        }
        if client in models_on_path:
            client_entry["path"] = [file_of_model[path_key] for path_key in models_on_path[client]]
        client_entries[str(naming.client(client))] = client_entry
    return file_of_model, client_entries


def _keeps_all(own_values: torch.Tensor | None) -> bool:
    """Whether a client's own values are a whole model."""
    return own_values is not None and not bool(own_values.isnan().any())
