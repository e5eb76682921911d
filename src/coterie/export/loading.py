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

from coterie.boundary import Boundary, Wire
from coterie.codec import DamagedError
from coterie.core import Client
from coterie.export.nets import fresh
from coterie.export.saving import MODELS
from coterie.layout import Layout
from coterie.randomness import seeded
from coterie.settings import UserError
from coterie.store import check_schema
from coterie.world import mean_probability


class Ensemble(nn.Module):
    """Several nets as one: the logarithm of their mean class probabilities, which a softmax turns back into these."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        return mean_probability(torch.stack([net(x) for net in self.nets]))


def load(
    folder: Path | str, client: Client, *, model: Callable[[], nn.Module] | None = None, secret: int | None = None
) -> nn.Module:
    """The net that serves ``client``, as :func:`coterie.save` has written it, in evaluation mode.

    Where the method serves by ensembles, it is that of the models on the client's path. model: makes the net, where Coterie
    has no name for it, as of a federation; one called ``package.module:Name`` is imported. secret: the clients', where the
    models are sealed by a boundary's rotation. Raises :class:`~coterie.settings.UserError` for a client that has no model
    there.
    """
    folder = Path(folder)
    document = _document(folder)
    entry = document["clients"].get(str(client))
    if entry is None:
        raise UserError(f"{folder} has no model for client {client!r}; it has those of {', '.join(document['clients'])}")
    files = entry.get("path", [entry["file"]]) if document["ensemble"] else [entry["file"]]
    if document["stays"]:
        raise UserError(
            f"client {client} keeps {', '.join(document['stays'])} of its model to itself, and {folder} has the rest alone; "
            f"the net's load_state_dict takes that from {files[-1]} with strict=False"
        )
    _check_secret(folder, document["sealed"], secret)
    nets = []
    for name in files:
        net, called = _made(folder, document["model"], model)
        nets.append(_filled(net, called, folder / Path(name).name, document["sealed"], secret))
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
        found = {key: document[key] for key in ("model", "ensemble", "clients")}
        return {**found, "sealed": document.get("sealed"), "stays": document.get("stays", [])}
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} is damaged ({error})") from error


def _check_secret(folder: Path, sealed: Any, secret: int | None) -> None:
    if sealed is not None and secret is None:
        raise UserError(
            f"{folder} has models as the server held them, sealed by rotation {sealed['rotation']}; who knows the clients' "
            "secret opens them: coterie.load(..., secret=SECRET)"
        )


def _made(folder: Path, about: Any, model: Callable[[], nn.Module] | None) -> tuple[nn.Module, str]:
    """A new net, and what to call it."""
    if model is None:
        if about is None:
            raise UserError(
                f"{folder} has models of a net that Coterie has no name for; say what makes it: coterie.load(..., model=Net)"
            )
        return fresh(about), about["name"]
    if isinstance(model, nn.Module):
        raise UserError("model must be what makes the net, its class or a function, got a net; leave out the brackets")
    with seeded(0):
        net = model()
    if not isinstance(net, nn.Module):
        raise UserError(f"model must make an nn.Module, it makes {type(net).__name__}")
    return net, type(net).__name__


def _filled(net: nn.Module, called: str, path: Path, sealed: Any, secret: int | None) -> nn.Module:
    """``net`` with the tensors of a file, opened if they are sealed."""
    try:
        tensors = safetensors.torch.load_file(path)
        net.load_state_dict(tensors)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be loaded into {called}: {error}") from error
    if sealed is not None:
        layout = Layout(net)
        boundary = Boundary(rotation=sealed["rotation"], block=sealed["block"], secret=secret)
        layout.load(net, Wire(boundary, layout, seed=0).open(layout.row(tensors)))
    return net
