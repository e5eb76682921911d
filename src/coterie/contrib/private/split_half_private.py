"""Private split-half: groups from sums alone, of which the server does not learn who is in them.

Coterie's own. As :mod:`~coterie.contrib.private.split_half_sums`, and every number that leaves a client is
a part of a sum whose norm is bounded, so that noise on it makes all of a run differentially private
(``boundary.noise`` behind ``boundary.masks``). The server sends all models to all clients. Each
client takes one of them, by itself, and sends a vector with a slot for every model, in which all
but one are zero (``PrivatePlan.hides_choices``). So the server learns how large groups are, up to the noise, and
what their models are.

1. **Norms.** Before the first round, a histogram gives the median norm of updates. With
   ``boundary.masks`` and ``boundary.clip`` it becomes the maximum norm, if it is less than
   ``clip``.
2. **One model** until ``first_probe``: FedAvg with equal weights.
3. **Probe.** All clients train on two disjoint halves of their data. The mean update is a sum as in
   every round, and the common centre: clients say how far from it they are in a histogram, and take
   the median as the unit.
4. **Search.** For each cell, at first one, the sums of :class:`~coterie.contrib.private.moments.Crossed`
   test whether its clients have the same signal. If not, a histogram of their coordinates on the
   axis along which they differ most gives a cut. All cells of a level are tested and cut in the
   same exchange, because a client is in one of them only. At most ``levels`` cuts follow each
   other.
5. **Groups.** Each cell is a group. For a few rounds a client takes the model of its cell. From
   then on it takes the one of lowest loss on its training data, as in IFCA (Ghosh et al. 2020), so
   that clients move, and newcomers find their group.

A search that finds no groups is repeated, twice as many rounds later each time. Answers about which
clients differ count as several updates (``cost`` of a question), and have less noise: one search of
three levels counts as 25.

What differs from split-half from sums: one probe instead of two; nothing merges; and a group that
has been found is not probed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.clustering import sketch
from coterie.contrib.private.cells import HALF_WIDTH, Question, cuts, median_of, norms_of
from coterie.contrib.private.moments import (
    Crossed,
    crossed_axis,
    crossed_congruence,
    crossed_length,
)
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    PrivatePlan,
    PrivateTask,
    Replies,
    Task,
    Training,
    joined,
    state,
    without,
)
from coterie.methods._half_steps import of_equal_steps
from coterie.methods._split_half_probes import LONGER, differ
from coterie.settings import check, setting

SETTLED = 3
"""Rounds in which clients take the model of their cell, before models differ enough to choose by
loss."""

CROSSED, PLACES = 6, 2
"""As how many updates the answers of a search count."""

SMOOTH = 0.3
"""Weight of a round in the estimated sizes of groups, if these are noisy."""

UNSURE = 20.0
"""Medians are not taken from histograms of fewer clients than this, in deviations of the noise on a
bin."""

FAR = 1024.0
"""The scale of sketches, in the unit of a search, when a client says nothing about them: none is
shortened."""

WIDEST = 1.5
"""The greatest half width of a histogram of coordinates, whose norm is 1 at most."""


@state("split-half-private.search")
class Search:
    """A search for groups.

    Attributes:
        centres: ``(m, k)``, the centres of the cells.
        open: Cells that are tested, or cut, next.
        scale: The unit of the search, in which the median client is 1 from the centre.
        axes: ``(len(open), k)``, axes of histograms; None if the next question is about the cells'
            sums.
        level: How many cuts have followed each other.
        note: The test of the first cell.
    """

    centres: torch.Tensor
    open: tuple[int, ...] = (0,)
    scale: float = 0.0
    axes: torch.Tensor | None = None
    level: int = 0
    note: Note | None = None


Stage = Literal["norms", "train", "distances", "search"]


@state("split-half-private")
class SplitHalfPrivateState:
    """State of private split-half.

    Attributes:
        round: Number of rounds completed.
        stage: What the next exchange is for.
        clients: The members.
        models: ``(m, d)``, the groups' models.
        shares: ``(m,)``, the estimated share of the clients in each group.
        limit: The boundary's maximum norm of an update; 0 without one.
        clip: The maximum norm of an update; 0 if it is not known.
        examples: Median number of training examples; 0 if it is not known.
        due: The round of the next probe.
        wait: How many rounds later the next one comes, if it finds no groups.
        search: The current search, or the last one.
        placing: Rounds in which clients still take the model of their cell.
        training: The experiment's training settings.
        parameters: Number of columns of the sketches.
        notes: Notes of the last exchange.
    """

    round: int = 0
    stage: Stage
    clients: tuple[Client, ...]
    models: torch.Tensor
    shares: torch.Tensor
    limit: float
    clip: float = 0.0
    examples: int = 0
    due: int
    wait: int
    search: Search | None = None
    placing: int = 0
    training: Training = field(default_factory=Training)
    parameters: int
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SplitHalfPrivate:
    """Split-half for secure aggregation with differential privacy: the server does not learn who is in which group."""

    name: ClassVar[str] = "split-half-private"

    fraction: float = setting(1.0, "fraction of the clients sampled in each round", gt=0, le=1)
    level: float = setting(
        0.01, "significance level: a cell is cut if the p-value is below", gt=0, lt=1
    )
    first_probe: int = setting(
        5, "round of the first probe; if it finds no groups, the next comes twice as late", ge=1
    )
    levels: int = setting(3, "most cuts after each other: 3 find up to 8 groups", ge=1, le=8)
    sketch: int = setting(
        16, "numbers of a sketch (k); more need less noise", ge=4, le=256, multiple=4
    )
    steps: int | None = setting(
        None,
        "mini-batch steps on each half; none: four times those of the median client in a round",
        ge=1,
        advanced=True,
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("halves", "questions"),
            occasional=("model-choice", "losses", "training"),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> SplitHalfPrivateState:
        return SplitHalfPrivateState(
            stage="norms",
            clients=federation.clients,
            models=federation.draw(0)[None],
            shares=torch.ones(1, dtype=torch.float64),
            limit=federation.clip or 0.0,
            due=self.first_probe,
            wait=self.first_probe,
            training=federation.training,
            parameters=federation.parameters.stop,
        )

    def plan(self, state: SplitHalfPrivateState, cohort: Cohort) -> Plan:
        rows, question, more = tuple(range(len(state.models))), None, Task(offered=(0,))
        asked = cohort.sample(state.clients, self.fraction if state.stage == "train" else 1.0)
        if state.stage == "norms":
            more = Task(
                offered=(0,),
                private=PrivateTask(
                    question=Question(ask="norms", scale=state.limit or 1.0), sends_update=False
                ),
            )
        elif state.stage == "train" and self.probes(state):
            asked = cohort.sample(state.clients, 1.0)
            more = Task(offered=(0,), halves=True, training=self._probing(state))
        elif state.stage == "train":
            if state.placing and state.search is not None:
                centres = state.search.centres.numpy() / FAR
                question = Question(ask="cell", scale=FAR * state.search.scale, centres=centres)
            more = Task(offered=rows, private=PrivateTask(question=question))
        else:
            more = Task(offered=(0,), epochs=0, private=PrivateTask(question=self._asked(state)))
        sketches = state.stage != "norms" and (more.halves or more.private.question is not None)
        return Plan(
            models=state.models,
            tasks=dict.fromkeys(asked, more),
            need="sums",
            private=PrivatePlan(hides_choices=True, clip=state.clip or None),
            columns=slice(0, state.parameters),
            sketch=self.sketch if sketches else None,
            weighting="uniform",
            ends_round=state.stage == "train",
        )

    def probes(self, state: SplitHalfPrivateState) -> bool:
        """Return whether the next round is a probe."""
        return len(state.models) == 1 and state.round + 1 >= state.due

    def _probing(self, state: SplitHalfPrivateState) -> Training:
        """The training settings of every half."""
        if self.steps is not None:
            return replace(state.training, steps=self.steps)
        return of_equal_steps(state.training, [state.examples], LONGER) or state.training

    def _asked(self, state: SplitHalfPrivateState) -> Question:
        """The next question of a search."""
        search = state.search
        assert search is not None
        if state.stage == "distances":
            scale = 2 * (state.clip or 1.0)  # two halves of norm 1 are no further apart
            return Question(ask="distances", scale=scale, centres=search.centres.numpy() / scale)
        centres, axes = search.centres.numpy(), search.axes
        about = Question(
            ask="crossed", scale=search.scale, centres=centres, cells=search.open, cost=CROSSED
        )
        return (
            about if axes is None else replace(about, ask="places", axis=axes.numpy(), cost=PLACES)
        )

    def step(self, state: SplitHalfPrivateState, replies: Replies) -> SplitHalfPrivateState:
        state = replace(state, notes=())
        answer = replies.sums.by_row.get(0)
        if state.stage == "norms":
            if answer is None:
                return state if not replies.clients else replace(state, stage="train")
            if UNSURE * replies.sums.deviation > len(replies.clients):
                return replace(state, stage="train", clip=state.limit)
            norm, examples = norms_of(answer, state.limit or 1.0)
            return replace(state, stage="train", clip=min(norm, state.limit), examples=examples)
        if state.stage == "train":
            return self._trained(state, replies)
        if answer is None:  # nobody has answered, or too few
            return self._found(state, "too few clients answered")
        search = state.search
        assert search is not None
        if state.stage == "distances":
            scale = median_of(answer, 2 * (state.clip or 1.0))
            return replace(
                state,
                stage="search",
                search=replace(search, scale=scale, centres=search.centres / scale),
            )
        if search.axes is None:
            return self._tested(state, search, answer, replies.sums.deviation)
        return self._cut(state, search, answer, replies.sums.deviation)

    def _trained(self, state: SplitHalfPrivateState, replies: Replies) -> SplitHalfPrivateState:
        """The state after a round of training."""
        n, heard = max(len(replies.clients), 1), replies.mean_counts
        assert heard is not None
        counted = torch.from_numpy(np.asarray(heard, dtype=np.float64)) / n
        noisy = not np.issubdtype(heard.dtype, np.integer)
        shares = state.shares + SMOOTH * (counted - state.shares) if noisy else counted
        least = 1 / (4 * len(state.models))  # below it a group's mean would be noise
        if len(state.models) == 1:
            shares = torch.ones(1, dtype=torch.float64)
        divisors = shares.clamp(min=least) if noisy else shares.where(shares > 0, 1.0)
        models = state.models + replies.mean_updates / divisors[:, None].float()
        new = replace(
            state,
            round=state.round + 1,
            models=models,
            shares=shares,
            placing=max(state.placing - 1, 0),
        )
        if not self.probes(state) or not replies.clients:
            return new
        centre = sketch(replies.mean_updates[:, : state.parameters], self.sketch).double()
        return replace(new, stage="distances", search=Search(centres=centre))

    def _tested(
        self, state: SplitHalfPrivateState, search: Search, answer: np.ndarray, deviation: float
    ) -> SplitHalfPrivateState:
        """The state after a test of all open cells: those in which clients differ get an axis."""
        k = search.centres.shape[1]
        cells = [Crossed.from_vector(vector) for vector in answer.reshape(-1, crossed_length(k))]
        tests = [crossed_congruence(sums, deviation) for sums in cells]
        if search.note is None:
            search = replace(search, note=self._note(state, tests[0][1], cells[0].count))
        different = [i for i, (_, p) in enumerate(tests) if p < self.level]
        centres, axes = search.centres.clone(), []
        for i in different:
            count = max(cells[i].count, 2.0)
            centres[search.open[i]] += torch.from_numpy(cells[i].totals.mean(axis=0) / count)
            direction, variance = crossed_axis(cells[i])
            axes.append(
                torch.from_numpy(direction)
                / (2 * min(HALF_WIDTH * max(variance, 1e-3) ** 0.5, WIDEST))
            )
        if not axes:
            return self._found(replace(state, search=search))
        cut = tuple(search.open[i] for i in different)
        return replace(
            state, search=replace(search, centres=centres, axes=torch.stack(axes), open=cut)
        )

    def _cut(
        self, state: SplitHalfPrivateState, search: Search, answer: np.ndarray, deviation: float
    ) -> SplitHalfPrivateState:
        """The state after histograms of all cells that are cut."""
        rows, new = list(search.centres), []
        for cell, two in zip(search.open, cuts(self._asked(state), answer, deviation), strict=True):
            if two is not None:
                rows[cell] = torch.from_numpy(two[0])
                rows.append(torch.from_numpy(two[1]))
                new += [cell, len(rows) - 1]
        search = replace(
            search, centres=torch.stack(rows), open=tuple(new), axes=None, level=search.level + 1
        )
        done = not new or search.level >= self.levels
        return self._found(replace(state, search=search)) if done else replace(state, search=search)

    def _note(self, state: SplitHalfPrivateState, p: float, count: float) -> Note:
        criterion = differ("p", p, self.level, max(round(count), 2))
        return Note(
            kind="keep",
            effect="keeps",
            clients=state.clients,
            text=criterion.text,
            criteria=(criterion,),
        )

    def _found(self, state: SplitHalfPrivateState, why: str = "") -> SplitHalfPrivateState:
        """The state after a search: a model for each cell."""
        search = state.search
        assert search is not None
        m, note = len(search.centres), search.note
        note = note or Note(
            kind="keep", effect="keeps", clients=state.clients, text=why or "no groups"
        )
        if m == 1:
            note = replace(
                note, otherwise="they would have been searched for groups" if note.criteria else ""
            )
            due = state.round + state.wait
            return replace(
                state, stage="train", notes=(note,), due=due, wait=2 * state.wait, search=None
            )
        text = f"{note.text}; {m} groups, of which the server does not know the members"
        note = replace(
            note,
            kind="split",
            effect="divides",
            text=text,
            numbers={"groups": float(m)},
            otherwise="it would not have been divided",
        )
        return replace(
            state,
            stage="train",
            models=state.models.expand(m, -1).clone(),
            shares=torch.full((m,), 1 / m, dtype=torch.float64),
            placing=SETTLED,
            notes=(note,),
        )

    def assignment(self, state: SplitHalfPrivateState) -> Assignment:
        return Assignment(
            models=state.models,
            row=dict.fromkeys(state.clients, 0),
            groups=(state.clients,) if state.clients else (),
            hidden=len(state.models) > 1,
        )

    def admit(
        self, state: SplitHalfPrivateState, clients: tuple[Client, ...]
    ) -> SplitHalfPrivateState:
        return replace(state, clients=joined(state.clients, clients))

    def retire(
        self, state: SplitHalfPrivateState, clients: tuple[Client, ...]
    ) -> SplitHalfPrivateState:
        return replace(state, clients=without(state.clients, clients))

    def explain(self, state: SplitHalfPrivateState) -> tuple[Note, ...]:
        return state.notes
