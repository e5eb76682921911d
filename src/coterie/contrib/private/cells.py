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
        for field_name in ("centres", "axis"):
            field_value = getattr(self, field_name)
            if field_value is not None:
                field_value = np.asarray(field_value, dtype=np.float32)
                object.__setattr__(self, field_name, field_value)

    @property
    def count(self) -> int:
        """m, the number of cells."""
        return 1 if self.centres is None else len(self.centres)

    def length(self, k: int) -> int:
        """Return how many numbers a client answers that has sketches of k numbers."""
        cell_count = len(self.cells)
        # The sum over clients must have the same form whatever a client answers.
        answer_lengths = {
            "sizes": 2 * SIZE_BINS,
            "moments": cell_count * length(k),
            "coordinates": COORDINATE_BINS,
            "means": self.count * (1 + k),
            "cell": 0,
            "norms": 2 * NORM_BINS,
            "distances": NORM_BINS,
            "crossed": cell_count * crossed_length(k),
            "places": cell_count * COORDINATE_BINS,
        }
        return answer_lengths[self.ask]

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
        sent_arrays = (self.centres, self.axis)
        return sum(array.size for array in sent_arrays if array is not None)

    def cell(self, halves: np.ndarray) -> int:
        """Return the cell of a client with these sketches ``(2, k)``."""
        return self._nearest(self._scaled(halves).mean(axis=0))

    def _nearest(self, sketch_mean: np.ndarray) -> int:
        """The cell whose centre is nearest to the mean of a client's sketches, in units of the scale."""
        if self.centres is None:
            return 0
        return int(np.argmin(((sketch_mean - self.centres) ** 2).sum(axis=1)))

    def _scaled(self, half_sketches: np.ndarray) -> np.ndarray:
        """Both halves in units of the scale, with a mean and a noise of norm 1 at most, in double precision."""
        # The mean of both halves is the signal, and half of their difference is the noise.
        first_half, second_half = half_sketches.astype(np.float64)
        shared_part = _shortened((first_half + second_half) / 2 / self.scale)
        noise_part = _shortened((first_half - second_half) / 2 / self.scale)
        return np.stack([shared_part + noise_part, shared_part - noise_part])

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
        # Without a norm, or without sketches, the client does not know the answer.
        client_answer: np.ndarray | None = None
        if self.needs_norm:
            if norm is not None and self.ask == "sizes":
                client_answer = np.concatenate([_size_histogram(norm), _size_histogram(examples)])
            elif norm is not None:
                both_histograms = [
                    _norm_histogram(norm / self.scale),
                    _examples_histogram(examples),
                ]
                client_answer = np.concatenate(both_histograms) / np.sqrt(2)
        elif halves is not None and self.ask in CENTRED:
            client_answer = self._centred_answer(halves.astype(np.float64) / self.scale)
        elif halves is not None:
            client_answer = self._answer_about_cell(self._scaled(halves))
        return None if client_answer is None else client_answer.astype(np.float32)

    def _centred_answer(self, half_sketches: np.ndarray) -> np.ndarray:
        """The answer about halves in units of the scale, less the centre of their cell."""
        client_cell = self._nearest(half_sketches.mean(axis=0))
        # How the client differs from the centre of its cell.
        centred_halves = half_sketches
        if self.centres is not None:
            centred_halves = half_sketches - self.centres[client_cell]
        if self.ask == "distances":
            return _norm_histogram(float(np.linalg.norm(centred_halves.mean(axis=0))))
        centred_halves = centred_halves / np.maximum(
            1.0, np.linalg.norm(centred_halves, axis=1, keepdims=True)
        )
        # One row for each cell that is asked about; all but that of the client's cell are zero.
        answer_rows = np.zeros(
            (len(self.cells), self.length(half_sketches.shape[1]) // len(self.cells))
        )
        if client_cell in self.cells:
            row_number = self.cells.index(client_cell)
            if self.ask == "crossed":
                answer_rows[row_number] = Crossed.of(*centred_halves[:, None]).vector()
            elif self.axis is not None:
                # The middle of the histogram is the centre, and one width is an axis long.
                relative_place = 0.5 + self.axis[row_number] @ centred_halves.mean(axis=0)
                answer_rows[row_number, _coordinate_bin(relative_place)] = 1.0
        return answer_rows.ravel()

    def _answer_about_cell(self, scaled_halves: np.ndarray) -> np.ndarray:
        """The answer about halves as :meth:`_scaled` returns them: numbers in the place of the client's cell."""
        sketch_mean = scaled_halves.mean(axis=0)
        client_cell = self._nearest(sketch_mean)
        # Zeros for the other cells: the sum over clients has the sums by cell.
        if self.ask == "moments":
            moments = Moments.of(*scaled_halves[:, None]).vector()
            moments_by_cell = np.zeros((len(self.cells), len(moments)))
            for row_number, asked_cell in enumerate(self.cells):
                if client_cell == asked_cell:
                    moments_by_cell[row_number] = moments
            return moments_by_cell.ravel()
        if self.ask == "means":
            means_by_cell = np.zeros((self.count, 1 + len(sketch_mean)))
            means_by_cell[client_cell] = [1.0, *sketch_mean]
            return means_by_cell.ravel()
        histogram = np.zeros(self.length(len(sketch_mean)))
        if self.ask == "coordinates" and client_cell in self.cells and self.axis is not None:
            relative_place = (float(self.axis @ sketch_mean) - self.low) / (self.high - self.low)
            histogram[_coordinate_bin(relative_place)] = 1.0
        return histogram


def _shortened(long_vector: np.ndarray) -> np.ndarray:
    """A vector, shortened to norm 1 if it is longer."""
    return long_vector / max(1.0, float(np.linalg.norm(long_vector)))


# -- histograms of one client: a 1 in its bin
# ------------------------------------------------------------------------------


def _one_hot(bin_index: float, bin_count: int) -> np.ndarray:
    """Zeros with a 1 in a bin; what is beyond an end is counted in the last bin there."""
    histogram = np.zeros(bin_count)
    histogram[int(np.clip(bin_index, 0, bin_count - 1))] = 1.0
    return histogram


def _size_histogram(measured_size: float) -> np.ndarray:
    """The histogram of a norm, or of a number of examples, for ``"sizes"``."""
    octave = np.log2(max(measured_size, SMALLEST_NORM)) + SIZE_OCTAVES / 2
    return _one_hot(np.floor(octave * BINS_PER_OCTAVE), SIZE_BINS)


def _norm_histogram(norm: float) -> np.ndarray:
    """The histogram of a norm in units of the scale, for ``"norms"`` and ``"distances"``."""
    octave = np.log2(max(norm, SMALLEST_NORM)) + OCTAVES_BELOW
    return _one_hot(np.floor(octave * BINS_PER_OCTAVE), NORM_BINS)


def _examples_histogram(examples: int) -> np.ndarray:
    """The histogram of a number of examples for ``"norms"``: a bin for each power of two."""
    return _one_hot(max(examples, 1).bit_length() - 1, NORM_BINS)


def _coordinate_bin(relative_place: float) -> int:
    """The bin of a coordinate, from its place between the ends of the histogram, 0 and 1."""
    return int(np.clip(relative_place * COORDINATE_BINS, 0, COORDINATE_BINS - 1))


def question_of(task: Task) -> CellQuestion | None:
    """Return the question of a task; None if it has none."""
    # Only this extension defines questions, so no others can come.
    question = task.private.question
    assert question is None or isinstance(question, CellQuestion)
    return question


def sizes_of(answer_sums: np.ndarray, quantile: float = 1.0) -> tuple[float, float]:
    """Return a bound on the norms of updates, and the median number of examples, from answers about sizes.

    Args:
        answer_sums: The sum of the answers.
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
    norm_counts, example_counts = np.maximum(np.split(answer_sums, 2), 0.0)
    # Bins are powers of two: back from the number of a bin to the norm, and to the number of
    # examples.
    norm_bound = (_quantile(norm_counts, quantile) + 1) / BINS_PER_OCTAVE - SIZE_OCTAVES / 2
    median_examples = (_quantile(example_counts, 0.5) + 0.5) / BINS_PER_OCTAVE - SIZE_OCTAVES / 2
    return 2.0**norm_bound, 2.0**median_examples


def _quantile(bin_counts: np.ndarray, wanted_share: float) -> int:
    """The bin in which the counts reach a share of all."""
    return int(
        np.searchsorted(np.cumsum(bin_counts), wanted_share * bin_counts.sum() * (1 - 1e-12))
    )


def median_of(bin_counts: np.ndarray, question_scale: float) -> float:
    """Return the median of norms or distances, the upper end of its bin.

    Noise on the counts makes it too large rather than too small: it is sought from above.

    Args:
        bin_counts: The sum of the answers.
        question_scale: The scale of the question.

    Example:
        >>> median_of(np.array([0] * 10 + [3, 1, 1] + [0] * 3), 8.0)
        2.8284271247461903
    """
    return float(
        question_scale * 2.0 ** ((_median_bin(bin_counts) + 1) / BINS_PER_OCTAVE - OCTAVES_BELOW)
    )


def norms_of(answer_sums: np.ndarray, question_scale: float) -> tuple[float, int]:
    """Return the medians of the norms of updates, and of the numbers of examples, from answers about norms.

    Args:
        answer_sums: The sum of the answers.
        question_scale: The scale of the question.

    Example:
        >>> question = CellQuestion(ask="norms", scale=8.0)
        >>> norms_of(sum(question.answer(None, norm, 68) for norm in (0.3, 1.7, 5.0)), 8.0)
        (2.0, 91)
    """
    norm_counts, example_counts = np.split(answer_sums, 2)
    return median_of(norm_counts, question_scale), round(2.0 ** (_median_bin(example_counts) + 0.5))


def _median_bin(bin_counts: np.ndarray) -> int:
    """The bin of the median, sought from the last bin."""
    # The number of clients in each bin and in those above it.
    counts_from_here = np.cumsum(bin_counts[::-1])[::-1]
    return int(np.flatnonzero(counts_from_here >= counts_from_here[0] / 2)[-1])


def coordinates(
    cut_cell: int, cell_sums: Moments, sketch_scale: float, centres: np.ndarray | None
) -> CellQuestion:
    """Ask for the histogram of a cell's clients along the axis on which they differ most.

    Args:
        cut_cell: The cell.
        cell_sums: Its moments.
        sketch_scale: The scale of the sketches.
        centres: All centres.
    """
    direction = axis(cell_sums)
    middle_place = float(direction @ cell_sums.total) / cell_sums.count
    variance = float(direction @ cell_sums.scatter @ direction) / cell_sums.count
    half_width = HALF_WIDTH * max(variance, 1e-30) ** 0.5
    return CellQuestion(
        ask="coordinates",
        scale=sketch_scale,
        centres=centres,
        cells=(cut_cell,),
        axis=direction,
        low=middle_place - half_width,
        high=middle_place + half_width,
    )


def two_centres(
    question: CellQuestion, bin_counts: np.ndarray, cell_mean: np.ndarray
) -> np.ndarray | None:
    """Return the centres ``(2, k)`` of both sides of a cut through a cell.

    Args:
        question: The question of :func:`coordinates`.
        bin_counts: Shape ``(COORDINATE_BINS,)``, the sum of the answers.
        cell_mean: Shape ``(k,)``, the mean of the cell.

    Returns:
        The centres, on the axis through the mean; None if all clients are in one bin.
    """
    cut_bin = histogram_cut(bin_counts)
    direction = question.axis
    if cut_bin is None or direction is None:
        return None
    bin_counts = np.maximum(bin_counts, 0.0)
    histogram_width = question.high - question.low
    bin_places = (
        question.low + (np.arange(COORDINATE_BINS) + 0.5) * histogram_width / COORDINATE_BINS
    )
    # Both centres are on the axis through the mean of the cell.
    left_mean, right_mean = _side_means(bin_counts, bin_places, cut_bin)
    mean_place = float(direction @ cell_mean)
    return np.stack(
        [
            cell_mean + (left_mean - mean_place) * direction,
            cell_mean + (right_mean - mean_place) * direction,
        ]
    )


def _side_means(
    bin_counts: np.ndarray, bin_places: np.ndarray, cut_bin: int
) -> tuple[float, float]:
    """The mean places of a histogram on both sides of a cut."""
    # The mean place, weighted by the number of clients in each bin.
    left_mean = bin_counts[:cut_bin] @ bin_places[:cut_bin] / bin_counts[:cut_bin].sum()
    right_mean = bin_counts[cut_bin:] @ bin_places[cut_bin:] / bin_counts[cut_bin:].sum()
    return float(left_mean), float(right_mean)


def cuts(
    question: CellQuestion, answer_sums: np.ndarray, deviation: float
) -> list[np.ndarray | None]:
    """Return for each cell the centres ``(2, k)`` of both sides of a cut, from answers about places.

    Args:
        question: The question, with axes.
        answer_sums: The sum of the answers.
        deviation: Standard deviation of the noise on each of these numbers.

    Returns:
        The centres in units of the scale, for each of the question's cells; None if all its clients
        are in one bin.
    """
    centres_of_sides: list[np.ndarray | None] = []
    histograms = answer_sums.reshape(len(question.cells), COORDINATE_BINS)
    for cell_number, (asked_cell, histogram) in enumerate(
        zip(question.cells, histograms, strict=True)
    ):
        # Most bins at the ends are empty, and would count with their noise.
        histogram = np.where(histogram > deviation / 2, histogram, 0.0)
        cut_bin = histogram_cut(histogram)
        if cut_bin is None or question.axis is None or question.centres is None:
            centres_of_sides.append(None)
            continue
        axis_of_cell = question.axis[cell_number].astype(np.float64)
        # A vector along the axis, as long as the histogram is wide.
        width_vector = axis_of_cell / (axis_of_cell @ axis_of_cell)
        bin_places = (np.arange(COORDINATE_BINS) + 0.5) / COORDINATE_BINS - 0.5
        left_mean, right_mean = _side_means(histogram, bin_places, cut_bin)
        cell_centre = question.centres[asked_cell]
        centres_of_sides.append(
            np.stack(
                [cell_centre + left_mean * width_vector, cell_centre + right_mean * width_vector]
            )
        )
    return centres_of_sides


def halved(cell_sums: Moments) -> np.ndarray:
    """Return the centres ``(2, k)`` of a cut at the mean, across the axis on which a cell's clients differ most."""
    direction = axis(cell_sums)
    cell_mean = cell_sums.total / cell_sums.count
    variance = float(direction @ cell_sums.scatter @ direction) / cell_sums.count
    # Both centres lie one standard deviation from the mean.
    offset = variance**0.5 * direction
    return np.stack([cell_mean - offset, cell_mean + offset])


def centres_of(answer_sums: np.ndarray, cell_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers ``(m,)`` and the means ``(m, k)`` of the clients in each of m cells, from answers about means.

    The mean of an empty cell is zero.
    """
    # In each row, the number of clients comes before the sum of their sketches.
    sums_by_cell = answer_sums.reshape(cell_count, -1)
    return sums_by_cell[:, 0], sums_by_cell[:, 1:] / np.maximum(sums_by_cell[:, :1], 1e-9)
