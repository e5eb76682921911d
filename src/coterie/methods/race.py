"""Race: several methods side by side, judged by the losses of their models on the same held-out examples.

Each method is an *arm* with its own state. In a round, clients carry out the tasks of all arms.
They report sums of held-out losses of the arms' models, and of their products, from which the
server has the mean difference of two arms and its variance at each client; examples are paired, so
what makes an example hard cancels. After each round:

- The *leader* serves the clients. An arm takes the lead from a simpler one if its pooled loss is
  lower by more than a standard error; methods are listed from simple to complex, and ties go to the
  simpler.
- An exchange that ends the round of an arm waits until every arm has come to the end of its round:
  their losses are measured together.
- Small groups learn fast at first and may lose later. So no arm is dropped before all clients have
  reported ``patience`` times on average. Later, the difference of two arms' losses is extrapolated
  to twice as many rounds (:func:`expected`). If the more complex arm is not expected to be ahead,
  it is dropped; after twice ``patience``, it must be expected to be ahead by two standard errors.
  Clients' personal models learn fast and mask an arm's gain at first: so it stays if its models are
  expected to be ahead without them. If the more complex arm is expected to be ahead, and the
  difference now is significant, the simpler arm is dropped. Local models learn fastest of all and
  gain least later, so they end other arms only after twice ``patience``. This test is sequential:
  look j uses the level ``level / (p j (j + 1))`` for p pairs of arms, so that all looks together
  keep ``level``. It is a t-test with Welch's degrees of freedom.
- A decision is reopened if the leader's held-out loss rises far above its lowest value
  (:data:`MIN_LOSS_RATIO_TO_REOPEN`), or if many clients have joined
  (:data:`MIN_JOINED_SHARE_TO_REOPEN`): then all dropped arms start again, from the mean of the
  leader's models.

Losses of logits are those after temperature scaling, by each client and for each model
(:meth:`~coterie.training.learner.Learner.losses`). Clients are weighted by their held-out examples,
none by more than a tenth or two average clients. A client's difference, or its variance, beyond the
outer fences of the others (three times the interquartile range) counts as the fence, so that one
hostile client decides nothing. With two clients there is no majority, so no report is limited.

An arm with one model for all that equals the models which another arm offers in a round, such as
FedAvg next to a method that has not split yet, uses that arm's replies and costs nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
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
from coterie.methods._fences import clients_limited, fence_note, fenced_reports
from coterie.methods._leavers import entries_without
from coterie.methods.independent import Independent
from coterie.methods.tuned import Tuned, method_of
from coterie.settings import SettingError, check, setting

MIN_LOSS_RATIO_TO_REOPEN = 1.5
"""A decision is reopened if the leader's loss is this many times its lowest one, and also higher by
:data:`MIN_RISE_TO_REOPEN`."""

MIN_RISE_TO_REOPEN = 5.0
"""The rise of the leader's loss, in standard errors, at which a decision is reopened."""

MIN_JOINED_SHARE_TO_REOPEN = 0.2
"""A decision is reopened if this share of the clients has joined since."""

DISPLAY_NAMES = {
    "fedavg": "one model (fedavg)",
    "split-half": "groups (split-half)",
    "hcct": "groups (hcct)",
    "independent": "local models (independent)",
}
"""Name of a method -> its name in sentences; the other methods have their own names there."""

