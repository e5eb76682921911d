"""Arrays as PyTorch takes them, of whatever a user has: of any stride, order, byte order and class.

Every door passes its arrays, tensors and columns through :func:`ordinary`. Refused are texts, sets and
iterators, sparse matrices and tensors, and masked values.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, KeysView, ValuesView
from typing import Any

import numpy as np
import torch

from coterie.settings import UserError, brief

NOT_ROWS = (str, bytes, set, frozenset, Iterator, KeysView, ValuesView)
"""What can be walked through and is no array: a text has letters, a set has no order, and an
iterator is read only once."""


def ordinary(data: Any, context: str) -> Any:
    """Return an array that shares its memory with what was given, or a copy where PyTorch could not read it.

    Copies are made of arrays that are read backwards, have the byte order of other processors, or
    have Python's objects.

    Args:
        data: A tensor, or anything that NumPy takes as an array.
        context: What it is, for messages.

    Returns:
        A tensor for a tensor, dense and without gradient, in the processor's memory; otherwise an
        array, also a memory-mapped one.

    Raises:
        UserError: It is no array, or has missing (masked) values.

    Example:
        >>> ordinary(np.arange(4, dtype=">i2")[::-1], "x")
        array([3, 2, 1, 0], dtype=int16)
    """
    if isinstance(data, torch.Tensor):
        return _dense(data, context)
    # A sparse matrix of SciPy would become an array of one object.
    if hasattr(data, "toarray"):
        raise UserError(f"{context} is a sparse matrix: pass its .toarray()")
    if data is None or isinstance(data, NOT_ROWS):
        hint = ": pass a list" if isinstance(data, NOT_ROWS[2:]) else ""
        raise UserError(f"{context} must be an array, a tensor or a list, got {brief(data)}{hint}")
    array = np.asanyarray(data)
    if isinstance(array, np.ma.MaskedArray):
        array = _unmasked(array, context)
    # A memory-mapped array stays one, and a np.matrix would stay a matrix in every slice.
    if not isinstance(array, np.memmap):
        array = np.asarray(array)
    if array.dtype.kind == "O":
        array = _of_objects(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    return array


def as_array(data: Any) -> Any:
    """Return a tensor in a form that NumPy reads, and anything else as it is: for a look at data that are checked elsewhere."""
    return _dense(data, "a column") if isinstance(data, torch.Tensor) else data


def _dense(tensor: torch.Tensor, context: str) -> torch.Tensor:
    """A tensor with its numbers in the processor's memory, in a type that NumPy has."""
    if tensor.layout is not torch.strided:
        raise UserError(f"{context} is a sparse tensor: pass its .to_dense()")
    if tensor.is_meta:
        raise UserError(f"{context} is a tensor on the device meta, which has no numbers")
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
    # NumPy has no bfloat16.
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _unmasked(array: np.ma.MaskedArray[Any, Any], context: str) -> np.ndarray:
    """The numbers of a masked array of which none is masked: the numbers below a mask are no data."""
    masked_count = int(np.ma.count_masked(array))
    if masked_count:
        words = "1 masked value" if masked_count == 1 else f"{masked_count:,} masked values"
        raise UserError(
            f"{context} has {words}: remove such rows, or fill them in with .filled(VALUE)"
        )
    return np.asarray(array.data)


def _of_objects(array: np.ndarray) -> np.ndarray:
    """Objects that are all numbers as an array of numbers; others stay as they are."""
    types = {type(value) for value in array.flat}
    if not types:
        return array
    if all(issubclass(value_type, numbers.Integral | np.bool_) for value_type in types):
        # Integers of more than 64 bits stay objects.
        try:
            return array.astype(np.int64)
        except OverflowError:
            return array
    if all(issubclass(value_type, numbers.Real) for value_type in types):
        return array.astype(np.float64)
    return array
