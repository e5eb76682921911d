"""Answers as integers modulo 2³², so that masks hide them and their sum is exact.

A count is one integer. A float is a multiple of 2⁻⁶⁰, written in digits of 20 bits, each with the sign of
the number: the digits of 1,000 clients add up without an overflow, and no digit is rounded.
"""

from __future__ import annotations

import math

import numpy as np

from coterie.contrib.sites.agreement import Answer
from coterie.settings import SettingError

MASK_WORD = np.dtype("<u4")

MAX_MASKED_CLIENTS = 1000
"""Most clients whose numbers are added."""

FRACTION_BITS = 60
"""A float is rounded to a multiple of 2 to the power of minus this."""

DIGIT_BITS = 20
NUM_DIGITS = 11
"""Digits of a float: numbers below 2 to the power of 160 have room, more than any sum of float32."""


def form_of(answer: Answer) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return entry -> its shape, and whether it has counts; sorted, which is the order of the integers."""
    return {name: (answer[name].shape, answer[name].dtype.kind in "iu") for name in sorted(answer)}


def size_of(form: dict[str, tuple[tuple[int, ...], bool]]) -> int:
    """Return how many integers an answer of this form is."""
    return sum(math.prod(shape) * (1 if counts else NUM_DIGITS) for shape, counts in form.values())


def encoded(answer: Answer) -> np.ndarray:
    """Return an answer as integers modulo 2³² ``(d,)``.

    Raises:
        SettingError: A number is too large for the sum.
    """
    words: list[int] = []
    for name, (_, counts) in form_of(answer).items():
        for number in answer[name].ravel().tolist():
            if counts:
                _check_room(abs(number) * MAX_MASKED_CLIENTS < 2**31, number)
                words.append(number)
                continue
            _check_room(math.isfinite(number) and abs(number) < 2.0**160, number)
            # Python's integers are exact, whatever their size.
            scaled = round(abs(math.ldexp(number, FRACTION_BITS)))
            sign = -1 if number < 0 else 1
            for place in range(NUM_DIGITS):
                digit = scaled >> (DIGIT_BITS * place) & ((1 << DIGIT_BITS) - 1)
                words.append(sign * digit)
    return (np.array(words, np.int64) & 0xFFFFFFFF).astype(MASK_WORD)


def _check_room(fits: bool, number: float) -> None:
    if not fits:
        raise SettingError(f"{number:g} is too large for a masked sum")


def decoded(words: np.ndarray, form: dict[str, tuple[tuple[int, ...], bool]]) -> Answer:
    """Return the sum of answers from the sum of their integers ``(d,)``."""
    # Read as signed integers, sums of negative numbers are negative again.
    signed = np.asarray(words, MASK_WORD).view("<i4").tolist()
    answer: Answer = {}
    start = 0
    for name, (shape, counts) in form.items():
        length = math.prod(shape)
        if counts:
            numbers = signed[start : start + length]
            answer[name] = np.array(numbers, np.int64).reshape(shape)
            start += length
            continue
        floats = []
        for position in range(start, start + length * NUM_DIGITS, NUM_DIGITS):
            digits = signed[position : position + NUM_DIGITS]
            total = sum(digit << (DIGIT_BITS * place) for place, digit in enumerate(digits))
            # A division of integers rounds once, also where both are beyond the range of floats.
            floats.append(total / (1 << FRACTION_BITS))
        answer[name] = np.array(floats).reshape(shape)
        start += length * NUM_DIGITS
    return answer
