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
    failure,
)
from coterie.engines.flower.names import Claim, claim_in_reply, claim_of
from coterie.engines.flower.schemas import (
    Stated,
    most_shared,
    other_versions,
    schema_in_reply,
    unstated_schema_note,
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


CLAIMED = "claimed"
FIRST_CLAIMED = "first"
LISTED = "listed"

_MAX_KEY_BYTES = 1 << 16
"""Most bytes of a public key file."""

_MAX_LIST_BYTES = 1 << 20
"""Most bytes of a list of clients."""


class Refused(ValueError):
    """A node is not the client that it claims to be. The message is one sentence."""


def fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of a public key in the format of ``ssh-keygen -l``.

    Args:
        public_key: The public key in PEM format, as Flower gives it. Other bytes, as in a
            simulation, are hashed directly.

    Returns:
        The fingerprint, ``"SHA256:..."``.
    """
    try:
        openssh_line = load_pem_public_key(public_key).public_bytes(
            Encoding.OpenSSH, PublicFormat.OpenSSH
        )
    except (ValueError, UnsupportedAlgorithm):
        return _sha256(public_key)
    return _sha256(base64.b64decode(openssh_line.split()[1]))


def _sha256(key_bytes: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key_bytes).digest()).decode().rstrip("=")


def node_identifiers(node: int, public_key: bytes) -> tuple[str, ...]:
    """Return the identifiers of a node.

    Args:
        node: The node's id.
        public_key: The node's public key; empty if Flower gives none.

    Returns:
        The fingerprint of the key, if there is one, and the node id. The first identifier is the
        more permanent one.
    """
    return (fingerprint(public_key), f"node {node}") if public_key else (f"node {node}",)


def identity_of_list(clients: Mapping[Any, Any], folder: Path, list_name: str) -> Identity:
    """Read a list of clients with public key files, fingerprints or node ids.

    Args:
        clients: Client, by its name or id -> the path of a public key in OpenSSH's format,
            ``"SHA256:..."``, or a node id.
        folder: The folder to which the paths are relative.
        list_name: Name of the list, for errors.

    Returns:
        The identity rule.

    Raises:
        SettingError: A client is neither a name nor an id, an entry has none of these forms, or a
            node is listed twice.
    """
    # Each entry of the list becomes an identifier of a node: its node id, or the fingerprint of its
    # key.
    identifiers: dict[Claim, str] = {}
    for client_key, identifier_entry in clients.items():
        claim = claim_of(str(client_key), f"{list_name}: a client")
        if type(identifier_entry) is int and 0 <= identifier_entry < 2**64:
            identifier = f"node {identifier_entry}"
        elif isinstance(identifier_entry, str) and identifier_entry.startswith("SHA256:"):
            identifier = identifier_entry.strip().rstrip("=")
        elif isinstance(identifier_entry, (str, Path)) and str(identifier_entry):
            identifier = _fingerprint_of_file(folder / identifier_entry, claim, list_name)
        else:
            raise SettingError(
                f"{list_name} must give client {claim} a public key file, a fingerprint SHA256:... or a node id, "
                f"got {identifier_entry!r}"
            )
        # A node listed twice could be either client.
        for earlier_claim, earlier_identifier in identifiers.items():
            if earlier_identifier == identifier:
                raise SettingError(
                    f"{list_name} gives {identifier} to client {earlier_claim} and to client {claim}; "
                    "a node can be only one client"
                )
        identifiers[claim] = identifier
    if not identifiers:
        raise SettingError(f"{list_name} lists no clients")
    return Identity(
        LISTED,
        owners={claim.client: identifier for claim, identifier in identifiers.items()},
        names={claim.client: claim.name for claim in identifiers if claim.name},
    )


def _fingerprint_of_file(key_file: Path, claim: Claim, list_name: str) -> str:
    try:
        public_key = load_ssh_public_key(read_regular(key_file, limit=_MAX_KEY_BYTES))
        return fingerprint(public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        problem = reason(error)
    except (ValueError, UserError, UnsupportedAlgorithm) as error:
        problem = str(error)
    raise SettingError(
        f"{list_name} gives client {claim} the public key file {key_file}, which cannot be read: {problem}"
    )


def identity_of_file(path: Path | str) -> Identity:
    """Read the list of clients in a TOML file with lines such as ``hospital-A = "a.key.pub"``, or ``0 = "client-0.key.pub"``.

    Args:
        path: Path of the file. Paths in the list are relative to its folder.

    Returns:
        The identity rule.

    Raises:
        SettingError: The file cannot be read, or an entry is not allowed.
    """
    path = Path(path)
    clients = read_toml_file(path, "the list of clients", _MAX_LIST_BYTES)
    return identity_of_list(clients, path.parent, f"the list of clients {path}")


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
    def of(cls, identity_setting: str | Mapping[Client | str, Any] | Identity) -> Identity:
        """Make the rule from a strategy's setting.

        Args:
            identity_setting: The setting.

        Returns:
            The rule.

        Raises:
            SettingError: The setting is not allowed.
        """
        if isinstance(identity_setting, Identity):
            return identity_setting
        if isinstance(identity_setting, Mapping):
            return identity_of_list(identity_setting, Path(), "MethodStrategy.identity")
        if identity_setting not in (CLAIMED, FIRST_CLAIMED):
            suggestion = nearest(identity_setting, (CLAIMED, FIRST_CLAIMED))
            raise SettingError(
                f"MethodStrategy.identity must be {CLAIMED}, {FIRST_CLAIMED} or a mapping of clients to keys, "
                f"got {identity_setting!r}{suggestion}"
            )
        return cls(identity_setting)

    def continued(
        self, owners: Mapping[Client, str], client_of_node: Mapping[int, Client]
    ) -> Identity:
        """Return this rule with the owners that were known when the server was stopped.

        Args:
            owners: Client -> the identifier of its node.
            client_of_node: Node -> client, used if ``owners`` is empty: the server was started with
                the rule ``claimed`` before.

        Returns:
            The rule.
        """
        # A list counts as it is now: a client that the operator has removed stays out.
        if self.rule == LISTED:
            return replace(self, owners=dict(self.owners))
        owners_before = dict(owners)
        if not owners_before and self.rule == FIRST_CLAIMED:
            owners_before = {client: f"node {node}" for node, client in client_of_node.items()}
        return replace(self, owners={**owners_before, **self.owners})

    def client_of(self, identifiers: Iterable[str]) -> Client | None:
        """Return the client that belongs to the node with these identifiers; None if there is none."""
        identifiers = set(identifiers)
        return next(
            (client for client, identifier in self.owners.items() if identifier in identifiers),
            None,
        )

    def judge(
        self, node: int, identifiers: tuple[str, ...], claimed: Client | None
    ) -> Client | None:
        """Decide which client a node is.

        Args:
            node: The node's id, for the error.
            identifiers: The node's identifiers, see :func:`node_identifiers`.
            claimed: The client that it claims to be. None if it claims none.

        Returns:
            The client, or None if the node can be any free client.

        Raises:
            Refused: The node is not the client that it claims to be, or it is not in the list.
        """
        if self.rule == CLAIMED:
            return claimed
        # Under ``first`` and with a list, the node's key or id decides, and a claim may only
        # confirm it.
        owner = self.client_of(identifiers)
        if owner is None and self.rule == LISTED:
            problem = "is not in the list of clients"
        elif owner is not None and claimed not in (None, owner):
            problem = f"belongs to client {owner}"
        elif owner is None and claimed in self.owners:
            owner_node = self.owners[claimed]
            if not owner_node.startswith("node "):
                owner_node = f"the node with key {owner_node}"
            problem = f"client {claimed} is {owner_node}"
        else:
            return claimed if owner is None else owner
        # Say which node is refused, and what it claims.
        subject = f"node {node}"
        if len(identifiers) > 1:
            subject += f" with key {identifiers[0]}"
        if claimed is not None:
            subject += f" claims to be client {claimed}, but"
        raise Refused(f"{subject} {problem}; it does not take part")

    def bind(self, client: Client, identifiers: tuple[str, ...]) -> None:
        """Record that a node is a client. Under ``first`` this is permanent.

        Args:
            client: The client.
            identifiers: The node's identifiers.
        """
        if self.rule == FIRST_CLAIMED:
            self.owners[client] = identifiers[0]


# ----------------------------------------------------------------------------------------------------
# Messages to nodes, and how long to wait for their answers: a node that does not answer does not
# stop the others.


MIN_GRACE_SECONDS = 60.0
"""Shortest grace time, in seconds. Every message starts a process at its node, which is slow on
busy machines."""

MAX_UNANSWERED = 2
"""Tasks, or tests, in a row that a node may leave without an answer. It still gets messages after
that, but the server does not wait for it."""

MAX_FOLLOWED = 8
"""Number of the newest messages of each node and kind whose answers are still collected."""

_GONE_CODES = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


def gone(reply: Message) -> bool:
    """Whether this is Flower's own reply in place of a node that is not connected."""
    return reply.has_error() and reply.error.code in _GONE_CODES


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long the server waits for the answers to messages sent together.

    Attributes:
        timeout: Longest time, in seconds.
        min_replies: Share of the answers after which the grace time of the others begins.
        grace: Grace time, as a multiple of the time that this share took. It is at least
            :data:`MIN_GRACE_SECONDS` seconds.
    """

    timeout: float = setting(3600.0, "maximum waiting time in seconds", gt=0, lt=1e9)
    min_replies: float = setting(
        0.8, "fraction of the answers after which only the grace time remains", gt=0, le=1
    )
    grace: float = setting(
        2.0,
        f"grace time as a multiple of the time until this fraction; at least {MIN_GRACE_SECONDS:g} seconds",
        ge=0,
        lt=1e9,
    )

    def __post_init__(self) -> None:
        check(self)

    def enough_replies(self, reply_count: int) -> int:
        """Return the number of answers, out of all, after which the grace time begins."""
        return math.ceil(self.min_replies * reply_count - 1e-9)

    def grace_seconds(self, elapsed: float) -> float:
        """Return the grace time in seconds if enough answers arrived within ``elapsed`` seconds."""
        return max(MIN_GRACE_SECONDS, self.grace * elapsed)


class RequestKind(NamedTuple):
    """A node and a kind of request, because a node may answer one kind and not another.

    Attributes:
        node: The node's id.
        request: Training, test or query for the client id.
    """

    node: int
    request: str

    @classmethod
    def of(cls, message: Message) -> RequestKind:
        """Return the receiver and the kind of a message."""
        metadata = message.metadata
        is_query = metadata.message_type == QUERY
        return cls(
            metadata.dst_node_id, "query" if is_query else metadata.message_type.partition(".")[0]
        )


@dataclass
class Messenger:
    """Sends messages to the nodes of a grid and collects the answers, including late ones.

    An answer contains Flower's id of the message that it answers. So a late answer is never
    mistaken for the answer to a newer message. But it shows that the node is alive.

    Attributes:
        grid: Flower's grid.
        unanswered: Messages without an answer since the last message of this kind that the node
            answered, oldest first.
        silent_nodes: Nodes that have answered nothing since they last left a message without an
            answer.
        usual_seconds: The longest time, in seconds, in which enough answers to tasks arrived.
        late_replies: Answers that arrived after their exchange.
        longest_seconds: The longest time, in seconds, that a node took for an answer.
    """

    grid: Grid
    unanswered: dict[RequestKind, list[str]] = field(default_factory=dict)
    silent_nodes: set[int] = field(default_factory=set)
    usual_seconds: float | None = None
    late_replies: list[Message] = field(default_factory=list)
    longest_seconds: dict[RequestKind, float] = field(default_factory=dict)
    _open_requests: dict[str, tuple[RequestKind, float]] = field(default_factory=dict)

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait some seconds."""
        time.sleep(seconds)

    def is_behind(self, request_kind: RequestKind) -> bool:
        """Whether a node gets requests of this kind without a wait for the answer."""
        return len(self.unanswered.get(request_kind, ())) >= MAX_UNANSWERED

    def ask(
        self,
        messages: Iterable[Message],
        waiting: Waiting,
        connected_nodes: Collection[int] = (),
    ) -> list[Message]:
        """Send tasks and collect the answers.

        The server does not wait for nodes with too many unanswered messages. If all receivers have
        too many, it waits for all. If it waits for no node that has answered before, but other
        connected nodes have, then the timeout is the longest time that enough answers took so far,
        plus the grace time.

        Args:
            messages: The messages.
            waiting: How long to wait.
            connected_nodes: The connected nodes.

        Returns:
            The answers.
        """
        messages = list(messages)
        self.collect_late()
        # Nodes that did not answer the last requests of this kind get the message, but nobody waits
        # for them.
        asked_kinds = {RequestKind.of(message) for message in messages}
        awaited_kinds = {
            request_kind for request_kind in asked_kinds if not self.is_behind(request_kind)
        } or asked_kinds
        # Nodes that have answered before and still do. Some of them may not be asked this time.
        reliable_kinds = {
            request_kind
            for request_kind in self.longest_seconds
            if not self.is_behind(request_kind)
        }
        requests = {request_kind.request for request_kind in asked_kinds}
        reliable_others = {
            request_kind.node
            for request_kind in reliable_kinds - asked_kinds
            if request_kind.request in requests
        }
        if (
            self.usual_seconds is not None
            and reliable_others.intersection(connected_nodes)
            and not awaited_kinds & reliable_kinds
            and waiting.min_replies < 1
        ):
            usual_timeout = self.usual_seconds + waiting.grace_seconds(self.usual_seconds)
            waiting = replace(waiting, timeout=min(waiting.timeout, usual_timeout))
        # Send the messages, and remember how long enough answers take at most.
        replies, elapsed = self.exchange(
            messages, {request_kind.node for request_kind in awaited_kinds}, waiting
        )
        if elapsed is not None:
            self.usual_seconds = max(elapsed, self.usual_seconds or 0.0)
        return replies

    def exchange(
        self, messages: Iterable[Message], awaited_nodes: Collection[int], waiting: Waiting
    ) -> tuple[list[Message], float | None]:
        """Send messages and wait for the answers.

        The wait ends when all nodes in ``awaited_nodes`` have answered, when the grace time after
        enough of their answers has passed, or at the timeout.

        Args:
            messages: The messages.
            awaited_nodes: The nodes to wait for.
            waiting: How long to wait.

        Returns:
            The answers of all nodes, and the time in seconds until there were enough; None if there
            were never enough.
        """
        # The wait ends at the timeout, or earlier if the awaited messages are answered.
        node_of_message = self._send(messages)
        start_time = self.now()
        deadline = start_time + waiting.timeout
        awaited_ids = {
            message_id for message_id, node in node_of_message.items() if node in awaited_nodes
        }
        replies: list[Message] = []
        seconds_to_enough = None
        while True:
            # Take what has arrived. An answer to a message of an earlier exchange is late.
            for reply in self._pull():
                message_id = reply.metadata.reply_to_message_id
                if gone(reply):
                    # No answer of this node will arrive.
                    awaited_ids.discard(message_id)
                (replies if message_id in node_of_message else self.late_replies).append(reply)
            current_time = self.now()
            missing_ids = awaited_ids & self._open_requests.keys()
            # Once enough answers are there, the others have only the grace time.
            if seconds_to_enough is None and awaited_ids:
                remaining = self._remaining_seconds(
                    len(awaited_ids), missing_ids, current_time - start_time, waiting
                )
                if remaining is not None:
                    seconds_to_enough = current_time - start_time
                    deadline = min(deadline, current_time + remaining)
            if not missing_ids or current_time >= deadline:
                break
            # Look often at first, and then about twenty times in the time that has passed.
            self.sleep(
                min(1.0, max(0.05, (current_time - start_time) / 20), deadline - current_time)
            )
        # Nodes that still owe an answer are silent until something arrives from them.
        self.silent_nodes |= {
            node
            for message_id, node in node_of_message.items()
            if message_id in self._open_requests
        }
        return replies, seconds_to_enough

    def _remaining_seconds(
        self, awaited: int, missing_ids: Collection[str], elapsed: float, waiting: Waiting
    ) -> float | None:
        """The seconds that remain for the missing ones of the awaited answers; None while too few have arrived.

        With fewer than five clients, for example, a share of 0.8 requires all answers. Then the
        last client has its longest time so far, or else that of the others, plus the grace time.
        """
        # Enough answers are there: the grace time begins now.
        if awaited - len(missing_ids) >= waiting.enough_replies(awaited):
            return waiting.grace_seconds(elapsed)
        # Only a single last client gets a limit of its own, see above.
        if len(missing_ids) > 1 or awaited == 1 or waiting.min_replies == 1:
            return None
        last_kind, _ = self._open_requests[next(iter(missing_ids))]
        expected = self.longest_seconds.get(last_kind, self.usual_seconds)
        if expected is None:
            return None
        return max(
            waiting.grace_seconds(elapsed), expected + waiting.grace_seconds(expected) - elapsed
        )

    def collect_late(self) -> None:
        """Collect the answers that have arrived since the last exchange."""
        self.late_replies += self._pull()

    def take_late(self) -> list[Message]:
        """Return the late answers that have arrived since the last call."""
        late_replies = self.late_replies
        self.late_replies = []
        return late_replies

    def _send(self, messages: Iterable[Message]) -> dict[str, int]:
        """Send messages; the receiver of each, by the message's id."""
        messages = list(messages)
        # Flower does not accept an empty list.
        if messages:
            list(self.grid.push_messages(messages))
        node_of_message = {}
        for message in messages:
            message_id = message.metadata.message_id
            request_kind = RequestKind.of(message)
            node_of_message[message_id] = request_kind.node
            self._open_requests[message_id] = (request_kind, self.now())
            # The oldest of many unanswered messages is forgotten: its answer is no longer collected.
            unanswered = self.unanswered.setdefault(request_kind, [])
            unanswered.append(message_id)
            for forgotten_id in unanswered[:-MAX_FOLLOWED]:
                unanswered.remove(forgotten_id)
                self._open_requests.pop(forgotten_id, None)
        return node_of_message

    def _pull(self) -> list[Message]:
        """Fetch answers to open messages; with an answer, older messages of its node and kind no longer count as unanswered."""
        replies: list[Message] = []
        if not self._open_requests:
            return replies
        # Answers to messages that are not open, or from another node than the receiver, do not
        # count.
        for reply in self.grid.pull_messages(list(self._open_requests)):
            message_id = reply.metadata.reply_to_message_id
            if message_id not in self._open_requests:
                continue
            request_kind, sent_at = self._open_requests[message_id]
            node_gone = gone(reply)
            if not node_gone and reply.metadata.src_node_id != request_kind.node:
                continue
            # An answer shows that the node is alive. So older messages to it are closed as well.
            unanswered = self.unanswered[request_kind]
            closed_ids = (
                [message_id] if node_gone else unanswered[: unanswered.index(message_id) + 1]
            )
            for closed_id in closed_ids:
                unanswered.remove(closed_id)
                self._open_requests.pop(closed_id, None)
            if not node_gone:
                self.silent_nodes.discard(request_kind.node)
                seconds = self.now() - sent_at
                self.longest_seconds[request_kind] = max(
                    self.longest_seconds.get(request_kind, 0.0), seconds
                )
            replies.append(reply)
        return replies


MAX_ID_QUERIES = 3
"""Queries after which a node without a usable answer takes no part."""

ID_QUERY_SECONDS = 60.0
"""Seconds that a node has to report its client id before the next query.

While no client is known, the server waits this long.
"""

MIN_ID_QUERY_SECONDS = 10.0
"""Shortest wait, in seconds, for the client ids of new nodes if others are known.

The wait is the time that the others took plus the grace time, if this is longer.
"""


def _id_failure(reply: Message) -> str | None:
    """Why a reply does not identify a node; None if it does, or if the app does not know Coterie."""
    # An app without functions for the query fails. For some failures this is no problem.
    if reply.has_error():
        error_text = reply.error.reason or ""
        if f"Invalid message type: {QUERY}" in error_text:
            return "its app has Flower's earlier interface, client_fn; it needs functions for @app.train and @app.evaluate"
        if NO_TEST in error_text:
            return None
        return f"its app failed: {failure(reply.error)}"
    try:
        claim_in_reply(reply.content)
        schema_in_reply(reply.content)
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

    @property
    def is_full(self) -> bool:
        """Never: any client may be disconnected."""
        return False

    def is_present(self, client: Client, round: int) -> bool:
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
        missing: Client that missed the last round -> the first of the rounds in a row that it
            missed.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(16))
    nodes: Mapping[int, Client] = field(default_factory=dict)
    layers: Mapping[str, Mapping[Client, int]] = field(default_factory=dict)
    owners: Mapping[Client, str] = field(default_factory=dict)
    names: Mapping[Client, str] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    missing: Mapping[Client, int] = field(default_factory=dict)


