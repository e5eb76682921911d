"""Arrays as PyTorch takes them, of whatever a user has: of any stride, order, byte order and class."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, KeysView, ValuesView
from typing import Any

import numpy as np
import torch

from coterie.settings import UserError, brief

NO_ROWS = (str, bytes, set, frozenset, Iterator, KeysView, ValuesView)
"""What can be walked through and is no array: a text has letters, a set has no order, and an
iterator is read only once."""


def ordinary(given: Any, where: str) -> Any:
    """Return an array that shares its memory with what was given, or a copy where PyTorch could not read it.

    Copies are made of arrays that are read backwards, have the byte order of other processors, or
    have Python's objects.

    Args:
        given: A tensor, or anything that NumPy takes as an array.
        where: What it is, for messages.

    Returns:
        A tensor for a tensor, dense and without gradient, in the processor's memory; otherwise an
        array, also a memory-mapped one.

    Raises:
        UserError: It is no array, or has missing (masked) values.

    Example:
        >>> ordinary(np.arange(4, dtype=">i2")[::-1], "x")
        array([3, 2, 1, 0], dtype=int16)
    """
    if isinstance(given, torch.Tensor):
        return _dense(given, where)
    if hasattr(given, "toarray"):  # SciPy's
        raise UserError(f"{where} is a sparse matrix: pass its .toarray()")
    if given is None or isinstance(given, NO_ROWS):
        hint = ": pass a list" if isinstance(given, NO_ROWS[2:]) else ""
        raise UserError(f"{where} must be an array, a tensor or a list, got {brief(given)}{hint}")
    array = np.asanyarray(given)
    if isinstance(array, np.ma.MaskedArray):
        array = _unmasked(array, where)
    if not isinstance(array, np.memmap):
        array = np.asarray(array)  # np.matrix would stay a matrix in every slice
    if array.dtype.kind == "O":
        array = _of_objects(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    return array


def as_array(given: Any) -> Any:
    """Return a tensor in a form that NumPy reads, and anything else as it is: for a look at data that are checked elsewhere."""
    return _dense(given, "a column") if isinstance(given, torch.Tensor) else given


def _dense(tensor: torch.Tensor, where: str) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise UserError(f"{where} is a sparse tensor: pass its .to_dense()")
    if tensor.is_meta:
        raise UserError(f"{where} is a tensor on the device meta, which has no numbers")
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    # A tensor that is as it should be stays the same object, by which splits recognise a pool that
    # they share.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor  # NumPy has no such numbers


def _unmasked(array: np.ma.MaskedArray[Any, Any], where: str) -> np.ndarray:
    """The numbers of a masked array of which none is masked: the numbers below a mask are no data."""
    masked = int(np.ma.count_masked(array))
    if masked:
        many = "1 masked value" if masked == 1 else f"{masked:,} masked values"
        raise UserError(
            f"{where} has {many}: remove such rows, or fill them in with .filled(VALUE)"
        )
    return np.asarray(array.data)


def _of_objects(array: np.ndarray) -> np.ndarray:
    """Objects that are all numbers as an array of numbers; others stay as they are."""
    kinds = {type(value) for value in array.flat}
    if kinds and all(issubclass(kind, numbers.Integral | np.bool_) for kind in kinds):
        try:
            return array.astype(np.int64)
        except OverflowError:
            return array
    if kinds and all(issubclass(kind, numbers.Real) for kind in kinds):
        return array.astype(np.float64)
    return array
