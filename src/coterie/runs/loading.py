"""Nets from the models that :mod:`coterie.runs.export` has written. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Client
from coterie.data.objective import COMBINED, mean_probability
from coterie.data.target_scale import of_record, predicting, sound
from coterie.engines.served import Ensemble
from coterie.extensions import check_consent
from coterie.files import read_within
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.store import check_schema
from coterie.runs.export import MODELS_FILE, SHARED_FILE
from coterie.runs.exported_net import fresh
from coterie.settings import UserError, known_list, nearest
from coterie.settings.calls import public


@public
def load(
    folder: Path | str,
    client: Client | str | None = None,
    *,
    group: int | None = None,
    model: Callable[[], nn.Module] | None = None,
    secret: int | None = None,
    trust_code: bool = False,
) -> nn.Module:
    """Load the net that serves a client, as :func:`coterie.save` has written it.

    If the method serves clients by ensembles, the net is the ensemble of the models on the client's
    path.

    Args:
        folder: The export. It may come from another person: no code that it names is imported.
        client: The client's name, or its number if clients have no names. None, without ``group``,
            for the export's default model, which is for sites that are not known.
        group: The number of a group, for the model that a new site of the group gets.
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
    # One file, or for an ensemble all on the client's path.
    file_names = served_files(folder, document, client, group)
    # The server never had these layers, so the net would be untrained in part.
    if document["stays"]:
        owner = "each client" if client is None else f"client {client}"
        raise UserError(
            f"{owner} keeps {', '.join(document['stays'])} of its model, and {folder} has only the rest; "
            f"load it from {file_names[-1]} by the net's load_state_dict with strict=False"
        )
    _check_secret(folder, document["sealed"], secret)
    # The tensors of each file, and those that all models share.
    loaded_nets = []
    shared_tensors = (
        read_model(folder, SHARED_FILE, document) if SHARED_FILE in document["files"] else {}
    )
    for file_name in file_names:
        tensors = {**shared_tensors, **read_model(folder, file_name, document)}
        available_numbers = sum(tensor.numel() for tensor in tensors.values())
        net, net_name = _made(folder, document["model"], model, trust_code, available_numbers)
        loaded_nets.append(
            _filled(net, net_name, folder / file_name, tensors, document["sealed"], secret)
        )
    # An ensemble combines the outputs of all nets, as the engines do.
    served_net = (
        loaded_nets[0]
        if len(loaded_nets) == 1
        else Ensemble(loaded_nets, COMBINED[document["combine"]])
    )
    return predicting(served_net, of_record(document["target_scale"])).eval()