@dataclass
class Nodes:
    """The nodes of a federation and their clients. The client of a node never changes.

    The server asks a new node for its client id, see :data:`.messages.QUERY`. If the node claims an
    id, and ``identity`` allows it, the node is that client, also under a new node id after a
    restart. (:func:`~coterie.engines.flower.client_app` claims ``client-id`` or ``partition-id``.)
    A node that claims no id is the client that it was before the server was stopped, or else gets
    the smallest free id. A refused node is not asked again while it stays connected. A node that
    does not answer is asked again after :data:`ID_QUERY_SECONDS`, and the server does not wait for
    it then.

    A node also states the schema of its data. A node whose schema differs from the federation's is
    refused like one that is not the client that it claims to be, and is told why.

    Attributes:
        messenger: Sends and receives messages.
        waiting: How long to wait for answers.
        identity: The rule for the client id of a node.
        clients_before: Node -> client, before the server was stopped.
        client_of_node: Node -> client.
        client_names: Client -> its name, for clients with names; also of nodes that were refused.
        id_query: Content of the message that asks a node for its id: a model and a config, for apps
            that do not know Coterie.
        coterie_clients: Clients whose apps know Coterie.
        function_clients: Those of them whose apps train by a function of their own.
        notes: Events since the notes were last taken: nodes that were refused or do not report an
            id, answers that came too late, and several nodes that are the same client at the same
            time. Of these, the last one gets the messages.
        query_times: Node -> when it was last asked for its id, until it answers.
        failed_queries: Node -> how often it has not given a usable answer about its id.
        refused_nodes: Connected nodes that were refused.
        node_of_client: Client -> the node that gets its messages.
        doubled_clients: Clients with several connected nodes.
        connected_clients: Clients with a connected node.
        disconnected_clients: Known clients without a connected node.
        queried_nodes: Nodes that have once been asked for their ids with a wait for the answer.
        longest_query_seconds: The longest time, in seconds, in which enough of them answered.
        noted_texts: Texts of notes that are given only once.
        schema: What the federation states: the schema that all nodes must share. None until it is
            known.
        statements: Node -> what it states about its data.
        differing_nodes: Connected nodes that were refused because of what they state -> the client
            and the reason.
        schemaless_clients: Clients of which it was noted that they state no schema.
        server_versions: Package -> the server's version, for notes about nodes with another one.
    """

    messenger: Messenger
    waiting: Waiting = Waiting()
    identity: Identity = field(default_factory=Identity)
    clients_before: Mapping[int, Client] = field(default_factory=dict)
    client_of_node: dict[int, Client] = field(default_factory=dict)
    client_names: dict[Client, str] = field(default_factory=dict)
    id_query: RecordDict = field(default_factory=RecordDict)
    coterie_clients: set[Client] = field(default_factory=set)
    function_clients: set[Client] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)
    query_times: dict[int, float] = field(default_factory=dict)
    failed_queries: dict[int, int] = field(default_factory=dict)
    refused_nodes: set[int] = field(default_factory=set)
    node_of_client: dict[Client, int] = field(default_factory=dict)
    doubled_clients: set[Client] = field(default_factory=set)
    queried_nodes: set[int] = field(default_factory=set)
    longest_query_seconds: float = 0.0
    connected_clients: frozenset[Client] = frozenset()
    disconnected_clients: frozenset[Client] = frozenset()
    noted_texts: set[str] = field(default_factory=set)
    schema: Stated | None = None
    statements: dict[int, Stated] = field(default_factory=dict)
    differing_nodes: dict[int, tuple[Client, str]] = field(default_factory=dict)
    schemaless_clients: set[Client] = field(default_factory=set)
    server_versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def grid(self) -> Grid:
        """Flower's grid."""
        return self.messenger.grid

    @property
    def shown(self) -> Shown:
        """What is needed to show texts with the clients' names."""
        return Shown.of({}, self.client_names)

    def update(self) -> frozenset[Client]:
        """Return the clients that are connected now, and ask new nodes for their ids."""
        # 1. Which nodes are connected.
        public_keys = {node.node_id: node.public_key for node in self.grid.get_nodes()}
        online_nodes = set(public_keys)
        self._forget_disconnected(online_nodes)
        # Answers to earlier queries may have arrived meanwhile.
        self.messenger.collect_late()
        self._process_replies(self.messenger.take_late(), public_keys)
        # 2. Ask nodes without a client for their ids.
        new_nodes = [node for node in sorted(online_nodes) if self._is_to_ask(node)]
        if new_nodes:
            self._ask_new(new_nodes, public_keys)
        # 3. The connected nodes of each client. There may be several of one client.
        node_counts = Counter(
            self.client_of_node[node] for node in online_nodes if node in self.client_of_node
        )
        self.connected_clients = frozenset(node_counts)
        self._note_doubled(node_counts)
        self._note_disconnected(node_counts, online_nodes)
        # Nodes are in the order in which they joined: of several connected nodes of a client, the
        # last one gets its messages. A client without connected nodes keeps its last node.
        for node, client in self.client_of_node.items():
            if node in online_nodes or client not in node_counts:
                self.node_of_client[client] = node
        return self.connected_clients

    def _forget_disconnected(self, online_nodes: set[int]) -> None:
        """Forget refusals and open queries of nodes that have gone, so that they are asked again if they return."""
        self.refused_nodes.intersection_update(online_nodes)
        for node in self.differing_nodes.keys() - online_nodes:
            del self.differing_nodes[node]
        for node in (self.query_times.keys() | self.failed_queries.keys()) - online_nodes:
            self.query_times.pop(node, None)
            self.failed_queries.pop(node, None)

    def _note_doubled(self, node_counts: Mapping[Client, int]) -> None:
        """Note the clients that several connected nodes claim to be, once while this lasts."""
        doubled_clients = {client for client in node_counts if node_counts[client] > 1}
        for client in sorted(doubled_clients - self.doubled_clients):
            note_text = f"{node_counts[client]} nodes claim to be client {client}; only the one that came last is used"
            self.notes.append(Note(kind="node", effect="warns", clients=(client,), text=note_text))
        self.doubled_clients = doubled_clients

    def _note_disconnected(self, node_counts: Mapping[Client, int], online_nodes: set[int]) -> None:
        """Note the clients whose nodes have gone, and those that are back: nobody asks a node that is not connected."""
        disconnected_clients = {
            client
            for client, node in self.node_of_client.items()
            if client not in node_counts and node not in online_nodes
        }
        for client in sorted(disconnected_clients - self.disconnected_clients):
            note_text = f"client {client} is offline, and is not asked until it is back"
            self.notes.append(Note(kind="node", effect="warns", clients=(client,), text=note_text))
        for client in sorted(self.disconnected_clients - disconnected_clients):
            note_text = f"client {client} is back"
            self.notes.append(Note(kind="node", clients=(client,), text=note_text))
        self.disconnected_clients = frozenset(disconnected_clients)

    def known_clients(self) -> set[Client]:
        """Return the clients that have once had a node, or that a list names."""
        if self.identity.rule == LISTED:
            return set(self.identity.owners)
        return {*self.client_of_node.values(), *self.clients_before.values(), *self.identity.owners}

    def node(self, client: Client) -> int:
        """Return the node of a client; of several connected ones, the one that connected last."""
        return self.node_of_client[client]

    def wait_for_clients(
        self, wanted_clients: int, seconds: float, show_progress: Callable[[str], None]
    ) -> frozenset[Client]:
        """Wait until enough clients are connected.

        Args:
            wanted_clients: Number of clients.
            seconds: Longest time, in seconds.
            show_progress: Function that receives progress messages.

        Returns:
            The connected clients.

        Raises:
            EngineError: There are too few clients after this time.
        """
        deadline = self.messenger.now() + seconds
        shown_node_count = -1
        shown_notes = 0
        while True:
            # Refused clients count for the number of clients that have come, so that the wait ends.
            node_count = len(list(self.grid.get_node_ids()))
            clients = self.update() if node_count >= wanted_clients else frozenset()
            differing_clients = self.differing_clients
            if clients and len(clients) + len(differing_clients) >= wanted_clients:
                return clients
            if len(differing_clients) >= wanted_clients and not self.client_of_node:
                client, difference = next(iter(differing_clients.items()))
                example = self.shown.text(f"client {client}: {difference}")
                raise EngineError(
                    f"all {len(differing_clients)} clients are refused, for example {example}"
                )
            # Show what happens meanwhile, and give up after the longest time.
            for note in self.notes[shown_notes:]:
                show_progress(self.shown.text(note.text))
            shown_notes = len(self.notes)
            if self.messenger.now() >= deadline:
                note_texts = "; ".join(self.shown.text(note.text) for note in self.notes)
                likely_reason = note_texts or "are the SuperNodes running?"
                raise EngineError(
                    f"waited {seconds:g} s for {wanted_clients} clients, and {node_count} nodes connected; {likely_reason}"
                )
            if node_count != shown_node_count:
                show_progress(f"{node_count} of {wanted_clients} nodes connected")
                shown_node_count = node_count
            self.messenger.sleep(0.5)

    def responsive_clients(
        self, clients: Iterable[Client], members: Collection[Client]
    ) -> frozenset[Client]:
        """Return the connected clients that can take part.

        These are the members, and other clients that have no unanswered message or have answered
        one since. The others get a query, and the server does not wait for the answer.

        Args:
            clients: The connected clients.
            members: The members of the federation.

        Returns:
            The clients that can take part.
        """
        # Clients that left messages unanswered must show that they are alive, unless they are
        # members.
        connected_clients = frozenset(clients)
        silent_nodes = self.messenger.silent_nodes
        silent_clients = {
            client
            for client in connected_clients.difference(members)
            if self.node(client) in silent_nodes
        }
        # The query is a sign of life that costs no training. Its answer may come in a later round.
        nodes_to_ask = []
        for client in sorted(silent_clients):
            node = self.node(client)
            if not self._has_open_query(node):
                nodes_to_ask.append(node)
        if nodes_to_ask:
            self.query_times.update(dict.fromkeys(nodes_to_ask, self.messenger.now()))
            replies, _ = self.messenger.exchange(self._id_queries(nodes_to_ask), (), self.waiting)
            self._process_replies(replies, {})
        # A node whose late answer has just come is not silent any more.
        still_silent = {
            client for client in silent_clients if self.node(client) in self.messenger.silent_nodes
        }
        return connected_clients - still_silent

    @property
    def differing_clients(self) -> dict[Client, str]:
        """Client -> why its node takes no part, for connected nodes whose schema or model differs."""
        accepted_clients = set(self.client_of_node.values())
        return {
            client: difference
            for client, difference in sorted(self.differing_nodes.values())
            if client not in accepted_clients
        }

    def agree_on_schema(self) -> None:
        """Choose the schema of the federation if it is not known, and refuse the nodes that differ.

        It is the schema that most of the connected nodes share; of equally many, that of the
        smallest client id.
        """
        if self.schema is None:
            statements = {
                client: self.statements[node]
                for node, client in self.client_of_node.items()
                if node in self.statements
            }
            self.schema = most_shared(statements)
            if self.schema is not None:
                self._note_tie(statements, self.schema)
            for node in list(self.client_of_node):
                self._compare_schema(node)
        # Clients without a schema take part, but once for each of them a note says so.
        schemaless_clients = {
            client for node, client in self.client_of_node.items() if node not in self.statements
        }
        schemaless_clients -= self.schemaless_clients
        if schemaless_clients and self.schema is not None:
            self.schemaless_clients |= schemaless_clients
            clients = tuple(sorted(schemaless_clients))
            self._note_once(unstated_schema_note(map(str, clients)), clients)

    def _note_tie(self, statements: Mapping[Client, Stated], chosen_schema: Stated) -> None:
        """Note that as many nodes have another schema, so that nothing shows which one is right."""
        # Only a schema that truly differs is a rival: digests and words of the same one are equal.
        schema_counts = Counter(statement.key for statement in statements.values())
        rival_counts = [
            schema_counts[statement.key]
            for statement in statements.values()
            if statement.key != chosen_schema.key and statement.difference(chosen_schema)
        ]
        if not rival_counts or max(rival_counts) != schema_counts[chosen_schema.key]:
            return
        first_client = min(
            client for client, statement in statements.items() if statement.key == chosen_schema.key
        )
        note_text = (
            f"as many clients share another schema as share that of client {first_client}, which counts because its id is "
            "smaller; MethodStrategy.schema says which is right"
        )
        self._note_once(note_text, (first_client,))

    def _compare_schema(self, node: int) -> None:
        """Refuse a node that differs from the federation, and tell it so."""
        client = self.client_of_node[node]
        statement = self.statements.get(node)
        if statement is None:
            return
        # Without a schema of the federation, only the node's model can differ.
        difference = statement.difference(self.schema or replace(statement, model=""))
        if difference is None:
            versions = other_versions(self.server_versions, statement.versions)
            if versions is not None:
                self._note_once(f"client {client} has other versions: {brief(versions)}", (client,))
            return
        refusal = brief(f"its schema differs: {difference}")
        # The node gets no tasks. Its app logs the reason, so that its operator can mend it.
        self.refused_nodes.add(node)
        self.differing_nodes[node] = client, refusal
        del self.client_of_node[node]
        self._note_once(f"client {client} is refused: {refusal}", (client,))
        content = RecordDict({CONFIG: ConfigRecord({REFUSED: refusal})})
        message = Message(content, dst_node_id=node, message_type=QUERY)
        self.messenger.exchange([message], (), self.waiting)

    def take_notes(self) -> tuple[Note, ...]:
        """Return the notes since the last call."""
        new_notes = tuple(self.notes)
        self.notes = []
        return new_notes

    # -- client ids of nodes
    # ------------------------------------------------------------------------------------------

    def _has_open_query(self, node: int) -> bool:
        """Whether a node that was asked for its id still has time to answer."""
        query_time = self.query_times.get(node)
        return query_time is not None and self.messenger.now() < query_time + ID_QUERY_SECONDS

    def _is_to_ask(self, node: int) -> bool:
        if node in self.client_of_node or node in self.refused_nodes:
            return False
        return self.failed_queries.get(node, 0) < MAX_ID_QUERIES and not self._has_open_query(node)

    def _id_queries(self, nodes: Iterable[int]) -> list[Message]:
        return [
            Message(RecordDict(dict(self.id_query)), dst_node_id=node, message_type=QUERY)
            for node in nodes
        ]

    def _ask_new(self, new_nodes: Collection[int], public_keys: Mapping[int, bytes]) -> None:
        """Ask new nodes for their client ids, and wait only for those that are asked for the first time."""
        timeout = ID_QUERY_SECONDS
        if self.client_of_node:
            # The others are ready, so new nodes get only as long as these took, and the grace time.
            usual_seconds = (
                self.longest_query_seconds + self.waiting.grace * self.longest_query_seconds
            )
            timeout = min(timeout, max(MIN_ID_QUERY_SECONDS, usual_seconds))
        # Nobody waits for a node that has been asked before.
        first_asked = [node for node in new_nodes if node not in self.queried_nodes]
        self.queried_nodes.update(new_nodes)
        self.query_times.update(dict.fromkeys(new_nodes, self.messenger.now()))
        replies, seconds_to_enough = self.messenger.exchange(
            self._id_queries(new_nodes), first_asked, replace(self.waiting, timeout=timeout)
        )
        self.longest_query_seconds = max(self.longest_query_seconds, seconds_to_enough or 0.0)
        # A node without an answer may have up to :data:`MAX_ID_QUERIES` queries.
        self._process_replies([*replies, *self.messenger.take_late()], public_keys)
        for node in new_nodes:
            if node in self.query_times:
                self._count_failure(node, "no answer")

    def _process_replies(
        self, replies: Iterable[Message], public_keys: Mapping[int, bytes]
    ) -> None:
        """Process the nodes' answers about their ids, and note late answers to other messages."""
        # Separate answers to id queries from late answers to tasks or tests.
        id_replies: dict[int, Message] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if gone(reply):
                continue
            is_id_reply = reply.metadata.message_type == QUERY
            if is_id_reply:
                self.query_times.pop(node, None)
                id_replies.setdefault(node, reply)
            elif node in self.client_of_node:
                client = self.client_of_node[node]
                note_text = f"client {client} answered late: the other clients continued without it"
                self._note_once(note_text, (client,))
        # Only connected nodes that have no client yet.
        id_replies = {
            node: reply
            for node, reply in id_replies.items()
            if node in public_keys
            and node not in self.client_of_node
            and node not in self.refused_nodes
        }
        # All claims are read before the first node is admitted: a node without a claim must not get
        # an id that another one claims.
        failures = {node: _id_failure(reply) for node, reply in id_replies.items()}
        claims: dict[int, Claim] = {}
        for node, reply in id_replies.items():
            if failures[node] is None and reply.has_content():
                claim = claim_in_reply(reply.content)
                if claim is not None:
                    claims[node] = claim
        # Admit the nodes in the order of their ids, which does not depend on which of them answered
        # first.
        claimed_clients = [claim.client for claim in claims.values()]
        for node in sorted(id_replies):
            failure = failures[node]
            if failure is not None:
                self._count_failure(node, failure)
                continue
            identifiers = node_identifiers(node, public_keys[node])
            self._admit(node, identifiers, claims.get(node), claimed_clients)
            self._read_statement(node, id_replies[node])
            if node in self.client_of_node and self.schema is not None:
                self._compare_schema(node)

    def _read_statement(self, node: int, id_reply: Message) -> None:
        """Store what a node states about its data and its app."""
        content = id_reply.content if id_reply.has_content() else RecordDict()
        statement = schema_in_reply(content)
        if statement is None:
            self.statements.pop(node, None)
        else:
            self.statements[node] = statement
        if WHO in content and node in self.client_of_node:
            client = self.client_of_node[node]
            self.coterie_clients.add(client)
            if content[WHO].get(FUNCTIONS) == 1:
                self.function_clients.add(client)

    def _admit(
        self,
        node: int,
        identifiers: tuple[str, ...],
        claim: Claim | None,
        claimed_clients: Iterable[Client],
    ) -> None:
        """Give a node its client, or refuse it."""
        if claim and claim.name:
            # The first name stays if two names have the same hash.
            self.client_names.setdefault(claim.client, claim.name)
        # The rule of identity decides which client the node is, or refuses it.
        claimed = None if claim is None else claim.client
        try:
            client = self.identity.judge(node, identifiers, claimed)
        except Refused as error:
            self.refused_nodes.add(node)
            self._note_once(str(error), () if claimed is None else (claimed,))
            return
        # A node without a claim keeps its client after a restart of the server, or gets a free id.
        if client is None and self.identity.rule == CLAIMED:
            client = self.clients_before.get(node)
        if client is None:
            client = self._smallest_free_id(claimed_clients)
        self.client_of_node[node] = client
        self.identity.bind(client, identifiers)

    def _count_failure(self, node: int, failure: str) -> None:
        self.failed_queries[node] = self.failed_queries.get(node, 0) + 1
        if self.failed_queries[node] == MAX_ID_QUERIES:
            note_text = (
                f"node {node} did not report its client id in {MAX_ID_QUERIES} queries "
                f"and does not take part: {failure}"
            )
            self._note_once(note_text, ())

    def _note_once(self, note_text: str, clients: tuple[Client, ...]) -> None:
        if note_text not in self.noted_texts:
            self.noted_texts.add(note_text)
            self.notes.append(Note(kind="node", effect="warns", clients=clients, text=note_text))

    def _smallest_free_id(self, claimed_clients: Iterable[Client]) -> Client:
        used_ids = {
            *self.client_of_node.values(),
            *self.clients_before.values(),
            *self.identity.owners,
            *claimed_clients,
            *(client for client, _ in self.differing_nodes.values()),
        }
        return next(client for client in range(len(used_ids) + 1) if client not in used_ids)
