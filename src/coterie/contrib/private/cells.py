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

OCTAVES, STEPS = 32, 2
"""Norms and numbers of examples are told apart from 2^-16 to 2^16, in this many steps per octave.
"""

BELOW, ABOVE = 7, 1
"""Norms and distances are told apart from 2^-7 to 2 times the scale of the question."""

BINS = 32
"""Bins of a histogram of coordinates."""

WIDTH = 3.0
"""It reaches this many standard deviations to both sides of the cell's mean."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
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
        for name in ("centres", "axis"):  # as they are sent
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
        c, sizes = len(self.cells), OCTAVES * STEPS
        of = {
            "sizes": 2 * sizes,
            "coordinates": BINS,
            "means": self.count * (1 + k),
            "cell": 0,
            "moments": c * length(k),
        }
        near = (BELOW + ABOVE) * STEPS
        return (
            of
            | {
                "norms": 2 * near,
                "distances": near,
                "crossed": c * crossed_length(k),
                "places": c * BINS,
            }
        )[self.ask]

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

    def _distance(self, norm: float) -> np.ndarray:
        """The histogram of a norm in units of the scale."""
        out = np.zeros((BELOW + ABOVE) * STEPS)
        out[
            int(np.clip(np.floor((np.log2(max(norm, 1e-300)) + BELOW) * STEPS), 0, len(out) - 1))
        ] = 1.0
        return out

    def _centred(self, halves: np.ndarray) -> np.ndarray:
        """The answer about halves in units of the scale, less the centre of their cell."""
        cell = self._nearest(halves.mean(axis=0))
        apart = halves if self.centres is None else halves - self.centres[cell]
        if self.ask == "distances":
            return self._distance(float(np.linalg.norm(apart.mean(axis=0))))
        apart = apart / np.maximum(1.0, np.linalg.norm(apart, axis=1, keepdims=True))
        out = np.zeros((len(self.cells), self.length(halves.shape[1]) // len(self.cells)))
        if cell not in self.cells:
            return out.ravel()
        at = self.cells.index(cell)
        if self.ask == "crossed":
            out[at] = Crossed.of(*apart[:, None]).vector()
        elif self.axis is not None:
            out[
                at, int(np.clip((0.5 + self.axis[at] @ apart.mean(axis=0)) * BINS, 0, BINS - 1))
            ] = 1.0
        return out.ravel()

    def cell(self, halves: np.ndarray) -> int:
        """Return the cell of a client with these sketches ``(2, k)``."""
        return self._nearest(self._scaled(halves).mean(axis=0))

    def _nearest(self, mean: np.ndarray) -> int:
        return (
            0 if self.centres is None else int(np.argmin(((mean - self.centres) ** 2).sum(axis=1)))
        )

    def _scaled(self, halves: np.ndarray) -> np.ndarray:
        """Both halves in units of the scale, with a mean and a noise of norm 1 at most, in double precision."""
        halves = halves.astype(np.float64)
        mean, noise = (
            (halves[0] + halves[1]) / 2 / self.scale,
            (halves[0] - halves[1]) / 2 / self.scale,
        )
        mean, noise = (part / max(1.0, float(np.linalg.norm(part))) for part in (mean, noise))
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
        found = self._answer(halves, norm, examples)
        return None if found is None else found.astype(np.float32)

    def _answer(
        self, halves: np.ndarray | None, norm: float | None, examples: int
    ) -> np.ndarray | None:
        if self.ask == "sizes":
            return (
                None
                if norm is None
                else np.concatenate([_one(_size_bin(norm)), _one(_size_bin(examples))])
            )
        if self.ask == "norms":
            if norm is None:
                return None
            counted = np.zeros((BELOW + ABOVE) * STEPS)
            counted[min(max(examples, 1).bit_length() - 1, len(counted) - 1)] = 1.0
            return np.concatenate([self._distance(norm / self.scale), counted]) / np.sqrt(2)
        if halves is None:
            return None
        if self.ask in CENTRED:
            return self._centred(halves.astype(np.float64) / self.scale)
        scaled = self._scaled(halves)
        mean = scaled.mean(axis=0)
        cell = self._nearest(mean)
        if self.ask == "moments":
            own = Moments.of(*scaled[:, None]).vector()
            return np.concatenate(
                [own if cell == one else np.zeros(len(own)) for one in self.cells]
            )
        if self.ask == "means":
            table = np.zeros((self.count, 1 + len(mean)))
            table[cell] = [1.0, *mean]
            return table.ravel()
        out = np.zeros(self.length(len(mean)))
        if self.ask == "coordinates" and cell in self.cells and self.axis is not None:
            place = (float(self.axis @ mean) - self.low) / (self.high - self.low)
            out[int(np.clip(place * BINS, 0, BINS - 1))] = 1.0
        return out


def question_of(task: Task) -> Question | None:
    """Return the question of a task; None if it has none."""
    question = task.private.question
    assert question is None or isinstance(question, Question)
    return question


def _size_bin(value: float) -> int:
    return int(
        np.clip(
            np.floor((np.log2(max(value, 1e-300)) + OCTAVES / 2) * STEPS), 0, OCTAVES * STEPS - 1
        )
    )


def _one(at: int) -> np.ndarray:
    out = np.zeros(OCTAVES * STEPS)
    out[at] = 1.0
    return out


def sizes_of(sums: np.ndarray, quantile: float = 1.0) -> tuple[float, float]:
    """Return a bound on the norms of updates, and the median number of examples, from answers about sizes.

    Args:
        sums: The sum of the answers.
        quantile: The share of the norms that are below the bound.

    Returns:
        The upper end of the bin in which the norms reach that share, and the middle of the bin of
        the median.

    Example:
        >>> question = Question(ask="sizes")
        >>> bound, examples = sizes_of(sum(question.answer(None, norm, 68) for norm in (0.3, 1.7, 5.0)))
        >>> round(bound, 2), round(examples)
        (5.66, 76)
    """
    norms, counts = np.maximum(np.split(sums, 2), 0.0)
    return 2.0 ** ((_quantile(norms, quantile) + 1) / STEPS - OCTAVES / 2), 2.0 ** (
        (_quantile(counts, 0.5) + 0.5) / STEPS - OCTAVES / 2
    )


def _quantile(counts: np.ndarray, share: float) -> int:
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
    return float(scale * 2.0 ** ((_middle(counts) + 1) / STEPS - BELOW))


def norms_of(sums: np.ndarray, scale: float) -> tuple[float, int]:
    """Return the medians of the norms of updates, and of the numbers of examples, from answers about norms.

    Args:
        sums: The sum of the answers.
        scale: The scale of the question.

    Example:
        >>> question = Question(ask="norms", scale=8.0)
        >>> norms_of(sum(question.answer(None, norm, 68) for norm in (0.3, 1.7, 5.0)), 8.0)
        (2.0, 91)
    """
    norms, examples = np.split(sums, 2)
    return median_of(norms, scale), round(2.0 ** (_middle(examples) + 0.5))


def _middle(counts: np.ndarray) -> int:
    """The bin of the median, sought from the last bin."""
    above = np.cumsum(counts[::-1])[::-1]
    return int(np.flatnonzero(above >= above[0] / 2)[-1])


def coordinates(cell: int, sums: Moments, scale: float, centres: np.ndarray | None) -> Question:
    """Ask for the histogram of a cell's clients along the axis on which they differ most.

    Args:
        cell: The cell.
        sums: Its moments.
        scale: The scale of the sketches.
        centres: All centres.
    """
    direction = axis(sums)
    middle = float(direction @ sums.total) / sums.count
    width = WIDTH * max(float(direction @ sums.scatter @ direction) / sums.count, 1e-30) ** 0.5
    low, high = middle - width, middle + width
    return Question(
        ask="coordinates",
        scale=scale,
        centres=centres,
        cells=(cell,),
        axis=direction,
        low=low,
        high=high,
    )


def two_centres(question: Question, counts: np.ndarray, mean: np.ndarray) -> np.ndarray | None:
    """Return the centres ``(2, k)`` of both sides of a cut through a cell.

    Args:
        question: The question of :func:`coordinates`.
        counts: Shape ``(BINS,)``, the sum of the answers.
        mean: Shape ``(k,)``, the mean of the cell.

    Returns:
        The centres, on the axis through the mean; None if all clients are in one bin.
    """
    cut, direction = histogram_cut(counts), question.axis
    if cut is None or direction is None:
        return None
    counts = np.maximum(counts, 0.0)
    places = question.low + (np.arange(BINS) + 0.5) * (question.high - question.low) / BINS
    sides = [
        float(counts[side] @ places[side] / counts[side].sum())
        for side in (slice(cut), slice(cut, None))
    ]
    return np.stack([mean + (side - float(direction @ mean)) * direction for side in sides])


def cuts(question: Question, counts: np.ndarray, deviation: float) -> list[np.ndarray | None]:
    """Return for each cell the centres ``(2, k)`` of both sides of a cut, from answers about places.

    Args:
        question: The question, with axes.
        counts: The sum of the answers.
        deviation: Standard deviation of the noise on each of these numbers.

    Returns:
        The centres in units of the scale, for each of the question's cells; None if all its clients
        are in one bin.
    """
    found: list[np.ndarray | None] = []
    for cell, row in zip(question.cells, counts.reshape(len(question.cells), BINS), strict=True):
        row = np.where(
            row > deviation / 2, row, 0.0
        )  # most bins at the ends are empty, and would count with their noise
        cut, centres, axis = histogram_cut(row), question.centres, question.axis
        if cut is None or axis is None or centres is None:
            found.append(None)
            continue
        across = axis[question.cells.index(cell)].astype(np.float64)
        across /= across @ across  # one width long
        places = (np.arange(BINS) + 0.5) / BINS - 0.5
        sides = [
            float(row[side] @ places[side] / row[side].sum())
            for side in (slice(cut), slice(cut, None))
        ]
        found.append(np.stack([centres[cell] + side * across for side in sides]))
    return found


def halved(sums: Moments) -> np.ndarray:
    """Return the centres ``(2, k)`` of a cut at the mean, across the axis on which a cell's clients differ most."""
    direction, mean = axis(sums), sums.total / sums.count
    apart = (float(direction @ sums.scatter @ direction) / sums.count) ** 0.5 * direction
    return np.stack([mean - apart, mean + apart])


def centres_of(sums: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers ``(m,)`` and the means ``(m, k)`` of the clients in each of m cells, from answers about means.

    The mean of an empty cell is zero.
    """
    table = sums.reshape(m, -1)
    return table[:, 0], table[:, 1:] / np.maximum(table[:, :1], 1e-9)
