"""What a worker does: clients' tasks and tests, read from and written to shared matrices of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie import local
from coterie.boundary import Wire
from coterie.clustering import sketch
from coterie.core import Client, Task
from coterie.engines.hardware import Hardware
from coterie.engines.workers import EngineError, sentence
from coterie.randomness import seeded
from coterie.world import World


@dataclass(frozen=True)
class Errand:
    """A client's task as it is told to a worker: where the offered models lie, where the reply goes, and of which columns
    a sketch of so many numbers is wanted. half: which of the halves, where it trains on them; they are errands apart."""

    slot: int
    client: Client
    task: Task
    rows: tuple[int, ...]
    lr: float
    key: tuple[int, ...]
    columns: slice | None = None
    sketch: int | None = None
    half: int | None = None


@dataclass(frozen=True)
class Test:
    """One model, or an ensemble, on the examples ``[start, stop)`` of clients with equal test examples."""

    rows: tuple[int, ...]
    clients: tuple[Client, ...]
    start: int
    stop: int


Done = tuple[int, tuple[int, ...], tuple[float, ...], tuple[float, ...], bool, str | None]
"""slot, chosen, losses, accuracies, whether it trained, why its reply is refused."""


class Hand:
    """Does jobs in whatever process it is called in. All rows are the server's: a client opens what it is offered, and
    what it sends goes through ``wire``.
    """

    def __init__(self, world: World, wire: Wire, hardware: Hardware) -> None:
        self.world, self.wire, self.hardware = world, wire, hardware
        self.models = self.replies = torch.empty(0, wire.layout.size)
        self.sketches = torch.empty(0, 0)
        self._learner: local.Learner | None = None

    @property
    def learner(self) -> local.Learner:
        if self._learner is None:  # made in the worker: a module's tensors are its own
            with seeded(0):
                module, how = self.world.model(), self.hardware
                self._learner = local.Learner(
                    module, self.world.objective, self.world.augment, device=how.device, precision=how.precision
                )
        return self._learner

    def work(self, job: Any) -> Any:
        return self.train(job) if isinstance(job[0], Errand) else self.test(job)

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self, errands: Sequence[Errand]) -> list[Done]:
        """Tasks done one by one, or several in a block."""
        who = f"client {errands[0].client}" if len(errands) == 1 else f"a block of {len(errands)} clients"
        try:
            jobs = [self._job(errand) for errand in errands]
            replies = [local.answer(self.learner, jobs[0])] if len(jobs) == 1 else local.answer_together(self.learner, jobs)
            return [self._send(errand, reply) for errand, reply in zip(errands, replies, strict=True)]
        except Exception as error:
            hint = "; --width 1 trains each client alone" if len(errands) > 1 else ""
            raise EngineError(f"{who} failed in its task: {sentence(error)}{hint}") from error

    def _job(self, errand: Errand) -> local.Job:
        offered = [self.wire.open(self.models[row]) for row in errand.rows]
        data, training = self.world.clients[errand.client], errand.task.how(self.world.training)
        job = local.Job(errand.task, offered, data, training, errand.lr, errand.key)
        return job if errand.half is None else local.halved(job)[errand.half]

    def _send(self, errand: Errand, reply: local.Reply) -> Done:
        """Write a reply's row; what is not finite is refused."""
        refused, trained, exchange = None, reply.row is not None, errand.key[2]
        if reply.row is None:
            self.replies[errand.slot] = 0.0  # of an earlier exchange
            self.sketches[errand.slot : errand.slot + 1] = 0.0
        else:
            keep = self.wire.layout.mask(errand.task.keep) if errand.task.keep else None
            row = self._tampered(reply.row, errand, keep)
            sent = self.wire.send(row, errand.client, exchange, keep, errand.half or 0)
            self.replies[errand.slot] = sent
            # A finite square of the norm bounds every entry of a Gram matrix too. With noise, a refusal would tell of data.
            rows = [sent] if self.wire.boundary.noise or sent is reply.row else [reply.row, sent]
            if errand.sketch is not None:
                shown = sent if keep is None else sent.masked_fill(keep, 0.0)
                rows += sketch(shown[None, errand.columns or slice(None)], errand.sketch)
                self.sketches[errand.slot] = rows[-1]
            if not all(torch.isfinite(row.dot(row)) for row in rows):
                refused = "its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)"
        return errand.slot, reply.chosen, reply.losses, reply.accuracies, trained, refused

    def _tampered(self, row: Tensor, errand: Errand, keep: Tensor | None) -> Tensor:
        """What a client sends in place of its update; the update itself, if it means well."""
        attack = self.world.attacks.get(errand.client)
        if attack is None:
            return row
        sent = torch.arange(len(row)) < self.wire.layout.trainable
        return attack.tampered(row, sent if keep is None else sent & ~keep, errand.key[0], errand.key[2], errand.client)

    # -- testing ------------------------------------------------------------------------------------------------------

    def test(self, tests: Sequence[Test]) -> list[list[local.Sums]]:
        """Sums of loss and metrics: per test, and per client of it. The tests of one call are all of the same models."""
        try:
            with seeded(0):  # a module may draw random numbers in tests as well
                models = [self.wire.open(self.models[row]) for row in tests[0].rows]
                return self.learner.sums(models, [self._part(test) for test in tests])
        except Exception as error:
            if len(tests) > 1:  # one by one, to learn whose fails
                return [self.test([test])[0] for test in tests]
            raise EngineError(f"client {tests[0].clients[0]} failed in its test: {sentence(error)}") from error

    def _part(self, test: Test) -> local.Part:
        first, part = self.world.clients[test.clients[0]].test, slice(test.start, test.stop)
        return first.inputs, first.index[part], [self.world.clients[c].test.targets[part] for c in test.clients]
