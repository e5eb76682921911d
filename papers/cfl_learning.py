"""CFL learns: F. Sattler, K.-R. Müller, W. Samek, arXiv 1910.01991, figures 8 and 9 (the NeurIPS workshop paper's figure 3).

Figure 8: CIFAR-10, 20 clients in four groups, each of which permutes the labels in its own way.
Figure 9: AG News, 20 clients with articles of one topic each, and a net of two LSTM layers that
predicts the next word. Both begin with rounds of Federated Learning, and split the least alike
group three times, in rounds given beforehand. Beside CFL with these rounds: one model for all, CFL
by its criteria, split-half, and what two bugs of the published code do
(:mod:`papers.cfl_ablations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from coterie.core import Client, Method, Round
from coterie.data.world import World
from coterie.settings import build
from papers import cfl_learning_claims as claims
from papers import cfl_learning_figures as figures
from papers import cfl_learning_ways as ways
from papers import cfl_learning_words as words
from papers.cfl_ablations import PublishedCFL
from papers.cfl_learning_seen import WATCH, SeenCFL, numbers_of
from papers.comparing import method_of, method_table
from papers.numbers import short
from papers.running import world_of
from papers.study import Resources, Study
from papers.tally import Tally
from papers.watched import Watched

SEEN: Mapping[str, type] = MappingProxyType(
    {"fedavg": Watched, "cfl": SeenCFL, "cfl-published": PublishedCFL}
)
"""Methods whose cosines are kept: the same training, watched."""

NOTHING: Mapping[Client, Mapping[str, float]] = MappingProxyType({})
"""The scores of clients without validation data."""


def learn(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    method: Mapping[str, Any],
    rounds: int,
    every: int,
    seed: int,
    target: float | None = None,
    group: int | None = None,
    halve_after: Sequence[int] = (),
) -> dict[str, Any]:
    """What a :class:`Tally` and a :class:`Course` find of a method; ``every`` so many rounds are tested.

    group: the true group whose clients train alone; None for all clients. halve_after: the rounds
    after which the learning rate is halved.
    """
    made = words.world_of_chains if scenario["name"] == words.CHAINS else None
    world = made(scenario, training, seed) if made else world_of(on, scenario, training, seed)
    world = world if group is None else ways.alone(world, group)
    how, validates = watched(method), ways.has_validation(world)
    tally, course = Tally(world, target), Course(world)
    for done in ways.halving(how, world, on, rounds, seed, every, halve_after):
        tally.add(done)
        # Validation data cost a test of their own, which only tested rounds have.
        held = ways.validated(done, how, world, on, seed) if done.scores and validates else {}
        course.add(done, held)
    return tally.found() | course.found()


def watched(how: Mapping[str, Any]) -> Method[Any]:
    """The method of a cell's table, watched where it can be."""
    if how["name"] not in SEEN:
        return method_of(how)
    made: Method[Any] = build(
        SEEN[how["name"]], {name: how[name] for name in how if name not in ("name", "label")}
    )
    return made


@dataclass
class Course:
    """How a run goes, in the rounds tested: the scores of the true groups, and the cosines within the groups found.

    best: the tested round of best validation score, if clients have validation data.
    """

    world: World
    by_group: list[list[float]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best: Round | None = None
    leaves: dict[tuple[Client, ...], dict[str, list[Any]]] = field(default_factory=dict)
    last: Round | None = None

    @property
    def score(self) -> str:
        """What is drawn and compared."""
        return "perplexity" if "perplexity" in self.world.objective.named else "accuracy"

    def add(self, done: Round, held: Mapping[Client, Mapping[str, float]] = NOTHING) -> None:
        """Keep what a round tells, if it was tested; held: the clients' scores on validation data, if they have any."""
        if not done.scores:
            return
        if held:
            self._validate(done, float(np.mean([score[self.score] for score in held.values()])))
        own = {client: score[self.score] for client, score in done.scores.items()}
        self.by_group.append(
            [
                short(float(np.mean([own[client] for client in group])))
                for group in self.world.truth or ()
            ]
        )
        self.scores.append(short(float(np.mean(list(own.values())))))
        self.last = done
        for note in done.notes:
            if note.kind != WATCH or len(note.order) < 2:
                continue
            kept = self.leaves.setdefault(
                note.order, {"rounds": [], "gap": [], "least": [], "mean": []}
            )
            kept["rounds"].append(done.number)
            for name, value in numbers_of(note, self.world).items():
                kept[name].append(value)

    def _validate(self, done: Round, mean: float) -> None:
        """Keep the mean validation score of a round, and the round if none before it was as good."""
        sign = -1 if self.score == "perplexity" else 1
        if all(sign * mean > sign * before for before in self.validation):
            self.best = done
        self.validation.append(short(mean))

    def found(self) -> dict[str, Any]:
        """``score``: its name; ``scores``: its mean over clients in each round tested, ``by_group`` over each true group's, and
        ``clients``, each client's in the end. ``truth``: the true groups. ``leaves``: each group of
        two or more that was trained, its ``clients``, the ``rounds`` tested in which it was, and in
        them its ``gap`` and ``least`` and ``mean`` cosine. If clients have validation data:
        ``validation``, the mean score on them in each round tested, and ``chosen``, the ``round``
        where that is best, with each client's score on its test data there.
        """
        assert self.last is not None
        assert self.last.scores
        chosen = {} if self.best is None else self._chosen(self.best)
        return chosen | {
            "score": self.score,
            "scores": self.scores,
            "by_group": [list(group) for group in zip(*self.by_group, strict=True)],
            "clients": [
                short(self.last.scores[client][self.score]) for client in sorted(self.last.scores)
            ],
            "truth": [list(group) for group in self.world.truth or ()],
            "leaves": [{"clients": list(clients), **kept} for clients, kept in self.leaves.items()],
        }

    def _chosen(self, best: Round) -> dict[str, Any]:
        """What the validation data choose."""
        own = best.scores or {}
        clients = [short(own[client][self.score]) for client in sorted(own)]
        return {
            "validation": self.validation,
            "chosen": {"round": best.number, "clients": clients},
        }


STUDIES = (
    Study(
        name="cfl/fig8",
        where="figure 8",
        what="CFL with groups that permute labels, split by split: accuracy",
        measure=learn,
        claims=claims.of_permutations,
        figure=figures.course,
        table=method_table,
    ),
    Study(
        name="cfl/fig9",
        where="figure 9",
        what="CFL with articles of four topics, split by split: perplexity of the next word",
        measure=learn,
        claims=claims.of_words,
        figure=figures.course,
        table=claims.word_table,
    ),
)
