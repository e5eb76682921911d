"""The server's side of the agreement on constants: questions to the nodes of a grid, and sums of their answers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from coterie.contrib.sites import agreement
from coterie.contrib.sites.agreement import Answer, SumQuestion
from coterie.contrib.sites.cells import Cells
from coterie.contrib.sites.federation_file import TableFederation
from coterie.contrib.sites.flower.site_app import ACTION, QUESTION, SITE_ANSWER
from coterie.contrib.sites.masked_answers import MAX_MASKED_CLIENTS, decoded, form_of, size_of
from coterie.contrib.sites.site import agreed_facts, feature_schema
from coterie.core import Client
from coterie.engines.flower.messages import CONFIG, Unfit, array_of, failure
from coterie.engines.flower.nodes import Messenger, Nodes, Waiting
from coterie.engines.workers import EngineError
from coterie.extensions import provided
from coterie.printable import printable

MAX_AGREEMENT_ATTEMPTS = 3
"""Most times that the sites begin to agree: a site which falls silent is left out, and all begin again."""

MIN_MASKED_CLIENTS = 3
"""Least number of sites under masks: of two, each could subtract its own numbers from the sum."""


class SiteLost(Exception):
    """A site has not answered a question, so that sums would be over other sites than before."""

    def __init__(self, client: Client, reason: str) -> None:
        super().__init__(reason)
        self.client = client


@dataclass
class GridAgreement:
    """Asks the nodes of a federation for sums over their training rows.

    Attributes:
        federation: The federation's file.
        nodes: The nodes.
        waiting: How long to wait for answers.
        say: Called with a line for the log.
        clients: The clients that are asked.
        questions: How many questions were asked.
    """

    federation: TableFederation
    nodes: Nodes
    waiting: Waiting
    say: Callable[[str], None]
    clients: tuple[Client, ...] = ()
    questions: int = 0

    def agree(self, num_sites: int, seconds: float) -> dict[str, Any]:
        """Wait for the sites, and return the facts that follow from their sums, see :func:`.site.agreed_facts`.

        Args:
            num_sites: Number of sites that must be connected.
            seconds: Longest time to wait for them.

        Raises:
            EngineError: Too few sites are connected, or all that are have tables that do not fit.
        """
        schema = feature_schema(self.federation)
        scaling = self.federation.scenario.scaling
        lost: set[Client] = set()
        for _ in range(MAX_AGREEMENT_ATTEMPTS):
            self._wait_for_sites(num_sites, seconds, lost)
            self.questions = 0
            try:
                agreed = agreement.agree(
                    schema,
                    self.ask,
                    scales_inputs=scaling.of_inputs == "pooled",
                    scales_targets=scaling.of_targets == "pooled",
                )
            except SiteLost as error:
                site = self.nodes.shown.client(error.client)
                self.say(printable(f"site {site} is left out of the constants: {error}"))
                lost.add(error.client)
                continue
            facts = agreed_facts(self.federation, agreed)
            if self.questions:
                sums_in_words = "of masked sums" if self.federation.masks else "of sums"
                self.say(
                    f"{len(self.clients)} sites agreed on the constants of {len(facts['about']['features'])} "
                    f"features by {self.questions} questions {sums_in_words}"
                )
            return facts
        raise EngineError(
            f"the sites began {MAX_AGREEMENT_ATTEMPTS} times to agree on constants, and one fell silent each time"
        )

    def _wait_for_sites(self, num_sites: int, seconds: float, lost: set[Client]) -> None:
        online = self.nodes.wait_for_clients(num_sites, seconds, self.say)
        # Nodes whose tables do not fit say so in place of a schema.
        self.nodes.agree_on_schema()
        accepted = online.intersection(self.nodes.client_of_node.values()) - lost
        self.clients = tuple(sorted(accepted))
        for client, refusal in self.nodes.differing_clients.items():
            self.say(printable(f"site {self.nodes.shown.client(client)} takes no part: {refusal}"))
        if not self.clients:
            reasons = list(self.nodes.differing_clients.values()) or ["all have fallen silent"]
            raise EngineError(f"no site can agree on constants: {reasons[0]}")
        if (
            self.federation.masks
            and not MIN_MASKED_CLIENTS <= len(self.clients) <= MAX_MASKED_CLIENTS
        ):
            raise EngineError(
                f"masks need {MIN_MASKED_CLIENTS} to {MAX_MASKED_CLIENTS:,} sites, and {len(self.clients)} can "
                "agree on constants"
            )

    def ask(self, question: SumQuestion) -> Answer:
        """Return the sum of the sites' answers to a question.

        Raises:
            SiteLost: A site has not answered.
        """
        self.questions += 1
        form = form_of(self._empty_answer(question))
        if not self.federation.masks:
            replies = self._exchange({client: _message_of(question) for client in self.clients})
            return agreement.sum_of(
                [_answer_in(replies[client], form, client) for client in self.clients]
            )
        sums: Any = provided("coterie.exchanges", "flower-sums")
        try:
            words = sums.sum_of_vectors(
                self._exchange,
                self.clients,
                size_of(form),
                secrets.token_bytes(16),
                lambda client: _message_of(question),
            )
        except ValueError as error:
            # A step of the protocol cannot go on: nobody knows which site is at fault.
            raise EngineError(f"the masked sum of a question failed: {error}") from error
        return decoded(words, form)

    def _empty_answer(self, question: SumQuestion) -> Answer:
        """The answer of a site without rows: every site's has this form."""
        schema = feature_schema(self.federation)
        common = self.federation.common
        no_rows = {name: Cells((), np.zeros(0, np.int64)) for name in schema.columns}
        targets = None
        class_counts = None
        if schema.class_weights == "balanced":
            class_counts = np.zeros(len(common.classes), np.int64)
        if self.federation.scenario.scaling.of_targets == "pooled":
            targets = np.zeros((0, len(common.targets)))
        client = agreement.Client(schema, no_rows, "no rows", class_counts, targets)
        return client.answer(question)

    def _exchange(self, contents: Mapping[Client, RecordDict]) -> dict[Client, RecordDict]:
        """Send a message to each client, and return what all have replied."""
        client_of_node = {self.nodes.node(client): client for client in contents}
        messages = [
            Message(content, dst_node_id=self.nodes.node(client), message_type=f"query.{ACTION}")
            for client, content in contents.items()
        ]
        replies, _ = self.nodes.messenger.exchange(messages, set(client_of_node), self.waiting)
        contents_of_replies: dict[Client, RecordDict] = {}
        for reply in replies:
            client = client_of_node.get(reply.metadata.src_node_id)
            if client is None:
                continue
            if reply.has_error():
                raise SiteLost(client, f"its app failed: {failure(reply.error)}")
            contents_of_replies[client] = reply.content
        for client in contents:
            if client not in contents_of_replies:
                raise SiteLost(client, "it has not answered")
        return contents_of_replies


