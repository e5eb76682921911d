"""The rounds of a method over a grid: the settings of a federation, its connected clients and its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)
from flwr.serverapp import Grid
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Cohort, Federation, Method, Position, Replies, Round, Training
from coterie.data import objective
from coterie.data.schema import Schema
from coterie.data.world import World
from coterie.engines.clock import Clock
from coterie.engines.flower import messages
from coterie.engines.flower.exchange import GridExchanges
from coterie.engines.flower.messages import ARRAYS, CONFIG, FIRST
from coterie.engines.flower.nodes import (
    Identity,
    Messenger,
    NodeMemory,
    Nodes,
    Waiting,
)
from coterie.engines.flower.schemas import agreed, checked_memory
from coterie.engines.flower.tolerant_grid import TolerantGrid, log
from coterie.engines.membership import Roster
from coterie.engines.plausible import Plausible
from coterie.engines.rounds import Steps, round_steps
from coterie.engines.workers import EngineError
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.record import versions
from coterie.robust import Robust
from coterie.settings import SettingError

METRICS: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "eval_loss", "test_loss", "val_loss"),
    "accuracy": (
        "accuracy",
        "eval_acc",
        "eval_accuracy",
        "acc",
        "test_acc",
        "test_accuracy",
        "val_acc",
        "val_accuracy",
    ),
}
"""Metric -> the names that apps may use for it. The first one found in a reply counts."""

WITNESSES = 5
"""Clients that are asked for the first model under a rotation. Two of them may be hostile or have
another secret."""


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """The settings of a federation.

    See :class:`~coterie.engines.flower.MethodStrategy` for the names that are not listed here.

    Attributes:
        waiting: ``timeout``, ``min_replies`` and ``grace`` of the strategy.
        names: Metric -> the names that apps use for it.
        wire: The wire between clients and server.
        rest: Tensors of the net's state dict that are not part of a row.

    Raises:
        SettingError: Method and boundary do not fit together, or the boundary has a secret.
    """

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
    schema: Schema | None = None
    wire: Wire = field(init=False)
    rest: messages.OtherTensors = field(init=False)

    def __post_init__(self) -> None:
        self.boundary.check_method(self.method)
        if self.boundary.secret is not None:
            raise SettingError(
                "Boundary.secret must be none in the server's strategy, got one: only the clients may know it"
            )
        with seeded(0):
            module = self.model()
        layout = Layout(module)
        object.__setattr__(self, "wire", Wire(self.boundary, layout, self.seed))
        object.__setattr__(self, "rest", messages.OtherTensors.of(module, layout))

    @property
    def layout(self) -> Layout:
        """The layout of the net's parameters in a row."""
        return self.wire.layout

    @property
    def main(self) -> str:
        """The main metric: the first one whose names were given, besides the loss; the accuracy if none or it was."""
        given = [
            name
            for name, called in self.names.items()
            if METRICS.get(name) != called and name != "loss"
        ]
        return given[0] if given and "accuracy" not in given else "accuracy"

    @property
    def better(self) -> str:
        """Whether a greater or a smaller value of the main metric is better; greater if it has a name of the user's own."""
        return objective.METRICS[self.main].better if self.main in objective.METRICS else "greater"


