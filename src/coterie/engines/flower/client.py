"""A Flower ClientApp that can do every task of every method: measure, choose, keep layers, compute a gradient.

    app = client_app(model=Net, data=load)

``load(context)`` returns this node's :class:`~coterie.data.world.ClientData`. The server sends the training settings.

    app = client_app(model=Net, data=load, train=train, test=test)

An app with functions of its own, as in Flower's quickstart; ``load(context)`` then returns two PyTorch data sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
from coterie.data.objective import Objective
from coterie.data.world import ClientData
from coterie.engines.flower import messages
from coterie.engines.flower.functions import FunctionLearner, Functions, Test, Train, client_data
from coterie.engines.flower.messages import FUNCTIONS, KEPT, METRICS, QUERY, UPDATES
from coterie.engines.flower.names import Claim, claim_of, named, said
from coterie.files import read_within, within
from coterie.models.layout import Layout, own_layers
from coterie.randomness import Purpose, seeded
from coterie.records.store import write_whole


@dataclass(frozen=True)
class Participant:
    """One node's part in a federation.

    Attributes:
        data: The node's examples.
        model: Function that makes the net.
        objective: Loss and metrics.
        augment: Augmentation of training batches. None means none.
        attack: The node's attack if it simulates an adversary.
        functions: The app's own functions, in place of Coterie's training and tests. None means Coterie's.
    """

    data: ClientData
    model: Callable[[], nn.Module]
    objective: Objective = Objective()  # noqa: RUF009  (frozen)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    attack: Any = None
    functions: Functions | None = None

    def learner(self) -> training.Learner:
        """Make the learner that trains and tests this node's models."""
        if self.functions is not None:
            return FunctionLearner(self.model(), self.functions, self.objective)
        return training.Learner(self.model(), self.objective, self.augment)


_PARTS: dict[tuple[str, int], tuple[Participant, training.Learner]] = {}
"""The part of the last node, kept for the next message if one process handles several."""


