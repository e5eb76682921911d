"""Which node of a Flower federation is which client, and who is there."""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie.core import Client, Note
from coterie.data.world import Attendance
from coterie.engines.flower.messages import METRICS, QUERY, brief, whole
from coterie.engines.workers import EngineError
from coterie.files import read_regular, reason
from coterie.settings import SettingError, UserError, check, nearest, setting

# ----------------------------------------------------------------------------------------------------
# Which client a node may be: the one that it names, the first to name it with this key, or the one that a list has for it.
#
# Every SuperNode signs its requests with a key, and Flower tells the server the public half of it. With node authentication
# that key is a file at the client, registered by the operator, and the same after a restart: who has the key is proved.
# Without, a SuperNode makes a new key at each start, so nothing about a node outlasts it.


CLAIMED, FIRST, LISTED = "claimed", "first", "listed"

_KEY_FILE, _LIST_FILE = 1 << 16, 1 << 20
"""Bytes of a public key's file, and of a list of clients, at most."""


class Refused(ValueError):
    """A node that is not the client that it says; one sentence."""


def fingerprint(key: bytes) -> str:
    """Of a public key as Flower tells it, in the words of ``ssh-keygen -l``; of other bytes, as in a simulation, likewise."""
    try:
        words = load_pem_public_key(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return _digest(key)
    return _digest(base64.b64decode(words.split()[1]))


def _digest(data: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def badges(node: int, key: bytes) -> tuple[str, ...]:
    """What a node is known by: its key, where Flower tells one, and its id. The first one outlasts the other."""
    return (fingerprint(key), f"node {node}") if key else (f"node {node}",)


def listed(clients: Mapping[Any, Any], folder: Path, name: str) -> dict[Client, str]:
    """Client -> the badge of its node, from a list of public key files, fingerprints and node ids.

    Args:
        clients: client -> the path of a public key in OpenSSH's format, ``"SHA256:..."``, or a node id.
        folder: where the paths begin.
        name: of the list, for errors.

    Raises:
        SettingError: an entry is none of these, or a node is listed twice.
    """
    found: dict[Client, str] = {}
    for key, value in clients.items():
        client = int(key) if str(key).isascii() and str(key).isdigit() and len(str(key)) < 19 else None
        if client is None:
            raise SettingError(f"{name} lists clients by their ids, whole numbers >= 0, got {str(key)[:40]!r}")
        if type(value) is int and 0 <= value < 2**64:
            badge = f"node {value}"
        elif isinstance(value, str) and value.startswith("SHA256:"):
            badge = value.strip().rstrip("=")
        elif isinstance(value, (str, Path)) and str(value):
            badge = _of_file(folder / value, client, name)
        else:
            raise SettingError(
                f"{name} must give client {client} a public key file, a fingerprint SHA256:... or a node id, got {value!r}"
            )
        for other, its in found.items():
            if its == badge:
                raise SettingError(f"{name} gives {badge} to client {other} and to client {client}; a node is one client")
        found[client] = badge
    if not found:
        raise SettingError(f"{name} lists no client")
    return found


def _of_file(path: Path, client: Client, name: str) -> str:
    try:
        key = load_ssh_public_key(read_regular(path, limit=_KEY_FILE))
        return fingerprint(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        why = reason(error)
    except (ValueError, UserError, UnsupportedAlgorithm) as error:
        why = str(error)
    raise SettingError(f"{name} gives client {client} the public key file {path}, which cannot be read: {why}")


def from_file(path: Path | str) -> Identity:
    """By the list in a TOML file of lines ``0 = "client-0.key.pub"``; paths begin at the file's folder. Raises
    :class:`~coterie.settings.SettingError`."""
    path = Path(path)
    try:
        found = tomllib.loads(read_regular(path, limit=_LIST_FILE).decode())  # node ids have 64 bits without a sign
    except OSError as error:
        raise SettingError(f"the list of clients {path} cannot be read: {reason(error)}") from None
    except UserError as error:
        raise SettingError(f"the list of clients {error}") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the list of clients {path} is no TOML file: {error}") from None
    return Identity(LISTED, listed(found, path.parent, f"the list of clients {path}"))


@dataclass
class Identity:
    """Which client a node is. rule: ``claimed``, ``first`` or ``listed``. owners: client -> the badge of its node."""

    rule: str = CLAIMED
    owners: dict[Client, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: str | Mapping[Client, Any] | Identity) -> Identity:
        """From a strategy's setting. Raises :class:`~coterie.settings.SettingError`."""
        if isinstance(given, Identity):
            return given
        if isinstance(given, Mapping):
            return cls(LISTED, listed(given, Path(), "MethodStrategy.identity"))
        if given not in (CLAIMED, FIRST):
            near = nearest(given, (CLAIMED, FIRST))
            raise SettingError(
                f"MethodStrategy.identity must be {CLAIMED}, {FIRST} or a mapping of clients to keys, got {given!r}{near}"
            )
        return cls(given)

    def going_on(self, owners: Mapping[Client, str], nodes: Mapping[int, Client]) -> Identity:
        """This, with what was known when the server was stopped. A run of an earlier Coterie tells node ids alone."""
        known = dict(owners) or ({client: f"node {node}" for node, client in nodes.items()} if self.rule == FIRST else {})
        return Identity(self.rule, {**known, **self.owners} if self.rule != LISTED else dict(self.owners))

    def owned(self, its: Iterable[str]) -> Client | None:
        """The client that belongs to the node with these badges."""
        its = set(its)
        return next((client for client, badge in self.owners.items() if badge in its), None)

    def judge(self, node: int, its: tuple[str, ...], claim: Client | None) -> Client | None:
        """The client that a node is; None if it may be any that is free. Raises :class:`Refused`.

        Args:
            node: its id, for the sentence.
            its: what it is known by, see :func:`badges`.
            claim: the client that it says it is, if it says so.
        """
        if self.rule == CLAIMED:
            return claim
        own = self.owned(its)
        if own is None and self.rule == LISTED:
            why = "is in no line of the list of clients"
        elif own is not None and claim not in (None, own):
            why = f"belongs to client {own}"
        elif own is None and claim in self.owners:
            badge = self.owners[claim]
            why = f"client {claim} is {badge if badge.startswith('node ') else f'the node with key {badge}'}"
        else:
            return claim if own is None else own
        who = f"node {node}" + (f" with key {its[0]}" if len(its) > 1 else "")
        says = "" if claim is None else f" says that it is client {claim}, and"
        raise Refused(f"{who}{says} {why}; it takes no part")

    def bind(self, client: Client, its: tuple[str, ...]) -> None:
        """A node is a client now: under ``first``, for good."""
        if self.rule == FIRST:
            self.owners[client] = its[0]


# ----------------------------------------------------------------------------------------------------
# Messages to nodes, and how long their answers are waited for: a node that keeps silent stops nobody.


LEAST = 60.0
"""Seconds of grace at least: every message starts a process at its node, and busy machines take their time."""

BEHIND = 2
"""Tasks, or tests, in a row: a node that owes so many answers is asked, and no longer waited for."""

FOLLOWED = 8
"""Of each node and kind, the newest messages whose answers are still looked for."""

_GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


def gone(reply: Message) -> bool:
    """Whether this is Flower's own reply in place of a node's that is not there."""
    return reply.has_error() and reply.error.code in _GONE


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long the server waits for the answers to what it has asked at once."""

    timeout: float = setting(3600.0, "seconds at most", gt=0, lt=1e9)
    min_replies: float = setting(0.8, "share of the answers after which the rest has the grace time left", gt=0, le=1)
    grace: float = setting(
        2.0, f"grace time, as a multiple of the time that this share took; {LEAST:g} seconds at least", ge=0, lt=1e9
    )

    def __post_init__(self) -> None:
        check(self)

    def enough(self, count: int) -> int:
        """Answers of ``count`` after which the grace time begins."""
        return math.ceil(self.min_replies * count - 1e-9)

    def rest(self, took: float) -> float:
        """The grace time, where enough answers took so many seconds."""
        return max(LEAST, self.grace * took)


class Kind(NamedTuple):
    """A node, and what it is asked for: training, tests or who it is. Who does one of these may be silent at another."""

    node: int
    what: str

    @classmethod
    def of(cls, message: Message) -> Kind:
        about = message.metadata
        return cls(about.dst_node_id, about.message_type.partition(".")[0])


@dataclass
class Post:
    """Sends messages to the nodes of a grid and collects the answers, also those that come late.

    An answer belongs to the message that it answers, by Flower's id of that message, so a late one is never taken for the
    answer to a newer message. It is a sign of life all the same.

    owed: messages without an answer since the last of this kind that the node answered, oldest first. asleep: nodes that have
    answered nothing since they last left a message without an answer. longest: the longest time that a node took for an
    answer. usual: the longest time in which there were enough answers to tasks. late: answers that came after their exchange.
    """

    grid: Grid
    owed: dict[Kind, list[str]] = field(default_factory=dict)
    asleep: set[int] = field(default_factory=set)
    usual: float | None = None
    late: list[Message] = field(default_factory=list)
    longest: dict[Kind, float] = field(default_factory=dict)
    _open: dict[str, tuple[Kind, float]] = field(default_factory=dict)

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def behind(self, kind: Kind) -> bool:
        """Whether a node is asked for this without being waited for."""
        return len(self.owed.get(kind, ())) >= BEHIND

    def ask(self, messages: Iterable[Message], waiting: Waiting, connected: Collection[int] = ()) -> list[Message]:
        """The answers to tasks. Nodes that owe too many are not waited for. If all that are asked owe too many, all are.

        Where none of those has ever answered, and others that are ``connected`` have, the timeout is the grace time after the
        longest that those took.
        """
        messages = list(messages)
        self.hear()
        asked = {Kind.of(message) for message in messages}
        waited = {kind for kind in asked if not self.behind(kind)} or asked
        reliable = {kind for kind in self.longest if not self.behind(kind)}
        others = {kind.node for kind in reliable - asked if kind.what in {one.what for one in asked}} & set(connected)
        if self.usual is not None and others and not waited & reliable and waiting.min_replies < 1:
            waiting = replace(waiting, timeout=min(waiting.timeout, self.usual + waiting.rest(self.usual)))
        replies, took = self.exchange(messages, {kind.node for kind in waited}, waiting)
        if took is not None:
            self.usual = max(took, self.usual or 0.0)
        return replies

    def exchange(
        self, messages: Iterable[Message], waited: Collection[int], waiting: Waiting
    ) -> tuple[list[Message], float | None]:
        """Send, and wait for the nodes in ``waited``: the answers of all, and in how many seconds enough had answered.

        It ends when all that are waited for have answered, when the grace time has passed after enough of them, or at the
        timeout.
        """
        sent, begun = self._send(messages), self.now()
        goal = {id for id, node in sent.items() if node in waited}
        heard: list[Message] = []
        end, took = begun + waiting.timeout, None
        while True:
            for reply in self._pull():
                id = reply.metadata.reply_to_message_id
                if gone(reply):  # there will be no answer
                    goal.discard(id)
                (heard if id in sent else self.late).append(reply)
            now = self.now()
            left = goal & self._open.keys()
            if took is None and goal and (rest := self._rest(len(goal), left, now - begun, waiting)) is not None:
                took, end = now - begun, min(end, now + rest)
            if not left or now >= end:
                break
            self.sleep(min(1.0, max(0.05, (now - begun) / 20), end - now))
        self.asleep |= {node for id, node in sent.items() if id in self._open}
        return heard, took

    def _rest(self, count: int, left: Collection[str], took: float, waiting: Waiting) -> float | None:
        """The seconds that those have who are ``left`` of ``count``; None while too few have answered.

        Of fewer than five clients, say, no one can be left out by a share of 0.8. Then the last one has the grace time after
        the longest that it is known to take, or others are.
        """
        if count - len(left) >= waiting.enough(count):
            return waiting.rest(took)
        if len(left) > 1 or count == 1 or waiting.min_replies == 1:
            return None
        known = self.longest.get(self._open[next(iter(left))][0], self.usual)
        return None if known is None else max(waiting.rest(took), known + waiting.rest(known) - took)

    def hear(self) -> None:
        """Collect the answers that have come since."""
        self.late += self._pull()

    def taken(self) -> list[Message]:
        """The late answers since this was last called."""
        late, self.late = self.late, []
        return late

    def _send(self, messages: Iterable[Message]) -> dict[str, int]:
        messages = list(messages)
        if messages:  # Flower refuses to send none
            list(self.grid.push_messages(messages))
        sent = {}
        for message in messages:
            id, kind = message.metadata.message_id, Kind.of(message)
            sent[id], self._open[id] = kind.node, (kind, self.now())
            owed = self.owed.setdefault(kind, [])
            owed.append(id)
            for old in owed[:-FOLLOWED]:
                owed.remove(old)
                self._open.pop(old, None)
        return sent

    def _pull(self) -> list[Message]:
        """The answers to messages that have none yet; who answers is awake, and owes no older answer of this kind."""
        found = []
        for reply in self.grid.pull_messages(list(self._open)) if self._open else ():
            id, lost = reply.metadata.reply_to_message_id, gone(reply)
            if id not in self._open or not (lost or reply.metadata.src_node_id == self._open[id][0].node):
                continue
            kind, when = self._open[id]
            owed = self.owed[kind]
            for old in [id] if lost else owed[: owed.index(id) + 1]:
                owed.remove(old)
                self._open.pop(old, None)
            if not lost:
                self.asleep.discard(kind.node)
                self.longest[kind] = max(self.longest.get(kind, 0.0), self.now() - when)
            found.append(reply)
        return found


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
class NodeMemory:
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
    waiting: Waiting = Waiting()
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
