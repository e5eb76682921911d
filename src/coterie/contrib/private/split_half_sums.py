"""Split-half from sums: the groups of split-half, found by a server that sees sums over clients and never one of them.

Coterie's own, the method of :mod:`~coterie.methods.split_half` for secure aggregation
(:mod:`coterie.contrib.private.masks`). Every exchange asks for sums only: mean updates of groups, and answers to
questions about sketches of k numbers that stay at the clients (:mod:`~coterie.contrib.private.cells`).
The server learns which group's model a client takes, and nothing else about it.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.clustering import repeated_p
from coterie.clustering.congruence import Congruence, Contrast
from coterie.contrib.private.cells import (
    Question,
    centres_of,
    coordinates,
    halved,
    question_of,
    sizes_of,
    two_centres,
)
from coterie.contrib.private.moments import Moments, congruence_from_sums, contrast_from_sums
from coterie.core import (
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
from coterie.methods._split_half_probes import (
    CALM,
    LONGER,
    LONGEST,
    MANY,
    MOST,
    ProbeAgain,
    differ,
    group_note,
)
from coterie.methods._split_half_reviews import ALIKE, middle, same_group
from coterie.settings import check, setting

TURNS = 4
"""Steps of Lloyd's algorithm after each cut."""

SETTLED = 3
"""Rounds after a change of groups after which their models are good enough to choose by."""

ROOM = 4.0
"""The scale of sketches, in the greatest norm of an update in a round: a half makes more steps, and
noise is longer."""


@state("split-half-sums.branch")
class Branch:
    """A group that was divided.

    Attributes:
        children: the groups or branches that it became, one for each cell.
        model: ``(d,)``, the model from which its members trained in the probe.
        last: ``(d,)``, its model when it was divided, which serves clients that are in no cell yet.
        steps: mini-batch steps on each half.
        round: number of rounds completed when the probe began.
        scale: the scale of the sketches.
        centres: ``(m, k)``, the centres of the cells.
        sketched: clients that have sketches of this probe, and are in no cell yet.
    """

    children: tuple[int, ...]
    model: torch.Tensor
    last: torch.Tensor
    steps: int
    round: int
    scale: float
    centres: torch.Tensor
    sketched: tuple[Client, ...] = ()


@state("split-half-sums.probe")
class Probe:
    """A probe of a group: who has answered, from which model, and the sums.

    Attributes:
        model: ``(d,)``, the model from which all train.
        steps: mini-batch steps on each half.
        round: number of rounds completed when it began.
        scale: the scale of the sketches.
        heard: clients that have answered.
        sums: the vector of their :class:`~coterie.contrib.private.moments.Moments`; empty before the
            first answer.
    """

    model: torch.Tensor
    steps: int
    round: int
    scale: float
    heard: tuple[Client, ...] = ()
    sums: torch.Tensor

    def ends(self, members: Sequence[Client], round: int) -> bool:
        """Return whether the probe of a group ends after a round."""
        return len(self.heard) >= min(MOST * len(members), MANY) or round - self.round >= LONGEST


@state("split-half-sums.watch")
class Watch:
    """Schedule of a group's probes.

    Attributes:
        due: round of the next probe.
        calm: number of probes in a row that showed no difference.
        p: p-value of the last probe, if the next one is to confirm it, and its number of clients.
        probe: the current probe, if it lasts several rounds.
    """

    due: int
    calm: int = 0
    p: tuple[float, int] | None = None
    probe: Probe | None = None


