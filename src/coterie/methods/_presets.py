"""Presets: settings of a method under one name, such as those of its paper.

A method's class may have ``presets``, a table of settings for each name::

    presets: ClassVar[Presets] = {"paper": {"rule": "cho"}}

Wherever a table of a method's settings is taken, its entry ``preset`` stands for the settings of
that name; the other entries of the table count before them. A made method has the settings alone,
so a record needs no preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from coterie.settings import SettingError, build, nearest, no_setting, settings_of

Presets: TypeAlias = Mapping[str, Mapping[str, object]]
"""Name of a preset -> its settings."""

PRESET = "preset"
"""The entry of a method's table that names a preset."""


def presets_of(method_type: type[Any]) -> Presets:
    """Return the presets of a method's class; it has none if a setting of its own is called ``preset``."""
    presets: Presets = getattr(method_type, "presets", {})
    return {} if PRESET in settings_of(method_type) else presets


def preset_settings(method_type: type[Any], preset_name: object) -> dict[str, Any]:
    """Return the settings of a preset.

    Args:
        method_type: The class of the method.
        preset_name: The name of the preset.

    Raises:
        SettingError: The method has no such preset, or the preset names a setting that there is not.
    """
    method_name = method_type.name
    presets = presets_of(method_type)
    if not presets:
        raise SettingError(f"{method_name} has no presets, got preset {preset_name!r:.60}")
    if not isinstance(preset_name, str) or preset_name not in presets:
        raise SettingError(
            f"{method_name}.preset must be one of {', '.join(presets)}, "
            f"got {preset_name!r:.60}{nearest(preset_name, presets)}"
        )
    settings = dict(presets[preset_name])
    known_names = settings_of(method_type)
    for setting_name, value in settings.items():
        if setting_name not in known_names:
            owner = f"the preset {preset_name!r} of {method_name}"
            raise no_setting(owner, setting_name, known_names, value)
    return settings


def built(method_type: type[Any], table: Mapping[str, Any]) -> Any:
    """Make a method from a table of its settings, which may name a preset.

    Args:
        method_type: The class of the method.
        table: Name of a setting -> value. ``preset`` adds the settings of a preset that the table
            does not have itself.

    Returns:
        The method.

    Raises:
        SettingError: A name is unknown, or a value is not allowed.
    """
    settings = dict(table)
    if PRESET in settings and PRESET not in settings_of(method_type):
        settings = preset_settings(method_type, settings.pop(PRESET)) | settings
    return build(method_type, settings)
