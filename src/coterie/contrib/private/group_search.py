"""Probes and searches of split-half from sums: does a group differ within, and into which cells is it cut?

A search asks the members of a group one question per exchange. It cuts a cell along the axis on
which its clients differ most, by a histogram of their coordinates (``"coordinates"``). Some steps
of Lloyd's algorithm follow: the server learns the mean of each cell, the next centre (``"means"``).
The moments of both new cells (``"moments"``) say which cell is cut next. At last every member says
which cell it is in (``"cell"``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from coterie.contrib.private.cells import CellQuestion, centres_of, coordinates, two_centres
from coterie.contrib.private.moments import Moments, congruence_from_sums
from coterie.core import Client, Note, joined, state
from coterie.methods._split_half_probes import ENOUGH_CLIENTS, ENOUGH_SHARE, MAX_PROBE_ROUNDS

LLOYD_STEPS = 4
"""Steps of Lloyd's algorithm after each cut."""


@state("split-half-sums.probe")
class SumsProbe:
    """A probe of a group: who has answered, from which model, and the sums.

    Attributes:
        model: ``(d,)``, the model from which all train.
        steps: mini-batch steps on each half.
        round: number of rounds completed when it began.
        scale: the scale of the sketches.
        answered: clients that have answered.
        sums: the vector of their :class:`~coterie.contrib.private.moments.Moments`; empty before the
            first answer.
    """

    model: torch.Tensor
    steps: int
    round: int
    scale: float
    answered: tuple[Client, ...] = ()
    sums: torch.Tensor

    def ends(self, members: Sequence[Client], completed_round: int) -> bool:
        """Return whether the probe of a group ends after a round."""
        # A probe also ends without enough answers, so that a run cannot stall.
        enough_answers = len(self.answered) >= min(ENOUGH_SHARE * len(members), ENOUGH_CLIENTS)
        return enough_answers or completed_round - self.round >= MAX_PROBE_ROUNDS

    def with_answers(self, clients: Iterable[Client], answer_sums: np.ndarray | None) -> SumsProbe:
        """Return the probe with the answers of a round.

        Args:
            clients: The clients that have answered.
            answer_sums: The sum of their answers; None without one.
        """
        if answer_sums is None:
            return self
        # Sums of several rounds add up, because all are of the same model and the same map.
        new_sums = torch.from_numpy(np.asarray(answer_sums))
        return replace(
            self,
            answered=joined(self.answered, clients),
            sums=self.sums + new_sums if len(self.sums) else new_sums,
        )


@state("split-half-sums.search")
class GroupSearch:
    """A search for the cells of a group.

    Attributes:
        probe: the probe whose sketches are used.
        note: the reasons for it.
        stage: what is asked next.
        centres: ``(m, k)``.
        before: the centres before the last cut.
        cell: the cell that was cut last, or is cut next.
        moments: ``(m, ...)``, moments of the cells, as vectors, from when each was cut.
        closed: cells that cannot be cut.
        turns: steps of Lloyd's algorithm that are left.
    """

    probe: SumsProbe
    note: Note
    stage: Literal["coordinates", "means", "moments", "cell"] = "coordinates"
    centres: torch.Tensor
    before: torch.Tensor
    cell: int = 0
    moments: torch.Tensor
    closed: tuple[int, ...] = ()
    turns: int = LLOYD_STEPS

    @property
    def question(self) -> CellQuestion:
        """What the members of the group are asked next."""
        sketch_scale = self.probe.scale
        centres = self.centres.numpy()
        # The histogram of the cell that is cut next.
        if self.stage == "coordinates":
            cell_moments = Moments.from_vector(self.moments[self.cell].numpy(), centres.shape[1])
            return coordinates(self.cell, cell_moments, sketch_scale, centres)
        # Both sides of the last cut, to test whether they differ within themselves.
        if self.stage == "moments":
            both_sides = (self.cell, len(centres) - 1)
            return CellQuestion(
                ask="moments", scale=sketch_scale, centres=centres, cells=both_sides
            )
        return CellQuestion(ask=self.stage, scale=sketch_scale, centres=centres)