class FederatedRun:
    """Runs the rounds of one run, one after the other. It waits for the nodes first.

    Args:
        settings: The settings of the federation.
        grid: Flower's grid.
        configs: RequestKind of message -> entries of its config besides the task.
        start: Position from which the run continues. None starts a new run.
        memory: The server's knowledge of the nodes at that position.
        initial: The first model. None draws one.
        roster: The clients and the rounds in which they are present. None means the connected
            clients.

    Attributes:
        position: Current state of the run.
        last: The last round, or None before the first one.

    Raises:
        EngineError: Too few nodes are connected.
        SettingError: The settings do not fit together, or not to the clients' apps.
    """

    def __init__(
        self,
        settings: FederationSettings,
        grid: Grid,
        *,
        configs: Mapping[str, Mapping[str, Any]],
        start: Position | None = None,
        memory: NodeMemory | None = None,
        initial: ArrayRecord | None = None,
        roster: Roster | None = None,
    ) -> None:
        grid = TolerantGrid(grid)
        if initial and settings.boundary.rotation != "none" and start is None:
            raise SettingError(
                f"Boundary.rotation {settings.boundary.rotation} hides the first model too, but the server's strategy got one; "
                "load it in the function that makes the net, at every client"
            )
        self.settings, self.initial, self.roster = settings, initial, roster
        self.drawn: dict[int, Tensor] = {}
        memory = memory or NodeMemory()
        self.messenger = Messenger(grid)
        identity = settings.identity.going_on(memory.owners, memory.nodes)
        greeting = self._greeting(configs.get("evaluate", {}))
        names = {**(roster.client_names if roster else {}), **memory.names, **identity.names}
        self.nodes = Nodes(
            self.messenger,
            settings.waiting,
            identity,
            before=memory.nodes,
            names=names,
            greeting=greeting,
        )
        self.nodes.versions = versions()
        self.nodes.schema = agreed(settings.schema, checked_memory(memory.schema))
        online = self.nodes.wait(settings.nodes, settings.wait, log.info)
        online = self._alike(online)
        self.exchanges = GridExchanges(
            messenger=self.messenger,
            wire=settings.wire,
            training=settings.training,
            seed=settings.seed,
            nodes=self.nodes,
            rest=settings.rest,
            waiting=settings.waiting,
            names=settings.names,
            method=settings.method.name,
            online=online,
            patience=settings.patience,
            robust=settings.robust,
            configs=configs,
            run=memory.run,
            layers={part: dict(of_part) for part, of_part in memory.layers.items()},
            ended=dict(memory.ended),
            measured=Plausible.of_objective(roster.objective)
            if isinstance(roster, World)
            else None,
        )
        self.position = start or self._first(online)
        self.last: Round | None = None
        self._steps: Steps | None = None

    def _alike(self, online: frozenset[int]) -> frozenset[int]:
        """The connected clients whose schemas are the federation's. The world of a simulation is one anyway."""
        if self.roster is not None:
            return online
        self.nodes.agree()
        return online.intersection(self.nodes.client.values()) or self.nodes.wait(
            1, self.settings.wait, log.info
        )

    def _first(self, online: frozenset[int]) -> Position:
        founders = (
            self.roster.attendance.founders(self.roster.clients)
            if self.roster
            else tuple(sorted(online))
        )
        method = self.settings.method
        state = method.init(self._federation(founders))
        cohort = Cohort(present=founders, exchange=0, seed=self.settings.seed)
        near = method.assignment(state).neighbours is not None
        messages.check(
            method,
            method.plan(state, cohort),
            self.nodes.aware,
            self.nodes.functions,
            self.nodes.names,
            near,
        )
        return Position(round=0, exchange=0, state=state, members=founders)

    def _greeting(self, config: Mapping[str, Any]) -> RecordDict:
        """A first model and a config of a test: what nodes are asked with for their client ids."""
        settings = self.settings
        sealed = (
            settings.boundary.rotation != "none"
        )  # then the server has no first model, but any model will do here
        row = settings.wire.first_model(0, settings.model) if sealed else self._drawn(0)
        told = {**config, "lr": settings.training.lr, "server-round": 0}
        return RecordDict(
            {
                ARRAYS: messages.packed(row, settings.layout, settings.rest),
                CONFIG: ConfigRecord(told),
            }
        )

    def _federation(self, clients: tuple[int, ...]) -> Federation:
        layout, rotated = self.settings.layout, self.settings.boundary.rotation != "none"
        federation = Federation(
            clients=clients,
            draw=self._sealed if rotated else self._drawn,
            columns=layout.columns,
            tensors=layout.tensors,
            dense=layout.dense,
            training=self.settings.training,
        )
        return self.settings.wire.veil(federation, sealed=rotated)

    def _drawn(self, i: int) -> Tensor:
        if i == 0 and self.initial:
            try:
                row = messages.unpacked(self.initial, self.settings.layout)
            except messages.Unfit as error:
                raise SettingError(
                    f"the initial arrays do not fit the strategy's model: {error}"
                ) from None
            if not torch.isfinite(row).all():
                raise SettingError("the initial arrays have a NaN or infinite entry")
            return row
        return self.settings.wire.first_model(i, self.settings.model)

    def _sealed(self, i: int) -> Tensor:
        """The i-th first model, drawn and sealed by clients: all clients obtain the same one, but the server cannot."""
        if i in self.drawn:
            return self.drawn[i]
        config, some = (
            ConfigRecord({FIRST: i, "seed": self.settings.seed}),
            sorted(self.nodes.look())[:WITNESSES],
        )
        asked = [
            Message(
                RecordDict({CONFIG: config}),
                dst_node_id=self.nodes.node(client),
                message_type=MessageType.TRAIN,
            )
            for client in some
        ]
        row = self.exchanges.first_model(self.exchanges.ask(asked), self.settings.model)
        if row is not None:
            self.drawn[i] = row
            return row
        raise EngineError(
            f"no client drew the first model under rotation {self.settings.boundary.rotation}: their apps need the mod "
            "boundary_mod with the strategy's boundary and a secret"
        )

    # -- rounds
    # -----------------------------------------------------------------------------------------------------------

    def round(self, final: bool) -> Round:
        """Run one communication round with its exchanges and its test.

        Args:
            final: Whether this is the last round, which is always tested.

        Returns:
            The round.

        Raises:
            EngineError: No node is connected, or the round does not end.
        """
        messages_of_round = self.begin_round()
        done = self.end_exchanges(self._answers(messages_of_round))
        if final or done.number % self.settings.eval_every == 0:
            with self._clock("evaluate"):
                done = done.tested(self.exchanges.evaluate(done.assignment, done.position))
        return self.close(done)

    def begin_round(self) -> list[Message]:
        """Carry out all exchanges of the next round but the last.

        Returns:
            The messages of the last exchange, whose answers :meth:`end_exchanges` takes.

        Raises:
            EngineError: No node is connected, or the round does not end.
            SettingError: No client's app can do its task.
        """
        self._clock = Clock()
        self._steps = self._exchanges_of_round(self._clock)
        self._plan, self._plan_position = next(self._steps)
        out = self._train_messages()
        while not self._plan.ends_round:
            replies = self._replies(self._answers(out))
            self._plan, self._plan_position = self._steps.send((replies, {}))
            out = self._train_messages()
        return out

    def end_exchanges(self, answers: Iterable[Message]) -> Round:
        """Take the method's step with the answers to the last exchange of a round.

        Args:
            answers: The clients' messages.

        Returns:
            The round, neither tested nor closed.

        Raises:
            EngineError: :meth:`begin_round` was not called before.
        """
        if self._steps is None:
            raise EngineError("the answers of a round need the messages of its beginning before")
        steps, self._steps = self._steps, None
        try:
            steps.send((self._replies(answers), {}))
        except StopIteration as end:
            done: Round = end.value
            return done
        raise EngineError("a round continued after its last exchange")

    def close(self, done: Round) -> Round:
        """Add the notes about nodes to a round and store it as the last one.

        Args:
            done: The round.

        Returns:
            The round with these notes.
        """
        refused = {**self.nodes.unlike_clients, **done.refused}
        notes = (*self.nodes.taken(), *done.notes)
        self.last = replace(done, notes=notes, refused=refused, main=self.settings.main)
        self.position = done.position
        self.exchanges.round_stored()
        return self.last

    def _train_messages(self) -> list[Message]:
        with self._clock("server"):
            return self.exchanges.outgoing(self._plan, self._plan_position)

    def _answers(self, out: Sequence[Message]) -> list[Message]:
        with self._clock("train"):
            return self.exchanges.ask(out)

    def _replies(self, answers: Iterable[Message]) -> Replies:
        with self._clock("server"):
            return self.exchanges.incoming(self._plan, answers, self._plan_position.exchange)

    def _exchanges_of_round(self, clock: Clock) -> Steps:
        """Return the exchanges of the next round with the clients that are connected now.

        If no client is connected, it waits as at the start. A client that was retired because it
        did not answer takes part again when it has answered a message; a connection is not enough.
        If no client would be left, all connected clients take part.

        Args:
            clock: Adds up the seconds of the round.

        Returns:
            The generator of :func:`~coterie.engines.rounds.round_steps`.

        Raises:
            EngineError: No node is connected within the time to wait.
        """
        settings = self.settings
        connected = self._alike(self.nodes.look() or self.nodes.wait(1, settings.wait, log.info))
        self.exchanges.online = self.nodes.awake(connected, self.position.members) or connected
        return round_steps(
            settings.method,
            self.roster or self.exchanges,
            settings.wire,
            self.position,
            settings.seed,
            clock,
        )

    @property
    def memory(self) -> NodeMemory:
        """The server's knowledge of the nodes, which a run needs to continue, besides the position."""
        nodes, owners = {**self.nodes.before, **self.nodes.client}, dict(self.nodes.identity.owners)
        exchanges = self.exchanges
        layers = {part: dict(of_part) for part, of_part in exchanges.layers.items()}
        schema = None if self.nodes.schema is None else self.nodes.schema.to_json()
        return NodeMemory(
            exchanges.run,
            nodes,
            layers,
            owners,
            dict(self.nodes.names),
            dict(exchanges.ended),
            schema,
        )
