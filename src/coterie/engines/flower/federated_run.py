"""The rounds of a method over a grid: the settings of a federation, its connected clients and its exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
from torch import Tensor

from coterie.core import Cohort, Federation, Position, Replies, Round
from coterie.data.world import World
from coterie.engines.clock import Clock
from coterie.engines.flower import messages
from coterie.engines.flower.exchange import GridExchanges
from coterie.engines.flower.federation import FederationSettings
from coterie.engines.flower.messages import ARRAYS, CONFIG, FIRST_MODEL
from coterie.engines.flower.nodes import (
    Messenger,
    NodeMemory,
    Nodes,
)
from coterie.engines.flower.own_values import OwnValues
from coterie.engines.flower.schemas import checked_memory, federation_schema
from coterie.engines.flower.tolerant_grid import TolerantGrid, log
from coterie.engines.membership import Roster
from coterie.engines.plausible import Plausible
from coterie.engines.rounds import Steps, round_steps
from coterie.engines.workers import EngineError
from coterie.records.record import versions
from coterie.settings import SettingError

MAX_WITNESSES = 5
"""Clients that are asked for the first model under a rotation. Two of them may be hostile or have
another secret."""


class FederatedRun:
    """Runs the rounds of one run, one after the other. It waits for the nodes first.

    Args:
        settings: The settings of the federation.
        grid: Flower's grid.
        configs: Kind of message, ``train`` or ``evaluate`` -> entries of its config besides the
            task.
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
        # A malformed answer of one node must not lose those of the others.
        grid = TolerantGrid(grid)
        if initial and settings.boundary.rotation != "none" and start is None:
            raise SettingError(
                f"Boundary.rotation {settings.boundary.rotation} hides the first model too, but the server's strategy got one; "
                "load it in the function that makes the net, at every client"
            )
        # The server's knowledge of the nodes, as it was when the server was stopped.
        self.settings = settings
        self.initial = initial
        self.roster = roster
        self.sealed_models: dict[int, Tensor] = {}
        memory = memory or NodeMemory()
        messenger = Messenger(grid)
        identity = settings.identity.continued(memory.owners, memory.nodes)
        roster_names = roster.client_names if roster else {}
        self.nodes = Nodes(
            messenger,
            settings.waiting,
            identity,
            clients_before=memory.nodes,
            client_names={**roster_names, **memory.names, **identity.names},
            id_query=self._id_query(configs.get("evaluate", {})),
            schema=federation_schema(settings.schema, checked_memory(memory.schema)),
            server_versions=versions(),
        )
        # Nodes connect, report their client ids and state their schemas.
        online_clients = self.nodes.wait_for_clients(settings.nodes, settings.wait, log.info)
        online_clients = self._with_common_schema(online_clients)
        # The exchanges of this run, with what clients stored in earlier rounds.
        self.exchanges = GridExchanges(
            settings=settings,
            nodes=self.nodes,
            own_values=OwnValues(
                run=memory.run,
                stored_exchanges={
                    part_name: dict(stored_exchanges)
                    for part_name, stored_exchanges in memory.layers.items()
                },
                ended=dict(memory.ended),
            ),
            configs=configs,
            online=online_clients,
            measured=Plausible.of_objective(roster.objective)
            if isinstance(roster, World)
            else None,
        )
        # A new run starts with the method's first state.
        self.position = start or self._first_position(online_clients)
        # A member that missed the last rounds before a restart still misses them.
        self.missing_since = {
            client: self.position.round - missed_in_a_row + 1
            for client, missed_in_a_row in self.position.missed.items()
        }
        self.missing_since |= memory.missing
        self.last: Round | None = None
        self._steps: Steps | None = None

    def _with_common_schema(self, online_clients: frozenset[int]) -> frozenset[int]:
        """The connected clients whose schemas are the federation's. The clients of a simulation have one anyway."""
        if self.roster is not None:
            return online_clients
        self.nodes.agree_on_schema()
        accepted_clients = online_clients.intersection(self.nodes.client_of_node.values())
        return accepted_clients or self.nodes.wait_for_clients(1, self.settings.wait, log.info)

    def _first_position(self, online_clients: frozenset[int]) -> Position:
        """The position before the first round; it checks that the clients' apps can do the method's tasks."""
        # The first members are those of the simulation, or else the connected clients.
        founders = tuple(sorted(online_clients))
        if self.roster:
            founders = self.roster.attendance.founders(self.roster.clients)
        method = self.settings.method
        state = method.init(self._federation(founders))
        cohort = Cohort(present=founders, exchange=0, seed=self.settings.seed)
        has_neighbours = method.assignment(state).neighbours is not None
        # Apps that cannot do the method's tasks are an error now, before the first training.
        messages.check(
            method,
            method.plan(state, cohort),
            self.nodes.coterie_clients,
            self.nodes.function_clients,
            self.nodes.client_names,
            has_neighbours,
        )
        return Position(round=0, exchange=0, state=state, members=founders)

    def _id_query(self, config: Mapping[str, Any]) -> RecordDict:
        """The query for the client id of a node: a model and a config, as in a test."""
        settings = self.settings
        if settings.boundary.rotation != "none":
            # The server cannot know the first model under a rotation. Any model will do here.
            model_row = settings.wire.first_model(0, settings.model)
        else:
            model_row = self._first_model(0)
        test_config = {**config, "lr": settings.training.lr, "server-round": 0}
        return RecordDict(
            {
                ARRAYS: messages.packed(model_row, settings.layout, settings.other_tensors),
                CONFIG: ConfigRecord(test_config),
            }
        )

    def _federation(self, clients: tuple[int, ...]) -> Federation:
        layout = self.settings.layout
        rotated = self.settings.boundary.rotation != "none"
        federation = Federation(
            clients=clients,
            draw=self._sealed_first_model if rotated else self._first_model,
            columns=layout.columns,
            tensors=layout.tensors,
            dense=layout.dense,
            norms=layout.norms,
            training=self.settings.training,
        )
        return self.settings.wire.veil(federation, sealed=rotated)

    def _first_model(self, model_number: int) -> Tensor:
        """A first model that the server draws; the first of them may be given."""
        if model_number == 0 and self.initial:
            try:
                model_row = messages.unpacked(self.initial, self.settings.layout)
            except messages.Unfit as error:
                raise SettingError(
                    f"the initial arrays do not fit the strategy's model: {error}"
                ) from None
            if not torch.isfinite(model_row).all():
                raise SettingError("the initial arrays have a NaN or infinite entry")
            return model_row
        return self.settings.wire.first_model(model_number, self.settings.model)

    def _sealed_first_model(self, model_number: int) -> Tensor:
        """A first model, drawn and sealed by clients: all clients obtain the same one, but the server cannot."""
        if model_number in self.sealed_models:
            return self.sealed_models[model_number]
        # Ask a few clients. Their majority decides, so a single hostile client cannot choose the
        # model.
        request_config = ConfigRecord({FIRST_MODEL: model_number, "seed": self.settings.seed})
        witnesses = sorted(self.nodes.update())[:MAX_WITNESSES]
        requests = [
            Message(
                RecordDict({CONFIG: request_config}),
                dst_node_id=self.nodes.node(client),
                message_type=MessageType.TRAIN,
            )
            for client in witnesses
        ]
        model_row = self.exchanges.first_model(self.exchanges.ask(requests), self.settings.model)
        if model_row is not None:
            self.sealed_models[model_number] = model_row
            return model_row
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
        # The exchanges of the round. Each is a plan, the messages for it, and the replies.
        train_messages = self.begin_round()
        finished_round = self.end_exchanges(self._ask(train_messages))
        # The test of the round: each client tests the model that serves it.
        if final or finished_round.number % self.settings.eval_every == 0:
            with self._clock("evaluate"):
                scores = self.exchanges.evaluate(finished_round.assignment, finished_round.position)
                finished_round = finished_round.tested(scores)
        return self.close(finished_round)

    def begin_round(self) -> list[Message]:
        """Carry out all exchanges of the next round but the last.

        Returns:
            The messages of the last exchange, whose answers :meth:`end_exchanges` takes.

        Raises:
            EngineError: No node is connected, or the round does not end.
            SettingError: No client's app can do its task.
        """
        # The generator yields a plan, and takes the replies to it.
        self._clock = Clock()
        self._steps = self._exchanges_of_round(self._clock)
        self._plan, self._plan_position = next(self._steps)
        train_messages = self._train_messages()
        # The first round takes long, as every node starts a process: the log shows that it began.
        if self.last is None:
            log.info(
                "round %d begins: %d of %d connected clients are asked",
                self._plan_position.round + 1,
                len(self._plan.asked),
                len(self.exchanges.online),
            )
        # All exchanges but the last happen here. Flower's interface sends the messages of the last
        # one.
        while not self._plan.ends_round:
            replies = self._read_replies(self._ask(train_messages))
            self._plan, self._plan_position = self._steps.send((replies, {}))
            train_messages = self._train_messages()
        return train_messages

    def end_exchanges(self, replies: Iterable[Message]) -> Round:
        """Take the method's step with the answers to the last exchange of a round.

        Args:
            replies: The clients' messages.

        Returns:
            The round, neither tested nor closed.

        Raises:
            EngineError: :meth:`begin_round` was not called before.
        """
        if self._steps is None:
            raise EngineError("the answers of a round need the messages of its beginning before")
        steps = self._steps
        self._steps = None
        # The generator of the round returns the round after its last exchange.
        try:
            steps.send((self._read_replies(replies), {}))
        except StopIteration as stop:
            finished_round: Round = stop.value
            return finished_round
        raise EngineError("a round continued after its last exchange")

    def close(self, finished_round: Round) -> Round:
        """Add the notes about nodes to a round and store it as the last one.

        Args:
            finished_round: The round.

        Returns:
            The round with these notes.
        """
        absent_since = finished_round.absent
        if self.roster is None:
            absent_since = self._absent_since(finished_round)
        # Events at nodes come before the method's notes, because they happened before its step.
        self.last = replace(
            finished_round,
            absent=absent_since,
            notes=(*self.nodes.take_notes(), *finished_round.notes),
            refused={**self.nodes.differing_clients, **finished_round.refused},
            main=self.settings.main_metric,
        )
        self.position = finished_round.position
        # No server continues before this round any more.
        self.exchanges.own_values.round_stored()
        return self.last

    def _absent_since(self, finished_round: Round) -> dict[int, int]:
        """Client that was not asked, as its node was offline or silent for long -> the first round that it missed."""
        nodes = self.nodes
        known_clients = nodes.known_clients()
        absent_clients = known_clients.difference(self.exchanges.online, nodes.differing_clients)
        # A client that was asked and has not answered may be absent in the next round.
        missing_clients = absent_clients.union(finished_round.silent) - set(finished_round.refused)
        missing_since = {}
        for client in sorted(missing_clients):
            missing_since[client] = self.missing_since.get(client, finished_round.number)
        self.missing_since = missing_since
        return {client: missing_since[client] for client in sorted(absent_clients)}

    def _train_messages(self) -> list[Message]:
        with self._clock("server"):
            return self.exchanges.outgoing(self._plan, self._plan_position)

    def _ask(self, train_messages: Sequence[Message]) -> list[Message]:
        with self._clock("train"):
            return self.exchanges.ask(train_messages)

    def _read_replies(self, reply_messages: Iterable[Message]) -> Replies:
        with self._clock("server"):
            return self.exchanges.incoming(self._plan, reply_messages, self._plan_position.exchange)

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
        # The connected clients whose schemas agree, and of these the ones that answer.
        online_clients = self.nodes.update()
        if not online_clients:
            online_clients = self.nodes.wait_for_clients(1, settings.wait, log.info)
        online_clients = self._with_common_schema(online_clients)
        responsive_clients = self.nodes.responsive_clients(online_clients, self.position.members)
        self.exchanges.online = responsive_clients or online_clients
        return round_steps(
            settings.method,
            self.roster or self.exchanges,
            settings.wire,
            self.position,
            settings.seed,
            clock,
            settings.robust.fewest_asked,
        )

    @property
    def memory(self) -> NodeMemory:
        """The server's knowledge of the nodes, which a run needs to continue, besides the position."""
        nodes = self.nodes
        own_values = self.exchanges.own_values
        return NodeMemory(
            run=own_values.run,
            nodes={**nodes.clients_before, **nodes.client_of_node},
            layers={
                part_name: dict(stored_exchanges)
                for part_name, stored_exchanges in own_values.stored_exchanges.items()
            },
            owners=dict(nodes.identity.owners),
            names=dict(nodes.client_names),
            ended=dict(own_values.ended),
            schema=None if nodes.schema is None else nodes.schema.to_json(),
            missing=dict(self.missing_since),
        )