def after_answer(
    cell_search: GroupSearch,
    answer_sums: np.ndarray | None,
    smallest: int,
    significance_level: float,
) -> GroupSearch | None:
    """Return a search after an answer; None if it ends without cells.

    Args:
        cell_search: The search.
        answer_sums: The sum of the answers; None if nobody has answered.
        smallest: The least number of clients of a cell.
        significance_level: A cell is cut if the p-value of its test is below.
    """
    if answer_sums is None:
        return None
    # The answer is that to the question of the stage.
    match cell_search.stage:
        case "coordinates":
            cut_search = _after_histogram(cell_search, answer_sums)
        case "means":
            cut_search = _after_means(cell_search, answer_sums, smallest)
        case _:
            cut_search = _after_moments(cell_search, answer_sums)
    if cut_search.stage == "coordinates":
        return _with_next_cell(cut_search, smallest, significance_level)
    return cut_search


def _after_histogram(cell_search: GroupSearch, bin_counts: np.ndarray) -> GroupSearch:
    """The search after a cell was cut by a histogram; at ``"coordinates"`` if it cannot be cut."""
    centres = cell_search.centres.numpy()
    side_centres = two_centres(cell_search.question, bin_counts, centres[cell_search.cell])
    if side_centres is None:
        return _with_closed_cell(cell_search)
    # One side keeps the number of the cell; the other becomes the last cell.
    new_centres = np.concatenate([centres, side_centres[1:]])
    new_centres[cell_search.cell] = side_centres[0]
    return replace(
        cell_search,
        stage="means",
        centres=torch.from_numpy(new_centres),
        before=cell_search.centres,
        turns=LLOYD_STEPS,
    )


def _after_means(cell_search: GroupSearch, answer_sums: np.ndarray, smallest: int) -> GroupSearch:
    """The search after a step of Lloyd's algorithm; at ``"coordinates"`` if a cell is too small."""
    centres = cell_search.centres.numpy()
    client_counts, cell_means = centres_of(answer_sums, len(centres))
    # As many as it would be if all clients of the probe had answered.
    scaled_counts = (
        client_counts * len(cell_search.probe.answered) / max(float(client_counts.sum()), 1e-9)
    )
    if scaled_counts.min() < smallest - 0.5:
        return _with_closed_cell(replace(cell_search, centres=cell_search.before))
    # Lloyd's algorithm ends when the centres stay, or after some steps.
    is_settled = np.allclose(cell_means, centres, rtol=0, atol=1e-9)
    remaining_steps = 0 if is_settled else cell_search.turns - 1
    return replace(
        cell_search,
        centres=torch.from_numpy(cell_means),
        turns=remaining_steps,
        stage="means" if remaining_steps else "moments",
    )


def _after_moments(cell_search: GroupSearch, answer_sums: np.ndarray) -> GroupSearch:
    """The search with the moments of both sides of the last cut, at ``"coordinates"``."""
    side_moments = torch.from_numpy(answer_sums.reshape(2, -1))
    moments = torch.cat([cell_search.moments, side_moments[1:]])
    moments[cell_search.cell] = side_moments[0]
    return replace(cell_search, stage="coordinates", moments=moments)


def _with_closed_cell(cell_search: GroupSearch) -> GroupSearch:
    """The search after a cell could not be cut."""
    return replace(cell_search, stage="coordinates", closed=(*cell_search.closed, cell_search.cell))


def _with_next_cell(
    cell_search: GroupSearch, smallest: int, significance_level: float
) -> GroupSearch | None:
    """The search with the next cell to cut, that of least p of those that are incongruent.

    If there is none, the clients are asked for their cells. None if there is only one cell.
    """
    k = cell_search.centres.shape[1]
    # Test all cells that are large enough to be cut and have not been found uncuttable.
    p_values: dict[int, float] = {}
    for cell, moment_vector in enumerate(cell_search.moments.numpy()):
        cell_moments = Moments.from_vector(moment_vector, k)
        is_large = cell_moments.count >= max(2, 2 * smallest - 0.5)
        if cell not in cell_search.closed and is_large:
            p_values[cell] = congruence_from_sums(cell_moments).p
    # The most incongruent cell is cut next.
    next_cell = min(p_values, key=lambda cell: p_values[cell], default=None)
    if next_cell is not None and p_values[next_cell] < significance_level:
        return replace(cell_search, stage="coordinates", cell=next_cell)
    # No cell differs within itself: the search ends, with cells if there are several.
    return replace(cell_search, stage="cell") if len(cell_search.moments) > 1 else None
