"""Exchanges and tests over Flower's grid: plans become messages, and messages become the replies that a method receives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.core import (
    Assignment,
    Client,
    HeldOutLosses,
    Note,
    Plan,
    Position,
    Replies,
    Task,
)
from coterie.data.objective import VALIDATION
from coterie.engines.clock import Clock
from coterie.engines.exchange import together
from coterie.engines.flower import boundary_check, messages
from coterie.engines.flower.federation import FederationSettings
from coterie.engines.flower.messages import CALIBRATION, CONFIG, METRICS_RECORD, Unfit
from coterie.engines.flower.nodes import (
    MAX_UNANSWERED,
    ConnectedClients,
    Nodes,
    RequestKind,
    gone,
)
from coterie.engines.flower.own_values import OwnValues
from coterie.engines.flower.replies import ParsedReply, ReplyReader, gathered
from coterie.engines.flower.sums import MaskedExchange, flower_sums
from coterie.engines.plausible import Plausible
from coterie.pooling import flat
from coterie.settings import SettingError
from coterie.training import ClientResult, Order
from coterie.training.calibration_sums import CalibrationSums

PackedModels = dict[tuple[int, int, tuple[str, ...]], ArrayRecord]
"""(Number of a part of the plan, row of its models, layers that are left out) -> the arrays."""


@dataclass
class GridExchanges:
    """The exchanges of one run over a grid.

    In an exchange, :meth:`outgoing` makes messages of a plan, :meth:`ask` sends them and waits for
    the answers, and :meth:`incoming` makes of these the replies for the method's step. A test has
    :meth:`tests`, :meth:`ask` and :meth:`scores` in the same way.

    Attributes:
        settings: The settings of the federation.
        nodes: The nodes and their clients.
        own_values: Which own values the clients and their nodes have.
        configs: Kind of message, ``train`` or ``evaluate`` -> additional entries of its config.
        online: The connected clients that can take part.
        measured: What is known of the numbers that clients measure. None takes what the
            federation's schema says.
        secret: Digest of the secret with which clients drew the first model.
        reported_secrets: Client -> the digest that it reported, used if ``secret`` is None.
        unasked: Client -> why it gets no task: its app would ignore a part of it.
        unawaited: Nodes and kinds of request that are sent without waiting for the answer.
        masking: The masked sums of the current exchange, if the boundary has masks.
    """

    settings: FederationSettings
    nodes: Nodes
    own_values: OwnValues
    configs: Mapping[str, Mapping[str, Any]]
    online: frozenset[Client]
    measured: Plausible | None = None
    secret: str | None = None
    reported_secrets: dict[Client, str] = field(default_factory=dict)
    unasked: dict[Client, str] = field(default_factory=dict)
    unawaited: set[RequestKind] = field(default_factory=set)
    masking: MaskedExchange | None = None

    @property
    def wire(self) -> Wire:
        """The wire between clients and server."""
        return self.settings.wire

    @property
    def plausible(self) -> Plausible:
        """What is known of the numbers that clients measure."""
        if self.measured is not None:
            return self.measured
        if self.nodes.schema is None:
            return Plausible()
        schema_in_words = self.nodes.schema.words
        return Plausible.of(schema_in_words.loss, next(iter(schema_in_words.metrics), ""))

    # The clients that may take part, see :class:`~coterie.engines.membership.Roster`.

    @property
    def clients(self) -> dict[Client, int]:
        """Client -> node."""
        return {client: node for node, client in self.nodes.client_of_node.items()}

    @property
    def client_names(self) -> dict[Client, str]:
        """Client -> its name, for clients with names."""
        return dict(self.nodes.client_names)

    @property
    def attendance(self) -> ConnectedClients:
        """The clients that can be asked now: the connected ones."""
        return ConnectedClients(online=self.online, patience=self.settings.patience)

    @property
    def attacks(self) -> Mapping[Client, Any]:
        """Client -> attack. Empty, because a server does not know the adversaries."""
        return {}

    # -- an exchange
    # ----------------------------------------------------------------------------------------------------

    def exchange(self, plan: Plan, position: Position, clock: Clock) -> Replies:
        """Carry out a plan. A client that does not answer in time is silent.

        Args:
            plan: The plan.
            position: State of the run in which the method made the plan.
            clock: Adds up the seconds.

        Returns:
            The replies.

        Raises:
            SettingError: No client's app can do its task.
        """
        with clock("server"):
            # The server turns the plan into one message for each client.
            train_messages = self.outgoing(plan, position)
        with clock("train"):
            # The clients train, and the server waits for their replies.
            reply_messages = self.ask(train_messages)
        with clock("server"):
            # The server reads the replies and combines them for the method's step.
            return self.incoming(plan, reply_messages, position.exchange)

    def outgoing(self, plan: Plan, position: Position) -> list[Message]:
        """Make the messages for a plan.

        Args:
            plan: The plan.
            position: State of the run in which the method made the plan.

        Returns:
            One message for each client of the plan whose app can do the task.

        Raises:
            SettingError: No client's app can do its task, the rule of averaging needs more than the
                plan asks for, or the noise of masked sums would be rounded away.
        """
        # A plan that the settings do not allow fails before a client trains.
        self.settings.robust.check_plan(plan, self.wire.boundary.masks)
        # Clients whose apps would ignore a part of their task get none. If nobody is left, the run
        # cannot go on.
        self.unasked = self._clients_that_cannot(plan)
        if self.unasked and len(self.unasked) == len(plan.asked):
            raise SettingError(self.nodes.shown.text(next(iter(self.unasked.values()))))
        clients = [client for client in plan.asked if client not in self.unasked]
        if self.wire.boundary.masks:
            # The clients agree on masks first. One that does not answer gets no task.
            self.masking = flower_sums().masked_exchange(
                plan, clients, self.own_values.run, position.exchange, self.wire, self._ask_each
            )
            self.masking.begin()
            clients = [client for client in clients if not self.masking.is_silent(client)]
        # Clients that are offered the same model share one copy of its arrays.
        packed_models: PackedModels = {}
        return [self._train_message(plan, client, position, packed_models) for client in clients]

    def _clients_that_cannot(self, plan: Plan) -> dict[Client, str]:
        """Client -> why its app cannot do its tasks of a plan, for apps that would ignore a part of them."""
        reasons = {}
        for client in plan.asked:
            trains_by_function = client in self.nodes.function_clients
            if client in self.nodes.coterie_clients and not trains_by_function:
                continue
            # They would train without what an extension's optimizer adds, such as noise.
            if self.settings.training.own_optimizer is not None:
                reasons[client] = (
                    f"client {client} trains by code of its own, which cannot train with "
                    f"{self.settings.training.optimizer}"
                )
                continue
            # Apps that do not know Coterie, or train by functions of their own, cannot do every
            # task.
            refusal = messages.why_not(
                self.settings.method.name,
                messages.tasks_of(plan, client),
                client,
                trains_by_function,
            )
            if refusal:
                reasons[client] = refusal
        return reasons

    def _ask_each(self, contents: Mapping[Client, RecordDict]) -> dict[Client, RecordDict]:
        """Send a message to each client; the contents of the answers."""
        requests = [
            Message(request_content, dst_node_id=self.nodes.node(client), message_type="train")
            for client, request_content in contents.items()
        ]
        # Answers may come in any order. The result has the order of the requests, which does not
        # depend on the speed of the nodes.
        reply_contents = {}
        for reply in self.ask(requests):
            client = self.nodes.client_of_node.get(reply.metadata.src_node_id, -1)
            if reply.has_content() and client in contents:
                reply_contents[client] = reply.content
        return {client: reply_contents[client] for client in contents if client in reply_contents}

    def _train_message(
        self, plan: Plan, client: Client, position: Position, packed_models: PackedModels
    ) -> Message:
        """The message with a client's tasks of all parts of a plan."""
        offered_models: list[ArrayRecord] = []
        orders: list[Order] = []
        node = self.nodes.node(client)
        for part_number, (part_name, part) in enumerate(plan.leaves()):
            task = part.tasks.get(client)
            if task is None:
                continue
            # Layers that the node has are not sent.
            layers_of_node = self.own_values.layers_of(node, part_name)
            left_out = task.local_layers if layers_of_node == task.local_layers else ()
            offered_models += self._packed(
                part.models, task.offered, left_out, packed_models, part_number
            )
            # The order says what the client does with these models.
            orders.append(self._order(part, client, position, part_name, part_number))
        # With its next tasks, a client learns which parts of the plan have ended.
        orders[0] = replace(orders[0], ended=dict(self.own_values.ended))
        message = self._message("train", offered_models, orders)
        if self.masking is not None:
            self.masking.add_config(client, message.content)
        return message

    def _packed(
        self,
        models: Tensor,
        offered_rows: Sequence[int],
        left_out: tuple[str, ...],
        packed_models: PackedModels,
        part_number: int = 0,
    ) -> list[ArrayRecord]:
        """Arrays of the offered models without the layers that the client has; clients with equal arrays share one copy."""
        layout = self.wire.layout
        for row_number in offered_rows:
            if (part_number, row_number, left_out) not in packed_models:
                packed_models[part_number, row_number, left_out] = messages.packed(
                    models[row_number],
                    layout,
                    self.settings.other_tensors,
                    layout.mask(left_out) if left_out else None,
                )
        return [packed_models[part_number, row_number, left_out] for row_number in offered_rows]

    def _order(
        self, plan: Plan, client: Client, position: Position, part_name: str, part_number: int = 0
    ) -> Order:
        """The order of a client from its task in a plan without parts."""
        order = Order.of_plan(
            plan,
            client,
            self.settings.training,
            (self.settings.seed, position.exchange, position.round),
            d=self.wire.layout.size,
            part=part_name,
            number=part_number,
        )
        return replace(
            order,
            run=self.own_values.run,
            since=self.own_values.first_valid_exchange(part_name),
        )

    def _message(
        self, message_type: str, offered_models: Iterable[ArrayRecord], orders: Sequence[Order]
    ) -> Message:
        """The message with orders and the models to which they refer."""
        config = messages.config_of(*orders)
        for entry_name, entry_value in self.configs.get(message_type, {}).items():
            # The run config of the user's ServerApp must not change the keys of the task.
            if entry_name not in config:
                config[entry_name] = entry_value
        model_records = {
            messages.name_of(model_number): model_arrays
            for model_number, model_arrays in enumerate(offered_models)
        }
        return Message(
            RecordDict({**model_records, CONFIG: config}),
            dst_node_id=self.nodes.node(orders[0].client),
            message_type=message_type,
        )

    def ask(self, requests: Sequence[Message]) -> list[Message]:
        """Send tasks or tests and wait for the answers.

        Args:
            requests: The messages.

        Returns:
            All answers that have arrived at the end of the wait, also those of nodes that are not
            waited for.
        """
        if not requests:
            return []
        # The messenger waits for the awaited nodes, and collects answers of the others as well.
        messenger = self.nodes.messenger
        connected_nodes = [self.nodes.node(client) for client in self.online]
        reply_messages = messenger.ask(requests, self.settings.waiting, connected_nodes)
        # Note the nodes for which the server waits no longer, or again.
        for request_kind in sorted({RequestKind.of(message) for message in requests}):
            is_behind = messenger.is_behind(request_kind)
            if is_behind == (request_kind in self.unawaited):
                continue
            client = self.nodes.client_of_node[request_kind.node]
            requested = "tests" if request_kind.request == "evaluate" else "tasks"
            note_text = f"client {client} answers {requested} again; the server waits for it"
            if is_behind:
                note_text = (
                    f"client {client} did not answer {MAX_UNANSWERED} {requested} in a row; "
                    "the server no longer waits for it"
                )
            node_note = Note(kind="node", effect="warns", clients=(client,), text=note_text)
            self.nodes.notes.append(node_note)
            self.unawaited ^= {request_kind}
        return reply_messages

    def incoming(self, plan: Plan, reply_messages: Iterable[Message], exchange: int) -> Replies:
        """Convert the replies to the form that a method's step needs. Unusable ones are refused with a reason.

        Args:
            plan: The plan.
            reply_messages: The clients' messages.
            exchange: Number of the exchange.

        Returns:
            The replies.
        """
        # 1. Read and check each reply. Nothing in a reply is trusted.
        parsed_replies, refused = self._parsed(plan, list(reply_messages))
        # 2. Under masks, unmask the sums of all usable replies.
        if self.masking is not None:
            self.masking.end()
            self.nodes.notes += self.masking.notes
        # 3. Combine the replies to each part of the plan in the form that the part needs.
        replies: dict[str, Replies] = {}
        own_value_notes: dict[str, Note] = {}
        for part_name, part in plan.leaves():
            # The results of this part, and why others are refused: in this part, or altogether.
            results: dict[Client, ClientResult] = {}
            refused_in_part: dict[Client, str] = {}
            for client, reply in parsed_replies.items():
                if part_name in reply.results:
                    results[client] = reply.results[part_name]
                if part_name in reply.refused:
                    refused_in_part[client] = reply.refused[part_name]
            for client, refusal in refused.items():
                if client in part.tasks:
                    refused_in_part[client] = refusal
            replies[part_name] = self._combined(part_name, part, results, refused_in_part)
            # Clients whose replies count have stored their own values after this exchange.
            notes_of_part = self.own_values.update(
                part_name,
                part,
                {client: results[client] for client in replies[part_name].clients},
                exchange,
                self.nodes.node,
                self.wire.counts,
            )
            # A client that lost the values of several parts is noted once.
            for note in notes_of_part:
                own_value_notes.setdefault(note.text, note)
        self.nodes.notes += own_value_notes.values()
        # 4. Own values of parts that end here do not count any more.
        self.own_values.end_parts(plan.all_ended_parts, exchange)
        # 5. Held-out losses are reported once for all parts.
        held_out_losses: dict[Client, HeldOutLosses] = {}
        for client, reply in parsed_replies.items():
            # Only the models of parts in which the reply of the client counts.
            counted_parts = {
                part_name for part_name in replies if client in replies[part_name].clients
            }
            client_losses = reply.losses_of(counted_parts)
            if client_losses is not None:
                held_out_losses[client] = client_losses
        return together(plan, replies, held_out_losses)

    def _combined(
        self,
        part_name: str,
        part: Plan,
        results: Mapping[Client, ClientResult],
        refused: Mapping[Client, str],
    ) -> Replies:
        """The replies to a part of the plan, in the form that the part needs."""
        if self.masking is not None:
            return self.masking.replies(part_name, results, refused)
        robust = self.settings.robust
        training = self.settings.training
        if part.need == "sums":
            return flower_sums().added_up(part, results, refused, self.wire, robust, training)
        return gathered(part, results, refused, self.wire, robust, training)

    def _parsed(
        self, plan: Plan, reply_messages: Sequence[Message]
    ) -> tuple[dict[Client, ParsedReply], dict[Client, str]]:
        """The usable replies of clients, and why those of others are refused."""
        parsed_replies: dict[Client, ParsedReply] = {}
        refused = dict(self.unasked)
        asked_clients = set(plan.asked)
        # All replies of an exchange must be protected with the same secret.
        reply_reader = ReplyReader(
            plan=plan,
            wire=self.wire,
            secret=self._common_secret(reply_messages),
            most_examples=self.settings.robust.most_examples,
            plausible=self.plausible,
        )
        for reply in reply_messages:
            # Flower itself replies for a node that has gone: its client is silent.
            if gone(reply):
                continue
            client = self._sender(reply)
            if client is None or client not in asked_clients:
                continue
            # Only the first reply of a client counts.
            if client in parsed_replies or client in refused:
                continue
            try:
                parsed_reply = reply_reader.read(reply, client)
            except Unfit as error:
                refused[client] = messages.brief(error)
                continue
            if self.masking is not None:
                # Masked numbers that cannot be used refuse one part, as all else in a reply does.
                reasons = self.masking.take(client, reply.content, parsed_reply.results)
                parsed_reply = parsed_reply.without(reasons)
            parsed_replies[client] = parsed_reply
        return parsed_replies, refused

    def _sender(self, reply: Message) -> Client | None:
        """The client that sent a reply; None for a node that is no client, or was this client before."""
        node = reply.metadata.src_node_id
        client = self.nodes.client_of_node.get(node)
        if client is None or self.nodes.node(client) != node:
            return None
        return client

    def _common_secret(self, reply_messages: Iterable[Message]) -> str | None:
        """The digest of the secret with which clients drew the first model.

        In a run that continues, it is the digest that most clients have reported in all exchanges
        so far. So the client that answers first does not decide for the others.
        """
        if self.secret is not None:
            return self.secret
        for reply in reply_messages:
            client = self.nodes.client_of_node.get(reply.metadata.src_node_id)
            if (
                client is not None
                and reply.has_content()
                and boundary_check.agrees(reply.content, self.wire.boundary)
            ):
                self.reported_secrets[client] = boundary_check.secret_of(reply.content)
        return boundary_check.most_common(self.reported_secrets.values())

    def first_model(
        self, replies: Iterable[Message], make_net: Callable[[], nn.Module]
    ) -> Tensor | None:
        """Return the first model on which more than half of the clients that offer a usable one agree.

        All of them must have drawn and sealed it with the same secret, whose digest is stored.

        Args:
            replies: The clients' replies.
            make_net: Function that makes the net.

        Returns:
            The model as a row ``(d,)``, or None if no reply has a usable one.

        Raises:
            EngineError: The clients do not agree.
        """
        # The majority decides, because the server cannot open these models and check them.
        agreed_model = boundary_check.agreed(replies, self.wire, make_net)
        if agreed_model is None:
            return None
        model_row, self.secret = agreed_model
        return model_row

    # -- tests
    # ----------------------------------------------------------------------------------------------------------

    def evaluate(
        self, assignment: Assignment, position: Position
    ) -> dict[Client, dict[str, float]]:
        """Test the model, or the ensemble, of each client on its own test data.

        Args:
            assignment: The model of each client.
            position: State of the run.

        Returns:
            Client -> metric -> value; NaN for clients that do not answer.
        """
        return self.scores(assignment, self.ask(self.tests(assignment, position)))

    def tests(self, assignment: Assignment, position: Position) -> list[Message]:
        """Make the messages that ask the connected clients to test the models assigned to them.

        Args:
            assignment: The model of each client.
            position: State of the run.

        Returns:
            One message per connected client.
        """
        packed_models: PackedModels = {}
        return [
            self._test_message(assignment, client, position, packed_models)
            for client in sorted(assignment.row)
            if client in self.online
        ]

    def _test_message(
        self,
        assignment: Assignment,
        client: Client,
        position: Position,
        packed_models: PackedModels,
    ) -> Message:
        """The message that asks a client to test the model, or the ensemble, assigned to it."""
        offered_rows = assignment.serving(client)
        if client not in self.nodes.coterie_clients:
            # An app that does not know Coterie tests one model.
            offered_rows = (assignment.row[client],)
        # The models in the message, which are numbered anew there.
        task = Task(offered=tuple(range(len(offered_rows))), choose=len(offered_rows))
        if assignment.hidden:
            # The client takes one of all models.
            offered_rows = tuple(range(len(assignment.models)))
            task = Task(offered=offered_rows, epochs=0)
        is_plain = client in assignment.plain
        left_out: tuple[str, ...] = ()
        if not is_plain:
            left_out = self.own_values.layers_of(self.nodes.node(client), assignment.part)
        models = self._packed(assignment.models, offered_rows, left_out, packed_models)
        plan = Plan(models=assignment.models, tasks={client: task})
        order = replace(
            self._order(plan, client, position, assignment.part),
            plain=is_plain,
            neighbours=assignment.neighbours_of(client),
            hidden=assignment.hidden,
        )
        return self._message("evaluate", models, [order])

    def scores(
        self, assignment: Assignment, replies: Iterable[Message]
    ) -> dict[Client, dict[str, float]]:
        """Return the results of the tests for all clients of an assignment.

        Args:
            assignment: The model of each client.
            replies: The clients' messages.

        Returns:
            Client -> metric -> value, and the sums of metrics that have some, see ``flat``; NaN for
            clients without a usable answer.
        """
        # Only the first answer of a client counts.
        client_scores: dict[Client, dict[str, float]] = {}
        for reply in replies:
            client = self._sender(reply)
            if client is not None and client not in client_scores and reply.has_content():
                client_scores[client] = self._scores_in(reply)
        # A client that did not answer, or without rows that are set aside, has NaN for what others
        # report.
        score_names = dict.fromkeys(self.settings.metric_names)
        if any(_has_validation_scores(scores) for scores in client_scores.values()):
            score_names |= dict.fromkeys(VALIDATION + name for name in self.settings.metric_names)
        no_scores = dict.fromkeys(score_names, math.nan)
        scores_of_all = {}
        for client in sorted(assignment.row):
            scores_of_all[client] = no_scores | client_scores.get(client, {})
        return scores_of_all

    def _scores_in(self, reply: Message) -> dict[str, float]:
        """The metrics in a client's reply to a test; NaN for those that it lacks.

        They contain validation scores if the client has set rows aside for them.
        """
        try:
            reply_metrics = messages.only(
                reply.content.metric_records, METRICS_RECORD, "metric records"
            )
        except Unfit:
            return dict.fromkeys(self.settings.metric_names, math.nan)
        client_scores = self._scores_of(reply_metrics, prefix="")
        if _has_validation_scores(reply_metrics):
            client_scores |= self._scores_of(reply_metrics, prefix=VALIDATION)
        return client_scores

    def _scores_of(self, reply_metrics: Any, prefix: str) -> dict[str, float]:
        """The test scores in a reply, or the validation scores, whose names begin with a prefix."""
        scores: dict[str, float] = {}
        for metric, names_in_apps in self.settings.metric_names.items():
            app_names = [prefix + app_name for app_name in names_in_apps]
            # The value of the metric, and the sums from which it follows for several clients
            # together.
            score_name = prefix + metric
            scores[score_name] = messages.number(reply_metrics, app_names)
            scores |= flat(score_name, messages.error_sums(reply_metrics, app_names))
        # A loss that the objective cannot have is treated like a missing one.
        loss_name = prefix + "loss"
        if self.plausible.flaw([scores.get(loss_name, math.nan)], [], "test"):
            scores[loss_name] = math.nan
        return scores

    # -- calibration
    # ----------------------------------------------------------------------------------------------------

    def calibration(self, assignment: Assignment, position: Position) -> list[dict[str, Any]]:
        """Ask the connected clients for the sums by which the models that serve them are calibrated.

        Nothing is asked where noise or masks hide single clients, or where it is not known which
        whole model serves a client.

        Args:
            assignment: The model of each client.
            position: State of the run.

        Returns:
            A table for each set of models that serve clients together: ``clients``: client -> its
            ``train``, ``validation`` and ``test`` rows; and the numbers of ``CalibrationSums``.
        """
        boundary = self.wire.boundary
        if boundary.noise or boundary.masks or assignment.hidden:
            return []
        requests = []
        packed_models: PackedModels = {}
        for client in sorted(assignment.row):
            if client not in self.online or client not in self.nodes.coterie_clients:
                continue
            # Layers that stay at the client are missing from the server's models.
            if not self.own_values.layers_of(self.nodes.node(client), assignment.part):
                requests.append(
                    self._calibration_message(assignment, client, position, packed_models)
                )
        sums_of_models: dict[tuple[int, ...], CalibrationSums] = {}
        rows_of_models: dict[tuple[int, ...], dict[str, dict[str, int]]] = {}
        for reply in self.ask(requests):
            client_of_reply = self._sender(reply)
            if client_of_reply is None or not reply.has_content():
                continue
            models = tuple(assignment.serving(client_of_reply))
            rows_of_clients = rows_of_models.setdefault(models, {})
            # Only the first answer of a client counts, and one that cannot be read does not.
            if str(client_of_reply) in rows_of_clients:
                continue
            try:
                sums, train_rows = self._calibration_in(reply)
                if models in sums_of_models:
                    sums_of_models[models] = sums_of_models[models] + sums
                else:
                    sums_of_models[models] = sums
            except ValueError:
                continue
            rows_of_clients[str(client_of_reply)] = {
                "train": train_rows,
                "validation": sums.validation_rows,
                "test": sums.test_rows,
            }
        return [
            {"clients": rows_of_models[models], **sums.numbers()}
            for models, sums in sums_of_models.items()
        ]

    def _calibration_message(
        self,
        assignment: Assignment,
        client: Client,
        position: Position,
        packed_models: PackedModels,
    ) -> Message:
        """The message that asks a client about the whole model, or the ensemble, that the server has for it."""
        offered_rows = assignment.serving(client)
        task = Task(offered=tuple(range(len(offered_rows))), choose=len(offered_rows))
        plan = Plan(models=assignment.models, tasks={client: task})
        order = replace(self._order(plan, client, position, assignment.part), plain=True)
        models = self._packed(assignment.models, offered_rows, (), packed_models)
        message = self._message("evaluate", models, [order])
        config = message.content[CONFIG]
        assert isinstance(config, ConfigRecord)
        config[CALIBRATION] = True
        return message

    def _calibration_in(self, reply: Message) -> tuple[CalibrationSums, int]:
        """The sums in a reply, and the number of training rows. Raises ``ValueError`` if it has none that can be used."""
        metrics = messages.only(reply.content.metric_records, METRICS_RECORD, "metric records")
        train_rows = messages.count_of(metrics, "num-examples", "number of examples")
        prefix = f"{CALIBRATION}-"
        numbers = {}
        for name, value in metrics.items():
            if name.startswith(prefix):
                numbers[name.removeprefix(prefix)] = value
        most_examples = self.settings.robust.most_examples
        return CalibrationSums.of_numbers(numbers, most_examples), train_rows


def _has_validation_scores(scores: Iterable[str]) -> bool:
    """Whether some of the names of scores are those of validation scores."""
    return any(name.startswith(VALIDATION) for name in scores)
