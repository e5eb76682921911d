"""``--set KEY=VALUE``: the settings of an experiment to which a key refers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.data.scenario import SCENARIO_PARTS, OwnWorld, Scenario, find, flat_name
from coterie.methods import METHODS
from coterie.methods._named import CLASS, class_of_table, method_class, without_class
from coterie.methods._presets import PRESET, presets_of
from coterie.robust import Robust
from coterie.runs.experiment import OWN_FIELDS, PLAIN_SETTINGS, Spec
from coterie.settings import SettingError, known_list, nearest, parse, settings_of
from coterie.settings.calls import public
from coterie.settings.field_names import called_here, meant
from coterie.settings.optimizers import arguments, as_options

_KEY_PATTERN = re.compile(r"\w[\w.-]*")


DOTTED_TABLES = ("boundary", "robust")
"""Tables whose settings can only be named together with the table, as in ``boundary.KEY``."""


OPTION_TABLES = ("optimizer_options", "schedule_options")
"""Settings of training that are tables of arguments, as in ``training.optimizer_options.KEY``."""


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
    def module(self) -> str:
        """The module of a user's own method, which stands for it as well; empty for any other table."""
        place = self.values.get(CLASS, "") if self.kind == "method" else ""
        return str(place).partition(":")[0]

    @property
    def dotted(self) -> str:
        """The name of the table and the key, with a dot between."""
        return f"{self.table}.{self.key}"

    def set(self, value: Any) -> None:
        """Write a value into the table."""
        part_table = self.values.get(self.key)
        if self.kind == "scenario" and isinstance(part_table, Mapping):
            # The name of a part stands for its main setting; its other settings stay.
            value = {**part_table, SCENARIO_PARTS[self.key].main: value}
        if self.kind == "method" and self.key == PRESET:
            # The preset counts before what the table had.
            for setting_name in presets_of(class_of_table(self.values)).get(str(value), {}):
                self.values.pop(setting_name, None)
        self.values[self.key] = value


@public
def presets_first(texts: Iterable[str]) -> list[str]:
    """Return the values of ``--set`` in the order in which :func:`assign` takes them.

    Presets come first, so that every other setting counts before those of a preset.

    Raises:
        SettingError: A key has two values, of which one would be lost.
    """
    texts = list(texts)
    value_of_key: dict[str, str] = {}
    for text in texts:
        key, _, value = map(str.strip, text.partition("="))
        earlier_value = value_of_key.setdefault(key, value)
        if earlier_value != value:
            shown_values = f": {earlier_value} and {value}" if "secret" not in key.lower() else ""
            raise SettingError(
                f"--set {key} is given twice with different values{shown_values:.100}; give it once"
            )
    return sorted(texts, key=lambda text: _setting_name(text) != PRESET)


def _setting_name(text: str) -> str:
    """The name of the setting in ``key=value``, without its table."""
    return text.partition("=")[0].rpartition(".")[2].strip()


@public
def assign(spec: Spec, text: str) -> Spec:
    """Change one setting of an experiment.

    Args:
        spec: The experiment's tables; they stay as they are.
        text: ``key=value``. The key is ``method.KEY`` (for each method that has it), ``NAME.KEY``
            for one method (for one of your own also ``MODULE.KEY``), ``training.KEY``,
            ``scenario.KEY``, ``experiment.KEY``, ``boundary.KEY`` or ``robust.KEY``; or KEY alone,
            if only one of method, training, scenario and experiment has it. ``target`` alone is the
            column of a scenario of a table. A setting of a part of the scenario is also
            ``scenario.PART.KEY``, and ``scenario.PART`` takes a table of them.

    Returns:
        The changed tables.

    Raises:
        SettingError: The key is unknown (the message names the most similar key) or ambiguous, or
            the value cannot be read.
    """
    key, equals, value = map(str.strip, text.partition("="))
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
        "methods": _with_names(spec),
    }
    try:
        # TOML's notation, or the text itself.
        parsed_value = parse(value)
    except ValueError as error:
        if key.rpartition(".")[2] == "secret" and value.isdecimal():
            raise SettingError(
                f"--set {key}: a secret of more than 64 bits must be given with --secret-file FILE"
            ) from None
        raise SettingError(f"--set {key}: the value cannot be read: {error}") from error
    # A setting may have the text "none" (a shift), and an optional setting takes "none" for None.
    if parsed_value is None:
        parsed_value = "none"
    scenario_setup = find(spec["scenario"]["name"])
    is_table_data = isinstance(scenario_setup, Scenario) and scenario_setup.dataset.name == "table"
    # Write each setting into every place that the key means.
    for flat_key, flat_value in _flat_settings(spec, key, parsed_value).items():
        all_places = list(_places(spec))
        is_dotted = "." in flat_key
        matching_places = (
            _dotted(all_places, flat_key)
            if is_dotted
            else _bare(all_places, flat_key, is_table_data)
        )
        for place in matching_places:
            place.set(flat_value)
    return spec


