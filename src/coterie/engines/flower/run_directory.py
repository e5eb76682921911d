"""The run directory of a federation: its records, and its checkpoint for a restart of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from coterie.core import Position, Round
from coterie.data.scenario import FEDERATION
from coterie.engines.flower.federated_run import FederationSettings
from coterie.engines.flower.messages import OtherTensors
from coterie.engines.flower.nodes import (
    NodeMemory,
)
from coterie.engines.flower.schemas import checked_memory
from coterie.models import nets
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import NODES, OTHERS, RUN, Record, read_nodes, versions
from coterie.records.shown import Shown
from coterie.records.store import LOCK, PART, held, write_whole
from coterie.settings import UserError, plain


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """The records of a strategy's run in its folder ``out``.

    A new run starts new records. A run with the same settings continues those that are there.

    Args:
        folder: The folder.
        settings: The settings of the federation.
        rounds: Number of the last round.

    Raises:
        UserError: The folder belongs to another run.
    """

    def __init__(self, folder: Path | str, settings: FederationSettings, rounds: int) -> None:
        self.folder, self.record = Path(folder), Record(folder)
        self.settings, self.rounds, self.stack = settings, rounds, ExitStack()

    def __enter__(self) -> RunDirectory:
        own = {NODES, OTHERS, LOCK, RUN}  # files of a run that was stopped in its first round
        there = (
            {path.name.removesuffix(PART) for path in self.folder.iterdir()}
            if self.folder.is_dir()
            else set()
        )
        if (
            self.folder.exists()
            and not self.record.begun
            and (there - own or not self.folder.is_dir())
        ):
            raise UserError(
                f"{self.folder} exists and is not a run directory; choose another folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(held(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stored(self) -> tuple[Position | None, NodeMemory | None]:
        """Read the checkpoint.

        Returns:
            The position and the server's knowledge of the nodes. Both are None for a new run.

        Raises:
            UserError: The settings differ from those of the run in the folder, or its files are
                damaged.
        """
        if not self.record.begun:
            return None, None
        was = self.record.description()
        for name, value in {**self._settings(), **self._tensors(was)}.items():
            if change := _change(name, was.get(name), value):
                raise UserError(f"{self.folder} cannot be resumed: its {change}")
        found = self.record.go_on(Position, every=1)
        self._describe_anew(was, found[0] if found else 0)
        memory = read_memory(self.folder)
        if found and memory is None:
            raise DamagedError(f"{self.folder} has lost its {NODES}; it is damaged")
        return (found[1] if found else None), memory

    def keep(self, done: Round, memory: NodeMemory) -> None:
        """Record a round and store its checkpoint."""
        if not self.record.begun:
            self._describe(done)
        write_whole(self.folder / NODES, checksum.sealed_json(json.dumps(asdict(memory)).encode()))
        self.record.keep(done)
        self.record.store(done.number, done.position)

    def _settings(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "methods": [{"name": settings.method.name, **plain(settings.method)}],
            "training": plain(settings.training),
            "boundary": plain(settings.boundary),
            "robust": plain(settings.robust),
            "seeds": [settings.seed],
        }

    def _tensors(self, was: Mapping[str, Any]) -> dict[str, Any]:
        """The net's tensors, for a comparison if the record contains them."""
        before = was["world"].get("net")
        return (
            {}
            if before is None
            else {"world": {"net": {"tensors": tensors_of(self.settings.model)[0]["tensors"]}}}
        )

    def _describe(self, done: Round) -> None:
        world = {"clients": sorted(done.position.members), **self._net()}
        if self.settings.main != Shown.main:
            world["metric"] = {"main": self.settings.main, "better": self.settings.better}
        self.record.describe(
            {
                "scenario": {"name": FEDERATION},
                "rounds": self.rounds,
                "eval_every": self.settings.eval_every,
                **self._settings(),
                "world": world,
                "versions": {**versions(), "flwr": version("flwr")},
            }
        )

    def _describe_anew(self, was: Mapping[str, Any], reached: int) -> None:
        """Update the description: the last round and the rounds between tests may change."""
        now = {**was, "rounds": max(self.rounds, reached), "eval_every": self.settings.eval_every}
        if now != was:
            self.record.describe(now)

    def _net(self) -> dict[str, Any]:
        """The description from which the clients' net can be rebuilt, or its state dict's tensors if it has no name."""
        if (model := nets.described(self.settings.model)) is not None:
            return {"model": model}
        net, others = tensors_of(self.settings.model)
        if others:
            data = safetensors.torch.save(others)
            write_whole(self.folder / OTHERS, data)
            net |= {"others": OTHERS, "others_checksum": checksum.digest(data)}
        return {"net": net}


def read_memory(folder: Path) -> NodeMemory | None:
    """Read the server's knowledge of the nodes from a run directory.

    Args:
        folder: The run directory.

    Returns:
        The knowledge, or None if the server was stopped in the first round, before it stored it.

    Raises:
        DamagedError: The file is damaged.
    """
    found = read_nodes(folder)
    if found is None:
        return None
    try:
        nodes = _numbers(found["nodes"])
        layers = {str(part): _numbers(of_part) for part, of_part in found["layers"].items()}
        ended = {str(part): int(exchange) for part, exchange in found.get("ended", {}).items()}
        owners = {int(key): str(badge) for key, badge in found["owners"].items()}
        names = {int(key): name for key, name in found["names"].items()}
        schema = found.get("schema")
        checked_memory(schema)
        return NodeMemory(str(found["run"]), nodes, layers, owners, names, ended, schema)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder / NODES} is damaged ({error})") from error


def _numbers(found: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in found.items()}


def tensors_of(model: Callable[[], nn.Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Describe the tensors of a net.

    Args:
        model: Function that makes the net.

    Returns:
        A dictionary with ``tensors``, in the order of a row; ``trainable``, the number of trainable
        ones, which come first; and ``tied``, the other names of tensors that have several names.
        And the tensors that are not part of a row, such as the number of batches in BatchNorm.
    """
    with seeded(0):
        module = model()
    layout, whole = Layout(module), module.state_dict()
    rest = OtherTensors.of(module, layout)
    tensors = [
        {
            "name": piece.name,
            "shape": list(piece.shape),
            "dtype": str(whole[piece.name].dtype).removeprefix("torch."),
        }
        for piece in layout.pieces
    ]
    tied = {"tied": dict(rest.tied)} if rest.tied else {}
    return {"trainable": len(layout.tensors), "tensors": tensors, **tied}, dict(rest.others)


def _change(name: str, was: Any, now: Any) -> str | None:
    """Describe how a setting has changed; in a table, the first changed entry. None if it has not changed.

    A setting that a record lacks was added after the run began: it had its default.
    """
    if name == "methods" and isinstance(was, list) and len(was) == 1:
        return _change("method", was[0], now[0])
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        change = (
            _change(f"{name}.{key}", was[key], value) for key, value in now.items() if key in was
        )
        return next(filter(None, change), None)
    verbs = ("were", "are") if isinstance(now, list) else ("was", "is")
    return f"{name} {verbs[0]} {was}, and now {verbs[1]} {now}" if was != now else None
