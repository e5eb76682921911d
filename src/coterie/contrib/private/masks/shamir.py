"""Shamir's secret sharing: any ``threshold`` shares of a secret give it back, and fewer say nothing about it.

A. Shamir, "How to share a secret", Communications of the ACM 1979. A secret of 32 bytes is the
value at 0 of a random polynomial of degree ``threshold - 1`` over the integers modulo a prime; a
share is its value at another place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**256 + 297
"""The least prime above 2²⁵⁶, so that every 32 bytes are a number below it."""

SECRET_BYTES = 32

SHARE_BYTES = 33


def split(secret: bytes, threshold: int, places: Iterable[int]) -> dict[int, bytes]:
    """Share a secret.

    Args:
        secret: 32 bytes.
        threshold: Number of shares that give the secret back.
        places: The places at which the polynomial is evaluated, different and not 0: one per share.

    Returns:
        Place -> share of 33 bytes.

    Raises:
        ValueError: The secret has another length, places are not different and positive, or there
            are too few of them.
    """
    places = list(places)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    if (
        len(set(places)) < len(places)
        or min(places, default=0) < 1
        or max(places, default=0) >= PRIME
    ):
        raise ValueError("the places of shares must be different positive integers")
    if not 1 <= threshold <= len(places):
        raise ValueError(
            f"the threshold must be from 1 to the number of shares, {len(places)}, got {threshold}"
        )
    # The secret is the constant term of the polynomial, and all other coefficients are random.
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {place: _value(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def _value(coefficients: list[int], place: int) -> int:
    """The value of a polynomial at a place, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of at least ``threshold`` shares, by Lagrange's interpolation at 0.

    Raises:
        ValueError: There are too few shares, or they are not shares of one secret.
    """
    if len(shares) < threshold:
        raise ValueError(f"{threshold} shares are needed to give back a secret, got {len(shares)}")
    chosen = sorted(shares)[:threshold]
    total = 0
    for place in chosen:
        # Lagrange's basis polynomial of this place, at 0.
        numerator = 1
        denominator = 1
        for other in chosen:
            if other != place:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - place) % PRIME
        total += int.from_bytes(shares[place], "big") * numerator * pow(denominator, -1, PRIME)
    secret = total % PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("these are not shares of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")
