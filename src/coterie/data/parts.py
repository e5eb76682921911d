"""Parts of a scenario: tables of settings that are also reached by their flat names.

A scenario has a part for each thing that makes its world: ``Scenario(partition=..., shift=...)``,
or in TOML ``[scenario.partition]``. A part is given as an object, as a table of changes, or as the
value of its main setting: ``partition = "dirichlet"``. No two parts have a setting of the same
name, so a setting also has a *flat name*, without its part: ``Scenario(alpha=0.1)``. On the command
line ``--set alpha=0.1`` and ``--set scenario.partition.alpha=0.1`` are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coterie.settings import SettingError, build, check, settings_of

OWNER = "Scenario"
"""What a message calls the owner of the settings."""


@dataclass(frozen=True, kw_only=True)
class ScenarioPart:
    """Settings of a scenario that belong together.

    Attributes:
        part: The name of the part.
        main: The setting that the name of the part alone stands for; empty if there is none.
    """

    part: ClassVar[str]
    main: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check(self, self.name_in_scenario)

    @classmethod
    def flat_name(cls, setting: str) -> str:
        """The name under which a scenario has a setting of this part: its own, or the part's for the main one."""
        return cls.part if setting == cls.main else setting

    @classmethod
    def name_in_scenario(cls, setting: str) -> str:
        """What a message calls a setting: ``Scenario.alpha``, and the main one by the part's name."""
        return f"{OWNER}.{cls.flat_name(setting)}"

    @classmethod
    def flat_names(cls) -> list[str]:
        """The names under which a scenario has the settings of this part."""
        return [cls.flat_name(setting) for setting in settings_of(cls)]

    def flat(self) -> dict[str, Any]:
        """The settings by the names under which a scenario has them."""
        return {self.flat_name(name): getattr(self, name) for name in settings_of(type(self))}


def combined(
    parts: Mapping[str, ScenarioPart],
    changes: Mapping[str, Any],
    class_of: Callable[[str, str], type[ScenarioPart]],
) -> tuple[dict[str, ScenarioPart], dict[str, Any]]:
    """Change the parts of a scenario by flat names, tables and objects.

    Args:
        parts: Name of a part -> the part.
        changes: Name of a part -> an object, a table, or the value of its main setting; or name
            of a setting of a part -> its value.
        class_of: Function of the name of a part and the value of its main setting that returns the
            part's class: the data sets have different options.

    Returns:
        The changed parts, and the changes that belong to no part.

    Raises:
        SettingError: A value is not allowed, or a table has an unknown name.
    """
    changed_parts = dict(parts)
    part_changes: dict[str, dict[str, Any]] = {part_name: {} for part_name in parts}
    # First the changes under the names of parts: an object, a table, or the main setting's value.
    for part_name, part in parts.items():
        if part_name not in changes:
            continue
        given = changes[part_name]
        if isinstance(given, ScenarioPart) and given.part == part_name:
            changed_parts[part_name] = given
        elif isinstance(given, Mapping):
            part_changes[part_name] |= given
        elif part.main:
            part_changes[part_name][part.main] = given
        else:
            raise SettingError(
                f"{OWNER}.{part_name} must be a table of settings, got {given!r:.60}"
            )

    # The data set decides which options there are. So the class of each part must be known before
    # the flat names are.
    classes: dict[str, type[ScenarioPart]] = {}
    part_of_setting: dict[str, str] = {}
    for part_name, part in changed_parts.items():
        main_value = getattr(part, part.main) if part.main else ""
        main_value = part_changes[part_name].get(part.main, main_value)
        part_class = class_of(part_name, main_value)
        classes[part_name] = part_class
        for setting_name in settings_of(part_class):
            if setting_name != part_class.main:
                part_of_setting[setting_name] = part_name

    # Then the changes under flat names, which win over those of a table.
    other_changes = {}
    for setting_name, value in changes.items():
        if setting_name in part_of_setting:
            part_changes[part_of_setting[setting_name]][setting_name] = value
        elif setting_name not in parts:
            other_changes[setting_name] = value
    for part_name, table in part_changes.items():
        if table:
            changed_parts[part_name] = _changed(changed_parts[part_name], table, classes[part_name])
    return changed_parts, other_changes


def _changed(
    part: ScenarioPart, changes: Mapping[str, Any], part_class: type[ScenarioPart]
) -> ScenarioPart:
    """The part with changes, as ``part_class``; a new class keeps the settings that both have."""
    setting_names = settings_of(part_class)
    if type(part) is part_class and all(name in setting_names for name in changes):
        return replace(part, **changes)
    kept = {}
    for name in settings_of(type(part)):
        if name in setting_names:
            kept[name] = getattr(part, name)
    return build(part_class, {**kept, **changes}, owner=f"{OWNER}.{part_class.part}")


def flat_names(classes: Iterable[type[ScenarioPart]]) -> list[str]:
    """Return the names under which a scenario has the settings of some parts, without repetitions."""
    names: dict[str, None] = {}
    for part_class in classes:
        names |= dict.fromkeys(part_class.flat_names())
    return list(names)
