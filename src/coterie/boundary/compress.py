"""Lossy compression of an update into the arrays that are sent. No method remembers the part that it left out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from coterie.settings.calls import public

NUMBER_BYTES = 4
"""Bytes of a float32, and of an index, in a message."""


def topk_count(share: float, number_count: int) -> int:
    """The number of ``number_count`` entries that topk sends: at least one, if there is any."""
    return min(number_count, max(1, round(share * number_count)))


@public
def pack(
    values: torch.Tensor, kind: str, share: float = 1.0, generator: torch.Generator | None = None
) -> Mapping[str, torch.Tensor]:
    """Compress values into the arrays that are sent.

    - topk: the ``share`` of entries with the greatest magnitude, as ``values`` and ``indices``.
    - sign: one bit per entry, and the mean magnitude of all entries. A zero gets a random sign from
      ``generator``: otherwise entries that are zero at all clients would make all clients similar.
    - 8bit: integers from -127 to 127 and the scale, greatest magnitude / 127. The error is at most
      half the scale.

    Args:
        values: The values ``(c,)`` float32.
        kind: ``none`` or one of the above.
        share: Share of the entries that topk sends.
        generator: Draws the signs of zeros; without it they are positive.

    Returns:
        Name -> array.
    """
    if kind == "topk":
        # In ascending order: the receiver checks that no index comes twice.
        largest_indices = torch.topk(values.abs(), topk_count(share, len(values))).indices
        indices = largest_indices.sort().values
        return {"values": values[indices], "indices": indices.to(torch.int32)}
    if kind == "sign":
        is_positive = values >= 0
        # A zero gets a random sign.
        if generator is not None:
            is_positive &= (values != 0) | (torch.rand(len(values), generator=generator) < 0.5)
        sign_bits = np.packbits(is_positive.numpy())
        return {"bits": torch.from_numpy(sign_bits), "scale": values.abs().mean().reshape(-1)}
    if kind == "8bit":
        scale = values.abs().max() / 127
        # Zeros alone have no scale, and stay zeros.
        level_codes = torch.round(values / scale) if scale > 0 else torch.zeros_like(values)
        return {"codes": level_codes.to(torch.int8), "scale": scale.reshape(-1)}
    return {"values": values}


@public
def unpack(sent_arrays: Mapping[str, torch.Tensor], kind: str, number_count: int) -> torch.Tensor:
    """Decompress the arrays of :func:`pack` into ``number_count`` values ``(count,)`` float32."""
    if kind == "topk":
        values = torch.zeros(number_count)
        values[sent_arrays["indices"].long()] = sent_arrays["values"]
        return values
    if kind == "sign":
        is_positive = torch.from_numpy(
            np.unpackbits(sent_arrays["bits"].numpy(), count=number_count)
        )
        return (2.0 * is_positive - 1.0) * sent_arrays["scale"]
    if kind == "8bit":
        return sent_arrays["codes"].float() * sent_arrays["scale"]
    return sent_arrays["values"]


def check_packed(
    sent_arrays: Mapping[str, torch.Tensor], kind: str, number_count: int, share: float = 1.0
) -> None:
    """Check that arrays, which may come from an untrusted sender, have the form of :func:`pack`'s for ``number_count`` entries.

    Args:
        sent_arrays: Name -> array.
        kind: As for :func:`pack`.
        number_count: Number of values.
        share: As for :func:`pack`.

    Raises:
        ValueError: Names, shapes, types or indices are not valid.
    """
    # Arrays of the right form, with any values, to compare with.
    expected_arrays = pack(torch.zeros(number_count), kind, share)
    if set(sent_arrays) != set(expected_arrays):
        raise ValueError(
            f"it holds {', '.join(sorted(sent_arrays)) or 'nothing'} where {kind} has {', '.join(sorted(expected_arrays))}"
        )
    for array_name, expected_array in expected_arrays.items():
        sent_array = sent_arrays[array_name]
        if sent_array.shape != expected_array.shape or sent_array.dtype != expected_array.dtype:
            raise ValueError(
                f"its {array_name} are {tuple(sent_array.shape)} of {sent_array.dtype} "
                f"where {kind} has {tuple(expected_array.shape)} of {expected_array.dtype}"
            )
    if kind == "topk":
        indices = sent_arrays["indices"]
        if not bool(((indices >= 0) & (indices < number_count)).all()):
            raise ValueError(f"its indices must be from 0 to {number_count - 1}")
        # An index that comes twice would give one entry two values.
        if not bool((indices.diff() > 0).all()):
            raise ValueError("its indices must increase strictly")


@public
def packed_bytes(kind: str, number_count: int, share: float = 1.0) -> int:
    """Bytes of :func:`pack`'s arrays for ``number_count`` entries; 0 for no entries."""
    if not number_count:
        return 0
    bytes_by_kind = {
        "none": number_count * NUMBER_BYTES,
        # A value and an index for each entry that is sent.
        "topk": topk_count(share, number_count) * 2 * NUMBER_BYTES,
        # One bit per entry, in whole bytes, and the scale.
        "sign": -(-number_count // 8) + NUMBER_BYTES,
        # One byte per entry, and the scale.
        "8bit": number_count + NUMBER_BYTES,
    }
    return bytes_by_kind[kind]