@state("split-half-sums.search")
class Search:
    """A search for the cells of a group.

    Attributes:
        probe: the probe whose sketches are used.
        note: the reasons for it.
        stage: what is asked next.
        centres: ``(m, k)``.
        before: the centres before the last cut.
        cell: the cell that was cut last, or is cut next.
        moments: ``(m, ...)``, moments of the cells, as vectors, from when each was cut.
        closed: centres that have been found to be of one group, or cannot be cut.
        turns: steps of Lloyd's algorithm that are left.
    """

    probe: Probe
    note: Note
    stage: Literal["coordinates", "means", "moments", "cell"] = "coordinates"
    centres: torch.Tensor
    before: torch.Tensor
    cell: int = 0
    moments: torch.Tensor
    closed: tuple[int, ...] = ()
    turns: int = TURNS


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
        kind = "hold" if isinstance(self.action, ProbeAgain) else "keep"
        text = f"{self.criterion.text}; {self.why}" if self.why else self.criterion.text
        return group_note(group, kind, text, self.test, self.criterion, self.otherwise)


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
    watched: Mapping[int, Watch] = field(default_factory=dict)
    searches: Mapping[int, Search] = field(default_factory=dict)
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
    notes: tuple[Note, ...] = ()

    @property
    def next_node(self) -> int:
        """The number of the next new group."""
        return 1 + max([*(group.node for group in self.groups), *self.branches, *self.merged])

    @property
    def several(self) -> bool:
        """Whether there are at least two groups with clients."""
        return sum(bool(group.clients) for group in self.groups) > 1


