"""Masked sums over Flower: the server's side of an exchange in which no single update can be read, and the client's.

The steps of :mod:`coterie.masks.protocol` as messages. Clients whose tasks offer the same model
form one sum. Before the tasks are sent, its clients send public keys, and encrypted shares for
their neighbours. The reply to a task has one array of integers modulo 2³²: the update times the
client's weight, the weight, a 1 if the update was cut to the bound, and the answer to the task's
question, all under masks. Afterwards the clients that are still there send the shares with which
the sum is unmasked. In a hidden plan all clients form one sum, and the update and a 1 are in the
slot of the model that the client took. With noise, each client adds its share of it to its numbers
before they are rounded and masked.

What a reply has besides: the client's cell, or the model that it chose, if the task asks for that
and the plan is not hidden; and whether the client has stored its own values.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.core import Client, Note, Plan, Task
from coterie.engines.flower import messages
from coterie.engines.flower.client import FOLDER
from coterie.engines.flower.messages import ANSWER, CELL, CONFIG, METRICS, Order, Unfit
from coterie.engines.sums import Noise, least
from coterie.masks import FixedPoint, MaskedSum, Masker, ProtocolError
from coterie.masks.protocol import Keys, Unmasking
from coterie.settings import SettingError
from coterie.training import sketch_size

MASKS = "coterie-masks"
"""Key of the config of a message, and record of a reply: a step of masked sums, as JSON."""

MASKED = "masked"
"""Record of a reply, and its only array: masked numbers."""

EXAMPLES = 4096
"""The number of training examples above which a client has no more weight: weights are fractions of
it."""


FINE = 2
"""The least standard deviation of a client's noise, in steps of the masked numbers."""

TAILS = 8
"""Standard deviations of noise for which masked numbers have room: a draw goes beyond once in 1e15
times."""

DAY = 24 * 3600.0
"""Seconds after which the mark of a step is removed: the masked sum has long ended."""


