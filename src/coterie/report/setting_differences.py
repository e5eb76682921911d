"""The settings in which compared runs differ, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

AROUND = ("scenario_settings", "training", "boundary", "robust", "run_settings", "limits")
"""Tables of settings that are not the method's own."""

SAME_BUT_SEED = ("method", "scenario", "settings", *AROUND, "metric", "better")
"""Keys that are equal in runs that differ in their seed alone."""


def differences(
    compared: Sequence[Mapping[str, Any]], tables: Sequence[str] = ("settings", *AROUND)
) -> list[str]:
    """Return the settings, in words, in which entries of the same method and scenario differ; one text per entry.

    Args:
        compared: The entries.
        tables: The tables of settings to compare.
    """
    differences_of_entries = []
    for entry in compared:
        # Entries of this method that should have the same settings.
        rivals = [rival for rival in compared if _is_same_method(rival, entry)]
        settings = []
        for table_name in tables:
            for setting, setting_value in entry.get(table_name, {}).items():
                if any(rival.get(table_name, {}).get(setting) != setting_value for rival in rivals):
                    settings.append(f"{setting} {setting_value}")
        differences_of_entries.append(", ".join(settings))
    return differences_of_entries


def _is_same_method(entry: Mapping[str, Any], other_entry: Mapping[str, Any]) -> bool:
    """Whether two entries are of one method in one scenario."""
    is_same = entry["method"] == other_entry["method"]
    return is_same and bool(entry["scenario"] == other_entry["scenario"])


def world_titles(compared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scenario of each entry, with the settings in which scenarios of one name differ.

    Entries with the same title are over the same clients, so they belong in one table.

    Args:
        compared: The entries, or summaries of runs.

    Example:
        >>> runs = [{"scenario": "digits/iid", "scenario_settings": {"clients": n}} for n in (4, 8)]
        >>> world_titles(runs)
        ['digits/iid, clients 4', 'digits/iid, clients 8']
    """
    titles = []
    for entry in compared:
        # Other entries of a scenario of this name, whose settings may be others.
        rivals = [rival for rival in compared if rival["scenario"] == entry["scenario"]]
        parts = [str(entry["scenario"])]
        for setting, setting_value in entry.get("scenario_settings", {}).items():
            rival_values = [rival.get("scenario_settings", {}).get(setting) for rival in rivals]
            if any(rival_value != setting_value for rival_value in rival_values):
                parts.append(f"{setting} {setting_value}")
        titles.append(", ".join(parts))
    return titles


def named(compared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the method of each entry, with the settings in which entries of one method differ."""
    labels = []
    for entry, settings in zip(compared, differences(compared, ("settings",)), strict=True):
        method_name = str(entry["method"])
        labels.append(f"{method_name} ({settings})" if settings else method_name)
    return labels


def labels_of_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the method of each run; methods that are there with several settings are numbered.

    Args:
        runs: The runs, of which several may differ in their seed alone.

    Example:
        >>> runs = [{"method": "ifca", "settings": {"models": n}, "scenario": "digits/iid"} for n in (2, 3, 3)]
        >>> labels_of_runs(runs)
        ['ifca 1', 'ifca 2', 'ifca 2']
    """
    # Method -> its settings, in the order in which they come.
    settings_of_method: dict[str, list[str]] = {}
    all_settings = differences(runs, ("settings",))
    for run, settings in zip(runs, all_settings, strict=True):
        known_settings = settings_of_method.setdefault(run["method"], [])
        if settings not in known_settings:
            known_settings.append(settings)
    labels = []
    for run, settings in zip(runs, all_settings, strict=True):
        known_settings = settings_of_method[run["method"]]
        number = f" {1 + known_settings.index(settings)}" if len(known_settings) > 1 else ""
        labels.append(f"{run['method']}{number}")
    return labels


def lines_of_settings(labels: Sequence[str], compared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each label whose method is there with several settings: the settings in which they differ.

    Args:
        labels: The label of each entry.
        compared: The entries; of several scenarios, each line begins with its scenario.
    """
    titles = world_titles(compared)
    lines: dict[str, None] = {}
    for title, label, settings in zip(
        titles, labels, differences(compared, ("settings",)), strict=True
    ):
        if settings:
            scenario_words = f"{title}, " if len(set(titles)) > 1 else ""
            lines[f"{scenario_words}{label}: {settings}"] = None
    return list(lines)


def unequal(compared: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return the settings in :data:`AROUND` in which rows differ, whatever their methods.

    Args:
        compared: The entries of one scenario.
        labels: Their labels.

    Returns:
        For each such setting, its values and the rows that have them, such as ``lr 0.1 (cfl), 0.05
        (fedavg, ifca)``.
    """
    differing_settings = []
    for table_name in AROUND:
        tables = [entry.get(table_name, {}) for entry in compared]
        # The settings of all tables, in their order.
        all_settings: dict[str, None] = {}
        for settings_table in tables:
            all_settings.update(dict.fromkeys(settings_table))
        for setting in all_settings:
            # Value of the setting -> the rows that have it.
            labels_of_value: dict[str, list[str]] = {}
            for settings_table, label in zip(tables, labels, strict=True):
                setting_value = str(settings_table.get(setting, "not set"))
                labels_of_value.setdefault(setting_value, []).append(label)
            if len(labels_of_value) > 1:
                values_in_words = []
                for setting_value, labels_with_value in labels_of_value.items():
                    values_in_words.append(f"{setting_value} ({', '.join(labels_with_value)})")
                differing_settings.append(f"{setting} {', '.join(values_in_words)}")
    return differing_settings