def _with_names(spec: Spec) -> list[dict[str, Any]]:
    """The tables of the methods, a user's own by the name of its class and the place."""
    if "origin" in spec:
        spec["origin"].check_methods(spec["methods"], {})
    tables = []
    for table in spec["methods"]:
        names = {"name": table["name"]}
        if ":" in table["name"]:
            names = {"name": method_class(table["name"]).name, CLASS: table["name"]}
        elif CLASS in table:
            names[CLASS] = table[CLASS]
        tables.append({**names, **without_class(table)})
    return tables


def _flat_settings(spec: Spec, dotted_key: str, value: Any) -> dict[str, Any]:
    """The settings that ``key=value`` stands for, those of a part of the scenario by their flat names.

    ``scenario.partition.alpha`` is ``scenario.alpha``, and a table for ``scenario.partition`` is
    all settings in it.
    """
    table_name, _, part_and_setting = dotted_key.partition(".")
    part_name, _, setting_name = part_and_setting.partition(".")
    if table_name == "training" and part_name in OPTION_TABLES and setting_name:
        # One argument of an optimizer or a schedule; those that are given already stay.
        given_options = spec["training"].get(part_name, ())
        options = arguments(f"--set training.{part_name}", as_options(part_name, given_options))
        return {f"training.{part_name}": {**options, setting_name: value}}
    if table_name != "scenario" or part_name not in SCENARIO_PARTS:
        return {dotted_key: value}
    # One setting of a part is a table with one entry.
    part_table = {setting_name: value} if setting_name else value
    if not isinstance(part_table, Mapping):
        return {dotted_key: value}
    # The options of a data set depend on its name. The same table may change it, so the main
    # setting comes first.
    dataset_name = _dataset_name(spec)
    if part_name == "dataset":
        dataset_name = str(part_table.get("name", dataset_name))
    main_setting = SCENARIO_PARTS[part_name].main
    settings = {}
    for inner_name in sorted(part_table, key=lambda inner_name: inner_name != main_setting):
        try:
            settings[f"scenario.{flat_name(part_name, inner_name, dataset_name)}"] = part_table[
                inner_name
            ]
        except SettingError as error:
            raise SettingError(f"--set {dotted_key}: {error}") from None
    return settings


def _places(spec: Spec) -> Iterator[SettingPlace]:
    for method_table in spec["methods"]:
        for setting_key in _method_keys(class_of_table(method_table)):
            yield SettingPlace("method", method_table["name"], setting_key, method_table)
    for setting_key in settings_of(Training):
        yield SettingPlace("training", "training", setting_key, spec["training"])
    for setting_key in settings_of(Boundary):
        yield SettingPlace("boundary", "boundary", setting_key, spec["boundary"])
    for setting_key in settings_of(Robust):
        yield SettingPlace("robust", "robust", setting_key, spec["robust"])
    for setting_key in _scenario_settings(spec):
        yield SettingPlace("scenario", "scenario", setting_key, spec["scenario"])
    for setting_key in (*PLAIN_SETTINGS, "seeds"):
        yield SettingPlace("experiment", "experiment", setting_key, spec)


def _method_keys(method_type: type[Any]) -> list[str]:
    """The names of a method's settings, and ``preset`` if it has presets."""
    return [*settings_of(method_type), *([PRESET] if presets_of(method_type) else [])]


def _scenario_settings(spec: Spec) -> list[str]:
    """The names of the scenario's settings, those of its parts by their flat names."""
    if isinstance(find(spec["scenario"]["name"]), OwnWorld):
        return settings_of(OwnWorld, hidden=OWN_FIELDS)
    return _without_training(Scenario.setting_names(_dataset_name(spec)))


def _without_training(scenario_settings: Iterable[str]) -> list[str]:
    """The settings of a scenario; those of local training have their own table."""
    return [name for name in scenario_settings if name != "training"]


def _dataset_name(spec: Spec) -> str:
    """The name of the scenario's data set, which the experiment may change; empty for your own world."""
    setup = find(spec["scenario"]["name"])
    usual_name = setup.dataset.name if isinstance(setup, Scenario) else ""
    dataset_entry = spec["scenario"].get("dataset", usual_name)
    if isinstance(dataset_entry, Mapping):
        dataset_entry = dataset_entry.get("name", usual_name)
    return str(dataset_entry)


