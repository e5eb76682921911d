"""``--set KEY=VALUE``: the settings of an experiment to which a key refers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.data.scenario import SCENARIO_PARTS, OwnWorld, Scenario, find, flat_name
from coterie.methods import METHODS, method_class
from coterie.robust import Robust
from coterie.runs.experiment import OWN_FIELDS, PLAIN_SETTINGS, Spec
from coterie.settings import SettingError, nearest, parse, settings_of
from coterie.settings.calls import public
from coterie.settings.field_names import called_here, meant

_KEY_PATTERN = re.compile(r"[\w.-]+")


DOTTED_TABLES = ("boundary", "robust")
"""Tables whose settings can only be named together with the table, as in ``boundary.KEY``."""


class SettingPlace(NamedTuple):
    """The place of a setting in an experiment's tables.

    Attributes:
        kind: The kind of table.
        table: The name of the table.
        key: The key of the setting.
        values: The table itself, into which the value is written.
    """

    kind: str
    table: str
    key: str
    values: dict[str, Any]

    @property
    def dotted(self) -> str:
        """The name of the table and the key, with a dot between."""
        return f"{self.table}.{self.key}"

    def set(self, value: Any) -> None:
        """Write a value into the table."""
        part = self.values.get(self.key)
        if self.kind == "scenario" and isinstance(part, Mapping):
            # The name of a part stands for its main setting; its other settings stay.
            value = {**part, SCENARIO_PARTS[self.key].main: value}
        self.values[self.key] = value


@public
def assign(spec: Spec, text: str) -> Spec:
    """Change one setting of an experiment.

    Args:
        spec: The experiment's tables; they stay as they are.
        text: ``key=value``. The key is ``method.KEY`` (for each method that has it), ``NAME.KEY``
            for one method, ``training.KEY``, ``scenario.KEY``, ``experiment.KEY``, ``boundary.KEY``
            or ``robust.KEY``; or KEY alone, if only one of method, training, scenario and
            experiment has it. ``target`` alone is the column of a scenario of a table. A setting
            of a part of the scenario is also ``scenario.PART.KEY``, and ``scenario.PART`` takes a
            table of them.

    Returns:
        The changed tables.

    Raises:
        SettingError: The key is unknown (the message names the most similar key) or ambiguous, or
            the value cannot be read.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not _KEY_PATTERN.fullmatch(key):
        got_words = (
            "; the value is not shown: it may be a secret"
            if "secret" in text.lower()
            else f", got {text!r}"
        )
        raise SettingError(f"--set takes key=value{got_words}")
    spec = {
        **spec,
        "scenario": dict(spec["scenario"]),
        "training": dict(spec["training"]),
        "boundary": dict(spec["boundary"]),
        "robust": dict(spec["robust"]),
        "methods": [dict(method_table) for method_table in spec["methods"]],
    }
    try:
        # TOML's notation, or the text itself.
        parsed = parse(value)
    except ValueError as error:
        if key.rpartition(".")[2] == "secret" and value.isdecimal():
            raise SettingError(
                f"--set {key}: a secret of more than 64 bits must be given with --secret-file FILE"
            ) from None
        raise SettingError(f"--set {key}: the value cannot be read: {error}") from error
    # A setting may have the text "none" (a shift), and an optional setting takes "none" for None.
    if parsed is None:
        parsed = "none"
    setup = find(spec["scenario"]["name"])
    of_table = isinstance(setup, Scenario) and setup.dataset.name == "table"
    # Write each setting into every place that the key means.
    for flat_key, flat_value in _flat_settings(spec, key, parsed).items():
        places = list(_places(spec))
        is_dotted = "." in flat_key
        matching = _dotted(places, flat_key) if is_dotted else _bare(places, flat_key, of_table)
        for place in matching:
            place.set(flat_value)
    return spec


