"""Layers that stay at a client, as they were after each of its last exchanges.

A server that has gone back to an earlier round finds its clients there: what was kept is tagged with the run and exchange.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from torch import Tensor

from coterie.engines.flower import messages
from coterie.files import read_within, within
from coterie.layout import Layout
from coterie.store import write_whole

FOLDER = "keep-dir"
"""Key of the node config that names a folder for them; without it they are in the node's state, which Flower forgets when
the node stops, or ``flwr run`` is called again."""


def named(config: Mapping[str, Any]) -> int | None:
    """The client that a node's config says it is, if it says one. Raises ``ValueError`` for what is no number."""
    return next((int(config[key]) for key in ("client-id", "partition-id") if key in config), None)


VERSIONS = 8
"""So many of the last exchanges are kept."""


class Shelf(Protocol):
    """Where tensors of some exchanges lie, by name."""

    def tags(self) -> list[int]: ...
    def take(self, tag: int) -> Any: ...
    def put(self, tag: int, record: ArrayRecord) -> None: ...
    def drop(self, tag: int) -> None: ...


class InState:
    """Records ``coterie-kept-<run>-<exchange>`` of a node's state."""

    def __init__(self, state: RecordDict, run: str) -> None:
        self.state, self.prefix = state, f"coterie-kept-{run}-"

    def tags(self) -> list[int]:
        return [int(name.removeprefix(self.prefix)) for name in self.state if name.startswith(self.prefix)]

    def take(self, tag: int) -> Any:
        return self.state[f"{self.prefix}{tag}"]

    def put(self, tag: int, record: ArrayRecord) -> None:
        self.state[f"{self.prefix}{tag}"] = record

    def drop(self, tag: int) -> None:
        del self.state[f"{self.prefix}{tag}"]


class InFolder:
    """Files ``<run>/<client>/<exchange>.safetensors``."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        self.folder = within(folder, f"{run}/{client}" if run else str(client))

    def tags(self) -> list[int]:
        found = (re.fullmatch(r"(0|[1-9][0-9]*)\.safetensors", path.name) for path in self.folder.glob("*.safetensors"))
        return [int(match[1]) for match in found if match]

    def take(self, tag: int) -> Any:
        data = read_within(self.folder, f"{tag}.safetensors")
        return ArrayRecord(safetensors.torch.load(data))

    def put(self, tag: int, record: ArrayRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
        write_whole(self.folder / f"{tag}.safetensors", safetensors.torch.save(tensors))

    def drop(self, tag: int) -> None:
        (self.folder / f"{tag}.safetensors").unlink(missing_ok=True)


class Keeping:
    """What one client keeps in one run. Raises ``ValueError`` for the name of a run that is none."""

    def __init__(self, context: Context, layout: Layout, run: str, client: int) -> None:
        if not re.fullmatch("[0-9a-f]{0,32}", run):  # it becomes part of a path, and comes from the server
            raise ValueError(f"a run's name must be up to 32 hexadecimal digits, got {run!r}")
        folder = str(context.node_config.get(FOLDER, ""))
        self.layout = layout
        self.shelf: Shelf = InFolder(Path(folder), run, client) if folder else InState(context.state, run)

    def last(self, exchange: int) -> int | None:
        """The last exchange before ``exchange`` of which anything is kept."""
        return max((tag for tag in self.shelf.tags() if tag < exchange), default=None)

    def before(self, exchange: int) -> Tensor | None:
        """The client's own values ``(d,)`` as they were before ``exchange``, NaN elsewhere; None if there are none."""
        tag = self.last(exchange)
        if tag is None:
            return None
        return messages.unpacked(self.shelf.take(tag), self.layout, may_lack=torch.ones(self.layout.size, dtype=torch.bool))

    def keep(self, exchange: int, row: Tensor) -> None:
        """Its own values after ``exchange``; those of a future that has been undone are forgotten."""
        for tag in [tag for tag in self.shelf.tags() if tag > exchange]:
            self.shelf.drop(tag)
        self.shelf.put(exchange, messages.packed(row, self.layout, without=row.isnan()))
        for tag in sorted(self.shelf.tags())[:-VERSIONS]:
            self.shelf.drop(tag)
