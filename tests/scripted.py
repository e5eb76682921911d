"""A method that does as a test says, and keeps what it was shown; and the bits of a state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core import (
    FEATURES,
    Assignment,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Round,
    Task,
    state,
)
from coterie.data.world import World
from coterie.engines.rounds import rounds
from coterie.records.codec import blob, encode
from coterie.robust import AS_PUBLISHED


@state("test.script")
class Script:
    clients: tuple[Client, ...]
    models: Tensor
    exchange: int = 0


@dataclass(frozen=True)
class Scripted:
    """Each exchange offers ``count`` fixed models with the tasks (and the rest of a plan) that ``say`` returns."""

    name: ClassVar[str] = "scripted"
    needs: ClassVar[Needs] = Needs(occasional=FEATURES, unchanged_by="rotation")

    say: Callable[[int, tuple[Client, ...]], dict[str, Any]]
    count: int = 2
    seen: list[Replies] = field(default_factory=list)

    def init(self, federation: Federation) -> Script:
        return Script(
            clients=federation.clients,
            models=torch.stack([federation.draw(i) for i in range(self.count)]),
        )

    def plan(self, state: Script, cohort: Cohort) -> Plan:
        return Plan(models=state.models, **self.say(state.exchange, state.clients))

    def step(self, state: Script, replies: Replies) -> Script:
        updates = (
            None if replies.updates is None else replies.updates.clone()
        )  # the engine's buffer is used again
        self.seen.append(replace(replies, updates=updates))
        return replace(state, exchange=state.exchange + 1)

    def assignment(self, state: Script) -> Assignment:
        return Assignment(
            models=state.models, row=dict.fromkeys(state.clients, 0), groups=(state.clients,)
        )

    def explain(self, state: Script) -> tuple[Note, ...]:
        return ()


def everyone(task: Task, **plan: Any) -> Callable[[int, tuple[Client, ...]], dict[str, Any]]:
    """The same task for all, in every exchange."""
    return lambda exchange, clients: {"tasks": dict.fromkeys(clients, task), **plan}


def play(method: Any, world: World, count: int = 1, workers: int = 1, **how: Any) -> list[Round]:
    """Rounds without the bounds of ``robust``, unless ``how`` says otherwise: what is averaged is what was sent."""
    return list(
        rounds(method, world, rounds=count, workers=workers, **{"robust": AS_PUBLISHED, **how})
    )


def shown(plans: Sequence[dict[str, Any]], world: World, **how: Any) -> list[Replies]:
    """What ``step`` sees of these plans, one exchange each; each is a round."""
    method = Scripted(lambda exchange, clients: plans[exchange])
    play(method, world, len(plans), **how)
    return method.seen


def bits(value: Any) -> str:
    """A state, or anything it may hold, as text in which no bit of a tensor can differ unseen."""
    return json.dumps(encode(value, blob))


def outcome(done: Sequence[Round]) -> list[Any]:
    """All of some rounds that must not depend on how they were computed."""
    return [
        (
            r.number,
            bits(r.position),
            bits(r.assignment),
            bits(r.notes),
            r.asked,
            r.answered,
            dict(r.refused),
            json.dumps(None if r.scores is None else {c: dict(s) for c, s in r.scores.items()}),
            r.bytes_up,
            r.bytes_down,
        )
        for r in done
    ]
