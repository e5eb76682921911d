"""Private split-half: groups from sums alone, of which the server does not learn who is in them.

Coterie's own. As in :mod:`~coterie.contrib.private.split_half_sums`, the server gets sums only.
Besides, every number that leaves a client is a part of a sum, to which the client adds a vector of
bounded norm, so that noise on the sums makes the whole run differentially private
(``boundary.noise`` with ``boundary.masks``). The server sends all models to all clients. Each
client takes one of them, and sends a vector with a slot for every model, in which all but one are
zero (``PrivatePlan.hides_choices``). So the server learns how large groups are, up to the noise,
and what their models are.

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
from coterie.contrib.private.cells import HALF_WIDTH, CellQuestion, cuts, median_of, norms_of
from coterie.contrib.private.moments import (
    Crossed,
    crossed_axis,
    crossed_congruence,
    crossed_length,
)
from coterie.core import (
    NOT_STORED,
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
from coterie.methods._split_half_probes import HALF_STEPS_IN_ROUNDS, differ
from coterie.settings import check, setting

PLACED_ROUNDS = 3
"""Rounds in which clients take the model of their cell, before models differ enough to choose by
loss."""

CROSSED_COST = 6
"""The number of updates as which the sums of cells in a search count."""

PLACES_COST = 2
"""The number of updates as which the histograms of a search count."""

SHARE_SMOOTHING = 0.3
"""Weight of a round in the estimated sizes of groups, if these are noisy."""

MIN_CLIENTS_PER_DEVIATION = 20.0
"""Medians are not taken from histograms of fewer clients than this, in deviations of the noise on a
bin."""

UNLIMITED_SCALE = 1024.0
"""The scale of sketches, in the unit of a search, when a client says nothing about them: none is
shortened."""

MAX_HALF_WIDTH = 1.5
"""The greatest half width of a histogram of coordinates, whose norm is 1 at most."""


@state("split-half-private.search")
class CellSearch:
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
    search: CellSearch | None = None
    placing: int = 0
    training: Training = field(default_factory=Training)
    parameters: int
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class SplitHalfPrivate:
    """Split-half for secure aggregation with differential privacy: the server does not learn who is in which group."""

    name: ClassVar[str] = "split-half-private"

    fraction: float = setting(1.0, "fraction of the clients sampled in each round", gt=0, le=1)
    level: float = setting(
        0.01, "significance level: a cell is cut if the p-value is below", gt=0, lt=1
    )
    first_probe: int = setting(
        5,
        "the first test round; if it finds no groups, the next comes twice as late",
        ge=1,
        begins="the first test round",
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
        # Questions and probes are for all clients, a usual round for a sample of them.
        asked_fraction = 1.0
        if state.stage == "norms":
            norm_question = CellQuestion(ask="norms", scale=state.limit or 1.0)
            private_task = PrivateTask(question=norm_question, sends_update=False)
            task = Task(offered=(0,), private=private_task)
        elif state.stage != "train":
            task = Task(offered=(0,), epochs=0, private=PrivateTask(question=self._question(state)))
        elif self.probes(state):
            task = Task(offered=(0,), halves=True, training=self._probing(state))
        else:
            asked_fraction = self.fraction
            all_rows = tuple(range(len(state.models)))
            task = Task(offered=all_rows, private=PrivateTask(question=_cell_question(state)))
        # Sketches cost time, so only tasks that need them make them.
        uses_sketches = task.halves or task.private.question is not None
        return Plan(
            models=state.models,
            tasks=dict.fromkeys(cohort.sample(state.clients, asked_fraction), task),
            need="sums",
            private=PrivatePlan(hides_choices=True, clip=state.clip or None),
            columns=slice(0, state.parameters),
            sketch=self.sketch if uses_sketches and state.stage != "norms" else None,
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
        return (
            of_equal_steps(state.training, [state.examples], HALF_STEPS_IN_ROUNDS) or state.training
        )

    def _question(self, state: SplitHalfPrivateState) -> CellQuestion:
        """The next question of a search."""
        cell_search = state.search
        assert cell_search is not None
        centres = cell_search.centres.numpy()
        if state.stage == "distances":
            greatest_distance = _max_distance(state)
            return CellQuestion(
                ask="distances", scale=greatest_distance, centres=centres / greatest_distance
            )
        if cell_search.axes is None:
            return CellQuestion(
                ask="crossed",
                scale=cell_search.scale,
                centres=centres,
                cells=cell_search.open,
                cost=CROSSED_COST,
            )
        return CellQuestion(
            ask="places",
            scale=cell_search.scale,
            centres=centres,
            cells=cell_search.open,
            axis=cell_search.axes.numpy(),
            cost=PLACES_COST,
        )

    def step(self, state: SplitHalfPrivateState, replies: Replies) -> SplitHalfPrivateState:
        state = replace(state, notes=())
        if state.stage == "train":
            return self._trained(state, replies)
        answer_sums = replies.sums.by_row.get(0)
        noise_deviation = replies.sums.deviation
        if state.stage == "norms":
            return _with_norms(state, replies, answer_sums)
        # Nobody has answered, or too few for their noise to be enough.
        if answer_sums is None:
            return self._ended(state, "too few clients answered")
        cell_search = state.search
        assert cell_search is not None
        # The median distance from the centre is the unit of the search.
        if state.stage == "distances":
            search_unit = median_of(answer_sums, _max_distance(state))
            scaled_search = replace(
                cell_search, scale=search_unit, centres=cell_search.centres / search_unit
            )
            return replace(state, stage="search", search=scaled_search)
        if cell_search.axes is None:
            return self._tested(state, cell_search, answer_sums, noise_deviation)
        return self._cut(state, cell_search, answer_sums, noise_deviation)

    def _trained(self, state: SplitHalfPrivateState, replies: Replies) -> SplitHalfPrivateState:
        """The state after a round of training."""
        # The share of the clients in each group, estimated from noisy counts.
        model_count = len(state.models)
        mean_counts = replies.mean_counts
        assert mean_counts is not None
        answer_count = max(len(replies.clients), 1)
        counted_shares = torch.from_numpy(np.asarray(mean_counts, dtype=np.float64)) / answer_count
        # A mean update is the sum over a group divided by all clients, so that of the group itself
        # is this divided by the group's share.
        has_noise = not np.issubdtype(mean_counts.dtype, np.integer)
        group_shares = counted_shares
        if model_count == 1:
            group_shares = torch.ones(1, dtype=torch.float64)
        elif has_noise:
            group_shares = state.shares + SHARE_SMOOTHING * (counted_shares - state.shares)
        divisors = group_shares.where(group_shares > 0, 1.0)
        if has_noise:
            # Below this share a group's mean would be noise.
            divisors = group_shares.clamp(min=1 / (4 * model_count))
        # The mean update of each group is added to its model.
        group_models = state.models + replies.mean_updates / divisors[:, None].float()
        new_state = replace(
            state,
            round=state.round + 1,
            models=group_models,
            shares=group_shares,
            placing=max(state.placing - 1, 0),
        )
        if not self.probes(state) or not replies.clients:
            return new_state
        # The mean of all clients is the common centre of the search.
        common_centre = sketch(replies.mean_updates[:, : state.parameters], self.sketch).double()
        return replace(new_state, stage="distances", search=CellSearch(centres=common_centre))

    def _tested(
        self,
        state: SplitHalfPrivateState,
        cell_search: CellSearch,
        answer_sums: np.ndarray,
        deviation: float,
    ) -> SplitHalfPrivateState:
        """The state after a test of all open cells: those in which clients differ get an axis."""
        k = cell_search.centres.shape[1]
        # The answer has the sums of all open cells, one after the other.
        sums_of_cells = [
            Crossed.from_vector(cell_vector)
            for cell_vector in answer_sums.reshape(-1, crossed_length(k))
        ]
        p_values = [crossed_congruence(cell_sums, deviation)[1] for cell_sums in sums_of_cells]
        if cell_search.note is None:
            test_note = self._test_note(state, p_values[0], sums_of_cells[0].count)
            cell_search = replace(cell_search, note=test_note)
        # Cut the cells whose clients differ significantly, and leave the others as they are.
        centres = cell_search.centres.clone()
        histogram_axes: list[torch.Tensor] = []
        cut_cells: list[int] = []
        for tested_cell, cell_sums, p in zip(
            cell_search.open, sums_of_cells, p_values, strict=True
        ):
            if not p < self.level:
                continue
            # The histogram is around the mean of the cell's clients, along the axis of their
            # greatest variance.
            centres[tested_cell] += torch.from_numpy(
                cell_sums.totals.mean(axis=0) / max(cell_sums.count, 2.0)
            )
            direction, variance = crossed_axis(cell_sums)
            half_width = min(HALF_WIDTH * max(variance, 1e-3) ** 0.5, MAX_HALF_WIDTH)
            histogram_axes.append(torch.from_numpy(direction) / (2 * half_width))
            cut_cells.append(tested_cell)
        if not histogram_axes:
            return self._ended(replace(state, search=cell_search))
        cell_search = replace(
            cell_search, centres=centres, axes=torch.stack(histogram_axes), open=tuple(cut_cells)
        )
        return replace(state, search=cell_search)

    def _cut(
        self,
        state: SplitHalfPrivateState,
        cell_search: CellSearch,
        answer_sums: np.ndarray,
        deviation: float,
    ) -> SplitHalfPrivateState:
        """The state after histograms of all cells that are cut."""
        # Each cell that can be cut becomes two, which are tested next.
        centres = list(cell_search.centres)
        new_cells: list[int] = []
        centres_of_sides = cuts(self._question(state), answer_sums, deviation)
        for cut_cell, side_centres in zip(cell_search.open, centres_of_sides, strict=True):
            if side_centres is None:
                continue
            # One side keeps the number of the cell; the other becomes a new cell.
            centres[cut_cell] = torch.from_numpy(side_centres[0])
            centres.append(torch.from_numpy(side_centres[1]))
            new_cells += [cut_cell, len(centres) - 1]
        cell_search = replace(
            cell_search,
            centres=torch.stack(centres),
            open=tuple(new_cells),
            axes=None,
            level=cell_search.level + 1,
        )
        state = replace(state, search=cell_search)
        # No cell could be cut, or there are as many groups as the settings allow.
        if not new_cells or cell_search.level >= self.levels:
            return self._ended(state)
        return state

    def _test_note(self, state: SplitHalfPrivateState, p: float, client_count: float) -> Note:
        """Describe the test of the first cell, which has all clients."""
        # The note is kept until the search ends, and then says what has followed.
        criterion = differ("p", p, self.level, max(round(client_count), 2))
        return Note(
            kind="keep",
            effect="keeps",
            clients=state.clients,
            text=criterion.text,
            criteria=(criterion,),
        )

    def _ended(self, state: SplitHalfPrivateState, end_reason: str = "") -> SplitHalfPrivateState:
        """The state after a search: a model for each cell."""
        cell_search = state.search
        assert cell_search is not None
        group_count = len(cell_search.centres)
        search_note = cell_search.note
        if search_note is None:
            note_text = end_reason or "no groups"
            search_note = Note(kind="keep", effect="keeps", clients=state.clients, text=note_text)
        # No groups were found: wait twice as long for the next search.
        if group_count == 1:
            otherwise = "they would have been searched for groups" if search_note.criteria else ""
            return replace(
                state,
                stage="train",
                notes=(replace(search_note, otherwise=otherwise),),
                due=state.round + state.wait,
                wait=2 * state.wait,
                search=None,
            )
        note_text = f"{search_note.text}; {group_count} groups, of which the server does not know the members"
        search_note = replace(
            search_note,
            kind="split",
            effect="divides",
            text=note_text,
            numbers={"groups": float(group_count)},
            otherwise="it would not have been divided",
        )
        return replace(
            state,
            stage="train",
            models=state.models.expand(group_count, -1).clone(),
            shares=torch.full((group_count,), 1 / group_count, dtype=torch.float64),
            placing=PLACED_ROUNDS,
            notes=(search_note,),
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


def _max_distance(state: SplitHalfPrivateState) -> float:
    """The greatest distance of a client from the centre: two halves of the maximum norm are no further apart."""
    return 2 * (state.clip or 1.0)


def _cell_question(state: SplitHalfPrivateState) -> CellQuestion | None:
    """The question by which clients take the model of their cell; None once they choose by loss."""
    cell_search = state.search
    if not state.placing or cell_search is None:
        return None
    # So large a scale shortens no sketch; the centres are in the same unit.
    centres = cell_search.centres.numpy() / UNLIMITED_SCALE
    return CellQuestion(ask="cell", scale=UNLIMITED_SCALE * cell_search.scale, centres=centres)


def _with_norms(
    state: SplitHalfPrivateState, replies: Replies, answer_sums: np.ndarray | None
) -> SplitHalfPrivateState:
    """The state after a histogram of the norms of updates, which gives the maximum norm."""
    if answer_sums is None:
        # Nobody has answered: ask again. Or the clients cannot answer.
        return state if not replies.clients else replace(state, stage="train")
    # With so few clients the histogram is mostly noise: the boundary's norm has to do.
    if MIN_CLIENTS_PER_DEVIATION * replies.sums.deviation > len(replies.clients):
        return replace(state, stage="train", clip=state.limit)
    median_norm, median_examples = norms_of(answer_sums, state.limit or 1.0)
    return replace(
        state, stage="train", clip=min(median_norm, state.limit), examples=median_examples
    )
