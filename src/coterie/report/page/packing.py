"""Arrays of numbers in a JSON document, small: base64 of whole numbers, little-endian."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

Packed = dict[str, Any]


def whole(values: Any) -> Packed:
    """Whole numbers from -1 on; exact. ``{"type", "shape", "data"}``."""
    array = np.asarray(values, dtype=np.int32)
    return {"type": "i32", "shape": list(array.shape), "data": _text(array.astype("<i4"))}


def real(values: Any, bits: int = 16) -> Packed:
    """Numbers, in 2^bits - 1 steps from the least to the greatest; what is not finite, or None, is told as missing.

    ``{"type", "shape", "low", "high", "data"}``: a code ``c`` is ``low + (high - low) * c / (2^bits - 2)``, and the greatest
    code is a missing number.
    """
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    low, high = (float(array[known].min()), float(array[known].max())) if known.any() else (0.0, 0.0)
    missing = 2**bits - 1
    part = (np.where(known, array, low) - low) / (high - low if high > low else 1.0)
    codes = np.where(known, np.rint(part * (missing - 1)), missing)
    kind = {8: "<u1", 16: "<u2"}[bits]
    return {
        "type": f"u{bits}", "shape": list(array.shape), "low": low, "high": high, "data": _text(codes.astype(kind)),
    }  # fmt: skip


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
