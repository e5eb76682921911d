"""Probes: exchanges with a run's clients that are not recorded in the run, and the model from which they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from coterie.core import Assignment, Client, Plan, Position, Replies, Task
from coterie.engines import rounds
from coterie.engines.clock import Clock
from coterie.engines.exchange import exchange
from coterie.engines.pool import ClientPool
from coterie.methods._half_steps import of_equal_steps
from coterie.methods._split_half_probes import Evidence, evidence_of
from coterie.models.layout import own_layers
from coterie.records.shown import Line
from coterie.runs.run import Run
from coterie.settings import UserError, in_shell

FIRST_PROBE_EXCHANGE = 10**9
"""First number of the exchanges made here. No run reaches it, so their random numbers differ from
those of the run."""

TOO_FEW_EXAMPLES = "too few training examples (or subjects) for two halves"
"""The reason to leave out a client whose data cannot be halved."""


@dataclass(frozen=True)
class StartingPoint:
    """The model from which a probe starts.

    Attributes:
        model: The model ``(d,)``.
        round: The number of rounds for which it was trained.
        words: A description of the model.
        shared: Whether all clients have this model, or had it.
    """

    model: Tensor
    round: int
    words: str
    shared: bool


def stored_position(run: Run) -> Position:
    """The current position of a run, from its newest checkpoint.

    Args:
        run: The run.

    Returns:
        The position.

    Raises:
        UserError: The run has no completed round, or is damaged.
    """
    checkpoint = run.record.stored(Position, fallback=False)
    if checkpoint is None:
        raise UserError(
            f"{run.folder} has no completed round yet; to continue, run coterie resume {in_shell(run.folder)}"
        )
    _, position = checkpoint
    return position


def start_of(
    assignment: Assignment, position: Position, recorded_lines: list[Line]
) -> StartingPoint:
    """The model from which to probe.

    Args:
        assignment: The models that serve the clients.
        position: The position of the run.
        recorded_lines: The records of the run.

    Returns:
        The model that serves all clients; else the last model that all clients shared before they
        were divided into groups; else the mean of the models that serve clients.
    """
    shared_row = _last_shared_row(assignment)
    if shared_row is None or _any_own_layers(assignment, position):
        return _mean_of_served(assignment, position)
    # Either it serves all clients now, or it is the last model before they were divided.
    model = assignment.models[shared_row]
    if all(served_row == shared_row for served_row in assignment.row.values()):
        return StartingPoint(model, position.round, "the model that serves all clients", True)
    # The model was trained by all clients until the round before the one that divided them.
    first_divided_round = position.round + 1
    for recorded_line in recorded_lines:
        if len(recorded_line["groups"]) > 1:
            first_divided_round = recorded_line["round"]
            break
    model_words = "the last model shared by all clients"
    return StartingPoint(model, first_divided_round - 1, model_words, True)


def _last_shared_row(assignment: Assignment) -> int | None:
    """The last model on every client's path from the root; None if there is none."""
    # Each client's models from the root to the one that serves it.
    rows_on_paths = []
    for client, model_row in assignment.row.items():
        rows_on_paths.append(assignment.path.get(client, (model_row,)))
    last_shared_row: int | None = None
    for model_row in rows_on_paths[0]:
        if all(model_row in rows_on_path for rows_on_path in rows_on_paths):
            last_shared_row = model_row
    return last_shared_row


def _any_own_layers(assignment: Assignment, position: Position) -> bool:
    """Whether a client keeps layers or a whole model for itself."""
    return any(position.own(assignment, client) is not None for client in assignment.row)


def _mean_of_served(assignment: Assignment, position: Position) -> StartingPoint:
    """The mean of the different models that serve clients, with the layers that clients keep."""
    # A client with own layers has a model of its own; the others share those of their rows. A dict
    # and not a set: sums of floats depend on the order, which must be the same in every process.
    served_models: dict[tuple[int, Client | None], None] = {}
    for client, model_row in assignment.row.items():
        has_own_layers = position.own(assignment, client) is not None
        served_models[model_row, client if has_own_layers else None] = None
    model_sum = sum(
        own_layers(
            assignment.models[model_row],
            None if client is None else position.own(assignment, client),
        )
        for model_row, client in served_models
    )
    assert isinstance(model_sum, Tensor)
    model_words = f"the mean of the {len(served_models)} models that serve clients"
    return StartingPoint(model_sum / len(served_models), position.round, model_words, False)


