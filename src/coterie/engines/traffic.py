"""What an exchange costs: bytes both ways, and how often clients measure a model."""

from __future__ import annotations

from dataclasses import replace

from coterie.boundary import NUMBER, Wire
from coterie.core import Plan, Replies, Task


def traffic(plan: Plan, wire: Wire) -> tuple[int, int]:
    """(bytes up, bytes down) of an exchange: rows less the layers that stay, losses, choices and example counts."""
    up = down = 0
    sizes: dict[tuple[str, ...], tuple[int, int]] = {}
    for task in plan.tasks.values():
        if task.keep not in sizes:
            sizes[task.keep] = wire.columns(task)
        parameters, others = sizes[task.keep]
        row = parameters + others
        if row or task.measure:
            updates = task.trains * (2 if task.halves else 1)
            up += updates * wire.bytes_of(parameters, others) + _reply_numbers(task, wire) * NUMBER
            down += len(task.offered) * row * NUMBER
    return up, down


def as_sent(plan: Plan, replies: Replies) -> Plan:
    """The plan as it was answered: who sent one update in place of two, for want of examples, was asked for one."""
    whole = set(replies.clients) - set(replies.halved)
    tasks = {c: replace(task, halves=False) if task.halves and c in whole else task for c, task in plan.tasks.items()}
    return replace(plan, tasks=tasks)


def evaluations(plan: Plan) -> int:
    """How often a client is asked to measure a model on its data."""
    return sum(len(task.offered) for task in plan.tasks.values() if task.measure)


def _reply_numbers(task: Task, wire: Wire) -> int:
    """Numbers in a reply besides the update: the example count, choices, loss and accuracy per model."""
    measured = 2 * len(task.offered) if task.measure else 0
    choice = task.choose if task.choose < len(task.offered) else 0
    return wire.counts + measured + choice
