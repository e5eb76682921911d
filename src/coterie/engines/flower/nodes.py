"""Which node of a Flower federation is which client, and who is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.attendance import Attendance
from coterie.core import Client
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
    was ``before`` the server was stopped, or else the least number that is free. ``aware``: those that know of Coterie.
    """

    grid: Grid
    before: Mapping[int, Client] = field(default_factory=dict)
    client: dict[int, Client] = field(default_factory=dict)
    aware: set[Client] = field(default_factory=set)
    seconds: float = 60.0
    """How long a node that has just come is given to say who it is."""

    def look(self) -> frozenset[Client]:
        """The clients that are connected now."""
        online = sorted(self.grid.get_node_ids())
        new = [node for node in online if node not in self.client]
        if new:
            self._meet(new)
        return frozenset(self.client[node] for node in online if self.node(self.client[node]) == node)

    def node(self, client: Client) -> int:
        """The node that is a client now: the last one that came as such."""
        return next(node for node, other in reversed(self.client.items()) if other == client)

    def wait(self, count: int, seconds: float, tell: Callable[[str], None]) -> frozenset[Client]:
        """The clients that are connected, once there are ``count``. Raises :class:`EngineError` after so many seconds."""
        end, told = time.monotonic() + seconds, -1
        while (came := len(list(self.grid.get_node_ids()))) < count:
            if time.monotonic() >= end:
                raise EngineError(f"waited {seconds:g} s for {count} nodes, and {came} came; are the SuperNodes running?")
            if came != told:
                tell(f"{came} of {count} nodes are there")
                told = came
            time.sleep(0.5)
        return self.look()

    def _meet(self, new: Iterable[int]) -> None:
        asked = [Message(RecordDict(), dst_node_id=node, message_type=QUERY) for node in new]
        named: dict[int, Any] = {}
        for reply in self.grid.send_and_receive(asked, timeout=self.seconds):
            if reply.has_content() and METRICS in reply.content:
                named[reply.metadata.src_node_id] = reply.content[METRICS]
        for node in new:
            found = named.get(node, {})
            own = found.get("client", self.before.get(node))
            self.client[node] = int(own) if own is not None and int(own) >= 0 else self._free(self._claimed(named))
            if node in named:
                self.aware.add(self.client[node])

    def _claimed(self, named: Mapping[int, Any]) -> list[Client]:
        return [int(found["client"]) for found in named.values() if "client" in found]

    def _free(self, claimed: Iterable[Client]) -> Client:
        taken = {*self.client.values(), *self.before.values(), *claimed}
        return next(i for i in range(len(taken) + 1) if i not in taken)
