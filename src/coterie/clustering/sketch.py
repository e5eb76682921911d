"""Short sketches of long updates: a seeded random map to k numbers that nearly preserves inner products.

A row is cut into pieces of K numbers (k, or the next power of two). For every piece, signs are
flipped at random, the orthonormal Hadamard matrix is applied, and signs are flipped again. Then the
pieces are added up. If K is greater than k, k of the sums are drawn and scaled. So ``S = [D'_1 H
D_1, D'_2 H D_2, ...]`` with independent random signs in the diagonal matrices ``D`` and ``D'``: a
Johnson-Lindenstrauss map in the family of N. Ailon and B. Chazelle, "The Fast Johnson-Lindenstrauss
Transform" (SIAM J. Computing 2009). Every entry of ``S`` is ``±1/sqrt(k)``. So a row of a few large
numbers is treated as well as any other, unlike with sparser maps (count sketches).

**Why it is right on average.** Two different entries of S in the same row have independent signs
with mean zero, so ``E <Sx, Sy> = <x, y>``. **The size of its error.** For K = k a piece keeps its
inner products with itself, since H is orthonormal. Pieces c and c' contribute ``Σ_r D'_c[r]
D'_c'[r] u_r v_r`` with ``u = H D_c x_c``, ``v = H D_c' y_c'``. As ``E u_r² = |x_c|²/k``, its
variance is ``|x_c|² |y_c'|² / k``, and with the mirrored pair ``<x_c, y_c> <x_c', y_c'> / k`` more.
Summed over pieces, the variance is at most ``(|x|² |y|² + <x, y>²) / k``. Drawing k of K sums keeps
that bound.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from coterie.clustering import _checks
from coterie.clustering.columns import Columns, parts, widened
from coterie.randomness import Purpose, numpy_generator
from coterie.settings.calls import public

SIZE_MULTIPLE = 4
"""The length of a sketch is a multiple of this."""

# Numbers that are transformed at a time, so that they stay in the processor's cache.
_TRANSFORMED_NUMBERS = 1 << 18
# Numbers of chosen columns that are copied at a time.
_GATHERED_NUMBERS = 1 << 25


@public
class Sketcher:
    """The map from d numbers to ``size`` numbers, for rows that arrive one at a time.

    It is the same for equal d, size and seed. It stores two signs of one byte each for each of the
    d columns. Rows of at most ``size`` numbers are returned as they are.

    Args:
        d: Number of parameters.
        size: Length of a sketch, a positive multiple of 4; a power of two is fastest.
        seed: The seed of the map.

    Raises:
        ValueError: The size is another one.

    Example:
        >>> sketcher = Sketcher(50_000, 4096)
        >>> sketcher.rows(torch.ones(2, 50_000)).shape
        torch.Size([2, 4096])
    """

    def __init__(self, d: int, size: int, seed: int = 0) -> None:
        is_integer = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
        if not is_integer or size < SIZE_MULTIPLE or size % SIZE_MULTIPLE:
            raise ValueError(
                f"a sketch's size must be a positive multiple of {SIZE_MULTIPLE}, got {size}"
            )
        self.d = d
        self.size = int(size)
        self.seed = seed
        if d <= size:
            return
        # A row is cut into pieces of K numbers.
        self.piece = 1 << (self.size - 1).bit_length()
        padded_length = -(-d // self.piece) * self.piece
        rng = numpy_generator(seed, Purpose.SKETCH, d, self.size)
        self.drawn = torch.from_numpy(np.sort(rng.permutation(self.piece)[: self.size]))
        # D and D', the signs before and after the Hadamard matrix.
        self.signs_before = _signs(rng, padded_length)
        self.signs_after = _signs(rng, padded_length)
        # H is the Kronecker product of two smaller Hadamard matrices: Hx = left X right, with x
        # written as a matrix X.
        num_bits = self.piece.bit_length() - 1
        self.left = _hadamard(num_bits // 2)
        self.right = _hadamard(num_bits - num_bits // 2)

    def rows(self, rows: torch.Tensor | np.ndarray) -> torch.Tensor:
        """Compute the sketches of rows.

        The sketch of a row is the same bit for bit whichever rows are sketched together with it.
        That of a row that is not finite is not finite, for the caller to see; :func:`sketch`
        refuses such a row.

        Args:
            rows: Shape ``(n, d)``.

        Returns:
            Shape ``(n, size)``, in the precision of the rows; half precisions and integers become a
            wider one.

        Raises:
            ValueError: The rows have another shape.
        """
        rows = rows if isinstance(rows, torch.Tensor) else _checks.rows(rows, "rows")
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise ValueError(
                f"rows must be (n, {self.d}), as the sketcher was made for, got shape {tuple(rows.shape)}"
            )
        if self.d <= self.size:
            return rows
        device = rows.device
        dtype = widened(rows[:0, :1]).dtype
        piece_sums = torch.zeros(len(rows), self.piece, dtype=dtype, device=device)
        left_matrix = self.left.to(device, dtype)
        right_matrix = self.right.to(device, dtype)
        # Some pieces at a time, so that their signs are converted once for all rows.
        columns_at_once = max(1, _TRANSFORMED_NUMBERS // self.piece) * self.piece
        for start in range(0, self.d, columns_at_once):
            stop = min(start + columns_at_once, self.d)
            num_columns = stop - start
            signs_before = self.signs_before[start : start + columns_at_once].to(device, dtype)
            signs_after = self.signs_after[start : start + columns_at_once].to(device, dtype)
            # The last piece ends with zeros.
            flipped_pieces = torch.zeros(len(signs_before), dtype=dtype, device=device)
            for index in range(len(rows)):
                # D x, then H D x, then the sum of D' H D x over the pieces.
                part_of_row = rows[index, start:stop].to(dtype)
                torch.mul(part_of_row, signs_before[:num_columns], out=flipped_pieces[:num_columns])
                squares = flipped_pieces.view(-1, len(left_matrix), len(right_matrix))
                transformed = torch.matmul(left_matrix, torch.matmul(squares, right_matrix))
                flipped_again = transformed.view(-1) * signs_after
                piece_sums[index] += flipped_again.view(-1, self.piece).sum(dim=0)
        # k of the K sums are drawn, and scaled.
        return piece_sums[:, self.drawn.to(device)] * self.size**-0.5


@lru_cache(maxsize=4)
def _sketcher(d: int, size: int, seed: int) -> Sketcher:
    return Sketcher(d, size, seed)


@public
def sketch(rows: torch.Tensor | np.ndarray, size: int, seed: int = 0) -> torch.Tensor:
    """Compute the sketches of rows in one call of a :class:`Sketcher`; the most recent maps are kept.

    For any two rows, ``<Sx, Sy>`` is ``<x, y>`` on average over seeds, with a standard deviation of
    at most ``sqrt((|x|² |y|² + <x, y>²) / size)``: relative to the norms, ``sqrt(2 / size)`` or
    less, 0.022 for 4,096 numbers. :func:`sketch_error` is a bound for all pairs of n rows at once.

    Args:
        rows: Shape ``(n, d)``.
        size: As in :class:`Sketcher`.
        seed: As in :class:`Sketcher`.

    Returns:
        Shape ``(n, size)``, as from :meth:`Sketcher.rows`.

    Raises:
        ValueError: As in :class:`Sketcher`, the rows have another shape, or one is not finite.

    Example:
        >>> rows = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(0))
        >>> short = sketch(rows, 4096)
        >>> short.shape, bool((short @ short.T / 50_000 - torch.eye(3)).abs().max() < 0.1)
        (torch.Size([3, 4096]), True)
    """
    rows = rows if isinstance(rows, torch.Tensor) else _checks.rows(rows, "rows")
    sketches = unchecked_sketch(rows, size, seed)
    if not bool(torch.isfinite(sketches).all()):
        _checks.refuse_infinite_rows(rows, "rows")
    return sketches


def unchecked_sketch(rows: torch.Tensor | np.ndarray, size: int, seed: int = 0) -> torch.Tensor:
    """Compute :func:`sketch` also of rows that are not finite, of which the sketch is not finite either."""
    if rows.ndim != 2:
        raise ValueError(f"rows must be (n, d), got shape {tuple(rows.shape)}")
    return _sketcher(rows.shape[1], size, seed).rows(rows)


def sketch_of_columns(rows: torch.Tensor, columns: Columns, size: int, seed: int) -> torch.Tensor:
    """Compute the sketches of chosen columns of checked rows, ``(n, size)``; some rows are gathered at a time."""
    if columns is None:
        return unchecked_sketch(rows, size, seed)
    chosen_columns: list[slice | torch.Tensor] = []
    for column_range in parts(columns, rows.shape[1]):
        if isinstance(column_range, slice):
            chosen_columns.append(column_range)
        else:
            chosen_columns.append(torch.from_numpy(column_range))
    rows_at_once = max(1, _GATHERED_NUMBERS // rows.shape[1])
    sketches = []
    for start in range(0, len(rows), rows_at_once):
        some_rows = rows[start : start + rows_at_once]
        gathered = torch.cat([some_rows[:, part] for part in chosen_columns], dim=1)
        sketches.append(unchecked_sketch(gathered, size, seed))
    return torch.cat(sketches)


@public
def sketch_error(k: int, n: int, delta: float = 0.01) -> float:
    """Bound the error that sketches cause in the cosines and distances of n clients, for all pairs at once.

    With probability 1 - delta, for *every* pair of n updates, the cosine of the sketches differs
    from that of the updates by at most this bound, and the squared Euclidean distance by at most
    this share of itself: ``2 sqrt(L/k) + 2 L/k``, ``L = ln(n²/delta)``.

    For a map of independent normal numbers this is a theorem. ``k |Sz|²/|z|²`` is then χ² with k
    degrees of freedom, beyond ``k + 2 sqrt(k L) + 2 L`` with probability ``exp(-L)`` (B. Laurent
    and P. Massart, Annals of Statistics 2000, lemma 1). The n (n - 1) / 2 differences have n (n -
    1) such ends, which leaves delta/n. The cosine r of such sketches, where c is that of the
    updates, is the cosine of k pairs of normal numbers. Its tail falls with the exponent ``k log
    cosh(artanh r - artanh c)``, which for ``|r - c| >= t`` is at least
    ``k log cosh(2 artanh(t/2)) >= k t²/2 >= 2 L``: all cosines together need far less than the
    remaining probability. For the map of :func:`sketch` the variance is the proven one, and the
    tail is assumed to be normal, as an error is a sum of k terms that are independent given the
    first signs. Tests check that the bound holds, for dense, heavy-tailed and sparse rows.

    Args:
        k: Length of a sketch.
        n: Number of clients.
        delta: The probability that the bound does not hold.

    Returns:
        The bound.

    Raises:
        ValueError: n or k is below 1 or not finite, or delta is not between 0 and 1.

    Example:
        >>> round(sketch_error(4096, 100), 3), round(sketch_error(16_384, 10_000), 3)
        (0.123, 0.078)
    """
    if not (1 <= k < math.inf and 1 <= n < math.inf):
        raise ValueError(f"k (numbers in a sketch) and n (clients) must be >= 1, got {k} and {n}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, a probability, got {delta}")
    # L of the formula
    log_pairs = math.log(n * n / delta)
    return 2 * math.sqrt(log_pairs / k) + 2 * log_pairs / k


def _signs(rng: np.random.Generator, length: int) -> torch.Tensor:
    """Random signs ``(length,)``, 1 or -1 as bytes."""
    random_bytes = np.frombuffer(rng.bytes(-(-length // 8)), dtype=np.uint8)
    sign_bits = np.unpackbits(random_bytes, count=length)
    return torch.from_numpy(sign_bits.view(np.int8) * np.int8(2) - np.int8(1))


def _hadamard(num_bits: int) -> torch.Tensor:
    """Sylvester's matrix of 1 and -1, ``(2**bits, 2**bits)``."""
    matrix = torch.ones(1, 1)
    for _ in range(num_bits):
        upper_half = torch.cat([matrix, matrix], dim=1)
        lower_half = torch.cat([matrix, -matrix], dim=1)
        matrix = torch.cat([upper_half, lower_half])
    return matrix
