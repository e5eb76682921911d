"""Which node of a Flower federation is which client, and who is there."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from coterie.attendance import Attendance
from coterie.core import Client, Note
from coterie.engines.flower.identity import CLAIMED, Identity, Refused, badges
from coterie.engines.flower.messages import METRICS, QUERY, brief, whole
from coterie.engines.flower.waiting import Post, Waiting, gone
from coterie.engines.workers import EngineError

PATIENCE = 3
"""Queries that a node may leave without an answer."""

SECONDS = 60.0
"""So long a node is given to say who it is, before it is asked again; if nobody has said so yet, all are waited for."""

BRIEF = 10.0
"""Where others are known already, new nodes are waited for as long as those took and the grace time, or this."""


def _failure(reply: Message) -> str | None:
    """Why a node is not known by its reply; None if it says who it is, or its app has no way to say so."""
    if reply.has_error():
        reason = reply.error.reason or ""
        plain = "registered" in reason  # the app has no function for such a query: it knows nothing of Coterie
        return None if plain else f"its app failed: {brief(reason or reply.error.code)}"
    metrics = reply.content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or ("client" in metrics and whole(metrics["client"]) is None):
        return "its client id is no whole number >= 0"
    return None


@dataclass(frozen=True, kw_only=True)
class Present(Attendance):
    """Who can be asked is whoever is connected."""

    online: frozenset[Client] = frozenset()

    def there(self, client: Client, round: int) -> bool:
        return client in self.online


@dataclass(frozen=True)
class Memory:
    """What a server that was stopped has to know again. run: what clients call what they keep in this run. nodes: node ->
    client. layers: client -> the exchange after which it last kept layers of its own. owners: client -> the badge of the
    node that it belongs to, see :mod:`.identity`."""

    run: str = field(default_factory=lambda: secrets.token_hex(16))
    nodes: Mapping[int, Client] = field(default_factory=dict)
    layers: Mapping[Client, int] = field(default_factory=dict)
    owners: Mapping[Client, str] = field(default_factory=dict)


@dataclass
class Nodes:
    """Clients by node. A node keeps its client for good; one that is seen for the first time is asked which it is.

    It may name itself (:func:`~coterie.engines.flower.client_app` does, by ``client-id`` or ``partition-id``): then it is
    that client if ``identity`` lets it be, also with another node id, as after a restart. A node that names nobody is what it
    was ``before`` the server was stopped, or else the least number that is free. One that is refused is not asked again while
    it stays connected. One that does not answer is asked again after :data:`SECONDS`, without being waited for.

    aware: clients whose apps know of Coterie. notes: what has happened since they were last taken: nodes that were refused or
    do not say who they are, answers that came too late, and two nodes that claim to be the same client at once, of which the
    one that came last is asked.
    """

    post: Post
    waiting: Waiting = Waiting()  # noqa: RUF009  (frozen)
    identity: Identity = field(default_factory=Identity)
    before: Mapping[int, Client] = field(default_factory=dict)
    client: dict[int, Client] = field(default_factory=dict)
    aware: set[Client] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)
    asked: dict[int, float] = field(default_factory=dict)
    """When a node was last asked who it is and has not answered since."""
    deaf: dict[int, int] = field(default_factory=dict)
    """How often a node has not answered who it is, or with nothing that can be used."""
    refused: set[int] = field(default_factory=set)
    place: dict[Client, int] = field(default_factory=dict)
    doubled: set[Client] = field(default_factory=set)
    greeted: set[int] = field(default_factory=set)
    """Nodes that have been asked who they are, and waited for, once."""
    took: float = 0.0
    """The longest time in which enough of them said so."""
    told: set[str] = field(default_factory=set)
    """What is told once."""

    @property
    def grid(self) -> Grid:
        return self.post.grid

    def look(self) -> frozenset[Client]:
        """The clients that are connected now."""
        keys = {node.node_id: node.public_key for node in self.grid.get_nodes()}
        online = set(keys)
        self.refused &= online  # whoever comes back is asked again
        for node in (self.asked.keys() | self.deaf.keys()) - online:
            self.asked.pop(node, None)
            self.deaf.pop(node, None)
        self.post.hear()
        self._hear(self.post.taken(), keys)
        new = [node for node in sorted(online) if self._to_ask(node)]
        if new:
            self._meet(new, keys)
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
        end, told = self.post.now() + seconds, -1
        while True:
            came = len(list(self.grid.get_node_ids()))
            if came >= count and len(there := self.look()) >= count:
                return there
            if self.post.now() >= end:
                hint = "; ".join(note.text for note in self.notes) or "are the SuperNodes running?"
                raise EngineError(f"waited {seconds:g} s for {count} nodes, and {came} came; {hint}")
            if came != told:
                tell(f"{came} of {count} nodes are there")
                told = came
            self.post.sleep(0.5)

    def awake(self, clients: Iterable[Client], members: Collection[Client]) -> frozenset[Client]:
        """Those of the connected ``clients`` that can take part: members, and others that have not fallen silent, or have
        answered something since. The silent ones are asked for a sign of life; nobody waits for it."""
        clients = frozenset(clients)
        silent = {client for client in clients.difference(members) if self.node(client) in self.post.asleep}
        nodes = [self.node(client) for client in sorted(silent) if self._lately(self.node(client)) is None]
        if nodes:
            self.asked.update(dict.fromkeys(nodes, self.post.now()))
            self._hear(self.post.exchange(self._queries(nodes), (), self.waiting)[0], {})
        return frozenset(client for client in clients if client not in silent or self.node(client) not in self.post.asleep)

    def taken(self) -> tuple[Note, ...]:
        """What has happened since this was last called."""
        notes, self.notes = tuple(self.notes), []
        return notes

    # -- who a node is ----------------------------------------------------------------------------------------------------

    def _lately(self, node: int) -> float | None:
        """When a node was asked that still has time to answer."""
        when = self.asked.get(node)
        return when if when is not None and self.post.now() < when + SECONDS else None

    def _to_ask(self, node: int) -> bool:
        known = node in self.client or node in self.refused
        return not known and self.deaf.get(node, 0) < PATIENCE and self._lately(node) is None

    def _queries(self, nodes: Iterable[int]) -> list[Message]:
        return [Message(RecordDict(), dst_node_id=node, message_type=QUERY) for node in nodes]

    def _meet(self, new: Iterable[int], keys: Mapping[int, bytes]) -> None:
        new = list(new)
        brief = max(BRIEF, self.took + self.waiting.grace * self.took)
        waiting = replace(self.waiting, timeout=min(SECONDS, brief) if self.client else SECONDS)
        first = [node for node in new if node not in self.greeted]
        self.greeted.update(new)
        self.asked.update(dict.fromkeys(new, self.post.now()))
        replies, took = self.post.exchange(self._queries(new), first, waiting)
        self.took = max(self.took, took or 0.0)
        self._hear([*replies, *self.post.taken()], keys)
        for node in new:
            if node in self.asked:
                self._put_off(node, "no answer")

    def _hear(self, replies: Iterable[Message], keys: Mapping[int, bytes]) -> None:
        """What nodes say of who they are, and what they answer when nobody waits for it any more."""
        said: dict[int, Message] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if gone(reply):
                continue
            if node in self.client and reply.metadata.message_type != QUERY:
                self._once(f"client {self.client[node]} answered after the others had gone on", (self.client[node],))
            elif reply.metadata.message_type == QUERY:
                self.asked.pop(node, None)
                said.setdefault(node, reply)
        said = {node: reply for node, reply in said.items() if node in keys and node not in {*self.client, *self.refused}}
        failures = {node: _failure(reply) for node, reply in said.items()}
        named = {
            node: whole(reply.content[METRICS].get("client"))
            for node, reply in said.items() if failures[node] is None and reply.has_content()
        }  # fmt: skip
        claimed = [client for client in named.values() if client is not None]
        for node in sorted(said):
            why = failures[node]
            if why is not None:
                self._put_off(node, why)
            else:
                self._admit(node, badges(node, keys[node]), named.get(node), claimed)
                if node in named and node in self.client:
                    self.aware.add(self.client[node])

    def _admit(self, node: int, its: tuple[str, ...], claim: Client | None, claimed: Iterable[Client]) -> None:
        try:
            own = self.identity.judge(node, its, claim)
        except Refused as error:
            self.refused.add(node)
            self._once(str(error), () if claim is None else (claim,))
            return
        if own is None and self.identity.rule == CLAIMED:
            own = self.before.get(node)
        if own is None:
            own = self._free(claimed)
        self.client[node] = own
        self.identity.bind(own, its)

    def _put_off(self, node: int, why: str) -> None:
        self.deaf[node] = self.deaf.get(node, 0) + 1
        if self.deaf[node] == PATIENCE:
            text = f"node {node} has not said in {PATIENCE} queries which client it is, and takes no part: {why}"
            self._once(text, ())

    def _once(self, text: str, clients: tuple[Client, ...]) -> None:
        if text not in self.told:
            self.told.add(text)
            self.notes.append(Note(kind="node", clients=clients, text=text))

    def _free(self, claimed: Iterable[Client]) -> Client:
        taken = {*self.client.values(), *self.before.values(), *self.identity.owners, *claimed}
        return next(i for i in range(len(taken) + 1) if i not in taken)
