"""Settings that another setting switches off, in sentences.

A field says itself on what its effect depends, see ``only_with`` and ``not_with`` of
:func:`~coterie.settings.setting`. Such a setting is allowed: a sweep may vary a setting together
with the one that switches it off. But whoever set it must be told that it does nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.settings import brief


def without_effect(
    settings: Any,
    base: Any,
    name_of: Callable[[str], str],
    values: Mapping[str, Any] | None = None,
    short_name_of: Callable[[str], str] = str,
) -> list[str]:
    """Return a sentence for each setting that was changed and has no effect.

    Args:
        settings: The settings, an instance of a dataclass.
        base: The settings before the changes. What is equal in both, or is the default, was not set
            by the user.
        name_of: Function of a field's name that returns the setting's name in messages.
        values: Name -> value of the settings on which effects depend; None for those of
            ``settings``.
        short_name_of: Function of the name of a setting on which an effect depends, that returns its
            name in messages.

    Returns:
        The sentences.
    """
    sentences = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        # Only what the user has changed is worth a word.
        if value in (field.default, getattr(base, field.name, field.default)):
            continue
        if values is None:
            values = {
                other.name: getattr(settings, other.name) for other in dataclasses.fields(settings)
            }
        reason = _switched_off(field.metadata, values, short_name_of)
        if reason:
            sentences.append(
                f"the setting {name_of(field.name)} = {in_words(value)} has no effect with {reason}"
            )
    return sentences


def _switched_off(
    metadata: Mapping[str, Any], values: Mapping[str, Any], short_name_of: Callable[[str], str]
) -> str:
    """What switches a setting off, and what would switch it on; empty if it has an effect."""
    # Any of these values switches it off.
    for name, off_values in metadata.get("not_with", {}).items():
        if values[name] in off_values:
            short_name = short_name_of(name)
            # Zero and one switch a number off, and a greater one switches it on.
            is_number = isinstance(values[name], int | float) and not isinstance(values[name], bool)
            remedy = "to another value"
            if is_number and values[name] in (0, 1):
                remedy = f"above {values[name]:g}"
            return f"{short_name} = {in_words(values[name])}: set {short_name} {remedy}"
    # One of these values is enough to switch it on.
    only_with: Mapping[str, Sequence[Any]] = metadata.get("only_with", {})
    if not only_with or any(values[name] in on_values for name, on_values in only_with.items()):
        return ""
    present = []
    needed = []
    for name, on_values in only_with.items():
        short_name = short_name_of(name)
        present.append(f"{short_name} = {in_words(values[name])}")
        needed.append(f"{short_name} = {' or '.join(map(in_words, on_values))}")
    return f"{' and '.join(present)}: it is for {', or for '.join(needed)}"


def in_words(value: Any) -> str:
    """A value as one writes it in a setting, without quotation marks."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return brief(list(value))
    return value if isinstance(value, str) else brief(value)