def _dotted(places: list[SettingPlace], dotted_key: str) -> list[SettingPlace]:
    # The part before the dot is a table, or the name of a method.
    table_name, _, setting_name = dotted_key.rpartition(".")
    table_places = [
        place for place in places if table_name in (place.table, place.kind, place.module)
    ]
    if not table_places:
        known_tables = dict.fromkeys([*map(attrgetter("table"), places), "method"])
        if table_name in METHODS:
            raise SettingError(
                f"--set {dotted_key}: {table_name} is not among the methods of this run"
            )
        if table_name in SCENARIO_PARTS:
            raise SettingError(
                f"--set {dotted_key}: there is no {table_name!r}; did you mean scenario.{dotted_key}?"
            )
        raise SettingError(
            f"--set {dotted_key}: there is no {table_name!r}{nearest(table_name, known_tables)}"
            f"{known_list(known_tables)}"
        )
    matching_places = [place for place in table_places if place.key == setting_name]
    if not matching_places:
        known_names = list(dict.fromkeys(map(attrgetter("key"), table_places)))
        # The setting of this table that was most likely meant.
        likely_name = meant(setting_name, known_names)
        likely_hint = f"; did you mean {likely_name}?" if likely_name else ""
        raise SettingError(
            f"--set {dotted_key}: {table_name} has no setting {setting_name!r}{likely_hint}{known_list(known_names)}"
        )
    return matching_places


def _bare(places: list[SettingPlace], setting_key: str, of_table: bool) -> list[SettingPlace]:
    matching_places = [
        place for place in places if place.key == setting_key and place.kind not in DOTTED_TABLES
    ]
    # In a table, target is the column to predict; otherwise the accuracy, which --target also sets.
    if setting_key == "target":
        matching_places = [
            place for place in matching_places if (place.kind == "scenario") == of_table
        ]
    if not matching_places:
        if table_name := next((place.table for place in places if place.key == setting_key), None):
            raise SettingError(f"--set {setting_key}: write {table_name}.{setting_key}")
        raise SettingError(
            f"--set {setting_key}: no method of this run, training or scenario has a setting "
            f"{setting_key!r}{_hint(places, setting_key)}"
        )
    # Several methods may share a setting; several kinds of tables may not.
    if len({place.kind for place in matching_places}) > 1:
        dotted_names = " or ".join(dict.fromkeys(map(attrgetter("dotted"), matching_places)))
        raise SettingError(f"--set {setting_key} is ambiguous: write {dotted_names}")
    return matching_places


def _hint(places: list[SettingPlace], setting_key: str) -> str:
    """The end of a sentence that says which setting may be meant by a key that is none."""
    # Its names elsewhere; settings of the run's methods come first.
    for known_name in (setting_key, *called_here(setting_key)):
        likely_place = next((place for place in places if place.key == known_name), None)
        if likely_place is not None:
            return f"; did you mean {_written(places, likely_place)}?"
    # Then a setting of methods that this run does not have.
    possible_names = {setting_key, *called_here(setting_key)}
    other_methods = []
    for method_name, method_type in METHODS.items():
        if not possible_names.isdisjoint(_method_keys(method_type)):
            other_methods.append(method_name)
    if other_methods:
        return f"; it is a setting of {', '.join(other_methods)}, and this run has none of these"
    # Last, a slip.
    likely_key = meant(setting_key, dict.fromkeys(map(attrgetter("key"), places)))
    if likely_key is not None:
        likely_place = next(place for place in places if place.key == likely_key)
        return f"; did you mean {_written(places, likely_place)}?"
    return "; coterie methods NAME and coterie scenarios NAME list them"


def _written(places: list[SettingPlace], meant_place: SettingPlace) -> str:
    """A setting as --set takes it: the key alone where that is clear."""
    table_kinds = {place.kind for place in places if place.key == meant_place.key}
    return (
        meant_place.key
        if len(table_kinds) == 1 and meant_place.kind not in DOTTED_TABLES
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
    keys_of_table = {
        "training": settings_of(Training),
        "scenario": _without_training(Scenario.setting_names()),
        "boundary": settings_of(Boundary),
        "robust": settings_of(Robust),
    }
    # Every setting of every table, also of methods that a run may not have.
    places = []
    for table_name, setting_keys in keys_of_table.items():
        places += [SettingPlace(table_name, table_name, key, {}) for key in setting_keys]
    for method_name, method_type in METHODS.items():
        places += [SettingPlace("method", method_name, key, {}) for key in settings_of(method_type)]
    setting_key = option.lstrip("-").replace("-", "_")
    possible_names = [setting_key, *called_here(setting_key)]
    if setting_key == "metric":  # a distance to FL+HC; an option of this name is a metric of models
        possible_names.reverse()
    for setting_name in possible_names:
        likely_places = [place for place in places if place.key == setting_name]
        if not likely_places:
            continue
        # Of several places, the table or the method that users most likely mean.
        of_a_method = [place for place in likely_places if place.kind == "method"]
        place = (
            of_a_method[0]
            if of_a_method and setting_name in _SETTINGS_OF_METHODS
            else likely_places[0]
        )
        shown = "VALUE" if not value or "secret" in setting_name else value
        if place.kind == "scenario" and isinstance(Scenario.default_of(setting_name), tuple):
            shown = f"'[\"{shown}\"]'"
        setting_words = (
            f"method.{setting_name}" if place.kind == "method" else _written(likely_places, place)
        )
        return f"; it is a setting: --set {setting_words}={shown}"
    return ""


_SETTINGS_OF_METHODS = ("models", "fraction", "groups", "threshold", "linkage")
"""Settings that are a method's where several tables have them."""
