"""Which node of a Flower federation is which client, and who is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.attendance import Attendance
from coterie.core import Client, Note
from coterie.engines.flower.messages import METRICS, QUERY
from coterie.engines.workers import EngineError


@dataclass(frozen=True, kw_only=True)
class Present(Attendance):
    """Who can be asked is whoever is connected."""

    online: frozenset[Client] = frozenset()

    def there(self, client: Client, round: int) -> bool:
        return client in self.online


@dataclass
class Nodes:
    """Clients by node. A node keeps its client for good; one that is seen for the first time is asked which it is.

    It may name itself (:func:`~coterie.engines.flower.client_app` does, by ``client-id`` or ``partition-id``): then it is
    that client also with another node id, as after a restart. A node that does not answer, or names nobody, is what it
    was ``before`` the server was stopped, or else the least number that is free.

    aware: clients whose apps know of Coterie. notes: what has happened since they were last taken: two nodes that are the
    same client at once, of which the one that came last is asked.
    """

    grid: Grid
    before: Mapping[int, Client] = field(default_factory=dict)
    client: dict[int, Client] = field(default_factory=dict)
    aware: set[Client] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)
    seconds: float = 60.0
    """How long a node that has just come is given to say who it is."""
    place: dict[Client, int] = field(default_factory=dict)
    doubled: set[Client] = field(default_factory=set)

    def look(self) -> frozenset[Client]:
        """The clients that are connected now."""
        online = set(self.grid.get_node_ids())
        new = [node for node in sorted(online) if node not in self.client]
        if new:
            self._meet(new)
        count = Counter(self.client[node] for node in online)
        for client in sorted(count):
            if count[client] > 1 and client not in self.doubled:
                text = f"{count[client]} nodes are client {client} at once; the one that came last is asked"
                self.notes.append(Note(kind="node", clients=(client,), text=text))
        self.doubled = {client for client in count if count[client] > 1}
        for node, client in self.client.items():
            if node in online or client not in count:
                self.place[client] = node
        return frozenset(count)

    def node(self, client: Client) -> int:
        """The node that is a client now: of those connected, the one that came last."""
        return self.place[client]

    def wait(self, count: int, seconds: float, tell: Callable[[str], None]) -> frozenset[Client]:
        """The clients that are connected, once there are ``count``. Raises :class:`EngineError` after so many seconds."""
        end, told = time.monotonic() + seconds, -1
        while True:
            came = len(list(self.grid.get_node_ids()))
            if came >= count and len(there := self.look()) >= count:
                return there
            if time.monotonic() >= end:
                hint = "; ".join(note.text for note in self.notes) or "are the SuperNodes running?"
                raise EngineError(f"waited {seconds:g} s for {count} nodes, and {came} came; {hint}")
            if came != told:
                tell(f"{came} of {count} nodes are there")
                told = came
            time.sleep(0.5)

    def taken(self) -> tuple[Note, ...]:
        """What has happened since this was last called."""
        notes, self.notes = tuple(self.notes), []
        return notes

    def _meet(self, new: Iterable[int]) -> None:
        asked = [Message(RecordDict(), dst_node_id=node, message_type=QUERY) for node in new]
        named: dict[int, Any] = {}
        for reply in self.grid.send_and_receive(asked, timeout=self.seconds):
            if reply.has_content() and METRICS in reply.content:
                named[reply.metadata.src_node_id] = reply.content[METRICS]
        claimed = [int(found["client"]) for found in named.values() if "client" in found]
        for node in new:
            own = named.get(node, {}).get("client", self.before.get(node))
            self.client[node] = int(own) if own is not None and int(own) >= 0 else self._free(claimed)
            if node in named:
                self.aware.add(self.client[node])

    def _free(self, claimed: Iterable[Client]) -> Client:
        taken = {*self.client.values(), *self.before.values(), *claimed}
        return next(i for i in range(len(taken) + 1) if i not in taken)
