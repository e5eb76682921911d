"""Race: several methods side by side, judged by the losses of their models on the same held-out examples.

Each method is an *arm* with its own state. In a round, clients carry out the tasks of all arms.
They report sums of held-out losses of the arms' models, and of their products, from which the
server has the mean difference of two arms and its variance at each client; examples are paired, so
what makes an example hard cancels. After each round:

- The *leader* serves the clients. An arm takes the lead from a simpler one if its pooled loss is
  lower by more than a standard error; methods are listed from simple to complex, and ties go to the
  simpler.
- An exchange that ends the round of an arm waits until all arms are so far: their losses are
  measured together.
- Small groups learn fast at first and may lose later. So no arm is dropped before all clients have
  reported ``patience`` times on average. Later, the difference of two arms' losses is extrapolated
  to twice as many rounds (:func:`expected`). If the more complex arm is not expected to be ahead,
  it is dropped; after twice ``patience``, it must be expected to be ahead by two standard errors.
  Clients' personal models learn fast, and hide for a while what an arm gains: so it stays if its
  models are expected to be ahead without them. If the more complex arm is expected to be ahead, and
  the difference now is beyond noise, the simpler arm is dropped. Local models learn fastest of all
  and gain least later, so they end other arms only after twice ``patience``. This test is
  sequential: look j uses the level ``level / (p j (j + 1))`` for p pairs of arms, so that all looks
  together keep ``level``. It is a t-test with Welch's degrees of freedom.
- A decision is looked at again if the leader's held-out loss rises far above its lowest value
  (:data:`RISE`), or if many clients have joined (:data:`JOINED`): then all dropped arms start
  again, from the mean of the leader's models.

Losses of logits are those after temperature scaling, by each client and for each model
(:meth:`~coterie.training.learner.Learner.losses`). Clients are weighted by their held-out examples,
none by more than a tenth or two average clients. A client's difference, or its variance, beyond the
outer fences of the others (three times the interquartile range) counts as the fence, so that one
hostile client decides nothing. Of two clients, nobody can say which one is hostile.

An arm with one model for all that equals the models which another arm offers in a round, such as
FedAvg beside a method that has not split yet, uses that arm's replies and costs nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy
import torch

from coterie.core import (
    WORST_LOSS,
    Assignment,
    Averaging,
    Candidate,
    Client,
    Cohort,
    Criterion,
    Feature,
    Federation,
    Groups,
    HeldOutLosses,
    Holdout,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    as_groups,
    group_means,
    serving_tasks,
    state,
)
from coterie.methods._fences import beyond_fences, fence_note, fenced_reports
from coterie.methods.independent import Independent
from coterie.methods.tuned import Tuned, method_of
from coterie.settings import SettingError, check, setting

RISE = 1.5, 5.0
"""A decision is looked at again if the leader's loss is this many times its lowest one, and this
many standard errors more."""

JOINED = 0.2
"""A decision is looked at again if this share of the clients has joined since."""

CALLED = {
    "fedavg": "one model (fedavg)",
    "split-half": "groups (split-half)",
    "hcct": "groups (hcct)",
    "independent": "local models (independent)",
}
"""What sentences call arms; others have the names of their methods."""

SHARED = "+"
"""Between the names of arms that use the same replies."""

OFFERED = " -"
"""Behind two names: the difference of the models that clients were offered, without personal
models."""


@state("race.difference")
class Difference:
    """Held-out loss of one arm less that of another, pooled over clients.

    Attributes:
        round: The round.
        mean: The difference.
        error: Its standard error.
        share: Share of the clients that reported in this round.
        degrees: Degrees of freedom of the standard error (B. L. Welch, Biometrika 1947).
        level: Pooled loss of the models that serve the clients.
    """

    round: int
    mean: float
    error: float
    share: float = 1.0
    degrees: float = math.inf
    level: float = 1.0

    @property
    def z(self) -> float:
        """The difference in standard errors; 0 for equal models."""
        return (
            self.mean / self.error
            if self.error > 0
            else math.copysign(math.inf, self.mean)
            if self.mean
            else 0.0
        )


@state("race.facts")
class Facts:
    """The facts of a federation that a method needs to start, as in :class:`~coterie.core.Federation`."""

    columns: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, int]]
    dense: tuple[str, ...]
    training: Training


@state("race")
class RaceState:
    """State of a race.

    Attributes:
        arms: Name -> state of each method that still runs, from simple to complex.
        parts: Name -> the part of the last plan in which the arm's clients worked.
        round: Number of completed rounds.
        seen: Two names, joined by a space -> client -> (mean of the first arm's loss less that of
            the second, the variance of this mean, number of examples), by the client's last report.
            Losses are those of the models that serve the client; with :data:`OFFERED` behind the
            names, of the models that it was offered.
        past: Two names -> pooled differences, one per round with evidence.
        leader: The arm that serves the clients.
        spent: Name -> number of models that clients have trained for the arm, alone or together
            with another arm.
        dropped: Name -> the round in which an arm was dropped.
        decided: Clients at the time of the last decision.
        losses: Client -> (mean held-out loss of the model that serves it, the variance of this
            mean, number of examples), by its last report.
        lowest: The lowest pooled loss since the last decision.
        facts: What arms need to start again; None if a boundary hides it.
        notes: Notes of the last exchange.
    """

    arms: Mapping[str, Any]
    parts: Mapping[str, str] = field(default_factory=dict)
    round: int = 0
    seen: Mapping[str, Reports] = field(default_factory=dict)
    past: Mapping[str, tuple[Difference, ...]] = field(default_factory=dict)
    leader: str = ""
    spent: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    decided: tuple[Client, ...] = ()
    losses: Reports = field(default_factory=dict)
    lowest: Difference | None = None
    facts: Facts | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Race:
    """Several methods side by side; one that falls behind on held-out data is dropped."""

    name: ClassVar[str] = "race"

    methods: tuple[Any, ...] = setting(
        ("fedavg", "split-half", "hcct"), "the methods, from simple to complex", method=True
    )
    level: float = setting(
        0.01, "probability of dropping an arm that is as good as the leader (α)", gt=0, lt=1
    )
    patience: int = setting(
        12, "reports of each client, on average, before an arm is dropped", ge=1
    )
    holdout: float = setting(
        0.15,
        "share of the training examples that clients without a validation part hold out",
        gt=0,
        le=0.5,
    )

    def __post_init__(self) -> None:
        check(self)
        given = self.methods if isinstance(self.methods, list | tuple) else [self.methods]
        object.__setattr__(self, "methods", tuple(method_of(one, "race.methods") for one in given))
        if not self.methods:
            raise SettingError("race.methods must name at least one method")

    @property
    def needs(self) -> Needs:
        """What the race needs from an engine: what its arms need, and held-out losses."""
        features: list[Feature] = ["held-out-losses", "holdout"]
        if len(self.methods) > 1:
            features.append("several-tasks")
        return Needs(unchanged_by="rotation").with_inner(features, *self.methods)

    def serving_tasks(self, state: RaceState, cohort: Cohort) -> tuple[Task, ...]:
        """Return the next tasks of the leader; the next plan may lack them, if it waits for other arms."""
        return serving_tasks(self.named[state.leader], state.arms[state.leader], cohort)

    @property
    def named(self) -> dict[str, Any]:
        """Name -> method; two of the same name get numbers."""
        named: dict[str, Any] = {}
        for method in self.methods:
            base = (
                f"{method.name}-{method.method.name}" if isinstance(method, Tuned) else method.name
            )
            name = base = re.sub(rf"[\s/{SHARED}]", "-", base)  # these stand between names
            number = 1
            while name in named:
                number += 1
                name = f"{base}-{number}"
            named[name] = method
        return named

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> RaceState:
        arms = {name: method.init(federation) for name, method in self.named.items()}
        return RaceState(
            arms=arms, parts={n: n for n in arms}, leader=next(iter(arms)), facts=facts(federation)
        )

    def plan(self, state: RaceState, cohort: Cohort) -> Plan:
        named = self.named
        plans = {
            name: self._with_held(named[name].plan(arm, cohort)) for name, arm in state.arms.items()
        }
        earlier = {name: plan for name, plan in plans.items() if not plan.ends_round}
        parts = shared(earlier or plans)
        used = {*parts, *(state.parts[name] for name in plans if earlier and name not in earlier)}
        return Plan(
            models=torch.zeros(0, next(iter(plans.values())).models.shape[1]),
            tasks={},
            parts=parts,
            ended_parts=tuple(sorted({*state.parts.values()} - used)),
            ends_round=not earlier,
        )

    def _with_held(self, plan: Plan) -> Plan:
        """The plan with reports of held-out losses in exchanges that end a round, in which clients get the arm's models."""
        tasks = {c: self._held(task, plan.ends_round) for c, task in plan.tasks.items()}
        return replace(
            plan,
            tasks=tasks,
            parts={name: self._with_held(part) for name, part in plan.parts.items()},
        )

    def _held(self, task: Task, report: bool = True) -> Task:
        report_losses = task.holdout.report_losses or report
        # All parts of a plan must hold out the same examples.
        return replace(task, holdout=Holdout(share=self.holdout, report_losses=report_losses))

    def step(self, state: RaceState, replies: Replies) -> RaceState:
        named, arms, parts, spent = (
            self.named,
            dict(state.arms),
            dict(state.parts),
            dict(state.spent),
        )
        told: list[tuple[str, Note]] = []
        for part, own in replies.parts.items():
            first, *others = part.split(SHARED)
            spent[first] = spent.get(first, 0) + len(own.clients)
            for name in (first, *others):
                arms[name] = named[name].step(
                    arms[name], own if name == first else as_means(own, named[name], arms[name])
                )
                parts[name] = part
                told += [(name, note) for note in named[name].explain(arms[name])]
        seen, losses = self._seen(state, replies)
        new = replace(
            state, arms=arms, parts=parts, seen=seen, losses=losses, spent=spent, notes=()
        )
        if replies.ends_round:
            new = self._judged(
                replace(new, round=state.round + 1), replies, self.assignment(state).groups
            )
        return replace(new, notes=(*self._of_arms(told, state.leader, new.leader), *new.notes))

    @property
    def called(self) -> dict[str, str]:
        """Name -> what sentences call an arm."""
        inner = {
            n: (arm.method if isinstance(arm, Tuned) else arm).name for n, arm in self.named.items()
        }
        twice = len(set(inner.values())) < len(inner)
        return {name: name if twice else CALLED.get(inner[name], inner[name]) for name in inner}

    def _of_arms(self, told: Sequence[tuple[str, Note]], before: str, leader: str) -> list[Note]:
        """The arms' notes. Only those of the arm that serves the clients tell of their groups."""
        called, at = self.called, {name: i for i, name in enumerate(self.named)}
        return [
            _of_arm(note, called[name], at[name], name == before == leader) for name, note in told
        ]

    def _seen(self, state: RaceState, replies: Replies) -> tuple[Mapping[str, Reports], Reports]:
        """The differences of arms at each client, and the losses of the leader's models, with those of this exchange."""
        at = {name: part for part in replies.parts for name in part.split(SHARED)}
        served = {name: self.named[name].assignment(state.arms[name]) for name in at}
        seen, losses = (
            {key: dict(reports) for key, reports in state.seen.items()},
            dict(state.losses),
        )
        for client, held in replies.held_out_losses.items():
            models = {name: serving(client, at[name], served[name], held) for name in at}
            for one, other in pairs(at, state.arms):
                offered = (models[one][0], 0), (models[other][0], 0)
                for key, (mine, theirs) in {
                    "": (models[one], models[other]),
                    OFFERED: offered,
                }.items():
                    difference = held.difference(mine, theirs)
                    if difference is not None:
                        seen.setdefault(f"{one} {other}{key}", {})[client] = (
                            *difference,
                            held.count,
                        )
            loss = held.difference(models[state.leader], None) if state.leader in models else None
            if loss is not None:
                losses[client] = (*loss, held.count)
        return seen, losses

    def _judged(self, state: RaceState, replies: Replies, groups: Groups) -> RaceState:
        """End a round: choose the leader, drop arms, and start dropped ones again. ``groups`` are those before the round."""
        if not replies.held_out_losses:
            return state
        limited = replies.averaging.limits_reports
        past = dict(state.past)
        level = abs(pooled(state.round, state.losses, limited).mean) if state.losses else 1.0
        beyond: set[Client] = set()
        for key in (
            f"{one} {other}{of}"
            for one, other in pairs(state.arms, state.arms)
            for of in ("", OFFERED)
        ):
            if state.seen.get(key):
                share = min(len(replies.held_out_losses) / len(state.seen[key]), 1.0)
                now = replace(
                    pooled(state.round, state.seen[key], limited),
                    share=share,
                    level=max(level, 1e-9),
                )
                past[key] = (*past.get(key, ()), now)
                if limited:
                    beyond |= beyond_fences(state.seen[key], *spread_out(state.seen[key])[:2])
        state, before = replace(state, past=past), state.leader
        notes = [fence_note(beyond)] if beyond else []
        for one, other in pairs(state.arms, state.arms):
            if one in state.arms and other in state.arms:
                found = self._compared(state, one, other)
                if found is not None:
                    notes.append(found[1])
                    state = replace(
                        _without(state, found[0]), decided=tuple(sorted(self.assignment(state).row))
                    )
        leader = ahead(state)
        if leader != before:
            parts = self.named[leader].assignment(state.arms[leader]).groups
            notes.append(
                _lead(
                    state,
                    leader,
                    before,
                    self.called,
                    () if as_groups(parts) == as_groups(groups) else parts,
                )
            )
            state = replace(state, losses={}, lowest=None)  # those of the models that served before
        return self._again(replace(state, leader=leader, notes=(*state.notes, *notes)), limited)

    def _again(self, state: RaceState, limited: bool = False) -> RaceState:
        """Start dropped arms again if the leader's loss has risen, or many clients have joined."""
        clients = tuple(sorted(self.assignment(state).row))
        now = pooled(state.round, state.losses, limited) if state.losses else None
        low = (
            state.lowest
            if now is None or (state.lowest is not None and state.lowest.mean <= now.mean)
            else now
        )
        state = replace(state, lowest=low)
        if not state.dropped or state.facts is None or now is None or low is None:
            return state
        joined = len(set(clients) - set(state.decided)) >= JOINED * len(clients)
        rose = now.mean > RISE[0] * low.mean and now.mean - low.mean > RISE[1] * math.hypot(
            now.error, low.error
        )
        if not joined and not rose:
            return state
        served = self.assignment(state)
        model = served.models[[served.row[client] for client in clients]].mean(0)
        federation = Federation(
            clients=clients,
            draw=lambda i: model,
            columns=state.facts.columns,
            tensors=state.facts.tensors,
            dense=state.facts.dense,
            training=state.facts.training,
        )
        arms = {
            n: m.init(federation) if n in state.dropped else state.arms[n]
            for n, m in self.named.items()
            if n in {*state.arms, *state.dropped}
        }
        why = (
            "many clients have joined"
            if joined
            else f"the held-out loss rose from {low.mean:.3g} to {now.mean:.3g}"
        )
        again = " and ".join(self.called[name] for name in state.dropped)
        text = f"{why}: clients train {again} again, beginning with the mean of the models that served them"
        note = Note(kind="arms", effect="serves", clients=clients, text=text)
        parts = {**{name: name for name in arms}, **state.parts}
        return replace(
            state,
            arms=arms,
            parts=parts,
            past={},
            dropped={},
            lowest=None,
            decided=clients,
            notes=(*state.notes, note),
        )

    def _compared(self, state: RaceState, simple: str, other: str) -> tuple[str, Note] | None:
        """The arm of two that is dropped, and why; ``simple`` is the simpler of them."""
        history = state.past.get(f"{simple} {other}", ())
        reports = sum(each.share for each in history) + 1e-6
        if reports < self.patience or not history[-1].error:  # 0: the same models
            return None
        now, later, looks = history[-1], expected(history), len(history)
        ends, stays = self.called[other], self.called[simple]
        offered = state.past.get(f"{simple} {other}{OFFERED}", ())
        known = {
            "": history,
            ", without personal models": offered if offered and offered[-1].error else (),
        }
        least = 0.0 if reports < 2 * self.patience else 2.0
        hopes = [
            _hope(f"{EXPECTED} of {stays} less {ends}{which}", each, least)
            for which, each in known.items()
            if each
        ]
        if all(hope.held for hope in hopes):
            return other, _drop(state, other, (ends, stays), -1, history, later, hopes[0])
        if isinstance(self.named[other], Independent) and reports < 2 * self.patience:
            return None
        level = self.level / (math.comb(len(self.methods), 2) * looks * (looks + 1))
        bound = -float(
            scipy.special.stdtrit(now.degrees, level)
            if math.isfinite(now.degrees)
            else scipy.special.ndtri(level)
        )
        beyond = Criterion(
            f"{LOSS} of {stays} less {ends}, in standard errors",
            now.z,
            ">",
            bound,
            met="which is significant",
            unmet="which is not significant",
            key="held_out_loss",
        )
        if not beyond.held:
            return None
        return simple, _drop(state, simple, (stays, ends), 1, history, later, beyond)

    def assignment(self, state: RaceState) -> Assignment:
        base = self.named[state.leader].assignment(state.arms[state.leader])
        return replace(base, part=f"{state.parts[state.leader]}/{base.part}".rstrip("/"))

    def explain(self, state: RaceState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        arms = {name: self.named[name].admit(arm, clients) for name, arm in state.arms.items()}
        return replace(state, arms=arms, notes=())

    def retire(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        gone, named = set(clients), self.named
        seen = {
            key: {c: v for c, v in each.items() if c not in gone}
            for key, each in state.seen.items()
        }
        losses = {c: v for c, v in state.losses.items() if c not in gone}
        arms = {name: named[name].retire(arm, clients) for name, arm in state.arms.items()}
        return replace(state, arms=arms, seen=seen, losses=losses, notes=())


# ----------------------------------------------------------------------------------------------------
# Evidence.


Report = tuple[float, float, int]
"""Mean of a client's losses or differences of losses, the variance of this mean, and the number of
examples."""

Reports = Mapping[Client, Report]


def facts(federation: Federation) -> Facts | None:
    """Return what a method needs to start later; None if a boundary hides the layers."""
    if type(federation) is not Federation:
        return None
    known = {
        name: getattr(federation, name) for name in ("columns", "tensors", "dense", "training")
    }
    return Facts(**known)


def serving(client: Client, part: str, assignment: Assignment, held: HeldOutLosses) -> Candidate:
    """Return the measured model that serves a client: its personal one, or the one that it was offered."""
    name = f"{part}/{assignment.part}".rstrip("/")
    return name, int(client not in assignment.plain and (name, 1) in held.models)


def pairs(names: Iterable[str], order: Iterable[str]) -> list[tuple[str, str]]:
    """Return all pairs of ``names``; the first of each pair comes first in ``order``."""
    known = [name for name in order if name in set(names)]
    return [(one, other) for i, one in enumerate(known) for other in known[i + 1 :]]


def pooled(round: int, seen: Reports, limited: bool = False) -> Difference:
    """Return the mean difference over all held-out examples of all clients.

    Clients are the ones that are served, not a sample of others: the variance is that within
    clients.

    Args:
        round: The round.
        seen: Client -> (mean difference, variance of this mean, number of examples).
        limited: Whether a client's report is limited by those of the others, as some may be
            hostile.
    """
    means, spreads, counts = spread_out(seen)
    if limited:
        means, spreads = fenced_reports(means, spreads)
    share = Averaging().bounded(counts)
    share = share / share.sum()
    errors = share**2 * spreads / counts
    total, squares = errors.sum(), (errors**2 / np.maximum(counts - 1, 1)).sum()
    return Difference(
        round=round,
        mean=float(share @ means),
        error=math.sqrt(total),
        degrees=float(total**2 / squares) if squares > 0 else math.inf,
    )


def spread_out(seen: Reports) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean differences, the variances of a single example, and the numbers of examples, ``(n,)`` each.

    Args:
        seen: Client -> (mean difference, variance of this mean, number of examples).
    """
    means, variances, counts = (
        np.array(values, dtype=np.float64) for values in zip(*seen.values(), strict=True)
    )
    spreads = np.minimum(variances, (2 * WORST_LOSS) ** 2) * counts
    known = np.isfinite(variances)  # the variance of a client with one example is not
    spreads[~known] = spreads[known].mean() if known.any() else (means**2).mean()
    return means, spreads, counts


def expected(history: tuple[Difference, ...]) -> float:
    """Return the difference to be expected after twice as many rounds, linear in the logarithm of the rounds.

    Extrapolated is the difference in units of the loss, because a difference shrinks with the
    losses themselves. The slope is that of a least-squares line through the later half of the
    differences. Rounds count from the first difference: after another start of the arms, few rounds
    say little about many.
    """
    late = history[len(history) // 2 :]
    if len(late) < 2:
        return history[-1].mean
    x, y = (
        np.log([each.round - history[0].round + 1 for each in late]),
        np.array([each.mean / each.level for each in late]),
    )
    x = x - x.mean()
    return history[-1].mean + late[-1].level * math.log(2) * float(x @ y / (x @ x))


def ahead(state: RaceState) -> str:
    """Return the arm with the lowest loss; an arm takes the lead from a simpler one by more than a standard error.

    Arms that have not been compared with the leader yet, as after another start, do not take its
    place.
    """
    all_ = state.leader not in state.arms
    arms = [
        name
        for name in state.arms
        if all_ or name == state.leader or _history(state, name, state.leader)
    ]
    leader = arms[0]
    for name in arms:
        history = state.past.get(f"{leader} {name}")
        if history and history[-1].z > 1:
            leader = name
    return leader


def _hope(name: str, history: tuple[Difference, ...], least: float) -> Criterion:
    """The criterion of dropping the more complex of two arms: it is not expected to be ahead by so many standard errors."""
    far = " by two standard errors" if least else ""
    value = expected(history) / history[-1].error
    return Criterion(
        f"{name}, in standard errors",
        value,
        "<",
        least,
        met=f"not lower{far}",
        unmet=f"lower{far}",
        key="expected_loss",
    )


def _history(state: RaceState, one: str, other: str) -> tuple[Difference, ...]:
    """The differences of two arms, in either order."""
    return state.past.get(f"{one} {other}") or state.past.get(f"{other} {one}") or ()


def _without(state: RaceState, name: str) -> RaceState:
    """Return the state without an arm."""

    def rest(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if name not in key.split(" ")}

    new = replace(
        state,
        arms=rest(state.arms),
        parts={
            **rest(state.parts),
            f"({name})": state.parts[name],  # until a plan has said that the part has ended
        },
        seen=rest(state.seen),
        past=rest(state.past),
        dropped={**state.dropped, name: state.round},
    )
    return new if state.leader != name else replace(new, leader=ahead(new))


# ----------------------------------------------------------------------------------------------------
# Arms that use the same replies.


def shared(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """Return the parts of a plan; an arm that may use the replies of another one has no part of its own.

    Args:
        plans: Name of an arm -> its plan.

    Returns:
        Name of an arm, or names joined by :data:`SHARED` -> plan.
    """
    carried: dict[str, str] = {}
    for name, plan in plans.items():
        hosts = [
            host
            for host, other in plans.items()
            if host != name and host not in carried and _serves(other, plan)
        ]
        if hosts and name not in carried.values():
            carried[name] = hosts[0]
    names = {
        host: SHARED.join((host, *(n for n, h in carried.items() if h == host)))
        for host in plans
        if host not in carried
    }
    return {names[host]: plans[host] for host in names}


def _serves(host: Plan, guest: Plan) -> bool:
    """Whether the replies to ``host`` are those to ``guest``, which trains one model at all of the same clients."""
    if any(task.local_layers for task in guest.tasks.values()):
        return False  # the layers of its clients would be lost with the name of the part
    if host.parts or guest.parts or len(guest.models) != 1 or guest.need != "mean":
        return False
    if host.need not in ("rows", "mean") or host.sketch:
        return False
    if (
        host.tasks.keys() != guest.tasks.keys()
        or host.weighting != guest.weighting
        or host.ends_round != guest.ends_round
    ):
        return False
    plain = {
        replace(task, offered=(0,), halves=False, training=None if task.halves else task.training)
        for task in host.tasks.values()
    }
    if (
        plain != set(guest.tasks.values())
        or len({task.offered for task in host.tasks.values()}) != 1
    ):
        return False
    (row,) = next(iter(host.tasks.values())).offered
    return torch.allclose(host.models[row], guest.models[0], rtol=1e-4, atol=1e-6)


def as_means(replies: Replies, guest: Any, arm: Any) -> Replies:
    """Return the replies of clients that trained one model as those to the plan of a guest, which needs their mean."""
    if replies.updates is None:
        row = (
            replies.chosen[0][0] if replies.chosen else 0
        )  # without an answer, all means are zeros
        means, heard = replies.mean_updates[row : row + 1], np.array([len(replies.clients)])
    else:
        plan = guest.plan(arm, Cohort(present=replies.clients, exchange=0, seed=0))
        means, heard = group_means(replies, [replies.clients], plan.weighting)
    chosen = ((0,),) * len(replies.clients)
    return replace(
        replies, chosen=chosen, means=means, mean_counts=heard, updates=None, halves=None
    )


# ----------------------------------------------------------------------------------------------------
# Notes.


LOSS, EXPECTED = "held-out loss", "expected held-out loss"


def _of_arm(note: Note, called: str, at: int, serves: bool) -> Note:
    """An arm's note. If the arm does not serve the clients, their groups are not the ones of which the note tells."""
    labels = {**note.labels, "arm": at}
    if serves:
        return replace(note, text=f"{called}: {note.text}", labels=labels)
    keeps = note.effect == "keeps"
    return replace(
        note,
        kind=note.kind if keeps else "arm",
        # A test that finds one group is about the groups of the clients, whoever serves them.
        effect="keeps" if keeps else "info",
        text=f"{called}, not in use: {note.text}",
        parts=(),
        labels=labels,
    )


def _numbers(state: RaceState) -> dict[str, float]:
    found = {}
    for key, history in state.past.items():
        if key.endswith(OFFERED):
            continue
        one, other = key.split(" ")
        found[f"loss of {one} less {other}"] = history[-1].mean
        found[f"standard error of {one} less {other}"] = history[-1].error
    return found


def _everyone(state: RaceState) -> tuple[Client, ...]:
    return tuple(sorted({client for each in state.seen.values() for client in each}))


def _lead(
    state: RaceState, leader: str, before: str, called: Mapping[str, str], parts: Groups
) -> Note:
    order = list(state.arms)
    later = before not in order or order.index(leader) > order.index(before)
    one, other = (before, leader) if later else (leader, before)
    history = state.past.get(f"{one} {other}")
    criteria: tuple[Criterion, ...] = ()
    text = f"the clients are now served by {called[leader]}"
    if history:
        now = history[-1]
        ahead = Criterion(
            f"{LOSS} of {called[one]} less {called[other]}, in standard errors",
            now.z,
            ">",
            1.0,
            key="held_out_loss",
            met="more than a standard error",
            unmet="not lower by more than a standard error",
        )
        criteria = (ahead,) if ahead.held == later else ()
        where, than = (
            ("", f" than with {called[before]}") if later else (f" with {called[before]}", "")
        )
        text += f": held-out loss{where} is {_by(now.mean)} ± {now.error:.2g}{than}"
        text += f", {ahead.meaning}" if criteria else ""
    clients = tuple(sorted({*_everyone(state), *(client for part in parts for client in part)}))
    return Note(
        kind="lead",
        effect="serves",
        clients=clients,
        text=text,
        parts=parts,
        criteria=criteria,
        numbers=_numbers(state),
        labels={"arm": list(called).index(leader)},
    )


def _drop(
    state: RaceState,
    name: str,
    called: tuple[str, str],
    sign: int,
    history: tuple[Difference, ...],
    later: float,
    criterion: Criterion,
) -> Note:
    """The note that an arm ends; it and the one that stays are ``called`` so. ``sign`` 1: the simpler one ends."""
    paid, spent = _cost(state, name)
    now, doubled = history[-1], 2 * history[-1].round - history[0].round + 1
    numbers = {
        "difference": now.mean,
        "standard error": now.error,
        "expected": later,
        **spent,
        **_numbers(state),
    }
    text = (
        f"clients stop training {called[0]}: held-out loss with it is {_by(-sign * now.mean)} ± {now.error:.2g} than with "
        f"{called[1]}, and expected to be {_by(-sign * later)} after {doubled} rounds, {criterion.meaning}; {paid}"
    )
    return Note(
        kind="drop",
        effect="serves",
        clients=_everyone(state),
        text=text,
        criteria=(criterion,),
        numbers=numbers,
    )


def _by(difference: float) -> str:
    return f"lower by {difference:.3g}" if difference > 0 else f"higher by {-difference:.3g}"


def _cost(state: RaceState, name: str) -> tuple[str, dict[str, float]]:
    """Return what an arm has cost, as the end of a sentence and as numbers; models trained for two arms count in full."""
    models = state.spent.get(name, 0)
    share = models / max(sum(state.spent.values()), 1)
    text = f"at most {share:.0%} of the models that clients have trained were for it"
    return text, {"models trained for it": float(models), "share of the models trained": share}
