"""A run's clients, asked for exchanges of which the run keeps nothing; and the model that they are asked to train from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from coterie.core import Assignment, Client, Plan, Replies, Task
from coterie.engines import roll
from coterie.engines.clock import Clock
from coterie.engines.fleet import Fleet
from coterie.engines.gather import exchange
from coterie.engines.inprocess import Position
from coterie.layout import own_layers
from coterie.methods.probing import of_equal_steps
from coterie.methods.split_half_groups import Evidence, evidence_of
from coterie.record import Line
from coterie.runs import Run
from coterie.settings import UserError

FAR = 10**9
"""Exchanges asked for here are numbered from this, where no run comes to: their draws are none of its own."""


@dataclass(frozen=True)
class Start:
    """model ``(d,)``: what is probed from. round: how many it was trained for. words: which it is. shared: all clients have, or
    had, it."""

    model: Tensor
    round: int
    words: str
    shared: bool


def stored(run: Run) -> Position:
    """Where a run stands. Raises :class:`~coterie.settings.UserError` if it has completed no round, or is damaged."""
    found = run.record.stored(Position, fallback=False)
    if found is None:
        raise UserError(f"{run.folder} has no completed round yet; coterie resume {run.folder} goes on with it")
    return found[1]


def start_of(assignment: Assignment, position: Position, lines: list[Line]) -> Start:
    """The model that serves all; else the last that all had before they were parted; else the mean of those that serve."""
    paths = [assignment.path.get(client, (row,)) for client, row in assignment.row.items()]
    shared = [row for row in paths[0] if all(row in path for path in paths)]
    if shared and not position.kept:
        model = assignment.models[shared[-1]]
        if all(row == shared[-1] for row in assignment.row.values()):
            return Start(model, position.round, "the model that serves all", True)
        apart = next((line["round"] for line in lines if len(line["groups"]) > 1), position.round + 1)
        return Start(model, apart - 1, "the last model that all had in common", True)
    each = {(row, client if client in position.kept else None) for client, row in assignment.row.items()}
    total = sum(own_layers(assignment.models[row], None if c is None else position.kept[c]) for row, c in each)
    assert isinstance(total, Tensor)
    return Start(total / len(each), position.round, f"the mean of the {len(each)} models that serve", False)


class Clients:
    """Those who are there where a run stands. fleet: trains them. parameters: the columns that similarity sees. seed: of the
    run. told: is called after each exchange."""

    def __init__(
        self, fleet: Fleet, parameters: slice, position: Position, seed: int, told: Callable[[], None] | None = None
    ) -> None:
        self.told = told
        self.fleet, self.world, self.parameters, self.seed = fleet, fleet.world, parameters, seed
        self.there = roll.present(fleet.world.attendance, position)
        self.left_out: Mapping[Client, str] = {}
        self.asked = 0

    def halves(self, start: Start) -> Evidence:
        """One probe: updates of both halves of everybody's data, in as many steps each, as split-half asks for.

        Who cannot be halved is left out from then on. Raises :class:`~coterie.settings.UserError` if fewer than two can be.
        """
        sizes = [self.fleet.wire.examples(len(self.world.clients[client].train)) for client in self.there]
        task = Task(offered=(0,), halves=True, training=of_equal_steps(self.world.training, sizes))
        tasks = dict.fromkeys(self.there, task)
        replies = self._ask(Plan(models=start.model[None], tasks=tasks, need="mean", columns=self.parameters), start.round)
        evidence = evidence_of(replies)
        if evidence is None:
            client, why = min(replies.refused.items(), default=(None, ""))
            refused = f"; client {client} was refused: {why}" if why else ""
            raise UserError(f"a probe needs two clients with training examples enough for two halves{refused}")
        few = [client for client in replies.clients if client not in evidence.clients]
        self.leave_out({**replies.refused, **dict.fromkeys(few, "too few training examples for two halves")})
        return evidence

    def leave_out(self, reasons: Mapping[Client, str]) -> None:
        """Ask these no more: client -> why."""
        self.left_out = {**self.left_out, **reasons}
        self.there = tuple(client for client in self.there if client not in reasons)

    def updates(self, start: Start, epochs: int | None = None) -> Replies:
        """Every update of a round from ``start``, or of so many epochs. Raises :class:`~coterie.settings.UserError` if one is
        refused."""
        tasks = dict.fromkeys(self.there, Task(offered=(0,), epochs=epochs))
        replies = self._ask(Plan(models=start.model[None], tasks=tasks, need="rows"), start.round)
        if replies.refused:
            client, why = next(iter(replies.refused.items()))
            raise UserError(f"the probe came to nothing: client {client} was refused: {why}")
        assert replies.updates is not None
        return replace(replies, updates=replies.updates.clone())  # the fleet writes the next replies there

    def _ask(self, plan: Plan, round: int) -> Replies:
        self.fleet.wire.check(plan, "suggest")
        self.asked += 1
        position = Position(round=round, exchange=FAR + self.asked, state=None)
        replies, _ = exchange(self.fleet, plan, position, self.seed, Clock())
        if self.told:
            self.told()
        return replies
