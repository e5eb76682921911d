"""The nodes of a Flower federation: their client ids, the wait for their answers, and the nodes that are connected."""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import time
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
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie.core import Client, Note
from coterie.data.attendance import Attendance
from coterie.engines.flower.messages import (
    CONFIG,
    FUNCTIONS,
    NO_TEST,
    QUERY,
    REFUSED,
    WHO,
    Unfit,
    brief,
)
from coterie.engines.flower.names import Claim, claim_of, heard
from coterie.engines.flower.schemas import (
    Stated,
    heard_schema,
    most_shared,
    other_versions,
    unstated,
)
from coterie.engines.workers import EngineError
from coterie.files import read_regular, read_toml_file, reason
from coterie.records.shown import Shown
from coterie.settings import SettingError, UserError, check, nearest, setting

# ----------------------------------------------------------------------------------------------------
# Node identity: a node's client id is the one that it claims, the one that its key claimed first,
# or the one in a list.
#
# Every SuperNode signs its requests with a key, and Flower gives the server the public key. With
# node authentication, the key is in a file at the client, is registered by the operator, and stays
# the same after a restart. So it proves the identity of the node. Without it, a SuperNode makes a
# new key at each start, and nothing identifies a node after a restart.


CLAIMED, FIRST, LISTED = "claimed", "first", "listed"

_KEY_FILE, _LIST_FILE = 1 << 16, 1 << 20
"""Most bytes of a public key file and of a list of clients."""


