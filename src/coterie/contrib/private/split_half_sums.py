"""Split-half from sums: the groups of split-half, found by a server that sees sums over clients and never one of them.

Coterie's own, the method of :mod:`~coterie.methods.split_half` for secure aggregation
(:mod:`coterie.contrib.private.masks`). Every exchange asks for sums only: mean updates of groups,
and answers to questions about sketches of k numbers that stay at the clients
(:mod:`~coterie.contrib.private.cells`). The server learns which group's model a client takes, and
nothing else about it.

1. **Training.** Each group's mean update is a sum. So are histograms of the norms of updates, and
   of the numbers of examples: they give the scale of the sketches, and the steps of a probe.
2. **Probe.** Every ``probe_every`` rounds the members of a group train on two disjoint halves of
   their data, and keep sketches of both updates. The sums of their
   :class:`~coterie.contrib.private.moments.Moments` are enough for the spread test
   (:func:`~coterie.contrib.private.moments.congruence_from_sums`). A second probe, in the next round,
   has to confirm a difference. If few clients answer in a round, a probe lasts several rounds, as
   in split-half.
3. **Search.** At the beginning of the next round, without training, the group is cut along the axis
   on which its members differ most, by a histogram. Some steps of Lloyd's algorithm follow, in
   which the server learns the mean of each cell. A cell whose moments are incongruent is cut in
   turn. Then every member says which cell it is in, and each cell becomes a group. If few clients
   answer in a round, the group is cut at the mean instead.
4. **Newcomers**, and members that were silent in a search, train on halves from the model of the
   probe, and say which cell is theirs, from the root of the tree to a leaf. No update of theirs is
   sent.
5. **Moves.** Some rounds after a change of groups, and in reviews, all clients receive the models
   of all groups, and say which has the lowest loss on their training data, as in IFCA. That is
   where they belong from now on. So a client that noise has put in a wrong cell finds its group.
6. **Review.** ``review_every`` rounds after the last change all clients train on halves from one
   model, and two groups whose mean signals do not differ merge.

What differs from split-half, because sums do not show it: the test is that of the spread alone; a
group is searched by the sketches of its second probe; the parts of a group start from its model,
one round later; and a group has ``smallest`` members or more, because the sum of few says much
about each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.clustering import repeated_p
from coterie.clustering.congruence import Congruence, Contrast
from coterie.contrib.private.cells import CellQuestion, halved, question_of, sizes_of
from coterie.contrib.private.group_search import GroupSearch, SumsProbe, after_answer
from coterie.contrib.private.moments import Moments, congruence_from_sums, contrast_from_sums
from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Needs,
    Note,
    Plan,
    PrivateTask,
    Replies,
    Task,
    Training,
    as_groups,
    joined,
    state,
    without,
)
from coterie.methods._cluster_tree import Leaf, join, ordered
from coterie.methods._decisions import KeepWhole
from coterie.methods._half_steps import Probing, of_equal_steps
from coterie.methods._leavers import entries_without
from coterie.methods._split_half_probes import (
    ENOUGH_CLIENTS,
    ENOUGH_SHARE,
    HALF_STEPS_IN_ROUNDS,
    MIN_P_OF_NO_DIFFERENCE,
    ProbeAgain,
    differ,
    group_note,
)
from coterie.methods._split_half_reviews import MIN_P_OF_ONE_GROUP, middle, same_group
from coterie.settings import check, setting

ROUNDS_BEFORE_MOVES = 3
"""Rounds after a change of groups after which their models are good enough to choose by."""

SCALE_IN_NORMS = 4.0
"""The scale of sketches, in the greatest norm of an update in a round: a half makes more steps, and
noise is longer."""


@state("split-half-sums.branch")
class Branch:
    """A group that was divided.

    Attributes:
        children: the groups or branches that it became, one for each cell.
        model: ``(d,)``, the model from which its members trained in the probe.
        last_model: ``(d,)``, its model when it was divided, which serves clients that are in no
            cell yet.
        steps: mini-batch steps on each half.
        round: number of rounds completed when the probe began.
        scale: the scale of the sketches.
        centres: ``(m, k)``, the centres of the cells.
        sketched: clients that have sketches of this probe, and are in no cell yet.
    """

    children: tuple[int, ...]
    model: torch.Tensor
    last_model: torch.Tensor
    steps: int
    round: int
    scale: float
    centres: torch.Tensor
    sketched: tuple[Client, ...] = ()

    @property
    def cell_question(self) -> CellQuestion:
        """The question in which cell a client is."""
        return CellQuestion(ask="cell", scale=self.scale, centres=self.centres.numpy())


@state("split-half-sums.watch")
class SumsSchedule:
    """Schedule of a group's probes.

    Attributes:
        due: round of the next probe.
        calm: number of probes in a row that showed no difference.
        unconfirmed: p-value of the last probe, if the next one is to confirm it, and its number of
            clients.
        probe: the current probe, if it lasts several rounds.
    """

    due: int
    calm: int = 0
    unconfirmed: tuple[float, int] | None = None
    probe: SumsProbe | None = None


@dataclass(frozen=True)
class SearchGroups:
    """The members are searched for groups, with the sums of this probe."""


@dataclass(frozen=True)
class SumsDecision:
    """What follows from a probe of a group, and why.

    Attributes:
        action: what follows.
        test: the test of this probe.
        criterion: the comparison that was made.
        why: what follows, in words.
        otherwise: what would have happened if the criterion had come out differently.
    """

    action: KeepWhole | ProbeAgain | SearchGroups
    test: Congruence
    criterion: Criterion
    why: str = ""
    otherwise: str = ""

    def describe(self, group: Leaf) -> Note:
        """Describe the decision."""
        note_kind = "hold" if isinstance(self.action, ProbeAgain) else "keep"
        note_text = f"{self.criterion.text}; {self.why}" if self.why else self.criterion.text
        return group_note(group, note_kind, note_text, self.test, self.criterion, self.otherwise)


Stage = Literal["search", "place", "review", "move", "train"]


@state("split-half-sums")
class SplitHalfSumsState:
    """State of split-half from sums.

    Attributes:
        round: number of rounds completed.
        stage: what the next exchange is for.
        groups: the groups.
        branches: node -> the group that was divided.
        walkers: client -> the branch where it is.
        watched: node of a group -> schedule of its probes.
        searches: node of a group -> the search for its cells.
        merged: node of a group that was merged -> node of the one that it became part of.
        parameters: number of columns of the sketches.
        k: numbers of a sketch.
        norm: bound on the norms of updates in the last round; 0 if unknown.
        size: median number of training examples; 0 if unknown.
        answered: share of the clients that answered in the last round, of those that were asked.
        review: the round after which the next review comes, and the current interval between
            reviews, in rounds.
        moves: the round after which clients choose among the groups next.
        settled: clients that have chosen since.
        training: the experiment's training settings.
        notes: notes of the last exchange.
    """

    round: int
    stage: Stage = "train"
    groups: tuple[Leaf, ...]
    branches: Mapping[int, Branch] = field(default_factory=dict)
    walkers: Mapping[Client, int] = field(default_factory=dict)
    watched: Mapping[int, SumsSchedule] = field(default_factory=dict)
    searches: Mapping[int, GroupSearch] = field(default_factory=dict)
    merged: Mapping[int, int] = field(default_factory=dict)
    parameters: int
    k: int
    norm: float = 0.0
    size: float = 0.0
    answered: float = 1.0
    review: tuple[int, int] = (0, 0)
    moves: int = 0
    settled: tuple[Client, ...] = ()
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    @property
    def next_node(self) -> int:
        """The number of the next new group."""
        return 1 + max([*(group.node for group in self.groups), *self.branches, *self.merged])

    @property
    def has_several_groups(self) -> bool:
        """Whether there are at least two groups with clients."""
        return sum(bool(group.clients) for group in self.groups) > 1


@dataclass(frozen=True, kw_only=True)
class SplitHalfSums(Probing):
    """Split-half for secure aggregation: finds groups from sums over clients, and never sees one of them."""

    name: ClassVar[str] = "split-half-sums"

    sketch: int = setting(
        128,
        "numbers of a sketch (k); an answer in a test round has about k² numbers",
        ge=4,
        le=1024,
        multiple=4,
    )
    smallest: int = setting(
        3, "clients of the smallest group; sums of one or two show each of them to the other", ge=1
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("losses", "halves", "questions"),
            occasional=("several-tasks", "model-choice", "training"),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> SplitHalfSumsState:
        first_group = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        return SplitHalfSumsState(
            round=0,
            groups=(first_group,),
            watched={0: SumsSchedule(due=self.first_probe)},
            k=min(self.sketch, federation.parameters.stop),
            parameters=federation.parameters.stop,
            training=federation.training,
        )

    def plan(self, state: SplitHalfSumsState, cohort: Cohort) -> Plan:
        present_clients = set(cohort.present)
        offered_models = [group.model for group in state.groups]
        match state.stage:
            case "search":
                client_tasks = _search_tasks(state, present_clients)
            case "place":
                client_tasks = _placement_tasks(state, present_clients)
            case "review":
                filled_groups = [group for group in state.groups if group.clients]
                offered_models = [middle(filled_groups)] * len(offered_models)
                client_tasks = self._review_tasks(state, present_clients)
            case "move":
                client_tasks = _move_tasks(state, present_clients)
            case _:
                client_tasks = self._training_tasks(state, cohort)
                offered_models += [extra_model for _, extra_model in _extra_rows(state).values()]
        # Sketches cost time: make them only for tasks that use them.
        needs_sketches = False
        for task in client_tasks.values():
            question = question_of(task)
            if task.halves or (question is not None and question.ask != "sizes"):
                needs_sketches = True
        return Plan(
            models=torch.stack(offered_models),
            tasks=client_tasks,
            need="sums",
            columns=slice(0, state.parameters),
            sketch=self.sketch if needs_sketches else None,
            weighting=self.weighting,
            ends_round=state.stage == "train",
        )

    def _training_tasks(self, state: SplitHalfSumsState, cohort: Cohort) -> dict[Client, Task]:
        """The tasks of the exchange that ends a round.

        The rows of the plan are the groups' models, then those of :func:`_extra_rows`.
        """
        present_clients = set(cohort.present)
        extra_rows = _extra_rows(state)
        client_tasks: dict[Client, Task] = {}
        for group_row, group in enumerate(state.groups):
            if not group.clients:
                continue
            probe = state.watched[group.node].probe
            if probe is None and self.probes(state, group):
                # All members are asked: too few would not separate groups.
                task = self._probe_task(state, group_row)
                client_tasks |= dict.fromkeys(cohort.sample(group.clients, 1.0), task)
                continue
            # A usual round: the group's model, and histograms of norms and numbers of examples.
            usual_task = Task(
                offered=(group_row,), private=PrivateTask(question=CellQuestion(ask="sizes"))
            )
            client_tasks |= dict.fromkeys(cohort.sample(group.clients, self.fraction), usual_task)
            if probe is not None:
                # The probe lasts: those who have not answered train from the same model as the others.
                task = Task(
                    offered=(extra_rows["probe", group.node][0],),
                    halves=True,
                    training=replace(state.training, steps=probe.steps),
                    lr_round=probe.round,
                    private=PrivateTask(question=CellQuestion(ask="moments", scale=probe.scale)),
                )
                waiting_members = (present_clients & set(group.clients)) - set(probe.answered)
                client_tasks |= dict.fromkeys(sorted(waiting_members), task)
        # Walkers train on halves from the model of their branch, and send nothing.
        for client in sorted(present_clients & set(state.walkers)):
            branch_node = state.walkers[client]
            branch = state.branches[branch_node]
            if client not in branch.sketched:
                client_tasks[client] = Task(
                    offered=(extra_rows["branch", branch_node][0],),
                    halves=True,
                    training=replace(state.training, steps=branch.steps),
                    lr_round=branch.round,
                    private=PrivateTask(sends_update=False),
                )
        return dict(sorted(client_tasks.items()))

    def _probe_task(self, state: SplitHalfSumsState, group_row: int) -> Task:
        moments_question = CellQuestion(ask="moments", scale=SCALE_IN_NORMS * state.norm)
        return Task(
            offered=(group_row,),
            halves=True,
            training=self._probing(state),
            private=PrivateTask(question=moments_question),
        )

    def _review_tasks(
        self, state: SplitHalfSumsState, present_clients: set[Client]
    ) -> dict[Client, Task]:
        """All clients train on halves from one model, and their updates do not count."""
        client_tasks: dict[Client, Task] = {}
        for group_row, group in enumerate(state.groups):
            review_task = self._probe_task(state, group_row)
            review_task = replace(
                review_task, private=replace(review_task.private, sends_update=False)
            )
            client_tasks |= dict.fromkeys(sorted(present_clients & set(group.clients)), review_task)
        return client_tasks

    def probes(self, state: SplitHalfSumsState, group: Leaf) -> bool:
        """Return whether a group probes in the next round: it is due, and large enough to be divided."""
        is_large = len(group.clients) >= max(2, 2 * self.smallest)
        return is_large and state.norm > 0 and state.round + 1 >= state.watched[group.node].due

    def _lasts(self, state: SplitHalfSumsState, group: Leaf) -> bool:
        """Return whether a group's probe lasts several rounds: too few would answer in the next one alone."""
        if not self.probes(state, group):
            return False
        if state.watched[group.node].probe is not None:
            return True
        # A sample of the members answers in each round. The probe needs enough of them.
        client_count = len(group.clients)
        return state.answered * client_count < min(ENOUGH_SHARE * client_count, ENOUGH_CLIENTS)

    def _probing(self, state: SplitHalfSumsState) -> Training:
        """The training settings of every half."""
        round_training = state.training
        if self.steps is not None:
            return replace(round_training, steps=self.steps)
        # Both halves make the same number of steps at every client, so that their noise is
        # comparable.
        example_counts = [round(state.size)] if state.size else []
        return of_equal_steps(round_training, example_counts, HALF_STEPS_IN_ROUNDS) or replace(
            round_training, steps=max(1, round_training.epochs)
        )

    def step(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        state = replace(state, notes=())
        match state.stage:
            case "search":
                new_state = self._searched(state, replies)
            case "place":
                new_state = _placed(state, replies)
            case "review":
                new_state = self._reviewed(state, replies)
            case "move":
                new_state = self._moved(state, replies)
            case _:
                new_state = self._trained(state, replies)
        return replace(new_state, stage=self._next_stage(state.stage, new_state))

    def _next_stage(self, done_stage: Stage, state: SplitHalfSumsState) -> Stage:
        """What the next exchange is for. Within a round the stages follow each other in this order."""
        if done_stage in ("train", "search") and state.searches:
            return "search"
        # Walkers that have trained on halves can be asked for their cell.
        has_sketched_walkers = any(
            client in state.branches[node].sketched for client, node in state.walkers.items()
        )
        if done_stage in ("train", "search") and has_sketched_walkers:
            return "place"
        has_several_groups = state.has_several_groups
        # A review trains all clients from one model, and needs a scale of the sketches.
        review_due = self.review_every and state.round >= state.review[0]
        if (
            done_stage in ("train", "search", "place")
            and review_due
            and has_several_groups
            and state.norm > 0
        ):
            return "review"
        if done_stage != "move" and has_several_groups and state.round >= state.moves:
            return "move"
        return "train"

    # -- a round of training
    # ----------------------------------------------------------------------------------------------

    def _trained(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after a round of training: new models, and the decisions of probes that end."""
        answering_clients = set(replies.clients)
        extra_rows = _extra_rows(state)
        # Without a reply there are no counts.
        client_counts = replies.mean_counts
        if client_counts is None:
            client_counts = np.zeros(len(replies.mean_updates))
        # Each group gets its mean update, and each probe the answers of this round.
        new_state = _with_sizes(replace(state, round=state.round + 1, groups=()), state, replies)
        for group_row, group in enumerate(state.groups):
            probe = state.watched[group.node].probe
            trained_mean = (
                replies.mean_updates[group_row] + group.model,
                int(client_counts[group_row]),
            )
            probe_row = group_row
            if probe is not None:
                # Some members have trained from the model of the probe, and count as well.
                probe_row = extra_rows["probe", group.node][0]
                probed_mean = (
                    replies.mean_updates[probe_row] + probe.model,
                    int(client_counts[probe_row]),
                )
                trained_mean = _weighted_mean(trained_mean, probed_mean)
            mean_model, trained_count = trained_mean
            new_group = replace(group, model=mean_model if trained_count else group.model)
            new_state = replace(new_state, groups=(*new_state.groups, new_group))
            if not self.probes(state, group):
                continue
            if probe is None:
                probe = SumsProbe(
                    model=group.model,
                    steps=self._probing(state).steps or 1,
                    round=state.round,
                    scale=SCALE_IN_NORMS * state.norm,
                    sums=torch.zeros(0, dtype=torch.float64),
                )
            probe_sums = replies.sums.by_row.get(probe_row)
            probe = probe.with_answers(answering_clients & set(group.clients), probe_sums)
            new_state = self._probed(new_state, group, probe, self._lasts(state, group))
        new_state = _with_sketched_walkers(new_state, answering_clients)
        # The share of the clients that answer decides whether the next probe lasts several rounds.
        client_count = sum(len(group.clients) for group in state.groups) + len(state.walkers)
        asked_count = max(1.0, self.fraction * client_count)
        return replace(new_state, answered=min(1.0, len(replies.clients) / asked_count))

    def _probed(
        self, state: SplitHalfSumsState, group: Leaf, probe: SumsProbe, probe_lasts: bool
    ) -> SplitHalfSumsState:
        """The state after a round in which a group probed."""
        schedule = state.watched[group.node]
        if probe_lasts and not probe.ends(group.clients, state.round):
            schedule = replace(schedule, probe=probe, due=state.round + 1)
            return replace(state, watched={**state.watched, group.node: schedule})
        # The probe ends: decide, schedule the next one, and begin a search if both probes differ.
        decision = self._decide_probe(probe, schedule, state.k)
        schedule = self._next_probe(schedule, decision, state.round)
        state = replace(state, watched={**state.watched, group.node: schedule})
        if decision is None:
            return state
        probe_note = decision.describe(group)
        if not isinstance(decision.action, SearchGroups):
            return replace(state, notes=(*state.notes, probe_note))
        # A search begins with one cell, the whole group.
        group_moments = Moments.from_vector(probe.sums.numpy(), state.k)
        group_centre = torch.from_numpy(group_moments.total / group_moments.count)[None]
        group_search = GroupSearch(
            probe=probe,
            note=probe_note,
            centres=group_centre,
            before=group_centre,
            moments=probe.sums[None],
        )
        if probe_lasts:
            # A question would be answered by few: cut at the mean, and let clients move later.
            group_search = replace(
                group_search, stage="cell", centres=torch.from_numpy(halved(group_moments))
            )
        return replace(state, searches={**state.searches, group.node: group_search})

    def _decide_probe(
        self, probe: SumsProbe, schedule: SumsSchedule, k: int
    ) -> SumsDecision | None:
        """Test the members of a group, from the sums of its probe; None if too few answered."""
        if not len(probe.sums):
            return None
        # The spread test, from the sums of the members' moments.
        spread_test = congruence_from_sums(Moments.from_vector(probe.sums.numpy(), k))
        if spread_test.clients < 2:
            return None
        if schedule.unconfirmed is None:
            # The first of two probes: as if a second probe had the same p.
            p = repeated_p(spread_test.p, spread_test.p, spread_test.clients)
            criterion = differ("p if seen twice", p, self.level, spread_test.clients)
            next_step = "tested again in the next round, for confirmation"
            if criterion.held:
                otherwise = f"it would not have been {next_step}"
                return SumsDecision(ProbeAgain(), spread_test, criterion, next_step, otherwise)
            otherwise = f"it would have been {next_step}"
            return SumsDecision(KeepWhole(), spread_test, criterion, otherwise=otherwise)
        # The second of two probes. It counts only if enough clients have answered.
        first_p, first_count = schedule.unconfirmed
        if 2 * spread_test.clients < first_count:
            return None
        p = repeated_p(first_p, spread_test.p, clients=min(first_count, spread_test.clients))
        criterion = differ("p of two probes", p, self.level, spread_test.clients)
        otherwise = "its members would have been searched for groups"
        next_action = SearchGroups() if criterion.held else KeepWhole()
        return SumsDecision(next_action, spread_test, criterion, otherwise=otherwise)

    def _next_probe(
        self, schedule: SumsSchedule, decision: SumsDecision | None, completed_round: int
    ) -> SumsSchedule:
        """Schedule the next probe of a group: in the next round if a finding is to be confirmed, else later."""
        if decision is None:
            due_round = (
                self._turn(completed_round) if schedule.unconfirmed is None else completed_round + 1
            )
            return replace(schedule, due=due_round, probe=None)
        spread_test = decision.test
        if isinstance(decision.action, ProbeAgain):
            return SumsSchedule(
                due=completed_round + 1, unconfirmed=(spread_test.p, spread_test.clients)
            )
        calm_probes = schedule.calm + 1 if spread_test.p > MIN_P_OF_NO_DIFFERENCE else 0
        return SumsSchedule(due=self._later(completed_round, calm_probes), calm=calm_probes)

    # -- a search
    # ---------------------------------------------------------------------------------------------------------

    def _searched(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after the members of groups have answered a question of a search."""
        new_state = replace(state, searches={})
        for group_row, group in enumerate(state.groups):
            group_search = state.searches.get(group.node)
            if group_search is None:
                continue
            if group_search.stage == "cell":
                new_state = self._divided(new_state, group, group_search, replies.sums.cells)
                continue
            answer_sums = replies.sums.by_row.get(group_row)
            next_search = after_answer(group_search, answer_sums, self.smallest, self.level)
            if next_search is None:
                note_text = f"{group_search.note.text}; but no cut of its members was found"
                failure_note = replace(group_search.note, text=note_text, otherwise="")
                new_state = replace(new_state, notes=(*new_state.notes, failure_note))
            else:
                searches = {**new_state.searches, group.node: next_search}
                new_state = replace(new_state, searches=searches)
        return new_state

    def _divided(
        self,
        state: SplitHalfSumsState,
        group: Leaf,
        group_search: GroupSearch,
        cell_of_client: Mapping[Client, int],
    ) -> SplitHalfSumsState:
        """The state after the members of a group have said which cell is theirs.

        Args:
            state: The state.
            group: The group.
            group_search: Its search.
            cell_of_client: Client -> its cell.
        """
        # The members of each cell, of those that have answered.
        clients_of_cell: list[list[Client]] = [[] for _ in group_search.centres]
        for client, cell_number in sorted(cell_of_client.items()):
            if client in group.clients and cell_number < len(clients_of_cell):
                clients_of_cell[cell_number].append(client)
        used_cells = [cell_number for cell_number, clients in enumerate(clients_of_cell) if clients]
        cell_sizes = [len(clients_of_cell[cell_number]) for cell_number in used_cells]
        # As large as the smallest cell would be if all members had answered.
        smallest_cell = min(cell_sizes, default=0) * len(group.clients) / max(sum(cell_sizes), 1)
        if len(used_cells) < 2 or smallest_cell < self.smallest - 0.5:
            failure_note = replace(
                group_search.note, text=f"{group_search.note.text}; but too few have answered"
            )
            return replace(state, notes=(*state.notes, failure_note))
        # Each used cell becomes a group.
        first_node = state.next_node
        children = {
            first_node + cell_position: tuple(clients_of_cell[cell_number])
            for cell_position, cell_number in enumerate(used_cells)
        }
        # Members that have not answered walk from the branch to a group.
        silent_members = set(group.clients).difference(*children.values())
        search_probe = group_search.probe
        new_branch = Branch(
            children=tuple(children),
            model=search_probe.model,
            last_model=group.model,
            steps=search_probe.steps,
            round=search_probe.round,
            scale=search_probe.scale,
            centres=group_search.centres[used_cells],
            sketched=tuple(sorted(silent_members & set(search_probe.answered))),
        )
        # The parts start from the group's model.
        other_groups = [other for other in state.groups if other.node != group.node]
        new_groups = [
            Leaf(node=node, clients=clients, model=group.model)
            for node, clients in children.items()
        ]
        group_schedules = {
            node: group_schedule
            for node, group_schedule in state.watched.items()
            if node != group.node
        }
        group_schedules |= {node: SumsSchedule(due=self._turn(state.round)) for node in children}
        return replace(
            state,
            groups=ordered([*other_groups, *new_groups]),
            branches={**state.branches, group.node: new_branch},
            walkers={**state.walkers, **dict.fromkeys(sorted(silent_members), group.node)},
            watched=group_schedules,
            notes=(
                *state.notes,
                _split_note(group_search.note, group.node, children, len(silent_members)),
            ),
            review=(state.round + self.review_every, self.review_every),
            moves=state.round + ROUNDS_BEFORE_MOVES,
            settled=(),
        )

    # -- reviews and moves
    # ------------------------------------------------------------------------------------------------

    def _reviewed(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after all clients have trained from one model: groups merge whose means do not differ."""
        # Of groups of which half the members or more have answered.
        sums_of_group: dict[int, Moments] = {}
        for group_row, group in enumerate(state.groups):
            answer_sums = replies.sums.by_row.get(group_row)
            if answer_sums is not None and 2 * answer_sums[0] >= len(group.clients):
                sums_of_group[group.node] = Moments.from_vector(answer_sums, state.k)
        new_state = state
        groups_merged = False
        # Merge the nearest two groups, until all differ.
        while equal_pair := _nearest_equal_groups(sums_of_group):
            groups_merged = True
            staying_node, ending_node, criterion = equal_pair
            new_state = _merged(new_state, staying_node, ending_node, criterion)
            sums_of_group[staying_node] = sums_of_group[staying_node] + sums_of_group.pop(
                ending_node
            )
            schedule = SumsSchedule(due=self._turn(new_state.round))
            new_state = replace(new_state, watched={**new_state.watched, staying_node: schedule})
        if not new_state.notes:
            new_state = replace(new_state, notes=(_unchanged(new_state, sums_of_group),))
        # Reviews that change nothing become rare.
        interval = self.review_every if groups_merged else 2 * state.review[1]
        return replace(
            new_state,
            review=(new_state.round + interval, interval),
            moves=new_state.round,
            settled=(),
        )

    def _moved(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after clients have chosen the group whose model has the lowest loss on their data."""
        # Clients whose model of lowest loss is that of another group want to move.
        row_of_client: dict[Client, int] = {}
        for group_row, group in enumerate(state.groups):
            row_of_client |= dict.fromkeys(group.clients, group_row)
        chosen_row = {
            client: chosen_rows[0]
            for client, chosen_rows in zip(replies.clients, replies.chosen, strict=True)
        }
        new_row = {
            client: group_row
            for client, group_row in chosen_row.items()
            if group_row != row_of_client[client]
        }
        # All stay in a group of which too few would be left.
        for group_row, group in enumerate(state.groups):
            leaving = [client for client in new_row if row_of_client[client] == group_row]
            if leaving and len(group.clients) - len(leaving) < self.smallest:
                for client in leaving:
                    del new_row[client]
        if not new_row:
            settled_clients = joined(state.settled, chosen_row)
            if len(settled_clients) < ENOUGH_SHARE * len(row_of_client):
                return replace(state, settled=settled_clients)
            # Most clients have chosen, and belong where they are.
            next_moves = state.review[0] if self.review_every else state.round + self.probe_every
            return replace(state, moves=next_moves, settled=())
        # Move them, with a note for each, and test the changed groups anew.
        node_of_row = [group.node for group in state.groups]
        move_notes = []
        changed_nodes = set()
        for client, group_row in sorted(new_row.items()):
            old_node = node_of_row[row_of_client[client]]
            changed_nodes |= {old_node, node_of_row[group_row]}
            move_notes.append(_move_note(client, old_node, node_of_row[group_row]))
        remaining_groups = [
            replace(group, clients=without(group.clients, new_row)) for group in state.groups
        ]
        new_nodes = {client: node_of_row[group_row] for client, group_row in new_row.items()}
        schedule = SumsSchedule(due=self._turn(state.round))
        return replace(
            state,
            groups=ordered(join(remaining_groups, new_nodes)),
            watched={**state.watched, **dict.fromkeys(changed_nodes, schedule)},
            review=(state.round + self.review_every, self.review_every),
            moves=state.round + ROUNDS_BEFORE_MOVES,
            settled=(),
            notes=(*state.notes, *move_notes),
        )

    # -- what serves clients, and clients that come and go
    # -----------------------------------------------------------------

    def assignment(self, state: SplitHalfSumsState) -> Assignment:
        # Walkers are served by the last model of the branch where they are.
        branch_nodes = sorted(set(state.walkers.values()))
        serving_models = [group.model for group in state.groups]
        serving_models += [state.branches[branch_node].last_model for branch_node in branch_nodes]
        served_nodes = [*(group.node for group in state.groups), *branch_nodes]
        row_of_node = {node: row_number for row_number, node in enumerate(served_nodes)}
        node_of_client = dict(state.walkers)
        for group in state.groups:
            node_of_client |= dict.fromkeys(group.clients, group.node)
        served_groups = [group.clients for group in state.groups if group.clients]
        for branch_node in branch_nodes:
            waiting = [walker for walker, node in state.walkers.items() if node == branch_node]
            served_groups.append(tuple(waiting))
        return Assignment(
            models=torch.stack(serving_models),
            row={client: row_of_node[node] for client, node in sorted(node_of_client.items())},
            groups=as_groups(served_groups),
        )

    def admit(self, state: SplitHalfSumsState, clients: tuple[Client, ...]) -> SplitHalfSumsState:
        # Newcomers walk down from the root of the tree, if there is a tree.
        if 0 in state.branches:
            return replace(state, walkers={**state.walkers, **dict.fromkeys(clients, 0)})
        node_of_newcomer = dict.fromkeys(clients, _current_node(state, 0))
        return replace(state, groups=ordered(join(state.groups, node_of_newcomer)))

    def retire(self, state: SplitHalfSumsState, clients: tuple[Client, ...]) -> SplitHalfSumsState:
        # The sums of a probe keep what a client has added to them: nobody can take it out again.
        retired_clients = set(clients)
        groups = [
            replace(group, clients=without(group.clients, retired_clients))
            for group in state.groups
        ]
        branches = {
            node: replace(branch, sketched=without(branch.sketched, retired_clients))
            for node, branch in state.branches.items()
        }
        walkers = entries_without(state.walkers, retired_clients)
        return replace(state, groups=ordered(groups), walkers=walkers, branches=branches)

    def explain(self, state: SplitHalfSumsState) -> tuple[Note, ...]:
        return state.notes


# -- tasks
# ----------------------------------------------------------------------------------------------------------------


def _search_tasks(state: SplitHalfSumsState, present_clients: set[Client]) -> dict[Client, Task]:
    """The members of groups that are searched, as far as they have sketches, answer a question."""
    client_tasks: dict[Client, Task] = {}
    for group_row, group in enumerate(state.groups):
        group_search = state.searches.get(group.node)
        if group_search is not None:
            search_task = Task(
                offered=(group_row,), epochs=0, private=PrivateTask(question=group_search.question)
            )
            sketched_members = (
                present_clients & set(group.clients) & set(group_search.probe.answered)
            )
            client_tasks |= dict.fromkeys(sorted(sketched_members), search_task)
    return client_tasks


def _placement_tasks(state: SplitHalfSumsState, present_clients: set[Client]) -> dict[Client, Task]:
    """Walkers with sketches say in which cell of their branch they are."""
    client_tasks: dict[Client, Task] = {}
    for client in sorted(present_clients & set(state.walkers)):
        branch = state.branches[state.walkers[client]]
        if client in branch.sketched:
            private_task = PrivateTask(question=branch.cell_question)
            client_tasks[client] = Task(offered=(0,), epochs=0, private=private_task)
    return client_tasks


def _move_tasks(state: SplitHalfSumsState, present_clients: set[Client]) -> dict[Client, Task]:
    """The members of groups that have not done so yet choose among the models of all groups."""
    group_rows = tuple(group_row for group_row, group in enumerate(state.groups) if group.clients)
    group_members = {client for group in state.groups for client in group.clients}
    choosing_clients = (present_clients & group_members) - set(state.settled)
    return dict.fromkeys(sorted(choosing_clients), Task(offered=group_rows, epochs=0))


def _extra_rows(state: SplitHalfSumsState) -> dict[tuple[str, int], tuple[int, torch.Tensor]]:
    """The models of a plan behind those of the groups: of probes that last, and of branches with walkers.

    Returns:
        (``"probe"`` or ``"branch"``, node) -> its row in the plan, and the model.
    """
    # Probes that last, and branches whose walkers train on halves.
    extra_models: dict[tuple[str, int], torch.Tensor] = {}
    for node, schedule in state.watched.items():
        if schedule.probe is not None:
            extra_models["probe", node] = schedule.probe.model
    for node in sorted(set(state.walkers.values())):
        extra_models["branch", node] = state.branches[node].model
    first_row = len(state.groups)
    return {
        model_key: (row_number, extra_model)
        for row_number, (model_key, extra_model) in enumerate(extra_models.items(), first_row)
    }


# -- after training
# -------------------------------------------------------------------------------------------------------


_SIZES_LENGTH = CellQuestion(ask="sizes").length(1)


def _with_sizes(
    new_state: SplitHalfSumsState, state: SplitHalfSumsState, replies: Replies
) -> SplitHalfSumsState:
    """The new state with a bound on the norms of updates, and the median number of examples, if clients were asked."""
    # Answers about sizes have another length than those about moments.
    size_answers = []
    for group_row in range(len(state.groups)):
        answer_sums = replies.sums.by_row.get(group_row)
        if answer_sums is not None and len(answer_sums) == _SIZES_LENGTH:
            size_answers.append(answer_sums)
    if not size_answers:
        return new_state
    norm_bound, median_examples = sizes_of(np.sum(size_answers, axis=0))
    return replace(new_state, norm=norm_bound, size=median_examples)


def _with_sketched_walkers(
    state: SplitHalfSumsState, answering_clients: set[Client]
) -> SplitHalfSumsState:
    """The state in which the walkers that answered have sketches."""
    branches = dict(state.branches)
    for client in sorted(answering_clients & set(state.walkers)):
        branch_node = state.walkers[client]
        sketched_walkers = joined(branches[branch_node].sketched, [client])
        branches[branch_node] = replace(branches[branch_node], sketched=sketched_walkers)
    return replace(state, branches=branches)


def _weighted_mean(
    first_mean: tuple[torch.Tensor, int], second_mean: tuple[torch.Tensor, int]
) -> tuple[torch.Tensor, int]:
    """The mean of two models, weighted by the numbers of clients whose means they are."""
    first_model, first_count = first_mean
    second_model, second_count = second_mean
    total_count = first_count + second_count
    mean_model = (first_count * first_model + second_count * second_model) / max(total_count, 1)
    return mean_model, total_count


# -- walkers
# --------------------------------------------------------------------------------------------------------------


def _placed(state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
    """The state after walkers have said which cell is theirs."""
    for client in replies.clients:
        branch_node = state.walkers[client]
        branch = state.branches[branch_node]
        branch = replace(branch, sketched=without(branch.sketched, [client]))
        state = replace(state, branches={**state.branches, branch_node: branch})
        client_cell = replies.sums.cells.get(client)
        # A client whose sketches are lost trains again.
        if client_cell is None:
            continue
        child_node = _current_node(state, branch.children[client_cell])
        # The walker joins a group, or goes on at the next branch.
        is_group = child_node not in state.branches
        walkers = entries_without(state.walkers, {client})
        if is_group:
            state = replace(state, groups=ordered(join(state.groups, {client: child_node})))
        else:
            walkers = {**state.walkers, client: child_node}
        walk_note = _walk_note(client, branch_node, child_node, is_group)
        state = replace(state, walkers=walkers, notes=(*state.notes, walk_note))
    return state


def _current_node(state: SplitHalfSumsState, node: int) -> int:
    """The node that a node has become part of by merging, or itself."""
    while node in state.merged:
        node = state.merged[node]
    return node


# -- merges
# ---------------------------------------------------------------------------------------------------------------


def _contrasts(sums_of_group: Mapping[int, Moments]) -> list[tuple[Contrast, int, int]]:
    """All pairs of groups, and how their mean signals differ; the effective dimension of noise is that of all groups."""
    # The noise of all groups together is better known than that of two.
    contrasts = []
    for first_node, second_node in combinations(sums_of_group, 2):
        other_sums = [
            group_sums
            for node, group_sums in sums_of_group.items()
            if node not in (first_node, second_node)
        ]
        contrast = contrast_from_sums(
            sums_of_group[first_node], sums_of_group[second_node], other_sums
        )
        contrasts.append((contrast, first_node, second_node))
    return contrasts


def _nearest_equal_groups(
    sums_of_group: Mapping[int, Moments],
) -> tuple[int, int, Criterion] | None:
    """The nearest two groups of those whose mean signals do not differ, and the criterion; None if there are none."""
    equal_pairs = [pair for pair in _contrasts(sums_of_group) if pair[0].p > MIN_P_OF_ONE_GROUP]
    if not equal_pairs:
        return None
    contrast, first_node, second_node = min(equal_pairs, key=lambda pair: pair[0].distance)
    return first_node, second_node, same_group(contrast.p)


def _merged(
    state: SplitHalfSumsState, staying_node: int, ending_node: int, criterion: Criterion
) -> SplitHalfSumsState:
    """Merge two groups into the first, with the mean of their models by clients."""
    # The first group stays, with the members of both.
    group_of_node = {group.node: group for group in state.groups}
    staying_group = group_of_node.pop(staying_node)
    ending_group = group_of_node.pop(ending_node)
    merged_model, _ = _weighted_mean(
        (staying_group.model, len(staying_group.clients)),
        (ending_group.model, len(ending_group.clients)),
    )
    merged_clients = joined(staying_group.clients, ending_group.clients)
    merge_note = Note(
        kind="merge",
        effect="merges",
        clients=merged_clients,
        text=criterion.text,
        criteria=(criterion,),
        labels={"node": staying_node, "other_node": ending_node},
    )
    merged_group = Leaf(node=staying_node, clients=merged_clients, model=merged_model)
    return replace(
        state,
        groups=ordered([merged_group, *group_of_node.values()]),
        merged={**state.merged, ending_node: staying_node},
        watched={node: schedule for node, schedule in state.watched.items() if node != ending_node},
        notes=(*state.notes, merge_note),
    )


# -- notes
# ----------------------------------------------------------------------------------------------------------------


def _split_note(
    search_note: Note,
    group_node: int,
    children: Mapping[int, tuple[Client, ...]],
    silent_count: int,
) -> Note:
    """Describe the division of a group; ``search_note`` has the reasons for its search."""
    note_text = f"{search_note.text}; {len(children)} groups"
    if silent_count:
        note_text += f"; {silent_count} clients, which have not answered, walk down the tree"
    return replace(
        search_note,
        kind="split",
        effect="divides",
        text=note_text,
        parts=as_groups(children.values()),
        otherwise="it would not have split in this round",
        labels={**search_note.labels, "node": group_node, "first_part": min(children)},
    )


def _walk_note(client: Client, branch_node: int, child_node: int, joins_group: bool) -> Note:
    """Describe a walker's step from a branch to a child of it, a group that it joins or another branch."""
    what_next = "joins it" if joins_group else "continues from there"
    return Note(
        kind="join" if joins_group else "walk",
        effect="joins" if joins_group else "waits",
        clients=(client,),
        text=f"client {client} at node {branch_node}: nearest to node {child_node}; {what_next}",
        labels={"at": branch_node, "node": child_node},
    )


def _unchanged(state: SplitHalfSumsState, sums_of_group: Mapping[int, Moments]) -> Note:
    """Describe a review in which no groups merged."""
    all_clients = tuple(sorted(client for group in state.groups for client in group.clients))
    if len(sums_of_group) < 2:
        return Note(
            kind="keep",
            effect="keeps",
            clients=all_clients,
            text="reviewed: too few clients answered",
        )
    criterion = same_group(max(contrast.p for contrast, _, _ in _contrasts(sums_of_group)))
    return Note(
        kind="keep",
        effect="keeps",
        clients=all_clients,
        text=f"reviewed: no groups merge; {criterion.text}",
        criteria=(criterion,),
    )


def _move_note(client: Client, old_node: int, new_node: int) -> Note:
    note_text = (
        f"client {client} moves from node {old_node} to node {new_node}: "
        "that model has the lowest loss on its data"
    )
    return Note(
        kind="move",
        effect="moves",
        clients=(client,),
        text=note_text,
        labels={"at": old_node, "node": new_node},
    )
