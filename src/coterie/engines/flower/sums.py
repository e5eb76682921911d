"""What Flower's processes ask of the extension for sums over clients: plans with ``need="sums"``, and masks.

The extension is a module with the functions of :class:`FlowerSums`. The entry point ``flower-sums``
in ``coterie.exchanges`` names it. ``coterie.engines.exchange.SumsExchange`` is its counterpart in
one process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import Context, RecordDict
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.core import Client, Note, Plan, Question, Replies, Task, Training
from coterie.extensions import provided
from coterie.models.layout import Layout
from coterie.robust import Robust
from coterie.training import ClientResult, Order

Ask = Callable[[Mapping[Client, RecordDict]], Mapping[Client, RecordDict]]
"""Sends a message to each client, and returns the contents of the replies that have arrived."""


class MaskedExchange(Protocol):
    """The server's side of one exchange under masks. Its methods are called in this order.

    Attributes:
        notes: What went wrong, for the record of the round.
    """

    notes: list[Note]

    def begin(self) -> None:
        """Carry out the steps of the protocol before the tasks are sent."""
        ...

    def is_silent(self, client: Client) -> bool:
        """Return whether a client has not answered these steps, or its sum is not formed: it gets no task."""
        ...

    def add_config(self, client: Client, content: RecordDict) -> None:
        """Add what a client must know for its masked reply to the message with its tasks."""
        ...

    def take(
        self, client: Client, content: RecordDict, usable_parts: Collection[str]
    ) -> dict[str, str]:
        """Add a client's masked numbers to the totals.

        Args:
            client: The client.
            content: Its reply.
            usable_parts: Names of the parts of the plan in which the rest of the reply is usable.

        Returns:
            Name of a part -> why its numbers are not added.
        """
        ...

    def end(self) -> None:
        """Carry out the steps of the protocol after the replies: the sums are unmasked."""
        ...

    def replies(
        self, part_name: str, results: Mapping[Client, ClientResult], refused: Mapping[Client, str]
    ) -> Replies:
        """Return the replies to a part of the plan: its sums, and what single replies have besides.

        Args:
            part_name: The name of the part.
            results: Client -> the result of its task.
            refused: Client -> why its result was refused.
        """
        ...


class FlowerSums(Protocol):
    """The functions of the extension: for messages, for the server, for clients and for their mod."""

    # -- messages

    def question_to_json(self, question: Question) -> dict[str, Any]:
        """Return a question as a value for JSON."""
        ...

    def question_from_json(self, values: Mapping[str, Any]) -> Question:
        """Read a question from JSON. Raises ``ValueError`` or ``TypeError`` if a value is not allowed."""
        ...

    # -- the server

    def masked_exchange(
        self, plan: Plan, clients: Collection[Client], run: str, exchange: int, wire: Wire, ask: Ask
    ) -> MaskedExchange:
        """Return the server's side of an exchange under masks.

        Args:
            plan: The plan.
            clients: The clients that take part, of those that have tasks.
            run: Name of the run.
            exchange: Number of the exchange.
            wire: The wire between clients and server.
            ask: Sends the messages of the protocol.

        Raises:
            SettingError: The noise would be rounded away.
        """
        ...

    def added_up(
        self,
        plan: Plan,
        results: Mapping[Client, ClientResult],
        refused: Mapping[Client, str],
        wire: Wire,
        robust: Robust,
        training: Training,
    ) -> Replies:
        """Combine the plausible replies to a plan that needs only sums, without masks.

        They are kept as sums, and everything else is dropped.

        Args:
            plan: The plan.
            results: Client -> its result after parsing.
            refused: Client -> why its reply was refused.
            wire: The wire between clients and server.
            robust: Limits on the effect of one client on the others.
            training: Training settings of the experiment.
        """
        ...

    def read_answer(
        self,
        content: RecordDict,
        metrics: Any,
        plan: Plan,
        task: Task,
        row_length: int,
        task_place: int,
    ) -> tuple[np.ndarray | None, int | None]:
        """Read the answer to a task's question from a reply.

        Args:
            content: The reply, from an unknown sender.
            metrics: Its metrics.
            plan: The plan.
            task: The task, which has a question.
            row_length: The number of parameters.
            task_place: The place of the task among the client's tasks.

        Returns:
            The numbers of the answer, and the client's cell: None for what the client was not
            asked, or does not know.

        Raises:
            Unfit: The answer cannot be used.
        """
        ...

    # -- a client

    def task_as_taken(self, task: Task, half_sketches: np.ndarray | None) -> Task:
        """Return the task of a plan that hides choices as a client with these sketches ``(2, k)`` takes it."""
        ...

    def client_result(
        self,
        result: ClientResult,
        order: Order,
        stored_sketches: Callable[[], np.ndarray | None],
        layout: Layout,
        examples: int,
    ) -> ClientResult:
        """Return the result of a task of which only sums are needed: one update, and the answer to its question.

        Args:
            result: What the client has trained.
            order: The task.
            stored_sketches: Returns the sketches ``(2, k)`` of the halves of an earlier exchange;
                None if the client has none.
            layout: The layout of the model's parameters.
            examples: The client's number of training examples.
        """
        ...

    # -- a client's mod: the app does not know of masks

    def reply_to_step(
        self, content: RecordDict, context: Context, boundary: Boundary, answers_once: bool
    ) -> RecordDict | None:
        """Return the reply to a message of the protocol; None for another message.

        Args:
            content: The message.
            context: Flower's context of the node, whose state has the secrets between steps.
            boundary: The client's boundary.
            answers_once: Whether to make sure that no step is answered twice.
        """
        ...

    def pop_config(self, content: RecordDict) -> Mapping[str, Any]:
        """Remove from a message with tasks what :meth:`MaskedExchange.add_config` added, and return it."""
        ...

    def masked_reply(
        self,
        reply: RecordDict,
        orders: Sequence[Order],
        updates: Sequence[Tensor | None],
        config: Mapping[str, Any],
        context: Context,
        wire: Wire,
        noise_generator: np.random.Generator,
        answers_once: bool,
    ) -> dict[str, Any]:
        """Return the records of an app's reply to its tasks, with everything under masks.

        Args:
            reply: The app's reply.
            orders: The tasks.
            updates: The update of each task, if it has one.
            config: What :meth:`pop_config` has returned.
            context: Flower's context of the node.
            wire: The client's wire, whose boundary has the bound and the noise.
            noise_generator: Draws the noise.
            answers_once: Whether to make sure that no sum is answered twice.
        """
        ...


def flower_sums() -> FlowerSums:
    """Return the extension for sums over clients.

    Raises:
        UserError: No installed package registers it.
    """
    extension: FlowerSums = provided("coterie.exchanges", "flower-sums")
    return extension