class Refused(ValueError):
    """A node is not the client that it claims to be. The message is one sentence."""


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key in the format of ``ssh-keygen -l``.

    Args:
        key: The public key in PEM format, as Flower gives it. Other bytes, as in a simulation, are
            hashed directly.

    Returns:
        The fingerprint, ``"SHA256:..."``.
    """
    try:
        words = load_pem_public_key(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return _digest(key)
    return _digest(base64.b64decode(words.split()[1]))


def _digest(data: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def badges(node: int, key: bytes) -> tuple[str, ...]:
    """Return the identifiers of a node.

    Args:
        node: The node's id.
        key: The node's public key; empty if Flower gives none.

    Returns:
        The fingerprint of the key, if there is one, and the node id. The first identifier is the
        more permanent one.
    """
    return (fingerprint(key), f"node {node}") if key else (f"node {node}",)


def listed(clients: Mapping[Any, Any], folder: Path, name: str) -> Identity:
    """Read a list of clients with public key files, fingerprints or node ids.

    Args:
        clients: Client, by its name or id -> the path of a public key in OpenSSH's format,
            ``"SHA256:..."``, or a node id.
        folder: The folder to which the paths are relative.
        name: Name of the list, for errors.

    Returns:
        The identity rule.

    Raises:
        SettingError: A client is neither a name nor an id, an entry has none of these forms, or a
            node is listed twice.
    """
    found: dict[Claim, str] = {}
    for key, value in clients.items():
        client = claim_of(str(key), f"{name}: a client")
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
                raise SettingError(
                    f"{name} gives {badge} to client {other} and to client {client}; a node can be only one client"
                )
        found[client] = badge
    if not found:
        raise SettingError(f"{name} lists no clients")
    owners = {claim.client: badge for claim, badge in found.items()}
    return Identity(LISTED, owners, {claim.client: claim.name for claim in found if claim.name})


def _of_file(path: Path, client: Claim, name: str) -> str:
    try:
        key = load_ssh_public_key(read_regular(path, limit=_KEY_FILE))
        return fingerprint(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        why = reason(error)
    except (ValueError, UserError, UnsupportedAlgorithm) as error:
        why = str(error)
    raise SettingError(
        f"{name} gives client {client} the public key file {path}, which cannot be read: {why}"
    )


def from_file(path: Path | str) -> Identity:
    """Read the list of clients in a TOML file with lines such as ``hospital-A = "a.key.pub"``, or ``0 = "client-0.key.pub"``.

    Args:
        path: Path of the file. Paths in the list are relative to its folder.

    Returns:
        The identity rule.

    Raises:
        SettingError: The file cannot be read, or an entry is not allowed.
    """
    path = Path(path)
    found = read_toml_file(path, "the list of clients", _LIST_FILE)
    return listed(found, path.parent, f"the list of clients {path}")


@dataclass
class Identity:
    """The rule for the client id of a node.

    Attributes:
        rule: ``claimed``, ``first`` or ``listed``.
        owners: Client -> the identifier of its node.
        names: Client -> its name in the list.
    """

    rule: str = CLAIMED
    owners: dict[Client, str] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: str | Mapping[Client | str, Any] | Identity) -> Identity:
        """Make the rule from a strategy's setting.

        Args:
            given: The setting.

        Returns:
            The rule.

        Raises:
            SettingError: The setting is not allowed.
        """
        if isinstance(given, Identity):
            return given
        if isinstance(given, Mapping):
            return listed(given, Path(), "MethodStrategy.identity")
        if given not in (CLAIMED, FIRST):
            near = nearest(given, (CLAIMED, FIRST))
            raise SettingError(
                f"MethodStrategy.identity must be {CLAIMED}, {FIRST} or a mapping of clients to keys, got {given!r}{near}"
            )
        return cls(given)

    def going_on(self, owners: Mapping[Client, str], nodes: Mapping[int, Client]) -> Identity:
        """Return this rule with the owners that were known when the server was stopped.

        Args:
            owners: Client -> the identifier of its node.
            nodes: Node -> client, used if ``owners`` is empty: the server was started with the rule
                ``claimed`` before.

        Returns:
            The rule.
        """
        known = dict(owners) or (
            {client: f"node {node}" for node, client in nodes.items()} if self.rule == FIRST else {}
        )
        return replace(
            self, owners={**known, **self.owners} if self.rule != LISTED else dict(self.owners)
        )

    def owned(self, its: Iterable[str]) -> Client | None:
        """Return the client that belongs to the node with these identifiers; None if there is none."""
        its = set(its)
        return next((client for client, badge in self.owners.items() if badge in its), None)

    def judge(self, node: int, its: tuple[str, ...], claim: Client | None) -> Client | None:
        """Decide which client a node is.

        Args:
            node: The node's id, for the error.
            its: The node's identifiers, see :func:`badges`.
            claim: The client that it claims to be. None if it claims none.

        Returns:
            The client, or None if the node can be any free client.

        Raises:
            Refused: The node is not the client that it claims to be, or it is not in the list.
        """
        if self.rule == CLAIMED:
            return claim
        own = self.owned(its)
        if own is None and self.rule == LISTED:
            why = "is not in the list of clients"
        elif own is not None and claim not in (None, own):
            why = f"belongs to client {own}"
        elif own is None and claim in self.owners:
            badge = self.owners[claim]
            why = f"client {claim} is {badge if badge.startswith('node ') else f'the node with key {badge}'}"
        else:
            return claim if own is None else own
        who = f"node {node}" + (f" with key {its[0]}" if len(its) > 1 else "")
        says = "" if claim is None else f" claims to be client {claim}, but"
        raise Refused(f"{who}{says} {why}; it does not take part")

    def bind(self, client: Client, its: tuple[str, ...]) -> None:
        """Record that a node is a client. Under ``first`` this is permanent.

        Args:
            client: The client.
            its: The node's identifiers.
        """
        if self.rule == FIRST:
            self.owners[client] = its[0]


# ----------------------------------------------------------------------------------------------------
# Messages to nodes, and how long to wait for their answers: a node that does not answer does not
# stop the others.


LEAST = 60.0
"""Shortest grace time, in seconds. Every message starts a process at its node, which is slow on
busy machines."""

BEHIND = 2
"""Tasks, or tests, in a row: a node that owes this many answers still gets messages, but the server
does not wait for it."""

FOLLOWED = 8
"""Number of the newest messages of each node and kind whose answers are still collected."""

_GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def gone(reply: Message) -> bool:
    """Whether this is Flower's own reply in place of a node that is not connected."""
    return reply.has_error() and reply.error.code in _GONE


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long the server waits for the answers to messages sent together.

    Attributes:
        timeout: Longest time, in seconds.
        min_replies: Share of the answers after which the grace time of the others begins.
        grace: Grace time, as a multiple of the time that this share took. It is at least
            :data:`LEAST` seconds.
    """

    timeout: float = setting(3600.0, "maximum waiting time in seconds", gt=0, lt=1e9)
    min_replies: float = setting(
        0.8, "fraction of the answers after which only the grace time remains", gt=0, le=1
    )
    grace: float = setting(
        2.0,
        f"grace time as a multiple of the time until this fraction; at least {LEAST:g} seconds",
        ge=0,
        lt=1e9,
    )

    def __post_init__(self) -> None:
        check(self)

    def enough(self, count: int) -> int:
        """Return the number of answers, out of ``count``, after which the grace time begins."""
        return math.ceil(self.min_replies * count - 1e-9)

    def rest(self, took: float) -> float:
        """Return the grace time in seconds if enough answers arrived within ``took`` seconds."""
        return max(LEAST, self.grace * took)


class RequestKind(NamedTuple):
    """A node and a kind of request, because a node may answer one kind and not another.

    Attributes:
        node: The node's id.
        what: Training, test or query for the client id.
    """

    node: int
    what: str

    @classmethod
    def of(cls, message: Message) -> RequestKind:
        """Return the receiver and the kind of a message."""
        about = message.metadata
        return cls(
            about.dst_node_id,
            "query" if about.message_type == QUERY else about.message_type.partition(".")[0],
        )


@dataclass
class Messenger:
    """Sends messages to the nodes of a grid and collects the answers, including late ones.

    An answer contains Flower's id of the message that it answers. So a late answer is never
    mistaken for the answer to a newer message. But it shows that the node is alive.

    Attributes:
        grid: Flower's grid.
        owed: Messages without an answer since the last message of this kind that the node answered,
            oldest first.
        asleep: Nodes that have answered nothing since they last left a message without an answer.
        usual: The longest time, in seconds, in which enough answers to tasks arrived.
        late: Answers that arrived after their exchange.
        longest: The longest time, in seconds, that a node took for an answer.
    """

    grid: Grid
    owed: dict[RequestKind, list[str]] = field(default_factory=dict)
    asleep: set[int] = field(default_factory=set)
    usual: float | None = None
    late: list[Message] = field(default_factory=list)
    longest: dict[RequestKind, float] = field(default_factory=dict)
    _open: dict[str, tuple[RequestKind, float]] = field(default_factory=dict)

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait some seconds."""
        time.sleep(seconds)

    def behind(self, kind: RequestKind) -> bool:
        """Whether a node gets requests of this kind without a wait for the answer."""
        return len(self.owed.get(kind, ())) >= BEHIND

    def ask(
        self, messages: Iterable[Message], waiting: Waiting, connected: Collection[int] = ()
    ) -> list[Message]:
        """Send tasks and collect the answers.

        The server does not wait for nodes that owe too many answers. If all receivers owe too many,
        it waits for all. If it waits for no node that has answered before, but other connected
        nodes have, then the timeout is the longest time that enough answers took so far, plus the
        grace time.

        Args:
            messages: The messages.
            waiting: How long to wait.
            connected: The connected nodes.

        Returns:
            The answers.
        """
        messages = list(messages)
        self.hear()
        asked = {RequestKind.of(message) for message in messages}
        waited = {kind for kind in asked if not self.behind(kind)} or asked
        reliable = {kind for kind in self.longest if not self.behind(kind)}
        others = {
            kind.node for kind in reliable - asked if kind.what in {one.what for one in asked}
        } & set(connected)
        if self.usual is not None and others and not waited & reliable and waiting.min_replies < 1:
            waiting = replace(
                waiting, timeout=min(waiting.timeout, self.usual + waiting.rest(self.usual))
            )
        replies, took = self.exchange(messages, {kind.node for kind in waited}, waiting)
        if took is not None:
            self.usual = max(took, self.usual or 0.0)
        return replies

    def exchange(
        self, messages: Iterable[Message], waited: Collection[int], waiting: Waiting
    ) -> tuple[list[Message], float | None]:
        """Send messages and wait for the answers.

        The wait ends when all nodes in ``waited`` have answered, when the grace time after enough
        of their answers has passed, or at the timeout.

        Args:
            messages: The messages.
            waited: The nodes to wait for.
            waiting: How long to wait.

        Returns:
            The answers of all nodes, and the time in seconds until there were enough; None if there
            were never enough.
        """
        sent, begun = self._send(messages), self.now()
        goal = {id for id, node in sent.items() if node in waited}
        heard: list[Message] = []
        end, took = begun + waiting.timeout, None
        while True:
            for reply in self._pull():
                id = reply.metadata.reply_to_message_id
                if gone(reply):  # no answer will arrive
                    goal.discard(id)
                (heard if id in sent else self.late).append(reply)
            now = self.now()
            left = goal & self._open.keys()
            if (
                took is None
                and goal
                and (rest := self._rest(len(goal), left, now - begun, waiting)) is not None
            ):
                took, end = now - begun, min(end, now + rest)
            if not left or now >= end:
                break
            self.sleep(min(1.0, max(0.05, (now - begun) / 20), end - now))
        self.asleep |= {node for id, node in sent.items() if id in self._open}
        return heard, took

    def _rest(
        self, count: int, left: Collection[str], took: float, waiting: Waiting
    ) -> float | None:
        """The seconds that remain for the ``left`` of ``count`` answers; None while too few have arrived.

        With fewer than five clients, for example, a share of 0.8 requires all answers. Then the
        last client has its longest time so far, or else that of the others, plus the grace time.
        """
        if count - len(left) >= waiting.enough(count):
            return waiting.rest(took)
        if len(left) > 1 or count == 1 or waiting.min_replies == 1:
            return None
        known = self.longest.get(self._open[next(iter(left))][0], self.usual)
        return (
            None if known is None else max(waiting.rest(took), known + waiting.rest(known) - took)
        )

    def hear(self) -> None:
        """Collect the answers that have arrived since the last exchange."""
        self.late += self._pull()

    def taken(self) -> list[Message]:
        """Return the late answers that have arrived since the last call."""
        late, self.late = self.late, []
        return late

    def _send(self, messages: Iterable[Message]) -> dict[str, int]:
        messages = list(messages)
        if messages:  # Flower does not accept an empty list
            list(self.grid.push_messages(messages))
        sent = {}
        for message in messages:
            id, kind = message.metadata.message_id, RequestKind.of(message)
            sent[id], self._open[id] = kind.node, (kind, self.now())
            owed = self.owed.setdefault(kind, [])
            owed.append(id)
            for old in owed[:-FOLLOWED]:
                owed.remove(old)
                self._open.pop(old, None)
        return sent

    def _pull(self) -> list[Message]:
        """Fetch answers to open messages; a node that answers is awake and owes no older answer of this kind."""
        found = []
        for reply in self.grid.pull_messages(list(self._open)) if self._open else ():
            id, lost = reply.metadata.reply_to_message_id, gone(reply)
            if id not in self._open or not (
                lost or reply.metadata.src_node_id == self._open[id][0].node
            ):
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
"""Queries after which a node without a usable answer takes no part."""