class ProbedClients:
    """The clients that are present at the current position of a run.

    Args:
        pool: The pool that trains the clients.
        parameters: The columns of a row on which similarities are computed.
        position: The position of the run.
        seed: The seed of the run.
        progress: Called after each exchange.

    Attributes:
        present: The clients that are asked.
        left_out: Client -> why it is not asked.
        exchanges: The number of exchanges so far.
    """

    def __init__(
        self,
        pool: ClientPool,
        parameters: slice,
        position: Position,
        seed: int,
        progress: Callable[[], None] | None = None,
    ) -> None:
        self.pool = pool
        self.world = pool.world
        self.parameters = parameters
        self.seed = seed
        self.progress = progress
        self.present = rounds.present(pool.world.attendance, position)
        self.left_out: Mapping[Client, str] = {}
        self.exchanges = 0

    def halves(self, starting_point: StartingPoint) -> Evidence:
        """Make one probe: updates from both halves of each client's data, with equal steps, as the method split-half does.

        Clients whose data cannot be halved are left out from then on.

        Args:
            starting_point: The model from which the clients train.

        Returns:
            The evidence for the split-half test.

        Raises:
            UserError: Fewer than two clients have data that can be halved.
        """
        # Both halves of every client take as many steps, so that their noise can be compared.
        train_sizes = []
        for client in self.present:
            num_examples = len(self.world.clients[client].train)
            train_sizes.append(self.pool.wire.examples(num_examples))
        training = of_equal_steps(self.world.training, train_sizes)
        task = Task(offered=(0,), halves=True, training=training)
        plan = Plan(
            models=starting_point.model[None],
            tasks=dict.fromkeys(self.present, task),
            need="mean",
            columns=self.parameters,
        )
        replies = self._ask(plan, starting_point.round)
        # The Gram matrix of the halves of clients that sent both.
        evidence = evidence_of(replies)
        if evidence is None:
            refused_client, refusal_reason = min(replies.refused.items(), default=(None, ""))
            refusal_words = ""
            if refusal_reason:
                refusal_words = f"; client {refused_client} was refused: {refusal_reason}"
            raise UserError(
                f"a probe needs two clients with enough training examples (or subjects) for two halves{refusal_words}"
            )
        # These clients cannot take part in the second probe either.
        not_halved = [client for client in replies.clients if client not in evidence.clients]
        self.leave_out({**replies.refused, **dict.fromkeys(not_halved, TOO_FEW_EXAMPLES)})
        return evidence

    def leave_out(self, reasons: Mapping[Client, str]) -> None:
        """Ask some clients no longer; ``reasons``: client -> why."""
        self.left_out = {**self.left_out, **reasons}
        self.present = tuple(client for client in self.present if client not in reasons)

    def updates(self, starting_point: StartingPoint, epochs: int | None = None) -> Replies:
        """The update of each client.

        Args:
            starting_point: The model from which the clients train.
            epochs: Epochs of training; None for those of a round.

        Returns:
            The replies.

        Raises:
            UserError: A client was refused.
        """
        tasks = dict.fromkeys(self.present, Task(offered=(0,), epochs=epochs))
        replies = self._ask(
            Plan(models=starting_point.model[None], tasks=tasks, need="rows"), starting_point.round
        )
        if replies.refused:
            client, refusal_reason = next(iter(replies.refused.items()))
            raise UserError(f"the probe failed: client {client} was refused: {refusal_reason}")
        # The pool reuses this memory for the next replies.
        return replace(replies, updates=replies.all_updates.clone())

    def _ask(self, plan: Plan, round_number: int) -> Replies:
        self.pool.wire.check(plan, "suggest")
        self.exchanges += 1
        # Random numbers depend on the round and the exchange: none of the run are drawn again.
        exchange_number = FIRST_PROBE_EXCHANGE + self.exchanges
        position = Position(round=round_number, exchange=exchange_number, state=None)
        replies, _ = exchange(self.pool, plan, position, self.seed, Clock())
        if self.progress:
            self.progress()
        return replies