@dataclass(frozen=True)
class Form:
    """What the numbers of one sum are.

    Attributes:
        d: Parameters of an update; 0 if no update is sent.
        answer: Numbers of the answer to the question.
        clients: How many clients there are at most.
        bound: The largest change of one parameter.
        slots: The models among which clients choose, in a hidden plan; 1 if it is not hidden.
        noise: The noise; None without.
    """

    d: int
    answer: int
    clients: int
    bound: float
    slots: int = 1
    noise: Noise | None = None

    @property
    def size(self) -> int:
        """How many numbers a client sends: for each slot the update and its weight; whether it was cut; and the answer."""
        return self.slots * (self.d + 1) + 1 + self.answer

    @property
    def drowned(self) -> str:
        """The setting because of which noise is too small beside the steps of the masked numbers, and would be rounded away."""
        if self.noise is None:
            return ""
        if self.d and self.noise.update < FINE * self._wide.step:
            return "bound"
        fixed = (
            (self.noise.count, self.noise.count, self._ones),
            (self.answer, self.noise.answer, self._unit),
        )
        return (
            "noise"
            if any(there and deviation < FINE * code.step for there, deviation, code in fixed)
            else ""
        )

    @property
    def widest(self) -> float:
        """The largest bound with which the noise on an update is not rounded away."""
        assert self.noise is not None
        return self.noise.update * max(self._wide.levels / FINE - TAILS, 0)

    def encode(
        self,
        update: Tensor | None,
        weight: float,
        answer: np.ndarray | None,
        slot: int = 0,
        draw: Callable[[int], np.ndarray] | None = None,
        keep: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return a client's numbers ``(size,)`` as integers; a client without an update or an answer has zeros there.

        Args:
            update: The update ``(d,)``, not longer than the noise allows.
            weight: Its weight; 1 with noise.
            answer: The answer.
            slot: The model that the client took.
            draw: Function that draws so many standard normal numbers, for the noise.
            keep: Mask of the columns that stay at the client, ``(d,)``, which have no noise.
        """
        rows, weights = np.zeros((self.slots, self.d)), np.zeros(self.slots)
        if update is not None:
            rows[slot] = update.double().numpy()
        if update is not None or not self.d:
            weights[slot] = weight
        cut = float((np.abs(rows) > self.bound).any()) if self.noise is None else 0.0
        rest = np.zeros(self.answer) if answer is None else answer.astype(np.float64)
        rows = rows.clip(-self.bound, self.bound) * weights[:, None]
        if self.noise is not None and draw is not None:
            noise = self.noise.update * draw(rows.size).reshape(rows.shape)
            rows += noise if keep is None else np.where(keep, 0.0, noise)
            weights += self.noise.count * draw(self.slots)
            rest += self.noise.answer * draw(self.answer)
        parts = (
            self._wide.encode(rows.ravel()),
            self._ones.encode(np.append(weights, cut)),
            self._unit.encode(rest),
        )
        return np.concatenate(parts)

    def decode(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
        """Return the sums of weighted updates ``(slots, d)``, of weights, of updates that were cut, and of answers."""
        rows, ones, rest = np.split(total, np.cumsum([self.slots * self.d, self.slots + 1]))
        counts = self._ones.decode(ones)
        return (
            self._wide.decode(rows).reshape(self.slots, self.d),
            counts[:-1],
            round(float(counts[-1])),
            self._unit.decode(rest),
        )

    @property
    def _wide(self) -> FixedPoint:
        return self._code(self.bound, 0.0 if self.noise is None else self.noise.update)

    @property
    def _ones(self) -> FixedPoint:
        return self._code(1.0, 0.0 if self.noise is None else self.noise.count)

    @property
    def _unit(self) -> FixedPoint:
        return self._code(1.0, 0.0 if self.noise is None else self.noise.answer)

    def _code(self, bound: float, deviation: float) -> FixedPoint:
        return FixedPoint(bound=bound + TAILS * deviation, clients=self.clients)


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
        wire: The wire between clients and server.
        ask: Sends messages.

    Attributes:
        notes: What went wrong, for the record of the round.

    Raises:
        SettingError: The noise would be rounded away.
    """

    def __init__(
        self, plan: Plan, clients: Collection[Client], run: str, exchange: int, wire: Wire, ask: Ask
    ) -> None:
        self.parts, self.d, self.wire, self.ask = dict(plan.leaves()), wire.layout.size, wire, ask
        self.notes: list[Note] = []
        groups: dict[tuple[str, int, bool, int, int], list[Client]] = {}
        for name, part in self.parts.items():
            for client, task in sorted(part.tasks.items()):
                sent, answer = sends(task), _length(part, task, self.d)
                cost = task.private.question.cost if task.private.question is not None else 1
                if client in clients and (sent or answer):
                    groups.setdefault((name, task.offered[0], sent, answer, cost), []).append(
                        client
                    )
        self.sums = [
            OneSum(
                name,
                row,
                tuple(members),
                self._form(self.parts[name], sent, answer, cost, len(members)),
                f"{run}|{exchange}|{i}".encode(),
            )
            for i, ((name, row, sent, answer, cost), members) in enumerate(groups.items())
        ]
        self.needed = [(one.part, one.clients) for one in self.sums]

    def _form(self, plan: Plan, sent: bool, answer: int, cost: int, clients: int) -> Form:
        boundary, slots = (
            self.wire.boundary,
            len(plan.models) if plan.private.hides_choices and sent else 1,
        )
        max_norm = self.wire.limit(plan.private.clip)
        noise = Noise.of(boundary, clients, plan.private.hides_choices, max_norm, cost)
        form = Form(self.d * sent, answer, clients, boundary.bound, slots, noise)
        if form.drowned == "bound":
            raise SettingError(
                f"boundary.bound is {boundary.bound:g}, and must be at most {form.widest:.2g} with boundary.noise "
                f"{boundary.noise:g}, updates of norm {max_norm:g} or less and {clients} clients in a masked "
                "sum: the noise would be rounded away"
            )
        if form.drowned:
            raise SettingError(
                f"boundary.noise is {boundary.noise:g}, too small for {clients} clients in a masked sum: "
                "it would be rounded away"
            )
        return form

    def of(self, client: Client) -> list[OneSum]:
        """Return the sums in which a client takes part."""
        return [one for one in self.sums if client in one.clients]

    def silent(self, client: Client) -> bool:
        """Return whether a client has a task in a sum that is not formed, or has not answered the steps so far."""
        there = {one.part for one in self.of(client) if client in one.ready}
        return any(client in clients and part not in there for part, clients in self.needed)

    def begin(self) -> None:
        """Carry out the first two steps: keys, and encrypted shares."""
        names = {
            c: [one.name.hex() for one in self.of(c)] for one in self.sums for c in one.clients
        }
        heard = self.ask(
            {c: _stepped({"step": "keys", "client": c, "sums": each}) for c, each in names.items()}
        )
        told: dict[Client, dict[str, Any]] = {}
        for one in list(self.sums):
            keys = {
                c: found
                for c in one.clients
                if (found := _keys(heard.get(c), one.name)) is not None
            }
            try:
                offered = one.server.keys(keys)
            except ProtocolError as error:
                self._fail(one, str(error))
                continue
            for client, near in offered.items():
                shown = {
                    other: [each.sealing.hex(), each.masking.hex()] for other, each in near.items()
                }
                told.setdefault(client, {})[one.name.hex()] = [shown, one.server.graph.threshold]
        heard = self.ask(
            {c: _stepped({"step": "shares", "client": c, "sums": each}) for c, each in told.items()}
        )
        for one in self.sums:
            shares = {
                c: each
                for c in one.clients
                if (each := _shares(heard.get(c), one.name)) is not None
            }
            one.ready = one.server.shares(shares)

    def config(self, client: Client) -> dict[str, Any]:
        """Return what a client must know for its masked reply: part -> name, sizes and shares."""
        return {
            one.part: {
                "name": one.name.hex(),
                "form": [one.form.d, one.form.answer, one.form.clients, one.form.slots],
                "uniform": self.parts[one.part].weighting == "uniform",
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
            Name of a part -> the means ``(k, d)``, the numbers of clients in them, and row -> the
            sum of the answers.
        """
        asked: dict[Client, dict[str, list[Client]]] = {}
        for one in list(self.sums):
            if 0 < len(one.server.arrived) < least(self.wire.boundary, len(one.clients)):
                self._fail(
                    one,
                    f"{len(one.server.arrived)} of {len(one.clients)} clients have added noise, which is too few",
                )
                one.server.arrived.clear()
            for client in sorted(one.server.arrived):
                asked.setdefault(client, {})[one.name.hex()] = sorted(one.server.arrived)
        heard = self.ask(
            {
                c: _stepped({"step": "unmask", "client": c, "sums": each})
                for c, each in asked.items()
            }
        )
        found: dict[str, tuple[Tensor, np.ndarray, dict[int, np.ndarray]]] = {
            name: (
                torch.zeros(len(part.models), self.d),
                np.zeros(len(part.models), dtype=np.int64),
                {},
            )
            for name, part in self.parts.items()
        }
        for one in self.sums:
            if not one.server.arrived:
                continue
            shares = {
                c: each
                for c in one.clients
                if (each := _unmasking(heard.get(c), one.name)) is not None
            }
            try:
                rows, weights, cut, answer = one.form.decode(one.server.unmasked(shares))
            except ProtocolError as error:
                self._fail(one, str(error))
                continue
            means, counts, answers = found[one.part]
            n = len(one.server.arrived)
            if one.form.d and self.parts[one.part].private.hides_choices:
                means[:] = torch.from_numpy(rows / n).float()
                found[one.part] = (
                    means,
                    (weights.round().astype(np.int64) if one.form.noise is None else weights),
                    answers,
                )
            elif one.form.d and weights[0] > 0:
                means[one.row] = torch.from_numpy(
                    rows[0] / (weights[0] if one.form.noise is None else n)
                ).float()
                counts[one.row] = n
            if one.form.answer:
                answers[one.row] = answers.get(one.row, 0.0) + answer
            if cut:
                text = f"{cut} of {len(one.server.arrived)} updates had changes beyond boundary.bound {one.form.bound:g}"
                self.notes.append(
                    Note(
                        kind="node",
                        effect="warns",
                        clients=tuple(sorted(one.server.arrived)),
                        text=text,
                    )
                )
        return found

    def deviation(self, part: str) -> float:
        """Return the standard deviation of the noise on each number of the answers in a part of the plan."""
        each = [
            one.form.noise.answer * math.sqrt(len(one.server.arrived))
            for one in self.sums
            if one.part == part and one.form.noise
        ]
        return max(each, default=0.0)

    def _fail(self, one: OneSum, why: str) -> None:
        self.sums.remove(one)
        self.notes.append(
            Note(
                kind="node",
                effect="warns",
                clients=one.clients,
                text=f"a masked sum was not formed: {why}",
            )
        )


def sends(task: Task) -> bool:
    """Whether a client sends an update in a task."""
    return task.trains and task.private.sends_update


def _length(plan: Plan, task: Task, d: int) -> int:
    return (
        0 if task.private.question is None else task.private.question.length(sketch_size(plan, d))
    )


def _stepped(about: Mapping[str, Any]) -> RecordDict:
    return RecordDict({CONFIG: ConfigRecord({MASKS: json.dumps(about)})})


def _found(content: RecordDict | None, name: bytes) -> Any:
    """What a reply to a step says about a sum; None if it says nothing that can be read."""
    record = None if content is None else content.get(MASKS)
    try:
        return (
            json.loads(str(record[MASKS]))[name.hex()] if isinstance(record, ConfigRecord) else None
        )
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
        seeds, keys = (
            {int(c): bytes.fromhex(text) for c, text in part.items()}
            for part in _found(content, name)
        )
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


def answered(
    step: Mapping[str, Any], context: Context, boundary: Boundary, once: bool = True
) -> RecordDict:
    """Carry out a step besides that with the task.

    Args:
        step: The step.
        context: Flower's context of the node, whose state has the secrets between steps.
        boundary: The client's boundary: with noise, most neighbours must have added theirs.
        once: Whether to make sure that no step is answered twice, see :func:`_once`.

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
        if once:
            _clear(context)
    for name in step["sums"]:
        if step["step"] == "keys":
            masker = Masker(client, bytes.fromhex(name))
            keys = masker.keys()
            out[name] = [keys.sealing.hex(), keys.masking.hex()]
        elif step["step"] == "shares":
            masker, (near, threshold) = _stored(context, name, once), step["sums"][name]
            others = {int(c): Keys(*map(bytes.fromhex, each)) for c, each in near.items()}
            out[name] = {c: text.hex() for c, text in masker.shares(others, int(threshold)).items()}
        else:
            masker = _stored(context, name, once)
            arrived = [int(c) for c in step["sums"][name]]
            if boundary.noise and len(masker.holding.intersection(arrived)) < boundary.honest * len(
                masker.neighbours
            ):
                raise ProtocolError("too few neighbours have added noise to this masked sum")
            shares = masker.unmask(arrived)
            out[name] = [
                {c: text.hex() for c, text in part.items()} for part in (shares.seeds, shares.keys)
            ]
        _store(context, name, masker)
    return RecordDict({MASKS: ConfigRecord({MASKS: json.dumps(out)})})


def limited(update: Tensor, limit: float | None, wire: Wire) -> Tensor:
    """Return an update as it enters a sum: of no more than a norm, and zero if it is not finite and noise is added.

    Args:
        update: The update ``(d,)``.
        limit: The maximum norm; None without one.
        wire: The client's wire.

    Raises:
        Unfit: It is not finite, and no noise is added.
    """
    if not torch.isfinite(update.dot(update)):
        if not wire.boundary.noise:
            raise Unfit("its update has a NaN or infinite entry (a smaller lr may help)")
        return torch.zeros_like(update)
    return update if limit is None else wire.clipped(update, limit)


def masked(
    content: RecordDict,
    orders: Sequence[Order],
    updates: Sequence[Tensor | None],
    told: Mapping[str, Any],
    context: Context,
    wire: Wire,
    rng: np.random.Generator,
    once: bool = True,
) -> dict[str, Any]:
    """Return an app's reply to its tasks with everything under masks.

    Args:
        content: The app's reply.
        orders: The tasks.
        updates: The update of each task, if it has one.
        told: What :meth:`MaskedExchange.config` says.
        context: Flower's context of the node.
        wire: The client's wire, whose boundary has the bound and the noise.
        rng: Draws the noise.
        once: Whether to make sure that no sum is answered twice, see :func:`_once`.

    Returns:
        The records of the reply.

    Raises:
        ProtocolError: A neighbour's shares were changed on their way, or too few neighbours are
            left. Or the sum is not that of the task.
        Unfit: The app's reply has no update, or one that is not finite.
    """
    metrics, boundary = (
        messages.only(content.metric_records, METRICS, "metric records"),
        wire.boundary,
    )
    out: dict[str, Any] = {}
    stated: dict[str, Any] = {"num-examples": 1}
    for place, order in enumerate(orders):
        said = () if order.hidden else (CELL, "chosen")
        own = () if boundary.noise else (messages.PERSONAL, messages.KEPT)
        for key in (*said, *own):
            if (name := messages.of_task(key, place)) in metrics:
                stated[name] = metrics[name]
        if order.part not in told:
            if sends(order.task) or (
                order.task.private.question is not None
                and order.task.private.question.ask != "cell"
            ):
                raise ProtocolError(
                    "this client sends masked numbers only, and was asked for plain ones"
                )
            continue
        about, limit = told[order.part], wire.limit(order.clip)
        form = _form(order, tuple(int(number) for number in about["form"]), wire, limit)
        update = updates[place] if sends(order.task) else None
        if sends(order.task) and update is None:
            raise Unfit("the app's reply has no update")
        keep = wire.layout.mask(order.task.local_layers) if order.task.local_layers else None
        if update is not None:
            update = limited(update if keep is None else update.masked_fill(keep, 0.0), limit, wire)
        answer = messages.of_task(ANSWER, place)
        numbers = (
            messages.array_of(content[answer], ANSWER)
            if form.answer and answer in content
            else None
        )
        if numbers is not None and not (
            numbers.shape == (form.answer,) and np.isfinite(numbers).all()
        ):
            numbers = None  # a failure would say that this client's numbers are odd
        slot = int(metrics[messages.of_task("chosen", place)][0]) if form.slots > 1 else 0
        weight = (
            1.0
            if about["uniform"] or boundary.noise
            else min(int(metrics["num-examples"]), EXAMPLES) / EXAMPLES
        )
        masker = _stored(context, about["name"], once)
        shares = {int(c): bytes.fromhex(text) for c, text in about["shares"].items()}
        still = None if keep is None or not form.d else keep.numpy()
        hidden = masker.masked(
            shares, form.encode(update, weight, numbers, slot, rng.standard_normal, still)
        )
        _store(context, about["name"], masker)
        out[f"{MASKED}.{order.part}"] = ArrayRecord({MASKED: Array(hidden)})
    return {**out, METRICS: MetricRecord(stated)}


def _form(order: Order, stated: tuple[int, ...], wire: Wire, limit: float | None) -> Form:
    """The form of a sum, which must be that of its task: of another one, numbers would leave that this client did not count.

    Raises:
        ProtocolError: They differ, or the noise would be rounded away.
    """
    d, answer, clients, slots = stated
    task, question = order.task, order.task.private.question
    length = 0 if question is None else question.length(order.sketch_numbers)
    places = len(task.offered) if order.hidden and sends(task) else 1
    if (d, answer, slots) != (wire.layout.size * sends(task), length, places):
        raise ProtocolError("the masked sum is not that of the task")
    noise = Noise.of(
        wire.boundary, clients, order.hidden, limit, 1 if question is None else question.cost
    )
    form = Form(d, answer, clients, wire.boundary.bound, slots, noise)
    if form.drowned:
        raise ProtocolError(
            f"boundary.{form.drowned}: the noise is less than the steps of the masked numbers"
        )
    return form


def forget(context: Context) -> None:
    """Delete the secrets of earlier exchanges."""
    for name in [name for name in context.state if name.startswith(f"{MASKS}-")]:
        del context.state[name]


def _store(context: Context, name: str, masker: Masker) -> None:
    context.state[f"{MASKS}-{name}"] = ConfigRecord({"masker": masker.saved()})


def _stored(context: Context, name: str, once: bool) -> Masker:
    """The client's secrets of a sum before its next step, which is answered once."""
    try:
        masker = Masker.restored(context.state[f"{MASKS}-{name}"]["masker"])  # type: ignore[arg-type]
    except KeyError:
        raise ProtocolError("this client has not begun this masked sum") from None
    if once:
        _once(context, masker)
    return masker


def _once(context: Context, masker: Masker) -> None:
    """Mark the next step of a sum as answered.

    Flower hands messages that arrive at the same time a copy of the node's state each, so the state
    does not tell that a step was answered. Two answers differ by what no mask hides. The mark is a
    file that only one process can create.

    Raises:
        ProtocolError: The step was answered before, or the mark cannot be saved.
    """
    try:
        folder = _marks(context)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise OSError
        os.close(os.open(folder / masker.mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ProtocolError("this client has answered this step of the masked sum") from None
    except OSError:  # its text would reveal this machine's folders to the server
        raise ProtocolError(
            f"this client cannot save that it answers; a folder {FOLDER} in its node config is needed"
        ) from None


def _marks(context: Context) -> Path:
    """The folder of the marks: in the node's folder, or in the system's folder for temporary files."""
    own = str(context.node_config.get(FOLDER, ""))
    return (
        Path(own) / "masked-sums"
        if own
        else Path(tempfile.gettempdir()) / f"coterie-masked-sums-{os.getuid()}"
    )


def _clear(context: Context) -> None:
    """Remove old marks."""
    folder, now = _marks(context), time.time()
    with suppress(OSError):
        for path in folder.iterdir():
            if now - path.stat().st_mtime > DAY:
                path.unlink()
