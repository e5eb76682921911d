"""The run directory of a federation: what is recorded of it, and where it goes on after the server was stopped."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import models
from coterie.codec import DamagedError
from coterie.engines.inprocess import Position, Round
from coterie.experiment import plain
from coterie.record import Record, versions
from coterie.scenario import FEDERATION
from coterie.settings import UserError
from coterie.store import held, write_whole

if TYPE_CHECKING:
    from coterie.engines.flower.conductor import Terms

NODES = "nodes.json"
"""Node id -> client id."""


class Journal(AbstractContextManager["Journal"]):
    """The records of a strategy's run in its folder ``out``; begun, or opened again where the settings are the same.

    Raises :class:`~coterie.settings.UserError` where the folder is of another run.
    """

    def __init__(self, folder: Path | str, terms: Terms, rounds: int) -> None:
        self.folder, self.record = Path(folder), Record(folder)
        self.terms, self.rounds, self.stack = terms, rounds, ExitStack()

    def __enter__(self) -> Journal:
        if self.folder.exists() and not self.record.begun and any(self.folder.iterdir()):
            raise UserError(f"{self.folder} is there already and no run directory; name another")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(held(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stored(self) -> tuple[Position | None, dict[int, int] | None]:
        """Where the run stands, and which node was which client; nothing of a new one, which is described now."""
        if not self.record.begun:
            return None, None
        now, was = self._settings(), self.record.description()
        for name, value in now.items():
            if was.get(name) != value:
                raise UserError(f"{self.folder} cannot go on: its {name} were {was.get(name)}, and now are {value}")
        found = self.record.checkpoints.load()
        if found and not isinstance(found[1], Position):
            raise DamagedError(f"the checkpoint of {self.folder} holds no position of a run; it is damaged")
        self.record.rewind(found[0] if found else 0)
        path = self.folder / NODES
        nodes = {int(node): int(client) for node, client in json.loads(path.read_text()).items()} if path.exists() else None
        return (found[1] if found else None), nodes

    def keep(self, done: Round, nodes: dict[int, int]) -> None:
        """Record a round and store its checkpoint."""
        if not self.record.begun:
            self._describe(done)
        write_whole(self.folder / NODES, json.dumps(nodes).encode())
        self.record.keep(done)
        self.record.checkpoints.save(done.number, done.position)

    def _settings(self) -> dict[str, Any]:
        terms = self.terms
        return {
            "methods": [{"name": terms.method.name, **plain(terms.method)}], "training": plain(terms.training),
            "boundary": plain(terms.boundary), "seeds": [terms.seed],
        }  # fmt: skip

    def _describe(self, done: Round) -> None:
        members = sorted(done.position.members)
        world: dict[str, Any] = {"clients": members}
        if (model := models.described(self.terms.model)) is not None:
            world["model"] = model
        self.record.describe({
            "scenario": {"name": FEDERATION}, "rounds": self.rounds, "eval_every": self.terms.eval_every,
            **self._settings(), "world": world, "versions": versions(),
        })  # fmt: skip