def _flat_settings(spec: Spec, key: str, value: Any) -> dict[str, Any]:
    """The settings that ``key=value`` stands for, those of a part of the scenario by their flat names.

    ``scenario.partition.alpha`` is ``scenario.alpha``, and a table for ``scenario.partition`` is
    all settings in it.
    """
    table, _, part_and_setting = key.partition(".")
    part, _, setting_name = part_and_setting.partition(".")
    if table != "scenario" or part not in SCENARIO_PARTS:
        return {key: value}
    # One setting of a part is a table with one entry.
    part_table = {setting_name: value} if setting_name else value
    if not isinstance(part_table, Mapping):
        return {key: value}
    # The options of a data set depend on its name. The same table may change it, so the main
    # setting comes first.
    dataset = _dataset_name(spec)
    if part == "dataset":
        dataset = str(part_table.get("name", dataset))
    main = SCENARIO_PARTS[part].main
    settings = {}
    for inner_name in sorted(part_table, key=lambda inner_name: inner_name != main):
        try:
            settings[f"scenario.{flat_name(part, inner_name, dataset)}"] = part_table[inner_name]
        except SettingError as error:
            raise SettingError(f"--set {key}: {error}") from None
    return settings


def _places(spec: Spec) -> Iterator[SettingPlace]:
    for table in spec["methods"]:
        for key in settings_of(method_class(table["name"])):
            yield SettingPlace("method", table["name"], key, table)
    for key in settings_of(Training):
        yield SettingPlace("training", "training", key, spec["training"])
    for key in settings_of(Boundary):
        yield SettingPlace("boundary", "boundary", key, spec["boundary"])
    for key in settings_of(Robust):
        yield SettingPlace("robust", "robust", key, spec["robust"])
    for key in _scenario_settings(spec):
        yield SettingPlace("scenario", "scenario", key, spec["scenario"])
    for key in (*PLAIN_SETTINGS, "seeds"):
        yield SettingPlace("experiment", "experiment", key, spec)


def _scenario_settings(spec: Spec) -> list[str]:
    """The names of the scenario's settings, those of its parts by their flat names."""
    if isinstance(find(spec["scenario"]["name"]), OwnWorld):
        return settings_of(OwnWorld, hidden=OWN_FIELDS)
    return [name for name in Scenario.setting_names(_dataset_name(spec)) if name != "training"]


def _dataset_name(spec: Spec) -> str:
    """The name of the scenario's data set, which the experiment may change; empty for your own world."""
    setup = find(spec["scenario"]["name"])
    usual_name = setup.dataset.name if isinstance(setup, Scenario) else ""
    dataset = spec["scenario"].get("dataset", usual_name)
    if isinstance(dataset, Mapping):
        dataset = dataset.get("name", usual_name)
    return str(dataset)


def _dotted(places: list[SettingPlace], key: str) -> list[SettingPlace]:
    # The part before the dot is a table, or the name of a method.
    table, _, setting_name = key.rpartition(".")
    table_places = [place for place in places if table in (place.table, place.kind)]
    if not table_places:
        tables = dict.fromkeys([*(place.table for place in places), "method"])
        if table in METHODS:
            raise SettingError(f"--set {key}: {table} is not among the methods of this run")
        if table in SCENARIO_PARTS:
            raise SettingError(f"--set {key}: there is no {table!r}; did you mean scenario.{key}?")
        raise SettingError(
            f"--set {key}: there is no {table!r}{nearest(table, tables)} (known: {', '.join(tables)})"
        )
    matching = [place for place in table_places if place.key == setting_name]
    if not matching:
        known_names = list(dict.fromkeys(place.key for place in table_places))
        # The setting of this table that was most likely meant.
        likely = meant(setting_name, known_names)
        likely_hint = f"; did you mean {likely}?" if likely else ""
        raise SettingError(
            f"--set {key}: {table} has no setting {setting_name!r}{likely_hint} (known: {', '.join(known_names)})"
        )
    return matching


