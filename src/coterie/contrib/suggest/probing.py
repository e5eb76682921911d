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
from coterie.settings import UserError

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
            f"{run.folder} has no completed round yet; to continue, run coterie resume {run.folder}"
        )
    _, position = checkpoint
    return position


def start_of(assignment: Assignment, position: Position, lines: list[Line]) -> StartingPoint:
    """The model from which to probe.

    Args:
        assignment: The models that serve the clients.
        position: The position of the run.
        lines: The records of the run.

    Returns:
        The model that serves all clients; else the last model that all clients shared before they
        were divided into groups; else the mean of the models that serve clients.
    """
    shared_row = _last_shared_row(assignment)
    if shared_row is None or _any_own_layers(assignment, position):
        return _mean_of_served(assignment, position)
    # Either it serves all clients now, or it is the last model before they were divided.
    model = assignment.models[shared_row]
    if all(row == shared_row for row in assignment.row.values()):
        return StartingPoint(model, position.round, "the model that serves all clients", True)
    # The model was trained by all clients until the round before the one that divided them.
    first_divided_round = position.round + 1
    for line in lines:
        if len(line["groups"]) > 1:
            first_divided_round = line["round"]
            break
    words = "the last model shared by all clients"
    return StartingPoint(model, first_divided_round - 1, words, True)


def _last_shared_row(assignment: Assignment) -> int | None:
    """The last model on every client's path from the root; None if there is none."""
    paths = [assignment.path.get(client, (row,)) for client, row in assignment.row.items()]
    shared_rows = [row for row in paths[0] if all(row in path for path in paths)]
    return shared_rows[-1] if shared_rows else None


def _any_own_layers(assignment: Assignment, position: Position) -> bool:
    """Whether a client keeps layers or a whole model for itself."""
    return any(position.own(assignment, client) is not None for client in assignment.row)


def _mean_of_served(assignment: Assignment, position: Position) -> StartingPoint:
    """The mean of the different models that serve clients, with the layers that clients keep."""
    # A client with own layers has a model of its own; the others share those of their rows. A dict
    # and not a set: sums of floats depend on the order, which must be the same in every process.
    served_models: dict[tuple[int, Client | None], None] = {}
    for client, row in assignment.row.items():
        has_own_layers = position.own(assignment, client) is not None
        served_models[row, client if has_own_layers else None] = None
    total = sum(
        own_layers(
            assignment.models[row],
            None if client is None else position.own(assignment, client),
        )
        for row, client in served_models
    )
    assert isinstance(total, Tensor)
    words = f"the mean of the {len(served_models)} models that serve clients"
    return StartingPoint(total / len(served_models), position.round, words, False)


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

    def halves(self, start: StartingPoint) -> Evidence:
        """Make one probe: updates from both halves of each client's data, with equal steps, as the method split-half does.

        Clients whose data cannot be halved are left out from then on.

        Args:
            start: The model from which the clients train.

        Returns:
            The evidence for the split-half test.

        Raises:
            UserError: Fewer than two clients have data that can be halved.
        """
        # Both halves of every client take as many steps, so that their noise can be compared.
        train_sizes = [
            self.pool.wire.examples(len(self.world.clients[client].train))
            for client in self.present
        ]
        training = of_equal_steps(self.world.training, train_sizes)
        task = Task(offered=(0,), halves=True, training=training)
        plan = Plan(
            models=start.model[None],
            tasks=dict.fromkeys(self.present, task),
            need="mean",
            columns=self.parameters,
        )
        replies = self._ask(plan, start.round)
        # The Gram matrix of the halves of clients that sent both.
        evidence = evidence_of(replies)
        if evidence is None:
            client, reason = min(replies.refused.items(), default=(None, ""))
            refused = f"; client {client} was refused: {reason}" if reason else ""
            raise UserError(
                f"a probe needs two clients with enough training examples (or subjects) for two halves{refused}"
            )
        # These clients cannot take part in the second probe either.
        not_halved = [client for client in replies.clients if client not in evidence.clients]
        self.leave_out({**replies.refused, **dict.fromkeys(not_halved, TOO_FEW_EXAMPLES)})
        return evidence

    def leave_out(self, reasons: Mapping[Client, str]) -> None:
        """Ask some clients no longer; ``reasons``: client -> why."""
        self.left_out = {**self.left_out, **reasons}
        self.present = tuple(client for client in self.present if client not in reasons)

    def updates(self, start: StartingPoint, epochs: int | None = None) -> Replies:
        """The update of each client.

        Args:
            start: The model from which the clients train.
            epochs: Epochs of training; None for those of a round.

        Returns:
            The replies.

        Raises:
            UserError: A client was refused.
        """
        tasks = dict.fromkeys(self.present, Task(offered=(0,), epochs=epochs))
        replies = self._ask(Plan(models=start.model[None], tasks=tasks, need="rows"), start.round)
        if replies.refused:
            client, reason = next(iter(replies.refused.items()))
            raise UserError(f"the probe failed: client {client} was refused: {reason}")
        # The pool reuses this memory for the next replies.
        return replace(replies, updates=replies.all_updates.clone())

    def _ask(self, plan: Plan, round: int) -> Replies:
        self.pool.wire.check(plan, "suggest")
        self.exchanges += 1
        # Random numbers depend on the round and the exchange: none of the run are drawn again.
        exchange_number = FIRST_PROBE_EXCHANGE + self.exchanges
        position = Position(round=round, exchange=exchange_number, state=None)
        replies, _ = exchange(self.pool, plan, position, self.seed, Clock())
        if self.progress:
            self.progress()
        return replies
