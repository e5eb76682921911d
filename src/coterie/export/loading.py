"""Models that :mod:`coterie.export.saving` has written, as nets again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie import checksum, models
from coterie.boundary import Boundary, Wire
from coterie.codec import DamagedError
from coterie.core import Client
from coterie.export.nets import fresh
from coterie.export.saving import MODELS
from coterie.files import read_within
from coterie.layout import Layout
from coterie.randomness import seeded
from coterie.settings import UserError
from coterie.store import CHECKED, check_schema
from coterie.world import mean_probability


class Ensemble(nn.Module):
    """Several nets as one: the logarithm of their mean class probabilities, which a softmax turns back into these."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        return mean_probability(torch.stack([net(x) for net in self.nets]))


def load(
    folder: Path | str, client: Client, *, model: Callable[[], nn.Module] | None = None, secret: int | None = None,
    trust_code: bool = False,
) -> nn.Module:  # fmt: skip
    """The net that serves ``client``, as :func:`coterie.save` has written it, in evaluation mode.

    Where the method serves by ensembles, it is that of the models on the client's path.

    Args:
        folder: It may be from somebody else: nothing that it names is imported.
        client: The client's id.
        model: Makes the net, where Coterie has no name for it, as of a federation, or where the name is code.
        secret: The clients', where the models are sealed by a boundary's rotation.
        trust_code: Lets a model that the folder names as ``package.module:Name`` be imported.

    Raises:
        UserError: The client has no model there, or the files are not what was written.
    """
    folder = Path(folder)
    document = read_document(folder)
    entry = document["clients"].get(str(client))
    if entry is None:
        raise UserError(f"{folder} has no model for client {client!r}; it has those of {', '.join(document['clients'])}")
    files = _files(folder, document, entry)
    if document["stays"]:
        raise UserError(
            f"client {client} keeps {', '.join(document['stays'])} of its model to itself, and {folder} has the rest alone; "
            f"the net's load_state_dict takes that from {files[-1]} with strict=False"
        )
    _check_secret(folder, document["sealed"], secret)
    nets = []
    for name in files:
        tensors = read_model(folder, name, document)
        net, called = _made(folder, document["model"], model, trust_code, sum(one.numel() for one in tensors.values()))
        nets.append(_filled(net, called, folder / name, tensors, document["sealed"], secret))
    return (nets[0] if len(nets) == 1 else Ensemble(nets)).eval()


def read_document(folder: Path) -> dict[str, Any]:
    """What ``models.json`` says. Raises :class:`~coterie.settings.UserError` if there is none, or not what was written."""
    path = folder / MODELS
    if not path.is_file():
        inside = sorted(found.parent.name for found in folder.glob(f"*/{MODELS}"))
        hint = f"; it has those of several runs: {', '.join(inside)}" if inside else ""
        raise UserError(f"{folder} holds no exported models: it has no {MODELS}{hint}")
    try:
        data = read_within(folder, MODELS)
        document: dict[str, Any] = json.loads(data)
        check_schema(document["schema"], path)
        checksum.check_json(data, path, needed=document["schema"] >= CHECKED)
        found = {key: document[key] for key in ("model", "ensemble", "clients")}
        found |= {"sealed": document.get("sealed"), "stays": list(document.get("stays", []))}
        found["files"] = document.get("files", {})
        for key, kinds in _KINDS.items():
            if not isinstance(found[key], kinds):
                raise TypeError(f"{key!r} is not of its kind")
        if found["sealed"] is not None:
            Boundary(rotation=found["sealed"]["rotation"], block=found["sealed"]["block"])
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error})") from error


_KINDS: dict[str, Any] = {
    "model": (dict, type(None)), "ensemble": bool, "clients": dict, "sealed": (dict, type(None)), "files": dict,
}  # fmt: skip
"""Entry of ``models.json`` -> what it is."""


def _files(folder: Path, document: dict[str, Any], entry: Any) -> list[str]:
    """The files of a client's models."""
    try:
        files = entry.get("path", [entry["file"]]) if document["ensemble"] else [entry["file"]]
        if not files or any(Path(name).name != name for name in files):
            raise ValueError("a model's file is outside of the folder")
        return list(files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{folder / MODELS} is damaged ({error})") from error


def read_model(folder: Path, name: str, document: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a file of an export. Raises :class:`~coterie.settings.UserError` if it is not what was written."""
    try:
        data = read_within(folder, name)
        checksum.check(data, folder / name, document["files"].get(name))
        return safetensors.torch.load(data)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DamagedError(f"{folder / name} cannot be read: {error}") from error


def _check_secret(folder: Path, sealed: Any, secret: int | None) -> None:
    if sealed is not None and secret is None:
        raise UserError(
            f"{folder} has models as the server held them, sealed by rotation {sealed['rotation']}; who knows the clients' "
            "secret opens them: coterie.load(..., secret=SECRET)"
        )


def _made(
    folder: Path, about: Any, model: Callable[[], nn.Module] | None, trust_code: bool, numbers: int
) -> tuple[nn.Module, str]:
    """A new net, for so many numbers, and what to call it."""
    if model is None:
        if about is None:
            raise UserError(
                f"{folder} has models of a net that Coterie has no name for; say what makes it: coterie.load(..., model=Net)"
            )
        if not trust_code:
            models.check_consent(str(about.get("name")), str(folder / MODELS))
        return fresh(about, folder / MODELS, numbers), str(about.get("name"))
    if isinstance(model, nn.Module):
        raise UserError("model must be what makes the net, its class or a function, got a net; leave out the brackets")
    with seeded(0):
        net = model()
    if not isinstance(net, nn.Module):
        raise UserError(f"model must make an nn.Module, it makes {type(net).__name__}")
    return net, type(net).__name__


def _filled(
    net: nn.Module, called: str, path: Path, tensors: dict[str, Tensor], sealed: Any, secret: int | None
) -> nn.Module:
    """``net`` with the tensors of a file, opened if they are sealed."""
    try:
        net.load_state_dict(tensors)
        if sealed is not None:
            layout = Layout(net)
            boundary = Boundary(rotation=sealed["rotation"], block=sealed["block"], secret=secret)
            layout.load(net, Wire(boundary, layout, seed=0).open(layout.row(tensors)))
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{path} cannot be loaded into {called}: {error}") from error
    return net