def served_files(
    folder: Path, document: dict[str, Any], client: Client | str | None, group: int | None = None
) -> list[str]:
    """Return the files of the net of a client, of a group, or of sites that are not known.

    Args:
        folder: The export.
        document: The entries of ``models.json``.
        client: The client; None if it is not meant.
        group: The group; None if it is not meant.

    Raises:
        UserError: There is no such model.
    """
    if client is not None and group is not None:
        raise UserError(
            f"use only one of client and group, got client {client!r} and group {group}"
        )
    if client is not None:
        client_entry = document["clients"].get(str(client))
        if client_entry is None:
            default_hint = ""
            if document["default"]:
                default_hint = " (a site that is not known takes the default model: name no client)"
            raise UserError(
                f"{folder} has no model for client {str(client)!r}{default_hint}"
                f"{nearest(client, document['clients'])}{known_list(document['clients'])}"
            )
        return _listed_files(folder, document, client_entry)
    if group is not None:
        group_models = document["group_models"]
        entry = group_models[group] if 0 <= group < len(group_models) else None
        if entry is None:
            with_models = [str(number) for number, model in enumerate(group_models) if model]
            raise UserError(f"{folder} has no model of group {group}{known_list(with_models)}")
    else:
        entry = document["default"]
        if entry is None:
            raise UserError(
                f"{folder} has no default model; name a client{known_list(document['clients'])}"
            )
    try:
        return _plain_names(entry["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{folder / MODELS_FILE} is damaged ({error})") from error


def read_document(folder: Path) -> dict[str, Any]:
    """Read the ``models.json`` of an export.

    Args:
        folder: The export.

    Returns:
        The entries that loading needs.

    Raises:
        UserError: There is no such file, or it has been changed or damaged.
    """
    document_path = folder / MODELS_FILE
    if not document_path.is_file():
        inner_exports = sorted(entries.parent.name for entries in folder.glob(f"*/{MODELS_FILE}"))
        runs_hint = (
            f"; it has models of several runs: {', '.join(inner_exports)}" if inner_exports else ""
        )
        raise UserError(f"{folder} holds no exported models: it has no {MODELS_FILE}{runs_hint}")
    try:
        # The checksum first, then the types of the entries, then their values.
        document_bytes = read_within(folder, MODELS_FILE)
        document: dict[str, Any] = json.loads(document_bytes)
        check_schema(document["schema"], document_path)
        checksum.check_json(document_bytes, document_path)
        entries = {entry_name: document[entry_name] for entry_name in _ENTRY_TYPES}
        for entry_name, accepted_types in _ENTRY_TYPES.items():
            if not isinstance(entries[entry_name], accepted_types):
                raise TypeError(f"{entry_name!r} has the wrong type")
        entries["combine"] = document.get("combine", mean_probability.__name__)
        entries["target_scale"] = document.get("target_scale")
        entries["data"] = document.get("data") or {}
        if entries["target_scale"] is not None and not sound(entries["target_scale"]):
            raise ValueError("'target_scale' has no means and deviations")
        # Entries that exports of earlier versions do not have.
        for entry_name, (accepted_types, earlier_value) in _LATER_ENTRIES.items():
            entries[entry_name] = document.get(entry_name, earlier_value)
            if not isinstance(entries[entry_name], accepted_types):
                raise TypeError(f"{entry_name!r} has the wrong type")
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


_LATER_ENTRIES: dict[str, Any] = {
    "groups": (list, []),
    "group_models": (list, []),
    "default": ((dict, type(None)), None),
    "data": ((dict, type(None)), None),
    "outputs": (str, ""),
    "calibration": (dict, {}),
    "placement": ((dict, type(None)), None),
    "without_data": (str, "the export is of an earlier version"),
    "cards": (dict, {}),
}
"""Further entry -> its type, and what stands for it where an earlier version did not write it."""


def _listed_files(folder: Path, document: dict[str, Any], client_entry: Any) -> list[str]:
    """The files of a client's models."""
    try:
        file_names = (
            client_entry.get("path", [client_entry["file"]])
            if document["ensemble"]
            else [client_entry["file"]]
        )
        return _plain_names(file_names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{folder / MODELS_FILE} is damaged ({error})") from error


def _plain_names(file_names: Any) -> list[str]:
    """The names of a net's files, which are in the folder and differ."""
    # A file name with a folder could lead out of the export.
    if not file_names or any(Path(file_name).name != file_name for file_name in file_names):
        raise ValueError("a model's file is outside of the folder")
    if len(set(file_names)) < len(file_names):
        raise ValueError("a client's path names a file twice")
    return list(file_names)


def read_model(folder: Path, file_name: str, document: dict[str, Any]) -> dict[str, Tensor]:
    """Read the tensors of one file of an export.

    Args:
        folder: The export.
        file_name: The name of the file.
        document: The entries of ``models.json``, which hold the checksums.

    Returns:
        The tensors by name.

    Raises:
        UserError: The file cannot be read, or has been changed or damaged.
    """
    try:
        file_bytes = read_within(folder, file_name)
        checksum.check(file_bytes, folder / file_name, document["files"].get(file_name))
        return safetensors.torch.load(file_bytes)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DamagedError(f"{folder / file_name} cannot be read: {error}") from error


def _check_secret(folder: Path, sealed: Any, secret: int | None) -> None:
    """Check that sealed models come with a secret."""
    # Loaded as they are, sealed rows would make a net of permuted or rotated weights.
    if sealed is not None and secret is None:
        raise UserError(
            f"{folder} has models that are sealed by rotation {sealed['rotation']}; open them with the clients' "
            "secret: coterie.load(..., secret=SECRET)"
        )


def _made(
    folder: Path,
    net_description: Any,
    make_net: Callable[[], nn.Module] | None,
    trust_code: bool,
    available_numbers: int,
) -> tuple[nn.Module, str]:
    """A new net, for at most ``available_numbers`` numbers, and its name."""
    if make_net is None:
        if net_description is None:
            raise UserError(
                f"{folder} has models of a custom net; pass its class or a function that makes it: coterie.load(..., model=Net)"
            )
        if not trust_code:
            check_consent(str(net_description.get("name")), str(folder / MODELS_FILE))
        return fresh(net_description, folder / MODELS_FILE, available_numbers), str(
            net_description.get("name")
        )
    # A net in place of a function is a likely mistake, with its own message.
    if isinstance(make_net, nn.Module):
        raise UserError(
            "model must be a class or function that makes the net, got a net; leave out the parentheses"
        )
    with seeded(0):
        net = make_net()
    if not isinstance(net, nn.Module):
        raise UserError(f"model must make an nn.Module, but makes {type(net).__name__}")
    return net, type(net).__name__


def _filled(
    net: nn.Module,
    net_name: str,
    file_path: Path,
    tensors: dict[str, Tensor],
    sealed: Any,
    secret: int | None,
) -> nn.Module:
    """``net`` with the tensors of a file, unsealed if they are sealed."""
    try:
        # The names and shapes of the tensors must be the net's.
        net.load_state_dict(tensors)
        if sealed is not None:
            # A sealed row becomes the clients' row before it is loaded.
            layout = Layout(net)
            boundary = Boundary(rotation=sealed["rotation"], block=sealed["block"], secret=secret)
            layout.load(net, Wire(boundary, layout, seed=0).open(layout.row(tensors)))
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{file_path} cannot be loaded into {net_name}: {error}") from error
    return net
