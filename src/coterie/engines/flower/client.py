"""A Flower ClientApp that can do every task of every method: measure, choose, keep layers, give a gradient.

    app = client_app(model=Net, data=load)

``load(context)`` gives this node's :class:`~coterie.data.world.ClientData`. How the client trains, the server tells it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import safetensors.torch
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from coterie import training
from coterie.data.world import ClientData, Objective
from coterie.engines.flower import messages
from coterie.engines.flower.messages import KEPT, METRICS, UPDATES
from coterie.files import read_within, within
from coterie.models.layout import Layout, own_layers
from coterie.randomness import Purpose, seeded
from coterie.records.store import write_whole


@dataclass(frozen=True)
class Participant:
    """One node's part: its data, the model, the loss and metrics, and what is done to training batches."""

    data: ClientData
    model: Callable[[], nn.Module]
    objective: Objective = Objective()  # noqa: RUF009  (frozen)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    attack: Any = None


_PARTS: dict[tuple[str, int], tuple[Participant, training.Learner]] = {}
"""The last node's part, kept between messages where a process has several."""


def client_app(
    *,
    model: Callable[[], nn.Module] | None = None,
    data: Callable[[Context], ClientData] | None = None,
    objective: Objective | None = None,
    participant: Callable[[Context], Participant] | None = None,
    client: Callable[[Context], int] | None = None,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A ClientApp for :class:`~coterie.engines.flower.MethodStrategy` and any method.

    model: makes the net. data: this node's examples. objective: loss and metrics, cross entropy and accuracy by
    themselves. client: the client's id, a whole number that stays the same when a node comes back; by itself the node
    config's ``client-id`` or ``partition-id``, else the server gives one. participant: all of it in one function, in
    place of model, data and objective. mods: Flower's client mods, as :func:`~coterie.engines.flower.boundary_mod`.
    """
    if (participant is None) == (model is None or data is None):
        raise TypeError("client_app takes model and data, or participant")

    token = uuid4().hex  # a simulation unpickles the app for every message, and this with it

    def part(context: Context) -> tuple[Participant, training.Learner]:
        key = token, context.node_id
        if key not in _PARTS:
            _PARTS.clear()
            if participant is not None:
                made = participant(context)
            else:
                assert data is not None
                assert model is not None
                made = Participant(data(context), model, objective or Objective())
            with seeded(0):
                _PARTS[key] = made, training.Learner(made.model(), made.objective, made.augment)
        return _PARTS[key]

    app = ClientApp(mods=list(mods))

    def name(context: Context) -> int | None:
        return client(context) if client is not None else named(context.node_config)

    @app.query("coterie")
    def query(message: Message, context: Context) -> Message:
        who = name(context)
        return Message(RecordDict({METRICS: MetricRecord({} if who is None else {"client": who})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        me, learner = part(context)
        return Message(trained(me, learner, message.content, context), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        me, learner = part(context)
        return Message(tested(me, learner, message.content, context), reply_to=message)

    return app


def trained(me: Participant, learner: training.Learner, content: RecordDict, context: Context) -> RecordDict:
    """Do a task; the reply holds the update, and what was measured."""
    order = messages.order_of(content)
    seed, exchange, _ = order.key
    task, keep = order.task, None
    keeping = Keeping(context, learner.layout, order.run, order.client)
    kept = own = keeping.before(exchange) if task.keep else None
    if task.keep:
        keep = learner.layout.mask(task.keep)
        own = None if kept is None else torch.where(keep, kept, torch.nan)
    offered = _models(learner, content, len(task.offered), own)
    key = seed, Purpose.TRAIN, exchange, order.client
    job = training.Job(task, offered, me.data, order.training, order.lr, key)
    replies = [training.answer(learner, part) for part in training.parts(job, learner.least)]
    reply = replies[0]
    records: dict[str, Any] = {}
    chosen = [task.offered.index(row) for row in reply.chosen]
    examples = len(me.data.train)
    metrics: dict[str, Any] = {"num-examples": me.attack.claimed(examples) if me.attack else examples, "chosen": chosen}
    if reply.losses:
        metrics |= {"losses": list(reply.losses), "accuracies": list(reply.accuracies)}
    updates = [each.row for each in replies if each.row is not None]
    if me.attack is not None:
        there = torch.arange(learner.layout.size) < learner.layout.trainable
        there = there if keep is None else there & ~keep
        updates = [me.attack.tampered(update, there, seed, exchange, order.client) for update in updates]
    if updates and keep is not None and not task.gradient and all(torch.isfinite(row.dot(row)) for row in updates):
        rows = [offered[i] for i in chosen]
        trained = torch.stack(rows).mean(0) + torch.stack(updates).mean(0)
        before = torch.full_like(trained, torch.nan) if kept is None else kept
        metrics[KEPT] = -1 if (last := keeping.last(exchange)) is None else last
        keeping.keep(exchange, torch.where(keep, trained, before))
    for name, update in zip(UPDATES, updates, strict=False):
        records[name] = messages.packed(update, learner.layout, without=keep)
    return RecordDict({**records, METRICS: MetricRecord(metrics)})


def tested(me: Participant, learner: training.Learner, content: RecordDict, context: Context) -> RecordDict:
    """The loss and metrics of the model sent, or of the ensemble, on this node's test data."""
    order = messages.order_of(content)
    kept = Keeping(context, learner.layout, order.run, order.client).before(order.key[1])
    rows = _models(learner, content, len(order.task.offered), kept)
    test = me.data.test
    with seeded(0):
        totals = learner.sums(rows, [(test.inputs, test.index, [test.targets])])[0][0]
    found = me.objective.scores({name: part for name, part in totals.items() if part[1]})
    return RecordDict({METRICS: MetricRecord({**found, "num-examples": len(test)})})


def _models(learner: training.Learner, content: RecordDict, count: int, own: Tensor | None) -> list[Tensor]:
    """The models offered, with this client's own layers in them, which the server need not send."""
    has = torch.zeros(learner.layout.size, dtype=torch.bool) if own is None else ~own.isnan()
    try:
        rows = [messages.unpacked(content[messages.name_of(i)], learner.layout, may_lack=has) for i in range(count)]
    except messages.Unfit as error:
        raise ValueError(f"of a model offered: {error}, or this client has lost the layers that it kept") from None
    return [own_layers(row, own) for row in rows]


# ----------------------------------------------------------------------------------------------------
# Layers that stay at a client, as they were after each of its last exchanges.
#
# A server that has gone back to an earlier round finds its clients there: what was kept is tagged with the run and exchange.


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