@dataclass(frozen=True, kw_only=True)
class SplitHalfSums(Probing):
    """Split-half for secure aggregation: finds groups from sums over clients, and never sees one of them."""

    name: ClassVar[str] = "split-half-sums"

    sketch: int = setting(
        128,
        "numbers of a sketch (k); a probe's answer has about k² numbers",
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
        group = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        return SplitHalfSumsState(
            round=0,
            groups=(group,),
            watched={0: Watch(due=self.first_probe)},
            k=min(self.sketch, federation.parameters.stop),
            parameters=federation.parameters.stop,
            training=federation.training,
        )

    def plan(self, state: SplitHalfSumsState, cohort: Cohort) -> Plan:
        present = set(cohort.present)
        models = [group.model for group in state.groups]
        tasks: dict[Client, Task] = {}
        if state.stage == "search":
            for row, group in enumerate(state.groups):
                if group.node in state.searches:
                    search = state.searches[group.node]
                    asked = Task(
                        offered=(row,), epochs=0, private=PrivateTask(question=_question(search))
                    )
                    tasks |= dict.fromkeys(
                        sorted(present & set(group.clients) & set(search.probe.heard)), asked
                    )
        elif state.stage == "place":
            for client in sorted(present & set(state.walkers)):
                branch = state.branches[state.walkers[client]]
                if client in branch.sketched:
                    question = _cell(branch.scale, branch.centres)
                    tasks[client] = Task(
                        offered=(0,), epochs=0, private=PrivateTask(question=question)
                    )
        elif state.stage == "review":
            models = [middle([group for group in state.groups if group.clients])] * len(models)
            question = Question(ask="moments", scale=ROOM * state.norm)
            for row, group in enumerate(state.groups):
                task = Task(
                    offered=(row,),
                    halves=True,
                    training=self._probing(state),
                    private=PrivateTask(question=question, sends_update=False),
                )
                tasks |= dict.fromkeys(sorted(present & set(group.clients)), task)
        elif state.stage == "move":
            rows = tuple(row for row, group in enumerate(state.groups) if group.clients)
            members = {client for group in state.groups for client in group.clients} - set(
                state.settled
            )
            tasks = dict.fromkeys(sorted(present & members), Task(offered=rows, epochs=0))
        else:
            return self._train(state, cohort)
        return self._planned(state, models, tasks, ends_round=False)

    def _planned(
        self,
        state: SplitHalfSumsState,
        models: Sequence[torch.Tensor],
        tasks: Mapping[Client, Task],
        ends_round: bool,
    ) -> Plan:
        needs_sketches = False
        for task in tasks.values():
            question = question_of(task)
            if task.halves or (question is not None and question.ask != "sizes"):
                needs_sketches = True
        return Plan(
            models=torch.stack(list(models)),
            tasks=tasks,
            need="sums",
            columns=slice(0, state.parameters),
            sketch=self.sketch if needs_sketches else None,
            weighting=self.weighting,
            ends_round=ends_round,
        )

    def _train(self, state: SplitHalfSumsState, cohort: Cohort) -> Plan:
        """The plan of the exchange that ends a round: rows of the groups' models, then those of :func:`_more_rows`."""
        present = set(cohort.present)
        tasks: dict[Client, Task] = {}
        more = _more_rows(state)
        for row, group in enumerate(state.groups):
            if not group.clients:
                continue
            begun = state.watched[group.node].probe
            if begun is None and self.probes(
                state, group
            ):  # asks all members: too few would not separate groups
                tasks |= dict.fromkeys(
                    cohort.sample(group.clients, 1.0), self._probe_task(state, row)
                )
                continue
            usual = Task(offered=(row,), private=PrivateTask(question=Question(ask="sizes")))
            tasks |= dict.fromkeys(cohort.sample(group.clients, self.fraction), usual)
            if begun is not None:
                same = replace(state.training, steps=begun.steps)
                question = Question(ask="moments", scale=begun.scale)
                at = len(state.groups) + more["probe", group.node][0]
                task = Task(
                    offered=(at,),
                    halves=True,
                    training=same,
                    lr_round=begun.round,
                    private=PrivateTask(question=question),
                )
                tasks |= dict.fromkeys(
                    sorted((present & set(group.clients)) - set(begun.heard)), task
                )
        for client in sorted(present & set(state.walkers)):
            branch = state.branches[state.walkers[client]]
            if client not in branch.sketched:
                same, at = (
                    replace(state.training, steps=branch.steps),
                    more["branch", state.walkers[client]][0],
                )
                tasks[client] = Task(
                    offered=(len(state.groups) + at,),
                    halves=True,
                    training=same,
                    lr_round=branch.round,
                    private=PrivateTask(sends_update=False),
                )
        models = [*(group.model for group in state.groups), *(model for _, model in more.values())]
        return self._planned(state, models, dict(sorted(tasks.items())), ends_round=True)

    def _probe_task(self, state: SplitHalfSumsState, row: int) -> Task:
        question = Question(ask="moments", scale=ROOM * state.norm)
        return Task(
            offered=(row,),
            halves=True,
            training=self._probing(state),
            private=PrivateTask(question=question),
        )

    def probes(self, state: SplitHalfSumsState, group: Leaf) -> bool:
        """Return whether a group probes in the next round: it is due, and large enough to be divided."""
        large = len(group.clients) >= max(2, 2 * self.smallest)
        return large and state.norm > 0 and state.round + 1 >= state.watched[group.node].due

    def _lasts(self, state: SplitHalfSumsState, group: Leaf) -> bool:
        """Return whether a group's probe lasts several rounds: too few would answer in the next one alone."""
        if not self.probes(state, group):
            return False
        n = len(group.clients)
        return state.watched[group.node].probe is not None or state.answered * n < min(
            MOST * n, MANY
        )

    def _probing(self, state: SplitHalfSumsState) -> Training:
        """The training settings of every half."""
        usual = state.training
        if self.steps is not None:
            return replace(usual, steps=self.steps)
        sizes = [round(state.size)] if state.size else []
        return of_equal_steps(usual, sizes, LONGER) or replace(usual, steps=max(1, usual.epochs))

    def step(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        state = replace(state, notes=())
        if state.stage == "search":
            new = self._searched(state, replies)
        elif state.stage == "place":
            new = self._placed(state, replies)
        elif state.stage == "review":
            new = self._reviewed(state, replies)
        elif state.stage == "move":
            new = self._moved(state, replies)
        else:
            new = self._trained(state, replies)
        return replace(new, stage=self._next(state.stage, new))

    def _next(self, done: Stage, new: SplitHalfSumsState) -> Stage:
        """What the next exchange is for."""
        if done in ("train", "search") and new.searches:
            return "search"
        waiting = any(client in new.branches[at].sketched for client, at in new.walkers.items())
        if done in ("train", "search") and waiting:
            return "place"
        due = self.review_every and new.round >= new.review[0] and new.several and new.norm > 0
        if done in ("train", "search", "place") and due:
            return "review"
        return "move" if done != "move" and new.several and new.round >= new.moves else "train"

    # -- a round of training
    # ----------------------------------------------------------------------------------------------

    def _trained(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        sizes = [
            replies.sums.by_row[row]
            for row in range(len(state.groups))
            if len(replies.sums.by_row.get(row, ())) == _SIZES
        ]
        norm, size = sizes_of(np.sum(sizes, axis=0)) if sizes else (state.norm, state.size)
        more, answered = _more_rows(state), set(replies.clients)
        new = replace(state, round=state.round + 1, groups=(), norm=norm, size=size)
        for row, group in enumerate(state.groups):
            model, heard = replies.mean_updates[row] + group.model, int(_heard(replies)[row])
            probes, lasts = self.probes(state, group), self._lasts(state, group)
            probe, at = state.watched[group.node].probe, row
            if probe is not None:
                at = len(state.groups) + more["probe", group.node][0]
                model, heard = _both(
                    (model, heard),
                    (replies.mean_updates[at] + probe.model, int(_heard(replies)[at])),
                )
            new = replace(
                new, groups=(*new.groups, replace(group, model=model if heard else group.model))
            )
            if not probes:
                continue
            steps = self._probing(state).steps or 1
            none = torch.zeros(0, dtype=torch.float64)
            probe = probe or Probe(
                model=group.model,
                steps=steps,
                round=state.round,
                scale=ROOM * state.norm,
                sums=none,
            )
            new = self._probed(
                new,
                group,
                _taken(probe, answered & set(group.clients), replies.sums.by_row.get(at)),
                lasts,
            )
        new = self._sketched(new, answered)
        asked = self.fraction * (
            sum(len(group.clients) for group in state.groups) + len(state.walkers)
        )
        return replace(new, answered=min(1.0, len(replies.clients) / max(1.0, asked)))

    def _sketched(self, new: SplitHalfSumsState, answered: set[Client]) -> SplitHalfSumsState:
        """Note which walkers have sketches now."""
        branches = dict(new.branches)
        for client in sorted(answered & set(new.walkers)):
            at = new.walkers[client]
            branches[at] = replace(branches[at], sketched=joined(branches[at].sketched, [client]))
        return replace(new, branches=branches)

    def _probed(
        self, new: SplitHalfSumsState, group: Leaf, probe: Probe, lasts: bool
    ) -> SplitHalfSumsState:
        """The state after a round in which a group probed."""
        watch = new.watched[group.node]
        if lasts and not probe.ends(group.clients, new.round):
            return replace(
                new,
                watched={**new.watched, group.node: replace(watch, probe=probe, due=new.round + 1)},
            )
        decision = self._decide_probe(probe, watch, new.k)
        watch = self._next_probe(watch, decision, new.round)
        new = replace(new, watched={**new.watched, group.node: watch})
        if decision is None:
            return new
        note = decision.describe(group)
        if not isinstance(decision.action, SearchGroups):
            return replace(new, notes=(*new.notes, note))
        moments = Moments.from_vector(probe.sums.numpy(), new.k)
        centre = torch.from_numpy(moments.total / moments.count)[None]
        search = Search(
            probe=probe, note=note, centres=centre, before=centre, moments=probe.sums[None]
        )
        if lasts:
            # A question would be answered by few: cut at the mean, and let clients move later.
            search = replace(search, stage="cell", centres=torch.from_numpy(halved(moments)))
        return replace(new, searches={**new.searches, group.node: search})

    def _decide_probe(self, probe: Probe, watch: Watch, k: int) -> SumsDecision | None:
        """Test the members of a group, from the sums of its probe; None if too few answered."""
        if not len(probe.sums):
            return None
        test = congruence_from_sums(Moments.from_vector(probe.sums.numpy(), k))
        if test.clients < 2 or (watch.p is not None and 2 * test.clients < watch.p[1]):
            return None
        if watch.p is not None:  # both probes together
            first_p, first_count = watch.p
            p = repeated_p(first_p, test.p, clients=min(first_count, test.clients))
            criterion = differ("p of two probes", p, self.level, test.clients)
            otherwise = "its members would have been searched for groups"
            action = SearchGroups() if criterion.held else KeepWhole()
            return SumsDecision(action, test, criterion, otherwise=otherwise)
        p = repeated_p(test.p, test.p, test.clients)
        criterion = differ("p if seen twice", p, self.level, test.clients)
        again = "probed again in the next round, for confirmation"
        if criterion.held:
            otherwise = f"it would not have been {again}"
            return SumsDecision(ProbeAgain(), test, criterion, again, otherwise)
        return SumsDecision(KeepWhole(), test, criterion, otherwise=f"it would have been {again}")

    def _next_probe(self, watch: Watch, decision: SumsDecision | None, round: int) -> Watch:
        """Schedule the next probe of a group: in the next round if a finding is to be confirmed, else later."""
        if decision is None:
            due = self._turn(round) if watch.p is None else round + 1
            return replace(watch, due=due, probe=None)
        test = decision.test
        if isinstance(decision.action, ProbeAgain):
            return Watch(due=round + 1, p=(test.p, test.clients))
        calm = watch.calm + 1 if test.p > CALM else 0
        return Watch(due=self._later(round, calm), calm=calm)

    # -- a search
    # ---------------------------------------------------------------------------------------------------------

    def _searched(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        new = replace(state, searches={})
        for row, group in enumerate(state.groups):
            search = state.searches.get(group.node)
            if search is None:
                continue
            if search.stage == "cell":
                new = self._divided(new, group, search, replies)
                continue
            after = self._turned(search, replies.sums.by_row.get(row))
            if after is None:
                text = "; but no cut of its members was found"
                new = replace(
                    new,
                    notes=(
                        *new.notes,
                        replace(search.note, text=search.note.text + text, otherwise=""),
                    ),
                )
            else:
                new = replace(new, searches={**new.searches, group.node: after})
        return new

    def _turned(self, search: Search, answer: np.ndarray | None) -> Search | None:
        """The search after an answer; None if it ends without cells."""
        if answer is None:  # nobody has answered
            return None
        centres = search.centres.numpy()
        if search.stage == "coordinates":
            two = two_centres(_question(search), answer, centres[search.cell])
            if two is None:
                return self._chosen(replace(search, closed=(*search.closed, search.cell)))
            cut = np.concatenate([centres, two[1:]])
            cut[search.cell] = two[0]
            return replace(
                search,
                stage="means",
                centres=torch.from_numpy(cut),
                before=search.centres,
                turns=TURNS,
            )
        if search.stage == "moments":
            both = torch.from_numpy(answer.reshape(2, -1))
            moments = torch.cat([search.moments, both[1:]])
            moments[search.cell] = both[0]
            return self._chosen(replace(search, moments=moments))
        counts, means = centres_of(answer, len(centres))
        members = counts * len(search.probe.heard) / max(float(counts.sum()), 1e-9)
        if members.min() < self.smallest - 0.5:
            return self._chosen(
                replace(search, centres=search.before, closed=(*search.closed, search.cell))
            )
        turns = 0 if np.allclose(means, centres, rtol=0, atol=1e-9) else search.turns - 1
        return replace(
            search,
            centres=torch.from_numpy(means),
            turns=turns,
            stage="means" if turns else "moments",
        )

    def _chosen(self, search: Search) -> Search | None:
        """The search with the next cell to cut: that of least p, of those that are incongruent."""
        k = search.centres.shape[1]
        cells = [Moments.from_vector(vector, k) for vector in search.moments.numpy()]
        if not search.closed and len(cells) == 1:
            return replace(search, stage="coordinates", cell=0)
        large = [
            i
            for i, one in enumerate(cells)
            if i not in search.closed and one.count >= max(2, 2 * self.smallest - 0.5)
        ]
        p = {i: congruence_from_sums(cells[i]).p for i in large}
        least = min(p, key=lambda i: p[i], default=None)
        if least is not None and p[least] < self.level:
            return replace(search, stage="coordinates", cell=least)
        return replace(search, stage="cell") if len(cells) > 1 else None

    def _divided(
        self, new: SplitHalfSumsState, group: Leaf, search: Search, replies: Replies
    ) -> SplitHalfSumsState:
        """The state after the members of a group have said which cell is theirs."""
        parts = [
            sorted(c for c, cell in replies.sums.cells.items() if cell == i and c in group.clients)
            for i in range(len(search.centres))
        ]
        there = [i for i, part in enumerate(parts) if part]
        least = (
            min((len(parts[i]) for i in there), default=0)
            * len(group.clients)
            / max(sum(map(len, parts)), 1)
        )
        if len(there) < 2 or least < self.smallest - 0.5:
            return replace(
                new,
                notes=(
                    *new.notes,
                    replace(search.note, text=f"{search.note.text}; but too few have answered"),
                ),
            )
        first, probe = new.next_node, search.probe
        children = {first + i: tuple(parts[at]) for i, at in enumerate(there)}
        silent = set(group.clients) - {c for part in parts for c in part}
        branch = Branch(
            children=tuple(children),
            model=probe.model,
            last=group.model,
            steps=probe.steps,
            round=probe.round,
            scale=probe.scale,
            centres=search.centres[there],
            sketched=tuple(sorted(silent & set(probe.heard))),
        )
        text = f"{search.note.text}; {len(there)} groups"
        if silent:
            text += f"; {len(silent)} clients, which have not answered, walk down the tree"
        note = replace(
            search.note,
            kind="split",
            effect="divides",
            text=text,
            parts=as_groups(children.values()),
            otherwise="it would not have split in this round",
            labels={**search.note.labels, "node": group.node, "first_part": first},
        )
        others = [one for one in new.groups if one.node != group.node]
        made = [Leaf(node=node, clients=part, model=group.model) for node, part in children.items()]
        watched = {node: watch for node, watch in new.watched.items() if node != group.node}
        return replace(
            new,
            groups=ordered([*others, *made]),
            branches={**new.branches, group.node: branch},
            walkers={**new.walkers, **dict.fromkeys(sorted(silent), group.node)},
            watched=watched | {node: Watch(due=self._turn(new.round)) for node in children},
            notes=(*new.notes, note),
            review=(new.round + self.review_every, self.review_every),
            moves=new.round + SETTLED,
            settled=(),
        )

    def _placed(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after walkers have said which cell is theirs."""
        new = state
        for client in replies.clients:
            at = state.walkers[client]
            branch = new.branches[at]
            new = replace(
                new,
                branches={
                    **new.branches,
                    at: replace(branch, sketched=without(branch.sketched, [client])),
                },
            )
            if client not in replies.sums.cells:  # its sketches are lost: it trains again
                continue
            child = _group_at(new, branch.children[replies.sums.cells[client]])
            leaf = child not in new.branches
            text = f"client {client} at node {at}: nearest to node {child}; {'joins it' if leaf else 'continues from there'}"
            note = Note(
                kind="join" if leaf else "walk",
                effect="joins" if leaf else "waits",
                clients=(client,),
                text=text,
                labels={"at": at, "node": child},
            )
            walkers = {c: node for c, node in new.walkers.items() if c != client}
            new = replace(
                new,
                walkers=walkers if leaf else {**walkers, client: child},
                notes=(*new.notes, note),
            )
            if leaf:
                new = replace(new, groups=ordered(join(new.groups, {client: child})))
        return new

    # -- a review
    # ---------------------------------------------------------------------------------------------------------

    def _reviewed(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after all clients have trained from one model: groups merge whose means do not differ."""
        sums = {
            group.node: Moments.from_vector(replies.sums.by_row[row], state.k)
            for row, group in enumerate(state.groups)
            if row in replies.sums.by_row and 2 * replies.sums.by_row[row][0] >= len(group.clients)
        }
        new = state
        groups_merged = False
        while pair := _alike(sums):
            groups_merged = True
            one, other, criterion = pair
            new, sums = _joined(new, one, other, criterion), {**sums, one: sums[one] + sums[other]}
            sums.pop(other)
            new = replace(new, watched={**new.watched, one: Watch(due=self._turn(new.round))})
        if not new.notes:
            new = replace(new, notes=(_unchanged(new, sums),))
        # Reviews that change nothing become rare.
        wait = self.review_every if groups_merged else 2 * state.review[1]
        return replace(new, review=(new.round + wait, wait), moves=new.round, settled=())

    def _moved(self, state: SplitHalfSumsState, replies: Replies) -> SplitHalfSumsState:
        """The state after clients have chosen the group whose model has the lowest loss on their data."""
        at = {client: row for row, group in enumerate(state.groups) for client in group.clients}
        chosen = {
            client: rows[0] for client, rows in zip(replies.clients, replies.chosen, strict=True)
        }
        goes = {client: row for client, row in chosen.items() if row != at[client]}
        for row, group in enumerate(state.groups):  # where the rest would be too few, all stay
            away = [client for client in goes if at[client] == row]
            if away and len(group.clients) - len(away) < self.smallest:
                goes = {client: to for client, to in goes.items() if client not in away}
        if not goes:
            settled = joined(state.settled, chosen)
            if len(settled) < MOST * len(at):
                return replace(state, settled=settled)
            return replace(
                state,
                moves=state.review[0] if self.review_every else state.round + self.probe_every,
                settled=(),
            )
        nodes = {client: state.groups[row].node for client, row in goes.items()}
        groups = [replace(group, clients=without(group.clients, goes)) for group in state.groups]
        changed = {
            state.groups[row].node for row in {*goes.values(), *(at[client] for client in goes)}
        }
        notes = [
            _move_note(client, state.groups[at[client]].node, to)
            for client, to in sorted(nodes.items())
        ]
        return replace(
            state,
            groups=ordered(join(groups, nodes)),
            watched={
                **state.watched,
                **{node: Watch(due=self._turn(state.round)) for node in changed},
            },
            review=(state.round + self.review_every, self.review_every),
            moves=state.round + SETTLED,
            settled=(),
            notes=(*state.notes, *notes),
        )

    def assignment(self, state: SplitHalfSumsState) -> Assignment:
        place = {group.node: i for i, group in enumerate(state.groups)}
        used = sorted(set(state.walkers.values()))
        place |= {node: len(state.groups) + i for i, node in enumerate(used)}
        at = {client: group.node for group in state.groups for client in group.clients} | dict(
            state.walkers
        )
        waiting = [
            [client for client, node in state.walkers.items() if node == one] for one in used
        ]
        return Assignment(
            models=torch.stack(
                [
                    *(group.model for group in state.groups),
                    *(state.branches[node].last for node in used),
                ]
            ),
            row={client: place[node] for client, node in sorted(at.items())},
            groups=as_groups(
                [*(group.clients for group in state.groups if group.clients), *waiting]
            ),
        )

    def admit(self, state: SplitHalfSumsState, clients: tuple[Client, ...]) -> SplitHalfSumsState:
        if 0 in state.branches:
            return replace(state, walkers={**state.walkers, **dict.fromkeys(clients, 0)})
        return replace(
            state, groups=ordered(join(state.groups, dict.fromkeys(clients, _group_at(state, 0))))
        )

    def retire(self, state: SplitHalfSumsState, clients: tuple[Client, ...]) -> SplitHalfSumsState:
        # The sums of a probe keep what a client has added to them: nobody can take it out again.
        gone = set(clients)
        return replace(
            state,
            groups=ordered(
                replace(group, clients=without(group.clients, gone)) for group in state.groups
            ),
            walkers={client: at for client, at in state.walkers.items() if client not in gone},
            branches={
                node: replace(branch, sketched=without(branch.sketched, gone))
                for node, branch in state.branches.items()
            },
        )

    def explain(self, state: SplitHalfSumsState) -> tuple[Note, ...]:
        return state.notes


_SIZES = Question(ask="sizes").length(1)


def _cell(scale: float, centres: torch.Tensor) -> Question:
    return Question(ask="cell", scale=scale, centres=centres.numpy())


def _question(search: Search) -> Question:
    """What the members of a group are asked next."""
    scale, centres = search.probe.scale, search.centres.numpy()
    if search.stage == "coordinates":
        sums = Moments.from_vector(search.moments[search.cell].numpy(), centres.shape[1])
        return coordinates(search.cell, sums, scale, centres)
    cells = (search.cell, len(centres) - 1) if search.stage == "moments" else (0,)
    return Question(ask=search.stage, scale=scale, centres=centres, cells=cells)


def _more_rows(state: SplitHalfSumsState) -> dict[tuple[str, int], tuple[int, torch.Tensor]]:
    """What it is for -> its place behind the groups' models, and the model: of probes that last, and of branches."""
    probes = {
        ("probe", node): watch.probe.model
        for node, watch in state.watched.items()
        if watch.probe is not None
    }
    branches = {
        ("branch", node): state.branches[node].model for node in sorted(set(state.walkers.values()))
    }
    return {key: (i, model) for i, (key, model) in enumerate((probes | branches).items())}


def _heard(replies: Replies) -> np.ndarray:
    return (
        np.zeros(len(replies.mean_updates)) if replies.mean_counts is None else replies.mean_counts
    )


def _both(
    one: tuple[torch.Tensor, int], other: tuple[torch.Tensor, int]
) -> tuple[torch.Tensor, int]:
    """The mean of two models, weighted by the numbers of clients whose means they are."""
    heard = one[1] + other[1]
    return ((one[1] * one[0] + other[1] * other[0]) / max(heard, 1)), heard


def _taken(probe: Probe, answered: Iterable[Client], sums: np.ndarray | None) -> Probe:
    """A probe with the answers of a round."""
    if sums is None:
        return probe
    vector = torch.from_numpy(np.asarray(sums))
    return replace(
        probe,
        heard=joined(probe.heard, answered),
        sums=probe.sums + vector if len(probe.sums) else vector,
    )


def _group_at(state: SplitHalfSumsState, node: int) -> int:
    """The node that a node has become part of by merging, or itself."""
    while node in state.merged:
        node = state.merged[node]
    return node


def _contrasts(sums: Mapping[int, Moments]) -> list[tuple[Contrast, int, int]]:
    """All pairs of groups, and how their mean signals differ; the effective dimension of noise is that of all groups."""
    nodes = list(sums)
    return [
        (
            contrast_from_sums(
                sums[one], sums[other], [sums[node] for node in nodes if node not in (one, other)]
            ),
            one,
            other,
        )
        for i, one in enumerate(nodes)
        for other in nodes[i + 1 :]
    ]


def _alike(sums: Mapping[int, Moments]) -> tuple[int, int, Criterion] | None:
    """The nearest two groups of those whose mean signals do not differ, and the criterion; None if there are none."""
    alike = [each for each in _contrasts(sums) if each[0].p > ALIKE]
    if not alike:
        return None
    nearest, node, also = min(alike, key=lambda each: each[0].distance)
    return node, also, same_group(nearest.p)


def _joined(state: SplitHalfSumsState, one: int, other: int, same: Criterion) -> SplitHalfSumsState:
    """Merge two groups into the first, with the mean of their models by clients."""
    groups = {group.node: group for group in state.groups}
    left, right = groups[one], groups[other]
    model, _ = _both((left.model, len(left.clients)), (right.model, len(right.clients)))
    both = Leaf(node=one, clients=joined(left.clients, right.clients), model=model)
    note = Note(
        kind="merge",
        effect="merges",
        clients=both.clients,
        text=same.text,
        criteria=(same,),
        labels={"node": one, "other_node": other},
    )
    return replace(
        state,
        groups=ordered(
            [both, *(group for node, group in groups.items() if node not in (one, other))]
        ),
        merged={**state.merged, other: one},
        watched={node: watch for node, watch in state.watched.items() if node != other},
        notes=(*state.notes, note),
    )


def _unchanged(state: SplitHalfSumsState, sums: Mapping[int, Moments]) -> Note:
    """Describe a review in which no groups merged."""
    clients = tuple(sorted(client for group in state.groups for client in group.clients))
    if len(sums) < 2:
        return Note(
            kind="keep", effect="keeps", clients=clients, text="reviewed: too few clients answered"
        )
    p = max(found.p for found, _, _ in _contrasts(sums))
    return Note(
        kind="keep",
        effect="keeps",
        clients=clients,
        text=f"reviewed: no groups merge; {same_group(p).text}",
        criteria=(same_group(p),),
    )


def _move_note(client: Client, at: int, to: int) -> Note:
    text = f"client {client} moves from node {at} to node {to}: that model has the lowest loss on its data"
    return Note(
        kind="move",
        effect="moves",
        clients=(client,),
        text=text,
        labels={"at": at, "node": to},
    )