SECONDS = 60.0
"""Seconds that a node has to report its client id before the next query.

While no client is known, the server waits this long.
"""

BRIEF = 10.0
"""Shortest wait, in seconds, for the client ids of new nodes if others are known.

The wait is the time that the others took plus the grace time, if this is longer.
"""


def _failure(reply: Message) -> str | None:
    """Why a reply does not identify a node; None if it does, or if the app does not know Coterie."""
    if reply.has_error():
        reason = reply.error.reason or ""
        if f"Invalid message type: {QUERY}" in reason:
            return "its app has Flower's earlier interface, client_fn; it needs functions for @app.train and @app.evaluate"
        return None if NO_TEST in reason else f"its app failed: {brief(reason or reply.error.code)}"
    try:
        heard(reply.content)
        heard_schema(reply.content)
    except Unfit as error:
        return brief(error)
    return None


@dataclass(frozen=True, kw_only=True)
class ConnectedClients(Attendance):
    """An attendance in which the connected clients are present.

    Attributes:
        online: The connected clients.
    """

    online: frozenset[Client] = frozenset()

    def there(self, client: Client, round: int) -> bool:
        """Whether a client is connected."""
        return client in self.online


@dataclass(frozen=True)
class NodeMemory:
    """The server's knowledge of the nodes, which it needs again after a restart.

    Attributes:
        run: Name of the run, under which clients store their own values.
        nodes: Node -> client.
        layers: Name of a part of the plan -> client -> the exchange after which it last stored own
            values.
        owners: Client -> the identifier of its node, see :class:`Identity`.
        names: Client -> its name, for clients with names.
        ended: Name of a part that ended -> the exchange from which on own values of it count again.
        schema: The schema that all clients must share, as :meth:`.schemas.Stated.to_json` writes
            it; None if it is not known.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(16))
    nodes: Mapping[int, Client] = field(default_factory=dict)
    layers: Mapping[str, Mapping[Client, int]] = field(default_factory=dict)
    owners: Mapping[Client, str] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None


@dataclass
class Nodes:
    """The nodes of a federation and their clients. The client of a node never changes.

    The server asks a new node for its client id, see :data:`.messages.QUERY`. If the node claims an
    id, and ``identity`` allows it, the node is that client, also under a new node id after a
    restart. (:func:`~coterie.engines.flower.client_app` claims ``client-id`` or ``partition-id``.)
    A node that claims no id is the client that it was ``before`` the server was stopped, or else
    gets the smallest free id. A refused node is not asked again while it stays connected. A node
    that does not answer is asked again after :data:`SECONDS`, and the server does not wait for it
    then.

    A node also states the schema of its data. A node whose schema differs from the federation's is
    refused like one that is not the client that it claims to be, and is told why.

    Attributes:
        messenger: Sends and receives messages.
        waiting: How long to wait for answers.
        identity: The rule for the client id of a node.
        before: Node -> client, before the server was stopped.
        client: Node -> client.
        names: Client -> its name, for clients with names; also of nodes that were refused.
        greeting: Content of the message that asks a node for its id: a model and a config, for apps
            that do not know Coterie.
        aware: Clients whose apps know Coterie.
        functions: Those of them whose apps train by a function of their own.
        notes: Events since the notes were last taken: nodes that were refused or do not report an
            id, answers that came too late, and several nodes that are the same client at the same
            time. Of these, the last one gets the messages.
        asked: Node -> when it was last asked for its id, until it answers.
        deaf: Node -> how often it has not given a usable answer about its id.
        refused: Connected nodes that were refused.
        place: Client -> the node that gets its messages.
        doubled: Clients with several connected nodes.
        greeted: Nodes that have once been asked for their ids with a wait for the answer.
        took: The longest time, in seconds, in which enough of them answered.
        noted: Texts of notes that are given only once.
        schema: What the federation states: the schema that all nodes must share. None until it is
            known.
        stated: Node -> what it states about its data.
        unlike: Connected nodes that were refused because of what they state -> the client and the
            reason.
        mute: Clients of which it was noted that they state no schema.
        versions: Package -> the server's version, for notes about nodes with another one.
    """

    messenger: Messenger
    waiting: Waiting = Waiting()
    identity: Identity = field(default_factory=Identity)
    before: Mapping[int, Client] = field(default_factory=dict)
    client: dict[int, Client] = field(default_factory=dict)
    names: dict[Client, str] = field(default_factory=dict)
    greeting: RecordDict = field(default_factory=RecordDict)
    aware: set[Client] = field(default_factory=set)
    functions: set[Client] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)
    asked: dict[int, float] = field(default_factory=dict)
    deaf: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    place: dict[Client, int] = field(default_factory=dict)
    doubled: set[Client] = field(default_factory=set)
    greeted: set[int] = field(default_factory=set)
    took: float = 0.0
    noted: set[str] = field(default_factory=set)
    schema: Stated | None = None
    stated: dict[int, Stated] = field(default_factory=dict)
    unlike: dict[int, tuple[Client, str]] = field(default_factory=dict)
    mute: set[Client] = field(default_factory=set)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def grid(self) -> Grid:
        """Flower's grid."""
        return self.messenger.grid

    @property
    def shown(self) -> Shown:
        """What is needed to show texts with the clients' names."""
        return Shown.of({}, self.names)

    def look(self) -> frozenset[Client]:
        """Return the clients that are connected now, and ask new nodes for their ids."""
        keys = {node.node_id: node.public_key for node in self.grid.get_nodes()}
        online = set(keys)
        self.refused &= online  # a node that returns is asked again
        for node in self.unlike.keys() - online:
            del self.unlike[node]
        for node in (self.asked.keys() | self.deaf.keys()) - online:
            self.asked.pop(node, None)
            self.deaf.pop(node, None)
        self.messenger.hear()
        self._hear(self.messenger.taken(), keys)
        new = [node for node in sorted(online) if self._to_ask(node)]
        if new:
            self._meet(new, keys)
        count = Counter(self.client[node] for node in online if node in self.client)
        for client in sorted(count):
            if count[client] > 1 and client not in self.doubled:
                text = f"{count[client]} nodes claim to be client {client}; only the one that came last is used"
                self.notes.append(Note(kind="node", effect="warns", clients=(client,), text=text))
        self.doubled = {client for client in count if count[client] > 1}
        for node, client in self.client.items():
            if node in online or client not in count:
                self.place[client] = node
        return frozenset(count)

    def node(self, client: Client) -> int:
        """Return the node of a client; of several connected ones, the one that connected last."""
        return self.place[client]

    def wait(self, count: int, seconds: float, tell: Callable[[str], None]) -> frozenset[Client]:
        """Wait until enough clients are connected.

        Args:
            count: Number of clients.
            seconds: Longest time, in seconds.
            tell: Function that receives progress messages.

        Returns:
            The connected clients.

        Raises:
            EngineError: There are too few clients after this time.
        """
        end, last, said = self.messenger.now() + seconds, -1, 0
        while True:
            came = len(list(self.grid.get_node_ids()))
            there = self.look() if came >= count else frozenset()
            unlike = self.unlike_clients
            if there and len(there) + len(unlike) >= count:
                return there
            if len(unlike) >= count and not self.client:
                who, why = next(iter(unlike.items()))
                raise EngineError(
                    f"all {len(unlike)} clients are refused, for example {self.shown.text(f'client {who}: {why}')}"
                )
            for note in self.notes[said:]:
                tell(self.shown.text(note.text))
            said = len(self.notes)
            if self.messenger.now() >= end:
                hint = (
                    "; ".join(self.shown.text(note.text) for note in self.notes)
                    or "are the SuperNodes running?"
                )
                raise EngineError(
                    f"waited {seconds:g} s for {count} clients, and {came} nodes connected; {hint}"
                )
            if came != last:
                tell(f"{came} of {count} nodes connected")
                last = came
            self.messenger.sleep(0.5)

    def awake(self, clients: Iterable[Client], members: Collection[Client]) -> frozenset[Client]:
        """Return the connected clients that can take part.

        These are the members, and other clients that have no unanswered message or have answered
        one since. The others get a query, and the server does not wait for the answer.

        Args:
            clients: The connected clients.
            members: The members of the federation.

        Returns:
            The clients that can take part.
        """
        clients = frozenset(clients)
        silent = {
            client
            for client in clients.difference(members)
            if self.node(client) in self.messenger.asleep
        }
        nodes = [
            self.node(client)
            for client in sorted(silent)
            if self._lately(self.node(client)) is None
        ]
        if nodes:
            self.asked.update(dict.fromkeys(nodes, self.messenger.now()))
            self._hear(self.messenger.exchange(self._queries(nodes), (), self.waiting)[0], {})
        return frozenset(
            client
            for client in clients
            if client not in silent or self.node(client) not in self.messenger.asleep
        )

    @property
    def unlike_clients(self) -> dict[Client, str]:
        """Client -> why its node takes no part, for connected nodes whose schema or model differs."""
        part = set(self.client.values())
        return {client: why for client, why in sorted(self.unlike.values()) if client not in part}

    def agree(self) -> None:
        """Choose the schema of the federation if it is not known, and refuse the nodes that differ.

        It is the schema that most of the connected nodes share; of equally many, that of the
        smallest client id.
        """
        if self.schema is None:
            by_client = {
                client: self.stated[node]
                for node, client in self.client.items()
                if node in self.stated
            }
            self.schema = most_shared(by_client)
            if self.schema is not None:
                self._tell_of_tie(by_client, self.schema)
            for node in list(self.client):
                self._compare(node)
        silent = {
            client for node, client in self.client.items() if node not in self.stated
        } - self.mute
        if silent and self.schema is not None:
            self.mute |= silent
            self._once(unstated(map(str, sorted(silent))), tuple(sorted(silent)))

    def _tell_of_tie(self, stated: Mapping[Client, Stated], chosen: Stated) -> None:
        """Note that as many nodes have another schema, so that nothing shows which one is right."""
        count = Counter(one.key for one in stated.values())
        others = [
            client
            for client, one in stated.items()
            if one.key != chosen.key and one.difference(chosen)
        ]
        if others and max(count[stated[client].key] for client in others) == count[chosen.key]:
            first = min(client for client, one in stated.items() if one.key == chosen.key)
            text = (
                f"as many clients share another schema as share that of client {first}, which counts because its id is "
                "smaller; MethodStrategy.schema says which is right"
            )
            self._once(text, (first,))

    def _compare(self, node: int) -> None:
        """Refuse a node that differs from the federation, and tell it so."""
        client, stated = self.client[node], self.stated.get(node)
        if stated is None:
            return
        why = stated.difference(self.schema or replace(stated, model=""))
        if why is None:
            if (other := other_versions(self.versions, stated.versions)) is not None:
                self._once(f"client {client} has other versions: {brief(other)}", (client,))
            return
        why = brief(f"its schema differs: {why}")
        self.refused.add(node)
        self.unlike[node] = client, why
        del self.client[node]
        self._once(f"client {client} is refused: {why}", (client,))
        told = RecordDict({CONFIG: ConfigRecord({REFUSED: why})})
        self.messenger.exchange(
            [Message(told, dst_node_id=node, message_type=QUERY)], (), self.waiting
        )

    def taken(self) -> tuple[Note, ...]:
        """Return the notes since the last call."""
        notes, self.notes = tuple(self.notes), []
        return notes

    # -- client ids of nodes
    # ------------------------------------------------------------------------------------------

    def _lately(self, node: int) -> float | None:
        """When a node was asked, if it still has time to answer."""
        when = self.asked.get(node)
        return when if when is not None and self.messenger.now() < when + SECONDS else None

    def _to_ask(self, node: int) -> bool:
        known = node in self.client or node in self.refused
        return not known and self.deaf.get(node, 0) < PATIENCE and self._lately(node) is None

    def _queries(self, nodes: Iterable[int]) -> list[Message]:
        return [
            Message(RecordDict(dict(self.greeting)), dst_node_id=node, message_type=QUERY)
            for node in nodes
        ]

    def _meet(self, new: Iterable[int], keys: Mapping[int, bytes]) -> None:
        new = list(new)
        brief = max(BRIEF, self.took + self.waiting.grace * self.took)
        waiting = replace(self.waiting, timeout=min(SECONDS, brief) if self.client else SECONDS)
        first = [node for node in new if node not in self.greeted]
        self.greeted.update(new)
        self.asked.update(dict.fromkeys(new, self.messenger.now()))
        replies, took = self.messenger.exchange(self._queries(new), first, waiting)
        self.took = max(self.took, took or 0.0)
        self._hear([*replies, *self.messenger.taken()], keys)
        for node in new:
            if node in self.asked:
                self._put_off(node, "no answer")

    def _hear(self, replies: Iterable[Message], keys: Mapping[int, bytes]) -> None:
        """Process the nodes' answers about their ids, and note late answers to other messages."""
        said: dict[int, Message] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if gone(reply):
                continue
            if node in self.client and reply.metadata.message_type != QUERY:
                self._once(
                    f"client {self.client[node]} answered late: the other clients continued without it",
                    (self.client[node],),
                )
            elif reply.metadata.message_type == QUERY:
                self.asked.pop(node, None)
                said.setdefault(node, reply)
        said = {
            node: reply
            for node, reply in said.items()
            if node in keys and node not in {*self.client, *self.refused}
        }
        failures = {node: _failure(reply) for node, reply in said.items()}
        knowing = {
            n: r.content[WHO]
            for n, r in said.items()
            if failures[n] is None and r.has_content() and WHO in r.content
        }
        named = {
            node: claim for node in knowing if (claim := heard(said[node].content)) is not None
        }
        claimed = [claim.client for claim in named.values()]
        for node in sorted(said):
            why = failures[node]
            if why is not None:
                self._put_off(node, why)
            else:
                self._admit(node, badges(node, keys[node]), named.get(node), claimed)
                stated = heard_schema(said[node].content) if said[node].has_content() else None
                if stated is None:
                    self.stated.pop(node, None)
                else:
                    self.stated[node] = stated
                if node in knowing and node in self.client:
                    self.aware.add(self.client[node])
                    if knowing[node].get(FUNCTIONS) == 1:
                        self.functions.add(self.client[node])
                if node in self.client and self.schema is not None:
                    self._compare(node)

    def _admit(
        self, node: int, its: tuple[str, ...], claim: Claim | None, claimed: Iterable[Client]
    ) -> None:
        if claim and claim.name:
            self.names.setdefault(
                claim.client, claim.name
            )  # the first one stays if two names have the same hash
        who = None if claim is None else claim.client
        try:
            own = self.identity.judge(node, its, who)
        except Refused as error:
            self.refused.add(node)
            self._once(str(error), () if who is None else (who,))
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
            text = f"node {node} did not report its client id in {PATIENCE} queries and does not take part: {why}"
            self._once(text, ())

    def _once(self, text: str, clients: tuple[Client, ...]) -> None:
        if text not in self.noted:
            self.noted.add(text)
            self.notes.append(Note(kind="node", effect="warns", clients=clients, text=text))

    def _free(self, claimed: Iterable[Client]) -> Client:
        unlike = [client for client, _ in self.unlike.values()]
        taken = {
            *self.client.values(),
            *self.before.values(),
            *self.identity.owners,
            *claimed,
            *unlike,
        }
        return next(i for i in range(len(taken) + 1) if i not in taken)