SHARED_EXCHANGE = "+"
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
        if self.error > 0:
            return self.mean / self.error
        return math.copysign(math.inf, self.mean) if self.mean else 0.0


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
        0.01, "probability of dropping a method that is as good as the leader (α)", gt=0, lt=1
    )
    patience: int = setting(
        12, "reports of each client, on average, before a method is dropped", ge=1
    )
    holdout: float = setting(
        0.15,
        "share of the training examples that clients without a validation part hold out",
        gt=0,
        le=0.5,
    )

    def __post_init__(self) -> None:
        check(self)
        listed = self.methods if isinstance(self.methods, list | tuple) else [self.methods]
        methods = tuple(method_of(listed_method, "race.methods") for listed_method in listed)
        object.__setattr__(self, "methods", methods)
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
        """Name of an arm -> its method; two methods of the same name get numbers."""
        method_of_arm: dict[str, Any] = {}
        for method in self.methods:
            base_name = method.name
            if isinstance(method, Tuned):
                base_name = f"{method.name}-{method.method.name}"
            # The characters that separate names in keys and parts.
            base_name = re.sub(rf"[\s/{SHARED_EXCHANGE}]", "-", base_name)
            arm_name = base_name
            number = 1
            while arm_name in method_of_arm:
                number += 1
                arm_name = f"{base_name}-{number}"
            method_of_arm[arm_name] = method
        return method_of_arm

    @property
    def display_names(self) -> dict[str, str]:
        """Name of an arm -> its name in sentences."""
        method_names = {}
        for arm_name, method in self.named.items():
            method_names[arm_name] = (method.method if isinstance(method, Tuned) else method).name
        # Arms of the same method can only be told apart by the names of the arms.
        if len(set(method_names.values())) < len(method_names):
            return {arm_name: arm_name for arm_name in method_names}
        return {
            arm_name: DISPLAY_NAMES.get(method_name, method_name)
            for arm_name, method_name in method_names.items()
        }

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> RaceState:
        arm_states = {arm_name: method.init(federation) for arm_name, method in self.named.items()}
        return RaceState(
            arms=arm_states,
            parts=dict(zip(arm_states, arm_states, strict=True)),
            leader=next(iter(arm_states)),
            facts=facts(federation),
        )

    def plan(self, state: RaceState, cohort: Cohort) -> Plan:
        methods_by_name = self.named
        plans = {}
        for arm_name, arm_state in state.arms.items():
            plans[arm_name] = self._reporting_losses(
                methods_by_name[arm_name].plan(arm_state, cohort)
            )
        # Arms whose next exchange ends the round wait for those that need more exchanges, because
        # clients measure the models of all arms together.
        unfinished = {arm: plan for arm, plan in plans.items() if not plan.ends_round}
        plan_parts = shared(unfinished or plans)
        # The parts of arms that wait go on later; those that no arm uses have ended.
        parts_in_use = set(plan_parts)
        if unfinished:
            for arm_name in plans.keys() - unfinished.keys():
                parts_in_use.add(state.parts[arm_name])
        return Plan(
            models=torch.zeros(0, next(iter(plans.values())).models.shape[1]),
            tasks={},
            parts=plan_parts,
            ended_parts=tuple(sorted({*state.parts.values()} - parts_in_use)),
            ends_round=not unfinished,
        )

    def _reporting_losses(self, plan: Plan) -> Plan:
        """The plan, in which clients report held-out losses if it ends a round, when they get the arm's models."""
        reporting_tasks = {}
        for client, task in plan.tasks.items():
            report_losses = task.holdout.report_losses or plan.ends_round
            # All parts of a plan must hold out the same examples.
            holdout = Holdout(share=self.holdout, report_losses=report_losses)
            reporting_tasks[client] = replace(task, holdout=holdout)
        # An arm may itself be made of several methods.
        reporting_parts = {
            part_name: self._reporting_losses(part_plan)
            for part_name, part_plan in plan.parts.items()
        }
        return replace(plan, tasks=reporting_tasks, parts=reporting_parts)

    def step(self, state: RaceState, replies: Replies) -> RaceState:
        methods_by_name = self.named
        arm_states = dict(state.arms)
        part_of_arm = dict(state.parts)
        models_trained = dict(state.spent)
        arm_notes: list[tuple[str, Note]] = []
        # 1. Each arm takes the replies to its tasks. A guest gets those of its host, as their mean.
        for part_name, part_replies in replies.parts.items():
            host, *guests = part_name.split(SHARED_EXCHANGE)
            models_trained[host] = models_trained.get(host, 0) + len(part_replies.clients)
            for arm_name in (host, *guests):
                method = methods_by_name[arm_name]
                arm_replies = part_replies
                if arm_name != host:
                    arm_replies = as_means(part_replies, method, arm_states[arm_name])
                arm_states[arm_name] = method.step(arm_states[arm_name], arm_replies)
                part_of_arm[arm_name] = part_name
                for note in method.explain(arm_states[arm_name]):
                    arm_notes.append((arm_name, note))
        # 2. The clients' reports are about the models that they had before this step.
        pair_reports, losses = self._latest_reports(state, replies)
        new_state = replace(
            state,
            arms=arm_states,
            parts=part_of_arm,
            seen=pair_reports,
            losses=losses,
            spent=models_trained,
            notes=(),
        )
        # 3. At the end of a round, arms may be dropped, and another one may take the lead.
        if replies.ends_round:
            groups_before = self.assignment(state).groups
            new_state = self._judged(
                replace(new_state, round=state.round + 1), replies, groups_before
            )
        notes = self._notes_of_arms(arm_notes, state.leader, new_state.leader)
        return replace(new_state, notes=(*notes, *new_state.notes))

    def assignment(self, state: RaceState) -> Assignment:
        arm_assignment = self.named[state.leader].assignment(state.arms[state.leader])
        return replace(
            arm_assignment, part=f"{state.parts[state.leader]}/{arm_assignment.part}".rstrip("/")
        )

    def explain(self, state: RaceState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        methods_by_name = self.named
        arm_states = {
            arm_name: methods_by_name[arm_name].admit(arm_state, clients)
            for arm_name, arm_state in state.arms.items()
        }
        return replace(state, arms=arm_states, notes=())

    def retire(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        methods_by_name = self.named
        removed = set(clients)
        arm_states = {
            arm_name: methods_by_name[arm_name].retire(arm_state, clients)
            for arm_name, arm_state in state.arms.items()
        }
        pair_reports = {
            report_key: entries_without(reports, removed)
            for report_key, reports in state.seen.items()
        }
        losses = entries_without(state.losses, removed)
        return replace(state, arms=arm_states, seen=pair_reports, losses=losses, notes=())

    # -- what the clients report
    # ---------------------------------------------------------------------------------------------------

    def _latest_reports(
        self, state: RaceState, replies: Replies
    ) -> tuple[Mapping[str, Reports], Reports]:
        """The differences of arms at each client, and the losses of the leader's models, with those of this exchange."""
        # The arms of this exchange, with the part of the plan in which their clients worked.
        methods_by_name = self.named
        part_of_arm = {}
        assignments = {}
        for part_name in replies.parts:
            for arm_name in part_name.split(SHARED_EXCHANGE):
                part_of_arm[arm_name] = part_name
                assignments[arm_name] = methods_by_name[arm_name].assignment(state.arms[arm_name])
        arm_pairs = pairs(part_of_arm, state.arms)
        # New reports replace the earlier ones of the same client.
        pair_reports = {report_key: dict(reports) for report_key, reports in state.seen.items()}
        losses = dict(state.losses)
        for client, held_out in replies.held_out_losses.items():
            served_by = {}
            for arm_name, part_name in part_of_arm.items():
                served_by[arm_name] = serving(client, part_name, assignments[arm_name], held_out)
            for simple_arm, complex_arm in arm_pairs:
                arm_pair = pair_key(simple_arm, complex_arm)
                # Models that serve the client, and those that it was offered, which are not
                # personal (0).
                served_models = (served_by[simple_arm], served_by[complex_arm])
                offered_models = ((served_by[simple_arm][0], 0), (served_by[complex_arm][0], 0))
                for report_key, compared in (
                    (arm_pair, served_models),
                    (arm_pair + OFFERED, offered_models),
                ):
                    difference = held_out.difference(*compared)
                    if difference is not None:
                        pair_reports.setdefault(report_key, {})[client] = (
                            *difference,
                            held_out.count,
                        )
            # The loss of the leader's model tells later whether the decision should be reopened.
            if state.leader in served_by:
                leader_loss = held_out.difference(served_by[state.leader], None)
                if leader_loss is not None:
                    losses[client] = (*leader_loss, held_out.count)
        return pair_reports, losses

    # -- the end of a round
    # ---------------------------------------------------------------------------------------------------

    def _judged(self, state: RaceState, replies: Replies, groups_before: Groups) -> RaceState:
        """End a round: drop arms, choose the leader, and start dropped arms again.

        Args:
            state: The state with the reports of this round.
            replies: The replies of the exchange that ends the round.
            groups_before: The groups that served the clients before it.
        """
        if not replies.held_out_losses:
            return state
        # 1. The differences of the arms' losses, pooled over clients, with this round's reports.
        limited = replies.averaging.limits_reports
        leader_before = state.leader
        reporting_count = len(replies.held_out_losses)
        state, limited_clients = _with_differences(state, reporting_count, limited)
        notes = [fence_note(limited_clients)] if limited_clients else []
        # 2. An arm that falls behind is dropped.
        for simple_arm, complex_arm in pairs(state.arms, state.arms):
            # Another comparison of this round may have dropped one of them.
            if simple_arm not in state.arms or complex_arm not in state.arms:
                continue
            drop = self._compared(state, simple_arm, complex_arm)
            if drop is not None:
                dropped_arm, note = drop
                notes.append(note)
                decided = tuple(sorted(self.assignment(state).row))
                state = replace(_without_arm(state, dropped_arm), decided=decided)
        # 3. The arm with the lowest loss serves the clients from now on.
        leader = ahead(state)
        if leader != leader_before:
            groups = self.named[leader].assignment(state.arms[leader]).groups
            new_groups = () if as_groups(groups) == as_groups(groups_before) else groups
            notes.append(_lead(state, leader, leader_before, self.display_names, new_groups))
            # These were losses of the models that served before.
            state = replace(state, losses={}, lowest=None)
        # 4. The decision is reopened if it no longer suits the clients.
        return self._reopened(replace(state, leader=leader, notes=(*state.notes, *notes)), limited)

    def _compared(
        self, state: RaceState, simple_arm: str, complex_arm: str
    ) -> tuple[str, Note] | None:
        """Compare two arms: return the one to drop, and why; None to keep both."""
        history = state.past.get(pair_key(simple_arm, complex_arm), ())
        # The number of reports of each client; the small term is for rounding in the sum.
        report_count = sum(difference.share for difference in history) + 1e-6
        # Without an error, both arms have the same models.
        if report_count < self.patience or not history[-1].error:
            return None
        latest = history[-1]
        simple_name = self.display_names[simple_arm]
        complex_name = self.display_names[complex_arm]
        is_early = report_count < 2 * self.patience

        # The complex arm is dropped if it is not expected to be ahead, neither with personal models
        # nor without them.
        histories = {"": history}
        offered_history = state.past.get(pair_key(simple_arm, complex_arm) + OFFERED, ())
        if offered_history and offered_history[-1].error:
            histories[", without personal models"] = offered_history
        min_lead = 0.0 if is_early else 2.0
        no_hope = []
        for models, model_history in histories.items():
            compared = f"{EXPECTED_LOSS} of {simple_name} less {complex_name}{models}"
            no_hope.append(_no_hope(compared, model_history, min_lead))
        if all(criterion.held for criterion in no_hope):
            arm_names = (complex_name, simple_name)
            return complex_arm, _drop(state, complex_arm, arm_names, -1, history, no_hope[0])

        # Otherwise the simple arm is dropped if it is behind already. Local models learn fastest
        # and gain least later, so they wait for longer.
        if isinstance(self.named[complex_arm], Independent) and is_early:
            return None
        behind = Criterion(
            f"{LOSS} of {simple_name} less {complex_name}, in standard errors",
            latest.z,
            ">",
            self._significant_z(latest.degrees, len(history)),
            met="which is significant",
            unmet="which is not significant",
            key="held_out_loss",
        )
        if not behind.held:
            return None
        arm_names = (simple_name, complex_name)
        return simple_arm, _drop(state, simple_arm, arm_names, 1, history, behind)

    def _significant_z(self, degrees: float, look_count: int) -> float:
        """The difference in standard errors from which look number ``look_count`` at a pair of arms is significant."""
        # The levels of all looks at all pairs sum to less than the race's level.
        pair_count = math.comb(len(self.methods), 2)
        look_level = self.level / (pair_count * look_count * (look_count + 1))
        if math.isfinite(degrees):
            return -float(scipy.special.stdtrit(degrees, look_level))
        return -float(scipy.special.ndtri(look_level))

    def _reopened(self, state: RaceState, limited: bool = False) -> RaceState:
        """Start dropped arms again if the leader's loss has risen, or many clients have joined."""
        if not state.losses:
            return state
        # The lowest loss of the leader since the last decision.
        latest = pooled(state.round, state.losses, limited)
        lowest = latest
        if state.lowest is not None and state.lowest.mean <= latest.mean:
            lowest = state.lowest
        state = replace(state, lowest=lowest)
        if not state.dropped or state.facts is None:
            return state
        # Reasons to reopen it: many clients that the decision did not know, or a loss far above the
        # lowest one.
        clients = tuple(sorted(self.assignment(state).row))
        joined_count = len(set(clients) - set(state.decided))
        many_joined = joined_count >= MIN_JOINED_SHARE_TO_REOPEN * len(clients)
        loss_rise = latest.mean - lowest.mean
        error_of_rise = math.hypot(latest.error, lowest.error)
        has_risen = (
            latest.mean > MIN_LOSS_RATIO_TO_REOPEN * lowest.mean
            and loss_rise > MIN_RISE_TO_REOPEN * error_of_rise
        )
        if not many_joined and not has_risen:
            return state
        # All dropped arms start again; earlier differences say nothing about them.
        arm_states = self._with_dropped_arms(state, state.facts, clients)
        reason = f"the held-out loss rose from {lowest.mean:.3g} to {latest.mean:.3g}"
        if many_joined:
            reason = "many clients have joined"
        restarted = " and ".join(self.display_names[arm_name] for arm_name in state.dropped)
        description = f"{reason}: clients train {restarted} again, beginning with the mean of the models that served them"
        note = Note(kind="arms", effect="serves", clients=clients, text=description)
        return replace(
            state,
            arms=arm_states,
            parts={**dict(zip(arm_states, arm_states, strict=True)), **state.parts},
            past={},
            dropped={},
            lowest=None,
            decided=clients,
            notes=(*state.notes, note),
        )

    def _with_dropped_arms(
        self, state: RaceState, facts: Facts, clients: tuple[Client, ...]
    ) -> dict[str, Any]:
        """The states of all arms, of which dropped ones start again from the mean of the models that serve the clients."""
        served = self.assignment(state)
        mean_model = served.models[[served.row[client] for client in clients]].mean(0)
        federation = Federation(
            clients=clients,
            draw=lambda _: mean_model,
            columns=facts.columns,
            tensors=facts.tensors,
            dense=facts.dense,
            training=facts.training,
        )
        arm_states = {}
        for arm_name, method in self.named.items():
            if arm_name in state.dropped:
                arm_states[arm_name] = method.init(federation)
            elif arm_name in state.arms:
                arm_states[arm_name] = state.arms[arm_name]
        return arm_states

    def _notes_of_arms(
        self, arm_notes: Sequence[tuple[str, Note]], leader_before: str, leader: str
    ) -> list[Note]:
        """The arms' notes. Only those of the arm that serves the clients tell of their groups."""
        display_names = self.display_names
        arm_names = list(self.named)
        notes = []
        for arm_name, note in arm_notes:
            serves = arm_name == leader_before == leader
            arm_number = arm_names.index(arm_name)
            notes.append(_note_of_arm(note, display_names[arm_name], arm_number, serves))
        return notes


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
    return Facts(
        columns=federation.columns,
        tensors=federation.tensors,
        dense=federation.dense,
        training=federation.training,
    )


def serving(
    client: Client, arm_part: str, assignment: Assignment, held_out: HeldOutLosses
) -> Candidate:
    """Return the measured model that serves a client: its personal one (1), or the one that it was offered (0)."""
    part_name = f"{arm_part}/{assignment.part}".rstrip("/")
    has_personal = client not in assignment.plain and (part_name, 1) in held_out.models
    return part_name, int(has_personal)


def pair_key(first_arm: str, second_arm: str) -> str:
    """Return the key of two arms in :class:`RaceState`."""
    return f"{first_arm} {second_arm}"


def pairs(arm_names: Iterable[str], order: Iterable[str]) -> list[tuple[str, str]]:
    """Return all pairs of ``arm_names``; the first of each pair comes first in ``order``."""
    chosen_names = set(arm_names)
    return list(combinations([arm_name for arm_name in order if arm_name in chosen_names], 2))


def pooled(round: int, reports: Reports, limited: bool = False) -> Difference:
    """Return the mean difference over all held-out examples of all clients.

    Clients are the ones that are served, not a sample of others: the variance is that within
    clients.

    Args:
        round: The round.
        reports: Client -> (mean difference, variance of this mean, number of examples).
        limited: Whether a client's report is limited by those of the others, as some may be
            hostile.
    """
    difference, _ = _pooled_within_fences(round, reports, limited)
    return difference


def _pooled_within_fences(
    round: int, reports: Reports, limited: bool
) -> tuple[Difference, set[Client]]:
    """The difference of :func:`pooled`, and the clients whose reports were limited."""
    mean_differences, spreads, counts = spread_out(reports)
    # One hostile client must not decide for the others.
    limited_clients: set[Client] = set()
    if limited:
        within_fences = fenced_reports(mean_differences, spreads)
        limited_clients = clients_limited(reports, (mean_differences, spreads), within_fences)
        mean_differences, spreads = within_fences
    # Clients count by their held-out examples, none for more than its largest share.
    shares = Averaging().bounded(counts)
    shares = shares / shares.sum()
    client_variances = shares**2 * spreads / counts
    variance = client_variances.sum()
    # The Welch-Satterthwaite equation.
    squared_sum = (client_variances**2 / np.maximum(counts - 1, 1)).sum()
    degrees = float(variance**2 / squared_sum) if squared_sum > 0 else math.inf
    difference = Difference(
        round=round,
        mean=float(shares @ mean_differences),
        error=math.sqrt(variance),
        degrees=degrees,
    )
    return difference, limited_clients


def spread_out(reports: Reports) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean differences, the variances of a single example, and the numbers of examples, ``(n,)`` each.

    Args:
        reports: Client -> (mean difference, variance of this mean, number of examples).
    """
    mean_differences, variances, counts = (
        np.array(column, dtype=np.float64) for column in zip(*reports.values(), strict=True)
    )
    spreads = np.minimum(variances, (2 * WORST_LOSS) ** 2) * counts
    # The variance of a client with one example is not known: it counts as that of the others.
    is_known = np.isfinite(variances)
    spreads[~is_known] = (
        spreads[is_known].mean() if is_known.any() else (mean_differences**2).mean()
    )
    return mean_differences, spreads, counts


def _with_differences(
    state: RaceState, reporting_count: int, limited: bool
) -> tuple[RaceState, set[Client]]:
    """Add the pooled differences of a round to the state.

    Args:
        state: The state with the reports of this round.
        reporting_count: Number of clients that reported in it.
        limited: Whether a client's report is limited by those of the others.

    Returns:
        The state, and the clients whose reports were limited.
    """
    histories = dict(state.past)
    # The loss itself, as the unit in which differences are extrapolated.
    loss_level = 1.0
    if state.losses:
        loss_level = abs(pooled(state.round, state.losses, limited).mean)
    all_limited: set[Client] = set()
    for simple_arm, complex_arm in pairs(state.arms, state.arms):
        arm_pair = pair_key(simple_arm, complex_arm)
        for report_key in (arm_pair, arm_pair + OFFERED):
            reports = state.seen.get(report_key)
            if not reports:
                continue
            difference, limited_clients = _pooled_within_fences(state.round, reports, limited)
            all_limited |= limited_clients
            reporting_share = min(reporting_count / len(reports), 1.0)
            difference = replace(difference, share=reporting_share, level=max(loss_level, 1e-9))
            histories[report_key] = (*histories.get(report_key, ()), difference)
    return replace(state, past=histories), all_limited


def expected(history: tuple[Difference, ...]) -> float:
    """Return the difference to be expected after twice as many rounds, linear in the logarithm of the rounds.

    Extrapolated is the difference in units of the loss, because a difference shrinks with the
    losses themselves. The slope is that of a least-squares line through the later half of the
    differences. Rounds count from the first difference: after another start of the arms, few rounds
    say little about many.
    """
    later_half = history[len(history) // 2 :]
    if len(later_half) < 2:
        return history[-1].mean
    # A line through (log of the round, difference in units of the loss), by least squares.
    first_round = history[0].round
    log_rounds = np.log([difference.round - first_round + 1 for difference in later_half])
    log_rounds = log_rounds - log_rounds.mean()
    in_loss_units = np.array([difference.mean / difference.level for difference in later_half])
    slope = float(log_rounds @ in_loss_units / (log_rounds @ log_rounds))
    # Twice as many rounds are log(2) further on the line.
    return history[-1].mean + later_half[-1].level * math.log(2) * slope


def ahead(state: RaceState) -> str:
    """Return the arm with the lowest loss; an arm takes the lead from a simpler one by more than a standard error.

    Arms that have not been compared with the leader yet, as after another start, do not take its
    place.
    """
    leader_is_gone = state.leader not in state.arms
    candidates = []
    for arm_name in state.arms:
        is_leader = arm_name == state.leader
        if leader_is_gone or is_leader or _history(state, arm_name, state.leader):
            candidates.append(arm_name)
    # From simple to complex: each arm is compared with the best of those before it.
    leader = candidates[0]
    for arm_name in candidates:
        history = state.past.get(pair_key(leader, arm_name))
        if history and history[-1].z > 1:
            leader = arm_name
    return leader


def _no_hope(compared: str, history: tuple[Difference, ...], min_lead: float) -> Criterion:
    """The criterion of dropping the more complex of two arms: it is not expected to be ahead by so many standard errors."""
    amount = " by two standard errors" if min_lead else ""
    return Criterion(
        f"{compared}, in standard errors",
        expected(history) / history[-1].error,
        "<",
        min_lead,
        met=f"not lower{amount}",
        unmet=f"lower{amount}",
        key="expected_loss",
    )


def _history(state: RaceState, first_arm: str, second_arm: str) -> tuple[Difference, ...]:
    """The differences of two arms, in either order."""
    ordered_history = state.past.get(pair_key(first_arm, second_arm))
    return ordered_history or state.past.get(pair_key(second_arm, first_arm)) or ()


def _without_arm(state: RaceState, arm_name: str) -> RaceState:
    """Return the state without an arm."""

    def without_arm(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            arm_key: value
            for arm_key, value in values.items()
            if arm_name not in arm_key.split(" ")
        }

    # The part stays under a name that no arm has, until a plan has said that it has ended.
    parts = {**without_arm(state.parts), f"({arm_name})": state.parts[arm_name]}
    new_state = replace(
        state,
        arms=without_arm(state.arms),
        parts=parts,
        seen=without_arm(state.seen),
        past=without_arm(state.past),
        dropped={**state.dropped, arm_name: state.round},
    )
    # If the leader is dropped, the best of the others takes its place.
    if state.leader == arm_name:
        return replace(new_state, leader=ahead(new_state))
    return new_state


# ----------------------------------------------------------------------------------------------------
# Arms that use the same replies.


def shared(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """Return the parts of a plan; an arm that may use the replies of another one has no part of its own.

    Args:
        plans: Name of an arm -> its plan.

    Returns:
        Name of an arm, or names joined by :data:`SHARED_EXCHANGE` -> plan.
    """
    host_of_guest: dict[str, str] = {}
    # The first arm that can serve as a host does. A host trains itself, so it is nobody's guest.
    for arm_name, plan in plans.items():
        if arm_name in host_of_guest.values():
            continue
        for host, host_plan in plans.items():
            if host != arm_name and host not in host_of_guest and _serves(host_plan, plan):
                host_of_guest[arm_name] = host
                break
    # A part has the names of its host and of all guests.
    parts = {}
    for arm_name, plan in plans.items():
        if arm_name not in host_of_guest:
            guests = [guest for guest, host in host_of_guest.items() if host == arm_name]
            parts[SHARED_EXCHANGE.join((arm_name, *guests))] = plan
    return parts


def _serves(host: Plan, guest: Plan) -> bool:
    """Whether the replies to ``host`` are those to ``guest``, which trains one model at all of the same clients."""
    # The layers that clients keep would be lost with the name of the part.
    if any(task.local_layers for task in guest.tasks.values()):
        return False
    # The guest must need no more than the mean of updates from one model, and the host must have it.
    if host.parts or guest.parts or len(guest.models) != 1 or guest.need != "mean":
        return False
    if host.need not in ("rows", "mean") or host.sketch:
        return False
    # Both must ask the same clients, weigh them in the same way, and end the round together.
    same_clients = host.tasks.keys() == guest.tasks.keys()
    if not same_clients or host.weighting != guest.weighting:
        return False
    if host.ends_round != guest.ends_round:
        return False
    # A client that trains on halves does the same work as one that trains on all its examples.
    plain_tasks = set()
    for task in host.tasks.values():
        training = None if task.halves else task.training
        plain_tasks.add(replace(task, offered=(0,), halves=False, training=training))
    offered_rows = {task.offered for task in host.tasks.values()}
    if plain_tasks != set(guest.tasks.values()) or len(offered_rows) != 1:
        return False
    # The models need not be equal bit by bit: sums in another order differ in their last digits.
    ((offered_row,),) = offered_rows
    return torch.allclose(host.models[offered_row], guest.models[0], rtol=1e-4, atol=1e-6)


def as_means(replies: Replies, guest: Any, arm_state: Any) -> Replies:
    """Return the replies of clients that trained one model as those to the plan of a guest, which needs their mean."""
    if replies.updates is None:
        # Without a reply, all means are zeros.
        model_row = replies.chosen[0][0] if replies.chosen else 0
        mean_updates = replies.mean_updates[model_row : model_row + 1]
        mean_counts = np.array([len(replies.clients)])
    else:
        # The guest's plan says how it weighs clients.
        guest_plan = guest.plan(arm_state, Cohort(present=replies.clients, exchange=0, seed=0))
        mean_updates, mean_counts = group_means(replies, [replies.clients], guest_plan.weighting)
    return replace(
        replies,
        chosen=((0,),) * len(replies.clients),
        means=mean_updates,
        mean_counts=mean_counts,
        updates=None,
        halves=None,
    )


# ----------------------------------------------------------------------------------------------------
# Notes.


LOSS = "held-out loss"

EXPECTED_LOSS = "expected held-out loss"


def _note_of_arm(note: Note, display_name: str, number: int, serves: bool) -> Note:
    """An arm's note. If the arm does not serve the clients, their groups are not the ones of which the note tells."""
    labels = {**note.labels, "arm": number}
    if serves:
        return replace(note, text=f"{display_name}: {note.text}", labels=labels)
    # A test that finds one group is about the groups of the clients, whichever arm serves them.
    keeps = note.effect == "keeps"
    return replace(
        note,
        kind=note.kind if keeps else "arm",
        effect="keeps" if keeps else "info",
        text=f"{display_name}, not in use: {note.text}",
        parts=(),
        labels=labels,
    )


def _numbers(state: RaceState) -> dict[str, float]:
    """The latest difference of each pair of arms, and its standard error, for a note."""
    numbers = {}
    for report_key, history in state.past.items():
        if report_key.endswith(OFFERED):
            continue
        simple_arm, complex_arm = report_key.split(" ")
        numbers[f"loss of {simple_arm} less {complex_arm}"] = history[-1].mean
        numbers[f"standard error of {simple_arm} less {complex_arm}"] = history[-1].error
    return numbers


def _reporting_clients(state: RaceState) -> set[Client]:
    """The clients of which some arms have been compared."""
    return set[Client]().union(*state.seen.values())


def _lead(
    state: RaceState,
    leader: str,
    leader_before: str,
    display_names: Mapping[str, str],
    groups: Groups,
) -> Note:
    """Describe that another arm serves the clients; ``groups`` are its groups if they are other ones."""
    arm_order = list(state.arms)
    description = f"the clients now use {display_names[leader]}"
    name_before = display_names[leader_before]
    # Differences are those of the simpler arm less the more complex one.
    is_more_complex = leader_before not in arm_order or arm_order.index(leader) > arm_order.index(
        leader_before
    )
    simple_arm = leader_before if is_more_complex else leader
    complex_arm = leader if is_more_complex else leader_before
    history = state.past.get(pair_key(simple_arm, complex_arm))
    criteria: tuple[Criterion, ...] = ()
    if history:
        latest = history[-1]
        takes_lead = Criterion(
            f"{LOSS} of {display_names[simple_arm]} less {display_names[complex_arm]}, in standard errors",
            latest.z,
            ">",
            1.0,
            key="held_out_loss",
            met="more than a standard error",
            unmet="not lower by more than a standard error",
        )
        amount = f"{_by(latest.mean)} ± {latest.error:.2g}"
        if is_more_complex:
            description += f": held-out loss is {amount} than with {name_before}"
        else:
            description += f": held-out loss with {name_before} is {amount}"
        # The comparison is a reason only if it speaks for the new leader.
        if takes_lead.held == is_more_complex:
            criteria = (takes_lead,)
            description += f", {takes_lead.meaning}"
    clients = _reporting_clients(state).union(*groups)
    return Note(
        kind="lead",
        effect="serves",
        clients=tuple(sorted(clients)),
        text=description,
        parts=groups,
        criteria=criteria,
        numbers=_numbers(state),
        labels={"arm": list(display_names).index(leader)},
    )


def _drop(
    state: RaceState,
    dropped_arm: str,
    arm_names: tuple[str, str],
    sign: int,
    history: tuple[Difference, ...],
    criterion: Criterion,
) -> Note:
    """Describe that an arm ends.

    Args:
        state: The state with this arm.
        dropped_arm: The arm.
        arm_names: Its name in sentences, and that of the arm that stays.
        sign: 1 if the simpler arm of the two ends, -1 if the more complex one does.
        history: The differences of the two arms.
        criterion: The test.
    """
    cost_text, cost_numbers = _cost(state, dropped_arm)
    latest = history[-1]
    later_difference = expected(history)
    doubled_rounds = 2 * latest.round - history[0].round + 1
    numbers = {
        "difference": latest.mean,
        "standard error": latest.error,
        "expected": later_difference,
        **cost_numbers,
        **_numbers(state),
    }
    description = (
        f"clients stop training {arm_names[0]}: held-out loss with it is {_by(-sign * latest.mean)} ± {latest.error:.2g} than "
        f"with {arm_names[1]}, and expected to be {_by(-sign * later_difference)} after {doubled_rounds} rounds, "
        f"{criterion.meaning}; {cost_text}"
    )
    return Note(
        kind="drop",
        effect="serves",
        clients=tuple(sorted(_reporting_clients(state))),
        text=description,
        criteria=(criterion,),
        numbers=numbers,
    )


def _by(difference: float) -> str:
    return f"lower by {difference:.3g}" if difference > 0 else f"higher by {-difference:.3g}"


def _cost(state: RaceState, arm_name: str) -> tuple[str, dict[str, float]]:
    """Return what an arm has cost, as the end of a sentence and as numbers; models trained for two arms count in full."""
    model_count = state.spent.get(arm_name, 0)
    training_share = model_count / max(sum(state.spent.values()), 1)
    cost_text = f"at most {training_share:.0%} of the models that clients have trained were for it"
    cost_numbers = {
        "models trained for it": float(model_count),
        "share of the models trained": training_share,
    }
    return cost_text, cost_numbers
