"""Parts of a scenario: tables of settings that are also reached by their flat names.

A scenario has a part for each thing that makes its world: ``Scenario(partition=..., shift=...)``,
or in TOML ``[scenario.partition]``. A part is given as an object, as a table of changes, or as the
value of its main setting: ``partition = "dirichlet"``. No two parts have a setting of the same
name, so a setting is also found by its name alone: ``Scenario(alpha=0.1)``, ``--set alpha=0.1``.
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
    def name_in_scenario(cls, setting: str) -> str:
        """What a message calls a setting: ``Scenario.alpha``, and the main one by the part's name."""
        return f"{OWNER}.{cls.part if setting == cls.main else setting}"

    @classmethod
    def flat_names(cls) -> list[str]:
        """The names under which a scenario has the settings of this part."""
        return [cls.part if name == cls.main else name for name in settings_of(cls)]

    def flat(self) -> dict[str, Any]:
        """The settings by the names under which a scenario has them."""
        values = [getattr(self, name) for name in settings_of(type(self))]
        return dict(zip(self.flat_names(), values, strict=True))


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
    tables: dict[str, dict[str, Any]] = {name: {} for name in parts}
    for name in parts:
        if name not in changes:
            continue
        given = changes[name]
        if isinstance(given, ScenarioPart) and given.part == name:
            changed_parts[name] = given
        elif isinstance(given, Mapping):
            tables[name] |= given
        elif parts[name].main:
            tables[name][parts[name].main] = given
        else:
            raise SettingError(f"{OWNER}.{name} must be a table of settings, got {given!r:.60}")

    # The data set decides which options there are, so its class is known before flat names are.
    classes = {}
    for name, part in changed_parts.items():
        main_value = tables[name].get(part.main, getattr(part, part.main) if part.main else "")
        classes[name] = class_of(name, main_value)
    part_of = {
        setting: name
        for name, cls in classes.items()
        for setting in settings_of(cls)
        if setting != cls.main
    }
    rest = {}
    for name, value in changes.items():
        if name in part_of:
            tables[part_of[name]][name] = value
        elif name not in parts:
            rest[name] = value
    for name, table in tables.items():
        if table:
            changed_parts[name] = _changed(changed_parts[name], table, classes[name])
    return changed_parts, rest


def _changed(part: ScenarioPart, table: Mapping[str, Any], cls: type[ScenarioPart]) -> ScenarioPart:
    """The part with changes; a new class keeps the settings that the old one has too."""
    known = settings_of(cls)
    if type(part) is cls and all(name in known for name in table):
        return replace(part, **table)
    kept = {name: getattr(part, name) for name in settings_of(type(part)) if name in known}
    return build(cls, {**kept, **table}, owner=f"{OWNER}.{cls.part}")


def flat_names(classes: Iterable[type[ScenarioPart]]) -> list[str]:
    """Return the names under which a scenario has the settings of some parts, without repetitions."""
    names = dict.fromkeys(name for cls in classes for name in cls.flat_names())
    return list(names)
