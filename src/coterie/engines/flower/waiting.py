"""Messages to nodes, and how long their answers are waited for: a node that keeps silent stops nobody."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie.settings import check, setting

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
