"""Real numbers as integers modulo 2³², so that a mask hides them perfectly and their sum is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WORD = np.dtype("<u4")
"""An integer modulo 2³²: four bytes per number are sent."""


@dataclass(frozen=True)
class FixedPoint:
    """A fixed-point encoding of numbers of which at most ``clients`` are added.

    A number in ``[-bound, bound]`` becomes one of ``2 levels + 1`` integers, with ``levels`` the
    greatest that cannot overflow when all clients send the bound. The sum of the integers is exact;
    each number is rounded to the nearest integer once.

    Attributes:
        bound: Numbers beyond are clipped to this. Positive and finite.
        clients: How many clients there are at most.

    Raises:
        ValueError: The bound is not positive and finite, or the number of clients is out of range.

    Example:
        >>> code = FixedPoint(bound=2.0, clients=3)
        >>> rows = [code.encode(np.array(values)) for values in ([0.5, 9.0], [0.25, -1.0])]
        >>> code.decode(rows[0] + rows[1]).round(6)
        array([0.75, 1.  ])
    """

    bound: float
    clients: int

    def __post_init__(self) -> None:
        if not 0 < self.bound < np.inf:
            raise ValueError(
                f"the bound of masked numbers must be positive and finite, got {self.bound}"
            )
        if not 1 <= self.clients < 2**31:
            raise ValueError(
                f"the number of clients must be 1 or more, and less than 2^31, got {self.clients}"
            )

    @property
    def levels(self) -> int:
        """The integer that stands for the bound."""
        return int((2**31 - 1) // self.clients)

    @property
    def step(self) -> float:
        """The difference of two neighbouring numbers: the rounding error of a client's number is at most half of this."""
        return self.bound / self.levels

    def clipped(self, real_numbers: np.ndarray) -> int:
        """Return how many of the numbers are beyond the bound."""
        return int((np.abs(real_numbers) > self.bound).sum())

    def encode(self, real_numbers: np.ndarray) -> np.ndarray:
        """Return numbers ``(d,)`` as integers modulo 2³²; numbers beyond the bound are clipped.

        Raises:
            ValueError: A number is not finite.
        """
        real_numbers = np.asarray(real_numbers, dtype=np.float64)
        if not np.isfinite(real_numbers).all():
            raise ValueError("numbers to be masked must be finite")
        # Round to a multiple of the step.
        whole_numbers = np.rint(
            real_numbers.clip(-self.bound, self.bound) / self.bound * self.levels
        )
        # A negative integer becomes its two's complement, so that sums modulo 2³² are right.
        return (whole_numbers.astype(np.int64) & 0xFFFFFFFF).astype(WORD)

    def decode(self, encoded_sum: np.ndarray) -> np.ndarray:
        """Return a sum of encoded numbers as real numbers."""
        # Read as signed integers, sums of negative numbers are negative again.
        return np.asarray(encoded_sum, dtype=WORD).view("<i4").astype(np.float64) * self.step
