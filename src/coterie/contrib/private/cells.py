"""Clustering by sums over clients: clients answer questions by numbers which are added up, and place themselves.

Coterie's own. A client keeps the sketches of the updates of both halves of its data. A *cell* is
the set of clients whose whole update, the mean of both sketches, is nearest to one of m centres.
The server knows the centres and asks. A client answers with a vector that is zero in the places of
the other cells, so the sum of all answers contains the sums by cell. With these sums the server
clusters as Lloyd's algorithm does:

- ``"sizes"``: histograms of the norm of the client's update, and of its number of examples
  (:func:`sizes_of`).
- ``"moments"``: the :class:`~coterie.contrib.private.moments.Moments` of some cells, which test whether
  a cell is one group.
- ``"coordinates"``: a histogram of the coordinates of a cell's clients on an axis; it gives a cut
  (:func:`two_centres`).
- ``"means"``: the number and the mean of the clients in each cell (:func:`centres_of`), the new
  centres.
- ``"cell"``: no numbers. The client says which cell is its own, and so which group's model it
  takes. If the plan is ``hidden``, it takes the model and does not say so.

Before, a client divides its sketches by ``scale`` and shortens longer ones to norm 1. So all
numbers are between -1 and 1.

The answers to the other questions have norm 1 at most, so that noise on their sum covers them
(differential privacy). For the last three a client subtracts the centre of its cell from its halves
beforehand:

- ``"norms"``: histograms of the norm of the client's update, and of its number of examples
  (:func:`norms_of`).
- ``"distances"``: a histogram of the distances from the centre, which gives their median
  (:func:`median_of`).
- ``"crossed"``: the :class:`~coterie.contrib.private.moments.Crossed` of some cells, which test whether
  a cell is one group.
- ``"places"``: histograms of the coordinates of several cells' clients, each on an axis of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.contrib.private.moments import (
    Crossed,
    Moments,
    axis,
    crossed_length,
    histogram_cut,
    length,
)
from coterie.core import Task

Ask = Literal[
    "sizes", "moments", "coordinates", "means", "cell", "norms", "distances", "crossed", "places"
]

CENTRED = ("distances", "crossed", "places")
"""Questions about how clients differ from the centre of their cell."""

COVERED = ("norms", *CENTRED)
"""Questions whose answers have norm 1 at most."""

BINS_PER_OCTAVE = 2
"""Bins of a histogram of norms, distances or numbers of examples, for each factor of two."""

SIZE_OCTAVES = 32
"""The histograms of ``"sizes"`` reach from 2^-16 to 2^16."""

SIZE_BINS = SIZE_OCTAVES * BINS_PER_OCTAVE

OCTAVES_BELOW = 7
OCTAVES_ABOVE = 1
"""The histograms of ``"norms"`` and ``"distances"`` reach from 2^-7 to 2 times the scale of the
question."""

NORM_BINS = (OCTAVES_BELOW + OCTAVES_ABOVE) * BINS_PER_OCTAVE

COORDINATE_BINS = 32
"""Bins of a histogram of coordinates."""

HALF_WIDTH = 3.0
"""A histogram of coordinates reaches this many standard deviations to both sides of the cell's
mean."""

SMALLEST_NORM = 1e-300
"""What counts in place of a norm of zero, which has no logarithm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CellQuestion:
    """A question that clients answer about the sketches ``(2, k)`` of their halves, or about their update.

    Attributes:
        ask: What is asked, see :mod:`~coterie.contrib.private.cells`.
        scale: Sketches are divided by this; longer ones are shortened to it.
        centres: Shape ``(m, k)``, in units of ``scale``. None for a single cell.
        cells: The cells that are asked about, for ``"moments"``, ``"crossed"``, ``"places"`` and
            ``"coordinates"`` (one).
        axis: For ``"coordinates"`` shape ``(k,)``; for ``"places"`` ``(len(cells), k)``, and its
            length is that of one over the width of the histogram, whose middle is the centre.
        low: Where the histogram of ``"coordinates"`` begins.
        high: Where it ends; coordinates beyond are counted in the last bins.
        cost: As how many updates the answer counts for differential privacy; noise is less by the
            square root of it.
    """

    ask: Ask
    scale: float = 1.0
    centres: np.ndarray | None = None
    cells: tuple[int, ...] = (0,)
    axis: np.ndarray | None = None
    low: float = 0.0
    high: float = 1.0
    cost: int = 1

    def __post_init__(self) -> None:
        # In single precision, as they are sent, so that all engines compute the same.
        for name in ("centres", "axis"):
            value = getattr(self, name)
            object.__setattr__(
                self, name, None if value is None else np.asarray(value, dtype=np.float32)
            )

    @property
    def count(self) -> int:
        """m, the number of cells."""
        return 1 if self.centres is None else len(self.centres)

    def length(self, k: int) -> int:
        """Return how many numbers a client answers that has sketches of k numbers."""
        num_cells = len(self.cells)
        lengths = {
            "sizes": 2 * SIZE_BINS,
            "moments": num_cells * length(k),
            "coordinates": COORDINATE_BINS,
            "means": self.count * (1 + k),
            "cell": 0,
            "norms": 2 * NORM_BINS,
            "distances": NORM_BINS,
            "crossed": num_cells * crossed_length(k),
            "places": num_cells * COORDINATE_BINS,
        }
        return lengths[self.ask]

    @property
    def asks_cell(self) -> bool:
        """Whether the client names its cell. It adds no numbers to a sum."""
        return self.ask == "cell"

    @property
    def needs_norm(self) -> bool:
        """Whether the question is about the norm of the client's update."""
        return self.ask in ("sizes", "norms")

    @property
    def is_bounded(self) -> bool:
        """Whether an answer has norm 1 at most, so that noise on the sum covers it."""
        return self.ask in COVERED

    @property
    def sent(self) -> int:
        """How many numbers a client receives with the question, besides a few of the task's."""
        return sum(0 if part is None else part.size for part in (self.centres, self.axis))

    def cell(self, halves: np.ndarray) -> int:
        """Return the cell of a client with these sketches ``(2, k)``."""
        return self._nearest(self._scaled(halves).mean(axis=0))

    def _nearest(self, mean: np.ndarray) -> int:
        """The cell whose centre is nearest to the mean of a client's sketches, in units of the scale."""
        if self.centres is None:
            return 0
        return int(np.argmin(((mean - self.centres) ** 2).sum(axis=1)))

    def _scaled(self, halves: np.ndarray) -> np.ndarray:
        """Both halves in units of the scale, with a mean and a noise of norm 1 at most, in double precision."""
        first, second = halves.astype(np.float64)
        mean = _shortened((first + second) / 2 / self.scale)
        noise = _shortened((first - second) / 2 / self.scale)
        return np.stack([mean + noise, mean - noise])

    def answer(
        self, halves: np.ndarray | None, norm: float | None = None, examples: int = 0
    ) -> np.ndarray | None:
        """Return a client's answer, a vector of :meth:`length` numbers.

        Args:
            halves: Shape ``(2, k)``, the sketches of its halves; None if it has none.
            norm: The norm of its update, for ``"sizes"`` and ``"norms"``.
            examples: Its number of training examples, for ``"sizes"`` and ``"norms"``.

        Returns:
            The answer in single precision; None if the client does not know what is asked for.
        """
        answer: np.ndarray | None = None
        if self.needs_norm:
            if norm is not None and self.ask == "sizes":
                answer = np.concatenate([_size_histogram(norm), _size_histogram(examples)])
            elif norm is not None:
                histograms = [_norm_histogram(norm / self.scale), _examples_histogram(examples)]
                answer = np.concatenate(histograms) / np.sqrt(2)
        elif halves is not None and self.ask in CENTRED:
            answer = self._centred_answer(halves.astype(np.float64) / self.scale)
        elif halves is not None:
            answer = self._answer_about_cell(self._scaled(halves))
        return None if answer is None else answer.astype(np.float32)

    def _centred_answer(self, halves: np.ndarray) -> np.ndarray:
        """The answer about halves in units of the scale, less the centre of their cell."""
        cell = self._nearest(halves.mean(axis=0))
        # How the client differs from the centre of its cell.
        centred = halves if self.centres is None else halves - self.centres[cell]
        if self.ask == "distances":
            return _norm_histogram(float(np.linalg.norm(centred.mean(axis=0))))
        centred = centred / np.maximum(1.0, np.linalg.norm(centred, axis=1, keepdims=True))
        # One row for each cell that is asked about; all but that of the client's cell are zero.
        rows = np.zeros((len(self.cells), self.length(halves.shape[1]) // len(self.cells)))
        if cell in self.cells:
            row = self.cells.index(cell)
            if self.ask == "crossed":
                rows[row] = Crossed.of(*centred[:, None]).vector()
            elif self.axis is not None:
                # The middle of the histogram is the centre, and one width is an axis long.
                place = 0.5 + self.axis[row] @ centred.mean(axis=0)
                rows[row, _coordinate_bin(place)] = 1.0
        return rows.ravel()

    def _answer_about_cell(self, scaled: np.ndarray) -> np.ndarray:
        """The answer about halves as :meth:`_scaled` returns them: numbers in the place of the client's cell."""
        mean = scaled.mean(axis=0)
        cell = self._nearest(mean)
        # Zeros for the other cells: the sum over clients has the sums by cell.
        if self.ask == "moments":
            moments = Moments.of(*scaled[:, None]).vector()
            return np.concatenate(
                [moments if cell == asked else np.zeros(len(moments)) for asked in self.cells]
            )
        if self.ask == "means":
            table = np.zeros((self.count, 1 + len(mean)))
            table[cell] = [1.0, *mean]
            return table.ravel()
        histogram = np.zeros(self.length(len(mean)))
        if self.ask == "coordinates" and cell in self.cells and self.axis is not None:
            place = (float(self.axis @ mean) - self.low) / (self.high - self.low)
            histogram[_coordinate_bin(place)] = 1.0
        return histogram


def _shortened(vector: np.ndarray) -> np.ndarray:
    """A vector, shortened to norm 1 if it is longer."""
    return vector / max(1.0, float(np.linalg.norm(vector)))


# -- histograms of one client: a 1 in its bin
# ------------------------------------------------------------------------------


def _one_hot(bin_index: float, num_bins: int) -> np.ndarray:
    """Zeros with a 1 in a bin; what is beyond an end is counted in the last bin there."""
    histogram = np.zeros(num_bins)
    histogram[int(np.clip(bin_index, 0, num_bins - 1))] = 1.0
    return histogram


def _size_histogram(value: float) -> np.ndarray:
    """The histogram of a norm, or of a number of examples, for ``"sizes"``."""
    octave = np.log2(max(value, SMALLEST_NORM)) + SIZE_OCTAVES / 2
    return _one_hot(np.floor(octave * BINS_PER_OCTAVE), SIZE_BINS)


def _norm_histogram(norm: float) -> np.ndarray:
    """The histogram of a norm in units of the scale, for ``"norms"`` and ``"distances"``."""
    octave = np.log2(max(norm, SMALLEST_NORM)) + OCTAVES_BELOW
    return _one_hot(np.floor(octave * BINS_PER_OCTAVE), NORM_BINS)


def _examples_histogram(examples: int) -> np.ndarray:
    """The histogram of a number of examples for ``"norms"``: a bin for each power of two."""
    return _one_hot(max(examples, 1).bit_length() - 1, NORM_BINS)


def _coordinate_bin(place: float) -> int:
    """The bin of a coordinate, from its place between the ends of the histogram, 0 and 1."""
    return int(np.clip(place * COORDINATE_BINS, 0, COORDINATE_BINS - 1))


def question_of(task: Task) -> CellQuestion | None:
    """Return the question of a task; None if it has none."""
    question = task.private.question
    assert question is None or isinstance(question, CellQuestion)
    return question


def sizes_of(sums: np.ndarray, quantile: float = 1.0) -> tuple[float, float]:
    """Return a bound on the norms of updates, and the median number of examples, from answers about sizes.

    Args:
        sums: The sum of the answers.
        quantile: The share of the norms that are below the bound.

    Returns:
        The upper end of the bin in which the norms reach that share, and the middle of the bin of
        the median.

    Example:
        >>> question = CellQuestion(ask="sizes")
        >>> bound, examples = sizes_of(sum(question.answer(None, norm, 68) for norm in (0.3, 1.7, 5.0)))
        >>> round(bound, 2), round(examples)
        (5.66, 76)
    """
    norms, examples = np.maximum(np.split(sums, 2), 0.0)
    norm_bound = (_quantile(norms, quantile) + 1) / BINS_PER_OCTAVE - SIZE_OCTAVES / 2
    median_examples = (_quantile(examples, 0.5) + 0.5) / BINS_PER_OCTAVE - SIZE_OCTAVES / 2
    return 2.0**norm_bound, 2.0**median_examples


def _quantile(counts: np.ndarray, share: float) -> int:
    """The bin in which the counts reach a share of all."""
    return int(np.searchsorted(np.cumsum(counts), share * counts.sum() * (1 - 1e-12)))


def median_of(counts: np.ndarray, scale: float) -> float:
    """Return the median of norms or distances, the upper end of its bin.

    Noise on the counts makes it too large rather than too small: it is sought from above.

    Args:
        counts: The sum of the answers.
        scale: The scale of the question.

    Example:
        >>> median_of(np.array([0] * 10 + [3, 1, 1] + [0] * 3), 8.0)
        2.8284271247461903
    """
    return float(scale * 2.0 ** ((_median_bin(counts) + 1) / BINS_PER_OCTAVE - OCTAVES_BELOW))


def norms_of(sums: np.ndarray, scale: float) -> tuple[float, int]:
    """Return the medians of the norms of updates, and of the numbers of examples, from answers about norms.

    Args:
        sums: The sum of the answers.
        scale: The scale of the question.

    Example:
        >>> question = CellQuestion(ask="norms", scale=8.0)
        >>> norms_of(sum(question.answer(None, norm, 68) for norm in (0.3, 1.7, 5.0)), 8.0)
        (2.0, 91)
    """
    norms, examples = np.split(sums, 2)
    return median_of(norms, scale), round(2.0 ** (_median_bin(examples) + 0.5))


def _median_bin(counts: np.ndarray) -> int:
    """The bin of the median, sought from the last bin."""
    counts_from_here = np.cumsum(counts[::-1])[::-1]
    return int(np.flatnonzero(counts_from_here >= counts_from_here[0] / 2)[-1])


def coordinates(cell: int, sums: Moments, scale: float, centres: np.ndarray | None) -> CellQuestion:
    """Ask for the histogram of a cell's clients along the axis on which they differ most.

    Args:
        cell: The cell.
        sums: Its moments.
        scale: The scale of the sketches.
        centres: All centres.
    """
    direction = axis(sums)
    middle = float(direction @ sums.total) / sums.count
    variance = float(direction @ sums.scatter @ direction) / sums.count
    half_width = HALF_WIDTH * max(variance, 1e-30) ** 0.5
    return CellQuestion(
        ask="coordinates",
        scale=scale,
        centres=centres,
        cells=(cell,),
        axis=direction,
        low=middle - half_width,
        high=middle + half_width,
    )


def two_centres(question: CellQuestion, counts: np.ndarray, mean: np.ndarray) -> np.ndarray | None:
    """Return the centres ``(2, k)`` of both sides of a cut through a cell.

    Args:
        question: The question of :func:`coordinates`.
        counts: Shape ``(COORDINATE_BINS,)``, the sum of the answers.
        mean: Shape ``(k,)``, the mean of the cell.

    Returns:
        The centres, on the axis through the mean; None if all clients are in one bin.
    """
    cut = histogram_cut(counts)
    direction = question.axis
    if cut is None or direction is None:
        return None
    counts = np.maximum(counts, 0.0)
    width = question.high - question.low
    places = question.low + (np.arange(COORDINATE_BINS) + 0.5) * width / COORDINATE_BINS
    # Both centres are on the axis through the mean of the cell.
    left_mean, right_mean = _side_means(counts, places, cut)
    mean_place = float(direction @ mean)
    return np.stack(
        [mean + (left_mean - mean_place) * direction, mean + (right_mean - mean_place) * direction]
    )


def _side_means(counts: np.ndarray, places: np.ndarray, cut: int) -> tuple[float, float]:
    """The mean places of a histogram on both sides of a cut."""
    left = counts[:cut] @ places[:cut] / counts[:cut].sum()
    right = counts[cut:] @ places[cut:] / counts[cut:].sum()
    return float(left), float(right)


def cuts(question: CellQuestion, counts: np.ndarray, deviation: float) -> list[np.ndarray | None]:
    """Return for each cell the centres ``(2, k)`` of both sides of a cut, from answers about places.

    Args:
        question: The question, with axes.
        counts: The sum of the answers.
        deviation: Standard deviation of the noise on each of these numbers.

    Returns:
        The centres in units of the scale, for each of the question's cells; None if all its clients
        are in one bin.
    """
    centres_of_sides: list[np.ndarray | None] = []
    histograms = counts.reshape(len(question.cells), COORDINATE_BINS)
    for row, (cell, histogram) in enumerate(zip(question.cells, histograms, strict=True)):
        # Most bins at the ends are empty, and would count with their noise.
        histogram = np.where(histogram > deviation / 2, histogram, 0.0)
        cut = histogram_cut(histogram)
        if cut is None or question.axis is None or question.centres is None:
            centres_of_sides.append(None)
            continue
        axis_of_cell = question.axis[row].astype(np.float64)
        # A vector along the axis, as long as the histogram is wide.
        width = axis_of_cell / (axis_of_cell @ axis_of_cell)
        places = (np.arange(COORDINATE_BINS) + 0.5) / COORDINATE_BINS - 0.5
        left_mean, right_mean = _side_means(histogram, places, cut)
        centre = question.centres[cell]
        centres_of_sides.append(np.stack([centre + left_mean * width, centre + right_mean * width]))
    return centres_of_sides


def halved(sums: Moments) -> np.ndarray:
    """Return the centres ``(2, k)`` of a cut at the mean, across the axis on which a cell's clients differ most."""
    direction = axis(sums)
    mean = sums.total / sums.count
    variance = float(direction @ sums.scatter @ direction) / sums.count
    offset = variance**0.5 * direction
    return np.stack([mean - offset, mean + offset])


def centres_of(sums: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers ``(m,)`` and the means ``(m, k)`` of the clients in each of m cells, from answers about means.

    The mean of an empty cell is zero.
    """
    table = sums.reshape(m, -1)
    return table[:, 0], table[:, 1:] / np.maximum(table[:, :1], 1e-9)
