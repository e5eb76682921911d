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

    def ends(self, members: Sequence[Client], round: int) -> bool:
        """Return whether the probe of a group ends after a round."""
        enough_answers = len(self.answered) >= min(ENOUGH_SHARE * len(members), ENOUGH_CLIENTS)
        return enough_answers or round - self.round >= MAX_PROBE_ROUNDS

    def with_answers(self, clients: Iterable[Client], sums: np.ndarray | None) -> SumsProbe:
        """Return the probe with the answers of a round.

        Args:
            clients: The clients that have answered.
            sums: The sum of their answers; None without one.
        """
        if sums is None:
            return self
        vector = torch.from_numpy(np.asarray(sums))
        return replace(
            self,
            answered=joined(self.answered, clients),
            sums=self.sums + vector if len(self.sums) else vector,
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
        scale = self.probe.scale
        centres = self.centres.numpy()
        if self.stage == "coordinates":
            moments = Moments.from_vector(self.moments[self.cell].numpy(), centres.shape[1])
            return coordinates(self.cell, moments, scale, centres)
        if self.stage == "moments":
            both_sides = (self.cell, len(centres) - 1)
            return CellQuestion(ask="moments", scale=scale, centres=centres, cells=both_sides)
        return CellQuestion(ask=self.stage, scale=scale, centres=centres)


def after_answer(
    search: GroupSearch, answer: np.ndarray | None, smallest: int, level: float
) -> GroupSearch | None:
    """Return a search after an answer; None if it ends without cells.

    Args:
        search: The search.
        answer: The sum of the answers; None if nobody has answered.
        smallest: The least number of clients of a cell.
        level: A cell is cut if the p-value of its test is below.
    """
    if answer is None:
        return None
    match search.stage:
        case "coordinates":
            cut_search = _after_histogram(search, answer)
        case "means":
            cut_search = _after_means(search, answer, smallest)
        case _:
            cut_search = _after_moments(search, answer)
    if cut_search.stage == "coordinates":
        return _with_next_cell(cut_search, smallest, level)
    return cut_search


def _after_histogram(search: GroupSearch, counts: np.ndarray) -> GroupSearch:
    """The search after a cell was cut by a histogram; at ``"coordinates"`` if it cannot be cut."""
    centres = search.centres.numpy()
    sides = two_centres(search.question, counts, centres[search.cell])
    if sides is None:
        return _with_closed_cell(search)
    # One side keeps the number of the cell; the other becomes the last cell.
    new_centres = np.concatenate([centres, sides[1:]])
    new_centres[search.cell] = sides[0]
    return replace(
        search,
        stage="means",
        centres=torch.from_numpy(new_centres),
        before=search.centres,
        turns=LLOYD_STEPS,
    )


def _after_means(search: GroupSearch, answer: np.ndarray, smallest: int) -> GroupSearch:
    """The search after a step of Lloyd's algorithm; at ``"coordinates"`` if a cell is too small."""
    centres = search.centres.numpy()
    counts, means = centres_of(answer, len(centres))
    # As many as it would be if all clients of the probe had answered.
    members = counts * len(search.probe.answered) / max(float(counts.sum()), 1e-9)
    if members.min() < smallest - 0.5:
        return _with_closed_cell(replace(search, centres=search.before))
    is_settled = np.allclose(means, centres, rtol=0, atol=1e-9)
    turns = 0 if is_settled else search.turns - 1
    return replace(
        search,
        centres=torch.from_numpy(means),
        turns=turns,
        stage="means" if turns else "moments",
    )


def _after_moments(search: GroupSearch, answer: np.ndarray) -> GroupSearch:
    """The search with the moments of both sides of the last cut, at ``"coordinates"``."""
    sides = torch.from_numpy(answer.reshape(2, -1))
    moments = torch.cat([search.moments, sides[1:]])
    moments[search.cell] = sides[0]
    return replace(search, stage="coordinates", moments=moments)


def _with_closed_cell(search: GroupSearch) -> GroupSearch:
    """The search after a cell could not be cut."""
    return replace(search, stage="coordinates", closed=(*search.closed, search.cell))


def _with_next_cell(search: GroupSearch, smallest: int, level: float) -> GroupSearch | None:
    """The search with the next cell to cut, that of least p of those that are incongruent.

    If there is none, the clients are asked for their cells. None if there is only one cell.
    """
    k = search.centres.shape[1]
    p_values: dict[int, float] = {}
    for cell, vector in enumerate(search.moments.numpy()):
        moments = Moments.from_vector(vector, k)
        is_large = moments.count >= max(2, 2 * smallest - 0.5)
        if cell not in search.closed and is_large:
            p_values[cell] = congruence_from_sums(moments).p
    next_cell = min(p_values, key=lambda cell: p_values[cell], default=None)
    if next_cell is not None and p_values[next_cell] < level:
        return replace(search, stage="coordinates", cell=next_cell)
    return replace(search, stage="cell") if len(search.moments) > 1 else None
