"""Split-half: splits a group when updates from two halves of clients' data differ beyond their noise.

Coterie's own, after an old idea in statistics: two halves of a client's data agree in the signal
and differ in the noise. Every ``probe_every`` rounds a group *probes*: each member trains twice, on
two disjoint random halves of its data, and sends both updates. Their mean is the member's update
for the round, so no round is lost. From the Gram matrix of the updates, the server tests whether
the members are congruent, that is, have the same signal (:func:`coterie.clustering.congruence`).
The only threshold is ``level``, the probability of splitting identically distributed clients.

- If few clients answer in a round, the probe lasts several rounds (:class:`LongProbe`): each client
  trains from the same model when it first answers, until :data:`ENOUGH_SHARE` of the group, or :data:`ENOUGH_CLIENTS`
  clients, have answered. In the group's mean, such a client counts with the model that it came to,
  and clients that have answered train as usual.
- A group that a probe finds incongruent probes again in the next round. It splits if the two probes
  together are below ``level`` (:func:`coterie.clustering.repeated_p`), and its parts split further
  as long as they are incongruent in both (:func:`confirmed`). Clients that the two probes put on
  different sides walk down the parameter tree from there like newcomers. If probes show no
  difference, the time to the next probe doubles, up to four times ``probe_every``.
- Newcomers, and members that were silent when their group split, walk down the parameter tree by
  updates of halves (:mod:`coterie.methods._split_half_walks`).
- ``review_every`` rounds after the last change of the groups there is a *review*: in a separate
  exchange, all clients train on halves from one model, the median of the groups' models. Two groups
  that do not differ by the evidence merge, and a client that belongs to another group moves. After
  a review that changes nothing, the time to the next review doubles. A model that has diverged does
  not count in a merger (:data:`DIVERGED_NORM_RATIO`).
- With ``alert``, data may change. Each round begins with an exchange in which clients report their
  training loss. If one rises, the client may no longer fit its group. It then measures the models
  of all groups, those of up to :data:`MAX_KEPT_GROUPS` groups that all clients have left, and if its loss
  doubled the first draw, which is better than a model of opposite labels. If one of them undoes
  more than half of the rise, the client takes it, before the round's training. Otherwise its group
  probes in this round. A review follows. With ``alert_with_training``, clients measure their group's
  model when they train: no exchange more is needed. What has risen is known one round later, and
  the updates of clients whose loss has more than doubled do not count in that round.

- The probes of a round ask :data:`MAX_PROBED_CLIENTS` clients at most, a random sample of each group. If a
  group splits, its other clients walk down the tree, as many of them in a round. A review asks as
  many clients in all.

All halves of all clients make the same number of steps, because unequal work makes updates differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Groups,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    among,
    state,
    tested,
    weights,
    without,
)
from coterie.core.client_table import with_entries
from coterie.methods import _cluster_tree
from coterie.methods._cluster_tree import Leaf, Tree, join, nodes_of_clients, ordered, root
from coterie.methods._decisions import SplitGroup
from coterie.methods._half_steps import Probing, of_equal_steps
from coterie.methods._leavers import entries_without
from coterie.methods._loss_rises import RISE_IN_USUAL_CHANGES, loss_changes
from coterie.methods._split_half_probes import (
    ENOUGH_CLIENTS,
    ENOUGH_SHARE,
    HALF_STEPS_IN_ROUNDS,
    MIN_P_OF_NO_DIFFERENCE,
    FinishedProbe,
    LongProbe,
    ProbeAgain,
    ProbeDecision,
    ProbeSchedule,
    decide_probe,
    describe_probe,
    forget,
    sample,
)
from coterie.methods._split_half_reviews import (
    MAX_PROBED_CLIENTS,
    clients_at,
    middle,
    reviewed,
    reviewers,
    unchanged,
)
from coterie.methods._split_half_walks import SplitProbe, split_probe, walk
from coterie.settings import check, setting

MAX_CLIENTS_SEEN = 100
"""With ``alert_with_training``, updates of clients whose loss has doubled are left out if no more clients
train. Of more clients the server has only the means, in which each counts for little."""

MAX_KEPT_GROUPS = 8
"""Most groups without clients whose models are kept, with ``alert``: a concept may come back. The
one left first goes first."""


Stage = Literal["train", "review", "measure-losses", "offer-models"]
"""What an exchange is for.

