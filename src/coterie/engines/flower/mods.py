"""A boundary as a Flower client mod: rotation, clipping, noise and compression without a change of the app."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire, spent
from coterie.engines.flower import boundary_check, messages
from coterie.engines.flower.client import FOLDER, named
from coterie.engines.flower.messages import ARRAYS, CONFIG, FIRST, METRICS, UPDATE, UPDATES
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.store import write_whole
from coterie.settings import SettingError

UNCOVERED = "under noise this client only trains: what it measures on its data would leave without noise"
FAILED = "the app failed; under noise it does not say why, as that may tell of its data"

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

log = logging.getLogger("flwr.coterie")


def boundary_mod(
    boundary: Boundary, model: Callable[[], nn.Module], *, simulated: int | None = None, budget: float | None = None
) -> Mod:
    """A mod for a ClientApp, one that knows of Coterie or any other.

    What comes is opened, what goes is clipped, noised, sealed and compressed as the boundary says. The server's
    :class:`~coterie.engines.flower.MethodStrategy` is given the same boundary without the secret: under a rotation the
    clients draw the first model, and the server sees no row that is not sealed. With noise, updates and nothing else leave
    the client: a reply to a test is empty, and a failure has no reason.

    Args:
        boundary: The server's, with the secret that the clients share.
        model: Makes the app's net.
        simulated: The seed of a run that is to be repeated. By itself the noise is drawn anew in every message from this
            machine's randomness, and a rotation has to have a long secret: the server knows the run's seed and a digest
            of the secret, and could undo what is drawn by a number that it can guess. In a simulation tests are told.
        budget: The greatest ε, at the boundary's δ, that the updates of this client may spend in all runs together. It is
            counted in the folder ``keep-dir`` of the node's config. Beyond it the client refuses to train.

    Raises:
        SettingError: Where the boundary does not protect a real node, or a budget has no noise.
    """
    if simulated is None:
        _check_secret(boundary)
    own = None if budget is None else Budget(budget, boundary)
    with seeded(0):
        module = model()
    layout = Layout(module)
    rest, anything = messages.Rest.of(module, layout), torch.ones(layout.size, dtype=torch.bool)

    @lru_cache(maxsize=2)
    def wire(seed: int) -> Wire:
        return Wire(boundary, layout, seed)

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        category = message.metadata.message_type.partition(".")[0]
        if category not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        asked = message.content.get(CONFIG)
        if isinstance(asked, ConfigRecord) and FIRST in asked:
            return first_model(asked, message)
        order, offered = messages.order_of(message.content), []
        here = wire(order.key[0])
        for name in sorted(n for n in message.content.array_records if n.partition("-")[0] == ARRAYS):
            offered.append(here.open(messages.unpacked(message.content[name], layout, may_lack=anything)))
            message.content[name] = messages.packed(offered[-1], layout, rest, without=offered[-1].isnan())
        if category == MessageType.EVALUATE:
            return tested(message, context, call_next)
        if boundary.noise and (order.task.measure or not order.task.trains):
            raise ValueError(UNCOVERED)
        if own and (updates := here.releases(order.task)):
            own.spend(context, updates)  # before the app is asked: what follows may fail, but not be had for nothing
        return trained(here, order, offered, call_next, message, context)

    def trained(here: Wire, order: messages.Order, offered: list[Tensor], call_next: Any, *asked: Any) -> Message:
        """The app's reply, less what the boundary holds back."""
        try:
            reply: Message = call_next(*asked)
            if reply.has_content():
                out = _sealed(here, reply.content, offered, order, simulated) if reply.content.array_records else {}
                counted = {METRICS: MetricRecord({"num-examples": 1})}
                reply.content = sent({**out, **(dict(reply.content.metric_records) if here.counts else counted)})
        except Exception as error:
            raise (RuntimeError(FAILED) if boundary.noise else error) from None
        if boundary.noise and not reply.has_content():
            raise RuntimeError(FAILED)
        return reply

    def tested(message: Message, context: Context, call_next: Any) -> Message:
        """What the app found; with noise nothing, whatever it was: what it keeps of it at this node is its own affair."""
        if not boundary.noise or simulated is not None:
            reply: Message = call_next(message, context)
            if reply.has_content():
                reply.content = sent(dict(reply.content.metric_records))
            return reply
        try:
            call_next(message, context)
        except Exception:
            log.warning("the app's test failed; the server is not told", exc_info=True)
        return Message(sent({METRICS: MetricRecord()}), reply_to=message)

    def first_model(asked: ConfigRecord, message: Message) -> Message:
        """Draw and seal it; the app is not asked."""
        here = wire(int(asked["seed"]))  # type: ignore[arg-type]
        row = here.first_model(int(asked[FIRST]), model)  # type: ignore[arg-type]
        return Message(sent({ARRAYS: messages.packed(here.seal(row), layout)}), reply_to=message)

    def sent(records: dict[str, Any]) -> RecordDict:
        """With what tells of the boundary."""
        return RecordDict({**records, boundary_check.BOUNDARY: boundary_check.stated(boundary)})

    return mod


