"""Masked sums over Flower: the server's side of an exchange in which no single update can be read, and the client's.

The steps of :mod:`coterie.masks.protocol` as messages. Clients whose tasks offer the same model form one sum. Before the tasks
are sent, its clients send public keys, and encrypted shares for their neighbours. The reply to a task has one array of integers
modulo 2³²: the update times the client's weight, the weight, a 1 if the update was cut to the bound, and the answer to the
task's question, all under masks. Afterwards the clients that are still there send the shares with which the sum is unmasked.

What a reply has besides: the client's cell, or the model that it chose, if the task asks for that, and whether the client has
stored its own values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch import Tensor

from coterie.boundary import Boundary
from coterie.core import Client, Note, Plan, Task
from coterie.engines.flower import messages
from coterie.engines.flower.messages import ANSWER, CELL, CONFIG, METRICS, Order, Unfit
from coterie.engines.pool import sketch_size
from coterie.masks import FixedPoint, MaskedSum, Masker, ProtocolError
from coterie.masks.protocol import Keys, Unmasking
from coterie.models.layout import Layout

MASKS = "coterie-masks"
"""Key of the config of a message, and record of a reply: a step of masked sums, as JSON."""

MASKED = "masked"
"""Record of a reply, and its only array: masked numbers."""

EXAMPLES = 4096
"""The number of training examples above which a client has no more weight: weights are fractions of it."""


@dataclass(frozen=True)
class Form:
    """What the numbers of one sum are.

    Attributes:
        d: Parameters of an update; 0 if no update is sent.
        answer: Numbers of the answer to the question.
        clients: How many clients there are at most.
        bound: The largest change of one parameter.
    """

    d: int
    answer: int
    clients: int
    bound: float

    @property
    def size(self) -> int:
        """How many numbers a client sends: the update, its weight, whether it was cut, and the answer."""
        return self.d + 2 + self.answer

    def encode(self, update: Tensor | None, weight: float, answer: np.ndarray | None) -> np.ndarray:
        """Return a client's numbers ``(size,)`` as integers; a client without an update or an answer has zeros there."""
        rows = np.zeros(self.d) if update is None else update.double().numpy()
        cut = float(self._wide.clipped(rows) > 0)
        weight = 0.0 if update is None and self.d else weight
        rest = np.zeros(self.answer) if answer is None else answer.astype(np.float64)
        scaled = self._wide.encode(rows.clip(-self.bound, self.bound) * weight)
        return np.concatenate([scaled, self._unit.encode(np.concatenate([[weight, cut], rest]))])

    def decode(self, total: np.ndarray) -> tuple[np.ndarray, float, int, np.ndarray]:
        """Return the sums of weighted updates ``(d,)``, of weights, of updates that were cut, and of answers."""
        rows, rest = self._wide.decode(total[: self.d]), self._unit.decode(total[self.d :])
        return rows, float(rest[0]), round(float(rest[1])), rest[2:]

    @property
    def _wide(self) -> FixedPoint:
        return FixedPoint(bound=self.bound, clients=self.clients)

    @property
    def _unit(self) -> FixedPoint:
        return FixedPoint(bound=1.0, clients=self.clients)


# ----------------------------------------------------------------------------------------------------
# The server.


