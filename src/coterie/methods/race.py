"""Race: several methods side by side, judged by the losses of their models on the same held-out examples.

Each method is an *arm* with its own state. In a round, clients carry out the tasks of all arms.
They report sums of held-out losses of the arms' models, and of their products, from which the
server has the mean difference of two arms and its variance at each client; examples are paired, so
what makes an example hard cancels. After each round:

- The *leader* serves the clients. Another arm takes the lead if its pooled loss, over the later half
  of the rounds (:func:`~coterie.methods._race_evidence.over_rounds`), is lower by more than a
  standard error. So noise does not change the leader back and forth. A method that tests by itself
  whether clients differ has evidence already, and takes the lead from a simpler one if its loss is
  lower at all. An arm with groups does not take it while one of its groups is worse by a standard
  error than with the leader: all clients together must not gain what some lose. The first leader is
  the simplest method; methods are listed from simple to complex.
- An exchange that ends the round of an arm waits until every arm has come to the end of its round:
  their losses are measured together.
- Arms that stay behind are dropped. Models go on learning, so differences are extrapolated to more
  rounds (:func:`~coterie.methods._race_evidence.expected`). Three rules follow each other, by the
  number of reports of each client on average:

  1. From :data:`MIN_REPORTS` reports on, the more complex arm of two is dropped if it is hopeless: it
     is significantly behind, and in its best case, after four times as many rounds, still by two
     standard errors. So is a simpler arm beside groups that a test has found.
  2. From ``patience`` reports on, the more complex arm of two is dropped if it is expected to be
     behind by a standard error, and the simpler one if it is significantly behind and the other one
     is not.
  3. After twice ``patience`` reports, the contest of two arms ends: the one that does not lead is
     dropped. If it is expected to be ahead by half a standard error after twice as many rounds, the
     contest ends after :data:`LAST_REPORTS` times ``patience`` reports.

  Clients' personal models learn fast and mask an arm's gain at first: so the more complex arm stays
  if its models are not behind without them. Local models learn fastest of all and gain least later,
  so they end other arms only after twice ``patience``. The test of significance is sequential: look
  j uses the level ``level / (p j (j + 1))`` for p pairs of arms, so that all looks together keep
  ``level``. It is a t-test with Welch's degrees of freedom.
- While arms differ, and for the first ``2 patience`` reports, clients hold examples out. Then the
  choice is settled: they train on all their examples but a validation part of their own, and report
  nothing more. If arms differ later, as when groups are found late, they hold out the same examples
  again. Until then all arms have been trained on these in the same way.
- A decision is reopened if the leader's held-out loss rises far above its lowest value
  (:data:`MIN_LOSS_RATIO_TO_REOPEN`), or, once it is settled, if the training losses of many clients
  rise (:data:`MIN_RISEN_SHARE_TO_REOPEN`), as when data have changed, or if many clients have joined
  (:data:`MIN_JOINED_SHARE_TO_REOPEN`): then all dropped arms start again, from the mean of the
  leader's models.

Losses of logits are those after temperature scaling, by each client and for each model
(:meth:`~coterie.training.learner.Learner.losses`). Clients are weighted by their held-out examples,
none by more than a tenth or two average clients. A client's difference, or its variance, beyond the
outer fences of the others (three times the interquartile range) counts as the fence, so that one
hostile client decides nothing. With two clients there is no majority, so no report is limited.

An arm with one model for all that equals the models which another arm offers in a round, such as
FedAvg next to a method that has not split yet, uses that arm's replies and costs nothing
(:mod:`coterie.methods._race_sharing`). Such arms do not differ: neither is dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import scipy
import torch

from coterie.core import (
    NOT_STORED,
    WITH_NEIGHBOURS,
    Assignment,
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
    serving_tasks,
    state,
)
from coterie.core.client_table import entries_among, with_entries
from coterie.methods._fences import fence_note
from coterie.methods._half_steps import Probing
from coterie.methods._leavers import entries_without
from coterie.methods._loss_rises import loss_changes
from coterie.methods._race_evidence import (
    Difference,
    Report,
    Reports,
    example_counts,
    expected,
    expected_on_line,
    over_rounds,
    pooled,
    pooled_within_fences,
    spread_out,
)
from coterie.methods._race_sharing import SHARED_EXCHANGE, as_means, shared
from coterie.methods.independent import Independent
from coterie.methods.tuned import Tuned, method_of
from coterie.settings import SettingError, check, setting

MIN_REPORTS = 4
"""Reports of each client, on average, before a hopeless arm is dropped."""

LAST_REPORTS = 4
"""A contest ends after so many times ``patience`` reports, even if an arm may still overtake."""

BEST_CASE_ROUNDS = 4.0
"""How many times as many rounds an arm has, at best, to come up to another one."""

MIN_LOSS_RATIO_TO_REOPEN = 1.5
"""A decision is reopened if the leader's loss is this many times its lowest one, and also higher by
:data:`MIN_RISE_TO_REOPEN`."""

MIN_RISE_TO_REOPEN = 5.0
"""The rise of the leader's loss, in standard errors, at which a decision is reopened."""