def client_app(
    *,
    model: Callable[[], nn.Module] | None = None,
    data: Callable[[Context], Any] | None = None,
    train: Train | None = None,
    test: Test | None = None,
    objective: Objective | None = None,
    participant: Callable[[Context], Participant] | None = None,
    client: Callable[[Context], int | str] | None = None,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """Make a ClientApp for :class:`~coterie.engines.flower.MethodStrategy` and any method.

    Args:
        model: Function that makes the net.
        data: Function that returns this node's examples as :class:`~coterie.data.world.ClientData`. With ``train`` and
            ``test`` it returns two PyTorch data sets, for training and for tests, which can be indexed.
        train: Function of (net, data set, config) that trains the net in place, instead of Coterie's training. The data set
            is the client's, or half of it. The config has ``lr``, ``epochs``, ``batch`` and the other settings of
            :class:`~coterie.core.Training`, ``server-round``, and what the ServerApp passes as ``train_config``.
        test: Function of (net, data set) that returns the mean loss and the accuracy. The loss also serves to choose a model.
        objective: Loss and metrics. None means cross entropy and accuracy.
        participant: Function that returns all of this, in place of ``model``, ``data`` and ``objective``.
        client: Function that returns the client's name, or its id, an integer; it stays the same when a node returns. None
            takes ``client-id`` or ``partition-id`` of the node's config; without these the server assigns an id.
        mods: Flower's client mods, such as :func:`~coterie.engines.flower.boundary_mod`.

    Returns:
        The app.

    Raises:
        TypeError: Neither ``model`` and ``data`` nor ``participant`` are given, or both; or only one of ``train`` and
            ``test``.
    """
    if (participant is None) == (model is None or data is None):
        raise TypeError("client_app takes model and data, or participant")
    if (train is None) != (test is None) or (train is not None and participant is not None):
        raise TypeError("client_app takes train and test together, with model and data")

    token = uuid4().hex  # a simulation unpickles the app, and this with it, for every message

    def part(context: Context) -> tuple[Participant, training.Learner]:
        key = token, context.node_id
        if key not in _PARTS:
            _PARTS.clear()
            made = participant(context) if participant is not None else own(context)
            with seeded(0):
                _PARTS[key] = made, made.learner()
        return _PARTS[key]

    def own(context: Context) -> Participant:
        assert data is not None
        assert model is not None
        if train is None or test is None:
            return Participant(data(context), model, objective or Objective())
        described, pool = client_data(data(context))
        return Participant(described, model, objective or Objective(), functions=Functions(train, test, pool))

    app = ClientApp(mods=list(mods))

    def name(context: Context) -> Claim | None:
        return claim_of(client(context), "client") if client is not None else named(context.node_config)

    @app.train()
    def train_task(message: Message, context: Context) -> Message:
        me, learner = part(context)
        return Message(trained(me, learner, message.content, context), reply_to=message)

    @app.evaluate()
    def test_task(message: Message, context: Context) -> Message:
        if message.metadata.message_type == QUERY:
            return Message(said(name(context), **{FUNCTIONS: int(train is not None)}), reply_to=message)
        me, learner = part(context)
        return Message(tested(me, learner, message.content, context), reply_to=message)

    return app


def trained(me: Participant, learner: training.Learner, content: RecordDict, context: Context) -> RecordDict:
    """Carry out a task.

    Args:
        me: The node's part.
        learner: The learner for its model.
        content: The content of the message with the task.
        context: Flower's context of the node.

    Returns:
        The content of the reply, the update and the measurements.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    order = messages.order_of(content)
    if isinstance(learner, FunctionLearner):
        learner.config = messages.told(content)
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
    """Test the model in a message, or the ensemble, on this node's test data.

    Args:
        me: The node's part.
        learner: The learner for its model.
        content: The content of the message.
        context: Flower's context of the node.

    Returns:
        The content of the reply, with loss, metrics and the number of test examples.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    order = messages.order_of(content)
    kept = Keeping(context, learner.layout, order.run, order.client).before(order.key[1])
    rows = _models(learner, content, len(order.task.offered), kept)
    test = me.data.test
    with seeded(0):
        totals = learner.sums(rows, [(test.inputs, test.index, [test.targets])])[0][0]
    found = me.objective.scores({name: part for name, part in totals.items() if part[1]})
    return RecordDict({METRICS: MetricRecord({**found, "num-examples": len(test)})})


def _models(learner: training.Learner, content: RecordDict, count: int, own: Tensor | None) -> list[Tensor]:
    """The offered models with this client's own layers in them; the server need not send these layers."""
    has = torch.zeros(learner.layout.size, dtype=torch.bool) if own is None else ~own.isnan()
    try:
        rows = [messages.unpacked(content[messages.name_of(i)], learner.layout, may_lack=has) for i in range(count)]
    except messages.Unfit as error:
        raise ValueError(f"invalid offered model: {error}; or this client has lost its personal layers") from None
    return [own_layers(row, own) for row in rows]


# ----------------------------------------------------------------------------------------------------
# Personal layers: the layers that stay at a client, stored after each of its last exchanges.
#
# They are stored by run and exchange. So a server that returns to an earlier round finds the values of that round.


FOLDER = "keep-dir"
"""Key of the node config with a folder for them.

Without it they are in the node's state. Flower deletes this state when the node stops or ``flwr run`` is called again.
"""


VERSIONS = 8
"""Number of the last exchanges whose values are stored."""


class Shelf(Protocol):
    """A store for the personal layers after some exchanges."""

    def tags(self) -> list[int]:
        """The exchanges with stored layers."""
        ...

    def take(self, tag: int) -> Any:
        """Return the layers of an exchange."""
        ...

    def put(self, tag: int, record: ArrayRecord) -> None:
        """Store the layers of an exchange."""
        ...

    def drop(self, tag: int) -> None:
        """Delete the layers of an exchange."""
        ...


class InState:
    """A store in records ``coterie-kept-<run>-<exchange>`` of a node's state."""

    def __init__(self, state: RecordDict, run: str) -> None:
        self.state, self.prefix = state, f"coterie-kept-{run}-"

    def tags(self) -> list[int]:
        """The exchanges with stored layers."""
        return [int(name.removeprefix(self.prefix)) for name in self.state if name.startswith(self.prefix)]

    def take(self, tag: int) -> Any:
        """Return the layers of an exchange."""
        return self.state[f"{self.prefix}{tag}"]

    def put(self, tag: int, record: ArrayRecord) -> None:
        """Store the layers of an exchange."""
        self.state[f"{self.prefix}{tag}"] = record

    def drop(self, tag: int) -> None:
        """Delete the layers of an exchange."""
        del self.state[f"{self.prefix}{tag}"]


class InFolder:
    """A store in files ``<run>/<client>/<exchange>.safetensors``."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        self.folder = within(folder, f"{run}/{client}" if run else str(client))

    def tags(self) -> list[int]:
        """The exchanges with stored layers."""
        found = (re.fullmatch(r"(0|[1-9][0-9]*)\.safetensors", path.name) for path in self.folder.glob("*.safetensors"))
        return [int(match[1]) for match in found if match]

    def take(self, tag: int) -> Any:
        """Return the layers of an exchange."""
        data = read_within(self.folder, f"{tag}.safetensors")
        return ArrayRecord(safetensors.torch.load(data))

    def put(self, tag: int, record: ArrayRecord) -> None:
        """Store the layers of an exchange."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
        write_whole(self.folder / f"{tag}.safetensors", safetensors.torch.save(tensors))

    def drop(self, tag: int) -> None:
        """Delete the layers of an exchange."""
        (self.folder / f"{tag}.safetensors").unlink(missing_ok=True)


class Keeping:
    """The personal layers of one client in one run.

    Args:
        context: Flower's context of the node.
        layout: The layout of the model's parameters.
        run: The name of the run, up to 32 hexadecimal digits.
        client: The client's id.

    Raises:
        ValueError: The name of the run is not of this form.
    """

    def __init__(self, context: Context, layout: Layout, run: str, client: int) -> None:
        if not re.fullmatch("[0-9a-f]{0,32}", run):  # it comes from the server and becomes part of a path
            raise ValueError(f"a run's name must be up to 32 hexadecimal digits, got {run!r}")
        folder = str(context.node_config.get(FOLDER, ""))
        self.layout = layout
        self.shelf: Shelf = InFolder(Path(folder), run, client) if folder else InState(context.state, run)

    def last(self, exchange: int) -> int | None:
        """Return the last exchange before ``exchange`` with stored layers; None if there is none."""
        return max((tag for tag in self.shelf.tags() if tag < exchange), default=None)

    def before(self, exchange: int) -> Tensor | None:
        """Return the client's own values ``(d,)`` before ``exchange``, NaN in the other columns; None if there are none."""
        tag = self.last(exchange)
        if tag is None:
            return None
        return messages.unpacked(self.shelf.take(tag), self.layout, may_lack=torch.ones(self.layout.size, dtype=torch.bool))

    def keep(self, exchange: int, row: Tensor) -> None:
        """Store the client's own values after an exchange.

        Values of later exchanges are deleted: the server has returned to an earlier round, so they are no longer valid.

        Args:
            exchange: The exchange.
            row: The values ``(d,)``, NaN in the other columns.
        """
        for tag in [tag for tag in self.shelf.tags() if tag > exchange]:
            self.shelf.drop(tag)
        self.shelf.put(exchange, messages.packed(row, self.layout, without=row.isnan()))
        for tag in sorted(self.shelf.tags())[:-VERSIONS]:
            self.shelf.drop(tag)