- ``train``: the groups train, and probe if that is due; it ends the round.
- ``review``: all clients train on halves from one model.
- ``measure-losses``: with ``alert``, clients report the training loss of their group's model.
- ``offer-models``: clients whose loss rose measure the models of all groups.
"""


@state("split-half")
class SplitHalfState:
    """State of split-half.

    Attributes:
        round: number of rounds completed.
        stage: what the next exchange is for.
        leaves: the groups, as in CFL.
        tree: the parameter tree.
        walkers: client -> the inner node where it is.
        schedules: leaf's node -> schedule of its probes.
        probed: inner node -> the probe that split it.
        examples: client -> its number of training examples.
        answered: share of the clients that answered in the last round, of those that were asked.
        merged: node of a merged leaf -> node of the leaf that it became part of.
        review: the round after which the next review comes, and the current interval between
            reviews, in rounds.
        losses: client -> its training loss when it was last asked for it.
        usual_change: the usual change of losses: the median over clients in the last round, or half
            of the value before if greater.
        risen: client whose loss rose -> the middle between its losses before and after; a model is
            better if its loss is less.
        first: ``(d,)``, the first draw, with ``alert``.
        left: nodes of groups that all clients have left, the one left first in front. They are in
            ``merged`` too.
        training: the experiment's training settings.
        notes: notes of the last exchange.
    """

    round: int
    stage: Stage = "train"
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    schedules: Mapping[int, ProbeSchedule] = field(default_factory=dict)
    probed: Mapping[int, SplitProbe] = field(default_factory=dict)
    examples: Mapping[Client, int] = field(default_factory=dict)
    answered: float = 1.0
    merged: Mapping[int, int] = field(default_factory=dict)
    review: tuple[int, int] = (0, 0)
    losses: Mapping[Client, float] = field(default_factory=dict)
    usual_change: float = 0.0
    risen: Mapping[Client, float] = field(default_factory=dict)
    first: torch.Tensor | None = None
    left: tuple[int, ...] = ()
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    def training_at(self, node: int) -> Training:
        """Return the training of an inner node's walkers: as many steps as its clients made when it was split."""
        return replace(self.training, steps=self.probed[node].steps)

    @cached_property
    def assignment(self) -> Assignment:
        """The models that serve the clients, which are asked for several times in a round."""
        return _cluster_tree.served(self)


def _misfits(state: SplitHalfState) -> set[Client]:
    """The clients whose loss rose to more than twice the loss before."""
    misfits = set()
    for client, middle_loss in state.risen.items():
        loss = state.losses[client]
        loss_before = 2 * middle_loss - loss
        if loss > 2 * loss_before:
            misfits.add(client)
    return misfits


def several(state: SplitHalfState) -> bool:
    """Return whether there are at least two groups with clients."""
    return sum(bool(leaf.clients) for leaf in state.leaves) > 1


def members_of(state: SplitHalfState) -> dict[int, tuple[Client, ...]]:
    """Return the leaf's node -> its clients, for leaves that have any."""
    return {leaf.node: leaf.clients for leaf in state.leaves if leaf.clients}


