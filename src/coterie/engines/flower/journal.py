"""The run directory of a federation: what is recorded of it, and where it goes on after the server was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from torch import Tensor, nn

from coterie.core import Position, Round
from coterie.data.scenario import FEDERATION
from coterie.engines.flower.messages import Rest
from coterie.engines.flower.nodes import Memory
from coterie.files import read_within, within
from coterie.models import nets
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import NODES, OTHERS, RUN, Record, versions
from coterie.records.store import CHECKED, LOCK, PART, held, write_whole
from coterie.settings import UserError, plain

if TYPE_CHECKING:
    from coterie.engines.flower.strategy import Terms


class Journal(AbstractContextManager["Journal"]):
    """The records of a strategy's run in its folder ``out``; begun, or opened again where the settings are the same.

    Raises :class:`~coterie.settings.UserError` where the folder is of another run.
    """

    def __init__(self, folder: Path | str, terms: Terms, rounds: int) -> None:
        self.folder, self.record = Path(folder), Record(folder)
        self.terms, self.rounds, self.stack = terms, rounds, ExitStack()

    def __enter__(self) -> Journal:
        own = {NODES, OTHERS, LOCK, RUN}  # of a run that was stopped in its first round
        there = {path.name.removesuffix(PART) for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if self.folder.exists() and not self.record.begun and (there - own or not self.folder.is_dir()):
            raise UserError(f"{self.folder} is there already and no run directory; name another")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(held(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stored(self) -> tuple[Position | None, Memory | None]:
        """Where the run stands, and what was known of the nodes; nothing of a new one."""
        if not self.record.begun:
            return None, None
        was = self.record.description()
        for name, value in {**self._settings(), **self._tensors(was)}.items():
            if told := _change(name, was.get(name), value):
                raise UserError(f"{self.folder} cannot go on: its {told}")
        found = self.record.go_on(Position, every=1)
        self._describe_anew(was, found[0] if found else 0)
        return (found[1] if found else None), read_memory(self.folder, was["schema"] >= CHECKED)

    def keep(self, done: Round, memory: Memory) -> None:
        """Record a round and store its checkpoint."""
        if not self.record.begun:
            self._describe(done)
        write_whole(self.folder / NODES, checksum.sealed_json(json.dumps(asdict(memory)).encode()))
        self.record.keep(done)
        self.record.store(done.number, done.position)

    def _settings(self) -> dict[str, Any]:
        terms = self.terms
        return {
            "methods": [{"name": terms.method.name, **plain(terms.method)}], "training": plain(terms.training),
            "boundary": plain(terms.boundary), "robust": plain(terms.robust), "seeds": [terms.seed],
        }  # fmt: skip

    def _tensors(self, was: Mapping[str, Any]) -> dict[str, Any]:
        """The net's tensors, to be compared where the record tells them."""
        before = was["world"].get("net")
        return {} if before is None else {"world": {"net": {"tensors": tensors_of(self.terms.model)[0]["tensors"]}}}

    def _describe(self, done: Round) -> None:
        world = {"clients": sorted(done.position.members), **self._net()}
        self.record.describe({
            "scenario": {"name": FEDERATION}, "rounds": self.rounds, "eval_every": self.terms.eval_every,
            **self._settings(), "world": world, "versions": {**versions(), "flwr": version("flwr")},
        })  # fmt: skip

    def _describe_anew(self, was: Mapping[str, Any], reached: int) -> None:
        """What may be otherwise than when the run began: when it ends, and what an earlier Coterie did not tell of the net."""
        now = {**was, "rounds": max(self.rounds, reached), "eval_every": self.terms.eval_every}
        if was["schema"] < CHECKED and not {"model", "net"} & set(was["world"]):
            now["world"] = {**was["world"], **self._net()}
        if now != was:
            self.record.describe(now)

    def _net(self) -> dict[str, Any]:
        """What it takes to make a net like the clients', or if that has no name, the tensors of its state dict."""
        if (model := nets.described(self.terms.model)) is not None:
            return {"model": model}
        net, others = tensors_of(self.terms.model)
        if others:
            data = safetensors.torch.save(others)
            write_whole(self.folder / OTHERS, data)
            net |= {"others": OTHERS, "others_checksum": checksum.digest(data)}
        return {"net": net}


def read_memory(folder: Path, checked: bool) -> Memory | None:
    """What was known of the nodes, or None of an earlier Coterie. checked: the file must have a checksum."""
    path = within(folder, NODES)
    if not path.exists():
        return None
    try:
        data = read_within(folder, NODES)
        checksum.check_json(data, path, needed=checked)
        found = json.loads(data)
        nodes, layers = ({int(key): int(value) for key, value in found[name].items()} for name in ("nodes", "layers"))
        owners = {int(key): str(badge) for key, badge in found.get("owners", {}).items()}  # an earlier Coterie has none
        return Memory(str(found["run"]), nodes, layers, owners)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error})") from error


def tensors_of(model: Callable[[], nn.Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A net's ``tensors``, in the order of a row; ``trainable``, how many of them are, the first ones; ``tied``, the other
    names of those that have several. And what has no place in a row, such as BatchNorm's count of batches."""
    with seeded(0):
        module = model()
    layout, whole = Layout(module), module.state_dict()
    rest = Rest.of(module, layout)
    tensors = [
        {"name": piece.name, "shape": list(piece.shape), "dtype": str(whole[piece.name].dtype).removeprefix("torch.")}
        for piece in layout.pieces
    ]
    tied = {"tied": dict(rest.tied)} if rest.tied else {}
    return {"trainable": len(layout.tensors), "tensors": tensors, **tied}, dict(rest.others)


def _change(name: str, was: Any, now: Any) -> str | None:
    """How a setting is another than it was; of a table, the first that is."""
    if name == "methods" and isinstance(was, list) and len(was) == 1:
        return _change("method", was[0], now[0])
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        told = (_change(f"{name}.{key}", was[key], value) for key, value in now.items() if key in was)
        return next(filter(None, told), None)
    verbs = ("were", "are") if isinstance(now, list) else ("was", "is")
    return f"{name} {verbs[0]} {was}, and now {verbs[1]} {now}" if was != now else None