MIN_RISEN_SHARE_TO_REOPEN = 0.2
"""A settled choice is reopened if the training losses of this share of the clients have risen."""

MIN_JOINED_SHARE_TO_REOPEN = 0.2
"""A decision is reopened if this share of the clients has joined since."""

DISPLAY_NAMES = {
    "fedavg": "one model (fedavg)",
    "split-half": "groups (split-half)",
    "hcct": "groups (hcct)",
    "independent": "local models (independent)",
}
"""Name of a method -> its name in sentences; the other methods have their own names there."""

OFFERED = " -"
"""Behind two names: the difference of the models that clients were offered, without personal
models."""


@state("race.facts")
class Facts:
    """The facts of a federation that a method needs to start, as in :class:`~coterie.core.Federation`."""

    columns: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, int]]
    dense: tuple[str, ...]
    training: Training
    labels: bool = True


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
        reports: Reports of each client, on average, since the arms started.
        losses: Client -> (mean held-out loss of the model that serves it, the variance of this
            mean, number of examples), by its last report.
        lowest: The lowest pooled loss since the last decision.
        training_losses: Client -> its training loss when it was last asked for it.
        usual_change: The usual change of these losses, see
            :func:`~coterie.methods._loss_rises.loss_changes`.
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
    reports: float = 0.0
    losses: Reports = field(default_factory=dict)
    lowest: Difference | None = None
    training_losses: Mapping[Client, float] = field(default_factory=dict)
    usual_change: float = 0.0
    facts: Facts | None = None
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


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
        10,
        "reports of each client, on average, before a method that may catch up is dropped; "
        "after twice as many, only one goes on",
        ge=1,
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
        # Once the choice is settled, clients report training losses.
        own_needs = Needs(occasional=("losses",), unchanged_by="rotation")
        return own_needs.with_inner(features, *self.methods)

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
        is_open = self.is_open(state)
        plans = {}
        for arm_name, arm_state in state.arms.items():
            plans[arm_name] = self._reporting_losses(
                methods_by_name[arm_name].plan(arm_state, cohort), is_open
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

    def is_open(self, state: RaceState) -> bool:
        """Return whether anything is left to decide: arms differ, or have not had the time to differ."""
        # Arms that used the same replies in the last round have the same models.
        parts_of_arms = {state.parts[arm_name] for arm_name in state.arms}
        return len(parts_of_arms) > 1 or state.reports < 2 * self.patience

    def _reporting_losses(self, plan: Plan, is_open: bool) -> Plan:
        """The plan, in which clients report held-out losses if it ends a round, when they get the arm's models.

        If nothing is left to decide, they hold nothing out. They report the training losses of the
        models that they get, which rise if their data change.
        """
        # Clients often share one task object, which is changed once.
        changed_tasks: dict[int, Task] = {}
        reporting_tasks = {}
        for client, task in plan.tasks.items():
            if id(task) not in changed_tasks:
                changed_tasks[id(task)] = self._reporting(task, plan.ends_round, is_open)
            reporting_tasks[client] = changed_tasks[id(task)]
        # An arm may itself be made of several methods.
        reporting_parts = {
            part_name: self._reporting_losses(part_plan, is_open)
            for part_name, part_plan in plan.parts.items()
        }
        return replace(plan, tasks=reporting_tasks, parts=reporting_parts)

    def _reporting(self, task: Task, ends_round: bool, is_open: bool) -> Task:
        """The task, in which the client reports losses: held-out ones while there is something to decide."""
        holdout = Holdout()
        if is_open:
            report_losses = task.holdout.report_losses or ends_round
            # All parts of a plan must hold out the same examples.
            holdout = replace(task.holdout, share=self.holdout, report_losses=report_losses)
        measure = task.measure
        if not is_open and task.trains and not task.halves and len(task.offered) == 1:
            measure = measure or "train"
        return replace(task, holdout=holdout, measure=measure)

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
        training_losses = entries_without(state.training_losses, removed)
        return replace(
            state,
            arms=arm_states,
            seen=pair_reports,
            losses=losses,
            training_losses=training_losses,
            notes=(),
        )

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
        new_reports: dict[str, dict[Client, Report]] = {}
        new_losses: dict[Client, Report] = {}
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
                        new_reports.setdefault(report_key, {})[client] = (
                            *difference,
                            held_out.count,
                        )
            # The loss of the leader's model tells later whether the decision should be reopened.
            if state.leader in served_by:
                leader_loss = held_out.difference(served_by[state.leader], None)
                if leader_loss is not None:
                    new_losses[client] = (*leader_loss, held_out.count)
        # New reports replace the earlier ones of the same client.
        pair_reports = dict(state.seen)
        for report_key, reports in new_reports.items():
            pair_reports[report_key] = with_entries(pair_reports.get(report_key, {}), reports)
        return pair_reports, with_entries(state.losses, new_losses)

    # -- the end of a round
    # ---------------------------------------------------------------------------------------------------

    def _judged(self, state: RaceState, replies: Replies, groups_before: Groups) -> RaceState:
        """End a round: drop arms, choose the leader, and start dropped arms again.

        Args:
            state: The state with the reports of this round.
            replies: The replies of the exchange that ends the round.
            groups_before: The groups that served the clients before it.
        """
        reporting_count = sum(losses.count > 0 for losses in replies.held_out_losses.values())
        if not reporting_count:
            # Clients train on all their examples, so nothing new is known of the arms.
            state, risen = self._with_training_losses(state, replies)
            return self._reopened(state, risen=risen)
        # 1. The differences of the arms' losses, pooled over clients, with this round's reports.
        limited = replies.averaging.limits_reports
        leader_before = state.leader
        client_count = max(len(self.assignment(state).row), 1)
        was_open = self.is_open(state)
        state, _ = self._with_training_losses(state, replies)
        state = replace(state, reports=state.reports + min(reporting_count / client_count, 1.0))
        state, limited_clients = _with_differences(state, reporting_count, limited)
        notes = [fence_note(limited_clients)] if limited_clients else []
        if state.past:
            notes.append(_standing(state, self.display_names))
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
                state = _without_arm(replace(state, decided=decided), dropped_arm)
                # If the leader is dropped, the best of the others takes its place.
                if state.leader not in state.arms:
                    state = replace(state, leader=self.ahead(state))
        # 3. The arm with the lowest loss serves the clients from now on.
        leader = self.ahead(state)
        if leader != leader_before:
            groups = self.named[leader].assignment(state.arms[leader]).groups
            new_groups = () if as_groups(groups) == as_groups(groups_before) else groups
            min_lead = self._min_lead(leader, leader_before)
            notes.append(
                _lead(state, leader, leader_before, self.display_names, new_groups, min_lead)
            )
            # These were losses of the models that served before.
            state = replace(state, losses={}, lowest=None)
        # 4. The decision is reopened if it no longer suits the clients.
        state = replace(state, leader=leader, notes=(*state.notes, *notes))
        state = self._reopened(state, limited)
        # 5. Once nothing is left to decide, clients train on all their examples.
        if was_open and not self.is_open(state):
            state = replace(state, notes=(*state.notes, _settled(self.assignment(state))))
        return state

    def _with_training_losses(
        self, state: RaceState, replies: Replies
    ) -> tuple[RaceState, set[Client]]:
        """The state with the training losses that clients have reported, and the clients whose losses have risen."""
        leader_replies = replies.parts.get(state.parts[state.leader])
        if leader_replies is None:
            return state, set()
        loss_report = loss_changes(leader_replies, state.training_losses, state.usual_change)
        new_state = replace(
            state,
            training_losses=with_entries(state.training_losses, loss_report.measured),
            usual_change=loss_report.usual_change if loss_report.measured else state.usual_change,
        )
        return new_state, set(loss_report.risen)

    def ahead(self, state: RaceState) -> str:
        """Return the arm that serves the clients: the leader, unless the loss of another one is lower.

        The losses are those of the later half of the rounds. Arms that have not been compared with
        the leader yet, as after another start, do not take its place. If the leader is gone, the
        simplest arm begins.
        """
        leader_is_gone = state.leader not in state.arms
        leader = next(iter(state.arms)) if leader_is_gone else state.leader
        candidates = []
        for arm_name in state.arms:
            # Local models learn fastest at first.
            is_too_early = (
                isinstance(self.named[arm_name], Independent) and state.reports < MIN_REPORTS
            )
            is_compared = leader_is_gone or _gain(state, arm_name, state.leader) is not None
            if is_compared and not is_too_early:
                candidates.append(arm_name)
        # From simple to complex, an arm takes the lead from the one that has it so far.
        for arm_name in candidates:
            gain = _gain(state, arm_name, leader)
            leads = gain is not None and gain.z > self._min_lead(arm_name, leader)
            if leads and not self._groups_behind(state, leader, arm_name):
                leader = arm_name
        return leader

    def _min_lead(self, arm_name: str, leader: str) -> float:
        """By how many standard errors an arm must be ahead of the leader to take the lead.

        A method that divides clients only after a test of its own has found, on all their examples,
        that they differ. So it need not prove this again: it is enough that it is ahead of a simpler
        arm at all.
        """
        arm_order = list(self.named)
        is_more_complex = arm_order.index(arm_name) > arm_order.index(leader)
        return 0.0 if self._tests_by_itself(arm_name) and is_more_complex else 1.0

    def _tests_by_itself(self, arm_name: str) -> bool:
        """Whether an arm divides clients only after a test of its own."""
        method = self.named[arm_name]
        return isinstance(method.method if isinstance(method, Tuned) else method, Probing)

    def _compared(
        self, state: RaceState, simple_arm: str, complex_arm: str
    ) -> tuple[str, Note] | None:
        """Compare two arms: return the one to drop, and why; None to keep both."""
        arm_pair = pair_key(simple_arm, complex_arm)
        history = state.past.get(arm_pair, ())
        # The number of reports of each client; the small term is for rounding in the sum.
        report_count = sum(difference.share for difference in history) + 1e-6
        # Without an error, both arms have the same models.
        if report_count < MIN_REPORTS or not history[-1].error:
            return None
        # The simpler arm is behind if differences, of its loss less that of the other, are above 0. The
        # models without clients' personal ones count as well, where there are such models.
        histories = [history]
        offered_history = state.past.get(arm_pair + OFFERED, ())
        if offered_history and offered_history[-1].error:
            histories.append(offered_history)
        judged = _Judged(
            self,
            state,
            (simple_arm, complex_arm),
            histories,
            self._significant_z(history[-1].degrees, len(history)),
        )
        # 0. Arms with the same groups are alike. The one that tests by itself may find groups later.
        if self._tests_by_itself(complex_arm) and self._groups(state, simple_arm) == self._groups(
            state, complex_arm
        ):
            if report_count < 2 * self.patience:
                return None
            return judged.drop(simple_arm, judged.no_longer_tried(report_count))
        # 1. An arm that is hopeless. Complex arms learn fast, so they end others only later; groups
        #    that a test has found have shown by other examples that they differ.
        if judged.is_hopeless(complex_arm):
            return judged.drop(complex_arm, judged.significant(complex_arm))
        if self._tests_by_itself(complex_arm) and judged.is_hopeless(simple_arm):
            return judged.drop(simple_arm, judged.significant(simple_arm))
        # 2. The more complex arm if it is expected to be behind, and otherwise the simpler one if it is
        #    significantly behind.
        if report_count < self.patience:
            return None
        behind = judged.expected_behind()
        if behind.held and judged.is_behind_without_personal_models():
            return judged.drop(complex_arm, behind)
        significant = judged.significant(simple_arm)
        # Local models learn fastest of all and gain least later, so they end others only at the end.
        is_local = isinstance(self.named[complex_arm], Independent)
        ends_simple = not is_local or report_count >= 2 * self.patience
        if ends_simple and not behind.held and significant.held:
            return judged.drop(simple_arm, significant)
        # 3. The end of the contest.
        if report_count < 2 * self.patience:
            return None
        loser = simple_arm if self.ahead(state) == complex_arm else complex_arm
        # An arm that is about to overtake the other one is given twice the time.
        if judged.is_expected_ahead(loser) and report_count < LAST_REPORTS * self.patience:
            return None
        # Personal models may hide which arm's models are better.
        is_close = abs(over_rounds(history).z) < 1
        if is_close and offered_history and over_rounds(offered_history).z > 1:
            loser = simple_arm
        return judged.drop(loser, judged.no_longer_tried(report_count))

    def _groups_behind(
        self, state: RaceState, simple_arm: str, complex_arm: str
    ) -> dict[tuple[Client, ...], Difference]:
        """Return the groups whose models are worse than those of the simpler arm, by a standard error in the last reports.

        Over all clients an arm may be ahead that makes a group worse. So it is where labels of some
        clients are wrong at random: the others gain by a model without these clients, who lose by
        theirs. Their held-out labels are wrong, too, so that the difference is less than on right ones.
        """
        reports = state.seen.get(pair_key(simple_arm, complex_arm), {})
        # That some clients alone are worse than together is no reason to doubt the others' models.
        if not reports or isinstance(self.named[complex_arm], Independent):
            return {}
        behind = {}
        for members in self._groups(state, complex_arm):
            reports_of_group = entries_among(reports, members)
            if not reports_of_group:
                continue
            # Below 0 if the group's model is worse than that of the simpler arm.
            differences, _, _ = spread_out(reports_of_group)
            num_behind = np.count_nonzero(differences < 0)
            # A single client, which may be hostile, stops no groups.
            if num_behind < 2 or num_behind <= len(differences) / 2:
                continue
            difference_of_group = pooled(state.round, reports_of_group)
            if difference_of_group.z < -1:
                behind[members] = difference_of_group
        return behind

    def _groups(self, state: RaceState, arm_name: str) -> Groups:
        """The groups of an arm, in their order."""
        return as_groups(self.named[arm_name].assignment(state.arms[arm_name]).groups)

    def _significant_z(self, degrees: float, look_count: int) -> float:
        """The difference in standard errors from which look number ``look_count`` at a pair of arms is significant."""
        # The levels of all looks at all pairs sum to less than the race's level.
        pair_count = math.comb(len(self.methods), 2)
        look_level = self.level / (pair_count * look_count * (look_count + 1))
        if math.isfinite(degrees):
            return -float(scipy.special.stdtrit(degrees, look_level))
        return -float(scipy.special.ndtri(look_level))

    def _reopened(
        self, state: RaceState, limited: bool = False, risen: Set[Client] = frozenset()
    ) -> RaceState:
        """Start dropped arms again if losses have risen, or many clients have joined.

        Args:
            state: The state.
            limited: Whether a client's report is limited by those of the others.
            risen: The clients whose training losses have risen, once the choice is settled.
        """
        # The lowest loss of the leader since the last decision, if clients have reported losses.
        latest = pooled(state.round, state.losses, limited) if state.losses else None
        lowest = latest
        if latest is not None and state.lowest is not None and state.lowest.mean <= latest.mean:
            lowest = state.lowest
        state = replace(state, lowest=lowest)
        if not state.dropped or state.facts is None:
            return state
        # Reasons to reopen it: many clients that the decision did not know, training losses that rose at
        # many clients, or a held-out loss far above the lowest one.
        clients = tuple(sorted(self.assignment(state).row))
        joined_count = 0
        if clients != state.decided:
            joined_count = len(set(clients) - set(state.decided))
        many_joined = joined_count >= MIN_JOINED_SHARE_TO_REOPEN * len(clients)
        # The loss of a single client may rise by chance.
        has_risen = len(risen) >= max(2, MIN_RISEN_SHARE_TO_REOPEN * len(clients))
        reason = "many clients have joined"
        if has_risen and not many_joined:
            reason = f"data may have changed, as the training losses of {len(risen)} clients rose"
        if latest is not None and lowest is not None:
            loss_rise = latest.mean - lowest.mean
            error_of_rise = math.hypot(latest.error, lowest.error)
            has_risen |= (
                latest.mean > MIN_LOSS_RATIO_TO_REOPEN * lowest.mean
                and loss_rise > MIN_RISE_TO_REOPEN * error_of_rise
            )
            if has_risen and not many_joined and not risen:
                reason = f"the held-out loss rose from {lowest.mean:.3g} to {latest.mean:.3g}"
        if not many_joined and not has_risen:
            return state
        # All dropped arms start again; earlier differences say nothing about them.
        arm_states = self._with_dropped_arms(state, state.facts, clients)
        restarted_names = []
        for arm_name, display_name in self.display_names.items():
            if arm_name in state.dropped:
                restarted_names.append(display_name)
        restarted = " and ".join(restarted_names)
        description = f"{reason}: clients train {restarted} again, beginning with the mean of the models that served them"
        note = Note(kind="arms", effect="serves", clients=clients, text=description)
        return replace(
            state,
            arms=arm_states,
            parts={**dict(zip(arm_states, arm_states, strict=True)), **state.parts},
            past={},
            reports=0.0,
            dropped={},
            lowest=None,
            losses={},
            training_losses={},
            usual_change=0.0,
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
            labels=facts.labels,
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


def facts(federation: Federation) -> Facts | None:
    """Return what a method needs to start later; None if a boundary hides the layers."""
    if type(federation) is not Federation:
        return None
    return Facts(
        columns=federation.columns,
        tensors=federation.tensors,
        dense=federation.dense,
        training=federation.training,
        labels=federation.labels,
    )


def serving(
    client: Client, arm_part: str, assignment: Assignment, held_out: HeldOutLosses
) -> Candidate:
    """Return the measured model that serves a client, see :attr:`~coterie.core.Task.measured_models`.

    It is its personal one (1), or the one that it was offered (0), and perhaps its neighbours too.
    """
    part_name = f"{arm_part}/{assignment.part}".rstrip("/")
    has_personal = client not in assignment.plain and (part_name, 1) in held_out.models
    model_number = int(has_personal)
    with_neighbours = (part_name, WITH_NEIGHBOURS + model_number)
    if assignment.neighbours_of(client) is not None and with_neighbours in held_out.models:
        return with_neighbours
    return part_name, model_number


def pair_key(first_arm: str, second_arm: str) -> str:
    """Return the key of two arms in :class:`RaceState`."""
    return f"{first_arm} {second_arm}"


def pairs(arm_names: Iterable[str], order: Iterable[str]) -> list[tuple[str, str]]:
    """Return all pairs of ``arm_names``; the first of each pair comes first in ``order``."""
    chosen_names = set(arm_names)
    return list(combinations([arm_name for arm_name in order if arm_name in chosen_names], 2))


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
            difference, limited_clients = pooled_within_fences(state.round, reports, limited)
            all_limited |= limited_clients
            # Arms with the same models do not differ yet: their contest has not begun.
            if not difference.error:
                histories.pop(report_key, None)
                continue
            reporting_share = min(reporting_count / len(reports), 1.0)
            difference = replace(difference, share=reporting_share, level=max(loss_level, 1e-9))
            histories[report_key] = (*histories.get(report_key, ()), difference)
    return replace(state, past=histories), all_limited


def _gain(state: RaceState, arm_name: str, other_arm: str) -> Difference | None:
    """The loss of ``other_arm`` less that of ``arm_name``, over the later half of the rounds; None if not compared."""
    history = state.past.get(pair_key(other_arm, arm_name))
    if history:
        return over_rounds(history)
    history = state.past.get(pair_key(arm_name, other_arm))
    if not history:
        return None
    difference = over_rounds(history)
    return replace(difference, mean=-difference.mean)


@dataclass(frozen=True)
class _Judged:
    """Two arms that are compared: the criteria of dropping one of them.

    Attributes:
        race: The race.
        state: Its state.
        arm_names: The simpler and the more complex arm.
        histories: Differences of the simpler arm's losses less the other's, one per round: of the
            models that serve the clients, and if there are personal models, without them.
        significant_z: From so many standard errors on, a difference is significant.
    """

    race: Race
    state: RaceState
    arm_names: tuple[str, str]
    histories: Sequence[tuple[Difference, ...]]
    significant_z: float

    def _sign(self, arm_name: str) -> int:
        """1 for the simpler arm, and -1 for the other: how differences become those by which the arm is behind."""
        return 1 if arm_name == self.arm_names[0] else -1

    def _criterion_name(self, loss_name: str) -> str:
        """The name of a criterion."""
        simple_name, complex_name = (self.race.display_names[arm] for arm in self.arm_names)
        return f"{loss_name} of {simple_name} less {complex_name}, in standard errors"

    def is_hopeless(self, arm_name: str) -> bool:
        """Whether an arm is significantly behind, and stays so in its best case, also without personal models."""
        sign = self._sign(arm_name)
        for history in self.histories:
            # With the noise of training: the last round's error is that by the draw of the examples alone.
            difference = over_rounds(history)
            in_best_case = expected(history, BEST_CASE_ROUNDS) / difference.error
            # Above 0 where this arm is behind.
            if sign * difference.z <= self.significant_z or sign * in_best_case <= 2:
                return False
        return True

    def significant(self, arm_name: str) -> Criterion:
        """The criterion that an arm is significantly behind now."""
        sign = self._sign(arm_name)
        return Criterion(
            self._criterion_name(LOSS),
            over_rounds(self.histories[0]).z,
            ">" if sign > 0 else "<",
            sign * self.significant_z,
            met="which is significant",
            unmet="which is not significant",
            key="held_out_loss",
        )

    def expected_behind(self) -> Criterion:
        """The criterion that the more complex arm is expected to be behind by a standard error."""
        history = self.histories[0]
        return Criterion(
            self._criterion_name(EXPECTED_LOSS),
            expected(history) / history[-1].error,
            "<",
            -1.0,
            met="by more than a standard error",
            unmet="not by more than a standard error",
            key="expected_loss",
        )

    def is_expected_ahead(self, arm_name: str) -> bool:
        """Whether an arm is expected to be ahead by half a standard error, after twice as many rounds."""
        history = self.histories[0]
        # Above 0 where the arm's loss is the lower one.
        lead = -self._sign(arm_name) * expected_on_line(history)
        return lead > over_rounds(history).error / 2

    def is_behind_without_personal_models(self) -> bool:
        """Whether the more complex arm is expected to be behind without personal models, or there are none."""
        return all(expected(history) / history[-1].error < 0 for history in self.histories[1:])

    def no_longer_tried(self, report_count: float) -> Criterion:
        """The criterion that two arms have been compared for long enough."""
        return Criterion(
            "reports of each client",
            math.floor(report_count),
            ">=",
            2 * self.race.patience,
            met="enough to end the contest",
            unmet="too few to end the contest",
            key="reports",
        )

    def drop(self, arm_name: str, criterion: Criterion) -> tuple[str, Note]:
        """Return the arm to drop, and the note that says why."""
        other_arm = self.arm_names[1] if arm_name == self.arm_names[0] else self.arm_names[0]
        display_names = self.race.display_names
        arm_names = (display_names[arm_name], display_names[other_arm])
        note = _drop(
            self.state, arm_name, arm_names, self._sign(arm_name), self.histories[0], criterion
        )
        return arm_name, note


def _without_arm(state: RaceState, arm_name: str) -> RaceState:
    """Return the state without an arm, which may have been the leader."""

    def without_arm(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            arm_key: value
            for arm_key, value in values.items()
            if arm_name not in arm_key.split(" ")
        }

    # The part stays under a name that no arm has, until a plan has said that it has ended.
    parts = {**without_arm(state.parts), f"({arm_name})": state.parts[arm_name]}
    return replace(
        state,
        arms=without_arm(state.arms),
        parts=parts,
        seen=without_arm(state.seen),
        past=without_arm(state.past),
        dropped={**state.dropped, arm_name: state.round},
    )


# ----------------------------------------------------------------------------------------------------
# Notes.


LOSS = "held-out loss"

EXPECTED_LOSS = "expected held-out loss"


HELD_OUT_EXAMPLES = "held-out examples"
"""Label of a note: the number of examples, or of subjects, on which arms are compared."""

REPORTS = "reports of each client"
"""Label of a note: how many reports each client has sent, on average, since the arms started."""

_DIFFERENCE = re.compile(r"loss of (\S+) less (\S+)")


def recorded_differences(
    numbers: Mapping[str, float | None],
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the differences of held-out losses that a note of a race has.

    Args:
        numbers: The numbers of the note.

    Returns:
        Two arms -> (loss of the first less that of the second, its standard error).

    Example:
        >>> recorded_differences({"loss of a less b": 0.5, "standard error of a less b": 0.1, "expected": 0.4})
        {('a', 'b'): (0.5, 0.1)}
    """
    differences = {}
    for number_name, difference in numbers.items():
        if names := _DIFFERENCE.fullmatch(number_name):
            error = numbers.get(f"standard error of {names[1]} less {names[2]}")
            # Records have no infinite numbers.
            if difference is not None and error is not None:
                differences[names[1], names[2]] = (difference, error)
    return differences


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


def _standing(state: RaceState, display_names: Mapping[str, str]) -> Note:
    """Say how far apart the arms are at the end of a round, before one of them may be dropped.

    It changes nothing. Reports read from it how sure a choice is, and what is still open.
    """
    held_out_counts: Mapping[Client, int] = {}
    for reports in state.seen.values():
        held_out_counts = with_entries(held_out_counts, example_counts(reports))
    differences = []
    for report_key, history in state.past.items():
        if report_key.endswith(OFFERED):
            continue
        simple_arm, complex_arm = (display_names[arm] for arm in report_key.split(" "))
        latest = history[-1]
        differences.append(
            f"{simple_arm} less {complex_arm} {latest.mean:.3g} ± {latest.error:.2g}"
        )
    num_examples = sum(held_out_counts.values())
    return Note(
        kind="standing",
        # Of all clients that have reported: their ids would be the longest part of a record.
        clients=(),
        text=f"difference of losses on {num_examples} held-out examples: {'; '.join(differences)}",
        numbers=_numbers(state),
        labels={HELD_OUT_EXAMPLES: num_examples, REPORTS: math.floor(state.reports + 1e-6)},
    )


def _reporting_clients(state: RaceState) -> set[Client]:
    """The clients of which some arms have been compared."""
    return set[Client]().union(*state.seen.values())


def _lead(
    state: RaceState,
    leader: str,
    leader_before: str,
    display_names: Mapping[str, str],
    groups: Groups,
    min_lead: float,
) -> Note:
    """Describe that another arm serves the clients.

    Args:
        state: The state, in which the arms have been compared.
        leader: The arm that serves the clients now.
        leader_before: The arm that served them before.
        display_names: Name of an arm -> its name in sentences.
        groups: The new groups, if they are other ones than before.
        min_lead: By how many standard errors the loss had to be lower.
    """
    description = f"the clients now use {display_names[leader]}"
    name_before = display_names[leader_before]
    criteria: tuple[Criterion, ...] = ()
    difference = _gain(state, leader, leader_before)
    # An arm that was dropped has no differences any more; its own note says why it was.
    if difference is not None and difference.z > min_lead:
        takes_lead = Criterion(
            f"{LOSS} of {name_before} less {display_names[leader]}, in standard errors",
            difference.z,
            ">",
            min_lead,
            key="held_out_loss",
            met="more than a standard error"
            if min_lead
            else "and a test found that clients differ",
            unmet="not lower by more than a standard error" if min_lead else "not lower",
        )
        criteria = (takes_lead,)
        description += (
            f": held-out loss is lower by {difference.mean:.3g} ± {difference.error:.2g} "
            f"than with {name_before}, {takes_lead.meaning}"
        )
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


def _settled(served: Assignment) -> Note:
    """Say that clients hold no examples out from now on."""
    return Note(
        kind="arm",
        effect="info",
        clients=tuple(sorted(served.row)),
        text="the choice is settled: from now on, clients train on the examples that they held out for it, too",
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