@dataclass(frozen=True, kw_only=True)
class SplitHalf(Probing):
    """Splits a group if its clients differ by more than two random halves of one client's data do."""

    name: ClassVar[str] = "split-half"

    alert: bool = setting(
        False,
        "data may change: clients whose loss rises take a better model, or their group is tested, at once",
    )
    alert_with_training: bool = setting(
        False,
        "with alert, clients report losses with their training: no exchange more, and one round later",
        advanced=True,
        only_with={"alert": (True,)},
    )

    def __post_init__(self) -> None:
        check(self)

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> SplitHalfState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        return SplitHalfState(
            round=0,
            stage=self._first_stage,
            leaves=(leaf,),
            tree=root(federation.clients, federation.parameters.stop),
            schedules={0: ProbeSchedule(due=self.first_probe)},
            first=leaf.model if self.alert else None,
            training=federation.training,
        )

    def plan(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        match state.stage:
            case "train":
                return self._plan_training(state, cohort)
            case "review":
                return self._plan_review(state, cohort)
            case "measure-losses":
                return self._plan_loss_check(state, cohort)
            case "offer-models":
                return self._plan_offers(state, cohort)

    def step(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        # The steps on a half as they were planned, before this exchange's sizes were known.
        half_steps = self._training_of_halves(state).steps or 1
        example_counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        # From here on, the state knows the sizes of all clients that have ever answered.
        examples = with_entries(state.examples, example_counts)
        state = replace(state, examples=examples, notes=())
        match state.stage:
            case "train":
                return self._after_training(state, replies, half_steps)
            case "review":
                return self._after_review(state, replies)
            case "measure-losses":
                return self._after_loss_check(state, replies)
            case "offer-models":
                return self._after_offers(state, replies)

    def assignment(self, state: SplitHalfState) -> Assignment:
        return state.assignment

    def admit(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        return _cluster_tree.admitted(state, clients, state.merged.get(0, 0))

    def retire(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        removed = set(clients)
        new_state = _cluster_tree.retired(state, clients)
        # Replies of clients that have left count no longer in the probes of their group.
        schedules = {}
        for node, schedule in new_state.schedules.items():
            schedules[node] = forget(schedule, removed)
        # The next exchange may have become pointless: a review of one group, or offers to nobody.
        stage = new_state.stage
        risen = entries_without(new_state.risen, removed)
        if stage == "review" and not several(new_state):
            stage = self._first_stage
        if stage == "offer-models" and not risen:
            stage = "train"
        return replace(
            new_state,
            stage=stage,
            schedules=schedules,
            examples=entries_without(new_state.examples, removed),
            losses=entries_without(new_state.losses, removed),
            risen=risen,
        )

    def explain(self, state: SplitHalfState) -> tuple[Note, ...]:
        return state.notes

    @property
    def _first_stage(self) -> Stage:
        """The stage with which a round begins, if no review is due."""
        asks_before_training = self.alert and not self.alert_with_training
        return "measure-losses" if asks_before_training else "train"

    @property
    def _asks_with_training(self) -> bool:
        """Whether clients report the training loss of their group's model with their training."""
        return self.alert and self.alert_with_training

    # -- training, with probes and walkers
    # ---------------------------------------------------------------------------------------------------

    def _plan_training(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        # One row for each group; more rows follow, for long probes and for nodes with walkers.
        models = [leaf.model for leaf in state.leaves]
        tasks: dict[Client, Task] = {}
        # The probes of this round share the number of clients that may be asked for halves.
        number_of_probes = sum(self.probes(state, leaf) for leaf in state.leaves)
        max_probed = max(MAX_PROBED_CLIENTS // max(1, number_of_probes), ENOUGH_CLIENTS)
        for row_number, leaf in enumerate(state.leaves):
            if not leaf.clients:
                continue
            probe = state.schedules[leaf.node].long_probe
            if probe is None:
                tasks |= self._group_tasks(state, row_number, cohort, max_probed)
            else:
                # The model from which the probe's clients train gets a further row.
                tasks |= self._long_probe_tasks(state, row_number, len(models), probe, cohort)
                models.append(probe.model)
        # With alert, clients first measure the model from which they train.
        sees_updates = False
        if self._asks_with_training:
            # Of halves, each would be measured alone, and those of a client differ.
            for client, task in tasks.items():
                if not task.halves:
                    tasks[client] = replace(task, measure="train")
            # Updates of clients whose data have changed can be left out, if the server sees them.
            sees_updates = len(tasks) <= MAX_CLIENTS_SEEN
        # Walkers train on halves from the model of the inner node where they are.
        walkers = sample(cohort, sorted(state.walkers), MAX_PROBED_CLIENTS)
        walker_models, walker_tasks = _cluster_tree.tasks(
            state.tree,
            state.walkers,
            walkers,
            len(models),
            state.training_at,
            halves=True,
        )
        tasks |= walker_tasks
        # Halves are compared by their Gram matrix, so the server needs the single updates. A long probe
        # keeps them from round to round, and so needs those of the second halves too.
        begins_long_probe = any(self._lasts(state, leaf) for leaf in state.leaves if leaf.clients)
        compares = begins_long_probe or any(task.halves for task in tasks.values())
        return Plan(
            models=torch.stack([*models, *walker_models]),
            tasks=tasks,
            need="rows" if compares or sees_updates else "mean",
            columns=slice(0, state.tree.parameters),
            weighting=self.weighting,
            second_halves=begins_long_probe,
        )

    def _group_tasks(
        self, state: SplitHalfState, row_number: int, cohort: Cohort, max_probed: int
    ) -> dict[Client, Task]:
        """The tasks of a leaf's clients; a probe asks ``max_probed`` of them, and the others train."""
        leaf = state.leaves[row_number]
        probes = self.probes(state, leaf)
        tasks: dict[Client, Task] = {}
        if not probes or len(leaf.clients) > max_probed:
            sampled = cohort.sample(leaf.clients, self.fraction)
            tasks |= dict.fromkeys(sampled, Task(offered=(row_number,)))
        # A probe asks all members, or many: too few would not separate groups.
        if probes:
            evidence = state.schedules[leaf.node].evidence
            same_clients = evidence.clients if evidence else ()
            probe_task = Task(
                offered=(row_number,), halves=True, training=self._training_of_halves(state)
            )
            probed_clients = sample(cohort, leaf.clients, max_probed, same_clients)
            tasks |= dict.fromkeys(probed_clients, probe_task)
        return tasks

    def _long_probe_tasks(
        self,
        state: SplitHalfState,
        row_number: int,
        probe_row: int,
        probe: LongProbe,
        cohort: Cohort,
    ) -> dict[Client, Task]:
        """The tasks of a leaf's clients in a probe that has begun before; who has answered it trains as usual."""
        clients = state.leaves[row_number].clients
        tasks = dict.fromkeys(cohort.sample(clients, self.fraction), Task(offered=(row_number,)))
        # The others train on halves, as the clients did that answered when the probe began.
        not_answered = (set(cohort.present) & set(clients)) - set(probe.answered)
        probe_task = Task(
            offered=(probe_row,),
            halves=True,
            training=replace(state.training, steps=probe.steps),
            lr_round=probe.round,
        )
        tasks |= dict.fromkeys(sorted(not_answered), probe_task)
        return tasks

    def probes(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Return whether a leaf probes in the next round."""
        return len(leaf.clients) > 1 and state.round + 1 >= state.schedules[leaf.node].due

    def _lasts(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Return whether a leaf's probe lasts several rounds: too few would answer in the next one alone."""
        if not self.probes(state, leaf):
            return False
        has_begun = state.schedules[leaf.node].long_probe is not None
        client_count = len(leaf.clients)
        enough_answers = min(ENOUGH_SHARE * client_count, ENOUGH_CLIENTS)
        return has_begun or state.answered * client_count < enough_answers

    def _training_of_halves(self, state: SplitHalfState) -> Training:
        """The training settings of every half."""
        if self.steps is not None:
            return replace(state.training, steps=self.steps)
        by_sizes = of_equal_steps(state.training, state.examples.values(), HALF_STEPS_IN_ROUNDS)
        # With noise added for privacy, clients do not report their number of examples.
        return by_sizes or replace(state.training, steps=max(1, state.training.epochs))

    def _after_training(
        self, state: SplitHalfState, replies: Replies, half_steps: int
    ) -> SplitHalfState:
        # 0. Clients whose loss has more than doubled do not fit their group any more, so their updates do
        #    not count.
        new_state = state
        if self._asks_with_training:
            new_state = self._with_losses(state, replies)
        leaves_out_misfits = self._asks_with_training and replies.updates is not None
        misfits = _misfits(new_state) if leaves_out_misfits else set()
        # 1. Each group takes the mean update of its members; if it has probed, it may split.
        new_state = replace(new_state, leaves=(), round=state.round + 1)
        for row_number, leaf in enumerate(state.leaves):
            members = among(replies.clients, leaf.clients)
            member_replies = replies.of(without(members, misfits))
            if not member_replies.clients:
                new_state = _with_leaves(new_state, leaf)
            elif replies.updates is None:
                # Nobody probes or walks, so the engine has averaged.
                model = leaf.model + replies.mean_updates[row_number]
                new_state = _with_leaves(new_state, replace(leaf, model=model))
            elif self._lasts(state, leaf):
                new_state = self._gather(new_state, leaf, member_replies, half_steps)
            elif self.probes(state, leaf):
                probe = FinishedProbe(
                    member_replies, leaf.model, half_steps, state.round, in_one_exchange=True
                )
                new_state = self._after_probe(
                    new_state, leaf, self._trained(leaf, member_replies), probe
                )
            else:
                new_state = _with_leaves(new_state, self._trained(leaf, member_replies))
        # 2. The share of answers tells whether the next probes must last several rounds.
        in_groups = sum(len(leaf.clients) for leaf in state.leaves)
        expected_replies = self.fraction * (in_groups + len(state.walkers))
        answered_share = min(1.0, len(replies.clients) / max(1.0, expected_replies))
        new_state = replace(new_state, answered=answered_share, leaves=ordered(new_state.leaves))
        # 3. Walkers go one level down the tree, also into the parts of groups that have just split.
        new_state = self._walk(new_state, state.walkers, replies)
        return self._end_round(new_state, state)

    def _gather(
        self, new_state: SplitHalfState, leaf: Leaf, member_replies: Replies, half_steps: int
    ) -> SplitHalfState:
        """The state after a round of a leaf's probe that lasts several; ``half_steps`` per half, if it begins."""
        schedule = new_state.schedules[leaf.node]
        probe_before = schedule.long_probe or LongProbe.begun(
            new_state.round - 1, half_steps, leaf.model
        )
        probe = probe_before.take(member_replies)
        # Clients that have just answered trained from the probe's model, the others from the
        # group's. The mean is that of the models that they came to.
        started_elsewhere = set(probe_before.first_answers(member_replies))
        is_moved = torch.tensor(
            [[client in started_elsewhere] for client in member_replies.clients]
        )
        member_replies = replace(
            member_replies,
            updates=member_replies.all_updates + is_moved * (probe_before.model - leaf.model),
        )
        trained_leaf = self._trained(leaf, member_replies)
        if not probe.ends(leaf.clients, new_state.round):
            schedule = replace(schedule, long_probe=probe, due=new_state.round + 1)
            return _with_schedules(_with_leaves(new_state, trained_leaf), {leaf.node: schedule})
        new_state = _with_schedules(new_state, {leaf.node: replace(schedule, long_probe=None)})
        # The probe has ended: the replies of clients that are still members decide.
        of_members = probe.without(set(probe.answered) - set(leaf.clients))
        finished = FinishedProbe(
            of_members.replies(
                new_state.tree.parameters, new_state.examples, member_replies.averaging
            ),
            probe_before.model,
            probe_before.steps,
            probe_before.round,
            in_one_exchange=False,
        )
        return self._after_probe(new_state, leaf, trained_leaf, finished)

    def _after_probe(
        self, new_state: SplitHalfState, leaf: Leaf, trained_leaf: Leaf, probe: FinishedProbe
    ) -> SplitHalfState:
        """The state after a leaf's probe, with the leaf or its parts.

        Args:
            new_state: the state to change.
            leaf: the leaf before this round.
            trained_leaf: the leaf after it, if it stays whole.
            probe: the probe.
        """
        schedule = new_state.schedules[leaf.node]
        decision = decide_probe(self.level, probe.replies, schedule.evidence)
        match decision:
            case ProbeDecision(action=SplitGroup(parts)):
                return self._split(new_state, leaf, trained_leaf, probe, decision, parts)
            case _:
                schedule = self._next_probe(schedule, decision, new_state.round)
                new_state = _with_schedules(
                    _with_leaves(new_state, trained_leaf), {leaf.node: schedule}
                )
                if decision is None:
                    return new_state
                return replace(new_state, notes=(*new_state.notes, describe_probe(leaf, decision)))

    def _split(
        self,
        new_state: SplitHalfState,
        leaf: Leaf,
        trained_leaf: Leaf,
        probe: FinishedProbe,
        decision: ProbeDecision,
        parts: Groups,
    ) -> SplitHalfState:
        # Each part applies the mean update of its own clients.
        child_updates = {}
        for part in parts:
            child_updates[part] = self._mean(probe.replies.of(part))
        if not probe.in_one_exchange:
            # Parts differ from the group's present model as their means differ from that of all
            # replies to the probe.
            later_drift = trained_leaf.model - probe.model - self._mean(probe.replies)
            for part in parts:
                child_updates[part] = child_updates[part] + later_drift
        # In the tree, the children are below the node from whose model the clients trained.
        tree, children = _cluster_tree.split(
            new_state.tree,
            replace(leaf, model=probe.model),
            child_updates,
            probe.replies,
            probe.round,
        )
        note = _cluster_tree.placed(describe_probe(leaf, decision), leaf, children)
        # Members that are in no part walk down from here like newcomers.
        undecided = set(leaf.clients).difference(*parts)
        new_state = _with_new_schedules(
            _with_leaves(new_state, *children),
            [child.node for child in children],
            self._turn(new_state.round),
        )
        summary = split_probe(probe.steps, decision.evidence, parts)
        return replace(
            new_state,
            tree=tree,
            notes=(*new_state.notes, note),
            # The evidence of a group that is no more has the size of its probes.
            schedules={
                node: schedule
                for node, schedule in new_state.schedules.items()
                if node != leaf.node
            },
            walkers={**new_state.walkers, **dict.fromkeys(undecided, leaf.node)},
            probed={**new_state.probed, leaf.node: summary},
        )

    def _next_probe(
        self, schedule: ProbeSchedule, decision: ProbeDecision | None, round: int
    ) -> ProbeSchedule:
        """Schedule the next probe of a leaf that stays whole.

        It is in the next round if a finding is to be confirmed; else later, the more probes showed
        no difference.
        """
        # Too few answered.
        if decision is None:
            is_to_confirm = schedule.evidence is not None
            return replace(schedule, due=round + 1 if is_to_confirm else self._turn(round))
        if isinstance(decision.action, ProbeAgain):
            return ProbeSchedule(due=round + 1, evidence=decision.evidence)
        shows_no_difference = decision.p is not None and decision.p > MIN_P_OF_NO_DIFFERENCE
        calm_probes = schedule.calm + 1 if shows_no_difference else 0
        return ProbeSchedule(due=self._later(round, calm_probes), calm=calm_probes)

    def _mean(self, replies: Replies) -> torch.Tensor:
        return replies.mean(weights(replies, self.weighting))

    def _trained(self, leaf: Leaf, member_replies: Replies) -> Leaf:
        return replace(leaf, model=leaf.model + self._mean(member_replies))

    def _walk(
        self, state: SplitHalfState, walkers_asked: Mapping[Client, int], replies: Replies
    ) -> SplitHalfState:
        """Move the walkers of this exchange down one level; leaves that split in it are inner nodes now."""
        walked = walk(
            state.tree, walkers_asked, state.probed, replies.of(walkers_asked), self.level
        )
        # A merged leaf is part of another one.
        new_nodes = {}
        for client, node in walked.new_nodes.items():
            new_nodes[client] = state.merged.get(node, node)
        # Walkers have arrived if they are at a leaf now; the others walk on.
        walkers = dict(state.walkers)
        arrived = {}
        for client, node in new_nodes.items():
            if walked.tree.is_leaf(node):
                walkers.pop(client, None)
                arrived[client] = node
            else:
                walkers[client] = node
        # Walkers that differ from all branches begin new groups.
        new_leaves = []
        for node, model in walked.models.items():
            new_leaves.append(Leaf(node=node, clients=(), model=model))
        return replace(
            _with_new_schedules(state, walked.models, state.round),
            tree=walked.tree.place(new_nodes),
            leaves=ordered(join([*state.leaves, *new_leaves], arrived)),
            walkers=walkers,
            probed=walked.probed,
            notes=(*state.notes, *walked.notes),
        )

    def _end_round(self, new_state: SplitHalfState, state_before: SplitHalfState) -> SplitHalfState:
        """End a round: after a change of the groups postpone the next review; if a review is due, make it next."""
        new_state = replace(new_state, stage=self._first_stage)
        # Clients whose loss has risen in this round try other models first.
        if self._asks_with_training and new_state.risen:
            return replace(new_state, stage="offer-models")
        if not self.review_every:
            return new_state
        # A round that made or ended groups postpones the review.
        if {leaf.node for leaf in new_state.leaves} != {leaf.node for leaf in state_before.leaves}:
            return replace(
                new_state, review=(new_state.round + self.review_every, self.review_every)
            )
        if new_state.round >= new_state.review[0] and several(new_state):
            return replace(new_state, stage="review")
        return new_state

    # -- reviews
    # ---------------------------------------------------------------------------------------------------

    def _plan_review(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        # Clients of all groups train on halves from one model, so that their updates are comparable.
        max_asked = reviewers(state.leaves)
        asked_clients: list[Client] = []
        for leaf in state.leaves:
            if leaf.clients:
                asked_clients += sample(cohort, leaf.clients, max_asked[leaf.node])
        task = Task(offered=(0,), halves=True, training=self._training_of_halves(state))
        return Plan(
            models=middle(state.leaves)[None],
            tasks=dict.fromkeys(sorted(asked_clients), task),
            need="mean",
            columns=slice(0, state.tree.parameters),
            ends_round=False,
        )

    def _after_review(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        examples = state.examples if self.weighting == "data" else {}
        leaves, newly_merged, notes = reviewed(self.level, state.leaves, replies, examples)
        # A leaf that had merged before may have merged on, with the one that it was part of.
        all_merged = {}
        for node, destination in state.merged.items():
            all_merged[node] = newly_merged.get(destination, destination)
        all_merged |= newly_merged
        new_state = replace(
            state,
            stage=self._first_stage,
            leaves=ordered(leaves),
            tree=state.tree.place(nodes_of_clients(leaves)),
            merged=all_merged,
        )
        # Reviews that change nothing become rare, if enough clients answered to change something.
        changed_nodes = _changed_groups(state, new_state)
        has_quorum = 2 * len(replies.clients) >= sum(reviewers(state.leaves).values())
        interval = self.review_every
        if not changed_nodes:
            notes = [unchanged(leaves, replies, has_quorum)]
            if has_quorum:
                interval = 2 * state.review[1]
        new_state = replace(
            _with_new_schedules(new_state, changed_nodes, self._turn(state.round)),
            review=(state.round + interval, interval),
            notes=tuple(notes),
        )
        return with_left(new_state, state) if self.alert else new_state

    # -- alerts
    # ---------------------------------------------------------------------------------------------------

    def _plan_loss_check(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        """Ask clients for the loss of their group's model."""
        offered_rows = {}
        for row_number, leaf in enumerate(candidates(state)):
            sampled = cohort.sample(leaf.clients, self.fraction)
            offered_rows.update(dict.fromkeys(sampled, (row_number,)))
        return _loss_plan(state, offered_rows)

    def _plan_offers(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        """Ask clients whose loss rose for the losses of all models.

        The first draw is for those whose loss more than doubled: a model that serves a client badly
        may be little better.
        """
        of_groups = tuple(range(len(state.leaves)))
        with_first_draw = tuple(range(len(candidates(state))))
        misfits = _misfits(state)
        offered_rows = {}
        for client in sorted(set(state.risen) & set(cohort.present)):
            offered_rows[client] = with_first_draw if client in misfits else of_groups
        return _loss_plan(state, offered_rows)

    def _after_loss_check(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        """The state in which the clients whose loss rose measure other models next, and a review is due."""
        new_state = self._with_losses(state, replies)
        return replace(new_state, stage="offer-models" if new_state.risen else "train")

    def _with_losses(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        """The state with the clients' losses, and with those whose loss rose; if there are any, a review is due."""
        loss_report = loss_changes(replies, state.losses, state.usual_change)
        # Another model is better if it undoes more than half of the rise.
        risen = {
            client: loss_report.measured[client] - change / 2
            for client, change in loss_report.risen.items()
        }
        # Clients whose loss has risen try other models in the next exchange.
        new_state = replace(
            state,
            losses=with_entries(state.losses, loss_report.measured),
            usual_change=loss_report.usual_change,
            risen=risen,
        )
        if not risen:
            return new_state
        description = (
            f"the losses of {len(risen)} clients rose by more than {RISE_IN_USUAL_CHANGES:g} times "
            f"the usual change, {state.usual_change:.3g}"
        )
        largest_rise = max(loss_report.risen.values())
        note = Note(
            kind="alert",
            effect="info",
            clients=tuple(sorted(risen)),
            text=description,
            numbers={"rise": largest_rise, "usual": state.usual_change},
        )
        return replace(new_state, review=(state.round, self.review_every), notes=(note,))

    def _after_offers(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        """The state in which clients whose loss rose have the best model, if it is better; the groups of the others probe."""
        # 1. The best model of each client, if it undoes more than half of the rise.
        offered = candidates(state)
        node_before = nodes_of_clients(offered)
        new_nodes: dict[Client, int] = {}
        new_losses: dict[Client, float] = {}
        notes = []
        for client, client_losses in zip(replies.clients, replies.losses, strict=True):
            losses = np.nan_to_num(client_losses, nan=np.inf)
            if client in state.risen and losses.min() < state.risen[client]:
                new_node = offered[int(losses.argmin())].node
                new_loss = float(losses.min())
                new_nodes[client] = new_node
                new_losses[client] = new_loss
                notes.append(_offer_note(state, client, node_before[client], new_node, new_loss))
        # 2. These clients move to the group of that model; the first draw begins a new group.
        tree = state.tree
        if len(tree.nodes) in new_nodes.values():
            tree = tree.plant()
        node_after = node_before | new_nodes
        leaves = []
        for leaf in offered:
            if leaf.node < len(tree.nodes):
                leaves.append(replace(leaf, clients=clients_at(node_after, leaf.node)))
        new_state = replace(
            state,
            stage="train",
            leaves=ordered(leaves),
            tree=tree.place(new_nodes),
            risen={},
            notes=tuple(notes),
            losses=with_entries(state.losses, new_losses),
        )
        changed_nodes = _changed_groups(state, new_state)
        new_state = _with_new_schedules(new_state, changed_nodes, self._turn(state.round))
        # 3. The groups of clients that no model serves better probe in this round, unless a probe is
        #    under way.
        unhelped_nodes = set()
        for client in state.risen:
            if client in node_after and client not in new_nodes:
                unhelped_nodes.add(node_after[client])
        probing_nodes = []
        for node in unhelped_nodes:
            schedule = new_state.schedules[node]
            if schedule.evidence is None and schedule.long_probe is None:
                probing_nodes.append(node)
        new_state = _with_new_schedules(new_state, probing_nodes, state.round + 1)
        return with_left(new_state, state)


# ----------------------------------------------------------------------------------------------------
# States with other leaves or schedules.


def _with_leaves(state: SplitHalfState, *leaves: Leaf) -> SplitHalfState:
    """Add leaves."""
    return replace(state, leaves=(*state.leaves, *leaves))


def _with_schedules(
    state: SplitHalfState, schedules: Mapping[int, ProbeSchedule]
) -> SplitHalfState:
    """Replace the schedules of some leaves."""
    return replace(state, schedules={**state.schedules, **schedules})


def _with_new_schedules(
    state: SplitHalfState, nodes: Iterable[int], due_round: int
) -> SplitHalfState:
    """Begin the schedules of some leaves anew, with the first probe in ``due_round``."""
    return _with_schedules(state, dict.fromkeys(nodes, ProbeSchedule(due=due_round)))


def _changed_groups(state_before: SplitHalfState, state_after: SplitHalfState) -> list[int]:
    """Nodes of the groups whose members have changed."""
    members_before = members_of(state_before)
    changed_nodes = []
    for node, members in members_of(state_after).items():
        if members != members_before.get(node):
            changed_nodes.append(node)
    return changed_nodes


# ----------------------------------------------------------------------------------------------------
# Alerts: clients whose loss rose take another model.


def candidates(state: SplitHalfState) -> tuple[Leaf, ...]:
    """Return the groups whose models a client tries if its loss rose: all, and a new one that begins with the first draw."""
    if state.first is None:
        return state.leaves
    return (*state.leaves, Leaf(node=len(state.tree.nodes), clients=(), model=state.first))


def _loss_plan(state: SplitHalfState, offered_rows: Mapping[Client, tuple[int, ...]]) -> Plan:
    """Ask each client for the training losses of the candidates in these rows."""
    tasks = {}
    for client, offered in offered_rows.items():
        tasks[client] = Task(offered=offered, epochs=0, measure="train")
    return Plan(
        models=torch.stack([leaf.model for leaf in candidates(state)]),
        tasks=tasks,
        need="mean",
        ends_round=False,
    )


def with_left(new_state: SplitHalfState, state_before: SplitHalfState) -> SplitHalfState:
    """Keep the models of groups that all clients have left, of :data:`MAX_KEPT_GROUPS` at most, as groups without clients.

    Newcomers who would join such a group join the group to which most of its clients went.

    Args:
        new_state: the state after clients moved or groups merged.
        state_before: the state before.
    """
    node_of_client = nodes_of_clients(new_state.leaves)
    occupied = set(node_of_client.values())
    leaf_of_node = {leaf.node: leaf for leaf in new_state.leaves}
    merged = dict(new_state.merged)
    # A group that was left before may have clients again.
    left_nodes = [node for node in new_state.left if node not in occupied]
    for leaf in state_before.leaves:
        if not leaf.clients or leaf.node in occupied:
            continue
        # All clients have left this group just now. Newcomers for it, and for groups that were
        # merged with it, go where most of its clients went.
        destinations = Counter(node_of_client[client] for client in leaf.clients)
        ((destination, _),) = destinations.most_common(1)
        for node, merged_into in merged.items():
            if merged_into == leaf.node:
                merged[node] = destination
        merged[leaf.node] = destination
        left_nodes.append(leaf.node)
        leaf_of_node[leaf.node] = replace(leaf, clients=())
    # Of too many models without clients, those that were left first are forgotten.
    for node in left_nodes[:-MAX_KEPT_GROUPS]:
        leaf_of_node.pop(node, None)
    # A group that has clients again takes its own newcomers.
    for node in occupied:
        merged.pop(node, None)
    return replace(
        new_state,
        leaves=ordered(leaf_of_node.values()),
        merged=merged,
        left=tuple(left_nodes[-MAX_KEPT_GROUPS:]),
    )


def _offer_note(
    state: SplitHalfState, client: Client, node_before: int, node_after: int, loss: float
) -> Note:
    """Describe the move of a client whose loss rose to a node whose model has this ``loss``."""
    criteria = (
        Criterion(
            "loss with the other model",
            loss,
            "<",
            state.risen[client],
            met="it undoes more than half of the rise",
            key="other_loss",
        ),
    )
    is_new = node_after == len(state.tree.nodes)
    begins_text = ", which begins with the first draw" if is_new else ""
    moves_text = f"moves from node {node_before} to node {node_after}{begins_text}"
    return Note(
        kind="move",
        effect="moves",
        clients=(client,),
        text=f"client {client}, whose loss rose, {moves_text}: {tested(criteria)}",
        criteria=criteria,
        labels={"at": node_before, "node": node_after},
    )