def id_query() -> RecordDict:
    """Return the content of the message that asks a node who it is, before there is a model."""
    return RecordDict({CONFIG: ConfigRecord({})})


def nodes_of(messenger: Messenger, waiting: Waiting, identity: Any) -> Nodes:
    """Return the nodes of a grid, of which only ids are asked."""
    return Nodes(
        messenger, waiting, identity, id_query=id_query(), client_names=dict(identity.names)
    )


def _message_of(question: SumQuestion) -> RecordDict:
    return RecordDict({CONFIG: ConfigRecord({QUESTION: json.dumps(question.to_json())})})


def _answer_in(content: RecordDict, form: Mapping[str, Any], client: Client) -> Answer:
    """The answer in a reply. Nothing in it is trusted."""
    record = content.get(SITE_ANSWER)
    if not isinstance(record, ArrayRecord) or set(record) != set(form):
        raise SiteLost(client, "its answer has other entries than were asked for")
    answer: Answer = {}
    for name, (shape, counts) in form.items():
        try:
            numbers = array_of(record, name)
        except Unfit as error:
            raise SiteLost(client, str(error)) from None
        is_sound = numbers.shape == shape and (numbers.dtype.kind in "iu") == counts
        if not is_sound or not np.isfinite(numbers).all() or (counts and (numbers < 0).any()):
            raise SiteLost(client, f"its answer about {name} cannot be used")
        answer[name] = numbers.astype(np.int64 if counts else np.float64)
    return answer