@dataclass
class OneSum:
    """One masked sum of an exchange.

    Attributes:
        part: Name of the part of the plan.
        row: The offered row.
        clients: The clients that have a task in it.
        form: What its numbers are.
        name: Its name, never used again.
        server: The server's state; it never holds numbers of a single client.
        ready: Client -> the shares that its neighbours have encrypted for it.
    """

    part: str
    row: int
    clients: tuple[Client, ...]
    form: Form
    name: bytes
    server: MaskedSum = field(init=False)
    ready: Mapping[Client, Mapping[Client, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = MaskedSum(name=self.name, size=self.form.size)


Ask = Callable[[Mapping[Client, RecordDict]], Mapping[Client, RecordDict]]
"""Send a message to each client, and return the contents of the replies that have arrived."""


class MaskedExchange:
    """The masked sums of one exchange.

    Args:
        plan: The plan.
        clients: The clients that take part, of those that have tasks.
        run: Name of the run.
        exchange: Number of the exchange.
        d: Number of parameters.
        bound: The largest change of one parameter.
        ask: Sends messages.

    Attributes:
        notes: What went wrong, for the record of the round.
    """

    def __init__(
        self, plan: Plan, clients: Collection[Client], run: str, exchange: int, d: int, bound: float, ask: Ask
    ) -> None:
        self.plan, self.d, self.ask = plan, d, ask
        self.notes: list[Note] = []
        groups: dict[tuple[str, int, bool, int], list[Client]] = {}
        for name, part in plan.leaves():
            for client, task in sorted(part.tasks.items()):
                sent, answer = sends(task), _length(part, task, d)
                if client in clients and (sent or answer):
                    groups.setdefault((name, task.offered[0], sent, answer), []).append(client)
        self.sums = [
            OneSum(part, row, tuple(members), Form(d * sent, answer, len(members), bound), f"{run}|{exchange}|{i}".encode())
            for i, ((part, row, sent, answer), members) in enumerate(groups.items())
        ]
        self.needed = [(one.part, one.clients) for one in self.sums]

    def of(self, client: Client) -> list[OneSum]:
        """Return the sums in which a client takes part."""
        return [one for one in self.sums if client in one.clients]

    def silent(self, client: Client) -> bool:
        """Return whether a client has a task in a sum that is not formed, or has not answered the steps so far."""
        there = {one.part for one in self.of(client) if client in one.ready}
        return any(client in clients and part not in there for part, clients in self.needed)

    def begin(self) -> None:
        """Carry out the first two steps: keys, and encrypted shares."""
        names = {c: [one.name.hex() for one in self.of(c)] for one in self.sums for c in one.clients}
        heard = self.ask({c: _stepped({"step": "keys", "client": c, "sums": each}) for c, each in names.items()})
        told: dict[Client, dict[str, Any]] = {}
        for one in list(self.sums):
            keys = {c: found for c in one.clients if (found := _keys(heard.get(c), one.name)) is not None}
            try:
                offered = one.server.keys(keys)
            except ProtocolError as error:
                self._fail(one, str(error))
                continue
            for client, near in offered.items():
                shown = {other: [each.sealing.hex(), each.masking.hex()] for other, each in near.items()}
                told.setdefault(client, {})[one.name.hex()] = [shown, one.server.graph.threshold]
        heard = self.ask({c: _stepped({"step": "shares", "client": c, "sums": each}) for c, each in told.items()})
        for one in self.sums:
            shares = {c: each for c in one.clients if (each := _shares(heard.get(c), one.name)) is not None}
            one.ready = one.server.shares(shares)

    def config(self, client: Client) -> dict[str, Any]:
        """Return what a client must know for its masked reply: part -> name, sizes and shares."""
        return {
            one.part: {
                "name": one.name.hex(),
                "form": [one.form.d, one.form.answer, one.form.clients],
                "uniform": dict(self.plan.leaves())[one.part].weighting == "uniform",
                "shares": {other: text.hex() for other, text in one.ready[client].items()},
            }
            for one in self.of(client)
            if client in one.ready
        }

    def take(self, client: Client, content: RecordDict) -> None:
        """Add a client's masked numbers to the totals.

        Raises:
            Unfit: They are missing, or not what was asked for.
        """
        for one in self.of(client):
            name = f"{MASKED}.{one.part}"
            if client not in one.ready:
                continue
            if name not in content.array_records:
                raise Unfit("its reply has no masked numbers")
            numbers = messages.array_of(content.array_records[name], MASKED)
            if numbers.dtype != np.uint32:
                raise Unfit("its masked numbers are not integers of 32 bits")
            try:
                one.server.add(client, numbers)
            except ProtocolError as error:
                raise Unfit(str(error)) from None

    def end(self) -> dict[str, tuple[Tensor, np.ndarray, dict[int, np.ndarray]]]:
        """Carry out the last step.

        Returns:
            Name of a part -> the means ``(k, d)``, the numbers of clients in them, and row -> the sum of the answers.
        """
        asked: dict[Client, dict[str, list[Client]]] = {}
        for one in self.sums:
            for client in sorted(one.server.arrived):
                asked.setdefault(client, {})[one.name.hex()] = sorted(one.server.arrived)
        heard = self.ask({c: _stepped({"step": "unmask", "client": c, "sums": each}) for c, each in asked.items()})
        found: dict[str, tuple[Tensor, np.ndarray, dict[int, np.ndarray]]] = {
            name: (torch.zeros(len(part.models), self.d), np.zeros(len(part.models), dtype=np.int64), {})
            for name, part in self.plan.leaves()
        }
        for one in self.sums:
            if not one.server.arrived:
                continue
            shares = {c: each for c in one.clients if (each := _unmasking(heard.get(c), one.name)) is not None}
            try:
                rows, weight, cut, answer = one.form.decode(one.server.unmasked(shares))
            except ProtocolError as error:
                self._fail(one, str(error))
                continue
            means, counts, answers = found[one.part]
            if one.form.d and weight > 0:
                means[one.row] = torch.from_numpy(rows / weight).float()
                counts[one.row] = len(one.server.arrived)
            if one.form.answer:
                answers[one.row] = answers.get(one.row, 0.0) + answer
            if cut:
                text = f"{cut} of {len(one.server.arrived)} updates had changes beyond boundary.bound {one.form.bound:g}"
                self.notes.append(Note(kind="node", clients=tuple(sorted(one.server.arrived)), text=text))
        return found

    def _fail(self, one: OneSum, why: str) -> None:
        self.sums.remove(one)
        self.notes.append(Note(kind="node", clients=one.clients, text=f"a masked sum was not formed: {why}"))


def sends(task: Task) -> bool:
    """Whether a client sends an update in a task."""
    return task.trains and task.sent


def _length(plan: Plan, task: Task, d: int) -> int:
    return 0 if task.question is None else task.question.length(sketch_size(plan, d))


def _stepped(about: Mapping[str, Any]) -> RecordDict:
    return RecordDict({CONFIG: ConfigRecord({MASKS: json.dumps(about)})})


def _found(content: RecordDict | None, name: bytes) -> Any:
    """What a reply to a step says about a sum; None if it says nothing that can be read."""
    record = None if content is None else content.get(MASKS)
    try:
        return json.loads(str(record[MASKS]))[name.hex()] if isinstance(record, ConfigRecord) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _keys(content: RecordDict | None, name: bytes) -> Keys | None:
    try:
        sealing, masking = _found(content, name)
        return Keys(bytes.fromhex(sealing), bytes.fromhex(masking))
    except (ValueError, TypeError):
        return None


def _shares(content: RecordDict | None, name: bytes) -> dict[int, bytes] | None:
    try:
        return {int(client): bytes.fromhex(text) for client, text in _found(content, name).items()}
    except (ValueError, TypeError, AttributeError):
        return None


def _unmasking(content: RecordDict | None, name: bytes) -> Unmasking | None:
    try:
        seeds, keys = ({int(c): bytes.fromhex(text) for c, text in part.items()} for part in _found(content, name))
    except (ValueError, TypeError, AttributeError):
        return None
    return Unmasking(seeds, keys)


# ----------------------------------------------------------------------------------------------------
# The client, in a mod: the app does not know of masks.


def step_of(content: RecordDict) -> dict[str, Any] | None:
    """Return the step of masked sums that a message asks for; None for another message."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord) or MASKS not in config or messages.TASK in config:
        return None
    found: dict[str, Any] = json.loads(str(config[MASKS]))
    return found


def answered(step: Mapping[str, Any], context: Context) -> RecordDict:
    """Carry out a step besides that with the task.

    Args:
        step: The step.
        context: Flower's context of the node, whose state has the secrets between steps.

    Returns:
        The content of the reply.

    Raises:
        ProtocolError: The step must not be carried out.
        ValueError: It cannot be read.
    """
    client = int(step["client"])
    out: dict[str, Any] = {}
    if step["step"] == "keys":
        forget(context)
    for name in step["sums"]:
        if step["step"] == "keys":
            masker = Masker(client, bytes.fromhex(name))
            keys = masker.keys()
            out[name] = [keys.sealing.hex(), keys.masking.hex()]
        elif step["step"] == "shares":
            masker, (near, threshold) = _stored(context, name), step["sums"][name]
            others = {int(c): Keys(*map(bytes.fromhex, each)) for c, each in near.items()}
            out[name] = {c: text.hex() for c, text in masker.shares(others, int(threshold)).items()}
        else:
            masker = _stored(context, name)
            shares = masker.unmask([int(c) for c in step["sums"][name]])
            out[name] = [{c: text.hex() for c, text in part.items()} for part in (shares.seeds, shares.keys)]
        _store(context, name, masker)
    return RecordDict({MASKS: ConfigRecord({MASKS: json.dumps(out)})})


def masked(
    content: RecordDict,
    orders: Sequence[Order],
    updates: Sequence[Tensor | None],
    told: Mapping[str, Any],
    context: Context,
    layout: Layout,
    boundary: Boundary,
) -> dict[str, Any]:
    """Return an app's reply to its tasks with everything under masks.

    Args:
        content: The app's reply.
        orders: The tasks.
        updates: The update of each task, if it has one.
        told: What :meth:`MaskedExchange.config` says.
        context: Flower's context of the node.
        layout: The layout of the model's parameters.
        boundary: The client's boundary, which has the bound.

    Returns:
        The records of the reply.

    Raises:
        ProtocolError: A neighbour's shares were changed on their way, or too few neighbours are left.
        Unfit: The app's reply has no update, or one that is not finite.
    """
    metrics = messages.only(content.metric_records, METRICS, "metric records")
    out: dict[str, Any] = {}
    stated: dict[str, Any] = {"num-examples": 1}
    for place, order in enumerate(orders):
        for key in (CELL, "chosen", messages.PERSONAL, messages.KEPT):
            if (name := messages.of_task(key, place)) in metrics:
                stated[name] = metrics[name]
        if order.part not in told:
            if sends(order.task) or (order.task.question is not None and order.task.question.ask != "cell"):
                raise ProtocolError("this client sends masked numbers only, and was asked for plain ones")
            continue
        about = told[order.part]
        d, length, clients = (int(number) for number in about["form"])
        form = Form(d, length, clients, boundary.bound)
        update = updates[place]
        if sends(order.task) and update is None:
            raise Unfit("the app's reply has no update")
        if update is not None and order.task.keep:
            update = update.masked_fill(layout.mask(order.task.keep), 0.0)
        if update is not None and not torch.isfinite(update).all():
            raise Unfit("its update has a NaN or infinite entry (a smaller lr may help)")
        answer = messages.of_task(ANSWER, place)
        numbers = messages.array_of(content[answer], ANSWER) if answer in content else None
        weight = 1.0 if about["uniform"] else min(int(metrics["num-examples"]), EXAMPLES) / EXAMPLES
        masker = _stored(context, about["name"])
        shares = {int(c): bytes.fromhex(text) for c, text in about["shares"].items()}
        hidden = masker.masked(shares, form.encode(update, weight, numbers))
        _store(context, about["name"], masker)
        out[f"{MASKED}.{order.part}"] = ArrayRecord({MASKED: Array(hidden)})
    return {**out, METRICS: MetricRecord(stated)}


def forget(context: Context) -> None:
    """Delete the secrets of earlier exchanges."""
    for name in [name for name in context.state if name.startswith(f"{MASKS}-")]:
        del context.state[name]


def _store(context: Context, name: str, masker: Masker) -> None:
    context.state[f"{MASKS}-{name}"] = ConfigRecord({"masker": masker.saved()})


def _stored(context: Context, name: str) -> Masker:
    try:
        return Masker.restored(context.state[f"{MASKS}-{name}"]["masker"])  # type: ignore[arg-type]
    except KeyError:
        raise ProtocolError("this client has not begun this masked sum") from None
