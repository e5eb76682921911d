"""Questions as JSON. What is read comes from a server, and is checked: a wrong number would overflow at some clients."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from coterie.contrib.private.cells import Ask, CellQuestion

ARRAY_DIMENSIONS = {"centres": (2,), "axis": (1, 2)}
"""Field with an array -> how many dimensions it may have."""

SCALE_LIMITS = (1e-30, 1e30)
"""Sketches divided by a scale beyond these overflow where their numbers are large."""

MIN_RANGE = 1e-30
"""Least width of a histogram."""

MAX_COST = 10**6
"""Greatest number of updates as which an answer counts."""


def question_to_json(question: Any) -> dict[str, Any]:
    """Return a question as a value for JSON; arrays are their bytes in single precision.

    Args:
        question: The question.
    """
    json_values: dict[str, Any] = {
        question_field.name: getattr(question, question_field.name)
        for question_field in fields(question)
    }
    for array_name in ARRAY_DIMENSIONS:
        field_array = json_values[array_name]
        if field_array is not None:
            json_values[array_name] = [
                list(field_array.shape),
                b64encode(field_array.astype("<f4").tobytes()).decode(),
            ]
    json_values["cells"] = list(question.cells)
    return json_values


def question_from_json(json_values: Mapping[str, Any]) -> CellQuestion:
    """Read a question from JSON.

    Args:
        json_values: What :func:`question_to_json` has returned.

    Raises:
        ValueError: A value is not allowed.
        TypeError: A value has the wrong type.
    """
    # JSON has no arrays: they are bytes, with a shape.
    read_arrays = {
        array_name: None
        if json_values[array_name] is None
        else _array(array_name, json_values[array_name])
        for array_name in ARRAY_DIMENSIONS
    }
    question = CellQuestion(**{**json_values, **read_arrays, "cells": tuple(json_values["cells"])})
    if question.ask not in get_args(Ask) or not _is_sound(question):
        raise ValueError(
            f"CellQuestion needs something to ask, finite numbers and cells that exist, got {json_values!r:.200}"
        )
    return question


def _array(array_name: str, json_value: Any) -> np.ndarray:
    """Read an array of a question. Raises :class:`ValueError` if it is not finite, or has other dimensions."""
    # The shape and the bytes must fit, and no number may be infinite.
    stated_shape, array_bytes = json_value
    dimensions = ARRAY_DIMENSIONS[array_name]
    read_array = np.frombuffer(b64decode(array_bytes, validate=True), "<f4").reshape(stated_shape)
    if (
        read_array.ndim not in dimensions
        or not read_array.size
        or not np.isfinite(read_array).all()
    ):
        raise ValueError(
            f"CellQuestion.{array_name} must be finite numbers of {dimensions[-1]} dimensions, got {stated_shape}"
        )
    return read_array


def _is_sound(question: CellQuestion) -> bool:
    """Whether the numbers of a question are finite and in range, and its cells exist."""
    # Finite numbers in range: no answer overflows, at any client.
    if not all(_is_number(value) for value in (question.scale, question.low, question.high)):
        return False
    if not SCALE_LIMITS[0] <= question.scale <= SCALE_LIMITS[1]:
        return False
    if not question.high - question.low >= MIN_RANGE:
        return False
    # Cells that exist, and an axis for each of them.
    if not all(_is_count(cell) and cell < question.count for cell in question.cells):
        return False
    cell_axes = question.axis if question.ask == "places" else None
    if cell_axes is not None and len(cell_axes) != len(question.cells):
        return False
    return _is_count(question.cost) and 1 <= question.cost <= MAX_COST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
