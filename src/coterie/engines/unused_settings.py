"""Settings of a method and its engine that were set and have no effect, in sentences: :func:`unused_of_engine`.

A simulation says them together with those of its scenario, see ``coterie.runs.unused_settings``. The
server of a federation has no scenario.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.robust import Robust
from coterie.settings.without_effect import in_words, without_effect


def unused_of_engine(
    methods: Iterable[Any],
    rounds: int | None,
    *,
    training: Training | None = None,
    base_training: Training | None = None,
    boundary: Boundary | None = None,
    robust: Robust | None = None,
) -> list[str]:
    """Return a sentence for each setting that was set and has no effect, because another one switches it off.

    Args:
        methods: The methods with their settings.
        rounds: The number of rounds; None if it is not known.
        training: Local training; None if nobody has set it.
        base_training: Local training before the user's settings; None for the defaults.
        boundary: Changes of updates on their way; None for none.
        robust: Bounds on the influence of one client; None for the defaults.

    Returns:
        The sentences, each once.
    """
    sentences: list[str] = []
    if training is not None:
        sentences += without_effect(training, base_training, lambda name: f"Training.{name}")
    if boundary is not None:
        sentences += without_effect(boundary, None, lambda name: f"Boundary.{name}")
    if robust is not None:
        sentences += without_effect(robust, None, lambda name: f"robust.{name}")
    sentences += _of_masks(boundary or Boundary(), robust or Robust())
    for method in methods:
        for inner_method in _with_inner(method):
            sentences += _of_method(inner_method, rounds, training, base_training)
    return list(dict.fromkeys(sentences))


def _of_masks(boundary: Boundary, robust: Robust) -> list[str]:
    """Limits on single clients where the server sees masked sums alone, and the bound of such sums without masks."""
    sentences = []
    if boundary.masks:
        for name in ("hostile", "norms", "share"):
            value = getattr(robust, name)
            if value != getattr(Robust(), name):
                sentences.append(
                    f"the setting robust.{name} = {value} has no effect with boundary.masks = true: the server sees sums "
                    "over clients, and no single client"
                )
    elif boundary.bound != Boundary().bound:
        sentences.append(
            f"the setting Boundary.bound = {boundary.bound:g} has no effect with masks = false: it is for masks = true"
        )
    return sentences


def _with_inner(method: Any) -> Iterator[Any]:
    """A method, and the methods in its settings."""
    yield method
    if not dataclasses.is_dataclass(method):
        return
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        for entry in value if isinstance(value, tuple) else (value,):
            if hasattr(entry, "plan") and dataclasses.is_dataclass(entry):
                yield from _with_inner(entry)


def _of_method(
    method: Any, rounds: int | None, training: Training | None, base_training: Training | None
) -> list[str]:
    """Settings of a method that have no effect, and settings of training in whose place it has its own."""
    if not dataclasses.is_dataclass(method):
        return []
    name_of_method = getattr(method, "name", type(method).__name__)
    sentences = without_effect(method, None, lambda name: f"{name_of_method}.{name}")
    # Settings that are the number of a round, of several rounds, or of the rounds before something.
    for field in dataclasses.fields(method):
        event = field.metadata.get("begins", "")
        value = getattr(method, field.name)
        if not event or not value or rounds is None:
            continue
        first_value = min(value) if isinstance(value, tuple) else value
        begins_in = first_value + field.metadata["rounds_later"]
        if begins_in > rounds:
            sentences.append(
                f"the setting {name_of_method}.{field.name} = {in_words(value)} is too late for {rounds} rounds: "
                f"{event} would be in round {begins_in}"
            )
    # A method may have its own value of a setting of local training.
    base = base_training or Training()
    replaced: dict[str, str] = getattr(type(method), "replaces_training", {})
    for training_name, own_name in replaced.items():
        value = getattr(training, training_name, None)
        if value not in (None, getattr(base, training_name), getattr(Training(), training_name)):
            sentences.append(
                f"the setting Training.{training_name} = {value:g} has no effect with {name_of_method}, where "
                f"{name_of_method}.{own_name} stands in its place"
            )
    return sentences
