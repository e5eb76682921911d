"""Which node of a Flower federation is which client, and who is there."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie.attendance import Attendance
from coterie.core import Client, Note
from coterie.engines.flower.messages import METRICS, QUERY, brief, whole
from coterie.engines.workers import EngineError

PATIENCE = 3
"""Queries that a node may leave without an answer."""

_GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


def _failure(reply: Message | None) -> str | None:
    """Why a node is not known by its reply; None if it says who it is, or its app has no way to say so."""
    if reply is None or gone(reply):
        return "no answer"
    if reply.has_error():
        reason = reply.error.reason or ""
        plain = "registered" in reason  # the app has no function for such a query: it knows nothing of Coterie
        return None if plain else f"its app failed: {brief(reason or reply.error.code)}"
    metrics = reply.content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or ("client" in metrics and whole(metrics["client"]) is None):
        return "its client id is no whole number >= 0"
    return None


def gone(reply: Message) -> bool:
    """Whether this is Flower's own reply in place of a node's that is not there."""
    return reply.has_error() and reply.error.code in _GONE


@dataclass(frozen=True, kw_only=True)
class Present(Attendance):
    """Who can be asked is whoever is connected."""

    online: frozenset[Client] = frozenset()

    def there(self, client: Client, round: int) -> bool:
        return client in self.online


@dataclass(frozen=True)
class Memory:
    """What a server that was stopped has to know again. run: what clients call what they keep in this run. nodes: node ->
    client. layers: client -> the exchange after which it last kept layers of its own."""

    run: str = field(default_factory=lambda: secrets.token_hex(16))
    nodes: Mapping[int, Client] = field(default_factory=dict)
    layers: Mapping[Client, int] = field(default_factory=dict)


@dataclass
class Nodes:
    """Clients by node. A node keeps its client for good; one that is seen for the first time is asked which it is.

    It may name itself (:func:`~coterie.engines.flower.client_app` does, by ``client-id`` or ``partition-id``): then it is
    that client also with another node id, as after a restart. A node that names nobody is what it was ``before`` the server
    was stopped, or else the least number that is free. One that does not answer is asked again in the next rounds.

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
    deaf: dict[int, int] = field(default_factory=dict)
    """How often a node has not answered who it is."""
    place: dict[Client, int] = field(default_factory=dict)
    doubled: set[Client] = field(default_factory=set)

    def look(self) -> frozenset[Client]:
        """The clients that are connected now."""
        online = set(self.grid.get_node_ids())
        new = [node for node in sorted(online) if node not in self.client and self.deaf.get(node, 0) < PATIENCE]
        if new:
            self._meet(new)
        count = Counter(self.client[node] for node in online if node in self.client)
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
        said = {reply.metadata.src_node_id: reply for reply in self.grid.send_and_receive(asked, timeout=self.seconds)}
        failures = {node: _failure(said.get(node)) for node in new}
        named = {n: whole(said[n].content[METRICS].get("client")) for n in new if failures[n] is None and said[n].has_content()}
        claimed = [client for client in named.values() if client is not None]
        for node, why in failures.items():
            if why is not None:
                self._put_off(node, why)
                continue
            own = named.get(node)
            own = self.before.get(node) if own is None else own
            self.client[node] = self._free(claimed) if own is None else own
            if node in named:
                self.aware.add(self.client[node])

    def _put_off(self, node: int, why: str) -> None:
        self.deaf[node] = self.deaf.get(node, 0) + 1
        if self.deaf[node] == PATIENCE:
            text = f"node {node} has not said in {PATIENCE} queries which client it is, and takes no part: {why}"
            self.notes.append(Note(kind="node", clients=(), text=text))

    def _free(self, claimed: Iterable[Client]) -> Client:
        taken = {*self.client.values(), *self.before.values(), *claimed}
        return next(i for i in range(len(taken) + 1) if i not in taken)