def _bare(places: list[SettingPlace], key: str, of_table: bool) -> list[SettingPlace]:
    matching = [place for place in places if place.key == key and place.kind not in DOTTED_TABLES]
    # In a table, target is the column to predict; otherwise the accuracy, which --target also sets.
    if key == "target":
        matching = [place for place in matching if (place.kind == "scenario") == of_table]
    if not matching:
        if table := next((place.table for place in places if place.key == key), None):
            raise SettingError(f"--set {key}: write {table}.{key}")
        raise SettingError(
            f"--set {key}: no method of this run, training or scenario has a setting {key!r}{_hint(places, key)}"
        )
    # Several methods may share a setting; several kinds of tables may not.
    if len({place.kind for place in matching}) > 1:
        names = " or ".join(dict.fromkeys(place.dotted for place in matching))
        raise SettingError(f"--set {key} is ambiguous: write {names}")
    return matching


def _hint(places: list[SettingPlace], key: str) -> str:
    """The end of a sentence that says which setting may be meant by a key that is none."""
    # Its names elsewhere; settings of the run's methods come first.
    for name in (key, *called_here(key)):
        likely = next((place for place in places if place.key == name), None)
        if likely is not None:
            return f"; did you mean {_written(places, likely)}?"
    # Then a setting of methods that this run does not have.
    other_methods = [
        name
        for name, method_type in METHODS.items()
        if any(
            setting_name in settings_of(method_type) for setting_name in (key, *called_here(key))
        )
    ]
    if other_methods:
        return f"; it is a setting of {', '.join(other_methods)}, and this run has none of these"
    # Last, a slip.
    likely_key = meant(key, dict.fromkeys(place.key for place in places))
    if likely_key is not None:
        return f"; did you mean {_written(places, next(place for place in places if place.key == likely_key))}?"
    return "; coterie methods NAME and coterie scenarios NAME list them"


def _written(places: list[SettingPlace], meant_place: SettingPlace) -> str:
    """A setting as --set takes it: the key alone where that is clear."""
    kinds = {place.kind for place in places if place.key == meant_place.key}
    return (
        meant_place.key
        if len(kinds) == 1 and meant_place.kind not in DOTTED_TABLES
        else meant_place.dotted
    )


@public
def option_hint(option: str, value: str) -> str:
    """Return the end of a sentence that says which ``--set`` an option stands for that the command line does not have.

    Args:
        option: The option, such as ``--metric``.
        value: The value that follows it, or an empty text.

    Returns:
        The text, from its semicolon; empty if no setting has such a name.
    """
    tables = {
        "training": settings_of(Training),
        "scenario": [name for name in Scenario.setting_names() if name != "training"],
        "boundary": settings_of(Boundary),
        "robust": settings_of(Robust),
    }
    # Every setting of every table, also of methods that a run may not have.
    places = [SettingPlace(name, name, key, {}) for name, keys in tables.items() for key in keys]
    places += [
        SettingPlace("method", name, key, {})
        for name, cls in METHODS.items()
        for key in settings_of(cls)
    ]
    key = option.lstrip("-").replace("-", "_")
    names = [key, *called_here(key)]
    if key == "metric":  # a distance to FL+HC; an option of this name is a metric of models
        names.reverse()
    for name in names:
        likely = [place for place in places if place.key == name]
        if not likely:
            continue
        # Of several places, the table or the method that users most likely mean.
        of_a_method = [place for place in likely if place.kind == "method"]
        place = of_a_method[0] if of_a_method and name in _SETTINGS_OF_METHODS else likely[0]
        shown = "VALUE" if not value or "secret" in name else value
        if place.kind == "scenario" and isinstance(Scenario.default_of(name), tuple):
            shown = f"'[\"{shown}\"]'"
        text = f"method.{name}" if place.kind == "method" else _written(likely, place)
        return f"; it is a setting: --set {text}={shown}"
    return ""


_SETTINGS_OF_METHODS = ("models", "fraction", "groups", "threshold", "linkage")
"""Settings that are a method's where several tables have them."""
