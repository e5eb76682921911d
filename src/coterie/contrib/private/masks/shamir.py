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


def split(secret_bytes: bytes, threshold: int, share_places: Iterable[int]) -> dict[int, bytes]:
    """Share a secret.

    Args:
        secret_bytes: 32 bytes.
        threshold: Number of shares that give the secret back.
        share_places: The places at which the polynomial is evaluated, different and not 0: one per share.

    Returns:
        Place -> share of 33 bytes.

    Raises:
        ValueError: The secret has another length, places are not different and positive, or there
            are too few of them.
    """
    share_places = list(share_places)
    if len(secret_bytes) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret_bytes)}")
    if (
        len(set(share_places)) < len(share_places)
        or min(share_places, default=0) < 1
        or max(share_places, default=0) >= PRIME
    ):
        raise ValueError("the places of shares must be different positive integers")
    if not 1 <= threshold <= len(share_places):
        raise ValueError(
            f"the threshold must be from 1 to the number of shares, {len(share_places)}, got {threshold}"
        )
    # The secret is the constant term of the polynomial, and all other coefficients are random.
    coefficients = [int.from_bytes(secret_bytes, "big")]
    coefficients += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {
        share_place: _value(coefficients, share_place).to_bytes(SHARE_BYTES, "big")
        for share_place in share_places
    }


def _value(coefficients: list[int], share_place: int) -> int:
    """The value of a polynomial at a place, by Horner's rule."""
    # From the highest coefficient down to the constant term.
    polynomial_value = 0
    for coefficient in reversed(coefficients):
        polynomial_value = (polynomial_value * share_place + coefficient) % PRIME
    return polynomial_value


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of at least ``threshold`` shares, by Lagrange's interpolation at 0.

    Raises:
        ValueError: There are too few shares, or they are not shares of one secret.
    """
    if len(shares) < threshold:
        raise ValueError(f"{threshold} shares are needed to give back a secret, got {len(shares)}")
    # A threshold of the shares is enough; more add nothing.
    used_places = sorted(shares)[:threshold]
    interpolated_sum = 0
    for share_place in used_places:
        # Lagrange's basis polynomial of this place, at 0.
        numerator = 1
        denominator = 1
        for other_place in used_places:
            if other_place != share_place:
                numerator = numerator * other_place % PRIME
                denominator = denominator * (other_place - share_place) % PRIME
        interpolated_sum += (
            int.from_bytes(shares[share_place], "big") * numerator * pow(denominator, -1, PRIME)
        )
    secret_number = interpolated_sum % PRIME
    if secret_number >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("these are not shares of one secret")
    return secret_number.to_bytes(SECRET_BYTES, "big")