def _check_secret(boundary: Boundary) -> None:
    """Of a real node. Raises :class:`~coterie.settings.SettingError`."""
    if boundary.rotation == "none" or (boundary.secret is not None and boundary.secret >= boundary_check.SHORT):
        return
    why = (
        "got none: the server knows the seed that draws the map otherwise" if boundary.secret is None
        else "got a smaller one: the server has a digest of it, and could try out all that are so short"
    )  # fmt: skip
    raise SettingError(
        f"Boundary.rotation {boundary.rotation} needs Boundary.secret >= 2^64 at a real node, {why}; secrets.randbits(128) "
        "makes a secret for all clients"
    )


def _sealed(
    wire: Wire, content: RecordDict, offered: list[Tensor], order: messages.Order, simulated: int | None
) -> dict[str, ArrayRecord]:
    """The updates as the boundary lets them out; nothing else of the arrays that the app replied with leaves."""
    layout = wire.layout
    keep = layout.mask(order.task.keep) if order.task.keep else None
    if UPDATE in content.array_records:
        names = UPDATES[: 2 if order.task.halves else 1]  # no more than were asked for, and counted
        updates = [messages.unpacked(content[name], layout, may_lack=keep) for name in names if name in content]
    else:
        trained = messages.unpacked(messages.only(content.array_records, ARRAYS, "array records"), layout)
        updates = [trained - torch.stack(offered).mean(0)]
    exchange, out = order.key[1], {}
    noise = secrets.randbits(128) if simulated is None else simulated
    for half, update in enumerate(updates):
        update = update if keep is None else update.masked_fill(keep, 0.0)
        sent = wire.protected(update, order.client, exchange, keep, half, noise)
        if wire.boundary.compress == "none":
            out[UPDATES[half]] = messages.packed(sent, layout, without=keep)
        else:
            out[UPDATES[half]] = ArrayRecord(wire.pack(sent, order.client, exchange, half, keep))
    return out


# ----------------------------------------------------------------------------------------------------
# What a client's updates may tell of its data in all, counted by the client: a server that asks more often gets no more.
#
# The count is a file of the client's own. Nothing that a server says has a part in its name: neither a new run, nor another
# seed, exchange or client number begins a new count. Flower's node state would not do, for it is one for each run.


@dataclass(frozen=True)
class Budget:
    """The most that noised updates of one client may spend: ``epsilon`` at the boundary's δ, over all runs.

    Raises :class:`~coterie.settings.SettingError` where the boundary has no noise, which no budget is enough for.
    """

    epsilon: float
    boundary: Boundary

    def __post_init__(self) -> None:
        value = self.epsilon
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise SettingError(f"boundary_mod's budget must be a number > 0, the greatest ε, got {value!r}")
        if not self.boundary.noise:
            raise SettingError(f"boundary_mod's budget {value:g} needs Boundary.noise, got 0: any update would be beyond it")

    def spend(self, context: Context, updates: int) -> None:
        """Count ``updates`` that are about to leave; the count is on the disk when this returns. Raises ``ValueError`` where
        they would spend more than the budget, or the count cannot be kept, and counts nothing then."""
        path = _path(context)
        try:
            with _alone(path.parent):
                self._count(path, updates)
        except OSError:  # whose words would tell the server of this machine's folders
            log.warning("the count of the privacy budget cannot be kept", exc_info=True)
            raise ValueError("the count of this client's privacy budget cannot be kept; its log says why") from None

    def _count(self, path: Path, updates: int) -> None:
        counts, noise = _counted(path), repr(self.boundary.noise)
        counts[noise] = counts.get(noise, 0) + updates
        epsilon = _epsilon(counts, self.boundary.delta)
        if epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"this client's privacy budget is spent: one more answer would take ε to {epsilon:.4g}, of {self.epsilon:g} "
                f"at δ {self.boundary.delta:g}"
            )
        write_whole(path, json.dumps({"updates": counts}).encode())


def _path(context: Context) -> Path:
    """The file of this node's count: by the name that its operator has given it."""
    config = context.node_config
    folder = str(config.get(FOLDER, ""))
    if not folder:
        raise ValueError(f"a privacy budget needs a folder in the node's config, {FOLDER}: nothing else outlives Flower's runs")
    try:
        client = named(config)
    except ValueError:  # another app's: it is no name of a file
        client = None
    return Path(folder) / f"budget-{'node' if client is None else client}.json"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: two messages may come at once."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _counted(path: Path) -> dict[str, int]:
    """Noise multiplier -> how many updates have left under it. Raises ``ValueError`` for a file that does not say so."""
    if not path.exists():
        return {}
    try:
        counts = json.loads(path.read_bytes())["updates"]
        right = all(0 < float(noise) < math.inf and type(count) is int and count >= 0 for noise, count in counts.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = False
    if not right:
        raise ValueError("the count of this client's privacy budget is damaged; its operator has to look at it")
    return dict(counts)


def _epsilon(counts: Mapping[str, int], delta: float) -> float:
    """What has been spent: T Gaussian releases of multipliers z tell as much as one with 1 / z² = Σ 1 / z_t²."""
    inverse = sum(count / float(noise) ** 2 for noise, count in counts.items())
    return spent(1 / math.sqrt(inverse), 1, delta) if inverse else 0.0
