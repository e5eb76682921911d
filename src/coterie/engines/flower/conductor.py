"""A method's rounds over a grid: who is there, what they are told, and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Cohort, Federation, Method, Training
from coterie.engines.clock import Clock
from coterie.engines.flower import messages, plain
from coterie.engines.flower.careful import CarefulGrid
from coterie.engines.flower.carrier import Carrier
from coterie.engines.flower.identity import Identity
from coterie.engines.flower.messages import CONFIG, FIRST
from coterie.engines.flower.nodes import Memory, Nodes
from coterie.engines.flower.waiting import Post, Waiting
from coterie.engines.inprocess import Position, Round, Steps, carry, communicate
from coterie.engines.roll import Roster
from coterie.engines.workers import EngineError
from coterie.layout import Layout
from coterie.printable import printable_record
from coterie.randomness import seeded
from coterie.robust import Robust
from coterie.settings import SettingError

log = logging.getLogger("flwr.coterie")
"""Below Flower's own, so that its handlers show what is logged."""
log.addFilter(printable_record)  # it quotes what clients say


WITNESSES = 5
"""So many clients are asked for the first model under a rotation; two of them may be hostile, or have another secret."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a federation is run by: see :class:`~coterie.engines.flower.MethodStrategy`, which has the same names."""

    method: Method[Any]
    model: Callable[[], nn.Module]
    training: Training
    nodes: int
    wait: float
    waiting: Waiting
    identity: Identity
    patience: int
    seed: int
    eval_every: int
    names: Mapping[str, Sequence[str]]
    boundary: Boundary
    robust: Robust = field(default_factory=Robust)
    wire: Wire = field(init=False)
    rest: messages.Rest = field(init=False)

    def __post_init__(self) -> None:
        self.boundary.check_method(self.method)
        if self.boundary.secret is not None:
            raise SettingError("Boundary.secret is for the clients alone, and the server's strategy got one; leave it out")
        with seeded(0):
            module = self.model()
        layout = Layout(module)
        object.__setattr__(self, "wire", Wire(self.boundary, layout, self.seed))
        object.__setattr__(self, "rest", messages.Rest.of(module, layout))

    @property
    def layout(self) -> Layout:
        return self.wire.layout


class Conductor:
    """The rounds of one run, one after the other. start, memory: go on from there, with what was known then.

    Waits for the nodes first. ``position`` is where the run stands, ``last`` its last round.
    """

    def __init__(
        self, terms: Terms, grid: Grid, *, configs: Mapping[str, Mapping[str, Any]], start: Position | None = None,
        memory: Memory | None = None, initial: ArrayRecord | None = None, roster: Roster | None = None,
    ) -> None:  # fmt: skip
        grid = CarefulGrid(grid)
        if initial and terms.boundary.rotation != "none" and start is None:
            raise SettingError(
                f"Boundary.rotation {terms.boundary.rotation} hides the first model too, and the server's strategy got one; "
                "let the function that makes the net load it, at every client"
            )
        self.terms, self.initial, self.roster = terms, initial, roster
        self.drawn: dict[int, Tensor] = {}
        memory = memory or Memory()
        self.post = Post(grid)
        identity = terms.identity.going_on(memory.owners, memory.nodes)
        self.nodes = Nodes(self.post, terms.waiting, identity, before=memory.nodes)
        online = self.nodes.wait(terms.nodes, terms.wait, log.info)
        self.carrier = Carrier(
            post=self.post, wire=terms.wire, training=terms.training, seed=terms.seed, nodes=self.nodes, rest=terms.rest,
            waiting=terms.waiting, names=terms.names, method=terms.method.name, online=online, patience=terms.patience,
            robust=terms.robust, configs=configs, run=memory.run, layers=dict(memory.layers),
        )  # fmt: skip
        self.position = start or self._first(online)
        self.last: Round | None = None

    def _first(self, online: frozenset[int]) -> Position:
        founders = self.roster.attendance.founders(self.roster.clients) if self.roster else tuple(sorted(online))
        method = self.terms.method
        state = method.init(self._federation(founders))
        cohort = Cohort(present=founders, exchange=0, seed=self.terms.seed)
        plain.check(method, method.plan(state, cohort), self.nodes.aware)
        return Position(round=0, exchange=0, state=state, members=founders)

    def _federation(self, clients: tuple[int, ...]) -> Federation:
        layout, rotated = self.terms.layout, self.terms.boundary.rotation != "none"
        federation = Federation(
            clients=clients, draw=self._sealed if rotated else self._drawn, columns=layout.columns, tensors=layout.tensors,
            dense=layout.dense, training=self.terms.training,
        )  # fmt: skip
        return self.terms.wire.veil(federation, sealed=rotated)

    def _drawn(self, i: int) -> Tensor:
        if i == 0 and self.initial:
            try:
                row = messages.unpacked(self.initial, self.terms.layout)
            except messages.Unfit as error:
                raise SettingError(f"the initial arrays are not of the strategy's model: {error}") from None
            if not torch.isfinite(row).all():
                raise SettingError("the initial arrays have a NaN or infinite entry")
            return row
        return self.terms.wire.first_model(i, self.terms.model)

    def _sealed(self, i: int) -> Tensor:
        """The i-th first model as clients draw and seal it: all do the same, but the server cannot."""
        if i in self.drawn:
            return self.drawn[i]
        config, some = ConfigRecord({FIRST: i, "seed": self.terms.seed}), sorted(self.nodes.look())[:WITNESSES]
        asked = [
            Message(RecordDict({CONFIG: config}), dst_node_id=self.nodes.node(client), message_type=MessageType.TRAIN)
            for client in some
        ]
        row = self.carrier.first_model(self.carrier.ask(asked), self.terms.model)
        if row is not None:
            self.drawn[i] = row
            return row
        raise EngineError(
            f"no client drew the first model under rotation {self.terms.boundary.rotation}: their apps need the mod "
            "boundary_mod with the strategy's boundary and a secret"
        )

    # -- rounds -----------------------------------------------------------------------------------------------------------

    def round(self, final: bool) -> Round:
        """One communication round: its exchanges, and the test."""
        clock = Clock()
        done = carry(self.steps(clock), lambda plan, at: (self.carrier.exchange(plan, at, clock), {}))
        if final or done.number % self.terms.eval_every == 0:
            with clock("evaluate"):
                done = replace(done, scores=self.carrier.evaluate(done.assignment, done.position))
        return self.ended(done)

    def steps(self, clock: Clock) -> Steps:
        """The next round's exchanges, with those who are connected now; if nobody is, after a wait as at the start.

        Who was retired for its silence is not there again because it is connected, but once it answers something; if that
        leaves nobody, all are."""
        terms = self.terms
        connected = self.nodes.look() or self.nodes.wait(1, terms.wait, log.info)
        self.carrier.online = self.nodes.awake(connected, self.position.members) or connected
        return communicate(terms.method, self.roster or self.carrier, terms.wire, self.position, terms.seed, clock)

    @property
    def memory(self) -> Memory:
        """What it takes to go on, besides the position."""
        nodes, owners = {**self.nodes.before, **self.nodes.client}, dict(self.nodes.identity.owners)
        return Memory(self.carrier.run, nodes, dict(self.carrier.layers), owners)

    def ended(self, done: Round) -> Round:
        """The round, with what has happened to nodes; it is the last one now."""
        self.last = replace(done, notes=(*self.nodes.taken(), *done.notes))
        self.position = done.position
        return self.last
